#!/usr/bin/env python3
"""Make tests/data/golden/families.json: what transformers and peft compute for tiny models of further families.

    python3 tools/golden_families.py tests/data/golden/families.json [NAME ...]      needs torch, transformers, peft

Weights and ids come from golden_wide.py's formula, so a family costs some kilobytes: its config.json, the names and
shapes of its tensors as save_pretrained writes them, and the results of make_golden.py's 20 steps of LoRA and of full
training in double precision, with the tokens that the model then chooses greedily. Cases that are not named are kept.
"""
import json
import pathlib
import re
import sys
import tempfile

import peft
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

import golden_wide
import make_golden

COMMON = dict(vocab_size=131, hidden_size=32, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2,
              num_hidden_layers=4, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0)
QKVO = ["q_proj", "k_proj", "v_proj", "o_proj"]
ROWS = [[31, 17, 40, 23], [12, 38, 9, 25], [28, 11, 36, 20], [7, 33, 15, 39], [22, 26, 10, 35]]
LORA = {"peak_lr": 5e-3, "weight_decay": 0.0, "r": 8, "alpha": 16, "dropout": 0.0}
GREEDY, PROMPT = 24, 5
CENTRED = re.compile(r"scal|(norm|\bln_).*(?<!\.bias)$")  # weights of norms, and factors
SPREAD = 0.5  # of a matrix's values: wide enough for scores and gates to matter
NEOX = {key: value for key, value in COMMON.items() if key != "num_key_value_heads"}
NEOX_TARGETS = ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
GRANITE = dict(COMMON, embedding_multiplier=3.0, residual_multiplier=0.22, attention_multiplier=0.3, logits_scaling=0.7)
GRANITE_MOE = dict(GRANITE, intermediate_size=24, num_local_experts=6, num_experts_per_tok=2)
GPT_OSS = dict(COMMON, head_dim=16, intermediate_size=24, num_local_experts=6, num_experts_per_tok=2, sliding_window=12,
               swiglu_limit=0.8)
GEMMA4 = dict(COMMON, head_dim=12, global_head_dim=16, sliding_window=12, hidden_size_per_layer_input=0,
              final_logit_softcapping=8.0, layer_types=["sliding_attention", "full_attention"] * 2)
GEMMA4_MOE = dict(enable_moe_block=True, num_experts=6, top_k_experts=3, moe_intermediate_size=24)
# as E2B and E4B: the last three layers read k and v of layers 1 and 2, and each layer has an input of its own
GEMMA4_SMALL = dict(GEMMA4, num_hidden_layers=6, layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
                    hidden_size_per_layer_input=8, vocab_size_per_layer_input=131, num_kv_shared_layers=3,
                    use_double_wide_mlp=True)
PER_LAYER = ["per_layer_input_gate", "per_layer_projection", "per_layer_model_projection"]
LATENT = dict({**COMMON, "num_key_value_heads": 4}, kv_lora_rank=24, n_routed_experts=6, num_experts_per_tok=3,
              moe_intermediate_size=24)
