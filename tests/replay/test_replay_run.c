/* Tests the replay of recorded runs, with their own times and with changed ones. The simulator makes the
 * runs, with gaps, eager sends and clock skews added as real runs have them. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "replay/replay.h"

static void assert_near(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance))
        fail_msg("%.9g is not %.9g within %.3g", value, expected, tolerance);
}

struct world {
    struct model_config config;
    struct workload workload;
    struct plan_answer *answer;
    struct trace trace; /* one simulated step */
    double step_s;
};

static struct cluster *cluster_of(double left, double right, double latency_s, double bytes_per_s)
{
    struct err err;
    struct cluster *cluster = cluster_create(&err);
    fixture_device(cluster, "left/cpu0", "left", (uint64_t)1 << 30, left);
    fixture_device(cluster, "right/cpu0", "right", (uint64_t)1 << 30, right);
    fixture_link(cluster, "left", "right", latency_s, bytes_per_s);
    return cluster;
}

static void world_init(struct world *w, int place, double latency_s, double bytes_per_s)
{
    struct err err = {0};
    w->config = fixture_config(6);
    w->workload = fixture_workload(&w->config, 64, 8);
    w->workload.place = place;
    w->workload.micro_batch_rows = 1;
    for (uint32_t i = 0; i < w->workload.row_count;
         i++) /* with equal rows every step takes the mean step's time */
        w->workload.rows[i] = (struct workload_row){60, 30};
    struct cluster *cluster = cluster_of(2, 1, latency_s, bytes_per_s);
    const struct plan_options options = {.programs = true};
    assert_int_equal(plan_search(&w->workload, cluster, &options, &w->answer, &err), 0);
    assert_non_null(w->answer->plan);
    trace_init(&w->trace, 0);
    if (plan_simulate(w->answer->plan, &w->workload, cluster, &w->trace, &w->step_s, &err) < 0)
        fail_msg("%s", err.text);
    cluster_destroy(cluster);
}

static void world_fini(struct world *w)
{
    plan_answer_destroy(w->answer);
    workload_fini(&w->workload);
    trace_fini(&w->trace);
}

/* Returns the simulated seconds of the same plan on other devices or links. */
static double simulated_on(const struct world *w, double left, double right, double latency_s,
                           double bytes_per_s)
{
    struct err err = {0};
    double step_s = 0;
    struct cluster *cluster = cluster_of(left, right, latency_s, bytes_per_s);
    if (plan_simulate(w->answer->plan, &w->workload, cluster, NULL, &step_s, &err) < 0)
        fail_msg("%s", err.text);
    cluster_destroy(cluster);
    return step_s;
}

static struct replay_answer replayed(const struct world *w, const json_t *links,
                                     const struct replay_change *change)
{
    struct err err = {0};
    struct replay_answer answer = {0};
    if (replay_run(w->answer->plan, &w->trace, NULL, links, change, &answer, NULL, &err) < 0)
        fail_msg("%s", err.text);
    return answer;
}

static const int places[] = {PLACE_SINGLE, PLACE_PIPELINE, PLACE_DATA};

static void a_run_is_reproduced_from_its_own_times(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        struct world w;
        world_init(&w, places[i], 1e-3, 1e7);
        struct replay_answer answer = replayed(&w, NULL, NULL);
        assert_int_equal(answer.steps, 1);
        assert_near(answer.simulated_s, answer.recorded_s, 1e-6 * answer.recorded_s);
        world_fini(&w);
    }
}

/* Instructions begin late on both ranks, as they do on a busy machine. The step takes longer, and the replay
 * predicts the longer time. */
