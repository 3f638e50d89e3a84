#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay/replay.h"
#include "replay/replay_walk.h"

#define STEPS_MAX 64u
#define LINKS_MAX 1000000u
#define WIRES_MAX 4096u     /* most pairs of nodes whose links are known */
#define STEADY_TURNS 8      /* most iterations to find when the ranks begin a changed step */
#define STEADY_SECONDS 1e-7 /* seconds of change at which the iteration ends */

struct node_wire { /* the link between two nodes of the run */
    const char *a, *b;
    struct replay_wire wire, before; /* wire: with the change applied; before: as recorded */
};

struct replay {
    const struct plan *plan;
    struct plan_graph graph;
    const struct replay_change *change; /* or NULL */
    struct arena arena;                 /* the arrays below, and those of step */
    uint32_t wire_count;
    struct node_wire *wires; /* [WIRES_MAX] */
    struct replay_step step;
    double *begin, *end; /* [graph.total] seconds, for each instruction */
    /* seconds of each step */
    double recorded[STEPS_MAX], simulated[STEPS_MAX], changed[STEPS_MAX], outside[STEPS_MAX];
    double *were, *are, *was_begin; /* [ranks] scratch: ends before and after a change, recorded begins */
    uint32_t reporter;              /* the rank whose steps the run measures: the first with the head */
};

/* --- recorded steps --- */

/* Reads begin and end of every instruction of one step; returns their number. */
static uint32_t step_read(const struct replay *r, const struct trace *trace, uint32_t step)
{
    const struct plan_graph *g = &r->graph;
    uint32_t found = 0;
    for (uint32_t n = 0; n < g->total; n++)
        r->end[n] = -INFINITY;
    for (uint32_t i = 0; i < trace->count; i++) {
        const struct trace_event *e = &trace->events[i];
        if (e->step != step || e->program != g->kind || e->rank >= g->plan->rank_count ||
            e->instr >= g->base[e->rank + 1] - g->base[e->rank])
            continue;
        uint32_t n = g->base[e->rank] + e->instr;
        found += isinf(r->end[n]) != 0;
        /* relative to the trace's begin, because wall-clock nanoseconds exceed a double's precision */
        r->begin[n] = (double)(e->begin_ns - trace->events[0].begin_ns) / 1e9;
        r->end[n] = (double)(e->end_ns - trace->events[0].begin_ns) / 1e9;
    }
    if (found == g->total) {
        double first = INFINITY;
        for (uint32_t n = 0; n < g->total; n++)
            first = fmin(first, r->begin[n]);
        for (uint32_t n = 0; n < g->total; n++) {
            r->begin[n] -= first;
            r->end[n] -= first;
        }
    }
    return found;
}

static void replay_run_metrics_read(const json_t *metrics, struct replay_step *step)
{
    size_t index;
    const json_t *line;
    step->measured_s = step->tokens = step->rows = 0;
    json_array_foreach (metrics, index, line) {
        const json_t *number = json_object_get(line, "step");
        if (json_object_get(line, "eval") || !json_is_integer(number) ||
            json_integer_value(number) != (json_int_t)step->step)
            continue;
        step->measured_s = json_number_value(json_object_get(line, "seconds"));
        step->tokens = json_number_value(json_object_get(line, "tokens"));
        step->rows = json_number_value(json_object_get(line, "rows"));
    }
}

/* --- changes --- */

static bool same_link(const char *a, const char *b, const char *from, const char *to)
{
    return (strcmp(a, from) == 0 && strcmp(b, to) == 0) || (strcmp(a, to) == 0 && strcmp(b, from) == 0);
}

static struct node_wire *wire_find(struct replay *r, const char *a, const char *b)
{
    for (uint32_t i = 0; i < r->wire_count; i++)
        if (same_link(r->wires[i].a, r->wires[i].b, a, b))
            return &r->wires[i];
    return NULL;
}

static struct replay_wire *replay_run_wire_between(void *context, uint32_t from, uint32_t to, int *direction)
{
    struct replay *r = context;
    struct node_wire *found = wire_find(r, r->plan->ranks[from].node, r->plan->ranks[to].node);
    *direction = found && strcmp(found->a, r->plan->ranks[from].node) != 0;
    return found ? &found->wire : NULL;
}

