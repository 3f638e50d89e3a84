/* Tests the simulator: shared links and network cards, bounded buffers, jitter, and the figures reported of a
 * run. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/cost/price.h"
#include "planner/emit/frame.h"
#include "planner/kind/kind.h"
#include "planner/simulate/timeline.h"

/* --- programs by hand --- */

struct hand { /* the costs of a hand-written program */
    double compute_s[8], bytes;
    struct sim_wire wires[8][8];
};

static double hand_compute(void *context, uint32_t rank, const struct instr *x)
{
    const struct hand *h = context;
    return x->op == INSTR_RELEASE ? 0 : h->compute_s[rank];
}

static double hand_bytes(void *context, uint32_t rank, const struct instr *x)
{
    (void)rank;
    (void)x;
    return ((const struct hand *)context)->bytes;
}

static void hand_wire(void *context, uint32_t from, uint32_t to, struct sim_wire *wire)
{
    *wire = ((const struct hand *)context)->wires[from][to];
}

static double hand_collective(void *context, const struct plan_group *group, uint32_t rank,
                              const struct instr *x)
{
    (void)context;
    (void)group;
    (void)rank;
    (void)x;
    return 0;
}

static struct sim_costs hand_costs(struct hand *hand)
{
    return (struct sim_costs){.context = hand,
                              .compute_s = hand_compute,
                              .bytes = hand_bytes,
                              .wire = hand_wire,
                              .collective_s = hand_collective};
}

static struct plan *hand_plan(uint32_t ranks, uint32_t micro_batches)
{
    struct err err;
    struct plan *plan = plan_create(ranks, 1, micro_batches, 1, &err);
    assert_non_null(plan);
    for (uint32_t r = 0; r < ranks; r++) {
        struct plan_slot slot = {.kind = SLOT_ACTIVATION,
                                 .lifetime = SLOT_FOR_INSTRUCTIONS,
                                 .purpose = PURPOSE_BUFFERS,
                                 .ring_micro_batches = 1,
                                 .ring_blocks = 1,
                                 .bytes_fixed = 100,
                                 .bytes_bound = 100,
                                 .bytes_total = 100};
        assert_int_equal(plan_rank_slot(&plan->ranks[r], &slot), 0);
        plan->ranks[r].memory_bytes = 100;
    }
    return plan;
}

static int32_t hand_add(struct program_builder *b, enum instr_op op, int32_t micro_batch, int32_t peer,
                        int32_t after)
{
    struct instr x = instr_init(op, instr_op_queue(op));
    x.micro_batch = micro_batch;
    x.peer = peer;
    x.slot_in = op == INSTR_SEND || op == INSTR_FORWARD ? 0 : PLAN_NONE;
    x.slot_out = op == INSTR_RECV ? 0 : PLAN_NONE;
    x.flags = op == INSTR_FORWARD && peer == PLAN_NONE ? FLAG_FREES_IN : 0;
    return program_add(b, &x, &after, after >= 0);
}

static double hand_run(const struct plan *plan, struct hand *hand, struct sim **keep)
{
    struct err err;
    struct sim *sim = NULL;
    struct sim_costs costs = hand_costs(hand);
    double seconds = 0;
    if (sim_create(plan, PROGRAM_TRAIN, &sim, &err) < 0 ||
        sim_run(sim, &costs, &seconds, NULL, NULL, 0, &err) < 0)
        fail_msg("%s", err.text);
    if (keep)
        *keep = sim;
    else
        sim_destroy(sim);
    return seconds;
}

/* Returns a plan in which rank 0 sends one tensor each to ranks 1 and 2. */
static struct plan *fork_plan(void)
{
    struct err err;
    struct plan *plan = hand_plan(3, 1);
    struct program_builder b[3];
    memset(b, 0, sizeof(b));
    hand_add(&b[0], INSTR_SEND, 0, 1, -1);
    hand_add(&b[0], INSTR_SEND, 0, 2, -1);
    hand_add(&b[1], INSTR_RECV, 0, 0, -1);
    hand_add(&b[2], INSTR_RECV, 0, 0, -1);
    for (int r = 0; r < 3; r++)
        assert_int_equal(program_builder_take(&b[r], &plan->ranks[r].programs[PROGRAM_TRAIN], &err), 0);
    return plan;
}

