#!/usr/bin/env python3
"""kill -9 of every kind of process during a job: the job succeeds, with the undisturbed run's losses, and nothing is left."""
import json
import os
import signal

from motley import GOLDEN, SLOW, Motley, expect, golden_spec, main, poll, tokens_rows, two_unlike, Failed
import time

STEPS = 80


def spec_for(motley, name):
    folder = os.path.join(GOLDEN, "llama")
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as handle:
        expected = json.load(handle)
    rows = motley.write_rows("rows.jsonl", tokens_rows(expected["batches"]) * 8)
    return golden_spec(name, folder, rows, 0.005, expected, 32,
                       placement={"kind": "pipeline", "stages": 2, "micro_batch_rows": 8},
                       train={"steps": STEPS, "warmup_steps": 4}, checkpoint={"every_steps": 10},
                       limits={"retries": 5})


def pids(motley, role, leader=None):
    return [p["pid"] for p in motley.processes() if p["role"] == role and (leader is None or p.get("leader") == leader)]


def disturb(motley, kind):
    if kind == "leader":
        victims = pids(motley, "scheduler", leader=True)
    else:
        victims = pids(motley, kind)[:1]
    expect(victims, f"no {kind} to kill")
    for pid in victims:
        os.kill(pid, signal.SIGKILL)


def a_job_survives_the_death_of_any_process():
    config = two_unlike(schedulers=2)
    details = []
    with Motley(config) as motley:
        first = motley.submit(spec_for(motley, "undisturbed"), wait=True, timeout=280)
        expect(first["state"] == "succeeded", f"undisturbed: {first['state']}: {first.get('error')}")
        reference = [m["loss"] for m in motley.metrics(first["id"])[0]]
        expect(len(reference) == STEPS, f"{len(reference)} steps")
        seen = {str(first["id"])}
        for kind in ("api", "leader", "agent", "worker", "redis", "postgres"):
            began = time.monotonic()
            ident = motley.submit(spec_for(motley, f"kill-{kind}"))["id"]
            expect(str(ident) not in seen, f"id {ident} is used again")
            seen.add(str(ident))
            motley.wait_steps(ident, 12)
            disturb(motley, kind)
            deadline = time.monotonic() + 120 * SLOW
            state = None
            while state not in ("succeeded", "failed", "cancelled"):
                expect(time.monotonic() < deadline, f"kill {kind}: job {ident} is {state} after {120 * SLOW:g} s")
                try:
                    state = motley.job(ident)["state"]
                except Failed:
                    state = "no answer"  # the api is being restarted
                poll()
            expect(state == "succeeded", f"kill {kind}: {state}: {motley.job(ident).get('error')}")
            steps = motley.metrics(ident)[0]
            expect([m["step"] for m in steps] == list(range(STEPS)), f"kill {kind}: steps {[m['step'] for m in steps]}")
            expect([m["loss"] for m in steps] == reference, f"kill {kind}: losses differ from the undisturbed run's")
            workers = pids(motley, "worker")
            expect(not workers, f"kill {kind}: workers left over {workers}")
            details.append(f"{kind} {time.monotonic() - began:.1f} s")
            print(details[-1], flush=True)
    return ", ".join(details)


if __name__ == "__main__":
    main(a_job_survives_the_death_of_any_process)
