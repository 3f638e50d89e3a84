#!/usr/bin/env python3
"""Tests the page's foundation: its files, signing in and out, and that no other site can act with a session's cookie."""
import gzip
import json
import os
import re
import tempfile
import time

from api import Api, expect, main, wait_for

PAGES = ["/", "/queue", "/cluster", "/jobs", "/jobs?ids=17,18&x", "/jobs/17", "/jobs/17/lanes?step=3", "/jobs/17/why", "/plan", "/me", "/oidc/callback?code=x"]


def origin():
    return "http://" + api.address


def asked(method, path, body=None, cookie=None, origin_is="own", motley=True, server=None, **more):
    """Sends a request as the page does: with the cookie, the header, and the page's Origin."""
    headers = dict(more)
    if motley:
        headers["X-Motley"] = "1"
    if origin_is:
        headers["Origin"] = origin() if origin_is == "own" else origin_is
    if cookie:
        headers["Cookie"] = cookie
    return (server or api).call(method, path, body, token=None, headers=headers)


def code_of(token=""):
    made = api.good("POST", "/v1/session-codes", {}, token=token)
    expect(re.fullmatch(r"[0-9a-f]{40}", made["code"]), made)
    return made["code"]


def session(token="", **shown):
    """Signs in, and returns the cookie as a browser sends it."""
    answer = asked("POST", "/v1/session", shown or {"code": code_of(token)})
    expect(answer.status == 201, f"{answer.status} {answer.body}")
    return answer.headers["set-cookie"].split(";")[0]


def every_address_of_the_page_is_the_shell():
    first = api.call("GET", "/", token=None)
    for path in PAGES:
        answer = api.call("GET", path, token=None)
        named = b'"./' + b"../" * (path.count("/") - 1) + b"web/"  # the same file for a browser, wherever the page is served
        expect(answer.status == 200 and named in answer.body and answer.body.replace(named, b'"./web/') == first.body, f"{path}: {answer.status}")
        expect(answer.headers["content-type"] == "text/html; charset=utf-8", answer.headers)
    policy = {part.split()[0]: part.split()[1:] for part in first.headers["content-security-policy"].split(";")}
    expect(policy["default-src"] == ["'none'"] and policy["script-src"] == policy["style-src"] == policy["connect-src"] == ["'self'"], policy)
    expect(policy["require-trusted-types-for"] == ["'script'"] and policy["trusted-types"] == ["motley"], policy)
    expect(policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == ["'none'"], policy)
    expect("unsafe" not in first.headers["content-security-policy"], policy)
    expect(first.headers["x-content-type-options"] == "nosniff" and first.headers["referrer-policy"] == "no-referrer", first.headers)
    expect(api.call("HEAD", "/", token=None).body == b"", "HEAD")
    api.refused(405, "POST", "/queue", None, "GET, HEAD", token=None)
    api.refused(404, "GET", "/nothing", token=None)


def files_are_kept_for_good_and_come_compressed():
    shell = api.call("GET", "/", token=None)
    again = api.call("GET", "/", token=None, headers={"If-None-Match": shell.headers["etag"]})
    expect(shell.headers["cache-control"] == "no-cache" and again.status == 304 and not again.body, again.headers)
    packed = api.call("GET", "/", token=None, headers={"Accept-Encoding": "br, gzip"})
    expect(packed.headers["content-encoding"] == "gzip" and gzip.decompress(packed.body) == shell.body, packed.headers)
    expect(packed.headers["etag"] != shell.headers["etag"] and packed.headers["vary"] == "Accept-Encoding", packed.headers)
    expect(b"/web/HASH/" not in shell.body, "the bundle's hash stands in the shell")
    found = sorted(set(re.findall(rb"/web/[0-9a-f]{16}/[a-z0-9._-]+", shell.body)))
    expect(found, shell.body)
    for path in (name.decode() for name in found):
        file = api.call("GET", path, token=None, headers={"Accept-Encoding": "gzip"})
        expect(file.status == 200 and "immutable" in file.headers["cache-control"], f"{path}: {file.status} {file.headers}")
        expect(gzip.decompress(file.body) == api.call("GET", path, token=None).body, path)
    api.refused(404, "GET", f"/web/{'0' * 16}/{found[0].decode().rsplit('/', 1)[1]}", None, "another release", token=None)
    api.refused(404, "GET", found[0].decode().rsplit("/", 1)[0] + "/..%2fopenapi.yaml", token=None)


