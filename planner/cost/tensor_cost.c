#include "planner/cost/tensor_cost.h"

#include <math.h>
#include <string.h>

static double share_of(uint32_t begin, uint32_t end, uint32_t all)
{
    return end > begin && all ? (double)(end - begin) / all : 1;
}

struct tensor_shares tensor_shares(const struct problem *p, const struct plan_tensor *t)
{
    const struct model_config *c = p->workload->config;
    return (struct tensor_shares){share_of(t->kv_head_begin, t->kv_head_end, c->kv_heads),
                                  share_of(t->column_begin, t->column_end, c->ffn),
                                  share_of(t->vocabulary_begin, t->vocabulary_end, c->vocab)};
}

double tensor_attention(const struct problem *p, int32_t block, const struct cost_load *load)
{
    const struct block *b = &p->blocks.blocks[block];
    double attention = 0, all = 0;
    for (uint32_t i = 0; i < b->part_count; i++) {
        const struct block_part *part = &b->parts[i];
        double flops = (part->flops_per_token + part->lora_flops_per_token) * load->tokens +
                       part->flops_per_square * load->sum_sq;
        attention += part->kind == PART_ATTENTION ? flops : 0;
        all += flops;
    }
    return all > 0 ? attention / all : 0.5;
}

double tensor_shrink(double seconds, double share)
{
    /* The launches of half a block do not shrink with the share. */
    double half_s = COST_KERNEL_OVERHEAD_S / 2;
    double fixed = seconds < half_s ? seconds : half_s;
    return fixed + (seconds - fixed) * share;
}

double tensor_seconds(const struct problem *p, uint32_t device, const struct plan_tensor *part, int32_t block,
                      enum tensor_half half, enum cost_way way, const struct cost_load *load)
{
    struct tensor_shares share = tensor_shares(p, part);
    double seconds = problem_seconds(p, device, block, block + 1, way, load);
    if (load->rows <= 0 || seconds <= 0)
        return 0;
    if (block == 0) /* every member looks up every token, but only its own rows get gradients */
        return way == COST_BACKWARD ? seconds * share.vocabulary : seconds;
    if (block == p->block_count - 1)
        return half == TENSOR_SECOND ? 0 : tensor_shrink(seconds, share.vocabulary);
    double attention = tensor_attention(p, block, load), sum = 0;
    if (half != TENSOR_SECOND)
        sum += tensor_shrink(seconds * attention, share.heads);
    if (half != TENSOR_FIRST)
        sum += tensor_shrink(seconds * (1 - attention), share.columns);
    return sum;
}

double tensor_step_seconds(const struct problem *p, uint32_t device, const struct tensor_shares *shares,
                           int32_t begin, int32_t end)
{
    return tensor_shrink(problem_step_seconds(p, device, begin, end), (shares->heads + shares->columns) / 2);
}

double tensor_instr_seconds(const struct problem *p, uint32_t device, const struct plan_rank *rank,
                            const struct instr *x, const struct cost_load *load)
{
    enum tensor_half half = x->flags & FLAG_FIRST_HALF    ? TENSOR_FIRST
                            : x->flags & FLAG_SECOND_HALF ? TENSOR_SECOND
                                                          : TENSOR_WHOLE;
    double seconds = 0;
    struct tensor_shares shares = tensor_shares(p, &rank->tensor);
    if (x->op == INSTR_STEP)
        return tensor_step_seconds(p, device, &shares, rank->block_begin, rank->block_end);
    if (x->op != INSTR_FORWARD && x->op != INSTR_BACKWARD)
        return 0;
    for (int32_t b = x->block_begin; b < x->block_end; b++) {
        enum cost_way way = x->op == INSTR_FORWARD ? COST_FORWARD : COST_BACKWARD;
        seconds += tensor_seconds(p, device, &rank->tensor, b, half, way, load);
        if (x->op == INSTR_BACKWARD && (x->flags & FLAG_RECOMPUTE))
            seconds += tensor_seconds(p, device, &rank->tensor, b, half, COST_RECOMPUTE, load);
    }
    return seconds;
}

double tensor_sum_seconds(uint32_t members, double bytes, double latency_s, double bytes_per_s)
{
    double n = members, depth = ceil(log2(n + 1)) - 1;
    if (members < 2)
        return 0;
    double ring = 2 * (n - 1) / n * bytes / bytes_per_s + 2 * (n - 1) * latency_s;
    double tree = 2 * depth * (latency_s + bytes / bytes_per_s);
    return ring < tree ? ring : tree;
}

/* Parameters of one layer that all members keep and train alike: the narrow matrix of an adapter whose
 * wide matrix is cut, and the norms. */
static uint64_t layer_shared(const struct problem *p)
{
    uint64_t hidden = p->footprint.shape.hidden;
    if (p->workload->method == METHOD_FULL)
        return 2 * hidden;
    return p->footprint.rank * hidden * p->workload->target_count;
}

