/* Tests expert plans: the closed form of zebra order, the division of experts, the bytes that are exchanged,
 * programs that the checker accepts, spoilt ones that it refuses by rank and instruction, and settling. */
#include "planner/expert_fixture.h"

#include <math.h>

#include "planner/cost/fill.h"
#include "planner/kind/expert_wave.h"

extern const struct placement_kind kind_expert;

/* --- the closed form --- */

struct fixed_costs {
    double attention, dispatch, experts, combine;
};

static double fixed_compute(void *context, uint32_t rank, const struct instr *x)
{
    const struct fixed_costs *c = context;
    (void)rank;
    return x->op == INSTR_ATTENTION ? c->attention : x->op == INSTR_EXPERTS ? c->experts : 0;
}

static double fixed_bytes(void *context, uint32_t rank, const struct instr *x)
{
    (void)context;
    (void)rank;
    (void)x;
    return 0;
}

static void fixed_wire(void *context, uint32_t from, uint32_t to, struct sim_wire *wire)
{
    (void)context;
    (void)from;
    (void)to;
    *wire = (struct sim_wire){.bytes_per_s = 1};
}

static double fixed_group(void *context, const struct plan_group *group, uint32_t rank, const struct instr *x)
{
    const struct fixed_costs *c = context;
    (void)group;
    (void)rank;
    return x->op == INSTR_DISPATCH ? c->dispatch : x->op == INSTR_COMBINE ? c->combine : 0;
}

static double simulated(const struct plan *plan, int kind, struct fixed_costs *fixed)
{
    struct sim *sim = NULL;
    struct err err = {0};
    double seconds = 0;
    struct sim_costs costs = {.context = fixed,
                              .compute_s = fixed_compute,
                              .bytes = fixed_bytes,
                              .wire = fixed_wire,
                              .collective_s = fixed_group};
    if (sim_create(plan, kind, &sim, &err) < 0 || sim_run(sim, &costs, &seconds, NULL, NULL, 0, &err) < 0)
        fail_msg("%s", err.text);
    sim_destroy(sim);
    return seconds;
}

/* Makes the plan in which one device has attention and another all experts. Micro-batches have one row, and
 * all of them are in one wave. */
static struct plan *pair_plan(struct expert_case *c, uint32_t layers, uint32_t micro_batches)
{
    struct err err = {0};
    memset(c, 0, sizeof(*c));
    c->config = expert_config(layers, 8, 2);
    c->workload = fixture_workload(&c->config, micro_batches, micro_batches);
    c->workload.sample_tokens = c->workload.prompt_tokens = 0;
    c->cluster = cluster_create(&err);
    expert_device(c->cluster, "a/0", "a", "a100x40", GIB_OF(40), 1);
    expert_device(c->cluster, "b/0", "b", "t4", GIB_OF(40), 1);
    expert_case_problem(c);
    c->members[0] = (struct member){.device = 0, .rows = 1, .delay = micro_batches % 4};
    c->members[1] = (struct member){.device = 1, .expert_share = 1};
    c->stage = (struct candidate_stage){.block_end = c->problem.block_count, .member_count = 2};
    c->candidate = (struct candidate){.placement = PLACE_EXPERT,
                                      .micro_batch_rows = 1,
                                      .stage_count = 1,
                                      .member_count = 2,
                                      .stages = &c->stage,
                                      .members = c->members};
    struct plan *plan = expert_emit(&c->problem, &c->candidate, true, &err);
    if (!plan)
        fail_msg("%s", err.text);
    return plan;
}

