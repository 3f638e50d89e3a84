#!/usr/bin/env python3
"""Tests that the api starts or says in a sentence why not, outlives its database and Redis, and needs TLS beyond loopback."""
import contextlib
import hashlib
import http.client
import os
import shutil
import signal
import ssl
import subprocess
import time

from api import LLAMA, Api, expect, main, spec, token_rows, wait_for


def ended(api, status, *words):
    """Checks that the api ends by itself with that status and says all the words."""
    done = subprocess.run(api.command(), capture_output=True, text=True, timeout=30, check=False)
    expect(done.returncode == status, f"status {done.returncode}, not {status}: {done.stderr}")
    for word in words:
        expect(word in done.stderr, f"\"{word}\" is not in: {done.stderr}")


def without_a_database_it_waits_and_then_says_so():
    api = Api(start_seconds=1)
    began = time.monotonic()
    ended(api, 1, "PostgreSQL does not answer", "1 s")
    expect(time.monotonic() - began < 10, "it took too long")
    shutil.rmtree(api.base)


def a_database_that_comes_late_is_waited_for():
    api = Api(start_seconds=20)
    api.postgres.start()
    api.migrate()
    api.postgres.stop()
    process = subprocess.Popen(api.command(), stderr=subprocess.DEVNULL)
    try:
        api.postgres.start()
        wait_for(lambda: os.path.exists(api.path("address")), "its address")
    finally:
        process.terminate()
        expect(process.wait(15) == 0, "it ends well")
        api.postgres.stop()
        shutil.rmtree(api.base)


def a_database_without_the_schema_is_refused():
    api = Api(start_seconds=5)
    api.postgres.start()
    ended(api, 1, "schema")
    api.postgres.stop()
    shutil.rmtree(api.base)


def it_steps_down_when_the_database_is_of_a_newer_release():
    with Api() as old:
        expect(old.call("GET", "/readyz", token=None).status == 200, "ready")
        old.psql("INSERT INTO motley_migrations (number, name, digest) VALUES (999, 'of_tomorrow', 'x')")
        process, old.process = old.process, None
        expect(process.wait(30) == 5, "the status on which a unit does not start it again")
        expect("999" in old.log() and "api_stopped" in old.log(), old.log())


def a_wrong_configuration_is_refused_by_its_key():
    for change, words in (({"listen": "0.0.0.0:0"}, ["loopback", "tls"]), ({"listen": "nowhere"}, ["listen"]), ({"colour": 1}, ["colour"]),
                          ({"threads": 0}, ["threads"]), ({"limits": {"upload": "much"}}, ["limits.upload"]),
                          ({"tls": {"cert": "x"}}, ["tls"])):
        api = Api.__new__(Api)
        api.base = shared.base
        api.config = {**shared.config, **change}
        ended(api, 2, *words)


def a_port_in_use_is_named():
    api = Api.__new__(Api)
    api.base, api.config = shared.base, {**shared.config, "listen": shared.address}
    ended(api, 1, shared.address.rsplit(":", 1)[1], "in use")


def the_database_may_go_and_come():
    rows = shared.upload_rows(token_rows())
    first = shared.good("POST", "/v1/jobs", spec(rows))["id"]
    shared.postgres.stop(signal.SIGQUIT)
    answer = shared.call("GET", "/readyz")
    expect(answer.status == 503 and answer.headers["retry-after"], f"readyz: {answer.status}")
    expect(shared.call("GET", "/healthz").status == 200, "healthz")
    refused = shared.call("POST", "/v1/jobs", spec(rows, name="away"))
    expect(refused.status == 503 and refused.problem["code"] in ("network", "timeout", "busy"), refused.body)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(shared.postgres.folder, ".s.PGSQL.5432"))
    shared.postgres.start()
    wait_for(lambda: shared.call("GET", "/readyz").status == 200, "ready again")
    second = shared.good("POST", "/v1/jobs", spec(rows))["id"]
    expect(second > first and shared.good("GET", f"/v1/jobs/{first}")["id"] == first, "nothing lost, no id used again")


def sigterm_answers_what_is_under_way():
    api = shared
    connection = api.connection()
    connection.putrequest("PUT", "/v1/blobs/" + "0" * 64)
    connection.putheader("Authorization", f"Bearer {api.token}")
    connection.putheader("Content-Length", "100")
    connection.endheaders()
    connection.send(b"x" * 50)
    wait_for(lambda: "motley_api_requests_under_way 2" in api.call("GET", "/metrics").body.decode(), "the upload has begun")
    api.process.terminate()
    connection.send(b"x" * 50)
    expect(connection.getresponse().status == 422, "the answer comes")
    expect(api.process.wait(15) == 0, "and it ends well")
    api.start()


