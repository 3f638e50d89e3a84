#!/usr/bin/env python3
"""How much stack each circle of recursive calls may take: the frames of its functions times its greatest depth.

tools/recursion.py sees to it that each circle has a depth. Here the files that have circles are compiled once more as
BUILD/compile_commands.json says, with -fstack-usage, and each circle's bound is compared with HALF of the smallest stack
of a thread (8 MiB; the other half is for what the circle calls and was called by). Prints a table; exits 1 if a bound is
above, or a circle has no number. Usage: tools/stack_usage.py [BUILD]
"""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

import circles
import recursion

HALF = 4 << 20
# How often a circle is gone round, where its functions name no constant …_DEPTH_MAX: a number or a constant.
TIMES = {
    "added_flag": 2,
    "add_recomputation": "LAYER_STEPS_MAX",
    "catalogue_find": 2,
    "contribution_ready": 64,  # the height of a tree of at most 4096 ranks, and some
    "has_byte_level": "SECTION_DEPTH_MAX",
    "doc_schema": 8,  # tables of descriptions that lie in one another
    "doc_take": 8,
    "doc_write": 8,
    "fields_fini": 8,
    "fields_start": 8,
    "fixed_differs": 8,
    "heap_lowest": 64,
    "jinja_disjunction": "JINJA_DEPTH_MAX",
    "jv_from_json": "JSON_DEPTH_MAX",
    "live_exchange": 8,
    "mark_find": "JSON_DEPTH_MAX",
    "node_advanced": "FOLD_DEPTH_MAX",
    "nodes_json": "FOLD_DEPTH_MAX",
    "queue_run": 64,  # an entry waits for an earlier one of another of a handful of queues
    "replace_nul": "JSON_DEPTH_MAX",
    "result_broadcast": 64,
    "scope_run": "JINJA_TREE_DEPTH_MAX",
    "seed_tight_orders": "SETS_ALL",
    "segment_cut": 2,
    "tokens_made": "JSON_DEPTH_MAX",
    "visit": "JINJA_TREE_DEPTH_MAX",
    "walk_cut": "SPLIT_STAGES_MAX",
    "write_next": "ATTEMPTS_MAX",
}
NAMED = re.compile(r"\b[A-Z_]*(?:DEPTH|NEST|LEVEL)[A-Z_]*MAX\b")
NUMBER = re.compile(r"\b([A-Z][A-Z_]*[A-Z])(?:\s*=\s*|[ \t]+)(\d+)u?\b")


def frames(commands, path):
    """{function: bytes of its frames}, of all parts that the compiler has made of it"""
    command = shlex.split(commands[path]["command"])
    if os.path.basename(command[0]) == "ccache":
        command = command[1:]
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "made.o")
        command[command.index("-o") + 1] = out
        subprocess.run([c for c in command if c not in ("-MD",)] + ["-fstack-usage"], check=True, cwd=commands[path]["directory"])
        made = {}
        for line in open(os.path.join(folder, "made.su"), encoding="utf-8"):
            where, size, kind = line.rstrip("\n").split("\t")
            name = where.split(":")[-1].split(".")[0]
            if kind == "dynamic":
                sys.exit(f"{path}: {name}: a frame without a bound")
            made[name] = made.get(name, 0) + int(size)
    return made


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else "build"
    commands = {os.path.relpath(c["file"]): c for c in json.load(open(os.path.join(build, "compile_commands.json"), encoding="utf-8"))}
    paths = [p for p in circles.tracked() if p.endswith((".c", ".h")) and not p.startswith(("tests/", "bench/"))]
    known = recursion.functions([p for p in paths if p.endswith(".c")], circles.read)
    numbers, sizes, rows, wrong = {}, {}, [], 0
    for path in paths:
        for name, value in NUMBER.findall(circles.code_of(circles.read(path))):
            numbers.setdefault(name, {})[path] = int(value)
    for circle in recursion.calls_in_circles(known):
        names = sorted(name for _, name in circle)
        files = sorted({known[key][0] for key in circle})
        times = [TIMES[name] for name in names if name in TIMES]
        times = times or [c for key in circle for c in NAMED.findall(known[key][1])]
        found = [t for t in times if isinstance(t, int)] + \
                [numbers[t].get(files[0], max(numbers[t].values())) for t in times if t in numbers]
        for path in files:
            sizes.setdefault(path, frames(commands, path) if path in commands else {})
        frame = sum(sizes[known[key][0]].get(key[1], 0) for key in circle)
        bound = frame * max(found) if found else HALF + 1
        wrong += bound > HALF
        rows.append((bound, frame, max(found, default=0), files[0], ", ".join(names[:4]) + (" …" if len(names) > 4 else "")))
    print(f"{'bytes':>9} {'frames':>7} {'times':>6}  circle")
    for bound, frame, times, path, names in sorted(rows, reverse=True):
        print(f"{bound:9} {frame:7} {times:6}  {path}: {names}" + ("" if bound <= HALF else "  TOO MUCH, or no number"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
