/* The placement tensor: every matrix of a layer is cut over the devices of a group; several groups form a
 * pipeline. Embedding and head are whole, on a group's first member. Heads and columns are divided by speed.
 * If memory does not hold that division with enough units in flight to hide the transfers, it counts more in
 * the division, or activations are recomputed, or fewer units are in flight: whichever gives the shortest
 * period (docs/PLANNER.md, Time). Each half of a layer (attention, FFN) waits for its slowest member and its
 * all-reduce; with two micro-batches in turns, one's all-reduce overlaps the other's computation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/fill.h"
#include "planner/cost/micro.h"
#include "planner/cost/tensor_cost.h"
#include "planner/emit/tensor.h"
#include "planner/kind/chain.h"
#include "planner/kind/tensor_group.h"

/* Units in flight that are added to those which hide transfers at mean times. The first and last units of a
 * step use them: up to 8 % of a step (16 clusters, tests/planner/test_kind_tensor.c). */
#define WINDOW_MORE 2u
#define MIXES 3 /* divisions of matrices that are tried: by speed, by memory, and between the two */

static void cut_init(struct tensor_case *t, struct workbench *bench, struct candidate *c)
{
    uint32_t count = micro_count(bench->problem, c->micro_batch_rows);
    *t = (struct tensor_case){.bench = bench, .p = bench->problem, .c = c, .micro_batches = count};
    t->together = tensor_together(c, count);
    t->units = (count + t->together - 1) / t->together;
    t->load = micro_load_mean(t->p, count);
}

/* Returns the seconds to send a unit's boundary tensors to the next stage; *busy: seconds on the link. */
static double link_seconds(const struct tensor_case *t, uint32_t s, double *busy)
{
    const struct candidate_stage *a = &t->c->stages[s], *b = &t->c->stages[s + 1];
    struct problem_link link =
        problem_link(t->p, t->c->members[a->member_first].device, t->c->members[b->member_first].device);
    *busy = tensor_token_bytes(t->p) * t->p->mean_step.tokens / t->units / link.bytes_per_s;
    return link.latency_s + *busy;
}

/* --- estimating a step --- */

static struct tensor_member tensor_member_of(const struct tensor_case *t, const struct tensor_group *g,
                                             uint32_t i, const struct plan_tensor *part)
{
    return tensor_member(t->p, g->stage->block_begin, g->stage->block_end, g->count, i, part);
}

static struct need_kept tensor_part_need(const struct tensor_case *t, const struct tensor_group *g,
                                         uint32_t i, const struct plan_tensor *part, bool again)
{
    struct tensor_member member = tensor_member_of(t, g, i, part);
    const uint64_t depends_on[] = {
        (uint64_t)member.block_begin << 32 | (uint32_t)member.block_end,
        (uint64_t)(part->kv_head_end - part->kv_head_begin) << 32 | (part->column_end - part->column_begin),
        (uint64_t)t->c->micro_batch_rows << 8 | again << 2 | member.alone << 1 | member.follows};
    uint64_t key = 0;
    for (size_t k = 0; k < sizeof(depends_on) / sizeof(*depends_on); k++)
        key = ((key ^ key >> 31) + depends_on[k]) * 0x9e3779b97f4a7c15u;
    struct need_kept *kept = need_slot(t->bench, key |= 1ull << 63); /* replicas' keys are below */
    if (kept->key != key) {
        struct tensor_need x;
        tensor_need_fill(t->p, &member, t->c->micro_batch_rows, again, &x);
        *kept = (struct need_kept){key, x.need.total, x.live_bytes, x.partial_bytes, x.shared_gradients};
    }
    return *kept;
}

static uint64_t need_total(const struct need_kept *need, uint64_t live, uint64_t partials)
{
    return need->total + live * need->live_bytes + partials * need->boundary_bytes;
}

/* Estimates a step in seconds. The list schedule takes a unit for one micro-batch, and a group for its first
 * member. The all-reduces of replicated parameters, two scalars over the tree of all ranks, and the optimiser
 * are added. A step that is certain to take limit_s or more is said to take INFINITY. */
