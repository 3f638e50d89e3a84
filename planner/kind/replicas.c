/* The placements single (one device), pipeline (one device per stage) and hybrid (several replicas in some
 * stage). */
#include <math.h>
#include <stdlib.h>

#include "planner/cost/memory.h"
#include "planner/emit/pipeline.h"
#include "planner/kind/chain.h"

/* In 98 % of cases the closed form's seconds are at most this multiple of the list schedule's (README.md). */
#define SURE 1.15
#define LAYER_TURNS 20u  /* bisections of a period, which find it to a millionth */
#define WINDOW_LOOKED 4u /* micro-batches in flight tried beyond those that hide transfers */

/* Whether each member of the stage keeps only a part of its trained state (LoRA: of its frozen weights). */
static bool shards(const struct problem *p, const struct candidate *c, const struct candidate_stage *stage)
{
    bool shared = p->workload->method == METHOD_FULL ? !c->whole : candidate_gathers(c);
    return shared && stage->member_count > 1;
}

static uint32_t sides(const struct candidate *c, uint32_t s)
{
    return (s > 0 ? 1u : 0u) + (s + 1 < c->stage_count ? 1u : 0u);
}

/* Returns the micro-batches in flight on a member with the given share of its stage's work; one more in a
 * stage of several members, where micro-batches come irregularly. */
static uint32_t window_part(uint32_t window, double share, uint32_t members)
{
    return members == 1 ? window : (uint32_t)ceil(window * share - 1e-9) + 1;
}

/* --- time and memory of a stage with some range of blocks --- */

/* Returns a member's memory footprint with one micro-batch in flight, which does not depend on the device. */
static const struct need_kept *need_of(struct workbench *bench, const struct candidate *c, uint32_t s,
                                       uint32_t m)
{
    const struct candidate_stage *x = &c->stages[s];
    bool shared = shards(bench->problem, c, x), last = s > 0 && s + 1 == c->stage_count;
    uint64_t key = (uint64_t)c->micro_batch_rows << 40 | (uint64_t)x->block_begin << 24 |
                   (uint64_t)candidate_stage_end(c, s) << 8 | sides(c, s) << 3 |
                   c->members[m].recompute << 2 | shared << 1 | last;
    struct need_kept *kept = need_slot(bench, key);
    if (kept->key != key) {
        struct memory_need need;
        pipeline_member_need(bench->problem, c, s, m, (struct flat_share){0}, 1,
                             PIPELINE_BUFFERS_SIDE * sides(c, s), &need);
        *kept = (struct need_kept){key, need.total, need.saved_bytes, need.boundary_bytes, 0};
    }
    return kept;
}

/* Returns the bytes that a member's device lacks with `window` micro-batches in flight; negative: bytes that
 * are free. */
static double missing_bytes(struct workbench *bench, const struct candidate *c, uint32_t s, uint32_t m,
                            uint32_t window)
{
    const struct problem *p = bench->problem;
    const struct need_kept *need = need_of(bench, c, s, m);
    uint32_t all = micro_count(p, c->micro_batch_rows), more = (window < all ? window : all) - 1;
    return (double)(need->total + more * need->live_bytes) - (double)problem_limit(p, c->members[m].device);
}

/* Returns the seconds per micro-batch of the transfers that a stage of several members does once a step: the
 * all-reduce of gradients, or gather and reduction of the sharded state. */
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

/* Returns the micro-batches that a device completes in a second. */
static double rate_of(const struct problem *p, const struct micro_cost *cost, int32_t begin, int32_t end,
                      bool recompute)
{
    return 1 / (micro_forward(p, cost, begin, end) + micro_backward(p, cost, begin, end, recompute));
}

/* Returns how long stage s takes with blocks [begin, end) and `window` micro-batches in flight. Sets its
 * members to recompute if they do not fit otherwise. Their memory is looked at only if the stage takes at
 * most limit_s without. */
