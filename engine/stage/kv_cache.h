/* The KV cache of one sequence in one stage: for each layer keys and values [2][tokens_max, kv], or what a
 * layer without attention keeps: the convolution's last inputs and a gated delta net's state. f32. */
#ifndef MOTLEY_ENGINE_STAGE_KV_CACHE_H
#define MOTLEY_ENGINE_STAGE_KV_CACHE_H

#include "engine/stage/stage_state.h"

struct kv_cache {
    struct stage *stage;
    struct buffer *buffer;
    uint32_t tokens, tokens_max;
};

/* A layer's keys [tokens_max, kv], as wide as its plan's heads.kv; layers count from 0 within the stage. */
struct operand kv_cache_keys(const struct kv_cache *cache, uint32_t layer);
/* A layer's values [tokens_max, kv]; layers count from 0 within the stage. */
struct operand kv_cache_values(const struct kv_cache *cache, uint32_t layer);
/* What a layer without attention keeps: op_conv.past, and in a gated delta net op_delta.state. */
struct operand kv_cache_past(const struct kv_cache *cache, uint32_t layer);
struct operand kv_cache_state(const struct kv_cache *cache, uint32_t layer);

#endif
