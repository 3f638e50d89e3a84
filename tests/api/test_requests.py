#!/usr/bin/env python3
"""Tests that wrong requests get the right status and a sentence, and that the connection stays usable."""
import gzip
import hashlib
import json
import re
import subprocess
import threading

from api import Api, expect, main, spec, wait_for


def without_a_valid_token_nothing_is_told():
    for path in ("/v1/jobs", "/v1/nodes", "/v1/models", "/v1/whoami"):
        expect(api.call("GET", path, token=None).headers.get("www-authenticate") == "Bearer", path)
        api.refused(401, "GET", path, None, "token", token=None)
        api.refused(401, "GET", path, None, "token", token="f" * 64)
    api.refused(401, "GET", "/v1/jobs", None, "token", token=None, headers={"Authorization": "Basic YTpi"})
    api.refused(401, "POST", "/v1/jobs", spec("x"), "token", token=None)


def who_shows_too_many_wrong_tokens_waits_and_right_ones_never_do():
    """An address may show 20 wrong tokens at once, then one in 2 s (api/http/wrong.h)."""
    reader = api.token_for("neighbour", ["jobs:read"])  # its first use is below, so the api looks it up and has not cached it
    seen, waits = [], []
    for n in range(30):
        answer = api.call("GET", "/v1/whoami", token=f"{n:064x}")
        seen.append(answer.status)
        if answer.status == 429:
            waits.append(int(answer.headers["retry-after"]))
            expect("wrong tokens" in answer.problem["detail"] and answer.headers["connection"] == "close", f"{answer.headers}")
    expect(401 in seen and seen.count(429) >= 5, f"{seen}")
    expect(all(1 <= wait <= 2 for wait in waits), f"{waits}")
    for _ in range(40):
        api.good("GET", "/v1/jobs", token=reader)
    api.good("GET", "/v1/whoami")
    text = api.call("GET", "/metrics").body.decode()
    expect(re.search(r"^motley_api_wrong_tokens_total [3-9]\d", text, re.M), "they are counted")
    wait_for(lambda: api.call("GET", "/v1/whoami", token="e" * 64).status == 401, "after a while it may try again")


def a_token_without_the_scope_is_refused_by_the_scopes_name():
    reader = api.token_for("reader", ["jobs:read"])
    api.good("GET", "/v1/jobs", token=reader)
    api.refused(403, "POST", "/v1/jobs", spec("x"), "jobs:write", token=reader)
    api.refused(403, "PUT", "/v1/blobs/" + "0" * 64, b"x", "models:write", token=reader)
    api.refused(403, "POST", "/v1/join-tokens", {}, "nodes:write", token=reader)
    api.refused(403, "POST", "/v1/tokens", {"user": "me", "scopes": ["admin"]}, "admin", token=reader)
    person = api.token_for("person", ["jobs:write", "jobs:read"])
    asks = dict(spec("x"), placement={"planner": "mine"})
    for path in ("/v1/jobs", "/v1/jobs:validate"):
        api.refused(403, "POST", path, asks, "placement.planner", token=person)
        api.refused(422, "POST", path, asks, "no model is registered")  # an administrator may set it, and fails only for want of a model
        api.refused(422, "POST", path, dict(spec("x"), placement={"planner": 3}), "placement.planner", token=person)
    writer = api.token_for("writer", ["models:write"])
    api.refused(403, "POST", "/v1/models", {"name": "m", "path": "/etc"}, "administrator", token=writer)


def a_revoked_and_an_expired_token_end():
    made = api.good("POST", "/v1/tokens", {"user": "gone", "scopes": ["jobs:read"]})
    api.good("GET", "/v1/jobs", token=made["token"])
    api.good("DELETE", f"/v1/tokens/{made['id']}")
    api.refused(401, "GET", "/v1/jobs", token=made["token"])
    api.refused(404, "DELETE", "/v1/tokens/999999999", None, "999999999")


