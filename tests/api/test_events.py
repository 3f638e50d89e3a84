#!/usr/bin/env python3
"""Tests that event streams begin where asked, miss nothing, repeat nothing, and end with the job."""
import contextlib
import http.client
import json
import os
import socket
import threading
import time

from api import SLOW, Api, expect, main, spec, token_rows, wait_for


def follow(ident, last=None, query="", window=None):
    """Opens a stream of a job's events, and returns (connection, response)."""
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
    """Returns [(id, type, data)] up to the first event of type `until`; `got` has what came if the stream breaks."""
    got, fields = [] if got is None else got, {}
    deadline = time.monotonic() + 60 * SLOW  # the stream's comments reset the socket's timeout
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


class Feed:
    """A stream of GET /v1/events."""

    def __init__(self, query, last=None, token=""):
        self.connection = api.connection()
        headers = {"Authorization": f"Bearer {token or api.token}"}
        if last is not None:
            headers["Last-Event-ID"] = str(last)
        self.connection.request("GET", f"/v1/events?{query}", headers=headers)
        self.response = self.connection.getresponse()
        expect(self.response.status == 200, f"{query}: {self.response.status}")

    def next(self):
        """Returns (id or None, type, data) of the next event."""
        fields = {}
        while True:
            line = self.response.readline().decode().rstrip("\n")
            expect(line or not self.response.isclosed(), "the stream ended")
            name, _, value = line.partition(": ")
            if not line and "data" in fields:
                return int(fields["id"]) if "id" in fields else None, fields["event"], json.loads(fields["data"])
            fields[name] = value

    def until(self, enough):
        got = []
        deadline = time.monotonic() + 60 * SLOW
        while not enough(got):
            expect(time.monotonic() < deadline, f"not enough: {got[-3:]}")
            got.append(self.next())
        return got


def states_of(got, idents):
    return [(data["job"], data["state"]) for ident, kind, data in got if kind == "state" and data["job"] in idents]


def everybody_follows_the_queue_and_only_jobs_that_they_may_see():
    bob = api.token_for("bob", ["jobs:read"])
    feed = Feed("topics=queue", token=bob)
    first = feed.until(lambda got: got and got[-1][1] == "queue")
    expect(first[-1][0] is None and first[-1][2]["jobs"]["queued"] >= 0, first)
    ident = ident_of()
    expect(feed.until(lambda got: got and got[-1][1] == "queue")[-1][2]["jobs"]["queued"] == first[-1][2]["jobs"]["queued"] + 1, "a submit is told")
    both = Feed(f"topics=queue,job:{ident}")
    api.good("POST", f"/v1/jobs/{ident}/cancel")
    seen = [entry for entry in feed.until(lambda got: states_of(got, {ident})) if entry[1] == "state"][-1]
    expect(set(seen[2]) == {"job", "state", "owner", "at"} and seen[2]["owner"] == "admin" and seen[2]["state"] == "cancelled", seen)
    owners = [entry for entry in both.until(lambda got: states_of(got, {ident})) if entry[1] == "state"][-1]
    expect(owners[0] == seen[0] and owners[2]["job"] == ident and "owner" not in owners[2], owners)
    api.refused(404, "GET", f"/v1/events?topics=job:{ident},job:999999", None, str(ident), token=bob)
    api.refused(403, "GET", "/v1/events?topics=devices", None, "nodes:read", token=bob)
    # A topic that is refused is told, and the others go on.
    shared = ident_of()
    api.good("POST", f"/v1/jobs/{shared}/share", {"visibility": "everyone"})
    some = Feed(f"topics=devices,job:999999,job:{shared},queue,job:{ident}", token=bob)
    told = some.until(lambda got: got and got[-1][1] == "queue")
    expect([(ident, kind) for ident, kind, _ in told[:3]] == [(None, "refused")] * 3, told)
    expect({(data["topic"], data["code"]) for _, _, data in told[:3]} == {("devices", "denied"), ("job:999999", "not-found"), (f"job:{ident}", "not-found")}, told)
    expect(told[1][2]["detail"].replace("999999", "N") == told[2][2]["detail"].replace(str(ident), "N"), "what one may not see is as what is not there")
    api.good("POST", f"/v1/jobs/{shared}/cancel")
    seen = [entry[2] for entry in some.until(lambda got: states_of(got, {shared}))][-1]
    expect(seen["state"] == "cancelled" and "owner" not in seen, f"the job that is shared goes on: {seen}")
    for topics in ("", "?topics=", "?topics=weather", "?topics=job:0", "?topics=job:1x", "?topics=" + ",".join(f"job:{n}" for n in range(1, 18))):
        api.refused(400, "GET", f"/v1/events{topics}", None, "topics")
    api.refused(400, "GET", "/v1/events?topics=queue", None, "Last-Event-ID", headers={"Last-Event-ID": "x"})


