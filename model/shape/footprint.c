/* Each layout is written as a sequence of calls that place one array behind the other; its size is where the
 * last one ends. */
#include "model/shape/footprint.h"

#include <string.h>

#include "model/shape/flat.h"
#include "model/shape/packing.h"

enum {
    FIXED = 4,                   /* bytes of an fp32 value or a 32-bit integer */
    HEAD_LOGIT_FLOATS = 6 << 20, /* target number of logits in memory at once (24 MiB of fp32) */
    HEAD_ROWS_MIN = 16,          /* least number of positions whose logits are in memory at once */
    /* one position per 8 of the head's inputs has its logits in memory, if that gives more */
    HEAD_ROWS_SHARE = 8
};

static uint64_t footprint_aligned(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Places an array [rows, width] of 4-byte values and returns its offset. */
static uint64_t footprint_take(uint64_t *at, uint64_t rows, uint64_t width)
{
    uint64_t begin = *at;
    *at += footprint_aligned(rows * width * FIXED);
    return begin;
}

static uint32_t footprint_larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint64_t larger64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static struct footprint_shape footprint_shape_of(const struct model_config *c)
{
    return (struct footprint_shape){
        .hidden = c->hidden,
        .ffn = c->experts ? footprint_larger(c->ffn, c->expert_ffn * c->experts_active) : c->ffn,
        .vocab = c->vocab,
        .layers = c->layers,
        .experts = c->experts,
        .delta_past = c->conv_taps
                          ? (c->conv_taps - 1) * c->hidden
                          : (MODEL_DELTA_TAPS - 1) * (2 * model_delta_keys(c) + model_delta_values(c)),
        .delta_state = model_delta_values(c) * c->delta_key_dim,
        .per_layer = c->per_layer,
        .tied = c->tied,
    };
}

struct layer_method footprint_lora(uint32_t rank, uint32_t targets, bool dropout)
{
    struct lora_sites sites = lora_sites_alike(rank, 0, targets);
    return footprint_sites(&sites, dropout);
}

struct layer_method footprint_sites(const struct lora_sites *sites, bool dropout)
{
    return (struct layer_method){.lora = *sites, .dropout = dropout && sites->ways > 0};
}

/* Checks that the file has quantised blocks when the base is to be kept packed. */
static int packing_check(const struct model_config *config, const struct layer_method *method,
                         struct err *err)
{
    if (method->full || method->base != LAYER_BASE_PACKED)
        return 0;
    if (config->packing.ways == 0 || packing_is_nf4(&config->packing) ||
        config->packing.ways > MODEL_PACKINGS_MAX)
        return err_set(err, ERR_UNSUPPORTED,
                       "method.base: packed, of a file whose layers are quantised in %u ways (1 to %d)",
                       config->packing.ways, MODEL_PACKINGS_MAX);
    return 0;
}

/* Gives every layer the number of its kind (layers with equal plans are of one kind), and makes each kind's
 * plan. */
static int kinds_make(struct footprint_model *m, const struct model_config *config,
                      const struct layer_method *method, struct err *err)
{
    uint32_t first[FOOTPRINT_KINDS_MAX], kinds = 0; /* the first layer of each kind */
    for (uint32_t i = 0; i < config->layers; i++) {
        uint32_t kind = 0;
        while (kind < kinds && !layer_alike(config, method, first[kind], i))
            kind++;
        if (kind == FOOTPRINT_KINDS_MAX)
            return err_set(err, ERR_UNSUPPORTED,
                           "the model's layers are of more than %d kinds under this method (method.base: "
                           "packed and method.rank_pattern make kinds)",
                           FOOTPRINT_KINDS_MAX);
        if (kind == kinds) {
            first[kinds++] = i;
            layer_plan_init(config, method, i, &m->kinds[kind]);
        }
        m->kind_of[i] = (uint8_t)kind;
        m->sparse_before[i + 1] = m->sparse_before[i] + model_layer_is_sparse(config, i);
    }
    m->kind_count = kinds;
    for (uint32_t kind = 0; kind < kinds; kind++)
        for (uint32_t i = 0; i < config->layers; i++)
            m->kind_before[kind][i + 1] = (uint16_t)(m->kind_before[kind][i] + (m->kind_of[i] == kind));
    return 0;
}

/* Returns how many positions' logits are in memory at once. Every chunk of logits reads the head's matrix
 * once more. With one position for every eight inputs, the products of a wide head are bound by arithmetic,
 * not by this reading, and the chunk takes an eighth of the bytes of that matrix in fp32. */
static uint32_t head_rows(const struct model_config *config)
{
    uint32_t rows = footprint_larger(HEAD_LOGIT_FLOATS / config->vocab, config->hidden / HEAD_ROWS_SHARE);
    return footprint_larger(HEAD_ROWS_MIN, rows / 16 * 16);
}

static void lends_make(struct footprint_model *m, const struct model_config *config)
{
    for (uint32_t i = 0; i < config->layers; i++) {
        uint32_t lender = model_layer_lender(config, i), k = 0;
        m->lender[i] = (uint16_t)lender;
        if (lender == i)
            continue;
        while (m->lends[k].width > 0 && m->lends[k].layer != lender)
            k++;
        m->lends[k] = (struct footprint_lent){
            .layer = lender, .width = 2 * model_layer_heads(config, lender).kv, .last = i};
    }
}

int footprint_model_init(const struct model_config *config, const struct layer_method *method,
                         struct footprint_model *m, struct err *err)
{
    struct model_config narrow = layer_part_config(config, &method->part);
    memset(m, 0, sizeof(*m));
    m->shape = footprint_shape_of(&narrow);
    m->method = *method;
    uint32_t least;
    lora_sites_ranks(&method->lora, &least, &m->rank);
    if (packing_check(config, method, err) < 0 || kinds_make(m, config, method, err) < 0)
        return -1;
    layer_embedding_init(config, method, &m->embedding);
    lends_make(m, config);
    layer_head_tensors(config, method, !config->tied, &m->head);
    layer_head_tensors(config, method, true, &m->head_alone);
    m->rotary = model_rotary(config, false) + (config->rope_local_set ? model_rotary(config, true) : 0);
    m->head_rows = head_rows(config);
    return 0;
}

const struct layer_plan *footprint_layer(const struct footprint_model *m, uint32_t layer)
{
    return &m->kinds[m->kind_of[layer]];
}

const struct layer_tensors *footprint_tensors(const struct footprint *f, uint32_t block)
{
    const struct footprint_model *m = f->model;
    if (block == 0)
        return &m->embedding.tensors;
    if (block <= m->shape.layers)
        return &footprint_layer(m, block - 1)->tensors;
    return m->shape.tied && !f->shares_table && !f->copies_table ? &m->head_alone : &m->head;
}

/* Returns the bytes that a layer with this plan keeps for a micro-batch of `tokens` tokens. */
static uint64_t footprint_kept_bytes(const struct layer_plan *plan, uint32_t tokens, bool split)
{
    return tokens * (plan->saved_bytes + (split ? plan->split_bytes : 0)) + plan->fixed_bytes;
}

/* Returns the number of layers of a kind among the stage's first `layers`. */
static uint32_t kind_layers(const struct footprint *f, uint32_t kind, uint32_t layers)
{
    const uint16_t *before = f->model->kind_before[kind];
    return before[f->layer_begin + layers] - before[f->layer_begin];
}

/* Returns the bytes that the stage's first `layers` layers keep. */
static uint64_t saves_bytes(const struct footprint *f, uint32_t layers)
{
    uint64_t bytes = 0;
    for (uint32_t kind = 0; kind < f->model->kind_count; kind++)
        bytes +=
            kind_layers(f, kind, layers) * footprint_kept_bytes(&f->model->kinds[kind], f->tokens, f->split);
    return bytes;
}

uint64_t footprint_save_bytes(const struct footprint *f, uint32_t layer)
{
    return footprint_kept_bytes(footprint_layer(f->model, layer), f->tokens, f->split);
}

uint64_t footprint_save_at(const struct footprint *f, uint32_t layer)
{
    return f->slot.saves + saves_bytes(f, layer - f->layer_begin) -
           saves_bytes(f, f->saves_from - f->layer_begin);
}

/* Places what passes by the residual stream. */
static void beside_place(struct footprint *f, const struct footprint_options *o, uint64_t *at)
{
    const struct footprint_model *m = f->model;
    struct footprint_slot *slot = &f->slot;
    slot->own = footprint_take(at, o->tokens, f->own_width);
    slot->own_d = footprint_take(at, f->own_learns ? o->tokens : 0, f->own_width);
    for (uint32_t k = 0; k < FOOTPRINT_LENT; k++) {
        slot->lent[k] = footprint_take(at, o->tokens, m->lends[k].width);
        slot->lent_d[k] = footprint_take(at, o->train ? o->tokens : 0, m->lends[k].width);
    }
    slot->embedding = *at;
    *at += f->has_embedding && f->own_learns ? footprint_kept_bytes(&m->embedding, f->tokens, false) : 0;
}

static void slot_place(struct footprint *f, const struct footprint_options *o)
{
    struct footprint_slot *slot = &f->slot;
    uint32_t hidden = f->model->shape.hidden;
    uint64_t at = 0;
    slot->ids = footprint_take(&at, o->tokens, 1);
    slot->positions = footprint_take(&at, o->tokens, 1);
    slot->row_ids = footprint_take(&at, o->tokens, 1);
    slot->row_start = footprint_take(&at, o->rows + 2ull, 1);
    slot->step = footprint_take(&at, 1, 1);
    slot->label_index = footprint_take(&at, o->labelled, 1);
    slot->targets = footprint_take(&at, o->labelled, 1);
    slot->label_positions = footprint_take(&at, f->head_drops ? o->labelled : 0, 1);
    slot->label_rows = footprint_take(&at, f->head_drops ? o->labelled : 0, 1);
    slot->meta_bytes = at;
    uint64_t x_bytes = footprint_aligned((uint64_t)o->tokens * hidden * FIXED);
    slot->x_stride = o->train ? x_bytes : 0;
    slot->x = at;
    at += x_bytes * (o->train ? f->layers : f->layers > 0);
    bool middles = o->train && o->recompute && layer_part_set(&f->model->method.part);
    slot->middle_stride = middles ? x_bytes : 0;
    slot->middle = at;
    at += slot->middle_stride * f->layers;
    slot->saves = at;
    at += saves_bytes(f, f->layers) - saves_bytes(f, f->saves_from - f->layer_begin);
    slot->head = footprint_take(&at, o->train && f->has_head ? o->labelled : 0, hidden);
    slot->router = footprint_take(&at, o->train ? 2ull * o->rows : 0, f->model->shape.experts);
    beside_place(f, o, &at);
    slot->bytes = at;
    f->slots = o->slots;
}

/* The largest need of any layer for each area of the workspace, in bytes. */
struct workspace_need {
    uint64_t inner, save, panel;
};

static void footprint_need_add(const struct footprint *f, const struct layer_plan *plan,
                               const struct footprint_options *o, struct workspace_need *need)
{
    uint64_t work = plan->forward_bytes;
    if (o->train && o->split)
        work = larger64(work, larger64(plan->backward_input.work_bytes, plan->backward_weight.work_bytes));
    if (o->train)
        work = larger64(work, plan->backward.work_bytes);
    need->inner = larger64(need->inner, work * f->tokens);
    need->save = larger64(
        need->save, f->saves_from == f->layer_begin ? 0 : footprint_kept_bytes(plan, f->tokens, f->split));
    need->panel = larger64(need->panel, plan->tensors.panel_bytes);
}

/* Returns the rank of the adapter on a table; 0: it has none. */
static uint32_t table_rank(const struct layer_tensors *tensors)
{
    return tensors->adapter > 0 ? tensors->list[tensors->adapter].rows : 0;
}

static void workspace_place(struct footprint *f, const struct footprint_options *o)
{
    const struct footprint_model *m = f->model;
    struct footprint_workspace *w = &f->workspace;
    uint32_t head = f->has_head ? f->head_rows : 0;
    struct workspace_need need = {0};
    uint64_t at = 0;
    for (uint32_t kind = 0; kind < m->kind_count; kind++)
        if (kind_layers(f, kind, f->layers) > 0)
            footprint_need_add(f, &m->kinds[kind], o, &need);
    if (f->has_head)
        need.panel =
            larger64(need.panel, f->shares_table || f->copies_table ? m->embedding.tensors.panel_bytes
                                                                    : m->head_alone.panel_bytes);
    if (f->has_embedding && f->own_width > 0) {
        footprint_need_add(f, &m->embedding, o, &need);
        need.save =
            larger64(need.save, f->own_learns ? 0 : footprint_kept_bytes(&m->embedding, f->tokens, false));
    }
    w->d = footprint_take(&at, o->tokens, m->shape.hidden);
    w->inner = at;
    at += need.inner;
    w->save = at;
    at += need.save;
    w->embedded = footprint_take(&at, f->has_embedding && f->own_learns ? o->tokens : 0, m->shape.hidden);
    w->panel = footprint_take(&at, need.panel / FIXED, 1);
    w->logits = footprint_take(&at, head, m->shape.vocab);
    w->head_x = footprint_take(&at, head, m->shape.hidden);
    w->head_n = footprint_take(&at, head, m->shape.hidden);
    w->head_z = footprint_take(&at, head, 2ull * table_rank(&m->head));
    w->head_dropped = footprint_take(&at, f->head_drops ? head : 0, m->shape.hidden);
    w->embed_z =
        footprint_take(&at, f->has_embedding ? f->tokens : 0, 2ull * table_rank(&m->embedding.tensors));
    w->bytes = at;
}

uint32_t footprint_cache_owner(const struct footprint *f, uint32_t layer)
{
    const uint16_t *lender = f->model->lender;
    uint32_t owner = lender[layer];
    if (owner >= f->layer_begin)
        return owner;
    owner = f->layer_begin;
    while (lender[owner] != lender[layer])
        owner++;
    return owner;
}

uint32_t footprint_crossing(const struct footprint_model *m, uint32_t block, bool gradient)
{
    uint32_t next = block - 1, values = 0; /* the first layer behind the boundary */
    if (!gradient || m->embedding.tensors.parameters > 0)
        values = (m->shape.layers - next) * m->shape.per_layer;
    for (uint32_t k = 0; k < FOOTPRINT_LENT; k++)
        values += m->lends[k].layer < next && next <= m->lends[k].last ? m->lends[k].width : 0;
    return values;
}

uint32_t footprint_crossing_most(const struct footprint_model *m, uint32_t begin, uint32_t end, bool gradient)
{
    uint32_t most = 0;
    for (uint32_t block = begin; block <= end; block++)
        most = footprint_larger(most, footprint_crossing(m, block, gradient));
    return most;
}

uint64_t footprint_cache_bytes(const struct footprint *f, uint32_t tokens)
{
    return footprint_cache_at(f, tokens, f->layers);
}

uint64_t footprint_cache_at(const struct footprint *f, uint32_t tokens, uint32_t layers)
{
    const struct footprint_shape *s = &f->model->shape;
    uint64_t values = 0;
    for (uint32_t i = f->layer_begin; i < f->layer_begin + layers; i++) {
        const struct layer_plan *plan = footprint_layer(f->model, i);
        bool attends = plan->width[VALUE_MIXED] == 0 || plan->width[VALUE_LSE] > 0;
        if (footprint_cache_owner(f, i) == i)
            values += attends ? 2ull * tokens * plan->heads.kv : (uint64_t)s->delta_past + s->delta_state;
    }
    return values * FIXED;
}

/* A range of blocks: the counted bytes of its areas, and the number of its trained tensors. */
struct range_bytes {
    /* moments: bytes of one of AdamW's two moments; moments_largest: the same of the largest block */
    uint64_t frozen, trained, moments, moments_largest;
    uint32_t parameters;
};

static void blocks_add(struct range_bytes *kept, const struct footprint_alike *alike)
{
    const struct layer_tensors *tensors = alike->tensors;
    uint32_t count = alike->count;
    uint64_t moments = footprint_counted(tensors->moment_bytes);
    kept->frozen += count * footprint_counted(tensors->frozen_bytes);
    kept->trained += count * footprint_counted(tensors->trained_bytes);
    kept->moments += count * moments;
    kept->moments_largest = larger64(kept->moments_largest, count > 0 ? moments : 0);
    kept->parameters += count * tensors->parameters;
}

uint32_t footprint_alike(const struct footprint *f, uint32_t begin, uint32_t end,
                         struct footprint_alike list[FOOTPRINT_ALIKE_MAX])
{
    const struct footprint_model *m = f->model;
    uint32_t layers = m->shape.layers, first = begin > 1 ? begin - 1 : 0, last = end > 1 ? end - 1 : 0,
             count = 0;
    last = last < layers ? last : layers;
    for (uint32_t kind = 0; kind < m->kind_count && first < last; kind++) {
        uint32_t alike = (uint32_t)m->kind_before[kind][last] - m->kind_before[kind][first];
        if (alike > 0)
            list[count++] = (struct footprint_alike){&m->kinds[kind].tensors, alike};
    }
    if (begin == 0 && end > 0)
        list[count++] = (struct footprint_alike){&m->embedding.tensors, 1};
    if (begin < end && end == layers + 2)
        list[count++] = (struct footprint_alike){footprint_tensors(f, layers + 1), 1};
    return count;
}

/* Adds the areas and moments of the stage's blocks [begin, end). */
static void footprint_range_add(const struct footprint *f, uint32_t begin, uint32_t end,
                                struct range_bytes *kept)
{
    struct footprint_alike list[FOOTPRINT_ALIKE_MAX];
    uint32_t count = footprint_alike(f, begin, end, list);
    for (uint32_t i = 0; i < count; i++)
        blocks_add(kept, &list[i]);
}

void footprint_shard_add(struct footprint_shard *shard, const struct footprint_alike *alike, uint64_t begin,
                         uint64_t end, bool train, bool moments_on_host)
{
    uint64_t moments = train ? footprint_counted(flat_moment_bytes(alike->tensors, begin, end)) : 0;
    shard->adapters += alike->count * (train ? 2 : 1) * footprint_counted(end - begin);
    shard->pieces += (uint64_t)alike->count * flat_pieces(alike->tensors, begin, end, NULL);
    *(moments_on_host ? &shard->host : &shard->optimizer) += alike->count * 2 * moments;
    if (moments_on_host)
        shard->page = larger64(shard->page, moments);
}

/* Sums the areas and moments of the stage's blocks. `without` leaves out the blocks whose memory belongs to
 * another owner. */
static struct range_bytes range_bytes_of(const struct footprint *f, const struct footprint_options *o,
                                         bool without)
{
    struct range_bytes kept = {0};
    bool cut = without && o->outside_begin < o->outside_end;
    footprint_range_add(f, o->block_begin, cut ? o->outside_begin : o->block_end, &kept);
    if (cut)
        footprint_range_add(f, o->outside_end, o->block_end, &kept);
    return kept;
}

static void buffers_count(struct footprint *f, const struct footprint_options *o)
{
    const struct footprint_model *m = f->model;
    struct range_bytes frozen = range_bytes_of(f, o, o->outside_frozen),
                       trained = range_bytes_of(f, o, o->outside_trained);
    uint64_t moments = (o->train ? 2 : 0) * trained.moments;
    f->weights = frozen.frozen;
    f->adapters = (o->train ? 2 : 1) * trained.trained;
    f->optimizer = o->moments_on_host ? (o->train ? 2 : 0) * trained.moments_largest : moments;
    f->host = o->moments_on_host ? moments : 0;
    f->parameters = trained.parameters;
    f->rope_bytes = f->layers > 0 ? (uint64_t)o->positions * m->rotary * FIXED : 0;
    f->weights += footprint_counted(f->rope_bytes);
    f->scalar_bytes = 8 * (2 + (uint64_t)f->parameters);
    f->activations = o->slots * footprint_counted(f->slot.bytes);
    const struct layer_tensor *table = &m->embedding.tensors.list[0];
    f->table_bytes = f->copies_table ? footprint_aligned((uint64_t)table->rows * table->columns * FIXED) : 0;
    f->buffers = footprint_counted(f->workspace.bytes) + footprint_counted(f->scalar_bytes) +
                 (o->train ? 2 : 1) * footprint_counted(f->table_bytes);
}

/* Returns the first layer whose values the slots save; the layer behind the stage's last one if they save
 * none. */
static uint32_t saves_from(const struct footprint *f, const struct footprint_options *o)
{
    uint32_t first = f->layer_begin, end = f->layer_begin + f->layers,
             again = o->recompute_end ? o->recompute_end - 1 : end;
    if (o->train && !o->recompute)
        return first;
    again = o->train ? again : end;
    return again < first ? first : again < end ? again : end;
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
    f->copies_table =
        f->has_head && !f->has_embedding && m->shape.tied && m->embedding.tensors.list[0].trained;
    f->layer_begin = begin < end ? begin : end;
    f->layers = end - f->layer_begin;
    f->tokens = (o->tokens + LAYER_TOKENS_UNIT - 1) / LAYER_TOKENS_UNIT * LAYER_TOKENS_UNIT;
    f->head_rows = m->head_rows < o->tokens ? m->head_rows : o->tokens;
    f->saves_from = saves_from(f, o);
    f->split = o->train && o->split;
    f->head_drops = o->train && f->has_head && m->method.dropout && table_rank(&m->head) > 0;
    f->own_width = (layers - f->layer_begin) * m->shape.per_layer;
    f->own_learns = o->train && m->embedding.tensors.parameters > 0 && f->own_width > 0;
    slot_place(f, o);
    workspace_place(f, o);
    buffers_count(f, o);
}
