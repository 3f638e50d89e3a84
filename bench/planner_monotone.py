#!/usr/bin/env python3
"""More is not slower: seeded changes for the better (memory, speed, one link, a network card, one device more), planned from
scratch before and after, by nothing but `motley plan`.

  bench/planner_monotone.py [--new build/bin] [--count 200] [--seed 1] [--class 2-6] [--small SHARE] [--from slower|all|never]
                            [--kinds memory,device,link,…] [--by LEAST,MOST] [--jobs 1] [--json FILE]

--small: the share of cases that are small models on unlike processors with links of their own, as tests/planner/
test_monotone.c has them; the others are planner_cases.py's without what they ask for. --by: the factor is 1 + something
between these, even in its logarithm. With --from (of what became slower, by default) the changed cluster is planned once
more with the plan from before given: that may never be slower. Exit status 1 if it is, or if a planner fails."""
import argparse
import concurrent.futures
import json
import math
import os
import random
import sys
import tempfile

import planner_beside
import planner_cases

KINDS = ("memory", "speed", "link", "card", "device")
LAST_DIGITS = 1e-9  # sums are taken in another order


class Small:
    """A model of a few narrow layers on one to six processors, every pair of nodes with its own links."""
    def __init__(self, seed, number):
        self.seed, self.number = seed, number
        draw = self.draw = random.Random(f"motley small case {seed} {number}")
        layers, vocabulary, self.devices = draw.randint(2, 10), 512 << draw.randint(0, 5), draw.randint(1, 6)
        a_node, tokens, rows = draw.randint(1, 3), 128, draw.randint(2, 16)
        self.config = {**planner_cases.config_of("SmolLM2-135M"), "num_hidden_layers": layers, "vocab_size": vocabulary}
        whole, roomy = 14.4e6 * layers + 4 * 576 * vocabulary + 20 * 2**20, draw.choice((0, 0.8))
        nodes = {}
        for d in range(self.devices):
            name = f"n{d // a_node}"
            nodes.setdefault(name, []).append({"name": f"{name}/{d}", "like": "cpu-avx2", "speed": round(draw.uniform(0.2, 2), 4),
                                               "memory_bytes": int(whole * (draw.uniform(0.3, 1.5) + roomy))})
        self.cluster = {"nodes": [{"name": name, "devices": own} for name, own in nodes.items()],
                        "links": {"within": {"latency_s": 1e-5, "bytes_per_s": 1e9},
                                  "between": {"latency_s": 2e-4, "bytes_per_s": 1e8}, "pairs": []}}
        for node in self.cluster["nodes"]:
            if draw.random() < 0.25:
                node["nic_bytes_per_s"] = 2e7 * 10 ** draw.random()
        names = list(nodes)
        self.cluster["links"]["pairs"] = [
            {"a": a, "b": b, "latency_s": 1e-5 * 10 ** draw.uniform(0, 2.5), "bytes_per_s": 1e7 * 10 ** draw.uniform(0, 2)}
            for n, a in enumerate(names) for b in names[n + 1:]]
        spread, lines = draw.randint(1, 100), []
        for _ in range(3 * rows):
            length = 20 + draw.randrange(spread)
            lines.append(json.dumps({"ids": [7] * length, "labels": [-100] * (length - 1 - length // 2) + [7] * (1 + length // 2)}))
        self.rows = "\n".join(lines) + "\n"
        self.spec = {"name": "case", "model": "case-model", "method": {"kind": "lora", "rank": 8},
                     "data": {"train": "case-rows.jsonl", "format": "tokens", "sequence_tokens": tokens},
                     "train": {"batch_rows": rows, "steps": draw.randint(1, 3)}}
        self.words = {"model": f"{layers} small layers"}

    write = planner_cases.Case.write


def copied(case, cluster):
    """The case with another cluster."""
    other = object.__new__(type(case))
    other.__dict__.update(case.__dict__, cluster=cluster)
    return other


def limits(case):
    """Of each device in turn, said or not."""
    devices = [d for n in case.cluster["nodes"] for d in n["devices"]]
    return [d.get("memory_bytes") or int(planner_cases.limit_bytes(planner_cases.EVERY.get(d["like"]) or planner_cases.CARDS["cloud"][d["like"]]))
            for d in devices]


def one_more(draw, cluster):
    """Like one there is, on its machine or on one of its own with the usual links."""
    node = draw.choice(cluster["nodes"])
    like = dict(draw.choice(node["devices"]))
    if draw.random() < 0.5:
        node["devices"].append({**like, "name": f"{node['name']}/more"})
    else:
        cluster["nodes"].append({"name": "more", "devices": [{**like, "name": "more/0"}]})


def faster_link(draw, cluster, factor):
    """Between two machines, or within all."""
    links, names = cluster["links"], [n["name"] for n in cluster["nodes"]]
    if len(names) < 2:
        links["within"]["bytes_per_s"] *= factor
        return
    a, b = draw.sample(names, 2)
    pairs = links.setdefault("pairs", [])
    found = next((p for p in pairs if {p["a"], p["b"]} == {a, b}), None)
    if not found:
        found = {"a": a, "b": b, **links["between"]}
        pairs.append(found)
    found["bytes_per_s"] *= factor


def change(case, draw, kinds, least, most):
    """Another cluster, better in one thing; the thing."""
    cluster = json.loads(json.dumps(case.cluster))
    nodes, kind = cluster["nodes"], draw.choice(kinds)
    factor = 1 + math.exp(draw.uniform(math.log(least), math.log(most)))
    cards = [n for n in nodes if "nic_bytes_per_s" in n]
    if kind == "card" and not cards:
        kind = "link"
    if kind == "card":
        draw.choice(cards)["nic_bytes_per_s"] *= factor
    elif kind == "link":
        faster_link(draw, cluster, factor)
    elif kind == "device":
        one_more(draw, cluster)
    else:
        devices = [d for n in nodes for d in n["devices"]]
        at = draw.randrange(len(devices))
        if kind == "speed":
            devices[at]["speed"] = devices[at].get("speed", 1) * factor
        else:
            devices[at]["memory_bytes"] = int(limits(case)[at] * factor)
    return cluster, kind


def case_of(setup, number):
    draw = random.Random(f"motley change {setup.seed} {number}")
    if draw.random() < setup.small:
        return Small(setup.seed, number), draw
    case = planner_cases.Case(setup.seed, number, planner_cases.CLASSES.index(setup.devices))
    case.spec.pop("placement", None)
    return case, draw


def plan_from(setup, case, folder, plan):
    spec, cluster = case.write(folder)
    told, text = planner_beside.run([os.path.join(setup.new, "motley"), "plan", spec, "--cluster", cluster, "--json", "--from", plan],
                                    folder, setup.timeout)
    if told["status"] == 0:
        answer = json.loads(text)
        told.update(said_s=answer["step_s"], words=(answer.get("from") or {}).get("words"))
    return told


def one(setup, number):
    """None: nothing fits before."""
    case, draw = case_of(setup, number)
    program = os.path.join(setup.new, "motley")
    with tempfile.TemporaryDirectory(prefix="monotone-") as folder:
        os.makedirs(os.path.join(folder, "before"))
        os.makedirs(os.path.join(folder, "after"))
        before = planner_beside.plan(program, case, os.path.join(folder, "before"), setup.timeout)
        told = {"number": number, "devices": case.devices, "model": case.words["model"], "kind": "", "seconds": before["cpu_s"]}
        if before["status"] not in (0, 4):
            return {**told, "failed": before["error"] or f"status {before['status']}"}
        if not before["fits"]:
            return None
        cluster, told["kind"] = change(case, draw, setup.kinds, *setup.by)
        better = copied(case, cluster)
        after = planner_beside.plan(program, better, os.path.join(folder, "after"), setup.timeout)
        if after["status"] not in (0, 4):
            return {**told, "failed": after["error"] or f"status {after['status']}"}
        told.update(before=before["shape"], after=after.get("shape", "does not fit"), before_s=before["said_s"],
                    ratio=after["said_s"] / before["said_s"] if after["fits"] else math.inf, seconds=before["cpu_s"] + after["cpu_s"])
        slower = told["ratio"] > 1 + LAST_DIGITS
        if setup.given == "all" or (setup.given == "slower" and slower):
            again = plan_from(setup, better, os.path.join(folder, "after"), os.path.join(folder, "before", "plan.json"))
            told["from_ratio"] = again["said_s"] / before["said_s"] if again["status"] == 0 else math.inf
            told["from_words"] = again.get("words") or again["error"]
    return told


def line(told):
    if told.get("failed"):
        return f"{told['number']:5d} {told['devices']:2d} devices, {told['model']}, {told['kind']}: FAILED {told['failed'].strip()}"
    given = f"; given the old plan {told['from_ratio']:.6f}" if "from_ratio" in told else ""
    return (f"{told['number']:5d} {told['devices']:2d} devices, {told['model']}, {told['kind']}: {told['before']} {told['before_s']:.6g} s "
            f"becomes {told['after']}, ratio {told['ratio']:.6f}{given}")


def tally(results):
    ratios = [r["ratio"] for r in results]
    slower = [r for r in ratios if r > 1 + LAST_DIGITS]
    given = [r["from_ratio"] for r in results if "from_ratio" in r]
    return {"changes": len(ratios), "slower": len(slower), "share": len(slower) / len(ratios) if ratios else 0,
            "above_1.01": sum(r > 1.01 for r in ratios), "faster": sum(r < 1 - LAST_DIGITS for r in ratios),
            "worst": max(ratios, default=0), "given": len(given), "given_slower": sum(r > 1 + LAST_DIGITS for r in given),
            "given_worst": max(given, default=0)}


def print_tally(name, t):
    given = f"; given the old plan, of {t['given']}: {t['given_slower']} slower, worst {t['given_worst']:.9f}" if t["given"] else ""
    print(f"{name:8s} {t['changes']:4d} changes, {t['faster']:4d} faster, {t['slower']:3d} slower ({t['share']:.1%}), {t['above_1.01']} above 1.01, "
          f"worst {t['worst']:.6f}{given}")


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--new", type=os.path.abspath, default=os.path.join(os.path.dirname(planner_beside.HERE), "build", "bin"))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--class", dest="devices", choices=planner_cases.CLASSES, default="2-6")
    parser.add_argument("--small", type=float, default=0.5)
    parser.add_argument("--from", dest="given", choices=("slower", "all", "never"), default="slower")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--by", type=lambda text: [float(part) for part in text.split(",")], default=[0.01, 3])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=900)
    parser.add_argument("--json")
    return parser.parse_args()


def main():
    setup, results, number = options(), [], 0
    with concurrent.futures.ThreadPoolExecutor(setup.jobs) as pool:
        while len(results) < setup.count and number < 20 * setup.count:
            wanted = range(number, number + max(setup.jobs, min(50, setup.count - len(results))))
            number = wanted.stop
            for told in pool.map(lambda n: one(setup, n), wanted):
                if told is None or len(results) == setup.count:
                    continue
                results.append(told)
                if told.get("failed") or told["ratio"] > 1 + LAST_DIGITS or told.get("from_ratio", 1) > 1 + LAST_DIGITS:
                    print(line(told), flush=True)
    done = [r for r in results if not r.get("failed")]
    summary = {"all": tally(done)}
    for kind in KINDS:
        summary[kind] = tally([r for r in done if r["kind"] == kind])
        if summary[kind]["changes"]:
            print_tally(kind, summary[kind])
    print_tally("all", summary["all"])
    failed = len(results) - len(done)
    print(f"seed {setup.seed}: {sum(r['seconds'] for r in results):.1f} CPU s" + (f", {failed} FAILED" if failed else ""))
    if setup.json:
        with open(setup.json, "w", encoding="utf-8") as handle:
            json.dump({"seed": setup.seed, "summary": summary, "results": results}, handle, indent=1)
    return 1 if failed or summary["all"]["given_slower"] else 0


if __name__ == "__main__":
    sys.exit(main())
