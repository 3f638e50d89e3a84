/* Tests checkpoints by pieces without an engine. States are generated from a seed and divided among ranks in
 * every way that a plan can; some ranks write them and others read them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/rand.h"
#include "model/files/safetensors.h"
#include "support/must.h"
#include "worker/checkpoint/read.h"
#include "worker/checkpoint/write.h"

static const enum stage_state all_states[] = {STATE_VALUE, STATE_MOMENT1, STATE_MOMENT2};
enum { STATES = 3, TENSORS = 7, RANKS_MAX = 5, PIECES_MAX = 64, SEEDS = 60 };

/* --- made-up states --- */

struct tensor {
    char name[64];
    uint32_t rows, columns;
    bool vector;
};

static const struct tensor tensors[TENSORS] = {
    {"model.embed_tokens.weight", 61, 24, false},
    {"model.layers.0.input_layernorm.weight", 24, 1, true},
    {"model.layers.0.self_attn.q_proj.weight", 40, 24, false},
    {"model.layers.0.mlp.down_proj.weight", 24, 77, false},
    {"model.layers.1.self_attn.q_proj.lora_A.weight", 4, 300, false},
    {"model.layers.1.self_attn.q_proj.lora_B.weight", 900, 4, false},
    {"model.norm.weight", 700, 1, true},
};

/* Returns value (row, column) of a state of a tensor. */
static float made_up(uint32_t tensor, enum stage_state state, uint32_t row, uint32_t column)
{
    return (float)(state * 4096 + tensor * 512) + (float)row + (float)column / 1024;
}

struct held_piece {
    uint32_t tensor;
    struct area area;
    float *values[STATE_MOMENT2 + 1];
    uint64_t written; /* number of values written, over all states */
};

struct held {
    struct held_piece pieces[PIECES_MAX];
    uint32_t count;
};

static uint32_t held_count(void *arg)
{
    return ((struct held *)arg)->count;
}

static struct shard_piece held_at(void *arg, uint32_t index)
{
    const struct held_piece *piece = &((struct held *)arg)->pieces[index];
    const struct tensor *tensor = &tensors[piece->tensor];
    return (struct shard_piece){.of = {.name = tensor->name,
                                       .rows = piece->area.rows,
                                       .columns = piece->area.columns,
                                       .vector = tensor->vector,
                                       .row_begin = piece->area.row,
                                       .column_begin = piece->area.column,
                                       .whole_rows = tensor->rows,
                                       .whole_columns = tensor->columns},
                                .first = piece->area.first,
                                .count = piece->area.count};
}

static int held_read(void *arg, const struct shard_part *part, float *dst, struct err *err)
{
    const struct held_piece *piece = &((struct held *)arg)->pieces[part->piece];
    (void)err;
    assert_true(part->first + part->count <= piece->area.count);
    memcpy(dst, piece->values[part->state] + part->first, part->count * sizeof(*dst));
    return 0;
}

static int held_write(void *arg, const struct shard_part *part, const float *src, struct err *err)
{
    struct held_piece *piece = &((struct held *)arg)->pieces[part->piece];
    (void)err;
    assert_true(part->first + part->count <= piece->area.count);
    memcpy(piece->values[part->state] + part->first, src, part->count * sizeof(*src));
    piece->written += part->count;
    return 0;
}

static struct piece_source held_source(struct held *held)
{
    return (struct piece_source){held_count, held_at, held_read, held_write, held};
}

static void held_add(struct held *held, uint32_t tensor, struct area area, bool fill)
{
    if (area.count == 0)
        return;
    assert_true(held->count < PIECES_MAX);
    struct held_piece *piece = &held->pieces[held->count++];
    *piece = (struct held_piece){.tensor = tensor, .area = area};
    for (int s = 0; s < STATES; s++) {
        float *values = piece->values[all_states[s]] = calloc(area.count, sizeof(*values));
        for (uint64_t i = 0; fill && i < area.count; i++)
            values[i] = made_up(tensor, all_states[s], area.row + (uint32_t)((area.first + i) / area.columns),
                                area.column + (uint32_t)((area.first + i) % area.columns));
    }
}

static void held_fini(struct held *held)
{
    for (uint32_t p = 0; p < held->count; p++)
        for (int s = 0; s < STATES; s++)
            free(held->pieces[p].values[all_states[s]]);
    held->count = 0;
}

