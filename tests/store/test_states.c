/* Tests the tables of the state machines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "store/states.h"

static const struct state_machine *const machines[] = {&job_machine, &run_machine, &assignment_machine};

static void every_state_and_event_has_a_name_that_leads_back(void **state)
{
    (void)state;
    for (size_t m = 0; m < 3; m++) {
        for (size_t i = 0; i < machines[m]->state_count; i++) {
            assert_non_null(machines[m]->states[i]);
            assert_int_equal(state_from_name(machines[m], machines[m]->states[i]), (int)i);
        }
        for (size_t i = 0; i < machines[m]->event_count; i++)
            assert_non_null(machines[m]->events[i]);
        assert_int_equal(state_from_name(machines[m], "no such state"), -1);
    }
}

static void an_event_without_a_line_is_an_error_and_not_no_change(void **state)
{
    (void)state;
    for (size_t m = 0; m < 3; m++) {
        size_t found = 0;
        for (int from = 0; from < (int)machines[m]->state_count; from++) {
            for (int event = 0; event < (int)machines[m]->event_count; event++) {
                struct err err;
                err_clear(&err);
                int to = state_next(machines[m], from, event, &err);
                if (to < 0) {
                    assert_int_equal(err.code, ERR_CONFLICT);
                    assert_non_null(strstr(err.text, machines[m]->states[from]));
                } else {
                    assert_true(to < (int)machines[m]->state_count);
                    found++;
                }
            }
        }
        assert_int_equal(found, machines[m]->edge_count); /* no edge is listed twice */
    }
    struct err err;
    assert_int_equal(state_next(&job_machine, 99, 0, &err), -1);
    assert_int_equal(err.code, ERR_INTERNAL);
}

/* From each state a final one can be reached, so the tables have no state in which a job stays for ever. */
static void every_state_leads_to_a_final_one(void **state)
{
    (void)state;
    for (size_t m = 0; m < 3; m++) {
        for (size_t start = 0; start < machines[m]->state_count; start++) {
            bool seen[16] = {false};
            seen[start] = true;
            bool final = false;
            for (size_t round = 0; round < machines[m]->state_count; round++) {
                for (size_t e = 0; e < machines[m]->edge_count; e++)
                    if (seen[machines[m]->edges[e].from])
                        seen[machines[m]->edges[e].to] = true;
            }
            for (size_t i = 0; i < machines[m]->state_count; i++)
                final = final || (seen[i] && state_is_final(machines[m], (int)i));
            assert_true(final);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_state_and_event_has_a_name_that_leads_back),
        cmocka_unit_test(an_event_without_a_line_is_an_error_and_not_no_change),
        cmocka_unit_test(every_state_leads_to_a_final_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
