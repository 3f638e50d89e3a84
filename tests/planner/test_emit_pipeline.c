/* Emits, checks and prices random candidates of pipelines and hybrids of every schedule. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/candidate/from_plan.h"
#include "planner/cost/micro.h"
#include "planner/cost/price.h"
#include "planner/emit/pipeline.h"
#include "program/host.h"

#define SEEDS 500u

enum shape { SINGLE, TURNS, ALL_FORWARDS, LAPS, SPLIT, OWN_ROWS, EAGER, STRICT, SHAPES };

struct scene {
    struct rand_stream r;
    struct model_config config;
    struct workload w;
    struct cluster *cluster;
    struct problem p;
    struct candidate c;
    enum shape shape;
    uint32_t devices;
};

static uint32_t below(struct scene *t, uint32_t n)
{
    return rand_stream_below(&t->r, n);
}

static void scene_init(struct scene *t, uint32_t seed)
{
    struct err err = {0};
    *t = (struct scene){.cluster = cluster_create(&err)};
    rand_stream_init(&t->r, 77, seed);
    t->shape = seed % SHAPES;
    t->config = fixture_config(4 + below(t, 9));
    t->config.vocab = 2048;
    t->config.tied = below(t, 2);
    uint32_t batch = 1 + below(t, below(t, 3) ? 24 : 64);
    t->w = fixture_workload(&t->config, 4 * batch, batch);
    t->w.method = below(t, 2) ? METHOD_FULL : METHOD_LORA;
    t->w.compute = t->w.method == METHOD_FULL && below(t, 2) ? COMPUTE_BF16 : COMPUTE_FP32;
    if (below(t, 2))
        t->w.sample_tokens = t->w.prompt_tokens = 0;
    t->w.saves_embedding = t->w.method == METHOD_LORA && seed % 3 == 0;
    if (seed % 5 == 1 && !(t->config.tied && (t->w.method == METHOD_FULL || t->w.saves_embedding))) {
        t->config.per_layer = 16; /* more passes from stage to stage than the stream */
        t->config.kv_borrowers = t->config.layers / 2;
    }
    t->devices = 3 + below(t, 6);
    uint32_t nodes = 1 + below(t, t->devices);
    for (uint32_t d = 0; d < t->devices; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d % nodes);
        snprintf(name, sizeof(name), "n%u/%u", d % nodes, d);
        fixture_device(t->cluster, name, node, (uint64_t)8 << 30, 0.5 + below(t, 100) / 50.0);
    }
    for (uint32_t i = 0; i < nodes * nodes; i++) {
        char from[16], to[16];
        snprintf(from, sizeof(from), "n%u", i / nodes);
        snprintf(to, sizeof(to), "n%u", i % nodes);
        if (i / nodes != i % nodes)
            fixture_link(t->cluster, from, to, 1e-4 * (1 + below(t, 20)), 1e8 * (1 + below(t, 9)));
    }
    if (problem_init(&t->p, &t->w, t->cluster, &err) < 0)
        fail_msg("%s", err.text);
}

static void scene_fini(struct scene *t)
{
    candidate_fini(&t->c);
    problem_fini(&t->p);
    cluster_destroy(t->cluster);
    workload_fini(&t->w);
}

/* Distributes blocks over the stages, and members over the stages: one member each or, for hybrids, several.
 */
static void stages_fill(struct scene *t, uint32_t stages, uint32_t members)
{
    struct err err = {0};
    struct candidate *c = &t->c;
    uint32_t blocks = (uint32_t)t->p.block_count, block = 0, member = 0;
    bool groups = t->shape >= OWN_ROWS;
    assert_int_equal(candidate_reserve(c, stages, members, &err), 0);
    c->stage_count = stages;
    c->member_count = members;
    for (uint32_t s = 0; s < stages; s++) {
        uint32_t behind = stages - s - 1, most = blocks - block - behind, room = members - member - behind;
        uint32_t take = behind ? 1 + below(t, most > 4 ? 4 : most) : most;
        uint32_t own = !groups ? 1 : behind ? 1 + below(t, room) : room;
        c->stages[s] = (struct candidate_stage){.block_begin = (int32_t)block,
                                                .block_end = (int32_t)(block + take),
                                                .member_first = groups ? member : s % members,
                                                .member_count = own};
        block += take;
        member += groups ? own : 0;
    }
    for (uint32_t m = 0; m < members; m++) {
        c->members[m] = (struct member){.device = m, .state_share = 1, .recompute = below(t, 3) == 0};
        for (uint32_t at = m, other = below(t, m + 1); at != other;
             at = other) { /* The devices are taken in any order. */
            c->members[at].device = c->members[other].device;
            c->members[other].device = m;
        }
    }
}

