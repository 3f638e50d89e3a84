/* How nodes join the cluster and leave it: join tokens, enrolment, renewal of certificates, removal. The
 * database stores only the SHA-256 of a token.
 *
 * A name that a node ever used stays taken, even after the node's removal: a join token that is not bound to
 * the name cannot take it. The node's own machine comes back with its old key and a token bound to the name;
 * another machine takes the name with a token that an administrator made with `replace`. Each enrolment and
 * each removal raises the node's generation, which its certificate names, and revokes its bearer token.
 */
#ifndef MOTLEY_STORE_ENROL_H
#define MOTLEY_STORE_ENROL_H

#include "store/principal.h"
#include "store/store.h"

/* A valid name has 1 to 64 of a-z, 0-9 and -, and does not begin with -. */
bool store_node_name_valid(const char *name);

struct store_join_token {
    const uint8_t *hash; /* SHA-256, 32 bytes */
    int64_t expires_us;  /* wall-clock µs */
    /* the only name that the token is good for, or with a * behind it what the names begin with; or NULL */
    const char *node;
    bool replace;  /* the token is good for a name that is taken; needs 'node' */
    uint32_t uses; /* how many machines may join with it; 0: one */
};

/* Stores a join token, which can be used so many times until it expires. A token is not good while the user
 * who made it is disabled. */
int store_join_token_put(struct store *store, const struct principal *maker,
                         const struct store_join_token *token, store_done_fn *done, void *arg,
                         struct err *err);

/* Revokes the join tokens that were made for this `node` (NULL: all) and are not used up. Answers
 * {"revoked"}. */
int store_join_tokens_revoke(struct store *store, const struct principal *principal, const char *node,
                             store_doc_fn *done, void *arg, struct err *err);

/* Checks whether the token is good for the name now; changes nothing. Answers the generation that enrolling
 * would give. ERR_AUTH when the token is unknown, expired, used or bound to another name (the text does not
 * say which); ERR_CONFLICT when the name is taken. */
int store_join_check(struct store *store, const uint8_t hash[32], const char *node, store_id_fn *done,
                     void *arg, struct err *err);

struct store_enrol {
    const uint8_t *join_hash; /* 32 bytes */
    const char *node;
    const char *address;
    const uint8_t *agent_hash; /* 32 bytes: SHA-256 of the agent's new bearer token */
    /* 32 bytes: SHA-256 of the agent's Redis password; the scheduler makes the Redis user */
    const uint8_t *redis_hash;
    /* 32 bytes: the key that seals the node's messages (common/seal.h). If it or redis_hash is NULL, the node
     * is not admitted to Redis */
    const uint8_t *seal_key;
    const uint8_t *key_hash; /* 32 bytes: SHA-256 of the public key that signed the certificate request */
    /* as store_join_check answered; the certificate that was just made names this generation */
    int64_t generation;
    int64_t certified_until_s; /* end of that certificate, in seconds since 1970 */
};
/* Uses the join token and makes the node, in one statement: of two callers with a token for one machine
 * exactly one succeeds, and the other gets ERR_AUTH. ERR_CONFLICT (the token stays good) when the name is
 * taken, or when the node was enrolled or removed since the check. Answers the generation. */
int store_enrol(struct store *store, const struct store_enrol *enrol, store_id_fn *done, void *arg,
                struct err *err);

/* Checks whether the node may have a new certificate for the key with this hash. Answers the node's
 * generation. ERR_NOT_FOUND when the node was removed, has another key, or its last certificate has ended. */
int store_renew_check(struct store *store, const char *node, const uint8_t key_hash[32], store_id_fn *done,
                      void *arg, struct err *err);

/* Records the new certificate, which names this generation. The errors are those of store_renew_check. A node
 * that was enrolled before keys were stored gets this key. Answers the generation. */
int store_node_renew(struct store *store, const char *node, const uint8_t key_hash[32], int64_t generation,
                     int64_t certified_until_s, store_id_fn *done, void *arg, struct err *err);

/* Removes the node from the cluster: revokes its bearer token, drops the messages that wait for it, and wakes
 * the scheduler. Answers {"name","generation"}. ERR_NOT_FOUND names the node. */
int store_node_remove(struct store *store, const struct principal *principal, const char *node,
                      store_doc_fn *done, void *arg, struct err *err);

#endif