/* Draws cuts that divide `size` among `count` members at multiples of `grain`; members may get nothing. */
static void cuts_draw(struct rand_stream *stream, uint64_t size, uint32_t count, uint64_t grain,
                      uint64_t *cuts)
{
    cuts[0] = 0;
    cuts[count] = size;
    for (uint32_t i = 1; i < count; i++)
        cuts[i] = rand_stream_below(stream, (uint32_t)size + 1) / grain * grain;
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t j = i; j > 1 && cuts[j - 1] > cuts[j]; j--) {
            uint64_t cut = cuts[j];
            cuts[j] = cuts[j - 1];
            cuts[j - 1] = cut;
        }
}

/* Divides a tensor at random: one rank has all of it, or ranks have shares of its values, or ranks have rows
 * or columns whose parts are shared out again. */
static void tensor_divide(struct rand_stream *stream, uint32_t t, struct held *ranks, uint32_t count,
                          bool fill)
{
    const struct tensor *tensor = &tensors[t];
    struct area whole = area_whole(tensor->rows, tensor->columns);
    uint64_t cuts[RANKS_MAX + 1];
    uint32_t how = rand_stream_below(stream, tensor->vector ? 3 : 4);
    if (how == 0) {
        held_add(&ranks[rand_stream_below(stream, count)], t, whole, fill);
        return;
    }
    cuts_draw(stream,
              how == 1   ? whole.count
              : how == 2 ? tensor->rows
                         : tensor->columns,
              count, how == 1 ? SHARD_PART_VALUES : 1, cuts);
    for (uint32_t r = 0; r < count; r++) {
        struct area part = whole;
        uint64_t size = cuts[r + 1] - cuts[r];
        if (how == 1) {
            part.first = cuts[r];
            part.count = size;
        } else {
            part.row = how == 2 ? (uint32_t)cuts[r] : 0;
            part.column = how == 3 ? (uint32_t)cuts[r] : 0;
            part.rows = how == 2 ? (uint32_t)size : part.rows;
            part.columns = how == 3 ? (uint32_t)size : part.columns;
            part.count = (uint64_t)part.rows * part.columns;
        }
        if (how > 1 && part.count > SHARD_PART_VALUES && rand_stream_below(stream, 2)) {
            struct area rest = part;
            part.count = SHARD_PART_VALUES;
            rest.first += SHARD_PART_VALUES;
            rest.count -= SHARD_PART_VALUES;
            held_add(&ranks[(r + 1) % count], t, rest, fill);
        }
        held_add(&ranks[r], t, part, fill);
    }
}

static void state_divide(struct rand_stream *stream, struct held *ranks, uint32_t count, bool fill)
{
    memset(ranks, 0, RANKS_MAX * sizeof(*ranks));
    for (uint32_t t = 0; t < TENSORS; t++)
        tensor_divide(stream, t, ranks, count, fill);
}

/* --- a checkpoint in memory --- */

struct stored_file {
    char name[PIECE_FILE_NAME_MAX];
    uint8_t *data;
    size_t size;
};

struct checkpoint {
    struct stored_file *files;
    size_t count, capacity;
    struct buf lines;
    uint64_t fetched;
    uint32_t fetches;
};

static int file_keep(void *arg, const struct made_file *file, struct err *err)
{
    struct checkpoint *checkpoint = arg;
    must(ARRAY_RESERVE(checkpoint->files, checkpoint->capacity, checkpoint->count + 1, err), err);
    struct stored_file *stored = &checkpoint->files[checkpoint->count++];
    snprintf(stored->name, sizeof(stored->name), "%s", file->name);
    stored->size = file->bytes->size;
    stored->data = malloc(stored->size);
    memcpy(stored->data, file->bytes->data, stored->size);
    return buf_append(&checkpoint->lines, file->lines->data, file->lines->size, err);
}

static int file_fetch(void *arg, const char *name, uint64_t offset, size_t size, void *dst, struct err *err)
{
    struct checkpoint *checkpoint = arg;
    checkpoint->fetched += size;
    checkpoint->fetches++;
    for (size_t f = 0; f < checkpoint->count; f++)
        if (strcmp(checkpoint->files[f].name, name) == 0 && offset + size <= checkpoint->files[f].size) {
            memcpy(dst, checkpoint->files[f].data + offset, size);
            return 0;
        }
    return err_set(err, ERR_NOT_FOUND, "no file %s", name);
}