static void the_simulator_gives_the_closed_form_to_rounding(void **state)
{
    (void)state;
    struct rand_stream r;
    double worst = 0, longest = 0;
    uint32_t cases = 0;
    rand_stream_init(&r, 11, 0);
    for (uint32_t shape = 0; shape < 100; shape++) {
        struct expert_case c;
        uint32_t layers = 1 + rand_stream_below(&r, 12), micro_batches = 1 + rand_stream_below(&r, 16);
        struct plan *plan = pair_plan(&c, layers, micro_batches);
        for (uint32_t i = 0; i < 20; i++) {
            struct fixed_costs fixed = {0.01 + rand_stream_unit(&r), 0.01 + rand_stream_unit(&r),
                                        0.01 + rand_stream_unit(&r), 0.01 + rand_stream_unit(&r)};
            struct zebra z = {fixed.attention, fixed.dispatch, fixed.experts, fixed.combine, 0, 0};
            double closed = zebra_seconds(&z, layers, micro_batches);
            double forward = simulated(plan, PROGRAM_EVALUATE, &fixed);
            worst = fmax(worst, fabs(forward - closed) / closed);
            /* The step is at most the sum of all parts in sequence, and at least the slower of the busy
             * parts. */
            double both = simulated(plan, PROGRAM_TRAIN, &fixed);
            double busy = fmax(fmax(fixed.attention, fixed.experts), fmax(fixed.dispatch, fixed.combine));
            longest = fmax(longest, both / (2 * closed));
            assert_true(both <= 2 * closed * (1 + 1e-12));
            if (both < 2 * layers * micro_batches * busy * (1 - 1e-12) && busy != fixed.dispatch &&
                busy != fixed.combine)
                fail_msg("%.17g s for %.17g s of work", both, 2 * layers * micro_batches * busy);
            cases++;
        }
        plan_destroy(plan);
        expert_case_fini(&c);
    }
    print_message("%u cases: farthest from the closed form %.1e; forward and back at most %.4f of twice it\n",
                  cases, worst, longest);
    assert_true(cases >= 1000 && worst < 1e-12);
}

/* --- dividing experts --- */

static void water_filling_beats_every_other_division(void **state)
{
    (void)state;
    struct rand_stream r;
    rand_stream_init(&r, 5, 0);
    for (uint32_t turn = 0; turn < 300; turn++) {
        double base[3], each[3], cap[3], x[3], best = INFINITY;
        uint32_t whole[3], experts = 12;
        for (int i = 0; i < 3; i++) {
            base[i] = rand_stream_below(&r, 2) ? rand_stream_unit(&r) : 0;
            each[i] = 0.5 + 4 * rand_stream_unit(&r);
            cap[i] = 0.3 + rand_stream_unit(&r);
        }
        bool possible = fill_whole(3, experts, 0, base, each, cap, whole);
        for (uint32_t a = 0; a <= experts; a++) {
            for (uint32_t b = 0; a + b <= experts; b++) {
                uint32_t n[3] = {a, b, experts - a - b};
                double most = 0;
                for (int i = 0; i < 3; i++)
                    most = fmax(most, n[i] > cap[i] * experts ? INFINITY
                                      : n[i]                  ? base[i] + n[i] * each[i] / experts
                                                              : 0);
                best = fmin(best, most);
            }
        }
        assert_int_equal(possible, isfinite(best));
        if (!possible)
            continue;
        double got = 0, fraction = 0, sum = 0;
        for (int i = 0; i < 3; i++)
            got = fmax(got, whole[i] ? base[i] + whole[i] * each[i] / experts : 0);
        if (fabs(got - best) > 1e-9 * best)
            fail_msg("turn %u: %g, best %g", turn, got, best);
        assert_true(fill_level(3, base, each, cap, x));
        for (int i = 0; i < 3; i++) {
            fraction = fmax(fraction, x[i] > 1e-9 ? base[i] + x[i] * each[i] : 0);
            sum += x[i];
            assert_true(x[i] <= cap[i] + 1e-9);
        }
        assert_true(fabs(sum - 1) < 1e-12 && fraction <= best * (1 + 1e-9));
    }
}

/* A stage of the engine supports one range of experts, so a member's experts are consecutive. */
static void experts_of_a_member_are_consecutive(const struct expert_split *split)
{
    for (uint32_t l = 0; l < split->sparse_count; l++)
        for (uint32_t e = 1; e < split->experts; e++)
            assert_true(split->owner[(size_t)l * split->experts + e] >=
                        split->owner[(size_t)l * split->experts + e - 1]);
}

