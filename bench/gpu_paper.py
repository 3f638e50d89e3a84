#!/usr/bin/env python3
"""A roofline of one training step on paper, op by op, for a card of the planner's catalogue.

What a step asks of a card is counted by the engine itself (bench/gpu/gpu_paper.c: its ops, their FLOPs and bytes, every launch
of a kernel). What a kernel can do at most is read from the instructions of its loops in the PTX of this build. A line's
seconds are the longest of: bytes over the card's bandwidth; a kernel's FLOPs over its rate; FLOPs of the vendor's library over
the library's rate; and LAUNCH_S for each launch is added. That is a bound and no forecast: latencies, caches, conflicts of
shared memory and the ends of waves are not in it. No card has confirmed it; where `make gpu-bench` has left its figures, they
are printed beside it.

    bench/gpu_paper.py [--card h100] [--shape 8b] [--method qlora] [--json]

Rests on: build/bin (GPU_BIN), build/gpu_code/sm_80 (--ptx), `motley devices --catalogue`.
"""
import argparse
import json
import os
import re
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Assumptions, each of which a measurement replaces.
LAUNCH_S = 2e-6  # between two dependent kernels of a replayed graph
LIBRARY_SHARE = 0.75  # of the data sheet's 16-bit rate: cublasLt on large products
BANDWIDTH_SHARE = 0.9  # of the data sheet's bandwidth that a kernel which only moves memory reaches
# The share of the peak that mma.sync reaches on Hopper, whose full rate needs wgmma: W. Luo et al., Benchmarking and Dissecting
# the Nvidia Hopper GPU Architecture, arXiv:2402.13499. Other generations reach their rate with mma.sync.
MMA_SHARE_HOPPER = 0.629
# FLOPs of one fp32 peak that an issued warp instruction stands for: 64 where a quarter of a multiprocessor has 32 lanes (cards
# from Ampere's GA10x on, Hopper), 32 where it has 16 (Volta, Turing, A100).
LANES_16 = ("v100", "titan-v", "gv100", "t4", "rtx-20", "titan-rtx", "rtx-4000", "rtx-5000", "rtx-6000", "rtx-8000", "a100", "a30")
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

