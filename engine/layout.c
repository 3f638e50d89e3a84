/* Bounds first: with these, 64 bits cannot overflow. */
#include "engine/layout.h"

#include <math.h>

enum {
    LAYOUT_WIDTH_MAX = 1 << 20, /* of any matrix side but the vocabulary */
    LAYOUT_VOCAB_MAX = 1 << 22,
    LAYOUT_TOKENS_MAX = 1 << 22, /* of a micro-batch */
    LAYOUT_RANK_MAX = 1024,
    LAYOUT_SLOTS_MAX = 4096
};

static int config_check(const struct model_config *config, struct err *err)
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

static int method_check(struct stage_options *o, struct err *err)
{
    struct lora_options *lora = &o->lora;
    uint32_t most = lora->rank;
    if (lora->rank == 0 || lora->targets == 0 || o->full)
        *lora = (struct lora_options){0};
    for (uint32_t i = 0; i < LAYER_TARGETS_MAX; i++)
        most = lora->ranks[i] > most ? lora->ranks[i] : most;
    if (lora->rank > 0 &&
        (most > LAYOUT_RANK_MAX || !(lora->alpha > 0) || !(lora->dropout >= 0) || !(lora->dropout < 1)))
        return err_set(err, ERR_INVALID,
                       "stage: LoRA rank %u, targets 0x%x, alpha %g or dropout %g out of range", most,
                       lora->targets, lora->alpha, lora->dropout);
    uint32_t possible = model_lora_targets(o->config);
    if (lora->targets == LORA_ALL)
        lora->targets = possible;
    if ((lora->targets & ~possible) != 0)
        return err_set(err, ERR_INVALID, "stage: LoRA targets 0x%x, the model has 0x%x", lora->targets,
                       possible);
    if (lora->dropout > 0 && o->config->experts > 0 &&
        (lora->targets & (LORA_GATE | LORA_UP | LORA_DOWN)) != 0)
        return err_set(err, ERR_UNSUPPORTED, "stage: dropout on the adapters of experts");
    if (o->full && o->base != LAYER_BASE_F32)
        return err_set(err, ERR_UNSUPPORTED, "stage: full fine-tuning of a base that is not fp32");
    if (o->recompute && o->split)
        return err_set(err, ERR_UNSUPPORTED, "stage: recompute with backward in two halves");
    if (!(o->label_smoothing >= 0) || !(o->label_smoothing < 1) || !(o->embed_noise >= 0))
        return err_set(err, ERR_INVALID, "stage: label smoothing %g or noise %g out of range",
                       o->label_smoothing, o->embed_noise);
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
    if (o->tokens_max == 0 || o->tokens_max > LAYOUT_TOKENS_MAX || o->rows_max > LAYOUT_TOKENS_MAX ||
        o->row_tokens_max > o->tokens_max || o->labelled_max > o->tokens_max ||
        o->positions_max > LAYOUT_TOKENS_MAX)
        return err_set(err, ERR_INVALID,
                       "stage: tokens_max %u, rows_max %u, row_tokens_max %u, labelled_max %u", o->tokens_max,
                       o->rows_max, o->row_tokens_max, o->labelled_max);
    if (o->micro_batches_in_flight > LAYOUT_SLOTS_MAX)
        return err_set(err, ERR_INVALID, "stage: %u micro-batches in flight, at most %u",
                       o->micro_batches_in_flight, LAYOUT_SLOTS_MAX);
    return method_check(o, err);
}

double lora_scale(const struct lora_options *lora, uint32_t site)
{
    double rank = lora->ranks[site] > 0 ? lora->ranks[site] : lora->rank;
    double alpha = lora->alphas[site] > 0 ? lora->alphas[site] : lora->alpha;
    return lora->rslora ? alpha / sqrt(rank) : alpha / rank;
}

struct layer_method stage_method(const struct stage_options *o)
{
    struct layer_method method =
        footprint_lora(o->full ? 0 : o->lora.rank, o->lora.targets, o->lora.dropout > 0);
    for (uint32_t i = 0; i < LAYER_TARGETS_MAX; i++)
        if (method.rank[i] > 0 && o->lora.ranks[i] > 0)
            method.rank[i] = o->lora.ranks[i];
    method.full = o->full;
    method.base = o->base;
    method.double_quant = o->double_quant;
    method.moments8 = o->moments8;
    method.train_embedding = o->train_embedding;
    method.train_head = o->train_head;
    return method;
}

int stage_layout_init(struct stage_options *o, struct footprint_model *model, struct footprint *layout,
                      struct err *err)
{
    if (config_check(o->config, err) != 0 || options_check(o, err) != 0)
        return -1;
    struct layer_method method = stage_method(o);
    if (footprint_model_init(o->config, &method, model, err) != 0)
        return -1;
    footprint_of(model,
                 &(struct footprint_options){.train = o->mode == STAGE_TRAIN,
                                             .recompute = o->recompute,
                                             .split = o->split,
                                             .block_begin = o->block_begin,
                                             .block_end = o->block_end,
                                             .slots = o->micro_batches_in_flight,
                                             .tokens = o->tokens_max,
                                             .rows = o->rows_max,
                                             .labelled = o->labelled_max,
                                             .positions = o->positions_max},
                 layout);
    return 0;
}

int stage_memory_predict(const struct stage_options *options, struct stage_memory *out, struct err *err)
{
    struct stage_options checked = *options;
    struct footprint_model model;
    struct footprint layout;
    *out = (struct stage_memory){0};
    if (stage_layout_init(&checked, &model, &layout, err) != 0)
        return -1;
    *out = (struct stage_memory){.bytes = {[MEM_WEIGHTS] = layout.weights,
                                           [MEM_ADAPTERS] = layout.adapters,
                                           [MEM_OPTIMIZER] = layout.optimizer,
                                           [MEM_ACTIVATIONS] = layout.activations,
                                           [MEM_BUFFERS] = layout.buffers}};
    if (checked.workspace != NULL)
        out->bytes[MEM_BUFFERS] -= footprint_counted(layout.workspace.bytes);
    for (int i = 0; i < MEM_PURPOSES; i++)
        out->total += out->bytes[i];
    return 0;
}

int stage_workspace_bytes(const struct stage_options *options, uint64_t *bytes, struct err *err)
{
    struct stage_options checked = *options;
    struct footprint_model model;
    struct footprint layout;
    if (stage_layout_init(&checked, &model, &layout, err) != 0)
        return -1;
    *bytes = layout.workspace.bytes;
    return 0;
}
