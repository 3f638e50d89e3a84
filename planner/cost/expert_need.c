/* Memory of ranks when attention and experts are apart, by the rules of docs/PLANNER.md, Memory. The
 * engine does not run such plans, so there are no allocations to mirror. */
#include "planner/cost/expert_price.h"

#include <math.h>
#include <string.h>

/* A rank's experts keep room for this many times the tokens and token-expert pairs of an even routing.
 * Beyond that only inputs are kept, and the rest is recomputed for the backward. Rule of thumb. */
#define ROUTE_HEADROOM 1.5
#define FLOAT_BYTES ((double)sizeof(float))

struct part_parameters { /* of parameters */
    double frozen_bytes, trained;
};

static void part_add(const struct problem *p, const struct block_part *part, double copies,
                     struct part_parameters *held)
{
    const struct workload *w = p->workload;
    double params = (double)part->params, matrices = (double)part->matrix_params;
    if (w->method == METHOD_FULL) {
        held->trained += copies * params;
        return;
    }
    held->frozen_bytes +=
        copies * ((params - matrices) * workload_other_bytes(w) + matrices * workload_matrix_bytes(w));
    held->trained += copies * (double)part->lora_params;
}

static void held_put(const struct problem *p, const struct part_parameters *held, struct memory_need *need)
{
    need->purpose[PURPOSE_WEIGHTS] += (uint64_t)held->frozen_bytes;
    double moments = workload_moment_bytes(p->workload);
    need->purpose[PURPOSE_ADAPTERS] += (uint64_t)(held->trained * (memory_state_bytes(p) - moments));
    need->purpose[PURPOSE_OPTIMIZER] += (uint64_t)(held->trained * moments);
}

static double dense_saved(const struct problem *p, const struct block *block, double tokens, double labelled,
                          bool recompute)
{
    double hidden = (double)p->blocks.boundary_per_token;
    if (block->kind == BLOCK_EMBEDDING)
        return 3 * tokens * FLOAT_BYTES; /* token numbers, positions, rows */
    if (block->kind == BLOCK_HEAD)
        return labelled * hidden * FLOAT_BYTES;
    return tokens * FLOAT_BYTES * (recompute ? hidden : (double)block->saved_per_token);
}

static void attention_need(const struct problem *p, const struct expert_model *model, uint32_t rows,
                           uint32_t wave, bool recompute, struct expert_need *need)
{
    const struct footprint_shape *s = &p->footprint.shape;
    double tokens = problem_tokens_bound(p, rows), labelled = problem_labelled_bound(p, rows);
    double hidden = (double)p->blocks.boundary_per_token, range = 0;
    struct part_parameters held = {0};
    for (int32_t b = 0; b < p->block_count; b++) {
        const struct block *block = &p->blocks.blocks[b];
        bool sparse = cost_class_of(block) == COST_LAYER_SPARSE;
        for (uint32_t i = 0; i < block->part_count; i++) {
            if (block->parts[i].kind != PART_EXPERT)
                part_add(p, &block->parts[i], 1, &held);
        }
        double saved = sparse ? 0 : dense_saved(p, block, tokens, labelled, recompute);
        range = sparse ? 0 : range + saved;
        need->saved_dense_total += (uint64_t)saved;
        need->saved_dense_bytes = (uint64_t)fmax((double)need->saved_dense_bytes, ceil(range));
    }
    double attention = tokens * FLOAT_BYTES * (double)model->attention->saved_per_token;
    need->saved_attention_bytes = (uint64_t)(recompute ? tokens * hidden * FLOAT_BYTES : attention);
    need->saved_router_bytes =
        (uint64_t)(tokens * (ROUTE_ENTRY_BYTES * model->active +
                             FLOAT_BYTES * (recompute ? hidden : (double)model->router->saved_per_token)));
    need->saved_dense_total += 64; /* alignment of the sum */
    need->boundary_bytes = (uint64_t)(p->bytes_per_token * tokens);
    need->routed_own_bytes = (uint64_t)(model->routed_bytes * tokens);
    need->gradient_bytes = (uint64_t)(held.trained * 4);
    held_put(p, &held, &need->all);
    double saved =
        (double)model->sparse_count * (double)(need->saved_attention_bytes + need->saved_router_bytes) +
        (double)need->saved_dense_total;
    need->all.purpose[PURPOSE_ACTIVATIONS] += (uint64_t)(wave * saved);
    double head_rows = fmin(p->footprint.head_rows, tokens);
    double workspace = tokens * FLOAT_BYTES * (2 * hidden + (double)(s->q_width + s->qkv_width + s->heads)) +
                       head_rows * FLOAT_BYTES * ((double)s->vocab + 2 * hidden) +
                       (recompute ? attention : 0);
    double layers = (double)p->block_count - 2;
    need->all.cache_bytes = p->workload->sample_tokens
                                ? (uint64_t)(layers * 2 * s->kv_width * p->sequence_bound * FLOAT_BYTES)
                                : 0;
    need->all.purpose[PURPOSE_BUFFERS] +=
        (uint64_t)(workspace + wave * (4 * (double)need->boundary_bytes + (double)need->routed_own_bytes)) +
        need->all.cache_bytes;
}

static void experts_need(const struct problem *p, const struct expert_model *model,
                         const struct expert_layer *layers, double tokens, uint32_t wave, bool recompute,
                         struct expert_need *need)
{
    double hidden = (double)p->blocks.boundary_per_token, total = 0, most = 0;
    /* Of a token-expert pair, without the token itself. */
    double inner = (double)model->expert->saved_per_token - hidden;
    struct part_parameters held = {0};
    for (uint32_t l = 0; l < model->sparse_count; l++) {
        double count = layers[l].count, load = layers[l].load;
        double some = fmin(1, ROUTE_HEADROOM * expert_touched(model->experts, model->active, load)) * tokens;
        double pairs =
            fmin(fmin(model->active, count) * tokens, ROUTE_HEADROOM * model->active * load * tokens);
        uint64_t saved = (uint64_t)ceil(FLOAT_BYTES * (some * hidden + (recompute ? 0 : pairs * inner)));
        total += count;
        most = fmax(most, pairs);
        need->saved_experts_total += saved;
        need->saved_experts_bytes = saved > need->saved_experts_bytes ? saved : need->saved_experts_bytes;
    }
    need->routed_all_bytes = (uint64_t)(model->routed_bytes * tokens);
    part_add(p, model->expert, total, &held);
    need->expert_gradient_bytes = (uint64_t)(held.trained * 4);
    held_put(p, &held, &need->all);
    need->all.purpose[PURPOSE_ACTIVATIONS] += wave * need->saved_experts_total;
    double workspace = most * FLOAT_BYTES * (hidden + (recompute ? inner : inner / 3));
    need->all.purpose[PURPOSE_BUFFERS] += (uint64_t)workspace + wave * 4 * need->routed_all_bytes;
}

void expert_need_fill(const struct problem *problem, const struct expert_model *model, uint32_t rows,
                      const struct expert_layer *layers, double tokens, uint32_t wave, bool recompute,
                      struct expert_need *need)
{
    memset(need, 0, sizeof(*need));
    if (rows)
        attention_need(problem, model, rows, wave, recompute, need);
    if (layers)
        experts_need(problem, model, layers, tokens, wave, recompute, need);
    need->all.purpose[PURPOSE_BUFFERS] += 64; /* scalars */
    need->all.purpose[PURPOSE_ADAPTERS] += 16;
    for (int i = 0; i < PURPOSE_COUNT; i++)
        need->all.total += need->all.purpose[i];
}
