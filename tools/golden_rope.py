#!/usr/bin/env python3
"""Rotary frequencies of transformers, for tests/engine/test_rope.c.

Run with a Python that has torch and transformers (versions: tests/data/golden/README.md); prints JSON: a list of
{config: a config.json, positions: the longest row, inv_freq, attention_scaling}, the same settings in the spelling of
transformers 5 (rope_parameters) and in the older one (rope_theta, rope_scaling).
"""
import json
import random
import sys

from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SIZES = {"hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 300, "pad_token_id": 0}


def cases(rng):
    def factors(count, most):
        return [round(rng.uniform(1, most), 4) for _ in range(count)]

    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    yield "qwen2", 131072, 1e6, yarn, {}
    yield "llama", 65536, 1e4, {**yarn, "factor": 16.0, "original_max_position_embeddings": 4096}, {}
    yield "llama", 8192, 5e5, {**yarn, "original_max_position_embeddings": 2048, "beta_fast": 16, "beta_slow": 2,
                               "truncate": False}, {}
    yield "llama", 8192, 5e5, {**yarn, "original_max_position_embeddings": 2048, "attention_factor": 1.25}, {}
    yield "llama", 8192, 1e4, {**yarn, "original_max_position_embeddings": 2048, "mscale": 0.8, "mscale_all_dim": 1.1}, {}
    yield "mistral", 8192, 1e4, {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 64}, {}
    yield "qwen3", 40960, 1e6, {**yarn, "factor": 8.0}, {"head_dim": 128}
    for beside in ({}, {"partial_rotary_factor": 0.75}):
        width = int(64 * beside.get("partial_rotary_factor", 1)) // 2
        longrope = {"rope_type": "longrope", "short_factor": factors(width, 1.3), "long_factor": factors(width, 60)}
        yield "phi3", 131072, 1e4, longrope, {"original_max_position_embeddings": 4096, **beside}
    width = 32
    yield "llama", 16384, 1e4, {"rope_type": "longrope", "short_factor": factors(width, 2), "factor": 8.0,
                                "long_factor": factors(width, 9), "original_max_position_embeddings": 2048}, {}
    yield "llama", 16384, 1e4, {"rope_type": "longrope", "short_factor": factors(width, 2), "attention_factor": 1.5,
                                "long_factor": factors(width, 9), "original_max_position_embeddings": 4096}, {}
    yield "llama", 2048, 1e4, {"rope_type": "dynamic", "factor": 2.0}, {}
    yield "llama", 2048, 1e4, {"rope_type": "linear", "factor": 2.5}, {}
    yield "llama", 131072, 5e5, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                 "original_max_position_embeddings": 8192}, {}


def losses():
    """Of batch 0 on the golden Llama, for tests/engine/test_golden.c: rows padded behind to the longest, by which
    transformers chooses longrope's factors."""
    import pathlib

    import torch
    from make_golden import Doubled
    from transformers import AutoModelForCausalLM

    base = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "golden" / "llama"
    batch = json.loads((base / "expected.json").read_text())["batches"][0]
    count, width = sum(x != -100 for row in batch["labels"] for x in row[1:]), max(map(len, batch["ids"]))
    original = {"factor": 4.0, "original_max_position_embeddings": 16}
    for rope in ({"rope_type": "yarn", **original}, {"rope_type": "dynamic", "factor": 2.0},
                 {"rope_type": "longrope", **original, "short_factor": [1 + i / 10 for i in range(8)],
                  "long_factor": [1.5 + 0.7 * i for i in range(8)]}):
        config = AutoConfig.from_pretrained(base)
        config.rope_parameters = {**rope, "rope_theta": config.rope_parameters["rope_theta"]}
        with Doubled(), torch.no_grad():
            model = AutoModelForCausalLM.from_pretrained(base, config=config, dtype=torch.float64, attn_implementation="eager")
            total = 0.0
            for ids, labels in zip(batch["ids"], batch["labels"]):
                logits = model(input_ids=torch.tensor([ids + [0] * (width - len(ids))])).logits[0][:len(ids)]
                total += torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(labels[1:]), reduction="sum",
                                                           ignore_index=-100).item() / count
        print(rope["rope_type"], repr(total))


def main():
    if sys.argv[1:] == ["losses"]:
        losses()
        return
    out = []
    for kind, most, theta, scaling, beside in cases(random.Random(3)):
        common = {"model_type": kind, **SIZES, "max_position_embeddings": most}
        old = {**common, **beside, "rope_theta": theta,
               "rope_scaling": {**{k: v for k, v in scaling.items() if k != "rope_type"}, "type": scaling["rope_type"]}}
        new = {**common, **beside, "rope_parameters": {**scaling, "rope_theta": theta}}
        if "partial_rotary_factor" in beside:
            new["rope_parameters"]["partial_rotary_factor"] = new.pop("partial_rotary_factor")
        for written in (old, new):
            for positions in (512, most):
                config = AutoConfig.for_model(**json.loads(json.dumps(written)))
                inverse, scale = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu", seq_len=positions)
                out.append({"config": written, "positions": positions, "attention_scaling": scale,
                            "inv_freq": [float("%.9g" % f) for f in inverse.tolist()]})
    print("[" + ",\n".join(json.dumps(case) for case in out) + "]")


if __name__ == "__main__":
    main()
