/* The schedule of a step of pipeline stages: which member works on which micro-batch, in which order, and
 * when. It is list scheduling at mean costs. The search estimates with it, and the emitters write its
 * order into the plan.
 *
 * A rank works on one event at a time. In the strict order a rank runs as many forwards as its window,
 * then one backward and one forward in turn (1F1B; GPipe if the window is all micro-batches); interleaved
 * and split schedules have orders of their own. An eager rank takes whatever has arrived, backwards first,
 * while fewer micro-batches than its window are in flight. A micro-batch without an assigned member goes
 * to the member of the stage that would finish it first. Transfers occupy the link between two ranks, the
 * wire between two nodes and the nodes' network cards as in the simulator (planner/simulate/simulate.h).
 *
 * Pure. One thread reuses a struct schedule many times; it grows as needed.
 */
#ifndef MOTLEY_PLANNER_SCHEDULE_SCHEDULE_H
#define MOTLEY_PLANNER_SCHEDULE_SCHEDULE_H

#include "planner/candidate/candidate.h"
#include "planner/schedule/order.h"

/* Mean seconds of one micro-batch on one member of one stage. */
struct stage_price {
    /* backward_s includes recomputation; split: it is the half for inputs' gradients */
    double forward_s, backward_s;
    double weight_s; /* split: the half of the backward for parameters' gradients */
    double ready_s;  /* time at which its weights are gathered, from the step's beginning */
};

struct schedule {
    uint32_t ranks, stages, micro_batches;
    uint32_t *owner; /* [stage · micro_batches + k]: rank, an index of the candidate's members */
    uint32_t *first; /* [ranks + 1]: each rank's first index into events */
    struct schedule_event *events; /* each rank's events in order */
    /* [stage · micro_batches + k], seconds from the step's beginning: when computing begins and ends, and
     * when the result has left the sender's buffer. Of split backwards: the half that the neighbour waits
     * for. */
    double *forward_begin, *forward_end, *forward_left, *backward_begin, *backward_end, *backward_left;
    double *rank_end; /* [ranks]: end of the last event */
    double end_s;     /* the latest rank_end */
    void *memory;
    size_t capacity;
};

/* Fills *schedule for a candidate whose stages are chains of replicas or tensor groups. A tensor group
 * works as one rank and is represented by its first member. prices: one for each stage's members, stage
 * after stage (one for a tensor group). micro_batches: those of the step, or fewer to estimate a long one.
 * Members' windows are limits; 0 means no limit. Returns 0; −1 with ERR_NOFIT for a deadlock
 * (interleaved), ERR_NOMEM. */
int schedule_run(struct schedule *schedule, const struct problem *problem, const struct candidate *candidate,
                 const struct stage_price *prices, uint32_t micro_batches, struct err *err);
/* Fills only owner and first: the member of every micro-batch, and the number of each rank's events.
 * ERR_NOMEM. */
int schedule_deal(struct schedule *schedule, const struct problem *problem, const struct candidate *candidate,
                  const struct stage_price *prices, uint32_t micro_batches, struct err *err);
/* Times the order of the last schedule_run again, with the same candidate and prices: micro-batch k takes
 * scale[k] times the mean seconds. It serves rows that differ in length, since the order does not depend
 * on them. */
int schedule_follow(struct schedule *schedule, const struct problem *problem,
                    const struct candidate *candidate, const struct stage_price *prices, const double *scale,
                    struct err *err);
void schedule_fini(struct schedule *schedule);

/* A ring of buffers. Micro-batch k uses instance k mod ring; held: how many are in use at once. */
struct schedule_ring {
    uint32_t ring, held;
};
/* Rings of a rank's stage. activations, gradients: boundary tensors that arrive, until they are used.
 * leaving, returning: those the rank makes, until they are sent. saved: what a forward saves for its
 * backward. Zero where there is no neighbour. */
struct schedule_rings {
    struct schedule_ring activations, gradients, leaving, returning, saved;
};
/* Finds the rings: as deep as the schedule at mean costs uses them, and at least 2 for boundary tensors.
 * In the strict order of a plain pipeline the windows determine them. ERR_NOMEM. */
int schedule_rings(struct schedule *schedule, const struct candidate *candidate, uint32_t stage,
                   uint32_t rank, struct schedule_rings *rings, struct err *err);

#endif
