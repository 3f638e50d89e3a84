/* Where nothing fits, the answer names what would; each of it is true, and the next smaller amount is not. */
#include "planner/plan_fixture.h"

#include <math.h>

static struct cluster *card(uint64_t bytes)
{
    struct err err = {0};
    struct cluster *cluster = cluster_create(&err);
    struct cluster_device device = {
        .name = "a/0", .node = "a", .kind = "cuda", .like = "rtx-3060", .memory_limit_bytes = bytes};
    assert_int_equal(cluster_add_device(cluster, &device, &err), 0);
    return cluster;
}

static struct plan_answer *planned(const struct workload *w, const struct cluster *cluster, bool advise)
{
    struct err err = {0};
    struct plan_answer *answer = NULL;
    const struct plan_options options = {.advise = advise};
    if (plan_search((struct workload[]){*w}, cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    return answer;
}

static bool fits(const struct workload *w, uint64_t bytes)
{
    struct cluster *cluster = card(bytes);
    struct plan_answer *answer = planned(w, cluster, false);
    const bool found = answer->plan != NULL;
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    return found;
}

static double number_before(const char *words, const char *what)
{
    const char *at = strstr(words, what);
    if (!at || at == words)
        return 0;
    for (at--; at > words && at[-1] >= '0' && at[-1] <= '9'; at--)
        ;
    return strtod(at, NULL);
}

static void named_would_fit(uint32_t longest, double gib_least)
{
    const uint64_t bytes = (uint64_t)700 << 20;
    struct model_config config = fixture_config(24);
    struct workload w = fixture_workload(&config, 0, 8);
    struct cluster *cluster = card(bytes);
    w.sequence_tokens = longest;
    w.sample_tokens = w.prompt_tokens = 0;
    struct plan_answer *plain = planned(&w, cluster, false), *answer = planned(&w, cluster, true);
    assert_null(answer->plan);
    assert_null(strstr(plain->words, "Would fit"));
    assert_int_equal(strncmp(answer->words, plain->words, strlen(plain->words)), 0);
    print_message("%s\n", answer->words);
    const double tokens = number_before(answer->words, " tokens"),
                 gib = number_before(answer->words, " GiB more on a/0");
    assert_true(tokens >= 2 && gib >= gib_least);
    assert_true(fits(&w, bytes + ((uint64_t)gib << 30)));
    assert_true(gib == 1 || !fits(&w, bytes + (uint64_t)((gib - fmax(1, gib / 8)) * 1073741824)));
    w.sequence_tokens = (uint32_t)tokens;
    assert_true(fits(&w, bytes));
    w.sequence_tokens = (uint32_t)(1.15 * tokens) + longest / 32;
    assert_false(fits(&w, bytes));
    plan_answer_destroy(plain);
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

static void what_is_named_would_fit(void **state)
{
    (void)state;
    named_would_fit(8192, 1);
    named_would_fit(100000, 5);
}

/* Trained in full, the moments are most of the memory. */
static void moments_on_the_host_are_named_where_they_help(void **state)
{
    struct model_config config = fixture_config(12);
    struct workload w = fixture_workload(&config, 40, 4);
    uint64_t least = 100;
    (void)state;
    w.method = METHOD_FULL;
    w.sample_tokens = w.prompt_tokens = 0;
    while (!fits(&w, least << 20))
        least += least / 20;
    struct cluster *cluster = card((least - least / 8) << 20);
    struct plan_answer *answer = planned(&w, cluster, true);
    print_message("%s\n", answer->words);
    assert_null(answer->plan);
    assert_non_null(strstr(answer->words, "moments on the host"));
    assert_null(strstr(answer->words, "nf4"));
    w.moments_on_host = true;
    assert_true(fits(&w, (least - least / 8) << 20));
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_named_would_fit),
        cmocka_unit_test(moments_on_the_host_are_named_where_they_help),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
