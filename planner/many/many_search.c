/* Which orders and micro-batch sizes are tried, and how the best ones are changed.
 *
 * Orders come from sorting by what matters at the head of a pipeline (room for many micro-batches), at its
 * tail (speed for the head block), and by node, so that boundaries cross few links. A size is left when even
 * perfect balance could not beat what is known. The best few layouts are improved by moving one device in the
 * order at a time while the least period falls: the dynamic program then regroups everything. */
#include "planner/many/many.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ORDERS_KEPT 5u
#define ORDERS_EACH 3u      /* of them of one micro-batch size */
#define VARIANTS 10u        /* of groups and windows; what pays depends on how scarce memory is */
#define BRIEF_VARIANT 2u    /* looked at beside single devices' own where pipelines were not asked for */
#define RUN_WHOLE 3u        /* drafts run to the end, */
#define WHOLE_CELLS 40000u  /* until that was so many stages * micro-batches */
#define IMPROVED_MOST 2u    /* variants whose orders are changed */
#define RUN_WITHIN 1.01     /* of the best run to the end: so far off may be what a part of a run says, */
#define IMPROVE_WITHIN 0.98 /* of what comes in turn, for the order of those as they come to be improved */
#define COMES_WITHIN 0.99   /* of what comes in turn: runs of those as they come are behind what means say */
#define OTHER_WITHIN 1.03   /* or so, of leaning when the best does not lean and the other way round */
#define RUN_FIRST 256u      /* micro-batches that drafts are run with to be compared */
#define CELLS_MOST 1500000u /* stages · micro-batches: beyond, programs would take gigabytes */
#define STAGES_WIDE 48u     /* stages that arrangements of groups are taken to have, before they are made */
#define HUGE_COUNT 1024u    /* devices beyond which only so many orders are looked at in all variants: */
#define ORDERS_HUGE 2u
/* stages * micro-batches that drafts of vast numbers of devices are run with, what covers best first, and
 * as many times that where none fits */
#define CELLS_VAST 8000000u
#define CELLS_VAST_NONE 3u
#define CHARGE_VAST 64u     /* as many of vast numbers are one evaluation where an order of them is covered */
#define LOAD_NODES_MAX 128u /* nodes up to which wires are looked at before a draft is run */
#define GROUP_SMALL 8u      /* members looked at for up to 128 devices */
#define CHANGES_SMALL 300u  /* of order, for up to 128 devices */
#define CHANGES_LARGE 120u
#define CHANGES_HUGE 24u
#define CHANGES_CHARGED 8u       /* of them an evaluation */
#define CUT_RANKS 8192u          /* rank-micro-batches of a draft up to which its cuts are moved, */
#define CUT_WITHIN 1.3           /* then those are run that so far off, and */
#define CUT_CELLS 20000u         /* in runs of so many stages * micro-batches */
#define ANNEAL_LEAST 7u          /* devices; fewer are enumerated */
#define ANNEAL_ROWS 4u           /* a device, from which means say enough */
#define ANNEAL_CHARGE 4u         /* of a step, in evaluations, */
#define ANNEAL_COUNT 64u         /* and again for every so many devices */
#define FEW_EACH 8u              /* micro-batches a device below which slow devices are left out in steps */
#define LEAN_EACH 24u            /* micro-batches a device up to which periods lean (many_cover.c) */
#define LEAN_GAIN 0.25           /* of the least period without leaning: leaning gains no more */
#define ORDER_WITHIN 1.01        /* orders are compared by periods found so nearly, */
#define ORDER_VARIANT_IN_TURN 0u /* with this variant, */
#define ORDER_VARIANT 2u         /* and this, */
#define ORDER_VARIANT_LEANING 3u /* or this, where periods lean */
static const double parts_kept[] = {0.85, 0.7, 0.55, 0.4}; /* these */
static const double parts_moved[] = {0.03, 0.2, 1}; /* of the least step, that moving shards may take */

struct key {
    uint32_t unit;
    double first, second, third;
};

