/* Ranges of trained state: create, load, sum squares, update, and read and write by name. */
#include "engine/stage/shard_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/stage/load.h"
#include "engine/stage/moments.h"
#include "engine/stage/recorded.h"
#include "engine/stage/op_queue.h"

struct range_state {
    struct shard_range is;
    const struct layer_tensors *tensors;
    uint64_t moment_bytes;
    struct buffer *values, *gradients;
    struct buffer *moments[2]; /* NULL: there are no moments, or they are on the host */
    void *host[2];             /* [moment_bytes] each, if moments are on the host */
};

struct named_piece {
    uint32_t range;
    struct flat_piece is;
    char name[LAYER_NAME_MAX];
};

enum { LOSS_SCALE_EXPONENT_MAX = 24 };

struct shard {
    struct device *device;
    const struct stage_options *options;
    struct owned_layout
        *own_layout; /* owns options and layout of a shard without a stage; NULL: a stage owns them */
    bool trains, on_host;
    uint32_t range_count, piece_count;
    struct range_state *ranges;
    struct named_piece *pieces;
    struct buffer *own_sums,
        *page[2]; /* page: the moments of one range while they are on the device (moments_on_host) */
    struct area_view sums;
    double *host_sums; /* [piece_count] */
    double loss_scale;
    uint64_t updates;
};

/* --- a shard's memory --- */

static int shard_range_check(const struct stage_options *options, const struct footprint *layout,
                             const struct shard_range *range, struct err *err)
{
    if (range->block < options->block_begin || range->block >= options->block_end)
        return err_set(err, ERR_INVALID, "shard: block %u is not of blocks %u..%u", range->block,
                       options->block_begin, options->block_end);
    const struct layer_tensors *tensors = footprint_tensors(layout, range->block);
    if (range->begin <= range->end && range->end <= tensors->trained_bytes &&
        flat_cut(tensors, AREA_TRAINED, range->begin) == range->begin &&
        flat_cut(tensors, AREA_TRAINED, range->end) == range->end)
        return 0;
    return err_set(err, ERR_INVALID,
                   "shard: bytes %llu..%llu of block %u's %llu trained ones do not lie between cuts",
                   (unsigned long long)range->begin, (unsigned long long)range->end, range->block,
                   (unsigned long long)tensors->trained_bytes);
}

int shard_memory_predict(const struct stage_options *options, uint32_t range_count,
                         const struct shard_range *ranges, struct stage_memory *out, struct err *err)
{
    struct owned_layout *all;
    struct footprint_shard needs = {0};
    *out = (struct stage_memory){0};
    int status = owned_layout_create(options, &all, err);
    for (uint32_t i = 0; i < range_count && status == 0; i++) {
        status = shard_range_check(&all->options, &all->layout, &ranges[i], err);
        if (status == 0)
            footprint_shard_add(
                &needs, &(struct footprint_alike){footprint_tensors(&all->layout, ranges[i].block), 1},
                ranges[i].begin, ranges[i].end, options->mode == STAGE_TRAIN, options->moments_on_host);
    }
    free(all);
    if (status != 0)
        return -1;
    out->bytes[MEM_ADAPTERS] = needs.adapters;
    out->bytes[MEM_OPTIMIZER] = footprint_shard_optimizer(&needs);
    out->bytes[MEM_BUFFERS] = footprint_shard_buffers(&needs);
    out->total = out->bytes[MEM_ADAPTERS] + out->bytes[MEM_OPTIMIZER] + out->bytes[MEM_BUFFERS];
    out->host = needs.host;
    return 0;
}

/* --- creation and destruction --- */

/* Creates a buffer of zeros; for 0 bytes it creates none. */
static int zeros_create(struct shard *shard, uint64_t bytes, enum mem_purpose purpose, const char *what,
                        struct buffer **out, struct err *err)
{
    if (bytes == 0)
        return 0;
    if (buffer_create(shard->device, bytes, purpose, what, out, err) != 0)
        return -1;
    return buffer_zero(*out, 0, bytes, err);
}

