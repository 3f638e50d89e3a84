#!/usr/bin/env python3
"""Tests that a process of its own reads a user's files: when it dies, hangs or eats memory, only one upload fails."""
import contextlib
import json
import os
import signal
import threading

from api import BIN, SLOW, Api, expect, main, spec, token_rows, wait_for

SECONDS = int(8 * SLOW)


def big_rows(seed):
    """Uploads rows that keep a parser busy for a while."""
    row = json.dumps({"ids": [seed] + list(range(1, 200)) * 5, "labels": [seed] + list(range(1, 200)) * 5})
    return "sha256:" + api.upload((row + "\n").encode() * 6000)


def msgpack(value):
    """Encodes what the tests need: maps, lists, ASCII texts and small numbers."""
    if isinstance(value, dict):
        return b"\xde" + len(value).to_bytes(2, "big") + b"".join(msgpack(k) + msgpack(v) for k, v in value.items())
    if isinstance(value, list):
        return b"\xdc" + len(value).to_bytes(2, "big") + b"".join(map(msgpack, value))
    if isinstance(value, str):
        return b"\xd9" + bytes([len(value)]) + value.encode()
    return bytes([value])


def parsers():
    """Returns the pids of the api's children."""
    found = []
    for task in os.listdir(f"/proc/{api.process.pid}/task"):
        with open(f"/proc/{api.process.pid}/task/{task}/children", encoding="ascii") as handle:
            found += [int(pid) for pid in handle.read().split()]
    return found


def parser_at_work():
    """Returns the pid of a parser that is in its sandbox, and its /proc status."""
    for pid in parsers():
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/status", encoding="ascii") as handle:
                status = dict(line.split(":", 1) for line in handle.read().splitlines())
            if status["Seccomp"].strip() == "2":
                return pid, status
    return None


def refused_when(happens, seed):
    """Returns the refusal of a submit to whose parser `happens` was done."""
    reference, answers = big_rows(seed), []
    asked = threading.Thread(target=lambda: answers.append(api.call("POST", "/v1/jobs", spec(reference))))
    asked.start()
    happens(wait_for(parser_at_work, "a parser")[0])
    small = api.upload_rows(token_rows(seed))
    expect(api.call("POST", "/v1/jobs", spec(small)).status == 201, "another's upload is read meanwhile")
    asked.join(60)
    expect(answers and answers[0].status == 422, f"{answers and answers[0].body}")
    expect(api.process.poll() is None, "the api lives")
    wait_for(lambda: not parsers(), "the end of every parser")
    return answers[0].problem["detail"]


def a_parser_that_crashes_costs_its_upload():
    for number in (signal.SIGSEGV, signal.SIGKILL):
        said = refused_when(lambda pid, number=number: os.kill(pid, number), 10 + number)
        expect("data.train" in said and "parser was killed by signal" in said and str(int(number)) in said, said)
    expect("\nmotley_api_parse_failures_total 2\n" in api.call("GET", "/metrics").body.decode(), "failures are counted")


def a_parser_that_hangs_is_ended():
    said = refused_when(lambda pid: os.kill(pid, signal.SIGSTOP), 3)
    expect("data.train" in said and f"parser was not done within {SECONDS} s" in said, said)


def a_parser_that_eats_memory_has_its_share():
    row = json.dumps({"ids": [9] * 1000, "labels": [9] * 1000}).encode() + b"\n"  # encoded, a row has 8000 bytes
    said = api.refused(422, "POST", "/v1/jobs", spec("sha256:" + api.upload(row * 2300)), "data.train", "out of memory")
    expect(said["code"] == "too-big", said)
    expect(api.call("POST", "/v1/jobs", spec(api.upload_rows(token_rows(5)))).status == 201, "and the next is read")


def it_can_see_nothing_and_do_nothing():
    reference, done = big_rows(7), []
    asked = threading.Thread(target=lambda: done.append(api.call("POST", "/v1/jobs", spec(reference))))
    asked.start()
    pid, status = wait_for(parser_at_work, "a parser")
    os.kill(pid, signal.SIGSTOP)
    expect(status["NoNewPrivs"].strip() == "1" and int(status["CapEff"], 16) == 0 and status["Threads"].strip() == "1", status)
    kinds = [os.readlink(f"/proc/{pid}/fd/{fd}").split(":")[0] for fd in sorted(os.listdir(f"/proc/{pid}/fd"))]
    expect(kinds[0].startswith("/memfd") and kinds[1:] == ["pipe", "pipe"], f"its question and two pipes alone: {kinds}")
    with open(f"/proc/{pid}/environ", encoding="ascii") as handle:
        expect("MOTLEY" not in handle.read(), "nothing of the api's environment")
    os.kill(pid, signal.SIGCONT)
    asked.join(60)
    expect(done[0].status in (201, 422), done[0].body)


def what_a_parser_announces_and_does_not_send_is_refused():
    """A parser that was taken over says one row, 4 of its 8 bytes: the rest would be what the api's memory held."""
    lie, real, script = api.path("lie"), os.path.join(BIN, "motley-parse"), api.path("parser.sh")
    stats = {"rows": 1, "bin_tokens": 1, "format": "tokens", "said": "x", "doubts": [], "first": "", "lengths": [], "tokens": 1, "labelled": 1, "sum_sq": 1,
             "longest": 1, "truncated": 0, "dropped": 0, "first_truncated_line": 0, "first_dropped_line": 0}
    frame = msgpack({"answer": {"rows": 1, "stats": stats}, "bytes": 4})
    with open(script, "w", encoding="ascii") as handle:
        handle.write(f"#!/bin/sh\nif test -e {lie}; then exec cat {lie}; fi\nexec {real} \"$@\"\n")
    os.chmod(script, 0o755)
    api.stop()
    api.config["parser"]["program"] = script
    os.environ["GLIBC_TUNABLES"] = "glibc.malloc.perturb=254"  # fresh memory is 01 01 01 01
    api.start()
    reference = api.upload_rows(token_rows(77))
    with open(lie, "wb") as handle:
        handle.write(len(frame).to_bytes(4, "big") + frame + (0x7fffffff).to_bytes(4, "little"))
    api.refused(422, "POST", "/v1/jobs", spec(reference), "data.train", "no proper answer")
    os.unlink(lie)
    expect(api.call("POST", "/v1/jobs", spec(reference)).status == 201, "its own parser reads it")


def without_its_parser_the_api_does_not_start():
    api.stop()
    api.config["parser"]["program"] = "/bin/true"
    try:
        api.start()
    except Exception as problem:  # noqa: BLE001 (api.py's Failed, with the log in it)
        expect("parser" in str(problem), str(problem))
        api.process = None
    else:
        expect(False, "it started with a parser that is none")


with Api(measure_seconds=1, threads=4, parser={"memory": "16MiB", "seconds": SECONDS}) as api:
    api.tiny_model()
    main(a_parser_that_crashes_costs_its_upload, a_parser_that_hangs_is_ended, a_parser_that_eats_memory_has_its_share,
         it_can_see_nothing_and_do_nothing, what_a_parser_announces_and_does_not_send_is_refused,
         without_its_parser_the_api_does_not_start)
