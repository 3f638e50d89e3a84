/* Tests the ops of mixtures of experts: the harness's cases, transformers' routers, ties, a grouped product
 * beside plain ones, and invalid indices. */
#include "engine/cases_experts.h"

#include "model/files/safetensors.h"

static void expert_ops_are_right_on_every_device(void **state)
{
    (void)state;
    cases_run(expert_cases, sizeof(expert_cases) / sizeof(expert_cases[0]), 80);
}

static struct operand numbers(struct bench *b, const uint32_t *values, uint32_t count)
{
    return bytes_in(b, values, 4ull * count, DTYPE_U32);
}

static void read_back(struct bench *b, struct operand from, void *to, uint64_t bytes)
{
    struct err err;
    check(buffer_read(from.buffer, from.at, to, bytes, &err));
    check(device_sync(b->device, &err));
}

/* Releases a device that has an error; the error stays until then. */
static void bench_drop(struct bench *b)
{
    for (uint32_t i = 0; i < b->count; i++) {
        buffer_destroy(b->buffers[i]);
        free(b->kept[i]);
    }
    device_close(b->device);
}

/* --- what transformers' routers make (tools/golden_ops.py) --- */

struct golden {
    struct safetensors *file;
    const char *name;
    uint32_t tokens, experts, active;
    bool renormalise;
};

static const struct safetensors_tensor *found(const struct golden *g, int layer, const char *what)
{
    char name[64];
    snprintf(name, sizeof(name), "%s.%d.%s", g->name, layer, what);
    const struct safetensors_tensor *tensor = safetensors_find(g->file, name);
    if (!tensor)
        fail_msg("%s is missing", name);
    return tensor;
}

static void *raw(const struct golden *g, int layer, const char *what)
{
    struct err err;
    const struct safetensors_tensor *tensor = found(g, layer, what);
    void *data = malloc(tensor->size);
    check(safetensors_read(g->file, tensor, 0, tensor->size, data, &err));
    return data;
}

static struct operand on_device(struct bench *b, const struct golden *g, int layer, const char *what)
{
    void *data = raw(g, layer, what);
    struct operand operand = bytes_in(b, data, found(g, layer, what)->size, DTYPE_F32);
    free(data);
    return operand;
}

static void expect_golden(struct bench *b, const struct golden *g, int layer, const char *what,
                          struct operand got, double tolerance)
{
    uint32_t count = (uint32_t)(found(g, layer, what)->size / 4);
    float *data = raw(g, layer, what);
    double *want = doubles(count);
    for (uint32_t i = 0; i < count; i++)
        want[i] = (double)data[i];
    expect(b, got, want, count, tolerance, what);
    free(data), free(want);
}

struct layer {
    struct operand scores, chosen, weight;
};

static struct layer layer_route(struct bench *b, const struct golden *g, int layer, struct operand row_start,
                                struct operand counts, struct operand sums)
{
    uint32_t choices = g->tokens * g->active, *got = malloc(4ull * choices);
    struct layer l = {on_device(b, g, layer, "scores"), numbers(b, NULL, choices), empty(b, choices)};
    submit(b, (struct op){.kind = OP_ROUTE,
                          .route = {.rows = 1,
                                    .tokens = g->tokens,
                                    .experts = g->experts,
                                    .active = g->active,
                                    .renormalise = g->renormalise,
                                    .scores = l.scores,
                                    .chosen = l.chosen,
                                    .weight = l.weight,
                                    .row_start = row_start,
                                    .counts = counts,
                                    .sums = sums}});
    expect_golden(b, g, layer, "weight", l.weight, 2e-7);
    read_back(b, l.chosen, got, 4ull * choices);
    void *want = raw(g, layer, "chosen");
    assert_memory_equal(got, want, 4ull * choices);
    free(want), free(got);
    return l;
}

