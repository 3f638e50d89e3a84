/* tensor: every matrix is cut over the devices of a group; several groups form a pipeline.
 *
 * A group's heads, columns and rows of the vocabulary are divided by speed. If memory does not hold that
 * with the window that hides the links, there are three alternatives: memory counts more in the division,
 * activations are recomputed, or the window is smaller. The one with the shortest period of the stage is
 * taken (docs/PLANNER.md, Time). With one micro-batch at a time, every half of a layer waits for its
 * slowest member and for its all-reduce; with two in turns, the all-reduce of one overlaps the computing
 * of the other.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/fill.h"
#include "planner/cost/micro.h"
#include "planner/cost/ring.h"
#include "planner/cost/tensor_cost.h"
#include "planner/emit/tensor.h"
#include "planner/kind/chain.h"

#define GROUP_MAX 64u
#define TURNS_MAX 16u  /* most micro-batches in turns; more hide hardly anything */
#define LAYERS_SEEN 4u /* layers simulated of a stage, after which layers repeat */
/* Units beyond what the mean asks for: a step's first and last units fill these (16 clusters,
 * tests/planner/test_kind_tensor.c: up to 8 % of a step). */
#define WINDOW_MORE 2u
#define MIXES 3 /* divisions tried, from by speed to by memory */

/* What does not depend on the division: facts of the candidate, and of one stage at a time. */
struct tensor_case {
    struct workbench *bench;
    const struct problem *p;
    struct candidate *c;
    uint32_t micro_batches, together, units;
    struct cost_load load;
    double attention; /* share of a layer's time */
};

struct tensor_group {
    const struct candidate_stage *stage;
    struct member *members;
    struct micro_cost cost[GROUP_MAX];
    struct tensor_shares share[GROUP_MAX];
    uint32_t count, layers, s;
    int32_t layer; /* one of its layers; only if layers > 0 */
    bool embedding, head;
    double latency_s, bytes_per_s, sum_s, statistics_s, broadcast_s;
};

/* --- seconds of a stage --- */

static void cut_init(struct tensor_case *t, struct workbench *bench, struct candidate *c)
{
    uint32_t count = micro_count(bench->problem, c->micro_batch_rows);
    *t = (struct tensor_case){.bench = bench, .p = bench->problem, .c = c, .micro_batches = count};
    t->together = tensor_together(c, count);
    t->units = (count + t->together - 1) / t->together;
    t->load = micro_load_mean(t->p, count);
    t->attention = tensor_attention(t->p, 1, &t->load);
}

static void group_init(const struct tensor_case *t, uint32_t s, struct tensor_group *g)
{
    const struct candidate_stage *stage = &t->c->stages[s];
    int32_t last = t->p->block_count - 1, after = stage->block_end < last ? stage->block_end : last;
    uint32_t devices[GROUP_MAX];
    double bytes = t->p->bytes_per_token * t->load.tokens;
    g->stage = stage;
    g->s = s;
    g->members = &t->c->members[stage->member_first];
    g->count = stage->member_count;
    g->layer = stage->block_begin > 1 ? stage->block_begin : 1;
    g->layers = after > g->layer ? (uint32_t)(after - g->layer) : 0;
    g->embedding = stage->block_begin == 0;
    g->head = stage->block_end > last;
    for (uint32_t i = 0; i < g->count; i++) {
        devices[i] = g->members[i].device;
        micro_cost_init(&g->cost[i], t->p, devices[i], t->c->micro_batch_rows);
        g->share[i] = tensor_shares(t->p, &g->members[i].tensor);
    }
    g->bytes_per_s = ring_slowest(t->p->cluster, devices, g->count, &g->latency_s);
    g->sum_s = tensor_sum_seconds(g->count, bytes, g->latency_s, g->bytes_per_s);
    g->statistics_s = tensor_sum_seconds(g->count, 12 * t->load.tokens, g->latency_s, g->bytes_per_s);
    g->broadcast_s = g->count > 1 ? bytes / g->bytes_per_s + (g->count - 1) * g->latency_s : 0;
}

