/* Runs one transformer layer of any architecture: forward by the steps of its layer plan
 * (model/shape/layer.h), backward by the plan's tape, which lists the steps' backwards in order. A step's
 * forward and backward functions stand side by side.
 */
#include "engine/stage/layer.h"
#include "engine/stage/beside.h"
#include "engine/stage/delta.h"
#include "engine/stage/experts.h"
#include "engine/stage/linear.h"

#include <math.h>

#include "engine/stage/kv_cache.h"

/* --- norms --- */

/* What DeepSeek's classes add to the mean of squares of latents, whatever config.json says. */
#define LATENT_EPS 1e-6

/* What is added to a norm's weights. */
static float norm_offset(const struct stage_pass *pass, const struct layer_tensor *weight)
{
    return weight->role == TENSOR_DELTA_NORM ? 0 : (float)pass->stage->config.norm_offset;
}

/* What is added to the mean of squares. The embedding's part of the layers' inputs is normed as if it were
 * first divided by sqrt(hidden). */
static float norm_eps(const struct stage_pass *pass, const struct layer_tensor *weight)
{
    const struct model_config *c = &pass->stage->config;
    bool latent = weight->role == TENSOR_NORM_Q_LATENT || weight->role == TENSOR_NORM_KV_LATENT;
    return (float)(weight->role == TENSOR_PER_LAYER_NORM ? c->norm_eps * c->hidden
                   : latent                              ? LATENT_EPS
                                                         : c->norm_eps);
}

/* The distance of a norm's inputs; 0: none lies between them. The rotated part of k follows a latent of k and
 * v. */
static uint32_t norm_ld(const struct stage_pass *pass, const struct layer_tensor *weight)
{
    return weight->role == TENSOR_NORM_KV_LATENT ? weight->rows + pass->stage->config.rotary_dim : 0;
}

/* The vectors of a norm step: one for each token, or one for each head of a gated delta net, or for each
 * layer's input. */
static uint32_t norm_rows(const struct layer_run *run, const struct layer_step *step)
{
    return run->pass->tokens * (run->plan->width[step->out] / run->plan->tensors.list[step->norm].rows);
}

void block_norm(struct stage_pass *pass, const struct block_state *block, int32_t norm, uint32_t rows,
                struct operand x, struct operand y)
{
    const struct layer_tensor *weight = &block->tensors->list[norm];
    const struct model_config *config = &pass->stage->config;
    queue_op(&pass->queue, &(struct op){.kind = OP_RMSNORM,
                                        .rmsnorm = {.rows = rows,
                                                    .width = weight->rows,
                                                    .ldx = norm_ld(pass, weight),
                                                    .eps = norm_eps(pass, weight),
                                                    .offset = norm_offset(pass, weight),
                                                    .centred = config->layer_norm,
                                                    .x = x,
                                                    .weight = tensor_at(block, weight),
                                                    .bias = config->norm_bias ? tensor_at(block, weight + 1)
                                                                              : (struct operand){0},
                                                    .y = y}});
}

void block_norm_backward(struct stage_pass *pass, const struct block_state *block, int32_t norm,
                         uint32_t rows, struct operand x, struct operand dy, bool accumulate,
                         struct operand dx)
{
    const struct layer_tensor *weight = &block->tensors->list[norm];
    bool bias = pass->stage->config.norm_bias && weight[1].trained;
    if (bias) /* dx may overwrite dy */
        queue_op(&pass->queue, &(struct op){.kind = OP_COLUMN_SUM,
                                            .column_sum = {.rows = rows,
                                                           .width = weight->rows,
                                                           .ldx = weight->rows,
                                                           .x = dy,
                                                           .y = tensor_gradient(block, weight + 1)}});
    queue_op(&pass->queue, &(struct op){.kind = OP_RMSNORM_BACKWARD,
                                        .rmsnorm_backward = {.rows = rows,
                                                             .width = weight->rows,
                                                             .ldx = norm_ld(pass, weight),
                                                             .lddx = norm_ld(pass, weight),
                                                             .eps = norm_eps(pass, weight),
                                                             .offset = norm_offset(pass, weight),
                                                             .accumulate = accumulate,
                                                             .centred = pass->stage->config.layer_norm,
                                                             .x = x,
                                                             .weight = tensor_at(block, weight),
                                                             .dy = dy,
                                                             .dx = dx,
                                                             .dweight = tensor_gradient(block, weight)}});
}

