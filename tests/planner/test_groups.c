/* Tests interleaved groups: pipelines whose stages are groups of devices with several ranges of blocks each,
 * which gather their weights range by range (Zorse's form). */
#include "planner/plan_fixture.h"

#include <math.h>

#include "common/rand.h"
#include "planner/answer/answer.h"
#include "planner/candidate/from_plan.h"
#include "planner/cost/price.h"
#include "planner/emit/pipeline.h"
#include "program/check/check.h"
#include "program/codec.h"

#define MIB ((uint64_t)1 << 20)

struct groups {
    struct model_config config;
    struct workload w;
    struct cluster *cluster;
    struct problem p;
    struct candidate_stage stages[16];
    struct member members[8];
    uint8_t owner[16 * 16];
    struct candidate c;
};

/* Makes devices whose speeds are drawn from `r`; the fastest may be `unlike` times as fast as the slowest. */
static void unlike_make(struct groups *t, uint32_t layers, uint32_t batch, uint32_t devices, uint64_t memory,
                        double unlike, struct rand_stream *r)
{
    struct err err = {0};
    t->config = fixture_config(layers);
    t->config.vocab = 2048;
    t->w = fixture_workload(&t->config, 4 * batch, batch);
    t->cluster = cluster_create(&err);
    for (uint32_t d = 0; d < devices; d++) {
        char name[32], node[16];
        snprintf(node, sizeof(node), "n%u", d);
        snprintf(name, sizeof(name), "n%u/0", d);
        fixture_device(t->cluster, name, node, memory, r ? pow(unlike, rand_stream_unit(r)) : 1);
        for (uint32_t other = 0; other < d; other++) {
            char to[16];
            snprintf(to, sizeof(to), "n%u", other);
            fixture_link(t->cluster, node, to, 1e-4, 1e9);
            fixture_link(t->cluster, to, node, 1e-4, 1e9);
        }
    }
}

static void cluster_make(struct groups *t, uint32_t layers, uint32_t batch, uint32_t devices, uint64_t memory)
{
    unlike_make(t, layers, batch, devices, memory, 1, NULL);
}

static void problem_make(struct groups *t)
{
    struct err err = {0};
    if (problem_init(&t->p, &t->w, t->cluster, &err) < 0)
        fail_msg("%s", err.text);
}

static void groups_fini(struct groups *t, bool problem)
{
    if (problem)
        problem_fini(&t->p);
    cluster_destroy(t->cluster);
    workload_fini(&t->w);
}

/* Fills a candidate of `groups` groups of the widths, with `laps` ranges of blocks each. */
static void candidate_make(struct groups *t, uint32_t groups, const uint32_t *widths, uint32_t laps)
{
    uint32_t stages = groups * laps, blocks = (uint32_t)t->p.block_count, members = 0,
             count = micro_count(&t->p, 1);
    for (uint32_t s = 0; s < stages; s++) {
        uint32_t g = s % groups;
        members = g == 0 ? 0 : members;
        t->stages[s] =
            (struct candidate_stage){(int32_t)(s * blocks / stages), (int32_t)((s + 1) * blocks / stages),
                                     STAGE_REPLICAS, members, widths[g]};
        members += widths[g];
        for (uint32_t k = 0; k < count; k++)
            t->owner[s * count + k] = (uint8_t)(k % widths[g]);
    }
    for (uint32_t m = 0; m < members; m++)
        t->members[m] = (struct member){.device = m, .window = count, .state_share = 1, .rows = 1};
    t->c = (struct candidate){.placement = PLACE_HYBRID,
                              .schedule = SCHEDULE_INTERLEAVED,
                              .micro_batch_rows = 1,
                              .stage_count = stages,
                              .member_count = members,
                              .stages = t->stages,
                              .members = t->members,
                              .owner_count = stages * count,
                              .owner = t->owner};
}

