/* Checks a stage's options. Within the bounds below, sizes cannot overflow 64 bits. */
#include "engine/stage/layout.h"

#include <math.h>
#include <stdlib.h>

enum {
    LAYOUT_WIDTH_MAX = 1 << 20, /* most rows or columns of any matrix, except the vocabulary's side */
    LAYOUT_VOCAB_MAX = 1 << 22,
    LAYOUT_TOKENS_MAX = 1 << 22, /* most tokens of a micro-batch */
    LAYOUT_RANK_MAX = 1024,
    LAYOUT_SLOTS_MAX = 4096
};

static int layout_config_check(const struct model_config *config, struct err *err)
{
    if (model_config_runnable(config, err) != 0)
        return -1;
    uint64_t q = (uint64_t)config->heads * config->head_dim,
             kv = (uint64_t)config->kv_heads * config->head_dim;
    uint32_t ffn = config->ffn > config->expert_ffn ? config->ffn : config->expert_ffn;
    if (config->hidden == 0 || config->hidden > LAYOUT_WIDTH_MAX || ffn == 0 || ffn > LAYOUT_WIDTH_MAX ||
        q == 0 || q > LAYOUT_WIDTH_MAX || kv == 0 || kv > q || config->vocab == 0 ||
        config->vocab > LAYOUT_VOCAB_MAX || config->layers == 0 || config->heads % config->kv_heads != 0)
        return err_set(err, ERR_INVALID,
                       "model: a width is out of range (hidden %u, ffn %u, heads %u x %u, vocab %u)",
                       config->hidden, config->ffn, config->heads, config->head_dim, config->vocab);
    return 0;
}

static int layout_method_check(struct stage_options *o, struct err *err)
{
    struct lora_options *lora = &o->lora;
    uint32_t most = lora->rank, least, other;
    if (lora->rank == 0 || lora->targets == 0 || o->full)
        *lora = (struct lora_options){0};
    for (uint32_t i = 0; i < LAYER_TARGETS_MAX; i++)
        most = lora->ranks[i] > most ? lora->ranks[i] : most;
    lora_sites_ranks(&lora->sites, &least, &other);
    most = other > most ? other : most;
    if (lora->rank > 0 &&
        (most > LAYOUT_RANK_MAX || !(lora->alpha > 0) || !(lora->dropout >= 0) || !(lora->dropout < 1)))
        return err_set(err, ERR_INVALID,
                       "stage: LoRA rank %u, targets 0x%x, alpha %g or dropout %g out of range", most,
                       lora->targets, lora->alpha, lora->dropout);
    uint32_t possible = model_adapted_targets(o->config);
    if ((lora->targets & LORA_ALL) == LORA_ALL)
        lora->targets &= possible;
    if ((lora->targets & ~possible) != 0)
        return err_set(err, ERR_INVALID, "stage: LoRA targets 0x%x, the model has 0x%x", lora->targets,
                       possible);
    uint32_t experts =
        arch_of(o->config->arch)->fused ? LORA_EXPERTS : LORA_EXPERTS | LORA_GATE | LORA_UP | LORA_DOWN;
    if (lora->dropout > 0 && o->config->experts > 0 && (lora->targets & experts) != 0)
        return err_set(err, ERR_UNSUPPORTED, "stage: dropout on the adapters of experts");
    if (o->compute != DTYPE_F32 && o->compute != DTYPE_BF16 && o->compute != DTYPE_F16)
        return err_set(err, ERR_INVALID, "stage: products in dtype %d, not fp32, bf16 or fp16", o->compute);
    if (o->full && o->base != LAYER_BASE_F32)
        return err_set(err, ERR_UNSUPPORTED, "stage: full fine-tuning of a base that is not fp32");
    if (o->recompute && o->split)
        return err_set(err, ERR_UNSUPPORTED, "stage: recompute with backward in two halves");
    if (!(o->label_smoothing >= 0) || !(o->label_smoothing < 1) || !(o->embed_noise >= 0))
        return err_set(err, ERR_INVALID, "stage: label smoothing %g or noise %g out of range",
                       o->label_smoothing, o->embed_noise);
    return 0;
}