LATENT_TARGETS = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12)
DELTA_TARGETS = [*QKVO, "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", "down_proj"]
MAMBA = dict(layer_types=["mamba", "mamba", "attention", "mamba"], mamba_n_heads=4, mamba_d_head=16, mamba_d_state=24, mamba_chunk_size=8)
MAMBA_TARGETS = [*QKVO, "in_proj", "out_proj", "input_linear", "output_linear"]
# name: config class, its settings, targets of LoRA
CASES = {
    # norms add 1 to their weights, and there are none behind attention and FFN
    "gemma": ("Gemma", dict(COMMON, head_dim=16), QKVO),
    # four factors, none of them 1
    "granite": ("Granite", GRANITE, [*QKVO, "down_proj"]),
    # … which a mixture has, too, whose experts are one tensor; and a shared expert beside them
    "granitemoe": ("GraniteMoe", GRANITE_MOE, QKVO),
    "granitemoeshared": ("GraniteMoeShared", dict(GRANITE, intermediate_size=24, shared_intermediate_size=40, num_local_experts=6,
                                                  num_experts_per_tok=3), [*QKVO, "input_linear", "output_linear"]),
    # three of four layers have Mamba-2's state spaces; a mixture without rotation, and the shared expert alone with one
    "granitemoehybrid": ("GraniteMoeHybrid", dict(GRANITE_MOE, shared_intermediate_size=40, **MAMBA), MAMBA_TARGETS),
    "granitemoehybrid-dense": ("GraniteMoeHybrid", dict(GRANITE, num_local_experts=0, num_experts_per_tok=0, position_embedding_type="rope",
                                                        shared_intermediate_size=56, **MAMBA), MAMBA_TARGETS),
    # norms behind attention and FFN alone, and one over all heads of q and of k
    "olmo2": ("Olmo2", COMMON, [*QKVO, "gate_proj", "down_proj"]),
    # OLMo 2 with windows in three of four layers, and scaled frequencies in the fourth
    "olmo3": ("Olmo3", dict(COMMON, sliding_window=12, rope_parameters={
        "full_attention": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}}), QKVO),
    # neighbouring values are rotated as pairs
    "helium": ("Helium", dict(COMMON, head_dim=8), QKVO),
    "ernie4_5": ("Ernie4_5", dict(COMMON, head_dim=12, use_bias=True), [*QKVO, "up_proj"]),
    # half of each head is rotated; gate and up are one matrix beside three of attention
    "glm": ("Glm", dict(COMMON, head_dim=16), [*QKVO, "gate_up_proj"]),
    "glm4": ("Glm4", dict(COMMON, head_dim=16), [*QKVO, "gate_up_proj"]),
    "seed_oss": ("SeedOss", dict(COMMON, head_dim=16, attention_dropout=0.0, residual_dropout=0.0), QKVO),
    "internlm3": ("InternLM3", dict(COMMON, head_dim=12), QKVO),
    "ministral": ("Ministral", dict(COMMON, head_dim=16, sliding_window=12,
                                    layer_types=["sliding_attention", "full_attention"] * 2), QKVO),
    "ministral3": ("Ministral3", dict(COMMON, head_dim=16, rope_parameters={
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0, "original_max_position_embeddings": 128, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1}), QKVO),
    # mixtures of experts: a shared expert that a score weighs, and a dense layer
    "qwen2_moe": ("Qwen2Moe", dict(COMMON, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
                                   shared_expert_intermediate_size=40, mlp_only_layers=[2]),
                  QKVO),
    # the same experts behind gated delta nets, with the chosen experts' weights divided by their sum
    "qwen3_5_moe": ("Qwen3_5MoeText", dict(COMMON, head_dim=16, num_experts=6, num_experts_per_tok=3, **DELTA,
                                           moe_intermediate_size=24, shared_expert_intermediate_size=40),
                    DELTA_TARGETS[:-1]),
    # … which are packed by head of k; layers 1 and 2 are dense
    "qwen3_next": ("Qwen3Next", dict(COMMON, head_dim=16, num_experts=6, num_experts_per_tok=3, **DELTA,
                                     moe_intermediate_size=24, shared_expert_intermediate_size=40, decoder_sparse_step=1,
                                     mlp_only_layers=[1, 2]),
                   [*QKVO, "in_proj_qkvz", "in_proj_ba", "out_proj"]),
    # logistic scores, a bias for the choice, a factor, dense layers first, half of each head is rotated
    "glm4_moe": ("Glm4Moe", dict(COMMON, head_dim=16, n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=24,
                                 n_shared_experts=2, routed_scaling_factor=1.7, first_k_dense_replace=1,
                                 use_qk_norm=True), QKVO),
    "dots1": ("Dots1", dict(COMMON, head_dim=16, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
                            n_shared_experts=1, first_k_dense_replace=2, routed_scaling_factor=2.5, sliding_window=12,
                            max_window_layers=1), QKVO),
    "ernie4_5_moe": ("Ernie4_5_Moe", dict(COMMON, moe_num_experts=6, moe_k=2, moe_intermediate_size=24,
                                          moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_end_index=2), QKVO),
    # latent attention: q of a latent, too, and v as wide as q; then q of the layer's input, a narrower v, and scores
    # that YaRN scales; then both by turns, pairs that are no neighbours, and the first two layers dense
    "glm4_moe_lite": ("Glm4MoeLite", dict(LATENT, q_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=16,
                                          n_shared_experts=2, routed_scaling_factor=1.7), LATENT_TARGETS),
    "deepseek_v2": ("DeepseekV2", dict(LATENT, q_lora_rank=None, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=12,
                                       n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=0.8,
                                       rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "beta_fast": 32,
                                                        "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.9,
                                                        "original_max_position_embeddings": 16}),
                    ["q_proj", *LATENT_TARGETS[2:]]),
    "deepseek_v3": ("DeepseekV3", dict(LATENT, q_lora_rank=20, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=12,
                                       n_shared_experts=1, first_k_dense_replace=2, routed_scaling_factor=2.5, n_group=1,
                                       topk_group=1, rope_interleave=False), LATENT_TARGETS),
    # a sink in each head's softmax, clamped gates (some are), biases on router and experts, YaRN
    "gpt_oss": ("GptOss", GPT_OSS, QKVO),
    # heads of two shapes, v that is k in the wider ones, a number of each layer
    "gemma4": ("Gemma4Text", dict(GEMMA4, attention_k_eq_v=True, num_global_key_value_heads=1), [*QKVO, "down_proj"]),
    # … with experts beside the dense FFN, a norm and factors before the router, and a factor of each expert's weights
    "gemma4_moe": ("Gemma4Text", dict(GEMMA4, **GEMMA4_MOE, attention_k_eq_v=True, num_global_key_value_heads=1),
                   [*QKVO, "gate_proj", "down_proj"]),
    "gemma4_small": ("Gemma4Text", GEMMA4_SMALL, [*QKVO, "up_proj", "down_proj", *PER_LAYER]),
    # gated convolutions over three tokens in two of four layers, and an FFN whose width follows from several keys
    "lfm2": ("Lfm2", dict(COMMON, layer_types=["conv", "full_attention"] * 2, block_multiple_of=8,
                          block_ffn_dim_multiplier=1.2), ["q_proj", "k_proj", "v_proj", "out_proj", "in_proj", "w1", "w2", "w3"]),
    "cwm": ("Cwm", dict(COMMON, head_dim=16, sliding_window=12), QKVO),
    # adapters on the tables, apart and tied; the second's logits are scaled
    "llama-tables": ("Llama", COMMON, ["q_proj", "lm_head", "embed_tokens"]),
    "granite-tables": ("Granite", dict(GRANITE, tie_word_embeddings=True), ["v_proj", "lm_head", "embed_tokens"]),
    # adapters on tensors of all experts (EXPERTS): both, beside others and beside dense layers, and one alone
    "gpt_oss-experts": ("GptOss", GPT_OSS, ["q_proj", "o_proj"]),
    "gemma4_moe-experts": ("Gemma4Text", dict(GEMMA4, **GEMMA4_MOE, attention_k_eq_v=True, num_global_key_value_heads=1),
                           ["gate_proj", "down_proj"]),
    "granitemoe-experts": ("GraniteMoe", GRANITE_MOE, []),
    "glm4_moe_lite-experts": ("Glm4MoeLite", dict(LATENT, q_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=4,
                                                  v_head_dim=16, n_shared_experts=1), ["q_b_proj", "kv_b_proj"]),
    "qwen3_moe-experts": ("Qwen3Moe", dict(COMMON, head_dim=16, num_experts=5, num_experts_per_tok=2,
                                           moe_intermediate_size=24, mlp_only_layers=[2]), ["v_proj"]),
    "mixtral-experts": ("Mixtral", dict(COMMON, intermediate_size=24, num_local_experts=4, num_experts_per_tok=2,
                                        sliding_window=None), ["k_proj"]),
    # gated delta nets in three of four layers, with two heads of v for each of k; a gate in the fourth
    "qwen3_5": ("Qwen3_5Text", dict(COMMON, head_dim=16, **DELTA), DELTA_TARGETS),
}

