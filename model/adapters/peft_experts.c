#include "model/adapters/peft_experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/adapters/peft_keys.h"
#include "model/shape/arch.h"
#include "model/shape/lora_sites.h"

static const char weights_name[] = "adapter_model.safetensors";

/* A or B of the adapter on a parameter of all experts. */
struct joined {
    struct peft_experts *all;
    char key[PEFT_KEY_BYTES];
    uint32_t layer, target, rank;
    uint32_t rows, columns; /* of one expert's matrix */
    char which;
    const struct safetensors_tensor *stored; /* splitting: the tensor in peft's file */
    struct safetensors_item *parts;          /* joining: [experts] each expert's own tensor */
};

/* One expert's matrix, or a tensor that is the same in both forms (joined is NULL). */
struct peft_part {
    struct peft_experts *all;
    struct joined *joined;
    uint32_t expert;
    char key[PEFT_KEY_BYTES];
    const struct safetensors_tensor *stored;
};

struct peft_experts {
    uint32_t experts;
    bool turned; /* rows of gate and up are in turn in gate_up_proj */
    struct joined *joined;
    uint32_t joined_count;
    struct peft_part *parts;
    struct safetensors_item *items;
    struct safetensors *file;
    /* the values of all experts of one tensor, as peft's file has them */
    const struct joined *cached;
    uint8_t *cache;
};

static void joined_set(struct peft_experts *all, const struct model_config *model,
                       const struct lora_sites *sites, struct joined *j)
{
    char name[ARCH_NAME_MAX], end[32];
    uint32_t outputs, inputs;
    bool inside = j->target == LORA_EXPERT_GATE_UP &&
                  lora_rank_at(sites, j->layer, (uint32_t)__builtin_ctz(LORA_EXPERT_DOWN)) > 0;
    lora_parameter_name(model, j->layer, j->target, name);
    snprintf(end, sizeof(end), "%s.lora_%c.weight", inside ? ".base_layer" : "", j->which);
    char *last = strrchr(name, '.');
    snprintf(last, sizeof(name) - (size_t)(last - name), "%s", end);
    (void)peft_name(model, name, j->key, sizeof(j->key)); /* both have room */
    lora_target_shape(model, j->layer, j->target, &outputs, &inputs);
    j->all = all;
    j->rank = lora_rank_at(sites, j->layer, (uint32_t)__builtin_ctz(j->target));
    j->rows = j->which == 'A' ? j->rank : outputs;
    j->columns = j->which == 'A' ? inputs : j->rank;
}

/* Makes the list of all joined tensors; *out is NULL when there is none. */
static int experts_create(const struct model_config *model, const struct lora_sites *sites,
                          struct peft_experts **out, struct err *err)
{
    *out = NULL;
    if (!(lora_sites_targets(sites) & LORA_EXPERTS))
        return 0;
    struct peft_experts *all = calloc(1, sizeof(*all));
    if (all)
        all->joined = calloc(4 * (size_t)model->layers, sizeof(*all->joined));
    if (!all || !all->joined) {
        free(all);
        return err_set(err, ERR_NOMEM, "no memory for the adapters of experts");
    }
    all->experts = model->experts;
    all->turned = arch_of(model->arch)->fused == ARCH_FUSED_TURNED;
    for (uint32_t i = 0; i < 4 * model->layers; i++) {
        struct joined one = {.layer = i / 4,
                             .target = i & 2 ? LORA_EXPERT_DOWN : LORA_EXPERT_GATE_UP,
                             .which = i & 1 ? 'B' : 'A'};
        if (lora_rank_at(sites, one.layer, (uint32_t)__builtin_ctz(one.target)) == 0)
            continue;
        joined_set(all, model, sites, &one);
        all->joined[all->joined_count++] = one;
    }
    *out = all;
    return 0;
}

void peft_experts_close(struct peft_experts *all)
{
    if (!all)
        return;
    for (uint32_t i = 0; i < all->joined_count; i++)
        free(all->joined[i].parts);
    safetensors_close(all->file);
    free(all->joined);
    free(all->parts);
    free(all->items);
    free(all->cache);
    free(all);
}

/* Writes peft's shape of a joined tensor. */
static void joined_shape(const struct joined *j, uint64_t shape[2])
{
    uint64_t experts = j->all->experts;
    shape[0] = j->which == 'A' ? experts * j->rows : j->rows;
    shape[1] = j->which == 'A' ? j->columns : experts * j->columns;
}