static struct cut_stage replicas_stage_look(struct workbench *bench, struct candidate *c, uint32_t s,
                                            int32_t begin, int32_t end, uint32_t window, double limit_s)
{
    const struct problem *p = bench->problem;
    const struct micro_cost *costs = workbench_costs(bench, c->micro_batch_rows);
    struct candidate_stage *x = &c->stages[s], kept = *x;
    struct cut_stage none = {INFINITY, INFINITY};
    const bool always = !micro_recompute_allowed(p, false);
    double rate = 0, room = 0;
    x->block_begin = begin;
    x->block_end = end;
    c->schedule = SCHEDULE_1F1B; /* as settle() sets it */
    double sync_s = sync_part(p, c, x);
    bool fits = costs != NULL, sharded = shards(p, c, x), again = false;
    for (uint32_t i = 0; i < x->member_count && fits; i++) {
        struct member *m = &c->members[x->member_first + i];
        m->next_count = 0;
        m->recompute_end = 0;
        m->recompute = always;
        rate += rate_of(p, &costs[m->device], begin, end, always);
    }
    fits = fits && 1 / rate + sync_s <= limit_s;
    for (uint32_t i = 0; i < x->member_count && fits; i++) {
        uint32_t at = x->member_first + i, own = window_part(window, 1.0 / x->member_count, x->member_count);
        double more = missing_bytes(bench, c, s, at, own);
        if (more > 0 && !always && micro_recompute_allowed(p, true)) {
            c->members[at].recompute = again = true;
            more = missing_bytes(bench, c, s, at, own);
        }
        fits = more <= 0;
        room -= more;
    }
    if (again)
        rate = 0;
    for (uint32_t i = 0; i < x->member_count && again; i++) {
        const struct member *m = &c->members[x->member_first + i];
        rate += rate_of(p, &costs[m->device], begin, end, m->recompute);
    }
    fits = fits && (!sharded || room >= pipeline_state_bytes(p, c, s));
    *x = kept;
    return fits ? (struct cut_stage){1 / rate + sync_s, x->member_count / rate} : none;
}

/* --- how many micro-batches in flight memory allows --- */

struct capping {
    struct workbench *bench;
    struct candidate *c;
    const struct stage_price *prices;
    uint32_t micro_batches;
    uint32_t behind; /* most micro-batches in flight in stage s for which the next stage's memory holds the
                        activations that arrive */
    uint32_t behind_next; /* `behind` for the stage before s, found while s is evaluated */
    bool spare;           /* recompute only where nothing fits otherwise */
};

/* Returns the most micro-batches in flight in a stage of several members, so that each member's memory holds
 * its part of them; 0: a member does not fit. */
static uint32_t group_most(struct capping *k, uint32_t s)
{
    const struct problem *p = k->bench->problem;
    const struct candidate_stage *x = &k->c->stages[s];
    double period = chain_period(k->c, k->prices, s), most = 1e6, room = 0;
    uint64_t saved = 0;
    for (uint32_t i = 0; i < x->member_count; i++) {
        const struct member *m = &k->c->members[x->member_first + i];
        const struct stage_price *price = &k->prices[x->member_first + i];
        const struct need_kept *need = need_of(k->bench, k->c, s, x->member_first + i);
        double left = (double)problem_limit(p, m->device) - (double)need->total;
        double share = period / (price->forward_s + price->backward_s);
        if (left < 0) {
            shortage_note(&k->bench->shortage[k->c->placement], m->device, need->total,
                          problem_limit(p, m->device));
            return 0;
        }
        uint64_t each = need->live_bytes + 2 * need->boundary_bytes;
        room += left;
        saved += each;
        if (!shards(p, k->c, x))
            most = fmin(most, floor(left / (double)each) / share);
    }
    if (shards(p, k->c, x)) { /* members can share out the state so that each keeps the memory that its
                                 micro-batches in flight need */
        double state = pipeline_state_bytes(p, k->c, s);
        if (room < state) {
            shortage_note(&k->bench->shortage[k->c->placement], UINT32_MAX, (uint64_t)state, (uint64_t)room);
            return 0;
        }
        most = x->member_count * (room - state) / (double)saved;
    }
    return most < x->member_count ? x->member_count : (uint32_t)most;
}

/* Returns the most micro-batches in flight in a stage of one member, whose memory holds their saved
 * activations and the boundary tensors that arrive from both neighbours; 0: it does not fit. */
