/* The tensors of a block: shapes, names, and offsets in its areas. */
#include "model/shape/layer_tensors.h"

#include <string.h>

#include "model/shape/flat.h"
#include "model/shape/packing.h"

enum {
    MOMENT8_VALUES_MIN = 4096, /* smaller tensors keep fp32 moments, as in bitsandbytes */
    NF4_BLOCK = 64,
    NF4_NEST = 256,
    PANEL_BYTES = 8 << 20 /* size of the piece of a packed matrix that is unpacked at once */
};

static uint64_t layer_tensors_aligned(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static uint64_t layer_tensors_values_of(const struct layer_tensor *tensor)
{
    return (uint64_t)tensor->rows * tensor->columns;
}

/* Returns the kind in which a base stores its matrices, for bases that store all of them in one kind. */
static enum pack_kind base_pack(const struct layer_method *method)
{
    switch (method->base) {
    case LAYER_BASE_BF16:
        return PACK_BF16;
    case LAYER_BASE_F16:
        return PACK_F16;
    case LAYER_BASE_NF4:
        return method->double_quant ? PACK_NF4_DOUBLE : PACK_NF4;
    case LAYER_BASE_F32:
    case LAYER_BASE_PACKED:
        break;
    }
    return PACK_F32;
}

static enum pack_kind matrix_pack(const struct tensor_maker *maker, uint32_t target)
{
    const struct model_packing *packing = &maker->config->packing;
    if (target == 0 || maker->method->full)
        return PACK_F32;
    enum pack_kind found =
        (enum pack_kind)packing->matrix[packing->layer[maker->layer]][__builtin_ctz(target)];
    bool kept = maker->method->base == LAYER_BASE_NF4 && found != PACK_NF4 && packing_is_nf4(packing);
    return kept || maker->method->base == LAYER_BASE_PACKED ? found : base_pack(maker->method);
}

/* Returns the kind of embedding or head. An NF4 base keeps them unquantised, in the dtype of the file. */
static enum pack_kind table_pack(const struct model_config *config, const struct layer_method *method,
                                 enum tensor_role role)
{
    if (method->base == LAYER_BASE_PACKED)
        return (enum pack_kind)(role == TENSOR_HEAD && !config->tied ? config->packing.head
                                                                     : config->packing.embedding);
    if (method->base != LAYER_BASE_NF4)
        return base_pack(method);
    return config->dtype == MODEL_BF16 ? PACK_BF16 : config->dtype == MODEL_F16 ? PACK_F16 : PACK_F32;
}

/* Returns the bytes of one copy and sets the offsets of its scales. */
static uint64_t packed_bytes(struct layer_tensor *tensor)
{
    uint64_t values = layer_tensors_values_of(tensor), blocks = (values + NF4_BLOCK - 1) / NF4_BLOCK;
    switch (tensor->pack) {
    case PACK_NF4:
        tensor->absmax = layer_tensors_aligned((values + 1) / 2);
        return tensor->absmax + 4 * blocks;
    case PACK_NF4_DOUBLE:
        tensor->absmax = layer_tensors_aligned((values + 1) / 2);
        tensor->scales = tensor->absmax + layer_tensors_aligned(blocks);
        return tensor->scales + 4 * (1 + (blocks + NF4_NEST - 1) / NF4_NEST);
    default:
        return pack_bytes(tensor->pack, values);
    }
}

static void moments_place(struct tensor_maker *maker, struct layer_tensor *tensor)
{
    struct layer_tensors *out = maker->out;
    uint64_t values = layer_tensors_values_of(tensor);
    out->moments8 = maker->method->moments8;
    bool table = tensor->role == TENSOR_EMBEDDING || tensor->role == TENSOR_PER_LAYER_TABLE;
    tensor->moments8 = out->moments8 && values >= MOMENT8_VALUES_MIN && !table;
    if (out->moments8)
        out->moment_bytes += flat_piece_moment_bytes(tensor, values) * tensor->copies;
    else
        out->moment_bytes = out->trained_bytes;
}

/* Places `count` tensors from `first` on one behind the other, copy after copy, so that the tensors of each
 * copy are one matrix. */
static void stack_place(struct tensor_maker *maker, uint32_t first, uint32_t count)
{
    struct layer_tensors *out = maker->out;
    uint64_t *area = out->list[first].trained ? &out->trained_bytes : &out->frozen_bytes;
    uint64_t begin = *area, stride = 0;
    for (uint32_t i = first; i < first + count; i++) {
        out->list[i].at = begin + stride;
        stride += packed_bytes(&out->list[i]);
    }
    uint32_t copies = out->list[first].copies;
    *area += layer_tensors_aligned(stride * copies);
    for (uint32_t i = first; i < first + count; i++) {
        struct layer_tensor *tensor = &out->list[i];
        tensor->stride = copies > 1 ? stride : 0;
        if (!tensor->trained)
            continue;
        out->parameters += copies;
        moments_place(maker, tensor);
    }
}

/* --- parts --- */

/* The side along which a part cuts a target's matrix: where the part begins, and the whole side's length. */
struct cut {
    bool rows, columns; /* the side that is cut; neither: the matrix is whole */
    uint32_t begin, whole;
};

static struct cut cut_of(const struct tensor_maker *maker, uint32_t target)
{
    const struct layer_part *part = &maker->method->part;
    const struct model_config *c = maker->whole;
    const struct model_heads h = model_layer_heads(c, maker->layer);
    uint32_t kv = h.head_dim, q = h.heads / h.kv_heads * kv;
    bool heads = part->kv_head_end > 0, ffn = part->column_end > 0;
    switch (target) {
    case LORA_Q:
        return (struct cut){.rows = heads, .begin = part->kv_head_begin * q, .whole = h.q};
    case LORA_K:
    case LORA_V:
        return (struct cut){.rows = heads, .begin = part->kv_head_begin * kv, .whole = h.kv};
    case LORA_O:
        return (struct cut){.columns = heads, .begin = part->kv_head_begin * q, .whole = h.q};
    case LORA_GATE:
    case LORA_UP:
        return (struct cut){.rows = ffn, .begin = part->column_begin, .whole = c->ffn};
    case LORA_DOWN:
        return (struct cut){.columns = ffn, .begin = part->column_begin, .whole = c->ffn};
    default:
        return (struct cut){0};
    }
}

/* Sets which rows and columns of the file's tensor the part has. */
static void part_place(const struct tensor_maker *maker, struct layer_tensor *tensor)
{
    struct cut cut = cut_of(maker, tensor->target);
    enum tensor_role role = tensor->role;
    tensor->whole_rows = tensor->rows;
    tensor->whole_columns = tensor->columns;
    if (cut.rows && (role == TENSOR_MATRIX || role == TENSOR_BIAS || role == TENSOR_LORA_B)) {
        tensor->row_begin = cut.begin;
        tensor->whole_rows = cut.whole;
    }
    if (cut.columns && (role == TENSOR_MATRIX || role == TENSOR_LORA_A)) {
        tensor->column_begin = cut.begin;
        tensor->whole_columns = cut.whole;
    }
    tensor->unnested = !layer_tensor_whole(tensor) && tensor->pack == PACK_NF4_DOUBLE;
    if (tensor->unnested)
        /* blocks of nested scales cross the cut, so the part's scales are not quantised */
        tensor->pack = PACK_NF4;
}

bool layer_tensor_whole(const struct layer_tensor *tensor)
{
    return tensor->rows == tensor->whole_rows && tensor->columns == tensor->whole_columns;
}

bool layer_tensor_alike(const struct layer_part *part, const struct layer_tensor *tensor)
{
    bool experts_apart = part->expert_end > 0 || part->holds == HOLDS_EXPERTS;
    return layer_tensor_whole(tensor) && !(tensor->expert && experts_apart);
}

bool layer_tensor_cut_fits(const struct layer_tensor *tensor, bool dropout)
{
    uint64_t unit = dropout && tensor->role == TENSOR_LORA_A ? LAYER_DROPOUT_UNIT
                    : tensor->trained                        ? 1
                                                             : pack_block(tensor->pack);
    uint64_t wide = tensor->whole_columns, end = (uint64_t)tensor->row_begin + tensor->rows;
    if (tensor->columns < wide)
        return wide % unit == 0 && tensor->column_begin % unit == 0 && tensor->columns % unit == 0;
    return tensor->row_begin * wide % unit == 0 && (end == tensor->whole_rows || end * wide % unit == 0);
}

static uint32_t tensor_add(struct tensor_maker *maker, struct layer_tensor tensor)
{
    struct layer_tensors *out = maker->out;
    part_place(maker, &tensor);
    out->list[out->count] = tensor;
    return out->count++;
}

int32_t tensor_vector(struct tensor_maker *maker, enum tensor_role role, uint32_t target, uint32_t rows)
{
    uint32_t at = tensor_add(maker, (struct layer_tensor){.role = role,
                                                          .target = target,
                                                          .rows = rows,
                                                          .columns = 1,
                                                          .copies = 1,
                                                          .vector = true,
                                                          .trained = maker->method->full});
    stack_place(maker, at, 1);
    return (int32_t)at;
}

int32_t tensor_norm(struct tensor_maker *maker, enum tensor_role role, uint32_t rows)
{
    int32_t at = tensor_vector(maker, role, 0, rows);
    if (maker->config->norm_bias)
        maker->out->list[tensor_vector(maker, role, 0, rows)].bias = true;
    return at;
}

int32_t tensor_conv(struct tensor_maker *maker, uint32_t channels, uint32_t taps)
{
    uint32_t at = tensor_add(maker, (struct layer_tensor){.role = TENSOR_DELTA_CONV,
                                                          .rows = channels,
                                                          .columns = taps,
                                                          .copies = 1,
                                                          .trained = maker->method->full});
    stack_place(maker, at, 1);
    return (int32_t)at;
}

int32_t tensor_router_bias(struct tensor_maker *maker)
{
    bool row = arch_of(maker->config->arch)->router_bias_row;
    uint32_t experts = maker->config->experts;
    uint32_t at = tensor_add(maker, (struct layer_tensor){.role = TENSOR_ROUTER_BIAS,
                                                          .rows = row ? 1 : experts,
                                                          .columns = row ? experts : 1,
                                                          .copies = 1,
                                                          .vector = !row});
    stack_place(maker, at, 1);
    return (int32_t)at;
}

int32_t tensor_layer_scale(struct tensor_maker *maker)
{
    uint32_t at = tensor_add(
        maker, (struct layer_tensor){
                   .role = TENSOR_LAYER_SCALE, .rows = 1, .columns = 1, .copies = 1, .vector = true});
    stack_place(maker, at, 1);
    return (int32_t)at;
}

static void panel_for(struct layer_tensors *out, const struct layer_tensor *tensor)
{
    uint64_t row = 4ull * tensor->columns, rows = PANEL_BYTES / row > 0 ? PANEL_BYTES / row : 1;
    /* A multiple of 64 rows is whole blocks of any packing, whatever the columns. */
    rows = rows > 64 ? rows / 64 * 64 : 64;
    uint64_t bytes = row * (rows < tensor->rows ? rows : tensor->rows);
    bool in_place = tensor->pack == PACK_F32 && !tensor->expert;
    if (!in_place && bytes > out->panel_bytes)
        out->panel_bytes = bytes;
}

static void matrices_make(struct tensor_maker *maker, uint32_t copies, struct layer_step *step)
{
    const struct layer_method *method = maker->method;
    uint32_t first = maker->out->count;
    step->stacked = true;
    for (uint32_t m = 0; m < step->member_count; m++) {
        struct layer_member *member = &step->members[m];
        enum pack_kind pack = matrix_pack(maker, member->target);
        member->matrix = (int32_t)tensor_add(
            maker, (struct layer_tensor){.role = member->target != 0               ? TENSOR_MATRIX
                                                 : step->out == VALUE_SHARED_SCORE ? TENSOR_SHARED_SCORE
                                                                                   : TENSOR_ROUTER,
                                         .target = member->target,
                                         .rows = member->outputs,
                                         .columns = step->inputs,
                                         .copies = copies,
                                         .expert = step->experts,
                                         .copy_begin = step->experts ? method->part.expert_begin : 0,
                                         .trained = method->full,
                                         .pack = pack});
        step->stacked = step->stacked && pack == PACK_F32;
    }
    if (step->stacked) {
        stack_place(maker, first, step->member_count);
        return;
    }
    for (uint32_t m = 0; m < step->member_count; m++) {
        struct layer_tensor *tensor = &maker->out->list[first + m];
        /* A copy's bytes are rounded up, so that the next copy is aligned. */
        uint64_t bytes = layer_tensors_aligned(packed_bytes(tensor));
        tensor->at = maker->out->frozen_bytes;
        tensor->stride = bytes;
        maker->out->frozen_bytes += bytes * copies;
        panel_for(maker->out, tensor);
    }
}

/* Returns the target of a member's adapter: that of its matrix, or of a tensor of all experts, which the
 * first of the step's members has for all of them. */
static uint32_t adapter_target(const struct tensor_maker *maker, const struct layer_step *step, uint32_t m)
{
    uint32_t own = step->members[m].target;
    uint32_t joined = own == LORA_DOWN ? LORA_EXPERT_DOWN : LORA_EXPERT_GATE_UP;
    if (!step->experts)
        return own;
    if (lora_rank_at(&maker->method->lora, maker->layer, (uint32_t)__builtin_ctz(joined)) > 0)
        return m == 0 ? joined : 0;
    return arch_of(maker->config->arch)->fused ? 0 : own;
}

static void adapters_make(struct tensor_maker *maker, uint32_t copies, struct layer_step *step)
{
    uint32_t first = maker->out->count, count = 0;
    uint32_t copy_begin = step->experts ? maker->method->part.expert_begin : 0;
    for (uint32_t m = 0; m < step->member_count; m++) {
        struct layer_member *member = &step->members[m];
        uint32_t target = adapter_target(maker, step, m);
        member->rank = target == 0 || maker->method->full ? 0
                                                          : lora_rank_at(&maker->method->lora, maker->layer,
                                                                         (uint32_t)__builtin_ctz(target));
        member->z = step->ranks;
        step->ranks += member->rank;
        if (member->rank == 0)
            continue;
        count++;
        member->a = (int32_t)tensor_add(maker, (struct layer_tensor){.role = TENSOR_LORA_A,
                                                                     .target = target,
                                                                     .rows = member->rank,
                                                                     .columns = step->inputs,
                                                                     .copies = copies,
                                                                     .expert = step->experts,
                                                                     .copy_begin = copy_begin,
                                                                     .trained = true});
    }
    if (count == 0)
        return;
    stack_place(maker, first, count);
    for (uint32_t m = 0; m < step->member_count; m++) {
        struct layer_member *member = &step->members[m];
        if (member->rank == 0)
            continue;
        uint32_t target = maker->out->list[member->a].target;
        uint32_t b = tensor_add(
            maker, (struct layer_tensor){.role = TENSOR_LORA_B,
                                         .target = target,
                                         .rows = target & LORA_EXPERTS ? step->outputs : member->outputs,
                                         .columns = member->rank,
                                         .copies = copies,
                                         .expert = step->experts,
                                         .copy_begin = copy_begin,
                                         .trained = true});
        member->b = (int32_t)b;
        stack_place(maker, b, 1);
    }
}

void tensor_linear(struct tensor_maker *maker, uint32_t copies, bool bias, struct layer_step *step)
{
    matrices_make(maker, copies, step);
    uint32_t first = maker->out->count;
    uint32_t copy_begin = step->experts ? maker->method->part.expert_begin : 0;
    for (uint32_t m = 0; m < step->member_count; m++) {
        struct layer_member *member = &step->members[m];
        member->bias = -1;
        if (bias)
            member->bias = (int32_t)tensor_add(maker, (struct layer_tensor){.role = TENSOR_BIAS,
                                                                            .target = member->target,
                                                                            .rows = member->outputs,
                                                                            .columns = 1,
                                                                            .copies = copies,
                                                                            .expert = step->experts,
                                                                            .copy_begin = copy_begin,
                                                                            .vector = true,
                                                                            .trained = maker->method->full});
    }
    if (bias)
        stack_place(maker, first, step->member_count);
    adapters_make(maker, copies, step);
    step->trains = maker->method->full || step->ranks > 0;
}

void tensor_table(struct tensor_maker *maker, enum tensor_role role, bool trained)
{
    const struct model_config *config = maker->config;
    bool per_layer = role == TENSOR_PER_LAYER_TABLE;
    trained = trained || maker->method->full;
    uint32_t at = tensor_add(
        maker,
        (struct layer_tensor){.role = role,
                              .rows = config->vocab,
                              .columns = per_layer ? config->layers * config->per_layer : config->hidden,
                              .copies = 1,
                              .trained = trained,
                              .pack = trained ? PACK_F32 : table_pack(config, maker->method, role)});
    stack_place(maker, at, 1);
    panel_for(maker->out, &maker->out->list[at]);
}

void tensor_table_adapter(struct tensor_maker *maker, uint32_t target)
{
    uint32_t rows, columns, rank = lora_rank_at(&maker->method->lora, 0, (uint32_t)__builtin_ctz(target));
    if (rank == 0 || maker->method->full)
        return;
    lora_target_shape(maker->config, 0, target, &rows, &columns);
    struct layer_tensor a = {.role = TENSOR_LORA_A,
                             .target = target,
                             .rows = rank,
                             .columns = columns,
                             .copies = 1,
                             .trained = true},
                        b = a;
    b.role = TENSOR_LORA_B;
    b.rows = rows;
    b.columns = rank;
    maker->out->adapter = tensor_add(maker, a);
    stack_place(maker, maker->out->adapter, 1);
    stack_place(maker, tensor_add(maker, b), 1);
}

void layer_head_tensors(const struct model_config *config, const struct layer_method *method, bool own_matrix,
                        struct layer_tensors *out)
{
    struct tensor_maker maker = {.config = config, .whole = config, .method = method, .out = out};
    memset(out, 0, sizeof(*out));
    tensor_norm(&maker, TENSOR_NORM_FINAL, config->hidden);
    if (config->head_bias)
        tensor_vector(&maker, TENSOR_BIAS, LORA_HEAD, config->vocab);
    if (own_matrix)
        tensor_table(&maker, TENSOR_HEAD, method->train_head || (config->tied && method->train_embedding));
    tensor_table_adapter(&maker, LORA_HEAD);
}

/* Returns the tensor's role in the table of architectures. */
static enum arch_tensor arch_tensor_of(const struct model_config *config, const struct layer_tensor *tensor)
{
    static const enum arch_tensor alone[TENSOR_LORA_B + 1] = {
        [TENSOR_EMBEDDING] = ARCH_EMBEDDING,
        [TENSOR_HEAD] = ARCH_HEAD,
        [TENSOR_NORM_FINAL] = ARCH_NORM_FINAL,
        [TENSOR_NORM_INPUT] = ARCH_NORM_INPUT,
        [TENSOR_NORM_ATT_POST] = ARCH_NORM_ATTENTION_POST,
        [TENSOR_NORM_FFN] = ARCH_NORM_FFN,
        [TENSOR_NORM_FFN_POST] = ARCH_NORM_FFN_POST,
        [TENSOR_NORM_DENSE_POST] = ARCH_NORM_DENSE_POST,
        [TENSOR_NORM_EXPERT] = ARCH_NORM_EXPERT,
        [TENSOR_NORM_EXPERT_POST] = ARCH_NORM_EXPERT_POST,
        [TENSOR_ROUTER_SCALE] = ARCH_ROUTER_SCALE,
        [TENSOR_EXPERT_SCALE] = ARCH_EXPERT_SCALE,
        [TENSOR_NORM_PER_LAYER] = ARCH_NORM_PER_LAYER,
        [TENSOR_PER_LAYER_TABLE] = ARCH_PER_LAYER_TABLE,
        [TENSOR_PER_LAYER_NORM] = ARCH_PER_LAYER_NORM,
        [TENSOR_NORM_Q] = ARCH_NORM_Q,
        [TENSOR_NORM_K] = ARCH_NORM_K,
        [TENSOR_NORM_Q_LATENT] = ARCH_NORM_Q_LATENT,
        [TENSOR_NORM_KV_LATENT] = ARCH_NORM_KV_LATENT,
        [TENSOR_ROUTER] = ARCH_ROUTER,
        /* of biases, only the router's has no target */
        [TENSOR_BIAS] = ARCH_ROUTER,
        [TENSOR_SINKS] = ARCH_SINKS,
        [TENSOR_LAYER_SCALE] = ARCH_LAYER_SCALE,
        [TENSOR_DELTA_CONV] = ARCH_DELTA_CONV,
        [TENSOR_DELTA_BIAS] = ARCH_DELTA_CONV,
        [TENSOR_DELTA_SKIP] = ARCH_DELTA_SKIP,
        [TENSOR_DELTA_DECAY] = ARCH_DELTA_DECAY,
        [TENSOR_DELTA_DT_BIAS] = ARCH_DELTA_DT_BIAS,
        [TENSOR_DELTA_NORM] = ARCH_DELTA_NORM,
        [TENSOR_ROUTER_BIAS] = ARCH_ROUTER_BIAS,
        [TENSOR_SHARED_SCORE] = ARCH_SHARED_SCORE};
    if (tensor->role == TENSOR_HEAD && config->tied)
        return ARCH_EMBEDDING;
    if (tensor->target == 0)
        return alone[tensor->role];
    if (tensor->target & LORA_TABLES)
        return tensor->target == LORA_HEAD ? ARCH_HEAD : ARCH_EMBEDDING;
    uint32_t bit = (uint32_t)__builtin_ctz(tensor->target);
    if (tensor->expert)
        return (enum arch_tensor)(ARCH_EXPERT_GATE + bit - (uint32_t)__builtin_ctz(LORA_GATE));
    return (enum arch_tensor)(ARCH_Q + bit);
}

void layer_tensor_name(const struct model_config *config, uint32_t layer, const struct layer_tensor *tensor,
                       uint32_t copy, char name[LAYER_NAME_MAX])
{
    bool bare = tensor->role == TENSOR_DELTA_DECAY || tensor->role == TENSOR_DELTA_DT_BIAS ||
                tensor->role == TENSOR_DELTA_SKIP || tensor->role == TENSOR_ROUTER_BIAS ||
                tensor->role == TENSOR_SINKS || tensor->role == TENSOR_LAYER_SCALE ||
                tensor->role == TENSOR_ROUTER_SCALE || tensor->role == TENSOR_EXPERT_SCALE;
    bool embedding = tensor->target == LORA_EMBEDDING; /* peft keeps it as a parameter, not as a module */
    bool bias = tensor->bias || tensor->role == TENSOR_BIAS || tensor->role == TENSOR_DELTA_BIAS;
    const char *suffix = bare                                         ? ""
                         : embedding && tensor->role == TENSOR_LORA_A ? ".lora_embedding_A"
                         : embedding                                  ? ".lora_embedding_B"
                         : bias                                       ? ".bias"
                         : tensor->role == TENSOR_LORA_A              ? ".lora_A.weight"
                         : tensor->role == TENSOR_LORA_B              ? ".lora_B.weight"
                                                                      : ".weight";
    if (tensor->target & LORA_EXPERTS)
        lora_expert_name(config, layer, tensor->target, tensor->copy_begin + copy, suffix, name);
    else
        arch_tensor_name(config->arch, arch_tensor_of(config, tensor), layer, tensor->copy_begin + copy,
                         suffix, name);
}
