/* Pipelines over more devices than can be enumerated: a few orders, with the slowest left out in steps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/few/few_bound.h"
#include "planner/many/many.h"
#include "planner/pipeline/pipeline.h"

#define SMALL 16u          /* devices up to which arranging many is not all that is tried */
#define REFINED_STAGES 10u /* blocks are moved one by one up to so many stages */
#define LONG_CELLS 800u    /* devices * rows from which that is done for the best few alone */
#define LONG_REFINED 2u
#define FEW_ORDERS 96u /* orders of few devices, by few_bound.h, that are cut */
#define FEW_KEEP 4u    /* of them: what others promise is looked at, too */

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

/* A tied embedding that is trained goes to and fro between the first and the last stage every step: the last
 * is taken from the first one's node, if there is another device in it. */
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

/* Where it is looked: a number of stages in an order at a micro-batch size. */
struct spot {
    uint32_t stages, order, rows;
};

struct looker {
    const struct problem *problem;
    struct choice_list *list;
    struct candidate *all;
    uint32_t *devices, count;
    bool is_long;
    struct spot best[LONG_REFINED]; /* the best by balance alone, the last one first */
};

static int spot_try(struct looker *l, const struct spot *spot, enum pipeline_effort effort, struct err *err)
{
    double before = l->list->count ? l->list->choices[0].estimate_s : INFINITY;
    struct pipe_table table;
    qsort(l->all, l->count, sizeof(*l->all), fast_first);                      /* the fastest are kept … */
    qsort(l->all, spot->stages, sizeof(*l->all), orders[spot->order].compare); /* … in this order */
    for (uint32_t i = 0; i < spot->stages; i++)
        l->devices[i] = l->all[i].device;
    ends_join(l->problem, l->devices, spot->stages);
    int result = pipe_table_init(&table, l->problem, spot->rows, err);
    if (result == 0)
        result = pipeline_try(l->problem, &table, l->devices, spot->stages, effort, l->list, err);
    pipe_table_fini(&table);
    if (result == 0 && l->list->count && l->list->choices[0].estimate_s < before) {
        memmove(&l->best[1], &l->best[0], (LONG_REFINED - 1) * sizeof(l->best[0]));
        l->best[0] = *spot;
    }
    return result;
}

/* All orders and sizes at a number of stages. */
static int stages_try(struct looker *l, uint32_t stages, struct err *err)
{
    uint32_t sizes[MICRO_SIZES_MAX], size_count = micro_sizes(l->problem, sizes);
    bool refine = stages <= REFINED_STAGES && !l->is_long;
    int result = 0;
    for (uint32_t o = 0; o < sizeof(orders) / sizeof(orders[0]) && result == 0; o++) {
        for (uint32_t i = 0; i < size_count && result == 0; i++) {
            struct spot spot = {stages, o, sizes[i]};
            if (l->list->evaluations >= l->list->evaluations_max)
                break;
            result = spot_try(l, &spot, refine ? PIPELINE_REFINE : PIPELINE_BALANCE, err);
        }
    }
    return result;
}

int pipeline_propose_many(const struct problem *problem, struct choice_list *list, struct err *err)
{
    uint32_t count = 0;
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
    uint32_t most = count < PIPELINE_STAGES_MAX ? count : PIPELINE_STAGES_MAX,
             asked = problem->workload->stages;
    most = most < (uint32_t)problem->block_count ? most : (uint32_t)problem->block_count;
    struct looker looker = {.problem = problem, .list = list, .all = all, .devices = devices, .count = count};
    looker.is_long = (uint64_t)count * problem->workload->batch_rows >= LONG_CELLS;
    for (uint32_t stages = asked && asked < most ? asked : most; stages >= 2 && result == 0;
         stages = asked        ? 0
                  : stages > 8 ? stages * 3 / 4
                               : stages - 1)
        result = stages_try(&looker, stages, err);
    struct spot refined[LONG_REFINED];
    memcpy(refined, looker.best, sizeof(refined));
    if (looker.is_long && list->count == 0) /* no balance fits: one is moved about until it does */
        refined[0] = (struct spot){most < REFINED_STAGES ? most : REFINED_STAGES, 1, 1};
    for (uint32_t i = 0; i < LONG_REFINED && looker.is_long && result == 0; i++) {
        if (refined[i].stages && refined[i].stages <= REFINED_STAGES)
            result = spot_try(&looker, &refined[i], PIPELINE_REFINE, err);
    }
    free(all);
    free(devices);
    return result;
}

int pipeline_propose_few(const struct problem *problem, struct choice_list *list, struct err *err)
{
    if (list->must_use || !few_worth(problem, problem->device_count))
        return 0; /* tried beside a plan; arranged well enough */
    struct pipe_table *tables = calloc((size_t)problem->workload->batch_rows + 1, sizeof(*tables));
    struct few_bound *few = calloc(1, sizeof(*few));
    struct choice_list found = {.evaluations_max = list->evaluations_max, .runnable_on = list->runnable_on};
    int result = tables && few ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    if (result == 0)
        result = few_bound_walk(few, problem, true, NULL, err) < 0 ? -1 : 0;
    for (uint32_t i = 0; result == 0 && i < few->node_count && i < FEW_ORDERS; i++) {
        const struct few_node *node = &few->nodes[i];
        struct pipe_table *table = &tables[node->rows];
        uint32_t devices[FEW_DEVICES];
        bool refine = node->stages <= REFINED_STAGES;
        for (uint32_t s = 0; s < node->stages; s++)
            devices[s] = few->sets.device[__builtin_ctz(node->group[s])];
        if (table->rows == 0)
            result = pipe_table_init(table, problem, node->rows, err);
        if (result == 0)
            result = pipeline_try(problem, table, devices, node->stages,
                                  refine ? PIPELINE_REFINE : PIPELINE_BALANCE, &found, err);
    }
    if (result == 0)
        result = pipeline_variants(problem, &found, err);
    for (uint32_t i = 0; result == 0 && i < found.count && i < FEW_KEEP; i++)
        result = choice_list_add(list, &found.choices[i], err);
    list->evaluations += found.evaluations;
    choice_list_fini(&found);
    for (uint32_t rows = 0; tables && rows <= problem->workload->batch_rows; rows++)
        pipe_table_fini(&tables[rows]);
    if (few)
        few_bound_fini(few);
    free(few);
    free(tables);
    return result;
}
