#!/usr/bin/env python3
"""Tests what curves are drawn from: metrics in buckets, measured links, and answers that come once and compressed."""
import gzip
import json

from api import Api, expect, main, spec, token_rows

STEPS = 30001  # a multiple of three, and one: their tokens are 100 to 102
SPIKE = 12345


def fill():
    """A job of 30,001 steps with one spike, as a run writes it."""
    api.psql(f"INSERT INTO metrics (job, kind, step, rank, document) SELECT {job}, 'step', n, 0, json_build_object('step', n, "
             f"'loss', CASE WHEN n = {SPIKE} THEN 1000 ELSE 2 + 1.0 / (n + 1) END, 'grad_norm', 1 + n % 7 * 0.25, 'learning_rate', "
             f"1e-4, 'tokens', 100 + n % 3, 'seconds', 0.5, 'rows', 4) FROM generate_series(0, {STEPS - 1}) n; ANALYZE metrics; "
             f"INSERT INTO metrics (job, kind, step, rank, document) SELECT {job}, 'eval', n * 1000, 0, json_build_object('eval', true, "
             f"'step', n * 1000, 'loss', n) FROM generate_series(0, 99) n")


def buckets(count, what=""):
    return api.good("GET", f"/v1/jobs/{job}/metrics?kind=step&buckets={count}{what}")


def a_spike_of_one_step_is_in_every_picture():
    for count in (1, 7, 100, 800, 10000):
        page = buckets(count)
        width, found = page["width"], page["buckets"]
        expect(len(found) <= count and width & (width - 1) == 0, f"{count}: {len(found)} of width {width}")
        expect(len(found) * 2 > count or count == 1, f"{count}: only {len(found)}: the width is not the least")
        expect(sum(bucket["steps"] for bucket in found) == STEPS and sum(bucket["tokens"] for bucket in found) == STEPS * 101 - 1,
               f"{count}: steps are missing")
        tall = [bucket for bucket in found if bucket["loss"]["most"] == 1000]
        expect(len(tall) == 1 and tall[0]["first"] <= SPIKE <= tall[0]["last"], f"{count}: {tall}")
        expect(all(bucket["step"] % width == 0 and bucket["step"] <= bucket["first"] for bucket in found), "they begin at multiples")
    exact = buckets(10000, f"&from={SPIKE - 5}&to={SPIKE + 6}")
    expect(exact["width"] == 1 and [bucket["step"] for bucket in exact["buckets"]] == list(range(SPIKE - 5, SPIKE + 6)), exact)


def a_bucket_says_what_its_steps_say():
    page = buckets(100)
    width = page["width"]
    for number in (0, 1, len(page["buckets"]) - 1):
        bucket = page["buckets"][number]
        lines = api.good("GET", f"/v1/jobs/{job}/metrics?kind=step&limit=10000&after={bucket['first'] - 1}")["lines"][:bucket["steps"]]
        expect(lines[0]["step"] == bucket["first"] and lines[-1]["step"] == bucket["last"], bucket)
        for name, values in (("loss", [line["loss"] for line in lines]), ("grad_norm", [line["grad_norm"] for line in lines]),
                             ("tokens_per_s", [line["tokens"] / line["seconds"] for line in lines])):
            expect(bucket[name]["least"] == min(values) and bucket[name]["most"] == max(values) and bucket[name]["last"] == values[-1],
                   f"{name} of {bucket}")
            expect(abs(bucket[name]["mean"] - sum(values) / len(values)) < 1e-12 * max(values), f"{name} of {bucket}")
    expect(page["buckets"][0]["loss_scale"] is None, "what no step has")
    return f"{width} steps a bucket"


