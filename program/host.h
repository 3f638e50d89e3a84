/* Host memory that a worker needs for a plan, beside the device's memory. Pure.
 *
 * The formulas are upper bounds of what worker/program/ops.c, worker/program/reduce.c and
 * worker/checkpoint/state.c allocate. Data sets are extra, 8 bytes a token. P is one copy of the rank's
 * trained parameters: half of its purpose "adapters" (values and gradients). Data that a peer sends before
 * it is asked for is extra, too, at most mesh.h's window per queue.
 */
#ifndef MOTLEY_PROGRAM_HOST_H
#define MOTLEY_PROGRAM_HOST_H

#include <stdint.h>

#include "program/program.h"

struct plan_host {
    /* Page-locked memory: every instance of every boundary slot that a SEND or RECV uses, bytes_bound
     * rounded up to pages. Links within the node need it only if their devices cannot share memory. */
    uint64_t cells;
    /* Buffers of reductions and broadcasts of gradients or parameters: the largest sum over a program. A
     * ring of n needs its blocks' share of P, and an n-th of that; a reduction to a root needs 3 times the
     * share (for a tied embedding's gradient: twice on the rank that keeps it, once elsewhere); a
     * broadcast or gather needs it once. */
    uint64_t collectives;
    /* The largest of three: a copy of values and moments and the moments' file (5 P), while parts of the
     * ranks below in group 0's tree may have arrived; the values, those parts, and the file of both; a
     * whole adapter and one state, when it is loaded. */
    uint64_t checkpoint;
    uint64_t moments; /* the optimiser's moments, if they lie on the host */
};

/* The host memory of a rank of a sealed plan with programs. */
/* streamed: the memory of a checkpoint that is stored piece by piece instead of copied first; 0: it is
 * copied. */
struct plan_host plan_host_bytes(const struct plan *plan, uint32_t rank, uint64_t streamed);
/* The sum of all members. */
uint64_t plan_host_total(const struct plan_host *host);

#endif
