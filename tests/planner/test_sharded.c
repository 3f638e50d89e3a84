/* Tests the kind `data` with sharded state: plans are correct, rows are divided exactly, and uneven shares
 * beat even ones. */
#include "planner/layered_world.h"

#include <math.h>

#include "planner/cost/price.h"
#include "planner/cost/ring.h"
#include "planner/emit/layered.h"
#include "planner/emit/share.h"
#include "planner/kind/split.h"

#define MIB ((uint64_t)1 << 20)

struct made {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    struct plan_answer *answer;
    struct plan *plan; /* a plan of any candidate that fits, not only of one that a search would choose */
};

static uint64_t times(uint64_t usual, uint64_t longer)
{
    return getenv("MOTLEY_LONG") ? longer : usual;
}

/* Draws a full fine-tuning job, or LoRA with a base that is too large for one device, on random devices. */
static void made_init(struct made *m, uint64_t seed, uint32_t devices_max, bool lora, int place)
{
    struct rand_stream r;
    struct err err = {0};
    rand_stream_init(&r, seed, 2);
    uint32_t layers = (lora ? 6 : 1) + rand_stream_below(&r, 7),
             devices = 2 + rand_stream_below(&r, devices_max - 1);
    m->config = fixture_config(layers);
    m->config.vocab = 2048;
    m->config.tied = rand_stream_below(&r, 2);
    m->workload = fixture_workload(&m->config, 10 + rand_stream_below(&r, 60), 2 + rand_stream_below(&r, 23));
    m->workload.method = lora ? METHOD_LORA : METHOD_FULL;
    m->workload.compute = rand_stream_below(&r, 2) ? COMPUTE_BF16 : COMPUTE_FP32;
    m->workload.recompute = (enum workload_recompute)rand_stream_below(&r, 3);
    m->workload.sample_tokens = rand_stream_below(&r, 2) ? 96 : 0;
    m->workload.prompt_tokens = m->workload.sample_tokens / 2;
    m->workload.place = place;
    devices = place == PLACE_HYBRID && devices < 3 ? 3 : devices;
    m->cluster = cluster_create(&err);
    uint64_t base = lora ? 45 : 60, more = lora ? 16 * layers : 120 * layers;
    for (uint32_t d = 0; d < devices; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d / 2);
        snprintf(name, sizeof(name), "n%u/%u", d / 2, d);
        fixture_device(m->cluster, name, node, (base + rand_stream_below(&r, (uint32_t)more)) * MIB,
                       0.3 + rand_stream_unit(&r));
        if (d > 1 && d % 2 == 0)
            fixture_link(m->cluster, "n0", node, 1e-4, 2e7 + 2e9 * rand_stream_unit(&r));
    }
    m->answer = NULL;
    m->plan = any_plan(&m->workload, m->cluster, place, &r, seed);
}

static void made_fini(struct made *m)
{
    plan_answer_destroy(m->answer);
    plan_destroy(m->plan);
    cluster_destroy(m->cluster);
    workload_fini(&m->workload);
}

static void shares_and_rows_add_up(const struct plan *plan, uint64_t seed)
{
    double sum = 0;
    uint32_t rows = 0;
    assert_non_null(plan->groups[1].shares);
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        assert_true(plan->groups[1].shares[r] >= 0);
        sum += plan->groups[1].shares[r];
        rows += plan->ranks[r].rows;
        if (plan->ranks[r].memory_bytes > plan->ranks[r].memory_limit_bytes)
            fail_msg("seed %llu: rank %u overflows", (unsigned long long)seed, r);
        assert_true(plan->trains_embedding ? plan->ranks[r].state_share == plan->groups[1].shares[r]
                                           : plan->ranks[r].state_share == 1);
    }
    assert_true(fabs(sum - 1) < 1e-9);
    assert_int_equal(rows, plan->batch_rows);
}

