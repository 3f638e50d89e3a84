/* Enumerates tensor groups: one group of any devices in any order, or a pipeline of groups and single
 * devices. Key heads are dealt in every way. The FFN's columns follow by water filling: the slowest member
 * finishes as early as possible within the memory that is left. */
#ifndef TEST_ORACLE_TENSOR_H
#define TEST_ORACLE_TENSOR_H

#include "planner/oracle.h"

/* The state of the walk. Devices and heads of every stage are chosen first; then columns are dealt stage by
 * stage. */
struct tensor_walk {
    struct oracle *o;
    double reach[ORACLE_DEVICES]; /* [stage] seconds that its slowest member computes a step */
};

static inline struct cost_load tensor_load(const struct oracle *o, uint32_t t, uint32_t k)
{
    return problem_load(o->p, t, k * o->c.micro_batch_rows, (k + 1) * o->c.micro_batch_rows);
}

static inline bool tensor_fits(const struct oracle *o, const struct candidate_stage *stage, uint32_t m,
                               uint32_t live, uint32_t partials)
{
    struct tensor_need need;
    struct tensor_member member =
        tensor_member(o->p, stage->block_begin, stage->block_end, stage->member_count,
                      m - stage->member_first, &o->members[m].tensor);
    tensor_need_fill(o->p, &member, o->c.micro_batch_rows, o->members[m].recompute, &need);
    return tensor_need_total(&need, live, partials) <= limit_of(o->p, o->members[m].device);
}

/* Sets the column ranges of a group's members from the members' numbers of columns. */
static inline void columns_set(struct oracle *o, const struct candidate_stage *stage, const uint32_t *columns)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < stage->member_count; i++) {
        struct plan_tensor *part = &o->members[stage->member_first + i].tensor;
        part->column_begin = at;
        part->column_end = at += columns[i];
    }
}

/* Returns a member's seconds for the forward and backward (and recomputation) of a mean micro-batch. With
 * 'ffn' they are those of the FFN half of one layer, of which the member has `columns` columns; otherwise
 * those of the attention halves of all layers of the stage. */
static inline double mean_seconds(const struct oracle *o, const struct candidate_stage *stage, uint32_t m,
                                  uint32_t columns, bool ffn)
{
    struct plan_tensor part = o->members[m].tensor;
    struct cost_load load = o->p->mean_step;
    double seconds = 0;
    part.column_begin = 0;
    part.column_end = columns;
    load.rows /= o->micro_batches;
    load.tokens /= o->micro_batches;
    load.sum_sq /= o->micro_batches;
    load.labelled /= o->micro_batches;
    for (int way = 0; way < (o->members[m].recompute ? 3 : 2); way++) {
        for (int32_t b = ffn ? 1 : stage->block_begin; b < (ffn ? 2 : stage->block_end); b++) {
            bool layer = b > 0 && b + 1 < o->p->block_count;
            if (!layer) /* Embedding and head run on the first member alone while the others wait. */
                continue;
            seconds += tensor_seconds(o->p, o->members[m].device, &part, b,
                                      ffn ? TENSOR_SECOND : TENSOR_FIRST, (enum cost_way)way, &load);
        }
    }
    return seconds;
}

