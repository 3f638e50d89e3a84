/* Makes the steps of a layer, their backward, and the layout of their values. */
#include "model/shape/layer.h"

#include <math.h>
#include <string.h>

#include "model/shape/layer_private.h"
#include "model/shape/packing.h"

/* --- the steps, in the order of forward --- */

static void attention_steps(struct maker *maker)
{
    const struct model_config *c = maker->tensors.config;
    struct layer_plan *plan = maker->plan;
    const struct model_heads h = plan->heads;
    uint32_t q = h.q, kv = h.kv, gate = c->attn_gate ? q : 0, split = gate || h.k_is_v || h.borrowed;
    const struct target_matrix apart[] = {{LORA_Q, q + gate}, {LORA_K, kv}, {LORA_V, kv}},
                               packed = {LORA_QKV, q + 2 * kv};
    enum layer_value qkv = c->qk_norm != 0 ? VALUE_QKV_NORM : VALUE_QKV;
    enum layer_value mixed = c->qkv_by_head ? VALUE_PACKED : split ? VALUE_MIXED : VALUE_QKV;
    if (!c->no_pre_norms)
        norm_step(maker, TENSOR_NORM_INPUT, VALUE_X, VALUE_NORM);
    if (c->parallel &&
        !c->one_norm) /* backward adds to the stream's gradient last, when all products have read it */
        norm_step(maker, TENSOR_NORM_FFN, VALUE_X, VALUE_FFN_NORM);
    linear_step(maker, &(struct product_shape){.in = c->no_pre_norms ? VALUE_X : VALUE_NORM,
                                               .out = mixed,
                                               .add = VALUE_NONE,
                                               .inputs = c->hidden,
                                               .count = c->packed_qkv || h.borrowed ? 1 : 3 - h.k_is_v,
                                               .matrices = c->packed_qkv ? &packed : apart,
                                               .bias = c->qkv_bias});
    if (mixed != VALUE_QKV) {
        step_add(maker, STEP_SPLIT, mixed, VALUE_QKV, VALUE_NONE);
        plan->width[VALUE_QKV] = h.qkv;
    }
    if (c->qk_norm != 0) {
        struct layer_step *step = step_add(maker, STEP_QK_NORM, VALUE_QKV, VALUE_QKV_NORM, VALUE_NONE);
        step->norm = tensor_vector(&maker->tensors, TENSOR_NORM_Q, 0, c->qk_norm == 1 ? h.head_dim : q);
        if (!h.borrowed)
            step->norm_k =
                tensor_vector(&maker->tensors, TENSOR_NORM_K, 0, c->qk_norm == 1 ? h.head_dim : kv);
        plan->width[VALUE_QKV_NORM] = h.qkv;
    }
    scores_steps(maker, qkv);
    if (gate) {
        step_add(maker, STEP_GATE, VALUE_ATT, VALUE_GATED, VALUE_NONE);
        plan->width[VALUE_GATED] = q;
    }
    join_steps(maker, &(struct join){.in = gate ? VALUE_GATED : VALUE_ATT,
                                     .raw = VALUE_ATT_OUT,
                                     .post = VALUE_ATT_POST,
                                     .stream = VALUE_X,
                                     .out = VALUE_MID,
                                     .inputs = q,
                                     .matrix = {LORA_O, c->hidden},
                                     .bias = c->o_bias,
                                     .norm = TENSOR_NORM_ATT_POST});
}

static void glu_step(struct maker *maker, enum layer_value gate_up, enum layer_value act, uint32_t width)
{
    step_add(maker, STEP_GLU, gate_up, act, VALUE_NONE);
    maker->plan->width[act] = width;
}

static void dense_steps(struct maker *maker)
{
    const struct model_config *c = maker->tensors.config;
    const struct target_matrix apart[] = {{LORA_GATE, c->ffn}, {LORA_UP, c->ffn}},
                               packed = {LORA_GATE_UP, 2 * c->ffn};
    uint32_t first = c->plain_ffn ? 1 : 0;
    linear_step(maker, &(struct product_shape){.in = c->no_pre_norms ? VALUE_MID
                                                     : c->one_norm   ? VALUE_NORM
                                                                     : VALUE_FFN_NORM,
                                               .out = VALUE_GATE_UP,
                                               .add = VALUE_NONE,
                                               .inputs = c->hidden,
                                               .count = c->packed_gate_up ? 1 : 2 - first,
                                               .matrices = c->packed_gate_up ? &packed : &apart[first],
                                               .bias = c->mlp_bias});
    glu_step(maker, VALUE_GATE_UP, VALUE_ACT, c->ffn);
    join_steps(maker, &(struct join){.in = VALUE_ACT,
                                     .raw = VALUE_FFN_OUT,
                                     .post = VALUE_FFN_POST,
                                     .stream = VALUE_MID,
                                     .out = c->per_layer > 0 ? VALUE_FFN_MID : VALUE_OUT,
                                     .inputs = c->ffn,
                                     .matrix = {LORA_DOWN, c->hidden},
                                     .bias = c->mlp_bias,
                                     .norm = TENSOR_NORM_FFN_POST});
}

