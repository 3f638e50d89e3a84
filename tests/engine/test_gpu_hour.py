#!/usr/bin/env python3
"""gpu-hour at toy size on the emulated device: every step that can run there does, those that cannot say so by name, and a
run that was killed goes on where it was."""
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

SOURCE, BIN, FAKES = os.environ["MOTLEY_SOURCE"], os.environ["MOTLEY_BIN"], os.path.join(os.environ["MOTLEY_BUILD"], "tests", "fakes")
HOUR = os.path.join(SOURCE, "bench", "gpu_hour.py")
# Steps that an emulated device has nothing for, each with a word of its reason.
NOT_HERE = {"nodes": "device node", "cache": "NVIDIA", "mig": "MIG"}
DEADLINE_S = 240


def environment(**more):
    return {**os.environ, "GPU_BIN": BIN, "GPU_DEVICE": "emulated", **more}


def hour(out, *steps, **more):
    done = subprocess.run([sys.executable, HOUR, "--toy", "--out", out, *steps], capture_output=True, text=True, check=False,
                          timeout=DEADLINE_S, env=environment(**more))
    return done.returncode, done.stdout + done.stderr


def expect(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def lines_of(out):
    path = os.path.join(out, "steps.jsonl")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as handle:
        return [json.loads(text) for text in handle if text.endswith("\n")]


def killed_in_a_step(out):
    """Kills a run while the step after `jit` runs, and returns the lines that there are then."""
    process = subprocess.Popen([sys.executable, HOUR, "--toy", "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
                               env=environment())
    until = time.monotonic() + DEADLINE_S
    while not os.path.exists(os.path.join(out, "kernels.txt")):
        expect(process.poll() is None and time.monotonic() < until, "the step `kernels` began")
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with open(os.path.join(out, "steps.jsonl"), "ab") as handle:
        handle.write(b'{"schema": "motley-gpu-hour/1", "step": "kern')  # as after a write that was cut off
    return lines_of(out)


def all_steps(out):
    before = killed_in_a_step(out)
    expect([line["step"] for line in before] == ["machine", "nodes", "build", "driver", "cache", "jit"], f"lines: {before}")
    code, said = hour(out)
    expect(code == 0, f"gpu-hour: {said[-3000:]}")
    lines = lines_of(out)
    expect(lines[:len(before)] == before and said.count("(before)") == len(before), "steps that had ended were not run again")
    names = [line["step"] for line in lines]
    expect(len(set(names)) == len(names) > 20, f"one line a step: {names}")
    for line in lines:
        word = NOT_HERE.get(line["step"])
        expect(line["state"] == ("skipped" if word else "ok"), f"{line['step']}: {line}")
        expect(not word or word in line["why"], f"{line['step']} says why it is not run: {line['why']}")
        expect(f"\n{line['step']} " in "\n" + said, f"{line['step']} is printed")
    facts = {line["step"]: " ".join(line["facts"]) for line in lines}
    for step, fact in (("driver", "card 0: emulated GPU"), ("jit", "with an empty cache: opened in"), ("kernels", "kernels were launched"),
                       ("ipc", "all that it pushed is there"), ("peer", "on card 0 pushes"), ("graph", "the same bits as queued"), ("trap", "the next process uses the card"),
                       ("bench-qlora", "QLoRA")):
        expect(fact in facts[step], f"{step}: {facts[step]}")
    for shown in ("    never launched: ", "    part   what ", "    all that it pushed is there"):
        expect(f"\n{shown}" in said, f"what a step found is printed: {shown}: {said[-3000:]}")
    with tarfile.open(f"{out}.tar.gz") as tar:
        held = {os.path.relpath(name, os.path.basename(out)) for name in tar.getnames()}
    expect({"steps.jsonl", "kernels.txt", "bench/emulated-toy.jsonl", *(f"{name}.txt" for name in ("trap", "sanitizer"))} <= held,
           f"in the archive: {held}")


def slow_programs(folder):
    """A folder with a gpu_check that never ends."""
    os.mkdir(folder)
    path = os.path.join(folder, "gpu_check")
    with open(path, "w", encoding="utf-8") as handle:
        handle.write("#!/bin/sh\nexec sleep 600\n")
    os.chmod(path, 0o700)
    return folder


def failures(out):
    code, said = hour(out, "graph", "ipc", MOTLEY_EMULATED="launch=1")
    states = {line["step"]: line["state"] for line in lines_of(out)}
    expect(code == 1 and states == {"ipc": "ok", "graph": "failed"}, f"a failing step is named, the others run: {said}")
    code, said = hour(f"{out}-zeros", "peer", MOTLEY_EMULATED="zeros")
    expect(code == 1 and "pushed is not there (an IOMMU" in said, f"copies between cards that deliver zeros: {said}")
    code, said = hour(f"{out}-over", "--minutes", "0")
    expect(code == 75 and not lines_of(f"{out}-over") and "over before machine, nodes" in said, f"without time: {said}")
    code, said = hour(f"{out}-cut", "check-large", "--minutes", "0.18", GPU_BIN=slow_programs(f"{out}-slow"))
    expect(code == 75 and not lines_of(f"{out}-cut") and "over before check-large" in said, f"an hour that ends in a step: {said}")
    expect(os.path.exists(os.path.join(f"{out}-cut", "check-large.txt")), "the step was begun")
    code, said = hour(f"{out}-none", GPU_DEVICE="cuda", MOTLEY_CUDA_LIBRARY="/nowhere/libcuda.so")
    expect(code == 77 and "no card was found" in said and "/nowhere/libcuda.so" in said, f"without a card: {said}")


def vendors(out):
    """The same steps over NVIDIA's calls, with a library of products."""
    fakes = {"GPU_DEVICE": "cuda", "MOTLEY_CUDA_LIBRARY": os.path.join(FAKES, "libfake_cuda.so"),
             "MOTLEY_CUBLASLT_LIBRARY": os.path.join(FAKES, "libfake_cublaslt.so"), "CUDA_CACHE_PATH": f"{out}-cache"}
    done = subprocess.run([os.path.join(BIN, "gpu_hour"), "cuda", "open"], capture_output=True, text=True, check=False,
                          timeout=DEADLINE_S, env=environment(**fakes))
    if done.returncode != 0 and "code" in done.stdout:
        print(f"SKIP the steps over NVIDIA's calls: {done.stdout.strip()}")
        return
    code, said = hour(out, "driver", "cache", "jit", "ipc", "peer", "graph", "trap", MOTLEY_FAKE_OLDER="61", **fakes)
    lines = {line["step"]: line for line in lines_of(out)}
    expect(code == 0 and all(line["state"] == "ok" for line in lines.values()), f"{said}\n{lines}")
    expect("the library's" in lines["graph"]["facts"][-1], f"a library product in a graph: {lines['graph']}")
    expect("jit@sm_61" in lines, f"a second, older card has steps of its own: {sorted(lines)}")


def cut_off():
    """A part of the benchmark that was cut off keeps the figures that it has."""
    sys.path.insert(0, os.path.join(SOURCE, "bench"))
    from gpu_bench import figures
    whole = {"arch": "sm_61", "values": {"a": 1.5, "b": 2}}
    text = json.dumps(whole)
    expect(figures("a log line\n" + text + "\n") == whole and figures(text[:-2]) == whole, "a line that is whole but for its end")
    expect(figures(text[:text.index('"b"')]) == {"arch": "sm_61", "values": {"a": 1.5}}, "a line that was cut off")
    expect(figures("") is None and figures("{\"arch\"") is None, "no figures")


with tempfile.TemporaryDirectory() as scratch:
    cut_off()
    failures(os.path.join(scratch, "bad"))
    vendors(os.path.join(scratch, "fakes"))
    all_steps(os.path.join(scratch, "good"))
