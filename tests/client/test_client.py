#!/usr/bin/env python3
"""The Python client, installed from its wheel into a virtual environment, against a live service: live.py has the claims.

What it needs from PyPI lies in .cache/client (tools/pypi_packages.sh); a visible skip without it."""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from motley import GOLDEN, SLOW, SOURCE, Motley, expect, golden_spec, skip, tokens_rows, two_unlike  # noqa: E402
from hub import Hub, Repository  # noqa: E402

PACKAGES = os.path.join(SOURCE, ".cache", "client")
HERE = os.path.dirname(os.path.abspath(__file__))


def install(folder):
    """A virtual environment with the wheel, beside what it depends on. Its Python."""
    done = subprocess.run([os.path.join(SOURCE, "tools", "wheel.sh"), folder], capture_output=True, text=True, timeout=120 * SLOW, check=False)
    expect(done.returncode == 0, done.stderr[-2000:])
    wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
    expect(len(wheels) == 1, f"tools/wheel.sh left {wheels}")
    venv = os.path.join(folder, "venv")
    python = os.path.join(venv, "bin", "python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60 * SLOW)
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps",
                    "--disable-pip-version-check", os.path.join(folder, wheels[0])], check=True, timeout=120 * SLOW)
    site = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True,
                          timeout=60).stdout.strip()
    with open(os.path.join(site, "depends.pth"), "w", encoding="utf-8") as handle:
        handle.write(PACKAGES + "\n")
    return python


def given(motley, folder):
    """A job of the tiny Llama, by its files' names, that makes a few hundred events."""
    model = os.path.join(GOLDEN, "llama")
    with open(os.path.join(model, "expected.json"), encoding="utf-8") as handle:
        expected = json.load(handle)
    with open(os.path.join(folder, "rows.jsonl"), "w", encoding="utf-8") as handle:
        handle.writelines(json.dumps(row) + "\n" for row in tokens_rows(expected["batches"]) * 4)
    spec = golden_spec("from python", model, "rows.jsonl", 0.005, expected, 8, train={"steps": 40}, checkpoint={"every_steps": 20},
                       eval={"every_steps": 10}, placement={"kind": "pipeline", "move": "never"})
    spec["data"]["eval"] = "rows.jsonl"
    got = motley.path("got")
    return {"home": motley.home, "folder": folder, "spec": spec, "got": got}


def main():
    if not os.path.isdir(os.path.join(PACKAGES, "httpx")):
        skip("httpx is not in .cache/client: tools/pypi_packages.sh client fetches it")
    with Hub() as hub, tempfile.TemporaryDirectory(prefix="motley-hub-") as cache:
        os.environ.update(HF_ENDPOINT=hub.url, HF_HOME=cache)
        return ask(hub)


def ask(hub):
    with Motley(two_unlike()) as motley:
        folder = motley.path("python")
        os.mkdir(folder)
        python = install(folder)
        document = given(motley, folder)
        files = {}
        for name in ("config.json", "model.safetensors"):
            with open(os.path.join(GOLDEN, "llama", name), "rb") as handle:
                files[name] = handle.read()
        hub.repositories["Acme/Tiny-1"] = Repository(files)
        first = motley.submit(dict(document["spec"], data={**document["spec"]["data"], "train": os.path.join(folder, "rows.jsonl"),
                                                           "eval": os.path.join(folder, "rows.jsonl")}), wait=True)
        document["first"] = first["id"]
        motley.run("get", str(first["id"]), document["got"])
        done = subprocess.run([python, os.path.join(HERE, "live.py"), motley.write("given.json", document)], timeout=300 * SLOW, check=False,
                              cwd=folder, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
