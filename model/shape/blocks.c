/* Makes the list of blocks, and of tensors, from a config. Both use one description of a layer's matrices
 * (layer_matrices), so that counts and names cannot differ. */
#include "model/shape/blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const target_names[LORA_TARGET_COUNT] = {"q_proj",
                                                            "k_proj",
                                                            "v_proj",
                                                            "o_proj",
                                                            "gate_proj",
                                                            "up_proj",
                                                            "down_proj",
                                                            "qkv_proj",
                                                            "gate_up_proj",
                                                            "in_proj_qkv",
                                                            "in_proj_z",
                                                            "in_proj_b",
                                                            "in_proj_a",
                                                            "out_proj",
                                                            "gate_proj",
                                                            "up_proj",
                                                            "output_linear",
                                                            "in_proj_qkvz",
                                                            "in_proj_ba",
                                                            "in_proj",
                                                            "input_linear",
                                                            "per_layer_input_gate",
                                                            "per_layer_projection",
                                                            "per_layer_model_projection",
                                                            "q_a_proj",
                                                            "q_b_proj",
                                                            "embed_tokens",
                                                            "lm_head",
                                                            "experts.gate_up_proj",
                                                            "experts.down_proj"};

static uint32_t attention_targets(const struct model_config *config, uint32_t layer)
{
    const struct model_heads heads = model_layer_heads(config, layer);
    if (config->kv_latent)
        return LORA_O | LORA_K | LORA_V | (config->q_latent ? LORA_Q_A | LORA_Q_B : LORA_Q);
    uint32_t k = heads.borrowed ? 0 : LORA_K, v = heads.borrowed || heads.k_is_v ? 0 : LORA_V;
    return LORA_O | (config->packed_qkv ? LORA_QKV : LORA_Q | k | v);
}

static uint32_t ffn_targets(const struct model_config *config)
{
    return LORA_DOWN | (config->packed_gate_up ? LORA_GATE_UP
                        : config->plain_ffn    ? LORA_UP
                                               : LORA_GATE | LORA_UP);
}

static uint32_t delta_targets(const struct model_config *config)
{
    return LORA_DELTA_OUT |
           (config->delta_scan     ? LORA_CONV_IN
            : config->delta_packed ? LORA_DELTA_QKVZ | LORA_DELTA_BA
                                   : LORA_DELTA_QKV | LORA_DELTA_Z | LORA_DELTA_B | LORA_DELTA_A);
}

uint32_t model_layer_targets(const struct model_config *config, uint32_t layer)
{
    bool alone = model_shared_alone(config);
    bool has_shared = alone || (config->shared_ffn > 0 && model_layer_is_sparse(config, layer));
    uint32_t gate_up = config->shared_packed ? LORA_SHARED_GATE_UP : LORA_SHARED_GATE | LORA_SHARED_UP;
    uint32_t shared = has_shared ? gate_up | LORA_SHARED_DOWN : 0;
    uint32_t own = config->per_layer > 0 ? LORA_PER_LAYER_GATE | LORA_PER_LAYER_OUT : 0;
    if (model_layer_is_conv(config, layer))
        return ffn_targets(config) | LORA_CONV_IN | LORA_DELTA_OUT;
    return (alone ? 0 : ffn_targets(config)) | shared | own |
           (model_layer_is_delta(config, layer) ? delta_targets(config) : attention_targets(config, layer));
}

uint32_t model_lora_targets(const struct model_config *config)
{
    uint32_t targets = config->per_layer > 0 ? LORA_PER_LAYER_MODEL : 0;
    for (uint32_t i = 0; i < config->layers; i++)
        targets |= model_layer_targets(config, i);
    return targets;
}

uint32_t model_adapted_targets(const struct model_config *config)
{
    return model_lora_targets(config) | LORA_TABLES | (config->experts > 0 ? LORA_EXPERTS : 0);
}

const char *lora_target_module(uint32_t target)
{
    return target & LORA_DELTA                       ? "linear_attn"
           : target & LORA_ATTENTION                 ? "self_attn"
           : target & (LORA_PER_LAYER | LORA_TABLES) ? ""
                                                     : "mlp";
}

