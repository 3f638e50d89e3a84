/* Aligns the ranks' clocks in a recorded step by the messages between them. A receive cannot end before its
 * send has begun, and no member of a collective can end before every other member has begun. So a message
 * from one rank to another bounds the difference of their clocks on one side, and messages in both directions
 * bound it on both sides. All bounds together (their closure by shortest paths) give for each rank an
 * interval for its clock's offset against the ranks before it. Where the interval contains 0, the clocks
 * agree as far as can be told, and the offset is 0; else it is the interval's middle. With these offsets no
 * message ends before it begins. Pure. */
#ifndef MOTLEY_PROGRAM_ALIGN_H
#define MOTLEY_PROGRAM_ALIGN_H

#include "program/graph.h"
#include "program/trace.h"

#define ALIGN_RANKS_MAX 512u

struct trace_clock {
    int64_t offset_ns; /* to be added to the rank's times */
    int64_t
        residual_ns; /* largest error of the offset in ns; -1: the messages do not bound it on both sides */
};

/* Aligns the clocks of one recorded step. begin_ns, end_ns: [graph total], begin and end of each instruction
 * by its rank's own clock; end below begin: not recorded. Fills clocks[ranks]; the first rank's offset is 0.
 * *slack_ns: by how much bounds contradict each other (when a clock was set during the step), usually 0.
 * ERR_TOO_BIG beyond ALIGN_RANKS_MAX ranks, ERR_NOMEM. */
int trace_align(const struct plan_graph *graph, const int64_t *begin_ns, const int64_t *end_ns,
                struct trace_clock *clocks, int64_t *slack_ns, struct err *err);

#endif
