#!/usr/bin/env python3
"""Through the whole service on emulated GPUs, tiny models give PyTorch's numbers: alone, split, as replicas, beside a CPU;
cards that are lost, lack memory or throttle cost what they must, and not the job."""
import json
import os
import time
import urllib.request

from chaos import Api
from motley import GOLDEN, SLOW, Motley, expect, golden_spec, largest_relative, llama_spec, main, poll, tokens_rows

LOSS = 2e-5  # relative, to float64: what any split of one model may cost
TOKENS = 40   # the longest row has as many, and emulated cards are measured with as many as rows may have

CONFIG = {"agents": [
    {"name": "left", "throttle_window": "1s", "devices": [{"kind": "emulated", "memory": "256MiB", "isa": "warp32", "like": "v100"}]},
    {"name": "right", "throttle_window": "1s", "devices": [{"kind": "emulated", "memory": "256MiB", "isa": "warp64", "like": "v100"},
                                  {"kind": "cpu", "threads": 1, "memory": "450MiB"},
                                  {"kind": "emulated", "memory": "256MiB", "isa": "warp32", "like": "nobody's card"}]},
]}
CARDS = ["left/emulated0", "right/emulated0"]
TOGETHER = ["right/emulated0", "right/emulated2"]  # write into each other's memory

CASES = [  # model, method, placement, the run it must equal
    ("llama", "lora", {"kind": "single", "devices": [CARDS[0]]}, "lora_fp64"),
    ("llama", "lora", {"kind": "pipeline", "stages": 2, "micro_batch_rows": 1, "devices": [CARDS[1], "right/cpu1"]}, "lora_fp64"),
    ("mixtral", "lora", {"kind": "pipeline", "stages": 2, "micro_batch_rows": 2, "devices": TOGETHER}, "lora_fp64"),
    # beside engine/gpu_golden
    *([("llama", "lora", {"kind": "data", "devices": CARDS}, "lora_fp64"), ("gemma2", "full", {"kind": "single", "devices": [CARDS[1]]}, "full_fp64")] if "MOTLEY_EQUALITY" in os.environ else []),
]
AGAIN = 1  # this case runs twice


def run_case(motley, model, method, placement, run, plan=None):
    """Runs a case where 'placement' says or, again, on the plan of an earlier run; returns its error, losses and job."""
    folder = os.path.join(GOLDEN, model)
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as handle:
        expected = json.load(handle)
    rows = motley.write_rows(f"{model}.jsonl", tokens_rows(expected["batches"]))
    changes = {"placement": {"plan": plan} if plan else placement, "data": {"sequence_tokens": TOKENS}, "method": {"start_from": os.path.join(folder, "adapter_init")}}
    spec = golden_spec(f"{model}-{placement['kind']}", folder, rows, expected[method]["peak_lr"], expected,
                       len(expected["batches"][0]["ids"]), **changes)
    if method == "full":
        spec["method"] = {"kind": "full"}
        spec["train"]["weight_decay"] = expected["full"]["weight_decay"]
    job = motley.submit(spec, wait=True)
    expect(job["state"] == "succeeded", f"{model} {placement}: {job['state']}: {job.get('why')}")
    used = sorted(rank["device"] for rank in job["run"]["ranks"])
    expect(used == sorted(placement["devices"]), f"{model} {placement}: ran on {used}")
    losses = [m["loss"] for m in motley.metrics(job["id"])[0]]
    apart = largest_relative(losses, expected[run]["loss"])
    expect(apart <= LOSS, f"{model} {placement}: loss off by {apart:.2e}")
    within = motley.run("logs", str(job["id"])).count("is reached within the node")
    attempts = len(Api(motley).get(f"/v1/jobs/{job['id']}/runs")["runs"])  # on a busy machine a job may have begun twice
    wanted = 2 * attempts if placement["devices"] == TOGETHER else 0
    expect(within == wanted, f"{model} {placement}: {within} ranks wrote into another's memory in {attempts} attempts")
    return apart, losses, job["id"]