def two_loads_are_equal_and_buckets_stay_where_they_are():
    first = api.call("GET", f"/v1/jobs/{job}/metrics?buckets=800").body
    expect(api.call("GET", f"/v1/jobs/{job}/metrics?buckets=800").body == first, "two loads")
    api.psql(f"INSERT INTO metrics (job, kind, step, rank, document) VALUES ({job}, 'step', {STEPS}, 0, "
             f"'{{\"step\": {STEPS}, \"loss\": null, \"tokens\": 1, \"seconds\": 1, \"skipped\": true}}')")
    before, after = json.loads(first), buckets(800)
    expect(after["width"] == before["width"] and after["buckets"][:-1] == before["buckets"][:len(after["buckets"]) - 1], "they moved")
    expect(sum(bucket["skipped"] for bucket in after["buckets"]) == 1, after["buckets"][-1])
    api.psql(f"DELETE FROM metrics WHERE job = {job} AND step = {STEPS}")


def evaluations_have_buckets_and_what_has_none_is_refused():
    page = api.good("GET", f"/v1/jobs/{job}/metrics?kind=eval&buckets=1000")
    expect([bucket["loss"]["last"] for bucket in page["buckets"]] == list(range(100)), page["width"])
    for query, word in (("kind=ranks&buckets=5", "no buckets"), ("buckets=0", "buckets"), ("buckets=10001", "buckets"),
                        ("buckets=5&after=3", "whole"), ("from=3", "buckets"), ("buckets=5&from=-1", "from")):
        api.refused(400, "GET", f"/v1/jobs/{job}/metrics?{query}", None, word)
    expect(buckets(5, "&from=200000") == {"lines": [], "width": None, "buckets": [], "next": None}, "no steps")


def links_are_listed_one_way_each():
    api.psql("INSERT INTO nodes (name, removed_at) VALUES ('a', NULL), ('b', NULL), ('gone', now()); INSERT INTO links (from_node, "
             "to_node, document) VALUES ('a', 'gone', '{}'), ('gone', 'b', '{}'); INSERT INTO links (from_node, to_node, document) VALUES ('b', 'a', "
             "'{\"from\": \"b\", \"to\": \"a\", \"latency_s\": 0.001, \"bytes_per_s\": 1e8, \"emulated\": true}'), ('a', 'b', "
             "'{\"from\": \"a\", \"to\": \"b\", \"latency_s\": 0.002, \"bytes_per_s\": 2e8}')")
    page = api.good("GET", "/v1/links")
    expect([(link["from"], link["to"], link["bytes_per_s"]) for link in page["links"]] == [("a", "b", 2e8), ("b", "a", 1e8)], page)
    expect(page["next"] is None and page["links"][1]["emulated"] and page["links"][0]["measured_at"], page)
    first = api.good("GET", "/v1/links?limit=1")
    expect(api.good("GET", f"/v1/links?limit=1&after={first['next']}")["links"] == page["links"][1:], first)