static int layout_range_check(const char *what, uint32_t begin, uint32_t end, uint32_t all, struct err *err)
{
    if (end == 0 || (begin < end && end <= all))
        return 0;
    return err_set(err, ERR_INVALID, "stage: %s %u..%u of %u", what, begin, end, all);
}

/* Why the options cannot be combined with a part of a layer, or NULL if they can. */
static const char *part_lacks(const struct stage_options *o)
{
    const struct model_config *c = o->config;
    const struct layer_part *part = &o->part;
    bool heads = part->kv_head_end > 0, rectangle = heads || part->column_end > 0;
    bool ends = o->block_begin == 0 || o->block_end > c->layers + 1;
    bool apart = part->holds != HOLDS_ALL, experts = part->holds == HOLDS_EXPERTS;
    if (apart)
        return c->experts == 0                                ? "without experts, where there are none"
               : rectangle || part->follows                   ? "cut, and experts elsewhere"
               : !experts && part->expert_end > 0             ? "with some experts, and all elsewhere"
               : experts && o->block_end - o->block_begin > 1 ? "of several blocks, experts alone"
               : experts && (ends || o->recompute)
                   ? "with the embedding, the head or recompute, experts alone"
               : o->split       ? "with split backward"
               : c->post_norms  ? "where outputs are normed"
               : c->shared_ffn  ? "beside a shared expert"
               : c->expert_bias ? "of experts with biases"
                                : NULL;
    return ends && part->follows ? "with the embedding or the head, which the first member has"
           : o->split            ? "with split backward"
           : c->post_norms       ? "where outputs are normed"
           : c->parallel         ? "where attention and FFN read one input"
           : c->delta_value_heads > 0 || c->attn_gate          ? "of gated delta nets"
           : c->kv_latent > 0 && rectangle                     ? "of latent attention"
           : c->conv_taps > 0                                  ? "of short convolutions"
           : c->shared_ffn                                     ? "beside a shared expert"
           : c->expert_bias                                    ? "of experts with biases"
           : (c->packed_qkv || c->packed_gate_up) && rectangle ? "of joined matrices"
           : heads && c->qk_norm == 2                          ? "under a norm of all heads together"
           : part->column_end > 0 && c->experts > 0            ? "by columns of experts"
                                                               : NULL;
}

static int part_check(const struct stage_options *o, struct err *err)
{
    const struct layer_part *p = &o->part;
    const struct model_config *c = o->config;
    if (!layer_part_set(p))
        return 0;
    if (layout_range_check("heads of keys", p->kv_head_begin, p->kv_head_end, c->kv_heads, err) != 0 ||
        layout_range_check("columns of the FFN", p->column_begin, p->column_end, c->ffn, err) != 0 ||
        layout_range_check("experts", p->expert_begin, p->expert_end, c->experts, err) != 0)
        return -1;
    const char *lacks = part_lacks(o);
    return !lacks ? 0 : err_set(err, ERR_UNSUPPORTED, "stage: parts of layers %s", lacks);
}

/* Checks the tensors of which the stage has only a part. A part of a packed tensor must begin and end on a
 * quantisation block. With dropout, a part of an adapter's input must begin at a multiple of 8 features,
 * because one random number serves 8 features. */
static int cuts_check(const struct stage_options *o, const struct layer_tensors *tensors, struct err *err)
{
    for (uint32_t i = 0; i < tensors->count; i++) {
        const struct layer_tensor *t = &tensors->list[i];
        char name[LAYER_NAME_MAX];
        if (layer_tensor_whole(t) || layer_tensor_cut_fits(t, o->lora.dropout > 0))
            continue;
        layer_tensor_name(o->config, o->block_begin > 0 ? o->block_begin - 1 : 0, t, 0, name);
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: rows %u..%u and columns %u..%u of it do not lie on the blocks that it is %s in",
                       name, t->row_begin, t->row_begin + t->rows, t->column_begin,
                       t->column_begin + t->columns, t->trained ? "dropped out" : "packed");
    }
    return 0;
}

