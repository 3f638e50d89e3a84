/* Host memory of a worker beside its device's, as the plan has it. Pure.
 *
 * The formulas are upper bounds of what worker/program/ops.c, worker/program/reduce.c and
 * worker/checkpoint/state.c take; data sets come on top, 8 bytes a token. P is one state of the rank's
 * trained parameters: half of its purpose "adapters" (values and gradients). What a peer sends before it is
 * asked for stands beside it, at most mesh.h's window a queue. */
#ifndef MOTLEY_PROGRAM_HOST_H
#define MOTLEY_PROGRAM_HOST_H

#include <stdint.h>

#include "program/program.h"

struct plan_host {
    /* Page-locked: each instance of each boundary slot that a SEND or RECV names, bytes_bound in whole pages
     * (of links within the node only where the devices cannot have them) */
    uint64_t cells;
    /* Of the program that takes most, the sum over reductions and broadcasts of gradients or parameters: of
     * one round a ring of n its blocks' share of P and the n-th part of it, of one to a root 3 times that
     * share (a tied embedding's gradient: twice where it is kept, once elsewhere), of a broadcast or gather
     * once. */
    uint64_t collectives;
    /* The largest of: the copy of values and moments and the moments' file (5 P), while the parts of the
     * ranks below in group 0's tree may have come already; the values, those parts, and the file of both; a
     * whole adapter and one state, when it is loaded. */
    uint64_t checkpoint;
    uint64_t moments; /* of the optimiser, where they lie on the host */
};

/* Of a rank of a sealed plan with its programs. */
/* streamed: what a checkpoint takes that is not copied first but stored piece by piece; 0: it is copied. */
struct plan_host plan_host_bytes(const struct plan *plan, uint32_t rank, uint64_t streamed);
/* All together. */
uint64_t plan_host_total(const struct plan_host *host);

#endif
