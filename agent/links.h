/* Measures latency and bandwidth between nodes through the same TLS as training uses.
 *
 * Every agent listens on a port for other agents of its cluster (mutual TLS 1.3). A measurement opens one
 * connection and sends 16 small frames that are echoed (half the median round trip is the latency), looks
 * whether full packets come through as well, then sends bytes for about half a second but at most 64 MiB,
 * which are acknowledged at their end, and then both ways at once for about a quarter of a second. This runs
 * on threads of its own: at most 4 connections are served at a time, of the nodes asked for 16 are tried to
 * connect to, and one is measured, each with a deadline. Results are passed to the event base's thread.
 */
#ifndef MOTLEY_AGENT_LINKS_H
#define MOTLEY_AGENT_LINKS_H

#include <event2/event.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct links;

struct links_config {
    const char *host;                           /* host to listen on, a name or a numeric address */
    uint16_t port, port_last;                   /* the first free port of these is taken; 0 and 0: any */
    const char *ca_file, *cert_file, *key_file; /* borrowed until links_destroy */
};

/* One measured link. err.code is set when it could not be measured. */
struct links_result {
    int64_t request;
    char to[80];
    double latency_s;
    double bytes_per_s;
    double duplex_bytes_per_s; /* rate each way while both ways are in use; 0: not measured */
    bool unreachable; /* no connection could be opened to the node's address, or full packets are lost */
    struct err err;
};
/* Called on the event base's thread for each request. */
typedef void links_done_fn(void *arg, const struct links_result *result);

/* Listens and starts the threads. ERR_NET, ERR_IO. */
struct links *links_create(struct event_base *base, const struct links_config *config, links_done_fn *done,
                           void *arg, struct err *err);
/* Shuts connections down and waits for the threads, whose deadlines are 10 s. */
void links_destroy(struct links *links);

/* Sets the nodes that may measure with us and be measured: {"NODE": generation}, the whole cluster as the
 * scheduler knows it (copied), among them this one, `own`. Before the first call nobody may. */
void links_nodes(struct links *links, const char *own, const json_t *nodes);
/* Uses the certificate that is now in the files for new connections. */
int links_reload(struct links *links, struct err *err);

/* Returns the CPU seconds that this node takes to send one byte and receive another through our TLS, which is
 * measured once, when the node is told of the cluster; 0: not yet. */
double links_cpu_per_byte(struct links *links);

/* Returns the port on which this agent listens for other agents. */
uint16_t links_port(const struct links *links);

/* Queues a measurement of the link to node 'to' at "host:port". ERR_BUSY when 256 are waiting. */
int links_measure(struct links *links, int64_t request, const char *to, const char *address, struct err *err);

#endif
