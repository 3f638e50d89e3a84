/* data with sharded state: uneven rows × uneven shards.
 *
 * For a set of devices and a number of gathered layers kept, the rows are split exactly (sharded_split.c)
 * under the estimate below; then the shards are chosen by what room is left (sharded_share.c). The estimate
 * is Cephalo's layer time with our tables: each block's forward hides the next one's gather, each block's
 * backward the next gather and the last reduction; the ring's time depends on the least share over its links,
 * so a few levels are tried: at a level each member must have room for the share that its link asks for.
 *
 * Devices are taken fastest first and left out from the slow end while that helps; a device may also keep
 * state and take no rows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/micro.h"
#include "planner/sharded.h"

#define DEVICES_MAX 256u
#define UNITS_MAX 1024u /* parts of the batch that are given out */
#define DENSE_ROWS 64u  /* micro-batches up to which every size is tried */
#define LEVELS 4u       /* of the ring's time, between the least and the most; one beyond FEW devices */
#define FEW 16u
#define WORSE_MAX 3u /* sets of devices in turn that do not help, after which no smaller one is tried */
#define ROUNDING_BYTES 8192 /* a member's needs are rounded up to granules */

struct sharded_buffers sharded_buffers(const struct problem *p, uint32_t layers)
{
    int32_t last = p->block_count - 1;
    bool full = p->workload->method == METHOD_FULL, tied = p->blocks.tied;
    struct sharded_buffers b = {.ring_end = tied ? last + 1 : last};
    uint32_t ring = (uint32_t)b.ring_end - 1;
    b.layers = layers < ring ? layers : ring;
    b.wholes = full ? (ring < 2 ? ring : 2) : 0;
    for (int32_t k = 1; k < b.ring_end; k++) {
        uint64_t weights = memory_gathered_bytes(p, k, k + 1), whole = memory_gradient_bytes(p, k, k + 1);
        b.layer_weights = weights > b.layer_weights ? weights : b.layer_weights;
        b.layer_gradients = whole > b.layer_gradients ? whole : b.layer_gradients;
    }
    for (int32_t k = 0; k <= last; k += last ? last : 1) {
        if (k == last && tied)
            break;
        uint64_t weights = memory_gathered_bytes(p, k, k + 1), whole = memory_gradient_bytes(p, k, k + 1);
        b.edge_weights = weights > b.edge_weights ? weights : b.edge_weights;
        b.edge_gradients = full && whole > b.edge_gradients ? whole : b.edge_gradients;
    }
    b.total = b.layers * b.layer_weights + b.edge_weights + b.wholes * b.layer_gradients + b.edge_gradients;
    return b;
}

double sharded_state_bytes(const struct problem *p)
{
    if (p->workload->method == METHOD_LORA)
        return (double)memory_gathered_bytes(p, 0, p->block_count);
    return memory_state_bytes(p) * (double)memory_trained(p, 0, p->block_count);
}

void sharded_need(const struct problem *p, const struct sharded_buffers *buffers, uint32_t rows,
                  uint32_t count, bool recompute, double share, struct memory_need *need)
{
    bool full = p->workload->method == METHOD_FULL;
    struct memory_stage m = {.block_end = p->block_count,
                             .window = count,
                             .micro_batch_rows = rows ? rows : 1,
                             .recompute = recompute,
                             .boundary_buffers = 4 * count,
                             .state_share = full ? share : 1,
                             .tensor_share = 1,
                             .sharded = true,
                             .frozen_share = full ? 0 : share,
                             .buffer_bytes = buffers->total};
    memory_stage_need(p, &m, need);
    if (count > 0)
        return;
    /* it computes nothing: state, and a place for what comes in from the ring */
    need->purpose[PURPOSE_ACTIVATIONS] = 0;
    need->purpose[PURPOSE_BUFFERS] = buffers->layer_gradients > buffers->edge_gradients
                                         ? buffers->layer_gradients
                                         : buffers->edge_gradients;
    need->saved_bytes = need->cache_bytes = need->total = 0;
    for (int i = 0; i < PURPOSE_COUNT; i++)
        need->total += need->purpose[i];
}

/* One device that may take part, with its options for every number of gathered layers. */
struct candidate {
    uint32_t device;
    double per_row, step_s;
    double (*seconds)[COST_CLASSES][COST_WAYS]; /* [batch + 1]: of a micro-batch of that many rows */
};