static int moments_create(struct shard *shard, struct range_state *range, struct err *err)
{
    static const char *const what[2] = {"first moments", "second moments"};
    uint64_t bytes = range->moment_bytes;
    for (int i = 0; i < 2 && bytes > 0; i++) {
        if (!shard->on_host) {
            if (zeros_create(shard, bytes, MEM_OPTIMIZER, what[i], &range->moments[i], err) != 0)
                return -1;
            continue;
        }
        if (host_memory_create(shard->device, bytes, what[i], &range->host[i], err) != 0)
            return -1;
        memset(range->host[i], 0, bytes);
    }
    return 0;
}

static int range_create(struct shard *shard, struct range_state *range, struct err *err)
{
    uint64_t bytes = range->is.end - range->is.begin;
    range->moment_bytes =
        shard->trains ? flat_moment_bytes(range->tensors, range->is.begin, range->is.end) : 0;
    if (zeros_create(shard, bytes, MEM_ADAPTERS, "trained values", &range->values, err) != 0)
        return -1;
    if (!shard->trains)
        return 0;
    if (zeros_create(shard, bytes, MEM_ADAPTERS, "gradients", &range->gradients, err) != 0)
        return -1;
    return moments_create(shard, range, err);
}

static void range_fini(struct device *device, struct range_state *range)
{
    buffer_destroy(range->values);
    buffer_destroy(range->gradients);
    for (int i = 0; i < 2; i++) {
        buffer_destroy(range->moments[i]);
        host_memory_destroy(device, range->host[i], range->moment_bytes);
    }
}

/* Lists the pieces of all ranges with their names. */
static int pieces_make(struct shard *shard, struct err *err)
{
    struct flat_piece *flat = NULL;
    uint32_t most = 0, count = 0;
    for (uint32_t r = 0; r < shard->range_count; r++) {
        const struct range_state *range = &shard->ranges[r];
        uint32_t pieces = flat_pieces(range->tensors, range->is.begin, range->is.end, NULL);
        shard->piece_count += pieces;
        most = pieces > most ? pieces : most;
    }
    shard->pieces = calloc(shard->piece_count + 1, sizeof(*shard->pieces));
    shard->host_sums = calloc(shard->piece_count + 1, sizeof(*shard->host_sums));
    flat = calloc(most + 1, sizeof(*flat));
    if (!shard->pieces || !shard->host_sums || !flat) {
        free(flat);
        return err_set(err, ERR_NOMEM, "out of memory for %u parameters' names", shard->piece_count);
    }
    for (uint32_t r = 0; r < shard->range_count; r++) {
        const struct range_state *range = &shard->ranges[r];
        uint32_t pieces = flat_pieces(range->tensors, range->is.begin, range->is.end, flat);
        for (uint32_t i = 0; i < pieces; i++, count++) {
            struct named_piece *piece = &shard->pieces[count];
            piece->range = r;
            piece->is = flat[i];
            layer_tensor_name(shard->options->config, range->is.block - 1, flat[i].tensor, flat[i].copy,
                              piece->name);
        }
    }
    free(flat);
    return 0;
}

static int pages_make(struct shard *shard, struct err *err)
{
    uint64_t most = 0;
    for (uint32_t r = 0; r < shard->range_count && shard->on_host; r++)
        most = shard->ranges[r].moment_bytes > most ? shard->ranges[r].moment_bytes : most;
    for (int i = 0; i < 2; i++)
        if (zeros_create(shard, most, MEM_OPTIMIZER, "moments on their way", &shard->page[i], err) != 0)
            return -1;
    return 0;
}

int shard_make(const struct shard_plan *plan, struct shard **out, struct err *err)
{
    struct shard *shard = calloc(1, sizeof(*shard));
    *out = NULL;
    if (!shard)
        return err_set(err, ERR_NOMEM, "out of memory for a shard");
    shard->device = plan->device;
    shard->options = plan->options;
    shard->trains = plan->options->mode == STAGE_TRAIN;
    shard->loss_scale = 1;
    shard->on_host = plan->options->moments_on_host;
    shard->ranges = calloc(plan->range_count + 1ull, sizeof(*shard->ranges));
    int status =
        !shard->ranges ? err_set(err, ERR_NOMEM, "out of memory for %u ranges", plan->range_count) : 0;
    for (uint32_t r = 0; r < plan->range_count && status == 0; r++) {
        shard->ranges[r] = (struct range_state){
            .is = plan->ranges[r], .tensors = footprint_tensors(plan->layout, plan->ranges[r].block)};
        shard->range_count = r + 1;
        status = range_create(shard, &shard->ranges[r], err);
    }
    if (status == 0 && (pieces_make(shard, err) != 0 || pages_make(shard, err) != 0))
        status = -1;
    if (status != 0) {
        shard_destroy(shard);
        return -1;
    }
    *out = shard;
    return 0;
}

