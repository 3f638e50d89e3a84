#!/usr/bin/env python3
"""Every situation in engine/gpu/README.md is tested: the test that its row names is there, and is run."""
import os
import re
import sys

SOURCE = os.environ["MOTLEY_SOURCE"]
LEAST = 32

with open(os.path.join(SOURCE, "engine", "gpu", "README.md"), encoding="utf-8") as handle:
    rows = re.findall(r"^\|.*\| `(\w+)/(\w+): (\w+)` \|$", handle.read(), re.MULTILINE)
if len(rows) < LEAST:
    sys.exit(f"FAILED: {len(rows)} situations, at least {LEAST}")
for room, name, claim in rows:
    with open(os.path.join(SOURCE, "tests", room, f"test_{name}.c"), encoding="utf-8") as handle:
        if f"cmocka_unit_test({claim})" not in handle.read():
            sys.exit(f"FAILED: {room}/{name} has no test {claim}")
print(f"{len(rows)} situations")
