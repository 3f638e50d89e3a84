/* Measures training steps of the 135M shape (SmolLM2) on the CPU device: tokens/s, and the peaks of the
 * allocator and the process.
 *
 *   bench_engine_step [threads [steps [train.json or - [lora | recompute | bf16 | nf4 | full
 *                     [fp32 | bf16 | fp16]]]]]
 *
 * The fourth argument says how the base is stored or what is trained, the fifth to what the operands of
 * products are rounded.
 *
 * Without a file: 4 rows of 256 tokens, all labelled, and random weights. With one: the batches of
 * golden/smollm2/train.json, 4 rows a step, counting real tokens. bench/engine_step_torch.py measures PyTorch
 * + peft on the same batches.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "common/clock.h"
#include "common/rand.h"
#include "engine/stage/stage.h"

enum { ROWS = 4, BATCHES_MAX = 64 };

struct step_batch {
    uint32_t row_start[ROWS + 1];
    int32_t *ids, *labels;
};

struct step_workload {
    struct step_batch batches[BATCHES_MAX];
    uint32_t count, tokens_max;
};

static int random_read(void *context, const char *name, uint64_t begin, uint64_t end, float *dst,
                       struct err *err)
{
    const struct model_config *config = context;
    uint64_t columns = strstr(name, "norm") ? 1 : strstr(name, "down_proj") ? config->ffn : config->hidden;
    struct rand_stream stream;
    (void)err;
    for (uint64_t row = begin; row < end; row++) {
        rand_stream_init(&stream, strlen(name), row);
        for (uint64_t i = 0; i < columns; i++)
            dst[(row - begin) * columns + i] =
                columns == 1 ? 1.0f : (float)(rand_stream_unit(&stream) - 0.5) * 0.08f;
    }
    return 0;
}

static void batch_make(struct step_batch *batch, uint32_t tokens)
{
    batch->ids = calloc(tokens, sizeof(int32_t));
    batch->labels = calloc(tokens, sizeof(int32_t));
}

static void workload_fixed(struct step_workload *work, uint32_t vocab)
{
    struct rand_stream stream;
    rand_stream_init(&stream, 7, 0);
    work->count = 1;
    work->tokens_max = ROWS * 256;
    batch_make(&work->batches[0], work->tokens_max);
    for (uint32_t i = 0; i <= ROWS; i++)
        work->batches[0].row_start[i] = 256 * i;
    for (uint32_t i = 0; i < work->tokens_max; i++)
        work->batches[0].ids[i] = work->batches[0].labels[i] = (int32_t)rand_stream_below(&stream, vocab);
}

static int workload_read(struct step_workload *work, const char *path)
{
    json_t *document = json_load_file(path, 0, NULL), *batches = json_object_get(document, "batches");
    work->count = (uint32_t)json_array_size(batches);
    if (work->count == 0 || work->count > BATCHES_MAX)
        return -1;
    for (uint32_t b = 0; b < work->count; b++) {
        json_t *ids = json_object_get(json_array_get(batches, b), "ids");
        json_t *labels = json_object_get(json_array_get(batches, b), "labels");
        struct step_batch *batch = &work->batches[b];
        for (uint32_t row = 0; row < ROWS; row++)
            batch->row_start[row + 1] =
                batch->row_start[row] + (uint32_t)json_array_size(json_array_get(ids, row));
        batch_make(batch, batch->row_start[ROWS]);
        for (uint32_t row = 0, at = 0; row < ROWS; row++)
            for (uint32_t i = 0; i < batch->row_start[row + 1] - batch->row_start[row]; i++, at++) {
                batch->ids[at] = (int32_t)json_integer_value(json_array_get(json_array_get(ids, row), i));
                batch->labels[at] =
                    (int32_t)json_integer_value(json_array_get(json_array_get(labels, row), i));
            }
        if (batch->row_start[ROWS] > work->tokens_max)
            work->tokens_max = batch->row_start[ROWS];
    }
    json_decref(document);
    return 0;
}

static int step(struct stage *stage, const struct step_batch *batch, uint32_t number, double *loss,
                struct err *err)
{
    const uint32_t row_ids[ROWS] = {0, 1, 2, 3};
    struct micro_batch mb = {.rows = ROWS,
                             .row_ids = row_ids,
                             .row_start = batch->row_start,
                             .ids = batch->ids,
                             .labels = batch->labels,
                             .step = number};
    struct saved *saved;
    uint64_t labelled;
    double squares;
    if (stage_step_begin(stage, err) != 0 || stage_forward(stage, &mb, NULL, NULL, &saved, err) != 0 ||
        stage_backward(stage, &mb, saved, NULL, NULL, err) != 0 ||
        stage_loss(stage, loss, &labelled, err) != 0 || stage_grad_square_sum(stage, &squares, err) != 0)
        return -1;
    *loss /= (double)labelled;
    double norm = sqrt(squares) / (double)labelled;
    struct step_update update = {.learning_rate = 1e-3,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .eps = 1e-8,
                                 .grad_scale = fmin(1, 1 / (norm + 1e-6)) / (double)labelled};
    return stage_update(stage, &update, err);
}

/* CPU seconds of all threads, which other users of the machine affect less than elapsed time. */
static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static struct stage_options options_of(const struct model_config *config, const char *method,
                                       const char *compute, uint32_t tokens_max)
{
    return (struct stage_options){
        .config = config,
        .compute = strcmp(compute, "bf16") == 0   ? DTYPE_BF16
                   : strcmp(compute, "fp16") == 0 ? DTYPE_F16
                                                  : DTYPE_F32,
        .block_end = config->layers + 2,
        .mode = STAGE_TRAIN,
        .lora = {.rank = 16, .alpha = 32, .targets = LORA_Q | LORA_K | LORA_V | LORA_O},
        .seed = 1,
        .micro_batches_in_flight = 1,
        .tokens_max = tokens_max,
        .recompute = strcmp(method, "recompute") == 0,
        .full = strcmp(method, "full") == 0,
        .double_quant = true,
        .base = strcmp(method, "bf16") == 0  ? LAYER_BASE_BF16
                : strcmp(method, "nf4") == 0 ? LAYER_BASE_NF4
                                             : LAYER_BASE_F32};
}

