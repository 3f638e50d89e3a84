#!/usr/bin/env python3
"""The cluster's CA is exchanged for another one by `motley ca`, under a job: no node
joins again, ranks of both CAs work together meanwhile, no step is lost, and in the end the old CA is trusted by nobody."""
import contextlib
import os
import signal
import socket
import subprocess

from motley import SLOW, expect, llama_spec, main
from servers import PACED, Lab, page_block, wait_for

STEPS, EVERY = 100000, 20  # it is cancelled when all was seen


def two_stages(name, device, steps, **more):
    """On one device of each node."""
    return llama_spec(lab, name, steps, 2, repeat=8, retries=0, **more, placement={
        "kind": "pipeline", "stages": 2, "micro_batch_rows": 1, "move": "never", "devices": [f"{node}/{device}" for node in NODES]})


def certificate(node):
    return os.path.join(lab.path(node), "tls", "node.crt")


def is_by(node, ca):
    """Whether the node's present certificate is signed by the one CA in this file."""
    return subprocess.run(["openssl", "verify", "-CAfile", ca, certificate(node)], capture_output=True, check=False).returncode == 0


def cas_of(node):
    with open(os.path.join(lab.path(node), "tls", "ca.crt"), encoding="ascii") as handle:
        return handle.read().count("BEGIN CERTIFICATE")


def take(step, *services):
    """A step of the page."""
    text = page_block(f"motley ca {step}")
    for name, value in {"/etc/motley/ca.crt": lab.ca.cert, "/etc/motley-signer/ca.key": lab.ca.key, "/etc/motley/api.crt": lab.server_files[0],
                        "/etc/motley/redis.crt": lab.redis_files[0]}.items():
        text = text.replace(name, value)
    env = {**os.environ, "PATH": f"{os.path.dirname(lab.program('motley'))}:{os.environ['PATH']}", "MOTLEY_HOME": lab.home}

    def type_it(text):
        return subprocess.run(["bash", "-euc", text], capture_output=True, text=True, timeout=60, check=False, env=env)
    done = type_it(text)
    if step != "begin":
        expect(done.returncode != 0 and "wait for 20 more days" in done.stderr, f"agents have had no time: {done.stdout}{done.stderr}")
        done = type_it(text.rstrip() + " --now\n")
    expect(done.returncode == 0, f"{text}: {done.stdout}{done.stderr}")
    restart(lab.signer, *lab.apis)
    for i in (0, 1):
        wait_for(lambda i=i: reached(i), f"api {i + 1} is back", 30 * SLOW)


def restart_redis():
    """Until agents have it again. One that is refused meanwhile, as its user is not there yet, renews its certificate, too."""
    restart(*lab.redis, *lab.schedulers)
    wait_for(lambda: any(all(f"user=agent-{node} " in redis.cli("CLIENT", "LIST") for node in NODES) for redis in lab.redis), "Redis is back",
             60 * SLOW)


def restart(*services):
    for service in services:
        service.stop()
        service.start()


def renew(*nodes):
    """At once, as an agent does that starts with another address of the api; its workers run on."""
    for node in nodes:
        agent = lab.agents[node]
        words = [word for word in agent.words if word not in ("--join-file", "/dev/stdin")]
        place = words.index("--api") + 1
        words[place] = lab.url(1) if words[place] == lab.url(0) else lab.url(0)
        agent.words = tuple(words)
        agent.stop(signal.SIGUSR2)
        agent.start()


def reached(i):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", lab.api_ports[i]), timeout=5):
        return True
    return False


def second_of(bundle):
    """The second CA of a file, in a file of its own."""
    with open(bundle, encoding="ascii") as handle:
        return lab.write("second.crt", handle.read().split("-----END CERTIFICATE-----\n")[1] + "-----END CERTIFICATE-----\n")


def a_job_runs_while_the_ca_is_exchanged():
    ident = lab.submit(two_stages("runs on", "paced0", STEPS, every=EVERY))["id"]
    lab.wait_steps(ident, 2)
    old = lab.write("old.crt", open(lab.ca.cert, encoding="ascii").read())
    take("begin")
    restart_redis()
    renew(*NODES)
    new = second_of(lab.ca.cert)
    wait_for(lambda: all(cas_of(node) == 2 for node in NODES), "agents trust both", 60 * SLOW)
    expect(all(is_by(node, old) for node in NODES), "the old one signs")
    take("switch")
    renew("left")
    wait_for(lambda: is_by("left", new), "an agent has a certificate of the new CA", 60 * SLOW)
    across = lab.submit(two_stages("across both", "paced1", 3), wait=True)
    expect(is_by("right", old), "the other one's is of the old CA")
    expect(across["state"] == "succeeded", f"ranks of both CAs work together: {across.get('why')}")
    restart_redis()
    renew("right")
    wait_for(lambda: is_by("right", new), "both have one", 60 * SLOW)
    take("finish")
    restart_redis()
    renew(*NODES)
    wait_for(lambda: all(cas_of(node) == 1 for node in NODES), "agents drop the old one", 60 * SLOW)
    expect(not any(is_by(node, old) for node in NODES), "nobody is of the old CA")
    job = lab.job(ident)
    expect(job["state"] == "running", f"the job was to outlast all of it: {job['state']}: {job.get('why')}")
    lab.wait_steps(ident, len(lab.metrics(ident)[0]) + EVERY + 1)  # and to store a checkpoint
    lab.run("cancel", str(ident))
    job = lab.wait_state(ident, ("cancelled", "failed"), timeout=240)
    expect((job["state"], job["attempt"]) == ("cancelled", 1), f"{job['state']}, attempt {job['attempt']}: {job.get('why')}")
    steps = [m["step"] for m in lab.metrics(ident)[0]]
    expect(steps == list(range(len(steps))), f"each step once: {steps}")
    expect(int(lab.sql("SELECT max(generation) FROM nodes")) == 1, "nobody joined again")
    after = lab.submit(two_stages("afterwards", "paced1", 3), wait=True)
    expect(after["state"] == "succeeded", after.get("why"))


if __name__ == "__main__":
    NODES = ("left", "right")
    with Lab(NODES, [PACED, PACED]) as lab:
        main(a_job_runs_while_the_ca_is_exchanged)