def a_token_that_was_read_before_its_revocation_is_not_remembered():
    """A look-up reads a valid token and is held up; the token is revoked meanwhile; only then the answer comes."""
    made = api.good("POST", "/v1/tokens", {"user": "late", "scopes": ["jobs:read"]})
    api.good("GET", "/v1/whoami")  # the administrator's token is remembered: what follows looks up one alone
    shown = hashlib.sha256(made["token"].encode()).hexdigest()
    api.psql(f"""CREATE FUNCTION held(hash bytea) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
        IF hash = '\\x{shown}' AND current_query() LIKE '%t.hash = $1%' THEN PERFORM pg_advisory_xact_lock_shared(7); END IF; RETURN true; END $$;
        ALTER TABLE tokens RENAME TO tokens_stored; CREATE VIEW tokens AS SELECT * FROM tokens_stored WHERE held(hash)""")
    answers = []
    asker = threading.Thread(target=lambda: answers.append(api.call("GET", "/v1/jobs", token=made["token"]).status))
    with subprocess.Popen(["psql", "-X", "-q", "-A", "-t", api.postgres.conninfo], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        holder.stdin.write("SELECT pg_advisory_lock(7); SELECT 'held';\n")
        holder.stdin.flush()
        wait_for(lambda: "held" in holder.stdout.readline(), "the lock")
        asker.start()
        wait_for(lambda: api.psql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == "1", "the look-up waits")
        api.good("DELETE", f"/v1/tokens/{made['id']}")
        holder.stdin.close()
    asker.join()
    api.psql("DROP VIEW tokens; ALTER TABLE tokens_stored RENAME TO tokens; DROP FUNCTION held")
    expect(answers == [200], f"it was valid when it was read: {answers}")
    api.refused(401, "GET", "/v1/jobs", token=made["token"])


def bodies_over_the_limit_are_refused_before_they_are_read():
    big = b"{" + b" " * (16 << 20) + b"}"
    api.refused(413, "POST", "/v1/jobs", big, "16777216", headers={"Content-Type": "application/json"})
    connection = api.connection()
    headers = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/json", "Transfer-Encoding": "chunked"}
    try:
        connection.request("POST", "/v1/jobs", body=(big[i:i + 65536] for i in range(0, len(big), 65536)), headers=headers,
                           encode_chunked=True)
    except (BrokenPipeError, ConnectionResetError):
        pass
    answer = connection.getresponse()
    expect(answer.status == 413, f"chunked: {answer.status}")
    expect(json.loads(answer.read())["code"] == "too-big", "chunked: code")
    api.refused(413, "POST", "/v1/join-tokens", b"{" + b" " * 70000 + b"}", "65536", headers={"Content-Type": "application/json"})


def bodies_that_are_no_json_object_are_refused():
    json_type = {"Content-Type": "application/json"}
    for text in (b"", b"{", b"nul", b'{"a":1,"a":2}', b'{"a":NaN}', b'"\xff"', b"{} {}", b"[" * 100 + b"]" * 100):
        api.refused(400, "POST", "/v1/jobs", text, "JSON", headers=json_type)
    api.refused(422, "POST", "/v1/jobs", b"[]", "object", headers=json_type)
    for number in (b"9" * 20, b"1e999"):  # JSON, but no number that a field of ours can hold
        api.refused(422, "POST", "/v1/jobs", b'{"name": ' + number + b"}", "number that is too large", headers=json_type)
    packed = gzip.compress(json.dumps(spec("x")).encode())
    api.refused(415, "POST", "/v1/jobs", packed, "gzip", headers={"Content-Type": "application/json", "Content-Encoding": "gzip"})
    api.refused(415, "PUT", f"/v1/blobs/{hashlib.sha256(packed).hexdigest()}", packed, "gzip", headers={"Content-Encoding": "gzip"})
    api.refused(415, "POST", "/v1/jobs", b"model: x", "application/json", headers={"Content-Type": "application/yaml"})


def unknown_paths_methods_and_parameters_are_named():
    api.refused(404, "GET", "/v1/nothing", None, "/v1/nothing")
    api.refused(404, "GET", "/v1/jobs/", None)
    api.refused(404, "GET", "/v1/jobs/abc", None, "abc")
    api.refused(404, "GET", "/v1/jobs/999999999", None, "999999999")
    api.refused(404, "GET", "/v1/models/none", None, "none")
    for method in ("DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", "BREW"):
        answer = api.call(method, "/v1/jobs")
        expect(answer.status == 405 and answer.headers.get("allow") == "POST, GET, HEAD", f"{method}: {answer.status} {answer.headers}")
        expect(answer.problem["code"] == "invalid", method)
    api.refused(400, "GET", "/v1/jobs?colour=red", None, "colour", "limit")
    api.refused(400, "GET", "/v1/jobs?limit=0", None, "limit", "500")
    api.refused(400, "GET", "/v1/jobs?limit=5&limit=6", None, "limit", "twice")
    api.refused(400, "GET", "/v1/jobs?state=asleep", None, "asleep")
    api.refused(400, "GET", "/v1/jobs?after=%zz", None, "after")
    api.refused(400, "GET", "/v1/models/%ff%fe", None, "UTF-8")
    api.refused(400, "GET", "/v1/models/%00", None)


def malformed_heads_are_refused_and_close():
    good = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    cases = {
        b"GET /healthz\r\n\r\n": 400,
        b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n": 505,
        b"GET /healthz HTTP/1.1\r\n\r\n": 400,  # the header Host is missing
        b"GET http://x/healthz HTTP/1.1\r\nHost: x\r\n\r\n": 400,
        b"G@T /healthz HTTP/1.1\r\nHost: x\r\n\r\n": 400,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n": 400,
        b"GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n": 400,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n": 400,
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n": 400,
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n": 400,
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n": 400,
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n": 400,
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n": 501,
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\n\r\n": 417,
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n": 414,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 100 + b"\r\n": 431,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\na: " + b"b" * 40000 + b"\r\n\r\n": 431,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\na: b\0c\r\n\r\n": 400,
        b"GET /healthz HTTP/1.1\nHost: x\n\r\n\r\n": 400,
    }
    for data, status in cases.items():
        out = api.raw(data + good)
        expect(out.startswith(b"HTTP/1.1 %d " % status), f"{data[:60]}: {out[:60]}, not {status}")
        expect(out.count(b"HTTP/1.1 ") == 1, f"{data[:60]}: the bytes behind it were taken for a request")
        expect(b"application/problem+json" in out, f"{data[:60]}: no problem+json")


def a_body_nobody_asked_for_is_not_taken_for_a_request():
    inner = b"GET /v1/secret HTTP/1.1\r\nHost: x\r\n\r\n"
    out = api.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(inner) + inner +
                  b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    expect(out.count(b"HTTP/1.1 200 ") == 2 and b"secret" not in out, out)


def requests_sent_at_once_are_answered_in_order():
    one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    two = b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n"
    out = api.raw(one + two + one + one.replace(b"Host: x", b"Host: x\r\nConnection: close"))
    statuses = re.findall(rb"HTTP/1\.1 (\d+) ", out)
    expect(statuses == [b"200", b"404", b"200", b"200"], statuses)


def chunked_bodies_are_read_and_bad_chunks_refused():
    head = (f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n").encode()
    expect(api.raw(head + b"1\r\n{\r\n1;x=y\r\n}\r\n0\r\nt: v\r\n\r\n").startswith(b"HTTP/1.1 422 "), "chunked {}")
    for bad in (b"x\r\n", b"2\r\n{}x\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"1" * 300):
        expect(api.raw(head + bad).startswith(b"HTTP/1.1 4"), bad)
    # Lines that another server could end, or numbers that it could read, otherwise; and fields without end.
    for bad in (b"2;\nxx\r\n{}", b"2;\rx\r\n{}", b"2;\0\r\n{}", b"2 x\r\n{}", b"2 ;\x7f\r\n{}", b"2\r\n{}\r\n0\r\nt: \nv"):
        expect(api.raw(head + bad + b"\r\n0\r\n\r\n").startswith(b"HTTP/1.1 400 "), bad)
    expect(api.raw(head + b"2 ; x=y\r\n{}\r\n0\r\n\r\n").startswith(b"HTTP/1.1 422 "), "blanks before an extension")
    expect(api.raw(head + b"2\r\n{}\r\n0\r\n" + b"t: v\r\n" * 3000).startswith(b"HTTP/1.1 431 "), "trailers without end")


def head_answers_like_get_without_a_body():
    connection = api.connection()
    for path in ("/healthz", "/v1/openapi.yaml"):
        connection.request("HEAD", path)
        answer = connection.getresponse()
        expect(answer.status == 200 and answer.read() == b"" and int(answer.headers["Content-Length"]) > 0, path)


def health_readiness_and_metrics_need_no_token():
    for path in ("/healthz", "/readyz", "/v1/openapi.yaml"):
        expect(api.call("GET", path, token=None).status == 200, path)
    text = api.call("GET", "/metrics", token=None).body.decode()
    expect("motley_database_up 1" in text and 'motley_jobs{state="queued"}' in text, text[:400])


with Api() as api:
    main(without_a_valid_token_nothing_is_told, a_token_without_the_scope_is_refused_by_the_scopes_name,
         a_revoked_and_an_expired_token_end, a_token_that_was_read_before_its_revocation_is_not_remembered,
         bodies_over_the_limit_are_refused_before_they_are_read,
         bodies_that_are_no_json_object_are_refused, unknown_paths_methods_and_parameters_are_named,
         malformed_heads_are_refused_and_close, a_body_nobody_asked_for_is_not_taken_for_a_request,
         requests_sent_at_once_are_answered_in_order, chunked_bodies_are_read_and_bad_chunks_refused,
         head_answers_like_get_without_a_body, health_readiness_and_metrics_need_no_token,
         who_shows_too_many_wrong_tokens_waits_and_right_ones_never_do)
