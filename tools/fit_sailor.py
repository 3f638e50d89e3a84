#!/usr/bin/env python3
"""Fit the constants of published/import_sailor.c, and say how well they do.

    tools/fit_sailor.py [DIR] [--motley PROGRAM]

DIR holds plans.json (or plans_public.json), profiles.json and network.json: tests/data/planner/sailor unless given.
What is fitted to what.
  * only homogeneous OPT-350 plans are read while fitting; GPT-Neo and mixed plans are priced afterwards;
  * a plan that was measured twice (measured_earlier: all seven were) is fitted to the mean of its two step times, for
    one run is off by 3.6 % (they moved by 5.1 %, root mean square); errors are reported against the later run alone;
  * STAGING_GRADIENTS by least squares to their measured gradient times (grad_reduce_s, more than one replica);
  * LAYER_S, MESSAGE_S and STEP_S by least squares of the relative errors of step time;
  * CONTEXT_BYTES and FRAGMENTS by least squares of the relative errors of peak memory.
How the form was chosen. 52 forms (what of a layer is hidden, one or two transfers a turn, seconds an exchange and
bytes/s of copying, a barrier or none, seconds a step, what the update takes, the engine's own order of sends or a
formula) were compared by leaving one plan, and one shape (stages and rows), out of the OPT-350 plans. This one leaves
1.0 % and 0.8 %; the one before (also bytes/s of copying; the floor of a layer its best rate at any size) 4.6 % and
5.4 %. The engine's order came from its source, not from errors: the OPT-350 plans cannot tell it from the formula (0.8 %
and 0.7 %). Of the two orders that DeepSpeed has had it is the newer; with the older, activations first, the two mixed
pipelines come out 23 % and 12 % too slow. Three forms were then priced on GPT-Neo and mixed plans: a formula without
STEP_S (10.6 % and 6.2 %), with it (9.8 % and 6.2 %), and this one (9.5 % and 6.2 %). The errors of the form before on
those plans were known all along, and had been seen while these were made: they are not held-out figures.
Two terms were added since, looked for because mixed plans missed 6 %, so those are no held-out figures either. Both were
read off the engine's source, neither has a constant, and both were kept together.
A rank reduces all that it holds (buffered_allreduce_fallback), so what tensor parallelism does not cut (norms,
positions, some biases) crosses the link once a rank: gradient times of the mixed pipelines 7.4 and 5.5 s where 7.2 and 5.5
were measured (without: 7.3 and 5.2). And what comes cut over a stage's ranks is gathered before its layers run
(reconstruct_tensor), at the rate of the all-reduces that the layer's profile has in it: 0.3 ms on GH200, 9 ms on an RTX-3090
node. Mixed plans 6.2 % before, 6.0 % with the first, 5.9 % with both; homogeneous 5.4 % throughout, GPT-Neo 9.5 %.
A third was tried and is not here: pieces of at most NCCL's buffer could travel while the receiver still computes. The
homogeneous plans cannot tell (their links are fast); of the mixed ones two come out at -3 % and -12 %, 6.3 % in all.
"Left out" is the error of each plan when the others alone are fitted: the honest figure for seven plans and four
constants. What is left of mixed plans, three of them, so a mean of 5.9 % is no promise for the next ones:
  * N2_D2, -4.3 %: both kinds were slower than their profiles. grad_reduce_s there has the waiting in it, so the RTX-3090's
    own turns took 32.6 s where 29.7 are predicted, and the Titan's 77.5 for 73.6 if the ring took what its link says;
  * N4_D2 +11.0 % and N6_D2 -2.4 %: an RTX-3090 is the slowest stage of both. A turn took 0.92 s and 0.75 s, that is 0.05 s
    and 0.19 s beyond its layers, and crosses the same link with as many bytes in both (0.145 s one way). No order of
    transfers that was looked at gives both.
A model that were exact would show 2.9 % over runs like these. GPT-Neo's -39 % is a step of one micro-batch, 0.21 s of which
the profiles explain 0.12.
With --motley the program's own predictions are compared with this script's, which uses the constants that stand in
published/import_sailor.c. Exits 1 when the two disagree, or when those constants are not the fitted ones.
"""
import argparse
import json
import math
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RUN_MAX = 256  # as in published/import_sailor.c
TIME = ["LAYER_S", "MESSAGE_S", "STEP_S"]
START = {"LAYER_S": 3e-4, "MESSAGE_S": 1e-3, "STEP_S": 1e-2}
NEVER = {"STAGING_GRADIENTS": math.inf}


