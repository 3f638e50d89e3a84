#!/usr/bin/env python3
"""A rolling upgrade: schedulers, api and agents are ended in turn as their units end them and started anew, during a job. Its
workers go on, no step is lost or taken twice, and one attempt does it all."""
import os
import signal
import time

from motley import SLOW, Failed, Motley, expect, llama_spec, main, pids, poll, two_unlike

STEPS = 100000  # it is cancelled when enough was seen


def replaced(motley, role, pid):
    """Ended in order; whoever watches it (systemd, or here `motley up`) starts the next."""
    os.kill(pid, signal.SIGUSR2 if role == "agent" else signal.SIGTERM)
    deadline = time.monotonic() + 60 * SLOW
    while time.monotonic() < deadline:
        there = pids(motley, role)
        if pid not in there and len(there) == counts[role]:
            return
        poll()
    raise Failed(f"{role} {pid} was not replaced: {there}")


def counted(motley, ident, count):
    """That many steps more than now, however long the api is away."""
    deadline = time.monotonic() + 60 * SLOW
    target = None
    while time.monotonic() < deadline:
        try:
            have = len(motley.metrics(ident)[0])
            target = have + count if target is None else target
            if have >= target:
                return
        except Failed:
            pass
        poll()
    raise Failed(f"job {ident} does not go on: {motley.job(ident)}")


def a_job_goes_on_while_every_process_is_replaced():
    with Motley(two_unlike(schedulers=2)) as motley:
        spec = llama_spec(motley, "rolling", STEPS, 32, repeat=8, every=STEPS, placement={"kind": "pipeline", "stages": 2, "micro_batch_rows": 8, "move": "never"})
        ident = motley.submit(spec)["id"]
        motley.wait_steps(ident, 3)
        workers = sorted(pids(motley, "worker"))
        for role in ("scheduler", "api", "agent"):
            there = pids(motley, role)
            counts[role] = len(there)
            expect(there, f"no {role}")
            for pid in there:
                replaced(motley, role, pid)
            counted(motley, ident, 5)
        steps = [m["step"] for m in motley.metrics(ident)[0]]
        expect(steps == list(range(len(steps))), f"steps {steps}")
        expect(sorted(pids(motley, "worker")) == workers, "the same workers took all of them")
        expect(not any(m.get("again") for m in motley.metrics(ident)[0]), "no step was taken twice")
        motley.run("cancel", str(ident))
        motley.wait_state(ident, ("cancelled",))
        return f"{len(steps)} steps, {sum(counts.values())} processes replaced"


counts = {}

if __name__ == "__main__":
    main(a_job_goes_on_while_every_process_is_replaced)
