/* A plain trainer in one process: the stages share one device and micro-batches run in order. It is the
 * reference with which tests compare golden values and splits. It fails its test by cmocka's assertions. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/err.h"
#include "common/file.h"
#include "common/json.h"
#include "engine/stage/stage.h"
#include "model/adapters/peft.h"
#include "model/shape/tensors.h"
#include "support/must.h"

enum { STAGES_MAX = 8, BATCHES_MAX = 64, ROWS_MAX = 16 };

/* One batch; its rows are concatenated. */
struct batch {
    uint32_t rows, row_start[ROWS_MAX + 1];
    int32_t *ids, *labels;
};

struct dataset {
    uint32_t count;
    struct batch batches[BATCHES_MAX];
};

static inline json_t *json_of(const char *path)
{
    json_error_t why;
    json_t *document = json_load_file(path, 0, &why);
    if (!document)
        fail_msg("%s: %s", path, why.text);
    return document;
}

/* Reads a batch from {"ids": [[…]…], "labels": [[…]…]}. */
static inline void batch_parse(json_t *document, struct batch *batch)
{
    json_t *ids = json_object_get(document, "ids"), *labels = json_object_get(document, "labels");
    batch->rows = (uint32_t)json_array_size(ids);
    assert_in_range(batch->rows, 1, ROWS_MAX);
    for (uint32_t row = 0; row < batch->rows; row++)
        batch->row_start[row + 1] =
            batch->row_start[row] + (uint32_t)json_array_size(json_array_get(ids, row));
    batch->ids = calloc(batch->row_start[batch->rows], sizeof(int32_t));
    batch->labels = calloc(batch->row_start[batch->rows], sizeof(int32_t));
    for (uint32_t row = 0, at = 0; row < batch->rows; row++)
        for (size_t i = 0; i < json_array_size(json_array_get(ids, row)); i++, at++) {
            batch->ids[at] = (int32_t)json_integer_value(json_array_get(json_array_get(ids, row), i));
            batch->labels[at] = (int32_t)json_integer_value(json_array_get(json_array_get(labels, row), i));
        }
}

static inline void dataset_parse(json_t *batches, struct dataset *data)
{
    memset(data, 0, sizeof(*data));
    data->count = (uint32_t)json_array_size(batches);
    assert_in_range(data->count, 1, BATCHES_MAX);
    for (uint32_t i = 0; i < data->count; i++)
        batch_parse(json_array_get(batches, i), &data->batches[i]);
}

static inline void dataset_free(struct dataset *data)
{
    for (uint32_t i = 0; i < data->count; i++) {
        free(data->batches[i].ids);
        free(data->batches[i].labels);
    }
}

struct train_options {
    const char *model, *adapter; /* folders or files; adapter may be NULL */
    const struct dataset *data;
    struct lora_options lora;
    bool full, double_quant;
    enum layer_base base;
    enum dtype compute;
    double loss_scale; /* 0: none */
    double router_aux;
    uint32_t steps, cuts[STAGES_MAX - 1], cut_count; /* cuts: the first blocks of stages 1, 2, … */
    uint32_t micro_batch_rows;                       /* 0: the whole batch */
    uint32_t warmup;
    double peak_lr, weight_decay;
    bool recompute, split;
    uint32_t part_blocks; /* the largest number of a stage's blocks that run in one call; 0: all */
    uint64_t seed;
    const char
        *gradients; /* the safetensors file with which the gradients of gradient_step are compared, or NULL */
    uint32_t gradient_step;
    double gradient_tolerance;
};

struct train_result {
    double loss[BATCHES_MAX], norm[BATCHES_MAX];
};

struct trainer {
    struct device *device;
    struct model *model;
    struct stage *stages[STAGES_MAX];
    struct buffer *activations[STAGES_MAX],
        *gradients[STAGES_MAX]; /* [stage] boundary tensors at the stage's input */
    struct buffer *between[2];  /* boundary tensors between a stage's parts, used alternately */
    uint32_t count;
    const struct train_options *options;
};

