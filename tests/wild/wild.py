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
import queue
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

HERE = pathlib.Path(__file__).resolve().parent
MAKERS = {"tokenizers": (tokens.make, 40), "templates": (templates.make, 25), "rows": (rows.make, 15),
          "configs": (configs.make, 15), "adapters": (adapters.make, 5)}  # parts of a hundred
SHRINK_TRIES, SHRINK_SECONDS = 150, 30
BLOCK = 20  # cases that a process takes at a time
TELL_SECONDS = 5


class Looker:
    """Both sides: Motley and the libraries, each in a process of its own, which is ended when it takes too long."""

    def __init__(self, program):
        self.oracle = cases.Answerer([sys.executable, str(HERE / "oracle.py")], 30)
        self.answerer = cases.Answerer(program)
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.scratch = tempfile.TemporaryDirectory(dir=memory, prefix="wild-")

    def look(self, case):
        """(the outcome of the whole case, [(wrong, question, ours, theirs)] of the first wrong answer, the expected values)."""
        expected, outcomes = [], []
        with cases.Built(case, self.scratch.name) as built:
            for index, question in enumerate(built.questions()):
                theirs = self.oracle.ask(question | {"fresh": index == 0})
                ours = self.answerer.ask(question)
                expected.append(theirs)
                wrong = cases.outcome(ours, theirs, case["keys"])
                if wrong:
                    return (wrong, index, ours, theirs), wrong, expected
                outcomes.append(cases.allowed(ours, theirs))
        return None, max(outcomes, key=cases.ALLOWED.index), expected

    def close(self):
        self.oracle.close()
        self.answerer.close()
        self.scratch.cleanup()


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
    tries, again, until = 0, True, time.monotonic() + SHRINK_SECONDS
    while again:
        again = False
        for less in variants(case):
            tries += 1
            if tries > SHRINK_TRIES or time.monotonic() > until:
                return case, finding
            found = looker.look(less)[0]
            if found and found[0] == finding[0] and kind_of(found[3]) == kind_of(finding[3]) and \
                    kind_of(found[2]) == kind_of(finding[2]):
                case, finding, again = less, found, True
                break
    return case, finding


def kind_of(answer):
    """An answer without what differs from case to case: findings of one kind are one."""
    text = answer.get("refused") or answer.get("crash") or answer.get("error", {}).get("text") or ""
    return re.sub(r"\"[^\"]*\"|'[^']*'|/\S+|[\d.]+", "_", text)[:70]


def name_of(kind, case, finding):
    """Findings of one name are one."""
    said = kind_of(finding[2]), kind_of(finding[3])
    return (kind, finding[0], *said, "" if any(said) else str(case["ask"][finding[1]]["do"]))


def work(options, blocks, results):
    """One process: blocks of cases, as long as there are any. The first finding of a name is shrunk."""
    looker, seen = Looker(options.program), set()
    while (block := blocks.get()) is not None:
        kind, numbers = block
        counts, found, recorded = collections.Counter(), [], []
        for number in numbers:
            case = MAKERS[kind][0](random.Random(f"{options.seed} {kind} {number}"))
            finding, outcome, expected = looker.look(copy.deepcopy(case))
            counts[kind, outcome] += 1
            if finding is not None:
                name = name_of(kind, case, finding)
                if name not in seen and not options.no_shrink:
                    case, finding = shrink(looker, case, finding)
                seen.add(name)
                found.append((name, number, case, finding))
            elif options.record and outcome != "the library fails":
                expected = [{"refused": True} if "refused" in e else {k: v for k, v in e.items() if k != "logits"}
                            for e in expected]  # logits are long, and the loss is made of them
                recorded.append(case | {"name": f"{kind} {options.seed} {number}", "expected": expected})
        results.put((counts, found, recorded))
    looker.close()
    results.put(None)


