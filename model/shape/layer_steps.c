/* Adds steps to a layer's plan: one at a time, and those of latent attention, and of gated delta nets, state
 * spaces and short convolutions, which some layers have in the place of attention. */
#include "model/shape/layer_private.h"

struct layer_step *step_add(struct maker *maker, enum layer_step_kind kind, enum layer_value in,
                            enum layer_value out, enum layer_value add)
{
    struct layer_step *step = &maker->plan->steps[maker->plan->step_count++];
    *step = (struct layer_step){.kind = kind,
                                .in = in,
                                .out = out,
                                .add = add,
                                .norm = -1,
                                .norm_k = -1,
                                .conv = -1,
                                .conv_bias = -1,
                                .decay = -1,
                                .dt_bias = -1,
                                .skip = -1};
    return step;
}

void norm_step(struct maker *maker, enum tensor_role role, enum layer_value in, enum layer_value out)
{
    uint32_t hidden = maker->tensors.config->hidden;
    int32_t norm = tensor_norm(&maker->tensors, role, hidden);
    step_add(maker, STEP_NORM, in, out, VALUE_NONE)->norm = norm;
    maker->plan->width[out] = hidden;
}

void linear_step(struct maker *maker, const struct product_shape *shape)
{
    const struct model_config *config = maker->tensors.config;
    const struct target_matrix *parts = shape->matrices;
    struct layer_step *step = step_add(maker, STEP_LINEAR, shape->in, shape->out, shape->add);
    step->inputs = shape->inputs;
    step->member_count = shape->count;
    step->experts = shape->experts;
    for (uint32_t m = 0; m < shape->count; m++) {
        step->members[m] = (struct layer_member){.target = parts[m].target,
                                                 .outputs = parts[m].outputs,
                                                 .column = step->outputs,
                                                 .a = -1,
                                                 .b = -1};
        while (parts[m].target >> step->members[m].site > 1)
            step->members[m].site++;
        step->outputs += parts[m].outputs;
    }
    const struct layer_part *part = &maker->tensors.method->part;
    uint32_t here = part->expert_end > 0 ? part->expert_end - part->expert_begin : config->experts;
    tensor_linear(&maker->tensors, shape->experts ? here : 1, shape->bias, step);
    maker->plan->width[shape->out] = step->outputs * (shape->experts ? config->experts_active : 1);
}

void join_steps(struct maker *maker, const struct join *join)
{
    const struct model_config *c = maker->tensors.config;
    double factor = c->branch_scale > 0 ? c->branch_scale : 1;
    bool normed = c->post_norms, apart = normed || factor != 1;
    linear_step(maker, &(struct product_shape){.in = join->in,
                                               .out = apart ? join->raw : join->out,
                                               .add = apart ? VALUE_NONE : join->stream,
                                               .inputs = join->inputs,
                                               .count = 1,
                                               .matrices = &join->matrix,
                                               .bias = join->bias});
    if (!apart)
        return;
    if (normed)
        norm_step(maker, join->norm, join->raw, join->post);
    step_add(maker, STEP_ADD, normed ? join->post : join->raw, join->out, join->stream)->factor = factor;
    maker->plan->width[join->out] = c->hidden;
}

void scores_steps(struct maker *maker, enum layer_value qkv)
{
    const struct model_heads h = maker->plan->heads;
    uint32_t *width = maker->plan->width;
    step_add(maker, STEP_ROPE, qkv, qkv, VALUE_NONE);
    if (maker->plan->lends)
        step_add(maker, STEP_LEND, qkv, qkv, VALUE_NONE);
    if (maker->tensors.method->sixteen) {
        step_add(maker, STEP_ROUND, qkv, VALUE_QKV_ROUNDED, VALUE_NONE);
        width[qkv = VALUE_QKV_ROUNDED] = h.qkv;
    }
    struct layer_step *attention = step_add(maker, STEP_ATTENTION, qkv, VALUE_ATT, VALUE_NONE);
    if (maker->tensors.config->attn_sinks)
        attention->norm = tensor_vector(&maker->tensors, TENSOR_SINKS, 0, h.heads);
    width[VALUE_ATT] = h.q;
    width[VALUE_LSE] = h.heads;
}

/* Adds the product of `in` with one matrix. */
static void product_step(struct maker *maker, enum layer_value in, uint32_t inputs, enum layer_value out,
                         struct target_matrix matrix)
{
    linear_step(
        maker,
        &(struct product_shape){
            .in = in, .out = out, .add = VALUE_NONE, .inputs = inputs, .count = 1, .matrices = &matrix});
}

/* Adds the norm of a latent vector. */
static void latent_norm(struct maker *maker, enum tensor_role role, enum layer_value in, enum layer_value out,
                        uint32_t width)
{
    step_add(maker, STEP_NORM, in, out, VALUE_NONE)->norm = tensor_vector(&maker->tensors, role, 0, width);
    maker->plan->width[out] = width;
}

