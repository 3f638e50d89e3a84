/* Measures each kind of block in a stage of its own with random weights. A point is one micro-batch shape.
 * All points of a kind are measured in turn, pass after pass, so that other load on the machine affects all
 * of them. A point reports the mean of its samples without the slowest fifth. Samples during which the
 * threads waited for a CPU do not count while there are others, and are taken again within the time. */
#include "engine/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"
#include "common/rand.h"
#include "engine/stage/layout.h"
#include "model/shape/blocks.h"

/* There are no measurements of recomputation, which repeats part of forward: they would be the difference of
 * two noisy times.
 *
 * LAYERS_MEASURED is high enough that the layers' weights do not stay in a core's cache from one micro-batch
 * to the next, as in a real stage: SmolLM2's predicted step was 19 % below the measured one with 3 layers,
 * and 0.1 % with 10. */
enum { POINTS_MAX = 16, ROWS_MAX = 64, SAMPLES_MAX = 64, LAYERS_MEASURED = 10, HEAD_LABELLED_MAX = 128 };

/* A slow device still makes PASSES_LEAST passes, if they fit into OVERTIME times the requested time. With one
 * or two samples of each point a predicted step was up to 13 % off. */
enum { PASSES_LEAST = 3, OVERTIME = 2 };

/* Largest fraction by which a larger shape may be faster than a smaller one; beyond it, measuring goes on.
 * The planner warns at 0.05. */
#define FALL_MOST 0.03

enum { PIECE_BYTES = 128 << 10, LAYERS_LEAST_BYTES = 1 << 20 };

/* A card gets slower as it warms up. Its largest point runs in windows of WARM_PASSES passes, at most
 * WARM_WINDOWS_MAX windows, until the times of two successive windows differ by at most WARM_AGREE. */
enum { WARM_PASSES = 4, WARM_WINDOWS_MAX = 64 };
#define WARM_AGREE 0.02

/* A sample is disturbed if the process's threads waited for a CPU for more than this share of its time: other
 * programs ran on the device's cores. */
#define DISTURBED_SHARE 0.03

enum phase { PHASE_FORWARD, PHASE_BACKWARD, PHASES };
enum { MARKS = PHASES + 1 };

struct sample {
    double seconds[PHASES]; /* of one block */
    bool disturbed;
};

struct point {
    uint32_t rows, row_tokens, labelled;
    uint32_t taken, undisturbed; /* samples since the warm-up; the last SAMPLES_MAX of them are in samples */
    struct sample samples[SAMPLES_MAX];
};

struct profile_kind {
    const char *name;
    uint32_t block_begin, layers; /* layers 0: the embedding or the head alone */
    uint32_t count;
    struct point points[POINTS_MAX];
    double step_s;
    bool fits;
};

struct profile {
    const struct profile_request *request;
    struct device *device;
    struct profile_kind kinds[3];
    uint32_t tokens_max;
    struct err *err;
    int32_t *ids, *labels;
    struct buffer *in, *out, *gradient, *gradient_out;
    struct buffer *layers; /* [layers_bytes] stands for the layers' weights while the head is measured */
    uint64_t layers_bytes;
    struct event *marks[MARKS]; /* for devices with a clock of their own */
    uint64_t marks_ns[MARKS];   /* for other devices */
    double sampled_s, waited_s; /* time of all samples, and how long threads waited for a CPU in it */
    uint8_t piece[PIECE_BYTES];
};

static int random_read(void *context, const char *name, uint64_t begin, uint64_t end, float *dst,
                       struct err *err)
{
    const struct model_config *config = context;
    uint64_t columns = config->hidden;
    (void)err;
    if (strstr(name, "norm") != NULL)
        columns = 1;
    else if (strstr(name, "down_proj") != NULL)
        columns = config->ffn;
    else if (strstr(name, "o_proj") != NULL)
        columns = (uint64_t)config->heads * config->head_dim;
    for (uint64_t i = 0; i < (end - begin) * columns; i++) {
        /* Cheap pseudo-random values; time does not depend on them. */
        uint64_t mixed = ((begin * columns + i) * 0x9E3779B97F4A7C15ull) >> 40;
        dst[i] = columns == 1 ? 1.0f : (float)((double)mixed / (1 << 24) - 0.5) * 0.05f;
    }
    return 0;
}

