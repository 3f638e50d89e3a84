#!/usr/bin/env python3
"""Steps of bitsandbytes' 8-bit AdamW, for tests/engine/test_adamw8.c.

    tools/golden_adamw8.py > tests/data/golden/adamw8.json

Needs torch and bitsandbytes (0.50.2 was used). The update is bitsandbytes' for the CPU; its quantiser there looks codes
up in a table that is coarse near zero, so that of its own plain PyTorch (the nearest code) stands in for it, as its
CUDA kernels and other backends choose. Inputs are formulas that the test repeats.
"""
import json

import torch
import bitsandbytes.functional as F
from bitsandbytes.backends.cpu import ops
from bitsandbytes.backends.triton import kernels_optim

COUNT, STEPS = 650, 4
HYPER = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1, "grad_scale": 0.5}


def gradient(step):
    return [((i * 7919 + step * 104729) % 2001 - 1000) / 1024 * 2.0 ** -((i + step) % 16) for i in range(COUNT)]


def quantise(x, code, absmax, out, blocksize):
    plain = kernels_optim._quantize_blockwise_pytorch
    codes, largest = getattr(plain, "_torchdynamo_orig_callable", plain)(x, code, blocksize)
    out.copy_(codes)
    absmax.copy_(largest)


def main():
    ops._quant_blockwise_fp32_direct = quantise
    maps = [F.create_dynamic_map(signed=True), F.create_dynamic_map(signed=False)]
    value = torch.tensor([((i * 31) % 257 - 128) / 128 for i in range(COUNT)])
    codes = [torch.zeros(COUNT, dtype=torch.uint8) for _ in maps]
    absmax = [torch.zeros((COUNT + 255) // 256) for _ in maps]
    for step in range(1, STEPS + 1):
        ops._optimizer_update_8bit_blockwise_cpu(
            "adam", torch.tensor(gradient(step)), value, codes[0], codes[1], HYPER["beta1"], HYPER["beta2"], 0.0, 0.0,
            HYPER["eps"], step, HYPER["lr"], maps[0], maps[1], absmax[0], absmax[1], HYPER["weight_decay"],
            HYPER["grad_scale"])
    floats = {"value": value, "absmax1": absmax[0], "absmax2": absmax[1]}
    result = {name: [float(f"{x:.9g}") for x in tensor.tolist()] for name, tensor in floats.items()}
    result.update(code1=codes[0].tolist(), code2=codes[1].tolist())
    print(json.dumps(result, separators=(",", ":")))


main()
