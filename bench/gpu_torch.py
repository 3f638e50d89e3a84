#!/usr/bin/env python3
"""What PyTorch does of the parts of gpu_bench, for bench/gpu_bench.py: prints one line of JSON, {name: number}.

gpu_torch.py PART [toy]. On a CPU (toy alone) the figures mean nothing; it tries the script.
"""
import json
import math
import sys
import time

import torch

PART = sys.argv[1]
TOY = len(sys.argv) > 2
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
ROWS, LENGTH = 4, 8 if TOY else 2048


def sync():
    if CUDA:
        torch.cuda.synchronize()


def timed(work):
    """Seconds a call: three to warm up, then windows until two agree within 2 %, as gpu_bench does."""
    for _ in range(3):
        work()
    sync()
    last, calls = 0.0, 1
    for window in range(2 if TOY else 10):
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        sync()
        span = time.perf_counter() - begin
        seconds = span / calls
        if window > 1 and abs(seconds - last) <= 0.02 * last:
            break
        last = seconds
        if not TOY and span < 0.25:
            calls = min(10000, math.ceil(calls * 0.25 / span))
    return seconds


def product(m, n, k, dtype):
    a = torch.randn(m, k, device=DEVICE, dtype=dtype)
    w = torch.randn(n, k, device=DEVICE, dtype=dtype)
    return 2.0 * m * n * k / timed(lambda: a @ w.T) * 1e-12


def products():
    cube, large, wide = (64, 128, 192) if TOY else (4096, 8192, 14336)
    torch.backends.cuda.matmul.allow_tf32 = False
    ffn = product(large, wide, cube, torch.bfloat16)
    return {"cube_f32_tflops": product(cube, cube, cube, torch.float32),
            "cube_bf16_tflops": product(cube, cube, cube, torch.bfloat16),
            "cube_f16_tflops": product(cube, cube, cube, torch.float16),
            "large_bf16_tflops": product(large, large, large, torch.bfloat16),
            "ffn_bf16_tflops": ffn, "ffn_nf4_tflops": ffn}


def attention():
    length, heads, kv, dim = (16, 4, 2, 16) if TOY else (2048, 32, 8, 128)

    def tensor(count):
        return torch.randn(ROWS, count, length, dim, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)

    q, k, v = tensor(heads), tensor(kv), tensor(kv)

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    gradient = torch.randn_like(forward())
    whole = timed(lambda: torch.autograd.grad(forward(), (q, k, v), gradient))
    with torch.no_grad():
        alone = timed(forward)
    return {"forward_s": alone, "backward_s": whole - alone}


def config_of(full):
    from transformers import LlamaConfig
    shape = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
             "intermediate_size": 14336, "vocab_size": 128256}
    if full:
        shape = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
                 "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True}
    if TOY:
        shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                 "intermediate_size": 64, "vocab_size": 96}
    return LlamaConfig(**shape, rope_theta=500000.0, rms_norm_eps=1e-5, max_position_embeddings=8192, use_cache=False)


def quantised(model):
    """Every linear but the head as bitsandbytes keeps it in NF4 with double quantisation."""
    import bitsandbytes as bnb
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
            parent = model.get_submodule(name.rsplit(".", 1)[0])
            new = bnb.nn.Linear4bit(module.in_features, module.out_features, bias=False, quant_type="nf4",
                                    compress_statistics=True, compute_dtype=torch.bfloat16)
            new.weight = bnb.nn.Params4bit(module.weight.data, requires_grad=False, quant_type="nf4",
                                           compress_statistics=True)
            setattr(parent, name.rsplit(".", 1)[1], new.to(DEVICE))
    return model


def model_of():
    from transformers import LlamaForCausalLM
    full = PART == "full"
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float32 if full else torch.bfloat16)
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config_of(full))
    if full:
        return torch.compile(model) if CUDA else model
    from peft import LoraConfig, get_peft_model
    if PART == "qlora":
        model = quantised(model)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]))


def step():
    """As ours: frozen bf16 (or NF4) base with adapters, or fp32 parameters under bf16 autocast; AdamW, norm clipped."""
    model = model_of().train()
    vocab = 96 if TOY else 128256
    ids = torch.arange(ROWS * LENGTH, device=DEVICE).mul(7919).remainder(vocab).view(ROWS, LENGTH)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=CUDA)

    def run():
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds = timed(run)
    peak = torch.cuda.max_memory_allocated() if CUDA else 0
    del model, optimizer, trained
    if CUDA:
        torch.cuda.empty_cache()
    size = 128 if TOY else 8192
    return {"step_s": seconds, "tokens_per_s": ROWS * LENGTH / seconds, "peak_bytes": peak,
            "large_tflops": product(size, size, size, torch.bfloat16)}


print(json.dumps({"products": products, "attention": attention}.get(PART, step)()))
