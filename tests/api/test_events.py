#!/usr/bin/env python3
"""Event streams begin where asked, miss nothing, repeat nothing, and end with the job."""
import contextlib
import http.client
import json
import socket
import threading
import time

from api import SLOW, Api, expect, main, spec, token_rows, wait_for


def follow(ident, last=None, query="", window=None):
    """(connection, response) of an open stream."""
    connection = api.connection()
    connection.connect()
    if window:
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    headers = {"Authorization": f"Bearer {api.token}", "Accept": "text/event-stream"}
    if last is not None:
        headers["Last-Event-ID"] = str(last)
    connection.request("GET", f"/v1/jobs/{ident}/events{query}", headers=headers)
    response = connection.getresponse()
    expect(response.status == 200 and response.headers["content-type"] == "text/event-stream", f"{response.status}")
    return connection, response


def events(response, until, got=None):
    """[(id, type, data)] up to the first of type `until`; `got` holds what came if the stream breaks."""
    got, fields = [] if got is None else got, {}
    deadline = time.monotonic() + 60 * SLOW  # comments keep the socket awake
    while True:
        expect(time.monotonic() < deadline, f"no {until} after {60 * SLOW:g} s; the last of {len(got)} events: {got[-1:]}")
        line = response.readline().decode().rstrip("\n")
        if not line and response.isclosed():
            raise ConnectionResetError("the stream ended")
        if line.startswith(":") or line.startswith("retry"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            got.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
            if fields["event"] == until:
                return got
            fields = {}


def ident_of(**changes):
    return api.good("POST", "/v1/jobs", spec(rows, **changes))["id"]


def a_follower_sees_what_happens_and_the_end():
    ident = ident_of()
    connection, response = follow(ident)
    api.good("POST", f"/v1/jobs/{ident}/hold")
    api.good("POST", f"/v1/jobs/{ident}/release")
    api.good("POST", f"/v1/jobs/{ident}/cancel")
    got = events(response, "end")
    expect([data["state"] for _, kind, data in got if kind == "state"] == ["held", "queued", "cancelled"], got)
    expect(got[-1][2]["state"] == "cancelled" and response.read() == b"", "the stream ends with the job")
    expect(all("at" in data for _, kind, data in got if kind == "state"), "with their times")
    connection.close()


def a_follower_who_comes_back_misses_and_repeats_nothing():
    ident = ident_of()
    for command in ("hold", "release", "hold", "release", "cancel"):
        api.good("POST", f"/v1/jobs/{ident}/{command}")
    whole = [entry for entry in events(follow(ident)[1], "end") if entry[1] == "state"]
    expect([data["state"] for _, _, data in whole] == ["held", "queued", "held", "queued", "cancelled"], whole)
    for cut in range(len(whole)):
        again = [entry for entry in events(follow(ident, last=whole[cut][0])[1], "end") if entry[1] == "state"]
        expect(again == whole[cut + 1:], f"from {whole[cut][0]}: {again}")
        again = [entry for entry in events(follow(ident, query=f"?after={whole[cut][0]}")[1], "end") if entry[1] == "state"]
        expect(again == whole[cut + 1:], f"after {whole[cut][0]}: {again}")
    api.refused(400, "GET", f"/v1/jobs/{ident}/events", None, "Last-Event-ID", headers={"Last-Event-ID": "x"})
    api.refused(400, "GET", f"/v1/jobs/{ident}/events?after=-1", None, "after")


def the_end_comes_whatever_wakes_the_follower():
    """A notice may come late, while the stream is about to end: 400 streams under many of them."""
    ident = ident_of()
    api.good("POST", f"/v1/jobs/{ident}/cancel")
    stop = threading.Event()

    def notify():
        while not stop.is_set():
            api.psql(f"DO $$ BEGIN FOR n IN 1..200 LOOP PERFORM pg_notify('motley_events', '{ident}'); COMMIT; END LOOP; END $$")

    noise = threading.Thread(target=notify)
    noise.start()
    try:
        for _ in range(400):
            connection, response = follow(ident)
            connection.sock.settimeout(10 * SLOW)
            expect(events(response, "end")[-1][2]["state"] == "cancelled", "the stream ends with the job")
            connection.close()
    finally:
        stop.set()
        noise.join()


def a_follower_of_one_type_sees_the_end():
    ident = ident_of()
    streams = [follow(ident, query="?type=log"), follow(ident, query="?type=state")]
    many_logs(ident, 700)
    api.good("POST", f"/v1/jobs/{ident}/cancel")
    streams += [follow(ident, query="?type=log")]
    for (connection, response), kind, count in zip(streams, ("log", "state", "log"), (700, 1, 700)):
        connection.sock.settimeout(10 * SLOW)
        got = events(response, "end")
        expect([entry[1] for entry in got] == [kind] * count + ["end"], f"{kind}: {len(got)} events, the last {got[-1]}")
        connection.close()


def many_followers_see_the_same():
    ident = ident_of()
    seen = []
    streams = [follow(ident) for _ in range(24)]
    threads = [threading.Thread(target=lambda response=response: seen.append([e[0] for e in events(response, "end")])) for _, response in streams]
    for thread in threads:
        thread.start()
    for command in ("hold", "release", "cancel"):
        api.good("POST", f"/v1/jobs/{ident}/{command}")
    for thread in threads:
        thread.join(30)
    expect(len(seen) == 24 and all(entry == seen[0] for entry in seen), seen)


def followers():
    text = api.call("GET", "/metrics").body.decode()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("motley_api_followers "))


