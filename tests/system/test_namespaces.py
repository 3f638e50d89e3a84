#!/usr/bin/env python3
"""Two network namespaces as two machines, 1 Gbit/s between them: the second joins with a token, a job runs split over
both, and each fetched only its part of the model; and the same where a firewall lets nothing in to the second. Needs root,
network namespaces and nft; a visible skip otherwise."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

from motley import BIN, GOLDEN, SOURCE, Motley, expect, golden_spec, largest_relative, main, poll, skip, tokens_rows
from machines import ADDRESSES, Machines, unavailable

LEFT_ADDRESS, RIGHT_ADDRESS = ADDRESSES

def start_right(motley, machines, *words):
    with open(os.path.join(motley.home, "client.json"), encoding="utf-8") as handle:
        address = json.load(handle)["address"]
    log = open(motley.path("right-agent.log"), "a", encoding="utf-8")
    return subprocess.Popen([*machines.on(1), os.path.join(BIN, "motley-agent"), "--api", address, *words, "--home",
                             motley.path("right-home"), "--config", motley.path("right.yaml")], stdout=log, stderr=log)


def join_right(motley, machines):
    """The second machine's agent: joins with a token, in its own namespace. Returns the process."""
    token = motley.run("join-token", parse=True)["token"]
    with open(os.path.join(motley.home, "client.json"), encoding="utf-8") as handle:
        address = json.load(handle)["address"]
    expect(address.startswith(f"https://{LEFT_ADDRESS}:"), f"the api's address is {address}")
    config = motley.write("right.yaml", {"name": "right", "address": RIGHT_ADDRESS,
                                         "devices": [{"kind": "cpu", "threads": 1, "memory": "450MiB", "isa": "avx2"}]})
    agent = start_right(motley, machines, "--join", token)
    deadline = time.monotonic() + 30
    while not any(d["name"] == "right/cpu0" for d in motley.run("devices", parse=True)["devices"]):
        expect(agent.poll() is None and time.monotonic() < deadline,
               "the right agent did not join:\n" + open(motley.path("right-agent.log"), encoding="utf-8").read()[-2000:])
        poll()
    again = subprocess.run([*machines.on(1), os.path.join(BIN, "motley-agent"), "--api", address, "--join", token,
                            "--home", motley.path("third-home"), "--config", config], capture_output=True, text=True, timeout=30)
    expect(again.returncode != 0, "a join token was good twice")
    return agent


def bytes_of(text):
    """Of "14.2 MiB", three digits of it."""
    value, unit = text.split()
    return float(value) * 1024 ** ("B", "KiB", "MiB", "GiB").index(unit)


