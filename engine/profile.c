/* Measures each kind of block in a stage of its own with random weights. A point is one micro-batch shape.
 * All points of a kind are measured in turn, pass after pass, so that other load on the machine affects all
 * of them. A point reports the mean of its samples without the slowest fifth. Samples during which the
 * threads waited for a CPU do not count while there are others, and are taken again within the time. */
#include "engine/profile_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"
#include "common/rand.h"
#include "engine/stage/layout.h"
#include "model/shape/blocks.h"

/* Largest number of labelled positions among the shapes of a head that few positions need; larger shapes have
 * a label at every position. */
enum { HEAD_LABELLED_MAX = 128 };

/* A slow device still makes PASSES_LEAST passes, if they fit into OVERTIME times the requested time. */
enum { OVERTIME = 2 };

/* Most by which the points' typical times may exceed their least before they are measured again. The planner
 * calls a profile doubtful beyond it. */
#define SPREAD_MOST 0.2

/* Largest fraction by which a larger shape may be faster than a smaller one; beyond it, measuring goes on.
 * The planner warns at 0.05. */
#define FALL_MOST 0.03

/* Tokens of the largest micro-batch that is measured, in longest rows. */
enum { TOKENS_OF_ROWS = 2 };
/* Below this length of the longest row, in tokens, there is a further point of several rows. */
enum { SHORT_ROWS = 128 };

/* A card gets slower as it warms up. Its largest point runs in windows of WARM_PASSES passes, at most
 * WARM_WINDOWS_MAX windows, until the times of two successive windows differ by at most WARM_AGREE. */
enum { WARM_PASSES = 4, WARM_WINDOWS_MAX = 64 };
#define WARM_AGREE 0.02

