#!/usr/bin/env python3
"""A person holds a device: no job starts there, one that runs there moves at a checkpoint when a booking begins, the time is
in the ledger, and what cannot be had is refused by name."""
import glob
import json
import math
import os
import signal
import subprocess
import time

from motley import SLOW, Motley, expect, llama_spec, main, poll, two_unlike


def lease(motley, *words, status=0):
    return motley.run("lease", *words, "--json", parse=status == 0, status=status)


def spec(motley, name, steps, **placement):
    return llama_spec(motley, name, steps, 16, repeat=8, every=5, placement=placement)


def wait_until(what, question):
    deadline = time.monotonic() + 60 * SLOW
    while not question():
        expect(time.monotonic() < deadline, what() if callable(what) else what)
        poll()


def a_leased_device_takes_no_job_until_it_is_given_back(motley):
    made = lease(motley, "left/cpu0", "--for", "1h", "--note", "notebook")
    expect(made["active"] and made["device"] == "left/cpu0" and made["note"] == "notebook", made)
    ident = motley.submit(spec(motley, "elsewhere", 5, kind="single"), wait=True)["id"]
    expect([r["device"] for r in motley.job(ident)["run"]["ranks"]] == ["right/cpu0"], "it ran on the leased device")
    waiting = motley.submit(spec(motley, "waits", 5, kind="single", devices=["left/cpu0"]))["id"]
    wait_until("the job does not say why it waits", lambda: "leased by" in (motley.job(waiting).get("why") or ""))
    lease(motley, "left/cpu0", "--for", "1h", status=1)
    expect(motley.last_error.startswith("motley: left/cpu0 is leased by admin") and f"(lease {made['id']})" in motley.last_error, motley.last_error)
    later = lease(motley, "left/cpu0", "--for", "1h", "--in", "2h")
    lease(motley, "extend", str(made["id"]), "--for", "2h", status=1)
    expect("leased to somebody within that time" in motley.last_error and "PostgreSQL" not in motley.last_error, motley.last_error)
    lease(motley, "end", str(later["id"]))
    extended = lease(motley, "extend", str(made["id"]), "--for", "30m")
    expect(extended["ends"] > made["ends"], extended)
    over = lease(motley, "end", str(made["id"]))
    expect(not over["active"], over)
    expect(motley.wait_state(waiting, ("succeeded", "failed"))["state"] == "succeeded", "it did not run after the lease")
    lease(motley, "end", str(made["id"]), status=1)
    expect(f"no lease {made['id']}" in motley.last_error, motley.last_error)


def a_booking_moves_what_runs_there(motley):
    ident = motley.submit(spec(motley, "moves", 100000, kind="single", devices=["left/cpu0", "right/cpu0"]))["id"]
    motley.wait_steps(ident, 10)
    device = motley.job(ident)["run"]["ranks"][0]["device"]
    lease(motley, device, "--for", "1h", status=1)
    expect(f"is held by job {ident}" in motley.last_error, motley.last_error)
    booked = lease(motley, device, "--in", "3s", "--for", "1h")
    expect(not booked["active"], booked)
    wait_until(lambda: f"the job did not move: {motley.job(ident)}", lambda: (motley.job(ident)["run"] or {}).get("ranks", [{}])[0].get("device") not in (None, device))
    job = motley.job(ident)
    expect(job["losses"] == 0 and job["attempt"] == 2, job)
    steps = len(motley.metrics(ident)[0])
    motley.wait_steps(ident, steps + 5)
    an_interrupted_watcher_says_how_to_come_back(motley, ident)
    motley.run("cancel", str(ident))
    last = motley.wait_state(ident, ("cancelled",))["checkpoints"][-1]["step"]
    motley.get(ident, "cancelled")
    expect(f"job {ident} is cancelled, so there is no result: --checkpoint last fetches what it had learnt after {last} steps" in motley.last_error,
           motley.last_error)
    got = motley.get(ident, "cancelled", checkpoint="last")
    expect(os.path.exists(f"{got}/checkpoint-{last}/adapter_model.safetensors") and not motley.last_error, os.listdir(got))
    a_folder_has_the_results_of_one_job(motley, ident, got)
    a_speed_is_that_of_the_run_whose_placement_is_shown(motley, ident)
    done = [step["step"] for step in motley.metrics(ident)[0]]
    expect(done == list(range(len(done))), "a step is missing or there twice")
    listed = motley.run("leases", "--json", parse=True)["leases"]
    expect([(one["device"], one["active"]) for one in listed] == [(device, True)], listed)
    lease(motley, "end", str(booked["id"]))
    return device


