/* Chains of replicas: single (one device), pipeline (one device per stage), hybrid (groups of devices). */
#include <math.h>
#include <stdlib.h>

#include "planner/cost/memory.h"
#include "planner/emit/pipeline.h"
#include "planner/kind/chain.h"

#define SURE 1.15        /* largest ratio of closed form to schedule, except in 2 % of cases (README.md) */
#define WINDOW_LOOKED 4u /* windows tried beyond the one that hides the links; more does not help */

static bool shards(const struct problem *p, const struct candidate *c, const struct candidate_stage *stage)
{
    return p->workload->method == METHOD_FULL && !c->whole && stage->member_count > 1;
}

static uint32_t sides(const struct candidate *c, uint32_t s)
{
    return (s > 0) + (s + 1 < c->stage_count);
}

/* A member's part of a stage's window, by its speed; one more in a group, where micro-batches come
 * irregularly. */
static uint32_t window_part(uint32_t window, double share, uint32_t members)
{
    return members == 1 ? window : (uint32_t)ceil(window * share - 1e-9) + 1;
}

/* --- cutting blocks --- */

/* A member's memory with one micro-batch in flight, which does not depend on the device. */
static const struct memory_need *need_of(struct workbench *bench, const struct candidate *c, uint32_t s,
                                         uint32_t m)
{
    const struct candidate_stage *x = &c->stages[s];
    bool shared = shards(bench->problem, c, x), last = s > 0 && s + 1 == c->stage_count;
    uint64_t key = (uint64_t)c->micro_batch_rows << 40 | (uint64_t)x->block_begin << 24 |
                   (uint64_t)x->block_end << 8 | sides(c, s) << 3 | c->members[m].recompute << 2 |
                   shared << 1 | last;
    uint32_t at = (key ^ key >> 20 ^ key >> 37) * 2654435761u >> 8 & (NEEDS_KEPT - 1);
    if (bench->needs[at].key != key)
        pipeline_member_need(bench->problem, c, s, m, shared ? 0 : 1, 1, PIPELINE_BUFFERS_SIDE * sides(c, s),
                             &bench->needs[at].need);
    bench->needs[at].key = key;
    return &bench->needs[at].need;
}

/* Bytes that a member lacks with `window` micro-batches in flight (negative: has free). */
static double missing_bytes(struct workbench *bench, const struct candidate *c, uint32_t s, uint32_t m,
                            uint32_t window)
{
    const struct problem *p = bench->problem;
    const struct memory_need *need = need_of(bench, c, s, m);
    uint32_t all = micro_count(p, c->micro_batch_rows), more = (window < all ? window : all) - 1;
    return (double)(need->total + more * need->saved_bytes) - (double)problem_limit(p, c->members[m].device);
}

/* Seconds per micro-batch for all-reducing a group's gradients, or for moving its shards. */
static double sync_part(const struct problem *p, const struct candidate *c, const struct candidate_stage *x)
{
    double rate = INFINITY, latency = 0, n = x->member_count;
    for (uint32_t i = 0; i < x->member_count && n > 1; i++) {
        const struct member *m = &c->members[x->member_first];
        struct problem_link link = problem_link(p, m[i].device, m[(i + 1) % x->member_count].device);
        rate = fmin(rate, link.bytes_per_s);
        latency = fmax(latency, link.latency_s);
    }
    double moved = (double)memory_gradient_bytes(p, x->block_begin, x->block_end);
    moved += shards(p, c, x) ? (double)memory_gathered_bytes(p, x->block_begin, x->block_end) : moved;
    return n > 1 ? ((n - 1) / n * moved / rate + 2 * (n - 1) * latency) / micro_count(p, c->micro_batch_rows)
                 : 0;
}

