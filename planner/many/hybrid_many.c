/* Grouping many devices: for a period, the most blocks that the first i devices can cover when each group of
 * neighbours takes what its speed and its smallest memory allow; the least period that covers all blocks.
 *
 * A balanced pipeline keeps a micro-batch for as long as all later devices need at one period each, so a
 * member of a group of k at place i of N holds about (N − i)/k micro-batches: that bounds memory before the
 * stages are known. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/hybrid/hybrid.h"

#define GROUP_MAX 8u
#define PERIOD_TURNS 22
#define UNLIKE_MAX                                                                                           \
    1.5 /* fastest over slowest of a group: dealing to very unlike members makes their neighbours wait */

struct dynamic {
    struct hybrid *h;
    double *rate[2];      /* [devices]: blocks a second, plain and with recomputation */
    int32_t *capacity[2]; /* [devices · GROUP_MAX]: blocks that a group from i of k holds */
    int32_t *best;        /* [devices + 1] */
    uint32_t *from;       /* [devices + 1]: where the last group begins; itself − 1 with skip */
    bool *skip;
};

static int32_t capacity_search(const struct dynamic *d, uint32_t i, uint32_t k, bool recompute)
{
    const struct hybrid *h = d->h;
    uint32_t window =
        (h->device_count - i) * 4 / (3 * k) + 2; /* a third more: fast members hold more than their part */
    uint64_t limit = UINT64_MAX;
    int32_t low = 0, high = h->p->block_count - 2;
    window = window < h->micro_batches ? window : h->micro_batches;
    for (uint32_t m = i; m < i + k; m++) {
        uint64_t each = h->p->cluster->devices[h->device[m]].memory_limit_bytes;
        limit = each < limit ? each : limit;
    }
    while (low < high) {
        int32_t middle = (low + high + 1) / 2;
        struct memory_need need;
        bool last = i + k == h->device_count; /* with the head; the first ones with the embedding */
        struct memory_stage m = {.block_begin = last ? h->p->block_count - middle
                                                : i  ? 1
                                                     : 0,
                                 .block_end = last ? h->p->block_count : (i ? 1 : 0) + middle,
                                 .window = window,
                                 .micro_batch_rows = h->rows,
                                 .recompute = recompute,
                                 .boundary_buffers = 12,
                                 .state_share = 1,
                                 .tensor_share = 1};
        memory_stage_need(h->p, &m, &need);
        if (need.total <= limit)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static int32_t group_blocks(const struct dynamic *d, uint32_t i, uint32_t k, double period)
{
    int32_t most = 0;
    for (int way = 0; way < 2; way++) {
        double rate = 0, least = INFINITY, largest = 0;
        for (uint32_t m = i; m < i + k; m++) {
            rate += d->rate[way][m];
            least = fmin(least, d->rate[way][m]);
            largest = fmax(largest, d->rate[way][m]);
        }
        if (largest > UNLIKE_MAX * least)
            continue;
        double blocks = floor(period * rate + 1e-9);
        int32_t capacity = d->capacity[way][i * GROUP_MAX + k - 1];
        int32_t here = blocks < capacity ? (int32_t)blocks : capacity;
        most = here > most ? here : most;
    }
    return most;
}

static bool covers(struct dynamic *d, double period)
{
    uint32_t count = d->h->device_count;
    for (uint32_t i = 1; i <= count; i++)
        d->best[i] = -1;
    d->best[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (d->best[i] >= d->best[i + 1]) {
            d->best[i + 1] = d->best[i];
            d->from[i + 1] = i;
            d->skip[i + 1] = true;
        }
        for (uint32_t k = 1; k <= GROUP_MAX && i + k <= count; k++) {
            int32_t blocks = group_blocks(d, i, k, period), sum = d->best[i] + blocks;
            if (blocks > 0 && sum > d->best[i + k]) {
                d->best[i + k] = sum;
                d->from[i + k] = i;
                d->skip[i + k] = false;
            }
        }
    }
    return d->best[count] >= d->h->p->block_count;
}

/* Reads groups and blocks off the table; blocks beyond the last are taken from the later stages. */
static bool trace_back(struct dynamic *d, double period)
{
    struct hybrid *h = d->h;
    uint32_t begins[HYBRID_STAGES_MAX], ends[HYBRID_STAGES_MAX], count = 0, kept = 0;
    for (uint32_t i = h->device_count; i > 0; i = d->from[i]) {
        if (d->skip[i])
            continue;
        if (count == HYBRID_STAGES_MAX)
            return false;
        begins[count] = d->from[i];
        ends[count++] = i;
    }
    h->stages = 0;
    h->first[0] = 0;
    int32_t block = 0;
    for (uint32_t g = count; g-- > 0 && block < h->p->block_count;) {
        uint32_t k = ends[g] - begins[g];
        int32_t blocks = group_blocks(d, begins[g], k, period);
        for (uint32_t m = 0; m < k; m++) {
            h->device[kept] = h->device[begins[g] + m];
            h->cost[kept++] = h->cost[begins[g] + m];
        }
        block = block + blocks < h->p->block_count ? block + blocks : h->p->block_count;
        h->end[h->stages] = block;
        h->first[++h->stages] = kept;
    }
    h->device_count = kept;
    return block == h->p->block_count && h->stages >= 2;
}

static void rates_fill(struct dynamic *d)
{
    const struct hybrid *h = d->h;
    int32_t layer = h->p->block_count > 2 ? 1 : 0;
    for (uint32_t i = 0; i < h->device_count; i++) {
        for (int way = 0; way < 2; way++) {
            double each = micro_forward(h->p, &h->cost[i], layer, layer + 1) +
                          micro_backward(h->p, &h->cost[i], layer, layer + 1, way);
            bool allowed = micro_recompute_allowed(h->p, way);
            d->rate[way][i] = allowed && each > 0 ? 1 / each : 0;
            for (uint32_t k = 1; k <= GROUP_MAX; k++)
                d->capacity[way][i * GROUP_MAX + k - 1] =
                    allowed && i + k <= h->device_count ? capacity_search(d, i, k, way) : 0;
        }
    }
}

static int dynamic_run(struct dynamic *d, struct err *err)
{
    struct hybrid *h = d->h;
    double low = 0, high = 0, all = 0;
    for (uint32_t i = 0; i < h->device_count; i++)
        all += d->rate[0][i] > 0 ? d->rate[0][i] : d->rate[1][i];
    low = h->p->block_count / all;
    double limit = h->list->count ? h->list->choices[0].estimate_s : INFINITY;
    if (h->micro_batches * low > limit * 1.12)
        return 0;
    for (high = low * 1.05; !covers(d, high); high *= 1.3) {
        if (high > low * 1e4)
            return 0;
    }
    for (int turn = 0; turn < PERIOD_TURNS; turn++) {
        double middle = (low + high) / 2;
        if (covers(d, middle))
            high = middle;
        else
            low = middle;
    }
    covers(d, high);
    h->list->evaluations += 5;
    return trace_back(d, high) ? hybrid_finish(h, err) : 0;
}

int hybrid_dynamic(struct hybrid *h, struct err *err)
{
    size_t count = (size_t)h->device_count + 1;
    struct dynamic d = {.h = h};
    int result = 0;
    for (int way = 0; way < 2; way++) {
        d.rate[way] = calloc(count, sizeof(double));
        d.capacity[way] = calloc(count * GROUP_MAX, sizeof(int32_t));
    }
    d.best = calloc(count, sizeof(*d.best));
    d.from = calloc(count, sizeof(*d.from));
    d.skip = calloc(count, sizeof(*d.skip));
    if (!d.rate[0] || !d.rate[1] || !d.capacity[0] || !d.capacity[1] || !d.best || !d.from || !d.skip) {
        result = err_set(err, ERR_NOMEM, "planner: out of memory");
    } else {
        rates_fill(&d);
        result = dynamic_run(&d, err);
    }
    for (int way = 0; way < 2; way++) {
        free(d.rate[way]);
        free(d.capacity[way]);
    }
    free(d.best);
    free(d.from);
    free(d.skip);
    return result;
}
