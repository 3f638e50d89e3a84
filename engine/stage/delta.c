#include "engine/stage/delta.h"

#include "engine/stage/beside.h"

#include <math.h>

#include "engine/stage/kv_cache.h"

/* Where the parts of VALUE_MIXED begin in a layer with a gated delta net or a state space, and the widths of
 * q (or k) and v; in VALUE_QKV, where q, k and v do. */
struct delta_shape {
    uint32_t keys, values, channels, conv, z, b, a, width, q, k, v;
};

static const struct model_config *config_of(const struct layer_run *run)
{
    return &run->pass->stage->config;
}

static struct delta_shape delta_shape_of(const struct layer_run *run)
{
    const struct model_config *c = config_of(run);
    struct delta_shape s = {.keys = model_delta_keys(c), .values = model_delta_values(c)};
    s.channels = s.z = 2 * s.keys + s.values;
    s.k = s.keys;
    s.v = 2 * s.keys;
    if (c->delta_scan) { /* z is first, and the order is v, k, q */
        s.z = s.v = 0;
        s.conv = s.k = s.values;
        s.q = s.k + s.keys;
        s.a = s.conv + s.channels;
        s.width = s.a + c->delta_value_heads;
        return s;
    }
    s.b = s.z + s.values;
    s.a = s.b + c->delta_value_heads;
    s.width = s.a + c->delta_value_heads;
    return s;
}

static struct operand tensor_of(const struct layer_run *run, int32_t tensor)
{
    return tensor_at(run->block, &run->plan->tensors.list[tensor]);
}

static struct operand gradient_of(const struct layer_run *run, int32_t tensor)
{
    return tensor_gradient(run->block, &run->plan->tensors.list[tensor]);
}

static struct operand meta(const struct layer_run *run, uint64_t at)
{
    return pass_meta(run->pass, at, DTYPE_U32);
}

/* --- attention with gates --- */

/* Where k is v: copies q and k out of VALUE_MIXED, and k a second time; or the gradients back, adding v's to
 * k's. */
static void twice_copy(const struct layer_run *run, struct operand mixed, struct operand qkv, bool back)
{
    const struct model_heads *h = &run->plan->heads;
    struct op_queue *queue = &run->pass->queue;
    uint32_t both = h->q + h->kv, tokens = run->pass->tokens;
    struct operand k = operand_skip(mixed, h->q), v = operand_skip(qkv, both);
    queue_copy(queue, tokens, both, back ? qkv : mixed, back ? h->qkv : both, back ? mixed : qkv,
               back ? both : h->qkv);
    if (!back) {
        queue_copy(queue, tokens, h->kv, k, both, v, h->qkv);
        return;
    }
    queue_step(
        run,
        &(struct op){
            .kind = OP_ADD,
            .add = {.rows = tokens, .width = h->kv, .ldx = h->qkv, .ldy = both, .alpha = 1, .x = v, .y = k}});
}

/* Copies q, k and v between VALUE_MIXED, whose heads of q have a gate behind them, and VALUE_QKV. */
static void split_copy(const struct layer_run *run, struct operand mixed, struct operand qkv, bool back)
{
    const struct model_heads *h = &run->plan->heads;
    uint32_t q = h->q, kv = h->kv;
    if (h->borrowed) {
        borrowed_copy(run, mixed, qkv, back);
        return;
    }
    if (h->k_is_v) {
        twice_copy(run, mixed, qkv, back);
        return;
    }
    struct op_copy heads = {.rows = run->pass->tokens,
                            .vectors = h->heads,
                            .width = h->head_dim,
                            .ldx = run->plan->width[back ? VALUE_QKV : VALUE_MIXED],
                            .ldy = run->plan->width[back ? VALUE_MIXED : VALUE_QKV],
                            .vx = (back ? 1 : 2) * h->head_dim,
                            .vy = (back ? 2 : 1) * h->head_dim,
                            .x = back ? qkv : mixed,
                            .y = back ? mixed : qkv};
    struct operand mixed_kv = operand_skip(mixed, 2ull * q), kv_at = operand_skip(qkv, q);
    queue_step(run, &(struct op){.kind = OP_COPY, .copy = heads});
    queue_copy(&run->pass->queue, run->pass->tokens, 2 * kv, back ? kv_at : mixed_kv, heads.ldx,
               back ? mixed_kv : kv_at, heads.ldy);
}

