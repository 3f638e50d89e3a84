/* Checks the engine on a real card with everything that tests/engine checks on the emulated device: every op
 * against its definition in double, and against the emulated device of the same warp size to the bit;
 * products by matrix units; and small models of every family, trained and compared with PyTorch's numbers.
 *
 *   gpu_check KIND [TRIALS]    KIND: cuda, hip or emulated; TRIALS: 40, or 1 for a short run of one family
 *
 * bench/gpu_check.sh runs it for every kind for which there is a card.
 */
static char gpu_kind[16], gpu_other[16] = "emulated", gpu_other_isa[16] = "warp32";
#define HARNESS_CANDIDATES                                                                                   \
    {.kind = gpu_kind, .group = 1, .partial = true},                                                         \
    {                                                                                                        \
        .kind = gpu_other, .group = 1, .partial = true, .isa = gpu_other_isa                                 \
    }
#include "engine/cases_basic.h"
#include "engine/cases_experts.h"
#include "engine/cases_packed.h"
#include "engine/large_product.h"
#if GPU_HAS_JSON
#include "engine/golden.h"
#endif

static uint32_t trials = 40;

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

/* Matrix units add terms in an order of the card's own, which the emulated device does not have. So products
 * are compared with those of a second device on the same card. */
static void products_by_matrix_units_are_right_and_repeat(void **state)
{
    char other[sizeof(gpu_other)], isa[sizeof(gpu_other_isa)];
    (void)state;
    memcpy(other, gpu_other, sizeof(other));
    memcpy(isa, gpu_other_isa, sizeof(isa));
    if (strcmp(gpu_kind, "emulated") != 0) {
        memcpy(gpu_other, gpu_kind, sizeof(gpu_other));
        snprintf(gpu_other_isa, sizeof(gpu_other_isa), "native");
    }
    cases_run(rounded_cases, sizeof(rounded_cases) / sizeof(*rounded_cases), trials);
    memcpy(gpu_other, other, sizeof(other));
    memcpy(gpu_other_isa, isa, sizeof(isa));
}

static void large_product(void)
{
    const struct large_product toy = {130, 70, 33, 70, DTYPE_F32}, large = {1010, 1027, 700, 1027, DTYPE_F32};
    struct bench b;
    struct err err;
    memset(&b, 0, sizeof(b));
    check(device_open(&(struct device_options){.kind = gpu_kind, .name = "check"}, &b.device, &err));
    rand_stream_init(&b.stream, 5, 0);
    large_product_check(&b, trials == 1 ? &toy : &large);
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

static void families_match_fp64(void **state)
{
    (void)state;
#if GPU_HAS_JSON
    if (trials == 1) {
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_is_its_definition_and_has_the_bits_of_the_emulated_device),
        cmocka_unit_test(expert_ops_likewise),
        cmocka_unit_test(packed_products_likewise),
        cmocka_unit_test(products_by_matrix_units_are_right_and_repeat),
        cmocka_unit_test(large_products_are_their_definition),
        cmocka_unit_test(families_match_fp64),
    };
    struct device *device;
    struct err err;
    if (argc < 2)
        return fprintf(stderr, "gpu_check cuda|hip|emulated [TRIALS]\n"), 2;
    snprintf(gpu_kind, sizeof(gpu_kind), "%s", argv[1]);
    trials = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : trials;
    if (device_open(&(struct device_options){.kind = gpu_kind, .name = "check"}, &device, &err) != 0)
        return printf("SKIP %s: %s\n", gpu_kind, err.text), 77;
    bool wide = strncmp(device_isa(device), "gfx9", 4) == 0 || strcmp(device_isa(device), "warp64") == 0;
    snprintf(gpu_other_isa, sizeof(gpu_other_isa), "%s", wide ? "warp64" : "warp32");
    printf("checking %s, %s\n", gpu_kind, device_isa(device));
    device_close(device);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
