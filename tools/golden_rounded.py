#!/usr/bin/env python3
"""Make tests/data/golden/rounded.json: the tiny models of that folder trained in 16 bits.

    python3 tools/golden_rounded.py DIR        needs torch, transformers, peft (tests/data/golden/README.md)

For every family, bf16 and fp16, adapters and full: losses and gradient norms of the first STEPS steps,
  rounded   as the engine defines it: the operands of every product of linears and of attention, forward and backward,
            are rounded to 16 bits, and so are attention's output and the gates' inputs; all else is in double (what
            make_golden.py says of it); routers are left alone. Gradients are of the sum over labelled tokens, times
            SCALE in fp16, while they are rounded.
  autocast  as torch.autocast does it on a CPU in fp32: outputs of all linears are in 16 bits, too.
"""
import contextlib
import json
import math
import pathlib
import sys

import peft
import torch
import transformers

import make_golden as golden

STEPS, SCALE = 10, 1024.0
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def rounded(x, dtype):
    """What is in fp32 first, to 16 bits."""
    return x.type(torch.float32).type(dtype).type(torch.float64)


class RoundedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, dtype):
        ctx.save_for_backward(x, weight)
        ctx.dtype = dtype
        return rounded(x, dtype) @ rounded(weight, dtype).T

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = rounded(grad, ctx.dtype)
        dx = grad @ rounded(weight, ctx.dtype)
        dweight = grad.flatten(0, -2).T @ rounded(x, ctx.dtype).flatten(0, -2)
        return dx, dweight if ctx.needs_input_grad[1] else None, None


class Rounded(torch.autograd.Function):
    """A value kept in 16 bits: its gradient is not rounded by it."""

    @staticmethod
    def forward(ctx, x, dtype):
        return rounded(x, dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class RoundedAttention(torch.autograd.Function):
    """op_attention and op_attention_backward: q, k, v are [batch, heads, length, width]."""

    @staticmethod
    def forward(ctx, q, k, v, mask, scale, cap, dtype):
        q, k, v = rounded(q, dtype), rounded(k, dtype), rounded(v, dtype)
        scores = q @ k.transpose(2, 3) * scale
        bent = torch.tanh(scores / cap) if cap else torch.zeros_like(scores)
        scores = (cap * bent if cap else scores) + mask
        base = torch.ceil(scores.amax(-1, keepdim=True) / math.log(2)) * math.log(2)
        weights = torch.exp(scores - base)
        total = weights.sum(-1, keepdim=True)
        out = rounded(rounded(weights, dtype) @ v / total, dtype)
        ctx.save_for_backward(q, k, v, weights / total, (1 - bent * bent) * scale, out)
        ctx.dtype = dtype
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, weights, slope, out = ctx.saved_tensors
        delta = (grad * out).sum(-1, keepdim=True)
        grad = rounded(grad, ctx.dtype)
        ds = rounded(weights * (grad @ v.transpose(2, 3) - delta) * slope, ctx.dtype)
        dv = rounded(weights, ctx.dtype).transpose(2, 3) @ grad
        return ds @ k, ds.transpose(2, 3) @ q, dv, None, None, None, None


class Rounding:
    """While entered, torch.nn.functional.linear is RoundedLinear, but for a matrix of `routers` rows, attention of
    models made with "rounded" is RoundedAttention, and what joined matrices of experts, [gate_up, inputs], give is
    Rounded; gates() has the others round what they give."""

    def __init__(self, dtype, routers, gate_up):
        self.dtype, self.routers, self.gate_up = dtype, routers, gate_up

    def attention(self, module, query, key, value, mask, scaling=None, softcap=None, **ignored):
        groups = query.shape[1] // key.shape[1]
        scaling = module.head_dim**-0.5 if scaling is None else scaling
        repeat = lambda x: torch.repeat_interleave(x, groups, 1)
        if mask is None:
            mask = torch.triu(torch.full((query.shape[2], key.shape[2]), -math.inf), 1)
        out = RoundedAttention.apply(query, repeat(key), repeat(value), mask, scaling, softcap, self.dtype)
        return out.transpose(1, 2).contiguous(), None

    def gates(self, model):
        for name, module in model.named_modules():
            if name.rsplit(".", 1)[-1] in ("gate_proj", "up_proj", "gate_up_proj"):
                module.register_forward_hook(lambda module, inputs, out: Rounded.apply(out, self.dtype))
        return model

    def __enter__(self):
        self.linear = torch.nn.functional.linear

        def linear(x, weight, bias=None):
            if weight.shape[0] == self.routers:
                return self.linear(x, weight, bias)
            y = RoundedLinear.apply(x, weight, self.dtype)
            if not isinstance(weight, torch.nn.Parameter) and weight.shape == self.gate_up:
                y = Rounded.apply(y, self.dtype)
            return y if bias is None else y + bias

        torch.nn.functional.linear = linear
        transformers.AttentionInterface.register("rounded", self.attention)
        transformers.AttentionMaskInterface.register("rounded", transformers.masking_utils.eager_mask)
        return self

    def __exit__(self, *ignored):
        torch.nn.functional.linear = self.linear


def loss_backward(model, batch, scale, context):
    """The sum over labelled tokens; gradients are its own times scale. The context is entered anew for each row:
    autocast keeps what it has cast while it lasts."""
    total = 0.0
    for ids, labels in zip(batch["ids"], batch["labels"]):
        with context():
            logits = model(input_ids=torch.tensor([ids])).logits[0].float()  # as transformers does before its loss
        loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(labels[1:]), reduction="sum",
                                                 ignore_index=-100)
        (loss * scale).backward()
        total += loss.item()
    return total


