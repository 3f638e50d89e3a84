#!/usr/bin/env python3
"""A planner in a page: all devices in one pipeline, by speed, the blocks cut by measured seconds within memory.

It reads a problem document (docs/PLUG.md) and writes an assignment. Windows and recomputation are left to Motley, which
works out the memory again and takes its own plan where that is better by a stated factor: arithmetic may be rough here.
"""
import bisect
import json
import sys

SAFETY = 1.02  # of memory, for what is not counted here


def measured(profile, block, by, what, x):
    """A column of the measured points of this kind of block at x, in a line between its neighbours; None: not measured."""
    points = sorted({p[by]: p.get(what, 0) for p in (profile or {}).get("points", []) if p["block"] == block}.items())
    i = bisect.bisect([p[0] for p in points], x)
    if i == 0 or i == len(points):  # beyond what was measured: in proportion
        return points[min(i, len(points) - 1)][1] * x / max(points[min(i, len(points) - 1)][0], 1) if points else None
    (a, below), (b, above) = points[i - 1], points[i]
    return below + (above - below) * (x - a) / (b - a)


class Costs:
    """Seconds and bytes of the kinds of blocks on one device, of the mean of so many micro-batches and the largest one."""

    def __init__(self, problem, device, rows, mean, size):
        c, full = problem["config"], (problem["spec"].get("method") or {}).get("kind") == "full"
        profile = next((p for p in problem.get("profiles", []) if p["device"] == device["name"]), None)
        tokens, labelled = (mean * sum(r[i] for r in rows) / len(rows) for i in (0, 1))
        most = sum(sorted(r[0] for r in rows)[-size:])
        hidden, ffn, vocab = c["hidden_size"], c.get("intermediate_size") or 4 * c["hidden_size"], c["vocab_size"]
        parameters = {"embedding": vocab * hidden, "layer": hidden * (3 * hidden + 3 * ffn), "head": vocab * hidden}
        self.of = {}  # kind of block -> seconds forward and backward, bytes kept, bytes saved of a micro-batch
        for kind, count in parameters.items():
            by, x = ("labelled", labelled) if kind == "head" else ("tokens", tokens)
            guess = 0 if kind == "embedding" else count * tokens / device.get("speed", 1)
            forward, backward = (measured(profile, kind, by, way, x) for way in ("forward_s", "backward_s"))
            kept = sum((profile or {}).get(part, {}).get(kind, default) for part, default in
                       (("weights_bytes", (16 if full else 4) * count), ("adapter_bytes", 0), ("optimizer_bytes", 0)))
            saved = measured(profile, kind, "tokens", "saved_bytes", most) or 4 * most * (16 * hidden + 3 * ffn)
            self.of[kind] = (guess, 2 * guess, kept, saved) if forward is None else (forward, backward, kept, saved)
        self.again = measured(profile, "layer", "tokens", "recompute_s", tokens) or self.of["layer"][0]
        self.work = max(measured(profile, kind, "tokens", "workspace_bytes", most) or 0 for kind in parameters)
        self.name, self.boundary = device["name"], 4 * most * hidden
        self.memory = device["memory_limit_bytes"] - device.get("base_bytes", 0)

    def stage(self, kinds, window):
        """Seconds forward and backward, with recomputation where it does not fit without; None: it does not fit at all."""
        forward, backward, kept, saved = map(sum, zip(*(self.of[k] for k in kinds)))
        layers, base = kinds.count("layer"), kept + self.work + (2 * window + 4) * self.boundary
        if SAFETY * (base + window * saved) <= self.memory:
            return forward, backward
        fits = SAFETY * (base + window * layers * self.boundary + self.of["layer"][3]) <= self.memory
        return (forward, backward + layers * self.again) if fits else None


def step(stages, count):
    """Seconds of a step: of each stage, until work reaches it and from there back, its own work, and what it waits for."""
    return max(sum(map(sum, stages[:s])) + count * sum(stages[s])
               + max(0, sum(map(sum, stages[s + 1:])) - (count - 1) * stages[s][0]) for s in range(len(stages)))


def cut(kinds, costs, count):
    """The stages' ends, and their seconds: the least time of the slowest, by dynamic programming. None: nothing fits."""
    best = {0: (0.0, [], [])}  # blocks placed so far -> (slowest stage, their ends, their seconds)
    for number, cost in enumerate(costs):
        reached, left = {}, len(costs) - number - 1
        for begin, (slowest, ends, stages) in best.items():
            for end in range(begin + 1, len(kinds) - left + 1) if left else [len(kinds)]:
                stage = cost.stage(kinds[begin:end], min(count, left + 1))
                if stage is None:
                    break
                if end not in reached or max(slowest, sum(stage)) < reached[end][0]:
                    reached[end] = (max(slowest, sum(stage)), ends + [end], stages + [stage])
        best = reached
    return best.get(len(kinds), (0, None, None))[1:]


def plan(problem):
    spec, kinds = problem["spec"], ["embedding"] + ["layer"] * problem["config"]["num_hidden_layers"] + ["head"]
    wants, batch = spec.get("placement") or {}, spec.get("train", {}).get("batch_rows", 16)
    devices = [d for d in problem["devices"] if d.get("usable", True) and d["name"] not in (wants.get("exclude") or [])
               and d["name"] in (wants.get("devices") or [d["name"]])]
    rows, best = problem.get("rows") or [[spec.get("data", {}).get("sequence_tokens", 512)] * 2], (float("inf"), None)
    asked = wants.get("micro_batch_rows")
    for size in [asked] if isinstance(asked, int) else [n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if n <= batch]:
        count = -(-batch // size)
        costs = sorted((Costs(problem, d, rows, batch / count, size) for d in devices), key=lambda c: c.of["layer"][0])
        for order in costs[:len(kinds)], costs[:len(kinds)][::-1]:
            ends, stages = cut(kinds, order, count)
            if ends and step(stages, count) < best[0]:
                best = step(stages, count), {
                    "version": 1, "placement": "pipeline" if len(order) > 1 else "single", "micro_batch_rows": size,
                    "stages": [{"blocks": [begin, end], "members": [{"device": c.name}]}
                               for begin, end, c in zip([0] + ends, ends, order)]}
    return best[1] or sys.exit("the blocks do not fit on these devices in one pipeline")


if __name__ == "__main__":
    json.dump(plan(json.load(sys.stdin)), sys.stdout)