int shard_load(struct shard *shard, const struct weight_source *source, struct err *err)
{
    struct area_loader loader;
    if (loader_init(&loader, shard->device, shard->options, source, err) != 0)
        return -1;
    int status = 0;
    for (uint32_t r = 0; r < shard->range_count && status == 0; r++) {
        const struct range_state *range = &shard->ranges[r];
        status = area_load(&loader, range->tensors,
                           &(struct area_range){.block = range->is.block,
                                                .area = AREA_TRAINED,
                                                .begin = range->is.begin,
                                                .end = range->is.end,
                                                .view = {.buffer = range->values}});
    }
    loader_fini(&loader);
    return status;
}

void shard_sums_set(struct shard *shard, struct area_view sums)
{
    shard->sums = sums;
}

static int shard_fill(struct shard *shard, const struct weight_source *source, struct err *err)
{
    uint64_t bytes = 8ull * shard->piece_count;
    if (bytes > 0 &&
        buffer_create(shard->device, bytes, MEM_BUFFERS, "sums of squares", &shard->own_sums, err) != 0)
        return -1;
    shard_sums_set(shard, (struct area_view){.buffer = shard->own_sums});
    if (shard_load(shard, source, err) != 0)
        return -1;
    return device_sync(shard->device, err);
}

int shard_create(struct device *device, const struct weight_source *source,
                 const struct stage_options *options, uint32_t range_count, const struct shard_range *ranges,
                 struct shard **out, struct err *err)
{
    struct owned_layout *own;
    *out = NULL;
    int status = owned_layout_create(options, &own, err);
    for (uint32_t r = 0; r < range_count && status == 0; r++)
        status = shard_range_check(&own->options, &own->layout, &ranges[r], err);
    if (status == 0)
        status = shard_make(&(struct shard_plan){.device = device,
                                                 .options = &own->options,
                                                 .layout = &own->layout,
                                                 .range_count = range_count,
                                                 .ranges = ranges},
                            out, err);
    if (status != 0) {
        free(own);
        return -1;
    }
    (*out)->own_layout = own;
    if (shard_fill(*out, source, err) == 0)
        return 0;
    shard_destroy(*out);
    *out = NULL;
    return -1;
}

void shard_destroy(struct shard *shard)
{
    if (!shard)
        return;
    for (uint32_t r = 0; r < shard->range_count; r++)
        range_fini(shard->device, &shard->ranges[r]);
    buffer_destroy(shard->page[0]);
    buffer_destroy(shard->page[1]);
    buffer_destroy(shard->own_sums);
    free(shard->ranges);
    free(shard->pieces);
    free(shard->host_sums);
    free(shard->own_layout);
    free(shard);
}

struct area_view shard_values(const struct shard *shard, uint32_t range)
{
    return (struct area_view){.buffer = shard->ranges[range].values};
}

struct area_view shard_gradients(const struct shard *shard, uint32_t range)
{
    return (struct area_view){.buffer = shard->ranges[range].gradients};
}

/* --- a training step --- */

static int shard_train_check(const struct shard *shard, const char *what, struct err *err)
{
    if (shard->trains)
        return 0;
    return err_set(err, ERR_INVALID, "%s of a state made for inference", what);
}

int shard_loss_scale_set(struct shard *shard, double scale, struct err *err)
{
    int exponent;
    if (!(frexp(scale, &exponent) == 0.5) || abs(exponent - 1) > LOSS_SCALE_EXPONENT_MAX)
        return err_set(err, ERR_INVALID, "a loss scale of %g: no power of two from 2^-%d to 2^%d", scale,
                       LOSS_SCALE_EXPONENT_MAX, LOSS_SCALE_EXPONENT_MAX);
    shard->loss_scale = scale;
    return 0;
}