/* Norms the heads of q or of k with weight number `norm`: each head on its own, or all heads of a token as
 * one vector. The weight's length decides which. */
static void qk_norm(const struct layer_run *run, int32_t norm, uint64_t at, uint32_t width)
{
    const struct layer_tensor *weight = &run->plan->tensors.list[norm];
    const struct model_config *config = &run->pass->stage->config;
    struct operand x = operand_skip(run_value(run, VALUE_QKV), at),
                   y = operand_skip(run_value(run, VALUE_QKV_NORM), at);
    queue_step(run, &(struct op){.kind = OP_RMSNORM,
                                 .rmsnorm = {.rows = run->pass->tokens,
                                             .width = weight->rows,
                                             .vectors = width / weight->rows,
                                             .ldx = run->plan->heads.qkv,
                                             .ldy = run->plan->heads.qkv,
                                             .eps = (float)config->norm_eps,
                                             .offset = (float)config->norm_offset,
                                             .x = x,
                                             .weight = tensor_at(run->block, weight),
                                             .y = y}});
}

/* Norms the heads of v, without weights. */
static void v_norm(const struct layer_run *run)
{
    const struct model_heads *h = &run->plan->heads;
    uint64_t at = (uint64_t)h->q + h->kv;
    queue_step(run, &(struct op){.kind = OP_RMSNORM,
                                 .rmsnorm = {.rows = run->pass->tokens,
                                             .width = h->head_dim,
                                             .vectors = h->kv_heads,
                                             .ldx = h->qkv,
                                             .ldy = h->qkv,
                                             .eps = (float)run->pass->stage->config.norm_eps,
                                             .offset = 1,
                                             .x = operand_skip(run_value(run, VALUE_QKV), at),
                                             .y = operand_skip(run_value(run, VALUE_QKV_NORM), at)}});
}

/* Backward of v_norm, in place. */
static void v_norm_gradient(const struct layer_run *run)
{
    const struct model_heads *h = &run->plan->heads;
    uint64_t at = (uint64_t)h->q + h->kv;
    struct operand d = operand_skip(run_gradient(run, VALUE_QKV), at);
    queue_step(run, &(struct op){.kind = OP_RMSNORM_BACKWARD,
                                 .rmsnorm_backward = {.rows = run->pass->tokens,
                                                      .width = h->head_dim,
                                                      .vectors = h->kv_heads,
                                                      .ldx = h->qkv,
                                                      .lddy = h->qkv,
                                                      .lddx = h->qkv,
                                                      .eps = (float)run->pass->stage->config.norm_eps,
                                                      .offset = 1,
                                                      .x = operand_skip(run_value(run, VALUE_QKV), at),
                                                      .dy = d,
                                                      .dx = d}});
}

static void qk_norm_forward(const struct layer_run *run, const struct layer_step *step)
{
    const struct model_heads *s = &run->plan->heads;
    uint64_t v = (uint64_t)s->q + s->kv;
    qk_norm(run, step->norm, 0, s->q);
    if (s->borrowed) {
        queue_copy(&run->pass->queue, run->pass->tokens, 2 * s->kv,
                   operand_skip(run_value(run, VALUE_QKV), s->q), s->qkv,
                   operand_skip(run_value(run, VALUE_QKV_NORM), s->q), s->qkv);
        return;
    }
    qk_norm(run, step->norm_k, s->q, s->kv);
    if (run->pass->stage->config.v_norm)
        v_norm(run);
    else
        queue_copy(&run->pass->queue, run->pass->tokens, s->kv, operand_skip(run_value(run, VALUE_QKV), v),
                   s->qkv, operand_skip(run_value(run, VALUE_QKV_NORM), v), s->qkv);
}

