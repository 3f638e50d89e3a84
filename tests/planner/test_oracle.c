/* Compares the search with the optimum found by exhaustive enumeration (oracle.h, oracle_scene.h).
 * Environment: MOTLEY_LONG runs 500 clusters; MOTLEY_SEED is the first seed and MOTLEY_CASES their number;
 * MOTLEY_ONLY names one walk, or `all` for the planner's answer alone; MOTLEY_LOOKS limits a walk's
 * simulations (a case that reaches it counts as unfinished, and its ratio is against the best found until
 * then); MOTLEY_TABLE prints a line a case, and MOTLEY_SHOW the planner's answers. */
#include "planner/oracle_scene.h"

#include <time.h>

#define LOOKS_QUICK 4000u
#define LOOKS_LONG 60000u
#define SAME 1e-9

struct tally {
    uint32_t cases, unfinished, above,
        missed; /* above: ratios over 1 + SAME; missed: cases for which the planner found nothing that fits */
    double sum, worst;
    uint64_t worst_seed, simulated;
    double cpu_s;
};

static void tally_add(struct tally *t, double ours, double best, uint64_t seed)
{
    double ratio = ours / best;
    if (isinf(ours)) {
        t->missed++;
        return;
    }
    t->cases++;
    t->sum += ratio;
    t->above += ratio > 1 + SAME;
    if (ratio > t->worst) {
        t->worst = ratio;
        t->worst_seed = seed;
    }
}

static void tally_print(const char *name, const struct tally *t)
{
    print_message(
        "%-11s %3u clusters: mean ratio %.5f, worst %.5f (seed %llu), %u not the best, %u said not to "
        "fit; %llu simulated in %.0f s, %u not to the end\n",
        name, t->cases, t->cases ? t->sum / t->cases : 1, t->worst, (unsigned long long)t->worst_seed,
        t->above, t->missed, (unsigned long long)t->simulated, t->cpu_s, t->unfinished);
}

struct looks {
    uint64_t most;
    const char *only;
    bool table;
    struct tally by_walk[ORACLE_WALKS], all;
};

/* Runs one walk over one cluster, starting with the planner's step time as the bound. Returns the best step
 * time. */
static double walk_one(struct looks *l, size_t i, const struct scene *s, const struct problem *p, double ours,
                       uint64_t seed)
{
    static struct oracle o;
    struct tally *t = &l->by_walk[i];
    clock_t began = clock();
    oracle_init(&o, p, s->uniform, ours, l->most);
    oracle_walks[i].run(&o);
    t->cpu_s += (double)(clock() - began) / CLOCKS_PER_SEC;
    t->simulated += o.simulated;
    t->unfinished += exhausted(&o);
    if (o.best < INFINITY)
        tally_add(t, ours, o.best, seed);
    if (l->table)
        print_message("table %llu %s %.9g %.9g %.5f %llu%s\n", (unsigned long long)seed, oracle_walks[i].name,
                      ours, o.best, o.best < INFINITY ? ours / o.best : 1, (unsigned long long)o.simulated,
                      exhausted(&o) ? " unfinished" : "");
    if (ours > o.best * (1 + SAME)) {
        print_message("seed %llu: %s %.6f, best %.6f, ratio %.5f\n", (unsigned long long)seed,
                      oracle_walks[i].name, ours, o.best, ours / o.best);
        candidate_print(&o.found);
    }
    return o.best;
}

static void cluster_look(struct looks *l, uint64_t seed)
{
    struct scene s;
    struct problem problem;
    struct err err = {0};
    double best = INFINITY, ours = INFINITY;
    scene_init(&s, seed, false);
    assert_int_equal(problem_init(&problem, &s.workload, s.cluster, &err), 0);
    for (size_t i = 0; i < ORACLE_WALKS; i++) {
        if (l->only && strcmp(l->only, oracle_walks[i].name) != 0)
            continue;
        if (i == 0 || l->only || oracle_walks[i].kind != oracle_walks[i - 1].kind)
            ours = planned(&s, (int)oracle_walks[i].kind, seed);
        best = fmin(best, walk_one(l, i, &s, &problem, ours, seed));
    }
    ours = l->only && strcmp(l->only, "all") != 0 ? best : planned(&s, -1, seed);
    if (best < INFINITY)
        tally_add(&l->all, ours, fmin(best, ours), seed);
    if (l->table)
        print_message("table %llu all %.9g %.9g %.5f\n", (unsigned long long)seed, ours, fmin(best, ours),
                      best < INFINITY ? ours / fmin(best, ours) : 1);
    if (ours > best * (1 + SAME))
        print_message("seed %llu: all %.6f, best %.6f, ratio %.5f\n", (unsigned long long)seed, ours, best,
                      ours / best);
    problem_fini(&problem);
    scene_fini(&s);
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void the_search_finds_what_looking_at_everything_finds(void **state)
{
    (void)state;
    bool all = getenv("MOTLEY_LONG") != NULL;
    struct looks l = {.most = number_of("MOTLEY_LOOKS", all ? LOOKS_LONG : LOOKS_QUICK),
                      .only = getenv("MOTLEY_ONLY"),
                      .table = getenv("MOTLEY_TABLE") != NULL};
    uint64_t first = number_of("MOTLEY_SEED", 1), count = number_of("MOTLEY_CASES", all ? 500 : 5);
    for (uint64_t seed = first; seed < first + count; seed++)
        cluster_look(&l, seed);
    for (size_t i = 0; i < ORACLE_WALKS; i++)
        tally_print(oracle_walks[i].name, &l.by_walk[i]);
    tally_print("all", &l.all);
    if (l.only && strcmp(l.only, "all") == 0)
        return;
    assert_true(l.all.cases > 0 && l.all.missed == 0);
    assert_true(l.all.sum / l.all.cases <= 1.005 && l.all.worst <= 1.03);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_finds_what_looking_at_everything_finds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