/* Seconds of a whole block of a class on a member, as if it had the whole block: forward or backward. */
static double whole_seconds(const struct tensor_group *g, uint32_t i, enum cost_class cls, bool back,
                            bool again)
{
    const double *seconds = g->cost[i].seconds[cls];
    return back ? seconds[COST_BACKWARD] + (again ? seconds[COST_RECOMPUTE] : 0) : seconds[COST_FORWARD];
}

enum { PART_FIRST, PART_SECOND, PART_TABLE, PART_TOP, PARTS }; /* the halves of a layer, embedding, head */

/* Writes a member's seconds of each part for a micro-batch. */
static void member_seconds(const struct tensor_case *t, const struct tensor_group *g, uint32_t i, bool back,
                           bool again, double seconds[PARTS])
{
    const struct tensor_shares *x = &g->share[i];
    double layer = whole_seconds(g, i, COST_LAYER, back, again);
    seconds[PART_FIRST] = tensor_shrink(layer * t->attention, x->heads);
    seconds[PART_SECOND] = tensor_shrink(layer * (1 - t->attention), x->columns);
    seconds[PART_TABLE] = whole_seconds(g, i, COST_EMBEDDING, back, again) * (back ? x->vocabulary : 1);
    seconds[PART_TOP] = tensor_shrink(whole_seconds(g, i, COST_HEAD, back, again), x->vocabulary);
}

/* Simulation of a unit in a stage: when members and the group's queue are free, and when each
 * micro-batch's last sum is there. */
struct unit_pass {
    uint32_t count, members;
    double seconds[GROUP_MAX][PARTS], free_s[GROUP_MAX], ready_s[TURNS_MAX], queue_s;
};

/* All micro-batches of the unit do a part in turn; each is all-reduced when the last member is done with
 * it. */
static void pass_step(struct unit_pass *v, int part, double sum_s)
{
    for (uint32_t k = 0; k < v->count; k++) {
        double end = v->queue_s;
        for (uint32_t i = 0; i < v->members; i++) {
            v->free_s[i] = fmax(v->free_s[i], v->ready_s[k]) + v->seconds[i][part];
            end = fmax(end, v->free_s[i]);
        }
        v->ready_s[k] = v->queue_s = end + sum_s;
    }
}

/* Simulates layers; after a few of them every further layer takes as long as the last. */
static void pass_layers(struct unit_pass *v, uint32_t layers, bool back, double sum_s)
{
    double before = 0, more;
    for (uint32_t l = 0; l < layers && l < LAYERS_SEEN; l++) {
        before = v->queue_s;
        pass_step(v, back ? PART_SECOND : PART_FIRST, sum_s);
        pass_step(v, back ? PART_FIRST : PART_SECOND, sum_s);
    }
    more = layers > LAYERS_SEEN ? (layers - LAYERS_SEEN) * (v->queue_s - before) : 0;
    v->queue_s += more;
    for (uint32_t i = 0; i < v->members; i++)
        v->free_s[i] += more;
    for (uint32_t k = 0; k < v->count; k++)
        v->ready_s[k] += more;
}

/* Seconds of `count` micro-batches in turns, forward or backward. */
static double pass_seconds(const struct tensor_case *t, const struct tensor_group *g, bool back, bool again,
                           uint32_t count)
{
    struct unit_pass v = {.count = count, .members = g->count};
    for (uint32_t i = 0; i < g->count; i++)
        member_seconds(t, g, i, back, again, v.seconds[i]);
    for (uint32_t k = 0; k < count && (back ? !g->head : !g->embedding); k++)
        v.ready_s[k] = v.queue_s += g->broadcast_s;
    if (back ? g->head : g->embedding)
        pass_step(&v, back ? PART_TOP : PART_TABLE, g->sum_s);
    pass_layers(&v, g->layers, back, g->sum_s);
    if (back ? g->embedding : g->head)
        pass_step(&v, back ? PART_TABLE : PART_TOP, back ? 0 : g->statistics_s);
    return v.queue_s;
}

/* Mean seconds of a unit; the last unit may be shorter. */
static double unit_seconds(const struct tensor_case *t, const struct tensor_group *g, bool back, bool again)
{
    uint32_t rest = t->micro_batches - (t->units - 1) * t->together;
    double last = pass_seconds(t, g, back, again, rest);
    if (rest == t->together)
        return last;
    return (last + (t->units - 1) * pass_seconds(t, g, back, again, t->together)) / t->units;
}

