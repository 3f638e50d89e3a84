/* Beside a plan, the answer names what else would train faster; each is true of the job that is changed so.
 */
#include "planner/plan_fixture.h"

static struct cluster *cards(void)
{
    struct err err = {0};
    struct cluster *cluster = cluster_create(&err);
    const struct cluster_device device = {
        .name = "a/0", .node = "a", .kind = "cuda", .like = "rtx-3090", .memory_limit_bytes = 24ull << 30};
    struct cluster_device other = device;
    other.name = "a/1";
    assert_int_equal(cluster_add_device(cluster, &device, &err), 0);
    assert_int_equal(cluster_add_device(cluster, &other, &err), 0);
    fixture_link(cluster, "a", "a", 1e-5, 1e10);
    return cluster;
}

static struct plan_answer *planned(const struct workload *w, const struct cluster *cluster, bool gains)
{
    struct err err = {0};
    struct plan_answer *answer = NULL;
    const struct plan_options options = {.gains = gains};
    if (plan_search((struct workload[]){*w}, cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    return answer;
}

/* Returns the gain of that name, or NULL. */
static const struct plan_gain *gain_of(const struct plan_answer *answer, const char *what)
{
    for (uint32_t i = 0; i < answer->gain_count; i++)
        if (strcmp(answer->gains[i].what, what) == 0)
            return &answer->gains[i];
    return NULL;
}

static void what_is_named_would_gain(void **state)
{
    struct model_config config = fixture_config(24);
    struct workload w = fixture_workload(&config, 0, 2);
    struct cluster *cluster = cards();
    (void)state;
    w.sample_tokens = w.prompt_tokens = 0;
    w.place = PLACE_SINGLE;
    struct plan_answer *answer = planned(&w, cluster, true), *plain = planned(&w, cluster, false);
    assert_int_equal(plain->gain_count, 0);
    assert_int_equal(answer->gain_count, ANSWER_GAINS_MAX);
    for (uint32_t i = 0; i < answer->gain_count; i++) {
        struct workload changed = w;
        const struct plan_gain *gain = &answer->gains[i];
        print_message("%s: %.3g tokens/s, without %.3g\n", gain->what, gain->tokens_per_s,
                      answer->tokens_per_s);
        assert_true(gain->tokens_per_s >= 1.1 * answer->tokens_per_s);
        assert_true(i == 0 || gain->tokens_per_s <= answer->gains[i - 1].tokens_per_s);
        changed.base = strstr(gain->what, "nf4") ? BASE_NF4 : w.base;
        changed.batch_rows = strstr(gain->what, "train.batch_rows: 4") ? 4 : w.batch_rows;
        changed.compute_open = strstr(gain->what, "compute: auto") != NULL;
        changed.place = strstr(gain->what, "placement") ? -1 : w.place;
        struct plan_answer *whole = planned(&changed, cluster, false);
        assert_true(whole->tokens_per_s >= 0.999 * gain->tokens_per_s);
        plan_answer_destroy(whole);
    }
    assert_non_null(gain_of(answer, "train.compute: auto"));
    plan_answer_destroy(answer);
    plan_answer_destroy(plain);
    cluster_destroy(cluster);
    workload_fini(&w);
}

/* Eight rows cannot become sixteen a step, and a precision that was chosen is not proposed. */
static void nothing_is_named_that_the_job_cannot_have(void **state)
{
    struct model_config config = fixture_config(12);
    struct workload w = fixture_workload(&config, 8, 8);
    struct cluster *cluster = cards();
    (void)state;
    w.sample_tokens = w.prompt_tokens = 0;
    w.compute_open = true;
    struct plan_answer *answer = planned(&w, cluster, true);
    assert_non_null(answer->plan);
    assert_null(gain_of(answer, "train.batch_rows: 16"));
    assert_null(gain_of(answer, "train.compute: auto"));
    assert_null(gain_of(answer, "placement.kind: auto"));
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_named_would_gain),
        cmocka_unit_test(nothing_is_named_that_the_job_cannot_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
