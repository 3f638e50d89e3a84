/* Tests programs that no generator makes, written here line by line, because the worker must not depend on a
 * placement. */
#include "worker/worker_fixture.h"

#include "worker/program/ops_private.h"

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

/* Each slot may have bytes for a single device buffer, though its ring has several cells. A cell that needs
 * the buffer then frees another cell's. That loses no data, since what a cell received or is about to send is
 * also in the host memory of the mesh, and no instruction loses a buffer that it uses, because its input and
 * its output are in different slots or in the same cell. */
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

/* One line of a program: op, slots in, out and save, and `after`. */
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
        bool transfer = line->op == INSTR_SEND || line->op == INSTR_RECV;
        bool computes = line->op == INSTR_FORWARD || line->op == INSTR_BACKWARD;
        int slot = line->op == INSTR_SEND ? line->in : line->out;
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
        if (line->op == INSTR_ALL_REDUCE)
            instr.group = instr.block_begin = instr.block_end = 0;
        if (instr.slot_in != PLAN_NONE && line->op != INSTR_ALL_REDUCE)
            instr.flags |= FLAG_FREES_IN;
        if (line->op == INSTR_BACKWARD)
            instr.flags |= FLAG_FREES_SAVE;
        program_add(&b, &instr, line->after, 2);
    }
    must(program_builder_take(&b, &plan->ranks[rank].programs[PROGRAM_TRAIN], &err));
}

static void ten_lines_run_on_two_workers(void **state)
{
    enum { NO = PLAN_NONE };
    static const struct line first[] = {{INSTR_FORWARD, NO, HAND_ACT_OUT, HAND_SAVED, {NO, NO}},
                                        {INSTR_SEND, HAND_ACT_OUT, NO, NO, {0, NO}},
                                        {INSTR_RECV, NO, HAND_GRAD_IN, NO, {NO, NO}},
                                        {INSTR_BACKWARD, HAND_GRAD_IN, NO, HAND_SAVED, {2, NO}},
                                        {INSTR_ALL_REDUCE, HAND_SCALARS, HAND_SCALARS, NO, {3, NO}},
                                        {INSTR_ALL_REDUCE, HAND_NORM, HAND_NORM, NO, {3, NO}},
                                        {INSTR_STEP, NO, NO, NO, {4, 5}}};
    static const struct line second[] = {{INSTR_RECV, NO, HAND_ACT_IN, NO, {NO, NO}},
                                         {INSTR_FORWARD, HAND_ACT_IN, NO, HAND_SAVED, {0, NO}},
                                         {INSTR_BACKWARD, NO, HAND_GRAD_OUT, HAND_SAVED, {1, NO}},
                                         {INSTR_SEND, HAND_GRAD_OUT, NO, NO, {2, NO}},
                                         {INSTR_ALL_REDUCE, HAND_SCALARS, HAND_SCALARS, NO, {2, NO}},
                                         {INSTR_ALL_REDUCE, HAND_NORM, HAND_NORM, NO, {2, NO}},
                                         {INSTR_STEP, NO, NO, NO, {4, 5}}};
    struct fixture fix;
    struct err err;
    (void)state;
    fix_open(&fix, "llama");
    struct plan *plan = fix_plan(&fix, 2, 4);
    write_rank(plan, 0, first, sizeof(first) / sizeof(*first));
    write_rank(plan, 1, second, sizeof(second) / sizeof(*second));
    must(plan_seal(plan, &err));
    must(plan_check(plan, &err));
    check_golden(&fix, plan);
    plan_destroy(plan);
    fix_close(&fix);
}

static int32_t add_group(struct plan *plan, uint32_t ranks)
{
    struct plan_group *groups = realloc(plan->groups, (plan->group_count + 1) * sizeof(*groups));
    assert_non_null(groups);
    plan->groups = groups;
    struct plan_group *group = &groups[plan->group_count];
    *group = (struct plan_group){.rank_count = ranks, .ranks = calloc(ranks, sizeof(*group->ranks))};
    for (uint32_t r = 0; r < ranks; r++)
        group->ranks[r] = r;
    return (int32_t)plan->group_count++;
}

/* Makes replicas of the whole model, which take micro-batches in turn; gradients are added round the ring of
 * all replicas. Gradients use group `gradients`, in addition to the scalars' group 0. When the two differ,
 * every other rank begins with the gradients and the others with the scalars. Groups between the two have
 * `between` ranks. */
