#!/usr/bin/env python3
"""Layers cut over devices, through the whole service: planned because it was asked for, killed in the middle, resumed from a
checkpoint whose matrices are in parts, with one device's losses; and what cannot be cut is refused by its name."""
import os
import statistics
import time

from chaos import killed_once
from motley import Motley, every_loss, expect, golden_job, largest_relative, main, slowly_linked

LOSS = 2e-5  # relative
STEPS = 48
GROUP = ["n1/cpu0", "n2/cpu0"]


def unlike():
    return slowly_linked([{"memory": "400MiB", "isa": isa} for isa in ("native", "native", "avx2")])


def specification(motley, model, method, placement, name):
    return golden_job(motley, model, method, placement, name, STEPS)


def losses(motley, job, name):
    return every_loss(motley, job, name, STEPS)


def cut_layers_survive_with_one_devices_losses():
    words = []
    with Motley(unlike()) as motley:
        for model, method in (("qwen2", "full"), *([("llama", "lora")] if "MOTLEY_EQUALITY" in os.environ else [])):
            name, began = f"{model} {method}", time.monotonic()
            alone = motley.submit(specification(motley, model, method, {"kind": "single", "devices": ["n0/cpu0"]}, "alone"), wait=True)
            job = killed_once(motley, specification(motley, model, method, {"kind": "tensor", "devices": GROUP}, "tensor"), name)
            plan = job["run"]["plan_answer"]
            off = largest_relative(losses(motley, job, name), losses(motley, alone, name))
            expect(off <= LOSS, f"{name}: losses off by {off:.1e}")
            expect(plan["placement"] == "tensor" and plan["runnable"], f"{name}: {plan['placement']}")
            expect([r["blocks"][0] for r in plan["ranks"]] == [0, 1], f"{name}: {plan['ranks']}")
            seconds = statistics.median(m["seconds"] for m in motley.metrics(job["id"])[0])
            words.append(f"{name}: {off:.0e} over {STEPS} steps, {seconds * 1e3:.1f} ms a step and {plan['step_s'] * 1e3:.1f} predicted, "
                         f"{time.monotonic() - began:.1f} s")
    return "; ".join(words)


if __name__ == "__main__":
    main(cut_layers_survive_with_one_devices_losses)
