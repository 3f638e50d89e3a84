#!/usr/bin/env python3
"""Tests every route of the api × who asks × whose object: one table says who may do what.

The routes are those of openapi.yaml, which api/openapi holds equal to the table in route_table.c. A route that is not in
the table below fails this test, and so does a line of it without a route.
"""
import hashlib
import json
import os
import re

from api import LLAMA, Api, agent_token, expect, main, spec, token_rows

PEOPLE = ["jobs:read", "jobs:write", "models:read", "models:write", "nodes:read", "leases:write"]
WHO = ("owner", "other", "member", "agent", "nobody", "admin")

# Each line has a route, the kind of object that it is asked for, and the status for the owner, another user, a member of
# the group that the object is shared with, an agent that has nothing to do with the object, a request without a token,
# and an administrator. All ask for the owner's object.
TABLE = {
    "POST /v1/jobs": ("data", 201, 422, 201, 403, 401, 201),
    "POST /v1/jobs:validate": ("data", 200, 422, 200, 403, 401, 200),
    "POST /v1/plans": ("question", 422, 422, 422, 403, 401, 422),  # of a model that is not there
    "POST /v1/plans:cluster": ("question", 422, 422, 422, 403, 401, 422),
    "GET /v1/jobs": (None, 200, 200, 200, 403, 401, 200),
    "GET /v1/jobs/{id}": ("job cancelled", 200, 404, 200, 403, 401, 200),
    "DELETE /v1/jobs/{id}": ("job cancelled", 200, 404, 403, 403, 401, 200),
    "GET /v1/storage": (None, 200, 200, 200, 403, 401, 200),
    "PATCH /v1/jobs/{id}": ("job held", 200, 404, 403, 403, 401, 200),
    "POST /v1/jobs:cancel": ("jobs queued", 200, 200, 200, 403, 401, 200),  # what became of each job is in the answer
    "POST /v1/jobs:hold": ("jobs queued", 200, 200, 200, 403, 401, 200),
    "POST /v1/jobs:release": ("jobs held", 200, 200, 200, 403, 401, 200),
    "POST /v1/jobs/{id}/cancel": ("job queued", 200, 404, 403, 403, 401, 200),
    "POST /v1/jobs/{id}/extend": ("limited", 200, 404, 403, 403, 401, 200),
    "POST /v1/jobs/{id}/hold": ("job queued", 200, 404, 403, 403, 401, 200),
    "POST /v1/jobs/{id}/release": ("job held", 200, 404, 403, 403, 401, 200),
    "POST /v1/jobs/{id}/resume": ("job cancelled", 200, 404, 403, 403, 401, 200),
    "POST /v1/jobs/{id}/share": ("job held", 200, 404, 403, 403, 401, 200),
    "GET /v1/jobs/{id}/metrics": ("job cancelled", 200, 404, 200, 403, 401, 200),
    "GET /v1/jobs/{id}/logs": ("job cancelled", 200, 404, 200, 403, 401, 200),
    "GET /v1/jobs/{id}/events": ("job cancelled", 200, 404, 200, 403, 401, 200),
    "GET /v1/jobs/{id}/plan": ("job cancelled", 200, 404, 200, 403, 401, 200),
    "GET /v1/jobs/{id}/runs": ("job cancelled", 200, 404, 200, 403, 401, 200),
    "GET /v1/jobs/{id}/trace": ("job cancelled", 404, 404, 404, 403, 401, 404),  # the job has no trace; others are told that there is no job
    "GET /v1/jobs/{id}/lanes": ("job cancelled", 400, 404, 400, 403, 401, 400),  # the run's plan is no plan here
    "GET /v1/jobs/{id}/why": ("job cancelled", 200, 404, 200, 403, 401, 200),
    "GET /v1/jobs/{id}/artifacts": ("job cancelled", 200, 404, 200, 403, 401, 200),
    "GET /v1/jobs/{id}/artifacts/{name}": ("job cancelled", 200, 404, 200, 403, 401, 200),
    "GET /v1/notices": (None, 200, 200, 200, 403, 401, 200),
    "PATCH /v1/notices": ("notify", 200, 200, 200, 403, 401, 200),
    "GET /v1/queue": (None, 200, 200, 200, 403, 401, 200),
    "GET /v1/events": (None, 400, 400, 400, 403, 401, 400),  # without topics: a stream has no end
    "GET /v1/models": (None, 200, 200, 200, 403, 401, 200),
    "POST /v1/models": ("files", 201, 422, 201, 403, 401, 201),
    "GET /v1/models/{name}": ("model", 200, 404, 200, 403, 401, 200),
    "DELETE /v1/models/{name}": ("model", 204, 404, 403, 403, 401, 204),
    "PUT /v1/blobs/{sha256}": ("bytes", 200, 201, 201, 201, 401, 200),
    "GET /v1/blobs/{sha256}": ("file", 200, 404, 200, 404, 401, 200),
    "GET /v1/blobs/{sha256}/manifest": ("file", 200, 404, 200, 404, 401, 200),
    "GET /v1/nodes": (None, 200, 200, 200, 403, 401, 200),
    "DELETE /v1/nodes/{name}": ("node", 403, 403, 403, 403, 401, 200),
    "GET /v1/devices": (None, 200, 200, 200, 403, 401, 200),
    "PATCH /v1/devices/{name}": ("device owner", 403, 403, 403, 403, 401, 200),
    "POST /v1/devices/{name}/drain": ("device", 403, 403, 403, 403, 401, 200),
    "POST /v1/nodes/{name}/drain": ("node devices", 403, 403, 403, 403, 401, 200),
    "POST /v1/nodes/{name}/undrain": ("node devices", 403, 403, 403, 403, 401, 200),
    "POST /v1/devices/{name}/undrain": ("device", 403, 403, 403, 403, 401, 200),
    "GET /v1/leases": (None, 200, 200, 200, 403, 401, 200),
    "POST /v1/leases": ("lease of", 200, 200, 200, 403, 401, 200),
    "PATCH /v1/leases/{id}": ("lease", 200, 403, 403, 403, 401, 200),
    "DELETE /v1/leases/{id}": ("lease", 200, 403, 403, 403, 401, 200),
    "GET /v1/load": (None, 200, 200, 200, 403, 401, 200),
    "GET /v1/links": (None, 200, 200, 200, 403, 401, 200),
    "GET /v1/profiles": (None, 200, 200, 200, 403, 401, 200),
    "POST /v1/profiles": ("profiles", 403, 403, 403, 403, 401, 200),
    "POST /v1/enroll": ("join", 503, 503, 503, 503, 503, 503),  # there is no CA here; the join token alone decides
    "POST /v1/renew": ("request", 403, 403, 403, 503, 401, 403),  # there is no CA here
    "POST /v1/join-tokens": ("nothing", 403, 403, 403, 403, 401, 503),
    "DELETE /v1/join-tokens": (None, 403, 403, 403, 403, 401, 200),
    "GET /v1/users": (None, 403, 403, 403, 403, 401, 200),
    "PATCH /v1/users/{name}": ("user", 403, 403, 403, 403, 401, 200),
    "GET /v1/groups": (None, 200, 200, 200, 403, 401, 200),
    "POST /v1/groups": ("group", 403, 403, 403, 403, 401, 200),
    "PATCH /v1/groups/{name}": ("group weight", 403, 403, 403, 403, 401, 200),
    "DELETE /v1/groups/{name}": ("group", 403, 403, 403, 403, 401, 204),
    "GET /v1/usage": (None, 200, 200, 200, 403, 401, 200),
    "GET /v1/shares": (None, 200, 200, 200, 403, 401, 200),
    "GET /v1/records": (None, 200, 200, 200, 403, 401, 200),
    "GET /v1/arrivals": (None, 200, 200, 200, 403, 401, 200),
    "GET /v1/tokens": (None, 200, 200, 200, 403, 401, 200),
    "POST /v1/tokens": ("for", 201, 403, 403, 403, 401, 201),
    "DELETE /v1/tokens/{id}": ("token", 204, 404, 404, 403, 401, 204),
    "POST /v1/session": ("session", 403, 403, 403, 403, 403, 403),  # without a page's Origin; tests/api/test_web.py has the rest
    "DELETE /v1/session": (None, 409, 409, 409, 403, 401, 409),  # these are no sessions' tokens
    "POST /v1/session-codes": (None, 201, 201, 201, 403, 401, 201),
    # without a provider; tests/api/test_oidc.py and test_login.py have the rest
    "GET /v1/oidc": (None, 200, 200, 200, 200, 200, 200),
    "POST /v1/oidc/login": ("nothing", 403, 403, 403, 403, 403, 403),  # without a page's Origin
    "POST /v1/oidc/session": ("nothing", 403, 403, 403, 403, 403, 403),
    "POST /v1/oidc/device": ("nothing", 404, 404, 404, 404, 404, 404),
    "POST /v1/oidc/token": ("nothing", 404, 404, 404, 404, 404, 404),
    "POST /v1/socket-token": ("nothing", 403, 403, 403, 403, 403, 403),  # by no unix socket
    "GET /v1/whoami": (None, 200, 200, 200, 200, 401, 200),
    "GET /v1/audit": (None, 403, 403, 403, 403, 401, 200),
    "GET /v1/openapi.yaml": (None, 200, 200, 200, 200, 200, 200),
    "GET /healthz": (None, 200, 200, 200, 200, 200, 200),
    "GET /readyz": (None, 200, 200, 200, 200, 200, 200),
    "GET /metrics": (None, 200, 200, 200, 200, 200, 200),
}


