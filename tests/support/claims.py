"""What every Python test stands on: where things are, claims that hold or fail, and the run of them."""
import os
import sys
import time

SOURCE = os.environ.get("MOTLEY_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("MOTLEY_BIN") or os.path.join(SOURCE, "build", "bin")
SLOW = float(os.environ.get("MOTLEY_SLOW", "1"))  # instrumented builds: deadlines are so many times longer
DATA = os.path.join(SOURCE, "tests", "data")
GOLDEN = os.path.join(DATA, "golden")
SKIP = 77


class Failed(Exception):
    pass


def expect(condition, text):
    if not condition:
        raise Failed(text)


def skip(why):
    print(f"SKIP: {why}")
    sys.exit(SKIP)


def main(*claims):
    """Run each claim (a function); print one line each and a last one that counts; the exit status is the verdict."""
    failed = 0
    for claim in claims:
        began = time.monotonic()
        try:
            detail = claim()
            print(f"ok      {claim.__name__} ({time.monotonic() - began:.2f} s){': ' + detail if detail else ''}", flush=True)
        except Failed as problem:
            failed += 1
            print(f"FAILED  {claim.__name__}: {problem}", flush=True)
    print(f"{len(claims) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
