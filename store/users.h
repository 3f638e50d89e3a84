/* Users, groups, tokens with scopes, and the audit. The database stores only the SHA-256 of a token.
 */
#ifndef MOTLEY_STORE_USERS_H
#define MOTLEY_STORE_USERS_H

#include "store/principal.h"
#include "store/store.h"

/* A scope is a bit here and a name ("jobs:read") in documents. */
enum store_scope {
    SCOPE_JOBS_READ = 1 << 0,
    SCOPE_JOBS_WRITE = 1 << 1,
    SCOPE_NODES_READ = 1 << 2,
    SCOPE_NODES_WRITE = 1 << 3, /* drain, join tokens, imported profiles */
    SCOPE_MODELS_READ = 1 << 4,
    SCOPE_MODELS_WRITE = 1 << 5, /* models, blobs, datasets */
    SCOPE_ADMIN = 1 << 6,        /* everybody's objects, models by reference, users */
    SCOPE_AGENT = 1 << 7,        /* an enrolled node, which may only use blobs */
};
#define SCOPES_USER                                                                                          \
    (SCOPE_JOBS_READ | SCOPE_JOBS_WRITE | SCOPE_NODES_READ | SCOPE_MODELS_READ | SCOPE_MODELS_WRITE)
#define SCOPES_ALL_PEOPLE (SCOPES_USER | SCOPE_NODES_WRITE | SCOPE_ADMIN)

/* The name of one scope bit, NULL for an unknown bit; and the bit of a name, 0 for an unknown name. */
const char *store_scope_name(unsigned bit);
unsigned store_scope_from_name(const char *name);

struct store_token_new {
    const uint8_t *hash; /* SHA-256, 32 bytes */
    unsigned scopes;     /* enum store_scope bits */
    int64_t expires_us;  /* wall-clock µs; 0 = never */
    const char *note;    /* or NULL */
};

/* `principal` is borrowed for the callback, and NULL exactly when err is not NULL. Its address is empty. */
typedef void store_principal_fn(void *arg, const struct err *err, const struct principal *principal);
/* ERR_AUTH when no valid token has this hash; the text does not say whether it is unknown, expired or
 * revoked. */
int store_token_find(struct store *store, const uint8_t hash[32], store_principal_fn *done, void *arg,
                     struct err *err);

/* Makes the user if the name is new. Answers the user's id. */
int store_user_put(struct store *store, const char *name, store_id_fn *done, void *arg, struct err *err);
/* Makes a token for `user`, and the user if the name is new. Answers the token's id. The caller checks
 * whether `maker` may do this. */
int store_token_put(struct store *store, const struct principal *maker, const char *user,
                    const struct store_token_new *token, store_id_fn *done, void *arg, struct err *err);
/* ERR_NOT_FOUND also for another person's token, unless an administrator asks. */
int store_token_revoke(struct store *store, const struct principal *principal, int64_t token,
                       store_done_fn *done, void *arg, struct err *err);
/* {"tokens":[{"id","user","scopes","note","created","expires","made_by": id | null,"session"}]}: the asker's
 * own; for an administrator those of all people. */
int store_token_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                     struct err *err);
/* ---- sessions of the page (store/sign_in.c) ---- */

/* Stores the hash of a code that opens one session of the asker's token until `expires_us`. ERR_NOT_FOUND
 * when that token is a session's itself. Removes codes and sessions that ended more than a day ago. */
int store_session_code_put(struct store *store, const struct principal *principal, const uint8_t code[32],
                           int64_t expires_us, store_done_fn *done, void *arg, struct err *err);
/* Makes a session's token with the hash `token` for who shows a code or a token with the hash `shown`: with
 * the scopes of that token, ending after `seconds`, or with that token if that is sooner. A code is used up.
 * Answers {"user","scopes": bits,"expires","seconds"}. ERR_NOT_FOUND when `shown` is no valid code, and no
 * valid token of a person that is no session's. `address` is the client's, for the audit. */
int store_session_open(struct store *store, const uint8_t shown[32], const uint8_t token[32],
                       unsigned seconds, const char *address, store_doc_fn *done, void *arg, struct err *err);
/* Revokes the asker's token. ERR_NOT_FOUND when it is no session's. */
int store_session_close(struct store *store, const struct principal *principal, store_done_fn *done,
                        void *arg, struct err *err);

/* {"users":[{"id","name","created","priority_max","disabled","account": group |
 * null,"devices_max","running_max", "queued_max","month_seconds_max","groups":[name]}]}; a limit of 0 is
 * none. */
int store_user_list(struct store *store, store_doc_fn *done, void *arg, struct err *err);
/* Changes the members of `changes`, of those that store_user_list gives from "priority_max" to
 * "month_seconds_max". Answers the changes and "name". ERR_NOT_FOUND names the user, ERR_INVALID an unknown
 * account. */
int store_user_set(struct store *store, const struct principal *principal, const char *name,
                   const json_t *changes, store_doc_fn *done, void *arg, struct err *err);

/* {"groups":[{"name","created","members":[name],"parent": group | null,"weight","devices_max","running_max",
 * "queued_max","month_seconds_max"}]}: the groups that the asker is in; for an administrator
 * all. */
int store_group_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                     struct err *err);
/* Sets the members (names of users) of the group, and makes the group if the name is new. ERR_INVALID when a
 * member is not a user. Answers {"name","members"}. */
int store_group_put(struct store *store, const struct principal *principal, const char *name,
                    const char *const *members, size_t count, store_doc_fn *done, void *arg, struct err *err);
/* Changes the members of `changes`: parent, weight and limits. Answers the changes and "name". ERR_NOT_FOUND
 * names the group, ERR_INVALID an unknown parent or one that is below the group. */
int store_group_set(struct store *store, const struct principal *principal, const char *name,
                    const json_t *changes, store_doc_fn *done, void *arg, struct err *err);
/* Removes a group. ERR_CONFLICT while groups are below it or jobs that have not ended are charged to it.
 * Afterwards only its owner sees an object that was shared with the group. */
int store_group_remove(struct store *store, const struct principal *principal, const char *name,
                       store_done_fn *done, void *arg, struct err *err);

/* The audit, newest first:
 * {"audit":[{"id","at","who","user_id","token","address","what","object","before","after"}], "next": id to
 * give as before_id | null}. limit: 1..STORE_PAGE_MAX. */
int store_audit_page(struct store *store, int64_t before_id, unsigned limit, store_doc_fn *done, void *arg,
                     struct err *err);
#endif
