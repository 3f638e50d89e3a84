/* Tests attention and experts apart on real workers: ranks with attention, with experts and with both, uneven
 * rows and experts, give the losses of one device, equal bits when repeated, and the planned memory; their
 * checkpoints resume in any other shape. */
#include "worker/shapes.h"

/* In the shape of three ranks one has attention and experts, one attention alone, and one experts alone. A
 * wave is the micro-batches that go through all layers forward and back before the next ones start; here it
 * is shorter than a step. */
static const struct shape apart[] = {
    {.placement = PLACE_EXPERT, .ranks = 2, .expert = {.rows = {1}, .share = {0, 1}, .wave = 2, .delay = 1}},
    {.placement = PLACE_EXPERT,
     .ranks = 3,
     .expert = {.rows = {1, 1}, .share = {0.25, 0, 0.75}, .wave = 2, .delay = 1}},
    {.placement = PLACE_EXPERT,
     .ranks = 2,
     .expert = {.rows = {2, 1}, .share = {0.625, 0.375}, .wave = 1, .recompute = true}},
};

static void check_near_one(const struct outcome *one, const struct outcome *out, const char *what)
{
    for (uint32_t t = 0; t < out->steps; t++)
        if (!(fabs(out->norm[t] - one->norm[t]) <= 1e-5 * one->norm[t]))
            fail_msg("%s, step %u: norm %.9g and %.9g", what, t, out->norm[t], one->norm[t]);
    check_near(one, out, what);
}

static void check_shapes(const char *model, enum trained trained, const struct shape *shapes, size_t count)
{
    struct fixture fix;
    struct world world;
    struct outcome one, out, again;
    fix_open(&fix, model);
    /* no adapter files: training starts with a new adapter, drawn as peft draws it */
    json_object_clear(fix.adapter);
    world_init(&world, &fix, BASE_FP32, trained);
    world_shorten(&world);
    run_from(&fix, &world, &(struct shape){.placement = PLACE_SINGLE, .order = SCHEDULE_1F1B, .ranks = 1},
             (struct resume){0}, &one);
    for (size_t i = 0; i < count; i++) {
        char what[120];
        snprintf(what, sizeof(what), "%s, shape %zu on %u ranks", model, i, shapes[i].ranks);
        run_from(&fix, &world, &shapes[i], (struct resume){0}, &out);
        check_near_one(&one, &out, what);
        if (i == 1) {
            run_from(&fix, &world, &shapes[i], (struct resume){0}, &again);
            assert_memory_equal(out.loss, again.loss, sizeof(out.loss));
            assert_memory_equal(out.norm, again.norm, sizeof(out.norm));
            assert_true(json_equal(out.artifacts, again.artifacts)); /* compared by SHA-256 */
            outcome_fini(&again);
        }
        outcome_fini(&out);
    }
    outcome_fini(&one);
    world_fini(&world);
    fix_close(&fix);
}

#define SHAPES(list) list, sizeof(list) / sizeof(*(list))

static void experts_apart_give_one_devices_numbers(void **state)
{
    (void)state;
    check_shapes("mixtral", ADAPTERS, SHAPES(apart));
    check_shapes("qwen3-moe", ADAPTERS, &apart[1], 1);
    check_shapes("olmoe", ADAPTERS, &apart[1], 1);
}

static void full_fine_tuning_gives_one_devices_numbers(void **state)
{
    (void)state;
    check_shapes("mixtral", EVERYTHING, SHAPES(apart));
    check_shapes("qwen3-moe", EVERYTHING, &apart[1], 1);
    check_shapes("olmoe", EVERYTHING, &apart[2], 1);
}

/* A checkpoint states the share of tokens that each expert of a layer got. It is the same wherever the
 * experts are, except for tokens with two nearly equal router scores. */
