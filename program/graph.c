/* Builds the graph: the n-th send of a queue is matched with the n-th receive, the n-th collective of a group
 * with the n-th on every other member. */
#include "program/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/where.h"

/* Compact copies of the fields that are read many times while the graph is built; instructions are wide,
 * and programs long. */
struct scan {
    uint32_t *to;     /* [total]: 2 · peer for sends, 2 · peer + 1 for receives; UINT32_MAX: neither */
    uint32_t *before; /* [total]: 1 + the number of the previous instruction in the queue; 0: none */
    uint64_t edges;
    bool in_order; /* each list of `after` begins where the list of the previous instruction ends */
};

const char *graph_where(const struct plan_graph *graph, uint32_t number, char text[200])
{
    uint32_t rank = graph->rank_of[number];
    return plan_where(graph->plan, rank, graph->kind, number - graph->base[rank], text);
}

static uint64_t bound_of(const struct plan_graph *w, uint32_t number, int32_t slot)
{
    return w->plan->ranks[w->rank_of[number]].slots[slot].bytes_bound;
}

static uint8_t dtype_of(const struct plan_graph *w, uint32_t number, int32_t slot)
{
    return w->plan->ranks[w->rank_of[number]].slots[slot].dtype;
}

static int pair_check(const struct plan_graph *w, uint32_t send, uint32_t recv, struct err *err)
{
    const struct instr *a = graph_instr(w, send), *b = graph_instr(w, recv);
    char one[200], two[200];
    const char *what = NULL;
    if ((a->op == INSTR_SEND) != (b->op == INSTR_RECV))
        what = "are of different kinds";
    else if (a->tag != b->tag)
        what = "have different tags";
    else if (a->micro_batch != b->micro_batch)
        what = "are for different micro-batches";
    else if (a->block_begin != b->block_begin || a->block_end != b->block_end)
        what = "are for different blocks";
    else if (a->row_begin != b->row_begin || a->row_end != b->row_end)
        what = "have different rows";
    else if (a->op == INSTR_SEND && bound_of(w, send, a->slot_in) != bound_of(w, recv, b->slot_out))
        what = "have different bounds"; /* PUSH is left out: its size follows from its blocks */
    else if (a->op == INSTR_SEND && dtype_of(w, send, a->slot_in) != dtype_of(w, recv, b->slot_out))
        what = "have different dtypes";
    if (!what)
        return 0;
    return err_set(err, ERR_INVALID, "%s and %s, which meet, %s", graph_where(w, send, one),
                   graph_where(w, recv, two), what);
}

static int pair_compare(const void *left, const void *right)
{
    const struct graph_pair *a = left, *b = right;
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    return a->to < b->to ? -1 : a->to > b->to;
}

/* Lists every (sender, receiver) pair of ranks once, sorted. Both ranks' programs name the pair; duplicates
 * are dropped. `seen` has two entries per rank. */
static int pairs_collect(struct plan_graph *w, const struct scan *scan, uint32_t *seen, struct err *err)
{
    uint32_t ranks = w->plan->rank_count, capacity = 0;
    memset(seen, 0, 2 * (size_t)ranks * sizeof(*seen));
    for (uint32_t rank = 0; rank < ranks; rank++) {
        for (uint32_t n = w->base[rank]; n < w->base[rank + 1]; n++) {
            uint32_t to = scan->to[n], peer = to / 2;
            if (to == UINT32_MAX || seen[to] == rank + 1)
                continue;
            seen[to] = rank + 1;
            if (w->pair_count == capacity) {
                capacity = capacity ? 2 * capacity : 64;
                struct graph_pair *grown = realloc(w->pairs, (capacity + 1) * sizeof(*grown));
                if (!grown)
                    return err_set(err, ERR_NOMEM, "plan: out of memory while checking transfers");
                w->pairs = grown;
            }
            w->pairs[w->pair_count++] =
                (struct graph_pair){.from = to & 1 ? peer : rank, .to = to & 1 ? rank : peer};
        }
    }
    if (w->pair_count == 0)
        return 0;
    qsort(w->pairs, w->pair_count, sizeof(*w->pairs), pair_compare);
    uint32_t kept = 1;
    for (uint32_t i = 1; i < w->pair_count; i++)
        if (pair_compare(&w->pairs[i], &w->pairs[kept - 1]) != 0)
            w->pairs[kept++] = w->pairs[i];
    w->pair_count = kept;
    return 0;
}

