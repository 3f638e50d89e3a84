/* Draws the timeline, one lane for each rank. Computing fills the lane. A strip beneath it shows sends,
 * collectives from their beginning, and those parts of receives in which the rank computes nothing. The rest
 * of the lane is idle and hatched.
 *
 * Scale: the whole step is drawn if its turns (the consecutive instructions of one micro-batch, or of two in
 * alternation, in one direction) are wide enough to be told apart, else its first and last part with a marked
 * cut. Shapes of one kind in one lane form one path, about 25 bytes each.
 */
#include "show/draw_private.h"
#include "show/words.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"

enum lane_kind {
    KIND_FORWARD,
    KIND_BACKWARD,
    KIND_WEIGHT,
    KIND_EXPERTS,
    KIND_STEP,
    KIND_OTHER,
    KIND_SEND,
    KIND_RECV,
    KIND_GROUP,
    KINDS
};

static const struct {
    const char *css, *name;
    bool strip; /* drawn in the strip beneath computing */
} kinds[KINDS] = {
    [KIND_FORWARD] = {"f", "forward", false},
    [KIND_BACKWARD] = {"b", "backward", false},
    [KIND_WEIGHT] = {"w", "backward, weights", false},
    [KIND_EXPERTS] = {"x", "experts", false},
    [KIND_STEP] = {"st", "optimiser step", false},
    [KIND_OTHER] = {"o", "other", false},
    [KIND_SEND] = {"se", "send", true},
    [KIND_RECV] = {"re", "idle until received", true},
    [KIND_GROUP] = {"g", "exchange, with waiting", true},
};

#define LABEL_PX 215.0
#define RIGHT_PX 265.0
#define LANES_MAX 72u     /* with more ranks evenly chosen ones are drawn */
#define TOLD_APART_PX 6.0 /* mean width of a turn (see above) where the middle of the step is left out */
#define CUT_PX 26.0
#define TIPS_MAX 1500u /* with more shapes than this none gets a tooltip and a number */

static enum lane_kind draw_lanes_kind_of(const struct instr *x)
{
    bool back = x->flags & FLAG_BACKWARD;
    switch (x->op) {
    case INSTR_FORWARD:
    case INSTR_ATTENTION:
    case INSTR_ROUTE:
        return back ? KIND_BACKWARD : KIND_FORWARD;
    case INSTR_BACKWARD:
    case INSTR_BACKWARD_INPUT:
        return KIND_BACKWARD;
    case INSTR_BACKWARD_WEIGHT:
        return KIND_WEIGHT;
    case INSTR_EXPERTS:
        return KIND_EXPERTS;
    case INSTR_STEP:
        return KIND_STEP;
    case INSTR_SEND:
    case INSTR_PUSH:
        return KIND_SEND;
    case INSTR_RECV:
    case INSTR_PULL:
        return KIND_RECV;
    default:
        return x->queue == QUEUE_GROUP ? KIND_GROUP : KIND_OTHER;
    }
}

struct lane_view {
    const struct draw_input *input;
    double step_s;           /* end of the timeline */
    double x, width;         /* left edge and width of the lanes in px */
    double stretch_s;        /* seconds drawn at each end of the step; 0: the whole step */
    double per_s;            /* px per second */
    double lane, gap, strip; /* heights in px */
    uint32_t lanes, ranks;   /* lanes drawn, of the ranks that the timeline holds completely */
    bool tips;
    const uint32_t *event_first; /* [ranks + 1] first index in `order` of each rank */
    const uint32_t *order;       /* event numbers, grouped by rank, in the timeline's order */
};

/* A piece of a lane: an event or a part of one. */
struct lane_piece {
    const struct trace_event *event;
    double x0, x1; /* px */
};

/* An iterator over the pieces of one kind in one lane. */
struct lane_pieces {
    const struct lane_view *view;
    enum lane_kind kind;
    uint32_t at, end;    /* range of `order` */
    uint32_t busy, stop; /* range of the rank's computing events that may overlap the rest of the present
                            receive, of which only the idle parts are drawn; stop is 0 without a receive */
    double from_s;       /* time up to which the present receive is drawn; below 0: there is no receive */
};

