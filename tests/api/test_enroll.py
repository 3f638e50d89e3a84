#!/usr/bin/env python3
"""A join token makes one node: certificate, Redis user, bearer token; anything else makes nothing."""
import hashlib
import os
import shutil
import subprocess
import threading

from api import Api, expect, main, skip


def run(*words, stdin=None):
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, input=stdin, check=False)
    expect(done.returncode == 0, f"{words}: {done.stderr}")
    return done.stdout


def make_ca(name):
    key, cert = os.path.join(home, f"{name}.key"), os.path.join(home, f"{name}.pem")
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", cert,
        "-subj", f"/CN={name}", "-days", "2")
    return {"cert": cert, "key": key}


def request_for(identity):
    return run("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "/dev/null",
               "-subj", f"/CN={identity}")


def join_token():
    return api.good("POST", "/v1/join-tokens")["token"]


def enroll(token, node="left", identity=None, **more):
    return {"token": token, "node": node, "csr": request_for(identity or f"agent:{node}"), "address": "127.0.0.1", **more}


def a_join_token_makes_a_node_once():
    token = join_token()
    body = enroll(token, "once")
    made = api.good("POST", "/v1/enroll", body, token=None)
    with open(os.path.join(home, "cert.pem"), "w", encoding="utf-8") as handle:
        handle.write(made["certificate"])
    run("openssl", "verify", "-CAfile", ca["cert"], os.path.join(home, "cert.pem"))
    text = run("openssl", "x509", "-in", os.path.join(home, "cert.pem"), "-noout", "-text")
    expect("agent:once" in text and "IP Address:127.0.0.1" in text, text)
    with open(ca["cert"], encoding="utf-8") as handle:
        expect(made["ca"] == handle.read(), "the CA comes with it")
    expect([node["name"] for node in api.good("GET", "/v1/nodes")["nodes"]] == ["once"], "the node is there")
    api.refused(401, "POST", "/v1/enroll", enroll(token, "twice"), "join token", token=None)
    expect(len(api.good("GET", "/v1/nodes")["nodes"]) == 1, "and no other")
    rows = {row["what"]: row for row in api.good("GET", "/v1/audit")["audit"]}
    expect(rows["node.enrol"]["who"] == "node:once" and rows["join-token.make"]["who"] == "admin", f"the audit: {rows}")


def an_agents_token_reaches_files_only():
    made = api.good("POST", "/v1/enroll", enroll(join_token(), "filer"), token=None)
    sha256 = api.upload(b"weights", token=made["token"])
    expect(api.call("GET", f"/v1/blobs/{sha256}", token=made["token"]).body == b"weights", "read")
    for path in ("/v1/jobs", "/v1/models", "/v1/nodes"):
        api.refused(403, "GET", path, None, "scope", token=made["token"])


def what_the_scheduler_makes_its_redis_user_and_seals_its_messages_with_is_kept():
    """No Redis is there: the scheduler makes the user from the node's row, whenever it finds that one is missing."""
    made = api.good("POST", "/v1/enroll", enroll(join_token(), "stream"), token=None)
    redis = made["redis"]
    expect(redis["address"] == "redis.lab:6379" and redis["user"] == "agent-stream" and redis["tls"] is True, redis)
    kept = api.psql("SELECT encode(redis_hash, 'hex') || ' ' || encode(seal_key, 'hex') FROM nodes WHERE name = 'stream'").split()
    expect(kept == [hashlib.sha256(redis["password"].encode()).hexdigest(), made["seal"]], "the password's hash and the key are kept")
    expect(len(made["seal"]) == 64 and redis["password"] not in api.psql("SELECT to_json(nodes) FROM nodes"), "and not the password")
    other = api.good("POST", "/v1/enroll", enroll(join_token(), "stream-2"), token=None)
    expect(other["seal"] != made["seal"] and other["redis"]["password"] != redis["password"], "of each node its own")


def a_barred_node_is_let_in_again_by_a_new_token():
    first = api.good("POST", "/v1/enroll", enroll(join_token(), "flooder"), token=None)
    api.psql("UPDATE nodes SET state = 'alive', last_seen = now(), barred = true, refused = 7, mark = 'it flooded' WHERE name = 'flooder'")
    node = next(n for n in api.good("GET", "/v1/nodes")["nodes"] if n["name"] == "flooder")
    expect((node["state"], node["refused"], node["why"]) == ("barred", 7, "it flooded"), node)
    again = api.good("POST", "/v1/enroll", enroll(join_token(), "flooder"), token=None)
    expect(again["seal"] != first["seal"], "with a new key")
    node = next(n for n in api.good("GET", "/v1/nodes")["nodes"] if n["name"] == "flooder")
    expect((node["state"], node["refused"], node["why"]) == ("joining", 0, None), node)


def of_two_with_one_token_one_wins():
    token, answers = join_token(), []
    bodies = [enroll(token, f"race-{i}") for i in range(4)]
    threads = [threading.Thread(target=lambda body=body: answers.append(api.call("POST", "/v1/enroll", body, token=None).status)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    expect(sorted(answers) == [201, 401, 401, 401], answers)


def what_is_wrong_makes_nothing_and_keeps_the_token():
    token = join_token()
    nodes = len(api.good("GET", "/v1/nodes")["nodes"])
    api.refused(422, "POST", "/v1/enroll", enroll(token, "Left!"), "node", token=None)
    api.refused(422, "POST", "/v1/enroll", enroll(token, "mine", identity="server:api"), "server:api", token=None)
    api.refused(422, "POST", "/v1/enroll", {**enroll(token, "mine"), "csr": "nonsense"}, "csr", token=None)
    api.refused(422, "POST", "/v1/enroll", {**enroll(token, "mine"), "more": 1}, "more", token=None)
    api.refused(401, "POST", "/v1/enroll", enroll("f" * 64 + "." + "0" * 64, "mine"), "token", token=None)
    api.refused(401, "POST", "/v1/enroll", enroll("nonsense", "mine"), "token", token=None)
    expect(len(api.good("GET", "/v1/nodes")["nodes"]) == nodes, "no node was made")
    api.good("POST", "/v1/enroll", enroll(token, "mine"), token=None)
    api.refused(422, "POST", "/v1/join-tokens", {"expires_in": "2 weeks"}, "expires_in")


if not shutil.which("openssl"):
    skip("openssl is not installed")
api = Api()
home = api.base
ca = make_ca("cluster")
def wrong_join_tokens_are_slowed_and_a_right_one_is_not():
    body = enroll("x", "guesser")
    seen = [api.call("POST", "/v1/enroll", body, token=None) for _ in range(30)]
    expect({answer.status for answer in seen} == {401, 429} and seen[-1].status == 429, f"{[answer.status for answer in seen]}")
    expect(int(seen[-1].headers["retry-after"]) >= 1, "it says when")
    unknown = api.call("POST", "/v1/enroll", {**body, "token": "f" * 64 + join_token()[64:]}, token=None)
    expect(unknown.status in (401, 429), f"{unknown.status}")
    api.good("POST", "/v1/enroll", enroll(join_token(), "late"), token=None)


api.config.update({"ca": ca, "redis": {"address": "redis.lab:6379", "tls": True}})
with api:
    main(a_join_token_makes_a_node_once, an_agents_token_reaches_files_only,
         what_the_scheduler_makes_its_redis_user_and_seals_its_messages_with_is_kept, a_barred_node_is_let_in_again_by_a_new_token,
         of_two_with_one_token_one_wins, what_is_wrong_makes_nothing_and_keeps_the_token,
         wrong_join_tokens_are_slowed_and_a_right_one_is_not)
