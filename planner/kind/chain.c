#include "planner/kind/chain.h"

#include <math.h>

#define SAME 1e-9 /* relative tolerance: a quotient this near to a whole number counts as whole */
/* Up to this many stages · micro-batches the whole step is list-scheduled, which takes a millisecond. */
#define WHOLE_CELLS 6000u
/* Micro-batches in flight that are added to those which hide transfers at mean times. The first and last
 * micro-batches of a step use them. (With tensor groups, see tensor.c, they shortened steps by up to 8 %.) */
#define WINDOW_MORE 2u
/* A step with more micro-batches per stage than this may be estimated in closed form: filling and draining
 * its pipeline is a small part of its time. */
#define LONG_ROUNDS 3u

static uint32_t price_at(const struct candidate *c, uint32_t s)
{
    bool own = c->stages[s].kind == STAGE_TENSOR;
    return own ? s : s / candidate_groups(c) * c->member_count + c->stages[s].member_first;
}

static uint32_t price_count(const struct candidate *c, uint32_t s)
{
    return c->stages[s].kind == STAGE_TENSOR ? 1 : c->stages[s].member_count;
}

double chain_period(const struct candidate *c, const struct stage_price *prices, uint32_t s)
{
    const struct stage_price *x = &prices[price_at(c, s)];
    double rate = 0;
    for (uint32_t m = 0; m < price_count(c, s); m++)
        rate += 1 / (x[m].forward_s + x[m].backward_s + x[m].weight_s);
    return 1 / rate;
}

/* Returns the seconds of a micro-batch's forward and backward pass in stage s: the mean over the stage's
 * members, weighted by the micro-batches each takes. */
static double stage_pass(const struct candidate *c, const struct stage_price *prices, uint32_t s)
{
    return chain_period(c, prices, s) * price_count(c, s);
}

/* Returns the seconds to send a boundary tensor (activations or their gradients) of mean size between stages
 * s and s + 1, one way: latency plus bytes over bandwidth. */
static double stage_hop(const struct problem *p, const struct candidate *c, uint32_t s)
{
    struct problem_link link = problem_link(p, c->members[c->stages[s].member_first].device,
                                            c->members[c->stages[s + 1].member_first].device);
    uint32_t together = c->together > 1 ? c->together : 1;
    double bytes = problem_boundary_bytes(p, p->mean_step.tokens, p->mean_step.rows) /
                   micro_count(p, c->micro_batch_rows) * together;
    return link.latency_s + bytes / link.bytes_per_s;
}

bool chain_windows(struct workbench *bench, const struct candidate *c, const struct stage_price *prices,
                   const struct chain_windows *rule, bool *capped)
{
    uint32_t *windows = bench->windows, count = c->stage_count;
    double *pass = bench->ends, *hop = bench->ends + count, period = 0;
    *capped = false;
    for (uint32_t s = 0; s < count; s++) {
        period = fmax(period, chain_period(c, prices, s));
        pass[s] = stage_pass(c, prices, s);
        hop[s] = s + 1 < count ? 2 * stage_hop(bench->problem, c, s) : 0;
    }
    for (uint32_t s = count; s-- > 0;) {
        double cycle = pass[s];
        uint32_t wish = s + 1 < count ? windows[s + 1] : 1;
        if (c->stages[s].member_count > 1 && c->stages[s].kind == STAGE_REPLICAS)
            wish = wish > c->stages[s].member_count ? wish : c->stages[s].member_count;
        for (uint32_t j = s + 1; j < count; j++) {
            cycle += hop[j - 1] + pass[j];
            double rounds = ceil(cycle / period * (1 - SAME)) - 1 + windows[j];
            wish = rounds > wish ? (uint32_t)fmin(rounds, 1e6) : wish;
        }
        uint32_t most = rule->most(rule->context, s, wish, windows);
        if (most == 0)
            return false;
        *capped |= most < wish;
        windows[s] = wish < most ? wish : most;
        rule->spare[s] = most - windows[s];
    }
    for (uint32_t s = 0; s < count; s++) {
        if (s + 1 < count) /* memory has room for more micro-batches in flight than the formula asks for */
            windows[s] += rule->spare[s] < rule->more ? rule->spare[s] : rule->more;
        if (s > 0 && windows[s] > windows[s - 1]) /* A window larger than the previous stage's is of no
                                                     use. */
            windows[s] = windows[s - 1];
    }
    return true;
}

