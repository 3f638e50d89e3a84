#!/usr/bin/env python3
"""Jobs that have ended are removed with all that they left, while others run, and never what another job or person still needs;
and what everybody has on the disk is told."""
import json
import os
import random

from api import Api, expect, main, spec, token_rows

TABLES = ("jobs", "runs", "assignments", "checkpoints", "artifacts", "metrics", "events", "traces", "job_after", "outbox")


def content(seed, size=1000):
    return random.Random(seed).randbytes(size)


def ended(name, state="succeeded", seed=1, **fields):
    """A job that has ended and left a run, a checkpoint, a result, metrics, a trace and log lines; its id."""
    made = [api.upload(content(10 * seed + n)) for n in (0, 1)]
    ident = api.good("POST", "/v1/jobs", spec(rows, name=name, hold=True, **fields))["id"]
    run = api.psql(f"INSERT INTO runs (job, attempt, epoch, state, plan) VALUES ({ident}, 1, {ident}, 'done', '{{}}') RETURNING id").strip()
    api.psql(f"UPDATE jobs SET state = '{state}', ended_at = now(), run = {run} WHERE id = {ident};"
             f"INSERT INTO assignments (run, rank, node, device, state) VALUES ({run}, 0, 'n', 'n/cpu0', 'done');"
             "INSERT INTO checkpoints (job, step, run, parts, ranks, blobs, complete) VALUES "
             f"({ident}, 5, {run}, 1, '{{0}}', '{{\"state.json\": \"{made[0]}\"}}', true);"
             f"INSERT INTO artifacts (job, name, sha256, size) VALUES ({ident}, 'adapter', '{made[1]}', 1000);"
             f"INSERT INTO metrics (job, kind, step, rank, document) SELECT {ident}, 'step', n, 0, '{{}}' FROM generate_series(1, 50) n;"
             f"INSERT INTO traces (run, rank, seq, document) VALUES ({run}, 0, 1, '{{}}');"
             f"INSERT INTO events (job, type, body) VALUES ({ident}, 'log', '{{}}')")
    return ident, made


def counts():
    return {table: int(api.psql(f"SELECT count(*) FROM {table}")) for table in TABLES}


def removed(ident):
    return api.good("DELETE", f"/v1/jobs/{ident}")


def a_job_goes_with_all_that_it_left_and_nothing_else():
    kept, _ = ended("kept", seed=1)
    before = counts()
    ident, made = ended("gone", seed=2)
    ledger = api.psql(f"INSERT INTO ledger (assignment, run, job, user_id, account, device) VALUES (777, 1, {ident}, 1, '', 'n/cpu0') RETURNING 1")
    answer = removed(ident)
    expect(answer == {"id": ident, "removed": [ident], "bytes": 2000}, answer)
    expect(counts() == before, f"{before} before, {counts()} after")
    expect(ledger.strip() == "1" and api.psql(f"SELECT count(*) FROM ledger WHERE job = {ident}").strip() == "1", "what it used is kept")
    api.refused(404, "GET", f"/v1/jobs/{ident}")
    api.refused(404, "DELETE", f"/v1/jobs/{ident}")
    expect(api.good("GET", f"/v1/jobs/{kept}")["name"] == "kept", "another job")
    said = json.loads(api.psql("SELECT json_build_object('what', what, 'object', object, 'before', before) FROM audit ORDER BY id DESC LIMIT 1"))
    expect(said["what"] == "job.remove" and said["object"] == str(ident) and said["before"]["name"] == "gone", said)
    # a second ago somebody sent these files, perhaps for the next job: they stay for now
    expect(api.psql("SELECT count(*) FROM blobs WHERE sha256 IN ('" + "','".join(made) + "') AND used_at > now() - interval '1 hour'").strip() == "2", "")


