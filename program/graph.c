/* Building the graph: transfers are matched in the order of their queues, collectives in the order of their
 * group. */
#include "program/graph.h"

#include <stdlib.h>
#include <string.h>

#include "program/check_private.h"

const char *graph_where(const struct plan_graph *graph, uint32_t number, char text[200])
{
    uint32_t rank = graph->rank_of[number];
    return check_where(graph->plan, rank, graph->kind, number - graph->base[rank], text);
}

/* Transfers of one ordered pair, in the order of its queue. */
struct transfer {
    uint32_t from, to, order; /* order: place in the queue */
    uint32_t number;          /* global */
    bool sends;
};

static int transfer_compare(const void *left, const void *right)
{
    const struct transfer *a = left, *b = right;
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    if (a->to != b->to)
        return a->to < b->to ? -1 : 1;
    if (a->sends != b->sends)
        return a->sends ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

static uint64_t bound_of(const struct plan_graph *w, uint32_t number, int32_t slot)
{
    return w->plan->ranks[w->rank_of[number]].slots[slot].bytes_bound;
}

static int pair_check(const struct plan_graph *w, uint32_t send, uint32_t recv, struct err *err)
{
    const struct instr *a = graph_instr(w, send), *b = graph_instr(w, recv);
    char one[200], two[200];
    const char *what = NULL;
    if ((a->op == OP_SEND) != (b->op == OP_RECV))
        what = "are of different kinds";
    else if (a->tag != b->tag)
        what = "have different tags";
    else if (a->micro_batch != b->micro_batch || a->chunk != b->chunk)
        what = "are for different micro-batches";
    else if (a->block_begin != b->block_begin || a->block_end != b->block_end)
        what = "are for different blocks";
    else if (a->row_begin != b->row_begin || a->row_end != b->row_end)
        what = "have different rows";
    else if (bound_of(w, send, a->slot_in) != bound_of(w, recv, b->slot_out))
        what = "have different bounds";
    if (!what)
        return 0;
    return err_set(err, ERR_INVALID, "%s and %s, which meet, %s", graph_where(w, send, one),
                   graph_where(w, recv, two), what);
}

static int pairs_line_up(struct plan_graph *w, struct transfer *list, uint32_t count, struct err *err)
{
    char where[200];
    for (uint32_t i = 0; i < count;) {
        uint32_t end = i, sends = 0;
        while (end < count && list[end].from == list[i].from && list[end].to == list[i].to)
            sends += list[end++].sends;
        uint32_t recvs = end - i - sends, common = sends < recvs ? sends : recvs;
        for (uint32_t k = 0; k < common; k++) {
            uint32_t send = list[i + k].number, recv = list[i + sends + k].number;
            if (pair_check(w, send, recv, err) < 0)
                return -1;
            w->meeting[send] = w->meeting[recv] = w->meeting_count;
            w->meeting_count++;
        }
        if (sends != recvs) {
            uint32_t lonely = list[sends > recvs ? i + common : i + sends + common].number;
            return err_set(
                err, ERR_INVALID,
                "%s has no counterpart: rank %u sends %u times to rank %u, which receives %u times",
                graph_where(w, lonely, where), list[i].from, sends, list[i].to, recvs);
        }
        i = end;
    }
    return 0;
}

static int transfers_match(struct plan_graph *w, struct err *err)
{
    struct transfer *list = calloc((size_t)w->total + 1, sizeof(*list));
    if (!list)
        return err_set(err, ERR_NOMEM, "plan: out of memory while checking transfers");
    uint32_t count = 0;
    for (uint32_t n = 0; n < w->total; n++) {
        const struct instr *x = graph_instr(w, n);
        bool sends = instr_sends(x);
        if (!sends && !instr_receives(x))
            continue;
        uint32_t rank = w->rank_of[n], peer = (uint32_t)x->peer;
        list[count++] = (struct transfer){
            .from = sends ? rank : peer, .to = sends ? peer : rank, .number = n, .sends = sends};
    }
    qsort(list, count, sizeof(*list), transfer_compare);
    int result = pairs_line_up(w, list, count, err);
    free(list);
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
    bool root_differs = (a->op == OP_REDUCE || a->op == OP_BROADCAST) && a->peer != b->peer;
    if (a->op == b->op && a->tag == b->tag && a->micro_batch == b->micro_batch && a->chunk == b->chunk &&
        a->block_begin == b->block_begin && a->block_end == b->block_end && sa->kind == sb->kind &&
        !root_differs)
        return 0;
    char one[200], two[200];
    return err_set(err, ERR_INVALID,
                   "group %d: %s comes where %s does; collectives must come in one order on all members",
                   a->group, graph_where(w, other, one), graph_where(w, first, two));
}

/* The k-th collective of a group on each member is one meeting. */
static int collectives_match(struct plan_graph *w, struct err *err)
{
    const struct plan *plan = w->plan;
    char where[200];
    uint32_t *first = calloc(plan->group_count, sizeof(*first)),
             *length = calloc(plan->group_count, sizeof(*length));
    uint32_t *seen = calloc(plan->group_count, sizeof(*seen));
    uint32_t *sample = calloc((size_t)w->total + 1, sizeof(*sample)); /* meeting → its first member */
    int result = -1;
    if (!first || !length || !seen || !sample) {
        err_set(err, ERR_NOMEM, "plan: out of memory while checking collectives");
        goto out;
    }
    for (uint32_t n = 0; n < w->total; n++) {
        const struct instr *x = graph_instr(w, n);
        if (x->queue == QUEUE_GROUP && w->rank_of[n] == plan->groups[x->group].ranks[0])
            length[x->group]++;
    }
    for (uint32_t g = 0; g < plan->group_count; g++) {
        first[g] = w->meeting_count;
        w->meeting_count += length[g];
    }
    for (uint32_t rank = 0; rank < plan->rank_count; rank++) {
        memset(seen, 0, plan->group_count * sizeof(*seen));
        for (uint32_t n = w->base[rank]; n < w->base[rank + 1]; n++) {
            const struct instr *x = graph_instr(w, n);
            if (x->queue != QUEUE_GROUP)
                continue;
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
                err_set(err, ERR_INVALID, "rank %u %s: %u collectives of group %u, rank %u has %u", rank,
                        program_kind_name(w->kind), seen[g], g, plan->groups[g].ranks[0], length[g]);
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

static int graph_dependencies(struct plan_graph *w, struct err *err)
{
    const struct plan *plan = w->plan;
    uint32_t queues = plan_queue_count(plan);
    uint32_t *last = calloc(queues, sizeof(*last));
    uint64_t edges = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        edges += (uint64_t)plan->ranks[r].programs[w->kind].after_total +
                 plan->ranks[r].programs[w->kind].instr_count;
    uint32_t *from = calloc(edges + 1, sizeof(*from)), *to = calloc(edges + 1, sizeof(*to));
    w->dependent_first = calloc((size_t)w->total + 2, sizeof(uint32_t));
    w->dependents = calloc(edges + 1, sizeof(uint32_t));
    int result = -1;
    if (!last || !from || !to || !w->dependent_first || !w->dependents || edges > UINT32_MAX) {
        err_set(err, ERR_NOMEM, "plan: out of memory while checking %u instructions", w->total);
        goto out;
    }
    uint64_t count = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct program *program = &plan->ranks[r].programs[w->kind];
        memset(last, 0, queues * sizeof(*last));
        for (uint32_t i = 0; i < program->instr_count; i++) {
            uint32_t number = w->base[r] + i, queue = instr_queue_index(plan, &program->instrs[i]);
            const struct instr *x = &program->instrs[i];
            for (uint32_t k = 0; k < x->after_count; k++, count++) {
                from[count] = w->base[r] + program->after[x->after_first + k];
                to[count] = number;
            }
            if (last[queue]) {
                from[count] = w->base[r] + last[queue] - 1;
                to[count++] = number;
            }
            last[queue] = i + 1;
        }
    }
    for (uint64_t e = 0; e < count; e++) {
        w->dependent_first[from[e] + 2]++;
        w->waits[to[e]]++;
    }
    for (uint32_t n = 0; n < w->total; n++)
        w->dependent_first[n + 2] += w->dependent_first[n + 1];
    for (uint64_t e = 0; e < count; e++)
        w->dependents[w->dependent_first[from[e] + 1]++] = to[e];
    result = 0;
out:
    free(last);
    free(from);
    free(to);
    return result;
}

static int graph_members(struct plan_graph *w, struct err *err)
{
    w->member_first = calloc((size_t)w->meeting_count + 2, sizeof(uint32_t));
    w->members = calloc((size_t)w->total + 1, sizeof(uint32_t));
    if (!w->member_first || !w->members)
        return err_set(err, ERR_NOMEM, "plan: out of memory while checking");
    for (uint32_t n = 0; n < w->total; n++) {
        if (w->meeting[n] != UINT32_MAX)
            w->member_first[w->meeting[n] + 2]++;
    }
    for (uint32_t m = 0; m < w->meeting_count; m++)
        w->member_first[m + 2] += w->member_first[m + 1];
    for (uint32_t n = 0; n < w->total; n++) {
        if (w->meeting[n] != UINT32_MAX)
            w->members[w->member_first[w->meeting[n] + 1]++] = n;
    }
    return 0;
}

void plan_graph_fini(struct plan_graph *graph)
{
    free(graph->base);
    free(graph->rank_of);
    free(graph->waits);
    free(graph->meeting);
    free(graph->dependent_first);
    free(graph->dependents);
    free(graph->member_first);
    free(graph->members);
    *graph = (struct plan_graph){0};
}

static int graph_number(struct plan_graph *graph, struct err *err)
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
    graph->rank_of = calloc(total + 1, sizeof(uint32_t));
    graph->waits = calloc(total + 1, sizeof(uint32_t));
    graph->meeting = calloc(total + 1, sizeof(uint32_t));
    if (!graph->base || !graph->rank_of || !graph->waits || !graph->meeting)
        return err_set(err, ERR_NOMEM, "plan: out of memory for %llu instructions",
                       (unsigned long long)total);
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        for (uint32_t n = graph->base[r]; n < graph->base[r + 1]; n++) {
            graph->rank_of[n] = r;
            graph->meeting[n] = UINT32_MAX;
        }
    }
    return 0;
}

int plan_graph_init(struct plan_graph *graph, const struct plan *plan, int kind, struct err *err)
{
    *graph = (struct plan_graph){.plan = plan, .kind = kind};
    if (graph_number(graph, err) < 0 || transfers_match(graph, err) < 0 ||
        collectives_match(graph, err) < 0 || graph_dependencies(graph, err) < 0 ||
        graph_members(graph, err) < 0) {
        plan_graph_fini(graph);
        return -1;
    }
    return 0;
}