static const struct instr *draw_lanes_instr_of(const struct lane_view *v, const struct trace_event *e)
{
    return &v->input->plan->ranks[e->rank].programs[e->program].instrs[e->instr];
}

/* The px of a moment. A moment in the part that is cut out gives the edge of the cut. */
static double at(const struct lane_view *v, double s)
{
    if (v->stretch_s == 0 || s <= v->stretch_s)
        return v->x + s * v->per_s;
    if (s < v->step_s - v->stretch_s)
        return v->x + v->stretch_s * v->per_s; /* the edge of the cut */
    return v->x + v->stretch_s * v->per_s + CUT_PX + (s - (v->step_s - v->stretch_s)) * v->per_s;
}

/* --- preparation --- */

/* Groups the events by rank. Returns a new order (and *first, new), or NULL. */
static uint32_t *events_by_rank(const struct trace *timeline, uint32_t ranks, uint32_t **first)
{
    uint32_t *order = calloc((size_t)timeline->count + 1, sizeof(*order));
    uint32_t *starts = calloc((size_t)ranks + 2, sizeof(*starts));
    if (!order || !starts) {
        free(order);
        free(starts);
        return NULL;
    }
    for (uint32_t i = 0; i < timeline->count; i++)
        starts[timeline->events[i].rank + 2]++;
    for (uint32_t r = 0; r < ranks; r++)
        starts[r + 2] += starts[r + 1];
    for (uint32_t i = 0; i < timeline->count; i++)
        order[starts[timeline->events[i].rank + 1]++] = i;
    *first = starts;
    return order;
}

/* Whether an instruction begins another turn of its rank; otherwise it continues the present one. */
static bool turn_begins(enum lane_kind kind, int32_t micro_batch, enum lane_kind *last, int32_t of[2])
{
    bool same = kind == *last && (micro_batch == of[0] || micro_batch == of[1]);
    if (kind == *last && !same && of[1] < 0) { /* the second of two micro-batches in alternation */
        of[1] = micro_batch;
        return false;
    }
    if (!same) {
        *last = kind;
        of[0] = micro_batch;
        of[1] = -1;
    }
    return !same;
}

static void scale(struct lane_view *v)
{
    double computing = 0;
    uint32_t count = 0;
    bool together = v->input->plan->placement == PLACE_TENSOR;
    for (uint32_t r = 0; r < v->input->plan->rank_count; r++) {
        enum lane_kind last = KINDS;
        int32_t of[2] = {-1, -1};
        for (uint32_t k = v->event_first[r]; k < v->event_first[r + 1]; k++) {
            const struct trace_event *e = &v->input->timeline->events[v->order[k]];
            const struct instr *instr = draw_lanes_instr_of(v, e);
            v->step_s = fmax(v->step_s, (double)e->end_ns * 1e-9);
            if (e->end_ns <= e->begin_ns || kinds[draw_lanes_kind_of(instr)].strip)
                continue;
            computing += (double)(e->end_ns - e->begin_ns) * 1e-9;
            if (!together)
                of[1] = of[0]; /* this turn has no second micro-batch */
            count += turn_begins(draw_lanes_kind_of(instr), instr->micro_batch, &last, of);
        }
    }
    v->per_s = v->step_s > 0 ? v->width / v->step_s : 0;
    double wide = count ? computing / count * v->per_s : 0;
    if (count > 0 && wide < TOLD_APART_PX * 0.75 && computing > 0) {
        v->per_s = TOLD_APART_PX / (computing / count);
        v->stretch_s = (v->width - CUT_PX) / 2 / v->per_s;
        if (2 * v->stretch_s >= v->step_s) {
            v->stretch_s = 0;
            v->per_s = v->width / v->step_s;
        }
    }
}

/* --- one lane --- */

struct path { /* the path of one kind that is being written */
    double x0, x1;
    bool open, begun;
};

static void path_shape(struct pen *pen, const struct path *path, double y, double height)
{
    char x[24], w[24], wb[24], top[24], h[24];
    double width = fmax(path->x1 - path->x0, 0.3);
    pen_px(w, width);
    pen_px(wb, -width);
    pen_put(pen, "M%s %sh%sv%sh%sz", pen_px(x, path->x0), pen_px(top, y), w, pen_px(h, height), wb);
}

