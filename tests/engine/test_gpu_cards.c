/* Tests what `motley-worker --devices` reports of unusable cards, on the vendors' fake libraries: each has a
 * reason in a sentence, and the other cards are listed as usual. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/fakes/fake.h"
#include "engine/gpu/cards.h"
#include "engine/gpu/code.h"
#include "engine/gpu/vendor_private.h"
#include "support/must.h"

#define CUDA MOTLEY_FAKES "/libfake_cuda.so"
#define HIP MOTLEY_FAKES "/libfake_hip.so"

static struct fake_control *control_of(const char *library)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    assert_non_null(handle);
    struct fake_control *found = dlsym(handle, "fake_control");
    assert_non_null(found);
    return found;
}

static json_t *asked(void)
{
    struct err err;
    json_t *all = gpu_cards(&err);
    assert_non_null(all);
    return all;
}

static const json_t *of_kind(const json_t *all, const char *list, const char *kind, size_t index)
{
    const json_t *item;
    size_t i;
    json_array_foreach (json_object_get(all, list), i, item)
        if (strcmp(json_string_value(json_object_get(item, "kind")), kind) == 0 && index-- == 0)
            return item;
    return NULL;
}

/* Makes an empty file with these permissions. */
static void node_make(const char *folder, const char *name, mode_t mode)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(chmod(path, mode), 0);
}

static const char *nodes_told(const struct vendor *vendor, const char *folder, struct err *err)
{
    err_set(err, ERR_DEVICE_LOST, "libcuda.so.1: CUDA_ERROR_UNKNOWN (999) of cuInit");
    vendor_nodes_tell(vendor, folder, err);
    assert_int_equal(err->code, ERR_DEVICE_LOST);
    return err->text;
}

/* If a driver does not start because a device node is missing or may not be opened, the error names the node
 * and the command that makes it: after a boot only root can make /dev/nvidia-uvm. */
static void a_missing_device_node_is_named_with_its_command(void **state)
{
    char folder[] = "/tmp/motley-nodes-XXXXXX", path[256];
    struct err err;
    (void)state;
    assert_non_null(mkdtemp(folder));
    node_make(folder, "nvidiactl", 0666);
    snprintf(path, sizeof(path),
             "libcuda.so.1: CUDA_ERROR_UNKNOWN (999) of cuInit; missing: %s/nvidia-uvm (as root, once after "
             "each boot: nvidia-modprobe -c 0 -u)",
             folder);
    assert_string_equal(nodes_told(&vendor_cuda, folder, &err), path);
    node_make(folder, "nvidia-uvm", 0);
    const char *said = nodes_told(&vendor_cuda, folder, &err);
    snprintf(path, sizeof(path), "this user may not open %s/nvidia-uvm", folder);
    assert_true(geteuid() == 0 || strstr(said, path)); /* root may open everything */
    assert_null(strstr(said, "missing"));
    node_make(folder, "nvidia-uvm", 0666);
    assert_null(strchr(nodes_told(&vendor_cuda, folder, &err), ';'));
    assert_non_null(strstr(nodes_told(&vendor_hip, folder, &err),
                           "/kfd (as root, once after each boot: modprobe amdgpu)"));
    const char *const made[] = {"nvidiactl", "nvidia-uvm"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, made[i]);
        unlink(path);
    }
    rmdir(folder);
}

/* Checks that `item` exists and that its `why` has the words; with NULL, that it has no `why`. */
static void says(const json_t *item, const char *words)
{
    const json_t *why = json_object_get(item, "why");
    assert_non_null(item);
    if (!words ? !json_is_null(why) : !json_is_string(why) || !strstr(json_string_value(why), words))
        fail_msg("\"%s\", wanted \"%s\"", json_string_value(why), words);
}

/* Whether the build has kernels for cards. Without them every card is reported as unusable for that reason.
 */
static bool has_code(void)
{
    struct err err;
    return gpu_code_choose("cuda", "sm_86", &err) != NULL;
}

static void setup(void)
{
    setenv("MOTLEY_CUDA_LIBRARY", CUDA, 1);
    setenv("MOTLEY_HIP_LIBRARY", HIP, 1);
}

