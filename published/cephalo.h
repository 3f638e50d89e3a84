/* Distributes rows and state unevenly over fully sharded GPUs: Cephalo's problem, solved exactly.
 *
 * Minimises the largest layer time over the GPUs, where every GPU works, Σ batch = B, and total memory is
 * below a cap. Bisects over the finite set of times; for each, a table over the batch assigned so far has the
 * least memory. docs/PLANNER.md, Search 1, describes it; the formulas are Cephalo's (sections 3 to 6 of its
 * fixtures' README). Only the files of published/ include this header; all functions are pure. */
#ifndef MOTLEY_PUBLISHED_CEPHALO_H
#define MOTLEY_PUBLISHED_CEPHALO_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

#define CEPHALO_GPUS_MAX 4096u
#define CEPHALO_BATCH_MAX 65536u

/* One kind of GPU: time (ms per layer) and memory (GiB) of n micro-batches of m rows. */
struct cephalo_kind {
    const double *forward_ms, *backward_ms; /* [batch + 1], by rows of a micro-batch; index 0 is unused */
    uint32_t micro_max;                     /* most rows that memory allows (X) */
    uint32_t even_max; /* most rows with which the GPU can hold an even share (E); beyond it collectives are
                          slower */
};

struct cephalo_problem {
    uint32_t gpu_count, kind_count, batch;
    const uint32_t *kind_of; /* [gpu_count] */
    const struct cephalo_kind *kinds;
    const double *memory_gib; /* [batch + 1], by rows of a micro-batch */
    double gather_ms, scatter_ms, uneven_factor, accumulate_ms;
    double state_gib, cap_gib; /* Σ memory + state must be below cap */
};

struct cephalo_part {
    uint32_t micro_rows, micro_count;
};

double cephalo_gpu_ms(const struct cephalo_problem *problem, uint32_t kind, uint32_t count, uint32_t rows);

/* Fills parts[gpu_count] and *layer_ms. Returns 1 if there is a plan, 0 if none is feasible, −1 ERR_NOMEM.
 * Of the plans with the least time it takes one with the least memory. */
int cephalo_solve(const struct cephalo_problem *problem, struct cephalo_part *parts, double *layer_ms,
                  struct err *err);

/* Computes shares of the state, as even as room allows (water filling). Their sum is 1, and none exceeds its
 * room if Σ room ≥ state; otherwise they are in proportion to room. room has the state's unit. */
void cephalo_shares(const double *room, uint32_t count, double state, double *shares);

#endif