int main(int argc, char **argv)
{
    uint32_t threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2;
    uint32_t steps = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 4;
    struct model_config config = {.arch = MODEL_LLAMA,
                                  .hidden = 576,
                                  .layers = 30,
                                  .heads = 9,
                                  .kv_heads = 3,
                                  .head_dim = 64,
                                  .ffn = 1536,
                                  .vocab = 49152,
                                  .max_positions = 8192,
                                  .norm_eps = 1e-5,
                                  .rope = {.theta = 100000, .kind = ROPE_DEFAULT, .factor = 1},
                                  .tied = true};
    const char *method = argc > 4 ? argv[4] : "lora", *compute = argc > 5 ? argv[5] : "fp32";
    struct step_workload work = {0};
    struct device *device;
    struct stage *stage;
    struct err err;
    if (argc > 3 && strcmp(argv[3], "-") != 0) {
        if (workload_read(&work, argv[3]) != 0)
            return fprintf(stderr, "could not read %s\n", argv[3]), 1;
    } else {
        workload_fixed(&work, config.vocab);
    }
    struct stage_options options = options_of(&config, method, compute, work.tokens_max);
    struct weight_source source = {.read = random_read, .context = &config};
    if (device_open(&(struct device_options){.kind = "cpu", .name = "bench", .threads = threads}, &device,
                    &err) != 0 ||
        stage_create_from(device, &source, &options, &stage, &err) != 0)
        return fprintf(stderr, "%s\n", err.text), 1;
    double loss = 0, best = 1e9, total = 0, cpu = 0;
    uint64_t tokens = 0;
    for (uint32_t i = 0; i <= steps; i++) {
        const struct step_batch *batch = &work.batches[i % work.count];
        uint64_t begin = clock_mono_ns();
        double cpu_begin = cpu_seconds();
        if (step(stage, batch, i, &loss, &err) != 0)
            return fprintf(stderr, "%s\n", err.text), 1;
        double seconds = (double)(clock_mono_ns() - begin) * 1e-9;
        if (i == 0)
            continue; /* the first step warms up */
        double each = seconds / batch->row_start[ROWS];
        best = each < best ? each : best;
        total += seconds;
        cpu += cpu_seconds() - cpu_begin;
        tokens += batch->row_start[ROWS];
    }
    struct mem_account memory;
    struct rusage usage;
    device_memory(device, &memory);
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"isa\": \"%s\", \"compute\": \"%s\", \"threads\": %u, \"steps\": %u, \"loss\": %.6f, "
           "\"tokens_per_s\": %.1f, "
           "\"tokens_per_s_best\": %.1f, \"tokens_per_cpu_s\": %.1f, \"allocator_peak_bytes\": %llu, "
           "\"vm_hwm_bytes\": %llu}\n",
           device_isa(device), compute, threads, steps, loss, (double)tokens / total, 1 / best,
           (double)tokens / cpu, (unsigned long long)memory.peak_total,
           (unsigned long long)usage.ru_maxrss * 1024);
    stage_destroy(stage);
    device_close(device);
    for (uint32_t b = 0; b < work.count; b++) {
        free(work.batches[b].ids);
        free(work.batches[b].labels);
    }
    return 0;
}
