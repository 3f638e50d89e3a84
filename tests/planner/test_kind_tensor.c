/* Tensor groups: what is settled passes the checker and takes as long as estimated, parts tile every matrix
 * and memory, a group is faster where links are fast; the sums are what docs/PLANNER.md says; spoilt plans
 * are refused. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/cost/fill.h"
#include "planner/cost/price.h"
#include "planner/cost/tensor_cost.h"
#include "planner/kind/kind.h"

extern const struct placement_kind kind_tensor;

#define MIB ((uint64_t)1 << 20)

struct made {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    struct problem problem;
};

/* `nodes` of `each` devices; within a node links of `rate` bytes/s. */
static void made_init(struct made *m, uint32_t nodes, uint32_t each, double rate, uint64_t memory,
                      uint64_t seed)
{
    struct err err = {0};
    struct rand_stream r;
    rand_stream_init(&r, seed, 4);
    m->config = fixture_config(6);
    m->config.vocab = 2048;
    m->config.heads = 16;
    m->config.kv_heads = 8;
    m->config.head_dim = 36;
    m->workload = fixture_workload(&m->config, 24, 9);
    m->workload.place = PLACE_TENSOR;
    m->cluster = cluster_create(&err);
    for (uint32_t d = 0; d < nodes * each; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d / each);
        snprintf(name, sizeof(name), "n%u/%u", d / each, d);
        fixture_device(m->cluster, name, node, memory, seed ? 0.4 + rand_stream_unit(&r) : 1);
    }
    assert_int_equal(cluster_set_defaults(m->cluster, 2e-5, rate, 2e-4, 1e8, &err), 0);
    if (problem_init(&m->problem, &m->workload, m->cluster, &err) < 0)
        fail_msg("%s", err.text);
}

static void made_fini(struct made *m)
{
    problem_fini(&m->problem);
    cluster_destroy(m->cluster);
    workload_fini(&m->workload);
}

/* Stages of `each` devices, blocks alike; settled, or false. */
static bool settled(struct made *m, struct workbench *bench, struct candidate *c, uint32_t stages,
                    uint32_t each, uint32_t rows)
{
    struct err err = {0};
    assert_int_equal(candidate_reserve(c, stages, stages * each, &err), 0);
    c->stage_count = stages;
    c->member_count = stages * each;
    c->micro_batch_rows = rows;
    for (uint32_t s = 0; s < stages; s++) {
        int32_t blocks = m->problem.block_count;
        c->stages[s] = (struct candidate_stage){.block_begin = blocks * (int32_t)s / (int32_t)stages,
                                                .block_end = blocks * ((int32_t)s + 1) / (int32_t)stages,
                                                .member_first = s * each,
                                                .member_count = each};
    }
    for (uint32_t d = 0; d < c->member_count; d++)
        c->members[d] = (struct member){.device = d};
    int fits = kind_tensor.settle(bench, c);
    assert_true(fits >= 0);
    return fits;
}

static struct plan *emitted(const struct made *m, const struct candidate *candidate)
{
    struct err err = {0};
    struct plan *plan = kind_tensor.emit(&m->problem, candidate, true, &err);
    if (!plan || plan_check(plan, &err) < 0)
        fail_msg("%s", err.text);
    return plan;
}

static double simulated(const struct made *m, struct plan *plan)
{
    struct err err = {0};
    double seconds = 0;
    if (price_plan(&m->problem, plan, 32, &seconds, &err) < 0)
        fail_msg("%s", err.text);
    return seconds;
}

static void parts_tile(const struct made *m, const struct candidate *c)
{
    for (uint32_t s = 0; s < c->stage_count; s++) {
        struct plan_tensor before = {0};
        for (uint32_t i = 0; i < c->stages[s].member_count; i++) {
            const struct plan_tensor *part = &c->members[c->stages[s].member_first + i].tensor;
            assert_true(part->kv_head_end > part->kv_head_begin && part->column_end > part->column_begin);
            assert_int_equal(part->kv_head_begin, before.kv_head_end);
            assert_int_equal(part->column_begin, before.column_end);
            assert_int_equal(part->vocabulary_begin, before.vocabulary_end);
            before = *part;
        }
        assert_int_equal(before.kv_head_end, m->config.kv_heads);
        assert_int_equal(before.column_end, m->config.ffn);
        assert_int_equal(before.vocabulary_end, m->config.vocab);
    }
}

