#!/usr/bin/env python3
"""`make strangers`: see README.md. Exit status 1 when something was found."""
import asyncio
import glob
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from claims import SOURCE, Failed, skip  # noqa: E402
from machine import Machine  # noqa: E402
from operations import operations  # noqa: E402
from service import Service  # noqa: E402

FOUND = os.path.join(os.environ.get("MOTLEY_BUILD") or os.path.join(SOURCE, "build"), "strangers")
RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorded")
IGNORED = [words for words in os.environ.get("STRANGERS_IGNORED", "").split("|") if words]  # findings whose kind has one of these words
WITHOUT = [words for words in os.environ.get("STRANGERS_WITHOUT", "").split("|") if words]  # operations that have one of these words are left out
SERVICE_SEEDS = 20  # so many seeds share one start of the service
# What daemons may hold between two labs, however many they served: twice what they have levelled off at.
WEIGHT_MAX = {"api": {"rss_bytes": 96 << 20, "descriptors": 100}, "scheduler": {"rss_bytes": 96 << 20, "descriptors": 50}}
# Eight of ten starts are in their range (docs/SHARING.md) where only arrivals are uncertain. Here limits, drains, leases and faults
# come between, and jobs of 0.1 s are as long as the machine is busy: two of three.
RANGES_MIN, RANGES_HOLD = 200, 0.66


class Strangers:
    """A service and how many labs it had."""

    def __init__(self):
        self.service = None
        self.labs = 0

    def fresh(self):
        self.end()
        self.service = Service()
        self.service.__enter__()
        self.service.tiny_model("strangers")

    def end(self):
        if self.service:
            self.service.__exit__(None, None, None)
            self.service = None

    def play(self, seed, script, rounds=1, last=True):
        if self.service is None or self.labs % SERVICE_SEEDS == 0:
            self.fresh()
        self.labs += 1
        machine = Machine(self.service, seed, f"s{self.labs}", IGNORED)
        try:
            self.loop.run_until_complete(machine.play(script, rounds, last))
        except (Failed, OSError) as problem:
            machine.found("the lab could not be built or left", problem)
        machine.weight = self.service.weight()
        for name, most in WEIGHT_MAX.items():
            for what, bound in most.items():
                if machine.weight.get(name, {}).get(what, 0) > bound:
                    machine.found(f"the {name} grows", f"{what} {machine.weight[name][what]} > {bound} after {self.labs % SERVICE_SEEDS or SERVICE_SEEDS} labs")
        if machine.findings:
            for name in ("scheduler", "api"):
                os.makedirs(FOUND, exist_ok=True)
                shutil.copyfile(self.service.path(name + ".log"), os.path.join(FOUND, f"{seed}-{name}.log"))
            self.end()  # what is broken must not look like the next seed's finding
        return machine

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        return self

    def __exit__(self, *_):
        self.end()
        rest = asyncio.all_tasks(self.loop)
        for task in rest:
            task.cancel()
        if rest:
            self.loop.run_until_complete(asyncio.wait(rest, timeout=5))
        self.loop.close()


def store(name, seed, script, findings):
    os.makedirs(FOUND, exist_ok=True)
    path = os.path.join(FOUND, name + ".json")
    with open(path, "w", encoding="utf-8") as handle:
        handle.write("{" + f'"seed": {seed}, "found": {json.dumps(findings[:8], indent=1)}, "operations": [\n' + ",\n".join(json.dumps(each) for each in script) + "\n]}\n")
    return path


def kind_of(operation):
    made = "/".join(operation.get("path", "").split("/")[:3]) if operation.get("method") != "GET" else ""
    return operation.get("do") or operation.get("fault") or f"{operation.get('method')} {made}"