static void point_add(struct profile_kind *kind, uint32_t rows, uint32_t row_tokens, uint32_t labelled)
{
    if (kind->count == POINTS_MAX || rows == 0 || rows > ROWS_MAX || row_tokens == 0 ||
        labelled > rows * (row_tokens - 1))
        return;
    for (uint32_t i = 0; i < kind->count; i++)
        if (kind->points[i].rows == rows && kind->points[i].row_tokens == row_tokens &&
            kind->points[i].labelled == labelled)
            return;
    kind->points[kind->count++] =
        (struct point){.rows = rows, .row_tokens = row_tokens, .labelled = labelled};
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Shapes from one short row to tokens_max tokens. Some have about equal tokens in one row and in several, so
 * that the cost of Σ length² shows. Short rows have lengths that no vector width divides, as most rows do:
 * with AVX-512, 64 tokens took 3 % less than the line through 58 to 76 tokens. */
static void points_make(struct profile *profile)
{
    uint32_t longest = profile->request->sequence_tokens, most = profile->tokens_max;
    struct profile_kind *embedding = &profile->kinds[0], *layer = &profile->kinds[1],
                        *head = &profile->kinds[2];
    for (uint32_t tokens = 16; tokens < longest; tokens *= 4)
        point_add(layer, 1, tokens + 3 < longest ? tokens + 3 : tokens, 0);
    point_add(layer, 1, longest, 0);
    point_add(layer, 4, max_u32(longest / 4, 5) - 3, 0);
    point_add(layer, 8, max_u32(longest / 16, 3) - 1, 0);
    point_add(layer, most / longest, longest, 0);
    point_add(embedding, 1, longest < 16 ? longest : 16, 0);
    point_add(embedding, 1, longest, 0);
    point_add(embedding, most / longest, longest, 0);
    /* The head works on labelled tokens only. Beyond a few chunks of logits its time is linear. */
    for (uint32_t labelled = 1; labelled < longest && labelled < HEAD_LABELLED_MAX;
         labelled *= labelled < 16 ? 2 : 4)
        point_add(head, 1, longest, labelled);
    point_add(head, 1, longest, longest > HEAD_LABELLED_MAX ? HEAD_LABELLED_MAX : longest - 1);
    point_add(head, most / longest, longest, max_u32(longest / 16, 1));
}

static struct stage_options options_of(const struct profile *profile, const struct profile_kind *kind)
{
    const struct stage_options *method = &profile->request->method;
    return (struct stage_options){
        .config = profile->request->config,
        .block_begin = kind->block_begin,
        .block_end = kind->block_begin + (kind->layers > 0 ? kind->layers : 1),
        .mode = STAGE_TRAIN,
        .lora = method->lora,
        .full = method->full,
        .base = method->base,
        .double_quant = method->double_quant,
        .compute = method->compute,
        .moments8 = method->moments8,
        .train_embedding = method->train_embedding,
        .train_head = method->train_head,
        .label_smoothing = method->label_smoothing,
        .embed_noise = method->embed_noise,
        .seed = 1,
        .micro_batches_in_flight = 1,
        .tokens_max = profile->tokens_max,
        .row_tokens_max = profile->request->sequence_tokens,
    };
}

/* Marks the time between two phases: on the device's queue, or by the host's clock when all earlier work is
 * done. */
static int mark(struct profile *profile, uint32_t which)
{
    if (profile->marks[which] != NULL)
        return event_record(profile->marks[which], profile->err);
    if (device_sync(profile->device, profile->err) != 0)
        return -1;
    profile->marks_ns[which] = profile->request->now_ns();
    return 0;
}

/* Seconds from mark `from` to the next mark. */
static int marks_apart(struct profile *profile, uint32_t from, double *seconds)
{
    if (profile->marks[from] == NULL) {
        *seconds = (double)(profile->marks_ns[from + 1] - profile->marks_ns[from]) * 1e-9;
        return 0;
    }
    if (device_sync(profile->device, profile->err) != 0)
        return -1;
    return event_elapsed(profile->marks[from], profile->marks[from + 1], seconds, profile->err);
}

static uint64_t cpu_wait_ns(const struct profile *profile)
{
    return profile->request->waited_ns != NULL ? profile->request->waited_ns() : 0;
}

/* Adds a sample of 'layers' blocks at once, during which the threads waited for waited_s. */
static void sample_add(struct profile *profile, struct point *point, struct sample sample, double layers,
                       double waited_s)
{
    double took_s = layers * (sample.seconds[PHASE_FORWARD] + sample.seconds[PHASE_BACKWARD]);
    profile->sampled_s += took_s;
    profile->waited_s += waited_s;
    sample.disturbed = waited_s > DISTURBED_SHARE * took_s;
    point->undisturbed += !sample.disturbed;
    point->samples[point->taken++ % SAMPLES_MAX] = sample;
}

static int step_time(struct profile *profile, struct profile_kind *kind, struct stage *stage)
{
    const struct step_update update = {
        .learning_rate = 0, .beta1 = 0.9, .beta2 = 0.99, .eps = 1, .grad_scale = 0};
    double sum, seconds;
    if (mark(profile, 0) != 0 || stage_grad_square_sum(stage, &sum, profile->err) != 0 ||
        stage_update(stage, &update, profile->err) != 0 || mark(profile, 1) != 0 ||
        marks_apart(profile, 0, &seconds) != 0)
        return -1;
    seconds /= max_u32(kind->layers, 1);
    if (kind->step_s == 0 || seconds < kind->step_s)
        kind->step_s = seconds;
    return 0;
}

static bool is_short_of_memory(const struct err *err)
{
    return err->code == ERR_NOFIT || err->code == ERR_NOMEM;
}

/* In a real run, the layers' weights pass through the cache between two uses of the head. To imitate that, a
 * buffer as large as the weights or the cache (less where memory is short) is read before each sample of the
 * head. Without it, samples with few labels were up to a fifth too fast. */
static int layers_make(struct profile *profile)
{
    const struct profile_kind one = {.block_begin = 1, .layers = 1};
    struct stage_options options = options_of(profile, &one);
    struct stage_memory memory;
    if (stage_memory_predict(&options, &memory, profile->err) != 0)
        return -1;
    uint64_t bytes = memory.bytes[MEM_WEIGHTS] * profile->request->config->layers;
    uint64_t cache = device_cache_bytes(profile->device);
    for (bytes = bytes < cache ? bytes : cache; bytes >= LAYERS_LEAST_BYTES; bytes /= 2) {
        if (buffer_create(profile->device, bytes, MEM_BUFFERS, "a profile's layers", &profile->layers,
                          profile->err) == 0) {
            profile->layers_bytes = bytes;
            return 0;
        }
        profile->layers = NULL;
        if (!is_short_of_memory(profile->err))
            return -1;
    }
    return 0;
}

static int layers_pass(struct profile *profile)
{
    for (uint64_t at = 0; at < profile->layers_bytes; at += PIECE_BYTES) {
        uint64_t left = profile->layers_bytes - at;
        if (buffer_read(profile->layers, at, profile->piece, left < PIECE_BYTES ? left : PIECE_BYTES,
                        profile->err) != 0)
            return -1;
    }
    return 0;
}

static int point_time(struct profile *profile, struct profile_kind *kind, struct stage *stage,
                      struct point *point)
{
    uint32_t row_start[ROWS_MAX + 1], tokens = point->rows * point->row_tokens, left = point->labelled;
    double layers = max_u32(kind->layers, 1);
    bool first = kind->block_begin == 0, last = kind == &profile->kinds[2];
    struct saved *saved;
    for (uint32_t row = 0; row <= point->rows; row++)
        row_start[row] = row * point->row_tokens;
    for (uint32_t t = 0; t < tokens; t++) {
        bool learnt = t % point->row_tokens != 0 && left > 0;
        profile->labels[t] = learnt ? profile->ids[t] : -100;
        left -= learnt;
    }
    struct micro_batch batch = {.rows = point->rows,
                                .row_start = row_start,
                                .ids = profile->ids,
                                .labels = profile->labels,
                                .step = point->taken};
    struct sample sample;
    if (stage_step_begin(stage, profile->err) != 0 || layers_pass(profile) != 0)
        return -1;
    uint64_t waited_ns = cpu_wait_ns(profile);
    if (mark(profile, 0) != 0 ||
        stage_forward(stage, &batch, first ? NULL : profile->in, last ? NULL : profile->out, &saved,
                      profile->err) != 0 ||
        mark(profile, 1) != 0 ||
        stage_backward(stage, &batch, saved, last ? NULL : profile->gradient,
                       first ? NULL : profile->gradient_out, profile->err) != 0 ||
        mark(profile, 2) != 0)
        return -1;
    for (uint32_t phase = 0; phase < PHASES; phase++) {
        if (marks_apart(profile, phase, &sample.seconds[phase]) != 0)
            return -1;
        sample.seconds[phase] /= layers;
    }
    sample_add(profile, point, sample, layers, (double)(cpu_wait_ns(profile) - waited_ns) * 1e-9);
    return 0;
}

static int stop_check(const struct profile *profile)
{
    const struct profile_request *request = profile->request;
    if (request->stop != NULL && request->stop(request->context))
        return err_set(profile->err, ERR_CANCELLED, "profiling was stopped");
    return 0;
}

/* Creates a stage of the kind, with fewer layers where memory is short. *stage is NULL when not even one
 * layer fits. */
static int kind_stage(struct profile *profile, struct profile_kind *kind, struct stage **stage)
{
    const struct weight_source source = {.read = random_read,
                                         .context = (void *)(uintptr_t)profile->request->config};
    struct stage_options options = options_of(profile, kind);
    *stage = NULL;
    while (stage_create_from(profile->device, &source, &options, stage, profile->err) != 0) {
        *stage = NULL;
        if (!is_short_of_memory(profile->err) || kind->layers <= 1)
            return is_short_of_memory(profile->err) ? 0 : -1;
        options.block_end = options.block_begin + --kind->layers;
    }
    return 0;
}

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The mean of the undisturbed samples, or of all if every one was disturbed, without the slowest fifth. A
 * step is a sum of many passes, so a frequent delay should count in proportion and a single one should not.
 * Writes the least of them to *least unless that is NULL. */
static double typical_seconds(const struct point *point, enum phase phase, double *least)
{
    double seconds[SAMPLES_MAX], sum = 0;
    uint32_t held = point->taken < SAMPLES_MAX ? point->taken : SAMPLES_MAX, undisturbed = 0, count = 0;
    for (uint32_t i = 0; i < held; i++)
        undisturbed += !point->samples[i].disturbed;
    for (uint32_t i = 0; i < held; i++)
        if (undisturbed == 0 || !point->samples[i].disturbed)
            seconds[count++] = point->samples[i].seconds[phase];
    if (count == 0)
        return 0;
    qsort(seconds, count, sizeof(double), double_compare);
    uint32_t kept = count - count / 5;
    for (uint32_t i = 0; i < kept; i++)
        sum += seconds[i];
    if (least != NULL)
        *least = seconds[0];
    return sum / kept;
}

/* By how much repeats of the same work differ: the points' typical times over their least, minus 1, on
 * average over the kind's points. */
static double spread_of(const struct profile_kind *kind)
{
    double sum = 0;
    for (uint32_t i = 0; i < kind->count; i++) {
        double least[PHASES] = {0}, seconds = 0;
        for (int phase = 0; phase < PHASES; phase++)
            seconds += typical_seconds(&kind->points[i], phase, &least[phase]);
        if (least[PHASE_FORWARD] + least[PHASE_BACKWARD] > 0)
            sum += seconds / (least[PHASE_FORWARD] + least[PHASE_BACKWARD]) - 1;
    }
    return kind->count > 0 ? sum / kind->count : 0;
}

static bool has_undisturbed(const struct profile_kind *kind)
{
    for (uint32_t i = 0; i < kind->count; i++)
        if (kind->points[i].undisturbed < PASSES_LEAST)
            return false;
    return true;
}

/* Is a shape that is no smaller in any respect clearly faster? That is noise, which another pass reduces. */
static bool times_fall(struct profile_kind *kind)
{
    double seconds[POINTS_MAX][PHASES];
    for (uint32_t i = 0; i < kind->count; i++)
        for (int phase = 0; phase < PHASES; phase++)
            seconds[i][phase] = typical_seconds(&kind->points[i], phase, NULL);
    for (uint32_t i = 0; i < kind->count; i++)
        for (uint32_t k = 0; k < kind->count; k++) {
            const struct point *less = &kind->points[i], *more = &kind->points[k];
            double fall = fmax(seconds[i][PHASE_FORWARD] - seconds[k][PHASE_FORWARD],
                               seconds[i][PHASE_BACKWARD] - seconds[k][PHASE_BACKWARD]);
            if (less->rows <= more->rows && less->row_tokens <= more->row_tokens &&
                less->labelled <= more->labelled &&
                fall > FALL_MOST * (seconds[i][PHASE_FORWARD] + seconds[i][PHASE_BACKWARD]))
                return true;
        }
    return false;
}

/* Keep a device with its own clock busy until its times no longer change, at most until `until_ns`. */
static int warm_up(struct profile *profile, struct profile_kind *kind, struct stage *stage,
                   struct point *point, uint64_t until_ns)
{
    double last = 0;
    for (uint32_t window = 0; window < WARM_WINDOWS_MAX && device_has_clock(profile->device); window++) {
        double seconds = 0;
        for (uint32_t i = 0; i < WARM_PASSES; i++) {
            if (stop_check(profile) != 0 || point_time(profile, kind, stage, point) != 0)
                return -1;
            seconds += point->samples[0].seconds[PHASE_FORWARD] + point->samples[0].seconds[PHASE_BACKWARD];
            point->taken = point->undisturbed = 0;
        }
        if (fabs(seconds - last) <= WARM_AGREE * last || profile->request->now_ns() >= until_ns)
            return 0;
        last = seconds;
    }
    return 0;
}

/* Measure the points of one kind in passes until `until_ns`; until `latest_ns` if by then a point has few
 * undisturbed samples or times fall. There is at least one pass. Before it, the largest point runs once, to
 * touch all of the memory. */
static int kind_measure(struct profile *profile, struct profile_kind *kind, uint64_t until_ns,
                        uint64_t latest_ns)
{
    struct stage *stage;
    uint32_t largest = 0, passes = 0;
    uint64_t now_ns;
    int status = kind_stage(profile, kind, &stage);
    if (stage == NULL)
        return status;
    kind->fits = true;
    if (kind == &profile->kinds[2])
        status = layers_make(profile);
    for (uint32_t i = 1; i < kind->count; i++)
        if (kind->points[i].rows * kind->points[i].row_tokens >
            kind->points[largest].rows * kind->points[largest].row_tokens)
            largest = i;
    if (status == 0)
        status = point_time(profile, kind, stage, &kind->points[largest]);
    kind->points[largest].taken = kind->points[largest].undisturbed = 0;
    if (status == 0)
        status = warm_up(profile, kind, stage, &kind->points[largest], until_ns);
    do {
        for (uint32_t i = 0; i < kind->count && status == 0; i++)
            status = stop_check(profile) != 0 ? -1 : point_time(profile, kind, stage, &kind->points[i]);
        if (status == 0)
            status = step_time(profile, kind, stage);
        now_ns = profile->request->now_ns();
        passes++;
    } while (status == 0 && now_ns < latest_ns &&
             (passes < PASSES_LEAST || now_ns < until_ns || !has_undisturbed(kind) || times_fall(kind)));
    buffer_destroy(profile->layers);
    profile->layers = NULL;
    profile->layers_bytes = 0;
    stage_destroy(stage);
    return status;
}

/* The share of a layer's multiplications that recompute repeats in backward: all but the product with `down`,
 * whose result backward does not need (layer.c). */
static double recomputed_share(const struct model_config *config)
{
    double q = (double)config->heads * config->head_dim, kv = (double)config->kv_heads * config->head_dim;
    double down = (double)config->ffn, all = 2 * q + 2 * kv + 3 * down; /* both times hidden */
    return 1 - down / all;
}

/* The point's times, and the bytes of one block for exactly this many tokens. */
static json_t *point_json(const struct profile *profile, const struct profile_kind *kind, struct point *point)
{
    struct stage_options options = options_of(profile, kind);
    struct owned_layout *all;
    struct err ignored;
    uint32_t tokens = point->rows * point->row_tokens;
    double forward = typical_seconds(point, PHASE_FORWARD, NULL);
    options.block_end = options.block_begin + 1;
    options.tokens_max = tokens;
    options.row_tokens_max = point->row_tokens;
    options.rows_max = point->rows;
    options.labelled_max = max_u32(point->labelled, 1);
    if (owned_layout_create(&options, &all, &ignored) != 0)
        return NULL;
    json_t *json =
        json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:I, s:I, s:I}", "block", kind->name, "rows",
                  (int)point->rows, "tokens", (int)tokens, "labelled", (int)point->labelled, "sum_sq",
                  (double)point->rows * point->row_tokens * point->row_tokens, "forward_s", forward,
                  "backward_s", typical_seconds(point, PHASE_BACKWARD, NULL), "recompute_s",
                  forward * (kind->layers > 0 ? recomputed_share(profile->request->config) : 1),
                  "saved_bytes", (json_int_t)(all->layout.slot.bytes - all->layout.slot.meta_bytes),
                  "boundary_bytes", (json_int_t)(4ull * tokens * all->model.shape.hidden), "workspace_bytes",
                  (json_int_t)all->layout.workspace.bytes);
    free(all);
    return json;
}