int shard_step_begin(struct shard *shard, struct err *err)
{
    for (uint32_t r = 0; r < shard->range_count; r++) {
        const struct range_state *range = &shard->ranges[r];
        if (range->gradients && buffer_zero(range->gradients, 0, range->is.end - range->is.begin, err) != 0)
            return -1;
    }
    return 0;
}

struct sums_job {
    struct op_queue queue;
    const struct shard *shard;
    bool gradients;
};

/* Queues each piece's sum of squares, written to the shard's buffer of sums. */
static void sums_queue(void *context)
{
    struct sums_job *s = context;
    const struct shard *shard = s->shard;
    for (uint32_t i = 0; i < shard->piece_count; i++) {
        const struct named_piece *piece = &shard->pieces[i];
        const struct range_state *range = &shard->ranges[piece->range];
        struct buffer *area = s->gradients ? range->gradients : range->values;
        queue_op(&s->queue, &(struct op){.kind = OP_SQUARE_SUM,
                                         .square_sum = {.count = piece->is.count,
                                                        .x = f32_at(area, piece->is.at),
                                                        .out = {.buffer = shard->sums.buffer,
                                                                .at = shard->sums.at + 8ull * i,
                                                                .dtype = DTYPE_F64}}});
    }
}

/* Computes the sum of squares of each piece's values or gradients into host_sums. Waits for the device. */
static int square_sums(struct shard *shard, bool gradients, struct err *err)
{
    struct sums_job s = {
        .queue = {.device = shard->device, .err = err}, .shard = shard, .gradients = gradients};
    if (shard->piece_count > 0)
        sums_run(&s.queue, shard->sums, gradients, sums_queue, &s);
    if (s.queue.failed ||
        (shard->piece_count > 0 && buffer_read(shard->sums.buffer, shard->sums.at, shard->host_sums,
                                               8ull * shard->piece_count, err) != 0))
        return -1;
    return device_sync(shard->device, err);
}

static const char *first_not_finite(const struct shard *shard)
{
    for (uint32_t i = 0; i < shard->piece_count; i++)
        if (!isfinite(shard->host_sums[i]))
            return shard->pieces[i].name;
    return NULL;
}

int shard_not_finite(struct shard *shard, const char **name, struct err *err)
{
    if (square_sums(shard, false, err) != 0)
        return -1;
    *name = first_not_finite(shard);
    return 0;
}

int shard_grad_square_sum_from(struct shard *shard, uint32_t from, double *sum, struct err *err)
{
    *sum = 0;
    if (shard_train_check(shard, "gradients", err) != 0 || square_sums(shard, true, err) != 0)
        return -1;
    const char *name = first_not_finite(shard);
    if (name) {
        *sum = NAN;
        return err_set(err, ERR_NOT_FINITE, "the gradient of %s is not finite", name);
    }
    for (uint32_t i = 0; i < shard->piece_count; i++) {
        struct parameter of = shard_piece_at(shard, i).of;
        if (of.block >= from || !of.alike)
            *sum += shard->host_sums[i];
    }
    *sum /= shard->loss_scale * shard->loss_scale;
    return 0;
}

int shard_grad_square_sum(struct shard *shard, double *sum, struct err *err)
{
    return shard_grad_square_sum_from(shard, 0, sum, err);
}

struct step_constants {
    const struct step_update *update;
    double grad_scale; /* the update's grad_scale divided by the loss scale */
    double correction1, correction2;
};

/* A range that is being updated. `moments` are the range's own buffers on the device, or the shard's pages,
 * into which moments on the host are copied for the update. */
struct range_update {
    struct op_queue queue;
    const struct range_state *range;
    struct buffer *moments[2];
    const struct step_constants *c;
};

static struct adamw_rule shard_rule_of(const struct step_constants *c, double decay)
{
    return (struct adamw_rule){.learning_rate = c->update->learning_rate,
                               .beta1 = c->update->beta1,
                               .beta2 = c->update->beta2,
                               .eps = c->update->eps,
                               .weight_decay = decay,
                               .grad_scale = c->grad_scale,
                               .bias_correction1 = c->correction1,
                               .bias_correction2 = c->correction2};
}

