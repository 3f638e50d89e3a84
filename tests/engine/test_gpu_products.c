/* Tests products and experts that only GPUs compute: packed weights, the large tile, and checks of what the
 * device itself reads (offsets, choices, positions) before it is used. */
#define HARNESS_CANDIDATES                                                                                   \
    {.kind = "emulated", .group = 1, .isa = "warp32,checks"},                                                \
        {.kind = "emulated", .group = 2, .isa = "warp64,checks"},                                            \
        {.kind = "emulated", .group = 1, .isa = "rdna3,checks"},                                             \
        {.kind = "emulated", .group = 1, .isa = "rdna4,checks"},                                             \
        {.kind = "emulated", .group = 3, .isa = "warp32,checks,plain"}
#include "engine/cases_packed.h"
#include "engine/cases_rounded.h"
#include "engine/gpu/gpu.h"
#include "engine/large_product.h"

static void bench_open_gpu(struct bench *b, const char *isa)
{
    struct err err;
    memset(b, 0, sizeof(*b));
    check(device_open(&(struct device_options){.kind = "emulated", .name = "ops", .isa = isa}, &b->device,
                      &err));
    rand_stream_init(&b->stream, 5, 0);
}

static void products_with_packed_weights_are_those_of_the_unpacked_ones(void **state)
{
    (void)state;
    cases_run(packed_cases, sizeof(packed_cases) / sizeof(*packed_cases), 30);
}

/* Tests matrix units of all layouts, and fp32 on a card without matrix units. */
static void products_in_16_bits_round_their_operands_once(void **state)
{
    (void)state;
    cases_run(packed_rounded_cases, sizeof(packed_rounded_cases) / sizeof(*packed_rounded_cases), 10);
}

/* Outer products among them: an expert's rows are their terms. */
static void plain_products_and_those_of_experts_round_likewise(void **state)
{
    static const char *const names[] = {"gemm_rounded", "gemm_grouped_rounded"};
    int found = 0;
    (void)state;
    for (size_t i = 0; i < sizeof(rounded_cases) / sizeof(*rounded_cases); i++)
        for (int n = 0; n < 2; n++)
            if (strcmp(rounded_cases[i].name, names[n]) == 0) {
                cases_run(&rounded_cases[i], 1, 12);
                found++;
            }
    assert_int_equal(found, 2);
}

static void what_a_device_cannot_multiply_is_not_taken(void **state)
{
    struct bench b;
    double x[4];
    (void)state;
    bench_open_gpu(&b, "warp32");
    struct operand some = normal(&b, 4, x), codes = bytes_in(&b, NULL, 1 << 16, DTYPE_U8);
    struct op op = {.kind = OP_GEMM,
                    .gemm = {.m = 4,
                             .n = 8,
                             .k = 256,
                             .transpose_b = true,
                             .alpha = 1,
                             .a = some,
                             .b = codes,
                             .c = some,
                             .lda = 256,
                             .ldb = 256,
                             .ldc = 8,
                             .pack = PACK_Q4_K}};
    assert_true(op_supports(b.device, &op));
    op.gemm.ldb = 512; /* This is not the whole matrix. */
    assert_false(op_supports(b.device, &op));
    op.gemm.ldb = op.gemm.k = 100; /* The row ends with half a block. */
    assert_false(op_supports(b.device, &op));
    op.gemm.ldb = op.gemm.k = 256;
    op.gemm.b = some; /* The operand has another dtype. */
    assert_false(op_supports(b.device, &op));
    bench_close(&b);
    bench_open(&b, "cpu");
    op.gemm.b = codes;
    assert_false(op_supports(b.device, &op));
    op.gemm.pack = PACK_F32;
    op.gemm.b = op.gemm.a = op.gemm.c = empty(&b, 4);
    assert_true(op_supports(b.device, &op));
    bench_close(&b);
}

/* Checks a product of at least 64 tiles of 128 × 128, with partial tiles at both edges and gaps between c's
 * rows. */
static void large_product(const char *isa, enum dtype compute, bool stored)
{
    struct bench b;
    bench_open_gpu(&b, isa);
    large_product_check(
        &b,
        &(struct large_product){
            .m = 1010, .n = 1027, .k = stored ? 40 : 19, .ldc = 1030, .compute = compute, .stored = stored});
    bench_close(&b);
}

static void large_products_are_their_definition(void **state)
{
    (void)state;
    large_product("warp32", DTYPE_F32, false);
    large_product("warp32", DTYPE_BF16, false);
    large_product("warp64", DTYPE_F16, false);
    large_product("warp32", DTYPE_F16, true);
    large_product("warp64", DTYPE_BF16, true);
    large_product("rdna3", DTYPE_BF16, false);
    large_product("rdna4", DTYPE_F16, true);
}