def a_folder_is_read_at_each_request():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        with Api(web_dir=folder) as own:
            for text in ("one", "two"):
                with open(os.path.join(folder, "index.html"), "w", encoding="utf-8") as handle:
                    handle.write(text)
                expect(own.call("GET", "/queue", token=None).body == text.encode(), text)
            with open(os.path.join(folder, "a.js"), "w", encoding="utf-8") as handle:
                handle.write("1")
            file = own.call("GET", "/web/HASH/a.js", token=None)
            expect(file.body == b"1" and file.headers["cache-control"] == "no-store", file.headers)
            expect(file.headers["content-type"].startswith("text/javascript"), file.headers)
            for name in ("b.js", "..%2fapi.yaml", ".hidden", "%2e%2e"):
                own.refused(404, "GET", f"/web/HASH/{name}", token=None)


def a_code_signs_in_once():
    code = code_of(ada)
    answer = asked("POST", "/v1/session", {"code": code})
    expect(answer.status == 201 and answer.json["user"] == "ada" and answer.json["scopes"] == ["jobs:read", "jobs:write"], answer.body)
    kept = answer.headers["set-cookie"]
    port = api.address.rsplit(":", 1)[1]
    for part in (f"motley-{port}=", "HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43"):
        expect(part in kept, kept)
    expect("Secure" not in kept and answer.headers["cache-control"] == "no-store", kept)
    cookie = kept.split(";")[0]
    who = asked("GET", "/v1/whoami", cookie="other=1; " + cookie, origin_is=None, motley=False)
    expect(who.json["name"] == "ada" and who.json["scopes"] == ["jobs:read", "jobs:write"], who.body)
    for shown in ({"code": code}, {"code": "0" * 40}, {"token": "0" * 64}):
        refused = asked("POST", "/v1/session", shown)
        expect(refused.status == 401 and refused.problem["code"] == "unauthenticated", f"{shown}: {refused.status}")
    late = code_of(ada)
    api.psql("UPDATE session_codes SET expires_at = now() - interval '1 s' WHERE used_at IS NULL")
    expect(asked("POST", "/v1/session", {"code": late}).status == 401, "after ten minutes")
    for body in ({}, {"code": "1", "token": "2"}, {"code": 1}, {"x": "1"}):
        expect(asked("POST", "/v1/session", body).status == 422, body)


def a_token_signs_in_too_but_no_agents():
    cookie = session(token=ada)
    expect(asked("GET", "/v1/whoami", cookie=cookie).json["name"] == "ada", cookie)
    api.psql("INSERT INTO nodes (name) VALUES ('n') ON CONFLICT DO NOTHING; INSERT INTO tokens (hash, node, scopes) "
             "VALUES (sha256('agents'), 'n', 128)")
    expect(asked("POST", "/v1/session", {"token": "agents"}).status == 401, "an agent's token")
    inner = cookie.split("=")[1]
    expect(asked("POST", "/v1/session", {"token": inner}).status == 401, "a session makes no session")
    refused = asked("POST", "/v1/session-codes", {}, cookie=cookie)
    expect(refused.status == 403 and "no sessions" in refused.problem["detail"], refused.body)


def a_session_ends_with_the_token_it_was_made_of():
    parent = api.good("POST", "/v1/tokens", {"user": "ada", "expires_in": "1h"})
    cookie = session(parent["token"])
    made = asked("POST", "/v1/tokens", {}, cookie=cookie).json
    left = api.psql(f"SELECT expires_at = (SELECT expires_at FROM tokens WHERE id = {parent['id']}), session FROM tokens WHERE id = {made['id'] - 1}")
    expect(left == "t|t", f"it does not outlive the parent: {left}")
    listed = {token["id"]: token for token in api.good("GET", "/v1/tokens")["tokens"]}
    expect(listed[made["id"] - 1]["session"] is True and listed[parent["id"]]["session"] is False, listed)
    expect(api.call("GET", "/v1/whoami", token=made["token"]).status == 200, "a token made on the page")
    began = time.monotonic()
    api.good("DELETE", f"/v1/tokens/{parent['id']}")
    for what in (lambda: asked("GET", "/v1/whoami", cookie=cookie), lambda: api.call("GET", "/v1/whoami", token=made["token"])):
        wait_for(lambda: what().status == 401, "401", 10)
    gone = asked("GET", "/v1/whoami", cookie=cookie)
    expect("Max-Age=0" in gone.headers["set-cookie"] and "www-authenticate" not in gone.headers, gone.headers)
    expect(time.monotonic() - began < 10, "within 10 s")


