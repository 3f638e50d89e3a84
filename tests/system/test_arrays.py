#!/usr/bin/env python3
"""Arrays and jobs that come after others, with real agents, workers and plans: every element has the losses that its values
give a job of their own, and the client acts on many jobs at once."""
from motley import Motley, expect, every_loss, llama_spec, main, two_unlike

STEPS = 40


def spec(motley, name, **more):
    single = {"kind": "single", "micro_batch_rows": 8, "devices": ["left/cpu0", "right/cpu0"]}
    made = llama_spec(motley, name, STEPS, 8, repeat=4, every=10000, placement=single)
    made["data"]["shuffle"] = True
    made["train"].update(more.pop("train", {}))
    made.update(more)
    return made


def an_array_is_what_its_elements_are_alone():
    # alike devices and one batch a step: every run of the same values computes the same sums
    with Motley(two_unlike(isa_left="avx2", sharing={"move": 0.1})) as motley:
        values = [(rate, seed) for rate in (0.005, 0.001) for seed in (1, 2)]
        alone = [every_loss(motley, motley.submit(spec(motley, f"alone-{i}", train={"learning_rate": rate, "seed": seed}), wait=True), f"alone-{i}", STEPS)
                 for i, (rate, seed) in enumerate(values)]
        expect(len({tuple(losses) for losses in alone}) == len(values), "the values make no difference")
        array = motley.submit(spec(motley, "sweep", array={"learning_rate": [0.005, 0.001], "seed": [1, 2]}, at_most=2))["id"]
        last = motley.submit(spec(motley, "last", after=[array]), name="last.json")["id"]
        why = motley.run("why", str(last), parse=True)
        expect(why["wait"] in ("after", None), why)
        done = motley.wait_state(array, ("succeeded", "failed", "cancelled"), timeout=240)
        expect(done["state"] == "succeeded" and done["array"]["states"] == {"succeeded": 4}, done)
        motley.run("get", str(array), motley.path("all"), status=1)
        expect(f"is an array: get its elements (motley jobs --array {array})" in motley.last_error, motley.last_error)
        elements = motley.run("jobs", "--array", str(array), parse=True)["jobs"]
        expect(sorted(job["name"] for job in elements) == [f"sweep[{i}]" for i in range(4)], elements)
        for job in elements:
            expect(every_loss(motley, motley.job(job["id"]), job["name"], STEPS) == alone[job["index"]], f"{job['name']} is not what it is alone")
        after = motley.wait_state(last, ("succeeded", "failed", "cancelled"), timeout=120)
        expect(after["state"] == "succeeded" and after["started"] > done["ended"], after)

        held = [motley.submit(spec(motley, f"held-{i}", hold=True), name=f"held-{i}.json")["id"] for i in range(2)]
        doomed = motley.submit(spec(motley, "doomed", after=held), name="doomed.json")["id"]
        answer = motley.run("cancel", *map(str, held), str(array), status=1, parse=True)
        expect([job["state"] for job in answer["jobs"]] == ["cancelled"] * 2 and answer["refused"][0]["id"] == array, answer)
        failed = motley.wait_state(doomed, ("succeeded", "failed", "cancelled"))
        expect(failed["code"] == "dependency" and str(held[0]) in failed["why"], failed)


if __name__ == "__main__":
    main(an_array_is_what_its_elements_are_alone)