static void group_price(const struct tensor_case *t, const struct tensor_group *g, bool again,
                        struct stage_price *price)
{
    *price = (struct stage_price){.forward_s = unit_seconds(t, g, false, again),
                                  .backward_s = unit_seconds(t, g, true, again)};
}

/* Seconds of a unit's boundary tensor from a stage to the next; `busy`: its occupation of the link. */
static double link_seconds(const struct tensor_case *t, uint32_t s, double *busy)
{
    const struct candidate_stage *a = &t->c->stages[s], *b = &t->c->stages[s + 1];
    double latency, rate;
    bool emulated;
    cluster_link(t->p->cluster, t->c->members[a->member_first].device, t->c->members[b->member_first].device,
                 &latency, &rate, &emulated);
    *busy = t->p->bytes_per_token * t->p->mean_step.tokens / t->units / rate;
    return latency + *busy;
}

/* --- estimating --- */

static void part_need(const struct tensor_case *t, const struct tensor_group *g,
                      const struct plan_tensor *part, bool again, struct tensor_need *need)
{
    tensor_need_fill(t->p, g->stage->block_begin, g->stage->block_end, part, t->c->micro_batch_rows, again,
                     need);
}

/* Estimates a step. The schedule sees a unit as a micro-batch, and a group as its first member. Added are
 * the all-reduces of replicated parameters, two scalars over the tree of all ranks, and the optimiser. */
static int cut_estimate(const struct tensor_case *t)
{
    struct workbench *bench = t->bench;
    struct candidate units = *t->c;
    double step_s = 0, end = 0, latency = 0;
    units.micro_batch_rows *= t->together;
    units.together = 1;
    struct stage_price *prices = workbench_prices(bench, 2 * t->c->stage_count);
    if (!prices)
        return -1;
    struct stage_price *tails = prices + t->c->stage_count;
    for (uint32_t s = 0; s < t->c->stage_count; s++) {
        struct tensor_need need;
        struct tensor_group g;
        group_init(t, s, &g);
        group_price(t, &g, g.members[0].recompute, &prices[s]);
        part_need(t, &g, &g.members[0].tensor, false, &need);
        tails[s].forward_s = 0;
        if (g.count > 1 && g.layers)
            tails[s].forward_s =
                2 * (g.count - 1) * ((double)need.shared_gradients / g.count / g.bytes_per_s + g.latency_s);
        for (uint32_t i = 0; i < g.count; i++)
            step_s = fmax(step_s, tensor_step_seconds(t->p, g.members[i].device, &g.share[i],
                                                      g.stage->block_begin, g.stage->block_end));
        latency = fmax(latency, g.latency_s);
        if (s + 1 < t->c->stage_count) {
            double busy, whole = link_seconds(t, s, &busy);
            latency = fmax(latency, whole - busy);
        }
    }
    bench->spent += 5;
    if (chain_run(bench, &units, prices, t->units) < 0)
        return bench->err->code == ERR_NOMEM ? -1 : 0;
    for (uint32_t s = 0; s < t->c->stage_count; s++)
        end = fmax(end, bench->ends[s] + tails[s].forward_s);
    t->c->estimate_s = end + step_s + 4 * floor(log2(t->c->member_count)) * latency;
    return 1;
}

/* --- dividing matrices --- */

/* A member's memory as a linear function of its parts: fixed + heads · its share of heads + … */
struct need_line {
    double fixed, heads, columns, vocabulary;
};

static struct need_line need_line(const struct tensor_case *t, const struct tensor_group *g, bool again,
                                  uint64_t live, uint64_t partials)
{
    const struct model_config *c = t->p->workload->config;
    const struct plan_tensor least = {0, 1, 0, 1, 0, 1};
    struct plan_tensor parts[4] = {least, least, least, least};
    double bytes[4];
    parts[1].kv_head_end = c->kv_heads;
    parts[2].column_end = c->ffn;
    parts[3].vocabulary_end = c->vocab;
    for (int i = 0; i < 4; i++) {
        struct tensor_need need;
        part_need(t, g, &parts[i], again, &need);
        bytes[i] = (double)tensor_need_total(&need, live, partials);
    }
    return (struct need_line){bytes[0], bytes[1] - bytes[0], bytes[2] - bytes[0], bytes[3] - bytes[0]};
}