def a_follower_that_goes_away_is_forgotten():
    before = followers()
    connection, response = follow(ident_of())
    expect(followers() == before + 1, "counted")
    response.close()
    connection.close()
    wait_for(lambda: followers() == before, "the follower is forgotten")


def many_logs(ident, count):
    """About 500 bytes each: many more than the sockets between hold."""
    api.psql(f"INSERT INTO events (job, type, body) SELECT {ident}, 'log', json_build_object('n', n, 'text', repeat('x', 400)) "
             f"FROM generate_series(1, {count}) n")


def resident_bytes():
    with open(f"/proc/{api.process.pid}/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))


def slow_followers_wait_and_miss_nothing():
    """On one connection each, whatever happens meanwhile; what they do not take yet stays in the database."""
    ident = ident_of()
    count, slow = 40000, 8
    many_logs(ident, count)
    follow(ident)[0].close()
    before = resident_bytes()
    streams = [follow(ident) for _ in range(slow)]
    for command in ("hold", "release", "cancel"):
        api.good("POST", f"/v1/jobs/{ident}/{command}")
    wait_for(lambda: followers() == slow, "only they follow")
    grown = resident_bytes() - before
    expect(SLOW > 1 or grown < slow * (4 << 20),  # AddressSanitizer keeps what was freed
           f"{slow} that take nothing cost {grown / 2**20:.1f} MiB, of {count * 500 * slow / 2**20:.0f}")
    got = events(streams[0][1], "end")
    expect([data["n"] for _, kind, data in got if kind == "log"] == list(range(1, count + 1)), f"{len(got)} events, or out of order")
    expect(got[-1][2]["state"] == "cancelled", f"{got[-1]}")
    expect(followers() == slow - 1, "the others still wait")
    for connection, _ in streams:
        connection.close()
    wait_for(lambda: followers() == 0, "they are forgotten")
    return f"{grown / 2**20:.1f} MiB for {slow}"


def a_follower_that_takes_nothing_is_cut_off_and_may_come_again():
    """The idle time of this server is short; taking a little, however slowly, is not being idle."""
    ident = ident_of()
    count = 30000
    many_logs(ident, count)
    api.good("POST", f"/v1/jobs/{ident}/cancel")
    api.stop()
    api.config["limits"] = {"idle_seconds": 3}
    api.start()
    connection, response = follow(ident, window=65536)
    got, began = [], time.monotonic()
    while time.monotonic() - began < 7:
        line = response.readline().decode()
        got += [int(line[4:])] if line.startswith("id:") else []
        time.sleep(0.0005)
    expect(followers() == 1 and got, "it reads slowly and is there")
    wait_for(lambda: followers() == 0, "it took nothing any more and is cut off")
    with contextlib.suppress(http.client.HTTPException, ConnectionError):
        while line := response.readline().decode():
            got += [int(line[4:])] if line.startswith("id:") else []
    connection.close()
    again = events(follow(ident, last=got[-2])[1], "end") # the last one may have lost its data
    expect(len(got) - 1 + sum(kind == "log" for _, kind, _ in again) >= count, f"{len(got)} and {len(again)} events of {count}")
    expect(again[0][0] > got[-2], "nothing is repeated")
    del api.config["limits"]
    api.stop()
    api.start()


def a_follower_sees_on_after_the_database_came_back():
    ident = ident_of()
    connection, response = follow(ident)
    api.good("POST", f"/v1/jobs/{ident}/hold")
    expect(events(response, "state")[-1][2]["state"] == "held", "before")
    api.postgres.stop()
    api.postgres.start()
    wait_for(lambda: api.call("POST", f"/v1/jobs/{ident}/cancel").status == 200, "the api finds its database again")
    expect(events(response, "end")[-1][2]["state"] == "cancelled", "after")
    connection.close()


with Api() as api:
    api.tiny_model()
    rows = api.upload_rows(token_rows())
    main(a_follower_sees_what_happens_and_the_end, a_follower_who_comes_back_misses_and_repeats_nothing,
         the_end_comes_whatever_wakes_the_follower, a_follower_of_one_type_sees_the_end, many_followers_see_the_same,
         a_follower_that_goes_away_is_forgotten, slow_followers_wait_and_miss_nothing,
         a_follower_that_takes_nothing_is_cut_off_and_may_come_again,
         a_follower_sees_on_after_the_database_came_back)
