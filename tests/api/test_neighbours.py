#!/usr/bin/env python3
"""Tests that clients that drip, idle, guess or send without end cost others nothing. It compares times, so little runs beside it."""
import contextlib
import http.client
import multiprocessing
import resource
import secrets
import time

from api import SLOW, expect, main, spec, token_rows, wait_for
from limited import Limited

P99_MS = 50  # ms; the most that the p99 of an honest client's submits may be while others misbehave


def honest(seconds):
    """Returns the p99 in ms of submits, one after the other, from another address."""
    times, until = [], time.monotonic() + seconds
    connection = http.client.HTTPSConnection(*api.address.rsplit(":", 1), timeout=10, context=api.context, source_address=("127.0.0.2", 0))
    while time.monotonic() < until:
        began = time.monotonic()
        expect(api.call("POST", "/v1/jobs", spec(rows), connection=connection).status == 201, "an honest submit")
        times.append((time.monotonic() - began) * 1e3)
        time.sleep(0.005)
    connection.close()
    return sorted(times)[int(len(times) * 0.99)]


def drips():
    socks = [api.dial() for _ in range(100)]
    for sock in socks:
        sock.sendall(b"GET /v1/jobs HTTP/1.1\r\nX: ")
    while True:
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.sendall(b"x")
        time.sleep(0.1)


def idlers():
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    socks = []
    for _ in range(2000):
        with contextlib.suppress(OSError):
            socks.append(api.dial(tls=False))
            socks[-1].setblocking(False)
            socks[-1] = api.context.wrap_socket(socks[-1], do_handshake_on_connect=False, server_hostname="127.0.0.1")
            socks[-1].do_handshake()
    while True:
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.do_handshake()
        time.sleep(0.2)


def endless():
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    while True:
        with contextlib.suppress(OSError), api.dial() as sock:
            sock.sendall(api.head("PUT", f"/v1/blobs/{'cd' * 32}", "Transfer-Encoding: chunked"))
            while True:
                sock.sendall(piece)


def guesses():
    connection = None
    while True:
        connection = connection or http.client.HTTPSConnection(*api.address.rsplit(":", 1), timeout=10, context=api.context)
        try:
            connection.request("GET", "/v1/jobs", headers={"Authorization": f"Bearer {secrets.token_hex(32)}"})
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            connection = None
        time.sleep(0.005)


def p99_beside(attack):
    process = multiprocessing.get_context("fork").Process(target=attack, daemon=True)
    process.start()
    try:
        time.sleep(0.5)
        return honest(1.5)
    finally:
        process.kill()
        process.join()


def an_honest_client_hardly_notices_any_of_them():
    """Other work on this machine may make single windows slow. An attack that is noticed makes all windows slow."""
    quiet = honest(2)
    told = [f"alone {quiet:.0f}"]
    for attack in (drips, idlers, endless, guesses):
        for _ in range(4):
            p99 = p99_beside(attack)
            if p99 < max(P99_MS, 4 * quiet) * SLOW:
                break
            quiet = max(quiet, honest(1.5))
        told.append(f"{attack.__name__} {p99:.0f}")
        expect(p99 < max(P99_MS, 4 * quiet) * SLOW, f"p99 {p99:.0f} ms while {attack.__name__} go on, {quiet:.0f} alone")
    return "p99 in ms: " + ", ".join(told)


def no_address_takes_all_connections():
    wait_for(lambda: api.connections() <= 1, "the others are gone")
    idle = [api.dial(tls=False) for _ in range(300)]
    with api.dial(source="127.0.0.2") as other:
        other.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = b"".join(iter(lambda: other.recv(65536), b"")).decode()
    expect("\nmotley_api_connections 257\n" in text, f"another address is served beside 256: {text[:1000]}")
    for sock in idle:
        sock.close()
    wait_for(lambda: api.connections() <= 1, "the idle are gone")
    for name in ("refused_connections", "late_tokens"):
        expect(api.metric(f"motley_api_{name}_total") > 0, f"{name} are not counted")


with Limited() as api:
    api.tiny_model()
    rows = api.upload_rows(token_rows())
    main(an_honest_client_hardly_notices_any_of_them, no_address_takes_all_connections)
