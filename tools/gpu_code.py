#!/usr/bin/env python3
"""Pack code objects of the GPU kernels and write the C file that holds them (cmake/gpu_code.cmake calls this).

gpu_code.py --out FILE.c --compiler NAME [--object KIND ARCH FORM MATRIX FILE]...
            [--absent KIND ARCH FORM WHY]...

MATRIX: the 16-bit types that its kernels multiply by matrix units (fragment.h): none, f16, f16+bf16.
FORM: such as ptx70 or elf4, of an object what cmake/gpu_code.cmake asked for. The table says what the object itself
says, because compilers add versions of their own (clang 19 writes PTX 8.5 unless told otherwise), and drivers refuse
by that.
"""
import argparse
import os
import re
import zlib

MATRIX = {"none": "0", "f16": "GPU_MATRIX_F16", "f16+bf16": "GPU_MATRIX_F16 | GPU_MATRIX_BF16"}


# The version of a code object by its ELF header's EI_ABIVERSION (LLVM: AMDGPUUsage, "ELF Code Object").
ELF_VERSIONS = {0: "elf2", 1: "elf3", 2: "elf4", 3: "elf5", 4: "elf6"}


def form_of(raw):
    """The form and version that the object says of itself."""
    if raw[:4] == b"\x7fELF":
        return ELF_VERSIONS.get(raw[8], f"elf-abi{raw[8]}")
    version = re.search(rb"^\.version (\d+)\.(\d+)", raw, re.MULTILINE)
    if not version:
        raise SystemExit("an object is neither PTX nor ELF")
    return f"ptx{version.group(1).decode()}{version.group(2).decode()}"


def quoted(text):
    return '"' + "".join(c if 32 <= ord(c) < 127 and c not in '"\\' else "?" for c in text) + '"'


def pack(path, index, stored, data):
    """Appends to `data` what includes the packed file; returns the file's bytes, and (symbol, packed size, size)."""
    with open(path, "rb") as handle:
        raw = handle.read()
    packed, name = path + ".z", f"gpu_code_{index}"
    with open(packed, "wb") as handle:
        handle.write(zlib.compress(raw, 0 if stored else 9))
    data.append(f'__asm__(".pushsection .rodata\\n.globl {name}\\n.hidden {name}\\n"\n'
                f'        "{name}:\\n.incbin {chr(92)}"{packed}{chr(92)}"\\n.popsection\\n");\n'
                f"extern const uint8_t {name}[];\n")
    return raw, (name, os.path.getsize(packed), len(raw))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--object", nargs=5, action="append", default=[])
    parser.add_argument("--absent", nargs=4, action="append", default=[])
    parser.add_argument("--stored", action="store_true", help="without compression")
    options = parser.parse_args()
    data, rows = [], []
    for kind, arch, _, matrix, path in options.object:
        raw, kernels = pack(path, len(data), options.stored, data)
        _, look = pack(path + ".look", len(data), options.stored, data)
        rows.append(f"    {{.kind = {quoted(kind)}, .arch = {quoted(arch)}, .form = {quoted(form_of(raw))}, "
                    f".matrix = {MATRIX[matrix]}, .packed = {kernels[0]}, .packed_bytes = {kernels[1]}, .bytes = {kernels[2]}, "
                    f".look = {look[0]}, .look_packed_bytes = {look[1]}, .look_bytes = {look[2]}}},\n")
    for kind, arch, form, why in options.absent:
        rows.append(f"    {{.kind = {quoted(kind)}, .arch = {quoted(arch)}, .form = {quoted(form)}, "
                    f".why = {quoted(why)}}},\n")
    with open(options.out, "w", encoding="utf-8") as handle:
        handle.write('/* Written by tools/gpu_code.py. */\n#include "engine/gpu/code.h"\n\n')
        handle.write("".join(data))
        handle.write(f"const struct gpu_code gpu_codes[] = {{\n{''.join(rows)}}};\n")
        handle.write("const uint32_t gpu_code_count = sizeof gpu_codes / sizeof *gpu_codes;\n")
        handle.write(f"const char *const gpu_code_compiler = {quoted(options.compiler)};\n")


if __name__ == "__main__":
    main()
