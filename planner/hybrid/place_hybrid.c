/* hybrid: a pipeline whose stages are groups of replicas.
 *
 * Of few devices every grouping is looked at (few.h). Otherwise devices are put in a few orders and cut into
 * groups; every cut for up to HYBRID_CUTS devices, groups of whole nodes beyond; from seven on, what
 * planner/many/ makes of whole orders stands beside either. For each cut, blocks are shared out by bisection
 * over the period (a group does as many micro-batches a second as its members together, and holds what its
 * smallest member can), windows by how long a micro-batch takes to come back. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/few/few_sets.h"
#include "planner/hybrid/few.h"
#include "planner/hybrid/group.h"
#include "planner/hybrid/group_state.h"
#include "planner/hybrid/hybrid.h"
#include "planner/many/many.h"

#define HYBRID_CUTS 8u
#define HYBRID_MANY 7u     /* devices from which arranging many is tried */
#define HYBRID_SHARDS 256u /* in full fine-tuning up to which: 1,000 take a minute */
#define HYBRID_SMALL 16u   /* devices up to which arranging many is not all that is tried */
#define CUTOFF 1.12        /* estimates this much above the best one are not looked into */
#define EVEN_ROUNDS 400u
#define WINDOW_SLACK                                                                                         \
    1.4 /* members of a group are done at uneven times: what a period of means hides is not enough */

static int32_t block_begin(const struct hybrid *h, uint32_t s)
{
    return s ? h->end[s - 1] : 0;
}

static double member_seconds(const struct hybrid *h, uint32_t d, int32_t begin, int32_t end, bool recompute)
{
    return micro_forward(h->p, &h->cost[d], begin, end) +
           micro_backward(h->p, &h->cost[d], begin, end, recompute);
}

/* Seconds a micro-batch of the group together; *slowest: of its slowest member alone. */
static double group_seconds(const struct hybrid *h, uint32_t s, int32_t begin, int32_t end, bool recompute,
                            double *slowest)
{
    double rate = 0;
    *slowest = 0;
    for (uint32_t d = h->first[s]; d < h->first[s + 1]; d++) {
        double each = member_seconds(h, d, begin, end, recompute);
        rate += each > 0 ? 1 / each : 0;
        *slowest = each > *slowest ? each : *slowest;
    }
    return rate > 0 ? 1 / rate : 0;
}

/* Does every member of the group hold the blocks with `window` micro-batches of the step in flight, and, in
 * full fine-tuning, all together their state? */
static bool group_fits(const struct hybrid *h, uint32_t s, int32_t begin, int32_t end, uint32_t window,
                       bool recompute)
{
    double slowest, together = group_seconds(h, s, begin, end, recompute, &slowest), room = 0;
    uint32_t members = h->first[s + 1] - h->first[s];
    bool shards = h->p->workload->method == METHOD_FULL && members > 1;
    for (uint32_t d = h->first[s]; d < h->first[s + 1]; d++) {
        double share = together / member_seconds(h, d, begin, end, recompute);
        uint32_t local = (uint32_t)ceil(window * share) + 2 * (members > 1);
        struct memory_need need;
        struct group_stage m = {.block_begin = begin,
                                .block_end = end,
                                .members = members,
                                .window = local < window ? local : window,
                                .micro_batch_rows = h->rows,
                                .recompute = recompute,
                                .boundary_buffers = 6 * ((uint32_t)(s > 0) + (s + 1 < h->stages))};
        uint64_t limit = h->p->cluster->devices[h->device[d]].memory_limit_bytes;
        group_need(h->p, &m, shards ? 0 : 1, &need);
        room += need.total < limit ? (double)(limit - need.total) : 0;
        if (need.total > limit)
            return false;
    }
    return !shards || room >= group_state_bytes(h->p, begin, end);
}

static uint32_t window_least(const struct hybrid *h, uint32_t s)
{
    return h->first[s + 1] - h->first[s] + h->stages - s - 1;
}