static struct plan *replicas_plan(const struct fixture *fix, uint32_t replicas, int32_t gradients,
                                  uint32_t between)
{
    struct err err;
    struct plan *plan = fix_plan(fix, replicas, 1);
    plan->placement = PLACE_DATA;
    const int32_t counting =
        add_group(plan, 1); /* only rank 0 contributes to the norm, because replicas are equal */
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
        memset(&rank->programs[PROGRAM_EVALUATE], 0, (PROGRAM_KINDS - 1) * sizeof(*rank->programs));
        rank->slots[HAND_GRAD_OUT].kind = SLOT_GRADIENTS;
        rank->slots[HAND_GRAD_OUT].lifetime = SLOT_FOR_RUN;
        rank->slots[HAND_GRAD_OUT].ring_micro_batches = 1;
        rank->slots[HAND_GRAD_OUT].bytes_total = rank->slots[HAND_GRAD_OUT].bytes_bound;
        rank->slots[HAND_GRAD_OUT].block_end = plan->block_count;
        for (uint32_t m = r; m < plan->micro_batch_count; m += replicas) {
            struct instr x = instr_init(INSTR_FORWARD, QUEUE_COMPUTE);
            x.micro_batch = (int32_t)m;
            x.block_end = plan->block_count;
            x.slot_save = HAND_SAVED;
            program_add(&b, &x, NULL, 0);
            x.op = INSTR_BACKWARD;
            x.flags = FLAG_FREES_SAVE;
            last = program_add(&b, &x, NULL, 0);
        }
        struct instr sum = instr_init(INSTR_ALL_REDUCE, QUEUE_GROUP);
        sum.group = 0;
        sum.tag = TAG_STEP_SCALARS;
        sum.slot_in = sum.slot_out = HAND_SCALARS;
        bool later = gradients > 0 && r % 2 == 1;
        int32_t after[2] = {later ? PLAN_NONE : program_add(&b, &sum, &last, 1), PLAN_NONE};
        struct instr reduce = instr_init(INSTR_ALL_REDUCE, QUEUE_GROUP);
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
        reduce.op = INSTR_BROADCAST;
        reduce.group = 0;
        reduce.peer = 0;
        after[1] = program_add(&b, &reduce, &after[1], 1);
        struct instr step = instr_init(INSTR_STEP, QUEUE_COMPUTE);
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

/* The plan has as many groups as a large plan; messages of two groups with the same ranks must not mix. */
static void groups_of_the_same_ranks_do_not_mix(void **state)
{
    (void)state;
    static const int32_t numbers[] = {2, 40, 47, 48, 80, 94};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
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
    const char *text = "no failure";
    size_t i;
    json_t *failure;
    json_array_foreach (out.failures, i, failure) { /* The other rank may first lose its connection. */
        text = json_string_value(json_object_get(failure, "text"));
        if (strstr(text, "group 60 is the 60th that ranks")) /* one fewer, because group 1 has one rank */
            break;
    }
    if (!strstr(text, "group 60 is the 60th that ranks"))
        fail_msg("not as expected: %s", text);
    outcome_fini(&out);
    plan_destroy(plan);
    json_decref(spec);
    fix_close(&fix);
}

/* --- blocks of a rank in parts --- */

enum { LOCAL_ACT = HAND_SLOTS, LOCAL_GRAD, LOCAL_SLOTS };

/* Maps a rank's old instructions to new ones: `after` names the last part of each. */
struct parts {
    struct program_builder b;
    int32_t last[256], computed; /* computed: the last instruction of the compute queue */
};

/* Adds instruction i of the old program as a part over blocks [begin, end), with the given slots. */
static void add_part(struct parts *parts, const struct program *old, uint32_t i, int op, int32_t begin,
                     int32_t end, int32_t in, int32_t out)
{
    struct instr x = old->instrs[i];
    int32_t after[16];
    assert_true(x.after_count <= 16);
    for (uint32_t a = 0; a < x.after_count; a++)
        after[a] = parts->last[old->after[x.after_first + a]];
    bool keeps = op == INSTR_FORWARD || op == INSTR_BACKWARD_INPUT || x.slot_save < 0;
    x.op = (uint8_t)op;
    x.block_begin = begin;
    x.block_end = end;
    x.slot_in = in;
    x.slot_out = out;
    x.flags = (uint16_t)((in >= 0 ? FLAG_FREES_IN : 0) | (keeps ? 0 : FLAG_FREES_SAVE));
    parts->last[i] = parts->computed = program_add(&parts->b, &x, after, x.after_count);
}

/* Divides every FORWARD and BACKWARD into the first block and the others. The first block's backward is
 * divided in halves with the weights' half following at once; the other blocks' backward stays whole. */
static void cut_program(struct program *program)
{
    struct parts parts = {0};
    struct err err;
    assert_true(program->instr_count <= 256);
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        int32_t cut = x->block_begin + 1;
        if (x->op == INSTR_FORWARD) {
            add_part(&parts, program, i, INSTR_FORWARD, x->block_begin, cut, x->slot_in, LOCAL_ACT);
            add_part(&parts, program, i, INSTR_FORWARD, cut, x->block_end, LOCAL_ACT, x->slot_out);
        } else if (x->op == INSTR_BACKWARD) {
            add_part(&parts, program, i, INSTR_BACKWARD, cut, x->block_end, x->slot_in, LOCAL_GRAD);
            add_part(&parts, program, i, INSTR_BACKWARD_INPUT, x->block_begin, cut, LOCAL_GRAD, x->slot_out);
            int32_t sent = parts.last[i];
            add_part(&parts, program, i, INSTR_BACKWARD_WEIGHT, x->block_begin, cut, PLAN_NONE, PLAN_NONE);
            if (x->slot_out >= 0)
                parts.last[i] = sent; /* nothing waits for the weights' half */
        } else {
            struct instr same = *x;
            int32_t after[16];
            assert_true(x->after_count <= 16);
            for (uint32_t a = 0; a < x->after_count; a++)
                after[a] = parts.last[program->after[x->after_first + a]];
            if (x->op == INSTR_ALL_REDUCE) /* waits for everything computed before */
                after[same.after_count++] = parts.computed;
            parts.last[i] = program_add(&parts.b, &same, after, same.after_count);
        }
    }
    program_fini(program);
    must(program_builder_take(&parts.b, program, &err));
}

