/* In which order everybody works, said outright: what it emits, what it is worth, and that it comes back from
 * a plan. Random orders over seeded hybrids. */
#include "planner/plan_fixture.h"

#include "planner/cost/micro.h"
#include "planner/hybrid/deal_moves.h"
#include "planner/hybrid/deal_order.h"
#include "planner/hybrid/deal_walk.h"
#include "planner/candidate/from_plan.h"
#include "planner/search/moves.h"

#define SEEDS 30u
#define SWAPS 40u
#define EACH 3u
#define MIB ((uint64_t)1 << 20)
#define SAME 1e-12
#define LOOKS 400u

struct world {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    struct problem problem;
    struct choice_list list;
    struct rand_stream random;
};

static void world_init(struct world *w, uint64_t seed)
{
    struct err err = {0};
    rand_stream_init(&w->random, seed, 9);
    w->config = fixture_config(4 + rand_stream_below(&w->random, 6));
    w->config.vocab = 2048;
    w->workload = fixture_workload(&w->config, 32, 6 + rand_stream_below(&w->random, 10));
    w->cluster = cluster_create(&err);
    uint32_t devices = 3 + rand_stream_below(&w->random, 3);
    for (uint32_t d = 0; d < devices; d++) {
        char name[16], node[16];
        snprintf(name, sizeof(name), "n%u/0", d);
        snprintf(node, sizeof(node), "n%u", d);
        fixture_device(w->cluster, name, node, (200 + rand_stream_below(&w->random, 200)) * MIB,
                       0.3 + rand_stream_unit(&w->random));
        for (uint32_t other = 0; other < d; other++) {
            char to[16];
            snprintf(to, sizeof(to), "n%u", other);
            fixture_link(w->cluster, node, to, 1e-4, 3e7);
            fixture_link(w->cluster, to, node, 1e-4, 3e7);
        }
    }
    if (problem_init(&w->problem, &w->workload, w->cluster, &err) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    w->list = (struct choice_list){.evaluations_max = 200};
    assert_int_equal(place_hybrid.propose(&w->problem, &w->list, &err), 0);
}

static void world_fini(struct world *w)
{
    choice_list_fini(&w->list);
    problem_fini(&w->problem);
    cluster_destroy(w->cluster);
    workload_fini(&w->workload);
}

static double seconds_of(const struct world *w, const struct place_choice *c)
{
    struct err err = {0};
    double seconds = choice_simulate(&w->problem, c, 4, &err);
    assert_int_not_equal(err.code, ERR_NOMEM);
    return seconds;
}

/* The first hybrids proposed, one after the other, with their order said; false: no more. */
static bool ordered(struct world *w, uint32_t i, struct place_choice *c)
{
    struct err err = {0};
    if (i >= EACH || i >= w->list.count)
        return false;
    assert_int_equal(choice_copy(c, &w->list.choices[i], &err), 0);
    if (deal_fix(&w->problem, c, &err) > 0)
        assert_int_equal(deal_order_fix(&w->problem, c, &err), 1);
    return true;
}

/* What all of them are looked at for, and what was counted. */
struct tally {
    uint32_t first, second;
};

static void each_ordered(void (*look)(struct world *, uint32_t, struct place_choice *, struct tally *),
                         struct tally *tally)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct world w;
        struct place_choice c;
        world_init(&w, seed);
        for (uint32_t i = 0; ordered(&w, i, &c); i++) {
            look(&w, i, &c, tally);
            choice_fini(&c);
        }
        world_fini(&w);
    }
}

static void as_it_comes(struct world *w, uint32_t i, struct place_choice *c, struct tally *tally)
{
    double as_is = seconds_of(w, &w->list.choices[i]), outright = seconds_of(w, c);
    tally->first += c->order != NULL;
    if (as_is != outright)
        fail_msg("choice %u: %.15f s, said %.15f s", i, as_is, outright);
}

static void an_order_that_is_said_as_it_comes_changes_nothing(void **state)
{
    struct tally tally = {0};
    (void)state;
    each_ordered(as_it_comes, &tally);
    print_message("%u orders said\n", tally.first);
    assert_true(tally.first > SEEDS);
}