def real_model_fetched_in_parts(motley):
    """Two steps of SmolLM2 over both machines: each rank's log says how many of the model's bytes came over the wire."""
    done = subprocess.run([os.path.join(SOURCE, "tools", "fetch_smollm2.sh"), os.path.join(SOURCE, ".cache")], cwd=SOURCE,
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return "SKIP of the fetched parts: the model could not be fetched"
    rows = motley.write_rows("real.jsonl", [{"instruction": f"Say {n}.", "input": "", "output": f"{n}."} for n in range(8)])
    job = motley.submit({"name": "parts", "model": done.stdout.strip().splitlines()[-1], "data": {"train": rows, "sequence_tokens": 64},
                         "train": {"batch_rows": 4, "steps": 2},
                         "placement": {"kind": "pipeline", "stages": 2, "micro_batch_rows": 1}}, wait=True)
    expect(job["state"] == "succeeded", f"{job['state']}: {job.get('why')}")
    blocks = {rank["rank"]: rank["blocks"] for rank in job["run"]["plan_answer"]["ranks"]}
    fetched = {}
    for line in motley.lines("logs", str(job["id"])):
        found = re.search(r"read for these blocks, of ([\d.]+ \w+) in its files \(([\d.]+ \w+) over the network", json.dumps(line))
        if found:
            fetched[line["rank"]] = tuple(map(bytes_of, reversed(found.groups())))
    expect(set(fetched) == set(blocks), f"log lines about fetching: {fetched}")
    for rank, (part, whole) in fetched.items():
        # The embedding (28 % of the file) is tied: the first and the last rank both need it. The rest is 30 equal layers; what
        # begins or ends inside a chunk of 4 MiB costs the rest of that chunk.
        layers = min(blocks[rank][1], 31) - max(blocks[rank][0], 1)
        most = (0.29 + 0.71 * layers / 30) * whole + 4 * (4 << 20)
        expect(0 < part <= most, f"rank {rank} with blocks {blocks[rank]} fetched {part:.0f} of {whole:.0f} bytes; it needs {most:.0f}")
    return f"bytes fetched a rank: {sorted(round(part) for part, _ in fetched.values())} for blocks {list(blocks.values())}"


def two_namespaces_train_as_two_machines():
    folder = os.path.join(GOLDEN, "llama")
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as handle:
        expected = json.load(handle)
    config = {"listen": f"{LEFT_ADDRESS}:0", "advertise": LEFT_ADDRESS,
              "agents": [{"name": "left", "address": LEFT_ADDRESS,
                          "devices": [{"kind": "cpu", "threads": 1, "memory": "450MiB", "isa": "native"}]}]}
    agent = None
    with Machines() as machines:  # from here on all of this happens on the left machine
        try:
            with Motley(config) as motley:
                agent = join_right(motley, machines)
                rows = motley.write_rows("rows.jsonl", tokens_rows(expected["batches"]))
                spec = golden_spec("namespaces", folder, rows, expected["lora"]["peak_lr"], expected, 4,
                                   method={"start_from": os.path.join(folder, "adapter_init")},
                                   placement={"kind": "pipeline", "stages": 2, "micro_batch_rows": 1})
                job = motley.submit(spec, wait=True)
                expect(job["state"] == "succeeded", f"{job['state']}: {job.get('why')}")
                steps, _ = motley.metrics(job["id"])
                loss = largest_relative([m["loss"] for m in steps], expected["lora_fp64"]["loss"])
                expect(loss <= 1e-6, f"loss off by {loss:.2e}")
                ranks = job["run"]["ranks"]
                expect({r["node"] for r in ranks} == {"left", "right"}, f"ranks on {[r['node'] for r in ranks]}")
                parts = real_model_fetched_in_parts(motley)
                agent.send_signal(signal.SIGTERM)
                agent.wait(timeout=20)
                agent = None
                return f"loss {loss:.1e}; {parts}"
        finally:
            if agent:
                agent.kill()


def links(motley):
    return {(link["from"], link["to"]): link.get("why") if link.get("unreachable") else "" for link in
            motley.run("links", parse=True)["links"]}


def await_links(motley, question):
    deadline = time.monotonic() + 90
    while not question(found := links(motley)):
        expect(time.monotonic() < deadline, f"links: {found}")
        poll()


def a_machine_behind_a_firewall_trains():
    """Nothing is let in to the right machine, as to one behind NAT. As long as the left one lets it in to its server alone, no
    plan joins the two; once its workers' ports are open, the right one's workers connect to them, whichever rank they have. Where
    they close again, the run that fails for it has the links measured again."""
    folder = os.path.join(GOLDEN, "llama")
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as handle:
        expected = json.load(handle)
    config = {"listen": f"{LEFT_ADDRESS}:18443", "advertise": LEFT_ADDRESS, "redis_port": 18444,
              "agents": [{"name": "left", "address": LEFT_ADDRESS, "listen": "0.0.0.0", "ports": "17000-17003",
                          "devices": [{"kind": "cpu", "threads": 1, "memory": "450MiB", "isa": "native"}]}]}
    agent = None
    with Machines() as machines:
        machines.firewall(1)
        machines.firewall(0, 18443, 18444)
        try:
            with Motley(config) as motley:
                agent = join_right(motley, machines)
                await_links(motley, lambda found: all(found.get(ends) for ends in (("left", "right"), ("right", "left"))))
                expect("cannot be reached" in links(motley)["left", "right"], f"{links(motley)}")
                expect("cannot connect" in motley.run("links"), motley.run("links"))
                rows = motley.write_rows("rows.jsonl", tokens_rows(expected["batches"]))
                spec = golden_spec("firewall", folder, rows, expected["lora"]["peak_lr"], expected, 4,
                                   method={"start_from": os.path.join(folder, "adapter_init")},
                                   placement={"kind": "pipeline", "stages": 2, "micro_batch_rows": 1})
                job = motley.wait_state(motley.submit(spec)["id"], ["failed"])
                expect("cannot connect to each other (motley links)" in job["why"], job["why"])
                agent.send_signal(signal.SIGTERM)
                agent.wait(timeout=20)
                machines.firewall(0, 18443, 18444, "17000-17003")
                agent = start_right(motley, machines)
                await_links(motley, lambda found: found.get(("left", "right")) and found.get(("right", "left")) == "")
                losses = []
                for order in ("left/cpu0", "right/cpu0"), ("right/cpu0", "left/cpu0"):
                    spec["placement"]["devices"] = list(order)
                    job = motley.submit(spec, wait=True)
                    expect(job["state"] == "succeeded" and job["attempt"] == 1, f"{job['state']}: {job.get('why')}")
                    steps, _ = motley.metrics(job["id"])
                    losses.append(largest_relative([m["loss"] for m in steps], expected["lora_fp64"]["loss"]))
                expect(max(losses) <= 1e-6, f"losses off by {losses}")
                if "MOTLEY_EQUALITY" in os.environ: # its run waits a minute for its connections
                    machines.firewall(0, 18443, 18444)
                    ident = motley.submit(spec)["id"]
                    deadline = time.monotonic() + 180
                    while "cannot connect to each other (motley links)" not in (why := motley.job(ident).get("why") or ""):
                        expect(time.monotonic() < deadline, f"a link closed, and its job says: {why}")
                        poll()
                agent.send_signal(signal.SIGTERM)
                agent.wait(timeout=20)
                agent = None
                return f"loss {max(losses):.1e}"
        finally:
            if agent:
                agent.kill()


if __name__ == "__main__":
    reason = unavailable()
    if reason:
        skip(reason)
    main(two_namespaces_train_as_two_machines, *([a_machine_behind_a_firewall_trains] if shutil.which("nft") else []))