/* Cuts a batch into micro-batches of unlike sizes. */
static void own_rows(struct scene *t)
{
    struct candidate *c = &t->c;
    uint32_t left = t->w.batch_rows;
    for (uint32_t m = 0; m < c->member_count; m++) {
        uint32_t behind = c->member_count - m - 1, own = behind ? 1 + below(t, left - behind) : left;
        uint32_t rows = 1 + below(t, own);
        while (own % rows)
            rows--;
        c->members[m].rows = rows;
        c->members[m].count = own / rows;
        c->members[m].window = 1;
        c->micro_batch_rows = m == 0 || rows > c->micro_batch_rows ? rows : c->micro_batch_rows;
        left -= own;
    }
}

static void candidate_random(struct scene *t)
{
    static const enum plan_placement placements[SHAPES] = {PLACE_SINGLE,   PLACE_PIPELINE, PLACE_PIPELINE,
                                                           PLACE_PIPELINE, PLACE_PIPELINE, PLACE_DATA,
                                                           PLACE_HYBRID,   PLACE_HYBRID};
    struct candidate *c = &t->c;
    struct err err = {0};
    uint32_t batch = t->w.batch_rows, blocks = (uint32_t)t->p.block_count, members = 1, stages = 1;
    uint32_t rows = t->shape >= EAGER ? 1 : 1 + below(t, batch < 4 ? batch : 4);
    if (t->shape > SINGLE && t->shape < OWN_ROWS)
        stages = members = 2 + below(t, (t->devices < blocks / 2 ? t->devices : blocks / 2) - 1);
    if (t->shape == LAPS)
        stages *= 2 + below(t, blocks / members - 1);
    if (t->shape == OWN_ROWS)
        members = t->devices < batch ? t->devices : batch;
    if (t->shape >= EAGER) {
        members = t->devices;
        stages = 2 + below(t, (members < blocks ? members : blocks) - 2);
    }
    c->placement = placements[t->shape];
    c->schedule = t->shape == LAPS    ? SCHEDULE_INTERLEAVED
                  : t->shape == SPLIT ? SCHEDULE_SPLIT
                                      : SCHEDULE_1F1B;
    c->eager = t->shape == EAGER;
    c->micro_batch_rows = rows;
    stages_fill(t, stages, members);
    if (t->shape == OWN_ROWS) {
        own_rows(t);
        return;
    }
    uint32_t count = micro_count(&t->p, rows), window = count + below(t, 3);
    for (uint32_t s = 0; s < stages;
         s++) { /* Windows (micro-batches in flight) do not grow from the first stage to the last; the members
                   of a stage have the same window. */
        uint32_t least = stages - s;
        window = window > least && below(t, 2) ? least + below(t, window - least) : window;
        for (uint32_t m = 0; m < c->stages[s].member_count; m++) {
            struct member *x = &c->members[c->stages[s].member_first + m];
            x->window = t->shape == ALL_FORWARDS ? count : window;
            x->delay = t->shape == SPLIT ? below(t, 4) : 0;
            x->recompute &= t->shape != SPLIT; /* Recomputation excludes a split backward pass. */
        }
    }
    if (t->shape < EAGER)
        return;
    c->whole = t->w.method == METHOD_FULL && t->config.layers % 2;
    assert_int_equal(candidate_own(c, count, &err), 0);
    for (uint32_t i = 0; i < stages * count; i++)
        c->owner[i] = (uint8_t)((i % count + i / count) % c->stages[i / count].member_count);
}