static void experts_are_dealt_whole_and_what_is_left_is_carried(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct expert_case c;
        struct expert_model model;
        struct expert_split split;
        struct err err;
        struct rand_stream r;
        rand_stream_init(&r, seed, 9);
        expert_case_init(&c, seed);
        assert_int_equal(expert_model_init(&model, &c.problem, &err), 0);
        uint32_t n = c.candidate.member_count, layers = model.sparse_count, experts = model.experts;
        bool measured = seed % 2;
        double *share = calloc((size_t)c.config.layers * experts, sizeof(*share));
        double largest = 1.0 / experts;
        for (uint32_t l = 0; l < c.config.layers; l++) {
            double sum = 0;
            for (uint32_t e = 0; e < experts; e++)
                sum += share[l * experts + e] = 0.1 + rand_stream_unit(&r);
            for (uint32_t e = 0; e < experts; e++) {
                share[l * experts + e] /= sum;
                largest = fmax(largest, share[l * experts + e]);
            }
        }
        assert_int_equal(expert_split_init(&split, &model, measured ? share : NULL, c.members, n, &err), 0);
        experts_of_a_member_are_consecutive(&split);
        for (uint32_t m = 0; m < n; m++) {
            double got = 0;
            double count = 0;
            for (uint32_t l = 0; l < layers; l++) {
                got += split.layers[m * layers + l].load;
                count += split.layers[m * layers + l].count;
                /* A member's experts so far differ from its share of the layers so far by at most about one
                 * expert. */
                if (fabs(got - c.members[m].expert_share * (l + 1)) > 1.5 * largest + 1e-9)
                    fail_msg("seed %llu: rank %u has %g of %g", (unsigned long long)seed, m, got,
                             c.members[m].expert_share * (l + 1));
            }
            assert_true(c.members[m].expert_share > 0 || count == 0);
        }
        expert_split_fini(&split);
        expert_model_fini(&model);
        free(share);
        expert_case_fini(&c);
    }
}

static void what_no_worker_does_is_refused_by_name(void **state)
{
    (void)state;
    static const char *const words[] = {NULL, "train.router_aux", "placement.boundary", "normed as a whole"};
    for (uint32_t i = 0; i < 4; i++) {
        struct expert_case c;
        struct err err = {0};
        expert_case_init(&c, 1);
        c.workload.router_loss = i == 1;
        c.workload.boundary = i == 2 ? PLAN_BF16 : PLAN_F32;
        c.config.post_norms = i == 3;
        assert_int_equal(kind_supports(&kind_expert, &c.problem, &err), i == 0);
        assert_true(i == 0 || (err.code == ERR_UNSUPPORTED && strstr(err.text, words[i])));
        expert_case_fini(&c);
    }
}

static void touched_tokens_are_counted_as_by_drawing(void **state)
{
    (void)state;
    for (uint32_t experts = 2; experts <= 8; experts++) {
        for (uint32_t active = 1; active <= experts; active++) {
            for (uint32_t held = 0; held <= experts; held++) {
                uint32_t all = 0, some = 0;
                for (uint32_t set = 0; set < 1u << experts; set++) {
                    if ((uint32_t)__builtin_popcount(set) != active)
                        continue;
                    all++;
                    some += (set & ((1u << held) - 1)) != 0;
                }
                double got = expert_touched(experts, active, (double)held / experts);
                if (fabs(got - (double)some / all) > 1e-12)
                    fail_msg("%u of %u, %u held: %g, drawn %u of %u", active, experts, held, got, some, all);
            }
        }
    }
}

/* --- costs --- */