/* Rounds shares to whole units, at least one each. False if there are too few units. */
static bool rounded(const double *share, uint32_t count, uint32_t units, uint32_t *end)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t before = i ? end[i - 1] : 0, after = count - i - 1;
        sum += share[i];
        double at = fmax(round(sum * units), before + 1.0);
        end[i] = after ? (uint32_t)fmin(at, (double)units - after) : units;
        if (end[i] <= before)
            return false;
    }
    return true;
}

/* Divides a group's matrices for members that have `room` bytes and should keep about `part` of
 * everything. */
static bool parts_deal(const struct tensor_case *t, struct tensor_group *g, bool again,
                       const struct need_line *need, const double *room, const double *part)
{
    const struct model_config *c = t->p->workload->config;
    double base[GROUP_MAX] = {0}, each[GROUP_MAX] = {0}, cap[GROUP_MAX] = {0}, share[GROUP_MAX];
    uint32_t heads[GROUP_MAX], ends[2][GROUP_MAX], n = g->count;
    for (uint32_t i = 0; i < n; i++) {
        base[i] = 0;
        each[i] = 1 / part[i];
        cap[i] = fmin(1, need->heads > 0 ? room[i] / need->heads : 1);
    }
    if (!fill_whole(n, c->kv_heads, 1, base, each, cap, heads))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        g->share[i].heads = (double)heads[i] / c->kv_heads;
        double left = room[i] - need->heads * g->share[i].heads - need->columns * part[i];
        cap[i] = need->vocabulary > 0 ? left / need->vocabulary - 1.0 / c->vocab : 1;
        cap[i] = fmax(1.0 / c->vocab, fmin(1, cap[i]));
    }
    if (!fill_level(n, base, each, cap, share) || !rounded(share, n, c->vocab, ends[1]))
        return false;
    for (uint32_t i = 0; i < n; i++) { /* columns are fine enough to correct the rounding of heads */
        double part_s[2][PARTS];
        g->share[i].vocabulary = share[i];
        g->share[i].columns = 0;
        for (int back = 0; back < 2; back++)
            member_seconds(t, g, i, back, again, part_s[back]);
        double second = part_s[0][PART_SECOND] + part_s[1][PART_SECOND];
        base[i] = g->layers * second;
        for (int back = 0; back < 2 && t->together > 1; back++)
            base[i] += g->layers * part_s[back][PART_FIRST] + (g->embedding ? part_s[back][PART_TABLE] : 0) +
                       (g->head ? part_s[back][PART_TOP] : 0);
        each[i] = g->layers *
                      (whole_seconds(g, i, COST_LAYER, false, again) +
                       whole_seconds(g, i, COST_LAYER, true, again)) *
                      (1 - t->attention) -
                  g->layers * second;
        if (!g->layers)
            each[i] = 1 / part[i];
        double left = room[i] - need->heads * g->share[i].heads - need->vocabulary * share[i];
        cap[i] = need->columns > 0 ? left / need->columns - 1.0 / c->ffn : 1;
        cap[i] = fmax(1.0 / c->ffn, fmin(1, cap[i]));
    }
    if (!fill_level(n, base, each, cap, share) || !rounded(share, n, c->ffn, ends[0]))
        return false;
    for (uint32_t i = 0, head = 0; i < n; head += heads[i++]) {
        g->members[i].tensor = (struct plan_tensor){
            head, head + heads[i], i ? ends[0][i - 1] : 0, ends[0][i], i ? ends[1][i - 1] : 0, ends[1][i]};
        g->share[i] = tensor_shares(t->p, &g->members[i].tensor);
    }
    return true;
}

