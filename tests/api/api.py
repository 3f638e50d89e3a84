"""Drives a real motley-api over HTTP, on a private PostgreSQL. It needs the standard library alone."""
import contextlib
import functools
import hashlib
import http.client
import json
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from claims import BIN, GOLDEN, SLOW, SOURCE, Failed, expect, main, skip  # noqa: E402,F401

LLAMA = os.path.join(GOLDEN, "llama")
DEADLINE_S = 30


def pg_program(name):
    root = "/usr/lib/postgresql"
    found = sorted((os.path.join(root, v, "bin", name) for v in (os.listdir(root) if os.path.isdir(root) else [])), key=len)
    found = [path for path in found if os.path.exists(path)]
    path = found[-1] if found else shutil.which(name)
    if not path:
        skip(f"PostgreSQL's {name} is not installed")
    return path


def wait_for(question, what, seconds=DEADLINE_S):
    """Calls `question` until its answer is true, and fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = question()
        if answer:
            return answer
        time.sleep(0.01)
    raise Failed(f"{what} within {seconds} s")


class Postgres:
    """A private server on a unix socket. It runs as an unprivileged user when the tests run as root."""

    def __init__(self, base):
        self.folder = os.path.join(base, "pg")
        self.base = base
        self.process = None
        self.user = None
        os.mkdir(self.folder, 0o700)
        if os.geteuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            self.user = "postgres" if "postgres" in names else "nobody"
            shutil.chown(self.folder, self.user)
        pg_program("initdb")  # a skip without it
        self.data = os.path.join(self.folder, "data")
        made = subprocess.run([os.path.join(SOURCE, "tests", "support", "postgres.sh"), self.data], capture_output=True, text=True,
                              timeout=120, check=False, env={"MOTLEY_BUILD": os.path.dirname(BIN), **os.environ})
        expect(made.returncode == 0, f"initdb: {made.stderr[-1000:]}")

    def demote(self):
        if self.user:
            entry = pwd.getpwnam(self.user)
            os.setgroups([])
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)

    def start(self):
        log = open(os.path.join(self.base, "pg.log"), "ab")
        self.process = subprocess.Popen(
            [pg_program("postgres"), "-D", self.data, "-k", self.folder, "-c", "listen_addresses=", "-c", "shared_buffers=64MB"],
            stdout=log, stderr=log, preexec_fn=self.demote, cwd="/")
        log.close()
        wait_for(lambda: os.path.exists(os.path.join(self.folder, ".s.PGSQL.5432")), "PostgreSQL's socket")

    def stop(self, how=signal.SIGINT):
        if self.process:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None

    @property
    def conninfo(self):
        return f"host={self.folder} dbname=postgres user=motley"


@functools.cache
def problem_codes():
    """The codes of problems that docs/INTERFACES.md lists."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "INTERFACES.md"), encoding="utf-8") as handle:
        text = handle.read()
    return set(re.findall(r"^\| `([a-z-]+)` \| [0-9, ]+ \|", text, re.M))


class Answer:
    def __init__(self, response, body):
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def problem(self):
        expect(self.headers.get("content-type") == "application/problem+json", f"{self.status} {self.headers}: no problem+json")
        document = self.json
        expect(document["status"] == self.status, f"problem says {document['status']}, HTTP {self.status}")
        for key in ("type", "title", "detail", "code", "instance"):
            expect(isinstance(document.get(key), str) and document[key], f"problem without {key}: {document}")
        expect(document["code"] in problem_codes(), f"docs/INTERFACES.md does not list the code {document['code']}")
        expect(document["type"] == "urn:motley:problem:" + document["code"], document)
        expect(document["instance"] == "urn:motley:request:" + self.headers["x-request-id"], f"{document} {self.headers}")
        return document


