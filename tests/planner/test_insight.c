/* Tests the answer's explanations: what bounds the step, what would help, what is left out, and which figures
 * are estimates. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/answer/insight.h"
#include "planner/given/cluster_change.h"
#include "planner/given/cluster_private.h"
#include "replay/jitter.h"
#include "show/print.h"

static struct plan_answer *search(const struct workload *w, const struct cluster *cluster, bool insight)
{
    struct err err = {0};
    struct plan_answer *answer = NULL;
    struct plan_options options = {.programs = true, .insight = insight};
    if (plan_search((struct workload[]){*w}, cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    return answer;
}

static struct cluster *pair_of(uint64_t memory_a, uint64_t memory_b, double latency_s, double rate)
{
    struct err err;
    struct cluster *cluster = cluster_create(&err);
    fixture_device(cluster, "left/0", "left", memory_a, 1);
    fixture_device(cluster, "right/0", "right", memory_b, 0.8);
    fixture_link(cluster, "left", "right", latency_s, rate);
    return cluster;
}

static const struct plan_improvement *line_of(const struct plan_insight *in, enum insight_kind kind,
                                              const char *what)
{
    for (uint32_t i = 0; i < in->improvement_count; i++)
        if (in->improvements[i].kind == kind && strcmp(in->improvements[i].what, what) == 0)
            return &in->improvements[i];
    return NULL;
}

static void nothing_is_told_that_was_not_asked(void **state)
{
    (void)state;
    struct model_config config = fixture_config(8);
    struct workload w = fixture_workload(&config, 60, 8);
    struct cluster *cluster = pair_of((uint64_t)1 << 30, (uint64_t)1 << 30, 1e-3, 1e8);
    struct plan_answer *answer = search(&w, cluster, false);
    assert_null(answer->insight);
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

static void shares_make_up_the_step(void **state)
{
    (void)state;
    struct model_config config = fixture_config(16);
    struct workload w = fixture_workload(&config, 60, 8);
    struct cluster *cluster = pair_of((uint64_t)450 << 20, (uint64_t)450 << 20, 1e-3, 2e6);
    struct plan_answer *answer = search(&w, cluster, true);
    const struct plan_insight *in = answer->insight;
    double share = 0;
    assert_non_null(in);
    for (uint32_t i = 0; i < in->share_count; i++) {
        share += in->shares[i].share;
        assert_true(i == 0 || in->shares[i].seconds <= in->shares[i - 1].seconds);
    }
    assert_true(fabs(share - 1) < 1e-9);
    assert_int_equal(in->rank_count, answer->plan->rank_count);
    for (uint32_t r = 0; r < in->rank_count; r++) {
        const struct plan_rank_time *t = &in->ranks[r];
        assert_true(fabs(t->compute_s + t->wait_s + t->idle_s - in->step_s) < 1e-9);
        assert_true(t->memory_peak_bytes <= 1.0001 * (double)answer->plan->ranks[r].memory_bytes);
        assert_true(t->memory_peak_bytes >= 0.3 * (double)answer->plan->ranks[r].memory_bytes);
    }
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

static void improvements_are_what_a_better_cluster_gives(void **state)
{
    (void)state;
    double worst = 1;
    for (int slow = 0; slow < 2; slow++) {
        struct err err;
        struct model_config config = fixture_config(16);
        struct workload w = fixture_workload(&config, 60, 8);
        struct cluster *cluster =
            pair_of((uint64_t)450 << 20, (uint64_t)450 << 20, slow ? 1e-2 : 1e-3, slow ? 5e5 : 1e9);
        struct plan_answer *answer = search(&w, cluster, true);
        const struct plan_insight *in = answer->insight;
        assert_non_null(in);
        for (uint32_t i = 0; i < in->improvement_count; i++) {
            const struct plan_improvement *line = &in->improvements[i];
            assert_true(line->saves >= 0 && line->saves < 1);
            assert_true(i == 0 || line->saves <= in->improvements[i - 1].saves);
            assert_true(fabs(line->saves - (1 - line->step_s / answer->step_s)) < 1e-9);
        }
        const struct plan_improvement *link = line_of(in, INSIGHT_LINK, "left-right");
        const struct plan_improvement *speed = line_of(in, INSIGHT_SPEED, "left/0");
        assert_non_null(link);
        assert_non_null(speed);
        assert_non_null(line_of(in, INSIGHT_DEVICE, "right/0"));
        assert_non_null(line_of(in, INSIGHT_MEMORY, "right/0"));
        /* Only a slow link bounds the step. */
        assert_true(slow ? link->saves > 0.1 : link->saves < 0.05);
        struct cluster *better = cluster_copy(cluster, NULL, &err);
        assert_int_equal(cluster_speed_link(better, 0, 1, 10, &err), 0);
        struct plan_answer *found = search(&w, better, false);
        worst = fmax(worst, link->step_s / found->step_s);
        plan_answer_destroy(found);
        cluster_destroy(better);
        better = cluster_copy(cluster, NULL, &err);
        better->devices[0].speed *= 2;
        found = search(&w, better, false);
        worst = fmax(worst, speed->step_s / found->step_s);
        plan_answer_destroy(found);
        cluster_destroy(better);
        plan_answer_destroy(answer);
        cluster_destroy(cluster);
        workload_fini(&w);
    }
    printf("worst improvement over a full search on the better cluster: %.4f\n", worst);
    assert_true(worst < 1.05); /* Each improvement is searched with only a part of the full budget. */
}

