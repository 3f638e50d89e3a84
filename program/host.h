/* Host memory that a worker needs for a plan, beside the device's memory. Pure.
 *
 * The formulas are upper bounds of what worker/program/ops.c, worker/program/reduce.c and worker/checkpoint/
 * allocate. Data sets are extra, 8 bytes a token. */
#ifndef MOTLEY_PROGRAM_HOST_H
#define MOTLEY_PROGRAM_HOST_H

#include <stdint.h>

#include "program/program.h"

/* Parameters and gradients are sent in slices (worker/program/stream.c): sharded state, gradients of
 * replicas, a tied embedding that one rank keeps for the heads of others. Every queue of a group or peer that
 * sends any has host memory for this many slices. */
enum { STREAM_SLICE_BYTES = 256 << 10, STREAM_SEND_BUFFERS = 4, STREAM_SCRATCH_BUFFERS = 1 };
static inline uint32_t stream_receive_buffers(uint32_t members)
{
    return members > 4 ? 2 * members : 8;
}

/* Sizes of the host memory for a rank's DISPATCHes and COMBINEs in an expert plan
 * (worker/program/exchange.c). */
struct exchange_room {
    uint64_t own;    /* bytes of the routed tokens of the rows whose attention this rank computes; 0: the rank
                        computes none */
    uint64_t spread; /* bytes of the routed tokens that this rank sends, each counted once for every rank
                        that it is sent to */
    uint64_t came;   /* bytes of the tokens that this rank's experts receive; 0: the rank has no experts */
    uint32_t active; /* experts that a token uses */
    uint32_t tokens; /* most tokens of the rows whose attention this rank computes */
    uint32_t layers; /* layers with experts */
    uint32_t wave;   /* most micro-batches that have begun their first DISPATCH and not ended their last
                        COMBINE */
};
/* Returns the sizes for a rank; all zero if the plan is not an expert plan, or if the rank exchanges nothing.
 */
struct exchange_room plan_exchange_room(const struct plan *plan, uint32_t rank);

/* Bytes that a peer may send on a queue before the receive is posted, and the bytes that count for a message
 * beside its payload (mesh/mesh.h; worker/session/report.c asserts that they are the same). */
enum { HOST_WINDOW_BYTES = 16 << 20, HOST_MESSAGE_BYTES = 256 };

struct plan_host {
    /* Page-locked memory: every instance of every boundary slot that a SEND, a RECV or an all-reduce of a
     * tensor group uses, bytes_bound rounded up to pages; and for all-reduces one received partial sum.
     * Transfers within a node need it only if the devices cannot share memory. */
    uint64_t cells;
    /* Slices of parameters and gradients being sent, whose number does not depend on the model's size; and
     * buffers for routed tokens: the rank's own, packed by receiver, and received, in both directions, with
     * the ranks that each token went to. */
    uint64_t collectives;
    /* Bytes for a checkpoint file that is made or received (32 MiB), files that wait to be uploaded (32 MiB)
     * and, on rank 0, the adapter's file (16 MiB), each at most as large as the state that it contains;
     * loading a checkpoint needs less. */
    uint64_t checkpoint;
    uint64_t moments; /* the optimiser's moments, if they lie on the host */
    /* Messages that peers send before this rank posts the receives: for each queue from each peer, the bytes
     * that a program or a checkpoint receives on it, at most the mesh's window. */
    uint64_t early;
};

/* Returns the host memory of a rank of a sealed plan with programs. */
struct plan_host plan_host_bytes(const struct plan *plan, uint32_t rank);
/* Returns the sum of the fields of *host. */
uint64_t plan_host_total(const struct plan_host *host);

#endif
