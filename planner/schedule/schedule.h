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

/* Mean seconds that one member of a stage takes for one micro-batch. */
struct stage_price {
    /* backward_s includes recomputation; split backward: only the gradients of inputs */
    double forward_s, backward_s;
    double weight_s; /* split backward: the gradients of parameters */
    /* [forward, backward] seconds of a layer that two stages share: of the stage's first block, if the
     * previous stage runs it for some micro-batches, and of the next stage's first block, if this stage runs
     * that for some (candidate_runs_next). The means above contain both. */
    double first_s[2], next_s[2];
    double ready_s; /* when the member's weights are gathered, from the step's beginning */
};

struct schedule {
    uint32_t ranks, stages, micro_batches;
    uint32_t *owner; /* [stage · micro_batches + k]: the rank that works on micro-batch k, as an index of the
                        candidate's members */
    uint32_t *first; /* [ranks + 1]: each rank's first index into events */
    struct schedule_event *events; /* all ranks' events, in their order of work */
    /* [stage · micro_batches + k], seconds from the step's beginning: when computing begins and ends, and
     * when the result has left the sender's buffer. Of a split backward: for the gradients of inputs, which
     * the previous stage waits for. */
    double *forward_begin, *forward_end, *forward_left, *backward_begin, *backward_end, *backward_left;
    double *rank_end; /* [ranks]: when the rank's last event ends */
    double end_s;     /* the latest rank_end */
    void *memory;
    size_t capacity;
};

/* Fills *schedule for a candidate whose stages are replicas or tensor groups. A tensor group works as one
 * rank, its first member. prices: one for each member of each stage, stage after stage (one for a tensor
 * group); so the n-th range of blocks of interleaved ranks has its prices from n · ranks on. micro_batches:
 * those of the step, or fewer to estimate a long one. A member's window limits its micro-batches in flight; 0
 * means no limit. limit_s: the run ends as soon as it is certain that some rank ends no sooner, and only
 * owner and first are then complete; INFINITY: it does not. Returns 0; 1 if the limit ended it; −1 with
 * ERR_NOFIT for a deadlock (interleaved), ERR_NOMEM. */
int schedule_run(struct schedule *schedule, const struct problem *problem, const struct candidate *candidate,
                 const struct stage_price *prices, uint32_t micro_batches, double limit_s, struct err *err);
/* Fills only schedule->owner and first: which member works on which micro-batch, and how many events each
 * rank has. ERR_NOMEM. */
int schedule_deal(struct schedule *schedule, const struct problem *problem, const struct candidate *candidate,
                  const struct stage_price *prices, uint32_t micro_batches, struct err *err);
/* Computes the times of the last schedule_run's order again, with the same candidate and prices: micro-batch
 * k takes scale[k] times the mean seconds. It serves rows that differ in length; the order does not depend on
 * them. Returns what schedule_run returns. */
int schedule_follow(struct schedule *schedule, const struct problem *problem,
                    const struct candidate *candidate, const struct stage_price *prices, const double *scale,
                    double limit_s, struct err *err);
void schedule_fini(struct schedule *schedule);

/* The buffers of one kind of tensor: micro-batch k uses buffer k mod ring; held: how many are in use at once.
 */
struct schedule_ring {
    uint32_t ring, held;
};
/* The buffers of a rank's stage. activations, gradients: boundary tensors that arrive, until they are used.
 * leaving, returning: activations and gradients that the rank makes, until they are sent. saved: what a
 * forward saves for its backward. Zero where there is no neighbour. */
struct schedule_rings {
    struct schedule_ring activations, gradients, leaving, returning, saved;
};
/* Finds the number of buffers of each kind: as many as the schedule uses at once at mean costs, and at least
 * 2 for boundary tensors. In the strict order of a plain pipeline the micro-batches in flight determine it.
 * ERR_NOMEM. */
int schedule_rings(struct schedule *schedule, const struct candidate *candidate, uint32_t stage,
                   uint32_t rank, struct schedule_rings *rings, struct err *err);

#endif
