/* Tests every order of a pipeline, and replicas, as the planner emits them, on real workers: they give the
 * losses of one device (PyTorch's where the golden file has them), equal bits when repeated, and the planned
 * memory. */
#include "worker/shapes.h"

/* Compares with PyTorch in double precision. */
static void check_golden(const struct fixture *fix, enum trained trained, const struct outcome *out,
                         const char *what)
{
    const json_t *want =
        json_object_get(fix->expected, trained == EVERYTHING ? "full_fp64" : "full_aux_fp64");
    for (uint32_t t = 0; t < out->steps; t++) {
        double loss = json_number_value(json_array_get(json_object_get(want, "loss"), t)),
               norm = json_number_value(json_array_get(json_object_get(want, "grad_norm"), t));
        if (!(fabs(out->loss[t] - loss) <= 1e-6 * loss) || !(fabs(out->norm[t] - norm) <= 1e-5 * norm))
            fail_msg("%s, step %u: loss %.9g and %.9g, norm %.9g and %.9g", what, t, out->loss[t], loss,
                     out->norm[t], norm);
    }
}

/* Checks each shape (only in `make equality`; otherwise every second one). The first shape and replicas run
 * twice. */
static void check_shapes(const char *model, enum trained trained, const struct shape *shapes, size_t count)
{
    struct fixture fix;
    struct world world;
    struct outcome one, out, again;
    bool repeated = false, everything = getenv("MOTLEY_EQUALITY") != NULL;
    fix_open(&fix, model);
    json_object_clear(fix.adapter); /* start as peft does: with dropout the golden values do not apply */
    world_init(&world, &fix, BASE_FP32, trained);
    if (trained < EVERYTHING) /* PyTorch's learning rates are those of all its steps */
        world_shorten(&world);
    run_from(&fix, &world, &(struct shape){.placement = PLACE_SINGLE, .order = SCHEDULE_1F1B, .ranks = 1},
             (struct resume){0}, &one);
    for (size_t i = 0; i < count; i += everything ? 1 : 2) {
        char what[120];
        snprintf(what, sizeof(what), "%s, %s %s on %u ranks", model, plan_placement_name(shapes[i].placement),
                 plan_schedule_name(shapes[i].order), shapes[i].ranks);
        if (shapes[i].order == SCHEDULE_INTERLEAVED &&
            shapes[i].ranks * LAPS > (uint32_t)world.problem.block_count) {
            print_message("skipped: %s, which has %d blocks\n", what, world.problem.block_count);
            continue;
        }
        run_from(&fix, &world, &shapes[i], (struct resume){0}, &out);
        check_near(&one, &out, what);
        if (trained >= EVERYTHING)
            check_golden(&fix, trained, &out, what);
        if (count > 1 && (!repeated || shapes[i].placement == PLACE_HYBRID)) {
            repeated = true;
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

static void every_order_gives_one_devices_numbers(void **state)
{
    static const struct shape shapes[] = {
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_INTERLEAVED, .ranks = 2},
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_SPLIT, .ranks = 2},
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_SPLIT, .ranks = 3},
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_INTERLEAVED, .ranks = 3}};
    (void)state;
    check_shapes("llama", ADAPTERS, SHAPES(shapes));
}

static void every_order_gives_one_devices_numbers_of_a_mixture(void **state)
{
    static const struct shape shapes[] = {
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_INTERLEAVED, .ranks = 2},
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_SPLIT, .ranks = 2},
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_SPLIT, .ranks = 3}};
    (void)state;
    check_shapes("mixtral", ADAPTERS, SHAPES(shapes));
}

/* The sums over layers of the load-balancing loss travel from stage to stage with the boundary tensors. */
static void the_load_balancing_loss_is_over_all_stages(void **state)
{
    static const struct shape shapes[] = {{.placement = PLACE_PIPELINE,
                                           .order = SCHEDULE_INTERLEAVED,
                                           .ranks = 2},
                                          {.placement = PLACE_DATA, .order = SCHEDULE_1F1B, .ranks = 2},
                                          {.placement = PLACE_HYBRID, .order = SCHEDULE_1F1B, .ranks = 3},
                                          {.placement = PLACE_PIPELINE, .order = SCHEDULE_SPLIT, .ranks = 3}},
                              few[] = {{.placement = PLACE_PIPELINE, .order = SCHEDULE_1F1B, .ranks = 3}};
    (void)state;
    check_shapes("mixtral", EVERYTHING_BALANCED, SHAPES(shapes));
    check_shapes("qwen3-moe", EVERYTHING_BALANCED, SHAPES(few));
    check_shapes("olmoe", EVERYTHING_BALANCED, SHAPES(few));
}

