#!/usr/bin/env python3
"""`motley doctor` finds what is wrong with a server, with a machine that has an agent, and with a node that the server knows:
each fault is a sentence that names the thing and what to do, the exit status says whether there was one, and it is silent
again once the fault is mended."""
import json
import os
import resource
import signal
import subprocess
import time

from motley import SLOW, Motley, expect, main, pids, poll, two_unlike


def faults(motley, *words):
    """The sentences, after a check that the exit status and the plain answer say the same."""
    found = motley.run("doctor", *words, parse=True, status=(0, 1))["faults"]
    plain = motley.run("doctor", *words, status=1 if found else 0)
    expect(plain.splitlines() == (found or ["no fault found"]), f"{plain!r} beside {found}")
    return found


def await_faults(motley, words, what, question):
    deadline = time.monotonic() + 90 * SLOW
    while not question(found := json.loads(motley.run("doctor", *words, "--json", status=(0, 1)) or '{"faults": []}')["faults"]):
        expect(time.monotonic() < deadline, f"{what}: {found}")
        poll()
    return found


def one(found, *words):
    """The only fault, which has these words."""
    expect(len(found) == 1 and all(word in found[0] for word in words), f"{words}: {found}")


class Agent:
    """A third machine's agent, started with limits and settings of its own."""

    def __init__(self, motley, config):
        self.motley, self.home = motley, motley.path("third")
        self.config = motley.write(f"third-{config['devices'][0]['threads']}.yaml", config)
        with open(os.path.join(motley.home, "client.json"), encoding="utf-8") as handle:
            self.api = json.load(handle)["address"]
        self.token = motley.run("join-token", "--node", "third").split()[0]
        self.process = None

    def start(self, files):
        command = [self.motley.program("motley-agent"), "--api", self.api, "--home", self.home, "--config", self.config]
        self.process = subprocess.Popen(command, env={**os.environ, "MOTLEY_JOIN": self.token}, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL,
                                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))

    def stop(self):
        self.process.send_signal(signal.SIGUSR2)
        self.process.wait(timeout=30 * SLOW)

    def doctor(self, files=8192):
        done = subprocess.run([self.motley.program("motley-agent"), "--doctor", "--home", self.home, "--config", self.config],
                              capture_output=True, text=True, timeout=120 * SLOW, check=False,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
        expect(done.returncode == (1 if done.stdout else 0), f"status {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout.splitlines()


def an_agents_machine(motley):
    agent = Agent(motley, {"name": "third", "devices": [{"kind": "cpu", "threads": 1, "memory": "450MiB"}]})
    one(agent.doctor(), "has not joined", "motley join-token")
    agent.start(1024)
    # The links between the three are measured meanwhile.
    found = await_faults(motley, ["third"], "a low limit", lambda found: len(found) == 1 and "open files" in found[0])
    one(found, "node third", "1024", "LimitNOFILE=")
    agent.stop()
    agent.start(8192)
    await_faults(motley, ["third"], "mended", lambda found: found == [])
    expect(agent.doctor() == [], agent.doctor())
    one(agent.doctor(files=1000), "open files is 1000", "ulimit -n")
    many = Agent(motley, {"name": "third", "devices": [{"kind": "cpu", "threads": 1000, "memory": "450MiB"}]})
    one(many.doctor(), "third/cpu0 computes with 1000 threads", "lower its `threads`")
    expect(faults(motley, "--agent", agent.home, "--config", agent.config) == [], motley.run("doctor", status=(0, 1)))
    # The api is away, then Redis alone.
    path = os.path.join(agent.home, "agent.json")
    with open(path, encoding="utf-8") as handle:
        identity = json.load(handle)
    for change, words in (({"api": "http://127.0.0.1:1"}, ("the api does not take this node", "127.0.0.1:1")),
                          ({"redis": {**identity["redis"], "address": "127.0.0.1:1"}}, ("Redis at 127.0.0.1:1 is not reached", "open that port"))):
        with open(path, "w", encoding="utf-8") as handle:
            json.dump({**identity, **change}, handle)
        one(agent.doctor(), *words)
    with open(path, "w", encoding="utf-8") as handle:
        json.dump(identity, handle)
    agent.stop()
    await_faults(motley, ["third"], "an agent that does not run", lambda found: any("third is unreachable" in text for text in found))


def a_server(motley):
    await_faults(motley, [], "a fresh server", lambda found: found == [])
    motley.run("drain", "left", "--reason", "new fan")
    await_faults(motley, ["left"], "a drained node", lambda found: any("new fan" in text and "motley undrain" in text for text in found))
    motley.run("undrain", "left")
    expect(faults(motley, "left") == [], "undrained")
    motley.run("doctor", "nobody", status=1)
    expect("no node nobody" in motley.last_error, motley.last_error)
    agent = next(p["pid"] for p in motley.processes() if p["role"] == "agent" and p["name"] == "right")
    os.kill(agent, signal.SIGSTOP)
    await_faults(motley, [], "an agent that hangs", lambda found: any("node right is unreachable" in text for text in found))
    os.kill(agent, signal.SIGCONT)
    await_faults(motley, [], "an agent that goes on", lambda found: found == [])


def a_service_that_dies(motley):
    for _ in range(3):
        for pid in pids(motley, "scheduler"):
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 20 * SLOW
        while not pids(motley, "scheduler"):
            expect(time.monotonic() < deadline, "the scheduler is not started again")
            poll()
    await_faults(motley, [], "a service that dies", lambda found: any("scheduler-1" in text and "died 3 times" in text for text in found))


def faults_are_named_and_mended():
    with Motley(two_unlike()) as motley:
        a_server(motley)
        an_agents_machine(motley)
        a_service_that_dies(motley)
        motley.run("down")
        found = faults(motley)
        expect(any("nothing runs in" in text and "motley up" in text for text in found), found)
        os.rename(os.path.join(motley.home, "ca"), motley.path("ca"))
        found = faults(motley)
        expect(any("server.crt" in text for text in found), found)
    return "server, machine and node"


if __name__ == "__main__":
    main(faults_are_named_and_mended)