/* A program that was built for tests has code for few cards, and says so of the others. */
static void a_build_without_a_cards_code_says_why(void **state)
{
    (void)state;
    struct err err;
    if (!gpu_code_choose("hip", "gfx1030", &err) || gpu_code_choose("hip", "gfx1100", &err))
        skip(); /* this build has no code for AMD's cards, or for all of them */
    assert_non_null(strstr(err.text, "no hip code for gfx1100, but for gfx906"));
    assert_non_null(strstr(err.text, "`make build` compiles all"));
    assert_null(gpu_code_choose("hip", "gfx803", &err));
    assert_null(strstr(err.text, "`make build`"));
}

static void a_broken_driver_takes_nothing_from_the_other(void **state)
{
    (void)state;
    static const struct {
        const char *library;
        int version;
        const char *words;
    } cases[] = {
        {"/nonexistent.so", 12040, "no cuda driver on this machine: /nonexistent.so"},
        {CUDA, 11030, "of version 11.3: at least CUDA 11.4"},
        {MOTLEY_FAKES "/libfake_bare.so", 12040, "lacks cuInit"},
    };
    struct fake_control *cuda = control_of(CUDA);
    int version = cuda->version;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        setup();
        setenv("MOTLEY_CUDA_LIBRARY", cases[i].library, 1);
        cuda->version = cases[i].version;
        json_t *all = asked();
        cuda->version = version;
        says(of_kind(all, "drivers", "cuda", 0), cases[i].words);
        says(of_kind(all, "drivers", "hip", 0), NULL);
        assert_null(of_kind(all, "cards", "cuda", 0));
        assert_non_null(of_kind(all, "cards", "hip", 1));
        json_decref(all);
    }
}

/* On a machine without /dev/nvidia-uvm the list of cards has cuInit's error and names the missing file. */
static void a_driver_that_does_not_start_names_the_node(void **state)
{
    struct fake_control *cuda = control_of(CUDA);
    (void)state;
    if (access("/dev/nvidia-uvm", F_OK) == 0)
        skip(); /* on this machine the file is not missing */
    setup();
    cuda->calls = 0;
    cuda->fail_at = 2; /* cuInit follows cuDriverGetVersion */
    cuda->fail_with = 999;
    json_t *all = asked();
    cuda->fail_at = 0;
    says(of_kind(all, "drivers", "cuda", 0), "CUDA_ERROR_999 (999) of cuInit; missing: ");
    says(of_kind(all, "drivers", "cuda", 0),
         "/dev/nvidia-uvm (as root, once after each boot: nvidia-modprobe -c 0 -u)");
    json_decref(all);
}

static void a_card_that_cannot_be_used_says_why(void **state)
{
    (void)state;
    struct fake_control *cuda = control_of(CUDA);
    setup();
    cuda->capability = 50;
    json_t *all = asked();
    bool any_code = has_code();
    says(of_kind(all, "cards", "cuda", 0), any_code ? "sm_50" : "no cuda code");
    says(of_kind(all, "cards", "cuda", 1), any_code ? "sm_50" : "no cuda code");
    json_decref(all);
    cuda->capability = 86;
    cuda->compute_mode = 2;
    all = asked();
    says(of_kind(all, "cards", "cuda", 0), "its compute mode lets no process use it (prohibited)");
    json_decref(all);
    cuda->compute_mode = 0;
}

/* The first card is in exclusive use, so its context is refused; the second card is usable. */
static void a_card_in_exclusive_use_is_named_and_the_next_one_serves(void **state)
{
    (void)state;
    struct fake_control *cuda = control_of(CUDA);
    setup();
    cuda->compute_mode = 3;
    cuda->calls = 0;
    if (!has_code()) {
        cuda->compute_mode = 0;
        skip();
    }
    /* The call that creates the context follows the last query of the card. */
    for (uint64_t at = 1; at < 200; at++) {
        cuda->calls = 0;
        cuda->trace[0] = '\0';
        cuda->fail_at = at;
        cuda->fail_with = 46; /* error 46: the devices are busy or unavailable */
        json_t *all = asked();
        cuda->fail_at = 0;
        const json_t *why = json_object_get(of_kind(all, "cards", "cuda", 0), "why");
        bool found = json_is_string(why) && strstr(json_string_value(why), "(exclusive)");
        if (found) {
            says(of_kind(all, "cards", "cuda", 1), NULL);
            assert_true(json_is_true(json_object_get(of_kind(all, "cards", "cuda", 1), "usable")));
        }
        json_decref(all);
        if (found) {
            cuda->compute_mode = 0;
            return;
        }
    }
    fail_msg("no call that fails says that the card is in exclusive use");
}

