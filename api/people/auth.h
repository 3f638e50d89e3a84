/* Finds the principal of a bearer token.
 *
 * A token is looked up by its SHA-256. Answers, also "unknown", are kept for 5 seconds in a small table, so a
 * revoked token works for at most that long. Hashes are compared in constant time. Loop thread.
 */
#ifndef MOTLEY_API_PEOPLE_AUTH_H
#define MOTLEY_API_PEOPLE_AUTH_H

#include "store/users.h"

struct auth;

/* Makes the table of looked-up tokens. 'store' is borrowed until auth_destroy. Returns NULL with
 * ERR_NOMEM. */
struct auth *auth_create(struct store *store, struct err *err);
void auth_destroy(struct auth *auth);

/* Finds who has the token with this SHA-256. The callback comes exactly once, possibly before the function
 * returns. The principal is NULL exactly when there is an err: ERR_AUTH, or an error of the store. */
void auth_find(struct auth *auth, const uint8_t hash[32], store_principal_fn *done, void *arg);

/* Forgets all answers; call it after a token was revoked through this process. */
void auth_forget(struct auth *auth);

/* Makes a new random token and its hash. */
int auth_token_make(char token[65], uint8_t hash[32], struct err *err);

#endif
