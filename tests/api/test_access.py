#!/usr/bin/env python3
"""Tests who may do what to which object: one's own, one's group's, everyone's, and nothing else."""
import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import threading
import time

from api import BIN, LLAMA, Api, agent_token, expect, main, spec, token_rows, wait_for

PEOPLE = ["jobs:read", "jobs:write", "models:read", "models:write", "nodes:read", "leases:write"]


def noise(seed, size=100000):
    return random.Random(seed).randbytes(size)


def upload_model(name, token, **more):
    """Uploads the tiny model's files and registers the model, as people do."""
    files = []
    for file in ("config.json", "model.safetensors"):
        with open(os.path.join(LLAMA, file), "rb") as handle:
            files.append({"name": file, "sha256": api.upload(handle.read(), token=token)})
    return api.call("POST", "/v1/models", {"name": name, "files": files, **more}, token=token)


def one_user_neither_replaces_nor_removes_anothers_model():
    made = upload_model("shared", ada)
    expect(made.status == 201, f"{made.status} {made.body[:300]}")
    api.psql("UPDATE models SET info = '{\"mark\": \"ada''s\"}'")
    again = upload_model("shared", bob)
    expect(again.status == 201 and again.json.get("owner") == "bob", f"bob's own: {again.status} {again.body[:300]}")
    names = [(m["owner"], m["name"]) for m in api.good("GET", "/v1/models", token=ada)["models"]]
    expect(("ada", "shared") in names and ("bob", "shared") not in names, f"ada sees {names}")
    for path in ("/v1/models/ada%2Fshared", "/v1/models/ada%2Fnothing"):
        api.refused(404, "GET", path, token=bob)
        api.refused(404, "DELETE", path, token=bob)
    api.good("DELETE", "/v1/models/shared", token=bob)
    api.refused(404, "DELETE", "/v1/models/shared", token=bob)
    expect(api.good("GET", "/v1/models/shared", token=ada)["owner"] == "ada", "ada's is still there")


def a_model_says_which_base_its_adapters_name():
    hub = api.path("hub/models--acme--tiny-1")
    shutil.copytree(LLAMA, os.path.join(hub, "snapshots", "0f3a"), ignore=lambda _, names: [n for n in names if n.startswith("adapter")])
    acme = {"name": "acme/tiny-1", "revision": "0f3a"}
    for path, base in ((LLAMA, {"name": LLAMA}), (hub, acme), (os.path.join(hub, "snapshots", "0f3a"), acme)):
        made = api.good("POST", "/v1/models", {"name": "based", "path": path})
        got = api.good("GET", "/v1/models/based")
        expect(made["base"] == got["base"] == base, f"{path}: {made['base']}, {got['base']}")
    for wrong in ("./here", "a/b/c", "a/", "a b", ""):
        api.refused(422, "POST", "/v1/models", {"name": "based", "path": LLAMA, "base": {"name": wrong}}, "base.name")
    api.refused(422, "POST", "/v1/models", {"name": "based", "path": LLAMA, "base": {"name": "a/b", "revision": "x y"}}, "base.revision")
    content = upload_model("where", ada, base={"name": "/home/ada/secret"}).json["content"]
    expect(upload_model("plain", ada).json["base"] is None, "an upload that says nothing")
    rows = api.upload_rows_as(ada)
    upload_model("where", ada, base={"name": "/home/ada/secret"})
    for model, base in (("where", "/home/ada/secret"), ("plain", "plain"), (content, "/home/ada/secret")):
        job = api.good("POST", "/v1/jobs", spec(rows, model=model, hold=True), token=ada)["id"]
        expect(api.good("GET", f"/v1/jobs/{job}", token=ada)["inputs"]["base"] == {"name": base}, f"the job of {model}")
        api.refused(404, "GET", f"/v1/jobs/{job}", token=bob)
    expect(upload_model("his", bob, base=acme).json["base"] == acme, "the same files of another")
    seen = [api.good("GET", path, token=bob) for path in ("/v1/models", "/v1/models/his", f"/v1/models/{content}")]
    expect("/home/ada" not in json.dumps(seen) and seen[2]["base"] == acme, seen)


def an_agents_token_lists_no_tokens():
    api.refused(403, "GET", "/v1/tokens", token=agent)


def knowing_a_hash_is_not_seeing_the_file():
    data = noise(1)
    sha256 = api.upload(data, token=ada)
    for path in (f"/v1/blobs/{sha256}", f"/v1/blobs/{sha256}/manifest"):
        expect(api.call("GET", path, token=ada).status == 200, f"ada's own {path}")
        for token in (bob, agent):
            there = api.refused(404, "GET", path, token=token)
            absent = api.refused(404, "GET", path.replace(sha256, "0" * 64), token=token)
            there.pop("instance"), absent.pop("instance")  # each request's own
            expect(json.dumps(there).replace(sha256, "0" * 64) == json.dumps(absent), f"{there} is not {absent}")
            expect(api.call("HEAD", path, token=token).status == 404, "HEAD")


def a_file_sent_again_by_another_is_taken_as_new_and_then_theirs():
    data = noise(2)
    sha256 = api.upload(data, token=ada)
    api.refused(422, "PUT", f"/v1/blobs/{sha256}", b"not its bytes", token=bob)
    api.refused(404, "GET", f"/v1/blobs/{sha256}", token=bob)
    sent = api.call("PUT", f"/v1/blobs/{sha256}", data, token=bob)
    expect(sent.status == 201, f"{sent.status}: as if it were not there")
    expect(api.call("GET", f"/v1/blobs/{sha256}", token=bob).body == data, "bob's now")
    expect(api.call("PUT", f"/v1/blobs/{sha256}", data, token=bob).status == 200, "and he need not send it again")


def run_of(job, *nodes, state="running"):
    """Writes a run of the job with a rank on each node into the database, as a scheduler does."""
    run = api.psql(f"INSERT INTO runs (job, attempt, epoch, state, plan) SELECT {job}, 1 + count(*), nextval('run_epochs'), '{state}', '{{}}' "
                   f"FROM runs WHERE job = {job} RETURNING id")
    for rank, node in enumerate(nodes):
        api.psql(f"INSERT INTO assignments (run, rank, node, device, state) VALUES ({run}, {rank}, '{node}', '{node}/{run}', 'running')")
    return run


def status(path, token):
    return api.call("GET", path, token=token).status


