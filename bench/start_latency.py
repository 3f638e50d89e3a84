#!/usr/bin/env python3
"""From a submit to the first instruction of a tiny model, as the events of the service tell it."""
import os

from harness import Motley, expect, golden_spec, report, summary, tokens_rows
import json

from motley import GOLDEN, two_unlike
from datetime import datetime


def seconds(text):
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def main():
    folder = os.path.join(GOLDEN, "llama")
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as handle:
        expected = json.load(handle)
    latencies = []
    with Motley(two_unlike()) as motley:
        rows = motley.write_rows("rows.jsonl", tokens_rows(expected["batches"]))
        for turn in range(12):
            spec = golden_spec(f"start-{turn}", folder, rows, 0.005, expected, 4, placement={"kind": "single"},
                               train={"steps": 2, "warmup_steps": 1})
            job = motley.submit(spec, wait=True)
            expect(job["state"] == "succeeded", f"{job['state']}: {job.get('why')}")
            latencies.append(seconds(job["started"]) - seconds(job["created"]))
    report("start_latency", {"first_s": latencies[0], "seconds": summary(latencies[2:])})


if __name__ == "__main__":
    main()
