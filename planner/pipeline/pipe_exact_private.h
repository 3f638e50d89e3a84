/* Shared by pipe_exact.c (orders and cuts) and pipe_exact_windows.c (windows and recomputation); not for
 * others. */
#ifndef MOTLEY_PLANNER_PIPELINE_PIPE_EXACT_PRIVATE_H
#define MOTLEY_PLANNER_PIPELINE_PIPE_EXACT_PRIVATE_H

#include "planner/cost/micro.h"
#include "planner/pipeline/pipe_exact.h"

#define PIPE_EXACT_SAME 1e-9 /* relative: what is no faster than this is not looked at */

/* Times of one step's micro-batches through the stages in hand; [stages][micro-batches] each. */
struct exact_times {
    double *forward, *backward, *again; /* seconds; backward without recomputation, which is `again` */
    double *onward, *back;              /* occupancy of the link behind a stage, of the link before it */
    double *comes;                      /* a forward cannot begin earlier, whatever the windows are */
    double tail[PIPE_EXACT_DEVICES];    /* from the last backward of a stage to the end, at least */
};

struct exact {
    const struct problem *p;
    struct err *err;
    uint32_t steps, rows, micro_batches;
    uint64_t left; /* of the budget */
    bool cut_off, failed;
    double best;
    struct place_choice found;
    /* the size in hand */
    struct micro_cost *cost; /* [steps][device_count][micro_batches] */
    double *bytes;           /* [steps][micro_batches]: of a boundary tensor; negative: an empty one */
    struct micro_cost *all, *first,
        *last; /* [device_count]: mean over steps: all micro-batches, one of them */
    double *hop_first,
        *hop_last; /* [device_count]²: mean seconds of a boundary tensor from one to the other */
    /* the stages in hand, from the head */
    uint32_t stages, device[PIPE_EXACT_DEVICES];
    int32_t end[PIPE_EXACT_DEVICES];
    double after; /* seconds after the last backward: a tied embedding's sums, the optimiser */
    uint32_t window[PIPE_EXACT_DEVICES];
    bool recompute[PIPE_EXACT_DEVICES];
    struct exact_times *times; /* [steps] */
    double *memory;            /* theirs, and of a run's own */
};

/* Bytes of a stage at a window, with so many boundary tensors. */
uint64_t exact_need(const struct exact *x, int32_t begin, int32_t end, uint32_t window, bool recompute,
                    uint32_t buffers);
/* Makes room for the size in hand's times. ERR_NOMEM. */
int exact_times_init(struct exact *x);
void exact_times_fini(struct exact *x);
/* Every choice of windows and recomputation of the stages in hand that may be faster than x->best; what
 * simulation says is becomes x->found. */
void exact_windows(struct exact *x);

#endif
