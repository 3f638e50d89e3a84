#!/usr/bin/env python3
"""Adapters and specifications as people have them, as real jobs: keys with the adapter's name, an embedding saved beside the
adapter of a tied model, specifications in JSON with surrogate pairs and U+0085, and with a byte order mark."""
import datetime
import json
import os
import shutil
import sys

from motley import Motley, expect, main, safetensors, two_unlike
from claims import DATA

sys.path.append(os.path.join(os.path.dirname(DATA), "wild"))
import cases as wild  # noqa: E402

WILD = os.path.join(DATA, "wild")
TIED = os.path.join(WILD, "models", "body")
ROW = list(range(5, 15))
LORA = {"kind": "lora", "rank": 4, "alpha": 8, "dropout": 0, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}


def adapter_of(folder, tensors):
    """An adapter folder with peft's config of LORA."""
    os.makedirs(folder)
    shutil.copy(tensors, os.path.join(folder, "adapter_model.safetensors"))
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as handle:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "bias": "none",
                   "target_modules": LORA["targets"], "inference_mode": True}, handle)
    return folder


def untied():
    """The tiny Llama with a head of its own that its config names, too, and with a tokenizer of bytes."""
    folder = motley.path("untied")
    shutil.copytree(os.path.join(WILD, "models", "tied"), folder)
    with open(os.path.join(folder, "config.json"), "r+", encoding="utf-8") as handle:
        config = {**json.load(handle), "tie_word_embeddings": False}
        handle.seek(0)
        json.dump(config, handle)
        handle.truncate()
    with open(os.path.join(WILD, "tokenizers", "cl.json"), encoding="utf-8") as handle:
        motley.write("untied/tokenizer.json", wild.expand_tokenizer(json.load(handle)))
    return folder


def trained(model, **method):
    """The ended job of one row and two steps."""
    rows = motley.write_rows("rows.jsonl", [{"ids": ROW, "labels": ROW}])
    spec = {"model": model, "method": {**LORA, **method}, "data": {"train": rows, "format": "tokens"},
            "train": {"batch_rows": 1, "steps": 2, "learning_rate": 0.01, "warmup_steps": 0}, "placement": {"kind": "single"}}
    job = motley.submit(spec, wait=True)
    expect(job["state"] == "succeeded", f"{model}: {job['state']}: {job.get('why')}")
    return job


def losses(job):
    return [step["loss"] for step in motley.metrics(job["id"])[0]]


def keys_with_the_adapters_name_are_read():
    """The loss that peft 0.21.2 gives for the base with this adapter."""
    folder = adapter_of(motley.path("named"), os.path.join(WILD, "default-keys.safetensors"))
    first = losses(trained(motley.path("untied"), start_from=folder))[0]
    expect(abs(first / 5.752409 - 1) < 1e-6, f"the first loss is {first}")
    return f"{first:.6f}"


def an_embedding_saved_beside_a_tied_model_comes_back():
    """Both tables are in the file, since peft 0.21 asks for both, and they are one; a job that goes on from it has its loss."""
    before = trained(TIED, modules_to_save=["embed_tokens"])
    out = os.path.join(motley.get(before["id"], "saved"), "adapter")
    tensors = safetensors(os.path.join(out, "adapter_model.safetensors"))
    table, head = (tensors[f"base_model.model.{name}.weight"] for name in ("model.embed_tokens", "lm_head"))
    expect(table[0] == [320, 32] and table == head, f"shapes {table[0]}, {head[0]}")
    with open(os.path.join(out, "adapter_config.json"), encoding="utf-8") as handle:
        said = json.load(handle)["modules_to_save"]
    expect(sorted(said) == ["embed_tokens", "lm_head"], f"modules_to_save: {said}")
    began, went_on = losses(before), losses(trained(TIED, modules_to_save=["embed_tokens"], start_from=out))
    expect(went_on[0] < began[1], f"losses {began}, then {went_on}")


def specifications_are_read_as_the_json_and_yaml_they_are():
    texts = {"emoji.json": '{"name": "a\\ud83d\\ude00"}', "nel.json": '{"name": "b", "sample": {"prompt": "a\u0085b", "tokens": 2}}',
             "bom.yaml": "\ufeffname: c\n"}
    for name, text in texts.items():
        whole = {"model": motley.path("untied"), "data": {"train": rows_file(), "format": "tokens"}, "hold": True}
        if name.endswith(".json"):
            text = json.dumps(whole)[:-1] + ", " + text[1:]
        else:
            text += "".join(f"{key}: {json.dumps(value)}\n" for key, value in whole.items())
        spec = motley.job(motley.run("submit", motley.write(name, text), parse=True)["id"])["spec"]
        expect(spec["name"] == {"e": "a\U0001f600", "n": "b", "b": "c"}[name[0]], f"{name}: {spec['name']!a}")
        expect(name[0] != "n" or spec["sample"]["prompt"] == "a\u0085b", f"{name}: {spec.get('sample')!a}")
    motley.run("submit", motley.write("comma.json", json.dumps(whole)[:-1] + ",}"), status=2)
    expect("comma.json" in motley.last_error, motley.last_error)


def a_template_that_writes_the_day_gets_that_of_the_submission():
    """The day is in the job's record, so that its rows repeat; one that is given stays."""
    folder = motley.path("dated")
    shutil.copytree(motley.path("untied"), folder)
    template = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.role + m.content + '\n' }}{% endfor %}"
    motley.write("dated/tokenizer_config.json", json.dumps({"chat_template": template}))
    rows = motley.write_rows("chat.jsonl", [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}])
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    for model, given, right in ((folder, {}, today), (folder, {"day": "2025-02-03"}, "2025-02-03"), (motley.path("untied"), {}, None)):
        train = rows if model == folder else rows_file()
        spec = {"model": model, "data": {"train": train, **given}, "hold": True}
        job = motley.job(motley.run("submit", motley.write("day.json", json.dumps(spec)), parse=True)["id"])
        expect(job["spec"]["data"].get("day") == right, f"{given}: {job['spec']['data']}")


def rows_file():
    return motley.write_rows("rows.jsonl", [{"ids": ROW, "labels": ROW}])


if __name__ == "__main__":
    with Motley(two_unlike()) as motley:
        untied()
        main(keys_with_the_adapters_name_are_read, an_embedding_saved_beside_a_tied_model_comes_back,
             specifications_are_read_as_the_json_and_yaml_they_are, a_template_that_writes_the_day_gets_that_of_the_submission)