/* Evaluates a stage; it recomputes if it does not fit otherwise. */
static struct cut_stage stage_look(struct workbench *bench, struct candidate *c, uint32_t s, int32_t begin,
                                   int32_t end, uint32_t window)
{
    const struct problem *p = bench->problem;
    const struct micro_cost *costs = workbench_costs(bench, c->micro_batch_rows);
    struct candidate_stage *x = &c->stages[s], kept = *x;
    struct cut_stage none = {INFINITY, INFINITY};
    double rate = 0, room = 0;
    x->block_begin = begin;
    x->block_end = end;
    bool fits = costs != NULL, sharded = shards(p, c, x);
    for (uint32_t i = 0; i < x->member_count && fits; i++) {
        uint32_t at = x->member_first + i;
        struct member *m = &c->members[at];
        uint32_t own = window_part(window, 1.0 / x->member_count, x->member_count);
        double more = INFINITY;
        for (int again = 0; again < 2 && more > 0; again++) {
            if (!micro_recompute_allowed(p, again))
                continue;
            m->recompute = again;
            more = missing_bytes(bench, c, s, at, own);
        }
        fits = more <= 0;
        room -= more;
        rate += 1 / (micro_forward(p, &costs[m->device], begin, end) +
                     micro_backward(p, &costs[m->device], begin, end, m->recompute));
    }
    fits = fits && (!sharded || room >= pipeline_state_bytes(p, x));
    double period = fits ? 1 / rate + sync_part(p, c, x) : INFINITY;
    *x = kept;
    return fits ? (struct cut_stage){period, x->member_count / rate} : none;
}

/* --- windows --- */

struct capping {
    struct workbench *bench;
    struct candidate *c;
    const struct stage_price *prices;
    uint32_t micro_batches;
    uint32_t behind;      /* most micro-batches in flight that leave the stage behind room for what arrives */
    uint32_t behind_next; /* the same limit for the stage before, found while this stage is evaluated */
    bool spare;           /* recomputes only where nothing fits otherwise */
};

/* The largest window of a stage of several members for which each has room for its part. */
static uint32_t group_most(struct capping *k, uint32_t s)
{
    const struct problem *p = k->bench->problem;
    const struct candidate_stage *x = &k->c->stages[s];
    double period = chain_period(k->c, k->prices, s), most = 1e6, room = 0;
    uint64_t saved = 0;
    for (uint32_t i = 0; i < x->member_count; i++) {
        const struct member *m = &k->c->members[x->member_first + i];
        const struct stage_price *price = &k->prices[x->member_first + i];
        const struct memory_need *need = need_of(k->bench, k->c, s, x->member_first + i);
        double left = (double)problem_limit(p, m->device) - (double)need->total;
        double share = period / (price->forward_s + price->backward_s);
        if (left < 0) {
            shortage_note(&k->bench->shortage[k->c->placement], m->device, need->total,
                          problem_limit(p, m->device));
            return 0;
        }
        uint64_t each = need->saved_bytes + 2 * need->boundary_bytes;
        room += left;
        saved += each;
        if (!shards(p, k->c, x))
            most = fmin(most, floor(left / (double)each) / share);
    }
    if (shards(p, k->c, x)) { /* memory that the state leaves free can be divided as the windows need it */
        double state = pipeline_state_bytes(p, x);
        if (room < state) {
            shortage_note(&k->bench->shortage[k->c->placement], UINT32_MAX, (uint64_t)state, (uint64_t)room);
            return 0;
        }
        most = x->member_count * (room - state) / (double)saved;
    }
    return most < x->member_count ? x->member_count : (uint32_t)most;
}

/* The largest window of a stage with one member: it needs room for saved activations, and for what arrives
 * from both neighbours. */