def what_devices_did_is_summed_over_a_time():
    api.psql("INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) SELECT 'a/' || n, 'a', 'cpu', '{}', 'd', 1 FROM "
             "generate_series(0, 2) n; INSERT INTO device_load (device, begins, seconds, compute_s, wait_s, send_s, temperature_c) SELECT 'a/0', "
             "'2026-01-01T10:00:00Z'::timestamptz + n * interval '1 minute', 60, 30, 10, 5, 50 + n FROM generate_series(0, 119) n; "
             "INSERT INTO device_load (device, begins, seconds, compute_s) VALUES ('a/1', '2026-01-01T10:00:00Z', 3600, 1000); "
             "INSERT INTO ledger (assignment, run, job, user_id, account, device, begins, ends) VALUES (-1, 0, 0, 1, '', 'a/0', "
             "'2026-01-01T09:00:00Z', '2026-01-01T10:30:00Z')")
    span = "from=2026-01-01T10:00:00Z&to=2026-01-01T11:00:00Z"
    page = api.good("GET", f"/v1/load?{span}")
    found = {device["name"]: device for device in page["devices"]}
    expect(found["a/0"] == {"name": "a/0", "compute_s": 1800, "wait_s": 600, "send_s": 300, "held_s": 1800, "free_s": 1800, "temperature_c": 109},
           found["a/0"])
    expect(found["a/1"]["compute_s"] == 1000 and found["a/2"] == {"name": "a/2", "compute_s": 0, "wait_s": 0, "send_s": 0, "held_s": 0,
                                                                  "free_s": 3600}, found)
    one = api.good("GET", f"/v1/load?{span}&device=a%2F0")["devices"]
    expect(len(one) == 1 and len(one[0]["points"]) == 60 and one[0]["points"][1]["at"].startswith("2026-01-01T10:01:00"), one)
    hours = api.good("GET", "/v1/load?from=2026-01-01T10:00:00Z&to=2026-01-01T12:00:00Z&device=a%2F0&by=hour")["devices"][0]["points"]
    expect([point["compute_s"] for point in hours] == [1800, 1800] and hours[1]["temperature_c"] == 169, hours)
    first = api.good("GET", f"/v1/load?{span}&limit=1")
    expect([d["name"] for d in api.good("GET", f"/v1/load?{span}&limit=1&after={first['next']}")["devices"]] == ["a/1"], first)
    for query, word in (("by=hour", "device"), ("by=day&device=x", "by"), ("from=2026-01-02&to=2026-01-01", "from"), ("from=soon", "from")):
        api.refused(400, "GET", f"/v1/load?{query}", None, word)
    expect(api.good("GET", "/v1/load?device=nothing")["devices"] == [], "no such device")


def what_has_not_changed_is_not_sent_again():
    for path in ("/v1/jobs", "/v1/devices", "/v1/queue", f"/v1/jobs/{job}", f"/v1/jobs/{job}/metrics?buckets=800"):
        first = api.call("GET", path)
        again = api.call("GET", path, headers={"If-None-Match": first.headers["etag"]})
        expect(again.status == 304 and not again.body and again.headers["etag"] == first.headers["etag"], f"{path}: {again.status}")
        expect(first.headers["cache-control"] == "private, no-cache", first.headers)
    tag = api.call("GET", "/v1/jobs").headers["etag"]
    api.good("POST", f"/v1/jobs/{job}/share", {"visibility": "everyone"})
    changed = api.call("GET", "/v1/jobs", headers={"If-None-Match": tag})
    expect(changed.status == 200 and changed.headers["etag"] != tag, "a job was changed")


def answers_are_compressed_for_who_takes_that():
    path = f"/v1/jobs/{job}/metrics?buckets=800"
    plain = api.call("GET", path)
    packed = api.call("GET", path, headers={"Accept-Encoding": "gzip, deflate"})
    expect(packed.headers["content-encoding"] == "gzip" and gzip.decompress(packed.body) == plain.body, packed.headers)
    expect(len(packed.body) * 4 < len(plain.body) and "content-encoding" not in plain.headers, f"{len(packed.body)} of {len(plain.body)}")
    expect("Accept-Encoding" in packed.headers["vary"] and packed.headers["etag"] == plain.headers["etag"], packed.headers)
    expect("content-encoding" not in api.call("GET", path, headers={"Accept-Encoding": "gzip;q=0"}).headers, "refused by the client")
    made = api.call("POST", "/v1/tokens", {}, headers={"Accept-Encoding": "gzip"})
    expect("etag" not in made.headers and made.headers["cache-control"] == "no-store", made.headers)


with Api() as api:
    api.tiny_model()
    job = api.good("POST", "/v1/jobs", spec(api.upload_rows(token_rows()), hold=True))["id"]
    fill()
    main(a_spike_of_one_step_is_in_every_picture, a_bucket_says_what_its_steps_say, two_loads_are_equal_and_buckets_stay_where_they_are,
         evaluations_have_buckets_and_what_has_none_is_refused, links_are_listed_one_way_each, what_devices_did_is_summed_over_a_time,
         what_has_not_changed_is_not_sent_again, answers_are_compressed_for_who_takes_that)
