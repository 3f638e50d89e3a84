#!/usr/bin/env python3
"""make gpu-bench: what the engine does on this machine's card, beside PyTorch where that is here.

Each part (products, attention, lora, qlora, full) takes at most 8 minutes and appends one line of JSON to the file of
its device in bench/results/gpu/; a part that is there already is not run again (--again does), so the whole can be
cut off and taken up where it was. The last thing printed is the table of all lines: so does --table alone.

A line: {"schema": "motley-gpu-bench/1", "part", "kind", "device", "arch", "toy", "commit", "at", "ours": {name:
number}, "beside": {name: number}, "skipped": {what: why}, "rows": [{"what", "unit", "ours", "beside", "of", "bound",
"met"}]}. A row compares one figure: `beside` is that of `of`; bound says what the ratio ours/beside (for seconds and
bytes: beside/ours) must reach, `met` whether it does; null where there is nothing to compare with.

GPU_DEVICE: cuda (the default), hip or emulated. GPU_BIN: a folder with gpu_bench, built already.
"""
import argparse
import ctypes
import datetime
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PARTS = ("products", "attention", "lora", "qlora", "full")
PART_SECONDS = 480
MODULES = {"products": ("torch",), "attention": ("torch",), "lora": ("torch", "transformers", "peft"),
           "qlora": ("torch", "transformers", "peft", "bitsandbytes"), "full": ("torch", "transformers")}


def end_with_parent():
    """A program of ours ends when the script that started it is killed, so that the card is free for the next."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def part_seconds():
    """The longest that our side of a part may take."""
    return int(os.environ.get("GPU_PART_SECONDS", PART_SECONDS))


def built():
    if os.environ.get("GPU_BIN"):
        return os.environ["GPU_BIN"]
    done = subprocess.run([os.path.join(SOURCE, "bench", "gpu_build.sh")], stdout=subprocess.PIPE, text=True,
                          check=False, cwd=SOURCE)
    if done.returncode != 0:
        sys.exit("gpu-bench: the engine could not be built (above)")
    return os.path.join(SOURCE, done.stdout.strip().splitlines()[-1])


def figures(text):
    """The line that gpu_bench prints; of a run that was cut off, with the figures that it had. None without any."""
    line = (text.splitlines() or [""])[-1]
    for end in ("", "}}"):
        try:
            return json.loads(line.rstrip(", ") + end)
        except json.JSONDecodeError:
            continue
    return None


def ours(program, kind, part, toy, alone=False):
    """The line that gpu_bench prints, and why it is not whole. alone: our kernels without the vendor's products."""
    environment = {**os.environ, "MOTLEY_CUBLASLT_LIBRARY": "none", "MOTLEY_ROCBLAS_LIBRARY": "none"} if alone else None
    with subprocess.Popen([program, kind, part] + (["toy"] if toy else []), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env=environment, preexec_fn=end_with_parent) as process:
        try:
            said, complained = process.communicate(timeout=part_seconds())
            why = None if process.returncode == 0 else (complained.strip() or f"ended with {process.returncode}")[-500:]
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            why = f"took more than {part_seconds()} s"
    return figures(said), why


def beside(kind, part, toy, seconds):
    """PyTorch's figures of the part ({}, why) where it cannot be had."""
    lacking = [name for name in MODULES[part] if importlib.util.find_spec(name) is None]
    if lacking:
        return {}, f"{', '.join(lacking)} not installed"
    if kind == "emulated" and not os.environ.get("GPU_TORCH_CPU"):
        return {}, "nothing to compare an emulated device with"
    command = [sys.executable, os.path.join(SOURCE, "bench", "gpu_torch.py"), part] + (["toy"] if toy else [])
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=max(30, seconds),
                              preexec_fn=end_with_parent)
    except subprocess.TimeoutExpired:
        return {}, f"PyTorch took more than {seconds:.0f} s"
    if done.returncode != 0:
        return {}, (done.stderr.strip() or "ended")[-300:].splitlines()[-1]
    return json.loads(done.stdout.splitlines()[-1]), None


def row(what, unit, mine, other, of, bound):
    ratio = None
    if mine and other:
        ratio = other / mine if unit in ("s", "GB") else mine / other
    return {"what": what, "unit": unit, "ours": mine, "beside": other, "of": of, "bound": bound,
            "ratio": ratio, "met": None if ratio is None or bound is None else ratio >= bound}