static uint32_t pair_find(const struct plan_graph *w, uint32_t from, uint32_t to)
{
    struct graph_pair key = {.from = from, .to = to};
    const struct graph_pair *found = bsearch(&key, w->pairs, w->pair_count, sizeof(key), pair_compare);
    return (uint32_t)(found - w->pairs);
}

/* Numbers the sends and the receives of each pair of ranks in queue order: meeting[] becomes the position in
 * the queue; counts[2 · pair] are sends and counts[2 · pair + 1] receives. */
static void pairs_number(struct plan_graph *w, const struct scan *scan, uint32_t *seen, uint32_t *of,
                         uint32_t *pair_of, uint32_t *counts)
{
    uint32_t ranks = w->plan->rank_count;
    memset(seen, 0, 2 * (size_t)ranks * sizeof(*seen));
    for (uint32_t rank = 0; rank < ranks; rank++) {
        for (uint32_t n = w->base[rank]; n < w->base[rank + 1]; n++) {
            uint32_t to = scan->to[n];
            if (to == UINT32_MAX)
                continue;
            if (seen[to] != rank + 1) {
                seen[to] = rank + 1;
                of[to] = to & 1 ? pair_find(w, to / 2, rank) : pair_find(w, rank, to / 2);
            }
            w->meeting[n] = counts[2 * of[to] + (to & 1)]++;
            pair_of[n] = of[to];
        }
    }
}

static int pair_lonely(const struct plan_graph *w, const uint32_t *pair_of, uint32_t pair, uint32_t sends,
                       uint32_t recvs, struct err *err)
{
    char where[200];
    uint32_t common = sends < recvs ? sends : recvs, n = 0;
    while (n + 1 < w->total && !(pair_of[n] == pair && w->meeting[n] == common &&
                                 instr_sends(graph_instr(w, n)) == (sends > recvs)))
        n++;
    return err_set(err, ERR_INVALID,
                   "%s has no counterpart: rank %u sends %u times to rank %u, which receives %u times",
                   graph_where(w, n, where), w->pairs[pair].from, sends, w->pairs[pair].to, recvs);
}

/* Replaces the positions in the queues by numbers of transfers; instructions without a counterpart keep their
 * position. */
static int pairs_line_up(struct plan_graph *w, const struct scan *scan, const uint32_t *pair_of,
                         const uint32_t *counts, struct err *err)
{
    uint32_t lonely = UINT32_MAX;
    for (uint32_t p = 0; p < w->pair_count; p++) {
        uint32_t sends = counts[2 * p], recvs = counts[2 * p + 1];
        w->pairs[p].meeting_first = w->meeting_count;
        w->pairs[p].meeting_count = sends < recvs ? sends : recvs;
        w->meeting_count += w->pairs[p].meeting_count;
        if (sends != recvs && lonely == UINT32_MAX)
            lonely = p;
    }
    uint32_t *sender = calloc((size_t)w->meeting_count + 1, sizeof(*sender));
    int result = sender ? 0 : err_set(err, ERR_NOMEM, "plan: out of memory while checking transfers");
    for (int side = 0; side < 2 && result == 0; side++) {
        for (uint32_t n = 0; n < w->total && result == 0; n++) {
            if (pair_of[n] == UINT32_MAX || (int)(scan->to[n] & 1) != side)
                continue;
            const struct graph_pair *pair = &w->pairs[pair_of[n]];
            if (w->meeting[n] >= pair->meeting_count)
                continue;
            uint32_t meeting = pair->meeting_first + w->meeting[n];
            if (lonely == UINT32_MAX)
                w->meeting[n] = meeting;
            if (side == 0)
                sender[meeting] = n;
            else
                result = pair_check(w, sender[meeting], n, err);
        }
    }
    free(sender);
    if (result == 0 && lonely != UINT32_MAX)
        return pair_lonely(w, pair_of, lonely, counts[2 * lonely], counts[2 * lonely + 1], err);
    return result;
}

