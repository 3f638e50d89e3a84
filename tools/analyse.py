#!/usr/bin/env python3
"""clang's static analyser over every C file of the rooms and of the examples, as build/ was configured.

Prints one line a finding, `path:line: what`, and exits 1 if there is any; build/analyse/ROOM_FILE.txt has the way to it. Arguments are beginnings of paths: tools/analyse.py model/ api/http. ANALYSE_JOBS at a time (the cores).
"""
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys

import lint

CLANG = "clang-19"
SECONDS_MAX = 900
DEFINES = ("common/err.c", "common/json.c")  # what tools/analyse.h says more about
OUT = os.path.join(lint.ROOT, "build", "analyse")


def analyse(entry):
    """(path, findings) of one file, clang's own warnings among them (`make fuzz` compiles with it)."""
    path = os.path.relpath(entry["file"], lint.ROOT)
    words = [word.replace('\\"', '"') for word in entry["command"].split() if word.startswith(("-I", "-D", "-std", "-m", "-f", "-W"))
             and "FORTIFY" not in word and word != "-Werror"]
    isystem = re.findall(r"-isystem (\S+)", entry["command"])
    words += [word for folder in isystem for word in ("-isystem", folder)]
    words += [] if path in DEFINES else ["-include", os.path.join(lint.ROOT, "tools/analyse.h")]
    done = subprocess.run([CLANG, "--analyze", "--analyzer-output", "text", "-Qunused-arguments", *words, "-Wno-unused-value", entry["file"]],
                          cwd=entry["directory"], capture_output=True, text=True, timeout=SECONDS_MAX)
    found = [line for line in done.stderr.splitlines() if re.search(r": (warning|(?:fatal )?error): ", line)]
    if done.returncode and not found:
        found = [f"{entry['file']}: clang ended with {done.returncode}"]
    with open(os.path.join(OUT, path.replace("/", "_") + ".txt"), "w", encoding="utf-8") as file:
        file.write(done.stderr)  # empty: nothing was found
    return path, [re.sub(r":\d+: (warning|(?:fatal )?error): ", ": ", os.path.relpath(line, lint.ROOT)) for line in found]


def main():
    if not shutil.which(CLANG):
        sys.exit(f"analyse: {CLANG} is not installed")
    with open(os.path.join(lint.ROOT, "build", "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    rooms = tuple(sys.argv[1:]) or tuple(room + "/" for room in [*lint.MAY_INCLUDE, "examples"])
    entries = [entry for entry in entries if os.path.relpath(entry["file"], lint.ROOT).startswith(rooms)]
    os.makedirs(OUT, exist_ok=True)
    findings = set()
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("ANALYSE_JOBS", os.cpu_count() or 1))) as pool:
        for _, found in pool.map(analyse, entries):
            for line in sorted(set(found) - findings):
                print(line, flush=True)
            findings.update(found)
    print(f"{len(findings)} findings in {len(entries)} files")
    sys.exit(1 if findings or not entries else 0)


if __name__ == "__main__":
    main()
