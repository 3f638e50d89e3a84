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
#include "planner/tensor/arrangement.h"
#include "planner/tensor/tensor_few.h"

#define SUBSETS_MAX 6u     /* devices up to which every subset is a group */
#define ORDERED_DEVICES 8u /* devices up to which groups are cut from orders of them */
#define GROUP_ORDERS 3u
#define NEIGHBOURS_MAX 64u /* nodes that are tried with the one next to them */

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
    if (count < 2 || count > TENSOR_GROUP_MAX || asked > 1 || !arrangement_pays(a, devices, count))
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
        if (taken > 1 && !arrangement_pays(a, devices, taken))
            taken = 1;
        group = group || taken > 1;
        if (a->stages == ARRANGED_STAGES || a->devices + taken > ARRANGED_DEVICES)
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

/* The fastest first, or those with most memory. */
static void devices_order(const struct problem *p, const struct ranked *all, uint32_t count, bool memory,
                          struct ranked *order)
{
    memcpy(order, all, count * sizeof(*order));
    for (uint32_t i = 0; i < count && memory; i++)
        order[i].seconds = -(double)p->cluster->devices[order[i].device].memory_limit_bytes;
    qsort(order, count, sizeof(*order), by_speed);
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
    for (uint32_t how = 0; how < GROUP_ORDERS && count <= ORDERED_DEVICES; how++) {
        struct ranked order[ORDERED_DEVICES];
        uint32_t devices[ORDERED_DEVICES];
        devices_order(a->p, all, count, how == 1, order);
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
    if (problem->workload->config->experts > 0)
        err_set(err, ERR_UNSUPPORTED, "experts are not cut into matrices");
    else if (problem->workload->config->kv_heads < 2)
        err_set(err, ERR_UNSUPPORTED, "matrices are cut between key heads, and the model has one");
    else
        return placement_devices(problem, 2, "cut matrices take", err);
    return false;
}

static int groups_try(struct arrangement *a, const struct ranked *all, uint32_t count, struct err *err)
{
    bool few = !a->many && !a->p->exhaustive_off;
    if (few && subsets_try(a, all, count, err) < 0)
        return -1;
    if (pipelines_try(a, all, count, err) < 0) /* of many the likely ones first: looking may be cut short */
        return -1;
    if (!few && (orders_try(a, all, count, err) < 0 || nodes_try(a, all, count, err) < 0 ||
                 neighbours_try(a, all, count, err) < 0))
        return -1;
    return count <= TENSOR_FEW_DEVICES ? tensor_few_try(a, err) : 0;
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
        *a = (struct arrangement){.p = problem, .list = list, .slack = 1};
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