# What LoraConfig has beside target_modules; such a case has no full training
EXPERTS = {
    "gpt_oss-experts": dict(target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
                            rank_pattern={"experts.down_proj": 3}),
    "gemma4_moe-experts": dict(target_parameters=["experts.gate_up_proj", "experts.down_proj"], rank_pattern={
        r"layers.1.experts.gate_up_proj": 5}, alpha_pattern={"experts.down_proj": 7}),
    "granitemoe-experts": dict(target_parameters=["block_sparse_moe.experts.gate_up_proj", "experts.down_proj"], use_rslora=True),
    "glm4_moe_lite-experts": dict(target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
    "qwen3_moe-experts": dict(target_parameters=["experts.down_proj"]),
    "mixtral-experts": dict(target_parameters=["layers.1.mlp.experts.gate_up_proj", "layers.3.mlp.experts.gate_up_proj",
                                               "layers.3.mlp.experts.down_proj"]),
}

SMALL = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
GEMMA4_VISION = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
                     head_dim=4, patch_size=4, pooling_kernel_size=1, position_embedding_size=16)
QWEN = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, out_hidden_size=32, patch_size=2,
            spatial_merge_size=1, temporal_patch_size=1)
IMAGES = r".*(visual|vision_tower|embed_vision|multi_modal_projector).*"
UNTRAINED = IMAGES + r"|.*e_score_correction_bias"  # a router's bias, which the class itself does not train
# Models that also read images: class before "Config", text_config, keys beside it, targets. Rows are of text.
NESTED = {
    "gemma3-nested": ("Gemma3", dict(COMMON, head_dim=16, sliding_window=12, query_pre_attn_scalar=20, layer_types=[
        "sliding_attention", "full_attention"] * 2), dict(vision_config=SMALL, mm_tokens_per_image=4), QKVO),
    "gemma4-nested": ("Gemma4", GEMMA4, dict(audio_config=None, vision_config=GEMMA4_VISION), QKVO),
    "gemma4_moe-nested": ("Gemma4", dict(GEMMA4, **{**GEMMA4_MOE, "top_k_experts": 2, "moe_intermediate_size": 20}), dict(audio_config=None, vision_config=GEMMA4_VISION), QKVO),
    "gemma4_small-nested": ("Gemma4", GEMMA4_SMALL, dict(audio_config=None, vision_config=GEMMA4_VISION), QKVO),
    "mistral3": ("Mistral3", dict(COMMON, model_type="mistral", head_dim=16, sliding_window=None),
                 dict(vision_config=dict(SMALL, head_dim=4), tie_word_embeddings=False), QKVO),
    "mistral3-ministral3": ("Mistral3", dict(COMMON, model_type="ministral3", head_dim=16), dict(
        vision_config=dict(SMALL, head_dim=4)), QKVO),
    "qwen2_5_vl": ("Qwen2_5_VL", dict(COMMON, rope_parameters={"rope_type": "default", "rope_theta": 1e5,
                                                               "mrope_section": [1, 1, 2]}),
                   dict(vision_config=QWEN), QKVO),
    "qwen3_5-nested": ("Qwen3_5", dict(COMMON, head_dim=16, **{**DELTA, "linear_num_key_heads": 4}, rope_parameters={
        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1],
        "mrope_interleaved": True}), dict(vision_config=QWEN), DELTA_TARGETS),
    "qwen3_5_moe-nested": ("Qwen3_5Moe", dict(COMMON, head_dim=16, num_experts=6, num_experts_per_tok=3, **DELTA,
                                              moe_intermediate_size=20, shared_expert_intermediate_size=24),
                           dict(vision_config=QWEN), DELTA_TARGETS[:-1]),
    "qwen3_vl": ("Qwen3VL", dict(COMMON, head_dim=16, rope_parameters={
        "rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 2, 2], "mrope_interleaved": True}),
                 dict(vision_config=dict(QWEN, deepstack_visual_indexes=[0]), tie_word_embeddings=True), QKVO),
}

# families with layer norms
LAYER_NORMS = {
    # layer norms, an FFN without gate, biases everywhere, windows
    "starcoder2": ("Starcoder2", dict(COMMON, sliding_window=12), [*QKVO, "c_fc", "c_proj"]),
    # q, k and v of each head together; the FFN reads what attention reads, or what that has been added to
    "gpt_neox": ("GPTNeoX", NEOX, NEOX_TARGETS),
    "gpt_neox-sequential": ("GPTNeoX", dict(NEOX, use_parallel_residual=False, rope_parameters={
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}), NEOX_TARGETS),
    # attention and FFN read one norm; logits have a bias
    "phi": ("Phi", dict(COMMON, hidden_act="gelu_new"), ["q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"]),
    # … without biases, with gates, neighbouring values rotated as pairs, and a factor of the logits
    "cohere": ("Cohere", dict(COMMON, logit_scale=0.6, pad_token_id=0), [*QKVO, "gate_proj", "down_proj"]),
}


def shapes_of(path):
    with safe_open(path, "pt") as file:
        return {key: list(file.get_slice(key).get_shape()) for key in file.keys()}


def fill(path, shapes, centre, spread):
    save_file({key: golden_wide.value(key, shape, centre if CENTRED.search(key) else 0.0, spread) for key, shape in shapes.items()},
              path, metadata={"format": "pt"})


def write_folder(case, folder):
    """The model and its adapter, as a case of the file describes them."""
    (folder / "adapter_init").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(case["config"]))
    fill(folder / "model.safetensors", case["tensors"], case["norm_centre"], case["spread"])
    (folder / "adapter_init" / "adapter_config.json").write_text(json.dumps(case["adapter_config"]))
    fill(folder / "adapter_init" / "adapter_model.safetensors", case["adapter"], 0.0, 0.12)


