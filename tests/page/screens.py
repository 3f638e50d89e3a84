#!/usr/bin/env python3
"""Takes the pictures of docs/PAGE.md and the README: each view in light and dark, on a phone and on a wall, of a lab of its own.

Three people share five paced devices, whose rates stand to one another as those of the cards that their nodes are named after, all
2,000 times slower, so that this machine's CPU can compute what they are said to. It needs two idle cores for ten minutes, and the
demo's model (make demo). Pictures are WebP files under docs/screens, named VIEW-WIDTH-COLOURS.webp."""
import base64
import os
import subprocess

from page import SOURCE, Browser, until
from motley import Motley

MODEL = os.path.join(SOURCE, ".cache", "SmolLM2-135M-Instruct.Q4_1.gguf")
CARDS = {"ada-4090": ["rtx-4090"], "rack": ["rtx-3090", "rtx-3090"], "ben-2080ti": ["rtx-2080ti"], "attic-1080ti": ["gtx-1080ti"]}
TFLOPS = {"rtx-4090": 82.6, "rtx-3090": 35.6, "rtx-2080ti": 13.4, "gtx-1080ti": 11.3}  # fp32, of docs/reference/hardware.md
SLOWER = 4000
VIEWS = {"queue": "/queue", "cluster": "/cluster", "job": "/jobs/{0}", "why": "/jobs/{0}/why", "lanes": "/jobs/{0}/lanes", "plan": "/plan?job={0}",
         "compare": "/jobs?ids={1}", "me": "/me"}
SIZES = {390: 844, 1920: 1080}
QUALITY = {390: 55, 1920: 60}
SETTLES = 2500  # milliseconds until the curves are drawn
SCOPES = "jobs:read,jobs:write,models:read,models:write,nodes:read,leases:write"


def lab():
    agents = [{"name": node, "devices": [{"kind": "paced", "memory": "1GiB", "pace": {
        "flops": TFLOPS[card] * 1e12 / SLOWER, "bytes_per_s": 2e10}} for card in cards]} for node, cards in CARDS.items()]
    nodes = list(CARDS)
    return {"agents": agents, "links": [{"between": [a, b], "rate": "1Gbit/s", "latency": "300us"} for i, b in enumerate(nodes) for a in nodes[:i]]}


def spec(motley, name, steps, rank, placement):
    return {"name": name, "model": MODEL, "method": {"kind": "lora", "rank": rank, "alpha": 2 * rank, "base": "packed"},
            "data": {"train": motley.path("rows.jsonl"), "eval": motley.path("held-out.jsonl"), "format": "alpaca", "sequence_tokens": 128},
            "train": {"batch_rows": 2, "steps": steps, "learning_rate": 1e-3, "warmup_steps": 5, "compute": "fp32"},
            "eval": {"every_steps": 20}, "placement": placement}


def fill(motley):
    """Users with their jobs; the id of the one that is looked at, and of those to compare."""
    subprocess.run([os.path.join(SOURCE, "tools", "demo_rows.sh"), motley.path("rows.jsonl"), motley.path("held-out.jsonl"), "400", "8"], check=True)
    people = {}
    for name in ("ada", "ben", "chi"):
        people[name] = motley.run("token", "make", "--user", name, "--scopes", SCOPES, parse=True)["token"]
    motley.run("group", "set", "vision", "ada")
    motley.run("group", "set", "language", "ben", "chi", "--weight", "2")
    for name, group in (("ada", "vision"), ("ben", "language"), ("chi", "language")):
        motley.run("user", "set", name, "--account", group)

    def submit(who, name, steps, rank, **placement):
        ident = motley.as_user(people[who], "submit", motley.write(f"{name}.json", spec(motley, name, steps, rank, placement)))["id"]
        motley.as_user(people[who], "share", str(ident), "everyone")
        return ident
    looked_at = submit("ada", "packages-rank-32", 400, 32, devices=["ada-4090/paced0", "rack/paced0", "rack/paced1"])
    first = submit("ben", "packages-rank-4", 200, 4, devices=["ben-2080ti/paced0"])
    second = submit("chi", "packages-rank-8", 200, 8, devices=["attic-1080ti/paced0"])
    for ident in (looked_at, first, second):
        motley.wait_state(ident, ("running",))
    submit("chi", "tone-of-voice", 300, 16)
    submit("ben", "packages-rank-16", 200, 16, devices=["ben-2080ti/paced0"])
    submit("ada", "release-notes", 120, 16)
    motley.as_user(people["ben"], "lease", "attic-1080ti/paced0", "--for", "60m", "--in", "3h", "--note", "notebook")
    until("steps of each", lambda: motley.job(looked_at)["step"] > 40 and motley.job(second)["step"] > 3, timeout=600)
    return people["ada"], looked_at, (first, second)


def take(page, path, quality):
    session = page.context.new_cdp_session(page)
    data = session.send("Page.captureScreenshot", {"format": "webp", "quality": quality})["data"]
    with open(path, "wb") as handle:
        handle.write(base64.b64decode(data))


def main():
    folder = os.path.join(SOURCE, "docs", "screens")
    with Motley(lab()) as motley:
        token, job, others = fill(motley)
        with Browser(motley) as browser:
            for colours in ("light", "dark"):
                person = browser.person(token=token, color_scheme=colours)
                for name, view in VIEWS.items():
                    page = browser.open(person, view.format(job, ",".join(map(str, (job, *others)))))
                    for width, height in SIZES.items():
                        page.set_viewport_size({"width": width, "height": height})
                        page.wait_for_timeout(SETTLES)
                        take(page, os.path.join(folder, f"{name}-{width}-{colours}.webp"), QUALITY[width])
                    page.close()


main()
