/* Event simulation without an event queue: queues are in order, so an instruction's start is known when its
 * last predecessor's end is. Only transfers that share a wire need order in time; those wait in a heap by
 * readiness, and the earliest is taken when nothing else can go on: whatever is still to become ready depends
 * on it, so comes later. */
#include "planner/simulate.h"

#include <stdlib.h>
#include <string.h>

struct heap_item {
    double ready;
    uint32_t meeting;
};

struct sim {
    struct plan_graph graph;
    double *ready, *end; /* [total] */
    uint32_t *waits;     /* [total] */
    uint32_t *missing;   /* [meetings] */
    double *meeting_ready;
    uint32_t *stack;
    struct heap_item *heap;
    uint32_t heap_count;
    double *wire_free; /* grown to the costs' wire_count */
    uint32_t *wire_users;
    uint32_t wire_capacity;
};

/* One run in progress. */
struct run {
    struct sim *sim;
    const struct sim_costs *costs;
    struct sim_rank *ranks;
    uint32_t top, finished;
    double last;
};

int sim_create(const struct plan *plan, int kind, struct sim **out, struct err *err)
{
    struct sim *sim = calloc(1, sizeof(*sim));
    *out = NULL;
    if (!sim)
        return err_set(err, ERR_NOMEM, "simulator: out of memory");
    if (plan_graph_init(&sim->graph, plan, kind, err) < 0) {
        free(sim);
        return -1;
    }
    size_t total = (size_t)sim->graph.total + 1, meetings = (size_t)sim->graph.meeting_count + 1;
    sim->ready = calloc(total, sizeof(double));
    sim->end = calloc(total, sizeof(double));
    sim->waits = calloc(total, sizeof(uint32_t));
    sim->stack = calloc(total, sizeof(uint32_t));
    sim->missing = calloc(meetings, sizeof(uint32_t));
    sim->meeting_ready = calloc(meetings, sizeof(double));
    sim->heap = calloc(meetings, sizeof(*sim->heap));
    if (!sim->ready || !sim->end || !sim->waits || !sim->stack || !sim->missing || !sim->meeting_ready ||
        !sim->heap) {
        sim_destroy(sim);
        return err_set(err, ERR_NOMEM, "simulator: out of memory for %zu instructions", total);
    }
    *out = sim;
    return 0;
}

void sim_destroy(struct sim *sim)
{
    if (!sim)
        return;
    plan_graph_fini(&sim->graph);
    free(sim->ready);
    free(sim->end);
    free(sim->waits);
    free(sim->stack);
    free(sim->missing);
    free(sim->meeting_ready);
    free(sim->heap);
    free(sim->wire_free);
    free(sim->wire_users);
    free(sim);
}

static void heap_push(struct sim *sim, double ready, uint32_t meeting)
{
    uint32_t i = sim->heap_count++;
    while (i > 0) {
        uint32_t up = (i - 1) / 2;
        struct heap_item *p = &sim->heap[up];
        if (p->ready < ready || (p->ready == ready && p->meeting < meeting))
            break;
        sim->heap[i] = *p;
        i = up;
    }
    sim->heap[i] = (struct heap_item){ready, meeting};
}

static uint32_t heap_pop(struct sim *sim)
{
    uint32_t result = sim->heap[0].meeting, i = 0;
    struct heap_item last = sim->heap[--sim->heap_count];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= sim->heap_count)
            break;
        const struct heap_item *a = &sim->heap[child], *b = a + 1;
        if (child + 1 < sim->heap_count &&
            (b->ready < a->ready || (b->ready == a->ready && b->meeting < a->meeting)))
            child++;
        const struct heap_item *c = &sim->heap[child];
        if (last.ready < c->ready || (last.ready == c->ready && last.meeting < c->meeting))
            break;
        sim->heap[i] = *c;
        i = child;
    }
    sim->heap[i] = last;
    return result;
}

