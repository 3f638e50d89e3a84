/* No placement of a model with experts can be faster than this. */
#include <math.h>

#include "planner/expert/expert.h"

enum { WORK_ATTENTION, WORK_EXPERTS, WORK_OTHER, WORK_KINDS };

static struct cost_load rows_of(const struct problem *p, double rows)
{
    return (struct cost_load){.rows = p->mean_row.rows * rows,
                              .tokens = p->mean_row.tokens * rows,
                              .sum_sq = p->mean_row.sum_sq * rows,
                              .labelled = p->mean_row.labelled * rows};
}

/* Least seconds a row of each kind of work on a device, each at its own best micro-batch. */
static void least_seconds(const struct problem *p, uint32_t d, double least[WORK_KINDS])
{
    const struct cost_device *cost = &p->costs[d];
    const uint32_t *classes = p->prefix[p->block_count];
    for (int kind = 0; kind < WORK_KINDS; kind++)
        least[kind] = INFINITY;
    for (uint32_t rows = 1; rows <= p->workload->batch_rows; rows *= 2) {
        struct cost_load load = rows_of(p, rows);
        double now[WORK_KINDS] = {0}, each = load.tokens * cost->experts_active / cost->experts;
        for (int way = COST_FORWARD; way <= COST_BACKWARD; way++) {
            now[WORK_ATTENTION] += cost_part_seconds(cost, COST_PART_ATTENTION, (enum cost_way)way, &load) +
                                   cost_part_seconds(cost, COST_PART_ROUTER, (enum cost_way)way, &load);
            now[WORK_EXPERTS] += cost_experts_seconds(cost, (enum cost_way)way, cost->experts, each);
            for (int cls = 0; cls < COST_CLASSES; cls++) {
                if (cls != COST_LAYER_SPARSE && classes[cls])
                    now[WORK_OTHER] += classes[cls] * cost_class_seconds(cost, (enum cost_class)cls,
                                                                         (enum cost_way)way, &load);
            }
        }
        now[WORK_ATTENTION] *= classes[COST_LAYER_SPARSE];
        now[WORK_EXPERTS] *= classes[COST_LAYER_SPARSE];
        for (int kind = 0; kind < WORK_KINDS; kind++)
            least[kind] = fmin(least[kind], now[kind] / rows);
    }
}

double expert_lower_bound(const struct problem *p)
{
    double rate = 0, bound = 0;
    for (uint32_t d = 0; d < p->device_count; d++) {
        double least[WORK_KINDS];
        if (!p->usable[d])
            continue;
        least_seconds(p, d, least);
        rate += 1 / (least[WORK_ATTENTION] + least[WORK_EXPERTS] + least[WORK_OTHER]);
    }
    for (int kind = 0; kind < WORK_KINDS && rate > 0; kind++) {
        double share = INFINITY; /* the least part of its time that a device gives to a row of it */
        for (uint32_t d = 0; d < p->device_count; d++) {
            double least[WORK_KINDS];
            if (!p->usable[d])
                continue;
            least_seconds(p, d, least);
            share =
                fmin(share, least[kind] / (least[WORK_ATTENTION] + least[WORK_EXPERTS] + least[WORK_OTHER]));
        }
        bound += share;
    }
    return rate > 0 ? p->mean_step.rows * bound / rate : 0;
}