/* Adds the steps that multiply the layer's own input by a gate made from the stream, and add a product of
 * that to the stream. */
static void per_layer_steps(struct maker *maker)
{
    const struct model_config *c = maker->tensors.config;
    const struct target_matrix gate = {LORA_PER_LAYER_GATE, c->per_layer};
    linear_step(maker, &(struct product_shape){.in = VALUE_FFN_MID,
                                               .out = VALUE_PER_LAYER_GATE,
                                               .add = VALUE_NONE,
                                               .inputs = c->hidden,
                                               .count = 1,
                                               .matrices = &gate});
    step_add(maker, STEP_PAIR, VALUE_PER_LAYER_GATE, VALUE_PER_LAYER_PAIR, VALUE_NONE);
    maker->plan->width[VALUE_PER_LAYER_PAIR] = 2 * c->per_layer;
    glu_step(maker, VALUE_PER_LAYER_PAIR, VALUE_PER_LAYER_ACT, c->per_layer);
    join_steps(maker, &(struct join){.in = VALUE_PER_LAYER_ACT,
                                     .raw = VALUE_PER_LAYER_OUT,
                                     .post = VALUE_PER_LAYER_POST,
                                     .stream = VALUE_FFN_MID,
                                     .out = VALUE_OUT,
                                     .inputs = c->per_layer,
                                     .matrix = {LORA_PER_LAYER_OUT, c->hidden},
                                     .norm = TENSOR_NORM_PER_LAYER});
}

/* Adds the step that chooses experts by the scores `in`. On a rank that holds experts alone another rank has
 * chosen, and the step only sorts the choice by expert. */
static void route_step(struct maker *maker, enum layer_value in)
{
    uint32_t *width = maker->plan->width, active = maker->tensors.config->experts_active;
    bool scaled = maker->tensors.config->experts_beside;
    struct layer_step *step =
        step_add(maker, STEP_ROUTE, in, scaled ? VALUE_ROUTER_WEIGHT : VALUE_CHOSEN_WEIGHT, VALUE_NONE);
    if (maker->tensors.config->router_biased && maker->plan->holds != HOLDS_EXPERTS)
        step->norm = tensor_router_bias(&maker->tensors);
    width[VALUE_CHOSEN] = width[VALUE_CHOSEN_WEIGHT] = active;
    width[VALUE_ROUTED_TOKEN] = width[VALUE_ROUTED_PLACE] = active;
    width[VALUE_ROUTED_EXPERT] = maker->tensors.config->expert_bias ? active : 0;
    if (!scaled)
        return;
    width[VALUE_ROUTER_WEIGHT] = width[VALUE_EXPERT_SCALE] = active;
    step_add(maker, STEP_WEIGH, VALUE_ROUTER_WEIGHT, VALUE_CHOSEN_WEIGHT, VALUE_NONE)->norm =
        tensor_vector(&maker->tensors, TENSOR_EXPERT_SCALE, 0, maker->tensors.config->experts);
}

static void router_steps(struct maker *maker, enum layer_value in)
{
    const struct model_config *c = maker->tensors.config;
    const struct target_matrix router = {0, c->experts};
    linear_step(maker, &(struct product_shape){.in = in,
                                               .out = VALUE_PROBABILITIES,
                                               .add = VALUE_NONE,
                                               .inputs = c->hidden,
                                               .count = 1,
                                               .matrices = &router,
                                               .bias = c->expert_bias});
    route_step(maker, VALUE_PROBABILITIES);
}

/* Adds the steps that set OUT to MID plus the shared expert's output, weighed where the model does so. */
static void shared_steps(struct maker *maker)
{
    const struct model_config *c = maker->tensors.config;
    const struct target_matrix down = {LORA_SHARED_DOWN, c->hidden}, score = {0, 1},
                               packed = {LORA_SHARED_GATE_UP, 2 * c->shared_ffn},
                               gate_up[] = {{LORA_SHARED_GATE, c->shared_ffn},
                                            {LORA_SHARED_UP, c->shared_ffn}};
    bool scored = c->shared_scored;
    linear_step(maker, &(struct product_shape){.in = VALUE_FFN_NORM,
                                               .out = VALUE_SHARED_GATE_UP,
                                               .add = VALUE_NONE,
                                               .inputs = c->hidden,
                                               .count = c->shared_packed ? 1 : 2,
                                               .matrices = c->shared_packed ? &packed : gate_up});
    glu_step(maker, VALUE_SHARED_GATE_UP, VALUE_SHARED_ACT, c->shared_ffn);
    if (!scored) {
        join_steps(maker, &(struct join){.in = VALUE_SHARED_ACT,
                                         .raw = VALUE_FFN_OUT,
                                         .stream = VALUE_MID,
                                         .out = VALUE_OUT,
                                         .inputs = c->shared_ffn,
                                         .matrix = down});
        return;
    }
    linear_step(maker, &(struct product_shape){.in = VALUE_SHARED_ACT,
                                               .out = VALUE_SHARED_OUT,
                                               .add = VALUE_NONE,
                                               .inputs = c->shared_ffn,
                                               .count = 1,
                                               .matrices = &down});
    linear_step(maker, &(struct product_shape){.in = VALUE_FFN_NORM,
                                               .out = VALUE_SHARED_SCORE,
                                               .add = VALUE_NONE,
                                               .inputs = c->hidden,
                                               .count = 1,
                                               .matrices = &score});
    step_add(maker, STEP_ROUTE, VALUE_SHARED_SCORE, VALUE_SHARED_WEIGHT, VALUE_NONE);
    maker->plan->width[VALUE_SHARED_CHOSEN] = maker->plan->width[VALUE_SHARED_WEIGHT] = 1;
    step_add(maker, STEP_COMBINE, VALUE_SHARED_OUT, VALUE_OUT, VALUE_MID);
}