static int key_compare(const void *left, const void *right)
{
    const struct key *a = left, *b = right;
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

/* Of an order the devices that are among the `most` fastest; returns how many. */
static uint32_t order_keep_fast(const struct many *m, uint32_t most, struct key *keys, bool *fast,
                                uint32_t *order)
{
    uint32_t kept = 0;
    for (uint32_t u = 0; u < m->count; u++)
        keys[u] = (struct key){u, unit_key(m, &m->units[u], ORDER_SPEED), -m->units[u].memory, 0};
    qsort(keys, m->count, sizeof(*keys), key_compare);
    for (uint32_t i = 0; i < m->count; i++)
        fast[keys[i].unit] = i < most;
    for (uint32_t i = 0; i < m->count; i++) {
        if (fast[order[i]])
            order[kept++] = order[i];
    }
    return kept;
}

/* Sorted by a key; by_node: node by node, nodes by their mean. */
static void order_make(const struct many *m, enum order_kind kind, bool by_node, bool backwards,
                       struct key *keys, double *node_key, uint32_t *node_count, uint32_t *order)
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
        keys[u] = by_node ? (struct key){u, node_key[node] / node_count[node], node, key}
                          : (struct key){u, key, unit_key(m, &m->units[u], ORDER_SPEED), node};
    }
    qsort(keys, m->count, sizeof(*keys), key_compare);
    for (uint32_t i = 0; i < m->count; i++)
        order[i] = keys[backwards ? m->count - 1 - i : i].unit;
}

/* Small groups arrive more evenly and need smaller windows; large ones divide layers more finely. Who leans
 * holds more at its head. */
static const struct variant {
    uint32_t group_max; /* 0: as many as looked at */
    double slack;       /* windows beyond what means say */
    double lean;        /* of periods (many_cover.c), in parts of what fills the pipeline */
    bool in_turn;       /* many_turns.c; not of single devices */
} variants[VARIANTS] = {{0, 1, 0, true},      {3, 1, 0, true},    {0, 1.55, 0, false}, {0, 1.55, 0.5, false},
                        {0, 2.2, 1, false},   {0, 1.3, 0, false}, {3, 1.15, 0, false}, {3, 1.9, 1, false},
                        {0, 1.8, 0.5, false}, {1, 1.2, 0, false}};

struct seed {
    uint32_t rows;  /* 0: none yet */
    uint32_t count; /* of order: the slowest devices may be left out */
    uint32_t *order;
    double period, estimate, moved_most;
};

struct search {
    const struct problem *p;
    struct choice_list *list;
    uint32_t group_max, count;
    struct seed orders[ORDERS_KEPT], seeds[VARIANTS];
    uint32_t *order;
    struct key *keys;
    bool *fast;
    double *node_key;
    uint32_t *node_count;
    struct many_tail *tails;
    struct many_room room;
    uint64_t cells;    /* stages * micro-batches that were run */
    double moved_most; /* seconds that shards may take where an order is tried */
};

static uint32_t group_max(const struct search *s, const struct many *m)
{
    uint32_t wide = 8 * m->count / (uint32_t)m->layers + 1;
    if (s->group_max)
        return s->group_max;
    return wide < GROUP_SMALL ? GROUP_SMALL : wide < 256 ? wide : 256;
}

/* Single devices have only the windows of a variant. */
static uint32_t variant_group(const struct search *s, const struct many *m, uint32_t v)
{
    return s->group_max != 1 && variants[v].group_max ? variants[v].group_max : group_max(s, m);
}

/* Not single devices, which do anyway, nor thousands, whose covers take a second each. */
static bool takes_turns(const struct search *s)
{
    return s->group_max != 1 && s->count <= HUGE_COUNT;
}

/* With many micro-batches a device, filling costs little, and who runs ahead has used it up long before. */
static bool leans(const struct many *m, uint32_t count)
{
    return m->micro_batches <= LEAN_EACH * count;
}

static struct many_cover cover_of(const struct search *s, const struct many *m, uint32_t v,
                                  const uint32_t *order, uint32_t count)
{
    return (struct many_cover){.m = m,
                               .order = order,
                               .tails = s->tails,
                               .count = count,
                               .slack = variants[v].slack,
                               .in_turn = variants[v].in_turn,
                               .moved_most = s->moved_most,
                               .lean = leans(m, count) ? variants[v].lean / m->micro_batches : 0};
}

