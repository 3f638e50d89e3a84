#!/usr/bin/env python3
"""Make tests/data/golden/wide.json: what transformers and peft compute for models of odd and larger shapes.

    python3 tools/golden_wide.py tests/data/golden/wide.json      needs torch, transformers, peft

Weights and ids come from a formula (value()), so that the file holds shapes and results only: the test makes the
same folder. Steps, loss and optimiser are those of make_golden.py, in double precision.
"""
import json
import pathlib
import sys
import tempfile

import numpy
import peft
import torch
import transformers
from safetensors.torch import save_file

import make_golden

COMMON = dict(vocab_size=331, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, pad_token_id=0,
              num_hidden_layers=2)
QKVO = ["q_proj", "k_proj", "v_proj", "o_proj"]
CASES = {
    # name: config class, its settings, lengths of each batch's rows, steps, targets of LoRA
    "llama-288": (transformers.LlamaConfig, dict(COMMON, hidden_size=288, intermediate_size=760, num_attention_heads=8,
                  num_key_value_heads=2, head_dim=36), [[31, 17, 40, 23], [5, 64, 2, 33]], 4, QKVO),
    "qwen3-576": (transformers.Qwen3Config, dict(COMMON, hidden_size=576, intermediate_size=1536, num_attention_heads=9,
                  num_key_value_heads=3, head_dim=64), [[41], [67]], 4, QKVO),
    "llama-1000-tokens": (transformers.LlamaConfig, dict(COMMON, hidden_size=288, intermediate_size=768,
                          num_attention_heads=6, num_key_value_heads=3, head_dim=48), [[1000]], 2, QKVO),
    "gemma3-window": (transformers.Gemma3TextConfig, dict(COMMON, hidden_size=264, intermediate_size=520,
                      num_attention_heads=4, num_key_value_heads=2, head_dim=72, sliding_window=37,
                      query_pre_attn_scalar=72, layer_types=["sliding_attention", "full_attention"],
                      rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                                       "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
                      [[150, 3], [37, 38]], 4, QKVO),
    "mixtral-264": (transformers.MixtralConfig, dict(COMMON, hidden_size=264, intermediate_size=328,
                    num_attention_heads=6, num_key_value_heads=3, head_dim=44, num_local_experts=5,
                    num_experts_per_tok=2), [[29, 14], [51, 8]], 4, QKVO),
    "qwen2-20": (transformers.Qwen2Config, dict(COMMON, hidden_size=300, intermediate_size=500, num_attention_heads=15,
                 num_key_value_heads=5, tie_word_embeddings=True), [[2, 19, 77], [33, 34, 35]], 4, QKVO),
    "phi3-320": (transformers.Phi3Config, dict(COMMON, hidden_size=320, intermediate_size=700, num_attention_heads=5,
                 num_key_value_heads=5, rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                 "partial_rotary_factor": 0.5}), [[47, 9], [21, 60]], 4, ["qkv_proj", "o_proj"]),
}


def mix(seed, count):
    """splitmix64 (Steele, Lea, Flood 2014) of seed + 1 … seed + count, as numbers of 24 bits."""
    with numpy.errstate(over="ignore"):
        z = numpy.uint64(seed) + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return (z ^ (z >> numpy.uint64(31))) >> numpy.uint64(40)


def fnv(name):
    hash = 0xCBF29CE484222325
    for byte in name.encode():
        hash = (hash ^ byte) * 0x100000001B3 % 2**64
    return hash


def value(name, shape, centre, matrices=0.12):
    """Values of a tensor: evenly spread over centre ± 0.15 for vectors, over half of ± `matrices` for matrices."""
    spread = 0.3 if len(shape) == 1 else matrices
    units = mix(fnv(name), int(numpy.prod(shape))).astype(numpy.float64) / (1 << 24) - 0.5
    return torch.from_numpy((centre + spread * units).astype(numpy.float32).reshape(shape))


def batches_of(lengths, vocab):
    batches = []
    for b, rows in enumerate(lengths):
        ids = [[int(x) % (vocab - 3) + 3 for x in mix(1000 * b + r, n)] for r, n in enumerate(rows)]
        batches.append({"ids": ids, "labels": [[-100] + row[1:] for row in ids]})
    return batches


def make_case(name, scratch):
    kind, settings, lengths, steps, targets = CASES[name]
    folder = scratch / name
    config = kind(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    tensors = {}
    with __import__("safetensors").safe_open(folder / "model.safetensors", "pt") as file:
        for key in file.keys():
            tensors[key] = list(file.get_slice(key).get_shape())
    ones = kind is not transformers.Gemma3TextConfig  # whose norms multiply by 1 + weight
    centre = lambda key: 1.0 if "norm" in key and ones else 0.0
    save_file({key: value(key, shape, centre(key)) for key, shape in tensors.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    case = {"name": name, "config": json.loads((folder / "config.json").read_text()), "rows": lengths, "steps": steps,
            "norm_centre": 1.0 if ones else 0.0, "tensors": tensors, "targets": targets}
    lora = peft.get_peft_model(make_golden.load(folder, torch.float32), peft.LoraConfig(
        r=6, lora_alpha=12, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"))
    lora.save_pretrained(folder / "adapter")
    with __import__("safetensors").safe_open(folder / "adapter" / "adapter_model.safetensors", "pt") as file:
        case["adapter"] = {key: list(file.get_slice(key).get_shape()) for key in file.keys()}
    save_file({key: value(key, shape, 0.0) for key, shape in case["adapter"].items()},
              folder / "adapter" / "adapter_model.safetensors", metadata={"format": "pt"})
    adapter_config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    case["adapter_config"] = {k: adapter_config[k] for k in ("peft_type", "task_type", "r", "lora_alpha",
                                                             "target_modules", "lora_dropout", "bias")}
    batches = batches_of(lengths, settings["vocab_size"])
    make_golden.WARMUP = 1
    with make_golden.Doubled():
        model = make_golden.load(folder, torch.float64)
        case["full"], _ = make_golden.train(model, batches, 1e-3, 0.1, steps=steps)
        model = peft.PeftModel.from_pretrained(make_golden.load(folder, torch.float64), folder / "adapter",
                                               is_trainable=True, autocast_adapter_dtype=False).to(torch.float64)
        case["lora"], _ = make_golden.train(model, batches, 5e-3, 0.0, steps=steps)
    print(name, case["full"]["loss"], case["full"]["grad_norm"], case["lora"]["loss"], case["lora"]["grad_norm"], flush=True)
    return case


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        cases = [make_case(name, pathlib.Path(scratch)) for name in CASES]
    pathlib.Path(sys.argv[1]).write_text(json.dumps(cases, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
