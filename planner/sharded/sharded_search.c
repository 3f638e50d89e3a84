/* What layered placements share in their search: overlaps, ways to take rows, exact splits within a limit. */
#include "planner/sharded/sharded_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"

#define UNITS_MAX 1024u   /* parts of the batch that are given out */
#define DENSE_ROWS 64u    /* micro-batches up to which every size is tried */
#define EVALUATION 10000u /* cells and overlaps that take as long as evaluating one pipeline */
#define FIRST_LIMIT 1.5   /* of the least time there can be: where looking begins */

static void overlap_add(struct sharded_search *s, int computes, bool backward, double gathered,
                        double reduced)
{
    for (uint32_t i = 0; i < s->overlap_count; i++) {
        struct overlap *o = &s->overlaps[i];
        if (o->computes == computes && o->backward == backward && o->gathered == gathered &&
            o->reduced == reduced) {
            o->times++;
            return;
        }
    }
    s->overlaps[s->overlap_count++] = (struct overlap){1, computes, backward, gathered, reduced};
}

/* Forward: block b beside the gather of b + 1. Backward: block b beside the reduction of b + 1 and the gather
 * of the block that takes the place of b + 1. */
static void overlaps_fill(struct sharded_search *s)
{
    const struct problem *p = s->p;
    int32_t last = p->block_count - 1, places = (int32_t)s->buffers.layers;
    bool full = p->workload->method == METHOD_FULL;
    s->overlap_count = 0;
    overlap_add(s, -1, false, (double)memory_gathered_bytes(p, 0, 1), 0);
    for (int32_t b = 0; b <= last; b++)
        overlap_add(s, (int)cost_class_of(&p->blocks.blocks[b]), false,
                    b < last ? (double)memory_gathered_bytes(p, b + 1, b + 2) : 0, 0);
    for (int32_t b = last; b >= -1; b--) {
        bool frees = b < last && b + 1 < s->buffers.ring_end && b + 1 >= 1,
             again = frees && b + 1 - places >= 1;
        overlap_add(s, b >= 0 ? (int)cost_class_of(&p->blocks.blocks[b]) : -1, true,
                    again ? (double)memory_gathered_bytes(p, b + 1 - places, b + 2 - places) : 0,
                    full && b < last ? (double)memory_gradient_bytes(p, b + 1, b + 2) : 0);
    }
}

/* One unit of all blocks: everything comes, all is computed, everything goes. */
static void overlaps_at_once(struct sharded_search *s)
{
    const struct problem *p = s->p;
    double adapters = (double)memory_gradient_bytes(p, 0, p->block_count);
    s->overlap_count = 0;
    overlap_add(s, -1, false, adapters, 0);
    for (int32_t b = 0; b < p->block_count; b++) {
        overlap_add(s, (int)cost_class_of(&p->blocks.blocks[b]), false, 0, 0);
        overlap_add(s, (int)cost_class_of(&p->blocks.blocks[b]), true, 0, 0);
    }
    overlap_add(s, -1, true, 0, adapters);
}

static double moves_seconds(const struct overlap *x, const struct moving *moving)
{
    double in = x->gathered > 0 ? x->gathered * moving->gather_s + moving->hop_s : 0;
    double out = x->reduced > 0 ? x->reduced * moving->reduce_s + moving->hop_s : 0;
    return moving->beside ? fmax(in, out) : in + out;
}

