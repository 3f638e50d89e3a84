#!/usr/bin/env python3
"""Tests the api behind nginx, which ends TLS: the page's session works, clients are told apart by their addresses, event streams
come at once, and nobody but a named proxy is believed."""
import base64
import contextlib
import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
from urllib.parse import urljoin

from api import BIN, SOURCE, Api, expect, main, skip, spec, token_rows, wait_for
from ports import free_port

CONFIG = """
daemon off; pid {base}/nginx.pid; error_log {base}/nginx.log; worker_processes 1;
events {{}}
http {{
  access_log off; client_body_temp_path {base}/n1; proxy_temp_path {base}/n2; fastcgi_temp_path {base}/n3; uwsgi_temp_path {base}/n4;
  scgi_temp_path {base}/n5;
  server {{
    listen 127.0.0.1:{signed} ssl; server_name lab.example; ssl_certificate {base}/lab.crt; ssl_certificate_key {base}/lab.key;
    auth_basic lab; auth_basic_user_file {base}/people;
    location / {{
      proxy_pass http://{api}; proxy_http_version 1.1; proxy_set_header Host $host; proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Remote-User $remote_user;
      proxy_set_header Authorization "";
    }}
  }}
  server {{
    listen 127.0.0.1:{port} ssl; server_name lab.example; ssl_certificate {base}/lab.crt; ssl_certificate_key {base}/lab.key; ssl_protocols TLSv1.2 TLSv1.3;
    client_max_body_size 0;
    location / {{
      proxy_pass http://{api}; proxy_http_version 1.1; proxy_request_buffering off; proxy_read_timeout 1h;
      proxy_set_header Host $host; proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Remote-User "";
    }}
    location /motley/ {{
      proxy_pass http://{api}/; proxy_redirect / /motley/; proxy_http_version 1.1; proxy_request_buffering off; proxy_read_timeout 1h;
      proxy_set_header Host $host; proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Remote-User "";
    }}
  }}
}}
"""
ORIGIN = "https://lab.example"
NGINX = shutil.which("nginx") or shutil.which("nginx", path=os.path.join(SOURCE, ".cache", "nginx", "usr", "sbin"))


