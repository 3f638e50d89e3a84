/* Every order of a pipeline, and replicas, as the planner emits them, on real workers: the losses of one
 * device (where PyTorch's are at hand, those), the same bits again, and the memory that was planned. */
#include "model/packed_model.h"
#include "planner/plan_fixture.h"
#include "worker/worker_fixture.h"

#include "planner/emit/pipeline.h"

enum { LAPS = 2, BLOCKS_MAX = 64 };

/* Adapters; with a trained embedding beside them; everything, as PyTorch's numbers have it, also with the
 * load-balancing loss. */
enum trained { ADAPTERS, ADAPTERS_AND_TABLE, EVERYTHING, EVERYTHING_BALANCED };

/* Stages of one rank each, or of several: replicas of a stage. */
struct shape {
    enum plan_placement placement;
    enum plan_schedule order;
    uint32_t ranks;
};

struct world {
    enum trained trained;
    int every_steps; /* checkpoints; 0: none */
    struct workload w;
    struct cluster *cluster;
    struct problem problem;
};

/* The golden rows, and devices that are alike: what is tested is what the order computes. */
static void world_init(struct world *world, const struct fixture *fix, enum workload_base base,
                       enum trained trained)
{
    struct err err;
    const json_t *batches = json_object_get(fix->expected, "batches");
    uint32_t rows = 0;
    *world = (struct world){.trained = trained, .cluster = cluster_create(&err)};
    world->w = (struct workload){.config = &fix->config,
                                 .method = trained >= EVERYTHING ? METHOD_FULL : METHOD_LORA,
                                 .router_loss = trained == EVERYTHING_BALANCED,
                                 .saves_embedding = trained == ADAPTERS_AND_TABLE,
                                 .lora_rank = (uint32_t)json_integer_value(json_object_get(fix->lora, "r")),
                                 .lora_dropout = 0.1,
                                 .base = base,
                                 .sequence_tokens = 128,
                                 .batch_rows = fix->batch_rows,
                                 .steps = 20,
                                 .rows = calloc(256, sizeof *world->w.rows),
                                 .sample_tokens = 24,
                                 .prompt_tokens = 5,
                                 .place = -1};
    const json_t *targets = json_object_get(fix->lora, "targets");
    for (size_t t = 0; t < json_array_size(targets); t++)
        snprintf(world->w.targets[world->w.target_count++], sizeof *world->w.targets, "%s",
                 json_string_value(json_array_get(targets, t)));
    for (size_t b = 0; b < json_array_size(batches); b++) {
        const json_t *all = json_object_get(json_array_get(batches, b), "ids"),
                     *labels = json_object_get(json_array_get(batches, b), "labels");
        for (size_t r = 0; r < json_array_size(all); r++, rows++) {
            world->w.rows[rows].tokens = (uint32_t)json_array_size(json_array_get(all, r));
            for (size_t t = 1; t < world->w.rows[rows].tokens; t++)
                world->w.rows[rows].labelled +=
                    json_integer_value(json_array_get(json_array_get(labels, r), t)) >= 0;
        }
    }
    world->w.row_count = rows;
    for (uint32_t r = 0; r < 3; r++) {
        char node[16], name[32];
        snprintf(node, sizeof node, "node%u", r);
        snprintf(name, sizeof name, "node%u/cpu0", r);
        fixture_device(world->cluster, name, node, (uint64_t)1 << 30, 1);
        for (uint32_t other = 0; other < r; other++) {
            char to[16];
            snprintf(to, sizeof to, "node%u", other);
            fixture_link(world->cluster, node, to, 1e-4, 1e9);
            fixture_link(world->cluster, to, node, 1e-4, 1e9);
        }
    }
    must(problem_init(&world->problem, &world->w, world->cluster, &err));
}

static void world_fini(struct world *world)
{
    problem_fini(&world->problem);
    cluster_destroy(world->cluster);
    workload_fini(&world->w);
}

/* Stage s of so many, as even as they can be, and its members. */
static void stage_fill(struct stage *stage, const struct shape *shape, uint32_t s, uint32_t count,
                       uint32_t blocks)
{
    bool groups = shape->placement == PLACE_HYBRID || shape->placement == PLACE_DATA;
    uint32_t more = s == 0 ? shape->ranks - count : 0; /* of replicas the first stage has those left over */
    *stage = (struct stage){(int32_t)(s * blocks / count), (int32_t)((s + 1) * blocks / count),
                            STAGE_REPLICAS, s % shape->ranks, 1};
    if (groups)
        stage->member_first = s == 0 ? 0 : s + shape->ranks - count;
    stage->member_count += groups ? more : 0;
}