class Api:
    """One motley-api with its database. As a context manager it stops both at the end."""

    def __init__(self, blobs=None, **config):
        self.base = tempfile.mkdtemp(prefix="motley-api-")
        os.chmod(self.base, 0o755)
        self.token = secrets.token_hex(32)
        self.postgres = Postgres(self.base)
        self.config = {"listen": "127.0.0.1:0", "address_file": self.path("address"), "postgres": self.postgres.conninfo,
                       "blobs": blobs or self.path("blobs"), "start_seconds": 10, **config}
        self.process = None
        self.address = None

    def path(self, name):
        return os.path.join(self.base, name)

    def command(self, *words, **keywords):
        with open(self.path("api.yaml"), "w", encoding="utf-8") as handle:
            json.dump(self.config, handle)
        return [os.path.join(BIN, "motley-api"), "--config", self.path("api.yaml"), *words]

    def migrate(self):
        with open(self.path("token"), "w", encoding="utf-8") as handle:
            handle.write(self.token + "\n")
        done = subprocess.run(self.command("--migrate", "--admin-token-file", self.path("token")), capture_output=True,
                              text=True, timeout=60, check=False)
        expect(done.returncode == 0, f"--migrate: {done.stderr[-1000:]}")

    def start(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("address"))
        with open(self.path("api.log"), "ab") as log:
            self.process = subprocess.Popen(self.command(), stderr=log, stdout=log)

        def listening():
            expect(self.process.poll() is None, f"motley-api ended: {self.log()}")
            if os.path.exists(self.path("address")):
                with open(self.path("address"), encoding="utf-8") as handle:
                    return handle.read().strip()
            return None
        self.address = wait_for(listening, "motley-api's address")

    def stop(self):
        if self.process:
            self.process.terminate()
            status = self.process.wait(20)
            self.process = None
            expect(status == 0, f"motley-api ended with status {status}: {self.log()}")

    def log(self):
        with open(self.path("api.log"), encoding="utf-8", errors="replace") as handle:
            return handle.read()[-3000:]

    def __enter__(self):
        try:
            self.postgres.start()
            self.migrate()
            self.start()
        except BaseException:
            self.__exit__(Failed, None, None)
            raise
        return self

    def __exit__(self, kind, value, trace):
        try:
            if kind is not None and os.path.exists(self.path("api.log")):
                print(self.log())
            if kind is not None and self.process:
                self.process.kill()
                self.process.wait()
                self.process = None
            self.stop()
        finally:
            self.postgres.stop()
            shutil.rmtree(self.base, ignore_errors=True)

    def connection(self, source=None):
        """A new connection; source: the loopback address that it comes from."""
        source = (source, 0) if source else None
        host, port = self.address.rsplit(":", 1)
        if self.config.get("tls"):
            context = ssl.create_default_context(cafile=self.config["tls"]["ca"])
            return http.client.HTTPSConnection(host, int(port), timeout=DEADLINE_S, context=context, source_address=source)
        return http.client.HTTPConnection(host, int(port), timeout=DEADLINE_S, source_address=source)

    def call(self, method, path, body=None, token="", headers=None, connection=None):
        """Sends one request. `token` "" is the administrator's, and None sends none."""
        own = connection or self.connection()
        headers = dict(headers or {})
        if token is not None:
            headers.setdefault("Authorization", f"Bearer {token or self.token}")
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        elif isinstance(body, (bytes, str)):
            headers.setdefault("Content-Type", "application/octet-stream")
        own.request(method, path, body=body, headers=headers)
        response = own.getresponse()
        answer = Answer(response, response.read())
        if not connection:
            own.close()
        return answer

    def good(self, method, path, body=None, status=(200, 201, 204), **keywords):
        answer = self.call(method, path, body, **keywords)
        expect(answer.status in status, f"{method} {path}: {answer.status} {answer.body[:500]}")
        return answer.json if answer.body else None

    def refused(self, status, method, path, body=None, *words, **keywords):
        """Returns the problem document of a refusal. It must have that status, and its detail all the words."""
        answer = self.call(method, path, body, **keywords)
        expect(answer.status == status, f"{method} {path}: {answer.status}, not {status}: {answer.body[:500]}")
        problem = answer.problem
        for word in words:
            expect(word in problem["detail"], f"{method} {path}: \"{problem['detail']}\" does not say \"{word}\"")
        return problem

    def raw(self, data, seconds=DEADLINE_S):
        """Sends bytes, and returns all bytes that come until the server closes or is silent."""
        host, port = self.address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=seconds) as sock:
            sock.sendall(data)
            out = b""
            with contextlib.suppress(socket.timeout, ConnectionResetError):
                while True:
                    piece = sock.recv(65536)
                    if not piece:
                        break
                    out += piece
            return out

    def psql(self, text):
        """Returns what psql prints for this SQL. Tests use it for states that no request can make."""
        done = subprocess.run(["psql", "-v", "ON_ERROR_STOP=1", "-X", "-q", "-A", "-t", "-c", text, self.postgres.conninfo],
                              capture_output=True, text=True, timeout=60, check=False)
        expect(done.returncode == 0, done.stderr)
        return done.stdout.strip()

    def upload(self, data, **keywords):
        sha256 = hashlib.sha256(data).hexdigest()
        self.good("PUT", f"/v1/blobs/{sha256}", data, **keywords)
        return sha256

    def upload_rows(self, rows):
        return "sha256:" + self.upload("".join(json.dumps(row) + "\n" for row in rows).encode())

    def tiny_model(self, name="tiny"):
        return self.good("POST", "/v1/models", {"name": name, "path": LLAMA})

    def token_for(self, user, scopes):
        return self.good("POST", "/v1/tokens", {"user": user, "scopes": scopes})["token"]


def token_rows(count=4):
    return [{"ids": [1 + i % 200, 2, 3, 4], "labels": [-100, 2, 3, 4]} for i in range(count)]


def spec(rows_file, **changes):
    made = {"name": "t", "model": "tiny", "data": {"train": rows_file, "format": "tokens"}, "train": {"batch_rows": 2, "steps": 3}}
    made.update(changes)
    return made


def agent_token(api, node):
    """Writes an enrolled node with a bearer token into the database, and returns the token."""
    token = secrets.token_hex(32)
    api.psql(f"INSERT INTO nodes (name) VALUES ('{node}') ON CONFLICT DO NOTHING; INSERT INTO tokens (hash, node, scopes) "
             f"VALUES ('\\x{hashlib.sha256(token.encode()).hexdigest()}', '{node}', 128)")
    return token