def its_files_go_with_the_next_sweep():
    with Api(unused_seconds=3600) as swept:
        global api
        mine, api = api, swept
        try:
            swept.tiny_model()
            globals()["rows"] = swept.upload_rows(token_rows(20))
            ident, made = ended("gone", seed=3)
            _, shared = ended("kept", seed=4)
            swept.psql(f"UPDATE checkpoints SET blobs = '{{\"state.json\": \"{shared[0]}\"}}' WHERE job = {ident};"
                       "UPDATE blobs SET used_at = now() - interval '2 h'")
            expect(removed(ident)["bytes"] == 1000, "the checkpoint's file is another job's, too")
            expect(swept.psql("SELECT sha256 FROM blobs WHERE used_at = 'epoch'").strip() == made[1], "due at once")
        finally:
            api = mine
            globals()["rows"] = mine.rows


def what_is_needed_is_refused_by_name():
    def refused(ident, words, status=409):
        before = counts()
        api.refused(status, "DELETE", f"/v1/jobs/{ident}", None, words)
        expect(counts() == before, f"{words}: something went all the same")

    open_job = api.good("POST", "/v1/jobs", spec(rows, name="open", hold=True))["id"]
    refused(open_job, f"job {open_job} is held: only a job that has ended can be removed (motley cancel {open_job})")
    shared, _ = ended("shared", seed=5)
    api.psql(f"UPDATE jobs SET visibility = 'everyone' WHERE id = {shared}")
    refused(shared, f"job {shared} is shared with everyone: take it back first (motley share {shared} mine)")
    first, made = ended("first", seed=6)
    later = api.good("POST", "/v1/jobs", spec(rows, name="later", after=[first], hold=True))["id"]
    refused(first, f"job {later} comes after job {first}, and has not ended")
    api.psql(f"UPDATE jobs SET state = 'cancelled', ended_at = now() WHERE id = {later}")
    starts = api.good("POST", "/v1/jobs", spec(rows, name="starts", hold=True))["id"]
    api.psql(f"UPDATE jobs SET inputs = (inputs::jsonb || '{{\"adapter\": {{\"weights\": {{\"sha256\": \"{made[1]}\"}}}}}}')::json WHERE id = {starts}")
    refused(first, f"job {starts} starts from what job {first} made, and has not ended")
    api.psql(f"UPDATE jobs SET state = 'failed', ended_at = now() WHERE id = {starts}")
    expect(removed(first)["bytes"] == 2000, "nothing needs it any more")
    expect(api.good("GET", f"/v1/jobs/{later}")["name"] == "later", "the job after it stays")


def an_array_goes_with_its_elements():
    array, _ = ended("array", seed=7)
    one, two = ended("one", seed=8)[0], ended("two", seed=9)[0]
    api.psql(f"UPDATE jobs SET array_size = 2, array_made = 2 WHERE id = {array};"
             f"UPDATE jobs SET array_of = {array}, array_index = id - {one} WHERE id IN ({one}, {two});"
             f"UPDATE jobs SET state = 'running' WHERE id = {two}")
    api.refused(409, "DELETE", f"/v1/jobs/{array}", None, f"job {two} is running")
    api.psql(f"UPDATE jobs SET state = 'succeeded' WHERE id = {two}")
    answer = removed(array)
    expect(answer["removed"] == [array, one, two] and answer["bytes"] == 6000, answer)


