#!/usr/bin/env python3
"""Takes the pictures of docs/PAGE.md from a running Motley: screens.py HOME JOB [OTHER JOB …]: each view in light and dark, on a phone and on a wall.

They are WebP files under docs/screens, named VIEW-WIDTH-COLOURS.webp."""
import base64
import os
import sys
import types

from page import SOURCE, Browser

VIEWS = {"queue": "/queue", "cluster": "/cluster", "job": "/jobs/{0}", "why": "/jobs/{0}/why", "lanes": "/jobs/{0}/lanes", "plan": "/plan?job={0}", "compare": "/jobs?ids={1}", "me": "/me"}
SIZES = {390: 844, 1920: 1080}
QUALITY = {390: 55, 1920: 60}
SETTLES = 2500  # milliseconds until the curves are drawn


def take(page, path, quality):
    session = page.context.new_cdp_session(page)
    data = session.send("Page.captureScreenshot", {"format": "webp", "quality": quality})["data"]
    with open(path, "wb") as handle:
        handle.write(base64.b64decode(data))


def main(home, *jobs):
    folder = os.path.join(SOURCE, "docs", "screens")
    os.makedirs(folder, exist_ok=True)
    with Browser(types.SimpleNamespace(home=home)) as browser:
        for colours in ("light", "dark"):
            person = browser.person(color_scheme=colours)
            for name, view in VIEWS.items():
                page = browser.open(person, view.format(jobs[0], ",".join(jobs)))
                for width, height in SIZES.items():
                    page.set_viewport_size({"width": width, "height": height})
                    page.wait_for_timeout(SETTLES)
                    take(page, os.path.join(folder, f"{name}-{width}-{colours}.webp"), QUALITY[width])
                page.close()


main(*sys.argv[1:])