/* Writes the part of everything that a member should keep: by speed (mix 0), by room, or between them. */
static void parts_aim(const struct tensor_group *g, const double *room, int mix, double *part)
{
    double speed = 0, space = 0, by_space = (double)mix / (MIXES - 1);
    for (uint32_t i = 0; i < g->count; i++) {
        part[i] = 1 / fmax(1e-12, whole_seconds(g, i, COST_LAYER, false, false) +
                                      whole_seconds(g, i, COST_LAYER, true, false));
        speed += part[i];
        space += fmax(room[i], 1);
    }
    for (uint32_t i = 0; i < g->count; i++)
        part[i] = part[i] / speed * (1 - by_space) + fmax(room[i], 1) / space * by_space;
}

/* --- windows and alternatives --- */

struct stage_choice { /* one way for a stage to work */
    bool again;
    uint32_t window, spare; /* spare: units that fit in the ring in front of it */
    double busy_s, period_s;
    struct plan_tensor part[GROUP_MAX];
};

/* What the following stages require of a stage. */
struct stage_behind {
    double period_s, stay_s;
    uint32_t window;    /* of the next stage */
    uint32_t ring_most; /* most units of the ring between the two, limited by the next stage's memory */
};

static uint64_t live_of(const struct tensor_case *t, uint32_t window)
{
    uint64_t live = (uint64_t)window * t->together;
    return live < t->micro_batches ? live : t->micro_batches;
}

/* Buffers of a boundary tensor's size, with the shortest ring in front of the stage. */
static uint64_t partials_of(const struct tensor_case *t, uint32_t s, uint32_t window,
                            const struct stage_behind *b)
{
    uint64_t count = 4 * (uint64_t)t->together + (s > 0 ? 2 * live_of(t, 2) : 0);
    bool last = s + 1 == t->c->stage_count;
    return last ? count : count + live_of(t, 2) + live_of(t, tensor_ring(window, b->window));
}

/* The most units in flight, up to `most`, for which all members have memory with the given parts; 0: none.
 * *spare: units that then fit in the ring in front. */
static uint32_t window_held(const struct tensor_case *t, const struct tensor_group *g, bool again,
                            uint32_t most, const struct stage_behind *b, uint32_t *spare)
{
    uint32_t window = most;
    for (int pass = 0; pass < 2; pass++) { /* the second pass has the window that all members hold */
        *spare = UINT32_MAX / 2;
        for (uint32_t i = 0; i < g->count && window > 0; i++) {
            struct tensor_need need;
            uint64_t limit = problem_limit(t->p, g->members[i].device), total = 0;
            part_need(t, g, &g->members[i].tensor, again, &need);
            for (; window > 0; window--) {
                total = tensor_need_total(&need, live_of(t, window), partials_of(t, g->s, window, b));
                if (total <= limit)
                    break;
            }
            uint64_t ring = window ? (limit - total) / (need.partial_bytes * t->together) + 2 : 0;
            *spare = ring < *spare ? (uint32_t)ring : *spare;
        }
    }
    return window;
}

/* Divides for a window and keeps the result if its period is the shortest so far: a unit stays for R
 * seconds and w units are in flight, so the period is at least R / w. */
static void way_try(const struct tensor_case *t, struct tensor_group *g, struct stage_choice *now,
                    uint32_t most, int mix, const struct stage_behind *b, struct stage_choice *best)
{
    struct need_line need =
        need_line(t, g, now->again, live_of(t, now->window), partials_of(t, g->s, now->window, b));
    double room[GROUP_MAX], part[GROUP_MAX];
    struct stage_price price;
    for (uint32_t i = 0; i < g->count; i++)
        room[i] = (double)problem_limit(t->p, g->members[i].device) - need.fixed;
    parts_aim(g, room, mix, part);
    now->period_s = INFINITY;
    if (!parts_deal(t, g, now->again, &need, room, part))
        return;
    now->window = window_held(t, g, now->again, most, b, &now->spare);
    if (now->window == 0)
        return;
    group_price(t, g, now->again, &price);
    now->busy_s = price.forward_s + price.backward_s;
    now->period_s = fmax(fmax(now->busy_s, b->period_s), (now->busy_s + b->stay_s) / now->window);
    if (now->period_s >= best->period_s)
        return;
    for (uint32_t i = 0; i < g->count; i++)
        now->part[i] = g->members[i].tensor;
    *best = *now;
}

