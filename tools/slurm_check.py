#!/usr/bin/env python3
"""Motley beside a real Slurm (docs/run-a-lab/slurm.md): an agent in an allocation, and `motley slurm`.

`make slurm-check`, as root: it installs Debian's slurm-wlm and munge, and starts munged, slurmctld and two slurmd of one
machine as its own children in a scratch folder, which it ends. Status 77 where that cannot be.
"""
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("MOTLEY_SOURCE", SOURCE)
os.environ.setdefault("MOTLEY_BIN", os.path.join(SOURCE, "build", "bin"))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, os.path.join(SOURCE, "tests", "system"))
from motley import BIN, Motley, expect, llama_spec, main, poll, skip  # noqa: E402

CONF = """
ClusterName=scratch
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1
NodeName=fake[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{second}] CPUs=1 RealMemory=1000
PartitionName=all Nodes=fake[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count):
    """Numbers in a row that nobody listens on."""
    for first in range(26000, 30000, count):
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(contextlib.closing(socket.socket())).bind(("127.0.0.1", port))
                return range(first, first + count)
            except OSError:
                continue
    raise OSError("no ports are free")


def install():
    if os.geteuid() != 0:
        skip("slurmd needs root")
    if shutil.which("slurmctld") and shutil.which("munged"):
        return
    words = ["apt-get", "install", "-y", "--no-install-recommends", "slurm-wlm", "munge"]
    if not shutil.which("apt-get") or subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode != 0:
        skip("slurm-wlm and munge cannot be installed here")


class Slurm:
    """A Slurm of two nodes on this machine; a context manager."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="motley-slurm-")
        os.chmod(self.folder, 0o755)
        self.children = []
        ports = free_ports(3)
        with open(self.path("munge.key"), "xb") as handle:
            os.fchmod(handle.fileno(), 0o400)
            handle.write(os.urandom(1024))
        with open(self.path("slurm.conf"), "w", encoding="utf-8") as handle:
            handle.write(CONF.format(folder=self.folder, host=socket.gethostname().split(".")[0], controller=ports[0],
                                     first=ports[1], second=ports[2]))
        os.makedirs(self.path("state"))
        os.chdir(self.folder)  # where sbatch leaves what batch scripts print
        os.environ.update(SLURM_CONF=self.path("slurm.conf"), HOME=self.folder, PATH=f"{BIN}:{os.environ['PATH']}")
        try:
            self.start("munged", "--foreground", "--force", f"--socket={self.path('munge.sock')}", f"--key-file={self.path('munge.key')}",
                       f"--log-file={self.path('munged.log')}", f"--pid-file={self.path('munged.pid')}", f"--seed-file={self.path('seed')}")
            self.start("slurmctld", "-D")
            for node in ("fake1", "fake2"):
                self.start("slurmd", "-D", "-N", node)
            until(lambda: self.ask("sinfo", "-h", "-o", "%D %t") == "2 idle", "two idle nodes of Slurm", 60)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind, value, trace):
        for child in reversed(self.children):
            child.terminate()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, *words):
        with open(self.path(f"{words[0]}.out"), "ab") as out:
            self.children.append(subprocess.Popen(words, stdout=out, stderr=out))

    @staticmethod
    def ask(*words, good=True):
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        expect(not good or done.returncode == 0, f"{words}: {done.stderr}")
        return done.stdout.strip()

    def queue(self):
        """{name: state} of what waits or runs in Slurm."""
        return dict(line.split("|") for line in self.ask("squeue", "-h", "-o", "%j|%T").splitlines())


def until(claim, what, seconds=60):
    """Waits until the claim holds."""
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            expect(False, f"no {what} within {seconds} s")
        poll()


