/* Arranging many devices: orders at every micro-batch size, how the best ones are changed, and which layouts
 * are run.
 *
 * A size is left when even perfect balance could not beat what is known. The best few layouts are improved by
 * moving one device in the order at a time while the least period falls: the dynamic program then regroups
 * everything. */
#include "planner/many/many_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
#define ORDERS_HUGE 2u      /* of thousands of devices, looked at in all variants */
/* stages * micro-batches that drafts of vast numbers of devices are run with, what covers best first, and
 * as many times that where none fits */
#define CELLS_VAST 8000000u
#define CELLS_VAST_NONE 3u
#define LOAD_NODES_MAX 128u /* nodes up to which wires are looked at before a draft is run */
#define CHANGES_SMALL 300u  /* of order, for up to 128 devices */
#define CHANGES_LARGE 120u
#define CHANGES_HUGE 24u
#define CHANGES_CHARGED 8u /* of them an evaluation */
#define CUT_RANKS 8192u    /* rank-micro-batches of a draft up to which its cuts are moved, */
#define CUT_WITHIN 1.3     /* then those are run that so far off, and */
#define CUT_CELLS 20000u   /* in runs of so many stages * micro-batches */
#define ANNEAL_LEAST 7u    /* devices; fewer are enumerated */
#define ANNEAL_ROWS 4u     /* a device, from which means say enough */
#define ANNEAL_CHARGE 4u   /* of a step, in evaluations, */
#define ANNEAL_COUNT 64u   /* and again for every so many devices */

/* The best of the kept orders for each variant. */
static int variants_try(struct many_search *s, struct err *err)
{
    uint32_t orders = s->count > MANY_HUGE ? ORDERS_HUGE : MANY_ORDERS_KEPT;
    for (uint32_t i = 0; i < orders && s->orders[i].rows; i++) {
        const struct many_seed *from = &s->orders[i];
        bool brief = s->group_max == 1 && s->p->workload->place != PLACE_PIPELINE;
        struct many m;
        if (many_init(&m, s->p, from->rows, err) < 0)
            return -1;
        for (uint32_t v = 0; v < MANY_VARIANTS; v++) {
            struct many_seed *seed = &s->seeds[v];
            double period, seconds;
            if ((brief && v != BRIEF_VARIANT && many_variants[v].group_max != 1) ||
                (many_variants[v].in_turn && !many_takes_turns(s)) ||
                (many_variants[v].group_max == 1 && s->group_max != 1))
                continue;
            if (many_variant_group(s, &m, v) * (uint64_t)m.layers < from->count && s->group_max != 1)
                continue; /* not even with a layer a stage would all be used */
            s->moved_most = from->moved_most;
            seconds = many_variant_estimate(s, &m, v, from->order, from->count,
                                            seed->rows ? seed->estimate : INFINITY, 0, &period);
            if (!isfinite(seconds) || (seed->rows && seconds >= seed->estimate))
                continue;
            memcpy(seed->order, from->order, from->count * sizeof(*seed->order));
            *seed =
                (struct many_seed){from->rows, from->count, seed->order, period, seconds, from->moved_most};
        }
        many_fini(&m);
    }
    return 0;
}

enum change { AS_IT_IS, IMPROVED, ANNEALED }; /* of a seed's order, before it is drafted */

/* A variant's seed as a draft that was run for a while; its order changed first, if asked. */
static int seed_draft(struct many_search *s, uint32_t v, enum change how, uint64_t steps, struct many *m,
                      struct many_draft *draft, struct err *err)
{
    struct many_seed *seed = &s->seeds[v];
    if (!m->p && many_init(m, s->p, seed->rows, err) < 0)
        return -1;
    m->list = s->list;
    m->group_max = many_variant_group(s, m, v);
    s->moved_most = seed->moved_most;
    struct many_cover cover = many_cover_of(s, m, v, seed->order, seed->count);
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
    for (uint32_t k = 0; k < MANY_VARIANTS + IMPROVED_MOST; k++) {
        if (isfinite(drafts[k].seconds) && (kinds >> draft_kind(&drafts[k]) & 1) &&
            (!best || drafts[k].seconds < best->seconds))
            best = &drafts[k];
    }
    return best;
}

static int draft_add(struct many_search *s, struct many_draft *draft, struct err *err)
{
    bool chain = draft->choice.placement == PLACE_PIPELINE;
    for (uint32_t i = 0; i < draft->choice.member_count && chain; i++)
        draft->choice.members[i].micro_count = draft->m->micro_batches;
    return isfinite(draft->seconds) ? choice_list_add(s->list, &draft->choice, err) : 0;
}

