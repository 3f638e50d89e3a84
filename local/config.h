/* Reads and checks the file of `motley up --config`, and fills in defaults. Pure except for the machine's
 * cores and memory. */
#ifndef MOTLEY_LOCAL_CONFIG_H
#define MOTLEY_LOCAL_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

enum { LOCAL_AGENTS_MAX = 64, LOCAL_DEVICES_MAX = 64, LOCAL_SCHEDULERS_MAX = 8, LOCAL_NAME_BYTES = 65 };

struct local_agent;

struct local_config {
    char host[256];      /* address to listen on, from `listen`; default "127.0.0.1" */
    uint16_t port;       /* port of the API, from `listen`; 0: any free port, which is kept from run to run */
    char advertise[256]; /* the host that others are told; default: `host` */
    /* 0: any; used only with TLS, since without it Redis has a unix socket and no port */
    uint16_t redis_port;
    bool tls;            /* always on when `host` is not a loopback address */
    uint32_t schedulers; /* default 1 */
    /* lifetime of an agent's certificate, from `certificates`; default 30 days */
    double certificate_seconds;
    struct local_agent *listed; /* [agent_count] of config.c */
    uint32_t agent_count;
    /* sections that are passed on unchanged; NULL: absent */
    json_t *links;
    json_t *planner, *planners; /* common/planners.h */
    json_t *sharing;            /* the schedulers check it when they start */
    json_t *hub;                /* the api does */
    json_t *notify, *proxies;   /* the same */
    json_t *oidc, *unix_socket; /* the same */
    char proxy_user[256];       /* the same; "": none */
    /* normalised: equal configurations give equal documents, and reading it gives the same configuration */
    json_t *document;
    /* [{name, devices: [{kind, threads, memory, isa}], address}], borrowed from document */
    const json_t *agents;
};

/* Checks a configuration document (a YAML or JSON mapping). On failure *config is zeroed; local_config_fini
 * releases it. */
int local_config_parse(const json_t *document, struct local_config *config, struct err *err);
void local_config_fini(struct local_config *config);

/* The default configuration: one agent "local" with one device of all cores and 60 % of the free memory.
 * Returns new. */
json_t *local_config_default(struct err *err);

#endif
