#!/usr/bin/env python3
"""Tests that a good job is committed once, and that a wrong one is refused by path, line and limit and leaves nothing."""
import hashlib
import gzip
import json
import os
import re
import shutil
import threading
import time

from api import GOLDEN, Api, expect, main, spec, token_rows

LLAMA = os.path.join(GOLDEN, "llama")


def count():
    return sum(api.good("GET", "/v1/queue")["jobs"].values())


def a_good_job_is_committed_and_comes_back_with_every_default():
    answer = api.call("POST", "/v1/jobs", spec(rows))
    expect(answer.status == 201, answer.body)
    made = answer.json
    expect(answer.headers["location"] == f"/v1/jobs/{made['id']}" and made["state"] == "queued", made)
    job = api.good("GET", answer.headers["location"])
    expect(job["state"] == "queued" and job["steps"] == 3 and job["spec"]["method"]["rank"] == 16, job)
    again = api.good("POST", "/v1/jobs", job["spec"])
    expect(again["id"] > made["id"], "the specification given back can be posted as it is")
    expect(api.good("GET", f"/v1/jobs/{again['id']}")["spec"] == job["spec"], "and is the same then")


def jobs_of_one_shape_keep_their_own_names():
    names = [f"n-{i}" for i in range(20)]
    ids = [api.good("POST", "/v1/jobs", spec(rows, name=name))["id"] for name in names]
    got = [api.good("GET", f"/v1/jobs/{ident}") for ident in ids]
    expect([job["name"] for job in got] == names and [job["spec"]["name"] for job in got] == names, got)


def searches_shared():
    text = api.call("GET", "/metrics").body.decode()
    return int(float(re.search(r"^motley_api_submit_cache_hits_total (\S+)", text, re.M).group(1)))


