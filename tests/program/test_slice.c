/* Tests slices: a slice has all of a plan but the programs of other ranks, and proves to which plan and rank
 * it belongs. */
#include "program/program_fixture.h"

#include "program/host.h"

static json_t *sealed_json(struct plan *plan)
{
    struct err err = {0};
    if (plan_seal(plan, &err) < 0)
        fail_msg("%s", err.text);
    json_t *json = plan_to_json(plan, &err);
    assert_non_null(json);
    return json;
}

static json_t *slices_of(uint32_t micro_batches, struct plan **plan)
{
    struct err err = {0};
    *plan = hand_plan(micro_batches);
    json_t *json = sealed_json(*plan), *slices = plan_slices(json, &err);
    if (!slices)
        fail_msg("%s", err.text);
    assert_int_equal(json_array_size(slices), 2);
    json_decref(json);
    return slices;
}

static void a_slice_has_all_but_the_programs_of_others(void **state)
{
    (void)state;
    struct err err = {0};
    struct plan *plan;
    json_t *slices = slices_of(6, &plan);
    for (uint32_t r = 0; r < 2; r++) {
        struct plan *slice = plan_slice_from_json(json_array_get(slices, r), &err);
        if (!slice)
            fail_msg("%s", err.text);
        assert_int_equal(slice->slice_rank, r);
        assert_string_equal(slice->digest, plan->digest);
        const struct program *own = &slice->ranks[r].programs[PROGRAM_TRAIN],
                             *was = &plan->ranks[r].programs[PROGRAM_TRAIN];
        assert_int_equal(own->instr_count, was->instr_count);
        assert_memory_equal(own->instrs, was->instrs, was->instr_count * sizeof(*was->instrs));
        assert_int_equal(slice->ranks[1 - r].programs[PROGRAM_TRAIN].instr_count, 0);
        for (uint32_t k = 0; k < 2; k++) {
            const struct plan_rank *a = &slice->ranks[k], *b = &plan->ranks[k];
            assert_string_equal(a->device, b->device);
            assert_int_equal(a->slot_count, b->slot_count);
            assert_int_equal(a->update_count, 1);
            assert_memory_equal(a->updates, b->updates, sizeof(*a->updates));
            assert_int_equal(a->updates->block_begin, k ? 3 : 0);
            assert_int_equal(a->updates->block_end, k ? 6 : 3);
        }
        struct plan_host host = plan_host_bytes(slice, r), whole = plan_host_bytes(plan, r);
        assert_memory_equal(&host, &whole, sizeof(host));
        if (plan_check(slice, &err) < 0)
            fail_msg("%s", err.text);
        plan_destroy(slice);
    }
    json_decref(slices);
    plan_destroy(plan);
}

static void refused(json_t *slice, enum err_code code, const char *part)
{
    struct err err = {0};
    struct plan *plan = plan_slice_from_json(slice, &err);
    if (plan)
        fail_msg("accepted instead of: %s", part);
    if (err.code != code || !strstr(err.text, part))
        fail_msg("%s", err.text);
}

/* Any change, to the rank's own part or to the summary of other ranks, shows in the plan's digest. */
static void a_mixed_up_slice_is_corrupt(void **state)
{
    (void)state;
    struct plan *plan, *other;
    json_t *slices = slices_of(6, &plan), *others = slices_of(7, &other);
    json_t *slice = json_array_get(slices, 0), *alien = json_array_get(others, 0);
    json_t *own = json_array_get(json_object_get(slice, "ranks"), 0);
    json_t *programs = json_incref(json_object_get(own, "programs"));
    json_object_set(own, "programs",
                    json_object_get(json_array_get(json_object_get(alien, "ranks"), 0), "programs"));
    refused(slice, ERR_CORRUPT, "plan.digest");
    json_object_set_new(own, "programs", programs);
    json_t *their = json_array_get(json_object_get(slice, "ranks"), 1);
    json_object_set_new(their, "rows", json_integer(5));
    refused(slice, ERR_CORRUPT, "plan.digest");
    json_object_set_new(their, "rows", json_integer(6));
    json_object_set_new(slice, "slice", json_integer(1));
    refused(slice, ERR_INVALID, "plan.ranks[0].programs: another rank's");
    json_object_set_new(slice, "slice", json_integer(2));
    refused(slice, ERR_INVALID, "plan.slice");
    json_decref(slices);
    json_decref(others);
    plan_destroy(plan);
    plan_destroy(other);
}

static void a_slice_is_no_whole_plan(void **state)
{
    (void)state;
    struct err err = {0};
    struct plan *plan;
    json_t *slices = slices_of(6, &plan);
    assert_null(plan_from_json(json_array_get(slices, 1), &err));
    assert_non_null(strstr(err.text, "slice of rank 1"));
    assert_null(plan_from_json_given(json_array_get(slices, 1), 1000, &err));
    assert_null(plan_slices(json_array_get(slices, 1), &err));
    assert_non_null(strstr(err.text, "plan.slice"));
    json_decref(slices);
    plan_destroy(plan);
}

/* The rank's own programs are checked too, so an instruction that refers to something outside the plan is
 * never run. */
static void the_own_programs_are_checked(void **state)
{
    (void)state;
    struct err err = {0};
    struct plan *plan = hand_plan(6);
    plan->ranks[1].programs[PROGRAM_TRAIN].instrs[0].slot_out = SLOT_HAND_COUNT;
    json_t *json = sealed_json(plan), *slices = plan_slices(json, &err);
    for (uint32_t r = 0; r < 2; r++) {
        struct plan *slice = plan_slice_from_json(json_array_get(slices, r), &err);
        assert_non_null(slice);
        assert_int_equal(plan_check(slice, &err), r ? -1 : 0);
        assert_true(r == 0 || strstr(err.text, "a slot that does not exist"));
        plan_destroy(slice);
    }
    json_decref(json);
    json_decref(slices);
    plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slice_has_all_but_the_programs_of_others),
        cmocka_unit_test(a_mixed_up_slice_is_corrupt),
        cmocka_unit_test(a_slice_is_no_whole_plan),
        cmocka_unit_test(the_own_programs_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