/* Returns the largest number of columns for which a member has memory, or 0. */
static inline uint32_t columns_most(struct oracle *o, const struct candidate_stage *stage, uint32_t m,
                                    uint32_t most, uint32_t live, uint32_t partials)
{
    uint32_t low = 0, high = most;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        o->members[m].tensor.column_begin = 0;
        o->members[m].tensor.column_end = middle;
        if (tensor_fits(o, stage, m, live, partials))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* A member's time as a linear function of its columns: with c columns it is base + fixed + c·each. */
struct column_line {
    double base, fixed, each;
    uint32_t most, columns;
};

/* Water filling: finds the least time at which the members can together take all columns. */
static inline bool columns_level(struct column_line *lines, uint32_t n, uint32_t ffn)
{
    double low = 0, high = 0;
    uint32_t most = 0, given = 0;
    for (uint32_t i = 0; i < n; i++) {
        most += lines[i].most;
        high = fmax(high, lines[i].base + lines[i].fixed + lines[i].most * lines[i].each);
    }
    if (most < ffn)
        return false;
    for (int turn = 0; turn < 50; turn++) {
        double level = turn ? (low + high) / 2 : high;
        uint32_t all = 0, within[ORACLE_DEVICES];
        for (uint32_t i = 0; i < n; i++) {
            double room = (level - lines[i].base - lines[i].fixed) / lines[i].each;
            within[i] = room < 1 ? 1 : room > lines[i].most ? lines[i].most : (uint32_t)room;
            all += within[i];
        }
        if (turn == 0 || all >= ffn) {
            high = level;
            given = all;
            for (uint32_t i = 0; i < n; i++)
                lines[i].columns = within[i];
        } else {
            low = level;
        }
    }
    for (uint32_t i = n; i-- > 0 && given > ffn;) {
        uint32_t less = given - ffn < lines[i].columns - 1 ? given - ffn : lines[i].columns - 1;
        lines[i].columns -= less;
        given -= less;
    }
    return given == ffn;
}

/* Deals a stage's columns so that the slowest member's half of a layer takes the least time or, with weight
 * 1, its whole compute time. With live 0, memory is not limited. */
static inline bool columns_fill(struct oracle *o, const struct candidate_stage *stage, double weight,
                                uint32_t live, uint32_t partials)
{
    uint32_t n = stage->member_count, ffn = o->p->workload->config->ffn, columns[ORACLE_DEVICES];
    struct column_line lines[ORACLE_DEVICES];
    int32_t begin = stage->block_begin > 1 ? stage->block_begin : 1;
    int32_t end = stage->block_end < o->p->block_count ? stage->block_end : o->p->block_count - 1;
    double layers = end > begin ? end - begin : 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t m = stage->member_first + i;
        double one = mean_seconds(o, stage, m, 1, true), more = mean_seconds(o, stage, m, 1 + ffn / 2, true);
        double each = (more - one) / (ffn / 2);
        lines[i] = (struct column_line){
            .base = weight > 0 ? weight * mean_seconds(o, stage, m, 1, false) / layers : 0,
            .fixed = one - each,
            .each = each,
            .most = ffn - n + 1};
    }
    bool fits = false;
    for (uint32_t turn = 0; turn <= n && !fits; turn++) {
        if (!columns_level(lines, n, ffn))
            return false;
        for (uint32_t i = 0; i < n; i++)
            columns[i] = lines[i].columns;
        columns_set(o, stage, columns);
        fits = true;
        for (uint32_t i = 0; i < n && live; i++) {
            if (tensor_fits(o, stage, stage->member_first + i, live, partials))
                continue;
            fits = false;
            lines[i].most = columns_most(o, stage, stage->member_first + i, lines[i].columns, live, partials);
            if (lines[i].most == 0)
                return false;
        }
    }
    return fits;
}

/* Returns a lower bound on a step of one group. With one micro-batch at a time, every half of a layer waits
 * for the slowest member and for the all-reduce before it. With several in turns, each member's compute and
 * each all-reduce is a bound. */
static inline double group_lower(const struct oracle *o, const struct candidate_stage *stage, bool in_turn)
{
    const struct problem *p = o->p;
    uint32_t n = stage->member_count, first = stage->member_first;
    double latency = 0, rate = INFINITY, serial = 0, sums = 0, own[ORACLE_DEVICES] = {0}, most = 0;
    for (uint32_t i = 0; i < n && n > 1; i++) {
        double a, b;
        link_of(o, o->members[first + i].device, o->members[first + (i + 1) % n].device, &a, &b);
        latency = fmax(latency, a);
        rate = fmin(rate, b);
    }
    for (uint32_t t = 0; t < p->step_count; t++) {
        for (uint32_t k = 0; k < o->micro_batches; k++) {
            struct cost_load load = tensor_load(o, t, k);
            const struct ring_figures ring = {.latency_s = latency, .bytes_per_s = rate};
            double sum =
                load.rows > 0 ? tensor_sum_seconds(&ring, n, floor(tensor_token_bytes(p) * load.tokens)) : 0;
            for (int32_t b = stage->block_begin; b < stage->block_end; b++) {
                bool layer = b > 0 && b + 1 < p->block_count;
                for (int half = 0; half < (layer ? 2 : 1); half++) {
                    enum tensor_half which = !layer ? TENSOR_WHOLE : half ? TENSOR_SECOND : TENSOR_FIRST;
                    for (int way = COST_FORWARD; way <= COST_BACKWARD; way++) {
                        double slowest = 0;
                        for (uint32_t i = 0; i < n; i++) {
                            const struct member *x = &o->members[first + i];
                            if (!layer && i > 0)
                                continue;
                            double s =
                                tensor_seconds(p, x->device, &x->tensor, b, which, (enum cost_way)way, &load);
                            if (x->recompute && way == COST_BACKWARD)
                                s +=
                                    tensor_seconds(p, x->device, &x->tensor, b, which, COST_RECOMPUTE, &load);
                            own[i] += s / p->step_count;
                            slowest = fmax(slowest, s);
                        }
                        serial += slowest / p->step_count;
                        /* A frozen embedding receives no gradient. */
                        bool summed = layer && !(b == 1 && half == 0 && way == COST_BACKWARD);
                        sums += summed ? sum / p->step_count : 0;
                    }
                }
            }
        }
    }
    for (uint32_t i = 0; i < n; i++)
        most = fmax(most, own[i]);
    return in_turn ? serial + sums : fmax(most, sums);
}

/* Deals the columns of all stages. Returns false when memory has no room for them, or when the bound shows
 * that the candidate cannot beat the best. */
