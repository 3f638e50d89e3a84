#!/usr/bin/env python3
"""Predicted beside measured on real runs of the main job's model over emulated links: three link speeds, three splits (forced
by memory limits), two kinds of second device. Every job runs twice, so that the spread of A against A stands beside the error.
  bench/accuracy.py [steps, default 20] [pairs: avx2,sse42] [links: none,100Mbit/s:2ms,10Mbit/s:20ms]
"""
import statistics
import sys
import time

from harness import Motley, demo_rows, expect, report, smollm2

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


def case(isa, memory, link, steps, model):
    with Motley(config(isa, memory, link)) as motley:
        rows, _ = demo_rows(motley.base)
        spec = {"name": "accuracy", "model": model,
                "data": {"train": rows, "format": "alpaca", "sequence_tokens": 256, "shuffle": False},
                "train": {"batch_rows": 4, "steps": steps, "learning_rate": 1e-4}, "checkpoint": {"every_steps": 0},
                "placement": {"kind": "pipeline"}}
        runs = [measure(motley, spec), measure(motley, spec)]
    out = dict(runs[0], isa=isa, memory=memory, link=link, a_against_a=runs[1]["measured_s"] / runs[0]["measured_s"] - 1,
               errors=[r["predicted_s"] / r["measured_s"] - 1 for r in runs], replays=[r["replay"] for r in runs])
    print(f"native+{isa:5} {link:16} blocks {out['blocks']}: measured {out['measured_s']:.3f} s (again {out['a_against_a']:+.1%}), "
          f"predicted {out['errors'][0]:+.1%} {out['errors'][1]:+.1%}, replay {out['replays'][0]:+.1%}, memory {out['peak']:.1%}, "
          f"VmHWM {out['hwm']:.1%}", flush=True)
    return out


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    pairs = sys.argv[2].split(",") if len(sys.argv) > 2 else ["avx2", "sse42"]
    links = sys.argv[3].split(",") if len(sys.argv) > 3 else ["none", "100Mbit/s:2ms", "10Mbit/s:20ms"]
    model, cases = smollm2(), []
    for isa in pairs:
        for link in links:
            for memory in SPLITS:
                cases.append(case(isa, memory, link, steps, model))
    errors = [abs(e) for c in cases for e in c["errors"]]
    report("accuracy", {
        "steps": steps, "cases": len(cases), "time_error_mean": statistics.mean(errors), "time_error_worst": max(errors),
        "spread_mean": statistics.mean(abs(c["a_against_a"]) for c in cases),
        "spread_worst": max(abs(c["a_against_a"]) for c in cases),
        "replay_worst": max(abs(r) for c in cases for r in c["replays"]), "memory_worst": max(c["peak"] for c in cases),
        "vm_hwm_worst": max(c["hwm"] for c in cases), "each": cases})


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
