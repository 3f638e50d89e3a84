/* Who may do what: the rules about a principal itself. Those about objects (owner, visibility, group) are
 * SQL, in migrations/0007_access.sql, because lists must filter by them; every call of the store that touches
 * an object takes the principal and asks them. So a handler decides nothing: it passes call->principal on.
 *
 * Three kinds ask: people, agents and nobody. A person's token has scopes; with `admin` every route for
 * people is open and every object theirs to see and change. An agent's token opens the routes of SCOPE_AGENT
 * alone: the files of its runs (GET, HEAD, PUT), their manifests, a new certificate, and whoami.
 */
#ifndef MOTLEY_API_PEOPLE_ACCESS_H
#define MOTLEY_API_PEOPLE_ACCESS_H

#include "common/err.h"
#include "store/users.h"

/* May it use a route that any of these scopes opens? -1 with ERR_DENIED naming them. */
int access_route(const struct principal *principal, unsigned scopes, struct err *err);

/* Only for administrators; `what` stands first in the sentence of ERR_DENIED ("path: …"). */
int access_admin(const struct principal *principal, const char *what, struct err *err);

/* May `maker` make a token of `user` with these scopes that ends at *expires_us (0: not said)? Never with a
 * scope that it lacks itself, nor one that lives longer; *expires_us becomes its own end where none was said.
 * A scope of 0 becomes the usual ones that it has. ERR_DENIED says which. */
int access_token(const struct principal *maker, const char *user, unsigned *scopes, int64_t *expires_us,
                 struct err *err);

/* May it submit a job of this priority? ERR_DENIED names its ceiling. */
int access_priority(const struct principal *principal, int32_t priority, struct err *err);

/* A number that tells whoever uploads apart from everybody else: a user's id, or of an agent its token's,
 * negative. */
int64_t access_owner(const struct principal *principal);

#endif