/* Runs one row through two layers, forward and backward. */
static void golden_case(struct bench *b, const struct golden *g)
{
    const uint32_t starts[] = {0, g->tokens};
    const float zeros[EXPERTS_MAX] = {0};
    double loss = 0, *want = raw(g, 0, "balance");
    struct operand row_start = numbers(b, starts, 2), oloss = bytes_in(b, &loss, 8, DTYPE_F64),
                   counts = bytes_in(b, zeros, 4ull * g->experts, DTYPE_F32),
                   sums = bytes_in(b, zeros, 4ull * g->experts, DTYPE_F32);
    struct layer layers[2];
    for (int i = 0; i < 2; i++)
        layers[i] = layer_route(b, g, i, row_start, counts, sums);
    submit(b, (struct op){.kind = OP_ROUTER_LOSS,
                          .router_loss = {.rows = 1,
                                          .experts = g->experts,
                                          .layers = 2,
                                          .row_start = row_start,
                                          .counts = counts,
                                          .sums = sums,
                                          .loss = oloss}});
    read_back(b, oloss, &loss, 8);
    assert_true(fabs(loss - g->tokens * *want) < 1e-6 * loss); /* transformers computes it in fp32. */
    free(want);
    for (int i = 0; i < 2; i++) {
        struct operand dscores = empty(b, g->tokens * g->experts);
        submit(b, (struct op){.kind = OP_ROUTE_BACKWARD,
                              .route_backward = {.rows = 1,
                                                 .tokens = g->tokens,
                                                 .experts = g->experts,
                                                 .active = g->active,
                                                 .renormalise = g->renormalise,
                                                 .aux = (float)g->experts /
                                                        4, /* 4 is the number of layers squared. */
                                                 .probabilities = layers[i].scores,
                                                 .chosen = layers[i].chosen,
                                                 .dweight = on_device(b, g, i, "dweight"),
                                                 .dscores = dscores,
                                                 .row_start = row_start,
                                                 .counts = counts}});
        expect_golden(b, g, i, "dscores", dscores, 1e-6);
    }
}

static void golden_on(struct bench *b)
{
    struct golden cases[] = {
        {.name = "mixtral", .tokens = 23, .experts = 8, .active = 2, .renormalise = true},
        {.name = "olmoe", .tokens = 23, .experts = 16, .active = 4}};
    struct err err;
    for (int i = 0; i < 2; i++) {
        check(safetensors_open_path(MOTLEY_TEST_DATA "/golden/router/router.safetensors", &cases[i].file,
                                    &err));
        golden_case(b, &cases[i]);
        safetensors_close(cases[i].file);
    }
}

static void routers_are_those_of_transformers(void **state)
{
    (void)state;
    each_device(golden_on);
}

/* Of equal probabilities the expert with the lower number is chosen. NaNs cause no invalid index. */
static void ties_on(struct bench *b)
{
    const float scores[3][6] = {{1, 1, 1, 1, 1, 1}, {0, 2, 1, 2, 1, 2}, {NAN, 1, 2, NAN, 3, 0}};
    const uint32_t want[2][4] = {{0, 1, 2, 3}, {1, 3, 5, 2}};
    uint32_t got[3][4];
    struct operand chosen = numbers(b, NULL, 12);
    submit(b, (struct op){.kind = OP_ROUTE,
                          .route = {.tokens = 3,
                                    .experts = 6,
                                    .active = 4,
                                    .scores = bytes_in(b, scores, sizeof(scores), DTYPE_F32),
                                    .chosen = chosen,
                                    .weight = empty(b, 12)}});
    read_back(b, chosen, got, sizeof(got));
    assert_memory_equal(got, want, sizeof(want));
    for (int j = 0; j < 4; j++)
        assert_in_range(got[2][j], 0, 5);
}

static void among_equals_the_lower_number_is_chosen(void **state)
{
    (void)state;
    each_device(ties_on);
}

/* --- one group beside the plain product --- */

enum { GROUPS = 6, WIDTH = 150, DEPTH = 96, ROWS = 3 + 0 + 250 + 1 + 60 + 9 };

static const uint32_t group_offsets[GROUPS + 1] = {0, 3, 3, 253, 254, 314, ROWS};

struct layout {
    bool ta, tb;
    float beta;
};

