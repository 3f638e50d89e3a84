"""An OpenID provider on loopback, of authlib's parts: the authorization code flow with PKCE (required), OpenID Connect's ID tokens, and
the device flow. Ours are only its memory, the page where a person says who they are, and the faults that a test asks for.

authlib lies in .cache/api (tools/pypi_packages.sh api); without it the test is skipped."""
import base64
import json
import logging
import os
import sys
import threading
import time
import warnings

from claims import SOURCE, skip

sys.path.insert(0, os.path.join(SOURCE, ".cache", "api"))
os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
warnings.simplefilter("ignore")
try:
    import flask
    import werkzeug.serving
    from authlib.integrations.flask_oauth2 import AuthorizationServer
    from authlib.oauth2.rfc6749 import AuthorizationCodeMixin, ClientMixin, grants
    from authlib.oauth2.rfc7636 import CodeChallenge
    from authlib.oauth2.rfc8628 import DeviceAuthorizationEndpoint, DeviceCodeGrant, DeviceCredentialDict
    from authlib.oidc.core import OpenIDCode
    from joserfc import jwk, jws
except ImportError as missing:
    skip(f"{missing.name} is not in .cache/api: tools/pypi_packages.sh api fetches it")
logging.getLogger("werkzeug").setLevel(logging.ERROR)
CLIENT, SECRET = "motley", "se:cret/ü+1"
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"


class Client(ClientMixin):
    def __init__(self, provider):
        self.provider = provider

    def get_client_id(self):
        return CLIENT

    def get_default_redirect_uri(self):
        return None

    def get_allowed_scope(self, scope):
        return scope

    def check_redirect_uri(self, redirect_uri):
        return redirect_uri in self.provider.redirect_uris

    def check_client_secret(self, client_secret):
        return client_secret == SECRET

    def check_endpoint_auth_method(self, method, endpoint):
        return method == self.provider.auth_method

    def check_response_type(self, response_type):
        return response_type == "code"

    def check_grant_type(self, grant_type):
        return grant_type in ("authorization_code", DEVICE)


class Code(dict, AuthorizationCodeMixin):
    def __getattr__(self, name):
        return self.get(name)

    def get_redirect_uri(self):
        return self["redirect_uri"]

    def get_scope(self):
        return self["scope"]

    def get_nonce(self):
        return self["nonce"]

    def get_auth_time(self):
        return int(time.time())

    def get_acr(self):
        return None

    def get_amr(self):
        return None


def made_key(alg, kid):
    return jwk.RSAKey.generate_key(2048, {"kid": kid, "use": "sig"}) if alg[0] in "RP" else \
        jwk.ECKey.generate_key({"ES256": "P-256", "ES384": "P-384"}[alg], {"kid": kid, "use": "sig"})


def sign(key, header, claims):
    return jws.serialize_compact(header, json.dumps(claims).encode(), key, [header["alg"]])


def decode(part):
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