def a_node_reads_the_files_of_its_runs_while_they_last():
    rows = api.upload("".join(json.dumps(row) + "\n" for row in token_rows(9)).encode(), token=ada)
    upload_model("hers", ada)
    job = api.good("POST", "/v1/jobs", spec("sha256:" + rows, model="hers"), token=ada)["id"]
    encoded = api.psql(f"SELECT d.blob FROM datasets d JOIN jobs j ON d.key = j.inputs ->> 'train' WHERE j.id = {job}")
    weights = api.good("GET", "/v1/models/hers", token=ada)["files"][0]["sha256"]
    files = [f"/v1/blobs/{encoded}", f"/v1/blobs/{weights}"]
    expect([status(path, agent) for path in files] == [404, 404], "before it has a rank")
    expect([status(path, ada) for path in files] == [200, 200], "the owner reads what was made of hers")
    run = run_of(job, "left")
    expect([status(path, agent) for path in files] == [200, 200], "with a rank")
    expect([status(path, right) for path in files] == [404, 404], "another node")
    part = api.upload(b"state", token=agent)
    expect(status(f"/v1/blobs/{part}", agent) == 200 and status(f"/v1/blobs/{part}", right) == 404, "what it stored is its own")
    expect(status(f"/v1/blobs/{part}", ada) == 404, "and nobody else's before the run says so")
    api.psql(f"INSERT INTO checkpoints (job, step, run, parts, ranks, blobs, complete) VALUES ({job}, 5, {run}, 1, '{{0}}', "
             f"'{{\"state.json\": \"{part}\"}}', true)")
    expect(status(f"/v1/blobs/{part}", ada) == 200 and status(f"/v1/blobs/{part}", bob) == 404, "a checkpoint is its job's owner's")
    api.psql(f"UPDATE runs SET state = 'stopped' WHERE id = {run}; UPDATE assignments SET state = 'stopped' WHERE run = {run}")
    expect([status(path, agent) for path in files] == [404, 404], "after the run")
    api.psql(f"UPDATE jobs SET state = 'failed', steps = 100, ended_at = now() WHERE id = {job}")
    api.refused(400, "POST", f"/v1/jobs/{job}/resume", {"steps": 10 ** 9}, "last checkpoint at step 5", "1000000000", token=ada)
    said = motley(ada, "resume", str(job), "--steps", "7")
    expect(said == f"job {job} is queued, to end with step 12\n", said)
    api.good("POST", f"/v1/jobs/{job}/cancel", token=ada)


def naming_anothers_file_gives_it_to_nobody():
    """A user's own document may name a hash as a file, as a template, in a node's report or in a shared job."""
    secret = api.upload(noise(3), token=ada)
    own = api.upload_rows_as(bob)
    upload_model("named", bob)
    files = api.good("GET", "/v1/models/named", token=bob)["files"]
    api.good("POST", "/v1/models", {"name": "named", "files": [{**f, "name": f["name"]} for f in files] + [
        {"name": secret, "sha256": files[0]["sha256"]}], "visibility": "everyone"}, token=bob, status=(201, 422))
    job = api.good("POST", "/v1/jobs", spec(own, model="named", hold=True), token=bob)["id"]
    api.psql(f"UPDATE jobs SET spec = jsonb_set(spec::jsonb, '{{data,chat_template}}', '\"sha256:{secret}\"')::json WHERE id = {job}")
    run = run_of(job, "left")
    api.psql(f"INSERT INTO checkpoints (job, step, run, parts, ranks, blobs, complete) VALUES ({job}, 5, {run}, 1, '{{0}}', "
             f"'{{\"state.json\": \"{secret}\", \"{secret}\": \"x\"}}', true); "
             f"INSERT INTO artifacts (job, name, sha256, size) VALUES ({job}, 'a', '{secret}', 1)")
    api.good("POST", f"/v1/jobs/{job}/share", {"visibility": "everyone"}, token=bob)
    for token in (bob, agent, cem):
        expect(status(f"/v1/blobs/{secret}", token) == 404, "a file was read by its hash")
        expect(token == agent or status(f"/v1/jobs/{job}/artifacts/a", token) == 404, "as an artifact")
    api.refused(422, "POST", "/v1/jobs", spec("sha256:" + secret, model="named"), "was not uploaded", token=bob)
    api.refused(422, "POST", "/v1/jobs", spec(own, model="named", method={"start_from": "sha256:" + secret}), "was not uploaded", token=bob)
    expect(status(f"/v1/blobs/{secret}", bob) == 404, "after he named it in a job")


def a_bare_name_is_ones_own_then_the_oldest_one_may_see():
    api.good("POST", "/v1/models", {"name": "common", "path": LLAMA})
    expect(api.good("GET", "/v1/models/common", token=bob)["owner"] == "admin", "by reference: everyone's")
    expect(upload_model("common", ada, visibility="everyone").status == 201, "ada's of the same name")
    expect(api.good("GET", "/v1/models/common", token=bob)["owner"] == "admin", "a later one takes nobody's place")
    expect(api.good("GET", "/v1/models/common", token=ada)["owner"] == "ada", "but one's own comes first")
    expect(api.good("GET", "/v1/models/ada%2Fcommon", token=bob)["owner"] == "ada", "by its full name")
    rows = api.upload_rows_as(bob)
    job = api.good("POST", "/v1/jobs", spec(rows, model="ada/common"), token=bob)
    expect(api.good("GET", f"/v1/jobs/{job['id']}", token=bob)["spec"]["model"] == "ada/common", "in a specification")
    api.refused(403, "DELETE", "/v1/models/ada%2Fcommon", None, "ada's", token=bob)
    api.refused(422, "POST", "/v1/models", {"name": "ada/x", "files": [{"name": "a", "sha256": "0" * 64}]}, "name", token=bob)


def sharing_is_with_a_group_one_is_in_and_ends_with_it():
    rows = api.upload_rows_as(ada)
    job = api.good("POST", "/v1/jobs", spec(rows, model="ada/common", hold=True), token=ada)["id"]
    for group in ("others", "none-such"):
        said = api.refused(422, "POST", f"/v1/jobs/{job}/share", {"group": group}, "group", token=ada)["detail"]
        expect("others" not in said, said)
    for body in ({"visibility": "group"}, {"visibility": "mine", "group": "lab"}, {"visibility": "all"}):
        api.refused(422, "POST", f"/v1/jobs/{job}/share", body, token=ada)
    expect(status(f"/v1/jobs/{job}", cem) == 404, "before")
    api.good("POST", f"/v1/jobs/{job}/share", {"visibility": "group", "group": "lab"}, token=ada)
    expect(status(f"/v1/jobs/{job}", cem) == 200 and status(f"/v1/jobs/{job}", bob) == 404, "the group's")
    api.good("POST", "/v1/jobs", spec(rows, model="ada/common"), token=cem)  # sharing the job shared its data too
    api.good("DELETE", "/v1/groups/lab")
    expect(status(f"/v1/jobs/{job}", cem) == 404 and status(f"/v1/jobs/{job}", ada) == 200, "without the group")
    api.refused(422, "POST", "/v1/tokens", {"user": "dana x"}, "user", "holds a ' '")
    api.good("POST", "/v1/groups", {"name": "short", "members": ["ada", "bob"]})
    api.good("PATCH", "/v1/users/bob", {"account": "short"})
    api.good("POST", "/v1/groups", {"name": "short", "members": ["ada"]})
    expect([user["account"] for user in api.good("GET", "/v1/users")["users"] if user["name"] == "bob"] == [None], "who leaves a group is not charged to it")
    api.good("DELETE", "/v1/groups/short")
    api.refused(422, "POST", "/v1/groups", {"name": "x", "members": ["ada", "nobody-yet"]}, 'no user is called "nobody-yet"; motley token make')