/* Computes the grouped product into c, and each group's plain product into d. */
static void both_submit(struct bench *b, const struct layout *l, struct operand a, struct operand w,
                        struct operand c, struct operand d)
{
    uint32_t matrix = WIDTH * DEPTH, ldb = l->tb ? DEPTH : WIDTH;
    submit(b, (struct op){.kind = OP_GEMM_GROUPED,
                          .gemm_grouped = {.groups = GROUPS,
                                           .groups_all = GROUPS,
                                           .rows = ROWS,
                                           .m = l->ta ? DEPTH : 0,
                                           .n = WIDTH,
                                           .k = l->ta ? 0 : DEPTH,
                                           .transpose_a = l->ta,
                                           .transpose_b = l->tb,
                                           .alpha = 1,
                                           .beta = l->beta,
                                           .stride = matrix,
                                           .a = a,
                                           .b = w,
                                           .c = c,
                                           .offsets = numbers(b, group_offsets, GROUPS + 1),
                                           .lda = DEPTH,
                                           .ldb = ldb,
                                           .ldc = WIDTH}});
    for (uint32_t g = 0; g < GROUPS; g++) {
        uint32_t begin = group_offsets[g], rows = group_offsets[g + 1] - begin;
        struct op op = {.kind = OP_GEMM,
                        .gemm = {.m = l->ta ? DEPTH : rows,
                                 .n = WIDTH,
                                 .k = l->ta ? rows : DEPTH,
                                 .transpose_a = l->ta,
                                 .transpose_b = l->tb,
                                 .alpha = 1,
                                 .beta = l->beta,
                                 .a = a,
                                 .b = w,
                                 .c = d,
                                 .lda = DEPTH,
                                 .ldb = ldb,
                                 .ldc = WIDTH}};
        op.gemm.a.at = 4ull * begin * DEPTH;
        op.gemm.b.at = 4ull * (l->ta ? begin * WIDTH : g * matrix);
        op.gemm.c.at = 4ull * (l->ta ? g * matrix : begin * WIDTH);
        if (rows != 0)
            submit(b, op);
    }
}

/* A group's result equals the plain product to the bit, because only its own rows choose the kernel and the
 * pieces. */
static void a_group_is_a_plain_product_whatever_is_beside_it(void **state)
{
    const struct layout layouts[] = {{false, true, 0}, {false, false, 1}, {true, false, 1}, {true, false, 0}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct bench b;
        uint32_t matrices = GROUPS * WIDTH * DEPTH;
        double *copy = doubles(matrices);
        float *start = calloc(matrices, 4), *one = malloc(4ull * matrices), *two = malloc(4ull * matrices);
        bench_open(&b, "cpu");
        struct operand a = normal(&b, ROWS * DEPTH, copy), w = normal(&b, matrices, copy);
        for (uint32_t j = 0; j < matrices && layouts[i].beta != 0; j++)
            start[j] = (float)copy[j];
        struct operand c = bytes_in(&b, start, 4ull * matrices, DTYPE_F32),
                       d = bytes_in(&b, start, 4ull * matrices, DTYPE_F32);
        both_submit(&b, &layouts[i], a, w, c, d);
        read_back(&b, c, one, 4ull * matrices);
        read_back(&b, d, two, 4ull * matrices);
        assert_memory_equal(one, two, 4ull * matrices);
        free(copy), free(start), free(one), free(two);
        bench_close(&b);
    }
}

/* Rows of other groups, and rows beyond the last group, need not exist; and memory that is not a group's
 * result stays unwritten. */
static void a_group_touches_its_rows_alone(void **state)
{
    const uint32_t offsets[] = {0, 2, 5, 6};
    struct bench b;
    struct err err;
    double x[40];
    float y[40];
    (void)state;
    bench_open(&b, "checked");
    struct operand a = empty(&b, 40), w = normal(&b, 4, x), c = empty(&b, 40), some = normal(&b, 6, x);
    check(buffer_copy(a.buffer, 16, some.buffer, 0, 24, &err));
    submit(&b, (struct op){.kind = OP_GEMM_GROUPED,
                           .gemm_grouped = {.first = 1,
                                            .groups = 1,
                                            .groups_all = 3,
                                            .rows = 20,
                                            .n = 2,
                                            .k = 2,
                                            .alpha = 1,
                                            .stride = 4,
                                            .a = a,
                                            .b = w,
                                            .c = c,
                                            .offsets = numbers(&b, offsets, 4),
                                            .lda = 2,
                                            .ldb = 2,
                                            .ldc = 2}});
    check(buffer_read(c.buffer, 16, y, 24, &err));
    check(device_sync(b.device, &err));
    check(buffer_read(c.buffer, 0, y, 40, &err));
    assert_int_not_equal(device_sync(b.device, &err), 0);
    bench_drop(&b);
}

/* --- what leads out of an operand --- */

static void fails_with(const char *kind, struct bench *b, const struct op *op, const char *word)
{
    struct err err = {.code = 0};
    bool failed = op_submit(b->device, op, &err) != 0;
    if (strcmp(kind, "checked") == 0)
        failed = device_sync(b->device, &err) != 0;
    assert_true(failed);
    if (!strstr(err.text, word))
        fail_msg("'%s' does not say '%s'", err.text, word);
}

