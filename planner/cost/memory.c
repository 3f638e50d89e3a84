/* model/shape/footprint.h says what the engine allocates; the other rules are docs/PLANNER.md's, Memory. */
#include "planner/cost/memory.h"

#include <string.h>

/* Bytes of a frozen base (docs/PLANNER.md, Memory). */
static double frozen_bytes(const struct problem *p, double params, uint64_t matrix_params)
{
    double matrices = (double)matrix_params;
    return (params - matrices) * workload_other_bytes(p->workload) +
           matrices * workload_matrix_bytes(p->workload);
}

static double value_bytes(const struct problem *p)
{
    const struct workload *w = p->workload;
    return w->method == METHOD_FULL && w->compute != COMPUTE_FP32 ? 6 : 4;
}

double memory_state_bytes(const struct problem *problem)
{
    return value_bytes(problem) + 4 + workload_moment_bytes(problem->workload);
}

static struct problem_params params_of(const struct problem *p, int32_t begin, int32_t end)
{
    const struct problem_params *a = &p->params[begin], *b = &p->params[end];
    return (struct problem_params){
        .all = b->all - a->all, .matrices = b->matrices - a->matrices, .adapters = b->adapters - a->adapters};
}

uint64_t memory_trained(const struct problem *problem, int32_t begin, int32_t end)
{
    struct problem_params params = params_of(problem, begin, end);
    return problem->workload->method == METHOD_FULL ? params.all : params.adapters;
}

uint64_t memory_gathered_bytes(const struct problem *problem, int32_t begin, int32_t end)
{
    const struct workload *w = problem->workload;
    struct problem_params params = params_of(problem, begin, end);
    if (w->method == METHOD_LORA)
        return (uint64_t)frozen_bytes(problem, (double)params.all, params.matrices);
    return params.all * (uint64_t)workload_value_bytes(w);
}

bool memory_trains_table(const struct problem *problem)
{
    return problem->workload->method == METHOD_FULL || problem->workload->saves_embedding;
}

uint64_t memory_table_bytes(const struct problem *problem)
{
    return problem->workload->method == METHOD_FULL ? memory_gathered_bytes(problem, 0, 1)
                                                    : memory_gradient_bytes(problem, 0, 1);
}

uint64_t memory_gradient_bytes(const struct problem *problem, int32_t begin, int32_t end)
{
    return 4 * memory_trained(problem, begin, end);
}

/* Bytes of weights by docs/PLANNER.md, Memory: 16 or 18 bytes per trained parameter. */
static void weights_estimated(const struct problem *p, const struct memory_stage *m, struct memory_need *need)
{
    struct problem_params params = params_of(p, m->block_begin, m->block_end);
    bool full = p->workload->method == METHOD_FULL;
    if (m->block_end == p->block_count && m->block_begin > 0 && !m->sharded && !memory_trains_table(p))
        params.all +=
            p->blocks.tied_params; /* the copy for the head; a trained copy is counted among buffers */
    double frozen = full ? 0 : frozen_bytes(p, (double)params.all, params.matrices);
    double trained = (double)(full ? params.all : params.adapters);
    double share = m->state_share > 0 ? m->state_share : 0, cut = m->tensor_share > 0 ? m->tensor_share : 1;
    need->purpose[PURPOSE_WEIGHTS] = (uint64_t)(frozen * (m->sharded ? m->frozen_share : share) * cut);
    need->purpose[PURPOSE_ADAPTERS] = (uint64_t)(trained * (value_bytes(p) + 4) * share * cut);
    need->purpose[PURPOSE_OPTIMIZER] = (uint64_t)(trained * workload_moment_bytes(p->workload) * share * cut);
}

/* Bytes of activations by docs/PLANNER.md, Memory: if the engine's sizes are unknown, values computed in
 * 16 bits are kept in 16 bits. */
static uint64_t counted(const struct problem *p, uint64_t bytes, bool exact)
{
    return footprint_counted(exact || p->workload->compute == COMPUTE_FP32 ? bytes : bytes / 2);
}

/* Bytes of the copy of a tied embedding that an unsharded stage keeps. */
static uint64_t table_copy_bytes(const struct problem *p, const struct memory_stage *m,
                                 const struct footprint *held, bool exact)
{
    if (m->sharded || !held->copies_table)
        return 0;
    return exact ? 2 * footprint_counted(held->table_bytes)
                 : memory_table_bytes(p) + memory_gradient_bytes(p, 0, 1);
}

void memory_stage_need(const struct problem *problem, const struct memory_stage *stage,
                       struct memory_need *need)
{
    struct footprint_options options = {.train = true,
                                        .recompute = stage->recompute,
                                        .split = stage->split,
                                        .block_begin = (uint32_t)stage->block_begin,
                                        .block_end = (uint32_t)stage->block_end,
                                        .slots = stage->window ? stage->window : 1,
                                        .tokens = problem_tokens_bound(problem, stage->micro_batch_rows),
                                        .rows = stage->micro_batch_rows,
                                        .labelled = problem_labelled_bound(problem, stage->micro_batch_rows),
                                        .positions = problem->sequence_bound,
                                        .moments_on_host = problem->workload->moments_on_host};
    struct footprint held;
    memset(need, 0, sizeof(*need));
    if (stage->block_end <= stage->block_begin)
        return;
    footprint_of(&problem->footprint, &options, &held);
    need->exact = stage->state_share >= 1 && stage->tensor_share >= 1 && !stage->sharded;
    if (need->exact) {
        need->purpose[PURPOSE_WEIGHTS] = held.weights;
        need->purpose[PURPOSE_ADAPTERS] = held.adapters;
        need->purpose[PURPOSE_OPTIMIZER] = held.optimizer;
        need->host_bytes = held.host;
    } else {
        weights_estimated(problem, stage, need);
    }
    need->saved_bytes = counted(problem, held.slot.bytes, need->exact);
    need->purpose[PURPOSE_ACTIVATIONS] = need->saved_bytes * options.slots;
    if (problem->workload->sample_tokens)
        need->cache_bytes = footprint_counted(footprint_cache_bytes(&held, options.positions));
    need->boundary_bytes =
        footprint_counted((uint64_t)problem_boundary_bytes(problem, options.tokens, options.rows));
    need->work_bytes = counted(problem, held.workspace.bytes, need->exact);
    need->purpose[PURPOSE_BUFFERS] = need->work_bytes + footprint_counted(held.scalar_bytes) +
                                     stage->boundary_buffers * need->boundary_bytes + need->cache_bytes +
                                     stage->buffer_bytes +
                                     table_copy_bytes(problem, stage, &held, need->exact);
    for (int i = 0; i < PURPOSE_COUNT; i++)
        need->total += need->purpose[i];
}
