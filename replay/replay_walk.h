/* Decomposition of one recorded step, and its recomposition with changed costs.
 *
 * Decomposition finds each instruction's own time, and the gap between the moment the program allowed it
 * to begin (queue free, `after` done) and the moment it began: thread wake-ups, the executor's work,
 * arithmetic of collectives on the compute thread. For a transfer it finds how long the sender was held,
 * how long the data was in flight, and what the receiver needed once both were there. Waiting is not part
 * of any of these. Recomposition derives it from the program's dependencies, so a change of one time
 * affects everything that waits for it.
 *
 * simulate.h prices programs by rates; this file knows each instruction's own times instead. A send ends
 * when its transport took the data, whether or not its receiver was there, and each member of a collective
 * ends at its own time. Pure; for this room only.
 */
#ifndef MOTLEY_REPLAY_REPLAY_WALK_H
#define MOTLEY_REPLAY_REPLAY_WALK_H

#include "common/arena.h"
#include "replay/replay.h"
#include "program/graph.h"

/* The times of one instruction, found by decomposition; in seconds. Its queue determines which fields are
 * used. */
struct replay_part {
    double gap;    /* from the moment the program allowed the instruction to begin until it began */
    double work;   /* compute: its duration; send: seconds until the sender was free; collective: its duration
                      less the duration of its messages (replay_collective.c), of either sign */
    double flight; /* send: from its begin until the receiver has the data */
    double copy;   /* receive: from its begin, or the data's arrival if later, to its end */
};

/* A recorded step. */
struct replay_step {
    uint32_t step;
    double tokens, rows;       /* tokens and rows of the step; 0: unknown */
    double measured_s;         /* seconds of the step as the run reported it; 0: unknown */
    double *rank_begin;        /* [ranks]: first begin on a rank, relative to the first of all ranks */
    struct replay_part *parts; /* [graph->total], one for each instruction */
};

/* The connection of two nodes. */
struct replay_wire {
    double was_bytes_per_s, was_latency_s; /* at the time of recording */
    double bytes_per_s, latency_s;         /* values for which the step is recomposed */
    bool changed;                          /* the two pairs of values differ */
    double free_s[2]; /* for each direction, the time at which the wire is free again, during recomposition */
};

/* Speeds of devices and wires that replay_take_apart and replay_put_together use: as recorded, and changed.
 */
struct replay_costs {
    const double *device_speed; /* [ranks] factors on the recorded speeds; NULL: unchanged */
    void *context;
    /* The wire between two ranks, or NULL if it is unknown; *direction is 0 or 1. */
    struct replay_wire *(*wire)(void *context, uint32_t from, uint32_t to, int *direction);
};

/* Decomposes recorded begins and ends (seconds from the step's first begin, [graph->total]) into parts.
 * Writes step->rank_begin and step->parts. ERR_NOMEM. */
int replay_take_apart(const struct plan_graph *graph, const struct replay_costs *costs, const double *begin,
                      const double *end, struct replay_step *step, struct err *err);

/* Recomposes a step, each rank starting at step->rank_begin, and writes begins and ends. Without changed
 * speeds or wires it restores the recorded times. ERR_NOMEM, ERR_INVALID for a deadlock. */
int replay_put_together(const struct plan_graph *graph, const struct replay_step *step,
                        const struct replay_costs *costs, double *begin, double *end, struct err *err);

/* Which members of a collective must have begun before a member can end: all, only itself, or the root and
 * itself. */
enum replay_waits { WAITS_FOR_ALL, WAITS_FOR_ITSELF, WAITS_FOR_ROOT };
enum replay_waits replay_waits_of(const struct plan_graph *graph, uint32_t instr);

/* Computes when the members of a collective end, by simulating the messages that the worker sends for it
 * (worker/program/reduce.c: scalars over the group's tree, tensors over a star, children one after the
 * other). as_recorded: over the wires of the recording, else over the changed ones. begin: [graph->total],
 * below 0 if not begun yet. end: [members of the collective], written for members that all needed members
 * allow to end. */
void replay_collective_ends(const struct plan_graph *graph, const struct replay_costs *costs,
                            bool as_recorded, uint32_t meeting, const double *begin, double *end);

#endif
