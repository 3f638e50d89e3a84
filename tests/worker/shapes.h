/* Runs golden tiny models on real workers as pipelines in every order and as replicas, as the planner emits
 * them. Compares the workers' memory with the plan's, and losses and norms with those of one device. */
#ifndef MOTLEY_TESTS_SHAPES_H
#define MOTLEY_TESTS_SHAPES_H

#include "common/rand.h"
#include "model/packed_model.h"
#include "planner/plan_fixture.h"
#include "worker/worker_fixture.h"

#include "planner/emit/expert.h"
#include "planner/emit/layered.h"
#include "planner/emit/pipeline.h"
#include "planner/emit/tensor.h"

enum { LAPS = 2, BLOCKS_MAX = 64 };

/* What is trained: adapters; adapters and the embedding; every parameter, also with the load-balancing loss.
 */
enum trained { ADAPTERS, ADAPTERS_AND_TABLE, EVERYTHING, EVERYTHING_BALANCED };

/* A division of the model among ranks: stages of one rank each, or of several ranks that are replicas. */
struct shape {
    enum plan_placement placement;
    enum plan_schedule order;
    uint32_t ranks;
    uint32_t gathered;  /* data, server, interleaved groups: buffers of gathered layers, if ranks share out
                           state;  hybrid: a group's members share out the state of their stage; 0: replicas */
    bool shares_layers; /* pipeline: each stage runs its next stage's first block for some micro-batches */
    bool idle;          /* the last rank keeps state and has no rows */
    bool at_most;       /* buffers may be smaller than planned, as micro-batches are */
    uint64_t seed;      /* data, server: shares and rows are drawn from it; 0: they are fixed */
    /* expert: rows of each micro-batch, and share of the experts, of each rank; micro-batches of a wave, how
     * many micro-batches experts run behind attention, and whether attention is recomputed */
    struct expert_shape {
        uint32_t rows[FIX_RANKS];
        double share[FIX_RANKS];
        uint32_t wave, delay;
        bool recompute;
    } expert;
    /* tensor: the first stage has `group` ranks, which take micro-batches `together` in turns; the others
     * have one each */
    uint32_t group, together;
    bool recompute; /* pipeline: the first half of each stage's blocks is recomputed */
    bool emulated;  /* the first rank has an emulated card, the others CPUs */
};

struct world {
    enum trained trained;
    int every_steps; /* steps between checkpoints; 0: none */
    struct workload w;
    struct cluster *cluster;
    struct problem problem;
};

/* Returns whether golden adapters are on tensors of experts, which go without dropout. */
static inline bool fix_drops(const struct fixture *fix)
{
    return !json_object_get(fix->lora, "target_parameters");
}

/* Sets the workload's adapters to those that the settings of a golden run mean. */
static inline void targets_set(struct workload *w, const json_t *lora)
{
    const struct lora_defaults defaults = {
        .rank = w->lora_rank, .alpha = 1, .where = "golden", .targets = "targets", .strict = true};
    struct lora_rules rules = {0};
    struct json_reader reader;
    struct err err;
    jr_init(&reader, lora, "golden", &err);
    lora_rules_read(&reader, "targets", 1024, 0, 1e6, &rules);
    must(lora_sites_of(&rules, &defaults, w->config, &w->lora, &err));
    lora_rules_fini(&rules);
    for (uint32_t bit = 1, mask = lora_sites_targets(&w->lora); bit <= LORA_EXPERT_DOWN; bit <<= 1)
        if (mask & bit)
            snprintf(w->targets[w->target_count++], sizeof(w->targets[0]), "%s", lora_target_name(bit));
}