class Proxy:
    """nginx in front of the api, with a certificate for lab.example."""

    def __init__(self, api):
        self.api, self.port, self.ssl_port = api, free_port(), free_port()
        done = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                               "-subj", "/CN=lab.example", "-addext", "subjectAltName=DNS:lab.example,IP:127.0.0.1", "-keyout", api.path("lab.key"),
                               "-out", api.path("lab.crt")], capture_output=True, text=True, check=False)
        expect(done.returncode == 0, done.stderr)
        with open(api.path("people"), "w", encoding="utf-8") as handle:
            handle.write("".join(f"{name}:{{PLAIN}}{name}-secret\n" for name in ("bob", "nobody")))
        with open(api.path("nginx.conf"), "w", encoding="utf-8") as handle:
            handle.write(CONFIG.format(base=api.base, port=self.port, signed=self.ssl_port, api=api.address))
        self.process = subprocess.Popen([NGINX, "-c", api.path("nginx.conf")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.context = ssl.create_default_context(cafile=api.path("lab.crt"))
        self.context.check_hostname = False  # it is reached by its number here
        wait_for(self.answers, "nginx")

    def answers(self):
        with contextlib.suppress(OSError):
            return self.call("GET", "/healthz").status == 200
        return False

    def connection(self, source="127.0.0.1", port=None):
        return http.client.HTTPSConnection("127.0.0.1", port or self.port, timeout=20, context=self.context, source_address=(source, 0))

    def call(self, method, path, body=None, headers=None, source="127.0.0.1", port=None):
        return self.api.call(method, path, body, token=None, headers={"Host": "lab.example", **(headers or {})},
                             connection=self.connection(source, port))

    def signed(self, name, method, path, body=None, **headers):
        """As somebody who signed in to nginx itself."""
        basic = base64.b64encode(f"{name}:{name}-secret".encode()).decode()
        return self.call(method, path, body, {"Authorization": f"Basic {basic}", **headers}, port=self.ssl_port)

    def stop(self):
        self.process.terminate()
        self.process.wait(20)


def page_session(proxy, source="127.0.0.1", forwarded=None):
    headers = {"X-Motley": "1", "Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"}
    if forwarded:
        headers["X-Forwarded-For"] = forwarded
    return proxy.call("POST", "/v1/session", {"token": proxy.api.token}, headers, source)


def the_page_signs_in_through_it():
    expect("<html" in PROXY.call("GET", "/").body.decode(), "no page")
    made = page_session(PROXY)
    cookie = made.headers["set-cookie"]
    expect(made.status == 201 and cookie.startswith("__Host-") and "; Secure" in cookie, f"{made.status}: {cookie}")
    headers = {"Cookie": cookie.split(";")[0], "X-Motley": "1", "Origin": ORIGIN}
    expect(PROXY.call("GET", "/v1/whoami", headers=headers).status == 200, "the session is not known")
    expect(PROXY.call("POST", "/v1/tokens", {"note": "x"}, headers).status == 201, "it may change nothing")
    for other in "http://lab.example", "https://evil.example", "https://lab.example:444":
        expect(PROXY.call("POST", "/v1/tokens", {"note": "x"}, {**headers, "Origin": other}).status == 403, f"{other} may")


def clients_have_their_own_addresses():
    for source, forwarded in ("127.0.0.7", None), ("127.0.0.8", "10.9.9.9"), ("127.0.0.9", "10.9.9.9, 10.8.8.8"):
        made = page_session(PROXY, source, forwarded)
        headers = {"Cookie": made.headers["set-cookie"].split(";")[0], "X-Motley": "1", "Origin": ORIGIN}
        expect(PROXY.call("POST", "/v1/tokens", {"note": source}, headers, source).status == 201, source)
        row = API.good("GET", "/v1/audit?limit=1")["audit"][-1]
        expect(row["address"] == source, f"{row['address']} for {source} that says {forwarded}")
    # Wrong tokens of one client are no other client's.
    for _ in range(30):
        last = PROXY.call("GET", "/v1/whoami", headers={"Authorization": "Bearer wrong"}, source="127.0.0.20")
    expect(last.status == 429, f"{last.status} after 30 wrong tokens")
    expect(PROXY.call("GET", "/v1/whoami", headers={"Authorization": f"Bearer {API.token}"}, source="127.0.0.21").status == 200, "a neighbour")


def others_are_not_believed():
    headers = {"X-Forwarded-For": "10.9.9.9", "X-Forwarded-Proto": "https", "Host": "lab.example", "X-Motley": "1", "Origin": ORIGIN}
    answer = API.call("POST", "/v1/session", {"token": API.token}, token=None, headers=headers, connection=API.connection("127.0.0.2"))
    expect(answer.status == 403, f"a client that says it is a proxy: {answer.status}")
    API.good("POST", "/v1/tokens", {"note": "direct"}, headers={"X-Forwarded-For": "10.9.9.9"}, connection=API.connection("127.0.0.2"))
    row = API.good("GET", "/v1/audit?limit=1")["audit"][-1]
    expect(row["address"] == "127.0.0.2", f"{row['address']}")


def events_come_at_once(base=""):
    connection = PROXY.connection()
    connection.request("GET", base + "/v1/events?topics=queue", headers={"Host": "lab.example", "Authorization": f"Bearer {API.token}"})
    answer = connection.getresponse()
    expect(answer.status == 200, f"{answer.status}")
    begin = time.monotonic()
    expect(answer.readline() and time.monotonic() - begin < 5, f"the first line after {time.monotonic() - begin:.1f} s")
    connection.close()


def all_of_it_is_below_a_path():
    """The page's files, by the addresses that a browser makes of each shell's; sessions, streams, and where a job is said to be."""
    for place in "/motley/", "/motley/queue", "/motley/jobs/7", "/motley/jobs/7/lanes":
        shell = PROXY.call("GET", place).body.decode()
        named = re.findall(r'(?:src|href)="([^"#]+)"', shell)
        expect(len(named) >= 5 and not any(name.startswith("/") for name in named), f"{place}: {named}")
        for name in named:
            file = PROXY.call("GET", urljoin(place, name))
            expect(file.status == 200 and urljoin(place, name).startswith("/motley/web/"), f"{place}: {name}: {file.status}")
    headers = {"X-Motley": "1", "Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"}
    made = PROXY.call("POST", "/motley/v1/session", {"token": API.token}, headers)
    cookie = {"Cookie": made.headers["set-cookie"].split(";")[0]}
    expect(made.status == 201 and PROXY.call("GET", "/motley/v1/whoami", headers=cookie).status == 200, f"{made.status}: {made.json}")
    events_come_at_once("/motley")
    API.tiny_model()
    job = PROXY.call("POST", "/motley/v1/jobs", spec(API.upload_rows(token_rows())), {**headers, **cookie})
    expect(job.status == 201 and job.headers["location"].endswith(f"/motley/v1/jobs/{job.json['id']}"), f"{job.status}: {job.headers} {job.json}")
    home = API.path("below")
    os.makedirs(home)
    with open(os.path.join(home, "client.json"), "w", encoding="utf-8") as handle:
        json.dump({"address": f"https://127.0.0.1:{PROXY.port}/motley/", "token": API.token, "ca": API.path("lab.crt")}, handle)
    for words in ["jobs"], ["job", str(job.json["id"])], ["web"]:
        done = subprocess.run([os.path.join(BIN, "motley"), "--home", home, *words], capture_output=True, text=True, timeout=20, check=False)
        expect(done.returncode == 0, f"{words}: {done.returncode}: {done.stdout}{done.stderr}")
    code = re.fullmatch(rf"https://127.0.0.1:{PROXY.port}/motley/#code=(\S+)\n", done.stdout)
    expect(code, f"motley web prints {done.stdout}")
    path = os.pathsep.join(os.path.join(SOURCE, *part) for part in (("client", "src"), (".cache", "client")))
    asked = "import motley; print([job.id for job in motley.Client().list_jobs()])"
    if os.path.isdir(os.path.join(SOURCE, ".cache", "client")):
        done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, "MOTLEY_HOME": home, "PYTHONPATH": path})
        expect(done.stdout == f"[{job.json['id']}]\n", f"the Python client: {done.stdout}{done.stderr}")


