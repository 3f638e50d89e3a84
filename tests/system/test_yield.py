#!/usr/bin/env python3
"""Runs that make room, with real agents, workers and plans: a scavenger yields to another person's job, and another's job to
the owner of the device, each with a checkpoint, and both go on elsewhere with the losses that they have undisturbed. A time
limit ends a job as succeeded so far, and resume goes on from there. A drain waits for its time or for the jobs. With
MOTLEY_LONG a checkpoint takes longer than 120 s."""
import os
import signal
import time

from motley import SLOW, Motley, every_loss, expect, llama_spec, main, pids, poll, two_paced

STEPS = 300
ROWS = 2
LONG = 500  # more seconds than a time limit of 6


def spec(motley, name, steps, **more):
    return llama_spec(motley, name, steps, ROWS, repeat=8, every=10000, **more)


def makes_room(motley, what, ident, job):
    """Job `ident` leaves its device to a job of specification `job` and is done elsewhere."""
    motley.wait_steps(ident, 10)
    device = motley.job(ident)["run"]["ranks"][0]["device"]
    job["placement"]["devices"] = [device]
    other = motley.submit(job, wait=True)["id"]
    yielded = motley.job(ident)
    expect(yielded["attempt"] == 2 and yielded["losses"] == 0 and yielded["state"] in ("running", "starting", "succeeded"),
           f"{what}: {yielded['state']}, attempt {yielded['attempt']}, {yielded['losses']} losses")
    log = motley.run("logs", str(ident))
    expect(f"is to yield its devices to job {other} ({what})" in log, f"{what}: {log}")
    done = motley.wait_state(ident, ("succeeded", "failed", "cancelled"), timeout=300)
    expect([rank["device"] for rank in done["run"]["ranks"]] != [device], f"{what}: it stayed on {device}")
    return every_loss(motley, done, what, STEPS)


def limited(motley, job):
    """A job of 6 s is resumed until it is done; its losses."""
    job["limits"]["time"] = "6s"
    ident, ends = motley.submit(job)["id"], 0
    while True:
        done = motley.wait_state(ident, ("succeeded", "failed", "cancelled"))
        expect(done["state"] == "succeeded" and done["losses"] == 0, f"{done['state']}: {done.get('why')}")
        if done["ended_by"] is None:
            break
        expect(done["ended_by"] == "time_limit" and done["checkpoints"] and "limits.time" in done["why"], done["why"])
        motley.run("extend", str(ident), "--for", "1m", status=1)
        expect("is succeeded" in motley.last_error, motley.last_error)
        motley.run("resume", str(ident))
        ends += 1
    expect(ends >= 1, "the time limit never ended it")
    said = motley.run("watch", str(ident))  # all of its runs, and not the first end alone
    expect(f"step  {LONG}/{LONG}" in said and said.count("job succeeded") == ends + 1, said[-2000:])
    print(f"      the limit of 6 s ended it {ends} times")
    return every_loss(motley, done, "limited", LONG)


def drained(motley, job):
    """A job leaves its device when the drain's time has come, and the other device, drained after its jobs, when it is done."""
    ident = motley.submit(job)["id"]
    motley.wait_steps(ident, 10)
    device = motley.job(ident)["run"]["ranks"][0]["device"]
    other = {"left/paced0": "right/paced0", "right/paced0": "left/paced0"}[device]
    said = motley.run("drain", device, "--by", "1s", "--reason", "a new fan", parse=True)
    expect(said["drained"] and said["drain_why"] == "a new fan" and said["drain_at"], said)
    deadline = time.monotonic() + 60 * SLOW
    while motley.job(ident)["attempt"] < 2:
        expect(time.monotonic() < deadline, f"it did not leave {device}: {motley.job(ident)}")
        poll()
    motley.run("drain", other.split("/")[0], "--after-jobs")
    shown = {one["name"]: one for one in motley.run("devices", parse=True)["devices"]}
    expect(shown[other]["drain_at"] == "after jobs" and shown[device]["drain_why"] == "a new fan", shown)
    done = motley.wait_state(ident, ("succeeded", "failed", "cancelled"))
    expect(done["attempt"] == 2 and done["losses"] == 0 and [r["device"] for r in done["run"]["ranks"]] == [other], done["run"])
    for name in (device, other.split("/")[0]):
        motley.run("undrain", name)
    return every_loss(motley, done, "drained", STEPS)


