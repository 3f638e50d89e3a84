#!/usr/bin/env python3
"""Trial steps in labs of paced devices whose profiles are wrong by up to 30 %: what was predicted, what was tried, which plan was
kept, which one was best, and what the trial cost.

Each lab is drawn from its seed: cards, links, and for each device a factor by which all times of its profile are made wrong. A job
with trial steps is run until its trial has ended and --steps more are measured. Then each plan that was tried is run by itself,
for as many steps; the plan that was kept is set beside the fastest of these.
"""
import argparse
import json
import os
import random
import signal
import statistics
import sys

import lab
from harness import Motley, expect, report
from motley import pids, poll

TOKENS, ROWS, IDEAL_S = 32, 8, 0.2  # a step of 0.2 s, of which this machine computes some hundredths
LINKS = ["100Mbit/s:0.5ms", "1Gbit/s:0.5ms", "10Gbit/s:0.1ms"]
CARDS = ["rtx-4090", "rtx-3090", "rtx-3080", "rtx-2080ti", "v100", "titan-xp", "t4", "rtx-4070", "rtx-2070"]
WRONG, WITHIN = 0.3, 1.03


def lab_arguments():
    """The lab's own arguments, for steps as short as trials are to be."""
    sys.argv = sys.argv[:1]
    args = lab.arguments()
    args.ideal, args.rows = IDEAL_S, ROWS
    lab.TOKENS = TOKENS
    return args


def spec_of(motley, rows, name, steps, **placement):
    return {"name": name, "model": motley.path("model"), "method": lab.LORA,
            "data": {"train": rows, "format": "tokens", "sequence_tokens": TOKENS, "shuffle": False},
            "train": {"batch_rows": ROWS, "steps": steps, "learning_rate": 1e-4, "compute": "fp32"},
            "checkpoint": {"every_steps": 0}, "placement": placement}


def falsify(motley, rows, draw):
    """Has all devices measured, and makes each profile wrong by a factor of its own."""
    motley.submit(spec_of(motley, rows, "measured", 1, trials=0), wait=True)
    factors = {}
    for line in motley.sql("SELECT json_build_array(device, key, document) FROM profiles").splitlines():
        device, key, document = json.loads(line)
        factor = factors.setdefault(device, draw.uniform(1 - WRONG, 1 + WRONG))
        for point in document["points"]:
            for name in point:
                point[name] *= factor if name.endswith("_s") else 1
        motley.sql(f"UPDATE profiles SET document = $doc${json.dumps(document)}$doc$ WHERE device = '{device}' AND key = '{key}'")
    motley.sql("DELETE FROM device_speeds")
    before = pids(motley, "scheduler")
    for pid in before:  # the next one reads the profiles anew
        os.kill(pid, signal.SIGKILL)
    while not set(pids(motley, "scheduler")) - set(before):
        poll()
    return {device: round(factor, 3) for device, factor in sorted(factors.items())}


def wait_trial(motley, ident, timeout=240):
    """The job, once its trial has ended."""
    for _ in range(10 * timeout):
        job = motley.job(ident)
        if (job.get("trial") or {}).get("state", "trying") != "trying" and job["state"] == "running":
            return job
        expect(job["state"] not in ("failed", "succeeded"), f"{job['state']}: {job.get('why')}")
        poll()
    raise TimeoutError(f"no trial ended: {job['state']}, {job.get('trial')}")


def measured(motley, ident, steps):
    """The lower quartile of the seconds of the job's next steps, without the first, as trials take it; the job is cancelled then."""
    begun = motley.job(ident)["step"]
    lines = motley.wait_steps(ident, begun + 1 + steps)
    motley.run("cancel", str(ident))
    motley.wait_state(ident, ("cancelled",))
    return statistics.quantiles((line["seconds"] for line in lines[begun + 1:]), n=4)[0]


def forced(motley, rows, placement, plan, steps):
    ident = motley.submit(spec_of(motley, rows, placement, 20000, plan=plan))["id"]
    motley.wait_steps(ident, 1)
    return measured(motley, ident, steps)


def one(seed, steps):
    draw = random.Random(seed)
    cards, link = draw.sample(CARDS, draw.choice([2, 2, 3, 4])), draw.choice(LINKS)
    args = lab_arguments()
    with Motley(lab.config(cards, args, link)) as motley:
        rows = lab.make_inputs(motley, args)
        wrong = falsify(motley, rows, draw)
        ident = motley.submit(spec_of(motley, rows, "tried", 20000))["id"]
        motley.wait_steps(ident, 1)
        trial = motley.job(ident).get("trial")
        if not trial:
            print(f"seed {seed}: {', '.join(cards)}, {link}: no other plan's forecast was near", flush=True)
            motley.run("cancel", str(ident))
            return None
        plans = json.loads(motley.sql(f"SELECT plans FROM trials WHERE job = {ident}"))
        trial = wait_trial(motley, ident)["trial"]
        kept = measured(motley, ident, steps)
        tried = [plan for plan in trial["plans"] if plan["measured_s"]]
        alone = {plan["placement"]: forced(motley, rows, plan["placement"], plans[plan["digest"]], steps) for plan in tried}
    best = min(alone, key=alone.get)
    chosen = trial["plans"][trial["chosen"]]["placement"]
    words = "; ".join(f"{p['placement']} {p['predicted_s']:.3f} s predicted, {p['measured_s']:.3f} s in the trial, {alone[p['placement']]:.3f} s alone" for p in tried)
    print(f"seed {seed}: {', '.join(cards)}, {link}: {words}. Kept {chosen}: {kept:.3f} s; best {best}: {kept / alone[best]:.3f} of it; "
          f"the trial took {trial['spent_s']:.2f} s of {trial['budget_s']:.0f}", flush=True)
    return {"seed": seed, "cards": cards, "link": link, "wrong": wrong, "state": trial["state"], "tried": tried, "alone": alone, "chosen": chosen, "kept_s": kept,
            "best": best, "of_best": alone[chosen] / alone[best], "first_of_best": alone[tried[0]["placement"]] / alone[best], "spent_s": trial["spent_s"], "moves": trial["moves"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=1, help="of the first lab")
    parser.add_argument("--labs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=15, help="steps that are measured of each plan by itself")
    args = parser.parse_args()
    found = [run for run in (one(args.seed + i, args.steps) for i in range(args.labs)) if run]
    expect(found, "in no lab two forecasts were near each other")
    good = sum(run["of_best"] <= WITHIN for run in found)
    report("trials", {"labs": found, "within": good, "of": len(found), "worst": max(run["of_best"] for run in found),
                      "first_plan_worst": max(run["first_of_best"] for run in found)})
    print(f"{good} of {len(found)} trials kept a plan within {WITHIN} of the best of those tried; without trials {sum(run['first_of_best'] <= WITHIN for run in found)}")


if __name__ == "__main__":
    sys.exit(main())