static inline void adapter_load(struct trainer *t, const char *dir)
{
    struct err err;
    struct peft *peft;
    check(peft_open(dir, model_get_config(t->model), &peft, &err));
    for (uint32_t s = 0; s < t->count; s++)
        for (uint32_t i = 0; i < stage_parameter_count(t->stages[s]); i++) {
            struct parameter p = stage_parameter_at(t->stages[s], i);
            uint64_t count = (uint64_t)p.rows * p.columns;
            float *values = malloc(4 * count);
            char key[160];
            snprintf(key, sizeof(key), "base_model.model.%s", p.name);
            const struct safetensors_tensor *tensor = peft_find(peft_tensors(peft), key);
            assert_non_null(tensor);
            check(safetensors_read_f32(peft_tensors(peft), tensor, values, count, &err));
            check(stage_state_write(t->stages[s], i, STATE_VALUE, values, &err));
            free(values);
        }
    peft_close(peft);
}

/* At least as many values as cross a boundary for a token: the stream, inputs of layers, and two layers' k
 * and v.
 */
static inline uint64_t boundary_width(const struct model_config *c)
{
    uint64_t kv = 2ull * c->kv_heads * c->head_dim + 2ull * c->full_kv_heads * c->full_head_dim;
    return c->hidden + (uint64_t)c->layers * c->per_layer + (c->kv_borrowers > 0 ? kv : 0);
}

static inline void trainer_init(struct trainer *t, struct device *device, const struct train_options *o)
{
    struct err err;
    uint32_t tokens_max = 1;
    memset(t, 0, sizeof(*t));
    t->device = device;
    t->options = o;
    check(model_open_path(o->model, &t->model, &err));
    for (uint32_t i = 0; i < o->data->count; i++) {
        const struct batch *b = &o->data->batches[i];
        tokens_max = b->row_start[b->rows] > tokens_max ? b->row_start[b->rows] : tokens_max;
    }
    const struct model_config *config = model_get_config(t->model);
    t->count = o->cut_count + 1;
    for (uint32_t s = 0; s < t->count; s++) {
        struct stage_options so = {
            .config = config,
            .block_begin = s == 0 ? 0 : o->cuts[s - 1],
            .block_end = s + 1 == t->count ? config->layers + 2 : o->cuts[s],
            .mode = STAGE_TRAIN,
            .lora = o->lora,
            .full = o->full,
            .base = o->base,
            .compute = o->compute,
            .double_quant = o->double_quant,
            .split = o->split,
            .seed = o->seed,
            .micro_batches_in_flight = 1,
            .tokens_max = tokens_max,
            .recompute = o->recompute,
        };
        check(stage_create(device, t->model, &so, &t->stages[s], &err));
        if (o->loss_scale != 0)
            check(stage_loss_scale_set(t->stages[s], o->loss_scale, &err));
        uint64_t bytes = 4ull * (tokens_max * boundary_width(config) + 2ull * ROWS_MAX * config->experts);
        check(buffer_create(device, bytes, MEM_BUFFERS, "boundary", &t->activations[s], &err));
        check(buffer_create(device, bytes, MEM_BUFFERS, "boundary", &t->gradients[s], &err));
    }
    for (int i = 0; i < 2 && o->part_blocks > 0; i++)
        check(buffer_create(device, 4ull * tokens_max * boundary_width(config), MEM_BUFFERS, "between",
                            &t->between[i], &err));
    if (o->adapter)
        adapter_load(t, o->adapter);
}

static inline void trainer_fini(struct trainer *t)
{
    buffer_destroy(t->between[0]);
    buffer_destroy(t->between[1]);
    for (uint32_t s = 0; s < t->count; s++) {
        buffer_destroy(t->activations[s]);
        buffer_destroy(t->gradients[s]);
        stage_destroy(t->stages[s]);
    }
    model_close(t->model);
}