static int transfers_match(struct plan_graph *w, const struct scan *scan, struct err *err)
{
    size_t sides = 2 * (size_t)w->plan->rank_count + 1;
    uint32_t *seen = calloc(sides, sizeof(*seen)), *of = calloc(sides, sizeof(*of)), *counts = NULL;
    uint32_t *pair_of = malloc(((size_t)w->total + 1) * sizeof(*pair_of));
    int result = -1;
    if (!seen || !of || !pair_of) {
        err_set(err, ERR_NOMEM, "plan: out of memory while checking transfers");
        goto out;
    }
    memset(pair_of, 0xff, w->total * sizeof(*pair_of));
    if (pairs_collect(w, scan, seen, err) < 0)
        goto out;
    counts = calloc(2 * (size_t)w->pair_count + 1, sizeof(*counts));
    if (!counts) {
        err_set(err, ERR_NOMEM, "plan: out of memory while checking transfers");
        goto out;
    }
    pairs_number(w, scan, seen, of, pair_of, counts);
    result = pairs_line_up(w, scan, pair_of, counts, err);
out:
    free(seen);
    free(of);
    free(pair_of);
    free(counts);
    return result;
}

static int32_t exchanged_slot(const struct instr *x)
{
    return x->slot_in >= 0 ? x->slot_in : x->slot_out;
}

static int collective_check(const struct plan_graph *w, uint32_t first, uint32_t other, struct err *err)
{
    const struct instr *a = graph_instr(w, first), *b = graph_instr(w, other);
    const struct plan_slot *sa = &w->plan->ranks[w->rank_of[first]].slots[exchanged_slot(a)];
    const struct plan_slot *sb = &w->plan->ranks[w->rank_of[other]].slots[exchanged_slot(b)];
    /* In a DISPATCH or COMBINE the ranks use slots of different kinds: routed tokens, or a boundary tensor.
     */
    bool apart = a->op == INSTR_DISPATCH || a->op == INSTR_COMBINE;
    bool backward_differs = apart && ((a->flags ^ b->flags) & FLAG_BACKWARD);
    bool root_differs = a->op == INSTR_BROADCAST && a->peer != b->peer;
    if (a->op == b->op && a->tag == b->tag && a->micro_batch == b->micro_batch &&
        a->block_begin == b->block_begin && a->block_end == b->block_end && (sa->kind == sb->kind || apart) &&
        !root_differs && !backward_differs)
        return 0;
    char one[200], two[200];
    return err_set(err, ERR_INVALID,
                   "group %d: %s comes where %s does; collectives must come in one order on all members",
                   a->group, graph_where(w, other, one), graph_where(w, first, two));
}

