#include "published/cephalo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COARSE_TURNS 6

/* One way for a GPU of some kind to take `total` rows: in micro-batches of `rows`, with its time and
 * memory. */
struct option {
    double ms, gib;
    uint32_t total, rows;
};

struct solver {
    const struct cephalo_problem *p;
    uint32_t *first; /* [kinds + 1]: the options of kind k are those from first[k] up to first[k + 1] */
    struct option *options; /* sorted by kind, then by total */
    /* For each kind, at the current time limit: the possible totals, and the least memory for each total
     * [kinds · (batch + 1)]. */
    double *least;
    uint32_t *totals, *total_count; /* total_count: [kinds] */
    double *table; /* [gpus + 1][batch + 1]: least memory, GiB, with which the first g GPUs take b rows */
};

double cephalo_gpu_ms(const struct cephalo_problem *p, uint32_t kind, uint32_t count, uint32_t rows)
{
    const struct cephalo_kind *k = &p->kinds[kind];
    double factor = rows > k->even_max ? p->uneven_factor : 1;
    double gather = factor * p->gather_ms, scatter = factor * p->scatter_ms, n = count;
    double forward = n * k->forward_ms[rows];
    double backward = (n - 1) * p->accumulate_ms + n * k->backward_ms[rows];
    double first = gather > forward ? gather : forward;
    double both = gather + scatter, work = forward + backward;
    return first + (both > work ? both : work);
}

/* Lists the ways to make each total up to `most` from equal micro-batches: their rows go to rows[first[total]
 * …]. Returns the number of ways; with `rows` NULL it only counts them. */
static uint32_t ways_fill(uint32_t most, uint32_t *first, uint32_t *rows)
{
    uint32_t count = 0;
    for (uint32_t total = 1; total <= most; total++)
        first[total] = 0;
    for (uint32_t m = 1; m <= most; m++)
        for (uint32_t total = m; total <= most; total += m)
            first[total]++;
    for (uint32_t total = 1; total <= most; total++) {
        uint32_t here = first[total];
        first[total] = count;
        count += here;
    }
    for (uint32_t m = 1; rows && m <= most; m++)
        for (uint32_t total = m; total <= most; total += m)
            rows[first[total]++] = m;
    return count;
}

static int options_init(struct solver *s, struct err *err)
{
    const struct cephalo_problem *p = s->p;
    uint32_t most = p->batch - (p->gpu_count - 1), count = 0;
    uint32_t *first = calloc((size_t)most + 2, sizeof(*first));
    uint32_t ways = first ? ways_fill(most, first, NULL) : 0;
    uint32_t *rows = calloc((size_t)ways + 1, sizeof(*rows));
    s->options = calloc((size_t)ways * p->kind_count + 1, sizeof(*s->options));
    int result =
        first && rows && s->options ? 0 : err_set(err, ERR_NOMEM, "cephalo: out of memory for options");
    if (result == 0)
        ways_fill(most, first, rows); /* afterwards first[total] is the end of total's ways */
    for (uint32_t k = 0; k < p->kind_count && result == 0; k++) {
        s->first[k] = count;
        for (uint32_t total = 1, at = 0; total <= most; total++) {
            for (; at < first[total]; at++)
                if (rows[at] <= p->kinds[k].micro_max)
                    s->options[count++] = (struct option){cephalo_gpu_ms(p, k, total / rows[at], rows[at]),
                                                          p->memory_gib[rows[at]], total, rows[at]};
        }
    }
    s->first[p->kind_count] = count;
    free(first);
    free(rows);
    return result;
}

/* Drops options slower than `ms`, a time for which a plan is known. */
static void options_prune(struct solver *s, double ms)
{
    uint32_t out = 0;
    for (uint32_t k = 0; k < s->p->kind_count; k++) {
        uint32_t begin = s->first[k], end = s->first[k + 1];
        s->first[k] = out;
        for (uint32_t i = begin; i < end; i++)
            if (s->options[i].ms <= ms)
                s->options[out++] = s->options[i];
    }
    s->first[s->p->kind_count] = out;
}

/* Returns a lower bound of the time: the batch over the sum of the GPUs' best rates. */
static double time_bound(const struct solver *s)
{
    double rate = 0;
    for (uint32_t g = 0; g < s->p->gpu_count; g++) {
        uint32_t k = s->p->kind_of[g];
        double best = 0;
        for (uint32_t i = s->first[k]; i < s->first[k + 1]; i++) {
            double each = s->options[i].ms > 0 ? s->options[i].total / s->options[i].ms : INFINITY;
            best = each > best ? each : best;
        }
        rate += best;
    }
    return rate > 0 ? s->p->batch / rate : INFINITY;
}

