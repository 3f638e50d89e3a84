#!/usr/bin/env python3
"""The demo tells what it does: no 20 seconds without a line, and MOTLEY_DEMO_STEPS shortens it."""
import json
import os
import re
import subprocess
import tempfile
import time
import urllib.request

from motley import BIN, SLOW, SOURCE, expect, main, skip

MODEL = os.path.join(SOURCE, ".cache", "SmolLM2-135M-Instruct.Q4_1.gguf")
QUIET_SECONDS_MAX = 20


def check_python(text):
    """The Python that it prints loads the adapter onto the base that it was trained on."""
    lines = re.findall(r"^  ((?:from|base =|model =) .*)$", text, re.M)
    base = re.search(r'from_pretrained\("(.*)", gguf_file="(.*)"\)', lines[2])
    adapter = re.search(r'from_pretrained\(base, "(.*)"\)', lines[3])
    with open(os.path.join(adapter[1], "adapter_config.json"), encoding="utf-8") as handle:
        trained_on = json.load(handle)["base_model_name_or_path"]
    expect(os.path.exists(os.path.join(base[1], base[2])) and trained_on.startswith(base[1]), f"{lines}, trained on {trained_on}")
    python = os.environ.get("MOTLEY_TORCH_PYTHON")
    if python:
        done = subprocess.run([python, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=600, check=False)
        expect(done.returncode == 0, f"{lines}: {done.stderr[-2000:]}")


def no_twenty_seconds_pass_without_a_line():
    with tempfile.TemporaryDirectory(prefix="motley-demo-") as folder:
        os.chmod(folder, 0o755)
        env = dict(os.environ, MOTLEY_DEMO=os.path.join(folder, "demo"), MOTLEY_DEMO_STEPS="1", MOTLEY_DEMO_BIN=BIN, MOTLEY_DEMO_STAY="1")
        began = last = time.monotonic()
        longest, after, text = 0.0, "", ""
        with subprocess.Popen([os.path.join(SOURCE, "tools", "demo.sh")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=env) as demo:
            for line in demo.stdout:
                now = time.monotonic()
                if now - last > longest:
                    longest, after = now - last, text[-200:]
                last = now
                text += line
        expect(demo.returncode == 0, f"status {demo.returncode}: {text[-1500:]}")
        home = os.path.join(folder, "demo", "home")
        try:
            address = re.search(r"^(http://\S+)/#code=[0-9a-f]{40}$", text[text.index("it stays up"):], re.M)
            with urllib.request.urlopen(address.group(1) + "/jobs/1", timeout=30) as page:
                expect(page.status == 200 and "text/html" in page.headers["content-type"], page.headers)
        finally:
            subprocess.run([os.path.join(BIN, "motley"), "down", "--home", home], timeout=60, check=True, capture_output=True)
        expect("step    1/1" in text and "demo/out/adapter" in text, f"no step or no adapter: {text[-1500:]}")
        expect("base: SmolLM2-135M-Instruct as a Q4_1 GGUF file" in text and "limit: 450 MiB a device, which is artificial" in text, text[:1500])
        check_python(text)
        expect(longest <= QUIET_SECONDS_MAX * SLOW, f"{longest:.1f} s without a line after: {after}")
        return f"{len(text.splitlines())} lines in {last - began:.0f} s, the longest pause {longest:.1f} s"


if __name__ == "__main__":
    if not os.path.exists(MODEL):
        skip("the model of the demo is not there (make demo fetches it)")
    main(no_twenty_seconds_pass_without_a_line)