static void share(struct sim_wire *wire, uint64_t number, double rate)
{
    wire->shared[wire->shared_count].number = number;
    wire->shared[wire->shared_count++].bytes_per_s = rate;
}

static void slow_links_run_side_by_side_on_a_fast_card(void **state)
{
    (void)state;
    struct plan *plan = fork_plan();
    struct hand hand = {.bytes = 100};
    for (uint32_t to = 1; to < 3; to++) {
        hand.wires[0][to] = (struct sim_wire){.latency_s = 0.5, .bytes_per_s = 10};
        share(&hand.wires[0][to], 7, 1000); /* The network card passes 100 bytes in 0.1 s. */
    }
    assert_true(fabs(hand_run(plan, &hand, NULL) - (10 + 0.1 + 0.5)) < 1e-12);
    plan_destroy(plan);
}

static void a_card_passes_no_more_than_it_can(void **state)
{
    (void)state;
    struct plan *plan = fork_plan();
    struct hand hand = {.bytes = 100};
    for (uint32_t to = 1; to < 3; to++) {
        hand.wires[0][to] = (struct sim_wire){.bytes_per_s = 10};
        share(&hand.wires[0][to], 7, 10);
    }
    assert_true(fabs(hand_run(plan, &hand, NULL) - 20) < 1e-12);
    hand.wires[0][2].shared_count = 0; /* The second link does not use the shared card. */
    assert_true(fabs(hand_run(plan, &hand, NULL) - 10) < 1e-12);
    plan_destroy(plan);
}

static double hand_lead(void *context, const struct plan_group *group, uint32_t rank, const struct instr *x)
{
    (void)context;
    (void)group;
    (void)x;
    return rank == 0 ? 0 : 0.5; /* Rank 1 sends to the root, and the root answers. */
}

/* Returns the seconds of a run in which two ranks compute for the given times and then all-reduce a scalar.
 */
static double summed_run(double first_s, double second_s)
{
    struct err err;
    struct plan *plan = hand_plan(2, 1); /* The plan's one group has both ranks. */
    for (uint32_t r = 0; r < 2; r++) {
        struct program_builder b = {0};
        int32_t made = hand_add(&b, INSTR_FORWARD, 0, PLAN_NONE, -1);
        struct instr x = instr_init(INSTR_ALL_REDUCE, QUEUE_GROUP);
        plan->ranks[r].slots[0].kind = SLOT_NORM_SCALAR;
        x.group = x.slot_in = x.slot_out = 0;
        program_add(&b, &x, &made, 1);
        assert_int_equal(program_builder_take(&b, &plan->ranks[r].programs[PROGRAM_TRAIN], &err), 0);
    }
    struct hand hand = {.compute_s = {first_s, second_s}};
    struct sim_costs costs = hand_costs(&hand);
    struct sim *sim = NULL;
    double seconds = 0;
    costs.lead_s = hand_lead;
    if (sim_create(plan, PROGRAM_TRAIN, &sim, &err) < 0 ||
        sim_run(sim, &costs, &seconds, NULL, NULL, 0, &err) < 0)
        fail_msg("%s", err.text);
    sim_destroy(sim);
    plan_destroy(plan);
    return seconds;
}

static void the_root_of_a_tree_may_be_late_by_the_round_trip_of_the_others(void **state)
{
    (void)state;
    assert_true(fabs(summed_run(3, 1) - 3) <
                1e-12); /* The other rank's message arrives long before it is needed. */
    assert_true(fabs(summed_run(3, 2.7) - 3.2) < 1e-12); /* The message arrives shortly after it is needed. */
    assert_true(fabs(summed_run(1, 3) - 3.5) <
                1e-12); /* The root waits for rank 1, and rank 1 for the root's answer. */
}

/* Rank 0 computes and sends `count` times. Rank 1 computes three seconds on each tensor and has `ring`
 * buffers. */
