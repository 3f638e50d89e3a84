#!/usr/bin/env python3
"""Through the whole service on emulated GPUs, tiny models give PyTorch's numbers: alone, split, as replicas, beside a CPU."""
import contextlib
import json
import os
import time

from motley import GOLDEN, SLOW, Motley, expect, golden_spec, largest_relative, llama_spec, main, poll, tokens_rows

LOSS = 2e-5  # relative, to float64: what any split of one model may cost

CONFIG = {"agents": [
    {"name": "left", "devices": [{"kind": "emulated", "memory": "256MiB", "isa": "warp32", "like": "v100"}]},
    {"name": "right", "devices": [{"kind": "emulated", "memory": "256MiB", "isa": "warp64", "like": "v100"},
                                  {"kind": "cpu", "threads": 1, "memory": "450MiB"}]},
]}
CARDS = ["left/emulated0", "right/emulated0"]

CASES = [  # model, method, placement, the run it must equal
    ("llama", "lora", {"kind": "single", "devices": [CARDS[0]]}, "lora_fp64"),
    ("llama", "lora", {"kind": "pipeline", "stages": 2, "micro_batch_rows": 1, "devices": [CARDS[1], "right/cpu1"]}, "lora_fp64"),
    ("llama", "lora", {"kind": "data", "devices": CARDS}, "lora_fp64"),
    ("mixtral", "lora", {"kind": "pipeline", "stages": 2, "micro_batch_rows": 2, "devices": CARDS}, "lora_fp64"),
    ("gemma2", "full", {"kind": "single", "devices": [CARDS[1]]}, "full_fp64"),
]
AGAIN = 1  # this case runs twice


def run_case(motley, model, method, placement, run):
    folder = os.path.join(GOLDEN, model)
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as handle:
        expected = json.load(handle)
    rows = motley.write_rows(f"{model}.jsonl", tokens_rows(expected["batches"]))
    changes = {"placement": placement, "method": {"start_from": os.path.join(folder, "adapter_init")}}
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
    return apart, losses


def losses_are_pytorchs_on_emulated_gpus():
    said = []
    with Motley(CONFIG) as motley:
        losses = []
        for model, method, placement, run in CASES:
            apart, made = run_case(motley, model, method, placement, run)
            losses.append(made)
            said.append(f"{model} {method} {placement['kind']} on {len(placement['devices'])}: {apart:.1e}")
        expect(run_case(motley, *CASES[AGAIN])[1] == losses[AGAIN], "two runs of one plan differ in loss")
    return "; ".join(said)


@contextlib.contextmanager
def faulty(fault):
    """One agent with one card; in each worker's life the fault comes at that call."""
    os.environ["MOTLEY_EMULATED"] = fault
    try:
        with Motley({"agents": CONFIG["agents"][:1]}) as motley:
            yield motley
    finally:
        del os.environ["MOTLEY_EMULATED"]


def cards_that_fail_cost_steps_and_are_drained_with_the_reason():
    """Of three steps in a worker's life two are kept; after two ends the card waits for somebody who lets it go on."""
    said = []
    for fault, reason in (("lost=800", "fell off its bus"), ("ecc=800", "uncorrectable memory error")):
        with faulty(fault) as motley:
            ident, undrained = motley.submit(llama_spec(motley, fault, 6, 4, every=2, retries=20))["id"], 0
            deadline = time.monotonic() + 180 * SLOW
            while (job := motley.job(ident))["state"] not in ("succeeded", "failed"):
                expect(time.monotonic() < deadline, f"{fault}: {job['state']}: {job.get('why')}")
                why = job.get("why") or ""
                if "(drained: " in why:
                    expect("left/emulated0 (drained: 2 of its workers" in why and reason in why, why)
                    motley.run("undrain", "left/emulated0")
                    undrained += 1
                poll()
            expect(job["state"] == "succeeded" and job["attempt"] > 2 and undrained > 0, f"{fault}: {job}, {undrained} times drained")
            steps = {m["step"] for m in motley.metrics(ident)[0]}
            expect(steps == set(range(6)), f"{fault}: steps {steps}")
            said.append(f"{fault}: {job['attempt']} attempts")
    return ", ".join(said)


def a_card_without_memory_fails_the_job_and_is_not_blamed():
    with faulty("nomem=3") as motley:
        job = motley.wait_state(motley.submit(llama_spec(motley, "nomem", 4, 4, retries=2))["id"], ("succeeded", "failed"))
        expect(job["state"] == "failed" and "left/emulated0: the emulated device has no " in job["why"], f"{job['state']}: {job.get('why')}")
        expect(not motley.run("devices", parse=True)["devices"][0]["drained"], "a card is drained for want of memory")
    return job["why"]


if __name__ == "__main__":
    main(losses_are_pytorchs_on_emulated_gpus, cards_that_fail_cost_steps_and_are_drained_with_the_reason,
         a_card_without_memory_fails_the_job_and_is_not_blamed)
