#!/usr/bin/env python3
"""Two apis over one folder of files: what is begun at one goes on at the other, and one after the other restarts, or dies, under
agents that know both by one name and people who come through nginx."""
import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

from motley import SLOW, SOURCE, expect, llama_spec, main, skip
from servers import PACED, Lab, Service, free_port, page_block, wait_for

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:{os.path.join(SOURCE, '.cache', 'nginx', 'usr', 'sbin')}")
STEPS = 150
HOSTS = ("127.0.0.1", "::1")  # localhost is both, as a name in DNS with two addresses


class TwoApis(Lab):
    def url(self, i):
        return f"https://localhost:{self.api_ports[0]}"

    def configure_apis(self, redis):
        self.api_ports = [free_port()] * 2
        super().configure_apis(redis)
        for i, listen in ((1, f"127.0.0.1:{self.api_ports[0]}"), (2, f"[::1]:{self.api_ports[0]}")):
            with open(self.path(f"api-{i}.yaml"), encoding="utf-8") as handle:
                self.write(f"api-{i}.yaml", {**json.load(handle), "listen": listen, "proxies": ["127.0.0.1"]})

    def nginx(self):
        """The page's, between this lab's addresses."""
        cert, key = self.server_files
        with open(cert, encoding="utf-8") as one, open(self.ca.cert, encoding="utf-8") as two:
            chain = self.write("chain.crt", one.read() + two.read())
        self.proxy = free_port()
        text = page_block("upstream motley")
        for name, value in {"api1.lab:8443": f"127.0.0.1:{self.api_ports[0]}", "api2.lab:8443": f"[::1]:{self.api_ports[0]}",
                            "listen 8443": f"listen 127.0.0.1:{self.proxy}", "motley.lab": "localhost", "/etc/motley/api.crt": chain,
                            "/etc/motley/api.key": key, "/etc/motley/ca.crt": self.ca.cert}.items():
            expect(name in text, f"the page's nginx has no {name}")
            text = text.replace(name, value)
        folders = " ".join(f"{kind}_temp_path {self.path(kind)};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        self.write("nginx.conf", f"daemon off; pid {self.path('nginx.pid')}; error_log {self.path('nginx-errors.log')}; worker_processes 1;\n"
                                 f"events {{}}\nhttp {{ access_log off; {folders}\n{text} }}\n")
        return Service(self, "nginx", NGINX, "-c", self.path("nginx.conf")).start()


def call(i, method, path, body=None, **headers):
    """Asks api 0 or 1, or "nginx": (status, body)."""
    host, port = ("127.0.0.1", lab.proxy) if i == "nginx" else (HOSTS[i], lab.api_ports[0])
    context = ssl.create_default_context(cafile=lab.ca.cert)
    context.check_hostname = False
    connection = http.client.HTTPSConnection(host, port, timeout=30 * SLOW, context=context)
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    if isinstance(body, dict):
        headers["Content-Type"] = "application/json"
    with contextlib.closing(connection):
        connection.request(method, path, data, {"Authorization": f"Bearer {lab.token}", **{k.replace("_", "-"): v for k, v in headers.items()}})
        answer = connection.getresponse()
        return answer.status, answer.read()


def good(i, method, path, body=None, **headers):
    status, text = call(i, method, path, body, **headers)
    expect(status in (200, 201, 202, 204), f"{method} {path} at {i}: {status} {text[:500]}")
    return json.loads(text) if text else None


def events(i, ident, after=0):
    """(id, type) of an ended job's events behind `after`, as api i streams them."""
    status, text = call(i, "GET", f"/v1/jobs/{ident}/events", Last_Event_ID=str(after))
    expect(status == 200, f"events at {i}: {status}")
    return re.findall(r"^id: (\d+)\nevent: (\w+)", text.decode(), re.M)


