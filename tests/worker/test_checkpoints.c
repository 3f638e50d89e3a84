/* Tests checkpoints of many files, a store and a disk that fill, a worker that is told of a damaged index,
 * and what fails after the last checkpoint. */
#include <signal.h>
#include <sys/resource.h>

#include "worker/shapes.h"

#include "common/rand.h"
#include "worker/checkpoint/read.h"
#include "worker/checkpoint/spool.h"
#include "worker/checkpoint/write.h"

/* --- many files --- */

enum { STEP = 8, TENSORS_MAX = 256, FILES_WANTED = 2000, STATES = 3 };
static const enum stage_state all_states[STATES] = {STATE_VALUE, STATE_MOMENT1, STATE_MOMENT2};

/* The tensors of a checkpoint, which a test stores again in other files. */
struct tensors {
    struct fixture *fix;
    struct parameter of[TENSORS_MAX];
    float *values[TENSORS_MAX][STATE_MOMENT2 + 1];
    uint32_t count, files;
    json_t *blobs;
    struct buf lines;
};

static void stored_read(const struct fixture *fix, const json_t *blobs, const char *name, struct buf *out)
{
    struct err err;
    char path[400];
    snprintf(path, sizeof(path), "%s/%s", fix->store.dir,
             json_string_value(json_object_get(json_object_get(blobs, name), "sha256")));
    buf_init(out, 1 << 26);
    must(file_read_all(path, out->limit, out, &err));
}

static int tensor_take(void *arg, const struct stored_piece *piece, struct err *err)
{
    struct tensors *all = arg;
    struct buf bytes;
    uint32_t t = 0;
    (void)err;
    while (t < all->count && strcmp(all->of[t].name, piece->tensor) != 0)
        t++;
    assert_true(t < TENSORS_MAX);
    assert_true(piece->area.count == (uint64_t)piece->whole_rows * piece->whole_columns);
    if (t == all->count) {
        all->count++;
        all->of[t] = (struct parameter){.name = strdup(piece->tensor),
                                        .rows = piece->whole_rows,
                                        .columns = piece->whole_columns,
                                        .vector = piece->vector,
                                        .whole_rows = piece->whole_rows,
                                        .whole_columns = piece->whole_columns};
    }
    stored_read(all->fix, all->blobs, piece->file, &bytes);
    all->values[t][piece->state] = malloc(piece->area.count * sizeof(float));
    memcpy(all->values[t][piece->state], bytes.data + piece->offset, piece->area.count * sizeof(float));
    buf_fini(&bytes);
    return 0;
}

static uint32_t tensors_count(void *arg)
{
    return ((struct tensors *)arg)->count;
}

static struct shard_piece tensors_at(void *arg, uint32_t index)
{
    const struct parameter *of = &((struct tensors *)arg)->of[index];
    return (struct shard_piece){.of = *of, .count = (uint64_t)of->rows * of->columns};
}

static int tensors_read(void *arg, const struct shard_part *part, float *dst, struct err *err)
{
    (void)err;
    memcpy(dst, ((struct tensors *)arg)->values[part->piece][part->state] + part->first,
           part->count * sizeof(*dst));
    return 0;
}

/* Adds a file to the store without syncing the disk, which would take most of the test's time. */
static void stored_add(struct tensors *all, const char *name, const struct buf *bytes)
{
    struct err err;
    char sha256[65], path[400];
    must(digest_sha256_hex(bytes->data, bytes->size, sha256, &err));
    snprintf(path, sizeof(path), "%s/%s", all->fix->store.dir, sha256);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes->data, 1, bytes->size, file), bytes->size);
    assert_int_equal(fclose(file), 0);
    json_object_set_new(all->blobs, name,
                        json_pack("{s:s, s:I}", "sha256", sha256, "size", (json_int_t)bytes->size));
}

static int tensors_keep(void *arg, const struct made_file *file, struct err *err)
{
    struct tensors *all = arg;
    stored_add(all, file->name, file->bytes);
    all->files++;
    return buf_append(&all->lines, file->lines->data, file->lines->size, err);
}