/* Runs a stage's forward pass, in parts of part_blocks blocks (0: as a whole). */
static inline struct saved *stage_pass(struct trainer *t, uint32_t s, const struct micro_batch *mb,
                                       struct buffer *in, struct buffer *out)
{
    struct err err;
    struct saved *saved = NULL;
    struct stage_options has;
    uint32_t each = t->options->part_blocks;
    stage_options_get(t->stages[s], &has);
    if (each == 0) {
        check(stage_forward(t->stages[s], mb, in, out, &saved, &err));
        return saved;
    }
    for (uint32_t begin = has.block_begin, turn = 0; begin < has.block_end; begin += each, turn ^= 1) {
        bool last = has.block_end - begin <= each;
        struct buffer *next = last ? out : t->between[turn];
        check(stage_forward_blocks(t->stages[s], mb, begin, last ? has.block_end : begin + each, in, next,
                                   &saved, &err));
        in = next;
    }
    return saved;
}

/* Runs a stage's backward pass in parts; when it is split, first the input gradients of all parts and then
 * the weight gradients. */
static inline void stage_pass_back(struct trainer *t, uint32_t s, const struct micro_batch *mb,
                                   struct saved *saved, struct buffer *in, struct buffer *out)
{
    struct err err;
    struct stage_options has;
    uint32_t each = t->options->part_blocks;
    stage_options_get(t->stages[s], &has);
    if (each == 0) {
        check(stage_backward(t->stages[s], mb, saved, in, out, &err));
        return;
    }
    for (int weights = 0; weights <= has.split; weights++)
        for (uint32_t part = (has.block_end - has.block_begin + each - 1) / each; part-- > 0;) {
            uint32_t begin = has.block_begin + part * each,
                     end = has.block_end - begin < each ? has.block_end : begin + each;
            struct buffer *next = part == 0 ? out : t->between[part % 2];
            if (weights)
                check(stage_backward_weights(t->stages[s], mb, saved, begin, end, &err));
            else
                check(stage_backward_blocks(t->stages[s], mb, saved, begin, end, in, next, &err));
            in = next;
        }
}

static inline void micro_batch_run(struct trainer *t, const struct batch *b, uint32_t first, uint32_t rows,
                                   uint64_t step, double router_scale)
{
    struct saved *saved[STAGES_MAX];
    uint32_t row_start[ROWS_MAX + 1], row_ids[ROWS_MAX], begin = b->row_start[first];
    for (uint32_t i = 0; i <= rows; i++)
        row_start[i] = b->row_start[first + i] - begin;
    for (uint32_t i = 0; i < rows; i++)
        row_ids[i] = (uint32_t)step * ROWS_MAX + first + i;
    struct micro_batch mb = {.rows = rows,
                             .row_ids = row_ids,
                             .row_start = row_start,
                             .ids = b->ids + begin,
                             .labels = b->labels + begin,
                             .step = step,
                             .index = first,
                             .router_scale = router_scale};
    for (uint32_t s = 0; s < t->count; s++)
        saved[s] = stage_pass(t, s, &mb, s == 0 ? NULL : t->activations[s],
                              s + 1 == t->count ? NULL : t->activations[s + 1]);
    for (uint32_t s = t->count; s-- > 0;)
        stage_pass_back(t, s, &mb, saved[s], s + 1 == t->count ? NULL : t->gradients[s + 1],
                        s == 0 ? NULL : t->gradients[s]);
}

static inline double tensor_distance(const float *got, const float *want, uint64_t count, double factor)
{
    double difference = 0, norm = 0;
    for (uint64_t i = 0; i < count; i++) {
        double d = factor * (double)got[i] - (double)want[i];
        difference += d * d;
        norm += (double)want[i] * (double)want[i];
    }
    return norm == 0 ? sqrt(difference) : sqrt(difference / norm);
}

/* After Adam's first step, a value whose gradient was near eps (1e-8) has moved by the rounding of that
 * gradient, and rounding depends on the instruction set and on the BLAS. Over avx512, avx2 and sse42, one
 * tensor of a model was off by up to 1.3e-3 at the second step, others by 1e-4 at most; a wrong term would be
 * far above. */
#define GRADIENT_LOOSE 30