static void adamw_queue(struct range_update *s, uint64_t at, uint64_t count, uint64_t moment, double decay)
{
    queue_op(&s->queue, &(struct op){.kind = OP_ADAMW,
                                     .adamw = {.count = count,
                                               .rule = shard_rule_of(s->c, decay),
                                               .value = f32_at(s->range->values, at),
                                               .gradient = f32_at(s->range->gradients, at),
                                               .moment1 = f32_at(s->moments[0], moment),
                                               .moment2 = f32_at(s->moments[1], moment)}});
}

static struct operand bytes_at(struct buffer *buffer, uint64_t at)
{
    return (struct operand){.buffer = buffer, .at = at, .dtype = DTYPE_U8};
}

static void adamw8_queue(struct range_update *s, const struct flat_piece *piece, double decay)
{
    uint64_t moment = piece->moment, absmax = piece->moment + piece->absmax;
    queue_op(&s->queue, &(struct op){.kind = OP_ADAMW8,
                                     .adamw8 = {.count = piece->count,
                                                .rule = shard_rule_of(s->c, decay),
                                                .value = f32_at(s->range->values, piece->at),
                                                .gradient = f32_at(s->range->gradients, piece->at),
                                                .code1 = bytes_at(s->moments[0], moment),
                                                .code2 = bytes_at(s->moments[1], moment),
                                                .absmax1 = f32_at(s->moments[0], absmax),
                                                .absmax2 = f32_at(s->moments[1], absmax)}});
}

static double decay_of(const struct named_piece *piece, const struct step_update *update)
{
    return piece->is.tensor->vector ? update->vector_decay : update->weight_decay;
}

/* Updates piece `index` of a range together with those after it that are adjacent and have the same weight
 * decay, as one op. Padding between them is zero in values, gradients and moments, and stays zero. Returns
 * the index after the last one. */
static uint32_t run_update(const struct shard *shard, struct range_update *s, uint32_t index)
{
    const struct named_piece *first = &shard->pieces[index], *last = first;
    double decay = decay_of(first, s->c->update);
    if (first->is.tensor->moments8) {
        adamw8_queue(s, &first->is, decay);
        return index + 1;
    }
    uint64_t begin = first->is.at, end = begin + 4 * first->is.count;
    for (uint32_t i = index + 1; i < shard->piece_count && !s->range->tensors->moments8; i++) {
        const struct named_piece *next = &shard->pieces[i];
        uint64_t at = next->is.at;
        if (next->range != first->range || at < end || at - end >= 64 ||
            decay_of(next, s->c->update) != decay)
            break;
        end = at + 4 * next->is.count;
        last = next;
    }
    adamw_queue(s, begin, (end - begin) / 4, first->is.moment, decay);
    return (uint32_t)(last - shard->pieces) + 1;
}

/* Copies a range's moments from the host to the pages, or back. */
static void moments_move(const struct shard *shard, struct range_update *s, bool back)
{
    const struct range_state *range = s->range;
    for (int i = 0; i < 2 && shard->on_host && range->moment_bytes > 0 && !s->queue.failed; i++) {
        int status = back
                         ? buffer_read(shard->page[i], 0, range->host[i], range->moment_bytes, s->queue.err)
                         : buffer_write(shard->page[i], 0, range->host[i], range->moment_bytes, s->queue.err);
        s->queue.failed = status != 0;
    }
}

int shard_update(struct shard *shard, const struct step_update *update, struct err *err)
{
    if (shard_train_check(shard, "an update", err) != 0)
        return -1;
    double step = (double)++shard->updates;
    struct step_constants constants = {.update = update,
                                       .grad_scale = update->grad_scale / shard->loss_scale,
                                       .correction1 = 1 - pow(update->beta1, step),
                                       .correction2 = 1 - pow(update->beta2, step)};
    struct range_update s = {.queue = {.device = shard->device, .err = err}, .c = &constants};
    for (uint32_t i = 0; i < shard->piece_count && !s.queue.failed;) {
        uint32_t r = shard->pieces[i].range;
        s.range = &shard->ranges[r];
        for (int k = 0; k < 2; k++)
            s.moments[k] = shard->on_host ? shard->page[k] : s.range->moments[k];
        moments_move(shard, &s, false);
        while (i < shard->piece_count && shard->pieces[i].range == r)
            i = run_update(shard, &s, i);
        moments_move(shard, &s, true);
    }
    if (s.queue.failed)
        return -1;
    /* waits until the host has all moments again */
    return shard->on_host ? device_sync(shard->device, err) : 0;
}

