/* Checks the engine on a real card with everything that tests/engine checks on the emulated device: every op
 * against its definition in double, and against the emulated device of the same warp size to the bit;
 * products by matrix units; and small models of every family, trained and compared with PyTorch's numbers.
 *
 *   gpu_check KIND [TRIALS [TEST]]    KIND: cuda, hip or emulated; TRIALS: 40, or 1 for a short run of one
 * family; TEST: one of ops, experts, packed, units, attention, large, tiles and families alone, or
 *                                     kernels: all but the families
 *
 * bench/gpu_check.sh runs it for every kind for which there is a card. The first launch of each kernel is
 * named before it is made, and waited for, so that the last line names the kernel that ended a driver.
 */
#define DEVICE_OPEN watched_open
#include "engine/gpu/gpu.h"

static int watched_open(const struct device_options *options, struct device **out, struct err *err);
static char gpu_kind[16], gpu_other[16] = "emulated", gpu_other_isa[16] = "warp32";
#define HARNESS_CANDIDATES                                                                                   \
    {.kind = gpu_kind, .group = 1, .partial = true},                                                         \
    {                                                                                                        \
        .kind = gpu_other, .group = 1, .partial = true, .isa = gpu_other_isa                                 \
    }
#include "engine/cases_basic.h"
#include "engine/cases_experts.h"
#include "engine/cases_packed.h"
#include "engine/cases_units.h"
#include "engine/large_product.h"
#if GPU_HAS_JSON
#include "engine/golden.h"
#endif

/* With fewer trials, large products and tiles are small, so that the emulated device finishes in time. */
enum { TRIALS_FULL = 12 };
static uint32_t trials = 40;

/* --- which kernels were launched */

enum { WATCHED_MAX = 8 };
static const struct gpu_driver *watched_real;
static struct gpu_driver watched_driver;                            /* watched_real with launch_watch */
static struct gpu_function *watched[WATCHED_MAX][GPU_KERNEL_COUNT]; /* of the devices opened last */
static uint64_t watched_count, launches[GPU_KERNEL_COUNT];

static int kernel_of(const struct gpu_function *function)
{
    for (int i = 0; i < WATCHED_MAX; i++)
        for (int k = 0; k < GPU_KERNEL_COUNT; k++)
            if (watched[i][k] == function)
                return k;
    fail_msg("a kernel of no device");
    return 0;
}

static const char *kernel_name(int kernel)
{
#define NAME(name, threads) #name,
    static const char *const names[GPU_KERNEL_COUNT] = {GPU_KERNEL_LIST(NAME)};
    return names[kernel];
}

static int launch_watch(struct gpu_queue *queue, struct gpu_function *function, struct gpu_dims blocks,
                        uint32_t threads, uint32_t shared, const void *args, uint32_t args_bytes,
                        struct err *err)
{
    int kernel = kernel_of(function);
    const bool first = launches[kernel]++ == 0;
    if (first) {
        printf("first launch of %s\n", kernel_name(kernel));
        fflush(stdout);
    }
    if (watched_real->launch(queue, function, blocks, threads, shared, args, args_bytes, err) != 0)
        return -1;
    return first ? watched_real->queue_sync(queue, err) : 0;
}

static int watched_open(const struct device_options *options, struct device **out, struct err *err)
{
    if (device_open(options, out, err) != 0)
        return -1;
    struct gpu *gpu = (struct gpu *)*out;
    if (strcmp(options->kind, gpu_kind) != 0)
        return 0;
    watched_real = gpu->driver;
    watched_driver = *watched_real;
    watched_driver.launch = launch_watch;
    memcpy(watched[watched_count++ % WATCHED_MAX], gpu->functions, sizeof(gpu->functions));
    gpu->driver = &watched_driver;
    return 0;
}

static void launches_print(void)
{
    int known = 0;
    for (int k = 0; k < GPU_KERNEL_COUNT; k++)
        known += launches[k] != 0;
    printf("%d of %d kernels were launched\n", known, GPU_KERNEL_COUNT);
    for (int k = 0; k < GPU_KERNEL_COUNT; k++)
        if (launches[k] == 0)
            printf("never launched: %s\n", kernel_name(k));
}

/* --- the tests */

static void every_op_is_its_definition_and_has_the_bits_of_the_emulated_device(void **state)
{
    (void)state;
    cases_run(basic_cases, sizeof(basic_cases) / sizeof(*basic_cases), trials);
}

static void expert_ops_likewise(void **state)
{
    (void)state;
    cases_run(expert_cases, sizeof(expert_cases) / sizeof(*expert_cases), trials);
}

static void packed_products_likewise(void **state)
{
    (void)state;
    cases_run(packed_cases, sizeof(packed_cases) / sizeof(*packed_cases), trials);
}

/* Matrix units add terms in an order of the card's own, which the emulated device does not have. So their
 * results are compared with those of a second device on the same card. */