static uint32_t plans_are_right(uint64_t first, uint64_t count, bool lora, uint32_t *idle)
{
    struct rand_stream random;
    uint32_t plans = 0;
    rand_stream_init(&random, 5, first);
    for (uint64_t seed = first; seed < first + count; seed++) {
        struct made m;
        struct err err = {0};
        char why[160] = "";
        made_init(&m, seed, 5, lora, PLACE_DATA);
        struct plan *plan = m.plan;
        if (plan && plan->groups[1].shares) {
            plans++;
            if (plan_check(plan, &err) < 0)
                fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
            shares_and_rows_add_up(plan, seed);
            if (world_holds(plan) && !world_right(plan, &random, 2, why))
                fail_msg("seed %llu: %s", (unsigned long long)seed, why);
            for (uint32_t r = 0; r < plan->rank_count; r++)
                *idle += plan->ranks[r].rows == 0;
            json_t *json = plan_to_json(plan, &err);
            struct plan *again = plan_from_json(json, &err);
            if (!again || plan_check(again, &err) < 0)
                fail_msg("seed %llu: read again: %s", (unsigned long long)seed, err.text);
            plan_destroy(again);
            json_decref(json);
        }
        made_fini(&m);
    }
    return plans;
}

static void every_plan_passes_the_checker_and_an_execution(void **state)
{
    (void)state;
    uint32_t idle = 0, count = (uint32_t)times(150, 2000);
    uint32_t plans = plans_are_right(0, count, false, &idle);
    print_message("%u plans of %u clusters, %u ranks keep state and take no rows\n", plans, count, idle);
    assert_true(plans > count / 2);
}

/* Hybrids: the members of each pipeline stage share the stage's state. */
static void every_hybrid_plan_passes_the_checker_and_an_execution(void **state)
{
    (void)state;
    struct rand_stream random;
    uint32_t plans = 0, tied = 0, count = (uint32_t)times(40, 1500);
    rand_stream_init(&random, 5, 1);
    for (uint64_t seed = 0; seed < count; seed++) {
        struct made m;
        struct err err = {0};
        char why[160] = "";
        made_init(&m, seed, 6, false, PLACE_HYBRID);
        struct plan *plan = m.plan;
        if (plan) {
            double sum = 0;
            plans++;
            tied += m.config.tied;
            if (plan_check(plan, &err) < 0)
                fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
            if (world_holds(plan) && !world_right(plan, &random, 2, why))
                fail_msg("seed %llu: %s", (unsigned long long)seed, why);
            for (uint32_t r = 0; r < plan->rank_count; r++) {
                sum += plan->ranks[r].state_share;
                assert_true(plan->ranks[r].memory_bytes <= plan->ranks[r].memory_limit_bytes);
            }
            assert_true(fabs(sum - 1) < 1e-9);
        }
        made_fini(&m);
    }
    print_message("%u plans of %u clusters, %u with a tied embedding\n", plans, count, tied);
    assert_true(plans > count / 3 && tied > plans / 5);
}

static void a_base_too_large_for_a_device_is_sharded_for_lora(void **state)
{
    (void)state;
    uint32_t idle = 0, count = (uint32_t)times(150, 1500);
    uint32_t plans = plans_are_right(100000, count, true, &idle);
    print_message("%u plans of %u clusters shard the base\n", plans, count);
    assert_true(plans > count / 20);
}

