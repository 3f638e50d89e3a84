#!/usr/bin/env python3
"""State that devices share out, state that one keeps for the others, and experts apart from attention, through the whole service:
planned (the first two because no device has room for it alone), killed in the middle, resumed from checkpoints that its ranks wrote
by pieces, with one device's losses."""
import os
import time

from chaos import killed_once
from motley import Motley, every_loss, expect, golden_job, largest_relative, main, slowly_linked

LOSS = 2e-5       # relative
STEPS = {"full": 60, "lora": 120}  # seconds of running after the eighth, so that a kill comes before the end
EVERY = "MOTLEY_EQUALITY" in os.environ  # make equality
SMALL = ["n1/cpu0", "n2/cpu0", "n3/cpu0"]


def unlike(memory="3MiB"):
    """A device with room for everything, and three with that memory."""
    small = [{"memory": memory, "isa": isa} for isa in ("native", "avx2", "sse42")]
    return slowly_linked([{"memory": "400MiB", "isa": "native"}, *small])


def specification(motley, model, method, placement, name):
    return golden_job(motley, model, method, placement, name, STEPS[method])


def losses(motley, job, name, method):
    return every_loss(motley, job, name, STEPS[method])


def shared_state_survives_with_one_devices_losses():
    words = []
    with Motley(unlike()) as motley:
        for model, method, kind in (("llama", "full", "data"), ("llama", "full", "server"),
                                    *([("llama", "lora", "data"), ("qwen2", "full", "data")] if EVERY else [])):
            name, began = f"{model} {method} {kind}", time.monotonic()
            alone = motley.submit(specification(motley, model, method, {"kind": "single", "devices": ["n0/cpu0"]}, "alone"), wait=True)
            # A server's holder keeps everything, so one device with room is beside the small ones.
            devices = SMALL if kind == "data" else ["n0/cpu0", *SMALL]
            job = killed_once(motley, specification(motley, model, method, {"kind": kind, "devices": devices}, kind), name)
            plan = job["run"]["plan_answer"]
            off = largest_relative(losses(motley, job, name, method), losses(motley, alone, name, method))
            expect(off <= LOSS, f"{name}: losses off by {off:.1e}")
            expect(plan["placement"] == kind and plan["runnable"], f"{name}: {plan['placement']}")
            words.append(f"{name}: {off:.0e} over {STEPS[method]} steps on {len(plan['ranks'])}, {time.monotonic() - began:.1f} s")
    return "; ".join(words)


def experts_apart_survive_with_one_devices_losses():
    words = []
    with Motley(unlike("400MiB")) as motley:
        for model, method in (("mixtral", "lora"), *([("olmoe", "full"), ("qwen3-moe", "lora")] if EVERY else [])):
            name, began = f"{model} {method} expert", time.monotonic()
            alone = motley.submit(specification(motley, model, method, {"kind": "single", "devices": ["n0/cpu0"]}, "alone"), wait=True)
            job = killed_once(motley, specification(motley, model, method, {"kind": "expert", "devices": SMALL}, "expert"), name)
            plan = job["run"]["plan_answer"]
            off = largest_relative(losses(motley, job, name, method), losses(motley, alone, name, method))
            expect(off <= LOSS, f"{name}: losses off by {off:.1e}")
            expect(plan["placement"] == "expert" and plan["runnable"], f"{name}: {plan['placement']}")
            words.append(f"{name}: {off:.0e} over {STEPS[method]} steps on {len(plan['ranks'])}, {time.monotonic() - began:.1f} s")
    return "; ".join(words)


def interleaved_groups_survive_with_one_devices_losses():
    """Each rank has several ranges of blocks, and members of a group gather what they share out."""
    words, placement = [], {"kind": "hybrid", "stages": 2, "schedule": "interleaved", "devices": SMALL, "micro_batch_rows": 1}
    with Motley(slowly_linked(4 * [{"memory": "400MiB", "isa": "native"}])) as motley:
        for model, method in (("qwen2", "full"), *([("llama", "lora")] if EVERY else [])):
            name, began = f"{model} {method} groups", time.monotonic()
            alone = motley.submit(specification(motley, model, method, {"kind": "single", "devices": ["n0/cpu0"]}, "alone"), wait=True)
            job = killed_once(motley, specification(motley, model, method, placement, "groups"), name)
            plan = job["run"]["plan_answer"]
            off = largest_relative(losses(motley, job, name, method), losses(motley, alone, name, method))
            expect(off <= LOSS, f"{name}: losses off by {off:.1e}")
            expect(plan["placement"] == "hybrid" and plan["schedule"] == "interleaved", f"{name}: {plan['placement']}, {plan['schedule']}")
            expect(len(plan["ranks"]) == 3 and all(len(r["block_ranges"]) > 1 for r in plan["ranks"]), f"{name}: {plan['ranks']}")
            words.append(f"{name}: {off:.0e} over {STEPS[method]} steps, {time.monotonic() - began:.1f} s")
    return "; ".join(words)


if __name__ == "__main__":
    main(shared_state_survives_with_one_devices_losses, experts_apart_survive_with_one_devices_losses,
         interleaved_groups_survive_with_one_devices_losses)
