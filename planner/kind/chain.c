#include "planner/kind/chain.h"

#include <math.h>

#define SAME 1e-9         /* relative: quotients this near a whole number are it */
#define WHOLE_CELLS 6000u /* stages · micro-batches up to which a step is run whole: a millisecond */
#define WINDOW_MORE                                                                                          \
    2u                 /* beyond what means ask for: a step's first and last micro-batches fill these (as in \
                          tensor.c, where 16 clusters gained up to 8 %) */
#define PACE_ROUNDS 3u /* of the largest window, run before and while the pace is taken */

static uint32_t price_at(const struct candidate *c, uint32_t s)
{
    bool own = c->stages[s].kind == STAGE_TENSOR || c->stage_count > c->member_count;
    return own ? s : c->stages[s].member_first;
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

double chain_pass(const struct candidate *c, const struct stage_price *prices, uint32_t s)
{
    return chain_period(c, prices, s) * price_count(c, s);
}

double chain_hop(const struct problem *p, const struct candidate *c, uint32_t s)
{
    struct problem_link link = problem_link(p, c->members[c->stages[s].member_first].device,
                                            c->members[c->stages[s + 1].member_first].device);
    uint32_t together = c->together > 1 ? c->together : 1;
    double bytes = p->bytes_per_token * p->mean_step.tokens / micro_count(p, c->micro_batch_rows) * together;
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
        pass[s] = chain_pass(c, prices, s);
        hop[s] = s + 1 < count ? 2 * chain_hop(bench->problem, c, s) : 0;
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
        if (s + 1 < count) /* as many more as there is room for and all before have, too */
            windows[s] += rule->spare[s] < rule->more ? rule->spare[s] : rule->more;
        if (s > 0 &&
            windows[s] > windows[s - 1]) /* nobody waits for more than the stage before lets under way */
            windows[s] = windows[s - 1];
    }
    return true;
}

/* The pace of the last stage's forwards in the later part of a run: the filling is over, nothing drains yet.
 */
static double pace_of(const struct schedule *s)
{
    const double *ends = &s->forward_end[(size_t)(s->stages - 1) * s->micro_batches];
    uint32_t last = s->micro_batches - 1, middle = last - last / PACE_ROUNDS;
    double first = 0, end = 0;
    for (uint32_t k = 0; k <= last; k++) { /* of groups, micro-batches may overtake each other */
        first = k <= middle ? fmax(first, ends[k]) : first;
        end = fmax(end, ends[k]);
    }
    return (end - first) / (last - middle);
}

int chain_run(struct workbench *bench, const struct candidate *c, const struct stage_price *prices,
              uint32_t micro_batches, double *ends)
{
    struct schedule *s = &bench->schedule;
    uint32_t run = micro_batches, widest = 1;
    double more = 0;
    for (uint32_t m = 0; m < c->member_count; m++)
        widest = c->members[m].window > widest ? c->members[m].window : widest;
    for (uint32_t g = 0; g < c->stage_count; g++) {
        uint32_t all = widest * price_count(c, g);
        widest = all > widest ? all : widest;
    }
    if ((uint64_t)c->stage_count * run > WHOLE_CELLS && (uint64_t)2 * PACE_ROUNDS * widest < run)
        run = 2 * PACE_ROUNDS * widest;
    if (schedule_run(s, bench->problem, c, prices, run, bench->err) < 0)
        return -1;
    bench->spent += (uint64_t)c->stage_count * run / 5;
    const double *scale = workbench_scale(bench, c->micro_batch_rows);
    if (scale && schedule_follow(s, bench->problem, c, prices, scale, bench->err) < 0)
        return -1;
    bench->spent += scale ? (uint64_t)c->stage_count * run / 5 : 0;
    if (run < micro_batches)
        more = (micro_batches - run) * pace_of(s);
    for (uint32_t g = 0; g < c->stage_count; g++) {
        const struct stage *x = &c->stages[g];
        ends[g] = 0;
        for (uint32_t m = x->member_first; m < x->member_first + x->member_count; m++)
            ends[g] = fmax(ends[g], s->rank_end[m] + more);
    }
    return 0;
}
