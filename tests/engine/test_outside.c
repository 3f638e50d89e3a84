/* Tests state that the caller owns: bound as a whole, gathered temporarily, or updated in flat shards, it
 * gives the same bits and takes the predicted memory. Missing state is reported by name. */
#include "engine/seeded.h"

#include "engine/stage/shard.h"

static const char *tested = "cpu"; /* the kind of device; every test runs on both kinds */

enum { SHARDS_MAX = 4, BLOCKS_MOST = 8, STEPS = 2, BATCHES = 2 };

struct method {
    const char *name;
    bool full, moments8, double_quant, train_head;
    enum layer_base base;
};

static const struct method methods[] = {
    {.name = "full", .full = true},
    {.name = "full, 8 bits", .full = true, .moments8 = true},
    {.name = "lora"},
    {.name = "lora on bf16, 8 bits", .base = LAYER_BASE_BF16, .moments8 = true},
    {.name = "lora on nf4", .base = LAYER_BASE_NF4},
    {.name = "lora on nf4 doubly quantised, head",
     .base = LAYER_BASE_NF4,
     .double_quant = true,
     .train_head = true},
};
enum { METHODS = sizeof(methods) / sizeof(methods[0]) };

static struct stage_options options_of(const struct model_config *config, const struct method *method)
{
    struct stage_options o = {
        .config = config,
        .block_end = config->layers + 2,
        .mode = STAGE_TRAIN,
        .full = method->full,
        .moments8 = method->moments8,
        .double_quant = method->double_quant,
        .base = method->base,
        .train_head = method->train_head,
        .seed = 3,
        .micro_batches_in_flight = BATCHES,
        .tokens_max = SEEDED_TOKENS,
    };
    /* With rank 100, adapters' tensors of 100 × 48 values and more are large enough for 8-bit moments. */
    if (!method->full)
        o.lora = (struct lora_options){.rank = 100, .alpha = 8, .targets = LORA_ALL | LORA_TABLES};
    if (!method->full && config->experts == 0)
        o.lora.dropout = 0.1;
    return o;
}

/* --- a rank's shards, and one stage that runs what is gathered from all of them --- */

struct split {
    const struct model_config *config;
    struct stage_options options;
    struct weight_source source;
    struct device *device;
    uint32_t blocks, count;                       /* number of blocks, and of shards */
    uint64_t frozen[BLOCKS_MOST][SHARDS_MAX + 1]; /* [block] where the frozen area is cut into shards */
    uint64_t trained[BLOCKS_MOST][SHARDS_MAX + 1];
    struct buffer *pieces[BLOCKS_MOST][SHARDS_MAX]; /* [block][shard] the shards of the frozen areas */
    struct shard *shards[SHARDS_MAX];               /* each shard has one range a block */
    struct buffer *weights[2], *values[2],
        *gradients[2]; /* gathered areas: one for the layers in turn, one for embedding and head */
    struct buffer *x[BATCHES][2], *d[BATCHES][2];
    struct stage *stage;
};

static void shares_draw(struct rand_stream *stream, uint32_t count, double *shares)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        shares[i] = i > 0 && rand_stream_below(stream, 4) == 0 ? 0 : 0.05 + rand_stream_unit(stream);
        sum += shares[i];
    }
    for (uint32_t i = 0; i < count; i++)
        shares[i] /= sum;
}

static uint64_t area_bytes(const struct split *s, uint32_t block, enum block_area area)
{
    struct err err;
    uint64_t bytes;
    check(stage_area_bytes(&s->options, block, area, &bytes, &err));
    return bytes;
}