/* Finds the best way for a stage to have up to `most` units in flight; its period is INFINITY if memory
 * holds none. The first way that does not wait for its window ends the search. */
static void way_find(const struct tensor_case *t, struct tensor_group *g, uint32_t most,
                     const struct stage_behind *b, struct stage_choice *best)
{
    for (int again = 0; again < 2; again++) {
        for (int mix = 0; mix < MIXES && micro_recompute_allowed(t->p, again); mix++) {
            struct stage_choice now = {.again = again, .window = 0};
            for (uint32_t window = most; window > 0; window /= 2) {
                now.window = window;
                way_try(t, g, &now, most, mix, b, best);
                if (now.period_s <= fmax(b->period_s, now.busy_s) && mix == 0 && now.window == window)
                    return;
            }
        }
    }
}

/* Bytes that all members of a stage lack together, however they divide it. */
static uint64_t stage_lacks(const struct tensor_case *t, const struct tensor_group *g,
                            const struct stage_behind *b, uint64_t *has)
{
    bool again = micro_recompute_allowed(t->p, true);
    struct need_line need = need_line(t, g, again, live_of(t, 1), partials_of(t, g->s, 1, b));
    double needs = g->count * need.fixed + need.heads + need.columns + need.vocabulary, room = 0;
    for (uint32_t i = 0; i < g->count; i++)
        room += (double)problem_limit(t->p, g->members[i].device);
    *has += (uint64_t)room;
    return needs > room ? (uint64_t)(needs - room) : 1;
}

static void way_take(const struct tensor_case *t, const struct tensor_group *g,
                     const struct stage_choice *way, struct stage_behind *b)
{
    for (uint32_t i = 0; i < g->count; i++) {
        struct member *x = &g->members[i];
        *x = (struct member){.device = x->device,
                             .rows = t->c->micro_batch_rows,
                             .window = way->window,
                             .recompute = way->again,
                             .state_share = 1,
                             .tensor = way->part[i]};
    }
    /* A stage never has more units in flight than the stage before it. */
    for (uint32_t m = g->stage->member_first + g->count; m < t->c->member_count; m++)
        t->c->members[m].window =
            t->c->members[m].window < way->window ? t->c->members[m].window : way->window;
    b->period_s = fmax(b->period_s, way->period_s);
    b->stay_s = fmax(way->busy_s + b->stay_s, (way->window - 1) * b->period_s + way->busy_s);
    b->window = way->window;
    b->ring_most = way->spare;
}

/* The least possible period: with unlimited memory. */
static double period_least(const struct tensor_case *t)
{
    const struct need_line nothing = {0};
    double period = 0, busy, room[GROUP_MAX] = {0}, part[GROUP_MAX];
    for (uint32_t s = 0; s < t->c->stage_count; s++) {
        struct tensor_group g;
        struct stage_price price;
        bool again = !micro_recompute_allowed(t->p, false);
        group_init(t, s, &g);
        parts_aim(&g, room, 0, part);
        if (!parts_deal(t, &g, again, &nothing, room, part))
            return INFINITY;
        group_price(t, &g, again, &price);
        period = fmax(period, price.forward_s + price.backward_s);
        if (s > 0) {
            link_seconds(t, s - 1, &busy);
            period = fmax(period, busy);
        }
    }
    return period;
}

/* Settles everything but the estimate, from the last stage to the first, because a stage needs the windows
 * behind it. */
static int cut_settle(const struct tensor_case *t)
{
    struct stage_behind b = {.period_s = period_least(t), .window = 1, .ring_most = 2};
    uint64_t has = 0, lacks = 0;
    if (!isfinite(b.period_s))
        return 0;
    for (uint32_t s = t->c->stage_count; s-- > 0;) {
        struct tensor_group g;
        struct stage_choice way = {.period_s = INFINITY};
        double busy, wanted = fmax(b.window, ceil((1 - 1e-9) * (b.period_s + b.stay_s) / b.period_s));
        if (s + 1 < t->c->stage_count)
            wanted = fmin(wanted + WINDOW_MORE, (double)b.window + b.ring_most - 1);
        group_init(t, s, &g);
        way_find(t, &g, (uint32_t)fmin(wanted, t->units), &b, &way);
        if (!isfinite(way.period_s))
            lacks += stage_lacks(t, &g, &b, &has);
        else
            way_take(t, &g, &way, &b);
        b.stay_s += s > 0 ? 2 * link_seconds(t, s - 1, &busy) : 0;
    }
    if (lacks)
        shortage_note(&t->bench->shortage[PLACE_TENSOR], UINT32_MAX, has + lacks, has);
    return lacks == 0;
}

