#!/usr/bin/env python3
"""Runs replayed from their own times, replayed on other devices, and tables carried to another home."""
import json
import os
import re
import statistics
import urllib.request
import xml.etree.ElementTree as xml

from motley import GOLDEN, Motley, expect, golden_spec, main, tokens_rows, two_unlike

PLACEMENTS = {"single": {"kind": "single"}, "pipeline": {"kind": "pipeline", "stages": 2, "micro_batch_rows": 1},
              "data": {"kind": "data"}}
REPLAY = 0.03  # of the measured step, the bound


def write_spec(motley, name, placement, **changes):
    folder = os.path.join(GOLDEN, "llama")
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as handle:
        expected = json.load(handle)
    rows = motley.write_rows("rows.jsonl", tokens_rows(expected["batches"]))
    spec = golden_spec(name, folder, rows, expected["lora"]["peak_lr"], expected, len(expected["batches"][0]["ids"]),
                       placement=placement, **changes)
    if "result" in changes:
        spec["data"]["eval"] = rows
    return motley.write(f"{name}.json", spec)


def ask(motley, path):
    with open(os.path.join(motley.home, "client.json"), encoding="utf-8") as handle:
        client = json.load(handle)
    request = urllib.request.Request(client["address"] + path, headers={"Authorization": f"Bearer {client['token']}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def check_load(motley):
    """What devices did is in the roll-ups of minutes, and no more than there was time for."""
    load = ask(motley, "/v1/load")
    for device in load["devices"]:
        busy = device["compute_s"] + device["wait_s"]
        expect(device["compute_s"] > 0 and device["held_s"] > 0, device)
        expect(busy <= device["held_s"] * 1.01 + 1 and abs(device["held_s"] + device["free_s"] - 3600) < 1, device)
        points = ask(motley, f"/v1/load?device={device['name'].replace('/', '%2F')}")["devices"][0]["points"]
        expect(abs(sum(point["compute_s"] for point in points) - device["compute_s"]) < 1e-6, points)
        expect(all(point["compute_s"] + point["wait_s"] <= 63 for point in points), points)


def check_lanes(motley, job):
    """Every instruction of a recorded step is in the lanes, predicted and measured, and messages bound the clocks both ways."""
    lanes = ask(motley, f"/v1/jobs/{job}/lanes?px=10000")
    expect(lanes["unmatched"] == 0 and lanes["slack_ns"] == 0 and lanes["steps"], {key: lanes[key] for key in ("unmatched", "slack_ns", "steps")})
    for rank in lanes["ranks"]:
        predicted, measured = (sum(box[-1] for box in rank[which]) for which in ("predicted", "measured"))
        expect(predicted == measured > 0, f"{rank['device']}: {predicted} instructions predicted, {measured} measured")
    expect(lanes["predicted_ns"] > 0 and lanes["measured_ns"] > 0, f"{lanes['predicted_ns']} {lanes['measured_ns']}")
    expect(lanes["residual_ns"] is not None and lanes["residual_ns"] < lanes["measured_ns"], f"{lanes['residual_ns']} of {lanes['measured_ns']}")


def runs_are_reproduced_and_changed():
    """Steps of a tiny model are mostly gaps between instructions: what replay must not lose."""
    details = []
    with Motley(two_unlike()) as motley:
        jobs = {}
        for kind, placement in PLACEMENTS.items():
            job = motley.run("submit", write_spec(motley, kind, placement), "--wait", parse=True, timeout=240)
            expect(job["state"] == "succeeded", f"{kind}: {job['state']}: {job.get('error')}")
            jobs[kind] = str(job["id"])
            steps, _ = motley.metrics(job["id"])
            measured = statistics.median(m["seconds"] for m in steps)
            answer = motley.run("replay", jobs[kind], parse=True)
            off = answer["simulated_s"] / measured - 1
            expect(abs(off) <= REPLAY, f"{kind}: simulated {answer['simulated_s']}, measured {measured}")
            expect(abs(answer["recorded_s"] / measured - 1) <= REPLAY, f"{kind}: recorded {answer['recorded_s']}, measured {measured}")
            expect(answer["changed_s"] is None, "nothing was changed")
            details.append(f"{kind} {100 * off:+.2f} %")

        job = jobs["pipeline"]
        check_lanes(motley, job)
        check_load(motley)
        before = motley.run("replay", job, parse=True)["simulated_s"]
        # On a busy machine the gaps between instructions are most of a step, and computing more slowly leaves them as they are.
        more = [motley.run("replay", job, "--speed", f"left/cpu0={speed}", "--speed", f"right/cpu0={speed}", parse=True)["changed_s"] - before for speed in (0.2, 0.1)]
        expect(more[1] > 1.5 * more[0] > 0, f"a fifth and a tenth of the speed add {more} to {before}")
        far = motley.run("replay", job, "--link", "left:right=1Gbit/s,200ms", parse=True)
        expect(far["changed_s"] > before + 0.35, f"200 ms further apart: {far['changed_s']} after {before}")

        again = motley.run("replay", job, "--placement", "single", parse=True)
        expect(again["plan"]["placement"] == "single" and again["changed_s"] > 0, f"{again['plan']['placement']}")
        alone = motley.run("replay", job, "--without", "left/cpu0", parse=True)
        expect([r["device"] for r in alone["plan"]["ranks"]] == ["right/cpu0"], f"{alone['plan']['ranks']}")
        more = motley.run("replay", job, "--add", "right/cpu0", "--speed", "added1/cpu0=100", parse=True)
        expect(more["added"] == ["added1/cpu0"], f"{more['added']}")
        expect("added1/cpu0" in [r["device"] for r in more["plan"]["ranks"]], "a hundred times as fast, and not used")
        expect(more["changed_s"] < alone["changed_s"], f"{more['changed_s']}, not below {alone['changed_s']}")
        other = motley.write("cluster.json", {"nodes": [{"name": "x", "devices": [{"name": "x/0", "like": "a100x40"}]}]})
        moved = motley.run("replay", job, "--cluster", other, "--draw", motley.path("r.svg"), "--trace", motley.path("r.json"), parse=True)
        expect([r["device"] for r in moved["plan"]["ranks"]] == ["x/0"], f"{moved['plan']['ranks']}")
        expect(xml.parse(motley.path("r.svg")).getroot() is not None, "no picture")
        with open(motley.path("r.json"), encoding="utf-8") as handle:
            expect(json.load(handle)["traceEvents"], "no trace")
        small = {"nodes": [{"name": "x", "devices": [{"name": "x/0", "like": "a100x40", "memory_bytes": 1000}]}]}
        text = motley.run("replay", job, "--cluster", motley.write("small.json", small), "--draw", motley.path("none.svg"), status=4)
        expect("none.svg was not written" in text, text)
        small["nodes"][0]["devices"][0]["speed"] = -1
        motley.run("replay", job, "--cluster", motley.write("small.json", small), status=2)
        expect("small.json: nodes[0].devices[0].speed" in motley.last_error, motley.last_error)
        text = motley.run("replay", job, "--placement", "data")
        for word in ("recorded", "simulated", "as changed", "rank", "memory"):
            expect(word in text, f"\"{word}\" is not told")

        for words, status, told in ((("--speed", "moon=2"), 2, "left/cpu0"), (("--speed", "left/cpu0=0"), 2, "--speed"),
                                    (("--link", "left:moon=1Gbit/s"), 2, "left, right"), (("--link", "left=1"), 2, "A:B"),
                                    (("--without", "moon"), 2, "moon"), (("--add", "abacus"), 2, "catalogue"),
                                    (("--placement", "heap"), 2, "heap"), (("--cluster", "/nonexistent"), 2, "/nonexistent")):
            motley.run("replay", job, *words, status=status)
            expect(told in motley.last_error or "right, left" in motley.last_error, f"{words}: {motley.last_error}")
        motley.run("replay", "99", status=1)
        held = motley.submit({**json.load(open(motley.path("single.json"), encoding="utf-8")), "hold": True}, name="held.json")
        motley.run("replay", str(held["id"]), status=1)
        expect("held" in motley.last_error, motley.last_error)
    return ", ".join(details)


def tables_give_the_same_plan_elsewhere():
    with Motley(two_unlike()) as motley:
        tables = motley.path("tables.json")
        live = {}
        for kind, placement in PLACEMENTS.items():
            live[kind] = motley.run("plan", write_spec(motley, kind, placement), parse=True)
        told = motley.run("profile", "export", "--out", tables, parse=True)
        expect(told["devices"] == 2 and told["profiles"] >= 2, f"{told}")
        one = motley.path("one.json")
        expect(motley.run("profile", "export", "right/cpu0", "--out", one, parse=True)["devices"] == 1, "one device's tables")
        motley.run("profile", "export", "moon", status=1)
        imported = motley.run("profile", "import", tables, parse=True)
        expect(imported["imported"] == told["profiles"], f"{imported}")
        specs = {kind: motley.path(f"{kind}.json") for kind in PLACEMENTS}
        for kind, spec in specs.items():  # what is measured here goes before what was imported
            again = motley.run("plan", spec, parse=True)
            expect(again["rests_on"]["measured"] > 0.99 and again["step_s"] == live[kind]["step_s"], f"{kind}: {again['rests_on']}")
            drawn = motley.run("plan", spec, "--draw", motley.path("p.svg"), parse=True)
            expect(drawn["step_s"] == live[kind]["step_s"], f"{kind}: planned here {drawn['step_s']}, there {live[kind]['step_s']}")
        motley.run("down")
        for kind, spec in specs.items():
            there = motley.run("plan", spec, "--cluster", tables, "--runnable", parse=True)
            for key in ("placement", "step_s", "tokens_per_s", "micro_batch_rows", "micro_batches"):
                expect(there[key] == live[kind][key], f"{kind}: {key} is {there[key]}, not {live[kind][key]}")
            expect(there["rests_on"]["imported"] > 0.99, f"{kind}: {there['rests_on']}")
            expect([r["device"] for r in there["ranks"]] == [r["device"] for r in live[kind]["ranks"]], f"{kind}: other devices")
        beside = motley.write("mine.json", {"nodes": [{"name": "mine", "devices": [{"name": "mine/0", "profile": one}]}]})
        mine = motley.run("plan", specs["single"], "--cluster", beside, parse=True)
        expect(mine["ranks"][0]["device"] == "mine/0" and mine["rests_on"]["imported"] > 0.99, f"{mine['rests_on']}")
    return ", ".join(f"{kind} {answer['step_s'] * 1e3:.2f} ms" for kind, answer in live.items())


UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1}
PACE = re.compile(r"(\S+) +computes ([0-9.]+) (us|ms|s) of it measured, ([0-9.]+) (us|ms|s) predicted \(([+-][0-9.]+) %\)")


def a_run_says_how_fast_each_device_was():
    """Where a step took longer than was said, the report must name whose prediction was wrong."""
    with Motley(two_unlike()) as motley:
        spec = write_spec(motley, "pipeline", PLACEMENTS["pipeline"], result={"kind": "merged"}, eval={"every_steps": 20})
        text = motley.run("run", spec, "--out", motley.path("out"), timeout=240)
        expect("of the base in fp32 with the adapter beside it; model/ is the base as its file has it, merged" in text, text)
        report = text[text.index("step time"):text.index("memory", text.index("step time"))]
        planned = {r["device"]: r["busy_s"] for r in motley.job(1)["run"]["plan_answer"]["ranks"]}
        told = {device: (float(m) * UNITS[mu], float(p) * UNITS[pu], float(off) / 100) for device, m, mu, p, pu, off in PACE.findall(report)}
        expect(told.keys() == planned.keys() and len(told) == 2, f"{report}: not of each of {planned}")
        for device, (measured, predicted, off) in told.items():
            expect(abs(predicted / planned[device] - 1) < 0.01, f"{device}: {predicted} told, {planned[device]} planned")
            expect(abs(predicted / measured - 1 - off) < 0.03, f"{device}: {predicted} beside {measured} is not {off:+.1%}")
    return ", ".join(f"{device} {off:+.0%}" for device, (_, _, off) in told.items())


if __name__ == "__main__":
    main(a_run_says_how_fast_each_device_was, runs_are_reproduced_and_changed, tables_give_the_same_plan_elsewhere)
