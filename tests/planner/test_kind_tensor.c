/* Tests tensor groups: settled candidates pass the checker and take the estimated time, the parts cover every
 * matrix once and fit into memory, a group is faster where links are fast, the all-reduces match
 * docs/PLANNER.md, and spoilt plans are refused. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/cost/fill.h"
#include "planner/cost/price.h"
#include "planner/cost/ring.h"
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

static void model_init(struct made *m)
{
    struct err err = {0};
    m->config = fixture_config(6);
    m->config.vocab = 2048;
    m->config.heads = 16;
    m->config.kv_heads = 8;
    m->config.head_dim = 36;
    m->workload = fixture_workload(&m->config, 24, 9);
    m->workload.place = PLACE_TENSOR;
    m->cluster = cluster_create(&err);
}

/* Makes `nodes` nodes of `each` devices. Links within a node pass `rate` bytes/s. Seed 0: all devices are
 * equally fast. */
static void made_init(struct made *m, uint32_t nodes, uint32_t each, double rate, uint64_t memory,
                      uint64_t seed)
{
    struct err err = {0};
    struct rand_stream r;
    rand_stream_init(&r, seed, 4);
    model_init(m);
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

/* Makes stages of `each` devices with equal numbers of blocks and settles the candidate. Returns false when
 * it does not fit. */
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
    for (int32_t b = 0; b < plan->block_count;
         b++) { /* One member counts the norm of parameters that several keep alike. */
        uint32_t counts = 0;
        for (uint32_t r = 0; r < plan->rank_count; r++)
            counts += plan_counts_alike(plan, r, b);
        assert_int_equal(counts, 1);
    }
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
            before = *part;
        }
        assert_int_equal(before.kv_head_end, m->config.kv_heads);
        assert_int_equal(before.column_end, m->config.ffn);
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
                        1e-9); /* The candidate that is rebuilt from the plan has the same estimate. */
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

/* Two devices need equal times for a layer, but attention has 0.8 of it on one and 0.2 on the other.
 * Estimate and division must know that, as the price of the plan does. */
static void measured_shares_of_attention_are_used(void **state)
{
    (void)state;
    struct made m;
    struct err err = {0};
    struct workbench bench;
    struct candidate c = {0};
    model_init(&m);
    fixture_device_halves(m.cluster, "n0/0", "n0", 400 * MIB, 1, 0.8, 0.1);
    fixture_device_halves(m.cluster, "n0/1", "n0", 400 * MIB, 1, 0.2, 0.3);
    assert_int_equal(cluster_set_defaults(m.cluster, 2e-5, 5e9, 2e-4, 1e8, &err), 0);
    if (problem_init(&m.problem, &m.workload, m.cluster, &err) < 0)
        fail_msg("%s", err.text);
    workbench_init(&bench, &m.problem, &err);
    assert_true(settled(&m, &bench, &c, 1, 2, 4));
    struct plan *plan = emitted(&m, &c);
    double seconds = simulated(&m, plan);
    print_message("estimated %.4f s, simulated %.4f s\n", c.estimate_s, seconds);
    assert_true(fabs(c.estimate_s / seconds - 1) < 0.03);
    for (uint32_t i = 0; i < 2; i++) {
        const struct plan_tensor *part = &c.members[i].tensor;
        uint32_t columns = part->column_end - part->column_begin;
        uint32_t heads = part->kv_head_end - part->kv_head_begin;
        bool attends_slowly = c.members[i].device == 0;
        assert_true(attends_slowly ? heads < m.config.kv_heads / 2 : heads > m.config.kv_heads / 2);
        assert_true(attends_slowly ? columns > m.config.ffn / 2 : columns < m.config.ffn / 2);
    }
    plan_destroy(plan);
    candidate_fini(&c);
    workbench_fini(&bench);
    made_fini(&m);
}

