/* Tests the kinds `data` and `server`: rows are divided as an exhaustive search divides them, and settled
 * candidates become correct plans. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/cost/price.h"
#include "planner/kind/kind.h"

#define MIB ((uint64_t)1 << 20)
#define DEVICES 4u

extern const struct placement_kind kind_data, kind_server;

struct made {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    struct problem problem;
    struct workbench bench;
    struct candidate candidate;
    struct err err;
};

/* Draws random unlike devices, two a machine where machines matter. Batch 0 draws a random batch of rows of
 * equal length. */
static void made_init(struct made *m, uint64_t seed, enum plan_placement place, bool lora, bool tight,
                      bool machines, uint32_t batch)
{
    struct rand_stream r;
    rand_stream_init(&r, seed, 3);
    uint32_t layers = 1 + rand_stream_below(&r, 6), devices = 2 + rand_stream_below(&r, DEVICES - 1);
    *m = (struct made){.config = fixture_config(layers)};
    m->config.vocab = 2048;
    m->config.tied = rand_stream_below(&r, 2);
    m->workload = fixture_workload(&m->config, 400, batch ? batch : 2 + rand_stream_below(&r, 40));
    for (uint32_t i = 0; i < 400 && batch == 0; i++)
        m->workload.rows[i] = (struct workload_row){.tokens = 55, .labelled = 27};
    m->workload.method = lora ? METHOD_LORA : METHOD_FULL;
    m->workload.compute = rand_stream_below(&r, 2) ? COMPUTE_BF16 : COMPUTE_FP32;
    m->workload.recompute = (enum workload_recompute)rand_stream_below(&r, 3);
    m->workload.micro_batch_rows = rand_stream_below(&r, 4) ? 0 : 2;
    m->workload.place = place;
    m->cluster = cluster_create(&m->err);
    for (uint32_t d = 0; d < devices; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", machines ? (d + 1) / 2 : 0);
        snprintf(name, sizeof(name), "%s/%u", node, d);
        uint64_t most = lora ? 16 * layers : d == 0 && place == PLACE_SERVER ? 90 * layers : 60 * layers;
        uint64_t memory = !tight ? 8000 : 60 + most / 2 + rand_stream_below(&r, (uint32_t)most);
        fixture_device(m->cluster, name, node, memory * MIB, 0.3 + 2 * rand_stream_unit(&r));
    }
    if (problem_init(&m->problem, &m->workload, m->cluster, &m->err) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, m->err.text);
    m->bench = (struct workbench){.problem = &m->problem, .err = &m->err};
    struct candidate *c = &m->candidate;
    assert_int_equal(candidate_reserve(c, 1, devices, &m->err), 0);
    c->placement = place;
    c->stage_count = 1;
    c->member_count = devices;
    c->stages[0] = (struct candidate_stage){.block_end = m->problem.block_count,
                                            .kind = place == PLACE_SERVER ? STAGE_SERVER : STAGE_SHARDED,
                                            .member_count = devices};
    for (uint32_t d = 0; d < devices; d++)
        c->members[d] = (struct member){.device = d};
    c->gathered_layers = lora && rand_stream_below(&r, 2) ? 0 : 2;
}

static void made_fini(struct made *m)
{
    candidate_fini(&m->candidate);
    problem_fini(&m->problem);
    cluster_destroy(m->cluster);
    workload_fini(&m->workload);
}

/* Returns the least estimate over all divisions of the remaining rows among the members from `at` on. */
static double least_of(struct made *m, const struct placement_kind *kind, struct candidate *c, uint32_t at,
                       uint32_t left)
{
    const struct workload *w = &m->workload;
    double least = INFINITY;
    if (at == c->member_count)
        return left == 0 && kind->estimate(&m->bench, c) > 0 ? c->estimate_s : INFINITY;
    struct member *x = &c->members[at];
    bool idle = kind == &kind_server ? at == 0 : w->method == METHOD_FULL, layered = c->gathered_layers > 0;
    if (kind == &kind_server)
        layered = w->method == METHOD_FULL;
    for (uint32_t total = idle ? 0 : 1; total <= left; total++) {
        for (uint32_t rows = 1; rows <= (total ? total : 1); rows++) {
            for (int recompute = 0; recompute < (total ? 2 : 1); recompute++) {
                bool allowed = w->recompute == RECOMPUTE_AUTO || recompute == (w->recompute == RECOMPUTE_YES);
                if (total % rows || (total && !allowed) ||
                    (w->micro_batch_rows && rows > w->micro_batch_rows))
                    continue;
                x->rows = rows;
                x->count = total / rows;
                x->window = layered && x->count ? x->count : 1;
                x->recompute = recompute;
                least = fmin(least, least_of(m, kind, c, at + 1, left - total));
            }
        }
    }
    return least;
}

