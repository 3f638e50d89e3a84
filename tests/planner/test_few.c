/* Groupings of few devices: the walk keeps exactly the best of all there are, wherever a stage may begin, and
 * devices that are alike in everything only make it shorter. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/few/few_bound.h"

#define MIB ((uint64_t)1 << 20)
#define ALL_MAX 400000u

struct world {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    struct problem problem;
};

/* Up to two devices a machine; `twins`: of two speeds and one size alone. */
static void world_init(struct world *w, uint64_t seed, uint32_t devices, bool twins)
{
    struct rand_stream r;
    struct err err = {0};
    rand_stream_init(&r, seed, 91);
    w->config = fixture_config(2 + rand_stream_below(&r, 4));
    w->workload = fixture_workload(&w->config, 12, 12);
    w->cluster = cluster_create(&err);
    for (uint32_t d = 0; d < devices; d++) {
        char name[40], at[16];
        snprintf(at, sizeof(at), "n%u", d / 2);
        snprintf(name, sizeof(name), "n%u/%u", d / 2, d);
        uint64_t memory = 20 * MIB + rand_stream_below(&r, 200) * MIB;
        double speed = twins ? 1 + rand_stream_below(&r, 2) : 0.3 + 2 * rand_stream_unit(&r);
        fixture_device(w->cluster, name, at, twins ? 300 * MIB : memory, speed);
    }
    assert_int_equal(cluster_set_defaults(w->cluster, 1e-5, 1e10, 1e-4, 1e8, &err), 0);
    assert_int_equal(problem_init(&w->problem, &w->workload, w->cluster, &err), 0);
}

static void world_fini(struct world *w)
{
    problem_fini(&w->problem);
    cluster_destroy(w->cluster);
    workload_fini(&w->workload);
}

/* --- all there are, one after the other --- */

struct all {
    const struct problem *p;
    const struct few_bound *f; /* for what a device takes */
    bool single;
    const struct few_prices *prices; /* NULL: members take micro-batches in turns */
    uint32_t stages, group[FEW_DEVICES];
    double *bounds;
    uint32_t count;
};

static double hop_seconds(const struct all *a, uint32_t from, uint32_t to)
{
    double bytes = a->p->bytes_per_token * a->p->mean_step.tokens / a->f->micro_batches, least = INFINITY;
    for (uint32_t x = 0; x < a->f->sets.count; x++) {
        for (uint32_t y = 0; y < a->f->sets.count; y++) {
            double latency[2], rate[2];
            bool emulated;
            if (!(from >> x & 1) || !(to >> y & 1))
                continue;
            cluster_link(a->p->cluster, x, y, &latency[0], &rate[0], &emulated);
            cluster_link(a->p->cluster, y, x, &latency[1], &rate[1], &emulated);
            least = fmin(least, latency[0] + latency[1] + bytes / rate[0] + bytes / rate[1]);
        }
    }
    return least;
}

/* Micro-batches given one by one to who is done first. */
static double dealt(const struct all *a, const double *each, uint32_t members)
{
    double done[FEW_DEVICES] = {0}, latest = 0;
    for (uint32_t k = 0; k < a->f->micro_batches; k++) {
        uint32_t best = 0;
        for (uint32_t m = 1; m < members; m++)
            best = done[m] + each[m] < done[best] + each[best] ? m : best;
        done[best] += each[best];
        latest = fmax(latest, done[best]);
    }
    return latest;
}

static void stage_seconds(const struct all *a, uint32_t group, int32_t begin, int32_t end, uint32_t behind,
                          double *makespan, double *passage)
{
    struct few_alone alone[FEW_DEVICES];
    double each[FEW_DEVICES], rate = 0, plain[FEW_DEVICES];
    uint32_t members = 0;
    *makespan = *passage = INFINITY;
    if (a->prices) {
        a->prices->group(a->prices->with, a->f, (uint16_t)group, begin, end, behind, makespan, passage);
        return;
    }
    for (uint32_t d = 0; d < a->f->sets.count; d++) {
        if (!(group >> d & 1))
            continue;
        few_alone_fill(a->f, d, begin, end, 1, &alone[members]);
        plain[members] = alone[members].seconds[alone[members].room[0] == 0];
        rate += 1 / plain[members++];
    }
    for (uint32_t m = 0; m < members; m++) {
        bool recompute;
        uint32_t held;
        if (!(plain[m] < INFINITY))
            return;
        each[m] =
            few_alone_seconds(&alone[m], few_window(a->f, 1 / plain[m] / rate, behind), &recompute, &held);
    }
    for (uint32_t m = 0; m < members; m++)
        *passage = fmin(*passage, each[m]);
    *makespan = dealt(a, each, members);
}

/* All micro-batches over the best link between two groups, the slower way, every pair of members taking its
 * part. */
