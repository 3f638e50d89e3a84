/* A step of training with random weights, as gpu_bench.c measures it and gpu_paper.c counts it: the shapes,
 * the options and the work of one step. Each program has one device. */
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/stage/stage.h"

enum { ROWS = 4 };

static struct device *device;
static struct err err;

static void must(int status)
{
    if (status == 0)
        return;
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

static const struct model_config shape_8b = {.arch = MODEL_LLAMA,
                                             .hidden = 4096,
                                             .layers = 32,
                                             .heads = 32,
                                             .kv_heads = 8,
                                             .head_dim = 128,
                                             .ffn = 14336,
                                             .vocab = 128256,
                                             .max_positions = 8192,
                                             .norm_eps = 1e-5,
                                             .dtype = MODEL_BF16,
                                             .rope = {.theta = 500000, .kind = ROPE_DEFAULT, .factor = 1}};
static const struct model_config shape_1b = {.arch = MODEL_LLAMA,
                                             .hidden = 2048,
                                             .layers = 16,
                                             .heads = 32,
                                             .kv_heads = 8,
                                             .head_dim = 64,
                                             .ffn = 8192,
                                             .vocab = 128256,
                                             .max_positions = 8192,
                                             .norm_eps = 1e-5,
                                             .dtype = MODEL_BF16,
                                             .rope = {.theta = 500000, .kind = ROPE_DEFAULT, .factor = 1},
                                             .tied = true};
static const struct model_config shape_toy = {.arch = MODEL_LLAMA,
                                              .hidden = 32,
                                              .layers = 2,
                                              .heads = 4,
                                              .kv_heads = 2,
                                              .head_dim = 8,
                                              .ffn = 64,
                                              .vocab = 96,
                                              .max_positions = 64,
                                              .norm_eps = 1e-5,
                                              .dtype = MODEL_BF16,
                                              .rope = {.theta = 10000, .kind = ROPE_DEFAULT, .factor = 1}};

/* Returns the number of columns of a matrix, by its name; 1 for a norm. */
static uint64_t weight_columns(const struct model_config *config, const char *name)
{
    return strstr(name, "norm")        ? 1
           : strstr(name, "down_proj") ? config->ffn
           : strstr(name, "o_proj")    ? (uint64_t)config->heads * config->head_dim
                                       : config->hidden;
}

struct timed_step {
    struct stage *stage;
    struct micro_batch batch;
    uint32_t starts[ROWS + 1], ids[ROWS];
    int32_t *text; /* [tokens]; owned */
    double loss;
};

static void step_run(void *context)
{
    struct timed_step *step = context;
    struct saved *saved;
    uint64_t labelled;
    double squares;
    must(stage_step_begin(step->stage, &err));
    must(stage_forward(step->stage, &step->batch, NULL, NULL, &saved, &err));
    must(stage_backward(step->stage, &step->batch, saved, NULL, NULL, &err));
    must(stage_loss(step->stage, &step->loss, &labelled, &err));
    must(stage_grad_square_sum(step->stage, &squares, &err));
    step->loss /= (double)labelled;
    double norm = sqrt(squares) / (double)labelled;
    struct step_update update = {.learning_rate = 1e-5,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .eps = 1e-8,
                                 .grad_scale = fmin(1, 1 / (norm + 1e-6)) / (double)labelled};
    must(stage_update(step->stage, &update, &err));
}

/* Returns the number of parameters of the matrices that every token is multiplied by: layers and head, but
 * not the embedding table. */
static double matmul_parameters(const struct model_config *c)
{
    double q = (double)c->heads * c->head_dim, kv = (double)c->kv_heads * c->head_dim;
    return c->layers * ((double)c->hidden * (2 * q + 2 * kv) + 3.0 * c->hidden * c->ffn) +
           (double)c->hidden * c->vocab;
}

/* Returns the FLOPs of a step: 4 for each parameter and token if matrices are frozen (forward, and the
 * gradient of the input), else 6; and causal attention forward, and twice that backward. Recomputation is not
 * counted. */
static double step_flops(const struct model_config *c, bool full, uint32_t rows, uint32_t length)
{
    double attention =
        3 * 4.0 * c->layers * c->heads * c->head_dim * rows * (double)length * (length + 1) / 2;
    return (full ? 6 : 4) * matmul_parameters(c) * rows * length + attention;
}

/* Completes the options of a stage with the whole model, and makes a micro-batch of ROWS rows. */
static void step_prepare(struct timed_step *step, struct stage_options *o, const struct model_config *config,
                         uint32_t length)
{
    const uint32_t tokens = ROWS * length;
    step->text = malloc(4ull * tokens);
    must(!step->text ? err_set(&err, ERR_NOMEM, "out of memory") : 0);
    for (uint32_t i = 0; i <= ROWS; i++)
        step->starts[i] = i * length;
    for (uint32_t i = 0; i < ROWS; i++)
        step->ids[i] = i;
    for (uint32_t i = 0; i < tokens; i++)
        step->text[i] = (int32_t)((i * 7919ull) % config->vocab);
    o->config = config;
    o->block_end = config->layers + 2;
    o->mode = STAGE_TRAIN;
    o->compute = DTYPE_BF16;
    o->double_quant = true;
    o->seed = 1;
    o->micro_batches_in_flight = 1;
    o->tokens_max = tokens;
    o->row_tokens_max = length;
    o->rows_max = ROWS;
    step->batch = (struct micro_batch){.rows = ROWS,
                                       .row_ids = step->ids,
                                       .row_start = step->starts,
                                       .ids = step->text,
                                       .labels = step->text};
}

/* The three ways of training that are measured; adapters are on all seven linear layers. */
static const struct lora_options step_lora = {
    .rank = 16, .alpha = 32, .targets = LORA_Q | LORA_K | LORA_V | LORA_O | LORA_GATE | LORA_UP | LORA_DOWN};

static struct stage_options step_method(const char *method)
{
    return strcmp(method, "full") == 0   ? (struct stage_options){.full = true}
           : strcmp(method, "lora") == 0 ? (struct stage_options){.lora = step_lora, .base = LAYER_BASE_BF16}
                                         : (struct stage_options){.lora = step_lora, .base = LAYER_BASE_NF4};
}

/* Predicts the stage's memory. If it does not fit into `room` bytes, as few layers as need be are recomputed,
 * from the first on, as plans do (planner/kind/replicas.c). Returns how many layers keep their values. */
static uint32_t step_fit(struct stage_options *o, uint64_t room, struct stage_memory *predicted)
{
    const uint32_t layers = o->config->layers;
    o->recompute = false;
    o->recompute_end = 0;
    must(stage_memory_predict(o, predicted, &err));
    o->recompute = predicted->total > room;
    for (uint32_t block = 2; block <= layers + 1 && predicted->total > room; block++) {
        o->recompute_end = block <= layers ? block : 0;
        must(stage_memory_predict(o, predicted, &err));
    }
    return !o->recompute ? layers : o->recompute_end ? layers + 1 - o->recompute_end : 0;
}
