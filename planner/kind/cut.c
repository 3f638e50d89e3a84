#include "planner/kind/cut.h"

#include <math.h>

#define TURNS 8u         /* of bisection at most */
#define DOUBLINGS 40u    /* of the bracket's upper end */
#define PERIOD_SAME 2e-3 /* relative: whole blocks make no finer difference */
#define NARROW 0.8       /* of a period that is to be beaten: most that beat it at all are above */

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

/* The first block that stage s can take up to `end` within the period, `stay` behind it: sought from `guess`
 * blocks. */
static int32_t begin_least(struct workbench *bench, struct candidate *c, const struct cut_rule *rule,
                           uint32_t s, int32_t end, double period, double stay, int32_t guess,
                           struct cut_stage *found)
{
    int32_t low = (int32_t)s, high = end, reach = 1; /* high: known to do, or nothing taken */
    /* its own pass is not known yet: at the period that it may take, one micro-batch more */
    uint32_t window = window_of(stay + period, period);
    int32_t at = end - guess > low ? end - guess : low;
    while (low < high) {
        at = at < low ? low : at >= high ? high - 1 : at;
        struct cut_stage x = rule->look(bench, c, s, at, end, window);
        if (x.period_s <= period) {
            high = at;
            *found = x;
            at -= reach;
        } else {
            low = at + 1;
            at = high == end ? low + (high - low) / 2 : at + reach;
        }
        reach *= 2;
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
        int32_t guess = c->stages[s].block_end - c->stages[s].block_begin;
        int32_t begin = begin_least(bench, c, rule, s, end, period, stay, guess, &x);
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
    if (bench->rival_s < INFINITY &&
        bench->rival_s > 0) { /* every micro-batch takes a period of the slowest stage */
        uint32_t together = c->together > 1 ? c->together : 1;
        double most = bench->rival_s * together / micro_count(bench->problem, c->micro_batch_rows);
        if (most <= low || !cover(bench, c, rule, most))
            return 0;
        fits = true;
        low = fmax(low, most * NARROW);
        high = most;
        if (cover(bench, c, rule, low)) {
            high = low;
            low = fmax(period_least(bench, c, rule), high * NARROW);
        }
    }
    for (uint32_t i = 0; i < DOUBLINGS && !fits; i++) {
        low = high;
        high *= i < 4 ? 1.7 : 4;
        fits = cover(bench, c, rule, high);
    }
    for (uint32_t i = 0; i < TURNS && fits && high > low * (1 + PERIOD_SAME); i++) {
        double middle = (low + high) / 2;
        if (cover(bench, c, rule, middle))
            high = middle;
        else
            low = middle;
    }
    return fits && cover(bench, c, rule, high);
}
