#!/usr/bin/env python3
"""Make tests/data/golden/<family>: what transformers and peft compute for tiny random models.

    python3 tools/make_golden.py DIR [FAMILY ...]      needs torch, transformers, peft (tests/data/golden/README.md)

The loss, clipping, optimiser and learning rate are those of the README in tests/data/golden. Values come from a run
in double precision (_fp64); _fp32 shows what single precision costs. transformers takes norms, softmax and rotary
angles to fp32 whatever the model's dtype, so in the double run every cast to fp32 is made one to fp64.
"""
import json
import math
import pathlib
import shutil
import sys

import peft
import torch
import transformers
from safetensors.torch import save_file

STEPS, WARMUP, ROWS = 20, 4, 4
BETAS, EPS, CLIP = (0.9, 0.95), 1e-8, 1.0
FULL = {"peak_lr": 1e-3, "weight_decay": 0.1, "decays": "every parameter"}
COMMON = dict(vocab_size=131, hidden_size=32, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.08)
QKVO = ["q_proj", "k_proj", "v_proj", "o_proj"]
FAMILIES = {
    # soft caps that bend, scores scaled by another number than the head's size, window and full by turns
    "gemma2": (transformers.Gemma2Config, dict(COMMON, num_hidden_layers=4, head_dim=16, sliding_window=12,
               query_pre_attn_scalar=20, attn_logit_softcapping=3.0, final_logit_softcapping=2.0), QKVO),
    # two rotary settings, one of them scaled; q/k norms
    "gemma3": (transformers.Gemma3TextConfig, dict(COMMON, num_hidden_layers=4, head_dim=16, sliding_window=12,
               query_pre_attn_scalar=20, layer_types=["sliding_attention", "full_attention"] * 2,
               rope_parameters={
                   "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                   "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}), QKVO),
    # packed matrices, part of each head rotated
    "phi3": (transformers.Phi3Config, dict(COMMON, num_hidden_layers=4, sliding_window=12, hidden_size=32,
             rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
             ["qkv_proj", "o_proj"]),
    # every second layer is not rotated
    "smollm3": (transformers.SmolLM3Config, dict(COMMON, num_hidden_layers=4, no_rope_layer_interval=2), QKVO),
}


class Doubled:
    """While entered, a cast to fp32 gives fp64, and new tensors are fp64."""

    def __enter__(self):
        self.to, self.float, self.softmax = torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax
        up = lambda x: torch.float64 if x is torch.float32 else x

        def to(tensor, *args, **kwargs):
            return self.to(tensor, *map(up, args), **{k: up(v) for k, v in kwargs.items()})

        torch.Tensor.to = to
        torch.Tensor.float = lambda tensor: self.to(tensor, torch.float64)
        torch.nn.functional.softmax = lambda x, dim=None, dtype=None, **k: self.softmax(x, dim=dim, dtype=up(dtype))
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *ignored):
        torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax = self.to, self.float, self.softmax
        torch.set_default_dtype(torch.float32)


def make_model(folder, kind, settings):
    model = transformers.AutoModelForCausalLM.from_config(kind(**settings), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases differ from where they begin, too
            if parameter.ndim == 1:
                parameter.add_(0.15 * torch.randn_like(parameter))
    model.save_pretrained(folder)


def make_batches(vocab, generator):
    batches = []
    for _ in range(5):
        lengths = torch.randint(10, 40, (ROWS,), generator=generator).tolist()
        ids = [torch.randint(3, vocab, (n,), generator=generator).tolist() for n in lengths]
        skip = torch.randint(1, 9, (ROWS,), generator=generator).tolist()
        batches.append({"ids": ids, "labels": [[-100] * k + row[k:] for k, row in zip(skip, ids)]})
    return batches


def learning_rate(step, peak):
    if step < WARMUP:
        return peak * (step + 1) / WARMUP
    return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))))


def loss_backward(model, batch):
    """The mean over the batch's labelled tokens, row by row, with gradients added up."""
    count = sum(label != -100 for row in batch["labels"] for label in row[1:])
    total = 0.0
    for ids, labels in zip(batch["ids"], batch["labels"]):
        logits = model(input_ids=torch.tensor([ids])).logits[0]
        loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(labels[1:]), reduction="sum",
                                                 ignore_index=-100) / count
        loss.backward()
        total += loss.item()
    return total


def gradients(model):
    return {name: p.grad.type(torch.float32).contiguous().clone() for name, p in model.named_parameters()
            if p.requires_grad and p.grad is not None}


