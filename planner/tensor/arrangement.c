/* Groups priced, cut, dealt and settled, by estimate. */
#include "planner/tensor/arrangement.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"

#define BALANCE_TURNS 30
#define WORSE_MAX 2u /* sizes in turn that are slower, after which no larger one is tried */

/* A half of a block on a whole group: its slowest member. */
static double group_half(const struct problem *p, const uint32_t *devices, const struct plan_tensor *parts,
                         uint32_t count, int32_t block, enum tensor_half half, enum cost_way way,
                         const struct cost_load *load)
{
    double most = 0;
    for (uint32_t i = 0; i < count; i++)
        most = fmax(most, tensor_seconds(p, devices[i], &parts[i], block, half, way, load));
    return most;
}

/* A block there and back on a whole group whose members need not wait for each other. */
static double group_whole(const struct problem *p, const uint32_t *devices, const struct plan_tensor *parts,
                          uint32_t count, int32_t block, bool recompute, const struct cost_load *load)
{
    double most = 0;
    for (uint32_t i = 0; i < count; i++) {
        double own = 0;
        for (int way = 0; way < (recompute ? 3 : 2); way++)
            own += tensor_seconds(p, devices[i], &parts[i], block, TENSOR_WHOLE, (enum cost_way)way, load);
        most = fmax(most, own);
    }
    return most;
}

static int32_t block_of_class(const struct problem *p, enum cost_class cls)
{
    for (int32_t b = 0; b < p->block_count; b++) {
        if (cost_class_of(&p->blocks.blocks[b]) == cls)
            return b;
    }
    return -1;
}

/* Several micro-batches in turns: a member computes one while others wait for another's sums, and all that it
 * has to do counts; one at a time, every half waits for its slowest. */
static double group_block(const struct arrangement *a, uint32_t s, int32_t block, bool recompute,
                          double *sums)
{
    const struct problem *p = a->p;
    const uint32_t *devices = &a->device[a->first[s]];
    const struct plan_tensor *parts = &a->part[a->first[s]];
    uint32_t count = a->first[s + 1] - a->first[s];
    struct cost_load load = micro_load_mean(p, a->micro_batches);
    bool layer = block > 0 && block + 1 < p->block_count;
    double seconds = 0;
    if (a->together > 1) {
        seconds = group_whole(p, devices, parts, count, block, recompute, &load);
    } else {
        for (int way = 0; way < (recompute ? 3 : 2); way++) {
            for (int half = TENSOR_FIRST; half <= (layer ? TENSOR_SECOND : TENSOR_FIRST); half++)
                seconds +=
                    group_half(p, devices, parts, count, block, layer ? (enum tensor_half)half : TENSOR_WHOLE,
                               (enum cost_way)way, &load);
        }
    }
    double one = tensor_sum_seconds(count, p->bytes_per_token * load.tokens, a->latency_s[s], a->rate[s]);
    *sums = (layer ? 4 : 1) * one;
    return seconds;
}

static void blocks_price(struct arrangement *a)
{
    for (uint32_t s = 0; s < a->stages; s++) {
        for (int cls = 0; cls < COST_CLASSES; cls++) {
            int32_t block = block_of_class(a->p, (enum cost_class)cls);
            for (int again = 0; again < 2; again++) {
                double sums = 0, compute = block < 0 ? 0 : group_block(a, s, block, again, &sums);
                a->block_s[s][cls][again] = a->together > 1 ? fmax(compute, sums) : compute + sums;
            }
        }
    }
}

static double stage_seconds(const struct arrangement *a, uint32_t s, int32_t begin, int32_t end)
{
    double seconds = 0;
    for (int cls = 0; cls < COST_CLASSES; cls++)
        seconds += (a->p->prefix[end][cls] - a->p->prefix[begin][cls]) * a->block_s[s][cls][a->recompute];
    return seconds;
}

static int32_t begin_of(const struct arrangement *a, uint32_t s)
{
    return s ? a->end[s - 1] : 0;
}

