#include "planner/cost/bound.h"

#include <math.h>

#include "planner/cost/taught.h"

/* Returns the bound rows per step / Σ 1/t_d, where t_d is the least seconds that one row takes through all
 * blocks on device d, at its best micro-batch. */
static double mean_rows(const struct problem *p)
{
    double rate = 0;
    for (uint32_t d = 0; d < p->device_count; d++) {
        double best = INFINITY;
        if (!p->usable[d])
            continue;
        for (uint32_t rows = 1; rows <= p->workload->batch_rows; rows *= 2) {
            struct cost_load load = problem_mean_rows(p, rows);
            double seconds = (problem_seconds(p, d, 0, p->block_count, COST_FORWARD, &load) +
                              problem_seconds(p, d, 0, p->block_count, COST_BACKWARD, &load)) /
                             rows;
            best = seconds < best ? seconds : best;
        }
        rate += best > 0 ? 1 / best : 0;
    }
    return rate > 0 ? p->mean_step.rows / rate : 0;
}

/* Returns the least seconds per unit of work, up to the work of the largest step. A piecewise linear curve
 * has its least rate at one of its points or at the end. Work is a sum over rows, so this rate times the work
 * of a step bounds the step's seconds, however its rows are divided. */
static double least_rate(const struct problem *p, const struct cost_curve *curve, enum cost_way way)
{
    const struct cost_point *points = curve->points;
    double most = 0, least = points[0].work > 0 ? points[0].seconds[way] / points[0].work : 0;
    for (uint32_t s = 0; s < p->step_count; s++) {
        struct cost_load load = problem_load(p, s, 0, p->steps[s].rows);
        double work = cost_curve_work(curve, &load);
        if (work > 0)
            least = fmin(least, cost_curve_seconds(curve, way, &load) / work);
        most = fmax(most, work);
    }
    for (uint32_t i = 1; i < curve->count && points[i].work <= most; i++)
        least = fmin(least, points[i].seconds[way] / points[i].work);
    return least;
}

/* Writes a device's seconds for all blocks of each class and the rows of a mean step. Returns false if some
 * class has no curve of its own because it is priced by its parts. */
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
            seconds[cls] +=
                blocks * least_rate(p, curve, (enum cost_way)way) * cost_curve_work(curve, &p->mean_step);
    }
    return true;
}

/* Let s_cls be a device's seconds for a class and t_d for all classes. A device that does the shares x of
 * the classes takes Σ x·s_cls ≥ t_d Σ x·min_d (s_cls/t_d). Over all devices the shares sum to 1, so T Σ
 * 1/t_d ≥ Σ min_d (s_cls/t_d). */
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

/* Writes the least seconds per row of each kind of work on a device, each at its own best micro-batch. */
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
            now[WORK_ATTENTION] += cost_attention_seconds(cost, (enum cost_way)way, &load);
            now[WORK_EXPERTS] += cost_experts_seconds(cost, (enum cost_way)way, cost->experts, each);
            for (int cls = 0; cls < COST_CLASSES; cls++)
                if (cls != COST_LAYER_SPARSE && classes[cls])
                    now[WORK_OTHER] += classes[cls] * cost_class_seconds(cost, (enum cost_class)cls,
                                                                         (enum cost_way)way, &load);
        }
        now[WORK_ATTENTION] *= classes[COST_LAYER_SPARSE];
        now[WORK_EXPERTS] *= classes[COST_LAYER_SPARSE];
        for (int kind = 0; kind < WORK_KINDS; kind++)
            least[kind] = fmin(least[kind], now[kind] / rows);
    }
}

/* Returns the bound rows · Σ_kind min_d (t_d,kind / t_d) / Σ 1/t_d. docs/PLANNER.md's bound assumes that a
 * row passes all blocks on one device; this one stays true if one device is better at attention and another
 * at experts. It is the dual of distributing the kinds of work, at prices 1/t_d, and equals the simple bound
 * if devices differ in speed alone. */
static double experts_apart(const struct problem *p)
{
    /* share[kind]: the least share of a row's time that this kind of work takes on any device */
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
    /* In a model with experts, attention and experts may each be on the devices that are fastest at it. */
    bool parts = p->prefix[p->block_count][COST_LAYER_SPARSE] > 0;
    return (parts ? fmin(bound, experts_apart(p)) : bound) * taught_least(p);
}
