/* Tests parts of layers (heads, FFN columns, ranges of experts) on the members of a group: their sums equal
 * whole layers, and so do gradients of parameters that all members keep alike. */
#include "engine/seeded.h"

static const char *tested = "cpu"; /* the kind of device; every test runs on both kinds */

enum { MEMBERS_MAX = 3, HIDDEN_MAX = 64 };

/* A dense model with biases, whose widths can be cut at NF4's blocks of 64. */
static const struct model_config dense = {
    .arch = MODEL_QWEN2,
    .hidden = 64,
    .layers = 2,
    .heads = 8,
    .kv_heads = 4,
    .head_dim = 32,
    .ffn = 320,
    .vocab = 101,
    .max_positions = 256,
    .norm_eps = 1e-5,
    .rope = {.theta = 10000, .kind = ROPE_DEFAULT, .factor = 1},
    .qkv_bias = true,
    .o_bias = true,
    .mlp_bias = true,
    .qk_norm = 1,
};

struct method {
    const char *name;
    bool full, double_quant;
    enum layer_base base;
    enum dtype compute;
    double dropout; /* dropout of dense layers */
};
static const struct method methods[] = {
    {.name = "full", .full = true},
    {.name = "lora on bf16", .base = LAYER_BASE_BF16},
    {.name = "lora on nf4", .base = LAYER_BASE_NF4},
    {.name = "lora on nf4 doubly quantised", .base = LAYER_BASE_NF4, .double_quant = true},
    {.name = "full in bf16", .full = true, .compute = DTYPE_BF16},
    {.name = "lora with dropout", .base = LAYER_BASE_BF16, .dropout = 0.3},
};
enum { METHODS = sizeof(methods) / sizeof(methods[0]) };

static struct stage_options options_of(const struct model_config *config, const struct method *method)
{
    return (struct stage_options){
        .config = config,
        .block_begin = 1,
        .block_end = config->layers + 1,
        .mode = STAGE_TRAIN,
        .lora = {.rank = method->full ? 0 : 5,
                 .alpha = 8,
                 .dropout = config->experts > 0 ? 0 : method->dropout,
                 .targets = LORA_ALL},
        .full = method->full,
        .base = method->base,
        .compute = method->compute,
        .double_quant = method->double_quant,
        .seed = 3,
        .micro_batches_in_flight = 1,
        .tokens_max = SEEDED_TOKENS,
    };
}

/* A group: a stage with whole layers, and the members' stages with parts of them. */
struct group {
    const struct model_config *config;
    struct device *device;
    struct stage *whole, *members[MEMBERS_MAX];
    uint32_t count;
    struct micro_batch batch;
    struct buffer *in, *out; /* boundary tensors */
};

enum { VALUES = SEEDED_TOKENS * HIDDEN_MAX };

static struct stage *stage_make(struct device *device, const struct stage_options *o)
{
    struct err err;
    struct stage *stage;
    struct stage_memory predicted;
    struct mem_account before, after;
    struct weight_source source = seeded_source(o->config);
    device_memory(device, &before);
    check(stage_memory_predict(o, &predicted, &err));
    check(stage_create_from(device, &source, o, &stage, &err));
    device_memory(device, &after);
    for (int p = 0; p < MEM_PURPOSES; p++)
        assert_int_equal(after.held[p] - before.held[p], predicted.bytes[p]);
    return stage;
}

/* Cuts 0..all at random into `count` ranges of whole units: member i has [cuts[i], cuts[i + 1]). */
static void cuts_draw(struct rand_stream *stream, uint32_t all, uint32_t unit, uint32_t count, uint32_t *cuts)
{
    cuts[0] = 0;
    cuts[count] = all;
    for (uint32_t i = 1; i < count; i++) { /* Each range has at least one unit. */
        uint32_t room = (all - cuts[i - 1]) / unit - (count - i);
        cuts[i] = cuts[i - 1] + unit * (1 + rand_stream_below(stream, room));
    }
}