const char *lora_target_name(uint32_t target)
{
    for (int i = 0; i < LORA_TARGET_COUNT; i++)
        if (target == 1u << i)
            return target_names[i];
    return NULL;
}

void lora_parameter_name(const struct model_config *config, uint32_t layer, uint32_t target,
                         char name[ARCH_NAME_MAX])
{
    bool down = target == LORA_EXPERT_DOWN;
    arch_tensor_name(config->arch, down ? ARCH_EXPERTS_DOWN : ARCH_EXPERTS_GATE_UP, layer, 0, "", name);
    char *linear = strstr(name, down ? ".output_linear." : ".input_linear.");
    if (linear) /* Granite's files have the names of transformers 4 */
        snprintf(linear, ARCH_NAME_MAX - (size_t)(linear - name), ".%s", lora_target_name(target));
}

void lora_expert_name(const struct model_config *config, uint32_t layer, uint32_t target, uint32_t expert,
                      const char *suffix, char name[ARCH_NAME_MAX])
{
    bool down = target == LORA_EXPERT_DOWN;
    arch_tensor_name(config->arch, down ? ARCH_EXPERT_DOWN : ARCH_EXPERT_GATE, layer, expert,
                     down ? suffix : "", name);
    char *last = strrchr(name, '.');
    if (!down && last)
        snprintf(last, ARCH_NAME_MAX - (size_t)(last - name), ".gate_up_proj%s", suffix);
}

const char *lora_target_name_in(const struct model_config *config, uint32_t target)
{
    bool latent = config->kv_latent > 0;
    return latent && target == LORA_K   ? "kv_a_proj_with_mqa"
           : latent && target == LORA_V ? "kv_b_proj"
                                        : lora_target_name(target);
}

uint32_t lora_target_from_name(const char *name)
{
    for (int i = 0; i < LORA_TARGET_COUNT; i++)
        if (strcmp(name, target_names[i]) == 0)
            return 1u << i;
    return 0;
}

/* Returns the rows of a matrix of latent attention, and sets its columns. */
static uint32_t latent_shape(const struct model_config *c, uint32_t target, const struct model_heads *h,
                             uint32_t *cols)
{
    uint32_t values = h->heads * c->value_dim;
    *cols = target == LORA_O     ? values
            : target == LORA_V   ? c->kv_latent
            : target == LORA_Q_B ? c->q_latent
                                 : c->hidden;
    return target == LORA_O     ? c->hidden
           : target == LORA_Q_A ? c->q_latent
           : target == LORA_K   ? c->kv_latent + c->rotary_dim
           : target == LORA_V   ? h->kv - h->heads * c->rotary_dim + values
                                : h->q;
}

