#!/usr/bin/env python3
"""Tests `motley plan --planner`, which shows another program's plan beside Motley's, and the schemas of its input and output."""
import copy
import json
import os
import stat
import subprocess

from test_plan_alone import BIN, expect, folder, main  # noqa: F401  (puts tests/support on the path)

from claims import SOURCE, skip

SHORT = ("--evaluations", "200")  # the quality of Motley's own plan does not matter here
EXAMPLE = os.path.join(SOURCE, "examples", "planner_by_speed.py")


def program(f, name, text):
    path = f.write(name, "#!/usr/bin/env python3\n" + text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
    return path


def the_examples_plan_stands_beside_ours():
    with folder() as f:
        answer = f.plan("--planner", EXAMPLE, *SHORT)
        theirs = answer["planner"]
        expect(theirs["verdict"] == "accepted" and theirs["why"] is None, f"{theirs}")
        expect(theirs["answer"]["placement"] == "pipeline" and len(theirs["answer"]["ranks"]) == 3, "not what it answers")
        expect(abs(theirs["ratio"] - theirs["answer"]["step_s"] / answer["step_s"]) < 1e-9, "ratio")
        expect(all(r["memory_bytes"] <= r["memory_limit_bytes"] for r in theirs["answer"]["ranks"]), "memory")
        expect(answer["runnable"], "a plan that cannot be run was compared")
        text = f.run("plan", f.spec, "--cluster", f.cluster, "--planner", EXAMPLE, *SHORT).stdout
        for words in ("built in", "planner_by_speed.py", "% more", "rank 2", "of 21.6 GiB"):
            expect(words in text, f"\"{words}\" is not in\n{text}")
        return f"{theirs['ratio']:.2f} times ours, asked in {theirs['plan_s']:.2f} s"


def a_plan_of_ours_given_back_is_as_fast():
    with folder() as f:
        f.run("plan", f.spec, "--cluster", f.cluster, "--runnable", "--save", "plan.json", *SHORT)
        with open(os.path.join(f.path, "plan.json"), encoding="utf-8") as handle:
            text = handle.read()
        answer = f.plan("--planner", program(f, "back", f"print({text!r})\n"), *SHORT)
        expect(answer["planner"]["verdict"] == "accepted", answer["planner"]["why"])
        expect(abs(answer["planner"]["ratio"] - 1) < 1e-9, f"{answer['planner']['ratio']}")


def what_is_refused_is_shown_with_the_reason():
    cases = {"import sys; sys.exit('I do not know')": "exited with status 1: I do not know",
             "print('no plan')": "its answer: ",
             "import json, sys; json.dump(json.load(sys.stdin), sys.stdout)": "neither a plan",
             "import os; os.remove(__file__)": "PermissionError"}
    with folder() as f:
        for text, says in cases.items():
            path = program(f, "bad", text)
            answer = f.plan("--planner", path, *SHORT)
            expect(answer["planner"]["verdict"] == "refused" and says in answer["planner"]["why"], f"{answer['planner']}")
            expect(answer["planner"]["answer"] is None and answer["verdict"] == "fits", "ours is gone")
            expect(os.path.exists(path), "it removed itself")
        expect("bad was refused: " in f.run("plan", f.spec, "--cluster", f.cluster, "--planner", path, *SHORT).stdout, "not shown")
        expect("there is no file" in f.plan("--planner", "nowhere", *SHORT)["planner"]["why"], "a missing program")


def wrong_assignments():
    """Yields copies of a good assignment, each with one error that a schema can see."""
    good = {"version": 1, "placement": "pipeline", "schedule": "1f1b", "micro_batch_rows": 1,
            "stages": [{"blocks": [0, 9], "members": [{"device": "a/0", "window": 2, "recompute": False}]},
                       {"blocks": [9, 18], "members": [{"device": "a/1"}]}]}
    yield None, good
    yield None, {"version": 1, "placement": "pipeline", "stages": [{"members": [{"device": d}]} for d in ("a/0", "a/1")]}
    changes = [("version", 2), ("version", None), ("placement", "magic"), ("schedule", 3), ("micro_batch_rows", 0),
               ("micro_batch_rows", 1.5), ("stages", []), ("stages", {}), ("colour", "red")]
    for key, value in changes:
        wrong = copy.deepcopy(good)
        wrong[key] = value
        yield f"{key} = {value}", wrong
    members = [("device", ""), ("device", 4), ("tensor", {}), ("window", 0), ("window", "2"), ("recompute", 1), ("rows", -1), ("speed", 2)]
    for key, value in members:
        wrong = copy.deepcopy(good)
        wrong["stages"][0]["members"][0][key] = value
        yield f"{key} = {value}", wrong
    for blocks in ([0], [0, 9, 18], [0, "9"], [-1, 9], 9):
        wrong = copy.deepcopy(good)
        wrong["stages"][0]["blocks"] = blocks
        yield f"blocks = {blocks}", wrong
    for part in ("version", "placement", "stages"):
        wrong = copy.deepcopy(good)
        del wrong[part]
        yield f"no {part}", wrong


def the_schemas_say_what_the_codec_takes():
    try:
        import jsonschema
    except ImportError:
        return skip("jsonschema is not installed (Debian: python3-jsonschema)")
    schemas = {}
    for name in ("problem", "plan"):
        with open(os.path.join(SOURCE, "docs", "schemas", f"{name}.schema.json"), encoding="utf-8") as handle:
            schema = json.load(handle)
        jsonschema.Draft202012Validator.check_schema(schema)
        schemas[name] = jsonschema.Draft202012Validator(schema)
    seen = 0
    with folder() as f:
        rows = [{"ids": list(range(1, 65)), "labels": list(range(1, 65))}] * 16
        f.write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        kinds = [("single", {}), ("pipeline", {}), ("data", {}), ("hybrid", {}), ("tensor", {}),
                 ("pipeline", {"method": {"kind": "full"}}), ("data", {"method": {"kind": "full"}})]
        for kind, more in kinds:
            f.write("spec.json", f.spec_of(data={"format": "tokens"}, placement={"kind": kind}, **more))
            f.plan("--save", "plan.json", "--problem", "problem.json", *SHORT)
            for name in ("problem", "plan"):
                with open(os.path.join(f.path, f"{name}.json"), encoding="utf-8") as handle:
                    document = json.load(handle)
                schemas[name].validate(document)
                seen += 1
            if name == "plan":
                for key in ("ranks", "block_count", "costs"):
                    wrong = {k: v for k, v in document.items() if k != key}
                    expect(not schemas["plan"].is_valid(wrong), f"a plan without {key} is valid")
        with open(os.path.join(f.path, "problem.json"), encoding="utf-8") as handle:
            done = subprocess.run([EXAMPLE], stdin=handle, capture_output=True, check=True, text=True)
        schemas["plan"].validate(json.loads(done.stdout))

        f.write("spec.json", f.spec_of())
        for n, (what, document) in enumerate(wrong_assignments()):
            expect(schemas["plan"].is_valid(document) == (what is None), f"{what}: the schema says otherwise")
            if what is None or n % 4 == 0:  # Motley checks some of them; tests/planner/test_plug.c has all errors that a schema sees
                path = program(f, "answers", f"print({json.dumps(document)!r})\n")
                told = f.plan("--planner", path, *SHORT)["planner"]
                expect((told["verdict"] == "accepted") == (what is None), f"{what}: {told}")
    return f"{seen} documents"


if __name__ == "__main__":
    main(the_examples_plan_stands_beside_ours, a_plan_of_ours_given_back_is_as_fast,
         what_is_refused_is_shown_with_the_reason, the_schemas_say_what_the_codec_takes)