/* Most blocks from `begin` on, the head not among them, that every member holds. */
static int32_t capacity_of(struct hybrid *h, uint32_t s)
{
    int32_t begin = s ? 1 : 0, low = 0, high = h->p->block_count - 1 - begin;
    while (low < high) {
        int32_t middle = (low + high + 1) / 2;
        bool fits = false;
        for (int again = 0; again < 2 && !fits; again++)
            fits = micro_recompute_allowed(h->p, again) &&
                   group_fits(h, s, begin, begin + middle, window_least(h, s), again);
        if (fits)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Blocks from the front at a period; returns whether all are covered. */
static bool fill(struct hybrid *h, double period)
{
    bool recompute = !micro_recompute_allowed(h->p, false);
    for (uint32_t s = 0; s < h->stages; s++) {
        int32_t begin = block_begin(h, s), last = h->p->block_count - (int32_t)(h->stages - s - 1);
        int32_t low = begin + 1, high = begin + h->capacity[s] < last ? begin + h->capacity[s] : last;
        double slowest;
        if (s + 1 == h->stages)
            high = last;
        if (low > high)
            return false;
        while (low < high) {
            int32_t middle = (low + high + 1) / 2;
            if (group_seconds(h, s, begin, middle, recompute, &slowest) <= period)
                low = middle;
            else
                high = middle - 1;
        }
        h->end[s] = low;
    }
    return h->end[h->stages - 1] == h->p->block_count;
}

/* Which stages must recompute; false when even that does not fit. */
static bool recompute_choose(struct hybrid *h)
{
    for (uint32_t s = 0; s < h->stages; s++) {
        bool fits = false;
        for (int again = 0; again < 2 && !fits; again++) {
            h->recompute[s] = again;
            fits = micro_recompute_allowed(h->p, again) &&
                   group_fits(h, s, block_begin(h, s), h->end[s], window_least(h, s), again);
        }
        if (!fits)
            return false;
    }
    return true;
}

static double link_seconds(const struct hybrid *h, uint32_t s)
{
    double worst = 0, bytes = h->p->bytes_per_token * h->p->mean_step.tokens / h->micro_batches;
    for (uint32_t a = h->first[s]; a < h->first[s + 1]; a++) {
        for (uint32_t b = h->first[s + 1]; b < h->first[s + 2]; b++) {
            double latency, rate;
            bool emulated;
            cluster_link(h->p->cluster, h->device[a], h->device[b], &latency, &rate, &emulated);
            worst = fmax(worst, latency + bytes / rate);
        }
    }
    return worst;
}

static double sync_seconds(const struct hybrid *h, uint32_t s)
{
    uint32_t count = h->first[s + 1] - h->first[s];
    double bytes = 0, worst = 0, delay = 0;
    if (h->p->workload->method == METHOD_FULL)
        return group_state_sync(h->p, &h->device[h->first[s]], count, block_begin(h, s), h->end[s]);
    for (int32_t b = block_begin(h, s); b < h->end[s]; b++)
        bytes += 4 * (double)h->p->blocks.blocks[b].lora_params;
    for (uint32_t i = 0; i < count && count > 1; i++) {
        double latency, rate;
        bool emulated;
        cluster_link(h->p->cluster, h->device[h->first[s] + i], h->device[h->first[s] + (i + 1) % count],
                     &latency, &rate, &emulated);
        worst = fmax(worst, 1 / rate);
        delay = fmax(delay, latency);
    }
    return 2 * bytes * worst + 2 * (count - 1) * delay;
}

/* The largest window for which the stage fits; 0: none. */
static uint32_t window_most(const struct hybrid *h, uint32_t s)
{
    uint32_t low = 0, high = h->micro_batches;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (group_fits(h, s, block_begin(h, s), h->end[s], middle, h->recompute[s]))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Windows from the tail, as far as memory has room; returns the estimate of a step, INFINITY when there is
 * none. Windows fall towards the tail, so what memory allows a stage also bounds all later ones. */
static double settle(struct hybrid *h)
{
    double period = 0, once = 0, sync = 0, back = 0, slowest;
    uint32_t most = h->micro_batches;
    for (uint32_t s = 0; s < h->stages; s++) {
        period = fmax(period, group_seconds(h, s, block_begin(h, s), h->end[s], h->recompute[s], &slowest));
        once += slowest + (s + 1 < h->stages ? 2 * link_seconds(h, s) : 0);
        sync = fmax(sync, sync_seconds(h, s));
        uint32_t here = window_most(h, s);
        most = here < most ? here : most;
        h->window[s] = most;
    }
    if (most == 0)
        return INFINITY;
    double steady = period;
    for (uint32_t s = h->stages; s-- > 0;) {
        uint32_t least = s + 1 < h->stages ? h->window[s + 1] : 0;
        group_seconds(h, s, block_begin(h, s), h->end[s], h->recompute[s], &slowest);
        back += slowest + (s + 1 < h->stages ? 2 * link_seconds(h, s) : 0);
        double wanted =
            fmax(ceil(WINDOW_SLACK * back / period - 1e-9), least + (h->first[s + 1] - h->first[s]));
        if (wanted < h->window[s])
            h->window[s] = (uint32_t)wanted;
        steady = fmax(steady, back / h->window[s]);
    }
    return (h->micro_batches - 1) * steady + once + sync;
}

static int hybrid_add(struct hybrid *h, double estimate, struct err *err)
{
    struct place_stage stages[HYBRID_STAGES_MAX];
    struct place_member *members = calloc(h->device_count, sizeof(*members));
    if (!members)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t s = 0; s < h->stages; s++) {
        int32_t begin = block_begin(h, s);
        double slowest, together = group_seconds(h, s, begin, h->end[s], h->recompute[s], &slowest);
        stages[s] = (struct place_stage){.block_begin = begin,
                                         .block_end = h->end[s],
                                         .member_first = h->first[s],
                                         .member_count = h->first[s + 1] - h->first[s]};
        for (uint32_t d = h->first[s]; d < h->first[s + 1]; d++) {
            double share = together / member_seconds(h, d, begin, h->end[s], h->recompute[s]);
            uint32_t count = (uint32_t)lround(share * 1000);
            members[d] = (struct place_member){.device = h->device[d],
                                               .micro_rows = h->rows,
                                               .micro_count = count ? count : 1,
                                               .state_share = 1,
                                               .window = h->window[s],
                                               .recompute = h->recompute[s]};
        }
    }
    struct place_choice choice = {.placement = PLACE_HYBRID,
                                  .micro_batch_rows = h->rows,
                                  .stage_count = h->stages,
                                  .member_count = h->device_count,
                                  .stages = stages,
                                  .members = members,
                                  .estimate_s = estimate};
    int result = choice_list_add(h->list, &choice, err);
    free(members);
    return result;
}

/* Moves single blocks from the slowest stage to a neighbour while the slower of the two gets faster. */
static void even_out(struct hybrid *h)
{
    double slowest;
    for (uint32_t round = 0; round < EVEN_ROUNDS; round++) {
        uint32_t worst = 0;
        double most = -1;
        bool moved = false;
        for (uint32_t s = 0; s < h->stages; s++) {
            double each = group_seconds(h, s, block_begin(h, s), h->end[s], h->recompute[s], &slowest);
            if (each > most) {
                most = each;
                worst = s;
            }
        }
        for (int side = 0; side < 2 && !moved && h->end[worst] - block_begin(h, worst) > 1; side++) {
            uint32_t other = side ? worst + 1 : worst - 1, cut = side ? worst : worst - 1;
            if ((side == 0 && worst == 0) || other >= h->stages)
                continue;
            int32_t old = h->end[cut];
            h->end[cut] += side ? -1 : 1;
            double theirs =
                group_seconds(h, other, block_begin(h, other), h->end[other], h->recompute[other], &slowest);
            moved = theirs < most * (1 - 1e-9) && group_fits(h, other, block_begin(h, other), h->end[other],
                                                             window_least(h, other), h->recompute[other]);
            if (!moved)
                h->end[cut] = old;
        }
        if (!moved)
            return;
    }
}

int hybrid_finish(struct hybrid *h, struct err *err)
{
    double limit = h->list->count ? h->list->choices[0].estimate_s * CUTOFF : INFINITY;
    if (!recompute_choose(h))
        return 0;
    even_out(h);
    if (!recompute_choose(h))
        return 0;
    double estimate = settle(h);
    return estimate < limit ? hybrid_add(h, estimate, err) : 0;
}

/* One cut of the devices into groups at one micro-batch size. */
static int hybrid_try(struct hybrid *h, struct err *err)
{
    double low = 0, high = 0, rate = 0, slowest;
    double limit = h->list->count ? h->list->choices[0].estimate_s * CUTOFF : INFINITY;
    bool recompute = !micro_recompute_allowed(h->p, false);
    if (h->list->evaluations >= h->list->evaluations_max || (int32_t)h->stages > h->p->block_count)
        return 0;
    for (uint32_t s = 0; s < h->stages; s++) {
        double each = group_seconds(h, s, 0, h->p->block_count, recompute, &slowest);
        high = fmax(high, each);
        rate += 1 / each;
    }
    if (h->micro_batches / rate > limit)
        return 0;
    h->list->evaluations++;
    for (uint32_t s = 0; s < h->stages; s++)
        h->capacity[s] = capacity_of(h, s);
    if (!fill(h, high))
        return 0;
    for (int turn = 0; turn < 24; turn++) {
        double middle = (low + high) / 2;
        if (fill(h, middle))
            high = middle;
        else
            low = middle;
    }
    fill(h, high);
    double estimate = recompute_choose(h) ? settle(h) : INFINITY;
    return estimate < limit ? hybrid_add(h, estimate, err) : 0;
}

/* Every cut of the devices in this order into 2 or more groups, at least one of them of several. */
static int cuts_try(struct hybrid *h, struct err *err)
{
    for (uint32_t mask = 1; mask < 1u << (h->device_count - 1); mask++) {
        h->stages = 0;
        h->first[0] = 0;
        for (uint32_t d = 1; d <= h->device_count && h->stages < HYBRID_STAGES_MAX; d++) {
            if (d == h->device_count || (mask >> (d - 1) & 1))
                h->first[++h->stages] = d;
        }
        bool asked = h->p->workload->stages == 0 || h->p->workload->stages == h->stages;
        if (h->stages >= 2 && h->stages < h->device_count && h->first[h->stages] == h->device_count &&
            asked && hybrid_try(h, err) < 0)
            return -1;
    }
    return 0;
}

/* More devices: a group a node. */
static int nodes_try(struct hybrid *h, struct err *err)
{
    h->stages = 0;
    h->first[0] = 0;
    for (uint32_t d = 1; d <= h->device_count; d++) {
        const struct device *devices = h->p->cluster->devices;
        if (d < h->device_count && devices[h->device[d]].node == devices[h->device[d - 1]].node)
            continue;
        if (h->stages == HYBRID_STAGES_MAX)
            return 0;
        h->first[++h->stages] = d;
    }
    return h->stages >= 2 ? hybrid_try(h, err) : 0;
}

struct ranked {
    uint32_t device, node;
    double seconds;
    uint64_t memory;
};

static int by_node(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;
    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    return a->device < b->device ? -1 : a->device > b->device;
}

static int by_memory(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;
    return a->memory != b->memory ? (a->memory > b->memory ? -1 : 1) : by_node(left, right);
}

static int by_speed(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;
    return a->seconds != b->seconds ? (a->seconds < b->seconds ? -1 : 1) : by_node(left, right);
}

static int order_try(struct hybrid *h, struct ranked *ranked, uint32_t count, struct err *err)
{
    uint32_t sizes[MICRO_SIZES_MAX], size_count = micro_sizes(h->p, sizes);
    int (*const orders[])(const void *, const void *) = {by_node, by_memory, by_speed};
    for (size_t o = 0; o < sizeof(orders) / sizeof(orders[0]); o++) {
        qsort(ranked, count, sizeof(*ranked), orders[o]);
        for (int turn = 0; turn < 2;
             turn++) { /* also from the other end: the head is heavy, the tail's window small */
            for (uint32_t i = 0; i < size_count; i++) {
                h->rows = sizes[i];
                h->micro_batches = micro_count(h->p, sizes[i]);
                h->device_count = count;
                for (uint32_t d = 0; d < count; d++) {
                    h->device[d] = ranked[turn ? count - 1 - d : d].device;
                    micro_cost_init(&h->cost[d], h->p, h->device[d], sizes[i]);
                }
                int result = count <= HYBRID_CUTS ? cuts_try(h, err) : nodes_try(h, err);
                if (result == 0 && count > HYBRID_CUTS)
                    result = hybrid_dynamic(h, err);
                if (result < 0)
                    return -1;
            }
        }
    }
    return 0;
}

static int hybrid_propose(const struct problem *p, struct choice_list *list, struct err *err)
{
    struct hybrid *h = calloc(1, sizeof(*h));
    struct ranked *ranked = calloc((size_t)p->device_count + 1, sizeof(*ranked));
    uint32_t count = 0;
    int result = h && ranked ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t d = 0; d < p->device_count && result == 0 && count < HYBRID_DEVICES_MAX; d++) {
        if (!p->usable[d])
            continue;
        const struct device *device = &p->cluster->devices[d];
        ranked[count++] =
            (struct ranked){.device = d,
                            .node = device->node,
                            .memory = device->memory_limit_bytes,
                            .seconds = problem_seconds(p, d, 0, p->block_count, COST_FORWARD, &p->mean_row)};
    }
    bool many = count >= HYBRID_MANY && p->workload->stages == 0 &&
                (p->workload->method == METHOD_LORA || count <= HYBRID_SHARDS);
    bool is_long = !few_worth(p, count);
    bool cuts = count <= HYBRID_CUTS; /* every one is looked at first, whatever the others promise */
    bool shards =
        p->workload->method == METHOD_FULL && count >= HYBRID_MANY;       /* dear to price, nothing gained */
    if (result == 0 && !shards && !(many && (is_long || list->must_use))) /* those are tried beside a plan */
        result = few_propose(p, list, err);
    bool few = list->count > 0;
    if (result == 0 && many && !(cuts && !few))
        result = many_propose(p, 0, list, err);
    if (result == 0 && count >= 3 && (!few || p->workload->method == METHOD_FULL) &&
        !(many && count > HYBRID_SMALL)) {
        h->p = p;
        h->list = list;
        result = order_try(h, ranked, count, err);
    }
    if (result == 0 && many && cuts && !few)
        result = many_propose(p, 0, list, err);
    free(h);
    free(ranked);
    return result;
}

static bool hybrid_supports(const struct problem *problem, struct err *err)
{
    return placement_stages(problem, 2, 0, err) &&
           placement_devices(problem, 3, "groups of replicas in a pipeline take", err);
}

/* Workers of this release keep whole stages: no shards. */
static bool hybrid_runnable(const struct problem *problem, const struct place_choice *choice)
{
    (void)choice;
    return problem->workload->method == METHOD_LORA;
}

const struct placement place_hybrid = {.kind = PLACE_HYBRID,
                                       .supports = hybrid_supports,
                                       .propose = hybrid_propose,
                                       .emit = group_emit,
                                       .runnable = hybrid_runnable};
