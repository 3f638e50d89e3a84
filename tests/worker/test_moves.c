/* Tests checkpoints between shapes: written by replicas, by ranks that share out the state, by a server's
 * holder and by pipelines, each checkpoint holds every value once and resumes on the next shape with one
 * device's losses. */
#include "worker/shapes.h"

#include "worker/checkpoint/pieces.h"

static const struct shape shapes[] = {
    {.placement = PLACE_DATA, .ranks = 3, .gathered = 2},
    {.placement = PLACE_PIPELINE, .order = SCHEDULE_1F1B, .ranks = 3},
    {.placement = PLACE_SERVER, .ranks = 3, .gathered = 2, .idle = true},
    {.placement = PLACE_HYBRID, .order = SCHEDULE_1F1B, .ranks = 4},
    {.placement = PLACE_HYBRID, .order = SCHEDULE_INTERLEAVED, .ranks = 3, .gathered = 1, .at_most = true},
    {.placement = PLACE_DATA, .ranks = 4, .gathered = 1, .idle = true, .at_most = true},
    {.placement = PLACE_SINGLE, .order = SCHEDULE_1F1B, .ranks = 1},
};
/* Shapes with attention and experts apart, between other shapes. */
static const struct shape apart[] = {
    {.placement = PLACE_EXPERT,
     .ranks = 3,
     .expert = {.rows = {1, 1}, .share = {0.25, 0, 0.75}, .wave = 2, .delay = 1}},
    {.placement = PLACE_DATA, .ranks = 3, .gathered = 2},
    {.placement = PLACE_EXPERT, .ranks = 2, .expert = {.rows = {1}, .share = {0, 1}, .wave = 2, .delay = 1}},
    {.placement = PLACE_SINGLE, .order = SCHEDULE_1F1B, .ranks = 1},
};
enum { EVERY = 2 };
#define SHAPES(list) list, sizeof(list) / sizeof(*(list))

static int count_values(void *arg, const struct stored_piece *piece, struct err *err)
{
    (void)err;
    ((uint64_t *)arg)[piece->state] += piece->area.count;
    return 0;
}

/* Counts the values of each state that a checkpoint's indexes name. */
static void values_counted(const struct fixture *fix, const json_t *blobs, uint64_t *counts)
{
    struct err err;
    const char *name;
    json_t *value;
    memset(counts, 0, (STATE_MOMENT2 + 1) * sizeof(*counts));
    json_object_foreach ((json_t *)blobs, name, value) {
        struct buf lines;
        char path[400];
        if (strncmp(name, "pieces-", 7) != 0)
            continue;
        buf_init(&lines, 1 << 24);
        snprintf(path, sizeof(path), "%s/%s", fix->store.dir,
                 json_string_value(json_object_get(value, "sha256")));
        must(file_read_all(path, lines.limit, &lines, &err));
        must(piece_lines_read(buf_str(&lines), lines.size, count_values, counts, &err));
        buf_fini(&lines);
    }
}

/* Runs the shapes one after the other, each from the checkpoint of the one before. The last shape is one
 * device. */
static void check_moves(const char *model, enum trained trained, const struct shape *list, size_t count)
{
    struct fixture fix;
    struct world world;
    struct outcome one, out;
    uint64_t whole[STATE_MOMENT2 + 1] = {0}, counts[STATE_MOMENT2 + 1];
    fix_open(&fix, model);
    json_object_clear(fix.adapter);
    world_init(&world, &fix, BASE_FP32, trained);
    world.every_steps = EVERY;
    run_from(&fix, &world, &list[count - 1], (struct resume){0}, &one);
    values_counted(&fix, json_object_get(checkpoint_at(&one, EVERY), "blobs"), whole);
    assert_true(whole[STATE_MOMENT1] > 0);
    json_t *blobs = NULL;
    for (uint64_t i = 0; i < count; i++) { /* each shape resumes the checkpoint of the one before */
        run_from(&fix, &world, &list[i], (struct resume){i * EVERY, blobs}, &out);
        for (uint64_t t = i * EVERY; t < 20; t++)
            if (!(fabs(out.loss[t] - one.loss[t]) <= 2e-5 * one.loss[t]))
                fail_msg("%s, %s on %u ranks: %.9g in step %llu, one device has %.9g", model,
                         plan_placement_name(list[i].placement), list[i].ranks, out.loss[t],
                         (unsigned long long)t, one.loss[t]);
        json_decref(blobs);
        blobs = json_incref(json_object_get(checkpoint_at(&out, (i + 1) * EVERY), "blobs"));
        values_counted(&fix, blobs, counts);
        assert_memory_equal(counts, whole, sizeof(whole));
        outcome_fini(&out);
    }
    json_decref(blobs);
    outcome_fini(&one);
    world_fini(&world);
    fix_close(&fix);
}

static void a_trained_model_moves_between_all_shapes(void **state)
{
    (void)state;
    check_moves("qwen2", EVERYTHING, SHAPES(shapes)); /* its embedding is tied */
}

static void adapters_move_between_all_shapes(void **state)
{
    (void)state;
    check_moves("llama", ADAPTERS_AND_TABLE, SHAPES(shapes));
    check_moves("qwen2", ADAPTERS_AND_TABLE, SHAPES(shapes)); /* its embedding is tied */
    if (getenv("MOTLEY_EQUALITY"))
        check_moves("mixtral", ADAPTERS, SHAPES(shapes));
}

static void experts_apart_move_to_other_shapes_and_back(void **state)
{
    (void)state;
    check_moves("mixtral", EVERYTHING, SHAPES(apart));
    check_moves("mixtral", ADAPTERS, SHAPES(apart));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trained_model_moves_between_all_shapes),
        cmocka_unit_test(adapters_move_between_all_shapes),
        cmocka_unit_test(experts_apart_move_to_other_shapes_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
