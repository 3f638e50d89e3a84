#!/usr/bin/env python3
"""A split job against two separate jobs running at the same time, one on each of the two devices.

Runs are interleaved (separate, split, separate, split …); the spread of equal runs is printed beside the ratio.
  bench/split_throughput.py [micro-batches, default 64] [rounds, default 3]
"""
import sys
import time

from harness import Motley, demo_rows, expect, report, smollm2, summary

STEPS = 2


def spec(model, rows, name, micro_batches, placement):
    return {"name": name, "model": model, "data": {"train": rows, "format": "alpaca", "sequence_tokens": 256, "shuffle": False},
            "method": {"kind": "lora", "dropout": 0.0},
            "train": {"batch_rows": micro_batches, "steps": STEPS, "learning_rate": 1e-4, "warmup_steps": 1},
            "checkpoint": {"every_steps": 0}, "placement": {"micro_batch_rows": 1, **placement}}


def throughput(motley, ident):
    """Tokens/s over the steps but the first, which warms up."""
    steps = motley.metrics(ident)[0]
    expect(len(steps) == STEPS, f"job {ident} told {len(steps)} steps")
    return sum(s["tokens"] for s in steps[1:]) / sum(s["seconds"] for s in steps[1:])


def run_all(motley, specs):
    idents = [motley.submit(s, name=f"{s['name']}.json")["id"] for s in specs]
    for ident in idents:
        job = motley.wait_state(ident, ("succeeded", "failed", "cancelled"), timeout=900)
        expect(job["state"] == "succeeded", f"job {ident}: {job['state']}: {job.get('why')}")
    return [throughput(motley, ident) for ident in idents]


def main():
    micro_batches = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    model = smollm2()
    config = {"agents": [
        {"name": "left", "devices": [{"kind": "cpu", "threads": 1, "memory": "3GiB", "isa": "native"}]},
        {"name": "right", "devices": [{"kind": "cpu", "threads": 1, "memory": "3GiB", "isa": "avx2"}]}]}
    separate, split = [], []
    with Motley(config) as motley:
        rows, _ = demo_rows(motley.base)
        plan = None
        for _ in range(rounds):
            alone = [spec(model, rows, f"alone-{side}", micro_batches, {"kind": "single", "devices": [f"{side}/cpu0"]})
                     for side in ("left", "right")]
            separate.append(sum(run_all(motley, alone)))
            both = spec(model, rows, "split", micro_batches, {"kind": "pipeline", "stages": 2})
            plan = plan or motley.run("plan", motley.write("plan.json", both), parse=True, timeout=300)
            split.append(run_all(motley, [both])[0])
            print(f"separate {separate[-1]:.1f} tokens/s, split {split[-1]:.1f}: {split[-1] / separate[-1]:.3f}", flush=True)
    ratios = [s / a for s, a in zip(split, separate)]
    report(f"split_throughput_{micro_batches}", {
        "micro_batches": micro_batches, "separate_tokens_per_s": summary(separate), "split_tokens_per_s": summary(split),
        "ratio": summary(ratios), "spread_of_a_against_a": max(separate) / min(separate) - 1,
        "predicted_step_s": plan["step_s"], "lower_bound_s": plan["lower_bound_s"]})


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
