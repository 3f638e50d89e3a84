#include "planner/cost/tensor_cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double share_of(uint32_t begin, uint32_t end, uint32_t all)
{
    return end > begin && all ? (double)(end - begin) / all : 1;
}

struct tensor_shares tensor_shares(const struct problem *p, const struct plan_tensor *t)
{
    const struct model_config *c = p->workload->config;
    return (struct tensor_shares){share_of(t->kv_head_begin, t->kv_head_end, c->kv_heads),
                                  share_of(t->column_begin, t->column_end, c->ffn)};
}

double tensor_attention(const struct problem *p, uint32_t device, int32_t block, enum cost_way way,
                        const struct cost_load *load)
{
    const struct block *b = &p->blocks.blocks[block];
    double measured = cost_attention_share(&p->costs[device], way, load), attention = 0, all = 0;
    if (measured >= 0)
        return measured;
    for (uint32_t i = 0; i < b->part_count; i++) {
        const struct block_part *part = &b->parts[i];
        double flops = (part->flops_per_token + part->lora_flops_per_token) * load->tokens +
                       part->flops_per_square * load->sum_sq;
        attention += part->kind == PART_ATTENTION ? flops : 0;
        all += flops;
    }
    return all > 0 ? attention / all : 0.5;
}

/* Returns the share of kernel launches in the seconds of half a block. */
static double launch_share(double seconds)
{
    return seconds > COST_KERNEL_OVERHEAD_S / 2 ? COST_KERNEL_OVERHEAD_S / 2 / seconds : 1;
}

double tensor_fixed(const struct problem *p, uint32_t device, enum tensor_half half, enum cost_way way,
                    const struct cost_load *load, double seconds)
{
    double measured = cost_fixed_share(&p->costs[device],
                                       half == TENSOR_FIRST ? COST_PART_ATTENTION : COST_PART_FFN, way, load);
    return measured >= 0 ? measured : launch_share(seconds);
}

double tensor_seconds(const struct problem *p, uint32_t device, const struct plan_tensor *part, int32_t block,
                      enum tensor_half half, enum cost_way way, const struct cost_load *load)
{
    struct tensor_shares share = tensor_shares(p, part);
    double seconds = problem_seconds(p, device, block, block + 1, way, load);
    if (load->rows <= 0 || seconds <= 0)
        return 0;
    if (block == 0 || block == p->block_count - 1) /* embedding and head are whole and not in halves */
        return half == TENSOR_SECOND ? 0 : seconds;
    double first = seconds * tensor_attention(p, device, block, way, load), second = seconds - first, sum = 0;
    if (half != TENSOR_SECOND)
        sum += tensor_shrink(first, share.heads, tensor_fixed(p, device, TENSOR_FIRST, way, load, first));
    if (half != TENSOR_FIRST)
        sum +=
            tensor_shrink(second, share.columns, tensor_fixed(p, device, TENSOR_SECOND, way, load, second));
    return sum;
}

