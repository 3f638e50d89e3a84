/* Tests products by a fake rocBLAS (fakes/rocblas.c) on the fake HIP driver: the questions to the library,
 * the effect of every failing call, recorded passes, and unsuitable libraries. */
#include "engine/library_scene.h"

#include <sys/stat.h>
#include <unistd.h>

#include "engine/fakes/fake.h"

#define HIP_VERSION 60342134
#define CODE MOTLEY_FAKES "/rocblas/library"

static struct fake_products *roc_of(void)
{
    return fake_of(MOTLEY_FAKES "/libfake_rocblas.so", "fake_rocblas", "MOTLEY_ROCBLAS_LIBRARY");
}

static struct fake_control *hip_of(void)
{
    return symbol_of(MOTLEY_FAKES "/libfake_hip.so", "fake_control");
}

static void large_products_go_to_the_library(void **state)
{
    (void)state;
    if (!code_inside("hip", "gfx90a"))
        skip();
    products_are_the_library_s(roc_of(), "hip", " gemm_ex");
}

/* Products that rocBLAS refuses as not implemented run on our own kernels, as do all products on a card for
 * which it has no code. */
static void refused_products_are_our_own(void **state)
{
    struct fake_products *roc = roc_of();
    struct scene s;
    (void)state;
    if (!code_inside("hip", "gfx90a"))
        skip();
    scene_open(&s, "hip", DTYPE_BF16, false, true, false);
    roc->fail_at = roc->calls + 1;
    roc->fail_with = 2;
    submit(&s.b, s.op);
    assert_int_equal(roc->products, 0);
    scene_right(&s, 1);
    scene_close(&s);
    roc->trace[0] = '\0';
    setenv("ROCBLAS_TENSILE_LIBPATH", MOTLEY_FAKES, 1);
    scene_open(&s, "hip", DTYPE_BF16, false, true, false);
    submit(&s.b, s.op);
    unsetenv("ROCBLAS_TENSILE_LIBPATH");
    assert_string_equal(roc->trace, "");
    scene_right(&s, 1);
    scene_close(&s);
    fake_clean(roc, "our own");
}

/* Counts the lines that `file`, which stands for the log, has with the words. */
static int lines_with(FILE *file, const char *words)
{
    char line[4096];
    int count = 0;
    rewind(file);
    while (fgets(line, sizeof(line), file))
        count += strstr(line, words) != NULL;
    return count;
}

/* A rocBLAS without 16-bit kernels, as gfx1030's may be: each kind of product is asked for once, then our own
 * kernels compute it at once, and the log says so once a type. Products in fp32 still go to the library. */
static void a_library_without_16_bit_kernels_is_said_once(void **state)
{
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16};
    struct fake_products *roc = roc_of();
    struct scene s;
    (void)state;
    if (!code_inside("hip", "gfx90a"))
        skip();
    FILE *log = tmpfile();
    int kept = dup(STDERR_FILENO);
    dup2(fileno(log), STDERR_FILENO);
    roc->lacks = 1;
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        scene_open(&s, "hip", types[i], false, true, false);
        roc->trace[0] = '\0';
        submit(&s.b, s.op);
        assert_string_equal(roc->trace, " gemm_ex");
        submit(&s.b, s.op);
        submit(&s.b, s.op);
        assert_string_equal(roc->trace, " gemm_ex");
        scene_right(&s, 3);
        scene_close(&s);
    }
    scene_open(&s, "hip", DTYPE_F32, false, true, false);
    submit(&s.b, s.op);
    assert_int_equal(roc->products, 1);
    scene_close(&s);
    roc->lacks = 0;
    dup2(kept, STDERR_FILENO);
    close(kept);
    assert_int_equal(lines_with(log, "products_without_library library=rocBLAS arch=gfx90a"), 2);
    assert_int_equal(lines_with(log, "type=bf16"), 1);
    assert_int_equal(lines_with(log, "type=fp16"), 1);
    fclose(log);
    fake_clean(roc, "without 16 bits");
}

static void recorded_passes_hold_the_library_s_products(void **state)
{
    (void)state;
    if (!code_inside("hip", "gfx90a"))
        skip();
    passes_hold_the_library_s(roc_of(), "hip");
}

