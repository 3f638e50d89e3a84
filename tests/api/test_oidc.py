#!/usr/bin/env python3
"""People sign in to the page by an OpenID provider, authlib's (tests/support/provider.py) or oidc-provider-mock, both of others' making;
and whatever is wrong with a provider, its keys, its tokens or who asks is refused by name."""
import hmac
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

from api import SLOW, SOURCE, expect, main, wait_for
from signing import API, CLIENT, PROVIDER, Provider, Browser, configure, encode, refused, signing
from provider import jwk, made_key, sign


def the_code_flow_signs_a_person_in():
    PROVIDER.people["1"] = {"preferred_username": "ada", "groups": ["lab"]}
    told = Browser().call("GET", "/v1/oidc").json
    expect(told == {"issuer": PROVIDER.issuer, "name": "the lab"}, f"{told}")
    browser = Browser()
    location = browser.begin()
    query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(location).query))
    expect(query["code_challenge_method"] == "S256" and len(query["code_challenge"]) == 43 and "openid" in query["scope"], location)
    expect(len({query["state"], query["nonce"], *browser.cookies.values()}) == 3, "state, nonce and cookie are no three secrets")
    page = browser.call("GET", "/oidc/callback?code=x&state=y")
    expect(page.status == 200 and "<html" in page.body.decode(), f"no page: {page.status}")
    done = browser.finish(browser.agree("1", location))
    expect(done.status == 201 and done.json["user"] == "ada" and "admin" not in done.json["scopes"], f"{done.status}: {done.body}")
    cookie = done.headers["set-cookie"]
    expect("HttpOnly" in cookie and "SameSite=Strict" in cookie and "token" not in done.json, cookie)
    expect(browser.call("GET", "/v1/whoami").json["name"] == "ada", "whose session it is")
    rows = API.good("GET", "/v1/audit?limit=2")["audit"]
    expect([row["what"] for row in rows] == ["session.open", "user.identity"], f"{rows}")
    expect(rows[1]["after"] == {"issuer": PROVIDER.issuer, "subject": "1", "made": True}, f"{rows[1]}")
    # One person for good: the name at the provider changes, the user here does not.
    PROVIDER.people["1"]["preferred_username"] = "countess"
    expect(Browser().sign_in("1").json["user"] == "ada", "renamed at the provider")
    expect("/userinfo" not in PROVIDER.asked, "the ID token had all, and more was asked")


def below_a_path_the_provider_sends_people_back_there():
    """Where the page is served below a path, a named proxy says so; nobody else's word counts, and no other text than a path."""
    proxy, other = Browser(), Browser()
    API.config["proxies"] = [proxy.address]
    configure(name="the lab")
    proxy.headers["Origin"] = other.headers["Origin"] = f"http://{API.address}"
    for browser, said, path in ((proxy, "/motley", "/motley"), (other, "/motley", ""), (proxy, "/", ""), (proxy, "@evil.example/", ""), (proxy, "/a?b", "")):
        begun = browser.call("POST", "/v1/oidc/login", {}, **{"X-Forwarded-Prefix": said})
        expect(begun.status == 201, f"{said}: {begun.status}: {begun.body}")
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(begun.json["location"]).query))
        expect(query["redirect_uri"] == f"http://{API.address}{path}/oidc/callback", f"{said}: {query}")
    del API.config["proxies"]
    configure(name="the lab")


def claims_may_come_from_userinfo():
    PROVIDER.separate = True
    PROVIDER.people["2"] = {"preferred_username": "bob", "groups": []}
    expect(Browser().sign_in("2").json["user"] == "bob", "a claim of userinfo")
    PROVIDER.answer_with["/userinfo"] = lambda: {"sub": "1", "preferred_username": "ada"}
    refused(Browser().sign_in("2"), 502, "userinfo", "another person", PROVIDER.issuer)
    PROVIDER.answer_with, PROVIDER.separate = {}, False


