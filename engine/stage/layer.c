/* Runs one transformer layer of any architecture: forward by the steps of its layer plan
 * (model/shape/layer.h), backward by the plan's tape, which lists the steps' backwards in order. A step's
 * forward and backward functions stand side by side.
 */
#include "engine/stage/layer.h"
#include "engine/stage/delta.h"
#include "engine/stage/linear.h"

#include <math.h>

#include "engine/stage/kv_cache.h"

static const struct footprint_shape *shape(const struct layer_run *run)
{
    return &run->pass->stage->layout.model->shape;
}

static void queue_step(const struct layer_run *run, const struct op *op)
{
    queue_op(&run->pass->queue, op);
}

/* --- norms --- */

/* What is added to a norm's weights. */
static float norm_offset(const struct stage_pass *pass, const struct layer_tensor *weight)
{
    return weight->role == TENSOR_DELTA_NORM ? 0 : (float)pass->stage->config.norm_offset;
}

/* The vectors of a norm step: one for each token, or one for each head of a gated delta net. */
static uint32_t norm_rows(const struct layer_run *run, const struct layer_step *step)
{
    return run->pass->tokens * (run->plan->width[step->in] / run->plan->tensors.list[step->norm].rows);
}

void block_norm(struct stage_pass *pass, const struct block_state *block, int32_t norm, uint32_t rows,
                struct operand x, struct operand y)
{
    const struct layer_tensor *weight = &block->tensors->list[norm];
    queue_op(&pass->queue, &(struct op){.kind = OP_RMSNORM,
                                        .rmsnorm = {.rows = rows,
                                                    .width = weight->rows,
                                                    .eps = (float)pass->stage->config.norm_eps,
                                                    .offset = norm_offset(pass, weight),
                                                    .x = x,
                                                    .weight = tensor_at(block, weight),
                                                    .y = y}});
}

void block_norm_backward(struct stage_pass *pass, const struct block_state *block, int32_t norm,
                         uint32_t rows, struct operand x, struct operand dy, bool accumulate,
                         struct operand dx)
{
    const struct layer_tensor *weight = &block->tensors->list[norm];
    queue_op(&pass->queue, &(struct op){.kind = OP_RMSNORM_BACKWARD,
                                        .rmsnorm_backward = {.rows = rows,
                                                             .width = weight->rows,
                                                             .eps = (float)pass->stage->config.norm_eps,
                                                             .offset = norm_offset(pass, weight),
                                                             .accumulate = accumulate,
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
                                             .ldx = shape(run)->qkv_width,
                                             .ldy = shape(run)->qkv_width,
                                             .eps = (float)config->norm_eps,
                                             .offset = (float)config->norm_offset,
                                             .x = x,
                                             .weight = tensor_at(run->block, weight),
                                             .y = y}});
}

static void qk_norm_forward(const struct layer_run *run, const struct layer_step *step)
{
    const struct footprint_shape *s = shape(run);
    uint64_t v = (uint64_t)s->q_width + s->kv_width;
    qk_norm(run, step->norm, 0, s->q_width);
    qk_norm(run, step->norm_k, s->q_width, s->kv_width);
    queue_copy(&run->pass->queue, run->pass->tokens, s->kv_width, operand_skip(run_value(run, VALUE_QKV), v),
               s->qkv_width, operand_skip(run_value(run, VALUE_QKV_NORM), v), s->qkv_width);
}

