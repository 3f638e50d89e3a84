/* Every order of a pipeline, as the planner emits it, on real workers: the losses of one device, the same
 * bits again, and the memory that was planned; of a packed base, the losses of the fp32 base that it unpacks
 * to.
 */
#include "model/packed_model.h"
#include "planner/plan_fixture.h"
#include "worker/worker_fixture.h"

#include "planner/emit/pipeline.h"

enum { LAPS = 2, BLOCKS_MAX = 64 };

struct world {
    struct workload w;
    struct cluster *cluster;
    struct problem problem;
};

/* The golden rows, and devices that are alike: what is tested is what the order computes. */
static void world_init(struct world *world, const struct fixture *fix, enum workload_base base, bool full)
{
    struct err err;
    const json_t *batches = json_object_get(fix->expected, "batches");
    uint32_t rows = 0;
    *world = (struct world){.cluster = cluster_create(&err)};
    world->w = (struct workload){.config = &fix->config,
                                 .method = full ? METHOD_FULL : METHOD_LORA,
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

/* Micro-batches of one row; stages as even as they can be. */
static struct plan *order_plan(const struct world *world, uint32_t ranks, enum plan_schedule order)
{
    struct err err;
    struct stage stages[BLOCKS_MAX];
    struct member members[FIX_RANKS];
    uint32_t blocks = (uint32_t)world->problem.block_count, count = ranks == 1 ? 1
                                                                    : order == SCHEDULE_INTERLEAVED
                                                                        ? ranks * LAPS
                                                                        : ranks;
    for (uint32_t s = 0; s < count; s++)
        stages[s] = (struct stage){(int32_t)(s * blocks / count), (int32_t)((s + 1) * blocks / count),
                                   STAGE_REPLICAS, s % ranks, 1};
    for (uint32_t r = 0; r < ranks; r++)
        members[r] = (struct member){.device = r,
                                     .state_share = 1,
                                     .window = order == SCHEDULE_GPIPE ? world->w.batch_rows : ranks - r,
                                     .delay = order == SCHEDULE_SPLIT ? r : 0};
    struct candidate candidate = {.placement = ranks == 1 ? PLACE_SINGLE : PLACE_PIPELINE,
                                  .schedule = order == SCHEDULE_GPIPE ? SCHEDULE_1F1B : order,
                                  .micro_batch_rows = 1,
                                  .stage_count = count,
                                  .member_count = ranks,
                                  .stages = stages,
                                  .members = members};
    struct plan *plan = pipeline_emit(&world->problem, &candidate, true, &err);
    if (!plan)
        fail_msg("%s on %u ranks: %s", plan_schedule_name(order), ranks, err.text);
    must(plan_seal(plan, &err));
    must(plan_check(plan, &err));
    assert_int_equal(plan->schedule, ranks == 1 ? SCHEDULE_1F1B : order);
    return plan;
}

static void add_prompt(void *arg, json_t *assign)
{
    (void)arg;
    json_object_set_new(assign, "sample", json_pack("{s:[i,i,i,i,i]}", "ids", 65, 24, 88, 50, 84));
}

/* What the device held of each purpose is what the plan says; of buffers at most, since boundary tensors are
 * as large as their micro-batch is. */
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
    if (held > said || held < said - said / 8)
        fail_msg("%u of %u: %lld bytes of buffers, %lld predicted", rank, *(uint32_t *)arg, held, said);
}

static void run_order(struct fixture *fix, const struct world *world, uint32_t ranks,
                      enum plan_schedule order, struct outcome *out)
{
    json_t *spec = fix_spec(fix);
    json_object_set_new(spec, "sample", json_pack("{s:s, s:i}", "prompt", "x", "tokens", 12));
    if (world->w.method == METHOD_FULL)
        json_object_set_new(spec, "method", json_pack("{s:s}", "kind", "full"));
    else
        json_object_set_new(json_object_get(spec, "method"), "dropout", json_real(0.1));
    if (world->w.base == BASE_PACKED)
        json_object_set_new(json_object_get(spec, "method"), "base", json_string("packed"));
    struct plan *plan = order_plan(world, ranks, order);
    fix_run(fix, plan, spec, add_prompt, check_memory, &ranks, out);
    if (json_array_size(out->failures))
        fail_msg("%s on %u ranks: %s", plan_schedule_name(order), ranks,
                 json_string_value(json_object_get(json_array_get(out->failures, 0), "text")));
    assert_int_equal(out->steps, 20);
    assert_int_equal(out->done, ranks);
    plan_destroy(plan);
    json_decref(spec);
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

static void check_orders(const char *model, bool full)
{
    static const enum plan_schedule orders[] = {SCHEDULE_INTERLEAVED, SCHEDULE_SPLIT};
    struct fixture fix;
    struct world world;
    struct outcome one, out, again;
    fix_open(&fix, model);
    json_object_clear(fix.adapter); /* as peft begins: with dropout what is golden no longer counts */
    world_init(&world, &fix, BASE_FP32, full);
    run_order(&fix, &world, 1, SCHEDULE_1F1B, &one);
    for (uint32_t ranks = 2; ranks <= 3; ranks++)
        for (size_t i = 0; i < 2; i++) {
            char what[80];
            snprintf(what, sizeof what, "%s, %s on %u ranks", model, plan_schedule_name(orders[i]), ranks);
            if (orders[i] == SCHEDULE_INTERLEAVED && ranks * LAPS > (uint32_t)world.problem.block_count) {
                print_message("skipped: %s, which has %d blocks\n", what, world.problem.block_count);
                continue;
            }
            run_order(&fix, &world, ranks, orders[i], &out);
            check_near(&one, &out, what);
            if (ranks == 2) {
                run_order(&fix, &world, ranks, orders[i], &again);
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

static void every_order_gives_one_devices_numbers(void **state)
{
    (void)state;
    check_orders("llama", false);
}

static void every_order_gives_one_devices_numbers_of_a_mixture(void **state)
{
    (void)state;
    check_orders("mixtral", false);
}

static void every_order_gives_one_devices_numbers_when_all_is_trained(void **state)
{
    (void)state;
    check_orders("mixtral", true);
}

/* Beside an fp32 base of the same file, on one device and on two, whose blocks are of unlike types. */
static void a_packed_base_gives_the_numbers_of_what_it_unpacks_to(void **state)
{
    (void)state;
    static const struct packed_model shape = {.hidden = 512, .ffn = 512, .heads = 8, .kv_heads = 2};
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
    must(packed_model_write(&shape, 31, path, &err));
    fix_open_files(&fix, path, expected, adapter);
    json_object_clear(fix.adapter); /* that one is for another shape */
    world_init(&world, &fix, BASE_FP32, false);
    struct plan *plan = order_plan(&world, 1, SCHEDULE_1F1B);
    bytes[0] = plan->ranks[0].memory_bytes;
    plan_destroy(plan);
    run_order(&fix, &world, 1, SCHEDULE_1F1B, &fp32);
    world_fini(&world);
    world_init(&world, &fix, BASE_PACKED, false);
    plan = order_plan(&world, 1, SCHEDULE_1F1B);
    bytes[1] = plan->ranks[0].memory_bytes;
    plan_destroy(plan);
    run_order(&fix, &world, 1, SCHEDULE_1F1B, &one);
    run_order(&fix, &world, 2, SCHEDULE_SPLIT, &two);
    print_message("losses %.6f … %.6f; %llu bytes planned with fp32, %llu packed\n", one.loss[0],
                  one.loss[19], (unsigned long long)bytes[0], (unsigned long long)bytes[1]);
    for (uint32_t t = 0; t < fp32.steps; t++)
        assert_true(fabs(one.loss[t] - fp32.loss[t]) <= 1e-6 * fp32.loss[t]);
    check_near(&one, &two, "packed, on 2 ranks");
    assert_true(bytes[1] < bytes[0]);
    outcome_fini(&fp32);
    outcome_fini(&one);
    outcome_fini(&two);
    world_fini(&world);
    fix_close(&fix);
    scratch_remove(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_gives_one_devices_numbers),
        cmocka_unit_test(every_order_gives_one_devices_numbers_of_a_mixture),
        cmocka_unit_test(every_order_gives_one_devices_numbers_when_all_is_trained),
        cmocka_unit_test(a_packed_base_gives_the_numbers_of_what_it_unpacks_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
