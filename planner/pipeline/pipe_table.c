/* Real micro-batches for pipelines' estimates. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/memory.h"
#include "planner/pipeline/pipeline.h"

#define TABLE_ENTRIES_MAX ((size_t)1 << 12) /* beyond, a period of means must do */

uint32_t pipe_step(const struct problem *problem, uint32_t t)
{
    return (uint32_t)((uint64_t)problem->step_count * (2 * t + 1) / (2 * PIPE_STEPS));
}

int pipe_table_init(struct pipe_table *table, const struct problem *problem, uint32_t micro_batch_rows,
                    struct err *err)
{
    uint32_t count = micro_count(problem, micro_batch_rows);
    size_t each = (size_t)PIPE_STEPS * count;
    *table = (struct pipe_table){.rows = micro_batch_rows, .micro_batches = count};
    table->held = calloc(PIPE_HELD, sizeof(*table->held));
    if (!table->held)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    if (each * problem->device_count > TABLE_ENTRIES_MAX)
        return 0;
    table->cost = calloc(each * problem->device_count, sizeof(*table->cost));
    if (!table->cost) {
        pipe_table_fini(table);
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    for (uint32_t d = 0; d < problem->device_count; d++) {
        for (uint32_t t = 0; t < PIPE_STEPS && problem->usable[d]; t++) {
            uint32_t step = pipe_step(problem, t);
            for (uint32_t k = 0; k < count; k++) {
                struct cost_load load =
                    problem_load(problem, step, k * micro_batch_rows, (k + 1) * micro_batch_rows);
                micro_cost_load(&table->cost[d * each + (size_t)t * count + k], problem, d, &load);
            }
        }
    }
    for (uint32_t t = 0; t < PIPE_STEPS; t++) {
        table->same[t] = true;
        for (uint32_t d = 0; d < problem->device_count && table->same[t]; d++)
            table->same[t] = memcmp(&table->cost[d * each], &table->cost[d * each + (size_t)t * count],
                                    count * sizeof(*table->cost)) == 0;
    }
    return 0;
}

uint64_t pipe_table_memory(const struct pipe_table *table, const struct problem *problem, int32_t begin,
                           int32_t end, bool recompute, uint32_t window, uint32_t boundary_buffers)
{
    struct pipe_held *held =
        &table->held[(2 * ((uint32_t)begin * 37u + (uint32_t)end) + recompute) % PIPE_HELD];
    if (held->begin != begin || held->end != end || held->recompute != recompute) {
        struct memory_need need;
        struct memory_stage stage = {.block_begin = begin,
                                     .block_end = end,
                                     .window = 1,
                                     .micro_batch_rows = table->rows,
                                     .recompute = recompute,
                                     .state_share = 1,
                                     .tensor_share = 1};
        memory_stage_need(problem, &stage, &need);
        *held = (struct pipe_held){.begin = begin,
                                   .end = end,
                                   .recompute = recompute,
                                   .fixed_bytes = need.total - need.saved_bytes,
                                   .window_bytes = need.saved_bytes,
                                   .buffer_bytes = need.boundary_bytes};
    }
    return held->fixed_bytes + (window ? window : 1) * held->window_bytes +
           boundary_buffers * held->buffer_bytes;
}

void pipe_table_fini(struct pipe_table *table)
{
    free(table->cost);
    free(table->held);
    *table = (struct pipe_table){0};
}

/* Where a stage stands. */
struct stand {
    double busy;
    uint32_t forwards, backwards; /* done */
};

static bool may_go(const struct stand *stands, uint32_t stages, uint32_t s, uint32_t micro_batches,
                   uint32_t window, bool *forward)
{
    const struct stand *at = &stands[s];
    *forward = at->forwards < micro_batches && at->forwards < at->backwards + window;
    if (*forward)
        return s == 0 || at[-1].forwards > at->forwards;
    return at->backwards < at->forwards && (s + 1 == stages || at[1].backwards > at->backwards);
}

double pipe_recurrence(uint32_t stages, uint32_t micro_batches, const double *f, const double *b,
                       const double *link_s, const uint32_t *windows, double *scratch)
{
    double *forward = scratch, *backward = scratch + (size_t)stages * micro_batches, end = 0;
    struct stand *stands = (struct stand *)(void *)(backward + (size_t)stages * micro_batches);
    uint32_t left = 2 * stages * micro_batches;
    for (uint32_t s = 0; s < stages; s++)
        stands[s] = (struct stand){0};
    while (left > 0) {
        uint32_t before = left;
        for (uint32_t s = 0; s < stages; s++) {
            bool forwards;
            while (may_go(stands, stages, s, micro_batches, windows[s], &forwards)) {
                struct stand *at = &stands[s];
                size_t row = (size_t)s * micro_batches, k = forwards ? at->forwards++ : at->backwards++;
                double ready = at->busy, came = 0;
                if (forwards && s > 0)
                    came = forward[row - micro_batches + k] + link_s[s - 1];
                if (!forwards && s + 1 < stages)
                    came = backward[row + micro_batches + k] + link_s[s];
                at->busy = (came > ready ? came : ready) + (forwards ? f : b)[row + k];
                (forwards ? forward : backward)[row + k] = at->busy;
                end = at->busy > end ? at->busy : end;
                left--;
            }
        }
        if (left == before)
            return INFINITY;
    }
    return end;
}