static void what_an_execution_finds_wrong_the_checker_refuses(void **state)
{
    (void)state;
    struct rand_stream random;
    uint32_t found = 0, refused_only = 0, wanted = (uint32_t)times(150, 1000);
    rand_stream_init(&random, 99, 7);
    for (uint64_t seed = 0; found < wanted && seed < 20 * wanted; seed++) {
        struct made m;
        struct err err = {0};
        char why[160] = "";
        made_init(&m, seed % 61, 3, false, seed % 3 ? PLACE_DATA : PLACE_HYBRID);
        struct plan *plan = m.plan;
        for (int turn = 0; turn < 12 && plan && world_holds(plan) && plan->micro_batch_count <= 8; turn++) {
            json_t *json = plan_to_json(plan, &err);
            struct plan *copy = plan_from_json(json, &err);
            json_decref(json);
            assert_non_null(copy);
            if (world_spoil(copy, &random)) {
                bool good = world_right(copy, &random, 4, why), accepted = plan_check(copy, &err) == 0;
                if (!good && accepted)
                    fail_msg("seed %llu: accepted, but %s", (unsigned long long)seed, why);
                if (!good && (!strstr(err.text, "rank") || !strstr(err.text, "instruction")))
                    if (!strstr(err.text, "micro-batch") && !strstr(err.text, "collectives") &&
                        !strstr(err.text, "train"))
                        fail_msg("\"%s\" names no rank and instruction", err.text);
                found += !good;
                refused_only += good && !accepted;
            }
            plan_destroy(copy);
        }
        made_fini(&m);
    }
    print_message("%u spoilt programs found wrong, all refused; %u more refused\n", found, refused_only);
    assert_true(found >= wanted);
}

static struct instr *find(struct plan *plan, uint32_t rank, int op, int32_t block)
{
    struct program *p = &plan->ranks[rank].programs[PROGRAM_TRAIN];
    for (uint32_t i = 0; i < p->instr_count; i++)
        if (p->instrs[i].op == op && (block < 0 || p->instrs[i].block_begin == block))
            return &p->instrs[i];
    fail_msg("no such instruction");
    return NULL;
}

static void refused(struct plan *plan, const char *what, const char *where)
{
    struct err err = {0};
    assert_int_equal(plan_check(plan, &err), -1);
    if (!strstr(err.text, what) || !strstr(err.text, where))
        fail_msg("\"%s\" does not say \"%s\" and \"%s\"", err.text, what, where);
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    struct made m;
    struct err err = {0};
    uint64_t seed = 0;
    for (;;
         seed++) { /* Searches for a plan of a tied model with two ranks or more, all with rows and shards. */
        bool good;
        made_init(&m, seed, 3, false, PLACE_DATA);
        const struct plan *p = m.plan;
        good = p && m.config.tied && m.config.layers >= 4;
        for (uint32_t r = 0; good && r < p->rank_count; r++)
            good = p->ranks[r].rows > 0 && p->groups[1].shares[r] > 0;
        if (good)
            break;
        made_fini(&m);
    }
    struct plan *plan = m.plan;
    assert_int_equal(plan_check(plan, &err), 0);

    double *share = &plan->groups[1].shares[0], old = *share;
    *share = old / 2;
    refused(plan, "the shares of its ranks sum to", "group 1");
    *share = old;

    struct instr *x = find(plan, 1, INSTR_RELEASE, 1), kept = *x;
    x->block_begin = 2;
    x->block_end = 3;
    refused(plan, "are freed", "rank 1 train instruction");
    *x = kept;

    x = find(plan, 0, INSTR_FORWARD, 1); /* The instruction does not wait for its weights. */
    kept = *x;
    x->after_count = 0;
    refused(plan, "the weights of block 1 may be used before they come", "rank 0 train instruction");
    *x = kept;

    x = find(plan, 0, INSTR_REDUCE_SCATTER, 1);
    kept = *x;
    x->after_count = 0;
    refused(plan, "gradients of block 1", "rank 0 train instruction");
    *x = kept;

    x = find(plan, 0, INSTR_STEP, -1);
    x->op = INSTR_RELEASE;
    refused(plan, "STEP instructions; it must be one", "rank 0 train");
    x->op = INSTR_STEP;
    x->group = 77;
    refused(plan, "a group that it is not in", "rank 0 train instruction");
    x->group = 1;

    for (uint32_t r = 0; r < plan->rank_count; r++) { /* Block 1 is used in place of block 2 on all ranks. */
        x = find(plan, r, INSTR_REDUCE_SCATTER, 2);
        x->block_begin = 1;
        x->block_end = 2;
    }
    refused(plan, "gradients of block", "rank 0 train instruction");
    made_fini(&m);
}

