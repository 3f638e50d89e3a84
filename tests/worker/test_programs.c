/* The worker knows no placement: programs written here, line by line, that no generator makes. */
#include "worker/worker_fixture.h"

static void check_golden(struct fixture *fix, struct plan *plan)
{
    struct outcome out;
    json_t *spec = fix_spec(fix);
    fix_run(fix, plan, spec, NULL, NULL, NULL, &out);
    if (json_array_size(out.failures))
        fail_msg("%s", json_string_value(json_object_get(json_array_get(out.failures, 0), "text")));
    assert_int_equal(out.steps, 20);
    for (uint64_t t = 0; t < out.steps; t++) {
        double loss = fix_golden(fix, "loss", t), norm = fix_golden(fix, "grad_norm", t);
        if (!(fabs(out.loss[t] - loss) <= 1e-6 * loss) || !(fabs(out.norm[t] - norm) <= 1e-5 * norm))
            fail_msg("step %llu: loss %.9g and %.9g, norm %.9g and %.9g", (unsigned long long)t, out.loss[t],
                     loss, out.norm[t], norm);
    }
    outcome_fini(&out);
    json_decref(spec);
}

/* The device buffers of a ring whose bytes are enough for one go from cell to cell: what an instruction was
 * given (its slots are two, or one and the same cell) is never taken from it, and what it read or wrote is in
 * the transport's memory by then. */
static void a_ring_with_bytes_for_one_buffer_keeps_the_numbers(void **state)
{
    struct fixture fix;
    struct err err;
    (void)state;
    fix_open(&fix, "llama");
    struct plan *plan = fix_plan(&fix, 3, 1);
    for (uint32_t r = 0; r < 3; r++)
        for (int s = HAND_ACT_IN; s <= HAND_GRAD_OUT; s++)
            plan->ranks[r].slots[s].bytes_total = plan->ranks[r].slots[s].bytes_bound =
                (uint64_t)fix.config.hidden * 4 * 40; /* a row has at most 40 tokens */
    must(plan_seal(plan, &err));
    must(plan_check(plan, &err));
    check_golden(&fix, plan);
    plan_destroy(plan);
    fix_close(&fix);
}

/* op, micro-batch, in, out, save, after: one line of a program. */
struct line {
    int op, in, out, save, after[2];
};

static void write_rank(struct plan *plan, uint32_t rank, const struct line *lines, size_t count)
{
    struct program_builder b = {0};
    struct err err;
    const struct plan_rank *me = &plan->ranks[rank];
    for (size_t i = 0; i < count; i++) {
        const struct line *line = &lines[i];
        struct instr instr = instr_init((enum instr_op)line->op, instr_op_queue(line->op));
        bool transfer = line->op == OP_SEND || line->op == OP_RECV;
        bool computes = line->op == OP_FORWARD || line->op == OP_BACKWARD;
        int slot = line->op == OP_SEND ? line->in : line->out;
        bool gradient = slot == HAND_GRAD_IN || slot == HAND_GRAD_OUT;
        instr.slot_in = line->in;
        instr.slot_out = line->out;
        instr.slot_save = line->save;
        instr.micro_batch = transfer || computes ? 0 : PLAN_NONE;
        instr.block_begin = transfer ? (rank == 0 ? me->block_end : me->block_begin) : me->block_begin;
        instr.block_end = transfer ? instr.block_begin : me->block_end;
        instr.peer = transfer ? 1 - (int32_t)rank : PLAN_NONE;
        instr.tag = transfer                   ? (gradient ? TAG_GRADIENT : TAG_ACTIVATION)
                    : line->in == HAND_SCALARS ? TAG_STEP_SCALARS
                    : line->in == HAND_NORM    ? TAG_NORM
                                               : TAG_NONE;
        if (line->op == OP_ALL_REDUCE)
            instr.group = instr.block_begin = instr.block_end = 0;
        if (instr.slot_in != PLAN_NONE && line->op != OP_ALL_REDUCE)
            instr.flags |= INSTR_FREES_IN;
        if (line->op == OP_BACKWARD)
            instr.flags |= INSTR_FREES_SAVE;
        program_add(&b, &instr, line->after, 2);
    }
    must(program_builder_take(&b, &plan->ranks[rank].programs[PROGRAM_TRAIN], &err));
}

