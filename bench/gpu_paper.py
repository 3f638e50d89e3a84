#!/usr/bin/env python3
"""A roofline of one training step on paper, op by op, for a card of the planner's catalogue.

What a step asks of a card is counted by the engine itself (bench/gpu/gpu_paper.c: its ops, their FLOPs and bytes, every launch
of a kernel). What a block of our own products costs is counted by the interpreter of PTX as it runs (test_engine_gpu_ptx with
MOTLEY_GPU_TRAFFIC): instructions, wavefronts of shared memory with their conflicts, matrix instructions; for attention it is
read from the loops in the PTX of this build, along the shortest way and as a whole. A line's seconds are the longest of: bytes
over the card's bandwidth; what the kernel's multiprocessors need, with the latency of memory that too few blocks cannot hide,
and the last wave of blocks; FLOPs of the vendor's library over the library's rate; LAUNCH_S for each launch is added. That is
a bound and no forecast: what caches hold and what else a card does is not in it. No card has confirmed it; where `make
gpu-bench` has left its figures, they are printed beside it. For RDNA 3's and 4's cards both are read from their object of this
build; its matrix instructions take the vector units' time. For AMD's other cards the instructions of the PTX stand for theirs, but
where NVIDIA's turn fragments and theirs cannot.

    bench/gpu_paper.py [--card h100] [--shape 8b] [--method qlora] [--json]

Rests on: build/bin (GPU_BIN), build/gpu_code/sm_80 (--ptx), `motley devices --catalogue`.
"""
import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Assumptions, each of which a measurement replaces.
LAUNCH_S = {"cuda": 2e-6, "hip": 4e-6}  # between two dependent kernels of a replayed graph
BANDWIDTH_SHARE = 0.9  # of the data sheet's bandwidth that a kernel which only moves memory reaches
LATENCY, SYNC = 300, 100  # clocks: from a load to its value out of L2; from the barrier behind a tile to its first product
# Of a generation: the share of the data sheet's 16-bit rate that the library reaches on large products; the share of it that
# our own matrix instructions can (mma.sync on Hopper, whose full rate needs wgmma: W. Luo et al., arXiv:2402.13499); FLOPs of
# the fp32 peak for each instruction of 32 lanes that can be issued (64 where a quarter of a multiprocessor has 32 lanes, 32
# where it has 16; AMD counts two lanes' FLOPs twice); the 16-bit types of its matrix units that our kernels use.
GENERATIONS = (("hopper", r"h100|h200|gh200|b200", 0.75, 0.629, 64, "f16+bf16"),
               ("of 16 lanes with bf16", r"a100|a30", 0.85, 1, 32, "f16+bf16"),
               ("of 16 lanes", r"v100|titan-v|gv100|t4|rtx-20|titan-rtx|rtx-4000|rtx-5000|rtx-6000|rtx-8000", 0.85, 1, 32, "f16"),
               ("cdna", r"mi\d", 0.5, 0.8, 128, "f16+bf16"), ("rdna with wmma", r"rx-[79]|w7|r9700|strix", 0.65, 0.8, 128, "f16+bf16"),
               ("rdna", r"rx-|w6", 0.65, 0.8, 128, "none"),
               ("other", r"", 0.85, 1, 64, "f16+bf16"))
MULTIPROCESSORS = {"h100": 132, "a100": 108, "rtx-4090": 128, "rtx-3090": 82, "mi300x": 304, "rx-7900xtx": 96, "rx-9070xt": 64, "mi250": 104}
# Shares of the data sheet's rate that are asked of QLoRA of the 8B shape.
ASKED = {"rtx-4090": 0.55, "rtx-3090": 0.55, "h100": 0.5, "mi300x": 0.35, "rx-7900xtx": 0.3}
OWN_ASKED = 0.6  # of the library's rate, by our own products
# Bytes of a value that is converted for the library: read in its stored form, and written in 16 bits.
READ_BYTES, WRITTEN_BYTES = {"nf4": 0.6, "f32": 4, "blo": 1}, 2
# Products that each kernel of attention makes for a pair of query and key; an op's own FLOPs count 2 forward and 5 backward.
ATTENTION_PRODUCTS = {"attention_units_queries": 3, "attention_units_keys": 4, "attention_queries": 3, "attention_keys": 4}