/* Adds slots for the tensors that go from one part of the stage to the next on the same rank, and lets the
 * saved activations of two blocks at a time take turns in memory. */
static void cut_plan(struct plan *plan)
{
    struct err err;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        struct plan_rank *rank = &plan->ranks[r];
        rank->slots = realloc(rank->slots, LOCAL_SLOTS * sizeof(*rank->slots));
        assert_non_null(rank->slots);
        rank->slots[LOCAL_ACT] = rank->slots[HAND_ACT_OUT];
        rank->slots[LOCAL_GRAD] = rank->slots[HAND_GRAD_OUT];
        rank->slot_count = LOCAL_SLOTS;
        struct plan_slot *saved = &rank->slots[HAND_SAVED];
        saved->ring_blocks = 2;
        saved->block_begin = rank->block_begin;
        saved->block_end = rank->block_end;
        saved->bytes_total *= 2;
        cut_program(&rank->programs[PROGRAM_TRAIN]);
        cut_program(&rank->programs[PROGRAM_EVALUATE]);
    }
    must(plan_seal(plan, &err));
    must(plan_check(plan, &err));
}

static void blocks_of_a_rank_run_in_parts(void **state)
{
    struct fixture fix;
    (void)state;
    fix_open(&fix, "llama");
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        struct plan *plan = fix_plan(&fix, ranks, 1);
        cut_plan(plan);
        check_golden(&fix, plan);
        plan_destroy(plan);
    }
    fix_close(&fix);
}

/* --- programs that the worker refuses --- */

/* Checks that a run of the plan fails at once on every rank, with this error code and text. */
static void check_refused(struct fixture *fix, struct plan *plan, const char *words)
{
    struct outcome out;
    struct err err;
    json_t *spec = fix_spec(fix);
    must(plan_seal(plan, &err));
    must(plan_check(plan, &err));
    fix_run(fix, plan, spec, NULL, NULL, NULL, &out);
    assert_int_equal(json_array_size(out.failures), 1);
    const json_t *failed = json_array_get(out.failures, 0);
    const char *text = json_string_value(json_object_get(failed, "text"));
    if (strcmp(json_string_value(json_object_get(failed, "code")), "unsupported") != 0 ||
        !strstr(text, words))
        fail_msg("not as expected: %s", text);
    outcome_fini(&out);
    json_decref(spec);
    plan_destroy(plan);
}

