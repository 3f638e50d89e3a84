"""Adapters whose adapter_config.json is mutated key by key, on a tiny model of the tree."""
import json

import configs
from cases import DATA

EXTRA = {"use_dora": [True, False, None, 0, "", float("nan"), {}], "use_rslora": [True], "rank_pattern": [{"q_proj": 8}, {"layers.0.self_attn.q_proj": 16}, {"q_proj": 8.0}, {"q_proj": None}, [], {"": 8}, {"x": 3},
                          {"q_proj": 0}, {"(": 8}, {"q_proj": "8"}],
         "alpha_pattern": [{"q_proj": 8}, {"k_proj": 0.5}, {"q_proj": 0}, {"q_proj": -1}, {"q_proj": None}, {"q_proj": "4"}, []],
         "init_lora_weights": [True, False, "gaussian", "pissa", "x", {"a": 1}, None, 0], "trainable_token_indices": [None, [], [1], {"embed_tokens": [1]}],
         "loftq_config": [{}, None, {"a": 1}], "layer_replication": [None, [], [[0, 1]]], "megatron_config": [None, {}, {"a": 1}],
         "lora_bias": [True, False, None], "fan_in_fan_out": [True, False, None], "use_qalora": [True, False], "inference_mode": [True, False, "x"],
         "ensure_weight_tying": [True, False, None], "layers_pattern": ["layers", ["layers"], "", None, "x"], "unknown_key": [1, None, {}],
         "base_model_name_or_path": [None, "x", 3], "revision": ["x", None], "auto_mapping": [None, {"a": 1}, 1], "exclude_modules": [["q_proj"], "q_proj", []],
         "target_modules": ["all-linear", ".*q_proj", ["q_proj"], "q_proj", [], ["q_proj", "v_proj", "k_proj", "o_proj", "x"]],
         "layers_to_transform": [[0], 0, [0, 1, 2, 3], []], "bias": ["all", "lora_only", "none"],
         "modules_to_save": [["lm_head"], [], ["embed_tokens"]], "peft_type": ["lora", "IA3", None],
         "lora_alpha": [1, 16.5, 0, -3], "r": [8, 0, 16.0], "task_type": [None, "SEQ_CLS", False, "causal_lm", ""], "lora_dropout": [0.5, None, 1]}


def make(rng):
    family = rng.choice(["llama", "qwen2", "qwen3", "mistral", "smollm3", "gemma2", "gemma3", "phi3"])
    base = DATA / "golden" / family
    config = json.loads((base / "adapter_init" / "adapter_config.json").read_text())
    if rng.random() < 0.5:
        key = rng.choice(sorted(EXTRA))
        config[key] = rng.choice(EXTRA[key])
        keys = [key]
    else:
        config, keys = configs.mutated(rng, config, {})
    return {"kind": "adapters", "keys": keys, "files": {"config.json": json.loads((base / "config.json").read_text())},
            "links": {"model.safetensors": f"golden/{family}/model.safetensors"},
            "adapter": {"files": {"adapter_config.json": config},
                        "links": {"adapter_model.safetensors":
                                  f"golden/{family}/adapter_after_20/adapter_model.safetensors"}},
            "ask": [{"do": "loss", "ids": configs.IDS, "labels": configs.IDS}]}
