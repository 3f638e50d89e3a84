#!/usr/bin/env python3
"""A join token makes one node: certificate, Redis user, bearer token; anything else makes nothing."""
import contextlib
import os
import shutil
import socket
import subprocess
import threading

from api import Api, expect, main, skip, wait_for


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


class Redis:
    def __init__(self, folder):
        self.socket = os.path.join(folder, "redis.sock")
        self.process = None

    def start(self):
        with open(self.socket + ".conf", "w", encoding="utf-8") as handle:
            handle.write(f'port 0\nunixsocket {self.socket}\nsave ""\nuser default on >secret ~* &* +@all\n')
        self.process = subprocess.Popen(["redis-server", self.socket + ".conf"], stdout=subprocess.DEVNULL)
        wait_for(lambda: os.path.exists(self.socket), "Redis's socket")

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.socket)

    def say(self, *words, user="default", password="secret"):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            sock.connect(self.socket)
            text = b""
            for command in (("AUTH", user, password), words):
                sock.sendall(b"".join([b"*%d\r\n" % len(command)] + [b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in command]))
                text = sock.recv(65536)
            return text.decode()


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


def an_agents_token_reaches_files_only():
    made = api.good("POST", "/v1/enroll", enroll(join_token(), "filer"), token=None)
    sha256 = api.upload(b"weights", token=made["token"])
    expect(api.call("GET", f"/v1/blobs/{sha256}", token=made["token"]).body == b"weights", "read")
    for path in ("/v1/jobs", "/v1/models", "/v1/nodes"):
        api.refused(403, "GET", path, None, "scope", token=made["token"])


def an_agents_redis_user_reaches_its_own_streams_only():
    made = api.good("POST", "/v1/enroll", enroll(join_token(), "stream"), token=None)["redis"]
    expect(made["address"] == "unix:" + redis.socket and made["user"] == "agent-stream" and made["tls"] is False, made)
    as_agent = {"user": made["user"], "password": made["password"]}
    expect(redis.say("XADD", "motley:events", "*", "m", "x", **as_agent).startswith("$"), "writes events")
    expect(redis.say("XREAD", "STREAMS", "motley:agent:stream", "0", **as_agent).startswith(("*", "$-1")), "reads its inbox")
    for words in (("XADD", "motley:agent:stream", "*", "m", "x"), ("XREAD", "STREAMS", "motley:agent:other", "0"), ("GET", "x"),
                  ("FLUSHALL",), ("ACL", "LIST"), ("CONFIG", "GET", "*")):
        expect("NOPERM" in redis.say(*words, **as_agent), words)


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


def without_redis_a_node_is_told_to_come_again():
    redis.stop()
    api.refused(503, "POST", "/v1/enroll", enroll(join_token(), "later"), "Redis", token=None)
    expect(api.good("GET", "/readyz")["status"] == "ready", "jobs are taken all the same")
    redis.start()
    wait_for(lambda: api.call("POST", "/v1/enroll", enroll(join_token(), "later-still"), token=None).status == 201, "Redis is found again")


if not shutil.which("openssl") or not shutil.which("redis-server"):
    skip("openssl or redis-server is not installed")
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


redis = Redis(home)
api.config.update({"ca": ca, "redis": {"address": "unix:" + redis.socket, "user": "default", "password": "secret"}})
redis.start()
try:
    with api:
        main(a_join_token_makes_a_node_once, an_agents_token_reaches_files_only, an_agents_redis_user_reaches_its_own_streams_only,
             of_two_with_one_token_one_wins, what_is_wrong_makes_nothing_and_keeps_the_token,
             without_redis_a_node_is_told_to_come_again, wrong_join_tokens_are_slowed_and_a_right_one_is_not)
finally:
    redis.stop()
