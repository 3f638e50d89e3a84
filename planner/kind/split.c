/* The exact split of rows, generalised from Cephalo's dynamic programming (docs/PLANNER.md, Search 1). The
 * least time is bisected over the options' seconds. For each time, a table over the number of rows assigned
 * so far has the most bytes that are left for state. Only numbers that the previous members can reach and the
 * following members can complete to the batch are computed; near the least time these are few. If memory is
 * plenty, a greedy split proves a time feasible, and the table is made only at the end. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/kind/split.h"

#define COARSE_TURNS 14 /* bisections by ratio, after which few options' times are left to list */

struct row_range { /* how many rows the first members may have together */
    uint32_t least, most;
};

struct split_offer { /* the most bytes that a member leaves free with that many rows, among its options
                        that are fast enough */
    uint32_t total;
    double room;
};

struct split {
    const struct split_member *members;
    uint32_t count, batch;
    double state;
    /* [(count + 1) · (batch + 1)]: the most bytes left free by the first m members with j rows together;
     * whole numbers far below 2^53; −INFINITY: impossible */
    double *table;
    struct row_range *within;   /* [count + 1]: the numbers of rows that the first m members can have
                                   together; `table` has values only for these numbers */
    uint32_t *first;            /* [count + 1] index of each member's first offer */
    struct split_offer *offers; /* offers of all members, each sorted by total */
    double *times;
};

/* Lists every member's options that take at most `seconds`, the one with most bytes free of each number of
 * rows. False if a member has none. */
static bool offers_fill(struct split *s, double seconds)
{
    uint32_t count = 0;
    bool all = true;
    for (uint32_t m = 0; m < s->count; m++) {
        const struct split_member *member = &s->members[m];
        s->first[m] = count;
        for (uint32_t i = 0; i < member->option_count; i++) {
            const struct split_option *o = &member->options[i];
            double room = (double)o->room;
            if (!(o->seconds <= seconds) || o->total > s->batch)
                continue;
            if (count > s->first[m] && s->offers[count - 1].total == o->total) {
                s->offers[count - 1].room =
                    room > s->offers[count - 1].room ? room : s->offers[count - 1].room;
                continue;
            }
            s->offers[count++] = (struct split_offer){o->total, room};
        }
        all = all && count > s->first[m];
    }
    s->first[s->count] = count;
    return all;
}

/* Sets s->within: the range of rows for each number of members that can still lead to the whole batch. False
 * if no choice adds up to the batch, or all members leave less than s->state free. */
static bool reach_find(struct split *s)
{
    uint64_t least = 0, most = 0, least_left = 0, most_left = 0;
    double room = 0;
    for (uint32_t m = 0; m < s->count; m++) {
        double best = -INFINITY;
        for (uint32_t i = s->first[m]; i < s->first[m + 1]; i++)
            best = s->offers[i].room > best ? s->offers[i].room : best;
        least_left += s->offers[s->first[m]].total;
        most_left += s->offers[s->first[m + 1] - 1].total;
        room += best;
    }
    if (least_left > s->batch || most_left < s->batch || room < s->state)
        return false;
    s->within[0] = (struct row_range){0, 0};
    for (uint32_t m = 0; m < s->count; m++) {
        uint32_t lowest = s->offers[s->first[m]].total, highest = s->offers[s->first[m + 1] - 1].total;
        least += lowest;
        most += highest;
        least_left -= lowest;
        most_left -= highest;
        uint64_t from = most_left < s->batch && s->batch - most_left > least ? s->batch - most_left : least;
        uint64_t to = most < s->batch - least_left ? most : s->batch - least_left;
        s->within[m + 1] = (struct row_range){(uint32_t)from, (uint32_t)to};
    }
    return true;
}

/* A greedy test: each member takes its option with most rows; member by member, smaller options remove the
 * excess over the batch. True if the result has exactly the batch and room for the state. */
static bool any_split(const struct split *s)
{
    uint64_t over = 0;
    double room = 0;
    for (uint32_t m = 0; m < s->count; m++)
        over += s->offers[s->first[m + 1] - 1].total;
    over -= s->batch;
    for (uint32_t m = 0; m < s->count; m++) {
        uint32_t at = s->first[m + 1] - 1, most = s->offers[at].total;
        while (at > s->first[m] && most - s->offers[at - 1].total <= over)
            at--;
        over -= most - s->offers[at].total;
        room += s->offers[at].room;
    }
    return over == 0 && room >= s->state;
}

/* Applies one offer: to[j + total] = max(to[j + total], from[j] + room), inside both ranges. */
static void offer_add(const double *restrict from, double *restrict to, struct row_range before,
                      struct row_range after, const struct split_offer *offer)
{
    uint32_t total = offer->total, begin = after.least > total ? after.least - total : 0;
    double room = offer->room;
    if (after.most < total)
        return;
    begin = before.least > begin ? before.least : begin;
    uint32_t end = before.most < after.most - total ? before.most : after.most - total;
    from += begin;
    to += begin + total;
    for (int64_t j = 0, count = (int64_t)end - begin + 1; j < count; j++) {
        double sum = from[j] + room;
        to[j] = sum > to[j] ? sum : to[j];
    }
}