def the_clusters_stream_resumes_anywhere_and_misses_and_repeats_nothing():
    idents = [ident_of() for _ in range(3)]
    whole = Feed("topics=queue")
    whole.next()
    for command in ("hold", "release", "hold", "cancel"):
        for ident in idents:
            api.good("POST", f"/v1/jobs/{ident}/{command}")
    enough = lambda got: len(states_of(got, idents)) == 12
    events_seen = [entry for entry in whole.until(enough) if entry[1] == "state"]
    expect(states_of(events_seen, idents) == [(ident, state) for state in ("held", "queued", "held", "cancelled") for ident in idents], events_seen)
    for cut in range(0, 12, 4):
        again = Feed("topics=queue", last=events_seen[cut][0])
        rest = again.until(lambda got: len(states_of(got, idents)) == 11 - cut)
        expect([entry for entry in rest if entry[1] == "state"] == events_seen[cut + 1:], f"from {cut}: {rest}")
    mine = Feed(f"topics=job:{idents[0]}&topics=job:{idents[2]}&after={events_seen[0][0] - 1}")
    got = mine.until(lambda got: len(states_of(got, idents)) == 8)
    expect({data["job"] for _, _, data in got} == {idents[0], idents[2]}, got)


def followers_who_join_while_much_happens_miss_nothing():
    ident = ident_of()
    begin = Feed(f"topics=job:{ident}")
    writer = threading.Thread(target=lambda: [api.psql(part) for part in storm_parts(ident)])
    writer.start()
    joined = [Feed(f"topics=queue,job:{ident}", last=0) for _ in range(12)]
    for feed in [begin] + joined:
        got = feed.until(lambda got: got and got[-1][1] == "log" and got[-1][2]["n"] == 1199)
        expect([data["n"] for _, kind, data in got if kind == "log"] == list(range(1200)), f"{len(got)} events")
    writer.join(60)


def storm_parts(ident):
    """SQL of 1200 log events in 10 transactions, each with a notification."""
    return [f"INSERT INTO events (job, type, body) SELECT {ident}, 'log', json_build_object('n', n) FROM generate_series({120 * part}, {120 * part + 119}) n; "
            f"SELECT pg_notify('motley_events', '{ident}')" for part in range(10)]


def devices_are_told_whole_and_then_what_changes():
    api.psql("INSERT INTO nodes (name, state) VALUES ('n1', 'alive'); INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) "
             "VALUES ('n1/a', 'n1', 'cpu', '{}', 'd', 1), ('n1/b', 'n1', 'cpu', '{}', 'd', 1)")
    feed = Feed("topics=devices")
    expect(feed.next() == (None, "devices", {"devices": [{"name": "n1/a", "state": "free"}, {"name": "n1/b", "state": "free"}]}), "the whole")
    api.good("POST", "/v1/devices/n1%2Fb/drain")
    expect(feed.next() == (None, "devices", {"devices": [{"name": "n1/b", "state": "drained"}]}), "what changed")


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
    """A database notice may come while the stream is about to end. So 400 streams end under many notices."""
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
    """Writes events of about 500 bytes each, many more than the sockets' buffers hold."""
    api.psql(f"INSERT INTO events (job, type, body) SELECT {ident}, 'log', json_build_object('n', n, 'text', repeat('x', 400)) "
             f"FROM generate_series(1, {count}) n")


