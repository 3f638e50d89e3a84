"""Folders whose config.json or generation_config.json is mutated key by key: the loss of a row says what was read."""
import copy
import json

from cases import DATA

FAMILIES = ["llama", "llama3-rope", "mistral", "qwen2", "qwen3", "mixtral", "qwen3-moe", "olmoe", "gemma2", "gemma3", "phi3",
            "smollm3"]
IDS = [5, 17, 9, 88, 40, 3, 77, 21, 64, 11, 100, 54, 33, 8, 19, 71]
REMOVED = "\0removed"
ELSEWHERE = {  # keys that other families or versions have for the same or beside it
    "torch_dtype": ["float32", "bfloat16", None], "rope_theta": [10000.0, 5000.0, None, "10000"],
    "rope_scaling": [None, {}, {"type": "linear", "factor": 2.0}, {"rope_type": "default"},
                     {"rope_type": "linear", "factor": 4}, {"type": "dynamic", "factor": 2.0}],
    "partial_rotary_factor": [1.0, 0.5, None], "head_dim": [None, 8, 16], "qkv_bias": [True, False],
    "attention_bias": [True, False, None], "mlp_bias": [True, None], "use_sliding_window": [True, False, None],
    "sliding_window": [None, 4, 0, 4096], "max_window_layers": [0, 1, None],
    "layer_types": [None, ["full_attention"], ["sliding_attention"] * 4, ["full_attention"] * 4],
    "quantization_config": [None, {}], "num_experts": [0, 8], "hidden_act": ["silu", "gelu", "relu", None],
    "hidden_activation": ["gelu_pytorch_tanh", None, "gelu"], "vocab_size": [1, 0, 100000], "is_decoder": [True],
    "logit_scale": [2.0], "norm_topk_prob": [True, False, None], "tie_word_embeddings": [True, False, None],
    "auto_map": [{}, None, {"AutoConfig": "a.B"}, {"AutoConfig": None}, {"AutoModelForCausalLM": "a.B"}],
    "dtype": ["float32", "bfloat16", "torch.float16", "x", "half", None, {"a": 1}], "num_labels": [None, 3, "2", True],
    "id2label": [None, {}, {"0": "a"}, {"x": "a"}, {"0": 1}, []], "label2id": [None, {"a": 0}, {"a": 0.5}, 3],
    "problem_type": [None, "regression", "x"], "return_dict": [True, None], "output_hidden_states": [True, None, "x", 0.5],
    "transformers_version": ["4.40.0", None, 4], "chunk_size_feed_forward": [0, 1, None], "is_encoder_decoder": [False, True],
    "attn_implementation": ["eager", "sdpa", "x", None], "_attn_implementation": ["sdpa", None, 1],
    "_attn_implementation_autoset": [True, False], "cache_implementation": ["hybrid", "static", None, "x"],
    "per_layer_config": [None, {"0": {"hidden_size": 8}}], "configuration_files": [["config.4.0.0.json"], None],
    "decoder": [None, {}], "text_config": [None, {}, {"vocab_size": 9}], "vision_config": [None, {}],
    "name_or_path": ["x", None, 5], "_name_or_path": ["x", None], "use_return_dict": [True], "sub_configs": [{}],
    "to_dict": [None], "validate": [None], "mlp_layer_types": [None, ["dense"]], "unsloth_version": ["2025.1"],
    "pruned_heads": [{}], "tie_encoder_decoder": [False, True], "torchscript": [True, False], "max_length": [20, "x", None],
    "temperature": [0.5, "x", 0], "do_sample": [True, "x"], "num_beams": [2, 0, None], "bos_token_id": [[1], None, 300, -1],
    "sep_token_id": [3, "x"], "decoder_start_token_id": [1, None], "rope_local_base_freq": [5000.0, None, 10000],
    "sliding_window_pattern": [2, 0, None, 6], "original_max_position_embeddings": [16, 64, None, 16.0],
    "clip_qkv": [None, 8.0], "no_rope_layer_interval": [2, 0], "no_rope_layers": [None, [1] * 8, [True] * 8, [0]],
    "mlp_only_layers": [None, [], [0]], "decoder_sparse_step": [1, 2, 0], "layer_norm_eps": [1e-6], "n_embd": [3],
    "output_attentions": [False, True, None], "embd_pdrop": [0, 0.0, 0.1, None], "use_bidirectional_attention": [None, False], "pad_token_id": [-1, 300, None, 0, -400, {"a": 1}], "eos_token_id": [[2, 300], [], None, 0],
    "model_type": ["llama", "mistral", "qwen2", "bert", None], "architectures": [None, [], ["LlamaModel"],
                                                                              ["BertForMaskedLM"], [None], "x"]}
