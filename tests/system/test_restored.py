#!/usr/bin/env python3
"""PostgreSQL is put back from a backup while everything else has gone on: jobs acknowledged before the backup finish with
the same losses, no id comes again, and what was submitted later is named by the nodes that ran it."""
import contextlib
import glob
import json
import os
import pwd
import subprocess
import time

from motley import Motley, SLOW, expect, llama_spec, main, poll, two_unlike

STEPS = 40


def spec_for(motley, name, steps):
    return llama_spec(motley, name, steps, 32, repeat=8, warmup=1, placement={"kind": "pipeline", "stages": 2, "micro_batch_rows": 8, "move": "never"})


class Database:
    """The private PostgreSQL of a home, by its own tools."""

    def __init__(self, motley):
        self.config = os.path.join(motley.home, "run", "scheduler-1.yaml")
        with open(self.config, encoding="utf-8") as handle:
            self.conninfo = json.load(handle)["postgres"]
        self.dir = dict(part.split("=", 1) for part in self.conninfo.split())["host"]
        self.bin = os.path.dirname(sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))[-1])
        self.user = pwd.getpwuid(os.stat(os.path.join(self.dir, "data")).st_uid).pw_name if os.getuid() == 0 else None
        self.dump = motley.path("backup")

    def tool(self, *words):
        done = subprocess.run([os.path.join(self.bin, words[0]), *words[1:]], capture_output=True, text=True, timeout=60,
                              check=False)
        expect(done.returncode == 0, f"{words[0]}: {done.stderr}")
        return done.stdout

    def backup(self):
        self.tool("pg_dump", "-Fc", "-f", self.dump, "-d", self.conninfo)

    @contextlib.contextmanager
    def running(self):
        """By itself, while Motley is down."""
        server = subprocess.Popen([os.path.join(self.bin, "postgres"), "-D", os.path.join(self.dir, "data"), "-k", self.dir,
                                   "-c", "listen_addresses="], user=self.user, cwd="/", stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 20 * SLOW
            while subprocess.run([os.path.join(self.bin, "pg_isready"), "-q", "-d", self.conninfo], check=False).returncode:
                expect(time.monotonic() < deadline, "PostgreSQL does not answer")
                poll()
            yield
        finally:
            server.send_signal(2)
            server.wait(timeout=30)

    def put_back(self):
        self.tool("psql", "-q", "-d", self.conninfo, "-c", "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        self.tool("pg_restore", "--no-owner", "-d", self.conninfo, self.dump)


def restored(database):
    done = subprocess.run([Motley.program("motley-scheduler"), "--config", database.config, "--restored"],
                          capture_output=True, text=True, timeout=60, check=False)
    expect(done.returncode == 0 and "incarnation" in done.stdout, f"--restored: {done.stdout}{done.stderr}")


def losses(motley, ident, steps):
    lines = motley.metrics(ident)[0]
    expect([m["step"] for m in lines] == list(range(steps)), f"job {ident}: steps {[m['step'] for m in lines]}")
    return [m["loss"] for m in lines]


def jobs_before_the_backup_finish_and_no_id_comes_again():
    # One instruction set: what runs measure may give the restored ones another cut, which must not change a bit.
    with Motley(two_unlike(isa_right="native")) as motley:
        database = Database(motley)
        ended = motley.submit(spec_for(motley, "ended", 5), wait=True)["id"]
        running = motley.submit(spec_for(motley, "running", STEPS))["id"]
        motley.wait_steps(running, 15)
        queued = motley.submit(spec_for(motley, "queued", 5))["id"]
        database.backup()
        expect(motley.wait_state(running, ("succeeded", "failed"))["state"] == "succeeded", "the undisturbed job failed")
        reference = {ended: losses(motley, ended, 5), running: losses(motley, running, STEPS)}
        later = [motley.submit(spec_for(motley, f"later-{i}", 2), wait=True)["id"] for i in range(2)]
        expect(motley.job(queued)["state"] == "succeeded", "the job in the queue did not run")
        before = json.loads(motley.run("nodes", "--json"))["incarnation"]
        motley.run("down")
        with database.running():
            database.put_back()
            restored(database)
        motley.up()
        began = time.monotonic()
        for ident, steps in ((running, STEPS), (queued, 5)):
            job = motley.wait_state(ident, ("succeeded", "failed"), timeout=60)
            expect(job["state"] == "succeeded", f"job {ident}: {job['state']}: {job.get('why')}")
            ours = losses(motley, ident, steps)
            expect(ident not in reference or ours == reference[ident], f"job {ident}: losses differ")
        took = time.monotonic() - began
        expect(motley.job(ended)["state"] == "succeeded" and losses(motley, ended, 5) == reference[ended], "history is lost")
        fresh = motley.submit(spec_for(motley, "fresh", 2), wait=True)["id"]
        expect(fresh > max(later) + 1000, f"id {fresh} after {later}")
        nodes = json.loads(motley.run("nodes", "--json"))
        expect(nodes["incarnation"] > before, f"{nodes['incarnation']} after {before}")
        unknown = {(entry["job"], entry["node"]) for entry in nodes["unknown_jobs"]}
        expect(unknown == {(ident, node) for ident in later for node in ("left", "right")}, f"unknown: {unknown}")
        expect(str(later[0]) in motley.run("nodes"), "motley nodes does not name them")
        motley.run("job", str(later[0]), status=(1, 2, 3))
    return f"the jobs of the backup were done {took:.1f} s after the start"


if __name__ == "__main__":
    main(jobs_before_the_backup_finish_and_no_id_comes_again)
