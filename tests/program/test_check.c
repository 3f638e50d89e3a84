/* Tests that the checker accepts a hand-written program and names the fault in each spoilt one. */
#include "program/program_fixture.h"

#include "common/json.h"
#include "program/trace.h"

static struct instr *at(struct plan *plan, uint32_t rank, uint32_t number)
{
    return &plan->ranks[rank].programs[PROGRAM_TRAIN].instrs[number];
}

static void expect(struct plan *plan, const char *one, const char *two)
{
    struct err err = {0};
    if (plan_check(plan, &err) == 0)
        fail_msg("accepted; wanted \"%s\"", one);
    if (!strstr(err.text, one) || !strstr(err.text, two))
        fail_msg("\"%s\" does not say \"%s\" and \"%s\"", err.text, one, two);
    plan_destroy(plan);
}

static void a_hand_written_program_passes(void **state)
{
    (void)state;
    struct err err = {0};
    for (uint32_t count = 1; count < 6; count++) {
        struct plan *plan = hand_plan(count);
        if (plan_check(plan, &err) < 0)
            fail_msg("%s", err.text);
        plan_destroy(plan);
    }
}

/* The instructions are, by position: rank 0: 0 F0 1 S0 2 R0 3 B0 4 F1 5 S1 6 R1 7 B1 8 scalars 9 norm 10
 * STEP; rank 1: 0 R0 1 F0 2 B0 3 S0 4 R1 5 F1 6 B1 7 S1 8 scalars 9 norm 10 STEP. F, B, S and R with the
 * micro-batch's number are FORWARD, BACKWARD, SEND and RECV. */
static void spoilt_programs_are_named(void **state)
{
    (void)state;
    struct plan *plan = hand_plan(2);
    at(plan, 1, 4)->micro_batch = 0;
    expect(plan, "rank 1 train instruction 4", "different micro-batches");

    plan = hand_plan(2);
    at(plan, 0, 5)->op = INSTR_RELEASE;
    at(plan, 0, 5)->queue = QUEUE_COMPUTE;
    expect(plan, "no counterpart", "rank 1 train instruction 4");

    plan = hand_plan(2);
    at(plan, 0, 1)->row_end = 0;
    expect(plan, "different rows", "rank 0 train instruction 1");

    plan = hand_plan(2);
    at(plan, 0, 4)->micro_batch = 0;
    expect(plan, "rank 0 train instruction 4", "twice forward");

    plan = hand_plan(2);
    at(plan, 1, 5)->block_end = 5;
    expect(plan, "missing from block 5", "micro-batch 1");

    plan = hand_plan(2);
    at(plan, 0, 8)->after_count = 0;
    expect(plan, "the loss would be incomplete", "rank 0 train instruction 8");

    plan = hand_plan(2);
    at(plan, 0, 9)->after_count = 0;
    expect(plan, "the norm would be incomplete", "rank 0 train instruction 9");

    plan = hand_plan(2);
    at(plan, 0, 10)->after_count = 1;
    expect(plan, "the update would come too early", "rank 0 train instruction 10");

    plan = hand_plan(2);
    at(plan, 0, 8)->tag = TAG_NORM;
    expect(plan, "one order on all members", "group 0");

    plan = hand_plan(2);
    at(plan, 1, 4)->after_count = 0; /* the rank receives micro-batch 1 before it has read micro-batch 0 */
    expect(plan, "may not be free yet", "rank 1 train instruction 4");

    plan = hand_plan(2);
    at(plan, 0, 3)->flags &= (uint16_t)~FLAG_FREES_SAVE;
    expect(plan, "overwritten before it is freed", "rank 0 train instruction 4");

    plan = hand_plan(2);
    at(plan, 0, 7)->flags &= (uint16_t)~FLAG_FREES_IN;
    expect(plan, "never freed", "rank 0 train instruction 6");

    plan = hand_plan(2);
    at(plan, 1, 1)->after_count = 0; /* the rank computes on a tensor that has not arrived */
    expect(plan, "may be read before it is written", "rank 1 train instruction 1");

    plan = hand_plan(2);
    at(plan, 0, 0)->slot_out = 77;
    expect(plan, "slot that does not exist", "rank 0 train instruction 0");

    plan = hand_plan(2);
    at(plan, 1, 1)->block_begin = 1;
    expect(plan, "does not hold its blocks", "rank 1 train instruction 1");

    plan = hand_plan(2);
    plan->ranks[0].recompute_end = plan->ranks[0].block_end; /* to recompute all blocks it must be 0 */
    plan->ranks[0].recompute = true;
    expect(plan, "rank 0", "it recomputes blocks up to");
}