static uint32_t single_most(struct capping *k, uint32_t s, uint32_t wish, const uint32_t *windows)
{
    const struct problem *p = k->bench->problem;
    const struct candidate *c = k->c;
    const struct member *m = &c->members[c->stages[s].member_first];
    const struct memory_need *need = need_of(k->bench, c, s, c->stages[s].member_first);
    double left = (double)problem_limit(p, m->device) - (double)need->total,
           boundary = (double)need->boundary_bytes;
    if (left < 0) {
        shortage_note(&k->bench->shortage[c->placement], m->device, need->total, problem_limit(p, m->device));
        return 0;
    }
    /* A window of w needs w − 1 more places for activations; the rings to the stage behind grow by w − w'
     * − 1. */
    uint32_t next = s + 1 < c->stage_count ? windows[s + 1] : 0, most = 1;
    bool single_next = s + 1 < c->stage_count && c->stages[s + 1].member_count == 1;
    uint32_t end = k->behind < k->micro_batches ? k->behind : k->micro_batches;
    end = end > wish + WINDOW_LOOKED ? end : wish + WINDOW_LOOKED;
    end = end < k->behind ? end : k->behind;
    while (most < end) {
        uint32_t w = most + 1, held = w < k->micro_batches ? w : k->micro_batches;
        double ring = single_next && w > next + 1 ? w - next - 1 : 0;
        ring = fmin(ring, k->micro_batches);
        if ((held - 1) * (double)need->saved_bytes + ring * boundary > left)
            break;
        most = w;
    }
    double used =
        (double)(most < k->micro_batches ? most - 1 : k->micro_batches - 1) * (double)need->saved_bytes;
    double deeper = boundary > 0 ? floor((left - used) / boundary) : 1e6;
    k->behind_next = most + 1 + (uint32_t)fmin(fmax(deeper, 0), 1e6);
    return most;
}

/* The largest window of a stage. Where that is less than it should be (if `spare`: where nothing fits),
 * its members recompute. */
static uint32_t stage_most(void *context, uint32_t s, uint32_t wish, const uint32_t *windows)
{
    struct capping *k = context;
    struct candidate *c = k->c;
    const struct candidate_stage *x = &c->stages[s];
    uint32_t most = 0;
    for (int again = 0; again < 2; again++) {
        if (!micro_recompute_allowed(k->bench->problem, again))
            continue;
        for (uint32_t m = x->member_first; m < x->member_first + x->member_count; m++)
            c->members[m].recompute = again;
        most = x->member_count > 1 ? group_most(k, s) : single_most(k, s, wish, windows);
        if (most >= wish || (k->spare && most > 0))
            break;
    }
    k->behind = x->member_count > 1 ? UINT32_MAX : k->behind_next;
    return most;
}

/* --- prices --- */

/* Fills the prices. *syncs: seconds of each stage outside micro-batches; the caller frees it. */
static int prices_fill(struct workbench *bench, const struct candidate *c, struct stage_price **out,
                       struct pipeline_sync **syncs)
{
    const struct problem *p = bench->problem;
    bool laps = c->stage_count > c->member_count;
    struct stage_price *prices = workbench_prices(bench, 2 * (c->stage_count + c->member_count));
    *syncs = malloc(c->stage_count * sizeof(**syncs));
    if (!prices || !*syncs)
        return err_set(bench->err, ERR_NOMEM, "planner: out of memory");
    if (pipeline_syncs(p, c, *syncs, bench->err) < 0)
        return -1;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        const struct candidate_stage *x = &c->stages[s];
        for (uint32_t i = 0; i < x->member_count; i++) {
            struct stage_price *price = &prices[laps ? s : x->member_first + i];
            pipeline_stage_price(p, c, s, x->member_first + i, price);
            price->ready_s = (*syncs)[s].before_s;
        }
    }
    *out = prices;
    return 0;
}

static int chain_estimate(struct workbench *bench, struct candidate *c)
{
    struct stage_price *prices;
    struct pipeline_sync *syncs;
    double end = 0, updates = 0;
    int result = prices_fill(bench, c, &prices, &syncs) < 0 ? -1 : 1;
    c->estimate_s = INFINITY;
    if (result > 0 && chain_run(bench, c, prices, candidate_micro_batches(bench->problem, c)) < 0)
        result = bench->err->code == ERR_NOMEM ? -1 : 0;
    /* A plan must not have a member without work. */
    for (uint32_t m = 0; m < bench->schedule.ranks && result > 0; m++)
        result = bench->schedule.first[m + 1] > bench->schedule.first[m];
    for (uint32_t s = 0; s < c->stage_count && result > 0; s++) {
        end = fmax(end, bench->ends[s] + syncs[s].after_s);
        updates = fmax(updates, syncs[s].update_s);
    }
    if (result > 0)
        c->estimate_s = end + updates;
    free(syncs);
    return result;
}

