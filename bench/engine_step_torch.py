"""What PyTorch + peft does with bench_engine_step's workload: the 135M shape, fp32, LoRA r 16 on q, k, v, o.

  engine_step_torch.py [threads [steps [train.json or - [lora | bf16 | nf4 | full [fp32 | bf16 | fp16]]]]]

Without a file: 4 rows x 256 tokens, every label learnt. With one: its batches, 4 rows a step, padded to the longest
row as transformers' collators pad; real tokens are counted. nf4: bitsandbytes' Linear4bit, double quantisation, fp32
compute. The fifth argument: under torch.autocast. Needs torch, transformers and peft (nf4: bitsandbytes); nothing else does.
"""
import json
import resource
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def batches_of(path, vocab):
    if path is None:
        ids = torch.randint(0, vocab, (4, 256))
        return [(ids, ids.clone(), torch.ones_like(ids), ids.numel())]
    out = []
    for batch in json.load(open(path))["batches"]:
        longest = max(len(row) for row in batch["ids"])
        pad = lambda rows, value: torch.tensor([row + [value] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch["ids"]])
        out.append((pad(batch["ids"], 0), pad(batch["labels"], -100), mask, sum(len(r) for r in batch["ids"])))
    return out


def to_nf4(model):
    """As transformers loads a model in 4 bits: every linear layer but the head."""
    import bitsandbytes
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear) and name.endswith("_proj"):
                packed = bitsandbytes.nn.Linear4bit(child.in_features, child.out_features, bias=False, quant_type="nf4",
                                                    compute_dtype=torch.float32, compress_statistics=True)
                packed.weight = bitsandbytes.nn.Params4bit(child.weight.data, requires_grad=False, quant_type="nf4",
                                                           compress_statistics=True)
                setattr(module, name, packed.to("cpu"))
    model.is_loaded_in_4bit = True


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    config = LlamaConfig(hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
                         head_dim=64, intermediate_size=1536, vocab_size=49152, max_position_embeddings=8192,
                         rms_norm_eps=1e-5, tie_word_embeddings=True)
    method = sys.argv[4] if len(sys.argv) > 4 else "lora"
    model = LlamaForCausalLM(config)
    if method == "bf16":
        model = model.to(torch.bfloat16)
    if method == "nf4":
        to_nf4(model)
    model = model if method == "full" else get_peft_model(model, LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.0, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    batches = batches_of(sys.argv[3] if len(sys.argv) > 3 and sys.argv[3] != "-" else None, 49152)
    compute = sys.argv[5] if len(sys.argv) > 5 else "fp32"
    autocast = torch.autocast("cpu", dtype=torch.float16 if compute == "fp16" else torch.bfloat16,
                              enabled=compute != "fp32")
    total, tokens, best, cpu = 0.0, 0, 1e9, 0.0
    for step in range(steps + 1):
        ids, labels, mask, real = batches[step % len(batches)]
        begin, cpu_begin = time.monotonic(), time.process_time()
        with autocast:
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds = time.monotonic() - begin
        if step:
            total, tokens, best = total + seconds, tokens + real, min(best, seconds / real)
            cpu += time.process_time() - cpu_begin
    print(json.dumps({"torch": torch.__version__, "compute": compute, "threads": threads, "steps": steps, "loss": float(loss.detach()),
                      "tokens_per_s": round(tokens / total, 1), "tokens_per_s_best": round(1 / best, 1),
                      "tokens_per_cpu_s": round(tokens / cpu, 1),
                      "vm_hwm_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


main()
