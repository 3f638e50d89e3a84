#!/usr/bin/env python3
"""People are told at their own addresses when a job of theirs ends or is held: signed, once, over restarts, and again until it is
taken. No address leads into the cluster's own network, and no receiver holds up more than its own notices."""
import contextlib
import hashlib
import hmac
import http.server
import json
import mailbox
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from api import Api, expect, main, spec, token_rows, wait_for


class Receiver(http.server.ThreadingHTTPServer):
    """Answers as `script` says, by path; "/stuck" does not answer until it is let go, "/endless" never stops."""
    daemon_threads = True

    def __init__(self):
        self.got, self.opened, self.script, self.let_go, self.sent = [], 0, {}, threading.Event(), 0
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, path="/hook"):
        return f"http://127.0.0.1:{self.server_port}{path}"

    def get_request(self):
        self.opened += 1
        return super().get_request()

    def bodies(self, path="/hook"):
        return [json.loads(body) for at, _, body in self.got if at == path]

    def await_count(self, count, path="/hook"):
        wait_for(lambda: len(self.bodies(path)) >= count, f"{count} notices at {path}")
        expect(len(self.bodies(path)) == count, self.bodies(path))
        return self.bodies(path)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, dict(self.headers), body))
        if self.path == "/stuck":
            self.server.let_go.wait(60)
        script = self.server.script.get(self.path, [])
        status, fields = script.pop(0) if script else (200, {})
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        if self.path != "/endless":
            self.send_header("Content-Length", "0")
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            while self.path == "/endless":
                self.wfile.write(b"x" * 65536)
                self.server.sent += 65536

    def log_message(self, *words):
        pass


def job(token="", **fields):
    return api.good("POST", "/v1/jobs", spec(api.rows, hold=True, **fields), token=token)["id"]


def becomes(ident, state, **columns):
    more = "".join(f", {name} = '{value}'" for name, value in columns.items())
    api.psql(f"UPDATE jobs SET state = '{state}', updated_at = now(){more} WHERE id = {ident}")


def notices(token=""):
    return api.good("GET", "/v1/notices", token=token)["notices"]


def await_notice(ident, question, token=""):
    def seen():
        found = [n for n in notices(token) if n["job"] == ident]
        return found if found and question(found[-1]) else None
    return wait_for(seen, f"the notice of job {ident}: {[n for n in notices(token) if n['job'] == ident]}")[-1]


def await_attempt(ident, attempt):
    """The notice once that attempt has ended."""
    wait_for(lambda: api.psql(f"SELECT 1 FROM notices WHERE job = {ident} AND attempts = {attempt} AND taken_until IS NULL"),
             f"attempt {attempt} of the notice of job {ident}")
    return await_notice(ident, lambda n: True)


def due_now():
    api.psql("UPDATE notices SET due_at = now() WHERE state = 'waiting'; NOTIFY motley_notices")


@contextlib.contextmanager
def mail_server():
    """aiosmtpd (Debian's, or this Python's) on a port of this machine; its port and the folder of its mail, or None, None."""
    with socket.create_server(("127.0.0.1", 0)) as free, tempfile.TemporaryDirectory(prefix="motley-mail-") as folder:
        port = free.getsockname()[1]
        free.close()
        python = next((one for one in ("/usr/bin/python3", sys.executable) if subprocess.run([one, "-c", "import aiosmtpd"], stderr=subprocess.DEVNULL, check=False).returncode == 0), None)
        if not python:
            yield None, None
            return
        with subprocess.Popen([python, "-m", "aiosmtpd", "-n", "-l", f"127.0.0.1:{port}", "-c", "aiosmtpd.handlers.Mailbox", folder + "/mail"]) as server:
            try:
                yield port, folder + "/mail"
            finally:
                server.terminate()