# --- what kernels are made of

PRODUCTS = ("mma.", "fma.rn.f32")
BESIDE = ("shared.", "load", "scalar.")  # of AMD's words: issued beside those of the vector units


def mma_flops(instruction):
    m, n, k = map(int, re.search(r"m(\d+)n(\d+)k(\d+)", instruction).groups())
    return 2 * m * n * k


class Body:
    """The text of one kernel: its instructions, labels and loops, by line."""

    def __init__(self, text):
        self.lines = text.splitlines()
        self.labels = {found.group(1): at for at, line in enumerate(self.lines) if (found := re.match(r"\s*(\$?\w+):", line))}
        self.words = [self.word(line) for line in self.lines]
        self.jumps = {at: self.labels[found.group(2)] for at, line in enumerate(self.lines)
                      if (found := re.search(r"\bbra(\.uni)?\s+(\$?\w+);", line)) and found.group(2) in self.labels}
        self.loops = [(to, at) for at, to in self.jumps.items() if to <= at]

    @staticmethod
    def word(line):
        """The instruction of a line, or None; moves, which mostly become other names, are left out."""
        found = re.match(r"\s*(?:@!?%\w+\s+)?([a-z]\w*(?:\.[\w:]+)*)\s[^:]*;", line)
        return found.group(1) if found and not found.group(1).startswith("mov.") else None

    def onward(self, at):
        """The lines after line `at` in one turn of a loop: jumps back are not taken, so a loop inside is passed once. Of AMD's
        arms for fp16 and bf16, which are alike and follow each other, a way passes fp16's alone."""
        line = self.lines[at].lstrip()
        if "m16n16k16.bf16" in line:
            return []
        to = self.jumps.get(at, 0)
        return ([to] if to > at else []) + ([at + 1] if to <= at or line.startswith("@") else [])

    def count(self, begin, end):
        return sum(bool(word) and not word.startswith(BESIDE) for word in self.words[begin:end + 1])

    def products(self, begin, end):
        return sum(bool(word) and word.startswith(PRODUCTS) for word in self.words[begin:end + 1])

    def ways(self, begin, end):
        """{(halves, loads): counts} of the shortest ways through one turn of the loop that pass as many products as any turn does.
        PTX has one such way; AMD's ways are told apart by how many single halves of fragments they read and how often memory."""
        nothing = (0, 0, 0, 0, 0)  # products: mma, FLOPs of mma, fma; then -instructions, -wavefronts: the greatest way is the best
        best, turns = {begin: {(0, 0): nothing}}, {}
        for at in range(begin, end + 1):
            word, here = self.words[at] or "", {}
            for (halves, loads), (mma, flops, fma, instructions, wavefronts) in best.get(at, {}).items():
                is_mma, shared = word.startswith("mma."), re.match(r"shared\.(half\.)?(\d+)", word)
                here[halves + bool(shared and shared.group(1)), loads + (word == "load")] = (
                    mma + is_mma, flops + (mma_flops(word) if is_mma else 0), fma + word.startswith("fma.rn.f32"),
                    instructions - (bool(word) and not word.startswith(BESIDE)), wavefronts - int(shared.group(2) if shared else 0))
            if at == end:
                turns = here
            for to in self.onward(at):
                there = best.setdefault(to, {})
                there.update({key: max(there.get(key, way), way) for key, way in here.items()})
            best.pop(at, None)
        return {key: dict(zip(("mma", "mma_flops", "fma", "shortest", "wavefronts"), (*way[:3], -way[3], -way[4]))) for key, way in turns.items()}


def counts_of(body):
    """Of the loop with a kernel's products (or of a kernel that has none): all instructions, all products, and the ways of a turn."""
    loops = [(body.products(begin, end), begin - end, begin, end) for begin, end in body.loops]
    *_, begin, end = max(loops, default=(0, len(body.lines) - 1))
    return body.count(begin, end), body.products(begin, end), body.ways(begin, end)