def train(model, batches, peak, decay, at_step=None, steps=STEPS):
    """The first steps of STEPS; returns the curve, and the gradients before clipping at step `at_step`."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=peak, betas=BETAS, eps=EPS, weight_decay=decay)
    curve, kept = {"loss": [], "grad_norm": [], "lr": []}, None
    for step in range(steps):
        optimizer.zero_grad()
        curve["loss"].append(loss_backward(model, batches[step % len(batches)]))
        kept = gradients(model) if step == at_step else kept
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in parameters)).item()
        for p in parameters:
            p.grad.mul_(min(1.0, CLIP / (norm + 1e-6)))
        optimizer.param_groups[0]["lr"] = learning_rate(step, peak)
        optimizer.step()
        curve["grad_norm"].append(norm)
        curve["lr"].append(learning_rate(step, peak))
    return curve, kept


def load(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager",
                                                             experts_implementation="eager")


def adapter_name(name):
    return name.replace("base_model.model.", "", 1).replace(".default", "")


def runs(folder, expected, suffix, dtype):
    batches, lora = expected["batches"], expected["lora"]
    model = load(folder, dtype)
    with torch.no_grad():
        logits = {f"logits.{r}": model(input_ids=torch.tensor([ids])).logits[0].type(torch.float32).contiguous()
                  for r, ids in enumerate(batches[0]["ids"])}
    curve, first = train(model, batches, FULL["peak_lr"], FULL["weight_decay"], at_step=0)
    expected[f"loss_first{suffix}"], expected[f"full{suffix}"] = curve["loss"][0], curve
    model = peft.PeftModel.from_pretrained(load(folder, dtype), folder / "adapter_init", is_trainable=True,
                                           autocast_adapter_dtype=False).to(dtype)
    expected[f"lora{suffix}"], second = train(model, batches, lora["peak_lr"], lora["weight_decay"], at_step=1)
    return logits, first, {adapter_name(name): g for name, g in second.items()}, model


def make_family(folder, name, seed):
    kind, settings, targets = FAMILIES[name]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(seed)
    make_model(folder, kind, settings)
    lora = {"peak_lr": 5e-3, "weight_decay": 0.0, "r": 16, "alpha": 32, "targets": targets, "dropout": 0.0}
    config = peft.LoraConfig(r=16, lora_alpha=32, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM")
    adapter = peft.get_peft_model(load(folder, torch.float32), config)
    adapter.save_pretrained(folder / "adapter_init")
    expected = {"batches": make_batches(settings["vocab_size"], torch.Generator().manual_seed(seed)), "steps": STEPS,
                "warmup": WARMUP, "betas": BETAS, "eps": EPS, "clip": CLIP, "full": FULL, "lora": lora}
    runs(folder, expected, "_fp32", torch.float32)
    with Doubled():
        logits, full, second, model = runs(folder, expected, "_fp64", torch.float64)
    model.to(torch.float32).save_pretrained(folder / "adapter_after_20")
    for readme in folder.glob("*/README.md"):
        readme.unlink()
    save_file(logits, folder / "logits.safetensors")
    save_file(full, folder / "grads_full_step0.safetensors")
    save_file(second, folder / "grads_lora_step1.safetensors")
    (folder / "expected.json").write_text(json.dumps(expected))
    worst = max(abs(a / b - 1) for run in ("full", "lora")
                for a, b in zip(expected[run + "_fp32"]["loss"], expected[run + "_fp64"]["loss"]))
    print(f"{name}: {model.num_parameters()} parameters with adapters, first loss {expected['loss_first_fp64']:.6f}, "
          f"last {expected['full_fp64']['loss'][-1]:.6f} full {expected['lora_fp64']['loss'][-1]:.6f} lora, "
          f"fp32 differs by {worst:.1e}")


PATTERNS = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"],
            "exclude_modules": ["layers.3.mlp.down_proj"],
            "rank_pattern": {"model.layers.0.self_attn.q_proj": 2, r"layers\.[0-2]\..*v_proj": 6, r".*\.1\..*": 3},
            "alpha_pattern": {r"layers\.(0|3)\.self_attn.*": 3, "down_proj": 12}}


def keep_order(folder):
    """peft sorts the patterns when it saves, and then cannot load what the first one made."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **PATTERNS}, indent=2))


def make_patterns(root):
    """An adapter whose layers differ, on the model of `llama` with its batches."""
    folder, base = root / "llama-patterns", root / "llama"
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(5)
    config = peft.LoraConfig(lora_dropout=0.0, task_type="CAUSAL_LM", **PATTERNS)
    peft.get_peft_model(load(base, torch.float32), config).save_pretrained(folder / "adapter_init")
    keep_order(folder / "adapter_init")
    batches = json.loads((base / "expected.json").read_text())["batches"]
    with Doubled():
        model = peft.PeftModel.from_pretrained(load(base, torch.float64), folder / "adapter_init", is_trainable=True,
                                               autocast_adapter_dtype=False).to(torch.float64)
        curve, _ = train(model, batches, 5e-3, 0.0)
    model.to(torch.float32).save_pretrained(folder / "adapter_after_20")
    keep_order(folder / "adapter_after_20")
    for readme in folder.glob("*/README.md"):
        readme.unlink()
    (folder / "expected.json").write_text(json.dumps(curve))
    print(f"llama-patterns: last loss {curve['loss'][-1]:.6f}")


def main():
    torch.set_num_threads(1)
    root, names = pathlib.Path(sys.argv[1]), sys.argv[2:] or list(FAMILIES)
    if "llama-patterns" in names:
        make_patterns(root)
        names.remove("llama-patterns")
    for name in names:
        make_family(root / name, name, 1 + list(FAMILIES).index(name))


if __name__ == "__main__":
    main()