/* --- the exact split --- */

static double brute(const struct split_member *members, uint32_t count, uint32_t left, int64_t state,
                    double worst)
{
    double best = INFINITY;
    if (count == 0)
        return left == 0 && state <= 0 ? worst : INFINITY;
    for (uint32_t i = 0; i < members->option_count; i++) {
        const struct split_option *o = &members->options[i];
        if (o->total <= left)
            best = fmin(best, brute(members + 1, count - 1, left - o->total, state - o->room,
                                    fmax(worst, o->seconds)));
    }
    return best;
}

static int by_total(const void *left, const void *right)
{
    const struct split_option *a = left, *b = right;
    return a->total < b->total ? -1 : a->total > b->total;
}

static void rows_are_split_as_brute_force_does(void **state)
{
    (void)state;
    struct rand_stream r;
    uint32_t feasible = 0;
    rand_stream_init(&r, 11, 3);
    for (int turn = 0; turn < 3000; turn++) {
        struct split_option options[4][24], chosen[4];
        struct split_member members[4];
        uint32_t count = 2 + rand_stream_below(&r, 3), batch = 2 + rand_stream_below(&r, 9);
        int64_t wanted = rand_stream_below(&r, 300);
        for (uint32_t m = 0; m < count; m++) {
            members[m] =
                (struct split_member){.option_count = 1 + rand_stream_below(&r, 10), .options = options[m]};
            for (uint32_t i = 0; i < members[m].option_count; i++)
                options[m][i] = (struct split_option){.seconds = rand_stream_below(&r, 40),
                                                      .room = rand_stream_below(&r, 100),
                                                      .total = rand_stream_below(&r, batch + 1)};
            qsort(options[m], members[m].option_count, sizeof(options[m][0]), by_total);
        }
        struct err err;
        double seconds = 0, best = brute(members, count, batch, wanted, 0);
        int result = split_solve(members, count, batch, wanted, chosen, &err);
        assert_int_equal(result, best < INFINITY);
        if (result == 0)
            continue;
        feasible++;
        uint32_t total = 0;
        int64_t room = 0;
        for (uint32_t m = 0; m < count; m++) {
            total += chosen[m].total;
            room += chosen[m].room;
            seconds = fmax(seconds, chosen[m].seconds);
        }
        assert_true(seconds == best);
        assert_int_equal(total, batch);
        assert_true(room >= wanted);
    }
    assert_true(feasible > 500);
}

/* --- shards --- */

static double level_of(const struct share_member *members, const double *shares, uint32_t count)
{
    double level = 0;
    for (uint32_t i = 0; i < count; i++)
        level = fmax(level, (1 - shares[i]) / members[i].bytes_per_s);
    return level;
}

static double step_of(const struct share_member *members, const double *shares, uint32_t count)
{
    double worst = 0;
    for (uint32_t i = 0; i < count; i++)
        worst = fmax(worst, shares[i] * members[i].step_s);
    return worst;
}