/* A block's work beside a block's transfer, as often as they come together. */
struct overlap {
    uint32_t times;
    int computes;             /* class; −1: nothing */
    int backward;             /* 0: forward */
    double gathered, reduced; /* bytes */
    uint32_t collectives;
};

struct sharded {
    const struct problem *p;
    struct choice_list *list;
    uint32_t batch, unit, candidate_count;
    struct candidate *candidates;
    uint32_t way_count;
    struct split_option *ways; /* rows × count, by total: room is minus the need */
    struct sharded_buffers buffers;
    uint32_t overlap_count;
    struct overlap *overlaps; /* 2 · blocks + 2 at most */
    /* of the set of devices looked at */
    uint32_t count;
    const struct candidate *taken[DEVICES_MAX];
    struct share_member shares[DEVICES_MAX];
    struct split_member members[DEVICES_MAX];
    struct split_option chosen[DEVICES_MAX];
    double latency_s;
};

static void overlap_add(struct sharded *s, int computes, int backward, double gathered, double reduced)
{
    uint32_t collectives = (gathered > 0) + (reduced > 0);
    for (uint32_t i = 0; i < s->overlap_count; i++) {
        struct overlap *o = &s->overlaps[i];
        if (o->computes == computes && o->backward == backward && o->gathered == gathered &&
            o->reduced == reduced) {
            o->times++;
            return;
        }
    }
    s->overlaps[s->overlap_count++] = (struct overlap){1, computes, backward, gathered, reduced, collectives};
}

/* Forward: block b beside the gather of b + 1. Backward: block b beside the reduction of b + 1 and the gather
 * of the block that takes the place of b + 1. */
static void overlaps_fill(struct sharded *s)
{
    const struct problem *p = s->p;
    int32_t last = p->block_count - 1, places = (int32_t)s->buffers.layers;
    bool full = p->workload->method == METHOD_FULL;
    s->overlap_count = 0;
    overlap_add(s, -1, 0, (double)memory_gathered_bytes(p, 0, 1), 0);
    for (int32_t b = 0; b <= last; b++)
        overlap_add(s, (int)cost_class_of(&p->blocks.blocks[b]), 0,
                    b < last ? (double)memory_gathered_bytes(p, b + 1, b + 2) : 0, 0);
    for (int32_t b = last; b >= -1; b--) {
        bool frees = b < last && b + 1 < s->buffers.ring_end && b + 1 >= 1,
             again = frees && b + 1 - places >= 1;
        overlap_add(s, b >= 0 ? (int)cost_class_of(&p->blocks.blocks[b]) : -1, 1,
                    again ? (double)memory_gathered_bytes(p, b + 1 - places, b + 2 - places) : 0,
                    full && b < last ? (double)memory_gradient_bytes(p, b + 1, b + 2) : 0);
    }
}

/* Seconds of a step for a member, the ring taking `level` seconds a byte. */
static double member_seconds(const struct sharded *s, const struct candidate *c, const struct split_option *o,
                             double level, uint32_t count)
{
    double seconds = 0, hop = (count - 1) * s->latency_s;
    for (uint32_t i = 0; i < s->overlap_count; i++) {
        const struct overlap *x = &s->overlaps[i];
        double work = 0, moves = (x->gathered + x->reduced) * level + x->collectives * hop;
        if (x->computes >= 0 && o->count > 0) {
            const double *each = c->seconds[o->rows][x->computes];
            work = x->backward ? each[COST_BACKWARD] + (o->recompute ? each[COST_RECOMPUTE] : 0)
                               : each[COST_FORWARD];
            work *= o->count;
        }
        seconds += x->times * fmax(work, moves);
    }
    return seconds;
}

static int way_compare(const void *left, const void *right)
{
    const struct split_option *a = left, *b = right;
    if (a->total != b->total)
        return a->total < b->total ? -1 : 1;
    return a->rows < b->rows ? -1 : a->rows > b->rows;
}

/* Sizes of micro-batches, in units of rows: all small ones, then as micro_sizes goes on. */
static bool size_tried(const struct sharded *s, uint32_t rows)
{
    uint32_t asked = s->p->workload->micro_batch_rows;
    if (asked)
        return rows == asked;
    if (rows <= DENSE_ROWS * s->unit || s->batch <= 2 * DENSE_ROWS * s->unit)
        return true;
    uint32_t power = 1;
    while (power * 2 <= rows)
        power *= 2;
    return rows == power || rows == power + power / 2 || rows == s->batch;
}

