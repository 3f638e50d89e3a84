#!/usr/bin/env python3
"""Tests that a join token makes one node with a certificate, a Redis user and a bearer token, and that anything else makes nothing."""
import hashlib
import os
import shutil
import subprocess
import threading

from api import BIN, Api, expect, main, skip, wait_for


def run(*words, stdin=None):
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, input=stdin, check=False)
    expect(done.returncode == 0, f"{words}: {done.stderr}")
    return done.stdout


def make_ca(name):
    key, cert = os.path.join(home, f"{name}.key"), os.path.join(home, f"{name}.pem")
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", cert,
        "-subj", f"/CN={name}", "-days", "2")
    return {"cert": cert, "key": key}


def make_key(name):
    path = os.path.join(home, name + ".key")
    run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)
    return path


def request_for(identity, key=None, *more):
    given = ("-key", key) if key else ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "/dev/null")
    return run("openssl", "req", "-new", *given, "-subj", f"/CN={identity}", *more)


def described(certificate):
    """Returns the text of a certificate, which the CA must have signed."""
    path = os.path.join(home, "cert.pem")
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(certificate)
    run("openssl", "verify", "-CAfile", ca["cert"], path)
    return run("openssl", "x509", "-in", path, "-noout", "-text")


class Signer:
    def __init__(self, folder):
        self.socket = os.path.join(folder, "signer.sock")
        self.process = None

    def start(self):
        self.process = subprocess.Popen([os.path.join(BIN, "motley-signer"), "--ca", ca["cert"], "--key", ca["key"],
                                         "--socket", self.socket], stderr=subprocess.DEVNULL)
        wait_for(lambda: os.path.exists(self.socket), "the signing process's socket")

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait(10)
            self.process = None


def join_token(**more):
    return api.good("POST", "/v1/join-tokens", more or None)["token"]


def enroll(token, node="left", identity=None, key=None, **more):
    return {"token": token, "node": node, "csr": request_for(identity or f"agent:{node}", key), "address": "127.0.0.1", **more}


def a_join_token_makes_a_node_once():
    token = join_token()
    body = enroll(token, "once")
    made = api.good("POST", "/v1/enroll", body, token=None)
    text = described(made["certificate"])
    expect("URI:motley:agent:once:1\n" in text and "IP Address" not in text and "DNS:" not in text, text)
    run("openssl", "x509", "-in", os.path.join(home, "cert.pem"), "-noout", "-checkend", str(29 * 86400))
    late = subprocess.run(["openssl", "x509", "-in", os.path.join(home, "cert.pem"), "-noout", "-checkend", str(31 * 86400)],
                          capture_output=True, check=False)
    expect(late.returncode == 1, "it lives 30 days")
    with open(ca["cert"], encoding="utf-8") as handle:
        expect(made["ca"] == handle.read(), "the CA comes with it")
    expect([node["name"] for node in api.good("GET", "/v1/nodes")["nodes"]] == ["once"], "the node is there")
    api.psql("UPDATE nodes SET enrolled_at = now() - interval '1 min'")
    expect("never heard over Redis" in api.good("GET", "/v1/nodes")["nodes"][0]["why"], "a node that cannot reach Redis says nothing")
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
    """These tests have no Redis. The scheduler makes the user from the node's row whenever it finds none."""
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
    api.refused(409, "POST", "/v1/enroll", enroll(join_token(), "flooder"), "taken", token=None)
    again = api.good("POST", "/v1/enroll", enroll(join_token(node="flooder", replace=True), "flooder"), token=None)
    expect(again["seal"] != first["seal"], "with a new key")
    node = next(n for n in api.good("GET", "/v1/nodes")["nodes"] if n["name"] == "flooder")
    expect((node["state"], node["refused"], node["why"]) == ("joining", 0, None), node)


def of_two_with_one_token_one_wins():
    token, answers = join_token(), []
    bodies = [enroll(token, f"race-{i}") for i in range(4)]
    threads = [threading.Thread(target=lambda body=body: answers.append(api.call("POST", "/v1/enroll", body, token=None,
                                                                                 connection=api.connection("127.0.0.2")).status))
               for body in bodies]  # an address of their own, since one has 20 wrong tokens
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    expect(sorted(answers) == [201, 401, 401, 401], answers)


