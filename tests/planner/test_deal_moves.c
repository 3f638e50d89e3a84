/* What was dealt micro-batch by micro-batch, when who does what changes: random moves over seeded hybrids. */
#include "planner/plan_fixture.h"

#include "planner/cost/micro.h"
#include "planner/hybrid/deal_moves.h"
#include "planner/search/moves.h"

#define SEEDS 40u
#define MOVES_EACH 60u
#define MIB ((uint64_t)1 << 20)

static struct cluster *cluster_make(struct rand_stream *r, uint32_t devices)
{
    struct err err = {0};
    struct cluster *cluster = cluster_create(&err);
    for (uint32_t d = 0; d < devices; d++) {
        char name[16], node[16];
        snprintf(name, sizeof(name), "n%u/0", d);
        snprintf(node, sizeof(node), "n%u", d);
        fixture_device(cluster, name, node, (60 + rand_stream_below(r, 200)) * MIB,
                       0.3 + rand_stream_unit(r));
        for (uint32_t other = 0; other < d; other++) {
            char to[16];
            snprintf(to, sizeof(to), "n%u", other);
            fixture_link(cluster, node, to, 1e-4, 1e8);
            fixture_link(cluster, to, node, 1e-4, 1e8);
        }
    }
    return cluster;
}

/* Every micro-batch of every stage is some member's, and every member has one. */
static void dealt_is_whole(const struct problem *p, const struct place_choice *c, uint64_t seed)
{
    uint32_t count = micro_count(p, c->micro_batch_rows);
    if (!c->dealt)
        return;
    assert_int_equal(c->dealt_count, c->stage_count * count);
    for (uint32_t s = 0; s < c->stage_count; s++) {
        uint32_t taken[16] = {0};
        for (uint32_t k = 0; k < count; k++) {
            if (c->dealt[s * count + k] >= c->stages[s].member_count)
                fail_msg("seed %llu: stage %u's micro-batch %u is nobody's", (unsigned long long)seed, s, k);
            taken[c->dealt[s * count + k]]++;
        }
        for (uint32_t m = 0; m < c->stages[s].member_count; m++) {
            if (taken[m] == 0)
                fail_msg("seed %llu: stage %u's member %u has none", (unsigned long long)seed, s, m);
        }
    }
}

/* Devices that a stage's micro-batch is dealt to. */
static uint32_t device_of(const struct place_choice *c, uint32_t count, uint32_t s, uint32_t k)
{
    return c->members[c->stages[s].member_first + c->dealt[s * count + k]].device;
}

/* Where a device only joined or left, all others keep what they had, but for what the joiner was given. */
static void others_keep_theirs(const struct problem *p, const struct place_choice *before,
                               const struct place_choice *after, uint32_t device, uint64_t seed)
{
    uint32_t count = micro_count(p, before->micro_batch_rows);
    if (!before->dealt || !after->dealt)
        return;
    for (uint32_t cell = 0; cell < before->dealt_count; cell++) {
        uint32_t was = device_of(before, count, cell / count, cell % count);
        uint32_t is = device_of(after, count, cell / count, cell % count);
        if (was != is && was != device && is != device)
            fail_msg("seed %llu: %u's micro-batch became %u's", (unsigned long long)seed, was, is);
    }
}

/* Returns how many moves kept something dealt. */
static uint32_t moves_try(const struct problem *p, struct place_choice *c, struct rand_stream *r,
                          uint64_t seed)
{
    static const enum move_kind kinds[] = {MOVE_DROP,    MOVE_ADD,  MOVE_REGROUP, MOVE_SWAP,
                                           MOVE_REPLACE, MOVE_DEAL, MOVE_ORDER};
    uint32_t kept = 0;
    struct err err = {0};
    for (uint32_t i = 0; i < MOVES_EACH; i++) {
        enum move_kind kind = kinds[rand_stream_below(r, sizeof(kinds) / sizeof(kinds[0]))];
        uint32_t a_count, b_count;
        struct place_choice trial;
        if (deal_fix(p, c, &err) <= 0)
            return kept;
        move_range(p, c, kind, &a_count, &b_count);
        if (a_count == 0 || b_count == 0)
            continue;
        uint32_t a = rand_stream_below(r, a_count), b = rand_stream_below(r, b_count);
        assert_int_equal(choice_copy(&trial, c, &err), 0);
        if (move_apply(p, &trial, kind, a, b, &err) <= 0) {
            choice_fini(&trial);
            continue;
        }
        dealt_is_whole(p, &trial, seed);
        bool same = trial.stage_count == c->stage_count;
        if (same && (kind == MOVE_DROP || kind == MOVE_REGROUP))
            others_keep_theirs(p, c, &trial, c->members[a].device, seed);
        if (same && kind == MOVE_ADD)
            others_keep_theirs(p, c, &trial, a, seed);
        kept += kind <= MOVE_REGROUP && kind >= MOVE_SWAP && trial.dealt != NULL;
        choice_fini(c);
        *c = trial;
    }
    return kept;
}

static void members_that_come_and_go_leave_the_others_what_they_were_dealt(void **state)
{
    uint32_t kept = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct rand_stream r;
        struct err err = {0};
        struct problem problem;
        struct choice_list list = {.evaluations_max = 200};
        rand_stream_init(&r, seed, 3);
        struct model_config config = fixture_config(4 + rand_stream_below(&r, 6));
        config.vocab = 2048;
        struct workload workload = fixture_workload(&config, 32, 6 + rand_stream_below(&r, 10));
        struct cluster *cluster = cluster_make(&r, 3 + rand_stream_below(&r, 4));
        if (problem_init(&problem, &workload, cluster, &err) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
        assert_int_equal(place_hybrid.propose(&problem, &list, &err), 0);
        for (uint32_t i = 0; i < list.count && i < 4; i++)
            kept += moves_try(&problem, &list.choices[i], &r, seed);
        choice_list_fini(&list);
        problem_fini(&problem);
        cluster_destroy(cluster);
        workload_fini(&workload);
    }
    print_message("%u moves of who does what kept what was dealt\n", kept);
    assert_true(kept > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_that_come_and_go_leave_the_others_what_they_were_dealt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