def resident_bytes():
    with open(f"/proc/{api.process.pid}/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))


def slow_followers_wait_and_miss_nothing():
    """Each follower has one connection. Events that it has not taken yet stay in the database."""
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
    expect(SLOW > 1 or grown < slow * (4 << 20),  # AddressSanitizer keeps freed memory for a while
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
    """The idle time of this server is short. A follower that takes a little, however slowly, is not idle."""
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
    again = events(follow(ident, last=got[-2])[1], "end") # the last event may have lost its data
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


def cpu_s():
    """Seconds of a processor that the server has used."""
    with open(f"/proc/{api.process.pid}/stat", encoding="utf-8") as handle:
        fields = handle.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def what_is_no_longer_shared_is_no_longer_told():
    eve = api.token_for("eve", ["jobs:read"])
    ident, kept = ident_of(), ident_of()
    for job in (ident, kept):
        api.good("POST", f"/v1/jobs/{job}/share", {"visibility": "everyone"})
    feed, stays = Feed(f"topics=queue,job:{ident}", token=eve), Feed(f"topics=queue,job:{kept}", token=eve)
    own, single = api.connection(), api.connection()
    for connection, token in ((own, api.token), (single, eve)):
        connection.request("GET", f"/v1/jobs/{ident}/events", headers={"Authorization": f"Bearer {token}"})
    answers = own.getresponse(), single.getresponse()
    api.good("POST", f"/v1/jobs/{ident}/share", {"visibility": "mine"})
    for ends in (answers[1], feed.response):
        with contextlib.suppress(http.client.IncompleteRead):
            ends.read()
    api.good("POST", f"/v1/jobs/{ident}/cancel")
    api.good("POST", f"/v1/jobs/{kept}/cancel")
    expect(events(answers[0], "end")[-1][2]["state"] == "cancelled", "the owner's goes on")
    stays.until(lambda got: states_of(got, {kept}))


def five_hundred_open_streams_cost_next_to_nothing():
    """Between two beats, which come to every stream, nothing happens."""
    tokens = [api.token_for(f"watcher{number}", ["jobs:read", "nodes:read"]) for number in range(10)]
    feeds = [Feed("topics=queue,devices", token=tokens[number % 10]) for number in range(500)]
    for feed in feeds:
        feed.next()
    moments = []
    while len(moments) < 2:
        if feeds[0].response.readline().startswith(b": beat"):
            moments.append((time.monotonic(), cpu_s()))
    (began, used), (ended, in_all) = moments
    part = (in_all - used) / (ended - began)
    expect(part < 0.1, f"{100 * part:.1f} % of a core")
    for feed in feeds:
        feed.connection.close()
    return f"{100 * part:.2f} % of a core"


with Api(limits={"streams_per_user": 64, "connections_per_address": 2000}) as api:
    api.tiny_model()
    rows = api.upload_rows(token_rows())
    main(a_follower_sees_what_happens_and_the_end, a_follower_who_comes_back_misses_and_repeats_nothing,
         the_end_comes_whatever_wakes_the_follower, a_follower_of_one_type_sees_the_end, many_followers_see_the_same,
         a_follower_that_goes_away_is_forgotten, slow_followers_wait_and_miss_nothing,
         a_follower_that_takes_nothing_is_cut_off_and_may_come_again,
         everybody_follows_the_queue_and_only_jobs_that_they_may_see, the_clusters_stream_resumes_anywhere_and_misses_and_repeats_nothing,
         followers_who_join_while_much_happens_miss_nothing, devices_are_told_whole_and_then_what_changes,
         what_is_no_longer_shared_is_no_longer_told, five_hundred_open_streams_cost_next_to_nothing, a_follower_sees_on_after_the_database_came_back)
