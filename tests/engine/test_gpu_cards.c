/* What `motley-worker --devices` says of cards that cannot be used, on the vendors' fake libraries: each says
 * why in a sentence, and the others are there all the same. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "engine/fakes/fake.h"
#include "engine/gpu/cards.h"
#include "engine/gpu/code.h"
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
    json_array_foreach(json_object_get(all, list), i,
                       item) if (strcmp(json_string_value(json_object_get(item, "kind")), kind) == 0 &&
                                 index-- == 0) return item;
    return NULL;
}

/* `item` is there and its why has the words; NULL: it has none. */
static void says(const json_t *item, const char *words)
{
    const json_t *why = json_object_get(item, "why");
    assert_non_null(item);
    if (words == NULL ? !json_is_null(why)
                      : !json_is_string(why) || strstr(json_string_value(why), words) == NULL)
        fail_msg("\"%s\", wanted \"%s\"", json_string_value(why), words);
}

/* A build without kernels for cards has other reasons, sooner. */
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
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setup();
        setenv("MOTLEY_CUDA_LIBRARY", cases[i].library, 1);
        cuda->version = cases[i].version;
        json_t *all = asked();
        cuda->version = 12040;
        says(of_kind(all, "drivers", "cuda", 0), cases[i].words);
        says(of_kind(all, "drivers", "hip", 0), NULL);
        assert_null(of_kind(all, "cards", "cuda", 0));
        assert_non_null(of_kind(all, "cards", "hip", 1));
        json_decref(all);
    }
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

/* In exclusive use by somebody: the context of the first card is refused, the second is there. */
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
    /* The call that makes a context is the one behind the last question about the card. */
    for (uint64_t at = 1; at < 200; at++) {
        cuda->calls = 0;
        cuda->trace[0] = '\0';
        cuda->fail_at = at;
        cuda->fail_with = 46; /* the devices are busy or unavailable */
        json_t *all = asked();
        cuda->fail_at = 0;
        const json_t *why = json_object_get(of_kind(all, "cards", "cuda", 0), "why");
        bool found = json_is_string(why) && strstr(json_string_value(why), "(exclusive)") != NULL;
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

/* A process sees one slice at most: the list says what to show alone, and why a card that is cut is none. */
static void a_card_that_is_cut_is_its_slices(void **state)
{
    static const char *const apart[] = {"MIG-00010203", "MIG-00010204", "GPU-00010201"};
    (void)state;
    setup();
    setenv("MOTLEY_NVML_LIBRARY", MOTLEY_FAKES "/libfake_nvml.so", 1);
    json_t *all = asked();
    assert_null(json_object_get(all, "apart")); /* nothing is cut */
    assert_non_null(of_kind(all, "cards", "cuda", 1));
    json_decref(all);
    setenv("MOTLEY_FAKE_MIG", "1", 1);
    all = asked();
    assert_int_equal(json_array_size(json_object_get(all, "apart")), 3);
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(json_string_value(json_array_get(json_object_get(all, "apart"), i)), apart[i]);
    says(of_kind(all, "cards", "cuda", 0), "it is cut into MIG slices");
    assert_null(of_kind(all, "cards", "cuda", 1));
    assert_non_null(of_kind(all, "cards", "hip", 1)); /* the other vendor's stay */
    json_decref(all);
    setenv("CUDA_VISIBLE_DEVICES", apart[0], 1); /* shown alone, it is a card like any other */
    all = asked();
    assert_null(json_object_get(all, "apart"));
    assert_non_null(of_kind(all, "cards", "cuda", 0));
    assert_null(of_kind(all, "cards", "cuda", 1));
    json_decref(all);
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("MOTLEY_FAKE_MIG");
    unsetenv("MOTLEY_NVML_LIBRARY");
    control_of(CUDA)->devices = 2;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_driver_takes_nothing_from_the_other),
        cmocka_unit_test(a_card_that_cannot_be_used_says_why),
        cmocka_unit_test(a_card_that_is_cut_is_its_slices),
        cmocka_unit_test(a_card_in_exclusive_use_is_named_and_the_next_one_serves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