/* Compares the file's gradients of every tensor that a stage trains with the current gradients times
 * `factor`. One tensor may differ by GRADIENT_LOOSE times the tolerance. */
static inline void gradients_compare(struct trainer *t, double factor)
{
    struct err err;
    struct safetensors *st;
    uint32_t compared = 0, loose = 0;
    double worst = 0;
    check(safetensors_open_path(t->options->gradients, &st, &err));
    for (uint32_t s = 0; s < t->count; s++)
        for (uint32_t i = 0; i < stage_parameter_count(t->stages[s]); i++) {
            struct parameter p = stage_parameter_at(t->stages[s], i);
            const struct safetensors_tensor *tensor = safetensors_find(st, p.name);
            if (!tensor)
                continue;
            uint64_t count = (uint64_t)p.rows * p.columns;
            float *got = malloc(4 * count), *want = malloc(4 * count);
            check(safetensors_read_f32(st, tensor, want, count, &err));
            check(stage_state_read(t->stages[s], i, STATE_GRADIENT, got, &err));
            double distance = tensor_distance(got, want, count, factor);
            worst = fmax(worst, distance);
            loose += distance > t->options->gradient_tolerance;
            if (!(distance <= GRADIENT_LOOSE * t->options->gradient_tolerance) || loose > 1)
                fail_msg("gradient of %s is off by %.2e relative", p.name, distance);
            free(got);
            free(want);
            compared++;
        }
    print_message("    %u gradients, worst %.2e relative\n", compared, worst);
    assert_int_equal(compared, safetensors_count(st));
    safetensors_close(st);
}

/* Returns the golden runs' learning rate: it rises linearly over `warmup` steps, and then falls along a
 * cosine to 0.1 of the peak at step 20. */
static inline double golden_rate(const struct train_options *o, uint32_t step)
{
    if (step < o->warmup)
        return o->peak_lr * (step + 1) / o->warmup;
    return o->peak_lr * (0.1 + 0.9 * 0.5 * (1 + cos(M_PI * (step - o->warmup) / (20.0 - o->warmup))));
}

/* Returns the number of labels in the loss: all but -100 and each row's first. */
static inline double labelled_of(const struct batch *b)
{
    double count = 0;
    for (uint32_t row = 0; row < b->rows; row++)
        for (uint32_t t = b->row_start[row] + 1; t < b->row_start[row + 1]; t++)
            count += b->labels[t] != -100;
    return count;
}

/* For a tied model that is cut: sends the table's values from the stage with block 0 to the stage with the
 * copy before a step, and adds the copy's gradient to block 0's after it. */
static inline void table_exchange(struct trainer *t, bool after)
{
    struct err err;
    struct stage *first = t->stages[0], *last = t->stages[t->count - 1];
    uint64_t count = stage_table_values(last);
    uint32_t index;
    struct area_view table;
    if (count == 0)
        return;
    check(stage_table_view(last, after ? STATE_GRADIENT : STATE_VALUE, &table, &err));
    float *own = malloc(4 * count), *more = malloc(4 * count);
    check(stage_parameter_find(first, "model.embed_tokens.weight", &index, &err));
    check(stage_state_read(first, index, after ? STATE_GRADIENT : STATE_VALUE, own, &err));
    if (after) {
        check(buffer_read(table.buffer, table.at, more, 4 * count, &err));
        check(device_sync(t->device, &err));
        for (uint64_t i = 0; i < count; i++)
            own[i] += more[i];
        check(stage_state_write(first, index, STATE_GRADIENT, own, &err));
    } else {
        check(buffer_write(table.buffer, table.at, own, 4 * count, &err));
        check(device_sync(t->device, &err));
    }
    free(own);
    free(more);
}