static bool dtype_travels(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

static int boundaries_check(const struct stage_options *o, struct err *err)
{
    if ((o->enter_last > 0 && (o->enter_last < o->block_begin || o->enter_last >= o->block_end)) ||
        (o->leave_first > 0 && (o->leave_first <= o->block_begin || o->leave_first > o->block_end)))
        return err_set(err, ERR_INVALID,
                       "stage of blocks %u..%u: micro-batches enter up to %u, leave from %u on",
                       o->block_begin, o->block_end, o->enter_last, o->leave_first);
    if (!dtype_travels(o->boundary_in) || !dtype_travels(o->boundary_out))
        return err_set(err, ERR_INVALID,
                       "stage: boundary tensors in dtypes %d and %d, not fp32, bf16 or fp16", o->boundary_in,
                       o->boundary_out);
    if (o->boundary_in == DTYPE_F32 && o->boundary_out == DTYPE_F32)
        return 0;
    if (layer_part_set(&o->part))
        return err_set(err, ERR_UNSUPPORTED, "stage: boundary tensors in 16 bits with parts of layers");
    if (o->config->hidden % 2 != 0)
        return err_set(err, ERR_UNSUPPORTED, "stage: boundary tensors in 16 bits, of an odd width, %u",
                       o->config->hidden);
    return 0;
}

static int options_check(struct stage_options *o, struct err *err)
{
    if (o->rows_max == 0)
        o->rows_max = o->tokens_max;
    if (o->row_tokens_max == 0)
        o->row_tokens_max = o->tokens_max;
    if (o->labelled_max == 0)
        o->labelled_max = o->tokens_max;
    if (o->positions_max < o->row_tokens_max)
        o->positions_max = o->row_tokens_max;
    if (o->mode == STAGE_INFER || o->micro_batches_in_flight == 0)
        o->micro_batches_in_flight = 1;
    if (o->block_begin >= o->block_end || o->block_end > o->config->layers + 2)
        return err_set(err, ERR_INVALID, "stage: blocks %u..%u of %u", o->block_begin, o->block_end,
                       o->config->layers + 2);
    if (o->outside.block_begin == o->outside.block_end)
        o->outside.block_begin = o->outside.block_end = o->block_begin;
    if (o->outside.block_begin > o->outside.block_end || o->outside.block_begin < o->block_begin ||
        o->outside.block_end > o->block_end)
        return err_set(err, ERR_INVALID, "stage of blocks %u..%u: blocks %u..%u from outside", o->block_begin,
                       o->block_end, o->outside.block_begin, o->outside.block_end);
    if (o->tokens_max == 0 || o->tokens_max > LAYOUT_TOKENS_MAX || o->rows_max > LAYOUT_TOKENS_MAX ||
        o->row_tokens_max > o->tokens_max || o->labelled_max > o->tokens_max ||
        o->positions_max > LAYOUT_TOKENS_MAX)
        return err_set(err, ERR_INVALID,
                       "stage: tokens_max %u, rows_max %u, row_tokens_max %u, labelled_max %u", o->tokens_max,
                       o->rows_max, o->row_tokens_max, o->labelled_max);
    if (o->micro_batches_in_flight > LAYOUT_SLOTS_MAX)
        return err_set(err, ERR_INVALID, "stage: %u micro-batches in flight, at most %u",
                       o->micro_batches_in_flight, LAYOUT_SLOTS_MAX);
    if (layout_method_check(o, err) != 0 || boundaries_check(o, err) != 0)
        return -1;
    return part_check(o, err);
}

double lora_scale(const struct lora_options *lora, uint32_t layer, uint32_t site)
{
    if (lora->sites.ways > 0)
        return lora_scale_at(&lora->sites, layer, site);
    double rank = lora->ranks[site] > 0 ? lora->ranks[site] : lora->rank;
    double alpha = lora->alphas[site] > 0 ? lora->alphas[site] : lora->alpha;
    return lora->rslora ? alpha / sqrt(rank) : alpha / rank;
}

struct layer_method stage_method(const struct stage_options *o)
{
    struct lora_sites sites = lora_sites_alike(o->full ? 0 : o->lora.rank, 0, o->lora.targets);
    for (uint32_t i = 0; i < LORA_TARGET_COUNT; i++)
        if (sites.way[0].rank[i] > 0 && o->lora.ranks[i] > 0)
            sites.way[0].rank[i] = o->lora.ranks[i];
    bool differ = !o->full && o->lora.sites.ways > 0;
    struct layer_method method = footprint_sites(differ ? &o->lora.sites : &sites, o->lora.dropout > 0);
    method.full = o->full;
    method.base = o->base;
    method.double_quant = o->double_quant;
    method.moments8 = o->moments8;
    method.train_embedding = o->train_embedding;
    method.train_head = o->train_head;
    method.part = o->part;
    method.sixteen = o->compute != DTYPE_F32;
    return method;
}

int stage_layout_init(struct stage_options *o, struct footprint_model *model, struct footprint *layout,
                      struct err *err)
{
    if (layout_config_check(o->config, err) != 0 || options_check(o, err) != 0)
        return -1;
    struct layer_method method = stage_method(o);
    if (footprint_model_init(o->config, &method, model, err) != 0)
        return -1;
    for (uint32_t kind = 0; kind < model->kind_count; kind++)
        if (cuts_check(o, &model->kinds[kind].tensors, err) != 0)
            return -1;
    footprint_of(model,
                 &(struct footprint_options){.train = o->mode == STAGE_TRAIN,
                                             .recompute = o->recompute,
                                             .recompute_end = o->recompute_end,
                                             .split = o->split,
                                             .block_begin = o->block_begin,
                                             .block_end = o->block_end,
                                             .slots = o->micro_batches_in_flight,
                                             .tokens = o->tokens_max,
                                             .rows = o->rows_max,
                                             .labelled = o->labelled_max,
                                             .positions = o->positions_max,
                                             .outside_begin = o->outside.block_begin,
                                             .outside_end = o->outside.block_end,
                                             .outside_frozen = o->outside.frozen,
                                             .outside_trained = o->outside.trained,
                                             .moments_on_host = o->moments_on_host},
                 layout);
    return 0;
}

int owned_layout_create(const struct stage_options *options, struct owned_layout **out, struct err *err)
{
    struct owned_layout *all = *out = malloc(sizeof(*all));
    if (!all)
        return err_set(err, ERR_NOMEM, "out of memory for a stage's layout");
    all->options = *options;
    all->config = *options->config;
    all->options.config = &all->config;
    if (stage_layout_init(&all->options, &all->model, &all->layout, err) == 0)
        return 0;
    free(all);
    *out = NULL;
    return -1;
}

int stage_memory_predict(const struct stage_options *options, struct stage_memory *out, struct err *err)
{
    struct owned_layout *all;
    *out = (struct stage_memory){0};
    if (owned_layout_create(options, &all, err) != 0)
        return -1;
    *out = (struct stage_memory){.bytes = {[MEM_WEIGHTS] = all->layout.weights,
                                           [MEM_ADAPTERS] = all->layout.adapters,
                                           [MEM_OPTIMIZER] = all->layout.optimizer,
                                           [MEM_ACTIVATIONS] = all->layout.activations,
                                           [MEM_BUFFERS] = all->layout.buffers},
                                 .host = all->layout.host};
    if (options->workspace)
        out->bytes[MEM_BUFFERS] -= footprint_counted(all->layout.workspace.bytes);
    free(all);
    for (int i = 0; i < MEM_PURPOSES; i++)
        out->total += out->bytes[i];
    return 0;
}

int stage_workspace_bytes(const struct stage_options *options, uint64_t *bytes, struct err *err)
{
    struct owned_layout *all;
    if (owned_layout_create(options, &all, err) != 0)
        return -1;
    *bytes = all->layout.workspace.bytes;
    free(all);
    return 0;
}