def engine_says(program, shape, method, gib, layers):
    done = subprocess.run([program, shape, method, str(gib), str(layers)], capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        sys.exit(f"gpu-paper: {done.stderr.strip() or done.returncode}")
    return json.loads(done.stdout)


def step_of(program, shape, method, gib):
    """The step of the whole model. All layers are alike, so two counts give it: 2 layers, and 3."""
    two, three = (engine_says(program, shape, method, gib, layers) for layers in (2, 3))
    ops, more = ({(op["op"], op["detail"]): op for op in step["ops"]} for step in (two, three))
    if set(ops) != set(more):
        sys.exit("gpu-paper: a third layer has other ops than the second")

    def whole(before, after):
        return before + (two["layers"] - 2) * (after - before)

    for key, op in ops.items():
        for name, value in op.items():
            if isinstance(value, (int, float)):
                op[name] = whole(value, more[key][name])
        op["kernels"] = {kernel: [whole(*pair) for pair in zip(value, more[key]["kernels"][kernel])]
                         for kernel, value in op["kernels"].items()}
    return {**two, "ops": list(ops.values())}


# --- the card

def card_of(motley, name):
    done = subprocess.run([motley, "devices", "--catalogue", "--json"], capture_output=True, text=True, check=True, timeout=60)
    card = next((entry for entry in json.loads(done.stdout)["devices"] if entry["name"] == name), None)
    if not card or card["kind"] != "cuda" or not card["flops_16"]:
        sys.exit(f"gpu-paper: the catalogue has no NVIDIA card {name} with a 16-bit rate")
    hopper = name.startswith(("h100", "h200", "gh200", "b200"))
    return {"name": name, "gib": card["memory_bytes"] >> 30, "bytes_per_s": card["memory_bytes_per_s"] * BANDWIDTH_SHARE,
            "mma": card["flops_16"] * (MMA_SHARE_HOPPER if hopper else 1), "library": card["flops_16"] * LIBRARY_SHARE,
            "fp32": card["flops_fp32"], "issue": card["flops_fp32"] / (32 if name.startswith(LANES_16) else 64),
            "catalogue": card["flops_16"] * card["efficiency_16"], "origin": card["origin"]}


def kernel_rate(counts, card, which):
    """FLOP/s that a kernel's loop allows: how fast its instructions can be issued, and its products made."""
    if not counts or not counts[which]:
        return None
    flops = counts["mma_flops"] or 64 * counts["fma"]
    return min(card["issue"] * flops / counts[which], card["mma"] if counts["mma"] else card["fp32"]) if flops else None


def own_seconds(op, kernels, card, which):
    """Seconds of an op's own products, by the rates of the kernels that make them."""
    own = op["flops"] - op["library_flops"]
    if own <= 0:
        return 0
    makers = {name: kernels[name] for name in op["kernels"] if kernels.get(name, {}).get("mma")} or \
             {name: kernels[name] for name in op["kernels"] if kernels.get(name, {}).get("fma")}
    if not makers:
        sys.exit(f"gpu-paper: {op['op']} {op['detail']}: no loop with products in {', '.join(op['kernels'])}")
    if op["op"] != "attention_backward":
        return own / min(kernel_rate(counts, card, which) for counts in makers.values())
    return sum(own / 5 * next(count for start, count in ATTENTION_PRODUCTS.items() if name.startswith(start))
               / kernel_rate(counts, card, which) for name, counts in makers.items())


def op_line(op, kernels, card, which):
    """One op on the roofline: its seconds, what bounds them, and their parts."""
    form = re.search(r", (\w{3})", op["detail"])
    values = op["converted_a"] + op["converted_b"]
    read = 4 * op["converted_a"] + READ_BYTES.get(form and form.group(1), 4) * op["converted_b"]
    written = WRITTEN_BYTES * values
    times = {"memory": (max(0, op["bytes"] - read) + written) / card["bytes_per_s"],
             "instructions": own_seconds(op, kernels, card, which), "library": op["library_flops"] / card["library"]}
    words = max((kernels[name][which] for name in op["kernels"] if values and name in kernels), default=0)
    # the loop of a conversion handles four values of each of a warp's 32 lanes
    staging = max((read + written) / card["bytes_per_s"], values / 128 * words / card["issue"])
    launching = (op["launches"] + op["fills"]) * LAUNCH_S
    bound = max(times, key=times.get)
    return {"seconds": times[bound] + staging + launching, "bound": bound if times[bound] > max(staging, launching) else
            "converting" if staging > launching else "launches", "times": times, "staging": staging, "launching": launching}


def totals(step, lines, card):
    seconds = sum(line["seconds"] for line in lines)
    rate = step["model_flops"] / seconds
    return {"seconds": seconds, "tokens_per_s": step["tokens"] / seconds, "flops_per_s": rate, "of_library": rate / card["library"],
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
          f"{', layers recomputed' if step['recompute'] else ''}; estimated, no card has run it")
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


def summary_print(step, sums, card, options):
    for which, words in (("shortest", "shortest ways through the loops (a bound)"), ("instructions", "whole text of the loops")):
        total = sums[which]
        print(f"\n{words}: {total['seconds']:.3f} s a step, {total['tokens_per_s']:.0f} tokens/s, {total['flops_per_s'] / 1e12:.0f} "
              f"TFLOP/s of the model's own: {100 * total['of_library']:.0f} % of cublasLt's rate ({card['library'] / 1e12:.0f} TFLOP/s, "
              f"assumed: {100 * LIBRARY_SHARE:.0f} % of the data sheet's), {100 * total['of_catalogue']:.0f} % of the catalogue's "
              f"{card['catalogue'] / 1e12:.0f} ({card['origin']}); launches {total['launching']:.3f} s, operands converted for the "
              f"library {total['staging']:.3f} s")
    print("asked: 45 % of cublasLt's rate: " + ("NOT reached" if sums["shortest"]["of_library"] < 0.45 else
                                                "reached by the bound alone" if sums["instructions"]["of_library"] < 0.45 else
                                                "reached on paper, where no latency counts"))
    found = measured("cuda", options.method)
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
    step = step_of(os.path.join(built, "gpu_paper"), options.shape, options.method, card["gib"])
    both = {which: [op_line(op, kernels, card, which) for op in step["ops"]] for which in ("shortest", "instructions")}
    sums = {which: totals(step, lines, card) for which, lines in both.items()}
    if options.json:
        print(json.dumps({"card": card, "step": step, "lines": both, "sums": sums, "kernels": kernels}))
        return 0
    table_print(step, both, kernels, card, options)
    summary_print(step, {**sums, "lines": both["shortest"]}, card, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