/* A card that drives a display ends kernels that run for seconds. A product that would is launched in parts
 * of its rows; here a second is as short as the product needs. */
static void long_products_come_in_parts_where_a_watchdog_runs(void **state)
{
    enum { M = 2018, N = 1027, K = 19 };
    static const char *const isas[] = {"warp32", "warp64"};
    struct pass_counts counts;
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct bench b;
        bench_open_gpu(&b, isas[i]);
        struct gpu *gpu = (struct gpu *)b.device;
        gpu->info.units = 1;
        gpu->info.clock_khz = M / 2 * N * K / 8 / 1000 + 1;
        large_product_check(&b, &(struct large_product){M, N, K, 1030, DTYPE_BF16, false});
        device_pass_counts(b.device, &counts);
        assert_int_equal(counts.launches, 1);
        gpu->info.watchdog = true;
        large_product_check(&b, &(struct large_product){M, N, K, 1030, DTYPE_BF16, false});
        device_pass_counts(b.device, &counts);
        assert_int_equal(counts.launches, 3);
        bench_close(&b);
    }
}

/* T4, RTX 20: a job in bf16 is right and slow, and the log says what is faster. */
static void bf16_on_units_for_fp16_alone_is_right_and_told(void **state)
{
    static const enum dtype computes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct bench b;
        bench_open_gpu(&b, "warp32");
        struct gpu *gpu = (struct gpu *)b.device;
        gpu->matrix = GPU_MATRIX_F16;
        large_product_check(&b, &(struct large_product){130, 140, 19, 140, computes[i], false});
        assert_int_equal(gpu->bf16_told, computes[i] == DTYPE_BF16);
        bench_close(&b);
    }
}

/* Makes random codes with finite scales: Q8_0's scales are fp16 of random bits below 2. */
static struct operand random_codes(struct bench *b, enum pack_kind pack, uint64_t values)
{
    uint64_t bytes = pack_bytes(pack, values);
    uint8_t *codes = malloc(bytes);
    for (uint64_t i = 0; i < bytes; i++)
        codes[i] = (uint8_t)rand_stream_below(&b->stream, 256);
    for (uint64_t i = 1; pack == PACK_Q8_0 && i < bytes; i += 34)
        codes[i] &= 0xbf;
    for (uint64_t i = 1; pack == PACK_BF16 && i < bytes; i += 2)
        codes[i] = (uint8_t)(0x3e | (codes[i] & 0x81));
    struct operand operand = bytes_in(b, codes, bytes, pack == PACK_BF16 ? DTYPE_BF16 : DTYPE_U8);
    free(codes);
    return operand;
}

static void large_packed(const char *isa, enum pack_kind pack, enum dtype compute)
{
    enum { M = 1030, N = 1020, K = 32 };
    struct bench b;
    struct err err;
    float *got = malloc(4ull * M * N), *want = malloc(4ull * M * N);
    double *values = doubles(M * K);
    bench_open_gpu(&b, isa);
    struct operand a = normal(&b, M * K, values), absmax = normal(&b, N * K / 64, values);
    struct op_unpack unpack = {.pack = pack,
                               .count = N * K,
                               .total = N * K,
                               .x = random_codes(&b, pack, N * K),
                               .y = empty(&b, N * K)};
    struct op_gemm o = {.m = M,
                        .n = N,
                        .k = K,
                        .transpose_b = true,
                        .alpha = 1,
                        .a = a,
                        .b = unpack.x,
                        .c = empty(&b, M * N),
                        .lda = K,
                        .ldb = K,
                        .ldc = N,
                        .pack = pack,
                        .compute = compute};
    if (pack == PACK_NF4)
        unpack.absmax = o.absmax = absmax;
    submit(&b, (struct op){.kind = OP_UNPACK, .unpack = unpack});
    submit(&b, (struct op){.kind = OP_GEMM, .gemm = o});
    check(buffer_read(o.c.buffer, 0, got, 4ull * M * N, &err));
    o.b = unpack.y;
    o.pack = PACK_F32;
    submit(&b, (struct op){.kind = OP_GEMM, .gemm = o});
    check(buffer_read(o.c.buffer, 0, want, 4ull * M * N, &err));
    check(device_sync(b.device, &err));
    assert_memory_equal(got, want, 4ull * M * N);
    free(got), free(want), free(values);
    bench_close(&b);
}

/* Multiplies with a's rows at distances that are multiples of four values, which every kernel for matrix
 * units can read, and then one value further apart, which only the kernel for tiles of 64 × 64 can read. */