/* Every way to take some rows, alike for all devices but for time: rows, count, what is needed. */
static int ways_fill(struct sharded *s, struct err *err)
{
    uint32_t capacity = 0;
    s->way_count = 0;
    for (uint32_t rows = s->unit; rows <= s->batch; rows += s->unit)
        capacity += size_tried(s, rows) ? s->batch / rows : 0;
    free(s->ways);
    s->ways = calloc((size_t)capacity * 2 + 1, sizeof(*s->ways));
    if (!s->ways)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    struct memory_need need;
    sharded_need(s->p, &s->buffers, 0, 0, false, 0, &need);
    s->ways[s->way_count++] = (struct split_option){.room = -(int64_t)need.total - ROUNDING_BYTES};
    for (uint32_t rows = s->unit; rows <= s->batch; rows += s->unit) {
        for (uint32_t count = 1; size_tried(s, rows) && count <= s->batch / rows; count++) {
            for (int recompute = 0; recompute < 2; recompute++) {
                if (!micro_recompute_allowed(s->p, recompute))
                    continue;
                sharded_need(s->p, &s->buffers, rows, count, recompute, 0, &need);
                s->ways[s->way_count++] = (struct split_option){.room = -(int64_t)need.total - ROUNDING_BYTES,
                                                                .total = rows * count,
                                                                .rows = rows,
                                                                .count = count,
                                                                .recompute = recompute};
            }
        }
    }
    qsort(s->ways, s->way_count, sizeof(*s->ways), way_compare);
    return 0;
}

/* Options of every taken device at a level; false when one of them has none. */
static bool options_fill(struct sharded *s, double level, bool idle)
{
    double state = sharded_state_bytes(s->p);
    for (uint32_t m = 0; m < s->count; m++) {
        const struct candidate *c = s->taken[m];
        double floor = 1 - level * (1 + 1e-12) * s->shares[m].bytes_per_s;
        int64_t limit = (int64_t)s->p->cluster->devices[c->device].memory_limit_bytes;
        int64_t least = floor > 0 ? (int64_t)(floor * state) : 0;
        struct split_member *member = &s->members[m];
        member->option_count = 0;
        for (uint32_t i = 0; i < s->way_count; i++) {
            struct split_option o = s->ways[i];
            o.room += limit;
            if (o.room < least || (o.count == 0 && !idle))
                continue;
            o.room = o.room < (int64_t)state ? o.room : (int64_t)state;
            o.seconds = member_seconds(s, c, &o, level, s->count);
            member->options[member->option_count++] = o;
        }
        if (member->option_count == 0)
            return false;
    }
    return true;
}

/* Ring order: by node, so that each node is entered once. */
static int by_place(const void *left, const void *right, const struct cluster *cluster)
{
    const struct candidate *a = *(const struct candidate *const *)left,
                           *b = *(const struct candidate *const *)right;
    uint32_t x = cluster->devices[a->device].node, y = cluster->devices[b->device].node;
    if (x != y)
        return x < y ? -1 : 1;
    return a->device < b->device ? -1 : a->device > b->device;
}

static void ring_fill(struct sharded *s, uint32_t count)
{
    s->count = count;
    s->latency_s = 0;
    for (uint32_t i = 0; i < count; i++) { /* insertion: qsort takes no context */
        const struct candidate *c = &s->candidates[i];
        uint32_t at = i;
        while (at > 0 && by_place(&s->taken[at - 1], &c, s->p->cluster) > 0) {
            s->taken[at] = s->taken[at - 1];
            at--;
        }
        s->taken[at] = c;
    }
    for (uint32_t i = 0; i < count; i++)
        s->shares[i] = (struct share_member){.bytes_per_s = INFINITY, .step_s = s->taken[i]->step_s};
    for (uint32_t i = 0; i < count && count > 1; i++) {
        uint32_t next = (i + 1) % count;
        double latency, rate;
        bool emulated;
        cluster_link(s->p->cluster, s->taken[i]->device, s->taken[next]->device, &latency, &rate, &emulated);
        s->latency_s = fmax(s->latency_s, latency);
        s->shares[i].bytes_per_s = fmin(s->shares[i].bytes_per_s, rate);
        s->shares[next].bytes_per_s = fmin(s->shares[next].bytes_per_s, rate);
    }
}