def kernel_counts(text):
    """{kernel: {"instructions", "shortest", "mma", "mma_flops", "fma", "wavefronts"}}: the shortest way through the loop with its
    products, which leaves out the arms for other dtypes, layouts and edges, that way's products, and as many instructions as the
    loop's whole text has for so many products (arms for fp16 and bf16 have products of their own)."""
    found = {}
    for kernel in re.split(r"\.entry ", text)[1:]:
        whole, products, ways = counts_of(Body(kernel))
        best = max(ways.values(), key=lambda way: (way["mma"], way["fma"], -way["shortest"]), default=None)
        if best:
            share = (best["mma"] + best["fma"]) / max(1, products)
            found[re.match(r"\w+", kernel).group(0)] = {"instructions": max(best["shortest"], round(whole * share)), **best}
    return found


def without_turns(text):
    """PTX as it stands for AMD's cards, which read two fragments across their terms by four reads and four permutations."""
    return re.sub(r"(?m)^(\s*ldmatrix\.\S+\.x4\.trans\..*;)$", r"\1" + "\n\tprmt.b32 x;" * 7, text)


# --- AMD's objects

def object_words(disassembly):
    """A disassembled object in PTX's words: what a SIMD's vector units do, and accesses to shared memory as shared.WAVEFRONTS (of
    128 bytes) or, of 16-bit values, shared.half.1. What other units do beside them is left out, but for loads."""
    out = []
    for line in disassembly.splitlines():
        head, place = re.match(r"[0-9a-f]+ <(\w+)>:", line), re.search(r"// ([0-9A-F]{12}):", line)
        if head:
            out.append(f".entry {head.group(1)}")
        if not place:
            continue
        word, jump = line.split()[0], re.match(r"\s*s_(c?)branch\w* (\d+)", line)
        out.append(f"$L{int(place.group(1), 16):x}:")
        if jump:
            to = int(place.group(1), 16) + 4 + 4 * (int(jump.group(2)) - 65536 * (int(jump.group(2)) > 32767))
            out.append(f"{'@%p0 ' * bool(jump.group(1))}scalar.bra $L{to:x};")
        elif word.startswith("v_wmma"):
            types = "bf16.bf16" if word.endswith("bf16") else "f16.f16"
            out.append(f"mma.sync.aligned.m16n16k16.{types} x;")
        elif word.startswith("v_"):
            out += ["fma.rn.f32 x;"] * len(re.findall(r"v_(?:dual_)?fma", line)) or ["valu x;"]
        elif word.startswith("global_load"):
            out.append("load x;")
        elif word.startswith("ds_"):
            wide = next((clocks for ending, clocks in (("b128", 4), ("2addr_b64", 4), ("b64", 2), ("2addr_b32", 2)) if word.endswith(ending)), 1)
            out.append("shared.half.1 x;" if word.startswith("ds_load_u16") else f"shared.{wide} x;")
    return "\n".join(out)