static void what_is_settled_runs_as_estimated(void **state)
{
    (void)state;
    uint32_t plans = 0, none = 0, unlike = 0, turns = 0;
    double worst = 0, mean = 0;
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct made m;
        struct err err = {0};
        struct workbench bench;
        struct candidate c = {0}, read = {0};
        uint32_t stages = 1 + seed % 3, each = 2 + seed % 2;
        made_init(&m, stages, each, seed % 4 == 3 ? 3e8 : 5e9, seed % 5 == 4 ? 14 * MIB : 400 * MIB, seed);
        workbench_init(&bench, &m.problem, &err);
        for (uint32_t rows = 1; rows <= 9; rows += rows) {
            if (!settled(&m, &bench, &c, stages, each, rows)) {
                assert_true(isinf(c.estimate_s) && bench.shortage[PLACE_TENSOR].missing_bytes > 0);
                none++;
                continue;
            }
            parts_tile(&m, &c);
            struct plan *plan = emitted(&m, &c);
            double off = fabs(c.estimate_s / simulated(&m, plan) - 1), estimate = c.estimate_s;
            assert_int_equal(kind_tensor.from_plan(&m.problem, plan, &read, &err), 0);
            assert_int_equal(kind_tensor.estimate(&bench, &read), 1);
            assert_true(fabs(read.estimate_s / estimate - 1) <
                        1e-9); /* what is read off the plan is the same */
            mean += off;
            worst = fmax(worst, off);
            plans++;
            turns += c.together > 1;
            unlike += c.members[0].tensor.kv_head_end * each != m.config.kv_heads;
            plan_destroy(plan);
        }
        candidate_fini(&c);
        candidate_fini(&read);
        workbench_fini(&bench);
        made_fini(&m);
    }
    print_message("%u plans, %u with unlike shares, %u in turns, %u did not fit; estimates off by %.1f %% at "
                  "the mean, %.0f %% at worst\n",
                  plans, unlike, turns, none, 100 * mean / plans, 100 * worst);
    assert_true(plans > 50 && none > 3 && unlike > 20 && turns > 20 && mean / plans < 0.05 && worst < 0.3);
}

/* No rounding of heads leaves a faster deal: every way to give eight heads to three devices. */
static void the_deal_of_heads_is_the_best_there_is(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed < 40; seed++) {
        struct made m;
        const double base[3] = {0}, cap[3] = {1, 1, 1};
        uint32_t heads[3];
        double each[3], best = INFINITY, dealt = 0;
        made_init(&m, 1, 3, 5e9, 400 * MIB, seed);
        for (uint32_t d = 0; d < 3; d++) {
            each[d] = problem_seconds(&m.problem, d, 1, 2, COST_FORWARD, &m.problem.mean_row) +
                      problem_seconds(&m.problem, d, 1, 2, COST_BACKWARD, &m.problem.mean_row);
        }
        assert_true(fill_whole(3, 8, 1, base, each, cap, heads));
        for (uint32_t d = 0; d < 3; d++)
            dealt = fmax(dealt, each[d] * heads[d]);
        for (int a = 1; a < 7; a++) {
            for (int b = 1; a + b < 8; b++)
                best = fmin(best, fmax(fmax(a * each[0], b * each[1]), (8 - a - b) * each[2]));
        }
        assert_true(dealt <= best * (1 + 1e-9));
        made_fini(&m);
    }
}

static void a_group_is_faster_on_fast_links_and_slower_than_a_device_on_slow_ones(void **state)
{
    (void)state;
    double alone = 0, rates[] = {2e10, 2e9, 3e8, 3e7, 3e6}, last = 0;
    for (uint32_t i = 0; i < 5; i++) {
        struct made m;
        struct err err = {0};
        struct workbench bench;
        struct candidate c = {0};
        double best = INFINITY;
        made_init(&m, 1, 2, rates[i], 400 * MIB, 0);
        workbench_init(&bench, &m.problem, &err);
        const struct cost_load *step = &m.problem.mean_step;
        alone = problem_seconds(&m.problem, 0, 0, m.problem.block_count, COST_FORWARD, step) +
                problem_seconds(&m.problem, 0, 0, m.problem.block_count, COST_BACKWARD, step);
        for (uint32_t rows = 1; rows <= 9; rows++) {
            if (settled(&m, &bench, &c, 1, 2, rows))
                best = fmin(best, c.estimate_s);
        }
        print_message("%.0e bytes/s: %.3f s, one device about %.3f s\n", rates[i], best, alone);
        assert_true(best >= last);
        if (i == 0)
            assert_true(best < 0.62 * alone);
        last = best;
        candidate_fini(&c);
        workbench_fini(&bench);
        made_fini(&m);
    }
    assert_true(last > alone && last < INFINITY);
}

/* docs/PLANNER.md, ring all-reduce: 2(k−1)/k·X/β + 2(k−1)·α; a tree where latency counts for more. */
static void sums_take_a_ring_or_a_tree(void **state)
{
    (void)state;
    assert_true(fabs(tensor_sum_seconds(4, 1e6, 1e-6, 1e9) - (1.5e-3 + 6e-6)) < 1e-12);
    assert_true(fabs(tensor_sum_seconds(2, 1e6, 1e-3, 1e9) - (1e-3 + 2e-3)) < 1e-12);
    assert_true(fabs(tensor_sum_seconds(7, 8, 1e-3, 1e9) - 4 * (1e-3 + 8e-9)) < 1e-12);
    assert_true(tensor_sum_seconds(1, 1e6, 1e-3, 1e9) == 0);
}

