/* Tests the unchanged CUDA and HIP drivers on fake libraries (fakes/): which calls they make, in which order
 * and with which handles; every call failing once; and libraries that are absent, too old or incomplete. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/fakes/fake.h"
#include "engine/gpu/gpu.h"
#include "engine/gpu/vendor_private.h"

struct brand {
    const struct gpu_driver *driver;
    const char *variable, *library;
    const char *image;
    uint32_t image_bytes;
    const char *arch, *pci, *uuid, *uuid_second, *least;
    uint32_t version, version_old, warp, shared;
};

static const char ptx[] = ".version 6.0\n.target sm_52\n", elf[16] = "\177ELF";

static struct brand brands[] = {
    {.driver = &gpu_driver_cuda,
     .variable = "MOTLEY_CUDA_LIBRARY",
     .library = MOTLEY_FAKES "/libfake_cuda.so",
     .image = ptx,
     .image_bytes = sizeof(ptx),
     .arch = "sm_86",
     .pci = "0000:0a:00.0",
     .uuid = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f",
     .uuid_second = "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f",
     .least = "version 11.2: at least CUDA 11.4 (driver 470) is needed",
     .version_old = 11020,
     .warp = 32,
     .shared = 101376},
    {.driver = &gpu_driver_hip,
     .variable = "MOTLEY_HIP_LIBRARY",
     .library = MOTLEY_FAKES "/libfake_hip.so",
     .image = elf,
     .image_bytes = sizeof(elf),
     .arch = "gfx90a",
     .pci = "0000:c1:00.0",
     .uuid = "GPU-0123456789abcdef",
     .uuid_second = "", /* two cards without a UUID must not look like one */
     .least = "version 4.5: at least ROCm 5.0 is needed",
     .version = 60342134,
     .version_old = 40521401,
     .warp = 64,
     .shared = 65536},
};

enum { BRANDS = sizeof(brands) / sizeof(*brands), COUNT = 1000, BYTES = COUNT * 4 };