def a_sign_in_is_bound_to_its_browser():
    browser, other = Browser(), Browser()
    given = browser.agree("1")
    other.begin()
    refused(other.finish(given), 403, "state", "not begun in this browser")
    refused(Browser().finish(given), 403, "state")
    refused(browser.finish({**given, "state": "0" * 64}), 403, "state")
    refused(browser.finish({**given, "iss": "https://evil.example"}), 403, "evil.example", PROVIDER.issuer)
    # The code of another's sign-in, with a state of one's own: the provider compares PKCE's verifier.
    own = other.agree("2")
    refused(other.finish({**own, "code": given["code"]}), 403, PROVIDER.issuer, "invalid_grant")
    expect(browser.finish(given).status in (201, 403), "the code is the provider's to refuse now")
    done = other.finish(own)
    expect(done.status == 201 and done.json["user"] == "bob", f"{done.status}: {done.body}")
    refused(other.finish(own), 403, PROVIDER.issuer, "invalid_")  # a code is good once
    for wrong in {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}:
        for path, body in ("/v1/oidc/login", {}), ("/v1/oidc/session", own):
            refused(browser.call("POST", path, body, **wrong), 403, list(wrong)[0])
    for body in {}, {"code": "x"}, {"code": "x", "state": "y", "next": "https://evil.example"}, {"code": 1, "state": "y"}:
        refused(browser.call("POST", "/v1/oidc/session", body), 422, "")


def tokens_that_are_wrong_are_refused_by_name():
    now = int(time.time())
    foreign = made_key("RS256", "one")

    def body(**changes):
        return lambda header, claims, key: sign(key, header, {**claims, **changes})

    def without(name):
        return lambda header, claims, key: sign(key, header, {key: value for key, value in claims.items() if key != name})

    def unsigned(header, claims, key):
        return f"{encode({'alg': 'none'})}.{encode(claims)}."

    def shared_secret(header, claims, key):
        """Signed by HMAC with the public key as the secret, which a library once took for the RSA key's work."""
        text = ".".join(encode({**header, "alg": "HS256"} if part is header else part) for part in (header, claims))
        return text + "." + encode(hmac.new(key.as_pem(private=False), text.encode(), "sha256").digest())

    def changed(header, claims, key):
        first, _, last = sign(key, header, claims).split(".")
        return ".".join((first, encode({**claims, "sub": "2"}), last))

    faults = {
        "iss": (body(iss="https://evil.example"), "iss", "evil.example"), "aud": (body(aud="other"), "aud", CLIENT),
        "aud of two": (body(aud=[CLIENT, "other"], azp="other"), "azp"), "no aud": (without("aud"), "aud"),
        "expired": (body(exp=now - 61), "exp", "expired"), "no exp": (without("exp"), "exp"), "exp as text": (body(exp=str(now + 60)), "exp"),
        "not yet": (body(nbf=now + 600), "nbf"), "from the future": (body(iat=now + 600), "iat"), "nonce": (body(nonce="0" * 64), "nonce"),
        "no nonce": (without("nonce"), "nonce"), "no sub": (without("sub"), "sub"), "long sub": (body(sub="x" * 256), "sub"),
        "none": (unsigned, "none", "RS256"), "HS256": (shared_secret, "HS256", "RS256"), "changed": (changed, "not signed by"),
        "foreign": (lambda header, claims, key: sign(foreign, header, claims), "not signed by", "one"),
        "unknown key": (lambda header, claims, key: sign(key, {**header, "kid": "two"}, claims), "none \"two\""),
        "no kid, other type": (lambda header, claims, key: sign(made_key("ES256", "e"), {"alg": "ES256"}, claims), "ES256"),
        "crit": (lambda header, claims, key: f"{encode({**header, 'crit': ['x']})}.{encode(claims)}.AA", "critical"),
        "no token": (lambda header, claims, key: "", "no ID token"), "no parts": (lambda header, claims, key: "abc", "three parts"),
        "large": (lambda header, claims, key: "a." + "b" * 70000 + ".c", "three parts"),
        "no base64": (lambda header, claims, key: "!!.e30.AA", "header"),
    }
    for name, (spoil, *words) in faults.items():
        PROVIDER.spoil = spoil
        answer = Browser().sign_in("1")
        PROVIDER.spoil = None
        refused(answer, 502 if name == "no token" else 403, PROVIDER.issuer, *words)
    # Within a minute clocks may differ, and one of several audiences may be this one.
    for good in body(exp=now - 30), body(nbf=now + 30, iat=now + 30), body(aud=["other", CLIENT], azp=CLIENT), \
            lambda header, claims, key: sign(key, {"alg": "RS256"}, claims):
        PROVIDER.spoil = good
        done = Browser().sign_in("1")
        expect(done.status == 201, f"{done.status}: {done.body}")
    PROVIDER.spoil = None
    return f"{len(faults)} faults"