static void ten_lines_run_on_two_workers(void **state)
{
    enum { NO = PLAN_NONE };
    static const struct line first[] = {{OP_FORWARD, NO, HAND_ACT_OUT, HAND_SAVED, {NO, NO}},
                                        {OP_SEND, HAND_ACT_OUT, NO, NO, {0, NO}},
                                        {OP_RECV, NO, HAND_GRAD_IN, NO, {NO, NO}},
                                        {OP_BACKWARD, HAND_GRAD_IN, NO, HAND_SAVED, {2, NO}},
                                        {OP_ALL_REDUCE, HAND_SCALARS, HAND_SCALARS, NO, {3, NO}},
                                        {OP_ALL_REDUCE, HAND_NORM, HAND_NORM, NO, {3, NO}},
                                        {OP_STEP, NO, NO, NO, {4, 5}}};
    static const struct line second[] = {{OP_RECV, NO, HAND_ACT_IN, NO, {NO, NO}},
                                         {OP_FORWARD, HAND_ACT_IN, NO, HAND_SAVED, {0, NO}},
                                         {OP_BACKWARD, NO, HAND_GRAD_OUT, HAND_SAVED, {1, NO}},
                                         {OP_SEND, HAND_GRAD_OUT, NO, NO, {2, NO}},
                                         {OP_ALL_REDUCE, HAND_SCALARS, HAND_SCALARS, NO, {2, NO}},
                                         {OP_ALL_REDUCE, HAND_NORM, HAND_NORM, NO, {2, NO}},
                                         {OP_STEP, NO, NO, NO, {4, 5}}};
    struct fixture fix;
    struct err err;
    (void)state;
    fix_open(&fix, "llama");
    struct plan *plan = fix_plan(&fix, 2, 4);
    write_rank(plan, 0, first, sizeof first / sizeof *first);
    write_rank(plan, 1, second, sizeof second / sizeof *second);
    must(plan_seal(plan, &err));
    must(plan_check(plan, &err));
    check_golden(&fix, plan);
    plan_destroy(plan);
    fix_close(&fix);
}

static int32_t add_group(struct plan *plan, uint32_t ranks)
{
    struct plan_group *groups = realloc(plan->groups, (plan->group_count + 1) * sizeof *groups);
    assert_non_null(groups);
    plan->groups = groups;
    struct plan_group *group = &groups[plan->group_count];
    *group = (struct plan_group){.rank_count = ranks, .ranks = calloc(ranks, sizeof *group->ranks)};
    for (uint32_t r = 0; r < ranks; r++)
        group->ranks[r] = r;
    return (int32_t)plan->group_count++;
}

/* Replicas of the whole model, micro-batches dealt in turn; gradients are added round the ring of all of
 * them. Gradients go over group `gradients`, beside the scalars' group 0; when there are two, every other
 * rank begins with the gradients and the others with the scalars. Groups between those have `between` ranks.
 */
static struct plan *replicas_plan(const struct fixture *fix, uint32_t replicas, int32_t gradients,
                                  uint32_t between)
{
    struct err err;
    struct plan *plan = fix_plan(fix, replicas, 1);
    plan->placement = PLACE_DATA;
    const int32_t counting =
        add_group(plan, 1); /* rank 0 alone counts for the norm: the replicas are equal */
    while ((int32_t)plan->group_count <= gradients)
        add_group(plan, (int32_t)plan->group_count < gradients ? between : replicas);
    for (uint32_t r = 0; r < replicas; r++) {
        struct plan_rank *rank = &plan->ranks[r];
        struct program_builder b = {0};
        int32_t last = PLAN_NONE;
        rank->stage = 0;
        rank->block_begin = 0;
        rank->block_end = plan->block_count;
        rank->state_share = r == 0;
        rank->rows = (plan->batch_rows + replicas - 1 - r) / replicas;
        for (int kind = PROGRAM_EVALUATE; kind < PROGRAM_KINDS; kind++)
            program_fini(&rank->programs[kind]);
        memset(&rank->programs[PROGRAM_EVALUATE], 0, (PROGRAM_KINDS - 1) * sizeof *rank->programs);
        rank->slots[HAND_GRAD_OUT].kind = SLOT_GRADIENTS;
        rank->slots[HAND_GRAD_OUT].lifetime = SLOT_FOR_RUN;
        rank->slots[HAND_GRAD_OUT].ring_micro_batches = 1;
        rank->slots[HAND_GRAD_OUT].bytes_total = rank->slots[HAND_GRAD_OUT].bytes_bound;
        rank->slots[HAND_GRAD_OUT].block_end = plan->block_count;
        for (uint32_t m = r; m < plan->micro_batch_count; m += replicas) {
            struct instr x = instr_init(OP_FORWARD, QUEUE_COMPUTE);
            x.micro_batch = (int32_t)m;
            x.block_end = plan->block_count;
            x.slot_save = HAND_SAVED;
            program_add(&b, &x, NULL, 0);
            x.op = OP_BACKWARD;
            x.flags = INSTR_FREES_SAVE;
            last = program_add(&b, &x, NULL, 0);
        }
        struct instr sum = instr_init(OP_ALL_REDUCE, QUEUE_GROUP);
        sum.group = 0;
        sum.tag = TAG_STEP_SCALARS;
        sum.slot_in = sum.slot_out = HAND_SCALARS;
        bool later = gradients > 0 && r % 2 == 1;
        int32_t after[2] = {later ? PLAN_NONE : program_add(&b, &sum, &last, 1), PLAN_NONE};
        struct instr reduce = instr_init(OP_ALL_REDUCE, QUEUE_GROUP);
        reduce.group = gradients;
        reduce.tag = TAG_PARAMETER_GRADIENTS;
        reduce.slot_in = reduce.slot_out = HAND_GRAD_OUT;
        reduce.block_end = plan->block_count;
        int32_t reduced = program_add(&b, &reduce, &last, 1);
        if (later)
            after[0] = program_add(&b, &sum, &last, 1);
        reduce.tag = TAG_NORM;
        reduce.slot_in = reduce.slot_out = HAND_NORM;
        reduce.block_end = 0;
        reduce.group = counting;
        after[1] = r == 0 ? program_add(&b, &reduce, &reduced, 1) : reduced;
        reduce.op = OP_BROADCAST;
        reduce.group = 0;
        reduce.peer = 0;
        after[1] = program_add(&b, &reduce, &after[1], 1);
        struct instr step = instr_init(OP_STEP, QUEUE_COMPUTE);
        step.block_end = plan->block_count;
        program_add(&b, &step, after, 2);
        program_fini(&rank->programs[PROGRAM_TRAIN]);
        must(program_builder_take(&b, &rank->programs[PROGRAM_TRAIN], &err));
    }
    must(plan_seal(plan, &err));
    must(plan_check(plan, &err));
    return plan;
}