/* Adds the steps of latent attention as transformers computes it in training: q, k and v are made of their
 * latents, k's rotated part is copied to all heads, and attention is that of other layers. A head has its
 * rotated values first, and where v is narrower than q it ends in zeros. */
void latent_steps(struct maker *maker)
{
    const struct model_config *c = maker->tensors.config;
    const struct model_heads h = maker->plan->heads;
    uint32_t *width = maker->plan->width, values = h.heads * c->value_dim;
    bool narrow = c->value_dim < h.head_dim;
    norm_step(maker, TENSOR_NORM_INPUT, VALUE_X, VALUE_NORM);
    if (c->q_latent > 0) {
        product_step(maker, VALUE_NORM, c->hidden, VALUE_Q_LATENT,
                     (struct target_matrix){LORA_Q_A, c->q_latent});
        latent_norm(maker, TENSOR_NORM_Q_LATENT, VALUE_Q_LATENT, VALUE_Q_LATENT_NORM, c->q_latent);
        product_step(maker, VALUE_Q_LATENT_NORM, c->q_latent, VALUE_Q, (struct target_matrix){LORA_Q_B, h.q});
    } else {
        product_step(maker, VALUE_NORM, c->hidden, VALUE_Q, (struct target_matrix){LORA_Q, h.q});
    }
    product_step(maker, VALUE_NORM, c->hidden, VALUE_KV_LATENT,
                 (struct target_matrix){LORA_K, c->kv_latent + c->rotary_dim});
    latent_norm(maker, TENSOR_NORM_KV_LATENT, VALUE_KV_LATENT, VALUE_KV_LATENT_NORM, c->kv_latent);
    product_step(maker, VALUE_KV_LATENT_NORM, c->kv_latent, VALUE_KV,
                 (struct target_matrix){LORA_V, h.kv - h.heads * c->rotary_dim + values});
    step_add(maker, STEP_SPLIT, VALUE_Q, VALUE_QKV, VALUE_KV);
    width[VALUE_QKV] = h.qkv;
    scores_steps(maker, VALUE_QKV);
    if (narrow)
        step_add(maker, STEP_SPLIT, VALUE_ATT, VALUE_GATED, VALUE_NONE);
    width[VALUE_GATED] = narrow ? values : 0;
    join_steps(maker, &(struct join){.in = narrow ? VALUE_GATED : VALUE_ATT,
                                     .stream = VALUE_X,
                                     .out = VALUE_MID,
                                     .inputs = values,
                                     .matrix = {LORA_O, c->hidden}});
}

/* Adds the steps of a gated delta net: one product makes q, k, v, the gate z and the two numbers of each head
 * that set decay and rate; then convolution, scaling of q and k to length 1, the delta rule, norm and gate.
 */
void delta_steps(struct maker *maker)
{
    const struct model_config *c = maker->tensors.config;
    uint32_t *width = maker->plan->width;
    uint32_t keys = model_delta_keys(c), values = model_delta_values(c), heads = c->delta_value_heads;
    const struct target_matrix matrices[] = {{LORA_DELTA_QKV, 2 * keys + values},
                                             {LORA_DELTA_Z, values},
                                             {LORA_DELTA_B, heads},
                                             {LORA_DELTA_A, heads}},
                               packed[] = {{LORA_DELTA_QKVZ, 2 * keys + 2 * values},
                                           {LORA_DELTA_BA, 2 * heads}};
    norm_step(maker, TENSOR_NORM_INPUT, VALUE_X, VALUE_NORM);
    linear_step(maker, &(struct product_shape){.in = VALUE_NORM,
                                               .out = c->delta_packed ? VALUE_PACKED : VALUE_MIXED,
                                               .add = VALUE_NONE,
                                               .inputs = c->hidden,
                                               .count = c->delta_packed ? 2 : 4,
                                               .matrices = c->delta_packed ? packed : matrices});
    if (c->delta_packed) {
        step_add(maker, STEP_SPLIT, VALUE_PACKED, VALUE_MIXED, VALUE_NONE);
        width[VALUE_MIXED] = width[VALUE_PACKED];
    }
    int32_t conv = tensor_conv(&maker->tensors, 2 * keys + values, MODEL_DELTA_TAPS);
    step_add(maker, STEP_CONV, VALUE_MIXED, VALUE_QKV, VALUE_NONE)->conv = conv;
    step_add(maker, STEP_QK_NORM, VALUE_QKV, VALUE_QKV_NORM, VALUE_NONE);
    width[VALUE_QKV] = width[VALUE_QKV_NORM] = 2 * keys + values;
    struct layer_step *step = step_add(maker, STEP_DELTA, VALUE_QKV_NORM, VALUE_ATT, VALUE_NONE);
    step->scratch = 4ull * layer_delta_scratch(c);
    step->decay = tensor_vector(&maker->tensors, TENSOR_DELTA_DECAY, 0, heads);
    step->dt_bias = tensor_vector(&maker->tensors, TENSOR_DELTA_DT_BIAS, 0, heads);
    step = step_add(maker, STEP_NORM, VALUE_ATT, VALUE_ATT_NORM, VALUE_NONE);
    step->norm = tensor_vector(&maker->tensors, TENSOR_DELTA_NORM, 0, c->delta_value_dim);
    step_add(maker, STEP_GATE, VALUE_ATT_NORM, VALUE_GATED, VALUE_NONE);
    width[VALUE_ERROR] = width[VALUE_ATT] = width[VALUE_ATT_NORM] = width[VALUE_GATED] = values;
    join_steps(maker, &(struct join){.in = VALUE_GATED,
                                     .stream = VALUE_X,
                                     .out = VALUE_MID,
                                     .inputs = values,
                                     .matrix = {LORA_DELTA_OUT, c->hidden}});
}