def routes_described():
    found, path = set(), None
    for line in api.call("GET", "/v1/openapi.yaml", token=None).body.decode().splitlines():
        if line == "components:":
            break
        at = re.match(r"  (/\S*):$", line)
        path = at.group(1) if at else path
        method = re.match(r"    (get|put|post|delete|patch):$", line)
        if path and method:
            found.add(f"{method.group(1).upper()} {path}")
    return found


class Objects:
    """Makes objects of ada's by the dozen: each cell of the table takes one that nobody has changed. `shared` ones are
    shared with the group. `absent` ones never existed, and their names look like those of the others."""

    def __init__(self):
        self.count = 0
        self.private_rows = api.upload("".join(json.dumps(row) + "\n" for row in token_rows(3)).encode(), token=tokens["owner"])
        self.group_rows = api.upload("".join(json.dumps(row) + "\n" for row in token_rows(5)).encode(), token=tokens["owner"])
        job = api.good("POST", "/v1/jobs", spec("sha256:" + self.group_rows, hold=True), token=tokens["owner"])["id"]
        api.good("POST", f"/v1/jobs/{job}/share", {"group": "lab"}, token=tokens["owner"])
        self.files = {kind: self.model(f"base-{kind}", **more) for kind, more in (("private", {}), ("shared", {"group": "lab"}))}
        made = api.upload(b"made", token=tokens["owner"])
        api.psql(f"INSERT INTO holds (what, node) VALUES ('{made}', 'maker'); DELETE FROM holds WHERE what = '{made}' AND user_id > 0")
        self.made = made
        self.jobs = {}
        for state in ("queued", "held", "cancelled"):
            for kind, more in (("private", "'mine', NULL"), ("shared", "'group', (SELECT id FROM groups WHERE name = 'lab')")):
                self.jobs[state, kind] = api.psql(
                    "WITH j AS (INSERT INTO jobs (owner, name, state, steps, spec, inputs, visibility, grp) SELECT "
                    f"(SELECT id FROM users WHERE name = 'ada'), 'j', '{state}', 10, '{{\"train\": {{}}}}', '{{}}', {more} "
                    "FROM generate_series(1, 180) RETURNING id), "
                    "r AS (INSERT INTO runs (job, attempt, epoch, state, plan) SELECT id, 1, 1000000 + id, 'stopped', '{}' FROM j "
                    "RETURNING id, job), "
                    "a AS (INSERT INTO assignments (run, rank, node, device, state) SELECT id, 0, 'maker', 'maker/cpu0', 'stopped' FROM r), "
                    f"f AS (INSERT INTO artifacts (job, name, sha256, size) SELECT id, 'a', '{made}', 4 FROM j) "
                    "SELECT id FROM j").split()
        api.psql("UPDATE jobs j SET run = r.id FROM runs r WHERE r.job = j.id")

    def model(self, name, **more):
        """Registers a model of ada's from files whose config.json nobody else has."""
        files = []
        for file in ("config.json", "model.safetensors"):
            with open(os.path.join(LLAMA, file), "rb") as handle:
                data = handle.read()
            if file == "config.json":
                data = json.dumps(dict(json.loads(data), _name=name)).encode()
            files.append({"name": file, "sha256": api.upload(data, token=tokens["owner"])})
        api.good("POST", "/v1/models", {"name": name, "files": files, **more}, token=tokens["owner"])
        return files

    def next(self):
        self.count += 1
        return f"{self.count:06d}"

    def take(self, what, kind):
        """Returns (words that name the object, its path parameter, a body) for `what`; `kind` is 'private', 'shared' or 'absent'."""
        fresh = self.next()
        nothing = hashlib.sha256(b"absent" + fresh.encode()).hexdigest()
        if what is None:
            return (), None, None
        if what == "limited":
            words, ident, _ = self.take("job held", kind)
            api.psql(f"UPDATE jobs SET time_limit_ms = 1000 WHERE id = {ident}")
            return words, ident, {"seconds": 60}
        if what.startswith("job "):
            ident = "9" * 9 if kind == "absent" else self.jobs[what[4:], kind].pop()
            return (ident,), ident, ({"visibility": "mine"} if what == "job held" else None)
        if what.startswith("jobs "):
            ident = "9" * 9 if kind == "absent" else self.jobs[what[5:], kind].pop()
            return (ident,), None, {"ids": [int(ident)]}
        if what == "data":
            rows = {"private": self.private_rows, "shared": self.group_rows, "absent": nothing}[kind]
            return (rows,), None, spec("sha256:" + rows, name=fresh)
        if what == "files":
            files = [dict(file) for file in self.files["private" if kind == "absent" else kind]]
            if kind == "absent":
                files[0]["sha256"] = nothing
            return (files[0]["sha256"], fresh), None, {"name": fresh, "files": files}
        if what == "model":
            name = f"m{fresh}"
            more = {"private": "'mine', NULL", "shared": "'group', (SELECT id FROM groups WHERE name = 'lab')"}.get(kind)
            if more:
                api.psql("INSERT INTO model_names (name, content, owner, visibility, grp) SELECT "
                         f"'{name}', content, owner, {more} FROM model_names WHERE name = 'base-{kind}'")
            return (name,), f"ada%2F{name}", None
        if what == "bytes":
            data = fresh.encode()
            sha256 = hashlib.sha256(data).hexdigest() if kind == "absent" else api.upload(data, token=tokens["owner"])
            return (sha256,), sha256, data
        if what == "file":
            sha256 = {"private": self.private_rows, "shared": self.group_rows, "absent": nothing}[kind]
            return (sha256,), sha256, None
        if what == "token":
            ident = "9" * 9
            if kind != "absent":
                ident = api.psql("INSERT INTO tokens (hash, user_id, scopes) SELECT decode(md5(random()::text) || md5(random()::text), "
                                 "'hex'), id, 1 FROM users WHERE name = 'ada' RETURNING id")
            return (ident,), ident, None
        if what in ("lease", "lease of"):
            # each on a device of its own, so that leases do not overlap
            device, ident = f"left/lease{fresh}", "9" * 9
            api.psql(f"INSERT INTO devices (name, node, kind, digest, memory_limit_bytes, inventory, present) "
                     f"SELECT '{device}', node, kind, digest, memory_limit_bytes, inventory, present FROM devices WHERE name = 'left/cpu0'")
            if what == "lease of":
                return (device,), None, {"device": device, "seconds": 3600}
            if kind != "absent":
                ident = str(api.good("POST", "/v1/leases", {"device": device, "seconds": 3600}, token=tokens["owner"])["id"])
            return (ident,), ident, {"extend_seconds": 3600}
        if what == "for":
            user = "nobody-yet" if kind == "absent" else "ada"
            return (user,), None, {"user": user}
        if what in ("group", "group weight"):
            name = f"g{fresh}"
            if kind != "absent":
                api.good("POST", "/v1/groups", {"name": name, "members": ["ada", "cem"]})
            return (name,), name, {"weight": 2} if what == "group weight" else {"name": name, "members": ["ada", "bob"]}
        return {
            "device": (("left/cpu0",), "nowhere%2Fcpu0" if kind == "absent" else "left%2Fcpu0", None),
            "node devices": (("left",), "nowhere" if kind == "absent" else "left", None),
            "device owner": (("left/cpu0",), "nowhere%2Fcpu0" if kind == "absent" else "left%2Fcpu0", {"group": None}),
            "node": (("gone",), "nowhere" if kind == "absent" else "gone", None),
            "request": ((), None, {"csr": "x"}),
            "user": (("ada",), "nobody-yet" if kind == "absent" else "ada", {"priority_max": 100}),
            "profiles": ((), None, {"format": "motley-profiles", "version": 1, "profiles": [], "devices": [
                {"name": "far/cpu0", "node": "far", "memory_limit_bytes": 1000000}]}),
            "join": ((), None, {"token": "0" * 64 + "." + "0" * 64, "node": "x", "csr": "x"}),
            "nothing": ((), None, {}),
            "notify": ((), None, {"key": "keep"}),
            "question": ((), None, {"spec": spec("sha256:" + nothing, model="none")}),
            "session": ((), None, {"token": fresh}),
        }[what]


