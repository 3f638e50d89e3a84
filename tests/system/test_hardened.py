#!/usr/bin/env python3
"""Every program that a user runs is built so that a fault of memory ends it: what checksec looks at, and the compiler's flags."""
import json
import os
import re
import subprocess

from motley import BIN, SOURCE, expect, main, skip

BUILD = os.environ.get("MOTLEY_BUILD") or os.path.join(SOURCE, "build")
PROGRAMS = ("motley", "motley-agent", "motley-api", "motley-parse", "motley-scheduler", "motley-signer", "motley-supervisor",
            "motley-worker")


def read(program, *what):
    return subprocess.run(["readelf", "-W", *what, os.path.join(BIN, program)], capture_output=True, text=True, timeout=60, check=True,
                          env={**os.environ, "LC_ALL": "C"}).stdout


def programs_are_linked_hard():
    for program in PROGRAMS:
        text = read(program, "-h", "-l", "-d", "--dyn-syms")
        stack = re.search(r"GNU_STACK .* (R\S*) +0x", text)
        expect(re.search(r"Type: +DYN", text), f"{program} is at a fixed address (no PIE)")
        expect("GNU_RELRO" in text and "BIND_NOW" in text, f"{program}: its table of functions stays writable (no -z relro,now)")
        expect(stack and "E" not in stack.group(1), f"{program} has a stack that can be executed")
        expect("TEXTREL" not in text and "RPATH" not in text and "RUNPATH" not in text, f"{program} changes its code or names folders of libraries")
        expect("__stack_chk_fail" in text, f"{program} has no guards on its stacks")
        expect(re.search(r" __\w+_chk\b(?!_fail)", text), f"{program} has no checked copies (_FORTIFY_SOURCE)")
        segments = [line.split() for line in text.splitlines() if line.strip().startswith("LOAD")]
        expect(segments and not any("W" in "".join(words[6:-1]) and "E" in "".join(words[6:-1]) for words in segments),
               f"{program} has memory that is written and executed")


def rooms_are_compiled_hard():
    with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as handle:
        cache = handle.read()
    wanted = ["-fstack-protector-strong", "-D_FORTIFY_SOURCE=3"]
    wanted += [flag for flag in ("-fstack-clash-protection", "-fcf-protection") if f"HAS{flag.replace('-', '_')}:INTERNAL=1" in cache]
    expect(len(wanted) > 2, "the compiler has neither -fstack-clash-protection nor -fcf-protection")
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as handle:
        commands = json.load(handle)
    counted = 0
    for entry in commands:
        if entry["file"].startswith(SOURCE + "/") and not entry["file"].startswith((SOURCE + "/tests/", BUILD + "/")):
            counted += 1
            missing = [flag for flag in wanted if flag not in entry["command"]]
            expect(not missing, f"{entry['file']} is compiled without {missing}")
    expect(counted > 100, f"{counted} files")
    return f"{counted} files"


with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as cached:
    if re.search(r"^(MOTLEY_SANITIZE:STRING=.|CMAKE_BUILD_TYPE:STRING=Debug)", cached.read(), re.M):
        skip("a build for sanitizers or a debugger is not hardened")
main(programs_are_linked_hard, rooms_are_compiled_hard)
