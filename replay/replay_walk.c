/* Decomposes and recomposes steps. In recomposition, instructions begin in order of time (a heap), so that
 * transfers can queue for a changed wire; without a changed wire any order gives the same times. */
#include "replay/replay_walk.h"

#include <math.h>
#include <string.h>

/* --- decomposition --- */

static void transfer_ends(const struct plan_graph *g, uint32_t meeting, uint32_t *send, uint32_t *recv)
{
    uint32_t a = g->members[g->member_first[meeting]], b = g->members[g->member_first[meeting] + 1];
    bool first = instr_sends(graph_instr(g, a));
    *send = first ? a : b;
    *recv = first ? b : a;
}

/* Writes when each instruction could have begun, by the recorded ends of its predecessors. */
static void ready_times(const struct plan_graph *g, const double *end, const double *rank_begin,
                        double *ready)
{
    for (uint32_t n = 0; n < g->total; n++)
        ready[n] = rank_begin[g->rank_of[n]];
    for (uint32_t n = 0; n < g->total; n++)
        for (uint32_t d = g->dependent_first[n]; d < g->dependent_first[n + 1]; d++)
            ready[g->dependents[d]] = fmax(ready[g->dependents[d]], end[n]);
}

/* Returns, for a pair of ranks, the least time between a send's end and the end of a receive that was already
 * waiting: the part of a message's flight after the sender is free. */
static double least_lag(const struct plan_graph *g, const double *begin, const double *end, uint32_t from,
                        uint32_t to)
{
    double least = INFINITY;
    for (uint32_t m = 0; m < g->meeting_count; m++) {
        if (graph_instr(g, g->members[g->member_first[m]])->queue == QUEUE_GROUP)
            continue;
        uint32_t send, recv;
        transfer_ends(g, m, &send, &recv);
        if (g->rank_of[send] == from && g->rank_of[recv] == to && begin[recv] <= begin[send])
            least = fmin(least, end[recv] - end[send]);
    }
    return isfinite(least) ? fmax(0, least) : 0;
}

static void transfer_apart(const struct plan_graph *g, uint32_t meeting, const double *begin,
                           const double *end, double *lags, struct replay_part *parts)
{
    uint32_t send, recv, ranks = g->plan->rank_count;
    transfer_ends(g, meeting, &send, &recv);
    /* `most` is below 0 if the two machines' clocks differ; recomposition restores the recorded times all
     * the same. */
    double hold = fmax(0, end[send] - begin[send]), most = end[recv] - begin[send];
    double *lag = &lags[(size_t)g->rank_of[send] * ranks + g->rank_of[recv]];
    parts[send].work = hold;
    if (begin[recv] <= end[send]) { /* the receiver was waiting, so the flight ends with the receive */
        parts[send].flight = most;
    } else { /* the data arrived before the receive began, at an unknown time */
        if (*lag < 0)
            *lag = least_lag(g, begin, end, g->rank_of[send], g->rank_of[recv]);
        parts[send].flight = fmin(hold + *lag, most);
    }
    parts[recv].copy = fmax(0, end[recv] - fmax(begin[recv], begin[send] + parts[send].flight));
}

/* Writes the part of a collective's time that its simulated messages do not explain (`work` of struct
 * replay_part). */
static void collective_apart(const struct plan_graph *g, const struct replay_costs *costs, uint32_t meeting,
                             const double *begin, const double *end, double *by_messages,
                             struct replay_part *parts)
{
    uint32_t first = g->member_first[meeting], count = g->member_first[meeting + 1] - first;
    replay_collective_ends(g, costs, true, meeting, begin, by_messages);
    for (uint32_t k = 0; k < count; k++)
        parts[g->members[first + k]].work = end[g->members[first + k]] - by_messages[k];
}

int replay_take_apart(const struct plan_graph *g, const struct replay_costs *costs, const double *begin,
                      const double *end, struct replay_step *step, struct err *err)
{
    uint32_t ranks = g->plan->rank_count;
    struct arena arena = {0};
    double *ready = arena_get(&arena, g->total, sizeof(*ready));
    double *by_messages = arena_get(&arena, ranks, sizeof(*by_messages));
    /* [pair of ranks] lag; below 0: not computed yet. */
    double *lags = arena_get(&arena, (size_t)ranks * ranks, sizeof(*lags));
    if (arena.failed) {
        arena_fini(&arena);
        return err_set(err, ERR_NOMEM, "replay: out of memory for %u instructions", g->total);
    }
    for (size_t i = 0; i < (size_t)ranks * ranks; i++)
        lags[i] = -1;
    for (uint32_t r = 0; r < ranks; r++) {
        step->rank_begin[r] = g->base[r] < g->base[r + 1] ? INFINITY : 0;
        for (uint32_t n = g->base[r]; n < g->base[r + 1]; n++)
            step->rank_begin[r] = fmin(step->rank_begin[r], begin[n]);
    }
    ready_times(g, end, step->rank_begin, ready);
    for (uint32_t n = 0; n < g->total; n++)
        step->parts[n] =
            (struct replay_part){.gap = fmax(0, begin[n] - ready[n]), .work = fmax(0, end[n] - begin[n])};
    for (uint32_t m = 0; m < g->meeting_count; m++)
        if (graph_instr(g, g->members[g->member_first[m]])->queue == QUEUE_GROUP)
            collective_apart(g, costs, m, begin, end, by_messages, step->parts);
        else
            transfer_apart(g, m, begin, end, lags, step->parts);
    arena_fini(&arena);
    return 0;
}

