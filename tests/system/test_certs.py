#!/usr/bin/env python3
"""Certificates of nodes: renewed while jobs run, refused once the node is removed, and no use to a peer that is not of the run."""
import contextlib
import os
import re
import socket
import ssl
import struct
import subprocess
import threading
import time

from motley import SLOW, Failed, Motley, expect, llama_spec, main, poll, with_workers_in_view

STEPS = 100  # a run of some seconds, so that what is done to it is done while it runs
NODES = ("left", "right", "third")


def config():
    agents = [{"name": name, "devices": [{"kind": "cpu", "threads": 1, "memory": "450MiB", "isa": "avx2"}]} for name in NODES]
    return {"agents": agents, "tls": True, "certificates": "40s"}


def spec_for(motley, name):
    return llama_spec(motley, name, STEPS, 32, repeat=8, retries=5, placement={"kind": "pipeline", "stages": 2, "micro_batch_rows": 8, "move": "never"})


def within(seconds, what, question):
    began = time.monotonic()
    while not question():
        expect(time.monotonic() - began < seconds * SLOW, f"{what} within {seconds} s")
        poll()
    return time.monotonic() - began


def nodes_of(motley, ident):
    return {device["node"] for device in motley.run("devices", parse=True)["devices"] if device["job"] == ident}


def certificate_path(motley, node):
    return os.path.join(motley.home, "agents", node, "tls", "node.crt")


def certificate(motley, node):
    with open(certificate_path(motley, node), encoding="ascii") as handle:
        return handle.read()


def identity(motley, node):
    return subprocess.run(["openssl", "x509", "-in", certificate_path(motley, node), "-noout", "-ext", "subjectAltName"],
                          capture_output=True, text=True, check=True).stdout


def agent_log(motley, node):
    with open(os.path.join(motley.home, "logs", f"agent-{node}.log"), encoding="utf-8") as handle:
        return handle.read()


def losses(motley, ident):
    steps = motley.metrics(ident)[0]
    expect([m["step"] for m in steps] == list(range(STEPS)), f"steps {[m['step'] for m in steps]}")
    return [m["loss"] for m in steps]


def undisturbed(motley):
    job = motley.submit(spec_for(motley, "undisturbed"), wait=True)
    expect(job["state"] == "succeeded", f"{job['state']}: {job.get('error')}")
    return losses(motley, job["id"])


def finish(ident, what, attempt=1):
    try:
        job = motley.wait_state(ident, ("succeeded", "failed", "cancelled"), timeout=120)
    except Failed as error:
        raise Failed(f"{what}: {error}: {motley.job(ident).get('why')}") from error
    expect(job["state"] == "succeeded", f"{what}: {job['state']}: {job.get('error')}")
    expect(losses(motley, ident) == reference, f"{what}: losses differ from the undisturbed run's")
    expect(job["attempt"] == attempt, f"{what}: attempt {job['attempt']}, not {attempt}")


class Stranger:
    """A machine with a real node's certificate, or with none, that knocks at every port of the run's workers."""

    def __init__(self, motley, folders):
        self.contexts = [self.context(motley, folder) for folder in folders]
        self.home = motley.home.encode()
        self.known = {}
        self.stop = threading.Event()
        self.knocks = self.shaken = 0
        self.held = []
        self.thread = threading.Thread(target=self.run)

    @staticmethod
    def context(motley, folder):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(os.path.join(motley.home, "ca", "ca.crt"))
        context.load_cert_chain(os.path.join(folder, "node.crt"), os.path.join(folder, "node.key"))
        return context

    def is_ours(self, pid):
        """A worker of this home? Each process is looked at once: others may be tested on this machine."""
        if pid not in self.known:
            with open(f"/proc/{pid}/cmdline", "rb") as handle:
                words = handle.read()
            if not words or b"motley-agent" in words:
                return False  # perhaps between fork and exec
            self.known[pid] = b"motley-worker" in words and self.home in words
        return self.known[pid]

    def ports(self):
        """Where the run's workers listen, for as long as they wait for each other."""
        inodes = set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if self.is_ours(pid):
                    for descriptor in os.listdir(f"/proc/{pid}/fd"):
                        inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{descriptor}")))
        with open("/proc/net/tcp", encoding="ascii") as handle:
            rows = [line.split() for line in handle.readlines()[1:]]
        return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes]

    def knock(self, port):
        """Stall, speak nonsense, and greet as a rank of the run with wrong epochs and absurd lengths."""
        self.knocks += 1
        for context in self.contexts:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as plain:
                plain.settimeout(2)
                with context.wrap_socket(plain) as secure:
                    self.shaken += 1
                    secure.sendall(struct.pack(">4sIQQIII", b"MTLY", 1, 1, 2 ** 63, 0, 1, 1) + b"\xff" * 4096)
                    secure.recv(64)
        for words in (b"", b"\x16\x03\x01\xff\xff" + b"\xff" * 600, b"GET / HTTP/1.1\r\n\r\n"):
            silent = socket.create_connection(("127.0.0.1", port), timeout=2)
            silent.sendall(words)
            self.held.append(silent)

    def run(self):
        while not self.stop.is_set():
            for port in self.ports():
                with contextlib.suppress(OSError):
                    self.knock(port)
            while len(self.held) > 400:
                self.held.pop(0).close()
            time.sleep(0.001)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(30)
        for sock in self.held:
            sock.close()