static double ring_run(uint32_t count, uint32_t ring)
{
    struct err err;
    struct plan *plan = hand_plan(2, count);
    struct program_builder b[2];
    memset(b, 0, sizeof(b));
    int32_t done[16];
    for (uint32_t k = 0; k < count; k++) {
        int32_t made = hand_add(&b[0], INSTR_FORWARD, (int32_t)k, PLAN_NONE, -1);
        hand_add(&b[0], INSTR_SEND, (int32_t)k, 1, made);
        int32_t got = hand_add(&b[1], INSTR_RECV, (int32_t)k, 0, k >= ring ? done[k - ring] : -1);
        done[k] = hand_add(&b[1], INSTR_FORWARD, (int32_t)k, PLAN_NONE, got);
    }
    for (int r = 0; r < 2; r++)
        assert_int_equal(program_builder_take(&b[r], &plan->ranks[r].programs[PROGRAM_TRAIN], &err), 0);
    struct hand hand = {.bytes = 10, .compute_s = {1, 3}};
    hand.wires[0][1] = (struct sim_wire){.bytes_per_s = 10};
    double seconds = hand_run(plan, &hand, NULL);
    plan_destroy(plan);
    return seconds;
}

static void a_receive_waits_for_its_buffer(void **state)
{
    (void)state;
    /* With one buffer, receiving (1 s) and computing (3 s) alternate; with two they overlap. */
    assert_true(fabs(ring_run(4, 1) - (1 + 4 * (1 + 3))) < 1e-12);
    assert_true(fabs(ring_run(4, 2) - (1 + 1 + 4 * 3)) < 1e-12);
    assert_true(fabs(ring_run(4, 4) - (1 + 1 + 4 * 3)) < 1e-12);
}

/* --- plans of the generators --- */

struct made {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    struct problem problem;
    struct plan *plan;
};

/* Makes a random pipeline or hybrid over random nodes with or without shared network cards. */
static bool make(struct made *m, uint64_t seed, uint32_t micro_batches, bool ragged)
{
    struct err err = {0};
    struct rand_stream r;
    rand_stream_init(&r, 11, seed);
    uint32_t stages = 2 + rand_stream_below(&r, 4), width = 1 + rand_stream_below(&r, 2);
    uint32_t devices = stages * width;
    m->config = fixture_config(stages * 2);
    m->workload = fixture_workload(&m->config, micro_batches, micro_batches);
    m->workload.epochs = 0;
    m->workload.steps = 1;
    for (uint32_t i = 0; i < micro_batches && !ragged; i++)
        m->workload.rows[i] = (struct workload_row){.tokens = 64, .labelled = 32};
    m->cluster = cluster_create(&err);
    for (uint32_t d = 0; d < devices; d++) {
        char name[32], node[16];
        snprintf(node, sizeof(node), "n%u", rand_stream_below(&r, 4));
        snprintf(name, sizeof(name), "%s/d%u", node, d);
        fixture_device(m->cluster, name, node, (uint64_t)1 << 40, 0.5 + rand_stream_unit(&r));
        if (rand_stream_below(&r, 2))
            assert_int_equal(cluster_set_nic(m->cluster, node, 2e6 * (1 + rand_stream_below(&r, 20)), &err),
                             0);
    }
    double rate = 1e6 * pow(10, 2 * rand_stream_unit(&r));
    assert_int_equal(cluster_set_defaults(m->cluster, 1e-5, 1e9, 1e-3, rate, &err), 0);
    if (problem_init(&m->problem, &m->workload, m->cluster, &err) < 0)
        fail_msg("%s", err.text);
    struct candidate candidate = {.placement = width > 1 ? PLACE_HYBRID : PLACE_PIPELINE,
                                  .micro_batch_rows = 1};
    assert_int_equal(candidate_reserve(&candidate, stages, devices, &err), 0);
    candidate.stage_count = stages;
    candidate.member_count = devices;
    uint32_t window = 1 + rand_stream_below(&r, 2);
    for (uint32_t s = stages; s-- > 0; window += 1 + rand_stream_below(&r, 2)) {
        candidate.stages[s] = (struct candidate_stage){
            .block_begin = (int32_t)(m->problem.block_count * (int32_t)s / (int32_t)stages),
            .block_end = (int32_t)(m->problem.block_count * (int32_t)(s + 1) / (int32_t)stages),
            .member_first = s * width,
            .member_count = width};
        for (uint32_t k = 0; k < width; k++)
            candidate.members[s * width + k] =
                (struct member){.device = s * width + k, .state_share = 1, .window = window + width};
    }
    if (width > 1) { /* Members take micro-batches in turn; in every second stage two at a time, so that all
                        stages wait for each other. */
        assert_int_equal(candidate_own(&candidate, micro_batches, &err), 0);
        for (uint32_t i = 0; i < candidate.owner_count; i++)
            candidate.owner[i] = (uint8_t)(i % micro_batches / (1 + i / micro_batches % 2) % width);
    }
    m->plan = kinds[candidate.placement]->emit(&m->problem, &candidate, true, &err);
    candidate_fini(&candidate);
    return m->plan != NULL;
}