/* Returns the switches of the fake library, which is the same one that the driver opens. */
static struct fake_control *control_of(const struct brand *brand)
{
    void *library = dlopen(brand->library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    struct fake_control *control = !library ? NULL : dlsym(library, "fake_control");
    if (!control)
        fail_msg("%s", dlerror());
    setenv(brand->variable, brand->library, 1);
    control->calls = control->fail_at = control->misuses = 0;
    control->trace[0] = '\0';
    return control;
}

static void must(int result, const struct err *err)
{
    if (result != 0)
        fail_msg("%s: %s", err_code_name(err->code), err->text);
}

/* The objects of one use of a card; each may be missing. */
struct scene {
    const struct gpu_driver *driver;
    struct gpu_library *library;
    struct gpu_context *context, *peer;
    struct gpu_queue *queues[2];
    struct gpu_event *begin, *end;
    struct gpu_module *module;
    struct gpu_function *add;
    struct gpu_graph *graph;
    gpu_address x, y, shared;
    float *host;
};

static void scene_close(struct scene *s)
{
    const struct gpu_driver *driver = s->driver;
    struct err ignored;
    for (int i = 0; i < 2; i++)
        if (s->queues[i])
            driver->queue_sync(s->queues[i], &ignored);
    driver->graph_destroy(s->graph);
    driver->event_destroy(s->begin);
    driver->event_destroy(s->end);
    driver->module_unload(s->module);
    if (s->shared != 0)
        driver->memory_unimport(s->context, s->shared, &ignored);
    if (s->x != 0)
        driver->memory_destroy(s->context, s->x, &ignored);
    if (s->y != 0)
        driver->memory_destroy(s->context, s->y, &ignored);
    if (s->host)
        driver->host_destroy(s->context, s->host, &ignored);
    for (int i = 0; i < 2; i++)
        driver->queue_destroy(s->queues[i]);
    driver->context_destroy(s->peer);
    driver->context_destroy(s->context);
    driver->close(s->library);
}

static int scene_open(struct scene *s, const struct brand *brand, struct err *err)
{
    const struct gpu_driver *driver = s->driver;
    struct gpu_info info;
    uint32_t version, count;
    uint64_t available, total;
    void *host = NULL;
    if (driver->open(&s->library, &version, err) != 0 || driver->count(s->library, &count, err) != 0 ||
        driver->info(s->library, 0, NULL, &info, err) != 0 ||
        driver->context_create(s->library, 0, NULL, 0, &s->context, err) != 0 ||
        driver->context_create(s->library, 1, NULL, 0, &s->peer, err) != 0 ||
        driver->memory_info(s->context, &available, &total, err) != 0 ||
        driver->memory_create(s->context, BYTES, &s->x, err) != 0 ||
        driver->memory_create(s->context, BYTES, &s->y, err) != 0 ||
        driver->host_create(s->context, BYTES, &host, err) != 0)
        return -1;
    s->host = host;
    for (int i = 0; i < 2; i++)
        if (driver->queue_create(s->context, &s->queues[i], err) != 0)
            return -1;
    if (driver->event_create(s->context, true, &s->begin, err) != 0 ||
        driver->event_create(s->context, true, &s->end, err) != 0 ||
        driver->module_load(s->context, brand->image, brand->image_bytes, &s->module, err) != 0 ||
        driver->function(s->module, "add_rows", &s->add, err) != 0)
        return -1;
    assert_int_equal(version, brand->version);
    assert_int_equal(count, 2);
    return 0;
}

/* Runs y += 2x, with `shared` bytes of dynamic shared memory; beyond a limit these must be allowed first. */
static int scene_add(struct scene *s, uint32_t shared, struct err *err)
{
    struct add_rows_args args = {
        .x = s->x, .y = s->y, .rows = 1, .width = COUNT, .ldx = COUNT, .ldy = COUNT, .alpha = 2};
    return s->driver->launch(s->queues[0], s->add,
                             (struct gpu_dims){(uint32_t)gpu_row_blocks(1, COUNT, 4), 1, 1}, 256, shared,
                             &args, sizeof(args), err);
}

static int scene_record(struct scene *s, struct err *err)
{
    const struct gpu_driver *driver = s->driver;
    struct err unasked;
    if (driver->capture_begin(s->queues[0], err) != 0)
        return -1;
    if (scene_add(s, 0, err) != 0) {
        struct gpu_graph *none = NULL;
        driver->capture_end(s->queues[0], &none, &unasked);
        driver->graph_destroy(none);
        return -1;
    }
    return driver->capture_end(s->queues[0], &s->graph, err) != 0
               ? -1
               : driver->graph_launch(s->graph, s->queues[0], err);
}

/* On two queues: sets x = 1, 2, … and y = 0, runs y += 2x twice, copies y to x, and x to the host. */
static int scene_work(struct scene *s, struct err *err)
{
    const struct gpu_driver *driver = s->driver;
    uint8_t handle[GPU_IPC_BYTES];
    float took;
    bool done = false, can;
    for (int i = 0; i < COUNT; i++)
        s->host[i] = (float)(i + 1);
    if (driver->event_record(s->begin, s->queues[0], err) != 0 ||
        driver->copy_in(s->queues[0], s->x, s->host, BYTES, err) != 0 ||
        driver->fill(s->queues[0], s->y, 0, BYTES, err) != 0 || scene_add(s, 0, err) != 0 ||
        scene_record(s, err) != 0 || driver->copy(s->queues[0], s->x, s->y, BYTES, err) != 0 ||
        driver->event_record(s->end, s->queues[0], err) != 0 ||
        driver->event_wait(s->end, s->queues[1], err) != 0 ||
        driver->copy_out(s->queues[1], s->host, s->x, BYTES, err) != 0 ||
        driver->queue_sync(s->queues[1], err) != 0 || driver->event_sync(s->end, err) != 0 ||
        driver->event_done(s->end, &done, err) != 0 ||
        driver->event_elapsed(s->begin, s->end, &took, err) != 0 ||
        driver->memory_export(s->context, s->x, handle, err) != 0 ||
        driver->memory_import(s->context, handle, &s->shared, err) != 0 ||
        driver->peer_enable(s->context, s->peer, &can, err) != 0)
        return -1;
    assert_true(done);
    assert_true(can);
    assert_true(took > 0);
    for (int i = 0; i < COUNT; i++)
        assert_true(s->host[i] == 4.0f * (float)(i + 1));
    return 0;
}

static int scene_run(const struct brand *brand, struct err *err)
{
    struct scene s = {.driver = brand->driver};
    int result = scene_open(&s, brand, err);
    if (result == 0)
        result = scene_work(&s, err);
    scene_close(&s);
    return result;
}

static void clean(const struct fake_control *control, const char *when)
{
    if (control->misuses != 0)
        fail_msg("%s: %llu calls went wrong, the last %s", when, (unsigned long long)control->misuses,
                 control->misuse);
    if (control->live != 0)
        fail_msg("%s: %llu things were not given back", when, (unsigned long long)control->live);
}

/* --- tests */

static void a_card_computes_through_its_driver(void **state)
{
    (void)state;
    for (int i = 0; i < BRANDS; i++) {
        struct fake_control *control = control_of(&brands[i]);
        struct err err;
        must(scene_run(&brands[i], &err), &err);
        assert_int_equal(control->block_bytes, sizeof(struct add_rows_args));
        clean(control, brands[i].library);
    }
}

/* The use of a card makes exactly these calls in this order. */
static void calls_come_in_order(void **state)
{
    (void)state;
    static const char *const wanted[BRANDS] = {
        " cuDriverGetVersion cuInit cuDeviceGetCount cuDeviceGet cuDevicePrimaryCtxRetain cuCtxSetCurrent "
        "cuMemAlloc_v2 cuCtxSetCurrent cuStreamCreate cuCtxSetCurrent cuEventCreate cuCtxSetCurrent "
        "cuMemsetD8Async cuCtxSetCurrent cuEventRecord cuCtxSetCurrent cuEventSynchronize cuCtxSetCurrent "
        "cuEventDestroy_v2 cuCtxSetCurrent cuStreamDestroy_v2 cuCtxSetCurrent cuMemFree_v2 "
        "cuDevicePrimaryCtxRelease_v2",
        " hipRuntimeGetVersion hipInit hipGetDeviceCount hipDeviceGet hipSetDevice hipSetDevice hipMalloc "
        "hipSetDevice hipStreamCreateWithFlags hipSetDevice hipEventCreateWithFlags hipSetDevice "
        "hipMemsetD8Async hipSetDevice hipEventRecord hipSetDevice hipEventSynchronize hipSetDevice "
        "hipEventDestroy hipSetDevice hipStreamDestroy hipSetDevice hipFree",
    };
    for (int i = 0; i < BRANDS; i++) {
        const struct gpu_driver *driver = brands[i].driver;
        struct fake_control *control = control_of(&brands[i]);
        struct scene s = {.driver = driver};
        struct err err;
        uint32_t version;
        must(driver->open(&s.library, &version, &err), &err);
        must(driver->context_create(s.library, 1, NULL, 0, &s.context, &err), &err);
        must(driver->memory_create(s.context, 64, &s.x, &err), &err);
        must(driver->queue_create(s.context, &s.queues[0], &err), &err);
        must(driver->event_create(s.context, false, &s.end, &err), &err);
        must(driver->fill(s.queues[0], s.x, 7, 64, &err), &err);
        must(driver->event_record(s.end, s.queues[0], &err), &err);
        must(driver->event_sync(s.end, &err), &err);
        driver->event_destroy(s.end);
        driver->queue_destroy(s.queues[0]);
        must(driver->memory_destroy(s.context, s.x, &err), &err);
        driver->context_destroy(s.context);
        driver->close(s.library);
        assert_string_equal(control->trace, wanted[i]);
        clean(control, "in order");
    }
}

static void cards_say_what_they_are(void **state)
{
    (void)state;
    for (int i = 0; i < BRANDS; i++) {
        const struct gpu_driver *driver = brands[i].driver;
        struct fake_control *control = control_of(&brands[i]);
        struct gpu_library *library;
        struct gpu_info info;
        struct err err;
        uint32_t version;
        must(driver->open(&library, &version, &err), &err);
        must(driver->info(library, 0, NULL, &info, &err), &err);
        assert_string_equal(info.arch, brands[i].arch);
        assert_string_equal(info.pci, brands[i].pci);
        assert_string_equal(info.uuid, brands[i].uuid);
        assert_int_equal(info.warp, brands[i].warp);
        assert_int_equal(info.shared, brands[i].shared);
        assert_int_equal(info.memory, 512 << 20);
        assert_int_equal(info.clock_khz, 1700000);
        assert_false(info.exclusive || info.prohibited);
        must(driver->info(library, 1, NULL, &info, &err), &err);
        assert_string_equal(info.uuid, brands[i].uuid_second);
        control->compute_mode = 3;
        must(driver->info(library, 0, NULL, &info, &err), &err);
        assert_true(info.exclusive && !info.prohibited);
        control->compute_mode = 2;
        must(driver->info(library, 0, NULL, &info, &err), &err);
        assert_true(!info.exclusive && info.prohibited);
        control->compute_mode = 0;
        assert_false(info.watchdog || info.integrated);
        control->watchdog = 1;
        must(driver->info(library, 0, NULL, &info, &err), &err);
        assert_true(info.watchdog && !info.integrated);
        control->watchdog = 0;
        control->integrated = 1;
        must(driver->info(library, 0, NULL, &info, &err), &err);
        assert_true(!info.watchdog && info.integrated);
        control->integrated = 0;
        assert_int_equal(driver->info(library, 2, NULL, &info, &err), -1);
        assert_int_equal(err.code, ERR_NOT_FOUND);
        driver->close(library);
    }
}

/* RDNA's cards have warps of 32 threads; an APU's driver may tell more free memory than there is. */
static void an_apu_says_what_it_is(void **state)
{
    struct fake_control *control = control_of(&brands[1]);
    struct gpu_library *library;
    struct gpu_context *context;
    struct gpu_info info;
    struct err err;
    uint32_t version;
    uint64_t available, total;
    (void)state;
    const char *before = control->arch;
    control->arch = "gfx1151";
    control->integrated = 1;
    control->free_more = 4ull << 30;
    must(gpu_driver_hip.open(&library, &version, &err), &err);
    must(gpu_driver_hip.info(library, 0, NULL, &info, &err), &err);
    assert_string_equal(info.arch, "gfx1151");
    assert_int_equal(info.warp, 32);
    assert_true(info.integrated);
    must(gpu_driver_hip.context_create(library, 0, NULL, 0, &context, &err), &err);
    must(gpu_driver_hip.memory_info(context, &available, &total, &err), &err);
    assert_int_equal(available, total);
    gpu_driver_hip.context_destroy(context);
    gpu_driver_hip.close(library);
    control->arch = before;
    control->integrated = 0;
    control->free_more = 0;
}

/* ROCm 5 reports the architecture in a structure of another layout, and opens another process's memory with
 * another flag. */
static void a_card_computes_under_rocm_5(void **state)
{
    (void)state;
    struct brand brand = brands[1];
    struct gpu_library *library;
    struct gpu_info info;
    struct err err;
    uint32_t version;
    brand.library = MOTLEY_FAKES "/libfake_hip_rocm5.so";
    brand.version = 50221153;
    struct fake_control *control = control_of(&brand);
    must(gpu_driver_hip.open(&library, &version, &err), &err);
    must(gpu_driver_hip.info(library, 0, NULL, &info, &err), &err);
    assert_string_equal(info.arch, "gfx90a");
    gpu_driver_hip.close(library);
    must(scene_run(&brand, &err), &err);
    clean(control, brand.library);
}

/* Whether the call belongs to a release (or waits for a stream before one), so that nobody is told when it
 * fails. A call that makes the context current belongs to the call after it. */
static bool gives_back(const char *trace, uint64_t call)
{
    char name[64] = "", next[64] = "";
    const char *at = trace;
    for (uint64_t i = 0; i < call && at; i++)
        at = strchr(at + 1, ' ');
    /* `at` is the end of the call's name (NULL: the call is the last one); `begin` becomes the beginning of
     * the name. */
    const char *begin = !at ? strrchr(trace, ' ') : at;
    while (at && begin > trace && *--begin != ' ')
        ;
    sscanf(begin, " %63s %63s", name, next);
    const char *which =
        strcmp(name, "cuCtxSetCurrent") == 0 || strcmp(name, "hipSetDevice") == 0 ? next : name;
    return strstr(which, "Destroy") || strstr(which, "Free") || strstr(which, "Release") ||
           strstr(which, "Unload") || strstr(which, "Close") || strstr(which, "StreamSynchronize");
}

static void every_call_may_fail_once(void **state)
{
    (void)state;
    static const int errors[] = {2, 700, 999, 801};
    for (int i = 0; i < BRANDS; i++) {
        struct fake_control *control = control_of(&brands[i]);
        char trace[sizeof(control->trace)], when[64];
        struct err err;
        must(scene_run(&brands[i], &err), &err);
        uint64_t calls = control->calls, told = 0;
        assert_in_range(calls, 80, 400);
        memcpy(trace, control->trace, sizeof(trace));
        for (uint64_t call = 1; call <= calls; call++)
            for (size_t e = 0; e < sizeof(errors) / sizeof(*errors); e++) {
                control_of(&brands[i]);
                control->fail_at = call;
                control->fail_with = errors[e];
                int result = scene_run(&brands[i], &err);
                snprintf(when, sizeof(when), "%s: call %llu failed with %d", brands[i].driver->kind,
                         (unsigned long long)call, errors[e]);
                clean(control, when);
                if (result == 0 && !gives_back(trace, call))
                    fail_msg("%s: and nobody was told", when);
                if (result != 0 && err.code != vendor_error_code(errors[e]))
                    fail_msg("%s: told as %s: %s", when, err_code_name(err.code), err.text);
                told += result != 0;
            }
        assert_true(
            told >
            calls); /* Each call failed with four errors, of which on average more than one was reported. */
    }
}

/* After a call failed with a device error, the driver answers every later call that can fail with that error,
 * and makes no further calls of the library. */
static void a_lost_card_stays_lost(void **state)
{
    (void)state;
    static const struct {
        int error;
        enum err_code code;
    } cases[] = {{214, ERR_DEVICE_FAULT}, {700, ERR_DEVICE_FAULT}, {719, ERR_DEVICE_FAULT},
                 {709, ERR_DEVICE_LOST},  {46, ERR_DEVICE_LOST},   {999, ERR_DEVICE_LOST}};
    for (int i = 0; i < BRANDS; i++)
        for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
            struct fake_control *control = control_of(&brands[i]);
            struct scene s = {.driver = brands[i].driver};
            struct err err, again;
            uint64_t available, total;
            must(scene_open(&s, &brands[i], &err), &err);
            control->fail_at =
                control->calls + 2; /* The call after the one that makes the context current fails. */
            control->fail_with = cases[c].error;
            assert_int_equal(s.driver->fill(s.queues[0], s.x, 0, BYTES, &err), -1);
            assert_int_equal(err.code, cases[c].code);
            uint64_t calls = control->calls;
            assert_int_equal(s.driver->memory_info(s.context, &available, &total, &again), -1);
            assert_int_equal(scene_add(&s, 0, &again), -1);
            assert_int_equal(again.code, cases[c].code);
            assert_string_equal(again.text, err.text);
            assert_int_equal(control->calls, calls); /* The driver makes no further calls. */
            scene_close(&s);
            clean(control, "a lost card");
        }
}