static void shards_make(struct split *s, const double *shares)
{
    struct err err;
    for (uint32_t b = 0; b < s->blocks; b++) {
        check(stage_area_cuts(&s->options, b, AREA_FROZEN, s->count, shares, s->frozen[b], &err));
        check(stage_area_cuts(&s->options, b, AREA_TRAINED, s->count, shares, s->trained[b], &err));
    }
    for (uint32_t k = 0; k < s->count; k++) {
        struct shard_range ranges[BLOCKS_MOST];
        struct stage_memory predicted;
        struct mem_account before, after;
        for (uint32_t b = 0; b < s->blocks; b++) {
            ranges[b] =
                (struct shard_range){.block = b, .begin = s->trained[b][k], .end = s->trained[b][k + 1]};
            uint64_t bytes = s->frozen[b][k + 1] - s->frozen[b][k];
            check(buffer_create(s->device, bytes, MEM_WEIGHTS, "a shard", &s->pieces[b][k], &err));
            check(buffer_zero(s->pieces[b][k], 0, bytes, &err));
            check(stage_area_load(
                s->device, &s->source, &s->options,
                &(struct area_range){
                    b, AREA_FROZEN, s->frozen[b][k], s->frozen[b][k + 1], {s->pieces[b][k], 0}},
                &err));
        }
        device_memory(s->device, &before);
        check(shard_memory_predict(&s->options, s->blocks, ranges, &predicted, &err));
        check(shard_create(s->device, &s->source, &s->options, s->blocks, ranges, &s->shards[k], &err));
        device_memory(s->device, &after);
        for (int p = 0; p < MEM_PURPOSES; p++)
            assert_int_equal(after.held[p] - before.held[p], predicted.bytes[p]);
    }
}

static void split_init(struct split *s, const struct model_config *config, const struct method *method,
                       struct device *device, uint32_t count, const double *shares)
{
    struct err err;
    uint64_t weights = 64, values = 64;
    memset(s, 0, sizeof(*s));
    s->config = config;
    s->options = options_of(config, method);
    s->source = seeded_source(config);
    s->device = device;
    s->blocks = config->layers + 2;
    s->count = count;
    shards_make(s, shares);
    for (uint32_t b = 0; b < s->blocks; b++) {
        uint64_t frozen = area_bytes(s, b, AREA_FROZEN), trained = area_bytes(s, b, AREA_TRAINED);
        weights = frozen > weights ? frozen : weights;
        values = trained > values ? trained : values;
    }
    for (int i = 0; i < 2; i++) {
        check(buffer_create(device, 64 + weights, MEM_BUFFERS, "gathered", &s->weights[i], &err));
        check(buffer_create(device, 64 + values, MEM_BUFFERS, "gathered", &s->values[i], &err));
        check(buffer_create(device, 64 + values, MEM_BUFFERS, "gradients", &s->gradients[i], &err));
        for (int m = 0; m < BATCHES; m++) {
            uint64_t boundary = 4ull * SEEDED_TOKENS * config->hidden;
            check(buffer_create(device, boundary, MEM_BUFFERS, "x", &s->x[m][i], &err));
            check(buffer_create(device, boundary, MEM_BUFFERS, "d", &s->d[m][i], &err));
        }
    }
    struct stage_options o = s->options;
    struct stage_memory predicted;
    struct mem_account before, after;
    o.outside.block_end = s->blocks;
    o.outside.frozen = o.outside.trained = true;
    device_memory(device, &before);
    check(stage_memory_predict(&o, &predicted, &err));
    check(stage_create_from(device, &s->source, &o, &s->stage, &err));
    device_memory(device, &after);
    for (int p = 0; p < MEM_PURPOSES; p++)
        assert_int_equal(after.held[p] - before.held[p], predicted.bytes[p]);
    assert_int_equal(predicted.bytes[MEM_ADAPTERS] + predicted.bytes[MEM_OPTIMIZER], 0);
    assert_int_equal(stage_parameter_count(s->stage), 0);
}

static void split_fini(struct split *s)
{
    stage_destroy(s->stage);
    for (uint32_t k = 0; k < s->count; k++) {
        shard_destroy(s->shards[k]);
        for (uint32_t b = 0; b < s->blocks; b++)
            buffer_destroy(s->pieces[b][k]);
    }
    for (int i = 0; i < 2; i++) {
        buffer_destroy(s->weights[i]);
        buffer_destroy(s->values[i]);
        buffer_destroy(s->gradients[i]);
        for (int m = 0; m < BATCHES; m++) {
            buffer_destroy(s->x[m][i]);
            buffer_destroy(s->d[m][i]);
        }
    }
}

