/* What ranks hold when attention and experts are apart, by the rules of docs/PLANNER.md, Memory: nothing runs
 * this yet whose allocations could be mirrored. */
#include <math.h>
#include <string.h>

#include "planner/expert/expert.h"

#define FLOAT_BYTES 4.0

struct held { /* parameters */
    double frozen_bytes, trained;
};

static void part_add(const struct problem *p, const struct block_part *part, double copies, struct held *held)
{
    const struct workload *w = p->workload;
    double params = (double)part->params, packed = w->base == BASE_NF4 ? (double)part->matrix_params : 0;
    if (w->method == METHOD_FULL) {
        held->trained += copies * params;
        return;
    }
    held->frozen_bytes +=
        copies * ((params - packed) * (w->base == BASE_FP32 ? 4 : 2) + packed * BLOCK_NF4_BYTES);
    held->trained += copies * (double)part->lora_params;
}

static void held_put(const struct problem *p, const struct held *held, struct memory_need *need)
{
    need->purpose[PURPOSE_WEIGHTS] += (uint64_t)held->frozen_bytes;
    need->purpose[PURPOSE_ADAPTERS] += (uint64_t)(held->trained * (memory_state_bytes(p) - 8));
    need->purpose[PURPOSE_OPTIMIZER] += (uint64_t)(held->trained * 8);
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

static void attention_need(const struct problem *p, const struct expert_model *model,
                           const struct place_member *m, struct expert_need *need)
{
    const struct footprint_shape *s = &p->footprint.shape;
    double tokens = problem_tokens_bound(p, m->micro_rows),
           labelled = problem_labelled_bound(p, m->micro_rows);
    double hidden = (double)p->blocks.boundary_per_token, range = 0, window = m->window;
    struct held held = {0};
    for (int32_t b = 0; b < p->block_count; b++) {
        const struct block *block = &p->blocks.blocks[b];
        bool sparse = cost_class_of(block) == COST_LAYER_SPARSE;
        for (uint32_t i = 0; i < block->part_count; i++) {
            if (block->parts[i].kind != PART_EXPERT)
                part_add(p, &block->parts[i], 1, &held);
        }
        double saved = sparse ? 0 : dense_saved(p, block, tokens, labelled, m->recompute);
        range = sparse ? 0 : range + saved;
        need->saved_dense_total += (uint64_t)saved;
        need->saved_dense_bytes = (uint64_t)fmax((double)need->saved_dense_bytes, ceil(range));
    }
    double attention = tokens * FLOAT_BYTES * (double)model->attention->saved_per_token;
    need->saved_attention_bytes = (uint64_t)(m->recompute ? tokens * hidden * FLOAT_BYTES : attention);
    need->saved_router_bytes =
        (uint64_t)(tokens * (ROUTE_ENTRY_BYTES * model->active +
                             FLOAT_BYTES * (m->recompute ? hidden : (double)model->router->saved_per_token)));
    need->saved_dense_total += 64; /* rounding of the sum above */
    need->boundary_bytes = (uint64_t)(p->bytes_per_token * tokens);
    need->routed_own_bytes = (uint64_t)(model->routed_bytes * tokens);
    need->gradient_bytes = (uint64_t)(held.trained * 4);
    held_put(p, &held, &need->all);
    double saved =
        (double)model->sparse_count * (double)(need->saved_attention_bytes + need->saved_router_bytes) +
        (double)need->saved_dense_total;
    need->all.purpose[PURPOSE_ACTIVATIONS] += (uint64_t)(window * saved);
    double rows = fmin(p->footprint.head_rows, tokens);
    double workspace = tokens * FLOAT_BYTES * (2 * hidden + (double)(s->q_width + s->qkv_width + s->heads)) +
                       rows * FLOAT_BYTES * ((double)s->vocab + 2 * hidden) + (m->recompute ? attention : 0);
    double layers = (double)p->block_count - 2;
    need->all.cache_bytes = p->workload->sample_tokens
                                ? (uint64_t)(layers * 2 * s->kv_width * p->sequence_bound * FLOAT_BYTES)
                                : 0;
    need->all.purpose[PURPOSE_BUFFERS] +=
        (uint64_t)(workspace + window * (4 * (double)need->boundary_bytes + (double)need->routed_own_bytes)) +
        need->all.cache_bytes;
}

/* What the experts of one layer keep of a micro-batch, and their pairs of token and expert at most. */
static double layer_saved(const struct problem *p, const struct expert_model *model, double tokens,
                          double count, double load, bool recompute, double *pairs)
{
    double hidden = (double)p->blocks.boundary_per_token;
    double inner = (double)model->expert->saved_per_token - hidden; /* of a pair, beside the token itself */
    double some = fmin(1, ROUTE_HEADROOM * expert_touched(model->experts, model->active, load)) * tokens;
    *pairs = fmin(fmin(model->active, count) * tokens, ROUTE_HEADROOM * model->active * load * tokens);
    return ceil(FLOAT_BYTES * (some * hidden + (recompute ? 0 : *pairs * inner)));
}

static double tokens_all(const struct problem *p, const struct place_choice *choice)
{
    double tokens = 0;
    for (uint32_t i = 0; i < choice->member_count; i++)
        tokens += choice->members[i].micro_rows ? problem_tokens_bound(p, choice->members[i].micro_rows) : 0;
    return tokens;
}

static void experts_put(const struct problem *p, const struct expert_model *model,
                        const struct place_member *m, double tokens, double total, double pairs,
                        struct expert_need *need)
{
    double hidden = (double)p->blocks.boundary_per_token, window = m->window;
    double inner = (double)model->expert->saved_per_token - hidden;
    struct held held = {0};
    need->routed_all_bytes = (uint64_t)(model->routed_bytes * tokens);
    part_add(p, model->expert, total, &held);
    need->expert_gradient_bytes = (uint64_t)(held.trained * 4);
    held_put(p, &held, &need->all);
    need->all.purpose[PURPOSE_ACTIVATIONS] += (uint64_t)(window * (double)need->saved_experts_total);
    double workspace = pairs * FLOAT_BYTES * (hidden + (m->recompute ? inner : inner / 3));
    need->all.purpose[PURPOSE_BUFFERS] += (uint64_t)(workspace + window * 4 * (double)need->routed_all_bytes);
}

static void need_sum(struct expert_need *need)
{
    need->all.purpose[PURPOSE_BUFFERS] += 64; /* scalars */
    need->all.purpose[PURPOSE_ADAPTERS] += 16;
    need->all.total = 0;
    for (int i = 0; i < PURPOSE_COUNT; i++)
        need->all.total += need->all.purpose[i];
}

void expert_member_need(const struct problem *problem, const struct expert_model *model,
                        const struct place_choice *choice, const struct expert_split *split, uint32_t member,
                        struct expert_need *need)
{
    const struct place_member *m = &choice->members[member];
    double pairs_most = 0, tokens = tokens_all(problem, choice);
    memset(need, 0, sizeof(*need));
    if (m->micro_rows)
        attention_need(problem, model, m, need);
    for (uint32_t l = 0; l < split->sparse_count && m->expert_share > 0; l++) {
        double pairs, load = split->load[member * split->sparse_count + l];
        double count = split->count[member * split->sparse_count + l];
        double saved = layer_saved(problem, model, tokens, count, load, m->recompute, &pairs);
        pairs_most = fmax(pairs_most, pairs);
        need->saved_experts_total += (uint64_t)saved;
        need->saved_experts_bytes = (uint64_t)fmax((double)need->saved_experts_bytes, saved);
    }
    if (m->expert_share > 0)
        experts_put(problem, model, m, tokens, split->total[member], pairs_most, need);
    need_sum(need);
}

uint64_t expert_attention_bytes(const struct problem *problem, const struct expert_model *model,
                                const struct place_member *member)
{
    struct expert_need need;
    memset(&need, 0, sizeof(need));
    if (member->micro_rows)
        attention_need(problem, model, member, &need);
    need_sum(&need);
    return need.all.total;
}

uint64_t expert_even_bytes(const struct problem *problem, const struct expert_model *model,
                           const struct place_member *member, double tokens, uint32_t count)
{
    struct expert_need need;
    double pairs = 0, load = (double)count / model->experts;
    memset(&need, 0, sizeof(need));
    double saved = layer_saved(problem, model, tokens, count, load, member->recompute, &pairs);
    need.saved_experts_total = (uint64_t)saved * model->sparse_count;
    experts_put(problem, model, member, tokens, (double)count * model->sparse_count, pairs, &need);
    for (int i = 0; i < PURPOSE_COUNT; i++)
        need.all.total += need.all.purpose[i];
    return need.all.total;
}
