/* Simulates collectives message by message, as the worker sends them, and computes when each member ends. */
#include <math.h>

#include "replay/replay_walk.h"

/* One collective; its members are numbered by position in the group. */
struct meeting {
    const struct plan_graph *g;
    const struct replay_costs *costs;
    bool as_recorded, tree;
    uint32_t first, count; /* members are g->members[first + …] */
    const struct plan_group *group;
    const struct instr *instr;
    const double *begin;
    double bytes;
};

enum replay_waits replay_waits_of(const struct plan_graph *g, uint32_t n)
{
    const struct instr *x = graph_instr(g, n);
    bool root = x->peer >= 0 && g->rank_of[n] == (uint32_t)x->peer;
    if (x->op == INSTR_BROADCAST)
        return root ? WAITS_FOR_ITSELF : WAITS_FOR_ROOT;
    return WAITS_FOR_ALL;
}

/* Returns the position of a rank, or count if it is no member. */
static uint32_t replay_collective_member_of(const struct meeting *m, uint32_t rank)
{
    uint32_t k = 0;
    while (k < m->count && m->g->rank_of[m->g->members[m->first + k]] != rank)
        k++;
    return k;
}

static double begin_of(const struct meeting *m, uint32_t member)
{
    return m->begin[m->g->members[m->first + member]];
}

/* Computes the seconds for which a message occupies its sender, and the seconds until it arrives. */
static void message_seconds(const struct meeting *m, uint32_t from, uint32_t to, double *hold_s,
                            double *flight_s)
{
    int direction = 0;
    uint32_t a = m->g->rank_of[m->g->members[m->first + from]],
             b = m->g->rank_of[m->g->members[m->first + to]];
    const struct replay_wire *wire =
        m->costs && m->costs->wire ? m->costs->wire(m->costs->context, a, b, &direction) : NULL;
    double rate = wire ? m->as_recorded ? wire->was_bytes_per_s : wire->bytes_per_s : 0;
    double latency = wire ? m->as_recorded ? wire->was_latency_s : wire->latency_s : 0;
    *hold_s = rate > 0 ? m->bytes / rate : 0;
    *flight_s = *hold_s + (rate > 0 ? latency : 0);
}

/* Finds the nth child of a member in the binary tree, or in the star (all members are children of `centre`).
 * Returns the number of children. */
static uint32_t children_of(const struct meeting *m, uint32_t centre, uint32_t member, uint32_t nth,
                            uint32_t *child)
{
    if (m->tree) {
        int32_t parent, children[2];
        int position = plan_group_position(m->group, m->g->rank_of[m->g->members[m->first + member]]);
        if (position < 0 || nth > 1)
            return 0;
        plan_group_tree(m->group, (uint32_t)position, &parent, children);
        *child = children[nth] >= 0 ? replay_collective_member_of(m, (uint32_t)children[nth]) : m->count;
        return *child < m->count;
    }
    if (member != centre || nth + 1 >= m->count)
        return 0;
    *child = nth < centre ? nth : nth + 1;
    return 1;
}

/* All-reduces round a ring: each member passes an n-th of the bytes, first for the sums and then with the
 * sums. end[k] is the end of member k's current step; a step begins when both transfers of the previous
 * one are done. */
static void ring_reduce(struct meeting *m, double *end)
{
    uint32_t n = m->count;
    m->bytes /= n;
    for (uint32_t k = 0; k < n; k++)
        end[k] = begin_of(m, k);
    for (uint32_t step = 0; step < 2 * (n - 1); step++) {
        double last = end[n - 1];
        for (uint32_t k = n; k-- > 0;) {
            double hold, flight, ignored, before = k > 0 ? end[k - 1] : last;
            message_seconds(m, k, (k + 1) % n, &hold, &ignored);
            message_seconds(m, (k + n - 1) % n, k, &ignored, &flight);
            end[k] = fmax(end[k] + hold, before + flight);
        }
    }
}

/* Returns the time at which the sum of a member's contribution and those of its children is complete. */
static double contribution_ready(const struct meeting *m, uint32_t centre, uint32_t member)
{
    double done = begin_of(m, member), wire_free = -INFINITY;
    uint32_t child;
    for (uint32_t nth = 0; children_of(m, centre, member, nth, &child); nth++) {
        double hold, flight;
        message_seconds(m, child, member, &hold, &flight);
        /* Messages to one receiver share its incoming wire. */
        double arrives = fmax(contribution_ready(m, centre, child) + flight, wire_free + hold);
        wire_free = arrives;
        done = fmax(done, arrives);
    }
    return done;
}

/* Simulates passing the result down from a member that has it at time `has`; writes the ends of the member
 * and of all members below it. */
static void result_broadcast(const struct meeting *m, uint32_t centre, uint32_t member, double has,
                             double *end)
{
    uint32_t child;
    double sent = has;
    for (uint32_t nth = 0; children_of(m, centre, member, nth, &child); nth++) {
        double hold, flight;
        message_seconds(m, member, child, &hold, &flight);
        if (begin_of(m, child) >= 0)
            result_broadcast(m, centre, child, fmax(sent + flight, begin_of(m, child)), end);
        sent += hold;
    }
    end[member] = sent;
}

void replay_collective_ends(const struct plan_graph *g, const struct replay_costs *costs, bool as_recorded,
                            uint32_t number, const double *begin, double *end)
{
    struct meeting m = {.g = g, .costs = costs, .as_recorded = as_recorded, .begin = begin};
    m.first = g->member_first[number];
    m.count = g->member_first[number + 1] - m.first;
    m.instr = graph_instr(g, g->members[m.first]);
    m.group = &g->plan->groups[m.instr->group];
    const struct plan_rank *rank = &g->plan->ranks[g->rank_of[g->members[m.first]]];
    int32_t slot = m.instr->slot_in >= 0 ? m.instr->slot_in : m.instr->slot_out;
    m.bytes = slot >= 0 ? (double)rank->slots[slot].bytes_bound : 0;
    m.tree = m.instr->op == INSTR_ALL_REDUCE && slot >= 0 && slot_holds_scalars(rank->slots[slot].kind);
    uint32_t centre = replay_collective_member_of(&m, m.instr->op == INSTR_ALL_REDUCE || m.instr->peer < 0
                                                          ? m.group->ranks[0]
                                                          : (uint32_t)m.instr->peer);
    bool all = true;
    double last = -INFINITY;
    for (uint32_t k = 0; k < m.count; k++) {
        all &= begin_of(&m, k) >= 0;
        last = fmax(last, begin_of(&m, k));
    }
    if (centre == m.count)
        return;
    if (m.instr->op == INSTR_ALL_REDUCE && all && !m.tree)
        ring_reduce(&m, end);
    else if (m.instr->op == INSTR_ALL_REDUCE && all)
        result_broadcast(&m, centre, centre, contribution_ready(&m, centre, centre), end);
    else if (m.instr->op == INSTR_BROADCAST && begin_of(&m, centre) >= 0)
        result_broadcast(&m, centre, centre, begin_of(&m, centre), end);
    else if (all) /* ALL_GATHER and REDUCE_SCATTER: all members end together */
        for (uint32_t k = 0; k < m.count; k++)
            end[k] = last;
}