static void errors_name_call_and_reason(void **state)
{
    (void)state;
    struct fake_control *control = control_of(&brands[0]);
    struct scene s = {.driver = brands[0].driver};
    struct err err;
    gpu_address none;
    must(scene_open(&s, &brands[0], &err), &err);
    assert_int_equal(s.driver->memory_create(s.context, 1ull << 40, &none, &err), -1);
    assert_int_equal(err.code, ERR_NOMEM);
    assert_non_null(strstr(err.text, "1099511627776 bytes"));
    assert_non_null(strstr(err.text, "CUDA_ERROR_OUT_OF_MEMORY (2) of cuMemAlloc_v2; "));
    assert_non_null(
        strstr(err.text, " of the card's 536870912 bytes are free: nvidia-smi names the programs"));
    struct gpu_module *module;
    assert_int_equal(s.driver->module_load(s.context, "garbage", 8, &module, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    assert_non_null(strstr(err.text, "ptxas fatal   : Unsupported image"));
    struct gpu_function *function;
    assert_int_equal(s.driver->function(s.module, "no_such", &function, &err), -1);
    assert_int_equal(err.code, ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "kernel no_such"));
    control->trace[0] = '\0'; /* 64 KiB are more shared memory than the fake card's blocks have: the driver
                                 asks for so much first, and the launch fails. */
    assert_int_equal(scene_add(&s, 64 << 10, &err), -1);
    assert_string_equal(control->trace, " cuCtxSetCurrent cuFuncSetAttribute cuLaunchKernel");
    scene_close(&s);
    clean(control, "errors");
}

/* Launches a kernel, whose call fails with `number`, and returns the code and the text of the error. */
static enum err_code launch_failed(const struct brand *brand, int number, struct err *err)
{
    struct fake_control *control = control_of(brand);
    struct scene s = {.driver = brand->driver};
    must(scene_open(&s, brand, err), err);
    control->fail_at = control->calls + 2; /* the call after the one that makes the context current */
    control->fail_with = number;
    assert_int_equal(scene_add(&s, 0, err), -1);
    scene_close(&s);
    clean(control, "a launch");
    return err->code;
}

/* Faults whose cause is not the kernel: a display's watchdog, the card's memory, a neighbour under MPS. */
static void a_fault_says_what_else_may_have_caused_it(void **state)
{
    char folder[] = "/tmp/motley-mps-XXXXXX", control[64];
    struct err err;
    (void)state;
    assert_non_null(mkdtemp(folder));
    setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1);
    assert_int_equal(launch_failed(&brands[0], 702, &err), ERR_DEVICE_FAULT);
    assert_non_null(strstr(err.text, "a display's watchdog ended the kernel: drive the display by another"));
    assert_int_equal(launch_failed(&brands[0], 214, &err), ERR_DEVICE_FAULT);
    assert_non_null(strstr(err.text, "the card's memory failed: nvidia-smi -q -d ECC,ROW_REMAPPER"));
    assert_int_equal(launch_failed(&brands[1], 214, &err), ERR_DEVICE_FAULT);
    assert_non_null(strstr(err.text, "the card's memory failed: rocm-smi --showrasinfo all"));
    assert_int_equal(launch_failed(&brands[0], 719, &err), ERR_DEVICE_FAULT);
    assert_null(strstr(err.text, "MPS"));
    snprintf(control, sizeof(control), "%s/control", folder);
    FILE *file = fopen(control, "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(launch_failed(&brands[0], 719, &err), ERR_DEVICE_LOST);
    assert_non_null(strstr(err.text, "MPS shares this card, and a fault of one program ends all"));
    assert_int_equal(launch_failed(&brands[1], 719, &err), ERR_DEVICE_FAULT); /* AMD has no MPS */
    unlink(control);
    rmdir(folder);
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");
}

static void open_refused(const struct gpu_driver *driver, enum err_code code, const char *why)
{
    struct gpu_library *library;
    struct err err;
    uint32_t version;
    assert_int_equal(driver->open(&library, &version, &err), -1);
    assert_int_equal(err.code, code);
    if (!strstr(err.text, why))
        fail_msg("'%s' says nothing of '%s'", err.text, why);
}

static void libraries_that_do_not_serve_are_named(void **state)
{
    (void)state;
    for (int i = 0; i < BRANDS; i++) {
        const struct gpu_driver *driver = brands[i].driver;
        struct fake_control *control = control_of(&brands[i]);
        control->version = (int)brands[i].version_old;
        open_refused(driver, ERR_UNSUPPORTED, brands[i].least);
        control->version = (int)brands[i].version;
        control->fail_at = 4; /* On the second opening the calls are the version and then cuInit. */
        control->calls = 2;
        control->fail_with = 100;
        open_refused(driver, ERR_NOT_FOUND, "(100)");
        control->fail_at = 0;
        clean(control, "no library");
        setenv(brands[i].variable, MOTLEY_FAKES "/libfake_bare.so", 1);
        open_refused(driver, ERR_UNSUPPORTED, i == 0 ? "lacks cuInit" : "lacks hipInit");
        setenv(brands[i].variable, MOTLEY_FAKES "/no_such.so", 1);
        open_refused(driver, ERR_NOT_FOUND, "no_such.so");
    }
}

static void a_driver_without_cards_shows_none(void **state)
{
    (void)state;
    for (int i = 0; i < BRANDS; i++) {
        const struct gpu_driver *driver = brands[i].driver;
        struct fake_control *control = control_of(&brands[i]);
        struct gpu_library *library;
        struct gpu_context *context;
        struct gpu_info info;
        struct err err;
        uint32_t version, count = 9;
        control->devices = 0;
        must(driver->open(&library, &version, &err), &err);
        must(driver->count(library, &count, &err), &err);
        assert_int_equal(count, 0);
        assert_int_equal(driver->info(library, 0, NULL, &info, &err), -1);
        assert_int_equal(err.code, ERR_NOT_FOUND);
        assert_int_equal(driver->context_create(library, 0, NULL, 0, &context, &err), -1);
        assert_int_equal(err.code, ERR_NOT_FOUND);
        driver->close(library);
        control->devices = 2;
    }
}

/* Each error number of the vendors becomes one of our error codes. */
static void numbers_have_types(void **state)
{
    (void)state;
    static const struct {
        int error;
        enum err_code code;
    } cases[] = {{2, ERR_NOMEM},          {100, ERR_NOT_FOUND},    {209, ERR_UNSUPPORTED},
                 {214, ERR_DEVICE_FAULT}, {222, ERR_UNSUPPORTED},  {702, ERR_DEVICE_FAULT},
                 {710, ERR_DEVICE_FAULT}, {718, ERR_DEVICE_FAULT}, {909, ERR_TIMEOUT},
                 {3, ERR_INTERNAL},       {-7, ERR_INTERNAL},      {123456, ERR_INTERNAL}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        assert_int_equal(vendor_error_code(cases[i].error), cases[i].code);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_card_computes_through_its_driver),
        cmocka_unit_test(calls_come_in_order),
        cmocka_unit_test(cards_say_what_they_are),
        cmocka_unit_test(an_apu_says_what_it_is),
        cmocka_unit_test(a_card_computes_under_rocm_5),
        cmocka_unit_test(every_call_may_fail_once),
        cmocka_unit_test(a_lost_card_stays_lost),
        cmocka_unit_test(errors_name_call_and_reason),
        cmocka_unit_test(a_fault_says_what_else_may_have_caused_it),
        cmocka_unit_test(libraries_that_do_not_serve_are_named),
        cmocka_unit_test(a_driver_without_cards_shows_none),
        cmocka_unit_test(numbers_have_types),
    };
    brands[0].version = (uint32_t)control_of(&brands[0])->version; /* MOTLEY_FAKE_CUDA chooses it */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