/* A card is usable once it has run one of our kernels: a driver that refuses the code, or a card that does
 * not compute, is found before anything is placed there. */
static void a_card_has_run_a_kernel_before_it_is_usable(void **state)
{
    static const struct {
        const char *call;
        int with;
        const char *why;
    } faults[] = {{" cuModuleLoadDataEx", 222, "(222)"},
                  {" cuLaunchKernel", 700, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
    (void)state;
    struct fake_control *cuda = control_of(CUDA);
    setup();
    if (!has_code())
        skip();
    cuda->trace[0] = '\0';
    cuda->calls = 0;
    json_decref(asked());
    char trace[sizeof(cuda->trace)];
    memcpy(trace, cuda->trace, sizeof(trace));
    for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) {
        const char *at = strstr(trace, faults[i].call);
        assert_non_null(at);
        cuda->fail_at = 0;
        for (const char *call = trace; call <= at; call++)
            cuda->fail_at += *call == ' ';
        cuda->fail_with = faults[i].with;
        cuda->calls = 0;
        json_t *all = asked();
        cuda->fail_at = 0;
        says(of_kind(all, "cards", "cuda", 0), faults[i].why);
        assert_true(json_is_false(json_object_get(of_kind(all, "cards", "cuda", 0), "usable")));
        says(of_kind(all, "cards", "cuda", 1), NULL);
        json_decref(all);
    }
}

/* A process sees at most one MIG slice. The list says which slice to make visible, and why a divided card
 * itself is unusable. */
static void a_card_that_is_cut_is_its_slices(void **state)
{
    static const char *const apart[] = {"MIG-00010203", "MIG-00010204", "GPU-00010201"};
    (void)state;
    setup();
    setenv("MOTLEY_NVML_LIBRARY", MOTLEY_FAKES "/libfake_nvml.so", 1);
    json_t *all = asked();
    assert_null(json_object_get(all, "apart")); /* No card is divided. */
    assert_non_null(of_kind(all, "cards", "cuda", 1));
    json_decref(all);
    setenv("MOTLEY_FAKE_MIG", "1", 1);
    all = asked();
    assert_int_equal(json_array_size(json_object_get(all, "apart")), 3);
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(json_string_value(json_array_get(json_object_get(all, "apart"), i)), apart[i]);
    says(of_kind(all, "cards", "cuda", 0), "it is cut into MIG slices");
    assert_null(of_kind(all, "cards", "cuda", 1));
    assert_non_null(of_kind(all, "cards", "hip", 1)); /* The other vendor's cards stay in the list. */
    json_decref(all);
    setenv("CUDA_VISIBLE_DEVICES", apart[0],
           1); /* A slice that is the only visible device is listed like a card. */
    all = asked();
    assert_null(json_object_get(all, "apart"));
    assert_non_null(of_kind(all, "cards", "cuda", 0));
    assert_null(of_kind(all, "cards", "cuda", 1));
    json_decref(all);
    setenv("CUDA_VISIBLE_DEVICES", "", 1); /* Set and empty, it hides all cards, slices too. */
    all = asked();
    assert_null(json_object_get(all, "apart"));
    assert_null(of_kind(all, "cards", "cuda", 0));
    json_decref(all);
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("MOTLEY_FAKE_MIG");
    unsetenv("MOTLEY_NVML_LIBRARY");
    control_of(CUDA)->devices = 2;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_build_without_a_cards_code_says_why),
        cmocka_unit_test(a_broken_driver_takes_nothing_from_the_other),
        cmocka_unit_test(a_missing_device_node_is_named_with_its_command),
        cmocka_unit_test(a_driver_that_does_not_start_names_the_node),
        cmocka_unit_test(a_card_that_cannot_be_used_says_why),
        cmocka_unit_test(a_card_that_is_cut_is_its_slices),
        cmocka_unit_test(a_card_has_run_a_kernel_before_it_is_usable),
        cmocka_unit_test(a_card_in_exclusive_use_is_named_and_the_next_one_serves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
