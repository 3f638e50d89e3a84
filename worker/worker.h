/* The worker: one process, one device, one rank of one run.
 *
 * Started by the agent as `motley-worker --socket DIR/worker.sock --dir DIR`.
 * It listens on that unix socket before it does anything slow; the agent
 * connects, and may connect again after it restarted. Both directions carry
 * frames: 4-byte big-endian length (bounded), then one msgpack document of
 * common/frame.h.
 *
 * From the agent: `assign`, `peers`, `stop`, `ack`, `profile`, `links`
 * (docs/CONTRACTS.md). To the agent: on every new connection first
 *   {"type": "worker_hello", "pid", "run"|null, "epoch"|null, "rank"|null,
 *    "request"|null, "seq"}                      (no event: it is not kept)
 * then every event that is not acknowledged yet, in order, each with `run`,
 * `epoch`, `rank`, `seq` (from 1), `at`. An event is kept until an `ack` with
 * its run and a seq not below its own arrives.
 *
 * Beside the fields of CONTRACTS.md an `assign` (and a `profile`) holds what
 * the agent adds before it passes it on:
 *   "local": {
 *     "device": {"name": "left/cpu0", "kind": "cpu", "threads": 1,
 *                "memory_limit_bytes": 471859200},
 *     "listen": "127.0.0.1:0",       where the mesh listens ("host:port", 0: any)
 *     "advertise": "10.0.0.1"|null,  what peers are told instead of the host
 *     "identity": "worker:left/cpu0",
 *     "cert": FILE, "key": FILE, "ca": FILE,        PEM, mutual TLS of the mesh
 *     "api": "https://…", "api_ca": FILE|null, "token": "…",   blobs
 *     "cache": DIR, "cache_limit_bytes": N          the node's chunk cache
 *   }
 *
 * What happens, in order: the assignment is checked (every field, the plan by
 * program/check/check.h, the epoch), the device is made with its limit, the model
 * opened (only the bytes of this rank's blocks), adapter or checkpoint and the
 * encoded rows loaded, the mesh listens, `worker_ready`; `peers` comes, the
 * peers that the program names are connected, `started`, the steps run, `done`
 * or `failed`. The process ends when its last event is acknowledged, or
 * without an agent for worker_options.alone_ns.
 *
 * Exit status: 0 done or stopped as asked, 1 failed (the `failed` event says
 * why), 2 usage.
 */
#ifndef MOTLEY_WORKER_WORKER_H
#define MOTLEY_WORKER_WORKER_H

#include <stdint.h>

#include "common/err.h"

struct worker_options {
    const char *socket; /* path of the unix socket to listen on; an existing file is replaced */
    const char *dir;    /* private folder of this worker for staging files, mode 0700 */
    uint64_t alone_ns;  /* the process ends after so long without an agent; 0 means 600 s */
    uint64_t assign_ns; /* the process ends when nothing was assigned in this time; 0 means 600 s */
    uint64_t linger_ns; /* limit for the last acknowledgement with an agent present; 0 means 30 s */
};

/* Run one worker to its end on the calling thread. SIGTERM is turned into
 * "stop, checkpoint first" by worker_stop (async-signal-safe).
 * Returns 0 when done or stopped as asked, -1 with the reason that the
 * `failed` event carries, or with why no agent could be talked to. */
int worker_run(const struct worker_options *options, struct err *err);

struct worker;

/* The parts of worker_run. worker_create listens on the socket (ERR_IO, ERR_NOMEM) and borrows the options'
 * strings until worker_destroy. worker_main handles one assignment or profile and returns as worker_run does.
 * worker_stop may be called from any thread or a signal handler while worker_main runs. worker_destroy of
 * NULL is a no-op. */
int worker_create(const struct worker_options *options, struct worker **out, struct err *err);
int worker_main(struct worker *worker, struct err *err);
void worker_stop(struct worker *worker);
void worker_destroy(struct worker *worker);

#endif
