#!/usr/bin/env python3
"""The page where there is very much of everything, in Chromium against a live service, beside what is asked of it.

    bench/page_scale.py [PART…]       many events submits lanes; default: all

many:    10,000 jobs and 500 devices: the size and the time of first views, and tasks over 100 ms within SECONDS while jobs change
events:  100,000 events of a job: the page's memory after a collection, beside what it was
submits: the 99th percentile of submits beside plans that are asked for all the time
lanes:   72 ranks of 20,000 instructions: tasks while they load and while keys pan and zoom; the answers are made here, as finely as asked for
"""
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse

from harness import SOURCE, expect, machine

sys.path.insert(0, os.path.join(SOURCE, "tests", "page"))
sys.path.insert(0, os.path.join(SOURCE, "tests", "support"))
from many import INSTRUCTIONS, RANKS, Database, Tasks, answer_dense_lanes, make_devices, make_jobs, make_steps  # noqa: E402
from motley import Motley, llama_spec, two_unlike  # noqa: E402
from page import Browser, until  # noqa: E402

SECONDS = int(os.environ.get("MOTLEY_PAGE_SECONDS", "60"))
JOBS = 10000
EVENTS = 100000
SUBMITS_SECONDS = 8
# When the first row of a table (or the first tile) was there.
FIRST = """
new MutationObserver((_, self) => {
    if (!document.querySelector('tr[data-job], .tile')) return;
    window.firstView = performance.now();
    self.disconnect();
}).observe(document, {subtree: true, childList: true});
"""
SIZES = "performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation')).reduce((sum, e) => sum + e.encodedBodySize, 0)"


def load():
    return f"load {os.getloadavg()[0]:.1f}"


class Api:
    """One connection of somebody with the home's token."""

    def __init__(self, motley):
        with open(os.path.join(motley.home, "client.json"), encoding="utf-8") as handle:
            client = json.load(handle)
        self.host = urllib.parse.urlsplit(client["address"]).netloc
        self.headers = {"Authorization": f"Bearer {client['token']}", "Content-Type": "application/json"}
        self.connection = http.client.HTTPConnection(self.host, timeout=120)

    def ask(self, method, path, body=None):
        self.connection.request(method, path, json.dumps(body) if body is not None else None, self.headers)
        answer = self.connection.getresponse()
        text = answer.read()
        expect(answer.status < 400, f"{method} {path}: {answer.status} {text[:300]}")
        return json.loads(text) if text else None


class Beside:
    """Does something on a thread of its own, again and again, until it is left; `times` has how long each took."""

    def __init__(self, work, pause=0.0):
        self.work, self.pause, self.times, self.over, self.trouble = work, pause, [], threading.Event(), None
        self.thread = threading.Thread(target=self.run)

    def run(self):
        try:
            while not self.over.is_set():
                began = time.monotonic()
                self.work()
                self.times.append(time.monotonic() - began)
                self.over.wait(self.pause)
        except Exception as trouble:  # it is told where it is waited for
            self.trouble = trouble

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        if self.trouble:
            raise self.trouble


def first_view(browser, context, path, what):
    page = context.new_page()
    page.goto(browser.address + path)
    until("no row is shown", lambda: page.evaluate("window.firstView"), 60)
    page.wait_for_timeout(1500)
    print(f"  {what}: the first rows after {page.evaluate('window.firstView'):.0f} ms, {page.evaluate(SIZES) / 1000:.0f} KB compressed with what the api answered; "
          f"the longest task so far {max(page.evaluate('window.longTasks'), default=0):.0f} ms; {load()}", flush=True)
    return page


def many(motley, browser, database):
    one = make_jobs(motley, database, JOBS)
    devices = make_devices(database)
    api = Api(motley)
    count = api.ask("GET", "/v1/queue?limit=1")["jobs"]
    print(f"{count} jobs, {devices + 2} devices; job {one} is released and held twice a second")
    context = browser.person()
    context.add_init_script(FIRST)

    def change():
        for verb in ("release", "hold"):
            api.ask("POST", f"/v1/jobs/{one}/{verb}")
            time.sleep(0.5)

    for path, what in (("/queue", "the queue"), ("/cluster", "the cluster"), ("/queue?q=job-99", "the queue, filtered")):
        cold = browser.person()
        cold.add_init_script(FIRST)
        page = first_view(browser, cold, path, what)
        with Beside(change), Tasks(browser, page) as tasks:
            page.wait_for_timeout(1000 * SECONDS)
        print(f"  {what}, open: {tasks}", flush=True)
        cold.close()
    page = browser.open(context, "/queue")
    page.locator("tr[data-job]").first.wait_for()
    with Tasks(browser, page) as tasks:
        for text in ("user7", "user7 job-9", "nothing", ""):
            page.get_by_role("searchbox").fill(text)
            page.wait_for_timeout(2500)
    print(f"  words typed into the filter: {tasks}")
    context.close()