/* Makes the golden rows and equal devices. The devices' speeds do not matter, since the tests compare what is
 * computed. */
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
                                 .lora_dropout = fix_drops(fix) ? 0.1 : 0,
                                 .base = base,
                                 .compute = compute,
                                 .boundary = boundary,
                                 .sequence_tokens = 128,
                                 .batch_rows = fix->batch_rows,
                                 .steps = 20,
                                 .rows = calloc(256, sizeof(*world->w.rows)),
                                 .sample_tokens = 24,
                                 .prompt_tokens = 5,
                                 .place = -1};
    targets_set(&world->w, fix->lora);
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
    for (uint32_t r = 0; r < 4; r++) {
        char node[16], name[32];
        snprintf(node, sizeof(node), "node%u", r);
        snprintf(name, sizeof(name), "node%u/cpu0", r);
        fixture_device(world->cluster, name, node, (uint64_t)1 << 30, 1);
        for (uint32_t other = 0; other < r; other++) {
            char to[16];
            snprintf(to, sizeof(to), "node%u", other);
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
    bool hybrid = shape->placement == PLACE_HYBRID, groups = hybrid || shape->placement == PLACE_DATA;
    uint32_t lap = hybrid ? 2 : count, at = s % lap;
    /* The first group has half of the ranks that are left over, or one more, and the last group the others.
     */
    uint32_t over = groups ? shape->ranks - lap : 0, first = lap > 1 ? (over + 1) / 2 : over;
    *stage = (struct candidate_stage){(int32_t)(s * blocks / count), (int32_t)((s + 1) * blocks / count),
                                      STAGE_REPLICAS, s % shape->ranks, 1};
    if (groups)
        stage->member_first = at == 0 ? 0 : at + first;
    stage->member_count += at == 0 ? first : at + 1 == lap ? over - first : 0;
}

/* Draws which rank has which micro-batch, and the ranks' shares of the state. A rank may have no micro-batch
 * or no share. */
static inline void members_draw(struct member *members, uint32_t ranks, uint32_t batch, uint64_t seed,
                                bool server)
{
    struct rand_stream stream;
    double sum = 0;
    rand_stream_init(&stream, 0x5a4e, seed);
    for (uint32_t r = 0; r < ranks; r++) {
        double share = rand_stream_below(&stream, 4) == 0 ? 0 : 0.05 + rand_stream_unit(&stream);
        members[r] = (struct member){.device = r, .window = 1, .state_share = share};
        sum += share;
    }
    for (uint32_t r = 0; r < ranks; r++)
        members[r].state_share = server ? r == 0 : sum > 0 ? members[r].state_share / sum : 1.0 / ranks;
    for (uint32_t k = 0; k < batch; k++) {
        struct member *one = &members[rand_stream_below(&stream, ranks)];
        one->count++;
        one->rows = 1;
    }
    /* A member without micro-batches must have a share of the state. */
    for (uint32_t r = 0; r < ranks; r++)
        if (members[r].count == 0 && members[r].state_share <= 0) {
            uint32_t from = 0;
            while (members[from].count < 2)
                from++;
            members[from].count--;
            members[r].count = members[r].rows = 1;
        }
}

/* Makes a plan whose ranks share out the state unevenly, or in which a server's holder keeps it.
 * Micro-batches have one row. */
static inline struct plan *shared_plan(const struct world *world, const struct shape *shape, struct err *err)
{
    uint32_t batch = world->w.batch_rows, workers = shape->ranks - shape->idle,
             all = (1u << shape->ranks) - 1;
    bool server = shape->placement == PLACE_SERVER;
    struct candidate_stage stage = {.block_end = world->problem.block_count,
                                    .kind = server ? STAGE_SERVER : STAGE_SHARDED,
                                    .member_count = shape->ranks};
    struct member members[FIX_RANKS];
    for (uint32_t r = 0; r < shape->ranks; r++) {
        uint32_t place =
            shape->idle && server ? (r + workers) % shape->ranks : r; /* the holder is the first */
        uint32_t count = place >= workers ? 0 : batch / workers + (place < batch % workers);
        members[r] = (struct member){.device = r,
                                     .rows = count > 0,
                                     .count = count,
                                     .window = 1,
                                     .state_share = server ? r == 0 : (double)(1u << r) / all};
    }
    if (shape->seed)
        members_draw(members, shape->ranks, batch, shape->seed, server);
    struct candidate candidate = {.placement = shape->placement,
                                  .micro_batch_rows = 1,
                                  .gathered_layers = shape->gathered,
                                  .stage_count = 1,
                                  .member_count = shape->ranks,
                                  .stages = &stage,
                                  .members = members};
    return layered_emit(&world->problem, &candidate, true, err);
}

/* Makes a plan of kind expert, with attention and experts on the ranks that the shape says. */
static inline struct plan *expert_plan(const struct world *world, const struct shape *shape, struct err *err)
{
    const struct expert_shape *e = &shape->expert;
    struct candidate_stage stage = {
        .block_end = world->problem.block_count, .kind = STAGE_EXPERT, .member_count = shape->ranks};
    struct member members[FIX_RANKS];
    struct candidate candidate = {.placement = PLACE_EXPERT,
                                  .stage_count = 1,
                                  .member_count = shape->ranks,
                                  .stages = &stage,
                                  .members = members};
    for (uint32_t r = 0; r < shape->ranks; r++) {
        candidate.micro_batch_rows += e->rows[r];
        members[r] = (struct member){.device = r,
                                     .rows = e->rows[r],
                                     .window = e->wave,
                                     .delay = e->delay,
                                     .recompute = e->recompute && e->rows[r],
                                     .state_share = 1,
                                     .expert_share = e->share[r]};
    }
    return expert_emit(&world->problem, &candidate, true, err);
}

/* Makes a plan whose first stage is a tensor group. Each rank has one key head, and the last rank also has
 * those left over; the columns are divided in the reverse order. */
static inline struct plan *tensor_plan(const struct world *world, const struct shape *shape, struct err *err)
{
    const struct model_config *config = &world->w.config[0];
    uint32_t count = 1 + shape->ranks - shape->group, blocks = (uint32_t)world->problem.block_count,
             unit = world->problem.column_unit, columns = config->ffn / unit;
    struct candidate_stage stages[FIX_RANKS];
    struct member members[FIX_RANKS];
    for (uint32_t s = 0; s < count; s++)
        stages[s] =
            (struct candidate_stage){(int32_t)(s * blocks / count), (int32_t)((s + 1) * blocks / count),
                                     STAGE_TENSOR, s ? shape->group + s - 1 : 0, s ? 1 : shape->group};
    for (uint32_t r = 0; r < shape->ranks; r++) {
        uint32_t n = shape->group;
        bool last = r + 1 == n, alone = r >= n;
        members[r] = (struct member){
            .device = r,
            .rows = 1,
            .window = r < n ? count : count - (r - n + 1),
            .state_share = 1,
            .recompute = shape->recompute,
            .tensor = {.kv_head_begin = alone ? 0 : r,
                       .kv_head_end = alone || last ? config->kv_heads : r + 1,
                       .column_begin = alone || r == 0 ? 0 : unit * (columns - (n - r)),
                       .column_end = alone || last ? config->ffn : unit * (columns - (n - r - 1))}};
    }
    struct candidate candidate = {.placement = PLACE_TENSOR,
                                  .micro_batch_rows = 1,
                                  .together = shape->together,
                                  .stage_count = count,
                                  .member_count = shape->ranks,
                                  .stages = stages,
                                  .members = members};
    return tensor_emit(&world->problem, &candidate, true, err);
}

static inline int32_t blocks_of(const struct candidate_stage *stage)
{
    return stage->block_end - stage->block_begin;
}

/* Makes the plan of the shape. Micro-batches have one row. */
static inline struct plan *shape_plan(const struct world *world, const struct shape *shape)
{
    struct err err;
    struct candidate_stage stages[BLOCKS_MAX];
    struct member members[FIX_RANKS];
    uint32_t blocks = (uint32_t)world->problem.block_count, ranks = shape->ranks, batch = world->w.batch_rows;
    bool data = shape->placement == PLACE_DATA, laps = shape->order == SCHEDULE_INTERLEAVED;
    uint32_t count = shape->placement == PLACE_HYBRID       ? (laps ? 2 * LAPS : 2)
                     : ranks == 1 || data                   ? 1
                     : shape->order == SCHEDULE_INTERLEAVED ? ranks * LAPS
                                                            : ranks;
    for (uint32_t s = 0; s < count; s++)
        stage_fill(&stages[s], shape, s, count, blocks);
    for (uint32_t r = 0; r < ranks; r++)
        members[r] =
            (struct member){.device = r,
                            .state_share = 1,
                            .rows = data,
                            .count = !data ? 0 : batch / ranks + (r < batch % ranks),
                            .window = data                             ? 1
                                      : shape->order == SCHEDULE_GPIPE ? batch
                                                                       : ranks - r,
                            .next_count = shape->shares_layers && r + 1 < ranks ? 1 + r % (batch - 1) : 0,
                            .delay = shape->order == SCHEDULE_SPLIT ? r : 0,
                            .recompute = shape->recompute,
                            .recompute_end = shape->recompute && count == ranks && blocks_of(&stages[r]) > 1
                                                 ? stages[r].block_begin + blocks_of(&stages[r]) / 2
                                                 : 0};
    struct candidate candidate = {.placement = ranks == 1 ? PLACE_SINGLE : shape->placement,
                                  .schedule = shape->order == SCHEDULE_GPIPE ? SCHEDULE_1F1B : shape->order,
                                  .micro_batch_rows = 1,
                                  .eager = shape->placement == PLACE_HYBRID && !laps,
                                  .gathered_layers =
                                      shape->placement == PLACE_HYBRID && laps ? shape->gathered : 0,
                                  .whole = shape->placement == PLACE_HYBRID && !shape->gathered,
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
    bool hybrid = shape->placement == PLACE_HYBRID;
    struct plan *plan = shape->placement == PLACE_EXPERT ? expert_plan(world, shape, &err)
                        : shape->group                   ? tensor_plan(world, shape, &err)
                        : shape->gathered && !hybrid     ? shared_plan(world, shape, &err)
                                                     : pipeline_emit(&world->problem, &candidate, true, &err);
    if (!plan)
        fail_msg("%s on %u ranks: %s", plan_schedule_name(shape->order), ranks, err.text);
    must(plan_seal(plan, &err));
    must(plan_check(plan, &err));
    assert_true(!shape->shares_layers || plan->ranks[0].block_end > plan->ranks[1].block_begin);
    assert_true(ranks == 1 || shape->gathered || shape->group || shape->placement == PLACE_EXPERT ||
                plan->schedule == shape->order);
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
    json_t *device = json_object_get(json_object_get(assign, "local"), "device");
    if (run->shape->emulated && json_integer_value(json_object_get(assign, "rank")) == 0)
        json_object_set_new(device, "kind", json_string("emulated"));
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
    if (held > said || (held < said && shape->placement == PLACE_EXPERT) ||
        (held < said - said / 8 && !shape->at_most &&
         (shape->placement == PLACE_PIPELINE || shape->gathered)))
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

/* `make equality` runs all steps of the golden run, and `make test` the first of them, twice those of the
 * warm-up. */
static inline void world_shorten(struct world *world)
{
    if (!getenv("MOTLEY_EQUALITY"))
        world->w.steps = 8;
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
    json_object_set_new(method, "dropout", json_real(fix_drops(fix) ? 0.1 : 0));
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
    json_object_set_new(json_object_get(spec, "train"), "steps", json_integer(world->w.steps));
    static const char *const computes[] = {"fp32", "bf16", "fp16"};
    json_object_set_new(json_object_get(spec, "train"), "compute", json_string(computes[world->w.compute]));
    json_object_set_new(spec, "placement",
                        json_pack("{s:s}", "boundary", plan_dtype_name(world->w.boundary)));
    if (world->w.base == BASE_PACKED)
        json_object_set_new(json_object_get(spec, "method"), "base", json_string("packed"));
    struct plan *plan = shape_plan(world, shape);
    fix_run(fix, plan, spec, prepare, note_event, &run, out);
    for (size_t i = 1; i < json_array_size(out->failures); i++)
        print_message("also: %s\n",
                      json_string_value(json_object_get(json_array_get(out->failures, i), "text")));
    if (json_array_size(out->failures))
        fail_msg("%s, %s on %u ranks: %s", plan_placement_name(plan->placement),
                 plan_schedule_name(shape->order), shape->ranks,
                 json_string_value(json_object_get(json_array_get(out->failures, 0), "text")));
    assert_int_equal(out->steps, world->w.steps - from.step);
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
 * bits, as losses of pipelines do; if not, two nearly equal logits may have changed order. */
static inline void check_sample(const struct outcome *one, const struct outcome *out, size_t i,
                                const char *what)
{
    const json_t *ours = json_object_get(json_array_get(out->samples, i), "ids"),
                 *theirs = json_object_get(json_array_get(one->samples, i), "ids");
    bool bits = memcmp(one->loss, out->loss, out->steps * sizeof(*one->loss)) == 0;
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
