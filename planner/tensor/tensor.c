/* What tensor groups cost and keep. */
#include "planner/tensor/tensor.h"

#include <math.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/cost/ring.h"

/* Kernel launches of half a block: what does not shrink with the share. A rule of thumb, half of cost.c's for
 * a whole block. */
#define HALF_OVERHEAD_S 15e-6
#define RING_SAME 1e-9 /* relative: sums this near are as fast */

static double share_of(uint32_t begin, uint32_t end, uint32_t all)
{
    return end > begin && all ? (double)(end - begin) / all : 1;
}

static double share_heads(const struct problem *p, const struct plan_tensor *t)
{
    return share_of(t->kv_head_begin, t->kv_head_end, p->workload->config->kv_heads);
}

static double share_columns(const struct problem *p, const struct plan_tensor *t)
{
    return share_of(t->column_begin, t->column_end, p->workload->config->ffn);
}

static double share_vocabulary(const struct problem *p, const struct plan_tensor *t)
{
    return share_of(t->vocabulary_begin, t->vocabulary_end, p->workload->config->vocab);
}

struct tensor_shares tensor_shares(const struct problem *p, const struct plan_tensor *t)
{
    return (struct tensor_shares){share_heads(p, t), share_columns(p, t), share_vocabulary(p, t)};
}

bool tensor_deal(const struct problem *problem, const uint32_t *devices, uint32_t count,
                 uint32_t micro_batch_rows, enum tensor_by by, struct plan_tensor *parts)
{
    const struct model_config *c = problem->workload->config;
    double each[TENSOR_GROUP_MAX], rate = 0;
    uint32_t heads[TENSOR_GROUP_MAX];
    if (count == 0 || count > TENSOR_GROUP_MAX || count > c->kv_heads || count > c->ffn || count > c->vocab)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        struct micro_cost cost;
        micro_cost_init(&cost, problem, devices[i], micro_batch_rows);
        each[i] = 1;
        if (by == TENSOR_BY_SPEED)
            each[i] = cost.seconds[COST_LAYER][COST_FORWARD] + cost.seconds[COST_LAYER][COST_BACKWARD];
        else if (by == TENSOR_BY_MEMORY)
            each[i] = 1 / (1 + (double)problem->cluster->devices[devices[i]].memory_limit_bytes);
        each[i] = each[i] > 0 ? each[i] : 1;
        rate += 1 / each[i];
        heads[i] = 1;
    }
    for (uint32_t left = c->kv_heads - count; left > 0; left--) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < count; i++) {
            if ((heads[i] + 1) * each[i] < (heads[best] + 1) * each[best])
                best = i;
        }
        heads[best]++;
    }
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct plan_tensor *before = i ? &parts[i - 1] : &(struct plan_tensor){0};
        uint32_t after = count - i - 1; /* each later one keeps at least one */
        sum += 1 / each[i] / rate;
        double columns = fmin(fmax(round(sum * c->ffn), before->column_end + 1.0), (double)c->ffn - after);
        double rows =
            fmin(fmax(round(sum * c->vocab), before->vocabulary_end + 1.0), (double)c->vocab - after);
        parts[i] = (struct plan_tensor){.kv_head_begin = before->kv_head_end,
                                        .kv_head_end = before->kv_head_end + heads[i],
                                        .column_begin = before->column_end,
                                        .column_end = after ? (uint32_t)columns : c->ffn,
                                        .vocabulary_begin = before->vocabulary_end,
                                        .vocabulary_end = after ? (uint32_t)rows : c->vocab};
    }
    return true;
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
    double fixed = seconds < HALF_OVERHEAD_S ? seconds : HALF_OVERHEAD_S;
    return fixed + (seconds - fixed) * share;
}

double tensor_seconds(const struct problem *p, uint32_t device, const struct plan_tensor *part, int32_t block,
                      enum tensor_half half, enum cost_way way, const struct cost_load *load)
{
    double seconds = problem_seconds(p, device, block, block + 1, way, load);
    if (load->rows <= 0 || seconds <= 0)
        return 0;
    if (block == 0) /* every member looks up every token; its own rows alone get gradients */
        return way == COST_BACKWARD ? seconds * share_vocabulary(p, part) : seconds;
    if (block == p->block_count - 1)
        return half == TENSOR_SECOND ? 0 : tensor_shrink(seconds, share_vocabulary(p, part));
    double attention = tensor_attention(p, block, load), sum = 0;
    if (half != TENSOR_SECOND)
        sum += tensor_shrink(seconds * attention, share_heads(p, part));
    if (half != TENSOR_FIRST)
        sum += tensor_shrink(seconds * (1 - attention), share_columns(p, part));
    return sum;
}

