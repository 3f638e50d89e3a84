#!/usr/bin/env python3
"""The shape of the kernels' code, read from the PTX and the disassembled code objects of this build: device memory is
accessed as global memory, kernels that move fp32 values move four at once, and kernels of products by matrix units do
not wait for the tile that they fetch before they multiply the one they have."""
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
PREFETCHERS = ("units_128x128", "units_nf4_eights_128x128", "units_32x128", "units_128x32", "units_nf4_128x128", "units_nf4_32x128")
# Accesses, among them generic ones, and the function or kernel that the lines below a heading belong to.
PTX = {"head": re.compile(r"\.entry (\w+)"), "access": re.compile(r"^\s*(?:@\S+ )?((?:ld|st|atom|red)\.\S+)"),
       "generic": re.compile(r"(?:ld|st|atom|red)\.(?!global|shared|param|local|const)"), "wide": re.compile(r"(?:ld|st)\.global\.v4"), "barrier": re.compile(r"\bbar\.sync"), "units": re.compile(r"\bmma\.sync"),
       "load": re.compile(r"^\s*(?:@\S+ )?ld\.global"), "place": re.compile(r"^(\$\w+):"),
       "jump": re.compile(r"\bbra(?:\.uni)?\s+(?P<to>\$\w+)"), "conditional": re.compile(r"^\s*@"), "end": re.compile(r"^\s*ret;")}
AMD = {"head": re.compile(r"^[0-9a-f]+ <(\w+)>:"), "access": re.compile(r"^\s*((?:flat|global|scratch|buffer)_\w+)"),
       "generic": re.compile(r"flat_"), "wide": re.compile(r"global_(?:load|store)_(?:dwordx4|b128)"), "barrier": re.compile(r"\bs_barrier"),
       "units": re.compile(r"\bv_(?:mfma|wmma)"), "load": re.compile(r"^\s*global_load"),
       "wait": re.compile(r"s_waitcnt.*vmcnt\(0\)|s_wait_loadcnt 0x0|s_wait_loadcnt_dscnt 0x[0-9a-f]{1,2}\b"),
       "place": re.compile(r"// ([0-9A-F]{12}):"), "jump": re.compile(r"^\s*s_c?branch\w* (?P<to>\d+)"),
       "conditional": re.compile(r"s_cbranch"), "end": re.compile(r"s_endpgm")}


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


def late(lines, words):
    """Faults of the kernels that multiply by matrix units, of a target that has them."""
    kernels = kernel_lines(lines, words)
    for kernel in PREFETCHERS:
        if any(words["units"].search(line) for name in PREFETCHERS for line in kernels.get(name, [])):
            for line in list(waits(kernels.get(kernel, []), words))[:1]:
                yield f"{kernel} waits for the next tile before it multiplies: {line.split('//')[0].strip()}"


def kernel_lines(lines, words):
    """{kernel: its lines}"""
    found, kernel = {}, None
    for line in lines:
        head = words["head"].search(line)
        if head:
            kernel = found.setdefault(head.group(1), [])
        elif kernel is not None:
            kernel.append(line)
    return found


def successors(lines, words):
    """For each line the numbers of those that may be executed after it."""
    places = {match.group(1): number for number, line in enumerate(lines) for match in [words["place"].search(line)] if match}
    after = []
    for number, line in enumerate(lines):
        jump, next_ = words["jump"].search(line), [number + 1] if number + 1 < len(lines) else []
        if not jump:
            after.append([] if words["end"].search(line) else next_)
            continue
        target = jump.group("to")
        if "wait" in words:  # a distance in words, from the instruction behind it, whose address is in a comment
            distance = int(target)
            target = f"{int(words['place'].search(line).group(1), 16) + 4 + 4 * (distance - 65536 * (distance > 32767)):012X}"
        after.append([places[target]] + (next_ if words["conditional"].search(line) else []))
    return after


def before_units(lines, after, words):
    """The numbers of the lines from which a matrix instruction is reached without a barrier."""
    ahead = [[] for _ in lines]
    for number, list_ in enumerate(after):
        for next_ in list_:
            ahead[next_].append(number)
    work = [number for number, line in enumerate(lines) if words["units"].search(line)]
    found = set()
    while work:
        for number in ahead[work.pop()]:
            if number not in found and not any(words[what].search(lines[number]) for what in ("units", "barrier")):
                found.add(number)
                work.append(number)
    return found