/* The error that each rocBLAS status becomes; 0: our own kernels compute the product. */
static const struct {
    int status;
    enum err_code code;
} ends[] = {{6, ERR_DEVICE_FAULT}, {5, ERR_NOMEM}, {1, ERR_INTERNAL}, {4, 0}, {11, 0}, {14, 0}, {15, 0}};

static void every_call_may_fail_once(void **state)
{
    struct fake_products *roc = roc_of();
    (void)state;
    if (!code_inside("hip", "gfx90a"))
        skip();
    for (size_t e = 0; e < sizeof(ends) / sizeof(*ends); e++) {
        bool reached = true;
        for (uint64_t call = 1; reached; call++) {
            struct scene s;
            struct err err;
            roc->calls = 0;
            roc->fail_at = call;
            roc->fail_with = ends[e].status;
            roc->trace[0] = '\0';
            scene_open(&s, "hip", DTYPE_BF16, false, true, true);
            int status = op_submit(s.b.device, &s.op, &err);
            bool product =
                roc->calls == call && strcmp(strrchr(roc->trace, ' '), " gemm_ex") == 0 && ends[e].code != 0;
            assert_int_equal(status != 0, product);
            if (status != 0) {
                assert_int_equal(err.code, ends[e].code);
                assert_non_null(strstr(err.text, "rocblas_gemm_ex"));
            } else {
                scene_right(&s, 1);
            }
            scene_close(&s);
            reached = roc->calls >= call;
            fake_clean(roc, roc->trace);
        }
    }
    assert_int_equal(hip_of()->live, 0);
    assert_int_equal(hip_of()->misuses, 0);
}

static void refused(uint32_t driver, const char *arch, enum err_code code, const char *why)
{
    char name[256];
    struct err err;
    assert_int_equal(products_rocblas.find(driver, arch, name, sizeof(name), &err), -1);
    assert_int_equal(err.code, code);
    if (!strstr(err.text, why))
        fail_msg("'%s' does not say '%s'", err.text, why);
}

static void libraries_that_do_not_serve_are_named(void **state)
{
    char name[256];
    struct err err;
    (void)state;
    roc_of();
    check(products_rocblas.find(HIP_VERSION, "gfx90a", name, sizeof(name), &err));
    assert_non_null(strstr(name, "libfake_rocblas.so, 4.2.1.fake"));
    refused(HIP_VERSION, "gfx1031", ERR_UNSUPPORTED, "libfake_rocblas.so has no code for gfx1031");
    refused(50221153, "gfx90a", ERR_UNSUPPORTED, "is of HIP 60342134, the driver of 50221153");
    setenv("MOTLEY_ROCBLAS_LIBRARY", MOTLEY_FAKES "/libfake_bare.so", 1);
    refused(HIP_VERSION, "gfx90a", ERR_UNSUPPORTED, "lacks rocblas_get_version_string");
    setenv("MOTLEY_ROCBLAS_LIBRARY", MOTLEY_FAKES "/none.so", 1);
    refused(HIP_VERSION, "gfx90a", ERR_NOT_FOUND, "none.so");
    setenv("MOTLEY_ROCBLAS_LIBRARY", "none", 1);
    refused(HIP_VERSION, "gfx90a", ERR_NOT_FOUND, "turned off: MOTLEY_ROCBLAS_LIBRARY");
}

/* Selects the fake HIP library, and makes an empty file of GPU code for gfx90a in the folder beside the fake
 * rocBLAS library in which a real rocBLAS keeps such files. */
static int setup(void **state)
{
    (void)state;
    setenv("MOTLEY_HIP_LIBRARY", MOTLEY_FAKES "/libfake_hip.so", 1);
    mkdir(MOTLEY_FAKES "/rocblas", 0755);
    mkdir(CODE, 0755);
    FILE *file = fopen(CODE "/TensileLibrary_lazy_gfx90a.dat", "w");
    return !file ? -1 : fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_products_go_to_the_library),
        cmocka_unit_test(refused_products_are_our_own),
        cmocka_unit_test(a_library_without_16_bit_kernels_is_said_once),
        cmocka_unit_test(recorded_passes_hold_the_library_s_products),
        cmocka_unit_test(every_call_may_fail_once),
        cmocka_unit_test(libraries_that_do_not_serve_are_named),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
