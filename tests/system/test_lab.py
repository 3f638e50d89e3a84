#!/usr/bin/env python3
"""A lab at work: users of three groups share unlike CPU devices with mixed jobs, an array and jobs that come after others. One of
them books a device, another device is drained by a date, a scavenger yields its device, and workers, agents, schedulers and the
api are killed meanwhile. Every job ends with the losses that it has undisturbed, and the ledger is what was held. Twelve users on
six devices with MOTLEY_LONG, else four on three."""
import os

from chaos import ENDED, Api, Books, Storm, check_job, outcome_of, wait_for_calm
from motley import GOLDEN, SLOW, Motley, expect, llama_spec, main

LONG = os.environ.get("MOTLEY_LONG") is not None
USERS, DEVICES, EACH, KILLS, STEPS = (12, 6, 3, 40, 60) if LONG else (4, 3, 1, 6, 30)
ISAS = ("native", "avx2", "sse42", "avx2", "native", "sse42")
SCOPES = "jobs:read,jobs:write,models:read,models:write,nodes:read,nodes:write,leases:write"
LAST = f"n{DEVICES - 1}/cpu0"
KINDS = {
    "single": {"placement": {"kind": "single", "micro_batch_rows": 4}},
    "split": {"placement": {"kind": "pipeline", "stages": 2, "micro_batch_rows": 2}},
    "copies": {"placement": {"kind": "data", "micro_batch_rows": 4, "count": {"most": 2}}},
    "slow": {"placement": {"kind": "single", "micro_batch_rows": 2}, "checkpoint": {"every_steps": 5}},
}
ARRAY = {"array": {"learning_rate": [0.001, 0.0005], "seed": [1, 2]}, "at_most": 2}


def spec(motley, kind, steps=STEPS, **more):
    """At the golden rate (0.005) so many steps learn the few rows by heart, and then rounding decides: 1e-4 after 60 steps on another
    kind of processor."""
    made = llama_spec(motley, f"lab-{kind}", steps, 8, every=8, retries=100)
    made["train"]["learning_rate"] = 0.001
    for key, value in {**KINDS.get(kind, KINDS["single"]), **more}.items():
        made[key] = {**made[key], **value} if isinstance(value, dict) and key in made else value
    return made


def scavenger(motley):
    return spec(motley, "scavenger", 6 * STEPS, service="scavenger", checkpoint={"every_steps": 1000}, train={"learning_rate": 0.0001})


def elements(motley, array):
    found = motley.run("jobs", "--array", str(array), parse=True)["jobs"]
    return [job["id"] for job in sorted(found, key=lambda job: job["index"])]


def undisturbed(motley, api):
    """{kind: outcome}, with each element of the array a kind of its own."""
    idents = {kind: motley.submit(spec(motley, kind))["id"] for kind in KINDS}
    idents["scavenger"] = motley.submit(scavenger(motley))["id"]
    array = motley.submit(spec(motley, "array", **ARRAY))["id"]
    for ident in [*idents.values(), array]:
        job = motley.wait_state(ident, ENDED, timeout=400)
        expect(job["state"] == "succeeded", f"{job['name']}: {job['state']}: {job.get('why')}")
    idents.update({f"array-{i}": ident for i, ident in enumerate(elements(motley, array))})
    return {kind: outcome_of(api, ident, kind) for kind, ident in idents.items()}


def all_submit(motley):
    """Users, their groups and their jobs: ({id: kind}, the array, the job after it)."""
    tokens = [motley.run("token", "make", "--user", f"u{i}", "--scopes", SCOPES, parse=True)["token"] for i in range(USERS)]
    for g in range(3):
        motley.run("group", "set", f"g{g}", *(f"u{i}" for i in range(g, USERS, 3)), "--weight", str(g + 1))
    kinds, made = list(KINDS), {}

    def submit(user, document, kind):
        ident = motley.as_user(tokens[user], "submit", motley.write("lab.json", document))["id"]
        made[ident] = kind
        return ident

    scavenges = submit(0, {**scavenger(motley), "account": "g0"}, "scavenger")
    motley.wait_steps(scavenges, 5)
    holds = motley.job(scavenges)["run"]["ranks"][0]["device"]
    array = submit(1, spec(motley, "array", **ARRAY), "array")
    after = submit(1, spec(motley, "single", after=[array]), "single")
    takes = spec(motley, "single")
    takes["placement"] = {**takes["placement"], "devices": [holds]}
    submit(2, {**takes, "account": "g2"}, "single")
    for n in range(EACH):
        for user in range(USERS):
            submit(user, {**spec(motley, kinds[(user + n) % len(kinds)]), "account": f"g{user % 3}"}, kinds[(user + n) % len(kinds)])
    return tokens, made, array, after


def everybody_gets_what_is_due():
    agents = [{"name": f"n{i}", "devices": [{"kind": "cpu", "threads": 1, "memory": f"{450 + 50 * (i % 3)}MiB", "isa": ISAS[i]}]}
              for i in range(DEVICES)]
    with Motley({"agents": agents, "schedulers": 2, "sharing": {"move": 0.1}}) as motley:
        api = Api(motley)
        reference = undisturbed(motley, api)
        books, weather = Books(motley), Storm(motley, 35)
        tokens, made, array, after = all_submit(motley)
        booked = motley.as_user(tokens[3], "lease", "n0/cpu0", "--in", "2s", "--for", "1h")
        motley.run("drain", LAST, "--by", "4s", "--reason", "a new fan")
        weather.blow(KILLS, 1.2, ("worker", "agent", "leader", "scheduler", "api", "node"))
        leases = motley.run("leases", parse=True)["leases"]
        expect([lease["id"] for lease in leases if lease["active"]] == [booked["id"]], leases)
        shown = {device["name"]: device for device in motley.run("devices", parse=True)["devices"]}
        expect(shown[LAST]["drained"] and shown[LAST]["drain_why"] == "a new fan", shown[LAST])
        motley.as_user(tokens[3], "lease", "end", str(booked["id"]))
        motley.run("undrain", LAST)
        wait_for_calm(api, list(made), 600 * SLOW)
        done = motley.job(array)
        expect(done["state"] == "succeeded" and motley.job(after)["started"] > done["ended"], done)
        del made[array]
        made.update({ident: f"array-{i}" for i, ident in enumerate(elements(motley, array))})
        attempts = [check_job(api, ident, kind, reference[kind]) for ident, kind in made.items()]
        yields = int(motley.sql("SELECT count(*) FROM runs WHERE stop_why = 'preempt'"))
        expect(yields >= 1, "no run yielded its devices to another job")
        intervals = books.check()
        inside = motley.sql(f"""SELECT count(*) FROM ledger WHERE device = 'n0/cpu0' AND assignment > 0 AND EXISTS (SELECT 1 FROM ledger l
            WHERE l.assignment = -{booked['id']} AND ledger.begins > l.begins AND ledger.begins < l.ends)""")
        expect(inside == "0", f"{inside} runs began on the leased device")
    return (f"{USERS} users, {DEVICES} devices, {len(weather.log)} kills: {len(made)} jobs in {sum(attempts)} attempts with the losses "
            f"that they have undisturbed, {yields} yielded, {intervals} intervals in the ledger")


if __name__ == "__main__":
    main(everybody_gets_what_is_due)
