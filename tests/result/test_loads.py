#!/usr/bin/env python3
"""transformers and peft load what we write, and compute with a merged model what peft computes with base and adapter, within
1e-3 in every logit; with the adapter as we write it peft computes what it computes with its own, to the bit.

Needs a Python with torch, transformers and peft, named by MOTLEY_TORCH (versions: ../shared/golden/versions.json), and
../shared/golden/tiny; a visible skip otherwise."""
import json
import os
import subprocess
import sys
import tempfile

SOURCE = os.environ.get("MOTLEY_SOURCE", os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
TOOL = os.path.join(os.environ.get("MOTLEY_BIN", os.path.join(SOURCE, "build", "bin")), "test_result_results")
TINY = os.path.join(SOURCE, "..", "shared", "golden", "tiny")
PYTHON = os.environ.get("MOTLEY_TORCH")


def skip(why):
    print("skip:", why)
    sys.exit(77)


def write(*words):
    subprocess.run([TOOL, *map(str, words)], check=True)


def logits(model, ids):
    import torch
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float()


def load(path):
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    with open(os.path.join(path, "config.json"), encoding="utf-8") as handle:
        images = "vision_config" in json.load(handle)
    auto = AutoModelForImageTextToText if images else AutoModelForCausalLM
    return auto.from_pretrained(path, dtype=torch.float32).eval()


def ids_of(name):
    with open(os.path.join(TINY, name, "expected.json"), encoding="utf-8") as handle:
        return json.load(handle)["batches"][0]["ids"][0]


def on_tied_table(base, adapter):
    with open(os.path.join(base, "config.json"), encoding="utf-8") as one, \
            open(os.path.join(adapter, "adapter_config.json"), encoding="utf-8") as other:
        tied, targets = json.load(one).get("tie_word_embeddings"), json.load(other)["target_modules"]
    return tied and bool({"lm_head", "embed_tokens"} & set(targets))


def compare(name, adapter, out, *options, tolerance=1e-3, base=None, ids=None):
    """Our merged folder beside peft's adapter on the base."""
    import torch
    from peft import PeftModel
    base, ids = base or os.path.join(TINY, name), ids or ids_of(name)
    ours = out + "-adapter"
    write("peft", base, adapter, ours)
    merges = not on_tied_table(base, adapter)
    if merges:
        write("merged", base, adapter, out, *options)
    else:
        done = subprocess.run([TOOL, "merged", base, adapter, out], capture_output=True, text=True)
        assert done.returncode != 0 and "which are one table, cannot be merged" in done.stdout + done.stderr, done
    wanted = logits(PeftModel.from_pretrained(load(base), adapter).eval(), ids)
    loaded = PeftModel.from_pretrained(load(base), ours).eval()
    assert torch.equal(wanted, logits(loaded, ids)), f"{name}: our adapter"
    assert not any("lora_" in key and "vis" in key for key, _ in loaded.named_parameters()), f"{name}: adapters on images"
    if not merges:
        print(f"{name}: not merged")
        return
    plain = logits(load(base), ids)
    apart, moved = (logits(load(out), ids) - wanted).abs().max().item(), (plain - wanted).abs().max().item()
    print(f"{name} {' '.join(map(str, options)) or 'base dtype'}: {apart:.1e} apart, {moved:.1e} by the adapter")
    assert apart <= tolerance and moved > 10 * apart, name


def make_adapter(name, folder, **settings):
    """An adapter that peft writes, of values that matter."""
    import torch
    from peft import LoraConfig, get_peft_model
    model = get_peft_model(load(os.path.join(TINY, name)), LoraConfig(task_type="CAUSAL_LM", **settings))
    torch.manual_seed(7)
    for key, value in model.named_parameters():
        if value.requires_grad:
            value.data.add_(torch.randn_like(value) * 0.05)
    model.save_pretrained(folder)
    return folder


def experts_adapter(name, folder, base):
    """One as peft of transformers 4 wrote it: each expert's own, under the hub's names."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file
    os.makedirs(folder)
    torch.manual_seed(8)
    tensors, targets = {}, ("w1", "w2", "w3") if name == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    for part in os.listdir(base):
        if not part.endswith(".safetensors") or not part.startswith("model"):
            continue
        with safe_open(os.path.join(base, part), "pt") as weights:
            for key in weights.keys():
                module = key.removesuffix(".weight")
                if module.rsplit(".", 1)[-1] in targets and ".experts." in key:
                    rows, columns = weights.get_slice(key).get_shape()
                    tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(4, columns) * 0.1
                    tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(rows, 4) * 0.1
    save_file(tensors, os.path.join(folder, "adapter_model.safetensors"))
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as handle:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "lora_dropout": 0.0,
                   "target_modules": list(targets), "bias": "none", "inference_mode": True}, handle)
    return folder


def further_families(work):
    """Those of golden/families.json, whose weights come from a formula."""
    sys.path.insert(0, os.path.join(SOURCE, "tools"))
    import golden_families
    import golden_wide
    import pathlib
    with open(os.path.join(SOURCE, "tests", "data", "golden", "families.json"), encoding="utf-8") as handle:
        cases = json.load(handle)
    for case in cases:
        base = pathlib.Path(work) / ("base-" + case["name"])
        golden_families.write_folder(case, base)
        ids = golden_wide.batches_of(case["rows"], 131)[0]["ids"][0]
        compare(case["name"], str(base / "adapter_init"), os.path.join(work, case["name"]), "fp32", base=str(base), ids=ids)


def run():
    import warnings
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as work:
        further_families(work)
    if not os.path.isdir(TINY):
        skip("../shared/golden/tiny is not here")
    with tempfile.TemporaryDirectory() as work:
        for name in sorted(os.listdir(TINY)):
            compare(name, os.path.join(TINY, name, "adapter_after_20"), os.path.join(work, name), "fp32")
        after = os.path.join(TINY, "llama", "adapter_after_20")
        compare("llama", after, os.path.join(work, "parts"), "fp32", 60000)
        compare("llama", after, os.path.join(work, "half"), "bf16", tolerance=5e-2)
        compare("llama", make_adapter("llama", os.path.join(work, "own"), r=8, lora_alpha=16, use_rslora=True,
                                      target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
                                      rank_pattern={"v_proj": 4}, alpha_pattern={"up_proj": 4}, modules_to_save=["lm_head"]),
                os.path.join(work, "patterns"))
        compare("llama", make_adapter("llama", os.path.join(work, "by-layer"), r=8, lora_alpha=16,
                                      target_modules="all-linear", exclude_modules=["layers.3.mlp.up_proj"],
                                      rank_pattern={r"layers\.[0-2]\..*v_proj": 32, "model.layers.0.self_attn.q_proj": 4},
                                      alpha_pattern={r".*\.1\..*": 5}),
                os.path.join(work, "layers"))
        compare("llama", make_adapter("llama", os.path.join(work, "two-layers"), target_modules=["q_proj", "self_attn.v_proj"],
                                      layers_to_transform=[1, 3], layers_pattern="layers"), os.path.join(work, "two"))
        tables = ["q_proj", "lm_head", "embed_tokens"]  # beside which peft saves the base's own
        for name in ("llama", "qwen2"):
            compare(name, make_adapter(name, os.path.join(work, name + "-tables"), target_modules=tables, use_rslora=True,
                                       rank_pattern={"embed_tokens": 3}, alpha_pattern={"lm_head": 5}),
                    os.path.join(work, name + "-t"))
        compare("qwen2", make_adapter("qwen2", os.path.join(work, "tied"), target_modules=["q_proj"],
                                      modules_to_save=["embed_tokens"], ensure_weight_tying=True), os.path.join(work, "retied"))
        for name in ("mixtral", "olmoe"):
            base = os.path.join(TINY, name)
            compare(name, experts_adapter(name, os.path.join(work, name + "-e"), base), os.path.join(work, name + "-experts"))


if __name__ == "__main__":
    if not PYTHON:
        skip("MOTLEY_TORCH names no Python with torch, transformers and peft")
    if os.path.realpath(sys.prefix) != os.path.realpath(os.path.dirname(os.path.dirname(PYTHON))):
        os.execv(PYTHON, [PYTHON, *sys.argv])
    run()