def algorithms_and_new_keys_are_followed():
    algs = ("RS384", "RS512", "PS256", "ES256", "ES384", "RS256")
    PROVIDER.keys = [made_key(alg, alg) for alg in algs]
    before = PROVIDER.asked.count("/keys")
    for alg in algs:
        PROVIDER.alg = alg
        wait_for(lambda: Browser().sign_in("1").status == 201, f"signed by {alg}", 15)
    expect(PROVIDER.asked.count("/keys") == before + 1, f"{PROVIDER.asked.count('/keys') - before} times")
    # A key that nobody has costs the provider one request a second, however often it is shown.
    PROVIDER.spoil = lambda header, claims, key: sign(key, {**header, "kid": "nobody's"}, claims)
    before = PROVIDER.asked.count("/keys")
    for _ in range(4):
        Browser().sign_in("1")
    expect(PROVIDER.asked.count("/keys") - before <= 1, f"{PROVIDER.asked.count('/keys') - before} times")
    PROVIDER.spoil = None
    # A weak key is none.
    weak = jwk.RSAKey.generate_key(1024, {"kid": "weak"})
    PROVIDER.keys = [weak]
    configure(name="the lab")
    refused(Browser().sign_in("1"), 403, "2048")
    PROVIDER.rotate("one")


def users_are_made_and_taken_over_by_the_rules_alone():
    API.good("POST", "/v1/tokens", {"user": "carol"})
    PROVIDER.people.update({"3": {"preferred_username": "carol"}, "4": {"preferred_username": "dan"}, "5": {"preferred_username": "ada"},
                            "6": {"preferred_username": "a b"}, "7": {}, "8": {"preferred_username": ["x"]}})
    configure(allow_sign_up=False)
    refused(Browser().sign_in("4"), 403, "no user dan", "allow_sign_up")
    refused(Browser().sign_in("3"), 403, "a user carol", "account_linking")
    expect(Browser().sign_in("1").json["user"] == "ada", "who was here before")
    refused(Browser().sign_in("6"), 403, "a b", "no name")
    for nameless in "7", "8":
        refused(Browser().sign_in(nameless), 403, "no name")
    configure(account_linking="auto")
    expect(Browser().sign_in("3").json["user"] == "carol", "an administrator's word")
    refused(Browser().sign_in("5"), 403, "ada", "another person")  # never two of one provider
    # A provider made anew calls them something else: an administrator says so.
    API.good("PATCH", "/v1/users/ada", {"identity": None})
    API.refused(422, "PATCH", "/v1/users/ada", {"identity": "5"}, "identity")
    expect(Browser().sign_in("5").json["user"] == "ada", "her new identity")
    PROVIDER.people["1"]["preferred_username"] = "ada"
    refused(Browser().sign_in("1"), 403, "ada", "another person")
    API.good("PATCH", "/v1/users/ada", {"identity": None})
    expect(Browser().sign_in("1").json["user"] == "ada", "and back")
    configure(user_claim="email")
    PROVIDER.people["9"] = {"email": "dan@lab.example", "email_verified": False}
    refused(Browser().sign_in("9"), 403, "verified")
    PROVIDER.people["9"]["email_verified"] = True
    expect(Browser().sign_in("9").json["user"] == "dan@lab.example", "an address as a name")
    configure(name="the lab")
    API.good("PATCH", "/v1/users/carol", {"disabled": True})
    refused(Browser().sign_in("3"), 403, "disabled")
    API.good("PATCH", "/v1/users/carol", {"disabled": False})