/* Instruction n is over at `end`: its successors may start. */
static void finish(struct run *run, uint32_t n, double end)
{
    struct sim *sim = run->sim;
    const struct plan_graph *g = &sim->graph;
    sim->end[n] = end;
    run->finished++;
    run->last = end > run->last ? end : run->last;
    if (run->ranks && run->ranks[g->rank_of[n]].end_s < end)
        run->ranks[g->rank_of[n]].end_s = end;
    for (uint32_t d = g->dependent_first[n]; d < g->dependent_first[n + 1]; d++) {
        uint32_t next = g->dependents[d];
        if (sim->ready[next] < end)
            sim->ready[next] = end;
        if (--sim->waits[next] == 0)
            sim->stack[run->top++] = next;
    }
}

static void members_of(const struct plan_graph *g, uint32_t meeting, uint32_t *send, uint32_t *recv)
{
    uint32_t a = g->members[g->member_first[meeting]], b = g->members[g->member_first[meeting] + 1];
    const struct instr *x = graph_instr(g, a);
    bool sends = x->op == OP_SEND || x->op == OP_PUSH;
    *send = sends ? a : b;
    *recv = sends ? b : a;
}

static void transfer(struct run *run, uint32_t meeting)
{
    struct sim *sim = run->sim;
    const struct plan_graph *g = &sim->graph;
    uint32_t send, recv;
    members_of(g, meeting, &send, &recv);
    double start = sim->meeting_ready[meeting];
    double bytes = run->costs->bytes(run->costs->context, g->rank_of[send], graph_instr(g, send));
    if (bytes < 0) {
        finish(run, send, start);
        finish(run, recv, start);
        return;
    }
    struct sim_wire wire = {0};
    run->costs->wire(run->costs->context, g->rank_of[send], g->rank_of[recv], &wire);
    if (sim->wire_free[wire.number] > start)
        start = sim->wire_free[wire.number];
    double occupied = bytes / wire.bytes_per_s;
    sim->wire_free[wire.number] = start + occupied;
    if (run->ranks)
        run->ranks[g->rank_of[send]].send_s += occupied;
    finish(run, send, start + occupied);
    finish(run, recv, start + occupied + wire.latency_s);
}

static void collective(struct run *run, uint32_t meeting)
{
    struct sim *sim = run->sim;
    const struct plan_graph *g = &sim->graph;
    uint32_t first = g->members[g->member_first[meeting]];
    const struct instr *x = graph_instr(g, first);
    double end =
        sim->meeting_ready[meeting] +
        run->costs->collective_s(run->costs->context, &g->plan->groups[x->group], g->rank_of[first], x);
    for (uint32_t k = g->member_first[meeting]; k < g->member_first[meeting + 1]; k++)
        finish(run, g->members[k], end);
}

static bool meeting_shares(const struct run *run, uint32_t meeting)
{
    const struct plan_graph *g = &run->sim->graph;
    uint32_t send, recv;
    struct sim_wire wire = {0};
    members_of(g, meeting, &send, &recv);
    run->costs->wire(run->costs->context, g->rank_of[send], g->rank_of[recv], &wire);
    return run->sim->wire_users[wire.number] > 1;
}

static void start(struct run *run, uint32_t n)
{
    struct sim *sim = run->sim;
    const struct plan_graph *g = &sim->graph;
    uint32_t meeting = g->meeting[n];
    if (meeting == UINT32_MAX) {
        uint32_t rank = g->rank_of[n];
        double seconds = run->costs->compute_s(run->costs->context, rank, graph_instr(g, n));
        if (run->ranks)
            run->ranks[rank].compute_s += seconds;
        finish(run, n, sim->ready[n] + seconds);
        return;
    }
    if (sim->meeting_ready[meeting] < sim->ready[n])
        sim->meeting_ready[meeting] = sim->ready[n];
    if (--sim->missing[meeting] > 0)
        return;
    if (graph_instr(g, n)->queue == QUEUE_GROUP)
        collective(run, meeting);
    else if (meeting_shares(run, meeting))
        heap_push(sim, sim->meeting_ready[meeting], meeting);
    else
        transfer(run, meeting);
}