/* Makes one meeting of the k-th collectives of a group on all its members, for every k. */
static int collectives_match(struct plan_graph *w, struct err *err)
{
    const struct plan *plan = w->plan;
    uint32_t queues = 2 + 2 * plan->rank_count; /* number of queues that come before those of groups */
    char where[200];
    uint32_t *first = calloc(plan->group_count, sizeof(*first)),
             *length = calloc(plan->group_count, sizeof(*length));
    uint32_t *seen = calloc(plan->group_count, sizeof(*seen));
    uint32_t *sample = calloc((size_t)w->total + 1, sizeof(*sample)); /* for each meeting, its first member */
    int result = -1;
    if (!first || !length || !seen || !sample) {
        err_set(err, ERR_NOMEM, "plan: out of memory while checking collectives");
        goto out;
    }
    for (uint32_t n = 0; n < w->total; n++)
        if (w->queue[n] >= queues && w->rank_of[n] == plan->groups[w->queue[n] - queues].ranks[0])
            length[w->queue[n] - queues]++;
    for (uint32_t g = 0; g < plan->group_count; g++) {
        first[g] = w->meeting_count;
        w->meeting_count += length[g];
    }
    for (uint32_t rank = 0; rank < plan->rank_count; rank++) {
        memset(seen, 0, plan->group_count * sizeof(*seen));
        for (uint32_t n = w->base[rank]; n < w->base[rank + 1]; n++) {
            if (w->queue[n] < queues)
                continue;
            const struct instr *x = graph_instr_of(w, rank, n);
            uint32_t k = seen[x->group]++;
            if (k >= length[x->group]) {
                err_set(err, ERR_INVALID, "%s: rank %u, of the same group %d, has only %u collectives",
                        graph_where(w, n, where), plan->groups[x->group].ranks[0], x->group,
                        length[x->group]);
                goto out;
            }
            uint32_t meeting = first[x->group] + k;
            w->meeting[n] = meeting;
            if (sample[meeting] == 0)
                sample[meeting] = n + 1;
            else if (collective_check(w, sample[meeting] - 1, n, err) < 0)
                goto out;
        }
        for (uint32_t g = 0; g < plan->group_count; g++) {
            if (seen[g] < length[g] && plan_group_position(&plan->groups[g], rank) >= 0) {
                uint32_t last = w->base[rank + 1] > w->base[rank] ? w->base[rank + 1] - 1 : w->base[rank];
                snprintf(where, sizeof(where), "its beginning");
                if (w->base[rank + 1] > w->base[rank])
                    graph_where(w, last, where);
                err_set(err, ERR_INVALID,
                        "rank %u ends at %s with %u collectives of group %u, rank %u has %u", rank, where,
                        seen[g], g, plan->groups[g].ranks[0], length[g]);
                goto out;
            }
        }
    }
    result = 0;
out:
    free(first);
    free(length);
    free(seen);
    free(sample);
    return result;
}

/* Lists the instructions that wait for each instruction: first those that name it in `after`, then the next
 * one in its queue. Expects their number in dependent_first[n + 2], and the previous instruction of the queue
 * in scan->before. */
static int graph_dependencies(struct plan_graph *w, const struct scan *scan, struct err *err)
{
    const struct plan *plan = w->plan;
    w->dependents = malloc(((size_t)scan->edges + 1) * sizeof(uint32_t));
    if (!w->dependents)
        return err_set(err, ERR_NOMEM, "plan: out of memory while checking %u instructions", w->total);
    for (uint32_t n = 0; n < w->total; n++)
        w->dependent_first[n + 2] += w->dependent_first[n + 1];
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct program *program = &plan->ranks[r].programs[w->kind];
        uint32_t next = 0, base = w->base[r]; /* next: position in `after`, whose lists mostly have the order
                                                 of instructions */
        for (uint32_t n = base; n < w->base[r + 1]; n++) {
            uint32_t count = w->waits[n] - (scan->before[n] > 0);
            if (!scan->in_order)
                next = graph_instr_of(w, r, n)->after_first;
            for (; count > 0; count--)
                w->dependents[w->dependent_first[base + program->after[next++] + 1]++] = n;
            if (scan->before[n])
                w->dependents[w->dependent_first[scan->before[n]]++] = n;
        }
    }
    return 0;
}

static int graph_members(struct plan_graph *w, struct err *err)
{
    w->member_first = calloc((size_t)w->meeting_count + 2, sizeof(uint32_t));
    w->members = malloc(((size_t)w->total + 1) * sizeof(uint32_t));
    if (!w->member_first || !w->members)
        return err_set(err, ERR_NOMEM, "plan: out of memory while checking");
    for (uint32_t n = 0; n < w->total; n++)
        if (w->meeting[n] != UINT32_MAX)
            w->member_first[w->meeting[n] + 2]++;
    for (uint32_t m = 0; m < w->meeting_count; m++)
        w->member_first[m + 2] += w->member_first[m + 1];
    for (uint32_t n = 0; n < w->total; n++)
        if (w->meeting[n] != UINT32_MAX)
            w->members[w->member_first[w->meeting[n] + 1]++] = n;
    return 0;
}

void plan_graph_fini(struct plan_graph *graph)
{
    free(graph->base);
    free(graph->pairs);
    free(graph->rank_of);
    free(graph->queue);
    free(graph->waits);
    free(graph->meeting);
    free(graph->dependent_first);
    free(graph->dependents);
    free(graph->member_first);
    free(graph->members);
    *graph = (struct plan_graph){0};
}

