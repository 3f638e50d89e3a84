/* What the search takes for granted of its own moves: choices said to run alike do; every dealing is met
 * once; shards given away stay whole; tensor groups that change the size of micro-batches keep what they
 * hold. */
#include "planner/oracle_scene.h"

#include "planner/hybrid/deal_moves.h"
#include "planner/search/moves.h"
#include "planner/search/polish.h"
#include "planner/tensor/tensor_moves.h"

#define SCENES 24u
#define CHANGES 40u

struct setting {
    struct scene scene;
    struct problem problem;
    struct choice_list list;
};

/* The proposals of one kind for a cluster of the oracle's; false: the kind is not for it. */
static bool setting_init(struct setting *s, uint64_t seed, enum plan_placement kind)
{
    struct err err = {0};
    memset(s, 0, sizeof(*s));
    scene_init(&s->scene, seed, false);
    s->scene.workload.place = (int)kind;
    assert_int_equal(problem_init(&s->problem, &s->scene.workload, s->scene.cluster, &err), 0);
    s->problem.exhaustive_off = true;
    s->list.evaluations_max = 2000;
    if (!placement_find(kind)->supports(&s->problem, &err))
        return false;
    assert_int_equal(placement_find(kind)->propose(&s->problem, &s->list, &err), 0);
    return s->list.count > 0;
}

static void setting_fini(struct setting *s)
{
    choice_list_fini(&s->list);
    problem_fini(&s->problem);
    scene_fini(&s->scene);
}

static bool alike(const struct place_choice *a, const struct place_choice *b)
{
    for (uint32_t m = 0, s = 0; m < a->member_count; m++) {
        uint32_t share[2], window[2];
        while (s + 1 < a->stage_count && a->stages[s + 1].member_first <= m)
            s++;
        deal_alike(a, m, s, &share[0], &window[0]);
        deal_alike(b, m, s, &share[1], &window[1]);
        if (share[0] != share[1] || window[0] != window[1])
            return false;
    }
    return true;
}

/* Other windows, and shares that many times as large: who is dealt what stays. */
static void disguise(struct place_choice *c, struct rand_stream *r)
{
    uint32_t times = 1 + rand_stream_below(r, 3);
    for (uint32_t s = 0; s < c->stage_count; s++) {
        uint32_t window = 1 + rand_stream_below(r, 6);
        for (uint32_t m = 0; m < c->stages[s].member_count; m++) {
            c->members[c->stages[s].member_first + m].window = window;
            c->members[c->stages[s].member_first + m].micro_count *= times;
        }
    }
}

static void choices_said_to_run_alike_take_the_same_time(void **state)
{
    (void)state;
    uint32_t met = 0, dealt = 0;
    for (uint64_t seed = 1; seed <= SCENES; seed++) {
        struct setting s;
        struct rand_stream r;
        struct err err = {0};
        rand_stream_init(&r, seed, 21);
        bool any = setting_init(&s, seed, PLACE_HYBRID);
        for (uint32_t n = 0; any && n < CHANGES; n++) {
            struct place_choice a, b;
            assert_int_equal(choice_copy(&a, &s.list.choices[n % s.list.count], &err), 0);
            if (n % 2)
                deal_fix(&s.problem, &a, &err);
            assert_int_equal(choice_copy(&b, &a, &err), 0);
            disguise(&b, &r);
            if (a.members[0].micro_count > 0 && alike(&a, &b)) {
                double one = choice_simulate(&s.problem, &a, 2, &err);
                double other = choice_simulate(&s.problem, &b, 2, &err);
                assert_true(one == other);
                met++;
                dealt += a.dealt != NULL;
            }
            choice_fini(&a);
            choice_fini(&b);
        }
        setting_fini(&s);
    }
    assert_true(met > 50 && dealt > 10 && dealt < met);
}

