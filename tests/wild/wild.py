#!/usr/bin/env python3
"""Look for the third outcome: cases made by mutation, answered by Motley (wild_answer) and by the libraries.

    wild.py [--cases N] [--seed S] [--kinds a,b] [--out DIR] [--jobs N]   look; findings shrunk into DIR
    wild.py --record FILE --cases N …                                     write cases with the libraries' values

Exit status 1 when there is a finding. README.md says which outcomes are allowed.
"""
import argparse
import collections
import copy
import json
import multiprocessing
import os
import pathlib
import random
import re
import sys
import tempfile
import time

import adapters
import cases
import configs
import rows
import templates
import tokens

MAKERS = {"tokenizers": (tokens.make, 40), "templates": (templates.make, 25), "rows": (rows.make, 15),
          "configs": (configs.make, 15), "adapters": (adapters.make, 5)}  # parts of a hundred
SHRINK_TRIES = 150


class Looker:
    def __init__(self, program):
        import oracle
        self.oracle, self.answerer = oracle.Oracle(), cases.Answerer(program)
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.scratch = tempfile.TemporaryDirectory(dir=memory, prefix="wild-")

    def look(self, case):
        """[(wrong, question, ours, theirs)] of the first wrong answer, and all expected values."""
        expected = []
        self.oracle.forget()
        with cases.Built(case, self.scratch.name) as built:
            for index, question in enumerate(built.questions()):
                theirs = self.oracle.answer(question)
                ours = self.answerer.ask(question)
                expected.append(theirs)
                wrong = cases.outcome(ours, theirs, case["keys"])
                if wrong:
                    return (wrong, index, ours, theirs), expected
        return None, expected


