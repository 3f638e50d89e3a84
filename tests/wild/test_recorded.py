#!/usr/bin/env python3
"""Recorded cases (tests/data/wild/*.jsonl): Motley's answers beside the values that the libraries gave."""
import collections
import os
import sys
import tempfile

import cases
import templates

VARIABLES = {"standard": templates.VARIABLES}


def main():
    answerer = cases.Answerer(os.path.join(os.environ["MOTLEY_BIN"], "wild_answer"))
    counts, wrong = collections.Counter(), 0
    with tempfile.TemporaryDirectory() as scratch:
        for path in sorted((cases.DATA / "wild").glob("*.jsonl")):
            for case in cases.read(path, VARIABLES):
                counts[path.name] += 1
                with cases.Built(case, scratch) as built:
                    for question, expected in zip(built.questions(), case["expected"]):
                        ours = answerer.ask(question)
                        what = cases.outcome(ours, expected, case["keys"])
                        if what:
                            wrong += 1
                            print(f"{path.name}: {case['name']}: {what}: Motley {str(ours)[:400]}, right {str(expected)[:400]}")
    answerer.close()
    print(", ".join(f"{name}: {count} cases" for name, count in counts.items()))
    if sum(counts.values()) < 200:
        print("fewer than 200 cases are recorded")
        wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