/* Writes the same random values to every lora_B (which begins as zeros), whole and in parts. */
static void adapters_fill(struct group *g)
{
    struct err err;
    struct rand_stream stream;
    rand_stream_init(&stream, 31, 0);
    for (uint32_t i = 0; i < stage_parameter_count(g->whole); i++) {
        struct parameter p = stage_parameter_at(g->whole, i);
        if (!strstr(p.name, "lora_B"))
            continue;
        float *all = malloc(4ull * p.rows * p.columns), *own = malloc(4ull * p.rows * p.columns);
        for (uint32_t v = 0; v < p.rows * p.columns; v++)
            all[v] = (float)(0.2 * rand_stream_normal(&stream));
        check(stage_state_write(g->whole, i, STATE_VALUE, all, &err));
        for (uint32_t m = 0; m < g->count; m++) {
            uint32_t at;
            if (stage_parameter_find(g->members[m], p.name, &at, &err) != 0)
                continue; /* This expert belongs to another member. */
            struct parameter q = stage_parameter_at(g->members[m], at);
            for (uint32_t row = 0; row < q.rows; row++)
                memcpy(own + row * q.columns, all + (q.row_begin + row) * p.columns + q.column_begin,
                       4ull * q.columns);
            check(stage_state_write(g->members[m], at, STATE_VALUE, own, &err));
        }
        free(all);
        free(own);
    }
}

static void group_init(struct group *g, const struct model_config *config, const struct method *method,
                       struct rand_stream *stream)
{
    struct err err;
    struct stage_options o = options_of(config, method);
    uint32_t heads[MEMBERS_MAX + 1], columns[MEMBERS_MAX + 1], experts[MEMBERS_MAX + 1];
    *g = (struct group){.config = config, .count = 2 + rand_stream_below(stream, MEMBERS_MAX - 1)};
    g->device = device_make(tested, 1);
    if (g->count > config->kv_heads)
        g->count = config->kv_heads;
    g->whole = stage_make(g->device, &o);
    cuts_draw(stream, config->kv_heads, 1, g->count, heads);
    if (config->experts > 0)
        cuts_draw(stream, config->experts, 1, g->count, experts);
    else
        cuts_draw(stream, config->ffn, 64, g->count, columns);
    for (uint32_t m = 0; m < g->count; m++) {
        o.part =
            (struct layer_part){.kv_head_begin = heads[m], .kv_head_end = heads[m + 1], .follows = m > 0};
        o.recompute = rand_stream_below(stream, 2) == 1;
        if (config->experts > 0) {
            o.part.expert_begin = experts[m];
            o.part.expert_end = experts[m + 1];
        } else {
            o.part.column_begin = columns[m];
            o.part.column_end = columns[m + 1];
        }
        g->members[m] = stage_make(g->device, &o);
    }
    check(buffer_create(g->device, 4 * VALUES, MEM_BUFFERS, "in", &g->in, &err));
    check(buffer_create(g->device, 4 * VALUES, MEM_BUFFERS, "out", &g->out, &err));
    seeded_batch(&g->batch, 0, SEEDED_ROWS, 0);
    adapters_fill(g);
}

static void group_fini(struct group *g)
{
    for (uint32_t m = 0; m < g->count; m++)
        stage_destroy(g->members[m]);
    stage_destroy(g->whole);
    buffer_destroy(g->in);
    buffer_destroy(g->out);
    device_close(g->device);
}

static uint64_t boundary_values(const struct group *g)
{
    return (uint64_t)SEEDED_TOKENS * g->config->hidden;
}

static void noise(float *values, uint64_t count, uint64_t seed)
{
    struct rand_stream stream;
    rand_stream_init(&stream, seed, 0);
    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)rand_stream_normal(&stream);
}

static void put(struct group *g, const float *values)
{
    struct err err;
    check(buffer_write(g->in, 0, values, 4 * boundary_values(g), &err));
    check(device_sync(g->device, &err));
}

static void get(struct group *g, float *values)
{
    struct err err;
    check(buffer_read(g->out, 0, values, 4 * boundary_values(g), &err));
    check(device_sync(g->device, &err));
}

/* Runs half a block on all given stages, and replaces `values` by the sum of the stages' outputs. */
static void half_run(struct group *g, struct stage **stages, uint32_t count, struct saved **saved,
                     uint32_t block, enum stage_half half, bool back, float *values)
{
    struct err err;
    float sum[VALUES] = {0}, part[VALUES];
    put(g, values);
    for (uint32_t m = 0; m < count; m++) {
        if (back)
            check(stage_half_backward(stages[m], &g->batch, saved[m], block, half, g->in, g->out, &err));
        else
            check(stage_half_forward(stages[m], &g->batch, block, half, g->in, g->out, &saved[m], &err));
        get(g, part);
        for (uint64_t i = 0; i < boundary_values(g); i++)
            sum[i] += part[i];
    }
    memcpy(values, sum, 4 * boundary_values(g));
}

