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
    SCOPE_NODES_WRITE = 1 << 3, /* draining, join tokens, imported profiles */
    SCOPE_MODELS_READ = 1 << 4,
    SCOPE_MODELS_WRITE = 1 << 5, /* models, blobs, datasets */
    SCOPE_ADMIN = 1 << 6,        /* objects of all users, models by reference, users */
    SCOPE_AGENT = 1 << 7,        /* an enrolled node, which may only use blobs */
    SCOPE_LEASES_WRITE = 1 << 8, /* holding devices */
    SCOPE_LAST = SCOPE_LEASES_WRITE
};
#define SCOPES_USER                                                                                          \
    (SCOPE_JOBS_READ | SCOPE_JOBS_WRITE | SCOPE_NODES_READ | SCOPE_MODELS_READ | SCOPE_MODELS_WRITE |        \
     SCOPE_LEASES_WRITE)
#define SCOPES_ALL_PEOPLE (SCOPES_USER | SCOPE_NODES_WRITE | SCOPE_ADMIN)

/* Convert between a scope's bit and its name: NULL for an unknown bit, 0 for an unknown name. */
const char *store_scope_name(unsigned bit);
unsigned store_scope_from_name(const char *name);

struct store_token_new {
    const uint8_t *hash; /* SHA-256, 32 bytes */
    unsigned scopes;     /* enum store_scope bits */
    int64_t expires_us;  /* wall-clock µs; 0 = never */
    const char *note;    /* a note for people, or NULL */
};

/* Called with the principal of a token. `principal` is borrowed for the callback, and NULL exactly when err
 * is not NULL; its address is empty. */
typedef void store_principal_fn(void *arg, const struct err *err, const struct principal *principal);
/* Finds the principal of the token with this hash. ERR_AUTH when no valid token has the hash; the text does
 * not say whether the token is unknown, expired or revoked. */
int store_token_find(struct store *store, const uint8_t hash[32], store_principal_fn *done, void *arg,
                     struct err *err);

/* Makes the user if the name is new. Answers the user's id. */
int store_user_put(struct store *store, const char *name, store_id_fn *done, void *arg, struct err *err);
/* Makes a token for `user`, and the user if the name is new. Answers the token's id. The caller must check
 * whether `maker` may do this. */
int store_token_put(struct store *store, const struct principal *maker, const char *user,
                    const struct store_token_new *token, store_id_fn *done, void *arg, struct err *err);
/* Revokes a token. ERR_NOT_FOUND also for another person's token, unless an administrator asks. */
int store_token_revoke(struct store *store, const struct principal *principal, int64_t token,
                       store_done_fn *done, void *arg, struct err *err);
/* Answers {"tokens":[{"id","user","scopes","note","created","expires","made_by": id | null,"session"}]}: the
 * asker's own tokens, or for an administrator those of all people. */
int store_token_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                     struct err *err);
/* ---- sessions of the page (store/sign_in.c) ---- */

/* Stores the hash of a one-time code that opens a session for the asker's token until `expires_us`.
 * ERR_NOT_FOUND when the asker's token itself belongs to a session. Also removes codes and sessions that
 * ended more than a day ago. */
int store_session_code_put(struct store *store, const struct principal *principal, const uint8_t code[32],
                           int64_t expires_us, store_done_fn *done, void *arg, struct err *err);
/* Opens a session: makes a token with the hash `token` for a client who shows a code or a token with the hash
 * `shown`. The new token has the scopes of the shown token (or of the token for which the code was made); it
 * ends after `seconds`, or with that token if that is sooner. A code is used up. Answers {"user","scopes":
 * bits,"expires","seconds"}. ERR_NOT_FOUND when `shown` is neither a valid code nor a valid token of a person
 * (a session's token does not count). `address` is the client's, for the audit. */
int store_session_open(struct store *store, const uint8_t shown[32], const uint8_t token[32],
                       unsigned seconds, const char *address, store_doc_fn *done, void *arg, struct err *err);