static uint32_t single_most(struct capping *k, uint32_t s, uint32_t wish, const uint32_t *windows)
{
    const struct problem *p = k->bench->problem;
    const struct candidate *c = k->c;
    const struct member *m = &c->members[c->stages[s].member_first];
    const struct need_kept *need = need_of(k->bench, c, s, c->stages[s].member_first);
    double left = (double)problem_limit(p, m->device) - (double)need->total,
           boundary = (double)need->boundary_bytes;
    if (left < 0) {
        shortage_note(&k->bench->shortage[c->placement], m->device, need->total, problem_limit(p, m->device));
        return 0;
    }
    /* With w micro-batches in flight the stage saves the activations of w − 1 more than with one. The ring of
     * buffers to the next stage, which has w' in flight, grows by w − w' − 1. */
    uint32_t next = s + 1 < c->stage_count ? windows[s + 1] : 0, most = 1;
    bool single_next = s + 1 < c->stage_count && c->stages[s + 1].member_count == 1;
    uint32_t end = k->behind < k->micro_batches ? k->behind : k->micro_batches;
    end = end > wish + WINDOW_LOOKED ? end : wish + WINDOW_LOOKED;
    end = end < k->behind ? end : k->behind;
    while (most < end) {
        uint32_t w = most + 1, held = w < k->micro_batches ? w : k->micro_batches;
        double ring = single_next && w > next + 1 ? w - next - 1 : 0;
        ring = fmin(ring, k->micro_batches);
        if ((held - 1) * (double)need->live_bytes + ring * boundary > left)
            break;
        most = w;
    }
    double used =
        (double)(most < k->micro_batches ? most - 1 : k->micro_batches - 1) * (double)need->live_bytes;
    double deeper = boundary > 0 ? floor((left - used) / boundary) : 1e6;
    k->behind_next = most + 1 + (uint32_t)fmin(fmax(deeper, 0), 1e6);
    return most;
}

/* Returns the most micro-batches in flight that stage s has memory for. Its members recompute if, without
 * recomputing, memory holds fewer than `wish` (if k->spare: if it holds none). */
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

/* --- seconds of a micro-batch and of a step --- */

/* Fills in the price of a micro-batch for every member of every stage. *syncs: seconds of each stage's
 * transfers and optimiser once a step; the caller frees it. */
static int prices_fill(struct workbench *bench, const struct candidate *c, struct stage_price **out,
                       struct pipeline_sync **syncs)
{
    const struct problem *p = bench->problem;
    uint32_t at = 0, laps = candidate_laps(c);
    struct stage_price *prices = workbench_prices(bench, 2 * (c->stage_count + laps * c->member_count));
    *syncs = malloc(c->stage_count * sizeof(**syncs));
    if (!prices || !*syncs)
        return err_set(bench->err, ERR_NOMEM, "planner: out of memory");
    if (pipeline_syncs(p, c, *syncs, bench->err) < 0)
        return -1;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        const struct candidate_stage *x = &c->stages[s];
        for (uint32_t i = 0; i < x->member_count; i++) {
            struct stage_price *price = &prices[at++];
            pipeline_stage_price(p, c, s, x->member_first + i, price);
            price->ready_s = (*syncs)[s].before_s;
        }
    }
    *out = prices;
    return 0;
}

static bool shares_layers(const struct candidate *c)
{
    bool any = false;
    for (uint32_t m = 0; m < c->member_count; m++)
        any |= c->members[m].next_count > 0;
    return any;
}

/* Estimates a step. One that is certain to take limit_s or more is said to take INFINITY. */
static int estimate_below(struct workbench *bench, struct candidate *c, double limit_s)
{
    struct stage_price *prices;
    struct pipeline_sync *syncs;
    double end = 0, updates = 0, after = INFINITY;
    int result = prices_fill(bench, c, &prices, &syncs) < 0 ? -1 : 1;
    c->estimate_s = INFINITY;
    for (uint32_t s = 0; s < c->stage_count && result > 0; s++) {
        after = fmin(after, syncs[s].after_s);
        updates = fmax(updates, syncs[s].update_s);
    }
    if (shares_layers(c) && !pipeline_layers_fit(bench->problem, c))
        result = 0;
    int over = result > 0 ? chain_run(bench, c, prices, candidate_micro_batches(bench->problem, c),
                                      limit_s - updates - after)
                          : 0;
    if (over < 0)
        result = bench->err->code == ERR_NOMEM ? -1 : 0;
    /* A plan must not have a member without work. */
    for (uint32_t m = 0; m < bench->schedule.ranks && result > 0; m++)
        result = bench->schedule.first[m + 1] > bench->schedule.first[m];
    for (uint32_t s = 0; s < c->stage_count && result > 0 && !over; s++)
        end = fmax(end, bench->ends[s] + syncs[s].after_s);
    if (result > 0 && !over)
        c->estimate_s = end + updates;
    free(syncs);
    return result;
}

