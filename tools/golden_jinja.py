#!/usr/bin/env python3
"""tests/data/chat/expressions.json: templates at random, from the grammar of tests/wild/templates.py, with what jinja2
makes of them in the environment that transformers sets up for chat templates (null: it refuses).

Run with a Python that has transformers 5.24 and jinja2 3.1.6. More of them are compared by `make wild`.
"""
import copy
import json
import os
import random
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "wild"))
import templates  # noqa: E402
from transformers.utils.chat_template_utils import _compile_jinja_template  # noqa: E402

OUT = os.path.join(ROOT, "tests/data/chat/expressions.json")
CASES, REFUSED_MAX, BYTES_MAX = 1000, 150, 400
ADDRESS = " at 0x"  # in the text of what has no other: it differs from run to run


def wanted(template):
    try:
        return _compile_jinja_template(template).render(**copy.deepcopy(templates.VARIABLES))  # `indent` may change a list
    except Exception:
        return None


def main():
    rows, refused, draw = {}, 0, random.Random(1)
    while len(rows) < CASES:
        template = templates.grammar(draw)
        text = wanted(template)
        if template in rows or len(template) > BYTES_MAX or ADDRESS in str(text) or len(str(text)) > 2 * BYTES_MAX:
            continue
        refused += text is None
        if text is not None or refused <= REFUSED_MAX:
            rows[template] = text
    with open(OUT, "w") as file:
        file.write('{"variables": ' + json.dumps(templates.VARIABLES, ensure_ascii=False) + ',\n "cases": [\n' +
                   ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows.items()) + "]}\n")
    print(f"{len(rows)} templates, {sum(text is None for text in rows.values())} refused by jinja2")


if __name__ == "__main__":
    main()
