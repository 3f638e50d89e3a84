#!/usr/bin/env python3
"""make gpu-hour: what sixty minutes on a machine with cards can tell, in the order of its worth, with what is on the machine.

First whether the cards serve at all, each kernel launched once, then how fast training is, then everything else; a deliberate
fault and the slow checkers come last. The first card of each architecture is tried: beside a 3090 a 1080 Ti has steps of its
own, such as kernels@sm_61. Each step prints a line and appends it to OUT/steps.jsonl when it has ended; what it said is
OUT/STEP.txt, and the benchmark's figures come one by one. After each step all of it is in one archive, OUT.tar.gz: the file to
send. A step that has a line is not run again (--again does), so a run that was cut off, or whose hour (--minutes) is over, goes
on where it was. A failing step does not stop the following ones.

A line: {"schema": "motley-gpu-hour/1", "step", "state": "ok" | "failed" | "skipped", "seconds", "why": text or null, "facts":
[text], "at"}. Exit status: 0; 1 if a step failed; 75 if steps are left for another hour; 77 if there is no card.

GPU_DEVICE: cuda (the default), hip or emulated. GPU_BIN: a folder with the programs, built already.
"""
import argparse
import datetime
import glob
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time

from gpu_bench import PARTS, PART_SECONDS, SOURCE, built, end_with_parent

