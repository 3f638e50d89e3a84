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

#include <dlfcn.h>

#include "engine/fakes/fake.h"
#include "engine/gpu/code.h"
#include "engine/gpu/gpu.h"
#include "engine/gpu/vendor_private.h"

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

/* The bytes of shared memory of one kernel of the PTX: what it declares, and what is declared for several
 * kernels and named in it. */
static unsigned long shared_of(const char *text, const char *kernel, const char *end)
{
    unsigned long bytes = 0;
    for (const char *at = text; (at = strstr(at, ".shared .align ")); at++) {
        const char *name = strstr(at, ".b8 ") + 4, *size = strchr(name, '[') + 1;
        bool whole_file = at[-1] == '\n';
        if (whole_file ? memmem(kernel, (size_t)(end - kernel), name, (size_t)(size - 1 - name)) != NULL
                       : at > kernel && at < end)
            bytes += strtoul(size, NULL, 10);
    }
    return bytes;
}

static unsigned long shared_most(const char *text)
{
    unsigned long most = 0;
    for (const char *kernel = strstr(text, ".entry "), *next; kernel; kernel = next) {
        next = strstr(kernel + 1, ".entry ");
        unsigned long bytes = shared_of(text, kernel, next ? next : kernel + strlen(kernel));
        most = bytes > most ? bytes : most;
    }
    return most;
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
        check(gpu_code_load(code->kind, code->arch, false, &image, &bytes, &matrix, &err));
        assert_int_equal(bytes, code->bytes);
        assert_int_equal(matrix, code->matrix);
        bool ptx = strncmp(code->form, "ptx", 3) == 0;
        assert_true(ptx ? strstr(image, code->arch) != NULL : memcmp(image, "\177ELF", 4) == 0);
        if (ptx) { /* The table's matrix units are those that the PTX uses. */
            assert_int_equal((matrix & GPU_MATRIX_F16) != 0, strstr(image, ".f32.f16.f16.f32") != NULL);
            assert_int_equal((matrix & GPU_MATRIX_BF16) != 0, strstr(image, ".f32.bf16.bf16.f32") != NULL);
        }
        if (ptx) /* More than 48 KiB of shared memory would have to be asked for, which older cards refuse. */
            assert_in_range(shared_most(image), 16 << 10, 48 << 10);
        for (size_t k = 0; k < sizeof(names) / sizeof(*names); k++) {
            char entry[128];
            int length = snprintf(entry, sizeof(entry), ptx ? ".entry %s(" : "%s.kd", names[k]);
            if (!memmem(image, bytes, entry, (size_t)length))
                fail_msg("%s has no kernel %s", code->arch, names[k]);
        }
        free(image);
    }
}

/* Loads an image through the unchanged driver, on the first card of a fake library that plays `version`. */
static int image_load(const char *kind, int version, const void *image, uint64_t bytes, struct err *why)
{
    bool cuda = strcmp(kind, "cuda") == 0;
    const struct gpu_driver *driver = cuda ? &gpu_driver_cuda : &gpu_driver_hip;
    void *fake =
        dlopen(getenv(cuda ? "MOTLEY_CUDA_LIBRARY" : "MOTLEY_HIP_LIBRARY"), RTLD_NOW | RTLD_NODELETE);
    struct fake_control *control = dlsym(fake, "fake_control");
    int before = control->version;
    struct gpu_library *library;
    struct gpu_context *context;
    struct gpu_module *module = NULL;
    struct err err;
    uint32_t opened;
    control->version = version;
    check(driver->open(&library, &opened, &err));
    check(driver->context_create(library, 0, NULL, 0, &context, &err));
    int result = driver->module_load(context, image, bytes, &module, why);
    driver->module_unload(module);
    driver->context_destroy(context);
    driver->close(library);
    control->version = before;
    dlclose(fake);
    return result;
}

/* Drivers refuse code of a version that they do not know. The oldest drivers of which the README speaks take
 * all of this build's code, unless CUDA's own compiler wrote it, which needs drivers as new as itself. */
static void every_driver_takes_the_code(void **state)
{
    (void)state;
    code_needed();
    static const struct {
        const char *kind;
        int version;
    } drivers[] = {{"cuda", 11040},   {"cuda", 12020},   {"cuda", 12040},
                   {"cuda", 12080},   {"cuda", 13000}, /* 470 to 580 */
                   {"hip", 50013601}, {"hip", 50221153}, {"hip", 50731921},
                   {"hip", 60342134}, {"hip", 70051831}};
    for (uint32_t i = 0; i < gpu_code_count; i++) {
        const struct gpu_code *code = &gpu_codes[i];
        void *image;
        uint64_t bytes;
        uint32_t matrix;
        struct err err;
        if (!code->packed || strcmp(gpu_code_compiler, "nvcc") == 0)
            continue;
        check(gpu_code_load(code->kind, code->arch, false, &image, &bytes, &matrix, &err));
        for (size_t d = 0; d < sizeof(drivers) / sizeof(*drivers); d++)
            if (strcmp(drivers[d].kind, code->kind) == 0 &&
                image_load(code->kind, drivers[d].version, image, bytes, &err) != 0)
                fail_msg("%s (%s), driver %d: %s", code->arch, code->form, drivers[d].version, err.text);
        free(image);
    }
}