def jobs_of_one_class_share_one_search_for_devices_and_keep_their_own_values():
    before = searches_shared()
    made = []

    def submit(seed):
        made.append((seed, api.good("POST", "/v1/jobs", spec(rows, train={"batch_rows": 2, "steps": 7, "seed": seed, "learning_rate": seed * 1e-4}))["id"]))

    threads = [threading.Thread(target=submit, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    submit(9)
    for seed, ident in made:
        train = api.good("GET", f"/v1/jobs/{ident}")["spec"]["train"]
        expect(train["seed"] == seed and abs(train["learning_rate"] - seed * 1e-4) < 1e-12, train)
    shared = searches_shared() - before
    api.good("POST", "/v1/jobs", spec(rows, train={"batch_rows": 1, "steps": 7}))
    expect(shared == 8 and searches_shared() - before == 8, f"{shared} of 9 submits shared a search, and {searches_shared() - before} with one of another class")


def a_job_has_its_own_class_though_rights_change_while_it_is_checked():
    api.good("POST", "/v1/groups", {"name": "lab", "members": []})

    def submit(rank):
        for steps in range(1, 9):
            api.good("POST", "/v1/jobs", spec(rows, method={"rank": rank}, train={"batch_rows": 2, "steps": steps}))

    threads = [threading.Thread(target=submit, args=(rank,)) for rank in range(2, 8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        api.good("PATCH", "/v1/groups/lab", {"weight": 1 + time.monotonic() % 5})
    without = api.psql("SELECT count(*) FROM jobs WHERE plan_class = decode(repeat('00', 32), 'hex')")
    expect(without == "0", f"{without} jobs have the class of no specification, so that one would be planned as another")


def epochs_become_steps():
    job = api.good("POST", "/v1/jobs", spec(rows, train={"batch_rows": 3, "epochs": 2}))
    expect(api.good("GET", f"/v1/jobs/{job['id']}")["steps"] == 4, "4 rows, 3 a batch, 2 epochs: 4 steps")
    packed = "sha256:" + api.upload(gzip.compress(json.dumps(token_rows()).encode()))
    job = api.good("POST", "/v1/jobs", spec(packed, train={"batch_rows": 3, "epochs": 2}, data={"train": packed}))
    expect(api.good("GET", f"/v1/jobs/{job['id']}")["steps"] == 4, "the same rows as an array in gzip")


def pages_hold_every_job_once_newest_first():
    seen, cursor = [], ""
    while True:
        page = api.good("GET", f"/v1/jobs?limit=7{cursor}")
        seen += [job["id"] for job in page["jobs"]]
        if not page["next"]:
            break
        cursor = f"&after={page['next']}"
    expect(seen == sorted(set(seen), reverse=True) and len(seen) == count(), seen)
    expect(all(job["state"] == "held" for job in api.good("GET", "/v1/jobs?state=held")["jobs"]), "by state")


def a_repeated_key_makes_one_job():
    before = count()
    key = {"Idempotency-Key": "once"}
    first = api.call("POST", "/v1/jobs", spec(rows), headers=key)
    second = api.call("POST", "/v1/jobs", spec(rows), headers=key)
    expect(first.status == second.status == 201 and first.json["id"] == second.json["id"], "the same job")
    expect(second.headers.get("idempotent-replayed") == "true", "and it says so")
    api.refused(409, "POST", "/v1/jobs", spec(rows, name="other"), "once", headers=key)
    api.refused(400, "POST", "/v1/jobs", spec(rows), "Idempotency-Key", headers={"Idempotency-Key": "x" * 201})
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(api.call("POST", "/v1/jobs", spec(rows), headers={"Idempotency-Key": "race"})))
               for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    ids = {answer.json["id"] for answer in answers if answer.status == 201}
    expect(len(answers) == 8 and len(ids) == 1, [answer.body for answer in answers])
    expect(count() == before + 2, "two keys, two jobs")


def commands_change_the_state_or_say_why_not():
    ident = api.good("POST", "/v1/jobs", spec(rows, hold=True, train={"batch_rows": 2, "epochs": 1}))["id"]
    path = f"/v1/jobs/{ident}"
    expect(api.good("GET", path)["state"] == "held", "hold: true")
    expect(api.good("POST", path + "/release")["state"] == "queued", "release")
    expect(api.good("POST", path + "/hold", {})["state"] == "held", "hold")
    whys = [next(job["why"] for job in api.good("GET", f"/v1/jobs?limit=500{states}")["jobs"] if job["id"] == ident) for states in ("", "&state=held")]
    expect(whys + [api.good("GET", path)["why"]] == [f"until motley release {ident}"] * 3, whys)
    expect(api.good("POST", path + "/cancel")["state"] == "cancelled", "cancel")
    api.refused(409, "POST", path + "/hold", None, "cancelled", "hold")
    expect(api.good("POST", path + "/resume", {"steps": 5})["state"] == "queued", "resume")
    train = api.good("GET", path)["spec"]["train"]
    expect(train["steps"] == 5 and train["epochs"] == 1, f"further passes are as those before: {train}")
    api.refused(422, "POST", path + "/resume", {"steps": 0}, "steps")
    api.refused(422, "POST", path + "/cancel", {"now": True}, "now")
    api.refused(404, "POST", "/v1/jobs/999999999/cancel", None, "999999999")


def a_job_comes_only_after_jobs_that_are_there_and_can_succeed():
    before = count()
    first = api.good("POST", "/v1/jobs", spec(api.upload_rows(token_rows(9)), hold=True))["id"]  # its data are shared with it
    second = api.good("POST", "/v1/jobs", spec(rows, after=[first], after_any=[first]))["id"]
    job = api.good("GET", f"/v1/jobs/{second}")
    expect(job["spec"]["after"] == [first] and job["state"] == "queued", job)
    ghost = 10 ** 12
    problem = api.refused(422, "POST", "/v1/jobs", spec(rows, after=[first, ghost]), f"there is no job {ghost}")
    expect(problem["errors"][0]["pointer"] == "/after/1", problem)
    api.refused(422, "POST", "/v1/jobs", spec(rows, after=[second + 2]), "there is no job")  # the id that it has itself
    api.refused(422, "POST", "/v1/jobs", spec(rows, after_any=[ghost]), "after_any[0]: there is no job")
    api.refused(422, "POST", "/v1/jobs", spec(rows, after=list(range(1, 66))), "after", "64")
    token = api.token_for("dora", ["jobs:read", "jobs:write", "models:write"])
    api.upload("".join(json.dumps(row) + "\n" for row in token_rows()).encode(), token=token)
    api.refused(422, "POST", "/v1/jobs", spec(rows, after=[first]), f"after[0]: there is no job {first}", token=token)
    api.good("POST", f"/v1/jobs/{first}/share", {"visibility": "everyone"})
    api.good("POST", "/v1/jobs", spec(rows, after=[first]), token=token)
    api.good("POST", f"/v1/jobs/{first}/share", {"visibility": "mine"})
    api.good("POST", f"/v1/jobs/{first}/cancel")
    api.refused(422, "POST", "/v1/jobs", spec(rows, after=[first]), f"after[0]: job {first} is cancelled")
    api.good("POST", "/v1/jobs", spec(rows, after_any=[first]))
    expect(count() == before + 4, "nothing else was committed")


def an_array_is_one_job_of_which_every_element_was_checked():
    before = count()
    made = api.good("POST", "/v1/jobs", spec(rows, array={"learning_rate": [1e-4, 3e-4], "seed": [1, 2]}, at_most=3, hold=True))
    job = api.good("GET", f"/v1/jobs/{made['id']}")
    expect(job["state"] == "held" and job["array"] == {"size": 4, "made": 0, "at_most": 3, "states": {}}, job)
    expect(job["spec"]["array"] == {"train.learning_rate": [1e-4, 3e-4], "train.seed": [1, 2]}, job["spec"])
    again = api.good("POST", "/v1/jobs", job["spec"])["id"]
    expect(api.good("GET", f"/v1/jobs/{again}")["spec"] == job["spec"], "and can be posted again")
    line = api.good("GET", "/v1/jobs?limit=1")["jobs"][0]
    expect((line["elements"], line["array_of"], line["index"]) == (4, None, None), line)
    expect(api.good("GET", f"/v1/jobs?array={again}")["jobs"] == [], "no element is a job yet")
    api.good("POST", f"/v1/jobs/{again}/release")
    row = [job for job in api.good("GET", "/v1/queue?limit=1000")["queue"] if job["id"] == again][0]
    expect((row["elements"], row["made"], row["array_of"], row["index"]) == (4, 0, None, None), row)
    expect("0 of its 4 elements" in api.good("GET", f"/v1/jobs/{again}/why")["why"], "why")
    million = list(range(1000))
    for array, words in (({}, ["array"]), ({"seed": []}, ["array.seed"]), ({"seed": million, "warmup_steps": million}, ["array", "1000"]),
                         ({"learning_rate": [1e-4, "fast"]}, ["array.learning_rate[1]"]), ({"data.train": [rows]}, ["array", "data.train"]),
                         ({"rank": [4, 0]}, ["array.rank[1]", "method.rank"]), ({"targets": [["q_proj"], ["sofa"]]}, ["array.method.targets[1]", "sofa"])):
        api.refused(422, "POST", "/v1/jobs", spec(rows, array=array), *words)
    problem = api.refused(422, "POST", "/v1/jobs", spec(rows, array={"seed": [1, -1]}))
    expect(problem["errors"][0]["pointer"] == "/array/seed/1", problem)
    api.refused(422, "POST", "/v1/jobs", spec(rows, at_most=2), "at_most")
    expect(count() == before + 2, "nothing else was committed")


def many_jobs_take_a_command_each_for_itself():
    def submit(**changes):
        return api.good("POST", "/v1/jobs", spec(rows, labels={"sweep": "many"}, **changes))["id"]
    one, two, held = submit(), submit(), submit(hold=True)
    answer = api.good("POST", "/v1/jobs:hold", {"ids": [two, held, 10 ** 12, one]})
    expect([(job["id"], job["state"]) for job in answer["jobs"]] == [(two, "held"), (one, "held")], answer)
    expect([(job["id"], job["code"]) for job in answer["refused"]] == [(held, "conflict"), (10 ** 12, "not-found")], answer)
    expect(answer["refused"][1]["detail"] == f"there is no job {10 ** 12} that you may see" and answer["more"] is False, answer)
    token = api.token_for("emil", ["jobs:read", "jobs:write"])
    answer = api.good("POST", "/v1/jobs:cancel", {"ids": [one]}, token=token)
    expect(answer["jobs"] == [] and answer["refused"][0]["code"] == "not-found", answer)
    api.good("POST", f"/v1/jobs/{one}/share", {"visibility": "everyone"})
    answer = api.good("POST", "/v1/jobs:cancel", {"ids": [one]}, token=token)
    expect(answer["refused"][0]["code"] == "denied", answer)
    api.good("POST", f"/v1/jobs/{one}/share", {"visibility": "mine"})
    expect(api.good("POST", "/v1/jobs:cancel", {"labels": {"sweep": None}}, token=token)["jobs"] == [], "a filter takes one's own")
    answer = api.good("POST", "/v1/jobs:release", {"labels": {"sweep": "many"}, "state": ["held", "succeeded"]})
    expect({job["id"] for job in answer["jobs"]} == {one, two, held} and not answer["refused"], answer)
    expect(api.good("POST", "/v1/jobs:release", {"state": ["queued"]}) == {"jobs": [], "refused": [], "more": False}, "no state of it can")
    answer = api.good("POST", "/v1/jobs:cancel", {"labels": {"sweep": None}, "owner": "admin"})
    expect({job["state"] for job in answer["jobs"]} == {"cancelled"} and len(answer["jobs"]) == 3, answer)
    for body, words in (({}, ["ids"]), ({"owner": None}, ["ids"]), ({"ids": []}, ["ids"]), ({"ids": [1, 1]}, ["ids", "twice"]), ({"ids": ["1"]}, ["ids"]),
                        ({"ids": [1], "owner": "x"}, ["ids", "filter"]), ({"state": ["lost"]}, ["state"]), ({"labels": {"a": 1}}, ["labels"]),
                        ({"ids": list(range(1, 502))}, ["ids", "500"]), ({"from": "now"}, ["from"]), ({"ids": [1], "colour": "red"}, ["colour"])):
        api.refused(422, "POST", "/v1/jobs:cancel", body, *words)


def a_job_that_waits_has_another_priority_begin_and_width():
    made = api.good("POST", "/v1/jobs", spec(rows, priority=3))
    ident, path = made["id"], f"/v1/jobs/{made['id']}"
    expect("train.warmup_steps is 10 and the job has 3 steps" in made["warnings"][0], made)
    mute = api.upload_rows([*token_rows(), {"ids": [1, 2], "labels": [1, -100]}])
    warned = api.good("POST", "/v1/jobs", spec(mute, train={"batch_rows": 2, "steps": 3, "warmup_steps": 0}))
    expect(warned["warnings"] == ["data.train: dropped with nothing to learn: 1 of 5 rows, first line 5"], warned)
    plain = api.good("POST", "/v1/jobs", spec(rows, train={"batch_rows": 2, "steps": 3, "warmup_steps": 0}))
    expect("warnings" not in plain, plain)
    api.good("POST", "/v1/jobs:cancel", {"ids": [warned["id"], plain["id"]]})
    begin = "2031-02-03T04:05:06.000000Z"
    expect(api.good("PATCH", path, {"priority": -5, "begin": begin}) ==
           {"id": ident, "state": "queued", "priority": -5, "begins": begin, "at_most": None}, "changed")
    job = api.good("GET", path)
    expect((job["priority"], job["begins"], job["spec"]["priority"], job["spec"]["begin"]) == (-5, begin, -5, begin), job)
    expect(api.good("PATCH", path, {"begin": None})["begins"] is None, "at once")
    again = api.good("POST", "/v1/jobs", api.good("GET", path)["spec"])["id"]
    expect(api.good("GET", f"/v1/jobs/{again}")["priority"] == -5, "its specification can be posted")
    array = api.good("POST", "/v1/jobs", spec(rows, array={"seed": [1, 2]}, at_most=1))["id"]
    expect(api.good("PATCH", f"/v1/jobs/{array}", {"at_most": None})["at_most"] is None, "any number")
    for body, words in (({}, ["changes nothing"]), ({"priority": 101}, ["priority"]), ({"priority": None}, ["priority"]), ({"begin": "soon"}, ["begin"]), ({"begin": "2026-01-31T08:00:00Z"}, ["begin: 2026-01-31 08:00:00Z is past: it is 20"]),
                        ({"at_most": 0}, ["at_most"]), ({"name": "x"}, ["name"])):
        api.refused(422, "PATCH", path, body, *words)
    api.refused(409, "PATCH", path, {"at_most": 2}, "at_most", "no array")
    token = api.token_for("frida", ["jobs:read", "jobs:write", "models:write"])
    api.good("PATCH", "/v1/users/frida", {"priority_max": 5})
    api.upload("".join(json.dumps(row) + "\n" for row in token_rows()).encode(), token=token)
    hers = api.good("POST", "/v1/jobs", spec(rows), token=token)["id"]
    api.refused(403, "PATCH", f"/v1/jobs/{hers}", {"priority": 6}, "ceiling", token=token)
    api.psql(f"UPDATE jobs SET state = 'running' WHERE id = {ident}")
    api.refused(409, "PATCH", path, {"begin": begin}, "begin", "running")
    api.psql(f"UPDATE jobs SET state = 'held', started_at = now() WHERE id = {ident}")
    api.refused(409, "PATCH", path, {"begin": begin}, "begin", "is held and has started before")
    expect(api.good("PATCH", path, {"priority": 1})["priority"] == 1, "for when it waits again")
    api.psql(f"UPDATE jobs SET state = 'succeeded' WHERE id = {ident}")
    api.refused(409, "PATCH", path, {"priority": 2}, "succeeded")
    expect([row["what"] for row in api.good("GET", "/v1/audit?limit=1")["audit"]] == ["job.change"], "and the audit has it")


def other_peoples_jobs_are_not_there():
    token = api.token_for("anna", ["jobs:read", "jobs:write", "models:write"])
    api.refused(422, "POST", "/v1/jobs", spec(rows), "was not uploaded", token=token)  # the data is somebody else's
    api.upload("".join(json.dumps(row) + "\n" for row in token_rows()).encode(), token=token)
    mine = api.good("POST", "/v1/jobs", spec(rows), token=token)["id"]
    ours = api.good("POST", "/v1/jobs", spec(rows))["id"]
    expect([job["id"] for job in api.good("GET", "/v1/jobs", token=token)["jobs"]] == [mine], "only hers")
    for part in ("", "/metrics", "/logs", "/events", "/artifacts", "/why", "/runs", "/trace", "/plan"):
        api.refused(404, "GET", f"/v1/jobs/{ours}{part}", None, str(ours), token=token)
    api.refused(404, "POST", f"/v1/jobs/{ours}/cancel", None, str(ours), token=token)
    api.good("GET", f"/v1/jobs/{mine}")


def a_job_that_has_not_run_has_no_parts_yet():
    ident = api.good("POST", "/v1/jobs", spec(rows))["id"]
    expect(api.good("GET", f"/v1/jobs/{ident}/metrics") == {"lines": [], "next": None}, "metrics")
    expect(api.good("GET", f"/v1/jobs/{ident}/artifacts") == {"artifacts": [], "next": None}, "artifacts")
    expect(api.good("GET", f"/v1/jobs/{ident}/logs")["lines"] == [], "logs")
    why = api.good("GET", f"/v1/jobs/{ident}/why")["why"]
    expect("into the queue" in why and why.startswith("no scheduler has led yet"), why)  # none runs in this test
    api.refused(404, "GET", f"/v1/jobs/{ident}/plan")
    api.refused(404, "GET", f"/v1/jobs/{ident}/trace")
    api.refused(404, "GET", f"/v1/jobs/{ident}/artifacts/adapter%2Fadapter_model.safetensors", None, "adapter")
    api.refused(400, "GET", f"/v1/jobs/{ident}/metrics?kind=tunes", None, "tunes")


def what_is_wrong_in_a_specification_is_named_by_its_path():
    before = count()
    many = {"name": "many", "model": 7, "colour": "red", "hold": "no", "method": {"rank": 0, "rnak": 8}, "data": {"format": "poems"},
            "train": {"batch_rows": 0, "steps": "ten"}}
    problem = api.refused(422, "POST", "/v1/jobs", many, "model: must be a text")  # the first, and all of them beside it
    expect([error["pointer"] for error in problem["errors"]] == [
        "/model", "/method/rank", "/method/rnak", "/data/train", "/data/format", "/train/batch_rows", "/train/steps", "/hold", "/colour"], problem)
    expect(problem["errors"][5]["detail"].startswith("must be 1 to"), problem)
    problem = api.refused(422, "PATCH", "/v1/jobs/1", {"at_most": -1, "begin": 5, "colour": "red"})
    expect({error["pointer"] for error in problem["errors"]} == {"/at_most", "/begin", "/colour"}, problem)
    for change, words in (({"colour": "red"}, ["colour"]), ({"train": {"batch_rows": 0}}, ["train.batch_rows"]),
                          ({"train": {"batch_rows": "two"}}, ["train.batch_rows"]), ({"train": {"step": 3}}, ["train.step"]),
                          ({"method": {"kind": "magic"}}, ["method.kind", "magic"]), ({"name": ""}, ["name"]), ({"name": 5}, ["name"]),
                          ({"name": "x" * 500}, ["name", "127"]), ({"model": "unheard-of"}, ["model", "unheard-of"]),
                          ({"model": "/etc/passwd"}, ["model", "/etc/passwd"]),
                          ({"placement": {"devices": ["left/cpu9"]}}, ["placement.devices", "left/cpu9"]),
                          ({"placement": {"exclude": ["nowhere"]}}, ["placement.exclude", "nowhere"]),
                          ({"train": {"batch_rows": 2, "compute": "fp8"}}, ["train.compute", "fp8", "bf16"]),
                          ({"placement": {"boundary": "int8"}}, ["placement.boundary", "int8", "fp16"]),
                          ({"placement": {"moments": "disk"}}, ["placement.moments", "disk", "host"]),
                          ({"train": {"batch_rows": 2, "router_aux": True}}, ["train.router_aux", "no experts"]),
                          ({"method": {"base": "packed"}}, ["method.base", "packed", "GGUF"]),
                          ({"method": {"targets": ["q_proj", "sofa"]}}, ["method.targets", "sofa", "v_proj"]),
                          ({"method": {"rank_pattern": {"layers\\.99\\..*": 4}}}, ["method.rank_pattern", "layers", "q_proj"]),
                          ({"method": {"alpha_pattern": {"(?R)": 4}}}, ["method.alpha_pattern", "(?R)"]),
                          ({"method": {"start_from": "/tmp/adapter"}}, ["method.start_from"]),
                          ({"method": {"start_from": "sha256:" + "0" * 64}}, ["method.start_from", "uploaded"])):
        for path in ("/v1/jobs", "/v1/jobs:validate"):
            api.refused(422, "POST", path, spec(rows, **change), *words)
    api.refused(422, "POST", "/v1/jobs", {"model": "tiny"}, "data")
    api.refused(422, "POST", "/v1/jobs", {"data": {"train": rows}}, "model")
    expect(count() == before, "nothing was committed")


def what_is_wrong_in_the_data_is_named_by_its_line():
    before = count()
    good = [json.dumps(row).encode() for row in token_rows()]

    def refused(lines, *words, part="train"):
        reference = "sha256:" + api.upload(b"\n".join(lines) + b"\n")
        data = {"train": rows, "format": "tokens"}
        data[part] = reference
        return api.refused(422, "POST", "/v1/jobs", spec(rows, data=data), f"data.{part}", *words)
    refused(good + [b'{"ids": [1, 2], "labels": [1]}'], "line 5")
    refused(good[:2] + [b'{"ids": "one", "labels": [1]}'] + good, "line 3")
    refused(good[:1] + [b'{"text": "words"}'], "line 2")
    refused(good[:1] + [b'{"ids": [1, 999999], "labels": [1, 2]}'], "line 2", "999999")
    refused(good[:3] + [b'{"ids": [1, 2], "labels": [1, 2], "\xff": 1}'], "line 4")
    refused(good[:1] + [b"not json"], "line 2")
    refused(good[:2] + [b'{"ids": [' + b"1," * (5 << 20) + b'1], "labels": []}'], "line 3")
    refused([b""], "data.train")
    refused([b"PAR1\x15\x04\x15"], "Parquet", "convert it")
    refused([b"version https://git-lfs.github.com/spec/v1"], "Git LFS pointer")
    refused([gzip.compress(b'{"ids": [1, 2]}\n{"ids": 1}')[:-12]], "gzip")
    refused([b'[{"ids": [1, 2]}, {"ids": [1, 2], "images": ["a.png"]}]'], "row 2", "images")
    refused(good[:2] + [b'{"ids": [1], "labels": [], "more": 1}'], "line 3", part="eval")
    api.refused(422, "POST", "/v1/jobs", spec("sha256:" + "1" * 64), "data.train", "uploaded")
    api.refused(422, "POST", "/v1/jobs", spec("rows.jsonl"), "data.train", "rows.jsonl")
    expect(count() == before, "nothing was committed")


def equal_data_is_encoded_once():
    def encoded():
        return [line for line in api.call("GET", "/metrics").body.decode().splitlines() if line.startswith("motley_api_datasets_encoded_total ")]
    fresh = api.upload_rows(token_rows(7))
    before = encoded()
    answers = []
    bodies = [spec(fresh, train={"batch_rows": 1 + i, "steps": 2}) for i in range(6)]
    threads = [threading.Thread(target=lambda body=body: answers.append(api.call("POST", "/v1/jobs", body).status)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    expect(answers == [201] * 6, answers)
    expect(int(encoded()[0].split()[1]) == int(before[0].split()[1]) + 1, "encoded once for six jobs at a time")


def a_model_is_the_same_uploaded_or_by_reference():
    files = []
    for name in sorted(os.listdir(LLAMA)):
        if name in ("config.json", "generation_config.json", "model.safetensors"):
            with open(os.path.join(LLAMA, name), "rb") as handle:
                data = handle.read()
            files.append({"name": name, "size": len(data), "sha256": api.upload(data)})
    uploaded = api.good("POST", "/v1/models", {"name": "uploaded", "files": files})
    expect(uploaded["content"] == api.good("GET", "/v1/models/tiny")["content"], "one content id")
    expect(all("path" not in file for file in api.good("GET", "/v1/models/tiny")["files"]), "no path of the host is told")
    api.good("POST", "/v1/jobs", spec(rows, model="uploaded"))
    lying = [dict(file, size=file["size"] + 1) if file["name"] == "config.json" else file for file in files]
    api.refused(422, "POST", "/v1/models", {"name": "lying", "files": lying}, "files[0].size")
    api.refused(422, "POST", "/v1/models", {"name": "absent", "files": [{"name": "config.json", "sha256": "2" * 64}]}, "uploaded")
    api.refused(422, "POST", "/v1/models", {"name": "up", "files": [{"name": "../x", "sha256": "2" * 64}]}, "files[0].name")
    with open(os.path.join(LLAMA, "model.safetensors"), "rb") as handle:
        cut = handle.read()[:100000]
    broken = [dict(file, sha256=api.upload(cut), size=len(cut)) if file["name"] == "model.safetensors" else file for file in files]
    api.refused(422, "POST", "/v1/models", {"name": "broken", "files": broken}, "model.safetensors")
    api.refused(422, "POST", "/v1/models", {"name": "none", "path": "/nonexistent/model"}, "/nonexistent/model")
    api.refused(422, "POST", "/v1/models", {"name": "relative", "path": "model"}, "absolute")
    api.refused(422, "POST", "/v1/models", {"name": "both", "path": LLAMA, "files": files}, "give one of files")
    expect({model["name"] for model in api.good("GET", "/v1/models")["models"]} == {"tiny", "uploaded"}, "nothing half-registered")
    api.good("DELETE", "/v1/models/uploaded")
    api.refused(422, "POST", "/v1/jobs", spec(rows, model="uploaded"), "uploaded")


def a_changed_file_is_a_new_content_and_an_unchanged_one_the_same():
    folder = api.path("mine")
    shutil.copytree(LLAMA, folder, ignore=shutil.ignore_patterns("adapter*", "grads*", "logits*", "expected*"))
    past = time.time() - 100
    for name in os.listdir(folder):
        os.utime(os.path.join(folder, name), (past, past))
    first = api.good("POST", "/v1/models", {"name": "mine", "path": folder})["content"]
    expect(api.good("POST", "/v1/models", {"name": "mine", "path": folder})["content"] == first, "unchanged")
    path = os.path.join(folder, "model.safetensors")
    with open(path, "r+b") as handle:
        handle.seek(-1, os.SEEK_END)
        last = handle.read(1)
        handle.seek(-1, os.SEEK_END)
        handle.write(bytes([last[0] ^ 1]))
    os.utime(path, (past, past))
    changed = api.good("POST", "/v1/models", {"name": "mine", "path": folder})["content"]
    expect(changed != first, "a bit was changed, and the times were set back")
    api.good("DELETE", "/v1/models/mine")


def an_adapter_that_does_what_we_do_not_is_refused_by_name():
    with open(os.path.join(LLAMA, "adapter_init", "adapter_config.json"), "rb") as handle:
        config = json.load(handle)
    with open(os.path.join(LLAMA, "adapter_init", "adapter_model.safetensors"), "rb") as handle:
        weights = api.upload(handle.read())

    def reference(**changes):
        text = json.dumps({**config, **changes}).encode()
        return "sha256:" + api.upload(json.dumps({"adapter_config.json": api.upload(text), "adapter_model.safetensors": weights}).encode())
    method = {"rank": config["r"], "alpha": config["lora_alpha"]}
    with open(os.path.join(LLAMA, "adapter_init", "adapter_model.safetensors"), "rb") as handle:
        whole = handle.read()

    def with_weights(change):
        """Returns the same adapter with its header changed: {name: {dtype, shape, data_offsets}}."""
        size = int.from_bytes(whole[:8], "little")
        header = change(json.loads(whole[8:8 + size]))
        text = json.dumps(header).encode()
        blob = api.upload(len(text).to_bytes(8, "little") + text + whole[8 + size:])
        return "sha256:" + api.upload(json.dumps({"adapter_config.json": api.upload(json.dumps(config).encode()),
                                                  "adapter_model.safetensors": blob}).encode())

    def other_shape(header):
        name = next(key for key in header if "lora_A" in key)
        header[name]["shape"] = header[name]["shape"][::-1]
        return header
    api.good("POST", "/v1/jobs", spec(rows, name="default keys", method={
        **method, "start_from": with_weights(lambda h: {k.replace(".weight", ".default.weight"): v for k, v in h.items()})}))
    api.refused(422, "POST", "/v1/jobs", spec(rows, method={**method, "start_from": with_weights(other_shape)}), "start_from", "lora_A",
                "another base model")
    api.refused(422, "POST", "/v1/jobs", spec(rows, method={
        **method, "start_from": with_weights(lambda h: {k.replace("base_model.model.", ""): v for k, v in h.items()})}),
                "start_from", "begin with base_model.model.")
    job = api.good("POST", "/v1/jobs", spec(rows, method={**method, "start_from": reference()}))
    expect(api.good("GET", f"/v1/jobs/{job['id']}")["inputs"]["adapter"]["adapter_model.safetensors"] == weights, "inputs")
    api.refused(422, "POST", "/v1/jobs", spec(rows, method={**method, "start_from": reference(use_dora=True)}), "start_from", "use_dora")
    api.refused(422, "POST", "/v1/jobs", spec(rows, method={**method, "start_from": reference(use_rslora=True)}), "use_rslora")
    api.refused(422, "POST", "/v1/jobs", spec(rows, method={"rank": 3, "start_from": reference()}), "rank")
    for text in (b"[]", b"{}", b'{"adapter_config.json": "x", "adapter_model.safetensors": "y"}', b"x" * 5000):
        api.refused(422, "POST", "/v1/jobs", spec(rows, method={"start_from": "sha256:" + api.upload(text)}), "start_from")


def a_plan_waits_for_measurements_and_a_job_that_never_fits_is_refused_with_numbers():
    api.psql("INSERT INTO nodes (name, state, address, last_seen) VALUES ('left', 'alive', '127.0.0.1', now()); "
         "INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) "
         "VALUES ('left/cpu0', 'left', 'cpu', '{\"threads\": 1}', 'd', 300000)")
    body = spec(rows, name="big")
    plan = api.good("POST", "/v1/jobs:validate", body)  # nobody measures here, so after measure_seconds the api estimates
    expect(plan["unmeasured"] == ["left/cpu0"] and plan["verdict"] == "does not fit", plan)
    wanted = api.psql("SELECT key FROM measures")
    expect(len(wanted) == 64, f"the measurement was asked for: {wanted}")
    points = [{"block": block, "rows": n, "tokens": 64 * n, "labelled": 64 * n, "sum_sq": 4096 * n, "forward_s": 0.001 * n,
               "backward_s": 0.001 * n, "recompute_s": 0.001 * n, "saved_bytes": 100000 * n, "boundary_bytes": 16384 * n,
               "workspace_bytes": 100000} for block in ("embedding", "layer", "head") for n in (1, 2, 4)]
    profile = {"device": "left/cpu0", "isa": "avx2", "threads": 1, "shape": "s", "method": "lora", "base": "fp32", "compute": "fp32",
               "base_process_bytes": 1 << 20, "points": points, "weights_bytes": {"embedding": 65536, "layer": 200000, "head": 65536},
               "adapter_bytes": {"layer": 50000}, "optimizer_bytes": {"layer": 100000}, "step_s": {"layer": 1e-5}, "neighbours_busy": False}
    api.psql("INSERT INTO profiles (device, key, content, digest, document) "
         f"VALUES ('left/cpu0', '{wanted}', 'c', 'd', '{json.dumps(profile)}')")
    before = count()
    for path in ("/v1/jobs", "/v1/jobs"):
        problem = api.refused(422, "POST", path, body)
        expect(problem["code"] == "no-fit" and problem["plan"]["verdict"] == "does not fit", problem)
        expect(any(c.isdigit() for c in problem["detail"]), f"no numbers: {problem['detail']}")
    plan = api.good("POST", "/v1/jobs:validate", body)
    expect(plan["unmeasured"] == [] and plan["verdict"] == "does not fit", plan)
    expect(count() == before, "nothing was committed")
    api.psql("UPDATE devices SET memory_limit_bytes = 500000000")
    api.good("POST", "/v1/jobs", spec(rows, name="big", train={"batch_rows": 4, "steps": 3}))
    plan = api.good("POST", "/v1/jobs:validate?programs=1", body)
    expect(plan["verdict"] == "fits" and "FORWARD" in plan["program"] and plan["ranks"][0]["device"] == "left/cpu0", plan)
    # A pipeline over one device fits nowhere; with a fallback the job is taken, and planned as what fits.
    pipeline = dict(body, placement={"kind": "pipeline"})
    expect(api.refused(422, "POST", "/v1/jobs", pipeline)["code"] in ("no-fit", "unsupported"), "a pipeline over one device")
    pipeline["placement"]["fallback"] = "any"
    plan = api.good("POST", "/v1/jobs:validate", pipeline)
    expect(plan["verdict"] == "fits" and plan["placement"] == "single", plan)
    api.good("POST", "/v1/jobs", pipeline)
    api.psql("DELETE FROM devices; DELETE FROM nodes")


def a_card_without_costs_is_estimated_or_left_out_and_ends_no_plan():
    """left/cpu0 is free; the cards are busy with a job of another model, so nobody measures them for this one."""
    ident = api.good("POST", "/v1/jobs", spec(rows, name="other"))["id"]
    cards = (("v100", '{"threads": 1, "like": "v100"}'), ("new", '{"threads": 1, "like": "a card of tomorrow"}'), ("odd", '{"threads": "many"}'))
    api.psql("INSERT INTO nodes (name, state, address, last_seen) VALUES ('left', 'alive', '127.0.0.1', now()); "
             "INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) VALUES ('left/cpu0', 'left', 'cpu', '{\"threads\": 1}', 'd', 500000000); "
             f"INSERT INTO runs (id, job, attempt, epoch, state, plan) VALUES (900, {ident}, 1, 900, 'running', '{{}}')")
    for rank, (name, inventory) in enumerate(cards):
        api.psql("INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) "
                 f"VALUES ('left/{name}', 'left', 'emulated', '{inventory}', 'd', 500000000); "
                 f"INSERT INTO assignments (run, rank, node, device, state) VALUES (900, {rank}, 'left', 'left/{name}', 'running')")
    plan = api.good("POST", "/v1/jobs:validate?inputs=1", spec(rows, name="mine"))
    left = {line["device"]: line["why"] for line in plan["left_out"]}
    expect(plan["verdict"] == "fits" and "no profile" in left["left/new"] and "threads" in left["left/odd"], plan)
    expect({line["device"]: line.get("like") for line in plan["alternatives"]}["left/v100"] == "v100", plan["alternatives"])
    # A cluster file of the present devices has what can be read, and is planned with.
    mine = spec(rows, name="mine")
    file = api.good("POST", "/v1/plans:cluster", {"spec": mine})
    names = {device["name"]: device.get("like") for device in file["nodes"][0]["devices"]}
    expect(names == {"left/cpu0": None, "left/v100": "v100", "left/new": None}, names)
    again = api.good("POST", "/v1/plans", {"spec": mine, "cluster": file})
    expect([line["device"] for line in again["left_out"] if "no profile" in line["why"]] == ["left/new"], again["left_out"])
    # What the run waits for: workers that are not ready, ranks that say nothing, a node that is away.
    api.psql(f"UPDATE jobs SET run = 900, state = 'starting' WHERE id = {ident}; UPDATE assignments SET state = 'sent' WHERE rank = 2")
    expect("waits for left/odd to be ready" in api.good("GET", f"/v1/jobs/{ident}/why")["why"], "a start")
    api.psql(f"UPDATE jobs SET state = 'running' WHERE id = {ident}; UPDATE assignments SET state = 'running', why = CASE rank WHEN 1 THEN 'nothing was complete' END")
    said = api.good("GET", f"/v1/jobs/{ident}/why")["why"]
    expect("it waits for left/v100, left/odd. left/new: nothing was complete" in said, said)
    api.psql("UPDATE assignments SET why = ''; UPDATE nodes SET state = 'unreachable'")
    expect("left/v100: its node has not been heard since " in api.good("GET", f"/v1/jobs/{ident}/why")["why"], "an absent node")
    expect(all("not heard since" in node["why"] for node in api.good("GET", "/v1/nodes")["nodes"]), "what becomes of its jobs")
    api.refused(422, "POST", "/v1/jobs:validate", {**mine, "placement": {"devices": ["left/cpu0"]}}, "placement.devices: left/cpu0 is unreachable, and a plan is")
    api.psql("UPDATE nodes SET state = 'alive'")
    api.psql(f"UPDATE jobs SET step = 1, steps = 9 WHERE id = {ident}; UPDATE runs SET step_s = 3600, started_at = '2026-01-02 03:04:05+00'")
    said = api.good("GET", f"/v1/jobs/{ident}/why")["why"]
    expect("Before that: since 2026-01-02 03:04:05Z, 1 of 9 steps are done, predicted to end at 20" in said, said)
    api.psql(f"UPDATE jobs SET state = 'stopping' WHERE id = {ident}")
    said = api.good("GET", f"/v1/jobs/{ident}/why")["why"]
    expect("it stops after the present step; a step takes about 60 m" in said, said)
    api.psql(f"UPDATE jobs SET state = 'held' WHERE id = {ident}")
    expect(f"until motley release {ident}" in api.good("GET", f"/v1/jobs/{ident}/why")["why"], "how it goes on")
    api.psql(f"UPDATE jobs SET held_by_admin = true WHERE id = {ident}")
    expect("an administrator holds it" in api.good("GET", f"/v1/jobs/{ident}/why")["why"], "by whom")
    api.psql(f"UPDATE jobs SET held_by_admin = false, state = 'succeeded', ended_at = '2026-01-02 04:04:05+00' WHERE id = {ident}")
    expect(api.good("GET", f"/v1/jobs/{ident}/why")["why"] == "it ended at 2026-01-02 04:04:05Z, after 1 of 9 steps", "when")
    api.psql(f"UPDATE jobs SET run = NULL, state = 'cancelled' WHERE id = {ident}; DELETE FROM assignments; DELETE FROM runs; DELETE FROM devices; DELETE FROM nodes")


def a_job_survives_the_death_of_the_api():
    ident = api.good("POST", "/v1/jobs", spec(rows, name="kept"))["id"]
    api.process.kill()
    api.process.wait(10)
    api.start()
    expect(api.good("GET", f"/v1/jobs/{ident}")["name"] == "kept", "committed is kept")
    expect(api.good("POST", "/v1/jobs", spec(rows))["id"] > ident, "ids are not reused")


with Api(measure_seconds=1) as api:
    api.tiny_model()
    rows = api.upload_rows(token_rows())
    main(a_good_job_is_committed_and_comes_back_with_every_default, jobs_of_one_shape_keep_their_own_names,
         jobs_of_one_class_share_one_search_for_devices_and_keep_their_own_values,
         a_job_has_its_own_class_though_rights_change_while_it_is_checked, epochs_become_steps,
         commands_change_the_state_or_say_why_not, pages_hold_every_job_once_newest_first, a_repeated_key_makes_one_job,
         many_jobs_take_a_command_each_for_itself, a_job_that_waits_has_another_priority_begin_and_width,
         an_array_is_one_job_of_which_every_element_was_checked, a_job_comes_only_after_jobs_that_are_there_and_can_succeed, other_peoples_jobs_are_not_there, a_job_that_has_not_run_has_no_parts_yet,
         what_is_wrong_in_a_specification_is_named_by_its_path, what_is_wrong_in_the_data_is_named_by_its_line,
         equal_data_is_encoded_once, a_model_is_the_same_uploaded_or_by_reference,
         a_changed_file_is_a_new_content_and_an_unchanged_one_the_same,
         an_adapter_that_does_what_we_do_not_is_refused_by_name,
         a_plan_waits_for_measurements_and_a_job_that_never_fits_is_refused_with_numbers,
         a_card_without_costs_is_estimated_or_left_out_and_ends_no_plan, a_job_survives_the_death_of_the_api)