def copy_of(motley, node):
    """What a thief took: a node's certificate and key as they are now."""
    folder = motley.path(f"stolen-{node}")
    os.mkdir(folder)
    for name in ("node.crt", "node.key"):
        with open(os.path.join(motley.home, "agents", node, "tls", name), "rb") as source, \
                open(os.path.join(folder, name), "wb") as target:
            target.write(source.read())
    return folder


def agents_port_admits(motley, node, folder):
    """Does this node's agent answer a measurement of whoever has that certificate?"""
    nodes = motley.run("nodes", parse=True)["nodes"]
    address = [entry["address"] for entry in nodes if entry["name"] == node][0]
    host, port = address.rsplit(":", 1)
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as plain:
        plain.settimeout(5)
        with Stranger.context(motley, folder).wrap_socket(plain) as secure:
            secure.sendall(b"p" * 64)
            return len(secure.recv(64)) > 0
    return False


def certificates_are_renewed_while_jobs_run():
    renewed = 0
    while renewed == 0:  # they are due every 27 s, a job takes a few
        within(60, "certificates are nearly due",
               lambda: time.time() - max(os.stat(certificate_path(motley, node)).st_mtime for node in NODES) > 22)
        ident = motley.submit(spec_for(motley, "renewed"))["id"]
        motley.wait_steps(ident, 2)
        nodes = nodes_of(motley, ident)
        before = {node: certificate(motley, node) for node in nodes}
        within(60, "the job ends", lambda: motley.job(ident)["state"] != "running" or
               all(certificate(motley, node) != before[node] for node in nodes))
        if motley.job(ident)["state"] == "running":
            renewed = len(nodes)
        finish(ident, "renewed")
    for node in NODES:
        expect(f"URI:motley:agent:{node}:1\n" in identity(motley, node), identity(motley, node))
        expect("certificate_renewed" in agent_log(motley, node), f"{node} says so")


def a_stranger_with_a_nodes_certificate_cannot_disturb_a_run():
    motley.run("drain", "third/cpu0")
    try:
        with Stranger(motley, [os.path.join(motley.home, "agents", "third", "tls")]) as stranger:
            for turn in range(10):  # workers listen for a moment, which a busy machine may sleep through
                finish(motley.submit(spec_for(motley, f"knocked at {turn}"))["id"], "knocked at")
                if stranger.knocks:
                    break
    finally:
        motley.run("undrain", "third/cpu0")
    expect(stranger.knocks > 0, "nobody was knocked at")
    return f"{stranger.knocks} knocks, {stranger.shaken} handshakes"


def a_removed_node_is_refused_within_ten_seconds_and_its_jobs_go_on():
    before = certificate(motley, "left")
    within(60, "fresh certificates", lambda: certificate(motley, "left") != before)
    ident = motley.submit(spec_for(motley, "loses a node"))["id"]
    motley.wait_steps(ident, 3)
    gone = sorted(nodes_of(motley, ident))[0]
    other = sorted(set(NODES) - {gone})[0]
    stolen = copy_of(motley, gone)
    expect(agents_port_admits(motley, other, stolen), "a node is admitted while it is one")
    began = time.monotonic()
    motley.run("node", "remove", gone)
    within(10, "its agent says so and ends", lambda: "node_removed" in agent_log(motley, gone) and
           not [p for p in motley.processes() if p["role"] == "agent" and p["name"] == gone and p["pid"]])
    within(10, "its certificate is refused", lambda: not agents_port_admits(motley, other, stolen))
    refused = time.monotonic() - began
    subprocess.run(["openssl", "x509", "-in", os.path.join(stolen, "node.crt"), "-noout", "-checkend", "0"], check=True)
    expect(gone not in nodes_of(motley, ident), "nothing runs there")
    with Stranger(motley, [stolen]):
        finish(ident, "loses a node", attempt=2)
    expect(agent_log(motley, gone).count("agent_started") == 1, "it does not try again and again")
    motley.run("node", "remove", gone, status=1)
    expect(gone in motley.last_error, motley.last_error)
    said = motley.run("up", "--config", motley.config, timeout=90) + motley.last_error  # who was removed stays so
    expect(f"node {gone} was removed from the cluster" in said and f"{len(NODES) - 1} agents are ready" in said, said)
    expect(gone not in [node["name"] for node in motley.run("nodes", parse=True)["nodes"]], "not back by itself")
    return f"refused after {refused:.1f} s"


if __name__ == "__main__":
    with Motley(with_workers_in_view(config())) as motley:
        reference = undisturbed(motley)
        main(certificates_are_renewed_while_jobs_run, a_stranger_with_a_nodes_certificate_cannot_disturb_a_run,
             a_removed_node_is_refused_within_ten_seconds_and_its_jobs_go_on)