def an_end_is_told_by_mail():
    if not mail_port:
        return "SKIP: there is no aiosmtpd (python3-aiosmtpd)"
    def arrived(count):
        wait_for(lambda: len(mailbox.Maildir(mail_folder)) >= count, f"{count} messages")
        return sorted(mailbox.Maildir(mail_folder), key=lambda message: message["Message-ID"])
    told = api.good("PATCH", "/v1/notices", {"url": "mailto:ada@lab.example"})
    expect(told["url"] == "mailto:ada@lab.example", told)
    ident = job(name="größer")
    becomes(ident, "failed", why="the cable\nwas pulled. Ä", step=7)
    message = arrived(1)[0]
    expect((message["From"], message["To"], message["Subject"], message["Auto-Submitted"]) ==
           ("motley@lab.example", "ada@lab.example", f"job {ident} has failed: gr????er", "auto-generated"), message.items())
    text = message.get_payload(decode=True).decode()
    expect(f"job {ident} has failed: größer\n7 of 3 steps are done\nthe cable was pulled. Ä\n" in text.replace("\r\n", "\n"), text)
    expect(await_notice(ident, lambda n: n["state"] == "delivered")["attempts"] == 1, "at once")
    becomes(job(notify="mailto:bob@lab.example"), "cancelled")
    expect([m["To"] for m in arrived(2)].count("bob@lab.example") == 1, "a job's own address")
    over = job()
    becomes(over, "succeeded")
    notice = await_notice(over, lambda n: n["state"] != "waiting")
    expect(notice["state"] == "given up" and "2 messages" in notice["why"] and "notify.mail.per_day" in notice["why"], notice)
    expect(len(mailbox.Maildir(mail_folder)) == 2, "no more in a day")
    api.refused(422, "POST", "/v1/jobs", spec(api.rows, notify="mailto:eve@elsewhere.example"), "notify", "none of the domains")
    api.good("PATCH", "/v1/notices", {"url": None})


def an_end_is_told_once_and_signed():
    told = api.good("PATCH", "/v1/notices", {"url": receiver.url("/mine?x=1")})
    expect(told["url"] == receiver.url("/mine?x=1") and len(told["key"]) == 64, told)
    ident = job(name="five")
    becomes(ident, "failed", code="node-fault", why="the cable was pulled", step=7)
    body = receiver.await_count(1, "/mine?x=1")[0]
    _, headers, raw = next(got for got in receiver.got if got[0] == "/mine?x=1")
    expect(headers["X-Motley-Signature"] == "sha256=" + hmac.new(told["key"].encode(), raw, hashlib.sha256).hexdigest(), headers)
    expect(headers["X-Motley-Notice"] == str(body["notice"]) and headers["Content-Type"] == "application/json", headers)
    expect("Authorization" not in headers and "X-Motley-Release" not in headers, headers)
    wanted = {"event": "failed", "job": ident, "name": "five", "owner": "admin", "step": 7, "steps": 3, "code": "node-fault", "why": "the cable was pulled"}
    expect({key: body[key] for key in wanted} == wanted, body)
    notice = await_notice(ident, lambda n: n["state"] == "delivered")
    expect(notice["attempts"] == 1 and notice["user"] == "admin" and not notice["why"] and notice["ended"], notice)
    shown = api.good("GET", f"/v1/jobs/{ident}")["notices"]
    expect([n["state"] for n in shown] == ["delivered"] and "url" not in shown[0], shown)
    changed = api.good("PATCH", "/v1/notices", {"key": "new"})
    expect(changed["url"] == told["url"] and changed["key"] != told["key"], changed)
    expect(api.good("PATCH", "/v1/notices", {"key": "keep"}) == changed, changed)
    api.good("PATCH", "/v1/notices", {"url": None})


def what_is_told_and_what_is_not():
    there = receiver.url("/kinds")
    ident = job(notify=there)
    becomes(ident, "queued")
    becomes(ident, "held")
    becomes(ident, "running")
    becomes(ident, "stopping")
    becomes(ident, "held", why="a person holds it")
    becomes(ident, "succeeded")
    element = job(notify=there)
    api.psql(f"UPDATE jobs SET array_of = {ident}, array_index = 0 WHERE id = {element}")
    becomes(element, "failed")
    api.good("PATCH", "/v1/notices", {"url": there})
    becomes(job(notify="none"), "failed")
    default = job()
    api.good("POST", f"/v1/jobs/{default}/cancel")
    told = [(body["job"], body["event"]) for body in receiver.await_count(4, "/kinds")]
    expect(sorted(told) == sorted([(ident, "held"), (ident, "held"), (ident, "succeeded"), (default, "cancelled")]), told)
    api.good("PATCH", "/v1/notices", {"url": None})
    becomes(job(), "failed")
    expect(api.psql("SELECT count(*) FROM notices WHERE state = 'waiting'") == "0", "nobody is told")


