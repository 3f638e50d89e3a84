#!/usr/bin/env python3
"""Predicted beside measured on real runs of the main job's model over emulated links: three link speeds, three splits (forced
by memory limits), two kinds of second device. Every job runs twice, each time in a service started anew that measures its
devices anew: the spread of A against A, of what was measured and of what was predicted, stands beside the error.

A machine shared with others changes its speed by a third within minutes, and then the error is the neighbours'. So a case is
run again, up to a number of tries, until the machine stood still: both pairs of A against A within STILL of each other.
That looks at spreads alone, never at the error; every try is printed, and the cases that never stood still are reported with
the rest and apart from it.
  bench/accuracy.py [steps, default 20] [pairs: avx2,sse42] [links: none,100Mbit/s:2ms,10Mbit/s:20ms] [tries, default 3]
"""
import statistics
import sys
import time

from harness import Motley, demo_rows, expect, report, smollm2

STILL = 0.04  # below the 5 % allowed at the mean; two starts on a quiet machine of two cores are mostly closer than that
SPLITS = (("330MiB", "520MiB"), ("450MiB", "450MiB"), ("520MiB", "330MiB"))


def config(isa, memory, link):
    document = {"agents": [
        {"name": "left", "devices": [{"kind": "cpu", "threads": 1, "memory": memory[0], "isa": "native"}]},
        {"name": "right", "devices": [{"kind": "cpu", "threads": 1, "memory": memory[1], "isa": isa}]}]}
    if link != "none":
        rate, latency = link.rsplit(":", 1)
        document["links"] = [{"between": ["left", "right"], "rate": rate, "latency": latency}]
    return document


def measure(motley, spec):
    """One job: medians over all its steps, and what was said before it."""
    job = motley.submit(spec, wait=True, timeout=900)
    expect(job["state"] == "succeeded", f"{job['state']}: {job.get('why')}")
    steps = motley.metrics(job["id"])[0]
    replay = motley.run("replay", str(job["id"]), parse=True)
    memory = [(r["device"], r["memory"]) for r in job["run"]["ranks"]]
    answer = job["run"]["plan_answer"]
    return {
        "measured_s": statistics.median(s["seconds"] for s in steps), "predicted_s": answer["step_s"],
        "replay": replay["simulated_s"] / replay["recorded_s"] - 1,
        "blocks": [r["blocks"] for r in answer["ranks"]],
        "peak": max(abs(m["predicted_bytes"] / m["peak_bytes"] - 1) for _, m in memory),
        "hwm": max(abs((m["predicted_bytes"] + m["predicted_base_bytes"]) / m["vm_hwm_bytes"] - 1) for _, m in memory)}


def run_once(isa, memory, link, steps, model):
    """The job in a service of its own, whose profiles are as old as the run."""
    with Motley(config(isa, memory, link)) as motley:
        rows, _ = demo_rows(motley.base)
        return measure(motley, {
            "name": "accuracy", "model": model,
            "data": {"train": rows, "format": "alpaca", "sequence_tokens": 256, "shuffle": False},
            "train": {"batch_rows": 4, "steps": steps, "learning_rate": 1e-4}, "checkpoint": {"every_steps": 0},
            "placement": {"kind": "pipeline"}})


def attempt(isa, memory, link, steps, model):
    first, second = (run_once(isa, memory, link, steps, model) for _ in range(2))
    out = {"isa": isa, "memory": memory, "link": link, "runs": [first, second],
           "same_split": first["blocks"] == second["blocks"],
           "a_against_a": second["measured_s"] / first["measured_s"] - 1,
           "predicted_a_against_a": second["predicted_s"] / first["predicted_s"] - 1,
           "errors": [r["predicted_s"] / r["measured_s"] - 1 for r in (first, second)]}
    out["moved"] = max(abs(out["a_against_a"]), abs(out["predicted_a_against_a"])) if out["same_split"] else 1.0
    other = "" if out["same_split"] else f" and {second['blocks']}"
    print(f"native+{isa:5} {link:16} blocks {first['blocks']}{other}: "
          f"measured {first['measured_s']:.3f} s (again {out['a_against_a']:+.1%}), "
          f"predicted {out['errors'][0]:+.1%} {out['errors'][1]:+.1%} (again {out['predicted_a_against_a']:+.1%}), "
          f"replay {max(abs(r['replay']) for r in out['runs']):.1%}, memory {max(r['peak'] for r in out['runs']):.1%}, "
          f"VmHWM {max(r['hwm'] for r in out['runs']):.1%}{'' if out['moved'] > STILL else ' still'}", flush=True)
    return out


def case(isa, memory, link, steps, model, tries):
    """The first try during which the machine stood still, else the one during which it moved least."""
    done = []
    for _ in range(tries):
        done.append(attempt(isa, memory, link, steps, model))
        if done[-1]["moved"] <= STILL:
            break
    return dict(min(done, key=lambda a: a["moved"]), tries=len(done))


def errors_of(cases):
    errors = [abs(e) for c in cases for e in c["errors"]]
    return {"cases": len(cases), "mean": statistics.mean(errors), "worst": max(errors)} if errors else {"cases": 0}


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    pairs = sys.argv[2].split(",") if len(sys.argv) > 2 else ["avx2", "sse42"]
    links = sys.argv[3].split(",") if len(sys.argv) > 3 else ["none", "100Mbit/s:2ms", "10Mbit/s:20ms"]
    tries = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    model = smollm2()
    cases = [case(isa, memory, link, steps, model, tries) for isa in pairs for link in links for memory in SPLITS]
    runs = [r for c in cases for r in c["runs"]]
    report("accuracy", {
        "steps": steps, "error_all": errors_of(cases), "error_still": errors_of([c for c in cases if c["moved"] <= STILL]),
        "error_moved": errors_of([c for c in cases if c["moved"] > STILL]),
        "spread_mean": statistics.mean(abs(c["a_against_a"]) for c in cases),
        "spread_worst": max(abs(c["a_against_a"]) for c in cases),
        "replay_worst": max(abs(r["replay"]) for r in runs), "memory_worst": max(r["peak"] for r in runs),
        "vm_hwm_worst": max(r["hwm"] for r in runs), "each": cases})


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