def a_token_makes_none_that_may_more_or_lives_longer():
    short = api.good("POST", "/v1/tokens", {"scopes": ["jobs:read", "models:read"], "expires_in": 3600}, token=ada)
    expect(short["user"] == "ada", "one's own")
    made = api.good("POST", "/v1/tokens", {}, token=short["token"])
    expect(made["scopes"] == ["jobs:read", "models:read"] and made["expires"] == short["expires"], f"at most as much: {made}")
    api.refused(403, "POST", "/v1/tokens", {"scopes": ["jobs:write"]}, "jobs:write", token=short["token"])
    api.refused(403, "POST", "/v1/tokens", {"expires_in": 7200}, "expires_in", token=short["token"])
    api.refused(403, "POST", "/v1/tokens", {"scopes": ["admin"]}, "admin", token=ada)
    api.refused(422, "POST", "/v1/tokens", {"scopes": ["agent"]}, "agent")
    api.refused(403, "POST", "/v1/tokens", {"user": "bob"}, "administrator", token=ada)
    mine = [token["id"] for token in api.good("GET", "/v1/tokens", token=ada)["tokens"]]
    expect(short["id"] in mine and made["id"] in mine, "listed")
    api.refused(404, "DELETE", f"/v1/tokens/{made['id']}", None, str(made["id"]), token=bob)
    api.good("DELETE", f"/v1/tokens/{made['id']}", token=ada)
    api.refused(401, "GET", "/v1/whoami", token=made["token"])


def nobody_submits_above_their_ceiling():
    rows = api.upload_rows_as(bob)
    api.good("POST", "/v1/jobs", spec(rows, model="common", priority=100), token=bob)
    expect(api.good("PATCH", "/v1/users/bob", {"priority_max": 5}) == {"name": "bob", "priority_max": 5}, "set")
    api.refused(403, "POST", "/v1/jobs", spec(rows, model="common", priority=6), "ceiling, which is 5", token=bob)
    job = api.good("POST", "/v1/jobs", spec(rows, model="common", priority=5), token=bob)["id"]
    api.good("PATCH", "/v1/users/bob", {"priority_max": -1})
    api.good("PATCH", f"/v1/jobs/{job}", {"begin": "2099-01-31T08:00:00Z"}, token=bob)  # it keeps its priority
    api.refused(403, "PATCH", f"/v1/jobs/{job}", {"priority": 0}, "ceiling, which is -1", token=bob)
    api.good("PATCH", "/v1/users/bob", {"priority_max": 5})
    api.refused(404, "PATCH", "/v1/users/nobody-yet", {"priority_max": 5}, "nobody-yet")
    api.refused(422, "PATCH", "/v1/users/bob", {"priority_max": 500}, "priority_max")


def the_queue_shows_everybodys_jobs_and_the_names_of_those_one_may_see():
    rows = api.upload_rows_as(ada)
    first = api.good("POST", "/v1/jobs", spec(rows, model="common", name="secret"), token=ada)["id"]
    second = api.good("POST", "/v1/jobs", spec(rows, model="common", name="also"), token=ada)["id"]
    api.psql(f"UPDATE jobs SET starts_at = '2031-01-01' WHERE id = {first};"
             f"INSERT INTO queue_reasons VALUES (1, 'reserved', {second}, 'waits for a device'), (2, 'devices', NULL, 'waits for another');"
             f"INSERT INTO queue_places VALUES ({first} >> 9, ARRAY[{first}, {second}], ARRAY[2, 1], ARRAY[1, 2])")
    def seen(token):
        pages, after = [], ""
        while after is not None:
            page = api.good("GET", f"/v1/queue?limit=1{after and '&after=' + after}", token=token)
            expect(len(page["queue"]) <= 1, page)
            pages += page["queue"]
            after = page["next"]
        return {job["id"]: (job, place) for place, job in enumerate(pages) if job["id"] in (first, second)}
    for token, name in ((ada, "secret"), (bob, None)):
        jobs = seen(token)
        job = jobs[first][0]
        expect((job["name"], job["owner"], job["place"], job["wait"], job["starts"]) == (name, "ada", 2, "reserved", "2031-01-01T00:00:00.000000Z"), job)
        expect(jobs[second][1] < jobs[first][1], "by place")
    expect("reserved" in motley(bob, "queue"), "the client")
    why = api.good("GET", f"/v1/jobs/{first}/why", token=ada)
    expect((why["place"], why["wait"], why["waits_for"]) == (2, "reserved", second) and why["why"].endswith("waits for a device"), why)
    expect("place 2, to start about 2031-01-01" in motley(ada, "why", str(first)), "the client's why")
    why = api.good("GET", f"/v1/jobs/{first}/why", token=ada)
    expect((why["starts_latest"], why["sooner"], why["ranges_right"]) == (None, None, None), why)  # nobody has answered
    changes = [{"kind": "run", "job": second, "owner": "bob", "ends": "2031-01-01T00:00:00Z", "starts": "2030-12-30T00:00:00Z"}, {"kind": "run", "job": 7, "owner": "bob", "ends": "2031-01-01T01:02:03Z", "starts": "2030-12-31T00:00:00Z"}, {"kind": "memory", "bytes": 2**30, "starts": "2030-12-31T01:00:00Z"}]
    api.psql(f"UPDATE jobs SET starts_from = '2000-01-01', starts_to = '2031-02-01' WHERE id = {first};"
             f"UPDATE sooner SET answered_at = now(), changes = '{json.dumps(changes)}' WHERE job = {first};"
             f"UPDATE jobs SET ended_at = now() WHERE id = {second};"  # what it would have changed is over
             "INSERT INTO arrivals (job, arrived_at, said_at, starts_from, starts_to, started_at, class) SELECT 1000000 + n, now(), now(), now(), now() + interval '1 h', now() + n * interval '20 min', 1 FROM generate_series(0, 4) n")
    why = api.good("GET", f"/v1/jobs/{first}/why", token=ada)
    expect((why["starts_latest"], why["ranges"], why["ranges_right"]) == ("2031-02-01T00:00:00.000000Z", 5, 0.8) and why["starts_earliest"] > "2026", why)
    expect([change["words"] for change in why["sooner"]] == ["after bob's job 7, predicted to end at 2031-01-01 01:02:03Z", "with 1 GiB less memory"], why)
    said = motley(ada, "why", str(first))
    expect("(so far 80 % of 5 such ranges were right)" in said and "sooner, 2030-12-31 01:00:00Z: with 1 GiB less memory" in said, said)
    expect("between now and 2031-02-01 00:00:00Z" in said, said)
    expect(seen(bob)[first][0]["starts_latest"] == "2031-02-01T00:00:00.000000Z", "the queue's range")
    api.psql(f"DELETE FROM arrivals WHERE job >= 1000000; UPDATE jobs SET ended_at = NULL WHERE id = {second}")
    late = api.good("POST", "/v1/jobs", spec(rows, model="common", begin="2031-05-06T07:08:09Z", service="scavenger"), token=ada)["id"]
    expect("to begin at 2031-05-06 07:08:09Z" in api.good("GET", f"/v1/jobs/{late}/why", token=ada)["why"], "begin")
    expect("is to begin at" in motley(ada, "jobs"), "why in the list of jobs")
    motley(ada, "hold", str(second))
    said = {line.split()[1]: line for line in motley(ada, "queue").splitlines() if len(line.split()) > 1}
    expect(said[str(late)].endswith("begin") and "held" in said[str(second)], said)
    job = api.good("GET", f"/v1/jobs/{late}", token=ada)
    expect((job["account"], job["service"], job["begins"]) == (None, "scavenger", "2031-05-06T07:08:09.000000Z"), job)
    api.good("POST", f"/v1/jobs/{late}/cancel", token=ada)
    for job in (first, second):
        api.good("POST", f"/v1/jobs/{job}/cancel", token=ada)