/* Stores the checkpoint's tensors in files of 1 KiB. */
static void divide(struct tensors *all)
{
    struct err err;
    struct buf lines;
    bool stores[TENSORS_MAX];
    struct piece_source source = {tensors_count, tensors_at, tensors_read, NULL, all};
    struct piece_writer writer = {.source = &source,
                                  .stores = stores,
                                  .prefix = "optimizer-7",
                                  .file_bytes = 1024,
                                  .take = tensors_keep,
                                  .arg = all};
    memset(stores, true, sizeof(stores));
    stored_read(all->fix, all->blobs, "pieces-0-0.jsonl", &lines);
    must(piece_lines_read(buf_str(&lines), lines.size, tensor_take, all, &err));
    buf_fini(&lines);
    buf_init(&all->lines, 1 << 24);
    json_t *position = json_incref(json_object_get(all->blobs, "state.json"));
    json_object_clear(all->blobs);
    json_object_set_new(all->blobs, "state.json", position);
    must(pieces_write(&writer, all_states, STATES, &err));
    stored_add(all, "pieces-7-0.jsonl", &all->lines);
}

static void tensors_fini(struct tensors *all)
{
    for (uint32_t t = 0; t < all->count; t++) {
        free((char *)all->of[t].name);
        for (int s = 0; s < STATES; s++)
            free(all->values[t][all_states[s]]);
    }
    json_decref(all->blobs);
    buf_fini(&all->lines);
}

/* Resumes the checkpoint on ranks that share out the state. */
static void goes_on(struct fixture *fix, const struct world *world, json_t *blobs, const struct outcome *one)
{
    struct outcome out;
    run_from(fix, world, &(struct shape){.placement = PLACE_DATA, .ranks = 2, .gathered = 2},
             (struct resume){STEP, blobs}, &out);
    for (uint64_t t = STEP; t < 20; t++)
        assert_true(fabs(out.loss[t] - one->loss[t]) <= 2e-5 * one->loss[t]);
    outcome_fini(&out);
}

static void a_checkpoint_of_2000_files_resumes(void **state)
{
    (void)state;
    struct fixture fix;
    struct world world;
    struct outcome one;
    fix_open(&fix, "llama");
    json_object_clear(fix.adapter);
    world_init(&world, &fix, BASE_FP32, EVERYTHING);
    world.every_steps = STEP;
    run_from(&fix, &world, &(struct shape){.order = SCHEDULE_1F1B, .ranks = 1}, (struct resume){0}, &one);
    struct tensors all = {.fix = &fix,
                          .blobs = json_copy(json_object_get(checkpoint_at(&one, STEP), "blobs"))};
    divide(&all);
    print_message("%u files\n", all.files);
    assert_true(all.files >= FILES_WANTED);
    goes_on(&fix, &world, all.blobs, &one);
    tensors_fini(&all);
    outcome_fini(&one);
    world_fini(&world);
    fix_close(&fix);
}

/* --- no room --- */

struct filling {
    struct blob_server *store;
    uint32_t warnings;
};

/* Leaves the store room for one file when the second checkpoint, of two ranks' files, begins. */
static void fill_store(void *arg, struct fix_worker *workers, uint32_t rank, const json_t *event)
{
    struct filling *filling = arg;
    const char *type = json_string_value(json_object_get(event, "type")),
               *text = json_string_value(json_object_get(event, "text"));
    (void)workers;
    (void)rank;
    if (strcmp(type, "checkpoint") == 0 && json_integer_value(json_object_get(event, "step")) == STEP)
        atomic_store(&filling->store->room, 2);
    filling->warnings += strcmp(type, "log") == 0 && text && strstr(text, "checkpoint of step 16");
}

static void a_store_that_fills_within_a_checkpoint_leaves_the_one_before(void **state)
{
    (void)state;
    struct fixture fix;
    struct outcome out, rest;
    fix_open(&fix, "llama");
    json_t *spec = fix_spec(&fix);
    json_object_set_new(spec, "checkpoint", json_pack("{s:i}", "every_steps", STEP));
    struct plan *plan = fix_plan(&fix, 2, 2);
    struct filling filling = {.store = &fix.store};
    fix_run(&fix, plan, spec, NULL, fill_store, &filling, &out);
    assert_int_equal(out.steps, 20); /* the run goes on, and says what failed */
    assert_true(filling.warnings >= 1);
    assert_int_equal(json_array_size(out.checkpoints), 1);
    assert_true(json_array_size(out.failures) >= 1); /* the last checkpoint must be written */
    atomic_store(&fix.store.full, false);
    struct resume resume = {STEP, json_object_get(checkpoint_at(&out, STEP), "blobs")};
    fix_run(&fix, plan, spec, start_there, NULL, &resume, &rest);
    assert_int_equal(rest.done, 2);
    for (uint64_t t = STEP; t < 20; t++)
        assert_memory_equal(&rest.loss[t], &out.loss[t], sizeof(double));
    outcome_fini(&out);
    outcome_fini(&rest);
    plan_destroy(plan);
    json_decref(spec);
    fix_close(&fix);
}

