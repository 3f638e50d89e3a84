/* One step of a run as lanes: the predicted and the measured instructions of each rank, for a page to draw.
 *
 * Times are in nanoseconds from the beginning of the step; measured clocks are aligned (program/align.h).
 * Where a pixel holds several short events of one queue they become one box, so an answer is bounded by the
 * pixels asked for and not by the program's length. Pure.
 */
#ifndef MOTLEY_SHOW_LANES_H
#define MOTLEY_SHOW_LANES_H

#include <jansson.h>

#include "program/program.h"
#include "program/trace.h"

#define LANES_PX_MAX 10000u

struct lanes_input {               /* everything is borrowed for the call */
    const struct plan *plan;       /* with train programs */
    const struct trace *predicted; /* one step, or NULL */
    const struct trace *measured;  /* any steps, or NULL */
    int64_t step;                  /* number of the measured step; -1: the last complete one */
    int64_t from_ns, to_ns;        /* range of the step; to_ns <= from_ns: the whole step */
    uint32_t px;                   /* pixels from from_ns to to_ns, at most LANES_PX_MAX */
    uint32_t first_rank, ranks;    /* whose boxes are wanted; ranks 0: all from first_rank on */
};

/* Returns new:
 *
 *     {"step": n | null, "steps": [recorded steps], "from_ns", "to_ns", "end_ns": the greater length,
 *      "predicted_ns": the step's length | null, "measured_ns": … | null, "residual_ns": the worst of all
 *      ranks | null, "slack_ns", "unmatched": recorded events that are no instruction of the plan,
 *      "columns": ["queue", "op", "instr", "micro_batch", "peer", "begin_ns", "end_ns", "ready_ns", "count"],
 *      "queues": names, "ops": names,
 *      "ranks": [{"rank", "device", "node", "offset_ns", "residual_ns" | null, "compute_predicted_ns" | null,
 *                 "compute_measured_ns" | null, "predicted": [boxes], "measured": [boxes]}],
 *      "differences": [{"rank", "instr", "op", "queue", "micro_batch", "peer", "predicted_ns",
 * "measured_ns"}]}
 *
 * Every rank is listed; the boxes of those that are not wanted are left out. A box is a list of numbers in
 * the order of the columns (queue and op are indices into their names; a box of several events has instr and
 * op of the longest). ready_ns: when the program allowed the event to begin. "differences" lists the
 * instructions of the whole step whose predicted and measured durations differ most, the largest difference
 * first. NULL with ERR_INVALID when the plan's programs are invalid, ERR_NOT_FOUND when the requested step
 * was not recorded, ERR_NOMEM. */
json_t *lanes_to_json(const struct lanes_input *input, struct err *err);

#endif
