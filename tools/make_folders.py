#!/usr/bin/env python3
"""Tiny models of every family as `save_pretrained` of the installed transformers writes them, and as GGUF.

    python3 tools/make_folders.py DIR [NAME ...]    needs torch and transformers (4 or 5); GGUF files too if gguf is there

Each folder holds an expected.json beside: what transformers itself says of the model, tensor by tensor (rows, columns
and two sums in double precision, under the hub's names) and layer by layer. tests/model/test_folders.c compares.
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers

NEW = int(transformers.__version__.split(".")[0]) >= 5
NORM_EPS = ("rms_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_eps", "layer_norm_epsilon")
COMMON = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2,
              num_hidden_layers=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)


def rope(theta, **scaling):
    """Rotary settings as this transformers takes them."""
    if NEW:
        return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **scaling}}
    return {"rope_theta": theta, **({"rope_scaling": scaling} if scaling else {})}


GEMMA3 = dict(head_dim=8, sliding_window=6, query_pre_attn_scalar=20, num_hidden_layers=7)
PERMUTED = ("llama", "smollm3", "granite", "granitemoe")  # whose converter interleaves the halves of a head
LATENT = dict(num_key_value_heads=4, kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, n_routed_experts=4,
              num_experts_per_tok=2, moe_intermediate_size=12, n_shared_experts=1)
MIXED = {"num_experts": 4, "num_experts_per_tok": 2}
# name: class before "Config", settings, GGUF architecture or None
FAMILIES = {
    "llama": ("Llama", dict(head_dim=16, **rope(500000.0, **LLAMA3)), "llama"),
    "llama-bias": ("Llama", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True), None),
    "mistral": ("Mistral", dict(sliding_window=6, head_dim=8), None),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True, **rope(1000000.0)), "qwen2"),
    "qwen2-window": ("Qwen2", dict(use_sliding_window=True, sliding_window=6, max_window_layers=1), None),
    "qwen3": ("Qwen3", dict(head_dim=8, **rope(1000000.0)), "qwen3"),
    "gemma2": ("Gemma2", dict(head_dim=8, sliding_window=6, query_pre_attn_scalar=8), "gemma2"),
    "gemma3": ("Gemma3Text", dict(GEMMA3, query_pre_attn_scalar=8), "gemma3"),
    "gemma3-nested": ("Gemma3", GEMMA3, None),
    "phi3": ("Phi3", dict(sliding_window=6, **rope(20000.0)), "phi3"),
    "phi3-partial": ("Phi3", dict(head_dim=8) | (rope(10000.0, partial_rotary_factor=0.5) if NEW
                                                 else {"partial_rotary_factor": 0.5}), None),
    "smollm3": ("SmolLM3", dict(num_hidden_layers=5), "smollm3"),
    "gemma": ("Gemma", dict(head_dim=8), "gemma"),
    "granite": ("Granite", dict(tie_word_embeddings=True, embedding_multiplier=3.0, residual_multiplier=0.25,
                                attention_multiplier=0.125, logits_scaling=4.0), "granite"),
    "olmo2": ("Olmo2", {}, "olmo2"),
    "olmo3": ("Olmo3", dict(num_hidden_layers=4, sliding_window=6), "olmo2"),
    "helium": ("Helium", dict(head_dim=4), None),
    "starcoder2": ("Starcoder2", dict(sliding_window=6), None),
    "gpt-neox": ("GPTNeoX", dict(num_attention_heads=2), None),
    "phi": ("Phi", dict(num_attention_heads=2), None),
    "cohere": ("Cohere", dict(attention_bias=True), None),
    "ernie4-5": ("Ernie4_5", dict(head_dim=8), "ernie4_5"),
    "glm": ("Glm", dict(head_dim=8), None),
    "glm4": ("Glm4", dict(head_dim=8), "glm4"),
    "seed-oss": ("SeedOss", dict(head_dim=8, attention_dropout=0.0, residual_dropout=0.0), "seed_oss"),
    "internlm3": ("InternLM3", dict(head_dim=8), None),
    "ministral": ("Ministral", dict(head_dim=8, sliding_window=6,
                                    layer_types=["full_attention", "sliding_attention"]), None),
    "ministral3": ("Ministral3", dict(head_dim=8), None),
    "lfm2": ("Lfm2", dict(layer_types=["conv", "full_attention"], conv_L_cache=4, block_multiple_of=8, norm_eps=1e-6),
             "lfm2"),
    "cwm": ("Cwm", dict(head_dim=8, num_hidden_layers=5, sliding_window=6), None),
    "mixtral": ("Mixtral", dict(num_local_experts=4, num_experts_per_tok=2), "llama"),
    "qwen3-moe": ("Qwen3Moe", dict(MIXED, moe_intermediate_size=12, head_dim=8, norm_topk_prob=True,
                                   num_hidden_layers=3, mlp_only_layers=[1]), None),
    "qwen3-moe-plain": ("Qwen3Moe", dict(MIXED, moe_intermediate_size=12, head_dim=8, norm_topk_prob=True),
                        "qwen3moe"),
    "olmoe": ("Olmoe", MIXED, "olmoe"),
    "qwen3-5": ("Qwen3_5Text", dict(head_dim=8, num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4,
                                    linear_key_head_dim=6, linear_value_head_dim=8), None),
    "qwen2-moe": ("Qwen2Moe", dict(MIXED, moe_intermediate_size=12, shared_expert_intermediate_size=20,
                                   num_hidden_layers=3, decoder_sparse_step=2), None),
    "qwen3-5-moe": ("Qwen3_5MoeText", dict(MIXED, moe_intermediate_size=12, shared_expert_intermediate_size=20, head_dim=8,
                                           num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
                                           linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6,
                                           linear_value_head_dim=8), None),
    "qwen3-next": ("Qwen3Next", dict(MIXED, moe_intermediate_size=12, shared_expert_intermediate_size=20, head_dim=8,
                                     decoder_sparse_step=2, layer_types=["linear_attention", "full_attention"],
                                     linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6,
                                     linear_value_head_dim=8), None),
    "glm4-moe": ("Glm4Moe", dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, head_dim=8,
                                 n_shared_experts=1, routed_scaling_factor=2.0, attention_bias=True), "glm4moe"),
    "dots1": ("Dots1", dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, n_shared_experts=2,
                            first_k_dense_replace=1, sliding_window=6, max_window_layers=1, num_hidden_layers=3), None),
    "ernie4-5-moe": ("Ernie4_5_Moe", dict(moe_num_experts=4, moe_k=2, moe_intermediate_size=12,
                                          moe_num_shared_experts=1), "ernie4_5-moe"),
    "gemma4": ("Gemma4Text", dict(head_dim=8, global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True,
                                  sliding_window=6, num_hidden_layers=4, hidden_size_per_layer_input=0,
                                  layer_types=["sliding_attention", "full_attention"] * 2), None),
    "gpt-oss": ("GptOss", dict(num_local_experts=3, num_experts_per_tok=2, head_dim=8, sliding_window=6, hidden_size=32,
                               intermediate_size=64), None),
    "gemma4-moe": ("Gemma4Text", dict(head_dim=8, global_head_dim=16, sliding_window=6, hidden_size_per_layer_input=0,
                                      layer_types=["sliding_attention", "full_attention"], enable_moe_block=True,
                                      num_experts=4, top_k_experts=2, moe_intermediate_size=12), None),
    "granitemoe": ("GraniteMoe", dict(num_local_experts=4, num_experts_per_tok=2, residual_multiplier=0.25), "granitemoe"),
    "granitemoeshared": ("GraniteMoeShared", dict(num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=20,
                                                  tie_word_embeddings=True), None),
    "granitemoehybrid": ("GraniteMoeHybrid", dict(num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=20, mamba_n_heads=4,
                                                  mamba_d_state=6, layer_types=["mamba", "attention"], tie_word_embeddings=True,
                                                  position_embedding_type="rope"), None),
    "granitemoehybrid-dense": ("GraniteMoeHybrid", dict(num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=20,
                                                        mamba_n_heads=4, mamba_d_state=6, layer_types=["attention", "mamba"],
                                                        position_embedding_type="rope"), None),
    "gemma4-small": ("Gemma4Text", dict(head_dim=8, global_head_dim=16, sliding_window=6, num_hidden_layers=4,
                                        hidden_size_per_layer_input=4, vocab_size_per_layer_input=COMMON["vocab_size"],
                                        num_kv_shared_layers=2, use_double_wide_mlp=True,
                                        layer_types=["sliding_attention", "full_attention"] * 2), None),
    "olmo3-yarn": ("Olmo3", dict(num_hidden_layers=4, sliding_window=6, rope_parameters={
        "full_attention": dict(rope_type="yarn", rope_theta=5e5, factor=8.0, attention_factor=1.2079441541679836,
                               original_max_position_embeddings=8),
        "sliding_attention": dict(rope_type="default", rope_theta=5e5)}), "olmo2"),
    # without the dense layers and windows that llama.cpp has no keys for
    "qwen2-moe-plain": ("Qwen2Moe", dict(MIXED, moe_intermediate_size=12, shared_expert_intermediate_size=20), "qwen2moe"),
    "dots1-plain": ("Dots1", dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, n_shared_experts=2,
                                  first_k_dense_replace=1, max_window_layers=2, num_key_value_heads=4,
                                  routed_scaling_factor=1.5), "dots1"),
    "glm-square": ("Glm", dict(head_dim=4), "chatglm"),  # llama.cpp wants heads that fill the hidden values
    "glm4-moe-normed": ("Glm4Moe", dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, head_dim=8,
                                        n_shared_experts=1, use_qk_norm=True, norm_topk_prob=False), "glm4moe"),
    "qwen2-moe-q8": ("Qwen2Moe", dict(MIXED, hidden_size=32, moe_intermediate_size=32, shared_expert_intermediate_size=64),
                     "qwen2moe"),
    "glm4-moe-lite": ("Glm4MoeLite", dict(LATENT, q_lora_rank=10, v_head_dim=10, mlp_layer_types=["sparse", "dense"]), None),
    "deepseek-v2": ("DeepseekV2", dict(LATENT, q_lora_rank=None, v_head_dim=8, rope_parameters=dict(
        rope_type="yarn", rope_theta=1e4, factor=8.0, original_max_position_embeddings=8, mscale=0.707, mscale_all_dim=0.707)),
                    None),
    "deepseek-v3": ("DeepseekV3", dict(LATENT, q_lora_rank=10, v_head_dim=10, first_k_dense_replace=1, n_group=1, topk_group=1,
                                       norm_topk_prob=False), None),
}
if not hasattr(transformers, "SmolLM3Config"):  # transformers before 4.53 knows fewer, and 2023's Llama alone
    FAMILIES = {name: f for name, f in FAMILIES.items() if hasattr(transformers, f[0] + "Config")}
    FAMILIES["llama"] = ("Llama", {}, None)
    FAMILIES.pop("llama-bias", None)
if not NEW:
    FAMILIES = {name: f for name, f in FAMILIES.items() if name not in ("olmo3-yarn", "qwen2-moe-q8") and "kv_lora_rank" not in f[1]}


def make_model(kind, settings):
    config = getattr(transformers, kind + "Config")
    if kind == "Gemma3":
        text = transformers.Gemma3TextConfig(**{**COMMON, **settings})
        vision = transformers.SiglipVisionConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                                 num_attention_heads=2, image_size=8, patch_size=4)
        model = transformers.Gemma3ForConditionalGeneration(config(text_config=text, vision_config=vision,
                                                                   mm_tokens_per_image=4))
    else:
        model = transformers.AutoModelForCausalLM.from_config(config(**{**COMMON, **settings}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter).bfloat16())
    return model


def hub_name(name):
    """The name in the hub's files of a text model; transformers 5 moves some in memory."""
    name = name.replace("model.language_model.model.", "model.").replace("model.language_model.", "model.")
    return name.replace("language_model.model.", "model.").replace("language_model.lm_head", "lm_head")


