#!/usr/bin/env python3
"""Through the whole service, SmolLM2-135M (the GGUF itself) gives PyTorch's losses, norms and gradients, on one device and on
a split over two unlike ones (with MOTLEY_EQUALITY its adapter after 20 steps, too); and the greedy continuation is
PyTorch's, token for token. Needs the model (.cache/, fetched
when it can be) and ../shared/golden; a visible skip otherwise."""
import json
import os
import subprocess

from motley import SHARED, SOURCE, Motley, expect, golden_spec, largest_relative, main, relative_difference, safetensors, skip, \
    tokens_rows, two_unlike

GOLDEN = os.path.join(SHARED, "golden", "smollm2")
LOSS, NORM, ADAPTER, GRADIENT = 1e-4, 2e-4, 1e-3, 1e-4  # PyTorch against itself: 4e-5, 6e-5, 0.8-2.4e-4 (golden README)

STEPS = 20 if "MOTLEY_EQUALITY" in os.environ else 6  # of PyTorch's 20: then it is cancelled, and leaves no adapter
TOKENS = 80  # as the longest row has with its padding, and devices are measured with as many as rows may have


def read(name):
    with open(os.path.join(GOLDEN, name), encoding="utf-8") as handle:
        return json.load(handle)


def model_path():
    done = subprocess.run([os.path.join(SOURCE, "tools", "fetch_smollm2.sh"), os.path.join(SOURCE, ".cache")], cwd=SOURCE,
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        skip(f"the model could not be fetched: {done.stderr.strip()[-200:]}")
    return done.stdout.strip().splitlines()[-1]


def run_case(motley, model, train, placement, tag):
    rows = motley.write_rows(f"{tag}.jsonl", tokens_rows(train["batches"]))
    spec = golden_spec(f"smollm2-{tag}", model, rows, train["peak_lr"], train, 4, placement=placement, data={"sequence_tokens": TOKENS},
                       method={"start_from": os.path.join(GOLDEN, "adapter_init")})
    job = motley.submit(spec)["id"]
    if STEPS < train["steps"]:
        motley.wait_steps(job, STEPS, timeout=280)
        motley.run("cancel", str(job))
    else:
        done = motley.wait_state(job, ("succeeded", "failed"), timeout=280)
        expect(done["state"] == "succeeded", f"{tag}: {done['state']}: {done.get('why')}")
    steps, _ = motley.metrics(job)
    reference = train["lora_fp32"]
    loss = largest_relative([m["loss"] for m in steps], reference["loss"][: len(steps)])
    norm = largest_relative([m["grad_norm"] for m in steps], reference["grad_norm"][: len(steps)])
    expect(loss <= LOSS, f"{tag}: loss off by {loss:.2e}")
    expect(norm <= NORM, f"{tag}: gradient norm off by {norm:.2e}")
    return f"{tag}, {len(steps)} steps: loss {loss:.1e}, norm {norm:.1e}", [m["loss"] for m in steps], job


def adapter_is_pytorchs(motley, job, tag):
    out = motley.get(job, tag)
    before = safetensors(os.path.join(GOLDEN, "adapter_init", "adapter_model.safetensors"))
    after = safetensors(os.path.join(GOLDEN, "adapter_after_20", "adapter_model.safetensors"))
    ours = safetensors(os.path.join(out, "adapter", "adapter_model.safetensors"))
    change = {n: (s, [x - y for x, y in zip(v, before[n][1])]) for n, (s, v) in ours.items()}
    expected = {n: (s, [x - y for x, y in zip(v, before[n][1])]) for n, (s, v) in after.items()}
    adapter, _ = relative_difference(change, expected)
    expect(adapter <= ADAPTER, f"{tag}: adapter off by {adapter:.2e}")
    return f"{tag}: adapter {adapter:.1e}"


def gradients_and_greedy_tokens(motley, model, train, placement, tag):
    """One step from the golden adapter: its recorded gradients, and what the base model says before it, greedily."""
    rows, greedy = motley.write_rows(f"{tag}.jsonl", tokens_rows(train["batches"])), read("forward.json")["greedy"]
    spec = golden_spec(f"smollm2-{tag}", model, rows, train["peak_lr"], train, 4, placement=placement, data={"sequence_tokens": TOKENS},
                       method={"start_from": os.path.join(GOLDEN, "adapter_init")},
                       train={"steps": 1, "betas": [0.0, 0.95]},
                       sample={"prompt": greedy["prompt"], "tokens": len(greedy["new_ids"])})
    job = motley.submit(spec, wait=True, timeout=280)
    expect(job["state"] == "succeeded", f"{tag}: {job['state']}: {job.get('why')}")
    ours, theirs = motley.gradients(job["id"], 0, tag), safetensors(os.path.join(GOLDEN, "grads_lora_step0.safetensors"))
    expect(set(theirs) <= set(ours), f"{tag}: gradients are missing: {sorted(set(theirs) - set(ours))[:4]}")
    _, worst = relative_difference({name: ours[name] for name in theirs}, theirs)
    expect(worst <= GRADIENT, f"{tag}: a gradient is off by {worst:.2e}")
    with open(os.path.join(motley.path(tag), "samples.jsonl"), encoding="utf-8") as handle:
        before = json.loads(handle.readline())
    expect(before["step"] == 0 and before["ids"] == greedy["new_ids"], f"{tag}: the greedy tokens are {before}")
    expect(before["text"] == greedy["text"], f"{tag}: the sample's text is {before['text']!r}")
    return f"{tag}: gradients {worst:.1e}, {len(before['ids'])} greedy tokens equal"


def smollm2_learns_as_in_pytorch():
    """`make equality` asks everything of both: make test gradients and tokens of one device, and the first steps of two."""
    model, train, everything = model_path(), read("train.json"), "MOTLEY_EQUALITY" in os.environ
    split = {"kind": "pipeline", "stages": 2, "micro_batch_rows": 1}
    with Motley(two_unlike("1GiB", "1GiB")) as motley:
        said = [gradients_and_greedy_tokens(motley, model, train, {"kind": "single"}, "one-single")]
        text, split_losses, job = run_case(motley, model, train, split, "split")
        said.append(text)
        if everything:
            said += [adapter_is_pytorchs(motley, job, "split"), gradients_and_greedy_tokens(motley, model, train, split, "one-split")]
            text, losses, job = run_case(motley, model, train, {"kind": "single"}, "single")
            apart = largest_relative(split_losses, losses)
            expect(apart <= 1e-4, f"split against single: {apart:.2e}")
            said += [text, adapter_is_pytorchs(motley, job, "single"), f"apart {apart:.1e}"]
    return "; ".join(said)


if __name__ == "__main__":
    if not os.path.isdir(GOLDEN):
        skip("../shared/golden/smollm2 is not here")
    main(smollm2_learns_as_in_pytorch)