def greedy_of(model, prompt):
    """The next tokens, each from the whole row; the smallest distance between first and second choice."""
    ids, margin = list(prompt), float("inf")
    with torch.no_grad():
        for _ in range(GREEDY):
            first, second = model(torch.tensor([ids])).logits[0, -1].topk(2).values.tolist()
            margin = min(margin, first - second)
            ids.append(model(torch.tensor([ids])).logits[0, -1].argmax().item())
    return ids[len(prompt):], margin


def make_model(name, folder):
    """Saves a model of the case's shape; returns its class before "Config" and the targets."""
    if name not in NESTED:
        kind, settings, targets = {**CASES, **LAYER_NORMS}[name]
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind + "Config")(**settings))
    else:
        kind, text, beside, targets = NESTED[name]
        config = getattr(transformers, kind + "Config")(text_config=text, **beside)
        model = transformers.AutoModelForImageTextToText.from_config(config)
    model.to(torch.float32).save_pretrained(folder)
    return kind, targets


def load(folder, dtype):
    """The model, of which what reads images and routers' biases are not trained."""
    nested = "vision_config" in json.loads((folder / "config.json").read_text())
    auto = transformers.AutoModelForImageTextToText if nested else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager")
    for key, value in model.named_parameters():
        value.requires_grad_(re.fullmatch(UNTRAINED, key) is None)
    return model


