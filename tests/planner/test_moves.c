/* Tests the search's moves: after any move, blocks, devices, rows, shares and matrices are complete, and an
 * estimate depends on the candidate alone, not on how it was reached. */
#include "planner/any_candidate.h"
#include "planner/expert_fixture.h"
#include "planner/search/search.h"

#define MIB ((uint64_t)1 << 20)
#define SCENES 400u
#define MOVES_EACH 60u
#define NEAR 1e-9

struct scene {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    struct problem problem;
};

static void scene_init(struct scene *s, struct rand_stream *r, enum plan_placement place)
{
    struct err err = {0};
    uint32_t layers = 2 + rand_stream_below(r, 7), devices = 2 + rand_stream_below(r, 6);
    s->config = place == PLACE_EXPERT ? expert_config(layers, 4 + rand_stream_below(r, 5), 2)
                                      : fixture_config(layers);
    s->config.vocab = 2048;
    s->workload = fixture_workload(&s->config, 10 + rand_stream_below(r, 60), 2 + rand_stream_below(r, 23));
    s->workload.method = rand_stream_below(r, 3) ? METHOD_LORA : METHOD_FULL;
    s->cluster = cluster_create(&err);
    for (uint32_t d = 0; d < devices; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d / 2);
        snprintf(name, sizeof(name), "n%u/%u", d / 2, d);
        fixture_device(s->cluster, name, node, (100 + rand_stream_below(r, 900)) * MIB,
                       0.3 + rand_stream_unit(r));
    }
    if (problem_init(&s->problem, &s->workload, s->cluster, &err) < 0)
        fail_msg("%s", err.text);
}

static void scene_fini(struct scene *s)
{
    problem_fini(&s->problem);
    cluster_destroy(s->cluster);
    workload_fini(&s->workload);
}

/* Whether the stages cover all blocks in order, the members cover the stages in order (once for each lap of
 * an interleaved schedule), and each member is another device. */
static bool stages_whole(const struct problem *p, const struct candidate *c)
{
    int32_t block = 0;
    uint32_t member = 0, used = 0;
    bool laps = c->schedule == SCHEDULE_INTERLEAVED, whole = true;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        const struct candidate_stage *x = &c->stages[s];
        whole = whole && x->block_begin == block && x->block_end > block && x->member_count > 0 &&
                x->member_first == member;
        block = x->block_end;
        member += x->member_count;
        member = laps && member == c->member_count && s + 1 < c->stage_count ? 0 : member;
    }
    for (uint32_t m = 0; m < c->member_count; m++) {
        whole = whole && c->members[m].device < p->device_count && !(used >> c->members[m].device & 1) &&
                c->members[m].window > 0;
        used |= 1u << c->members[m].device;
    }
    return whole && block == p->block_count && member == c->member_count;
}

static bool work_whole(const struct problem *p, const struct candidate *c)
{
    uint32_t rows = 0, columns = 0, heads = 0;
    double state = 0, experts = 0;
    for (uint32_t m = 0; m < c->member_count; m++) {
        const struct member *x = &c->members[m];
        rows += c->placement == PLACE_EXPERT ? x->rows : x->rows * x->count;
        state += x->state_share;
        experts += x->expert_share;
        columns += x->tensor.column_end - x->tensor.column_begin;
        heads += x->tensor.kv_head_end - x->tensor.kv_head_begin;
    }
    bool keeps = p->workload->method == METHOD_FULL &&
                 c->gathered_layers; /* A member may hold state only, without rows. */
    for (uint32_t m = 0; m < c->member_count && (c->placement == PLACE_DATA || c->placement == PLACE_SERVER);
         m++) {
        if (c->members[m].count == 0 && !(c->placement == PLACE_SERVER ? m == 0 : keeps))
            return false;
    }
    const struct model_config *config = p->workload->config;
    uint32_t stages = c->stage_count, owned = stages * micro_count(p, c->micro_batch_rows);
    for (uint32_t i = 0; i < c->owner_count; i++)
        if (c->owner_count != owned || c->owner[i] >= c->stages[i / (owned / stages)].member_count)
            return false;
    switch (c->placement) {
    case PLACE_TENSOR:
        return columns == stages * config->ffn && heads == stages * config->kv_heads;
    case PLACE_EXPERT:
        for (uint32_t m = 0; m + 1 < c->member_count; m++)
            if (!c->members[m].rows && c->members[m + 1].rows)
                return false; /* Ranks with attention come first. */
        return rows == c->micro_batch_rows && fabs(experts - 1) < NEAR;
    case PLACE_DATA:
        return rows == p->workload->batch_rows && (c->gathered_layers == 0 || fabs(state - 1) < NEAR);
    case PLACE_SERVER:
        return rows == p->workload->batch_rows && state == 1 && c->members[0].state_share == 1;
    default:
        return true;
    }
}

