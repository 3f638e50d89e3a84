/* Micro-batches at their mean. */
#include "planner/cost/micro.h"

#include <stdlib.h>

#include "model/order.h"

#define MEANS_MOST 4096u /* devices · sizes of which mean micro-batches are priced beforehand */

uint32_t micro_sizes(const struct problem *problem, uint32_t sizes[MICRO_SIZES_MAX])
{
    uint32_t batch = problem->workload->batch_rows, count = 0;
    if (problem->workload->micro_batch_rows) {
        sizes[0] = problem->workload->micro_batch_rows;
        return 1;
    }
    for (uint32_t base = 1; base < batch && count + 3 < MICRO_SIZES_MAX; base *= 2) {
        sizes[count++] = base;
        if (base >= 2 && base + base / 2 < batch)
            sizes[count++] = base + base / 2;
    }
    sizes[count++] = batch;
    return count;
}

uint32_t micro_count(const struct problem *problem, uint32_t micro_batch_rows)
{
    return order_micro_batch_count(problem->workload->batch_rows, micro_batch_rows);
}

bool micro_recompute_allowed(const struct problem *problem, bool recompute)
{
    enum workload_recompute asked = problem->workload->recompute;
    return asked == RECOMPUTE_AUTO || recompute == (asked == RECOMPUTE_YES);
}

void micro_cost_load(struct micro_cost *cost, const struct problem *problem, uint32_t device,
                     const struct cost_load *load)
{
    for (int cls = 0; cls < COST_CLASSES; cls++) {
        for (int way = 0; way < COST_WAYS; way++)
            cost->seconds[cls][way] =
                cost_class_seconds(&problem->costs[device], (enum cost_class)cls, (enum cost_way)way, load);
    }
}

struct cost_load micro_load_mean(const struct problem *problem, uint32_t micro_batches)
{
    return (struct cost_load){.rows = problem->mean_step.rows / micro_batches,
                              .tokens = problem->mean_step.tokens / micro_batches,
                              .sum_sq = problem->mean_step.sum_sq / micro_batches,
                              .labelled = problem->mean_step.labelled / micro_batches};
}

static void mean_cost(struct micro_cost *cost, const struct problem *problem, uint32_t device, uint32_t count)
{
    struct cost_load load = micro_load_mean(problem, count);
    micro_cost_load(cost, problem, device, &load);
}

void micro_cost_init(struct micro_cost *cost, const struct problem *problem, uint32_t device,
                     uint32_t micro_batch_rows)
{
    if (problem->means && micro_batch_rows <= problem->workload->batch_rows)
        *cost = problem->means[(size_t)problem->mean_of[micro_batch_rows] * problem->device_count + device];
    else
        mean_cost(cost, problem, device, micro_count(problem, micro_batch_rows));
}

int micro_means_init(struct problem *p, struct err *err)
{
    uint32_t batch = p->workload->batch_rows, kinds = 0, last = 0;
    for (uint32_t rows = 1; rows <= batch && (uint64_t)kinds * p->device_count <= MEANS_MOST; rows++) {
        kinds += micro_count(p, rows) != last;
        last = micro_count(p, rows);
    }
    if ((uint64_t)kinds * p->device_count > MEANS_MOST)
        return 0;
    p->mean_of = calloc((size_t)batch + 1, sizeof(*p->mean_of));
    p->means = calloc((size_t)kinds * p->device_count + 1, sizeof(*p->means));
    if (!p->mean_of || !p->means)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    kinds = last = 0;
    for (uint32_t rows = 1; rows <= batch; rows++) {
        uint32_t count = micro_count(p, rows);
        for (uint32_t d = 0; d < p->device_count && count != last; d++)
            mean_cost(&p->means[(size_t)kinds * p->device_count + d], p, d, count);
        kinds += count != last;
        last = count;
        p->mean_of[rows] = kinds - 1;
    }
    return 0;
}

static double classes_sum(const struct problem *problem, const struct micro_cost *cost, int32_t begin,
                          int32_t end, enum cost_way way)
{
    double seconds = 0;
    for (int cls = 0; cls < COST_CLASSES; cls++)
        seconds += (problem->prefix[end][cls] - problem->prefix[begin][cls]) * cost->seconds[cls][way];
    return seconds;
}

double micro_forward(const struct problem *problem, const struct micro_cost *cost, int32_t begin, int32_t end)
{
    return classes_sum(problem, cost, begin, end, COST_FORWARD);
}

double micro_backward(const struct problem *problem, const struct micro_cost *cost, int32_t begin,
                      int32_t end, bool recompute)
{
    double seconds = classes_sum(problem, cost, begin, end, COST_BACKWARD);
    return recompute ? seconds + classes_sum(problem, cost, begin, end, COST_RECOMPUTE) : seconds;
}

void micro_row(const struct problem *problem, const struct micro_cost *costs, uint32_t count, int32_t begin,
               int32_t end, bool recompute, double *forward, double *backward)
{
    struct {
        enum cost_class cls;
        double blocks;
    } held[COST_CLASSES];
    uint32_t classes = 0;
    for (int cls = 0; cls < COST_CLASSES; cls++) {
        uint32_t blocks = problem->prefix[end][cls] - problem->prefix[begin][cls];
        held[classes].cls = (enum cost_class)cls;
        held[classes].blocks = blocks;
        classes += blocks > 0;
    }
    for (uint32_t k = 0; k < count; k++) {
        double there = 0, back = 0, again = 0;
        for (uint32_t c = 0; c < classes; c++) {
            const double *seconds = costs[k].seconds[held[c].cls];
            there += held[c].blocks * seconds[COST_FORWARD];
            back += held[c].blocks * seconds[COST_BACKWARD];
            again += held[c].blocks * seconds[COST_RECOMPUTE];
        }
        forward[k] = there;
        backward[k] = recompute ? back + again : back;
    }
}

double micro_weight_share(const struct problem *problem, int32_t begin, int32_t end,
                          const struct cost_load *load)
{
    bool full = problem->workload->method == METHOD_FULL;
    double weight = 0, input = 0;
    for (int32_t b = begin; b < end; b++) {
        const struct block *block = &problem->blocks.blocks[b];
        double tokens = block->kind == BLOCK_HEAD ? load->labelled : load->tokens, adapters = 0;
        for (uint32_t i = 0; i < block->part_count; i++)
            adapters += block->parts[i].lora_flops_per_token * block->parts[i].active;
        adapters = full ? 0 : adapters * tokens;
        double matrices = block->flops_per_token * tokens - adapters;
        weight += full ? matrices : adapters;
        input += matrices + adapters + 2 * block->flops_per_square * load->sum_sq;
    }
    return weight > 0 ? weight / (weight + input) : 0;
}