/* How many ordered pairs of ranks use each wire. */
static int wires_init(struct run *run, struct err *err)
{
    struct sim *sim = run->sim;
    const struct plan_graph *g = &sim->graph;
    uint32_t count = run->costs->wire_count;
    if (count > sim->wire_capacity) {
        free(sim->wire_free);
        free(sim->wire_users);
        sim->wire_free = calloc(count, sizeof(double));
        sim->wire_users = calloc(count, sizeof(uint32_t));
        sim->wire_capacity = sim->wire_free && sim->wire_users ? count : 0;
        if (!sim->wire_capacity)
            return err_set(err, ERR_NOMEM, "simulator: out of memory for %u wires", count);
    }
    if (count == 0)
        return 0;
    memset(sim->wire_free, 0, count * sizeof(double));
    memset(sim->wire_users, 0, count * sizeof(uint32_t));
    uint32_t ranks = g->plan->rank_count;
    uint32_t *last =
        calloc(ranks, sizeof(*last)); /* receiving rank → last sender + 1 seen, to count pairs once */
    if (!last)
        return err_set(err, ERR_NOMEM, "simulator: out of memory");
    for (uint32_t rank = 0; rank < ranks; rank++) {
        for (uint32_t n = g->base[rank]; n < g->base[rank + 1]; n++) {
            const struct instr *x = graph_instr(g, n);
            if (x->queue != QUEUE_SEND || last[x->peer] == rank + 1)
                continue;
            last[x->peer] = rank + 1;
            struct sim_wire wire = {0};
            run->costs->wire(run->costs->context, rank, (uint32_t)x->peer, &wire);
            sim->wire_users[wire.number]++;
        }
    }
    free(last);
    return 0;
}

static void trace_write(const struct sim *sim, const struct sim_costs *costs, struct trace *trace,
                        uint32_t step)
{
    const struct plan_graph *g = &sim->graph;
    for (uint32_t n = 0; n < g->total; n++) {
        const struct instr *x = graph_instr(g, n);
        uint32_t rank = g->rank_of[n];
        double begin = sim->ready[n];
        if (g->meeting[n] == UINT32_MAX)
            begin = sim->end[n] - costs->compute_s(costs->context, rank, x);
        trace_add(trace, &(struct trace_event){.rank = rank,
                                               .step = step,
                                               .instr = n - g->base[rank],
                                               .program = (uint8_t)g->kind,
                                               .begin_ns = (int64_t)(begin * 1e9),
                                               .end_ns = (int64_t)(sim->end[n] * 1e9),
                                               .ready_ns = (int64_t)(sim->ready[n] * 1e9)});
    }
}

int sim_run(struct sim *sim, const struct sim_costs *costs, double *seconds, struct sim_rank *ranks,
            struct trace *trace, uint32_t step, struct err *err)
{
    const struct plan_graph *g = &sim->graph;
    struct run run = {.sim = sim, .costs = costs, .ranks = ranks};
    if (wires_init(&run, err) < 0)
        return -1;
    memcpy(sim->waits, g->waits, g->total * sizeof(uint32_t));
    memset(sim->ready, 0, g->total * sizeof(double));
    memset(sim->meeting_ready, 0, g->meeting_count * sizeof(double));
    for (uint32_t m = 0; m < g->meeting_count; m++)
        sim->missing[m] = g->member_first[m + 1] - g->member_first[m];
    if (ranks)
        memset(ranks, 0, g->plan->rank_count * sizeof(*ranks));
    for (uint32_t n = 0; n < g->total; n++) {
        if (sim->waits[n] == 0)
            sim->stack[run.top++] = n;
    }
    sim->heap_count = 0;
    while (run.top > 0 || sim->heap_count > 0) {
        while (run.top > 0)
            start(&run, sim->stack[--run.top]);
        if (sim->heap_count > 0)
            transfer(&run, heap_pop(sim));
    }
    if (run.finished != g->total)
        return err_set(err, ERR_INVALID, "simulator: %u of %u instructions never start",
                       g->total - run.finished, g->total);
    *seconds = run.last;
    if (trace)
        trace_write(sim, costs, trace, step);
    return 0;
}

const double *sim_ends(const struct sim *sim)
{
    return sim->end;
}

const struct plan_graph *sim_graph(const struct sim *sim)
{
    return &sim->graph;
}