double sharded_search_seconds(const struct sharded_search *s, const struct candidate *c,
                              const struct split_option *o, const struct moving *moving)
{
    double seconds = 0;
    for (uint32_t i = 0; i < s->overlap_count; i++) {
        const struct overlap *x = &s->overlaps[i];
        double work = 0;
        if (x->computes >= 0 && o->count > 0) {
            const double *each = c->seconds[o->rows / s->unit][x->computes];
            work = x->backward ? each[COST_BACKWARD] + (o->recompute ? each[COST_RECOMPUTE] : 0)
                               : each[COST_FORWARD];
            work *= o->count;
        }
        seconds += x->times * fmax(work, moves_seconds(x, moving));
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
static bool size_tried(const struct sharded_search *s, uint32_t rows)
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
static int ways_fill(struct sharded_search *s, sharded_need_fn *need_of, struct err *err)
{
    uint32_t capacity = 0;
    s->way_count = 0;
    for (uint32_t rows = s->unit; rows <= s->batch; rows += s->unit)
        capacity += size_tried(s, rows) ? s->batch / rows : 0;
    free(s->ways);
    free(s->first_room);
    s->first_room = NULL;
    s->ways = calloc((size_t)capacity * 2 + 1, sizeof(*s->ways));
    if (!s->ways)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    struct memory_need need;
    need_of(s, 0, 0, false, &need);
    s->ways[s->way_count++] = (struct split_option){.room = -(int64_t)need.total - SHARDED_ROUNDING_BYTES};
    for (uint32_t rows = s->unit; rows <= s->batch; rows += s->unit) {
        for (uint32_t count = 1; size_tried(s, rows) && count <= s->batch / rows; count++) {
            for (int recompute = 0; recompute < 2; recompute++) {
                if (!micro_recompute_allowed(s->p, recompute))
                    continue;
                need_of(s, rows, count, recompute, &need);
                s->ways[s->way_count++] =
                    (struct split_option){.room = -(int64_t)need.total - SHARDED_ROUNDING_BYTES,
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

/* A line below what any way needs, through the least need of one row and of all: so that what memory cannot
 * hold is seen without dealing rows. */
static void needs_bound(struct sharded_search *s)
{
    double first = INFINITY, all = INFINITY;
    for (uint32_t i = 0; i < s->way_count; i++) {
        double need = -(double)s->ways[i].room;
        first = s->ways[i].total <= s->unit ? fmin(first, need) : first;
        all = s->ways[i].total == s->batch ? fmin(all, need) : all;
    }
    s->row_need = all > first && isfinite(all) ? (all - first) / s->batch : 0;
    s->least_need = INFINITY;
    for (uint32_t i = 0; i < s->way_count; i++)
        s->least_need = fmin(s->least_need, -(double)s->ways[i].room - s->row_need * s->ways[i].total);
}

static bool memory_may_do(const struct sharded_search *s, double state)
{
    double room = -s->row_need * s->batch;
    if (s->first_room)
        return true;
    for (uint32_t m = 0; m < s->count; m++)
        room += (double)s->p->cluster->devices[s->taken[m]->device].memory_limit_bytes - s->least_need;
    return room >= state;
}

int sharded_search_layers(struct sharded_search *s, uint32_t layers, sharded_need_fn *need, struct err *err)
{
    s->buffers = sharded_buffers(s->p, layers ? layers : 1);
    if (layers)
        overlaps_fill(s);
    else
        overlaps_at_once(s);
    if (ways_fill(s, need, err) < 0)
        return -1;
    needs_bound(s);
    for (uint32_t m = 0; m < s->candidate_count && m < SHARDED_DEVICES_MAX; m++) {
        free(s->members[m].options);
        s->members[m].options = calloc((size_t)s->way_count + 1, sizeof(*s->members[m].options));
        if (!s->members[m].options)
            return err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    return 0;
}

int sharded_search_first(struct sharded_search *s, sharded_need_fn *need_of, struct err *err)
{
    s->first_room = calloc((size_t)s->way_count + 1, sizeof(*s->first_room));
    if (!s->first_room)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t i = 0; i < s->way_count; i++) {
        const struct split_option *way = &s->ways[i];
        struct memory_need need;
        need_of(s, way->rows, way->count, way->recompute, &need);
        s->first_room[i] = -(int64_t)need.total - SHARDED_ROUNDING_BYTES;
    }
    return 0;
}

/* Options of every taken device within a limit; false when one of them has none. A row takes per_row at
 * least, so ways of many rows need not be looked at. *all: none was passed over for its time. */
static bool options_fill(struct sharded_search *s, const struct moving *moving, const int64_t *least_room,
                         double state, uint32_t idle_count, double limit, bool *all)
{
    *all = true;
    for (uint32_t m = 0; m < s->count; m++) {
        const struct candidate *c = s->taken[m];
        int64_t has = (int64_t)s->p->cluster->devices[c->device].memory_limit_bytes;
        struct split_member *member = &s->members[m];
        member->option_count = 0;
        for (uint32_t i = 0; i < s->way_count; i++) {
            const struct split_option *way = &s->ways[i];
            int64_t room = has + (m == 0 && s->first_room ? s->first_room[i] : way->room);
            if (way->total * c->per_row > limit) {
                *all = false;
                break;
            }
            if (room < least_room[m] || (way->count == 0 && m >= idle_count))
                continue;
            struct split_option o = *way;
            o.room = room;
            if (o.count * c->through_s[o.rows / s->unit] * (1 - 1e-9) > limit) { /* it computes as long */
                *all = false;
                continue;
            }
            o.room = o.room < (int64_t)state ? o.room : (int64_t)ceil(state);
            o.seconds = sharded_search_seconds(s, c, &o, moving);
            if (o.seconds <= limit)
                member->options[member->option_count++] = o;
            else
                *all = false;
        }
    }
    for (uint32_t m = 0; m < s->count; m++) {
        if (s->members[m].option_count == 0)
            return false;
    }
    return true;
}

int sharded_search_split(struct sharded_search *s, const struct moving *moving, const int64_t *least_room,
                         double state, uint32_t idle_count, double limit, struct err *err)
{
    double rate = 0, least = 0, seconds;
    uint64_t work = 0;
    s->list->evaluations++;
    if (!memory_may_do(s, state))
        return 0;
    for (uint32_t m = 0; m < s->count; m++)
        rate += 1 / s->taken[m]->per_row;
    for (uint32_t i = 0; i < s->overlap_count; i++)
        least += s->overlaps[i].times * moves_seconds(&s->overlaps[i], moving);
    least = fmax(least, s->batch / rate);
    for (double within = FIRST_LIMIT * least;; within *= 2) {
        bool all, cut = within < limit;
        int result = 0;
        if (options_fill(s, moving, least_room, state, idle_count, cut ? within : limit, &all))
            result = split_solve(s->members, s->count, s->batch, (int64_t)ceil(state), s->chosen, &seconds,
                                 &work, err);
        for (uint32_t m = 0; m < s->count; m++)
            work += (uint64_t)s->members[m].option_count * s->overlap_count + s->way_count;
        s->list->evaluations += work / EVALUATION;
        work = 0;
        if (result != 0 || all || !cut)
            return result;
    }
}

static int candidate_init(struct sharded_search *s, uint32_t device, struct candidate *c, struct err *err)
{
    const struct problem *p = s->p;
    *c = (struct candidate){
        .device = device, .per_row = INFINITY, .step_s = problem_step_seconds(p, device, 0, p->block_count)};
    c->seconds = calloc((size_t)s->batch / s->unit + 1, sizeof(*c->seconds));
    c->through_s = calloc((size_t)s->batch / s->unit + 1, sizeof(*c->through_s));
    if (!c->seconds || !c->through_s)
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
        memcpy(c->seconds[rows / s->unit], cost.seconds, sizeof(cost.seconds));
        double each =
            micro_forward(p, &cost, 0, p->block_count) + micro_backward(p, &cost, 0, p->block_count, false);
        c->through_s[rows / s->unit] = each;
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

int sharded_search_init(struct sharded_search *s, const struct problem *p, struct choice_list *list,
                        struct err *err)
{
    uint32_t batch = p->workload->batch_rows, unit = unit_of(batch, p->workload->micro_batch_rows);
    *s = (struct sharded_search){.p = p, .list = list, .batch = batch, .unit = unit};
    if (unit == 0)
        return 0;
    s->candidates = calloc((size_t)p->device_count + 1, sizeof(*s->candidates));
    s->overlaps = calloc(2 * (size_t)p->block_count + 4, sizeof(*s->overlaps));
    if (!s->candidates || !s->overlaps)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t d = 0; d < p->device_count; d++) {
        if (p->usable[d] && candidate_init(s, d, &s->candidates[s->candidate_count++], err) < 0)
            return -1;
    }
    qsort(s->candidates, s->candidate_count, sizeof(*s->candidates), candidate_faster);
    return s->candidate_count >= 2;
}

void sharded_search_fini(struct sharded_search *s)
{
    for (uint32_t i = 0; i < s->candidate_count; i++) {
        free(s->candidates[i].seconds);
        free(s->candidates[i].through_s);
    }
    for (uint32_t m = 0; m < SHARDED_DEVICES_MAX; m++)
        free(s->members[m].options);
    free(s->candidates);
    free(s->overlaps);
    free(s->ways);
    free(s->first_room);
}