def it_is_tried_again_until_it_is_taken():
    receiver.script["/again"] = [(500, {}), (503, {"Retry-After": "7200"}), (302, {"Location": receiver.url("/elsewhere")}), (204, {})]
    ident = job(notify=receiver.url("/again"))
    becomes(ident, "succeeded")
    for attempt, (status, least, most) in enumerate(((500, 25, 31), (503, 7190, 7201), (302, 470, 481)), 1):
        notice = await_attempt(ident, attempt)
        expect(notice["state"] == "waiting" and f"status {status}" in notice["why"], notice)
        wait = float(api.psql(f"SELECT extract(epoch FROM due_at - now()) FROM notices WHERE id = {notice['id']}"))
        expect(least < wait <= most, f"attempt {attempt}: the next in {wait} s")
        due_now()
    notice = await_notice(ident, lambda n: n["state"] == "delivered")
    expect(notice["attempts"] == 4, notice)
    raw = [body for path, _, body in receiver.got if path == "/again"]
    expect(len(raw) == 4 and len(set(raw)) == 1, raw)
    expect(not receiver.bodies("/elsewhere"), "a redirect was followed")
    receiver.script["/never"] = [(404, {})] * 9
    ident = job(notify=receiver.url("/never"))
    becomes(ident, "succeeded")
    for attempt in range(1, 9):
        notice = await_attempt(ident, attempt)
        due_now()
    expect(notice["state"] == "given up" and notice["ended"], notice)
    expect(len(receiver.bodies("/never")) == 8, "eight tries")


def a_receiver_holds_up_its_own_notices_alone():
    token = api.token_for("slow", ["jobs:read", "jobs:write"])
    stuck = [job(notify=receiver.url("/stuck")) for _ in range(3)]
    quick = [job(notify=receiver.url("/quick")) for _ in range(5)]
    for ident in stuck:
        api.psql(f"UPDATE jobs SET owner = (SELECT id FROM users WHERE name = 'slow') WHERE id = {ident}")
        becomes(ident, "succeeded")
    receiver.await_count(1, "/stuck")
    api.psql(f"UPDATE jobs SET state = 'succeeded' WHERE id IN ({','.join(map(str, quick))})")
    receiver.await_count(5, "/quick")
    expect(api.call("GET", "/readyz", token=None).status == 200, "the api answers")
    expect(api.psql(f"SELECT taken_until IS NOT NULL FROM notices WHERE job = {stuck[0]}") == "t", "others waited for its end")
    expect(len(receiver.bodies("/stuck")) == 1, "one for a person at a time")
    notice = await_notice(stuck[0], lambda n: n["why"], token)
    expect(notice["state"] == "waiting" and "time" in notice["why"].lower(), notice)
    expect({n["user"] for n in notices(token)} == {"slow"}, notices(token))
    receiver.let_go.set()
    wait_for(lambda: len(receiver.bodies("/stuck")) >= 3, "the others of that person")
    receiver.let_go.clear()


def what_is_said_endlessly_is_not_read():
    ident = job(notify=receiver.url("/endless"))
    becomes(ident, "succeeded")
    await_notice(ident, lambda n: n["state"] == "delivered")
    sent = receiver.sent
    wait_for(lambda: receiver.sent == sent or receiver.sent < (64 << 20), "the receiver's connection ends")
    expect(receiver.sent < (64 << 20), f"{receiver.sent} bytes were taken")


def nothing_is_lost_over_a_restart():
    receiver.let_go.clear()
    cut, away = job(notify=receiver.url("/stuck")), job(notify=receiver.url("/restart"))
    count = len(receiver.bodies("/stuck"))
    becomes(cut, "succeeded")
    wait_for(lambda: len(receiver.bodies("/stuck")) == count + 1, "the request that is cut off")
    api.process.send_signal(signal.SIGKILL)
    api.process.wait()
    api.process = None
    api.psql(f"UPDATE jobs SET owner = (SELECT id FROM users WHERE name = 'slow') WHERE id = {away}")
    becomes(away, "cancelled")
    receiver.let_go.set()
    api.start()
    expect(receiver.await_count(1, "/restart")[0]["job"] == away, "told after the restart")
    expect(api.psql(f"SELECT state FROM notices WHERE job = {cut}") == "waiting", "taken by who was killed")
    api.psql(f"UPDATE notices SET taken_until = now() - interval '1 s' WHERE job = {cut}; NOTIFY motley_notices")
    notice = await_notice(cut, lambda n: n["state"] == "delivered")
    expect(notice["attempts"] == 2, notice)
    # An api that ends in order ends its requests within a second, and they are tried again.
    receiver.let_go.clear()
    last = job(notify=receiver.url("/stuck"))
    count = len(receiver.bodies("/stuck"))
    becomes(last, "succeeded")
    wait_for(lambda: len(receiver.bodies("/stuck")) == count + 1, "another request")
    before = time.monotonic()
    api.stop()
    expect(time.monotonic() - before < 8, "the end waited for a receiver")
    receiver.let_go.set()
    expect(api.psql(f"SELECT state FROM notices WHERE job = {last}") == "waiting", "it is tried again")
    api.psql(f"DELETE FROM notices WHERE job = {last}")
    api.start()


