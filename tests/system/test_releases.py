#!/usr/bin/env python3
"""Programs of releases whose protocols differ by one work together; beyond that each side refuses the other by name, with an
exit status that its unit does not restart on."""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request

from motley import SLOW, SOURCE, Motley, expect, llama_spec, main, of_protocol, poll, two_unlike

REFUSED = re.compile(r"is of release \S+ \(protocol \d+\) and this program of release \S+ \(protocol \d+\)")


def protocol_of(motley):
    said = subprocess.run([motley.program("motley"), "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.fullmatch(r"motley \d+\.\d+\.\d+ \(protocol (\d+)\)\n", said).group(1))


def asked(motley, value):
    """The status, problem and header of an answer to a stranger with this header."""
    with open(os.path.join(motley.home, "client.json"), encoding="utf-8") as handle:
        client = json.load(handle)
    request = urllib.request.Request(client["address"] + "/v1/whoami", headers={"Authorization": "Bearer " + client["token"],
                                                                                 "X-Motley-Release": value})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, {}, answer.headers["X-Motley-Release"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), error.headers["X-Motley-Release"]


def the_api_and_its_client(motley, ours):
    for protocol, status in ((ours, 0), (ours + 1, 0), (ours - 1, 0), (ours + 2, 8), (ours + 40, 8)):
        done = subprocess.run([of_protocol(motley, "motley", protocol), "nodes", "--home", motley.home], capture_output=True,
                              text=True, timeout=60, check=False)
        expect(done.returncode == status, f"protocol {protocol}: status {done.returncode}: {done.stderr}")
        expect((status == 0) == (REFUSED.search(done.stderr) is None), done.stderr)
    for value, status in ((f"0.9.0/{ours + 1}", 200), (f"0.9.0/{ours + 2}", 426), ("nonsense", 200), (f"0.9.0/{ours + 2}x", 200), ("", 200)):
        got, problem, header = asked(motley, value)
        expect(got == status, f"{value}: {got} {problem}")
        expect(header.endswith(f"/{ours}"), f"{value}: the answer says {header}")
        expect(status == 200 or (problem["code"] == "release" and "0.9.0" in problem["detail"]), problem)


class Agent:
    """A third machine's agent, which speaks some protocol."""

    def __init__(self, motley):
        self.motley, self.home = motley, motley.path("third")
        self.config = motley.write("third.yaml", {"name": "third", "devices": [{"kind": "cpu", "threads": 1, "memory": "450MiB"}]})
        with open(os.path.join(motley.home, "client.json"), encoding="utf-8") as handle:
            self.api = json.load(handle)["address"]
        self.token = motley.run("join-token", "--node", "third").split()[0]
        motley.run("join-token", "--revoke", "--uses", "2", status=2)
        expect("takes --node alone" in motley.last_error, motley.last_error)

    def start(self, protocol, api=None):
        environment = {**os.environ, "MOTLEY_JOIN": self.token}
        return subprocess.Popen([of_protocol(self.motley, "motley-agent", protocol), "--api", api or self.api, "--home", self.home, "--config", self.config],
                                env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def is_refused(self, protocol):
        agent = self.start(protocol)
        said = agent.communicate(timeout=30 * SLOW)[1]
        expect(agent.returncode == 5 and REFUSED.search(said), f"protocol {protocol}: status {agent.returncode}: {said}")

    @contextlib.contextmanager
    def running(self, protocol, api=None):
        agent = self.start(protocol, api)
        try:
            yield
        finally:
            agent.send_signal(signal.SIGUSR2)
            agent.communicate(timeout=30 * SLOW)

    def row(self):
        return next((node for node in self.motley.run("nodes", parse=True)["nodes"] if node["name"] == "third"), {})

    def await_row(self, what, question):
        deadline = time.monotonic() + 30 * SLOW
        while not question(self.row()):
            expect(time.monotonic() < deadline, f"{what}: {self.row()}")
            poll()


def the_server_and_an_agent(motley, ours):
    agent = Agent(motley)
    agent.is_refused(ours + 2)
    expect(not os.path.exists(os.path.join(agent.home, "agent.json")), "a refused agent joined")
    for protocol in (ours + 1, ours - 1, ours):
        with agent.running(protocol):
            agent.await_row(f"protocol {protocol}", lambda row, p=protocol: row.get("state") == "alive" and row["protocol"] == p and not row["lacking"])
    agent.is_refused(ours + 2)
    # Its api is away, so it has nobody to ask; the scheduler sees what it is and gives it nothing.
    with agent.running(ours + 2, api="http://127.0.0.1:1"):
        agent.await_row("too new", lambda row: row.get("protocol") == ours + 2 and REFUSED.search(row["lacking"] or ""))
        expect(REFUSED.search(agent.row()["why"]), agent.row())
        spec = llama_spec(motley, "there", 2, 8, placement={"devices": ["third/cpu0"]})
        ident = motley.submit(spec)["id"]
        deadline = time.monotonic() + 30 * SLOW
        while not REFUSED.search(motley.run("why", str(ident))):
            expect(time.monotonic() < deadline, motley.run("why", str(ident)))
            poll()
        expect(motley.job(ident)["state"] == "queued", motley.job(ident))
    with agent.running(ours):
        job = motley.wait_state(ident, ("succeeded", "failed"))
        expect(job["state"] == "succeeded", job.get("why"))


def restarts_prevented(unit):
    with open(os.path.join(SOURCE, "deploy", unit), encoding="utf-8") as handle:
        return set(re.search(r"^RestartPreventExitStatus=(.*)$", handle.read(), re.M).group(1).split())


def a_newer_database(motley):
    config = os.path.join(motley.home, "run", "scheduler-1.yaml")
    standby = subprocess.Popen([motley.program("motley-scheduler"), "--config", config], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    expect(any("redis_connected" in line for line in standby.stderr), "a scheduler that stands by")
    motley.sql("INSERT INTO motley_migrations (number, name, digest) VALUES (999, 'of_tomorrow', 'x')")
    said = standby.communicate(timeout=60 * SLOW)[1]
    expect(standby.returncode == 5 and "stepping down" in said, f"a scheduler that stood by: status {standby.returncode}: {said}")
    with open(os.path.join(motley.home, "logs", "scheduler-1.log"), encoding="utf-8") as log:
        deadline = time.monotonic() + 60 * SLOW
        while "stepping down" not in log.read():
            expect(time.monotonic() < deadline, "the leader stayed")
            poll()
    for program, file in (("motley-api", "api.yaml"), ("motley-scheduler", "scheduler-1.yaml")):
        config = os.path.join(motley.home, "run", file)
        for words in ([], ["--migrate"]):
            done = subprocess.run([motley.program(program), "--config", config, *words], capture_output=True, text=True, timeout=60, check=False)
            expect(done.returncode == 5, f"{program} {words}: status {done.returncode}: {done.stdout}{done.stderr}")
    motley.run("down")
    motley.run("up", "--config", motley.config, status=8)
    expect("of_tomorrow" in motley.last_error, motley.last_error)


def releases_know_one_another():
    with Motley(two_unlike()) as motley:
        ours = protocol_of(motley)
        the_api_and_its_client(motley, ours)
        the_server_and_an_agent(motley, ours)
        a_newer_database(motley)
        shutil.rmtree(os.path.join(motley.home, "logs"))
    expect(restarts_prevented("motley-agent.service") == {"4", "5"}, "the agent's unit")
    expect(restarts_prevented("motley-api.service") == restarts_prevented("motley-scheduler@.service") == {"5"}, "the server's units")
    expect(restarts_prevented("motley.service") == {"8"}, "motley.service")
    return f"protocol {ours}"


if __name__ == "__main__":
    main(releases_know_one_another)
