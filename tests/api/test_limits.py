#!/usr/bin/env python3
"""Tests deadlines and the limits of a user: a client that drips, idles or sends without end is cut off."""
import contextlib
import secrets
import socket
import ssl
import time

from api import SLOW, expect, main, spec, token_rows, wait_for
from limited import IDLE_S, Limited


def seconds_until_closed(sock, drip, pause, most):
    """Sends `drip` again and again, and returns the seconds until the server closes the connection, at most `most`."""
    began = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() - began < most:
            sock.sendall(drip)
            sock.settimeout(pause)
            with contextlib.suppress(socket.timeout, ssl.SSLWantReadError):
                if not sock.recv(1):
                    break
    return time.monotonic() - began


# ---- deadlines ----

def a_drip_of_bytes_renews_no_deadline():
    """A head has 15 s in all. A body must keep up with bytes_per_second, whatever its framing."""
    sha256 = "ab" * 32
    for what, begin, drip in (
            ("a body of known length", api.head("POST", "/v1/jobs", "Content-Type: application/json", "Content-Length: 100000"), b" "),
            ("an upload", api.head("PUT", f"/v1/blobs/{sha256}", "Content-Length: 100000"), b"x"),
            ("an upload in chunks", api.head("PUT", f"/v1/blobs/{sha256}", "Transfer-Encoding: chunked"), b"1\r\nx\r\n")):
        with api.dial() as sock:
            sock.sendall(begin)
            took = seconds_until_closed(sock, drip, 0.1, 6 * IDLE_S)
        expect(IDLE_S - 1 < took < 2 * IDLE_S + 2 * SLOW, f"{what}: borne for {took:.1f} s")


def a_reader_of_drips_is_cut_off():
    """The reader takes a little of its answer now and then, far below the rate that the limit asks."""
    sha256 = api.upload(secrets.token_bytes(32 << 20))
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = api.address.rsplit(":", 1)
    sock.connect((host, int(port)))
    with api.context.wrap_socket(sock, server_hostname=host) as reader:
        reader.sendall(api.head("GET", f"/v1/blobs/{sha256}"))
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 30 and api.connections() > 1:
                reader.recv(16)
                time.sleep(0.05)
    expect(time.monotonic() - began < 30, "it is still served after 30 s")


def who_does_not_read_answers_is_sent_no_more():
    """A client sends requests without end on one connection and reads no answer. The server stops reading them."""
    with api.dial() as sock:
        sock.settimeout(1)
        sent, question = 0, api.head("GET", "/v1/openapi.yaml") * 100
        before = resident_bytes()
        with contextlib.suppress(OSError):
            while sent < 64 << 20:
                sent += sock.send(question)
        grown = resident_bytes() - before
    expect(sent < 64 << 20, "all were taken")
    expect(SLOW > 1 or grown < 16 << 20, f"{sent} bytes of requests cost {grown >> 20} MiB")


def resident_bytes():
    with open(f"/proc/{api.process.pid}/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))


def a_user_may_keep_so_many_bytes_of_files():
    """The limit holds for bodies with a length, for endless chunks, for parts of several files and for uploads at once."""
    keep, mib = 40 << 20, 1 << 20
    token = api.token_for("keeper", ["models:write", "models:read"])
    more = {"token": token}
    data = secrets.token_bytes(30 * mib)
    api.upload(data, **more)
    expect(api.upload(data, **more), "the same again adds nothing")
    problem = api.refused(413, "PUT", f"/v1/blobs/{'1' * 64}", bytes(11 * mib), "keeper", str(keep), **more)
    expect(problem["code"] == "too-big", f"{problem}")
    with api.dial() as sock:
        sock.sendall(api.head("PUT", f"/v1/blobs/{'2' * 64}", "Transfer-Encoding: chunked").replace(api.token.encode(), token.encode()))
        sent, piece = 0, b"10000\r\n" + b"x" * 65536 + b"\r\n"
        with contextlib.suppress(OSError):
            while sent < 3 * keep:
                sock.sendall(piece)
                sent += 65536
        expect(sent < 3 * keep, f"{sent} bytes without end were taken")
    sizes = f"offset=0&size={6 * mib}"
    expect(api.call("PUT", f"/v1/blobs/{'3' * 64}?{sizes}", bytes(6 * mib - 1), **more).status == 202, "a first file in parts")
    api.refused(413, "PUT", f"/v1/blobs/{'4' * 64}?{sizes}", bytes(mib), "keeper", **more)
    other = api.token_for("other-keeper", ["models:write"])
    expect(api.call("PUT", f"/v1/blobs/{'5' * 64}?{sizes}", bytes(mib), token=other).status == 202, "others have their own")


# ---- streams ----

def a_user_has_so_many_streams_and_a_revoked_token_ends_them():
    made = api.good("POST", "/v1/tokens", {"user": "ann", "scopes": ["jobs:read", "jobs:write"]})
    job = api.good("POST", "/v1/jobs", spec(rows))["id"]
    api.good("POST", f"/v1/jobs/{job}/share", {"visibility": "everyone"})
    path, headers = f"/v1/jobs/{job}/events", {"Authorization": f"Bearer {made['token']}"}
    streams = []
    for _ in range(3):
        connection = api.connection()
        connection.request("GET", path, headers=headers)
        streams.append((connection, connection.getresponse()))
        expect(streams[-1][1].status == 200, f"{streams[-1][1].status}")
    problem = api.refused(429, "GET", path, None, "ann has 3", token=made["token"])
    expect(problem["code"] == "busy", f"{problem}")
    api.good("DELETE", f"/v1/tokens/{made['id']}")
    wait_for(lambda: api.metric("motley_api_followers") == 0, "a revoked token's streams end", 20)
    for connection, _ in streams:
        connection.close()


with Limited() as api:
    api.tiny_model()
    rows = api.upload_rows(token_rows())
    main(a_user_may_keep_so_many_bytes_of_files, a_drip_of_bytes_renews_no_deadline, a_reader_of_drips_is_cut_off, who_does_not_read_answers_is_sent_no_more,
         a_user_has_so_many_streams_and_a_revoked_token_ends_them)
