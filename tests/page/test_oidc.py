#!/usr/bin/env python3
"""A person signs in to the page by an OpenID provider of another site, in a real browser: where they were before, and with a sentence
where that fails."""
import json
import os
import re
import sys

from page import SOURCE, Browser, in_browser, no_refusals

sys.path.insert(0, os.path.join(SOURCE, "tests", "api"))
from api import Api, expect, main  # noqa: E402
from provider import CLIENT, Provider  # noqa: E402


class Home:
    """What Browser reads of a service's home."""

    def __init__(self, api):
        self.home = api.base
        with open(api.path("client.json"), "w", encoding="utf-8") as handle:
            json.dump({"address": f"http://{api.address}", "token": api.token}, handle)


def at_the_provider(path):
    """A page that has been sent to the provider by the button."""
    page = browser.person(signed_in=False).new_page()
    page.goto(browser.address + path)
    page.get_by_role("button", name="Sign in with the lab").click()
    page.get_by_label("Who are you").wait_for()
    expect(page.url.startswith(PROVIDER.issuer), page.url)
    return page


def the_button_leads_to_the_provider_and_back_to_where_one_was():
    page = at_the_provider("/me?x=1")
    page.get_by_label("Who are you").fill("1")
    page.get_by_role("button", name="Yes").click()
    page.get_by_role("button", name="Sign out").wait_for()
    page.get_by_text("ada").first.wait_for()
    expect(page.url == browser.address + "/me?x=1" and "code" not in page.evaluate("document.cookie"), page.url)
    no_refusals(page)
    page.reload()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("button", name="Sign in with the lab").wait_for()
    page.context.close()


def who_says_no_there_or_comes_from_elsewhere_is_told_so():
    page = browser.person(signed_in=False).new_page()
    page.goto(browser.address + "/oidc/callback?error=access_denied&error_description=Call+555-0100")
    page.get_by_role("alert").get_by_text("access_denied").wait_for()
    expect("555" not in page.locator("main").inner_text() and "callback" not in page.url, "a stranger's sentence is on the page")
    page.goto(browser.address + "/oidc/callback?code=x&state=y")
    page.get_by_role("alert").get_by_text(re.compile("not begun in this browser")).wait_for()
    page.context.close()


def a_provider_that_is_away_is_named_and_a_token_still_signs_in():
    page = browser.person(signed_in=False).new_page()
    page.goto(browser.address + "/queue")
    page.get_by_role("button", name="Sign in with the lab").wait_for()
    PROVIDER.stop()
    API.stop()  # it forgets the provider's document
    API.config["listen"] = API.address
    API.start()
    page.get_by_role("button", name="Sign in with the lab").click()
    page.get_by_role("alert").get_by_text(PROVIDER.issuer).wait_for()
    page.get_by_label("Or paste a token").fill(API.token)
    page.keyboard.press("Enter")
    page.get_by_role("table").or_(page.get_by_text("No job")).first.wait_for()
    page.context.close()


PROVIDER = Provider()
PROVIDER.issuer = f"http://localhost:{PROVIDER.port}"  # another site than 127.0.0.1
PROVIDER.auth_method = "none"
PROVIDER.people["1"] = {"preferred_username": "ada"}
with Api(oidc={"issuer": PROVIDER.issuer, "client_id": CLIENT, "name": "the lab", "allow_sign_up": True}) as API, Browser(Home(API)) as browser:
    PROVIDER.redirect_uris.add(f"http://{API.address}/oidc/callback")
    main(*(in_browser(claim, browser) for claim in (
        the_button_leads_to_the_provider_and_back_to_where_one_was, who_says_no_there_or_comes_from_elsewhere_is_told_so,
        a_provider_that_is_away_is_named_and_a_token_still_signs_in)))