/* Sets the px of a time range; false when nothing of it is drawn. */
static bool stretch_px(const struct lane_view *v, double begin, double end, struct lane_piece *piece)
{
    if (end <= begin || (v->stretch_s > 0 && begin >= v->stretch_s && end <= v->step_s - v->stretch_s))
        return false;
    piece->x0 = at(v, begin);
    piece->x1 = at(v, end);
    if (v->stretch_s > 0 && begin >= v->stretch_s && begin < v->step_s - v->stretch_s)
        piece->x0 = v->x + v->stretch_s * v->per_s + CUT_PX; /* it begins in the part that is cut out */
    return piece->x1 > piece->x0;
}

static const struct trace_event *draw_lanes_event_at(const struct lane_view *v, uint32_t k)
{
    return &v->input->timeline->events[v->order[k]];
}

/* Finds the next idle range [*from, *to) within a receive and moves behind the computing event that ends it.
 * Computing events are in order, because they are of one queue. */
static bool idle_next(struct lane_pieces *p, const struct trace_event *receive, double *from, double *to)
{
    const struct lane_view *v = p->view;
    double end = (double)receive->end_ns * 1e-9;
    *from = p->from_s;
    while (p->busy < p->stop && *from < end) {
        const struct trace_event *e = draw_lanes_event_at(v, p->busy);
        double begins = (double)e->begin_ns * 1e-9, ends = (double)e->end_ns * 1e-9;
        if (draw_lanes_instr_of(v, e)->queue != QUEUE_COMPUTE || ends <= *from) {
            p->busy++;
        } else if (begins <= *from) {
            *from = ends;
            p->busy++;
        } else {
            *to = fmin(begins, end);
            p->from_s = *to;
            return true;
        }
    }
    *to = p->from_s = end;
    return *from < end;
}

static bool draw_lanes_piece_next(struct lane_pieces *p, struct lane_piece *piece)
{
    const struct lane_view *v = p->view;
    for (; p->at < p->end; p->at++) {
        const struct trace_event *e = piece->event = draw_lanes_event_at(v, p->at);
        double begin = (double)e->begin_ns * 1e-9, end = (double)e->end_ns * 1e-9, to;
        if (e->end_ns <= e->begin_ns || draw_lanes_kind_of(draw_lanes_instr_of(v, e)) != p->kind)
            continue;
        if (p->kind != KIND_RECV) {
            p->at++;
            if (stretch_px(v, begin, end, piece))
                return true;
            p->at--;
            continue;
        }
        if (p->from_s < 0) { /* the first range of this receive */
            p->from_s = begin;
            p->busy = v->event_first[e->rank];
        }
        while (p->from_s < end && idle_next(p, e, &begin, &to))
            if (stretch_px(v, begin, to, piece))
                return true;
        p->from_s = -1;
    }
    return false;
}

static struct lane_pieces pieces_of(const struct lane_view *v, uint32_t rank, enum lane_kind kind)
{
    return (struct lane_pieces){.view = v,
                                .kind = kind,
                                .at = v->event_first[rank],
                                .end = v->event_first[rank + 1],
                                .stop = v->event_first[rank + 1],
                                .from_s = -1};
}

static void lane_paths(struct pen *pen, const struct lane_view *v, uint32_t rank, enum lane_kind kind,
                       double y, double height, double merge_px)
{
    struct path path = {0};
    struct lane_piece piece;
    for (struct lane_pieces p = pieces_of(v, rank, kind);
         draw_lanes_piece_next(&p, &piece) && !pen->failed;) {
        if (path.open && piece.x0 >= path.x0 && piece.x0 - path.x1 < merge_px &&
            (merge_px > 0.3 || piece.x0 < path.x1)) {
            path.x1 = fmax(path.x1, piece.x1);
            continue;
        }
        if (!path.begun)
            pen_put(pen, "<path class=\"%s\" d=\"", kinds[kind].css);
        path.begun = true;
        if (path.open)
            path_shape(pen, &path, y, height);
        path.open = true;
        path.x0 = piece.x0;
        path.x1 = piece.x1;
    }
    if (path.open)
        path_shape(pen, &path, y, height);
    if (path.begun)
        pen_put(pen, "\"/>\n");
}

/* Draws each shape with a tooltip (what it is and how long) and, where there is room, its micro-batch's
 * number. */
