/* Tests tensor groups on real workers: layers cut unevenly over two and three ranks, alone and in a pipeline,
 * give the losses of one device, equal bits when repeated, and the planned memory. */
#include "planner/cost/tensor_cost.h"
#include "worker/shapes.h"

static const struct shape single = {.placement = PLACE_SINGLE, .order = SCHEDULE_1F1B, .ranks = 1};

/* Trains the model on one device and in each of the tensor-parallel shapes, compares the losses, and repeats
 * the first shape. */
static void check_open(struct fixture *fix, const char *model, enum trained trained,
                       const struct shape *shapes, size_t count)
{
    struct world world;
    struct outcome one, out, again;
    /* no adapter files: training starts with a new adapter, drawn as peft draws it */
    json_object_clear(fix->adapter);
    world_init(&world, fix, BASE_FP32, trained);
    world_shorten(&world);
    assert_null(tensor_lacks(&world.problem));
    run_from(fix, &world, &single, (struct resume){0}, &one);
    for (size_t i = 0; i < count; i++) {
        char what[120];
        bool apart = shapes[i].ranks > shapes[i].group; /* a trained tied table is on one rank only */
        if (shapes[i].group > fix->config.kv_heads || (apart && trained == EVERYTHING && fix->config.tied))
            continue;
        snprintf(what, sizeof(what), "%s, %u ranks, a group of %u, %u in turns", model, shapes[i].ranks,
                 shapes[i].group, shapes[i].together);
        run_from(fix, &world, &shapes[i], (struct resume){0}, &out);
        check_near(&one, &out, what);
        for (uint32_t t = 0; t < out.steps; t++)
            assert_true(fabs(out.norm[t] - one.norm[t]) <= 1e-5 * one.norm[t]);
        if (i == 0 && count > 1) {
            run_from(fix, &world, &shapes[i], (struct resume){0}, &again);
            assert_memory_equal(out.loss, again.loss, sizeof(out.loss));
            assert_memory_equal(out.norm, again.norm, sizeof(out.norm));
            assert_true(json_equal(out.artifacts, again.artifacts)); /* compared by SHA-256 */
            outcome_fini(&again);
        }
        outcome_fini(&out);
    }
    outcome_fini(&one);
    world_fini(&world);
}

static void check_shapes(const char *model, enum trained trained, const struct shape *shapes, size_t count)
{
    struct fixture fix;
    fix_open(&fix, model);
    check_open(&fix, model, trained, shapes, count);
    fix_close(&fix);
}

/* Opens the golden llama with its matrices interpreted as 16 heads of 4 features, of which 8 are key heads.
 */
static void open_narrow(struct fixture *fix, struct scratch *scratch)
{
    struct err err;
    char golden[300], from[400], expected[400], adapter[400];
    json_error_t error;
    struct buf bytes;
    assert_int_equal(scratch_make(scratch), 0);
    snprintf(golden, sizeof(golden), "%s/golden/llama", MOTLEY_TEST_DATA);
    snprintf(from, sizeof(from), "%s/model.safetensors", golden);
    snprintf(expected, sizeof(expected), "%s/expected.json", golden);
    snprintf(adapter, sizeof(adapter), "%s/adapter_init", golden);
    buf_init(&bytes, (size_t)1 << 30);
    must(file_read_all(from, bytes.limit, &bytes, &err));
    must(file_write_atomic(scratch_path(scratch, "model.safetensors"), bytes.data, bytes.size, 0600, &err));
    buf_fini(&bytes);
    snprintf(from, sizeof(from), "%s/config.json", golden);
    json_t *config = json_load_file(from, 0, &error);
    json_object_set_new(config, "num_attention_heads", json_integer(16));
    json_object_set_new(config, "num_key_value_heads", json_integer(8));
    json_object_set_new(config, "head_dim", json_integer(4));
    assert_int_equal(json_dump_file(config, scratch_path(scratch, "config.json"), 0), 0);
    json_decref(config);
    fix_open_files(fix, scratch->dir, expected, adapter);
}

