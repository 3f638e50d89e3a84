/* Users and tokens with scopes. Tokens themselves never reach the database: only their SHA-256.
 */
#ifndef MOTLEY_STORE_USERS_H
#define MOTLEY_STORE_USERS_H

#include "store/store.h"

/* Scopes are bits here and names ("jobs:read") in documents. */
enum store_scope {
    SCOPE_JOBS_READ = 1 << 0,
    SCOPE_JOBS_WRITE = 1 << 1,
    SCOPE_NODES_READ = 1 << 2,
    SCOPE_NODES_WRITE = 1 << 3, /* drain, join tokens */
    SCOPE_MODELS_READ = 1 << 4,
    SCOPE_MODELS_WRITE = 1 << 5, /* models, blobs, datasets */
    SCOPE_ADMIN = 1 << 6,        /* everything of everybody, by-reference models, users */
    SCOPE_AGENT = 1 << 7,        /* an enrolled node: blobs only */
};
#define SCOPES_USER                                                                                          \
    (SCOPE_JOBS_READ | SCOPE_JOBS_WRITE | SCOPE_NODES_READ | SCOPE_MODELS_READ | SCOPE_MODELS_WRITE)
#define SCOPES_ALL_PEOPLE (SCOPES_USER | SCOPE_NODES_WRITE | SCOPE_ADMIN)

/* Name of one scope bit, NULL where there is none; and back, 0 where unknown. */
const char *store_scope_name(unsigned bit);
unsigned store_scope_from_name(const char *name);

struct store_token_new {
    const uint8_t *hash; /* SHA-256, 32 bytes */
    unsigned scopes;     /* enum store_scope bits */
    int64_t expires_us;  /* wall µs; 0 = never */
    const char *note;    /* or NULL */
};

struct store_identity {
    int64_t user;     /* users.id; 0 for an agent */
    int64_t token;    /* tokens.id */
    const char *name; /* user's or node's name */
    unsigned scopes;
    int64_t expires_us; /* 0 = never: how long an answer may be cached */
};
typedef void store_identity_fn(void *arg, const struct err *err, const struct store_identity *identity);
/* ERR_AUTH where no valid token has this hash (unknown, expired, revoked: not told apart). */
int store_token_find(struct store *store, const uint8_t hash[32], store_identity_fn *done, void *arg,
                     struct err *err);

/* Makes the user if there is none of that name; answers its id. */
int store_user_put(struct store *store, const char *name, store_id_fn *done, void *arg, struct err *err);
/* Answers the token's id. */
int store_token_put(struct store *store, int64_t user, const struct store_token_new *token, store_id_fn *done,
                    void *arg, struct err *err);
int store_token_revoke(struct store *store, int64_t token, store_done_fn *done, void *arg, struct err *err);
/* {"users":[{"id","name","created"}]}; {"tokens":[{"id","user","scopes","note","created","expires"}]} */
int store_user_list(struct store *store, store_doc_fn *done, void *arg, struct err *err);
int store_token_list(struct store *store, int64_t user, store_doc_fn *done, void *arg, struct err *err);

#endif
