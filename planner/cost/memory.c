/* The engine's layout as sums. Each line mirrors one of engine/layout.c (stage_memory_predict); the names are
 * its. */
#include "planner/cost/memory.h"

#include <string.h>

#define GRANULE 4096ull   /* BUFFER_GRANULE */
#define HEAD_ROWS_MIN 16u /* engine/layout.c */

static uint64_t granule(uint64_t bytes)
{
    return (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

static void take(uint64_t *at, uint64_t bytes)
{
    *at += (bytes + 63) / 64 * 64;
}

static uint64_t floats(uint64_t rows, uint64_t width)
{
    return rows * width * 4;
}

static uint64_t save_bytes(const struct memory_widths *s, uint64_t tokens)
{
    uint64_t at = 0;
    take(&at, floats(tokens, s->qkv));
    take(&at, floats(tokens, s->q));
    take(&at, floats(tokens, s->heads));
    take(&at, floats(tokens, s->hidden));
    take(&at, floats(tokens, 2 * s->ffn));
    take(&at, floats(tokens, s->router));
    for (int g = 0; g < 4; g++)
        take(&at, floats(tokens, s->group_members[g] * s->rank));
    return at;
}

struct sizes {
    uint64_t tokens, rows, labelled, layers, positions;
    bool embedding, head, recompute;
};

static uint64_t slot_place(const struct memory_widths *s, const struct sizes *z)
{
    uint64_t at = 0;
    take(&at, 4 * z->tokens);
    take(&at, 4 * z->tokens);
    take(&at, 4 * z->tokens);
    take(&at, 4 * z->rows + 4);
    take(&at, 4 * z->labelled);
    take(&at, 4 * z->labelled);
    for (uint64_t i = 0; i < z->layers; i++)
        take(&at, floats(z->tokens, s->hidden));
    if (!z->recompute)
        at += save_bytes(s, z->tokens) * z->layers;
    if (z->head)
        take(&at, floats(z->labelled, s->hidden));
    return at;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t workspace(const struct memory_widths *s, const struct sizes *z)
{
    uint64_t wide = 0, members = 0, at = 0, tokens = z->tokens;
    for (int g = 0; g < 4; g++) {
        if (s->group_members[g] == 0)
            continue;
        wide = larger(wide, s->group_inputs[g]);
        members = larger(members, s->group_members[g]);
    }
    bool layers = z->layers > 0;
    take(&at, layers ? floats(tokens, s->hidden) : 0);
    take(&at, floats(tokens, s->hidden));
    uint64_t act = at, back = at;
    take(&act, layers ? floats(tokens, s->ffn) : 0);
    take(&back, layers ? floats(tokens, s->q) : 0);
    take(&back, layers ? floats(tokens, s->qkv) : 0);
    at = larger(act, back);
    take(&at, layers ? floats(tokens, s->heads) : 0);
    take(&at, layers ? floats(tokens, members * s->rank) : 0);
    take(&at, layers && s->dropout ? floats(tokens, wide) : 0);
    take(&at, layers && s->group_members[3] ? floats(tokens, s->ffn) : 0);
    take(&at, layers && z->recompute ? save_bytes(s, tokens) : 0);
    uint64_t rows = larger(HEAD_ROWS_MIN, MEMORY_HEAD_LOGITS / s->vocab / 16 * 16);
    rows = rows < tokens ? rows : tokens;
    take(&at, z->head ? floats(rows, s->vocab) : 0);
    take(&at, z->head ? floats(rows, s->hidden) : 0);
    take(&at, z->head ? floats(rows, s->hidden) : 0);
    return at;
}

static uint64_t layer_weights(const struct memory_widths *s)
{
    uint64_t at = 0;
    take(&at, floats(1, s->hidden));
    take(&at, floats(s->qkv, s->hidden));
    take(&at, floats(s->hidden, s->q));
    take(&at, floats(1, s->hidden));
    take(&at, floats(2 * s->ffn, s->hidden));
    take(&at, floats(s->hidden, s->ffn));
    return granule(at);
}

static bool engine_runs(const struct problem *p)
{
    const struct workload *w = p->workload;
    return w->method == METHOD_LORA && w->base == BASE_FP32 && w->compute == COMPUTE_FP32 &&
           w->config->experts == 0 && !w->config->qkv_bias && !w->config->qk_norm && w->config->ffn > 0;
}

static void weights_exact(const struct problem *p, const struct memory_widths *s, const struct sizes *z,
                          struct memory_need *need)
{
    const struct model_config *c = p->workload->config;
    uint64_t table = granule(floats(s->vocab, s->hidden));
    uint64_t adapters = granule(s->adapter_floats * z->layers * 4);
    bool shares = z->embedding && z->head && c->tied;
    uint64_t weights = z->layers * layer_weights(s);
    weights += z->layers ? granule(floats(z->positions, c->head_dim)) : 0;
    weights += z->head ? granule(floats(1, s->hidden)) : 0;
    weights += z->embedding ? table : 0;
    weights += z->head && !shares ? table : 0;
    need->purpose[PURPOSE_WEIGHTS] = weights;
    need->purpose[PURPOSE_ADAPTERS] = 2 * adapters;
    need->purpose[PURPOSE_OPTIMIZER] = 2 * adapters;
}

static double frozen_bytes(const struct problem *p, const struct block *block, double params)
{
    double each = p->workload->base == BASE_FP32 ? 4 : 2;
    double packed = p->workload->base == BASE_NF4 ? (double)block->matrix_params : 0;
    return (params - packed) * each + packed * BLOCK_NF4_BYTES;
}

static double value_bytes(const struct problem *p)
{
    const struct workload *w = p->workload;
    return w->method == METHOD_FULL && w->compute == COMPUTE_BF16 ? 6 : 4;
}

double memory_state_bytes(const struct problem *problem)
{
    return value_bytes(problem) + 4 + 8;
}

uint64_t memory_trained(const struct problem *problem, int32_t begin, int32_t end)
{
    bool full = problem->workload->method == METHOD_FULL;
    uint64_t count = 0;
    for (int32_t b = begin; b < end; b++)
        count += full ? problem->blocks.blocks[b].params : problem->blocks.blocks[b].lora_params;
    return count;
}

uint64_t memory_gathered_bytes(const struct problem *problem, int32_t begin, int32_t end)
{
    const struct workload *w = problem->workload;
    double bytes = 0;
    for (int32_t b = begin; b < end; b++) {
        const struct block *block = &problem->blocks.blocks[b];
        double params = (double)block->params;
        bytes += w->method == METHOD_LORA ? frozen_bytes(problem, block, params)
                                          : params * (w->compute == COMPUTE_BF16 ? 2 : 4);
    }
    return (uint64_t)bytes;
}

uint64_t memory_gradient_bytes(const struct problem *problem, int32_t begin, int32_t end)
{
    return 4 * memory_trained(problem, begin, end);
}

/* How many blocks from b on, before the end, are layers alike. */
static int32_t alike(const struct problem *p, int32_t b, int32_t end)
{
    int32_t last = p->block_count - 1, layers = (end < last ? end : last) - b;
    for (int cls = COST_LAYER; cls <= COST_LAYER_SPARSE && b > 0 && layers > 1; cls++) {
        if (p->prefix[b + layers][cls] - p->prefix[b][cls] == (uint32_t)layers)
            return layers;
    }
    return 1;
}

/* docs/PLANNER.md, Memory: frozen base 4, 2 or 0.516 bytes a parameter; 16 or 18 bytes a trained one. */
static void weights_estimated(const struct problem *p, const struct memory_stage *m, struct memory_need *need)
{
    const struct workload *w = p->workload;
    double frozen = 0, trained = 0;
    for (int32_t b = m->block_begin, times; b < m->block_end; b += times) {
        const struct block *block = &p->blocks.blocks[b];
        double params = (double)block->params;
        times = alike(p, b, m->block_end);
        bool copy = block->kind == BLOCK_HEAD && p->blocks.tied && m->block_begin > 0 && !m->sharded;
        params += copy ? (double)p->blocks.tied_params : 0;
        if (w->method == METHOD_FULL) {
            trained += times * params;
            continue;
        }
        frozen += times * frozen_bytes(p, block, params);
        trained += times * (double)block->lora_params;
    }
    double share = m->state_share > 0 ? m->state_share : 0, cut = m->tensor_share > 0 ? m->tensor_share : 1;
    need->purpose[PURPOSE_WEIGHTS] = (uint64_t)(frozen * (m->sharded ? m->frozen_share : share) * cut);
    need->purpose[PURPOSE_ADAPTERS] = (uint64_t)(trained * (value_bytes(p) + 4) * share * cut);
    need->purpose[PURPOSE_OPTIMIZER] = (uint64_t)(trained * 8 * share * cut);
}

/* docs/PLANNER.md, Memory: what is computed in bf16 is kept in bf16. The engine keeps fp32. */
static uint64_t kept_bytes(const struct problem *p, uint64_t fp32_bytes)
{
    return p->workload->compute == COMPUTE_BF16 ? fp32_bytes / 2 : fp32_bytes;
}

void memory_stage_need(const struct problem *problem, const struct memory_stage *stage,
                       struct memory_need *need)
{
    const struct memory_widths *s = &problem->widths;
    const struct workload *w = problem->workload;
    int32_t last = problem->block_count - 1;
    struct sizes z = {.tokens = problem_tokens_bound(problem, stage->micro_batch_rows),
                      .rows = stage->micro_batch_rows,
                      .labelled = problem_labelled_bound(problem, stage->micro_batch_rows),
                      .positions = problem->sequence_bound,
                      .embedding = stage->block_begin == 0,
                      .head = stage->block_end > last,
                      .recompute = stage->recompute};
    memset(need, 0, sizeof(*need));
    if (stage->block_end <= stage->block_begin)
        return;
    int32_t first_layer = stage->block_begin > 1 ? stage->block_begin : 1;
    int32_t end_layer = stage->block_end < last ? stage->block_end : last;
    z.layers = end_layer > first_layer ? (uint64_t)(end_layer - first_layer) : 0;
    need->exact =
        engine_runs(problem) && stage->state_share >= 1 && stage->tensor_share >= 1 && !stage->sharded;
    if (need->exact)
        weights_exact(problem, s, &z, need);
    else
        weights_estimated(problem, stage, need);
    need->saved_bytes = granule(kept_bytes(problem, slot_place(s, &z)));
    need->purpose[PURPOSE_ACTIVATIONS] = need->saved_bytes * (stage->window ? stage->window : 1);
    need->cache_bytes = w->sample_tokens ? granule(floats(2 * z.layers * z.positions, s->kv)) : 0;
    need->boundary_bytes = granule((uint64_t)(problem->bytes_per_token * (double)z.tokens));
    need->purpose[PURPOSE_BUFFERS] =
        granule(kept_bytes(problem, workspace(s, &z))) + granule(8 * (1 + s->parameters * z.layers)) +
        stage->boundary_buffers * need->boundary_bytes + need->cache_bytes + stage->buffer_bytes;
    for (int i = 0; i < PURPOSE_COUNT; i++)
        need->total += need->purpose[i];
}
