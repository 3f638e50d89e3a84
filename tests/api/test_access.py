#!/usr/bin/env python3
"""Who may do what to which object: one's own, one's group's, everyone's, and nothing else."""
import hashlib
import json
import os
import random
import subprocess

from api import BIN, LLAMA, Api, agent_token, expect, main, spec, token_rows

PEOPLE = ["jobs:read", "jobs:write", "models:read", "models:write", "nodes:read"]


def noise(seed, size=100000):
    return random.Random(seed).randbytes(size)


def upload_model(name, token, **more):
    """The tiny model from uploaded files, as people register theirs."""
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
    """A run of the job with a rank on each node, as a scheduler makes it."""
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


def naming_anothers_file_gives_it_to_nobody():
    """Every way to let a document of one's own say a hash: names of files, templates, what a node reports, shared jobs."""
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
    api.good("POST", "/v1/jobs", spec(rows, model="ada/common"), token=cem)  # its data too
    api.good("DELETE", "/v1/groups/lab")
    expect(status(f"/v1/jobs/{job}", cem) == 404 and status(f"/v1/jobs/{job}", ada) == 200, "without the group")
    api.refused(422, "POST", "/v1/groups", {"name": "x", "members": ["ada", "nobody-yet"]}, "members")


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
    api.good("POST", "/v1/jobs", spec(rows, model="common", priority=5), token=bob)
    api.refused(404, "PATCH", "/v1/users/nobody-yet", {"priority_max": 5}, "nobody-yet")
    api.refused(422, "PATCH", "/v1/users/bob", {"priority_max": 500}, "priority_max")


def a_devices_job_is_shown_to_who_may_see_it():
    api.psql("INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) VALUES ('left/cpu0', 'left', 'cpu', '{}', 'd', 1)")
    job = api.good("POST", "/v1/jobs", spec(api.upload_rows_as(bob), model="common"), token=bob)["id"]
    api.psql(f"UPDATE assignments SET device = 'left/cpu0' WHERE run = {run_of(job, 'left')}")
    for token, shown in ((bob, job), (ada, None), ("", job)):
        device = api.good("GET", "/v1/devices", token=token)["devices"][0]
        expect(device["job"] == shown and device["state"] == "unreachable", device)


def every_change_leaves_a_row_that_says_who_and_what():
    newest = api.good("GET", "/v1/audit?limit=1")["audit"][0]["id"]
    rows = api.upload_rows_as(ada)
    whoami = api.good("POST", "/v1/tokens", {"note": "audited"}, token=ada)
    token = whoami["token"]
    job = api.good("POST", "/v1/jobs", spec(rows, model="common", name="watched"), token=token)["id"]
    for command in ("hold", "release", "cancel", "resume"):
        api.good("POST", f"/v1/jobs/{job}/{command}", token=token)
    api.good("POST", f"/v1/jobs/{job}/share", {"visibility": "everyone"}, token=token)
    api.refused(403, "POST", f"/v1/jobs/{job}/cancel", token=bob)  # changes nothing: no row
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
    while True:  # by pages, each row once
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
    expect(found[9]["who"] == "admin" and found[9]["before"] == {"drained": False} and found[9]["after"] == {"drained": True}, found[9])
    expect(found[12]["before"] == {"priority_max": 100} and found[12]["after"] == {"priority_max": 7}, found[12])
    expect(token not in json.dumps(found), "a token's secret is in the audit")
    api.refused(403, "GET", "/v1/audit", None, "admin", token=ada)


def motley(token, *words, fails=False):
    """The client as that person; what it printed."""
    home = api.path(f"home-{hashlib.sha256(token.encode()).hexdigest()[:8]}")
    os.makedirs(home, exist_ok=True)
    with open(os.path.join(home, "client.json"), "w", encoding="utf-8") as handle:
        json.dump({"address": f"http://{api.address}", "token": token or api.token}, handle)
    done = subprocess.run([os.path.join(BIN, "motley"), *words, "--home", home], capture_output=True, text=True, timeout=30, check=False)
    expect((done.returncode != 0) == fails, f"motley {words}: {done.returncode} {done.stdout} {done.stderr}")
    return done.stdout + done.stderr if fails else done.stdout


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
    motley(ada, "share", str(job), "group", "lab")
    expect(status(f"/v1/jobs/{job}", cem) == 200, "shared")
    motley(ada, "model", "add", "shell", LLAMA, "--visibility", "everyone")
    expect("ada/shell" in motley(bob, "model", "list"), "with its owner")
    motley("", "user", "set", "bob", "--priority-max", "50")
    rows = api.path("rows.jsonl")
    with open(rows, "w", encoding="utf-8") as handle:
        handle.writelines(json.dumps(row) + "\n" for row in token_rows(4))
    with open(api.path("spec.json"), "w", encoding="utf-8") as handle:
        json.dump(spec(rows, model="ada/shell"), handle)
    motley(bob, "submit", api.path("spec.json"))
    said = motley("", "audit", "--limit", "10")
    expect("job.share" in said and "user.set" in said and "job.submit" in said and "bob" in said, said)
    motley(bob, "audit", fails=True)


with Api() as api:
    api.upload_rows_as = lambda token: "sha256:" + api.upload("".join(json.dumps(row) + "\n" for row in token_rows(6)).encode(), token=token)
    ada, bob, cem = (api.token_for(name, PEOPLE) for name in ("ada", "bob", "cem"))
    agent, right = agent_token(api, "left"), agent_token(api, "right")
    api.good("POST", "/v1/groups", {"name": "lab", "members": ["ada", "cem"]})
    api.good("POST", "/v1/groups", {"name": "others", "members": ["bob"]})
    main(one_user_neither_replaces_nor_removes_anothers_model, an_agents_token_lists_no_tokens,
         knowing_a_hash_is_not_seeing_the_file, a_file_sent_again_by_another_is_taken_as_new_and_then_theirs,
         a_node_reads_the_files_of_its_runs_while_they_last, naming_anothers_file_gives_it_to_nobody,
         a_bare_name_is_ones_own_then_the_oldest_one_may_see, sharing_is_with_a_group_one_is_in_and_ends_with_it,
         a_token_makes_none_that_may_more_or_lives_longer, nobody_submits_above_their_ceiling,
         a_devices_job_is_shown_to_who_may_see_it, every_change_leaves_a_row_that_says_who_and_what, the_client_does_all_of_it)
