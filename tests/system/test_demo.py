#!/usr/bin/env python3
"""The demo tells what it does: no 20 seconds without a line, and MOTLEY_DEMO_STEPS shortens it."""
import os
import re
import subprocess
import tempfile
import time
import urllib.request

from motley import BIN, SLOW, SOURCE, expect, main, skip

MODEL = os.path.join(SOURCE, ".cache", "SmolLM2-135M-Instruct.Q4_1.gguf")
QUIET_SECONDS_MAX = 20


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
        expect(longest <= QUIET_SECONDS_MAX * SLOW, f"{longest:.1f} s without a line after: {after}")
        return f"{len(text.splitlines())} lines in {last - began:.0f} s, the longest pause {longest:.1f} s"


if __name__ == "__main__":
    if not os.path.exists(MODEL):
        skip("the model of the demo is not there (make demo fetches it)")
    main(no_twenty_seconds_pass_without_a_line)