/* Returns the index in the joined tensor of value `at` of one expert's matrix. */
static uint64_t peft_experts_place_of(const struct joined *j, uint32_t expert, uint64_t at)
{
    if (j->which == 'A')
        return (uint64_t)expert * j->rows * j->columns + at;
    uint64_t row = at / j->columns, half = j->rows / 2;
    if (j->all->turned && j->target == LORA_EXPERT_GATE_UP)
        row = row < half ? 2 * row : 2 * (row - half) + 1;
    return (row * j->columns + at % j->columns) * j->all->experts + expert;
}

static int cache_room(const struct joined *j, uint64_t width, struct err *err)
{
    struct peft_experts *all = j->all;
    all->cached = NULL;
    free(all->cache);
    all->cache = malloc((size_t)j->rows * j->columns * all->experts * width);
    return all->cache ? 0 : err_set(err, ERR_NOMEM, "no memory for the experts of %s", j->key);
}

static void expert_key(const struct model_config *model, const struct joined *j, uint32_t expert,
                       char key[PEFT_KEY_BYTES])
{
    char name[ARCH_NAME_MAX];
    lora_expert_name(model, j->layer, j->target, expert,
                     j->which == 'A' ? ".lora_A.weight" : ".lora_B.weight", name);
    (void)peft_name(model, name, key, PEFT_KEY_BYTES);
}

/* --- joining --- */

static int peft_experts_part_read(const struct safetensors_item *item, size_t size, uint8_t *dst,
                                  struct err *err)
{
    if (!item->data)
        return item->fill(item->arg, 0, size, dst, err);
    memcpy(dst, item->data, size);
    return 0;
}

/* Reads the matrices of all experts and puts them where peft has them. */
static int experts_gather(const struct joined *j, struct err *err)
{
    uint64_t width = tensor_type_block_bytes(j->parts[0].type), count = (uint64_t)j->rows * j->columns;
    uint8_t *one = malloc((size_t)(count * width));
    int status = one ? cache_room(j, width, err) : err_set(err, ERR_NOMEM, "no memory for an expert");
    for (uint32_t e = 0; status == 0 && e < j->all->experts; e++) {
        status = peft_experts_part_read(&j->parts[e], (size_t)(count * width), one, err);
        for (uint64_t i = 0; status == 0 && i < count; i++)
            memcpy(j->all->cache + peft_experts_place_of(j, e, i) * width, one + i * width, (size_t)width);
    }
    free(one);
    j->all->cached = status == 0 ? j : NULL;
    return status;
}

static int joined_fill(void *arg, uint64_t offset, size_t size, void *dst, struct err *err)
{
    const struct joined *j = arg;
    if (j->all->cached != j && experts_gather(j, err) < 0)
        return -1;
    memcpy(dst, j->all->cache + offset, size);
    return 0;
}

static int peft_experts_items_by_name(const void *a, const void *b)
{
    return strcmp(((const struct safetensors_item *)a)->name, ((const struct safetensors_item *)b)->name);
}

/* Takes the items of all experts for a joined tensor; their rank in items becomes 0. */
static int parts_take(const struct model_config *model, struct joined *j, struct safetensors_item *items,
                      uint32_t count, struct err *err)
{
    j->parts = calloc(model->experts, sizeof(*j->parts));
    if (!j->parts)
        return err_set(err, ERR_NOMEM, "no memory for the adapters of experts");
    for (uint32_t e = 0; e < model->experts; e++) {
        char key[PEFT_KEY_BYTES];
        const struct safetensors_item wanted = {.name = key};
        expert_key(model, j, e, key);
        struct safetensors_item *item =
            bsearch(&wanted, items, count, sizeof(*items), peft_experts_items_by_name);
        if (!item || item->rank != 2 || item->shape[0] != j->rows || item->shape[1] != j->columns ||
            (e > 0 && item->type != j->parts[0].type))
            return err_set(err, ERR_INVALID, "the tensor \"%s\" is missing, or not %u x %u", key, j->rows,
                           j->columns);
        j->parts[e] = *item;
        item->rank = 0;
    }
    return 0;
}

int peft_experts_join(const struct model_config *model, const struct lora_sites *sites,
                      struct safetensors_item *items, uint32_t *count, struct peft_experts **experts,
                      struct err *err)
{
    if (experts_create(model, sites, experts, err) < 0)
        return -1;
    uint32_t kept = 0;
    if (*count > 0)
        qsort(items, *count, sizeof(*items), peft_experts_items_by_name);
    for (uint32_t i = 0; *experts && i < (*experts)->joined_count; i++)
        if (parts_take(model, &(*experts)->joined[i], items, *count, err) < 0) {
            peft_experts_close(*experts);
            *experts = NULL;
            return -1;
        }
    if (!*experts)
        return 0;
    for (uint32_t i = 0; i < *count; i++)
        if (items[i].rank > 0)
            items[kept++] = items[i];
    for (uint32_t i = 0; i < (*experts)->joined_count; i++) {
        struct joined *j = &(*experts)->joined[i];
        items[kept] = (struct safetensors_item){
            .name = j->key, .type = j->parts[0].type, .rank = 2, .fill = joined_fill, .arg = j};
        joined_shape(j, items[kept++].shape);
    }
    *count = kept;
    qsort(items, kept, sizeof(*items), peft_experts_items_by_name);
    return 0;
}

