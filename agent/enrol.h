/* Joining a cluster, once: a key and a request of our own, a certificate and credentials in return.
 *
 * Kept under HOME (0700): agent.json (0600: node, api, redis, token, seal), tls/ca.crt, tls/node.crt,
 * tls/node.key (0600). agent.json is written last: while it is missing the node is not enrolled. The join
 * token pins the cluster's CA, so the server is known before the first byte of the token is sent. Blocking.
 * Thread: any.
 */
#ifndef MOTLEY_AGENT_ENROL_H
#define MOTLEY_AGENT_ENROL_H

#include <stdbool.h>

#include "common/err.h"
#include "common/seal.h"

struct agent_identity {
    char node[72];
    char api[512];      /* URL */
    char token[256];    /* bearer of the api */
    char redis[512];    /* address; "" when the cluster has none */
    char user[128];     /* "" : none */
    char password[256]; /* "": none */
    bool redis_tls;
    uint8_t seal_key[SEAL_KEY_SIZE]; /* of messages from and to the scheduler */
    char ca_file[640], cert_file[640], key_file[640];
};

/* What an earlier enrolment left under 'home': 1, or 0 when there is none. ERR_CORRUPT, ERR_IO. */
int agent_identity_load(const char *home, struct agent_identity *identity, struct err *err);

/* Join the cluster at 'api' as 'node' with a join token; 'address' is what others reach this node by. A
 * server that is not there yet is tried again for wait_ms. ERR_PEER: the server is of another cluster;
 * ERR_AUTH: the token is spent or wrong; ERR_CONFLICT … as the api says. Nothing is left behind on an error.
 */
int agent_enrol(const char *home, const char *api, const char *join, const char *node, const char *address,
                unsigned wait_ms, struct agent_identity *identity, struct err *err);

#endif