/* Shards for the chosen rows; adds the choice. *estimate: its seconds. */
static int chosen_add(struct sharded *s, enum share_aim aim, double *estimate, struct err *err)
{
    double shares[DEVICES_MAX], state = sharded_state_bytes(s->p), level = 0, seconds = 0, update = 0;
    struct place_member members[DEVICES_MAX];
    uint32_t rows = 1;
    for (uint32_t m = 0; m < s->count; m++)
        s->shares[m].room = (double)s->chosen[m].room / state;
    if (!share_state(s->shares, s->count, aim, shares))
        return 0;
    for (uint32_t m = 0; m < s->count; m++)
        level = fmax(level, (1 - shares[m]) / s->shares[m].bytes_per_s);
    for (uint32_t m = 0; m < s->count; m++) {
        const struct split_option *o = &s->chosen[m];
        seconds = fmax(seconds, member_seconds(s, s->taken[m], o, level, s->count));
        update = fmax(update, (s->p->workload->method == METHOD_FULL ? shares[m] : 1) * s->taken[m]->step_s);
        rows = o->rows > rows ? o->rows : rows;
        members[m] = (struct place_member){.device = s->taken[m]->device,
                                           .micro_rows = o->count ? o->rows : 1,
                                           .micro_count = o->count,
                                           .state_share = shares[m],
                                           .window = o->count ? o->count : 1,
                                           .recompute = o->recompute};
    }
    *estimate = seconds + update;
    struct place_stage stage = {.block_end = s->p->block_count, .member_count = s->count};
    struct place_choice choice = {.placement = PLACE_DATA,
                                  .micro_batch_rows = rows,
                                  .stage_count = 1,
                                  .member_count = s->count,
                                  .stages = &stage,
                                  .members = members,
                                  .gathered_layers = s->buffers.layers,
                                  .estimate_s = *estimate};
    return choice_list_add(s->list, &choice, err);
}

/* One set of devices at every level. *best: the least estimate so far of this number of gathered layers. */
static int set_try(struct sharded *s, uint32_t count, double *best, struct err *err)
{
    ring_fill(s, count);
    double least = share_level_least(s->shares, count), most = 0;
    for (uint32_t m = 0; m < count; m++)
        most = fmax(most, 1 / s->shares[m].bytes_per_s);
    uint32_t levels = count > FEW ? 2 : LEVELS;
    for (uint32_t l = 0; l < levels; l++) {
        double level = least + (most - least) * l / (levels - 1), seconds, estimate;
        s->list->evaluations += 1 + (uint64_t)count * count / 16;
        if (!options_fill(s, level, count <= FEW))
            continue;
        int result = split_solve(s->members, count, s->batch, (int64_t)ceil(sharded_state_bytes(s->p)),
                                 s->chosen, &seconds, err);
        if (result < 0)
            return -1;
        for (int aim = 0; aim < SHARE_AIMS && result > 0; aim++) {
            if (chosen_add(s, (enum share_aim)aim, &estimate, err) < 0)
                return -1;
            *best = fmin(*best, estimate);
        }
        if (result > 0 && !(most > least))
            break;
    }
    return 0;
}

/* All sets with that many gathered layers kept. */
static int layers_try(struct sharded *s, uint32_t layers, struct err *err)
{
    uint32_t worse = 0, most = s->candidate_count < DEVICES_MAX ? s->candidate_count : DEVICES_MAX;
    double best = INFINITY;
    s->buffers = sharded_buffers(s->p, layers);
    overlaps_fill(s);
    if (ways_fill(s, err) < 0)
        return -1;
    for (uint32_t m = 0; m < most; m++) {
        free(s->members[m].options);
        s->members[m].options = calloc((size_t)s->way_count + 1, sizeof(*s->members[m].options));
        if (!s->members[m].options)
            return err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    for (uint32_t n = most; n >= 2 && worse<WORSE_MAX; n = n> FEW ? n - n / 8 : n - 1) {
        double before = best;
        if (s->list->evaluations >= s->list->evaluations_max)
            break;
        if (set_try(s, n, &best, err) < 0)
            return -1;
        worse = best < before || isinf(best) ? 0 : worse + 1;
    }
    return 0;
}

static int candidate_init(struct sharded *s, uint32_t device, struct candidate *c, struct err *err)
{
    const struct problem *p = s->p;
    *c = (struct candidate){
        .device = device, .per_row = INFINITY, .step_s = problem_step_seconds(p, device, 0, p->block_count)};
    c->seconds = calloc((size_t)s->batch + 1, sizeof(*c->seconds));
    if (!c->seconds)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t rows = s->unit; rows <= s->batch; rows += s->unit) {
        struct cost_load load = p->mean_row;
        struct micro_cost cost;
        if (!size_tried(s, rows))
            continue;
        load.rows *= rows;
        load.tokens *= rows;
        load.sum_sq *= rows;
        load.labelled *= rows;
        micro_cost_load(&cost, p, device, &load);
        memcpy(c->seconds[rows], cost.seconds, sizeof(cost.seconds));
        double each =
            micro_forward(p, &cost, 0, p->block_count) + micro_backward(p, &cost, 0, p->block_count, false);
        c->per_row = fmin(c->per_row, each / rows);
    }
    return 0;
}