/* Backward of qk_norm, in place: replaces the gradient of the normed heads by that of the heads before. */
static void qk_norm_gradient(const struct layer_run *run, int32_t norm, uint64_t at, uint32_t width)
{
    const struct layer_tensor *weight = &run->plan->tensors.list[norm];
    const struct model_config *config = &run->pass->stage->config;
    struct operand d = operand_skip(run_gradient(run, VALUE_QKV), at);
    uint32_t ld = run->plan->heads.qkv;
    queue_step(run, &(struct op){.kind = OP_RMSNORM_BACKWARD,
                                 .rmsnorm_backward = {.rows = run->pass->tokens,
                                                      .width = weight->rows,
                                                      .vectors = width / weight->rows,
                                                      .ldx = ld,
                                                      .lddy = ld,
                                                      .lddx = ld,
                                                      .eps = (float)config->norm_eps,
                                                      .offset = (float)config->norm_offset,
                                                      .x = operand_skip(run_value(run, VALUE_QKV), at),
                                                      .weight = tensor_at(run->block, weight),
                                                      .dy = d,
                                                      .dx = d,
                                                      .dweight = tensor_gradient(run->block, weight)}});
}

/* --- attention --- */

static struct op rope_op(const struct layer_run *run, struct operand qkv, bool inverse)
{
    const struct stage *stage = run->pass->stage;
    const struct model_config *config = &stage->config;
    const struct model_heads *s = &run->plan->heads;
    uint32_t rotary = model_layer_rotary(config, run->layer);
    bool local = model_layer_rope(config, run->layer) == &config->rope_local;
    uint64_t table = local ? 4ull * model_rotary(config, false) * stage->options.positions_max : 0;
    return (struct op){.kind = OP_ROPE,
                       .rope = {.tokens = run->pass->tokens,
                                .heads = s->heads + (s->borrowed ? 0 : s->kv_heads),
                                .head_dim = s->head_dim,
                                .ldx = s->qkv,
                                .table_rows = stage->options.positions_max,
                                .rotary_dim = rotary,
                                .adjacent = config->rope_adjacent,
                                .inverse = inverse,
                                .x = qkv,
                                .positions = pass_meta(run->pass, stage->layout.slot.positions, DTYPE_U32),
                                .table = f32_at(stage->rope, table)}};
}

static bool rotates(const struct layer_run *run)
{
    return model_layer_rotates(&run->pass->stage->config, run->layer);
}

static void rotate(const struct layer_run *run, struct operand qkv, bool inverse)
{
    const struct op op = rope_op(run, qkv, inverse);
    if (rotates(run))
        queue_step(run, &op);
}

/* Does the device rotate q and k while STEP_ROUND rounds them? Then *op does so, and STEP_ROPE does nothing.
 */
static bool round_rotates(const struct layer_run *run, struct op *op)
{
    const struct layer_plan *plan = run->plan;
    if (run->pass->cache || plan->width[VALUE_QKV_ROUNDED] == 0 || !rotates(run) || plan->lends)
        return false;
    *op = rope_op(run, run_value(run, plan->width[VALUE_QKV_NORM] > 0 ? VALUE_QKV_NORM : VALUE_QKV), false);
    op->rope.copied = (plan->heads.borrowed ? 2 : 1) * plan->heads.kv_heads;
    op->rope.y = run_value(run, VALUE_QKV_ROUNDED);
    return op_supports(run->pass->queue.device, op);
}

static float attention_scale(const struct layer_run *run)
{
    double scale = run->pass->stage->config.attn_scale;
    return (float)(scale > 0 ? scale : 1.0 / sqrt((double)run->plan->heads.head_dim));
}

/* The sinks of an attention step, or absent. */
static struct operand attention_sinks(const struct layer_run *run, const struct layer_step *step)
{
    return step->norm < 0 ? (struct operand){0} : tensor_at(run->block, &run->plan->tensors.list[step->norm]);
}

static struct op_attention attention_of(const struct layer_run *run, const struct layer_step *step)
{
    const struct stage *stage = run->pass->stage;
    const struct model_heads *s = &run->plan->heads;
    struct operand qkv = run_value(run, step->in);
    return (struct op_attention){.rows = run->pass->rows,
                                 .tokens = run->pass->tokens,
                                 .heads = s->heads,
                                 .kv_heads = s->kv_heads,
                                 .head_dim = s->head_dim,
                                 .ld = s->qkv,
                                 .window = model_layer_window(&stage->config, run->layer),
                                 .scale = attention_scale(run),
                                 .cap = (float)stage->config.attn_softcap,
                                 .compute = stage->options.compute,
                                 .q = qkv,
                                 .k = operand_skip(qkv, s->q),
                                 .v = operand_skip(qkv, s->q + s->kv),
                                 .row_start = pass_meta(run->pass, stage->layout.slot.row_start, DTYPE_U32),
                                 .out = run_value(run, VALUE_ATT),
                                 .lse = run_value(run, VALUE_LSE),
                                 .sinks = attention_sinks(run, step)};
}