static void expert_steps(struct maker *maker, enum layer_value in, enum layer_value stream,
                         enum layer_value out)
{
    const struct model_config *c = maker->tensors.config;
    uint32_t *width = maker->plan->width, active = c->experts_active;
    const struct target_matrix down = {LORA_DOWN, c->hidden},
                               gate_up[] = {{LORA_GATE, c->expert_ffn}, {LORA_UP, c->expert_ffn}};
    step_add(maker, STEP_DISPATCH, in, VALUE_ROUTED, VALUE_NONE);
    width[VALUE_ROUTED] = active * c->hidden;
    linear_step(maker, &(struct product_shape){.in = VALUE_ROUTED,
                                               .out = VALUE_GATE_UP,
                                               .add = VALUE_NONE,
                                               .inputs = c->hidden,
                                               .count = 2,
                                               .matrices = gate_up,
                                               .bias = c->expert_bias,
                                               .experts = true});
    glu_step(maker, VALUE_GATE_UP, VALUE_ACT, active * c->expert_ffn);
    linear_step(maker, &(struct product_shape){.in = VALUE_ACT,
                                               .out = VALUE_EXPERT_OUT,
                                               .add = VALUE_NONE,
                                               .inputs = c->expert_ffn,
                                               .count = 1,
                                               .matrices = &down,
                                               .bias = c->expert_bias,
                                               .experts = true});
    step_add(maker, STEP_COMBINE, VALUE_EXPERT_OUT, out, stream);
    width[out] = c->hidden;
}

/* Adds the steps of a dense FFN and of experts beside it, each with norms of its own. The router's norm has
 * weights and a constant factor. */
static void beside_steps(struct maker *maker)
{
    const struct model_config *c = maker->tensors.config;
    uint32_t *width = maker->plan->width;
    const struct target_matrix gate_up[] = {{LORA_GATE, c->ffn}, {LORA_UP, c->ffn}},
                               down = {LORA_DOWN, c->hidden};
    linear_step(maker, &(struct product_shape){.in = VALUE_FFN_NORM,
                                               .out = VALUE_SHARED_GATE_UP,
                                               .add = VALUE_NONE,
                                               .inputs = c->hidden,
                                               .count = 2,
                                               .matrices = gate_up});
    glu_step(maker, VALUE_SHARED_GATE_UP, VALUE_SHARED_ACT, c->ffn);
    linear_step(maker, &(struct product_shape){.in = VALUE_SHARED_ACT,
                                               .out = VALUE_DENSE_OUT,
                                               .add = VALUE_NONE,
                                               .inputs = c->ffn,
                                               .count = 1,
                                               .matrices = &down});
    norm_step(maker, TENSOR_NORM_DENSE_POST, VALUE_DENSE_OUT, VALUE_DENSE_POST);
    norm_step(maker, TENSOR_ROUTER_SCALE, VALUE_MID, VALUE_ROUTER_NORM);
    step_add(maker, STEP_ADD, VALUE_ROUTER_NORM, VALUE_ROUTER_IN, VALUE_NONE)->factor =
        1 / sqrt((double)c->hidden);
    width[VALUE_ROUTER_IN] = c->hidden;
    router_steps(maker, VALUE_ROUTER_IN);
    norm_step(maker, TENSOR_NORM_EXPERT, VALUE_MID, VALUE_EXPERT_NORM);
    expert_steps(maker, VALUE_EXPERT_NORM, VALUE_NONE, VALUE_EXPERT_SUM);
    norm_step(maker, TENSOR_NORM_EXPERT_POST, VALUE_EXPERT_SUM, VALUE_EXPERT_POST);
    step_add(maker, STEP_ADD, VALUE_EXPERT_POST, VALUE_FFN_OUT, VALUE_DENSE_POST)->factor = 1;
    width[VALUE_FFN_OUT] = c->hidden;
    norm_step(maker, TENSOR_NORM_FFN_POST, VALUE_FFN_OUT, VALUE_FFN_POST);
    step_add(maker, STEP_ADD, VALUE_FFN_POST, VALUE_OUT, VALUE_MID)->factor = 1;
    width[VALUE_OUT] = c->hidden;
}

/* Adds the steps of experts in the place of a dense FFN, and of the shared expert among them. */
static void sparse_steps(struct maker *maker)
{
    bool shared = maker->tensors.config->shared_ffn > 0;
    router_steps(maker, VALUE_FFN_NORM);
    if (maker->plan->holds != HOLDS_ALL)
        return;
    if (shared)
        shared_steps(maker);
    expert_steps(maker, VALUE_FFN_NORM, shared ? VALUE_OUT : VALUE_MID, VALUE_OUT);
}