static void unmake(struct made *m)
{
    plan_destroy(m->plan);
    problem_fini(&m->problem);
    cluster_destroy(m->cluster);
    workload_fini(&m->workload);
}

static void rows_of_uneven_length_are_simulated_one_by_one(void **state)
{
    (void)state;
    struct made m;
    struct err err;
    struct price price;
    struct sim *sim = NULL;
    struct sim_rank sums[16];
    double seconds;
    assert_true(make(&m, 3, 1500, true));
    assert_int_equal(price_init(&price, &m.problem, m.plan, &err), 0);
    assert_int_equal(price_step(&price, &sim, &seconds, sums, NULL, &err), 0);
    assert_non_null(sim);
    sim_destroy(sim);
    price_fini(&price);
    unmake(&m);
}

static double jittered(struct made *m, double sigma, uint64_t seed)
{
    struct err err;
    struct price price;
    struct sim *sim = NULL;
    double seconds = 0;
    assert_int_equal(price_init(&price, &m->problem, m->plan, &err), 0);
    struct sim_costs costs = price_costs(&price);
    costs.jitter_sigma = sigma;
    costs.jitter_seed = seed;
    assert_int_equal(sim_create(m->plan, PROGRAM_TRAIN, &sim, &err), 0);
    assert_int_equal(sim_run(sim, &costs, &seconds, NULL, NULL, 0, &err), 0);
    sim_destroy(sim);
    price_fini(&price);
    return seconds;
}

static void jitter_is_the_seeds_and_costs_time(void **state)
{
    (void)state;
    struct made m;
    assert_true(make(&m, 5, 200, true));
    double still = jittered(&m, 0, 1), sum = 0;
    assert_true(jittered(&m, 0, 2) == still);
    assert_true(jittered(&m, 0.2, 1) == jittered(&m, 0.2, 1));
    assert_true(jittered(&m, 0.2, 1) != jittered(&m, 0.2, 2));
    for (uint64_t seed = 0; seed < 20; seed++)
        sum += jittered(&m, 0.2, seed) / 20;
    /* The jitter's factors have mean 1, but a step waits for the slowest of several ranks. */
    assert_true(sum > still && sum < 1.3 * still);
    unmake(&m);
}

static double slot_size(void *context, uint32_t rank, uint32_t slot, int32_t micro_batch)
{
    const struct plan *plan = context;
    (void)micro_batch;
    return (double)plan->ranks[rank].slots[slot].bytes_bound;
}

static void timelines_and_paths_cover_the_step(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct made m;
        struct err err;
        struct price price;
        struct sim *sim = NULL;
        struct sim_rank_time times[64];
        struct sim_path path;
        double step_s = 0;
        if (!make(&m, seed, 40 + (uint32_t)seed, true)) {
            unmake(&m);
            continue;
        }
        assert_int_equal(price_init(&price, &m.problem, m.plan, &err), 0);
        struct sim_costs costs = price_costs(&price);
        assert_int_equal(sim_create(m.plan, PROGRAM_TRAIN, &sim, &err), 0);
        assert_int_equal(sim_run(sim, &costs, &step_s, NULL, NULL, 0, &err), 0);
        assert_true(m.plan->rank_count <= 64);
        assert_int_equal(sim_rank_times(sim, times, &err), 0);
        for (uint32_t r = 0; r < m.plan->rank_count; r++) {
            const struct sim_rank_time *sums = &times[r];
            assert_true(fabs(sums->compute_s + sums->wait_s + sums->idle_s - step_s) < 1e-9 * step_s);
            assert_true(sums->waits_on != (int32_t)r && sums->waits_on_s <= sums->wait_s * (1 + 1e-9));
        }
        assert_int_equal(sim_path(sim, &path, &err), 0);
        double now = 0;
        for (uint32_t i = 0; i < path.count; i++) {
            assert_true(fabs(path.parts[i].begin_s - now) < 1e-12 + 1e-12 * step_s);
            now = path.parts[i].end_s;
        }
        assert_true(path.count > 0 && path.parts[0].begin_s == 0 && now == step_s);
        sim_path_fini(&path);
        sim_destroy(sim);
        price_fini(&price);
        unmake(&m);
    }
}