/* Micro-batches of one row. */
static struct plan *shape_plan(const struct world *world, const struct shape *shape)
{
    struct err err;
    struct stage stages[BLOCKS_MAX];
    struct member members[FIX_RANKS];
    uint32_t blocks = (uint32_t)world->problem.block_count, ranks = shape->ranks, batch = world->w.batch_rows;
    bool data = shape->placement == PLACE_DATA;
    uint32_t count = shape->placement == PLACE_HYBRID       ? 2
                     : ranks == 1 || data                   ? 1
                     : shape->order == SCHEDULE_INTERLEAVED ? ranks * LAPS
                                                            : ranks;
    for (uint32_t s = 0; s < count; s++)
        stage_fill(&stages[s], shape, s, count, blocks);
    for (uint32_t r = 0; r < ranks; r++)
        members[r] = (struct member){.device = r,
                                     .state_share = 1,
                                     .rows = data,
                                     .count = !data ? 0 : batch / ranks + (r < batch % ranks),
                                     .window = data                             ? 1
                                               : shape->order == SCHEDULE_GPIPE ? batch
                                                                                : ranks - r,
                                     .delay = shape->order == SCHEDULE_SPLIT ? r : 0};
    struct candidate candidate = {.placement = ranks == 1 ? PLACE_SINGLE : shape->placement,
                                  .schedule = shape->order == SCHEDULE_GPIPE ? SCHEDULE_1F1B : shape->order,
                                  .micro_batch_rows = 1,
                                  .eager = shape->placement == PLACE_HYBRID,
                                  .whole = shape->placement == PLACE_HYBRID,
                                  .stage_count = count,
                                  .member_count = ranks,
                                  .stages = stages,
                                  .members = members};
    uint8_t owner[BLOCKS_MAX]; /* replicas of a stage take micro-batches in turn */
    for (uint32_t i = 0; shape->placement == PLACE_HYBRID && i < count * batch; i++) {
        owner[i] = (uint8_t)(i % batch % stages[i / batch].member_count);
        candidate.owner = owner;
        candidate.owner_count = count * batch;
    }
    struct plan *plan = pipeline_emit(&world->problem, &candidate, true, &err);
    if (!plan)
        fail_msg("%s on %u ranks: %s", plan_schedule_name(shape->order), ranks, err.text);
    must(plan_seal(plan, &err));
    must(plan_check(plan, &err));
    assert_true(ranks == 1 || plan->schedule == shape->order);
    return plan;
}

/* What a run is given: its shape, and where it starts (no blobs: at the beginning). */
struct run {
    const struct shape *shape;
    struct resume from;
};

static void prepare(void *arg, json_t *assign)
{
    struct run *run = arg;
    json_object_set_new(assign, "sample", json_pack("{s:[i,i,i,i,i]}", "ids", 65, 24, 88, 50, 84));
    if (run->from.blobs)
        start_there(&run->from, assign);
}

/* What the device held of each purpose is what the plan says; of buffers at most, since boundary tensors are
 * as large as their micro-batch is, and of replicas one alone makes samples. */
static void check_memory(void *arg, struct fix_worker *workers, uint32_t rank, const json_t *event)
{
    (void)workers;
    if (strcmp(json_string_value(json_object_get(event, "type")), "memory") != 0)
        return;
    const json_t *peak = json_object_get(event, "peak"), *predicted = json_object_get(event, "predicted");
    static const char *const exact[] = {"weights", "adapters", "optimizer", "activations"};
    for (size_t i = 0; i < 4; i++)
        if (json_integer_value(json_object_get(peak, exact[i])) !=
            json_integer_value(json_object_get(predicted, exact[i])))
            fail_msg("rank %u: %lld bytes of %s, %lld predicted", rank,
                     json_integer_value(json_object_get(peak, exact[i])), exact[i],
                     json_integer_value(json_object_get(predicted, exact[i])));
    json_int_t held = json_integer_value(json_object_get(peak, "buffers")),
               said = json_integer_value(json_object_get(predicted, "buffers"));
    const struct shape *shape = ((const struct run *)arg)->shape;
    if (held > said || (held < said - said / 8 && shape->placement == PLACE_PIPELINE))
        fail_msg("%u of %u: %lld bytes of buffers, %lld predicted", rank, shape->ranks, held, said);
}

static void spec_train(json_t *spec, const struct fixture *fix, enum trained trained)
{
    json_t *train = json_object_get(spec, "train"), *method = json_object_get(spec, "method");
    const json_t *full = json_object_get(fix->expected, "full");
    json_object_set_new(train, "router_aux", json_boolean(trained == EVERYTHING_BALANCED));
    if (trained >= EVERYTHING) {
        json_object_set_new(spec, "method", json_pack("{s:s}", "kind", "full"));
        json_object_set(train, "learning_rate", json_object_get(full, "peak_lr"));
        json_object_set(train, "weight_decay", json_object_get(full, "weight_decay"));
        return;
    }
    json_object_set_new(method, "dropout", json_real(0.1));
    if (trained == ADAPTERS_AND_TABLE)
        json_object_set_new(method, "modules_to_save", json_pack("[s]", "embed_tokens"));
}

