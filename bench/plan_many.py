#!/usr/bin/env python3
"""What the owner of many unlike cards waits for: `motley plan` on seeded clusters of a dozen to a few hundred catalogue
cards, with half a row to eight rows a device or with one of the rows named; otherwise as plan_few.py.
  bench/plan_many.py [clusters, default 24] [first seed, default 0] [devices, default 64-64] [another motley] [rows: 24,32]
"""
import os
import random
import sys

import plan_few

CARDS = "rtx4090 rtx3090 a6000 a100x80 a100x40 v100x32 l40s t4 p40 mi210 h100 a10g".split()
LLAMA = {"Llama-3-70B": (8192, 28672, 80, 64, 8, 128256, False), "Llama-3.1-405B": (16384, 53248, 126, 128, 8, 128256, False)}
MODELS = ("Llama-3-8B", "Llama-3-70B", "Llama-3.1-405B", "Llama-2-7B", "Llama-3.2-3B")
NETWORKS = (3e8, 1.2e9, 3e9, 1.2e10)  # bytes a second between machines


def machines(draw, devices, a_node, like, kinds):
    """Nodes of a_node cards each, like ones or not."""
    nodes = []
    for first in range(0, devices, a_node):
        card, node = draw.choice(kinds), f"n{len(nodes)}"
        nodes.append({"name": node, "devices": [{"name": f"{node}/{d}", "like": card if like else draw.choice(kinds)}
                                                for d in range(min(a_node, devices - first))]})
    return nodes


def scene(folder, seed, least, most, rows):
    draw = random.Random(seed)
    devices, name, a_node = draw.randint(least, most), draw.choice(MODELS), draw.choice((1, 2, 4, 8))
    like, kinds = draw.random() < 0.5, draw.sample(CARDS, draw.randint(3, 8))
    nodes = machines(draw, devices, a_node, like, kinds)
    batch = draw.choice(rows) if rows else max(8, int(devices * draw.choice((0.5, 1, 2, 4, 8))))
    cluster = {"nodes": nodes, "links": {"within": {"latency_s": 1e-5, "bytes_per_s": 1.2e10},
                                         "between": {"latency_s": 1e-4, "bytes_per_s": draw.choice(NETWORKS)}}}
    spec = {"name": "many", "model": plan_few.model(folder, name),
            "method": {"kind": "lora", "rank": 16, "base": draw.choice(("bf16", "nf4"))},
            "data": {"train": os.path.join(folder, "none.jsonl"), "format": "alpaca",
                     "sequence_tokens": draw.choice((512, 1024, 2048))},
            "train": {"batch_rows": batch, "steps": 100, "compute": "bf16"}}
    return (plan_few.write(os.path.join(folder, f"{seed}.spec.json"), spec),
            plan_few.write(os.path.join(folder, f"{seed}.cluster.json"), cluster),
            {"seed": seed, "devices": devices, "model": name, "rows": batch})


def main():
    argv = sys.argv[1:]
    count, first = int(argv[0]) if argv else 24, int(argv[1]) if argv[1:] else 0
    least, most = (int(n) for n in (argv[2] if argv[2:] else "64-64").split("-"))
    rows = [int(n) for n in argv[4].split(",")] if argv[4:] else None
    plan_few.LLAMA.update(LLAMA)
    plan_few.survey(f"plan-many-{least}-{most}", lambda folder, seed: scene(folder, seed, least, most, rows), count, first,
                    argv[3] if argv[3:] else None)


if __name__ == "__main__":
    main()
