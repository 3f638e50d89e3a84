/* Layouts are written once, as the order in which arrays are taken; sums follow from them. */
#include "model/footprint.h"

#include "model/blocks.h"

enum {
    FIXED = 4,                   /* bytes of what is fp32, or a number of 32 bits, in any method */
    HEAD_LOGIT_FLOATS = 6 << 20, /* logits held at once aim at this many values (24 MiB) … */
    HEAD_ROWS_MIN = 16           /* … but at least so many positions */
};

const struct footprint_item footprint_fp32 = {.weight = 4, .activation = 4, .moment = 4};

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* The place of an array [rows, width] of values of `item` bytes. */
static uint64_t take(uint64_t *at, uint64_t rows, uint64_t width, uint32_t item)
{
    uint64_t begin = *at;
    *at += aligned(rows * width * item);
    return begin;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static struct footprint_shape shape_of(const struct model_config *c)
{
    uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    return (struct footprint_shape){
        .hidden = c->hidden,
        .q_width = q,
        .kv_width = kv,
        .qkv_width = q + 2 * kv,
        .ffn = c->experts ? larger(c->ffn, c->expert_ffn * c->experts_active) : c->ffn,
        .router = c->experts ? c->experts + 2 * c->experts_active : 0,
        .vocab = c->vocab,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .layers = c->layers,
        .tied = c->tied,
    };
}

static void layer_place(struct footprint_model *m)
{
    const struct footprint_shape *s = &m->shape;
    struct footprint_layer *layer = &m->layer;
    uint32_t item = m->item.weight;
    uint64_t at = 0;
    layer->norm1 = take(&at, 1, s->hidden, item);
    layer->qkv = take(&at, s->qkv_width, s->hidden, item);
    layer->o = take(&at, s->hidden, s->q_width, item);
    layer->norm2 = take(&at, 1, s->hidden, item);
    layer->gate_up = take(&at, 2ull * s->ffn, s->hidden, item);
    layer->down = take(&at, s->hidden, s->ffn, item);
    layer->bytes = at;
}

static void groups_place(struct footprint_model *m, uint32_t targets)
{
    const struct footprint_shape *s = &m->shape;
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
    uint64_t at = 0;
    for (uint32_t i = 0; i < sizeof(members) / sizeof(members[0]) && m->rank > 0; i++) {
        if ((targets & members[i].target) == 0)
            continue;
        struct lora_group *group = &m->groups[members[i].group];
        group->members[group->count++] = (struct lora_member){.target = members[i].target,
                                                              .site = i,
                                                              .outputs = members[i].outputs,
                                                              .column = members[i].column};
        m->parameters += 2;
    }
    for (int g = 0; g < GROUP_COUNT; g++) {
        struct lora_group *group = &m->groups[g];
        group->inputs = inputs[g];
        group->a = take(&at, (uint64_t)group->count * m->rank, group->inputs, FIXED) / FIXED;
        for (uint32_t i = 0; i < group->count; i++)
            group->members[i].b = take(&at, group->members[i].outputs, m->rank, FIXED) / FIXED;
        m->group_members = larger(m->group_members, group->count);
        m->group_inputs = larger(m->group_inputs, group->count > 0 ? group->inputs : 0);
    }
    m->adapter_floats = at / FIXED;
}

struct footprint_model footprint_model_of(const struct model_config *config, struct footprint_item item,
                                          uint32_t rank, uint32_t targets, bool dropout)
{
    targets &= model_lora_targets(config);
    struct footprint_model m = {
        .shape = shape_of(config), .item = item, .rank = targets != 0 ? rank : 0, .dropout = dropout};
    layer_place(&m);
    groups_place(&m, targets);
    m.head_rows = larger(HEAD_ROWS_MIN, HEAD_LOGIT_FLOATS / config->vocab / 16 * 16);
    return m;
}

struct footprint_save footprint_save_of(const struct footprint_model *m, uint32_t tokens)
{
    const struct footprint_shape *s = &m->shape;
    struct footprint_save save;
    uint32_t item = m->item.activation;
    uint64_t at = 0;
    save.qkv = take(&at, tokens, s->qkv_width, item);
    save.att = take(&at, tokens, s->q_width, item);
    save.lse = take(&at, tokens, s->heads, FIXED);
    save.mid = take(&at, tokens, s->hidden, item);
    save.gate_up = take(&at, tokens, 2ull * s->ffn, item);
    save.router = take(&at, tokens, s->router, FIXED);
    for (int g = 0; g < GROUP_COUNT; g++)
        save.z[g] = take(&at, tokens, (uint64_t)m->groups[g].count * m->rank, item);
    save.bytes = at;
    return save;
}

static void slot_place(struct footprint *f, const struct footprint_options *o)
{
    struct footprint_slot *slot = &f->slot;
    uint32_t hidden = f->model->shape.hidden, item = f->model->item.activation;
    uint64_t at = 0;
    slot->ids = take(&at, o->tokens, 1, FIXED);
    slot->positions = take(&at, o->tokens, 1, FIXED);
    slot->row_ids = take(&at, o->tokens, 1, FIXED);
    slot->row_start = take(&at, o->rows + 1ull, 1, FIXED);
    slot->label_index = take(&at, o->labelled, 1, FIXED);
    slot->targets = take(&at, o->labelled, 1, FIXED);
    slot->meta_bytes = at;
    uint64_t x_bytes = aligned((uint64_t)o->tokens * hidden * item);
    slot->x_stride = o->train ? x_bytes : 0;
    slot->x = at;
    at += x_bytes * (o->train ? f->layers : f->layers > 0);
    slot->saves = at;
    slot->save_stride = o->train && !o->recompute ? footprint_save_of(f->model, o->tokens).bytes : 0;
    at += slot->save_stride * f->layers;
    slot->head = take(&at, o->train && f->has_head ? o->labelled : 0, hidden, item);
    slot->bytes = at;
    f->slots = o->slots;
}

static void workspace_place(struct footprint *f, const struct footprint_options *o)
{
    const struct footprint_model *m = f->model;
    const struct footprint_shape *s = &m->shape;
    struct footprint_workspace *w = &f->workspace;
    uint32_t item = m->item.activation;
    /* rows of what layers need, of what their backward needs, of the head's */
    uint32_t inner = f->layers > 0 ? o->tokens : 0, back = o->train ? inner : 0;
    uint32_t head = f->has_head ? f->head_rows : 0;
    uint64_t at = 0;
    w->norm = take(&at, inner, s->hidden, item);
    w->d = take(&at, o->tokens, s->hidden, item);
    /* dact is done with before datt and dqkv begin: they share its place */
    uint64_t act_end = at;
    w->act = take(&act_end, inner, larger(s->ffn, s->hidden), item);
    w->datt = take(&at, back, s->q_width, item);
    w->dqkv = take(&at, back, s->qkv_width, item);
    at = at > act_end ? at : act_end;
    w->delta = take(&at, back, s->heads, FIXED);
    w->dz = take(&at, back, (uint64_t)m->group_members * m->rank, item);
    w->drop = take(&at, m->dropout ? back : 0, m->group_inputs, item);
    w->act2 = take(&at, m->groups[GROUP_DOWN].count > 0 ? back : 0, s->ffn, item);
    w->save = at;
    at += o->recompute || !o->train ? footprint_save_of(m, inner).bytes : 0;
    w->logits = take(&at, head, s->vocab, FIXED);
    w->head_x = take(&at, head, s->hidden, item);
    w->head_n = take(&at, head, s->hidden, item);
    w->bytes = at;
}

uint64_t footprint_cache_bytes(const struct footprint *f, uint32_t tokens)
{
    return 2ull * f->layers * tokens * f->model->shape.kv_width * f->model->item.activation;
}

static void buffers_count(struct footprint *f, const struct footprint_options *o)
{
    const struct footprint_model *m = f->model;
    const struct footprint_shape *s = &m->shape;
    uint64_t values = m->adapter_floats * f->layers, moments = o->train ? 2 : 0;
    uint32_t tables = (uint32_t)f->has_embedding + (f->has_head && !f->shares_table);
    f->table_bytes = (uint64_t)s->vocab * s->hidden * m->item.weight;
    f->head_norm_bytes = f->has_head ? (uint64_t)s->hidden * m->item.weight : 0;
    f->rope_bytes = f->layers > 0 ? (uint64_t)o->positions * s->head_dim * FIXED : 0;
    f->adapter_bytes = values * FIXED;
    f->scalar_bytes = 8 * (1 + (uint64_t)m->parameters * f->layers);
    f->weights = f->layers * footprint_counted(m->layer.bytes) + tables * footprint_counted(f->table_bytes) +
                 footprint_counted(f->rope_bytes) + footprint_counted(f->head_norm_bytes);
    f->adapters = (o->train ? 2 : 1) * footprint_counted(f->adapter_bytes);
    f->optimizer = moments * footprint_counted(values * m->item.moment);
    f->activations = o->slots * footprint_counted(f->slot.bytes);
    f->buffers = footprint_counted(f->workspace.bytes) + footprint_counted(f->scalar_bytes);
}

void footprint_of(const struct footprint_model *m, const struct footprint_options *o, struct footprint *f)
{
    uint32_t layers = m->shape.layers;
    uint32_t begin = o->block_begin > 1 ? o->block_begin - 1 : 0;
    uint32_t end = o->block_end <= layers ? o->block_end - 1 : layers;
    f->model = m;
    f->has_embedding = o->block_begin == 0;
    f->has_head = o->block_end == layers + 2;
    f->shares_table = f->has_embedding && f->has_head && m->shape.tied;
    f->layer_begin = begin < end ? begin : end;
    f->layers = end - f->layer_begin;
    f->head_rows = m->head_rows < o->tokens ? m->head_rows : o->tokens;
    slot_place(f, o);
    workspace_place(f, o);
    buffers_count(f, o);
}
