#!/usr/bin/env python3
"""Tests what-if plans: on another cluster, brief and full, the newest question first, and as `motley plan --cluster` has them."""
import json
import os
import re
import subprocess
import threading
import time

from api import BIN, LLAMA, Api, expect, main, spec, token_rows, wait_for

CARDS = ["a100x40", "v100", "t4"]


def cluster(devices, **more):
    """So many cards of three kinds, two a node."""
    nodes = {}
    for number in range(devices):
        nodes.setdefault(f"n{number // 2}", []).append({"name": f"n{number // 2}/{number % 2}", "like": CARDS[number % 3], **more})
    return {"nodes": [{"name": name, "devices": cards} for name, cards in nodes.items()],
            "links": {"between": {"latency_s": 1e-4, "bytes_per_s": 1.2e9}}}


def plan(devices, brief=False, **keywords):
    return api.good("POST", "/v1/plans", {"spec": question, "cluster": devices, "brief": brief}, **keywords)


def a_plan_is_that_of_the_client_on_the_same_file():
    for devices in (cluster(1), cluster(2), cluster(5, price_per_hour=2.0)):
        with open(api.path("cluster.json"), "w", encoding="utf-8") as handle:
            json.dump(devices, handle)
        with open(api.path("spec.json"), "w", encoding="utf-8") as handle:
            json.dump(dict(question, model=LLAMA, data=dict(question["data"], train=api.path("rows.jsonl"))), handle)
        done = subprocess.run([os.path.join(BIN, "motley"), "plan", api.path("spec.json"), "--cluster", api.path("cluster.json"), "--json",
                               "--home", api.path("nowhere")], capture_output=True, text=True, timeout=60, check=False)
        expect(done.returncode == 0, done.stderr)
        alone, served = json.loads(done.stdout), plan(devices)
        for key in ("verdict", "placement", "step_s", "tokens_per_s", "ranks", "left_out", "alternatives", "cost_per_million_tokens", "uncertainty"):
            expect(alone.get(key) == served.get(key), f"{key}: {alone.get(key)} there, {served.get(key)} here")
        expect(served["brief"] is False and served["words"], served.keys())


def a_brief_answer_is_quick_and_the_full_one_not_slower():
    took = []
    for devices in range(1, 9):
        began = time.monotonic()
        first = plan(cluster(devices), brief=True)
        took.append(time.monotonic() - began)
        whole = plan(cluster(devices))
        expect(first["brief"] is True and first["verdict"] == whole["verdict"] == "fits", first)
        expect(whole["step_s"] <= first["step_s"] * (1 + 1e-12), f"{devices}: {whole['step_s']} after {first['step_s']}")
        expect(whole["plan_s"] < 6, f"{devices}: {whole['plan_s']} s")
    expect(first["plan_s"] < 1, f"8 devices: {first['plan_s']} s")
    return f"brief within {max(took):.2f} s, full in {whole['plan_s']:.2f} s on 8 devices"


def under_way():
    """Requests that are not answered yet, without the one that asks this."""
    return int(re.search(r"^motley_api_requests_under_way (\d+)", api.call("GET", "/metrics", token=None).body.decode(), re.M).group(1)) - 1


def the_newest_question_of_a_token_counts():
    """A burst of full questions, as dragging asks them: the last is answered, those between are told so, others' go on."""
    answers = {}

    def ask(name, token, devices, **more):
        answers[name] = api.call("POST", "/v1/plans", {"spec": question, "cluster": cluster(devices), **more}, token=token)

    threads = [threading.Thread(target=ask, args=("bob", bob, 8))]
    threads += [threading.Thread(target=ask, args=(number, "", 8)) for number in range(5)]
    for started, thread in enumerate(threads, 1):
        thread.start()  # the next is asked when the server has this one, or has answered it
        wait_for(lambda: under_way() + len(answers) >= started, f"question {started}")
    for thread in threads:
        thread.join()
    expect(answers[4].status == 200 and answers["bob"].status == 200, f"{answers[4].status} {answers['bob'].status}")
    stale = [number for number in range(4) if answers[number].status == 412]
    expect(stale and all(answers[number].problem["code"] == "stale" for number in stale), [answers[n].status for n in range(4)])
    return f"{len(stale)} of 4 were superseded"


def a_first_answer_does_not_wait_for_a_full_one():
    results = []
    long = threading.Thread(target=lambda: results.append(("full", api.call("POST", "/v1/plans", {"spec": question, "cluster": cluster(16)}, token=bob))))
    long.start()
    results.append(("brief", api.call("POST", "/v1/plans", {"spec": question, "cluster": cluster(4), "brief": True})))
    long.join()
    expect([name for name, _ in results] == ["brief", "full"], [name for name, _ in results])
    expect(all(answer.status == 200 for _, answer in results), [answer.status for _, answer in results])


