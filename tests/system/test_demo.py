#!/usr/bin/env python3
"""The demo tells what it does: no 20 seconds without a line, and MOTLEY_DEMO_STEPS shortens it."""
import os
import subprocess
import tempfile
import time

from motley import BIN, SLOW, SOURCE, expect, main, skip

MODEL = os.path.join(SOURCE, ".cache", "SmolLM2-135M-Instruct.Q4_1.gguf")
QUIET_SECONDS_MAX = 20


def no_twenty_seconds_pass_without_a_line():
    with tempfile.TemporaryDirectory(prefix="motley-demo-") as folder:
        os.chmod(folder, 0o755)
        env = dict(os.environ, MOTLEY_DEMO=os.path.join(folder, "demo"), MOTLEY_DEMO_STEPS="1", MOTLEY_DEMO_BIN=BIN)
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
        expect("step    1/1" in text and "demo/out/adapter" in text, f"no step or no adapter: {text[-1500:]}")
        expect(longest <= QUIET_SECONDS_MAX * SLOW, f"{longest:.1f} s without a line after: {after}")
        return f"{len(text.splitlines())} lines in {last - began:.0f} s, the longest pause {longest:.1f} s"


if __name__ == "__main__":
    if not os.path.exists(MODEL):
        skip("the model of the demo is not there (make demo fetches it)")
    main(no_twenty_seconds_pass_without_a_line)