static void lane_shapes(struct pen *pen, const struct lane_view *v, uint32_t rank, enum lane_kind kind,
                        double y, double height)
{
    struct lane_piece piece;
    for (struct lane_pieces p = pieces_of(v, rank, kind);
         draw_lanes_piece_next(&p, &piece) && !pen->failed;) {
        char what[128], seconds[32], x[24], w[24], top[24], h[24];
        const struct trace_event *e = piece.event;
        const struct instr *instr = draw_lanes_instr_of(v, e);
        double wide = piece.x1 - piece.x0, gap = wide > 3 && !kinds[kind].strip ? 0.6 : 0;
        instr_describe(instr, what, sizeof(what));
        pen_put(pen, "<rect class=\"%s\" x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"><title>",
                kinds[kind].css, pen_px(x, piece.x0), pen_px(top, y), pen_px(w, fmax(wide - gap, 0.3)),
                pen_px(h, height));
        pen_text(pen, what, sizeof(what));
        pen_put(pen, " · %s</title></rect>",
                units_seconds(seconds, (double)(e->end_ns - e->begin_ns) * 1e-9));
        if (!kinds[kind].strip && instr->micro_batch >= 0 && wide >= 14 && height >= 12)
            pen_put(pen, "<text class=\"n\" x=\"%s\" y=\"%s\">%d</text>",
                    pen_px(x, (piece.x0 + piece.x1) / 2), pen_px(top, y + height / 2 + 3),
                    (int)instr->micro_batch);
        pen_put(pen, "\n");
    }
}

static void lane_memory(struct pen *pen, const struct plan_rank *rank, double x, double y, double height)
{
    char used[32], limit[32], w[24];
    double share =
        rank->memory_limit_bytes ? (double)rank->memory_bytes / (double)rank->memory_limit_bytes : 0;
    double bar = fmin(height, 10);
    pen_put(pen,
            "<rect class=\"lane\" x=\"%.0f\" y=\"%.1f\" width=\"80\" height=\"%.1f\"/>"
            "<rect class=\"%s\" x=\"%.0f\" y=\"%.1f\" width=\"%s\" height=\"%.1f\"/>",
            x, y + (height - bar) / 2, bar, share > 0.97 ? "full" : "mem", x, y + (height - bar) / 2,
            pen_px(w, 80 * fmin(1, share)), bar);
    if (height >= 9)
        pen_put(pen, "<text class=\"m\" x=\"%.0f\" y=\"%.1f\">%s of %s</text>\n", x + 86, y + height / 2 + 4,
                units_bytes(used, rank->memory_bytes), units_bytes(limit, rank->memory_limit_bytes));
}

static void lane_label(struct pen *pen, const struct lane_view *v, uint32_t number, double y)
{
    const struct plan_rank *rank = &v->input->plan->ranks[number];
    bool tall = v->lane >= 28;
    double base = tall ? y + 12 : y + v->lane / 2 + 4;
    pen_put(pen, "<text class=\"t\" x=\"%.0f\" y=\"%.1f\">%u ", DRAW_MARGIN, base, number);
    pen_text(pen, rank->device ? rank->device : "", tall ? 30 : 20);
    if (tall) {
        const char *like = draw_like(v->input, number);
        char holds[64];
        if (like)
            pen_put(pen, " · %s", like);
        pen_put(pen, "</text><text class=\"m\" x=\"%.0f\" y=\"%.1f\">%s, %u rows%s</text>\n", DRAW_MARGIN,
                y + 26,
                words_range(holds, sizeof(holds), rank->block_begin, rank->block_end,
                            draw_blocks(v->input->plan)),
                rank->rows, rank->recompute ? ", recomputes" : "");
    } else
        pen_put(pen, "</text><text class=\"m\" text-anchor=\"end\" x=\"%.0f\" y=\"%.1f\">%d..%d</text>\n",
                DRAW_MARGIN + LABEL_PX - 10, base, (int)rank->block_begin, (int)rank->block_end);
}

