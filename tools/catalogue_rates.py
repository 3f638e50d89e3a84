#!/usr/bin/env python3
"""What share of a GPU's peak others have measured: for planner/given/catalogue_entries.c.

    tools/catalogue_rates.py DIR        DIR: Cephalo's files (model_latencies.json, model_stats.json)

A layer's forward FLOPs over its measured forward time, at the largest batch of its table (or by the line's slope), as a
share of the dense peak; the median over models of at least 0.4 billion parameters. Forward FLOPs of a token in a layer: 2
a parameter and 4 * length * hidden for attention.
"""
import json
import os
import statistics
import sys

PEAK = {  # dense peaks as in planner/given/catalogue_entries.c, TFLOP/s: fp32, 16 bit with fp32 accumulation
    "a100x40": (19.5, 312), "a100x80": (19.5, 312), "a10g": (31.2, 70), "a6000": (38.7, 154.8), "h100-nvl": (60, 835),
    "l4": (30.3, 121), "l40s": (91.6, 362), "p100": (9.3, 18.7), "p40": (11.8, 0.18), "rtx3090": (35.6, 71),
    "rtx_3090": (35.6, 71), "t4": (8.1, 65), "v100": (15.7, 125), "v100x16": (15.7, 125), "v100x32": (15.7, 125),
    "v100-pciex16": (14, 112), "w6800": (17.8, 35.7)}
SHAPED_AS = {"toygpt_6.7b": "deepspeedgpt_6.7b"}  # a table whose model has no entry of its own


def forward_ms(entry):
    """Milliseconds a sample at large batches."""
    if not isinstance(entry, list) or not isinstance(entry[0], list):
        return None
    if len(entry) == 4:
        return entry[2][-1] / len(entry[2])
    return entry[0][0]


def main():
    folder = sys.argv[1]
    latencies = json.load(open(os.path.join(folder, "model_latencies.json")))
    stats = json.load(open(os.path.join(folder, "model_stats.json")))
    shares = {}
    for model, gpus in latencies.items():
        shape = stats.get(SHAPED_AS.get(model, model))
        if not shape or shape["total_parameters"] < 4e8:
            continue
        for gpu, lengths in gpus.items():
            for length, dtypes in lengths.items():
                for dtype, entry in dtypes.items():
                    ms = forward_ms(entry)
                    if not ms or ms <= 0 or gpu not in PEAK:
                        continue
                    tokens, hidden = int(length), shape["hidden_size"]
                    flops = tokens * (2 * shape["parameters_per_layer"] + 4 * tokens * hidden)
                    rate = flops / (ms / 1e3)
                    shares.setdefault((gpu, dtype), []).append(rate)
    for (gpu, dtype), rates in sorted(shares.items()):
        peak = PEAK[gpu][dtype == "float16"] * 1e12
        rates.sort()
        print("%-14s %s  %3d tables  median %8.2f TFLOP/s = %6.2f of peak   (%.2f .. %.2f TFLOP/s)" % (
            gpu, dtype, len(rates), statistics.median(rates) / 1e12, statistics.median(rates) / peak,
            rates[0] / 1e12, rates[-1] / 1e12))


if __name__ == "__main__":
    main()
