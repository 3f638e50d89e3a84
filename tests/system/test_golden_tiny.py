#!/usr/bin/env python3
"""Through the whole service, tiny Llama models give PyTorch's numbers on one device and on any split; with MOTLEY_EQUALITY
(`make equality`) every golden model does, by every method, on every placement."""
import json
import os

from motley import (GOLDEN, Motley, expect, golden_spec, largest_relative, main, relative_difference, safetensors, tokens_rows,
                    two_unlike)

LOSS, NORM, ADAPTER, GRADIENT = 1e-6, 1e-5, 1e-4, 1e-4  # relative; fp32 itself costs at most 6e-7 in these runs (golden README)


def golden(model):
    """The folder of a tiny golden model, and what PyTorch made of it."""
    folder = os.path.join(GOLDEN, model)
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as handle:
        return folder, json.load(handle)


def trained(motley, model, placement, tag, **changes):
    """The ended job of the golden LoRA run."""
    folder, expected = golden(model)
    rows = motley.write_rows(f"{model}.jsonl", tokens_rows(expected["batches"]))
    spec = golden_spec(f"{model}-{tag}", folder, rows, expected["lora"]["peak_lr"], expected,
                       len(expected["batches"][0]["ids"]), placement=placement,
                       method={"start_from": os.path.join(folder, "adapter_init")}, **changes)
    job = motley.submit(spec, wait=True)
    expect(job["state"] == "succeeded", f"{model} {tag}: {job['state']}: {job.get('why')}")
    return job