static void checkpoint_write(struct checkpoint *checkpoint, struct held *ranks, uint32_t count,
                             uint64_t file_bytes)
{
    struct err err;
    bool stores[PIECES_MAX];
    memset(checkpoint, 0, sizeof(*checkpoint));
    buf_init(&checkpoint->lines, 1 << 24);
    memset(stores, true, sizeof(stores));
    for (uint32_t r = 0; r < count; r++)
        for (int s = 0; s < 2; s++) {
            char prefix[32];
            struct piece_source source = held_source(&ranks[r]);
            snprintf(prefix, sizeof(prefix), "%s-%u", s == 0 ? "model" : "optimizer", r);
            struct piece_writer writer = {.source = &source,
                                          .stores = stores,
                                          .prefix = prefix,
                                          .file_bytes = file_bytes,
                                          .take = file_keep,
                                          .arg = checkpoint};
            check(pieces_write(&writer, &all_states[s], s == 0 ? 1 : 2, &err));
        }
}

static void checkpoint_fini(struct checkpoint *checkpoint)
{
    for (size_t f = 0; f < checkpoint->count; f++)
        free(checkpoint->files[f].data);
    free(checkpoint->files);
    buf_fini(&checkpoint->lines);
}

/* Makes a reader of the checkpoint's index, whose lines may have been changed. */
static int reader_open(struct checkpoint *checkpoint, uint32_t parts, struct piece_reader **reader,
                       struct err *err)
{
    must(piece_reader_create(file_fetch, checkpoint, parts, reader, err), err);
    if (piece_reader_add(*reader, buf_str(&checkpoint->lines), checkpoint->lines.size, NULL, NULL, err) < 0)
        return -1;
    return piece_reader_ready(*reader, err);
}

static void held_compare(const struct held *held, uint64_t seed)
{
    for (uint32_t p = 0; p < held->count; p++) {
        const struct held_piece *piece = &held->pieces[p];
        assert_int_equal(piece->written, STATES * piece->area.count);
        for (int s = 0; s < STATES; s++)
            for (uint64_t i = 0; i < piece->area.count; i++) {
                uint64_t at = piece->area.first + i;
                float want = made_up(piece->tensor, all_states[s],
                                     piece->area.row + (uint32_t)(at / piece->area.columns),
                                     piece->area.column + (uint32_t)(at % piece->area.columns));
                if (piece->values[all_states[s]][i] != want)
                    fail_msg("seed %llu: value %llu of %s differs", (unsigned long long)seed,
                             (unsigned long long)at, tensors[piece->tensor].name);
            }
    }
}

static void any_division_is_read_by_any_other(void **state)
{
    (void)state;
    struct err err;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct rand_stream stream;
        struct held writers[RANKS_MAX], readers[RANKS_MAX];
        struct checkpoint checkpoint;
        struct piece_reader *reader;
        rand_stream_init(&stream, seed, 1);
        uint32_t k = 1 + rand_stream_below(&stream, RANKS_MAX), m = 1 + rand_stream_below(&stream, RANKS_MAX);
        state_divide(&stream, writers, k, true);
        state_divide(&stream, readers, m, false);
        checkpoint_write(&checkpoint, writers, k, 1024ull << rand_stream_below(&stream, 8));
        for (uint32_t r = 0; r < m; r++) {
            struct piece_source source = held_source(&readers[r]);
            check(reader_open(&checkpoint, 1 + rand_stream_below(&stream, 4), &reader, &err));
            check(pieces_read(reader, &source, all_states, STATES, &err));
            piece_reader_destroy(reader);
            held_compare(&readers[r], seed);
        }
        for (uint32_t r = 0; r < RANKS_MAX; r++) {
            held_fini(&writers[r]);
            held_fini(&readers[r]);
        }
        checkpoint_fini(&checkpoint);
    }
}

/* safetensors reads every file, and the tensors in it are as the index says. */
static void files_are_safetensors(void **state)
{
    (void)state;
    struct err err;
    struct rand_stream stream;
    struct held writers[RANKS_MAX];
    struct checkpoint checkpoint;
    uint64_t values = 0, all = 0;
    rand_stream_init(&stream, 5, 2);
    state_divide(&stream, writers, 3, true);
    checkpoint_write(&checkpoint, writers, 3, 4096);
    for (size_t f = 0; f < checkpoint.count; f++) {
        struct safetensors *file;
        check(safetensors_open_memory(checkpoint.files[f].data, checkpoint.files[f].size, &file, &err));
        for (uint32_t t = 0; t < safetensors_count(file); t++)
            values += safetensors_at(file, t)->size / sizeof(float);
        safetensors_close(file);
        assert_true(checkpoint.files[f].size < 4096 + 16384);
    }
    for (uint32_t t = 0; t < TENSORS; t++)
        all += STATES * (uint64_t)tensors[t].rows * tensors[t].columns;
    assert_int_equal(values, all);
    for (uint32_t r = 0; r < 3; r++)
        held_fini(&writers[r]);
    checkpoint_fini(&checkpoint);
}

