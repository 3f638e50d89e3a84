"""Model folders with random weights, for tests and benchmarks that need some Llama and no certain one."""
import json
import os
import random
import struct


def write_llama(folder, layers, hidden=64, ffn=128, heads=4, kv_heads=2, vocabulary=512, tied=False, **config):
    """Writes config.json and model.safetensors of a Llama in f32: norms are 1, all else is drawn with seed 1. `config` is added to
    config.json. Returns the folder, which must not exist yet."""
    os.makedirs(folder)
    kv = kv_heads * hidden // heads
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as handle:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary, "hidden_size": hidden,
                   "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
                   "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": tied,
                   "hidden_act": "silu", "torch_dtype": "float32", **config}, handle)
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    if not tied:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    for layer in range(layers):
        for name, shape in {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "self_attn.q_proj": (hidden, hidden),
                            "self_attn.o_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
                            "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn)}.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    header, body, draw, at = {}, [], random.Random(1), 0
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        body.append(struct.pack(f"<{count}f", *([1.0] * count if "norm" in name else [draw.gauss(0, 0.05) for _ in range(count)])))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + 4 * count]}
        at += 4 * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as handle:
        handle.write(struct.pack("<Q", len(text)) + text + b"".join(body))
    return folder