/* Gathers a block into one of two buffers, 64 bytes from its beginning, and binds it there. */
static void gather(struct split *s, uint32_t block, int place)
{
    struct err err;
    for (uint32_t k = 0; k < s->count; k++) {
        const uint64_t *f = s->frozen[block], *t = s->trained[block];
        check(buffer_copy(s->weights[place], 64 + f[k], s->pieces[block][k], 0, f[k + 1] - f[k], &err));
        if (t[k + 1] > t[k])
            check(buffer_copy(s->values[place], 64 + t[k], shard_values(s->shards[k], block).buffer, 0,
                              t[k + 1] - t[k], &err));
    }
    check(stage_block_bind(s->stage, block,
                           &(struct block_areas){.frozen = {s->weights[place], 64},
                                                 .trained = {s->values[place], 64},
                                                 .gradients = {s->gradients[place], 64}},
                           &err));
}

static void gradients_zero(struct split *s, uint32_t block, int place)
{
    struct err err;
    check(buffer_zero(s->gradients[place], 64, area_bytes(s, block, AREA_TRAINED), &err));
}

/* Scatters a block's gradients to the shards. There is one member, so its gradients are the sum. */
static void scatter(struct split *s, uint32_t block, int place)
{
    struct err err;
    for (uint32_t k = 0; k < s->count; k++) {
        const uint64_t *t = s->trained[block];
        if (t[k + 1] > t[k])
            check(buffer_copy(shard_gradients(s->shards[k], block).buffer, 0, s->gradients[place], 64 + t[k],
                              t[k + 1] - t[k], &err));
    }
    stage_block_release(s->stage, block);
}

/* Runs a step as layered programs do: block by block, all micro-batches through each. Embedding and head keep
 * the second buffer, since a tied head uses block 0's values. */
static double split_step(struct split *s, uint64_t step, double *squares)
{
    struct err err;
    struct saved *saved[BATCHES] = {NULL};
    struct micro_batch mb[BATCHES];
    uint32_t last = s->blocks - 1;
    double loss, part;
    uint64_t labelled;
    check(stage_step_begin(s->stage, &err));
    for (uint32_t m = 0; m < BATCHES; m++)
        seeded_batch(&mb[m], m * 2, 2, step);
    for (uint32_t b = 0; b <= last; b++) {
        gather(s, b, b == 0 || (b == last && !s->config->tied));
        if (b == last || (b == 0 && s->config->tied))
            gradients_zero(s, b, b == 0 || !s->config->tied);
        for (uint32_t m = 0; m < BATCHES; m++)
            check(stage_forward_blocks(s->stage, &mb[m], b, b + 1, b == 0 ? NULL : s->x[m][b % 2],
                                       b == last ? NULL : s->x[m][(b + 1) % 2], &saved[m], &err));
        if (b < last && (b > 0 || !s->config->tied))
            stage_block_release(s->stage, b);
    }
    for (uint32_t b = last + 1; b-- > 0;) {
        int place = b == 0 || (b == last && !s->config->tied);
        if (b < last) {
            gather(s, b, place);
            if (b > 0 || !s->config->tied)
                gradients_zero(s, b, place);
        }
        for (uint32_t m = 0; m < BATCHES; m++)
            check(stage_backward_blocks(s->stage, &mb[m], saved[m], b, b + 1,
                                        b == last ? NULL : s->d[m][(b + 1) % 2],
                                        b == 0 ? NULL : s->d[m][b % 2], &err));
        scatter(s, b, place);
    }
    check(stage_loss(s->stage, &loss, &labelled, &err));
    *squares = 0;
    for (uint32_t k = 0; k < s->count; k++) {
        check(shard_grad_square_sum(s->shards[k], &part, &err));
        *squares += part;
        check(shard_update(s->shards[k], seeded_update(), &err));
    }
    return loss;
}

/* Runs the same step on a stage that owns its whole state. */
static double whole_step(struct stage *stage, uint64_t step, double *squares)
{
    struct err err;
    struct saved *saved[BATCHES];
    struct micro_batch mb[BATCHES];
    double loss;
    uint64_t labelled;
    check(stage_step_begin(stage, &err));
    for (uint32_t m = 0; m < BATCHES; m++) {
        seeded_batch(&mb[m], m * 2, 2, step);
        check(stage_forward(stage, &mb[m], NULL, NULL, &saved[m], &err));
    }
    for (uint32_t m = 0; m < BATCHES; m++)
        check(stage_backward(stage, &mb[m], saved[m], NULL, NULL, &err));
    check(stage_loss(stage, &loss, &labelled, &err));
    check(stage_grad_square_sum(stage, squares, &err));
    check(stage_update(stage, seeded_update(), &err));
    return loss;
}

