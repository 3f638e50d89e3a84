/* Bearer tokens: who asks, and what they may do.
 *
 * A token is looked up by its SHA-256. Answers (also "nobody") are kept for 5 seconds in a small table, so a
 * revoked token works for at most that long. Comparison of hashes takes constant time. Loop thread.
 */
#ifndef MOTLEY_API_PEOPLE_AUTH_H
#define MOTLEY_API_PEOPLE_AUTH_H

#include "store/users.h"

struct auth;

/* 'store' is borrowed until destroy. Returns new, or NULL with ERR_NOMEM. */
struct auth *auth_create(struct store *store, struct err *err);
void auth_destroy(struct auth *auth);

/* Who has the token of this SHA-256. The callback may come before the function returns, and always comes
 * once; the principal is NULL exactly when err is not (ERR_AUTH, or the store's trouble). */
void auth_find(struct auth *auth, const uint8_t hash[32], store_principal_fn *done, void *arg);

/* Forget everything (after a revocation through this process). */
void auth_forget(struct auth *auth);

/* A new random token and its hash. */
int auth_token_make(char token[65], uint8_t hash[32], struct err *err);

#endif