def ask(route, who, what, kind):
    """Returns the answer, and its document with the object's own name blanked."""
    method, path = route.split(" ")
    words, parameter, body = objects.take(what, kind)
    path = path.replace("artifacts/{name}", "artifacts/a")
    path = re.sub(r"\{\w+\}", lambda _: parameter, path)
    if method == "GET" or (body is None and method == "DELETE"):
        body = None
    elif route.endswith("/share"):
        body = {"visibility": "everyone"}
    elif what and what.startswith("job "):
        body = {"priority": 1} if method == "PATCH" else {}
    answer = api.call(method, path, body, token=tokens[who], headers={"X-Request-Id": "same"})
    text = answer.body.decode(errors="replace")
    for word in words:
        text = text.replace(word, "X")
    return answer, text


def every_route_is_in_the_table():
    described = routes_described()
    expect(len(described) > 40, f"only {len(described)} routes were found in openapi.yaml")
    expect(described == set(TABLE), f"without a line in the table: {sorted(described - set(TABLE))}; without a route: {sorted(set(TABLE) - described)}")


def each_may_do_what_the_table_says():
    wrong, cells = [], 0
    for route, (what, *expected) in TABLE.items():
        for who, status in zip(WHO, expected):
            answer, _ = ask(route, who, what, "shared" if who == "member" else "private")
            cells += 1
            if answer.status != status:
                wrong.append(f"{route} by {who}: {answer.status}, not {status}: {answer.body[:200]}")
    expect(not wrong, "\n  " + "\n  ".join(wrong))
    return f"{cells} cells"