/* Copies between VALUE_PACKED, where each head of k has its q, k, v and z together, and behind them each its
 * b and a, and VALUE_MIXED, which has one of these behind the other. */
static void packed_copy(const struct layer_run *run, struct operand packed, struct operand mixed, bool back)
{
    const struct model_config *c = config_of(run);
    const struct delta_shape s = delta_shape_of(run);
    uint32_t groups = c->delta_key_heads, values = s.values / groups, heads = c->delta_value_heads / groups;
    uint32_t keys = c->delta_key_dim, all = 2 * keys + 2 * values;
    const struct {
        uint32_t width, from, to, stride; /* of a head of k: values, places, and values of all parts */
    } parts[] = {
        {keys, 0, 0, all},
        {keys, keys, s.keys, all},
        {values, 2 * keys, 2 * s.keys, all},
        {values, 2 * keys + values, s.z, all},
        {heads, s.b, s.b, 2 * heads},
        {heads, s.b + heads, s.a, 2 * heads},
    };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        struct operand in = operand_skip(packed, parts[i].from), out = operand_skip(mixed, parts[i].to);
        queue_step(run, &(struct op){.kind = OP_COPY,
                                     .copy = {.rows = run->pass->tokens,
                                              .vectors = groups,
                                              .width = parts[i].width,
                                              .ldx = s.width,
                                              .ldy = s.width,
                                              .vx = back ? parts[i].width : parts[i].stride,
                                              .vy = back ? parts[i].stride : parts[i].width,
                                              .x = back ? out : in,
                                              .y = back ? in : out}});
    }
}

/* A part of each head: rows of all heads are `ld` values apart, and heads `head` values. */
struct heads_part {
    struct operand at;
    uint32_t ld, head;
};

/* Copies `width` values of each head from `x` to `y`, or back. */
static void heads_copy(const struct layer_run *run, uint32_t width, struct heads_part x, struct heads_part y,
                       bool back)
{
    const struct heads_part from = back ? y : x, to = back ? x : y;
    queue_step(run, &(struct op){.kind = OP_COPY,
                                 .copy = {.rows = run->pass->tokens,
                                          .vectors = run->plan->heads.heads,
                                          .width = width,
                                          .ldx = from.ld,
                                          .ldy = to.ld,
                                          .vx = from.head,
                                          .vy = to.head,
                                          .x = from.at,
                                          .y = to.at}});
}

/* Copies the rotated part of the first head's k to the other heads, of which as many have it each time as had
 * it before. */
static void shared_spread(const struct layer_run *run, struct operand k)
{
    const struct model_heads *h = &run->plan->heads;
    for (uint32_t done = 1; done < h->heads; done *= 2)
        queue_step(run, &(struct op){.kind = OP_COPY,
                                     .copy = {.rows = run->pass->tokens,
                                              .vectors = done < h->heads - done ? done : h->heads - done,
                                              .width = config_of(run)->rotary_dim,
                                              .ldx = h->qkv,
                                              .ldy = h->qkv,
                                              .vx = h->head_dim,
                                              .vy = h->head_dim,
                                              .x = k,
                                              .y = operand_skip(k, (uint64_t)done * h->head_dim)}});
}

/* Adds the gradients of all heads of k to that of the first head: the last half of the heads to the first,
 * until one is left. The other values of the heads, whose gradients are copied before, are added as well. */