static void target_shape(const struct model_config *c, uint32_t layer, uint32_t target, uint32_t ffn,
                         uint32_t *rows, uint32_t *cols)
{
    const struct model_heads heads = model_layer_heads(c, layer);
    uint32_t q = heads.q, kv = heads.kv;
    if (c->kv_latent && target & LORA_ATTENTION) {
        *rows = latent_shape(c, target, &heads, cols);
        return;
    }
    ffn = target & LORA_SHARED ? c->shared_ffn : target & LORA_EXPERTS ? c->expert_ffn : ffn;
    *cols = target == LORA_O                                             ? q
            : target & (LORA_DOWN | LORA_SHARED_DOWN | LORA_EXPERT_DOWN) ? ffn
            : target == LORA_PER_LAYER_OUT                               ? c->per_layer
            : target == LORA_EMBEDDING                                   ? c->vocab
            : target == LORA_DELTA_OUT && !c->conv_taps                  ? model_delta_values(c)
                                                                         : c->hidden;
    switch (target) {
    case LORA_Q:
        *rows = c->attn_gate ? 2 * q : q;
        break;
    case LORA_DELTA_QKV:
        *rows = 2 * model_delta_keys(c) + model_delta_values(c);
        break;
    case LORA_CONV_IN:
        *rows = c->delta_scan ? model_scan_width(c) : 3 * c->hidden;
        break;
    case LORA_DELTA_QKVZ:
        *rows = 2 * model_delta_keys(c) + 2 * model_delta_values(c);
        break;
    case LORA_DELTA_BA:
        *rows = 2 * c->delta_value_heads;
        break;
    case LORA_DELTA_Z:
        *rows = model_delta_values(c);
        break;
    case LORA_DELTA_A:
    case LORA_DELTA_B:
        *rows = c->delta_value_heads;
        break;
    case LORA_PER_LAYER_GATE:
        *rows = c->per_layer;
        break;
    case LORA_PER_LAYER_MODEL:
        *rows = c->layers * c->per_layer;
        break;
    case LORA_HEAD:
        *rows = c->vocab;
        break;
    case LORA_K:
    case LORA_V:
        *rows = kv;
        break;
    case LORA_QKV:
        *rows = q + 2 * kv;
        break;
    case LORA_GATE:
    case LORA_UP:
    case LORA_SHARED_GATE:
    case LORA_SHARED_UP:
        *rows = ffn;
        break;
    case LORA_GATE_UP:
    case LORA_SHARED_GATE_UP:
    case LORA_EXPERT_GATE_UP:
        *rows = 2 * ffn;
        break;
    default:
        *rows = c->hidden;
    }
}

void lora_target_shape(const struct model_config *config, uint32_t layer, uint32_t target, uint32_t *rows,
                       uint32_t *cols)
{
    target_shape(config, layer, target, model_layer_ffn(config, layer), rows, cols);
}

/* Returns the rank of the adapter on a target of a layer (from 0), or 0 when the target has no adapter. */
static uint32_t target_rank(const struct block_options *o, uint32_t layer, uint32_t target)
{
    uint32_t site = (uint32_t)__builtin_ctz(target), own = o->target_rank[site];
    if (o->sites)
        return lora_rank_at(o->sites, layer, site);
    return !(target & o->lora_targets) ? 0 : own ? own : o->lora_rank;
}

/* Returns the parameters of the adapter on a target, of one expert where these have some. */
static uint64_t adapter_params(const struct model_config *c, const struct block_options *o, uint32_t layer,
                               uint32_t target, uint32_t ffn)
{
    uint32_t rows, cols, rank = o->lora ? target_rank(o, layer, target) : 0;
    target_shape(c, layer, target, ffn, &rows, &cols);
    return rank * ((uint64_t)rows + cols);
}

/* Adds the adapter on a table: to a token the embedding's is a product with B alone, the head's with both. */
static void table_adapter(const struct model_config *c, const struct block_options *o, uint32_t target,
                          struct block_part *part)
{
    double rank = o->lora ? target_rank(o, 0, target) : 0;
    part->lora_params += (uint64_t)rank * ((uint64_t)c->hidden + c->vocab);
    part->lora_flops_per_token = 2 * rank * (c->hidden + (target == LORA_HEAD ? (double)c->vocab : 0));
}

/* Sets the parameters of the part's matrices, which are the sites in `mask`, and of the adapters on them. */
static void part_params(const struct model_config *c, const struct block_options *o, uint32_t layer,
                        uint32_t mask, uint32_t ffn, struct block_part *part)
{
    mask &= model_layer_targets(c, layer);
    for (uint32_t target = 1; target < LORA_ALL; target <<= 1) {
        uint32_t rows, cols;
        if (!(target & mask))
            continue;
        target_shape(c, layer, target, ffn, &rows, &cols);
        part->matrix_params += (uint64_t)rows * cols;
        if (!(part->kind == PART_EXPERT && arch_of(c->arch)->fused))
            part->lora_params += adapter_params(c, o, layer, target, ffn);
    }
    for (uint32_t target = LORA_EXPERT_GATE_UP; part->kind == PART_EXPERT && target & LORA_EXPERTS;
         target <<= 1)
        part->lora_params += adapter_params(c, o, layer, target, ffn);
}

/* Returns how many vectors of weights and biases the norms of each half of a layer have, which are as wide as
 * the residual stream. */
