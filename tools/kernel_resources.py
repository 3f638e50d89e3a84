#!/usr/bin/env python3
"""What each GPU kernel takes of each card: registers, shared memory, and what spills to memory.

kernel_resources.py [--folder build/gpu_code] [--ptxas PATH] [--out FILE.md]

Of NVIDIA's, the PTX of this build is assembled by ptxas for its target. CUDA 13's assembles sm_75 and newer;
the Python package nvidia-cuda-nvcc-cu11 (19 MB) brings one for older cards too. Of AMD's, the compiler wrote
the numbers into the code objects (the note NT_AMDGPU_METADATA, MessagePack). Exits 1 when a kernel that
--strict names spills.
"""
import argparse
import os
import re
import shutil
import struct
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NOTE_AMDGPU_METADATA = 32


def unpack(data, at):
    """One MessagePack value: those sorts that the metadata uses."""
    tag = data[at]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag < 0x90 or tag in (0xde, 0xdf):
        count, at = (tag & 15, at) if tag < 0x90 else number(data, at, 2 if tag == 0xde else 4)
        result = {}
        for _ in range(count):
            key, at = unpack(data, at)
            result[key], at = unpack(data, at)
        return result, at
    if tag < 0xa0 or tag in (0xdc, 0xdd):
        count, at = (tag & 15, at) if tag < 0xa0 else number(data, at, 2 if tag == 0xdc else 4)
        result = []
        for _ in range(count):
            value, at = unpack(data, at)
            result.append(value)
        return result, at
    if tag < 0xc0 or tag in (0xd9, 0xda, 0xdb):
        count, at = (tag & 31, at) if tag < 0xc0 else number(data, at, 1 << (tag - 0xd9))
        return data[at:at + count].decode(), at + count
    if tag in (0xc0, 0xc2, 0xc3):
        return {0xc0: None, 0xc2: False, 0xc3: True}[tag], at
    if 0xcc <= tag <= 0xcf:
        return number(data, at, 1 << (tag - 0xcc))
    raise ValueError(f"a MessagePack value of sort {tag:#x}")


def number(data, at, size):
    return int.from_bytes(data[at:at + size], "big"), at + size


def amd(path):
    """{kernel: (registers, shared bytes, spills)} of an ELF64 code object."""
    with open(path, "rb") as handle:
        data = handle.read()
    offset, = struct.unpack_from("<Q", data, 0x20)
    size, count = struct.unpack_from("<HH", data, 0x36)
    for i in range(count):
        kind, _, at, _, _, length = struct.unpack_from("<IIQQQQ", data, offset + i * size)
        end = at + length
        while kind == 4 and at + 12 <= end:
            name, desc, note = struct.unpack_from("<III", data, at)
            at += 12 + (name + 3) // 4 * 4
            if note == NOTE_AMDGPU_METADATA:
                kernels = unpack(data, at)[0]["amdhsa.kernels"]
                return {k[".name"]: (k[".vgpr_count"], k[".group_segment_fixed_size"],
                                     max(4 * k.get(".vgpr_spill_count", 0),
                                         k.get(".private_segment_fixed_size", 0))) for k in kernels}
            at += (desc + 3) // 4 * 4
    raise ValueError(f"{path}: no note of AMD's metadata")


def nvidia(path, arch, ptxas):
    """The same of PTX text; None where this ptxas does not know the target."""
    done = subprocess.run([ptxas, "-v", f"-arch={arch}", path, "-o", os.devnull], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{arch}: {done.stderr.splitlines()[0] if done.stderr else 'ptxas failed'}", file=sys.stderr)
        return None
    kernels, name, spills = {}, None, 0
    for line in done.stderr.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            name = found[1]
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spills = max(int(found[1]), int(found[2]), int(found[3]))
        elif found := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            kernels[name] = (int(found[1]), int(shared[1]) if shared else 0, spills)
    return kernels


def gather(folder, ptxas):
    table = {}
    for arch in sorted(os.listdir(folder), key=lambda a: (a[0] != "s", len(a), a)):
        path = os.path.join(folder, arch)
        if re.fullmatch(r"sm_\d+", arch):
            kernels = nvidia(path, arch, ptxas) if ptxas else None
        elif re.fullmatch(r"gfx\w+", arch):
            kernels = amd(path)
        else:
            continue
        if kernels is not None:
            table[arch] = kernels
    return table


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default=os.path.join(ROOT, "build/gpu_code"))
    parser.add_argument("--ptxas", default=shutil.which("ptxas"))
    parser.add_argument("--out")
    parser.add_argument("--strict", default="", help="kernels that may not spill: a regular expression")
    options = parser.parse_args()
    table = gather(options.folder, options.ptxas)
    names = sorted({name for kernels in table.values() for name in kernels})
    lines = ["# Registers and shared memory of each kernel", "",
             "Registers of a thread (AMD: vector registers) / bytes of shared memory of a block; **bold: bytes of memory of its",
             "own that a thread needs**, for what spills and for arrays that registers cannot hold. Written by",
             "`tools/kernel_resources.py`.", "",
             "| kernel | " + " | ".join(table) + " |", "|---" * (len(table) + 1) + "|"]
    spilling = []
    for name in names:
        cells = []
        for arch, kernels in table.items():
            registers, shared, spills = kernels.get(name, (0, 0, 0))
            cells.append(f"{registers} / {shared}" + (f" **{spills}**" if spills else ""))
            if spills:
                spilling.append((name, arch, spills))
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    text = "\n".join(lines) + "\n"
    if options.out:
        with open(options.out, "w", encoding="utf-8") as handle:
            handle.write(text)
    else:
        print(text)
    for name, arch, spills in spilling:
        print(f"{name} spills {spills} bytes on {arch}", file=sys.stderr)
    strict = [s for s in spilling if options.strict and re.fullmatch(options.strict, s[0])]
    return 1 if strict or not table else 0


if __name__ == "__main__":
    sys.exit(main())