/* The division of heads is optimal: the test tries every way to give eight heads to three devices. */
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
        for (int a = 1; a < 7; a++)
            for (int b = 1; a + b < 8; b++)
                best = fmin(best, fmax(fmax(a * each[0], b * each[1]), (8 - a - b) * each[2]));
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
        for (uint32_t rows = 1; rows <= 9; rows++)
            if (settled(&m, &bench, &c, 1, 2, rows))
                best = fmin(best, c.estimate_s);
        print_message("%.0e bytes/s: %.3f s, one device about %.3f s\n", rates[i], best, alone);
        assert_true(best >= last);
        double ends = 0; /* The first member computes embedding and head alone. */
        for (int way = COST_FORWARD; way <= COST_BACKWARD; way++)
            for (int32_t b = 0; b < m.problem.block_count; b += m.problem.block_count - 1)
                ends += problem_seconds(&m.problem, 0, b, b + 1, (enum cost_way)way, step);
        if (i == 0)
            assert_true(best < ends + 0.62 * (alone - ends));
        last = best;
        candidate_fini(&c);
        workbench_fini(&bench);
        made_fini(&m);
    }
    assert_true(last > alone && last < INFINITY);
}

/* docs/PLANNER.md, "Time": two members exchange their values; more than two send 2(k-1)/k of the bytes in
 * 2(k-1) turns. */
static void two_exchange_and_more_go_round_a_ring(void **state)
{
    (void)state;
    assert_true(
        fabs(tensor_sum_seconds(&(struct ring_figures){.latency_s = 1e-6, .bytes_per_s = 1e9}, 4, 1e6) -
             (1.5e-3 + 6e-6)) < 1e-12);
    assert_true(
        fabs(tensor_sum_seconds(&(struct ring_figures){.latency_s = 1e-3, .bytes_per_s = 1e9}, 2, 1e6) -
             (1e-3 + 1e-3)) < 1e-12);
    assert_true(
        fabs(tensor_broadcast_seconds(&(struct ring_figures){.latency_s = 1e-3, .bytes_per_s = 1e9}, 3, 1e6) -
             (2e-3 + 1e-3)) < 1e-12);
    assert_true(tensor_sum_seconds(&(struct ring_figures){.latency_s = 1e-3, .bytes_per_s = 1e9}, 1, 1e6) ==
                0);
}

/* A group of one member computes the same as one device, and the halves of a block add up to the block. */
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

/* What a profile measured with a quarter of the heads and columns says how long half of them take. */
static void what_a_cut_does_not_shrink_is_measured(void **state)
{
    (void)state;
    struct made m;
    struct err err = {0};
    const double fixed = 0.3;
    model_init(&m);
    fixture_device_halves(m.cluster, "n0/0", "n0", 400 * MIB, 1, 0.4, fixed);
    if (problem_init(&m.problem, &m.workload, m.cluster, &err) < 0)
        fail_msg("%s", err.text);
    const struct plan_tensor half = {0, m.config.kv_heads / 2, 0, m.config.ffn / 2};
    for (int way = 0; way < COST_WAYS; way++) {
        const struct cost_load *load = &m.problem.mean_step;
        double all = problem_seconds(&m.problem, 0, 1, 2, (enum cost_way)way, load);
        double attention = tensor_attention(&m.problem, 0, 1, (enum cost_way)way, load);
        double first = tensor_seconds(&m.problem, 0, &half, 1, TENSOR_FIRST, (enum cost_way)way, load);
        double second = tensor_seconds(&m.problem, 0, &half, 1, TENSOR_SECOND, (enum cost_way)way, load);
        double shrunk = fixed + (1 - fixed) * 0.5;
        assert_true(fabs(first - all * attention * shrunk) < 1e-9 * all);
        assert_true(fabs(second - all * (1 - attention) * shrunk) < 1e-9 * all);
    }
    made_fini(&m);
}

/* Members that send and receive at once have the rate that was measured so, and a chain of stages that of one
 * way. */
