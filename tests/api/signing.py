"""An api whose people sign in by a provider (tests/support/provider.py), and as much of a browser as that takes."""
import base64
import contextlib
import json
import ssl
import urllib.parse
import urllib.request

from api import Api, expect
from provider import CLIENT, SECRET, Provider  # a skip without authlib

PROVIDER = Provider()
API = Api(oidc={"issuer": PROVIDER.issuer, "client_id": CLIENT})


@contextlib.contextmanager
def signing():
    """Both run until the end."""
    try:
        with API:
            with open(API.path("secret"), "w", encoding="utf-8") as handle:
                handle.write(SECRET + "\n")
            configure(name="the lab")
            yield
    finally:
        PROVIDER.stop()


class Redirected(Exception):
    pass


class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req, fp, code, msg, headers, newurl):
        raise Redirected(newurl)


class Browser:
    """As much of a browser as the page's sign-in needs: cookies, and requests from the page itself."""

    count = 0

    def __init__(self):
        Browser.count += 1
        self.address = f"127.1.{Browser.count // 250}.{Browser.count % 250 + 1}"  # each has its own number of wrong tokens
        self.cookies = {}
        self.headers = {"X-Motley": "1", "Origin": f"http://{API.address}", "Sec-Fetch-Site": "same-origin"}

    def call(self, method, path, body=None, **headers):
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        answer = API.call(method, path, body, token=None, headers={**self.headers, **({"Cookie": cookie} if cookie else {}), **headers},
                          connection=API.connection(self.address))
        if "set-cookie" in answer.headers:
            name, value = answer.headers["set-cookie"].split(";")[0].split("=", 1)
            self.cookies[name] = value
        return answer

    def begin(self):
        """Presses the page's button: the provider's address."""
        begun = self.call("POST", "/v1/oidc/login", {})
        expect(begun.status == 201, f"{begun.status}: {begun.body}")
        return begun.json["location"]

    def agree(self, sub, location=None):
        """Says to the provider who one is; returns what it gives the page."""
        try:
            form = urllib.parse.urlencode({"sub": sub}).encode()
            urllib.request.build_opener(NoRedirects, urllib.request.HTTPSHandler(context=ssl._create_unverified_context())).open(location or self.begin(), form, timeout=10)
        except Redirected as back:
            where = urllib.parse.urlsplit(str(back))
            expect(where.netloc == API.address and where.path == "/oidc/callback", f"the provider sends the browser to {where}")
            return dict(urllib.parse.parse_qsl(where.query))
        raise AssertionError("the provider did not send the browser back")

    def finish(self, given):
        return self.call("POST", "/v1/oidc/session", {key: given[key] for key in ("code", "state", "iss") if key in given})

    def sign_in(self, sub):
        return self.finish(self.agree(sub))


def encode(part):
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def refused(answer, status, *words):
    """The problem's sentence, which has the words."""
    text = answer.problem["detail"]
    expect(answer.status == status and all(word in text for word in words), f"{answer.status}, not {status} with {words}: {text}")
    return text


def configure(**oidc):
    """Starts the api again with these settings, which forgets what it had of the provider."""
    API.stop()
    API.config["oidc"] = {"issuer": PROVIDER.issuer, "client_id": CLIENT, "client_secret_file": API.path("secret"), "allow_sign_up": True, **oidc}
    API.start()
    PROVIDER.redirect_uris.add(f"http://{API.address}/oidc/callback")