static void memory_that_lacks_is_worth_something(void **state)
{
    (void)state;
    struct model_config config = fixture_config(16);
    struct workload w = fixture_workload(&config, 60, 8);
    struct cluster *cluster = NULL;
    struct plan_answer *answer = NULL;
    w.place = PLACE_SINGLE;
    /* The least memory that has a plan, in steps of 10 MiB: with it most blocks are recomputed. */
    bool fits = true;
    for (uint64_t mib = 600; mib > 250 && fits; mib -= 10) {
        struct err why;
        struct cluster *less = cluster_create(&why);
        fixture_device(less, "a/0", "a", mib << 20, 1);
        struct plan_answer *found = search(&w, less, true);
        fits = found->plan != NULL;
        plan_answer_destroy(fits ? answer : found);
        cluster_destroy(fits ? cluster : less);
        answer = fits ? found : answer;
        cluster = fits ? less : cluster;
    }
    assert_non_null(answer);
    assert_true(!fits && answer->plan->ranks[0].recompute);
    const struct plan_improvement *more = line_of(answer->insight, INSIGHT_MEMORY, "a/0");
    assert_non_null(more);
    assert_true(more->saves > 0.1);
    assert_non_null(strstr(answer->insight->words, "1 GB more on a/0 saves"));
    struct err err;
    json_t *json = answer_to_json(answer, &err);
    assert_true(json_array_size(json_object_get(json, "improvements")) == answer->insight->improvement_count);
    assert_non_null(json_object_get(json_object_get(json, "insight"), "critical_path"));
    struct buf text = {.limit = 1 << 20};
    assert_int_equal(answer_print_document(json, &text, &err), 0);
    assert_non_null(strstr((const char *)text.data, "what would help"));
    buf_fini(&text);
    json_decref(json);
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

/* The answer has a line for every usable device that its plan leaves out. The line says how long a step would
 * take with that device, which is no less than the answer's own step. */
static void what_is_left_out_was_tried(void **state)
{
    (void)state;
    uint32_t lines = 0, known = 0;
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct err err;
        struct rand_stream r;
        rand_stream_init(&r, 41, seed);
        struct model_config config = fixture_config(6);
        struct workload w = fixture_workload(&config, 60, 8);
        struct cluster *cluster = cluster_create(&err);
        uint32_t count = 3 + rand_stream_below(&r, 2);
        for (uint32_t d = 0; d < count; d++) {
            char name[24], node[16];
            snprintf(node, sizeof(node), "n%u", d);
            snprintf(name, sizeof(name), "n%u/0", d);
            fixture_device(cluster, name, node, (uint64_t)1 << 30,
                           d == 0 ? 0.02 : 0.5 + rand_stream_unit(&r));
        }
        assert_int_equal(cluster_set_defaults(cluster, 1e-5, 1e9, 1e-2, 1e6, &err), 0);
        struct plan_answer *answer = search(&w, cluster, false);
        assert_non_null(answer->plan);
        assert_int_equal(answer->plan->rank_count + answer->left_out_count, count);
        for (uint32_t i = 0; i < answer->left_out_count; i++) {
            const struct plan_left_out *line = &answer->left_out[i];
            lines++;
            known += line->step_s_with > 0;
            assert_true(line->step_s_with == 0 || line->step_s_with >= answer->step_s * (1 - 1e-9));
            if (i < 2 && line->step_s_with > 0)
                assert_non_null(strstr(answer->words, line->device));
        }
        plan_answer_destroy(answer);
        cluster_destroy(cluster);
        workload_fini(&w);
    }
    printf("%u of %u devices left out have a time with them\n", known, lines);
    assert_true(lines >= 6 && known == lines);
}