def run(options):
    """All cases, with a line about them every few seconds."""
    context = multiprocessing.get_context("spawn")
    blocks, results = context.Queue(), context.Queue()
    todo = [(kind, list(range(first, min(first + BLOCK, count)))) for kind, count in shares(options).items()
            for first in range(0, count, BLOCK)]
    random.Random(options.seed).shuffle(todo)
    for block in todo + [None] * options.jobs:
        blocks.put(block)
    workers = [context.Process(target=work, args=(options, blocks, results)) for _ in range(options.jobs)]
    for worker in workers:
        worker.start()
    counts, found, recorded, running, told, begun = collections.Counter(), [], [], options.jobs, 0.0, time.monotonic()
    while running:
        try:
            part = results.get(timeout=TELL_SECONDS)
        except queue.Empty:
            part = (collections.Counter(), [], [])
            if all(not worker.is_alive() for worker in workers):
                sys.exit("wild: a process ended before its cases did")
        if part is None:
            running -= 1
            continue
        counts, found, recorded = counts + part[0], found + part[1], recorded + part[2]
        if time.monotonic() - told > TELL_SECONDS:
            told = time.monotonic()
            print(f"wild: {sum(counts.values())} of {options.cases} cases, {len(found)} of another outcome, "
                  f"{told - begun:.0f} s", flush=True)
    for worker in workers:
        worker.join()
    return counts, found, recorded


def shares(options):
    kinds = options.kinds.split(",") if options.kinds else list(MAKERS)
    whole = sum(MAKERS[kind][1] for kind in kinds)
    return {kind: max(1, options.cases * MAKERS[kind][1] // whole) for kind in kinds}


def tell(findings, options):
    """The findings, those of one name together, each with its smallest case in a file."""
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.json"):
        old.unlink()
    together = {}
    for name, number, case, finding in findings:
        kept = together.get(name)
        smallest = (number, case, finding) if kept is None or len(json.dumps(case)) < len(json.dumps(kept[1])) else kept[:3]
        together[name] = (*smallest, (kept[3] if kept else 0) + 1)
    for index, (name, (number, case, finding, count)) in enumerate(sorted(together.items(), key=lambda item: -item[1][3])):
        wrong, _, ours, theirs = finding
        path = out / f"{index:03}-{name[0]}.json"
        path.write_text(json.dumps({"wrong": wrong, "ours": ours, "theirs": theirs, "seed": options.seed, "number": number,
                                    "case": case}, ensure_ascii=False, indent=1))
        print(f"{count:5} {name[0]} {number}: {wrong}\n      ours   {short(ours)}\n      theirs {short(theirs)}\n      {path}")
    return len(together)


def table(counts):
    """How many of each kind had which outcome."""
    columns = [*cases.ALLOWED, "other"]
    print("            " + "".join(f"{column:>18}" for column in columns))
    for kind in MAKERS:
        of = collections.Counter()
        for (name, outcome), number in counts.items():
            if name == kind:
                of[outcome if outcome in cases.ALLOWED else "other"] += number
        if of:
            print(f"{kind:12}" + "".join(f"{of[column]:18}" for column in columns))


def short(answer):
    return json.dumps(answer, ensure_ascii=False)[:230]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=int(os.environ.get("WILD_CASES", 10000)))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("WILD_SEED", 1)))
    parser.add_argument("--kinds", default=os.environ.get("WILD_KINDS", ""))
    parser.add_argument("--program", default=str(HERE.parents[1] / "build/bin/wild_answer"))
    parser.add_argument("--out", default=str(HERE.parents[1] / "build/wild"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--record")
    parser.add_argument("--no-shrink", action="store_true")
    options = parser.parse_args()
    begun = time.monotonic()
    print(f"wild: {options.cases} cases, seed {options.seed}, kinds {', '.join(shares(options))}", flush=True)
    counts, found, recorded = run(options)
    names = tell(found, options)
    table(counts)
    if options.record:
        recorded.sort(key=lambda case: case["name"])
        for case in recorded:
            for question in case["ask"]:
                if question.get("variables") == templates.VARIABLES:
                    question["variables"] = "standard"
        pathlib.Path(options.record).write_text("".join(json.dumps(case, ensure_ascii=False) + "\n" for case in recorded))
    print(f"wild: {sum(counts.values())} cases, seed {options.seed}, in {time.monotonic() - begun:.0f} s; "
          f"{len(found)} of another outcome, of {names} kinds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