static inline bool columns_deal(struct oracle *o, double weight)
{
    for (uint32_t s = 0; s < o->c.stage_count; s++) {
        const struct candidate_stage *stage = &o->stages[s];
        uint64_t live = (uint64_t)o->members[stage->member_first].window * o->c.together;
        live = live < o->micro_batches ? live : o->micro_batches;
        if (!columns_fill(o, stage, weight, (uint32_t)live, tensor_partials(&o->c, s, o->micro_batches)))
            return false;
        bool in_turn = o->c.stage_count == 1 && o->c.together == 1 && o->members[0].window == 1;
        if (hopeless(o, group_lower(o, stage, in_turn)))
            return false;
    }
    return true;
}

/* Tries windows from the last stage to the first, as multiples of the micro-batches that are computed in
 * turns. */
static inline void units_walk(struct tensor_walk *w, uint32_t s)
{
    struct oracle *o = w->o;
    uint32_t units = (o->micro_batches - 1) / o->c.together + 1;
    if (exhausted(o))
        return;
    for (double weight = 0; s == 0 && weight <= 1; weight += o->c.together > 1 ? 0.5 : 2)
        if (columns_deal(o, weight))
            leaf(o);
    if (s == 0)
        return;
    const struct candidate_stage *stage = &o->stages[s - 1];
    uint32_t least = s < o->c.stage_count ? o->members[o->stages[s].member_first].window : 1;
    for (uint32_t window = least; window <= units; window++) {
        for (uint32_t m = 0; m < stage->member_count; m++)
            o->members[stage->member_first + m].window = window;
        units_walk(w, s - 1);
    }
}

static inline void together_walk(struct tensor_walk *w)
{
    struct oracle *o = w->o;
    for (o->c.together = 1; o->c.together <= o->micro_batches; o->c.together++)
        units_walk(w, o->c.stage_count);
}

static inline void group_open(struct tensor_walk *w, int32_t begin);

static inline void group_whole(struct tensor_walk *w)
{
    struct oracle *o = w->o;
    const struct candidate_stage *stage = &o->stages[o->c.stage_count - 1];
    int32_t layer = stage->block_begin > 1 ? stage->block_begin : 1;
    if (stage->member_count > 1 && (layer >= stage->block_end || layer + 1 == o->p->block_count))
        return; /* A group must have layers to share. */
    /* This bound uses the columns that minimise the busiest member's compute time without any memory limit.
     */
    if (!columns_fill(o, stage, 1, 0, 0))
        return;
    if (hopeless(o, group_lower(o, stage, false)))
        return;
    if (stage->block_end < o->p->block_count)
        group_open(w, stage->block_end);
    else if (o->c.member_count > o->c.stage_count)
        together_walk(w);
}

/* Adds a device to the open group; heads_left of the model's key heads are not dealt yet. */
static inline void part_add(struct tensor_walk *w, uint32_t heads_left)
{
    struct oracle *o = w->o;
    const struct problem *p = o->p;
    struct candidate_stage *stage = &o->stages[o->c.stage_count - 1];
    uint32_t m = o->c.member_count, all = p->workload->config->kv_heads;
    if (heads_left == 0) {
        group_whole(w);
        return;
    }
    for (uint32_t way = 0; way < 2 * p->device_count * heads_left; way++) {
        uint32_t d = way / 2 % p->device_count, heads = way / 2 / p->device_count + 1, again = way % 2;
        if (o->taken[d] || !allowed(p, (int)again) || exhausted(o) ||
            (heads == all && stage->block_begin == 0 && stage->block_end == p->block_count))
            continue;
        o->members[m] = (struct member){
            .device = d,
            .rows = o->c.micro_batch_rows,
            .state_share = 1,
            .recompute = again,
            .tensor = {.kv_head_begin = all - heads_left, .kv_head_end = all - heads_left + heads}};
        o->taken[d] = true;
        stage->member_count++;
        o->c.member_count++;
        part_add(w, heads_left - heads);
        stage = &o->stages[o->c.stage_count - 1];
        stage->member_count--;
        o->c.member_count--;
        o->taken[d] = false;
    }
}

static inline void group_open(struct tensor_walk *w, int32_t begin)
{
    struct oracle *o = w->o;
    bool one = memory_trains_table(o->p) && o->p->blocks.tied; /* A trained tied table is on one rank only. */
    if (o->c.member_count == o->p->device_count)
        return;
    for (int32_t end = one ? o->p->block_count : begin + 1; end <= o->p->block_count; end++) {
        o->stages[o->c.stage_count++] =
            (struct candidate_stage){begin, end, STAGE_TENSOR, o->c.member_count, 0};
        part_add(w, o->p->workload->config->kv_heads);
        o->c.stage_count--;
    }
}

static inline void tensor_run(struct oracle *o)
{
    struct tensor_walk w = {.o = o};
    if (tensor_lacks(o->p) || !o->p->part_columns)
        return;
    for (uint32_t rows = 1; rows <= o->p->workload->batch_rows; rows++) {
        candidate_start(o, PLACE_TENSOR);
        o->c.micro_batch_rows = rows;
        o->micro_batches = (o->p->workload->batch_rows + rows - 1) / rows;
        group_open(&w, 0);
    }
}

#endif
