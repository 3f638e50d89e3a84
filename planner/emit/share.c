/* Divides sharded state among members. Both aims (short transfers, short optimiser step) are water filling:
 * for a time limit, each member's share lies between bounds that are monotone in the limit. Bisection finds
 * the least limit at which the bounds allow a sum of 1. */
#include "planner/emit/share.h"

#include <math.h>

#define TURNS_MAX 200 /* bisections; more than the digits of a double */

/* Whether a double lies between `low` and `high`. */
static bool splittable(double low, double high)
{
    double middle = (low + high) / 2;
    return low < middle && middle < high;
}

/* Returns fmin(fmax(x, low), high) without calling these functions, which compilers do not inline. */
static double clamp(double x, double low, double high)
{
    x = x > low ? x : low;
    return x < high ? x : high;
}

static double room_of(const struct share_member *member)
{
    return member->room < 0 ? 0 : member->room > 1 ? 1 : member->room;
}

/* Returns the least share r of a member whose link passes the rest, 1 − r, within `level` seconds per byte of
 * the state. */
static double floor_at(const struct share_member *member, double level)
{
    double floor = 1 - level * member->bytes_per_s;
    return floor > 0 ? floor : 0; /* a link of infinite rate needs no share */
}

static double level_search(const struct share_member *members, uint32_t count, bool rooms)
{
    double low = 0, high = 0;
    for (uint32_t i = 0; i < count; i++)
        high = fmax(high, 1 / members[i].bytes_per_s);
    for (int turn = 0; turn < TURNS_MAX && splittable(low, high); turn++) {
        double level = (low + high) / 2, sum = 0;
        bool fits = true;
        for (uint32_t i = 0; i < count; i++) {
            double floor = floor_at(&members[i], level);
            sum += floor;
            fits = fits && (!rooms || floor <= room_of(&members[i]));
        }
        if (fits && sum <= 1)
            high = level;
        else
            low = level;
    }
    return high;
}

double share_level_least(const struct share_member *members, uint32_t count)
{
    return level_search(members, count, false);
}

/* Sets share_i = clamp(water, floor_i, room_i), with the number `water` for which the shares sum to 1. */
static void fill_evenly(const struct share_member *members, uint32_t count, double level, double *shares)
{
    double low = 0, high = 1;
    for (int turn = 0; turn < TURNS_MAX && (turn == 0 || splittable(low, high)); turn++) {
        double water = (low + high) / 2, sum = 0;
        for (uint32_t i = 0; i < count; i++) {
            shares[i] = clamp(water, floor_at(&members[i], level), room_of(&members[i]));
            sum += shares[i];
        }
        if (sum < 1)
            low = water;
        else
            high = water;
    }
}

/* Writes shares with which every link of the ring is done within `ring` seconds per byte of the state and
 * every member has room for its share. Among such shares it finds those that make the slowest member's
 * optimiser step shortest. */
static void fill_by_step(const struct share_member *members, uint32_t count, double ring, double *shares)
{
    double low = 0, high = 0;
    for (uint32_t i = 0; i < count; i++)
        high = fmax(high, members[i].step_s);
    for (int turn = 0; turn < TURNS_MAX && splittable(low, high); turn++) {
        double level = (low + high) / 2, sum = 0;
        for (uint32_t i = 0; i < count; i++) {
            double most = members[i].step_s > 0 ? level / members[i].step_s : 1;
            shares[i] = clamp(most, floor_at(&members[i], ring), room_of(&members[i]));
            sum += shares[i];
        }
        if (sum < 1)
            low = level;
        else
            high = level;
    }
    for (uint32_t i = 0; i < count; i++)
        shares[i] = clamp(members[i].step_s > 0 ? high / members[i].step_s : 1, floor_at(&members[i], ring),
                          room_of(&members[i]));
}

static double level_of(const struct share_member *members, uint32_t count, const double *shares)
{
    double level = 0;
    for (uint32_t i = 0; i < count; i++)
        level = fmax(level, (1 - shares[i]) / members[i].bytes_per_s);
    return level;
}

bool share_state(const struct share_member *members, uint32_t count, enum share_aim aim, double *shares)
{
    double all = 0, sum = 0;
    for (uint32_t i = 0; i < count; i++)
        all += room_of(&members[i]);
    if (all < 1)
        return false;
    if (aim == SHARE_FOR_LINKS)
        fill_evenly(members, count, level_search(members, count, true), shares);
    else
        fill_by_step(members, count, INFINITY, shares);
    if (aim != SHARE_FOR_LINKS && aim != SHARE_FOR_STEP) {
        double part = aim == SHARE_NEAR_LINKS ? 0.25 : aim == SHARE_HALF_WAY ? 0.5 : 0.75;
        double least = level_search(members, count, true), most = level_of(members, count, shares);
        fill_by_step(members, count, least + part * (most - least), shares);
    }
    for (uint32_t i = 0; i < count; i++)
        sum += shares[i];
    for (uint32_t i = 0; i < count && sum != 1; i++) { /* removes the bisection's remaining error */
        double more = fmax(-shares[i], fmin(1 - sum, room_of(&members[i]) - shares[i]));
        shares[i] += more;
        sum += more;
    }
    return true;
}