/* Adds all steps of a layer, or those of this rank's part; a rank that holds experts alone has no steps in a
 * dense layer. */
static void layer_steps(struct maker *maker, bool sparse)
{
    struct layer_plan *plan = maker->plan;
    if (plan->holds == HOLDS_EXPERTS) {
        if (sparse) {
            route_step(maker, VALUE_X);
            expert_steps(maker, VALUE_X, VALUE_NONE, VALUE_OUT);
        }
        return;
    }
    const struct model_config *c = maker->tensors.config;
    if (model_layer_is_delta(c, maker->tensors.layer))
        c->delta_scan ? scan_steps(maker) : delta_steps(maker);
    else if (model_layer_is_conv(maker->tensors.config, maker->tensors.layer))
        conv_steps(maker);
    else if (maker->tensors.config->kv_latent > 0)
        latent_steps(maker);
    else
        attention_steps(maker);
    plan->second_half = plan->step_count;
    if (!maker->tensors.config->no_pre_norms && !maker->tensors.config->parallel)
        norm_step(maker, TENSOR_NORM_FFN, VALUE_MID, VALUE_FFN_NORM);
    if (sparse)
        maker->tensors.config->experts_beside ? beside_steps(maker) : sparse_steps(maker);
    else
        model_shared_alone(c) ? shared_steps(maker) : dense_steps(maker);
    if (maker->tensors.config->per_layer > 0)
        per_layer_steps(maker);
    if (maker->tensors.config->layer_scaled)
        step_add(maker, STEP_SCALE, VALUE_OUT, VALUE_OUT, VALUE_NONE)->norm =
            tensor_layer_scale(&maker->tensors);
}

/* --- values in 16 bits --- */

uint64_t layer_value_bytes(const struct layer_plan *plan, enum layer_value value)
{
    uint64_t width = plan->width[value];
    return plan->sixteen[value] ? (2 * width + 3) / 4 * 4 : 4 * width;
}

/* Returns true if a step other than a product reads this value, which then stays fp32. */
static bool read_apart(const struct layer_plan *plan, enum layer_value value)
{
    for (uint32_t s = 0; s < plan->step_count; s++) {
        const struct layer_step *step = &plan->steps[s];
        bool routes = step->kind == STEP_LINEAR && step->members[0].target == 0;
        if (step->in == value && (step->kind != STEP_LINEAR || routes))
            return true;
    }
    /* the ranks with experts receive FFN_NORM, in fp32 */
    return plan->holds == HOLDS_NO_EXPERTS && value == VALUE_FFN_NORM;
}

static void sixteen_choose(struct layer_plan *plan, const struct layer_method *method)
{
    static const enum layer_value inputs[] = {VALUE_NORM, VALUE_FFN_NORM, VALUE_ACT, VALUE_SHARED_ACT};
    if (!method->sixteen)
        return;
    plan->sixteen[VALUE_QKV_ROUNDED] = plan->sixteen[VALUE_GATE_UP] = true;
    plan->sixteen[VALUE_SHARED_GATE_UP] = true;
    plan->sixteen[VALUE_ATT] = plan->width[VALUE_GATED] == 0;
    for (uint32_t i = 0; i < sizeof(inputs) / sizeof(*inputs); i++)
        plan->sixteen[inputs[i]] = !method->dropout && !read_apart(plan, inputs[i]);
}

/* --- what forward keeps --- */

/* Returns true for values that backward recomputes, because that is cheaper than keeping them. */
static bool is_recomputed(const struct layer_plan *plan, enum layer_value value)
{
    return value == VALUE_NORM || value == VALUE_QKV_NORM || value == VALUE_FFN_NORM ||
           value == VALUE_ROUTER_NORM || value == VALUE_ROUTER_IN || value == VALUE_EXPERT_NORM ||
           value == VALUE_ROUTED || value == VALUE_ACT || value == VALUE_SHARED_ACT ||
           value == VALUE_ATT_POST || value == VALUE_FFN_POST || value == VALUE_ATT_NORM ||
           value == VALUE_FFN_MID || value == VALUE_PER_LAYER_ACT || value == VALUE_PER_LAYER_POST ||
           value == VALUE_PER_LAYER_NORM || value == VALUE_GATED || value == VALUE_Q_LATENT_NORM ||
           value == VALUE_KV_LATENT_NORM || (value == VALUE_QKV && plan->width[VALUE_MIXED] > 0) ||
           (value == VALUE_QKV_ROUNDED &&
            /* QKV_ROUNDED is made again from QKV_NORM, which the norm's backward recomputes anyway */
            plan->width[VALUE_QKV_NORM] > 0);
}

/* Returns true for a value that only forward reads. */
static bool layer_passes(const struct layer_plan *plan, enum layer_value value)
{
    return (value == VALUE_QKV && plan->width[VALUE_QKV_ROUNDED] > 0 && plan->width[VALUE_QKV_NORM] == 0 &&
            plan->width[VALUE_MIXED] == 0) ||
           value == VALUE_PACKED || value == VALUE_DENSE_POST || value == VALUE_EXPERT_POST ||
           value == VALUE_PER_LAYER_GATE || value == VALUE_Q || value == VALUE_KV ||
           /* outputs that are scaled, but not normed, before they are added */
           (value == VALUE_ATT_OUT && plan->width[VALUE_ATT_POST] == 0) ||
           (value == VALUE_FFN_OUT && plan->width[VALUE_FFN_POST] == 0);
}