static void a_stage_is_dealt_in_every_way_once(void **state)
{
    (void)state;
    struct place_stage stages[2] = {{.block_end = 1, .member_count = 1},
                                    {.block_begin = 1, .block_end = 2, .member_first = 1, .member_count = 3}};
    uint8_t dealt[2 * 5] = {0};
    bool seen[243] = {0};
    struct place_choice c = {
        .placement = PLACE_HYBRID, .stage_count = 2, .stages = stages, .dealt = dealt, .dealt_count = 10};
    uint32_t all = 0;
    assert_int_equal(deal_ways(&c, 0), 1);
    assert_int_equal(deal_ways(&c, 1), 243);
    for (uint32_t way = 0; way < 243; way++) {
        bool everybody = deal_way(&c, 1, way);
        uint32_t number = 0, has = 0;
        for (uint32_t k = 0; k < 5; k++) {
            assert_in_range(dealt[5 + k], 0, 2);
            number = 3 * number + dealt[5 + k];
            has |= 1u << dealt[5 + k];
            assert_int_equal(dealt[k], 0);
        }
        assert_false(seen[number]);
        seen[number] = true;
        assert_true(everybody == (has == 7));
        all += everybody;
    }
    assert_int_equal(all, 150); /* 3⁵ − 3·2⁵ + 3 */
    c.dealt = NULL;
    assert_int_equal(deal_ways(&c, 1), UINT32_MAX);
}

static void shards_given_away_are_all_of_the_state_still(void **state)
{
    (void)state;
    uint32_t given = 0;
    for (uint64_t seed = 5; seed <= 100; seed += 5) {
        struct setting s;
        struct err err = {0};
        bool any = setting_init(&s, seed, PLACE_DATA);
        for (uint32_t i = 0; any && i < s.list.count; i++) {
            uint32_t a_count, b_count;
            if (s.list.choices[i].gathered_layers == 0)
                continue;
            move_range(&s.problem, &s.list.choices[i], MOVE_DELAY, &a_count, &b_count);
            for (uint32_t n = 0; n < a_count * b_count; n++) {
                struct place_choice c;
                double sum = 0;
                assert_int_equal(choice_copy(&c, &s.list.choices[i], &err), 0);
                given += (uint32_t)move_apply(&s.problem, &c, MOVE_DELAY, n / b_count, n % b_count, &err);
                for (uint32_t m = 0; m < c.member_count; m++) {
                    assert_true(c.members[m].state_share >= 0);
                    sum += c.members[m].state_share;
                }
                assert_true(fabs(sum - 1) < 1e-12);
                choice_fini(&c);
            }
        }
        setting_fini(&s);
    }
    assert_true(given > 20);
}

static void other_sizes_of_micro_batches_keep_heads_and_rows_in_turns(void **state)
{
    (void)state;
    uint32_t turned = 0;
    for (uint64_t seed = 2; seed <= SCENES; seed++) {
        struct setting s;
        struct err err = {0};
        bool any = setting_init(&s, seed, PLACE_TENSOR);
        for (uint32_t i = 0; any && i < s.list.count; i++) {
            const struct place_choice *from = &s.list.choices[i];
            for (uint32_t rows = 1; rows <= s.problem.workload->batch_rows; rows++) {
                struct place_choice c;
                assert_int_equal(choice_copy(&c, from, &err), 0);
                if (tensor_micro(&s.problem, &c, rows) == 0) {
                    choice_fini(&c);
                    continue;
                }
                uint32_t before = (from->together ? from->together : 1) * from->micro_batch_rows;
                assert_true(c.together * rows >= before || c.together == micro_count(&s.problem, rows));
                for (uint32_t m = 0; m < c.member_count; m++) {
                    const struct plan_tensor *was = &from->members[m].tensor, *is = &c.members[m].tensor;
                    assert_int_equal(is->kv_head_end, was->kv_head_end);
                    assert_int_equal(is->vocabulary_end, was->vocabulary_end);
                    assert_int_equal(c.members[m].micro_rows, rows);
                }
                turned++;
                choice_fini(&c);
            }
        }
        setting_fini(&s);
    }
    assert_true(turned > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_said_to_run_alike_take_the_same_time),
        cmocka_unit_test(a_stage_is_dealt_in_every_way_once),
        cmocka_unit_test(shards_given_away_are_all_of_the_state_still),
        cmocka_unit_test(other_sizes_of_micro_batches_keep_heads_and_rows_in_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