static void spoilt_slots_are_named(void **state)
{
    (void)state;
    struct plan *plan = hand_plan(2);
    plan->ranks[1].memory_limit_bytes = 6000;
    expect(plan, "rank 1", "its limit is 6000");

    plan = hand_plan(2);
    plan->ranks[1].slots[SLOT_HAND_SAVED].ring_micro_batches = 3;
    plan->ranks[1].slots[SLOT_HAND_SAVED].bytes_total = 3000;
    expect(plan, "rank 1", "its slots hold 3000 bytes of activations");

    plan = hand_plan(2);
    plan->ranks[1].slots[SLOT_HAND_GRAD].dtype = PLAN_F16; /* rank 0 reads the tensor as fp32 */
    expect(plan, "which meet, have different dtypes", "rank 1 train instruction 3");

    plan = hand_plan(2);
    plan->ranks[1].slots[SLOT_HAND_SAVED].dtype = PLAN_BF16;
    expect(plan, "rank 1 slot 2 (saved)", "only boundary tensors");

    plan = hand_plan(2);
    plan->ranks[0].slots[SLOT_HAND_ACT].dtype = PLAN_DTYPES;
    expect(plan, "rank 0 slot 0 (activation)", "only boundary tensors");
}

/* Both ranks wait for the other's message before they send their own. */
static void a_circle_of_waiting_is_named(void **state)
{
    (void)state;
    struct plan *plan = hand_plan(1);
    /* Rank 1 sends its gradient only after the norm, and rank 0 all-reduces the norm only after the gradient
     * has come. */
    struct program *p = &plan->ranks[1].programs[PROGRAM_TRAIN];
    struct program_builder b = {0};
    struct err err;
    int32_t got = hand_add(&b, INSTR_RECV, QUEUE_RECV, 0, 3, 3, 0, -1, SLOT_HAND_ACT, -1, 0, -1, -1);
    int32_t f = hand_add(&b, INSTR_FORWARD, QUEUE_COMPUTE, 0, 3, 6, -1, SLOT_HAND_ACT, -1, SLOT_HAND_SAVED,
                         FLAG_FREES_IN, got, -1);
    int32_t w = hand_add(&b, INSTR_BACKWARD, QUEUE_COMPUTE, 0, 3, 6, -1, -1, SLOT_HAND_GRAD, SLOT_HAND_SAVED,
                         FLAG_FREES_SAVE, -1, -1);
    hand_tail(&b, f, w);
    hand_add(&b, INSTR_SEND, QUEUE_SEND, 0, 3, 3, 0, SLOT_HAND_GRAD, -1, -1, FLAG_FREES_IN, w, 4);
    assert_int_equal(program_builder_take(&b, p, &err), 0);
    expect(plan, "nothing can start any more", "waits for rank");
}

static void traces_have_one_shape(void **state)
{
    (void)state;
    struct err err = {0};
    struct plan *plan = hand_plan(2);
    struct trace trace, again;
    trace_init(&trace, 3);
    for (uint32_t i = 0; i < 5; i++)
        trace_add(&trace,
                  &(struct trace_event){.rank = i % 2, .instr = i, .begin_ns = 10 * i, .end_ns = 10 * i + 5});
    assert_int_equal(trace.count, 3);
    assert_int_equal(trace.dropped, 2);
    json_t *json = trace_to_json(&trace, &err);
    trace_init(&again, 0);
    assert_int_equal(trace_from_json(json, &again, &err), 0);
    assert_int_equal(again.count, 3);
    for (uint32_t i = 0; i < 3; i++) { /* member by member, as padding bytes differ */
        const struct trace_event *a = &again.events[i], *b = &trace.events[i];
        assert_true(a->rank == b->rank && a->step == b->step && a->instr == b->instr &&
                    a->program == b->program && a->begin_ns == b->begin_ns && a->end_ns == b->end_ns &&
                    a->ready_ns == b->ready_ns);
    }
    json_t *chrome = trace_to_chrome(&trace, plan, "measured", 0, &err);
    assert_true(json_array_size(json_object_get(chrome, "traceEvents")) >= 5);
    struct trace back;
    trace_init(&back, 0);
    assert_int_equal(trace_from_chrome(chrome, &back, &err), 0);
    assert_int_equal(back.count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(back.events[i].rank, trace.events[i].rank);
        assert_int_equal(back.events[i].instr, trace.events[i].instr);
        assert_int_equal(back.events[i].end_ns - back.events[i].begin_ns, 5);
    }
    trace_fini(&back);
    json_array_append_new(json_object_get(json, "events"), json_pack("[i,i]", 1, 2));
    assert_int_equal(trace_from_json(json, &again, &err), -1);
    assert_non_null(strstr(err.text, "trace.events[3]"));
    json_decref(json);
    json_decref(chrome);
    trace_fini(&trace);
    trace_fini(&again);
    plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hand_written_program_passes), cmocka_unit_test(spoilt_programs_are_named),
        cmocka_unit_test(spoilt_slots_are_named),        cmocka_unit_test(a_circle_of_waiting_is_named),
        cmocka_unit_test(traces_have_one_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