/* Blocks by bisection over the period. */
static void blocks_balance(struct arrangement *a)
{
    double low = 0, high = 0;
    for (uint32_t s = 0; s < a->stages; s++)
        high = fmax(high, stage_seconds(a, s, 0, a->p->block_count));
    for (int turn = 0; turn <= BALANCE_TURNS && a->stages > 1; turn++) {
        double period = turn == 0 || turn == BALANCE_TURNS ? high : (low + high) / 2;
        for (uint32_t s = 0; s < a->stages; s++) {
            int32_t last = a->p->block_count - (int32_t)(a->stages - s - 1), end = begin_of(a, s) + 1;
            while (end < last && stage_seconds(a, s, begin_of(a, s), end + 1) <= period)
                end++;
            a->end[s] = end;
        }
        if (a->end[a->stages - 1] == a->p->block_count)
            high = period;
        else
            low = period;
    }
    a->end[a->stages - 1] = a->p->block_count;
}

static void choice_fill(const struct arrangement *a, uint32_t slack, struct place_choice *choice)
{
    uint32_t units = (a->micro_batches - 1) / a->together + 1;
    choice->placement = PLACE_TENSOR;
    choice->micro_batch_rows = a->rows;
    choice->together = a->together;
    choice->stage_count = a->stages;
    choice->member_count = a->devices;
    for (uint32_t s = 0; s < a->stages; s++) {
        uint32_t window = a->stages - s + (s + 1 < a->stages ? slack : 0);
        choice->stages[s] = (struct place_stage){.block_begin = begin_of(a, s),
                                                 .block_end = a->end[s],
                                                 .member_first = a->first[s],
                                                 .member_count = a->first[s + 1] - a->first[s]};
        for (uint32_t d = a->first[s]; d < a->first[s + 1]; d++) {
            memset(&choice->members[d], 0, sizeof(choice->members[d]));
            choice->members[d].device = a->device[d];
            choice->members[d].micro_rows = a->rows;
            choice->members[d].micro_count = a->micro_batches;
            choice->members[d].state_share = 1;
            choice->members[d].window = window < units ? window : units;
            choice->members[d].recompute = a->recompute;
            choice->members[d].tensor = a->part[d];
        }
    }
}

/* Does every member hold what it is given? Notes what all together lack. */
static bool choice_fits(const struct arrangement *a, const struct place_choice *choice)
{
    uint64_t has = 0, lacks = 0;
    for (uint32_t s = 0; s < a->stages; s++) {
        for (uint32_t d = a->first[s]; d < a->first[s + 1]; d++) {
            struct tensor_need need;
            uint64_t live = (uint64_t)choice->members[d].window * a->together;
            uint64_t limit = a->p->cluster->devices[a->device[d]].memory_limit_bytes;
            tensor_stage_need(a->p, &choice->stages[s], &a->part[d], a->rows, a->recompute,
                              live < a->micro_batches ? (uint32_t)live : a->micro_batches,
                              tensor_partials(choice, s, a->micro_batches), &need);
            has += limit;
            lacks += need.need.total > limit ? need.need.total - limit : 0;
        }
    }
    choice_list_lacks(a->list, has, lacks);
    return lacks == 0;
}

/* docs/PLANNER.md, Time: the period of 1F1B over units, and its step. */
static double arrangement_estimate(const struct arrangement *a, const struct place_choice *choice)
{
    uint32_t units = (a->micro_batches - 1) / a->together + 1;
    double period = 0, once = 0, update = 0, each[ARRANGED_STAGES], link[ARRANGED_STAGES] = {0};
    double unit =
        (double)a->micro_batches / units; /* micro-batches, at the mean: the last one may hold fewer */
    double bytes = unit * a->p->bytes_per_token * a->p->mean_step.tokens / a->micro_batches;
    for (uint32_t s = 0; s < a->stages; s++) {
        uint32_t members = a->first[s + 1] - a->first[s];
        each[s] = unit * stage_seconds(a, s, begin_of(a, s), a->end[s]);
        update = fmax(update, problem_step_seconds(a->p, a->device[a->first[s]], begin_of(a, s), a->end[s]) /
                                  members);
        if (s + 1 < a->stages) {
            double latency, rate;
            bool emulated;
            cluster_link(a->p->cluster, a->device[a->first[s]], a->device[a->first[s + 1]], &latency, &rate,
                         &emulated);
            link[s] = latency + bytes / rate;
            period = fmax(period, bytes / rate);
        }
        once += each[s] + 2 * link[s];
    }
    for (uint32_t s = 0; s < a->stages; s++) {
        double cycle = 0;
        for (uint32_t j = s; j < a->stages; j++) {
            uint32_t w = choice->members[a->first[s]].window, v = choice->members[a->first[j]].window;
            cycle += each[j] + (j > s ? 2 * link[j - 1] : 0);
            period = fmax(period, cycle / (w - v + 1));
        }
    }
    return (units - 1) * period + once + update;
}

