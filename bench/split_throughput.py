#!/usr/bin/env python3
"""Split jobs of several kinds against two separate jobs running at the same time, one on each of two devices, and each beside
what was predicted.

Rounds are interleaved (separate, each kind, separate …); the spread of equal runs is printed beside the ratios. The two
separate jobs are counted only while both run: the faster device's job is given more steps, and what each did within the
common time is interpolated within its steps (alone, either would go faster: the two share the machine's memory). Their own
prediction stands beside theirs: where it is off, the machine has changed since it was measured, and a kind's error is to be
read beside that. Even rows on both devices would at best give twice the slower one's rate, which stands beside it, too. A split's
own simulation, from its recorded instruction times and with links that cost nothing, is printed too. The separate jobs run in a
service of their own, whose devices hold the whole job.
"""
import argparse
import contextlib
import json
import sys
import time
import urllib.request

from harness import Motley, demo_rows, expect, report, smollm2, summary

STEPS = {"left": 3, "right": 2, "split": 2}
SIDES = ("left", "right")
FREE = ("--link", "left:right=100000Gbit/s,0ms", "--link", "right:left=100000Gbit/s,0ms")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("kinds", nargs="*", default=["pipeline"], help="placements, default pipeline")
    parser.add_argument("--rows", type=int, default=64, help="rows of a step, default 64")
    parser.add_argument("--micro-rows", default="1", help="rows of a micro-batch, or auto; default 1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--isa", default="avx2", help="kernels of the second device, default avx2 (the first: native)")
    parser.add_argument("--memory", default="3GiB", help="memory limit of each device for the split jobs, or of both with a comma")
    parser.add_argument("--method", default="lora", choices=("lora", "full"))
    parser.add_argument("--state-only", action="store_true", help="the second device keeps state and takes no rows")
    parser.add_argument("--link", default="none", help="emulated link, as 1Gbit/s:0.5ms; default none")
    return parser.parse_args()


def config(args, memory, linked):
    limits = memory.split(",") if "," in memory else [memory, memory]
    document = {"agents": [{"name": side, "devices": [{"kind": "cpu", "threads": 1, "memory": limit, "isa": isa}]}
                           for side, limit, isa in zip(SIDES, limits, ("native", args.isa))]}
    if linked and args.link != "none":
        rate, latency = args.link.rsplit(":", 1)
        document["links"] = [{"between": list(SIDES), "rate": rate, "latency": latency}]
    return document


def spec(args, train, name, steps, placement):
    micro_rows = args.micro_rows if args.micro_rows == "auto" else int(args.micro_rows)
    return {"name": name, "model": smollm2(), "data": {"train": train, "format": "alpaca", "sequence_tokens": 256, "shuffle": False},
            "method": {"kind": "lora", "dropout": 0.0} if args.method == "lora" else {"kind": "full"},
            "train": {"batch_rows": args.rows, "steps": steps, "learning_rate": 1e-4, "warmup_steps": 1},
            "checkpoint": {"every_steps": 0}, "placement": {"micro_batch_rows": micro_rows, "move": "never", **placement}}


def submit(motley, document):
    return motley.submit(document, name=f"{document['name']}.json")["id"]


def wait(motley, ident):
    job = motley.wait_state(ident, ("succeeded", "failed", "cancelled"), timeout=900)
    expect(job["state"] == "succeeded", f"job {ident}: {job['state']}: {job.get('why')}")
    return job["run"]["plan_answer"]