/* Returns the wire between two ranks as recorded. */
static struct replay_wire *wire_before(void *context, uint32_t from, uint32_t to, int *direction)
{
    struct replay *r = context;
    struct node_wire *found = wire_find(r, r->plan->ranks[from].node, r->plan->ranks[to].node);
    *direction = 0;
    return found && found->before.was_bytes_per_s > 0 ? &found->before : NULL;
}

static bool replay_run_has_node(const struct plan *plan, const char *node)
{
    for (uint32_t k = 0; k < plan->rank_count; k++)
        if (strcmp(plan->ranks[k].node, node) == 0)
            return true;
    return false;
}

static struct node_wire *wire_add(struct replay *r, const char *a, const char *b, struct err *err)
{
    struct node_wire *wire = wire_find(r, a, b);
    if (!wire && r->wire_count == WIRES_MAX) {
        err_set(err, ERR_TOO_BIG, "links: more than %u between this run's nodes", WIRES_MAX);
    } else if (!wire) {
        wire = &r->wires[r->wire_count++];
        *wire = (struct node_wire){.a = a, .b = b};
    }
    return wire;
}

/* Makes the table of wires between the run's nodes, then applies the change. */
static int wires_init(struct replay *r, const json_t *links, struct err *err)
{
    size_t index;
    const json_t *link;
    r->wire_count = 0;
    json_array_foreach (links, index, link) {
        const char *from = json_string_value(json_object_get(link, "from"));
        const char *to = json_string_value(json_object_get(link, "to"));
        double latency = json_number_value(json_object_get(link, "latency_s"));
        double rate = json_number_value(json_object_get(link, "bytes_per_s"));
        if (!from || !to || !(latency >= 0) || !(rate > 0))
            return err_set(err, ERR_INVALID, "links[%zu]: from, to, latency_s and bytes_per_s are needed",
                           index);
        if (!replay_run_has_node(r->plan, from) || !replay_run_has_node(r->plan, to))
            continue;
        struct node_wire *wire = wire_add(r, from, to, err);
        if (!wire)
            return -1;
        wire->wire = (struct replay_wire){
            .was_bytes_per_s = rate, .was_latency_s = latency, .bytes_per_s = rate, .latency_s = latency};
        wire->before = wire->wire;
    }
    for (uint32_t i = 0; r->change && i < r->change->link_count; i++) {
        struct node_wire *wire = wire_add(r, r->change->links[i].from, r->change->links[i].to, err);
        if (!wire)
            return -1;
        wire->wire.bytes_per_s = r->change->links[i].bytes_per_s;
        wire->wire.latency_s = r->change->links[i].latency_s;
        wire->wire.changed = true;
    }
    return 0;
}

/* Checks that each changed link is used by this run's ranks. */
static int links_used(const struct replay *r, struct err *err)
{
    const struct plan_graph *g = &r->graph;
    for (uint32_t i = 0; r->change && i < r->change->link_count; i++) {
        const char *a = r->change->links[i].from, *b = r->change->links[i].to;
        bool used = false;
        for (uint32_t m = 0; m < g->meeting_count && !used; m++) {
            uint32_t at_a = 0, at_b = 0;
            for (uint32_t k = g->member_first[m]; k < g->member_first[m + 1]; k++) {
                const char *node = r->plan->ranks[g->rank_of[g->members[k]]].node;
                at_a += strcmp(node, a) == 0;
                at_b += strcmp(node, b) == 0;
            }
            used = strcmp(a, b) == 0 ? at_a > 1 : at_a > 0 && at_b > 0;
        }
        if (!used)
            return err_set(err, ERR_INVALID,
                           "link %.80s:%.80s: no ranks of this run exchange anything over it", a, b);
    }
    return 0;
}

/* --- steps --- */

/* Returns the seconds from the reporting rank's first begin to its last end: the step as the run measures it,
 * without the time before and after the program. */
static double reporter_s(const struct replay *r)
{
    const struct plan_graph *g = &r->graph;
    double first = INFINITY, last = 0;
    for (uint32_t n = g->base[r->reporter]; n < g->base[r->reporter + 1]; n++) {
        first = fmin(first, r->begin[n]);
        last = fmax(last, r->end[n]);
    }
    return isfinite(first) ? last - first : 0;
}

