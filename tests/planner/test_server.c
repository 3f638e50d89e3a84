/* Tests the kind `server`: plans are correct, every gradient reaches the holder once, and all transfers of
 * the star share the holder's network card. */
#include "planner/layered_world.h"

#include <math.h>

#include "model/shape/blocks.h"
#include "planner/emit/layered.h"

#define MIB ((uint64_t)1 << 20)

struct made {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    struct plan_answer *answer;
    struct plan *plan; /* a plan of any candidate that fits, not only of one that a search would choose */
};

static uint64_t times(uint64_t usual, uint64_t longer)
{
    return getenv("MOTLEY_LONG") ? longer : usual;
}

/* Makes random devices, one of which has much memory. */
static void made_init(struct made *m, uint64_t seed, uint32_t devices_max)
{
    struct rand_stream r;
    struct err err = {0};
    rand_stream_init(&r, seed, 4);
    uint32_t layers = 1 + rand_stream_below(&r, 7), devices = 2 + rand_stream_below(&r, devices_max - 1);
    m->config = fixture_config(layers);
    m->config.vocab = 2048;
    m->config.tied = rand_stream_below(&r, 2);
    m->workload = fixture_workload(&m->config, 10 + rand_stream_below(&r, 60), 2 + rand_stream_below(&r, 23));
    m->workload.method = rand_stream_below(&r, 3) ? METHOD_FULL : METHOD_LORA;
    m->workload.compute = rand_stream_below(&r, 2) ? COMPUTE_BF16 : COMPUTE_FP32;
    m->workload.recompute = (enum workload_recompute)rand_stream_below(&r, 3);
    m->workload.sample_tokens = rand_stream_below(&r, 2) ? 96 : 0;
    m->workload.prompt_tokens = m->workload.sample_tokens / 2;
    m->workload.place = PLACE_SERVER;
    m->cluster = cluster_create(&err);
    for (uint32_t d = 0; d < devices; d++) {
        char name[40], node[16];
        uint64_t memory = d == 0 ? 120 + 90 * (uint64_t)layers : 80 + rand_stream_below(&r, 60 * layers);
        snprintf(node, sizeof(node), "n%u", (d + 1) / 2);
        snprintf(name, sizeof(name), "n%u/%u", (d + 1) / 2, d);
        fixture_device(m->cluster, name, node, memory * MIB, 0.3 + rand_stream_unit(&r));
    }
    m->answer = NULL;
    m->plan = any_plan(&m->workload, m->cluster, PLACE_SERVER, &r, seed);
}

static void made_fini(struct made *m)
{
    plan_answer_destroy(m->answer);
    plan_destroy(m->plan);
    cluster_destroy(m->cluster);
    workload_fini(&m->workload);
}

static uint32_t pushes_of(const struct plan *plan, uint32_t rank, uint32_t tag)
{
    const struct program *program = &plan->ranks[rank].programs[PROGRAM_TRAIN];
    uint32_t count = 0;
    for (uint32_t i = 0; i < program->instr_count; i++)
        count += program->instrs[i].op == INSTR_PUSH && program->instrs[i].tag == tag;
    return count;
}

static void every_plan_passes_the_checker_and_an_execution(void **state)
{
    (void)state;
    struct rand_stream random;
    uint32_t plans = 0, full = 0, idle = 0, count = (uint32_t)times(200, 2500);
    rand_stream_init(&random, 6, 0);
    for (uint64_t seed = 0; seed < count; seed++) {
        struct made m;
        struct err err = {0};
        char why[160] = "";
        uint32_t rows = 0;
        made_init(&m, seed, 5);
        struct plan *plan = m.plan;
        if (plan) {
            plans++;
            full += plan->trains_embedding;
            idle += plan->ranks[0].rows == 0;
            if (plan_check(plan, &err) < 0)
                fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
            if (world_holds(plan) && !world_right(plan, &random, 2, why))
                fail_msg("seed %llu: %s", (unsigned long long)seed, why);
            for (uint32_t r = 0; r < plan->rank_count; r++) {
                rows += plan->ranks[r].rows;
                assert_true(plan->ranks[r].memory_bytes <= plan->ranks[r].memory_limit_bytes);
                assert_true(plan->ranks[r].state_share == (r == 0));
                uint32_t units = plan->trains_embedding ? (uint32_t)plan->block_count : 1;
                assert_int_equal(pushes_of(plan, r, TAG_PARAMETER_GRADIENTS), r ? units : 0);
            }
            assert_int_equal(rows, plan->batch_rows);
        }
        made_fini(&m);
    }
    print_message("%u plans of %u clusters, %u of full fine-tuning, %u holders take no rows\n", plans, count,
                  full, idle);
    assert_true(plans > count / 2 && full > count / 5 && full < plans);
}