/* Windows as wide as fit, columns level where memory has room for that. */
static bool arrangement_settle(struct arrangement *a, struct place_choice *choice)
{
    for (uint32_t slack = a->stages > 1 ? a->slack : 0;; slack--) {
        bool level = true;
        choice_fill(a, slack, choice);
        for (uint32_t s = 0; s < a->stages && level; s++)
            level = tensor_level(a->p, choice, s, a->together > 1, false);
        for (uint32_t d = 0; d < a->devices && level; d++)
            a->part[d] = choice->members[d].tensor;
        if (level)
            blocks_price(a);
        else
            choice_fill(a, slack, choice);
        if (choice_fits(a, choice))
            return true;
        if (slack == 0)
            return false;
    }
}

/* Bytes that the fullest member of a stage has left; below 0: lacks. */
static int64_t stage_room(const struct arrangement *a, const struct place_choice *choice, uint32_t s)
{
    int64_t least = INT64_MAX;
    for (uint32_t d = a->first[s]; d < a->first[s + 1]; d++) {
        struct tensor_need need;
        uint64_t live = (uint64_t)choice->members[d].window * a->together;
        tensor_stage_need(a->p, &choice->stages[s], &a->part[d], a->rows, a->recompute,
                          live < a->micro_batches ? (uint32_t)live : a->micro_batches,
                          tensor_partials(choice, s, a->micro_batches), &need);
        int64_t room =
            (int64_t)a->p->cluster->devices[a->device[d]].memory_limit_bytes - (int64_t)need.need.total;
        least = room < least ? room : least;
    }
    return least;
}

/* Do both hold as many blocks of every class? Then they need as much. */
static bool stages_alike(const struct problem *p, const struct place_stage *a, const struct place_stage *b)
{
    for (int cls = 0; cls < COST_CLASSES; cls++) {
        if (p->prefix[a->block_end][cls] - p->prefix[a->block_begin][cls] !=
            p->prefix[b->block_end][cls] - p->prefix[b->block_begin][cls])
            return false;
    }
    return true;
}

/* Blocks were cut by time alone: where that is too much for a stage, block by block to the stage with most
 * room. */
static bool blocks_fit(struct arrangement *a, struct place_choice *choice)
{
    int64_t room[ARRANGED_STAGES];
    struct place_stage looked[ARRANGED_STAGES]; /* stages as they were when that was their room */
    for (int32_t turn = 0; turn <= a->p->block_count && a->stages > 1; turn++) {
        uint32_t from = 0, to = 0;
        choice_fill(a, 0, choice);
        for (uint32_t s = 0; s < a->stages; s++) {
            if (turn == 0 || !stages_alike(a->p, &looked[s], &choice->stages[s]))
                room[s] = stage_room(a, choice, s);
            looked[s] = choice->stages[s];
            from = room[s] < room[from] ? s : from;
            to = room[s] > room[to] ? s : to;
        }
        if (room[from] >= 0)
            return true;
        if (room[to] <= 0 || a->end[from] - begin_of(a, from) < 2)
            return false;
        for (uint32_t s = from < to ? from : to; s < (from < to ? to : from); s++)
            a->end[s] += from < to ? -1 : 1;
    }
    return false;
}

