#!/usr/bin/env python3
"""What many unlike cards make of full fine-tuning, of mixtures of experts and of slow networks: `motley plan` on seeded
clusters, models and methods; otherwise as plan_few.py.
  bench/plan_mixed.py [clusters, default 24] [first seed, default 0] [devices, default 64-64] [another motley]
                      [methods: full,lora,nf4] [models: Llama-3-8B,Mixtral-8x7B,…] [cards: h100,m40,…]
"""
import os
import random
import sys

import plan_few
import plan_many

EXPERTS = {  # from the models' published config.json
    "Mixtral-8x7B": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
                     "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
                     "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2},
    "Qwen3-30B-A3B": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
                      "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
                      "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
                      "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
                      "norm_topk_prob": True},
    "OLMoE-1B-7B": {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "hidden_size": 2048,
                    "intermediate_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
                    "num_key_value_heads": 16, "vocab_size": 50304, "num_experts": 64, "num_experts_per_tok": 8,
                    "norm_topk_prob": False}}
COMMON = {"hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "max_position_embeddings": 32768,
          "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
MODELS = sorted(EXPERTS) + sorted(plan_few.LLAMA)
METHODS = {"full": {"kind": "full"}, "lora": {"kind": "lora", "rank": 16, "base": "bf16"},
           "nf4": {"kind": "lora", "rank": 16, "base": "nf4"}}
NETWORKS = (1.2e8, 1.2e9, 1.2e10)  # bytes a second between machines
WITHIN = (1.2e10, 2e11)


def model(folder, name):
    if name not in EXPERTS:
        return plan_few.model(folder, name)
    at = os.path.join(folder, name)
    os.makedirs(at, exist_ok=True)
    plan_few.write(os.path.join(at, "config.json"), {**COMMON, **EXPERTS[name]})
    return at


def scene(folder, seed, least, most, methods, models):
    draw = random.Random(seed)
    devices, a_node = draw.randint(least, most), draw.choice((1, 2, 4, 8))
    like, kinds = draw.random() < 0.6, draw.sample(plan_many.CARDS, draw.randint(2, 6))
    nodes = plan_many.machines(draw, devices, a_node, like, kinds)
    cluster = {"nodes": nodes, "links": {"within": {"latency_s": 1e-5, "bytes_per_s": draw.choice(WITHIN)},
                                         "between": {"latency_s": 1e-4, "bytes_per_s": draw.choice(NETWORKS)}}}
    name, method, rows = draw.choice(models), draw.choice(methods), max(8, devices * draw.choice((1, 2, 4, 8)))
    spec = {"name": "mixed", "model": model(folder, name), "method": METHODS[method],
            "data": {"train": os.path.join(folder, "none.jsonl"), "format": "alpaca",
                     "sequence_tokens": draw.choice((512, 1024, 2048))},
            "train": {"batch_rows": rows, "steps": 100, "compute": "bf16"}}
    return (plan_few.write(os.path.join(folder, f"{seed}.spec.json"), spec),
            plan_few.write(os.path.join(folder, f"{seed}.cluster.json"), cluster),
            {"seed": seed, "devices": devices, "model": f"{name} {method}", "rows": rows,
             "between": cluster["links"]["between"]["bytes_per_s"]})


def main():
    argv = sys.argv[1:]
    count, first = int(argv[0]) if argv else 24, int(argv[1]) if argv[1:] else 0
    least, most = (int(n) for n in (argv[2] if argv[2:] else "64-64").split("-"))
    methods = argv[4].split(",") if argv[4:] else sorted(METHODS)
    models = argv[5].split(",") if argv[5:] else MODELS
    if argv[6:]:
        plan_many.CARDS = argv[6].split(",")
    plan_few.survey(f"plan-mixed-{least}-{most}", lambda folder, seed: scene(folder, seed, least, most, methods, models),
                    count, first, argv[3] if argv[3:] else None)


if __name__ == "__main__":
    main()