/* Puts an order among the best few. */
static void order_keep(struct search *s, const struct many *m, uint32_t count, double period, double seconds)
{
    uint32_t at = ORDERS_KEPT, last = ORDERS_KEPT - 1, same = 0;
    while (at > 0 && (s->orders[at - 1].rows == 0 || s->orders[at - 1].estimate > seconds))
        at--;
    for (uint32_t i = 0; i < ORDERS_KEPT && s->orders[i].rows; i++) {
        if (s->orders[i].rows == m->rows && ++same == ORDERS_EACH)
            last = i;
    }
    if (at > last)
        return;
    uint32_t *room = s->orders[last].order;
    memmove(&s->orders[at + 1], &s->orders[at], (last - at) * sizeof(*s->orders));
    memcpy(room, s->order, count * sizeof(*room));
    s->orders[at] = (struct seed){m->rows, count, room, period, seconds, s->moved_most};
}

/* An order's least period as a variant has it, and its estimate; INFINITY when it cannot be below `limit`. */
static double variant_estimate(struct search *s, struct many *m, uint32_t v, const uint32_t *order,
                               uint32_t count, double limit, double within, double *period)
{
    double least = many_period_least(m), most = many_period_most(m, limit);
    struct many_cover cover = cover_of(s, m, v, order, count);
    if (v == ORDER_VARIANT_LEANING && !leans(m, count)) /* the same as without */
        return INFINITY;
    m->group_max = variant_group(s, m, v);
    cover.within = within;
    s->list->evaluations += s->count > MANY_VAST ? s->count / CHARGE_VAST : 5;
    least *= cover.lean > 0 ? 1 - LEAN_GAIN * variants[v].lean : 1;
    *period = most > least ? many_period(&cover, least, most) : INFINITY;
    return isfinite(*period) ? many_promise(&s->room, &cover, *period) : INFINITY;
}

/* What an order must be better than to be kept. */
static double order_limit(const struct search *s, const struct many *m)
{
    const struct seed *last = &s->orders[ORDERS_KEPT - 1];
    double limit = last->rows ? last->estimate : INFINITY;
    uint32_t same = 0;
    for (uint32_t i = 0; i < ORDERS_KEPT && s->orders[i].rows; i++) {
        if (s->orders[i].rows == m->rows && ++same == ORDERS_EACH)
            limit = fmin(limit, s->orders[i].estimate);
    }
    return limit;
}

/* One order of so many of the fastest devices, as the first variant has it. Returns its estimate. */
static double order_try(struct search *s, struct many *m, enum order_kind kind, int turn, uint32_t count)
{
    double period;
    order_make(m, kind, turn & 1, turn & 2, s->keys, s->node_key, s->node_count, s->order);
    if (count < m->count)
        count = order_keep_fast(m, count, s->keys, s->fast, s->order);
    double seconds = variant_estimate(s, m, leans(m, count) ? ORDER_VARIANT_LEANING : ORDER_VARIANT, s->order,
                                      count, order_limit(s, m), ORDER_WITHIN, &period),
           in_turn = INFINITY, period_in_turn;
    if (takes_turns(s))
        in_turn = variant_estimate(s, m, ORDER_VARIANT_IN_TURN, s->order, count,
                                   fmin(seconds, order_limit(s, m)), ORDER_WITHIN, &period_in_turn);
    if (in_turn < seconds) {
        seconds = in_turn;
        period = period_in_turn;
    }
    if (isfinite(seconds))
        order_keep(s, m, count, period, seconds);
    return seconds;
}

/* Covers of thousands of devices are what takes the time. */
static bool looked_enough(const struct search *s)
{
    return s->count > MANY_VAST && s->list->evaluations >= s->list->evaluations_max;
}

/* One order, and how much of a step shards may take at each of `parts_moved`, where there are any. */
static double order_tries(struct search *s, struct many *m, enum order_kind kind, int turn, uint32_t count)
{
    double best = INFINITY, step = many_period_least(m) * m->micro_batches;
    size_t parts = m->shards && s->group_max != 1 ? sizeof(parts_moved) / sizeof(parts_moved[0]) : 1;
    for (size_t part = 0; part < parts; part++) {
        s->moved_most = parts_moved[part] * step;
        best = fmin(best, order_try(s, m, kind, turn, count));
    }
    return best;
}

/* All orders at one micro-batch size. With few micro-batches a device, filling the pipeline costs as much as
 * what flows: there the slowest devices are also left out in steps, in the direction that was best. */
