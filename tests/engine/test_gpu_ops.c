/* Runs the harness's cases of every op on the emulated GPU, with warps of 32 and 64 threads and every access
 * checked. */
#define HARNESS_CANDIDATES                                                                                   \
    {.kind = "emulated", .group = 1, .partial = true, .isa = "warp32,checks"},                               \
        {.kind = "emulated", .group = 2, .partial = true, .isa = "warp64,checks"}
#include "engine/cases_basic.h"
#include "engine/cases_delta.h"
#include "engine/cases_experts.h"

/* Returns the number of trials; `make emulated-check` runs more. */
static uint32_t trials(void)
{
    return !getenv("MOTLEY_EMULATED_CHECK") ? 12 : 150;
}

static void every_op_is_its_definition_on_gpus(void **state)
{
    (void)state;
    cases_run(basic_cases, sizeof(basic_cases) / sizeof(*basic_cases), trials());
}

static void expert_ops_are_right_on_gpus(void **state)
{
    (void)state;
    cases_run(expert_cases, sizeof(expert_cases) / sizeof(*expert_cases), trials());
}

static void delta_ops_are_right_on_gpus(void **state)
{
    (void)state;
    cases_run(delta_cases, sizeof(delta_cases) / sizeof(*delta_cases), trials());
}

static void packed_rows_are_single_rows_on_gpus(void **state)
{
    const char *const isas[] = {"warp32,checks", "warp64,checks"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct bench b;
        bench_isa = isas[i];
        bench_open(&b, "emulated");
        packed_rows_are_single_rows_on(&b, false);
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_is_its_definition_on_gpus),
        cmocka_unit_test(expert_ops_are_right_on_gpus),
        cmocka_unit_test(delta_ops_are_right_on_gpus),
        cmocka_unit_test(packed_rows_are_single_rows_on_gpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