/* --- settling --- */

/* Sets the windows by the rule, as far as memory allows. */
static int windows_fill(struct workbench *bench, struct candidate *c, bool spare, uint32_t more, bool *capped)
{
    const struct problem *p = bench->problem;
    struct capping k = {.bench = bench, .c = c, .behind = UINT32_MAX, .spare = spare};
    struct chain_windows rule = {stage_most, &k, NULL, more};
    struct stage_price *prices;
    struct pipeline_sync *syncs;
    for (uint32_t m = 0; m < c->member_count; m++)
        c->members[m] = (struct member){.device = c->members[m].device,
                                        .rows = c->micro_batch_rows,
                                        .window = 1,
                                        .state_share = 1,
                                        .recompute = !micro_recompute_allowed(p, false)};
    uint32_t *windows = NULL;
    k.micro_batches = micro_count(p, c->micro_batch_rows);
    for (int pass = 0; pass < 2; pass++) { /* in the second pass it is known which members recompute */
        int filled = prices_fill(bench, c, &prices, &syncs);
        free(syncs);
        if (filled < 0)
            return -1;
        k.prices = prices;
        k.behind = UINT32_MAX;
        windows = bench->windows;
        rule.spare = windows + c->stage_count;
        if (!chain_windows(bench, c, prices, &rule, capped))
            return 0;
    }
    for (uint32_t s = 0; s < c->stage_count; s++) {
        const struct candidate_stage *x = &c->stages[s];
        double period = chain_period(c, prices, s);
        for (uint32_t m = x->member_first; m < x->member_first + x->member_count; m++) {
            *capped |= c->members[m].recompute;
            c->members[m].window = window_part(
                windows[s], period / (prices[m].forward_s + prices[m].backward_s), x->member_count);
        }
    }
    return 1;
}

/* True if the closed form proves that the candidate is slower than rival_s. */
static bool surely_slower(struct workbench *bench, const struct candidate *c, double rival_s)
{
    uint32_t count = micro_count(bench->problem, c->micro_batch_rows);
    return rival_s < INFINITY && chain_closed(bench, c, bench->prices, count) >= rival_s * SURE;
}

/* Removes from their groups the members that the schedule gives no work. Returns true if there were any. */
static bool idle_drop(const struct schedule *schedule, struct candidate *c)
{
    uint32_t kept = 0, at = 0;
    if (schedule->ranks != c->member_count || c->stage_count >= c->member_count)
        return false;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        uint32_t count = c->stages[s].member_count;
        c->stages[s].member_first = kept;
        for (uint32_t i = 0; i < count; i++, at++) {
            if (schedule->first[at + 1] > schedule->first[at])
                c->members[kept++] = c->members[at];
            else
                c->stages[s].member_count--;
        }
    }
    bool dropped = kept < c->member_count;
    c->member_count = kept;
    return dropped;
}

/* Tries recomputing wherever windows would be too small otherwise; and if that happened, recomputing only
 * where nothing fits otherwise; the faster one is taken. Groups work eagerly; if memory is short they also
 * try the strict order, whose windows are exact. */