static uint64_t norms_of_half(const struct model_config *c)
{
    return ((c->no_pre_norms ? 0u : 1u) + (c->post_norms ? 1u : 0u)) * (c->norm_bias ? 2u : 1u);
}

enum { LORA_FFN = LORA_ALL & ~(LORA_ATTENTION | LORA_SHARED | LORA_PER_LAYER) };

/* Adds what a gated delta net or a state space has beside its matrices. A token's state takes 7 FLOPs a
 * value, or 5: decay, the prediction of v, the correction and the output. */
static void delta_costs(const struct model_config *c, struct block_part *p)
{
    uint64_t k = model_delta_keys(c), v = model_delta_values(c), channels = 2 * k + v;
    double state = (double)v * c->delta_key_dim;
    p->flops_per_token =
        2.0 * (double)(p->matrix_params + channels * MODEL_DELTA_TAPS) + (c->delta_scan ? 5 : 7) * state;
    if (c->delta_scan) {
        p->params += channels * (MODEL_DELTA_TAPS + 1) + 3ull * c->delta_value_heads + v;
        p->saved_per_token = c->hidden + model_scan_width(c) + v;
        return;
    }
    p->params += channels * MODEL_DELTA_TAPS + 2ull * c->delta_value_heads + c->delta_value_dim;
    p->saved_per_token = c->hidden + channels + 3 * v + 2ull * c->delta_value_heads;
}

/* Adds what a short convolution has beside its matrices. */
static void conv_costs(const struct model_config *c, struct block_part *p)
{
    uint64_t weights = (uint64_t)c->hidden * c->conv_taps;
    p->params += weights;
    p->flops_per_token = 2.0 * (double)(p->matrix_params + weights);
    p->saved_per_token = 5ull * c->hidden;
}

static struct block_part part_attention(const struct model_config *c, const struct block_options *o,
                                        uint32_t layer)
{
    const struct model_heads heads = model_layer_heads(c, layer);
    uint64_t h = c->hidden, q = heads.q, kv = heads.kv;
    struct block_part p = {.kind = PART_ATTENTION, .copies = 1, .active = 1};
    part_params(c, o, layer, LORA_ATTENTION, 0, &p);
    p.params = p.matrix_params + norms_of_half(c) * h;
    if (model_layer_is_delta(c, layer) || model_layer_is_conv(c, layer)) {
        model_layer_is_delta(c, layer) ? delta_costs(c, &p) : conv_costs(c, &p);
        return p;
    }
    p.params += c->layer_scaled ? 1 : 0;
    if (c->qkv_bias)
        p.params += (c->attn_gate ? 2 : 1) * q + 2 * kv;
    if (c->o_bias)
        p.params += h;
    if (c->attn_sinks)
        p.params += c->heads;
    if (c->qk_norm == 1)
        p.params += (heads.borrowed ? 1 : 2) * (uint64_t)heads.head_dim;
    else if (c->qk_norm == 2)
        p.params += q + kv;
    p.params += c->q_latent + c->kv_latent;
    p.flops_per_token = 2.0 * (double)p.matrix_params;
    /* q k^T and its product with v take 2 * 2q FLOPs per pair; causal attention computes half of the pairs */
    p.flops_per_square = 2.0 * (double)q;
    p.saved_per_token = h + (c->attn_gate ? 4 : 2) * q + 2 * kv + c->q_latent + c->kv_latent;
    return p;
}

static struct block_part part_ffn(const struct model_config *c, const struct block_options *o, uint32_t layer,
                                  bool expert)
{
    uint64_t h = c->hidden, f = expert ? c->expert_ffn : model_layer_ffn(c, layer),
             own = expert ? 0 : c->per_layer;
    struct block_part p = {.kind = expert ? PART_EXPERT : PART_FFN, .copies = 1, .active = 1};
    if (expert) {
        p.copies = c->experts;
        p.active = c->experts_active;
    }
    part_params(c, o, layer, LORA_FFN | (expert ? 0 : LORA_PER_LAYER | LORA_SHARED), (uint32_t)f, &p);
    p.params = p.matrix_params + (expert || c->one_norm ? 0 : norms_of_half(c) * h) + (own > 0 ? h : 0);
    if (expert ? c->expert_bias : c->mlp_bias)
        p.params += (c->plain_ffn ? 1 : 2) * f + h;
    p.flops_per_token = 2.0 * (double)p.matrix_params;
    p.saved_per_token = h + (c->plain_ffn ? 2 : 3) * f + (own > 0 ? h + 3 * own : 0);
    return p;
}