def hub_tensors(model, kind):
    """Every tensor of the language model, experts one by one."""
    out = {}
    biases = [(name, value) for name, value in model.named_buffers()
              if name.endswith(("e_score_correction_bias", "layer_scalar"))]
    for name, value in [*model.named_parameters(), *biases]:
        name, value = hub_name(name), value.detach().double()
        if "vision" in name or "multi_modal" in name:
            continue
        if kind == "Mixtral":
            name = name.replace(".mlp.", ".block_sparse_moe.")
        name = name.replace(".mlp.gate.moe_statics.", ".mlp.moe_statics.")
        if kind.startswith("GraniteMoe"):  # the library renames experts and routers in memory
            name = name.replace("block_sparse_moe.experts", "mlp.experts").replace("moe.router.weight", "moe.router.layer.weight")
        if kind == "GPTNeoX":
            name = name.replace("lm_head", "embed_out")
        if kind == "GptOss" and ".experts." in name:
            out.update(alternating(name, value))
            continue
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            out[name] = value
            continue
        gate, up, down = ("w1", "w3", "w2") if kind == "Mixtral" else ("gate_proj", "up_proj", "down_proj")
        for e in range(value.shape[0]):
            stem = f"{name.rsplit('.', 1)[0]}.{e}."
            parts = [(gate, up), value[e].chunk(2)] if name.endswith("gate_up_proj") else [(down,), [value[e]]]
            for part, matrix in zip(*parts):
                out[f"{stem}{part}.weight"] = matrix
    return out