static void layer_attention_forward(const struct layer_run *run, const struct layer_step *step)
{
    queue_step(run, &(struct op){.kind = OP_ATTENTION, .attention = attention_of(run, step)});
}

/* Append this call's keys and values to the cache, then attend to the whole cache. The cache is in fp32;
 * attention rounds keys and values as it reads them. */
static void attention_cached_forward(const struct layer_run *run, const struct layer_step *step)
{
    struct stage_pass *pass = run->pass;
    const struct stage *stage = pass->stage;
    const struct model_heads *s = &run->plan->heads;
    uint32_t owner = footprint_cache_owner(&stage->layout, run->layer),
             within = owner - stage->layout.layer_begin;
    struct operand qkv = run_value(run, run->plan->width[VALUE_QKV_NORM] > 0 ? VALUE_QKV_NORM : VALUE_QKV);
    struct operand k = kv_cache_keys(pass->cache, within), v = kv_cache_values(pass->cache, within);
    uint64_t begin = (uint64_t)pass->cache_begin * s->kv;
    if (owner == run->layer) {
        queue_copy(&pass->queue, pass->tokens, s->kv, operand_skip(qkv, s->q), s->qkv, operand_skip(k, begin),
                   s->kv);
        queue_copy(&pass->queue, pass->tokens, s->kv, operand_skip(qkv, s->q + s->kv), s->qkv,
                   operand_skip(v, begin), s->kv);
    }
    queue_step(run,
               &(struct op){.kind = OP_ATTENTION_CACHED,
                            .attention_cached = {.tokens = pass->tokens,
                                                 .begin = pass->cache_begin,
                                                 .heads = s->heads,
                                                 .kv_heads = s->kv_heads,
                                                 .head_dim = s->head_dim,
                                                 .ldq = s->qkv,
                                                 .window = model_layer_window(&stage->config, run->layer),
                                                 .scale = attention_scale(run),
                                                 .cap = (float)stage->config.attn_softcap,
                                                 .compute = stage->options.compute,
                                                 .q = qkv,
                                                 .k = k,
                                                 .v = v,
                                                 .out = run_value(run, VALUE_ATT),
                                                 .sinks = attention_sinks(run, step)}});
}

static void layer_attention_backward(const struct layer_run *run, const struct layer_step *step,
                                     const struct tape_entry *entry)
{
    const struct model_heads *s = &run->plan->heads;
    struct operand d = run_gradient(run, step->in), dsinks = {0};
    if (step->norm >= 0)
        dsinks = tensor_gradient(run->block, &run->plan->tensors.list[step->norm]);
    queue_step(run, &(struct op){.kind = OP_ATTENTION_BACKWARD,
                                 .attention_backward = {.forward = attention_of(run, step),
                                                        .dsinks = dsinks,
                                                        .dout = run_gradient(run, VALUE_ATT),
                                                        .delta = run_scratch(run, entry->scratch),
                                                        .dq = d,
                                                        .dk = operand_skip(d, s->q),
                                                        .dv = operand_skip(d, s->q + s->kv)}});
}

/* --- gates and sums --- */

static struct op glu_op(const struct layer_run *run, const struct layer_step *step, bool backward)
{
    const struct model_config *config = &run->pass->stage->config;
    bool sparse = run->plan->width[VALUE_CHOSEN] > 0 && step->in == VALUE_GATE_UP;
    uint32_t copies = sparse ? config->experts_active : 1;
    uint32_t tokens = run->pass->tokens * copies, width = run->plan->width[step->out] / copies;
    static const enum glu_kind kinds[] = {[ACT_SILU] = GLU_SILU,
                                          [ACT_GELU_TANH] = GLU_GELU_TANH,
                                          [ACT_GELU] = GLU_GELU,
                                          [ACT_RELU2] = GLU_RELU2};
    struct glu_form form = {.kind = config->gate_limit > 0 ? GLU_CLAMPED : kinds[config->act],
                            .plain = config->plain_ffn,
                            .limit = (float)config->gate_limit,
                            .alpha = (float)config->gate_alpha};
    struct operand gate_up = run_value(run, step->in);
    if (backward)
        return (struct op){.kind = OP_GLU_BACKWARD,
                           .glu_backward = {.tokens = tokens,
                                            .width = width,
                                            .form = form,
                                            .gate_up = gate_up,
                                            .dact = run_gradient(run, step->out)}};
    return (struct op){.kind = OP_GLU,
                       .glu = {.tokens = tokens,
                               .width = width,
                               .form = form,
                               .gate_up = gate_up,
                               .act = run_value(run, step->out)}};
}