/* Two neighbours both have a layer, and each runs it for some of the micro-batches. */
static void stages_share_a_layer(void **state)
{
    static const struct shape shapes[] = {
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_1F1B, .ranks = 2, .shares_layers = true},
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_GPIPE, .ranks = 2, .shares_layers = true},
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_1F1B, .ranks = 3, .shares_layers = true}};
    (void)state;
    check_shapes("llama", ADAPTERS, SHAPES(shapes));
    check_shapes("qwen2", EVERYTHING, SHAPES(shapes));
}

/* A rank recomputes some of its blocks and keeps what the others save. */
static void some_blocks_are_recomputed(void **state)
{
    static const struct shape shapes[] = {
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_1F1B, .ranks = 1, .recompute = true},
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_1F1B, .ranks = 2, .recompute = true},
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_GPIPE, .ranks = 2, .recompute = true}};
    (void)state;
    check_shapes("llama", ADAPTERS, SHAPES(shapes));
    check_shapes("mixtral", EVERYTHING, SHAPES(shapes));
}

/* The embedding belongs to block 0 and is copied to the head; the gradients of both uses are added at block
 * 0. */
static void a_tied_embedding_is_trained_in_every_order(void **state)
{
    static const struct shape shapes[] = {
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_INTERLEAVED, .ranks = 2},
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_1F1B, .ranks = 3},
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_SPLIT, .ranks = 3},
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_INTERLEAVED, .ranks = 3},
        {.placement = PLACE_HYBRID, .order = SCHEDULE_1F1B, .ranks = 3}};
    static const struct shape few[] = {{.placement = PLACE_PIPELINE, .order = SCHEDULE_SPLIT, .ranks = 2},
                                       {.placement = PLACE_HYBRID, .order = SCHEDULE_1F1B, .ranks = 3}};
    (void)state;
    check_shapes("qwen2", EVERYTHING, SHAPES(shapes));
    check_shapes("gemma2", ADAPTERS_AND_TABLE, SHAPES(few));
}

static void replicas_train_everything_as_pytorch_does(void **state)
{
    static const struct shape shapes[] = {{.placement = PLACE_DATA, .order = SCHEDULE_1F1B, .ranks = 3},
                                          {.placement = PLACE_HYBRID, .order = SCHEDULE_1F1B, .ranks = 3}};
    (void)state;
    check_shapes("qwen3", EVERYTHING, SHAPES(shapes));
}

/* Results are equal bit by bit; check_memory compares the device's memory with the plan. */
static void moments_on_the_host_change_no_number(void **state)
{
    static const struct shape shapes[] = {
        {.placement = PLACE_SINGLE, .order = SCHEDULE_1F1B, .ranks = 1},
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_INTERLEAVED, .ranks = 2},
        {.placement = PLACE_HYBRID, .order = SCHEDULE_1F1B, .ranks = 3}};
    struct fixture fix;
    struct world world;
    struct outcome here, there;
    (void)state;
    fix_open(&fix, "qwen2");
    json_object_clear(fix.adapter); /* full training has no adapter */
    world_init(&world, &fix, BASE_FP32, EVERYTHING);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        world.w.moments_on_host = false;
        run_from(&fix, &world, &shapes[i], (struct resume){0}, &here);
        world.w.moments_on_host = true;
        run_from(&fix, &world, &shapes[i], (struct resume){0}, &there);
        assert_memory_equal(here.loss, there.loss, sizeof(here.loss));
        assert_memory_equal(here.norm, there.norm, sizeof(here.norm));
        assert_true(json_equal(here.artifacts, there.artifacts)); /* compared by SHA-256 */
        outcome_fini(&here);
        outcome_fini(&there);
    }
    world_fini(&world);
    fix_close(&fix);
}

/* Other shapes read a checkpoint that one shape wrote: a pipeline with a copied embedding, replicas, and one
 * device. */
