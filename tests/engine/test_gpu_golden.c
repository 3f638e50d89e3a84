/* PyTorch's numbers on the emulated GPU: the whole engine, alone and split, with warps of 32 and of 64. All
 * families, every access checked, are test_gpu_checks.c's (make emulated-check). */
#include "engine/golden.h"

static void families_match_fp64_on_gpus(void **state)
{
    (void)state;
    setenv("MOTLEY_EMULATED", "warp64", 1);
    run_golden("mixtral", "full", "emulated", 1,
               (struct train_options){.steps = 5, .micro_batch_rows = 2, .recompute = true});
    setenv("MOTLEY_EMULATED", "warp32", 1);
    run_golden("gemma2", "lora", "emulated", 1,
               (struct train_options){.cuts = {2}, .cut_count = 1, .micro_batch_rows = 2, .split = true});
    unsetenv("MOTLEY_EMULATED");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_match_fp64_on_gpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
