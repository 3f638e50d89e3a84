/* How machines come into the cluster and leave it: join tokens, enrolment, renewal, removal. Tokens
 * themselves never reach the database: only their SHA-256.
 *
 * A name that was ever seen is taken for good, be its node alive or not, removed or not: an unbound token
 * cannot have it. Its own machine comes back with the key it had and a token bound to the name; another
 * machine takes the name with a token that an administrator made with `replace`. Each enrolment and each
 * removal raises the node's generation, which its certificate names, and revokes its bearer token.
 */
#ifndef MOTLEY_STORE_ENROL_H
#define MOTLEY_STORE_ENROL_H

#include "store/principal.h"
#include "store/store.h"

/* 1 to 64 of a-z, 0-9 and -, not beginning with -. */
bool store_node_name_valid(const char *name);

struct store_join_token {
    const uint8_t *hash; /* SHA-256, 32 bytes */
    int64_t expires_us;  /* wall µs */
    const char *node;    /* good for this name alone, or NULL */
    bool replace;        /* good for a name that is taken; needs 'node' */
};

/* A join token, good once until it expires. */
int store_join_token_put(struct store *store, const struct principal *maker,
                         const struct store_join_token *token, store_done_fn *done, void *arg,
                         struct err *err);

/* Is this token good for this name now? Changes nothing. Answers the generation that enrolling would give.
 * ERR_AUTH: unknown, expired, used or bound to another name, not told apart; ERR_CONFLICT: the name is taken.
 */
int store_join_check(struct store *store, const uint8_t hash[32], const char *node, store_id_fn *done,
                     void *arg, struct err *err);

struct store_enrol {
    const uint8_t *join_hash; /* 32 bytes */
    const char *node;
    const char *address;
    const uint8_t *agent_hash; /* 32 bytes: SHA-256 of the agent's new bearer token */
    const uint8_t *redis_hash; /* 32 bytes: SHA-256 of its Redis password; the scheduler makes the user */
    const uint8_t *seal_key;   /* 32 bytes: of the seal on its messages (common/seal.h); NULL, or a NULL
                                  redis_hash: the node can do nothing */
    const uint8_t *key_hash;   /* 32 bytes: SHA-256 of the public key that its request was signed by */
    int64_t generation;        /* as store_join_check answered: its certificate names it already */
    int64_t certified_until_s; /* when that certificate ends, seconds since 1970 */
};
/* Takes the join token and makes the node, in one statement: of two callers with one token exactly one wins,
 * the other gets ERR_AUTH. ERR_CONFLICT (the token stays good): the name is taken, or somebody enrolled or
 * removed it since the check. Answers the generation. */
int store_enrol(struct store *store, const struct store_enrol *enrol, store_id_fn *done, void *arg,
                struct err *err);

/* May this node have a new certificate for the key with this hash? Answers its generation. ERR_NOT_FOUND: it
 * was removed, its key is another, or the certificate it had has ended. */
int store_renew_check(struct store *store, const char *node, const uint8_t key_hash[32], store_id_fn *done,
                      void *arg, struct err *err);

/* It got one, of this generation. The same errors; a node that was enrolled before keys were kept is known by
 * this one from now on. Answers the generation. */
int store_node_renew(struct store *store, const char *node, const uint8_t key_hash[32], int64_t generation,
                     int64_t certified_until_s, store_id_fn *done, void *arg, struct err *err);

/* The node is none of the cluster any more: {"name","generation"}. Revokes its bearer token, drops what is on
 * its way to it, wakes the scheduler. ERR_NOT_FOUND names it. */
int store_node_remove(struct store *store, const struct principal *principal, const char *node,
                      store_doc_fn *done, void *arg, struct err *err);

#endif