uint64_t shard_update_count(const struct shard *shard)
{
    return shard->updates;
}

void shard_update_count_set(struct shard *shard, uint64_t count)
{
    shard->updates = count;
}

/* --- parameters by name --- */

uint32_t shard_piece_count(const struct shard *shard)
{
    return shard->piece_count;
}

struct shard_piece shard_piece_at(const struct shard *shard, uint32_t index)
{
    const struct named_piece *piece = &shard->pieces[index];
    const struct layer_tensor *tensor = piece->is.tensor;
    return (struct shard_piece){.of = {.name = piece->name,
                                       .rows = tensor->rows,
                                       .columns = tensor->columns,
                                       .vector = tensor->vector,
                                       .block = shard->ranges[piece->range].is.block,
                                       .row_begin = tensor->row_begin,
                                       .column_begin = tensor->column_begin,
                                       .whole_rows = tensor->whole_rows,
                                       .whole_columns = tensor->whole_columns,
                                       .alike = layer_tensor_alike(&shard->options->part, tensor)},
                                .first = piece->is.first,
                                .count = piece->is.count};
}

/* The memory of one state (values, gradients or moments) of a part of a piece: in a buffer, or on the host.
 */
struct state_place {
    struct buffer *buffer;
    uint8_t *host;
    uint64_t at, bytes;
    uint64_t scales_at, scales_bytes; /* the scales of 8-bit moments, whose codes are at `at`; else 0 bytes */
};

static int shard_state_find(const struct shard *shard, const struct shard_part *part,
                            struct state_place *place, struct err *err)
{
    if (part->piece >= shard->piece_count)
        return err_set(err, ERR_NOT_FOUND, "parameter %u of %u", part->piece, shard->piece_count);
    const struct flat_piece *piece = &shard->pieces[part->piece].is;
    const struct range_state *range = &shard->ranges[shard->pieces[part->piece].range];
    bool moment = part->state == STATE_MOMENT1 || part->state == STATE_MOMENT2;
    int which = part->state == STATE_MOMENT2;
    if (part->first > piece->count || part->count > piece->count - part->first ||
        part->first % SHARD_PART_VALUES != 0 ||
        (part->count % SHARD_PART_VALUES != 0 && part->first + part->count != piece->count))
        return err_set(err, ERR_INTERNAL, "%s: %llu values from %llu on are no part of a piece of %llu",
                       shard->pieces[part->piece].name, (unsigned long long)part->count,
                       (unsigned long long)part->first, (unsigned long long)piece->count);
    if (part->state != STATE_VALUE && !shard->trains)
        return err_set(err, ERR_INVALID, "a stage made for inference has no gradients or moments");
    bool codes = moment && piece->tensor->moments8;
    *place = (struct state_place){.buffer = moment                       ? range->moments[which]
                                            : part->state == STATE_VALUE ? range->values
                                                                         : range->gradients,
                                  .host = moment ? range->host[which] : NULL,
                                  .at = (moment ? piece->moment : piece->at) + (codes ? 1 : 4) * part->first,
                                  .bytes = (codes ? 1 : 4) * part->count};
    if (codes) {
        place->scales_at = piece->moment + piece->absmax + 4 * (part->first / SHARD_PART_VALUES);
        place->scales_bytes = 4 * ((part->count + SHARD_PART_VALUES - 1) / SHARD_PART_VALUES);
    }
    return 0;
}

static int span_read(const struct state_place *place, uint64_t at, void *dst, uint64_t bytes, struct err *err)
{
    if (!place->host)
        return buffer_read(place->buffer, at, dst, bytes, err);
    memcpy(dst, place->host + at, bytes);
    return 0;
}