static void gaps_between_instructions_are_kept(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, PLACE_PIPELINE, 1e-3, 1e7);
    double before = replayed(&w, NULL, NULL).recorded_s;
    /* Begin times are stretched threefold, and durations stay as they are. */
    for (uint32_t i = 0; i < w.trace.count; i++) {
        struct trace_event *e = &w.trace.events[i];
        int64_t length = e->end_ns - e->begin_ns;
        e->end_ns *= 3;
        e->begin_ns = e->end_ns - length;
    }
    struct replay_answer answer = replayed(&w, NULL, NULL);
    assert_true(answer.recorded_s > 2 * before);
    assert_true(answer.gaps_s > 0);
    assert_near(answer.simulated_s, answer.recorded_s, 0.001 * answer.recorded_s);
    world_fini(&w);
}

static void ranks_that_begin_late_are_kept(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, PLACE_PIPELINE, 1e-3, 1e7);
    int64_t late = (int64_t)(0.2 * w.step_s * 1e9);
    /* All instructions begin later, except those that the second rank waits for. */
    for (uint32_t i = 0; i < w.trace.count; i++) {
        struct trace_event *e = &w.trace.events[i];
        e->end_ns += late;
        if (e->rank == 0 || e->begin_ns > 0)
            e->begin_ns += late;
    }
    struct replay_answer answer = replayed(&w, NULL, NULL);
    assert_near(answer.simulated_s, answer.recorded_s, 1e-6 * answer.recorded_s);
    world_fini(&w);
}

/* The clocks of two machines differ, which must not change the result. */
static void clocks_that_differ_do_no_harm(void **state)
{
    (void)state;
    for (size_t i = 1; i < sizeof(places) / sizeof(places[0]); i++) {
        for (int k = -1; k <= 1; k += 2) {
            struct world w;
            world_init(&w, places[i], 1e-3, 1e7);
            for (uint32_t e = 0; e < w.trace.count; e++) {
                int64_t apart = w.trace.events[e].rank == 1 ? k * 50000000 : 0;
                w.trace.events[e].begin_ns += apart;
                w.trace.events[e].end_ns += apart;
            }
            struct replay_answer answer = replayed(&w, NULL, NULL);
            assert_near(answer.simulated_s, answer.recorded_s, 1e-6 * answer.recorded_s);
            double speeds[2] = {0.5, 0.5}; /* without links, half the speed doubles the time */
            const struct replay_change change = {.device_speed = speeds};
            double slow = replayed(&w, NULL, &change).changed_s;
            assert_true(slow > 1.4 * answer.recorded_s && slow < 2.1 * answer.recorded_s);
            world_fini(&w);
        }
    }
}

static void a_faster_device_is_what_the_simulator_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        struct world w;
        world_init(&w, places[i], 1e-4, 1e8);
        for (int slow = 0; slow < 2; slow++) {
            double left = slow ? 0.5 : 3, speeds[2];
            for (uint32_t r = 0; r < w.answer->plan->rank_count; r++)
                speeds[r] = strcmp(w.answer->plan->ranks[r].device, "left/cpu0") == 0 ? left : 1;
            const struct replay_change change = {.device_speed = speeds};
            double expected = simulated_on(&w, 2 * left, 1, 1e-4, 1e8);
            assert_near(replayed(&w, NULL, &change).changed_s, expected, 0.01 * expected);
        }
        world_fini(&w);
    }
}

/* The replay agrees with the simulator within 3 %: the simulator's transfers wait for both sides, recorded
 * ones for neither. */
static void another_link_is_what_the_simulator_says(void **state)
{
    struct world w;
    struct {
        double latency_s, bytes_per_s;
    } links[] = {{1e-3, 1e7}, {5e-3, 1e7}, {1e-4, 2e6}, {1e-5, 1e9}};
    (void)state;
    world_init(&w, PLACE_PIPELINE, 1e-3, 1e7);
    json_t *were = json_pack("[{s:s,s:s,s:f,s:f}]", "from", "left", "to", "right", "latency_s", 1e-3,
                             "bytes_per_s", 1e7);
    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
        struct replay_change change = {.link_count = 1};
        change.links[0].from = "right";
        change.links[0].to = "left";
        change.links[0].latency_s = links[i].latency_s;
        change.links[0].bytes_per_s = links[i].bytes_per_s;
        double expected = simulated_on(&w, 2, 1, links[i].latency_s, links[i].bytes_per_s);
        assert_near(replayed(&w, were, &change).changed_s, expected, 0.03 * expected);
    }
    json_decref(were);
    world_fini(&w);
}