STEP_SECONDS = 600  # the longest a step may take
LEAST_SECONDS = 10  # a step is not begun with less of the hour left
LEFT = 75
SHOWN = 12  # the most facts of a step that are printed; its line in steps.jsonl has all
CHECKS = ("ops", "experts", "packed", "units", "attention", "large", "tiles", "families")
OK, FAILED, SKIPPED = "ok", "failed", "skipped"
NODES = {"cuda": ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/dxg"), "hip": ("/dev/kfd", "/dev/dri/*"), "emulated": ()}


class HourOver(Exception):
    """The hour ended within a step, which is begun again by the next run."""


class Hour:
    """One run: where it writes, which programs it calls, how large it is."""

    def __init__(self, options, kind):
        self.out, self.kind, self.toy, self.again = options.out, kind, options.toy, options.again
        self.bin = None
        self.facts = []
        self.step = ""
        self.card = {}  # the environment that shows the card of the step alone
        self.ends = time.monotonic() + 60 * options.minutes

    def left(self):
        return self.ends - time.monotonic()

    def say(self, *facts):
        self.facts += [fact.strip() for fact in facts if fact.strip()]

    def program(self, name):
        if not self.bin:  # without the other vendor's kernels, each of which takes a core 20 s
            os.environ.setdefault("GPU_CMAKE", "-DMOTLEY_GPU_TARGETS=" + {"cuda": "sm_.*", "hip": "gfx.*"}.get(self.kind, ".*"))
            self.bin = built()
        return os.path.join(self.bin, name)

    def run(self, step, command, environment=None, fact=None):
        """Runs a command to its end; its output goes into the step's file. Returns (state, why)."""
        path = os.path.join(self.out, f"{step}.txt")
        with open(path, "a", encoding="utf-8") as log:
            log.write("$ " + " ".join(command) + "\n")
            log.flush()
            began = log.tell()
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=SOURCE, preexec_fn=end_with_parent,
                                       env={**os.environ, **self.cache(), **self.card, **(environment or {})})
            seconds = int(max(1, min(STEP_SECONDS, self.left())))
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        with open(path, encoding="utf-8", errors="replace") as log:
            log.seek(began)
            lines = log.read().splitlines()
        self.say(*[line for line in lines if fact and re.search(fact, line)])
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        if code is None and seconds < STEP_SECONDS:
            raise HourOver
        if code is None:
            return FAILED, f"took more than {seconds} s; last: {last}"
        if code == 0:
            return OK, None
        if code == 77:
            return SKIPPED, last.removeprefix("not here: ")
        return FAILED, (f"ended by signal {-code}" if code < 0 else f"status {code}") + f"; last: {last}"

    def cache(self):
        """All steps share what the driver translates in the step jit."""
        return {"CUDA_CACHE_PATH": f"{self.out}.cache"} if self.kind == "cuda" else {}

    def tool(self, step, name, *arguments, folders=()):
        """Runs a tool of the vendor's where it is installed."""
        found = shutil.which(name) or next((path for path in (os.path.join(folder, name) for folder in folders)
                                            if os.access(path, os.X_OK)), None)
        if not found:
            return SKIPPED, f"{name} is not installed"
        return self.run(step, [found, *arguments])


# --- the steps, in order

def machine(hour):
    hour.say(f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}")
    for path in ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version"):
        if os.path.exists(path):
            with open(path, encoding="utf-8") as handle:
                hour.say(f"{path}: {handle.readline()}")
    if hour.kind == "cuda":
        hour.tool("machine", "nvidia-smi", "-q")
    elif hour.kind == "hip":
        hour.tool("machine", "rocm-smi", "-a", folders=("/opt/rocm/bin",))
    return OK, None


def nodes(hour):
    if not NODES[hour.kind]:
        return SKIPPED, "an emulated device needs no device node"
    paths = sorted(path for pattern in NODES[hour.kind] for path in glob.glob(pattern) if not os.path.isdir(path))
    for path in paths:
        told = os.stat(path)
        hour.say(f"{path} {stat.filemode(told.st_mode)} uid {told.st_uid} gid {told.st_gid}"
                 + ("" if os.access(path, os.R_OK | os.W_OK) else ", not for this user"))
    needed = {"cuda": ("/dev/nvidiactl", "/dev/nvidia-uvm"), "hip": ("/dev/kfd",)}[hour.kind]
    missing = [path for path in needed if path not in paths]
    if missing and "/dev/dxg" not in paths:
        makes = {"cuda": "nvidia-modprobe -c 0 -u", "hip": "modprobe amdgpu"}[hour.kind]
        return FAILED, f"{', '.join(missing)} missing (as root, once after each boot: {makes})"
    return OK, None


def driver(hour):
    state, why = single("driver")(hour)
    if state == FAILED and any("cannot be used" in fact for fact in hour.facts):
        why += "; clang-19 with lld-19 (tools/packages.sh gpu), or CUDA's nvcc from sm_75 on, compiles code: then run this again"
    return state, why


def build(hour):
    hour.say(f"programs in {os.path.relpath(os.path.dirname(hour.program('gpu_hour')), SOURCE)}")
    return OK, None


def single(step, *arguments, fact=r"^(?!\d{4}-)\S"):  # log lines begin with the time
    """A step of gpu_hour.c."""
    def run(hour):
        more = [argument for argument in arguments if argument != "toy" or hour.toy]
        return hour.run(step, [hour.program("gpu_hour"), hour.kind, step, *more], fact=fact)
    return run


def cache(hour):
    """Where the driver keeps what it has translated, and whether it can."""
    if hour.kind != "cuda":
        return SKIPPED, "only NVIDIA's driver translates kernels and keeps them"
    folder = os.environ.get("CUDA_CACHE_PATH") or os.path.expanduser("~/.nv/ComputeCache")
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as why:
        return FAILED, f"{folder}: {why.strerror}: every process translates the kernels again; CUDA_CACHE_PATH names another"
    held = sum(os.path.getsize(os.path.join(base, name)) for base, _, names in os.walk(folder) for name in names)
    hour.say(f"{folder}: {held / 2**20:.1f} MiB, at most {os.environ.get('CUDA_CACHE_MAXSIZE', 'the default')}")
    return (FAILED, "CUDA_CACHE_DISABLE is set") if os.environ.get("CUDA_CACHE_DISABLE", "0") != "0" else (OK, None)


def jit(hour):
    """Opens a device with an empty cache, then with the cache of that, which the other steps have, too."""
    folder = hour.cache().get("CUDA_CACHE_PATH")
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    for when in ("with an empty cache", "again"):
        before = len(hour.facts)
        state, why = hour.run(hour.step, [hour.program("gpu_hour"), hour.kind, "open"], None, r"^opened")
        hour.facts[before:] = [f"{when}: {fact}" for fact in hour.facts[before:]]
        if state != OK:
            return state, why
    return OK, None


def check(name, trials=None):
    def run(hour):
        chosen = trials or ("1" if hour.toy else "10")
        return hour.run(hour.step, [hour.program("gpu_check"), hour.kind, chosen, name],
                        fact=r"kernels were launched|SKIP")
    return run


def kernels(hour):
    """The first launch of each kernel, named and waited for: a few trials of each op."""
    command = [hour.program("gpu_check"), hour.kind, "2" if hour.toy else "12", "kernels"]
    return hour.run(hour.step, command, fact=r"kernels were launched|never launched")


def sanitizer(hour):
    """The same under what checks every access: NVIDIA's tool, or the emulated device's own checks."""
    command = [hour.program("gpu_check"), hour.kind, "2", "kernels"]
    if hour.kind == "emulated":
        return hour.run("sanitizer", [*command[:-1], "packed"], {"MOTLEY_EMULATED": "checks"}, r"kernels were launched")
    if hour.kind == "hip":
        return SKIPPED, "there is no such tool for AMD's cards"
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(tool, os.X_OK):
        return SKIPPED, "compute-sanitizer is not installed"
    for name in ("memcheck", "racecheck", "initcheck"):
        state, why = hour.run("sanitizer", [tool, "--tool", name, "--error-exitcode", "9", *command], fact="ERROR SUMMARY")
        if state != OK:
            return state, f"{name}: {why}"
    return OK, None


def mig(hour):
    """Opens a device on each MIG slice."""
    if hour.kind != "cuda":
        return SKIPPED, "only NVIDIA's cards have MIG slices"
    tool = shutil.which("nvidia-smi")
    if not tool:
        return SKIPPED, "nvidia-smi is not installed"
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False, timeout=120).stdout
    slices = re.findall(r"\(UUID: (MIG-[^)]+)\)", listed)
    for name in slices:
        state, why = hour.run("mig", [hour.program("gpu_hour"), "cuda", "open"], {"CUDA_VISIBLE_DEVICES": name}, r"^opened")
        if state != OK:
            return state, f"{name}: {why}"
    return (OK, None) if slices else (SKIPPED, "no card here is cut into MIG slices")


def bench(part):
    def run(hour):
        command = [sys.executable, os.path.join(SOURCE, "bench", "gpu_bench.py"), part, "--again", "--out",
                   os.path.join(hour.out, "bench" + "".join(hour.step.partition("@")[1:])), *(["--toy"] if hour.toy else [])]
        bin_folder = os.path.dirname(hour.program("gpu_bench"))
        seconds = str(int(max(1, min(PART_SECONDS, hour.left() - 5))))  # before the step itself is cut off
        ended = hour.run(hour.step, command, {"GPU_DEVICE": hour.kind, "GPU_BIN": bin_folder, "GPU_PART_SECONDS": seconds},
                         rf"^part |^{part} |^SKIP {part}")
        if hour.left() < LEAST_SECONDS and int(seconds) < PART_SECONDS:
            raise HourOver  # its figures so far are kept
        return ended
    return run


FIRST = (("machine", machine), ("nodes", nodes), ("build", build), ("driver", driver), ("cache", cache))
# Of each unlike card, by worth: does it compute, and how fast does it train?
CARD = (("jit", jit), ("kernels", kernels), ("bench-qlora", bench("qlora")), ("bench-products", bench("products")))
ALL = (("graph", single("graph", "toy", fact="recorded")), ("ipc", single("ipc", "toy")), ("peer", single("peer", "toy")),
       ("mig", mig))
CARD_LATER = (*[(f"check-{name}", check(name)) for name in CHECKS],
              *[(f"bench-{part}", bench(part)) for part in PARTS if part not in ("qlora", "products")])
LAST = (("trap", single("trap")), ("sanitizer", sanitizer))
NAMES = [name for group in (FIRST, CARD, ALL, CARD_LATER, LAST) for name, _ in group]


def unlike(line):
    """The first card of each architecture, as the step `driver` shows them: [(suffix of its steps, number)]."""
    seen = {}
    for fact in line.get("facts", []):
        found = re.match(r"card (\d+): .*?, (sm_\d+|gfx\w+|warp\d+), ", fact)
        if found and not any(f"card {found[1]} cannot be used" in other for other in line["facts"]):
            seen.setdefault(found[2], found[1])
    return [("" if i == 0 else f"@{arch}", number) for i, (arch, number) in enumerate(seen.items())]


def steps_after(line):
    """The steps after FIRST, as (name, step, number of its card or None)."""
    cards = unlike(line) or [("", None)]

    def of_cards(group):
        return [(name + suffix, run, number) for suffix, number in cards for name, run in group]

    return [*of_cards(CARD), *[(name, run, None) for name, run in ALL], *of_cards(CARD_LATER), *[(name, run, None) for name, run in LAST]]


# --- running them

def lines_read(out):
    """The lines of the steps that ended, by step. A line that was cut off is none."""
    lines = {}
    path = os.path.join(out, "steps.jsonl")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as handle:
            for text in handle:
                if text.endswith("\n"):
                    line = json.loads(text)
                    lines[line["step"]] = line
    return lines


def line_write(out, line):
    path = os.path.join(out, "steps.jsonl")
    with open(path, "ab+") as handle:  # a line that was cut off is taken away first
        handle.seek(0)
        held = handle.read()
        handle.truncate(held.rfind(b"\n") + 1)
        handle.write(json.dumps(line).encode() + b"\n")
        handle.flush()
        os.fsync(handle.fileno())


def step_run(hour, name, run, number):
    shown = {"cuda": "CUDA_VISIBLE_DEVICES", "hip": "HIP_VISIBLE_DEVICES"}.get(hour.kind)
    hour.step, hour.card = name, {shown: number} if shown and number is not None and not os.environ.get(shown) else {}
    path = os.path.join(hour.out, f"{name}.txt")
    if os.path.exists(path):
        os.remove(path)  # of a run that was cut off in this step
    hour.facts = []
    at, began = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    try:
        state, why = run(hour)
    except SystemExit as ended:  # the programs could not be built
        state, why = FAILED, str(ended)
    line = {"schema": "motley-gpu-hour/1", "step": name, "state": state, "seconds": round(time.monotonic() - began, 2),
            "why": why, "facts": hour.facts, "at": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
    line_write(hour.out, line)
    return line


def stops(line):
    """Is there nothing to go on with: no programs, or no card that they serve? Such a step is tried again by the next run."""
    return (line["step"] == "build" and line["state"] == FAILED) or (line["step"] == "driver" and line["state"] != OK)


def line_print(line, before):
    """The step, why it is not ok, and what it found: in its line if that is one thing, else below."""
    facts = [] if before else line["facts"]
    said = line["why"] or (facts[0] if len(facts) == 1 else "")
    line_begin = "\x1b[K" if sys.stdout.isatty() else ""  # over what begin_print left
    print(f"{line_begin}{line['step']:<16} {line['state']:<8} {line['seconds']:>8.1f} s  {'(before) ' if before else ''}{said}".rstrip())
    for fact in facts[:SHOWN] if line["why"] or len(facts) > 1 else []:
        print(f"    {fact}")
    if len(facts) > SHOWN:
        print(f"    … {len(facts) - SHOWN} more in {line['step']}.txt")
    sys.stdout.flush()


def begin_print(hour, name):
    """What runs now, for a person who waits; the step's line takes its place."""
    if sys.stdout.isatty():
        most = min(STEP_SECONDS, hour.left()) / 60
        print(f"{name:<16} runs, at most {most:.0f} min; {hour.left() / 60:.0f} min are left", end="\r", flush=True)


def archive(out):
    path = f"{out}.tar.gz"
    with tarfile.open(path + ".part", "w:gz") as tar:
        tar.add(out, arcname=os.path.basename(out))
    os.replace(path + ".part", path)
    return path


def steps_go(hour, wanted, lines):
    """Runs the steps. Returns the names of those for which no time was left."""
    left, queue = [], [(name, run, None) for name, run in FIRST]
    while queue:
        name, run, number = queue.pop(0)
        if name == FIRST[-1][0]:
            queue += steps_after(lines.get("driver", {}))
        if wanted and name.partition("@")[0] not in wanted:
            continue
        before = name in lines and not hour.again and not stops(lines[name])
        if not before and hour.left() < LEAST_SECONDS:
            left.append(name)
            continue
        try:
            if not before:
                begin_print(hour, name)
                lines[name] = step_run(hour, name, run, number)
        except HourOver:
            left.append(name)
            continue
        finally:
            archive(hour.out)
        line_print(lines[name], before)
        if stops(lines[name]):
            break
    return left


def main():
    kind = os.environ.get("GPU_DEVICE", "cuda")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", help=f"of {', '.join(NAMES)}; all without")
    parser.add_argument("--again", action="store_true", help="also steps that have ended")
    parser.add_argument("--toy", action="store_true", help="tiny shapes and one trial")
    parser.add_argument("--minutes", type=float, default=60, help="after so many minutes nothing new is begun, and what runs is cut off")
    parser.add_argument("--out", default=os.path.join(SOURCE, "bench", "results", "gpu", f"hour-{kind}"), help="folder")
    options = parser.parse_args()
    unknown = [name for name in options.steps if name not in NAMES]
    if unknown or kind not in NODES:
        parser.error(f"there is no step {unknown[0]}" if unknown else f"there is no kind {kind}")
    options.out = os.path.abspath(options.out)
    os.makedirs(options.out, exist_ok=True)
    hour, lines = Hour(options, kind), lines_read(options.out)
    left = []
    try:
        left = steps_go(hour, options.steps, lines)
    finally:
        print(f"all of it, to send: {archive(options.out)}")
    failed = [name for name, line in lines.items() if line["state"] == FAILED]
    if lines.get("driver", {}).get("state") == SKIPPED:
        print(f"SKIP gpu-hour: no card was found: {lines['driver']['why']}")
        return 77
    print(f"gpu-hour: {len(lines)} steps, {len(failed)} failed" + (": " + ", ".join(failed) if failed else ""))
    if left:
        print(f"the hour is over before {', '.join(left)}: run it again to go on there")
    return 1 if failed else LEFT if left else 0


if __name__ == "__main__":
    sys.exit(main())