static int cut_estimate(const struct tensor_case *t, double limit_s)
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
        struct tensor_group g;
        tensor_group_init(t, s, &g);
        tensor_group_price(t, &g, g.members[0].recompute, &prices[s]);
        struct need_kept need = tensor_part_need(t, &g, 0, &g.members[0].tensor, false);
        tails[s].forward_s = 0;
        if (g.count > 1 && g.layers)
            tails[s].forward_s = 2 * ring_pass_seconds(&g.ring, g.count, (double)need.shared_gradients);
        for (uint32_t i = 0; i < g.count; i++) {
            struct tensor_member m = tensor_member_of(t, &g, i, &g.members[i].tensor);
            step_s = fmax(step_s, tensor_step_seconds(t->p, g.members[i].device, &g.share[i], m.block_begin,
                                                      m.block_end));
        }
        latency = fmax(latency, g.ring.latency_s);
        if (s + 1 < t->c->stage_count) {
            double busy, whole = link_seconds(t, s, &busy);
            latency = fmax(latency, whole - busy);
        }
    }
    bench->spent += 5;
    int over = chain_run(bench, &units, prices, t->units, limit_s);
    if (over < 0)
        return bench->err->code == ERR_NOMEM ? -1 : 0;
    for (uint32_t s = 0; s < t->c->stage_count; s++)
        end = over ? INFINITY : fmax(end, bench->ends[s] + tails[s].forward_s);
    t->c->estimate_s = end + step_s + 4 * floor(log2(t->c->member_count)) * latency;
    return 1;
}

/* --- dividing matrices among the members --- */

/* A member's bytes as a linear function of its part: fixed + heads · share of heads + columns · share of
 * columns. first: what embedding and head need on the first member. */
struct need_line {
    double fixed, first, heads, columns;
};

static struct need_line need_line(const struct tensor_case *t, const struct tensor_group *g, bool again,
                                  uint64_t live, uint64_t partials)
{
    const struct model_config *c = t->p->workload->config;
    const struct plan_tensor least = {0, 1, 0, t->p->column_unit};
    const struct plan_tensor parts[4] = {
        least, least, {0, c->kv_heads, 0, t->p->column_unit}, {0, 1, 0, c->ffn}};
    double bytes[4];
    for (int i = 0; i < 4; i++) {
        struct need_kept need = tensor_part_need(t, g, i == 1 || g->count == 1 ? 0 : 1, &parts[i], again);
        bytes[i] = (double)need_total(&need, live, partials);
    }
    return (struct need_line){bytes[0], bytes[1] - bytes[0], bytes[2] - bytes[0], bytes[3] - bytes[0]};
}

/* Rounds shares of `units` to whole numbers, one or more each, and writes the ends of the members' ranges.
 * Returns false if there are fewer units than members. */
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

/* Divides a group's heads and columns over members that have `room` bytes and should do the fraction `part`
 * of the work. Where attention takes a larger share of a layer, a member gets more columns instead. */
static bool parts_deal(const struct tensor_case *t, struct tensor_group *g, bool again,
                       const struct need_line *need, const double *room, const double *part)
{
    const struct model_config *c = t->p->workload->config;
    double base[GROUP_MAX] = {0}, each[GROUP_MAX] = {0}, cap[GROUP_MAX] = {0}, share[GROUP_MAX];
    uint32_t heads[GROUP_MAX], ends[GROUP_MAX], n = g->count, unit = t->p->column_unit;
    for (uint32_t i = 0; i < n; i++) {
        double attention = tensor_both_ways(g, i, HALF_FIRST, again, 1),
               ffn = tensor_both_ways(g, i, HALF_SECOND, again, 1);
        base[i] = 0;
        each[i] = (attention > 0 ? attention / (attention + ffn) : 1) / part[i];
        cap[i] = fmin(1, need->heads > 0 ? room[i] / need->heads : 1);
    }
    if (!fill_whole(n, c->kv_heads, 1, base, each, cap, heads))
        return false;
    for (uint32_t i = 0; i < n; i++)
        g->share[i].heads = (double)heads[i] / c->kv_heads;
    for (uint32_t i = 0; i < n; i++) { /* columns make up for the rounding of heads */
        double part_s[2][PARTS];
        g->share[i].columns = 0;
        for (int back = 0; back < 2; back++)
            tensor_member_seconds(g, i, back, again, part_s[back]);
        double second = part_s[0][PART_SECOND] + part_s[1][PART_SECOND];
        base[i] = g->layers * second;
        for (int back = 0; back < 2 && t->together > 1; back++)
            base[i] += g->layers * part_s[back][PART_FIRST];
        each[i] = g->layers * (tensor_both_ways(g, i, HALF_SECOND, again, 1) - second);
        if (!g->layers)
            each[i] = 1 / part[i];
        double left = room[i] - need->heads * g->share[i].heads, least = (double)unit / c->ffn;
        cap[i] = need->columns > 0 ? left / need->columns - least : 1;
        cap[i] = fmax(least, fmin(1, cap[i]));
    }
    if (!fill_level(n, base, each, cap, share) || !rounded(share, n, c->ffn / unit, ends))
        return false;
    for (uint32_t i = 0, head = 0; i < n; head += heads[i++]) {
        g->members[i].tensor =
            (struct plan_tensor){head, head + heads[i], i ? unit * ends[i - 1] : 0, unit * ends[i]};
        g->share[i] = tensor_shares(t->p, &g->members[i].tensor);
    }
    return true;
}

