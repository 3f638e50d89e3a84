/* Pipelines over more devices than can be enumerated: a few orders, with the slowest left out in steps. */
#include <stdlib.h>
#include <string.h>

#include "planner/many.h"
#include "planner/pipeline.h"

#define SMALL 16u          /* devices up to which arranging many is not all that is tried */
#define REFINED_STAGES 10u /* blocks are moved one by one up to so many stages */

struct candidate {
    uint32_t device, node;
    double seconds_per_row; /* all blocks, one row */
    uint64_t memory;
};

static int fast_first(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    if (a->seconds_per_row != b->seconds_per_row)
        return a->seconds_per_row < b->seconds_per_row ? -1 : 1;
    return a->device < b->device ? -1 : 1;
}

static int memory_first(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    if (a->memory != b->memory)
        return a->memory > b->memory ? -1 : 1;
    return fast_first(left, right);
}

static int node_order(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    return a->node != b->node ? (a->node < b->node ? -1 : 1) : fast_first(left, right);
}

static const struct {
    int (*compare)(const void *, const void *);
} orders[] = {{node_order}, {memory_first}, {fast_first}};

/* A tied embedding that is trained goes to and fro between the first and the last stage every step: the last is
 * taken from the first one's node, if there is another device in it. */
static void ends_join(const struct problem *problem, uint32_t *devices, uint32_t count)
{
    const struct device *all = problem->cluster->devices;
    if (problem->workload->method != METHOD_FULL || !problem->blocks.tied)
        return;
    for (uint32_t i = 1; i + 1 < count; i++) {
        uint32_t device = devices[i];
        if (all[device].node != all[devices[0]].node)
            continue;
        memmove(&devices[i], &devices[i + 1], (count - i - 1) * sizeof(*devices));
        devices[count - 1] = device;
        return;
    }
}

int pipeline_propose_many(const struct problem *problem, struct choice_list *list, struct err *err)
{
    uint32_t sizes[MICRO_SIZES_MAX], size_count = micro_sizes(problem, sizes), count = 0;
    struct candidate *all = calloc(problem->device_count, sizeof(*all));
    uint32_t *devices = calloc(problem->device_count, sizeof(*devices));
    int result = all && devices ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t d = 0; d < problem->device_count && result == 0; d++) {
        if (!problem->usable[d])
            continue;
        const struct cost_load *row = &problem->mean_row;
        all[count++] = (struct candidate){
            .device = d,
            .node = problem->cluster->devices[d].node,
            .seconds_per_row = problem_seconds(problem, d, 0, problem->block_count, COST_FORWARD, row) +
                               problem_seconds(problem, d, 0, problem->block_count, COST_BACKWARD, row),
            .memory = problem->cluster->devices[d].memory_limit_bytes};
    }
    if (result == 0 && problem->workload->stages == 0)
        result = many_propose(problem, 1, list, err);
    if (result == 0 && count > SMALL && problem->workload->stages == 0)
        count = 0;
    uint32_t most = count < PIPELINE_STAGES_MAX ? count : PIPELINE_STAGES_MAX;
    most = most < (uint32_t)problem->block_count ? most : (uint32_t)problem->block_count;
    for (uint32_t stages = most; stages >= 2 && result == 0;
         stages = stages > 8 ? stages * 3 / 4 : stages - 1) {
        if (problem->workload->stages && stages != problem->workload->stages)
            stages = problem->workload->stages < most ? problem->workload->stages : most;
        for (size_t o = 0; o < sizeof(orders) / sizeof(orders[0]) && result == 0; o++) {
            qsort(all, count, sizeof(*all), fast_first);         /* the fastest are kept … */
            qsort(all, stages, sizeof(*all), orders[o].compare); /* … in this order */
            for (uint32_t i = 0; i < stages; i++)
                devices[i] = all[i].device;
            ends_join(problem, devices, stages);
            for (uint32_t i = 0; i < size_count && result == 0; i++) {
                if (list->evaluations >= list->evaluations_max)
                    break;
                struct pipe_table table;
                result = pipe_table_init(&table, problem, sizes[i], err);
                if (result == 0)
                    result = pipeline_try(problem, &table, devices, stages,
                                          stages <= REFINED_STAGES ? PIPELINE_REFINE : PIPELINE_BALANCE, list,
                                          err);
                pipe_table_fini(&table);
            }
        }
        if (problem->workload->stages)
            break;
    }
    free(all);
    free(devices);
    return result;
}
