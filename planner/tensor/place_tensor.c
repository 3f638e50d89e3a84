/* tensor: every matrix cut over the devices of a group that a fast link joins; several groups make a
 * pipeline.
 *
 * A group is looked at only where its sums could pay: where with all of them hidden behind computing, or all
 * computing behind them, a layer would take less than on its fastest member alone; where nothing that fits is
 * found so, and devices are few or tensor is asked for, wherever there is one. Simulation decides.
 *
 * The embedding and the head are cut by rows of the vocabulary: replicated they would cost every member their
 * memory and all of the head's time, and the sums they need are of a boundary tensor and of three numbers a
 * token. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/pipeline/chain.h"
#include "planner/tensor/tensor.h"

#define SUBSETS_MAX 6u   /* devices up to which every subset is a group */
#define STAGES_MAX 64u   /* groups in a pipeline */
#define DEVICES_MAX 256u /* in all of them */
#define BALANCE_TURNS 30
#define WORSE_MAX                                                                                            \
    2u /* sizes of micro-batches in turn that are slower, after which no larger one is tried                 \
        */
#define HEAD_DEVICES 8u    /* up to which groups that share the head alone are tried */
#define HEAD_ORDERS 3u     /* of devices */
#define GROUP_ORDERS 3u    /* likewise, for groups that share everything */
#define HEADS_KEPT 6u      /* of them, beside the others */
#define NEIGHBOURS_MAX 64u /* nodes that are tried with the one next to them */

