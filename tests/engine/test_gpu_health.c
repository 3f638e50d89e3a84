/* Tests health by the fake management libraries: what each reports becomes a card's health, and a library
 * that is incomplete or broken does not affect the others. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/fakes/health.h"
#include "engine/gpu/health.h"
#include "support/must.h"

static struct fake_health *control(const char *library)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(handle);
    struct fake_health *found = dlsym(handle, "fake_health");
    assert_non_null(found);
    return found;
}

#define NVML MOTLEY_FAKES "/libfake_nvml.so"
#define ROCM MOTLEY_FAKES "/libfake_rocm_smi.so"

static json_t *reading(struct gpu_health *health)
{
    struct err err;
    json_t *all = gpu_health_read(health, &err);
    assert_non_null(all);
    return all;
}

static json_t *read_once(void)
{
    struct err err;
    struct gpu_health *health = gpu_health_open(&err);
    assert_non_null(health);
    json_t *all = reading(health);
    gpu_health_close(health);
    return all;
}

static const json_t *card(const json_t *all, size_t index)
{
    return json_array_get(json_object_get(all, "cards"), index);
}

static json_int_t number(const json_t *object, const char *key)
{
    assert_true(json_is_integer(json_object_get(object, key)));
    return json_integer_value(json_object_get(object, key));
}

static void is_text(const json_t *object, const char *key, const char *wanted)
{
    assert_string_equal(json_string_value(json_object_get(object, key)), wanted);
}

static const char *why(const json_t *all, size_t library)
{
    return json_string_value(
        json_object_get(json_array_get(json_object_get(all, "libraries"), library), "why"));
}

static void is_reason(const json_t *object, const char *reason)
{
    const json_t *list = json_object_get(object, "throttle");
    assert_int_equal(json_array_size(list), 1);
    assert_string_equal(json_string_value(json_array_get(list, 0)), reason);
}

static const char *level(const json_t *object)
{
    return json_string_value(json_object_get(json_array_get(json_object_get(object, "links"), 0), "level"));
}

static void setup(void)
{
    setenv("MOTLEY_NVML_LIBRARY", NVML, 1);
    setenv("MOTLEY_ROCM_SMI_LIBRARY", ROCM, 1);
    unsetenv("MOTLEY_EMULATED_HEALTH");
}

static void both_vendors_say_how_their_cards_are(void **state)
{
    (void)state;
    setup();
    struct fake_health *nvml = control(NVML);
    nvml->throttle = 0x60 | 0x4 | 0x1;
    json_t *all = read_once();
    assert_int_equal(json_array_size(json_object_get(all, "cards")), 4);
    const json_t *one = card(all, 0);
    is_text(one, "kind", "cuda");
    is_text(one, "pci", "0000:0A:00.0");
    is_text(one, "uuid", "GPU-00010200");
    is_text(one, "name", "Fake RTX 0");
    assert_int_equal(number(one, "temperature_c"), 93);
    assert_int_equal(number(one, "clock_khz"), 900000);
    assert_int_equal(number(one, "clock_max_khz"), 1800000);
    assert_int_equal(number(one, "power_w"), 349);
    assert_int_equal(number(one, "power_limit_w"), 350);
    assert_int_equal(number(one, "ecc_uncorrected"), 2);
    assert_int_equal(number(one, "ecc_uncorrected_total"), 5);
    assert_int_equal(number(one, "used_bytes"), 6000000000);
    json_t *reasons = json_pack("[s,s]", "thermal", "power");
    assert_true(json_equal(json_object_get(one, "throttle"), reasons));
    json_t *processes =
        json_pack("[{s:i,s:I},{s:i,s:n}]", "pid", 77, "bytes", (json_int_t)3000000000, "pid", 1, "bytes");
    assert_true(json_equal(json_object_get(one, "processes"), processes));
    assert_string_equal(level(one), "node");
    const json_t *two = card(all, 1);
    assert_string_equal(level(two), "nvlink");
    assert_null(json_object_get(two, "ecc_uncorrected")); /* The card has no ECC. */
    assert_int_equal(json_array_size(json_object_get(two, "throttle")),
                     0); /* Being idle is not throttling. */
    assert_null(json_object_get(two, "xid"));

    const json_t *amd = card(all, 2);
    is_text(amd, "kind", "hip");
    is_text(amd, "pci", "0001:03:00.0");
    assert_int_equal(number(amd, "temperature_c"), 88);
    assert_int_equal(number(amd, "power_w"), 250);
    assert_int_equal(number(amd, "clock_khz"), 1234000);
    assert_int_equal(number(amd, "ecc_uncorrected"), 4);
    assert_int_equal(number(amd, "memory_bytes"), 64000000000);
    assert_string_equal(level(amd), "xgmi");
    assert_null(json_object_get(amd, "power_limit_w")); /* The library lacks this call. */
    const json_t *other = card(all, 3);
    assert_int_equal(number(other, "temperature_c"),
                     70); /* Without a hotspot sensor, the edge temperature counts. */
    assert_null(json_object_get(other, "throttle")); /* The metrics table has an unknown layout. */
    assert_int_equal(nvml->open, nvml->closed);
    json_decref(reasons);
    json_decref(processes);
    json_decref(all);
}

