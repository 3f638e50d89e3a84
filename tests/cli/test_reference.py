#!/usr/bin/env python3
"""Tests the reference and the man pages: they say what the programs say, and `man` takes them as they are."""
import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from claims import BIN, SOURCE, expect, main  # noqa: E402

MAN = os.path.join(SOURCE, "docs", "man")


def text(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as handle:
        return handle.read()


def the_reference_is_what_the_programs_say():
    tool = [sys.executable, os.path.join(SOURCE, "tools", "reference.py"), "--check", BIN]
    done = subprocess.run(tool, capture_output=True, text=True, check=False, timeout=100)
    expect(done.returncode == 0, f"make reference writes anew:\n{done.stdout}{done.stderr}")


def every_key_of_a_job_is_in_the_example_and_in_the_table():
    schema = json.loads(subprocess.run([os.path.join(BIN, "motley"), "--schema"], capture_output=True, text=True, check=True).stdout)
    example = text("docs", "INTERFACES.md").split("\n## A job's specification")[1].split("```yaml\n")[1].split("```")[0]
    parts = {"": schema} | {key + ".": value for key, value in schema["properties"].items() if "properties" in value}
    keys = [path + key for path, part in parts.items() for key in part["properties"]]
    table = set(re.findall(r"^\| `([\w.]+)` \|", text("docs", "reference", "job.md"), re.M))
    expect(set(keys) <= table, f"not in docs/reference/job.md: {sorted(set(keys) - table)}")
    lacking = [key for key in keys if not re.search(rf"\b{key.rsplit('.', 1)[-1]}\b", example)]
    expect(not lacking, f"not in the example of INTERFACES.md: {lacking}")
    return f"{len(keys)} keys"


def every_code_of_a_problem_and_every_exit_status_is_listed():
    listed = text("docs", "INTERFACES.md")
    codes = set(re.findall(r'\{ERR_\w+, "([a-z-]+)"', text("common", "err.c").split("code_table[] =")[1].split("};")[0]))
    told = set(re.findall(r"^\| `([a-z-]+)` \| [0-9, ]+ \|", listed, re.M))
    inside = {"none", "device-lost", "device-fault", "node-fault"}  # between our own processes, never an answer of the api
    codes.add("too-many")  # of the HTTP server, before anybody asks a handler
    expect(told == codes - inside, f"only in INTERFACES.md: {sorted(told - codes)}, only in common/err.c: {sorted(codes - told - inside)}")
    statuses = set(re.findall(r"^    CLI_[A-Z_]+ = (\d)", text("cli", "cli.h"), re.M))
    table = set(re.findall(r"^\| (\d) \|", listed, re.M))
    expect(len(statuses) == 9 and statuses == table, f"exit statuses {sorted(statuses)}, listed {sorted(table)}")
    return f"{len(told)} codes"


def what_comes_is_not_there_yet():
    names = set(re.findall(r"`([^`]+)`", text("docs", "ROADMAP.md").split("**Comes**")[1].split("\n", 1)[1]))
    there = {f"motley {name}" for name in re.findall(r"^### (\S+)", text("docs", "reference", "commands.md"), re.M)}
    there |= set(re.findall(r"^\| `([\w.]+)` \|", text("docs", "reference", "job.md"), re.M))
    there |= set(re.findall(r"^\| `(\w+)` \|", text("docs", "FAMILIES.md"), re.M))
    there |= set(re.findall(r"^  (/v1/[\w/]+)", text("api", "openapi.yaml"), re.M))
    expect(len(names) >= 5 and {"motley plan", "train.steps", "qwen3", "/v1/jobs"} <= there, f"{len(names)} names; {sorted(there)[:20]}")
    expect(not names & there, f"docs/ROADMAP.md says that these come: {sorted(names & there)}")
    return f"{len(names)} names"


def man_takes_every_page():
    pages = sorted(os.listdir(MAN))
    lint = shutil.which("mandoc")
    for page in pages:
        path = os.path.join(MAN, page)
        words = [lint, "-Tlint", "-Wwarning", path] if lint else ["man", "--warnings=w", "-l", path]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, env=dict(os.environ, MANPAGER="cat"))
        said = done.stderr + (done.stdout if lint else "")
        expect(done.returncode == 0 and not said.strip(), f"{page}: {said}")
        expect(lint or len(done.stdout) > 500, f"{page} is empty: {done.stdout}")
    shown = subprocess.run([*((lint,) if lint else ("man", "-l")), os.path.join(MAN, "motley.1")], capture_output=True, text=True, check=True,
                           env=dict(os.environ, MANPAGER="cat")).stdout
    shown = " ".join(re.sub(".\b", "", shown).replace("‐\n", "").split())
    expect("motley run SPEC" in shown and "--steps-left N" in shown and "no placement fits" in shown, shown[:2000])
    return f"{len(pages)} pages by {'mandoc' if lint else 'man'}"


if __name__ == "__main__":
    main(the_reference_is_what_the_programs_say, every_key_of_a_job_is_in_the_example_and_in_the_table,
         every_code_of_a_problem_and_every_exit_status_is_listed, what_comes_is_not_there_yet, man_takes_every_page)
