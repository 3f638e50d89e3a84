/* Trains the tiny golden models on the kernels' PTX (ptx/) behind the fake libcuda, beside PyTorch's numbers;
 * with MOTLEY_EMULATED_CHECK all families, every access checked, and on the texts of all cards. */
#include "engine/golden.h"

#include <dlfcn.h>

#include "engine/fakes/fake.h"
#include "engine/gpu/code.h"
#include "engine/ptx/module.h"

static const char *const library = MOTLEY_FAKES "/libfake_cuda_ptx.so";

static void golden_run(const char *name, const char *kind, uint32_t turn)
{
    static const int capabilities[] = {80, 52, 75};
    struct fake_control *control = dlsym(dlopen(library, RTLD_NOW), "fake_control");
    bool whole = getenv("MOTLEY_EMULATED_CHECK") != NULL;
    assert_non_null(control);
    control->capability = capabilities[turn % 3];
    setenv("MOTLEY_CUDA_LIBRARY", library, 1);
    if (whole)
        setenv("MOTLEY_EMULATED", "checks", 1);
    run_golden(name, kind, "cuda", 1,
               (struct train_options){.steps = whole ? 5 : 2,
                                      .cuts = {2},
                                      .cut_count = turn % 3 == 2 && strcmp(kind, "lora") == 0 ? 1 : 0,
                                      .micro_batch_rows = 2,
                                      .recompute = turn % 4 == 1});
    unsetenv("MOTLEY_EMULATED");
}

static void the_text_trains_as_pytorch_does(void **state)
{
    struct err err;
    (void)state;
    if (!gpu_code_choose("cuda", "sm_52", &err) || !gpu_code_choose("cuda", "sm_80", &err)) {
        printf("skipped: %s\n", err.text);
        skip();
    }
    if (!getenv("MOTLEY_EMULATED_CHECK")) {
        golden_run("mixtral", "full", 0);
        golden_run("gemma2", "lora", 2);
        return;
    }
    for (uint32_t i = 0; i < FAMILIES; i++)
        golden_run(families[i], i % 2 == 0 ? "full" : "lora", i);
    golden_run("mixtral", "full_aux", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_text_trains_as_pytorch_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
