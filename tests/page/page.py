"""Drives the page in Debian's Chromium through Playwright, against a live Motley. What every page test stands on.

Playwright and axe-core are no Debian packages: tools/pypi_packages.sh puts them into .cache/page; without them, or without Chromium, the tests
are skipped and say so."""
import contextlib
import functools
import json
import os
import shutil
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from motley import SLOW, SOURCE, Failed, expect, skip  # noqa: E402

sys.path.insert(0, os.path.join(SOURCE, ".cache", "page"))
# The shell draws pages as Chromium does and has no windows of its own to draw, which take as much CPU time as the page.
CHROMIUM = os.environ.get("MOTLEY_CHROMIUM") or shutil.which("chromium-headless-shell") or shutil.which("chromium")
try:
    from playwright.sync_api import Error, sync_playwright
except ImportError:
    skip("Playwright is not there: tools/pypi_packages.sh page fetches it")
if not CHROMIUM:
    skip("Chromium is not installed: tools/packages.sh test installs it")

SOON = 15000 * SLOW  # milliseconds, ten times what the page takes
# Whatever the page's policy refuses is kept, and so is a dialog: hostile texts must cause neither.
WATCH = """
window.refused = [];
document.addEventListener('securitypolicyviolation', (event) => window.refused.push(event.violatedDirective + ' ' + event.blockedURI + ' ' + event.sample));
window.longTasks = [];
new PerformanceObserver((list) => { for (const entry of list.getEntries()) window.longTasks.push(entry.duration); }).observe({entryTypes: ['longtask']});
"""


class Browser:
    """One Chromium, and contexts (people's browsers) in it. Errors of scripts, dialogs and refusals of the policy fail the test."""

    def __init__(self, motley):
        self.motley = motley
        with open(os.path.join(motley.home, "client.json"), encoding="utf-8") as handle:
            self.client = json.load(handle)
        self.address = self.client["address"]
        self.faults = []

    def __enter__(self):
        self.playwright = sync_playwright().start()
        self.chromium = self.playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        return self

    def __exit__(self, *_):
        with contextlib.suppress(Error):
            self.chromium.close()
        self.playwright.stop()

    def person(self, token=None, signed_in=True, **options):
        """A browser of its own; signed in by pasting a token unless told otherwise."""
        context = self.chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(SOON)
        context.add_init_script(WATCH)
        context.on("page", self.watch)
        if signed_in:
            page = context.new_page()
            page.goto(self.address + "/me")
            page.get_by_label("Or paste a token").fill(token or self.client["token"])
            page.keyboard.press("Enter")
            page.get_by_role("button", name="Sign out").wait_for()
            page.close()
        return context

    def watch(self, page):
        page.on("pageerror", lambda error: self.faults.append(f"{page.url}: {error}"))
        page.on("dialog", lambda dialog: (self.faults.append(f"{page.url}: a dialog: {dialog.message}"), dialog.dismiss()))
        page.on("console", lambda message: message.type == "error" and "Content Security" in message.text and self.faults.append(f"{page.url}: {message.text}"))

    def no_faults(self):
        faults, self.faults = self.faults, []
        expect(not faults, f"the page had faults: {faults[:5]}")

    def open(self, context, path, heading=True):
        page = context.new_page()
        page.goto(self.address + path)
        if heading:
            page.locator("main h1").first.wait_for()
        return page


def until(what, question, timeout=15):
    """Asks until the answer is true; the last one is returned."""
    deadline = time.monotonic() + timeout * SLOW
    while True:
        answer = question()
        if answer:
            return answer
        expect(time.monotonic() < deadline, what() if callable(what) else what)
        time.sleep(0.05)


def in_browser(claim, browser):
    """The claim, with what Playwright says as its failure, and the page's own faults counted."""
    @functools.wraps(claim)
    def run():
        try:
            detail = claim()
        except Error as error:
            raise Failed(f"{str(error)[:700]}; faults: {browser.faults[:3]}") from None
        browser.no_faults()
        return detail
    return run


def no_refusals(page):
    refused = page.evaluate("window.refused")
    expect(not refused, f"{page.url}: the policy refused {refused}")


__all__ = ["Browser", "Failed", "in_browser", "no_refusals", "until"]