def waits(lines, words):
    """The lines between a barrier and the first matrix instruction behind it that wait for a load among them. Of AMD's,
    to wait is an instruction. In PTX whatever reads a loaded register waits, but for moves, which the assembler drops."""
    after = successors(lines, words)
    inside = before_units(lines, after, words)
    pending, loads = {}, 0  # by line: what was loaded on some way to it
    work = [next_ for number, line in enumerate(lines) if words["barrier"].search(line) for next_ in after[number] if next_ in inside]
    for number in work:
        pending[number] = set()
    while work:
        number = work.pop()
        line, state = lines[number], set(pending[number])
        registers = re.findall(r"%[a-z]+\d+", line.split("[")[0])
        if words["load"].match(line):
            loads += 1
            state.update(registers or ["any"])
        elif "wait" in words and state and words["wait"].search(line):
            yield line
        elif "wait" not in words and registers:
            if re.match(r"\s*mov\.", line):
                state = state | {registers[0]} if registers[-1] in state else state - {registers[0]}
            elif state.intersection(registers[1:]):
                yield line
        for next_ in after[number]:
            if next_ in inside and (next_ not in pending or not state <= pending[next_]):
                pending[next_] = pending.get(next_, set()) | state
                work.append(next_)
    if loads == 0:
        yield "there is no load in front of a matrix instruction"


def llvm_tool(name):
    return next(filter(None, map(shutil.which, (f"{name}-19", f"{name}-14", name))), None)


def crowded(path, matrix):
    """Kernels of a code object for cards with matrix cores that keep two blocks from sharing a compute unit: 512 vector
    registers a lane and 64 KiB of shared memory, of which each block of 256 threads may have a half. (gfx908's registers
    of both kinds are apart: none of its kernels comes near.) No kernel at all may spill."""
    notes = subprocess.run([llvm_tool("llvm-readelf"), "--notes", path], capture_output=True, text=True, check=True, timeout=60).stdout
    for kernel in re.split(r"\n\s+- \.a", notes)[1:]:
        name = re.search(r"\.name:\s+(\w+)", kernel).group(1)
        count = {word: int(re.search(rf"\.{word}:\s+(\d+)", kernel).group(1))
                 for word in ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size", "group_segment_fixed_size")}
        if count["vgpr_spill_count"] > 0 or count["private_segment_fixed_size"] > 0:
            yield f"{name} spills: {count}"
        if matrix and count["group_segment_fixed_size"] <= 32768 and count["vgpr_count"] > 256:
            yield f"{name} has {count['vgpr_count']} vector registers: two blocks do not share a compute unit"


def told_units():
    """{architecture: the matrix units that the host is told of}, of the objects in this build"""
    with open(os.path.join(BUILD, "objects.c"), encoding="utf-8") as handle:
        return dict(re.findall(r'\.arch = "(\w+)", \.form = "\w*", \.matrix = ([^,]*),', handle.read()))


def disassembled(path):
    tool = llvm_tool("llvm-objdump")
    if not tool:
        return None
    done = subprocess.run([tool, "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True, timeout=240)
    return done.stdout.splitlines()


def unexplained():
    """Cards without code though compiler and linker are here, for a reason that is none of our own."""
    with open(os.path.join(BUILD, "objects.c"), encoding="utf-8") as handle:
        absent = re.findall(r'\.arch = "(\w+)", \.form = "\w*", \.why = "([^"]*)"', handle.read())
    ours = re.compile(r"left out when|turned off|no clang|does not know|no python3")
    linker = any(map(shutil.which, ("ld.lld", "ld.lld-19", "lld-19")))
    return [f"there is no code for {arch}: {why}" for arch, why in absent if not ours.search(why) and (linker or "linker" not in why)]


def main():
    told = told_units() if os.path.exists(os.path.join(BUILD, "objects.c")) else {}
    bad, read = unexplained() if told else [], []
    for name in sorted(told):
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
        bad += [f"{name}: {fault}" for fault in (*faults(found, words), *late(lines, words))]
        if any(words["units"].search(line) for line in lines) != (told[name] != "0"):
            bad.append(f"{name}: the host is told of other matrix units than its code has: {told[name]}")
        if words is AMD and llvm_tool("llvm-readelf"):
            bad += [f"{name}: {fault}" for fault in crowded(path, name in ("gfx90a", "gfx942"))]
    for fault in bad:
        print(f"FAILED: {fault}")
    print("read: " + ", ".join(read) if read else "skipped: this build has no code for cards")
    sys.exit(1 if bad else 0 if read else SKIP)


if __name__ == "__main__":
    main()
