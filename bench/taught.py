#!/usr/bin/env python3
"""Forecasts with and without what earlier runs taught, in labs of paced devices whose profiles are wrong by up to 30 %.

Each lab is drawn from its seed: two or three cards, a link, and for each device a factor by which all times of its profile are made
wrong. Every kind of placement is run in turn, a few rounds of them. A run's forecast contains the correction by the runs before it;
without it, the forecast is that divided by the factor that its answer says. The first round's is the same either way, and a job on
one device in each round tells what the machine adds.
"""
import argparse
import random
import statistics
import sys

import lab
import trials
from harness import Motley, expect, report

KINDS = {kind: lab.KINDS[kind] for kind in ("single", "pipeline", "data", "server", "tensor")} | {"shards": lab.FULL}


def one(seed, args):
    """{kind: [(error with the correction, error without, runs)], a tuple a round}"""
    draw = random.Random(seed)
    cards, link = draw.sample(trials.CARDS, draw.choice([2, 3])), draw.choice(trials.LINKS)
    sizes, found = trials.lab_arguments(), {}
    sizes.steps, sizes.ideal = args.steps, args.ideal
    with Motley(lab.config(cards, sizes, link)) as motley:
        rows = lab.make_inputs(motley, sizes)
        print(f"seed {seed}: {', '.join(cards)}, {link}, wrong by {trials.falsify(motley, rows, draw)}", flush=True)
        for number in range(args.rounds):
            for kind in args.kinds.split(","):
                placement = {"devices": [f"n0-{cards[0]}/paced0"]} if kind == "single" else {"kind": "data" if kind == "shards" else kind}
                got = lab.run(motley, sizes, rows, kind, KINDS[kind], placement)
                if got:
                    runs = got["corrected"]["runs"]
                    errors = (got["predicted_s"] / got["measured_s"] - 1, got["predicted_s"] / got["corrected"]["times"] / got["measured_s"] - 1)
                    found.setdefault(kind, []).append((*errors, runs))
                    print(f"  round {number + 1} {kind:8} measured {got['measured_s']:.3f} s, forecast {errors[0]:+.1%} by {runs} runs; without {errors[1]:+.1%}", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seed", type=int, default=1, help="of the first lab")
    parser.add_argument("--labs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--ideal", type=float, default=0.5, help="seconds of a perfect step")
    args = parser.parse_args()
    labs = {seed: one(seed, args) for seed in range(args.seed, args.seed + args.labs)}
    expect(labs, "no lab")
    rounds = []
    for number in range(args.rounds):
        runs = [kinds[kind][number] for kinds in labs.values() for kind in kinds if len(kinds[kind]) > number]
        rounds.append({name: {"mean": statistics.mean(abs(run[i]) for run in runs), "worst": max(abs(run[i]) for run in runs)}
                       for i, name in enumerate(("with", "without"))} | {"runs": len(runs)})
    report("taught", {"labs": labs, "rounds": rounds})


if __name__ == "__main__":
    sys.exit(main())