/* Returns true if the value is recomputed from a value that backward overwrites with its gradient. */
static bool is_recomputed_from_overwritten(const struct layer_plan *plan, enum layer_value value)
{
    for (uint32_t s = 0; s < plan->step_count && is_recomputed(plan, value); s++)
        if (plan->steps[s].out == value && layer_gradient_in_place(plan->steps[s].in))
            return true;
    return false;
}

static void kept_place(struct layer_plan *plan, uint32_t experts, uint32_t active)
{
    uint64_t at = 0;
    for (int v = 0; v < VALUE_COUNT; v++) {
        plan->saved[v] = LAYER_ABSENT;
        plan->kept[v] = plan->width[v] > 0 && !is_recomputed(plan, v) && !layer_passes(plan, v) &&
                        v != VALUE_X && v != VALUE_OUT;
        if (!plan->kept[v])
            continue;
        plan->saved[v] = at;
        at += layer_value_bytes(plan, v);
    }
    for (uint32_t s = 0; s < plan->step_count; s++) {
        struct layer_step *step = &plan->steps[s];
        step->z = at;
        at += 4ull * step->ranks * (step->experts ? active : 1);
    }
    plan->saved_bytes = at;
    plan->fixed_bytes = experts > 0 ? (4ull * (experts + 1) + 63) / 64 * 64 : 0;
    for (uint32_t s = 0; s < plan->step_count; s++) {
        struct layer_step *step = &plan->steps[s];
        step->dout = step->split_in = LAYER_ABSENT;
        /* An output that holds its own gradient keeps it until BACKWARD_WEIGHT, so only the others need a
         * copy. */
        if (step->trains && !layer_gradient_in_place(step->out)) {
            step->dout = at;
            at += 4ull * plan->width[step->out];
        }
        if (step->trains && step->kind == STEP_LINEAR && is_recomputed_from_overwritten(plan, step->in)) {
            step->split_in = at;
            at += layer_value_bytes(plan, step->in);
        }
    }
    plan->split_bytes = at - plan->saved_bytes;
}

/* Marks the steps that a forward pass has to run when only backward uses its values. */
static void kept_steps(struct layer_plan *plan)
{
    bool needed[VALUE_COUNT + 1];
    memcpy(needed, plan->kept, sizeof(plan->kept));
    needed[VALUE_NONE] = false;
    for (uint32_t s = plan->step_count; s-- > 0;) {
        struct layer_step *step = &plan->steps[s];
        step->kept = needed[step->out];
        step->kept_z = step->ranks > 0;
        if (step->kept || step->kept_z)
            needed[step->in] = true;
        if (step->kept)
            needed[step->add] = true;
    }
}

/* --- places in the workspace --- */

struct span {
    uint64_t bytes, at;
    uint32_t begin, end; /* first and last step or tape entry in which the span is in use, both inclusive */
};

enum { SPANS_MAX = 2 * VALUE_COUNT + LAYER_TAPE_MAX };

struct spans {
    uint32_t count;
    struct span list[SPANS_MAX];
    uint64_t bytes; /* size of the workspace, once all spans are placed */
};

/* Places a span at the lowest offset that is free from begin to end (first fit; spans come in the order of
 * their beginnings). */
static void span_place(struct spans *spans, struct span *span)
{
    bool moved = true;
    span->at = 0;
    while (moved) {
        moved = false;
        for (const struct span *other = spans->list; other < span; other++)
            if (other->begin <= span->end && span->begin <= other->end &&
                other->at < span->at + span->bytes && span->at < other->at + other->bytes) {
                span->at = other->at + other->bytes;
                moved = true;
            }
    }
    if (span->at + span->bytes > spans->bytes)
        spans->bytes = span->at + span->bytes;
}

static uint64_t span_take(struct spans *spans, uint64_t bytes, uint32_t begin, uint32_t end)
{
    struct span *span = &spans->list[spans->count++];
    *span = (struct span){.bytes = bytes, .begin = begin, .end = end};
    span_place(spans, span);
    return span->at;
}

/* Returns true if the step reads the value in forward. With a cache, attention reads q, k and v in fp32. */
static bool step_reads(const struct layer_step *step, enum layer_value value)
{
    bool cached = step->kind == STEP_ATTENTION && (value == VALUE_QKV || value == VALUE_QKV_NORM);
    return step->in == value || step->add == value || cached;
}