class Sailor:
    def __init__(self, folder):
        names = ["plans.json", "plans_public.json"]
        plans = next(os.path.join(folder, n) for n in names if os.path.exists(os.path.join(folder, n)))
        self.plans_file = plans
        self.plans = json.load(open(plans))["plans"]
        self.models = json.load(open(os.path.join(folder, "profiles.json")))["models"]
        self.links = json.load(open(os.path.join(folder, "network.json")))["inter_node"]

    def rate(self, a, b, size):
        def fit(x, y):
            return self.links.get(x["gpu"], {}).get(str(x["tp"]), {}).get(y["gpu"], {}).get(str(y["tp"]))
        c = fit(a, b) or fit(b, a) or self.links[a["gpu"]]["1"][b["gpu"]]["1"]
        u = math.log2(size / 1e6)
        return (c[0] * u * u + c[1] * u + c[2]) * 1e9

    def layer(self, plan, replica, layer, c):
        """Seconds of one layer, forward and backward."""
        times = self.models[plan["model"]]["times"][replica["gpu"]]
        tp, rows = str(replica["tp"]), plan["mbs"]

        def both(m):
            t = times.get(str(m), {}).get(tp)
            return t["fwd"][layer] + t["bwd"][layer] if t else math.inf
        own = both(rows)
        arithmetic = min(own, both(2 * rows) - own)
        seconds = max(own - c["LAYER_S"], arithmetic, 0.0)
        share = times[str(rows)][tp]["bwd"][layer] / own if own else 0.0
        return seconds * (1 - share), seconds * share

    def gather(self, plan, replica):
        """Seconds in which tensor-parallel ranks gather a message: half an all-reduce; a layer's forward has two."""
        times, rows, tensor = self.models[plan["model"]]["times"][replica["gpu"]], plan["mbs"], replica["tp"]
        alone, fewer = 0.0, rows
        while fewer and tensor > 1 and not alone:
            t = times.get(str(fewer), {}).get("1")
            alone, fewer = t["fwd"][1] * rows / fewer if t else 0.0, fewer // 2
        return max(0.0, times[str(rows)][str(tensor)]["fwd"][1] - alone / tensor) / 4 if alone else 0.0

    def replica(self, plan, r, c):
        """When one replica has done its last backward: the engine's schedule, half a turn at a time."""
        size = 4 * plan["mbs"] * self.models[plan["model"]]["memory"]["1"]["act_output_floats"][1]
        members = [s["replicas"][r] for s in plan["stages"]]
        layers = [[self.layer(plan, member, n, c) for n in range(*stage["layers"])]
                  for member, stage in zip(members, plan["stages"])]
        forward, backward = ([sum(each[way] for each in stage) for stage in layers] for way in (0, 1))
        for s, gather in enumerate([self.gather(plan, member) for member in members]):
            forward[s] += gather if s else 0.0
            backward[s] += gather if s + 1 < plan["pp"] else 0.0
        ahead = [size / self.rate(a, b, size) for a, b in zip(members, members[1:])]
        back = [size / self.rate(b, a, size) for a, b in zip(members, members[1:])]
        stages, many, wait = plan["pp"], plan["num_microbatches"], c["MESSAGE_S"]
        count = min(many, RUN_MAX)
        clock = [0.0] * stages
        for k in range(2 * (count + stages - 1)):
            for s in range(2 - k % 2, stages, 2):
                gradient, activations = 0 <= (k + s) // 2 - stages < count, 0 <= (k - s) // 2 < count
                if gradient:
                    clock[s - 1] = max(clock[s - 1], clock[s]) + back[s - 1]
                if activations:
                    clock[s] = max(clock[s - 1], clock[s]) + ahead[s - 1]
                if gradient or activations:
                    clock[s - 1] += wait
                    clock[s] += wait
            for s in range(stages):
                if (k - s) % 2 == 0 and 0 <= (k - s) // 2 < count:
                    clock[s] += forward[s]
                elif (k - s) % 2 and 0 <= (k + s + 1) // 2 - stages < count:
                    clock[s] += backward[s]
        period = max(forward[s] + backward[s] + (ahead[s - 1] + back[s - 1] + wait if s else 0.0) +
                     (back[s] + wait if s + 1 < stages else 0.0) for s in range(stages))
        return max(clock) + (many - count) * period

    def sync(self, plan, stage, c):
        n, held = plan["dp"], self.models[plan["model"]]["memory"][str(plan["tp"])]["param_floats"]
        size = 4 * plan["tp"] * sum(held[x] for x in range(*stage["layers"]))  # every rank reduces all that it holds
        if n < 2:
            return 0.0, 0.0
        piece = min(size, 5e8) / n
        ring = stage["replicas"]
        moved = 2 * (n - 1) / n * size
        slowest = min(self.rate(ring[k], ring[(k + 1) % n], piece) for k in range(n))
        return moved / slowest + moved / c["STAGING_GRADIENTS"], moved

    def step_s(self, plan, c):
        alike = {tuple((m["gpu"], m["tp"]) for m in members): r
                 for r, members in enumerate(zip(*(s["replicas"] for s in plan["stages"])))}
        over = max(self.replica(plan, r, c) for r in alike.values())
        sync = max(self.sync(plan, stage, c)[0] for stage in plan["stages"])
        times = self.models[plan["model"]]["times"]
        update = max(times[m["gpu"]][str(plan["mbs"])][str(m["tp"])]["update_s"]
                     for s in plan["stages"] for m in s["replicas"])
        return over + sync + update + c["STEP_S"]

    def memory_terms(self, plan):
        """Bytes of state and of activations in flight, for each stage."""
        memory = self.models[plan["model"]]["memory"][str(plan["tp"])]
        for s, stage in enumerate(plan["stages"]):
            window = min(plan["pp"] - s, plan["num_microbatches"])
            layers = range(*stage["layers"])
            yield (24 * sum(memory["param_floats"][n] for n in layers),
                   4 * window * plan["mbs"] * sum(memory["act_mem_floats"][n] for n in layers))

    def peak(self, plan, c):
        return max(c["CONTEXT_BYTES"] + state + c["FRAGMENTS"] * acts for state, acts in self.memory_terms(plan))