static int chain_estimate(struct workbench *bench, struct candidate *c)
{
    return estimate_below(bench, c, bench->rival_s);
}

/* --- filling in windows, recomputation and shared layers --- */

/* Sets for how many micro-batches each stage runs the next stage's first block, so that no stage takes longer
 * than `period` seconds for a mean micro-batch. `whole`: prices without shared layers. Returns false if that
 * is impossible. */
static bool replicas_layers_share(struct workbench *bench, struct candidate *c,
                                  const struct stage_price *whole, double period)
{
    const struct problem *p = bench->problem;
    const struct micro_cost *costs = workbench_costs(bench, c->micro_batch_rows);
    uint32_t count = micro_count(p, c->micro_batch_rows);
    double given = 0; /* share of the step's micro-batches (0..1) for which the previous stage runs this
                         stage's first block */
    for (uint32_t s = 0; s < c->stage_count && costs; s++) {
        struct member *m = &c->members[c->stages[s].member_first];
        const struct stage_price *price = &whole[c->stages[s].member_first];
        int32_t begin = c->stages[s].block_begin, end = c->stages[s].block_end;
        double left = period - price->forward_s - price->backward_s;
        if (given > 0)
            left += given * (micro_forward(p, &costs[m->device], begin, begin + 1) +
                             micro_backward(p, &costs[m->device], begin, begin + 1, m->recompute));
        m->next_count = 0;
        if (left < 0)
            return false;
        bool layer = s + 1 < c->stage_count && end >= 1 && end <= p->block_count - 2 &&
                     c->stages[s + 1].block_end > end + 1;
        if (layer)
            m->next_count = (uint32_t)fmin(
                count - 1, floor(left * count /
                                 (micro_forward(p, &costs[m->device], end, end + 1) +
                                  micro_backward(p, &costs[m->device], end, end + 1, m->recompute))));
        given = (double)m->next_count / count;
    }
    return costs != NULL;
}

/* Whether every member's memory holds its blocks (with a layer that it shares with the next stage) and the
 * activations of its micro-batches in flight. */
static bool windows_fit(struct workbench *bench, const struct candidate *c)
{
    for (uint32_t s = 0; s < c->stage_count; s++) {
        uint32_t m = c->stages[s].member_first, window = c->members[m].window;
        uint32_t next = s + 1 < c->stage_count ? c->members[m + 1].window : window;
        double ring = window > next + 1 ? window - next - 1 : 0;
        if (missing_bytes(bench, c, s, m, window) + ring * (double)need_of(bench, c, s, m)->boundary_bytes >
            0)
            return false;
    }
    return true;
}

/* Balances a pipeline more finely than by whole layers: a stage may run the next stage's first layer for some
 * micro-batches. Bisects the period. Returns 1 if a step is faster so, and then *c is changed; 0 if not. */
static int layers_settle(struct workbench *bench, struct candidate *c)
{
    struct stage_price *prices;
    struct pipeline_sync *syncs;
    double low = 0, high = 0, before_s = c->estimate_s;
    if (c->placement != PLACE_PIPELINE || c->stage_count != c->member_count || bench->whole_layers)
        return 0;
    int result = prices_fill(bench, c, &prices, &syncs);
    free(syncs);
    for (uint32_t s = 0; s < c->stage_count && result == 0; s++)
        high = fmax(high, chain_period(c, prices, s));
    for (uint32_t i = 0; i < LAYER_TURNS && result == 0; i++) {
        double middle = (low + high) / 2;
        if (replicas_layers_share(bench, c, prices, middle))
            high = middle;
        else
            low = middle;
    }
    if (result < 0 || !replicas_layers_share(bench, c, prices, high) || !shares_layers(c) ||
        !pipeline_layers_fit(bench->problem, c) || !windows_fit(bench, c))
        return result;
    result = estimate_below(bench, c, before_s);
    return result > 0 ? c->estimate_s < before_s : result;
}

/* Returns the bytes that stay free on the only member of stage s if it recomputes the blocks before `end` and
 * keeps the activations of the others; negative: bytes it lacks. */
