#!/usr/bin/env python3
"""gpu-check and every part of gpu-bench, at toy size on the emulated device: the scripts that a machine with a card
runs. A part that is there is not run again, and what lacks is said."""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

SOURCE, BIN = os.environ["MOTLEY_SOURCE"], os.environ["MOTLEY_BIN"]


def run(command, **more):
    environment = {**os.environ, "GPU_BIN": BIN, "GPU_DEVICE": "emulated", **more}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=environment, cwd=SOURCE)
    return done.returncode, done.stdout + done.stderr


def expect(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def checks():
    code, said = run(["bench/gpu_check.sh"], GPU_TRIALS="1")
    expect(code == 0 and "1 kind(s) of device are right" in said, f"gpu-check: {said[-2000:]}")
    code, said = run(["bench/gpu_check.sh"], GPU_DEVICE="cuda", MOTLEY_CUDA_LIBRARY="/nowhere/libcuda.so")
    expect(code == 77 and "SKIP cuda" in said and "/nowhere/libcuda.so" in said, f"gpu-check without a card: {said}")


def objects_of_the_engine_alone():
    """This build's objects of the files that cmake/engine_only.cmake names, as where all it may need is there."""
    with open(os.path.join(SOURCE, "cmake/engine_only.cmake"), encoding="utf-8") as handle:
        text = handle.read()
    build = os.path.join(os.path.dirname(BIN), "CMakeFiles")
    for room in ("common", "model"):
        for names in re.findall(rf"\((?:APPEND )?{room} ([^)]*)\)", text):
            # The engine alone is compiled so that functions which nothing calls fall away, and with them the need of OpenSSL.
            for name in [*names.split(), *(["digest"] if "buf" in names else [])]:
                yield from glob.glob(f"{build}/*.dir/{room}/{name}.c.o")
    for path in glob.glob(f"{build}/motley_engine.dir/engine/**/*.o", recursive=True):
        if not re.search(r"engine/profile[a-z_]*\.c\.o$", path):
            yield path


def links():
    """gpu-check is linked with the files that it names: on a machine with a card, it is built for the first time."""
    program = os.path.join(os.path.dirname(BIN), "tests/CMakeFiles/gpu_check.dir/__/bench/gpu/gpu_check.c.o")
    code, said = run(["cc", "-Wl,--gc-sections", "-o", "/dev/null", program, *objects_of_the_engine_alone(), "-ljansson", "-lpcre2-8",
                      "-lz", "-lcmocka", "-lcrypto", "-lpthread", "-ldl", "-lm",
                      *glob.glob(os.path.join(os.path.dirname(BIN), "CMakeFiles/motley_engine.dir/gpu_code/*.o"))])
    missing = sorted(set(re.findall(r"undefined reference to [`'](\w+)", said)))
    expect(code == 0, f"cmake/engine_only.cmake lacks the files of {', '.join(missing) or said[-2000:]}")


def benches(folder):
    command = ["bench/gpu_bench.py", "--toy", "--out", folder]
    code, said = run(command)
    expect(code == 0, f"gpu-bench: {said[-2000:]}")
    with open(os.path.join(folder, "emulated-toy.jsonl"), encoding="utf-8") as handle:
        lines = [json.loads(text) for text in handle]
    expect([line["part"] for line in lines] == ["products", "attention", "lora", "qlora", "full"], "a line a part")
    for line in lines:
        expect(line["schema"] == "motley-gpu-bench/1" and line["toy"], "a line's schema")
        expect(all(row["ours"] is not None for row in line["rows"]), f"{line['part']}: every row has our figure")
        expect(line["skipped"].get("PyTorch"), f"{line['part']}: it says why nothing is beside it")
        expect(said.count(f"SKIP {line['part']}: PyTorch") == 1, "the table says so too")
    steps = {line["part"]: line["ours"] for line in lines if "step_s" in line["ours"]}
    for part, values in steps.items():
        expect(values["predicted_bytes"] == values["allocator_bytes"], f"{part}: memory as predicted")
        expect(values["passes_replayed"] > 0, f"{part}: passes are run again")
        expect(values["launches"] > 50 and 0 <= values["idle_between_kernels"] < 1, f"{part}: a trace of its kernels")
        expect(values["loss"] < values["first_loss"], f"{part}: it learns")
    code, said = run(command)
    expect(code == 0 and said.count("already") == 5, "parts that are there are not run again")
    code, said = run(["bench/gpu_bench.py", "--out", folder, "lora"], GPU_DEVICE="cuda",
                     MOTLEY_CUDA_LIBRARY="/nowhere/libcuda.so")
    expect(code == 77 and "SKIP lora" in said, f"gpu-bench without a card: {said}")


links()
checks()
with tempfile.TemporaryDirectory() as scratch:
    benches(scratch)
