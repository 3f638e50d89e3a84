/* Bounds first: with these, 64 bits cannot overflow. */
#include "engine/layout.h"

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
    if (config->hidden == 0 || config->hidden > LAYOUT_WIDTH_MAX || config->ffn == 0 ||
        config->ffn > LAYOUT_WIDTH_MAX || q == 0 || q > LAYOUT_WIDTH_MAX || kv == 0 || kv > q ||
        config->vocab == 0 || config->vocab > LAYOUT_VOCAB_MAX || config->layers == 0 ||
        config->heads % config->kv_heads != 0)
        return err_set(err, ERR_INVALID,
                       "model: a width is out of range (hidden %u, ffn %u, heads %u x %u, vocab %u)",
                       config->hidden, config->ffn, config->heads, config->head_dim, config->vocab);
    if (config->ffn < (config->hidden + 1) / 2)
        return err_set(err, ERR_UNSUPPORTED, "model: ffn %u is narrower than half of hidden %u", config->ffn,
                       config->hidden);
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
    struct lora_options *lora = &o->lora;
    if (lora->rank == 0 || lora->targets == 0)
        *lora = (struct lora_options){0};
    else if (lora->rank > LAYOUT_RANK_MAX || (lora->targets & ~(uint32_t)LORA_ALL) != 0 ||
             !(lora->alpha > 0) || !(lora->dropout >= 0) || !(lora->dropout < 1))
        return err_set(err, ERR_INVALID,
                       "stage: LoRA rank %u, targets 0x%x, alpha %g or dropout %g out of range", lora->rank,
                       lora->targets, lora->alpha, lora->dropout);
    return 0;
}

int stage_layout_init(struct stage_options *o, struct footprint_model *model, struct footprint *layout,
                      struct err *err)
{
    if (config_check(o->config, err) != 0 || options_check(o, err) != 0)
        return -1;
    *model =
        footprint_model_of(o->config, footprint_fp32, o->lora.rank, o->lora.targets, o->lora.dropout > 0);
    footprint_of(model,
                 &(struct footprint_options){.train = o->mode == STAGE_TRAIN,
                                             .recompute = o->recompute,
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
    for (int i = 0; i < MEM_PURPOSES; i++)
        out->total += out->bytes[i];
    return 0;
}