static void delta_shared_sum(const struct layer_run *run, struct operand dk)
{
    const struct model_heads *h = &run->plan->heads;
    for (uint32_t left = h->heads, half; left > 1; left -= half) {
        half = left / 2;
        queue_step(run, &(struct op){.kind = OP_ADD,
                                     .add = {.rows = run->pass->tokens,
                                             .width = half * h->head_dim,
                                             .ldx = h->qkv,
                                             .ldy = h->qkv,
                                             .alpha = 1,
                                             .x = operand_skip(dk, (uint64_t)(left - half) * h->head_dim),
                                             .y = dk}});
    }
}

/* Copies between latent attention's products, where the rotated values of a head of q are its last, each head
 * has k and v together, and k's rotated values stand behind the latent, and VALUE_QKV. */
static void latent_copy(const struct layer_run *run, struct operand q, struct operand kv,
                        struct operand latent, struct operand qkv, bool back)
{
    const struct model_config *c = config_of(run);
    const struct model_heads *h = &run->plan->heads;
    struct op_queue *queue = &run->pass->queue;
    uint32_t d = h->head_dim, rotary = c->rotary_dim, rest = d - rotary, tokens = run->pass->tokens;
    uint32_t pair = rest + c->value_dim, wide = c->kv_latent + rotary;
    const struct operand k = operand_skip(qkv, h->q), shared = operand_skip(latent, c->kv_latent);
    if (!back && c->value_dim < d)
        queue_zero(queue, qkv, (uint64_t)tokens * h->qkv);
    heads_copy(run, rest, (struct heads_part){q, h->q, d},
               (struct heads_part){operand_skip(qkv, rotary), h->qkv, d}, back);
    heads_copy(run, rotary, (struct heads_part){operand_skip(q, rest), h->q, d},
               (struct heads_part){qkv, h->qkv, d}, back);
    heads_copy(run, rest, (struct heads_part){kv, h->heads * pair, pair},
               (struct heads_part){operand_skip(k, rotary), h->qkv, d}, back);
    heads_copy(run, c->value_dim, (struct heads_part){operand_skip(kv, rest), h->heads * pair, pair},
               (struct heads_part){operand_skip(k, h->kv), h->qkv, d}, back);
    if (back)
        delta_shared_sum(run, k);
    queue_copy(queue, tokens, rotary, back ? k : shared, back ? h->qkv : wide, back ? shared : k,
               back ? wide : h->qkv);
    if (!back)
        shared_spread(run, k);
}

/* Copies attention's output to VALUE_GATED without the zeros behind each head, or the gradient back. */
static void narrow_copy(const struct layer_run *run, struct operand att, struct operand out, bool back)
{
    const struct model_heads *h = &run->plan->heads;
    uint32_t values = config_of(run)->value_dim;
    if (back)
        queue_zero(&run->pass->queue, att, (uint64_t)run->pass->tokens * h->q);
    heads_copy(run, values, (struct heads_part){att, h->q, h->head_dim},
               (struct heads_part){out, h->heads * values, values}, back);
}

/* Copies x between VALUE_MIXED, which has it behind the two gates of a short convolution, and VALUE_QKV. */
static void gated_copy(const struct layer_run *run, struct operand mixed, struct operand x, bool back)
{
    uint32_t h = config_of(run)->hidden;
    struct operand at = operand_skip(mixed, 2ull * h);
    queue_copy(&run->pass->queue, run->pass->tokens, h, back ? x : at, back ? h : 3 * h, back ? at : x,
               back ? 3 * h : h);
}

/* Copies between VALUE_PACKED, where each head has its q, k and v together, and VALUE_QKV. */
static void by_head_copy(const struct layer_run *run, struct operand packed, struct operand qkv, bool back)
{
    const struct model_heads *h = &run->plan->heads;
    for (uint32_t i = 0; i < 3; i++) {
        struct operand in = operand_skip(packed, (uint64_t)i * h->head_dim),
                       out = operand_skip(qkv, (uint64_t)i * h->q);
        queue_step(run, &(struct op){.kind = OP_COPY,
                                     .copy = {.rows = run->pass->tokens,
                                              .vectors = h->heads,
                                              .width = h->head_dim,
                                              .ldx = h->qkv,
                                              .ldy = h->qkv,
                                              .vx = (back ? 1 : 3) * h->head_dim,
                                              .vy = (back ? 3 : 1) * h->head_dim,
                                              .x = back ? out : in,
                                              .y = back ? in : out}});
    }
}