static const struct shape shapes[] = {
    {.placement = PLACE_TENSOR, .ranks = 2, .group = 2, .together = 1},
    {.placement = PLACE_TENSOR, .ranks = 3, .group = 2, .together = 2},
};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

/* Tests each golden family of dense layers: two families with adapters in all shapes, each of the others
 * once. With MOTLEY_EQUALITY each family runs with adapters and with everything trained. */
static void cut_layers_give_one_devices_numbers(void **state)
{
    (void)state;
    static const char *const models[] = {"llama", "qwen2", "qwen3", "mistral", "smollm3", "llama3-rope"};
    bool everything = getenv("MOTLEY_EQUALITY") != NULL;
    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++)
        for (int full = 0; full < 2; full++)
            if (everything || m < 2 || m % 2 == (size_t)full)
                check_shapes(models[m], full ? EVERYTHING : ADAPTERS, shapes,
                             everything || (m < 2 && !full) ? SHAPES : 1);
}

static void three_ranks_have_one_one_and_six_heads(void **state)
{
    (void)state;
    static const struct shape three[] = {
        {.placement = PLACE_TENSOR, .ranks = 3, .group = 3, .together = 2, .recompute = true},
        {.placement = PLACE_TENSOR, .ranks = 4, .group = 3, .together = 1}};
    struct fixture fix;
    struct scratch scratch;
    open_narrow(&fix, &scratch);
    check_open(&fix, "16 heads", ADAPTERS, three, 2);
    fix_close(&fix);
    scratch_remove(&scratch);
    open_narrow(&fix, &scratch);
    check_open(&fix, "16 heads", EVERYTHING, three, 1);
    fix_close(&fix);
    scratch_remove(&scratch);
}

/* With products in 16 bits each member rounds its own part of an adapter's inner product, so losses are near
 * one device's, as replicas' are, and repeated runs have equal bits. In fp16 all members scale gradients
 * alike. */
static void products_in_16_bits_stay_near(void **state)
{
    (void)state;
    static const struct {
        enum workload_compute compute;
        enum plan_dtype boundary;
        double bound;
    } cases[] = {{COMPUTE_BF16, PLAN_BF16, 1e-3}, {COMPUTE_FP16, PLAN_F16, 2e-4}};
    struct fixture fix;
    struct world world;
    fix_open(&fix, "llama");
    json_object_clear(fix.adapter);
    for (size_t c = 0; c < 2; c++) {
        struct outcome one, out, again;
        double most = 0;
        world_init_in(&world, &fix, BASE_FP32, ADAPTERS, cases[c].compute, cases[c].boundary);
        run_from(&fix, &world, &single, (struct resume){0}, &one);
        run_from(&fix, &world, &shapes[1], (struct resume){0}, &out);
        run_from(&fix, &world, &shapes[1], (struct resume){0}, &again);
        for (uint32_t t = 0; t < out.steps; t++)
            most = fmax(most, fabs(out.loss[t] / one.loss[t] - 1));
        print_message("%s: losses off by %.1e\n", plan_dtype_name(cases[c].boundary), most);
        assert_true(most < cases[c].bound);
        assert_memory_equal(out.loss, again.loss, sizeof(out.loss));
        outcome_fini(&one);
        outcome_fini(&out);
        outcome_fini(&again);
        world_fini(&world);
    }
    fix_close(&fix);
}

/* A card and a CPU share layers; they add in different orders, so losses are near and not equal. */
static void a_card_and_a_cpu_share_layers(void **state)
{
    (void)state;
    static const struct shape mixed[] = {
        {.placement = PLACE_TENSOR, .ranks = 2, .group = 2, .together = 2, .emulated = true}};
    check_shapes("qwen2", ADAPTERS, mixed, 1);
}

/* The last columns of the FFN, which only the last member has, are so large that products overflow. All
 * members stop in the same step. */
