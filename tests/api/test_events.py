#!/usr/bin/env python3
"""Event streams begin where asked, miss nothing, repeat nothing, and end with the job."""
import http.client
import json
import threading

from api import Api, expect, main, spec, token_rows, wait_for


def follow(ident, last=None, query=""):
    """(connection, response) of an open stream."""
    connection = api.connection()
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
    while True:
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


def events_however_often(ident, until, breaks_max=20):
    """As events(), by a client like any other: one that was cut off because it read too slowly comes again with its last id."""
    got, last = [], None
    for _ in range(breaks_max):
        part = []
        try:
            return got + events(follow(ident, last)[1], until, part)
        except (http.client.IncompleteRead, ConnectionResetError):
            got += part
            last = got[-1][0] if got else None
    raise AssertionError(f"cut off {breaks_max} times")


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


def a_follower_that_does_not_read_is_cut_off_and_may_come_again():
    ident = ident_of()
    api.psql(f"INSERT INTO events (job, type, body) SELECT {ident}, 'log', json_build_object('n', n, 'text', repeat('x', 400)) "
             "FROM generate_series(1, 60000) n")
    before = followers()
    connection, response = follow(ident)
    wait_for(lambda: followers() == before, "the follower is cut off")
    connection.close()
    api.good("POST", f"/v1/jobs/{ident}/cancel")
    got = [data["n"] for _, kind, data in events_however_often(ident, "end") if kind == "log"]
    expect(got == list(range(1, 60001)), f"{len(got)} of 60000 events, or out of order")


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
    main(a_follower_sees_what_happens_and_the_end, a_follower_who_comes_back_misses_and_repeats_nothing, many_followers_see_the_same,
         a_follower_that_goes_away_is_forgotten, a_follower_that_does_not_read_is_cut_off_and_may_come_again,
         a_follower_sees_on_after_the_database_came_back)