/* --- after the last step --- */

struct long_rows {
    struct resume resume;
    char eval[65];
};

static void start_there_with_long_rows(void *arg, json_t *assign)
{
    struct long_rows *rows = arg;
    start_there(&rows->resume, assign);
    json_object_set_new(json_object_get(assign, "data"), "eval", json_string(rows->eval));
}

/* Held-out rows are longer than the plan allows, and the last step makes the weights larger than fp16 holds.
 */
static void what_fails_after_the_last_step_leaves_the_adapter_and_a_warning(void **state)
{
    (void)state;
    enum { LONG = 2000 };
    struct fixture fix;
    struct outcome first, out;
    struct err err;
    struct long_rows given = {.resume = {.step = 1}};
    uint64_t offset[] = {0, LONG};
    int32_t ids[LONG] = {1, 2}, labels[LONG] = {1, 2};
    const struct rows rows = {.count = 1, .offset = offset, .ids = ids, .labels = labels};
    struct buf file = {.limit = 1 << 20};
    fix_open(&fix, "llama");
    json_t *spec = fix_spec(&fix), *train = json_object_get(spec, "train");
    struct plan *plan = fix_plan(&fix, 2, 2);
    json_object_set_new(spec, "checkpoint", json_pack("{s:i}", "every_steps", 1));
    json_object_set_new(spec, "eval", json_pack("{s:i}", "every_steps", 100));
    json_object_set_new(train, "steps", json_integer(2));
    json_object_set_new(train, "warmup_steps", json_integer(0));
    fix_run(&fix, plan, spec, NULL, NULL, NULL, &first);
    assert_string_equal(first.warnings, "");
    assert_true(json_is_true(json_object_get(checkpoint_at(&first, 2), "best")));
    must(rows_save(&rows, &file, &err));
    must(blob_server_add(&fix.store, file.data, file.size, given.eval));
    given.resume.blobs = json_object_get(checkpoint_at(&first, 1), "blobs");
    json_object_set_new(train, "learning_rate", json_real(1000));
    json_object_set_new(train, "weight_decay", json_real(1000));
    json_object_set_new(spec, "result", json_pack("{s:s, s:s}", "kind", "merged", "dtype", "fp16"));
    fix_run(&fix, plan, spec, start_there_with_long_rows, NULL, &given, &out);
    assert_int_equal(json_array_size(out.failures), 0);
    assert_int_equal(out.done, 2);
    assert_int_equal(json_array_size(out.checkpoints), 1);
    assert_int_equal(json_object_size(out.artifacts), 2);
    assert_non_null(json_object_get(out.artifacts, "adapter/adapter_model.safetensors"));
    static const char *const words[] = {"evaluation after 2 steps", "2000", "result.kind merged",
                                        "fp16 cannot"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (!strstr(out.warnings, words[i]))
            fail_msg("\"%s\" does not say \"%s\"", out.warnings, words[i]);
    buf_fini(&file);
    outcome_fini(&first);
    outcome_fini(&out);
    plan_destroy(plan);
    json_decref(spec);
    fix_close(&fix);
}

/* --- little memory --- */

struct little {
    json_int_t bytes; /* limits.checkpoint; 0: the default */
    bool no_folder;
    struct resume from;
};

static void give_little(void *arg, json_t *assign)
{
    const struct little *little = arg;
    if (little->bytes)
        json_object_set_new(json_object_get(assign, "limits"), "checkpoint", json_integer(little->bytes));
    if (little->no_folder)
        json_object_del(json_object_get(assign, "local"), "cache");
    if (little->from.blobs)
        start_there((void *)&little->from, assign);
}

/* Returns the SHA-256 of the safetensors file of the checkpoint of step STEP. */
static const char *sha256_at(const struct outcome *out, const char *name)
{
    return json_string_value(
        json_object_get(json_object_get(json_object_get(checkpoint_at(out, STEP), "blobs"), name), "sha256"));
}

/* With 4 KiB of memory for its files a checkpoint has many files. Most wait on the disk or, without a folder,
 * are stored at once. The checkpoint resumes all the same, and the adapter's file has the same bytes. */
static void a_checkpoint_in_little_memory_is_the_same(void **state)
{
    (void)state;
    struct fixture fix;
    struct outcome much, out, rest;
    fix_open(&fix, "llama");
    for (int full = 0; full < 2; full++)
        for (int no_folder = 0; no_folder <= full; no_folder++) {
            json_t *spec = fix_spec(&fix);
            json_object_set_new(spec, "checkpoint", json_pack("{s:i}", "every_steps", STEP));
            json_object_set_new(json_object_get(spec, "train"), "steps", json_integer(STEP + 2));
            if (full) {
                json_object_set_new(spec, "method", json_pack("{s:s}", "kind", "full"));
                json_object_clear(fix.adapter);
            }
            struct plan *three = fix_plan(&fix, 3, 2), *two = fix_plan(&fix, 2, 2);
            struct little little = {.bytes = 4096, .no_folder = no_folder};
            fix_run(&fix, three, spec, give_little, NULL, &(struct little){0}, &much);
            fix_run(&fix, three, spec, give_little, NULL, &little, &out);
            assert_int_equal(out.done, 3);
            json_t *few = json_object_get(checkpoint_at(&much, STEP), "blobs"),
                   *many = json_object_get(checkpoint_at(&out, STEP), "blobs");
            assert_true(json_object_size(many) > json_object_size(few) + 10);
            if (!full)
                assert_string_equal(sha256_at(&much, "adapter_model.safetensors"),
                                    sha256_at(&out, "adapter_model.safetensors"));
            little.from = (struct resume){STEP, many};
            fix_run(&fix, two, spec, give_little, NULL, &little, &rest);
            assert_int_equal(rest.done, 2);
            for (uint64_t t = STEP; t < STEP + 2; t++)
                assert_true(fabs(rest.loss[t] - much.loss[t]) <= 2e-5 * much.loss[t]);
            outcome_fini(&much);
            outcome_fini(&out);
            outcome_fini(&rest);
            plan_destroy(three);
            plan_destroy(two);
            json_decref(spec);
        }
    fix_close(&fix);
}

/* --- a full disk --- */

/* Bytes read from any place of a spool are those that were appended. Bytes that do not fit are refused, and
 * the rest stays unchanged. */
static void a_spool_keeps_what_fits_its_memory_and_its_disk(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    struct scratch scratch;
    struct err err;
    struct rlimit before, limit;
    struct rand_stream stream;
    struct spool *spool;
    uint8_t *data = malloc(BYTES), *got = malloc(BYTES);
    uint64_t size = 0, at;
    rand_stream_init(&stream, 34, 0);
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)rand_stream_u32(&stream);
    assert_int_equal(scratch_make(&scratch), 0);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the limit fails as on a full disk */
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 600000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    must(spool_create(scratch.dir, 100000, &spool, &err));
    bool refused = false;
    while (size < BYTES - 70000 && !refused) {
        size_t count = 1 + rand_stream_below(&stream, 60000);
        refused = spool_append(spool, data + size, count, &at, &err) < 0;
        if (!refused) {
            assert_int_equal(at, size);
            size += count;
        }
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(refused);
    assert_int_equal(err.code, ERR_IO);
    assert_true(size > 500000);
    for (int i = 0; i < 200; i++) {
        size_t begin = rand_stream_below(&stream, (uint32_t)size),
               count = rand_stream_below(&stream, (uint32_t)(size - begin)) + 1;
        must(spool_read(spool, begin, got, count, &err));
        assert_memory_equal(got, data + begin, count);
    }
    must(spool_append(spool, data + size, 1000, &at, &err)); /* there is room again */
    must(spool_read(spool, at, got, 1000, &err));
    assert_memory_equal(got, data + size, 1000);
    assert_int_equal(spool_read(spool, size, got, 1001, &err), -1);
    spool_destroy(spool);
    must(spool_create(NULL, 1000, &spool, &err));
    must(spool_append(spool, data, 900, &at, &err));
    assert_int_equal(spool_append(spool, data, 200, &at, &err), -1);
    spool_destroy(spool);
    scratch_remove(&scratch);
    free(data);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_of_2000_files_resumes),
        cmocka_unit_test(what_fails_after_the_last_step_leaves_the_adapter_and_a_warning),
        cmocka_unit_test(a_store_that_fills_within_a_checkpoint_leaves_the_one_before),
        cmocka_unit_test(a_checkpoint_in_little_memory_is_the_same),
        cmocka_unit_test(a_spool_keeps_what_fits_its_memory_and_its_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
