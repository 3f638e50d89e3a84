#!/usr/bin/env python3
"""A lab's own planner decides where jobs run; one that hangs, or is not there, costs its time and nothing else."""
import json
import os

from motley import GOLDEN, SOURCE, Motley, expect, golden_spec, largest_relative, main, tokens_rows, two_unlike

EXAMPLE = os.path.join(SOURCE, "examples", "planner_by_speed.py")
LOSS = 1e-6  # as in test_golden_tiny.py


def golden():
    folder = os.path.join(GOLDEN, "llama")
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as handle:
        return folder, json.load(handle)


def run(motley, name, steps=None, **placement):
    folder, expected = golden()
    rows = motley.write_rows("rows.jsonl", tokens_rows(expected["batches"]))
    spec = golden_spec(name, folder, rows, expected["lora"]["peak_lr"], expected, len(expected["batches"][0]["ids"]),
                       placement=placement, method={"start_from": os.path.join(folder, "adapter_init")},
                       **({"train": {"steps": steps}} if steps else {}))
    job = motley.submit(spec, wait=True)
    expect(job["state"] == "succeeded", f"{name}: {job['state']}: {job.get('why')}")
    return job


def the_examples_plan_runs_and_trains_as_any_other():
    """What it answers is decoded, recounted, checked and simulated; then workers of both devices run it."""
    hangs = ["python3", "-S", "-c", "import time; time.sleep(60)"]
    # Beside other tests tiny devices are measured as anything; tests/plug has the comparison.
    config = two_unlike(planner={"command": [EXAMPLE], "slower_at_most": 20},
                        planners={"hangs": {"command": hangs, "seconds": 0.5}})
    with Motley(config) as motley:
        job = run(motley, "by-speed")
        first = told = job["run"]["plan_answer"]["planner"]
        expect(told["name"] == "default" and told["verdict"] == "used" and told["why"] is None, f"{told}")
        expect(sorted(r["device"] for r in job["run"]["ranks"]) == ["left/cpu0", "right/cpu0"], f"{job['run']['ranks']}")
        expect("Planned by \"default\"" in job["run"]["plan_answer"]["words"], job["run"]["plan_answer"]["words"])
        steps, _ = motley.metrics(job["id"])
        loss = largest_relative([m["loss"] for m in steps], golden()[1]["lora_fp64"]["loss"])
        expect(loss <= LOSS, f"loss off by {loss:.2e}")

        for name, says in (("hangs", "was not done within 0.5 s"), ("nobody", "no planner of this name")):
            job = run(motley, name, steps=1, planner=name)
            told = job["run"]["plan_answer"]["planner"]
            expect(told["verdict"] == "refused" and says in told["why"], f"{told}")
            expect(says in motley.run("why", str(job["id"]), parse=True)["why"], "why does not say so")
    return f"loss {loss:.1e}, planned in {first['plan_s']:.2f} s, {first['ratio']:.2f} times ours"


if __name__ == "__main__":
    main(the_examples_plan_runs_and_trains_as_any_other)
