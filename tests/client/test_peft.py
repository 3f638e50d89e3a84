#!/usr/bin/env python3
"""`motley.peft.load(job)` with torch, transformers and peft themselves: what it loads has the held-out loss that the job told.

They are taken from a Python that has them: MOTLEY_TORCH_PYTHON, else the one that `make wild` made, else this one. A visible skip without."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from motley import SLOW, SOURCE, Motley, expect, llama_spec, main, skip, two_unlike  # noqa: E402

PACKAGES = os.path.join(SOURCE, ".cache", "client")
PYTHONS = (os.environ.get("MOTLEY_TORCH_PYTHON"), os.path.join(SOURCE, "build", "wild-venv", "bin", "python"), sys.executable)
LOSS = 1e-4  # of a loss: what fp32 sums in another order may differ by
# The mean loss of a learnt token of the rows, by the model that is loaded.
LOAD = """
import json, sys, torch, motley, motley.peft
home, job, rows, cache = sys.argv[1:]
with motley.Client(motley.Server.of_home(home)) as client:
    model = motley.peft.load(client.job(int(job)), cache=cache)
    again = motley.peft.load(int(job), client=client, cache=cache)
total = count = 0
with torch.no_grad(), open(rows, encoding="utf-8") as lines:
    for row in map(json.loads, lines):
        logits = model(input_ids=torch.tensor([row["ids"]])).logits[0, :-1].double()
        labels = torch.tensor(row["labels"][1:])
        total += float(torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum"))
        count += int((labels != -100).sum())
same = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values()))
print(json.dumps({"loss": total / count, "kind": type(model).__name__, "same": same}))
"""


def runs(python, text, *words):
    return subprocess.run([python, "-c", text, *words], capture_output=True, text=True, check=False, timeout=300 * SLOW,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join([os.path.join(SOURCE, "client", "src"), PACKAGES])})


def loaded(job):
    done = runs(python, LOAD, motley.home, str(job), motley.path("rows.jsonl"), motley.path("cache"))
    expect(done.returncode == 0, done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def trained(name, **changes):
    spec = llama_spec(motley, name, 10, 16, repeat=2, eval={"every_steps": 10}, **changes)
    spec["data"]["eval"] = spec["data"]["train"]
    job = motley.submit(spec, wait=True)
    expect(job["state"] == "succeeded", job)
    return job["id"], motley.metrics(job["id"])[1][-1]["loss"]


def what_is_loaded_has_the_loss_that_was_told(name, kind, **changes):
    job, told = trained(name, **changes)
    found = loaded(job)
    expect(found["kind"] == kind and found["same"], found)
    expect(abs(found["loss"] / told - 1) < LOSS, f"{found['loss']}, and the job told {told}")
    return f"{found['loss']:.6f}, told {told:.6f}"


def an_adapter_is_loaded_on_its_base():
    return what_is_loaded_has_the_loss_that_was_told("adapter", "PeftModelForCausalLM")


def a_merged_model_is_loaded_alone():
    return what_is_loaded_has_the_loss_that_was_told("merged", "LlamaForCausalLM", result={"kind": "merged"})


def a_trained_model_is_loaded_alone():
    return what_is_loaded_has_the_loss_that_was_told("full", "LlamaForCausalLM", method={"kind": "full"})


if not os.path.isdir(os.path.join(PACKAGES, "httpx")):
    skip("httpx is not in .cache/client: tools/pypi_packages.sh client fetches it")
python = next((one for one in PYTHONS if one and os.path.exists(one) and runs(one, "import torch, transformers, peft").returncode == 0), None)
if not python:
    skip("torch, transformers and peft are in no Python here: MOTLEY_TORCH_PYTHON names one, or make wild installs them")
with Motley(two_unlike()) as motley:
    main(an_adapter_is_loaded_on_its_base, a_merged_model_is_loaded_alone, a_trained_model_is_loaded_alone)