def alternating(name, value):
    """The matrices and biases of gpt-oss's experts, which it keeps transposed, with gate's and up's rows in turn."""
    stem, last = name.rsplit(".", 1)
    parts, suffix = ("gate_proj", "up_proj") if "gate_up" in last else ("down_proj",), "bias" if "bias" in last else "weight"
    return {f"{stem}.{e}.{part}.{suffix}": value[e][..., i::len(parts)].movedim(-1, 0)
            for e in range(value.shape[0]) for i, part in enumerate(parts)}


def make_mxfp4(folder, plain, model, expected):
    """The folder with the experts' matrices in MXFP4, at random, and what transformers makes of them."""
    from safetensors.torch import load_file, save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    shutil.copytree(plain, folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith((".gate_up_proj", ".down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
        scales = torch.randint(116, 125, (experts, rows, columns // 32), dtype=torch.uint8)
        tensors[name + "_blocks"], tensors[name + "_scales"] = blocks, scales
        value = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32).double()
        model.get_parameter(name).data = value.float()
        expected["tensors"].update({key: sums(one) for key, one in alternating(name, value).items()})
    ids = torch.randint(0, model.config.vocab_size, (1, 30))
    model.config._experts_implementation = "eager"  # in double precision
    with torch.no_grad():
        expected.update(ids=ids.tolist(), labels=[[-100, *ids[0, 1:].tolist()]], loss=model.double()(ids, labels=ids).loss.item())
    model.float()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "expected.json").write_text(json.dumps(expected))


def sums(value):
    flat = value.flatten()
    return [value.shape[0], value[0].numel(), flat.sum().item(),
            (flat * (torch.arange(flat.numel()) % 13 + 1)).sum().item()]


def layers_of(model, kind):
    """Window (0: none), rotated or not, and inverse frequencies, layer by layer."""
    body = next(m for m in model.modules() if (hasattr(m, "embed_tokens") or hasattr(m, "embed_in"))
                and hasattr(m, "layers") and not hasattr(m, "vision_model"))
    config, out = body.config, []
    for layer in body.layers:
        # a gated delta net or a state space has what its model's attention has, but does not use it
        attention = next(getattr(other, name) for other in [layer, *reversed(body.layers)]
                         for name in ("self_attn", "attention") if getattr(other, name, None))
        window = getattr(attention, "sliding_window", None)
        if kind in ("Mistral", "Mixtral", "Phi3", "Starcoder2"):
            window = config.sliding_window
        emb = getattr(body, "rotary_emb", None) or attention.rotary_emb
        local = kind.startswith(("Gemma3", "Gemma4", "Olmo3")) and window
        if hasattr(emb, "full_attention_inv_freq"):
            freq = emb.sliding_attention_inv_freq if local else emb.full_attention_inv_freq
        else:
            freq = getattr(body, "rotary_emb_local", emb).inv_freq if local else emb.inv_freq
        out.append({"window": window or 0, "rotates": bool(getattr(attention, "use_rope", True)),
                    "inv_freq": freq.tolist(), "scale": getattr(attention, "scaling", None) or attention.head_dim ** -0.5})
    return out


def expected_of(model, kind):
    config = getattr(model.config, "text_config", None) or model.config
    tensors = hub_tensors(model, kind)
    return {"transformers": transformers.__version__, "parameters": sum(t.numel() for t in tensors.values()),
            "layers": layers_of(model, kind), "tied": bool(config.tie_word_embeddings),
            "norm_eps": next(getattr(config, key) for key in NORM_EPS if getattr(config, key, None)),
            "max_positions": config.max_position_embeddings,
            "attention_cap": getattr(config, "attn_logit_softcapping", None) or 0,
            "logit_cap": getattr(config, "final_logit_softcapping", None) or 0,
            "tensors": {name: sums(value) for name, value in tensors.items()}}


def permuted(value, heads):
    """Rows as llama.cpp has them: within a head the two halves take turns."""
    dim = value.shape[0] // heads
    return value.reshape(heads, 2, dim // 2, -1).transpose(1, 2).reshape(value.shape)


def write_gguf(path, model, arch, kind, quantised=None):
    """The model as llama.cpp's converter writes it; `quantised` is the type of its matrices but routers."""
    import gguf
    config, tensors = model.config, hub_tensors(model, kind)
    names = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch),
                                     config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, arch)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(tensors["model.layers.0.feed_forward.w1.weight"].shape[0] if kind == "Lfm2"
                                   else config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([0 if name == "conv" else config.num_key_value_heads for name in config.layer_types]
                             if kind == "Lfm2" else config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(getattr(config, "rms_norm_eps", None) or config.norm_eps)
    parameters = getattr(config, "rope_parameters", None) or {}
    theta = parameters.get("full_attention", parameters).get("rope_theta") or config.rope_theta
    writer.add_rope_freq_base(theta)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if kind == "Gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if kind.startswith("Granite"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if kind.startswith("Glm"):
        writer.add_rope_dimension_count(head_dim // 2)
    if kind == "Olmo3":
        writer.add_sliding_window_pattern([name == "sliding_attention" for name in config.layer_types])
    if kind == "Lfm2":
        writer.add_shortconv_l_cache(config.conv_L_cache)
    add_expert_keys(writer, config)
    full = parameters.get("full_attention", parameters)
    if full.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(full["factor"])
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        if "attention_factor" in full:
            writer.add_rope_scaling_yarn_attn_factor(full["attention_factor"])
    if kind == "GptOss":
        tensors = {name + ".weight" if name.endswith("sinks") else name: value for name, value in tensors.items()}
    stacked = {}
    for name, value in tensors.items():
        value = value.float()
        if name.endswith(("conv.conv.weight", "shared_expert_gate.weight")):  # the latter as in older files
            value = value.squeeze()
        if kind.startswith("Gemma") and name.endswith("norm.weight"):
            value = value + 1
        if arch in PERMUTED and ".q_proj." in name:
            value = permuted(value, config.num_attention_heads)
        if arch in PERMUTED and ".k_proj." in name:
            value = permuted(value, config.num_key_value_heads)
        if ".experts." in name:
            front, number, part, suffix = name.rsplit(".", 3)
            stacked.setdefault(f"{front}.{part}.{suffix}", []).append(value)
        else:
            packed = quantised if value.dim() == 2 and has_blocks(name, value) else None
            value = value.contiguous().numpy()
            writer.add_tensor(gguf_name(names, name), gguf.quants.quantize(value, packed) if packed else value,
                              raw_dtype=packed)
    for name, values in stacked.items():
        values, packed = torch.stack(values).numpy(), quantised
        if kind == "GptOss" and name.endswith(".weight"):
            packed = gguf.GGMLQuantizationType.MXFP4
        if packed:
            blocks = gguf.quants.quantize(values, packed)
            assert (gguf.quants.dequantize(blocks, packed) == values).all(), name
            values = blocks
        writer.add_tensor(gguf_name(names, name), values, raw_dtype=packed)
    if kind == "Llama":  # rope_freqs: what llama3's scaling divides by
        plain = parameters["rope_theta"] ** -(torch.arange(0, head_dim, 2).double() / head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq.double()).float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_expert_keys(writer, config):
    """The keys of mixtures that llama.cpp's converter writes, where a config has what they say."""
    import gguf
    for key, add in (("num_experts", writer.add_expert_count), ("num_local_experts", writer.add_expert_count),
                     ("n_routed_experts", writer.add_expert_count), ("moe_num_experts", writer.add_expert_count),
                     ("num_experts_per_tok", writer.add_expert_used_count), ("moe_k", writer.add_expert_used_count),
                     ("n_group", writer.add_expert_group_count), ("topk_group", writer.add_expert_group_used_count),
                     ("moe_intermediate_size", writer.add_expert_feed_forward_length),
                     ("shared_expert_intermediate_size", writer.add_expert_shared_feed_forward_length),
                     ("n_shared_experts", writer.add_expert_shared_count),
                     ("moe_num_shared_experts", writer.add_expert_shared_count),
                     ("first_k_dense_replace", writer.add_leading_dense_block_count),
                     ("moe_layer_start_index", writer.add_leading_dense_block_count),
                     ("moe_layer_interval", writer.add_interleave_moe_layer_step)):
        value = config.to_dict().get(key)
        if value is not None:
            add(value)
    if hasattr(config, "routed_scaling_factor"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    if hasattr(config, "moe_num_shared_experts"):  # what the converter takes for ERNIE's width
        writer.add_expert_shared_feed_forward_length(config.intermediate_size // config.num_key_value_heads)


def gguf_name(names, name):
    """llama.cpp's own table; Mixtral's stacked experts stand there under its first release's name."""
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    if ".experts.w" in name:
        name = name.replace("model.", "", 1).replace("block_sparse_moe", "feed_forward")
    found = names.get_name(name, (".weight", ".bias"))
    if found is None:
        raise ValueError(f"gguf knows no name for {name}")
    return found


def make_gguf(folder, model, arch, kind, expected):
    folder.mkdir()
    write_gguf(folder / "model.gguf", model, arch, kind)
    (folder / "expected.json").write_text(json.dumps(expected))


def has_blocks(name, value):
    """As llama.cpp's quantiser has it: not routers, nor what does not fit."""
    return value.dim() > 1 and value.shape[-1] % 32 == 0 and not name.endswith("gate.weight")


def make_q8(folder, model, arch, kind):
    """A GGUF of Q8_0, whose values the model has, and the loss of transformers in double precision."""
    import gguf
    q8 = gguf.GGMLQuantizationType.Q8_0
    with torch.no_grad():
        for name, value in model.named_parameters():
            if has_blocks(name, value):
                value.copy_(torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(value.numpy(), q8), q8)))
    expected = expected_of(model, kind)
    folder.mkdir()
    write_gguf(folder / "model.gguf", model, arch, kind, q8)
    ids = torch.randint(0, model.config.vocab_size, (1, 30))
    model.config._experts_implementation = "eager"  # in double precision
    with torch.no_grad():
        expected.update(ids=ids.tolist(), labels=[[-100, *ids[0, 1:].tolist()]], loss=model.double()(ids, labels=ids).loss.item())
    (folder / "expected.json").write_text(json.dumps(expected))


def main():
    root, only = pathlib.Path(sys.argv[1]), sys.argv[2:]
    if not only:
        shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    for number, (name, (kind, settings, arch)) in enumerate(FAMILIES.items()):
        if only and name not in only:
            continue
        torch.manual_seed(number)
        folder, model = root / name, make_model(kind, settings)
        if name.endswith("-q8"):
            make_q8(root / (name + "-gguf"), model, arch, kind)
            continue
        expected = expected_of(model, kind)  # before a cast rounds the rotary frequencies
        model.to(torch.bfloat16 if number % 2 else torch.float32).save_pretrained(folder, safe_serialization=True)
        for extra in folder.glob("generation_config.json"):
            extra.unlink()
        model.to(torch.float32)
        (folder / "expected.json").write_text(json.dumps(expected))
        if kind == "GptOss":
            make_mxfp4(root / (name + "-mxfp4"), folder, model, expected)
            make_gguf(root / (name + "-gguf"), model, "gpt-oss", kind, expected)
        elif NEW and "experts" in str(expected["tensors"].keys()) and not kind.startswith(("GraniteMoe", "Gemma4")):
            own = root / (name + "-own")
            model.save_pretrained(own, save_original_format=False)
            (own / "expected.json").write_text(json.dumps(expected))
        if NEW and arch:
            try:
                make_gguf(root / (name + "-gguf"), model, arch, kind, expected)
            except ImportError:
                print("gguf is not installed: no GGUF files")
    print(f"transformers {transformers.__version__}: {len(list(root.iterdir()))} folders")


if __name__ == "__main__":
    main()