/* For sharded state the test uses one machine with equal links, and compares with the same rows and even
 * shares. */
static void rows_are_split_as_an_exhaustive_search_does(void **state)
{
    (void)state;
    uint32_t fit = 0, misfits = 0, whole = 0;
    for (uint64_t seed = 0; seed < 160; seed++) {
        struct made m;
        bool server = seed % 2, lora = seed / 2 % 2, tight = server || lora ? seed / 4 % 2 : false;
        const struct placement_kind *kind = server ? &kind_server : &kind_data;
        made_init(&m, seed, kind->placement, lora, tight, server, 2 + (uint32_t)(seed % 5));
        struct candidate copy = {0};
        bool exact = server || m.candidate.gathered_layers == 0;
        if (!exact && tight) {
            made_fini(&m);
            continue;
        }
        int settled = kind->settle(&m.bench, &m.candidate);
        assert_int_equal(candidate_copy(&copy, &m.candidate, &m.err), 0);
        for (uint32_t i = 0; i < copy.member_count; i++)
            copy.members[i].state_share =
                exact ? m.candidate.members[i].state_share : 1.0 / copy.member_count;
        double least = least_of(&m, kind, &copy, 0, m.workload.batch_rows);
        if ((settled > 0) != isfinite(least))
            fail_msg("seed %llu: settled %d, least %g", (unsigned long long)seed, settled, least);
        if (settled > 0 && (m.candidate.estimate_s > least * (1 + 1e-9) ||
                            (exact && m.candidate.estimate_s < least * (1 - 1e-9))))
            fail_msg("seed %llu: settled %.9g, least %.9g", (unsigned long long)seed, m.candidate.estimate_s,
                     least);
        if (settled == 0)
            assert_true(m.bench.shortage[kind->placement].missing_bytes > 0);
        fit += settled > 0;
        misfits += settled == 0;
        whole += !server && m.candidate.gathered_layers == 0;
        candidate_fini(&copy);
        made_fini(&m);
    }
    print_message("%u fit, %u do not; %u of whole replicas\n", fit, misfits, whole);
    assert_true(fit > 80 && misfits > 5 && whole > 10);
}

static void members_are_equal(const struct candidate *a, const struct candidate *b)
{
    assert_int_equal(a->member_count, b->member_count);
    assert_int_equal(a->gathered_layers, b->gathered_layers);
    for (uint32_t i = 0; i < a->member_count; i++) {
        assert_int_equal(a->members[i].device, b->members[i].device);
        assert_int_equal(a->members[i].rows, b->members[i].rows);
        assert_int_equal(a->members[i].count, b->members[i].count);
        assert_int_equal(a->members[i].window, b->members[i].window);
        assert_true(fabs(a->members[i].state_share - b->members[i].state_share) < 1e-9);
    }
}

/* With rows of equal length, the estimate is near the simulated time. */
static void plans_are_right_and_take_what_was_estimated(void **state)
{
    (void)state;
    uint32_t plans = 0, count = getenv("MOTLEY_LONG") ? 3000 : 300;
    double off = 0;
    for (uint64_t seed = 0; seed < count; seed++) {
        struct made m;
        const struct placement_kind *kind = seed % 2 ? &kind_server : &kind_data;
        made_init(&m, seed, kind->placement, seed / 2 % 2, seed / 4 % 2, true, 0);
        if (kind->settle(&m.bench, &m.candidate) > 0) {
            struct candidate back;
            double seconds = 0;
            struct plan *plan = kind->emit(&m.problem, &m.candidate, true, &m.err);
            if (!plan || plan_seal(plan, &m.err) < 0 || plan_check(plan, &m.err) < 0)
                fail_msg("seed %llu: %s", (unsigned long long)seed, m.err.text);
            for (uint32_t r = 0; r < plan->rank_count; r++)
                assert_true(plan->ranks[r].memory_bytes <= plan->ranks[r].memory_limit_bytes);
            assert_true(!m.workload.micro_batch_rows || plan->rows_bound <= m.workload.micro_batch_rows);
            assert_int_equal(price_plan(&m.problem, plan, UINT32_MAX, &seconds, &m.err), 0);
            assert_int_equal(kind->from_plan(&m.problem, plan, &back, &m.err), 0);
            members_are_equal(&m.candidate, &back);
            off += fabs(m.candidate.estimate_s / seconds - 1);
            plans++;
            candidate_fini(&back);
            plan_destroy(plan);
        }
        made_fini(&m);
    }
    print_message("%u plans, estimates off by %.1f %% at the mean\n", plans, 100 * off / plans);
    assert_true(plans > count / 2 && off / plans < 0.06);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_split_as_an_exhaustive_search_does),
                                       cmocka_unit_test(plans_are_right_and_take_what_was_estimated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
