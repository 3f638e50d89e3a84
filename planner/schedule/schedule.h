/* The schedule of a step of pipeline stages: which member works on which micro-batch, in which order, and
 * when. List scheduling at mean costs: the estimator of the search, and the order that the emitters write
 * down.
 *
 * A rank works on one thing at a time. In the strict order a rank runs as many forwards as its window, then
 * one backward and one forward in turn (1F1B; a window of all micro-batches is GPipe); interleaved and split
 * schedules have orders of their own. Eager ranks take whatever has arrived, backwards first, while less than
 * their window is under way. Where nobody says who takes a micro-batch, the member of the stage that would be
 * done with it first does. Transfers occupy the link between two ranks, the wire between two nodes and the
 * nodes' network cards as in the simulator (planner/simulate/simulate.h).
 *
 * Pure. A struct schedule is used again and again by one thread; it grows as needed.
 */
#ifndef MOTLEY_PLANNER_SCHEDULE_SCHEDULE_H
#define MOTLEY_PLANNER_SCHEDULE_SCHEDULE_H

#include "planner/candidate/candidate.h"
#include "planner/schedule/order.h"

/* Mean seconds of one micro-batch on one member of one stage. */
struct stage_price {
    double forward_s, backward_s; /* backward: recomputation included; split: of the inputs' half */
    double weight_s;              /* of the weights' half, where backwards are split */
    double ready_s;               /* when its weights are there, from the step's beginning */
};

struct schedule {
    uint32_t ranks, stages, micro_batches;
    uint32_t *owner;               /* [stage · micro_batches + k]: rank (member of the candidate) */
    uint32_t *first;               /* [ranks + 1] into events */
    struct schedule_event *events; /* each rank's order */
    /* [stage · micro_batches + k], seconds from the step's beginning: when computing begins and ends, and
     * when its result has left the sender's buffer. Of backwards: of the half that the neighbour waits for.
     */
    double *forward_begin, *forward_end, *forward_left, *backward_begin, *backward_end, *backward_left;
    double *rank_end; /* [ranks]: of its last event */
    double end_s;     /* the latest of these */
    void *memory;
    size_t capacity;
};

/* Fills *schedule for a candidate whose stages are chains of replicas or tensor groups (a tensor group works
 * as one: its first member stands for it). prices: of each stage's members, stage after stage (a tensor group
 * has one). micro_batches: of the step, or fewer to estimate a long one. Members' windows are limits; 0 means
 * no limit. Returns 0; −1 with ERR_NOFIT when the order would stand still (interleaved), ERR_NOMEM. */
int schedule_run(struct schedule *schedule, const struct problem *problem, const struct candidate *candidate,
                 const struct stage_price *prices, uint32_t micro_batches, struct err *err);
/* Fills only owner and first: who takes which micro-batch, and how many events each rank has. ERR_NOMEM. */
int schedule_deal(struct schedule *schedule, const struct problem *problem, const struct candidate *candidate,
                  const struct stage_price *prices, uint32_t micro_batches, struct err *err);
/* Times the order that the last schedule_run found once more, micro-batch k taking scale[k] times its mean:
 * rows differ in length, and an order does not change with them. As schedule_run, with the same candidate and
 * prices. */
int schedule_follow(struct schedule *schedule, const struct problem *problem,
                    const struct candidate *candidate, const struct stage_price *prices, const double *scale,
                    struct err *err);
void schedule_fini(struct schedule *schedule);

/* A ring of buffers: instances, so that micro-batch k has instance k mod ring, and how many are held at once.
 */
struct schedule_ring {
    uint32_t ring, held;
};
/* Rings of a rank's stage: activations that arrive and gradients that arrive, until they are used;
 * activations and gradients made, until they have left; zeros where there is no neighbour. saved: what
 * forward leaves for backward. */
struct schedule_rings {
    struct schedule_ring activations, gradients, leaving, returning, saved;
};
/* Rings are as deep as a run of the order at mean costs holds buffers, at least 2 for boundaries; in the
 * strict order of a pipeline they follow from the windows alone. ERR_NOMEM. */
int schedule_rings(struct schedule *schedule, const struct candidate *candidate, uint32_t stage,
                   uint32_t rank, struct schedule_rings *rings, struct err *err);

#endif
