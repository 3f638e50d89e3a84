/* Event simulation with almost no event queue: queues run in order, so an instruction's start is known when
 * its last predecessor ends. Only transfers and collectives that share a wire or network card must be ordered
 * in time. They wait in a heap ordered by their earliest start, and the first one is taken when no other
 * instruction can start; this is right because every instruction that is not ready yet depends on one in the
 * heap, so it starts later. Costs are asked for before the run, in program order, so that the inner loop
 * touches little memory. */
#include "planner/simulate/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rand.h"
#include "planner/simulate/sim_private.h"

#define NONE UINT32_MAX
/* relative tolerance of equal times: far above rounding errors, far below differences that matter */
#define SAME_TIME 1e-9

/* The state of a run in progress. */
struct sim_progress {
    struct sim *sim;
    const struct sim_costs *costs;
    uint32_t top, finished;
};

/* Whether a transfer or collective moves tensors. Scalars are so small that they do not occupy shared network
 * cards. */
static bool moves_tensors(const struct plan_graph *g, uint32_t n)
{
    const struct instr *x = graph_instr(g, n);
    int32_t slot = x->slot_in >= 0 ? x->slot_in : x->slot_out;
    return !slot_holds_scalars(g->plan->ranks[g->rank_of[n]].slots[slot].kind);
}

/* Counts the pairs of ranks of a DISPATCH or COMBINE, which is no ring: every member with data to send sends
 * to every receiving member. Writes the pairs to `pairs` unless NULL. */
static uint32_t exchange_pairs(const struct plan_graph *g, uint32_t meeting, struct graph_pair *pairs)
{
    uint32_t count = 0;
    for (uint32_t a = g->member_first[meeting]; a < g->member_first[meeting + 1]; a++) {
        if (graph_instr(g, g->members[a])->slot_in < 0)
            continue;
        for (uint32_t b = g->member_first[meeting]; b < g->member_first[meeting + 1]; b++) {
            if (a == b || graph_instr(g, g->members[b])->slot_out < 0)
                continue;
            if (pairs)
                pairs[count] =
                    (struct graph_pair){.from = g->rank_of[g->members[a]], .to = g->rank_of[g->members[b]]};
            count++;
        }
    }
    return count;
}

/* Lists the pairs of ranks that a group's collectives use. `sample` is 1 + the number of one of the group's
 * collectives; 0: the group has none. */
static uint32_t group_pairs(const struct plan_graph *g, const struct plan_group *group, uint32_t sample,
                            struct graph_pair *pairs)
{
    uint32_t n = group->rank_count;
    if (sample == 0 || n < 2)
        return 0;
    const struct instr *x = graph_instr(g, g->members[g->member_first[sample - 1]]);
    if (x->op == INSTR_DISPATCH || x->op == INSTR_COMBINE)
        return exchange_pairs(g, sample - 1, pairs);
    for (uint32_t k = 0; k < n && pairs; k++)
        pairs[k] = (struct graph_pair){.from = group->ranks[k], .to = group->ranks[(k + 1) % n]};
    return n;
}

