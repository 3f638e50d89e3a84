/* Tests profiles that were measured on a busy machine: how uncertain the planner states them to be, and which
 * decisions they must not influence. */
#include "planner/cost/noise.h"
#include "planner/plan_fixture.h"

enum { SIZES = 7 };

/* Makes a device whose times of layers up to `small` tokens are `factor` times as long as they should be. */
static struct cluster *cluster_of(uint64_t memory, double small, double factor, double spread, double waited)
{
    struct err err = {0};
    struct cluster *cluster = cluster_create(&err);
    struct cluster_device device = {.name = "a/0", .node = "a", .memory_limit_bytes = memory};
    assert_int_equal(cluster_add_device(cluster, &device, &err), 0);
    json_t *points = json_array();
    for (int i = 0; i < SIZES; i++) {
        int tokens = 16 << i;
        double layer = (2e-4 + 8e-5 * tokens) * (tokens <= small ? factor : 1), head = 1e-4 + 1e-5 * tokens;
        json_array_append_new(points, json_pack("{s:s,s:i,s:f,s:f}", "block", "layer", "tokens", tokens,
                                                "forward_s", layer, "backward_s", 1.2 * layer));
        json_array_append_new(points,
                              json_pack("{s:s,s:i,s:i,s:f,s:f}", "block", "head", "tokens", tokens,
                                        "labelled", tokens / 2, "forward_s", head, "backward_s", head));
        json_array_append_new(points, json_pack("{s:s,s:i,s:f,s:f}", "block", "embedding", "tokens", tokens,
                                                "forward_s", 1e-7 * tokens, "backward_s", 0.0));
    }
    json_t *profile = json_pack("{s:s,s:o,s:f,s:f}", "device", "a/0", "points", points, "spread", spread,
                                "waited_share", waited);
    if (cluster_add_profile(cluster, profile, &err) < 0)
        fail_msg("%s", err.text);
    json_decref(profile);
    return cluster;
}

static bool recomputes(const struct plan *plan)
{
    for (uint32_t r = 0; r < plan->rank_count; r++)
        for (uint32_t i = 0; i < plan->ranks[r].programs[PROGRAM_TRAIN].instr_count; i++)
            if (plan->ranks[r].programs[PROGRAM_TRAIN].instrs[i].flags & FLAG_RECOMPUTE)
                return true;
    return false;
}

static void a_doubtful_table_widens_what_a_plan_says(void **state)
{
    (void)state;
    const struct {
        double factor, spread, waited, uncertainty;
    } cases[] = {
        {1, 0.1, 0.04, 0},    /* A quiet machine. */
        {1, 0.5, 0.04, 0.5},  /* The repeats disagree. */
        {1, 0.1, 0.31, 0.31}, /* Other programs used the cores. */
        {4, 0.1, 0.04, 0.2},  /* The time falls by more than a fifth from the fourth size to the fifth. */
        {1, 7, 0, 1},         /* The uncertainty is at most 1, since seconds are not negative. */
    };
    struct model_config config = fixture_config(4);
    struct workload w = fixture_workload(&config, 40, 8);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct cluster *cluster =
            cluster_of(1ull << 33, 128, cases[i].factor, cases[i].spread, cases[i].waited);
        struct plan_answer *answer = fixture_search(&w, cluster);
        if (cases[i].factor > 1)
            assert_true(answer->uncertainty > cases[i].uncertainty && answer->uncertainty < 0.5);
        else
            assert_true(answer->uncertainty >= 0.999 * cases[i].uncertainty &&
                        answer->uncertainty < 1.001 * cases[i].uncertainty + 1e-9);
        assert_int_equal(strstr(answer->words, "while other work ran there") != NULL, i > 0);
        assert_int_equal(answer->warning_count > 0, i > 0);
        plan_answer_destroy(answer);
        cluster_destroy(cluster);
    }
    workload_fini(&w);
}

/* When small micro-batches were measured beside other work, large ones with recomputation look faster than
 * they are. */
static void noise_does_not_decide_on_recomputation(void **state)
{
    (void)state;
    struct model_config config = fixture_config(8);
    struct workload w = fixture_workload(&config, 40, 8);
    w.sample_tokens = w.prompt_tokens = 0;
    w.micro_batch_rows = 1;
    w.recompute = RECOMPUTE_NO;
    struct cluster *cluster = cluster_of(1ull << 33, 128, 1, 0, 0);
    struct plan_answer *answer = fixture_search(&w, cluster);
    uint64_t memory = answer->plan->ranks[0].memory_bytes + (25 << 20);
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    w.micro_batch_rows = 0;
    w.recompute = RECOMPUTE_AUTO;
    const struct {
        double factor, spread;
        bool recompute;
    } cases[] = {
        {1, 0.1, false},   /* The plan of the undisturbed profile. */
        {1.9, 0.1, true},  /* With the same times from a quiet machine, recomputation pays. */
        {1.9, 0.8, false}, /* The times' uncertainty is larger than the gain. */
        {1.9, 0.21, true}, /* The times' uncertainty is smaller than the gain. */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        cluster = cluster_of(memory, 128, cases[i].factor, cases[i].spread, 0);
        answer = fixture_search(&w, cluster);
        if (recomputes(answer->plan) != cases[i].recompute)
            fail_msg("case %zu: %s", i, answer->words);
        assert_int_equal(strstr(answer->words, "recomputing would save") != NULL,
                         i > 0 && !cases[i].recompute);
        plan_answer_destroy(answer);
        cluster_destroy(cluster);
    }
    /* Where nothing else fits, the plan recomputes whatever the uncertainty. */
    cluster = cluster_of(memory - (27 << 20), 128, 1, 0.8, 0);
    answer = fixture_search(&w, cluster);
    assert_true(answer->plan && recomputes(answer->plan));
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_doubtful_table_widens_what_a_plan_says),
        cmocka_unit_test(noise_does_not_decide_on_recomputation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