/* Returns the step's seconds as the search estimates them. */
static double estimate(const struct scene *t, uint32_t micro_batches)
{
    const struct candidate *c = &t->c;
    struct schedule schedule = {0};
    struct stage_price prices[64];
    struct pipeline_sync syncs[64];
    struct err err = {0};
    double end = 0, update = 0;
    uint32_t at = 0;
    assert_int_equal(pipeline_syncs(&t->p, c, syncs, &err), 0);
    for (uint32_t s = 0; s < c->stage_count; s++) {
        for (uint32_t m = 0; m < c->stages[s].member_count; m++, at++) {
            pipeline_stage_price(&t->p, c, s, c->stages[s].member_first + m, &prices[at]);
            prices[at].ready_s = syncs[s].before_s;
        }
    }
    assert_int_equal(schedule_run(&schedule, &t->p, c, prices, micro_batches, INFINITY, &err), 0);
    for (uint32_t s = 0; s < c->stage_count; s++) {
        for (uint32_t m = 0; m < c->stages[s].member_count; m++)
            end = fmax(end, schedule.rank_end[c->stages[s].member_first + m] + syncs[s].after_s);
        update = fmax(update, syncs[s].update_s);
    }
    schedule_fini(&schedule);
    return end + update;
}

static void every_shape_is_accepted_and_priced(void **state)
{
    (void)state;
    uint32_t made[SHAPES] = {0}, refused = 0;
    double ratio[SHAPES] = {0};
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        struct scene t;
        struct err err = {0};
        double seconds = 0;
        scene_init(&t, seed);
        candidate_random(&t);
        struct plan *plan = pipeline_emit(&t.p, &t.c, true, &err);
        if (plan) {
            if (plan_check(plan, &err) < 0 || price_plan(&t.p, plan, 4, &seconds, &err) < 0)
                fail_msg("seed %u: %s", seed, err.text);
            assert_int_equal(plan->placement, t.c.placement);
            ratio[t.shape] += estimate(&t, plan->micro_batch_count) / seconds;
            made[t.shape]++;
        } else if (err.code == ERR_NOFIT || err.code == ERR_INVALID) {
            /* The candidate is refused: no schedule passes through all stages, a member lacks memory, or a
             * member gets no micro-batch. */
            refused++;
        } else {
            fail_msg("seed %u: %s", seed, err.text);
        }
        plan_destroy(plan);
        scene_fini(&t);
    }
    for (int i = 0; i < SHAPES; i++) {
        print_message("shape %d: %u plans, estimated %.3f of simulated\n", i, made[i], ratio[i] / made[i]);
        assert_true(made[i] >= SEEDS / SHAPES / 4);
        assert_true(fabs(ratio[i] / made[i] - 1) <
                    0.08); /* The estimate is less exact here, because it takes even shares and mean steps. */
    }
    print_message("%u refused\n", refused);
}

static uint32_t count_of(const struct plan *plan, uint32_t r, enum instr_op op, uint32_t tag)
{
    const struct program *program = &plan->ranks[r].programs[PROGRAM_TRAIN];
    uint32_t count = 0;
    for (uint32_t i = 0; i < program->instr_count; i++)
        count += program->instrs[i].op == op && program->instrs[i].tag == tag;
    return count;
}