def template(grace):
    """The documented batch script for this server, and its key where it says that it is."""
    with open(os.path.join(SOURCE, "docs", "run-a-lab", "slurm.md"), encoding="utf-8") as handle:
        text = re.search(r"```file motley.sbatch\n(.*?)```", handle.read(), re.DOTALL).group(1)
    with open(os.path.join(motley.home, "client.json"), encoding="utf-8") as handle:
        address = re.search(r'"address": *"([^"]*)"', handle.read()).group(1)
    for old, new in (("https://first.lab:8443", address), ("grace: 2m", f"grace: {grace}"), ("#SBATCH --gres=gpu:1\n", "")):
        expect(text.count(old) == 1, f"the documented script has no {old}")
        text = text.replace(old, new)
    with open(slurm.path("motley.sbatch"), "w", encoding="utf-8") as handle:
        handle.write(text)
    os.makedirs(slurm.path("motley-slurm"), mode=0o700, exist_ok=True)
    with open(slurm.path("motley-slurm/join-key"), "w", encoding="utf-8") as handle:
        handle.write(motley.run("join-token", "--node", "slurm-*", "--uses", "8", "--expires", "30d"))
    return slurm.path("motley.sbatch")


def nodes():
    return {node["name"]: node["state"] for node in motley.run("nodes", parse=True)["nodes"]}


def start(name, steps):
    """Submits a job on which no rounding grows to much."""
    spec = llama_spec(motley, name, steps, 2, every=steps)
    spec["train"]["learning_rate"] = 1e-5
    return motley.submit(spec)["id"]


def losses(ident, steps):
    found = motley.metrics(ident)[0]
    expect([m["step"] for m in found] == list(range(len(found))), f"job {ident}: not each step once: {len(found)} steps")
    return [m["loss"] for m in found[:steps]]


def a_job_outlives_the_allocation_that_it_ran_in():
    """What it then computes is what it computes undisturbed. Slurm's signal comes up to a minute early, so before or after the
    node begins to leave by itself."""
    script = template("80s")
    motley.run("drain", "own")
    slurm.ask("sbatch", "--time=3", "--signal=B:TERM@80", f"--chdir={slurm.folder}", script)
    until(lambda: nodes().get("slurm-1") == "alive", "node of the allocation")
    lent = start("lent", 50000)
    motley.wait_steps(lent, 10)
    until(lambda: nodes()["slurm-1"] == "leaving", "leaving before the end", 130)
    motley.run("undrain", "own")
    until(lambda: "slurm-1" not in slurm.queue(), "end of the allocation", 130)
    until(lambda: nodes()["slurm-1"] == "left", "node that has left")
    until(lambda: motley.job(lent)["state"] == "running", "job that goes on")
    begins = [int(step) for step in motley.sql(f"SELECT start_step FROM runs WHERE job = {lent} ORDER BY attempt").split()]
    expect(len(begins) == 2 and begins[1] > 10 and motley.job(lent)["losses"] == 0, f"{begins}")
    motley.wait_steps(lent, begins[1] + 100)
    motley.run("cancel", str(lent))
    alone = start("alone", 50000)
    motley.wait_steps(alone, begins[1] + 100, 240)
    motley.run("cancel", str(alone))
    worst = max(abs(a - b) for a, b in zip(losses(lent, begins[1] + 100), losses(alone, begins[1] + 100)))
    expect(worst < 1e-3, f"losses differ by {worst}")
    return f"it went on with step {begins[1]}, losses differ by at most {worst:.1e}"


def bridge(*words, status=0):
    return motley.run("slurm", *words, "--name", "slurm", status=status)


def what_cannot_be_is_refused():
    bridge(slurm.path("none.sbatch"), "--once", status=2)
    expect("none.sbatch" in motley.last_error, motley.last_error)
    motley.as_user(motley.run("token", "make", "--user", "blind", "--scopes", "jobs:read").strip(), "slurm", slurm.path("motley.sbatch"), "--once", status=6)
    path = os.environ["PATH"]
    os.environ["PATH"] = BIN
    try:
        bridge(slurm.path("motley.sbatch"), "--once", status=2)
    finally:
        os.environ["PATH"] = path
    expect("no squeue here" in motley.last_error, motley.last_error)
    expect(bridge(slurm.path("motley.sbatch"), "--once") == "" and slurm.queue() == {}, "nothing waits")


