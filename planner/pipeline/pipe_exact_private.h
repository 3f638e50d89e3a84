/* Shared by pipe_exact.c (tables, orders and cuts), pipe_exact_windows.c (windows and recomputation) and
 * lap_exact.c (interleaved); not for others. */
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
    uint32_t count, usable[PIPE_EXACT_DEVICES];
    int32_t blocks;
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

/* An empty look for what is faster than best_s. False: too many usable devices or blocks, or too few. */
bool exact_init(struct exact *x, const struct problem *problem, double best_s, uint32_t steps_max,
                uint64_t budget, struct err *err);
/* Every size of micro-batches, or of many rows those that are tried anywhere; or the one asked for. Returns
 * how many. */
uint32_t exact_sizes(const struct problem *problem, uint32_t sizes[MICRO_SIZES_MAX]);
/* Prices micro-batches of x->rows rows. exact_size_fini afterwards, whatever it returns. ERR_NOMEM. */
int exact_size_init(struct exact *x);
void exact_size_fini(struct exact *x);
/* Seconds after the last backward: a tied embedding's gradients come and go, the optimiser's step. `most` of
 * any rank, `first` of the first. */
double exact_after(const struct exact *x, double most, double first, uint32_t last_device);
/* Emits and simulates a choice and keeps it if it is the fastest; false: it does not fit. */
bool exact_take(struct exact *x, const struct place_choice *choice);
/* The end of a look that came to 0 or −1: 1 with what was found and its seconds for the caller, 0 when
 * nothing was, or −1. */
int exact_end(struct exact *x, int result, struct place_choice *choice, double *seconds);

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
