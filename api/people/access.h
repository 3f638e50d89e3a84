/* Permissions that depend on the principal alone. Permissions that depend on an object (owner, visibility,
 * group) are SQL in migrations/0005_access.sql, because lists must be filtered by them; every store call for
 * an object takes the principal and applies them. So a handler decides nothing: it passes call->principal on.
 *
 * There are three kinds of askers: people, agents and nobody. A person's token has scopes; with the scope
 * `admin` every route for people is open, and every object may be seen and changed. An agent's token opens
 * only the routes of SCOPE_AGENT: the files of its runs (GET, HEAD, PUT), their manifests, certificate
 * renewal, and whoami.
 */
#ifndef MOTLEY_API_PEOPLE_ACCESS_H
#define MOTLEY_API_PEOPLE_ACCESS_H

#include "common/err.h"
#include "store/users.h"

/* Checks whether the principal may use a route that any of these scopes opens. Returns -1 with ERR_DENIED,
 * which names the scopes. */
int access_route(const struct principal *principal, unsigned scopes, struct err *err);

/* Checks that the principal is an administrator. `what` begins the sentence of ERR_DENIED ("path: …"). */
int access_admin(const struct principal *principal, const char *what, struct err *err);

/* Checks whether `maker` may make a token for `user` with these scopes that ends at *expires_us (0: no end
 * was given). The new token may not have a scope that the maker lacks, nor live longer than the maker's
 * token. If no end was given, *expires_us becomes the end of the maker's token. Scopes of 0 become the usual
 * scopes that the maker has. ERR_DENIED says what is not allowed. */
int access_token(const struct principal *maker, const char *user, unsigned *scopes, int64_t *expires_us,
                 struct err *err);

/* Checks whether the principal may submit a job of this priority. ERR_DENIED names the highest priority that
 * the principal may use. */
int access_priority(const struct principal *principal, int32_t priority, struct err *err);

/* Returns the names of these scopes as a new list; NULL without memory. */
json_t *access_scope_names(unsigned scopes);

/* Returns a number that identifies an uploader: a user's id, or the negative id of an agent's token. */
int64_t access_owner(const struct principal *principal);

#endif