static void size_try(struct search *s, struct many *m)
{
    double best = INFINITY;
    int best_turn = 0;
    for (int kind = 0; kind < ORDER_KINDS; kind++) {
        for (int turn = 0; turn < 4 && !looked_enough(s); turn++) {
            double seconds = order_tries(s, m, (enum order_kind)kind, turn, m->count);
            if (seconds < best) {
                best = seconds;
                best_turn = turn;
            }
        }
    }
    if (m->micro_batches >= FEW_EACH * m->count)
        return;
    for (int kind = 0; kind < ORDER_KINDS; kind++) {
        for (size_t part = 0; part < sizeof(parts_kept) / sizeof(parts_kept[0]); part++) {
            uint32_t count = (uint32_t)(parts_kept[part] * m->count);
            if (count >= 2 && !looked_enough(s))
                order_tries(s, m, (enum order_kind)kind, best_turn, count);
        }
    }
}

/* The best of the kept orders for each variant. */
static int variants_try(struct search *s, struct err *err)
{
    uint32_t orders = s->count > HUGE_COUNT ? ORDERS_HUGE : ORDERS_KEPT;
    for (uint32_t i = 0; i < orders && s->orders[i].rows; i++) {
        const struct seed *from = &s->orders[i];
        bool brief = s->group_max == 1 && s->p->workload->place != PLACE_PIPELINE;
        struct many m;
        if (many_init(&m, s->p, from->rows, err) < 0)
            return -1;
        for (uint32_t v = 0; v < VARIANTS; v++) {
            struct seed *seed = &s->seeds[v];
            double period, seconds;
            if ((brief && v != BRIEF_VARIANT && variants[v].group_max != 1) ||
                (variants[v].in_turn && !takes_turns(s)) || (variants[v].group_max == 1 && s->group_max != 1))
                continue;
            if (variant_group(s, &m, v) * (uint64_t)m.layers < from->count && s->group_max != 1)
                continue; /* not even with a layer a stage would all be used */
            s->moved_most = from->moved_most;
            seconds = variant_estimate(s, &m, v, from->order, from->count,
                                       seed->rows ? seed->estimate : INFINITY, 0, &period);
            if (!isfinite(seconds) || (seed->rows && seconds >= seed->estimate))
                continue;
            memcpy(seed->order, from->order, from->count * sizeof(*seed->order));
            *seed = (struct seed){from->rows, from->count, seed->order, period, seconds, from->moved_most};
        }
        many_fini(&m);
    }
    return 0;
}

enum change { AS_IT_IS, IMPROVED, ANNEALED }; /* of a seed's order, before it is drafted */

/* A variant's seed as a draft that was run for a while; its order changed first, if asked. */
static int seed_draft(struct search *s, uint32_t v, enum change how, uint64_t steps, struct many *m,
                      struct many_draft *draft, struct err *err)
{
    struct seed *seed = &s->seeds[v];
    if (!m->p && many_init(m, s->p, seed->rows, err) < 0)
        return -1;
    m->list = s->list;
    m->group_max = variant_group(s, m, v);
    s->moved_most = seed->moved_most;
    struct many_cover cover = cover_of(s, m, v, seed->order, seed->count);
    double period = seed->period;
    uint32_t changes = m->count <= 128 ? CHANGES_SMALL : m->count <= 1024 ? CHANGES_LARGE : CHANGES_HUGE;
    if (how == IMPROVED) {
        many_order_improve(&s->room, &cover, seed->order, &period, changes);
        seed->period = period;
        s->list->evaluations += changes / CHANGES_CHARGED;
    } else if (how == ANNEALED) {
        memcpy(s->order, seed->order, seed->count * sizeof(*s->order));
        cover.order = s->order;
        many_order_anneal(&s->room, &cover, s->order, &period, steps);
    }
    *draft = (struct many_draft){.seconds = INFINITY};
    if (!many_covers(&cover, period, cover.count) ||
        ((uint64_t)m->micro_batches * cover.whole.stages > CELLS_MOST &&
         seed->rows < s->p->workload->batch_rows))
        return 0;
    if (many_draft_init(draft, &cover, period, err) < 0)
        return -1;
    draft->choice.placement = s->group_max == 1 ? PLACE_PIPELINE : PLACE_HYBRID;
    int result = many_draft_run(draft, RUN_FIRST, err);
    s->cells += draft->cells;
    if (draft->choice.placement == PLACE_HYBRID && !draft->choice.in_turn)
        draft->seconds =
            fmax(draft->seconds, (m->micro_batches - 1) * period + draft->wait_s); /* a first part may
                                                        be ahead of what can be kept up */
    return result;
}