static void run_from(struct fixture *fix, const struct world *world, const struct shape *shape,
                     struct resume from, struct outcome *out)
{
    struct run run = {shape, from};
    json_t *spec = fix_spec(fix);
    json_object_set_new(spec, "sample", json_pack("{s:s, s:i}", "prompt", "x", "tokens", 12));
    json_object_set_new(spec, "checkpoint", json_pack("{s:i}", "every_steps", world->every_steps));
    spec_train(spec, fix, world->trained);
    if (world->w.base == BASE_PACKED)
        json_object_set_new(json_object_get(spec, "method"), "base", json_string("packed"));
    struct plan *plan = shape_plan(world, shape);
    fix_run(fix, plan, spec, prepare, check_memory, &run, out);
    if (json_array_size(out->failures))
        fail_msg("%s, %s on %u ranks: %s", plan_placement_name(plan->placement),
                 plan_schedule_name(shape->order), shape->ranks,
                 json_string_value(json_object_get(json_array_get(out->failures, 0), "text")));
    assert_int_equal(out->steps, 20 - from.step);
    assert_int_equal(out->done, shape->ranks);
    plan_destroy(plan);
    json_decref(spec);
}
/* PyTorch's, in double precision. */
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

static void check_near(const struct outcome *one, const struct outcome *out, const char *what)
{
    for (uint32_t t = 0; t < out->steps; t++)
        if (!(fabs(out->loss[t] - one->loss[t]) <= 2e-5 * one->loss[t]) ||
            !(fabs(out->norm[t] - one->norm[t]) <= 2e-5 * one->norm[t]))
            fail_msg("%s, step %u: loss %.9g and %.9g, norm %.9g and %.9g", what, t, out->loss[t],
                     one->loss[t], out->norm[t], one->norm[t]);
    assert_int_equal(out->evals, one->evals);
    for (uint32_t e = 0; e < out->evals; e++)
        assert_true(fabs(out->eval[e] - one->eval[e]) <= 2e-5 * one->eval[e]);
    assert_int_equal(json_array_size(out->samples), json_array_size(one->samples));
    for (size_t i = 0; i < json_array_size(out->samples); i++)
        assert_true(json_equal(json_object_get(json_array_get(out->samples, i), "ids"),
                               json_object_get(json_array_get(one->samples, i), "ids")));
}

/* Each of the shapes (every second of them only in make equality); of several the first twice, and groups. */
static void check_shapes(const char *model, enum trained trained, const struct shape *shapes, size_t count)
{
    struct fixture fix;
    struct world world;
    struct outcome one, out, again;
    bool repeated = false, everything = getenv("MOTLEY_EQUALITY") != NULL;
    fix_open(&fix, model);
    json_object_clear(fix.adapter); /* as peft begins: with dropout what is golden no longer counts */
    world_init(&world, &fix, BASE_FP32, trained);
    run_from(&fix, &world, &(struct shape){PLACE_SINGLE, SCHEDULE_1F1B, 1}, (struct resume){0}, &one);
    for (size_t i = 0; i < count; i += everything ? 1 : 2) {
        char what[120];
        snprintf(what, sizeof what, "%s, %s %s on %u ranks", model, plan_placement_name(shapes[i].placement),
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
            assert_memory_equal(out.loss, again.loss, sizeof out.loss);
            assert_memory_equal(out.norm, again.norm, sizeof out.norm);
            assert_true(json_equal(out.artifacts, again.artifacts)); /* by their sha256 */
            outcome_fini(&again);
        }
        outcome_fini(&out);
    }
    outcome_fini(&one);
    world_fini(&world);
    fix_close(&fix);
}

#define SHAPES(list) list, sizeof(list) / sizeof *(list)

static void every_order_gives_one_devices_numbers(void **state)
{
    static const struct shape shapes[] = {{PLACE_PIPELINE, SCHEDULE_INTERLEAVED, 2},
                                          {PLACE_PIPELINE, SCHEDULE_SPLIT, 2},
                                          {PLACE_PIPELINE, SCHEDULE_SPLIT, 3},
                                          {PLACE_PIPELINE, SCHEDULE_INTERLEAVED, 3}};
    (void)state;
    check_shapes("llama", ADAPTERS, SHAPES(shapes));
}

static void every_order_gives_one_devices_numbers_of_a_mixture(void **state)
{
    static const struct shape shapes[] = {{PLACE_PIPELINE, SCHEDULE_INTERLEAVED, 2},
                                          {PLACE_PIPELINE, SCHEDULE_SPLIT, 2},
                                          {PLACE_PIPELINE, SCHEDULE_SPLIT, 3}};
    (void)state;
    check_shapes("mixtral", ADAPTERS, SHAPES(shapes));
}