static inline void step_run(struct trainer *t, uint32_t step, struct train_result *result)
{
    struct err err;
    const struct train_options *o = t->options;
    const struct batch *b = &o->data->batches[step % o->data->count];
    uint32_t rows = o->micro_batch_rows == 0 ? b->rows : o->micro_batch_rows;
    double loss = 0, squares = 0, part;
    uint64_t labelled = 0, count;
    for (uint32_t s = 0; s < t->count; s++)
        check(stage_step_begin(t->stages[s], &err));
    table_exchange(t, false);
    double router = o->router_aux * labelled_of(b) / b->row_start[b->rows], router_loss = 0;
    for (uint32_t first = 0; first < b->rows; first += rows)
        micro_batch_run(t, b, first, b->rows - first < rows ? b->rows - first : rows, step, router);
    table_exchange(t, true);
    for (uint32_t s = 0; s < t->count; s++) {
        check(stage_loss(t->stages[s], &part, &count, &err));
        loss += part;
        labelled += count;
        check(stage_grad_square_sum(t->stages[s], &part, &err));
        squares += part;
        check(stage_router_loss(t->stages[s], &part, &err));
        router_loss += part;
    }
    result->loss[step] = (loss + router * router_loss) / (double)labelled;
    result->norm[step] = sqrt(squares) / (double)labelled;
    if (o->gradients && step == o->gradient_step)
        gradients_compare(t, 1.0 / (double)labelled);
    struct step_update update = {
        .learning_rate = golden_rate(o, step),
        .beta1 = 0.9,
        .beta2 = 0.95,
        .eps = 1e-8,
        .weight_decay = o->weight_decay,
        .vector_decay = o->weight_decay,
        .grad_scale = fmin(1, 1 / (result->norm[step] + 1e-6)) / (double)labelled,
    };
    for (uint32_t s = 0; s < t->count; s++)
        check(stage_update(t->stages[s], &update, &err));
}

static inline void trainer_run(struct trainer *t, struct train_result *result)
{
    for (uint32_t step = 0; step < t->options->steps; step++)
        step_run(t, step, result);
}

/* Returns ‖got − want‖ / ‖want − base‖ over all adapter tensors, where `got` is trained, `want` is in the
 * folder `after` and `base` in `before`. With per_tensor, it fails the test when one tensor's relative
 * distance is more than the tolerance. */
static inline double adapter_distance(struct trainer *t, const char *after, const char *before,
                                      bool per_tensor, double tolerance)
{
    struct err err;
    struct trainer reference = *t;
    double difference = 0, moved = 0;
    for (uint32_t s = 0; s < t->count; s++)
        for (uint32_t i = 0; i < stage_parameter_count(t->stages[s]); i++) {
            struct parameter p = stage_parameter_at(t->stages[s], i);
            uint64_t count = (uint64_t)p.rows * p.columns;
            float *got = malloc(4 * count), *want = malloc(4 * count), *base = malloc(4 * count);
            char key[160], path[2048];
            struct safetensors *st;
            snprintf(key, sizeof(key), "base_model.model.%s", p.name);
            snprintf(path, sizeof(path), "%s/adapter_model.safetensors", after);
            check(safetensors_open_path(path, &st, &err));
            check(safetensors_read_f32(st, safetensors_find(st, key), want, count, &err));
            safetensors_close(st);
            snprintf(path, sizeof(path), "%s/adapter_model.safetensors", before);
            check(safetensors_open_path(path, &st, &err));
            check(safetensors_read_f32(st, safetensors_find(st, key), base, count, &err));
            safetensors_close(st);
            check(stage_state_read(reference.stages[s], i, STATE_VALUE, got, &err));
            for (uint64_t j = 0; j < count; j++) {
                double d = (double)got[j] - (double)want[j], m = (double)want[j] - (double)base[j];
                difference += d * d;
                moved += m * m;
            }
            double distance = tensor_distance(got, want, count, 1);
            if (per_tensor && !(distance <= tolerance))
                fail_msg("%s after training is off by %.2e relative", p.name, distance);
            free(got);
            free(want);
            free(base);
        }
    return sqrt(difference / moved);
}

static inline struct device *device_make(const char *kind, uint32_t threads)
{
    struct err err;
    struct device *device;
    check(device_open(&(struct device_options){.kind = kind, .name = "test", .threads = threads}, &device,
                      &err));
    return device;
}
