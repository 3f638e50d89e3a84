/* The KV cache of one sequence: create, destroy, and the addresses of a layer's keys and values. */
#include "engine/stage/kv_cache.h"

#include <stdlib.h>

#include "engine/stage/op_queue.h"

/* The operand `values` values behind the beginning of a layer's part. */
static struct operand cache_at(const struct kv_cache *cache, uint32_t layer, uint64_t values)
{
    return f32_at(cache->buffer,
                  footprint_cache_at(&cache->stage->layout, cache->tokens_max, layer) + 4 * values);
}

struct operand kv_cache_keys(const struct kv_cache *cache, uint32_t layer)
{
    return cache_at(cache, layer, 0);
}

struct operand kv_cache_values(const struct kv_cache *cache, uint32_t layer)
{
    const struct footprint *l = &cache->stage->layout;
    const struct layer_plan *plan = footprint_layer(l->model, l->layer_begin + layer);
    return cache_at(cache, layer, (uint64_t)cache->tokens_max * plan->heads.kv);
}

struct operand kv_cache_past(const struct kv_cache *cache, uint32_t layer)
{
    return cache_at(cache, layer, 0);
}

struct operand kv_cache_state(const struct kv_cache *cache, uint32_t layer)
{
    return cache_at(cache, layer, cache->stage->layout.model->shape.delta_past);
}

int kv_cache_create(struct stage *stage, uint32_t tokens_max, struct kv_cache **out, struct err *err)
{
    const struct footprint *l = &stage->layout;
    *out = NULL;
    if (tokens_max == 0 || tokens_max > stage->options.positions_max)
        return err_set(err, ERR_TOO_BIG, "a KV cache of %u tokens; the stage was made for %u positions",
                       tokens_max, stage->options.positions_max);
    struct kv_cache *cache = calloc(1, sizeof(*cache));
    if (!cache)
        return err_set(err, ERR_NOMEM, "out of memory for a KV cache's handle");
    cache->stage = stage;
    cache->tokens_max = tokens_max;
    uint64_t bytes = footprint_cache_bytes(l, tokens_max); /* 0 for a stage without layers */
    if (bytes > 0 &&
        buffer_create(stage->device, bytes, MEM_BUFFERS, "a KV cache", &cache->buffer, err) != 0) {
        free(cache);
        return -1;
    }
    *out = cache;
    return 0;
}

void kv_cache_destroy(struct kv_cache *cache)
{
    if (!cache)
        return;
    buffer_destroy(cache->buffer);
    free(cache);
}

void kv_cache_clear(struct kv_cache *cache)
{
    cache->tokens = 0;
}
