/* Tests that a plan read back from its JSON is the same plan, that the JSON is small, and that nonsense is
 * refused. */
#include "program/program_fixture.h"

#include "common/json.h"

static void a_plan_comes_back_exactly_and_folded(void **state)
{
    (void)state;
    struct err err = {0};
    struct plan *plan = hand_plan(1000);
    assert_int_equal(plan_seal(plan, &err), 0);
    json_t *json = plan_to_json(plan, &err);
    char *text = json_dumps(json, JSON_COMPACT);
    assert_in_range(strlen(text), 100, 9000);
    struct plan *again = plan_from_json(json, &err);
    if (!again)
        fail_msg("%s", err.text);
    for (uint32_t r = 0; r < 2; r++) {
        const struct program *a = &plan->ranks[r].programs[PROGRAM_TRAIN],
                             *b = &again->ranks[r].programs[PROGRAM_TRAIN];
        assert_int_equal(a->instr_count, 4003);
        assert_int_equal(b->instr_count, a->instr_count);
        assert_int_equal(b->after_total, a->after_total);
        assert_memory_equal(a->after, b->after, a->after_total * sizeof(*a->after));
        assert_memory_equal(a->instrs, b->instrs, a->instr_count * sizeof(*a->instrs));
    }
    assert_int_equal(plan_check(again, &err), 0);
    free(text);
    json_decref(json);
    plan_destroy(plan);
    plan_destroy(again);
}

static void a_changed_plan_is_corrupt(void **state)
{
    (void)state;
    struct err err = {0};
    struct plan *plan = hand_plan(4);
    assert_int_equal(plan_seal(plan, &err), 0);
    json_t *json = plan_to_json(plan, &err);
    json_object_set_new(json, "tokens_bound", json_integer(11));
    assert_null(plan_from_json(json, &err));
    assert_int_equal(err.code, ERR_CORRUPT);
    json_decref(json);
    plan_destroy(plan);
}

static void refused(const char *what, json_t *json, enum err_code code, const char *part)
{
    struct err err = {0};
    struct plan *plan = plan_from_json(json, &err);
    if (plan)
        fail_msg("%s was accepted", what);
    if (err.code != code || !strstr(err.text, part))
        fail_msg("%s: %s", what, err.text);
    json_decref(json);
}

static json_t *hand_json(void)
{
    struct err err = {0};
    struct plan *plan = hand_plan(4);
    assert_int_equal(plan_seal(plan, &err), 0);
    json_t *json = plan_to_json(plan, &err);
    plan_destroy(plan);
    return json;
}

static json_t *rank_of(json_t *json, size_t rank)
{
    return json_array_get(json_object_get(json, "ranks"), rank);
}

static void nonsense_is_refused_by_path(void **state)
{
    (void)state;
    json_t *json = hand_json();
    json_object_set_new(json, "version", json_integer(9));
    refused("version", json, ERR_INVALID, "version");
    json = hand_json();
    json_object_set_new(rank_of(json, 1), "blocks", json_pack("[i,i]", 4, 2));
    refused("blocks", json, ERR_INVALID, "ranks[1].blocks");
    json = hand_json();
    json_object_set_new(json_object_get(rank_of(json, 0), "programs"), "train",
                        json_pack("[{s:I,s:[{s:I,s:[{s:s}]}]}]", "repeat", (json_int_t)4000000, "body",
                                  "repeat", (json_int_t)4000000, "body", "op", "STEP"));
    refused("a bomb", json, ERR_TOO_BIG, "more instructions");
    json = hand_json();
    json_object_set_new(json_object_get(rank_of(json, 0), "programs"), "train",
                        json_pack("[{s:s,s:[i]}]", "op", "STEP", "after", 1));
    refused("after", json, ERR_INVALID, "earlier");
    json = hand_json();
    json_object_set_new(json_object_get(rank_of(json, 0), "programs"), "train",
                        json_pack("[{s:s}]", "op", "FLY"));
    refused("op", json, ERR_INVALID, "FLY");
    /* keys and flags that older versions of the format had, and that no plan used */
    json = hand_json();
    json_object_set_new(json_object_get(rank_of(json, 0), "programs"), "train",
                        json_pack("[{s:s, s:i}]", "op", "STEP", "chunk", 1));
    refused("chunk", json, ERR_INVALID, "chunk");
    json = hand_json();
    json_object_set_new(json_object_get(rank_of(json, 0), "programs"), "train",
                        json_pack("[{s:s, s:i}]", "op", "STEP", "flags", 1 << 6));
    refused("flags", json, ERR_INVALID, "flags");
    json = hand_json();
    json_object_set_new(json, "surprise", json_true());
    refused("unknown key", json, ERR_INVALID, "surprise");
}

