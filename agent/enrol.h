/* Joining a cluster, once: a key and a request of our own, a certificate and credentials in return; later a
 * new certificate for the same key.
 *
 * Kept under HOME (0700): agent.json (0600: node, api, redis, token, seal), tls/ca.crt, tls/node.crt,
 * tls/node.key (0600). agent.json is written last: while it is missing the node is not enrolled. The join
 * token pins the cluster's CA, so the server is known before the first byte of the token is sent. Blocking.
 * Thread: any.
 */
#ifndef MOTLEY_AGENT_ENROL_H
#define MOTLEY_AGENT_ENROL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "common/seal.h"
#include "common/tls.h"

/* What node.crt says. */
struct agent_certificate {
    char identity[TLS_IDENTITY_SIZE]; /* "agent:NODE:GENERATION" */
    int64_t issued_s, ends_s;         /* seconds since 1970 */
};

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
    struct agent_certificate certificate;
};

/* What an earlier enrolment left under 'home': 1, or 0 when there is none. ERR_CORRUPT, ERR_IO. */
int agent_identity_load(const char *home, struct agent_identity *identity, struct err *err);

/* Join the cluster at 'api' as 'node' with a join token; 'address' is what others reach this node by. A key
 * that stands in the home already is used again: with it and a token bound to its name a node comes back. A
 * server that is not there yet is tried again for wait_ms. ERR_PEER: the server is of another cluster;
 * ERR_AUTH: the token is spent or wrong; ERR_CONFLICT … as the api says. Nothing is left behind on an error.
 */
int agent_enrol(const char *home, const char *api, const char *join, const char *node, const char *address,
                unsigned wait_ms, struct agent_identity *identity, struct err *err);

/* Ask the api of 'identity' for a new certificate, which then stands in its file and in 'identity'. Blocking,
 * 10 s at most. ERR_AUTH: the api does not know this node (any more); ERR_DENIED: it knows it by another key,
 * or the certificate has ended. */
int agent_renew(struct agent_identity *identity, struct err *err);

/* This home has left the cluster: what it joined with is put aside as agent.json.removed, its key is gone. */
int agent_leave(const char *home, const struct agent_identity *identity, struct err *err);

#endif