static void parts_copy(const struct layer_run *run, const struct layer_step *step, struct operand in,
                       struct operand out, bool back)
{
    if (config_of(run)->qkv_by_head)
        by_head_copy(run, in, out, back);
    else if (step->in == VALUE_PACKED)
        packed_copy(run, in, out, back);
    else if (step->in == VALUE_ATT)
        narrow_copy(run, in, out, back);
    else if (step->add == VALUE_KV)
        latent_copy(run, in, back ? run_gradient(run, VALUE_KV) : run_value(run, VALUE_KV),
                    back ? run_gradient(run, VALUE_KV_LATENT) : run_value(run, VALUE_KV_LATENT), out, back);
    else if (model_layer_is_conv(config_of(run), run->layer))
        gated_copy(run, in, out, back);
    else
        split_copy(run, in, out, back);
}

void split_forward(const struct layer_run *run, const struct layer_step *step)
{
    parts_copy(run, step, run_value(run, step->in), run_value(run, step->out), false);
}

void split_backward(const struct layer_run *run, const struct layer_step *step)
{
    parts_copy(run, step, run_gradient(run, step->in), run_gradient(run, step->out), true);
}

static struct op_gate delta_gate_of(const struct layer_run *run, const struct layer_step *step)
{
    const struct model_config *c = config_of(run);
    const struct model_heads *h = &run->plan->heads;
    bool delta = model_layer_is_delta(c, run->layer);
    struct op_gate op = {.rows = run->pass->tokens,
                         .vectors = delta ? 1 : h->heads,
                         .width = delta ? model_delta_values(c) : h->head_dim,
                         .ldz = run->plan->width[VALUE_MIXED],
                         .vz = delta ? model_delta_values(c) : 2 * h->head_dim,
                         .kind = delta ? GATE_SILU : GATE_SIGMOID,
                         .x = run_value(run, step->in),
                         .y = run_value(run, step->out)};
    op.z = operand_skip(run_value(run, VALUE_MIXED), delta ? delta_shape_of(run).z : h->head_dim);
    if (model_layer_is_conv(c, run->layer)) {
        op.vectors = 1;
        op.width = op.vz = c->hidden;
        op.kind = GATE_PLAIN;
        op.z = operand_skip(run_value(run, VALUE_MIXED), step->in == VALUE_ATT ? c->hidden : 0);
    }
    return op;
}

void gate_forward(const struct layer_run *run, const struct layer_step *step)
{
    queue_step(run, &(struct op){.kind = OP_GATE, .gate = delta_gate_of(run, step)});
}

void gate_backward(const struct layer_run *run, const struct layer_step *step)
{
    struct op_gate forward = delta_gate_of(run, step);
    struct operand mixed = run_value(run, VALUE_MIXED), d = run_gradient(run, VALUE_MIXED);
    forward.y = (struct operand){0};
    if (forward.vectors > 1) /* the gates are between the heads of q, whose gradient comes later */
        queue_zero(&run->pass->queue, d, (uint64_t)run->pass->tokens * run->plan->width[VALUE_MIXED]);
    queue_step(run, &(struct op){.kind = OP_GATE_BACKWARD,
                                 .gate_backward = {.forward = forward,
                                                   .dy = run_gradient(run, step->out),
                                                   .dx = run_gradient(run, step->in),
                                                   .dz = operand_skip(d, (forward.z.at - mixed.at) / 4)}});
}

/* --- gated delta nets, and the convolution that they share with short convolutions --- */

/* The norm that scales q (which = 0) or k to length 1: x / sqrt(mean(x^2) + eps / n) / sqrt(n) is x /
 * sqrt(sum(x^2) + eps) for n values. transformers' eps is 1e-6, and q is divided by sqrt(n) once more. */
