#!/usr/bin/env python3
"""Two addresses of Redis: the first dies under a running job, and agents and schedulers go on with the second; it comes back empty,
and is used again when the leading scheduler has chosen it. Nothing is lost: the losses of the run are those of one undisturbed."""
import json
import os
import time

from motley import SLOW, expect, llama_spec, main
from servers import PACED, Lab, wait_for

STEPS = 150


class OneRedis(Lab):
    """Whose apis tell agents of the first Redis alone, until they are told otherwise."""

    def configure(self):
        super().configure()
        self.configure_apis(self.redis[0].address)


def spec_for(name):
    return llama_spec(lab, name, STEPS, 2, repeat=8, every=20, retries=0, placement={"kind": "pipeline", "stages": 2, "micro_batch_rows": 1, "move": "never"})


def losses(ident):
    steps = lab.metrics(ident)[0]
    expect([m["step"] for m in steps] == list(range(STEPS)), f"steps {[m['step'] for m in steps]}")
    return [m["loss"] for m in steps]


def users(redis):
    """Of agents that are connected there."""
    return {word[5:] for word in redis.cli("CLIENT", "LIST").split() if word.startswith("user=agent-")}


def all_use(redis, what):
    began = time.monotonic()
    wait_for(lambda: users(redis) == {"agent-left", "agent-right"} and redis.cli("GET", "motley:leader").startswith("scheduler"), what, 60 * SLOW)
    return time.monotonic() - began


def finish(ident):
    job = lab.wait_state(ident, ("succeeded", "failed"))
    expect((job["state"], job["attempt"]) == ("succeeded", 1), f"{job['state']}, attempt {job['attempt']}: {job.get('why')}")
    return losses(ident)


def told(name):
    """The addresses that this agent knows."""
    with open(os.path.join(lab.path(name), "agent.json"), encoding="utf-8") as handle:
        return json.load(handle)["redis"]["address"]


def agents_that_run_learn_the_second_with_their_next_certificate():
    first, second = lab.redis
    expect({told(name) for name in lab.names} == {first.address}, "they know one")
    lab.configure_apis(f"{first.address},{second.address}")
    for api in lab.apis:
        api.stop()
        api.start()
    wait_for(lambda: {told(name) for name in lab.names} == {f"{first.address},{second.address}"}, "they know both", 60 * SLOW)


def a_job_outlives_the_first_redis():
    ident = lab.submit(spec_for("moves"))["id"]
    lab.wait_steps(ident, 5)
    first, second = lab.redis
    expect(users(first) == {"agent-left", "agent-right"} and not users(second), "all use the first one")
    first.kill()
    took = all_use(second, "all move to the second")
    reference.extend(finish(ident))
    return f"all had moved after {took:.1f} s"


def one_that_comes_back_is_used_once_the_leader_is_there():
    first, second = lab.redis
    ident = lab.submit(spec_for("moves back"))["id"]
    lab.wait_steps(ident, 5)
    first.start()
    wait_for(lambda: first.cli("PING") == "PONG", "the first one is back", 30 * SLOW)
    first.cli("REPLICAOF", "127.0.0.1", str(second.port))  # one that cannot be written to is none
    for scheduler in lab.schedulers:
        scheduler.stop()
        scheduler.start()
    all_use(second, "all stay with the second")
    first.cli("REPLICAOF", "NO", "ONE")
    for scheduler in lab.schedulers:
        scheduler.stop()
        scheduler.start()
    took = all_use(first, "all follow the leader to the first")
    expect(finish(ident) == reference, "losses differ")
    return f"all had followed after {took:.1f} s"


if __name__ == "__main__":
    reference = []
    with OneRedis(device=PACED, lifetime="12s") as lab:
        main(agents_that_run_learn_the_second_with_their_next_certificate, a_job_outlives_the_first_redis,
             one_that_comes_back_is_used_once_the_leader_is_there)