static void sums_add(const struct replay *r, struct replay_answer *answer)
{
    const struct plan_graph *g = &r->graph;
    for (uint32_t n = 0; n < g->total; n++) {
        if (graph_instr(g, n)->queue != QUEUE_COMPUTE)
            continue;
        answer->gaps_s += r->step.parts[n].gap;
        if (answer->compute_s)
            answer->compute_s[g->rank_of[n]] += r->step.parts[n].work;
    }
}

static void timeline_add(const struct replay *r, struct trace *timeline)
{
    const struct plan_graph *g = &r->graph;
    timeline->count = 0;
    for (uint32_t n = 0; n < g->total; n++)
        trace_add(timeline, &(struct trace_event){.rank = g->rank_of[n],
                                                  .step = r->step.step,
                                                  .instr = n - g->base[g->rank_of[n]],
                                                  .program = (uint8_t)g->kind,
                                                  .begin_ns = (int64_t)(r->begin[n] * 1e9),
                                                  .end_ns = (int64_t)(r->end[n] * 1e9),
                                                  .ready_ns = (int64_t)(r->begin[n] * 1e9)});
}

static void wires_clear(struct replay *r)
{
    for (uint32_t i = 0; i < r->wire_count; i++)
        r->wires[i].wire.free_s[0] = r->wires[i].wire.free_s[1] = 0;
}

/* Writes each rank's last end, relative to the reporter's. */
static void ends_of(const struct replay *r, double *ends)
{
    const struct plan_graph *g = &r->graph;
    for (uint32_t k = 0; k < r->plan->rank_count; k++) {
        ends[k] = 0;
        for (uint32_t n = g->base[k]; n < g->base[k + 1]; n++)
            ends[k] = fmax(ends[k], r->end[n]);
    }
    for (uint32_t k = r->plan->rank_count; k-- > 0;)
        if (k != r->reporter)
            ends[k] -= ends[r->reporter];
    ends[r->reporter] = 0;
}

/* Recomposes the changed step as one of a series of equal steps: a rank that ends later than recorded begins
 * the next step as much later. Iterates from the recorded begins; each iteration takes its begins from the
 * ends of the previous one. */
static int change_steadily(struct replay *r, const struct replay_costs *costs, struct err *err)
{
    uint32_t ranks = r->plan->rank_count;
    double *were = r->were, *are = r->are, *begin = r->was_begin, moved = INFINITY;
    ends_of(r, were); /* the ranks' ends in the unchanged step, which was recomposed before */
    memcpy(begin, r->step.rank_begin, ranks * sizeof(*begin));
    for (int turn = 0; turn < STEADY_TURNS && moved > STEADY_SECONDS; turn++) {
        wires_clear(r);
        if (replay_put_together(&r->graph, &r->step, costs, r->begin, r->end, err) < 0)
            return -1;
        ends_of(r, are);
        double first = INFINITY;
        for (uint32_t k = 0; k < ranks; k++) {
            are[k] = begin[k] - begin[r->reporter] + are[k] - were[k];
            first = fmin(first, are[k]);
        }
        moved = 0;
        for (uint32_t k = 0; k < ranks; k++) { /* begins are relative to the first rank that begins */
            moved = fmax(moved, fabs(are[k] - first - r->step.rank_begin[k]));
            r->step.rank_begin[k] = are[k] - first;
        }
    }
    return 0;
}

static int step_replay(struct replay *r, struct replay_answer *answer, struct trace *timeline,
                       struct err *err)
{
    uint32_t k = answer->steps;
    double program_s = reporter_s(r);
    const struct replay_costs as_it_was = {.context = r, .wire = wire_before};
    const struct replay_costs costs = {.device_speed = r->change ? r->change->device_speed : NULL,
                                       .context = r,
                                       .wire = replay_run_wire_between};
    if (replay_take_apart(&r->graph, &as_it_was, r->begin, r->end, &r->step, err) < 0)
        return -1;
    sums_add(r, answer);
    r->recorded[k] = r->step.measured_s > 0 ? r->step.measured_s : program_s;
    r->outside[k] = fmax(0, r->recorded[k] - program_s);
    if (replay_put_together(&r->graph, &r->step, &as_it_was, r->begin, r->end, err) < 0)
        return -1;
    r->simulated[k] = r->changed[k] = reporter_s(r) + r->outside[k];
    if (r->change) {
        if (change_steadily(r, &costs, err) < 0)
            return -1;
        r->changed[k] = reporter_s(r) + r->outside[k];
    }
    if (timeline)
        timeline_add(r, timeline);
    answer->steps++;
    return 0;
}