/* Runs all layers forward and backward in halves. x becomes the output, and d the gradient of the input. */
static void halves_run(struct group *g, struct stage **stages, uint32_t count, float *x, float *d)
{
    struct err err;
    struct saved *saved[MEMBERS_MAX] = {NULL};
    for (uint32_t m = 0; m < count; m++)
        check(stage_step_begin(stages[m], &err));
    for (uint32_t b = 1; b <= g->config->layers; b++) {
        half_run(g, stages, count, saved, b, STAGE_HALF_ATTENTION, false, x);
        half_run(g, stages, count, saved, b, STAGE_HALF_FFN, false, x);
    }
    for (uint32_t b = g->config->layers; b > 0; b--) {
        half_run(g, stages, count, saved, b, STAGE_HALF_FFN, true, d);
        half_run(g, stages, count, saved, b, STAGE_HALF_ATTENTION, true, d);
    }
}

static void whole_run(struct group *g, float *x, float *d)
{
    struct err err;
    struct saved *saved;
    check(stage_step_begin(g->whole, &err));
    put(g, x);
    check(stage_forward(g->whole, &g->batch, g->in, g->out, &saved, &err));
    get(g, x);
    put(g, d);
    check(stage_backward(g->whole, &g->batch, saved, g->in, g->out, &err));
    get(g, d);
}

/* Sums the members' gradients of their parts of a parameter, each where the part lies in the whole. */
static void gradient_gather(struct group *g, const struct parameter *p, float *sum)
{
    struct err err;
    uint32_t seen = 0;
    memset(sum, 0, 4ull * p->rows * p->columns);
    for (uint32_t m = 0; m < g->count; m++) {
        uint32_t at;
        if (stage_parameter_find(g->members[m], p->name, &at, &err) != 0)
            continue;
        struct parameter q = stage_parameter_at(g->members[m], at);
        float *own = malloc(4ull * q.rows * q.columns);
        assert_int_equal(q.whole_rows, p->rows);
        assert_int_equal(q.whole_columns, p->columns);
        check(stage_state_read(g->members[m], at, STATE_GRADIENT, own, &err));
        for (uint32_t row = 0; row < q.rows; row++)
            for (uint32_t column = 0; column < q.columns; column++)
                sum[(q.row_begin + row) * p->columns + q.column_begin + column] +=
                    own[row * q.columns + column];
        seen++;
        free(own);
    }
    assert_true(seen > 0);
}

/* In fp32, sums of parts add in another order: 1.4e-6 apart at worst. In bf16 a sum may be rounded to the
 * neighbouring value, 2^-8 away; gradients of q and k, which nearly cancel, are 0.5e-2 to 2.4e-2 apart. */
static void close_to(const float *got, const float *want, uint64_t count, const struct method *method,
                     const char *what)
{
    double distance = tensor_distance(got, want, count, 1);
    if (!(distance <= (method->compute == DTYPE_F32 ? 4e-6 : 0x1p-5)))
        fail_msg("%s: %s is off by %.2e relative", method->name, what, distance);
}

/* Sums the members' gradients of a parameter that each keeps whole, and gives each the sum. */
static void alike_reduce(struct group *g, uint32_t index)
{
    struct err err;
    struct parameter p = stage_parameter_at(g->members[0], index);
    uint64_t count = (uint64_t)p.rows * p.columns;
    float *sum = calloc(count, 4), *own = malloc(4 * count);
    for (int write = 0; write < 2; write++) {
        for (uint32_t m = 0; m < g->count; m++) {
            uint32_t at;
            if (stage_parameter_find(g->members[m], p.name, &at, &err) != 0) {
                assert_true(p.block == 0 ||
                            p.block > g->config->layers); /* Only the first member has embedding and head. */
                continue;
            }
            assert_true(stage_parameter_at(g->members[m], at).alike);
            if (write)
                check(stage_state_write(g->members[m], at, STATE_GRADIENT, sum, &err));
            else
                check(stage_state_read(g->members[m], at, STATE_GRADIENT, own, &err));
            for (uint64_t i = 0; i < count && !write; i++)
                sum[i] += own[i];
        }
    }
    free(sum);
    free(own);
}

