/* Sessions of the page: a cookie that holds a token.
 *
 * A session's token is made of the token or the one-time code that a person shows (store/users.h), so rights,
 * audit and revocation are those of tokens. The cookie is HttpOnly and SameSite=Strict; over TLS it is Secure
 * and bound to this host, on loopback its name has the port, because a browser does not tell ports apart.
 *
 * A browser adds a cookie also to what another site asks, and to what another port of this machine asks. So a
 * request that is authenticated by a cookie is refused unless the browser says that it comes from the page
 * itself (Sec-Fetch-Site), and every method that changes something wants the header X-Motley, which no form
 * can send, and an Origin that is this server's. A server without TLS also refuses names that are no loopback
 * ones: a stranger's name that points to 127.0.0.1 makes the stranger's page one of the same origin.
 */
#ifndef MOTLEY_API_PEOPLE_SESSION_H
#define MOTLEY_API_PEOPLE_SESSION_H

#include "api/request/app.h"

enum { SESSION_TOKEN_BYTES = 65, SESSION_COOKIE_BYTES = sizeof(((struct call *)0)->session_end) };

/* Copies the token of the request's cookie. Returns false when there is none. */
bool session_token(const struct call *call, char token[SESSION_TOKEN_BYTES]);

/* Checks that the page itself sends this request. `changes`: it must have the header and the Origin, too. -1
 * with ERR_DENIED. */
int session_guard(const struct call *call, bool changes, struct err *err);

/* Checks that the name under which a server without TLS is asked is a loopback one. -1 with ERR_DENIED. */
int session_host(const struct call *call, struct err *err);

/* Writes the Set-Cookie value that keeps this token for so many seconds; 0 seconds remove the cookie. */
void session_cookie(const struct call *call, const char *token, int64_t seconds,
                    char text[SESSION_COOKIE_BYTES]);

#endif