def run_case(motley, model, placement, tag):
    folder, expected = golden(model)
    job = trained(motley, model, placement, tag)
    logs = motley.run("logs", str(job["id"]))
    expect('rows of format tokens (by data.format)' in logs and "the first row, what is learnt between ⟦ and ⟧: " in logs,
           f"{model} {tag}: the log does not say what is learnt: {logs}")
    steps, _ = motley.metrics(job["id"])
    expect([m["step"] for m in steps] == list(range(20)), f"{model} {tag}: steps {[m['step'] for m in steps]}")
    reference = expected["lora_fp64"]
    loss = largest_relative([m["loss"] for m in steps], reference["loss"])
    norm = largest_relative([m["grad_norm"] for m in steps], reference["grad_norm"])
    rate = largest_relative([m["learning_rate"] for m in steps], reference["lr"])
    out = motley.get(job["id"], f"{model}-{tag}")
    plan = os.path.join(out, "plan.json")
    ours = safetensors(os.path.join(out, "adapter", "adapter_model.safetensors"))
    adapter, _ = relative_difference(ours, safetensors(os.path.join(folder, "adapter_after_20", "adapter_model.safetensors")))
    expect(loss <= LOSS, f"{model} {tag}: loss off by {loss:.2e}")
    expect(norm <= NORM, f"{model} {tag}: gradient norm off by {norm:.2e}")
    expect(rate <= 1e-9, f"{model} {tag}: learning rate off by {rate:.2e}")
    expect(adapter <= ADAPTER, f"{model} {tag}: adapter off by {adapter:.2e}")
    with open(os.path.join(out, "adapter", "adapter_config.json"), encoding="utf-8") as handle:
        ours_config = json.load(handle)
    with open(os.path.join(folder, "adapter_after_20", "adapter_config.json"), encoding="utf-8") as handle:
        theirs_config = json.load(handle)
    for key in ("peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "bias"):
        expect(ours_config[key] == theirs_config[key], f"adapter_config.json: {key} is {ours_config[key]}")
    expect(set(ours_config["target_modules"]) == set(theirs_config["target_modules"]), "adapter_config.json: target_modules")
    expect(ours_config["base_model_name_or_path"] == os.path.realpath(folder), f"its base: {ours_config['base_model_name_or_path']}")
    return f"loss {loss:.1e}, norm {norm:.1e}, adapter {adapter:.1e}", [m["loss"] for m in steps], ours, plan


SPLIT = {"kind": "pipeline", "stages": 2, "micro_batch_rows": 1, "move": "never"}  # what ranks measure may move a job


def losses_norms_and_adapters_are_pytorchs():
    details = []
    for model in ("llama", "llama3-rope"):
        single, single_losses, _, _ = run_case(motley, model, {"kind": "single"}, "single")
        split, split_losses, adapter, plan = run_case(motley, model, SPLIT, "split")
        apart = largest_relative(split_losses, single_losses)
        expect(apart <= LOSS, f"{model}: split against single {apart:.2e}")
        details.append(f"{model}: single [{single}], split [{split}], apart {apart:.1e}")
        if model != "llama":
            continue
        _, again_losses, again_adapter, _ = run_case(motley, model, {"plan": plan}, "again")
        expect(again_losses == split_losses, f"{model}: two runs of one plan differ in loss")
        expect(all(adapter[n][1] == again_adapter[n][1] for n in adapter), f"{model}: two runs of one plan differ in the adapter")
        for order in ("interleaved", "split"):
            job = trained(motley, model, {**SPLIT, "schedule": order}, order)
            said = job["run"]["plan_answer"]["schedule"]
            expect(said.split()[0] == order, f"{model}: {order} asked for, {said} planned")
            losses = [m["loss"] for m in motley.metrics(job["id"])[0]]
            expect(largest_relative(losses, single_losses) <= LOSS, f"{model}: {order} against single")
    return "; ".join(details)


def sixteen_bits():
    """Computed in bf16 and fp16, in a pipeline whose ranks send so: near PyTorch's fp64, planned as what is run."""
    words = []
    for compute, bound in (("bf16", 5e-3), ("fp16", 1e-3)):
        job = trained(motley, "llama", SPLIT, compute, train={"compute": compute})
        steps, _ = motley.metrics(job["id"])
        off = largest_relative([m["loss"] for m in steps], golden("llama")[1]["lora_fp64"]["loss"])
        expect(1e-7 < off <= bound, f"{compute}: loss off by {off:.2e}")
        scales = {m.get("loss_scale") for m in steps}
        expect(scales == ({65536.0} if compute == "fp16" else {None}), f"{compute}: scales {scales}")
        answer = job["run"]["plan_answer"]
        expect(answer["runnable"] and answer["model"]["method"].endswith(f"computed in {compute}"), f"{compute}: {answer['model']}")
        expect(f"computed in {compute}\n" in motley.run("job", str(job["id"])), f"{compute}: motley job does not say it")
        expect(("65536" in motley.run("metrics", str(job["id"]))) == (compute == "fp16"), f"{compute}: motley metrics and the scale")
        with open(os.path.join(motley.get(job["id"], compute), "plan.json"), encoding="utf-8") as handle:
            ranks = json.load(handle)["plan"]["ranks"]
        sent = [s for r in ranks for s in r["slots"] if s["kind"] in ("activation", "gradient")]
        expect(len(sent) >= 4 and all(s["dtype"] == compute and s["per_token"] == 2 * 64 for s in sent), f"{compute}: slots {sent}")
        words.append(f"{compute} off by {off:.1e}")
    return ", ".join(words)


def full(where, name, placement):
    """The losses and the only rank of an ended full fine-tuning of the tiny Llama on one device."""
    folder, expected = golden("llama")
    rows = where.write_rows("llama.jsonl", tokens_rows(expected["batches"]))
    spec = golden_spec(name, folder, rows, expected["full"]["peak_lr"], expected, len(expected["batches"][0]["ids"]),
                       placement={"kind": "single", "micro_batch_rows": 1, **placement}, train={"steps": 4, "recompute": True})
    spec["method"] = {"kind": "full"}
    job = where.submit(spec, wait=True)
    expect(job["state"] == "succeeded", f"{name}: {job['state']}: {job.get('why')}")
    return spec, [m["loss"] for m in where.metrics(job["id"])[0]], job["run"]["plan_answer"]["ranks"][0]


def moments_on_the_host_train_what_does_not_fit_else():
    """Same losses to the bit; and on a device that has no room for the moments, a job runs only so."""
    on = {"devices": ["left/cpu0"]}
    _, here, rank = full(motley, "moments-here", on)
    _, there, moved = full(motley, "moments-there", {**on, "moments": "host"})
    expect(here == there, f"losses {here} with moments on the device, {there} on the host")
    expect(moved["moments_host_bytes"] == rank["memory"]["optimizer"], f"{moved} for {rank['memory']}")
    expect("moments_host_bytes" not in rank, f"{rank}")
    room = (rank["memory_bytes"] + moved["memory_bytes"]) // 2
    with Motley({"agents": [{"name": "left", "devices": [{"kind": "cpu", "threads": 1, "memory": room}]}]}) as small:
        spec, losses, _ = full(small, "only-so", {"moments": "host"})
        expect(losses == here, f"losses {losses} on the small device")
        spec["placement"]["moments"] = "device"
        small.run("submit", small.write("refused.json", spec), status=4)
        expect("Does not fit" in small.last_error, small.last_error)
    return f"{room} bytes, where {rank['memory_bytes']} are needed with the moments and {moved['memory_bytes']} without"


def gradients_of(motley, model, placement, tag):
    """The worst tensor's relative difference from PyTorch's gradients at the second step."""
    job = trained(motley, model, placement, tag, train={"steps": 2, "betas": [0.0, 0.95], "warmup_steps": 4},
                  checkpoint={"every_steps": 1, "keep": 2})
    ours = motley.gradients(job["id"], 1, f"{model}-{tag}")
    _, worst = relative_difference(ours, safetensors(os.path.join(GOLDEN, model, "grads_lora_step1.safetensors")))
    expect(worst <= GRADIENT, f"{model} {tag}: a gradient is off by {worst:.2e}")
    return worst


def gradients_are_pytorchs():
    worst = {}
    for model, tag, placement in (("llama", "single", {"kind": "single"}), ("llama3-rope", "split", SPLIT)):
        worst[f"{model} {tag}"] = gradients_of(motley, model, placement, f"gradients-{tag}")
    return ", ".join(f"{name} {value:.1e}" for name, value in worst.items())


def two_jobs_share_the_devices():
    """Each asks for one device; the second is placed while the first holds the other."""
    folder, expected = golden("llama")
    rows = motley.write_rows("rows.jsonl", tokens_rows(expected["batches"]) * 4)
    idents = []
    for device in ("left/cpu0", "right/cpu0", "left/cpu0"):
        spec = golden_spec(f"on-{device[:4]}", folder, rows, 0.005, expected, 16,
                           placement={"kind": "single", "devices": [device]}, train={"steps": 40})
        idents.append((device, motley.submit(spec)["id"]))
    for device, ident in idents:
        job = motley.wait_state(ident, ("succeeded", "failed", "cancelled"))
        expect(job["state"] == "succeeded", f"job {ident} on {device}: {job['state']}: {job.get('why')}")
        expect([r["device"] for r in job["run"]["ranks"]] == [device], f"job {ident}: ran on {job['run']['ranks']}")


# ---- make equality ----

METHODS = {"lora": {}, "full": {"method": {"kind": "full"}}, "full_aux": {"method": {"kind": "full"}, "train": {"router_aux": True}}}
PLACEMENTS = {"single": {"kind": "single"}, "two": SPLIT, "three": {**SPLIT, "stages": 3}, "data": {"kind": "data"},
              "interleaved": {**SPLIT, "schedule": "interleaved"}, "halves": {**SPLIT, "schedule": "split"},
              "groups": {"kind": "hybrid", "stages": 2, "schedule": "interleaved", "micro_batch_rows": 1}}
APART = 2e-5  # relative, to float64 and to one device: what a placement may cost


def losses_of(many, model, method, tag, placement=None):
    """The losses, and the placement that repeats this very plan."""
    folder, expected = golden(model)
    rows = many.write_rows(f"{model}.jsonl", tokens_rows(expected["batches"]))
    settings = expected["lora" if method == "lora" else "full"]
    spec = golden_spec(f"{model}-{method}-{tag}", folder, rows, settings["peak_lr"], expected,
                       len(expected["batches"][0]["ids"]), placement=placement or PLACEMENTS[tag])
    if method == "lora":
        spec["method"].update(start_from=os.path.join(folder, "adapter_init"), targets=settings["targets"])
    else:
        spec["method"] = METHODS[method]["method"]
        spec["train"].update(weight_decay=settings["weight_decay"], **METHODS[method].get("train", {}))
    job = many.submit(spec, wait=True)
    expect(job["state"] == "succeeded", f"{model} {method} {tag}: {job['state']}: {job.get('why')}")
    plan = os.path.join(many.get(job["id"], f"{model}-{method}-{tag}"), "plan.json")
    return [m["loss"] for m in many.metrics(job["id"])[0]], {"plan": plan}


def every_model_and_method_is_trained_alike_on_every_placement():
    runs, worst = 0, 0.0
    config = two_unlike()
    config["agents"].append({"name": "third", "devices": [{"kind": "cpu", "threads": 1, "memory": "450MiB"}]})
    with Motley(config) as many:
        for model in sorted(os.listdir(GOLDEN)):
            if not os.path.exists(os.path.join(GOLDEN, model, "expected.json")):
                continue
            for method in METHODS:
                reference = golden(model)[1].get(f"{method}_fp64")
                if reference is None:
                    continue
                single, same_plan = losses_of(many, model, method, "single")
                for tag in PLACEMENTS:
                    losses = single
                    if tag != "single":
                        losses, same_plan = losses_of(many, model, method, tag)
                    apart = max(largest_relative(losses, reference["loss"]), largest_relative(losses, single))
                    expect(apart <= APART, f"{model} {method} {tag}: loss off by {apart:.2e}")
                    runs, worst = runs + 1, max(worst, apart)
                expect(losses_of(many, model, method, "again", same_plan)[0] == losses, f"{model} {method} {tag}: two runs differ")
    return f"{runs} runs, at most {worst:.1e} apart"


if __name__ == "__main__":
    with Motley(two_unlike()) as motley:
        main(two_jobs_share_the_devices, gradients_are_pytorchs, sixteen_bits, moments_on_the_host_train_what_does_not_fit_else, losses_norms_and_adapters_are_pytorchs,
             *([every_model_and_method_is_trained_alike_on_every_placement] if "MOTLEY_EQUALITY" in os.environ else []))
