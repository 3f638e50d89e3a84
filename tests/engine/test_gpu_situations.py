#!/usr/bin/env python3
"""Every situation in engine/gpu/README.md is tested: the test that its row names is there, and is run."""
import os
import re
import sys

SOURCE = os.environ["MOTLEY_SOURCE"]

with open(os.path.join(SOURCE, "engine", "gpu", "README.md"), encoding="utf-8") as handle:
    table = re.search(r"^\|[^\n]*\n\|---[^\n]*\n((?:\|[^\n]*\n)+)", handle.read().split("## Situations")[1], re.MULTILINE).group(1).splitlines()
rows = [re.search(r"\| `(\w+)/(\w+): (\w+)` \|$", line) or sys.exit(f"FAILED: no test stands in: {line}") for line in table]
rows = [row.groups() for row in rows]
for room, name, claim in rows:
    with open(os.path.join(SOURCE, "tests", room, f"test_{name}.c"), encoding="utf-8") as handle:
        if f"cmocka_unit_test({claim})" not in handle.read():
            sys.exit(f"FAILED: {room}/{name} has no test {claim}")
print(f"{len(rows)} situations")
