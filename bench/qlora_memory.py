#!/usr/bin/env python3
"""QLoRA of a 1B-shaped model (Llama 3.2 1B's blocks, 973 M values in matrices; random, bf16, a vocabulary of 4096) through the
whole service on one device of 2 threads: memory predicted, held, and of the process; NF4's bytes a parameter.
  bench/qlora_memory.py [base, default nf4 [steps, default 4]]
Takes 2 GB of disk for the folder and as much for the service's copy.
"""
import json
import os
import random
import struct
import sys

from harness import Motley, expect, golden_spec, report

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, FFN, VOCAB = 2048, 16, 32, 8, 64, 8192, 4096
LAYER = {"self_attn.q_proj": (HEADS * HEAD, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
         "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
         "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN), "mlp.down_proj": (HIDDEN, FFN),
         "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,)}


def tensors():
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        for name, shape in LAYER.items():
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", (HIDDEN,)


def values_of(shape):
    count = 1
    for side in shape:
        count *= side
    return count


def write_model(folder):
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as handle:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN,
                   "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "head_dim": HEAD,
                   "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
                   "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}, handle)
    header, at = {}, 0
    for name, shape in tensors():
        end = at + 2 * values_of(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    noise, sign = random.Random(1), bytes(0xBC if byte & 1 else 0x3C for byte in range(256))
    with open(os.path.join(folder, "model.safetensors"), "wb") as handle:
        handle.write(struct.pack("<Q", len(text)) + text)
        for _, shape in tensors():
            count = values_of(shape)
            block = bytearray(2 * count)  # magnitudes of 0.008 to 0.03; norms 1
            block[0::2] = bytes([0x80]) * count if len(shape) == 1 else noise.randbytes(count)
            block[1::2] = bytes([0x3F]) * count if len(shape) == 1 else noise.randbytes(count).translate(sign)
            handle.write(block)


def rows(steps):
    noise = random.Random(2)
    lines = []
    for _ in range(4 * steps):
        ids = [noise.randrange(3, VOCAB) for _ in range(noise.randrange(20, 33))]
        lines.append({"ids": ids, "labels": [-100] * 8 + ids[8:]})
    return lines


def main():
    base = sys.argv[1] if len(sys.argv) > 1 else "nf4"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    matrices = sum(values_of(s) for n, s in tensors() if len(s) == 2 and "embed" not in n)
    everything = sum(values_of(s) for _, s in tensors())
    config = {"agents": [{"name": "one", "devices": [{"kind": "cpu", "threads": 2, "memory": "5GiB", "isa": "native"}]}]}
    with Motley(config) as motley:
        folder = motley.path("model")
        write_model(folder)
        spec = golden_spec("qlora-1b", folder, motley.write_rows("rows.jsonl", rows(steps)), 1e-4,
                           {"steps": steps, "warmup": 1}, 4, placement={"kind": "single"},
                           method={"base": base, "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                                                             "down_proj"]},
                           data={"sequence_tokens": 32})
        job = motley.submit(spec, wait=True, timeout=1500)
        expect(job["state"] == "succeeded", f"{job['state']}: {job.get('why')}")
        memory = job["run"]["ranks"][0]["memory"]
        losses = [m["loss"] for m in motley.metrics(job["id"])[0]]
        seconds = [m.get("seconds") for m in motley.metrics(job["id"])[0]]
    weights = memory["peak"]["weights"]
    report("qlora_memory", {
        "base": base, "losses": losses, "step_seconds": seconds, "memory": memory,
        "predicted_over_held": memory["predicted_bytes"] / memory["peak_bytes"] - 1,
        "process_over_predicted": memory["vm_hwm_bytes"] / (memory["predicted_bytes"] + memory["predicted_base_bytes"]) - 1,
        "parameters": {"matrices": matrices, "all": everything},
        "weights_bytes_a_parameter": weights / everything,
        "matrices_bytes_a_parameter": (weights - 2 * VOCAB * HIDDEN) / matrices})


if __name__ == "__main__":
    main()