/* Compares every value and moment of the shards with the stage's, bit by bit. Returns the number of values.
 */
static uint64_t states_compare(struct split *s, struct stage *whole, const char *method)
{
    struct err err;
    uint64_t compared = 0;
    const enum stage_state states[] = {STATE_VALUE, STATE_MOMENT1, STATE_MOMENT2};
    for (uint32_t k = 0; k < s->count; k++)
        for (uint32_t i = 0; i < shard_piece_count(s->shards[k]); i++) {
            struct shard_piece piece = shard_piece_at(s->shards[k], i);
            uint64_t all = (uint64_t)piece.of.rows * piece.of.columns;
            float *got = malloc(4 * piece.count), *want = malloc(4 * all);
            uint32_t index;
            assert_int_equal(piece.first % FLAT_CUT_VALUES, 0);
            assert_true(piece.first + piece.count == all || piece.count % FLAT_CUT_VALUES == 0);
            check(stage_parameter_find(whole, piece.of.name, &index, &err));
            for (int state = 0; state < 3; state++) {
                check(shard_state_read(s->shards[k], i, states[state], got, &err));
                check(stage_state_read(whole, index, states[state], want, &err));
                if (memcmp(got, want + piece.first, 4 * piece.count) != 0)
                    fail_msg("%s: state %d of %s from %llu on differs", method, state, piece.of.name,
                             (unsigned long long)piece.first);
            }
            compared += piece.count;
            free(got);
            free(want);
        }
    return compared;
}

static void flat_shards_stepped_apart_are_the_whole(const struct model_config *config,
                                                    const struct method *method, struct rand_stream *stream)
{
    struct err err;
    struct split s;
    struct stage *whole;
    double shares[SHARDS_MAX];
    uint64_t values = 0;
    struct device *device = device_make(tested, 1);
    uint32_t count = 1 + rand_stream_below(stream, SHARDS_MAX);
    shares_draw(stream, count, shares);
    split_init(&s, config, method, device, count, rand_stream_below(stream, 3) == 0 ? NULL : shares);
    check(stage_create_from(device, &s.source, &s.options, &whole, &err));
    for (uint64_t step = 0; step < STEPS; step++) {
        double apart, together, a = split_step(&s, step, &apart), b = whole_step(whole, step, &together);
        if (memcmp(&a, &b, sizeof(a)) != 0)
            fail_msg("%s: loss %.17g in step %llu, the whole has %.17g", method->name, a,
                     (unsigned long long)step, b);
        assert_true(fabs(apart - together) <= 1e-12 * together);
    }
    for (uint32_t i = 0; i < stage_parameter_count(whole); i++) {
        struct parameter p = stage_parameter_at(whole, i);
        values += (uint64_t)p.rows * p.columns;
    }
    assert_int_equal(states_compare(&s, whole, method->name), values);
    stage_destroy(whole);
    split_fini(&s);
    device_close(device);
}

static void whole_gathered_and_sharded_state_give_the_same_bits(void **state)
{
    (void)state;
    struct rand_stream stream;
    rand_stream_init(&stream, 21, 0);
    for (int m = 0; m < METHODS; m++) {
        bool slow = strcmp(tested, "checked") ==
                    0; /* The slow checked device runs every method once, on one of the two models. */
        if (!slow || m % 2 == 0)
            flat_shards_stepped_apart_are_the_whole(&seeded_dense, &methods[m], &stream);
        if (!slow || m % 2 == 1)
            flat_shards_stepped_apart_are_the_whole(&seeded_experts, &methods[m], &stream);
    }
}

static uint8_t *area_read(const struct split *s, uint32_t block, enum block_area area, uint32_t count,
                          const uint64_t *cuts)
{
    struct err err;
    uint64_t bytes = cuts[count];
    uint8_t *all = calloc(1, bytes + 1);
    for (uint32_t k = 0; k < count; k++) {
        struct buffer *buffer;
        uint64_t size = cuts[k + 1] - cuts[k];
        check(buffer_create(s->device, 64 + size, MEM_WEIGHTS, "a range", &buffer, &err));
        check(buffer_zero(buffer, 0, 64 + size, &err));
        check(stage_area_load(s->device, &s->source, &s->options,
                              &(struct area_range){block, area, cuts[k], cuts[k + 1], {buffer, 64}}, &err));
        check(buffer_read(buffer, 64, all + cuts[k], size, &err));
        check(device_sync(s->device, &err));
        buffer_destroy(buffer);
    }
    return all;
}

