/* Trains a Hugging Face folder on one device and prints the loss of each step: the smallest program over
 * engine/stage/stage.h that does all of a training step.
 *
 *   train FOLDER ROWS [STEPS [RATE [BATCH_ROWS]]]
 *
 * ROWS has a JSON object a line: {"ids": [token, …], "labels": [token or -100, …]}; without labels every
 * token is learnt. Every parameter is trained in fp32 by AdamW with weight decay 0.1, along a cosine with
 * warm-up. Step t takes rows t * BATCH_ROWS and the following, and begins anew after the last row.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "engine/stage/stage.h"
#include "model/job/spec.h"
#include "model/shape/tensors.h"

struct rows_file {
    uint32_t count;
    uint32_t *start; /* [count + 1]: row r has the tokens [start[r], start[r + 1]) */
    int32_t *ids, *labels;
};

/* Appends the numbers of a row, or the ids where the row has no labels, to an array with room for them. */
static void row_copy(const json_t *values, int32_t *out)
{
    size_t i;
    const json_t *value;
    json_array_foreach (values, i, value)
        out[i] = (int32_t)json_integer_value(value);
}

static int row_append(struct rows_file *rows, const json_t *row, struct err *err)
{
    const json_t *ids = json_object_get(row, "ids"), *labels = json_object_get(row, "labels");
    size_t size = json_array_size(ids), begin = rows->count == 0 ? 0 : rows->start[rows->count];
    if (size < 2 || (labels && json_array_size(labels) != size))
        return err_set(err, ERR_INVALID, "row %u: two or more ids, and as many labels, are needed",
                       rows->count);
    rows->start = realloc(rows->start, (rows->count + 2) * sizeof(*rows->start));
    rows->ids = realloc(rows->ids, (begin + size) * sizeof(*rows->ids));
    rows->labels = realloc(rows->labels, (begin + size) * sizeof(*rows->labels));
    if (!rows->start || !rows->ids || !rows->labels)
        return err_set(err, ERR_NOMEM, "row %u: no memory", rows->count);
    row_copy(ids, rows->ids + begin);
    row_copy(labels ? labels : ids, rows->labels + begin);
    rows->start[0] = 0;
    rows->start[++rows->count] = (uint32_t)(begin + size);
    return 0;
}

static int train_rows_read(const char *path, struct rows_file *rows, struct err *err)
{
    json_error_t why;
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t capacity = 0;
    ssize_t size;
    int status = !file ? err_set(err, ERR_IO, "%s cannot be read", path) : 0;
    while (status == 0 && (size = getline(&line, &capacity, file)) >= 0) {
        json_t *row = json_loadb(line, (size_t)size, 0, &why);
        status = !row ? err_set(err, ERR_INVALID, "row %u: %s", rows->count, why.text)
                      : row_append(rows, row, err);
        json_decref(row);
    }
    if (status == 0 && rows->count == 0)
        status = err_set(err, ERR_INVALID, "%s has no rows", path);
    free(line);
    if (file)
        fclose(file);
    return status;
}

/* Tokens of the largest batch. */
static uint32_t tokens_max(const struct rows_file *rows, uint32_t batch_rows)
{
    uint32_t most = 0;
    for (uint32_t first = 0; first < rows->count; first += batch_rows) {
        uint32_t end = rows->count - first < batch_rows ? rows->count : first + batch_rows;
        uint32_t tokens = rows->start[end] - rows->start[first];
        most = tokens > most ? tokens : most;
    }
    return most;
}

/* One step on one micro-batch: forward, backward, norm, update. *loss is the mean over labelled tokens. */
static int step_run(struct stage *stage, const struct micro_batch *batch, double rate, double *loss,
                    struct err *err)
{
    struct saved *saved = NULL;
    double loss_sum, squares;
    uint64_t labelled;
    if (stage_step_begin(stage, err) != 0 || stage_forward(stage, batch, NULL, NULL, &saved, err) != 0 ||
        stage_backward(stage, batch, saved, NULL, NULL, err) != 0 ||
        stage_loss(stage, &loss_sum, &labelled, err) != 0 || stage_grad_square_sum(stage, &squares, err) != 0)
        return -1;
    if (labelled == 0)
        return err_set(err, ERR_INVALID, "step %llu: no token is labelled", (unsigned long long)batch->step);
    /* Gradients are sums over labelled tokens; their mean is clipped to a norm of 1. */
    double norm = sqrt(squares) / (double)labelled;
    struct step_update update = {.learning_rate = rate,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .eps = 1e-8,
                                 .weight_decay = 0.1,
                                 .vector_decay = 0.1,
                                 .grad_scale = fmin(1, 1 / (norm + 1e-6)) / (double)labelled};
    *loss = loss_sum / (double)labelled;
    return stage_update(stage, &update, err);
}