static void lane_draw(struct pen *pen, const struct lane_view *v, uint32_t rank, double y, double merge_px)
{
    char x[24], w[24], top[24], h[24];
    double main_px = v->lane - v->strip, half = v->stretch_s * v->per_s;
    lane_label(pen, v, rank, y);
    pen_put(pen, "<rect fill=\"url(#idle)\" x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"/>", pen_px(x, v->x),
            pen_px(top, y), pen_px(w, v->stretch_s > 0 ? half : v->width), pen_px(h, main_px));
    if (v->stretch_s > 0)
        pen_put(pen, "<rect fill=\"url(#idle)\" x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"/>",
                pen_px(x, v->x + half + CUT_PX), pen_px(top, y), pen_px(w, half), pen_px(h, main_px));
    pen_put(pen, "\n");
    for (int kind = 0; kind < KINDS; kind++) {
        double from = kinds[kind].strip ? y + main_px : y, height = kinds[kind].strip ? v->strip : main_px;
        if (v->tips)
            lane_shapes(pen, v, rank, (enum lane_kind)kind, from, height);
        else
            lane_paths(pen, v, rank, (enum lane_kind)kind, from, height, merge_px);
    }
    lane_memory(pen, &v->input->plan->ranks[rank], v->x + v->width + 14, y, v->lane);
}

/* --- around the lanes --- */

static double round_step(double about)
{
    double power = pow(10, floor(log10(about))), rest = about / power;
    return power * (rest < 1.5 ? 1 : rest < 3.5 ? 2 : rest < 7.5 ? 5 : 10);
}

static void ticks(struct pen *pen, const struct lane_view *v, double from_s, double to_s, double top,
                  double bottom)
{
    const char *unit = v->step_s < 2e-3 ? "µs" : v->step_s < 2 ? "ms" : "s";
    double in = v->step_s < 2e-3 ? 1e6 : v->step_s < 2 ? 1e3 : 1;
    double every = round_step(110 / v->per_s);
    for (double k = fmax(0, ceil(from_s / every - 1e-9)); k * every <= to_s * (1 + 1e-9) && k < 1e9; k++) {
        char x[24];
        if (from_s > 0 && (k * every - from_s) * v->per_s < 34) /* its label would overlap the cut */
            continue;
        pen_px(x, at(v, k * every));
        pen_put(pen,
                "<path class=\"grid\" d=\"M%s %.1fV%.1f\"/><text class=\"m\" text-anchor=\"middle\" x=\"%s\" "
                "y=\"%.1f\">%.6g %s</text>\n",
                x, top, bottom, x, bottom + 14, k * every * in, unit);
    }
}

/* Draws one kind in the legend, on a new line when the present one is full. */
static void legend_item(struct pen *pen, const struct lane_view *v, const char *look, const char *name,
                        double *x, double *y)
{
    double wide = 16 + DRAW_CHAR * (double)strlen(name);
    if (*x > v->x && *x + wide > v->x + v->width) {
        *x = v->x;
        *y += 16;
    }
    pen_put(pen,
            "<rect %s x=\"%.0f\" y=\"%.0f\" width=\"12\" height=\"10\"/><text class=\"t\" "
            "x=\"%.0f\" y=\"%.0f\">%s</text>\n",
            look, *x, *y - 9, *x + 16, *y, name);
    *x += wide + 18;
}

static double legend(struct pen *pen, const struct lane_view *v, double y)
{
    bool seen[KINDS] = {false};
    double x = v->x, last = y;
    char look[32];
    for (uint32_t i = 0; i < v->input->timeline->count; i++) {
        const struct trace_event *e = &v->input->timeline->events[i];
        if (e->end_ns > e->begin_ns)
            seen[draw_lanes_kind_of(draw_lanes_instr_of(v, e))] = true;
    }
    for (int kind = 0; kind < KINDS; kind++) {
        snprintf(look, sizeof(look), "class=\"%s\"", kinds[kind].css);
        if (seen[kind])
            legend_item(pen, v, look, kinds[kind].name, &x, &last);
    }
    legend_item(pen, v, "fill=\"url(#idle)\"", "idle", &x, &last);
    pen_put(pen, "<text class=\"t s\" x=\"%.0f\" y=\"%.0f\">One step</text>", DRAW_MARGIN, y);
    pen_put(pen, "<text class=\"t s\" x=\"%.0f\" y=\"%.0f\">Memory</text>\n", v->x + v->width + 14, y);
    return last + 12;
}

