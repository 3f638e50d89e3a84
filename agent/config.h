/* What an agent is told: its command line and its configuration file (YAML or JSON).
 *
 *     name: left                     node name: 1 to 64 of a-z, 0-9 and -
 *     address: 10.0.0.2              what other nodes reach this one by: a host, or host:port; default: found
 * out devices:                       default: one CPU device of all cores and 80 % of the memory
 *       - {kind: cpu, threads: 1, memory: 450MiB, isa: avx2}
 *     cache: 20GiB                   bound of the node's chunk cache
 *     journal: 128MiB                bound of events kept until they are acknowledged
 *
 * Immutable once read. Thread: any.
 */
#ifndef MOTLEY_AGENT_CONFIG_H
#define MOTLEY_AGENT_CONFIG_H

#include <jansson.h>
#include <stdint.h>

#include "common/err.h"

enum { AGENT_DEVICES_MAX = 64, AGENT_NAME_SIZE = 65 };

struct agent_device {
    char name[AGENT_NAME_SIZE + 16]; /* "left/cpu0" */
    char kind[16];                   /* "cpu" */
    char isa[16];                    /* as asked for: native, avx512, avx2, sse42 */
    uint32_t threads;
    uint64_t memory_limit_bytes;
};

struct agent_config {
    char name[AGENT_NAME_SIZE];
    char host[256]; /* of the address; never empty */
    uint16_t port;  /* of the address, where links are measured; 0: any */
    uint64_t cache_limit_bytes;
    uint64_t journal_limit_bytes;
    uint32_t device_count;
    struct agent_device devices[AGENT_DEVICES_MAX];
};

/* Read 'document' (NULL: all defaults; the name then is the host's). 'fallback_host' is the address when none
 * is given. ERR_INVALID names the path; ERR_UNSUPPORTED an instruction set that this CPU lacks. */
int agent_config_read(const json_t *document, const char *fallback_host, struct agent_config *config,
                      struct err *err);

/* The address of this machine's own that packets to 'url' leave from: "127.0.0.1" for a loopback server. */
int agent_own_host(const char *url, char host[256], struct err *err);

#endif