/* A trained tied table is kept once: the owners' shares of it add up to 1, and copies have no share. */
static void a_tied_table_that_is_trained_is_gathered_by_both_ends(void **state)
{
    (void)state;
    uint32_t seen = 0, replicas = 0;
    double largest = 0; /* bytes of the table in multiples of the host memory of the rank's queues */
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        struct scene t;
        struct err err = {0};
        scene_init(&t, seed);
        candidate_random(&t);
        struct plan *plan = NULL;
        bool whole = t.w.method == METHOD_LORA || t.c.whole, grouped = t.c.member_count > t.c.stage_count;
        if ((t.w.method == METHOD_FULL || t.w.saves_embedding) && t.config.tied && t.c.stage_count > 1)
            plan = pipeline_emit(&t.p, &t.c, true, &err);
        double kept = 0;
        for (uint32_t r = 0; plan && r < plan->rank_count; r++) {
            const struct plan_rank *rank = &plan->ranks[r];
            bool first = rank->block_begin == 0, last = rank->block_end == t.p.block_count;
            bool several = grouped && t.c.stages[rank->stage].member_count > 1 &&
                           !(first && rank->block_end == 1); /* The last rank holds more than the table. */
            bool gives = last || (first && (!whole || r == 0));
            assert_int_equal(rank->owns_tied, first);
            assert_int_equal(rank->copies_tied, last);
            assert_int_equal(count_of(plan, r, INSTR_ALL_GATHER, TAG_PARAMETERS),
                             gives + (several && !whole));
            assert_int_equal(count_of(plan, r, INSTR_REDUCE_SCATTER, TAG_PARAMETER_GRADIENTS),
                             whole && grouped ? 0 : (first || last) + several);
            assert_int_equal(count_of(plan, r, INSTR_ALL_REDUCE, TAG_PARAMETER_GRADIENTS),
                             whole && grouped ? (first || last) + several : 0);
            kept += rank->state_share;
            /* However large the table is, it passes through host memory in slices: those of at most three
             * groups, of the table's ends, of its owners' sums and of the stage. */
            uint64_t host = plan_host_bytes(plan, r).collectives,
                     queue = STREAM_SEND_BUFFERS + STREAM_SCRATCH_BUFFERS +
                             stream_receive_buffers(plan->rank_count);
            assert_true(host <= 3 * queue * STREAM_SLICE_BYTES);
            assert_true(host > 0 || !(first || last || several));
            if (host > 0)
                largest = fmax(largest, (double)memory_table_bytes(&t.p) / (double)host);
        }
        if (plan && !(whole && grouped))
            assert_true(fabs(kept - 1) < 1e-6);
        replicas += plan && whole && grouped;
        seen += plan != NULL;
        plan_destroy(plan);
        scene_fini(&t);
    }
    assert_true(seen > SEEDS / 20 && replicas > SEEDS / 50);
    assert_true(largest > 1);
}

/* When a device is too small, the search and the plan's check name it with the same number of bytes. */
static void a_device_too_small_is_named(void **state)
{
    (void)state;
    for (uint32_t seed = TURNS; seed < 20 * SHAPES; seed += SHAPES) {
        struct scene t;
        struct err err = {0};
        struct memory_need need;
        scene_init(&t, seed);
        if (t.config.per_layer > 0) { /* the search takes the widest of a stage's boundary tensors for all */
            scene_fini(&t);
            continue;
        }
        candidate_random(&t);
        struct plan *plan = pipeline_emit(&t.p, &t.c, false, &err);
        if (!plan)
            fail_msg("seed %u: %s", seed, err.text);
        const struct plan_rank *rank = &plan->ranks[0];
        uint32_t window = rank->window, boundaries = 0;
        for (uint32_t i = 0; i < rank->slot_count; i++)
            if (rank->slots[i].kind == SLOT_ACTIVATION || rank->slots[i].kind == SLOT_GRADIENT)
                boundaries += rank->slots[i].ring_micro_batches;
        pipeline_member_need(&t.p, &t.c, 0, 0, (struct flat_share){0, 1}, window, boundaries, &need);
        assert_true(need.total == rank->memory_bytes);
        uint64_t *limit = &t.cluster->devices[t.c.members[0].device].memory_limit_bytes;
        *limit = need.total;
        plan_destroy(plan);
        plan = pipeline_emit(&t.p, &t.c, false, &err);
        assert_non_null(plan);
        plan_destroy(plan);
        *limit = need.total - 1;
        assert_null(pipeline_emit(&t.p, &t.c, false, &err));
        assert_int_equal(err.code, ERR_NOFIT);
        assert_non_null(strstr(err.text, "its limit is"));
        scene_fini(&t);
    }
}

static struct plan *plan_with(struct scene *t, enum plan_dtype boundary, double *seconds)
{
    struct err err = {0};
    problem_fini(&t->p);
    t->w.boundary = boundary;
    if (problem_init(&t->p, &t->w, t->cluster, &err) < 0)
        fail_msg("%s", err.text);
    struct plan *plan = pipeline_emit(&t->p, &t->c, true, &err);
    if (plan && (plan_check(plan, &err) < 0 || price_plan(&t->p, plan, 2, seconds, &err) < 0))
        fail_msg("%s", err.text);
    return plan;
}