/* Makes the pairs of ranks of all transfers, and of the rings of groups that move tensors. */
static int pairs_init(struct sim *sim, struct err *err)
{
    const struct plan_graph *g = &sim->graph;
    uint32_t groups = g->plan->group_count, ring = 0;
    /* for each group, 1 + the number of one of its collectives; 0: it has none */
    uint32_t *sample = arena_get(&sim->arena, groups, sizeof(*sample));
    ARENA_ARRAY(&sim->arena, sim->group_first, (size_t)groups + 1);
    if (sim->arena.failed)
        return err_set(err, ERR_NOMEM, "simulator: out of memory");
    for (uint32_t p = 0; p < g->pair_count; p++) {
        for (uint32_t k = 0; k < g->pairs[p].meeting_count; k++)
            sim->pair_of[g->pairs[p].meeting_first + k] = p;
        sim->transfer_count += g->pairs[p].meeting_count;
    }
    for (uint32_t m = 0; m < sim->transfer_count; m++) { /* members[0] is the sender */
        uint32_t *two = &sim->graph.members[g->member_first[m]], first = two[0];
        if (g->queue[first] % 2 == 0) /* queues with even numbers send, those with odd numbers receive */
            continue;
        two[0] = two[1];
        two[1] = first;
    }
    for (uint32_t m = sim->transfer_count; m < g->meeting_count; m++) {
        uint32_t n = g->members[g->member_first[m]];
        const struct instr *x = graph_instr(g, n);
        if (x->queue == QUEUE_GROUP && moves_tensors(g, n) && sample[x->group] == 0)
            sample[x->group] = m + 1;
    }
    for (uint32_t i = 0; i < groups; i++) {
        sim->group_first[i] = g->pair_count + ring;
        ring += group_pairs(g, &g->plan->groups[i], sample[i], NULL);
    }
    sim->group_first[groups] = sim->pair_count = g->pair_count + ring;
    ARENA_ARRAY(&sim->arena, sim->ring, ring);
    ARENA_ARRAY(&sim->arena, sim->pairs, sim->pair_count);
    ARENA_ARRAY(&sim->arena, sim->uses, (size_t)sim->pair_count * SIM_SHARED_MAX);
    ARENA_ARRAY(&sim->arena, sim->resources, (size_t)sim->pair_count * SIM_SHARED_MAX);
    if (sim->arena.failed)
        return err_set(err, ERR_NOMEM, "simulator: out of memory");
    for (uint32_t i = 0; i < groups; i++)
        group_pairs(g, &g->plan->groups[i], sample[i], &sim->ring[sim->group_first[i] - g->pair_count]);
    for (uint32_t m = sim->transfer_count; m < g->meeting_count; m++) {
        uint32_t n = g->members[g->member_first[m]];
        const struct instr *x = graph_instr(g, n);
        if (x->queue == QUEUE_GROUP)
            sim->pair_of[m] =
                moves_tensors(g, n) && sim->group_first[x->group] < sim->group_first[x->group + 1]
                    ? sim->group_first[x->group]
                    : NONE;
    }
    return 0;
}

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
    uint32_t total = sim->graph.total, meetings = sim->graph.meeting_count;
    ARENA_ARRAY(&sim->arena, sim->nodes, total);
    ARENA_ARRAY(&sim->arena, sim->end, total);
    ARENA_ARRAY(&sim->arena, sim->lead, total);
    ARENA_ARRAY(&sim->arena, sim->stack, total);
    ARENA_ARRAY(&sim->arena, sim->missing, meetings);
    ARENA_ARRAY(&sim->arena, sim->meeting_ready, meetings);
    ARENA_ARRAY(&sim->arena, sim->meeting_start, meetings);
    ARENA_ARRAY(&sim->arena, sim->pair_of, meetings);
    ARENA_ARRAY(&sim->arena, sim->holder, meetings);
    ARENA_ARRAY(&sim->arena, sim->heap, meetings);
    if (sim->arena.failed)
        err_set(err, ERR_NOMEM, "simulator: out of memory for %u instructions", total);
    if (sim->arena.failed || pairs_init(sim, err) < 0) {
        sim_destroy(sim);
        return -1;
    }
    *out = sim;
    return 0;
}

void sim_destroy(struct sim *sim)
{
    if (!sim)
        return;
    plan_graph_fini(&sim->graph);
    arena_fini(&sim->arena);
    free(sim);
}

/* --- shared resources --- */

static int use_compare(const void *left, const void *right)
{
    const struct sim_use *a = left, *b = right;
    if (a->number != b->number)
        return a->number < b->number ? -1 : 1;
    if (a->user != b->user)
        return a->user < b->user ? -1 : 1;
    return a->pair < b->pair ? -1 : a->pair > b->pair;
}

/* Returns what occupies resources for a pair of ranks: the pair itself, or, for pairs of a collective, the
 * whole ring of the group. */