/* Writes the possible totals of one kind at time limit `ms`, with the least memory for each. */
static void kind_options(struct solver *s, uint32_t kind, double ms)
{
    size_t base = (size_t)kind * (s->p->batch + 1);
    uint32_t count = 0;
    for (uint32_t i = s->first[kind]; i < s->first[kind + 1]; i++) {
        const struct option *o = &s->options[i];
        if (o->ms > ms)
            continue;
        if (count == 0 || o->total != s->totals[base + count - 1]) {
            s->least[base + count] = o->gib;
            s->totals[base + count++] = o->total;
        } else if (o->gib < s->least[base + count - 1]) {
            s->least[base + count - 1] = o->gib;
        }
    }
    s->total_count[kind] = count;
}

/* Computes to[i] = min(to[i], from[i] + add). */
static void least_of(double *restrict to, const double *restrict from, double add, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        double sum = from[i] + add;
        to[i] = sum < to[i] ? sum : to[i];
    }
}

/* Computes to[j + total] = min(to[j + total], from[j] + gib) for one way of a GPU to take `total` rows,
 * within both windows. */
static void way_add(double *to, const uint32_t to_window[2], const double *from,
                    const uint32_t from_window[2], uint32_t total, double gib)
{
    uint32_t begin = to_window[0] > total ? to_window[0] - total : 0;
    if (to_window[1] < total)
        return;
    begin = from_window[0] > begin ? from_window[0] : begin;
    uint32_t end = from_window[1] < to_window[1] - total ? from_window[1] : to_window[1] - total;
    if (begin <= end)
        least_of(&to[begin + total], &from[begin], gib, end - begin + 1);
}

/* Returns the least memory of all GPUs together if each takes at most `ms`; INFINITY if the batch is
 * impossible. Only totals that the previous GPUs can reach and the following ones can complete are visited;
 * near the least time these are few. */
static double memory_at(struct solver *s, double ms)
{
    const struct cephalo_problem *p = s->p;
    uint32_t width = p->batch + 1, from_window[2] = {0, 0};
    uint64_t low = 0, high = 0, low_left = 0,
             high_left = 0; /* least and most rows: of the previous GPUs, and of the following ones */
    s->table[0] = 0;
    for (uint32_t k = 0; k < p->kind_count; k++)
        kind_options(s, k, ms);
    for (uint32_t g = 0; g < p->gpu_count; g++) {
        const uint32_t *totals = &s->totals[(size_t)p->kind_of[g] * width],
                       count = s->total_count[p->kind_of[g]];
        if (count == 0)
            return INFINITY;
        low_left += totals[0];
        high_left += totals[count - 1];
    }
    for (uint32_t g = 0; g < p->gpu_count; g++) {
        double *from = &s->table[(size_t)g * width], *to = from + width;
        const uint32_t *totals = &s->totals[(size_t)p->kind_of[g] * width],
                       count = s->total_count[p->kind_of[g]];
        const double *least = &s->least[(size_t)p->kind_of[g] * width];
        low += totals[0];
        high += totals[count - 1];
        low_left -= totals[0];
        high_left -= totals[count - 1];
        if (low + low_left > p->batch || high + high_left < p->batch)
            return INFINITY;
        uint64_t begin = high_left < p->batch && p->batch - high_left > low ? p->batch - high_left : low;
        uint64_t end = high < p->batch - low_left ? high : p->batch - low_left;
        uint32_t to_window[2] = {(uint32_t)begin, (uint32_t)end};
        for (uint64_t j = begin; j <= end; j++)
            to[j] = INFINITY;
        for (uint32_t t = 0; t < count && begin <= end; t++)
            way_add(to, to_window, from, from_window, totals[t], least[t]);
        from_window[0] = to_window[0];
        from_window[1] = to_window[1];
    }
    return s->table[(size_t)p->gpu_count * width + p->batch];
}

static bool feasible_at(struct solver *s, double ms)
{
    return memory_at(s, ms) + s->p->state_gib < s->p->cap_gib;
}

static int cephalo_number_compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

/* Returns the least feasible time among the options' times, or −1. It goes up from the bound until a time is
 * feasible, halves the interval a few times, and then searches the times in the interval exactly. */
static double cephalo_least_time(struct solver *s, double *sorted)
{
    double low = time_bound(s) * (1 - 1e-9), slowest = 0, factor = 1.03;
    for (uint32_t i = 0; i < s->first[s->p->kind_count]; i++)
        slowest = s->options[i].ms > slowest ? s->options[i].ms : slowest;
    double high = low;
    for (;;) {
        high = high * factor < slowest ? high * factor : slowest;
        if (feasible_at(s, high))
            break;
        if (high >= slowest)
            return -1;
        low = high;
        factor = factor < 4 ? factor * factor : factor;
    }
    options_prune(s, high);
    for (int turn = 0; turn < COARSE_TURNS; turn++) {
        double middle = (low + high) / 2;
        if (feasible_at(s, middle))
            high = middle;
        else
            low = middle;
    }
    options_prune(s, high);
    uint32_t all = s->first[s->p->kind_count], count = 0;
    for (uint32_t i = 0; i < all; i++)
        if (s->options[i].ms > low)
            sorted[count++] = s->options[i].ms;
    qsort(sorted, count, sizeof(*sorted), cephalo_number_compare);
    uint32_t from = 0, to = count; /* the largest is feasible: no time lies between it and `high` */
    while (to - from > 1) {
        uint32_t middle = (from + to) / 2;
        if (feasible_at(s, sorted[middle - 1]))
            to = middle;
        else
            from = middle;
    }
    return count ? sorted[to - 1] : high;
}

