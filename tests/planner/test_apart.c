/* Machines that cannot connect to each other: no plan has two of their devices exchange anything, a
 * connection that can be opened one way is enough, and the plan is about as fast as the best one of machines
 * that all reach each other. */
#include "planner/plan_fixture.h"

#include <math.h>

#define SEEDS 12u
#define MACHINES_MOST 4u
#define AS_FAST 1.05 /* of the best plan of machines that all reach each other */

struct lab {
    uint32_t count;
    double speed[MACHINES_MOST];
    bool apart[MACHINES_MOST][MACHINES_MOST]; /* [a][b]: a cannot open connections to b */
};

static bool apart(const struct lab *lab, uint32_t a, uint32_t b)
{
    return lab->apart[a][b] && lab->apart[b][a];
}

static struct lab lab_make(uint64_t seed)
{
    struct rand_stream r;
    struct lab lab = {0};
    rand_stream_init(&r, seed, 11);
    lab.count = 3 + rand_stream_below(&r, MACHINES_MOST - 2);
    for (uint32_t a = 0; a < lab.count; a++) {
        lab.speed[a] = pow(10, 2 * rand_stream_unit(&r));
        for (uint32_t b = 0; b < lab.count; b++)
            lab.apart[a][b] = a != b && rand_stream_below(&r, 2) == 0;
    }
    return lab;
}

static void link_add(struct cluster *cluster, uint32_t from, uint32_t to, bool unreachable)
{
    struct err err;
    char name[2][8];
    snprintf(name[0], sizeof(name[0]), "n%u", from);
    snprintf(name[1], sizeof(name[1]), "n%u", to);
    json_t *link = json_pack("{s:s, s:s, s:f, s:f, s:b}", "from", name[0], "to", name[1], "latency_s",
                             unreachable ? 0.0 : 1e-4, "bytes_per_s", unreachable ? 1.0 : 1e9, "unreachable",
                             (int)unreachable);
    if (cluster_add_link(cluster, link, &err) < 0)
        fail_msg("%s", err.text);
    json_decref(link);
}

/* The machines of the mask as a cluster. */
static struct cluster *lab_cluster(const struct lab *lab, unsigned mask)
{
    struct err err;
    struct cluster *cluster = cluster_create(&err);
    for (uint32_t a = 0; a < lab->count; a++) {
        char name[20], node[12];
        snprintf(node, sizeof(node), "n%u", a);
        snprintf(name, sizeof(name), "n%u/0", a);
        if (mask >> a & 1)
            fixture_device(cluster, name, node, (uint64_t)1 << 30, lab->speed[a]);
    }
    for (uint32_t a = 0; a < lab->count; a++)
        for (uint32_t b = 0; b < lab->count; b++)
            if (a != b && mask >> a & mask >> b & 1)
                link_add(cluster, a, b, lab->apart[a][b]);
    return cluster;
}

static bool all_reach(const struct lab *lab, unsigned mask)
{
    for (uint32_t a = 0; a < lab->count; a++)
        for (uint32_t b = 0; b < lab->count; b++)
            if (mask >> a & mask >> b & 1 && apart(lab, a, b))
                return false;
    return true;
}

static void check_peers(const struct lab *lab, const struct plan *plan)
{
    bool peers[64];
    assert_true(plan->rank_count <= 64);
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        plan_rank_peers(plan, r, peers);
        for (uint32_t q = 0; q < plan->rank_count; q++)
            if (peers[q])
                assert_false(apart(lab, (uint32_t)(plan->ranks[r].device[1] - '0'),
                                   (uint32_t)(plan->ranks[q].device[1] - '0')));
    }
}

static double step_of(const struct lab *lab, unsigned mask, const struct workload *w)
{
    struct cluster *cluster = lab_cluster(lab, mask);
    struct plan_answer *answer = fixture_search(w, cluster);
    double step_s = answer->plan ? answer->step_s : INFINITY;
    if (answer->plan)
        check_peers(lab, answer->plan);
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    return step_s;
}

static void no_plan_joins_what_is_apart(void **state)
{
    (void)state;
    static const int kinds[SEEDS / 2] = {PLACE_PIPELINE, PLACE_DATA,   PLACE_HYBRID,
                                         PLACE_SERVER,   PLACE_HYBRID, PLACE_TENSOR};
    struct model_config config = fixture_config(4);
    double worst = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        const struct lab lab = lab_make(seed);
        struct workload w = fixture_workload(&config, 32, 8);
        w.place = seed % 2 ? kinds[seed / 2] : -1;
        double best = INFINITY, chosen = step_of(&lab, (1u << lab.count) - 1, &w);
        for (unsigned mask = 1; mask < 1u << lab.count; mask++)
            if (all_reach(&lab, mask))
                best = fmin(best, step_of(&lab, mask, &w));
        assert_true(chosen < INFINITY || best == INFINITY);
        worst = best < INFINITY ? fmax(worst, chosen / best) : worst;
        workload_fini(&w);
    }
    printf("beside the best plan of machines that all reach each other: at most %.4f\n", worst);
    assert_true(worst <= AS_FAST);
}

static void one_way_is_enough_and_none_is_said(void **state)
{
    (void)state;
    struct model_config config = fixture_config(8);
    struct workload w = fixture_workload(&config, 64, 16);
    struct lab lab = {.count = 2, .speed = {1, 1}};
    w.place = PLACE_PIPELINE;
    const double open = step_of(&lab, 3, &w);
    lab.apart[0][1] = true;
    assert_true(step_of(&lab, 3, &w) == open);
    lab.apart[1][0] = true;
    struct cluster *cluster = lab_cluster(&lab, 3);
    struct plan_answer *answer = fixture_search(&w, cluster);
    assert_null(answer->plan);
    assert_non_null(strstr(answer->words, "placement.kind is pipeline, and n0 and n1 cannot connect to each "
                                          "other (motley links): open the ports of one"));
    assert_int_equal(answer->warning_count, 1);
    assert_string_equal(answer->warnings[0], "n0 and n1 cannot connect to each other: in no plan do their "
                                             "devices exchange anything");
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_plan_joins_what_is_apart),
        cmocka_unit_test(one_way_is_enough_and_none_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
