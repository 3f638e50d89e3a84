#include "planner/kind/cut.h"

#include <math.h>

#define TURNS 14u     /* of bisection: the period to one part in 16,000 of the first bracket */
#define DOUBLINGS 40u /* of the bracket's upper end */

static double hop_seconds(const struct workbench *bench, const struct candidate *c, uint32_t s)
{
    const struct problem *p = bench->problem;
    struct problem_link link = problem_link(p, c->members[c->stages[s].member_first].device,
                                            c->members[c->stages[s + 1].member_first].device);
    double bytes = p->bytes_per_token * p->mean_row.tokens * c->micro_batch_rows;
    return link.latency_s + bytes / link.bytes_per_s;
}

static uint32_t window_of(double stay, double period)
{
    double window = ceil(stay / period - 1e-9);
    return window < 1 ? 1 : window > 1e6 ? 1000000 : (uint32_t)window;
}

/* The first block that stage s can take up to `end` within the period, `stay` behind it. */
static int32_t begin_least(struct workbench *bench, struct candidate *c, const struct cut_rule *rule,
                           uint32_t s, int32_t end, double period, double stay, struct cut_stage *found)
{
    int32_t low = (int32_t)s, high = end; /* high: known to do, or nothing taken */
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        /* its own pass is not known yet: at the period that it may take, one micro-batch more */
        struct cut_stage x = rule->look(bench, c, s, middle, end, window_of(stay + period, period));
        if (x.period_s <= period) {
            high = middle;
            *found = x;
        } else {
            low = middle + 1;
        }
    }
    return high;
}

static bool cover(struct workbench *bench, struct candidate *c, const struct cut_rule *rule, double period)
{
    int32_t end = bench->problem->block_count;
    double stay = 0;
    for (uint32_t s = c->stage_count; s-- > 0;) {
        struct cut_stage x = {0};
        if (s + 1 < c->stage_count)
            stay += 2 * hop_seconds(bench, c, s);
        int32_t begin = begin_least(bench, c, rule, s, end, period, stay, &x);
        if (begin >= end)
            return false;
        c->stages[s].block_begin = begin;
        c->stages[s].block_end = end;
        stay += x.pass_s;
        end = begin;
    }
    return end == 0;
}

/* All stages' rates together bound the period from below. */
static double period_least(struct workbench *bench, struct candidate *c, const struct cut_rule *rule)
{
    double rate = 0, slowest = 0;
    int32_t middle = bench->problem->block_count / 2;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        struct cut_stage x = rule->look(bench, c, s, middle, middle + 1, 1);
        rate += x.period_s < INFINITY ? 1 / x.period_s : 0;
        slowest = x.period_s < INFINITY && x.period_s > slowest ? x.period_s : slowest;
    }
    return rate > 0 ? bench->problem->block_count / rate / 4 : 0;
}

int cut_blocks(struct workbench *bench, struct candidate *c, const struct cut_rule *rule)
{
    double low = period_least(bench, c, rule), high = low;
    bool fits = false;
    if (low <= 0 || c->stage_count > (uint32_t)bench->problem->block_count)
        return 0;
    for (uint32_t i = 0; i < DOUBLINGS && !fits; i++) {
        low = high;
        high *= i < 4 ? 1.7 : 4;
        fits = cover(bench, c, rule, high);
    }
    for (uint32_t i = 0; i < TURNS && fits && high > low * (1 + 1e-4); i++) {
        double middle = (low + high) / 2;
        if (cover(bench, c, rule, middle))
            high = middle;
        else
            low = middle;
    }
    return fits && cover(bench, c, rule, high);
}