def usage_and_shares_are_sums_over_the_ledger():
    api.good("POST", "/v1/groups", {"name": "p", "members": ["ada"]})
    api.good("POST", "/v1/groups", {"name": "q", "members": ["bob", "cem"]})
    api.good("PATCH", "/v1/groups/p", {"weight": 3})
    api.psql("INSERT INTO ledger (assignment, run, job, user_id, account, device, begins, ends, speed, factor, closed) SELECT n, n, n, "
             "(SELECT id FROM users WHERE name = who), account, device, now() - b * interval '1 hour', now() - e * interval '1 hour', speed, 1, n "
             "FROM (VALUES (9001, 'ada', 'p', 'left/cpu0', 4, 2, 0.5), (9002, 'ada', 'p', 'right/cpu0', 4, 2, 1), (9003, 'bob', 'q', 'left/cpu0', 2, 1, 1)) "
             "AS v(n, who, account, device, b, e, speed);"
             "INSERT INTO usage_days SELECT (now() AT TIME ZONE 'UTC')::date - 300, id, 'p', 'left/cpu0', 7200000000, 3600 FROM users WHERE name = 'ada'")
    def sums(query=""):
        return [(row["name"], round(row["held_s"]), round(row["charged_s"]), row["jobs"]) for row in api.good("GET", "/v1/usage" + query, token=cem)["usage"]]
    expect(sums() == [("ada", 14400, 10800, 2), ("bob", 3600, 3600, 1)], sums())
    expect(sums("?by=group") == [("p", 14400, 10800, 2), ("q", 3600, 3600, 1)], sums("?by=group"))
    expect(sums("?by=device") == [("left/cpu0", 10800, 7200, 2), ("right/cpu0", 7200, 7200, 1)], sums("?by=device"))
    expect(sums("?from=2020-01-01")[0] == ("ada", 21600, 14400, 2), sums("?from=2020-01-01"))  # with the sums by day
    expect(sums("?from=2020-01-01&to=2020-02-01") == [], "an empty span")
    for query, part in (("?by=colour", "by"), ("?from=soon", "from"), ("?from=2020-02-01&to=2020-01-01", "from")):
        api.refused(400, "GET", "/v1/usage" + query, None, part)
    rows = [row for row in api.good("GET", "/v1/shares?half_life=604800", token=cem)["shares"] if row["group"] in ("p", "q")]
    by = {row["user"]: row for row in rows}
    expect([row["user"] for row in rows] == ["ada", "cem", "bob"] or by["cem"]["rank"] < by["bob"]["rank"], rows)
    expect(abs(by["ada"]["due"] - 6 * by["bob"]["due"]) < 1e-9 and abs(by["ada"]["used"] - 0.75) < 0.01 and by["cem"]["used"] == 0, by)
    api.psql("DELETE FROM ledger; DELETE FROM usage_days")
    api.good("DELETE", "/v1/groups/p")
    api.good("DELETE", "/v1/groups/q")


def what_was_recorded_is_simulated_beside_what_happened():
    rows = api.upload_rows_as(ada)
    jobs = [api.good("POST", "/v1/jobs", spec(rows, model="common"), token=token)["id"] for token in (ada, bob, ada)]
    ids = ", ".join(str(job) for job in jobs)
    api.psql("INSERT INTO nodes (name, generation) VALUES ('sim', 1) ON CONFLICT DO NOTHING;"
             "INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) VALUES ('sim/0', 'sim', 'cpu', '{}', '', 1000);"
             "INSERT INTO classes (id, digest, speeds) VALUES (900, 'x', '{\"sim/0\": 1}');"
             "INSERT INTO device_sets VALUES (900, '{sim/0}'); INSERT INTO forecasts VALUES (900, 900, 10);"
             f"UPDATE jobs SET steps = 360, state = 'succeeded', started_at = '2026-01-01 06:00Z', ended_at = '2026-01-01 07:00Z' WHERE id IN ({ids});"
             f"INSERT INTO arrivals (job, arrived_at, started_at, class, devices, step_s, ran_s) SELECT id, '2026-01-01 03:00Z', '2026-01-01 06:00Z', 900, 900, 10, 3600 FROM jobs WHERE id IN ({ids})")
    pages, after = [], ""
    while after is not None:
        page = api.good("GET", f"/v1/arrivals?from=2026-01-01&to=2026-01-02&limit=2{after and '&after=' + after}", token=bob)
        pages, after = pages + page["arrivals"], page["next"]
    expect([row["id"] for row in pages] == sorted(jobs) and pages[0]["devices"] == ["sim/0"] and pages[0]["user"] == "ada", pages)
    expect(api.good("GET", "/v1/arrivals?from=2026-02-01&to=2026-02-02", token=bob) == {"arrivals": [], "next": None}, "an empty span")
    for path in ("/v1/arrivals", "/v1/records"):
        api.refused(400, "GET", path + "?from=2020-02-01&to=2020-01-01", None, "from")
    policy = api.path("policy.yaml")
    def columns(*options):
        return {column["name"]: column for column in json.loads(motley(bob, "simulate", "2026-01-01..2026-01-02", "--json", *options))["columns"]}
    with open(policy, "w", encoding="utf-8") as handle:
        handle.write("share: false\nhalf_life: 2h\n")
    told = columns("--policy", policy, "--add", "sim/0", "--add", "sim/0")
    expect([told[name]["ended"] for name in ("happened", "simulated", "changed")] == [3, 3, 3], told)
    expect([told[name]["wait_mean_s"] for name in ("happened", "simulated", "changed")] == [10800, 3600, 0], told)
    expect(abs(told["simulated"]["use"] - 3 / 24) < 1e-9 and abs(told["changed"]["use"] - 1 / 24) < 1e-9, told)
    expect("longest wait" in motley(bob, "simulate", "2026-01-01..2026-01-02"), "the table")
    with open(policy, "w", encoding="utf-8") as handle:
        handle.write("share: false\nfairness: 3\n")
    said = motley(bob, "simulate", "2026-01-01..2026-01-02", "--policy", policy, fails=True)
    expect(f"{policy}: fairness" in said, said)
    expect("there is no such device" in motley(bob, "simulate", "2026-01-01..2026-01-02", "--add", "sim/9", fails=True), "a device")
    expect("ends before it begins" in motley(bob, "simulate", "2026-01-02..2026-01-01", fails=True), "a span")
    # Waiting that is still to come does not count.
    api.psql(f"UPDATE jobs SET state = 'queued', started_at = NULL, ended_at = NULL WHERE id IN ({ids}); UPDATE arrivals SET arrived_at = now() - interval '1 h', started_at = NULL WHERE job IN ({ids})")
    told = json.loads(motley(bob, "simulate", "2026-01-01..2099-01-01", "--json"))
    expect(3599 < told["columns"][0]["wait_mean_s"] < 3900 and told["span"].startswith("2026-01-01..") and "2099" not in told["span"], told)
    expect("has not begun" in motley(bob, "simulate", "2099-01-01..2099-01-02", fails=True), "a span to come")
    api.psql(f"UPDATE jobs SET state = 'cancelled' WHERE id IN ({ids})")
    api.psql("DELETE FROM arrivals; DELETE FROM forecasts; DELETE FROM classes; DELETE FROM devices WHERE node = 'sim'; DELETE FROM nodes WHERE name = 'sim'")