static void shards_fit_and_no_other_division_is_better(void **state)
{
    (void)state;
    struct rand_stream r;
    uint32_t divided = 0;
    rand_stream_init(&r, 12, 3);
    for (int turn = 0; turn < 2000; turn++) {
        struct share_member members[5];
        double shares[SHARE_AIMS][5], other[5], rooms = 0;
        uint32_t count = 2 + rand_stream_below(&r, 4);
        for (uint32_t i = 0; i < count; i++) {
            members[i] = (struct share_member){.room = 1.2 * rand_stream_unit(&r) - 0.1,
                                               .bytes_per_s = 1 + 9 * rand_stream_unit(&r),
                                               .step_s = rand_stream_unit(&r)};
            rooms += fmin(1, fmax(0, members[i].room));
        }
        for (int aim = 0; aim < SHARE_AIMS; aim++) {
            double sum = 0;
            assert_int_equal(share_state(members, count, (enum share_aim)aim, shares[aim]), rooms >= 1);
            for (uint32_t i = 0; i < count && rooms >= 1; i++) {
                sum += shares[aim][i];
                assert_true(shares[aim][i] >= 0 && shares[aim][i] <= fmax(0, members[i].room) + 1e-15);
            }
            assert_true(rooms < 1 || fabs(sum - 1) < 1e-12);
        }
        if (rooms < 1)
            continue;
        divided++;
        for (int aim = SHARE_NEAR_LINKS; aim < SHARE_AIMS; aim++) {
            assert_true(level_of(members, shares[aim], count) <=
                        level_of(members, shares[SHARE_FOR_STEP], count) + 1e-9);
            assert_true(step_of(members, shares[aim], count) <=
                        step_of(members, shares[SHARE_FOR_LINKS], count) + 1e-9);
        }
        for (int tries = 0; tries < 20;
             tries++) { /* Tries random other divisions within the memory limits. */
            double left = 1;
            for (uint32_t i = 0; i < count; i++) {
                double after = 0;
                for (uint32_t k = i + 1; k < count; k++)
                    after += fmin(1, fmax(0, members[k].room));
                double least = fmax(0, left - after), most = fmin(left, fmin(1, fmax(0, members[i].room)));
                other[i] = least + (most - least) * (tries ? rand_stream_unit(&r) : 0.5);
                left -= other[i];
            }
            if (fabs(left) > 1e-9)
                continue;
            assert_true(level_of(members, other, count) >=
                        level_of(members, shares[SHARE_FOR_LINKS], count) - 1e-9);
            assert_true(step_of(members, other, count) >=
                        step_of(members, shares[SHARE_FOR_STEP], count) - 1e-9);
        }
    }
    assert_true(divided > 500);
}

/* With two devices on each of two nodes, a ring that crosses between the nodes several times divides both
 * wires and node a's network card. */
static void a_ring_divides_wires_and_cards_that_it_uses_twice(void **state)
{
    (void)state;
    static const uint32_t across[4] = {0, 2, 1, 3}, around[4] = {0, 1, 2, 3};
    struct err err;
    struct cluster *cluster = cluster_create(&err);
    double in[4], out[4], latency;
    for (int d = 0; d < 4; d++)
        fixture_device(cluster, (const char *[]){"a/0", "a/1", "b/0", "b/1"}[d], d < 2 ? "a" : "b", 1 << 20,
                       1);
    assert_int_equal(cluster_set_defaults(cluster, 1e-6, 1e9, 1e-5, 1e9, &err), 0);
    fixture_link(cluster, "a", "b", 2e-3, 8e6);
    fixture_link(cluster, "b", "a", 1e-3, 4e6);
    ring_rates(cluster, around, 4, in, out, &latency);
    assert_true(in[2] == 8e6 && out[1] == 8e6 && in[0] == 4e6 && out[3] == 4e6 && latency == 2e-3);
    assert_true(in[1] == out[0] && in[1] > 8e6);
    ring_rates(cluster, across, 4, in, out, &latency);
    for (int i = 0; i < 4; i++)
        assert_true(out[i] == (i % 2 ? 2e6 : 4e6) && in[i] == (i % 2 ? 4e6 : 2e6));
    assert_int_equal(cluster_set_nic(cluster, "a", 3e6, &err), 0);
    ring_rates(cluster, across, 4, in, out, &latency);
    for (int i = 0; i < 4; i++)
        assert_true(fabs(out[i] - 1.5e6) < 1 && fabs(in[i] - 1.5e6) < 1);
    cluster_destroy(cluster);
}

/* --- memory --- */

/* Trained values, gradients and moments take 16 bytes a parameter in fp32 under any compute type, once over
 * all ranks. The rest is rounding to buffer granules. */
