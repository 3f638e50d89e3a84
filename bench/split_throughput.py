#!/usr/bin/env python3
"""A split job against two separate jobs running at the same time, one on each of the two devices.

Rounds are interleaved (separate, split, separate, split …); the spread of equal runs is printed beside the ratio. The two
separate jobs are counted only while both run: the faster device's job is given more steps, and what each did within the
common time is interpolated within its steps (alone, either would go faster: the two share the machine's memory).
The split's own simulation, from its recorded instruction times and with links that cost nothing, is printed beside it.
  bench/split_throughput.py [micro-batches, default 64] [rounds, default 3] [kinds of placement, default pipeline]
"""
import json
import sys
import time
import urllib.request

from harness import Motley, demo_rows, expect, report, smollm2, summary

STEPS = {"left": 3, "right": 2, "split": 2}
FREE = ("--link", "left:right=100000Gbit/s,0ms", "--link", "right:left=100000Gbit/s,0ms")


def spec(model, rows, name, micro_batches, steps, placement):
    return {"name": name, "model": model, "data": {"train": rows, "format": "alpaca", "sequence_tokens": 256, "shuffle": False},
            "method": {"kind": "lora", "dropout": 0.0},
            "train": {"batch_rows": micro_batches, "steps": steps, "learning_rate": 1e-4, "warmup_steps": 1},
            "checkpoint": {"every_steps": 0}, "placement": {"micro_batch_rows": 1, **placement}}


def submit(motley, document):
    return motley.submit(document, name=f"{document['name']}.json")["id"]


def wait(motley, ident):
    job = motley.wait_state(ident, ("succeeded", "failed", "cancelled"), timeout=900)
    expect(job["state"] == "succeeded", f"job {ident}: {job['state']}: {job.get('why')}")


def steps_of(motley, ident):
    """(begin, end, tokens) of each step, in seconds of the wall clock, by the run's own trace."""
    with open(f"{motley.home}/client.json", encoding="utf-8") as handle:
        client = json.load(handle)
    request = urllib.request.Request(f"{client['address']}/v1/jobs/{ident}/trace",
                                     headers={"Authorization": f"Bearer {client['token']}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        events = [e for e in json.load(answer)["traceEvents"] if e.get("ph") == "X" and e.get("cat") == "train"]
    out = []
    for line in motley.metrics(ident)[0]:
        mine = [e for e in events if e["args"]["step"] == line["step"]]
        expect(mine, f"job {ident}: step {line['step']} was not traced")
        out.append((min(e["ts"] for e in mine) / 1e6, max(e["ts"] + e["dur"] for e in mine) / 1e6, line["tokens"]))
    return out


def rate(steps, begin, end):
    """Tokens/s between two moments, evenly spread within each step."""
    done = sum(tokens * max(0.0, min(e, end) - max(b, begin)) / (e - b) for b, e, tokens in steps)
    return done / (end - begin)


def separate_round(motley, model, rows, micro_batches):
    idents = [submit(motley, spec(model, rows, f"alone-{side}", micro_batches, STEPS[side],
                                  {"kind": "single", "devices": [f"{side}/cpu0"]})) for side in ("left", "right")]
    for ident in idents:
        wait(motley, ident)
    jobs = [steps_of(motley, ident) for ident in idents]
    begin, end = max(job[0][0] for job in jobs), min(job[-1][1] for job in jobs)
    return sum(rate(job, begin, end) for job in jobs)


def split_round(motley, document):
    """Tokens/s, and what the simulator makes of the same instructions with free links."""
    ident = submit(motley, document)
    wait(motley, ident)
    steps = steps_of(motley, ident)
    free = motley.run("replay", str(ident), *FREE, parse=True)
    measured = sum(tokens for _, _, tokens in steps) / sum(e - b for b, e, _ in steps)
    return measured, free["changed_s"] / free["recorded_s"]


def main():
    micro_batches = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    model = smollm2()
    config = {"agents": [
        {"name": "left", "devices": [{"kind": "cpu", "threads": 1, "memory": "3GiB", "isa": "native"}]},
        {"name": "right", "devices": [{"kind": "cpu", "threads": 1, "memory": "3GiB", "isa": "avx2"}]}]}
    kinds = sys.argv[3:] or ["pipeline"]
    separate, splits, of_free, plans = [], {kind: [] for kind in kinds}, {kind: [] for kind in kinds}, {}
    with Motley(config) as motley:
        train, _ = demo_rows(motley.base)
        documents = {kind: spec(model, train, f"split-{kind}", micro_batches, STEPS["split"],
                                {"kind": kind, "devices": ["left/cpu0", "right/cpu0"], "count": {"least": 2}})
                     for kind in kinds}
        for kind in kinds:
            plans[kind] = motley.run("plan", motley.write("plan.json", documents[kind]), parse=True, timeout=300)
        for _ in range(rounds):
            separate.append(separate_round(motley, model, train, micro_batches))
            for kind in kinds:
                measured, free = split_round(motley, documents[kind])
                splits[kind].append(measured)
                of_free[kind].append(free)
                print(f"separate {separate[-1]:.1f} tokens/s, {kind} {measured:.1f}: {measured / separate[-1]:.3f}; "
                      f"{free:.3f} of its simulation with free links", flush=True)
    for kind in kinds:
        split = splits[kind]
        report(f"split_throughput_{kind}_{micro_batches}", {
            "micro_batches": micro_batches, "separate_tokens_per_s": summary(separate), "split_tokens_per_s": summary(split),
            "ratio": summary([s / a for s, a in zip(split, separate)]), "spread_of_a_against_a": max(separate) / min(separate) - 1,
            "spread_of_split": max(split) / min(split) - 1, "of_simulation_with_free_links": summary(of_free[kind]),
            "predicted_step_s": plans[kind]["step_s"], "lower_bound_s": plans[kind]["lower_bound_s"]})


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
