#!/usr/bin/env python3
"""The shape of the kernels' code, read from the PTX and the disassembled code objects of this build: device memory is
accessed as global memory, and kernels that move fp32 values move four at once."""
import os
import re
import shutil
import subprocess
import sys

BUILD = os.path.join(os.path.dirname(os.environ["MOTLEY_BIN"]), "gpu_code")
SKIP = 77
MOVERS = ("add_rows", "copy_rows", "bias_rows", "softcap", "adamw", "rope", "cross_entropy", "square_sums", "unpack_nf4",
          "unpack_blocks", "rmsnorm", "rmsnorm_backward", "dropout", "dropout_backward", "embed", "embed_backward",
          "gather_rows", "scatter_rows", "glu", "glu_backward", "cast")
# Accesses, among them generic ones, and the function or kernel that the lines below a heading belong to.
PTX = {"head": re.compile(r"\.entry (\w+)"), "access": re.compile(r"^\s*(?:@\S+ )?((?:ld|st|atom|red)\.\S+)"),
       "generic": re.compile(r"(?:ld|st|atom|red)\.(?!global|shared|param|local|const)"), "wide": re.compile(r"(?:ld|st)\.global\.v4")}
AMD = {"head": re.compile(r"^[0-9a-f]+ <(\w+)>:"), "access": re.compile(r"^\s*((?:flat|global|scratch|buffer)_\w+)"),
       "generic": re.compile(r"flat_"), "wide": re.compile(r"global_(?:load|store)_(?:dwordx4|b128)")}


def accesses(lines, words):
    """{kernel: [accesses]}"""
    found, kernel = {}, None
    for line in lines:
        head = words["head"].search(line)
        if head:
            kernel = head.group(1)
        access = words["access"].match(line)
        if access and kernel:
            found.setdefault(kernel, []).append(access.group(1))
    return found


def faults(found, words):
    if len(found) < len(MOVERS):
        yield f"only {len(found)} kernels were read"
    for kernel, list_ in found.items():
        generic = [access for access in list_ if words["generic"].match(access)]
        if generic:
            yield f"{kernel} has {len(generic)} generic accesses: {generic[0]}"
    for kernel in MOVERS:
        if not any(words["wide"].match(access) for access in found.get(kernel, [])):
            yield f"{kernel} never moves 16 bytes at once"


def disassembled(path):
    tool = next(filter(None, map(shutil.which, ("llvm-objdump-19", "llvm-objdump-14", "llvm-objdump"))), None)
    if not tool:
        return None
    done = subprocess.run([tool, "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True, timeout=240)
    return done.stdout.splitlines()


def main():
    names = sorted(name for name in os.listdir(BUILD) if re.fullmatch(r"(sm_|gfx)\w+", name)) if os.path.isdir(BUILD) else []
    bad, read = [], []
    for name in names:
        path = os.path.join(BUILD, name)
        if name.startswith("sm_"):
            with open(path, encoding="ascii") as handle:
                lines, words = handle.read().splitlines(), PTX
        else:
            lines, words = disassembled(path), AMD
            if lines is None:
                print(f"skipped: no llvm-objdump to read {name} with")
                continue
        if any("Cuda compilation tools" in line for line in lines[:20]):
            print(f"skipped: {name} is by CUDA's own compiler, whose accesses are generic ones")
            continue
        found = accesses(lines, words)
        read.append(f"{name} ({sum(map(len, found.values()))} accesses in {len(found)} kernels)")
        bad += [f"{name}: {fault}" for fault in faults(found, words)]
    for fault in bad:
        print(f"FAILED: {fault}")
    print("read: " + ", ".join(read) if read else "skipped: this build has no code for cards")
    sys.exit(1 if bad else 0 if read else SKIP)


if __name__ == "__main__":
    main()