def solve(a, b):
    """Gauss with pivoting; a and b are small."""
    n = len(b)
    m = [row[:] + [b[i]] for i, row in enumerate(a)]
    for i in range(n):
        p = max(range(i, n), key=lambda r: abs(m[r][i]))
        m[i], m[p] = m[p], m[i]
        for r in range(n):
            if r != i and m[i][i]:
                f = m[r][i] / m[i][i]
                m[r] = [x - f * y for x, y in zip(m[r], m[i])]
    return [m[i][n] / m[i][i] if m[i][i] else 0.0 for i in range(n)]


def least_squares(errors, start):
    """Levenberg-Marquardt over the logarithms of the constants (they are positive)."""
    x = [math.log(v) for v in start]
    damp, e = 1e-2, errors([math.exp(v) for v in x])
    for _ in range(400):
        columns = []
        for i in range(len(x)):
            y = x[:]
            y[i] += 1e-4
            columns.append([(p - q) / 1e-4 for p, q in zip(errors([math.exp(v) for v in y]), e)])
        a = [[sum(p * q for p, q in zip(u, v)) for v in columns] for u in columns]
        for i in range(len(x)):
            a[i][i] = a[i][i] * (1 + damp) + 1e-12
        move = solve(a, [-sum(p * q for p, q in zip(u, e)) for u in columns])
        y = [v + max(-1.0, min(1.0, d)) for v, d in zip(x, move)]
        f = errors([math.exp(v) for v in y])
        if sum(v * v for v in f) < sum(v * v for v in e):
            done = sum(v * v for v in e) - sum(v * v for v in f) < 1e-14
            x, e, damp = y, f, max(damp / 3, 1e-9)
            if done:
                break
        else:
            damp *= 4
            if damp > 1e9:
                break
    return [math.exp(v) for v in x]


def fit_gradients(data, plans):
    top = bottom = 0.0
    for plan in plans:
        c = dict(NEVER)
        if plan["dp"] < 2:
            continue
        ring, moved = max(data.sync(plan, stage, c) for stage in plan["stages"])
        top += moved * (plan["measured"]["grad_reduce_s"] - ring)
        bottom += moved * moved
    return bottom / top


def both_runs(plan):
    """Mean step time of a plan's measurements."""
    runs = [plan["measured"]["iter_s"]] + ([plan["measured_earlier"]["iter_s"]] if plan["measured_earlier"] else [])
    return sum(runs) / len(runs)


def fit_time(data, plans):
    c = {"STAGING_GRADIENTS": fit_gradients(data, plans)}

    def errors(values):
        d = dict(c, **dict(zip(TIME, values)))
        return [data.step_s(p, d) / both_runs(p) - 1 for p in plans]
    c.update(zip(TIME, least_squares(errors, [START[k] for k in TIME])))
    return c


def fit_memory(data, plans):
    def errors(values):
        c = {"CONTEXT_BYTES": values[0], "FRAGMENTS": values[1]}
        return [data.peak(p, c) / p["measured"]["peak_mem_bytes"] - 1 for p in plans]
    return dict(zip(["CONTEXT_BYTES", "FRAGMENTS"], least_squares(errors, [4e9, 1.0])))