/* Who signed in elsewhere; texts are borrowed for the call. */
struct store_signed_in {
    const char *user, *address; /* the user's name, and the client's address for the audit */
    unsigned scopes, seconds;
    bool session; /* the new token is a session's, else one for programs */
    /* From here on only of store_identity_sign_in (migrations/0020_identities.sql). */
    const char *issuer,
        *subject;            /* whose word it is, and whom that one means; `user` is what it calls them */
    bool may_make, may_link; /* whether a new identity becomes a new user, or one of that name */
    const char *const
        *groups; /* [group_count] the user's groups from now on, of those here; NULL: as they were */
    size_t group_count;
};
/* Opens a session for them; else as store_session_open. ERR_NOT_FOUND when there is no such user, or a
 * disabled one. */
int store_session_open_user(struct store *store, const struct store_signed_in *who, const uint8_t token[32],
                            store_doc_fn *done, void *arg, struct err *err);
/* Makes a token with the hash `token` for the user whose identity it is, or becomes. Answers as
 * store_session_open does; ERR_DENIED says why nobody is signed in. */
int store_identity_sign_in(struct store *store, const struct store_signed_in *who, const uint8_t token[32],
                           store_doc_fn *done, void *arg, struct err *err);
/* Ends the asker's session by revoking its token. ERR_NOT_FOUND when the asker's token is no session's. */
int store_session_close(struct store *store, const struct principal *principal, store_done_fn *done,
                        void *arg, struct err *err);

/* Answers {"users":[{"id","name","created","priority_max","disabled","account": group |
 * null,"devices_max","running_max", "queued_max","month_seconds_max","groups":[name]}]}; a limit of 0 means
 * that there is none. */
int store_user_list(struct store *store, store_doc_fn *done, void *arg, struct err *err);
/* Changes the fields of the user that `changes` has, of those that store_user_list gives from "priority_max"
 * to "month_seconds_max"; with "identity" (null) the user's identities are forgotten. Answers the changes and
 * "name". ERR_NOT_FOUND names the user, ERR_INVALID an unknown account. */
int store_user_set(struct store *store, const struct principal *principal, const char *name,
                   const json_t *changes, store_doc_fn *done, void *arg, struct err *err);

/* Answers {"groups":[{"name","created","members":[name],"parent": group |
 * null,"weight","devices_max","running_max", "queued_max","month_seconds_max"}]}: the groups that the asker
 * is in, or for an administrator all groups. */
int store_group_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                     struct err *err);
/* Sets the members (names of users) of the group, and makes the group if the name is new. ERR_INVALID when a
 * member is not a user. Answers {"name","members"}. */
int store_group_put(struct store *store, const struct principal *principal, const char *name,
                    const char *const *members, size_t count, store_doc_fn *done, void *arg, struct err *err);
/* Changes the fields of the group that `changes` has: parent, weight and limits. Answers the changes and
 * "name". ERR_NOT_FOUND names the group, ERR_INVALID an unknown parent or one that is below the group. */
int store_group_set(struct store *store, const struct principal *principal, const char *name,
                    const json_t *changes, store_doc_fn *done, void *arg, struct err *err);
/* Removes a group. ERR_CONFLICT while groups are below it or jobs that have not ended are charged to it.
 * Afterwards only its owner sees an object that was shared with the group. */
int store_group_remove(struct store *store, const struct principal *principal, const char *name,
                       store_done_fn *done, void *arg, struct err *err);

/* Answers the audit, newest first:
 *   {"audit":[{"id","at","who","user_id","token","address","what","object","before","after"}],
 *    "next": id to give as before_id | null}. limit: 1..STORE_PAGE_MAX. */
int store_audit_page(struct store *store, int64_t before_id, unsigned limit, store_doc_fn *done, void *arg,
                     struct err *err);
#endif