/* Writes the fraction of heads and columns that each member should have: by speed (mix 0), by free bytes
 * (MIXES − 1), or between. */
static void parts_aim(const struct tensor_group *g, const double *room, int mix, double *part)
{
    double speed = 0, space = 0, by_space = (double)mix / (MIXES - 1);
    for (uint32_t i = 0; i < g->count; i++) {
        part[i] = 1 / fmax(1e-12, tensor_whole_seconds(g, i, COST_LAYER, false, false) +
                                      tensor_whole_seconds(g, i, COST_LAYER, true, false));
        speed += part[i];
        space += fmax(room[i], 1);
    }
    for (uint32_t i = 0; i < g->count; i++)
        part[i] = part[i] / speed * (1 - by_space) + fmax(room[i], 1) / space * by_space;
}

/* --- units in flight, with or without recomputation --- */

struct stage_choice { /* one division of a stage's matrices, with recomputation and units in flight */
    bool again;
    uint32_t window, spare; /* window: units in flight; spare: units that fit in the ring of buffers
                               between this stage and the one before */
    double busy_s, period_s;
    struct plan_tensor part[GROUP_MAX];
};

/* Facts about the stages after a stage: their longest period, and a unit's seconds there and back. */
struct stage_behind {
    double period_s, stay_s;
    uint32_t window;    /* units in flight in the next stage */
    uint32_t ring_most; /* most units that the buffers to the next stage hold */
};

static uint64_t live_of(const struct tensor_case *t, uint32_t window)
{
    uint64_t live = (uint64_t)window * t->together;
    return live < t->micro_batches ? live : t->micro_batches;
}

/* Returns the number of buffers of a boundary tensor's size that a member of stage s has, with the shortest
 * ring between the stage before and this one. */
static uint64_t partials_of(const struct tensor_case *t, uint32_t s, uint32_t window,
                            const struct stage_behind *b)
{
    uint64_t count = t->c->stages[s].member_count > 1 ? 4 * (uint64_t)t->together : 0;
    count += s > 0 ? 2 * live_of(t, 2) : 0;
    bool last = s + 1 == t->c->stage_count;
    return last ? count : count + live_of(t, 2) + live_of(t, tensor_ring(window, b->window));
}

/* Returns the most units in flight, up to `most`, that every member's memory holds with its present part of
 * the layers, or 0. Sets *spare to the number of units that then fit in the ring of boundary buffers between
 * the stage before and this one. */
