/* Joins a cluster once: sends a certificate request for a key made here and gets a certificate and
 * credentials; later it asks for a new certificate for the same key.
 *
 * Stored under HOME (mode 0700): agent.json (0600: node, api, redis, token, seal), tls/ca.crt, tls/node.crt,
 * tls/node.key (0600). agent.json is written last: while it is missing the node is not enrolled. The join
 * token pins the cluster's CA, so the server is verified before the first byte of the token is sent.
 * Blocking. Thread: any.
 */
#ifndef MOTLEY_AGENT_ENROL_H
#define MOTLEY_AGENT_ENROL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "common/seal.h"
#include "common/tls.h"

/* The relevant content of node.crt. */
struct agent_certificate {
    char identity[TLS_IDENTITY_SIZE]; /* "agent:NODE:GENERATION" */
    int64_t issued_s, ends_s;         /* seconds since 1970 */
    bool fresh;                       /* it has just come; false: it was read from its file */
};

struct agent_identity {
    char node[72];
    char api[512];      /* URL of the api */
    char token[256];    /* bearer token for the api */
    char redis[512];    /* address of Redis; "" when the cluster has none */
    char user[128];     /* user for Redis; "" means none */
    char password[256]; /* password for Redis; "" means none */
    bool has_redis, redis_tls;
    uint8_t seal_key[SEAL_KEY_SIZE]; /* key that seals messages from and to the scheduler */
    char file[640];                  /* agent.json */
    char ca_file[640], cert_file[640], key_file[640];
    /* a copy of ca_file, alone in its folder, which workers may read: the file may be replaced while they run
     */
    char trust_file[640];
    struct agent_certificate certificate;
};

/* Loads what an earlier enrolment stored under 'home'. Returns 1, or 0 when there is none. ERR_CORRUPT,
 * ERR_IO. */
int agent_identity_load(const char *home, struct agent_identity *identity, struct err *err);

/* Joins the cluster at 'api' as 'node' with a join token; 'address' is how others reach this node. A key that
 * the home already has is used again: with that key and a token bound to its name, a node can return. A
 * server that does not answer yet is tried again for wait_ms. ERR_PEER: the server belongs to another
 * cluster; ERR_AUTH: the token is used up or wrong; other errors come from the api. On an error nothing is
 * stored. */
int agent_enrol(const char *home, const char *api, const char *join, const char *node, const char *address,
                unsigned wait_ms, struct agent_identity *identity, struct err *err);

/* Gets a new certificate from the api of 'identity' and stores it in its file and in 'identity', with the
 * place of Redis and the CAs, where the api says others than were known. A CA is taken that one vouches for
 * which is trusted already (common/tls.h). Blocks for at most 10 s. ERR_AUTH: the api does
 * not know this node, or no longer; ERR_DENIED: the api knows another key for it, or the certificate has
 * expired. */
int agent_renew(struct agent_identity *identity, struct err *err);

/* Whether a renewal of this home told another place of Redis, which then stands in 'identity'. Whether it has
 * TLS changes at the next start. */
bool agent_redis_moved(const char *home, struct agent_identity *identity, struct err *err);

/* Asks the api who this node is, for at most 3 s. *server_s (may be NULL) becomes the server's time, in
 * seconds since 1970; 0: it did not say. ERR_RELEASE when it does not work with this release, ERR_NET when it
 * does not answer, or as agent_renew. */
int agent_server_ask(const struct agent_identity *identity, int64_t *server_s, struct err *err);

/* Records that this home has left the cluster: renames agent.json to agent.json.removed and deletes the key.
 */
int agent_leave(const char *home, const struct agent_identity *identity, struct err *err);

#endif