static uint32_t user_of(const struct sim *sim, uint32_t pair)
{
    const struct plan_graph *g = &sim->graph;
    if (pair < g->pair_count)
        return pair;
    uint32_t low = 0, high = g->plan->group_count;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (sim->group_first[middle] <= pair)
            low = middle;
        else
            high = middle;
    }
    return g->pair_count + low;
}

/* Makes a resource of every wire or network card that two or more users have in common, and enters it at the
 * pairs that use it. */
static void resources_assign(struct sim *sim, uint32_t count)
{
    const struct sim_use *uses = sim->uses;
    sim->resource_count = 0;
    for (uint32_t i = 0, end; i < count; i = end) {
        uint32_t users = 0;
        for (end = i; end < count && uses[end].number == uses[i].number; end++)
            users += end == i || uses[end].user != uses[end - 1].user;
        for (uint32_t k = i; k < end && users > 1; k++) {
            struct sim_pair *pair = &sim->pairs[uses[k].pair];
            pair->shared[pair->shared_count].resource = sim->resource_count;
            pair->shared[pair->shared_count++].bytes_per_s = pair->wire.shared[uses[k].at].bytes_per_s;
        }
        if (users > 1)
            sim->resources[sim->resource_count++] = (struct sim_resource){.holder = NONE};
    }
}

static void wires_prepare(struct sim *sim, const struct sim_costs *costs)
{
    const struct plan_graph *g = &sim->graph;
    uint32_t count = 0;
    for (uint32_t p = 0; p < sim->pair_count; p++) {
        const struct graph_pair *ends = p < g->pair_count ? &g->pairs[p] : &sim->ring[p - g->pair_count];
        struct sim_pair *pair = &sim->pairs[p];
        uint32_t user = user_of(sim, p);
        *pair = (struct sim_pair){0};
        costs->wire(costs->context, ends->from, ends->to, &pair->wire);
        for (uint32_t i = 0; i < pair->wire.shared_count && i < SIM_SHARED_MAX; i++)
            sim->uses[count++] =
                (struct sim_use){.number = pair->wire.shared[i].number, .user = user, .pair = p, .at = i};
    }
    qsort(sim->uses, count, sizeof(*sim->uses), use_compare);
    resources_assign(sim, count);
}

/* --- costs of instructions --- */

static double jitter_factor(const struct sim_costs *costs, uint32_t n)
{
    struct rand_stream stream;
    double variance = log1p(costs->jitter_sigma * costs->jitter_sigma);
    rand_stream_init(&stream, costs->jitter_seed, n);
    return exp(sqrt(variance) * rand_stream_normal(&stream) - variance / 2);
}

/* Writes every instruction's duration to end[]; receives have 0, and a collective's duration is written for
 * its first member. */
static void costs_ask(struct sim *sim, const struct sim_costs *costs, struct sim_rank *ranks)
{
    const struct plan_graph *g = &sim->graph;
    for (uint32_t rank = 0; rank < g->plan->rank_count; rank++) {
        double compute = 0, sent = 0;
        for (uint32_t n = g->base[rank]; n < g->base[rank + 1]; n++) {
            const struct instr *x = graph_instr_of(g, rank, n);
            uint32_t meeting = g->meeting[n];
            double seconds = 0, factor = costs->jitter_sigma > 0 ? jitter_factor(costs, n) : 1;
            if (meeting == NONE) {
                seconds = factor * costs->compute_s(costs->context, rank, x);
                compute += seconds;
            } else if (instr_sends(x)) {
                double bytes = costs->bytes(costs->context, rank, x);
                seconds =
                    bytes < 0 ? -1 : factor * bytes / sim->pairs[sim->pair_of[meeting]].wire.bytes_per_s;
                sent += bytes < 0 ? 0 : seconds;
            } else if (x->queue == QUEUE_GROUP && g->members[g->member_first[meeting]] == n) {
                seconds = factor * costs->collective_s(costs->context, &g->plan->groups[x->group], rank, x);
            }
            if (meeting != NONE && x->queue == QUEUE_GROUP)
                sim->lead[n] = !costs->lead_s ? 0
                                              : factor * costs->lead_s(costs->context,
                                                                       &g->plan->groups[x->group], rank, x);
            sim->end[n] = seconds;
        }
        if (ranks)
            ranks[rank] = (struct sim_rank){.compute_s = compute, .send_s = sent};
    }
}