/* Forward FLOPs of a layer without adapters. With a point's seconds they give the rate that the device
 * reaches. */
static json_t *layer_flops(const struct profile *profile)
{
    struct block_list list;
    struct err ignored;
    if (model_blocks(profile->request->config, &(struct block_options){.lora = false}, &list, &ignored) != 0)
        return NULL;
    const struct block *layer = &list.blocks[profile->kinds[1].block_begin];
    json_t *flops =
        json_pack("{s:f, s:f}", "token", layer->flops_per_token, "square", layer->flops_per_square);
    block_list_fini(&list);
    return flops;
}

static int shape_digest(const struct model_config *config, char hex[DIGEST_HEX_SIZE], struct err *err)
{
    json_t *document = model_config_to_json(config, err);
    char *text = document == NULL ? NULL : json_dumps(document, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(document);
    if (text == NULL)
        return -1;
    int status = digest_sha256_hex(text, strlen(text), hex, err);
    free(text);
    return status;
}

/* Bytes of the process beside the device's buffers: code, libraries, threads' scratch memory, the matrix
 * library's packing buffers. */
static uint64_t process_base_bytes(const struct device *device)
{
    struct mem_account account;
    unsigned long long resident_kib = 0;
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmRSS: %llu", &resident_kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    device_memory(device, &account);
    return resident_kib * 1024 > account.held_total ? resident_kib * 1024 - account.held_total : 0;
}

/* Names as in specifications (model/job/spec.h), by enum layer_base and enum dtype. */
static const char *const base_names[] = {[LAYER_BASE_F32] = "fp32",
                                         [LAYER_BASE_BF16] = "bf16",
                                         [LAYER_BASE_F16] = "fp16",
                                         [LAYER_BASE_NF4] = "nf4"};
static const char *const compute_names[] = {
    [DTYPE_F32] = "fp32", [DTYPE_BF16] = "bf16", [DTYPE_F16] = "fp16"};

/* The waits of all threads over the time of all samples, at most 1. */
static double waited_share(const struct profile *profile)
{
    return profile->sampled_s > 0 ? fmin(1, profile->waited_s / profile->sampled_s) : 0;
}

static json_t *document_make(struct profile *profile)
{
    const struct profile_request *request = profile->request;
    struct stage_memory memory[3];
    char shape[DIGEST_HEX_SIZE];
    for (int k = 0; k < 3; k++) {
        struct profile_kind one = profile->kinds[k];
        one.layers = k == 1;
        struct stage_options options = options_of(profile, &one);
        if (stage_memory_predict(&options, &memory[k], profile->err) != 0)
            return NULL;
    }
    if (shape_digest(request->config, shape, profile->err) != 0)
        return NULL;
    json_t *points = json_array();
    for (int k = 0; k < 3; k++)
        for (uint32_t i = 0; i < profile->kinds[k].count && profile->kinds[k].fits; i++)
            json_array_append_new(points,
                                  point_json(profile, &profile->kinds[k], &profile->kinds[k].points[i]));
    json_t *document = json_pack(
        "{s:s, s:s, s:i, s:s, s:s, s:s, s:s, s:I, s:o, s:o, s:{s:I, s:I, s:I}, s:{s:I}, s:{s:I}, s:{s:f}, "
        "s:f, s:f}",
        "device", device_name(profile->device), "isa", device_isa(profile->device), "threads",
        (int)device_threads(profile->device), "shape", shape, "method",
        request->method.full ? "full" : "lora", "base", base_names[request->method.base], "compute",
        compute_names[request->method.compute], "base_process_bytes",
        (json_int_t)process_base_bytes(profile->device), "layer_flops", layer_flops(profile), "points",
        points, "weights_bytes", "embedding", (json_int_t)memory[0].bytes[MEM_WEIGHTS], "layer",
        (json_int_t)memory[1].bytes[MEM_WEIGHTS], "head", (json_int_t)memory[2].bytes[MEM_WEIGHTS],
        "adapter_bytes", "layer", (json_int_t)memory[1].bytes[MEM_ADAPTERS], "optimizer_bytes", "layer",
        (json_int_t)memory[1].bytes[MEM_OPTIMIZER], "step_s", "layer", profile->kinds[1].step_s,
        "waited_share", waited_share(profile), "spread", spread_of(&profile->kinds[1]));
    if (document == NULL)
        err_set(profile->err, ERR_NOMEM, "out of memory for a profile document");
    return document;
}

static int boundaries_make(struct profile *profile)
{
    struct buffer **const buffers[] = {&profile->in, &profile->out, &profile->gradient,
                                       &profile->gradient_out};
    uint64_t bytes = 4ull * profile->tokens_max * profile->request->config->hidden;
    profile->ids = calloc(profile->tokens_max, sizeof(int32_t));
    profile->labels = calloc(profile->tokens_max, sizeof(int32_t));
    float *values = malloc(bytes);
    int status = 0;
    if (profile->ids == NULL || profile->labels == NULL || values == NULL)
        status = err_set(profile->err, ERR_NOMEM, "out of memory for a profile's inputs");
    for (uint32_t t = 0; t < profile->tokens_max && status == 0; t++)
        profile->ids[t] = (int32_t)((t * 7919ull) % profile->request->config->vocab);
    for (uint64_t i = 0; i < bytes / 4 && status == 0; i++)
        values[i] = (float)((i * 2654435761ull) % 1000) * 1e-3f - 0.5f;
    for (int i = 0; i < 4 && status == 0; i++)
        if (buffer_create(profile->device, bytes, MEM_BUFFERS, "a profile's boundary", buffers[i],
                          profile->err) != 0 ||
            buffer_write(*buffers[i], 0, values, bytes, profile->err) != 0 ||
            device_sync(profile->device, profile->err) != 0)
            status = -1;
    for (int i = 0; i < MARKS && status == 0 && device_has_clock(profile->device); i++)
        status = event_create_timed(profile->device, &profile->marks[i], profile->err);
    free(values);
    return status;
}

/* Prepares everything but the points. */
static int profile_init(struct profile *profile, struct device *device, const struct profile_request *request,
                        struct err *err)
{
    const uint32_t layers = request->config->layers;
    *profile = (struct profile){.request = request, .device = device, .err = err};
    profile->tokens_max = request->tokens_max != 0 ? request->tokens_max : request->sequence_tokens;
    profile->tokens_max = max_u32(profile->tokens_max, max_u32(request->sequence_tokens, 32));
    profile->kinds[0] = (struct profile_kind){.name = "embedding"};
    profile->kinds[1] = (struct profile_kind){
        .name = "layer", .block_begin = 1, .layers = layers < LAYERS_MEASURED ? layers : LAYERS_MEASURED};
    profile->kinds[2] = (struct profile_kind){.name = "head", .block_begin = layers + 1};
    return boundaries_make(profile);
}

static void profile_fini(struct profile *profile)
{
    buffer_destroy(profile->in);
    buffer_destroy(profile->out);
    buffer_destroy(profile->gradient);
    buffer_destroy(profile->gradient_out);
    for (int i = 0; i < MARKS; i++)
        event_destroy(profile->marks[i]);
    free(profile->ids);
    free(profile->labels);
}

int profile_measure(struct device *device, const struct profile_request *request, json_t **document,
                    struct err *err)
{
    struct profile *profile = calloc(1, sizeof *profile);
    *document = NULL;
    if (profile == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for a profile");
    if (!request->method.full && request->method.base == LAYER_BASE_PACKED) {
        free(profile);
        return err_set(err, ERR_UNSUPPORTED, "a packed base is not measured: its blocks are those of a file");
    }
    int status = profile_init(profile, device, request, err);
    points_make(profile);
    /* Layers are most of a model and get most of the time; embedding and head get the rest. */
    const struct {
        int kind;
        double until;
    } turns[] = {{0, 0.03}, {1, 0.75}, {2, 1.0}};
    uint64_t begin = request->now_ns();
    for (size_t i = 0; i < sizeof turns / sizeof turns[0] && status == 0; i++) {
        uint64_t share_ns = (uint64_t)(turns[i].until * request->seconds * 1e9);
        status = kind_measure(profile, &profile->kinds[turns[i].kind], begin + share_ns,
                              begin + OVERTIME * share_ns);
    }
    if (status == 0 && (*document = document_make(profile)) == NULL)
        status = -1;
    profile_fini(profile);
    free(profile);
    return status;
}