/* The operands of ops with invalid indices: `index` holds 0, 3, 2, 9, 1, and `past` its last three values. */
struct mistaken {
    struct operand a, w, c, d, index, past, u1, u2, u3;
};

static struct op grouped_product(const struct mistaken *m, uint32_t groups, struct operand offsets)
{
    return (struct op){.kind = OP_GEMM_GROUPED,
                       .gemm_grouped = {.groups = groups,
                                        .groups_all = groups,
                                        .rows = 3,
                                        .n = 2,
                                        .k = 2,
                                        .alpha = 1,
                                        .stride = 4,
                                        .a = m->a,
                                        .b = m->w,
                                        .c = m->c,
                                        .offsets = offsets,
                                        .lda = 2,
                                        .ldb = 2,
                                        .ldc = 2}};
}

static struct op mistaken_op(const struct mistaken *m, int mistake)
{
    const struct op ops[] = {
        grouped_product(m, 2, m->index),
        grouped_product(m, 1, m->past),
        {.kind = OP_ROUTE_SORT,
         .route_sort = {.tokens = 2,
                        .active = 2,
                        .experts = 4,
                        .chosen = m->index,
                        .token = m->u1,
                        .place = m->u2,
                        .offsets = m->u3}},
        {.kind = OP_COMBINE,
         .combine =
             {.tokens = 2, .active = 2, .width = 3, .x = m->a, .place = m->index, .weight = m->w, .y = m->c}},
        {.kind = OP_COMBINE_BACKWARD,
         .combine_backward = {.tokens = 2,
                              .active = 2,
                              .width = 3,
                              .x = m->a,
                              .place = m->index,
                              .weight = m->w,
                              .dy = m->c,
                              .dweight = m->d}},
        {.kind = OP_ROUTE_BACKWARD,
         .route_backward = {.tokens = 2,
                            .experts = 4,
                            .active = 2,
                            .probabilities = m->a,
                            .chosen = m->index,
                            .dweight = m->w,
                            .dscores = m->d}},
        {.kind = OP_ROUTE,
         .route = {.rows = 2,
                   .tokens = 3,
                   .experts = 4,
                   .active = 2,
                   .scores = m->a,
                   .chosen = m->u1,
                   .weight = m->w,
                   .row_start = m->index,
                   .counts = m->c,
                   .sums = m->d}},
    };
    return ops[mistake];
}

static void mistake_on(const char *kind, int mistake)
{
    static const char *const words[] = {"offsets[2] is 2",  "offsets[1] is 9", "chosen[3] is 9",
                                        "place[3] is 9",    "place[3] is 9",   "chosen[3] is 9",
                                        "row_start[2] is 2"};
    const uint32_t bad[] = {0, 3, 2, 9, 1};
    struct bench b;
    double x[200];
    bench_open(&b, kind);
    struct mistaken m = {.a = normal(&b, 100, x),
                         .w = normal(&b, 100, x),
                         .c = normal(&b, 100, x),
                         .d = normal(&b, 100, x),
                         .index = numbers(&b, bad, 5),
                         .u1 = numbers(&b, NULL, 10),
                         .u2 = numbers(&b, NULL, 10),
                         .u3 = numbers(&b, NULL, 10)};
    m.past = m.index;
    m.past.at = 8; /* `past` then holds 2, 9, 1. */
    struct op op = mistaken_op(&m, mistake);
    fails_with(kind, &b, &op, words[mistake]);
    bench_drop(&b);
}

static void indices_out_of_bounds_are_errors(void **state)
{
    (void)state;
    for (int mistake = 0; mistake < 7; mistake++) {
        mistake_on("cpu", mistake);
        mistake_on("checked", mistake);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expert_ops_are_right_on_every_device),
        cmocka_unit_test(routers_are_those_of_transformers),
        cmocka_unit_test(among_equals_the_lower_number_is_chosen),
        cmocka_unit_test(a_group_is_a_plain_product_whatever_is_beside_it),
        cmocka_unit_test(a_group_touches_its_rows_alone),
        cmocka_unit_test(indices_out_of_bounds_are_errors),
    };
    return run_each_isa(tests, sizeof(tests) / sizeof(tests[0]));
}