static void cases_run_twice(const struct op_case *cases, size_t count)
{
    char other[sizeof(gpu_other)], isa[sizeof(gpu_other_isa)];
    memcpy(other, gpu_other, sizeof(other));
    memcpy(isa, gpu_other_isa, sizeof(isa));
    if (strcmp(gpu_kind, "emulated") != 0) {
        memcpy(gpu_other, gpu_kind, sizeof(gpu_other));
        snprintf(gpu_other_isa, sizeof(gpu_other_isa), "native");
    }
    cases_run(cases, count, trials);
    memcpy(gpu_other, other, sizeof(other));
    memcpy(gpu_other_isa, isa, sizeof(isa));
}

static void products_by_matrix_units_are_right_and_repeat(void **state)
{
    (void)state;
    cases_run_twice(packed_rounded_cases, sizeof(packed_rounded_cases) / sizeof(*packed_rounded_cases));
    cases_run_twice(rounded_cases, sizeof(rounded_cases) / sizeof(*rounded_cases));
}

static void attention_by_matrix_units_likewise(void **state)
{
    (void)state;
    cases_run_twice(units_cases, sizeof(units_cases) / sizeof(*units_cases));
}

static void large_product(void)
{
    const bool all = trials >= TRIALS_FULL;
    const struct large_product toy = {130, 70, 33, 70, DTYPE_F32, false},
                               large = {1010, 1027, 700, 1027, DTYPE_F32, false},
                               stored = {1010, 1027, 704, 1027, DTYPE_BF16, true};
    struct bench b;
    struct err err;
    memset(&b, 0, sizeof(b));
    check(watched_open(&(struct device_options){.kind = gpu_kind, .name = "check"}, &b.device, &err));
    rand_stream_init(&b.stream, 5, 0);
    large_product_check(&b, all ? &large : &toy);
    if (all)
        large_product_check(&b, &stored);
    bench_close(&b);
}

static void large_products_are_their_definition(void **state)
{
    (void)state;
    large_product();
    setenv("MOTLEY_CUBLASLT_LIBRARY", "none", 1); /* checks our kernels, too */
    setenv("MOTLEY_ROCBLAS_LIBRARY", "none", 1);
    large_product();
    unsetenv("MOTLEY_CUBLASLT_LIBRARY");
    unsetenv("MOTLEY_ROCBLAS_LIBRARY");
}

/* --- every tile of products, for every stored form of weights and every dtype of products */

struct tile_product {
    uint32_t m, n, k;
    enum pack_kind pack;
    enum dtype compute;
};

/* Makes weights of random codes; no scale or value among them is above 1. */
static struct operand codes_draw(struct bench *b, enum pack_kind pack, uint64_t count)
{
    uint64_t bytes = pack_bytes(pack, count);
    uint8_t *codes = malloc(bytes);
    for (uint64_t i = 0; i < bytes; i++)
        codes[i] = (uint8_t)rand_stream_below(&b->stream, 0x3c);
    struct operand operand = bytes_in(b, codes, bytes, pack == PACK_BF16 ? DTYPE_BF16 : DTYPE_U8);
    free(codes);
    return operand;
}

/* Reads `count` values of an operand in fp32. */
static float *values_of(struct bench *b, const struct operand *x, uint64_t count)
{
    struct err err;
    float *out = malloc(4 * count);
    check(buffer_read(x->buffer, x->at, out, 4 * count, &err));
    check(device_sync(b->device, &err));
    return out;
}

/* Multiplies by packed weights and compares some rows with sums in double over what OP_UNPACK makes of the
 * weights. */
static void tile_check(struct bench *b, const struct tile_product *p)
{
    const uint64_t count = (uint64_t)p->n * p->k;
    double *a = doubles((size_t)p->m * p->k), *scales = doubles(count / 64);
    struct op_unpack unpack = {
        .pack = p->pack, .count = count, .total = count, .y = empty(b, (uint32_t)count)};
    struct op_gemm o = {.m = p->m,
                        .n = p->n,
                        .k = p->k,
                        .transpose_b = true,
                        .alpha = 1,
                        .a = normal(b, p->m * p->k, a),
                        .b = codes_draw(b, p->pack, count),
                        .c = empty(b, p->m * p->n),
                        .lda = p->k,
                        .ldb = p->k,
                        .ldc = p->n,
                        .pack = p->pack,
                        .compute = p->compute};
    unpack.x = o.b;
    if (p->pack == PACK_NF4)
        unpack.absmax = o.absmax = normal(b, (uint32_t)(count / 64), scales);
    submit(b, (struct op){.kind = OP_UNPACK, .unpack = unpack});
    submit(b, (struct op){.kind = OP_GEMM, .gemm = o});
    float *w = values_of(b, &unpack.y, count), *got = values_of(b, &o.c, (uint64_t)p->m * p->n);
    for (size_t i = 0; i < p->m; i += 1 + p->m / 23)
        for (size_t j = 0; j < p->n; j++) {
            double want = 0, size = 1e-30;
            for (size_t t = 0; t < p->k; t++) {
                double term =
                    rounded(p->compute, a[i * p->k + t]) * rounded(p->compute, (double)w[j * p->k + t]);
                want += term;
                size += fabs(term);
            }
            if (!(fabs((double)got[i * p->n + j] - want) <= 1e-5 * size))
                fail_msg("%u x %u x %u, pack %d, dtype %d: c[%zu, %zu] is %.9g, not %.9g", p->m, p->n, p->k,
                         (int)p->pack, (int)p->compute, i, j, (double)got[i * p->n + j], want);
        }
    free(a), free(scales), free(w), free(got);
}

