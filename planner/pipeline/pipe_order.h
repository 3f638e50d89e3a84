/* In which order the ranks of a pipeline compute: one list per rank, for every schedule; and how long a step
 * in that order takes.
 *
 * Stages are ranges of blocks in the order of the blocks. Stage j is done by rank j mod ranks: one stage a
 * rank, or, interleaved, as many laps as stages / ranks. For this room only; pure.
 */
#ifndef MOTLEY_PLANNER_PIPELINE_PIPE_ORDER_H
#define MOTLEY_PLANNER_PIPELINE_PIPE_ORDER_H

#include "common/err.h"
#include "program/program.h"

enum order_kind {
    ORDER_FORWARD,
    ORDER_BACKWARD,
    ORDER_INPUT, /* the two halves of a backward */
    ORDER_WEIGHT
};

struct order_event {
    uint32_t stage, micro_batch;
    enum order_kind kind;
};

struct pipe_order {
    enum plan_schedule schedule;
    uint32_t ranks, stages, micro_batches;
    uint32_t *first; /* [ranks + 1] into events */
    struct order_event *events;
};

/* windows[ranks]: forwards that a rank runs before its first backward, at least 1; any number beyond what
 * there is means all. delays[ranks], for SCHEDULE_SPLIT: by how many micro-batches BACKWARD_WEIGHT comes
 * later than BACKWARD_INPUT (NULL: 0).
 *
 * Interleaved, micro-batches go round in groups of as many as there are ranks, or a few more where they are
 * no multiple of it (Narayanan et al. 2021, section 2.2, needs one); windows count a range's micro-batch as
 * one forward, and less than pipe_order_window() is taken as that.
 *
 * forwards_only: the forwards alone, in the same order (evaluation). ERR_NOMEM. */
int pipe_order_init(struct pipe_order *order, enum plan_schedule schedule, uint32_t ranks, uint32_t stages,
                    uint32_t micro_batches, const uint32_t *windows, const uint32_t *delays,
                    bool forwards_only, struct err *err);
void pipe_order_fini(struct pipe_order *order);

/* The least window of a rank of an interleaved pipeline: below it some rank would wait for itself. */
uint32_t pipe_order_window(uint32_t ranks, uint32_t laps, uint32_t micro_batches, uint32_t rank);

/* Which lap and micro-batch the n-th forward of every rank is of, from 0; the n-th backward is of that
 * micro-batch and of the lap as far from the last one. */
void pipe_order_turn(uint32_t ranks, uint32_t laps, uint32_t micro_batches, uint32_t n, uint32_t *lap,
                     uint32_t *micro_batch);

/* Most micro-batches of a stage between the forward and the last that needs what it saved. */
uint32_t pipe_order_live(const struct pipe_order *order, uint32_t stage);

/* Seconds of the parts. Split backwards: `backward` is the input's half, `weight` the other. Links are
 * between stage j and j + 1, alike both ways; a rank's sends to one peer follow each other. */
struct pipe_order_costs {
    const double *forward, *backward, *weight; /* [stages · micro_batches] */
    const double *latency_s, *occupied_s;      /* [stages − 1] */
};

/* When things happened; [stages · micro_batches] each. */
struct pipe_order_times {
    double *forward_end, *backward_end;   /* of the stage's compute (of the input's half) */
    double *forward_sent, *backward_sent; /* when the transfer to the next (previous) stage started */
};

/* Seconds of a step; INFINITY if the order cannot end. Exact but for the depth of boundary rings and wires
 * that several pairs share. times may be NULL. ERR_NOMEM gives a negative number. */
double pipe_order_seconds(const struct pipe_order *order, const struct pipe_order_costs *costs,
                          struct pipe_order_times *times, struct err *err);

#endif