/* Fills the table and returns the most bytes that all members leave free with the whole batch; −INFINITY if
 * there is no split. */
static double room_most(struct split *s)
{
    size_t width = (size_t)s->batch + 1;
    s->table[0] = 0;
    for (uint32_t m = 0; m < s->count; m++) {
        double *from = &s->table[m * width], *to = from + width;
        for (uint32_t j = s->within[m + 1].least; j <= s->within[m + 1].most; j++)
            to[j] = -INFINITY;
        for (uint32_t i = s->first[m]; i < s->first[m + 1]; i++)
            offer_add(from, to, s->within[m], s->within[m + 1], &s->offers[i]);
    }
    return s->table[s->count * width + s->batch];
}

static bool feasible(struct split *s, double seconds)
{
    return offers_fill(s, seconds) && reach_find(s) && (any_split(s) || room_most(s) >= s->state);
}

static int split_number_compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

/* Returns the shortest feasible time among the options', in seconds, or −1. */
static double split_least_time(struct split *s)
{
    double low = 0, high = 0;
    for (uint32_t m = 0; m < s->count; m++) {
        double least = INFINITY;
        for (uint32_t i = 0; i < s->members[m].option_count; i++) {
            least = fmin(least, s->members[m].options[i].seconds);
            high = fmax(high, s->members[m].options[i].seconds);
        }
        low = fmax(low, least);
    }
    if (!(low <= high) || !feasible(s, high))
        return -1;
    if (feasible(s, low))
        return low;
    for (int turn = 0; turn < COARSE_TURNS; turn++) {
        /* Bisects the times by ratio, because they range from one row's seconds to the whole batch's. */
        double middle = low > 0 ? sqrt(low * high) : (low + high) / 2;
        if (feasible(s, middle))
            high = middle;
        else
            low = middle;
    }
    uint32_t count = 0;
    for (uint32_t m = 0; m < s->count; m++) {
        for (uint32_t i = 0; i < s->members[m].option_count; i++) {
            double seconds = s->members[m].options[i].seconds;
            if (seconds > low && seconds <= high)
                s->times[count++] = seconds;
        }
    }
    qsort(s->times, count, sizeof(*s->times), split_number_compare);
    /* The answer is in [from, to], and times[to] is feasible. */
    uint32_t from = 0, to = count ? count - 1 : 0;
    while (from < to) {
        uint32_t middle = (from + to) / 2;
        if (feasible(s, s->times[middle]))
            to = middle;
        else
            from = middle + 1;
    }
    return count ? s->times[to] : high;
}

/* Follows the table back to one option per member that takes at most `seconds`; of several with equal free
 * bytes, the fastest. */
static void trace_back(const struct split *s, double seconds, struct split_option *chosen)
{
    uint32_t width = s->batch + 1, left = s->batch;
    for (uint32_t m = s->count; m-- > 0;) {
        const double *from = &s->table[(size_t)m * width];
        double wanted = s->table[(size_t)(m + 1) * width + left];
        const struct split_option *best = NULL;
        for (uint32_t i = 0; i < s->members[m].option_count; i++) {
            const struct split_option *o = &s->members[m].options[i];
            if (o->seconds > seconds || o->total > left || left - o->total < s->within[m].least ||
                left - o->total > s->within[m].most || from[left - o->total] + (double)o->room != wanted)
                continue;
            if (!best || o->seconds < best->seconds)
                best = o;
        }
        if (!best) /* cannot happen: the table was made of these options */
            return;
        chosen[m] = *best;
        left -= best->total;
    }
}

int split_solve(const struct split_member *members, uint32_t count, uint32_t batch, int64_t state,
                struct split_option *chosen, struct err *err)
{
    struct split s = {.members = members, .count = count, .batch = batch, .state = (double)state};
    size_t options = 0, size = ((size_t)count + 1) * ((size_t)batch + 1);
    for (uint32_t m = 0; m < count; m++) {
        if (members[m].option_count == 0)
            return 0;
        options += members[m].option_count;
    }
    s.table = malloc(size * sizeof(*s.table));
    s.times = malloc((options + 1) * sizeof(*s.times));
    s.offers = malloc((options + 1) * sizeof(*s.offers));
    s.within = malloc(((size_t)count + 1) * sizeof(*s.within));
    s.first = malloc(((size_t)count + 1) * sizeof(*s.first));
    bool room = s.table && s.times && s.offers && s.within && s.first;
    int result = room ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    double best = result == 0 ? split_least_time(&s) : -1;
    if (result == 0 && best >= 0) {
        offers_fill(&s, best);
        reach_find(&s);
        room_most(&s);
        trace_back(&s, best, chosen);
        result = 1;
    }
    free(s.table);
    free(s.times);
    free(s.offers);
    free(s.within);
    free(s.first);
    return result;
}
