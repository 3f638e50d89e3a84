/* Which orders of devices are tried at a micro-batch size.
 *
 * They come from sorting by what matters at the head of a pipeline (room for many micro-batches), at its tail
 * (speed for the head block), and by node, so that boundaries cross few links. Where links between nodes are
 * slow, the devices of a few nodes may do better than all; where micro-batches are few, the fast ones alone.
 * Full fine-tuning gathers and scatters shards once a step: orders are tried with little of a step left to it
 * (groups then stay within nodes) and with more. */
#include "planner/many/many_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ORDERS_EACH 3u    /* of them of one micro-batch size */
#define CHARGE_VAST 64u   /* as many of vast numbers are one evaluation where an order of them is covered */
#define GROUP_SMALL 8u    /* members looked at for up to 128 devices */
#define ENDS_JOINED 3u    /* times that an order's ends are put on one node, as what it leaves out changes */
#define FEW_EACH 8u       /* micro-batches a device below which slow devices are left out in steps */
#define LEAN_EACH 24u     /* micro-batches a device up to which periods lean (many_cover.c) */
#define LEAN_GAIN 0.25    /* of the least period without leaning: leaning gains no more */
#define ORDER_WITHIN 1.01 /* orders are compared by periods found so nearly, */
#define ORDER_VARIANT_IN_TURN 0u /* with this variant, */
#define ORDER_VARIANT 2u         /* and this, */
#define ORDER_VARIANT_LEANING 3u /* or this, where periods lean */
#define NODES_COUNT 512u         /* devices up to which those of a few nodes are looked at by themselves */
static const double parts_kept[] = {0.85, 0.7, 0.55, 0.4}; /* of the devices: the fastest */
static const double parts_moved[] = {0.03, 0.2, 1}; /* of the least step, that moving shards may take */

const struct many_variant many_variants[MANY_VARIANTS] = {
    {0, 1, 0, true},    {3, 1, 0, true},     {0, 1.55, 0, false}, {0, 1.55, 0.5, false}, {0, 2.2, 1, false},
    {0, 1.3, 0, false}, {3, 1.15, 0, false}, {3, 1.9, 1, false},  {0, 1.8, 0.5, false},  {1, 1.2, 0, false}};

struct many_key {
    uint32_t unit;
    double first, second, third;
};

struct many_key *many_keys_new(uint32_t count)
{
    return calloc(count, sizeof(struct many_key));
}

static int key_compare(const void *left, const void *right)
{
    const struct many_key *a = left, *b = right;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    if (a->second != b->second)
        return a->second < b->second ? -1 : 1;
    if (a->third != b->third)
        return a->third < b->third ? -1 : 1;
    return a->unit < b->unit ? -1 : a->unit > b->unit;
}

enum order_kind { ORDER_ROOM, ORDER_SPEED, ORDER_MEMORY, ORDER_KINDS };

static double unit_key(const struct many *m, const struct many_unit *unit, enum order_kind kind)
{
    double seconds = unit->layer_s[m->allowed[0] ? 0 : 1];
    return kind == ORDER_ROOM ? -unit->memory * seconds : kind == ORDER_SPEED ? seconds : -unit->memory;
}

/* Drops all but those to be kept; returns how many they are. */
static uint32_t order_filter(const bool *keep, uint32_t count, uint32_t *order)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (keep[order[i]])
            order[kept++] = order[i];
    }
    return kept;
}

/* Of an order the devices that are among the `most` fastest; returns how many. */
static uint32_t order_keep_fast(const struct many *m, uint32_t most, struct many_key *keys, bool *fast,
                                uint32_t *order)
{
    for (uint32_t u = 0; u < m->count; u++)
        keys[u] = (struct many_key){u, unit_key(m, &m->units[u], ORDER_SPEED), -m->units[u].memory, 0};
    qsort(keys, m->count, sizeof(*keys), key_compare);
    for (uint32_t i = 0; i < m->count; i++)
        fast[keys[i].unit] = i < most;
    return order_filter(fast, m->count, order);
}

/* Of an order the devices on so many of the nodes that together do most; returns how many. */
static uint32_t order_keep_nodes(const struct many *m, uint32_t most, double *rate, bool *fast,
                                 uint32_t *order)
{
    uint32_t nodes = m->p->cluster->node_count;
    memset(rate, 0, nodes * sizeof(*rate));
    memset(fast, 0, m->count * sizeof(*fast));
    for (uint32_t u = 0; u < m->count; u++)
        rate[m->units[u].node] += m->units[u].rate;
    for (uint32_t turn = 0; turn < most; turn++) {
        uint32_t best = machine_take(rate, nodes);
        for (uint32_t u = 0; u < m->count; u++)
            fast[u] = fast[u] || m->units[u].node == best;
    }
    return order_filter(fast, m->count, order);
}

