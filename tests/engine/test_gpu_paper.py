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
# The same of RDNA 3, at addresses from 0 on: an arm for bf16, an operand that is read in halves in one arm and in words in another,
# scalar instructions, a load.
OBJECT = """
0000000000000000 <wmma_arms>:
	s_waitcnt vmcnt(0)                          // 000000000000: BF8903F7
	s_cbranch_vccz 2                            // 000000000004: BFA30002 <wmma_arms+0x10>
	v_wmma_f32_16x16x16_bf16 v[0:7], v[8:15], v[16:23], v[0:7] // 000000000008: CC414000
	ds_load_b128 v[8:11], v1                    // 000000000010: DBFC0000
	global_load_b128 v[12:15], v[2:3], off      // 000000000014: DC5E0000
	s_cbranch_vccz 3                            // 000000000018: BFA30003 <wmma_arms+0x28>
	ds_load_u16 v16, v1                         // 00000000001C: D8F00000
	v_lshl_or_b32 v16, v17, 16, v16             // 000000000020: D6560010
	s_branch 1                                  // 000000000024: BFA00001 <wmma_arms+0x2c>
	ds_load_2addr_b32 v[16:17], v1 offset1:1    // 000000000028: D8DC0100
	v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7] // 00000000002C: CC404000
	s_cbranch_scc1 65523                        // 000000000034: BFA2FFF3 <wmma_arms+0x4>
	s_endpgm                                    // 000000000038: BFB00000
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
    expect(counts == {**want, "wavefronts": 0}, f"{counts}, not {want}")
    whole, products, ways = gpu_paper.counts_of(gpu_paper.Body(gpu_paper.object_words(OBJECT)))
    product = {"mma": 1, "mma_flops": 8192, "fma": 0}
    expect((whole, products) == (3, 2), f"{whole} vector instructions of the loop, {products} products")
    expect(ways == {(0, 1): {**product, "shortest": 1, "wavefronts": 6}, (1, 1): {**product, "shortest": 2, "wavefronts": 5}}, ways)


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
    done = subprocess.run([*command, "--card", "rx-7900xtx"], capture_output=True, text=True, check=False, timeout=240, env=environment)
    if done.returncode == 77:  # without the card's object, or a tool to read it
        print(done.stdout.strip())
        return
    expect(done.returncode == 0, done.stdout + done.stderr)
    for name in ("units_eights_128x128", "units_nf4_eights_128x128"):
        expect(sum(f"  {name} b {side}" in done.stdout for side in ("along ", "across")) == 2, f"{name} in both orders: {done.stdout}")


loops_are_counted()
layers_are_recomputed_as_plans_do()
paper_is_what_runs()
table_is_whole()