static void sixteen_bytes_a_parameter_are_kept_once_in_all(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        struct err err = {0};
        struct made m = {.config = fixture_config(4)};
        m.config.vocab = 4096;
        m.workload = fixture_workload(&m.config, 40, 16);
        m.workload.method = METHOD_FULL;
        m.workload.compute = half ? COMPUTE_BF16 : COMPUTE_FP32;
        m.workload.place = PLACE_DATA;
        m.cluster = cluster_create(&err);
        for (int d = 0; d < 3; d++) {
            char name[16], node[8];
            snprintf(node, sizeof(node), "n%d", d);
            snprintf(name, sizeof(name), "n%d/0", d);
            fixture_device(m.cluster, name, node, (170 + 60 * (uint64_t)d) * MIB, 1 + d);
        }
        struct plan_options options = {.programs = true};
        assert_int_equal(plan_search(&m.workload, m.cluster, &options, &m.answer, &err), 0);
        assert_non_null(m.answer->plan);
        struct block_list blocks;
        struct block_options none = {0};
        assert_int_equal(model_blocks(&m.config, &none, &blocks, &err), 0);
        double kept = 0;
        for (uint32_t r = 0; r < m.answer->plan->rank_count; r++)
            kept += (double)m.answer->plan->ranks[r].memory_peak[PURPOSE_ADAPTERS] +
                    (double)m.answer->plan->ranks[r].memory_peak[PURPOSE_OPTIMIZER];
        double granules = 4.0 * FOOTPRINT_GRANULE * blocks.count * m.answer->plan->rank_count;
        assert_true(kept >= 16 * (double)blocks.params && kept <= 16 * (double)blocks.params + granules);
        block_list_fini(&blocks);
        made_fini(&m);
    }
}

/* --- against simulation --- */

/* Makes devices with equal links and rows of equal length. */
static void alike_init(struct made *m, uint64_t seed, uint32_t layers, double bytes_per_s)
{
    struct rand_stream r;
    struct err err = {0};
    rand_stream_init(&r, seed, 6);
    uint32_t devices = 2 + rand_stream_below(&r, 4);
    m->config = fixture_config(layers);
    m->config.vocab = 2048;
    m->config.tied = false;
    m->workload = fixture_workload(&m->config, 1, 12 + rand_stream_below(&r, 20));
    free(m->workload.rows);
    m->workload.rows = NULL;
    m->workload.row_count = 0;
    m->workload.epochs = 0;
    m->workload.steps = 1;
    m->workload.method = METHOD_FULL;
    m->workload.recompute = RECOMPUTE_NO;
    m->workload.place = PLACE_DATA;
    m->cluster = cluster_create(&err);
    assert_int_equal(cluster_set_defaults(m->cluster, 1e-5, bytes_per_s, 1e-5, bytes_per_s, &err), 0);
    for (uint32_t d = 0; d < devices; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d);
        snprintf(name, sizeof(name), "n%u/0", d);
        fixture_device(m->cluster, name, node, 4000 * MIB, 0.3 + rand_stream_unit(&r));
    }
    m->answer = NULL;
    m->plan = NULL;
}

static double simulated(const struct problem *p, const struct candidate *candidate)
{
    struct err err = {0};
    double seconds = 0;
    struct plan *plan = kinds[candidate->placement]->emit(p, candidate, true, &err);
    if (!plan || plan_check(plan, &err) < 0 || price_plan(p, plan, 1, &seconds, &err) < 0)
        fail_msg("%s", err.text);
    plan_destroy(plan);
    return seconds;
}

/* Compares the simulated time of one more layer of a deep model with the published formulas. The simulator
 * waits for the slowest member in each pass, Cephalo's form once for both passes, so Cephalo's is never above
 * the simulator. */