/* The router, with the layer's norms and the shared expert or the dense FFN beside the experts. */
static struct block_part part_router(const struct model_config *c, const struct block_options *o,
                                     uint32_t layer)
{
    uint64_t h = c->hidden, e = c->experts, score = c->shared_scored ? h : 0;
    struct block_part p = {.kind = PART_ROUTER, .copies = 1, .active = 1};
    part_params(c, o, layer, c->experts_beside ? LORA_FFN : LORA_SHARED, c->ffn, &p);
    p.params =
        p.matrix_params + h * e + (c->router_biased || c->expert_bias ? e : 0) + score + norms_of_half(c) * h;
    if (c->experts_beside)
        p.params += 4 * h + e; /* three norms, the router's scale, and each expert's */
    p.flops_per_token = 2.0 * (double)(p.matrix_params + h * e + score);
    p.saved_per_token = h + e + 3 * (uint64_t)(c->experts_beside ? c->ffn : c->shared_ffn);
    return p;
}

/* The embedding, and what makes every layer's own input of a token. */
static struct block_part part_embedding(const struct model_config *c, const struct block_options *o)
{
    uint64_t h = c->hidden, table = h * c->vocab, all = (uint64_t)c->layers * c->per_layer;
    bool lora = o->lora && all > 0;
    struct block_part p = {.kind = PART_EMBEDDING, .copies = 1, .active = 1, .matrix_params = all * h};
    p.params = table + all * c->vocab + p.matrix_params + c->per_layer;
    p.lora_params = (o->lora && o->saves_embedding ? table : 0) +
                    (lora ? target_rank(o, 0, LORA_PER_LAYER_MODEL) * (all + h) : 0);
    p.flops_per_token = 2.0 * (double)p.matrix_params;
    p.saved_per_token = all;
    table_adapter(c, o, LORA_EMBEDDING, &p);
    return p;
}

static void fill_block(const struct model_config *c, const struct block_options *o, uint32_t index,
                       struct block *b)
{
    uint64_t h = c->hidden, table = h * c->vocab;
    bool saves_head = o->lora && o->saves_head && !c->tied;
    bool layer = index > 0 && index <= c->layers;
    b->index = index;
    if (index == 0) {
        b->kind = BLOCK_EMBEDDING;
        b->parts[b->part_count++] = part_embedding(c, o);
    } else if (index == c->layers + 1) {
        b->kind = BLOCK_HEAD;
        b->parts[b->part_count++] = (struct block_part){
            .kind = PART_HEAD,
            .copies = 1,
            .active = 1,
            .params = (c->norm_bias ? 2 : 1) * h + (c->tied ? 0 : table) + (c->head_bias ? c->vocab : 0),
            .lora_params = saves_head ? table : 0,
            .flops_per_token = 2.0 * (double)table,
            .saved_per_token = h};
        table_adapter(c, o, LORA_HEAD, &b->parts[0]);
    } else {
        b->kind = BLOCK_LAYER;
        b->parts[b->part_count++] = part_attention(c, o, index - 1);
        if (model_layer_is_sparse(c, index - 1)) {
            b->parts[b->part_count++] = part_router(c, o, index - 1);
            b->parts[b->part_count++] = part_ffn(c, o, index - 1, true);
        } else {
            b->parts[b->part_count++] = part_ffn(c, o, index - 1, false);
        }
    }
    for (uint32_t i = 0; i < b->part_count; i++) {
        struct block_part *p = &b->parts[i];
        if (layer)
            p->lora_flops_per_token = 2.0 * (double)p->lora_params;
        b->params += p->params * p->copies;
        b->active_params += p->params * p->active;
        b->matrix_params += p->matrix_params * p->copies;
        b->lora_params += p->lora_params * p->copies;
        b->flops_per_token += p->active * (p->flops_per_token + p->lora_flops_per_token);
        b->flops_per_square += p->active * p->flops_per_square;
        b->saved_per_token += p->active * p->saved_per_token;
    }
}

