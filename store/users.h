/* Users, groups, tokens with scopes, the audit, join tokens, enrolment. Tokens themselves never
 * reach the database: only their SHA-256.
 */
#ifndef MOTLEY_STORE_USERS_H
#define MOTLEY_STORE_USERS_H

#include "store/principal.h"
#include "store/store.h"

/* Scopes are bits here and names ("jobs:read") in documents. */
enum store_scope {
    SCOPE_JOBS_READ = 1 << 0,
    SCOPE_JOBS_WRITE = 1 << 1,
    SCOPE_NODES_READ = 1 << 2,
    SCOPE_NODES_WRITE = 1 << 3, /* drain, join tokens, imported profiles */
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

/* `principal` is borrowed for the call, NULL exactly when err is not; its address is empty. */
typedef void store_principal_fn(void *arg, const struct err *err, const struct principal *principal);
/* ERR_AUTH where no valid token has this hash (unknown, expired, revoked: not told apart). */
int store_token_find(struct store *store, const uint8_t hash[32], store_principal_fn *done, void *arg,
                     struct err *err);

/* Makes the user if there is none of that name; answers its id. */
int store_user_put(struct store *store, const char *name, store_id_fn *done, void *arg, struct err *err);
/* A token of `user`, who is made if there is none of that name; answers the token's id. Whether `maker` may
 * is the caller's to decide. */
int store_token_put(struct store *store, const struct principal *maker, const char *user,
                    const struct store_token_new *token, store_id_fn *done, void *arg, struct err *err);
/* ERR_NOT_FOUND also for another's, unless an administrator asks. */
int store_token_revoke(struct store *store, const struct principal *principal, int64_t token,
                       store_done_fn *done, void *arg, struct err *err);
/* {"tokens":[{"id","user","scopes","note","created","expires","made_by": id | null}]}: one's own, an
 * administrator's: all of people's. */
int store_token_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                     struct err *err);
/* {"users":[{"id","name","created","priority_max","groups":[name]}]} */
int store_user_list(struct store *store, store_doc_fn *done, void *arg, struct err *err);
/* Sets what a user may at most; answers {"name","priority_max"}. ERR_NOT_FOUND names the user. */
int store_user_set(struct store *store, const struct principal *principal, const char *name,
                   int32_t priority_max, store_doc_fn *done, void *arg, struct err *err);

/* {"groups":[{"name","created","members":[name]}]}: those one is in, an administrator's: all. */
int store_group_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                     struct err *err);
/* The group of that name has these members (names of users) from now on; it is made if need be. ERR_INVALID
 * when one is no user. Answers {"name","members"}. */
int store_group_put(struct store *store, const struct principal *principal, const char *name,
                    const char *const *members, size_t count, store_doc_fn *done, void *arg, struct err *err);
/* What was shared with it is its owners' alone afterwards. */
int store_group_remove(struct store *store, const struct principal *principal, const char *name,
                       store_done_fn *done, void *arg, struct err *err);

/* The audit, newest first: {"audit":[{"id","at","who","user_id","token","address","what","object","before",
 * "after"}], "next": id to give as before_id | null}. limit 1..STORE_PAGE_MAX. */
int store_audit_page(struct store *store, int64_t before_id, unsigned limit, store_doc_fn *done, void *arg,
                     struct err *err);
/* One row, for a change that is not a statement of this room. `before` and `after` may be NULL. */
int store_audit_add(struct store *store, const struct principal *principal, const char *what,
                    const char *object, const json_t *before, const json_t *after, store_done_fn *done,
                    void *arg, struct err *err);

/* A join token, good once until expires_us. */
int store_join_token_put(struct store *store, const struct principal *principal, const uint8_t hash[32],
                         int64_t expires_us, store_done_fn *done, void *arg, struct err *err);

/* Takes the join token and makes the node, in one statement: of two callers
 * with one token exactly one wins, the other gets ERR_AUTH, as does an expired
 * or unknown one. `node` 1..64 of [a-z0-9-]. A node of that name that is
 * alive (seen within 60 s, and not barred) is ERR_CONFLICT and the token stays good;
 * an older one is replaced: its agent token is revoked, `generation` rises. */
struct store_enrol {
    const uint8_t *join_hash; /* 32 bytes */
    const char *node;
    const char *address;
    const uint8_t *agent_hash; /* 32 bytes: SHA-256 of the agent's new bearer token */
    const uint8_t *redis_hash; /* 32 bytes: SHA-256 of its Redis password; the scheduler makes the user */
    const uint8_t *seal_key;   /* 32 bytes: of the seal on its messages (common/seal.h); NULL, or a NULL
                                  redis_hash: the node can do nothing */
};
int store_enrol(struct store *store, const struct store_enrol *enrol, store_id_fn *done /* generation */,
                void *arg, struct err *err);

#endif