/* A tensor is quantised as a whole, wherever a shard cuts it. */
static void ranges_are_loaded_as_the_whole_is(void **state)
{
    (void)state;
    struct err err;
    struct rand_stream stream;
    rand_stream_init(&stream, 22, 0);
    for (int m = 0; m < METHODS; m++) {
        const struct model_config *config = m % 2 == 0 ? &seeded_dense : &seeded_experts;
        struct split s = {.options = options_of(config, &methods[m]), .source = seeded_source(config)};
        s.device = device_make(tested, 1);
        for (uint32_t block = 0; block < config->layers + 2; block++)
            for (int area = AREA_FROZEN; area <= AREA_TRAINED; area++) {
                double shares[SHARDS_MAX];
                uint64_t cuts[SHARDS_MAX + 1], ends[2] = {0, area_bytes(&s, block, (enum block_area)area)};
                shares_draw(&stream, SHARDS_MAX, shares);
                check(stage_area_cuts(&s.options, block, (enum block_area)area, SHARDS_MAX, shares, cuts,
                                      &err));
                uint8_t *apart = area_read(&s, block, (enum block_area)area, SHARDS_MAX, cuts);
                uint8_t *whole = area_read(&s, block, (enum block_area)area, 1, ends);
                assert_int_equal(cuts[SHARDS_MAX], ends[1]);
                assert_memory_equal(apart, whole, ends[1]);
                free(apart);
                free(whole);
            }
        device_close(s.device);
    }
}

/* Some blocks' areas are the caller's and are bound once as a whole; the other blocks' are the stage's own.
 */
static void blocks_of_both_kinds_run_side_by_side(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make(tested, 1);
    for (int kinds = 1; kinds < 4; kinds++) {
        struct stage *whole, *mixed;
        struct stage_options o = options_of(&seeded_dense, &methods[5]);
        struct weight_source source = seeded_source(&seeded_dense);
        struct buffer *frozen, *trained, *gradients;
        struct shard *shard;
        double squares, part;
        uint64_t bytes;
        check(stage_create_from(device, &source, &o, &whole, &err));
        o.outside.block_begin = 2;
        o.outside.block_end = 3;
        o.outside.frozen = (kinds & 1) != 0;
        o.outside.trained = (kinds & 2) != 0;
        check(stage_create_from(device, &source, &o, &mixed, &err));
        check(stage_area_bytes(&o, 2, AREA_FROZEN, &bytes, &err));
        check(buffer_create(device, bytes, MEM_WEIGHTS, "frozen", &frozen, &err));
        check(stage_area_load(device, &source, &o,
                              &(struct area_range){2, AREA_FROZEN, 0, bytes, {frozen, 0}}, &err));
        check(stage_area_bytes(&o, 2, AREA_TRAINED, &bytes, &err));
        check(shard_create(device, &source, &o, 1, &(struct shard_range){2, 0, bytes}, &shard, &err));
        trained = shard_values(shard, 0).buffer;
        gradients = shard_gradients(shard, 0).buffer;
        check(stage_block_bind(mixed, 2,
                               &(struct block_areas){.frozen = {o.outside.frozen ? frozen : NULL, 0},
                                                     .trained = {o.outside.trained ? trained : NULL, 0},
                                                     .gradients = {o.outside.trained ? gradients : NULL, 0}},
                               &err));
        for (uint64_t step = 0; step < 2; step++) {
            check(shard_step_begin(shard, &err));
            double loss = whole_step(whole, step, &squares), other = whole_step(mixed, step, &part);
            assert_memory_equal(&loss, &other, sizeof(loss));
            if (o.outside.trained)
                check(shard_update(shard, seeded_update(), &err));
        }
        stage_destroy(whole);
        stage_destroy(mixed);
        shard_destroy(shard);
        buffer_destroy(frozen);
    }
    device_close(device);
}