int model_blocks(const struct model_config *config, const struct block_options *options,
                 struct block_list *list, struct err *err)
{
    memset(list, 0, sizeof(*list));
    bool alike = options->lora && !options->sites;
    if (alike && (options->lora_rank == 0 || options->lora_rank > 65536))
        return err_set(err, ERR_INVALID, "the adapter's rank, %u, is not within 1..65536",
                       options->lora_rank);
    if (alike && ((options->lora_targets & model_adapted_targets(config)) == 0 ||
                  options->lora_targets >> LORA_TARGET_COUNT != 0))
        return err_set(err, ERR_INVALID, "the adapter names no target that a model has");
    if (config->layers == 0 || config->layers > MODEL_LAYERS_MAX)
        return err_set(err, ERR_INVALID, "a model of %u layers is not within 1..%d", config->layers,
                       MODEL_LAYERS_MAX);
    list->count = config->layers + 2;
    list->blocks = calloc(list->count, sizeof(*list->blocks));
    if (!list->blocks)
        return err_set(err, ERR_NOMEM, "no memory for %u blocks", list->count);
    list->tied = config->tied;
    list->tied_params = config->tied ? (uint64_t)config->vocab * config->hidden : 0;
    list->boundary_per_token = config->hidden;
    for (uint32_t i = 0; i < list->count; i++) {
        fill_block(config, options, i, &list->blocks[i]);
        list->params += list->blocks[i].params;
        list->lora_params += list->blocks[i].lora_params;
        list->active_params += list->blocks[i].active_params;
    }
    return 0;
}

void block_list_fini(struct block_list *list)
{
    free(list->blocks);
    memset(list, 0, sizeof(*list));
}

/* The state of a walk over a model's tensors, which ends when a visit returns non-zero. */
struct walk {
    const struct model_config *config;
    int (*visit)(const struct block_tensor *tensor, void *arg);
    void *arg;
    uint32_t block;
    int status;
};

static void walk_named(struct walk *w, enum arch_tensor what, uint32_t expert, const char *suffix,
                       uint32_t rows, uint32_t cols)
{
    struct block_tensor t = {.what = what,
                             .bias = strcmp(suffix, ".bias") == 0,
                             .fused = arch_of(w->config->arch)->fused && what >= ARCH_EXPERT_GATE &&
                                      what <= ARCH_EXPERT_DOWN,
                             .expert = expert,
                             .block = w->block,
                             .rank = cols ? 2 : 1,
                             .shape = {rows, cols ? cols : 1}};
    if (w->status)
        return;
    arch_tensor_name(w->config->arch, what, w->block - 1, expert, suffix, t.name);
    w->status = w->visit(&t, w->arg);
}

static void walk_norm(struct walk *w, enum arch_tensor what, uint32_t width)
{
    walk_named(w, what, 0, ".weight", width, 0);
    if (w->config->norm_bias)
        walk_named(w, what, 0, ".bias", width, 0);
}

/* Visits the model's targets in the mask in order, each with its bias. */
static void walk_matrices(struct walk *w, uint32_t mask, uint32_t ffn)
{
    const struct model_config *c = w->config;
    mask &= model_layer_targets(c, w->block - 1);
    for (uint32_t i = 0; i < LORA_TARGET_COUNT; i++) {
        uint32_t rows, cols, target = 1u << i;
        enum arch_tensor what = (enum arch_tensor)(ARCH_Q + i);
        if (!(mask & target))
            continue;
        target_shape(c, w->block - 1, target, ffn, &rows, &cols);
        walk_named(w, what, 0, ".weight", rows, cols);
        if (!(target & LORA_DELTA) && (!(target & LORA_ATTENTION) ? c->mlp_bias
                                       : target == LORA_O         ? c->o_bias
                                                                  : c->qkv_bias))
            walk_named(w, what, 0, ".bias", rows, 0);
    }
}

