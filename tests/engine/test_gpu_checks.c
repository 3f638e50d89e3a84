/* `make emulated-check`: every family matches PyTorch on the emulated GPU with every access of every kernel
 * checked, with warps of 32 and 64 threads, on one stage and on several. Five steps run each batch once;
 * later steps would run the same kernels on the same shapes. */
#include "engine/golden.h"

static void golden_run(const char *name, const char *kind, uint32_t turn)
{
    setenv("MOTLEY_EMULATED", turn % 2 == 0 ? "warp32,checks" : "warp64,checks", 1);
    run_golden(name, kind, "emulated", 1,
               (struct train_options){.steps = 5,
                                      .cuts = {2},
                                      .cut_count = turn % 3 == 2 && strcmp(kind, "lora") == 0 ? 1 : 0,
                                      .micro_batch_rows = 2,
                                      .recompute = turn % 4 == 1,
                                      .split = turn % 4 == 2});
    unsetenv("MOTLEY_EMULATED");
}

static void every_kernel_is_checked_in_training(void **state)
{
    (void)state;
    const char *const mixtures[] = {"mixtral", "qwen3-moe", "olmoe"};
    if (!getenv("MOTLEY_EMULATED_CHECK")) {
        print_message("skipped: only make emulated-check runs all of it\n");
        skip();
    }
    for (uint32_t i = 0; i < FAMILIES; i++)
        golden_run(families[i], i % 3 == 0 ? "full" : "lora", i);
    for (uint32_t i = 0; i < 3; i++)
        golden_run(mixtures[i], "full_aux", i + 1);
    for (uint32_t i = 0; i < 2; i++) /* latent attention, whose copies write between what others read */
        golden_run("deepseek_v2", i == 0 ? "full" : "lora", i + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kernel_is_checked_in_training)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