def a_folder_has_the_results_of_one_job(motley, ident, got):
    """`got` has a checkpoint and results of job `ident`, and a file of the user's own."""
    motley.write(f"{got}/notes.txt", "mine")
    other = motley.submit(dict(spec(motley, "held", 8), hold=True))["id"]
    motley.run("get", str(other), got, status=1)
    expect(f"{got} holds the results of job {ident} (moves, submitted at " in motley.last_error and "--replace" in motley.last_error, motley.last_error)
    motley.run("run", motley.path("spec.json"), "--out", got, status=1)
    expect(f"{got} holds the results of job {ident} " in motley.last_error and motley.run("jobs", parse=True)["jobs"][0]["id"] == other, "refused before it is submitted")
    motley.run("get", str(other), got, "--replace")
    expect(sorted(os.listdir(got)) == ["fetched.json", "metrics.jsonl", "notes.txt", "samples.jsonl"], os.listdir(got))
    os.remove(f"{got}/fetched.json")
    motley.run("get", str(other), got, "--replace", status=1)
    expect("do not say whose they are" in motley.last_error, motley.last_error)


def a_speed_is_that_of_the_run_whose_placement_is_shown(motley, ident):
    moved, _ = motley.run("compare", str(ident), str(ident), parse=True)["jobs"]
    began = moved["run_start_step"]
    steps = [line for line in motley.metrics(ident)[0] if line["step"] >= max(began, 2)]
    speed = sum(line["tokens"] for line in steps) / sum(line["seconds"] for line in steps)
    expect(moved["runs"] == 2 and began > 0 and math.isclose(moved["tokens_per_s"], speed, rel_tol=1e-9), f"{moved}, not {speed}")
    expect(f"2, from step {began} on" in motley.run("compare", str(ident), str(ident)), "said")
    motley.run("compare", str(ident), status=2)
    expect("usage: motley compare ID ID… (2 to 7 words, not 1)" in motley.last_error, motley.last_error)