enum draft_kind { DRAFT_IN_TURN, DRAFT_LEANS, DRAFT_LEVEL, DRAFT_KINDS };

static enum draft_kind draft_kind(const struct many_draft *draft)
{
    return draft->choice.in_turn ? DRAFT_IN_TURN : draft->lean > 0 ? DRAFT_LEANS : DRAFT_LEVEL;
}

/* Of the kinds (bits); NULL: there is none. */
static struct many_draft *fastest(struct many_draft *drafts, unsigned kinds)
{
    struct many_draft *best = NULL;
    for (uint32_t k = 0; k < VARIANTS + IMPROVED_MOST; k++) {
        if (isfinite(drafts[k].seconds) && (kinds >> draft_kind(&drafts[k]) & 1) &&
            (!best || drafts[k].seconds < best->seconds))
            best = &drafts[k];
    }
    return best;
}

static int draft_add(struct search *s, struct many_draft *draft, struct err *err)
{
    bool chain = draft->choice.placement == PLACE_PIPELINE;
    for (uint32_t i = 0; i < draft->choice.member_count && chain; i++)
        draft->choice.members[i].micro_count = draft->m->micro_batches;
    return isfinite(draft->seconds) ? choice_list_add(s->list, &draft->choice, err) : 0;
}

/* Adds one (or NULL) and releases all. */
static int drafts_end(struct search *s, struct many *m, struct many_draft *drafts, struct many_draft *add,
                      struct err *err)
{
    int result = add ? draft_add(s, add, err) : 0;
    for (uint32_t k = 0; k < VARIANTS + IMPROVED_MOST; k++)
        many_draft_fini(&drafts[k]);
    for (uint32_t v = 0; v < VARIANTS; v++)
        many_fini(&m[v]);
    return result;
}

#define ALL_KINDS ((1u << DRAFT_KINDS) - 1)

/* A hybrid that is soon run. */
static bool cuts_move(const struct many_draft *draft)
{
    uint64_t cells = (uint64_t)draft->choice.member_count * draft->m->micro_batches;
    return cells <= CUT_RANKS && draft->choice.placement == PLACE_HYBRID;
}

static int draft_cut(struct search *s, struct many_draft *draft, struct err *err)
{
    if (!isfinite(draft->seconds) || !cuts_move(draft))
        return 0;
    s->list->evaluations++;
    return many_draft_cut(draft, CUT_CELLS, err);
}

/* Those as they come run to the end, until one is as fast as the next one promised; the best is added. Of
 * those in turn a part says what the whole does. */
static int drafts_run(struct search *s, struct many_draft *drafts, struct err *err)
{
    struct many_draft *best = fastest(drafts, 1u << DRAFT_IN_TURN), *next;
    double known = INFINITY;
    unsigned come = ALL_KINDS & ~(1u << DRAFT_IN_TURN), other = come;
    uint64_t cells = 0;
    if (best && (many_draft_run(best, UINT32_MAX, err) < 0 || draft_cut(s, best, err) < 0 ||
                 draft_add(s, best, err) < 0))
        return -1;
    known = best ? best->seconds : INFINITY;
    for (uint32_t turn = 0; turn < RUN_WHOLE && (next = fastest(drafts, come)); turn++) {
        struct many_draft *unlike = turn == 1 ? fastest(drafts, other) : NULL;
        if (unlike && unlike->seconds < known * OTHER_WITHIN)
            next = unlike;
        else if (next->seconds >= known * (cuts_move(next) ? CUT_WITHIN : RUN_WITHIN) ||
                 (turn > 0 && cells >= WHOLE_CELLS))
            break;
        other = come & ~(1u << draft_kind(next));
        if (many_draft_run(next, UINT32_MAX, err) < 0 || draft_cut(s, next, err) < 0 ||
            draft_add(s, next, err) < 0)
            return -1;
        cells += next->cells;
        known = fmin(known, next->seconds);
        next->seconds = INFINITY;
    }
    return 0;
}

/* Thousands of devices are under way with as many micro-batches: a first part is most of the step. */
static bool ran_enough(const struct search *s, bool fits)
{
    return s->count > MANY_VAST && s->cells >= (fits ? CELLS_VAST : CELLS_VAST * CELLS_VAST_NONE);
}