def a_key_is_good_for_so_many_machines_of_its_names():
    token, keys = join_token(node="slurm-*", uses=2, expires_in="30d"), [make_key(f"slurm-{i}") for i in range(3)]
    for i in (0, 1):
        api.good("POST", "/v1/enroll", enroll(token, f"slurm-{i}", key=keys[i]), token=None)
    api.refused(401, "POST", "/v1/enroll", enroll(token, "slurm-2", key=keys[2]), "join token", token=None)
    api.psql("UPDATE nodes SET last_seen = now() WHERE name IN ('slurm-0', 'slurm-1')")
    more = join_token(node="slurm-*", uses=1000)
    api.refused(409, "POST", "/v1/enroll", enroll(more, "slurm-0", key=keys[1]), "taken", token=None)
    back = api.good("POST", "/v1/enroll", enroll(more, "slurm-0", key=keys[0]), token=None)
    expect(back["generation"] == 2, "its own machine comes back with the key")
    expect(api.good("DELETE", "/v1/join-tokens?node=slurm-*") == {"revoked": 1}, "the one that is not used up")
    api.refused(401, "POST", "/v1/enroll", enroll(more, "slurm-2", key=keys[2]), "join token", token=None)
    expect(api.good("GET", "/v1/audit")["audit"][0]["what"] == "join-token.revoke", "the audit")
    for wrong, words in (({"node": "one", "uses": 2}, "one-*"), ({"node": "s-*", "replace": True}, "replace"), ({"uses": 0}, "uses"),
                         ({"node": "*"}, "node"), ({"node": "s*-*"}, "node"), ({"expires_in": "91d"}, "expires_in")):
        api.refused(422, "POST", "/v1/join-tokens", wrong, words)
    api.good("POST", "/v1/tokens", {"user": "helper", "scopes": ["jobs:read", "nodes:write"]})
    api.psql("INSERT INTO join_tokens (hash, user_id, expires_at, uses) SELECT sha256('helped'), id, now() + interval '1 h', 9 "
             "FROM users WHERE name = 'helper'")
    api.good("PATCH", "/v1/users/helper", {"disabled": True})
    api.refused(401, "POST", "/v1/enroll", enroll("helped" + token[64:], "any"), "join token", token=None)


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


def a_wrong_token_gets_one_answer_before_anything_else_is_looked_at():
    used = join_token()
    api.good("POST", "/v1/enroll", enroll(used, "spender"), token=None)
    unknown, expired = "f" * 64 + used[64:], join_token(expires_in="1s")
    bound = join_token(node="some-*", uses=2)
    api.psql("UPDATE join_tokens SET expires_at = now() WHERE used_at IS NULL AND node IS NULL")
    details = set()
    for token in (unknown, expired, used, bound):
        for body in ({"token": token, "node": "New Name!", "csr": "nonsense"}, enroll(token, "new", identity="server:api")):
            details.add(api.refused(401, "POST", "/v1/enroll", body, "join token", token=None)["detail"])
    expect(len(details) == 1, f"unknown, expired, used and bound elsewhere are told apart: {details}")


def a_request_names_the_node_and_nothing_else():
    token = join_token()
    for identity in ("agent:other", "server:motley", "agent:plain:7", "127.0.0.1"):
        api.refused(422, "POST", "/v1/enroll", enroll(token, "plain", identity=identity), "identity", token=None)
    for more in (("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"), ("-addext", "subjectAltName=URI:motley:server:motley"),
                 ("-addext", "basicConstraints=CA:TRUE")):
        body = {**enroll(token, "plain"), "csr": request_for("agent:plain", None, *more)}
        api.refused(422, "POST", "/v1/enroll", body, "host names", token=None)
    api.good("POST", "/v1/enroll", enroll(token, "plain"), token=None)


def a_name_that_was_seen_is_not_taken_over():
    key = make_key("seen")
    api.good("POST", "/v1/enroll", enroll(join_token(), "seen", key=key), token=None)
    api.psql("UPDATE nodes SET last_seen = now() - interval '400 days' WHERE name = 'seen'")
    api.refused(409, "POST", "/v1/enroll", enroll(join_token(), "seen"), "taken", token=None)
    api.refused(409, "POST", "/v1/enroll", enroll(join_token(node="seen"), "seen"), "taken", token=None)
    back = api.good("POST", "/v1/enroll", enroll(join_token(node="seen"), "seen", key=key), token=None)
    expect(back["generation"] == 2 and "agent:seen:2" in described(back["certificate"]), "its own machine comes back")
    operator = api.good("POST", "/v1/tokens", {"user": "operator", "scopes": ["nodes:write"]})["token"]
    api.refused(403, "POST", "/v1/join-tokens", {"node": "seen", "replace": True}, "administrator", token=operator)
    api.refused(422, "POST", "/v1/join-tokens", {"replace": True}, "node")
    api.refused(422, "POST", "/v1/join-tokens", {"node": "No!"}, "node")
    taken = api.good("POST", "/v1/enroll", enroll(join_token(node="seen", replace=True), "seen"), token=None)
    expect(taken["generation"] == 3, taken["generation"])
    api.refused(401, "POST", "/v1/renew", {"csr": request_for("agent:seen", key)}, "token", token=back["token"])


