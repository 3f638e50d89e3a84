"""Shared by the benchmarks that drive the whole service: the tests' own harness, and how results are printed."""
import json
import os
import platform
import statistics
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(SOURCE, "tests", "system"))

from motley import Motley, expect, golden_spec, tokens_rows  # noqa: E402,F401


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8")
                  if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} cores"


def smollm2():
    """Path of the GGUF, fetched once."""
    done = subprocess.run([os.path.join(SOURCE, "tools", "fetch_smollm2.sh"), os.path.join(SOURCE, ".cache")],
                          capture_output=True, text=True, check=False, cwd=SOURCE)
    if done.returncode != 0:
        print(f"SKIP: the model could not be fetched: {done.stderr.strip()[-300:]}")
        sys.exit(77)
    return done.stdout.strip().splitlines()[-1]


def demo_rows(folder):
    train, held_out = os.path.join(folder, "train.jsonl"), os.path.join(folder, "held-out.jsonl")
    subprocess.run([os.path.join(SOURCE, "tools", "demo_rows.sh"), train, held_out], check=True, cwd=SOURCE)
    return train, held_out


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def report(name, document):
    document = {"benchmark": name, "machine": machine(), **document}
    print(json.dumps(document, indent=1))
    out = os.environ.get("MOTLEY_BENCH_OUT")
    if out:
        with open(os.path.join(out, f"{name}.json"), "w", encoding="utf-8") as handle:
            json.dump(document, handle, indent=1)
            handle.write("\n")