static double wire_seconds(const struct all *a, uint32_t from, uint32_t to)
{
    const struct few_bound *f = a->f;
    double bytes = a->p->bytes_per_token * a->p->mean_step.tokens, least = INFINITY;
    for (uint32_t x = 0; x < f->sets.count; x++) {
        for (uint32_t y = 0; y < f->sets.count; y++) {
            double latency, there, back;
            bool emulated;
            if (!(from >> x & 1) || !(to >> y & 1))
                continue;
            cluster_link(a->p->cluster, f->sets.device[x], f->sets.device[y], &latency, &there, &emulated);
            cluster_link(a->p->cluster, f->sets.device[y], f->sets.device[x], &latency, &back, &emulated);
            least = fmin(least, bytes / fmin(there, back));
        }
    }
    return a->prices && a->prices->led ? least : least / __builtin_popcount(from) / __builtin_popcount(to);
}

/* The least over all cuts, the stages from s on, a first micro-batch being there at `from`. */
static double cuts_least(const struct all *a, uint32_t s, int32_t begin, double from, double slowest)
{
    double best = INFINITY, makespan, passage;
    uint32_t behind = 0;
    for (uint32_t later = s + 1; later < a->stages; later++)
        behind += (uint32_t)__builtin_popcount(a->group[later]);
    if (s + 1 == a->stages) {
        stage_seconds(a, a->group[s], begin, a->p->block_count, behind, &makespan, &passage);
        return fmax(slowest, from + makespan);
    }
    for (int32_t end = begin + 1; end < a->p->block_count; end++) {
        stage_seconds(a, a->group[s], begin, end, behind, &makespan, &passage);
        if (makespan < INFINITY)
            best = fmin(
                best, cuts_least(a, s + 1, end, from + passage + hop_seconds(a, a->group[s], a->group[s + 1]),
                                 fmax(slowest,
                                      from + fmax(makespan, wire_seconds(a, a->group[s], a->group[s + 1])))));
    }
    return best;
}

static void all_walk(struct all *a, uint32_t left, bool grouped)
{
    if (a->stages >= 2 && (grouped || a->single)) {
        double bound = cuts_least(a, 0, 0, 0, 0);
        if (bound < INFINITY) {
            assert_true(a->count < ALL_MAX);
            a->bounds[a->count++] = bound;
        }
    }
    if ((int32_t)a->stages == a->p->block_count)
        return;
    for (uint32_t group = left; group > 0; group = (group - 1) & left) {
        uint32_t members = (uint32_t)__builtin_popcount(group);
        if ((members > a->f->micro_batches && !a->prices) || (a->single && members > 1))
            continue;
        a->group[a->stages++] = group;
        all_walk(a, left & ~group, grouped || members > 1);
        a->stages--;
    }
}

