/* `motley replay JOB`: a recorded run from its own instruction times. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/replay.h"
#include "planner/replay_walk.h"

#define STEPS_MAX 64u
#define LINKS_MAX 1000000u

struct replay {
    const struct plan *plan;
    struct plan_graph graph;
    const struct replay_change *change; /* or NULL */
    struct replay_wire wires[16];       /* of change->links */
    struct replay_step step;
    double *begin, *end;                              /* [graph total] */
    double *recorded, *simulated, *changed, *outside; /* [STEPS_MAX] */
    uint32_t reporter; /* the rank whose steps the run measures: the first with the head */
};

/* --- what was recorded --- */

/* Fills beginning and end of every instruction of one step; how many there are. */
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
        /* from the trace's beginning: wall clocks are too long for a double */
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

static void metrics_read(const json_t *metrics, struct replay_step *step)
{
    size_t index;
    const json_t *line;
    step->measured_s = step->tokens = step->rows = 0;
    json_array_foreach(metrics, index, line)
    {
        const json_t *number = json_object_get(line, "step");
        if (json_object_get(line, "eval") || !json_is_integer(number) ||
            json_integer_value(number) != (json_int_t)step->step)
            continue;
        step->measured_s = json_number_value(json_object_get(line, "seconds"));
        step->tokens = json_number_value(json_object_get(line, "tokens"));
        step->rows = json_number_value(json_object_get(line, "rows"));
    }
}

/* --- what is changed --- */

static bool same_link(const char *a, const char *b, const char *from, const char *to)
{
    return (strcmp(a, from) == 0 && strcmp(b, to) == 0) || (strcmp(a, to) == 0 && strcmp(b, from) == 0);
}

static struct replay_wire *wire_between(void *context, uint32_t from, uint32_t to, int *direction)
{
    struct replay *r = context;
    const char *a = r->plan->ranks[from].node, *b = r->plan->ranks[to].node;
    for (uint32_t i = 0; i < r->change->link_count; i++) {
        if (same_link(r->change->links[i].from, r->change->links[i].to, a, b)) {
            *direction = strcmp(r->change->links[i].from, a) != 0;
            return &r->wires[i];
        }
    }
    return NULL;
}

/* The wires of the change, with what is known of how they were. */
static int wires_init(struct replay *r, const json_t *links, struct err *err)
{
    for (uint32_t i = 0; r->change && i < r->change->link_count; i++) {
        struct replay_wire *wire = &r->wires[i];
        *wire = (struct replay_wire){.bytes_per_s = r->change->links[i].bytes_per_s,
                                     .latency_s = r->change->links[i].latency_s};
        size_t index;
        const json_t *link;
        json_array_foreach(links, index, link)
        {
            const char *from = json_string_value(json_object_get(link, "from"));
            const char *to = json_string_value(json_object_get(link, "to"));
            double latency = json_number_value(json_object_get(link, "latency_s"));
            double rate = json_number_value(json_object_get(link, "bytes_per_s"));
            if (!from || !to || !(latency >= 0) || !(rate > 0))
                return err_set(err, ERR_INVALID, "links[%zu]: from, to, latency_s and bytes_per_s are needed",
                               index);
            if (same_link(r->change->links[i].from, r->change->links[i].to, from, to)) {
                wire->was_bytes_per_s = rate;
                wire->was_latency_s = latency;
            }
        }
    }
    return 0;
}

/* Each changed link must be one that this run's ranks meet over. */
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

/* --- the steps --- */

/* From when the reporting rank began its program until it ended it; what the run measures, but for what lies
 * outside the program. */
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

static int step_replay(struct replay *r, struct replay_answer *answer, struct trace *timeline,
                       struct err *err)
{
    uint32_t k = answer->steps;
    double program_s = reporter_s(r);
    struct replay_costs costs = {
        .device_speed = r->change ? r->change->device_speed : NULL, .context = r, .wire = wire_between};
    if (replay_take_apart(&r->graph, r->begin, r->end, &r->step, err) < 0)
        return -1;
    sums_add(r, answer);
    r->recorded[k] = r->step.measured_s > 0 ? r->step.measured_s : program_s;
    r->outside[k] = fmax(0, r->recorded[k] - program_s);
    if (replay_put_together(&r->graph, &r->step, NULL, r->begin, r->end, err) < 0)
        return -1;
    r->simulated[k] = r->changed[k] = reporter_s(r) + r->outside[k];
    if (r->change) {
        for (uint32_t i = 0; i < r->change->link_count; i++)
            r->wires[i].free_s[0] = r->wires[i].free_s[1] = 0;
        if (replay_put_together(&r->graph, &r->step, &costs, r->begin, r->end, err) < 0)
            return -1;
        r->changed[k] = reporter_s(r) + r->outside[k];
    }
    if (timeline)
        timeline_add(r, timeline);
    answer->steps++;
    return 0;
}

static int rising(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, rising);
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
        metrics_read(metrics, &r->step);
        result = step_replay(r, answer, timeline, err);
    }
    if (result == 0 && answer->steps == 0)
        result = err_set(err, ERR_INVALID,
                         "replay: the trace holds no complete step of this plan (%u instructions)",
                         r->graph.total);
    if (result < 0)
        return -1;
    answer->recorded_s = median(r->recorded, answer->steps);
    answer->simulated_s = median(r->simulated, answer->steps);
    answer->changed_s = median(r->changed, answer->steps);
    answer->outside_s = median(r->outside, answer->steps);
    answer->gaps_s /= answer->steps;
    for (uint32_t k = 0; answer->compute_s && k < r->plan->rank_count; k++)
        answer->compute_s[k] /= answer->steps;
    return 0;
}

static void replay_fini(struct replay *r)
{
    plan_graph_fini(&r->graph);
    free(r->begin);
    free(r->end);
    free(r->step.parts);
    free(r->step.rank_begin);
    free(r->recorded);
    free(r->simulated);
    free(r->changed);
    free(r->outside);
}

static int replay_init(struct replay *r, struct err *err)
{
    if (plan_graph_init(&r->graph, r->plan, PROGRAM_TRAIN, err) < 0)
        return -1;
    size_t total = (size_t)r->graph.total + 1;
    r->begin = calloc(total, sizeof *r->begin);
    r->end = calloc(total, sizeof *r->end);
    r->step.parts = calloc(total, sizeof *r->step.parts);
    r->step.rank_begin = calloc((size_t)r->plan->rank_count + 1, sizeof *r->step.rank_begin);
    r->recorded = calloc(STEPS_MAX, sizeof(double));
    r->simulated = calloc(STEPS_MAX, sizeof(double));
    r->changed = calloc(STEPS_MAX, sizeof(double));
    r->outside = calloc(STEPS_MAX, sizeof(double));
    if (!r->begin || !r->end || !r->step.parts || !r->step.rank_begin || !r->recorded || !r->simulated ||
        !r->changed || !r->outside)
        return err_set(err, ERR_NOMEM, "replay: out of memory for %zu instructions", total);
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
