#!/usr/bin/env python3
"""The engine beside PyTorch + peft on the 135M shape, 2 threads, in turn: LoRA in fp32 on 4 rows x 256 tokens all learnt and
on the rows of ../shared/golden/smollm2/train.json, 4 a step; LoRA on a bf16 base and full fine-tuning on the 4 x 256.
  MOTLEY_TORCH_PYTHON=PYTHON bench/engine_vs_torch.py [rounds, default 3] [steps a round, default 6]
PYTHON has torch, transformers and peft; without it this is a visible skip.
"""
import json
import os
import subprocess
import sys

from harness import SOURCE, report, summary

BIN = os.environ.get("MOTLEY_BIN") or os.path.join(SOURCE, "build", "bin")
ROWS = os.path.join(os.path.dirname(SOURCE), "shared", "golden", "smollm2", "train.json")


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(name, python, rounds, steps, extra):
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(run([os.path.join(BIN, "bench_engine_step"), "2", str(steps), *extra]))
        theirs.append(run([python, os.path.join(SOURCE, "bench", "engine_step_torch.py"), "2", str(steps), *extra]))
        print(f"{name}: {ours[-1]['tokens_per_s']:.0f} tokens/s, PyTorch {theirs[-1]['tokens_per_s']:.0f}: "
              f"{ours[-1]['tokens_per_s'] / theirs[-1]['tokens_per_s']:.2f}", flush=True)
    return {"tokens_per_s": summary([r["tokens_per_s"] for r in ours]), "torch_tokens_per_s": summary([r["tokens_per_s"] for r in theirs]),
            "ratio": summary([a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(ours, theirs)]),
            "cpu_ratio": summary([a["tokens_per_cpu_s"] / b["tokens_per_cpu_s"] for a, b in zip(ours, theirs)]),
            "vm_hwm_bytes": max(r["vm_hwm_bytes"] for r in ours), "torch_vm_hwm_bytes": max(r["vm_hwm_bytes"] for r in theirs),
            "torch": theirs[0]["torch"]}


def main():
    python = os.environ.get("MOTLEY_TORCH_PYTHON")
    if not python:
        print("SKIP: MOTLEY_TORCH_PYTHON names no Python with torch, transformers and peft")
        sys.exit(77)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 6
    out = {"rounds": rounds, "steps": steps, "4x256": compare("4 x 256", python, rounds, steps, [])}
    if os.path.exists(ROWS):
        out["rows"] = compare("rows", python, rounds, steps, [ROWS])
    else:
        print("SKIP of the rows: ../shared/golden/smollm2/train.json is not here")
    for method in ("bf16", "full"):
        out[method] = compare(method, python, rounds, steps, ["-", method])
    report("engine_vs_torch", out)


if __name__ == "__main__":
    main()
