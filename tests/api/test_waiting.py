#!/usr/bin/env python3
"""Requests that wait (api/request/wait.h): many at once hold up nobody, and a server that ends answers them all."""
import threading
import time

from api import Api, expect, main, spec, token_rows

WAITING = 40


def plans_that_wait_hold_up_nobody_and_end_with_the_server():
    api.psql("INSERT INTO nodes (name, state, address, last_seen) VALUES ('left', 'alive', '127.0.0.1', now()); "
             "INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) "
             "VALUES ('left/cpu0', 'left', 'cpu', '{\"threads\": 1}', 'd', 300000)")
    answers = []

    def ask(seed):  # nobody measures here
        body = spec(rows, train={"batch_rows": 2, "steps": 7, "seed": seed // 2, "learning_rate": 1e-3})  # two share a check
        answers.append(api.call("POST", "/v1/jobs:validate", body, connection=api.connection()).status)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(2, WAITING + 2)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while int(api.psql("SELECT count(*) FROM measures")) == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    began = time.monotonic()
    expect(api.good("GET", "/v1/whoami")["kind"] == "user" and time.monotonic() - began < 2, "another request is answered meanwhile")
    expect(not answers, f"all wait: {answers}")
    api.stop()
    for thread in threads:
        thread.join(20)
    expect(answers == [503] * WAITING, f"each is told that the server ends: {answers}")
    api.start()


with Api(measure_seconds=60) as api:
    api.tiny_model()
    rows = api.upload_rows(token_rows())
    main(plans_that_wait_hold_up_nobody_and_end_with_the_server)