/* Devices in groups, and how they work. */
struct arrangement {
    const struct problem *p;
    struct choice_list *list;
    uint32_t stages, devices, rows, micro_batches, together;
    uint32_t first[STAGES_MAX + 1], device[DEVICES_MAX];
    struct plan_tensor part[DEVICES_MAX];
    double latency_s[STAGES_MAX], rate[STAGES_MAX]; /* worst of each group's ring */
    /* seconds of a micro-batch in one block of each class, sums included, without and with recomputation */
    double block_s[STAGES_MAX][COST_CLASSES][2];
    int32_t end[STAGES_MAX];
    bool recompute;
    bool many;         /* not everything is looked at */
    bool any;          /* groups that do not pay, too: nothing else fits */
    double estimate_s; /* of what was tried last; INFINITY: it did not fit */
};

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
    double period = 0, once = 0, update = 0, each[STAGES_MAX], link[STAGES_MAX] = {0};
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
    for (uint32_t slack = a->stages > 1;; slack--) {
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
    int64_t room[STAGES_MAX];
    struct place_stage looked[STAGES_MAX]; /* stages as they were when that was their room */
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

/* One arrangement at one micro-batch size: the first way to deal and recompute that fits. */
static int arrangement_try(struct arrangement *a, bool add, struct err *err)
{
    struct place_stage stages[STAGES_MAX];
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
        blocks_balance(a);
        done = arrangement_settle(a, &choice) || blocks_fit(a, &choice);
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

static int arrangement_sizes(struct arrangement *a, struct err *err)
{
    uint32_t sizes[MICRO_SIZES_MAX], count = micro_sizes(a->p, sizes), worse = 0;
    double best = INFINITY;
    for (uint32_t s = 0; s < a->stages; s++)
        tensor_ring_best(a->p, &a->device[a->first[s]], a->first[s + 1] - a->first[s],
                         a->p->bytes_per_token * a->p->mean_row.tokens);
    for (uint32_t s = 0; s < a->stages; s++)
        tensor_ring_links(a->p, &a->device[a->first[s]], a->first[s + 1] - a->first[s], &a->latency_s[s],
                          &a->rate[s]);
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

/* Could the group's sums pay, at any micro-batch size? */
static bool group_pays(const struct arrangement *a, const uint32_t *devices, uint32_t count)
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

struct ranked {
    uint32_t device, node;
    double seconds;
};

static int by_node(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;
    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    if (a->seconds != b->seconds)
        return a->seconds < b->seconds ? -1 : 1;
    return a->device < b->device ? -1 : 1;
}

/* One group of the devices named. */
static int group_try(struct arrangement *a, const uint32_t *devices, uint32_t count, struct err *err)
{
    uint32_t asked = a->p->workload->stages;
    if (count < 2 || count > TENSOR_GROUP_MAX || asked > 1 || !group_pays(a, devices, count))
        return 0;
    a->stages = 1;
    a->devices = a->first[1] = count;
    memcpy(a->device, devices, count * sizeof(*devices));
    a->end[0] = a->p->block_count;
    return arrangement_sizes(a, err);
}

static int subsets_try(struct arrangement *a, const struct ranked *all, uint32_t count, struct err *err)
{
    for (uint32_t mask = (1u << count) - 1; mask > 0; mask--) {
        uint32_t devices[SUBSETS_MAX], chosen = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (mask >> i & 1)
                devices[chosen++] = all[i].device;
        }
        if (group_try(a, devices, chosen, err) < 0)
            return -1;
    }
    return 0;
}

/* More devices: of each node the fastest 2, 3, 4, 6, 8, … */
static int nodes_try(struct arrangement *a, const struct ranked *all, uint32_t count, struct err *err)
{
    for (uint32_t from = 0, end; from < count; from = end) {
        uint32_t devices[TENSOR_GROUP_MAX];
        for (end = from; end < count && all[end].node == all[from].node; end++) {
            if (end - from < TENSOR_GROUP_MAX)
                devices[end - from] = all[end].device;
        }
        uint32_t most = end - from < TENSOR_GROUP_MAX ? end - from : TENSOR_GROUP_MAX;
        for (uint32_t size = most; size >= 2; size = size > 4 ? size * 3 / 4 : size - 1) {
            if (group_try(a, devices, size, err) < 0)
                return -1;
        }
    }
    return 0;
}

/* Two nodes that a fast link joins: all devices of a node and of the one its best link goes to. */
static int neighbours_try(struct arrangement *a, const struct ranked *all, uint32_t count, struct err *err)
{
    for (uint32_t from = 0, end, nodes = 0; from < count && nodes < NEIGHBOURS_MAX; from = end, nodes++) {
        uint32_t devices[TENSOR_GROUP_MAX], chosen = 0, best = UINT32_MAX;
        double most = 0;
        for (end = from; end < count && all[end].node == all[from].node; end++)
            ;
        for (uint32_t i = end; i < count; i++) { /* later nodes: each pair once */
            double latency, rate;
            bool emulated;
            cluster_link(a->p->cluster, all[from].device, all[i].device, &latency, &rate, &emulated);
            if (rate > most) {
                most = rate;
                best = all[i].node;
            }
        }
        for (uint32_t i = from; i < count && best != UINT32_MAX && chosen < TENSOR_GROUP_MAX; i++) {
            if (all[i].node == all[from].node || all[i].node == best)
                devices[chosen++] = all[i].device;
        }
        if (group_try(a, devices, chosen, err) < 0)
            return -1;
    }
    return 0;
}

/* A pipeline of groups of at most `size` neighbours of one node; groups that do not pay are single devices.
 */
static int pipeline_try_groups(struct arrangement *a, const struct ranked *all, uint32_t count, uint32_t size,
                               bool backwards, struct err *err)
{
    bool group = false;
    a->stages = a->devices = 0;
    for (uint32_t at = 0, taken; at < count; at += taken) {
        uint32_t devices[TENSOR_GROUP_MAX];
        for (taken = 0; taken < size && at + taken < count; taken++) {
            uint32_t i = backwards ? count - 1 - at - taken : at + taken;
            uint32_t start = backwards ? count - 1 - at : at;
            if (all[i].node != all[start].node)
                break;
            devices[taken] = all[i].device;
        }
        if (taken > 1 && !group_pays(a, devices, taken))
            taken = 1;
        group = group || taken > 1;
        if (a->stages == STAGES_MAX || a->devices + taken > DEVICES_MAX)
            return 0;
        memcpy(&a->device[a->devices], devices, taken * sizeof(*devices));
        a->first[a->stages] = a->devices;
        a->devices += taken;
        a->first[++a->stages] = a->devices;
    }
    uint32_t asked = a->p->workload->stages;
    if (!group || a->stages < 2 || (asked && asked != a->stages) || (int32_t)a->stages > a->p->block_count)
        return 0;
    return arrangement_sizes(a, err);
}

static int pipelines_try(struct arrangement *a, const struct ranked *all, uint32_t count, struct err *err)
{
    /* a tied embedding that is trained is cut alike on its owner and its copy, or not at all */
    if (a->p->workload->method == METHOD_FULL && a->p->blocks.tied)
        return 0;
    for (uint32_t size = 2; size <= TENSOR_GROUP_MAX && size <= count; size *= 2) {
        for (int backwards = 0; backwards < 2; backwards++) {
            if (pipeline_try_groups(a, all, count, size, backwards, err) < 0)
                return -1;
        }
    }
    return 0;
}

static int by_speed(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;
    if (a->seconds != b->seconds)
        return a->seconds < b->seconds ? -1 : 1;
    return a->device < b->device ? -1 : 1;
}

/* The fastest first; the slowest of so many fastest first; those with most memory, of which a head needs
 * little, first; one of the others before the fastest. */
static void heads_order(const struct problem *p, const struct ranked *all, uint32_t count, uint32_t how,
                        uint32_t used, struct ranked *order)
{
    memcpy(order, all, count * sizeof(*order));
    for (uint32_t i = 0; i < count && how == 2; i++)
        order[i].seconds = -(double)p->cluster->devices[order[i].device].memory_limit_bytes;
    qsort(order, count, sizeof(*order), by_speed);
    for (uint32_t i = 0; i < used / 2 && how == 1; i++) {
        struct ranked held = order[i];
        order[i] = order[used - 1 - i];
        order[used - 1 - i] = held;
    }
    for (uint32_t i = how - (HEAD_ORDERS - 1); how >= HEAD_ORDERS && i > 0; i--) {
        struct ranked held = order[i];
        order[i] = order[i - 1];
        order[i - 1] = held;
    }
}

/* Few devices: some in a row, and a group after them that shares the head. It asks for one sum of a boundary
 * tensor where a layer asks for four, and pays over links on which layers do not. */
static int heads_try(struct arrangement *a, const struct ranked *all, uint32_t count, struct err *err)
{
    struct ranked order[HEAD_DEVICES];
    struct choice_list *list = a->list, found = {.evaluations = list->evaluations,
                                                 .evaluations_max = list->evaluations_max,
                                                 .must_use = list->must_use};
    uint32_t asked = a->p->workload->stages, orders = HEAD_ORDERS + (count <= SUBSETS_MAX ? count - 1 : 0);
    int result = 0;
    if (count > HEAD_DEVICES || (a->p->workload->method == METHOD_FULL && a->p->blocks.tied))
        return 0;
    a->list = &found;
    for (uint32_t way = 0; way < orders * count * count && result == 0; way++) {
        uint32_t front = 1 + way / orders / count, group = 2 + way / orders % count;
        if (front + group > count || group > a->p->workload->config->kv_heads ||
            (asked && asked != front + 1) || (int32_t)front >= a->p->block_count)
            continue;
        a->stages = front + 1;
        a->devices = front + group;
        heads_order(a->p, all, count, way % orders, a->devices, order);
        for (uint32_t i = 0; i < a->devices; i++) {
            a->device[i] = order[i].device;
            a->first[i < front ? i : front] = i < front ? i : front;
        }
        a->first[a->stages] = a->devices;
        result = arrangement_sizes(a, err);
    }
    a->list = list;
    list->evaluations = found.evaluations;
    for (uint32_t i = 0; i < found.count && i < HEADS_KEPT && result == 0; i++)
        result = choice_list_add(list, &found.choices[i], err);
    choice_list_fini(&found);
    return result;
}

/* The device whose worst link to the group is best is the next of it. */
static void links_order(const struct problem *p, struct ranked *order, uint32_t count)
{
    for (uint32_t at = 1; at < count; at++) {
        uint32_t best = at;
        double most = 0;
        for (uint32_t i = at; i < count; i++) {
            double least = INFINITY;
            for (uint32_t in = 0; in < at; in++) {
                double latency, rate;
                bool emulated;
                cluster_link(p->cluster, order[in].device, order[i].device, &latency, &rate, &emulated);
                least = fmin(least, rate);
            }
            if (least > most) {
                most = least;
                best = i;
            }
        }
        struct ranked held = order[at];
        order[at] = order[best];
        order[best] = held;
    }
}

/* Few devices: groups of the fastest, of those with most memory, of those with the best links to the fastest,
 * whatever nodes they are on. */
static int orders_try(struct arrangement *a, const struct ranked *all, uint32_t count, struct err *err)
{
    for (uint32_t how = 0; how < GROUP_ORDERS && count <= HEAD_DEVICES; how++) {
        struct ranked order[HEAD_DEVICES];
        uint32_t devices[HEAD_DEVICES];
        heads_order(a->p, all, count, how == 1 ? 2 : 0, 0, order);
        if (how == 2)
            links_order(a->p, order, count);
        for (uint32_t i = 0; i < count; i++)
            devices[i] = order[i].device;
        for (uint32_t size = count - (how > 0); size >= 2; size--) {
            if (group_try(a, devices, size, err) < 0)
                return -1;
        }
    }
    return 0;
}

static bool tensor_supports(const struct problem *problem, struct err *err)
{
    uint32_t usable = 0;
    for (uint32_t d = 0; d < problem->device_count; d++)
        usable += problem->usable[d];
    if (problem->workload->config->experts > 0) {
        err_set(err, ERR_UNSUPPORTED, "tensor does not cut mixtures of experts");
        return false;
    }
    if (usable < 2 || problem->workload->config->kv_heads < 2) {
        err_set(err, ERR_UNSUPPORTED,
                "tensor needs two devices and two key heads; %u devices can be used, the model has %u",
                usable, problem->workload->config->kv_heads);
        return false;
    }
    return true;
}

static int groups_try(struct arrangement *a, const struct ranked *all, uint32_t count, struct err *err)
{
    bool few = !a->many && !a->p->exhaustive_off;
    if (few && subsets_try(a, all, count, err) < 0)
        return -1;
    if (pipelines_try(a, all, count, err) < 0) /* of many the likely ones first: looking may be cut short */
        return -1;
    if (heads_try(a, all, count, err) < 0)
        return -1;
    if (few)
        return 0;
    if (orders_try(a, all, count, err) < 0)
        return -1;
    return nodes_try(a, all, count, err) < 0 ? -1 : neighbours_try(a, all, count, err);
}

static int tensor_propose(const struct problem *problem, struct choice_list *list, struct err *err)
{
    struct ranked *all = calloc(problem->device_count, sizeof(*all));
    struct arrangement *a = calloc(1, sizeof(*a));
    uint32_t count = 0;
    int result = all && a ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t d = 0; d < problem->device_count && result == 0; d++) {
        if (problem->usable[d])
            all[count++] = (struct ranked){.device = d,
                                           .node = problem->cluster->devices[d].node,
                                           .seconds = problem_seconds(problem, d, 0, problem->block_count,
                                                                      COST_FORWARD, &problem->mean_row)};
    }
    if (result == 0 && !list->runnable_on) { /* no worker of this release does it */
        qsort(all, count, sizeof(*all), by_node);
        *a = (struct arrangement){.p = problem, .list = list};
        a->many = count > SUBSETS_MAX;
        result = groups_try(a, all, count, err);
        bool asked = problem->workload->place == (int)PLACE_TENSOR;
        if (result == 0 && list->count == 0 && (asked || !a->many)) {
            a->any = true;
            result = groups_try(a, all, count, err);
        }
    }
    free(all);
    free(a);
    return result;
}

/* The worker does not run halves of blocks. */
static bool tensor_runnable(const struct problem *problem, const struct place_choice *choice)
{
    (void)problem;
    (void)choice;
    return false;
}

const struct placement place_tensor = {.kind = PLACE_TENSOR,
                                       .supports = tensor_supports,
                                       .propose = tensor_propose,
                                       .emit = tensor_emit,
                                       .runnable = tensor_runnable,
                                       .from_plan = tensor_from_plan};