static struct op_rmsnorm unit_norm(const struct layer_run *run, uint32_t which)
{
    const struct model_config *c = config_of(run);
    uint32_t n = c->delta_key_dim, at = which * model_delta_keys(c), ld = run->plan->width[VALUE_QKV];
    return (struct op_rmsnorm){.rows = run->pass->tokens,
                               .width = n,
                               .vectors = c->delta_key_heads,
                               .ldx = ld,
                               .ldy = ld,
                               .eps = 1e-6f / (float)n,
                               .offset = (float)(which == 0 ? 1.0 / n : 1.0 / sqrt((double)n)),
                               .x = operand_skip(run_value(run, VALUE_QKV), at),
                               .y = operand_skip(run_value(run, VALUE_QKV_NORM), at)};
}

void unit_norm_forward(const struct layer_run *run)
{
    const struct delta_shape s = delta_shape_of(run);
    for (uint32_t which = 0; which < 2; which++)
        queue_step(run, &(struct op){.kind = OP_RMSNORM, .rmsnorm = unit_norm(run, which)});
    queue_copy(&run->pass->queue, run->pass->tokens, s.values,
               operand_skip(run_value(run, VALUE_QKV), 2ull * s.keys), s.channels,
               operand_skip(run_value(run, VALUE_QKV_NORM), 2ull * s.keys), s.channels);
}

void unit_norm_backward(const struct layer_run *run)
{
    for (uint32_t which = 0; which < 2; which++) {
        struct op_rmsnorm norm = unit_norm(run, which);
        struct operand d = operand_skip(run_gradient(run, VALUE_QKV), which * delta_shape_of(run).keys);
        queue_step(run, &(struct op){.kind = OP_RMSNORM_BACKWARD,
                                     .rmsnorm_backward = {.rows = norm.rows,
                                                          .width = norm.width,
                                                          .vectors = norm.vectors,
                                                          .ldx = norm.ldx,
                                                          .lddy = norm.ldx,
                                                          .lddx = norm.ldx,
                                                          .eps = norm.eps,
                                                          .offset = norm.offset,
                                                          .x = norm.x,
                                                          .dy = d,
                                                          .dx = d}});
    }
}

/* Returns the first column that a convolution reads. */
static uint32_t conv_column(const struct layer_run *run)
{
    return config_of(run)->delta_scan ? delta_shape_of(run).conv : 0;
}

static struct op_conv conv_of(const struct layer_run *run, const struct layer_step *step)
{
    const struct layer_tensor *weight = &run->plan->tensors.list[step->conv];
    struct op_conv op = {.tokens = run->pass->tokens,
                         .width = weight->rows,
                         .ldx = run->plan->width[step->in],
                         .ldy = run->plan->width[step->out],
                         .taps = weight->columns,
                         .plain = model_layer_is_conv(config_of(run), run->layer),
                         .x = operand_skip(run_value(run, step->in), conv_column(run)),
                         .weight = tensor_of(run, step->conv),
                         .positions = meta(run, run->pass->stage->layout.slot.positions)};
    if (step->conv_bias >= 0)
        op.bias = tensor_of(run, step->conv_bias);
    return op;
}

static uint32_t layer_within(const struct layer_run *run)
{
    return run->layer - run->pass->stage->layout.layer_begin;
}

void conv_forward(const struct layer_run *run, const struct layer_step *step)
{
    struct op op = {.kind = OP_CONV, .conv = conv_of(run, step)};
    op.conv.y = run_value(run, step->out);
    if (run->pass->cache)
        op.conv.past = kv_cache_past(run->pass->cache, layer_within(run));
    queue_step(run, &op);
}