/* Adds one (or NULL) and releases all. */
static int drafts_end(struct many_search *s, struct many *m, struct many_draft *drafts,
                      struct many_draft *add, struct err *err)
{
    int result = add ? draft_add(s, add, err) : 0;
    for (uint32_t k = 0; k < MANY_VARIANTS + IMPROVED_MOST; k++)
        many_draft_fini(&drafts[k]);
    for (uint32_t v = 0; v < MANY_VARIANTS; v++)
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

static int draft_cut(struct many_search *s, struct many_draft *draft, struct err *err)
{
    if (!isfinite(draft->seconds) || !cuts_move(draft))
        return 0;
    s->list->evaluations++;
    return many_draft_cut(draft, CUT_CELLS, err);
}

/* Those as they come run to the end, until one is as fast as the next one promised; the best is added. Of
 * those in turn a part says what the whole does. */
static int drafts_run(struct many_search *s, struct many_draft *drafts, struct err *err)
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
static bool ran_enough(const struct many_search *s, bool fits)
{
    return s->count > MANY_VAST && s->cells >= (fits ? CELLS_VAST : CELLS_VAST * CELLS_VAST_NONE);
}

/* Variants in the order in which their drafts are run. */
static void variants_order(const struct many_search *s, uint32_t at[MANY_VARIANTS])
{
    for (uint32_t v = 0; v < MANY_VARIANTS; v++) {
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
static int seeds_anneal(struct many_search *s, struct many *m, struct err *err)
{
    uint64_t all = s->list->evaluations_max, rows = s->p->workload->batch_rows;
    uint64_t plain = s->count < SWIFT_DEVICES && rows >= ANNEAL_ROWS * s->count ? 0 : EVALUATIONS_DEFAULT;
    uint64_t most = s->count >= ANNEAL_LEAST && all > plain ? all - plain : 0;
    uint64_t charge = ANNEAL_CHARGE * (1 + (s->count - 1) / ANNEAL_COUNT), seeds = 0;
    int result = 0;
    for (uint32_t v = 0; v < MANY_VARIANTS; v++)
        seeds += s->seeds[v].rows > 0;
    uint64_t steps = seeds && s->count <= MANY_HUGE ? most / charge / seeds : 0;
    for (uint32_t v = 0; v < MANY_VARIANTS && steps > 0 && result == 0; v++) {
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
static int drafts_compare(struct many_search *s, struct err *err)
{
    struct many m[MANY_VARIANTS] = {0};
    struct many_draft drafts[MANY_VARIANTS + IMPROVED_MOST] = {0}, *best;
    /* a pipeline that was not asked for is among the groups, of one each */
    bool brief = s->group_max == 1 && s->p->workload->place != PLACE_PIPELINE;
    uint32_t at[MANY_VARIANTS];
    int result = 0;
    for (uint32_t k = 0; k < MANY_VARIANTS + IMPROVED_MOST; k++)
        drafts[k].seconds = INFINITY;
    variants_order(s, at);
    for (uint32_t i = 0; i < MANY_VARIANTS && result == 0; i++) {
        uint32_t v = at[i];
        best = fastest(drafts, ALL_KINDS);
        if (s->seeds[v].rows && !ran_enough(s, best) &&
            (!best || s->seeds[v].estimate < best->seconds * (many_variants[v].in_turn ? 1 : COMES_WITHIN)))
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
            result = seed_draft(s, v, IMPROVED, 0, &m[v], &drafts[MANY_VARIANTS + i], err);
        }
    }
    if (result == 0)
        result = drafts_run(s, drafts, err);
    if (result == 0)
        result = seeds_anneal(s, m, err);
    return drafts_end(s, m, drafts, NULL, err) < 0 ? -1 : result;
}

static int search_alloc(struct many_search *s, struct err *err)
{
    size_t count = (size_t)s->count + 1, nodes = (size_t)s->p->cluster->node_count + 1;
    bool good = true;
    s->order = calloc(count, sizeof(*s->order));
    s->room.trial = calloc(count, sizeof(*s->room.trial));
    s->room.walk = calloc(count, sizeof(*s->room.walk));
    s->keys = many_keys_new((uint32_t)count);
    s->fast = calloc(count, sizeof(*s->fast));
    s->tails = calloc(count, sizeof(*s->tails));
    s->room.kept = calloc(count, sizeof(*s->room.kept));
    s->node_key = calloc(nodes, sizeof(*s->node_key));
    s->node_count = calloc(nodes, sizeof(*s->node_count));
    s->room.wires = nodes <= LOAD_NODES_MAX ? calloc(nodes * nodes, sizeof(*s->room.wires)) : NULL;
    good = nodes > LOAD_NODES_MAX || s->room.wires;
    for (uint32_t i = 0; i < MANY_VARIANTS; i++) {
        s->seeds[i].order = calloc(count, sizeof(uint32_t));
        good = good && s->seeds[i].order;
    }
    for (uint32_t i = 0; i < MANY_ORDERS_KEPT; i++) {
        s->orders[i].order = calloc(count, sizeof(uint32_t));
        good = good && s->orders[i].order;
    }
    if (good && s->fast && s->order && s->room.trial && s->room.walk && s->keys && s->tails && s->room.kept &&
        s->node_key && s->node_count)
        return 0;
    return err_set(err, ERR_NOMEM, "planner: out of memory");
}

static void search_fini(struct many_search *s)
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
    for (uint32_t i = 0; i < MANY_VARIANTS; i++)
        free(s->seeds[i].order);
    for (uint32_t i = 0; i < MANY_ORDERS_KEPT; i++)
        free(s->orders[i].order);
}

/* Forgets orders and seeds, not their room. */
static void search_clear(struct many_search *s)
{
    for (uint32_t i = 0; i < MANY_ORDERS_KEPT; i++)
        s->orders[i].rows = 0;
    for (uint32_t v = 0; v < MANY_VARIANTS; v++)
        s->seeds[v].rows = 0;
}

/* All sizes whose programs are not too long when there are so many stages, and the largest. */
static int sizes_try(struct many_search *s, uint64_t stages, struct err *err)
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
        m.group_max = many_group_max(s, &m);
        many_orders_try(s, &m);
        many_fini(&m);
    }
    return variants_try(s, err) < 0 || drafts_compare(s, err) < 0 ? -1 : 0;
}

int many_propose(const struct problem *problem, uint32_t group_most, struct choice_list *list,
                 struct err *err)
{
    struct many_search s = {
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
    if (result == 0 && problem->workload->method == METHOD_FULL && problem->blocks.tied) {
        search_clear(&s);
        s.joins = true;
        result = sizes_try(&s, wide, err);
    }
    search_fini(&s);
    return result;
}