static void replicas_reduce(uint32_t replicas, int32_t gradients)
{
    struct fixture fix;
    fix_open(&fix, "llama");
    struct plan *plan = replicas_plan(&fix, replicas, gradients, 1);
    check_golden(&fix, plan);
    plan_destroy(plan);
    fix_close(&fix);
}

static void replicas_reduce_their_gradients(void **state)
{
    (void)state;
    for (uint32_t replicas = 2; replicas <= 4; replicas++)
        replicas_reduce(replicas, 0);
}

/* As many groups as a large plan has: two of them between the same ranks must not meet on the wire. */
static void groups_of_the_same_ranks_do_not_mix(void **state)
{
    (void)state;
    static const int32_t numbers[] = {2, 40, 47, 48, 80, 94};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        replicas_reduce(2, numbers[i]);
    replicas_reduce(3, 40);
}

static void more_groups_than_a_pair_can_keep_apart_are_refused(void **state)
{
    (void)state;
    struct fixture fix;
    struct outcome out;
    fix_open(&fix, "llama");
    json_t *spec = fix_spec(&fix);
    struct plan *plan = replicas_plan(&fix, 2, 60, 2);
    fix_run(&fix, plan, spec, NULL, NULL, NULL, &out);
    assert_int_equal(out.done, 0);
    const char *text = json_string_value(
        json_object_get(json_array_get(out.failures, 0), "text")); /* group 1 has one rank */
    if (!text || !strstr(text, "group 60 is the 60th that ranks"))
        fail_msg("not as expected: %s", text ? text : "no failure");
    outcome_fini(&out);
    plan_destroy(plan);
    json_decref(spec);
    fix_close(&fix);
}

static void an_op_that_is_not_done_here_is_refused_by_name(void **state)
{
    struct fixture fix;
    struct outcome out;
    struct err err;
    (void)state;
    fix_open(&fix, "llama");
    struct plan *plan = fix_plan(&fix, 1, 4);
    struct program *train = &plan->ranks[0].programs[PROGRAM_TRAIN];
    uint32_t count = train->instr_count;
    struct instr *grown = realloc(train->instrs, (count + 1) * sizeof *grown);
    assert_non_null(grown);
    train->instrs = grown;
    for (uint32_t i = 0; i < count; i++)
        if (grown[i].op == OP_BACKWARD) { /* its two halves instead */
            memmove(&grown[i + 1], &grown[i], (count - i) * sizeof *grown);
            grown[i].op = OP_BACKWARD_INPUT;
            grown[i].flags = 0;
            grown[i + 1].op = OP_BACKWARD_WEIGHT;
            train->instr_count = ++count;
            break;
        }
    for (uint32_t a = 0; a < train->after_total; a++)
        train->after[a] += train->after[a] > 1 ? 1 : 0;
    for (uint32_t a = 0; a < train->after_total; a++)
        train->after[a] = train->after[a] == 1 ? 2 : train->after[a];
    must(plan_seal(plan, &err));
    must(plan_check(plan, &err));
    json_t *spec = fix_spec(&fix);
    fix_run(&fix, plan, spec, NULL, NULL, NULL, &out);
    assert_int_equal(json_array_size(out.failures), 1);
    const json_t *failed = json_array_get(out.failures, 0);
    assert_string_equal(json_string_value(json_object_get(failed, "code")), "unsupported");
    assert_non_null(strstr(json_string_value(json_object_get(failed, "text")), "BACKWARD_INPUT"));
    outcome_fini(&out);
    json_decref(spec);
    plan_destroy(plan);
    fix_close(&fix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_lines_run_on_two_workers),
        cmocka_unit_test(a_ring_with_bytes_for_one_buffer_keeps_the_numbers),
        cmocka_unit_test(replicas_reduce_their_gradients),
        cmocka_unit_test(groups_of_the_same_ranks_do_not_mix),
        cmocka_unit_test(more_groups_than_a_pair_can_keep_apart_are_refused),
        cmocka_unit_test(an_op_that_is_not_done_here_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