def shrink(strangers, seed, script, what, seconds):
    """The shortest script that still found the same kind. Whole kinds of operations are left out first, since most have nothing to
    do with it; then halves, quarters, … single operations, from the end, as what came last made the least of the others' objects."""
    deadline = time.monotonic() + seconds

    def without(some):
        nonlocal script
        less = [each for each in script if each["n"] not in some]
        if not less or len(less) == len(script) or time.monotonic() > deadline:
            return
        if any(each["what"] == what for each in strangers.play(seed, less).findings):
            script = less
            print(f"  {len(script)} operations still find it", flush=True)

    for kind, _ in Counter(map(kind_of, script)).most_common():
        without({each["n"] for each in script if kind_of(each) == kind})
    size = len(script) // 2
    while size > 0:
        numbers = [each["n"] for each in script]
        for at in range(len(numbers), 0, -size):
            without(set(numbers[max(0, at - size):at]))
        size //= 2
    return script


def recorded():
    return sorted(glob.glob(os.path.join(RECORDED, "*.json")))


def replay(paths):
    failed = 0
    with Strangers() as strangers:
        for path in paths:
            with open(path, encoding="utf-8") as handle:
                document = json.load(handle)
            machine = strangers.play(document["seed"], document["operations"])
            print(f"{'FAILED' if machine.findings else 'ok'}  {os.path.basename(path)}: {len(document['operations'])} operations", flush=True)
            for finding in machine.findings[:5]:
                print(f"        {finding['what']}: {finding['text'][:600]}")
            failed += bool(machine.findings)
    return 1 if failed else 0


def search(count, first, seeds, seconds, without=WITHOUT):
    began, done, kinds, played, told, held = time.monotonic(), 0, {}, 0, 0, 0
    with Strangers() as strangers:
        for seed in range(first, first + seeds):
            if seconds and time.monotonic() - began > seconds:
                break
            script = [each for each in operations(seed, count) if not any(words in json.dumps(each) for words in without)]
            at = time.monotonic()
            machine = strangers.play(seed, script, max(1, count // 1250))
            played, done, told, held = played + 1, done + machine.done, told + machine.ranges["told"], held + machine.ranges["held"]
            took = time.monotonic() - at
            print(f"seed {seed}: {machine.done} operations in {took:.1f} s, {machine.done / took:.0f} a second ({', '.join(f'{what} {spent:.0f}' for what, spent in machine.spent.items())}); {dict(sorted(machine.counts.items()))}; "
                  + ", ".join(f"{name} {each['rss_bytes'] >> 20} MiB {each['descriptors']} descriptors {each['cpu_s']:.0f} s of CPU" for name, each in machine.weight.items()), flush=True)
            for finding in machine.findings:
                if finding["what"] not in kinds:
                    path = store(f"{seed}-{len(kinds)}", seed, script[:machine.done], [finding])
                    print(f"  FOUND {finding['what']}: {finding['text'][:700]}\n    {path}", flush=True)
                kinds.setdefault(finding["what"], []).append(seed)
    took = time.monotonic() - began
    if told >= RANGES_MIN and held < RANGES_HOLD * told:
        kinds["ranges of starts hold less often than they say"] = [first]
    print(f"{done} operations of {played} seeds in {took:.0f} s, {done / took:.0f} a second; {held} of {told} ranges of starts held: {len(kinds)} kinds of findings")
    for what, where in kinds.items():
        print(f"  {len(where)} x {what} (seeds {sorted(set(where))[:8]})")
    return 1 if kinds else 0


def main():
    if not shutil.which("redis-server"):
        skip("Redis is not installed")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the service ends, too
    words = sys.argv[1:]
    if words[:1] == ["--replay"]:
        return replay(words[1:] or recorded())
    if words[:1] == ["--shrink"]:
        with open(words[1], encoding="utf-8") as handle:
            document = json.load(handle)
        with Strangers() as strangers:
            script = shrink(strangers, document["seed"], document["operations"], document["found"][0]["what"], float(words[2]) if len(words) > 2 else 600)
        print(store(os.path.basename(words[1])[:-5] + "-short", document["seed"], script, document["found"]))
        return 0
    if words == ["--test"]:
        return replay(recorded()) or search(400, 1, 1000, 40, ())
    return search(int(os.environ.get("STRANGERS_OPERATIONS", "5000")), int(os.environ.get("STRANGERS_SEED", "1")), int(os.environ.get("STRANGERS_SEEDS", "200")),
                  float(os.environ.get("STRANGERS_SECONDS", "0")))


if __name__ == "__main__":
    sys.exit(main())