/* Tries all moves on candidates of every kind. */
static void moves_keep_candidates_whole(void **state)
{
    (void)state;
    uint32_t moved[PLACE_COUNT][MOVE_KINDS] = {0}, fit = 0;
    for (uint32_t seed = 0; seed < SCENES; seed++) {
        struct rand_stream r;
        struct scene s;
        struct err err = {0};
        struct candidate c = {0}, trial = {0};
        struct workbench bench;
        rand_stream_init(&r, seed, 21);
        enum plan_placement place = (enum plan_placement)(seed % PLACE_COUNT);
        const struct placement_kind *kind = kinds[place];
        scene_init(&s, &r, place);
        workbench_init(&bench, &s.problem, &err);
        bool found = any_candidate(&s.problem, kind, &r, &c);
        for (uint32_t n = 0; found && n < MOVES_EACH; n++) {
            struct move move = {(enum move_kind)rand_stream_below(&r, MOVE_KINDS), 0, 0};
            if (move.kind == MOVE_OWNER && place == PLACE_HYBRID && c.member_count > c.stage_count)
                any_owners(&s.problem, &bench, kind, &c);
            move = move_range(&s.problem, kind, &c, move.kind);
            if (move.a == 0 || move.b == 0)
                continue;
            move.b = rand_stream_below(&r, move.b);
            move.a = rand_stream_below(&r, move.a);
            assert_int_equal(candidate_copy(&trial, &c, &err), 0);
            int level = move_apply(&s.problem, kind, &trial, move, &err);
            if (level == MOVE_VOID || any_settle(&bench, kind, &trial, level) <= 0)
                continue;
            if (!stages_whole(&s.problem, &trial) || !work_whole(&s.problem, &trial))
                fail_msg("seed %u: a %s is not whole after move %d", seed, plan_placement_name(place),
                         (int)move.kind);
            moved[place][move.kind]++;
            fit++;
            assert_int_equal(candidate_copy(&c, &trial, &err), 0);
        }
        candidate_fini(&trial);
        candidate_fini(&c);
        workbench_fini(&bench);
        scene_fini(&s);
    }
    print_message("%u moves of candidates that fit\n", fit);
    for (int move = 0; move < MOVE_KINDS; move++) {
        uint32_t all = 0;
        for (int place = 0; place < PLACE_COUNT; place++)
            all += moved[place][move];
        if (all == 0)
            fail_msg("move %d was never met", move);
    }
}

