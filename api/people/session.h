/* Sessions of the page in the browser: a cookie that holds a token.
 *
 * A session's token is made of the token or the one-time code that a person shows (store/users.h), so rights,
 * audit and revocation are those of tokens. The cookie is HttpOnly and SameSite=Strict. Over TLS it is Secure
 * and bound to this host; on loopback its name contains the port, because a browser does not tell ports
 * apart.
 *
 * A browser sends a cookie also with requests that another site, or a server on another port of this machine,
 * makes it send. So a request that is authenticated by a cookie is refused if the browser says that it comes
 * from another site (Sec-Fetch-Site). Every method that changes something must also have the header X-Motley,
 * which no form can send, and an Origin that is this server's. A server without TLS also refuses host names
 * that are not loopback ones: if a stranger's name points to 127.0.0.1, the browser takes the stranger's page
 * for one of the same origin.
 */
#ifndef MOTLEY_API_PEOPLE_SESSION_H
#define MOTLEY_API_PEOPLE_SESSION_H

#include "api/request/app.h"

enum { SESSION_TOKEN_BYTES = 65, SESSION_COOKIE_BYTES = sizeof(((struct call *)0)->session_end) };

/* Cookies of this server, by what they are for. */
#define COOKIE_SESSION ""
#define COOKIE_OIDC "-oidc" /* a sign-in that has gone to the OpenID provider (api/people/oidc.c) */

/* Copies the value of the request's cookie. Returns false when there is none. */
bool session_cookie_get(const struct call *call, const char *what, char value[SESSION_TOKEN_BYTES]);

/* Checks that a request with a session comes from the page itself. `changes`: the request changes something,
 * so it must have the header and the Origin, too. Returns -1 with ERR_DENIED. */
int session_guard(const struct call *call, bool changes, struct err *err);

/* Checks that the Host by which a client calls a server without TLS is a loopback name. Returns -1 with
 * ERR_DENIED. */
int session_host(const struct call *call, struct err *err);

/* Returns the name of the user who signed in to the reverse proxy that sent the request, as that one says
 * (proxy_user of the configuration); NULL: none. Borrowed from the request. */
const char *session_proxy_user(const struct call *call);

/* Writes the Set-Cookie value that keeps this value for the given number of seconds; 0 removes the cookie. */
void session_cookie(const struct call *call, const char *what, const char *value, int64_t seconds,
                    char text[SESSION_COOKIE_BYTES]);

/* Signs the identity's user in and answers: 201 with a session's cookie, or with a token for programs where
 * `who` says so. who->seconds of 0 are a session's. */
void session_sign_in(struct call *call, struct store_signed_in *who);

#endif