def saves_late(motley, job, other):
    """The api, which takes checkpoints, stands still for 130 s while `job` is to leave its device to `other`."""
    ident = motley.submit(job)["id"]
    motley.wait_steps(ident, 10)
    other["placement"]["devices"] = [motley.job(ident)["run"]["ranks"][0]["device"]]
    theirs = motley.submit(other)["id"]
    deadline = time.monotonic() + 60 * SLOW
    while "is to yield its devices" not in motley.run("logs", str(ident)):
        expect(time.monotonic() < deadline, "it was never asked to yield")
    api = pids(motley, "api")
    for pid in api:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(130)
    finally:
        for pid in api:
            os.kill(pid, signal.SIGCONT)
    motley.wait_state(theirs, ("succeeded", "failed", "cancelled"), timeout=600)
    done = motley.wait_state(ident, ("succeeded", "failed", "cancelled"), timeout=600)
    expect(done["losses"] == 0, f"{done['losses']} losses: {motley.run('logs', str(ident))}")
    print("      " + "; ".join(line for line in motley.run("logs", str(ident)).splitlines() if "checkpoint" in line or "yield" in line))
    return every_loss(motley, done, "a late checkpoint", job["train"]["steps"])


def runs_yield_and_lose_nothing():
    with Motley(two_paced(sharing={"move": 0.1})) as motley:
        # alike devices and one batch a step: every run computes the same sums
        single = {"kind": "single", "micro_batch_rows": ROWS, "devices": ["left/paced0", "right/paced0"]}
        one = motley.submit(spec(motley, "one", 10, placement={"count": {"most": 1}}), wait=True)
        expect(len(one["run"]["ranks"]) == 1, one["run"])
        long, alone = (every_loss(motley, motley.submit(spec(motley, "alone", steps, placement=single), wait=True), "alone", steps) for steps in (LONG, STEPS))
        expect(limited(motley, spec(motley, "limited", LONG, placement=single)) == long, "the limited job's losses differ")
        expect(drained(motley, spec(motley, "drained", STEPS, placement=single)) == alone, "the drained job's losses differ")
        scavenger = motley.submit(spec(motley, "scavenger", STEPS, placement=single, service="scavenger"))["id"]
        losses = makes_room(motley, "scavenger", scavenger, spec(motley, "normal", 150, placement={"kind": "single"}))
        expect(losses == alone, "the scavenger's losses differ from those that it has undisturbed")
        if "MOTLEY_LONG" in os.environ:
            # under way for longer than the checkpoint takes; a constant rate, so that the first steps are those of a short job
            job, short = (spec(motley, "late", steps, placement=single, service="scavenger") for steps in (100 * STEPS, STEPS))
            job["train"]["schedule"] = short["train"]["schedule"] = "constant"
            undisturbed = every_loss(motley, motley.submit(short, wait=True), "undisturbed", STEPS)
            late = saves_late(motley, job, spec(motley, "next", 150, placement={"kind": "single"}))
            expect(late[:STEPS] == undisturbed, "the losses of the job whose checkpoint was late differ")
        me = motley.run("token", "list", parse=True)["tokens"][0]["user"]
        motley.run("group", "set", "vision", me)
        for device in ("left/paced0", "right/paced0"):
            motley.run("device", "set", device, "--group", "vision")
        motley.run("device", "set", "left/paced0", "--group", "nobody", status=2)
        expect("no such group" in motley.last_error, motley.last_error)
        listed = motley.run("devices", parse=True)["devices"]
        expect([device["group"] for device in listed] == ["vision", "vision"], listed)
        guest = motley.submit(spec(motley, "guest", STEPS, placement=single))["id"]
        losses = makes_room(motley, "owner", guest, spec(motley, "own", 150, placement={"kind": "single"}, account="vision"))
        expect(losses == alone, "the guest's losses differ from those that it has undisturbed")
    return f"{STEPS} losses as undisturbed, twice"


if __name__ == "__main__":
    main(runs_yield_and_lose_nothing)