static void a_layer_costs_the_sum_of_its_parts(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct expert_case c;
        expert_case_init(&c, seed);
        const struct problem *p = &c.problem;
        for (double tokens = 1; tokens < 1e5; tokens *= 7) {
            struct cost_load load = {
                .rows = 1, .tokens = tokens, .sum_sq = tokens * 50, .labelled = tokens / 2};
            for (int way = 0; way < COST_WAYS; way++) {
                const struct cost_device *cost = &p->costs[0];
                double parts = cost_part_seconds(cost, COST_PART_ATTENTION, (enum cost_way)way, &load) +
                               cost_part_seconds(cost, COST_PART_ROUTER, (enum cost_way)way, &load) +
                               cost_experts_seconds(cost, (enum cost_way)way, c.config.experts,
                                                    tokens * c.config.experts_active / c.config.experts);
                int32_t last = p->block_count - 2;
                assert_true(parts > 0);
                assert_true(fabs(problem_seconds(p, 0, last, last + 1, (enum cost_way)way, &load) / parts -
                                 1) < 1e-12);
            }
        }
        expert_case_fini(&c);
    }
}

static json_t *point(const char *block, double tokens, double seconds) /* of rows with 16 tokens each */
{
    return json_pack("{s:s,s:f,s:f,s:f,s:f,s:f,s:f}", "block", block, "rows", tokens / 16, "tokens", tokens,
                     "sum_sq", tokens * 16, "labelled", tokens / 2, "forward_s", seconds, "backward_s",
                     2 * seconds);
}

/* A profile of a layer's parts is used as measured; a profile of whole layers is divided by FLOPs, and the
 * parts add up to the layer. With both, whole layers give the sum, and the parts, here measured at half of
 * the speed, give only the ratio. */
static void measured_parts_are_used_and_measured_layers_divided(void **state)
{
    (void)state;
    for (int parts = 0; parts < 3; parts++) {
        struct model_config config = expert_config(4, 8, 2);
        struct workload w = fixture_workload(&config, 20, 4);
        struct err err;
        struct problem p;
        struct cluster *cluster = cluster_create(&err);
        struct cluster_device device = {.name = "a/0", .node = "a", .memory_limit_bytes = GIB_OF(8)};
        assert_int_equal(cluster_add_device(cluster, &device, &err), 0);
        json_t *points = json_array();
        for (double tokens = 16; tokens <= 4096; tokens *= 2) {
            double slow = parts == 2 ? 2 : 1;
            if (parts) {
                json_array_append_new(points, point("attention", tokens, slow * (1e-3 + 2e-6 * tokens)));
                json_array_append_new(points, point("router", tokens, slow * (1e-5 + 1e-8 * tokens)));
                json_array_append_new(points, point("expert", tokens, slow * (1e-4 + 3e-6 * tokens)));
            }
            if (parts == 2)
                json_array_append_new(points, point("layer", tokens,
                                                    1e-3 + 2e-6 * tokens + 1e-5 + 1e-8 * tokens +
                                                        8 * (1e-4 + 3e-6 * tokens / 4)));
            if (parts == 0)
                json_array_append_new(points, point("layer", tokens, 1e-3 + 9e-6 * tokens));
            json_array_append_new(points, point("head", tokens, 1e-3 + 9e-6 * tokens));
            json_array_append_new(points, point("embedding", tokens, 1e-6));
        }
        json_t *profile = json_pack("{s:s,s:o}", "device", "a/0", "points", points);
        if (cluster_add_profile(cluster, profile, &err) < 0)
            fail_msg("%s", err.text);
        json_decref(profile);
        if (problem_init(&p, &w, cluster, &err) < 0)
            fail_msg("%s", err.text);
        struct cost_load load = {.rows = 32, .tokens = 512, .sum_sq = 512 * 16, .labelled = 256};
        double seconds = problem_seconds(&p, 0, 1, 2, COST_FORWARD, &load);
        double expected =
            parts ? 1e-3 + 2e-6 * 512 + 1e-5 + 1e-8 * 512 + 8 * (1e-4 + 3e-6 * 128) : 1e-3 + 9e-6 * 512;
        if (fabs(seconds / expected - 1) > (parts ? 1e-9 : 0.02))
            fail_msg("%s: %g s, expected %g", parts ? "parts" : "layers", seconds, expected);
        double attention = cost_part_seconds(&p.costs[0], COST_PART_ATTENTION, COST_FORWARD, &load);
        if (parts)
            assert_true(fabs(attention / (1e-3 + 2e-6 * 512) - 1) < 1e-9);
        problem_fini(&p);
        cluster_destroy(cluster);
        workload_fini(&w);
    }
}

