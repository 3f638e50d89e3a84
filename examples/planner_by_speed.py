#!/usr/bin/env python3
"""A planner in a page: all devices in one pipeline, the fastest first, its blocks cut by speed within memory.

It reads a problem document (docs/PLUG.md) on its standard input and answers an assignment on its standard output.
Motley works out the memory again, simulates the plan, and takes its own where that is better by a stated factor, so
the arithmetic here may be rough; it is kept a little on the safe side of memory.
"""
import json
import sys

SAFETY = 1.04  # of memory, for what is not counted here


def usable(problem):
    """The devices that the specification allows."""
    placement = problem["spec"].get("placement") or {}
    wanted, not_wanted = placement.get("devices"), placement.get("exclude") or []
    return [d for d in problem["devices"] if d.get("usable", True) and d["name"] not in not_wanted
            and (not wanted or d["name"] in wanted)]


def point_of(profile, block, tokens):
    """The measured point of this kind of block whose tokens are nearest."""
    points = [p for p in (profile or {}).get("points", []) if p["block"] == block]
    return min(points, key=lambda p: abs(p["tokens"] - tokens), default=None)


class Costs:
    """Seconds and bytes of the kinds of blocks on one device, of a micro-batch of so many tokens."""

    def __init__(self, problem, device, mean_tokens, most_tokens):
        c = problem["config"]
        profile = next((p for p in problem.get("profiles", []) if p["device"] == device["name"]), None)
        hidden, ffn, vocab = c["hidden_size"], c.get("intermediate_size") or 4 * c["hidden_size"], c["vocab_size"]
        parameters = {"embedding": vocab * hidden, "layer": hidden * (3 * hidden + 3 * ffn), "head": vocab * hidden}
        self.seconds, self.kept, self.saved, self.work = {}, {}, {}, 0
        for kind, count in parameters.items():
            point, most = point_of(profile, kind, mean_tokens), point_of(profile, kind, most_tokens)
            self.seconds[kind] = (point["forward_s"] + point["backward_s"]) * mean_tokens / point["tokens"] if point \
                else 0 if kind == "embedding" else count / device.get("speed", 1)
            self.kept[kind] = sum((profile or {}).get(part, {}).get(kind, default) for part, default in
                                  (("weights_bytes", 4 * count), ("adapter_bytes", 0), ("optimizer_bytes", 0)))
            scale = most_tokens / most["tokens"] if most else 0
            self.saved[kind] = most["saved_bytes"] * scale if most else (4 * most_tokens * (16 * hidden + 3 * ffn))
            self.work = max(self.work, most["workspace_bytes"] * max(1, scale) if most else 0)
        self.memory = device["memory_limit_bytes"]
        self.boundary = 4 * most_tokens * hidden

    def fits(self, kinds, window):
        state = sum(self.kept[k] + window * self.saved[k] for k in kinds)
        return SAFETY * (state + self.work + (2 * window + 4) * self.boundary) <= self.memory

    def time(self, kinds):
        return sum(self.seconds[k] for k in kinds)


def cut(kinds, costs, windows):
    """Ends of the stages with the least time of the slowest one, by dynamic programming; None when nothing fits."""
    best = {0: (0.0, [])}  # blocks placed so far -> (slowest stage, its ends)
    for stage, cost in enumerate(costs):
        reached = {}
        for begin, (slowest, ends) in best.items():
            for end in range(begin + 1, len(kinds) - (len(costs) - stage - 1) + 1):
                part = kinds[begin:end]
                if not cost.fits(part, windows[stage]):
                    break
                now = max(slowest, cost.time(part))
                if end not in reached or now < reached[end][0]:
                    reached[end] = (now, ends + [end])
        best = reached
    return best.get(len(kinds), (0, None))[1]


def plan(problem):
    spec, layers = problem["spec"], problem["config"]["num_hidden_layers"]
    kinds = ["embedding"] + ["layer"] * layers + ["head"]
    devices = usable(problem)[:len(kinds)]
    rows = [r[0] for r in problem.get("rows") or []] or [spec.get("data", {}).get("sequence_tokens", 512)]
    batch, asked = spec.get("train", {}).get("batch_rows", 16), (spec.get("placement") or {}).get("micro_batch_rows")
    sizes = [asked] if isinstance(asked, int) else sorted({max(1, batch // (4 * len(devices))), 1}, reverse=True)
    for size in sizes:
        costs = {d["name"]: Costs(problem, d, size * sum(rows) / len(rows), size * max(rows)) for d in devices}
        order = sorted(devices, key=lambda d: costs[d["name"]].seconds["layer"])
        micro_batches = -(-batch // size)
        windows = [min(micro_batches, len(order) - s) for s in range(len(order))]
        ends = cut(kinds, [costs[d["name"]] for d in order], windows)
        if ends:
            return {"version": 1, "placement": "pipeline" if len(order) > 1 else "single", "schedule": "1f1b",
                    "micro_batch_rows": size,
                    "stages": [{"blocks": [begin, end], "members": [{"device": d["name"], "window": window}]}
                               for begin, end, d, window in zip([0] + ends, ends, order, windows)]}
    sys.exit("the blocks do not fit on these devices in one pipeline")


if __name__ == "__main__":
    json.dump(plan(json.load(sys.stdin)), sys.stdout)
