#!/usr/bin/env python3
"""Through the whole service, on NVIDIA's libraries faked: the MIG slices of a card are devices, each worker is shown its own
slice alone, the card itself is not offered, and what a device takes for itself stands in the inventory and in plans."""
import json
import os

from motley import BIN, GOLDEN, Motley, expect, golden_spec, largest_relative, main, skip, tokens_rows

FAKES = os.path.join(BIN, "..", "tests", "fakes")
SLICES = ["left/cuda0", "left/cuda1"]
BASE = 16 << 20  # scratch memory of four queues; no library of products here


def slices_train(motley):
    listed = motley.run("devices", parse=True)
    devices = {device["name"]: device for device in listed["devices"]}
    cut = [card for card in listed["unused"] if "MIG slices" in card["why"]]
    if any("no cuda code" in card["why"] for card in listed["unused"]):
        skip("this build has no kernels for NVIDIA's cards")
    expect(set(devices) == {"left/cpu0", *SLICES, "left/cuda2"}, f"devices {sorted(devices)}: {listed['unused']}")
    expect(len(cut) == 1 and cut[0]["uuid"] == "GPU-00010200", f"unused: {listed['unused']}")
    expect(all(devices[name]["base_bytes"] == BASE for name in SLICES), f"{devices[SLICES[0]]}")
    said = motley.run("devices")
    expect(f"{SLICES[1]}: products by our own kernels: " in said, said)
    with open(os.path.join(GOLDEN, "llama", "expected.json"), encoding="utf-8") as handle:
        expected = json.load(handle)
    folder = os.path.join(GOLDEN, "llama")
    rows = motley.write_rows("llama.jsonl", tokens_rows(expected["batches"]))
    spec = golden_spec("on-slices", folder, rows, expected["lora"]["peak_lr"], expected, len(expected["batches"][0]["ids"]),
                       data={"sequence_tokens": 64},  # the rows have 40, and faked cards are measured with so many
                       placement={"kind": "pipeline", "stages": 2, "micro_batch_rows": 1, "devices": SLICES},
                       method={"start_from": os.path.join(folder, "adapter_init")})
    job = motley.submit(spec, wait=True)
    expect(job["state"] == "succeeded", f"{job['state']}: {job.get('why')}")
    expect(sorted(rank["device"] for rank in job["run"]["ranks"]) == SLICES, f"{job['run']['ranks']}")
    taken = [rank["memory"]["device_base_bytes"] for rank in job["run"]["ranks"]]
    expect(taken == [BASE, BASE], f"workers took {taken} for themselves")
    apart = largest_relative([m["loss"] for m in motley.metrics(job["id"])[0]], expected["lora_fp64"]["loss"])
    expect(apart <= 2e-5, f"loss off by {apart:.2e}")
    planned = motley.run("plan", motley.write("plan.json", spec), parse=True)["ranks"]
    limits = [(rank["device_base_bytes"], devices[rank["device"]]["memory_limit_bytes"] - rank["memory_limit_bytes"]) for rank in planned]
    expect(limits == [(BASE, BASE)] * 2, f"plans leave {limits}")
    return f"loss off by {apart:.1e} on two slices"


def mig_slices_serve():
    os.environ.update(MOTLEY_CUDA_LIBRARY=os.path.join(FAKES, "libfake_cuda.so"), MOTLEY_FAKE_MIG="1",
                      MOTLEY_NVML_LIBRARY=os.path.join(FAKES, "libfake_nvml.so"))
    with Motley({"agents": [{"name": "left", "cards": "all", "devices": [{"kind": "cpu", "threads": 1, "memory": "450MiB"}]}]}) as motley:
        return slices_train(motley)


if __name__ == "__main__":
    main(mig_slices_serve)