def groups_let_in_and_make_administrators_and_members():
    for name, members in ("lab", []), ("vision", ["carol"]), ("speech", ["carol"]):
        API.good("POST", "/v1/groups", {"name": name, "members": members})
    configure(allowed_groups=["lab", "vision"], admin_group="root", groups_claim="roles", manage_groups=True)
    PROVIDER.people["3"] = {"preferred_username": "carol", "roles": ["speech"]}
    refused(Browser().sign_in("3"), 403, "none of the groups", "allowed_groups")
    PROVIDER.people["3"]["roles"] = ["lab", "elsewhere", 7]
    expect("admin" not in Browser().sign_in("3").json["scopes"], "an administrator")
    groups = {group["name"]: group["members"] for group in API.good("GET", "/v1/groups")["groups"]}
    expect(groups == {"lab": ["carol"], "vision": [], "speech": []}, f"{groups}")
    PROVIDER.people["3"]["roles"] = ["root"]
    browser = Browser()
    expect("admin" in browser.sign_in("3").json["scopes"] and browser.call("GET", "/v1/users").status == 200, "no administrator")
    configure(allowed_groups=["lab"], groups_claim="roles")
    PROVIDER.people["3"]["roles"] = "lab"
    expect(Browser().sign_in("3").json["user"] == "carol", "one group as a text")


def a_provider_that_fails_costs_sign_ins_alone():
    configure(name="the lab")
    expect(Browser().sign_in("1").status == 201, "before")

    def asks(status, *words, way="login"):
        begun = time.monotonic()
        if way == "login":
            answer = Browser().call("POST", "/v1/oidc/login", {})
        else:
            browser = Browser()
            answer = browser.finish(browser.agree("1"))
        text = refused(answer, status, PROVIDER.issuer, *words)
        expect(time.monotonic() - begun < 15 * SLOW, f"{time.monotonic() - begun:.1f} s")
        return text
    document = "/.well-known/openid-configuration"
    for what, answer, words in (("a huge document", lambda: (b" " * (300 << 10), 200), ()), ("no JSON", lambda: ("<html>", 200), ()),
                                ("a list", lambda: ("[]", 200), ("JSON object",)), ("not found", lambda: ("", 404), ("404",)),
                                ("a redirect", lambda: ("", 302, {"Location": "http://127.0.0.1:1/"}), ("302",)),
                                ("a broken one", lambda: ("", 500), ("500",)), ("another's", lambda: {"issuer": "https://evil.example"}, ("evil.example",)),
                                ("deep", lambda: ('{"issuer":' + "[" * 100 + "]" * 100 + "}", 200), ())):
        configure(name="the lab")
        PROVIDER.answer_with = {document: answer}
        asks(502, *words)
    PROVIDER.answer_with = {}
    PROVIDER.document = {"token_endpoint": "http://192.0.2.1/token"}  # the secret would leave this machine in clear
    configure(name="the lab")
    asks(502, "https://", way="session")
    PROVIDER.document = {"authorization_endpoint": "javascript:alert(1)"}
    configure(name="the lab")
    asks(502)
    PROVIDER.document = {}
    configure(client_secret_file=API.path("missing"))
    text = refused(Browser().sign_in("1"), 500, "client_secret_file", PROVIDER.issuer)
    expect(API.base not in text, f"a path of the server: {text}")
    # One that answers nothing: meanwhile the loop goes on, and tokens are good.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        PROVIDER.issuer, honest = f"http://127.0.0.1:{silent.getsockname()[1]}", PROVIDER.issuer
        configure(name="the lab")
        waited = []
        waiters = [threading.Thread(target=lambda: waited.append(asks(503))) for _ in range(4)]
        for waiter in waiters:
            waiter.start()
        held, _ = silent.accept()
        for _ in range(20):
            begun = time.monotonic()
            expect(API.call("GET", "/v1/whoami").status == 200 and API.call("GET", "/readyz").status == 200, "others wait, too")
            expect(time.monotonic() - begun < SLOW, f"{time.monotonic() - begun:.2f} s for others")
        for waiter in waiters:
            waiter.join(30)
        expect(len(waited) == len(waiters), f"{len(waited)} of {len(waiters)} were told within the time for one")
        configure(name="the lab")  # again: this one is asked when the server is to end
        waiter = threading.Thread(target=Browser().call, args=("POST", "/v1/oidc/login", {}))
        waiter.start()
        held = held, silent.accept()[0]
        begun = time.monotonic()
        API.stop()
        expect(time.monotonic() - begun < 4 * SLOW, f"its end takes {time.monotonic() - begun:.1f} s")
        waiter.join(30)
        API.start()
    asks(503)  # nothing listens there now
    expect(API.call("GET", "/readyz").status == 200, "not ready")
    PROVIDER.issuer = honest
    configure(name="the lab")
    expect(Browser().sign_in("1").status == 201, "afterwards")