def losses_are_pytorchs_on_emulated_gpus(motley):
    said, losses, jobs = [], [], []
    for model, method, placement, run in CASES:
        apart, made, job = run_case(motley, model, method, placement, run)
        losses.append(made)
        jobs.append(job)
        said.append(f"{model} {method} {placement['kind']} on {len(placement['devices'])}: {apart:.1e}")
    plan = os.path.join(motley.get(jobs[AGAIN], "again"), "plan.json")
    expect(run_case(motley, *CASES[AGAIN], plan)[1] == losses[AGAIN], "two runs of one plan differ in loss")
    return "; ".join(said)


def the_catalogue_is_compared_with_what_was_measured(motley):
    seen = device(motley, CARDS[0])["catalogue"]
    expect(seen["entry"] == "v100" and 0 < seen["ratio"] < 0.1, f"an emulated v100: {seen}")
    expect(abs(seen["flops_per_s"] / seen["estimated_flops_per_s"] / seen["ratio"] - 1) < 1e-9, f"{seen}")
    expect("of v100 in the catalogue" in motley.run("devices"), motley.run("devices"))
    expect(device(motley, TOGETHER[1])["catalogue"] is None, "a card that is not in the catalogue was compared")
    tables = motley.path("tables")
    motley.run("profile", "export", CARDS[0], "--out", tables)
    with open(tables, encoding="utf-8") as handle:
        expect('"entry":"v100"' in handle.read().replace(" ", ""), "tables travel without it")
    return f"an emulated v100 is {seen['ratio']:.1e} of one"


def until(what, condition, timeout=60, told=lambda: ""):
    deadline = time.monotonic() + timeout * SLOW
    while not condition():
        late = time.monotonic() >= deadline
        expect(not late, f"never came: {what}\n{told() if late else ''}")
        poll()


def device(motley, name):
    return next(d for d in motley.run("devices", parse=True)["devices"] if d["name"] == name)


def every_step_is_there(motley, job, count):
    steps = [m["step"] for m in motley.metrics(job["id"])[0]]
    expect(sorted(set(steps)) == list(range(count)), f"steps {steps}")


def a_card_that_is_lost_twice_is_drained(motley):
    """Each worker's card falls off its bus at its 1,300th launch: the job goes on from its checkpoints when somebody says
    that the card may work again."""
    motley.write("faults", "lost=1300")
    ident = motley.submit(llama_spec(motley, "lost", 8, 4, every=2, retries=20, data={"sequence_tokens": TOKENS},
                                     placement={"devices": CARDS[:1], "micro_batch_rows": 1}))["id"]
    until("it is drained", lambda: device(motley, CARDS[0])["drained"], 60)
    motley.write("faults", "")
    until("why it waits", lambda: "drained: 2 of its workers ended within a day" in motley.run("why", str(ident)))
    said = motley.run("devices")
    expect(f"motley undrain {CARDS[0]}" in said and "fell off its bus" in said, said)
    motley.run("undrain", CARDS[0])
    job = motley.wait_state(ident, ("succeeded", "failed"))
    expect(job["state"] == "succeeded" and job["attempt"] == 3, f"{job['state']} at attempt {job['attempt']}: {job.get('why')}")
    every_step_is_there(motley, job, 8)
    expect(device(motley, CARDS[0])["drain_why"] is None, "still drained")
    return "drained after 2 losses"