static void a_checkpoint_resumes_in_another_shape(void **state)
{
    static const struct shape shapes[] = {
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_SPLIT, .ranks = 2},
        {.placement = PLACE_PIPELINE, .order = SCHEDULE_1F1B, .ranks = 2, .shares_layers = true},
        {.placement = PLACE_HYBRID, .order = SCHEDULE_1F1B, .ranks = 3},
        {.placement = PLACE_SINGLE, .order = SCHEDULE_1F1B, .ranks = 1}};
    enum { COUNT = sizeof(shapes) / sizeof(*shapes) };
    struct fixture fix;
    struct world world;
    struct outcome out[COUNT];
    (void)state;
    fix_open(&fix, "qwen2");
    json_object_clear(fix.adapter);
    world_init(&world, &fix, BASE_FP32, EVERYTHING);
    world.every_steps = 8;
    run_from(&fix, &world, &shapes[0], (struct resume){0}, &out[0]);
    for (size_t i = 1; i < COUNT;
         i++) { /* the second run starts from the first's checkpoint, the others from the second's */
        struct resume from = {.step = i == 1 ? 8 : 16};
        from.blobs = json_object_get(checkpoint_at(&out[i == 1 ? 0 : 1], from.step), "blobs");
        run_from(&fix, &world, &shapes[i], from, &out[i]);
        assert_int_equal(out[i].first_step, from.step);
        for (uint64_t t = from.step; t < 20; t++)
            if (!(fabs(out[i].loss[t] - out[0].loss[t]) <= 2e-5 * out[0].loss[t]))
                fail_msg("shape %zu, step %llu: loss %.9g and %.9g", i, (unsigned long long)t, out[i].loss[t],
                         out[0].loss[t]);
    }
    for (size_t i = 0; i < COUNT; i++)
        outcome_fini(&out[i]);
    world_fini(&world);
    fix_close(&fix);
}

/* Compares a packed base with an fp32 base of the same file, on one device and on two whose blocks have
 * different types. */
static void a_packed_base_gives_the_numbers_of_what_it_unpacks_to(void **state)
{
    (void)state;
    static const struct packed_model model = {.hidden = 512, .ffn = 512, .heads = 8, .kv_heads = 2};
    static const struct shape single = {.placement = PLACE_SINGLE, .order = SCHEDULE_1F1B, .ranks = 1},
                              halves = {.placement = PLACE_PIPELINE, .order = SCHEDULE_SPLIT, .ranks = 2};
    char dir[300], path[300], expected[400], adapter[400];
    struct scratch scratch;
    struct fixture fix;
    struct world world;
    struct err err;
    struct outcome fp32, one, two;
    uint64_t bytes[2];
    assert_int_equal(scratch_make(&scratch), 0);
    snprintf(path, sizeof(path), "%.200s/packed.gguf", scratch.dir);
    snprintf(dir, sizeof(dir), "%s/golden/llama", MOTLEY_TEST_DATA);
    snprintf(expected, sizeof(expected), "%s/expected.json", dir);
    snprintf(adapter, sizeof(adapter), "%s/adapter_init", dir);
    must(packed_model_write(&model, 31, path, &err));
    fix_open_files(&fix, path, expected, adapter);
    json_object_clear(fix.adapter); /* the golden adapter is for a model of another shape */
    for (int packed = 0; packed < 2; packed++) {
        world_init(&world, &fix, packed ? BASE_PACKED : BASE_FP32, ADAPTERS);
        struct plan *plan = shape_plan(&world, &single);
        bytes[packed] = plan->ranks[0].memory_bytes;
        plan_destroy(plan);
        run_from(&fix, &world, &single, (struct resume){0}, packed ? &one : &fp32);
        if (packed)
            run_from(&fix, &world, &halves, (struct resume){0}, &two);
        world_fini(&world);
    }
    print_message("losses %.6f … %.6f; %llu bytes planned with fp32, %llu packed\n", one.loss[0],
                  one.loss[19], (unsigned long long)bytes[0], (unsigned long long)bytes[1]);
    for (uint32_t t = 0; t < fp32.steps; t++)
        assert_true(fabs(one.loss[t] - fp32.loss[t]) <= 1e-6 * fp32.loss[t]);
    check_near(&one, &two, "packed, on 2 ranks");
    assert_true(bytes[1] < bytes[0]);
    outcome_fini(&fp32);
    outcome_fini(&one);
    outcome_fini(&two);
    fix_close(&fix);
    scratch_remove(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_packed_base_gives_the_numbers_of_what_it_unpacks_to),
        cmocka_unit_test(every_order_gives_one_devices_numbers),
        cmocka_unit_test(every_order_gives_one_devices_numbers_of_a_mixture),
        cmocka_unit_test(the_load_balancing_loss_is_over_all_stages),
        cmocka_unit_test(stages_share_a_layer),
        cmocka_unit_test(some_blocks_are_recomputed),
        cmocka_unit_test(a_tied_embedding_is_trained_in_every_order),
        cmocka_unit_test(replicas_train_everything_as_pytorch_does),
        cmocka_unit_test(a_checkpoint_resumes_in_another_shape),
        cmocka_unit_test(moments_on_the_host_change_no_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