/* --- running --- */

static bool item_before(const struct sim_item *a, const struct sim_item *b)
{
    return a->start < b->start || (a->start == b->start && a->meeting < b->meeting);
}

static void heap_up(struct sim *sim, uint32_t i, struct sim_item item)
{
    for (; i > 0 && item_before(&item, &sim->heap[(i - 1) / 2]); i = (i - 1) / 2)
        sim->heap[i] = sim->heap[(i - 1) / 2];
    sim->heap[i] = item;
}

static void simulate_heap_push(struct sim *sim, double start, uint32_t meeting)
{
    heap_up(sim, sim->heap_count++, (struct sim_item){start, meeting});
}

/* Searches the heap from index i on for the item with the lowest meeting number that could start by `latest`;
 * `best` is the best index so far. */
static uint32_t heap_lowest(const struct sim *sim, uint32_t i, double latest, uint32_t best)
{
    if (i >= sim->heap_count || sim->heap[i].start > latest)
        return best;
    if (sim->heap[i].meeting < sim->heap[best].meeting)
        best = i;
    best = heap_lowest(sim, 2 * i + 1, latest, best);
    return heap_lowest(sim, 2 * i + 2, latest, best);
}

/* Takes the earliest item. Times that differ only by rounding count as equal, and the lower number wins;
 * otherwise the order would change from micro-batch to micro-batch as the sums grow. */
static struct sim_item simulate_heap_pop(struct sim *sim)
{
    uint32_t i = heap_lowest(sim, 0, sim->heap[0].start * (1 + SAME_TIME), 0);
    struct sim_item result = sim->heap[i], last = sim->heap[--sim->heap_count];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child + 1 < sim->heap_count && item_before(&sim->heap[child + 1], &sim->heap[child]))
            child++;
        if (child >= sim->heap_count || item_before(&last, &sim->heap[child]))
            break;
        sim->heap[i] = sim->heap[child];
        i = child;
    }
    if (i < sim->heap_count)
        heap_up(sim, i, last);
    return result;
}

/* Ends instruction n at `end` and makes ready the instructions that waited only for it. */
static inline void simulate_finish(struct sim_progress *run, uint32_t n, double end)
{
    struct sim *sim = run->sim;
    const uint32_t *dependents = sim->graph.dependents;
    uint32_t first = sim->graph.dependent_first[n], last = sim->graph.dependent_first[n + 1];
    sim->end[n] = end;
    run->finished++;
    for (uint32_t d = first; d < last; d++) {
        struct sim_node *next = &sim->nodes[dependents[d]];
        if (next->ready < end)
            next->ready = end;
        if (--next->waits == 0)
            sim->stack[run->top++] = dependents[d];
    }
}

/* Ends a receive when its last byte has arrived. The queue goes on when the wire is free, because the next
 * transfer from the same peer may already be under way. */
static inline void finish_receive(struct sim_progress *run, uint32_t n, double off_wire, double end)
{
    struct sim *sim = run->sim;
    const struct plan_graph *g = &sim->graph;
    sim->end[n] = end;
    run->finished++;
    for (uint32_t d = g->dependent_first[n]; d < g->dependent_first[n + 1]; d++) {
        struct sim_node *next = &sim->nodes[g->dependents[d]];
        double ready = g->queue[g->dependents[d]] == g->queue[n] ? off_wire : end;
        if (next->ready < ready)
            next->ready = ready;
        if (--next->waits == 0)
            sim->stack[run->top++] = g->dependents[d];
    }
}