def steps_of(motley, ident):
    """(begin, end, tokens) of each step, in seconds of the wall clock, by the run's own trace."""
    with open(f"{motley.home}/client.json", encoding="utf-8") as handle:
        client = json.load(handle)
    request = urllib.request.Request(f"{client['address']}/v1/jobs/{ident}/trace",
                                     headers={"Authorization": f"Bearer {client['token']}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        events = [e for e in json.load(answer)["traceEvents"] if e.get("ph") == "X" and e.get("cat") == "train"]
    out = []
    for line in motley.metrics(ident)[0]:
        mine = [e for e in events if e["args"]["step"] == line["step"]]
        expect(mine, f"job {ident}: step {line['step']} was not traced")
        out.append((min(e["ts"] for e in mine) / 1e6, max(e["ts"] + e["dur"] for e in mine) / 1e6, line["tokens"]))
    return out


def rate(steps, begin, end):
    """Tokens/s between two moments, evenly spread within each step."""
    done = sum(tokens * max(0.0, min(e, end) - max(b, begin)) / (e - b) for b, e, tokens in steps)
    return done / (end - begin)


def without_rows(motley, document):
    """The specification with the plan that it gets where the second device computes a thousandth as fast."""
    wait(motley, submit(motley, {**document, "name": "measured-by", "train": {**document["train"], "steps": 1}}))
    measured = motley.run("profile", "export", parse=True)
    tables = motley.write("measured.json", measured)
    cluster = {"nodes": [{"name": device["node"], "devices": [
        {"name": device["name"], "memory_bytes": device["memory_limit_bytes"], "profile": f"{tables}#{device['name']}",
         "speed": 1e-3 if device["node"] == SIDES[1] else 1}]} for device in measured["devices"]],
        "links": {"directed": measured["links"]}}
    path, plan = motley.write("cluster.json", cluster), motley.write("plan.json", {})
    answer = motley.run("plan", motley.write("asked.json", document), "--cluster", path, "--save", plan, "--json", parse=True)
    rows = {rank["device"]: rank["rows"] for rank in answer["ranks"]}
    expect(rows == {f"{SIDES[0]}/cpu0": document["train"]["batch_rows"], f"{SIDES[1]}/cpu0": 0}, f"rows: {rows}")
    return {**document, "placement": {"plan": plan}}


def error(answers, jobs):
    """By how much the predicted seconds of these runs' steps differ from the measured ones."""
    predicted = sum(answer["step_s"] * len(job) for answer, job in zip(answers, jobs))
    return predicted / sum(e - b for job in jobs for b, e, _ in job) - 1


def separate_round(motley, args, train):
    """Tokens/s of each, and the error of their prediction."""
    idents = [submit(motley, spec(args, train, f"alone-{side}", STEPS[side], {"kind": "single", "devices": [f"{side}/cpu0"]}))
              for side in SIDES]
    answers = [wait(motley, ident) for ident in idents]
    jobs = [steps_of(motley, ident) for ident in idents]
    begin, end = max(job[0][0] for job in jobs), min(job[-1][1] for job in jobs)
    return [rate(job, begin, end) for job in jobs], error(answers, jobs)


def split_round(motley, document):
    """Tokens/s, the error of the prediction, and what the simulator makes of the same instructions with free links."""
    ident = submit(motley, document)
    answer = wait(motley, ident)
    steps = steps_of(motley, ident)
    free = motley.run("replay", str(ident), *FREE, parse=True)
    measured = sum(tokens for _, _, tokens in steps) / sum(e - b for b, e, _ in steps)
    return {"tokens_per_s": measured, "error": error([answer], [steps]), "of_free_links": free["changed_s"] / free["recorded_s"],
            "predicted_step_s": answer["step_s"]}


def main():
    args = arguments()
    kinds = args.kinds
    separate, even, of_separate, splits = [], [], [], {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        apart = stack.enter_context(Motley(config(args, "3GiB", False)))
        motley = stack.enter_context(Motley(config(args, args.memory, True)))
        train, _ = demo_rows(motley.base)
        documents = {kind: spec(args, train, f"split-{kind}", STEPS["split"],
                                {"kind": kind, "devices": [f"{side}/cpu0" for side in SIDES], "count": {"least": 2}}) for kind in kinds}
        if args.state_only:
            documents = {kind: without_rows(motley, document) for kind, document in documents.items()}
        for _ in range(args.rounds):
            sides, off = separate_round(apart, args, train)
            separate.append(sides[0] if args.state_only else sum(sides))
            even.append(len(sides) * min(sides))
            of_separate.append(off)
            print(f"separate {sides[0]:.1f} + {sides[1]:.1f} tokens/s, predicted {off:+.1%}", flush=True)
            for kind in kinds:
                one = split_round(motley, documents[kind])
                splits[kind].append(one)
                print(f"  {kind} {one['tokens_per_s']:.1f} tokens/s: {one['tokens_per_s'] / separate[-1]:.3f} of separate, "
                      f"{one['tokens_per_s'] / even[-1]:.2f} of twice the slower; "
                      f"predicted {one['predicted_step_s']:.2f} s a step, {one['error']:+.1%}; "
                      f"{one['of_free_links']:.3f} of its simulation with free links", flush=True)
    for kind in kinds:
        rates = [one["tokens_per_s"] for one in splits[kind]]
        report(f"split_throughput_{kind}_{args.rows}", {
            "rows": args.rows, "micro_rows": args.micro_rows, "method": args.method, "memory": args.memory, "state_only": args.state_only,
            "link": args.link, "isa": args.isa,
            "separate_tokens_per_s": summary(separate), "split_tokens_per_s": summary(rates),
            "ratio": summary([s / a for s, a in zip(rates, separate)]), "spread_of_a_against_a": max(separate) / min(separate) - 1,
            "of_even": summary([s / a for s, a in zip(rates, even)]), "error_of_separate": summary(of_separate), "error": summary([one["error"] for one in splits[kind]]),
            "of_simulation_with_free_links": summary([one["of_free_links"] for one in splits[kind]])})


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