void conv_backward(const struct layer_run *run, const struct layer_step *step)
{
    struct op op = {.kind = OP_CONV_BACKWARD,
                    .conv_backward = {.forward = conv_of(run, step),
                                      .lddx = run->plan->width[step->in],
                                      .dy = run_gradient(run, step->out),
                                      .dx = operand_skip(run_gradient(run, step->in), conv_column(run)),
                                      .dweight = gradient_of(run, step->conv)}};
    if (step->conv_bias >= 0)
        op.conv_backward.dbias = gradient_of(run, step->conv_bias);
    queue_step(run, &op);
}

static struct op_delta delta_of(const struct layer_run *run, const struct layer_step *step)
{
    const struct model_config *c = config_of(run);
    const struct delta_shape s = delta_shape_of(run);
    struct operand qkv = run_value(run, step->in), mixed = run_value(run, VALUE_MIXED);
    struct op_delta op = {.rows = run->pass->rows,
                          .tokens = run->pass->tokens,
                          .heads = c->delta_value_heads,
                          .key_heads = c->delta_key_heads,
                          .key_dim = c->delta_key_dim,
                          .value_dim = c->delta_value_dim,
                          .ld = s.channels,
                          .ldg = s.width,
                          .q = operand_skip(qkv, s.q),
                          .k = operand_skip(qkv, s.k),
                          .v = operand_skip(qkv, s.v),
                          .a = operand_skip(mixed, s.a),
                          .scan = c->delta_scan,
                          .decay = tensor_of(run, step->decay),
                          .dt_bias = tensor_of(run, step->dt_bias),
                          .row_start = meta(run, run->pass->stage->layout.slot.row_start)};
    if (op.scan) {
        op.skip = tensor_of(run, step->skip);
        return op;
    }
    op.b = operand_skip(mixed, s.b);
    op.error = run_value(run, VALUE_ERROR);
    return op;
}

void delta_forward(const struct layer_run *run, const struct layer_step *step)
{
    struct op op = {.kind = OP_DELTA, .delta = delta_of(run, step)};
    op.delta.out = run_value(run, step->out);
    if (run->pass->cache) {
        op.delta.state = kv_cache_state(run->pass->cache, layer_within(run));
        op.delta.begin = run->pass->cache_begin;
    }
    queue_step(run, &op);
}

/* y[heads] += the sum over tokens of x. */
static void sum_heads(const struct layer_run *run, struct operand x, uint32_t ldx, struct operand y)
{
    if (y.buffer)
        queue_step(run, &(struct op){.kind = OP_COLUMN_SUM,
                                     .column_sum = {.rows = run->pass->tokens,
                                                    .width = config_of(run)->delta_value_heads,
                                                    .ldx = ldx,
                                                    .x = x,
                                                    .y = y}});
}

void delta_backward(const struct layer_run *run, const struct layer_step *step,
                    const struct tape_entry *entry)
{
    const struct model_config *c = config_of(run);
    const struct delta_shape s = delta_shape_of(run);
    struct operand d = run_gradient(run, step->in), mixed = run_gradient(run, VALUE_MIXED);
    uint32_t heads = c->delta_value_heads, floats = layer_delta_scratch(c) - (1 + c->delta_scan) * heads;
    struct op_delta_backward op = {.forward = delta_of(run, step),
                                   .ldd = s.channels,
                                   .dout = run_gradient(run, step->out),
                                   .work = run_scratch(run, entry->scratch),
                                   .dq = operand_skip(d, s.q),
                                   .dk = operand_skip(d, s.k),
                                   .dv = operand_skip(d, s.v),
                                   .da = operand_skip(mixed, s.a),
                                   .db = operand_skip(mixed, s.b)};
    op.rates = operand_skip(op.work, (uint64_t)run->pass->tokens * floats);
    op.skips = operand_skip(op.rates, (uint64_t)run->pass->tokens * heads);
    queue_step(run, &(struct op){.kind = OP_DELTA_BACKWARD, .delta_backward = op});
    sum_heads(run, op.da, s.width, gradient_of(run, step->dt_bias));
    sum_heads(run, op.rates, heads, gradient_of(run, step->decay));
    if (c->delta_scan)
        sum_heads(run, op.skips, heads, gradient_of(run, step->skip));
}