/* Backward of qk_norm, in place: replaces the gradient of the normed heads by that of the heads before. */
static void qk_norm_gradient(const struct layer_run *run, int32_t norm, uint64_t at, uint32_t width)
{
    const struct layer_tensor *weight = &run->plan->tensors.list[norm];
    const struct model_config *config = &run->pass->stage->config;
    struct operand d = operand_skip(run_gradient(run, VALUE_QKV), at);
    uint32_t ld = shape(run)->qkv_width;
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
    const struct footprint_shape *s = shape(run);
    uint32_t rotary = config->rotary_dim > 0 ? config->rotary_dim : config->head_dim;
    bool local = model_layer_rope(config, run->layer) == &config->rope_local;
    uint64_t table = local ? 4ull * rotary * stage->options.positions_max : 0;
    return (struct op){.kind = OP_ROPE,
                       .rope = {.tokens = run->pass->tokens,
                                .heads = s->heads + s->kv_heads,
                                .head_dim = s->head_dim,
                                .ldx = s->qkv_width,
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
    if (run->pass->cache || plan->width[VALUE_QKV_ROUNDED] == 0 || !rotates(run))
        return false;
    *op = rope_op(run, run_value(run, plan->width[VALUE_QKV_NORM] > 0 ? VALUE_QKV_NORM : VALUE_QKV), false);
    op->rope.copied = shape(run)->kv_heads;
    op->rope.y = run_value(run, VALUE_QKV_ROUNDED);
    return op_supports(run->pass->queue.device, op);
}

static float attention_scale(const struct model_config *config)
{
    return (float)(config->attn_scale > 0 ? config->attn_scale : 1.0 / sqrt((double)config->head_dim));
}

/* The sinks of an attention step, or absent. */
static struct operand attention_sinks(const struct layer_run *run, const struct layer_step *step)
{
    return step->norm < 0 ? (struct operand){0} : tensor_at(run->block, &run->plan->tensors.list[step->norm]);
}

static struct op_attention attention_of(const struct layer_run *run, const struct layer_step *step)
{
    const struct stage *stage = run->pass->stage;
    const struct footprint_shape *s = shape(run);
    struct operand qkv = run_value(run, step->in);
    return (struct op_attention){.rows = run->pass->rows,
                                 .tokens = run->pass->tokens,
                                 .heads = s->heads,
                                 .kv_heads = s->kv_heads,
                                 .head_dim = s->head_dim,
                                 .ld = s->qkv_width,
                                 .window = model_layer_window(&stage->config, run->layer),
                                 .scale = attention_scale(&stage->config),
                                 .cap = (float)stage->config.attn_softcap,
                                 .compute = stage->options.compute,
                                 .q = qkv,
                                 .k = operand_skip(qkv, s->q_width),
                                 .v = operand_skip(qkv, s->q_width + s->kv_width),
                                 .row_start = pass_meta(run->pass, stage->layout.slot.row_start, DTYPE_U32),
                                 .out = run_value(run, VALUE_ATT),
                                 .lse = run_value(run, VALUE_LSE),
                                 .sinks = attention_sinks(run, step)};
}

static void attention_forward(const struct layer_run *run, const struct layer_step *step)
{
    queue_step(run, &(struct op){.kind = OP_ATTENTION, .attention = attention_of(run, step)});
}

/* Append this call's keys and values to the cache, then attend to the whole cache. The cache is in fp32;
 * attention rounds keys and values as it reads them. */
static void attention_cached_forward(const struct layer_run *run, const struct layer_step *step)
{
    struct stage_pass *pass = run->pass;
    const struct stage *stage = pass->stage;
    const struct footprint_shape *s = shape(run);
    uint32_t within = run->layer - stage->layout.layer_begin;
    struct operand qkv = run_value(run, run->plan->width[VALUE_QKV_NORM] > 0 ? VALUE_QKV_NORM : VALUE_QKV);
    struct operand k = kv_cache_keys(pass->cache, within), v = kv_cache_values(pass->cache, within);
    uint64_t begin = (uint64_t)pass->cache_begin * s->kv_width;
    queue_copy(&pass->queue, pass->tokens, s->kv_width, operand_skip(qkv, s->q_width), s->qkv_width,
               operand_skip(k, begin), s->kv_width);
    queue_copy(&pass->queue, pass->tokens, s->kv_width, operand_skip(qkv, s->q_width + s->kv_width),
               s->qkv_width, operand_skip(v, begin), s->kv_width);
    queue_step(run,
               &(struct op){.kind = OP_ATTENTION_CACHED,
                            .attention_cached = {.tokens = pass->tokens,
                                                 .begin = pass->cache_begin,
                                                 .heads = s->heads,
                                                 .kv_heads = s->kv_heads,
                                                 .head_dim = s->head_dim,
                                                 .ldq = s->qkv_width,
                                                 .window = model_layer_window(&stage->config, run->layer),
                                                 .scale = attention_scale(&stage->config),
                                                 .cap = (float)stage->config.attn_softcap,
                                                 .compute = stage->options.compute,
                                                 .q = qkv,
                                                 .k = k,
                                                 .v = v,
                                                 .out = run_value(run, VALUE_ATT),
                                                 .sinks = attention_sinks(run, step)}});
}

static void attention_backward(const struct layer_run *run, const struct layer_step *step,
                               const struct tape_entry *entry)
{
    const struct footprint_shape *s = shape(run);
    struct operand d = run_gradient(run, step->in), dsinks = {0};
    if (step->norm >= 0)
        dsinks = tensor_gradient(run->block, &run->plan->tensors.list[step->norm]);
    queue_step(run, &(struct op){.kind = OP_ATTENTION_BACKWARD,
                                 .attention_backward = {.forward = attention_of(run, step),
                                                        .dsinks = dsinks,
                                                        .dout = run_gradient(run, VALUE_ATT),
                                                        .delta = run_scratch(run, entry->scratch),
                                                        .dq = d,
                                                        .dk = operand_skip(d, s->q_width),
                                                        .dv = operand_skip(d, s->q_width + s->kv_width)}});
}

/* --- gates and sums --- */

static struct op glu_op(const struct layer_run *run, const struct layer_step *step, bool backward)
{
    const struct model_config *config = &run->pass->stage->config;
    bool sparse = run->plan->width[VALUE_CHOSEN] > 0 && step->in == VALUE_GATE_UP;
    uint32_t copies = sparse ? config->experts_active : 1;
    uint32_t tokens = run->pass->tokens * copies, width = run->plan->width[step->out] / copies;
    struct glu_form form = {.kind = config->gelu             ? GLU_GELU_TANH
                                    : config->gate_limit > 0 ? GLU_CLAMPED
                                                             : GLU_SILU,
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

/* Set `out` to the value that a step adds to. */
static void begin_sum(const struct layer_run *run, const struct layer_step *step)
{
    uint32_t hidden = shape(run)->hidden;
    if (step->add == step->out)
        return;
    /* with parts of layers, the first member adds the residual */
    if (step->add == VALUE_NONE || run->pass->stage->options.part.follows)
        queue_zero(&run->pass->queue, run_value(run, step->out), (uint64_t)run->pass->tokens * hidden);
    else
        queue_copy(&run->pass->queue, run->pass->tokens, hidden, run_value(run, step->add), hidden,
                   run_value(run, step->out), hidden);
}

/* y += x, times the factor of what a layer adds to the residual stream. */
static void add_scaled(const struct layer_run *run, struct operand x, struct operand y)
{
    uint32_t hidden = shape(run)->hidden;
    double scale = run->pass->stage->config.branch_scale;
    queue_step(run, &(struct op){.kind = OP_ADD,
                                 .add = {.rows = run->pass->tokens,
                                         .width = hidden,
                                         .ldx = hidden,
                                         .ldy = hidden,
                                         .alpha = scale > 0 ? (float)scale : 1,
                                         .x = x,
                                         .y = y}});
}

static void add_forward(const struct layer_run *run, const struct layer_step *step)
{
    begin_sum(run, step);
    add_scaled(run, run_value(run, step->in), run_value(run, step->out));
}

/* The gradient of a summand is the stream's own, unless the summand was scaled. */
static void add_backward(const struct layer_run *run, const struct layer_step *step)
{
    struct operand d = run_gradient(run, step->in);
    if (layer_gradient_is_stream(step->in))
        return;
    queue_zero(&run->pass->queue, d, (uint64_t)run->pass->tokens * shape(run)->hidden);
    add_scaled(run, run_gradient(run, step->out), d);
}

/* --- experts --- */

/* The array of a row's expert counts (which = 0) or probability sums (1), for the load-balancing loss. */
static struct operand router_sums(const struct layer_run *run, uint32_t which)
{
    const struct stage *stage = run->pass->stage;
    uint64_t each = 4ull * stage->options.rows_max * stage->config.experts;
    if (stage->options.mode != STAGE_TRAIN || run->pass->slot->router_scale == 0)
        return (struct operand){0};
    return f32_at(run->pass->slot->buffer, stage->layout.slot.router + which * each);
}

/* The score of the shared expert becomes its weight: a router of one expert. */
static void score_forward(const struct layer_run *run, const struct layer_step *step)
{
    queue_step(run, &(struct op){.kind = OP_ROUTE,
                                 .route = {.tokens = run->pass->tokens,
                                           .experts = 1,
                                           .active = 1,
                                           .sigmoid = true,
                                           .scores = run_value(run, step->in),
                                           .chosen = run_value(run, VALUE_SHARED_CHOSEN),
                                           .weight = run_value(run, step->out)}});
}

static void score_backward(const struct layer_run *run, const struct layer_step *step)
{
    queue_step(run, &(struct op){.kind = OP_ROUTE_BACKWARD,
                                 .route_backward = {.tokens = run->pass->tokens,
                                                    .experts = 1,
                                                    .active = 1,
                                                    .sigmoid = true,
                                                    .probabilities = run_value(run, step->in),
                                                    .chosen = run_value(run, VALUE_SHARED_CHOSEN),
                                                    .dweight = run_gradient(run, step->out),
                                                    .dscores = run_gradient(run, step->in)}});
}

static void route_forward(const struct layer_run *run, const struct layer_step *step)
{
    struct stage_pass *pass = run->pass;
    const struct model_config *config = &pass->stage->config;
    struct operand row_start = pass_meta(pass, pass->stage->layout.slot.row_start, DTYPE_U32);
    struct operand chosen = run_value(run, VALUE_CHOSEN);
    /* A stage with experts alone does not route: the router's choices came with the tokens. */
    if (run->plan->holds != HOLDS_EXPERTS)
        queue_step(
            run,
            &(struct op){.kind = OP_ROUTE,
                         .route = {.rows = pass->rows,
                                   .tokens = pass->tokens,
                                   .experts = config->experts,
                                   .active = config->experts_active,
                                   .renormalise = config->router_renormalise,
                                   .sigmoid = config->router_sigmoid,
                                   .scale = (float)config->router_scale,
                                   .bias = step->norm < 0
                                               ? (struct operand){0}
                                               : tensor_at(run->block, &run->plan->tensors.list[step->norm]),
                                   .scores = run_value(run, VALUE_PROBABILITIES),
                                   .chosen = chosen,
                                   .weight = run_value(run, VALUE_CHOSEN_WEIGHT),
                                   .row_start = row_start,
                                   .counts = pass->counting ? router_sums(run, 0) : (struct operand){0},
                                   .sums = pass->counting ? router_sums(run, 1) : (struct operand){0}}});
    queue_step(run, &(struct op){.kind = OP_ROUTE_SORT,
                                 .route_sort = {.tokens = pass->tokens,
                                                .active = config->experts_active,
                                                .experts = config->experts,
                                                .chosen = chosen,
                                                .token = run_value(run, VALUE_ROUTED_TOKEN),
                                                .place = run_value(run, VALUE_ROUTED_PLACE),
                                                .offsets = run_value(run, VALUE_OFFSETS),
                                                .expert = run->plan->width[VALUE_ROUTED_EXPERT] > 0
                                                              ? run_value(run, VALUE_ROUTED_EXPERT)
                                                              : (struct operand){0}}});
}

static void route_backward(const struct layer_run *run)
{
    struct stage_pass *pass = run->pass;
    const struct model_config *config = &pass->stage->config;
    double layers = pass->stage->model.sparse_before[config->layers];
    queue_step(run,
               &(struct op){.kind = OP_ROUTE_BACKWARD,
                            .route_backward = {
                                .rows = pass->rows,
                                .tokens = pass->tokens,
                                .experts = config->experts,
                                .active = config->experts_active,
                                .renormalise = config->router_renormalise,
                                .sigmoid = config->router_sigmoid,
                                .scale = (float)config->router_scale,
                                .aux = (float)(pass->slot->router_scale * (double)pass->stage->loss_scale *
                                               config->experts / (layers * layers)),
                                .probabilities = run_value(run, VALUE_PROBABILITIES),
                                .chosen = run_value(run, VALUE_CHOSEN),
                                .dweight = run_gradient(run, VALUE_CHOSEN_WEIGHT),
                                .dscores = run_gradient(run, VALUE_PROBABILITIES),
                                .row_start = pass_meta(pass, pass->stage->layout.slot.row_start, DTYPE_U32),
                                .counts = router_sums(run, 0)}});
}

static void dispatch_forward(const struct layer_run *run, const struct layer_step *step)
{
    uint32_t active = run->pass->stage->config.experts_active;
    queue_step(run, &(struct op){.kind = OP_GATHER_ROWS,
                                 .gather_rows = {.rows = run->pass->tokens * active,
                                                 .width = shape(run)->hidden,
                                                 .x_rows = run->pass->tokens,
                                                 .x = run_value(run, step->in),
                                                 .index = run_value(run, VALUE_ROUTED_TOKEN),
                                                 .y = run_value(run, step->out)}});
}

/* Sums rows of x for each token: those of its experts, or the one of the shared expert. */
static struct op_combine combine_of(const struct layer_run *run, const struct layer_step *step,
                                    struct operand x, struct operand y)
{
    bool shared = step->in == VALUE_SHARED_OUT;
    return (struct op_combine){.tokens = run->pass->tokens,
                               .active = shared ? 1 : run->pass->stage->config.experts_active,
                               .width = shape(run)->hidden,
                               .x = x,
                               .place = shared ? (struct operand){0} : run_value(run, VALUE_ROUTED_PLACE),
                               .y = y};
}

/* Backward of the dispatch to experts: a token's gradient is the sum of the gradients of its copies, one for
 * each expert that it chose. */
static void dispatch_backward(const struct layer_run *run, const struct layer_step *step, bool accumulate)
{
    struct operand d = run_gradient(run, step->in);
    if (!accumulate)
        queue_zero(&run->pass->queue, d, (uint64_t)run->pass->tokens * shape(run)->hidden);
    queue_step(run, &(struct op){.kind = OP_COMBINE,
                                 .combine = combine_of(run, step, run_gradient(run, step->out), d)});
}

static void combine_forward(const struct layer_run *run, const struct layer_step *step)
{
    struct op op = {.kind = OP_COMBINE,
                    .combine = combine_of(run, step, run_value(run, step->in), run_value(run, step->out))};
    begin_sum(run, step);
    op.combine.weight = run_value(run, layer_combine_weight(step));
    queue_step(run, &op);
}

static void combine_backward(const struct layer_run *run, const struct layer_step *step)
{
    const struct op_combine c = combine_of(run, step, run_value(run, step->in), run_gradient(run, step->out));
    queue_step(run,
               &(struct op){.kind = OP_COMBINE_BACKWARD,
                            .combine_backward = {.tokens = c.tokens,
                                                 .active = c.active,
                                                 .width = c.width,
                                                 .x = c.x,
                                                 .place = c.place,
                                                 .weight = run_value(run, layer_combine_weight(step)),
                                                 .dy = c.y,
                                                 .dweight = run_gradient(run, layer_combine_weight(step))}});
}

/* --- a layer --- */

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
        split_forward(run);
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
            attention_forward(run, step);
        break;
    case STEP_ADD:
        add_forward(run, step);
        break;
    case STEP_ROUTE:
        step->out == VALUE_SHARED_WEIGHT ? score_forward(run, step) : route_forward(run, step);
        break;
    case STEP_DISPATCH:
        dispatch_forward(run, step);
        break;
    case STEP_GLU:
        op = glu_op(run, step, false);
        queue_step(run, &op);
        break;
    case STEP_COMBINE:
        combine_forward(run, step);
        break;
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
        qk_norm_gradient(run, step->norm, 0, shape(run)->q_width);
        qk_norm_gradient(run, step->norm_k, shape(run)->q_width, shape(run)->kv_width);
        break;
    case STEP_SPLIT:
        split_backward(run);
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
        attention_backward(run, step, entry);
        break;
    case STEP_ROUND: /* its input and output share one gradient */
        break;
    case STEP_ADD:
        add_backward(run, step);
        break;
    case STEP_ROUTE:
        if (step->out == VALUE_SHARED_WEIGHT)
            score_backward(run, step);
        else if (run->plan->holds != HOLDS_EXPERTS)
            route_backward(run);
        break;
    case STEP_DISPATCH:
        dispatch_backward(run, step, entry->accumulate && run->plan->holds != HOLDS_EXPERTS);
        break;
    case STEP_GLU:
        glu = glu_op(run, step, true);
        queue_step(run, &glu);
        break;
    case STEP_COMBINE:
        combine_backward(run, step);
        break;
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

static bool step_is_in(const struct layer_run *run, uint32_t step, enum layer_half half)
{
    return half == HALF_BOTH || (half == HALF_SECOND) == (step >= run->plan->second_half);
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
    uint32_t hidden = shape(&run)->hidden;
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