/* y += x, times the step's factor. */
static void add_scaled(const struct layer_run *run, const struct layer_step *step, struct operand x,
                       struct operand y)
{
    uint32_t hidden = run_shape(run)->hidden;
    queue_step(run, &(struct op){.kind = OP_ADD,
                                 .add = {.rows = run->pass->tokens,
                                         .width = hidden,
                                         .ldx = hidden,
                                         .ldy = hidden,
                                         .alpha = (float)step->factor,
                                         .x = x,
                                         .y = y}});
}

static void add_forward(const struct layer_run *run, const struct layer_step *step)
{
    sum_begin(run, step);
    add_scaled(run, step, run_value(run, step->in), run_value(run, step->out));
}

/* Multiplies the layer's output, or its gradient, by the layer's number. */
static void scale_by_number(const struct layer_run *run, const struct layer_step *step, struct operand x)
{
    queue_step(
        run, &(struct op){.kind = OP_SCALE,
                          .scale = {.rows = run->pass->tokens,
                                    .width = run_shape(run)->hidden,
                                    .x = x,
                                    .factor = tensor_at(run->block, &run->plan->tensors.list[step->norm])}});
}

/* The gradient of a summand is the sum's own, unless the summand was scaled. */
static void add_backward(const struct layer_run *run, const struct layer_step *step)
{
    struct operand d = run_gradient(run, step->in);
    if (layer_gradient_is_stream(step->in) || layer_gradient_of(step->in) == layer_gradient_of(step->out))
        return;
    queue_zero(&run->pass->queue, d, (uint64_t)run->pass->tokens * run_shape(run)->hidden);
    add_scaled(run, step, run_gradient(run, step->out), d);
}

/* --- a layer --- */

/* The steps of experts, and those of what passes by the residual stream. */
static void apart_forward(const struct layer_run *run, const struct layer_step *step)
{
    switch (step->kind) {
    case STEP_ROUTE:
        route_forward(run, step);
        break;
    case STEP_WEIGH:
        weigh_forward(run, step);
        break;
    case STEP_DISPATCH:
        dispatch_forward(run, step);
        break;
    case STEP_COMBINE:
        combine_forward(run, step);
        break;
    case STEP_LEND:
        lend_forward(run, step);
        break;
    case STEP_PAIR:
        pair_forward(run, step);
        break;
    default:
        break;
    }
}

static void apart_backward(const struct layer_run *run, const struct layer_step *step,
                           const struct tape_entry *entry)
{
    switch (step->kind) {
    case STEP_ROUTE:
        route_backward(run, step);
        break;
    case STEP_WEIGH:
        weigh_backward(run, step);
        break;
    case STEP_DISPATCH:
        dispatch_backward(run, step, entry->accumulate && run->plan->holds != HOLDS_EXPERTS);
        break;
    case STEP_COMBINE:
        combine_backward(run, step);
        break;
    case STEP_LEND:
        lend_backward(run, step);
        break;
    case STEP_PAIR:
        pair_backward(run, step);
        break;
    default:
        break;
    }
}

