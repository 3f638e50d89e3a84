/* Memory of a rank in an expert plan, from the layouts of model/shape/footprint.h by which the engine
 * allocates. A rank has one stage with attention, routers and all other blocks, one stage for the experts of
 * each layer, and one workspace for all of them (worker/program/experts.h). */
#include "planner/cost/expert_price.h"

#include <string.h>

#define FLOAT_BYTES ((uint64_t)sizeof(float))

static uint64_t expert_need_aligned(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

uint64_t expert_routed_bytes(const struct expert_model *model, uint64_t tokens, enum expert_routed what)
{
    uint64_t entry = expert_need_aligned(tokens * model->active * FLOAT_BYTES),
             x = tokens * model->hidden * FLOAT_BYTES;
    return what == ROUTED_OUTPUTS ? x : expert_need_aligned(x) + (what == ROUTED_TOKENS ? 2 : 1) * entry;
}

/* Returns the number of parameters that are trained in a part of a layer. */
static double trained_in(const struct problem *p, const struct block_part *part)
{
    return (double)(p->workload->method == METHOD_FULL ? part->params : part->lora_params);
}

static uint64_t expert_need_larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Adds a stage's memory. Stages share one workspace, so of their workspaces only the largest is recorded. */
static void expert_need_stage_add(const struct footprint *f, struct expert_need *need)
{
    need->all.purpose[PURPOSE_WEIGHTS] += f->weights;
    need->all.purpose[PURPOSE_ADAPTERS] += f->adapters;
    need->all.purpose[PURPOSE_OPTIMIZER] += f->optimizer;
    need->all.purpose[PURPOSE_ACTIVATIONS] += f->activations;
    need->all.purpose[PURPOSE_BUFFERS] += f->buffers - footprint_counted(f->workspace.bytes);
    need->all.host_bytes += f->host;
    need->all.work_bytes = expert_need_larger(need->all.work_bytes, footprint_counted(f->workspace.bytes));
}

/* Adds the bytes of a slot that has a buffer of `bytes` for each micro-batch of a wave. */
static void buffer_add(const struct expert_role *role, uint64_t bytes, struct expert_need *need)
{
    need->all.purpose[PURPOSE_BUFFERS] += role->wave * footprint_counted(bytes);
}

static struct footprint_options options_of(const struct problem *p, const struct expert_role *role)
{
    return (struct footprint_options){.train = true,
                                      .slots = role->wave,
                                      .positions = p->sequence_bound,
                                      .moments_on_host = p->workload->moments_on_host};
}

static void attention_need(const struct problem *p, const struct expert_model *model,
                           const struct expert_role *role, struct expert_need *need)
{
    struct footprint_options options = options_of(p, role);
    uint32_t labelled = problem_labelled_bound(p, role->all_rows);
    struct footprint f;
    options.recompute = role->recompute;
    options.block_end = (uint32_t)p->block_count;
    options.rows = role->rows;
    options.tokens = problem_tokens_bound(p, role->rows);
    options.labelled = labelled < options.tokens ? labelled : options.tokens;
    footprint_of(model->attention_model, &options, &f);
    expert_need_stage_add(&f, need);
    for (int32_t b = 0; b < p->block_count; b++)
        for (uint32_t i = 0; i < p->blocks.blocks[b].part_count; i++)
            if (p->blocks.blocks[b].parts[i].kind != PART_EXPERT)
                need->trained += trained_in(p, &p->blocks.blocks[b].parts[i]);
    uint64_t layers = 0;
    for (uint32_t l = 0; l < model->sparse_count; l++) {
        uint64_t saved = f.slot.x_stride + f.slot.middle_stride +
                         ((uint32_t)model->sparse[l] - 1 >= f.saves_from
                              ? footprint_save_bytes(&f, (uint32_t)model->sparse[l] - 1)
                              : 0);
        need->saved_layer_bytes = expert_need_larger(need->saved_layer_bytes, saved);
        layers += saved;
    }
    need->saved_layers_total = layers;
    need->saved_dense_bytes = footprint_counted(f.slot.bytes) - layers;
    need->gradient_bytes = f.adapters / 2;
    need->boundary_bytes = (uint64_t)options.tokens * model->hidden * FLOAT_BYTES;
    need->routed_own_bytes = expert_routed_bytes(model, options.tokens, ROUTED_TOKENS);
    for (int i = 0; i < 4; i++)
        buffer_add(role, need->boundary_bytes, need);
    buffer_add(role, need->routed_own_bytes, need);
    if (p->workload->sample_tokens && role->samples)
        need->all.cache_bytes = footprint_counted(footprint_cache_bytes(&f, p->sequence_bound));
    need->all.purpose[PURPOSE_BUFFERS] += need->all.cache_bytes;
}

static int experts_need(const struct problem *p, struct expert_model *model, const struct expert_role *role,
                        struct expert_need *need, struct err *err)
{
    struct footprint_options options = options_of(p, role);
    struct footprint f;
    options.rows = role->all_rows;
    options.tokens = problem_tokens_bound(p, role->all_rows);
    options.labelled = 1;
    for (uint32_t l = 0; l < model->sparse_count; l++) {
        uint32_t count = (uint32_t)role->layers[l].count;
        if (count == 0)
            continue;
        if (expert_model_hold(model, p, count, err) < 0)
            return -1;
        options.block_begin = (uint32_t)model->sparse[l];
        options.block_end = options.block_begin + 1;
        footprint_of(model->experts_model, &options, &f);
        expert_need_stage_add(&f, need);
        need->trained += count * trained_in(p, model->expert);
        need->expert_gradient_bytes += f.adapters / 2;
        need->saved_experts_bytes =
            expert_need_larger(need->saved_experts_bytes, footprint_counted(f.slot.bytes));
        need->saved_experts_total += footprint_counted(f.slot.bytes);
    }
    need->routed_in_bytes = role->routed_bytes;
    need->routed_out_bytes = expert_routed_bytes(model, options.tokens, ROUTED_OUTPUTS);
    need->routed_back_bytes = expert_routed_bytes(model, options.tokens, ROUTED_GRADIENTS);
    buffer_add(role, need->routed_in_bytes, need);
    buffer_add(role, need->routed_out_bytes, need);
    buffer_add(role, need->routed_out_bytes, need);
    buffer_add(role, need->routed_back_bytes, need);
    return 0;
}

int expert_need_fill(const struct problem *problem, struct expert_model *model,
                     const struct expert_role *role, struct expert_need *need, struct err *err)
{
    memset(need, 0, sizeof(*need));
    if (role->rows)
        attention_need(problem, model, role, need);
    if (role->layers && experts_need(problem, model, role, need, err) < 0)
        return -1;
    need->all.purpose[PURPOSE_BUFFERS] += need->all.work_bytes;
    for (int i = 0; i < PURPOSE_COUNT; i++)
        need->all.total += need->all.purpose[i];
    return 0;
}