def signing_out_ends_it_at_once():
    cookie = session(ada)
    answer = asked("DELETE", "/v1/session", cookie=cookie)
    expect(answer.status == 204 and "Max-Age=0" in answer.headers["set-cookie"], answer.headers)
    expect(asked("GET", "/v1/whoami", cookie=cookie).status == 401, "signed out")
    expect(api.call("GET", "/v1/whoami", token=ada).status == 200, "the token that it was made of stays")
    api.refused(409, "DELETE", "/v1/session", None, "no session's", token=ada)
    said = [line for line in api.good("GET", "/v1/audit")["audit"] if line["what"].startswith("session.")]
    expect({"session.open", "session.close"} <= {line["what"] for line in said} and all(line["who"] == "ada" for line in said), said[:3])


def changing_routes():
    """The routes of openapi.yaml (api/openapi holds them equal to the table) that change something, with a path and a body."""
    path, found = None, []
    for line in api.call("GET", "/v1/openapi.yaml", token=None).body.decode().splitlines():
        if line == "components:":
            break
        at = re.match(r"  (/\S*):$", line)
        path = at.group(1) if at else path
        method = re.match(r"    (put|post|delete|patch):$", line)
        if method:
            found.append((method.group(1).upper(), re.sub(r"\{\w+\}", "0" * 64 if "sha256" in path else "999999", path)))
    return found


def no_other_site_changes_anything_with_the_cookie():
    """Each changing route: without the header, from other origins and ports, by another name, without an Origin."""
    cookie = session()
    routes = changing_routes()
    expect(len(routes) > 25, routes)
    forged = [{"motley": False}, {"origin_is": None}, {"origin_is": "null"}, {"origin_is": "http://evil.example"},
              {"origin_is": f"https://{api.address}"}, {"origin_is": f"http://{api.address}0"}, {"origin_is": f"http://{api.address}.evil.example"},
              {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
              {"Host": "evil.example", "origin_is": "http://evil.example"}]
    before = api.psql("SELECT (SELECT count(*) FROM audit), (SELECT count(*) FROM jobs), (SELECT count(*) FROM tokens)")
    for method, path in routes:
        # They take no session: a join token in the body decides, or the provider does, or the kernel.
        if path in ("/v1/enroll", "/v1/oidc/device", "/v1/oidc/token", "/v1/socket-token"):
            continue
        for how in forged:
            answer = asked(method, path, {}, cookie=cookie, **how)
            expect(answer.status == 403 and answer.problem["code"] == "denied", f"{method} {path} {how}: {answer.status} {answer.body[:200]}")
    expect(api.psql("SELECT (SELECT count(*) FROM audit), (SELECT count(*) FROM jobs), (SELECT count(*) FROM tokens)") == before, "nothing changed")
    for method, path in routes:
        if path != "/v1/session" or method == "POST":
            answer = asked(method, path, {}, cookie=cookie)
            expect(answer.status != 403 or b"no sessions" in answer.body or b"lacks the scope agent" in answer.body or b"unix socket" in answer.body, f"{method} {path} by the page itself: {answer.status} {answer.body[:200]}")
    return f"{len(routes)} routes, {len(forged)} forgeries"


def no_other_site_reads_with_the_cookie():
    cookie = session()
    for how in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Host": "evil.example"}, {"Host": "127.0.0.1.evil.example"}):
        expect(asked("GET", "/v1/jobs", cookie=cookie, origin_is=None, motley=False, **how).status == 403, how)
    for how in ({"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Host": "localhost:1"}, {"Host": "[::1]:1"}):
        expect(asked("GET", "/v1/jobs", cookie=cookie, origin_is=None, motley=False, **how).status == 200, how)
    api.refused(403, "GET", "/queue", None, "evil.example", token=None, headers={"Host": "evil.example"})
    expect(api.call("GET", "/v1/jobs", headers={"Host": "evil.example"}).status == 200, "a bearer token is no browser's")


def downloads_are_no_pages():
    sha256 = api.upload(b"<script>alert(1)</script>")
    answer = asked("GET", f"/v1/blobs/{sha256}", cookie=session())
    expect(answer.status == 200 and answer.headers["content-disposition"] == "attachment", answer.headers)
    expect("sandbox" in answer.headers["content-security-policy"] and answer.headers["x-content-type-options"] == "nosniff", answer.headers)


with Api() as api:
    ada = api.token_for("ada", ["jobs:read", "jobs:write"])
    main(every_address_of_the_page_is_the_shell, files_are_kept_for_good_and_come_compressed, a_folder_is_read_at_each_request,
         a_code_signs_in_once, a_token_signs_in_too_but_no_agents, a_session_ends_with_the_token_it_was_made_of,
         signing_out_ends_it_at_once, no_other_site_changes_anything_with_the_cookie, no_other_site_reads_with_the_cookie,
         downloads_are_no_pages)