static struct instr *find_op(struct plan *plan, int op)
{
    struct program *train = &plan->ranks[0].programs[PROGRAM_TRAIN];
    for (uint32_t i = 0; i < train->instr_count; i++)
        if (train->instrs[i].op == op)
            return &train->instrs[i];
    fail_msg("the plan has no %s", instr_op_name(op));
    return NULL;
}

static void what_is_not_done_here_is_refused_by_name(void **state)
{
    struct fixture fix;
    (void)state;
    fix_open(&fix, "llama");
    struct plan *plan = fix_plan(&fix, 1, 2);
    find_op(plan, INSTR_FORWARD)->flags |= FLAG_RECOMPUTE; /* set for one of two micro-batches */
    check_refused(&fix, plan, "RECOMPUTE: of 2 FORWARDs in blocks 0..6 1 have it");
    plan = fix_plan(&fix, 1, 4);
    find_op(plan, INSTR_STEP)->group = 0;
    check_refused(&fix, plan, "does not do STEP with a group's shares");
    plan = fix_plan(&fix, 1, 4);
    struct program *train = &plan->ranks[0].programs[PROGRAM_TRAIN];
    struct program_builder b = {0};
    struct err err;
    struct instr gather = instr_init(INSTR_ALL_GATHER, QUEUE_GROUP);
    gather.group = 0;
    gather.tag = TAG_PARAMETERS;
    gather.slot_in = gather.slot_out = HAND_GRAD_OUT;
    gather.block_end = plan->block_count;
    program_add(&b, &gather, NULL, 0);
    for (uint32_t i = 0; i < train->instr_count; i++) {
        const struct instr *x = &train->instrs[i];
        int32_t after[3] = {0, PLAN_NONE, PLAN_NONE};
        for (uint32_t a = 0; a < x->after_count && a < 2; a++)
            after[1 + a] = 1 + (int32_t)train->after[x->after_first + a];
        program_add(&b, x, after, 3);
    }
    plan->ranks[0].slots[HAND_GRAD_OUT].kind = SLOT_PARAMETERS;
    plan->ranks[0].slots[HAND_GRAD_OUT].lifetime = SLOT_FOR_RUN;
    plan->ranks[0].slots[HAND_GRAD_OUT].ring_micro_batches = 1;
    plan->ranks[0].slots[HAND_GRAD_OUT].block_end = plan->block_count;
    plan->ranks[0].slots[HAND_GRAD_OUT].bytes_total = plan->ranks[0].slots[HAND_GRAD_OUT].bytes_bound;
    program_fini(train);
    must(program_builder_take(&b, train, &err));
    check_refused(&fix, plan, "does not do ALL_GATHER with shards of the state");
    fix_close(&fix);
}

/* A plan may name up to 1e15 bytes a row, so the rows of a micro-batch can have more bytes than 64 bits
 * count. */
static void a_slot_holds_nothing_that_64_bits_cannot_count(void **state)
{
    (void)state;
    struct err err;
    const uint32_t row_start[] = {0, 0, 0}; /* its rows' tokens do not matter here */
    const struct plan_slot slot = {.bytes_per_row = 1e15, .bytes_bound = UINT64_C(1) << 40};
    struct slot_cells cells = {.slot = &slot};
    struct ops_step step = {.router_scale = 1};
    struct micro_batch micro = {.rows = 2, .row_start = row_start};
    const struct batch batch = {.micro_batch_count = 1, .micro = &micro};
    struct ops ops = {.slots = &cells, .kind = PROGRAM_TRAIN, .batch = &batch, .step = &step};
    assert_int_equal(cells_bound(&ops, 0, 0, &err), -1); /* 2e15 bytes, which 64 bits can count */
    assert_int_equal(err.code, ERR_TOO_BIG);
    assert_int_equal(cells_tail_bytes(&ops, 0, 0, 20000), (size_t)1 << 53); /* 2e19 bytes */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slot_holds_nothing_that_64_bits_cannot_count),
        cmocka_unit_test(ten_lines_run_on_two_workers),
        cmocka_unit_test(a_ring_with_bytes_for_one_buffer_keeps_the_numbers),
        cmocka_unit_test(replicas_reduce_their_gradients),
        cmocka_unit_test(groups_of_the_same_ranks_do_not_mix),
        cmocka_unit_test(more_groups_than_a_pair_can_keep_apart_are_refused),
        cmocka_unit_test(blocks_of_a_rank_run_in_parts),
        cmocka_unit_test(what_is_not_done_here_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