static void spread_product(const char *isa, uint32_t m, uint32_t n, uint32_t k, enum dtype compute)
{
    struct bench b;
    struct err err;
    uint64_t bytes = 4ull * m * n;
    float *got = malloc(bytes), *want = malloc(bytes);
    double *values = doubles((size_t)(m > n ? m : n) * k);
    bench_open_gpu(&b, isa);
    struct op_gemm o = {.m = m,
                        .n = n,
                        .k = k,
                        .transpose_b = true,
                        .alpha = 1,
                        .a = normal(&b, (size_t)m * k, values),
                        .b = normal(&b, (size_t)n * k, values),
                        .c = empty(&b, (size_t)m * n),
                        .lda = k,
                        .ldb = k,
                        .ldc = n,
                        .compute = compute};
    submit(&b, (struct op){.kind = OP_GEMM, .gemm = o});
    check(buffer_read(o.c.buffer, 0, want, bytes, &err));
    struct op_copy copy = {
        .rows = m, .width = k, .ldx = k, .ldy = k + 1, .x = o.a, .y = empty(&b, (size_t)m * (k + 1))};
    submit(&b, (struct op){.kind = OP_COPY, .copy = copy});
    o.a = copy.y;
    o.lda = k + 1;
    submit(&b, (struct op){.kind = OP_GEMM, .gemm = o});
    check(buffer_read(o.c.buffer, 0, got, bytes, &err));
    check(device_sync(b.device, &err));
    assert_memory_equal(got, want, bytes);
    free(got), free(want), free(values);
    bench_close(&b);
}

static void rows_out_of_line_give_the_same_bits(void **state)
{
    (void)state;
    spread_product("warp32", 1030, 1027, 36, DTYPE_BF16); /* tiles of 128 × 128 */
    spread_product("warp64", 20, 132, 1028, DTYPE_F16);   /* 32 × 128, in pieces */
    spread_product("warp32", 200, 24, 1028, DTYPE_BF16);  /* 128 × 32, in pieces */
    spread_product("rdna3", 1030, 1027, 36, DTYPE_F16);
    spread_product("rdna3", 200, 24, 1028, DTYPE_BF16);
    spread_product("rdna4", 20, 132, 1028, DTYPE_BF16);
}

static void large_packed_products_have_the_bits_of_unpacked_ones(void **state)
{
    (void)state;
    large_packed("warp32", PACK_BF16, DTYPE_BF16);
    large_packed("warp64", PACK_NF4, DTYPE_F16);
    large_packed("rdna3", PACK_NF4, DTYPE_BF16);
    large_packed("rdna4", PACK_BF16, DTYPE_BF16);
    large_packed("warp32", PACK_Q8_0, DTYPE_F16);
    large_packed("warp64,plain", PACK_NF4, DTYPE_BF16);
}

/* Checks that the next submission or wait reports the fault. */
static void faults(struct bench *b, const struct op *op, const char *kernel)
{
    struct err err;
    if (op_submit(b->device, op, &err) == 0) /* Later launches may already fail. */
        assert_int_equal(device_sync(b->device, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE_FAULT);
    if (!strstr(err.text, kernel) || !strstr(err.text, "assertion failed"))
        fail_msg("'%s' does not say that %s checked", err.text, kernel);
    for (uint32_t i = 0; i < b->count; i++) {
        buffer_destroy(b->buffers[i]);
        free(b->kept[i]);
    }
    device_close(b->device);
}

static void group_offsets_that_fall_or_leave_the_rows_end_the_launch(void **state)
{
    static const uint32_t wrong[][4] = {{0, 3, 2, 4}, {0, 2, 3, 5}};
    double x[64];
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct bench b;
        bench_open_gpu(&b, "warp32,checks");
        struct operand a = normal(&b, 32, x), w = normal(&b, 32, x), c = normal(&b, 64, x);
        struct op op = {.kind = OP_GEMM_GROUPED,
                        .gemm_grouped = {.groups = 3,
                                         .groups_all = 3,
                                         .rows = 4,
                                         .m = i < 2 ? 0 : 3,
                                         .n = 4,
                                         .k = i < 2 ? 2 : 0,
                                         .transpose_a = i >= 2,
                                         .alpha = 1,
                                         .beta = 1,
                                         .stride = 12,
                                         .a = a,
                                         .b = w,
                                         .c = c,
                                         .offsets = bytes_in(&b, wrong[i % 2], 16, DTYPE_U32),
                                         .lda = 4,
                                         .ldb = 4,
                                         .ldc = 4}};
        if (i < 2)
            op.gemm_grouped.stride = 8;
        faults(&b, &op, i < 2 ? "grouped_list" : "outer_16x64");
    }
}

/* The operands of small routings: valid ones, and ones with indices out of range. */
struct routing {
    struct operand f[4], u[3], fine, far, backwards, loss;
};