def what_one_began_the_other_goes_on_with():
    data = json.dumps({"text": "words " * 2000}).encode() + b"\n"
    sha256, half = hashlib.sha256(data).hexdigest(), len(data) // 2
    good(0, "PUT", f"/v1/blobs/{sha256}?offset=0&size={len(data)}", data[:half])
    good(1, "PUT", f"/v1/blobs/{sha256}?offset={half}&size={len(data)}", data[half:])
    expect(call(0, "GET", f"/v1/blobs/{sha256}")[1] == data, "the file is at both")
    ident = lab.submit(llama_spec(lab, "one and the other", 5, 2), wait=True)["id"]
    spec = good(0, "GET", f"/v1/jobs/{ident}")["spec"]
    first = good(0, "POST", "/v1/jobs", spec, Idempotency_Key="twice")
    again = good(1, "POST", "/v1/jobs", spec, Idempotency_Key="twice")
    expect(first["id"] == again["id"], f"one submit made {first['id']} and {again['id']}")
    seen = events(0, ident)
    expect(len(seen) > 3 and events(1, ident) == seen, "both stream the same events")
    middle = seen[len(seen) // 2][0]
    expect(events(1, ident, middle) == [entry for entry in seen if int(entry[0]) > int(middle)], "and go on where the other ended")
    made = good(0, "POST", "/v1/tokens", {"user": "bob", "scopes": ["jobs:read"]})
    header = {"Authorization": f"Bearer {made['token']}"}
    expect(call(1, "GET", "/v1/jobs", **header)[0] == 200, "a token of one is good at the other")
    good(0, "DELETE", f"/v1/tokens/{made['id']}")
    wait_for(lambda: call(1, "GET", "/v1/jobs", **header)[0] == 401, "a token that one revoked is refused by the other", 8 * SLOW)


class Clients(threading.Thread):
    """Submits through nginx, one after the other, each with a key; `cut` has what was not answered with a job."""

    def __init__(self, spec):
        super().__init__()
        self.spec, self.made, self.cut, self.stopped = spec, [], [], False

    def run(self):
        while not self.stopped:
            try:
                status, text = call("nginx", "POST", "/v1/jobs", self.spec, Idempotency_Key=f"n{len(self.made)}")
            except OSError as error:
                status, text = 0, str(error)
            if status == 201:
                self.made.append(json.loads(text)["id"])
            else:
                self.cut.append((status, text))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopped = True
        self.join(60 * SLOW)


def each_restarts_and_dies_under_clients():
    lab.nginx()
    wait_for(lambda: proxy_answers(), "nginx", 30 * SLOW)
    runs = lab.submit(llama_spec(lab, "runs on", STEPS, 2, repeat=8, every=10))["id"]
    lab.wait_steps(runs, 3)
    spec = {**good(0, "GET", f"/v1/jobs/{runs}")["spec"], "name": "clicks", "after": [runs]}
    with Clients(spec) as clients:
        for how in (signal.SIGTERM, signal.SIGKILL):
            for api in lab.apis:
                count = len(clients.made)
                wait_for(lambda: len(clients.made) > count + 2, "submits", 60 * SLOW)
                api.stop(how)
                count = len(clients.made)
                wait_for(lambda: len(clients.made) > count + 2, "submits through the other one", 60 * SLOW)
                lab.run("jobs")  # by the name with two addresses
                os.unlink(lab.path(f"{api.name}.address"))
                api.start()
                wait_for(lambda: os.path.exists(lab.path(f"{api.name}.address")), "the api is back", 30 * SLOW)
    expect(len(clients.cut) <= 4, f"of four stops at most one request each is cut off, not {clients.cut}")
    expect(len(set(clients.made)) == len(clients.made), "a job twice")
    there = {job["id"] for job in lab.document("jobs", "--limit", "500")["jobs"]}
    expect(set(clients.made) <= there, f"lost: {set(clients.made) - there}")
    job = lab.wait_state(runs, ("succeeded", "failed"))
    expect((job["state"], job["attempt"]) == ("succeeded", 1), f"{job['state']}, attempt {job['attempt']}: {job.get('why')}")
    expect([m["step"] for m in lab.metrics(runs)[0]] == list(range(STEPS)), "each step once")
    return f"{len(clients.made)} submits, {len(clients.cut)} cut off"


def proxy_answers():
    with contextlib.suppress(OSError):
        return call("nginx", "GET", "/healthz")[0] == 200
    return False


if __name__ == "__main__":
    if not NGINX:
        skip("nginx is not there: tools/take_program.sh takes it out of Debian's package")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        skip("this machine has no ::1, the second address of localhost")
    with TwoApis(device=PACED) as lab:
        main(what_one_began_the_other_goes_on_with, each_restarts_and_dies_under_clients)