/* --- splitting --- */

static int peft_experts_part_fill(void *arg, uint64_t offset, size_t size, void *dst, struct err *err)
{
    struct peft_part *part = arg;
    struct joined *j = part->joined;
    struct peft_experts *all = part->all;
    if (!j)
        return safetensors_read(all->file, part->stored, offset, size, dst, err);
    uint64_t width = tensor_type_block_bytes(j->stored->type);
    if (all->cached != j) {
        if (cache_room(j, width, err) < 0 ||
            safetensors_read(all->file, j->stored, 0, (size_t)j->stored->size, all->cache, err) < 0)
            return -1;
        all->cached = j;
    }
    for (uint64_t i = 0; i < size / width; i++)
        memcpy((uint8_t *)dst + i * width,
               all->cache + peft_experts_place_of(j, part->expert, offset / width + i) * width,
               (size_t)width);
    return 0;
}

static int stored_find(struct joined *j, struct err *err)
{
    uint64_t shape[2];
    const struct safetensors_tensor *t = j->stored = peft_find(j->all->file, j->key);
    if (!t)
        return err_set(err, ERR_INVALID, "%s: the tensor \"%s\" is missing, which target_parameters names",
                       weights_name, j->key);
    joined_shape(j, shape);
    if (t->rank != 2 || t->shape[0] != shape[0] || t->shape[1] != shape[1])
        return err_set(
            err, ERR_INVALID,
            "%s: the tensor \"%s\" is not %llu x %llu: it belongs to another base model, or to another r",
            weights_name, t->name, (unsigned long long)shape[0], (unsigned long long)shape[1]);
    return 0;
}

/* Adds a tensor of the file, or the matrices of all experts that it holds. */
static void parts_add(struct peft_experts *all, const struct model_config *model,
                      const struct safetensors_tensor *t, uint32_t *count)
{
    struct joined *j = NULL;
    for (uint32_t i = 0; i < all->joined_count; i++)
        j = all->joined[i].stored == t ? &all->joined[i] : j;
    for (uint32_t e = 0; e < (j ? all->experts : 1); e++, (*count)++) {
        struct peft_part *part = &all->parts[*count];
        struct safetensors_item *item = &all->items[*count];
        *part = (struct peft_part){.all = all, .joined = j, .expert = e, .stored = t};
        *item = (struct safetensors_item){
            .name = t->name, .type = t->type, .rank = t->rank, .fill = peft_experts_part_fill, .arg = part};
        memcpy(item->shape, t->shape, sizeof(item->shape));
        if (!j)
            continue;
        expert_key(model, j, e, part->key);
        item->name = part->key;
        item->shape[0] = j->rows;
        item->shape[1] = j->columns;
    }
}

int peft_experts_split(const struct model_config *model, const struct lora_sites *sites,
                       struct safetensors **weights, struct peft_experts **experts, struct err *err)
{
    struct peft_experts *all;
    struct safetensors *view = NULL;
    int status = experts_create(model, sites, experts, err);
    if (!*experts)
        return status;
    all = *experts;
    all->file = *weights;
    uint32_t stored = safetensors_count(*weights), count = 0;
    size_t most = (size_t)stored + (size_t)all->joined_count * all->experts;
    all->parts = calloc(most, sizeof(*all->parts));
    all->items = calloc(most, sizeof(*all->items));
    status = all->parts && all->items ? 0 : err_set(err, ERR_NOMEM, "no memory for the adapters of experts");
    for (uint32_t i = 0; status == 0 && i < all->joined_count; i++)
        status = stored_find(&all->joined[i], err);
    for (uint32_t i = 0; status == 0 && i < stored; i++)
        parts_add(all, model, safetensors_at(*weights, i), &count);
    if (status == 0)
        status = safetensors_open_items(all->items, count, &view, err);
    if (status == 0) {
        *weights = view;
        return 0;
    }
    all->file = NULL; /* the caller's, still */
    peft_experts_close(all);
    *experts = NULL;
    return -1;
}
