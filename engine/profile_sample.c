/* Stages of random weights, micro-batches, clocks and samples: what the measuring of blocks and of parts has
 * in common. */
#include "engine/profile_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A sample is disturbed if the process's threads waited for a CPU for more than this share of its time: other
 * programs ran on the device's cores. */
#define DISTURBED_SHARE 0.03

enum { LAYERS_LEAST_BYTES = 1 << 20 };

/* The columns of a tensor of this name; a vector has one. */
struct named_columns {
    const char *name;
    uint32_t columns;
};

static int columns_visit(const struct block_tensor *tensor, void *arg)
{
    struct named_columns *named = arg;
    if (strcmp(tensor->name, named->name) != 0)
        return 0;
    named->columns = tensor->shape[1];
    return 1;
}

static int random_read(void *context, const char *name, uint64_t begin, uint64_t end, float *dst,
                       struct err *err)
{
    const struct model_config *config = context;
    struct named_columns named = {.name = name};
    const char *at = strstr(name, "layers.");
    uint32_t block = at ? (uint32_t)strtoul(at + strlen("layers."), NULL, 10) + 1 : 0;
    if (model_block_tensors(config, block, block + 1, columns_visit, &named) == 0)
        model_block_tensors(config, config->layers + 1, config->layers + 2, columns_visit, &named);
    uint64_t columns = named.columns;
    if (columns == 0)
        return err_set(err, ERR_INTERNAL, "the model has no tensor \"%s\"", name);
    for (uint64_t i = 0; i < (end - begin) * columns; i++) {
        /* Cheap pseudo-random values; time does not depend on them. */
        uint64_t mixed = ((begin * columns + i) * 0x9E3779B97F4A7C15ull) >> 40;
        dst[i] = columns == 1 ? 1.0f : (float)((double)mixed / (1 << 24) - 0.5) * 0.05f;
    }
    return 0;
}

struct stage_options profile_options(const struct profile *profile, const struct profile_kind *kind)
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

int profile_mark(struct profile *profile, uint32_t which)
{
    if (profile->marks[which])
        return event_record(profile->marks[which], profile->err);
    if (device_sync(profile->device, profile->err) != 0)
        return -1;
    profile->marks_ns[which] = profile->request->now_ns();
    return 0;
}

int profile_marks_apart(struct profile *profile, uint32_t from, double *seconds)
{
    if (!profile->marks[from]) {
        *seconds = (double)(profile->marks_ns[from + 1] - profile->marks_ns[from]) * 1e-9;
        return 0;
    }
    if (device_sync(profile->device, profile->err) != 0)
        return -1;
    return event_elapsed(profile->marks[from], profile->marks[from + 1], seconds, profile->err);
}

uint64_t profile_waited_ns(const struct profile *profile)
{
    return profile->request->waited_ns ? profile->request->waited_ns() : 0;
}

void profile_sample_add(struct profile *profile, struct point *point, struct sample sample, double took_s,
                        double waited_s)
{
    profile->sampled_s += took_s;
    profile->waited_s += waited_s;
    sample.disturbed = waited_s > DISTURBED_SHARE * took_s;
    point->undisturbed += !sample.disturbed;
    point->samples[point->taken++ % SAMPLES_MAX] = sample;
}

int profile_phases_add(struct profile *profile, struct point *point, double units, uint64_t waited_ns)
{
    struct sample sample;
    double took_s = 0;
    for (uint32_t phase = 0; phase < PHASES; phase++) {
        if (profile_marks_apart(profile, phase, &sample.seconds[phase]) != 0)
            return -1;
        took_s += sample.seconds[phase];
        sample.seconds[phase] /= units;
    }
    profile_sample_add(profile, point, sample, took_s,
                       (double)(profile_waited_ns(profile) - waited_ns) * 1e-9);
    return 0;
}

bool profile_short_of_memory(const struct err *err)
{
    return err->code == ERR_NOFIT || err->code == ERR_NOMEM;
}

void profile_batch(struct profile *profile, const struct point *point, uint32_t *row_start,
                   struct micro_batch *batch)
{
    uint32_t tokens = point->rows * point->row_tokens, left = point->labelled;
    for (uint32_t row = 0; row <= point->rows; row++)
        row_start[row] = row * point->row_tokens;
    for (uint32_t t = 0; t < tokens; t++) {
        bool learnt = t % point->row_tokens != 0 && left > 0;
        profile->labels[t] = learnt ? profile->ids[t] : -100;
        left -= learnt;
    }
    *batch = (struct micro_batch){.rows = point->rows,
                                  .row_start = row_start,
                                  .ids = profile->ids,
                                  .labels = profile->labels,
                                  .step = point->taken};
}

int profile_stop_check(const struct profile *profile)
{
    const struct profile_request *request = profile->request;
    if (request->stop && request->stop(request->context))
        return err_set(profile->err, ERR_CANCELLED, "profiling was stopped");
    return 0;
}

int profile_stage(struct profile *profile, const struct stage_options *options, struct stage **stage)
{
    const struct weight_source source = {.read = random_read,
                                         .context = (void *)(uintptr_t)profile->request->config};
    return stage_create_from(profile->device, &source, options, stage, profile->err);
}

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double profile_typical_seconds(const struct point *point, enum phase phase, double *least)
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
    if (least)
        *least = seconds[0];
    return sum / kept;
}

double profile_spread(const struct profile_kind *kind)
{
    double sum = 0;
    for (uint32_t i = 0; i < kind->count; i++) {
        double least[PHASES] = {0}, seconds = 0;
        for (int phase = 0; phase < PHASES; phase++)
            seconds += profile_typical_seconds(&kind->points[i], phase, &least[phase]);
        if (least[PHASE_FORWARD] + least[PHASE_BACKWARD] > 0)
            sum += seconds / (least[PHASE_FORWARD] + least[PHASE_BACKWARD]) - 1;
    }
    return kind->count > 0 ? sum / kind->count : 0;
}

bool profile_has_undisturbed(const struct profile_kind *kind)
{
    for (uint32_t i = 0; i < kind->count; i++)
        if (kind->points[i].undisturbed < PASSES_LEAST)
            return false;
    return true;
}

int profile_layers_make(struct profile *profile)
{
    const struct profile_kind one = {.block_begin = 1, .layers = 1};
    struct stage_options options = profile_options(profile, &one);
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
        if (!profile_short_of_memory(profile->err))
            return -1;
    }
    return 0;
}

int profile_layers_pass(struct profile *profile)
{
    for (uint64_t at = 0; at < profile->layers_bytes; at += PIECE_BYTES) {
        uint64_t left = profile->layers_bytes - at;
        if (buffer_read(profile->layers, at, profile->piece, left < PIECE_BYTES ? left : PIECE_BYTES,
                        profile->err) != 0)
            return -1;
    }
    return 0;
}

void profile_layers_free(struct profile *profile)
{
    buffer_destroy(profile->layers);
    profile->layers = NULL;
    profile->layers_bytes = 0;
}