/* Reads the plan out of the table that the last memory_at(ms) filled, from the last GPU to the first. */
static void parts_trace(struct solver *s, double ms, struct cephalo_part *parts)
{
    const struct cephalo_problem *p = s->p;
    uint32_t width = p->batch + 1, left = p->batch;
    for (uint32_t g = p->gpu_count; g-- > 0;) {
        const double *from = &s->table[(size_t)g * width];
        double wanted = s->table[(size_t)(g + 1) * width + left];
        uint32_t low = g, kind = p->kind_of[g];
        const struct option *best = NULL;
        for (uint32_t i = s->first[kind]; i < s->first[kind + 1]; i++) {
            const struct option *o = &s->options[i];
            if (o->ms > ms || o->total + low > left)
                continue;
            double sum = from[left - o->total] + o->gib;
            if (sum <= wanted && (!best || o->ms < best->ms))
                best = o;
        }
        if (!best)
            return;
        parts[g] = (struct cephalo_part){.micro_rows = best->rows, .micro_count = best->total / best->rows};
        left -= best->total;
    }
}

int cephalo_solve(const struct cephalo_problem *problem, struct cephalo_part *parts, double *layer_ms,
                  struct err *err)
{
    struct solver s = {.p = problem};
    const struct cephalo_problem *p = problem;
    if (p->batch < p->gpu_count)
        return 0;
    size_t cells = ((size_t)p->gpu_count + 1) * (p->batch + 1);
    s.first = calloc((size_t)p->kind_count + 1, sizeof(*s.first));
    size_t lists = (size_t)p->kind_count * (p->batch + 1);
    s.least = calloc(lists, sizeof(*s.least));
    s.totals = calloc(lists, sizeof(*s.totals));
    s.total_count = calloc(p->kind_count, sizeof(*s.total_count));
    s.table = malloc(cells * sizeof(*s.table));
    double *sorted = NULL;
    int result = -1;
    if (!s.first || !s.least || !s.totals || !s.total_count || !s.table) {
        err_set(err, ERR_NOMEM, "cephalo: out of memory for %zu cells", cells);
        goto out;
    }
    if (options_init(&s, err) < 0)
        goto out;
    sorted = calloc((size_t)s.first[p->kind_count] + 1, sizeof(*sorted));
    if (!sorted) {
        err_set(err, ERR_NOMEM, "cephalo: out of memory");
        goto out;
    }
    for (size_t i = 0; i < cells; i++)
        s.table[i] = INFINITY;
    double best = cephalo_least_time(&s, sorted);
    if (best < 0) {
        result = 0;
        goto out;
    }
    for (size_t i = 0; i < cells; i++)
        s.table[i] = INFINITY;
    memory_at(&s, best);
    parts_trace(&s, best, parts);
    *layer_ms = 0;
    for (uint32_t g = 0; g < p->gpu_count; g++) {
        double ms = cephalo_gpu_ms(p, p->kind_of[g], parts[g].micro_count, parts[g].micro_rows);
        *layer_ms = ms > *layer_ms ? ms : *layer_ms;
    }
    result = 1;
out:
    free(s.first);
    free(s.options);
    free(s.least);
    free(s.totals);
    free(s.total_count);
    free(s.table);
    free(sorted);
    return result;
}

void cephalo_shares(const double *room, uint32_t count, double state, double *shares)
{
    double low = 0, high = 0, sum = 0;
    for (uint32_t g = 0; g < count; g++) {
        double each = room[g] > 0 ? room[g] : 0;
        high = each > high ? each : high;
        sum += each;
    }
    if (sum < state) { /* nothing fits; the shares then exceed the rooms */
        for (uint32_t g = 0; g < count; g++)
            shares[g] = sum > 0 ? (room[g] > 0 ? room[g] : 0) / sum : 1.0 / count;
        return;
    }
    for (int turn = 0; turn < 200; turn++) { /* finds the level at which the rooms together hold the state */
        double level = (low + high) / 2, held = 0;
        for (uint32_t g = 0; g < count; g++)
            held += room[g] > 0 ? (room[g] < level ? room[g] : level) : 0;
        if (held < state)
            low = level;
        else
            high = level;
    }
    double held = 0;
    for (uint32_t g = 0; g < count; g++) {
        shares[g] = room[g] > 0 ? (room[g] < high ? room[g] : high) / state : 0;
        held += shares[g];
    }
    /* The rounding error goes to shares below their room. */
    for (uint32_t g = 0; g < count && held != 1; g++) {
        if (room[g] > high || held > 1) {
            shares[g] += 1 - held;
            break;
        }
    }
}