def its_certificate_is_checked():
    files = API.path("sso.crt"), API.path("sso.key")
    done = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=sso",
                           "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", files[1], "-out", files[0]], capture_output=True, text=True, check=False)
    expect(done.returncode == 0, done.stderr)
    tls = Provider(tls=files)
    tls.people["1"] = {"preferred_username": "tess"}
    try:
        configure(issuer=tls.issuer)
        refused(Browser().call("POST", "/v1/oidc/login", {}), 502, tls.issuer, "not who it says")
        configure(issuer=tls.issuer, ca=files[0])
        tls.redirect_uris = PROVIDER.redirect_uris
        tls.auth_method = "client_secret_post"
        expect(Browser().sign_in("1").json["user"] == "tess", "by its CA")
        configure(issuer=tls.issuer, ca=API.path("missing"))
        text = refused(Browser().call("POST", "/v1/oidc/login", {}), 500, "oidc.ca")
        expect(API.base not in text, f"a path of the server: {text}")
    finally:
        tls.stop()


def without_a_provider_nothing_is_offered():
    API.stop()
    del API.config["oidc"]
    API.start()
    expect(Browser().call("GET", "/v1/oidc").json == {"issuer": None, "name": None}, "one is offered")
    refused(Browser().call("POST", "/v1/oidc/login", {}), 404, "oidc in the server's configuration")
    API.stop()
    for issuer in "http://lab.example", "lab.example", "https://lab.example/?x=1", "https://user@lab.example":
        API.config["oidc"] = {"issuer": issuer, "client_id": "x"}
        done = subprocess.run(API.command(), capture_output=True, text=True, timeout=20, check=False)
        expect(done.returncode != 0 and "oidc.issuer" in done.stderr, f"{issuer}: {done.stderr}")


with signing():
    main(the_code_flow_signs_a_person_in, below_a_path_the_provider_sends_people_back_there, claims_may_come_from_userinfo, a_sign_in_is_bound_to_its_browser,
         tokens_that_are_wrong_are_refused_by_name, algorithms_and_new_keys_are_followed, users_are_made_and_taken_over_by_the_rules_alone,
         groups_let_in_and_make_administrators_and_members, a_provider_that_fails_costs_sign_ins_alone, its_certificate_is_checked, without_a_provider_nothing_is_offered)