/* Sorted by a key; by_node: node by node, nodes by their mean. */
static void order_make(const struct many *m, enum order_kind kind, bool by_node, bool backwards,
                       struct many_key *keys, double *node_key, uint32_t *node_count, uint32_t *order)
{
    uint32_t nodes = m->p->cluster->node_count;
    memset(node_key, 0, nodes * sizeof(*node_key));
    memset(node_count, 0, nodes * sizeof(*node_count));
    for (uint32_t u = 0; u < m->count; u++) {
        node_key[m->units[u].node] += unit_key(m, &m->units[u], kind);
        node_count[m->units[u].node]++;
    }
    for (uint32_t u = 0; u < m->count; u++) {
        uint32_t node = m->units[u].node;
        double key = unit_key(m, &m->units[u], kind);
        keys[u] = by_node ? (struct many_key){u, node_key[node] / node_count[node], node, key}
                          : (struct many_key){u, key, unit_key(m, &m->units[u], ORDER_SPEED), node};
    }
    qsort(keys, m->count, sizeof(*keys), key_compare);
    for (uint32_t i = 0; i < m->count; i++)
        order[i] = keys[backwards ? m->count - 1 - i : i].unit;
}

uint32_t many_group_max(const struct many_search *s, const struct many *m)
{
    uint32_t wide = 8 * m->count / (uint32_t)m->layers + 1;
    if (s->group_max)
        return s->group_max;
    return wide < GROUP_SMALL ? GROUP_SMALL : wide < 256 ? wide : 256;
}

uint32_t many_variant_group(const struct many_search *s, const struct many *m, uint32_t v)
{
    return s->group_max != 1 && many_variants[v].group_max ? many_variants[v].group_max
                                                           : many_group_max(s, m);
}

bool many_takes_turns(const struct many_search *s)
{
    return s->group_max != 1 && s->count <= MANY_HUGE;
}

/* With many micro-batches a device, filling costs little, and who runs ahead has used it up long before. */
static bool leans(const struct many *m, uint32_t count)
{
    return m->micro_batches <= LEAN_EACH * count;
}

struct many_cover many_cover_of(const struct many_search *s, const struct many *m, uint32_t v,
                                const uint32_t *order, uint32_t count)
{
    return (struct many_cover){.m = m,
                               .order = order,
                               .tails = s->tails,
                               .count = count,
                               .slack = many_variants[v].slack,
                               .in_turn = many_variants[v].in_turn,
                               .moved_most = s->moved_most,
                               .lean = leans(m, count) ? many_variants[v].lean / m->micro_batches : 0};
}

/* Puts an order among the best few. */
static void order_keep(struct many_search *s, const struct many *m, uint32_t count, double period,
                       double seconds)
{
    uint32_t at = MANY_ORDERS_KEPT, last = MANY_ORDERS_KEPT - 1, same = 0;
    while (at > 0 && (s->orders[at - 1].rows == 0 || s->orders[at - 1].estimate > seconds))
        at--;
    for (uint32_t i = 0; i < MANY_ORDERS_KEPT && s->orders[i].rows; i++) {
        if (s->orders[i].rows == m->rows && ++same == ORDERS_EACH)
            last = i;
    }
    if (at > last)
        return;
    uint32_t *room = s->orders[last].order;
    memmove(&s->orders[at + 1], &s->orders[at], (last - at) * sizeof(*s->orders));
    memcpy(room, s->order, count * sizeof(*room));
    s->orders[at] = (struct many_seed){m->rows, count, room, period, seconds, s->moved_most};
}

/* A trained table that both ends use goes to the last stage while the pipeline fills, its gradient back. */
static double table_seconds(const struct many *m, const struct many_cover *cover)
{
    const struct many_tail *last = &cover->whole;
    while (cover->tails[last->begin + last->size].size > 0)
        last = &cover->tails[last->begin + last->size];
    return (double)memory_gradient_bytes(m->p, 0, 1) *
           many_byte(m, cover->order[cover->whole.begin], cover->order[last->begin]);
}

/* So where there are others on the first one's node, one of them comes last. Returns whether it was
 * elsewhere. */
static bool ends_join(const struct many *m, uint32_t *order, uint32_t count)
{
    uint32_t at = 1;
    while (at < count && m->units[order[at]].node != m->units[order[0]].node)
        at++;
    if (at + 1 >= count)
        return false;
    uint32_t unit = order[at];
    memmove(&order[at], &order[at + 1], (count - at - 1) * sizeof(*order));
    order[count - 1] = unit;
    return true;
}

double many_variant_estimate(struct many_search *s, struct many *m, uint32_t v, const uint32_t *order,
                             uint32_t count, double limit, double within, double *period)
{
    double least = many_period_least(m), most = many_period_most(m, limit);
    struct many_cover cover = many_cover_of(s, m, v, order, count);
    if (v == ORDER_VARIANT_LEANING && !leans(m, count)) /* the same as without */
        return INFINITY;
    m->group_max = many_variant_group(s, m, v);
    cover.within = within;
    s->list->evaluations += s->count > MANY_VAST ? s->count / CHARGE_VAST : 5;
    least *= cover.lean > 0 ? 1 - LEAN_GAIN * many_variants[v].lean : 1;
    *period = most > least ? many_period(&cover, least, most) : INFINITY;
    if (!isfinite(*period))
        return INFINITY;
    s->begin = cover.whole.begin;
    return many_promise(&s->room, &cover, *period) + (s->joins ? table_seconds(m, &cover) : 0);
}