static bool is_boundary(const struct plan_slot *slot)
{
    return slot->kind == SLOT_ACTIVATION || slot->kind == SLOT_GRADIENT;
}

/* Returns the seconds of the plan's own programs when boundary tensors have half the bytes. */
static double halved_seconds(const struct scene *t, struct plan *plan)
{
    struct err err = {0};
    double seconds = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        for (uint32_t i = 0; i < plan->ranks[r].slot_count; i++) {
            struct plan_slot *slot = &plan->ranks[r].slots[i];
            slot->bytes_per_token /= is_boundary(slot) ? 2 : 1;
            slot->bytes_bound /= is_boundary(slot) ? 2 : 1;
        }
    }
    if (price_plan(&t->p, plan, 2, &seconds, &err) < 0)
        fail_msg("%s", err.text);
    return seconds;
}

/* Boundary tensors in 16 bits have half the bytes and change nothing else. The same instruction orders are
 * never slower with them, and strict orders stay the same. Eager orders (look_eager) come from list
 * scheduling, where shorter transfers can give another order and a longer step (Graham 1969): of 1,658 such
 * plans two were slower, by 6.8 % (seed 118) and 3.7 %. The search takes the faster of eager and strict
 * orders. */
static void boundaries_in_16_bits_are_half(void **state)
{
    (void)state;
    uint32_t seen = 0, faster = 0, slower = 0;
    for (uint32_t seed = 0; seed < 120; seed++) {
        struct scene t;
        double wide_s = 0, narrow_s = 0;
        scene_init(&t, seed);
        t.config.per_layer = t.config.kv_borrowers = 0; /* what passes by the stream stays fp32 */
        candidate_random(&t);
        enum plan_dtype dtype = seed % 2 ? PLAN_BF16 : PLAN_F16;
        struct plan *wide = plan_with(&t, PLAN_F32, &wide_s), *narrow = plan_with(&t, dtype, &narrow_s);
        assert_true(narrow || !wide);
        for (uint32_t r = 0; wide && r < wide->rank_count; r++) {
            const struct plan_rank *a = &wide->ranks[r], *b = &narrow->ranks[r];
            bool travels = false;
            for (uint32_t s = 0; s < a->slot_count; s++) {
                const struct plan_slot *x = &a->slots[s], *y = &b->slots[s];
                bool boundary = is_boundary(x);
                travels |= boundary;
                assert_int_equal(y->dtype, boundary ? dtype : PLAN_F32);
                assert_int_equal(x->dtype, PLAN_F32);
                assert_true(y->bytes_per_token * (boundary ? 2 : 1) == x->bytes_per_token);
                assert_int_equal(y->bytes_bound * (boundary ? 2 : 1), x->bytes_bound);
                assert_int_equal(y->bytes_total * (boundary ? 2 : 1), x->bytes_total);
            }
            for (int p = 0; p < PURPOSE_COUNT; p++)
                assert_true((a->memory_peak[p] > b->memory_peak[p]) == (travels && p == PURPOSE_BUFFERS));
        }
        if (wide) {
            assert_true(narrow_s <= wide_s * (t.shape == EAGER ? 1.07 : 1 + 1e-9));
            assert_true(halved_seconds(&t, wide) <= wide_s * (1 + 1e-9));
            slower += narrow_s > wide_s * (1 + 1e-9);
            faster += narrow_s < wide_s * 0.9999;
            seen += wide->rank_count > 1;
        }
        plan_destroy(wide);
        plan_destroy(narrow);
        scene_fini(&t);
    }
    print_message("%u of %u plans are faster in 16 bits\n", faster, seen);
    assert_true(seen > 40 && faster > seen / 2 && slower <= 1);
}

static struct plan *plan_placed(struct scene *t, bool moments_on_host, double *seconds)
{
    t->w.moments_on_host = moments_on_host;
    return plan_with(t, PLAN_F32, seconds);
}

