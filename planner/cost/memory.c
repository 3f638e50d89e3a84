/* Computes a rank's memory. model/shape/footprint.h says what the engine allocates; the other rules are in
 * docs/PLANNER.md, Memory. */
#include "planner/cost/memory.h"

#include <string.h>

uint64_t memory_trained(const struct problem *problem, int32_t begin, int32_t end)
{
    const struct problem_params *a = &problem->params[begin], *b = &problem->params[end];
    return problem->workload->method == METHOD_FULL ? b->all - a->all : b->adapters - a->adapters;
}

uint64_t memory_trained_bytes(const struct problem *problem, int32_t begin, int32_t end)
{
    return problem->params[end].trained_bytes - problem->params[begin].trained_bytes;
}

uint64_t memory_gathered_bytes(const struct problem *problem, int32_t begin, int32_t end)
{
    if (problem->workload->method == METHOD_LORA)
        return problem->params[end].frozen_bytes - problem->params[begin].frozen_bytes;
    return memory_trained_bytes(problem, begin, end);
}

double memory_shared_bytes(const struct problem *problem, enum memory_outside outside, int32_t begin,
                           int32_t end)
{
    const struct problem_params *a = &problem->params[begin], *b = &problem->params[end];
    uint64_t moments = b->moment_bytes - a->moment_bytes, page = 0;
    if (outside == OUTSIDE_FROZEN)
        return (double)(b->frozen_bytes - a->frozen_bytes);
    for (int32_t block = begin; block < end && problem->workload->moments_on_host; block++) {
        uint64_t own = problem_tensors(problem, block)->moment_bytes;
        page = own > page ? own : page;
    }
    return (double)(2 * (b->trained_bytes - a->trained_bytes)) +
           2 * (double)(problem->workload->moments_on_host ? page : moments);
}

/* Bytes by which a shard may exceed its share of a block. SLACK_CUT: a shard may begin up to 256 values of 4
 * bytes later. SLACK_PADS: codes and scales of 8-bit moments are padded to 64 bytes at both ends.
 * SLACK_AREAS: a block has four areas: values, gradients and two moments. SLACK_SUM: a tensor's sum of
 * squares. */
enum { SLACK_CUT = 1024, SLACK_PADS = 4 * 64, SLACK_AREAS = 4, SLACK_SUM = 8 };

uint64_t memory_share_slack(const struct problem *problem, int32_t begin, int32_t end)
{
    uint64_t blocks = (uint64_t)(end - begin), pieces = 0;
    struct footprint whole = {.model = &problem->footprint, .has_embedding = true, .shares_table = true};
    struct footprint_alike list[FOOTPRINT_ALIKE_MAX];
    uint32_t count = footprint_alike(&whole, (uint32_t)begin, (uint32_t)end, list);
    for (uint32_t i = 0; i < count; i++)
        pieces += (uint64_t)list[i].count * list[i].tensors->parameters;
    return blocks * SLACK_AREAS * (FOOTPRINT_GRANULE + SLACK_CUT + SLACK_PADS) + SLACK_SUM * pieces +
           FOOTPRINT_GRANULE;
}

bool memory_trains_table(const struct problem *problem)
{
    return problem->workload->method == METHOD_FULL || problem->workload->saves_embedding;
}

uint64_t memory_table_bytes(const struct problem *problem)
{
    return memory_trained_bytes(problem, 0, 1);
}

uint64_t memory_gradient_bytes(const struct problem *problem, int32_t begin, int32_t end)
{
    return 4 * memory_trained(problem, begin, end);
}

/* --- a stage --- */

void memory_kept_add(const struct problem *p, enum memory_outside outside, struct flat_share share,
                     int32_t begin, int32_t end, struct plan_range span, struct memory_kept *kept)
{
    struct footprint_alike list[FOOTPRINT_ALIKE_MAX];
    bool first = span.begin == 0, last = span.end == p->block_count;
    struct footprint held = {.model = &p->footprint,
                             .has_embedding = first,
                             .has_head = last,
                             .shares_table = first && last && p->blocks.tied,
                             .copies_table = last && !first && p->blocks.tied && memory_trains_table(p)};
    enum block_area area = outside == OUTSIDE_FROZEN ? AREA_FROZEN : AREA_TRAINED;
    uint32_t count = footprint_alike(&held, (uint32_t)begin, (uint32_t)end, list);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t from = flat_share_cut(list[i].tensors, area, share.begin),
                 to = flat_share_cut(list[i].tensors, area, share.end);
        if (area == AREA_FROZEN)
            kept->frozen += list[i].count * ((to - from + 63) / 64 * 64);
        else
            footprint_shard_add(&kept->shard, &list[i], from, to, true, p->workload->moments_on_host);
    }
}