static void forward_place(struct layer_plan *plan)
{
    struct spans spans = {0};
    for (int v = 0; v < VALUE_COUNT; v++)
        plan->forward[v] = LAYER_ABSENT;
    for (uint32_t s = 0; s < plan->step_count; s++) {
        struct layer_step *step = &plan->steps[s];
        uint32_t last = s;
        if (step->forward_scratch > 0) {
            uint64_t bytes = step->forward_scratch;
            step->forward_scratch = span_take(&spans, bytes, s, s);
        }
        if (step->forward_sum != LAYER_ABSENT)
            step->forward_sum = span_take(&spans, step->forward_sum, s, s);
        bool placed = is_recomputed(plan, step->out) || layer_passes(plan, step->out);
        if (!placed || plan->forward[step->out] != LAYER_ABSENT)
            continue;
        for (uint32_t t = s; t < plan->step_count; t++)
            last = step_reads(&plan->steps[t], step->out) ? t : last;
        plan->forward[step->out] = span_take(&spans, layer_value_bytes(plan, step->out), s, last);
    }
    plan->forward_bytes = spans.bytes;
}

/* --- backward --- */

bool layer_gradient_is_stream(enum layer_value value)
{
    return value == VALUE_X || value == VALUE_MID || value == VALUE_OUT || value == VALUE_ATT_POST ||
           value == VALUE_FFN_POST || value == VALUE_FFN_MID || value == VALUE_PER_LAYER_POST;
}

bool layer_gradient_in_place(enum layer_value value)
{
    return value == VALUE_GATE_UP || value == VALUE_EXPERT_OUT || value == VALUE_SHARED_GATE_UP ||
           value == VALUE_SHARED_OUT || value == VALUE_PER_LAYER_PAIR;
}

enum layer_value layer_combine_weight(const struct layer_step *step)
{
    return step->in == VALUE_SHARED_OUT ? VALUE_SHARED_WEIGHT : VALUE_CHOSEN_WEIGHT;
}

enum layer_value layer_gradient_of(enum layer_value value)
{
    return value == VALUE_QKV_NORM || value == VALUE_QKV_ROUNDED     ? VALUE_QKV
           : value == VALUE_DENSE_POST || value == VALUE_EXPERT_POST ? VALUE_FFN_OUT /* their sum */
                                                                     : value;
}

/* Returns the value that a step's backward reads and forward did not keep, or VALUE_NONE. In a split backward
 * the half for inputs recomputes values that the half for weights no longer could. */
static enum layer_value backward_needs(const struct layer_plan *plan, const struct layer_step *step,
                                       enum tape_kind kind, bool dropout)
{
    bool late = step->split_in != LAYER_ABSENT, early = dropout && step->ranks > 0;
    bool reads = step->kind == STEP_LINEAR ? step->trains && (kind == TAPE_BACKWARD_INPUT    ? late || early
                                                              : kind == TAPE_BACKWARD_WEIGHT ? !late
                                                                                             : true)
                                           : step->kind == STEP_ATTENTION || step->kind == STEP_NORM ||
                                                 step->kind == STEP_QK_NORM || step->kind == STEP_DELTA ||
                                                 step->kind == STEP_GATE || step->kind == STEP_CONV;
    return reads && step->in != VALUE_X && !plan->kept[step->in] ? step->in : VALUE_NONE;
}

struct tape_builder {
    const struct layer_plan *plan;
    struct tape *tape;
    bool recomputed[VALUE_COUNT]; /* values recomputed so far */
    bool written[VALUE_COUNT];    /* gradients that are already written */
};

static void tape_add(struct tape *tape, enum tape_kind kind, uint32_t step, bool accumulate)
{
    tape->entries[tape->count++] = (struct tape_entry){.kind = kind, .step = step, .accumulate = accumulate};
}

/* Adds the steps that compute `value` to the tape, after those that compute the step's own inputs. */
static void add_recomputation(struct tape_builder *builder, enum layer_value value)
{
    const struct layer_plan *plan = builder->plan;
    if (value == VALUE_X || plan->kept[value] || builder->recomputed[value])
        return;
    builder->recomputed[value] = true;
    for (uint32_t s = 0; s < plan->step_count; s++) {
        if (plan->steps[s].out != value)
            continue;
        add_recomputation(builder, plan->steps[s].in);
        tape_add(builder->tape, TAPE_FORWARD, s, false);
    }
}

static void tape_entries(struct tape_builder *builder, enum tape_kind kind, bool dropout)
{
    const struct layer_plan *plan = builder->plan;
    for (uint32_t s = plan->step_count; s-- > 0;) {
        const struct layer_step *step = &plan->steps[s];
        if (kind == TAPE_BACKWARD_WEIGHT && (step->kind != STEP_LINEAR || !step->trains))
            continue;
        enum layer_value input = backward_needs(plan, step, kind, dropout);
        if (input != VALUE_NONE)
            add_recomputation(builder, input);
        enum layer_value in = layer_gradient_of(step->in);
        tape_add(builder->tape, kind, s, builder->written[in] || layer_gradient_is_stream(in));
        builder->written[in] = true;
    }
}

static bool entry_touches_value(const struct layer_plan *plan, const struct tape_entry *entry,
                                enum layer_value value, enum tape_kind kind, bool dropout)
{
    const struct layer_step *step = &plan->steps[entry->step];
    if (entry->kind == TAPE_FORWARD)
        return step->out == value || step_reads(step, value);
    return backward_needs(plan, step, kind, dropout) == value;
}

