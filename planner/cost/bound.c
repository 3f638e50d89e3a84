/* Lower bounds of a step. */
#include "planner/cost/bound.h"

#include <math.h>

/* rows per step / Σ 1/t_d, t_d the least seconds a row takes through all blocks on d at its best micro-batch.
 */
static double mean_rows(const struct problem *p)
{
    double rate = 0;
    for (uint32_t d = 0; d < p->device_count; d++) {
        double best = INFINITY;
        if (!p->usable[d])
            continue;
        for (uint32_t rows = 1; rows <= p->workload->batch_rows; rows *= 2) {
            struct cost_load load = p->mean_row;
            load.rows *= rows;
            load.tokens *= rows;
            load.sum_sq *= rows;
            load.labelled *= rows;
            double seconds = (problem_seconds(p, d, 0, p->block_count, COST_FORWARD, &load) +
                              problem_seconds(p, d, 0, p->block_count, COST_BACKWARD, &load)) /
                             rows;
            best = seconds < best ? seconds : best;
        }
        rate += best > 0 ? 1 / best : 0;
    }
    return rate > 0 ? p->mean_step.rows / rate : 0;
}

static double work_of(const struct cost_curve *curve, const struct cost_load *load)
{
    return curve->per_token * load->tokens + curve->per_square * load->sum_sq +
           curve->per_labelled * load->labelled;
}

/* Least seconds a unit of work, up to the largest step's: of a curve of straight pieces at one of its points,
 * or at its end. Work is a sum over rows, so this times the work of a step is what the step takes at least,
 * however its rows are put together. */
static double least_rate(const struct problem *p, const struct cost_curve *curve, enum cost_way way)
{
    const struct cost_point *points = curve->points;
    double most = 0, least = points[0].work > 0 ? points[0].seconds[way] / points[0].work : 0;
    for (uint32_t s = 0; s < p->step_count; s++) {
        struct cost_load load = problem_load(p, s, 0, p->steps[s].rows);
        double work = work_of(curve, &load);
        if (work > 0)
            least = fmin(least, cost_curve_seconds(curve, way, &load) / work);
        most = fmax(most, work);
    }
    for (uint32_t i = 1; i < curve->count && points[i].work <= most; i++)
        least = fmin(least, points[i].seconds[way] / points[i].work);
    return least;
}

/* Seconds of all blocks of each class on a device, a mean step's rows; false when they are priced by their
 * parts. */
static bool class_seconds(const struct problem *p, uint32_t d, double seconds[COST_CLASSES])
{
    for (int cls = 0; cls < COST_CLASSES; cls++) {
        const struct cost_curve *curve = &p->costs[d].curves[cls];
        uint32_t blocks = p->prefix[p->block_count][cls];
        seconds[cls] = 0;
        if (blocks == 0)
            continue;
        if (curve->count == 0)
            return false;
        for (int way = COST_FORWARD; way <= COST_BACKWARD; way++)
            seconds[cls] += blocks * least_rate(p, curve, (enum cost_way)way) * work_of(curve, &p->mean_step);
    }
    return true;
}

/* A device that does shares x of the classes' work takes Σ x·s_cls ≥ t_d Σ x·min_d (s_cls/t_d), t_d its
 * seconds for all of them; summed over devices, whose shares are one in all: T Σ 1/t_d ≥ Σ min_d (s_cls/t_d).
 */
static double uneven_rows(const struct problem *p)
{
    double least[COST_CLASSES], rate = 0, all = 0;
    for (int cls = 0; cls < COST_CLASSES; cls++)
        least[cls] = INFINITY;
    for (uint32_t d = 0; d < p->device_count; d++) {
        double seconds[COST_CLASSES], total = 0;
        if (!p->usable[d])
            continue;
        if (!class_seconds(p, d, seconds))
            return INFINITY;
        for (int cls = 0; cls < COST_CLASSES; cls++)
            total += seconds[cls];
        if (!(total > 0))
            return 0;
        rate += 1 / total;
        for (int cls = 0; cls < COST_CLASSES; cls++)
            least[cls] = fmin(least[cls], seconds[cls] / total);
    }
    for (int cls = 0; cls < COST_CLASSES; cls++)
        all += isfinite(least[cls]) ? least[cls] : 0;
    return rate > 0 ? all / rate : 0;
}

enum { WORK_ATTENTION, WORK_EXPERTS, WORK_OTHER, WORK_KINDS };

/* Least seconds a row of each kind of work on a device, each at its own best micro-batch. */
static void least_seconds(const struct problem *p, uint32_t d, double least[WORK_KINDS])
{
    const struct cost_device *cost = &p->costs[d];
    const uint32_t *classes = p->prefix[p->block_count];
    for (int kind = 0; kind < WORK_KINDS; kind++)
        least[kind] = INFINITY;
    for (uint32_t rows = 1; rows <= p->workload->batch_rows; rows *= 2) {
        struct cost_load load = problem_mean_rows(p, rows);
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

/* Rows · Σ over kinds of work of min over devices (t_d,kind / t_d) / Σ 1/t_d: the bound of docs/PLANNER.md,
 * which takes a row to pass all blocks on one device, made true where one device may be better at attention
 * and another at experts (the dual of sharing out the kinds of work, at prices 1/t_d). Equal to it when
 * devices differ in speed alone. */
static double experts_apart(const struct problem *p)
{
    /* share: the least part of its time that a device gives to a row of each kind of work */
    double rate = 0, bound = 0, share[WORK_KINDS] = {INFINITY, INFINITY, INFINITY};
    for (uint32_t d = 0; d < p->device_count; d++) {
        double least[WORK_KINDS];
        if (!p->usable[d])
            continue;
        least_seconds(p, d, least);
        double all = least[WORK_ATTENTION] + least[WORK_EXPERTS] + least[WORK_OTHER];
        rate += 1 / all;
        for (int kind = 0; kind < WORK_KINDS; kind++)
            share[kind] = fmin(share[kind], least[kind] / all);
    }
    for (int kind = 0; kind < WORK_KINDS; kind++)
        bound += share[kind];
    return rate > 0 ? p->mean_step.rows * bound / rate : 0;
}

double bound_time(const struct problem *p)
{
    double bound = fmin(mean_rows(p), uneven_rows(p));
    bool parts = p->prefix[p->block_count][COST_LAYER_SPARSE] > 0; /* may be on the devices best at each */
    return parts ? fmin(bound, experts_apart(p)) : bound;
}
