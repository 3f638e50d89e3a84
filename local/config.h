/* The file of `motley up --config`, read, checked and filled with defaults. Pure but for what the machine
 * offers. */
#ifndef MOTLEY_LOCAL_CONFIG_H
#define MOTLEY_LOCAL_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

enum { LOCAL_AGENTS_MAX = 64, LOCAL_DEVICES_MAX = 64, LOCAL_SCHEDULERS_MAX = 8, LOCAL_NAME_BYTES = 65 };

struct local_config {
    json_t *document;    /* normalised: equal configurations are equal documents, read back as the same */
    char host[256];      /* to listen on: `listen`, "127.0.0.1" */
    uint16_t port;       /* of the api, from `listen`; 0: any, kept from run to run */
    char advertise[256]; /* the host that others are told; the one listened on */
    uint16_t redis_port; /* 0: any; used with tls alone, else Redis has a unix socket and no port */
    bool tls;            /* on whenever host is not a loopback address */
    uint32_t schedulers; /* 1 */
    double certificate_seconds; /* how long an agent's certificate is good: `certificates`, 30 days */
    const json_t
        *agents; /* [{name, devices: [{kind, threads, memory, isa}], address}], borrowed from document */
    const json_t *links;              /* as given, or NULL; borrowed from document */
    const json_t *planner, *planners; /* as given (common/planners.h), or NULL; borrowed from document */
};

/* Check a configuration document (a YAML or JSON mapping). *config is zeroed on failure; local_config_fini
 * releases. */
int local_config_parse(const json_t *document, struct local_config *config, struct err *err);
void local_config_fini(struct local_config *config);

/* The configuration when nobody gave one: one agent "local" whose device has all cores and 60 % of the memory
 * that is free. Returns new. */
json_t *local_config_default(struct err *err);

#endif