/* Checks that state read and written in parts equals, to the bit, state read and written as a whole. */
static void parts_hold_the_whole(struct stage *from, struct stage *to, uint32_t index, enum stage_state state)
{
    struct err err;
    struct parameter p = stage_parameter_at(from, index);
    uint64_t count = (uint64_t)p.rows * p.columns;
    float *whole = malloc(4 * count), *got = malloc(4 * count);
    check(stage_state_read(from, index, state, whole, &err));
    for (uint64_t first = 0, size = SHARD_PART_VALUES; first < count; first += size, size *= 2) {
        uint64_t left = count - first;
        struct shard_part part = {
            .piece = index, .state = state, .first = first, .count = size < left ? size : left};
        check(stage_part_read(from, &part, got + first, &err));
        check(stage_part_write(to, &part, got + first, &err));
    }
    assert_memory_equal(got, whole, 4 * count);
    check(stage_state_read(to, index, state, got, &err));
    assert_memory_equal(got, whole, 4 * count);
    struct shard_part off = {.piece = index, .state = state, .first = 1, .count = count - 1},
                      beyond = {.piece = index, .state = state, .count = count + SHARD_PART_VALUES};
    assert_int_equal(stage_part_read(from, &off, got, &err), -1);
    assert_int_equal(stage_part_write(to, &beyond, whole, &err), -1);
    free(whole);
    free(got);
}

static void moments_on_the_host_give_the_same_bits(void **state)
{
    (void)state;
    struct err err;
    for (int m = 0; m < METHODS; m++) {
        struct device *device = device_make(tested, 1);
        struct stage *here, *paged;
        struct stage_memory one, other;
        struct mem_account before, after;
        struct stage_options o = options_of(&seeded_dense, &methods[m]);
        struct weight_source source = seeded_source(&seeded_dense);
        check(stage_memory_predict(&o, &one, &err));
        check(stage_create_from(device, &source, &o, &here, &err));
        o.moments_on_host = true;
        check(stage_memory_predict(&o, &other, &err));
        device_memory(device, &before);
        check(stage_create_from(device, &source, &o, &paged, &err));
        device_memory(device, &after);
        for (int p = 0; p < MEM_PURPOSES; p++)
            assert_int_equal(after.held[p] - before.held[p], other.bytes[p]);
        assert_int_equal(after.host_held - before.host_held, other.host);
        assert_int_equal(one.host, 0);
        assert_int_equal(other.host, one.bytes[MEM_OPTIMIZER]);
        assert_true(other.bytes[MEM_OPTIMIZER] < one.bytes[MEM_OPTIMIZER]);
        for (uint64_t step = 0; step < STEPS; step++) {
            double a, b, squares;
            a = whole_step(here, step, &squares);
            b = whole_step(paged, step, &squares);
            assert_memory_equal(&a, &b, sizeof(a));
        }
        for (uint32_t i = 0; i < stage_parameter_count(here); i++) {
            struct parameter p = stage_parameter_at(here, i);
            uint64_t bytes = 4ull * p.rows * p.columns;
            float *a = malloc(bytes), *b = malloc(bytes);
            for (int kind = STATE_VALUE; kind <= STATE_MOMENT2; kind++) {
                check(stage_state_read(here, i, (enum stage_state)kind, a, &err));
                check(stage_state_read(paged, i, (enum stage_state)kind, b, &err));
                assert_memory_equal(a, b, bytes);
            }
            for (int kind = STATE_VALUE; kind <= STATE_MOMENT2; kind++)
                parts_hold_the_whole(here, paged, i, (enum stage_state)kind);
            check(stage_state_write(
                paged, i, STATE_MOMENT1, a,
                &err)); /* Writes other values, here those of the second moments, to the first moments. */
            check(stage_state_read(paged, i, STATE_MOMENT1, b, &err));
            if (!methods[m].moments8)
                assert_memory_equal(a, b, bytes);
            free(a);
            free(b);
        }
        stage_destroy(here);
        stage_destroy(paged);
        device_close(device);
    }
}

static void said(const struct err *err, int status, const char *words)
{
    assert_int_equal(status, -1);
    assert_int_equal(err->code, ERR_INVALID);
    if (!strstr(err->text, words))
        fail_msg("'%s' does not say '%s'", err->text, words);
}

