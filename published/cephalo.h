/* Uneven rows × uneven state over fully sharded GPUs: Cephalo's problem, solved exactly.
 *
 * Minimise the largest layer time over GPUs, every GPU working, Σ batch = B, and total memory under a cap.
 * Bisects over the finite set of times; for each, a table over the batch assigned so far holds the least
 * memory. docs/PLANNER.md, Search 1; formulas: Cephalo (sections 3 to 6 of its fixtures' README). For this
 * room only; pure.
 */
#ifndef MOTLEY_PUBLISHED_CEPHALO_H
#define MOTLEY_PUBLISHED_CEPHALO_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

#define CEPHALO_GPUS_MAX 4096u
#define CEPHALO_BATCH_MAX 65536u

/* One kind of GPU: what n micro-batches of m rows take (ms a layer) and hold (GiB). */
struct cephalo_kind {
    const double *forward_ms, *backward_ms; /* [batch + 1], by rows of a micro-batch; index 0 unused */
    uint32_t micro_max;                     /* most rows that memory allows (X) */
    uint32_t even_max; /* beyond it the GPU cannot hold an even share (E): collectives slow down */
};

struct cephalo_problem {
    uint32_t gpu_count, kind_count, batch;
    const uint32_t *kind_of; /* [gpu_count] */
    const struct cephalo_kind *kinds;
    const double *memory_gib; /* [batch + 1], by rows of a micro-batch */
    double gather_ms, scatter_ms, uneven_factor, accumulate_ms;
    double state_gib, cap_gib; /* Σ memory + state must stay below cap */
};

struct cephalo_part {
    uint32_t micro_rows, micro_count;
};

double cephalo_gpu_ms(const struct cephalo_problem *problem, uint32_t kind, uint32_t count, uint32_t rows);

/* Fills parts[gpu_count] and *layer_ms. Returns 1 when there is a plan, 0 when none is feasible, −1
 * ERR_NOMEM. Among plans of least time it takes one of least memory. */
int cephalo_solve(const struct cephalo_problem *problem, struct cephalo_part *parts, double *layer_ms,
                  struct err *err);

/* Shares of the state, as even as room allows (water filling): Σ = 1 and none beyond its room whenever Σ room
 * ≥ state; else in proportion to room. room in the state's unit. */
void cephalo_shares(const double *room, uint32_t count, double state, double *shares);

#endif
