#!/usr/bin/env python3
"""A job without train.compute is computed in what is fastest on the devices of its first run, and its record keeps that: after
a resume on another device, and where its plan is repeated."""
import json
import os

from motley import Motley, every_loss, expect, llama_spec, main

# Both compute alike. The left one is taken to multiply 16 bits 3.5 times as fast as fp32; of the right one nothing is known.
CARD = {"kind": "emulated", "memory": "256MiB", "isa": "warp32"}
CONFIG = {"agents": [{"name": "left", "devices": [{**CARD, "like": "rtx-3090"}]}, {"name": "right", "devices": [CARD]}]}
LEFT, RIGHT = "left/emulated0", "right/emulated0"
STEPS = 6


def spec(motley, name, **placement):
    job = llama_spec(motley, name, STEPS, 2, warmup=2, every=2, placement={"kind": "single", "micro_batch_rows": 2, "move": "never", **placement})
    job["data"]["sequence_tokens"] = 40  # the longest row; emulated cards are measured with as many
    del job["train"]["compute"]
    return job


def losses(motley, job, name, compute, device):
    """The losses of an ended job, which must have been computed so and there."""
    expect(job["inputs"]["compute"] == compute, f"{name}: computed in {job['inputs']['compute']}, not {compute}")
    expect(f"computed in {compute}\n" in motley.run("job", str(job["id"])), f"{name}: motley job does not say {compute}")
    expect([rank["device"] for rank in job["run"]["ranks"]] == [device], f"{name}: {job['run']['ranks']}")
    return every_loss(motley, job, name, STEPS)


def a_resumed_or_repeated_job_keeps_its_precision():
    with Motley(CONFIG) as motley:
        return kept(motley)


def kept(motley):
    full = losses(motley, motley.submit(spec(motley, "fp32", devices=[RIGHT]), wait=True), "fp32", "fp32", RIGHT)
    motley.run("drain", RIGHT)
    ident = motley.submit(spec(motley, "kept"))["id"]
    motley.wait_steps(ident, 2)
    first = motley.job(ident)
    expect(first["inputs"]["compute"] == "bf16" and first["spec"]["train"]["compute"] == "auto", first["inputs"])
    expect("computed in bf16; fp32 would take " in first["run"]["plan_answer"]["words"], first["run"]["plan_answer"]["words"])
    motley.run("hold", str(ident))
    motley.wait_state(ident, ("held",))
    motley.run("undrain", RIGHT)
    motley.run("drain", LEFT)
    motley.run("release", str(ident))
    done = motley.wait_state(ident, ("succeeded", "failed", "cancelled"))
    expect(done["attempt"] == 2, f"{done['attempt']} attempts")
    half = losses(motley, done, "kept", "bf16", RIGHT)
    expect(half != full, "it was not computed in bf16")

    with open(os.path.join(motley.get(ident, "kept"), "plan.json"), encoding="utf-8") as handle:
        plan = json.load(handle)["plan"]
    expect(plan["compute"] == "bf16", f"plan.json: {plan.get('compute')}")
    again = motley.submit(spec(motley, "again", plan=plan), wait=True)
    expect(losses(motley, again, "again", "bf16", RIGHT) == half, "the job repeated, which nothing interrupted, differs")
    return "bf16 where a card is fast so, kept elsewhere; fp32 where no card is known to be"


if __name__ == "__main__":
    main(a_resumed_or_repeated_job_keeps_its_precision)