/* Checks that all squares of the first member and the others' own ones sum to those of whole layers. */
static void squares_count_once(struct group *g, const struct method *method)
{
    struct err err;
    double want, sum = 0, twice = 0;
    check(stage_grad_square_sum(g->whole, &want, &err));
    for (uint32_t i = 0; i < stage_parameter_count(g->members[0]); i++)
        if (stage_parameter_at(g->members[0], i).alike)
            alike_reduce(g, i);
    for (uint32_t m = 0; m < g->count; m++) {
        double all, own;
        check(stage_grad_square_sum(g->members[m], &all, &err));
        check(stage_grad_square_sum_from(g->members[m], UINT32_MAX, &own, &err));
        sum += m == 0 ? all : own;
        twice += all;
    }
    if (!(fabs(sum - want) <= (method->compute == DTYPE_F32 ? 1e-5 : 0.02) * want))
        fail_msg("%s: squares sum to %.9g, those of whole layers to %.9g", method->name, sum, want);
    assert_true(twice > 1.001 * want);
}

static void parts_sum_to_the_whole(const struct model_config *config, const struct method *method,
                                   struct rand_stream *stream)
{
    struct err err;
    struct group g;
    float x[VALUES], d[VALUES], out[VALUES], dx[VALUES];
    group_init(&g, config, method, stream);
    uint64_t count = boundary_values(&g);
    noise(x, count, 1);
    noise(d, count, 2);
    memcpy(out, x, 4 * count);
    memcpy(dx, d, 4 * count);
    whole_run(&g, out, dx);
    halves_run(&g, g.members, g.count, x, d);
    close_to(x, out, count, method, "the output");
    close_to(d, dx, count, method, "the gradient of the input");
    for (uint32_t i = 0; i < stage_parameter_count(g.whole); i++) {
        struct parameter p = stage_parameter_at(g.whole, i);
        uint64_t values = (uint64_t)p.rows * p.columns;
        float *want = malloc(4 * values), *got = malloc(4 * values);
        check(stage_state_read(g.whole, i, STATE_GRADIENT, want, &err));
        gradient_gather(&g, &p, got);
        close_to(got, want, values, method, p.name);
        free(want);
        free(got);
    }
    squares_count_once(&g, method);
    group_fini(&g);
}

static void heads_columns_and_experts_sum_to_the_whole(void **state)
{
    (void)state;
    struct rand_stream stream;
    rand_stream_init(&stream, 41, 0);
    for (int m = 0; m < METHODS; m++) {
        struct model_config experts = seeded_experts;
        experts.head_dim = 32; /* With this width, NF4 can be cut between heads. */
        parts_sum_to_the_whole(&dense, &methods[m], &stream);
        parts_sum_to_the_whole(&experts, &methods[m], &stream);
    }
}

static void whole_layers_in_halves_give_the_same_bits(void **state)
{
    (void)state;
    struct err err;
    struct rand_stream stream;
    rand_stream_init(&stream, 42, 0);
    for (int m = 0; m < METHODS; m++) {
        struct group g;
        float x[VALUES], d[VALUES], out[VALUES], dx[VALUES];
        group_init(&g, &dense, &methods[m], &stream);
        uint64_t count = boundary_values(&g);
        noise(x, count, 1);
        noise(d, count, 2);
        memcpy(out, x, 4 * count);
        memcpy(dx, d, 4 * count);
        whole_run(&g, out, dx);
        double whole, halves;
        check(stage_grad_square_sum(g.whole, &whole, &err));
        halves_run(&g, &g.whole, 1, x, d);
        check(stage_grad_square_sum(g.whole, &halves, &err));
        assert_memory_equal(x, out, 4 * count);
        assert_memory_equal(d, dx, 4 * count);
        assert_memory_equal(&whole, &halves, sizeof(whole));
        group_fini(&g);
    }
}