GENERATION = {  # keys of generation_config.json that transformers looks at
    "assistant_ensemble_weight": [0.5, 1.0, None, "x"], "cache_implementation": ["static", "quantized", None, "x"],
    "compile_config": [None, {}], "early_stopping": [True, "never", None, 1, "always"], "max_new_tokens": [5, 0, None, 0.5],
    "num_return_sequences": [1, 2, None, True], "num_beams": [1, 4, None], "do_sample": [True, False, None, 1],
    "suppress_tokens": [[5], None, 3], "watermarking_config": [None, {}, {"greenlist_ratio": 0.3}],
    "eos_token_id": [2, [2, 5], [], None], "pad_token_id": [0, None, "x"], "temperature": [0.5, 0, "x"], "top_k": [5, "x"],
    "transformers_version": ["5.24.0", None], "max_length": [20, None, "x"], "trust_remote_code": [True]}
ODD = [float("nan"), float("inf"), None, True, False, 0, 1, -1, 2, 3, 1e30, 0.5, "", "a", "4", [], [1], {}, {"a": 1}, 2 ** 31, 2 ** 40]


def change(rng, config, key, extra):
    value = config.get(key)
    kind = rng.randrange(6)
    if kind == 0:
        return REMOVED
    if kind == 1:
        return None
    if kind == 2 and key in extra:
        return rng.choice(extra[key])
    if kind == 3 and isinstance(value, (int, float)) and abs(value) < 2 ** 63:
        return rng.choice([value * 2, value + 1, value - 1, float(value), str(value), -value, int(value)])
    if kind == 4 and isinstance(value, dict) and value:
        inner = copy.deepcopy(value)
        inside = rng.choice(sorted(inner))
        inner[inside] = rng.choice([None, "x", 0, 1, 2.0, 1e6, [], {}])
        if rng.random() < 0.3:
            del inner[inside]
        return inner
    return rng.choice(ODD)


def mutated(rng, config, extra):
    """The config with one key changed, two now and then, and the names that a refusal may give."""
    config, keys = copy.deepcopy(config), []
    for _ in range(1 if rng.random() < 0.8 else 2):
        key = rng.choice(sorted({*config, *extra}))
        value = change(rng, config, key, extra)
        if isinstance(config.get(key), dict):
            keys += config[key]
        if isinstance(value, dict):
            keys += value
        if value == REMOVED:
            config.pop(key, None)
        else:
            config[key] = value
        keys.append(key)
    return config, keys


def make(rng):
    family = rng.choice(FAMILIES)
    config = json.loads((DATA / "golden" / family / "config.json").read_text())
    files = {"config.json": config}
    generation = DATA / "golden" / family / "generation_config.json"
    if generation.exists():
        files["generation_config.json"] = json.loads(generation.read_text())
    if rng.random() < 0.15:
        name, extra = "generation_config.json", GENERATION
        files.setdefault(name, {"eos_token_id": 2})
    else:
        name, extra = "config.json", ELSEWHERE
    files[name], keys = mutated(rng, files[name], extra)
    return {"kind": "configs", "keys": keys, "files": files,
            "links": {"model.safetensors": f"golden/{family}/model.safetensors"},
            "ask": [{"do": "loss", "ids": IDS, "labels": IDS, "logits": rng.random() < 0.2}]}
