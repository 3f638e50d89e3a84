#!/usr/bin/env python3
"""Two planners on the same seeded cases: seconds to plan, and both plans checked and priced by the older one's simulator.

  bench/planner_beside.py --old DIR --new DIR [--seed 1] [--count 120] [--only i,j,k-l] [--jobs 1] [--cache DIR]
                          [--against ../old] [--json FILE] [--keep DIR] [--timeout 900]
  bench/planner_beside.py --list [--seed 1] [--count 120]

DIR holds `motley` (build/bin). --against is a built source tree of the old revision: price_plan.c is compiled against its
libraries. --cache keeps the old planner's answers, so that a second run plans with the new one only; its seconds are then
those of the run that filled the cache. Steps are means over all priced
steps; a planner says of long programs what the first takes, which is another number where rows differ in length. `said` in a
line: the new planner's own step is neither, by the old simulator.
Exit status 1: a plan was refused or above memory, the new planner failed, or nothing fits where the old one has a plan."""
import argparse
import concurrent.futures
import gzip
import hashlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import planner_cases

HERE = os.path.dirname(os.path.abspath(__file__))
SAME = 1e-6  # of two simulators' steps
FAILED = ("wrong", "over memory", "failed", "no plan")


def digest_of(path):
    with open(path, "rb") as handle:
        return hashlib.sha256(handle.read()).hexdigest()[:16]


def price_tool(against, folder):
    """Compiles price_plan.c against a built tree, with what `motley` is linked with there; kept by what it is made of."""
    build, source = os.path.join(against, "build"), os.path.join(HERE, "price_plan.c")
    with open(os.path.join(build, "build.ninja"), encoding="utf-8") as handle:
        text = handle.read()
    at = text.index("LINK_LIBRARIES = ", text.index("build bin/motley:"))
    libraries = text[at:text.index("\n", at)].split("= ", 1)[1].split()
    made_of = hashlib.sha256((digest_of(source) + digest_of(os.path.join(build, "libmotley_planner.a"))).encode()).hexdigest()[:16]
    program = os.path.join(folder, f"price_plan-{made_of}")
    if not os.path.exists(program):
        mine = f"{program}.{os.getpid()}"
        subprocess.run(["cc", "-std=c17", "-O2", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-I", against, source, "-o", mine,
                        *libraries], check=True, cwd=build)
        os.replace(mine, program)
    return program, made_of


def run(argv, folder, timeout):
    """Status (None: too long), output, seconds on the wall, of the processor, and MiB."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as wrong:
        began = time.monotonic()
        child = subprocess.Popen(["timeout", "-s", "KILL", str(timeout), *argv], stdout=out, stderr=wrong, cwd=folder)
        _, status, used = os.wait4(child.pid, 0)
        wall = time.monotonic() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        wrong.seek(0)
        told = {"status": child.returncode, "error": wrong.read().decode(errors="replace")[-300:], "wall_s": round(wall, 4),
                "cpu_s": round(used.ru_utime, 4), "mib": round(used.ru_maxrss / 1024)}
        return told, out.read()


def shape(answer):
    """"hybrid 10x64 m1 1f1b": stages, devices, rows of a micro-batch, order."""
    ranks = answer["ranks"]
    stages = len({r["stage"] for r in ranks})
    words = [answer["placement"], f"{stages}x{len(ranks)}" if stages > 1 else str(len(ranks)), f"m{answer['micro_batch_rows']}"]
    if answer.get("schedule") not in (None, "1f1b"):
        words.append(answer["schedule"])
    return " ".join(words)


def plan(program, case, folder, timeout, save=True):
    """Plans; the saved plan lies in folder/plan.json."""
    spec, cluster = case.write(folder)
    saved = os.path.join(folder, "plan.json")
    if os.path.exists(saved):
        os.unlink(saved)
    told, text = run([program, "plan", spec, "--cluster", cluster, "--json", *(["--save", saved] if save else [])], folder,
                     timeout)
    told["fits"] = False
    if told["status"] in (0, 4):
        answer = json.loads(text)
        told["fits"] = answer["verdict"] == "fits"
        told["plan_s"] = answer["plan_s"]
        if told["fits"]:
            told.update(said_s=answer["step_s"], bound_s=answer["lower_bound_s"], shape=shape(answer),
                        placement=answer["placement"], runnable=answer["runnable"],
                        claims={r["device"]: r["memory_bytes"] for r in answer["ranks"]})
    return told


def price(tool, case, folder, told):
    """Adds what the old simulator says of folder/plan.json."""
    if not told["fits"]:
        return
    spec, cluster = case.write(folder)
    ran, text = run([tool, spec, cluster, os.path.join(folder, "plan.json")], folder, 600)
    if ran["status"] != 0:
        told["priced"] = {"refused": f"price_plan: status {ran['status']}: {ran['error']}", "step_s": 0, "memory_over": 0}
    else:
        told["priced"] = json.loads(text)


def old_answer(setup, case, folder):
    """The old planner's answer, from the cache where it has one; priced again where price_plan.c is another."""
    name = f"{case.seed}-{case.number}-{case.digest()}"
    kept = os.path.join(setup.cache, f"{name}.json") if setup.cache else None
    packed, saved, told = os.path.join(setup.cache or folder, f"{name}.plan.gz"), os.path.join(folder, "plan.json"), None
    if kept and os.path.exists(kept):
        with open(kept, encoding="utf-8") as handle:
            told = json.load(handle)
        if told.get("planner") != setup.old_digest:
            told = None
        elif told.get("price_tool") == setup.made_of:
            return told
    if told is None:
        told = plan(os.path.join(setup.old, "motley"), case, folder, setup.timeout)
        if kept and told["fits"]:
            with open(saved, "rb") as handle, gzip.open(packed, "wb") as out:
                shutil.copyfileobj(handle, out)
    elif told["fits"]:
        os.makedirs(folder, exist_ok=True)
        with gzip.open(packed, "rb") as handle, open(saved, "wb") as out:
            shutil.copyfileobj(handle, out)
    price(setup.tool, case, folder, told)
    told.update(price_tool=setup.made_of, planner=setup.old_digest)
    if kept and told["status"] in (0, 2, 4):
        with open(f"{kept}.{os.getpid()}", "w", encoding="utf-8") as handle:
            json.dump(told, handle)
        os.replace(f"{kept}.{os.getpid()}", kept)
    return told