/* --- what is refused, by name --- */

/* A checkpoint of one rank, for a reader that wants all of it. */
struct wrong {
    struct held writer, reader;
    struct checkpoint checkpoint;
};

static void wrong_open(struct wrong *wrong)
{
    memset(wrong, 0, sizeof(*wrong));
    for (uint32_t t = 0; t < TENSORS; t++) {
        held_add(&wrong->writer, t, area_whole(tensors[t].rows, tensors[t].columns), true);
        held_add(&wrong->reader, t, area_whole(tensors[t].rows, tensors[t].columns), false);
    }
    checkpoint_write(&wrong->checkpoint, &wrong->writer, 1, 1 << 10);
}

static void wrong_expect(struct wrong *wrong, const char *const *words)
{
    struct err err = {0};
    struct piece_reader *reader = NULL;
    struct piece_source source = held_source(&wrong->reader);
    int result = reader_open(&wrong->checkpoint, 2, &reader, &err);
    if (result == 0)
        result = pieces_read(reader, &source, all_states, STATES, &err);
    assert_int_equal(result, -1);
    assert_int_equal(err.code, ERR_CORRUPT);
    for (; *words; words++)
        if (!strstr(err.text, *words))
            fail_msg("'%s' does not say '%s'", err.text, *words);
    piece_reader_destroy(reader);
    held_fini(&wrong->writer);
    held_fini(&wrong->reader);
    checkpoint_fini(&wrong->checkpoint);
}

#define refused(wrong, ...) wrong_expect(wrong, (const char *const[]){__VA_ARGS__, NULL})

/* Returns the index line that contains all these words. */
static char *line_with(struct wrong *wrong, const char *tensor, const char *what)
{
    char *line = (char *)wrong->checkpoint.lines.data;
    for (char *end; (end = strchr(line, '\n')); line = end + 1) {
        char *a = strstr(line, tensor), *b = strstr(line, what);
        if (a && a < end && b && b < end)
            return line;
    }
    fail_msg("no line of %s", tensor);
    return NULL;
}

static void line_remove(struct wrong *wrong, char *line)
{
    struct buf *lines = &wrong->checkpoint.lines;
    char *end = strchr(line, '\n') + 1;
    size_t after = (size_t)((char *)lines->data + lines->size - end);
    memmove(line, end, after + 1);
    lines->size -= (size_t)(end - line);
}

static void what_is_wrong_is_said_by_tensor_and_piece(void **state)
{
    (void)state;
    struct err err;
    struct wrong wrong;
    static const char q[] = "q_proj.weight", *const moment = "\"exp_avg_sq\"";
    wrong_open(
        &wrong); /* of 40 rows of 24 values the second file has 256 values, from row 10 and column 16 on */
    line_remove(&wrong, line_with(&wrong, q, "\"values\":[256,256]"));
    refused(&wrong, "no file holds value [10, 16] of model.layers.0.self_attn.q_proj.weight");

    wrong_open(&wrong);
    char *line = line_with(&wrong, "model.norm.weight", moment);
    line_remove(&wrong, line);
    line = line_with(&wrong, "model.norm.weight", moment);
    line_remove(&wrong, line);
    line = line_with(&wrong, "model.norm.weight", moment);
    line_remove(&wrong, line);
    refused(&wrong, "no file holds model.norm.weight.exp_avg_sq");

    wrong_open(&wrong); /* one piece moves over another */
    char *values = strstr(line_with(&wrong, q, "\"values\":[256,256]"), "[256,256]");
    memcpy(values, "[255,256]", 9);
    refused(&wrong, "both hold 1 of the values of model.layers.0.self_attn.q_proj.weight");

    wrong_open(&wrong); /* the same values with another checksum are no replica's */
    line = line_with(&wrong, q, "\"values\":[256,256]");
    char copy[1024];
    snprintf(copy, sizeof(copy), "%.*s", (int)(strchr(line, '\n') + 1 - line), line);
    check(buf_text(&wrong.checkpoint.lines, copy, &err));
    char *sum =
        strstr((char *)wrong.checkpoint.lines.data + wrong.checkpoint.lines.size - strlen(copy), "\"]") - 1;
    *sum = *sum == '0' ? '1' : '0';
    refused(&wrong, "both hold 256 of the values of model.layers.0.self_attn.q_proj.weight");

    wrong_open(&wrong);
    wrong.checkpoint.files[4].data[wrong.checkpoint.files[4].size - 1] ^= 1;
    refused(&wrong, "values ", " of model.", " in model-0-4.safetensors are not those that were stored");

    wrong_open(&wrong); /* another LoRA rank */
    for (int parts = 0; parts < 2; parts++) {
        values = strstr(line_with(&wrong, "lora_A", "\"whole\":[4,300]"), "[4,300]");
        memcpy(values, "[8,300]", 7);
    }
    refused(&wrong, "lora_A.weight", "[8, 300]", "[4, 300]");

    wrong_open(&wrong); /* a line without "values" */
    memcpy(strstr((char *)wrong.checkpoint.lines.data, "\"values\""), "\"Values\"", 8);
    refused(&wrong, "line 1 describes no piece");
}