static void point_add(struct profile_kind *kind, uint32_t rows, uint32_t row_tokens, uint32_t labelled)
{
    if (kind->fits || kind->count == POINTS_MAX || rows == 0 || rows > ROWS_MAX || row_tokens == 0 ||
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

/* Makes the points of all kinds that are not measured yet: shapes from one short row to tokens_max tokens.
 * The largest is of many short rows, as the planner merges them: its tokens are about twice those of the
 * longest row, far enough from it that the line through both holds for still larger micro-batches, and their
 * Σ length² is less, so that its cost shows. Short rows have lengths that no vector width divides, as most
 * rows do: with AVX-512, 64 tokens took 3 % less than the line through 58 to 76 tokens. */
static void points_make(struct profile *profile)
{
    for (int k = 0; k < KINDS; k++)
        if (!profile->kinds[k].fits)
            profile->kinds[k].count = 0;
    uint32_t longest = profile->request->sequence_tokens, most = profile->tokens_max;
    struct profile_kind *embedding = &profile->kinds[KIND_EMBEDDING], *layer = &profile->kinds[KIND_LAYER],
                        *head = &profile->kinds[KIND_HEAD];
    for (uint32_t tokens = 16; tokens < longest; tokens *= 4)
        point_add(layer, 1, tokens + 3 < longest ? tokens + 3 : tokens, 0);
    point_add(layer, 1, longest, 0);
    if (most >= TOKENS_OF_ROWS * longest)
        point_add(layer, 4 * TOKENS_OF_ROWS, max_u32(longest / 4, 5) - 3, 0);
    else
        point_add(layer, 4, max_u32(longest / 4, 5) - 3, 0);
    if (most > TOKENS_OF_ROWS * longest)
        point_add(layer, most / longest, longest, 0);
    if (longest < SHORT_ROWS)
        point_add(layer, 8, max_u32(longest / 16, 3) - 1, 0);
    point_add(embedding, 1, longest < 16 ? longest : 16, 0);
    point_add(embedding, 1, longest, 0);
    point_add(embedding, most / longest, longest, 0);
    /* The head works on labelled tokens only. Beyond a few chunks of logits its time is linear. */
    for (uint32_t labelled = 1; labelled < longest && labelled < HEAD_LABELLED_MAX;
         labelled *= labelled < 16 ? 2 : 4)
        point_add(head, 1, longest, labelled);
    point_add(head, 1, longest, longest > HEAD_LABELLED_MAX ? HEAD_LABELLED_MAX : longest - 1);
    point_add(head, most / longest, longest, max_u32(longest / 16, 1));
    if (!layer->fits)
        profile_parts_points(profile);
}

static int step_time(struct profile *profile, struct profile_kind *kind, struct stage *stage)
{
    const struct step_update update = {
        .learning_rate = 0, .beta1 = 0.9, .beta2 = 0.99, .eps = 1, .grad_scale = 0};
    double sum, seconds;
    if (profile_mark(profile, 0) != 0 || stage_grad_square_sum(stage, &sum, profile->err) != 0 ||
        stage_update(stage, &update, profile->err) != 0 || profile_mark(profile, 1) != 0 ||
        profile_marks_apart(profile, 0, &seconds) != 0)
        return -1;
    seconds /= max_u32(kind->layers, 1);
    if (kind->step_s == 0 || seconds < kind->step_s)
        kind->step_s = seconds;
    return 0;
}

static int point_time(struct profile *profile, struct profile_kind *kind, struct stage *stage,
                      struct point *point)
{
    uint32_t row_start[ROWS_MAX + 1];
    double layers = max_u32(kind->layers, 1);
    bool first = kind->block_begin == 0, last = kind == &profile->kinds[KIND_HEAD];
    struct micro_batch batch;
    struct saved *saved;
    profile_batch(profile, point, row_start, &batch);
    if (stage_step_begin(stage, profile->err) != 0 || profile_layers_pass(profile) != 0)
        return -1;
    uint64_t waited_ns = profile_waited_ns(profile);
    if (profile_mark(profile, 0) != 0 ||
        stage_forward(stage, &batch, first ? NULL : profile->in, last ? NULL : profile->out, &saved,
                      profile->err) != 0 ||
        profile_mark(profile, 1) != 0 ||
        stage_backward(stage, &batch, saved, last ? NULL : profile->gradient,
                       first ? NULL : profile->gradient_out, profile->err) != 0 ||
        profile_mark(profile, 2) != 0)
        return -1;
    return profile_phases_add(profile, point, layers, waited_ns);
}

/* Creates a stage of the kind. Where memory is short, the largest micro-batch has the tokens of one row, and
 * then there are fewer layers. *stage is NULL when not even one layer fits. */
static int kind_stage(struct profile *profile, struct profile_kind *kind, struct stage **stage)
{
    const uint32_t least = max_u32(profile->request->sequence_tokens, 32);
    struct stage_options options = profile_options(profile, kind);
    *stage = NULL;
    while (profile_stage(profile, &options, stage) != 0) {
        *stage = NULL;
        if (!profile_short_of_memory(profile->err))
            return -1;
        if (profile->tokens_max > least) {
            options.tokens_max = profile->tokens_max = least;
            points_make(profile);
        } else if (kind->layers > 1) {
            options.block_end = options.block_begin + --kind->layers;
        } else {
            return 0;
        }
    }
    return 0;
}

/* Is a larger shape (in rows, tokens and labels) clearly faster than a smaller one? That is noise, which
 * another pass reduces. */
static bool times_fall(const struct profile_kind *kind)
{
    double seconds[POINTS_MAX][PHASES];
    for (uint32_t i = 0; i < kind->count; i++)
        for (int phase = 0; phase < PHASES; phase++)
            seconds[i][phase] = profile_typical_seconds(&kind->points[i], phase, NULL);
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
            if (profile_stop_check(profile) != 0 || point_time(profile, kind, stage, point) != 0)
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

/* When measuring should end, and when it must end. */
struct profile_span {
    uint64_t until_ns, latest_ns;
};

/* Do repeats of the same work disagree, or do times fall where they must rise? Only this shows load on the
 * machine that does not take the threads' CPUs: traffic to memory, heat, another virtual machine on the same
 * host. */
static bool is_noisy(const struct profile_kind *kind)
{
    return profile_spread(kind) > SPREAD_MOST || times_fall(kind);
}

/* Drops a point's samples before number `from`. */
static void samples_since(struct point *point, uint32_t from)
{
    struct point since = *point;
    uint32_t oldest = point->taken > SAMPLES_MAX ? point->taken - SAMPLES_MAX : 0;
    since.taken = since.undisturbed = 0;
    for (uint32_t i = from > oldest ? from : oldest; i < point->taken; i++) {
        since.samples[since.taken] = point->samples[i % SAMPLES_MAX];
        since.undisturbed += !since.samples[since.taken++].disturbed;
    }
    *point = since;
}

/* Measures the kind's points in passes until span.until_ns, and longer, up to span.latest_ns, while there are
 * fewer than PASSES_LEAST passes, a point has few undisturbed samples, or the kind is noisy. If PASSES_LEAST
 * passes were made after until_ns, and their samples agree better than all samples do, only these count,
 * because the cause of the noise may be gone. */
static int passes_run(struct profile *profile, struct profile_kind *kind, struct stage *stage,
                      struct profile_span span)
{
    uint32_t passes = 0, in_time = 0;
    uint64_t now_ns;
    do {
        for (uint32_t i = 0; i < kind->count; i++)
            if (profile_stop_check(profile) != 0 || point_time(profile, kind, stage, &kind->points[i]) != 0)
                return -1;
        if (step_time(profile, kind, stage) != 0)
            return -1;
        now_ns = profile->request->now_ns();
        passes++;
        in_time += now_ns < span.until_ns;
    } while (now_ns < span.latest_ns && (passes < PASSES_LEAST || now_ns < span.until_ns ||
                                         !profile_has_undisturbed(kind) || is_noisy(kind)));
    if (passes - in_time < PASSES_LEAST)
        return 0;
    struct profile_kind later = *kind;
    for (uint32_t i = 0; i < kind->count; i++)
        samples_since(&later.points[i], in_time);
    if (!times_fall(&later) && profile_spread(&later) < profile_spread(kind))
        *kind = later;
    return 0;
}

/* Measures the points of one kind. The largest point runs once before, to touch all of the memory. Where
 * `halves` is not NULL, the halves of the stage's layers are measured in that span, too. */
static int kind_measure(struct profile *profile, struct profile_kind *kind, struct profile_span span,
                        const struct profile_span *halves)
{
    struct stage *stage;
    uint32_t largest = 0;
    int status = kind_stage(profile, kind, &stage);
    if (!stage)
        return status;
    kind->fits = true;
    if (kind == &profile->kinds[KIND_HEAD])
        status = profile_layers_make(profile);
    for (uint32_t i = 1; i < kind->count; i++)
        if (kind->points[i].rows * kind->points[i].row_tokens >
            kind->points[largest].rows * kind->points[largest].row_tokens)
            largest = i;
    if (status == 0)
        status = point_time(profile, kind, stage, &kind->points[largest]);
    kind->points[largest].taken = kind->points[largest].undisturbed = 0;
    if (status == 0)
        status = warm_up(profile, kind, stage, &kind->points[largest], span.until_ns);
    if (status == 0)
        status = passes_run(profile, kind, stage, span);
    if (status == 0 && halves)
        status = profile_halves(profile, stage, halves->until_ns, halves->latest_ns);
    profile_layers_free(profile);
    stage_destroy(stage);
    return status;
}

/* The share of the forward pass that recompute repeats in backward: all multiplications but those with the
 * FFN's down projection, whose result backward does not need (layer.c). The share is computed, because a
 * measurement would be the difference of two noisy times. */
static double recomputed_share(const struct profile *profile, const struct profile_kind *kind)
{
    const struct model_config *config = profile->request->config;
    const struct model_heads heads =
        model_layer_heads(config, kind->block_begin > 0 ? kind->block_begin - 1 : 0);
    double q = heads.q, kv = heads.kv;
    /* weights of the FFN's down projection, and of all matrices, per value of hidden */
    double down = (double)model_layer_ffn(config, kind->block_begin > 0 ? kind->block_begin - 1 : 0),
           all = 2 * q + 2 * kv + 3 * down;
    if (kind == &profile->kinds[KIND_FFN] || kind == &profile->kinds[KIND_FFN_CUT])
        return 2.0 / 3;
    return kind == &profile->kinds[KIND_LAYER] ? 1 - down / all : 1;
}

/* The point's times, and the bytes of one block for exactly this many tokens. */
static json_t *point_json(const struct profile *profile, const struct profile_kind *kind, struct point *point)
{
    struct stage_options options = profile_options(profile, kind);
    struct owned_layout *all;
    struct err ignored;
    uint32_t tokens = point->rows * point->row_tokens;
    double forward = profile_typical_seconds(point, PHASE_FORWARD, NULL);
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
                  "backward_s", profile_typical_seconds(point, PHASE_BACKWARD, NULL), "recompute_s",
                  forward * recomputed_share(profile, kind), "saved_bytes",
                  (json_int_t)(all->layout.slot.bytes - all->layout.slot.meta_bytes), "boundary_bytes",
                  (json_int_t)(4ull * tokens * all->model.shape.hidden), "workspace_bytes",
                  (json_int_t)all->layout.workspace.bytes);
    free(all);
    return json;
}

/* The times of a part of a layer. `tokens` are those that the part works on; for experts, those of one
 * expert. */
static json_t *part_json(const struct profile *profile, const struct profile_kind *kind, struct point *point)
{
    double forward = profile_typical_seconds(point, PHASE_FORWARD, NULL),
           tokens = point->rows * point->row_tokens;
    tokens *= kind->tokens_share;
    return json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:f}", "block", kind->name, "rows", (int)point->rows,
                     "tokens", tokens, "sum_sq", tokens * tokens / point->rows, "forward_s", forward,
                     "backward_s", profile_typical_seconds(point, PHASE_BACKWARD, NULL), "recompute_s",
                     forward * recomputed_share(profile, kind));
}