static void an_older_driver_a_sliced_card_and_one_that_is_lost(void **state)
{
    (void)state;
    setup();
    struct fake_health *nvml = control(NVML);
    struct err err;
    struct gpu_health *health = gpu_health_open(&err);
    nvml->older = 1;
    nvml->mig = 1;
    json_t *all = reading(health);
    assert_int_equal(number(card(all, 0), "used_bytes"),
                     6400000000); /* The driver's reserve is not reported separately. */
    assert_int_equal(json_array_size(json_object_get(json_object_get(card(all, 0), "mig"), "slices")), 2);
    json_decref(all);
    nvml->older = 0;
    all = reading(health);
    const json_t *slice = json_array_get(json_object_get(json_object_get(card(all, 0), "mig"), "slices"), 0);
    is_text(slice, "uuid", "MIG-00010203");
    assert_int_equal(number(slice, "memory_bytes"), 12000000000);
    json_decref(all);
    nvml->mig = 0;
    nvml->lost = 0;
    nvml->xid = 79;
    all = reading(health);
    is_text(card(all, 0), "why", "GPU is lost (NVML 15)");
    assert_null(json_object_get(card(all, 0), "temperature_c"));
    assert_int_equal(number(card(all, 1), "temperature_c"), 41);
    assert_int_equal(number(card(all, 1), "xid"), 79); /* The Xid stays in the report. */
    is_text(card(all, 1), "xid_means",
            "the card fell off its bus: check its power and its slot, then reboot");
    json_decref(all);
    nvml->lost = -1;
    nvml->xid = 31;
    all = reading(health);
    assert_int_equal(number(card(all, 1), "xid"), 31);
    is_text(card(all, 1), "xid_means", "a program's fault, which ends that program: the card goes on");
    json_decref(all);
    nvml->xid = 48;
    all = reading(health);
    is_text(card(all, 1), "xid_means",
            "a memory error that ECC could not correct; the card needs a reset (nvidia-smi -r) or a reboot");
    json_decref(all);
    nvml->xid = 9999; /* of a later driver */
    all = reading(health);
    assert_int_equal(number(card(all, 1), "xid"), 9999);
    assert_null(json_object_get(card(all, 1), "xid_means"));
    json_decref(all);
    gpu_health_close(health);
}