def a_full_queue_drops_and_says_so():
    ident = job(notify=receiver.url("/full"))
    api.psql("INSERT INTO notices (job, owner, event, state, url, body, due_at) SELECT "
             f"{ident}, (SELECT owner FROM jobs WHERE id = {ident}), 'held', 'waiting', 'https://none.invalid/', '{{}}', now() + interval '1 day' FROM generate_series(1, 1000)")
    becomes(ident, "succeeded")
    notice = await_notice(ident, lambda n: n["event"] == "succeeded")
    expect(notice["state"] == "dropped" and "1000" in notice["why"], notice)
    api.psql("DELETE FROM notices WHERE due_at > now() + interval '1 h'")


def what_is_not_allowed_is_refused_by_name():
    for url, words in (("ftp://127.0.0.1/", "https:// or http://"), ("https://u:p@example.org/", "no host"), ("https://example.org/#x", "fragment"),
                       ("https://example.org/", "none of the hosts that this server tells (notify.hosts"), ("http://localhost/", "notify.hosts")):
        api.refused(422, "POST", "/v1/jobs", spec(api.rows, notify=url), "notify", words)
        api.refused(422, "PATCH", "/v1/notices", {"url": url}, "url", words)
    api.refused(422, "PATCH", "/v1/notices", {"key": "mine"}, "key")
    api.config["notify"] = {"public": True}
    api.stop()
    api.start()
    api.refused(422, "POST", "/v1/jobs", spec(api.rows, notify="http://example.org/"), "give an https:// address")
    del api.config["notify"]
    api.stop()
    api.start()
    api.refused(422, "POST", "/v1/jobs", spec(api.rows, notify="https://example.org/"), "this server tells nobody (notify in its configuration)")
    api.good("POST", "/v1/jobs", spec(api.rows, notify="none", hold=True))


def no_address_leads_into_the_own_network():
    api.config["notify"] = {"public": True}
    api.stop()
    api.start()
    with socket.create_server(("127.0.0.1", 0)) as inside:
        inside.settimeout(0.2)
        port = inside.getsockname()[1]
        for host in ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1", "169.254.169.254", "192.168.1.1", "0.0.0.0", "0x7f000001", "2130706433", "127.1"):
            ident = job(notify=f"https://{host}:{port}/latest/meta-data")
            becomes(ident, "succeeded")
            notice = await_notice(ident, lambda n: n["state"] != "waiting" or n["why"])
            expect(notice["state"] == "given up" and "may not be connected to" in notice["why"], f"{host}: {notice}")
            expect(notice["attempts"] == 1, notice)
        try:
            inside.accept()
            raise AssertionError("somebody connected")
        except TimeoutError:
            pass
    # An address that a configuration no longer allows is given up, too.
    api.psql(f"UPDATE notices SET state = 'waiting', due_at = now(), why = NULL, url = '{receiver.url('/late')}' WHERE job = {ident}; NOTIFY motley_notices")
    notice = await_notice(ident, lambda n: n["why"])
    expect(notice["state"] == "given up" and "http://" in notice["why"], notice)


if __name__ == "__main__":
    receiver = Receiver()
    with mail_server() as (mail_port, mail_folder), Api(notify={
            "hosts": [f"127.0.0.1:{receiver.server_port}"],
            "mail": {"server": f"smtp://127.0.0.1:{mail_port or 25}", "from": "motley@lab.example", "domains": ["lab.example"], "per_day": 2}}) as api:
        api.tiny_model()
        api.rows = api.upload_rows(token_rows(20))
        main(an_end_is_told_by_mail, an_end_is_told_once_and_signed, what_is_told_and_what_is_not, it_is_tried_again_until_it_is_taken,
             a_receiver_holds_up_its_own_notices_alone, what_is_said_endlessly_is_not_read, nothing_is_lost_over_a_restart,
             a_full_queue_drops_and_says_so, what_is_not_allowed_is_refused_by_name, no_address_leads_into_the_own_network)