/* Runs two micro-batches alternately through a group whose first member has embedding and head. */
static void turns_run(struct group *g, struct buffer *bufs[2], const struct micro_batch *batch)
{
    struct err err;
    struct saved *saved[2][MEMBERS_MAX] = {{NULL}};
    uint32_t head = g->config->layers + 1;
    static float values[2][VALUES];
    for (uint32_t m = 0; m < g->count; m++)
        check(stage_step_begin(g->members[m], &err));
    for (int k = 0; k < 2; k++) {
        check(buffer_zero(bufs[k], 0, 4 * boundary_values(g), &err));
        check(stage_forward_blocks(g->members[0], &batch[k], 0, 1, NULL, bufs[k], &saved[k][0], &err));
        check(buffer_read(bufs[k], 0, values[k], 4 * boundary_values(g), &err));
        check(device_sync(g->device, &err));
    }
    for (uint32_t h = 0; h < 2 * g->config->layers; h++)
        for (int k = 0; k < 2; k++) {
            g->batch = batch[k];
            half_run(g, g->members, g->count, saved[k], 1 + h / 2,
                     h % 2 ? STAGE_HALF_FFN : STAGE_HALF_ATTENTION, false, values[k]);
        }
    for (int k = 0; k < 2; k++) {
        put(g, values[k]);
        check(
            stage_forward_blocks(g->members[0], &batch[k], head, head + 1, g->in, NULL, &saved[k][0], &err));
    }
    for (int k = 0; k < 2; k++) {
        check(
            stage_backward_blocks(g->members[0], &batch[k], saved[k][0], head, head + 1, NULL, g->out, &err));
        get(g, values[k]);
    }
    for (uint32_t h = 2 * g->config->layers; h-- > 0;)
        for (int k = 0; k < 2; k++) {
            g->batch = batch[k];
            half_run(g, g->members, g->count, saved[k], 1 + h / 2,
                     h % 2 ? STAGE_HALF_FFN : STAGE_HALF_ATTENTION, true, values[k]);
        }
    for (int k = 0; k < 2; k++) { /* A frozen embedding needs no gradient. */
        bool needs = stage_parameter_at(g->members[0], 0).block == 0;
        put(g, values[k]);
        check(stage_backward_blocks(g->members[0], &batch[k], saved[k][0], 0, 1, needs ? g->in : NULL, NULL,
                                    &err));
    }
    for (uint32_t m = 0; m < g->count; m++)
        assert_int_equal(stage_saved_bytes(g->members[m]), 0);
}

static void embedding_and_head_are_whole_on_the_first_member(void **state)
{
    (void)state;
    struct rand_stream stream;
    rand_stream_init(&stream, 44, 0);
    for (int m = 0; m < METHODS; m++) {
        struct err err;
        struct group g;
        struct model_config config = dense;
        struct micro_batch batch[2];
        struct saved *saved;
        double want, loss, own;
        uint64_t labelled;
        config.tied = m % 2 == 0;
        group_init(&g, &config, &methods[m], &stream);
        struct stage_options first, whole = options_of(&config, &methods[m]);
        stage_options_get(g.members[0], &first);
        whole.block_begin = first.block_begin = 0;
        whole.block_end = first.block_end = config.layers + 2;
        first.config = &config;
        first.micro_batches_in_flight = 2;
        stage_destroy(g.whole);
        stage_destroy(g.members[0]);
        g.whole = stage_make(g.device, &whole);
        g.members[0] = stage_make(g.device, &first);
        for (uint32_t i = 1; i < g.count; i++) {
            struct stage_options o;
            stage_options_get(g.members[i], &o);
            o.config = &config;
            o.micro_batches_in_flight = 2;
            stage_destroy(g.members[i]);
            g.members[i] = stage_make(g.device, &o);
        }
        adapters_fill(&g);
        for (int k = 0; k < 2; k++)
            seeded_batch(&batch[k], (uint32_t)k, SEEDED_ROWS - (uint32_t)k, 0);
        check(stage_step_begin(g.whole, &err));
        for (int k = 0; k < 2; k++) {
            check(stage_forward(g.whole, &batch[k], NULL, NULL, &saved, &err));
            check(stage_backward(g.whole, &batch[k], saved, NULL, NULL, &err));
        }
        check(stage_loss(g.whole, &want, &labelled, &err));
        turns_run(&g, (struct buffer *[2]){g.in, g.out}, batch);
        check(stage_loss(g.members[0], &loss, &labelled, &err));
        close_to(&(float){(float)loss}, &(float){(float)want}, 1, &methods[m], "the loss");
        for (uint32_t i = 1; i < g.count; i++) {
            check(stage_loss(g.members[i], &own, &labelled, &err));
            assert_true(own == 0 && labelled == 0);
        }
        squares_count_once(&g, &methods[m]);
        group_fini(&g);
    }
}

/* --- experts apart from their routers --- */

/* One stage has the attention and routers of all blocks; each block's experts are divided among other stages.
 */
struct apart {
    struct stage *attention, *experts[2][MEMBERS_MAX]; /* experts: [layer][member] */
    struct buffer *x, *chosen, *weight, *dx, *dweight, *stream;
};

static void sum_into(struct group *g, struct buffer *buffer, float *sum, uint64_t count)
{
    struct err err;
    float part[VALUES];
    check(buffer_read(buffer, 0, part, 4 * count, &err));
    check(device_sync(g->device, &err));
    for (uint64_t i = 0; i < count; i++)
        sum[i] += part[i];
}