static void records_of_other_releases_are_read(void **state)
{
    (void)state;
    setup();
    struct fake_health *nvml = control(NVML), *rocm = control(ROCM);
    json_t *processes =
        json_pack("[{s:i,s:I},{s:i,s:n}]", "pid", 77, "bytes", (json_int_t)3000000000, "pid", 1, "bytes");
    nvml->early_535 = 1; /* 32 bytes for each process, where other drivers write 24 */
    rocm->version = 1;   /* as Debian's builds say */
    rocm->throttle = 4;
    json_t *all = read_once();
    assert_true(json_equal(json_object_get(card(all, 0), "processes"), processes));
    is_reason(card(all, 2), "hardware");
    json_decref(all);
    nvml->early_535 = 0;
    rocm->reasons = 1 << 3; /* a power limit, which is no overheating */
    all = read_once();
    assert_true(json_equal(json_object_get(card(all, 0), "processes"), processes));
    is_reason(card(all, 2), "power");
    json_decref(all);
    rocm->reasons = 1ull << 36; /* the hotspot's temperature */
    all = read_once();
    is_reason(card(all, 2), "thermal");
    json_decref(all);
    json_decref(processes);
    rocm->reasons = rocm->throttle = 0;
    rocm->version = 6;
}

static void what_cannot_be_asked_says_why_and_hides_nothing(void **state)
{
    (void)state;
    setup();
    struct fake_health *nvml = control(NVML), *rocm = control(ROCM);
    nvml->init = 9;
    rocm->version = 4;
    json_t *all = read_once();
    assert_string_equal(why(all, 0), "NVML does not begin: Driver Not Loaded (9)");
    assert_string_equal(why(all, 1), "ROCm SMI is of version 4.1: at least 5.0 (ROCm 5) is needed");
    assert_int_equal(json_array_size(json_object_get(all, "cards")), 0);
    json_decref(all);
    nvml->init = 18;
    all = read_once();
    assert_string_equal(why(all, 0),
                        "NVML does not begin: Driver/library version mismatch (18); the driver was "
                        "upgraded under the loaded kernel module: reboot, or load it anew");
    json_decref(all);
    nvml->init = 0;
    rocm->version = 6;
    setenv("MOTLEY_ROCM_SMI_LIBRARY", MOTLEY_FAKES "/libfake_bare.so", 1);
    all = read_once();
    assert_null(why(all, 0));
    assert_string_equal(why(all, 1), "ROCm SMI lacks rsmi_init: it must be of ROCm 5.0 or later");
    assert_int_equal(json_array_size(json_object_get(all, "cards")), 2);
    json_decref(all);
    setenv("MOTLEY_NVML_LIBRARY", "/nonexistent.so", 1);
    all = read_once();
    assert_non_null(strstr(why(all, 0), "no NVML on this machine: /nonexistent.so"));
    json_decref(all);
}

static void emulated_cards_are_as_a_file_says(void **state)
{
    (void)state;
    char path[] = "/tmp/motley-health-XXXXXX";
    int fd = mkstemp(path);
    static const char said[] =
        "{\"left/emulated0\":{\"temperature_c\":93,\"throttle\":[\"thermal\"]},\"x\":7}";
    assert_true(fd >= 0 && write(fd, said, sizeof(said) - 1) == (ssize_t)sizeof(said) - 1);
    setenv("MOTLEY_NVML_LIBRARY", "/nonexistent.so", 1);
    setenv("MOTLEY_ROCM_SMI_LIBRARY", "/nonexistent.so", 1);
    setenv("MOTLEY_EMULATED_HEALTH", path, 1);
    json_t *all = read_once();
    assert_int_equal(json_array_size(json_object_get(all, "cards")), 1);
    is_text(card(all, 0), "device", "left/emulated0");
    is_text(card(all, 0), "kind", "emulated");
    assert_int_equal(number(card(all, 0), "temperature_c"), 93);
    json_decref(all);
    assert_int_equal(ftruncate(fd, 5), 0);
    all = read_once();
    assert_non_null(strstr(why(all, 2), path)); /* An incomplete file is reported, and counts as absent. */
    json_decref(all);
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_vendors_say_how_their_cards_are),
        cmocka_unit_test(an_older_driver_a_sliced_card_and_one_that_is_lost),
        cmocka_unit_test(records_of_other_releases_are_read),
        cmocka_unit_test(what_cannot_be_asked_says_why_and_hides_nothing),
        cmocka_unit_test(emulated_cards_are_as_a_file_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