/* The place of the moments is read back. The document states it only where it is the host. */
static void moments_on_the_host_are_said(void **state)
{
    (void)state;
    struct err err = {0};
    struct plan *plan = hand_plan(4);
    plan->ranks[1].moments_host_bytes = 8192;
    assert_int_equal(plan_seal(plan, &err), 0);
    json_t *json = plan_to_json(plan, &err);
    assert_null(json_object_get(rank_of(json, 0), "moments_host_bytes"));
    struct plan *again = plan_from_json(json, &err);
    assert_non_null(again);
    assert_true(again->ranks[0].moments_host_bytes == 0 && again->ranks[1].moments_host_bytes == 8192);
    json_decref(json);
    plan_destroy(plan);
    plan_destroy(again);
}

/* A rank whose micro-batches are smaller than the plan's bounds states its own bounds; other ranks state
 * none. */
static void bounds_of_a_rank_come_back(void **state)
{
    (void)state;
    struct err err = {0};
    struct plan *plan = hand_plan(4);
    plan->ranks[1].bounds = (struct plan_bounds){.tokens = 7, .rows = 2, .labelled = 5};
    assert_int_equal(plan_seal(plan, &err), 0);
    json_t *json = plan_to_json(plan, &err);
    assert_null(json_object_get(rank_of(json, 0), "bounds"));
    struct plan *again = plan_from_json(json, &err);
    assert_non_null(again);
    struct plan_bounds plans = plan_rank_bounds(again, 0), own = plan_rank_bounds(again, 1);
    assert_true(plans.tokens == again->tokens_bound && plans.labelled == again->labelled_bound);
    assert_true(own.tokens == 7 && own.rows == 2 && own.labelled == 5);
    json_decref(json);
    plan_destroy(plan);
    plan_destroy(again);
}

/* Only slots of 16-bit values state their dtype, so that documents and digests of older plans are unchanged.
 */
static void the_dtype_of_a_boundary_comes_back(void **state)
{
    (void)state;
    struct err err = {0};
    struct plan *plan = hand_plan(4);
    plan->ranks[0].slots[SLOT_HAND_ACT].dtype = plan->ranks[1].slots[SLOT_HAND_ACT].dtype = PLAN_BF16;
    plan->ranks[0].slots[SLOT_HAND_GRAD].dtype = plan->ranks[1].slots[SLOT_HAND_GRAD].dtype = PLAN_F16;
    assert_int_equal(plan_seal(plan, &err), 0);
    json_t *json = plan_to_json(plan, &err);
    const json_t *slots = json_object_get(rank_of(json, 1), "slots");
    for (size_t i = 0; i < json_array_size(slots); i++) {
        const char *dtype = json_string_value(json_object_get(json_array_get(slots, i), "dtype"));
        const char *expected = i == SLOT_HAND_ACT ? "bf16" : i == SLOT_HAND_GRAD ? "fp16" : NULL;
        assert_true(expected ? dtype && strcmp(dtype, expected) == 0 : !dtype);
    }
    struct plan *again = plan_from_json(json, &err);
    if (!again)
        fail_msg("%s", err.text);
    for (uint32_t s = 0; s < plan->ranks[1].slot_count; s++)
        assert_int_equal(again->ranks[1].slots[s].dtype, plan->ranks[1].slots[s].dtype);
    plan_destroy(again);
    json_object_set_new(json_array_get(slots, SLOT_HAND_ACT), "dtype", json_string("fp8"));
    refused("dtype", json, ERR_INVALID,
            "ranks[1].slots[0].dtype: must be one of fp32, bf16, fp16, is \"fp8\"");
    plan_destroy(plan);
}

static void micro_batches_of_unlike_sizes_come_back(void **state)
{
    (void)state;
    struct err err = {0};
    struct plan *plan = hand_plan(4);
    plan->batch_rows = 9;
    uint32_t starts[5] = {0, 3, 4, 4, 9};
    memcpy(plan->micro_batch_start, starts, sizeof(starts));
    plan->rows_bound = 5;
    assert_int_equal(plan_seal(plan, &err), 0);
    json_t *json = plan_to_json(plan, &err);
    struct plan *again = plan_from_json(json, &err);
    if (!again)
        fail_msg("%s", err.text);
    assert_int_equal(again->micro_batch_count, 4);
    assert_memory_equal(again->micro_batch_start, starts, sizeof(starts));
    uint32_t begin, end;
    plan_micro_batch_rows(again, 3, 6, &begin, &end);
    assert_int_equal(begin, 4);
    assert_int_equal(end, 6);
    plan_micro_batch_rows(again, 3, 2, &begin, &end);
    assert_int_equal(begin, end);
    json_decref(json);
    plan_destroy(plan);
    plan_destroy(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_comes_back_exactly_and_folded),
        cmocka_unit_test(a_changed_plan_is_corrupt),
        cmocka_unit_test(nonsense_is_refused_by_path),
        cmocka_unit_test(the_dtype_of_a_boundary_comes_back),
        cmocka_unit_test(moments_on_the_host_are_said),
        cmocka_unit_test(bounds_of_a_rank_come_back),
        cmocka_unit_test(micro_batches_of_unlike_sizes_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