/* What it sums over layers goes from stage to stage with the boundary tensors. */
static void the_load_balancing_loss_is_over_all_stages(void **state)
{
    static const struct shape shapes[] = {{PLACE_PIPELINE, SCHEDULE_INTERLEAVED, 2},
                                          {PLACE_DATA, SCHEDULE_1F1B, 2},
                                          {PLACE_HYBRID, SCHEDULE_1F1B, 3},
                                          {PLACE_PIPELINE, SCHEDULE_SPLIT, 3}},
                              few[] = {{PLACE_PIPELINE, SCHEDULE_1F1B, 3}};
    (void)state;
    check_shapes("mixtral", EVERYTHING_BALANCED, SHAPES(shapes));
    check_shapes("qwen3-moe", EVERYTHING_BALANCED, SHAPES(few));
    check_shapes("olmoe", EVERYTHING_BALANCED, SHAPES(few));
}

/* The table is kept with block 0, copied to the head, and both uses' gradients are added there. */
static void a_tied_embedding_is_trained_in_every_order(void **state)
{
    static const struct shape shapes[] = {{PLACE_PIPELINE, SCHEDULE_INTERLEAVED, 2},
                                          {PLACE_PIPELINE, SCHEDULE_1F1B, 3},
                                          {PLACE_PIPELINE, SCHEDULE_SPLIT, 3},
                                          {PLACE_PIPELINE, SCHEDULE_INTERLEAVED, 3},
                                          {PLACE_HYBRID, SCHEDULE_1F1B, 3}};
    static const struct shape few[] = {{PLACE_PIPELINE, SCHEDULE_SPLIT, 2}, {PLACE_HYBRID, SCHEDULE_1F1B, 3}};
    (void)state;
    check_shapes("qwen2", EVERYTHING, SHAPES(shapes));
    check_shapes("gemma2", ADAPTERS_AND_TABLE, SHAPES(few));
}

static void replicas_train_everything_as_pytorch_does(void **state)
{
    static const struct shape shapes[] = {{PLACE_DATA, SCHEDULE_1F1B, 3}, {PLACE_HYBRID, SCHEDULE_1F1B, 3}};
    (void)state;
    check_shapes("qwen3", EVERYTHING, SHAPES(shapes));
}

/* With a copied embedding, as replicas, on one device: what one wrote another reads. */
static void a_checkpoint_resumes_in_another_shape(void **state)
{
    static const struct shape shapes[] = {{PLACE_PIPELINE, SCHEDULE_SPLIT, 2},
                                          {PLACE_HYBRID, SCHEDULE_1F1B, 3},
                                          {PLACE_SINGLE, SCHEDULE_1F1B, 1}};
    enum { COUNT = sizeof shapes / sizeof *shapes };
    struct fixture fix;
    struct world world;
    struct outcome out[COUNT];
    (void)state;
    fix_open(&fix, "qwen2");
    json_object_clear(fix.adapter);
    world_init(&world, &fix, BASE_FP32, EVERYTHING);
    world.every_steps = 8;
    run_from(&fix, &world, &shapes[0], (struct resume){0}, &out[0]);
    for (size_t i = 1; i < COUNT; i++) { /* the second from the first's, the others from the second's */
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

/* Beside an fp32 base of the same file, on one device and on two, whose blocks are of unlike types. */
static void a_packed_base_gives_the_numbers_of_what_it_unpacks_to(void **state)
{
    (void)state;
    static const struct packed_model model = {.hidden = 512, .ffn = 512, .heads = 8, .kv_heads = 2};
    static const struct shape single = {PLACE_SINGLE, SCHEDULE_1F1B, 1},
                              halves = {PLACE_PIPELINE, SCHEDULE_SPLIT, 2};
    char dir[300], path[300], expected[400], adapter[400];
    struct scratch scratch;
    struct fixture fix;
    struct world world;
    struct err err;
    struct outcome fp32, one, two;
    uint64_t bytes[2];
    assert_int_equal(scratch_make(&scratch), 0);
    snprintf(path, sizeof path, "%.200s/packed.gguf", scratch.dir);
    snprintf(dir, sizeof dir, "%s/golden/llama", MOTLEY_TEST_DATA);
    snprintf(expected, sizeof expected, "%s/expected.json", dir);
    snprintf(adapter, sizeof adapter, "%s/adapter_init", dir);
    must(packed_model_write(&model, 31, path, &err));
    fix_open_files(&fix, path, expected, adapter);
    json_object_clear(fix.adapter); /* that one is for another shape */
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
        cmocka_unit_test(a_tied_embedding_is_trained_in_every_order),
        cmocka_unit_test(replicas_train_everything_as_pytorch_does),
        cmocka_unit_test(a_checkpoint_resumes_in_another_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