def smaller(value):
    """Ways to make a JSON value one step smaller."""
    if isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k != key}
        for key, inner in value.items():
            for less in smaller(inner):
                yield value | {key: less}
    elif isinstance(value, list):
        if len(value) > 3:
            yield value[:len(value) // 2]
            yield value[len(value) // 2:]
        for index in range(len(value)):
            yield value[:index] + value[index + 1:]
        for index, inner in enumerate(value):
            for less in smaller(inner):
                yield value[:index] + [less] + value[index + 1:]
    elif isinstance(value, str) and len(value) > 1:
        yield value[:len(value) // 2]
        yield value[len(value) // 2:]
        if len(value) <= 40:
            for index in range(len(value)):
                yield value[:index] + value[index + 1:]


def variants(case):
    for question in case["ask"]:
        for key in ("text", "template", "rows", "ids"):
            if key in question:
                for less in smaller(question[key]):
                    if key != "ids" or question["do"] == "decode":
                        yield case | {"ask": [question | {key: less}]}
    for name, content in case["files"].items():
        if isinstance(content, dict) and case["kind"] in ("tokenizers", "rows"):
            for less in smaller({k: v for k, v in content.items() if k != "model"}):
                yield case | {"files": case["files"] | {name: less | {k: v for k, v in content.items() if k == "model"}}}


def shrink(looker, case, finding):
    case = case | {"ask": [case["ask"][finding[1]]]}
    tries, again = 0, True
    while again and tries < SHRINK_TRIES:
        again = False
        for less in variants(case):
            tries += 1
            found, _ = looker.look(less)
            if found and found[0] == finding[0] and kind_of(found[3]) == kind_of(finding[3]) and \
                    kind_of(found[2]) == kind_of(finding[2]):
                case, finding, again = less, found, True
                break
            if tries >= SHRINK_TRIES:
                break
    return case, finding


def what_of(expected):
    return "the library's panic" if any("panic" in e for e in expected) else \
        "refused by the library, too" if any("refused" in e for e in expected) else "equal, or refused by name"


def kind_of(answer):
    """An answer without what differs from case to case: findings of one kind are one."""
    text = answer.get("refused") or answer.get("crash") or answer.get("error", {}).get("text") or ""
    return re.sub(r"\"[^\"]*\"|'[^']*'|/\S+|[\d.]+", "_", text)[:70]


def share(arguments):
    """One process's part: findings, and recorded cases if they are asked for."""
    options, part = arguments
    looker = Looker(options.program)
    found, recorded, counts = {}, [], collections.Counter()
    for kind, count in shares(options).items():
        for number in range(part, count, options.jobs):
            case = MAKERS[kind][0](random.Random(f"{options.seed} {kind} {number}"))
            finding, expected = looker.look(copy.deepcopy(case))
            counts[kind, finding[0] if finding else what_of(expected)] += 1
            if finding is None:
                if options.record and not any("panic" in e for e in expected):
                    expected = [{"refused": True} if "refused" in e else e for e in expected]
                    recorded.append(case | {"name": f"{kind} {options.seed} {number}", "expected": expected})
                continue
            name = (kind, finding[0], kind_of(finding[2]), kind_of(finding[3]),
                    "" if kind_of(finding[2]) or kind_of(finding[3]) else str(case["ask"][finding[1]]["do"]))
            found.setdefault(name, []).append((number, case, finding))
    result = []
    for name, group in found.items():
        number, case, finding = group[0]
        if not options.no_shrink:
            case, finding = shrink(looker, case, finding)
        result.append((name, len(group), number, case, finding))
    return result, recorded, counts


def shares(options):
    kinds = options.kinds.split(",") if options.kinds else list(MAKERS)
    whole = sum(MAKERS[kind][1] for kind in kinds)
    return {kind: max(1, options.cases * MAKERS[kind][1] // whole) for kind in kinds}


def tell(findings, options):
    """The findings of all processes, those of one name together, each with its smallest case in a file."""
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.json"):
        old.unlink()
    together = {}
    for name, count, number, case, finding in findings:
        kept = together.get(name)
        if kept is None or len(json.dumps(case)) < len(json.dumps(kept[1])):
            together[name] = (number, case, finding, (kept[3] if kept else 0) + count)
        else:
            together[name] = (*kept[:3], kept[3] + count)
    for index, (name, (number, case, finding, count)) in enumerate(sorted(together.items(), key=lambda item: -item[1][3])):
        wrong, _, ours, theirs = finding
        path = out / f"{index:03}-{name[0]}.json"
        path.write_text(json.dumps({"wrong": wrong, "ours": ours, "theirs": theirs, "number": number, "case": case},
                                   ensure_ascii=False, indent=1))
        print(f"{count:5} {name[0]} {number}: {wrong}\n      ours   {short(ours)}\n      theirs {short(theirs)}\n      {path}")
    return len(together)


def short(answer):
    return json.dumps(answer, ensure_ascii=False)[:230]


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=int(os.environ.get("WILD_CASES", 10000)))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("WILD_SEED", 1)))
    parser.add_argument("--kinds", default=os.environ.get("WILD_KINDS", ""))
    parser.add_argument("--program", default=str(here.parents[1] / "build/bin/wild_answer"))
    parser.add_argument("--out", default=str(here.parents[1] / "build/wild"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--record")
    parser.add_argument("--no-shrink", action="store_true")
    options = parser.parse_args()
    begun = time.monotonic()
    print(f"wild: {options.cases} cases, seed {options.seed}, kinds {', '.join(shares(options))}", flush=True)
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        parts = pool.map(share, [(options, part) for part in range(options.jobs)], chunksize=1)
    count = tell([finding for part in parts for finding in part[0]], options)
    counts = sum((part[2] for part in parts), collections.Counter())
    for (kind, what), number in sorted(counts.items()):
        print(f"{kind:12}{what:34}{number:7}")
    if options.record:
        recorded = sorted((case for part in parts for case in part[1]), key=lambda case: case["name"])
        for case in recorded:
            for question in case["ask"]:
                if question.get("variables") == templates.VARIABLES:
                    question["variables"] = "standard"
        pathlib.Path(options.record).write_text("".join(json.dumps(case, ensure_ascii=False) + "\n" for case in recorded))
    print(f"wild: {sum(counts.values())} cases in {time.monotonic() - begun:.0f} s, {count} findings")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