static bool entry_touches_gradient(const struct layer_plan *plan, const struct tape_entry *entry,
                                   enum layer_value value)
{
    const struct layer_step *step = &plan->steps[entry->step];
    if (entry->kind == TAPE_FORWARD || entry->kind == TAPE_BACKWARD_WEIGHT)
        return false;
    bool weights = step->kind == STEP_COMBINE && value == layer_combine_weight(step);
    /* where experts are on other ranks, their gradient of FFN_NORM is written before the first entry */
    bool given = value == VALUE_FFN_NORM && step->kind == STEP_ROUTE && plan->holds == HOLDS_NO_EXPERTS;
    bool scales = value == VALUE_EXPERT_SCALE && step->kind == STEP_WEIGH;
    bool gates = value == VALUE_MIXED && (step->kind == STEP_GATE || step->kind == STEP_DELTA);
    bool parts =
        step->kind == STEP_SPLIT && step->add == VALUE_KV && (value == VALUE_KV || value == VALUE_KV_LATENT);
    return weights || given || scales || gates || parts || layer_gradient_of(step->in) == value ||
           layer_gradient_of(step->out) == value;
}

/* Returns the width of an fp32 copy of the output's gradient, which a trained bias of a 16-bit output needs
 * for its sum over rows; else 0. */
static uint32_t step_bias_width(const struct layer_plan *plan, const struct layer_step *step)
{
    bool bias = step->kind == STEP_LINEAR && step->members[0].bias >= 0;
    bool trained = bias && plan->tensors.list[step->members[0].bias].trained;
    return trained && plan->sixteen[step->out] ? step->outputs : 0;
}

/* Returns the bytes of scratch memory per token that a tape entry uses. */
static uint64_t scratch_bytes(const struct layer_plan *plan, const struct tape_entry *entry, bool dropout,
                              uint32_t active)
{
    const struct layer_step *step = &plan->steps[entry->step];
    uint64_t rows = step->experts ? active : 1;
    if (entry->kind == TAPE_FORWARD)
        return 0; /* linear steps, which alone need scratch in forward, are never recomputed */
    if (step->kind == STEP_ATTENTION)
        return 4ull * plan->width[VALUE_LSE];
    if (step->kind == STEP_DELTA)
        return step->scratch;
    uint32_t dropped = dropout && step->ranks > 0 ? step->inputs * (plan->sixteen[step->in] ? 2 : 1) : 0;
    return 4 * rows * (step->ranks + dropped + step_bias_width(plan, step));
}

struct tape_maker {
    struct layer_plan *plan;
    struct tape *tape;
    enum tape_kind kind;
    bool dropout;
    uint32_t active;
    struct spans spans;
};

/* Places the values and gradients that entry e touches first, and its scratch. */
static void entry_place(struct tape_maker *maker, uint32_t e)
{
    struct layer_plan *plan = maker->plan;
    struct tape *tape = maker->tape;
    struct tape_entry *entry = &tape->entries[e];
    uint64_t scratch = scratch_bytes(plan, entry, maker->dropout, maker->active);
    if (scratch > 0)
        entry->scratch = span_take(&maker->spans, scratch, e, e);
    for (int v = 0; v < VALUE_COUNT; v++) {
        uint32_t value_last = e, gradient_last = e;
        bool value = v != VALUE_X && !plan->kept[v] && tape->value[v] == LAYER_ABSENT &&
                     entry_touches_value(plan, entry, v, maker->kind, maker->dropout);
        bool gradient = !layer_gradient_is_stream(v) && !layer_gradient_in_place(v) &&
                        tape->gradient[v] == LAYER_ABSENT && entry_touches_gradient(plan, entry, v);
        for (uint32_t i = e; i < tape->count; i++) {
            const struct tape_entry *later = &tape->entries[i];
            if (entry_touches_value(plan, later, v, maker->kind, maker->dropout))
                value_last = i;
            if (entry_touches_gradient(plan, later, v))
                gradient_last = i;
        }
        if (value)
            tape->value[v] = span_take(&maker->spans, layer_value_bytes(plan, v), e, value_last);
        if (gradient)
            tape->gradient[v] = span_take(&maker->spans, 4ull * plan->width[v], e, gradient_last);
    }
}

static void tape_make(struct layer_plan *plan, enum tape_kind kind, bool dropout, uint32_t active,
                      struct tape *tape)
{
    struct tape_maker maker = {
        .plan = plan, .tape = tape, .kind = kind, .dropout = dropout, .active = active};
    struct tape_builder builder = {.plan = plan, .tape = tape};
    for (int v = 0; v < VALUE_COUNT; v++)
        tape->value[v] = tape->gradient[v] = LAYER_ABSENT;
    builder.written[VALUE_FFN_NORM] = plan->holds == HOLDS_NO_EXPERTS && plan->width[VALUE_CHOSEN] > 0;
    tape_entries(&builder, kind, dropout);
    for (uint32_t e = 0; e < tape->count; e++)
        entry_place(&maker, e);
    tape->work_bytes = maker.spans.bytes;
}

