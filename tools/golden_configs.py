#!/usr/bin/env python3
"""What transformers makes of config.json files: every key of every family absent, null, of another type, at odd values.

    python3 tools/golden_configs.py > tests/data/configs/cases.json        needs torch and transformers 5

One case a line: [family, patch, what]. The patch is laid over the family's base ("-key" takes a key away); `what` is
null where transformers refuses the file, else the numbers that tests/model/test_config_cases.c compares, of which
those are left out that are as of the family's first case.
"""
import copy
import json
import sys

import torch
import transformers

BASE = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
ROPE = {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
WINDOW = {"sliding_window": 6}
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 16, "hidden_activation": "gelu_pytorch_tanh", **WINDOW,
         "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}
FAMILIES = {
    "llama": {"head_dim": 8, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, **ROPE},
    "mistral": {"head_dim": 8, **WINDOW, **ROPE},
    "qwen2": {"use_sliding_window": False, "max_window_layers": 1, **WINDOW, **ROPE},
    "qwen3": {"head_dim": 8, "use_sliding_window": True, "max_window_layers": 1, "attention_bias": False, **WINDOW,
              **ROPE},
    "mixtral": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.01,
                "sliding_window": None, **ROPE},
    "qwen3_moe": {"head_dim": 8, **EXPERTS, "moe_intermediate_size": 12, "norm_topk_prob": True,
                  "decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False, **ROPE},
    "olmoe": {**EXPERTS, "norm_topk_prob": False, "attention_bias": False, "clip_qkv": None, **ROPE},
    "gemma2": {**GEMMA, **ROPE},
    "gemma3_text": {**GEMMA, "num_hidden_layers": 7, "final_logit_softcapping": None, "attn_logit_softcapping": None,
                    "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                                        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "phi3": {"original_max_position_embeddings": 64, "sliding_window": None, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
             **ROPE},
    "smollm3": {"num_hidden_layers": 5, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 0, 1, 0],
                "use_sliding_window": True, **WINDOW, "attention_bias": False, "mlp_bias": False, **ROPE},
}
ODD = {
    "num_key_value_heads": [1, 4, 3, 8, 0], "head_dim": [16, 6, 2, 0, None, 16.0], "num_attention_heads": [8, 2, 0],
    "tie_word_embeddings": [True], "sliding_window": [1, 200, 0], "use_sliding_window": [True, False],
    "max_window_layers": [0, 2, 9], "layer_types": [["full_attention"] * 3, ["sliding_attention"] * 3,
                                                    ["sliding_attention", "full_attention", "full_attention"],
                                                    ["full_attention"], [], ["other"] * 3],
    "attention_bias": [True], "mlp_bias": [True], "norm_topk_prob": [True, False], "num_experts_per_tok": [4, 1, 5, 0],
    "mlp_only_layers": [[0], [2, 0], [9]], "decoder_sparse_step": [2, 0], "num_local_experts": [8],
    "num_experts": [8], "eos_token_id": [[1, 2], 64, 32000, -1, []], "bos_token_id": [64, -1], "pad_token_id": [64, 0],
    "query_pre_attn_scalar": [8, 20, 0], "final_logit_softcapping": [20.0, 0.0], "attn_logit_softcapping": [20.0],
    "no_rope_layers": [[1] * 5, [0] * 5, [0] * 9, [0]], "no_rope_layer_interval": [2, 1],
    "rms_norm_eps": [1e-3, 0.0], "hidden_act": ["gelu", "silu", "swish"], "hidden_activation": ["gelu", "silu"],
    "sliding_window_pattern": [2, 3], "_sliding_window_pattern": [2], "partial_rotary_factor": [0.5, 1.0, None],
    "rope_theta": [5000.0, 5000, None, "5000"], "rope_local_base_freq": [5000.0],
    "attention_dropout": [0, 0.0, 0.1], "use_bidirectional_attention": [True], "clip_qkv": [8.0],
    "rope_scaling": [None, {}, {"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 4},
                     {"type": "linear", "rope_type": "default", "factor": 2.0},
                     {"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0},
                     {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 32},
                     {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
                     {"type": "yarn", "factor": 4.0}, {"type": "other", "factor": 2.0}, {"type": None}],
    "rope_parameters": [{"rope_type": "default"}, {"rope_theta": 300.0}, {},
                        {"rope_theta": 300.0, "rope_type": "linear", "factor": 2.0}],
    "torch_dtype": ["bfloat16"], "dtype": ["float16", None], "architectures": [["XForCausalLM"], [], ["LlamaModel"]],
}
TOGETHER = [
    {"-rope_parameters": 0, "rope_theta": 5000.0}, {"-rope_parameters": 0},
    {"-rope_parameters": 0, "rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"-rope_parameters": 0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_parameters": {"rope_theta": 300.0, "rope_type": "default"}, "rope_theta": 5000.0,
     "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_parameters": {"rope_theta": 300.0, "rope_type": "default"}, "rope_theta": None},
    {"num_key_value_heads": None, "num_attention_heads": 2}, {"-head_dim": 0, "num_attention_heads": 3},
    {"-head_dim": 0, "num_attention_heads": 2}, {"sliding_window": 6, "use_sliding_window": False},
    {"sliding_window": None, "use_sliding_window": True},
    {"sliding_window": None, "layer_types": ["sliding_attention"] * 3},
    {"use_sliding_window": False, "layer_types": ["sliding_attention"] * 3},
]
NAN = [None, True, "3", 2.0, 3, [], {}]


def windows(model, config):
    """Of each layer the tokens of its window, as its mask has them; 0 for none, -1 for a window of no token."""
    count, window = len(model.model.layers), getattr(config, "sliding_window", None)
    if config.model_type in ("llama", "olmoe"):
        return [0] * count
    kinds = config.layer_types if "layer_types" in type(config).__dataclass_fields__ else ["sliding_attention"] * count
    return [(window or -1) if kind == "sliding_attention" and window is not None else 0 for kind in kinds[:count]]


def frequencies(model, config):
    rotary = type(model.model.rotary_emb)(config)
    names = [n for n, _ in rotary.named_buffers() if n.endswith("inv_freq") and "original" not in n]
    return {n: [round(float(f), 9) for f in rotary.get_buffer(n)][:4] for n in sorted(names)}


def describe(document):
    document = copy.deepcopy(document)
    config = transformers.CONFIG_MAPPING[document["model_type"]].from_dict(document)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, experts_implementation="eager")
    attention = model.model.layers[0].self_attn
    rows = (attention.qkv_proj if hasattr(attention, "qkv_proj") else attention.q_proj).weight.shape[0]
    freq = frequencies(model, config)
    if any(f != f for fs in freq.values() for f in fs):
        raise ValueError("NaN")
    tied, parameters = model.lm_head.weight is model.model.embed_tokens.weight, sum(p.numel() for p in model.parameters())
    # the model must compute: sizes that only the config allows are no model
    model.to_empty(device="cpu")
    if parameters < 3000000:
        model(torch.tensor([[0, 1, 2]]))
    what = {"parameters": parameters, "tied": tied, "rows": rows, "max": config.max_position_embeddings,
            "eps": config.rms_norm_eps, "windows": windows(model, config), "freq": freq,
            "scale": float(attention.scaling)}
    if config.model_type in ("mixtral", "qwen3_moe", "olmoe"):
        what["active"] = config.num_experts_per_tok
        what["normed"] = config.model_type == "mixtral" or config.norm_topk_prob
    if config.model_type.startswith("gemma"):
        what["caps"] = [config.attn_logit_softcapping or 0, config.final_logit_softcapping or 0]
    if config.model_type == "smollm3":
        what["rotates"] = [bool(layer.self_attn.use_rope) for layer in model.model.layers]
    return what


def cases(family):
    own = FAMILIES[family]
    keys = [k for k in {**BASE, **own}]
    yield {}
    for key in keys:
        yield {"-" + key: 0}
        for value in NAN:
            if not isinstance(value, (dict, list)) or key in ("eos_token_id", "layer_types", "rope_parameters"):
                yield {key: value}
    for key, values in ODD.items():
        for value in values:
            yield {key: value}
    yield from TOGETHER


def main():
    transformers.logging.set_verbosity_error()
    print(json.dumps({"base": BASE, "families": FAMILIES, "transformers": transformers.__version__}))
    for family in FAMILIES:
        seen, first = set(), None
        for patch in cases(family):
            text = json.dumps(patch)
            if text in seen:
                continue
            seen.add(text)
            document = {**copy.deepcopy(BASE), **copy.deepcopy(FAMILIES[family]), "model_type": family}
            for key, value in patch.items():
                if key[0] == "-":
                    document.pop(key[1:], None)
                else:
                    document[key] = copy.deepcopy(value)
            try:
                what = describe(document)
            except Exception as error:  # whatever it says, it refuses
                print(family, text, type(error).__name__, str(error)[:200].replace("\n", " "), file=sys.stderr)
                what = None
            if first is None:
                first = what
            elif what is not None:
                what = {key: value for key, value in what.items() if value != first[key]}
            print(json.dumps([family, patch, what], separators=(",", ":")))


main()