/* A dense layer, too, is divided by the measured times of its halves. */
static void a_dense_layer_has_the_measured_share_of_attention(void **state)
{
    (void)state;
    for (int measured = 0; measured < 2; measured++) {
        struct model_config config = fixture_config(4);
        struct workload w = fixture_workload(&config, 20, 4);
        struct err err = {0};
        struct problem p;
        struct cluster *cluster = cluster_create(&err);
        struct cluster_device device = {.name = "a/0", .node = "a", .memory_limit_bytes = GIB_OF(8)};
        assert_int_equal(cluster_add_device(cluster, &device, &err), 0);
        json_t *points = json_array();
        for (double tokens = 16; tokens <= 4096; tokens *= 2) {
            json_array_append_new(points, point("layer", tokens, 1e-3 + 9e-6 * tokens));
            json_array_append_new(points, point("head", tokens, 1e-3 + 9e-6 * tokens));
            if (measured) {
                json_array_append_new(points, point("attention", tokens, 3e-6 * tokens));
                json_array_append_new(points, point("ffn", tokens, 1e-6 * tokens));
            }
        }
        json_t *profile = json_pack("{s:s,s:o}", "device", "a/0", "points", points);
        if (cluster_add_profile(cluster, profile, &err) < 0)
            fail_msg("%s", err.text);
        json_decref(profile);
        if (problem_init(&p, &w, cluster, &err) < 0)
            fail_msg("%s", err.text);
        struct cost_load load = {.rows = 32, .tokens = 512, .sum_sq = 512 * 16, .labelled = 256};
        double share = cost_attention_share(&p.costs[0], COST_BACKWARD, &load);
        assert_true(measured ? fabs(share - 0.75) < 1e-9 : share < 0);
        assert_true(fabs(problem_seconds(&p, 0, 1, 2, COST_FORWARD, &load) / (1e-3 + 9e-6 * 512) - 1) < 1e-9);
        problem_fini(&p);
        cluster_destroy(cluster);
        workload_fini(&w);
    }
}

static void the_exchange_takes_its_slowest_port_wire_or_card(void **state)
{
    (void)state;
    struct err err;
    struct cluster *cluster = cluster_create(&err);
    expert_device(cluster, "a/0", "a", "t4", GIB_OF(8), 1);
    expert_device(cluster, "b/0", "b", "t4", GIB_OF(8), 1);
    expert_device(cluster, "b/1", "b", "t4", GIB_OF(8), 1);
    fixture_link(cluster, "a", "b", 1e-3, 1e6);
    const uint32_t device[3] = {0, 1, 2};
    struct expert_links links;
    assert_int_equal(expert_links_init(&links, cluster, device, 3, &err), 0);
    /* 100 tokens are on node a: half of them go to b/0 and a quarter to b/1, 1,000 bytes each, over one wire
     * from a to b. */
    const double tokens[3] = {100, 0, 0}, touched[3] = {0.9, 0.5, 0.25};
    double seconds = expert_exchange_seconds(&links, tokens, touched, 1000);
    assert_true(fabs(seconds - (1e-3 + 75e3 / 1e6)) < 1e-12);
    /* With everything on one rank nothing is sent. */
    const double own[3] = {0.9, 0, 0};
    assert_true(expert_exchange_seconds(&links, tokens, own, 1000) == 0);
    expert_links_fini(&links);
    assert_int_equal(cluster_set_nic(cluster, "b", 5e5, &err), 0);
    assert_int_equal(expert_links_init(&links, cluster, device, 3, &err), 0);
    seconds = expert_exchange_seconds(&links, tokens, touched, 1000);
    assert_true(fabs(seconds - (1e-3 + 75e3 / 5e5)) < 1e-12);
    expert_links_fini(&links);
    cluster_destroy(cluster);
}