/* Settling again, estimating again, copying and hashing give the same estimate and hash. */
static void an_estimate_is_of_the_candidate_alone(void **state)
{
    (void)state;
    uint32_t looked = 0;
    for (uint32_t seed = 0; seed < SCENES; seed++) {
        struct rand_stream r;
        struct scene s;
        struct err err = {0};
        struct candidate c = {0}, copy = {0};
        struct workbench bench;
        rand_stream_init(&r, seed, 22);
        enum plan_placement place = (enum plan_placement)(seed % PLACE_COUNT);
        scene_init(&s, &r, place);
        workbench_init(&bench, &s.problem, &err);
        if (any_candidate(&s.problem, kinds[place], &r, &c) &&
            any_settle(&bench, kinds[place], &c, MOVE_SETTLE) > 0) {
            double settled = c.estimate_s;
            assert_int_equal(candidate_copy(&copy, &c, &err), 0);
            assert_true(candidate_equal(&copy, &c) && candidate_hash(&copy) == candidate_hash(&c));
            assert_int_equal(any_settle(&bench, kinds[place], &copy, MOVE_AS_IS), 1);
            if (fabs(copy.estimate_s / settled - 1) > NEAR)
                fail_msg("seed %u: a %s settles at %.9g s and is estimated at %.9g s", seed,
                         plan_placement_name(place), settled, copy.estimate_s);
            copy.members[0].window++;
            assert_false(candidate_equal(&copy, &c));
            looked++;
        }
        candidate_fini(&copy);
        candidate_fini(&c);
        workbench_fini(&bench);
        scene_fini(&s);
    }
    print_message("%u candidates\n", looked);
    assert_true(looked > SCENES / 2);
}

/* What was looked at before in the same workbench changes nothing: not even a split schedule, whose
 * micro-batches keep more, or members that recompute some of their blocks. */
static void a_candidate_settles_alike_after_any_look(void **state)
{
    (void)state;
    uint32_t looked = 0;
    for (uint32_t seed = 0; seed < SCENES; seed++) {
        struct rand_stream r;
        struct scene s;
        struct err err = {0};
        struct candidate c = {0}, copy = {0};
        struct workbench fresh, used;
        rand_stream_init(&r, seed, 23);
        const struct placement_kind *kind = kinds[seed % 2 ? PLACE_HYBRID : PLACE_PIPELINE];
        scene_init(&s, &r, kind->placement);
        workbench_init(&fresh, &s.problem, &err);
        workbench_init(&used, &s.problem, &err);
        if (any_candidate(&s.problem, kind, &r, &c) && c.schedule != SCHEDULE_INTERLEAVED) {
            assert_int_equal(candidate_copy(&copy, &c, &err), 0);
            copy.schedule = SCHEDULE_SPLIT;
            for (uint32_t i = 0; i < copy.stage_count; i++) {
                const struct candidate_stage *x = &copy.stages[i];
                copy.members[x->member_first].recompute_end = x->block_end - 1;
                kind->look(&used, &copy, i, x->block_begin, x->block_end, 1, INFINITY);
            }
            assert_int_equal(candidate_copy(&copy, &c, &err), 0);
            int fits = any_settle(&fresh, kind, &c, MOVE_SETTLE);
            assert_int_equal(any_settle(&used, kind, &copy, MOVE_SETTLE), fits);
            if (fits > 0 && !candidate_equal(&c, &copy))
                fail_msg("seed %u: %.9g s after a look, else %.9g s", seed, copy.estimate_s, c.estimate_s);
            looked += fits > 0;
        }
        candidate_fini(&copy);
        candidate_fini(&c);
        workbench_fini(&fresh);
        workbench_fini(&used);
        scene_fini(&s);
    }
    assert_true(looked > SCENES / 2);
}

/* Below 16 devices the budget shrinks with (devices/16)², but not below 40,000 units; from 64 devices on it
 * is a sixth. */
static void the_budget_follows_the_devices(void **state)
{
    (void)state;
    static const struct {
        uint64_t evaluations, units;
        uint32_t devices;
    } cases[] = {
        {20000, 40000, 1},    {20000, 421875, 6},  {20000, 2636718, 15},   {20000, 3000000, 16},
        {20000, 3000000, 63}, {20000, 500000, 64}, {20000, 500000, 10000}, {0, 3000000, 16},
        {100, 15000, 2},      {1000, 40000, 100},  {2000, 50000, 64},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(search_budget(cases[i].evaluations, cases[i].devices), cases[i].units);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_budget_follows_the_devices),
        cmocka_unit_test(moves_keep_candidates_whole),
        cmocka_unit_test(an_estimate_is_of_the_candidate_alone),
        cmocka_unit_test(a_candidate_settles_alike_after_any_look),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