/* Forward FLOPs of a layer without adapters. With a point's seconds they give the rate that the device
 * reaches. */
static json_t *layer_flops(const struct profile *profile)
{
    struct block_list list;
    struct err ignored;
    if (model_blocks(profile->request->config, &(struct block_options){.lora = false}, &list, &ignored) != 0)
        return NULL;
    const struct block *layer = &list.blocks[profile->kinds[KIND_LAYER].block_begin];
    json_t *flops =
        json_pack("{s:f, s:f}", "token", layer->flops_per_token, "square", layer->flops_per_square);
    block_list_fini(&list);
    return flops;
}

static int shape_digest(const struct model_config *config, char hex[DIGEST_HEX_SIZE], struct err *err)
{
    json_t *document = model_config_to_json(config, err);
    char *text = !document ? NULL : json_dumps(document, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(document);
    if (!text)
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
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "VmRSS: %llu", &resident_kib) == 1)
            break;
    if (file)
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
        struct stage_options options = profile_options(profile, &one);
        if (stage_memory_predict(&options, &memory[k], profile->err) != 0)
            return NULL;
    }
    if (shape_digest(request->config, shape, profile->err) != 0)
        return NULL;
    json_t *points = json_array();
    for (int k = 0; k < KINDS; k++) {
        struct profile_kind *kind = &profile->kinds[k];
        for (uint32_t i = 0; i < kind->count && kind->fits; i++)
            json_array_append_new(points,
                                  (k <= KIND_HEAD ? point_json : part_json)(profile, kind, &kind->points[i]));
    }
    json_t *document = json_pack(
        "{s:s, s:s, s:i, s:s, s:s, s:s, s:s, s:I, s:o, s:o, s:{s:I, s:I, s:I}, s:{s:I}, s:{s:I}, s:{s:f}, "
        "s:{s:f, s:f}, s:f, s:f}",
        "device", device_name(profile->device), "isa", device_isa(profile->device), "threads",
        (int)device_threads(profile->device), "shape", shape, "method",
        request->method.full ? "full" : "lora", "base", base_names[request->method.base], "compute",
        compute_names[request->method.compute], "base_process_bytes",
        (json_int_t)process_base_bytes(profile->device), "layer_flops", layer_flops(profile), "points",
        points, "weights_bytes", "embedding", (json_int_t)memory[0].bytes[MEM_WEIGHTS], "layer",
        (json_int_t)memory[1].bytes[MEM_WEIGHTS], "head", (json_int_t)memory[2].bytes[MEM_WEIGHTS],
        "adapter_bytes", "layer", (json_int_t)memory[1].bytes[MEM_ADAPTERS], "optimizer_bytes", "layer",
        (json_int_t)memory[1].bytes[MEM_OPTIMIZER], "step_s", "layer", profile->kinds[1].step_s, "cut_share",
        "attention_cut", profile->kinds[KIND_ATTENTION_CUT].cut_share, "ffn_cut",
        profile->kinds[KIND_FFN_CUT].cut_share, "waited_share", waited_share(profile), "spread",
        profile_spread(&profile->kinds[1]));
    if (!document)
        err_set(profile->err, ERR_NOMEM, "out of memory for a profile document");
    return document;
}

