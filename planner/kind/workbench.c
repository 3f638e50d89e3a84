#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/kind/kind.h"

void workbench_init(struct workbench *bench, const struct problem *problem, struct err *err)
{
    *bench = (struct workbench){.problem = problem, .rival_s = INFINITY, .err = err};
    const struct problem_step *step = &problem->steps[0];
    for (uint32_t i = 1; i < step->rows && !bench->uneven; i++)
        bench->uneven = step->sum[i + 1].tokens - step->sum[i].tokens != step->sum[1].tokens;
}

void workbench_fini(struct workbench *bench)
{
    schedule_fini(&bench->schedule);
    candidate_fini(&bench->best);
    free(bench->prices);
    free(bench->scale);
    free(bench->row_costs);
    free(bench->ends);
    free(bench->windows);
    for (uint32_t i = 0; i < bench->cost_count; i++)
        free(bench->costs[i]);
    memset(bench, 0, sizeof(*bench));
}

struct stage_price *workbench_prices(struct workbench *bench, uint32_t count)
{
    if (count <= bench->price_capacity)
        return bench->prices;
    struct stage_price *prices = realloc(bench->prices, count * sizeof(*prices));
    bench->prices = prices ? prices : bench->prices;
    double *ends = realloc(bench->ends, count * sizeof(*ends));
    bench->ends = ends ? ends : bench->ends;
    uint32_t *windows = realloc(bench->windows, count * sizeof(*windows));
    bench->windows = windows ? windows : bench->windows;
    if (!prices || !ends || !windows) {
        err_set(bench->err, ERR_NOMEM, "planner: out of memory");
        return NULL;
    }
    bench->price_capacity = count;
    return bench->prices;
}

const struct micro_cost *workbench_costs(struct workbench *bench, uint32_t rows)
{
    const struct problem *p = bench->problem;
    uint32_t count = micro_count(p, rows), at = 0;
    while (at < bench->cost_count && bench->cost_micro_batches[at] != count)
        at++;
    if (at < bench->cost_count)
        return bench->costs[at];
    if (at == MICRO_SIZES_MAX) { /* the last entry is replaced */
        at--;
        free(bench->costs[at]);
        bench->cost_count--;
    }
    bench->costs[at] = malloc(((size_t)p->device_count + 1) * sizeof(*bench->costs[at]));
    if (!bench->costs[at]) {
        err_set(bench->err, ERR_NOMEM, "planner: out of memory");
        return NULL;
    }
    for (uint32_t d = 0; d < p->device_count; d++)
        if (p->usable[d])
            micro_cost_init(&bench->costs[at][d], p, d, rows);
    bench->cost_micro_batches[at] = count;
    bench->cost_count++;
    return bench->costs[at];
}

const double *workbench_scale(struct workbench *bench, uint32_t rows)
{
    const struct problem *p = bench->problem;
    uint32_t count = micro_count(p, rows);
    double mean = p->mean_step.tokens / count;
    if (!bench->uneven && p->workload->batch_rows % rows == 0)
        return NULL;
    if (bench->scale_rows == rows)
        return bench->scale;
    double *scale = realloc(bench->scale, count * sizeof(*scale));
    if (!scale)
        return NULL; /* without factors, callers take all micro-batches as equal */
    for (uint32_t k = 0; k < count; k++)
        scale[k] = problem_load(p, 0, k * rows, (k + 1) * rows).tokens / mean;
    bench->scale = scale;
    bench->scale_rows = rows;
    return scale;
}