static void what_an_execution_finds_wrong_the_checker_refuses(void **state)
{
    (void)state;
    struct rand_stream random;
    uint32_t found = 0, refused_only = 0, wanted = (uint32_t)times(150, 1000);
    rand_stream_init(&random, 98, 7);
    for (uint64_t seed = 0; found < wanted && seed < 20 * wanted; seed++) {
        struct made m;
        struct err err = {0};
        char why[160] = "";
        made_init(&m, seed % 61, 3);
        struct plan *plan = m.plan;
        for (int turn = 0; turn < 12 && plan && world_holds(plan) && plan->micro_batch_count <= 8; turn++) {
            json_t *json = plan_to_json(plan, &err);
            struct plan *copy = plan_from_json(json, &err);
            json_decref(json);
            assert_non_null(copy);
            if (world_spoil(copy, &random)) {
                bool good = world_right(copy, &random, 4, why), accepted = plan_check(copy, &err) == 0;
                if (!good && accepted)
                    fail_msg("seed %llu: accepted, but %s", (unsigned long long)seed, why);
                if (!good && !strstr(err.text, "rank"))
                    fail_msg("\"%s\" names no rank", err.text);
                found += !good;
                refused_only += good && !accepted;
            }
            plan_destroy(copy);
        }
        made_fini(&m);
    }
    print_message("%u spoilt programs found wrong, all refused; %u more refused\n", found, refused_only);
    assert_true(found >= wanted);
}

/* With a holder and two workers with equal network cards, the bytes that cross the holder's card bound the
 * step. */
static void a_step_is_no_shorter_than_what_crosses_the_holders_card(void **state)
{
    (void)state;
    double seconds[2];
    for (int fast = 0; fast < 2; fast++) {
        struct err err = {0};
        struct made m = {.config = fixture_config(6)};
        double card = fast ? 1e9 : 2e7;
        m.config.vocab = 2048;
        m.workload = fixture_workload(&m.config, 48, 16);
        m.workload.method = METHOD_FULL;
        m.workload.place = PLACE_SERVER;
        m.cluster = cluster_create(&err);
        fixture_device(m.cluster, "big/0", "big", 2000 * MIB, 0.2);
        fixture_device(m.cluster, "a/0", "a", 300 * MIB, 1);
        fixture_device(m.cluster, "b/0", "b", 300 * MIB, 1);
        assert_int_equal(cluster_set_nic(m.cluster, "big", card, &err), 0);
        struct plan_options options = {.programs = true};
        assert_int_equal(plan_search(&m.workload, m.cluster, &options, &m.answer, &err), 0);
        const struct plan *plan = m.answer->plan;
        assert_non_null(plan);
        struct block_list blocks;
        struct block_options none = {0};
        assert_int_equal(model_blocks(&m.config, &none, &blocks, &err), 0);
        /* Each worker receives every block at least once and sends its gradients in fp32. */
        double bytes = 4.0 * (double)blocks.params * (plan->rank_count - 1);
        assert_true(m.answer->step_s >= bytes / card);
        seconds[fast] = m.answer->step_s;
        block_list_fini(&blocks);
        made_fini(&m);
    }
    assert_true(seconds[1] < seconds[0]);
}

static struct instr *find(struct plan *plan, uint32_t rank, int op, uint32_t tag, uint32_t *number)
{
    struct program *p = &plan->ranks[rank].programs[PROGRAM_TRAIN];
    for (uint32_t i = 0; i < p->instr_count; i++) {
        if (p->instrs[i].op == op && p->instrs[i].tag == tag) {
            *number = i;
            return &p->instrs[i];
        }
    }
    fail_msg("no such instruction");
    return NULL;
}