static int boundaries_make(struct profile *profile)
{
    struct buffer **const buffers[] = {&profile->in, &profile->out, &profile->gradient,
                                       &profile->gradient_out};
    const struct model_config *c = profile->request->config;
    /* at least what passes by the residual stream: inputs of layers, and k and v of two layers */
    uint64_t lent = c->kv_borrowers ? 2ull * (c->kv_heads * c->head_dim + c->full_kv_heads * c->full_head_dim)
                                    : 0,
             bytes = 4ull * profile->tokens_max * (c->hidden + (uint64_t)c->layers * c->per_layer + lent);
    profile->ids = calloc(profile->tokens_max, sizeof(int32_t));
    profile->labels = calloc(profile->tokens_max, sizeof(int32_t));
    float *values = malloc(bytes);
    int status = 0;
    if (!profile->ids || !profile->labels || !values)
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

/* The weights of a dense layer's matrices. */
static double layer_weights(const struct model_config *config, uint32_t layer)
{
    uint32_t targets = model_layer_targets(config, layer), rows, columns;
    double sum = 0;
    for (uint32_t target = 1; target < LORA_ALL; target <<= 1)
        if (targets & target) {
            lora_target_shape(config, layer, target, &rows, &columns);
            sum += (double)rows * columns;
        }
    return sum;
}

/* Returns the first block of the `count` neighbouring layers that are most like all layers together: in Gemma
 * 4 layers differ in their heads, and the FFNs of the last ones may be twice as wide. */
static uint32_t typical_block(const struct model_config *config, uint32_t count)
{
    uint32_t found = 0;
    double all = 0, least = INFINITY;
    for (uint32_t i = 0; i < config->layers; i++)
        all += layer_weights(config, i) / config->layers;
    for (uint32_t first = 0; first + count <= config->layers && config->experts == 0; first++) {
        double apart = 0;
        for (uint32_t i = first; i < first + count; i++)
            apart += (layer_weights(config, i) - all) / count;
        if (fabs(apart) < least * (1 - 1e-9)) {
            least = fabs(apart);
            found = first;
        }
    }
    return found + 1;
}

/* Fills in everything but the points. */
static int profile_init(struct profile *profile, struct device *device, const struct profile_request *request,
                        struct err *err)
{
    const uint32_t layers = request->config->layers;
    *profile = (struct profile){.request = request, .device = device, .err = err};
    profile->tokens_max =
        request->tokens_max != 0 ? request->tokens_max : TOKENS_OF_ROWS * request->sequence_tokens;
    profile->tokens_max = max_u32(profile->tokens_max, max_u32(request->sequence_tokens, 32));
    static const char *const names[KINDS] = {"embedding", "layer",  "head",          "attention", "ffn",
                                             "router",    "expert", "attention_cut", "ffn_cut"};
    for (int k = 0; k < KINDS; k++)
        profile->kinds[k] = (struct profile_kind){.name = names[k], .tokens_share = 1};
    profile->kinds[KIND_LAYER].layers = layers < LAYERS_MEASURED ? layers : LAYERS_MEASURED;
    profile->kinds[KIND_LAYER].block_begin =
        typical_block(request->config, profile->kinds[KIND_LAYER].layers);
    profile->kinds[KIND_HEAD].block_begin = layers + 1;
    return boundaries_make(profile);
}

static void profile_fini(struct profile *profile)
{
    buffer_destroy(profile->in);
    buffer_destroy(profile->out);
    buffer_destroy(profile->gradient);
    buffer_destroy(profile->gradient_out);
    buffer_destroy(profile->routing);
    for (int i = 0; i < MARKS; i++)
        event_destroy(profile->marks[i]);
    free(profile->ids);
    free(profile->labels);
}

/* Returns the span that ends after a fraction of the requested time. On a slow device it may end up to
 * OVERTIME times as late. */
static struct profile_span span_until(const struct profile *profile, uint64_t begin_ns, double fraction)
{
    uint64_t share_ns = (uint64_t)(fraction * profile->request->seconds * 1e9);
    return (struct profile_span){begin_ns + share_ns, begin_ns + OVERTIME * share_ns};
}

/* Layers are most of a model and get, with their parts, most of the time; embedding and head get the rest.
 * Where outputs are normed before they are added, or attention and FFN read the same input, no plan divides
 * layers, and their halves are not measured.
 */
static int profile_turns(struct profile *profile)
{
    const struct model_config *config = profile->request->config;
    uint64_t begin_ns = profile->request->now_ns();
    struct profile_span parts = span_until(profile, begin_ns, 0.75),
                        halves = span_until(profile, begin_ns, 0.68);
    bool mixture = config->experts > 0,
         apart = !config->post_norms && !config->parallel && config->shared_ffn == 0 && !config->expert_bias;
    if (kind_measure(profile, &profile->kinds[KIND_EMBEDDING], span_until(profile, begin_ns, 0.03), NULL) !=
            0 ||
        kind_measure(profile, &profile->kinds[KIND_LAYER], span_until(profile, begin_ns, mixture ? 0.5 : 0.6),
                     apart && !mixture ? &halves : NULL) != 0 ||
        (apart && !mixture && profile_cut(profile, parts.until_ns, parts.latest_ns) != 0) ||
        (mixture && apart &&
         profile_mixture(profile, profile->request->now_ns(), parts.until_ns, parts.latest_ns) != 0))
        return -1;
    return kind_measure(profile, &profile->kinds[KIND_HEAD], span_until(profile, begin_ns, 1), NULL);
}

int profile_measure(struct device *device, const struct profile_request *request, json_t **document,
                    struct err *err)
{
    struct profile *profile = calloc(1, sizeof(*profile));
    struct profile_request measured = *request;
    *document = NULL;
    if (!profile)
        return err_set(err, ERR_NOMEM, "out of memory for a profile");
    if (!request->method.full && request->method.base == LAYER_BASE_PACKED)
        measured.method.base = LAYER_BASE_NF4;
    int status = profile_init(profile, device, &measured, err);
    points_make(profile);
    if (status == 0)
        status = profile_turns(profile);
    if (status == 0 && !(*document = document_make(profile)))
        status = -1;
    profile_fini(profile);
    free(profile);
    return status;
}
