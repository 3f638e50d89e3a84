/* data: every device works on all blocks and takes its part of the rows, as much as it is fast.
 *
 * Replicas (LoRA): the frozen base is everywhere, the adapters' gradients are summed once a step, so
 * megabytes cross the network per step instead of per micro-batch. Rows and micro-batch sizes per device are
 * Cephalo's problem without sharding, solved exactly (cephalo.h); slow devices are left out one by one while
 * that helps.
 *
 * Sharded (full fine-tuning; LoRA whose base no device holds alone): sharded_plan.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/cost/ring.h"
#include "planner/hybrid/group.h"
#include "planner/replay/cephalo.h"
#include "planner/sharded/replica_exact.h"
#include "planner/sharded/sharded.h"

#define DATA_DEVICES_MAX 256u
#define SHARDED_KEPT 8u        /* of those in shards that join, one for a set of devices */
#define MEMBERS_BUDGET 200000u /* members that replica_exact may give rows to */
#define CAPS_ORDERED 16u       /* devices beyond which sizes are tried by what they promise */
#define MACHINES_SORTED 7u /* devices from which nobody tries their orders, and whole machines are tried */
#define SHARDED_TOO 6u     /* devices up to which LoRA's base is tried in shards beside replicas */

struct replica {
    uint32_t device, micro_max;
    bool recompute;
    double *seconds; /* [batch + 1]: of a micro-batch, forward and backward */
    double per_row;
};

static bool data_supports(const struct problem *problem, struct err *err)
{
    return placement_stages(problem, 1, 1, err) && placement_devices(problem, 2, "replicas take", err);
}

static uint64_t replica_need(const struct problem *p, uint32_t rows, bool recompute)
{
    struct memory_need need;
    struct memory_stage m = {.block_end = p->block_count,
                             .window = 1,
                             .micro_batch_rows = rows,
                             .recompute = recompute,
                             .state_share = 1,
                             .tensor_share = 1};
    memory_stage_need(p, &m, &need);
    return need.total;
}

/* *lacks: what the device lacks for a replica of one row; 0: nothing, and the replica is made. */
static int replica_init(const struct problem *p, uint32_t device, struct replica *replica, uint64_t *lacks,
                        struct err *err)
{
    uint32_t batch = p->workload->batch_rows;
    uint64_t limit = p->cluster->devices[device].memory_limit_bytes, least = UINT64_MAX;
    *replica = (struct replica){.device = device};
    for (int recompute = 0; recompute < 2 && replica->micro_max == 0; recompute++) {
        if (!micro_recompute_allowed(p, recompute))
            continue;
        least = replica_need(p, 1, recompute);
        replica->recompute = recompute;
        for (uint32_t rows = 1; rows <= batch && replica_need(p, rows, recompute) <= limit; rows++)
            replica->micro_max = rows;
    }
    *lacks = replica->micro_max == 0 ? least - limit : 0;
    if (replica->micro_max == 0)
        return 0;
    replica->seconds = calloc((size_t)batch + 1, sizeof(*replica->seconds));
    if (!replica->seconds)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    replica->per_row = INFINITY;
    for (uint32_t rows = 1; rows <= replica->micro_max; rows++) {
        struct cost_load load = p->mean_row;
        load.rows *= rows;
        load.tokens *= rows;
        load.sum_sq *= rows;
        load.labelled *= rows;
        double each = problem_seconds(p, device, 0, p->block_count, COST_FORWARD, &load) +
                      problem_seconds(p, device, 0, p->block_count, COST_BACKWARD, &load);
        if (replica->recompute)
            each += problem_seconds(p, device, 0, p->block_count, COST_RECOMPUTE, &load);
        replica->seconds[rows] = each;
        replica->per_row = each / rows < replica->per_row ? each / rows : replica->per_row;
    }
    return 0;
}

static int replica_faster(const void *left, const void *right)
{
    const struct replica *a = left, *b = right;
    if (a->per_row != b->per_row)
        return a->per_row < b->per_row ? -1 : 1;
    return a->device < b->device ? -1 : 1;
}

/* Adapters' gradients over a ring of all members. */
static double members_sync(const struct problem *p, const struct place_member *members, uint32_t count)
{
    uint32_t ring[DATA_DEVICES_MAX];
    for (uint32_t i = 0; i < count; i++)
        ring[i] = members[i].device;
    double latency, rate = ring_slowest(p->cluster, ring, count, &latency);
    return 2 * 4 * (double)p->blocks.lora_params / rate + 2 * (count - 1) * latency;
}

/* The first `count` replicas share the batch in micro-batches of at most `cap` rows: exact split, added to
 * the list. */