static void write_back(struct group *g, struct buffer *buffer, const float *values, uint64_t count)
{
    struct err err;
    check(buffer_write(buffer, 0, values, 4 * count, &err));
    check(device_sync(g->device, &err));
}

static void apart_init(struct group *g, struct apart *a, const struct method *method,
                       struct rand_stream *stream)
{
    struct err err;
    struct stage_options o = options_of(g->config, method);
    uint32_t cuts[MEMBERS_MAX + 1];
    o.part.holds = HOLDS_NO_EXPERTS;
    o.recompute = rand_stream_below(stream, 2) == 1;
    a->attention = stage_make(g->device, &o);
    o.recompute = false;
    o.part.holds = HOLDS_EXPERTS;
    for (uint32_t layer = 0; layer < g->config->layers; layer++) {
        cuts_draw(stream, g->config->experts, 1, MEMBERS_MAX, cuts);
        for (uint32_t m = 0; m < MEMBERS_MAX; m++) {
            o.block_begin = layer + 1;
            o.block_end = layer + 2;
            o.part.expert_begin = cuts[m];
            o.part.expert_end = cuts[m + 1];
            a->experts[layer][m] = stage_make(g->device, &o);
        }
    }
    struct buffer **all[] = {&a->x, &a->chosen, &a->weight, &a->dx, &a->dweight, &a->stream};
    for (int i = 0; i < 6; i++)
        check(buffer_create(g->device, 4 * VALUES, MEM_BUFFERS, "routed", all[i], &err));
}

/* Copies the values of the stage's parameters from the stage that has the whole layers. */
static void values_take(struct group *g, struct stage *stage)
{
    struct err err;
    uint32_t at;
    for (uint32_t i = 0; i < stage_parameter_count(stage); i++) {
        struct parameter p = stage_parameter_at(stage, i);
        float *values = malloc(4ull * p.rows * p.columns);
        check(stage_parameter_find(g->whole, p.name, &at, &err));
        check(stage_state_read(g->whole, at, STATE_VALUE, values, &err));
        check(stage_state_write(stage, i, STATE_VALUE, values, &err));
        free(values);
    }
}

static void apart_fini(struct group *g, struct apart *a)
{
    struct buffer *all[] = {a->x, a->chosen, a->weight, a->dx, a->dweight, a->stream};
    for (int i = 0; i < 6; i++)
        buffer_destroy(all[i]);
    for (uint32_t layer = 0; layer < g->config->layers; layer++)
        for (uint32_t m = 0; m < MEMBERS_MAX; m++)
            stage_destroy(a->experts[layer][m]);
    stage_destroy(a->attention);
}

static void apart_run(struct group *g, struct apart *a, float *x, float *d)
{
    struct err err;
    struct saved *saved = NULL, *places[2][MEMBERS_MAX] = {{NULL}};
    uint64_t count = boundary_values(g), choices = (uint64_t)SEEDED_TOKENS * g->config->experts_active;
    struct routed_tokens routed = {.x = {a->x, 0}, .chosen = {a->chosen, 0}, .weight = {a->weight, 0}},
                         gradient = {.x = {a->dx, 0}, .weight = {a->dweight, 0}};
    check(stage_step_begin(a->attention, &err));
    for (uint32_t b = 1; b <= g->config->layers; b++) {
        put(g, x);
        check(stage_half_forward(a->attention, &g->batch, b, STAGE_HALF_ATTENTION, g->in, g->out, &saved,
                                 &err));
        get(g, x); /* the residual stream */
        check(stage_route_forward(a->attention, &g->batch, b, g->out, &routed, &saved, &err));
        for (uint32_t m = 0; m < MEMBERS_MAX; m++) {
            check(stage_step_begin(a->experts[b - 1][m], &err));
            check(stage_experts_forward(a->experts[b - 1][m], &g->batch, b, &routed, g->out,
                                        &places[b - 1][m], &err));
            sum_into(g, g->out, x, count);
        }
    }
    for (uint32_t b = g->config->layers; b > 0; b--) {
        float dx[VALUES] = {0}, dweight[VALUES] = {0};
        put(g, d);
        for (uint32_t m = 0; m < MEMBERS_MAX; m++) {
            check(stage_experts_backward(a->experts[b - 1][m], &g->batch, places[b - 1][m], b, g->in,
                                         &gradient, &err));
            sum_into(g, a->dx, dx, count);
            sum_into(g, a->dweight, dweight, choices);
        }
        write_back(g, a->dx, dx, count);
        write_back(g, a->dweight, dweight, choices);
        write_back(g, a->stream, d, count);
        check(stage_route_backward(a->attention, &g->batch, saved, b, &gradient, a->stream, &err));
        check(stage_half_backward(a->attention, &g->batch, saved, b, STAGE_HALF_ATTENTION, a->stream, g->out,
                                  &err));
        get(g, d);
    }
}