void memory_kept_put(enum memory_outside outside, const struct memory_kept *kept, struct memory_need *need)
{
    uint64_t frozen = footprint_counted(kept->frozen), optimizer = footprint_shard_optimizer(&kept->shard),
             buffers = outside == OUTSIDE_TRAINED ? footprint_shard_buffers(&kept->shard) : 0;
    need->purpose[PURPOSE_WEIGHTS] += frozen;
    need->purpose[PURPOSE_ADAPTERS] += kept->shard.adapters;
    need->purpose[PURPOSE_OPTIMIZER] += optimizer;
    need->purpose[PURPOSE_BUFFERS] += buffers;
    need->total += frozen + kept->shard.adapters + optimizer + buffers;
    need->host_bytes += kept->shard.host;
    need->kept_values = outside == OUTSIDE_FROZEN ? frozen : kept->shard.adapters / 2;
}

uint64_t memory_head_table_bytes(const struct problem *problem)
{
    bool own = problem->blocks.tied && !memory_trains_table(problem);
    return own ? problem->footprint.head_alone.frozen_bytes - problem->footprint.head.frozen_bytes : 0;
}

/* Returns the bytes of the widest boundary tensor at the stage's ends. Where it shares a layer, a micro-batch
 * may cross behind its first or in front of its last one. */
static double stage_boundary(const struct problem *p, const struct memory_stage *stage, double tokens,
                             double rows)
{
    int32_t last = p->block_count - 1, begin = stage->block_begin > 1 ? stage->block_begin : 1,
            end = stage->block_end < last ? stage->block_end : last;
    double first = problem_boundary_width(p, begin, begin < last ? begin + 1 : last, false),
           behind = problem_boundary_width(p, end > 1 ? end - 1 : 1, end, false);
    return (first > behind ? first : behind) * tokens + p->bytes_per_row * rows;
}

/* Adds what the engine allocates when it makes the stage, and the KV cache. */
static void memory_stage_add(const struct problem *problem, const struct memory_stage *stage,
                             const struct footprint_options *options, const struct footprint *held,
                             struct memory_need *need)
{
    need->purpose[PURPOSE_WEIGHTS] = held->weights;
    need->purpose[PURPOSE_ADAPTERS] = held->adapters;
    need->purpose[PURPOSE_OPTIMIZER] = held->optimizer;
    need->host_bytes = held->host;
    need->saved_bytes = footprint_counted(held->slot.bytes);
    need->purpose[PURPOSE_ACTIVATIONS] = held->activations;
    if (problem->workload->sample_tokens)
        need->cache_bytes = footprint_counted(footprint_cache_bytes(held, options->positions));
    need->boundary_bytes =
        footprint_counted((uint64_t)stage_boundary(problem, stage, options->tokens, options->rows));
    need->work_bytes = footprint_counted(held->workspace.bytes);
    need->purpose[PURPOSE_BUFFERS] =
        held->buffers + stage->boundary_buffers * need->boundary_bytes + need->cache_bytes;
}

void memory_stage_need(const struct problem *problem, const struct memory_stage *stage,
                       struct memory_need *need)
{
    struct footprint_options options = {.train = true,
                                        .recompute = stage->recompute,
                                        .recompute_end = (uint32_t)stage->recompute_end,
                                        .split = stage->split,
                                        .block_begin = (uint32_t)stage->block_begin,
                                        .block_end = (uint32_t)stage->block_end,
                                        .slots = stage->window ? stage->window : 1,
                                        .tokens = problem_tokens_bound(problem, stage->micro_batch_rows),
                                        .rows = stage->micro_batch_rows,
                                        .labelled = problem_labelled_bound(problem, stage->micro_batch_rows),
                                        .positions = problem->sequence_bound,
                                        .outside_frozen = stage->outside == OUTSIDE_FROZEN,
                                        .outside_trained = stage->outside == OUTSIDE_TRAINED,
                                        .moments_on_host = problem->workload->moments_on_host};
    struct footprint held;
    memset(need, 0, sizeof(*need));
    if (stage->block_end <= stage->block_begin)
        return;
    if (stage->outside != OUTSIDE_NONE) {
        options.outside_begin = options.block_begin;
        options.outside_end = options.block_end;
    }
    footprint_of(&problem->footprint, &options, &held);
    if (!stage->keeps_only)
        memory_stage_add(problem, stage, &options, &held, need);
    need->purpose[PURPOSE_BUFFERS] += stage->buffer_bytes;
    for (int i = 0; i < PURPOSE_COUNT; i++)
        need->total += need->purpose[i];
    if (stage->kept.end > stage->kept.begin) {
        struct plan_range span = {stage->block_begin, stage->block_end};
        struct memory_kept kept = {0};
        memory_kept_add(problem, stage->outside, stage->kept, span.begin, span.end, span, &kept);
        memory_kept_put(stage->outside, &kept, need);
    }
}