/* --- programs --- */

static void divided_programs_pass_the_checker(void **state)
{
    (void)state;
    uint32_t several = 0, both = 0, uneven = 0, count = getenv("MOTLEY_LONG") ? 10000 : 600;
    for (uint64_t seed = 0; seed < count; seed++) {
        struct expert_case c;
        struct err err = {0};
        double seconds = 0;
        expert_case_init(&c, seed);
        struct plan *plan = expert_emit(&c.problem, &c.candidate, true, &err);
        if (!plan || plan_check(plan, &err) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
        for (int32_t b = 0; b < plan->block_count;
             b++) { /* One of the attention ranks counts the gradient norm. */
            uint32_t counts = 0;
            for (uint32_t r = 0; r < plan->rank_count; r++)
                counts += plan_counts_alike(plan, r, b);
            assert_int_equal(counts, 1);
        }
        if (price_plan(&c.problem, plan, 2, &seconds, &err) < 0 || !(seconds > 0))
            fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
        assert_int_equal(plan_seal(plan, &err), 0);
        json_t *json = plan_to_json(plan, &err);
        struct plan *again = plan_from_json(json, &err);
        if (!again)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
        plan_destroy(again);
        json_decref(json);
        uint32_t attending = 0;
        for (uint32_t m = 0; m < c.candidate.member_count; m++) {
            attending += c.members[m].rows > 0;
            both += c.members[m].rows > 0 && c.members[m].expert_share > 0;
            uneven += c.members[m].window < plan->micro_batch_count;
        }
        several += attending > 1;
        plan_destroy(plan);
        expert_case_fini(&c);
    }
    print_message("%u plans: %u with several ranks of attention, %u ranks with both, %u in waves\n", count,
                  several, both, uneven);
    assert_true(several > 100 && both > 100 && uneven > 100);
}

enum { SPOIL_COUNT = 12 };

/* Spoils one instruction that belongs to the exchange. Returns false when the fault does not apply. */
static bool spoil(struct plan *plan, struct rand_stream *r, uint32_t how, uint32_t *rank, uint32_t *instr)
{
    *rank = rand_stream_below(r, plan->rank_count);
    struct plan_rank *k = &plan->ranks[*rank];
    struct program *p = &k->programs[PROGRAM_TRAIN];
    *instr = rand_stream_below(r, p->instr_count);
    struct instr *x = &p->instrs[*instr];
    bool part = x->op >= INSTR_ATTENTION && x->op <= INSTR_COMBINE;
    if (!part && how != 10)
        return false;
    switch (how) {
    case 0: /* The experts never run: an instruction that only frees stands in their place. */
        if (x->op != INSTR_EXPERTS)
            return false;
        x->op = INSTR_RELEASE;
        return true;
    case 1: /* The instruction names another micro-batch. */
        if (plan->micro_batch_count < 2)
            return false;
        x->micro_batch = (int32_t)((uint32_t)(x->micro_batch + 1) % plan->micro_batch_count);
        return true;
    case 2: /* The instruction names another layer. */
        x->block_begin += x->block_begin > 1 ? -1 : 1;
        x->block_end = x->block_begin + 1;
        return true;
    case 3: /* The instruction runs in the other direction. */
        x->flags ^= FLAG_BACKWARD;
        return true;
    case 4: /* The instruction uses another slot of the same kind. */
        for (uint32_t s = 0; s < k->slot_count; s++) {
            if (x->slot_in >= 0 && (int32_t)s != x->slot_in &&
                k->slots[s].kind == k->slots[x->slot_in].kind) {
                x->slot_in = (int32_t)s;
                return true;
            }
        }
        return false;
    case 5: /* The instruction does not wait. */
        if (x->after_count == 0)
            return false;
        x->after_count = 0;
        return true;
    case 6: /* The instruction overwrites instead of accumulating. */
        if (!(x->flags & FLAG_ACCUMULATE))
            return false;
        x->flags &= (uint16_t)~FLAG_ACCUMULATE;
        return true;
    case 7: /* The slot is smaller than what may arrive. */
        if (x->op != INSTR_DISPATCH || x->slot_out < 0 || k->slots[x->slot_out].kind != SLOT_ROUTED)
            return false;
        k->slots[x->slot_out].bytes_bound /= 2;
        return true;
    case 8: /* An expert is held by nobody, or by two members. */
        if (k->expert_count == 0 ||
            plan->block_count < 6) /* With one sparse layer the number of experts cannot be checked. */
            return false;
        k->experts[rand_stream_below(r, k->expert_count)].end += rand_stream_below(r, 2) ? 1 : -1;
        return true;
    case 9: /* The instruction names the other group. */
        if (x->queue != QUEUE_GROUP)
            return false;
        x->group = x->group == 1 ? 2 : 1;
        return true;
    case 10: /* Attention's gradients are never all-reduced, or twice. */
        if (x->tag != TAG_PARAMETER_GRADIENTS)
            return false;
        x->tag = TAG_NORM;
        return true;
    default: /* The instruction has fewer rows. */
        if ((x->op != INSTR_ATTENTION && x->op != INSTR_ROUTE) || x->micro_batch != 0 ||
            plan->rows_bound < 2 || x->row_end == x->row_begin + 1)
            return false;
        x->row_end = x->row_begin + 1;
        return true;
    }
}

static void spoilt_programs_are_refused_by_rank_and_instruction(void **state)
{
    (void)state;
    uint32_t refused[SPOIL_COUNT] = {0}, accepted[SPOIL_COUNT] = {0}, unnamed = 0, all = 0;
    struct rand_stream r;
    rand_stream_init(&r, 21, 0);
    for (uint64_t seed = 0; seed < 6000 && all < 1200; seed++) {
        struct expert_case c;
        struct err err = {0};
        uint32_t rank, instr, how = (uint32_t)(seed % SPOIL_COUNT);
        bool done = false;
        expert_case_init(&c, seed % 211);
        struct plan *plan = expert_emit(&c.problem, &c.candidate, true, &err);
        assert_non_null(plan);
        for (int turn = 0; turn < 400 && !done; turn++)
            done = spoil(plan, &r, how, &rank, &instr);
        if (done) {
            if (plan_check(plan, &err) < 0) {
                refused[how]++;
                unnamed += !strstr(err.text, "rank") && !strstr(err.text, "micro-batch") &&
                           !strstr(err.text, "expert");
            } else {
                accepted[how]++;
                if (how != 5)
                    fail_msg("seed %llu, way %u: rank %u instruction %u was accepted",
                             (unsigned long long)seed, how, rank, instr);
            }
            all++;
        }
        plan_destroy(plan);
        expert_case_fini(&c);
    }
    for (uint32_t how = 0; how < SPOIL_COUNT; how++) {
        print_message("way %u: %u refused, %u accepted\n", how, refused[how], accepted[how]);
        assert_true(refused[how] > 10);
    }
    assert_int_equal(unnamed, 0);
}

/* --- settling --- */

/* For every set of devices and every micro-batch size, the settled candidate is emitted, checked, and
 * simulated near its estimate; the candidate that is rebuilt from the plan has the same price. */
static void what_is_settled_runs_as_estimated(void **state)
{
    (void)state;
    uint32_t settled = 0, apart = 0, waves = 0;
    double mean = 0, worst = 0;
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct expert_case c;
        struct err err = {0};
        struct workbench bench;
        expert_case_init(&c, seed);
        workbench_init(&bench, &c.problem, &err);
        for (uint32_t rows = 1; rows <= c.workload.batch_rows; rows *= 2) {
            double seconds = 0;
            c.candidate.micro_batch_rows = rows;
            for (uint32_t m = 0; m < c.candidate.member_count; m++)
                c.members[m] = (struct member){.device = m};
            int fits = kind_expert.settle(&bench, &c.candidate);
            if (fits == 0)
                continue;
            double settles = c.candidate.estimate_s;
            assert_int_equal(kind_expert.estimate(&bench, &c.candidate), 1);
            assert_true(fabs(c.candidate.estimate_s / settles - 1) < 1e-9);
            struct plan *plan = kind_expert.emit(&c.problem, &c.candidate, true, &err);
            if (!plan || plan_check(plan, &err) < 0 || price_plan(&c.problem, plan, 4, &seconds, &err) < 0)
                fail_msg("seed %llu, %u rows: %s", (unsigned long long)seed, rows, err.text);
            struct candidate read = {0};
            assert_int_equal(kind_expert.from_plan(&c.problem, plan, &read, &err), 0);
            for (uint32_t m = 0; m < read.member_count; m++)
                assert_int_equal(read.members[m].rows, c.members[m].rows);
            candidate_fini(&read);
            mean += fabs(settles / seconds - 1);
            worst = fmax(worst, fabs(settles / seconds - 1));
            settled++;
            apart += c.members[c.candidate.member_count - 1].rows == 0;
            waves += c.members[0].window < plan->micro_batch_count;
            plan_destroy(plan);
        }
        workbench_fini(&bench);
        expert_case_fini(&c);
    }
    print_message(
        "%u settled, %u apart, %u in waves; estimates off by %.1f %% at the mean, %.0f %% at worst\n",
        settled, apart, waves, 100 * mean / settled, 100 * worst);
    assert_true(settled > 40 && apart > 5 && mean / settled < 0.15);
}