def what_one_may_not_see_is_as_what_is_not_there():
    wrong, pairs = [], 0
    for route, (what, *expected) in TABLE.items():
        for who in ("other", "member", "agent") if what and not what.startswith("lease") else ():  # everybody sees leases
            there, said = ask(route, who, what, "private")
            absent, words = ask(route, who, what, "absent")
            pairs += 1
            same = there.status == absent.status and said == words and (
                {name: value for name, value in there.headers.items() if name not in ("date", "content-length")} ==
                {name: value for name, value in absent.headers.items() if name not in ("date", "content-length")})
            if not same:
                wrong.append(f"{route} by {who}: {there.status} {said[:200]} but of nothing {absent.status} {words[:200]}")
    expect(not wrong, "\n  " + "\n  ".join(wrong))
    return f"{pairs} pairs"


def lists_hold_ones_own_and_what_is_shared():
    for who, private, shared in (("owner", True, True), ("other", False, False), ("member", False, True), ("admin", True, True)):
        names = {model["name"] for model in api.good("GET", "/v1/models", token=tokens[who])["models"]}
        expect(("base-private" in names, "base-shared" in names) == (private, shared), f"models of {who}: {names}")
        jobs = [job for job in api.good("GET", "/v1/jobs?limit=500", token=tokens[who])["jobs"] if job["owner"] == "ada"]
        seen = {job["visibility"] for job in jobs}
        expect(("mine" in seen, "group" in seen) == (private, shared), f"jobs of {who}: {seen}")
    expect({t["user"] for t in api.good("GET", "/v1/tokens", token=tokens["other"])["tokens"]} == {"bob"}, "bob's tokens")
    expect([g["name"] for g in api.good("GET", "/v1/groups", token=tokens["member"])["groups"] if g["name"] == "lab"], "cem's group")
    expect(not [g for g in api.good("GET", "/v1/groups", token=tokens["other"])["groups"] if g["name"] == "lab"], "bob's groups")