static void simulate_transfer(struct sim_progress *run, uint32_t meeting, double start)
{
    struct sim *sim = run->sim;
    const struct plan_graph *g = &sim->graph;
    uint32_t send = g->members[g->member_first[meeting]], recv = g->members[g->member_first[meeting] + 1];
    double occupied = sim->end[send];
    sim->meeting_start[meeting] = start;
    if (occupied < 0) {
        simulate_finish(run, send, start);
        simulate_finish(run, recv, start);
        return;
    }
    double latency = sim->pairs[sim->pair_of[meeting]].wire.latency_s;
    simulate_finish(run, send, start + occupied);
    finish_receive(run, recv, start + occupied, start + occupied + latency);
}

static void collective(struct sim_progress *run, uint32_t meeting, double start)
{
    struct sim *sim = run->sim;
    const struct plan_graph *g = &sim->graph;
    double end = start + sim->end[g->members[g->member_first[meeting]]];
    sim->meeting_start[meeting] = start;
    for (uint32_t k = g->member_first[meeting]; k < g->member_first[meeting + 1]; k++)
        simulate_finish(run, g->members[k], end);
}

/* Returns the first pair of ranks between which a meeting (a transfer or a collective) moves data, and writes
 * the end of the range of such pairs to *last. */
static uint32_t pairs_of(const struct sim *sim, uint32_t meeting, uint32_t *last)
{
    const struct plan_graph *g = &sim->graph;
    uint32_t first = sim->pair_of[meeting];
    *last = first + 1;
    if (first >= g->pair_count) {
        const struct instr *x = graph_instr(g, g->members[g->member_first[meeting]]);
        *last = sim->group_first[x->group + 1];
    }
    return first;
}

/* Returns when all shared wires and network cards that a transfer or collective needs are free; *holder is
 * the one that frees the last of them. */
static double shared_free(const struct sim *sim, uint32_t meeting, double ready, uint32_t *holder)
{
    uint32_t last, first = pairs_of(sim, meeting, &last);
    *holder = NONE;
    for (uint32_t p = first; p < last; p++) {
        for (uint32_t i = 0; i < sim->pairs[p].shared_count; i++) {
            const struct sim_resource *r = &sim->resources[sim->pairs[p].shared[i].resource];
            if (r->free_at > ready) {
                ready = r->free_at;
                *holder = r->holder;
            }
        }
    }
    return ready;
}

/* Occupies every shared wire or network card of a transfer or collective for bytes/(the resource's rate). A
 * ring's bytes are what its slowest link passes in the collective's seconds. */
static void shared_take(struct sim *sim, uint32_t meeting, double start, double seconds)
{
    uint32_t last, first = pairs_of(sim, meeting, &last);
    double rate = INFINITY;
    for (uint32_t p = first; p < last; p++)
        rate = sim->pairs[p].wire.bytes_per_s < rate ? sim->pairs[p].wire.bytes_per_s : rate;
    for (uint32_t p = first; p < last; p++) {
        for (uint32_t i = 0; i < sim->pairs[p].shared_count; i++) {
            struct sim_resource *r = &sim->resources[sim->pairs[p].shared[i].resource];
            double own = sim->pairs[p].shared[i].bytes_per_s;
            double busy = start + (own > rate ? seconds * rate / own : seconds);
            if (busy > r->free_at) {
                r->free_at = busy;
                r->holder = meeting;
            }
        }
    }
}

static bool shares_anything(const struct sim *sim, uint32_t meeting)
{
    uint32_t last, first = pairs_of(sim, meeting, &last);
    for (uint32_t p = first; p < last; p++)
        if (sim->pairs[p].shared_count > 0)
            return true;
    return false;
}

static void meet(struct sim_progress *run, uint32_t meeting, double start)
{
    if (meeting >= run->sim->transfer_count)
        collective(run, meeting, start);
    else
        simulate_transfer(run, meeting, start);
}

/* Starts the transfer or collective that could start first, or puts it back into the heap if one of its
 * resources was taken meanwhile. */