/* One device runs attention (1 s forward, 2 s backward) and another the experts (2 s and 3 s); an exchange
 * takes 0.5 s and the dense blocks 0.25 s. Two micro-batches overlap; the closed form is an upper bound. */
static void a_wave_takes_what_its_parts_take(void **state)
{
    (void)state;
    struct expert_times t = {.devices = 2, .layers = 1, .micro_batches = 1, .exchange_s = 0.5};
    double scratch[4];
    t.attend[0][0] = 1;
    t.attend[0][1] = t.expert[1][0] = 2;
    t.expert[1][1] = 3;
    t.dense[0] = 0.25;
    t.attends[0] = true;
    assert_true(fabs(expert_times_closed(&t, 1) - 10.25) < 1e-12);
    assert_true(fabs(expert_times_simulated(&t, 1, 1, scratch) - 10.25) < 1e-12);
    t.micro_batches = 2;
    assert_true(fabs(expert_times_closed(&t, 2) - 15.5) < 1e-12);
    assert_true(fabs(expert_times_simulated(&t, 2, 1, scratch) - 14) < 1e-12);
    assert_true(fabs(expert_times_simulated(&t, 1, 1, scratch) - 20.5) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wave_takes_what_its_parts_take),
        cmocka_unit_test(the_simulator_gives_the_closed_form_to_rounding),
        cmocka_unit_test(water_filling_beats_every_other_division),
        cmocka_unit_test(experts_are_dealt_whole_and_what_is_left_is_carried),
        cmocka_unit_test(what_no_worker_does_is_refused_by_name),
        cmocka_unit_test(touched_tokens_are_counted_as_by_drawing),
        cmocka_unit_test(a_layer_costs_the_sum_of_its_parts),
        cmocka_unit_test(a_dense_layer_has_the_measured_share_of_attention),
        cmocka_unit_test(measured_parts_are_used_and_measured_layers_divided),
        cmocka_unit_test(the_exchange_takes_its_slowest_port_wire_or_card),
        cmocka_unit_test(divided_programs_pass_the_checker),
        cmocka_unit_test(spoilt_programs_are_refused_by_rank_and_instruction),
        cmocka_unit_test(what_is_settled_runs_as_estimated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