static int by_number(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

/* Bounds of everything at every size, rising. */
static void all_fill(struct all *a, struct few_bound *f, const struct problem *p, bool single,
                     const struct few_prices *prices)
{
    uint32_t sizes[MICRO_SIZES_MAX], size_count = micro_sizes(p, sizes);
    *a = (struct all){
        .p = p, .f = f, .single = single, .prices = prices, .bounds = calloc(ALL_MAX, sizeof(double))};
    assert_non_null(a->bounds);
    for (uint32_t i = 0; i < size_count; i++) {
        if (!few_size_worth(p, sizes[i]))
            continue;
        few_size_set(f, sizes[i]);
        all_walk(a, (1u << f->sets.count) - 1, false);
    }
    qsort(a->bounds, a->count, sizeof(*a->bounds), by_number);
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static void the_walk_keeps_the_best_of_all_groupings(void **state)
{
    (void)state;
    uint32_t compared = 0;
    for (uint64_t seed = 0; seed < 24; seed++) {
        for (int single = 0; single < 2; single++) {
            struct world w;
            struct err err = {0};
            struct all a;
            struct few_bound *f = calloc(1, sizeof(*f));
            world_init(&w, seed, 3 + seed % 3, false);
            assert_int_equal(few_bound_walk(f, &w.problem, single, NULL, &err), 1);
            all_fill(&a, f, &w.problem, single, NULL);
            uint32_t most = a.count < FEW_KEPT ? a.count : FEW_KEPT;
            for (uint32_t i = 0; i < f->node_count; i++) {
                if (!near(f->nodes[i].bound, a.bounds[i]))
                    fail_msg("seed %llu, %s: number %u of %u is %.9g, the best is %.9g",
                             (unsigned long long)seed, single ? "single" : "groups", i, f->node_count,
                             f->nodes[i].bound, a.bounds[i]);
            }
            assert_true(f->node_count <= most);
            if (f->node_count < most)
                fail_msg("seed %llu: %u kept of %u", (unsigned long long)seed, f->node_count, most);
            compared += f->node_count;
            free(a.bounds);
            few_bound_fini(f);
            free(f);
            world_fini(&w);
        }
    }
    print_message("%u groupings\n", compared);
    assert_true(compared > 5000);
}

/* A group's blocks shared out, at a cost that grows with its members; some groups do not fit, or not with
 * others behind them. */
static void shared_price(void *with, const struct few_bound *f, uint16_t set, int32_t begin, int32_t end,
                         uint32_t behind, double *all, double *one)
{
    uint32_t *sizes = with, members = (uint32_t)__builtin_popcount(set);
    double rate = 0;
    sizes[0]++;
    for (uint32_t d = 0; d < f->sets.count; d++)
        rate += set >> d & 1 ? 1 / (micro_forward(f->p, &f->cost[d], begin, end) +
                                    micro_backward(f->p, &f->cost[d], begin, end, false))
                             : 0;
    bool fits = end - begin + (int32_t)(behind > 0) <= (int32_t)(2 + set * 7u % 5);
    *one = fits ? 1 / rate + 1e-3 * (members - 1) : INFINITY;
    *all = *one * f->micro_batches;
}

static void size_noted(void *with, const struct few_bound *f)
{
    uint32_t *sizes = with;
    sizes[1] += f->micro_batches > 0;
}

static void groups_may_be_priced_otherwise(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct world w;
        struct err err = {0};
        struct all a;
        uint32_t asked[2] = {0};
        struct few_prices prices = {
            .with = asked, .led = seed % 2, .size = size_noted, .group = shared_price};
        struct few_bound *f = calloc(1, sizeof(*f));
        world_init(&w, 300 + seed, 3 + seed % 3, false);
        assert_int_equal(few_bound_walk(f, &w.problem, false, &prices, &err), 1);
        assert_true(asked[0] > 0 && asked[1] > 0);
        all_fill(&a, f, &w.problem, false, &prices);
        uint32_t most = a.count < FEW_KEPT ? a.count : FEW_KEPT;
        assert_int_equal(f->node_count, most);
        for (uint32_t i = 0; i < most; i++)
            assert_true(near(f->nodes[i].bound, a.bounds[i]));
        free(a.bounds);
        few_bound_fini(f);
        free(f);
        world_fini(&w);
    }
}

/* Each bound that there is among all is there among those without twins taken twice, and none else. */
static void devices_that_are_alike_are_taken_in_one_order(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct world w;
        struct err err = {0};
        struct all a;
        struct few_bound *f = calloc(1, sizeof(*f));
        world_init(&w, 100 + seed, 4, true);
        assert_int_equal(few_bound_walk(f, &w.problem, false, NULL, &err), 1);
        all_fill(&a, f, &w.problem, false, NULL);
        uint32_t at = 0;
        for (uint32_t i = 0; i < f->node_count; i++) {
            double bound = f->nodes[i].bound;
            while (at < a.count && a.bounds[at] < bound && !near(a.bounds[at], bound)) {
                /* passed over: it must be one that was there already */
                assert_true(i > 0 && near(a.bounds[at], f->nodes[i - 1].bound));
                at++;
            }
            assert_true(at < a.count && near(a.bounds[at], bound));
        }
        assert_true(f->node_count <= a.count);
        free(a.bounds);
        few_bound_fini(f);
        free(f);
        world_fini(&w);
    }
}

static void sets_of_twins_are_fewer(void **state)
{
    (void)state;
    struct err err = {0};
    for (uint32_t devices = 3; devices <= 16; devices++) {
        struct cluster *cluster = cluster_create(&err);
        struct model_config config = fixture_config(4);
        struct workload workload = fixture_workload(&config, 12, 12);
        struct problem problem;
        struct few_sets sets;
        for (uint32_t d = 0; d < devices; d++) {
            char name[24];
            snprintf(name, sizeof(name), "n%u/%u", d % 4, d);
            char at[8];
            snprintf(at, sizeof(at), "n%u", d % 4);
            fixture_device(cluster, name, at, 300 * MIB, 1);
        }
        assert_int_equal(cluster_set_defaults(cluster, 1e-5, 1e10, 1e-4, 1e8, &err), 0);
        assert_int_equal(problem_init(&problem, &workload, cluster, &err), 0);
        assert_int_equal(few_sets_init(&sets, &problem, false, &err), 1);
        uint32_t expected = 1;
        for (uint32_t node = 0; node < 4; node++) /* of every machine none to all */
            expected *= (devices + 3 - node) / 4 + 1;
        if (devices > 7) /* below, single devices on machines of their own are alike, too */
            assert_int_equal(sets.sets, expected);
        else
            assert_true(sets.sets <= expected);
        for (uint32_t set = 0; set < sets.sets; set++) {
            for (uint32_t i = sets.first[set]; i < sets.first[set + 1]; i++) {
                const struct few_pair *pair = &sets.pairs[i];
                assert_int_equal(pair->group | pair->left, sets.set[set]);
                assert_int_equal(pair->group & pair->left, 0);
                assert_int_equal(pair->left, sets.set[pair->left_at]);
                assert_int_equal(__builtin_popcount(pair->group),
                                 __builtin_popcount(sets.set[pair->group_at]));
                assert_true(pair->left_at < set);
            }
        }
        few_sets_fini(&sets);
        problem_fini(&problem);
        cluster_destroy(cluster);
        workload_fini(&workload);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_walk_keeps_the_best_of_all_groupings),
        cmocka_unit_test(groups_may_be_priced_otherwise),
        cmocka_unit_test(devices_that_are_alike_are_taken_in_one_order),
        cmocka_unit_test(sets_of_twins_are_fewer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
