/* A plan as a picture: SVG text with the topology (nodes, devices, links in use) above and one lane a rank
 * below: what each computes when (colours by kind), what it sends, receives and waits for, idle time hatched,
 * memory against its limit beside it.
 *
 * Pure: text in, text out, bounded. Readable on light and dark (CSS in the picture follows the reader's
 * preference). Large plans are cut, and say so: of a long step the first and the last stretch are drawn, of
 * many ranks evenly chosen ones; the text stays below DRAW_BYTES_MAX whatever the plan.
 *
 * Layout of the topology: Graphviz may do it (draw_dot → `dot -Tplain` → draw_input.layout, run by whoever
 * may run programs); without it, or when its answer is not understood, boxes stand in rows.
 */
#ifndef MOTLEY_SHOW_DRAW_H
#define MOTLEY_SHOW_DRAW_H

#include "common/buf.h"
#include "planner/given/cluster.h"
#include "planner/answer/answer.h"
#include "program/program.h"
#include "program/trace.h"

#define DRAW_BYTES_MAX (2000u * 1000u)

struct draw_input {                   /* all borrowed for the call */
    const struct plan *plan;          /* with train programs */
    const struct trace *timeline;     /* of one step (plan_simulate, replay_run), times from 0 */
    double step_s;                    /* predicted, of a mean step */
    const char *title;                /* NULL: none */
    const char *words;                /* a few sentences below the title; NULL: none */
    const struct cluster *cluster;    /* for the links' figures; NULL: none are written */
    const struct plan_answer *answer; /* for devices left out; NULL: none are drawn */
    const char *layout;               /* what `dot -Tplain` made of draw_dot; NULL: none */
};

/* The topology for Graphviz: appends DOT text to out. ERR_NOMEM, ERR_TOO_BIG; with more than DRAW_NODES_MAX
 * nodes it appends nothing: rows serve better then. */
int draw_dot(const struct draw_input *input, struct buf *out, struct err *err);
#define DRAW_NODES_MAX 24u

/* The picture: appends at most DRAW_BYTES_MAX bytes. ERR_INVALID when the timeline is not of this plan,
 * ERR_NOMEM. */
int draw_svg(const struct draw_input *input, struct buf *out, struct err *err);

#endif