static void step_forward(struct layer_run *run, const struct layer_step *step, bool only_z)
{
    struct op op;
    switch (step->kind) {
    case STEP_NORM:
        block_norm(run->pass, run->block, step->norm, norm_rows(run, step), run_value(run, step->in),
                   run_value(run, step->out));
        break;
    case STEP_QK_NORM:
        if (step->norm < 0)
            unit_norm_forward(run);
        else
            qk_norm_forward(run, step);
        break;
    case STEP_SPLIT:
        split_forward(run, step);
        break;
    case STEP_CONV:
        conv_forward(run, step);
        break;
    case STEP_DELTA:
        delta_forward(run, step);
        break;
    case STEP_GATE:
        gate_forward(run, step);
        break;
    case STEP_LINEAR:
        linear_forward(run, step, only_z);
        break;
    case STEP_ROPE:
        if (!round_rotates(run, &op))
            rotate(run, run_value(run, step->out), false);
        break;
    case STEP_ROUND:
        if (round_rotates(run, &op))
            queue_step(run, &op);
        else if (!run->pass->cache)
            queue_cast(&run->pass->queue, (uint64_t)run->pass->tokens * run->plan->width[step->in],
                       run_value(run, step->in), run_value(run, step->out));
        break;
    case STEP_ATTENTION:
        if (run->pass->cache)
            attention_cached_forward(run, step);
        else
            layer_attention_forward(run, step);
        break;
    case STEP_ADD:
        add_forward(run, step);
        break;
    case STEP_SCALE:
        scale_by_number(run, step, run_value(run, step->out));
        break;
    case STEP_GLU:
        op = glu_op(run, step, false);
        queue_step(run, &op);
        break;
    default:
        apart_forward(run, step);
    }
}

/* True where this step's input is the residual stream and another member of the group adds the gradient that
 * bypasses the step. */
static bool residual_bypasses(const struct layer_run *run, const struct layer_step *step)
{
    return run->pass->stage->options.part.follows && layer_gradient_is_stream(step->in);
}

static void step_backward(struct layer_run *run, const struct layer_step *step,
                          const struct tape_entry *entry, bool need_input)
{
    struct op glu;
    switch (step->kind) {
    case STEP_NORM:
        if (need_input)
            block_norm_backward(run->pass, run->block, step->norm, norm_rows(run, step),
                                run_value(run, step->in), run_gradient(run, step->out),
                                entry->accumulate && !residual_bypasses(run, step),
                                run_gradient(run, step->in));
        break;
    case STEP_QK_NORM:
        if (step->norm < 0) {
            unit_norm_backward(run);
            break;
        }
        qk_norm_gradient(run, step->norm, 0, run->plan->heads.q);
        if (run->plan->heads.borrowed)
            break;
        qk_norm_gradient(run, step->norm_k, run->plan->heads.q, run->plan->heads.kv);
        if (run->pass->stage->config.v_norm)
            v_norm_gradient(run);
        break;
    case STEP_SPLIT:
        split_backward(run, step);
        break;
    case STEP_CONV:
        conv_backward(run, step);
        break;
    case STEP_DELTA:
        delta_backward(run, step, entry);
        break;
    case STEP_GATE:
        gate_backward(run, step);
        break;
    case STEP_LINEAR:
        linear_backward(run, step, entry, need_input);
        break;
    case STEP_ROPE:
        rotate(run, run_gradient(run, step->out), true);
        break;
    case STEP_ATTENTION:
        layer_attention_backward(run, step, entry);
        break;
    case STEP_ROUND: /* its input and output share one gradient */
        break;
    case STEP_ADD:
        add_backward(run, step);
        break;
    case STEP_SCALE:
        scale_by_number(run, step, run_gradient(run, step->out));
        break;
    case STEP_GLU:
        glu = glu_op(run, step, true);
        queue_step(run, &glu);
        break;
    default:
        apart_backward(run, step, entry);
    }
}

static struct layer_run run_of(struct stage_pass *pass, uint32_t layer, struct operand x, struct operand out)
{
    const struct stage *stage = pass->stage;
    const struct footprint *l = &stage->layout;
    uint32_t of_model = l->layer_begin + layer;
    struct operand kept = of_model >= l->saves_from
                              ? f32_at(pass->slot->buffer, footprint_save_at(l, of_model))
                              : pass_workspace(pass, l->workspace.save);
    return (struct layer_run){.pass = pass,
                              .plan = footprint_layer(l->model, of_model),
                              .layer = of_model,
                              .block = stage_block(stage, of_model + 1),
                              .x = x,
                              .out = out,
                              .kept = kept,
                              .inner = pass_workspace(pass, l->workspace.inner)};
}

