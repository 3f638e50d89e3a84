/* The worker: one process that runs one rank of one run on one device.
 *
 * The agent starts it as `motley-worker --socket DIR/worker.sock --dir DIR`. It listens on that unix socket
 * before it does anything slow. The agent connects, and may connect again after it restarted. Both directions
 * carry frames: a 4-byte big-endian length (bounded) and one msgpack document (common/frame.h).
 *
 * Messages from the agent: `assign`, `peers`, `save`, `stop`, `ack`, `profile`, `links` (docs/CONTRACTS.md),
 * and `prove`.
 * Messages to the agent: first, on every new connection,
 *   {"type": "worker_hello", "pid", "run"|null, "epoch"|null, "rank"|null, "request"|null, "seq"}
 * which is not an event and is not stored; then every event that is not acknowledged, in order, each with
 * `run`, `epoch`, `rank`, `seq` (from 1) and `at`. An event is stored until an `ack` with its run and a seq
 * not below its own arrives.
 *
 * In addition to the fields of CONTRACTS.md, `assign` and `profile` have the fields that the agent adds. The
 * agent's own message `prove` {request, device} has them, too; its answer is `proved` or `failed` (prove.h):
 *   "local": {
 *     "device": {"name": "left/cpu0", "kind": "cpu", "threads": 1, "memory_limit_bytes": 471859200},
 *     "listen": "127.0.0.1:0",       where the mesh listens ("host:port", port 0: any)
 *     "advertise": "10.0.0.1"|null,  host that peers are told instead
 *     "identity": "worker:left/cpu0",
 *     "cert": FILE, "key": FILE, "ca": FILE,                     PEM, mutual TLS of the mesh
 *     "api": "https://…", "api_ca": FILE|null, "token": "…",     artifact store
 *     "cache": DIR, "cache_limit_bytes": N,                      the node's chunk cache
 *     "start_ns": N                  of `profile`: the common start, on this machine's CLOCK_MONOTONIC
 *   }
 *
 * A run proceeds in this order. The assignment is checked (every field, the plan by program/check/check.h,
 * the epoch). The device is opened with its memory limit, the model is opened (only the bytes of this rank's
 * blocks are read), and the adapter or checkpoint and the encoded rows are loaded. The mesh listens and
 * `worker_ready` is sent. When `peers` has come, the peers that the programs name are connected, `started` is
 * sent, the steps run, and `done` or `failed` is sent. The process ends when its last event is acknowledged,
 * or without an agent for worker_options.alone_ns.
 *
 * Exit status: 0 done or stopped as asked, 1 failed (the `failed` event says why), 2 usage.
 */
#ifndef MOTLEY_WORKER_WORKER_H
#define MOTLEY_WORKER_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct worker_options {
    const char *socket; /* path of the unix socket to listen on; an existing file is replaced */
    const char *dir;    /* private folder of this worker, mode 0700; what it writes is in "files" there */
    bool confined;     /* it reaches only what its work needs (start/reach.h): all threads of the process, for
                          ever */
    uint64_t alone_ns; /* the process ends after this time without an agent; 0 means 600 s */
    uint64_t assign_ns; /* the process ends when nothing was assigned in this time; 0 means 600 s */
    uint64_t linger_ns; /* limit for the last acknowledgement with an agent present; 0 means 30 s */
};

struct worker;

/* worker_create listens on the socket (ERR_IO, ERR_NOMEM) and borrows the options' strings until
 * worker_destroy. worker_main handles one assignment or profile on the calling thread. It returns 0 when done
 * or stopped as asked; -1 with the reason that the `failed` event carries, or with the reason why no agent
 * could be reached. worker_stop, from any thread or a signal handler while worker_main runs, means "stop,
 * checkpoint first". worker_destroy of NULL is a no-op. */
int worker_create(const struct worker_options *options, struct worker **out, struct err *err);
int worker_main(struct worker *worker, struct err *err);
void worker_stop(struct worker *worker);
void worker_destroy(struct worker *worker);

#endif