static void walk_experts(struct walk *w)
{
    const struct model_config *c = w->config;
    bool row = arch_of(c->arch)->router_bias_row;
    if (c->experts_beside) {
        walk_matrices(w, LORA_FFN, c->ffn);
        walk_norm(w, ARCH_NORM_DENSE_POST, c->hidden);
        walk_named(w, ARCH_ROUTER_SCALE, 0, "", c->hidden, 0);
    }
    walk_named(w, ARCH_ROUTER, 0, ".weight", c->experts, c->hidden);
    if (c->experts_beside) {
        walk_named(w, ARCH_EXPERT_SCALE, 0, "", c->experts, 0);
        walk_norm(w, ARCH_NORM_EXPERT, c->hidden);
        walk_norm(w, ARCH_NORM_EXPERT_POST, c->hidden);
    }
    if (c->expert_bias)
        walk_named(w, ARCH_ROUTER, 0, ".bias", c->experts, 0);
    if (c->router_biased)
        walk_named(w, ARCH_ROUTER_BIAS, 0, "", row ? 1 : c->experts, row ? c->experts : 0);
    if (c->shared_ffn > 0)
        walk_matrices(w, LORA_SHARED, 0);
    if (c->shared_scored)
        walk_named(w, ARCH_SHARED_SCORE, 0, ".weight", 1, c->hidden);
    for (uint32_t e = 0; e < c->experts && !w->status; e++)
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t rows, cols;
            target_shape(c, w->block - 1, LORA_GATE << i, c->expert_ffn, &rows, &cols);
            walk_named(w, (enum arch_tensor)(ARCH_EXPERT_GATE + i), e, ".weight", rows, cols);
            if (c->expert_bias)
                walk_named(w, (enum arch_tensor)(ARCH_EXPERT_GATE + i), e, ".bias", rows, 0);
        }
}

static void walk_conv(struct walk *w, uint32_t channels, uint32_t taps)
{
    struct block_tensor conv = {
        .what = ARCH_DELTA_CONV, .block = w->block, .rank = 3, .shape = {channels, taps}};
    if (w->status)
        return;
    arch_tensor_name(w->config->arch, conv.what, w->block - 1, 0, ".weight", conv.name);
    w->status = w->visit(&conv, w->arg);
}

static void walk_delta(struct walk *w)
{
    const struct model_config *c = w->config;
    uint32_t values = model_delta_values(c), channels = 2 * model_delta_keys(c) + values;
    walk_conv(w, channels, MODEL_DELTA_TAPS);
    if (c->delta_scan) {
        walk_named(w, ARCH_DELTA_CONV, 0, ".bias", channels, 0);
        walk_named(w, ARCH_DELTA_SKIP, 0, "", c->delta_value_heads, 0);
    }
    walk_named(w, ARCH_DELTA_DECAY, 0, "", c->delta_value_heads, 0);
    walk_named(w, ARCH_DELTA_DT_BIAS, 0, "", c->delta_value_heads, 0);
    walk_norm(w, ARCH_DELTA_NORM, c->delta_scan ? values : c->delta_value_dim);
}

