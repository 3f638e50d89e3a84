#!/usr/bin/env python3
"""Put the table that the equality test wrote into docs/EQUALITY.md.   tools/equality.py TABLE.md"""
import re
import sys

PAGE = "docs/EQUALITY.md"
BEGIN, END = "<!-- made by make equality -->", "<!-- end -->"

with open(sys.argv[1], encoding="utf-8") as handle:
    table = handle.read()
with open(PAGE, encoding="utf-8") as handle:
    page = handle.read()
with open(PAGE, "w", encoding="utf-8") as handle:
    handle.write(re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{table}{END}", page, flags=re.S))