/* Rows [first, first + count) as one micro-batch, whose row_start counts from its own first token. */
static struct micro_batch batch_of(const struct rows_file *rows, uint32_t first, uint32_t count,
                                   uint64_t step, uint32_t *row_ids, uint32_t *row_start)
{
    uint32_t begin = rows->start[first];
    for (uint32_t i = 0; i <= count; i++)
        row_start[i] = rows->start[first + i] - begin;
    for (uint32_t i = 0; i < count; i++)
        row_ids[i] = first + i;
    return (struct micro_batch){.rows = count,
                                .row_ids = row_ids,
                                .row_start = row_start,
                                .ids = rows->ids + begin,
                                .labels = rows->labels + begin,
                                .step = step};
}

static int train(struct stage *stage, const struct rows_file *rows, uint32_t batch_rows, uint32_t steps,
                 double rate, struct err *err)
{
    const struct spec_train_part schedule = {.schedule = SPEC_SCHEDULE_COSINE,
                                             .learning_rate = rate,
                                             .warmup_steps = steps / 5,
                                             .final_fraction = 0.1};
    uint32_t *row_ids = calloc(2 * (size_t)batch_rows + 1, sizeof(*row_ids)), first = 0;
    int status = !row_ids ? err_set(err, ERR_NOMEM, "no memory for a batch") : 0;
    for (uint32_t step = 0; status == 0 && step < steps; step++) {
        uint32_t left = rows->count - first, count = left < batch_rows ? left : batch_rows;
        struct micro_batch batch = batch_of(rows, first, count, step, row_ids, row_ids + batch_rows);
        double loss = 0;
        status = step_run(stage, &batch, spec_learning_rate(&schedule, steps, step), &loss, err);
        if (status == 0)
            printf("step %u loss %.9f\n", step, loss);
        first = count == left ? 0 : first + count;
    }
    free(row_ids);
    return status;
}

int main(int argc, char **argv)
{
    struct err err;
    struct device *device = NULL;
    struct model *model = NULL;
    struct stage *stage = NULL;
    struct rows_file rows = {0};
    if (argc < 3)
        return fprintf(stderr, "usage: train FOLDER ROWS [STEPS [RATE [BATCH_ROWS]]]\n"), 2;
    uint32_t steps = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 20;
    double rate = argc > 4 ? strtod(argv[4], NULL) : 1e-3;
    uint32_t batch_rows = argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : 4;
    struct device_options device_options = {.kind = "cpu", .name = "cpu0", .threads = 1};
    struct stage_options options = {
        .mode = STAGE_TRAIN, .full = true, .seed = 1, .micro_batches_in_flight = 1};
    int status = batch_rows > 0 ? train_rows_read(argv[2], &rows, &err)
                                : err_set(&err, ERR_INVALID, "BATCH_ROWS must be 1 or more");
    if (status == 0)
        status = device_open(&device_options, &device, &err);
    if (status == 0)
        status = model_open_path(argv[1], &model, &err);
    if (status == 0) {
        options.config = model_get_config(model);
        options.block_end = options.config->layers + 2; /* the embedding, all layers, and the head */
        options.tokens_max = tokens_max(&rows, batch_rows);
        status = stage_create(device, model, &options, &stage, &err);
    }
    if (status == 0)
        status = train(stage, &rows, batch_rows, steps, rate, &err);
    if (status != 0)
        fprintf(stderr, "train: %s\n", err.text);
    stage_destroy(stage);
    model_close(model);
    device_close(device);
    free(rows.start);
    free(rows.ids);
    free(rows.labels);
    return status == 0 ? 0 : 1;
}
