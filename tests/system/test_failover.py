#!/usr/bin/env python3
"""PostgreSQL over TLS on two machines: the primary dies under a stream of submits and a running job, and the standby is promoted.
With a standby that commits wait for, nothing that was acknowledged is lost and the run goes on. A standby that lacks the last
commits is noticed: no id comes again, and jobs go on from the last checkpoint that it knows."""
import json
import subprocess
import threading
import time

from motley import SLOW, expect, llama_spec, main
from servers import PACED, Lab, page_block, wait_for

STEPS = 80


def spec_for(name, steps=STEPS):
    return llama_spec(lab, name, steps, 2, repeat=8, every=20, retries=3, placement={"kind": "single", "micro_batch_rows": 2, "move": "never"})


class Submits(threading.Thread):
    """Submits held jobs one after the other; `acknowledged` has the ids that the api answered."""

    def __init__(self):
        super().__init__()
        self.acknowledged, self.refused, self.stopped = [], 0, False
        self.file = lab.write("stream.json", {**spec_for("stream", 1), "after": [1]})

    def run(self):
        while not self.stopped:
            done = subprocess.run([lab.program("motley"), "submit", self.file, "--home", lab.home, "--json"], capture_output=True,
                                  text=True, timeout=60 * SLOW, check=False)
            if done.returncode == 0:
                self.acknowledged.append(json.loads(done.stdout)["id"])
            else:
                self.refused += 1

    def __exit__(self, *_):
        self.stopped = True
        self.join(60 * SLOW)

    def __enter__(self):
        self.start()
        return self


def losses(ident):
    steps = lab.metrics(ident)[0]
    expect([m["step"] for m in steps] == list(range(STEPS)), f"steps {[m['step'] for m in steps]}")
    return [m["loss"] for m in steps]


def commits_wait(primary):
    primary.type(page_block("synchronous_standby_names"))
    wait_for(lambda: primary.sql("SELECT sync_state FROM pg_stat_replication") == "sync", "a synchronous standby", 30 * SLOW)
    wait_for(lambda: primary.sql("SELECT synchronous FROM leader_beat") == "t", "the leader knows", 30 * SLOW)


def changes_over(primary, standby):
    """The primary's machine dies, and the standby is promoted."""
    epoch = primary.sql("SELECT epoch FROM leader")
    primary.kill()
    began = time.monotonic()
    standby.type(page_block("pg_ctl promote"))
    wait_for(lambda: lab.document("jobs"), "the api answers", 60 * SLOW)
    answered = time.monotonic() - began
    wait_for(lambda: standby.sql("SELECT count(*) FROM leader WHERE epoch > " + epoch) == "1", "a scheduler leads", 60 * SLOW)
    return f"the api answers after {answered:.1f} s, a scheduler leads after {time.monotonic() - began:.1f} s"


def nothing_is_lost_of_what_waited_for_the_standby():
    primary, standby = lab.databases[0], lab.add_standby()
    commits_wait(primary)
    expect(primary.sql("SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE client_addr IS NOT NULL") == "t", "TLS")
    ident = lab.submit(spec_for("runs on"))["id"]
    lab.wait_steps(ident, 5)
    with Submits() as submits:
        wait_for(lambda: len(submits.acknowledged) > 5, "submits", 60 * SLOW)
        said = changes_over(primary, standby)
        before = len(submits.acknowledged)
        wait_for(lambda: len(submits.acknowledged) > before + 5, "submits go on", 60 * SLOW)
    there = {job["id"] for job in lab.document("jobs", "--limit", "500")["jobs"]}
    expect(len(set(submits.acknowledged)) == len(submits.acknowledged), "an id came twice")
    expect(set(submits.acknowledged) <= there, f"lost: {sorted(set(submits.acknowledged) - there)}")
    job = lab.wait_state(ident, ("succeeded", "failed"))
    expect((job["state"], job["attempt"]) == ("succeeded", 1), f"{job['state']}, attempt {job['attempt']}: {job.get('why')}")
    reference.extend(losses(ident))
    expect("database_went_back" not in "".join(scheduler.log() for scheduler in lab.schedulers), "nothing went back")
    return f"{said}; {len(submits.acknowledged)} submits acknowledged, {submits.refused} refused"


def a_standby_that_lacks_commits_gives_no_id_twice_and_jobs_go_on():
    primary, standby = lab.databases[-1], lab.add_standby()
    ident = lab.submit(spec_for("goes back"))["id"]
    lab.wait_steps(ident, 25)
    wait_for(lambda: standby.sql(f"SELECT count(*) FROM checkpoints WHERE job = {ident}") != "0", "a checkpoint on the standby", 30 * SLOW)
    standby.sql("ALTER SYSTEM SET primary_conninfo = ''")
    standby.sql("SELECT pg_reload_conf()")
    wait_for(lambda: primary.sql("SELECT count(*) FROM pg_stat_replication") == "0", "the standby falls behind", 30 * SLOW)
    lost = lab.submit(spec_for("lost"))["id"]
    lab.wait_steps(lost, 2)
    runs = int(primary.sql("SELECT max(id) FROM runs"))
    said = changes_over(primary, standby)
    expect(lab.document("job", str(lost)) is None, "the standby did not know it")
    again = lab.submit(spec_for("afterwards"))["id"]
    expect(again > lost, f"job {again} after {lost}")
    for job in (ident, again):
        done = lab.wait_state(job, ("succeeded", "failed"))
        expect(done["state"] == "succeeded", f"{done['state']}: {done.get('why')}")
        expect(losses(job) == reference, f"{done['name']}: losses differ")
    expect(lab.job(ident)["attempt"] == 2, lab.job(ident)["attempt"])
    expect(int(standby.sql("SELECT min(id) FROM runs WHERE created_at > (SELECT since FROM cluster)")) > runs, "a run's id came again")
    unknown = lab.run("nodes", parse=True)["unknown_jobs"]
    expect(lost in [entry["job"] for entry in unknown], f"the nodes name what was lost: {unknown}")
    return said


if __name__ == "__main__":
    reference = []
    with Lab(("left",), PACED) as lab:
        main(nothing_is_lost_of_what_waited_for_the_standby, a_standby_that_lacks_commits_gives_no_id_twice_and_jobs_go_on)