static int chain_settle(struct workbench *bench, struct candidate *c)
{
    static const struct {
        bool groups, eager, spare, if_capped;
        uint32_t more;
    } ways[] = {{false, false, false, false, 0},
                /* The first and last micro-batches of a step use one window more. */
                {false, false, false, false, 1},
                {false, false, false, false,
                 UINT32_MAX}, /* or as many as memory holds: a late micro-batch then delays fewer others */
                {false, true, false, false, 1},
                {false, false, true, true, 0},
                {true, true, false, false, 0},
                {true, true, true, true, 0},
                {true, false, false, true, 0},
                {true, false, true, true, 0}};
    struct candidate *best = &bench->best;
    bool groups = c->member_count > c->stage_count, capped = false, found = false;
    int result = 0;
    c->owner_count = 0;
    c->schedule = SCHEDULE_1F1B;
    for (size_t w = 0; w < sizeof(ways) / sizeof(*ways) && result >= 0; w++) {
        bool cut_short = false;
        if (ways[w].groups != groups || (ways[w].if_capped && !capped))
            continue;
        c->eager = ways[w].eager;
        result = windows_fill(bench, c, ways[w].spare, ways[w].more, &cut_short);
        capped |= cut_short || result == 0;
        if (result > 0 &&
            surely_slower(bench, c, found ? fmin(best->estimate_s, bench->rival_s) : bench->rival_s))
            result = 0;
        if (result > 0) {
            result = chain_estimate(bench, c);
            if (result == 0 && idle_drop(&bench->schedule, c)) { /* settles again without them */
                groups = c->member_count > c->stage_count;
                w--;
                continue;
            }
        }
        if (result > 0 && (!found || c->estimate_s < best->estimate_s)) {
            found = true;
            result = candidate_copy(best, c, bench->err);
        }
        if (!found && !capped && result >= 0) /* it is slower than the rival whatever the windows */
            break;
    }
    c->estimate_s = INFINITY;
    if (result >= 0 && found)
        result = candidate_copy(c, best, bench->err);
    return result < 0 ? -1 : found;
}

/* --- the rows of the table --- */

static bool single_supports(const struct problem *p, struct err *err)
{
    return kind_stages_asked(p, 1, 1, err);
}

static bool pipeline_supports(const struct problem *p, struct err *err)
{
    return kind_stages_asked(p, 2, UINT32_MAX, err) && kind_devices_enough(p, 2, "a pipeline takes", err);
}

static bool hybrid_supports(const struct problem *p, struct err *err)
{
    return kind_stages_asked(p, 2, UINT32_MAX, err) &&
           kind_devices_enough(p, 3, "groups of replicas in a pipeline take", err);
}

/* Workers run every order; a backward in halves excludes recomputation. */
static bool pipeline_runnable(const struct problem *p, const struct candidate *c)
{
    (void)p;
    bool again = false;
    for (uint32_t m = 0; m < c->member_count; m++)
        again |= c->members[m].recompute;
    return c->schedule != SCHEDULE_SPLIT || !again;
}

/* Workers of this release keep whole stages and no shards. */
static bool hybrid_runnable(const struct problem *p, const struct candidate *c)
{
    return (p->workload->method == METHOD_LORA || c->whole) && pipeline_runnable(p, c);
}

const struct placement_kind kind_single = {.placement = PLACE_SINGLE,
                                           .stage_kind = STAGE_REPLICAS,
                                           .stages_least = 1,
                                           .stages_most = 1,
                                           .members_least = 1,
                                           .members_most = 1,
                                           .supports = single_supports,
                                           .settle = chain_settle,
                                           .estimate = chain_estimate,
                                           .emit = pipeline_emit};
const struct placement_kind kind_pipeline = {.placement = PLACE_PIPELINE,
                                             .stage_kind = STAGE_REPLICAS,
                                             .stages_least = 2,
                                             .stages_most = UINT32_MAX,
                                             .members_least = 1,
                                             .members_most = 1,
                                             .supports = pipeline_supports,
                                             .look = stage_look,
                                             .settle = chain_settle,
                                             .estimate = chain_estimate,
                                             .emit = pipeline_emit,
                                             .runnable = pipeline_runnable};
const struct placement_kind kind_hybrid = {.placement = PLACE_HYBRID,
                                           .stage_kind = STAGE_REPLICAS,
                                           .stages_least = 2,
                                           .stages_most = UINT32_MAX,
                                           .members_least = 2,
                                           .members_most = 255,
                                           .supports = hybrid_supports,
                                           .look = stage_look,
                                           .settle = chain_settle,
                                           .estimate = chain_estimate,
                                           .emit = pipeline_emit,
                                           .runnable = hybrid_runnable};