/* A device without memory for the base may still hold the adapters of another that has it. */
static void who_has_no_room_for_the_base_holds_the_adapters(void **state)
{
    (void)state;
    struct model_config config = fixture_config(4);
    struct workload workload = fixture_workload(&config, 16, 4);
    struct err err = {0};
    struct problem problem;
    struct memory_need idle, works, worker;
    for (int room = 0; room < 2;
         room++) { /* first with memory for one row less than needed, then with enough */
        struct cluster *cluster = cluster_create(&err);
        struct plan_options options = {.programs = true};
        struct plan_answer *answer = NULL;
        fixture_device(cluster, "a/0", "a", MIB << 12, 1);
        fixture_device(cluster, "b/0", "b", MIB << 12, 1);
        assert_int_equal(problem_init(&problem, &workload, cluster, &err), 0);
        struct layered_buffers buffers = layered_buffers(&problem, true, 2);
        const struct member none = {0}, one = {.rows = 1, .count = 1}, all = {.rows = 1, .count = 4};
        layered_need(&problem, &buffers, LAYERED_HOLDER, &none, (struct flat_share){0}, &idle);
        layered_need(&problem, &buffers, LAYERED_HOLDER, &one, (struct flat_share){0}, &works);
        layered_need(&problem, &buffers, LAYERED_WORKER, &all, (struct flat_share){0}, &worker);
        assert_true(idle.total < works.total / 2);
        problem_fini(&problem);
        cluster_destroy(cluster);
        cluster = cluster_create(&err);
        fixture_device(cluster, "a/0", "a", idle.total + 8192, 1);
        fixture_device(cluster, "b/0", "b", worker.total + 8192 - (room ? 0 : worker.total / 2), 1);
        workload.place = PLACE_SERVER;
        workload.recompute = RECOMPUTE_NO;
        assert_int_equal(plan_search(&workload, cluster, &options, &answer, &err), 0);
        assert_int_equal(answer->plan != NULL, room);
        if (answer->plan) {
            assert_string_equal(answer->plan->ranks[0].device, "a/0");
            assert_int_equal(answer->plan->ranks[0].rows, 0);
            assert_int_equal(plan_check(answer->plan, &err), 0);
        }
        plan_answer_destroy(answer);
        cluster_destroy(cluster);
    }
    workload_fini(&workload);
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    struct made m;
    struct err err = {0};
    uint64_t seed = 0;
    for (;; seed++) { /* Searches for the first seed whose job is full fine-tuning and has a plan. */
        made_init(&m, seed, 3);
        if (m.plan && m.plan->trains_embedding)
            break;
        made_fini(&m);
    }
    struct plan *plan = m.plan;
    uint32_t number;
    struct instr *x = find(plan, 0, INSTR_PULL, TAG_PARAMETER_GRADIENTS, &number);
    x->flags = 0;
    assert_int_equal(plan_check(plan, &err), -1);
    assert_non_null(strstr(err.text, "rank 0 train instruction"));
    assert_non_null(strstr(err.text, "ACCUMULATE"));
    x->flags = FLAG_ACCUMULATE;
    assert_int_equal(plan_check(plan, &err), 0);

    struct program *p = &plan->ranks[0].programs[PROGRAM_TRAIN];
    struct instr *step = &p->instrs[p->instr_count - 1];
    assert_int_equal(step->op, INSTR_STEP);
    uint32_t after = step->after_count;
    step->after_first++; /* The step does not wait until the last parameters are sent. */
    step->after_count = after - 1;
    assert_int_equal(plan_check(plan, &err), -1);
    assert_non_null(strstr(err.text, "half updated"));
    step->after_first--;
    step->after_count = after;

    step->op = INSTR_RELEASE;
    assert_int_equal(plan_check(plan, &err), -1);
    assert_non_null(strstr(err.text, "STEP"));
    made_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_plan_passes_the_checker_and_an_execution),
        cmocka_unit_test(a_step_is_no_shorter_than_what_crosses_the_holders_card),
        cmocka_unit_test(who_has_no_room_for_the_base_holds_the_adapters),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(what_an_execution_finds_wrong_the_checker_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