double tensor_instr_seconds(const struct problem *p, uint32_t device, const struct plan_rank *rank,
                            const struct instr *x, const struct cost_load *load)
{
    enum tensor_half half = x->flags & INSTR_FIRST_HALF    ? TENSOR_FIRST
                            : x->flags & INSTR_SECOND_HALF ? TENSOR_SECOND
                                                           : TENSOR_WHOLE;
    double seconds = 0;
    if (x->op == OP_STEP) {
        double whole = problem_step_seconds(p, device, rank->block_begin, rank->block_end);
        return tensor_shrink(whole, (share_heads(p, &rank->tensor) + share_columns(p, &rank->tensor)) / 2);
    }
    if (x->op != OP_FORWARD && x->op != OP_BACKWARD)
        return 0;
    for (int32_t b = x->block_begin; b < x->block_end; b++) {
        enum cost_way way = x->op == OP_FORWARD ? COST_FORWARD : COST_BACKWARD;
        seconds += tensor_seconds(p, device, &rank->tensor, b, half, way, load);
        if (x->op == OP_BACKWARD && (x->flags & INSTR_RECOMPUTE))
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

void tensor_ring_links(const struct problem *p, const uint32_t *devices, uint32_t count, double *latency_s,
                       double *bytes_per_s)
{
    double in[TENSOR_GROUP_MAX], out[TENSOR_GROUP_MAX];
    *latency_s = 0;
    *bytes_per_s = INFINITY;
    if (count < 2 || count > TENSOR_GROUP_MAX)
        return;
    ring_rates(p->cluster, devices, count, in, out, latency_s);
    for (uint32_t i = 0; i < count; i++)
        *bytes_per_s = fmin(*bytes_per_s, in[i]);
}

static double ring_sum(const struct problem *p, const uint32_t *devices, uint32_t count, double bytes)
{
    double latency, rate;
    tensor_ring_links(p, devices, count, &latency, &rate);
    return tensor_sum_seconds(count, bytes, latency, rate);
}

void tensor_ring_best(const struct problem *p, uint32_t *devices, uint32_t count, double bytes)
{
    uint32_t best[TENSOR_RING], turns[TENSOR_RING] = {0};
    if (count < 3 || count > TENSOR_RING)
        return;
    double least = ring_sum(p, devices, count, bytes) * (1 - RING_SAME);
    memcpy(best, devices, count * sizeof(*best));
    for (uint32_t k = 1; k + 1 < count;) { /* Heap's way through all orders of all but the last: rings turn */
        if (turns[k] >= k) {
            turns[k++] = 0;
            continue;
        }
        uint32_t other = k % 2 ? turns[k] : 0, held = devices[other];
        devices[other] = devices[k];
        devices[k] = held;
        double seconds = ring_sum(p, devices, count, bytes);
        if (seconds < least) {
            least = seconds * (1 - RING_SAME);
            memcpy(best, devices, count * sizeof(*best));
        }
        turns[k]++;
        k = 1;
    }
    memcpy(devices, best, count * sizeof(*best));
}

/* Parameters that all members keep and train alike, of one layer: the narrow side of adapters whose wide side
 * is cut, or the norms. */
static uint64_t layer_shared(const struct problem *p)
{
    uint64_t hidden = p->footprint.shape.hidden;
    if (p->workload->method == METHOD_FULL)
        return 2 * hidden;
    return p->footprint.rank * hidden * p->workload->target_count;
}

uint64_t tensor_shared_bytes(const struct problem *p, uint64_t layers)
{
    return 4 * layer_shared(p) * layers;
}

/* Bytes of frozen weights, and trained parameters, of one block as a member keeps them. */
static void block_keeps(const struct problem *p, int32_t block, const struct plan_tensor *t, double *frozen,
                        double *trained)
{
    const struct workload *w = p->workload;
    const struct block *b = &p->blocks.blocks[block];
    bool layer = block > 0 && block < p->block_count - 1, full = w->method == METHOD_FULL;
    double each = w->base == BASE_FP32 ? 4 : 2, vocabulary = share_vocabulary(p, t);
    for (uint32_t i = 0; i < b->part_count; i++) {
        const struct block_part *part = &b->parts[i];
        double share = !layer                         ? vocabulary
                       : part->kind == PART_ATTENTION ? share_heads(p, t)
                                                      : share_columns(p, t);
        double params = (double)part->params * share, packed = 0;
        if (!full && w->base == BASE_NF4)
            packed = (double)part->matrix_params * share;
        *frozen += full ? 0 : (params - packed) * each + packed * BLOCK_NF4_BYTES;
        *trained += full ? params : (double)part->lora_params * share;
    }
    double alike = layer ? (double)layer_shared(p) : 0;
    *trained += alike * (1 - fmin(share_heads(p, t), share_columns(p, t)));
}

/* Do both keep as much of everything? */
static bool keeps_alike(const struct block *a, const struct block *b)
{
    bool alike = a->kind == b->kind && a->part_count == b->part_count;
    for (uint32_t i = 0; i < a->part_count && alike; i++) {
        const struct block_part *x = &a->parts[i], *y = &b->parts[i];
        alike = x->kind == y->kind && x->params == y->params && x->matrix_params == y->matrix_params &&
                x->lora_params == y->lora_params;
    }
    return alike;
}

static void weights_need(const struct problem *p, const struct place_stage *stage,
                         const struct plan_tensor *t, struct memory_need *need)
{
    double frozen = 0, trained = 0, copy = 0, state = memory_state_bytes(p), one[2] = {0};
    bool full = p->workload->method == METHOD_FULL;
    for (int32_t b = stage->block_begin; b < stage->block_end; b++) {
        const struct block *block = &p->blocks.blocks[b];
        if (b == stage->block_begin || !keeps_alike(block, block - 1)) {
            one[0] = one[1] = 0;
            block_keeps(p, b, t, &one[0], &one[1]);
        }
        frozen += one[0];
        trained += one[1];
    }
    if (stage->block_end == p->block_count && stage->block_begin > 0 && p->blocks.tied)
        copy = (double)p->blocks.tied_params * share_vocabulary(p, t);
    frozen += full ? 0 : copy * (p->workload->base == BASE_FP32 ? 4 : 2);
    trained += full ? copy : 0;
    need->purpose[PURPOSE_WEIGHTS] = (uint64_t)frozen;
    need->purpose[PURPOSE_ADAPTERS] = (uint64_t)(trained * (state - 8)) + 1;
    need->purpose[PURPOSE_OPTIMIZER] = (uint64_t)(trained * 8);
}

void tensor_stage_need(const struct problem *p, const struct place_stage *stage,
                       const struct plan_tensor *part, uint32_t rows, bool recompute, uint32_t live,
                       uint32_t partials, struct tensor_need *out)
{
    const struct footprint_shape *s = &p->footprint.shape;
    uint64_t tokens = problem_tokens_bound(p, rows);
    int32_t last = p->block_count - 1;
    int32_t begin = stage->block_begin > 1 ? stage->block_begin : 1;
    int32_t end = stage->block_end < last ? stage->block_end : last;
    uint64_t layers = end > begin ? (uint64_t)(end - begin) : 0;
    double heads = recompute ? 0 : share_heads(p, part), columns = recompute ? 0 : share_columns(p, part);
    struct memory_stage whole = {.block_begin = stage->block_begin,
                                 .block_end = stage->block_end,
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
    out->shared_gradients = tensor_shared_bytes(p, layers);
    weights_need(p, stage, part, &out->need);
    out->need.cache_bytes = (uint64_t)ceil((double)all.cache_bytes * share_heads(p, part));
    /* workspace as of the whole block: an upper bound */
    out->need.purpose[PURPOSE_BUFFERS] = all.purpose[PURPOSE_BUFFERS] - all.cache_bytes +
                                         out->need.cache_bytes +
                                         partials * (uint64_t)ceil(p->bytes_per_token * (double)tokens) +
                                         (stage->block_end > last ? 12 * tokens * partials : 0);
    out->need.purpose[PURPOSE_ACTIVATIONS] = live * (layers * (out->saved_first + out->saved_second) +
                                                     (stage->block_end > last ? out->saved_head : 0));
    for (int i = 0; i < PURPOSE_COUNT; i++)
        out->need.total += out->need.purpose[i];
}

uint32_t tensor_program_length(const struct problem *p, const struct place_choice *choice)
{
    if (choice->placement != PLACE_TENSOR)
        return 1;
    uint32_t blocks = (uint32_t)p->block_count / choice->stage_count + 1;
    return 2 * blocks; /* eight instructions a layer, where a stage of a pipeline has four or so in all */
}