static struct layer_run embedding_run(struct stage_pass *pass, struct operand x)
{
    const struct footprint *l = &pass->stage->layout;
    return (struct layer_run){.pass = pass,
                              .plan = &l->model->embedding,
                              .block = stage_block(pass->stage, 0),
                              .x = x,
                              .kept = l->own_learns ? f32_at(pass->slot->buffer, l->slot.embedding)
                                                    : pass_workspace(pass, l->workspace.save),
                              .inner = pass_workspace(pass, l->workspace.inner)};
}

static bool step_is_in(const struct layer_run *run, uint32_t step, enum layer_half half)
{
    return half == HALF_BOTH || (half == HALF_SECOND) == (step >= run->plan->second_half);
}

void embedding_forward(struct stage_pass *pass, struct operand x)
{
    struct layer_run run = embedding_run(pass, x);
    if (run.plan->step_count == 0)
        return;
    for (uint32_t s = 0; s < run.plan->step_count; s++)
        step_forward(&run, &run.plan->steps[s], false);
    own_inputs(&run);
}

void embedding_backward(struct stage_pass *pass, struct operand x, bool need_input)
{
    struct layer_run run = embedding_run(pass, x);
    run.tape = &run.plan->backward;
    own_inputs_backward(&run);
    for (uint32_t e = 0; e < run.tape->count; e++)
        step_backward(&run, &run.plan->steps[run.tape->entries[e].step], &run.tape->entries[e],
                      need_input || run.tape->entries[e].step > 0);
}

void layer_forward(struct stage_pass *pass, uint32_t layer, struct operand x, enum layer_half half,
                   struct operand out)
{
    struct layer_run run = run_of(pass, layer, x, out);
    for (uint32_t s = 0; s < run.plan->step_count; s++)
        if (step_is_in(&run, s, half))
            step_forward(&run, &run.plan->steps[s], false);
}

struct operand layer_value_at(struct stage_pass *pass, uint32_t layer, enum layer_value value)
{
    struct layer_run run = run_of(pass, layer, (struct operand){0}, (struct operand){0});
    return run_value(&run, value);
}

struct operand layer_gradient_at(struct stage_pass *pass, uint32_t layer, enum layer_value value)
{
    struct layer_run run = run_of(pass, layer, (struct operand){0}, (struct operand){0});
    run.tape = &run.plan->backward;
    return run_gradient(&run, value);
}

void layer_recompute(struct stage_pass *pass, uint32_t layer, struct operand x, enum layer_half half)
{
    struct layer_run run = run_of(pass, layer, x, (struct operand){0});
    bool counting = pass->counting;
    uint32_t hidden = run_shape(&run)->hidden;
    if (run.layer >= pass->stage->layout.saves_from)
        return;
    pass->counting = false;
    if (half == HALF_SECOND)
        queue_copy(&pass->queue, pass->tokens, hidden, pass_middle(pass, layer), hidden,
                   run_value(&run, VALUE_MID), hidden);
    for (uint32_t s = 0; s < run.plan->step_count; s++) {
        const struct layer_step *step = &run.plan->steps[s];
        bool kept = step->kept && !(half == HALF_FIRST && step->out == VALUE_MID);
        if (step_is_in(&run, s, half) && (kept || step->kept_z))
            step_forward(&run, step, !kept);
    }
    pass->counting = counting;
}

void layer_backward(struct stage_pass *pass, uint32_t layer, struct operand x, bool need_input,
                    enum backward_part part, enum layer_half half)
{
    struct layer_run run = run_of(pass, layer, x, (struct operand){0});
    bool whole =
        pass->stage->model.method.full; /* then the weight of the layer's first norm is trained, too */
    run.tape = part == BACKWARD_ALL        ? &run.plan->backward
               : part == BACKWARD_OF_INPUT ? &run.plan->backward_input
                                           : &run.plan->backward_weight;
    for (uint32_t e = 0; e < run.tape->count; e++) {
        const struct tape_entry *entry = &run.tape->entries[e];
        const struct layer_step *step = &run.plan->steps[entry->step];
        bool first = step->in == VALUE_X || step->in == VALUE_NORM;
        if (!step_is_in(&run, entry->step, half))
            continue;
        if (entry->kind == TAPE_FORWARD)
            step_forward(&run, step, false);
        else
            step_backward(&run, step, entry, need_input || whole || !first);
    }
}