def what_does_not_fit_or_is_wrong_is_said():
    small = plan(cluster(1, memory_bytes=1000000))
    expect(small["verdict"] == "does not fit" and small["shortfall_bytes"] > 0, small)
    for body, word in (({"spec": dict(question, model="nothing")}, "spec.model"), ({"spec": question, "cluster": {"nodes": []}}, "cluster"),
                       ({"spec": question, "cluster": {"nodes": [{"name": "x", "devices": [{"name": "x/0", "like": "abacus"}]}]}}, "abacus"),
                       ({"spec": dict(question, placement={"devices": ["gone/0"]}), "cluster": cluster(1)}, "placement.devices[0]: there is no device gone/0"),
                       ({"cluster": cluster(1)}, "spec"), ({"spec": question, "x": 1}, "x"), ({"spec": 3}, "spec")):
        api.refused(422, "POST", "/v1/plans", body, word)


def without_a_cluster_the_devices_that_are_there_count():
    empty = api.refused(422, "POST", "/v1/plans", {"spec": question}, "no agent")
    expect(empty["code"] == "no-fit", empty)
    api.psql("INSERT INTO nodes (name, state, address, last_seen) VALUES ('left', 'alive', '127.0.0.1', now()); INSERT INTO devices "
             "(name, node, kind, inventory, digest, memory_limit_bytes) VALUES ('left/cpu0', 'left', 'cpu', '{\"threads\": 1}', 'd', 4000000000)")
    again = dict(question, train=dict(question["train"], seed=2))  # what was gathered is kept for 5 s
    found = api.good("POST", "/v1/plans", {"spec": again, "brief": True})
    expect([rank["device"] for rank in found["ranks"]] == ["left/cpu0"], found["ranks"])


def a_cluster_file_is_completed_by_what_is_known_here():
    here = {"name": "left/cpu0", "memory_bytes": 4000000000, "kind": "cpu", "threads": 1}
    file = api.good("POST", "/v1/plans:cluster", {"spec": dict(question, train=dict(question["train"], seed=2))})
    expect(file == {"nodes": [{"name": "left", "devices": [here]}], "links": {"directed": []}}, file)
    devices = [{"name": "left/cpu0", "threads": 3, "price_per_hour": 1.5}, {"name": "left/new", "like": "t4"}]
    body = {"spec": dict(question, train=dict(question["train"], seed=2), placement={"exclude": ["left/cpu0"]}), "cluster": {"nodes": [{"name": "left", "devices": devices}]}}
    file = api.good("POST", "/v1/plans:cluster", body)
    expect(file["nodes"][0]["devices"] == [{**here, **devices[0]}, devices[1]], file)
    found = api.good("POST", "/v1/plans", body)
    expect([rank["device"] for rank in found["ranks"]] == ["left/new"], found["ranks"])
    lacking = {**body, "cluster": {"nodes": [{"name": "left", "devices": devices[1:]}]}}  # what is left out is not in the file, either
    found = api.good("POST", "/v1/plans", lacking)
    expect([rank["device"] for rank in found["ranks"]] == ["left/new"], found["ranks"])
    for cluster, word in (({"nodes": 3}, "nodes"), ({"nodes": [{"name": "left", "devices": [3]}]}, "devices[0]"), ({"nodes": [{"name": "left", "devices": devices}], "links": 3}, "links"),
                          ({"nodes": [{"name": "left", "devices": devices}], "links": {"directed": 3}}, "directed")):
        api.refused(422, "POST", "/v1/plans:cluster", {**body, "cluster": cluster}, word)
    api.refused(422, "POST", "/v1/plans:cluster", {**body, "brief": True}, "brief")


with Api() as api:
    api.tiny_model()
    rows = token_rows(40)
    with open(api.path("rows.jsonl"), "w", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    question = spec(api.upload_rows(rows), train={"batch_rows": 8, "steps": 3})
    bob = api.good("POST", "/v1/tokens", {})["token"]  # another of the same person, as another browser has
    api.good("POST", "/v1/jobs", dict(question, hold=True))
    main(a_plan_is_that_of_the_client_on_the_same_file, a_brief_answer_is_quick_and_the_full_one_not_slower,
         the_newest_question_of_a_token_counts, a_first_answer_does_not_wait_for_a_full_one, what_does_not_fit_or_is_wrong_is_said,
         without_a_cluster_the_devices_that_are_there_count, a_cluster_file_is_completed_by_what_is_known_here)