/* Where nothing else fits: every group's parts by what its members hold. */
static bool arrangement_hold(struct arrangement *a, struct place_choice *choice)
{
    choice_fill(a, 0, choice);
    for (uint32_t s = 0; s < a->stages; s++)
        tensor_fit(a->p, choice, s);
    for (uint32_t d = 0; d < a->devices; d++)
        a->part[d] = choice->members[d].tensor;
    blocks_price(a);
    return choice_fits(a, choice);
}

/* One arrangement at one micro-batch size: the first way to deal and recompute that fits. */
static int arrangement_try(struct arrangement *a, bool add, struct err *err)
{
    struct place_stage stages[ARRANGED_STAGES];
    struct place_member *members = calloc(a->devices, sizeof(*members));
    struct place_choice choice = {.stages = stages, .members = members};
    int result = members ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    bool done = false;
    a->estimate_s = INFINITY;
    for (int way = 0; way < 2 * TENSOR_WAYS && result == 0 && !done; way++) {
        a->recompute = way >= TENSOR_WAYS;
        bool dealt = micro_recompute_allowed(a->p, a->recompute);
        for (uint32_t s = 0; s < a->stages && dealt; s++)
            dealt = tensor_deal(a->p, &a->device[a->first[s]], a->first[s + 1] - a->first[s], a->rows,
                                (enum tensor_by)(way % TENSOR_WAYS), &a->part[a->first[s]]);
        if (!dealt)
            continue;
        a->list->evaluations++;
        blocks_price(a);
        if (a->cuts)
            memcpy(a->end, a->cuts, a->stages * sizeof(*a->end));
        else
            blocks_balance(a);
        done = arrangement_settle(a, &choice) || blocks_fit(a, &choice);
        if (!done && a->any && way % TENSOR_WAYS == TENSOR_BY_MEMORY)
            done = arrangement_hold(a, &choice);
        if (done) {
            a->estimate_s = choice.estimate_s = arrangement_estimate(a, &choice);
            result = add ? choice_list_add(a->list, &choice, err) : 0;
        }
    }
    free(members);
    return result;
}

/* One size of micro-batches, with one or more of them in turns. Of few devices only the best number joins the
 * list: polishing changes it. */
static int arrangement_turns(struct arrangement *a, double *best, struct err *err)
{
    uint32_t most = a->many && a->micro_batches > 2 ? 2 : a->micro_batches, pick = 0;
    *best = INFINITY;
    for (a->together = 1; a->together <= most; a->together *= 2) {
        if (a->list->evaluations >= a->list->evaluations_max)
            return 0;
        if (arrangement_try(a, a->many, err) < 0)
            return -1;
        if (a->estimate_s < *best) {
            *best = a->estimate_s;
            pick = a->together;
        }
    }
    a->together = pick;
    return pick && !a->many ? arrangement_try(a, true, err) : 0;
}

static void rings_fill(struct arrangement *a)
{
    for (uint32_t s = 0; s < a->stages; s++) {
        uint32_t *devices = &a->device[a->first[s]], count = a->first[s + 1] - a->first[s];
        tensor_ring_best(a->p, devices, count, a->p->bytes_per_token * a->p->mean_row.tokens);
        tensor_ring_links(a->p, devices, count, &a->latency_s[s], &a->rate[s]);
    }
}

int arrangement_sizes(struct arrangement *a, struct err *err)
{
    uint32_t sizes[MICRO_SIZES_MAX], count = micro_sizes(a->p, sizes), worse = 0;
    double best = INFINITY;
    rings_fill(a);
    for (uint32_t i = 0; i < count; i++) {
        double here;
        a->rows = sizes[i];
        a->micro_batches = micro_count(a->p, sizes[i]);
        if (arrangement_turns(a, &here, err) < 0)
            return -1;
        worse = here < best ? 0 : worse + 1;
        best = fmin(best, here);
        /* larger micro-batches need more memory, and beyond some size only wait longer for each other */
        if (a->many && (isinf(here) || worse >= WORSE_MAX))
            return 0;
        if (a->list->evaluations >= a->list->evaluations_max)
            return 0;
    }
    return 0;
}