/* Orders a group's members by machine, so that its ring enters each machine once. */
static void ring_order(const struct problem *p, struct member *members, uint32_t count)
{
    const struct planner_device *devices = p->cluster->devices;
    for (uint32_t i = 1; i < count; i++) {
        uint32_t at = i, device = members[i].device;
        for (; at > 0 && devices[members[at - 1].device].node > devices[device].node; at--)
            members[at].device = members[at - 1].device;
        members[at].device = device;
    }
}

/* --- the row of the table --- */

/* True if the groups can be cut at all. A trained, tied embedding must be cut equally on its owner and on
 * its copy. */
static bool shape_fits(const struct problem *p, const struct candidate *c)
{
    bool group = false;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        group |= c->stages[s].member_count > 1;
        if (c->stages[s].member_count > GROUP_MAX ||
            c->stages[s].member_count > p->workload->config->kv_heads)
            return false;
    }
    return group && (c->stage_count == 1 || p->workload->method != METHOD_FULL || !p->blocks.tied);
}

static struct cut_stage stage_look(struct workbench *bench, struct candidate *c, uint32_t s, int32_t begin,
                                   int32_t end, uint32_t window)
{
    const struct stage_behind nothing = {.window = 1, .ring_most = 2};
    struct candidate_stage *x = &c->stages[s], kept = *x;
    struct stage_choice way = {.period_s = INFINITY};
    struct tensor_group g;
    struct tensor_case t;
    if (x->member_count > bench->problem->workload->config->kv_heads)
        return (struct cut_stage){INFINITY, INFINITY};
    x->block_begin = begin;
    x->block_end = end;
    cut_init(&t, bench, c);
    group_init(&t, s, &g);
    way_find(&t, &g, window < t.units ? window : t.units, &nothing, &way);
    bench->spent += 5 * x->member_count;
    *x = kept;
    return isfinite(way.period_s) ? (struct cut_stage){way.busy_s, way.busy_s}
                                  : (struct cut_stage){INFINITY, INFINITY};
}

static int tensor_settle(struct workbench *bench, struct candidate *c)
{
    uint32_t count = micro_count(bench->problem, c->micro_batch_rows), best = 0;
    double least = INFINITY;
    struct tensor_case t;
    c->placement = PLACE_TENSOR;
    c->schedule = SCHEDULE_1F1B;
    c->estimate_s = INFINITY;
    if (!shape_fits(bench->problem, c))
        return 0;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        c->stages[s].kind = STAGE_TENSOR;
        ring_order(bench->problem, &c->members[c->stages[s].member_first], c->stages[s].member_count);
    }
    count = count < TURNS_MAX ? count : TURNS_MAX;
    for (uint32_t turns = 1, last = 0; last < count; last = turns, turns *= 2) {
        c->together = turns = turns < count ? turns : count;
        cut_init(&t, bench, c);
        int fits = cut_settle(&t);
        if (fits > 0)
            fits = cut_estimate(&t);
        if (fits < 0)
            return -1;
        if (fits == 0 || (turns > 2 && c->estimate_s >= least))
            break;
        best = c->estimate_s < least ? turns : best;
        least = fmin(least, c->estimate_s);
    }
    if (best && best != c->together) {
        c->together = best;
        cut_init(&t, bench, c);
        cut_settle(&t); /* restores the members */
    }
    c->estimate_s = least;
    return best > 0;
}