static void a_layer_takes_what_cephalos_formula_says(void **state)
{
    (void)state;
    double worst = 0, above = 0, sum = 0;
    uint32_t count = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        const double rates[] = {5e7, 3e8, 2e9};
        double seconds[2];
        struct made m[2];
        struct problem p[2];
        struct err err = {0};
        struct candidate settled = {.placement = PLACE_DATA, .micro_batch_rows = 1, .gathered_layers = 2};
        const struct candidate *c = &settled;
        struct workbench bench;
        for (int k = 0; k < 2; k++) {
            alike_init(&m[k], seed, k ? 15 : 14, rates[seed % 3]);
            assert_int_equal(problem_init(&p[k], &m[k].workload, m[k].cluster, &err), 0);
        }
        workbench_init(&bench, &p[0], &err);
        uint32_t all[8] = {0, 1, 2, 3, 4, 5, 6, 7};
        assert_int_equal(move_append(&settled, kinds[PLACE_DATA], all, p[0].device_count, &err), 0);
        settled.stages[0].block_end = p[0].block_count;
        if (any_settle(&bench, kinds[PLACE_DATA], &settled, MOVE_SETTLE) > 0) {
            struct candidate longer = *c;
            struct candidate_stage stage = c->stages[0];
            stage.block_end++;
            longer.stages = &stage;
            seconds[0] = simulated(&p[0], c);
            seconds[1] = simulated(&p[1], &longer);
            double share = 1, forward = 0, backward = 0, cephalo = 0, hops = 1e-5 * (c->member_count - 1);
            for (uint32_t i = 0; i < c->member_count; i++)
                share = fmin(share, c->members[i].state_share);
            double gather = (double)memory_gathered_bytes(&p[0], 1, 2) * (1 - share) / rates[seed % 3] + hops;
            double scatter =
                (double)memory_gradient_bytes(&p[0], 1, 2) * (1 - share) / rates[seed % 3] + hops;
            double update = seconds[1] - seconds[0];
            for (uint32_t i = 0; i < c->member_count; i++) {
                const struct member *a = &c->members[i];
                struct cost_load load = p[0].mean_row;
                load.rows *= a->rows;
                load.tokens *= a->rows;
                load.sum_sq *= a->rows;
                load.labelled *= a->rows;
                double f = a->count * problem_seconds(&p[0], a->device, 1, 2, COST_FORWARD, &load);
                double b = a->count * problem_seconds(&p[0], a->device, 1, 2, COST_BACKWARD, &load);
                forward = fmax(forward, fmax(gather, f));
                backward = fmax(backward, fmax(gather + scatter, b));
                cephalo = fmax(cephalo, fmax(gather, f) + fmax(gather + scatter, b));
                update = fmin(update, seconds[1] - seconds[0] -
                                          a->state_share * problem_step_seconds(&p[0], a->device, 1, 2));
            }
            double off = fabs(update - forward - backward) / (forward + backward);
            worst = fmax(worst, off);
            above = fmax(above, (forward + backward) / cephalo - 1);
            sum += (forward + backward) / cephalo - 1;
            count++;
        }
        candidate_fini(&settled);
        workbench_fini(&bench);
        for (int k = 0; k < 2; k++) {
            problem_fini(&p[k]);
            made_fini(&m[k]);
        }
    }
    print_message(
        "%u cases: per pass off by at most %.3g, above Cephalo's form by %.3g at worst, %.3g on average\n",
        count, worst, above, sum / count);
    assert_true(count > 20 && worst < 0.002);
}

