/* Water-filling: continuous shares by bisecting the level, whole units by the greedy rule. */
#include "planner/cost/fill.h"

#include <math.h>

/* Most steps, alternately of bisection and of secants. At worst the bisections find all digits of a
 * double; mostly a few steps are enough. */
#define FILL_TURNS_MAX 80
#define FILL_EXACT 1e-13 /* relative error at which the search ends */

static double filled(uint32_t n, const double *base, const double *each, const double *cap, double level,
                     double *x)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        double room = each[i] > 0 ? (level - base[i]) / each[i] : level >= base[i] ? cap[i] : 0;
        x[i] = room < 0 ? 0 : room < cap[i] ? room : cap[i];
        sum += x[i];
    }
    return sum;
}

bool fill_level(uint32_t n, const double *base, const double *each, const double *cap, double *x)
{
    double low = INFINITY, high = 0, held = 0;
    for (uint32_t i = 0; i < n; i++) {
        low = fmin(low, base[i]);
        high = fmax(high, base[i] + each[i]);
        held += fmax(0, fmin(cap[i], 1));
    }
    if (n == 0 || held < 1)
        return false;
    double below = filled(n, base, each, cap, low, x), above = filled(n, base, each, cap, high, x);
    high = below >= 1 ? low : high;
    for (int turn = 0; turn < FILL_TURNS_MAX && below < 1 && above > 1 + FILL_EXACT; turn++) {
        /* A secant is exact where the function is linear between the bounds. */
        double part = turn % 2 ? 0.5 : (1 - below) / (above - below);
        double middle = low + part * (high - low), now = filled(n, base, each, cap, middle, x);
        if (now >= 1) {
            high = middle;
            above = now;
        } else {
            low = middle;
            below = now;
        }
    }
    double sum = filled(n, base, each, cap, high, x);
    for (uint32_t i = 0; i < n && sum > 0; i++)
        x[i] /= sum;
    return sum > 0;
}

bool fill_whole(uint32_t n, uint32_t units, uint32_t least, const double *base, const double *each,
                const double *cap, uint32_t *count)
{
    if ((uint64_t)n * least > units)
        return false;
    for (uint32_t i = 0; i < n; i++)
        count[i] = least;
    for (uint32_t given = n * least; given < units; given++) {
        uint32_t best = n;
        double soonest = INFINITY;
        for (uint32_t i = 0; i < n; i++) {
            double end = base[i] + (count[i] + 1) * each[i] / units;
            if (count[i] + 1 <= cap[i] * units + FILL_WHOLE_SLACK && end < soonest) {
                soonest = end;
                best = i;
            }
        }
        if (best == n)
            return false;
        count[best]++;
    }
    return true;
}
