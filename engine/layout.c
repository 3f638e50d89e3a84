/* Sums of sizes. Widths are bounded first (LAYOUT_WIDTH_MAX, LAYOUT_TOKENS_MAX), so that 64 bits cannot
 * overflow. */
#include "engine/layout.h"

#include <string.h>

enum {
    LAYOUT_WIDTH_MAX = 1 << 20, /* of any matrix side but the vocabulary */
    LAYOUT_VOCAB_MAX = 1 << 22,
    LAYOUT_TOKENS_MAX = 1 << 22, /* of a micro-batch */
    LAYOUT_RANK_MAX = 1024,
    EXACT_HIDDEN_MAX = 256,
    LAYOUT_SLOTS_MAX = 4096,
    HEAD_LOGIT_FLOATS = 6 << 20, /* logits held at once aim at this many values (24 MiB) … */
    HEAD_ROWS_MIN = 16           /* … but at least so many positions */
};

static uint64_t take(uint64_t *at, uint64_t bytes)
{
    uint64_t begin = *at;
    *at += (bytes + 63) / 64 * 64;
    return begin;
}

static uint64_t floats(uint64_t rows, uint64_t width)
{
    return rows * width * sizeof(float);
}

static int shape_init(struct shape *shape, const struct model_config *config, struct err *err)
{
    if (model_config_runnable(config, err) != 0)
        return -1;
    *shape = (struct shape){
        .hidden = config->hidden,
        .heads = config->heads,
        .kv_heads = config->kv_heads,
        .head_dim = config->head_dim,
        .ffn = config->ffn,
        .vocab = config->vocab,
        .layers = config->layers,
        .norm_eps = (float)config->norm_eps,
    };
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
    shape->q_width = (uint32_t)q;
    shape->kv_width = (uint32_t)kv;
    shape->qkv_width = (uint32_t)(q + 2 * kv);
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

static void layer_init(struct layer_layout *layer, const struct shape *s)
{
    uint64_t at = 0;
    layer->norm1 = take(&at, floats(1, s->hidden));
    layer->qkv = take(&at, floats(s->qkv_width, s->hidden));
    layer->o = take(&at, floats(s->hidden, s->q_width));
    layer->norm2 = take(&at, floats(1, s->hidden));
    layer->gate_up = take(&at, floats(2ull * s->ffn, s->hidden));
    layer->down = take(&at, floats(s->hidden, s->ffn));
    layer->bytes = at;
}

static void groups_init(struct stage_layout *l)
{
    const struct shape *s = &l->shape;
    const struct {
        uint32_t target, group, outputs, column;
    } members[] = {
        {LORA_Q, GROUP_QKV, s->q_width, 0},
        {LORA_K, GROUP_QKV, s->kv_width, s->q_width},
        {LORA_V, GROUP_QKV, s->kv_width, s->q_width + s->kv_width},
        {LORA_O, GROUP_O, s->hidden, 0},
        {LORA_GATE, GROUP_GATE_UP, s->ffn, 0},
        {LORA_UP, GROUP_GATE_UP, s->ffn, s->ffn},
        {LORA_DOWN, GROUP_DOWN, s->hidden, 0},
    };
    const uint32_t inputs[GROUP_COUNT] = {s->hidden, s->q_width, s->hidden, s->ffn};
    uint32_t rank = l->options.lora.rank;
    uint64_t at = 0;
    for (uint32_t i = 0; i < LORA_TARGET_COUNT; i++) {
        if ((l->options.lora.targets & members[i].target) == 0)
            continue;
        struct lora_group *group = &l->groups[members[i].group];
        group->members[group->count++] = (struct lora_member){.target = members[i].target,
                                                              .site = i,
                                                              .outputs = members[i].outputs,
                                                              .column = members[i].column};
        l->parameters += 2;
    }
    for (int g = 0; g < GROUP_COUNT; g++) {
        struct lora_group *group = &l->groups[g];
        group->inputs = inputs[g];
        group->a = take(&at, floats((uint64_t)group->count * rank, group->inputs)) / sizeof(float);
        for (uint32_t i = 0; i < group->count; i++)
            group->members[i].b = take(&at, floats(group->members[i].outputs, rank)) / sizeof(float);
    }
    l->adapter_floats = at / sizeof(float);
}

struct save_layout save_layout_of(const struct stage_layout *l, uint32_t tokens)
{
    const struct shape *s = &l->shape;
    struct save_layout save;
    uint64_t at = 0;
    save.qkv = take(&at, floats(tokens, s->qkv_width));
    save.att = take(&at, floats(tokens, s->q_width));
    save.lse = take(&at, floats(tokens, s->heads));
    save.mid = take(&at, floats(tokens, s->hidden));
    save.gate_up = take(&at, floats(tokens, 2ull * s->ffn));
    for (int g = 0; g < GROUP_COUNT; g++)
        save.z[g] = take(&at, floats(tokens, (uint64_t)l->groups[g].count * l->options.lora.rank));
    save.bytes = at;
    return save;
}

static void slot_init(struct stage_layout *l)
{
    const struct stage_options *o = &l->options;
    struct slot_layout *slot = &l->slot;
    uint32_t layers = l->layer_end - l->layer_begin;
    bool train = o->mode == STAGE_TRAIN;
    uint64_t at = 0;
    slot->ids = take(&at, 4ull * o->tokens_max);
    slot->positions = take(&at, 4ull * o->tokens_max);
    slot->row_ids = take(&at, 4ull * o->tokens_max);
    slot->row_start = take(&at, 4ull * o->rows_max + 4);
    slot->label_index = take(&at, 4ull * o->labelled_max);
    slot->targets = take(&at, 4ull * o->labelled_max);
    slot->meta_bytes = at;
    uint32_t inputs = train ? layers : layers > 0;
    slot->x_stride = train ? (floats(o->tokens_max, l->shape.hidden) + 63) / 64 * 64 : 0;
    slot->x = at;
    for (uint32_t i = 0; i < inputs; i++)
        take(&at, floats(o->tokens_max, l->shape.hidden));
    slot->saves = at;
    if (train && !o->recompute) {
        slot->save_stride = save_layout_of(l, o->tokens_max).bytes;
        at += slot->save_stride * layers;
    }
    slot->head = take(&at, train && l->has_head ? floats(o->labelled_max, l->shape.hidden) : 0);
    slot->bytes = at;
    l->slots = o->micro_batches_in_flight;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static void workspace_init(struct stage_layout *l)
{
    const struct stage_options *o = &l->options;
    const struct shape *s = &l->shape;
    struct workspace_layout *w = &l->workspace;
    uint32_t tokens = o->tokens_max, rank = o->lora.rank, wide = 0, members = 0;
    bool layers = l->layer_end > l->layer_begin, train = o->mode == STAGE_TRAIN;
    uint64_t at = 0;
    for (int g = 0; g < GROUP_COUNT; g++) {
        if (l->groups[g].count == 0)
            continue;
        wide = max_u32(wide, l->groups[g].inputs);
        members = max_u32(members, l->groups[g].count);
    }
    w->norm = take(&at, layers ? floats(tokens, s->hidden) : 0);
    w->d = take(&at, floats(tokens, s->hidden));
    /* dact is done with before datt and dqkv begin: they share its place */
    uint64_t shared = at;
    w->act = take(&at, layers ? floats(tokens, max_u32(s->ffn, s->hidden)) : 0);
    uint64_t act_end = at;
    at = shared;
    w->datt = take(&at, layers && train ? floats(tokens, s->q_width) : 0);
    w->dqkv = take(&at, layers && train ? floats(tokens, s->qkv_width) : 0);
    at = at > act_end ? at : act_end;
    w->delta = take(&at, layers && train ? floats(tokens, s->heads) : 0);
    w->dz = take(&at, layers && train ? floats(tokens, (uint64_t)members * rank) : 0);
    w->drop = take(&at, layers && train && o->lora.dropout > 0 ? floats(tokens, wide) : 0);
    w->act2 = take(&at, layers && train && l->groups[GROUP_DOWN].count > 0 ? floats(tokens, s->ffn) : 0);
    w->save = take(&at, layers && (!train || o->recompute) ? save_layout_of(l, tokens).bytes : 0);
    w->logits = take(&at, l->has_head ? floats(l->head_rows, s->vocab) : 0);
    w->head_x = take(&at, l->has_head ? floats(l->head_rows, s->hidden) : 0);
    w->head_n = take(&at, l->has_head ? floats(l->head_rows, s->hidden) : 0);
    w->bytes = at;
}

static uint32_t head_rows_of(const struct stage_options *o, uint32_t vocab)
{
    uint32_t rows = max_u32(HEAD_ROWS_MIN, HEAD_LOGIT_FLOATS / vocab / 16 * 16);
    return rows < o->tokens_max ? rows : o->tokens_max;
}

int stage_layout_init(struct stage_layout *l, const struct stage_options *options, struct err *err)
{
    memset(l, 0, sizeof *l);
    l->options = *options;
    if (shape_init(&l->shape, options->config, err) != 0 || options_check(&l->options, err) != 0)
        return -1;
    const struct stage_options *o = &l->options;
    const struct shape *s = &l->shape;
    l->has_embedding = o->block_begin == 0;
    l->has_head = o->block_end == s->layers + 2;
    /* Tiny models are trained to the last digit: Adam turns the noise of a gradient near zero into a full
     * step. */
    l->exact = s->hidden <= EXACT_HIDDEN_MAX;
    l->shares_table = l->has_embedding && l->has_head && o->config->tied;
    l->layer_begin = l->has_embedding ? 0 : o->block_begin - 1;
    l->layer_end = o->block_end - 1 < s->layers ? o->block_end - 1 : s->layers;
    if (l->layer_begin > l->layer_end)
        l->layer_begin = l->layer_end;
    layer_init(&l->layer, s);
    l->table_bytes = floats(s->vocab, s->hidden);
    l->head_norm_bytes = l->has_head ? floats(1, s->hidden) : 0;
    l->rope_bytes = l->layer_end > l->layer_begin ? floats(o->positions_max, s->head_dim) : 0;
    groups_init(l);
    l->head_rows = head_rows_of(o, s->vocab);
    slot_init(l);
    workspace_init(l);
    l->scalar_bytes = 8 * (1 + (uint64_t)l->parameters * (l->layer_end - l->layer_begin));
    return 0;
}

uint64_t cache_layout_bytes(const struct stage_layout *l, uint32_t tokens_max)
{
    return floats(2ull * (l->layer_end - l->layer_begin) * tokens_max, l->shape.kv_width);
}

int stage_memory_predict(const struct stage_options *options, struct stage_memory *out, struct err *err)
{
    struct stage_layout l;
    memset(out, 0, sizeof *out);
    if (stage_layout_init(&l, options, err) != 0)
        return -1;
    uint64_t layers = l.layer_end - l.layer_begin;
    bool train = l.options.mode == STAGE_TRAIN;
    uint64_t adapters = buffer_accounted_bytes(l.adapter_floats * layers * sizeof(float));
    uint64_t *bytes = out->bytes;
    bytes[MEM_WEIGHTS] = layers * buffer_accounted_bytes(l.layer.bytes) +
                         buffer_accounted_bytes(l.rope_bytes) + buffer_accounted_bytes(l.head_norm_bytes);
    bytes[MEM_WEIGHTS] += l.has_embedding ? buffer_accounted_bytes(l.table_bytes) : 0;
    bytes[MEM_WEIGHTS] += l.has_head && !l.shares_table ? buffer_accounted_bytes(l.table_bytes) : 0;
    bytes[MEM_ADAPTERS] = train ? 2 * adapters : adapters;
    bytes[MEM_OPTIMIZER] = train ? 2 * adapters : 0;
    bytes[MEM_ACTIVATIONS] = l.slots * buffer_accounted_bytes(l.slot.bytes);
    bytes[MEM_BUFFERS] = buffer_accounted_bytes(l.workspace.bytes) + buffer_accounted_bytes(l.scalar_bytes);
    for (int i = 0; i < MEM_PURPOSES; i++)
        out->total += bytes[i];
    return 0;
}

uint64_t kv_cache_bytes(const struct stage_options *options, uint32_t tokens_max)
{
    struct stage_layout l;
    struct err err;
    if (stage_layout_init(&l, options, &err) != 0)
        return 0;
    return buffer_accounted_bytes(cache_layout_bytes(&l, tokens_max));
}
