/* Tests attention by matrix units in both layouts, with every access checked, and in launches of a row each.
 */
#define HARNESS_CANDIDATES                                                                                   \
    {.kind = "emulated", .group = 1, .isa = "warp32,checks"},                                                \
        {.kind = "emulated", .group = 2, .isa = "warp64,checks"},                                            \
        {.kind = "emulated", .group = 1, .isa = "warp32,watchdog"}
#include "engine/cases_units.h"

/* Returns the number of trials; `make emulated-check` runs more. */
static uint32_t trials(void)
{
    return !getenv("MOTLEY_EMULATED_CHECK") ? 6 : 60;
}

static void attention_by_matrix_units_is_its_definition(void **state)
{
    (void)state;
    cases_run(units_cases, sizeof(units_cases) / sizeof(*units_cases), trials());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_by_matrix_units_is_its_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
