#!/usr/bin/env python3
"""The page with 10,000 jobs and 500 devices of a live service: first views, words in the filter, and what tasks cost while
jobs change. bench/page_scale.py measures the same for longer."""
import os

from many import Database, Tasks, make_devices, make_jobs
from page import Browser, in_browser, until
from motley import Motley, expect, main, skip, two_unlike

JOBS = 10000
TASK_MS = 200  # of CPU: twice what is asked for, because a machine that does other things has cold caches
VIEW_BYTES = 150_000
SIZES = "performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation')).reduce((sum, e) => sum + e.encodedBodySize, 0)"


def view(path, first):
    """A first view in a new browser: its page, and its bytes with what the api answered."""
    page = browser.open(browser.person(), path)
    page.locator(first).first.wait_for()
    page.wait_for_timeout(500)
    size = page.evaluate(SIZES)
    expect(0 < size <= VIEW_BYTES, f"{path}: the first view takes {size} bytes")
    return page, size


def the_queue_of_ten_thousand_is_small_and_its_tasks_are_short():
    page, size = view("/queue", "tr[data-job]")
    page.get_by_role("heading", level=1).get_by_text("10000 wait").wait_for()
    with Tasks(browser, page) as tasks:
        for verb in ("release", "hold", "release", "hold"):
            motley.run(verb, str(one))
            page.wait_for_timeout(500)
        page.wait_for_timeout(2000)
    expect(max(tasks.cpu) <= TASK_MS, str(tasks))
    page.context.close()
    return f"{size} bytes; {tasks}"


def a_filter_finds_among_all_and_clearing_it_shows_a_page():
    page, _ = view("/queue", "tr[data-job]")
    box = page.get_by_role("searchbox")
    with Tasks(browser, page) as tasks:
        box.fill("user7 job-99")
        until("they are not found", lambda: page.get_by_text("2 jobs", exact=True).count() == 1, 90)
        box.fill("user7")
        until("the others are not found", lambda: page.get_by_text("200 jobs", exact=True).count() == 1, 90)
        box.fill("")
        until("no page is shown", lambda: page.locator("tr[data-job]").count() == 50 and page.get_by_role("button", name="Next").is_enabled(), 90)
        page.wait_for_timeout(2500)
    expect(page.locator("tr[data-job]").count() == 50, "more than a page is shown")
    expect(max(tasks.cpu) <= TASK_MS, str(tasks))
    page.context.close()
    return str(tasks)


def five_hundred_devices_come_a_few_at_a_time():
    page, size = view("/cluster", ".tile")
    with Tasks(browser, page) as tasks:
        until("not all tiles are there", lambda: page.locator(".tile").count() == devices + 2, 90)
        page.wait_for_timeout(3000)
        table = page.get_by_role("region", name="Devices").first
        expect(table.locator("tbody tr").count() == 50, f"{table.locator('tbody tr').count()} rows")
        page.get_by_role("button", name="Next").click()
        table.get_by_text("n13/cuda0", exact=True).or_(table.get_by_text("n15/cuda7", exact=True)).first.wait_for()
    expect(max(tasks.cpu) <= TASK_MS, str(tasks))
    page.goto(browser.address + "/cluster?device=n61%2Fcuda7")
    page.locator("tr.mine").get_by_text("n61/cuda7").wait_for()
    page.context.close()
    return f"{size} bytes; {tasks}"


if "MOTLEY_PAGE" not in os.environ:
    skip("10,000 jobs take minutes: make test-page")
with Motley(two_unlike()) as motley, Browser(motley) as browser:
    database = Database(motley)
    one = make_jobs(motley, database, JOBS)
    devices = make_devices(database)
    main(*(in_browser(claim, browser) for claim in (the_queue_of_ten_thousand_is_small_and_its_tasks_are_short, a_filter_finds_among_all_and_clearing_it_shows_a_page,
                                                    five_hundred_devices_come_a_few_at_a_time)))
