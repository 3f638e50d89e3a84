/* Finds the bytes of a model's files that its blocks need. */
#include <stdlib.h>
#include <string.h>

#include "model/shape/blocks.h"
#include "model/shape/tensors.h"

struct collect {
    const struct model *model;
    struct model_range *ranges;
    uint32_t count;
};

static int count_range(const struct block_tensor *tensor, void *arg)
{
    (void)tensor;
    ((struct collect *)arg)->count += 1 + NF4_PARTS;
    return 0;
}

static int add_range(const struct block_tensor *tensor, void *arg)
{
    struct collect *c = arg;
    const struct model_tensor *t = model_tensor_find(c->model, tensor->name);
    if (t)
        c->ranges[c->count++] = (struct model_range){.file = t->file, .offset = t->offset, .size = t->size};
    for (int part = 0; t && t->nf4 && part < NF4_PARTS; part++) {
        const struct nf4_place *place = &t->nf4->parts[part];
        if (place->size > 0)
            c->ranges[c->count++] = (struct model_range){place->file, place->offset, place->size};
    }
    if (t && t->fused.scales.size > 0)
        c->ranges[c->count++] =
            (struct model_range){t->fused.scales.file, t->fused.scales.offset, t->fused.scales.size};
    return 0;
}

static int compare_range(const void *a, const void *b)
{
    const struct model_range *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static uint32_t merge_ranges(struct model_range *ranges, uint32_t count)
{
    uint32_t kept = 0;
    qsort(ranges, count, sizeof(*ranges), compare_range);
    for (uint32_t i = 0; i < count; i++) {
        struct model_range *last = kept ? &ranges[kept - 1] : NULL;
        if (last && last->file == ranges[i].file && ranges[i].offset <= last->offset + last->size) {
            uint64_t end = ranges[i].offset + ranges[i].size;
            if (end > last->offset + last->size)
                last->size = end - last->offset;
        } else {
            ranges[kept++] = ranges[i];
        }
    }
    return kept;
}

int model_block_ranges(const struct model *model, uint32_t block_begin, uint32_t block_end,
                       struct model_range **ranges, uint32_t *count, struct err *err)
{
    const struct model_config *c = model_get_config(model);
    struct collect collect = {.model = model};
    *ranges = NULL;
    *count = 0;
    if (block_begin > block_end || block_end > c->layers + 2)
        return err_set(err, ERR_INTERNAL, "blocks %u..%u of a model of %u blocks", block_begin, block_end,
                       c->layers + 2);
    model_block_tensors(c, block_begin, block_end, count_range, &collect);
    collect.ranges = calloc(collect.count + 1 + NF4_PARTS, sizeof(*collect.ranges));
    if (!collect.ranges)
        return err_set(err, ERR_NOMEM, "no memory for %u ranges", collect.count + 1);
    collect.count = 0;
    model_block_tensors(c, block_begin, block_end, add_range, &collect);
    if (c->tied && block_end == c->layers + 2 && block_begin > 0 && block_begin < block_end)
        model_block_tensors(c, 0, 1, add_range, &collect);
    *count = merge_ranges(collect.ranges, collect.count);
    *ranges = collect.ranges;
    return 0;
}