def verdict(told):
    """"" when it is in order."""
    if told["status"] not in (0, 2, 4):
        return "failed"
    if not told["fits"]:
        return ""
    if told["priced"]["refused"]:
        return "wrong"
    return "over memory" if told["priced"]["memory_over"] else ""


def said_otherwise(told):
    """Is the planner's own step neither the mean priced one nor the first?"""
    return all(abs(told["said_s"] / told["priced"][key] - 1) > SAME for key in ("step_s", "first_s"))


def judge(case, old, new):
    result = {"number": case.number, "class": planner_cases.class_of(case.devices), "words": case.words, "old": old, "new": new,
              "ratio": None, "note": verdict(new)}
    if result["note"]:
        return result
    if verdict(old):
        result["note"] = f"old: {verdict(old)}"
    elif old["fits"] and new["fits"]:
        result["ratio"] = new["priced"]["step_s"] / old["priced"]["step_s"]
        if said_otherwise(new):
            result["note"] = f"said {new['said_s'] / new['priced']['step_s']:.5f}"
    elif old["fits"]:
        result["note"] = "no plan"
    elif new["fits"]:
        result["note"] = "fits now"
    return result


def one(setup, case):
    folder = os.path.join(setup.folder, f"{case.seed}-{case.number}")
    old = old_answer(setup, case, os.path.join(folder, "old"))
    new = None
    if setup.new:
        new = plan(os.path.join(setup.new, "motley"), case, os.path.join(folder, "new"), setup.timeout)
        price(setup.tool, case, os.path.join(folder, "new"), new)
    if not setup.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return judge(case, old, new or old)


def seconds(told, key):
    return f"{told[key]:.5g}" if told["fits"] and key in told else "-"


def row(case, result):
    old, new = result["old"], result["new"]
    step = [f"{t['priced']['step_s']:.5g}" if t["fits"] and t["priced"]["step_s"] else "-" for t in (old, new)]
    ratio = f"{result['ratio']:.4f}" if result["ratio"] else "-"
    return (f"{case.number:3d} {planner_cases.told(case)} {step[0]:>9s} {step[1]:>9s} {ratio:>7s} {old['cpu_s']:6.2f} {new['cpu_s']:6.2f}  "
            f"{old.get('shape', 'does not fit')[:27]:27s} {new.get('shape', 'does not fit')[:27]:27s} {result['note']}")


HEADER = (f"  # {'devices':10s} {'model':20s} {'method':12s} {'rows':15s} {'links':26s} {'asked':12s} {'old step':>9s} {'new step':>9s} "
          f"{'new/old':>7s} {'old s':>6s} {'new s':>6s}  {'old':27s} new")


def mean_geometric(values):
    return math.exp(statistics.mean(math.log(v) for v in values)) if values else None


def times(results):
    """Seconds of the processor by class of devices."""
    table = {}
    for name in planner_cases.CLASSES:
        of = [r for r in results if r["class"] == name]
        if of:
            ratios = [r["ratio"] for r in of if r["ratio"]]
            table[name] = {"cases": len(of), "ratio": mean_geometric(ratios), "worst": max(ratios, default=None)}
            for who in ("old", "new"):
                each = [r[who]["cpu_s"] for r in of]
                table[name][who] = {"mean_s": statistics.mean(each), "worst_s": max(each),
                                    "worst_mib": max(r[who]["mib"] for r in of)}
    return table


