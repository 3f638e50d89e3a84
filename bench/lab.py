#!/usr/bin/env python3
"""A lab in a box: the whole service on paced devices, which compute a small model and take the time of given cards' rates, so that
an error of a prediction is the model's and not this machine's (engine/cpu/paced.c).

Each lab has its cards on nodes of their own behind emulated links. Cards' effective rates come from the catalogue, all slowed by
one factor, so that a perfect step of full training takes about --ideal seconds of products. Every placement that fits is forced
in turn, then the planner chooses; each line tells the predicted and the measured seconds of a step and what share of the summed
throughput of all devices (docs/PLANNER.md's lower bound) the measured step reached.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys

from harness import Motley, expect, report
from made_model import write_llama

MODEL = {"layers": 16, "hidden": 64, "ffn": 192, "heads": 4, "kv_heads": 2, "vocabulary": 512}
TOKENS = 64
DOES_NOT_FIT = 4  # exit status of `motley submit`
LABS = {
    "pair": ["rtx-3090", "rtx-2080ti"],
    "four": ["rtx-3090", "rtx-3090", "v100", "titan-xp"],
    "eight": ["a100x40", "rtx-3090", "rtx-3080", "v100", "rtx-2080ti", "t4", "p100", "titan-xp"],
    "sixteen": ["rtx-4090", "rtx-3090", "rtx-3080", "rtx-2080ti", "gtx-1080ti", "rtx-3060", "a100x40", "v100",
                "rtx-4080", "rtx-3070", "titan-xp", "rtx-2070", "t4", "p100", "rtx-4070", "rx-7900xtx"],
}
LORA, FULL = {"kind": "lora", "rank": 8, "alpha": 16, "dropout": 0.0}, {"kind": "full"}
KINDS = {"single": LORA, "pipeline": LORA, "data": LORA, "server": FULL, "tensor": LORA, "hybrid": LORA}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("labs", nargs="*", default=["pair"], help="default pair; known: " + " ".join(LABS))
    parser.add_argument("--links", default="1Gbit/s:0.5ms")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rows", type=int, default=32, help="rows of a step")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--ideal", type=float, default=2.0, help="seconds of a perfect step")
    return parser.parse_args()


def step_flops(rows):
    """Of the products of a full step without recomputation: 6 a weight and token."""
    m, head = MODEL, MODEL["hidden"] // MODEL["heads"]
    layer = 2 * m["hidden"] ** 2 + 2 * m["hidden"] * m["kv_heads"] * head + 3 * m["hidden"] * m["ffn"]
    return 6.0 * (m["layers"] * layer + m["vocabulary"] * m["hidden"]) * rows * TOKENS


def catalogue():
    done = subprocess.run([Motley.program("motley"), "devices", "--catalogue", "--json"], capture_output=True, text=True, check=True)
    return {entry["name"]: entry for entry in json.loads(done.stdout)["devices"]}


def config(cards, args, link):
    """One node a card; each card's rates divided by what makes the perfect step of all take --ideal seconds."""
    known = catalogue()
    rates = [known[card]["flops_fp32"] * known[card]["efficiency"] for card in cards]
    slower = sum(rates) * args.ideal / step_flops(args.rows)
    rate, latency = link.rsplit(":", 1)
    names = [f"n{i}-{card}" for i, card in enumerate(cards)]
    agents = [{"name": name, "devices": [{"kind": "paced", "memory": "64MiB", "pace": {
        "flops": known[card]["flops_fp32"] * known[card]["efficiency"] / slower, "bytes_per_s": known[card]["memory_bytes_per_s"] / slower * 20,
        "bus_bytes_per_s": 1e9, "launch_s": 1e-5}}]} for name, card in zip(names, cards)]
    return {"agents": agents, "links": [{"between": [a, b], "rate": rate, "latency": latency}
                                        for i, b in enumerate(names) for a in names[:i]]}


def make_inputs(motley, args):
    """Writes the model and rows of full length; the path of the rows."""
    draw = random.Random(2)
    write_llama(motley.path("model"), **MODEL)  # the rows have token numbers, so it needs no tokenizer
    ids = [[draw.randrange(MODEL["vocabulary"]) for _ in range(TOKENS)] for _ in range(args.rows)]
    return motley.write_rows("rows.jsonl", [{"ids": row, "labels": row} for row in ids])


def run(motley, args, rows, name, method, placement):
    spec = {
        "name": name, "model": motley.path("model"), "method": method,
        "data": {"train": rows, "format": "tokens", "sequence_tokens": TOKENS, "shuffle": False},
        "train": {"batch_rows": args.rows, "steps": args.steps, "learning_rate": 1e-4, "compute": "fp32"},
        "checkpoint": {"every_steps": 0}, "placement": {**placement, "move": "never"}}
    told = motley.run("submit", motley.write(f"{name}.json", spec), "--wait", "--json", status=(0, DOES_NOT_FIT), timeout=900)
    job = json.loads(told or "{}")
    if job.get("state") != "succeeded":
        return None
    steps = motley.metrics(job["id"])[0]
    answer = job["run"]["plan_answer"]
    return {"placement": answer["placement"], "corrected": answer.get("corrected") or {"runs": 0, "times": 1.0}, "predicted_s": answer["step_s"], "bound_s": answer["lower_bound_s"], "basis": answer["basis"],
            "measured_s": statistics.median(s["seconds"] for s in steps[1:]), "least_s": min(s["seconds"] for s in steps)}


def lab(args, name, link):
    cards, found = LABS[name], {}
    with Motley(config(cards, args, link)) as motley:
        rows = make_inputs(motley, args)
        for kind in args.kinds.split(",") + ["chosen"]:
            if kind == "hybrid" and len(cards) < 4:
                continue
            placement = {"devices": [f"n0-{cards[0]}/paced0"]} if kind == "single" else {} if kind == "chosen" else {"kind": kind}
            got = run(motley, args, rows, kind, KINDS.get(kind, LORA), placement)
            if not got:
                print(f"{name} {link} {kind:8} does not fit", flush=True)
                continue
            found[kind] = {**got, "error": got["predicted_s"] / got["measured_s"] - 1, "used": got["bound_s"] / got["measured_s"]}
            print(f"{name} {link} {kind:8} predicted {got['predicted_s']:.3f} s, measured {got['measured_s']:.3f} s: "
                  f"{found[kind]['error']:+.1%}, {found[kind]['used']:.0%} of the summed rates ({got['placement']})", flush=True)
    return found


def main():
    args = arguments()
    found = {f"{name} {link}": lab(args, name, link) for name in args.labs for link in args.links.split(",")}
    errors = [abs(run["error"]) for kinds in found.values() for run in kinds.values()]
    expect(errors, "no placement fitted")
    chosen = {name: kinds["chosen"]["measured_s"] / min(run["measured_s"] for kind, run in kinds.items()
                                                        if kind not in ("chosen", "server")) for name, kinds in found.items()}
    report("lab", {"labs": found, "error_mean": statistics.mean(errors), "error_worst": max(errors), "chosen_of_best": chosen})


if __name__ == "__main__":
    sys.exit(main())