def over_tls_everything_works_and_plain_is_not_spoken():
    if not shutil.which("openssl"):
        print("SKIP over_tls_everything_works_and_plain_is_not_spoken: openssl is not installed")
        return
    base = shared.base
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=test",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{base}/tls.key", "-out", f"{base}/tls.pem"]
    subprocess.run(make, check=True, capture_output=True, timeout=30)
    with Api(tls={"cert": f"{base}/tls.pem", "key": f"{base}/tls.key", "ca": f"{base}/tls.pem"}) as api:
        data = os.urandom(3 << 20)
        expect(api.call("GET", "/v1/blobs/" + api.upload(data)).body == data, "a file over TLS")
        api.good("POST", "/v1/models", {"name": "tiny", "path": LLAMA})
        ident = api.good("POST", "/v1/jobs", spec(api.upload_rows(token_rows())))["id"]
        expect(api.good("GET", f"/v1/jobs/{ident}")["state"] == "queued", "a job over TLS")
        expect(b"HTTP/1.1 200" not in api.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", seconds=3), "plain HTTP on the TLS port")
        page = {"X-Motley": "1", "Origin": "https://motley.lab:7070", "Host": "motley.lab:7070"}  # any name, as certificates have it
        kept = api.call("POST", "/v1/session", {"token": api.token}, token=None, headers=page).headers["set-cookie"]
        expect(kept.startswith("__Host-motley=") and kept.endswith("; Secure") and "; Path=/;" in kept, kept)
        page["Cookie"] = kept.split(";")[0]
        expect(api.call("POST", "/v1/tokens", {}, token=None, headers=page).status == 201, "a session over TLS")
        expect(api.call("POST", "/v1/tokens", {}, token=None, headers=dict(page, Origin="http://motley.lab:7070")).status == 403, "another scheme")
        host, port = api.address.rsplit(":", 1)
        old = ssl.create_default_context(cafile=f"{base}/tls.pem")
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        try:
            http.client.HTTPSConnection(host, int(port), timeout=5, context=old).request("GET", "/healthz")
            expect(False, "TLS 1.2 was spoken")
        except (ssl.SSLError, ConnectionError):
            pass


def the_configuration_is_read_again_without_a_restart():
    def hang_up(**config):
        shared.config.update(config)
        shared.command()  # writes the file
        said = shared.log().count("config_")
        shared.process.send_signal(signal.SIGHUP)
        wait_for(lambda: shared.log().count("config_") > said, "an answer to SIGHUP")
        return shared.log().splitlines()[-1]
    big = os.urandom(2000)
    shared.upload(big)
    expect("config_reloaded" in hang_up(limits={"upload": 1000}), shared.log())
    shared.refused(413, "PUT", "/v1/blobs/" + hashlib.sha256(big[:1500]).hexdigest(), big[:1500], "1000")
    for change, key in (({"threads": 3}, "threads: another value takes a restart"), ({"limits": {"upload": 9000, "connections": 9}}, "limits.connections: another"),
                        ({"limits": {"uplood": 1}}, "limits.uplood"), ({"measure_seconds": -1}, "measure_seconds")):
        before = dict(shared.config)
        line = hang_up(**change)
        expect("config_refused" in line and key in line, line)
        shared.config.clear()
        shared.config.update(before)
    shared.refused(413, "PUT", "/v1/blobs/" + hashlib.sha256(big[:1600]).hexdigest(), big[:1600], "1000")
    expect("config_reloaded" in hang_up(limits={"upload": 10000}), shared.log())
    shared.upload(big[:1500])


with Api(wait_seconds=2) as shared:
    shared.tiny_model()
    main(without_a_database_it_waits_and_then_says_so, a_database_that_comes_late_is_waited_for, a_database_without_the_schema_is_refused,
         it_steps_down_when_the_database_is_of_a_newer_release,
         a_wrong_configuration_is_refused_by_its_key, a_port_in_use_is_named, the_database_may_go_and_come, sigterm_answers_what_is_under_way,
         the_configuration_is_read_again_without_a_restart, over_tls_everything_works_and_plain_is_not_spoken)