/* --- recomposition --- */

struct ready_instr { /* an instruction that is ready to begin */
    double time;
    uint32_t instr;
};

struct recomposition {
    const struct plan_graph *g;
    const struct replay_step *step;
    const struct replay_costs *costs; /* or NULL */
    double *begin, *end, *ready;
    uint32_t *waits;
    uint32_t *begun;     /* [meetings]: members that have begun */
    double *arrival;     /* [meetings]: time at which a transfer's data arrives */
    double *by_messages; /* [ranks]: scratch for a collective */
    struct ready_instr *heap;
    uint32_t heap_count, finished;
};

static bool sooner(const struct ready_instr *a, const struct ready_instr *b)
{
    return a->time < b->time || (a->time == b->time && a->instr < b->instr);
}

static void replay_walk_push(struct recomposition *w, double time, uint32_t instr)
{
    struct ready_instr item = {time, instr};
    uint32_t i = w->heap_count++;
    while (i > 0 && sooner(&item, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = item;
}

static struct ready_instr pop(struct recomposition *w)
{
    struct ready_instr first = w->heap[0], last = w->heap[--w->heap_count];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= w->heap_count)
            break;
        if (child + 1 < w->heap_count && sooner(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!sooner(&w->heap[child], &last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return first;
}

static void replay_walk_finish(struct recomposition *w, uint32_t n, double end)
{
    const struct plan_graph *g = w->g;
    w->end[n] = end;
    w->finished++;
    for (uint32_t d = g->dependent_first[n]; d < g->dependent_first[n + 1]; d++) {
        uint32_t next = g->dependents[d];
        w->ready[next] = fmax(w->ready[next], end);
        if (--w->waits[next] == 0)
            replay_walk_push(w, w->ready[next] + w->step->parts[next].gap, next);
    }
}

static struct replay_wire *wire_of(const struct recomposition *w, uint32_t from, uint32_t to, int *direction)
{
    return w->costs && w->costs->wire ? w->costs->wire(w->costs->context, from, to, direction) : NULL;
}

/* Returns the bytes of a transfer, for rows of the step's mean length, since the lengths of its own rows are
 * unknown. */
static double replay_walk_transfer_bytes(const struct recomposition *w, uint32_t n)
{
    const struct plan_graph *g = w->g;
    const struct instr *x = graph_instr(g, n);
    const struct plan_slot *slot = &g->plan->ranks[g->rank_of[n]].slots[x->slot_in];
    double rows = w->step->rows > 0 ? w->step->rows : g->plan->batch_rows;
    double tokens = w->step->tokens > 0 ? w->step->tokens : g->plan->costs.tokens_per_step;
    uint32_t begin = 0, end = 0;
    if (x->micro_batch < 0 || tokens <= 0)
        return (double)slot->bytes_bound;
    plan_micro_batch_rows(g->plan, (uint32_t)x->micro_batch, (uint32_t)rows, &begin, &end);
    double held = end - begin, cut = x->row_end == PLAN_ROWS_ALL ? held : (double)x->row_end - x->row_begin;
    cut = fmin(cut, held);
    double bytes =
        (double)slot->bytes_fixed + slot->bytes_per_token * tokens * cut / rows + slot->bytes_per_row * cut;
    return fmin(bytes, (double)slot->bytes_bound);
}

static void send_begins(struct recomposition *w, uint32_t n, double now, double *freed, double *arrives)
{
    const struct replay_part *part = &w->step->parts[n];
    const struct instr *x = graph_instr(w->g, n);
    int direction = 0;
    struct replay_wire *wire = wire_of(w, w->g->rank_of[n], (uint32_t)x->peer, &direction);
    *freed = now + part->work;
    *arrives = now + part->flight;
    /* Nothing was sent: the micro-batch has no rows. */
    if (!wire || !wire->changed || (part->flight == 0 && part->work == 0))
        return;
    double bytes = replay_walk_transfer_bytes(w, n), occupied = bytes / wire->bytes_per_s, was = 0,
           beside = 0;
    if (wire->was_bytes_per_s >
        0) { /* time of the transfer that the recorded wire does not explain (threads, encryption) is kept */
        was = bytes / wire->was_bytes_per_s;
        beside = fmax(0, part->flight - was - wire->was_latency_s);
    }
    double start = fmax(now, wire->free_s[direction]);
    wire->free_s[direction] = start + occupied;
    /* If the sender was occupied for the wire's time, it is occupied for the changed wire's time; if the
     * transport's buffers freed it earlier, they do so again. */
    if (was == 0 || part->work >= was / 2)
        *freed = start + occupied + fmax(0, part->work - was) * (was > 0);
    *arrives = start + occupied + wire->latency_s + beside;
}

static void receive_ends(struct recomposition *w, uint32_t recv, uint32_t meeting)
{
    replay_walk_finish(w, recv, fmax(w->begin[recv], w->arrival[meeting]) + w->step->parts[recv].copy);
}

static void transfer_begins(struct recomposition *w, uint32_t n, double now)
{
    uint32_t meeting = w->g->meeting[n], send, recv;
    transfer_ends(w->g, meeting, &send, &recv);
    if (n == send) {
        double freed, arrives;
        send_begins(w, n, now, &freed, &arrives);
        w->arrival[meeting] = arrives;
        replay_walk_finish(w, n, freed);
        if (w->begun[meeting]++ > 0)
            receive_ends(w, recv, meeting);
    } else if (w->begun[meeting]++ > 0) {
        receive_ends(w, recv, meeting);
    }
}

/* Computes when members of instruction n's collective end, for those that need no further member to begin. A
 * member ends when its messages have passed, plus the time in the recording that messages do not explain, and
 * never before it began. */
static void collective_begins(struct recomposition *w, uint32_t n)
{
    const struct plan_graph *g = w->g;
    uint32_t meeting = g->meeting[n], first = g->member_first[meeting];
    uint32_t count = g->member_first[meeting + 1] - first;
    bool all = ++w->begun[meeting] == count, root = false;
    for (uint32_t k = 0; k < count; k++) {
        uint32_t m = g->members[first + k];
        w->by_messages[k] = w->begin[m];
        root |= graph_instr(g, m)->peer == (int32_t)g->rank_of[m] && w->begin[m] >= 0;
    }
    replay_collective_ends(g, w->costs, false, meeting, w->begin, w->by_messages);
    for (uint32_t k = 0; k < count; k++) {
        uint32_t m = g->members[first + k];
        enum replay_waits waits = replay_waits_of(g, m);
        if (w->begin[m] < 0 || w->end[m] >= 0 || (waits == WAITS_FOR_ALL && !all) ||
            (waits == WAITS_FOR_ROOT && !root))
            continue;
        replay_walk_finish(w, m, fmax(w->begin[m], w->by_messages[k] + w->step->parts[m].work));
    }
}

static void begins(struct recomposition *w, uint32_t n, double now)
{
    const struct plan_graph *g = w->g;
    w->begin[n] = now;
    if (g->meeting[n] == UINT32_MAX) {
        double speed = w->costs && w->costs->device_speed ? w->costs->device_speed[g->rank_of[n]] : 1;
        replay_walk_finish(w, n, now + w->step->parts[n].work / speed);
    } else if (graph_instr(g, n)->queue == QUEUE_GROUP) {
        collective_begins(w, n);
    } else {
        transfer_begins(w, n, now);
    }
}

static int replay_walk_run(struct recomposition *w, struct err *err)
{
    const struct plan_graph *g = w->g;
    memcpy(w->waits, g->waits, g->total * sizeof(*w->waits));
    for (uint32_t n = 0; n < g->total; n++) {
        w->begin[n] = w->end[n] = -1;
        w->ready[n] = w->step->rank_begin[g->rank_of[n]];
        if (w->waits[n] == 0)
            replay_walk_push(w, w->ready[n] + w->step->parts[n].gap, n);
    }
    while (w->heap_count > 0) {
        struct ready_instr next = pop(w);
        begins(w, next.instr, next.time);
    }
    if (w->finished != g->total)
        return err_set(err, ERR_INVALID, "replay: %u of %u instructions never begin", g->total - w->finished,
                       g->total);
    return 0;
}

int replay_put_together(const struct plan_graph *graph, const struct replay_step *step,
                        const struct replay_costs *costs, double *begin, double *end, struct err *err)
{
    uint32_t total = graph->total, meetings = graph->meeting_count;
    struct recomposition w = {.g = graph, .step = step, .costs = costs, .begin = begin, .end = end};
    struct arena arena = {0};
    ARENA_ARRAY(&arena, w.ready, total);
    ARENA_ARRAY(&arena, w.waits, total);
    ARENA_ARRAY(&arena, w.begun, meetings);
    ARENA_ARRAY(&arena, w.arrival, meetings);
    ARENA_ARRAY(&arena, w.by_messages, graph->plan->rank_count);
    ARENA_ARRAY(&arena, w.heap, total);
    int result = arena.failed ? err_set(err, ERR_NOMEM, "replay: out of memory for %u instructions", total)
                              : replay_walk_run(&w, err);
    arena_fini(&arena);
    return result;
}