def who_signed_in_to_the_proxy_is_signed_in():
    """nginx asks for a password and says the user's name: a session is that user's, and nobody else's word counts."""
    API.good("POST", "/v1/tokens", {"user": "bob"})
    page = {"X-Motley": "1", "Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"}
    told = PROXY.signed("bob", "GET", "/v1/whoami")
    expect((told.status, told.json["code"]) == (401, "proxy-user") and "you are bob" in told.json["detail"], f"{told.status}: {told.json}")
    made = PROXY.signed("bob", "POST", "/v1/session", {}, **page)
    expect(made.status == 201 and made.json["user"] == "bob" and "admin" not in made.json["scopes"], f"{made.status}: {made.json}")
    cookie = made.headers["set-cookie"].split(";")[0]
    expect(PROXY.signed("bob", "GET", "/v1/whoami", Cookie=cookie).json["name"] == "bob", "whose session it is")
    row = API.good("GET", "/v1/audit?limit=1")["audit"][-1]
    expect((row["what"], row["who"]) == ("session.open", "bob"), f"{row}")
    nobody = PROXY.signed("nobody", "POST", "/v1/session", {}, **page)
    expect(nobody.status == 403 and "no user nobody" in nobody.json["detail"], f"{nobody.status}: {nobody.json}")
    # A site elsewhere cannot open one, nor a client that is not the proxy, nor one that says it beside the proxy.
    expect(PROXY.signed("bob", "POST", "/v1/session", {}, **{**page, "Origin": "https://evil.example"}).status == 403, "another site")
    said = {**page, "X-Remote-User": "bob"}
    expect(PROXY.call("POST", "/v1/session", {}, said).status in (400, 422), "a name of the client's own")
    for source in "127.0.0.1", "127.0.0.2":
        direct = {**said, "Host": "localhost", "Origin": "http://localhost"}
        twice = API.call("POST", "/v1/session", {}, token=None, headers=direct, connection=API.connection(source))
        expect((twice.status == 201) == (source == "127.0.0.1"), f"{source}: {twice.status}: {twice.json}")


def a_certificate_of_the_labs_own_ca_is_enough():
    """`ca` of client.json names the file of whichever CA signed what people reach; a certificate for another name is refused."""
    home = API.path("person")
    os.makedirs(home)
    for host, good in ("127.0.0.1", True), ("localhost", False):
        with open(os.path.join(home, "client.json"), "w", encoding="utf-8") as handle:
            json.dump({"address": f"https://{host}:{PROXY.port}", "token": API.token, "ca": API.path("lab.crt")}, handle)
        done = subprocess.run([os.path.join(BIN, "motley"), "--home", home, "jobs"], capture_output=True, text=True, timeout=20,
                              check=False)
        expect((done.returncode == 0) == good, f"{host}: {done.returncode}: {done.stdout}{done.stderr}")


def addresses_are_checked():
    api = Api(proxies=["lab.example"])
    try:
        done = subprocess.run(api.command(), capture_output=True, text=True, timeout=20, check=False)
        expect(done.returncode != 0 and "proxies: [0] is no numeric address" in done.stderr, done.stderr)
    finally:
        shutil.rmtree(api.base, ignore_errors=True)


if not NGINX:
    skip("nginx is not there: tools/take_program.sh takes it out of Debian's package")
with Api(proxies=["127.0.0.1", "::1"], proxy_user="X-Remote-User") as API:
    PROXY = Proxy(API)
    try:
        main(the_page_signs_in_through_it, clients_have_their_own_addresses, others_are_not_believed, events_come_at_once, all_of_it_is_below_a_path,
             a_certificate_of_the_labs_own_ca_is_enough,
             who_signed_in_to_the_proxy_is_signed_in, addresses_are_checked)
    finally:
        PROXY.stop()