static void times_say_what_they_rest_on(void **state)
{
    (void)state;
    struct err err;
    struct model_config config = fixture_config(12);
    struct workload w = fixture_workload(&config, 60, 8);
    w.place = PLACE_PIPELINE;
    /* All figures are measured. */
    struct cluster *cluster = pair_of((uint64_t)450 << 20, (uint64_t)450 << 20, 1e-3, 2e7);
    struct plan_answer *answer = search(&w, cluster, false);
    assert_true(answer->plan->costs.share_measured > 1 - 1e-9);
    assert_true(answer->uncertainty == 0);
    assert_null(strstr(answer->words, "±"));
    assert_false(answer->plan->costs.links_emulated);
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    /* The devices are measured, but no link between them is given. */
    cluster = cluster_create(&err);
    fixture_device(cluster, "left/0", "left", (uint64_t)450 << 20, 1);
    fixture_device(cluster, "right/0", "right", (uint64_t)450 << 20, 1);
    answer = search(&w, cluster, false);
    const struct plan_costs *c = &answer->plan->costs;
    assert_true(fabs(c->share_measured + c->share_imported + c->share_estimated - 1) < 1e-9);
    assert_true(c->share_estimated > 0 && c->share_estimated < 0.5);
    assert_true(answer->uncertainty > 0);
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    /* One device is known by its data sheet only, so most of the step's time is estimated, and the answer's
     * first line says so. */
    cluster = cluster_create(&err);
    fixture_device(cluster, "left/0", "left", (uint64_t)450 << 20, 1);
    struct cluster_device guess = {
        .name = "right/0", .node = "right", .kind = "cpu", .memory_limit_bytes = (uint64_t)450 << 20};
    assert_int_equal(cluster_add_device(cluster, &guess, &err), 0);
    json_t *link = json_pack("{s:s,s:s,s:f,s:f,s:b}", "from", "left", "to", "right", "latency_s", 1e-3,
                             "bytes_per_s", 1e8, "emulated", 1);
    assert_int_equal(cluster_add_link(cluster, link, &err), 0);
    json_decref(link);
    answer = search(&w, cluster, false);
    c = &answer->plan->costs;
    assert_true(fabs(c->share_measured + c->share_imported + c->share_estimated - 1) < 1e-9);
    assert_true(c->share_estimated > 0 && c->share_measured > 0);
    assert_true(c->links_emulated);
    assert_non_null(strstr(answer->words, "±"));
    assert_non_null(strstr(answer->words, "estimated, not measured"));
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

/* The device's current heat factor counts relative to the one at its profile. A device that was throttled
 * equally when it was profiled is not slowed twice, and one that has cooled since is faster than its profile.
 */
static void a_hot_device_takes_longer_by_its_factor(void **state)
{
    (void)state;
    struct err err;
    struct model_config config = fixture_config(6);
    struct workload w = fixture_workload(&config, 60, 8);
    static const double now[] = {1, 0.8, 0.8, 1}, measured[] = {1, 1, 0.8, 0.8};
    double seconds[4];
    for (int hot = 0; hot < 4; hot++) {
        struct cluster *cluster = cluster_create(&err);
        fixture_device(cluster, "a/0", "a", (uint64_t)1 << 31, 1);
        cluster->devices[0].heat = now[hot];
        cluster->devices[0].profile.heat = measured[hot];
        struct plan_answer *answer = search(&w, cluster, false);
        seconds[hot] = answer->step_s;
        plan_answer_destroy(answer);
        cluster_destroy(cluster);
    }
    assert_true(fabs(seconds[1] * 0.8 / seconds[0] - 1) < 1e-9);
    assert_true(fabs(seconds[2] / seconds[0] - 1) < 1e-9);
    assert_true(fabs(seconds[3] / 0.8 / seconds[0] - 1) < 1e-9);
    workload_fini(&w);
}

static void jitter_spreads_a_step_and_repeats_itself(void **state)
{
    (void)state;
    struct err err = {0};
    struct model_config config = fixture_config(16);
    struct workload w = fixture_workload(&config, 60, 8);
    struct cluster *cluster = pair_of((uint64_t)450 << 20, (uint64_t)450 << 20, 1e-3, 1e8);
    struct plan_spread none, some, again, more;
    w.place = PLACE_PIPELINE;
    struct plan_answer *answer = search(&w, cluster, false);
    assert_int_equal(plan_jitter(answer->plan, &w, cluster, 0, 1, 20, &none, &err), 0);
    assert_true(none.low_s == none.still_s && none.high_s == none.still_s);
    assert_int_equal(plan_jitter(answer->plan, &w, cluster, 0.1, 1, 200, &some, &err), 0);
    assert_int_equal(plan_jitter(answer->plan, &w, cluster, 0.1, 1, 200, &again, &err), 0);
    assert_int_equal(plan_jitter(answer->plan, &w, cluster, 0.4, 1, 200, &more, &err), 0);
    assert_true(some.mean_s == again.mean_s && some.high_s == again.high_s);
    assert_true(some.low_s < some.median_s && some.median_s < some.high_s);
    assert_true(more.high_s - more.low_s > 2 * (some.high_s - some.low_s));
    assert_true(more.mean_s > some.mean_s && some.mean_s > 0.99 * some.still_s);
    assert_int_equal(plan_jitter(answer->plan, &w, cluster, -1, 1, 10, &none, &err), -1);
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_told_that_was_not_asked),
        cmocka_unit_test(shares_make_up_the_step),
        cmocka_unit_test(improvements_are_what_a_better_cluster_gives),
        cmocka_unit_test(memory_that_lacks_is_worth_something),
        cmocka_unit_test(what_is_left_out_was_tried),
        cmocka_unit_test(times_say_what_they_rest_on),
        cmocka_unit_test(a_hot_device_takes_longer_by_its_factor),
        cmocka_unit_test(jitter_spreads_a_step_and_repeats_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