static int tensor_estimate(struct workbench *bench, struct candidate *c)
{
    struct tensor_case t;
    uint64_t has = 0, lacks = 0;
    c->estimate_s = INFINITY;
    if (!shape_fits(bench->problem, c))
        return 0;
    cut_init(&t, bench, c);
    for (uint32_t s = 0; s < c->stage_count; s++) {
        struct tensor_group g;
        group_init(&t, s, &g);
        for (uint32_t i = 0; i < g.count; i++) {
            struct tensor_need need;
            uint64_t limit = problem_limit(t.p, g.members[i].device);
            part_need(&t, &g, &g.members[i].tensor, g.members[i].recompute, &need);
            uint64_t total = tensor_need_total(&need, live_of(&t, g.members[i].window),
                                               tensor_partials(c, s, t.micro_batches));
            has += limit;
            lacks += total > limit ? total - limit : 0;
        }
    }
    if (lacks)
        shortage_note(&bench->shortage[PLACE_TENSOR], UINT32_MAX, has + lacks, has);
    return lacks ? 0 : cut_estimate(&t);
}

static bool tensor_supports(const struct problem *p, struct err *err)
{
    uint32_t usable = problem_usable_count(p);
    if (p->workload->config->experts > 0)
        err_set(err, ERR_UNSUPPORTED, "experts are not cut into matrices");
    else if (p->workload->config->kv_heads < 2)
        err_set(err, ERR_UNSUPPORTED, "matrices are cut between key heads, and the model has one");
    else if (usable < 2)
        err_set(err, ERR_NOFIT, "cut matrices take 2 devices at least; %u can be used", usable);
    else
        return true;
    return false;
}

/* The worker does not run halves of blocks. */
static bool tensor_runnable(const struct problem *p, const struct candidate *c)
{
    (void)p;
    (void)c;
    return false;
}

/* The number of micro-batches in turns, read from the rings of the buffers between the halves of a block. */
static uint32_t together_of(const struct plan_rank *rank)
{
    uint32_t least = 0;
    for (uint32_t s = 0; s < rank->slot_count; s++) {
        uint32_t ring = rank->slots[s].ring_micro_batches;
        if (rank->slots[s].kind == SLOT_PARTIAL && (least == 0 || ring < least))
            least = ring;
    }
    return least ? least : 1;
}

static int tensor_from_plan(const struct problem *p, const struct plan *plan, struct candidate *c,
                            struct err *err)
{
    if (candidate_reserve(c, plan->rank_count, plan->rank_count, err) < 0)
        return -1;
    c->placement = plan->placement;
    c->micro_batch_rows = plan->micro_batch_start[1];
    c->member_count = plan->rank_count;
    c->stage_count = 0;
    c->together = together_of(&plan->ranks[0]);
    c->estimate_s = plan->costs.step_s;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct plan_rank *rank = &plan->ranks[r];
        uint32_t device = cluster_device_find(p->cluster, rank->device);
        if (r > 0 && rank->stage == plan->ranks[r - 1].stage)
            c->stages[c->stage_count - 1].member_count++;
        else
            c->stages[c->stage_count++] =
                (struct candidate_stage){rank->block_begin, rank->block_end, STAGE_TENSOR, r, 1};
        if (device == UINT32_MAX || rank->stage + 1 != (int32_t)c->stage_count)
            return err_set(err, ERR_INVALID, "its rank %u on %s is not where its stage %d should be", r,
                           rank->device, rank->stage);
        c->members[r] = (struct member){.device = device,
                                        .rows = c->micro_batch_rows,
                                        .state_share = 1,
                                        .window = (rank->window + c->together - 1) / c->together,
                                        .recompute = rank->recompute,
                                        .tensor = rank->tensor};
    }
    return 0;
}

const struct placement_kind kind_tensor = {.placement = PLACE_TENSOR,
                                           .stage_kind = STAGE_TENSOR,
                                           .stages_least = 1,
                                           .stages_most = UINT32_MAX,
                                           .members_least = 1,
                                           .members_most = GROUP_MAX,
                                           .supports = tensor_supports,
                                           .look = stage_look,
                                           .settle = tensor_settle,
                                           .estimate = tensor_estimate,
                                           .emit = tensor_emit,
                                           .runnable = tensor_runnable,
                                           .from_plan = tensor_from_plan};
