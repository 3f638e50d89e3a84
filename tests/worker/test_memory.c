/* Compares the host memory of a worker's process with what the plan predicted. */
#include "worker/worker_fixture.h"

#include "program/host.h"

enum { RANKS = 2 };

/* The `memory` events of a run. */
struct seen {
    double process[RANKS], device[RANKS], predicted[RANKS], base[RANKS], early[RANKS], early_bound[RANKS];
};

static double number_of(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static void see(void *arg, struct fix_worker *workers, uint32_t rank, const json_t *event)
{
    struct seen *seen = arg;
    (void)workers;
    if (strcmp(json_string_value(json_object_get(event, "type")), "memory") != 0)
        return;
    seen->process[rank] = number_of(event, "vm_hwm_bytes");
    seen->device[rank] = number_of(event, "peak_bytes");
    seen->predicted[rank] = number_of(event, "predicted_base_bytes");
    seen->base[rank] = number_of(event, "process_base_bytes");
    seen->early[rank] = number_of(event, "early_bytes");
    seen->early_bound[rank] = number_of(json_object_get(event, "host"), "early");
}

/* Runs two stages as processes with a checkpoint every second step and LoRA of this rank. */
static void run_with_rank(struct fixture *fix, int lora_rank, struct seen *seen)
{
    struct outcome out;
    memset(seen, 0, sizeof(*seen));
    json_t *spec = fix_spec(fix);
    json_object_set_new(json_object_get(spec, "method"), "rank", json_integer(lora_rank));
    json_object_set_new(json_object_get(spec, "checkpoint"), "every_steps", json_integer(2));
    json_object_set_new(json_object_get(spec, "train"), "steps", json_integer(4));
    struct plan *plan = fix_plan(fix, RANKS, 2);
    for (uint32_t r = 0; r < RANKS; r++) { /* the planner counts values and gradients of two layers */
        uint64_t width = fix->config.hidden, kv = (uint64_t)fix->config.kv_heads * fix->config.head_dim;
        uint64_t layer = 4ull * (uint64_t)lora_rank * (4 * width + 2 * width + 2 * kv);
        plan->ranks[r].memory_bytes = 0;
        for (int p = 0; p < PURPOSE_COUNT; p++) {
            uint64_t *peak = &plan->ranks[r].memory_peak[p];
            *peak = p == PURPOSE_ADAPTERS ? 2 * 2 * layer : *peak / 64;
            plan->ranks[r].memory_bytes += *peak;
        }
    }
    struct err err;
    must(plan_seal(plan, &err));
    fix_run(fix, plan, spec, NULL, see, seen, &out);
    if (json_array_size(out.failures))
        fail_msg("%s", json_string_value(json_object_get(json_array_get(out.failures, 0), "text")));
    outcome_fini(&out);
    plan_destroy(plan);
    json_decref(spec);
}

/* Takes rows of 8 tokens, this many tokens in all, in the place of the fixture's. */
static void many_rows(struct fixture *fix, uint32_t tokens)
{
    enum { ROW = 8 };
    struct err err;
    struct buf file;
    uint64_t *offset = calloc(tokens / ROW + 1, sizeof(*offset));
    int32_t *ids = calloc(tokens, sizeof(*ids));
    assert_true(offset && ids);
    for (uint32_t r = 0; r <= tokens / ROW; r++)
        offset[r] = (uint64_t)r * ROW;
    const struct rows rows = {.count = tokens / ROW, .offset = offset, .ids = ids, .labels = ids};
    buf_init(&file, 1 << 26);
    must(rows_save(&rows, &file, &err));
    must(blob_server_add(&fix->store, file.data, file.size, fix->train));
    buf_fini(&file);
    free(offset);
    free(ids);
}

/* Whether what the process grew by beside its device, from one run to another, was predicted. */
static void check_growth(const struct seen *from, const struct seen *to, int r)
{
    double grew = to->process[r] - to->device[r] - (from->process[r] - from->device[r]);
    double said = to->predicted[r] - to->base[r] - (from->predicted[r] - from->base[r]);
    print_message("rank %d: beside the device %.1f MB more, %.1f MB predicted at most\n", r, grew / 1e6,
                  said / 1e6);
    assert_true(said > 0);
    assert_true(grew <= said + 4e6); /* tolerance for the allocator's rounding */
    assert_true(grew >= 0.3 * said);
}

static void the_processes_growth_is_predicted(void **state)
{
    (void)state;
    struct fixture fix;
    struct seen small, large, many;
    char program[400];
    const char *programs = getenv("MOTLEY_BIN");
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    print_message("skipped: instrumented programs hold more\n");
    skip();
#endif
    fix_open(&fix, "llama");
    json_object_clear(fix.adapter); /* the adapter has another LoRA rank */
    snprintf(program, sizeof(program), "%s/motley-worker", programs ? programs : "bin");
    fix.program = program;
    run_with_rank(&fix, 8, &small);
    run_with_rank(&fix, 1024, &large);
    many_rows(&fix, 2500000); /* 23 MB, which are there twice while they are read */
    run_with_rank(&fix, 8, &many);
    for (int r = 0; r < RANKS; r++) {
        check_growth(&small, &large, r);
        check_growth(&small, &many, r);
        print_message("rank %d: a queue held %.0f bytes of early messages, %.0f predicted at most for all\n",
                      r, large.early[r], large.early_bound[r]);
        assert_true(large.early[r] <= large.early_bound[r] && large.early_bound[r] > 0);
    }
    fix_close(&fix);
}

/* In the hand-written pipeline the middle rank has four slots for boundary tensors, the others two, each with
 * a ring of HAND_RING buffers. */
static void the_plan_says_what_travels_and_what_a_checkpoint_takes(void **state)
{
    (void)state;
    struct fixture fix;
    fix_open(&fix, "llama");
    struct plan *plan = fix_plan(&fix, 3, 2);
    uint64_t boundary = ((uint64_t)fix.tokens_bound * fix.config.hidden * 4 + 4095) / 4096 * 4096,
             file = 32 << 20, wait = 32 << 20,
             adapter = 16 << 20; /* limits of program/host.c, below the sizes of this plan's states */
    static const uint64_t slots[] = {2, 4, 2};
    for (uint32_t r = 0; r < 3; r++) {
        struct plan_host host = plan_host_bytes(plan, r);
        assert_int_equal(host.cells, slots[r] * HAND_RING * boundary);
        assert_int_equal(host.collectives, 0);
        assert_int_equal(host.checkpoint, file + wait + (r == 0 ? adapter : 0));
    }
    plan_destroy(plan);
    fix_close(&fix);
}

/* Counts the micro-batches that a rank receives with a tag. */
static uint32_t receives(const struct plan *plan, uint32_t rank, uint32_t tag)
{
    const struct program *train = &plan->ranks[rank].programs[PROGRAM_TRAIN];
    uint32_t count = 0;
    for (uint32_t i = 0; i < train->instr_count; i++)
        count += train->instrs[i].op == INSTR_RECV && train->instrs[i].tag == tag;
    return count;
}

/* The middle rank of the hand-written pipeline receives activations from one side and gradients from the
 * other. All boundary tensors of a step may come before their receives are posted, up to the mesh's window
 * for each peer; scalars are small. */
static void the_plan_says_what_may_come_early(void **state)
{
    (void)state;
    enum { SCALARS = 8192 };
    struct fixture fix;
    fix_open(&fix, "llama");
    struct plan *plan = fix_plan(&fix, 3, 2);
    uint64_t files = 64 << 10;
    for (uint32_t r = 0; r < 3; r++)
        files += plan->ranks[r].memory_peak[PURPOSE_ADAPTERS] / 2;
    files = files < HOST_WINDOW_BYTES ? files : HOST_WINDOW_BYTES;
    for (int large = 0; large < 2; large++) {
        for (uint32_t r = 0; r < 3; r++) {
            struct plan_rank *me = &plan->ranks[r];
            uint64_t bytes = (uint64_t)fix.tokens_bound * fix.config.hidden * 4, sum = 0;
            uint32_t count[2] = {receives(plan, r, TAG_ACTIVATION), receives(plan, r, TAG_GRADIENT)};
            assert_true((r > 0) == (count[0] > 0) && (r < 2) == (count[1] > 0));
            for (uint32_t s = 0; s < me->slot_count && large; s++)
                if (me->slots[s].kind == SLOT_ACTIVATION || me->slots[s].kind == SLOT_GRADIENT)
                    me->slots[s].bytes_bound = 2 * HOST_WINDOW_BYTES;
            for (int i = 0; i < 2; i++)
                sum += large && count[i] ? HOST_WINDOW_BYTES : count[i] * (bytes + HOST_MESSAGE_BYTES);
            sum += r == 0 ? 2 * files : 0; /* checkpoint files of the two ranks below rank 0 in the tree */
            struct plan_host host = plan_host_bytes(plan, r);
            assert_true(host.early >= sum && host.early <= sum + SCALARS);
        }
    }
    plan_destroy(plan);
    fix_close(&fix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_says_what_may_come_early),
        cmocka_unit_test(the_plan_says_what_travels_and_what_a_checkpoint_takes),
        cmocka_unit_test(the_processes_growth_is_predicted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