def object_text(path):
    tool = shutil.which("llvm-objdump-19") or shutil.which("llvm-objdump")
    if not tool or not os.path.exists(path):
        return ""
    done = subprocess.run([tool, "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True, timeout=240)
    return object_words(done.stdout)


def object_tiles(text):
    """What tiles_of counts, of an object with WMMA: 64 terms of a block of eight warps, whose turns have 16 terms. An operand that
    lies across its terms is read in single halves, a's four fragments in twice as many as b's two."""
    found = {}
    for kernel in re.split(r"\.entry ", text)[1:]:
        name = re.match(r"\w+", kernel).group(0)
        if not re.fullmatch(r"units_\w*128x128", name):
            continue
        *_, ways = counts_of(Body(kernel))
        ways = {key: way for key, way in ways.items() if way["mma"] == 8}
        halves = max((key[0] for key in ways), default=0) // 3
        for order, wanted in ((0, 0), (1, 2 * halves), (2, halves), (3, 3 * halves)):
            loads = max((key[1] for key in ways if key[0] == wanted), default=None)
            if loads is not None:  # a turn that fetches the next tile
                way = ways[wanted, loads]
                found[name, order] = {"instructions": 32 * way["shortest"], "wavefronts": 32 * way["wavefronts"], "mma": 32 * way["mma"]}
    return found


# --- the step

def engine_says(program, shape, method, gib, layers, saved, matrix="f16+bf16"):
    done = subprocess.run([program, shape, method, str(gib), str(layers), str(saved), matrix], capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        sys.exit(f"gpu-paper: {done.stderr.strip() or done.returncode}")
    return json.loads(done.stdout)


def tiles_of(program):
    """{(kernel, order): what 64 terms of a block cost} as the interpreter of PTX counts it; order: 1 if a lies across the terms,
    plus 2 if b does. Empty where the tests are not built."""
    if not os.path.exists(program):
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "traffic")
        done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=600, env={**os.environ, "MOTLEY_GPU_TRAFFIC": path})
        if done.returncode != 0 or not os.path.exists(path):
            sys.exit(f"gpu-paper: {program}: {done.stderr.strip()[-500:]}")
        with open(path, encoding="ascii") as handle:
            rows = [line.split() for line in handle]
    return {(name, int(order)): dict(zip(("instructions", "wavefronts", "mma"), map(float, costs))) for name, order, *costs in rows}


def step_of(program, shape, method, gib, matrix, layers=None, saved=None):
    """The step of the whole model. Layers that keep their values are alike, and so are those that are recomputed, which come
    first; so four counts give it: the first layer of its kind and one more of each kind. `layers` and `saved` replace the model's."""
    kept, kept_more = (engine_says(program, shape, method, gib, layers, layers, matrix) for layers in (2, 3))
    layers, saved = layers or kept["layers"], kept["saved"] if saved is None else saved
    again = again_more = None
    if saved < layers:
        again, again_more = (engine_says(program, shape, method, gib, count, 2, matrix) for count in (3, 4))
    steps = [{(op["op"], op["detail"]): op for op in step["ops"]} for step in (again or kept, kept, kept_more, again or kept, again_more or kept)]
    base, other = steps[0], steps[1:]
    if any(not set(step) <= set(base) for step in other):
        sys.exit("gpu-paper: a further layer has other ops than the first ones")

    def whole(first, kept_two, kept_three, again_one, again_two):
        return first + (saved - 2) * (kept_three - kept_two) + max(0, layers - saved - 1) * (again_two - again_one)

    none = {"kernels": {}}
    for key, op in base.items():
        alike = [step.get(key, none) for step in other]
        for name, value in op.items():
            if isinstance(value, (int, float)):
                op[name] = whole(value, *(each.get(name, 0) for each in alike))
        op["kernels"] = {kernel: [whole(*values) for values in zip(value, *(each["kernels"].get(kernel, [0, 0]) for each in alike))]
                         for kernel, value in op["kernels"].items()}
    return {**kept, "ops": list(base.values())}


# --- the card

def card_of(motley, name):
    done = subprocess.run([motley, "devices", "--catalogue", "--json"], capture_output=True, text=True, check=True, timeout=60)
    card = next((entry for entry in json.loads(done.stdout)["devices"] if entry["name"] == name), None)
    if not card or not card["flops_16"]:
        sys.exit(f"gpu-paper: the catalogue has no card {name} with a 16-bit rate")
    generation, _, library, mma, per_instruction, matrix = next(row for row in GENERATIONS if re.match(row[1], name))
    issue = card["flops_fp32"] / per_instruction
    multiprocessors = MULTIPROCESSORS.get(name, round(issue / 4 / 1.7e9))
    return {"name": name, "kind": card["kind"], "wmma": "wmma" in generation, "arch": card["arch"], "gib": card["memory_bytes"] >> 30, "sheet": card["flops_16"],
            "bytes_per_s": card["memory_bytes_per_s"] * BANDWIDTH_SHARE, "mma": card["flops_16"] * mma,
            "library": card["flops_16"] * library, "library_share": library, "fp32": card["flops_fp32"], "issue": issue, "matrix": matrix,
            "multiprocessors": multiprocessors, "clock": issue / (2 if card["kind"] == "hip" else 4) / multiprocessors,
            "catalogue": card["flops_16"] * card["efficiency_16"], "origin": card["origin"]}


def tile_seconds(flops, name, order, blocks, card, tiles):
    """Seconds of FLOPs by blocks of our own products. Two blocks of 256 threads share a multiprocessor, but for NVIDIA's with tiles
    of 128 x 128 whose values do not come in eights: their registers are too many; of RDNA's tiles of 128 x 128 a pair of compute units holds three (1,536 registers a SIMD). A tile of `depth`
    terms is fetched while the one before is multiplied."""
    cost, (rows, columns) = tiles[name, order], map(int, re.search(r"(\d+)x(\d+)$", name).groups())
    depth, share = (32 if name.startswith("units") and card["kind"] == "cuda" else 8 if rows * columns > 8192 and name.startswith("gemm") else 16), 1 if rows * columns > 8192 and card["kind"] == "cuda" and "eights" not in name else 1.5 if rows * columns > 8192 and card["wmma"] else 2
    whole = 2 * rows * columns * 64
    clocks = {"issue": cost["instructions"] * card["clock"] * card["multiprocessors"] / card["issue"], "shared": cost["wavefronts"],
              "products": whole / ((card["mma"] if cost["mma"] else card["fp32"]) / card["multiprocessors"] / card["clock"])}
    if card["wmma"]:
        clocks["issue"] += clocks["products"]
    work = max(clocks.values()) * depth / 64
    turn = max(work, (max(LATENCY, work) + SYNC) / share)
    waves = blocks / (card["multiprocessors"] * share)
    ends = math.ceil(waves) / waves if waves > 0 else 1
    return ends * flops / whole * (64 / depth) * turn / card["clock"] / card["multiprocessors"], clocks, work < turn


def kernel_rate(counts, card, which):
    """FLOP/s that a kernel's loop allows: how fast its instructions can be issued, and its products made."""
    if not counts or not counts[which]:
        return None
    flops = counts["mma_flops"] or 64 * counts["fma"]
    if not flops:
        return None
    issue, products = card["issue"] * flops / counts[which], card["mma"] if counts["mma"] else card["fp32"]
    if card["wmma"] and counts["mma"]:  # instructions include those of the products
        issue = 1 / (1 / issue + 1 / products)
    shared = card["clock"] * card["multiprocessors"] * flops / max(1, counts["wavefronts"])
    return min(issue, products, shared)


def own_seconds(op, kernels, card, which, tiles):
    """Seconds of an op's own products, by the rates of the kernels that make them."""
    own = op["flops"] - op["library_flops"]
    if own <= 0:
        return 0
    makers = {name: kernels[name] for name in op["kernels"] if kernels.get(name, {}).get("mma")} or \
             {name: kernels[name] for name in op["kernels"] if kernels.get(name, {}).get("fma")}
    if not makers:
        sys.exit(f"gpu-paper: {op['op']} {op['detail']}: no loop with products in {', '.join(op['kernels'])}")
    order = ("a across" in op["detail"]) + 2 * ("b across" not in op["detail"])
    if op["op"] == "gemm" and all((name, order) in tiles for name in makers):
        return sum(tile_seconds(own / len(makers), name, order, op["kernels"][name][1] / max(1, op["kernels"][name][0]), card, tiles)[0]
                   for name in makers)
    if op["op"] != "attention_backward":
        return own / min(kernel_rate(counts, card, which) for counts in makers.values())
    return sum(own / 5 * count / kernel_rate(counts, card, which) for name, counts in makers.items()
               for start, count in ATTENTION_PRODUCTS.items() if name.startswith(start))


def op_line(op, kernels, card, which, tiles):
    """One op on the roofline: its seconds, what bounds them, and their parts."""
    form = re.search(r", (\w{3})", op["detail"])
    values = op["converted_a"] + op["converted_b"]
    read = 4 * op["converted_a"] + READ_BYTES.get(form and form.group(1), 4) * op["converted_b"]
    written = WRITTEN_BYTES * values
    times = {"memory": (max(0, op["bytes"] - read) + written) / card["bytes_per_s"],
             "instructions": own_seconds(op, kernels, card, which, tiles), "library": op["library_flops"] / card["library"]}
    words = max((kernels[name][which] for name in op["kernels"] if values and name in kernels), default=0)
    # the loop of a conversion handles four values of each of a warp's 32 lanes
    staging = max((read + written) / card["bytes_per_s"], values / 128 * words / card["issue"])
    launching = (op["launches"] + op["fills"]) * LAUNCH_S[card["kind"]]
    bound = max(times, key=times.get)
    return {"seconds": times[bound] + staging + launching, "bound": bound if times[bound] > max(staging, launching) else
            "converting" if staging > launching else "launches", "times": times, "staging": staging, "launching": launching}


def totals(step, lines, card):
    seconds = sum(line["seconds"] for line in lines)
    rate = step["model_flops"] / seconds
    return {"seconds": seconds, "tokens_per_s": step["tokens"] / seconds, "flops_per_s": rate, "of_library": rate / card["library"], "of_sheet": rate / card["sheet"],
            "of_catalogue": rate / card["catalogue"], "launching": sum(line["launching"] for line in lines),
            "staging": sum(line["staging"] for line in lines)}


def measured(kind, part):
    """The figures that gpu-bench left for this part, or None."""
    path = os.path.join(SOURCE, "bench", "results", "gpu", f"{kind}.jsonl")
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as handle:
        lines = [json.loads(text) for text in handle if text.strip()]
    return next((line for line in reversed(lines) if line["part"] == part), None)


def table_print(step, both, kernels, card, options):
    print(f"{options.method} of the {options.shape} shape on {card['name']}, {step['rows']} rows, {step['tokens']} tokens"
          f"{', %d of %d layers recomputed' % (step['layers'] - step['saved'], step['layers']) if step['saved'] < step['layers'] else ''}; estimated, no card has run it")
    print(f"{'seconds':>9} {'all':>9} {'bound':<12} {'launches':>8} {'TFLOP':>7} {'GB':>7}  op")
    order = sorted(range(len(step["ops"])), key=lambda i: -both["shortest"][i]["seconds"])
    for i in order:
        op, line, full = step["ops"][i], both["shortest"][i], both["instructions"][i]
        print(f"{line['seconds']:9.5f} {full['seconds']:9.5f} {line['bound']:<12} {op['launches'] + op['fills']:8.0f} "
              f"{op['flops'] / 1e12:7.2f} {op['bytes'] / 1e9:7.2f}  {op['op']}{' ' + op['detail'] if op['detail'] else ''}"
              f" [{', '.join(op['kernels'])}{' + library' if op['library_products'] else ''}]")
    print("\nkernels with products: instructions of the loop's shortest way, and of its whole text, for so many products")
    for name in sorted({name for op in step["ops"] for name in op["kernels"]}):
        counts = kernels.get(name)
        if counts and (counts["mma"] or name.startswith("gemm")) and kernel_rate(counts, card, "shortest"):
            print(f"  {name:<28} {counts['shortest']:5} {counts['instructions']:5}  {counts['mma']} mma, {counts['fma']} fma: "
                  + " and ".join(f"{(kernel_rate(counts, card, which) or 0) / 1e12:.0f}" for which in both) + " TFLOP/s at most")


def own_print(card, tiles):
    """Our own products beside the library's assumed rate, for a product of 8192 x 4096 x 4096."""
    print(f"\nown products of 8192 x 4096 x 4096 on {card['name']}, by what bounds them, and their share of the library's "
          f"{card['library'] / 1e12:.0f} TFLOP/s (asked: {100 * OWN_ASKED:.0f} %)")
    for (name, order), cost in sorted(tiles.items()):
        wants = "units" if card["matrix"] != "none" else "gemm"
        if order not in (0, 2) or not name.startswith(wants) or not name.endswith("128x128") or "blocks" in name:
            continue
        flops = 2.0 * 8192 * 4096 * 4096
        seconds, clocks, waits = tile_seconds(flops, name, order, 64 * 32, card, tiles)
        print(f"  {name:<20} b {'across' if order else 'along '}  {flops / seconds / 1e12:5.0f} TFLOP/s, {100 * flops / seconds / card['library']:3.0f} %: "
              + ("latency" if waits else max(clocks, key=clocks.get)) + "; clocks of 64 terms: "
              + ", ".join(f"{word} {value:.0f}" for word, value in clocks.items()))


def summary_print(step, sums, card, options):
    for which, words in (("shortest", "shortest ways through the loops (a bound)"), ("instructions", "whole text of the loops")):
        total = sums[which]
        print(f"\n{words}: {total['seconds']:.3f} s a step, {total['tokens_per_s']:.0f} tokens/s, {total['flops_per_s'] / 1e12:.0f} "
              f"TFLOP/s of the model's own: {100 * total['of_library']:.0f} % of cublasLt's rate ({card['library'] / 1e12:.0f} TFLOP/s, "
              f"assumed: {100 * card['library_share']:.0f} % of the data sheet's), {100 * total['of_sheet']:.0f} % of the data sheet's, {100 * total['of_catalogue']:.0f} % of the catalogue's "
              f"{card['catalogue'] / 1e12:.0f} ({card['origin']}); launches {total['launching']:.3f} s, operands converted for the "
              f"library {total['staging']:.3f} s")
    asked = ASKED.get(card["name"])
    if asked and options.method == "qlora":
        print(f"asked: {100 * asked:.0f} % of the data sheet's rate: " +
              ("NOT reached" if sums["shortest"]["of_sheet"] < asked else "reached by the bound alone"
               if sums["instructions"]["of_sheet"] < asked else "reached on paper"))
    found = measured(card["kind"], options.method)
    if not found:
        print("measured: nothing yet (make gpu-bench on a card)")
        return
    ours = found["ours"]
    print(f"measured on {found['device']} at {found['commit']}: {ours['step_s']:.3f} s a step, kernels {ours['kernels_s']:.3f} s in "
          f"{ours['launches']:.0f} launches, {ours['model_tflops']:.0f} TFLOP/s")
    kinds = {name: 0 for name in (op["op"] for op in step["ops"])}
    for op, line in zip(step["ops"], sums["lines"]):
        kinds[op["op"]] += line["seconds"]
    for name, seconds in sorted(kinds.items(), key=lambda item: -item[1]):
        if f"op_{name}_s" in ours:
            print(f"  {name:<20} on paper {seconds:9.5f} s, measured {ours[f'op_{name}_s']:9.5f} s")


def main():
    built = os.environ.get("GPU_BIN") or os.path.join(SOURCE, "build", "bin")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--card", default="h100", help="of the planner's catalogue")
    parser.add_argument("--shape", default="8b", choices=("8b", "1b", "toy"))
    parser.add_argument("--method", default="qlora", choices=("qlora", "lora", "full"))
    parser.add_argument("--ptx", default=os.path.join(SOURCE, "build", "gpu_code", "sm_80"), help="the kernels' text")
    parser.add_argument("--json", action="store_true", help="one document")
    options = parser.parse_args()
    if not os.path.exists(options.ptx):
        print(f"SKIP gpu-paper: {options.ptx} is not there (this build has no code for cards)")
        return 77
    card = card_of(os.path.join(built, "motley"), options.card)
    with open(options.ptx, encoding="ascii") as handle:
        kernels = kernel_counts(without_turns(handle.read()) if card["kind"] == "hip" else handle.read())
    step = step_of(os.path.join(built, "gpu_paper"), options.shape, options.method, card["gib"], card["matrix"])
    if card["wmma"]:
        text = object_text(os.path.join(os.path.dirname(options.ptx), card["arch"]))
        if not text:
            print(f"SKIP gpu-paper: no object for {card['arch']} beside {options.ptx}, or no llvm-objdump")
            return 77
        kernels, tiles = kernel_counts(text), object_tiles(text)
    else:
        tiles = tiles_of(os.path.join(built, "test_engine_gpu_ptx"))
    both = {which: [op_line(op, kernels, card, which, tiles) for op in step["ops"]] for which in ("shortest", "instructions")}
    sums = {which: totals(step, lines, card) for which, lines in both.items()}
    if options.json:
        print(json.dumps({"card": card, "step": step, "lines": both, "sums": sums, "kernels": kernels}))
        return 0
    table_print(step, both, kernels, card, options)
    own_print(card, tiles)
    summary_print(step, {**sums, "lines": both["shortest"]}, card, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
