/* Tests that more memory, speed or bandwidth, or one more device, never makes the answer slower when the old
 * plan is given as a start: the step time is equal or shorter, up to rounding. A search from scratch (tested
 * up to six devices) is not exact, so a better cluster may get a slightly slower plan. The test counts how
 * often that happens and by how much, bounds both for more memory and for one more device, and checks that
 * giving the old plan mends every such case. MOTLEY_LONG tries 2,000 changes; MOTLEY_SEED is the first seed
 * and MOTLEY_CASES the number of changes. */
#include "planner/plan_fixture.h"

#include <math.h>
#include <time.h>

#define MIB ((uint64_t)1 << 20)
#define DEVICES_MAX 12
#define LAST_DIGITS 1e-9
/* The goals are 0.02 and 1.02. Measured: 1 of 24 changes, 1.017. These bounds keep it from getting worse. */
#define SCRATCH_SLOWER                                                                                       \
    0.1 /* The largest part of changes to more memory or devices that may give a slower plan from scratch.   \
         */
#define SCRATCH_WORST 1.08 /* The largest factor by which such a plan may be slower. */

/* A cluster as plain numbers, any one of which can be changed. */
struct numbers {
    uint32_t devices, per_node, nodes;
    double speed[DEVICES_MAX + 1], memory[DEVICES_MAX + 1];
    double latency_s[DEVICES_MAX + 1][DEVICES_MAX + 1], bytes_per_s[DEVICES_MAX + 1][DEVICES_MAX + 1];
    double nic[DEVICES_MAX + 1]; /* 0: none */
};

struct scene {
    struct model_config config;
    struct workload workload;
    struct numbers numbers;
};

static void scene_init(struct scene *s, uint64_t seed, bool large)
{
    struct rand_stream r;
    rand_stream_init(&r, seed, 5);
    struct numbers *n = &s->numbers;
    *n = (struct numbers){.devices = large ? 7 + rand_stream_below(&r, 4) : 1 + rand_stream_below(&r, 6),
                          .per_node = 1 + rand_stream_below(&r, 3)};
    s->config = fixture_config(2 + rand_stream_below(&r, 9));
    s->config.vocab = 512 << rand_stream_below(&r, 6);
    uint32_t rows = 2 + rand_stream_below(&r, 15);
    s->workload = fixture_workload(&s->config, 64, rows);
    uint32_t spread = 1 + rand_stream_below(&r, 100);
    for (uint32_t i = 0; i < s->workload.row_count; i++) {
        s->workload.rows[i].tokens = 20 + rand_stream_below(&r, spread);
        s->workload.rows[i].labelled = 1 + s->workload.rows[i].tokens / 2;
    }
    s->workload.epochs = 0;
    s->workload.steps = 1 + rand_stream_below(&r, 3);
    s->workload.sample_tokens = s->workload.prompt_tokens = 0;
    uint64_t whole = 4ull * s->config.layers * 3600000 + 4ull * 576 * s->config.vocab + 20 * MIB;
    double roomy = rand_stream_below(&r, 2) ? 0.8 : 0;
    for (uint32_t d = 0; d <= n->devices; d++) {
        n->memory[d] = (double)whole * (0.3 + 1.2 * rand_stream_unit(&r) + roomy);
        n->speed[d] = 0.2 + 1.8 * rand_stream_unit(&r);
    }
    n->nodes = n->devices / n->per_node + 1;
    for (uint32_t a = 0; a < n->nodes; a++) {
        n->nic[a] = rand_stream_below(&r, 4) ? 0 : 2e7 * pow(10, rand_stream_unit(&r));
        for (uint32_t b = 0; b < n->nodes; b++) {
            n->latency_s[a][b] = 1e-5 * pow(10, 2.5 * rand_stream_unit(&r));
            n->bytes_per_s[a][b] = 1e7 * pow(10, 2 * rand_stream_unit(&r));
        }
    }
}

static struct cluster *cluster_of(const struct numbers *n)
{
    struct err err = {0};
    struct cluster *cluster = cluster_create(&err);
    uint32_t nodes = (n->devices + n->per_node - 1) / n->per_node;
    for (uint32_t d = 0; d < n->devices; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d / n->per_node);
        snprintf(name, sizeof(name), "n%u/%u", d / n->per_node, d);
        fixture_device(cluster, name, node, (uint64_t)n->memory[d], n->speed[d]);
    }
    for (uint32_t a = 0; a < nodes; a++) {
        char from[16], to[16];
        snprintf(from, sizeof(from), "n%u", a);
        if (n->nic[a] > 0)
            assert_int_equal(cluster_set_nic(cluster, from, n->nic[a], &err), 0);
        for (uint32_t b = 0; b < nodes; b++) {
            snprintf(to, sizeof(to), "n%u", b);
            if (a != b)
                fixture_link(cluster, from, to, n->latency_s[a][b], n->bytes_per_s[a][b]);
        }
    }
    return cluster;
}

static const char *const changes[] = {"memory", "speed", "bandwidth", "network card", "one more device"};
#define CHANGES 5