static uint32_t window_held(const struct tensor_case *t, const struct tensor_group *g, bool again,
                            uint32_t most, const struct stage_behind *b, uint32_t *spare)
{
    uint32_t window = most;
    /* the first pass finds the units in flight, the second computes *spare with them for every member */
    for (int pass = 0; pass < 2; pass++) {
        *spare = UINT32_MAX / 2;
        for (uint32_t i = 0; i < g->count && window > 0; i++) {
            struct need_kept need = tensor_part_need(t, g, i, &g->members[i].tensor, again);
            uint64_t limit = problem_limit(t->p, g->members[i].device), total = 0;
            for (; window > 0; window--) {
                total = need_total(&need, live_of(t, window), partials_of(t, g->s, window, b));
                if (total <= limit)
                    break;
            }
            uint64_t ring = window ? (limit - total) / (need.boundary_bytes * t->together) + 2 : 0;
            *spare = ring < *spare ? (uint32_t)ring : *spare;
        }
    }
    return window;
}

/* Divides a group's matrices for now->window units in flight; keeps the result in *best if its period is the
 * shortest. A unit takes R seconds from this stage to the last and back, so the period is at least R /
 * window. */
static void way_try(const struct tensor_case *t, struct tensor_group *g, struct stage_choice *now,
                    uint32_t most, int mix, const struct stage_behind *b, struct stage_choice *best)
{
    struct need_line need =
        need_line(t, g, now->again, live_of(t, now->window), partials_of(t, g->s, now->window, b));
    double room[GROUP_MAX], part[GROUP_MAX];
    struct stage_price price;
    for (uint32_t i = 0; i < g->count; i++)
        room[i] = (double)problem_limit(t->p, g->members[i].device) - need.fixed - (i ? 0 : need.first);
    parts_aim(g, room, mix, part);
    now->period_s = INFINITY;
    if (!parts_deal(t, g, now->again, &need, room, part))
        return;
    now->window = window_held(t, g, now->again, most, b, &now->spare);
    if (now->window == 0)
        return;
    tensor_group_price(t, g, now->again, &price);
    now->busy_s = price.forward_s + price.backward_s;
    now->period_s = fmax(fmax(now->busy_s, b->period_s), (now->busy_s + b->stay_s) / now->window);
    if (now->period_s >= best->period_s)
        return;
    for (uint32_t i = 0; i < g->count; i++)
        now->part[i] = g->members[i].tensor;
    *best = *now;
}

/* Finds the division, recomputation and at most `most` units in flight with the shortest period; INFINITY if
 * memory holds none. The first period that is not limited by the units in flight ends the search. */
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

/* Returns the bytes that all members of a stage together lack, however its matrices are divided. Adds the
 * bytes that the members have to *has. */
static uint64_t stage_lacks(const struct tensor_case *t, const struct tensor_group *g,
                            const struct stage_behind *b, uint64_t *has)
{
    bool again = micro_recompute_allowed(t->p, true);
    struct need_line need = need_line(t, g, again, live_of(t, 1), partials_of(t, g->s, 1, b));
    double needs = g->count * need.fixed + need.first + need.heads + need.columns, room = 0;
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
    /* a stage never has more units in flight than the stage before it */
    for (uint32_t m = g->stage->member_first + g->count; m < t->c->member_count; m++)
        t->c->members[m].window =
            t->c->members[m].window < way->window ? t->c->members[m].window : way->window;
    b->period_s = fmax(b->period_s, way->period_s);
    b->stay_s = fmax(way->busy_s + b->stay_s, (way->window - 1) * b->period_s + way->busy_s);
    b->window = way->window;
    b->ring_most = way->spare;
}

/* Returns the shortest possible period in seconds if memory were unlimited. */
static double tensor_period_least(const struct tensor_case *t)
{
    const struct need_line nothing = {0};
    double period = 0, busy, room[GROUP_MAX] = {0}, part[GROUP_MAX];
    for (uint32_t s = 0; s < t->c->stage_count; s++) {
        struct tensor_group g;
        struct stage_price price;
        bool again = !micro_recompute_allowed(t->p, false);
        tensor_group_init(t, s, &g);
        parts_aim(&g, room, 0, part);
        if (!parts_deal(t, &g, again, &nothing, room, part))
            return INFINITY;
        tensor_group_price(t, &g, again, &price);
        period = fmax(period, price.forward_s + price.backward_s);
        if (s > 0) {
            link_seconds(t, s - 1, &busy);
            period = fmax(period, busy);
        }
    }
    return period;
}