/* Whether rank r keeps only a share of its stage's state. */
static bool has_shard(const struct scene *t, const struct plan *plan, uint32_t r)
{
    return t->w.method == METHOD_FULL && plan->ranks[r].state_share < 1 && plan->group_count > 1 &&
           !t->c.whole;
}

/* With AdamW's moments on the host, each rank that keeps whole stages has all moments there, except for
 * buffers for two of each stage's largest blocks. The step takes longer, and the plan fits where the one with
 * moments on the device does not. Members that share out state get other shares. */
static void moments_on_the_host_leave_the_device(void **state)
{
    (void)state;
    uint32_t moved = 0, fits = 0;
    for (uint32_t seed = 0; seed < 120; seed++) {
        struct scene t;
        double here_s = 0, there_s = 0;
        scene_init(&t, seed);
        candidate_random(&t);
        struct plan *here = plan_placed(&t, false, &here_s), *there = plan_placed(&t, true, &there_s);
        assert_true(!here == !there);
        for (uint32_t r = 0; here && r < here->rank_count; r++) {
            const struct plan_rank *a = &here->ranks[r], *b = &there->ranks[r];
            uint64_t before = a->memory_peak[PURPOSE_OPTIMIZER], after = b->memory_peak[PURPOSE_OPTIMIZER];
            assert_true(a->moments_host_bytes == 0);
            if (has_shard(&t, here, r)) {
                assert_true(after <= b->moments_host_bytes);
                continue;
            }
            assert_true(b->moments_host_bytes == before && after <= before);
            assert_true(a->memory_bytes - b->memory_bytes == before - after);
            moved += after < before;
        }
        if (here && !has_shard(&t, here, 0) && here->ranks[0].memory_bytes > there->ranks[0].memory_bytes) {
            assert_true(there_s > here_s);
            t.cluster->devices[t.c.members[0].device].memory_limit_bytes = there->ranks[0].memory_bytes;
            struct plan *none = plan_placed(&t, false, &here_s), *only = plan_placed(&t, true, &there_s);
            assert_true(!none && only);
            plan_destroy(only);
            fits++;
        }
        plan_destroy(here);
        plan_destroy(there);
        scene_fini(&t);
    }
    assert_true(moved > 100 && fits > 40);
}

/* From the plan of a pipeline of any schedule the candidate can be rebuilt, and emits the same instructions
 * again. */
static void a_chain_is_read_off_its_plan(void **state)
{
    (void)state;
    static const enum shape shapes[] = {TURNS, ALL_FORWARDS, LAPS, SPLIT};
    uint32_t seen = 0;
    for (uint32_t i = 0; i < 100; i++) {
        struct scene t;
        struct err err = {0};
        struct candidate read;
        scene_init(&t, i / 4 * SHAPES + shapes[i % 4]);
        candidate_random(&t);
        uint32_t count = micro_count(&t.p, t.c.micro_batch_rows);
        for (uint32_t m = 0; m < t.c.member_count;
             m++) /* Plans store no windows beyond the number of micro-batches. */
            t.c.members[m].window = t.c.members[m].window < count ? t.c.members[m].window : count;
        struct plan *plan = pipeline_emit(&t.p, &t.c, true, &err);
        if (plan) {
            if (candidate_from_plan(&t.p, plan, &read, &err) < 0)
                fail_msg("%u: %s", i, err.text);
            struct plan *again = pipeline_emit(&t.p, &read, true, &err);
            if (!again || plan_seal(plan, &err) < 0 || plan_seal(again, &err) < 0)
                fail_msg("%u: %s", i, err.text);
            if (strcmp(plan->digest, again->digest) != 0)
                fail_msg("%u: %s is read as another plan", i, plan_schedule_name(plan->schedule));
            plan_destroy(again);
            candidate_fini(&read);
            seen++;
        }
        plan_destroy(plan);
        scene_fini(&t);
    }
    assert_true(seen > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_is_accepted_and_priced),
        cmocka_unit_test(a_tied_table_that_is_trained_is_gathered_by_both_ends),
        cmocka_unit_test(boundaries_in_16_bits_are_half),
        cmocka_unit_test(moments_on_the_host_leave_the_device),
        cmocka_unit_test(a_chain_is_read_off_its_plan),
        cmocka_unit_test(a_device_too_small_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