static int data_try(const struct problem *p, const struct replica *replicas, uint32_t count, uint32_t cap,
                    const double *zeros, struct choice_list *list, struct err *err)
{
    struct cephalo_kind *kinds = calloc(count, sizeof(*kinds));
    uint32_t *kind_of = calloc(count, sizeof(*kind_of));
    struct cephalo_part *parts = calloc(count, sizeof(*parts));
    struct place_member *members = calloc(count, sizeof(*members));
    double seconds = 0, update = 0;
    int result = kinds && kind_of && parts && members ? 1 : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t i = 0; i < count && result > 0; i++) {
        kinds[i] = (struct cephalo_kind){.forward_ms = zeros, /* it would count twice, as recomputed */
                                         .backward_ms = replicas[i].seconds,
                                         .micro_max = cap,
                                         .even_max = UINT32_MAX};
        kind_of[i] = i;
        update = fmax(update, problem_step_seconds(p, replicas[i].device, 0, p->block_count));
    }
    struct cephalo_problem problem = {.gpu_count = count,
                                      .kind_count = count,
                                      .batch = p->workload->batch_rows,
                                      .kind_of = kind_of,
                                      .kinds = kinds,
                                      .memory_gib = zeros,
                                      .cap_gib = 1};
    if (result > 0)
        result = cephalo_solve(&problem, parts, &seconds, err);
    list->evaluations +=
        1 + (uint64_t)count * count / 16; /* what solving exactly costs, in pipelines looked at */
    uint32_t rows = 1;
    for (uint32_t i = 0; i < count && result > 0; i++) {
        rows = parts[i].micro_rows > rows ? parts[i].micro_rows : rows;
        members[i] = (struct place_member){.device = replicas[i].device,
                                           .micro_rows = parts[i].micro_rows,
                                           .micro_count = parts[i].micro_count,
                                           .state_share = 1,
                                           .window = 1,
                                           .recompute = replicas[i].recompute};
    }
    if (result > 0) {
        if (p->device_count >= MACHINES_SORTED)
            members_by_machine(p, members, NULL, count);
        struct place_stage stage = {.block_end = p->block_count, .member_count = count};
        struct place_choice choice = {.placement = PLACE_DATA,
                                      .micro_batch_rows = rows,
                                      .stage_count = 1,
                                      .member_count = count,
                                      .stages = &stage,
                                      .members = members,
                                      .estimate_s = seconds + update + members_sync(p, members, count)};
        result = choice_list_add(list, &choice, err);
    }
    free(kinds);
    free(kind_of);
    free(parts);
    free(members);
    return result < 0 ? -1 : 0;
}

/* The replicas that hold a micro-batch size, in the order given; returns how many. */
static uint32_t able_fill(const struct problem *p, const struct replica *replicas, uint32_t count,
                          uint32_t rows, struct replica *able)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (replicas[i].micro_max >= rows)
            able[most++] = replicas[i];
    }
    most = most < DATA_DEVICES_MAX ? most : DATA_DEVICES_MAX;
    return most < p->workload->batch_rows ? most : p->workload->batch_rows;
}

/* Seconds of a step if rows could be divided at will, in micro-batches of so many. */
static double able_seconds(const struct problem *p, const struct replica *able, uint32_t count, uint32_t rows)
{
    double rate = 0;
    for (uint32_t i = 0; i < count; i++) {
        double least = INFINITY;
        for (uint32_t n = 1; n <= rows; n++)
            least = fmin(least, able[i].seconds[n] / n);
        rate += 1 / least;
    }
    return rate > 0 ? p->workload->batch_rows / rate : INFINITY;
}

/* Where links between machines are slow, those of the machines that do most may be faster than all. Sets of
 * one machine, two, three, four, six, … */
static int machines_try(const struct problem *p, const struct replica *able, uint32_t count, uint32_t rows,
                        const double *zeros, struct choice_list *list, struct err *err)
{
    const struct cluster *cluster = p->cluster;
    double *rate = calloc((size_t)cluster->node_count + 1, sizeof(*rate));
    struct replica *some = calloc((size_t)count + 1, sizeof(*some));
    int result = rate && some ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t i = 0; i < count && result == 0; i++)
        rate[cluster->devices[able[i].device].node] += 1 / able[i].per_row;
    for (uint32_t taken = 1, next = 1, kept = 0; result == 0; taken++) {
        uint32_t best = machine_take(rate, cluster->node_count);
        if (best == UINT32_MAX)
            break;
        for (uint32_t i = 0; i < count; i++) {
            if (cluster->devices[able[i].device].node == best)
                some[kept++] = able[i];
        }
        if (kept >= count || list->evaluations >= list->evaluations_max)
            break;
        if (taken < next || kept < 2)
            continue;
        result = data_try(p, some, kept, rows, zeros, list, err);
        next += next / 2 + 1;
    }
    free(rate);
    free(some);
    return result;
}

/* All ranks hold buffers for the plan's largest micro-batch, so a size is tried with the devices that can
 * hold it. Among many devices the budget is for a few splits: the most promising size comes first. */