static void apart_gradient(struct group *g, struct apart *a, const char *name, float *values)
{
    struct err err;
    uint32_t at, found = 0;
    struct stage *all[1 + 2 * MEMBERS_MAX] = {a->attention};
    uint32_t count = 1;
    for (uint32_t layer = 0; layer < g->config->layers; layer++)
        for (uint32_t m = 0; m < MEMBERS_MAX; m++)
            all[count++] = a->experts[layer][m];
    for (uint32_t i = 0; i < count; i++)
        if (stage_parameter_find(all[i], name, &at, &err) == 0) {
            check(stage_state_read(all[i], at, STATE_GRADIENT, values, &err));
            found++;
        }
    assert_int_equal(found, 1);
}

static void experts_apart_from_their_routers_give_the_whole(void **state)
{
    (void)state;
    struct err err;
    struct rand_stream stream;
    rand_stream_init(&stream, 43, 0);
    for (int m = 0; m < METHODS; m++) {
        struct group g;
        struct apart a;
        struct model_config experts = seeded_experts;
        float x[VALUES], d[VALUES], out[VALUES], dx[VALUES];
        experts.head_dim = 32;
        group_init(&g, &experts, &methods[m], &stream);
        apart_init(&g, &a, &methods[m], &stream);
        values_take(&g, a.attention);
        for (uint32_t i = 0; i < experts.layers * MEMBERS_MAX; i++)
            values_take(&g, a.experts[i / MEMBERS_MAX][i % MEMBERS_MAX]);
        uint64_t count = boundary_values(&g);
        noise(x, count, 1);
        noise(d, count, 2);
        memcpy(out, x, 4 * count);
        memcpy(dx, d, 4 * count);
        whole_run(&g, out, dx);
        apart_run(&g, &a, x, d);
        close_to(x, out, count, &methods[m], "the output");
        close_to(d, dx, count, &methods[m], "the gradient of the input");
        for (uint32_t i = 0; i < stage_parameter_count(g.whole); i++) {
            struct parameter p = stage_parameter_at(g.whole, i);
            uint64_t values = (uint64_t)p.rows * p.columns;
            float *want = malloc(4 * values), *got = malloc(4 * values);
            check(stage_state_read(g.whole, i, STATE_GRADIENT, want, &err));
            apart_gradient(&g, &a, p.name, got);
            close_to(got, want, values, &methods[m], p.name);
            free(want);
            free(got);
        }
        double want, sum, own;
        check(stage_grad_square_sum(g.whole, &want, &err));
        check(stage_grad_square_sum(a.attention, &sum, &err));
        check(stage_grad_square_sum_from(a.attention, UINT32_MAX, &own, &err));
        assert_true(own == 0); /* Every rank with attention keeps all of these parameters, so this member has
                                  none that only it keeps. */
        for (uint32_t layer = 0; layer < g.config->layers; layer++)
            for (uint32_t e = 0; e < MEMBERS_MAX; e++) {
                check(stage_grad_square_sum_from(a.experts[layer][e], UINT32_MAX, &own, &err));
                sum += own;
            }
        close_to(&(float){(float)sum}, &(float){(float)want}, 1, &methods[m], "the norm");
        apart_fini(&g, &a);
        group_fini(&g);
    }
}

static void refused(struct stage_options o, enum err_code code, const char *words)
{
    struct err err;
    struct stage_memory memory;
    assert_int_equal(stage_memory_predict(&o, &memory, &err), -1);
    assert_int_equal(err.code, code);
    if (!strstr(err.text, words))
        fail_msg("'%s' does not say '%s'", err.text, words);
}

