#!/usr/bin/env python3
"""Our declarations of the GPU vendors' libraries equal those of the vendors' headers: some releases always, all of them in
`make emulated-check`. Headers are fetched; without a network the test is skipped."""
import os
import sys

TOOL = os.path.join(os.environ["MOTLEY_SOURCE"], "tools/vendor_headers.py")

if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, TOOL, *(["--all"] if os.environ.get("MOTLEY_EMULATED_CHECK") else [])])