struct model_config layer_part_config(const struct model_config *config, const struct layer_part *part)
{
    struct model_config narrow = *config;
    if (part->kv_head_end > 0) {
        narrow.kv_heads = part->kv_head_end - part->kv_head_begin;
        narrow.heads = narrow.kv_heads * (config->heads / config->kv_heads);
    }
    if (part->column_end > 0)
        narrow.ffn = part->column_end - part->column_begin;
    return narrow;
}

bool layer_alike(const struct model_config *config, const struct layer_method *method, uint32_t a, uint32_t b)
{
    bool packed = !method->full && (method->base == LAYER_BASE_PACKED ||
                                    (method->base == LAYER_BASE_NF4 && packing_is_nf4(&config->packing)));
    for (uint32_t site = 0; site < LORA_TARGET_COUNT && !method->full; site++)
        if (lora_rank_at(&method->lora, a, site) != lora_rank_at(&method->lora, b, site))
            return false;
    const struct model_heads of_a = model_layer_heads(config, a), of_b = model_layer_heads(config, b);
    return of_a.qkv == of_b.qkv && of_a.head_dim == of_b.head_dim && of_a.k_is_v == of_b.k_is_v &&
           of_a.borrowed == of_b.borrowed && model_layer_lends(config, a) == model_layer_lends(config, b) &&
           model_layer_ffn(config, a) == model_layer_ffn(config, b) &&
           model_layer_is_sparse(config, a) == model_layer_is_sparse(config, b) &&
           model_layer_is_delta(config, a) == model_layer_is_delta(config, b) &&
           model_layer_is_conv(config, a) == model_layer_is_conv(config, b) &&
           (!packed || config->packing.layer[a] == config->packing.layer[b]);
}

/* Places the values of a plan whose steps are made, and makes its tapes. */
static void plan_finish(struct layer_plan *plan, const struct layer_method *method, uint32_t experts,
                        uint32_t active)
{
    sixteen_choose(plan, method);
    for (uint32_t s = 0; s < plan->step_count; s++) {
        struct layer_step *step = &plan->steps[s];
        uint64_t rows = step->experts ? active : 1;
        step->forward_scratch = method->dropout && step->ranks > 0
                                    ? 4 * rows * step->inputs * (plan->sixteen[step->in] ? 2 : 1)
                                    : 0;
        step->forward_sum =
            step->kind == STEP_LINEAR && plan->sixteen[step->out] ? 4 * rows * step->outputs : LAYER_ABSENT;
    }
    kept_place(plan, experts, active);
    kept_steps(plan);
    forward_place(plan);
    tape_make(plan, TAPE_BACKWARD, method->dropout, active, &plan->backward);
    tape_make(plan, TAPE_BACKWARD_INPUT, method->dropout, active, &plan->backward_input);
    tape_make(plan, TAPE_BACKWARD_WEIGHT, method->dropout, active, &plan->backward_weight);
}

void layer_plan_init(const struct model_config *whole, const struct layer_method *method, uint32_t layer,
                     struct layer_plan *plan)
{
    bool sparse = model_layer_is_sparse(whole, layer);
    struct model_config narrow = layer_part_config(whole, &method->part), *config = &narrow;
    struct maker maker = {.tensors = {.config = config,
                                      .whole = whole,
                                      .method = method,
                                      .layer = layer,
                                      .out = &plan->tensors},
                          .plan = plan};
    memset(plan, 0, sizeof(*plan));
    if (method->part.column_end == 0)
        narrow.ffn = model_layer_ffn(whole, layer);
    plan->width[VALUE_X] = config->hidden;
    plan->holds = method->part.holds;
    plan->heads = model_layer_heads(config, layer);
    plan->lends = model_layer_lends(config, layer);
    layer_steps(&maker, sparse);
    plan_finish(plan, method, sparse ? config->experts : 0, sparse ? config->experts_active : 0);
}

void layer_embedding_init(const struct model_config *c, const struct layer_method *method,
                          struct layer_plan *plan)
{
    struct maker maker = {.tensors = {.config = c, .whole = c, .method = method, .out = &plan->tensors},
                          .plan = plan};
    const struct target_matrix matrix = {LORA_PER_LAYER_MODEL, c->layers * c->per_layer};
    memset(plan, 0, sizeof(*plan));
    plan->width[VALUE_X] = c->hidden;
    tensor_table(&maker.tensors, TENSOR_EMBEDDING,
                 method->train_embedding || (c->tied && method->train_head));
    if (c->per_layer > 0) {
        tensor_table(&maker.tensors, TENSOR_PER_LAYER_TABLE, false);
        linear_step(&maker, &(struct product_shape){.in = VALUE_X,
                                                    .out = VALUE_PER_LAYER_ALL,
                                                    .add = VALUE_NONE,
                                                    .inputs = c->hidden,
                                                    .count = 1,
                                                    .matrices = &matrix});
        step_add(&maker, STEP_NORM, VALUE_PER_LAYER_ALL, VALUE_PER_LAYER_NORM, VALUE_NONE)->norm =
            tensor_vector(&maker.tensors, TENSOR_PER_LAYER_NORM, 0, c->per_layer);
        plan->width[VALUE_PER_LAYER_NORM] = matrix.outputs;
    }
    tensor_table_adapter(&maker.tensors, LORA_EMBEDDING);
    plan_finish(plan, method, 0, 0);
}