def summary(results):
    ratios = [r["ratio"] for r in results if r["ratio"]]
    document = {"cases": len(results), "compared": len(ratios), "geometric_mean": mean_geometric(ratios),
                "worst": max(ratios, default=None), "best": min(ratios, default=None),
                "above": {str(bar): sum(r > bar for r in ratios) / len(ratios) if ratios else None for bar in (1.01, 1.03, 1.08)},
                "below_0.99": sum(r < 0.99 for r in ratios) / len(ratios) if ratios else None, "times": times(results)}
    for note in FAILED + ("fits now",):
        document[note] = [r["number"] for r in results if r["note"] == note]
    document["declares less"] = [r["number"] for r in results if r["new"]["fits"] and not r["new"]["priced"]["refused"] and r["new"]["priced"]["memory_declared"] < 1 - SAME]
    document["said otherwise"] = [r["number"] for r in results if r["note"].startswith("said")]
    old = [r["old"] for r in results if r["old"]["fits"] and not verdict(r["old"])]
    document["old said otherwise"] = [r["number"] for r in results if r["old"] in old and said_otherwise(r["old"])]
    document["as said"] = mean_geometric([r["new"]["said_s"] / r["old"]["said_s"] for r in results if r["ratio"]])
    return document


def print_summary(s, results):
    print(f"\n{s['cases']} cases, {s['compared']} with both plans")
    if s["compared"]:
        above = ", ".join(f"above {bar}: {share:.1%}" for bar, share in s["above"].items())
        print(f"new/old: geometric mean {s['geometric_mean']:.5f}, worst {s['worst']:.4f}, best {s['best']:.4f}; {above}; below 0.99: "
              f"{s['below_0.99']:.1%}; steps as said: {s['as said']:.5f}")
    for name, t in s["times"].items():
        ratio = f"ratio {t['ratio']:.4f}, worst {t['worst']:.4f}" if t["ratio"] else "no ratio"
        print(f"  {name:>5s} devices, {t['cases']:3d} cases: {ratio}; planning, CPU s at the mean and at worst: old {t['old']['mean_s']:.3f} "
              f"{t['old']['worst_s']:.2f}, new {t['new']['mean_s']:.3f} {t['new']['worst_s']:.2f} ({t['new']['worst_mib']} MiB)")
    for note in FAILED + ("fits now", "said otherwise", "old said otherwise", "declares less"):
        if s[note]:
            print(f"  {note}: {','.join(str(n) for n in s[note])}")
    for r in results:
        new = r["new"]
        if r["note"] in ("wrong", "over memory", "failed"):
            why = new["error"] if r["note"] == "failed" else new["priced"]["refused"] or new["priced"].get("memory_why") or \
                f"{new['priced']['memory_over']} ranks, {new['priced']['memory_of_limit']:.4f} of the limit at most"
            print(f"    {r['number']}: {why.strip()[:200]}")


def numbers(text, count):
    chosen = []
    for part in (text or f"0-{count - 1}").split(","):
        first, _, last = part.partition("-")
        chosen += range(int(first), int(last or first) + 1)
    return chosen


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=os.path.abspath, default=os.path.abspath("../old/build/bin"))
    parser.add_argument("--new", type=os.path.abspath, help="absent: the old planner alone, which fills the cache")
    parser.add_argument("--against", type=os.path.abspath, default=os.path.abspath("../old"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--only", help="case numbers: 3,7,20-29")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cache", type=os.path.abspath)
    parser.add_argument("--json")
    parser.add_argument("--keep", type=os.path.abspath, help="a folder that documents and plans are left in")
    parser.add_argument("--timeout", type=int, default=900)
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


def main():
    setup = options()
    cases = [planner_cases.Case(setup.seed, n) for n in numbers(setup.only, setup.count)]
    if setup.list:
        for case in cases:
            print(f"{case.number:3d} {planner_cases.told(case)} {case.words['cards'][:60]} {case.digest()[:8]}")
        return 0
    results = []
    with tempfile.TemporaryDirectory(prefix="beside-") as folder:
        setup.folder = setup.keep or folder
        if setup.cache:
            os.makedirs(setup.cache, exist_ok=True)
        setup.tool, setup.made_of = price_tool(setup.against, setup.cache or folder)
        setup.old_digest = digest_of(os.path.join(setup.old, "motley"))
        print(HEADER)
        with concurrent.futures.ThreadPoolExecutor(setup.jobs) as pool:
            for case, result in zip(cases, pool.map(lambda c: one(setup, c), cases)):
                results.append(result)
                print(row(case, result), flush=True)
    told = summary(results)
    print_summary(told, results)
    if setup.json:
        with open(setup.json, "w", encoding="utf-8") as handle:
            json.dump({"seed": setup.seed, "summary": told, "results": results}, handle, indent=1)
    return 1 if any(told[note] for note in FAILED) else 0


if __name__ == "__main__":
    sys.exit(main())