/* Chooses each stage's shares of the matrices, its recomputation, and its window: the units in flight, each
 * of `together` micro-batches that take turns. Goes from the last stage to the first, because a window must
 * cover a unit's time in the later stages. */
static int cut_settle(const struct tensor_case *t)
{
    struct stage_behind b = {.period_s = tensor_period_least(t), .window = 1, .ring_most = 2};
    uint64_t has = 0, lacks = 0;
    if (!isfinite(b.period_s))
        return 0;
    for (uint32_t s = t->c->stage_count; s-- > 0;) {
        struct tensor_group g;
        struct stage_choice way = {.period_s = INFINITY};
        double busy, wanted = fmax(b.window, ceil((1 - 1e-9) * (b.period_s + b.stay_s) / b.period_s));
        if (s + 1 < t->c->stage_count)
            wanted = fmin(wanted + WINDOW_MORE, (double)b.window + b.ring_most - 1);
        tensor_group_init(t, s, &g);
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

/* Orders a group's members by machine, so that its ring enters each machine once: device `first` leads, the
 * others of its machine follow. */
static void tensor_ring_order(const struct problem *p, struct member *members, uint32_t count, uint32_t first)
{
    const struct planner_device *devices = p->cluster->devices;
    uint32_t node = devices[first].node, nodes = p->cluster->node_count;
    for (uint32_t i = 1; i < count; i++) {
        uint32_t at = i, device = members[i].device;
        for (; at > 0; at--) {
            uint32_t before = members[at - 1].device;
            uint32_t far = (devices[before].node + nodes - node) % nodes,
                     near = (devices[device].node + nodes - node) % nodes;
            if (before == first || (device != first && far <= near))
                break;
            members[at].device = before;
        }
        members[at].device = device;
    }
}

/* Returns the device of stage s that computes the head fastest, or (by_memory) has most memory. */
static uint32_t leader_of(const struct problem *p, const struct candidate *c, uint32_t s, bool by_memory)
{
    const struct candidate_stage *stage = &c->stages[s];
    double best = INFINITY;
    uint32_t leader = c->members[stage->member_first].device;
    for (uint32_t m = 0; m < stage->member_count; m++) {
        uint32_t device = c->members[stage->member_first + m].device;
        struct micro_cost cost;
        double value = -(double)problem_limit(p, device);
        micro_cost_init(&cost, p, device, c->micro_batch_rows);
        if (!by_memory)
            value = cost.seconds[COST_HEAD][COST_FORWARD] + cost.seconds[COST_HEAD][COST_BACKWARD];
        if (value >= best)
            continue;
        best = value;
        leader = device;
    }
    return leader;
}

/* --- the row of the table of placements --- */

/* True if some group has several members, each such group has a layer, and no group has more members than
 * there are key heads. A trained, tied embedding has to be on one rank, so it allows one stage only. */
static bool shape_fits(const struct problem *p, const struct candidate *c)
{
    bool group = false;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        const struct candidate_stage *x = &c->stages[s];
        int32_t first = x->block_begin > 1 ? x->block_begin : 1;
        bool layers = first < (x->block_end < p->block_count ? x->block_end : p->block_count - 1);
        group |= x->member_count > 1;
        if (x->member_count > GROUP_MAX || x->member_count > p->workload->config->kv_heads ||
            (x->member_count > 1 && !layers))
            return false;
        for (uint32_t m = 0; m < x->member_count && p->column_unit; m++)
            if (c->members[x->member_first + m].tensor.column_end % p->column_unit != 0)
                return false;
    }
    return group && p->part_columns && (c->stage_count == 1 || !memory_trains_table(p) || !p->blocks.tied);
}

static struct cut_stage tensor_stage_look(struct workbench *bench, struct candidate *c, uint32_t s,
                                          int32_t begin, int32_t end, uint32_t window, double limit_s)
{
    (void)limit_s;
    const struct stage_behind nothing = {.window = 1, .ring_most = 2};
    struct candidate_stage *x = &c->stages[s], kept = *x;
    struct stage_choice way = {.period_s = INFINITY};
    struct tensor_group g;
    struct tensor_case t;
    bool layers = (begin > 1 ? begin : 1) < (end < bench->problem->block_count ? end : end - 1);
    if (!bench->problem->part_columns || x->member_count > bench->problem->workload->config->kv_heads ||
        (x->member_count > 1 && !layers))
        return (struct cut_stage){INFINITY, INFINITY};
    x->block_begin = begin;
    x->block_end = end;
    cut_init(&t, bench, c);
    tensor_group_init(&t, s, &g);
    way_find(&t, &g, window < t.units ? window : t.units, &nothing, &way);
    bench->spent += 5 * x->member_count;
    *x = kept;
    return isfinite(way.period_s) ? (struct cut_stage){way.busy_s, way.busy_s}
                                  : (struct cut_stage){INFINITY, INFINITY};
}

/* Finds the best number of micro-batches in turns. Returns 1; 0 if memory holds none, -1 on error. */
static int turns_settle(struct workbench *bench, struct candidate *c)
{
    uint32_t count = micro_count(bench->problem, c->micro_batch_rows), best = 0;
    double least = INFINITY;
    struct tensor_case t;
    count = count < TURNS_MAX ? count : TURNS_MAX;
    for (uint32_t turns = 1, last = 0; last < count; last = turns, turns *= 2) {
        c->together = turns = turns < count ? turns : count;
        cut_init(&t, bench, c);
        int fits = cut_settle(&t);
        if (fits > 0)
            fits = cut_estimate(&t, least);
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
        cut_settle(&t); /* fills in the members for the best number of turns */
    }
    c->estimate_s = least;
    return best > 0;
}

static int tensor_settle(struct workbench *bench, struct candidate *c)
{
    int fits = 0;
    c->placement = PLACE_TENSOR;
    c->schedule = SCHEDULE_1F1B;
    c->estimate_s = INFINITY;
    for (uint32_t m = 0; m < c->member_count; m++)
        c->members[m].tensor = (struct plan_tensor){0};
    if (!shape_fits(bench->problem, c))
        return 0;
    for (int by_memory = 0; by_memory < 2 && fits == 0; by_memory++) {
        for (uint32_t s = 0; s < c->stage_count; s++) {
            struct candidate_stage *stage = &c->stages[s];
            stage->kind = STAGE_TENSOR;
            tensor_ring_order(bench->problem, &c->members[stage->member_first], stage->member_count,
                              leader_of(bench->problem, c, s, by_memory));
        }
        fits = turns_settle(bench, c);
    }
    return fits;
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
        tensor_group_init(&t, s, &g);
        for (uint32_t i = 0; i < g.count; i++) {
            struct need_kept need = tensor_part_need(&t, &g, i, &g.members[i].tensor, g.members[i].recompute);
            uint64_t limit = problem_limit(t.p, g.members[i].device);
            uint64_t total =
                need_total(&need, live_of(&t, g.members[i].window), tensor_partials(c, s, t.micro_batches));
            has += limit;
            lacks += total > limit ? total - limit : 0;
        }
    }
    if (lacks)
        shortage_note(&bench->shortage[PLACE_TENSOR], UINT32_MAX, has + lacks, has);
    return lacks ? 0 : cut_estimate(&t, bench->rival_s);
}

static bool tensor_supports(const struct problem *p, struct err *err)
{
    const char *lacks = tensor_lacks(p);
    if (lacks)
        err_set(err, ERR_UNSUPPORTED, "%s", lacks);
    return !lacks;
}

/* Returns the number of micro-batches in turns, derived from the buffers between attention and FFN. */
static uint32_t together_of(const struct plan *plan)
{
    uint32_t least = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct plan_rank *rank = &plan->ranks[r];
        for (uint32_t s = 0; s < rank->slot_count; s++) {
            uint32_t ring = rank->slots[s].ring_micro_batches;
            if (rank->slots[s].kind == SLOT_PARTIAL && (least == 0 || ring < least))
                least = ring;
        }
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
    c->together = together_of(plan);
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
                                           .devices_least = 2,
                                           .takes = "cut matrices take",
                                           .supports = tensor_supports,
                                           .look = tensor_stage_look,
                                           .settle = tensor_settle,
                                           .estimate = tensor_estimate,
                                           .emit = tensor_emit,
                                           .from_plan = tensor_from_plan};