def any_device_of_a_model_is_leased_where_it_can_be_had_first():
    api.psql("INSERT INTO nodes (name, generation, state) VALUES ('any', 1, 'alive');"
             "INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) SELECT 'any/cuda' || n, 'any', 'cuda', "
             "json_build_object('like', CASE n WHEN 2 THEN 'NVIDIA H100' ELSE 'NVIDIA A100-SXM4-80GB' END), '', 1000 FROM generate_series(0, 2) n;"
             "UPDATE devices SET drained = true WHERE name = 'any/cuda1'")
    def had(*words):
        lease = json.loads(motley(bob, "lease", "--any", *words, "--json"))
        return lease["device"], lease["active"], lease
    device, now, first = had("a100", "--hours", "2")
    expect((device, now) == ("any/cuda0", True), first)
    device, now, second = had("A100", "--for", "1h")  # behind the first: the other one is drained
    expect((device, now, second["begins"]) == ("any/cuda0", False, first["ends"]), second)
    api.psql("UPDATE devices SET drained = false WHERE name = 'any/cuda1'")
    expect(had("a100", "--for", "1h")[:2] == ("any/cuda1", True), "the one that is back")
    expect(had("h100", "--for", "1h")[0] == "any/cuda2", "another model")
    expect("is like \"v100\"" in motley(bob, "lease", "--any", "v100", "--hours", "1", fails=True), "no such model")
    api.refused(422, "POST", "/v1/leases", {"seconds": 60}, "device", token=bob)
    api.refused(422, "POST", "/v1/leases", {"seconds": 60, "device": "any/cuda0", "any": "a100"}, "device", token=bob)
    api.psql("DELETE FROM leases; DELETE FROM devices WHERE node = 'any'; DELETE FROM nodes WHERE name = 'any'")


