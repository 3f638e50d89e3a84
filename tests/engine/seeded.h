/* Small models with seeded random weights, for tests that splitting a model changes no result. */
#pragma once

#include "engine/trainer.h"

#include "common/rand.h"

/* A tied dense model. Its sizes are not round (k and v have 20 × 48 values), so that few tensors begin at a
 * multiple of a power of two. */
static const struct model_config seeded_dense = {
    .arch = MODEL_LLAMA,
    .hidden = 48,
    .layers = 3,
    .heads = 6,
    .kv_heads = 2,
    .head_dim = 10,
    .ffn = 120,
    .vocab = 101,
    .max_positions = 256,
    .norm_eps = 1e-5,
    .rope = {.theta = 10000, .kind = ROPE_DEFAULT, .factor = 1},
    .tied = true,
};

/* An untied model whose layers are all mixtures of experts, with biases of q, k and v and with norms of q and
 * k. */
static const struct model_config seeded_experts = {
    .arch = MODEL_QWEN3_MOE,
    .hidden = 40,
    .layers = 2,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 8,
    .ffn = 56,
    .vocab = 101,
    .max_positions = 256,
    .norm_eps = 1e-5,
    .rope = {.theta = 10000, .kind = ROPE_DEFAULT, .factor = 1},
    .qkv_bias = true,
    .qk_norm = 1,
    .experts = 7,
    .experts_active = 3,
    .expert_ffn = 120,
    .router_renormalise = true,
};

/* Reads weights as a weight_source whose context is the config. A row's values are a function of the tensor's
 * name and the row's number. */
static inline int seeded_read(void *context, const char *name, uint64_t begin, uint64_t end, float *dst,
                              struct err *err)
{
    const struct model_config *config = context;
    uint64_t columns = config->hidden;
    (void)err;
    if (strstr(name, "norm") || strstr(name, "bias"))
        columns = 1;
    else if (strstr(name, "down_proj"))
        columns = strstr(name, "experts") ? config->expert_ffn : config->ffn;
    else if (strstr(name, "o_proj"))
        columns = (uint64_t)config->heads * config->head_dim;
    uint64_t hash = 0;
    for (const char *c = name; *c != '\0'; c++)
        hash = hash * 131 + (uint8_t)*c;
    for (uint64_t row = begin; row < end; row++) {
        struct rand_stream stream;
        rand_stream_init(&stream, hash, row);
        for (uint64_t i = 0; i < columns; i++) {
            double normal = rand_stream_normal(&stream);
            dst[(row - begin) * columns + i] =
                (float)(columns > 1 ? 1.05 / sqrt((double)columns) * normal : 1 + 0.1 * normal);
        }
    }
    return 0;
}

static inline struct weight_source seeded_source(const struct model_config *config)
{
    return (struct weight_source){.read = seeded_read, .context = (void *)(uintptr_t)config};
}

enum { SEEDED_TOKENS = 41, SEEDED_ROWS = 4 };

/* Makes a micro-batch of rows [first, first + rows) of a batch of four. Its arrays live until the next call
 * with the same `first`. */
static inline void seeded_batch(struct micro_batch *mb, uint32_t first, uint32_t rows, uint64_t step)
{
    static const uint32_t starts[SEEDED_ROWS + 1] = {0, 13, 14, 30, SEEDED_TOKENS};
    static const uint32_t row_ids[SEEDED_ROWS] = {7, 3, 9, 100};
    static uint32_t cuts[SEEDED_ROWS][SEEDED_ROWS + 1];
    static int32_t ids[SEEDED_TOKENS], labels[SEEDED_TOKENS];
    uint32_t *cut = cuts[first];
    for (int i = 0; i < SEEDED_TOKENS; i++) {
        ids[i] = (i * 37 + 5) % 101;
        labels[i] = i % 3 == 0 ? -100 : ids[i];
    }
    for (uint32_t i = 0; i <= rows; i++)
        cut[i] = starts[first + i] - starts[first];
    *mb = (struct micro_batch){.rows = rows,
                               .row_ids = row_ids + first,
                               .row_start = cut,
                               .ids = ids + starts[first],
                               .labels = labels + starts[first],
                               .step = step,
                               .index = first};
}

static inline const struct step_update *seeded_update(void)
{
    static const struct step_update update = {.learning_rate = 1e-2,
                                              .beta1 = 0.9,
                                              .beta2 = 0.95,
                                              .eps = 1e-8,
                                              .weight_decay = 0.1,
                                              .grad_scale = 0.01};
    return &update;
}