static void every_tile_multiplies_every_stored_form(void **state)
{
    static const uint32_t sides[][2] = {{1030, 1020}, {200, 200}, {200, 16}, {16, 200}};
    static const enum pack_kind packs[] = {PACK_BF16, PACK_NF4, PACK_Q8_0};
    static const enum dtype computes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    (void)state;
    for (size_t side = 0; side < 4; side++)
        for (size_t pack = 0; pack < 3; pack++)
            for (size_t compute = 0; compute < (trials < TRIALS_FULL ? 2 : 3); compute++) {
                struct bench b;
                struct err err;
                if (trials < TRIALS_FULL && side == 0 && packs[pack] != PACK_NF4)
                    continue;
                memset(&b, 0, sizeof(b));
                check(watched_open(&(struct device_options){.kind = gpu_kind, .name = "check"}, &b.device,
                                   &err));
                rand_stream_init(&b.stream, 6, 0);
                tile_check(&b, &(struct tile_product){sides[side][0], sides[side][1], 64, packs[pack],
                                                      computes[compute]});
                bench_close(&b);
            }
}

static void families_match_fp64(void **state)
{
    (void)state;
#if GPU_HAS_JSON
    if (trials < TRIALS_FULL) {
        print_message("SKIP: a toy trains nothing; tests/engine/test_gpu_golden.c does\n");
        skip();
    }
    for (size_t i = 0; i < FAMILIES; i++) {
        run_golden(families[i], "lora", gpu_kind, 1, (struct train_options){.micro_batch_rows = 2});
        run_golden(families[i], "full", gpu_kind, 1,
                   (struct train_options){.cuts = {2}, .cut_count = 1, .recompute = true});
    }
#else
    print_message(
        "SKIP: golden models are JSON files, and jansson's header was not there when this was built\n");
    skip();
#endif
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"ops",       "experts", "packed", "units",
                                        "attention", "large",   "tiles",  "families"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_is_its_definition_and_has_the_bits_of_the_emulated_device),
        cmocka_unit_test(expert_ops_likewise),
        cmocka_unit_test(packed_products_likewise),
        cmocka_unit_test(products_by_matrix_units_are_right_and_repeat),
        cmocka_unit_test(attention_by_matrix_units_likewise),
        cmocka_unit_test(large_products_are_their_definition),
        cmocka_unit_test(every_tile_multiplies_every_stored_form),
        cmocka_unit_test(families_match_fp64),
    };
    struct device *device;
    struct err err;
    if (argc < 2)
        return fprintf(stderr, "gpu_check cuda|hip|emulated [TRIALS [TEST]]\n"), 2;
    snprintf(gpu_kind, sizeof(gpu_kind), "%s", argv[1]);
    trials = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : trials;
    if (device_open(&(struct device_options){.kind = gpu_kind, .name = "check"}, &device, &err) != 0)
        return printf("SKIP %s: %s\n", gpu_kind, err.text), 77;
    bool wide = strncmp(device_isa(device), "gfx9", 4) == 0 || strcmp(device_isa(device), "warp64") == 0;
    snprintf(gpu_other_isa, sizeof(gpu_other_isa), "%s", wide ? "warp64" : "warp32");
    printf("checking %s, %s\n", gpu_kind, device_isa(device));
    device_close(device);
    int failed = 0;
    bool found = argc <= 3;
    for (size_t i = 0; i < sizeof(tests) / sizeof(*tests) && argc > 3; i++) {
        const struct CMUnitTest only[] = {tests[i]};
        bool kernels = strcmp(argv[3], "kernels") == 0 && strcmp(names[i], "families") != 0;
        if (!kernels && strcmp(argv[3], names[i]) != 0)
            continue;
        found = true;
        failed += cmocka_run_group_tests(only, NULL, NULL);
    }
    if (!found)
        return fprintf(stderr, "there is no test %s\n", argv[3]), 2;
    if (argc <= 3)
        failed = cmocka_run_group_tests(tests, NULL, NULL);
    launches_print();
    return failed;
}