/* Reads one rank's instructions; `last` has an entry for each of its queues, zeros. */
static void rank_scan(struct plan_graph *graph, struct scan *scan, uint32_t r, uint32_t *last)
{
    const struct program *program = &graph->plan->ranks[r].programs[graph->kind];
    uint32_t base = graph->base[r], next = 0;
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        uint32_t n = base + i, queue = instr_queue_index(graph->plan, x);
        graph->rank_of[n] = r;
        graph->meeting[n] = UINT32_MAX;
        graph->queue[n] = queue;
        scan->to[n] = instr_sends(x)      ? 2 * (uint32_t)x->peer
                      : instr_receives(x) ? 2 * (uint32_t)x->peer + 1
                                          : UINT32_MAX;
        for (uint32_t k = 0; k < x->after_count; k++)
            graph->dependent_first[base + program->after[x->after_first + k] + 2]++;
        graph->waits[n] = x->after_count + (last[queue] > 0);
        scan->before[n] = last[queue];
        if (last[queue])
            graph->dependent_first[last[queue] + 1]++;
        last[queue] = n + 1;
        scan->in_order = scan->in_order && (x->after_count == 0 || x->after_first == next);
        next += x->after_count;
    }
    scan->edges += next + program->instr_count;
}

static int graph_number(struct plan_graph *graph, struct scan *scan, struct err *err)
{
    const struct plan *plan = graph->plan;
    uint64_t total = 0;
    graph->base = calloc((size_t)plan->rank_count + 1, sizeof(uint32_t));
    for (uint32_t r = 0; graph->base && r < plan->rank_count; r++) {
        total += plan->ranks[r].programs[graph->kind].instr_count;
        graph->base[r + 1] = total > PLAN_INSTRS_MAX ? 0 : (uint32_t)total;
    }
    if (total > PLAN_INSTRS_MAX)
        return err_set(err, ERR_TOO_BIG, "plan: %llu instructions; at most %u", (unsigned long long)total,
                       PLAN_INSTRS_MAX);
    graph->total = (uint32_t)total;
    graph->rank_of = malloc((total + 1) * sizeof(uint32_t));
    graph->waits = malloc((total + 1) * sizeof(uint32_t));
    graph->meeting = malloc((total + 1) * sizeof(uint32_t));
    graph->queue = malloc((total + 1) * sizeof(uint32_t));
    graph->dependent_first = calloc(total + 2, sizeof(uint32_t));
    scan->to = malloc((total + 1) * sizeof(uint32_t));
    scan->before = malloc((total + 1) * sizeof(uint32_t));
    size_t queues = plan_queue_count(plan);
    uint32_t *last = malloc(queues * sizeof(*last));
    if (!graph->base || !graph->rank_of || !graph->waits || !graph->meeting || !graph->queue ||
        !graph->dependent_first || !scan->to || !scan->before || !last) {
        free(last);
        return err_set(err, ERR_NOMEM, "plan: out of memory for %llu instructions",
                       (unsigned long long)total);
    }
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        memset(last, 0, queues * sizeof(*last));
        rank_scan(graph, scan, r, last);
    }
    free(last);
    return scan->edges > UINT32_MAX ? err_set(err, ERR_TOO_BIG, "plan: too many dependencies") : 0;
}

int plan_graph_init(struct plan_graph *graph, const struct plan *plan, int kind, struct err *err)
{
    *graph = (struct plan_graph){.plan = plan, .kind = kind};
    struct scan scan = {.in_order = true};
    int result = graph_number(graph, &scan, err);
    if (result == 0)
        result = transfers_match(graph, &scan, err);
    if (result == 0)
        result = collectives_match(graph, err);
    if (result == 0)
        result = graph_dependencies(graph, &scan, err);
    if (result == 0)
        result = graph_members(graph, err);
    free(scan.to);
    free(scan.before);
    if (result < 0)
        plan_graph_fini(graph);
    return result;
}
