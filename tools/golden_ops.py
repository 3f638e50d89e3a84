#!/usr/bin/env python3
"""Golden values of single ops, from the libraries themselves: tests/data/golden/nf4 and tests/data/golden/router.

    golden_ops.py GOLDEN     GOLDEN: the folder that holds nf4/nf4.safetensors

Needs torch 2.15, bitsandbytes 0.50.2, transformers 5.23, safetensors and numpy. Writes the same bytes every time.
"""
import os
import sys

import bitsandbytes.functional as bnb
import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter

DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "data", "golden")


class Config:
    """What a router reads of its model's config."""

    def __init__(self, experts, active, renormalise):
        self.num_experts, self.num_experts_per_tok = experts, active
        self.hidden_size, self.norm_topk_prob = experts, renormalise


def nf4_values(golden):
    """The small cases whole, of the others what is derived from the scales, and what nested scales rest on."""
    out = {}
    for name, value in load_file(os.path.join(golden, "nf4", "nf4.safetensors")).items():
        case, *what = name.split(".")
        small = case in ("heavy", "ragged", "zeros") and (case == "heavy" or what[-1] != "code2")
        scales = case in ("normal", "large") and what in (["single", "absmax"], ["double", "absmax"],
                                                          ["double", "absmax2"], ["double", "offset"])
        if small or scales:
            out[name] = value
    out["map.unsigned"] = bnb.create_dynamic_map(signed=False).numpy()
    i = np.arange(30001, dtype=np.uint64)
    fractions = (i * 2654435761 % (1 << 24)).astype(np.float64) / (1 << 24)
    scales = torch.tensor(((1 + fractions) * np.where(i % 7 == 3, 1000, 1)).astype(np.float32))
    out["mean.30001"] = np.array([float(scales.mean())], np.float32)
    out["mean.few"] = np.array([float(scales[:n].mean()) for n in range(1, 41)], np.float32)
    return out


def router_values():
    """Two layers' routers of one row, their gradient through weights and balance: OLMoE's, renormalised or not."""
    out = {}
    tokens = 23
    for name, experts, active, renormalise in (("mixtral", 8, 2, True), ("olmoe", 16, 4, False)):
        torch.manual_seed(experts)
        router = OlmoeTopKRouter(Config(experts, active, renormalise))
        router.weight.data = torch.eye(experts)
        layers = [(2 * torch.randn(tokens, experts)).requires_grad_() for _ in range(2)]
        dweight = [torch.randn(tokens, active) for _ in layers]
        routed = [router(scores) for scores in layers]
        balance = load_balancing_loss_func(tuple(logits for logits, _, _ in routed), experts, active)
        loss = tokens * balance + sum((d * weight).sum() for d, (_, weight, _) in zip(dweight, routed))
        loss.backward()
        out[f"{name}.0.balance"] = np.array([float(balance.detach())])
        for layer, scores in enumerate(layers):
            out[f"{name}.{layer}.scores"] = scores.detach().numpy()
            out[f"{name}.{layer}.weight"] = routed[layer][1].detach().numpy()
            out[f"{name}.{layer}.chosen"] = routed[layer][2].numpy().astype(np.uint32)
            out[f"{name}.{layer}.dweight"] = dweight[layer].numpy()
            out[f"{name}.{layer}.dscores"] = scores.grad.numpy()
    return out


def main():
    torch.set_num_threads(1)
    for name, values in (("nf4", nf4_values(sys.argv[1])), ("router", router_values())):
        folder = os.path.join(DATA, name)
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, name + ".safetensors")
        save_file({k: np.ascontiguousarray(v) for k, v in values.items()}, path)
        os.chmod(path, 0o644)


main()