static void walk_layer(struct walk *w)
{
    const struct model_config *c = w->config;
    bool delta = model_layer_is_delta(c, w->block - 1), conv = model_layer_is_conv(c, w->block - 1);
    const struct model_heads heads = model_layer_heads(c, w->block - 1);
    if (!c->no_pre_norms)
        walk_norm(w, ARCH_NORM_INPUT, c->hidden);
    walk_matrices(w, LORA_ATTENTION, 0);
    if (c->q_latent)
        walk_norm(w, ARCH_NORM_Q_LATENT, c->q_latent);
    if (c->kv_latent)
        walk_norm(w, ARCH_NORM_KV_LATENT, c->kv_latent);
    if (c->attn_sinks)
        walk_named(w, ARCH_SINKS, 0, "", c->heads, 0);
    if (delta)
        walk_delta(w);
    if (conv)
        walk_conv(w, c->hidden, c->conv_taps);
    if (c->qk_norm && !delta && !conv) {
        walk_norm(w, ARCH_NORM_Q, c->qk_norm == 1 ? heads.head_dim : heads.q);
        if (!heads.borrowed)
            walk_norm(w, ARCH_NORM_K, c->qk_norm == 1 ? heads.head_dim : heads.kv);
    }
    if (c->post_norms)
        walk_norm(w, ARCH_NORM_ATTENTION_POST, c->hidden);
    if (!c->no_pre_norms && !c->one_norm)
        walk_norm(w, ARCH_NORM_FFN, c->hidden);
    if (model_layer_is_sparse(c, w->block - 1))
        walk_experts(w);
    else
        walk_matrices(w, LORA_FFN | LORA_SHARED, model_layer_ffn(c, w->block - 1));
    if (c->post_norms)
        walk_norm(w, ARCH_NORM_FFN_POST, c->hidden);
    if (c->per_layer > 0) {
        walk_matrices(w, LORA_PER_LAYER, 0);
        walk_norm(w, ARCH_NORM_PER_LAYER, c->hidden);
    }
    if (c->layer_scaled)
        walk_named(w, ARCH_LAYER_SCALE, 0, "", 1, 0);
}

static void walk_embedding(struct walk *w)
{
    const struct model_config *c = w->config;
    uint32_t all = c->layers * c->per_layer;
    walk_named(w, ARCH_EMBEDDING, 0, ".weight", c->vocab, c->hidden);
    if (all == 0)
        return;
    walk_named(w, ARCH_PER_LAYER_TABLE, 0, ".weight", c->vocab, all);
    walk_named(w, ARCH_PER_LAYER_MODEL, 0, ".weight", all, c->hidden);
    walk_norm(w, ARCH_PER_LAYER_NORM, c->per_layer);
}

int model_block_tensors(const struct model_config *config, uint32_t begin, uint32_t end,
                        int (*visit)(const struct block_tensor *tensor, void *arg), void *arg)
{
    struct walk w = {.config = config, .visit = visit, .arg = arg};
    for (uint32_t b = begin; b < end && b <= config->layers + 1 && !w.status; b++) {
        w.block = b;
        if (b == 0)
            walk_embedding(&w);
        else if (b <= config->layers)
            walk_layer(&w);
        else {
            walk_norm(&w, ARCH_NORM_FINAL, config->hidden);
            if (!config->tied)
                walk_named(&w, ARCH_HEAD, 0, ".weight", config->vocab, config->hidden);
            if (config->head_bias)
                walk_named(&w, ARCH_HEAD, 0, ".bias", config->vocab, 0);
        }
    }
    return w.status;
}

int model_adapted_tensors(const struct model_config *config,
                          int (*visit)(const struct block_tensor *tensor, void *arg), void *arg)
{
    struct walk w = {.config = config, .visit = visit, .arg = arg, .block = config->layers + 1};
    w.status = model_block_tensors(config, 0, config->layers + 2, visit, arg);
    if (config->tied)
        walk_named(&w, ARCH_HEAD, 0, ".weight", config->vocab, config->hidden);
    return w.status;
}

void block_tensor_layers(const struct model_config *config, const struct block_tensor *tensor,
                         uint32_t *begin, uint32_t *end)
{
    bool layer = tensor->block > 0 && tensor->block <= config->layers;
    *begin = layer ? tensor->block - 1 : 0;
    *end = layer ? tensor->block : config->layers;
}

static int count_params(const struct block_tensor *tensor, void *arg)
{
    uint64_t *sum = arg;
    *sum += (uint64_t)tensor->shape[0] * tensor->shape[1];
    return 0;
}

uint64_t model_config_params(const struct model_config *config)
{
    uint64_t sum = 0;
    model_block_tensors(config, 0, config->layers + 2, count_params, &sum);
    return sum;
}