def what_jobs_left_goes_after_their_groups_time():
    for name in ("lab", "team", "free"):
        api.good("POST", "/v1/groups", {"name": name, "members": ["admin"]})
    api.refused(422, "PATCH", "/v1/groups/lab", {"retention_s": -1}, "retention_s")
    api.good("PATCH", "/v1/groups/lab", {"retention_s": 86400})
    api.good("PATCH", "/v1/groups/team", {"parent": "lab"})
    old, made = ended("old", seed=21, account="team")
    young, needed, other = ended("young", seed=22, account="team")[0], ended("needed", seed=23, account="lab"), ended("other", seed=24, account="free")[0]
    starts = api.good("POST", "/v1/jobs", spec(rows, name="starts", hold=True))["id"]
    api.psql(f"UPDATE jobs SET inputs = (inputs::jsonb || '{{\"adapter\": {{\"weights\": {{\"sha256\": \"{needed[1][1]}\"}}}}}}')::json WHERE id = {starts};"
             f"UPDATE jobs SET ended_at = '2026-01-01T00:00:00Z' WHERE id IN ({old}, {needed[0]}, {other});"
             "UPDATE blobs SET used_at = now() - interval '2 h'")
    job = api.good("GET", f"/v1/jobs/{old}")
    expect(job["files_until"] == "2026-01-02T00:00:00.000000Z" and job["files_gone"] is None, job)
    expect(api.good("GET", f"/v1/jobs/{other}")["files_until"] is None, "a group without a rule keeps them")
    storage = api.good("GET", "/v1/storage")["groups"]
    expect(storage == [{"group": "lab", "retention_s": 86400}, {"group": "team", "retention_s": 86400}], storage)
    stranger = api.good("POST", "/v1/tokens", {"user": "stranger", "scopes": ["jobs:read"]})["token"]
    expect(api.good("GET", "/v1/storage", token=stranger)["groups"] == [], "groups of others")
    expect(api.psql("SELECT motley_files_prune(20)").strip() == "1", "one, as the other one is needed")
    job = api.good("GET", f"/v1/jobs/{old}")
    expect(job["checkpoints"] == job["artifacts"] == [] and job["files_until"] is None and job["files_gone"], job)
    api.refused(409, "POST", f"/v1/jobs/{old}/resume", {"steps": 5}, "its checkpoints went at")
    expect(api.psql(f"SELECT count(*) FROM metrics WHERE job = {old}").strip() == "50", "the rest of the job stays")
    expect(sorted(api.psql("SELECT sha256 FROM blobs WHERE used_at = 'epoch'").split()) == sorted(made), "its files are due")
    for ident in (young, needed[0], other):
        job = api.good("GET", f"/v1/jobs/{ident}")
        expect(len(job["checkpoints"]) == len(job["artifacts"]) == 1, job)
    api.psql(f"UPDATE jobs SET state = 'failed', ended_at = now() WHERE id = {starts}")
    expect([api.psql("SELECT motley_files_prune(20)").strip() for _ in (0, 1)] == ["1", "0"], "nothing needs it any more")
    api.good("PATCH", "/v1/groups/lab", {"retention_s": 0})
    expect(api.good("GET", f"/v1/jobs/{young}")["files_until"] is None and api.good("GET", "/v1/storage")["groups"] == [], "no rule")


def the_disk_is_told_by_person():
    before = {user["user"]: user for user in api.good("GET", "/v1/storage")["users"]}
    ident, _ = ended("weighs", seed=11)
    told = api.good("GET", "/v1/storage")
    mine = {user["user"]: user for user in told["users"]}["admin"]
    expect(mine["checkpoints_bytes"] - before["admin"]["checkpoints_bytes"] == 1000 and
           mine["results_bytes"] - before["admin"]["results_bytes"] == 1000 and mine["jobs"] == before["admin"]["jobs"] + 1, (before, told))
    expect(0 < told["free_bytes"] <= told["disk_bytes"] and told["database_bytes"] > 0, told)
    where = os.statvfs(api.config["blobs"])
    expect(told["disk_bytes"] == where.f_blocks * where.f_frsize, told)
    removed(ident)
    after = {user["user"]: user for user in api.good("GET", "/v1/storage")["users"]}["admin"]
    expect(after["checkpoints_bytes"] == before["admin"]["checkpoints_bytes"] and after["jobs"] == before["admin"]["jobs"], after)
    metrics = api.call("GET", "/metrics", token=None).body.decode()
    expect(f"motley_files_disk_bytes {where.f_blocks * where.f_frsize}" in metrics and "motley_files_free_bytes " in metrics, "metrics")


with Api() as api:
    api.tiny_model()
    rows = api.rows = api.upload_rows(token_rows(20))
    main(a_job_goes_with_all_that_it_left_and_nothing_else, its_files_go_with_the_next_sweep, what_is_needed_is_refused_by_name,
         an_array_goes_with_its_elements, what_jobs_left_goes_after_their_groups_time, the_disk_is_told_by_person)