/* Adds the steps of Mamba-2's state space: one product makes the gate z, x, B, C and a number of each head
 * that sets decay and rate; then convolution, the state space, gate and norm. */
void scan_steps(struct maker *maker)
{
    const struct model_config *c = maker->tensors.config;
    uint32_t *width = maker->plan->width, heads = c->delta_value_heads, values = model_delta_values(c);
    const struct target_matrix matrix = {LORA_CONV_IN, model_scan_width(c)};
    norm_step(maker, TENSOR_NORM_INPUT, VALUE_X, VALUE_NORM);
    linear_step(maker, &(struct product_shape){.in = VALUE_NORM,
                                               .out = VALUE_MIXED,
                                               .add = VALUE_NONE,
                                               .inputs = c->hidden,
                                               .count = 1,
                                               .matrices = &matrix});
    width[VALUE_QKV] = values + 2 * model_delta_keys(c);
    struct layer_step *step = step_add(maker, STEP_CONV, VALUE_MIXED, VALUE_QKV, VALUE_NONE);
    step->conv = tensor_conv(&maker->tensors, width[VALUE_QKV], MODEL_DELTA_TAPS);
    step->conv_bias = tensor_vector(&maker->tensors, TENSOR_DELTA_BIAS, 0, width[VALUE_QKV]);
    step = step_add(maker, STEP_DELTA, VALUE_QKV, VALUE_ATT, VALUE_NONE);
    step->scratch = 4ull * layer_delta_scratch(c);
    step->decay = tensor_vector(&maker->tensors, TENSOR_DELTA_DECAY, 0, heads);
    step->dt_bias = tensor_vector(&maker->tensors, TENSOR_DELTA_DT_BIAS, 0, heads);
    step->skip = tensor_vector(&maker->tensors, TENSOR_DELTA_SKIP, 0, heads);
    step_add(maker, STEP_GATE, VALUE_ATT, VALUE_ATT_NORM, VALUE_NONE);
    step_add(maker, STEP_NORM, VALUE_ATT_NORM, VALUE_GATED, VALUE_NONE)->norm =
        tensor_vector(&maker->tensors, TENSOR_DELTA_NORM, 0, values);
    width[VALUE_ATT] = width[VALUE_ATT_NORM] = width[VALUE_GATED] = values;
    join_steps(maker, &(struct join){.in = VALUE_GATED,
                                     .raw = VALUE_ATT_OUT,
                                     .stream = VALUE_X,
                                     .out = VALUE_MID,
                                     .inputs = values,
                                     .matrix = {LORA_DELTA_OUT, c->hidden}});
}

/* Adds the steps of a gated short convolution: one product makes two gates and x; x times the first gate goes
 * through the convolution, and what comes out is multiplied by the second. */
void conv_steps(struct maker *maker)
{
    const struct model_config *c = maker->tensors.config;
    uint32_t *width = maker->plan->width, h = c->hidden;
    const struct target_matrix matrix = {LORA_CONV_IN, 3 * h};
    norm_step(maker, TENSOR_NORM_INPUT, VALUE_X, VALUE_NORM);
    linear_step(maker, &(struct product_shape){.in = VALUE_NORM,
                                               .out = VALUE_MIXED,
                                               .add = VALUE_NONE,
                                               .inputs = h,
                                               .count = 1,
                                               .matrices = &matrix});
    step_add(maker, STEP_SPLIT, VALUE_MIXED, VALUE_QKV, VALUE_NONE);
    step_add(maker, STEP_GATE, VALUE_QKV, VALUE_QKV_NORM, VALUE_NONE);
    int32_t conv = tensor_conv(&maker->tensors, h, c->conv_taps);
    step_add(maker, STEP_CONV, VALUE_QKV_NORM, VALUE_ATT, VALUE_NONE)->conv = conv;
    step_add(maker, STEP_GATE, VALUE_ATT, VALUE_GATED, VALUE_NONE);
    width[VALUE_QKV] = width[VALUE_QKV_NORM] = width[VALUE_ATT] = width[VALUE_GATED] = h;
    join_steps(maker, &(struct join){.in = VALUE_GATED,
                                     .stream = VALUE_X,
                                     .out = VALUE_MID,
                                     .inputs = h,
                                     .matrix = {LORA_DELTA_OUT, h}});
}