static int replay_run_rising(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static double replay_run_median(double *values, uint32_t count)
{
    qsort(values, count, sizeof(*values), replay_run_rising);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static int steps_replay(struct replay *r, const struct trace *recorded, const json_t *metrics,
                        struct replay_answer *answer, struct trace *timeline, struct err *err)
{
    uint32_t last = UINT32_MAX;
    int result = 0;
    for (uint32_t i = 0; i < recorded->count && result == 0 && answer->steps < STEPS_MAX; i++) {
        const struct trace_event *e = &recorded->events[i];
        if (e->program != r->graph.kind || e->rank != 0 || e->step == last)
            continue;
        last = e->step;
        if (step_read(r, recorded, last) != r->graph.total)
            continue;
        r->step.step = last;
        replay_run_metrics_read(metrics, &r->step);
        result = step_replay(r, answer, timeline, err);
    }
    if (result == 0 && answer->steps == 0)
        result = err_set(err, ERR_INVALID,
                         "replay: the trace holds no complete step of this plan (%u instructions)",
                         r->graph.total);
    if (result < 0)
        return -1;
    answer->recorded_s = replay_run_median(r->recorded, answer->steps);
    answer->simulated_s = replay_run_median(r->simulated, answer->steps);
    answer->changed_s = replay_run_median(r->changed, answer->steps);
    answer->outside_s = replay_run_median(r->outside, answer->steps);
    answer->gaps_s /= answer->steps;
    for (uint32_t k = 0; answer->compute_s && k < r->plan->rank_count; k++)
        answer->compute_s[k] /= answer->steps;
    return 0;
}

static void replay_fini(struct replay *r)
{
    plan_graph_fini(&r->graph);
    arena_fini(&r->arena);
}

static int replay_init(struct replay *r, struct err *err)
{
    if (plan_graph_init(&r->graph, r->plan, PROGRAM_TRAIN, err) < 0)
        return -1;
    uint32_t total = r->graph.total, ranks = r->plan->rank_count;
    ARENA_ARRAY(&r->arena, r->begin, total);
    ARENA_ARRAY(&r->arena, r->end, total);
    ARENA_ARRAY(&r->arena, r->step.parts, total);
    ARENA_ARRAY(&r->arena, r->step.rank_begin, ranks);
    ARENA_ARRAY(&r->arena, r->were, ranks);
    ARENA_ARRAY(&r->arena, r->are, ranks);
    ARENA_ARRAY(&r->arena, r->was_begin, ranks);
    ARENA_ARRAY(&r->arena, r->wires, WIRES_MAX);
    if (r->arena.failed)
        return err_set(err, ERR_NOMEM, "replay: out of memory for %u instructions", total);
    for (uint32_t k = r->plan->rank_count; k-- > 0;)
        if (r->plan->ranks[k].block_end == r->plan->block_count)
            r->reporter = k;
    return 0;
}

int replay_run(const struct plan *plan, const struct trace *recorded, const json_t *metrics,
               const json_t *links, const struct replay_change *change, struct replay_answer *answer,
               struct trace *timeline, struct err *err)
{
    struct replay r = {.plan = plan, .change = change};
    double *compute_s = answer->compute_s;
    *answer = (struct replay_answer){.compute_s = compute_s};
    for (uint32_t k = 0; compute_s && k < plan->rank_count; k++)
        compute_s[k] = 0;
    if (json_array_size(links) > LINKS_MAX)
        return err_set(err, ERR_TOO_BIG, "links: more than %u", LINKS_MAX);
    int result = replay_init(&r, err);
    if (result == 0)
        result = wires_init(&r, links, err);
    if (result == 0)
        result = links_used(&r, err);
    if (result == 0)
        result = steps_replay(&r, recorded, metrics, answer, timeline, err);
    replay_fini(&r);
    return result;
}
