/* Tests the oracle's enumerators against themselves: their bounds never cut the best candidate, and they
 * enumerate everything that the planner may choose. The clusters are so small that every candidate can be
 * simulated. MOTLEY_LONG runs 60 clusters. */
#include "planner/oracle_scene.h"

#define LIKE 1e-9
#define GRID                                                                                                 \
    0.01 /* The largest loss by choosing shares and columns on a grid; for hybrids, by not trying deeper     \
            rings between stages. */

struct checked {
    uint32_t compared, covered, failed;
    double worst;
};

static bool continuous(const struct scene *s, const struct oracle_walk *walk)
{
    bool full = s->workload.method == METHOD_FULL;
    return walk->kind == PLACE_TENSOR || walk->kind == PLACE_HYBRID || walk->kind == PLACE_EXPERT ||
           (walk->kind == PLACE_DATA && full) || (walk->kind == PLACE_DATA && s->workload.config->experts);
}

/* Runs one walk over one cluster three times: without bounds, with bounds and no known step time, and with
 * the planner's step time as the bound. */
static void walk_check(struct scene *s, const struct problem *p, const struct oracle_walk *walk,
                       uint64_t seed, struct checked *sum)
{
    static struct oracle all, pruned, warm;
    const uint64_t most = getenv("MOTLEY_LONG") ? 150000 : 40000;
    oracle_init(&all, p, s->uniform, INFINITY, most);
    all.unpruned = true;
    walk->run(&all);
    if (exhausted(&all))
        return;
    oracle_init(&pruned, p, s->uniform, INFINITY, most);
    walk->run(&pruned);
    if (fabs(all.best - pruned.best) > LIKE * all.best) {
        candidate_print(&all.found);
        print_message("seed %llu %s: bounds lose the best, %.9g s, and find %.9g s\n",
                      (unsigned long long)seed, walk->name, all.best, pruned.best);
        sum->failed++;
    }
    sum->compared++;
    double ours = planned(s, (int)walk->kind, seed);
    oracle_init(&warm, p, s->uniform, ours, most);
    walk->run(&warm);
    double expected = fmin(ours, all.best);
    if (expected < INFINITY && fabs(warm.best - expected) > LIKE * expected) {
        print_message("seed %llu %s: from %.9g s bounds find %.9g s, not %.9g s\n", (unsigned long long)seed,
                      walk->name, ours, warm.best, expected);
        sum->failed++;
    }
    if (ours < INFINITY && all.best < INFINITY) {
        sum->covered++;
        sum->worst = fmax(sum->worst, all.best / ours);
    }
    if (walk->kind != PLACE_PIPELINE && all.best > ours * (1 + (continuous(s, walk) ? GRID : LIKE))) {
        print_message("seed %llu %s: the planner finds %.9g s, looking at everything %.9g s\n",
                      (unsigned long long)seed, walk->name, ours, all.best);
        candidate_print(&all.found);
        sum->failed++;
    }
}

static void bounds_lose_nothing_and_walks_cover_what_the_planner_finds(void **state)
{
    (void)state;
    struct checked sums[ORACLE_WALKS] = {0};
    const char *only = getenv("MOTLEY_ONLY");
    uint64_t count = getenv("MOTLEY_LONG") ? 60 : 6;
    for (uint64_t seed = 1; seed <= count; seed++) {
        struct scene s;
        struct problem problem;
        struct err err = {0};
        scene_init(&s, seed, true);
        assert_int_equal(problem_init(&problem, &s.workload, s.cluster, &err), 0);
        for (size_t i = 0; i < ORACLE_WALKS; i++)
            if (!only || strcmp(only, oracle_walks[i].name) == 0)
                walk_check(&s, &problem, &oracle_walks[i], seed, &sums[i]);
        problem_fini(&problem);
        scene_fini(&s);
    }
    for (size_t i = 0; i < ORACLE_WALKS; i++)
        print_message(
            "%-11s %2u clusters without bounds and with; %2u planned, at most %.4f of the planner's\n",
            oracle_walks[i].name, sums[i].compared, sums[i].covered, sums[i].worst);
    for (size_t i = 0; i < ORACLE_WALKS && !only; i++)
        assert_true(sums[i].compared > 0 && sums[i].failed == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_lose_nothing_and_walks_cover_what_the_planner_finds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