def train(model, batches, peak, decay, scale, context):
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=peak, betas=golden.BETAS, eps=golden.EPS, weight_decay=decay)
    curve = {"loss": [], "grad_norm": []}
    for step in range(STEPS):
        batch = batches[step % len(batches)]
        count = sum(label != -100 for row in batch["labels"] for label in row[1:])
        optimizer.zero_grad()
        curve["loss"].append(loss_backward(model, batch, scale, context) / count)
        for p in parameters:
            p.grad.div_(scale * count)
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in parameters)).item()
        for p in parameters:
            p.grad.mul_(min(1.0, golden.CLIP / (norm + 1e-6)))
        optimizer.param_groups[0]["lr"] = golden.learning_rate(step, peak)
        optimizer.step()
        curve["grad_norm"].append(norm)
    return curve


def model_of(folder, method, dtype, attention):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention,
                                                              experts_implementation="eager")
    if method == "full":
        return model
    return peft.PeftModel.from_pretrained(model, folder / "adapter_init", is_trainable=True,
                                          autocast_adapter_dtype=False).to(dtype)


def family(folder):
    expected, out = json.loads((folder / "expected.json").read_text()), {}
    config = json.loads((folder / "config.json").read_text())
    routers = config.get("num_local_experts", config.get("num_experts"))
    gate_up = (2 * config.get("moe_intermediate_size", config["intermediate_size"]), config["hidden_size"])
    for method in ("lora", "full"):
        setting = expected[method]
        for name, dtype in DTYPES.items():
            scale = SCALE if name == "fp16" else 1.0
            with golden.Doubled(), Rounding(dtype, routers, gate_up) as rounding:
                model = rounding.gates(model_of(folder, method, torch.float64, "rounded"))
                curve = train(model, expected["batches"], setting["peak_lr"], setting["weight_decay"], scale,
                              contextlib.nullcontext)
            cast = train(model_of(folder, method, torch.float32, "eager"), expected["batches"], setting["peak_lr"],
                         setting["weight_decay"], scale, lambda: torch.autocast("cpu", dtype=dtype))
            out[f"{method}_{name}"] = {"rounded": curve, "autocast": cast}
            plain = expected[f"{method}_fp64"]["loss"][:STEPS]
            differs = lambda a, b: max(abs(x / y - 1) for x, y in zip(a, b))
            print(f"{folder.name} {method} {name}: from fp64 {differs(curve['loss'], plain):.1e}, "
                  f"autocast from it {differs(cast['loss'], curve['loss']):.1e}", flush=True)
    return out


def main():
    torch.set_num_threads(1)
    root = pathlib.Path(sys.argv[1])
    folders = [folder for folder in sorted(root.iterdir())
               if (folder / "adapter_init").is_dir() and (folder / "config.json").is_file()]
    values = {folder.name: family(folder) for folder in folders}
    (root / "rounded.json").write_text(json.dumps({"scale_fp16": SCALE, "steps": STEPS, "families": values}))


if __name__ == "__main__":
    main()
