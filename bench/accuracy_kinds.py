#!/usr/bin/env python3
"""Predicted beside measured on real runs of six kinds of placement over emulated links, and the plan that the planner chooses
beside the best of those forced one by one.

Per link one service measures its two unlike devices once, and runs every kind in turn, a few rounds of them; a job on one
device, whose plan has nothing to do with kinds, tells in each round what the machine itself became since it was measured. A
kind's figure is the median over rounds; both errors are printed, its own and that against the job on one device.
"""
import argparse
import json
import statistics

from harness import Motley, demo_rows, expect, report, smollm2

LORA, FULL = {"kind": "lora", "dropout": 0.0}, {"kind": "full"}
WHOLE, PARTS = "3GiB", "1900MiB"  # memory of each device: for whole replicas; for full fine-tuning as shards alone
KINDS = {
    "single": (LORA, {"kind": "single"}), "pipeline": (LORA, {"kind": "pipeline"}), "data": (LORA, {"kind": "data"}),
    "server": (LORA, {"kind": "server"}), "tensor": (LORA, {"kind": "tensor"}), "shards": (FULL, {"kind": "data"}),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("kinds", nargs="*", default=list(KINDS), help="default all: " + " ".join(KINDS))
    parser.add_argument("--links", default="1Gbit/s:0.5ms,100Mbit/s:2ms")
    parser.add_argument("--isa", default="sse42", help="kernels of the second device (the first: native)")
    parser.add_argument("--rows", type=int, default=8, help="rows of a step")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def config(isa, link, memory):
    rate, latency = link.rsplit(":", 1)
    return {"agents": [{"name": side, "devices": [{"kind": "cpu", "threads": 1, "memory": memory, "isa": kernels}]}
                       for side, kernels in (("left", "native"), ("right", isa))],
            "links": [{"between": ["left", "right"], "rate": rate, "latency": latency}]}


def run(motley, args, train, name, method, placement):
    """Predicted and measured seconds of a step, the median over the job's steps; the answer; and of each rank how far its computing
    alone is off, so that what is left is the exchange's."""
    job = motley.submit({
        "name": name, "model": smollm2(), "method": method,
        "data": {"train": train, "format": "alpaca", "sequence_tokens": 256, "shuffle": False},
        "train": {"batch_rows": args.rows, "steps": args.steps, "learning_rate": 1e-4}, "checkpoint": {"every_steps": 0},
        "placement": {**placement, "move": "never"}}, name=f"{name}.json", wait=True, timeout=900)
    expect(job["state"] == "succeeded", f"{name}: {job['state']}: {job.get('why')}")
    steps, answer = motley.metrics(job["id"])[0], job["run"]["plan_answer"]
    computed = json.loads(motley.sql("SELECT json_object_agg(rank, s) FROM (SELECT rank, percentile_cont(0.5) WITHIN GROUP (ORDER BY "
                                     "(document ->> 'compute_s')::float8) AS s FROM metrics "
                                     f"WHERE kind = 'ranks' AND job = {job['id']} GROUP BY rank) m"))
    apart = [rank["busy_s"] / computed[str(rank["rank"])] - 1 for rank in answer["ranks"] if computed.get(str(rank["rank"]))]
    return answer["step_s"], statistics.median(s["seconds"] for s in steps), answer, apart


def rounds_of(args, link, kinds, memory, chosen):
    """What each kind took in each round: {kind: [(predicted, measured, error, error against the job on one device, error without what
    earlier runs taught)]}."""
    out = {}
    with Motley(config(args.isa, link, memory)) as motley:
        train, _ = demo_rows(motley.base)
        for number in range(args.rounds):
            still = 1.0
            for kind in kinds + (["chosen"] if chosen else []):
                method, placement = KINDS.get(kind, (LORA, {}))
                predicted, measured, answer, apart = run(motley, args, train, kind, method, placement)
                error = predicted / measured - 1
                still = 1 + error if kind == "single" else still
                taught = answer.get("corrected") or {"runs": 0, "times": 1.0}
                without = predicted / taught["times"] / measured - 1
                out.setdefault(kind, []).append((predicted, measured, error, (1 + error) / still - 1, without))
                print(f"{link} round {number + 1} {kind:8} predicted {predicted:.3f} s, measured {measured:.3f} s: {error:+.1%}, "
                      f"beside one device {(1 + error) / still - 1:+.1%}, by {taught['runs']} runs; without {without:+.1%}; computing "
                      f"{', '.join(f'{off:+.1%}' for off in apart)}"
                      f"{' (' + answer['placement'] + ')' if kind == 'chosen' else ''}", flush=True)
    return out


def main():
    args = arguments()
    found = {}
    for link in args.links.split(","):
        lora = [kind for kind in args.kinds if KINDS[kind][0] == LORA]
        found[link] = rounds_of(args, link, lora, WHOLE, True)
        if "shards" in args.kinds:
            found[link].update(rounds_of(args, link, ["shards"], PARTS, False))
    medians = {f"{kind} {link}": [statistics.median(abs(run[i]) for run in runs) for i in (2, 3, 4)]
               for link, kinds in found.items() for kind, runs in kinds.items() if kind != "chosen"}
    best = {link: min(statistics.median(run[1] for run in runs) for kind, runs in kinds.items() if kind not in ("chosen", "shards"))
            for link, kinds in found.items()}
    report("accuracy_kinds", {
        "rows": args.rows, "isa": args.isa, "rounds": args.rounds, "error": medians,
        "error_mean": statistics.mean(m[0] for m in medians.values()), "error_worst": max(m[0] for m in medians.values()),
        "without_mean": statistics.mean(m[2] for m in medians.values()), "without_worst": max(m[2] for m in medians.values()),
        "beside_single_mean": statistics.mean(m[1] for name, m in medians.items() if not name.startswith(("single", "shards"))),
        "chosen_of_best": {link: statistics.median(run[1] for run in kinds["chosen"]) / best[link] for link, kinds in found.items()}})


if __name__ == "__main__":
    main()