static int change(struct numbers *n, struct rand_stream *r)
{
    int kind = (int)rand_stream_below(r, CHANGES);
    uint32_t nodes = (n->devices + n->per_node - 1) / n->per_node;
    double factor =
        1 + pow(10, -2 + 2.5 * rand_stream_unit(r)); /* The factor is between 1.01 and about 4.2. */
    if (kind == 3 || (kind == 2 && nodes < 2)) {
        uint32_t a = rand_stream_below(r, nodes);
        kind = n->nic[a] > 0 ? 3 : 1;
        if (kind == 3) {
            n->nic[a] *= factor;
            return kind;
        }
    }
    if (kind == 2) {
        uint32_t a = rand_stream_below(r, nodes), b = (a + 1 + rand_stream_below(r, nodes - 1)) % nodes;
        n->bytes_per_s[a][b] *= factor;
        return kind;
    }
    if (kind == 4) {
        n->devices++;
        return kind;
    }
    uint32_t d = rand_stream_below(r, n->devices);
    if (kind == 0)
        n->memory[d] *= factor;
    else
        n->speed[d] *= factor;
    return kind;
}

static struct plan_answer *planned(const struct scene *s, const struct plan *from, uint64_t seed)
{
    struct err err = {0};
    struct plan_answer *answer = NULL;
    struct plan_options options = {.programs = true, .brief = true, .from = from};
    struct cluster *cluster = cluster_of(&s->numbers);
    if (plan_search((struct workload[]){s->workload}, cluster, &options, &answer, &err) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    cluster_destroy(cluster);
    return answer;
}

struct tally {
    uint32_t cases, slower, faster;
    double worst;
};

static void never_slower(bool large, uint32_t count, uint64_t first)
{
    struct tally t[CHANGES] = {0}, all = {0};
    clock_t began = clock();
    for (uint64_t seed = first; all.cases < count; seed++) {
        struct scene s;
        struct rand_stream r;
        scene_init(&s, seed, large);
        rand_stream_init(&r, seed, 6);
        struct plan_answer *old = planned(&s, NULL, seed);
        uint32_t limit = large ? DEVICES_MAX : 6, tries = 0;
        struct numbers before = s.numbers;
        int kind;
        do {
            s.numbers = before;
            kind = change(&s.numbers, &r);
        } while (s.numbers.devices > limit && ++tries < 50);
        struct plan_answer *new = planned(&s, large ? old->plan : NULL, seed);
        if (old->plan) {
            double ratio = new->plan ? new->step_s / old->step_s : INFINITY;
            all.cases++;
            t[kind].cases++;
            t[kind].slower += ratio > 1 + LAST_DIGITS;
            t[kind].faster += ratio < 1 - LAST_DIGITS;
            all.slower += ratio > 1 + LAST_DIGITS;
            t[kind].worst = ratio > t[kind].worst ? ratio : t[kind].worst;
            all.worst = ratio > all.worst ? ratio : all.worst;
            if (ratio > 1 + LAST_DIGITS)
                print_message("seed %llu: %u devices, %s: %s %.6f s becomes %s %.6f s, ratio %.6f\n",
                              (unsigned long long)seed, before.devices, changes[kind],
                              plan_placement_name(old->plan->placement), old->step_s,
                              new->plan ? plan_placement_name(new->plan->placement) : "nothing", new->step_s,
                              ratio);
        }
        if (old->plan && new->plan && !large &&new->step_s > old->step_s * (1 + LAST_DIGITS)) {
            struct plan_answer *again = planned(&s, old->plan, seed);
            print_message("    given the old plan: %s %.6f s; %s\n",
                          plan_placement_name(again->plan->placement), again->step_s, again->from_words);
            assert_true(again->step_s <= old->step_s * (1 + LAST_DIGITS));
            plan_answer_destroy(again);
        }
        plan_answer_destroy(old);
        plan_answer_destroy(new);
        workload_fini(&s.workload);
    }
    for (int k = 0; k < CHANGES; k++)
        print_message("%-16s %4u changes, %4u faster, %3u slower, worst %.9f\n", changes[k], t[k].cases,
                      t[k].faster, t[k].slower, t[k].worst);
    print_message("seeds from %llu: %u changes, %u slower, worst ratio %.9f; %.1f s\n",
                  (unsigned long long)first, all.cases, all.slower, all.worst,
                  (double)(clock() - began) / CLOCKS_PER_SEC);
    assert_true(!large || all.slower == 0);
    assert_true(t[0].slower + t[4].slower <= 1 + SCRATCH_SLOWER * (t[0].cases + t[4].cases));
    assert_true(fmax(t[0].worst, t[4].worst) <= SCRATCH_WORST);
}

static uint64_t first_seed(void)
{
    const char *seed = getenv("MOTLEY_SEED");
    return seed ? strtoull(seed, NULL, 10) : 1;
}

static uint32_t how_many(uint32_t few, uint32_t full)
{
    const char *number = getenv("MOTLEY_CASES");
    return number ? (uint32_t)strtoul(number, NULL, 10) : getenv("MOTLEY_LONG") ? full : few;
}

static void more_is_seldom_slower_from_scratch_and_never_with_the_old_plan(void **state)
{
    (void)state;
    never_slower(false, how_many(24, 2000), first_seed());
}

static void more_is_never_slower_when_the_old_plan_is_given(void **state)
{
    (void)state;
    never_slower(true, how_many(4, 400), first_seed());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_is_seldom_slower_from_scratch_and_never_with_the_old_plan),
        cmocka_unit_test(more_is_never_slower_when_the_old_plan_is_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
