#!/usr/bin/env python3
"""How long `motley plan` takes and how much memory: up to six devices (many cases of planner_cases.py), Llama-3.1-405B's 126
blocks over 64 devices (seeded, four kinds of cluster), 512 and 4,096 devices (data centre cards, memory for anything).

  bench/planner_times.py [--new build/bin] [--old DIR] [--seed 1] [--few 60] [--many 12] [--large 2] [--huge 1] [--rows 16]
                         [--huge-rows 16] [--timeout 900] [--json FILE]

--rows, --huge-rows: a device, of 512 and of 4,096. 0 cases of a kind: it is left out. --old: another planner, in turn.
Seconds are of user CPU, from reading the files to the answer with its step programs; `search`: the planner's own, on the
wall, as it answers (plan_s)."""
import argparse
import json
import os
import random
import statistics
import sys
import tempfile

import planner_beside
import planner_cases

CENTRE = ("a100x80", "h100", "mi250", "gh200", "h200", "a100x40", "mi300x")
ANY = ("a100x40", "a100x80", "h100", "v100", "v100x32", "t4", "mi250", "mi210", "rtx-3090", "a6000", "l40s", "a10g")
ROOMY_BYTES = 400000000000


class Large:
    """The 405B shape over machines of one to eight cards, links of 10 to 100 Gbit/s; bench_planner_search.c's kinds:
    like cards a machine, mixed machines, data centre cards, memory no concern."""
    def __init__(self, seed, number, devices, rows=None):
        draw, kind = random.Random(f"motley large case {seed} {number} {devices}"), 3 if rows else number % 4
        self.seed, self.number, self.devices, self.rows = seed, number, devices, None
        cards, nodes, left = ANY if kind < 2 else CENTRE, [], devices
        while left:
            card, name, count = draw.choice(cards), f"n{len(nodes)}", min(left, draw.choice((1, 2, 4, 4, 8, 8)))
            own = [{"name": f"{name}/{d}", "like": draw.choice(cards) if kind == 1 else card,
                    "speed": round(draw.uniform(0.9, 1.1), 4), **({"memory_bytes": ROOMY_BYTES} if kind == 3 else {})}
                   for d in range(count)]
            nodes.append({"name": name, "devices": own})
            left -= count
        self.cluster = {"nodes": nodes, "links": {"within": {"latency_s": 1e-5, "bytes_per_s": draw.choice((1.2e10, 2e11))},
                                                  "between": {"latency_s": 1e-4, "bytes_per_s": draw.choice((1.25e9, 3.125e9, 6.25e9, 1.25e10))}}}
        self.config = planner_cases.config_of("Llama-3.1-405B")
        batch, tokens = (rows * devices, 2048) if rows else (draw.choice((512, 1024, 1024, 2048)), draw.choice((256, 512, 1024, 2048)))
        self.spec = {"name": "case", "model": "case-model", "method": {"kind": "lora", "base": draw.choice(("bf16", "nf4"))},
                     "data": {"train": "case-rows.jsonl", "format": "tokens", "sequence_tokens": tokens},
                     "train": {"batch_rows": min(65536, batch), "compute": "bf16"}}
        self.words = {"rows": f"{batch}x{tokens}"}

    write = planner_cases.Case.write


def wanted(setup):
    """(kind, case) in turn."""
    for n in range(setup.few):
        yield "2-6", planner_cases.Case(setup.seed, n, 0)
    for n in range(setup.many):
        yield "64 x 126", Large(setup.seed, n, 64)
    for n in range(setup.large):
        yield "512", Large(setup.seed, n, 512, setup.rows)
    for n in range(setup.huge):
        yield "4096", Large(setup.seed, n, 4096, setup.huge_rows)


def summary(each):
    cpu, wall = [t["cpu_s"] for t in each], [t["wall_s"] for t in each]
    search = [t["plan_s"] for t in each if "plan_s" in t]
    return {"cases": len(each), "fit": sum(t["fits"] for t in each), "mean_s": statistics.mean(cpu), "median_s": statistics.median(cpu),
            "worst_s": max(cpu), "worst_wall_s": max(wall), "search_mean_s": statistics.mean(search) if search else None,
            "search_worst_s": max(search, default=None), "worst_mib": max(t["mib"] for t in each),
            "failed": sum(t["status"] not in (0, 4) for t in each)}


def told(name, t):
    failed = f", {t['failed']} FAILED" if t["failed"] else ""
    search = f"{t['search_mean_s']:.3f} and {t['search_worst_s']:.3f}" if t["search_mean_s"] is not None else "unknown"
    return (f"{name:14s} {t['cases']:3d} cases, {t['fit']} fit: CPU s mean {t['mean_s']:.3f}, median {t['median_s']:.3f}, worst {t['worst_s']:.3f}; "
            f"search s mean and worst {search}; {t['worst_mib']} MiB{failed}")


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--new", type=os.path.abspath, default=os.path.join(os.path.dirname(planner_beside.HERE), "build", "bin"))
    parser.add_argument("--old", type=os.path.abspath)
    for name, number in (("seed", 1), ("few", 60), ("many", 12), ("large", 2), ("huge", 1), ("rows", 16), ("huge-rows", 16), ("timeout", 900)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--json")
    return parser.parse_args()


def main():
    setup = options()
    planners = {"new": setup.new, **({"old": setup.old} if setup.old else {})}
    each = {}
    for kind, case in wanted(setup):
        with tempfile.TemporaryDirectory(prefix="times-") as folder:
            for who, where in planners.items():
                took = planner_beside.plan(os.path.join(where, "motley"), case, folder, setup.timeout, save=False)
                each.setdefault(f"{kind} {who}", []).append(took)
                over = f"{took['said_s'] / took['bound_s']:.4f} of the bound, " if took["fits"] and took["bound_s"] else ""
                print(f"{kind:9s} {case.number:3d} {who}: {case.devices} devices, {case.words['rows']}: CPU {took['cpu_s']:.3f} s, search "
                      f"{took.get('plan_s', 0):.3f} s, {took['mib']} MiB, {over}{took.get('shape') or took['error'].strip() or 'does not fit'}", flush=True)
    document = {name: summary(of) for name, of in each.items()}
    for name, of in document.items():
        print(told(name, of))
    if setup.json:
        for of in each.values():
            for took in of:
                took.pop("claims", None)
        with open(setup.json, "w", encoding="utf-8") as handle:
            json.dump({"seed": setup.seed, "summary": document, "each": each}, handle, indent=1)
    return 1 if any(of["failed"] for of in document.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