/* Variants in the order in which their drafts are run. */
static void variants_order(const struct search *s, uint32_t at[VARIANTS])
{
    for (uint32_t v = 0; v < VARIANTS; v++) {
        uint32_t i = v;
        for (; i > 0 && s->count > MANY_VAST && s->seeds[v].rows &&
               (s->seeds[at[i - 1]].rows == 0 || s->seeds[v].estimate < s->seeds[at[i - 1]].estimate);
             i--)
            at[i] = at[i - 1];
        at[i] = v;
    }
}

/* The orders of all variants are annealed, and what comes of each is run to the end, since what means promise
 * tells little of who then wins. With few rows a device they say next to nothing, and ANNEAL_COUNT devices
 * have no time for it: there only with more evaluations than a search has when nobody says. */
static int seeds_anneal(struct search *s, struct many *m, struct err *err)
{
    uint64_t all = s->list->evaluations_max, rows = s->p->workload->batch_rows;
    uint64_t plain = s->count < SWIFT_DEVICES && rows >= ANNEAL_ROWS * s->count ? 0 : EVALUATIONS_DEFAULT;
    uint64_t most = s->count >= ANNEAL_LEAST && all > plain ? all - plain : 0;
    uint64_t charge = ANNEAL_CHARGE * (1 + (s->count - 1) / ANNEAL_COUNT), seeds = 0;
    int result = 0;
    for (uint32_t v = 0; v < VARIANTS; v++)
        seeds += s->seeds[v].rows > 0;
    uint64_t steps = seeds && s->count <= HUGE_COUNT ? most / charge / seeds : 0;
    for (uint32_t v = 0; v < VARIANTS && steps > 0 && result == 0; v++) {
        struct many_draft draft = {.seconds = INFINITY};
        if (!s->seeds[v].rows)
            continue;
        s->list->evaluations += steps * charge;
        result = seed_draft(s, v, ANNEALED, steps, &m[v], &draft, err);
        if (result == 0 && isfinite(draft.seconds))
            result = many_draft_run(&draft, UINT32_MAX, err);
        if (result == 0)
            result = draft_add(s, &draft, err);
        many_draft_fini(&draft);
    }
    return result;
}

/* The drafts of all variants are run for a while, the order of the best in turn and of the best as they come
 * is improved where it may win, and the best are run to the end. */
static int drafts_compare(struct search *s, struct err *err)
{
    struct many m[VARIANTS] = {0};
    struct many_draft drafts[VARIANTS + IMPROVED_MOST] = {0}, *best;
    /* a pipeline that was not asked for is among the groups, of one each */
    bool brief = s->group_max == 1 && s->p->workload->place != PLACE_PIPELINE;
    uint32_t at[VARIANTS];
    int result = 0;
    for (uint32_t k = 0; k < VARIANTS + IMPROVED_MOST; k++)
        drafts[k].seconds = INFINITY;
    variants_order(s, at);
    for (uint32_t i = 0; i < VARIANTS && result == 0; i++) {
        uint32_t v = at[i];
        best = fastest(drafts, ALL_KINDS);
        if (s->seeds[v].rows && !ran_enough(s, best) &&
            (!best || s->seeds[v].estimate < best->seconds * (variants[v].in_turn ? 1 : COMES_WITHIN)))
            result = seed_draft(s, v, AS_IT_IS, 0, &m[v], &drafts[v], err);
    }
    if (result == 0 && brief)
        return drafts_end(s, m, drafts, fastest(drafts, ALL_KINDS), err);
    for (uint32_t i = 0; i < IMPROVED_MOST && result == 0 && !ran_enough(s, true); i++) {
        double known = INFINITY;
        best = fastest(drafts, i == 0 ? 1u << DRAFT_IN_TURN : ALL_KINDS & ~(1u << DRAFT_IN_TURN));
        if (i > 0 && fastest(drafts, 1u << DRAFT_IN_TURN))
            known = fastest(drafts, 1u << DRAFT_IN_TURN)->seconds * IMPROVE_WITHIN;
        if (best && best->seconds < known) {
            uint32_t v = (uint32_t)(best - drafts);
            result = seed_draft(s, v, IMPROVED, 0, &m[v], &drafts[VARIANTS + i], err);
        }
    }
    if (result == 0)
        result = drafts_run(s, drafts, err);
    if (result == 0)
        result = seeds_anneal(s, m, err);
    return drafts_end(s, m, drafts, NULL, err) < 0 ? -1 : result;
}