static void a_ring_has_the_rate_of_both_ways(void **state)
{
    (void)state;
    struct made m;
    struct err err = {0};
    const uint32_t ring[] = {0, 1};
    made_init(&m, 2, 1, 5e9, 400 * MIB, 0);
    json_t *link = json_pack("{s:s, s:s, s:f, s:f, s:f}", "from", "n0", "to", "n1", "latency_s", 1e-4,
                             "bytes_per_s", 4e8, "duplex_bytes_per_s", 2.5e8);
    assert_int_equal(cluster_add_link(m.cluster, link, &err), 0);
    json_decref(link);
    assert_true(cluster_link(m.cluster, 0, 1).bytes_per_s == 4e8);
    assert_true(ring_figures(m.cluster, ring, NULL, NULL, 2).bytes_per_s == 2.5e8);
    made_fini(&m);
}

/* Where micro-batches are worked on in turns, each sum takes CPU time of what is computed beside it: of a
 * group on CPUs that is bound by computing, as much in all as its sums have bytes. One at a time, nothing is
 * beside. */
static void sums_beside_computing_take_of_it(void **state)
{
    (void)state;
    struct made m;
    struct err err = {0};
    struct workbench bench;
    struct candidate c = {0};
    made_init(&m, 1, 2, 5e9, 400 * MIB, 0);
    workbench_init(&bench, &m.problem, &err);
    assert_true(settled(&m, &bench, &c, 1, 2, 4));
    for (uint32_t together = 1; together <= 3; together++) {
        double seconds[2], estimates[2];
        for (int counted = 0; counted <= 1; counted++) {
            for (uint32_t d = 0; d < 2; d++)
                m.cluster->devices[d].profile.wire_s_per_byte = counted ? 1e-9 : 0;
            c.together = together;
            assert_int_equal(kind_tensor.estimate(&bench, &c), 1);
            estimates[counted] = c.estimate_s;
            struct plan *plan = emitted(&m, &c);
            seconds[counted] = simulated(&m, plan);
            plan_destroy(plan);
        }
        const double sums = 4.0 * m.config.layers * m.problem.mean_step.tokens;
        const double most = sums * tensor_token_bytes(&m.problem) * 1e-9;
        print_message("%u in turns: %.3f ms more, estimated %.3f, of %.3f\n", together,
                      1e3 * (seconds[1] - seconds[0]), 1e3 * (estimates[1] - estimates[0]), 1e3 * most);
        for (int k = 0; k < 2; k++) {
            const double more = k ? estimates[1] - estimates[0] : seconds[1] - seconds[0];
            assert_true(together == 1 ? more == 0 : more > 0.5 * most && more < 1.001 * most);
        }
    }
    candidate_fini(&c);
    workbench_fini(&bench);
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

/* Returns the k-th instruction of an operation on a rank. */
static struct instr *find(struct plan *plan, uint32_t rank, int op, uint16_t flag, uint32_t k)
{
    struct program *p = &plan->ranks[rank].programs[PROGRAM_TRAIN];
    for (uint32_t i = 0; i < p->instr_count; i++)
        if (p->instrs[i].op == op && (p->instrs[i].flags & flag) == flag && k-- == 0)
            return &p->instrs[i];
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
    plan = emitted(
        &m,
        candidate); /* Spoilt: all members leave out one all-reduce, so the next half reads partial sums. */
    for (uint32_t r = 0; r < candidate->stages[0].member_count; r++) {
        struct instr *x = find(plan, r, INSTR_ALL_REDUCE, 0, 1);
        x->op = INSTR_RELEASE;
        x->queue = QUEUE_COMPUTE;
        x->group = x->slot_in = x->slot_out = PLAN_NONE;
        x->flags = 0;
    }
    refused(plan, "not summed");
    plan = emitted(
        &m,
        candidate); /* Spoilt: no all-reduce sums the gradients of the parameters that all members keep. */
    for (uint32_t r = 0; r < candidate->stages[0].member_count; r++)
        for (uint32_t i = 0; i < plan->ranks[r].programs[PROGRAM_TRAIN].instr_count; i++) {
            struct instr *x = &plan->ranks[r].programs[PROGRAM_TRAIN].instrs[i];
            if (x->tag == TAG_PARAMETER_GRADIENTS)
                x->slot_in = x->slot_out =
                    plan->ranks[r].slot_count - 1; /* The last slot is the barrier's. */
        }
    refused(plan, "never reduced");
    plan =
        emitted(&m, candidate); /* Spoilt: member 0 computes a whole layer where the others compute a half. */
    find(plan, 0, INSTR_FORWARD, FLAG_SECOND_HALF, 2)->flags &= (uint16_t)~FLAG_SECOND_HALF;
    refused(plan, "");
    plan = emitted(&m, candidate); /* Spoilt: one half is computed twice and the other never. */
    for (uint32_t r = 0; r < candidate->stages[0].member_count; r++) {
        struct instr *x = find(plan, r, INSTR_BACKWARD, FLAG_SECOND_HALF, 0);
        x->flags = (uint16_t)((x->flags & ~FLAG_SECOND_HALF) | FLAG_FIRST_HALF);
    }
    refused(plan, "");
    candidate_fini(&c);
    workbench_fini(&bench);
    made_fini(&m);
}

/* What the engine cannot divide is refused with the name of the setting or of the model's property. */
static void what_is_not_cut_is_refused_by_name(void **state)
{
    (void)state;
    const struct {
        const char *says;
        bool moments8, boundary, joined, outputs, all_heads;
        uint32_t kv_heads, experts;
        enum workload_base base;
    } wrong[] = {
        {.says = "8-bit moments", .moments8 = true},
        {.says = "placement.boundary asks for 16 bits", .boundary = true},
        {.says = "q, k and v of this model are one matrix", .joined = true},
        {.says = "outputs are normed", .outputs = true},
        {.says = "a norm goes over all heads", .all_heads = true},
        {.says = "the model has one", .kv_heads = 1},
        {.says = "experts are not cut", .experts = 4},
        /* Each key head has 72 values of o_proj's input, which are not whole blocks of 64. */
        {.says = "cuts between key heads would divide blocks", .base = BASE_NF4},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct made m;
        struct err err = {0};
        made_init(&m, 1, 2, 5e9, 400 * MIB, 1);
        assert_true(kind_supports(&kind_tensor, &m.problem, &err));
        problem_fini(&m.problem);
        m.workload.moments8 = wrong[i].moments8;
        m.workload.boundary = wrong[i].boundary ? PLAN_BF16 : PLAN_F32;
        m.workload.base = wrong[i].base;
        m.config.packed_qkv = wrong[i].joined;
        m.config.post_norms = wrong[i].outputs;
        m.config.qk_norm = wrong[i].all_heads ? 2 : 0;
        m.config.kv_heads = wrong[i].kv_heads ? wrong[i].kv_heads : m.config.kv_heads;
        m.config.experts = wrong[i].experts;
        m.config.experts_active = m.config.experts ? 2 : 0;
        m.config.expert_ffn = m.config.experts ? 64 : 0;
        assert_int_equal(problem_init(&m.problem, &m.workload, m.cluster, &err), 0);
        assert_false(kind_supports(&kind_tensor, &m.problem, &err));
        if (!strstr(err.text, wrong[i].says))
            fail_msg("\"%s\", not \"%s\"", err.text, wrong[i].says);
        made_fini(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_settled_runs_as_estimated),
        cmocka_unit_test(measured_shares_of_attention_are_used),
        cmocka_unit_test(the_deal_of_heads_is_the_best_there_is),
        cmocka_unit_test(a_group_is_faster_on_fast_links_and_slower_than_a_device_on_slow_ones),
        cmocka_unit_test(two_exchange_and_more_go_round_a_ring),
        cmocka_unit_test(halves_of_a_block_add_up),
        cmocka_unit_test(what_a_cut_does_not_shrink_is_measured),
        cmocka_unit_test(a_ring_has_the_rate_of_both_ways),
        cmocka_unit_test(sums_beside_computing_take_of_it),
        cmocka_unit_test(spoilt_groups_are_refused),
        cmocka_unit_test(what_is_not_cut_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