def leases_need_their_right_and_keep_the_limits():
    """Of somebody whose token may write jobs alone, and of somebody in a group with limits of its own."""
    api.psql("INSERT INTO nodes (name, generation, state) VALUES ('held', 1, 'alive');"
             "INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) SELECT 'held/cpu' || n, 'held', 'cpu', '{}', '', 1000 "
             "FROM generate_series(0, 1) n")
    guest = api.good("POST", "/v1/tokens", {"user": "bob", "scopes": ["jobs:read", "jobs:write", "nodes:read"]})["token"]
    api.refused(403, "POST", "/v1/leases", {"device": "held/cpu0", "seconds": 60}, "leases:write", token=guest)
    api.refused(422, "POST", "/v1/leases", {"device": "held/cpu0", "seconds": 31 * 86400}, "last at most 24 h", token=bob)
    for name, parent in (("lab2", None), ("guests", "lab2")):
        api.good("POST", "/v1/groups", {"name": name, "members": ["bob"]})
        api.good("PATCH", f"/v1/groups/{name}", {"parent": parent, **({"lease_limit_s": 3600} if name == "lab2" else {"devices_max": 1})})
    api.good("PATCH", "/v1/users/bob", {"account": "guests"})
    api.refused(422, "POST", "/v1/leases", {"device": "held/cpu0", "seconds": 3700}, "last at most 1 h", token=bob)
    held = api.good("POST", "/v1/leases", {"device": "held/cpu0", "seconds": 1800}, token=bob)["id"]
    api.refused(409, "POST", "/v1/leases", {"device": "held/cpu1", "seconds": 60}, "group guests may hold 1 devices", token=bob)
    api.refused(422, "PATCH", f"/v1/leases/{held}", {"extend_seconds": 1900}, "last at most 1 h", token=bob)
    api.good("PATCH", "/v1/groups/lab2", {"month_seconds_max": 3600})
    later = {"device": "held/cpu1", "begins": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 7200))}
    api.refused(409, "POST", "/v1/leases", {**later, "seconds": 2000}, "group lab2 may use 1 h", token=bob)
    api.psql("INSERT INTO ledger (assignment, run, job, user_id, account, device, speed) SELECT 990, 1, 1, id, 'guests', 'held/cpu1', 0.001 FROM users WHERE name = 'bob'")
    booked = api.good("POST", "/v1/leases", {**later, "seconds": 1700}, token=bob)["id"]  # what a job holds now is none of then
    api.psql("DELETE FROM ledger WHERE assignment = 990")
    api.refused(409, "PATCH", f"/v1/leases/{booked}", {"extend_seconds": 200}, "group lab2 may use 1 h", token=bob)
    api.good("PATCH", f"/v1/leases/{booked}", {"extend_seconds": 60}, token=bob)
    api.good("PATCH", "/v1/groups/lab2", {"month_seconds_max": 7200})
    with subprocess.Popen(["psql", "-X", "-q", "-A", "-t", api.postgres.conninfo], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        other.stdin.write("BEGIN; SELECT pg_advisory_xact_lock(5570193044); INSERT INTO leases (device, user_id, account, kind, begins, ends) SELECT 'held/cpu0', id, "
                          "'guests', 'lease', now() + interval '1 day', now() + interval '1 day 5000 s' FROM users WHERE name = 'bob' RETURNING 'booked';\n")
        other.stdin.flush()
        expect(any(line == "booked\n" for line in other.stdout), "a booking under way")
        answers = []
        asked = threading.Thread(target=lambda: answers.append(api.call("PATCH", f"/v1/leases/{booked}", {"extend_seconds": 60}, token=bob)))
        asked.start()
        wait_for(lambda: answers or api.psql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") != "0", "the change to wait")
        other.communicate("COMMIT;\n", timeout=30)
    asked.join(30)
    expect(answers[0].status == 409 and answers[0].problem["code"] == "limit" and "group lab2 may use 2 h" in answers[0].problem["detail"], answers[0].body)
    api.refused(403, "PATCH", f"/v1/leases/{held}", {"extend_seconds": 60}, "leases:write", token=guest)
    api.good("DELETE", f"/v1/leases/{held}", token=guest)  # made before the right existed, it would be charged on
    api.good("PATCH", "/v1/users/bob", {"account": None})
    api.psql("DELETE FROM leases; DELETE FROM devices WHERE node = 'held'; DELETE FROM nodes WHERE name = 'held'; "
             "DELETE FROM groups WHERE name = 'guests'; DELETE FROM groups WHERE name = 'lab2'")


def limits_and_the_tree_of_groups_are_set_and_keep_their_rules():
    for name in ("dept", "team"):
        api.good("POST", "/v1/groups", {"name": name, "members": ["bob"]})
    expect(api.good("PATCH", "/v1/groups/team", {"parent": "dept", "weight": 3, "queued_max": 1}) ==
           {"name": "team", "parent": "dept", "weight": 3, "queued_max": 1}, "set")
    team = {group["name"]: group for group in api.good("GET", "/v1/groups")["groups"]}["team"]
    expect((team["parent"], team["weight"], team["queued_max"], team["devices_max"]) == ("dept", 3, 1, 0), team)
    for body, part in (({"parent": "team"}, "parent"), ({"parent": "nowhere"}, "group"), ({"weight": -1}, "weight"), ({"weight": 0}, "weight"),
                       ({"devices_max": -1}, "devices_max"), ({"height": 1}, "height"), ({}, "nothing")):
        api.refused(422, "PATCH", "/v1/groups/dept", body, part)
    api.refused(422, "PATCH", "/v1/groups/dept", {"parent": "dept"}, "below itself")
    api.refused(404, "PATCH", "/v1/groups/nowhere", {"weight": 1}, "nowhere")
    api.refused(409, "DELETE", "/v1/groups/dept", None, "below it")
    rows = api.upload_rows_as(bob)
    job = api.good("POST", "/v1/jobs", spec(rows, model="common", hold=True, account="team"), token=bob)["id"]
    full = api.call("POST", "/v1/jobs", spec(rows, model="common", account="team"), token=bob)  # it is no mistake of the specification
    expect((full.status, full.problem["code"], full.headers["retry-after"]) == (409, "limit", "60") and "errors" not in full.json, full.body)
    with open(api.path("full.json"), "w", encoding="utf-8") as handle:
        json.dump(spec(rows, model="common", account="team"), handle)
    # A specification without a file of this machine is the first that asks the server: `plan` and `submit` crashed.
    expect("no device" in motley(bob, "plan", api.path("full.json"), fails=4) and "group team may have 1 jobs" in motley(bob, "submit", api.path("full.json"), fails=7), "the client's own status")
    api.refused(422, "POST", "/v1/jobs", spec(rows, model="common", account="dept-x"), "account", token=bob)
    api.refused(403, "POST", "/v1/jobs", spec(rows, model="common", service="urgent"), "service", token=bob)
    api.refused(409, "DELETE", "/v1/groups/team", None, "not ended")
    api.good("POST", f"/v1/jobs/{job}/cancel", token=bob)
    expect(api.good("PATCH", "/v1/users/bob", {"disabled": True, "account": "team"}) == {"name": "bob", "disabled": True, "account": "team"}, "user")
    api.refused(401, "POST", "/v1/jobs", spec(rows, model="common"), "disabled", token=bob)
    api.good("PATCH", "/v1/users/bob", {"disabled": False, "account": None})
    api.good("DELETE", "/v1/groups/team")
    api.good("DELETE", "/v1/groups/dept")


def a_devices_job_is_shown_to_who_may_see_it():
    api.psql("INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) VALUES ('left/cpu0', 'left', 'cpu', '{}', 'd', 1)")
    job = api.good("POST", "/v1/jobs", spec(api.upload_rows_as(bob), model="common"), token=bob)["id"]
    api.psql(f"UPDATE assignments SET device = 'left/cpu0' WHERE run = {run_of(job, 'left')}")
    for token, shown in ((bob, job), (ada, None), ("", job)):
        device = api.good("GET", "/v1/devices", token=token)["devices"][0]
        expect(device["job"] == shown and device["state"] == "unreachable", device)


def every_view_tells_everybody_the_same_of_a_device():
    """A running job of bob's on one device, whose other rank has ended; a device that is leased, one that is drained, one that is free."""
    api.psql("INSERT INTO nodes (name, state, address, last_seen) VALUES ('far', 'alive', '127.0.0.1', now()); INSERT INTO devices (name, node, "
             "kind, inventory, digest, memory_limit_bytes, drained) SELECT 'far/' || n, 'far', 'cpu', '{}', 'd', 1, n = 'drained' "
             "FROM unnest(ARRAY['busy', 'drained', 'ended', 'free', 'leased']) n")
    job = api.good("POST", "/v1/jobs", spec(api.upload_rows_as(bob), model="common", name="secret-name"), token=bob)["id"]
    run = run_of(job, "far", "near")
    api.psql(f"UPDATE assignments SET device = CASE rank WHEN 0 THEN 'far/busy' ELSE 'far/ended' END, state = CASE rank WHEN 0 THEN 'running' ELSE 'done' END "
             f"WHERE run = {run}; UPDATE jobs SET state = 'running', run = {run} WHERE id = {job}")
    api.good("POST", "/v1/leases", {"device": "far/leased", "seconds": 600}, token=bob)
    states = {"far/busy": "busy", "far/drained": "drained", "far/ended": "free", "far/free": "free", "far/leased": "leased"}
    for token, shown in ((bob, job), (ada, None), ("", job)):
        devices = {d["name"]: d for d in api.good("GET", "/v1/devices", token=token)["devices"] if d["node"] == "far"}
        expect({name: device["state"] for name, device in devices.items()} == states, devices)
        expect({name: (device["job"], device["job_owner"]) for name, device in devices.items() if device["job_owner"]} == {"far/busy": (shown, "bob")}, devices)
        row = next(row for row in api.good("GET", "/v1/queue", token=token)["queue"] if row["id"] == job)
        expect((row["owner"], row["devices"], row["name"]) == ("bob", ["far/busy"], shown and "secret-name"), row)
        expect(api.good("GET", "/v1/leases", token=token)["leases"][0]["active"], "the lease")
        with contextlib.closing(api.connection()) as connection:
            connection.request("GET", "/v1/events?topics=devices", headers={"Authorization": f"Bearer {token or api.token}"})
            response = connection.getresponse()
            line = next(line for line in iter(response.readline, b"") if line.startswith(b"data: "))
        told = {device["name"]: device["state"] for device in json.loads(line[6:])["devices"] if device["name"].startswith("far/")}
        expect(told == states, told)
        texts = [motley(token, *words) for words in (["devices"], ["queue"], ["top"])]
        for text in (texts[0], texts[2]):
            told = {words[0]: words[2] for words in map(str.split, text.splitlines()) if words and words[0] in states}
            expect(told == states and any("far/busy" in line and " bob " in line for line in text.splitlines()), text)
        expect(all("far/busy" in text and ("secret-name" in text) <= bool(shown) for text in texts), texts)
    api.psql(f"DELETE FROM leases; UPDATE jobs SET state = 'cancelled', run = NULL WHERE id = {job}; DELETE FROM assignments WHERE run = {run}; "
             f"DELETE FROM runs WHERE id = {run}; DELETE FROM devices WHERE node = 'far'; DELETE FROM nodes WHERE name = 'far'")


def every_change_leaves_a_row_that_says_who_and_what():
    newest = api.good("GET", "/v1/audit?limit=1")["audit"][0]["id"]
    rows = api.upload_rows_as(ada)
    whoami = api.good("POST", "/v1/tokens", {"note": "audited"}, token=ada)
    token = whoami["token"]
    job = api.good("POST", "/v1/jobs", spec(rows, model="common", name="watched"), token=token)["id"]
    for command in ("hold", "release", "cancel", "resume"):
        api.good("POST", f"/v1/jobs/{job}/{command}", token=token)
    api.good("POST", f"/v1/jobs/{job}/share", {"visibility": "everyone"}, token=token)
    api.refused(403, "POST", f"/v1/jobs/{job}/cancel", token=bob)  # a refusal changes nothing and adds no row to the audit
    upload_model("audited", ada)
    api.good("DELETE", "/v1/models/audited", token=token)
    api.good("POST", "/v1/devices/left%2Fcpu0/drain")
    api.good("POST", "/v1/groups", {"name": "lab", "members": ["ada"]})
    api.good("DELETE", "/v1/groups/lab")
    api.good("PATCH", "/v1/users/ada", {"priority_max": 7})
    api.good("POST", "/v1/profiles", {"format": "motley-profiles", "version": 1, "profiles": [], "devices": [
        {"name": "far/cpu0", "node": "far", "memory_limit_bytes": 1000000}]})
    api.good("DELETE", f"/v1/tokens/{whoami['id']}")
    page, found = api.good("GET", "/v1/audit?limit=3"), []
    while True:  # reads page by page, and each row comes once
        found += [row for row in page["audit"] if row["id"] > newest]
        if not page["next"] or page["audit"][-1]["id"] <= newest:
            break
        page = api.good("GET", f"/v1/audit?limit=3&after={page['next']}")
    found.reverse()
    expect([row["what"] for row in found] == [
        "token.make", "job.submit", "job.hold", "job.release", "job.cancel", "job.resume", "job.share", "model.put", "model.remove",
        "device.drain", "group.put", "group.remove", "user.set", "profile.import", "token.revoke"], [row["what"] for row in found])
    submit, cancel = found[1], found[4]
    expect((submit["who"], submit["token"], submit["address"], submit["object"]) == ("ada", whoami["id"], "127.0.0.1", str(job)), submit)
    expect(submit["after"]["name"] == "watched", submit)
    expect(cancel["before"] == {"state": "queued"} and cancel["after"]["state"] == "cancelled", cancel)
    expect(found[9]["who"] == "admin" and found[9]["before"] == {"drained": False} and found[9]["after"] == {"drained": True, "why": None, "at": None}, found[9])
    expect(found[12]["before"] == {"priority_max": 100} and found[12]["after"] == {"priority_max": 7}, found[12])
    expect(token not in json.dumps(found), "a token's secret is in the audit")
    api.refused(403, "GET", "/v1/audit", None, "admin", token=ada)


def motley(token, *words, fails=False):
    """Runs the client as that person, and returns what it printed."""
    home = api.path(f"home-{hashlib.sha256(token.encode()).hexdigest()[:8]}")
    os.makedirs(home, exist_ok=True)
    with open(os.path.join(home, "client.json"), "w", encoding="utf-8") as handle:
        json.dump({"address": f"http://{api.address}", "token": token or api.token}, handle)
    done = subprocess.run([os.path.join(BIN, "motley"), *words, "--home", home], capture_output=True, text=True, timeout=30, check=False, cwd=home)
    expect(done.returncode == fails if fails > 1 else (done.returncode != 0) == fails, f"motley {words}: {done.returncode} {done.stdout} {done.stderr}")
    return done.stdout + done.stderr if fails else done.stdout


def jobs_are_compared_at_the_steps_that_all_have():
    rows = api.upload_rows_as(ada)
    jobs = [api.good("POST", "/v1/jobs", spec(rows, model="common", hold=True, name=name, train={"batch_rows": 2, "steps": steps, "learning_rate": 1e-3}),
                     token=ada)["id"] for name, steps in (("a", 40), ("b", 30))]
    for job, every, rate in zip(jobs, (1, 2), (0.5, 0.25)):
        api.psql("INSERT INTO metrics (job, kind, step, rank, document) SELECT "
                 f"{job}, 'step', n, 0, json_build_object('step', n, 'loss', n * {rate}, 'tokens', 100, 'seconds', {rate}) FROM generate_series(0, 39, {every}) n; "
                 f"INSERT INTO metrics (job, kind, step, rank, document) VALUES ({job}, 'eval', 10, 0, '{{\"eval\": \"held-out\", \"step\": 10, \"loss\": {rate}}}')")
    answer = json.loads(motley(ada, "compare", *map(str, jobs), "--json"))
    expect(answer["losses"] == [{"step": n, "losses": [n * 0.5, n * 0.25]} for n in range(0, 40, 2)], answer["losses"])
    expect(answer["evals"] == [{"step": 10, "losses": [0.5, 0.25]}], answer["evals"])
    expect(answer["differ"] == [{"key": "train.steps", "values": [40, 30]}], answer["differ"])
    expect([job["tokens_per_s"] for job in answer["jobs"]] == [200, 400] and [job["devices"] for job in answer["jobs"]] == [[], []], answer["jobs"])
    said = motley(ada, "compare", *map(str, jobs)).splitlines()
    expect(said[0].split() == ["JOB", f"#{jobs[0]}", f"#{jobs[1]}"] and said[-1].split() == ["train.steps", "40", "30"], said)
    steps = [line.split()[0] for line in said[said.index("loss at the same steps") + 2:said.index("held-out loss after the same steps") - 1]]
    expect(len(steps) == 12 and steps[0] == "0" and steps[-1] == "38", steps)
    expect("there is no job" in motley(bob, "compare", *map(str, jobs), fails=True), "another's jobs")



def the_client_does_all_of_it():
    made = json.loads(motley(ada, "token", "make", "--scopes", "jobs:read,models:read", "--expires", "12h", "--note", "from the shell", "--json"))
    expect(made["scopes"] == ["jobs:read", "models:read"] and made["expires"], made)
    expect("from the shell" in motley(made["token"], "token", "list"), "it lists itself")
    expect("jobs:write" in motley(made["token"], "token", "make", "--scopes", "jobs:write", fails=True), "not more than it has")
    motley(ada, "token", "revoke", str(made["id"]))
    motley(made["token"], "jobs", fails=True)
    motley("", "group", "set", "lab", "ada", "cem")
    expect("ada,cem" in motley(cem, "group", "list"), "cem's group")
    job = api.good("POST", "/v1/jobs", spec(api.upload_rows_as(ada), model="common", hold=True), token=ada)["id"]
    expect("a group of both (motley group set NAME" in motley(ada, "share", str(job), "cem", fails=True), "with one person")
    motley(ada, "share", str(job), "group", "lab")
    expect(motley(ada, "top").startswith("No scheduler has led yet, and nothing starts"), "top's first sentence")
    expect(status(f"/v1/jobs/{job}", cem) == 200, "shared")
    motley(ada, "model", "add", "shell", LLAMA, "--visibility", "everyone")
    expect("ada/shell" in motley(bob, "model", "list"), "with its owner")
    motley(ada, "model", "add", "plain", LLAMA)
    motley(ada, "model", "add", "said", LLAMA, "--base", "acme/tiny@v1.0")
    expect(f" {LLAMA} " in motley(ada, "model", "list") and " acme/tiny@v1.0 " in motley(ada, "model", "list"), "where their bases are")
    based = api.good("POST", "/v1/jobs", spec(api.upload_rows_as(ada), model="said", hold=True), token=ada)["id"]
    expect("acme/tiny@v1.0" in motley(ada, "job", str(based)), "the job says its base")
    motley("", "user", "set", "bob", "--priority-max", "50", "--account", "none", "--running", "9")
    row = next(line.split() for line in motley("", "user", "list").splitlines() if line.startswith("bob "))
    expect(row[3:8] == ["no", "-", "50", "-", "9"], row)  # disabled, account, highest priority, limits
    expect("bob: nothing to set; give --account" in motley("", "user", "set", "bob", fails=True), "what is lacking")
    expect("--for: must be a minute" in motley(bob, "lease", "left/cpu0", "--for", "0s", fails=True), "the option")
    motley("", "group", "set", "lab", "--weight", "2.5", "--devices", "4")
    lab = {group["name"]: group for group in api.good("GET", "/v1/groups")["groups"]}["lab"]
    expect((lab["weight"], lab["devices_max"], lab["members"]) == (2.5, 4, ["ada", "cem"]), lab)
    motley("", "group", "set", "lab", "--weight", "0", fails=True)
    expect(motley(bob, "usage", "--csv", "--by", "device").splitlines()[0] == "name,held_s,charged_s,jobs", "CSV")
    expect("cem" in motley(bob, "shares"), "everybody's shares")
    rows = api.path("rows.jsonl")
    with open(rows, "w", encoding="utf-8") as handle:
        handle.writelines(json.dumps(row) + "\n" for row in token_rows(4))
    with open(api.path("spec.json"), "w", encoding="utf-8") as handle:
        json.dump(spec(rows, model="ada/shell"), handle)
    motley(bob, "submit", api.path("spec.json"))
    said = motley("", "audit", "--limit", "10")
    expect("job.share" in said and "user.set" in said and "job.submit" in said and "bob" in said, said)
    motley(bob, "audit", fails=True)


def a_disabled_users_tokens_are_refused_and_the_jobs_held_or_cancelled():
    token = api.token_for("gina", PEOPLE)
    data = api.upload_rows_as(token)
    upload_model("ginas", token)
    jobs = [api.good("POST", "/v1/jobs", spec(data, model="ginas"), token=token)["id"] for _ in range(3)]
    api.good("POST", f"/v1/jobs/{jobs[0]}/cancel", token=token)
    for body, words in (({"jobs": "hold"}, "disabled"), ({"disabled": False, "jobs": "hold"}, "disabled"), ({"disabled": True, "jobs": "eat"}, "jobs")):
        api.refused(422, "PATCH", "/v1/users/gina", body, words)
    api.refused(422, "PATCH", "/v1/users/admin", {"disabled": True}, "yourself")
    answer = api.good("PATCH", "/v1/users/gina", {"disabled": True, "jobs": "hold"})
    expect(answer["told"] == 2 and answer["disabled"] is True, answer)
    expect([api.good("GET", f"/v1/jobs/{job}")["state"] for job in jobs] == ["cancelled", "held", "held"], "held")
    api.refused(401, "GET", "/v1/jobs", None, "disabled", token=token)
    expect(api.good("PATCH", "/v1/users/gina", {"disabled": True, "jobs": "cancel"})["told"] == 2, "and cancelled")
    expect([api.good("GET", f"/v1/jobs/{job}")["state"] for job in jobs] == ["cancelled"] * 3, "all of them")
    api.good("PATCH", "/v1/users/gina", {"disabled": False})
    expect(api.good("POST", "/v1/jobs", spec(data, model="ginas"), token=token)["state"] == "queued", "the tokens are good again")


with Api() as api:
    api.upload_rows_as = lambda token: "sha256:" + api.upload("".join(json.dumps(row) + "\n" for row in token_rows(6)).encode(), token=token)
    ada, bob, cem = (api.token_for(name, PEOPLE) for name in ("ada", "bob", "cem"))
    agent, right = agent_token(api, "left"), agent_token(api, "right")
    api.good("POST", "/v1/groups", {"name": "lab", "members": ["ada", "cem"]})
    api.good("POST", "/v1/groups", {"name": "others", "members": ["bob"]})
    main(one_user_neither_replaces_nor_removes_anothers_model, a_model_says_which_base_its_adapters_name, an_agents_token_lists_no_tokens,
         knowing_a_hash_is_not_seeing_the_file, a_file_sent_again_by_another_is_taken_as_new_and_then_theirs,
         a_node_reads_the_files_of_its_runs_while_they_last, naming_anothers_file_gives_it_to_nobody,
         a_bare_name_is_ones_own_then_the_oldest_one_may_see, sharing_is_with_a_group_one_is_in_and_ends_with_it,
         a_token_makes_none_that_may_more_or_lives_longer, nobody_submits_above_their_ceiling, the_queue_shows_everybodys_jobs_and_the_names_of_those_one_may_see, usage_and_shares_are_sums_over_the_ledger, what_was_recorded_is_simulated_beside_what_happened, any_device_of_a_model_is_leased_where_it_can_be_had_first,
         leases_need_their_right_and_keep_the_limits, limits_and_the_tree_of_groups_are_set_and_keep_their_rules,
         a_devices_job_is_shown_to_who_may_see_it, every_view_tells_everybody_the_same_of_a_device, a_disabled_users_tokens_are_refused_and_the_jobs_held_or_cancelled, every_change_leaves_a_row_that_says_who_and_what, jobs_are_compared_at_the_steps_that_all_have, the_client_does_all_of_it)
