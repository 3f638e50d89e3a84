#!/usr/bin/env python3
"""A roofline of one training step on paper, op by op, for a card of the planner's catalogue.

What a step asks of a card is counted by the engine itself (bench/gpu/gpu_paper.c: its ops, their FLOPs and bytes, every launch
of a kernel). What a block of our own products costs is counted by the interpreter of PTX as it runs (test_engine_gpu_ptx with
MOTLEY_GPU_TRAFFIC): instructions, wavefronts of shared memory with their conflicts, matrix instructions; for attention it is
read from the loops in the PTX of this build, along the shortest way and as a whole. A line's seconds are the longest of: bytes
over the card's bandwidth; what the kernel's multiprocessors need, with the latency of memory that too few blocks cannot hide,
and the last wave of blocks; FLOPs of the vendor's library over the library's rate; LAUNCH_S for each launch is added. That is
a bound and no forecast: what caches hold and what else a card does is not in it. No card has confirmed it; where `make
gpu-bench` has left its figures, they are printed beside it. For AMD's cards the instructions of the PTX stand for theirs.

    bench/gpu_paper.py [--card h100] [--shape 8b] [--method qlora] [--json]

Rests on: build/bin (GPU_BIN), build/gpu_code/sm_80 (--ptx), `motley devices --catalogue`.
"""
import argparse
import json
import math
import os
import re
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
               ("cdna", r"mi\d", 0.5, 0.8, 128, "f16+bf16"), ("rdna", r"rx-|w7|w6", 0.65, 0.8, 128, "none"),
               ("other", r"", 0.85, 1, 64, "f16+bf16"))
MULTIPROCESSORS = {"h100": 132, "a100": 108, "rtx-4090": 128, "rtx-3090": 82, "mi300x": 304, "rx-7900xtx": 96, "mi250": 104}
# Shares of the data sheet's rate that are asked of QLoRA of the 8B shape.
ASKED = {"rtx-4090": 0.55, "rtx-3090": 0.55, "h100": 0.5, "mi300x": 0.35, "rx-7900xtx": 0.3}
OWN_ASKED = 0.6  # of the library's rate, by our own products
# Bytes of a value that is converted for the library: read in its stored form, and written in 16 bits.
READ_BYTES, WRITTEN_BYTES = {"nf4": 0.6, "f32": 4, "blo": 1}, 2
# Products that each kernel of attention makes for a pair of query and key; an op's own FLOPs count 2 forward and 5 backward.
ATTENTION_PRODUCTS = {"attention_units_queries": 3, "attention_units_keys": 4, "attention_queries": 3, "attention_keys": 4}


# --- what kernels are made of

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

    def count(self, begin, end):
        words = [word for word in self.words[begin:end + 1] if word]
        mma = [word for word in words if word.startswith("mma.")]
        return {"instructions": len(words), "mma": len(mma), "mma_flops": sum(map(mma_flops, mma)),
                "fma": sum(word.startswith("fma.rn.f32") for word in words)}

    def shortest(self, begin, end):
        """The fewest instructions of one turn of the loop that passes as many products as any turn does."""
        best = {begin: (0, 0)}  # line: (products, -instructions) on the best way to it
        for at in range(begin, end + 1):
            if at not in best:
                continue
            word = self.words[at] or ""
            products = word.startswith("mma.") or word.startswith("fma.rn.f32")
            here = (best[at][0] + products, best[at][1] - bool(word))
            onward = [] if at in self.jumps and not self.lines[at].lstrip().startswith("@") else [at + 1]
            if at in self.jumps and self.jumps[at] > at:
                onward.append(self.jumps[at])
            if at in self.jumps and self.jumps[at] <= at and at != end:
                onward = [at + 1]  # a loop inside is passed once
            for to in onward:
                best[to] = max(best.get(to, here), here)
        return bool(self.words[end]) - best.get(end, (0, 0))[1]  # with the jump back; ways that leave the loop earlier are none of its turns


def kernel_counts(ptx):
    """{kernel: {"instructions", "shortest", "mma", "mma_flops", "fma"}} of the loop with a kernel's products: all instructions of
    its text, and those of the shortest way through it, which leaves out the arms for other dtypes, layouts and edges."""
    found = {}
    for text in re.split(r"\.entry ", ptx)[1:]:
        body = Body(text)
        loops = [(body.count(begin, end), begin, end) for begin, end in body.loops]
        if not loops:  # one turn is the whole kernel
            whole = body.count(0, len(body.lines) - 1)
            found[re.match(r"\w+", text).group(0)] = {**whole, "shortest": whole["instructions"]}
            continue
        counts, begin, end = max(loops, key=lambda loop: (loop[0]["mma"], loop[0]["fma"], loop[1] - loop[2]))
        found[re.match(r"\w+", text).group(0)] = {**counts, "shortest": body.shortest(begin, end)}
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
    _, _, library, mma, per_instruction, matrix = next(row for row in GENERATIONS if re.match(row[1], name))
    issue = card["flops_fp32"] / per_instruction
    multiprocessors = MULTIPROCESSORS.get(name, round(issue / 4 / 1.7e9))
    return {"name": name, "kind": card["kind"], "gib": card["memory_bytes"] >> 30, "sheet": card["flops_16"],
            "bytes_per_s": card["memory_bytes_per_s"] * BANDWIDTH_SHARE, "mma": card["flops_16"] * mma,
            "library": card["flops_16"] * library, "library_share": library, "fp32": card["flops_fp32"], "issue": issue, "matrix": matrix,
            "multiprocessors": multiprocessors, "clock": issue / (2 if card["kind"] == "hip" else 4) / multiprocessors,
            "catalogue": card["flops_16"] * card["efficiency_16"], "origin": card["origin"]}


def tile_seconds(flops, name, order, blocks, card, tiles):
    """Seconds of FLOPs by blocks of our own products. Two blocks of 256 threads share a multiprocessor, but for NVIDIA's with tiles
    of 128 x 128 whose values do not come in eights: their registers are too many. A tile of `depth` terms is fetched while the one before is multiplied."""
    cost, (rows, columns) = tiles[name, order], map(int, re.search(r"(\d+)x(\d+)$", name).groups())
    depth, share = (32 if name.startswith("units") and card["kind"] == "cuda" else 8 if rows * columns > 8192 and name.startswith("gemm") else 16), 1 if rows * columns > 8192 and card["kind"] == "cuda" and "eights" not in name else 2
    whole = 2 * rows * columns * 64
    clocks = {"issue": cost["instructions"] * card["clock"] * card["multiprocessors"] / card["issue"], "shared": cost["wavefronts"],
              "products": whole / ((card["mma"] if cost["mma"] else card["fp32"]) / card["multiprocessors"] / card["clock"])}
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
    return min(card["issue"] * flops / counts[which], card["mma"] if counts["mma"] else card["fp32"]) if flops else None


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
    with open(options.ptx, encoding="ascii") as handle:
        kernels = kernel_counts(handle.read())
    card = card_of(os.path.join(built, "motley"), options.card)
    step = step_of(os.path.join(built, "gpu_paper"), options.shape, options.method, card["gib"], card["matrix"])
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