/* One step of one device and of a group of one is the same work; halves add up to the whole. */
static void halves_of_a_block_add_up(void **state)
{
    (void)state;
    struct made m;
    made_init(&m, 1, 2, 5e9, 400 * MIB, 3);
    const struct plan_tensor whole = {0};
    for (int32_t b = 0; b < m.problem.block_count; b++) {
        for (int way = 0; way < COST_WAYS; way++) {
            double all = problem_seconds(&m.problem, 0, b, b + 1, (enum cost_way)way, &m.problem.mean_step);
            double sum = tensor_seconds(&m.problem, 0, &whole, b, TENSOR_WHOLE, (enum cost_way)way,
                                        &m.problem.mean_step);
            assert_true(fabs(all - sum) <= 1e-12 * all);
            if (b == 0 || b + 1 == m.problem.block_count)
                continue;
            sum = tensor_seconds(&m.problem, 0, &whole, b, TENSOR_FIRST, (enum cost_way)way,
                                 &m.problem.mean_step) +
                  tensor_seconds(&m.problem, 0, &whole, b, TENSOR_SECOND, (enum cost_way)way,
                                 &m.problem.mean_step);
            assert_true(fabs(all - sum) <= 1e-12 * all);
        }
    }
    made_fini(&m);
}

static void refused(struct plan *plan, const char *text)
{
    struct err err = {0};
    if (plan_check(plan, &err) == 0)
        fail_msg("accepted, though \"%s\"", text);
    if (!strstr(err.text, text) || !strstr(err.text, "rank"))
        fail_msg("\"%s\" says nothing of \"%s\"", err.text, text);
    plan_destroy(plan);
}

/* The k-th instruction of an op on a rank. */
static struct instr *find(struct plan *plan, uint32_t rank, int op, uint16_t flag, uint32_t k)
{
    struct program *p = &plan->ranks[rank].programs[PROGRAM_TRAIN];
    for (uint32_t i = 0; i < p->instr_count; i++) {
        if (p->instrs[i].op == op && (p->instrs[i].flags & flag) == flag && k-- == 0)
            return &p->instrs[i];
    }
    fail();
    return NULL;
}

static void spoilt_groups_are_refused(void **state)
{
    (void)state;
    struct made m;
    made_init(&m, 2, 2, 5e9, 400 * MIB, 1);
    struct err err = {0};
    struct workbench bench;
    struct candidate c = {0};
    const struct candidate *candidate = &c;
    workbench_init(&bench, &m.problem, &err);
    assert_true(settled(&m, &bench, &c, 2, 2, 1));
    struct plan *plan = emitted(&m, candidate);
    uint32_t other = candidate->stages[0].member_count - 1;
    plan->ranks[other].tensor.column_begin++;
    refused(plan, "do not follow");
    plan = emitted(&m, candidate);
    plan->ranks[other].tensor.kv_head_end--;
    refused(plan, "another stage");
    plan = emitted(&m, candidate); /* a sum left out on all members: the next half reads a part */
    for (uint32_t r = 0; r < candidate->stages[0].member_count; r++) {
        struct instr *x = find(plan, r, INSTR_ALL_REDUCE, 0, 1);
        x->op = INSTR_RELEASE;
        x->queue = QUEUE_COMPUTE;
        x->group = x->slot_in = x->slot_out = PLAN_NONE;
        x->flags = 0;
    }
    refused(plan, "not summed");
    plan = emitted(&m, candidate); /* only one member does a half */
    find(plan, 0, INSTR_FORWARD, FLAG_SECOND_HALF, 2)->flags &= (uint16_t)~FLAG_SECOND_HALF;
    refused(plan, "");
    plan = emitted(&m, candidate); /* a half done twice, the other not at all */
    for (uint32_t r = 0; r < candidate->stages[0].member_count; r++) {
        struct instr *x = find(plan, r, INSTR_BACKWARD, FLAG_SECOND_HALF, 0);
        x->flags = (uint16_t)((x->flags & ~FLAG_SECOND_HALF) | FLAG_FIRST_HALF);
    }
    refused(plan, "");
    candidate_fini(&c);
    workbench_fini(&bench);
    made_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_settled_runs_as_estimated),
        cmocka_unit_test(the_deal_of_heads_is_the_best_there_is),
        cmocka_unit_test(a_group_is_faster_on_fast_links_and_slower_than_a_device_on_slow_ones),
        cmocka_unit_test(sums_take_a_ring_or_a_tree),
        cmocka_unit_test(halves_of_a_block_add_up),
        cmocka_unit_test(spoilt_groups_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
