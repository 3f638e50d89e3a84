#!/usr/bin/env python3
"""The step on paper is the step that runs: the launches of gpu_paper are those that a device makes, layers are alike, and the
instructions of a kernel's loop are counted on the right way through it."""
import json
import os
import subprocess
import sys

SOURCE, BIN = os.environ["MOTLEY_SOURCE"], os.environ["MOTLEY_BIN"]
sys.path.insert(0, os.path.join(SOURCE, "bench"))
import gpu_paper  # noqa: E402

PAPER = os.path.join(BIN, "gpu_paper")
# Two products a turn; one arm of two instructions and one of four; a jump out before the products; a move.
KERNEL = """
.entry two_arms(.param .b32 x)
{
$L_1:
    mov.u32 %r1, 1;
    setp.eq.s32 %p0, %r1, 9;
    @%p0 bra $L_9;
    @%p1 bra $L_2;
    add.s32 %r2, %r2, 1;
    add.s32 %r2, %r2, 1;
    add.s32 %r2, %r2, 1;
    bra.uni $L_3;
$L_2:
    add.s32 %r2, %r2, 1;
    add.s32 %r2, %r2, 1;
$L_3:
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r3, %r4, %r5, %r6}, {%r7, %r8}, {%f1, %f2, %f3, %f4};
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r3, %r4, %r5, %r6}, {%r7, %r8}, {%f1, %f2, %f3, %f4};
    @%p2 bra $L_1;
$L_9:
    ret;
}
"""


def expect(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def launches(step):
    return sum(op["launches"] + op["fills"] for op in step["ops"])


def paper_is_what_runs():
    for method in ("qlora", "lora", "full"):
        done = subprocess.run([os.path.join(BIN, "gpu_bench"), "emulated", method, "toy"], capture_output=True, text=True, check=True,
                              timeout=240)
        ran = json.loads(done.stdout.splitlines()[-1])["values"]
        two, three, four = (gpu_paper.engine_says(PAPER, "toy", method, 80, layers, layers) for layers in (2, 3, 4))
        expect(launches(two) == ran["launches"], f"{method}: {launches(two)} launches on paper, {ran['launches']} of a device")
        expect(two["predicted_bytes"] == ran["predicted_bytes"], f"{method}: the same stage")
        for name in ("count", "flops", "bytes", "launches"):
            sums = [sum(op[name] for op in step["ops"]) for step in (two, three, four)]
            expect(sums[2] - sums[1] == sums[1] - sums[0] > 0, f"{method}: {name} of 2, 3 and 4 layers: {sums}")
        flops = sum(op["flops"] for op in two["ops"])
        most = 2 if method == "full" else 2.5  # adapters on seven matrices of a layer as narrow as this one count
        expect(0.9 * two["model_flops"] < flops < most * two["model_flops"], f"{method}: {flops} of products, {two['model_flops']} of the model")


def layers_are_recomputed_as_plans_do():
    """Six layers of which three are recomputed, counted whole and put together from smaller counts; a card of 24 GiB keeps some."""
    for saved in (0, 1, 3, 5, 6):
        mixed = gpu_paper.step_of(PAPER, "toy", "qlora", 80, "f16+bf16", 6, saved)
        whole = gpu_paper.engine_says(PAPER, "toy", "qlora", 80, 6, saved)
        for name in ("flops", "bytes", "launches"):
            sums = [sum(op[name] for op in step["ops"]) for step in (mixed, whole)]
            expect(abs(sums[0] - sums[1]) <= 1e-9 * sums[1], f"{name} of 6 layers, {saved} of them kept: {sums}")
    some = gpu_paper.engine_says(PAPER, "8b", "qlora", 24, 2, 2)["saved"]
    expect(0 < some < 32, f"layers that keep their values on 24 GiB: {some}")


def loops_are_counted():
    counts = gpu_paper.kernel_counts(KERNEL)["two_arms"]
    # setp, two jumps, the arm, two products, the jump back
    want = {"instructions": 12, "shortest": 8, "mma": 2, "mma_flops": 2 * 4096, "fma": 0}
    expect(counts == want, f"{counts}, not {want}")


def table_is_whole():
    command = [sys.executable, os.path.join(SOURCE, "bench", "gpu_paper.py"), "--shape", "toy"]
    environment = {**os.environ, "GPU_BIN": BIN}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=environment)
    if done.returncode == 77:
        expect("SKIP gpu-paper" in done.stdout, done.stdout)
        print(done.stdout.strip())
        return
    expect(done.returncode == 0 and "own products of 8192" in done.stdout, done.stdout + done.stderr)
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=240, env=environment)
    told = json.loads(done.stdout)
    for which in ("shortest", "instructions"):
        total = told["sums"][which]["seconds"]
        expect(abs(sum(line["seconds"] for line in told["lines"][which]) - total) < 1e-9 * total, "the sum of the lines")
    expect(told["sums"]["shortest"]["seconds"] <= told["sums"]["instructions"]["seconds"], "the bound is the shorter one")
    products = [name for op in told["step"]["ops"] if op["flops"] for name in op["kernels"]]
    expect(any(told["kernels"].get(name, {}).get("mma") for name in products), f"kernels with matrix products: {products}")


loops_are_counted()
layers_are_recomputed_as_plans_do()
paper_is_what_runs()
table_is_whole()
