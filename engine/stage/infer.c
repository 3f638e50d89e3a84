/* Inference with a KV cache, and the choice of a token from logits. */
#include "engine/stage/kv_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rand.h"
#include "engine/stage/beside.h"
#include "engine/stage/boundary.h"
#include "engine/stage/head.h"
#include "engine/stage/layer.h"
#include "engine/stage/outside.h"
#include "engine/stage/slot.h"

static bool infers_head(const struct stage *stage, const struct infer_pass *p)
{
    return stage_has_head(stage, p->block_end);
}

/* Does the stage hold what this pass (or this half of the pass's only layer) runs? A layer that the stage
 * holds in part runs one half a call. Where experts are on other ranks, a layer with experts runs only its
 * attention. */
static bool parts_fit(const struct stage *stage, const struct infer_pass *p, enum layer_half half)
{
    const struct layer_part *part = &stage->options.part;
    uint32_t layers = 0, apart = 0;
    for (uint32_t b = p->block_begin; b < p->block_end; b++) {
        bool layer = b > 0 && b <= stage->config.layers;
        layers += layer;
        apart += layer && model_layer_is_sparse(&stage->config, b - 1);
    }
    bool one = layers == 1 && p->block_end == p->block_begin + 1;
    if (part->holds == HOLDS_NO_EXPERTS)
        return half == HALF_BOTH ? apart == 0 : half == HALF_FIRST && one && apart == 1;
    if (!layer_part_set(part))
        return half == HALF_BOTH;
    return part->holds == HOLDS_ALL && (half == HALF_BOTH ? layers == 0 : one);
}

static int infer_check(const struct stage *stage, const struct kv_cache *cache, const struct infer_pass *p,
                       enum layer_half half, struct err *err)
{
    const struct stage_options *o = &stage->options;
    struct boundary_tensor enters = boundary_in(stage, p->block_begin, p->in),
                           leaves = boundary_out(stage, p->block_end, p->out);
    if (cache->stage != stage)
        return err_set(err, ERR_INVALID, "a KV cache of another stage");
    if (!parts_fit(stage, p, half))
        return err_set(err, ERR_UNSUPPORTED, "a KV cache with parts of layers");
    if (p->block_begin < o->block_begin || p->block_end > o->block_end || p->block_begin >= p->block_end)
        return err_set(err, ERR_INVALID, "stage of blocks %u..%u: blocks %u..%u are asked of it",
                       o->block_begin, o->block_end, p->block_begin, p->block_end);
    if (p->tokens == 0 || p->tokens > o->tokens_max)
        return err_set(err, ERR_TOO_BIG, "%u tokens at once; the stage was made for %u", p->tokens,
                       o->tokens_max);
    if (p->tokens > cache->tokens_max - cache->tokens)
        return err_set(err, ERR_TOO_BIG, "the KV cache holds %u of %u tokens, no room for %u more",
                       cache->tokens, cache->tokens_max, p->tokens);
    if (p->block_begin == 0 && !p->ids)
        return err_set(err, ERR_INVALID, "inference at block 0 without token ids");
    for (uint32_t i = 0; p->block_begin == 0 && i < p->tokens; i++)
        if (p->ids[i] < 0 || (uint32_t)p->ids[i] >= stage->config.vocab)
            return err_set(err, ERR_INVALID, "token %u has id %d, the vocabulary is %u", i, p->ids[i],
                           stage->config.vocab);
    if (boundary_check(stage, &enters, p->tokens, beside_values(stage, p->block_begin, p->tokens, false),
                       p->block_begin > 0, "its input", err) != 0)
        return -1;
    return boundary_check(stage, &leaves, p->tokens, beside_values(stage, p->block_end, p->tokens, false),
                          !infers_head(stage, p), "its output", err);
}

static int infer_describe(struct stage *stage, const struct kv_cache *cache, const struct infer_pass *p,
                          struct saved **out, struct err *err)
{
    const struct footprint_slot *l = &stage->layout.slot;
    struct saved *slot;
    if (slot_find(stage, &slot, err) != 0)
        return -1;
    uint32_t *positions = (uint32_t *)(void *)(slot->staging + l->positions);
    for (uint32_t i = 0; i < p->tokens; i++)
        positions[i] = cache->tokens + i;
    uint32_t *row_start = (uint32_t *)(void *)(slot->staging + l->row_start);
    row_start[0] = 0;
    row_start[1] = p->tokens;
    if (p->block_begin == 0)
        memcpy(slot->staging + l->ids, p->ids, 4ull * p->tokens);
    slot->tokens = p->tokens;
    slot->rows = 1;
    slot->labelled = 0;
    slot->router_scale = 0;
    *out = slot;
    return slot_write(slot, err);
}