static void heap_next(struct sim_progress *run)
{
    struct sim *sim = run->sim;
    struct sim_item item = simulate_heap_pop(sim);
    uint32_t holder, n = sim->graph.members[sim->graph.member_first[item.meeting]];
    double start = shared_free(sim, item.meeting, sim->meeting_ready[item.meeting], &holder);
    if (start > item.start) {
        simulate_heap_push(sim, start, item.meeting);
        return;
    }
    sim->holder[item.meeting] = holder;
    if (sim->end[n] > 0)
        shared_take(sim, item.meeting, start, sim->end[n]);
    meet(run, item.meeting, start);
}

static void arrive(struct sim_progress *run, uint32_t meeting, double ready)
{
    struct sim *sim = run->sim;
    if (sim->meeting_ready[meeting] < ready)
        sim->meeting_ready[meeting] = ready;
    if (--sim->missing[meeting] > 0)
        return;
    uint32_t pair = sim->pair_of[meeting];
    if (pair != NONE && sim->resource_count > 0 && shares_anything(sim, meeting))
        simulate_heap_push(sim, sim->meeting_ready[meeting], meeting);
    else
        meet(run, meeting, sim->meeting_ready[meeting]);
}

static void simulate_reset(struct sim_progress *run)
{
    struct sim *sim = run->sim;
    const struct plan_graph *g = &sim->graph;
    for (uint32_t n = 0; n < g->total; n++) {
        sim->nodes[n] = (struct sim_node){.waits = g->waits[n], .meeting = g->meeting[n]};
        if (g->waits[n] == 0)
            sim->stack[run->top++] = n;
    }
    memset(sim->meeting_ready, 0, g->meeting_count * sizeof(double));
    memset(sim->holder, 0xff, g->meeting_count * sizeof(uint32_t));
    for (uint32_t m = 0; m < g->meeting_count; m++)
        sim->missing[m] = g->member_first[m + 1] - g->member_first[m];
    sim->heap_count = 0;
}

static void trace_write(const struct sim *sim, struct trace *trace, uint32_t step)
{
    const struct plan_graph *g = &sim->graph;
    for (uint32_t n = 0; n < g->total; n++) {
        uint32_t rank = g->rank_of[n];
        trace_add(trace, &(struct trace_event){.rank = rank,
                                               .step = step,
                                               .instr = n - g->base[rank],
                                               .program = (uint8_t)g->kind,
                                               .begin_ns = (int64_t)(sim->nodes[n].ready * 1e9),
                                               .end_ns = (int64_t)(sim->end[n] * 1e9),
                                               .ready_ns = (int64_t)(sim->nodes[n].ready * 1e9)});
    }
}

int sim_run(struct sim *sim, const struct sim_costs *costs, double *seconds, struct sim_rank *ranks,
            struct trace *trace, uint32_t step, struct err *err)
{
    const struct plan_graph *g = &sim->graph;
    struct sim_progress run = {.sim = sim, .costs = costs};
    wires_prepare(sim, costs);
    costs_ask(sim, costs, ranks);
    simulate_reset(&run);
    while (run.top > 0 || sim->heap_count > 0) {
        while (run.top > 0) {
            uint32_t n = sim->stack[--run.top];
            const struct sim_node *node = &sim->nodes[n];
            if (node->meeting == NONE)
                simulate_finish(&run, n, node->ready + sim->end[n]);
            else
                arrive(&run, node->meeting,
                       node->meeting < sim->transfer_count ? node->ready : node->ready + sim->lead[n]);
        }
        if (sim->heap_count > 0)
            heap_next(&run);
    }
    if (run.finished != g->total)
        return err_set(err, ERR_INVALID, "simulator: %u of %u instructions never start",
                       g->total - run.finished, g->total);
    *seconds = 0;
    for (uint32_t rank = 0; rank < g->plan->rank_count; rank++) {
        double last = 0;
        for (uint32_t n = g->base[rank]; n < g->base[rank + 1]; n++)
            last = sim->end[n] > last ? sim->end[n] : last;
        if (ranks)
            ranks[rank].end_s = last;
        *seconds = last > *seconds ? last : *seconds;
    }
    if (trace)
        trace_write(sim, trace, step);
    return 0;
}

const struct plan_graph *sim_graph(const struct sim *sim)
{
    return &sim->graph;
}