/* Two replicas all-reduce their gradients by a message each way. The rank whose step is measured does not
 * wait for the last message, but the other rank does, and begins its next step that much later. */
static void a_farther_link_delays_collectives_by_their_messages(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, PLACE_DATA, 1e-3, 1e7);
    json_t *were = json_pack("[{s:s,s:s,s:f,s:f}]", "from", "left", "to", "right", "latency_s", 1e-3,
                             "bytes_per_s", 1e7);
    struct replay_change change = {.link_count = 1};
    change.links[0].from = "left";
    change.links[0].to = "right";
    change.links[0].bytes_per_s = 1e7;
    change.links[0].latency_s = 0.5 + 1e-3;
    double before = replayed(&w, were, NULL).simulated_s, after = replayed(&w, were, &change).changed_s;
    change.links[0].latency_s = 1e-3;
    assert_near(replayed(&w, were, &change).changed_s, before, 1e-6 * before);
    assert_true(after - before > 2 * 0.5 - 0.1 * before);
    assert_true(after - before < 6 * 0.5);
    json_decref(were);
    world_fini(&w);
}

static void measured_seconds_win_over_traced_ones(void **state)
{
    struct world w;
    struct err err = {0};
    struct replay_answer answer = {0};
    (void)state;
    world_init(&w, PLACE_PIPELINE, 1e-3, 1e7);
    double traced = replayed(&w, NULL, NULL).recorded_s;
    json_t *metrics = json_pack("[{s:i,s:f,s:i,s:i}]", "step", (int)w.trace.events[0].step, "seconds",
                                traced + 0.01, "tokens", 480, "rows", 8);
    assert_int_equal(replay_run(w.answer->plan, &w.trace, metrics, NULL, NULL, &answer, NULL, &err), 0);
    assert_near(answer.recorded_s, traced + 0.01, 1e-9);
    assert_near(answer.outside_s, 0.01, 1e-6);
    assert_near(answer.simulated_s, traced + 0.01, 1e-6);
    json_decref(metrics);
    world_fini(&w);
}

static void what_cannot_be_replayed_is_said(void **state)
{
    struct world w;
    struct err err = {0};
    struct replay_answer answer = {0};
    (void)state;
    world_init(&w, PLACE_PIPELINE, 1e-3, 1e7);
    struct replay_change change = {.link_count = 1};
    change.links[0].from = "left";
    change.links[0].to = "left";
    change.links[0].bytes_per_s = 1e9;
    assert_int_equal(replay_run(w.answer->plan, &w.trace, NULL, NULL, &change, &answer, NULL, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    assert_non_null(strstr(err.text, "left:left"));
    w.trace.count--; /* the last instruction was not recorded */
    assert_int_equal(replay_run(w.answer->plan, &w.trace, NULL, NULL, NULL, &answer, NULL, &err), -1);
    assert_non_null(strstr(err.text, "no complete step"));
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_is_reproduced_from_its_own_times),
        cmocka_unit_test(gaps_between_instructions_are_kept),
        cmocka_unit_test(ranks_that_begin_late_are_kept),
        cmocka_unit_test(clocks_that_differ_do_no_harm),
        cmocka_unit_test(a_faster_device_is_what_the_simulator_says),
        cmocka_unit_test(another_link_is_what_the_simulator_says),
        cmocka_unit_test(a_farther_link_delays_collectives_by_their_messages),
        cmocka_unit_test(measured_seconds_win_over_traced_ones),
        cmocka_unit_test(what_cannot_be_replayed_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
