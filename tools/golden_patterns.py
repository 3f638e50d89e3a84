#!/usr/bin/env python3
"""Where peft puts adapters, of which rank and scaled by what, for tests/model/test_lora_sites.c.

Run with a Python that has torch, transformers and peft (versions: tests/data/golden/README.md); prints JSON: a
list of {model: a folder or file of tests/data, config: what LoraConfig was given, modules: {name: [rank, scale]}},
`modules` null where peft refuses. Models have their layout alone (the meta device).
"""
import json
import pathlib
import random
import sys

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import AutoConfig, AutoModelForCausalLM

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data"
MODELS = ["golden/llama", "golden/qwen2", "golden/gemma2", "golden/phi3", "golden/mixtral", "golden/qwen3-moe",
          "golden/olmoe"]
WRITTEN = [
    {"target_modules": ["q_proj", "v_proj"], "rank_pattern": {"model.layers.0.self_attn.q_proj": 4,
                                                              r"layers\.[0-3]\..*v_proj": 32}},
    {"target_modules": "all-linear"},
    {"target_modules": "all-linear", "exclude_modules": ["o_proj", "layers.1.self_attn.k_proj"]},
    {"target_modules": r".*\.[02]\..*(q|v|qkv)_proj", "rank_pattern": {"q_proj": 3, "layers.2.self_attn.q_proj": 5}},
    {"target_modules": ["self_attn.o_proj", "model.layers.1.self_attn.q_proj"]},
    {"target_modules": ["o_proj"], "layers_to_transform": 2, "alpha_pattern": {r"layers\.2": 1, r"o_pro.": 2}},
    {"target_modules": ["o_proj", "q_proj"], "layers_to_transform": [0, 3], "layers_pattern": "layers",
     "use_rslora": True, "alpha_pattern": {"layers.3.*": 7.5}},
    {"target_modules": ["o_proj"], "layers_to_transform": [0, 9], "layers_pattern": ["blocks", "layers"]},
    {"target_modules": ["o_proj"], "layers_to_transform": [1], "layers_pattern": "h"},
    {"target_modules": ["o_proj"], "rank_pattern": {r".*\.(?:0|3)\.self_attn\.(?P<x>o)_proj": 2, "^.*1.*": 3,
                                                    r"(?i:LAYERS)\.2\.\w+\.\w+": 6}},
    {"target_modules": ["o_proj", "k_proj"], "exclude_modules": r".*\.(?!2)\d\.self_attn\.k_proj"},
    {"target_modules": ["o_proj"], "rank_pattern": {"proj": 4, "_proj": 5, "layers.1": 6, "self_attn.o_proj": 7,
                                                    "o_proj": 8}},
    {"target_modules": ["_proj"]},
    {"target_modules": r"o_proj"},
    {"target_modules": r".*o_proj|.*q_proj"},
    {"target_modules": ["o_proj"], "rank_pattern": {"a)|(.*\\.0\\..*": 9, "layers.3.self_attn.o_proj$": 10}},
]


def random_config(rng):
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "self_attn.o_proj", "layers.1.self_attn.k_proj"]
    keys = ["q_proj", "o_proj", r"layers\.[01]\..*", r"layers\.(1|2)\.self_attn\.[kvo]_proj", r".*\.3\..*",
            "model.layers.2.self_attn.v_proj", r"self_attn\..*", r"\w+_proj", r"layers.\d.self_attn.(q|qkv)_proj",
            r"(?!.*k_proj).*", "layers.0.self_attn.o_proj"]
    config = {"target_modules": sorted(rng.sample(names, rng.randint(2, 6)))}
    config["rank_pattern"] = {key: rng.randint(1, 40) for key in rng.sample(keys, rng.randint(0, 4))}
    config["alpha_pattern"] = {key: rng.randint(1, 40) / 2 for key in rng.sample(keys, rng.randint(0, 4))}
    if rng.random() < 0.3:
        config["exclude_modules"] = rng.sample(names, 1)
    if rng.random() < 0.3:
        config["layers_to_transform"] = rng.sample(range(4), rng.randint(1, 3))
    return config


def sites(model, config):
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(DATA / model))
        try:
            adapted = get_peft_model(made, LoraConfig(r=8, lora_alpha=16, **config))
        except ValueError:
            return None
    prefix = "base_model.model."
    return {name.removeprefix(prefix): [module.r["default"], float("%.12g" % module.scaling["default"])]
            for name, module in adapted.named_modules() if isinstance(module, LoraLayer)}


def main():
    rng = random.Random(7)
    cases = [(model, dict(config)) for config in WRITTEN for model in MODELS[:2 if "rank" in str(config) else 7]]
    # of mixtures all-linear takes the routers, too, which Motley refuses
    cases = [(m, c) for m, c in cases if c["target_modules"] != "all-linear" or m in MODELS[:4]]
    cases += [(rng.choice(MODELS), random_config(rng)) for _ in range(40)]
    out = []
    for model, config in cases:
        made = sites(model, dict(config))
        out.append({"model": model, "config": {"r": 8, "lora_alpha": 16, **config}, "modules": made})
        print(model, config, "refused" if made is None else len(made), file=sys.stderr)
    print("[" + ",\n".join(json.dumps(case) for case in out) + "]")


if __name__ == "__main__":
    main()
