/* One recorded step, taken apart and put together again.
 *
 * Taking apart: of each instruction its own time, and the gap between the moment the program let it begin
 * (its queue free, its `after` done) and the moment it began: threads waking up, the executor's own work,
 * arithmetic of collectives on the compute thread. Of a transfer: how long it held the sender, how long it
 * was under way, and what the receiver needed once both were there. Waiting is none of it: putting together
 * makes it anew from the program's ties, so that a change of one time shows in all that waits for it.
 *
 * Unlike simulate.h, which prices programs by rates, this knows each instruction's own times: a send ends
 * when its transport took it, whether or not its receiver was there; each member of a collective at its own
 * moment. Pure; for this room only.
 */
#ifndef MOTLEY_REPLAY_REPLAY_WALK_H
#define MOTLEY_REPLAY_REPLAY_WALK_H

#include "replay/replay.h"
#include "program/graph.h"

/* Seconds; which are meant follows from the instruction's queue. */
struct replay_part {
    double gap;    /* from when it could begin until it began */
    double work;   /* compute: its own; send: holding the sender; collective: what the messages of
                      replay_collective.c do not explain, of either sign */
    double flight; /* send: from its beginning until the receiver has it */
    double copy;   /* receive: after the data is there and it has begun */
};

/* A recorded step. */
struct replay_step {
    uint32_t step;
    double tokens, rows;       /* of the step; 0: not known */
    double measured_s;         /* as the run reported it; 0: not known */
    double *rank_begin;        /* [ranks]: first beginning on a rank, from the first of all */
    struct replay_part *parts; /* [graph total] */
};

/* What is known of the way between two nodes. */
struct replay_wire {
    double was_bytes_per_s, was_latency_s; /* when it was recorded */
    double bytes_per_s, latency_s;         /* to be put together with */
    bool changed;                          /* those two differ */
    double free_s[2];                      /* of each direction, while walking */
};

/* What taking apart and putting together ask for. */
struct replay_costs {
    const double *device_speed; /* [ranks], or NULL: as recorded */
    void *context;
    /* The wire between two ranks, or NULL when nothing is known of it; *direction 0 or 1. */
    struct replay_wire *(*wire)(void *context, uint32_t from, uint32_t to, int *direction);
};

/* From recorded beginnings and ends (seconds from the step's first beginning, [graph total]) to parts.
 * Writes step->rank_begin and step->parts. ERR_NOMEM. */
int replay_take_apart(const struct plan_graph *graph, const struct replay_costs *costs, const double *begin,
                      const double *end, struct replay_step *step, struct err *err);

/* Puts a step together, each rank from step->rank_begin on: writes beginnings and ends. With neither speeds
 * nor wires changed it gives back what was taken apart. ERR_NOMEM, ERR_INVALID when it cannot end. */
int replay_put_together(const struct plan_graph *graph, const struct replay_step *step,
                        const struct replay_costs *costs, double *begin, double *end, struct err *err);

/* Whose beginnings a member of a collective waits for: all members', its own, or the root's and its own. */
enum replay_waits { WAITS_FOR_ALL, WAITS_FOR_ITSELF, WAITS_FOR_ROOT };
enum replay_waits replay_waits_of(const struct plan_graph *graph, uint32_t instr);

/* Ends of a collective's members, by the messages that the worker sends for it (agent/worker_reduce.c:
 * scalars over the group's tree, tensors over a star; children one after the other) over the wires as they
 * were or as they are to be. begin: [graph total], below 0 where not begun yet; end: [members of the
 * meeting], written where whose beginnings it waits for are known. */
void replay_collective_ends(const struct plan_graph *graph, const struct replay_costs *costs,
                            bool as_recorded, uint32_t meeting, const double *begin, double *end);

#endif