def used_bytes(session):
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
    return session.send("Runtime.getHeapUsage")["usedSize"]


def events(motley, browser, database):
    job = motley.submit(llama_spec(motley, "long", 30, 16, repeat=8), wait=True)["id"]
    context = browser.person()
    page = browser.open(context, f"/jobs/{job}")
    last = lambda: page.evaluate("Number(document.querySelector('[data-last]')?.dataset.last ?? -1)")  # noqa: E731
    until("the steps are not shown", lambda: last() == 29, 60)
    page.locator(".link.live").wait_for()
    session = context.new_cdp_session(page)
    session.send("HeapProfiler.enable")
    before = used_bytes(session)
    with Tasks(browser, page) as tasks:
        make_steps(database, job, 30, EVENTS)
        until("the events are not all there", lambda: last() == 29 + EVENTS, 600)
    page.wait_for_timeout(2000)
    after = used_bytes(session)
    print(f"{EVENTS} events: {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after a collection, {(after - before) / 1e6:+.1f} MB; {tasks}")
    context.close()


def submits(motley, browser, database):
    api, planner = Api(motley), Api(motley)
    spec = llama_spec(motley, "submitted", 20, 16, repeat=8)
    one = motley.submit({**spec, "hold": True})["id"]
    body = api.ask("GET", f"/v1/jobs/{one}")["spec"]
    cluster = {"nodes": [{"name": f"n{i}", "devices": [{"name": f"n{i}/0", "like": like}]} for i, like in enumerate(("rtx-3090", "t4", "p40", "v100x16", "a100x40", "rtx-3090", "t4", "p40"))]}
    question = {"n": 0}

    def submit():
        question["n"] += 1
        api.ask("POST", "/v1/jobs", {**body, "name": f"s{question['n']}", "hold": True})

    def plan():
        question["n"] += 1
        cluster["nodes"][0]["devices"][0]["speed"] = 1 + question["n"] % 977 / 1000
        for brief in (True, False):
            planner.ask("POST", "/v1/plans", {"spec": body, "cluster": cluster, "brief": brief})

    for what, beside in (("alone", None), ("beside plans of 8 devices", plan), ("alone", None), ("beside plans of 8 devices", plan)):
        with Beside(submit) as sent:
            if beside:
                with Beside(beside) as planned:
                    time.sleep(SUBMITS_SECONDS)
            else:
                time.sleep(SUBMITS_SECONDS)
        ordered = sorted(sent.times)
        print(f"submits {what}: {len(ordered)} in {SUBMITS_SECONDS} s, {1000 * statistics.median(ordered):.1f} ms at the median, {1000 * ordered[int(0.99 * len(ordered))]:.1f} ms at the 99th percentile"
              + (f"; {len(planned.times)} plans, brief and in full, {1000 * statistics.median(planned.times):.0f} ms a pair at the median" if beside else "") + f"; {load()}", flush=True)


def lanes(motley, browser, database):
    job = motley.submit(llama_spec(motley, "lanes", 5, 16), wait=True)["id"]
    context = browser.person(viewport={"width": 1920, "height": 1080})

    answer_dense_lanes(context)
    page = context.new_page()
    with Tasks(browser, page) as tasks:
        page.goto(f"{browser.address}/jobs/{job}/lanes")
        page.locator("main canvas").wait_for(timeout=60000)
        page.wait_for_timeout(3000)
    print(f"  {RANKS} ranks of {INSTRUCTIONS} instructions while they load: {tasks}", flush=True)
    page.locator("main canvas").focus()
    for what, keys in (("moved", ["ArrowRight"] * 5), ("closer", ["+"] * 3), ("moved there", ["ArrowRight"] * 5), ("chosen", ["n"] * 5), ("away", ["-"] * 3 + ["0"])):
        with Tasks(browser, page) as tasks:
            for key in keys:
                page.keyboard.press(key)
                page.wait_for_timeout(150)
            page.wait_for_timeout(2000)
        print(f"  {what}: {tasks}", flush=True)
    with Tasks(browser, page) as tasks:
        for _ in range(10):
            page.mouse.wheel(0, 400)
            page.wait_for_timeout(150)
        page.wait_for_timeout(2000)
    print(f"  scrolled: {tasks}", flush=True)
    context.close()


PARTS = {"many": many, "events": events, "submits": submits, "lanes": lanes}


def main():
    parts = sys.argv[1:] or list(PARTS)
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=SOURCE).stdout.strip()
    print(f"{machine()}; {head}; {load()}")
    for part in parts:
        print(f"\n$ bench/page_scale.py {part}")
        with Motley(two_unlike(), keep_logs=False) as motley, Browser(motley) as browser:
            PARTS[part](motley, browser, Database(motley))


if __name__ == "__main__":
    main()
