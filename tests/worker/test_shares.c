/* Tests state that ranks share out, and state that a server's holder keeps, on real workers: gathered block
 * by block they give the losses of one device, equal bits when repeated, and the planned memory; their
 * checkpoints resume in any other shape. */
#include "worker/shapes.h"

static void check_shapes(const char *model, enum trained trained, const struct shape *shapes, size_t count)
{
    struct fixture fix;
    struct world world;
    struct outcome one, out, again;
    bool everything = getenv("MOTLEY_EQUALITY") != NULL;
    fix_open(&fix, model);
    /* no adapter files: training starts with a new adapter, drawn as peft draws it */
    json_object_clear(fix.adapter);
    world_init(&world, &fix, BASE_FP32, trained);
    world_shorten(&world);
    run_from(&fix, &world, &(struct shape){.placement = PLACE_SINGLE, .order = SCHEDULE_1F1B, .ranks = 1},
             (struct resume){0}, &one);
    for (size_t i = 0; i < count; i++) {
        char what[120];
        snprintf(what, sizeof(what), "%s, %s on %u ranks, %u layers gathered%s", model,
                 plan_placement_name(shapes[i].placement), shapes[i].ranks, shapes[i].gathered,
                 shapes[i].idle ? ", one without rows" : "");
        run_from(&fix, &world, &shapes[i], (struct resume){0}, &out);
        check_near(&one, &out, what);
        if (i == 0 || everything) {
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

static const struct shape data[] = {
    {.placement = PLACE_DATA, .ranks = 3, .gathered = 2},
    {.placement = PLACE_DATA, .ranks = 2, .gathered = 1},
    {.placement = PLACE_DATA, .ranks = 4, .gathered = 2, .idle = true},
};
static const struct shape server[] = {
    {.placement = PLACE_SERVER, .ranks = 3, .gathered = 2},
    {.placement = PLACE_SERVER, .ranks = 2, .gathered = 1, .idle = true},
};

static void sharded_state_gives_one_devices_numbers(void **state)
{
    (void)state;
    check_shapes("llama", EVERYTHING, SHAPES(data));
}

static void a_tied_embedding_is_gathered_once_for_both_uses(void **state)
{
    (void)state;
    check_shapes("qwen2", EVERYTHING, SHAPES(data));
}

static void a_sharded_base_gives_one_devices_numbers(void **state)
{
    (void)state;
    check_shapes("llama", ADAPTERS, SHAPES(data));
    check_shapes("mixtral", ADAPTERS, data, 1);
}

static void a_server_gives_one_devices_numbers(void **state)
{
    (void)state;
    check_shapes("llama", EVERYTHING, SHAPES(server));
    check_shapes("qwen2", EVERYTHING, server, 1);
    check_shapes("llama", ADAPTERS, SHAPES(server));
    check_shapes("qwen2", ADAPTERS_AND_TABLE, SHAPES(server));
}

/* In a pipeline of two stages, the first stage's members share out its state by halves or thirds. */
static void groups_within_a_pipeline_share_their_stages_state(void **state)
{
    static const struct shape shapes[] = {
        {.placement = PLACE_HYBRID, .ranks = 3, .gathered = 1},
        {.placement = PLACE_HYBRID, .ranks = 4, .gathered = 1},
    };
    (void)state;
    check_shapes("llama", EVERYTHING, SHAPES(shapes));
    check_shapes("mixtral", EVERYTHING_BALANCED, shapes, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharded_state_gives_one_devices_numbers),
        cmocka_unit_test(a_tied_embedding_is_gathered_once_for_both_uses),
        cmocka_unit_test(a_sharded_base_gives_one_devices_numbers),
        cmocka_unit_test(groups_within_a_pipeline_share_their_stages_state),
        cmocka_unit_test(a_server_gives_one_devices_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
