#!/usr/bin/env python3
"""What NVIDIA's assembler makes of each kernel of this build: registers of a thread and what spills, within a budget. ptxas (from
PyPI: tools/pypi_packages.sh engine) needs no GPU. `make test` assembles for Hopper, and MOTLEY_EMULATED_CHECK for every generation
from Turing on; what was assembled once is kept in .cache beside ptxas."""
import hashlib
import json
import os
import sys

SOURCE = os.environ["MOTLEY_SOURCE"]
sys.path.insert(0, os.path.join(SOURCE, "tools"))
import kernel_resources  # noqa: E402

BUILD = os.path.join(os.path.dirname(os.environ["MOTLEY_BIN"]), "gpu_code")
CACHE = os.path.join(SOURCE, ".cache", "engine")
PTXAS = os.path.join(CACHE, "nvidia", "cuda_nvcc", "bin", "ptxas")
# Card, and the text that its driver takes.
ALL = {"sm_75": "sm_75", "sm_80": "sm_80", "sm_89": "sm_80", "sm_90": "sm_80", "sm_120": "sm_80"}
# A multiprocessor has 65,536 registers: two blocks of 256 threads have 128 each. Kernels beyond these, or with bytes that spill, and
# how much they may have on any card. Those of attention with matrix units and of products hold their sums in registers; ptxas holds
# the others to two blocks by spilling a little.
SHARED = (128, 0)
BUDGET = {"attention_64": (152, 0), "attention_128": (176, 96), "attention_256": (232, 0),
          "attention_512": (255, 0), "attention_keys_512": (255, 0), "attention_queries_512": (255, 0),
          "attention_keys_64": (216, 128), "attention_keys_128": (252, 0), "attention_keys_256": (255, 0),
          "attention_queries_64": (204, 104), "attention_queries_128": (232, 0), "attention_queries_256": (255, 0),
          "attention_units_64": (144, 0), "attention_units_128": (188, 0), "attention_units_256": (255, 0),
          "attention_units_keys_64": (162, 0), "attention_units_keys_128": (228, 0), "attention_units_keys_256": (224, 0),
          "attention_units_queries_128": (188, 0), "attention_units_queries_256": (216, 0),
          "gemm_128x128": (144, 0), "gemm_nf4_128x128": (144, 0), "gemm_blocks_128x128": (144, 24),
          "units_eights_128x128": (128, 20), "units_nf4_eights_128x128": (128, 16), "units_128x128": (224, 0), "units_nf4_128x128": (224, 0), "units_blocks_128x128": (224, 0),
          "cross_entropy": (64, 32), "route_backward": (64, 32)}
# What one generation alone needs beyond that. Of attention and of products a multiprocessor holds as many blocks as with the
# budget above; of delta_forward three in the place of four.
OF_ARCH = {"sm_75": {"units_eights_128x128": (128, 24)},
           "sm_120": {"units_nf4_128x128": (226, 0), "attention_units_128": (191, 0), "grouped_nf4_64x64": (64, 8),
                      "glu_backward": (40, 8), "delta_forward": (148, 0)}}


def assembled(arch, text):
    """{kernel: [registers, shared bytes, spilled bytes]}"""
    with open(text, "rb") as handle:
        key = hashlib.sha256(handle.read()).hexdigest()[:16]
    kept = os.path.join(CACHE, f"{arch}-{key}.json")
    if not os.path.exists(kept):
        kernels = kernel_resources.nvidia(text, arch, PTXAS)
        if not kernels:
            sys.exit(f"FAILED: ptxas does not assemble {text} for {arch}")
        with open(kept + ".new", "w", encoding="utf-8") as handle:
            json.dump(kernels, handle)
        os.replace(kept + ".new", kept)
    with open(kept, encoding="utf-8") as handle:
        return json.load(handle)


def main():
    if not os.path.exists(PTXAS):
        print("skipped: ptxas is not in .cache/engine: tools/pypi_packages.sh engine fetches it")
        sys.exit(77)
    archs = ALL if os.environ.get("MOTLEY_EMULATED_CHECK") else {"sm_90": ALL["sm_90"]}
    bad, read = [], []
    for arch, of in archs.items():
        text = os.path.join(BUILD, of)
        if not os.path.exists(text):
            print(f"skipped: this build has no {of}")
            continue
        kernels = assembled(arch, text)
        read.append(f"{arch} ({len(kernels)} kernels)")
        if len(kernels) < 60:
            bad.append(f"{arch}: only {len(kernels)} kernels were read")
        for name, (registers, _, spills) in kernels.items():
            most, bytes_ = OF_ARCH.get(arch, {}).get(name, BUDGET.get(name, SHARED))
            if registers > most or spills > bytes_:
                bad.append(f"{arch}: {name} has {registers} registers and {spills} bytes that spill: its budget is {most} and {bytes_}")
    for fault in bad:
        print(f"FAILED: {fault}")
    print("read: " + ", ".join(read))
    sys.exit(1 if bad else 0 if read else 77)


if __name__ == "__main__":
    main()
