/* Pipelines, contiguous and interleaved, and replicas searched to the end (`exact` in
 * planner/search/placement.h), from no plan at all, against looking at everything (oracle.h): branch and
 * bound alone, without the rest of the search.
 *
 * MOTLEY_LONG: 300 clusters; MOTLEY_SEED: where they start. */
#include "planner/oracle_scene.h"

#include "planner/pipeline/lap_exact.h"
#include "planner/pipeline/pipe_exact.h"
#include "planner/sharded/replica_exact.h"

#define SAME 1e-9
#define LOOKS 400000u
#define BUDGET 100000000u

struct compared {
    uint32_t both, neither, unfinished, failed;
};

static void compare(const char *name, uint64_t seed, const struct oracle *o, int found, double seconds,
                    struct compared *sum)
{
    double ours = found > 0 ? seconds : INFINITY;
    assert_true(found >= 0);
    if (exhausted(o)) {
        sum->unfinished++;
        return;
    }
    sum->both += o->best < INFINITY;
    sum->neither += isinf(o->best) && isinf(ours);
    if (isinf(o->best) ? !isinf(ours) : !(fabs(ours / o->best - 1) <= SAME)) {
        print_message("seed %llu: %s %.9g s, looking at everything %.9g s\n", (unsigned long long)seed, name,
                      ours, o->best);
        choice_print(&o->found);
        sum->failed++;
    }
}

static void replicas_run(struct oracle *o)
{
    choice_start(o, PLACE_DATA);
    if (!full_of(o->p))
        replica_add(o, 0);
}

static void cluster_compare(uint64_t seed, bool tiny, struct compared *pipelines, struct compared *around,
                            struct compared *replicas)
{
    static struct oracle o;
    struct scene s;
    struct problem problem;
    struct place_choice choice;
    struct err err = {0};
    double seconds = 0;
    bool whole = false;
    scene_init(&s, seed, tiny);
    assert_int_equal(problem_init(&problem, &s.workload, s.cluster, &err), 0);
    oracle_init(&o, &problem, s.uniform, INFINITY, LOOKS);
    pipeline_run(&o);
    int found =
        pipe_exact(&problem, INFINITY, WORKLOAD_SAMPLE_STEPS, BUDGET, &choice, &seconds, &whole, &err);
    assert_true(whole);
    compare("pipeline", seed, &o, found, seconds, pipelines);
    choice_fini(&choice);
    oracle_init(&o, &problem, s.uniform, INFINITY, LOOKS);
    interleaved_run(&o);
    found = lap_exact(&problem, INFINITY, WORKLOAD_SAMPLE_STEPS, BUDGET, &choice, &seconds, &whole, &err);
    assert_true(whole);
    compare("interleaved", seed, &o, found, seconds, around);
    choice_fini(&choice);
    oracle_init(&o, &problem, s.uniform, INFINITY, LOOKS);
    replicas_run(&o);
    found = replica_exact(&problem, INFINITY, WORKLOAD_SAMPLE_STEPS, BUDGET, &choice, &seconds, &err);
    compare("replicas", seed, &o, found, seconds, replicas);
    choice_fini(&choice);
    problem_fini(&problem);
    scene_fini(&s);
}

static void compared_print(const char *name, const struct compared *sum)
{
    print_message("%s: %u the best, %u do not fit, %u not looked at to the end\n", name, sum->both,
                  sum->neither, sum->unfinished);
}

static void branch_and_bound_finds_the_best_pipelines_and_the_best_replicas(void **state)
{
    (void)state;
    struct compared pipelines = {0}, around = {0}, replicas = {0};
    bool all = getenv("MOTLEY_LONG") != NULL;
    const char *text = getenv("MOTLEY_SEED");
    uint64_t first = text ? strtoull(text, NULL, 10) : 1, tiny = all ? 300 : 40, large = all ? 60 : 3;
    for (uint64_t seed = first; seed < first + tiny; seed++)
        cluster_compare(seed, true, &pipelines, &around, &replicas);
    for (uint64_t seed = first; seed < first + large; seed++)
        cluster_compare(seed, false, &pipelines, &around, &replicas);
    compared_print("pipelines", &pipelines);
    compared_print("interleaved", &around);
    compared_print("replicas", &replicas);
    assert_true(pipelines.failed == 0 && around.failed == 0 && replicas.failed == 0);
    assert_true(pipelines.both > 0 && around.both > 0 && replicas.both > 0);
}

/* What is known already is not found again, and a budget of nothing finds nothing. */
static void nothing_slower_than_what_is_known_is_answered(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed < 20; seed++) {
        struct scene s;
        struct problem problem;
        struct place_choice choice;
        struct err err = {0};
        double best = 0, again = 0;
        bool whole = true;
        scene_init(&s, seed, true);
        assert_int_equal(problem_init(&problem, &s.workload, s.cluster, &err), 0);
        if (pipe_exact(&problem, INFINITY, 4, BUDGET, &choice, &best, NULL, &err) > 0) {
            choice_fini(&choice);
            assert_int_equal(pipe_exact(&problem, best, 4, BUDGET, &choice, &again, NULL, &err), 0);
            assert_int_equal(pipe_exact(&problem, INFINITY, 4, 0, &choice, &again, &whole, &err), 0);
            assert_false(whole);
        }
        if (lap_exact(&problem, INFINITY, 4, BUDGET, &choice, &best, NULL, &err) > 0) {
            choice_fini(&choice);
            assert_int_equal(lap_exact(&problem, best, 4, BUDGET, &choice, &again, NULL, &err), 0);
            assert_int_equal(lap_exact(&problem, INFINITY, 4, 0, &choice, &again, &whole, &err), 0);
            assert_false(whole);
        }
        if (replica_exact(&problem, INFINITY, 4, BUDGET, &choice, &best, &err) > 0) {
            choice_fini(&choice);
            assert_int_equal(replica_exact(&problem, best, 4, BUDGET, &choice, &again, &err), 0);
        }
        problem_fini(&problem);
        scene_fini(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(branch_and_bound_finds_the_best_pipelines_and_the_best_replicas),
        cmocka_unit_test(nothing_slower_than_what_is_known_is_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