static void what_is_missing_or_askew_is_said_by_name(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make(tested, 1);
    struct stage *stage;
    struct stage_options o = options_of(&seeded_dense, &methods[4]);
    struct weight_source source = seeded_source(&seeded_dense);
    struct saved *saved;
    struct micro_batch mb;
    uint64_t frozen, trained, cuts[3];
    o.outside.block_begin = 2;
    o.outside.block_end = 3;
    o.outside.frozen = o.outside.trained = true;
    check(stage_create_from(device, &source, &o, &stage, &err));
    check(stage_area_bytes(&o, 2, AREA_FROZEN, &frozen, &err));
    check(stage_area_bytes(&o, 2, AREA_TRAINED, &trained, &err));
    seeded_batch(&mb, 0, 4, 0);
    struct buffer *big, *small;
    check(buffer_create(device, frozen + trained + 64, MEM_BUFFERS, "big", &big, &err));
    check(buffer_create(device, frozen - 1, MEM_BUFFERS, "small", &small, &err));
    check(buffer_zero(big, 0, frozen + trained + 64, &err));
    said(&err, stage_forward(stage, &mb, NULL, NULL, &saved, &err), "frozen values of block 2");
    said(&err, stage_block_bind(stage, 2, &(struct block_areas){.frozen = {small, 0}}, &err),
         "frozen values take");
    said(&err, stage_block_bind(stage, 2, &(struct block_areas){.frozen = {big, 4}}, &err), "multiple of 64");
    said(&err, stage_block_bind(stage, 1, &(struct block_areas){.frozen = {big, 0}}, &err),
         "of block 1 itself");
    said(&err, stage_block_bind(stage, 9, &(struct block_areas){.frozen = {big, 0}}, &err), "block 9 is not");
    check(stage_block_bind(stage, 2, &(struct block_areas){.frozen = {big, 0}}, &err));
    said(&err, stage_forward(stage, &mb, NULL, NULL, &saved, &err), "trained values of block 2");
    check(stage_block_bind(stage, 2, &(struct block_areas){.trained = {big, 0}}, &err));
    check(stage_forward(stage, &mb, NULL, NULL, &saved, &err));
    said(&err, stage_backward(stage, &mb, saved, NULL, NULL, &err), "gradients of block 2");
    assert_int_equal(stage_saved_bytes(stage), 0); /* The call released the saved activations. */
    stage_block_release(stage, 2);
    said(&err, stage_forward(stage, &mb, NULL, NULL, &saved, &err), "frozen values of block 2");
    check(device_sync(device, &err));
    stage_destroy(stage);
    struct shard *shard;
    said(&err, shard_create(device, &source, &o, 1, &(struct shard_range){2, 4, trained}, &shard, &err),
         "between cuts");
    said(&err, shard_create(device, &source, &o, 1, &(struct shard_range){9, 0, 0}, &shard, &err), "block 9");
    said(&err, stage_area_cuts(&o, 2, AREA_TRAINED, 2, (double[]){0.5, 0.4}, cuts, &err), "sum to");
    said(&err, stage_area_cuts(&o, 2, AREA_TRAINED, 2, (double[]){1.5, -0.5}, cuts, &err), "share 0");
    said(&err,
         stage_area_load(device, &source, &o, &(struct area_range){2, AREA_FROZEN, 0, frozen + 1, {big, 0}},
                         &err),
         "of an area of");
    o.outside.block_end = 9;
    said(&err, stage_create_from(device, &source, &o, &stage, &err), "from outside");
    buffer_destroy(big);
    buffer_destroy(small);
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_gathered_and_sharded_state_give_the_same_bits),
        cmocka_unit_test(ranges_are_loaded_as_the_whole_is),
        cmocka_unit_test(blocks_of_both_kinds_run_side_by_side),
        cmocka_unit_test(moments_on_the_host_give_the_same_bits),
        cmocka_unit_test(what_is_missing_or_askew_is_said_by_name),
    };
    int failed = cmocka_run_group_tests_name("cpu", tests, NULL, NULL);
    tested = "checked";
    return failed + cmocka_run_group_tests_name("checked", tests, NULL, NULL);
}