/* On unlike devices the chosen division is compared with equal rows and equal state for each device. */
static void uneven_beats_even_where_devices_are_unlike(void **state)
{
    (void)state;
    double sum = 0, least = INFINITY;
    uint32_t count = 0;
    for (uint64_t seed = 0; seed < times(10, 40); seed++) {
        struct made m;
        struct problem p;
        struct err err = {0};
        alike_init(&m, seed, 8, 1e10);
        uint32_t devices = cluster_device_count(m.cluster);
        m.workload.batch_rows = devices * 8;
        struct plan_options options = {.programs = true};
        assert_int_equal(plan_search(&m.workload, m.cluster, &options, &m.answer, &err), 0);
        assert_int_equal(problem_init(&p, &m.workload, m.cluster, &err), 0);
        double even = INFINITY;
        for (uint32_t rows = 1; rows <= 8; rows *= 2) {
            struct member members[8];
            struct candidate_stage stage = {.block_end = p.block_count, .member_count = devices};
            struct candidate candidate = {.placement = PLACE_DATA,
                                          .micro_batch_rows = rows,
                                          .stage_count = 1,
                                          .member_count = devices,
                                          .stages = &stage,
                                          .members = members,
                                          .gathered_layers = 2};
            for (uint32_t d = 0; d < devices; d++)
                members[d] = (struct member){.device = d,
                                             .rows = rows,
                                             .count = 8 / rows,
                                             .state_share = 1.0 / devices,
                                             .window = 8 / rows};
            even = fmin(even, simulated(&p, &candidate));
        }
        assert_non_null(m.answer->plan);
        double gain = even / m.answer->step_s;
        least = fmin(least, gain);
        sum += gain;
        count++;
        problem_fini(&p);
        made_fini(&m);
    }
    print_message("even rows and shares take %.2f times as long on average, %.2f at least\n", sum / count,
                  least);
    assert_true(least >= 1 - 1e-9 && sum / count > 1.15);
}

/* The last batch of an epoch has fewer rows and runs by the same program. */
static void a_short_last_batch_takes_no_longer_than_full_ones(void **state)
{
    (void)state;
    uint32_t shorter = 0;
    for (uint64_t seed = 0; seed < times(10, 40); seed++) {
        struct made m;
        struct problem p;
        struct err err = {0};
        alike_init(&m, seed, 6,
                   seed % 2 ? 1e9 : 1e8); /* All rows have one length, so that nothing else differs. */
        m.workload.row_count = 2 * m.workload.batch_rows + 3;
        m.workload.steps = 0;
        m.workload.epochs = 1;
        m.workload.rows = calloc(m.workload.row_count, sizeof(*m.workload.rows));
        for (uint32_t i = 0; i < m.workload.row_count; i++)
            m.workload.rows[i] = (struct workload_row){.tokens = 64, .labelled = 32};
        struct plan_options options = {.programs = true};
        assert_int_equal(plan_search(&m.workload, m.cluster, &options, &m.answer, &err), 0);
        assert_int_equal(problem_init(&p, &m.workload, m.cluster, &err), 0);
        uint32_t last = p.step_count - 1;
        if (m.answer->plan) {
            assert_int_equal(p.steps[last].rows, 3);
            struct price price;
            struct sim *sim = NULL;
            struct sim_rank sums[8];
            double slowest = 0, seconds = 0;
            assert_int_equal(price_init(&price, &p, m.answer->plan, &err), 0);
            for (price.step = 0; price.step <= last; price.step++) {
                slowest = fmax(slowest, seconds);
                assert_int_equal(price_step(&price, &sim, &seconds, sums, NULL, &err), 0);
            }
            assert_true(
                seconds > 0 &&
                seconds <=
                    slowest *
                        (1 + 1e-9)); /* seconds of the last step, compared with the full steps before it */
            shorter++;
            sim_destroy(sim);
            price_fini(&price);
        }
        problem_fini(&p);
        made_fini(&m);
    }
    assert_true(shorter > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_split_as_brute_force_does),
        cmocka_unit_test(shards_fit_and_no_other_division_is_better),
        cmocka_unit_test(a_ring_divides_wires_and_cards_that_it_uses_twice),
        cmocka_unit_test(sixteen_bytes_a_parameter_are_kept_once_in_all),
        cmocka_unit_test(a_layer_takes_what_cephalos_formula_says),
        cmocka_unit_test(uneven_beats_even_where_devices_are_unlike),
        cmocka_unit_test(a_short_last_batch_takes_no_longer_than_full_ones),
        cmocka_unit_test(every_plan_passes_the_checker_and_an_execution),
        cmocka_unit_test(every_hybrid_plan_passes_the_checker_and_an_execution),
        cmocka_unit_test(a_base_too_large_for_a_device_is_sharded_for_lora),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(what_an_execution_finds_wrong_the_checker_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
