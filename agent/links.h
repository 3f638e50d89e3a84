/* Latency and bandwidth between nodes, through our own TLS.
 *
 * Every agent listens on a port for others of its cluster (mutual TLS 1.3). A measurement opens one
 * connection, sends 16 small frames that come back (half the median round trip is the latency) and then bytes
 * for about half a second that are acknowledged at their end. It runs on threads of its own: at most 4
 * connections served and one request measured at a time, each with a deadline. Results are handed to the
 * event base's thread.
 */
#ifndef MOTLEY_AGENT_LINKS_H
#define MOTLEY_AGENT_LINKS_H

#include <event2/event.h>
#include <jansson.h>
#include <stdint.h>

#include "common/err.h"

struct links;

struct links_config {
    const char *host; /* to listen on: of this node's address; a name or a numeric address */
    uint16_t port;    /* 0: any */
    const char *ca_file, *cert_file, *key_file; /* borrowed until links_destroy */
};

/* One measured link; err->code is set when it could not be measured. On the base's thread. */
struct links_result {
    int64_t request;
    char to[80];
    double latency_s;
    double bytes_per_s;
    struct err err;
};
typedef void links_done_fn(void *arg, const struct links_result *result);

/* Listens. ERR_NET, ERR_IO. */
struct links *links_create(struct event_base *base, const struct links_config *config, links_done_fn *done,
                           void *arg, struct err *err);
/* Waits for its threads (their deadlines are 10 s; connections are shut down at once). */
void links_destroy(struct links *links);

/* Who may measure with us, and be measured: {"NODE": generation}, the whole cluster as the scheduler has it.
 * Until it is told, nobody. Copied. */
void links_nodes(struct links *links, const json_t *nodes);
/* Use the certificate that now stands in the files for new connections. */
int links_reload(struct links *links, struct err *err);

/* The port listened on. */
uint16_t links_port(const struct links *links);

/* Measure the link to node 'to' at "host:port". ERR_BUSY with 256 waiting. */
int links_measure(struct links *links, int64_t request, const char *to, const char *address, struct err *err);

#endif