int arrangement_size(struct arrangement *a, uint32_t rows, struct err *err)
{
    double best;
    rings_fill(a);
    a->rows = rows;
    a->micro_batches = micro_count(a->p, rows);
    return arrangement_turns(a, &best, err);
}

bool arrangement_price(struct arrangement *a, enum tensor_by by)
{
    struct place_stage stage;
    struct place_member members[TENSOR_GROUP_MAX];
    struct place_choice choice = {.stages = &stage, .members = members};
    if (a->devices > TENSOR_GROUP_MAX)
        return false;
    a->stages = 1;
    a->first[0] = 0;
    a->first[1] = a->devices;
    a->end[0] = a->p->block_count;
    rings_fill(a);
    if (!tensor_deal(a->p, a->device, a->devices, a->rows, by, a->part))
        return false;
    choice_fill(a, 0, &choice);
    if (by == TENSOR_BY_SPEED && tensor_level(a->p, &choice, 0, a->together > 1, true)) {
        for (uint32_t d = 0; d < a->devices; d++)
            a->part[d] = choice.members[d].tensor;
    }
    blocks_price(a);
    return true;
}

/* A layer there and back on a group, sums aside: dealt by speed with a wait after every half, or with level
 * columns and none. */
static double group_layer(const struct problem *p, const uint32_t *devices, const struct plan_tensor *parts,
                          uint32_t count, int32_t layer, uint32_t rows)
{
    struct cost_load load = micro_load_mean(p, micro_count(p, rows));
    struct plan_tensor level[TENSOR_GROUP_MAX];
    struct place_member members[TENSOR_GROUP_MAX];
    struct place_stage stage = {.block_begin = layer, .block_end = layer + 1, .member_count = count};
    struct place_choice choice = {.placement = PLACE_TENSOR,
                                  .micro_batch_rows = rows,
                                  .stage_count = 1,
                                  .member_count = count,
                                  .stages = &stage,
                                  .members = members};
    double halves = 0;
    for (int way = COST_FORWARD; way <= COST_BACKWARD; way++) {
        for (int half = TENSOR_FIRST; half <= TENSOR_SECOND; half++)
            halves += group_half(p, devices, parts, count, layer, (enum tensor_half)half, (enum cost_way)way,
                                 &load);
    }
    for (uint32_t i = 0; i < count; i++)
        members[i] = (struct place_member){.device = devices[i], .tensor = parts[i]};
    if (!tensor_level(p, &choice, 0, true, true))
        return halves;
    for (uint32_t i = 0; i < count; i++)
        level[i] = members[i].tensor;
    return fmin(halves, group_whole(p, devices, level, count, layer, false, &load));
}

bool arrangement_pays(const struct arrangement *a, const uint32_t *devices, uint32_t count)
{
    const struct problem *p = a->p;
    uint32_t sizes[MICRO_SIZES_MAX], size_count = micro_sizes(p, sizes);
    struct plan_tensor parts[TENSOR_GROUP_MAX];
    int32_t layer = block_of_class(p, COST_LAYER);
    double latency, rate;
    if (layer < 0 || !tensor_deal(p, devices, count, sizes[0], TENSOR_BY_SPEED, parts))
        return false;
    tensor_ring_links(p, devices, count, &latency, &rate);
    for (uint32_t i = 0; i < size_count && !a->any; i++) {
        struct cost_load load = micro_load_mean(p, micro_count(p, sizes[i]));
        double alone = INFINITY;
        for (uint32_t d = 0; d < count; d++)
            alone = fmin(alone, problem_seconds(p, devices[d], layer, layer + 1, COST_FORWARD, &load) +
                                    problem_seconds(p, devices[d], layer, layer + 1, COST_BACKWARD, &load));
        double sums = 4 * tensor_sum_seconds(count, p->bytes_per_token * load.tokens, latency, rate);
        if (sums < alone && group_layer(p, devices, parts, count, layer, sizes[i]) < alone)
            return true;
    }
    return a->any;
}