/* Two events of somebody change places, if that can be emitted: *c is what was. */
static void turn_some(struct world *w, uint32_t i, struct place_choice *c, struct tally *tally)
{
    (void)i;
    for (uint32_t swap = 0; swap < SWAPS && c->order; swap++) {
        uint32_t a_count, b_count;
        struct err err = {0}, why = {0};
        struct place_choice trial, again;
        move_range(&w->problem, c, MOVE_TURN, &a_count, &b_count);
        assert_int_equal(choice_copy(&trial, c, &err), 0);
        if (move_apply(&w->problem, &trial, MOVE_TURN, rand_stream_below(&w->random, a_count),
                       rand_stream_below(&w->random, b_count), &err) <= 0) {
            choice_fini(&trial);
            continue;
        }
        struct plan *plan = place_hybrid.emit(&w->problem, &trial, true, &why);
        if (!plan) {
            tally->second++;
            choice_fini(&trial);
            continue;
        }
        if (plan_check(plan, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(from_plan_choice(&w->problem, plan, &again, &err), 0);
        assert_non_null(again.order);
        assert_memory_equal(again.order, trial.order, 2 * trial.dealt_count);
        choice_fini(&again);
        plan_destroy(plan);
        choice_fini(c);
        *c = trial;
        tally->first++;
    }
}

/* Every order that a plan can be made of passes the checker and is read off its programs again. */
static void whatever_order_is_said_passes_the_checker_or_is_refused(void **state)
{
    struct tally tally = {0};
    (void)state;
    each_ordered(turn_some, &tally);
    print_message("%u orders passed, %u were refused\n", tally.first, tally.second);
    assert_true(tally.first > 500 && tally.second > 50);
}

/* What a search made of choices. */
struct gain {
    uint32_t faster, all;
    double best; /* after over before */
};

/* `search` has each of the first hybrids proposed, says what it took before, and returns what it takes now:
 * never more. */
static struct gain each_searched(double (*search)(struct world *, uint64_t, struct place_choice *, double *))
{
    struct gain gain = {.best = 1};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct world w;
        world_init(&w, seed);
        for (uint32_t i = 0; i < EACH && i < w.list.count; i++) {
            struct place_choice *c = &w.list.choices[i];
            double before, after = search(&w, seed, c, &before);
            assert_true(after > 0 && after <= before);
            assert_true(seconds_of(&w, c) <= after * (1 + SAME));
            gain.best = after / before < gain.best ? after / before : gain.best;
            gain.faster += after < before;
            gain.all++;
        }
        world_fini(&w);
    }
    return gain;
}

static double order_searched(struct world *w, uint64_t seed, struct place_choice *c, double *before)
{
    struct err err = {0};
    struct polish *polish = polish_create(&w->problem, 4, 1u << 20, 0, &err);
    (void)seed;
    assert_non_null(polish);
    double after = *before = polish_seconds(polish, c);
    deal_order(polish, &w->problem, c, &after, &err);
    polish_destroy(polish);
    return after;
}

static void searching_for_an_order_is_never_slower_and_sometimes_faster(void **state)
{
    (void)state;
    struct gain gain = each_searched(order_searched);
    print_message("%u of %u orders were found to be faster, the best by %.4f\n", gain.faster, gain.all,
                  gain.best);
    assert_true(gain.faster > gain.all / 20);
}

/* What a stage's member does, one after the other: micro-batch · 2, and one more where it is the backward. */
struct turns {
    uint32_t count, events[2 * DEALT_CELLS];
};

static void turns_read(const struct place_choice *c, uint32_t s, uint32_t member, struct turns *t)
{
    uint32_t count = c->dealt_count / c->stage_count, at = 2 * s * count, own[DEALT_CELLS], taken = 0;
    for (uint32_t k = 0; k < count; k++) {
        at += 2 * (c->dealt[s * count + k] < member);
        if (c->dealt[s * count + k] == member)
            own[taken++] = k;
    }
    uint32_t done[2] = {0};
    t->count = 2 * taken;
    for (uint32_t i = 0; i < t->count; i++) {
        uint8_t backward = c->order[at + i];
        assert_true(backward < 2 && done[backward] < taken);
        t->events[i] = 2 * own[done[backward]++] + backward;
        assert_true(done[1] <= done[0]); /* a backward comes after its forward */
    }
}

static void turns_without(struct turns *t, uint32_t k)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        if (t->events[i] / 2 != k)
            t->events[kept++] = t->events[i];
    }
    t->count = kept;
}

