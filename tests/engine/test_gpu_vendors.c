/* Tests devices of kind cuda and hip on the vendors' fake libraries (fakes/): each op gives the bits of the
 * emulated device with the same warp size. The build's code objects are loaded as for a card; each must have
 * every kernel and be chosen for the right cards. */
#define HARNESS_CANDIDATES                                                                                   \
    {.kind = "emulated", .group = 1, .partial = true, .isa = "warp32"},                                      \
        {.kind = "cuda", .group = 1, .partial = true},                                                       \
        {.kind = "emulated", .group = 2, .partial = true, .isa = "warp64"},                                  \
    {                                                                                                        \
        .kind = "hip", .group = 2, .partial = true                                                           \
    }
#include "engine/cases_basic.h"
#include "engine/cases_experts.h"

#include "engine/gpu/code.h"
#include "engine/gpu/gpu.h"

enum { TRIALS = 2 };

static bool inside(const char *kind, const char *arch)
{
    struct err err;
    return gpu_code_choose(kind, arch, &err) != NULL;
}

/* Skips visibly when the build has no code for cards. */
static void code_needed(void)
{
    if (inside("cuda", "sm_86") && inside("hip", "gfx90a"))
        return;
    for (uint32_t i = 0; i < gpu_code_count; i++)
        if (!gpu_codes[i].packed)
            printf("no code for %s: %s\n", gpu_codes[i].arch, gpu_codes[i].why);
    skip();
}

static void ops_give_the_same_bits_behind_every_driver(void **state)
{
    (void)state;
    code_needed();
    cases_run(basic_cases, sizeof(basic_cases) / sizeof(*basic_cases), TRIALS);
    cases_run(expert_cases, sizeof(expert_cases) / sizeof(*expert_cases), TRIALS);
}

/* The code of every target has all kernels, or the table says why there is no code. */
static void code_objects_hold_every_kernel(void **state)
{
#define NAME(kernel, threads) #kernel,
    static const char *const names[] = {GPU_KERNEL_LIST(NAME)};
    (void)state;
    code_needed();
    for (uint32_t i = 0; i < gpu_code_count; i++) {
        const struct gpu_code *code = &gpu_codes[i];
        void *image;
        uint64_t bytes;
        uint32_t matrix;
        struct err err;
        if (!code->packed) {
            printf("no code for %s: %s\n", code->arch, code->why);
            assert_true(code->why && code->why[0] != '\0');
            continue;
        }
        check(gpu_code_load(code->kind, code->arch, &image, &bytes, &matrix, &err));
        assert_int_equal(bytes, code->bytes);
        assert_int_equal(matrix, code->matrix);
        bool ptx = strncmp(code->form, "ptx", 3) == 0;
        assert_true(ptx ? strstr(image, code->arch) != NULL : memcmp(image, "\177ELF", 4) == 0);
        if (ptx) { /* The table's matrix units are those that the PTX uses. */
            assert_int_equal((matrix & GPU_MATRIX_F16) != 0, strstr(image, ".f32.f16.f16.f32") != NULL);
            assert_int_equal((matrix & GPU_MATRIX_BF16) != 0, strstr(image, ".f32.bf16.bf16.f32") != NULL);
        }
        for (size_t k = 0; k < sizeof(names) / sizeof(*names); k++) {
            char entry[128];
            int length = snprintf(entry, sizeof(entry), ptx ? ".entry %s(" : "%s.kd", names[k]);
            if (!memmem(image, bytes, entry, (size_t)length))
                fail_msg("%s has no kernel %s", code->arch, names[k]);
        }
        free(image);
    }
}

static void a_card_takes_the_newest_code_that_it_can(void **state)
{
    (void)state;
    code_needed();
    static const struct {
        const char *kind, *arch, *takes;
    } cases[] = {{"cuda", "sm_52", "sm_52"},  {"cuda", "sm_61", "sm_52"}, {"cuda", "sm_72", "sm_52"},
                 {"cuda", "sm_75", "sm_75"},  {"cuda", "sm_89", "sm_80"}, {"cuda", "sm_120", "sm_80"},
                 {"hip", "gfx90a", "gfx90a"}, {"cuda", "sm_50", NULL},    {"hip", "gfx803", NULL},
                 {"cuda", "gfx90a", NULL},    {"hip", "sm_86", NULL},     {"cuda", "", NULL}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct err err;
        const struct gpu_code *code = gpu_code_choose(cases[i].kind, cases[i].arch, &err);
        if (cases[i].takes) {
            assert_non_null(code);
            assert_string_equal(code->arch, cases[i].takes);
            continue;
        }
        assert_null(code);
        assert_int_equal(err.code, ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, strcmp(cases[i].kind, "cuda") == 0 ? "sm_52" : "gfx906"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(code_objects_hold_every_kernel),
        cmocka_unit_test(a_card_takes_the_newest_code_that_it_can),
        cmocka_unit_test(ops_give_the_same_bits_behind_every_driver),
    };
    setenv("MOTLEY_CUDA_LIBRARY", MOTLEY_FAKES "/libfake_cuda.so", 1);
    setenv("MOTLEY_HIP_LIBRARY", MOTLEY_FAKES "/libfake_hip.so", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
