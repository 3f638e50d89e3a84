#!/usr/bin/env python3
"""The commands of the user's guide (docs/guide) do what it says.

Every block ```sh is run, in the order of the guide, in one folder and one home, by `bash -e`; ```sh fails must end with
a status other than 0; ```sh not run: REASON is passed over, and the reason is printed. A block of any other kind that
looks like a shell's is an error, so that none is passed over by mistake.
"""
import os
import re
import shutil
import subprocess
import tempfile

from motley import BIN, SOURCE, Failed, expect, main

PAGES = ["first-job.md", "your-own-data.md", "qlora-on-what-you-have.md", "a-second-machine.md", "reading-a-plan.md",
         "when-it-fails.md"]
MODEL = os.path.join(SOURCE, "tests", "data", "wild", "chat")
BLOCK_S = 120


def blocks(page):
    """(line, kind, text) of each fenced block of a page."""
    with open(os.path.join(SOURCE, "docs", "guide", page), encoding="utf-8") as handle:
        text = handle.read()
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.M | re.S):
        yield text.count("\n", 0, match.start()) + 1, match.group(1), match.group(2)


def run_block(where, text, folder, environment):
    done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", text], cwd=folder, env=environment, timeout=BLOCK_S,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, f"{where}: status {done.returncode}\n{done.stdout.decode(errors='replace')[-2000:]}"


def the_guides_commands_do_what_it_says():
    base = tempfile.mkdtemp(prefix="motley-guide-")
    environment = dict(os.environ, PATH=f"{BIN}:{os.environ['PATH']}", MOTLEY_HOME=os.path.join(base, "home"), MODEL=MODEL)
    counts = {"run": 0, "fails": 0, "not run": 0}
    try:
        for page in PAGES:
            for line, kind, text in blocks(page):
                where = f"docs/guide/{page}:{line}"
                if kind.startswith("sh not run: "):
                    print(f"  not run, {where}: {kind[12:]}")
                    counts["not run"] += 1
                elif kind in ("sh", "sh fails"):
                    status, said = run_block(where, text, base, environment)
                    expect((status != 0) == (kind == "sh fails"), said)
                    counts["fails" if kind == "sh fails" else "run"] += 1
                elif kind not in ("", "python"):
                    raise Failed(f"{where}: a block of kind \"{kind}\"")
        expect(counts["run"] >= 15 and counts["fails"] >= 2, f"blocks are missing: {counts}")
        for name in ("result/adapter/adapter_model.safetensors", "qlora-result/adapter/adapter_config.json",
                     "again/adapter/adapter_model.safetensors"):
            expect(os.path.exists(os.path.join(base, name)), f"{name} is not there")
        return str(counts)
    finally:
        subprocess.run([os.path.join(BIN, "motley"), "down"], env=environment, timeout=60, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["pkill", "-f", os.path.join(base, "second")], check=False)
        shutil.rmtree(base, ignore_errors=True)


def every_page_is_in_the_guides_index_and_is_run():
    folder = os.path.join(SOURCE, "docs", "guide")
    with open(os.path.join(folder, "README.md"), encoding="utf-8") as handle:
        index = handle.read()
    pages = sorted(name for name in os.listdir(folder) if name != "README.md")
    expect(pages == sorted(PAGES), f"pages {pages}")
    for page in pages:
        expect(f"({page})" in index, f"{page} is not in the index")


if __name__ == "__main__":
    main(the_guides_commands_do_what_it_says, every_page_is_in_the_guides_index_and_is_run)