def a_node_renews_with_its_own_key_alone():
    key = make_key("renewer")
    made = api.good("POST", "/v1/enroll", enroll(join_token(), "renewer", key=key), token=None)
    again = api.good("POST", "/v1/renew", {"csr": request_for("agent:renewer", key)}, token=made["token"])
    expect("agent:renewer:1" in described(again["certificate"]) and again["generation"] == 1, "the same identity")
    expect(again["certificate"] != made["certificate"], "and a new certificate")
    api.refused(403, "POST", "/v1/renew", {"csr": request_for("agent:renewer")}, "key", token=made["token"])
    for identity in ("agent:seen", "server:motley"):
        api.refused(422, "POST", "/v1/renew", {"csr": request_for(identity, key)}, "identity", token=made["token"])
    api.refused(403, "POST", "/v1/renew", {"csr": request_for("agent:renewer", key)}, "scope agent")
    api.psql("UPDATE nodes SET certified_until = now() - interval '1 s' WHERE name = 'renewer'")
    api.refused(403, "POST", "/v1/renew", {"csr": request_for("agent:renewer", key)}, "ended", "--node renewer", token=made["token"])


def a_removed_node_is_nobody():
    key = make_key("leaver")
    made = api.good("POST", "/v1/enroll", enroll(join_token(), "leaver", key=key), token=None)
    expect(api.call("GET", "/v1/blobs/" + "0" * 64, token=made["token"]).status == 404, "known before")
    waiting = join_token(node="leaver", replace=True)
    api.refused(403, "DELETE", "/v1/nodes/leaver", None, "nodes:write", token=made["token"])
    expect(api.good("DELETE", "/v1/nodes/leaver") == {"name": "leaver", "generation": 2}, "removed")
    api.refused(404, "DELETE", "/v1/nodes/leaver", None, "leaver")
    expect("leaver" not in [node["name"] for node in api.good("GET", "/v1/nodes")["nodes"]], "not listed")
    for words in (("GET", "/v1/blobs/" + "0" * 64, None), ("POST", "/v1/renew", {"csr": request_for("agent:leaver", key)})):
        expect(api.call(*words, token=made["token"]).status in (401, 429), words)
    api.refused(401, "POST", "/v1/enroll", enroll(waiting, "leaver", key=key), "join token", token=None)
    api.refused(409, "POST", "/v1/enroll", enroll(join_token(node="leaver"), "leaver", key=key), "taken", token=None)
    back = api.good("POST", "/v1/enroll", enroll(join_token(node="leaver", replace=True), "leaver"), token=None)
    expect(back["generation"] == 3, back["generation"])


def without_the_signing_process_nobody_joins_and_no_token_is_spent():
    token = join_token()
    signer.stop()
    api.refused(503, "POST", "/v1/enroll", enroll(token, "patient"), "signing process", token=None)
    expect(api.good("GET", "/readyz")["status"] == "ready", "jobs are taken all the same")
    signer.start()
    api.good("POST", "/v1/enroll", enroll(token, "patient"), token=None)


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


signer = Signer(home)
api.config.update({"ca": {"cert": ca["cert"], "signer": signer.socket}, "redis": {"address": "redis.lab:6379", "tls": True}})
signer.start()
try:
    with api:
        main(a_join_token_makes_a_node_once, a_key_is_good_for_so_many_machines_of_its_names, an_agents_token_reaches_files_only,
             what_the_scheduler_makes_its_redis_user_and_seals_its_messages_with_is_kept, a_barred_node_is_let_in_again_by_a_new_token,
             of_two_with_one_token_one_wins, what_is_wrong_makes_nothing_and_keeps_the_token,
             a_request_names_the_node_and_nothing_else, a_name_that_was_seen_is_not_taken_over,
             a_node_renews_with_its_own_key_alone, a_removed_node_is_nobody,
             without_the_signing_process_nobody_joins_and_no_token_is_spent,
             a_wrong_token_gets_one_answer_before_anything_else_is_looked_at,
             wrong_join_tokens_are_slowed_and_a_right_one_is_not)
finally:
    signer.stop()