static void memory_in_use_stays_under_the_predicted_peak(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct made m;
        struct err err;
        struct price price;
        struct sim *sim = NULL;
        double step_s = 0, fullest = 0;
        if (!make(&m, seed, 40, true)) {
            unmake(&m);
            continue;
        }
        assert_int_equal(price_init(&price, &m.problem, m.plan, &err), 0);
        struct sim_costs costs = price_costs(&price);
        assert_int_equal(sim_create(m.plan, PROGRAM_TRAIN, &sim, &err), 0);
        assert_int_equal(sim_run(sim, &costs, &step_s, NULL, NULL, 0, &err), 0);
        for (uint32_t r = 0; r < m.plan->rank_count; r++) {
            double rings = 0, base = (double)m.plan->ranks[r].memory_bytes, peak;
            for (uint32_t s = 0; s < m.plan->ranks[r].slot_count; s++) {
                const struct plan_slot *slot = &m.plan->ranks[r].slots[s];
                if (slot->lifetime == SLOT_FOR_RUN)
                    continue;
                rings += (double)slot->bytes_bound * slot->ring_micro_batches;
                base -= (double)slot->bytes_total;
            }
            assert_int_equal(sim_memory_peak(sim, r, slot_size, m.plan, &peak, &err), 0);
            /* The peak is largest when all rings are full. */
            assert_true(peak > base && peak <= fmax(base, 0) + rings + 1);
            fullest = fmax(fullest, peak / (double)m.plan->ranks[r].memory_bytes);
        }
        assert_true(fullest > 0.5);
        sim_destroy(sim);
        price_fini(&price);
        unmake(&m);
    }
}

/* Tests the critical path of a chain of instructions without other waits, and of a chain that waits for a
 * shared network card. */
static void the_path_names_who_held_the_card(void **state)
{
    (void)state;
    struct err err;
    struct plan *plan = fork_plan();
    struct hand hand = {.bytes = 100};
    struct sim *sim = NULL;
    struct sim_path path;
    for (uint32_t to = 1; to < 3; to++) {
        hand.wires[0][to] = (struct sim_wire){.bytes_per_s = 10, .latency_s = 1};
        share(&hand.wires[0][to], 7, 20); /* The card is occupied for half of the transfer's time. */
    }
    assert_true(fabs(hand_run(plan, &hand, &sim) - (5 + 10 + 1)) < 1e-12);
    assert_int_equal(sim_path(sim, &path, &err), 0);
    assert_int_equal(path.count, 2);
    assert_int_equal(path.parts[0].kind, PATH_SHARED);
    assert_true(fabs(path.parts[0].end_s - 5) < 1e-12);
    assert_int_equal(path.parts[1].kind, PATH_TRANSFER);
    assert_int_equal(path.parts[1].peer, 2);
    sim_path_fini(&path);
    sim_destroy(sim);
    plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_links_run_side_by_side_on_a_fast_card),
        cmocka_unit_test(a_card_passes_no_more_than_it_can),
        cmocka_unit_test(the_root_of_a_tree_may_be_late_by_the_round_trip_of_the_others),
        cmocka_unit_test(a_receive_waits_for_its_buffer),
        cmocka_unit_test(rows_of_uneven_length_are_simulated_one_by_one),
        cmocka_unit_test(jitter_is_the_seeds_and_costs_time),
        cmocka_unit_test(timelines_and_paths_cover_the_step),
        cmocka_unit_test(memory_in_use_stays_under_the_predicted_peak),
        cmocka_unit_test(the_path_names_who_held_the_card),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
