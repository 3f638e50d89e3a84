#!/usr/bin/env python3
"""Tests what holds for every route: pages, filters, keys of repeated requests, problems, and ids of requests."""
import hashlib
import json

from api import Api, expect, main, spec, token_rows


def pages(path, member, limit):
    """Follows `next` until it is null, as any client does that knows nothing of the list. Returns items and documents."""
    items, documents, after = [], [], ""
    while after is not None:
        joint = "&" if "?" in path else "?"
        document = api.good("GET", f"{path}{joint}limit={limit}" + (f"&after={after}" if after else ""))
        documents.append(document)
        expect(len(document[member]) <= limit, f"{path}: {len(document[member])} items, {limit} were asked for")
        expect(document["next"] is None or isinstance(document["next"], str) and document["next"], f"{path}: {document['next']}")
        items += document[member]
        after = document["next"]
        expect(len(documents) < 100, f"{path}: no end")
    return items, documents


def fill():
    api.tiny_model("b")
    api.tiny_model("ä")
    api.good("POST", "/v1/jobs", spec(rows, name="second"))
    for name in ("anna", "Zoë", "_x"):
        api.token_for(name, ["jobs:read"])
        api.good("POST", "/v1/groups", {"name": f"g-{name}", "members": [name]})
    for node in ("n1", "n2", "n10"):
        api.psql(f"INSERT INTO nodes (name) VALUES ('{node}'); INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) "
                 f"VALUES ('{node}/cpu0', '{node}', 'cpu', '{{}}', 'd', 1), ('{node}/cpu1', '{node}', 'cpu', '{{}}', 'd', 1); "
                 f"INSERT INTO profiles (device, key, digest, document) VALUES ('{node}/cpu0', 'k', 'd', '{{}}'), ('{node}/cpu0', 'l', 'd', '{{}}')")
    api.psql(f"INSERT INTO runs (job, attempt, epoch, state, plan, answer) SELECT {ident}, n, n, 'failed', '{{}}', '{{}}' FROM "
             f"generate_series(1, 120) n; INSERT INTO artifacts (job, name, sha256, size) SELECT {ident}, 'f' || n, repeat('a', 64), n FROM "
             f"generate_series(1, 7) n; INSERT INTO metrics (job, kind, step, rank, document) SELECT {ident}, 'step', n, 0, '{{}}' FROM "
             f"generate_series(0, 6) n; INSERT INTO events (job, type, body) SELECT {ident}, 'log', json_build_object('text', n) FROM "
             f"generate_series(1, 7) n")