static void routing_is_told_with_checkpoints(void **state)
{
    (void)state;
    static const struct shape both = {
        .placement = PLACE_EXPERT, .ranks = 2, .expert = {.rows = {1}, .share = {0.5, 0.5}, .wave = 1}};
    struct fixture fix;
    struct world world;
    struct outcome out[2];
    fix_open(&fix, "mixtral");
    json_object_clear(fix.adapter);
    world_init(&world, &fix, BASE_FP32, ADAPTERS);
    world.every_steps = 4;
    run_from(&fix, &world, &apart[0], (struct resume){0}, &out[0]);
    run_from(&fix, &world, &both, (struct resume){0}, &out[1]);
    const json_t *told[2];
    for (int i = 0; i < 2; i++)
        told[i] = json_object_get(checkpoint_at(&out[i], 4), "expert_share");
    assert_int_equal(json_array_size(told[0]), fix.config.layers);
    for (uint32_t l = 0; l < fix.config.layers; l++) {
        const json_t *shares = json_array_get(told[0], l);
        double sum = 0, most = 0;
        assert_int_equal(json_array_size(shares), fix.config.experts);
        for (uint32_t e = 0; e < fix.config.experts; e++) {
            double share = json_number_value(json_array_get(shares, e));
            assert_true(fabs(share - json_number_value(json_array_get(json_array_get(told[1], l), e))) <
                        0.01);
            sum += share;
            most = share > most ? share : most;
        }
        assert_true(fabs(sum - 1) < 1e-9);
        assert_true(most > 1.0 / fix.config.experts && most <= 1.0 / fix.config.experts_active + 1e-9);
    }
    /* Each checkpoint's routing covers only the steps since the one before. */
    assert_false(json_equal(told[0], json_object_get(checkpoint_at(&out[0], 8), "expert_share")));
    for (int i = 0; i < 2; i++)
        outcome_fini(&out[i]);
    world_fini(&world);
    fix_close(&fix);
}

/* With products in 16 bits sums are rounded in another order, so a router may choose other experts for a
 * token. */
static void products_in_16_bits_stay_near(void **state)
{
    (void)state;
    struct fixture fix;
    struct world world;
    struct outcome one, out, again;
    fix_open(&fix, "mixtral");
    json_object_clear(fix.adapter);
    world_init_in(&world, &fix, BASE_FP32, ADAPTERS, COMPUTE_BF16, PLAN_F32);
    run_from(&fix, &world, &(struct shape){.placement = PLACE_SINGLE, .order = SCHEDULE_1F1B, .ranks = 1},
             (struct resume){0}, &one);
    run_from(&fix, &world, &apart[1], (struct resume){0}, &out);
    run_from(&fix, &world, &apart[1], (struct resume){0}, &again);
    for (uint32_t t = 0; t < out.steps; t++)
        if (!(fabs(out.loss[t] - one.loss[t]) <= 1e-2 * one.loss[t]))
            fail_msg("step %u: loss %.9g and %.9g", t, out.loss[t], one.loss[t]);
    assert_memory_equal(out.loss, again.loss, sizeof(out.loss));
    outcome_fini(&one);
    outcome_fini(&out);
    outcome_fini(&again);
    world_fini(&world);
    fix_close(&fix);
}

static void a_card_and_a_cpu_have_experts(void **state)
{
    (void)state;
    static const struct shape mixed[] = {
        {.placement = PLACE_EXPERT,
         .ranks = 2,
         .emulated = true,
         .expert = {.rows = {1, 1}, .share = {0.5, 0.5}, .wave = 2, .delay = 1}}};
    check_shapes("qwen3-moe", ADAPTERS, mixed, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_apart_give_one_devices_numbers),
        cmocka_unit_test(full_fine_tuning_gives_one_devices_numbers),
        cmocka_unit_test(routing_is_told_with_checkpoints),
        cmocka_unit_test(products_in_16_bits_stay_near),
        cmocka_unit_test(a_card_and_a_cpu_have_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