/* Two ranks stored the same piece. */
static void equal_pieces_of_replicas_count_once(void **state)
{
    (void)state;
    struct err err;
    struct wrong pair;
    struct piece_reader *reader;
    wrong_open(&pair);
    size_t size = pair.checkpoint.lines.size;
    char *copy = strdup(buf_str(&pair.checkpoint.lines));
    check(buf_append(&pair.checkpoint.lines, copy, size, &err));
    struct piece_source source = held_source(&pair.reader);
    check(reader_open(&pair.checkpoint, 2, &reader, &err));
    check(pieces_read(reader, &source, all_states, STATES, &err));
    held_compare(&pair.reader, 0);
    piece_reader_destroy(reader);
    held_fini(&pair.writer);
    held_fini(&pair.reader);
    checkpoint_fini(&pair.checkpoint);
    free(copy);
}

/* --- size --- */

/* Of a tensor of 3 GiB, a rank that wants the last megabyte fetches only the parts that hold it. */
static void a_range_of_a_large_tensor_is_all_that_is_fetched(void **state)
{
    (void)state;
    struct err err;
    const uint32_t rows = 196608, columns = 4096, file_rows = 2048; /* files of 32 MiB */
    struct checkpoint checkpoint = {0};
    struct piece_reader *reader;
    uint8_t sums[PIECE_FILE_BYTES / PIECE_SUM_BYTES][DIGEST_SIZE];
    float *zeros = calloc(1, PIECE_FILE_BYTES), *got = malloc(1 << 20);
    check(piece_sums(zeros, PIECE_FILE_BYTES / sizeof(*zeros), sums, &err));
    buf_init(&checkpoint.lines, 1 << 20);
    struct stored_piece piece = {.tensor = "model.embed_tokens.weight",
                                 .whole_rows = rows,
                                 .whole_columns = columns,
                                 .file = "model-0-0.safetensors",
                                 .sum_count = PIECE_FILE_BYTES / PIECE_SUM_BYTES,
                                 .sums = sums};
    piece.area = area_whole(rows, columns);
    piece.area.count = (uint64_t)file_rows * columns;
    for (uint32_t row = 0; row < rows; row += file_rows, piece.area.first += piece.area.count)
        check(piece_line_add(&checkpoint.lines, &piece,
                             &err)); /* every line names the same file, since all values are equal */
    struct stored_file file = {
        .name = "model-0-0.safetensors", .data = (uint8_t *)zeros, .size = PIECE_FILE_BYTES};
    checkpoint.files = &file;
    checkpoint.count = 1;
    check(reader_open(&checkpoint, 2, &reader, &err));
    struct piece_wanted wanted = {.tensor = piece.tensor,
                                  .whole_rows = rows,
                                  .whole_columns = columns,
                                  .area = area_whole(rows, columns)};
    check(piece_reader_check(reader, &wanted, &err));
    wanted.area.first = wanted.area.count - (1 << 18);
    wanted.area.count = 1 << 18;
    got[0] = got[(1 << 18) - 1] = 1;
    check(piece_reader_read(reader, &wanted, got, &err));
    assert_true(got[0] == 0 && got[(1 << 18) - 1] == 0);
    assert_int_equal(checkpoint.fetched, PIECE_SUM_BYTES);
    piece_reader_destroy(reader);
    buf_fini(&checkpoint.lines);
    free(zeros);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_division_is_read_by_any_other),
        cmocka_unit_test(files_are_safetensors),
        cmocka_unit_test(what_is_wrong_is_said_by_tensor_and_piece),
        cmocka_unit_test(equal_pieces_of_replicas_count_once),
        cmocka_unit_test(a_range_of_a_large_tensor_is_all_that_is_fetched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