static struct routing routing_in(struct bench *b)
{
    static const uint32_t far[] = {0, 1, 2, 6}, fine[] = {0, 1, 2, 3}, backwards[] = {0, 3, 2, 2};
    static const double none = 0;
    double x[64];
    struct routing r;
    for (int i = 0; i < 4; i++)
        r.f[i] = normal(b, 32, x);
    for (int i = 0; i < 3; i++)
        r.u[i] = bytes_in(b, NULL, 64, DTYPE_U32);
    r.fine = bytes_in(b, fine, sizeof(fine), DTYPE_U32);
    r.far = bytes_in(b, far, sizeof(far), DTYPE_U32);
    r.backwards = bytes_in(b, backwards, sizeof(backwards), DTYPE_U32);
    r.loss = bytes_in(b, &none, sizeof(none), DTYPE_F64);
    return r;
}

static void experts_and_places_out_of_range_end_the_launch(void **state)
{
    static const char *const kernels[] = {"sort_count", "combine", "combine_backward", "route_backward"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct bench b;
        bench_open_gpu(&b, "warp64,checks");
        struct routing r = routing_in(&b);
        const struct op ops[] = {
            {.kind = OP_ROUTE_SORT,
             .route_sort = {.tokens = 2,
                            .active = 2,
                            .experts = 5,
                            .chosen = r.far,
                            .token = r.u[0],
                            .place = r.u[1],
                            .offsets = r.u[2]}},
            {.kind = OP_COMBINE,
             .combine = {.tokens = 2, .active = 2, .width = 3, .x = r.f[0], .place = r.far, .y = r.f[1]}},
            {.kind = OP_COMBINE_BACKWARD,
             .combine_backward = {.tokens = 2,
                                  .active = 2,
                                  .width = 3,
                                  .x = r.f[0],
                                  .place = r.far,
                                  .weight = r.f[1],
                                  .dy = r.f[2],
                                  .dweight = r.f[3]}},
            {.kind = OP_ROUTE_BACKWARD,
             .route_backward = {.rows = 1,
                                .tokens = 2,
                                .experts = 5,
                                .active = 2,
                                .probabilities = r.f[0],
                                .chosen = r.far,
                                .dweight = r.f[1],
                                .dscores = r.f[2]}},
        };
        faults(&b, &ops[i], kernels[i]);
    }
}

static void rows_that_end_before_they_begin_end_the_launch(void **state)
{
    static const char *const kernels[] = {"route_backward", "route_count", "router_loss"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct bench b;
        bench_open_gpu(&b, "warp64,checks");
        struct routing r = routing_in(&b);
        const struct op ops[] = {
            {.kind = OP_ROUTE_BACKWARD,
             .route_backward = {.rows = 3,
                                .tokens = 2,
                                .experts = 5,
                                .active = 2,
                                .probabilities = r.f[0],
                                .chosen = r.fine,
                                .dweight = r.f[1],
                                .dscores = r.f[2],
                                .row_start = r.backwards,
                                .counts = r.f[3]}},
            {.kind = OP_ROUTE,
             .route = {.rows = 3,
                       .tokens = 2,
                       .experts = 5,
                       .active = 2,
                       .scores = r.f[0],
                       .chosen = r.u[0],
                       .weight = r.f[1],
                       .row_start = r.backwards,
                       .counts = r.f[2],
                       .sums = r.f[3]}},
            {.kind = OP_ROUTER_LOSS,
             .router_loss = {.rows = 3,
                             .experts = 5,
                             .layers = 1,
                             .row_start = r.backwards,
                             .counts = r.f[0],
                             .sums = r.f[1],
                             .loss = r.loss}},
        };
        faults(&b, &ops[i], kernels[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_with_packed_weights_are_those_of_the_unpacked_ones),
        cmocka_unit_test(products_in_16_bits_round_their_operands_once),
        cmocka_unit_test(plain_products_and_those_of_experts_round_likewise),
        cmocka_unit_test(what_a_device_cannot_multiply_is_not_taken),
        cmocka_unit_test(large_products_are_their_definition),
        cmocka_unit_test(long_products_come_in_parts_where_a_watchdog_runs),
        cmocka_unit_test(bf16_on_units_for_fp16_alone_is_right_and_told),
        cmocka_unit_test(large_packed_products_have_the_bits_of_unpacked_ones),
        cmocka_unit_test(rows_out_of_line_give_the_same_bits),
        cmocka_unit_test(group_offsets_that_fall_or_leave_the_rows_end_the_launch),
        cmocka_unit_test(experts_and_places_out_of_range_end_the_launch),
        cmocka_unit_test(rows_that_end_before_they_begin_end_the_launch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