static double again_free(struct workbench *bench, struct candidate *c, uint32_t s, int32_t end)
{
    const struct problem *p = bench->problem;
    struct member *m = &c->members[c->stages[s].member_first];
    uint32_t all = micro_count(p, c->micro_batch_rows), window = m->window < all ? m->window : all,
             next = s + 1 < c->stage_count ? m[1].window : m->window;
    double ring = m->window > next + 1 ? m->window - next - 1 : 0;
    struct memory_need need;
    m->recompute_end = end < candidate_stage_end(c, s) ? end : 0;
    pipeline_member_need(p, c, s, c->stages[s].member_first, (struct flat_share){0}, window,
                         PIPELINE_BUFFERS_SIDE * sides(c, s), &need);
    return (double)problem_limit(p, m->device) - (double)need.total - ring * (double)need.boundary_bytes;
}

/* Where a pipeline's members recompute, lets each keep the activations of as many of its last blocks as its
 * memory holds. Returns 1 if a step is faster so, and then *c is changed; 0 if not. */
static int again_settle(struct workbench *bench, struct candidate *c)
{
    double before_s = c->estimate_s;
    bool any = false;
    if (c->stage_count != c->member_count || !micro_recompute_allowed(bench->problem, false))
        return 0;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        struct member *m = &c->members[c->stages[s].member_first];
        int32_t low = c->stages[s].block_begin, high = candidate_stage_end(c, s);
        while (m->recompute && high - low > 1) { /* recomputing up to `high` fits, up to `low` does not */
            int32_t middle = low + (high - low) / 2;
            if (again_free(bench, c, s, middle) >= 0)
                high = middle;
            else
                low = middle;
        }
        m->recompute_end = m->recompute && high < candidate_stage_end(c, s) ? high : 0;
        any |= m->recompute_end > 0;
    }
    int result = any ? estimate_below(bench, c, fmin(before_s, bench->rival_s)) : 0;
    return result > 0 ? c->estimate_s < before_s : result;
}

/* Sets each member's micro-batches in flight, enough to hide transfers behind computation and `more`, as far
 * as memory allows. spare: recompute only where nothing fits otherwise. *capped is set where memory allows
 * fewer, or a member recomputes. Returns 1, 0 if a stage does not fit, −1 ERR_NOMEM. */
