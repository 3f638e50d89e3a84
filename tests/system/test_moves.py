#!/usr/bin/env python3
"""Jobs move by what their own ranks measure, with real agents and workers: a device slowed down by stopping and continuing
its process is left when that pays, and no step is lost. And jobs that do not move: a run is repeated on its own plan."""
import contextlib
import json
import os
import signal
import threading
import time

from motley import SLOW, Failed, Motley, expect, llama_spec, main, poll, two_paced, two_unlike

SLICE_S = 0.1  # of several steps: what a paced device sleeps of one goes on while it stands still


class Slowed:
    """The workers of one node stand still for half of the time: SIGSTOP and SIGCONT by turns. A context manager."""

    def __init__(self, motley, node):
        self.words = f"{motley.home}/agents/{node}/".encode()
        self.ends, self.pids = threading.Event(), []
        self.thread = threading.Thread(target=self.turns)

    def workers(self):
        """Pids of the node's workers, those that measure profiles among them."""
        found = []
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit():
                    with open(f"/proc/{entry}/cmdline", "rb") as handle:
                        words = handle.read()
                    if b"motley-worker" in words.split(b"\0")[0] and self.words in words:
                        found.append(int(entry))
        return found

    def tell(self, number):
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def turns(self):
        while not self.ends.is_set():
            self.pids = self.workers()
            self.tell(signal.SIGSTOP)
            time.sleep(SLICE_S)
            self.tell(signal.SIGCONT)
            self.ends.wait(SLICE_S)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self.ends.set()
        self.thread.join()
        self.tell(signal.SIGCONT)


def moves(motley, ident):
    """The verdicts about moves, as the job's log has them."""
    return [line["move"] for line in motley.lines("logs", str(ident)) if "move" in line]


def wait_attempt(motley, ident, attempt, timeout=90):
    deadline = time.monotonic() + timeout * SLOW
    while time.monotonic() < deadline:
        job = motley.job(ident)
        if job["attempt"] >= attempt and job["state"] == "running":
            return job
        poll()
    raise Failed(f"attempt {job['attempt']} and {job['state']} after {timeout} s: {motley.run('logs', str(ident))}")


def cancelled_without_a_gap(motley, ident):
    motley.run("cancel", str(ident))
    job = motley.wait_state(ident, ("cancelled",))
    steps, _ = motley.metrics(ident)
    expect([step["step"] for step in steps] == list(range(len(steps))), "every step once")
    expect(job["losses"] == 0, f"losses: {job['losses']}")
    return len(steps)


def a_device_slowed_to_half_is_left():
    """On paced devices, whose times are given: what else the machine computes slows them far less than it does the test."""
    with Motley(two_paced()) as motley:
        ident = motley.submit(llama_spec(motley, "slowed", 100000, 4, repeat=8, every=1000, placement={"kind": "single"}))["id"]
        motley.wait_steps(ident, 20)
        first = motley.job(ident)["run"]["ranks"][0]
        with Slowed(motley, first["node"]):
            job = wait_attempt(motley, ident, 2)
        now = job["run"]["ranks"][0]["device"]
        move = moves(motley, ident)[-1]
        expect(now != first["device"], f"it left {first['device']}: {move}")
        expect(move["verdict"] == "move" and move["old"]["devices"] == [first["device"]] and move["new"]["devices"] == [now], move)
        expect(first["device"] in move["cause"] and move["saves_s"] > move["costs_s"] and move["gain"] > 0.05, move)
        steps = cancelled_without_a_gap(motley, ident)
        # What the run measured is what the next job of that shape is planned with.
        ident = motley.submit(llama_spec(motley, "next", 3, 16, repeat=8, placement={"kind": "single"}))["id"]
        job = motley.wait_state(ident, ("succeeded",))
        expect(job["run"]["ranks"][0]["device"] == now, f"the next job is on {job['run']['ranks'][0]['device']}")
        return f"{steps} steps, {move['cause']}; {move['words']}"


def a_run_is_repeated_on_its_own_plan():
    with Motley(two_unlike()) as motley:
        def spec(name, placement, **changes):
            return llama_spec(motley, name, 8, 16, repeat=8, placement=placement, **changes)
        first = motley.submit(spec("first", {"kind": "pipeline", "micro_batch_rows": 1}), wait=True)["id"]  # slow: nobody chooses it freely
        plan = os.path.join(motley.get(first, "first"), "plan.json")
        again = motley.run("submit", motley.write("again.json", spec("again", {})), "--wait", "--plan", plan, parse=True)["id"]
        by_key = motley.submit(spec("by-key", {"plan": plan}), wait=True, name="key.json")["id"]
        free = motley.submit(spec("free", {}), wait=True, name="free.json")["id"]
        losses = {ident: [step["loss"] for step in motley.metrics(ident)[0]] for ident in (first, again, by_key)}
        expect(losses[again] == losses[first] and losses[by_key] == losses[first], f"to the bit: {losses}")
        answers = {ident: motley.job(ident)["run"]["plan_answer"] for ident in (first, again, free)}
        expect(answers[again]["placement"] == "pipeline" == answers[first]["placement"], answers[again]["placement"])
        expect([r["device"] for r in answers[again]["ranks"]] == [r["device"] for r in answers[first]["ranks"]], "the same devices")
        expect(answers[free]["digest"] != answers[first]["digest"], "left to itself it would have another plan")
        with open(plan, encoding="utf-8") as handle:
            wrong = json.load(handle)["plan"]
        wrong["ranks"][0]["device"] = "nowhere/cpu0"
        for made, words in ((wrong, "placement.plan"), ({"ranks": 3}, "placement.plan"), ([], "placement.plan")):
            motley.run("submit", motley.write("wrong.json", spec("wrong", {"plan": motley.write("wrong-plan.json", made)})), status=(1, 2, 4))
            expect(words in motley.last_error, motley.last_error)
        other = dict(spec("other", {"plan": plan}))
        other["train"] = dict(other["train"], batch_rows=8)
        motley.run("submit", motley.write("other.json", other), status=(1, 2, 4))
        expect("placement.plan" in motley.last_error and "batch" in motley.last_error, motley.last_error)
        return motley.last_error.strip()


if __name__ == "__main__":
    main(a_run_is_repeated_on_its_own_plan, a_device_slowed_to_half_is_left)