static int span_write(const struct state_place *place, uint64_t at, const void *src, uint64_t bytes,
                      struct err *err)
{
    if (!place->host)
        return buffer_write(place->buffer, at, src, bytes, err);
    memcpy(place->host + at, src, bytes);
    return 0;
}

/* Allocates host memory for the scales of 8-bit moments, followed by their codes. */
static float *codes_alloc(const struct shard *shard, const struct shard_part *part,
                          const struct state_place *place, struct err *err)
{
    float *memory = calloc(1, place->scales_bytes + place->bytes);
    if (!memory)
        err_set(err, ERR_NOMEM, "out of memory for the moments of %s", shard->pieces[part->piece].name);
    return memory;
}

int shard_part_read(struct shard *shard, const struct shard_part *part, float *dst, struct err *err)
{
    struct state_place place;
    if (shard_state_find(shard, part, &place, err) != 0)
        return -1;
    if (part->count == 0)
        return 0;
    if (place.scales_bytes == 0)
        return span_read(&place, place.at, dst, place.bytes, err) != 0 ? -1 : device_sync(shard->device, err);
    float *scales = codes_alloc(shard, part, &place, err);
    if (!scales)
        return -1;
    uint8_t *codes = (uint8_t *)scales + place.scales_bytes;
    int status = span_read(&place, place.at, codes, place.bytes, err);
    if (status == 0)
        status = span_read(&place, place.scales_at, scales, place.scales_bytes, err);
    if (status == 0)
        status = device_sync(shard->device, err);
    if (status == 0)
        moments8_unpack(part->state == STATE_MOMENT1, codes, scales, part->count, dst);
    free(scales);
    return status;
}

int shard_part_write(struct shard *shard, const struct shard_part *part, const float *src, struct err *err)
{
    struct state_place place;
    if (shard_state_find(shard, part, &place, err) != 0)
        return -1;
    /* gradients may be infinite; the norm reports that */
    for (uint64_t i = 0; i < part->count && part->state != STATE_GRADIENT; i++)
        if (!isfinite(src[i]))
            return err_set(err, ERR_NOT_FINITE, "%s: a value to be loaded is not finite",
                           shard->pieces[part->piece].name);
    if (part->count == 0)
        return 0;
    if (place.scales_bytes == 0)
        return span_write(&place, place.at, src, place.bytes, err) != 0 ? -1
                                                                        : device_sync(shard->device, err);
    float *scales = codes_alloc(shard, part, &place, err);
    if (!scales)
        return -1;
    uint8_t *codes = (uint8_t *)scales + place.scales_bytes;
    moments8_pack(part->state == STATE_MOMENT1, src, part->count, codes, scales);
    int status = span_write(&place, place.at, codes, place.bytes, err);
    if (status == 0)
        status = span_write(&place, place.scales_at, scales, place.scales_bytes, err);
    if (status == 0)
        status = device_sync(shard->device, err);
    free(scales);
    return status;
}

static struct shard_part whole_piece(const struct shard *shard, uint32_t index, enum stage_state state)
{
    return (struct shard_part){.piece = index,
                               .state = state,
                               .count = index < shard->piece_count ? shard->pieces[index].is.count : 0};
}

int shard_state_read(struct shard *shard, uint32_t index, enum stage_state state, float *dst, struct err *err)
{
    struct shard_part part = whole_piece(shard, index, state);
    return shard_part_read(shard, &part, dst, err);
}

int shard_state_write(struct shard *shard, uint32_t index, enum stage_state state, const float *src,
                      struct err *err)
{
    struct shard_part part = whole_piece(shard, index, state);
    return shard_part_write(shard, &part, src, err);
}

int shard_state_view(const struct shard *shard, uint32_t index, enum stage_state state, struct area_view *out,
                     struct err *err)
{
    struct shard_part part = whole_piece(shard, index, state);
    struct state_place place;
    if (state != STATE_VALUE && state != STATE_GRADIENT)
        return err_set(err, ERR_INTERNAL, "moments may be on the host or in codes");
    if (shard_state_find(shard, &part, &place, err) != 0)
        return -1;
    *out = (struct area_view){place.buffer, place.at};
    return 0;
}