/* The fake drivers refuse as the real ones do; the error says what the driver knows. */
static void code_of_later_versions_is_refused(void **state)
{
    (void)state;
    static const char ptx[] = "//\n.version 8.5\n.target sm_80\n",
                      elf[16] = {127, 'E', 'L', 'F', 2, 1, 1, 64, 3};
    struct err err;
    assert_int_equal(image_load("cuda", 12020, ptx, sizeof(ptx), &err), -1);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "Unsupported .version 8.5; current version is '8.2'"));
    assert_int_equal(image_load("cuda", 12050, ptx, sizeof(ptx), &err), 0);
    assert_int_equal(image_load("hip", 50013601, elf, sizeof(elf), &err), -1);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_int_equal(image_load("hip", 50221153, elf, sizeof(elf), &err), 0);
}

static void a_card_takes_the_newest_code_that_it_can(void **state)
{
    (void)state;
    code_needed();
    static const struct {
        const char *kind, *arch, *takes;
    } cases[] = {{"cuda", "sm_52", "sm_52"},  {"cuda", "sm_61", "sm_52"},  {"cuda", "sm_72", "sm_52"},
                 {"cuda", "sm_75", "sm_75"},  {"cuda", "sm_89", "sm_80"},  {"cuda", "sm_103", "sm_80"},
                 {"cuda", "sm_121", "sm_80"}, {"hip", "gfx90a", "gfx90a"}, {"cuda", "sm_50", NULL},
                 {"hip", "gfx803", NULL},     {"cuda", "gfx90a", NULL},    {"hip", "sm_86", NULL},
                 {"cuda", "", NULL}};
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

/* Where a limit forbids page-locked memory, ordinary memory serves, and the log says once a device how many
 * bytes were refused and which limits there are. */
static void host_memory_that_may_not_be_locked_is_ordinary(void **state)
{
    static const char *const kinds[] = {"cuda", "hip"};
    enum { BYTES = 1 << 20 };
    (void)state;
    code_needed();
    FILE *log = tmpfile();
    int kept = dup(STDERR_FILENO);
    for (int i = 0; i < 2; i++) {
        struct fake_control *control = dlsym(
            dlopen(getenv(i == 0 ? "MOTLEY_CUDA_LIBRARY" : "MOTLEY_HIP_LIBRARY"), RTLD_NOW | RTLD_NODELETE),
            "fake_control");
        struct device *device;
        struct buffer *buffer;
        struct err err;
        void *locked, *ordinary, *another;
        check(device_open(&(struct device_options){.kind = kinds[i], .name = "left"}, &device, &err));
        check(buffer_create(device, BYTES, MEM_BUFFERS, "some", &buffer, &err));
        check(host_memory_create(device, BYTES, "locked", &locked, &err));
        uint64_t live = control->live;
        control->fail_at = control->calls + 2; /* the call after the one that makes the context current */
        control->fail_with = FAKE_OUT_OF_MEMORY;
        dup2(fileno(log), STDERR_FILENO);
        check(host_memory_create(device, BYTES, "ordinary", &ordinary, &err));
        control->fail_at = control->calls + 2;
        check(host_memory_create(device, BYTES, "ordinary", &another, &err));
        dup2(kept, STDERR_FILENO);
        assert_int_equal(control->live, live);
        host_memory_destroy(device, another, BYTES);
        memset(ordinary, 7, BYTES);
        memset(locked, 0, BYTES);
        check(buffer_write(buffer, 0, ordinary, BYTES, &err));
        check(buffer_read(buffer, 0, locked, BYTES, &err));
        check(device_sync(device, &err));
        assert_memory_equal(locked, ordinary, BYTES);
        host_memory_destroy(device, ordinary, BYTES);
        assert_int_equal(control->live, live);
        host_memory_destroy(device, locked, BYTES);
        assert_int_equal(control->live, live - 1);
        control->fail_at = control->calls + 2;
        control->fail_with = 999; /* any other error is no limit */
        assert_int_equal(host_memory_create(device, BYTES, "some", &locked, &err), -1);
        assert_int_equal(err.code, ERR_DEVICE_LOST);
        buffer_destroy(buffer);
        device_close(device);
        assert_int_equal(control->misuses, 0);
    }
    char text[4096] = "";
    rewind(log);
    for (int i = 0; i < 2; i++) { /* a line a device, and no more */
        assert_non_null(fgets(text, sizeof(text), log));
        assert_non_null(strstr(text, " warn memory_not_page_locked bytes=1048576 why=\""));
        assert_non_null(strstr(text, "raise the limit of locked memory (ulimit -l, LimitMEMLOCK=infinity;"));
    }
    assert_null(fgets(text, sizeof(text), log));
    fclose(log);
    close(kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(code_objects_hold_every_kernel),
        cmocka_unit_test(every_driver_takes_the_code),
        cmocka_unit_test(code_of_later_versions_is_refused),
        cmocka_unit_test(a_card_takes_the_newest_code_that_it_can),
        cmocka_unit_test(host_memory_that_may_not_be_locked_is_ordinary),
        cmocka_unit_test(ops_give_the_same_bits_behind_every_driver),
    };
    setenv("MOTLEY_CUDA_LIBRARY", MOTLEY_FAKES "/libfake_cuda.so", 1);
    setenv("MOTLEY_HIP_LIBRARY", MOTLEY_FAKES "/libfake_hip.so", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