/* Returns how many micro-batches stage s as a whole has in flight: the sum over its members. Members of a
 * stage of several have one less than their window, because windows_fill adds one for irregular arrivals. */
static double under_way(const struct candidate *c, uint32_t s)
{
    uint32_t count = price_count(c, s), sum = 0;
    for (uint32_t m = 0; m < count; m++)
        sum += c->members[c->stages[s].member_first + m].window;
    return count > 1 && sum > count ? sum - count : sum;
}

/* Returns the seconds that a step takes longer because too few micro-batches are in flight to hide the
 * transfers. In the strict order stage s waits for the gradients from stage j when w_s micro-batches are in
 * flight, of which w_j are in stages j and later (docs/PLANNER.md, Time). In the eager order a stage only
 * waits for its own window. */
static double stall_seconds(const struct candidate *c, const double *pass, const double *hop,
                            uint32_t micro_batches, double period)
{
    double most = 0;
    for (uint32_t s = 0; s + 1 < c->stage_count; s++) {
        double cycle = pass[s], windows = under_way(c, s), left = micro_batches - windows;
        for (uint32_t j = s + 1; j < c->stage_count && left > 0; j++) {
            cycle += hop[j - 1] + pass[j];
            double behind = c->eager ? 1 : fmin(under_way(c, j), windows);
            if (!c->eager || j + 1 == c->stage_count)
                most = fmax(most, left * (cycle / (windows - behind + 1) - period));
        }
    }
    return most;
}

double chain_closed(struct workbench *bench, const struct candidate *c, const struct stage_price *prices,
                    uint32_t micro_batches)
{
    double *ends = bench->ends, *pass = ends, *hop = ends + c->stage_count, way = 0, period = 0, before = 0;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        pass[s] = stage_pass(c, prices, s);
        hop[s] = s + 1 < c->stage_count ? 2 * stage_hop(bench->problem, c, s) : 0;
        double lanes = s + 1 < c->stage_count ? fmin(price_count(c, s), price_count(c, s + 1)) : 1;
        period = fmax(period, fmax(chain_period(c, prices, s), hop[s] / 2 / lanes));
        way += pass[s] + hop[s];
    }
    way += stall_seconds(c, pass, hop, micro_batches, period);
    for (uint32_t s = 0; s < c->stage_count; s++) {
        double own = pass[s] + hop[s];
        ends[s] = way + (micro_batches - 1) * period - before / 2;
        before += own;
    }
    bench->spent += c->stage_count * (c->stage_count + 20u) / 200;
    return ends[0];
}

int chain_run(struct workbench *bench, const struct candidate *c, const struct stage_price *prices,
              uint32_t micro_batches, double limit_s)
{
    double *ends = bench->ends;
    struct schedule *s = &bench->schedule;
    uint64_t cells = (uint64_t)c->stage_count * micro_batches;
    /* A tensor group's prices already contain that the step's last unit of micro-batches is shorter. */
    bool group = c->stages[0].kind == STAGE_TENSOR;
    bool turns = c->schedule == SCHEDULE_1F1B;
    if (turns && cells > WHOLE_CELLS && micro_batches > LONG_ROUNDS * c->stage_count) {
        chain_closed(bench, c, prices, micro_batches);
        s->ranks = 0;
        if (group || c->member_count == c->stage_count)
            return 0;
        bench->spent += cells / 20;
        return schedule_deal(s, bench->problem, c, prices, micro_batches, bench->err);
    }
    const double *scale = group ? NULL : workbench_scale(bench, c->micro_batch_rows);
    int result =
        schedule_run(s, bench->problem, c, prices, micro_batches, scale ? INFINITY : limit_s, bench->err);
    if (result == 0 && scale)
        result = schedule_follow(s, bench->problem, c, prices, scale, limit_s, bench->err);
    bench->spent += cells / 5 * (scale ? 2 : 1); /* also where ranks wait for each other */
    if (result != 0)
        return result;
    for (uint32_t g = 0; g < c->stage_count; g++) {
        const struct candidate_stage *x = &c->stages[g];
        ends[g] = 0;
        for (uint32_t m = x->member_first; m < x->member_first + x->member_count; m++)
            ends[g] = fmax(ends[g], s->rank_end[m]);
    }
    return 0;
}