def rows_of(part, mine, other, arch):
    """What the issue asks of each part."""
    if part == "products":
        own = 0.5 if arch.startswith("sm_9") else 0.7
        pairs = [("own_cube_bf16", "our own bf16 product, 4096 x 4096 x 4096", own), ("cube_bf16", "as the engine does it", None),
                 ("own_cube_f16", "our own in fp16", None), ("large_bf16", "8192 x 8192 x 8192, bf16", None),
                 ("ffn_bf16", "8192 x 14336 x 4096, bf16", None), ("ffn_nf4", "the same with NF4 weights", None),
                 ("own_cube_f32", "our own in fp32, 4096 x 4096 x 4096", None)]
        return [row(what, "TFLOP/s", mine.get(f"{name}_tflops"), other.get(name.removeprefix("own_") + "_tflops"),
                    "torch (cublasLt)", bound) for name, what, bound in pairs]
    if part == "attention":
        return [row(f"attention {way}, 4 x 2048, 32 heads of 128, {kept}", "s", mine.get(f"{way}_{kept}_s"),
                    other.get(f"{way}_s"), "torch SDPA, bf16", round(1 / 1.3, 3) if kept == "bf16" else None)
                for kept in ("bf16", "f32") for way in ("forward", "backward")]
    name = {"lora": "LoRA, Llama-3-8B shape", "qlora": "QLoRA, Llama-3-8B shape", "full": "full, 1B shape"}[part]
    if part != "full" and mine.get("layers") == 16:  # the card has no room for the larger model, so PyTorch's is none beside it
        name, other = name.replace("Llama-3-8B", "1B"), {}
    of = {"lora": "transformers + peft", "qlora": "peft + bitsandbytes", "full": "torch.compile"}[part]
    rows = [row(f"{name}, 4 x 2048 tokens", "tokens/s", mine.get("tokens_per_s"), other.get("tokens_per_s"), of,
                1.3 if part == "full" else 2),
            row(f"{name}: memory", "GB", (mine.get("allocator_bytes") or 0) / 1e9, other.get("peak_bytes") and other["peak_bytes"] / 1e9,
                of, None if part == "full" else 1)]
    rows.append(row(f"{name}: model FLOP utilisation", "TFLOP/s", mine.get("model_tflops"), other.get("large_tflops"),
                    "torch (cublasLt) on 8192^3", 0.45 if part == "lora" else None))
    rows.append(checked(f"{name}: idle between kernels", mine.get("idle_between_kernels"), 0.03, "share of the step"))
    for holder, bound in (("allocator", 0.01), ("driver", 0.03)):
        if mine.get(f"{holder}_bytes") and mine.get("predicted_bytes"):
            off = abs(mine[f"{holder}_bytes"] / mine["predicted_bytes"] - 1)
            rows.append(checked(f"{name}: memory predicted, off the {holder}'s", off, bound, "share"))
    return rows


def checked(what, value, most, unit):
    """A row of a figure that has a limit of its own and nothing beside it."""
    return {"what": what, "unit": unit, "ours": value, "beside": most, "of": "limit", "bound": None, "ratio": None,
            "met": None if value is None else value <= most}


def table(lines):
    """All lines as one table."""
    def number(value):
        return "-" if value is None else f"{value:.4g}"

    cells = [("part", "what", "unit", "ours", "beside", "of", "ratio", "wanted", "met")]
    for line in lines:
        for each in line["rows"]:
            met = each["met"]
            cells.append((line["part"], each["what"], each["unit"], number(each["ours"]), number(each["beside"]),
                          each["of"], number(each["ratio"]), number(each["bound"]),
                          "open" if met is None else "yes" if met and not line["toy"] else "toy" if line["toy"] else "NO"))
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for each in cells:
        print("  ".join(text.ljust(width) for text, width in zip(each, widths)).rstrip())
    for line in lines:
        for what, why in line["skipped"].items():
            print(f"SKIP {line['part']}: {what}: {why}")


def read_lines(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as handle:
        return [json.loads(text) for text in handle if text.strip()]


def commit():
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=SOURCE)
    return done.stdout.strip() or "not a checkout"


def run_part(program, kind, part, toy):
    begin = datetime.datetime.now(datetime.timezone.utc)
    mine, why = ours(program, kind, part, toy)
    skipped = {"ours": why} if why else {}
    if mine and part == "products":
        own, _ = ours(program, kind, part, toy, alone=True)
        mine["values"].update({f"own_{name}": value for name, value in (own or {"values": {}})["values"].items()})
    spent = (datetime.datetime.now(datetime.timezone.utc) - begin).total_seconds()
    other, why = beside(kind, part, toy, part_seconds() - spent)
    if why:
        skipped["PyTorch"] = why
    arch = mine["arch"] if mine else ""
    values = mine["values"] if mine else {}
    return {"schema": "motley-gpu-bench/1", "part": part, "kind": kind, "device": mine["device"] if mine else "",
            "arch": arch, "toy": toy, "commit": commit(), "at": begin.strftime("%Y-%m-%dT%H:%M:%SZ"), "ours": values,
            "beside": other, "skipped": skipped, "rows": rows_of(part, values, other, arch)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all without")
    parser.add_argument("--again", action="store_true", help="also parts that are there")
    parser.add_argument("--table", action="store_true", help="print the table alone")
    parser.add_argument("--toy", action="store_true", help="tiny shapes")
    parser.add_argument("--out", default=os.path.join(SOURCE, "bench", "results", "gpu"), help="folder of results")
    options = parser.parse_args()
    kind = os.environ.get("GPU_DEVICE", "cuda")
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}")
    path = os.path.join(options.out, re.sub(r"\W+", "-", f"{kind}-toy" if options.toy else kind) + ".jsonl")
    if not options.table:
        program = os.path.join(built(), "gpu_bench")
        os.makedirs(options.out, exist_ok=True)
        for part in options.parts or PARTS:
            if not options.again and any(line["part"] == part and "ours" not in line["skipped"] for line in read_lines(path)):
                print(f"{part}: in {path} already")
                continue
            line = run_part(program, kind, part, options.toy)
            if not line["ours"]:
                print(f"SKIP {part}: {line['skipped']['ours']}")
                continue
            with open(path, "a", encoding="utf-8") as handle:
                handle.write(json.dumps(line) + "\n")
    last = {line["part"]: line for line in read_lines(path)}
    if not last:
        print("gpu-bench: no part could be run")
        return 77
    table([last[part] for part in PARTS if part in last])
    return 0


if __name__ == "__main__":
    sys.exit(main())