def machines_come_while_jobs_wait_and_go_when_nothing_runs_there():
    script = template("60s")
    words = (script, "--at-most", "2", "--time", "10m", "--idle", "6s")
    motley.run("drain", "own")
    jobs = [start(f"wants-{i}", 400) for i in range(3)]
    until(lambda: all(motley.job(ident)["wait"] in ("absent", "devices", "reserved") for ident in jobs), "jobs that wait for devices")
    first = bridge(*words, "--once")
    expect([line.split()[2] for line in first.splitlines()] == ["slurm-1:", "slurm-2:"], first)
    with subprocess.Popen([os.path.join(BIN, "motley"), "slurm", *words, "--every", "1s", "--home", motley.home], stdout=subprocess.PIPE, text=True) as running:
        until(lambda: nodes().get("slurm-2") == "alive", "second node")
        expect(set(slurm.queue()) == {"slurm-1", "slurm-2"}, f"{slurm.queue()}")
        bridge(*words, "--once", status=1)
        expect("another motley slurm" in motley.last_error, motley.last_error)
        running.kill()
        said = running.stdout.read()
    expect(said == "", said)
    with subprocess.Popen([os.path.join(BIN, "motley"), "slurm", *words, "--every", "1s", "--home", motley.home], stdout=subprocess.PIPE, text=True) as running:
        for ident in jobs:
            expect(motley.wait_state(ident, ("succeeded", "failed"))["state"] == "succeeded", f"{motley.job(ident)}")
            expect(set(slurm.queue()) <= {"slurm-1", "slurm-2"}, f"{slurm.queue()}")
        until(lambda: slurm.queue() == {}, "allocations given back", 90)
        running.kill()
        said = running.stdout.read()
    expect([re.sub(r".* (slurm-.): .* (is given back), .*", r"\1 \2", line) for line in sorted(said.splitlines(), key=lambda line: line.split()[2])]
           == ["slurm-1 is given back", "slurm-2 is given back"], said)
    until(lambda: nodes()["slurm-1"] == nodes()["slurm-2"] == "left", "nodes that have left")
    return said.splitlines()[0]


def what_has_not_begun_is_cancelled_and_what_fails_is_not_asked_for_at_once():
    slurm.ask("sbatch", "--exclusive", "--nodes=2", "--job-name=others", "--output=/dev/null", "--wrap", "sleep 300")
    until(lambda: slurm.queue() == {"others": "RUNNING"}, "a full Slurm")
    ident = start("changes-its-mind", 400)
    until(lambda: motley.job(ident)["wait"] == "absent", "a job that waits")
    bridge(slurm.path("motley.sbatch"), "--once")
    expect(slurm.queue() == {"others": "RUNNING", "slurm-1": "PENDING"}, f"{slurm.queue()}")
    print(slurm.ask("squeue", "--noheader", "--format=%i|%T|%j|%k"))
    motley.run("cancel", str(ident))
    said = bridge(slurm.path("motley.sbatch"), "--once")
    expect("was cancelled, as no job waits any more" in said and slurm.queue() == {"others": "RUNNING"}, f"{said} {slurm.queue()}")
    slurm.ask("scancel", "--name=others")
    until(lambda: slurm.queue() == {}, "an empty Slurm")
    with open(slurm.path("bad.sbatch"), "x", encoding="utf-8") as handle:
        handle.write("#!/bin/bash\nexit 1\n")
    ident = start("waits", 400)
    until(lambda: motley.job(ident)["wait"] == "absent", "a job that waits")
    bridge(slurm.path("bad.sbatch"), "--once")
    until(lambda: slurm.queue() == {}, "an allocation that fails")
    said = bridge(slurm.path("bad.sbatch"), "--once")
    expect("is gone, as it ended before its agent joined" in said and len(said.splitlines()) == 1 and slurm.queue() == {}, said)
    motley.run("cancel", str(ident))
    return said.strip()


if __name__ == "__main__":
    install()
    with Slurm() as slurm, Motley({"sharing": {"move": "5s"}, "agents": [{"name": "own", "devices": [{"kind": "cpu", "threads": 1, "memory": "450MiB"}]}]}) as motley:
        main(a_job_outlives_the_allocation_that_it_ran_in, what_cannot_be_is_refused,
             machines_come_while_jobs_wait_and_go_when_nothing_runs_there,
             what_has_not_begun_is_cancelled_and_what_fails_is_not_asked_for_at_once)
