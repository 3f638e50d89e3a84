#!/usr/bin/env python3
"""Two people share two unlike devices, with real agents, workers and plans: who came first does not get everything, all of
it is in the ledger, and what waits says for what, in which place and until when."""
from motley import Motley, expect, llama_spec, main, two_unlike


def a_person_with_one_job_does_not_wait_for_all_of_anothers():
    with Motley(two_unlike(sharing={"half_life": "1h", "move": 30})) as motley:
        token = motley.run("token", "make", "--user", "bob", "--scopes", "jobs:read,jobs:write,models:read,models:write,nodes:read", parse=True)["token"]
        many = [motley.submit(llama_spec(motley, f"many-{i}", 600, 4, repeat=3))["id"] for i in range(6)]
        for ident in many[:1]:
            motley.wait_state(ident, ("running",))
        bobs = motley.as_user(token, "submit", motley.write("bob.json", llama_spec(motley, "one", 20, 4, repeat=3)))["id"]
        queue = motley.as_user(token, "queue")["queue"]
        waiting = [job for job in queue if job["state"] == "queued"]
        expect(len(queue) >= 6 and all(job["name"] is None for job in queue if job["owner"] != "bob"), queue)
        expect(waiting, "something waits")
        job = motley.wait_state(bobs, ("succeeded",), timeout=240)
        left = [motley.job(ident)["state"] for ident in many]
        expect(left.count("queued") >= 2, f"bob's job ended when {left} of the others")
        for ident in many:
            motley.run("cancel", str(ident), status=(0, 1))  # some have ended
            motley.wait_state(ident, ("cancelled", "succeeded"))
        used = {row["name"]: row for row in motley.run("usage", parse=True)["usage"]}
        expect(used["bob"]["jobs"] == 1 and 0 < used["bob"]["charged_s"] <= used["bob"]["held_s"], used)
        shares = motley.run("shares", parse=True)["shares"]
        expect([row["user"] for row in shares][0] == "bob", shares)
        motley.run("user", "set", "bob", "--queued", "1")
        held = motley.write("held.json", llama_spec(motley, "held", 20, 4, hold=True))
        motley.as_user(token, "submit", held)
        motley.as_user(token, "submit", held, status=7)  # a limit, which is no fault of the specification
        print(f"      bob's {job['steps']} steps were done while the others were {left}; used {used}")


if __name__ == "__main__":
    main(a_person_with_one_job_does_not_wait_for_all_of_anothers)