static int caps_try(const struct problem *p, const struct replica *replicas, uint32_t count,
                    const double *zeros, struct choice_list *list, struct err *err)
{
    uint32_t sizes[MICRO_SIZES_MAX], size_count = micro_sizes(p, sizes);
    double promised[MICRO_SIZES_MAX];
    struct replica *able = calloc((size_t)count + 1, sizeof(*able));
    int result = able ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t s = 0; s < size_count && result == 0; s++)
        promised[s] = able_seconds(p, able, able_fill(p, replicas, count, sizes[s], able), sizes[s]);
    for (uint32_t turn = 0; turn < size_count && result == 0; turn++) {
        uint32_t s = turn;
        for (uint32_t other = 0; other < size_count && count > CAPS_ORDERED; other++)
            s = promised[other] < promised[s] ? other : s;
        promised[s] = INFINITY;
        uint32_t most = able_fill(p, replicas, count, sizes[s], able);
        for (uint32_t n = most; n >= 2 && result == 0; n = n > 16 ? n - n / 8 : n - 1) {
            if (list->evaluations < list->evaluations_max)
                result = data_try(p, able, n, sizes[s], zeros, list, err);
        }
        if (result == 0 && count >= MACHINES_SORTED && list->evaluations < list->evaluations_max)
            result = machines_try(p, able, most, sizes[s], zeros, list, err);
    }
    free(able);
    return result;
}

static int replicas_propose(const struct problem *p, struct choice_list *list, struct err *err)
{
    struct replica *replicas = calloc((size_t)p->device_count + 1, sizeof(*replicas));
    double *zeros = calloc((size_t)p->workload->batch_rows + 1, sizeof(*zeros));
    uint64_t lacks, least[2] = {UINT64_MAX, UINT64_MAX}, has[2] = {0}; /* of the two that lack least */
    uint32_t count = 0;
    int result = replicas && zeros ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t d = 0; d < p->device_count && result == 0; d++) {
        if (!p->usable[d])
            continue;
        result = replica_init(p, d, &replicas[count], &lacks, err);
        count += replicas[count].seconds != NULL;
        int at = lacks < least[0] ? 0 : 1;
        if (result < 0 || lacks >= least[1])
            continue;
        least[1] = at ? lacks : least[0];
        has[1] = at ? p->cluster->devices[d].memory_limit_bytes : has[0];
        least[0] = at ? least[0] : lacks;
        has[0] = at ? has[0] : p->cluster->devices[d].memory_limit_bytes;
    }
    if (result == 0 && least[1] < UINT64_MAX)
        choice_list_lacks(list, has[0] + has[1], least[0] + least[1]);
    if (result == 0) {
        qsort(replicas, count, sizeof(*replicas), replica_faster);
        result = caps_try(p, replicas, count, zeros, list, err);
    }
    for (uint32_t i = 0; replicas && i < count; i++)
        free(replicas[i].seconds);
    free(replicas);
    free(zeros);
    return result;
}

/* A base in shards is gathered anew for every pass: seldom worth it where devices hold it whole, but over a
 * fast link it may let a device work that does not. Among many devices it is not looked at then; among few
 * the best of some sets of devices is, as estimates tell little between them: rows differ in length. */
static int shards_too(const struct problem *p, struct choice_list *list, struct err *err)
{
    struct choice_list shards = {.evaluations = list->evaluations,
                                 .evaluations_max = list->evaluations_max,
                                 .runnable_on = list->runnable_on,
                                 .must_use = list->must_use};
    int result = sharded_propose(p, &shards, err);
    list->evaluations = shards.evaluations;
    for (uint32_t i = 0, kept = 0; i < shards.count && kept < SHARDED_KEPT && result == 0; i++) {
        bool before = false;
        for (uint32_t other = 0; other < i && !before; other++)
            before = choice_same_groups(&shards.choices[i], &shards.choices[other]);
        if (!before) {
            result = choice_list_add(list, &shards.choices[i], err);
            kept++;
        }
    }
    choice_list_fini(&shards);
    return result;
}

static int data_propose(const struct problem *p, struct choice_list *list, struct err *err)
{
    bool lora = p->workload->method == METHOD_LORA;
    if (lora && replicas_propose(p, list, err) < 0)
        return -1;
    if (!lora || list->count == 0)
        return sharded_propose(p, list, err);
    return p->device_count > SHARDED_TOO ? 0 : shards_too(p, list, err);
}

static struct plan *data_emit(const struct problem *problem, const struct place_choice *choice, bool programs,
                              struct err *err)
{
    return choice->gathered_layers ? layered_emit(problem, choice, programs, err)
                                   : group_emit(problem, choice, programs, err);
}

static bool data_runnable(const struct problem *problem, const struct place_choice *choice)
{
    return problem->workload->method == METHOD_LORA && choice->gathered_layers == 0;
}

static int data_from_plan(const struct problem *problem, const struct plan *plan, struct place_choice *choice,
                          struct err *err)
{
    bool sharded = plan->group_count > 1 && plan->groups[1].shares != NULL;
    return sharded ? layered_from_plan(problem, plan, choice, err)
                   : choice_from_plan(problem, plan, choice, err);
}

static int data_exact(const struct problem *problem, double beat_s, uint32_t steps_max,
                      struct place_choice *choice, double *seconds, struct err *err)
{
    return replica_exact(problem, beat_s, steps_max, MEMBERS_BUDGET, choice, seconds, err);
}

const struct placement place_data = {.kind = PLACE_DATA,
                                     .supports = data_supports,
                                     .propose = data_propose,
                                     .emit = data_emit,
                                     .runnable = data_runnable,
                                     .from_plan = data_from_plan,
                                     .exact = data_exact};