def leave_out(data, plans, what, key):
    twice, later = [], []
    for out in sorted({key(p) for p in plans}):
        c = fit_time(data, [p for p in plans if key(p) != out])
        for p in (p for p in plans if key(p) == out):
            twice.append(abs(data.step_s(p, c) / both_runs(p) - 1))
            later.append(abs(data.step_s(p, c) / p["measured"]["iter_s"] - 1))
    print("a %s left out: mean %.1f%%, worst %.1f%% of the mean of both runs; %.1f%% and %.1f%% of the later" % (
        what, 100 * sum(twice) / len(twice), 100 * max(twice), 100 * sum(later) / len(later), 100 * max(later)))


def ranks(values):
    order = sorted(range(len(values)), key=lambda i: values[i])
    out = [0] * len(values)
    for place, i in enumerate(order):
        out[i] = place
    return out


def rank_correlation(a, b):
    x, y, n = ranks(a), ranks(b), len(a)
    return 1 - 6 * sum((p - q) ** 2 for p, q in zip(x, y)) / (n * (n * n - 1)) if n > 1 else 1.0


def group(plan):
    return ("mixed " if not plan["homogeneous"] else "homogeneous ") + plan["model"]


def report(data, c):
    seen = {}
    print("%-32s %9s %9s %8s %9s" % ("plan", "measured", "predicted", "time", "memory"))
    for p in data.plans:
        if not p["quality"]["time_ok"]:
            continue
        step = data.step_s(p, c)
        error = step / p["measured"]["iter_s"] - 1
        memory = data.peak(p, c) / p["measured"]["peak_mem_bytes"] - 1 if p["quality"]["memory_ok"] else None
        seen.setdefault(group(p), []).append((p, step, error, memory))
        print("%-32s %9.3f %9.3f %+7.1f%% %9s" % (p["id"], p["measured"]["iter_s"], step, 100 * error,
                                                  "%+.1f%%" % (100 * memory) if memory is not None else "-"))
    print()
    everything = [("all homogeneous", [x for k, v in seen.items() if k.startswith("homog") for x in v])]
    for name, rows in sorted(seen.items()) + everything:
        memory = [abs(r[3]) for r in rows if r[3] is not None]
        line = "%-26s %2d plans: time mean %5.1f%% worst %5.1f%%" % (
            name, len(rows), 100 * sum(abs(r[2]) for r in rows) / len(rows), 100 * max(abs(r[2]) for r in rows))
        if not name.startswith("all"):
            line += ", rank correlation %.3f" % rank_correlation([r[1] for r in rows],
                                                                 [r[0]["measured"]["iter_s"] for r in rows])
        if memory:
            line += "; memory mean %.1f%% over %d" % (100 * sum(memory) / len(memory), len(memory))
        print(line)


def constants_in_source():
    text = open(os.path.join(ROOT, "published", "import_sailor.c"), encoding="utf-8").read()
    names = TIME + ["STAGING_GRADIENTS", "CONTEXT_BYTES", "FRAGMENTS"]
    return {n: float(re.search(r"#define %s\s+(\S+)" % n, text).group(1)) for n in names}


def compare(data, folder, motley, c):
    out = subprocess.run([motley, "replay", "--from", "sailor", "--data", folder, "--cases", data.plans_file, "--json"],
                         capture_output=True, text=True, check=True).stdout
    worst = 0.0
    for line in map(json.loads, out.splitlines()):
        plan = next(p for p in data.plans if p["id"] == line["id"])
        worst = max(worst, abs(line["iter_s"] / data.step_s(plan, c) - 1),
                    abs(line["peak_mem_bytes"] / data.peak(plan, c) - 1))
    print("\nmotley replay and this script differ by %.1e at most" % worst)
    return worst < 1e-9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=os.path.join(ROOT, "tests/data/planner/sailor"))
    parser.add_argument("--motley", help="compare the program's predictions with this script's")
    options = parser.parse_args()
    data = Sailor(options.folder)
    mine = [p for p in data.plans if p["homogeneous"] and p["model"] == "OPT-350"]
    timed = [p for p in mine if p["quality"]["time_ok"]]
    sized = [p for p in mine if p["quality"]["memory_ok"]]
    c = dict(fit_time(data, timed), **fit_memory(data, sized))
    print("fitted to %d plans (time) and %d (memory):" % (len(timed), len(sized)))
    for name, value in c.items():
        print("    %-18s %.4g" % (name, value))
    leave_out(data, timed, "plan", lambda p: p["id"])
    leave_out(data, timed, "shape", lambda p: (p["pp"], p["mbs"]))
    print("\nwith the constants in published/import_sailor.c:")
    source = constants_in_source()
    report(data, source)
    stale = [n for n in source if abs(source[n] / c[n] - 1) > 0.005]
    if stale:
        print("\npublished/import_sailor.c does not have what was fitted: " + ", ".join(stale))
        return 1
    if options.motley and not compare(data, options.folder, options.motley, source):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
