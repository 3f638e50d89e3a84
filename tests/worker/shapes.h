/* Runs golden tiny models on real workers as pipelines in every order and as replicas, as the planner emits
 * them. Their memory is compared with the plan's, their numbers with those of one device. */
#ifndef MOTLEY_TESTS_SHAPES_H
#define MOTLEY_TESTS_SHAPES_H

#include "model/packed_model.h"
#include "planner/plan_fixture.h"
#include "worker/worker_fixture.h"

#include "planner/emit/pipeline.h"

enum { LAPS = 2, BLOCKS_MAX = 64 };

/* What is trained: adapters; adapters and the embedding; every parameter, also with the load-balancing loss.
 */
enum trained { ADAPTERS, ADAPTERS_AND_TABLE, EVERYTHING, EVERYTHING_BALANCED };

/* Stages of one rank each, or of several ranks that are replicas. */
struct shape {
    enum plan_placement placement;
    enum plan_schedule order;
    uint32_t ranks;
};

struct world {
    enum trained trained;
    int every_steps; /* steps between checkpoints; 0: none */
    struct workload w;
    struct cluster *cluster;
    struct problem problem;
};

/* Makes the golden rows and equal devices: the tests compare what an order computes. */
static inline void world_init_in(struct world *world, const struct fixture *fix, enum workload_base base,
                                 enum trained trained, enum workload_compute compute,
                                 enum plan_dtype boundary)
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
                                 .compute = compute,
                                 .boundary = boundary,
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

static inline void world_init(struct world *world, const struct fixture *fix, enum workload_base base,
                              enum trained trained)
{
    world_init_in(world, fix, base, trained, COMPUTE_FP32, PLAN_F32);
}

static inline void world_fini(struct world *world)
{
    problem_fini(&world->problem);
    cluster_destroy(world->cluster);
    workload_fini(&world->w);
}

/* Fills stage s of `count` stages of nearly equal size, and its members. */
static inline void stage_fill(struct candidate_stage *stage, const struct shape *shape, uint32_t s,
                              uint32_t count, uint32_t blocks)
{
    bool groups = shape->placement == PLACE_HYBRID || shape->placement == PLACE_DATA;
    uint32_t more =
        s == 0 ? shape->ranks - count : 0; /* the first stage has the ranks left over by the division */
    *stage = (struct candidate_stage){(int32_t)(s * blocks / count), (int32_t)((s + 1) * blocks / count),
                                      STAGE_REPLICAS, s % shape->ranks, 1};
    if (groups)
        stage->member_first = s == 0 ? 0 : s + shape->ranks - count;
    stage->member_count += groups ? more : 0;
}

/* Plans micro-batches of one row. */
static inline struct plan *shape_plan(const struct world *world, const struct shape *shape)
{
    struct err err;
    struct candidate_stage stages[BLOCKS_MAX];
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

/* What steps and log lines report about the loss scale. */
struct scales {
    double scale[FIX_STEPS]; /* 0: not reported */
    bool skipped[FIX_STEPS];
    uint32_t warnings; /* log lines that name a scale */
};

/* What a run is given: its shape, and the checkpoint that it starts from (without blobs it starts anew). */
struct run {
    const struct shape *shape;
    struct resume from;
    struct scales *scales; /* filled; or NULL */
};

static inline void prepare(void *arg, json_t *assign)
{
    struct run *run = arg;
    json_object_set_new(assign, "sample", json_pack("{s:[i,i,i,i,i]}", "ids", 65, 24, 88, 50, 84));
    if (run->from.blobs)
        start_there(&run->from, assign);
}

/* Compares the device's memory for each purpose with the plan's. Buffers may be smaller, because boundary
 * tensors are as large as their micro-batch and only one replica makes samples. */
static inline void check_memory(void *arg, struct fix_worker *workers, uint32_t rank, const json_t *event)
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

static inline void note_scale(struct scales *scales, const json_t *event)
{
    const char *type = json_string_value(json_object_get(event, "type"));
    json_int_t step = json_integer_value(json_object_get(event, "step"));
    if (strcmp(type, "step") == 0 && step < FIX_STEPS) {
        scales->scale[step] = json_number_value(json_object_get(event, "loss_scale"));
        scales->skipped[step] = json_is_true(json_object_get(event, "skipped"));
        assert_true(scales->skipped[step] == json_is_null(json_object_get(event, "grad_norm")));
    }
    if (strcmp(type, "log") == 0)
        scales->warnings += strstr(json_string_value(json_object_get(event, "text")), "loss scale") != NULL;
}

static inline void note_event(void *arg, struct fix_worker *workers, uint32_t rank, const json_t *event)
{
    struct run *run = arg;
    check_memory(arg, workers, rank, event);
    if (run->scales)
        note_scale(run->scales, event);
}

static inline void spec_train(json_t *spec, const struct fixture *fix, enum trained trained)
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

static inline void run_seen(struct fixture *fix, const struct world *world, const struct shape *shape,
                            struct resume from, struct scales *scales, struct outcome *out)
{
    struct run run = {shape, from, scales};
    json_t *spec = fix_spec(fix);
    json_object_set_new(spec, "sample", json_pack("{s:s, s:i}", "prompt", "x", "tokens", 12));
    json_object_set_new(spec, "checkpoint", json_pack("{s:i}", "every_steps", world->every_steps));
    spec_train(spec, fix, world->trained);
    static const char *const computes[] = {"fp32", "bf16", "fp16"};
    json_object_set_new(json_object_get(spec, "train"), "compute", json_string(computes[world->w.compute]));
    json_object_set_new(spec, "placement",
                        json_pack("{s:s}", "boundary", plan_dtype_name(world->w.boundary)));
    if (world->w.base == BASE_PACKED)
        json_object_set_new(json_object_get(spec, "method"), "base", json_string("packed"));
    struct plan *plan = shape_plan(world, shape);
    fix_run(fix, plan, spec, prepare, note_event, &run, out);
    if (json_array_size(out->failures))
        fail_msg("%s, %s on %u ranks: %s", plan_placement_name(plan->placement),
                 plan_schedule_name(shape->order), shape->ranks,
                 json_string_value(json_object_get(json_array_get(out->failures, 0), "text")));
    assert_int_equal(out->steps, 20 - from.step);
    assert_int_equal(out->done, shape->ranks);
    plan_destroy(plan);
    json_decref(spec);
}

static inline void run_from(struct fixture *fix, const struct world *world, const struct shape *shape,
                            struct resume from, struct outcome *out)
{
    run_seen(fix, world, shape, from, NULL, out);
}

/* Compares greedy samples, whose tokens must be equal. A failure also reports whether the losses have equal
 * bits, as those of pipelines do; if not, two nearly equal logits may have changed order. */
static inline void check_sample(const struct outcome *one, const struct outcome *out, size_t i,
                                const char *what)
{
    const json_t *ours = json_object_get(json_array_get(out->samples, i), "ids"),
                 *theirs = json_object_get(json_array_get(one->samples, i), "ids");
    bool bits = memcmp(one->loss, out->loss, out->steps * sizeof *one->loss) == 0;
    if (!json_equal(ours, theirs))
        fail_msg("%s, sample %zu: %s, not %s; losses %s", what, i, json_dumps(ours, 0), json_dumps(theirs, 0),
                 bits ? "of the same bits" : "of other bits");
}

static inline void check_near(const struct outcome *one, const struct outcome *out, const char *what)
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
        check_sample(one, out, i, what);
}

#endif
