/* `motley replay JOB`: a recorded run from its own instruction times. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cluster_private.h"
#include "planner/replay.h"
#include "planner/simulate.h"

#define STEPS_MAX 64u

struct replay {
    const struct plan *plan;
    const struct plan_graph *graph;
    const struct replay_change *change; /* NULL: as recorded */
    double *seconds;                    /* per global instruction: recorded, own work only */
    const struct link_list *links;
};

struct link_list {
    uint32_t count;
    struct {
        const char *from, *to;
        double latency_s, bytes_per_s;
    } items[256];
};

static uint32_t number_of(const struct replay *r, uint32_t rank, const struct instr *x)
{
    return r->graph->base[rank] + (uint32_t)(x - r->plan->ranks[rank].programs[r->graph->kind].instrs);
}

static double replay_compute(void *context, uint32_t rank, const struct instr *x)
{
    const struct replay *r = context;
    double seconds = r->seconds[number_of(r, rank, x)];
    return r->change && r->change->device_speed ? seconds / r->change->device_speed[rank] : seconds;
}

static bool link_matches(const char *a, const char *b, const char *from, const char *to)
{
    return (strcmp(a, from) == 0 && strcmp(b, to) == 0) || (strcmp(a, to) == 0 && strcmp(b, from) == 0);
}

/* The change asked for the link between two ranks' nodes, or -1. */
static int change_of(const struct replay *r, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; r->change && i < r->change->link_count; i++) {
        if (link_matches(r->change->links[i].from, r->change->links[i].to, r->plan->ranks[from].node,
                         r->plan->ranks[to].node))
            return (int)i;
    }
    return -1;
}

/* What was known of the link when it was recorded: its index in the documents, or -1. */
static int recorded_of(const struct replay *r, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < r->links->count; i++) {
        if (link_matches(r->links->items[i].from, r->links->items[i].to, r->plan->ranks[from].node,
                         r->plan->ranks[to].node))
            return (int)i;
    }
    return -1;
}

/* Transfers carry their recorded seconds as "bytes" over a wire of 1 byte/s. A changed link scales that by
 * the rates, or, where the recorded rate is not known, moves the most bytes the slot holds at its own rate.
 */
static double replay_bytes(void *context, uint32_t rank, const struct instr *x)
{
    const struct replay *r = context;
    if (change_of(r, rank, (uint32_t)x->peer) >= 0 && recorded_of(r, rank, (uint32_t)x->peer) < 0)
        return (double)r->plan->ranks[rank].slots[x->slot_in].bytes_bound;
    return r->seconds[number_of(r, rank, x)];
}

static void replay_wire(void *context, uint32_t from, uint32_t to, struct sim_wire *wire)
{
    const struct replay *r = context;
    int change = change_of(r, from, to), recorded = recorded_of(r, from, to);
    *wire = (struct sim_wire){.latency_s = 0, .bytes_per_s = 1, .number = from * r->plan->rank_count + to};
    if (change < 0)
        return;
    double rate = r->change->links[change].bytes_per_s, latency = r->change->links[change].latency_s;
    wire->bytes_per_s = recorded < 0 ? rate : rate / r->links->items[recorded].bytes_per_s;
    wire->latency_s = recorded < 0 ? latency : fmax(0, latency - r->links->items[recorded].latency_s);
}

static double replay_collective(void *context, const struct plan_group *group, uint32_t rank,
                                const struct instr *x)
{
    const struct replay *r = context;
    (void)group;
    double seconds = r->seconds[number_of(r, rank, x)];
    return seconds > 0 ? seconds : 0;
}

static int links_read(const json_t *links, struct link_list *list, struct err *err)
{
    list->count = 0;
    for (size_t i = 0; i < json_array_size(links); i++) {
        const json_t *item = json_array_get(links, i);
        const char *from = json_string_value(json_object_get(item, "from"));
        const char *to = json_string_value(json_object_get(item, "to"));
        double latency = json_number_value(json_object_get(item, "latency_s"));
        double rate = json_number_value(json_object_get(item, "bytes_per_s"));
        if (!from || !to || !(latency >= 0) || !(rate > 0))
            return err_set(err, ERR_INVALID, "links[%zu]: from, to, latency_s and bytes_per_s are needed", i);
        if (list->count < sizeof(list->items) / sizeof(list->items[0])) {
            list->items[list->count].from = from;
            list->items[list->count].to = to;
            list->items[list->count].latency_s = latency;
            list->items[list->count++].bytes_per_s = rate;
        }
    }
    return 0;
}