def an_interrupted_watcher_says_how_to_come_back(motley, ident):
    with subprocess.Popen([motley.program("motley"), "watch", str(ident), "--home", motley.home], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as watcher:
        expect(watcher.stdout.readline(), "the view tells something")
        watcher.send_signal(signal.SIGINT)
        _, said = watcher.communicate(timeout=60 * SLOW)
    expect(watcher.returncode == -signal.SIGINT, watcher.returncode)
    expect(f"job {ident} goes on; motley watch {ident} " in said and f"motley get {ident} DIR" in said and f"motley cancel {ident}" in said, said)
    expect(motley.job(ident)["state"] == "running", "it goes on")


def a_withdrawn_booking_holds_no_job_up(motley):
    """A job that would run into a booking waits for its end, or until the booking is withdrawn."""
    booked = lease(motley, "left/cpu0", "--in", "1h", "--for", "1h")
    ident = motley.submit(spec(motley, "endless", 100000000, kind="single", devices=["left/cpu0"]))["id"]
    wait_until(lambda: f"it does not wait for the booking: {motley.job(ident)}",
               lambda: motley.job(ident).get("wait") == "interval")
    lease(motley, "end", str(booked["id"]))
    expect(motley.run("leases", "--json", parse=True)["leases"] == [], "the booking is listed")
    motley.wait_steps(ident, 1)
    every_thread_of_a_worker_is_confined(motley)
    motley.run("cancel", str(ident))
    motley.wait_state(ident, ("cancelled",))


def every_thread_of_a_worker_is_confined(motley):
    """The only worker runs on left. The agent of right is told not to confine its workers, and its node says so."""
    states = glob.glob(f"{motley.home}/**/run/*/state.json", recursive=True)
    with open(max(states, key=os.path.getmtime), encoding="utf-8") as handle:
        pid = json.load(handle)["pid"]
    for path in glob.glob(f"/proc/{pid}/task/*/status"):
        with open(path, encoding="utf-8") as handle:
            status = handle.read()
        expect("NoNewPrivs:\t1" in status and (SLOW > 1 or "Seccomp:\t2" in status), f"{path}: {status}")
    nodes = motley.run("nodes", "--json", parse=True)["nodes"]
    disk = os.statvfs(motley.home)
    for node in nodes:
        expect(node["disk_bytes"] == disk.f_blocks * disk.f_frsize and 0 < node["disk_free_bytes"] <= node["disk_bytes"], node)
    said = {node["name"]: node["why"] or "" for node in nodes}
    expect("sandbox: off" in said["right"] and "sandbox: off" not in said["left"], said)


def a_job_that_nobody_told_of_is_found(motley):
    """An api may die between the commit of a submit and its waking of the scheduler."""
    ident = motley.submit(dict(spec(motley, "untold", 1), hold=True))["id"]
    time.sleep(2)  # what the submit itself woke has ended by then; if not, this test only sees less
    motley.sql(f"UPDATE jobs SET state = 'queued' WHERE id = {ident}")
    wait_until("an idle scheduler does not look at the queue", lambda: motley.job(ident)["state"] not in ("held", "queued"))
    wait_until("it does not end", lambda: motley.job(ident)["state"] == "succeeded")


def nonsense_is_refused_by_name(motley):
    for words, said in ((("nowhere/cpu0", "--for", "1h"), "there is no device"), (("left/cpu0", "--for", "1s"), "must be a minute"),
                        (("left/cpu0",), "--for"), (("left/cpu0", "--for", "1h", "--at", "2020-01-31T08:00:00Z"), "is past: it is "),
                        (("left/cpu0", "--for", "1h", "--in", "100000h"), "ahead"), (("left/cpu0", "--for", "soon"), "no time"),
                        (("left/cpu0", "--for", "1h", "--in", "1h", "--at", "2h"), "not both"), (("left/cpu0", "--for", "1h", "--hours", "2"), "not both")):
        motley.run("lease", *words, status=(1, 2))
        expect(said in motley.last_error, f"{words}: {motley.last_error}")


def devices_are_leased_booked_and_given_back():
    config = two_unlike()
    config["agents"][1]["sandbox"] = "off"
    with Motley(config) as motley:
        a_leased_device_takes_no_job_until_it_is_given_back(motley)
        a_withdrawn_booking_holds_no_job_up(motley)
        a_job_that_nobody_told_of_is_found(motley)
        nonsense_is_refused_by_name(motley)
        device = a_booking_moves_what_runs_there(motley)
        # every lease has one closed row in the ledger, until it ended
        wait_until("the ledger is not closed", lambda: ledger(motley) == 2)
    return f"a job left {device}"


def ledger(motley):
    """The number of leases whose interval is in the ledger: from when the job had left the device."""
    return int(motley.sql("SELECT count(*) FROM ledger g JOIN leases l ON g.assignment = -l.id "
                          "WHERE l.settled AND g.begins BETWEEN l.begins AND l.begins + interval '30 s' AND g.ends = l.ends AND g.closed IS NOT NULL"))


if __name__ == "__main__":
    main(devices_are_leased_booked_and_given_back)
