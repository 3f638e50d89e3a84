#!/usr/bin/env python3
"""A job whose devices were measured beside a busy neighbour, and the same job with quiet ones: what the profiles and the plan say
of it, and the seconds of a step after twenty steps, by which the run's own times should have put it on an equally good plan.

The neighbour is a busy loop a hardware thread, from the start of the service until the job's first step.
  bench/busy_profile.py [rounds, default 1] [steps, default 40]
"""
import contextlib
import os
import statistics
import subprocess
import sys

from harness import Motley, demo_rows, expect, report, smollm2

CONFIG = {"agents": [{"name": side, "devices": [{"kind": "cpu", "threads": 1, "memory": "3GiB", "isa": isa}]}
                     for side, isa in (("left", "native"), ("right", "sse42"))]}


@contextlib.contextmanager
def neighbour(busy):
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() if busy else 0)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(busy, steps):
    with Motley(CONFIG) as motley:
        train, _ = demo_rows(motley.base)
        spec = {"name": "busy" if busy else "quiet", "model": smollm2(),
                "data": {"train": train, "format": "alpaca", "sequence_tokens": 256, "shuffle": False},
                "train": {"batch_rows": 8, "steps": steps, "learning_rate": 1e-4}, "checkpoint": {"every_steps": 0}}
        with neighbour(busy):
            ident = motley.submit(spec, name="job.json")["id"]
            motley.wait_steps(ident, 1)
        job = motley.wait_state(ident, ("succeeded", "failed", "cancelled"), timeout=1200)
        expect(job["state"] == "succeeded", f"{job['state']}: {job.get('why')}")
        seconds = [step["seconds"] for step in motley.metrics(ident)[0]]
        noise = {profile["device"]: profile.get("noise", 0) for profile in motley.run("profile", "export", parse=True)["profiles"]}
        out = {"noise": noise, "uncertainty": job["run"]["plan_answer"]["uncertainty"], "attempts": job["attempt"],
               "plan": job["run"]["plan_answer"]["placement"], "first_s": statistics.median(seconds[1:6]),
               "after_20_s": statistics.median(seconds[20:])}
        moves = [line["move"] for line in motley.lines("logs", str(ident)) if "move" in line]
        out["moves"] = [f"{move['verdict']}: {move['words']}" for move in moves]
    print(out, flush=True)
    return out


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    pairs = [(run(False, steps), run(True, steps)) for _ in range(rounds)]
    report("busy_profile", {"busy_of_quiet": [busy["after_20_s"] / quiet["after_20_s"] for quiet, busy in pairs], "each": pairs})


if __name__ == "__main__":
    main()