static void cut_mark(struct pen *pen, const struct lane_view *v, double top, double bottom)
{
    double x = v->x + v->stretch_s * v->per_s + CUT_PX / 2, turn = 6;
    pen_put(pen, "<path class=\"cut\" d=\"M%.1f %.1f", x - turn, top);
    for (double y = top; y < bottom; y += 2 * turn)
        pen_put(pen, "l%.0f %.0fl%.0f %.0f", 2 * turn, turn, -2 * turn, turn);
    pen_put(pen, "\" fill=\"none\"/>");
    double share = 100 * (1 - 2 * v->stretch_s / v->step_s);
    pen_put(
        pen,
        "<text class=\"m\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%.*f %% of the step, in between, is "
        "not drawn</text>\n",
        x, top - 3, share > 99 ? 2 : 0, share);
}

static void view_init(struct lane_view *v, const struct draw_input *input, const uint32_t *event_first,
                      const uint32_t *order)
{
    uint32_t ranks = input->plan->rank_count, shapes = 0;
    *v = (struct lane_view){.input = input,
                            .event_first = event_first,
                            .order = order,
                            .x = DRAW_MARGIN + LABEL_PX,
                            .width = DRAW_WIDTH - 2 * DRAW_MARGIN - LABEL_PX - RIGHT_PX + 25};
    scale(v);
    v->ranks = ranks;
    if (input->timeline->dropped >
        0) { /* a timeline that dropped events holds only a part of the last rank */
        v->ranks = 1;
        for (uint32_t i = 0; i < input->timeline->count; i++)
            if (input->timeline->events[i].rank > v->ranks)
                v->ranks = input->timeline->events[i].rank;
    }
    v->lanes = v->ranks < LANES_MAX ? v->ranks : LANES_MAX;
    v->lane = v->lanes <= 12 ? 34 : v->lanes <= 32 ? 22 : 14;
    v->gap = v->lanes <= 12 ? 8 : 4;
    v->strip = v->lanes <= 12 ? 9 : v->lanes <= 32 ? 6 : 4;
    for (uint32_t i = 0; i < input->timeline->count && shapes <= TIPS_MAX; i++)
        shapes += input->timeline->events[i].end_ns > input->timeline->events[i].begin_ns;
    v->tips = shapes <= TIPS_MAX;
}

static double lanes_draw(struct pen *pen, const struct lane_view *v, double y, double merge_px)
{
    uint32_t ranks = v->input->plan->rank_count;
    double top = y, bottom = y + v->lanes * (v->lane + v->gap);
    ticks(pen, v, 0, v->stretch_s > 0 ? v->stretch_s : v->step_s, top, bottom);
    if (v->stretch_s > 0)
        ticks(pen, v, v->step_s - v->stretch_s, v->step_s, top, bottom);
    for (uint32_t k = 0; k < v->lanes && !pen->failed; k++) {
        uint64_t steps = v->lanes > 1 ? v->lanes - 1 : 1;
        lane_draw(pen, v, (uint32_t)(k * (uint64_t)(v->ranks - 1) / steps), y, merge_px);
        y += v->lane + v->gap;
    }
    if (v->stretch_s > 0)
        cut_mark(pen, v, top, bottom);
    pen_put(pen, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/>\n", v->x, bottom, v->x + v->width);
    if (v->lanes < ranks)
        pen_put(pen, "<text class=\"m\" x=\"%.0f\" y=\"%.1f\">%u of %u ranks are drawn</text>\n", DRAW_MARGIN,
                bottom + 14, v->lanes, ranks);
    return bottom + 18;
}

double draw_timeline(struct pen *pen, const struct draw_input *input, double y, double merge_px)
{
    struct lane_view v;
    uint32_t *first = NULL, *order = events_by_rank(input->timeline, input->plan->rank_count, &first);
    if (!order) {
        pen->failed =
            err_set(pen->err, ERR_NOMEM, "drawing: out of memory for %u events", input->timeline->count) < 0;
        return y;
    }
    view_init(&v, input, first, order);
    if (v.step_s > 0) {
        y = legend(pen, &v, y + 12);
        y = lanes_draw(pen, &v, y + (v.stretch_s > 0 ? 12 : 0), merge_px);
    }
    free(order);
    free(first);
    return y;
}
