#!/usr/bin/env python3
"""Every command of the pages for users (docs/README.md names them) is run, in order, in a fresh home whose path is long and has spaces.

A block ```sh is run, ```sh fails must end with a status that is not 0; a block ```file NAME is written as that file; a block ```sh not-run is not run, and the comment in its
first line must say why (it is printed). No other block may look like commands. ```sh on-second and ```file NAME on-second are the second machine's, another network namespace with
a folder of its own: its command stays in the foreground until the next one there, or the page's end. Without namespaces that page alone is skipped.
"""
import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time

from motley import BIN, SOURCE, Failed, expect, main, poll
from hub import Hub, Repository
from made_model import write_llama
from machines import ADDRESSES, Machines, unavailable

DOCS = os.path.join(SOURCE, "docs")
FOLDERS = ("start", "how-to", "run-a-lab")
DATA = os.path.join(SOURCE, "tests", "data")
TWO_MACHINES = "start/a-second-machine.md"
CHATML = os.path.join(DATA, "chat", "chatml.jinja")


def pages():
    """The pages in the order of the index."""
    with open(os.path.join(DOCS, "README.md"), encoding="utf-8") as handle:
        named = re.findall(rf"\]\(((?:{'|'.join(FOLDERS)})/[A-Za-z-]+\.md)\)", handle.read())
    pages_there = sorted(f"{folder}/{name}" for folder in FOLDERS for name in os.listdir(os.path.join(DOCS, folder)))
    expect(sorted(named) == pages_there, f"the index names {sorted(named)}, there are {pages_there}")
    return named


def blocks(page):
    """(kind, text) of each fenced block."""
    with open(os.path.join(DOCS, page), encoding="utf-8") as handle:
        return re.findall(r"^```([^\n]*)\n(.*?)^```$", handle.read(), re.M | re.S)


def make_model(folder):
    """A Llama of two layers with random weights, a tokenizer and a chat template, in the place of the guide's model."""
    write_llama(folder, layers=2, tied=True, bos_token_id=None, eos_token_id=2)
    shutil.copy(os.path.join(DATA, "tokenizer", "smollm.json"), os.path.join(folder, "tokenizer.json"))
    with open(CHATML, encoding="utf-8") as handle:
        template = handle.read()
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as handle:
        json.dump({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": template,
                   "tokenizer_class": "PreTrainedTokenizerFast"}, handle)


class Reader:
    """Somebody who types what the guide says, in one folder."""

    def __init__(self, hub, machines):
        self.machines, self.agent = machines, None
        self.base = tempfile.mkdtemp(prefix="motley-guide-")
        os.chmod(self.base, 0o755)
        self.work = os.path.join(self.base, "a student's folder", "w" * 80)
        os.makedirs(self.work)
        self.env = dict(os.environ, PATH=f"{BIN}:{os.environ['PATH']}", MOTLEY_HOME=os.path.join(self.work, "my home"),
                        HF_ENDPOINT=hub.url, HF_HOME=os.path.join(self.base, "hf"))
        self.second = os.path.join(self.base, "second")
        os.makedirs(self.second)
        made = os.path.join(self.base, "made")
        make_model(made)
        files = {}
        for name in os.listdir(made):
            with open(os.path.join(made, name), "rb") as handle:
                files[name] = handle.read()
        hub.repositories["HuggingFaceTB/SmolLM2-135M-Instruct"] = Repository(files)

    def type(self, page, text, fails=False):
        on = self.machines.on(0) if self.machines else []
        done = subprocess.run([*on, "timeout", "120", "bash", "-euo", "pipefail", "-c", text], cwd=self.work, env=self.env, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        expect((done.returncode != 0) == fails, f"{page}: {text}\nstatus {done.returncode}: {done.stdout[-3000:]}{self.second_log()}")
        for said in done.stdout.split("\nmeasured\n")[1:]:
            measured = re.findall(r"^  (\S+) +\d+ tokens/s per layer", said, re.M)
            expect(len(set(measured)) == len(measured), f"{page}: {text}: a device is measured twice: {measured}")
        return done.stdout

    def second_log(self):
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self.base, "agent.log"), encoding="utf-8") as handle:
            return "\nthe second machine: " + handle.read()[-2000:]
        return ""

    def type_on_second(self, page, text):
        """Types one command on the second machine, where it stays in the foreground, until the node has been heard."""
        self.leave_second()
        token = os.path.join(self.work, "token")
        if os.path.exists(token):
            shutil.move(token, self.second)
        env = {key: value for key, value in self.env.items() if key != "MOTLEY_HOME" and not key.startswith("HF_")}
        with open(os.path.join(self.base, "agent.log"), "a", encoding="utf-8") as log:
            self.agent = subprocess.Popen([*self.machines.on(1), "bash", "-euc", "exec " + text], cwd=self.second, env={**env, "HOME": self.second},
                                          stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not re.search(r"^second +alive", self.type(page, "motley nodes"), re.M):
            expect(self.agent.poll() is None and time.monotonic() < deadline, f"{page}: {text}: it does not come:{self.second_log()}")
            poll()
        return self.second_log()

    def leave_second(self):
        if self.agent:
            self.agent.terminate()
            self.agent.wait(30)
            self.agent = None

    def follow(self, page):
        ran = 0
        for kind, text in blocks(page):
            if kind in ("sh", "sh fails", "sh on-second"):
                output = self.type_on_second(page, text) if kind == "sh on-second" else self.type(page, text, kind == "sh fails")
                if os.environ.get("MOTLEY_GUIDE_SHOW"):
                    print(f"$ {text}{output}")
                ran += 1
            elif kind.startswith("file "):
                name, _, where = kind[5:].partition(" ")
                with open(os.path.join(self.second if where == "on-second" else self.work, name), "w", encoding="utf-8") as handle:
                    handle.write(text)
            elif kind == "sh not-run":
                expect(text.startswith("# not run by the test: "), f"{page}: a block that is not run has no reason:\n{text}")
                print(f"not run ({page}): {text.splitlines()[0][23:]}")
            else:
                expect(kind in ("text", "python", "json", "yaml"), f"{page}: a block of unknown kind \"{kind}\"")
                expect(not re.search(r"^(motley|make|\$) ", text, re.M), f"{page}: commands in a block that is not sh:\n{text}")
        self.leave_second()
        return ran


def the_guides_commands_work_as_they_stand():
    why = unavailable()
    with contextlib.ExitStack() as stack:
        machines = None if why else stack.enter_context(Machines({"first.lab": ADDRESSES[0]}))
        return follow_all(Reader(stack.enter_context(Hub()), machines), why)


def follow_all(reader, why):
    try:
        if why:
            print(f"SKIP of {TWO_MACHINES}: {why}")
        ran = {page: reader.follow(page) for page in pages() if not why or page != TWO_MACHINES}
    finally:
        reader.leave_second()
        subprocess.run([os.path.join(BIN, "motley"), "down"], env=reader.env, cwd=reader.work, timeout=60, check=False,
                       stdout=subprocess.DEVNULL)
        shutil.rmtree(reader.base, ignore_errors=True)
    if sum(ran.values()) < 15:
        raise Failed(f"only {ran} blocks were found")
    return f"{sum(ran.values())} blocks run: {ran}"


if __name__ == "__main__":
    main(the_guides_commands_work_as_they_stand)