/* Adds the bytes of frozen weights and the number of trained parameters of `count` equal blocks, as a
 * member keeps them. */
static void blocks_keep(const struct problem *p, int32_t block, double count, const struct tensor_shares *s,
                        double *frozen, double *trained)
{
    const struct workload *w = p->workload;
    const struct block *b = &p->blocks.blocks[block];
    bool layer = block > 0 && block < p->block_count - 1, full = w->method == METHOD_FULL;
    for (uint32_t i = 0; i < b->part_count; i++) {
        const struct block_part *part = &b->parts[i];
        double share = count * (!layer                         ? s->vocabulary
                                : part->kind == PART_ATTENTION ? s->heads
                                                               : s->columns);
        double params = (double)part->params * share;
        double matrices = (double)part->matrix_params * share;
        *frozen +=
            full ? 0 : (params - matrices) * workload_other_bytes(w) + matrices * workload_matrix_bytes(w);
        *trained += full ? params : (double)part->lora_params * share;
    }
    if (layer)
        *trained += count * (double)layer_shared(p) * (1 - fmin(s->heads, s->columns));
}

/* Fills the weights' bytes. All layers are equal, because a model with experts is not cut. */
static void weights_need(const struct problem *p, int32_t begin, int32_t end, int32_t layer, uint64_t layers,
                         const struct tensor_shares *s, struct memory_need *need)
{
    double frozen = 0, trained = 0, copy = 0, state = memory_state_bytes(p);
    double moments = workload_moment_bytes(p->workload);
    bool full = p->workload->method == METHOD_FULL;
    if (begin == 0)
        blocks_keep(p, 0, 1, s, &frozen, &trained);
    if (layers)
        blocks_keep(p, layer, (double)layers, s, &frozen, &trained);
    if (end == p->block_count)
        blocks_keep(p, end - 1, 1, s, &frozen, &trained);
    if (end == p->block_count && begin > 0 && p->blocks.tied)
        copy = (double)p->blocks.tied_params * s->vocabulary;
    frozen += full ? 0 : copy * workload_other_bytes(p->workload);
    trained += full ? copy : 0;
    need->purpose[PURPOSE_WEIGHTS] = (uint64_t)frozen;
    need->purpose[PURPOSE_ADAPTERS] = (uint64_t)(trained * (state - moments)) + 1;
    need->purpose[PURPOSE_OPTIMIZER] = (uint64_t)(trained * moments);
}

void tensor_need_fill(const struct problem *p, int32_t begin, int32_t end, const struct plan_tensor *part,
                      uint32_t rows, bool recompute, struct tensor_need *out)
{
    const struct footprint_shape *s = &p->footprint.shape;
    struct tensor_shares share = tensor_shares(p, part);
    uint64_t tokens = problem_tokens_bound(p, rows);
    int32_t last = p->block_count - 1, first = begin > 1 ? begin : 1, after = end < last ? end : last;
    uint64_t layers = after > first ? (uint64_t)(after - first) : 0;
    double heads = recompute ? 0 : share.heads, columns = recompute ? 0 : share.columns;
    struct memory_stage whole = {.block_begin = begin,
                                 .block_end = end,
                                 .window = 1,
                                 .micro_batch_rows = rows,
                                 .recompute = recompute,
                                 .state_share = 1,
                                 .tensor_share = 1};
    struct memory_need all;
    memset(out, 0, sizeof(*out));
    memory_stage_need(p, &whole, &all);
    uint64_t wide = s->qkv_width + s->q_width + s->heads, z = p->footprint.rank * p->workload->target_count;
    out->saved_first = 4 * tokens * (s->hidden + (uint64_t)ceil(heads * (double)wide) + z);
    out->saved_second = 4 * tokens * (s->hidden + (uint64_t)ceil(columns * 2 * (double)s->ffn));
    out->saved_head = 4 * tokens * (s->hidden + 3);
    out->shared_gradients = 4 * layer_shared(p) * layers;
    out->live_bytes = layers * (out->saved_first + out->saved_second) + (end > last ? out->saved_head : 0);
    out->partial_bytes = (uint64_t)ceil(p->bytes_per_token * (double)tokens) + (end > last ? 12 * tokens : 0);
    weights_need(p, begin, end, first, layers, &share, &out->need);
    out->need.cache_bytes = (uint64_t)ceil((double)all.cache_bytes * share.heads);
    /* The workspace is that of whole blocks, an upper bound. */
    out->need.purpose[PURPOSE_BUFFERS] =
        all.purpose[PURPOSE_BUFFERS] - all.cache_bytes + out->need.cache_bytes;
    for (int i = 0; i < PURPOSE_COUNT; i++)
        out->need.total += out->need.purpose[i];
}
