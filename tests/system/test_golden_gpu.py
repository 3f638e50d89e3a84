#!/usr/bin/env python3
"""Through the whole service on emulated GPUs, tiny models give PyTorch's numbers: alone, split, as replicas, beside a CPU."""
import json
import os

from motley import GOLDEN, Motley, expect, golden_spec, largest_relative, llama_spec, main, tokens_rows

LOSS = 2e-5  # relative, to float64: what any split of one model may cost

CONFIG = {"agents": [
    {"name": "left", "devices": [{"kind": "emulated", "memory": "256MiB", "isa": "warp32", "like": "v100"}]},
    {"name": "right", "devices": [{"kind": "emulated", "memory": "256MiB", "isa": "warp64", "like": "v100"},
                                  {"kind": "cpu", "threads": 1, "memory": "450MiB"},
                                  {"kind": "emulated", "memory": "256MiB", "isa": "warp32", "like": "v100"}]},
]}
CARDS = ["left/emulated0", "right/emulated0"]
TOGETHER = ["right/emulated0", "right/emulated2"]  # write into each other's memory

CASES = [  # model, method, placement, the run it must equal
    ("llama", "lora", {"kind": "single", "devices": [CARDS[0]]}, "lora_fp64"),
    ("llama", "lora", {"kind": "pipeline", "stages": 2, "micro_batch_rows": 1, "devices": [CARDS[1], "right/cpu1"]}, "lora_fp64"),
    ("llama", "lora", {"kind": "data", "devices": CARDS}, "lora_fp64"),
    ("mixtral", "lora", {"kind": "pipeline", "stages": 2, "micro_batch_rows": 2, "devices": TOGETHER}, "lora_fp64"),
    ("gemma2", "full", {"kind": "single", "devices": [CARDS[1]]}, "full_fp64"),
]


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
    within = motley.run("logs", str(job["id"])).count("is reached within the node")
    expect(within == (2 if placement["devices"] == TOGETHER else 0), f"{model} {placement}: {within} ranks wrote into another's memory")
    return apart, losses


def losses_are_pytorchs_on_emulated_gpus():
    said = []
    with Motley(CONFIG) as motley:
        for model, method, placement, run in CASES:
            apart, losses = run_case(motley, model, method, placement, run)
            said.append(f"{model} {method} {placement['kind']} on {len(placement['devices'])}: {apart:.1e}")
        again = run_case(motley, *CASES[1])[1]
        expect(again == run_case(motley, *CASES[1])[1], "two runs of one plan differ in loss")
    return "; ".join(said)


def a_lost_device_costs_steps_and_not_the_job():
    """Each worker's card falls off its bus at its 4,000th launch: the job goes on from its checkpoints."""
    os.environ["MOTLEY_EMULATED"] = "lost=4000"
    try:
        with Motley({"agents": CONFIG["agents"][:1]}) as motley:
            spec = llama_spec(motley, "lost", 20, 4, every=2, retries=20)
            job = motley.submit(spec, wait=True)
            expect(job["state"] == "succeeded", f"{job['state']}: {job.get('why')}")
            expect(job["attempt"] > 1, f"no device was lost: {job['attempt']} attempt")
            steps = [m["step"] for m in motley.metrics(job["id"])[0]]
            expect(sorted(set(steps)) == list(range(20)), f"steps {steps}")
    finally:
        del os.environ["MOTLEY_EMULATED"]
    return f"{job['attempt']} attempts"


if __name__ == "__main__":
    main(losses_are_pytorchs_on_emulated_gpus, a_lost_device_costs_steps_and_not_the_job)