static int windows_fill(struct workbench *bench, struct candidate *c, bool spare, uint32_t more, bool *capped)
{
    const struct problem *p = bench->problem;
    struct capping k = {.bench = bench, .c = c, .behind = UINT32_MAX, .spare = spare};
    struct chain_windows rule = {stage_most, &k, NULL, more};
    struct stage_price *prices;
    struct pipeline_sync *syncs;
    candidate_members_reset(c, !micro_recompute_allowed(p, false));
    uint32_t *windows = NULL;
    k.micro_batches = micro_count(p, c->micro_batch_rows);
    for (int pass = 0; pass < 2; pass++) { /* the second pass knows which members recompute */
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

/* True if the closed form shows with near certainty that the candidate is slower than rival_s seconds a step.
 */
static bool surely_slower(struct workbench *bench, const struct candidate *c, double rival_s)
{
    uint32_t count = micro_count(bench->problem, c->micro_batch_rows);
    return rival_s < INFINITY && chain_closed(bench, c, bench->prices, count) >= rival_s * SURE;
}

/* Removes the members that the list schedule gave no micro-batch from their stages. Returns true if it
 * removed any. */
static bool idle_drop(const struct schedule *schedule, struct candidate *c)
{
    uint32_t kept = 0, at = 0;
    if (schedule->ranks != c->member_count || candidate_groups(c) >= c->member_count)
        return false;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        uint32_t count = c->stages[s].member_count;
        c->stages[s].member_first = kept;
        for (uint32_t i = 0; i < count; i++, at++)
            if (schedule->first[at + 1] > schedule->first[at])
                c->members[kept++] = c->members[at];
            else
                c->stages[s].member_count--;
    }
    bool dropped = kept < c->member_count;
    c->member_count = kept;
    return dropped;
}

/* Fills in micro-batches in flight, recomputation and the order of work in every way of the table below, and
 * keeps the fastest. First, members recompute wherever memory otherwise holds too few micro-batches in flight
 * to hide the transfers; if that happened, another way recomputes only where nothing fits otherwise. Stages
 * of several members work in eager order; if memory is short, also in the strict order, whose numbers in
 * flight are exact. */
static int chain_settle(struct workbench *bench, struct candidate *c)
{
    static const struct {
        bool groups, eager, spare, if_capped;
        uint32_t more;
    } ways[] = {{false, false, false, false, 0},
                /* one more micro-batch in flight, for the first and last micro-batches of a step */
                {false, false, false, false, 1},
                /* as many micro-batches in flight as memory holds: then a late one delays few */
                {false, false, false, false, UINT32_MAX},
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
        double found_s = found ? best->estimate_s : INFINITY, rival_s = fmin(found_s, bench->rival_s);
        if (result > 0 && surely_slower(bench, c, rival_s))
            result = 0;
        if (result > 0) {
            /* What follows the loop may make a pipeline of single devices faster yet. */
            result = estimate_below(bench, c, groups ? rival_s : found_s);
            if (result == 0 && idle_drop(&bench->schedule, c)) { /* this way is tried again without the
                                                                    idle members */
                groups = c->member_count > c->stage_count;
                w--;
                continue;
            }
        }
        if (result > 0 && (!found || c->estimate_s < best->estimate_s)) {
            found = true;
            result = candidate_copy(best, c, bench->err);
        }
        if (!found && !capped && result >= 0) /* slower than rival_s even with enough memory */
            break;
    }
    c->estimate_s = INFINITY;
    if (result >= 0 && found)
        result = candidate_copy(c, best, bench->err);
    int (*const finer[])(struct workbench *, struct candidate *) = {layers_settle, again_settle};
    for (int i = 0; i < 2 && found && result >= 0; i++) {
        result = finer[i](bench, c);
        if (result >= 0)
            result = result > 0 ? candidate_copy(best, c, bench->err) : candidate_copy(c, best, bench->err);
    }
    return result < 0 ? -1 : found;
}

/* --- the rows of the table of placements --- */

/* Can the model be cut into stages? A stage with the head has a copy of a trained tied embedding, and of
 * nothing else in block 0. */
static bool stages_supported(const struct problem *p, struct err *err)
{
    if (memory_trains_table(p) && p->blocks.tied && p->workload->config->per_layer > 0) {
        err_set(
            err, ERR_UNSUPPORTED,
            "a pipeline does not train the tied embedding of a model whose layers have inputs of their own "
            "(hidden_size_per_layer_input)");
        return false;
    }
    if (p->workload->order != 1 + SCHEDULE_SPLIT || p->workload->recompute != RECOMPUTE_YES)
        return true;
    err_set(err, ERR_UNSUPPORTED,
            "placement.order: split: a backward in halves keeps activations, which train.recompute drops");
    return false;
}

/* Returns false for a candidate that splits backward into the part for inputs and the part for weights
 * (SCHEDULE_SPLIT) and also recomputes activations; pipeline_emit refuses it. */
static bool pipeline_runnable(const struct problem *p, const struct candidate *c)
{
    (void)p;
    return pipeline_halves_fit(c);
}

const struct placement_kind kind_single = {.placement = PLACE_SINGLE,
                                           .stage_kind = STAGE_REPLICAS,
                                           .stages_least = 1,
                                           .stages_most = 1,
                                           .members_least = 1,
                                           .members_most = 1,
                                           .devices_least = 1,
                                           .settle = chain_settle,
                                           .estimate = chain_estimate,
                                           .emit = pipeline_emit};
const struct placement_kind kind_pipeline = {.placement = PLACE_PIPELINE,
                                             .stage_kind = STAGE_REPLICAS,
                                             .stages_least = 2,
                                             .stages_most = UINT32_MAX,
                                             .members_least = 1,
                                             .members_most = 1,
                                             .devices_least = 2,
                                             .takes = "a pipeline takes",
                                             .supports = stages_supported,
                                             .look = replicas_stage_look,
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
                                           .devices_least = 3,
                                           .takes = "groups of replicas in a pipeline take",
                                           .supports = stages_supported,
                                           .look = replicas_stage_look,
                                           .settle = chain_settle,
                                           .estimate = chain_estimate,
                                           .emit = pipeline_emit,
                                           .runnable = pipeline_runnable};
