#!/usr/bin/env python3
"""An agent that is told to end (SIGTERM) in the middle of a step that takes longer than 5 s: the step is not lost, and the job goes
on when the agent is back."""
import os
import signal

from motley import Motley, expect, llama_spec, main, slowly_linked

STEPS = 4


def long_steps():
    """Two agents behind a link that makes each step of a pair last about 7 s, whatever the machine computes."""
    config = slowly_linked([{"memory": "450MiB"}, {"memory": "450MiB"}])
    for link in config["links"]:
        link["rate"] = "30kbit/s"
    for agent in config["agents"]:
        agent["grace"] = "60s"
    return config


def a_step_under_way_is_stored_before_the_agent_ends():
    with Motley(long_steps()) as motley:
        spec = llama_spec(motley, "long", STEPS, 2, every=1000, placement={"kind": "pipeline"})
        ident = motley.submit(spec)["id"]
        motley.wait_steps(ident, 1)
        agent = next(process["pid"] for process in motley.processes() if process["role"] == "agent" and process["name"] == "n1")
        os.kill(agent, signal.SIGTERM)
        job = motley.wait_state(ident, ("succeeded", "failed"))
        expect(job["state"] == "succeeded" and job["attempt"] == 2 and job["losses"] == 0, job)
        start = int(motley.sql(f"SELECT start_step FROM runs WHERE job = {ident} AND attempt = 2"))
        expect(start >= 2, f"the step under way was lost: attempt 2 began with step {start}")
        expect(motley.metrics(ident)[0][1]["seconds"] > 5.5, f"the step was too short to tell: {motley.metrics(ident)[0]}")
        expect([m["step"] for m in motley.metrics(ident)[0]] == list(range(STEPS)), motley.metrics(ident))


if __name__ == "__main__":
    main(a_step_under_way_is_stored_before_the_agent_ends)