double tensor_step_seconds(const struct problem *p, uint32_t device, const struct tensor_shares *shares,
                           int32_t begin, int32_t end)
{
    int32_t last = p->block_count - 1, first = begin > 1 ? begin : 1, after = end < last ? end : last;
    double seconds = 0;
    if (after > first) {
        seconds = problem_step_seconds(p, device, first, after);
        seconds = tensor_shrink(seconds, (shares->heads + shares->columns) / 2, launch_share(seconds));
    }
    seconds += begin == 0 ? problem_step_seconds(p, device, 0, 1) : 0;
    return seconds + (end > last ? problem_step_seconds(p, device, last, last + 1) : 0);
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

double tensor_sum_seconds(const struct ring_figures *ring, uint32_t members, double bytes)
{
    if (members < 2)
        return 0;
    return members == 2 ? bytes / ring->bytes_per_s + ring->latency_s
                        : 2 * ring_pass_seconds(ring, members, bytes);
}

double tensor_broadcast_seconds(const struct ring_figures *ring, uint32_t members, double bytes)
{
    return members < 2 ? 0 : (members - 1) * bytes / ring->bytes_per_s + ring->latency_s;
}

double tensor_host_seconds(const struct problem *p, uint32_t device, uint32_t members, double bytes)
{
    const struct planner_device *d = &p->cluster->devices[device];
    double sent = members == 2 ? bytes : 2.0 * (members - 1) / members * bytes;
    if (members < 2 || strcmp(d->kind, "cpu") != 0)
        return 0;
    return sent * d->profile.wire_s_per_byte / (d->threads > 1 ? d->threads : 1);
}

double tensor_token_bytes(const struct problem *p)
{
    return 4.0 * p->workload->config->hidden;
}

/* --- memory --- */

struct tensor_member tensor_member(const struct problem *p, int32_t begin, int32_t end, uint32_t members,
                                   uint32_t position, const struct plan_tensor *part)
{
    int32_t last = p->block_count - 1;
    struct tensor_member m = {begin, end, members == 1, position > 0, *part};
    if (position > 0) {
        m.block_begin = begin > 1 ? begin : 1;
        m.block_end = end < last ? end : last;
    }
    return m;
}

struct held_bytes {
    double weights, adapters, optimizer, host, place, workspace, scalars, table, cache;
};

static struct held_bytes held_of(const struct problem *p, const struct footprint_model *model,
                                 const struct tensor_member *m, uint32_t rows, bool recompute)
{
    struct footprint held;
    struct footprint_options options = {.train = true,
                                        .recompute = recompute,
                                        .block_begin = (uint32_t)m->block_begin,
                                        .block_end = (uint32_t)m->block_end,
                                        .slots = 1,
                                        .tokens = problem_tokens_bound(p, rows),
                                        .rows = rows,
                                        .labelled = problem_labelled_bound(p, rows),
                                        .positions = p->sequence_bound,
                                        .moments_on_host = p->workload->moments_on_host};
    footprint_of(model, &options, &held);
    return (struct held_bytes){
        .weights = (double)held.weights,
        .adapters = (double)held.adapters,
        .optimizer = (double)held.optimizer,
        .host = (double)held.host,
        .place = (double)footprint_counted(held.slot.bytes),
        .workspace = (double)footprint_counted(held.workspace.bytes),
        .scalars = (double)footprint_counted(held.scalar_bytes),
        .table = held.copies_table ? 2.0 * (double)footprint_counted(held.table_bytes) : 0,
        .cache = p->workload->sample_tokens
                     ? (double)footprint_counted(footprint_cache_bytes(&held, options.positions))
                     : 0};
}

static void need_from(const struct problem *p, const struct tensor_member *m, const struct held_bytes *held,
                      uint32_t rows, struct tensor_need *out)
{
    int32_t last = p->block_count - 1, first = m->block_begin > 1 ? m->block_begin : 1,
            after = m->block_end < last ? m->block_end : last;
    memset(out, 0, sizeof(*out));
    out->shared_gradients = after > first ? p->params[after].shared_bytes - p->params[first].shared_bytes : 0;
    out->live_bytes = (uint64_t)held->place;
    out->partial_bytes =
        footprint_counted((uint64_t)(tensor_token_bytes(p) * (double)problem_tokens_bound(p, rows)));
    out->need.host_bytes = (uint64_t)held->host;
    out->need.cache_bytes = (uint64_t)held->cache;
    out->need.purpose[PURPOSE_WEIGHTS] = (uint64_t)held->weights;
    out->need.purpose[PURPOSE_ADAPTERS] = (uint64_t)held->adapters;
    out->need.purpose[PURPOSE_OPTIMIZER] = (uint64_t)held->optimizer;
    out->need.purpose[PURPOSE_BUFFERS] =
        (uint64_t)(held->workspace + held->scalars + held->table + held->cache);
    for (int i = 0; i < PURPOSE_COUNT; i++)
        out->need.total += out->need.purpose[i];
}

/* Interpolates bytes linearly between the smallest part of a layer and the parts with all heads or all
 * columns. `slack` is the most that rounding up to pages can add to the line. */
static double between(double least, double heads, double columns, double of_heads, double of_columns,
                      double slack)
{
    return ceil(least + of_heads * (heads - least) + of_columns * (columns - least) + slack);
}

void tensor_need_fill(const struct problem *p, const struct tensor_member *m, uint32_t rows, bool recompute,
                      struct tensor_need *out)
{
    const struct model_config *c = p->workload->config;
    if (m->alone || !p->part_least) {
        struct held_bytes whole = held_of(p, &p->footprint, m, rows, recompute);
        need_from(p, m, &whole, rows, out);
        return;
    }
    struct held_bytes a = held_of(p, p->part_least, m, rows, recompute),
                      h = held_of(p, p->part_heads, m, rows, recompute),
                      f = held_of(p, p->part_columns, m, rows, recompute);
    double of_heads = (m->part.kv_head_end - m->part.kv_head_begin - 1.0) / (c->kv_heads - 1.0);
    double columns = m->part.column_end - m->part.column_begin;
    double of_columns = (columns - p->column_unit) / ((double)c->ffn - p->column_unit);
    double inside = of_heads > 0 || of_columns > 0 ? 1 : 0;
    double pages = inside * FOOTPRINT_GRANULE * (m->block_end - m->block_begin);
    struct held_bytes held = {
        .weights = between(a.weights, h.weights, f.weights, of_heads, of_columns, pages),
        .adapters = between(a.adapters, h.adapters, f.adapters, of_heads, of_columns, 2 * pages),
        .optimizer = between(a.optimizer, h.optimizer, f.optimizer, of_heads, of_columns, 2 * pages),
        .host = between(a.host, h.host, f.host, of_heads, of_columns, 2 * pages),
        .place = between(a.place, h.place, f.place, of_heads, of_columns, inside * FOOTPRINT_GRANULE),
        .workspace =
            between(a.workspace, h.workspace, f.workspace, of_heads, of_columns, inside * FOOTPRINT_GRANULE),
        .scalars = a.scalars,
        .table = a.table,
        .cache = between(a.cache, h.cache, f.cache, of_heads, of_columns, inside * FOOTPRINT_GRANULE)};
    need_from(p, m, &held, rows, out);
}

int tensor_need_exact(const struct problem *p, const struct tensor_member *m, uint32_t rows, bool recompute,
                      struct tensor_need *out, struct err *err)
{
    struct footprint_model *model = NULL;
    if (m->alone) {
        tensor_need_fill(p, m, rows, recompute, out);
        return 0;
    }
    int result = tensor_part_make(p, m->part.kv_head_end - m->part.kv_head_begin,
                                  m->part.column_end - m->part.column_begin, &model, err);
    if (result == 0) {
        struct held_bytes held = held_of(p, model, m, rows, recompute);
        need_from(p, m, &held, rows, out);
    }
    free(model);
    return result;
}