/* Fills begin and end of every instruction of one recorded step; returns how many there are. */
static uint32_t step_read(const struct plan_graph *g, const struct trace *trace, uint32_t step, double *begin,
                          double *end)
{
    uint32_t found = 0;
    for (uint32_t n = 0; n < g->total; n++)
        end[n] = -1;
    for (uint32_t i = 0; i < trace->count; i++) {
        const struct trace_event *e = &trace->events[i];
        if (e->step != step || e->program != g->kind || e->rank >= g->plan->rank_count ||
            e->instr >= g->base[e->rank + 1] - g->base[e->rank])
            continue;
        uint32_t n = g->base[e->rank] + e->instr;
        found += end[n] < 0;
        begin[n] = (double)(e->begin_ns - trace->events[0].begin_ns) /
                   1e9; /* wall clocks are too long for a double */
        end[n] = (double)(e->end_ns - trace->events[0].begin_ns) / 1e9;
    }
    return found;
}

/* A transfer is under way from when the later side began until the receiver has it; a collective from its
 * last member's beginning until its end there; the rest is waiting, which the simulator makes itself. */
static void work_of(const struct plan_graph *g, const double *begin, const double *end, double *seconds)
{
    for (uint32_t n = 0; n < g->total; n++)
        seconds[n] = end[n] - begin[n] > 0 ? end[n] - begin[n] : 0;
    for (uint32_t m = 0; m < g->meeting_count; m++) {
        double ready = -INFINITY, over = INFINITY;
        bool group = graph_instr(g, g->members[g->member_first[m]])->queue == QUEUE_GROUP;
        for (uint32_t k = g->member_first[m]; k < g->member_first[m + 1]; k++) {
            uint32_t n = g->members[k];
            bool receives = graph_instr(g, n)->queue == QUEUE_RECV;
            ready = begin[n] > ready ? begin[n] : ready;
            if ((group || receives) && end[n] < over)
                over = end[n];
        }
        double work = over - ready > 0 ? over - ready : 0;
        for (uint32_t k = g->member_first[m]; k < g->member_first[m + 1]; k++)
            seconds[g->members[k]] = work;
    }
}

static int replay_steps(struct replay *r, struct sim *sim, const struct trace *recorded, double *recorded_s,
                        double *simulated_s, double *changed_s, const struct replay_change *change,
                        struct trace *timeline, struct err *err)
{
    const struct plan_graph *g = r->graph;
    double *begin = calloc((size_t)g->total + 1, sizeof(double)),
           *end = calloc((size_t)g->total + 1, sizeof(double));
    uint32_t used = 0, last = UINT32_MAX;
    int result = begin && end ? 0 : err_set(err, ERR_NOMEM, "replay: out of memory");
    *recorded_s = *simulated_s = *changed_s = 0;
    for (uint32_t i = 0; i < recorded->count && result == 0 && used < STEPS_MAX; i++) {
        uint32_t step = recorded->events[i].step;
        if (recorded->events[i].program != g->kind || recorded->events[i].rank != 0 || step == last)
            continue;
        last = step;
        if (step_read(g, recorded, step, begin, end) != g->total)
            continue;
        double first = INFINITY, over = -INFINITY, seconds = 0;
        for (uint32_t n = 0; n < g->total; n++) {
            first = begin[n] < first ? begin[n] : first;
            over = end[n] > over ? end[n] : over;
        }
        work_of(g, begin, end, r->seconds);
        struct sim_costs costs = {.context = r,
                                  .compute_s = replay_compute,
                                  .bytes = replay_bytes,
                                  .wire = replay_wire,
                                  .collective_s = replay_collective,
                                  .wire_count = r->plan->rank_count * r->plan->rank_count};
        r->change = NULL;
        result = sim_run(sim, &costs, &seconds, NULL, change ? NULL : timeline, step, err);
        *simulated_s += seconds;
        *recorded_s += over - first;
        r->change = change;
        if (result == 0 && change)
            result = sim_run(sim, &costs, &seconds, NULL, timeline, step, err);
        *changed_s += seconds;
        used++;
    }
    free(begin);
    free(end);
    if (result < 0)
        return -1;
    if (used == 0)
        return err_set(err, ERR_INVALID,
                       "replay: the trace holds no complete step of this plan (%u instructions)", g->total);
    *recorded_s /= used;
    *simulated_s /= used;
    *changed_s /= used;
    return 0;
}

int replay_run(const struct plan *plan, const struct trace *recorded, const json_t *links,
               const struct replay_change *change, double *recorded_s, double *simulated_s, double *changed_s,
               struct trace *timeline, struct err *err)
{
    struct sim *sim = NULL;
    struct link_list list;
    if (links_read(links, &list, err) < 0 || sim_create(plan, PROGRAM_TRAIN, &sim, err) < 0)
        return -1;
    struct replay r = {.plan = plan, .graph = sim_graph(sim), .links = &list};
    r.seconds = calloc((size_t)r.graph->total + 1, sizeof(double));
    int result =
        r.seconds ? replay_steps(&r, sim, recorded, recorded_s, simulated_s, changed_s, change, timeline, err)
                  : err_set(err, ERR_NOMEM, "replay: out of memory");
    free(r.seconds);
    sim_destroy(sim);
    return result;
}