def make_case(name, folder):
    kind, targets = make_model(name, folder)
    # norms of Gemma 1 to 3 and Qwen 3.5 multiply by 1 + weight; Gemma 4 does not divide scores by the heads' width
    spread = 0.4 if "small" in name else SPREAD  # more layers
    centre = 0.3 if "small" in name else 0.6 if kind.startswith("Gemma4") else 0.0 if kind.startswith(("Gemma", "Qwen3_5", "Qwen3Next")) else 1.0
    case = {"name": name, "transformers": transformers.__version__, "rows": ROWS, "norm_centre": centre, "spread": spread, "greedy_prompt": PROMPT,
            "config": json.loads((folder / "config.json").read_text()), "tensors": shapes_of(folder / "model.safetensors")}
    fill(folder / "model.safetensors", case["tensors"], centre, spread)
    beside = {"rslora" if key == "use_rslora" else key: value for key, value in EXPERTS.get(name, {}).items()}
    lora = {**LORA, "targets": targets, **beside}
    adapter = peft.get_peft_model(load(folder, torch.float32), peft.LoraConfig(
        r=lora["r"], lora_alpha=lora["alpha"], target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM",
        exclude_modules=IMAGES if name in NESTED else None, **EXPERTS.get(name, {})))
    adapter.save_pretrained(folder / "adapter_init", save_embedding_layers=False)
    case["adapter"] = shapes_of(folder / "adapter_init" / "adapter_model.safetensors")
    fill(folder / "adapter_init" / "adapter_model.safetensors", case["adapter"], 0.0, 0.12)
    written = json.loads((folder / "adapter_init" / "adapter_config.json").read_text())
    case["adapter_config"] = {k: written[k] for k in ("peft_type", "task_type", "r", "lora_alpha", "target_modules",
                                                      "lora_dropout", "bias", "exclude_modules", *EXPERTS.get(name, {}))
                              if written.get(k) is not None}
    for key in ("target_modules", "target_parameters"):
        if key in case["adapter_config"]:
            case["adapter_config"][key].sort()
    batches = golden_wide.batches_of(ROWS, COMMON["vocab_size"])
    expected = {"steps": make_golden.STEPS, "warmup": make_golden.WARMUP, "betas": make_golden.BETAS, "eps": make_golden.EPS,
                "clip": make_golden.CLIP, "full": make_golden.FULL, "lora": lora}
    with make_golden.Doubled():
        model = load(folder, torch.float64)
        case["greedy"], margin = greedy_of(model, batches[0]["ids"][0][:PROMPT])
        if name not in EXPERTS:
            expected["full_fp64"], _ = make_golden.train(model, batches, make_golden.FULL["peak_lr"],
                                                         make_golden.FULL["weight_decay"])
        model = peft.PeftModel.from_pretrained(load(folder, torch.float64), folder / "adapter_init",
                                               is_trainable=True, autocast_adapter_dtype=False).to(torch.float64)
        expected["lora_fp64"], _ = make_golden.train(model, batches, LORA["peak_lr"], LORA["weight_decay"])
    case["expected"] = expected
    print(f"{name}: from {expected['lora_fp64']['loss'][0]:.4f}, full to {expected.get('full_fp64', {'loss': [0]})['loss'][-1]:.4f}, "
          f"LoRA to {expected['lora_fp64']['loss'][-1]:.4f}; {len(set(case['greedy']))} different tokens, margin {margin:.1e}",
          flush=True)
    assert margin > 1e-4, name
    return case


def main():
    torch.set_num_threads(1)
    path, names = pathlib.Path(sys.argv[1]), sys.argv[2:] or [*CASES, *NESTED, *LAYER_NORMS]
    cases = {case["name"]: case for case in (json.loads(path.read_text()) if path.exists() else [])}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            cases[name] = make_case(name, pathlib.Path(scratch) / name)
    # in the order in which they came, by whose numbers the test chooses how each is cut
    lines = [json.dumps(case, separators=(",", ":")) for case in cases.values()]
    path.write_text("[" + ",\n".join(lines) + "]\n")


if __name__ == "__main__":
    main()
