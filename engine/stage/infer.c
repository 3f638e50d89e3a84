/* Inference with a KV cache, and the choice of a token from logits. */
#include "engine/stage/kv_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rand.h"
#include "engine/stage/boundary.h"
#include "engine/stage/head.h"
#include "engine/stage/layer.h"
#include "engine/stage/outside.h"
#include "engine/stage/slot.h"

static int infer_check(const struct stage *stage, const struct kv_cache *cache, const int32_t *ids,
                       uint32_t tokens, struct buffer *in, struct buffer *out, struct err *err)
{
    const struct footprint *l = &stage->layout;
    const struct stage_options *o = &stage->options;
    struct boundary_tensor enters = boundary_in(stage, o->block_begin, in),
                           leaves = boundary_out(stage, o->block_end, out);
    if (cache->stage != stage)
        return err_set(err, ERR_INVALID, "a KV cache of another stage");
    if (layer_part_set(&stage->options.part))
        return err_set(err, ERR_UNSUPPORTED, "a KV cache with parts of layers");
    if (tokens == 0 || tokens > stage->options.tokens_max)
        return err_set(err, ERR_TOO_BIG, "%u tokens at once; the stage was made for %u", tokens,
                       stage->options.tokens_max);
    if (tokens > cache->tokens_max - cache->tokens)
        return err_set(err, ERR_TOO_BIG, "the KV cache holds %u of %u tokens, no room for %u more",
                       cache->tokens, cache->tokens_max, tokens);
    if (l->has_embedding && ids == NULL)
        return err_set(err, ERR_INVALID, "inference at block 0 without token ids");
    for (uint32_t i = 0; l->has_embedding && i < tokens; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= l->model->shape.vocab)
            return err_set(err, ERR_INVALID, "token %u has id %d, the vocabulary is %u", i, ids[i],
                           l->model->shape.vocab);
    if (boundary_check(stage, &enters, tokens, 0, !l->has_embedding, "its input", err) != 0)
        return -1;
    return boundary_check(stage, &leaves, tokens, 0, !l->has_head, "its output", err);
}

static int infer_describe(struct stage *stage, const struct kv_cache *cache, const int32_t *ids,
                          uint32_t tokens, struct saved **out, struct err *err)
{
    const struct footprint_slot *l = &stage->layout.slot;
    struct saved *slot;
    if (slot_find(stage, &slot, err) != 0)
        return -1;
    uint32_t *positions = (uint32_t *)(void *)(slot->staging + l->positions);
    for (uint32_t i = 0; i < tokens; i++)
        positions[i] = cache->tokens + i;
    if (stage->layout.has_embedding)
        memcpy(slot->staging + l->ids, ids, 4ull * tokens);
    slot->tokens = tokens;
    slot->rows = 1;
    slot->labelled = 0;
    slot->router_scale = 0;
    *out = slot;
    return slot_write(slot, err);
}

static void infer_blocks(struct stage_pass *pass, const struct boundary_tensor *in, struct operand end)
{
    const struct stage *stage = pass->stage;
    const struct footprint *l = &stage->layout;
    uint32_t layers = l->layers;
    struct operand x = layers > 0 ? pass_x(pass, 0) : end;
    if (l->has_embedding)
        embed(pass, x);
    else
        boundary_read(pass, in, x);
    for (uint32_t i = 0; i < layers; i++)
        layer_forward(pass, i, x, HALF_BOTH, i + 1 == layers ? end : x);
}

int stage_infer(struct stage *stage, struct kv_cache *cache, const int32_t *ids, uint32_t tokens,
                struct buffer *in, struct buffer *out, float *logits, struct err *err)
{
    const struct footprint *l = &stage->layout;
    struct saved *slot;
    if (infer_check(stage, cache, ids, tokens, in, out, err) != 0 ||
        blocks_bound(stage, stage->options.block_begin, stage->options.block_end, false, err) != 0 ||
        infer_describe(stage, cache, ids, tokens, &slot, err) != 0)
        return -1;
    struct stage_pass pass = {
        .stage = stage,
        .queue = {.device = stage->device, .err = err, .compute = stage->options.compute},
        .slot = slot,
        .tokens = tokens,
        .rows = 1,
        .cache = cache,
        .cache_begin = cache->tokens,
    };
    struct boundary_tensor enters = boundary_in(stage, stage->options.block_begin, in),
                           leaves = boundary_out(stage, stage->options.block_end, out);
    struct operand end = boundary_end(&pass, stage->options.block_end, &leaves);
    infer_blocks(&pass, &enters, end);
    if (!l->has_head && leaves.dtype != DTYPE_F32)
        boundary_write(&pass, end, &leaves);
    if (l->has_head && logits != NULL)
        head_logits(&pass, operand_skip(end, (uint64_t)(tokens - 1) * l->model->shape.hidden), 1);
    if (pass.queue.failed)
        return -1;
    cache->tokens += tokens;
    if (!l->has_head || logits == NULL)
        return 0;
    if (buffer_read(stage->workspace, l->workspace.logits, logits, 4ull * l->model->shape.vocab, err) != 0)
        return -1;
    return device_sync(stage->device, err);
}

int32_t sample_greedy(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

/* The k-th largest value, by quickselect on a copy. -INFINITY when k sets no bound or memory is short. */
static float threshold_of(const float *logits, uint32_t vocab, uint32_t k)
{
    if (k == 0 || k >= vocab)
        return -INFINITY;
    float *copy = malloc(4ull * vocab);
    if (copy == NULL)
        return -INFINITY;
    memcpy(copy, logits, 4ull * vocab);
    uint32_t low = 0, high = vocab - 1, want = k - 1;
    while (low < high) {
        float pivot = copy[low + (high - low) / 2];
        uint32_t i = low, j = high;
        while (i <= j) {
            while (copy[i] > pivot)
                i++;
            while (copy[j] < pivot)
                j--;
            if (i <= j) {
                float swap = copy[i];
                copy[i++] = copy[j];
                copy[j] = swap;
                if (j == 0)
                    break;
                j--;
            }
        }
        if (want <= j && j < high)
            high = j;
        else if (want >= i)
            low = i;
        else
            break;
    }
    float value = copy[want];
    free(copy);
    return value;
}

int32_t sample_seeded(const float *logits, uint32_t vocab, double temperature, uint32_t top_k, uint64_t seed,
                      uint64_t position)
{
    struct rand_stream stream;
    float bound = threshold_of(logits, vocab, top_k);
    double max = (double)logits[sample_greedy(logits, vocab)], total = 0;
    rand_stream_init(&stream, seed, position);
    for (uint32_t i = 0; i < vocab; i++)
        total += logits[i] >= bound ? exp(((double)logits[i] - max) / temperature) : 0;
    double left = rand_stream_unit(&stream) * total;
    int32_t last = sample_greedy(logits, vocab);
    for (uint32_t i = 0; i < vocab; i++) {
        if (!(logits[i] >= bound))
            continue;
        last = (int32_t)i;
        left -= exp(((double)logits[i] - max) / temperature);
        if (left < 0)
            break;
    }
    return last;
}
