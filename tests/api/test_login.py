#!/usr/bin/env python3
"""`motley login`: by the device flow of an OpenID provider, and as an account of the api's machine by its unix socket. And a provider
that is wholly of others, oidc-provider-mock, signs a browser in."""
import json
import os
import pwd
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

from api import BIN, SLOW, SOURCE, expect, main, wait_for
from signing import API, PROVIDER, Browser, configure, refused, signing


def motley(home, *words, **options):
    return subprocess.Popen([os.path.join(BIN, "motley"), "--home", home, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def said(process, seconds=20):
    out, err = process.communicate(timeout=seconds * SLOW)
    return process.returncode, out, err


def login(home, answer="yes", sub="1"):
    """`motley login` with a person who enters the code when it was asked for once; returns its status, output and seconds."""
    begun = time.monotonic()
    PROVIDER.asked.clear()
    process = motley(home, "login", f"http://{API.address}")
    first = process.stderr.readline()
    expect(first.startswith("Open "), first)
    address, code = re.search(r"Open (\S+) .* code (\S+)", first).groups()
    expect(PROVIDER.issuer in address and re.fullmatch("[A-Z]{4}-[A-Z]{4}", code), first)
    if answer:
        wait_for(lambda: "/token" in PROVIDER.asked, "the first question")
        urllib.request.urlopen(address, urllib.parse.urlencode({"user_code": code, "answer": answer, "sub": sub}).encode(), timeout=10).read()
    over = threading.Timer(30 * SLOW, process.kill)
    over.start()
    out, err = process.stdout.read(), process.stderr.read()  # not communicate(): it would miss what readline() has read ahead
    over.cancel()
    return process.wait(10), out, err, time.monotonic() - begun


def a_program_signs_in_by_the_device_flow():
    home = API.path("person")
    PROVIDER.slow_downs = 1  # every second, as this provider says, and five seconds later once it has said so
    status, out, err, seconds = login(home)
    expect(status == 0 and "you are ada" in out and PROVIDER.asked.count("/token") == 2 and seconds > 6, f"{status} after {seconds:.1f} s: {out}{err}")
    path = os.path.join(home, "client.json")
    expect(os.stat(path).st_mode & 0o777 == 0o600 and os.stat(home).st_mode & 0o777 == 0o700, "others may read it")
    with open(path, encoding="utf-8") as handle:
        client = json.load(handle)
    expect(client["address"] == f"http://{API.address}" and len(client["token"]) == 64, f"{client}")
    me = API.good("GET", "/v1/whoami", token=client["token"])
    expect(me["name"] == "ada" and "admin" not in me["scopes"] and me["expires"], f"{me}")
    status, out, err = said(motley(home, "jobs"))
    expect(status == 0, f"{status}: {out}{err}")
    row = [token for token in API.good("GET", "/v1/tokens")["tokens"] if token["note"] == "motley login"][-1]
    expect(not row["session"] and row["user"] == "ada", f"{row}")
    status, out, err, _ = login(home, "no")
    expect(status == 6 and "access_denied" in err, f"{status}: {out}{err}")
    PROVIDER.answer_with["/device_authorization"] = lambda: {"device_code": "x", "user_code": "AAAA-BBBB", "expires_in": 2,
                                                             "verification_uri": PROVIDER.issuer + "/device"}
    status, out, err, seconds = login(home, None)
    expect(status == 3 and "expired" in err and seconds < 5, f"{status} after {seconds:.1f} s: {out}{err}")
    PROVIDER.answer_with["/device_authorization"] = lambda: {"device_code": "x", "user_code": "AAAA-BBBB", "expires_in": 2,
                                                             "verification_uri": "javascript:alert(1)"}
    status, out, err = said(motley(home, "login", f"http://{API.address}"))
    expect(status == 1 and "javascript" in err and PROVIDER.issuer in err, f"{status}: {out}{err}")
    PROVIDER.answer_with = {}
    PROVIDER.document = {"device_authorization_endpoint": None}
    configure(name="the lab")
    status, out, err = said(motley(home, "login", f"http://{API.address}"))
    expect(status == 2 and "device_authorization_endpoint" in err, f"{status}: {out}{err}")
    PROVIDER.document = {}
    configure(name="the lab")
    expect(API.call("POST", "/v1/oidc/token", {"device_code": "wrong"}, token=None).status == 403, "a code of nobody's")
    status, out, err = said(motley(API.path("none"), "login"))
    expect(status == 2 and "which server" in err, f"{status}: {err}")
    status, out, err = said(motley(API.path("none"), "login", "http://192.0.2.1:7070"))
    expect(status == 2 and "https://" in err, f"{status}: {err}")  # the token would come in clear


def an_account_of_this_machine_signs_in_by_the_socket():
    path, home = API.path("api.sock"), API.path("local")
    API.config["unix_socket"] = {"path": path}
    configure(name="the lab")
    me = pwd.getpwuid(os.getuid()).pw_name
    status, out, err = said(motley(home, "login", "--socket", path))
    expect(status == 6 and f"no user {me}" in err, f"{status}: {err}")
    API.config["unix_socket"]["allow_sign_up"] = True
    configure(name="the lab")
    status, out, err = said(motley(home, "login", "--socket", path))
    expect(status == 0 and f"you are {me}" in out, f"{status}: {out}{err}")
    status, out, err = said(motley(home, "--json", "jobs"))
    expect(status == 0 and "jobs" in json.loads(out), f"{status}: {out}{err}")
    row = API.good("GET", "/v1/audit?limit=1")["audit"][0]
    expect((row["who"], row["what"], row["address"]) == (me, "token.sign-in", "unix"), f"{row}")
    # With an address, the socket says who one is and the token goes there.
    status, out, err = said(motley(API.path("both"), "login", "--socket", path, f"http://{API.address}"))
    expect(status == 0 and said(motley(API.path("both"), "jobs"))[0] == 0, f"{status}: {out}{err}")
    with open(os.path.join(API.path("both"), "client.json"), encoding="utf-8") as handle:
        expect("socket" not in json.load(handle), "the token is sent to the socket")
    refused(API.call("POST", "/v1/socket-token", {}, token=None), 403, "unix socket")
    if os.getuid() == 0:
        for name, word in ("daemon", "you are daemon"), ("nobody", "PrivateUsers"):  # nobody is what other namespaces' accounts look like
            account = pwd.getpwnam(name)
            os.mkdir(API.path(name))
            os.chown(API.path(name), account.pw_uid, account.pw_gid)
            status, out, err = said(motley(API.path(name), "login", "--socket", path, user=account.pw_uid, group=account.pw_gid, extra_groups=[]))
            expect((status == 0) == (name == "daemon") and word in out + err, f"{status}: {out}{err}")
    # Whoever speaks by the socket is no proxy, and shows a token as anybody else.
    with socket.socket(socket.AF_UNIX) as plain:
        plain.connect(path)
        plain.sendall(b"GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\nX-Remote-User: admin\r\nConnection: close\r\n\r\n")
        expect(b"401" in plain.makefile("rb").readline(), "without a token")
    del API.config["unix_socket"]


def a_provider_of_others_signs_in():
    """oidc-provider-mock as it is, with a secret in the form and claims by scope."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": os.path.join(SOURCE, ".cache", "api"), "PYTHONWARNINGS": "ignore", "AUTHLIB_INSECURE_TRANSPORT": "1"}
    claims = json.dumps({"sub": "mock-1", "preferred_username": "mona", "groups": ["lab"]})
    with open(API.path("mock.log"), "wb") as log:
        mock = subprocess.Popen([sys.executable, "-m", "oidc_provider_mock", "--port", str(port), "--require-nonce", "true", "--user-claims", claims],
                                env=environment, stdout=log, stderr=log)
    try:
        def answers():
            with socket.socket() as one:
                return one.connect_ex(("127.0.0.1", port)) == 0
        wait_for(answers, "oidc-provider-mock")
        configure(issuer=f"http://127.0.0.1:{port}", client_id="any")
        done = Browser().sign_in("mock-1")
        expect(done.status == 201 and done.json["user"] == "mona", f"{done.status}: {done.body}")
    finally:
        mock.terminate()
        mock.wait(20)


with signing():
    PROVIDER.people["1"] = {"preferred_username": "ada"}
    main(a_program_signs_in_by_the_device_flow, an_account_of_this_machine_signs_in_by_the_socket, a_provider_of_others_signs_in)