static int search_alloc(struct search *s, struct err *err)
{
    size_t count = (size_t)s->count + 1, nodes = (size_t)s->p->cluster->node_count + 1;
    bool good = true;
    s->order = calloc(count, sizeof(*s->order));
    s->room.trial = calloc(count, sizeof(*s->room.trial));
    s->room.walk = calloc(count, sizeof(*s->room.walk));
    s->keys = calloc(count, sizeof(*s->keys));
    s->fast = calloc(count, sizeof(*s->fast));
    s->tails = calloc(count, sizeof(*s->tails));
    s->room.kept = calloc(count, sizeof(*s->room.kept));
    s->node_key = calloc(nodes, sizeof(*s->node_key));
    s->node_count = calloc(nodes, sizeof(*s->node_count));
    s->room.wires = nodes <= LOAD_NODES_MAX ? calloc(nodes * nodes, sizeof(*s->room.wires)) : NULL;
    good = nodes > LOAD_NODES_MAX || s->room.wires;
    for (uint32_t i = 0; i < VARIANTS; i++) {
        s->seeds[i].order = calloc(count, sizeof(uint32_t));
        good = good && s->seeds[i].order;
    }
    for (uint32_t i = 0; i < ORDERS_KEPT; i++) {
        s->orders[i].order = calloc(count, sizeof(uint32_t));
        good = good && s->orders[i].order;
    }
    if (good && s->fast && s->order && s->room.trial && s->room.walk && s->keys && s->tails && s->room.kept &&
        s->node_key && s->node_count)
        return 0;
    return err_set(err, ERR_NOMEM, "planner: out of memory");
}

static void search_fini(struct search *s)
{
    free(s->order);
    free(s->room.trial);
    free(s->room.walk);
    free(s->keys);
    free(s->fast);
    free(s->tails);
    free(s->room.kept);
    free(s->node_key);
    free(s->node_count);
    free(s->room.wires);
    for (uint32_t i = 0; i < VARIANTS; i++)
        free(s->seeds[i].order);
    for (uint32_t i = 0; i < ORDERS_KEPT; i++)
        free(s->orders[i].order);
}

/* Forgets orders and seeds, not their room. */
static void search_clear(struct search *s)
{
    for (uint32_t i = 0; i < ORDERS_KEPT; i++)
        s->orders[i].rows = 0;
    for (uint32_t v = 0; v < VARIANTS; v++)
        s->seeds[v].rows = 0;
}

/* All sizes whose programs are not too long when there are so many stages, and the largest. */
static int sizes_try(struct search *s, uint64_t stages, struct err *err)
{
    uint32_t sizes[MICRO_SIZES_MAX], size_count = micro_sizes(s->p, sizes);
    for (uint32_t i = 0; i < size_count; i++) {
        struct many m;
        if (s->list->evaluations >= s->list->evaluations_max)
            break;
        if (micro_count(s->p, sizes[i]) * stages > CELLS_MOST && i + 1 < size_count)
            continue;
        if (many_init(&m, s->p, sizes[i], err) < 0)
            return -1;
        m.list = s->list;
        m.group_max = group_max(s, &m);
        size_try(s, &m);
        many_fini(&m);
    }
    return variants_try(s, err) < 0 || drafts_compare(s, err) < 0 ? -1 : 0;
}

int many_propose(const struct problem *problem, uint32_t group_most, struct choice_list *list,
                 struct err *err)
{
    struct search s = {
        .p = problem, .list = list, .group_max = group_most, .count = problem_usable_count(problem)};
    if (problem->block_count < 4 || s.count < 2)
        return 0;
    uint32_t most = s.count < (uint32_t)problem->block_count ? s.count : (uint32_t)problem->block_count;
    uint32_t wide = group_most != 1 && most > STAGES_WIDE ? STAGES_WIDE : most, before = list->count;
    int result = search_alloc(&s, err);
    if (result == 0)
        result = sizes_try(&s, wide, err);
    if (result == 0 && wide < most &&
        list->count == before) { /* there were more stages, and no room for them */
        search_clear(&s);
        result = sizes_try(&s, most, err);
    }
    search_fini(&s);
    return result;
}