static int candidate_faster(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    if (a->per_row != b->per_row)
        return a->per_row < b->per_row ? -1 : 1;
    return a->device < b->device ? -1 : a->device > b->device;
}

/* The least unit of rows that cuts the batch into few enough parts; 0: there is none. */
static uint32_t unit_of(uint32_t batch, uint32_t asked)
{
    for (uint32_t unit = asked ? asked : 1; unit <= batch && unit != 0; unit++) {
        if (batch % unit == 0 && batch / unit <= UNITS_MAX)
            return unit;
        if (asked)
            break;
    }
    return 0;
}

/* When nothing fitted: the largest device lacks what an even share of all would ask of it. */
static void short_note(struct sharded *s)
{
    struct memory_need need;
    double room = 0;
    uint32_t largest = s->candidates[0].device;
    const struct device *devices = s->p->cluster->devices;
    sharded_need(s->p, &s->buffers, s->unit, 1, s->p->workload->recompute != RECOMPUTE_NO, 0, &need);
    for (uint32_t i = 0; i < s->candidate_count; i++) {
        uint32_t d = s->candidates[i].device;
        room += fmax(0, (double)devices[d].memory_limit_bytes - (double)need.total);
        largest = devices[d].memory_limit_bytes > devices[largest].memory_limit_bytes ? d : largest;
    }
    uint64_t has = devices[largest].memory_limit_bytes;
    choice_list_short(s->list, largest, has + (uint64_t)fmax(1, sharded_state_bytes(s->p) - room), has);
}

int sharded_propose(const struct problem *p, struct choice_list *list, struct err *err)
{
    uint32_t batch = p->workload->batch_rows, unit = unit_of(batch, p->workload->micro_batch_rows);
    if (unit == 0 || p->workload->stages > 1)
        return 0;
    struct sharded *s = calloc(1, sizeof(*s));
    int result = s ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    if (result == 0) {
        *s = (struct sharded){.p = p, .list = list, .batch = batch, .unit = unit};
        s->candidates = calloc((size_t)p->device_count + 1, sizeof(*s->candidates));
        s->overlaps = calloc(2 * (size_t)p->block_count + 4, sizeof(*s->overlaps));
        if (!s->candidates || !s->overlaps)
            result = err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    for (uint32_t d = 0; result == 0 && d < p->device_count; d++) {
        if (p->usable[d])
            result = candidate_init(s, d, &s->candidates[s->candidate_count++], err);
    }
    if (result == 0 && s->candidate_count >= 2) {
        uint32_t ring = sharded_ring(&(struct sharded_buffers){.ring_end = p->block_count - !p->blocks.tied});
        const uint32_t layers[] = {2, ring / 2, ring};
        bool full = p->workload->method == METHOD_FULL, before = list->count > 0;
        qsort(s->candidates, s->candidate_count, sizeof(*s->candidates), candidate_faster);
        for (uint32_t i = 0; i < (full ? 3u : 1u) && result == 0; i++) {
            if (i == 0 || layers[i] > layers[i - 1])
                result = layers_try(s, layers[i], err);
        }
        if (result == 0 && list->count == 0 && !before)
            short_note(s);
    }
    for (uint32_t i = 0; s && s->candidates && i < s->candidate_count; i++)
        free(s->candidates[i].seconds);
    for (uint32_t m = 0; s && m < DEVICES_MAX; m++)
        free(s->members[m].options);
    if (s) {
        free(s->candidates);
        free(s->overlaps);
        free(s->ways);
    }
    free(s);
    return result;
}