def no_list_tells_a_stranger_what_is_private():
    """Every text of a private job, its runs, log, model and token has a mark; no route without an {id} gives it away."""
    waits, runs = (objects.jobs[state, "private"].pop() for state in ("queued", "held"))
    marked = {"model_names": "name = 'zzmark', base = '{\"name\": \"zzmark\"}' WHERE name = 'base-private'",
              "jobs": """name = 'zzmark', why = 'zzmark', labels = '{"zzmark": "zzmark"}', inputs = '{"train": "zzmark", "model": {"name": "zzmark"}}',
                spec = '{"model": "zzmark", "train": {}}' WHERE id IN (%s, %s)""" % (waits, runs),
              "runs": """why = 'zzmark', save_why = 'zzmark', plan = '{"zzmark": 1}', answer = '{"zzmark": 1}' WHERE job IN (%s, %s)""" % (waits, runs),
              "assignments": "why = 'zzmark', address = 'zzmark', state = 'running', device = 'left/cpu0', node = 'left' "
                             "WHERE run = (SELECT run FROM jobs WHERE id = %s)" % runs,
              "artifacts": f"name = 'zzmark' WHERE job IN ({waits}, {runs})", "tokens": "note = 'zzmark' WHERE user_id = (SELECT id FROM users WHERE name = 'ada')"}
    api.psql(f"UPDATE jobs SET state = 'running' WHERE id = {runs}; UPDATE runs SET state = 'running' WHERE job = {runs};" +
             ";".join(f"UPDATE {table} SET {what}" for table, what in marked.items()) +
             f"; INSERT INTO events (job, type, body) VALUES ({waits}, 'log', '{{\"text\": \"zzmark\"}}')")
    told = {}
    for route in sorted(TABLE):
        path = route.removeprefix("GET ")
        if path == route or "{" in path or path in ("/v1/events", "/v1/openapi.yaml"):
            continue
        for query in ("", *{"/v1/jobs": ("?owner=ada&limit=500", "?state=running"), "/v1/usage": ("?by=device", "?by=group")}.get(path, ())):
            for who in WHO:
                if "zzmark" in api.call("GET", path + query, token=tokens[who]).body.decode(errors="replace"):
                    told.setdefault(who, set()).add(path)
    lists = {"/v1/jobs", "/v1/queue", "/v1/models", "/v1/tokens"}
    expect(told == {"owner": lists, "admin": lists}, f"who was told, and where: {told}")
    for who, job in (("owner", int(runs)), ("other", None), ("member", None), ("admin", int(runs))):
        device = {d["name"]: d for d in api.good("GET", "/v1/devices", token=tokens[who])["devices"]}["left/cpu0"]
        expect((device["job"], device["job_owner"], device["state"]) == (job, "ada", "busy"), f"of {who}: {device}")


with Api(measure_seconds=0) as api:
    tokens = {who: api.token_for(name, PEOPLE) for who, name in (("owner", "ada"), ("other", "bob"), ("member", "cem"))}
    tokens.update(agent=agent_token(api, "left"), nobody=None, admin="")
    api.good("POST", "/v1/groups", {"name": "lab", "members": ["ada", "cem"]})
    agent_token(api, "gone")
    api.psql("UPDATE nodes SET state = 'alive', address = '127.0.0.1', last_seen = now(); "
             "INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) VALUES "
             "('left/cpu0', 'left', 'cpu', '{\"threads\": 1}', 'd', 4000000000)")
    api.tiny_model()
    objects = Objects()
    main(every_route_is_in_the_table, each_may_do_what_the_table_says, what_one_may_not_see_is_as_what_is_not_there,
         lists_hold_ones_own_and_what_is_shared, no_list_tells_a_stranger_what_is_private)
