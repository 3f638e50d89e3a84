#!/usr/bin/env python3
"""Folders that transformers and bitsandbytes saved in NF4, for tests/engine/test_nf4_folder.c:

    python3 tools/make_nf4_folders.py tests/data/nf4

Needs torch, transformers, bitsandbytes, safetensors (made with 2.15.0, 5.23.0, 0.50.2, 0.8.0). Each folder gets, beside what
save_pretrained() writes, expected.json: SHA-256 of every quantised matrix as bitsandbytes dequantises it to fp32, and the
loss of two rows.
"""
import hashlib
import json
import os
import shutil
import sys

import bitsandbytes
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

ROWS = [[3, 17, 60, 5, 5, 44, 9], [2, 33, 34, 35, 8, 21, 50, 12, 7]]


def expected_of(model):
    sha = {}
    for name, module in model.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            state = module.weight.quant_state
            values = bitsandbytes.functional.dequantize_4bit(module.weight.data, state).float().contiguous()
            sha[name + ".weight"] = hashlib.sha256(values.numpy().tobytes()).hexdigest()
    loss, count = 0.0, 0
    with torch.no_grad():
        for row in ROWS:
            ids = torch.tensor([row])
            logits = model(input_ids=ids).logits[0, :-1].double()
            loss += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
            count += len(row) - 1
    return {"ids": ROWS, "labels": ROWS, "loss": loss / count, "dequantised": sha}


def main(out):
    torch.manual_seed(7)
    shape = LlamaConfig(hidden_size=72, intermediate_size=288, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
                        vocab_size=61, max_position_embeddings=64, tie_word_embeddings=True, initializer_range=0.1)
    plain = os.path.join(out, "plain")
    LlamaForCausalLM(shape).save_pretrained(plain)
    for name, double, skip in (("double", True, None), ("single", False, ["lm_head", "o_proj"])):
        how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double,
                                 bnb_4bit_compute_dtype=torch.float32, llm_int8_skip_modules=skip)
        model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=how, device_map="cpu", dtype=torch.float32)
        folder = os.path.join(out, name)
        model.save_pretrained(folder)
        with open(os.path.join(folder, "expected.json"), "w", encoding="utf-8") as handle:
            json.dump(expected_of(model.eval()), handle, indent=1)
    shutil.rmtree(plain)


if __name__ == "__main__":
    main(sys.argv[1])