static void a_value_of_one_member_stops_all(void **state)
{
    (void)state;
    struct fixture fix;
    struct world world;
    struct outcome out;
    struct err err;
    struct run run = {&shapes[1], {0}, NULL};
    fix_open(&fix, "llama");
    json_object_clear(fix.adapter);
    fix_spoil_values(&fix, "model.layers.1.mlp.up_proj.weight", fix.config.hidden);
    world_init(&world, &fix, BASE_FP32, EVERYTHING);
    json_t *spec = fix_spec(&fix);
    json_object_set_new(spec, "sample", json_pack("{s:s, s:i}", "prompt", "x", "tokens", 12));
    spec_train(spec, &fix, EVERYTHING);
    struct plan *plan = shape_plan(&world, run.shape);
    must(plan_check(plan, &err));
    fix_run(&fix, plan, spec, prepare, note_event, &run, &out);
    assert_int_equal(out.steps, 0);
    assert_int_equal(json_array_size(out.failures), run.shape->ranks);
    for (size_t f = 0; f < json_array_size(out.failures); f++) {
        const json_t *failed = json_array_get(out.failures, f);
        print_message("%s\n", json_string_value(json_object_get(failed, "text")));
        assert_string_equal(json_string_value(json_object_get(failed, "code")), "not-finite");
        assert_memory_equal(json_string_value(json_object_get(failed, "text")), "step 0", 6);
    }
    outcome_fini(&out);
    plan_destroy(plan);
    json_decref(spec);
    world_fini(&world);
    fix_close(&fix);
}

/* The members of a tensor group each write their rectangles of matrices, and the first member writes the
 * parameters that all keep alike. Other shapes read the parts that they need: one device, two members and a
 * stage behind them, and a pipeline. */
static void a_checkpoint_of_parts_resumes_in_another_shape(void **state)
{
    (void)state;
    static const struct shape chain[] = {{.placement = PLACE_TENSOR, .ranks = 3, .group = 3, .together = 1},
                                         {.placement = PLACE_SINGLE, .order = SCHEDULE_1F1B, .ranks = 1},
                                         {.placement = PLACE_TENSOR, .ranks = 3, .group = 2, .together = 2},
                                         {.placement = PLACE_PIPELINE, .order = SCHEDULE_SPLIT, .ranks = 2}};
    enum { COUNT = sizeof(chain) / sizeof(chain[0]) };
    struct fixture fix;
    struct scratch scratch;
    struct world world;
    struct outcome out[COUNT];
    open_narrow(&fix, &scratch);
    json_object_clear(fix.adapter);
    world_init(&world, &fix, BASE_FP32, EVERYTHING);
    world.every_steps = 5;
    run_from(&fix, &world, &chain[0], (struct resume){0}, &out[0]);
    for (size_t i = 1; i < COUNT; i++) {
        struct resume from = {.step = 5 * i};
        from.blobs = json_object_get(checkpoint_at(&out[i - 1], from.step), "blobs");
        run_from(&fix, &world, &chain[i], from, &out[i]);
        for (uint64_t t = from.step; t < 20; t++)
            if (!(fabs(out[i].loss[t] - out[0].loss[t]) <= 2e-5 * out[0].loss[t]))
                fail_msg("shape %zu, step %llu: loss %.9g and %.9g", i, (unsigned long long)t, out[i].loss[t],
                         out[0].loss[t]);
    }
    for (size_t i = 0; i < COUNT; i++)
        outcome_fini(&out[i]);
    world_fini(&world);
    fix_close(&fix);
    scratch_remove(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_layers_give_one_devices_numbers),
        cmocka_unit_test(three_ranks_have_one_one_and_six_heads),
        cmocka_unit_test(products_in_16_bits_stay_near),
        cmocka_unit_test(a_card_and_a_cpu_share_layers),
        cmocka_unit_test(a_value_of_one_member_stops_all),
        cmocka_unit_test(a_checkpoint_of_parts_resumes_in_another_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