/* What an order must be better than to be kept. */
static double order_limit(const struct many_search *s, const struct many *m)
{
    const struct many_seed *last = &s->orders[MANY_ORDERS_KEPT - 1];
    double limit = last->rows ? last->estimate : INFINITY;
    uint32_t same = 0;
    for (uint32_t i = 0; i < MANY_ORDERS_KEPT && s->orders[i].rows; i++) {
        if (s->orders[i].rows == m->rows && ++same == ORDERS_EACH)
            limit = fmin(limit, s->orders[i].estimate);
    }
    return limit;
}

/* The order that was made, as the first variant has it. Returns its estimate. */
static double order_look(struct many_search *s, struct many *m, uint32_t count)
{
    double period;
    double seconds = many_variant_estimate(s, m, leans(m, count) ? ORDER_VARIANT_LEANING : ORDER_VARIANT,
                                           s->order, count, order_limit(s, m), ORDER_WITHIN, &period),
           in_turn = INFINITY, period_in_turn;
    if (many_takes_turns(s))
        in_turn = many_variant_estimate(s, m, ORDER_VARIANT_IN_TURN, s->order, count,
                                        fmin(seconds, order_limit(s, m)), ORDER_WITHIN, &period_in_turn);
    if (in_turn < seconds) {
        seconds = in_turn;
        period = period_in_turn;
    }
    if (isfinite(seconds))
        order_keep(s, m, count, period, seconds);
    return seconds;
}

/* One order of so many of the fastest devices, or with `nodes` those of so many nodes. Returns its estimate.
 */
static double order_try(struct many_search *s, struct many *m, enum order_kind kind, int turn, uint32_t count,
                        uint32_t nodes)
{
    double best = INFINITY;
    order_make(m, kind, turn & 1, turn & 2, s->keys, s->node_key, s->node_count, s->order);
    if (nodes > 0)
        count = order_keep_nodes(m, nodes, s->node_key, s->fast, s->order);
    else if (count < m->count)
        count = order_keep_fast(m, count, s->keys, s->fast, s->order);
    for (uint32_t join = 0; count >= 2 && join < ENDS_JOINED; join++) {
        s->begin = 0;
        best = fmin(best, order_look(s, m, count));
        if (!s->joins)
            break;
        count -= s->begin; /* those before are not used */
        memmove(s->order, s->order + s->begin, count * sizeof(*s->order));
        if (!ends_join(m, s->order, count))
            break;
    }
    return best;
}

/* Covers of thousands of devices are what takes the time. */
static bool looked_enough(const struct many_search *s)
{
    return s->count > MANY_VAST && s->list->evaluations >= s->list->evaluations_max;
}

/* One order, and how much of a step shards may take at each of `parts_moved`, where there are any. */
static double order_tries(struct many_search *s, struct many *m, enum order_kind kind, int turn,
                          uint32_t count, uint32_t nodes)
{
    double best = INFINITY, step = many_period_least(m) * m->micro_batches;
    size_t parts = m->shards && s->group_max != 1 ? sizeof(parts_moved) / sizeof(parts_moved[0]) : 1;
    for (size_t part = 0; part < parts; part++) {
        s->moved_most = parts_moved[part] * step;
        best = fmin(best, order_try(s, m, kind, turn, count, nodes));
    }
    return best;
}

/* All orders at one micro-batch size. With few micro-batches a device, filling the pipeline costs as much as
 * what flows: there the slowest devices are also left out in steps, in the direction that was best. */
void many_orders_try(struct many_search *s, struct many *m)
{
    double best = INFINITY;
    int best_turn = 0;
    for (int kind = 0; kind < ORDER_KINDS; kind++) {
        for (int turn = 0; turn < 4 && !looked_enough(s); turn++) {
            double seconds = order_tries(s, m, (enum order_kind)kind, turn, m->count, 0);
            if (seconds < best) {
                best = seconds;
                best_turn = turn;
            }
        }
    }
    for (uint32_t nodes = 1; nodes < m->p->cluster->node_count && s->count <= NODES_COUNT;
         nodes += nodes / 2 + 1) {
        for (int turn = 1; turn < 4 && !looked_enough(s); turn += 2)
            order_tries(s, m, ORDER_ROOM, turn, m->count, nodes);
    }
    if (m->micro_batches >= FEW_EACH * m->count)
        return;
    for (int kind = 0; kind < ORDER_KINDS; kind++) {
        for (size_t part = 0; part < sizeof(parts_kept) / sizeof(parts_kept[0]); part++) {
            uint32_t count = (uint32_t)(parts_kept[part] * m->count);
            if (count >= 2 && !looked_enough(s))
                order_tries(s, m, (enum order_kind)kind, best_turn, count, 0);
        }
    }
}
