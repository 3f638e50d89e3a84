#!/usr/bin/env python3
"""`motley upgrade --check` says of a running server what this release's programs would do to it: steps of the schema, agents of
other protocols, jobs, disk and backup. It changes nothing, and its status says whether anything speaks against it."""
import json
import subprocess

from motley import Motley, expect, llama_spec, main, of_protocol, two_unlike


def check(motley, program=None, status=0):
    """Notes and objections, after a look whether the plain answer has the same sentences. Between the two a server may step down."""
    program = program or motley.program("motley")
    for last in False, False, True:
        answers = []
        for words in (["--json"], []):
            done = subprocess.run([program, "upgrade", "--check", "--home", motley.home, *words], capture_output=True, text=True, timeout=120, check=False)
            expect(done.returncode == status, f"status {done.returncode}, not {status}: {done.stdout}{done.stderr}")
            answers.append(done.stdout)
        answer = json.loads(answers[0])
        plain = answers[1].splitlines()
        if len(plain) == len(answer["notes"]) + len(answer["against"]) + (status == 0) and all(sentence in answers[1] for sentence in answer["against"]):
            return answer["notes"], answer["against"]
        expect(not last, f"{plain} beside {answer}")


def one(sentences, *words):
    found = [sentence for sentence in sentences if all(word in sentence for word in words)]
    expect(len(found) == 1, f"{words}: {found} of {sentences}")


def newest(motley):
    number, name = motley.sql("SELECT number, name FROM motley_migrations ORDER BY number DESC LIMIT 1").strip().split("|")
    return int(number), name


def jobs_and_machines(motley, ident):
    notes, against = check(motley)
    expect(not against, against)
    one(notes, "the server runs release", "this one is")
    one(notes, "stays as it is")
    one(notes, "2 agents work on")
    one(notes, f"job {ident} is at step", "devices of the server itself", "having no checkpoint")
    one(notes, "1 job runs and 1 waits or is held")
    one(notes, "no backup of this server is known")


def other_protocols(motley):
    said = subprocess.run([motley.program("motley"), "--version"], capture_output=True, text=True, check=True).stdout
    ours = int(said.rsplit(" ", 1)[1].rstrip(")\n"))
    notes, against = check(motley, of_protocol(motley, "motley", ours + 1))
    expect(not against, against)
    one(notes, f"(protocol {ours + 1})")
    notes, against = check(motley, of_protocol(motley, "motley", ours + 2), status=1)
    one(against, "cannot be asked", f"(protocol {ours + 2})")
    motley.sql("UPDATE nodes SET inventory = jsonb_set(inventory::jsonb, '{protocol}', to_jsonb(%d)) WHERE name = 'left'" % (ours + 9))
    notes, against = check(motley, status=1)
    one(against, "the agent of left", f"(protocol {ours + 9})")
    one(notes, "1 agent works on")
    motley.sql("UPDATE nodes SET inventory = jsonb_set(inventory::jsonb, '{protocol}', to_jsonb(%d)) WHERE name = 'left'" % ours)


def steps_of_the_schema(motley):
    number, name = newest(motley)
    row = motley.sql(f"SELECT digest FROM motley_migrations WHERE number = {number}").strip()
    motley.sql(f"DELETE FROM motley_migrations WHERE number = {number}")
    notes, against = check(motley, status=1)
    one(notes, f"from schema version {number - 1} to {number}")
    one(notes, name)
    one(notes, "as much room again as the database has")
    one(against, "no backup of this server is known")
    motley.sql(f"INSERT INTO motley_migrations (number, name, digest) VALUES ({number}, '{name}', '{row}')")
    folder = motley.path("monday")
    motley.run("backup", folder)
    motley.sql(f"DELETE FROM motley_migrations WHERE number = {number}")
    notes, against = check(motley)
    one(notes, "the last backup is of", folder)
    motley.sql(f"INSERT INTO motley_migrations (number, name, digest) VALUES ({number}, '{name}', '{row}')")


def a_newer_database(motley):
    motley.sql("INSERT INTO motley_migrations (number, name, digest) VALUES (999, '0999_of_tomorrow', 'x')")
    notes, against = check(motley, status=1)
    one(against, "0999_of_tomorrow", "newer than this program")


def what_would_happen_is_said():
    with Motley(two_unlike()) as motley:
        ident = motley.submit(llama_spec(motley, "runs", 100000, 8, every=100000, placement={"move": "never"}))["id"]
        motley.submit(llama_spec(motley, "waits", 2, 8, hold=True))
        motley.wait_steps(ident, 1)
        jobs_and_machines(motley, ident)
        other_protocols(motley)
        steps_of_the_schema(motley)
        motley.run("upgrade", status=2)
        motley.run("cancel", str(ident))
        motley.wait_state(ident, ("cancelled",))
        a_newer_database(motley)
        motley.run("down")
        _, against = check(motley, status=1)
        one(against, "the database cannot be used")
        one(against, "cannot be asked")
    return "every objection was one that was made"


if __name__ == "__main__":
    main(what_would_happen_is_said)