static void infer_queue(struct stage_pass *pass, const struct infer_pass *p, const struct boundary_tensor *in,
                        struct operand end)
{
    uint32_t first, after;
    pass_layers(pass->stage, p->block_begin, p->block_end, &first, &after);
    struct operand x = after > first ? pass_x(pass, 0) : end;
    if (p->block_begin == 0)
        pass_embed(pass, x);
    else
        boundary_read(pass, in, x);
    if (p->block_begin > 0)
        beside_move(pass, in, p->block_begin, false, true);
    for (uint32_t i = first; i < after; i++)
        layer_forward(pass, i, x, HALF_BOTH, i + 1 == after ? end : x);
}

/* Checks a pass and describes its tokens to the device. */
static int infer_begin(struct stage *stage, struct kv_cache *cache, const struct infer_pass *p,
                       enum layer_half half, struct stage_pass *pass, struct err *err)
{
    struct saved *slot;
    if (infer_check(stage, cache, p, half, err) != 0 ||
        blocks_bound(stage, p->block_begin, p->block_end, false, err) != 0 ||
        infer_describe(stage, cache, p, &slot, err) != 0)
        return -1;
    *pass = (struct stage_pass){
        .stage = stage,
        .queue = {.device = stage->device, .err = err, .compute = stage->options.compute},
        .slot = slot,
        .tokens = p->tokens,
        .rows = 1,
        .cache = cache,
        .cache_begin = cache->tokens,
    };
    return 0;
}

int stage_half_infer(struct stage *stage, struct kv_cache *cache, const struct infer_pass *p,
                     enum stage_half half, struct err *err)
{
    struct stage_pass pass;
    bool first = half == STAGE_HALF_ATTENTION;
    if (infer_begin(stage, cache, p, first ? HALF_FIRST : HALF_SECOND, &pass, err) != 0)
        return -1;
    uint32_t layer = p->block_begin - 1 - stage->layout.layer_begin, hidden = stage->config.hidden;
    struct operand x = pass_x(&pass, 0), middle = layer_value_at(&pass, layer, VALUE_MID);
    queue_copy(&pass.queue, p->tokens, hidden, f32_at(p->in, 0), hidden, first ? x : middle, hidden);
    layer_forward(&pass, layer, x, first ? HALF_FIRST : HALF_SECOND, f32_at(p->out, 0));
    if (first)
        queue_copy(&pass.queue, p->tokens, hidden, middle, hidden, f32_at(p->out, 0), hidden);
    if (pass.queue.failed)
        return -1;
    cache->tokens += !first && p->block_end == stage->options.block_end ? p->tokens : 0;
    return 0;
}

int stage_infer_blocks(struct stage *stage, struct kv_cache *cache, const struct infer_pass *p,
                       struct err *err)
{
    const struct footprint *l = &stage->layout;
    bool head = infers_head(stage, p);
    struct stage_pass pass;
    if (infer_begin(stage, cache, p, HALF_BOTH, &pass, err) != 0)
        return -1;
    struct boundary_tensor enters = boundary_in(stage, p->block_begin, p->in),
                           leaves = boundary_out(stage, p->block_end, p->out);
    struct operand end = boundary_end(&pass, p->block_end, &leaves);
    infer_queue(&pass, p, &enters, end);
    if (!head && leaves.dtype != DTYPE_F32)
        boundary_write(&pass, end, &leaves);
    if (!head)
        beside_move(&pass, &leaves, p->block_end, false, false);
    if (head && p->logits)
        head_logits(&pass, operand_skip(end, (uint64_t)(p->tokens - 1) * stage->config.hidden), 1);
    if (pass.queue.failed)
        return -1;
    cache->tokens += p->block_end == stage->options.block_end ? p->tokens : 0;
    if (!head || !p->logits)
        return 0;
    if (buffer_read(stage->workspace, l->workspace.logits, p->logits, 4ull * stage->config.vocab, err) != 0)
        return -1;
    return device_sync(stage->device, err);
}

int stage_infer(struct stage *stage, struct kv_cache *cache, const int32_t *ids, uint32_t tokens,
                struct buffer *in, struct buffer *out, float *logits, struct err *err)
{
    struct infer_pass pass = {.block_begin = stage->options.block_begin,
                              .block_end = stage->options.block_end,
                              .ids = ids,
                              .tokens = tokens,
                              .in = in,
                              .out = out,
                              .logits = logits};
    return stage_infer_blocks(stage, cache, &pass, err);
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
    if (!copy)
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