static void turns_same(const struct turns *a, const struct turns *b)
{
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->events, b->events, a->count * sizeof(*a->events));
}

/* Hands a micro-batch over, or has two members change places, and looks at what everybody does then. */
static void hand_and_trade(struct rand_stream *r, struct place_choice *c)
{
    uint32_t count = c->dealt_count / c->stage_count, s = rand_stream_below(r, c->stage_count);
    uint32_t k = rand_stream_below(r, count), members = c->stages[s].member_count;
    uint32_t from = c->dealt[s * count + k], to = rand_stream_below(r, members);
    bool trade = rand_stream_below(r, 2);
    struct turns before[UINT8_MAX], after[UINT8_MAX];
    uint32_t device[2] = {c->members[c->stages[s].member_first + from].device,
                          c->members[c->stages[s].member_first + to].device};
    for (uint32_t m = 0; m < members; m++)
        turns_read(c, s, m, &before[m]);
    bool changed = !trade && deal_hand_over(c, s, k, to, rand_stream_u32(r));
    if (trade)
        deal_trade(c, s, from, to);
    else
        assert_int_equal(changed, from != to && before[from].count > 2);
    for (uint32_t m = 0; m < members; m++)
        turns_read(c, s, m, &after[m]);
    if (trade) {
        struct turns held = before[from];
        before[from] = before[to];
        before[to] = held;
        assert_int_equal(c->members[c->stages[s].member_first + from].device, device[1]);
        assert_int_equal(c->members[c->stages[s].member_first + to].device, device[0]);
    } else if (changed) {
        assert_int_equal(after[to].count, before[to].count + 2);
        turns_without(&before[from], k);
        turns_without(&after[to], k);
    }
    for (uint32_t m = 0; m < members; m++)
        turns_same(&before[m], &after[m]);
}

static void hand_and_trade_some(struct world *w, uint32_t i, struct place_choice *c, struct tally *tally)
{
    (void)i;
    for (uint32_t n = 0; n < SWAPS && c->order; n++, tally->first++)
        hand_and_trade(&w->random, c);
}

static void whoever_takes_over_leaves_everybody_elses_order_alone(void **state)
{
    struct tally tally = {0};
    (void)state;
    each_ordered(hand_and_trade_some, &tally);
    print_message("%u changes\n", tally.first);
    assert_true(tally.first > SEEDS * SWAPS);
}

static double walked(struct world *w, uint64_t seed, struct place_choice *c, double *before)
{
    struct err err = {0};
    struct polish *polish = polish_create(&w->problem, 4, 1u << 24, 0, &err);
    assert_non_null(polish);
    double after = *before = polish_seconds(polish, c);
    deal_walk(polish, &w->problem, seed, LOOKS, c, &after, &err);
    polish_destroy(polish);
    return after;
}

static double walked_twice(struct world *w, uint64_t seed, struct place_choice *c, double *before)
{
    struct err err = {0};
    struct place_choice again;
    assert_int_equal(choice_copy(&again, c, &err), 0);
    double after = walked(w, seed, c, before), other = walked(w, seed, &again, before);
    assert_true(after == other && polish_hash(c) == polish_hash(&again));
    struct plan *plan = place_hybrid.emit(&w->problem, c, true, &err);
    assert_non_null(plan);
    if (plan_check(plan, &err) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    plan_destroy(plan);
    choice_fini(&again);
    return after;
}

static void a_walk_is_never_slower_and_often_faster_and_the_same_again(void **state)
{
    (void)state;
    struct gain gain = each_searched(walked_twice);
    print_message("%u of %u were faster after a walk, the best by %.4f\n", gain.faster, gain.all, gain.best);
    assert_true(gain.faster > gain.all / 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_order_that_is_said_as_it_comes_changes_nothing),
        cmocka_unit_test(whatever_order_is_said_passes_the_checker_or_is_refused),
        cmocka_unit_test(searching_for_an_order_is_never_slower_and_sometimes_faster),
        cmocka_unit_test(whoever_takes_over_leaves_everybody_elses_order_alone),
        cmocka_unit_test(a_walk_is_never_slower_and_often_faster_and_the_same_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