static struct plan *plan_make(struct groups *t, uint64_t seed)
{
    struct err err = {0};
    struct plan *plan = pipeline_emit(&t->p, &t->c, true, &err);
    if (!plan || plan_check(plan, &err) < 0 || plan_seal(plan, &err) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    return plan;
}

/* Reads the plan as a candidate, which must give the plan again. */
static void read_back(struct groups *t, const struct plan *plan, uint64_t seed)
{
    struct err err = {0};
    struct candidate c;
    if (candidate_from_plan(&t->p, plan, &c, &err) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    assert_int_equal(c.schedule, SCHEDULE_INTERLEAVED);
    assert_int_equal(c.stage_count, t->c.stage_count);
    assert_int_equal(c.gathered_layers > 0, t->c.gathered_layers > 0);
    struct plan *again = pipeline_emit(&t->p, &c, true, &err);
    if (!again || plan_seal(again, &err) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    assert_string_equal(again->digest, plan->digest);
    plan_destroy(again);
    candidate_fini(&c);
}

static void any_interleaved_groups_pass_the_checker_and_are_read_back(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 80; seed++) {
        struct groups t;
        struct rand_stream r;
        rand_stream_init(&r, seed, 5);
        uint32_t groups = 2 + rand_stream_below(&r, 2), laps = 2 + rand_stream_below(&r, 2), widths[3],
                 all = 0;
        for (uint32_t g = 0; g < groups; g++) {
            widths[g] = 1 + rand_stream_below(&r, 2) + (g == 0 && rand_stream_below(&r, 2));
            all += widths[g];
        }
        widths[0] += all == groups;
        cluster_make(&t, groups * laps + rand_stream_below(&r, 8), 4 + rand_stream_below(&r, 6), all + 1,
                     4096 * MIB);
        t.config.tied = rand_stream_below(&r, 2);
        t.w.method = rand_stream_below(&r, 2) ? METHOD_FULL : METHOD_LORA;
        t.w.saves_embedding = t.w.method == METHOD_LORA && rand_stream_below(&r, 4) == 0;
        problem_make(&t);
        candidate_make(&t, groups, widths, laps);
        t.c.whole = t.w.method == METHOD_FULL && rand_stream_below(&r, 3) == 0;
        bool gathers = !t.c.whole && (t.w.method == METHOD_FULL || rand_stream_below(&r, 3));
        t.c.gathered_layers = gathers ? 1 + rand_stream_below(&r, 8) : 0;
        struct plan *plan = plan_make(&t, seed);
        read_back(&t, plan, seed);
        plan_destroy(plan);
        groups_fini(&t, true);
    }
}

static double step_of(struct groups *t)
{
    struct err err = {0};
    double seconds = 0;
    struct plan *plan = plan_make(t, 0);
    if (price_plan(&t->p, plan, 4, &seconds, &err) < 0)
        fail_msg("%s", err.text);
    plan_destroy(plan);
    return seconds;
}

/* Four micro-batches through two groups of two: with one range each a group waits for the other's whole half,
 * with four ranges each for an eighth. */
static void ranges_shorten_the_filling(void **state)
{
    static const uint32_t widths[] = {2, 2};
    struct groups t;
    (void)state;
    cluster_make(&t, 30, 4, 4, 4096 * MIB);
    t.w.sample_tokens = t.w.prompt_tokens = 0;
    problem_make(&t);
    candidate_make(&t, 2, widths, 1);
    t.c.schedule = SCHEDULE_1F1B;
    double one = step_of(&t);
    candidate_make(&t, 2, widths, 4);
    double four = step_of(&t);
    print_message("a step: %.4g s, with four ranges %.4g s\n", one, four);
    assert_true(four < 0.9 * one);
    groups_fini(&t, true);
}

/* Tests a base that is too large for two groups of two, unless the members of a group share it out. */
static void groups_hold_what_no_member_holds(void **state)
{
    struct groups t;
    struct err err = {0};
    struct plan_options options = {.programs = true, .runnable_only = true, .evaluations = 2000};
    struct plan_answer *answer = NULL;
    uint32_t gathered = 0;
    (void)state;
    cluster_make(&t, 32, 8, 4, 240 * MIB);
    t.w.place = PLACE_HYBRID;
    t.w.stages = 2;
    if (plan_search(&t.w, t.cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    if (answer->verdict != VERDICT_FITS)
        fail_msg("%s", answer->words);
    assert_int_equal(answer->plan->schedule, SCHEDULE_INTERLEAVED);
    for (uint32_t r = 0; r < answer->plan->rank_count; r++) {
        assert_true(answer->plan->ranks[r].range_count > 1);
        for (uint32_t s = 0; s < answer->plan->ranks[r].slot_count; s++)
            gathered += answer->plan->ranks[r].slots[s].kind == SLOT_GATHERED;
    }
    assert_true(answer->runnable && gathered >= 4);
    plan_answer_destroy(answer);
    t.w.order = 1 + SCHEDULE_1F1B;
    if (plan_search(&t.w, t.cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_not_equal(answer->verdict, VERDICT_FITS);
    plan_answer_destroy(answer);
    groups_fini(&t, false);
}

/* Two groups of three devices that are up to ten times as fast as one another, on links of 200 Mbit/s or
 * faster: interleaving is possible, so a job that asks for it gets it. */
static void interleaving_that_is_asked_for_is_found(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct groups t;
        struct rand_stream r;
        struct err err = {0};
        struct plan_options options = {.programs = true, .runnable_only = true, .evaluations = 2000};
        struct plan_answer *answer = NULL;
        rand_stream_init(&r, seed, 11);
        unlike_make(&t, 4, 4, 3, 400 * MIB, 10, &r);
        t.w.place = PLACE_HYBRID;
        t.w.stages = 2;
        t.w.order = 1 + SCHEDULE_INTERLEAVED;
        t.w.micro_batch_rows = rand_stream_below(&r, 2);
        if (plan_search(&t.w, t.cluster, &options, &answer, &err) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
        if (answer->verdict != VERDICT_FITS)
            fail_msg("seed %llu: %s", (unsigned long long)seed, answer->words);
        assert_int_equal(answer->plan->schedule, SCHEDULE_INTERLEAVED);
        plan_answer_destroy(answer);
        groups_fini(&t, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_interleaved_groups_pass_the_checker_and_are_read_back),
        cmocka_unit_test(ranges_shorten_the_filling),
        cmocka_unit_test(groups_hold_what_no_member_holds),
        cmocka_unit_test(interleaving_that_is_asked_for_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