static void what_cannot_be_cut_is_refused_by_name(void **state)
{
    (void)state;
    struct stage_options o = options_of(&dense, &methods[2]);
    struct model_config config = dense;
    o.part = (struct layer_part){.column_begin = 32, .column_end = 96};
    refused(o, ERR_UNSUPPORTED, "model.layers.0.mlp.down_proj.weight");
    o.part = (struct layer_part){.kv_head_begin = 3, .kv_head_end = 5};
    refused(o, ERR_INVALID, "heads of keys 3..5 of 4");
    o.part = (struct layer_part){.expert_begin = 0, .expert_end = 1};
    refused(o, ERR_INVALID, "experts 0..1 of 0");
    o.part = (struct layer_part){.kv_head_end = 1};
    o.part = (struct layer_part){.kv_head_begin = 1, .kv_head_end = 2};
    config.head_dim = 18; /* Each key head then has 36 features of o_proj's input. */
    o.config = &config;
    o.base = LAYER_BASE_BF16;
    o.lora.dropout = 0.1;
    refused(o, ERR_UNSUPPORTED, "model.layers.0.self_attn.o_proj.lora_A.weight");
    o.lora.dropout = 0;
    o.config = &dense;
    o.base = LAYER_BASE_NF4;
    o.part = (struct layer_part){.kv_head_end = 1};
    o.split = true;
    refused(o, ERR_UNSUPPORTED, "split");
    o.split = false;
    o.block_begin = 0;
    o.part.follows = true;
    refused(o, ERR_UNSUPPORTED, "the embedding or the head, which the first member has");
    o.block_begin = 1;
    o.part = (struct layer_part){.holds = HOLDS_EXPERTS};
    refused(o, ERR_UNSUPPORTED, "where there are none");
    o.config = &seeded_experts;
    refused(o, ERR_UNSUPPORTED, "of several blocks");
    o.part = (struct layer_part){.holds = HOLDS_NO_EXPERTS, .kv_head_end = 1};
    refused(o, ERR_UNSUPPORTED, "cut, and experts elsewhere");
    o.part = (struct layer_part){.kv_head_end = 1};
    o.config = &config;
    config.qk_norm = 2;
    refused(o, ERR_UNSUPPORTED, "all heads together");
    config.qk_norm = 1;
    config.post_norms = true;
    refused(o, ERR_UNSUPPORTED, "outputs are normed");
}

static void halves_that_are_another_s_are_refused_by_name(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make(tested, 1);
    struct stage_options o = options_of(&dense, &methods[0]);
    struct micro_batch mb;
    struct saved *saved = NULL;
    struct buffer *in;
    o.part = (struct layer_part){.kv_head_begin = 1, .kv_head_end = 2, .follows = true};
    struct stage *stage = stage_make(device, &o);
    check(buffer_create(device, 4 * VALUES, MEM_BUFFERS, "in", &in, &err));
    check(buffer_zero(in, 0, 4 * VALUES, &err));
    seeded_batch(&mb, 0, SEEDED_ROWS, 0);
    assert_int_equal(stage_half_forward(stage, &mb, 1, STAGE_HALF_FFN, in, in, &saved, &err), -1);
    assert_non_null(strstr(err.text, "its FFN is whole on the first member"));
    assert_int_equal(stage_half_forward(stage, &mb, 3, STAGE_HALF_FFN, in, in, &saved, &err), -1);
    assert_non_null(strstr(err.text, "half of block 3"));
    assert_int_equal(stage_forward(stage, &mb, in, in, &saved, &err), -1);
    assert_non_null(strstr(err.text, "to be run in halves"));
    stage_destroy(stage);
    o = options_of(&seeded_experts, &methods[0]);
    o.part.holds = HOLDS_NO_EXPERTS;
    stage = stage_make(device, &o);
    assert_int_equal(stage_half_forward(stage, &mb, 1, STAGE_HALF_FFN, in, in, &saved, &err), -1);
    assert_non_null(strstr(err.text, "its FFN is elsewhere"));
    assert_int_equal(stage_experts_forward(stage, &mb, 1, &(struct routed_tokens){0}, in, &saved, &err), -1);
    assert_non_null(strstr(err.text, "the experts of block 1 alone"));
    assert_int_equal(stage_route_forward(stage, &mb, 1, in, &(struct routed_tokens){0}, &saved, &err), -1);
    assert_non_null(strstr(err.text, "the buffer for routed tokens"));
    stage_destroy(stage);
    buffer_destroy(in);
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_columns_and_experts_sum_to_the_whole),
        cmocka_unit_test(whole_layers_in_halves_give_the_same_bits),
        cmocka_unit_test(embedding_and_head_are_whole_on_the_first_member),
        cmocka_unit_test(experts_apart_from_their_routers_give_the_whole),
        cmocka_unit_test(what_cannot_be_cut_is_refused_by_name),
        cmocka_unit_test(halves_that_are_another_s_are_refused_by_name),
    };
    int failed = cmocka_run_group_tests_name("cpu", tests, NULL, NULL);
    tested = "checked";
    return failed + cmocka_run_group_tests_name("checked", tests, NULL, NULL);
}