class Provider:
    """`people`: {sub: claims}. `spoil(header, claims, key)`: another ID token instead of the honest one, or None. `document`: changes of
    the discovery document. `asked`: the paths of all requests. tls: files of a certificate and its key."""

    def __init__(self, tls=None, alg="RS256"):
        self.people, self.codes, self.devices, self.answers = {}, {}, {}, {}
        self.redirect_uris, self.asked, self.document = set(), [], {}
        self.auth_method, self.spoil, self.answer_with, self.slow_downs, self.separate = "client_secret_basic", None, {}, 0, False
        self.alg, self.keys, self.tokens = alg, [made_key(alg, "one")], {}
        self.server = werkzeug.serving.make_server("127.0.0.1", 0, self.app(), threaded=True, ssl_context=tls)
        self.port = self.server.server_port
        self.issuer = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)

    @property
    def key(self):
        """The one that signs: the algorithm's own, else the first."""
        return next((key for key in self.keys if key.kid == self.alg), self.keys[0])

    def rotate(self, kid):
        self.keys = [made_key(self.alg, kid)]

    def claims_of(self, sub):
        return {"sub": sub, **self.people[sub]}

    def id_token(self, honest):
        if not self.spoil:
            return honest
        header, claims = (decode(part) for part in honest.split(".")[:2])
        return self.spoil(header, claims, self.key)

    def app(self):
        app, provider = flask.Flask("provider"), self
        server = AuthorizationServer(app, query_client=lambda ident: Client(provider) if ident == CLIENT else None,
                                     save_token=lambda token, request: provider.tokens.__setitem__(token["access_token"], request.user))
        register(server, provider)

        @app.before_request
        def note():
            provider.asked.append(flask.request.path)
            if flask.request.path in provider.answer_with:
                return provider.answer_with[flask.request.path]()

        @app.get("/.well-known/openid-configuration")
        def configuration():
            issuer = provider.issuer
            return {"issuer": issuer, "authorization_endpoint": issuer + "/authorize", "token_endpoint": issuer + "/token",
                    "jwks_uri": issuer + "/keys", "device_authorization_endpoint": issuer + "/device_authorization",
                    "userinfo_endpoint": issuer + "/userinfo", "response_types_supported": ["code"], "subject_types_supported": ["public"],
                    "id_token_signing_alg_values_supported": [provider.alg],
                    "token_endpoint_auth_methods_supported": [provider.auth_method], **provider.document}

        @app.get("/keys")
        def keys():
            return {"keys": [key.as_dict(private=False) for key in provider.keys]}

        @app.route("/authorize", methods=["GET", "POST"])
        def authorize():
            grant = server.get_consent_grant(end_user=None)
            if flask.request.method == "GET":
                return "<form method=post><input name=sub aria-label='Who are you'><button>Yes</button></form>"
            return server.create_authorization_response(grant_user=flask.request.form["sub"], grant=grant)

        @app.route("/device", methods=["GET", "POST"])
        def device():
            if flask.request.method == "POST":
                provider.answers[flask.request.form["user_code"]] = (flask.request.form["sub"], flask.request.form["answer"] == "yes")
            return "Done"

        @app.post("/token")
        def token():
            return server.create_token_response()

        @app.post("/device_authorization")
        def device_authorization():
            return server.create_endpoint_response("device_authorization")

        @app.get("/userinfo")
        def userinfo():
            sub = provider.tokens.get(flask.request.headers.get("Authorization", "").removeprefix("Bearer "))
            return provider.claims_of(sub) if sub else ("", 401)
        return app


def register(server, provider):
    class CodeGrant(grants.AuthorizationCodeGrant):
        TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic", "client_secret_post", "none"]

        def save_authorization_code(self, code, request):
            data = request.payload.data
            provider.codes[code] = Code(code=code, redirect_uri=request.payload.redirect_uri, scope=request.payload.scope, nonce=data.get("nonce"),
                                        sub=request.user, code_challenge=data.get("code_challenge"),
                                        code_challenge_method=data.get("code_challenge_method"))

        def query_authorization_code(self, code, client):
            return provider.codes.get(code)

        def delete_authorization_code(self, authorization_code):
            del provider.codes[authorization_code["code"]]

        def authenticate_user(self, authorization_code):
            return authorization_code["sub"]

    class Tokens(OpenIDCode):
        def get_jwt_config(self, *_):
            return {"key": provider.key, "alg": provider.alg, "iss": provider.issuer, "kid": provider.key.kid, "exp": 300}

        def get_client_claims(self, client):
            return {"iss": provider.issuer, "aud": [client.get_client_id()]}

        def exists_nonce(self, nonce, request):
            return any(code.nonce == nonce for code in provider.codes.values())

        def generate_user_info(self, user, scope):
            return {"sub": user} if provider.separate else provider.claims_of(user)

        def encode_id_token(self, token, request):
            return provider.id_token(super().encode_id_token(token, request))

    class Devices(DeviceAuthorizationEndpoint):
        INTERVAL = 1

        def get_verification_uri(self):
            return provider.issuer + "/device"

        def save_device_credential(self, client_id, scope, data):
            provider.devices[data["device_code"]] = DeviceCredentialDict(data, client_id=client_id, scope=scope,
                                                                         expires_at=time.time() + data["expires_in"])

    class DeviceGrant(DeviceCodeGrant):
        def query_device_credential(self, device_code):
            return provider.devices.get(device_code)

        def query_user_grant(self, user_code):
            return provider.answers.get(user_code)

        def should_slow_down(self, credential):
            provider.slow_downs -= 1
            return provider.slow_downs >= 0

    server.register_grant(CodeGrant, [Tokens(require_nonce=True), CodeChallenge(required=True)])
    server.register_grant(DeviceGrant, [lambda grant: grant.register_hook("after_create_token_response", Tokens().process_token)])
    server.register_endpoint(Devices)