def every_list_comes_whole_in_pages_of_any_size():
    job = f"/v1/jobs/{ident}"
    for path, member, most in (("/v1/jobs", "jobs", 1), (job + "/runs", "runs", 7), (job + "/artifacts", "artifacts", 2),
                               (job + "/metrics", "lines", 2), (job + "/logs", "lines", 2), ("/v1/models", "models", 1), ("/v1/nodes", "nodes", 1),
                               ("/v1/devices", "devices", 2), ("/v1/profiles", "profiles", 1), ("/v1/users", "users", 1),
                               ("/v1/groups", "groups", 1), ("/v1/tokens", "tokens", 1), ("/v1/audit", "audit", 3)):
        whole, documents = pages(path, member, 500)
        expect(len(documents) == 1 and len(whole) > 1, f"{path}: {len(documents)} pages, {len(whole)} items")
        expect(api.good("GET", path)["next"] is None or path.endswith("/runs"), path)
        parts, documents = pages(path, member, most)
        expect(parts == whole, f"{path}: {parts} and not {whole}")
        expect(len(documents) >= len(whole) // most, path)


def no_run_is_cut_off():
    first = api.good("GET", f"/v1/jobs/{ident}/runs")
    expect(len(first["runs"]) == 100 and first["next"], f"{len(first['runs'])} runs, next {first['next']}")
    rest = api.good("GET", f"/v1/jobs/{ident}/runs?after={first['next']}")
    expect([run["attempt"] for run in first["runs"] + rest["runs"]] == list(range(120, 0, -1)) and rest["next"] is None, rest)


def logs_say_where_later_lines_begin():
    page = api.good("GET", f"/v1/jobs/{ident}/logs")
    expect(page["next"] is None and page["last"], page)
    api.psql(f"INSERT INTO events (job, type, body) VALUES ({ident}, 'log', '{{\"text\": \"late\"}}')")
    late = api.good("GET", f"/v1/jobs/{ident}/logs?after={page['last']}")
    expect([line["text"] for line in late["lines"]] == ["late"] and late["next"] is None, late)


def an_item_that_is_gone_loses_none_of_those_behind_it():
    first = api.good("GET", "/v1/models?limit=1")
    expect(first["models"][0]["name"] == "b", first)
    api.good("DELETE", "/v1/models/b")
    rest = api.good("GET", f"/v1/models?after={first['next']}")
    expect([model["name"] for model in rest["models"]] == ["tiny", "ä"], rest)


def a_cursor_of_no_list_is_refused():
    for path in ("/v1/nodes", "/v1/jobs", f"/v1/jobs/{ident}/runs", f"/v1/jobs/{ident}/logs"):
        for after in ("", "x", "-5", "0" * 5000 if path == "/v1/nodes" else "9" * 30):
            expect(api.call("GET", f"{path}?after={after}").status in (400, 414), f"{path}?after={after[:40]}")
        api.refused(400, "GET", f"{path}?limit=0", None, "limit")
        api.refused(400, "GET", f"{path}?limit=100000", None, "limit")


def found(query, **keywords):
    return [job["name"] for job in api.good("GET", f"/v1/jobs?{query}", **keywords)["jobs"]]


def jobs_are_found_by_owner_group_label_state_and_time():
    anna = api.token_for("anna", ["jobs:read", "jobs:write", "models:write", "models:read"])
    mine = {"token": anna}
    hers = "sha256:" + api.upload("".join(json.dumps(row) + "\n" for row in token_rows()).encode(), **mine)
    api.good("POST", "/v1/jobs", spec(hers, name="a1", labels={"project": "lion", "x/y": "ü"}), **mine)
    shared = api.good("POST", "/v1/jobs", spec(hers, name="a2", labels={"project": "bear"}, hold=True), **mine)["id"]
    third = api.good("POST", "/v1/jobs", spec(hers, name="a3"), **mine)["id"]
    api.good("POST", f"/v1/jobs/{third}/cancel", **mine)
    api.good("POST", f"/v1/jobs/{shared}/share", {"visibility": "group", "group": "g-anna"}, **mine)
    for keywords in ({}, mine):
        for query, names in (("owner=anna", ["a3", "a2", "a1"]), ("group=g-anna", ["a2"]), ("group=none", []), ("owner=nobody", []),
                             ("label=project", ["a2", "a1"]), ("label=project%3Dlion", ["a1"]), ("label=project=lion,x/y", ["a1"]),
                             ("label=project&label=x%2Fy=%C3%BC", ["a1"]), ("label=project=lion&label=nothing", []),
                             ("owner=anna&state=held,cancelled", ["a3", "a2"]), ("owner=anna&state=held&state=queued", ["a2", "a1"]),
                             ("owner=anna&state=queued&label=project=bear", []), ("owner=anna&from=2100-01-01", []),
                             ("owner=anna&to=2020-02-29T12:00:00.5%2B01:00", []), ("owner=anna&from=2020-01-01&to=2100-01-01T00:00:00Z", ["a3", "a2", "a1"])):
            expect(found(query, **keywords) == names, f"{query}: {found(query, **keywords)}, not {names}")
    expect(set(found("state=cancelled,held", **mine)) == {"a2", "a3"}, "by states alone")
    job = api.good("GET", "/v1/jobs?owner=anna&label=x/y")["jobs"][0]
    expect(job["labels"] == {"project": "lion", "x/y": "ü"} == api.good("GET", f"/v1/jobs/{job['id']}")["spec"]["labels"], job)
    first = api.good("GET", "/v1/jobs?owner=anna&limit=2")
    expect([job["name"] for job in api.good("GET", f"/v1/jobs?owner=anna&limit=2&after={first['next']}")["jobs"]] == ["a1"], "in pages")


def a_filter_that_means_nothing_is_refused():
    for query, word in (("state=asleep", "asleep"), ("state=queued,", "state"), ("state=", "state"), ("label=", "label"), ("label=a,a", "label"), ("label=%C3%B9", "label"), ("label=a&label=O%1Bw", "label"), ("label=a=x%7F", "label"), ("label=" + "k" * 64, "label"),
                        ("label=k=" + "v" * 128, "label"),
                        ("label=" + ",".join(f"k{i}" for i in range(17)), "16"), ("from=yesterday", "from"), ("to=2026-02-30", "2026-02-30"),
                        ("to=2026-01-01T25:00:00Z", "to"), ("from=2026-01-01T00:00:00", "from"), ("owner=a&owner=b", "owner")):
        api.refused(400, "GET", f"/v1/jobs?{query}", None, word)
    for labels, word in (({"a b": "c"}, "a b"), ({"": "c"}, "labels"), ({"a": 3}, "a"), ({"a": "x,y"}, "a"), ({"a": "x\ny"}, "a"), ({"a": "x" * 128}, "127"),
                         ({f"k{i}": "" for i in range(17)}, "16"), ({"k" * 64: ""}, "63"), (["a"], "labels")):
        api.refused(422, "POST", "/v1/jobs", spec(rows, labels=labels), "labels", word)


def a_repeated_submit_answers_its_job_whatever_a_check_would_say_today():
    key = {"Idempotency-Key": "again"}
    api.tiny_model("short-lived")
    body = spec(rows, model="short-lived")
    made = api.good("POST", "/v1/jobs", body, headers=key)
    api.good("DELETE", "/v1/models/short-lived")
    api.refused(422, "POST", "/v1/jobs", body, "short-lived")
    again = api.call("POST", "/v1/jobs", body, headers=key)
    expect(again.status == 201 and again.json["id"] == made["id"] and again.headers["idempotent-replayed"] == "true", again.body)
    api.refused(409, "POST", "/v1/jobs", dict(body, name="other"), "again", headers=key)
    api.refused(409, "POST", "/v1/jobs", {"nonsense": 1}, "again", headers=key)
    other = api.token_for("anna", ["jobs:write"])
    api.refused(422, "POST", "/v1/jobs", body, "short-lived", headers=key, token=other)  # keys are each user's own


def problems_point_at_the_place_in_the_body():
    for body, pointer in ((spec(rows, train={"batch_rows": 0}), "/train/batch_rows"), (spec(rows, model="unheard-of"), "/model"),
                          (spec(rows, train={"step": 3}), "/train/step"), (spec(rows, labels={"a": 3}), "/labels"), (spec(rows, colour="red"), "/colour"),
                          (spec(rows, placement={"devices": ["left/cpu9"]}), "/placement/devices"),
                          (spec("sha256:" + "1" * 64), "/data/train"), ({"data": {"train": rows}}, "/model"),
                          (spec("sha256:" + api.upload(b'{"ids": [1, 2], "labels": [1]}\n')), "/data/train")):
        problem = api.refused(422, "POST", "/v1/jobs", body)
        expect([error["pointer"] for error in problem["errors"]] == [pointer], problem)
        expect(problem["detail"].endswith(problem["errors"][0]["detail"]), problem)
    problem = api.refused(422, "POST", "/v1/models", {"name": "m", "files": [{"name": "config.json", "sha256": api.upload(b"{}")}]})
    expect(all(error["pointer"] != "/config/json" for error in problem.get("errors", [])), problem)
    expect("errors" not in api.refused(404, "GET", "/v1/jobs/999999"), "there is no body")


def every_answer_has_the_requests_id_or_one_of_its_own():
    for path in ("/healthz", "/v1/jobs", "/v1/nothing", f"/v1/jobs/{ident}/events?type=none"):
        for method in ("HEAD", "BREW"):
            expect(api.call(method, path, headers={"X-Request-Id": "proxy-1.a_B"}).headers["x-request-id"] == "proxy-1.a_B", path)
    made = {api.call("GET", "/healthz").headers["x-request-id"] for _ in range(3)}
    for given in ("", "x" * 65, "a b", "ä".encode(), "a/b"):
        made.add(api.call("GET", "/healthz", headers={"X-Request-Id": given}).headers["x-request-id"])
    expect(len(made) == 8 and all(len(one) == 24 for one in made), made)
    expect(b"X-Request-Id: " in api.raw(b"G@T / HTTP/1.1\r\nHost: x\r\n\r\n"), "malformed")
    api.refused(400, "GET", "/v1/jobs?limit=0", None, "limit", headers={"X-Request-Id": "mine"})


def every_post_with_a_key_is_carried_out_once():
    device = "n1/cpu0"
    key = {"Idempotency-Key": "lease-1"}
    first = api.call("POST", "/v1/leases", {"device": device, "seconds": 3600}, headers=key)
    again = api.call("POST", "/v1/leases", {"device": device, "seconds": 3600}, headers=key)
    expect(first.status == again.status == 200 and first.json == again.json, f"{first.body} {again.body}")
    expect(again.headers.get("idempotent-replayed") == "true" and "idempotent-replayed" not in first.headers, again.headers)
    api.refused(409, "POST", "/v1/leases", {"device": "n1/cpu1", "seconds": 3600}, "another request", headers=key)
    api.refused(409, "POST", f"/v1/jobs/{ident}/hold", None, "another request", headers=key)
    api.refused(400, "POST", "/v1/leases", {"device": device, "seconds": 3600}, "Idempotency-Key", headers={"Idempotency-Key": "a b"})
    token = api.token_for("anna", ["leases:write"])  # keys are each person's own
    api.good("POST", "/v1/leases", {"device": "n10/cpu0", "seconds": 3600}, headers=key, token=token)
    # what the state is now is of no account
    job = api.good("POST", "/v1/jobs", spec(rows))["id"]
    hold = {"Idempotency-Key": "hold-1"}
    expect(api.good("POST", f"/v1/jobs/{job}/hold", headers=hold)["state"] == "held", "held")
    api.good("POST", f"/v1/jobs/{job}/release")
    expect(api.good("POST", f"/v1/jobs/{job}/hold", headers=hold)["state"] == "held", "the answer of then")
    expect(api.good("GET", f"/v1/jobs/{job}")["state"] == "queued", "and nothing is changed")
    empty = {"Idempotency-Key": "share-1"}
    answers = [api.call("POST", f"/v1/jobs/{job}/share", {"visibility": "everyone"}, headers=empty) for _ in range(2)]
    expect(answers[0].status == answers[1].status and answers[0].body == answers[1].body, "as it was")


def a_key_of_what_was_refused_is_free_again():
    key = {"Idempotency-Key": "group-1"}
    api.refused(422, "POST", "/v1/groups", {"name": "g-later", "members": ["nobody-there"]}, "members", headers=key)
    api.good("POST", "/v1/groups", {"name": "g-later", "members": []}, headers=key)
    api.refused(409, "POST", "/v1/groups", {"name": "g-later", "members": ["anna"]}, "another request", headers=key)


def a_secret_is_told_once_and_made_once():
    key = {"Idempotency-Key": "token-1"}
    before = len(api.good("GET", "/v1/tokens?limit=500")["tokens"])
    api.good("POST", "/v1/tokens", {"note": "once"}, headers=key)
    api.refused(409, "POST", "/v1/tokens", {"note": "once"}, "only once", headers=key)
    expect(len(api.good("GET", "/v1/tokens?limit=500")["tokens"]) == before + 1, "one token")
    expect(api.psql("SELECT body IS NULL FROM answers WHERE key = 'token-1'") == "t", "and its secret is nowhere")


def a_request_whose_answer_is_not_known_is_not_repeated():
    path = f"/v1/jobs/{ident}/hold"
    digest = hashlib.sha256(f"POST {path}?\n".encode()).hexdigest()
    api.psql(f"INSERT INTO answers (asker, key, digest) SELECT id, 'lost', decode('{digest}', 'hex') FROM users WHERE name = 'admin'")
    key = {"Idempotency-Key": "lost"}
    api.refused(503, "POST", path, None, "under way", headers=key)
    api.psql("UPDATE answers SET at = now() - interval '2 minutes' WHERE key = 'lost'")
    api.refused(409, "POST", path, None, "lost", headers=key)
    expect(api.good("GET", f"/v1/jobs/{ident}")["state"] == "queued", "it was not held")


def what_has_another_etag_by_now_is_not_changed():
    path = f"/v1/jobs/{api.good('POST', '/v1/jobs', spec(rows))['id']}"
    seen = api.call("GET", path).headers["etag"]

    def change(priority, tag, method="PATCH", at=path):
        return api.call(method, at, {"priority": priority} if method == "PATCH" else None, headers={"If-Match": tag})
    expect(change(5, seen).status == 200, "what was seen is changed")
    refused = change(6, seen)
    expect((refused.status, refused.problem["code"]) == (412, "stale"), refused.body)
    expect(api.good("GET", path)["priority"] == 5, "and not a second time")
    expect(change(7, "*").status == 200 and change(8, f'"other", {api.call("GET", path).headers["etag"]}').status == 200, "any, or one of a list")
    expect(change(9, seen, at="/v1/jobs/999999").status == 404, "what is not there")
    expect([change(9, seen, "DELETE", at).status for at in ("/v1/models/tiny", "/v1/groups/none")] == [412, 412], "another's tag, and no GET there")
    expect(api.call("DELETE", "/v1/models/tiny", headers={"If-Match": api.call("GET", "/v1/models/tiny").headers["etag"]}).status == 204, "the model goes")
    api.tiny_model()
    sha256 = rows.removeprefix("sha256:")
    for at, tag in ((path, api.call("GET", path).headers["etag"]), (f"/v1/blobs/{sha256}", f'"{sha256}"')):
        expect([api.call("GET", at, headers={"If-Match": asked}).status for asked in (tag, seen)] == [200, 412], at)


with Api() as api:
    api.tiny_model()
    rows = api.upload_rows(token_rows())
    ident = api.good("POST", "/v1/jobs", spec(rows))["id"]
    fill()
    main(every_list_comes_whole_in_pages_of_any_size, no_run_is_cut_off, logs_say_where_later_lines_begin,
         an_item_that_is_gone_loses_none_of_those_behind_it, a_cursor_of_no_list_is_refused,
         jobs_are_found_by_owner_group_label_state_and_time, a_filter_that_means_nothing_is_refused,
         a_repeated_submit_answers_its_job_whatever_a_check_would_say_today,
         every_post_with_a_key_is_carried_out_once, a_key_of_what_was_refused_is_free_again, a_secret_is_told_once_and_made_once,
         a_request_whose_answer_is_not_known_is_not_repeated, problems_point_at_the_place_in_the_body, what_has_another_etag_by_now_is_not_changed, every_answer_has_the_requests_id_or_one_of_its_own)