def a_card_without_memory_is_tried_again(motley):
    motley.write("faults", "nomem=3")
    ident = motley.submit(llama_spec(motley, "no-memory", 2, 4, every=2, retries=20, data={"sequence_tokens": TOKENS}, placement={"devices": CARDS[:1]}))["id"]
    # The worker that the agent then tries has no memory either, so nothing starts there meanwhile.
    until("it is said", lambda: "it cannot compute" in (device(motley, CARDS[0])["lacks"] or ""))
    motley.write("faults", "")
    job = motley.wait_state(ident, ("succeeded", "failed"))
    expect(job["state"] == "succeeded", f"{job['state']}: {job.get('why')}")
    every_step_is_there(motley, job, 2)
    with open(os.path.join(motley.home, "client.json"), encoding="utf-8") as handle:
        client = json.load(handle)
    request = urllib.request.Request(f"{client['address']}/v1/jobs/{ident}/runs", headers={"Authorization": f"Bearer {client['token']}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        codes = [rank["code"] for run in json.load(answer)["runs"] for rank in run["ranks"]]
    expect(sorted(set(codes), key=str) == [None, "no-memory"], codes)
    expect(not device(motley, CARDS[0])["drained"], "a lack of memory is no fault of the card")
    return f"{job['attempt']} attempts without memory"


def planned_s(motley, spec):
    """By profiles and heat alone: without what runs beside other tests measured of the devices, and taught of such plans."""
    for _ in range(20):
        motley.sql("DELETE FROM device_speeds")
        answer = motley.run("plan", spec, parse=True)
        if not motley.sql("SELECT 1 FROM device_speeds"): # none came meanwhile
            return answer["step_s"] / answer.get("corrected", {}).get("times", 1)
    raise AssertionError("the running job's speeds came in between 20 times")


def a_throttled_card_is_left(motley):
    spec = llama_spec(motley, "hot", 40000, 4, repeat=10, every=1000, data={"sequence_tokens": TOKENS}, placement={"kind": "single", "devices": CARDS})
    ident = motley.submit(spec)["id"]
    motley.wait_steps(ident, 2)
    hot = motley.job(ident)["run"]["ranks"][0]["device"]
    alone = motley.write("alone.json", dict(spec, placement={"kind": "single", "devices": [hot]}))
    cool_s = planned_s(motley, alone)
    # So slow that it is left whatever the other card's times became: it was measured beside other tests, and the run's own steps,
    # which the emulated card computes as fast as before, correct the times of this one alone.
    motley.write("health", {hot: {"temperature_c": 93, "clock_khz": 100000, "clock_max_khz": 1000000, "throttle": ["thermal"],
                                  "power_w": 250, "power_limit_w": 250}})
    until("its job moves", lambda: motley.job(ident)["attempt"] == 2, timeout=180, told=lambda: motley.run("logs", str(ident))[-2000:])
    motley.wait_state(ident, ("running",))
    log = motley.run("logs", str(ident))
    expect(f"{hot} throttles (thermal, 93 °C)" in log and "Move: " in log, log)
    now = motley.job(ident)["run"]["ranks"][0]["device"]
    health = device(motley, hot)["health"]
    expect(now != hot and health["temperature_c"] == 93 and health["heat"] < 0.9, f"on {now}; {hot}: {health}")
    expect("93 °C, 100 of 1000 MHz (thermal)" in motley.run("devices"), motley.run("devices"))
    ratio = planned_s(motley, alone) / cool_s
    expect(0.7 < ratio * health["heat"] < 1.6, f"a plan takes {ratio:.2f} times as long on the card at {health['heat']} of its clock")
    motley.run("cancel", str(ident))
    return f"left at {health['heat']:.2f} of its clock"


def emulated_gpus_serve():
    motley = Motley(CONFIG)
    os.environ["MOTLEY_EMULATED"] = "@" + motley.path("faults")
    os.environ["MOTLEY_EMULATED_HEALTH"] = motley.path("health")
    with motley:
        return "; ".join(f(motley) for f in (losses_are_pytorchs_on_emulated_gpus, the_catalogue_is_compared_with_what_was_measured,
                                             a_card_that_is_lost_twice_is_drained,
                                             a_card_without_memory_is_tried_again, a_throttled_card_is_left))


if __name__ == "__main__":
    main(emulated_gpus_serve)
