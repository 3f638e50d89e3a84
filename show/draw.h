/* Draws a plan as an SVG picture. The upper part is the topology (nodes, devices, the links in use). Below it
 * each rank has a lane that shows what the rank computes and when (coloured by kind), what it sends, receives
 * and waits for, hatched idle time, and memory against its limit.
 *
 * Pure: text in, text out, bounded. The picture is readable on light and dark backgrounds (its CSS follows
 * the reader's preference). Large plans are cut, and the picture says so: of a long step the first and last
 * part are drawn, of many ranks evenly chosen ones. The text stays below DRAW_BYTES_MAX for every plan.
 *
 * Graphviz may lay out the topology: a caller that may run programs passes the text of draw_dot to `dot
 * -Tplain` and its answer as draw_input.layout. Without an answer, or with one that cannot be read, boxes
 * stand in rows.
 */
#ifndef MOTLEY_SHOW_DRAW_H
#define MOTLEY_SHOW_DRAW_H

#include "common/buf.h"
#include "planner/given/cluster.h"
#include "planner/answer/answer.h"
#include "program/program.h"
#include "program/trace.h"

#define DRAW_BYTES_MAX (2000u * 1000u)

struct draw_input {                   /* everything is borrowed for the call */
    const struct plan *plan;          /* must have train programs */
    const struct trace *timeline;     /* one step, from plan_simulate or replay_run; times start at 0 */
    double step_s;                    /* predicted seconds of a mean step */
    const char *title;                /* NULL: no title */
    const char *words;                /* a few sentences below the title; NULL: none */
    const struct cluster *cluster;    /* gives the links' figures; NULL: none are written */
    const struct plan_answer *answer; /* gives the devices left out; NULL: none are drawn */
    const char *layout;               /* answer of `dot -Tplain` to draw_dot; NULL: none */
};

/* Appends the topology as DOT text for Graphviz. ERR_NOMEM, ERR_TOO_BIG. With more than DRAW_NODES_MAX nodes
 * it appends nothing, because rows are more readable then. */
int draw_dot(const struct draw_input *input, struct buf *out, struct err *err);
#define DRAW_NODES_MAX 24u

/* Appends the picture, at most DRAW_BYTES_MAX bytes. ERR_INVALID when the timeline is not of this plan,
 * ERR_NOMEM. */
int draw_svg(const struct draw_input *input, struct buf *out, struct err *err);

#endif
