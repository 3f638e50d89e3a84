/* The exact split of rows, generalised from Cephalo's (docs/PLANNER.md, Search 1): bisection over the finite
 * set of times; for each, a table over the rows given out so far holds the most room left for state. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/sharded/sharded.h"

#define COARSE_TURNS 14
#define NONE INT64_MIN

struct split {
    const struct split_member *members;
    uint32_t count, batch;
    int64_t state;
    int64_t
        *table; /* [(count + 1) · (batch + 1)]: most room with that many rows given out; NONE: cannot be */
    double *times;
    uint64_t cells; /* looked at */
};

/* Most room of all members doing the batch within `seconds` each. */
static int64_t room_at(struct split *s, double seconds)
{
    uint32_t width = s->batch + 1, reach = 0;
    for (uint32_t j = 0; j < width; j++)
        s->table[j] = j ? NONE : 0;
    for (uint32_t m = 0; m < s->count; m++) {
        const int64_t *from = &s->table[(size_t)m * width];
        int64_t *to = &s->table[(size_t)(m + 1) * width];
        const struct split_member *member = &s->members[m];
        uint32_t most = 0;
        s->cells += width;
        for (uint32_t j = 0; j < width; j++)
            to[j] = NONE;
        for (uint32_t i = 0; i < member->option_count;) {
            const struct split_option *o = &member->options[i];
            int64_t room = NONE;
            for (; i < member->option_count && member->options[i].total == o->total; i++) {
                const struct split_option *x = &member->options[i];
                room = x->seconds <= seconds && x->room > room ? x->room : room;
            }
            if (room == NONE || o->total > s->batch)
                continue;
            most = o->total;
            uint32_t end = reach < s->batch - o->total ? reach : s->batch - o->total;
            s->cells += end + 1;
            for (uint32_t j = 0; j <= end; j++) {
                int64_t sum = from[j] == NONE ? NONE : from[j] + room;
                int64_t *at = &to[j + o->total];
                *at = sum > *at ? sum : *at;
            }
        }
        reach = reach + most < s->batch ? reach + most : s->batch;
    }
    return s->table[(size_t)s->count * width + s->batch];
}

static bool feasible(struct split *s, double seconds)
{
    int64_t room = room_at(s, seconds);
    return room != NONE && room >= s->state;
}

static int number_compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

/* The least feasible of the options' own times, or −1. */
static double least_time(struct split *s)
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
        /* by ratio: options reach from one row to all of them */
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
    qsort(s->times, count, sizeof(*s->times), number_compare);
    uint32_t from = 0, to = count ? count - 1 : 0; /* the answer lies in [from, to]; the last is feasible */
    while (from < to) {
        uint32_t middle = (from + to) / 2;
        if (feasible(s, s->times[middle]))
            to = middle;
        else
            from = middle + 1;
    }
    return count ? s->times[to] : high;
}

/* Walks the table of room_at(seconds) back; of equal rooms the fastest. */
static void trace_back(const struct split *s, double seconds, struct split_option *chosen)
{
    uint32_t width = s->batch + 1, left = s->batch;
    for (uint32_t m = s->count; m-- > 0;) {
        const int64_t *from = &s->table[(size_t)m * width];
        int64_t wanted = s->table[(size_t)(m + 1) * width + left];
        const struct split_option *best = NULL;
        for (uint32_t i = 0; i < s->members[m].option_count; i++) {
            const struct split_option *o = &s->members[m].options[i];
            if (o->seconds > seconds || o->total > left || from[left - o->total] == NONE ||
                from[left - o->total] + o->room != wanted)
                continue;
            if (!best || o->seconds < best->seconds)
                best = o;
        }
        if (!best) /* cannot be: the table was made of these options */
            return;
        chosen[m] = *best;
        left -= best->total;
    }
}

int split_solve(const struct split_member *members, uint32_t count, uint32_t batch, int64_t state,
                struct split_option *chosen, double *seconds, uint64_t *cells, struct err *err)
{
    struct split s = {.members = members, .count = count, .batch = batch, .state = state};
    size_t options = 0, size = ((size_t)count + 1) * ((size_t)batch + 1);
    for (uint32_t m = 0; m < count; m++) {
        if (members[m].option_count == 0)
            return 0;
        options += members[m].option_count;
    }
    s.table = malloc(size * sizeof(*s.table));
    s.times = malloc((options + 1) * sizeof(*s.times));
    int result = s.table && s.times ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    double best = result == 0 ? least_time(&s) : -1;
    if (result == 0 && best >= 0) {
        room_at(&s, best);
        trace_back(&s, best, chosen);
        *seconds = 0;
        for (uint32_t m = 0; m < count; m++)
            *seconds = fmax(*seconds, chosen[m].seconds);
        result = 1;
    }
    if (cells)
        *cells += s.cells;
    free(s.table);
    free(s.times);
    return result;
}
