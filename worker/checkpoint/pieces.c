#include "worker/checkpoint/pieces.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"

static const struct {
    const char *name, *suffix;
} states[] = {[STATE_VALUE] = {"value", ""},
              [STATE_MOMENT1] = {"exp_avg", ".exp_avg"},
              [STATE_MOMENT2] = {"exp_avg_sq", ".exp_avg_sq"}};
enum { STATE_NAMES = sizeof(states) / sizeof(*states) };

const char *piece_suffix(enum stage_state state)
{
    return states[state].suffix;
}

uint32_t piece_sum_count(uint64_t values)
{
    return (uint32_t)((values * sizeof(float) + PIECE_SUM_BYTES - 1) / PIECE_SUM_BYTES);
}

int piece_sums(const void *values, uint64_t count, uint8_t (*sums)[DIGEST_SIZE], struct err *err)
{
    const uint8_t *bytes = values;
    for (uint64_t at = 0, size = count * sizeof(float); at < size; at += PIECE_SUM_BYTES, sums++)
        if (digest_sha256(bytes + at, size - at < PIECE_SUM_BYTES ? (size_t)(size - at) : PIECE_SUM_BYTES,
                          *sums, err) < 0)
            return -1;
    return 0;
}

/* --- a line --- */

int piece_line_add(struct buf *index, const struct stored_piece *piece, struct err *err)
{
    const struct area *area = &piece->area;
    json_t *sums = json_array();
    for (uint32_t s = 0; s < piece->sum_count; s++) {
        char hex[DIGEST_HEX_SIZE];
        digest_hex(piece->sums[s], DIGEST_SIZE, hex);
        json_array_append_new(sums, json_string(hex));
    }
    json_t *whole = piece->vector
                        ? json_pack("[I]", (json_int_t)piece->whole_rows)
                        : json_pack("[I,I]", (json_int_t)piece->whole_rows, (json_int_t)piece->whole_columns);
    json_t *line = json_pack(
        "{s:s, s:s, s:o, s:[I,I,I,I], s:[I,I], s:s, s:I, s:o}", "tensor", piece->tensor, "state",
        states[piece->state].name, "whole", whole, "part", (json_int_t)area->row, (json_int_t)area->column,
        (json_int_t)area->rows, (json_int_t)area->columns, "values", (json_int_t)area->first,
        (json_int_t)area->count, "file", piece->file, "offset", (json_int_t)piece->offset, "sha256", sums);
    if (!line || json_array_size(sums) != piece->sum_count) {
        json_decref(line);
        return err_set(err, ERR_NOMEM, "no memory for a line about %s", piece->tensor);
    }
    int result = json_print(line, false, index, err);
    json_decref(line);
    return result < 0 ? -1 : buf_append(index, "\n", 1, err);
}

/* Reads an array of `count` whole numbers from 0 to `limit`. */
static bool pieces_numbers_read(const json_t *line, const char *key, size_t count, uint64_t limit,
                                uint64_t *out)
{
    const json_t *list = json_object_get(line, key);
    if (json_array_size(list) != count)
        return false;
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0 ||
            (uint64_t)json_integer_value(item) > limit)
            return false;
        out[i] = (uint64_t)json_integer_value(item);
    }
    return true;
}

static bool pieces_text_read(const json_t *line, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(line, key));
    return text && *text && snprintf(out, size, "%s", text) < (int)size;
}

static bool pieces_state_read(const json_t *line, enum stage_state *state)
{
    const char *name = json_string_value(json_object_get(line, "state"));
    for (int s = 0; name && s < STATE_NAMES; s++)
        if (states[s].name && strcmp(name, states[s].name) == 0) {
            *state = (enum stage_state)s;
            return true;
        }
    return false;
}

static bool sums_read(const json_t *line, struct stored_piece *piece)
{
    const json_t *list = json_object_get(line, "sha256");
    piece->sum_count = piece_sum_count(piece->area.count);
    if (json_array_size(list) != piece->sum_count)
        return false;
    piece->sums = calloc(piece->sum_count + 1ull, sizeof(*piece->sums));
    for (uint32_t s = 0; piece->sums && s < piece->sum_count; s++) {
        const char *hex = json_string_value(json_array_get(list, s));
        if (!hex || digest_unhex(hex, piece->sums[s], DIGEST_SIZE) < 0)
            return false;
    }
    return piece->sums;
}

/* Reads one line of an index. The limits of its numbers keep all their sums below 2^63. */
static bool pieces_line_read(const json_t *line, struct stored_piece *piece)
{
    const uint64_t offset_max = (uint64_t)1 << 60;
    const json_t *offset = json_object_get(line, "offset");
    uint64_t whole[2] = {0, 1}, part[4], values[2];
    piece->vector = json_array_size(json_object_get(line, "whole")) == 1;
    if (!pieces_text_read(line, "tensor", piece->tensor, sizeof(piece->tensor)) ||
        !pieces_state_read(line, &piece->state) ||
        !pieces_text_read(line, "file", piece->file, sizeof(piece->file)) || !json_is_integer(offset) ||
        json_integer_value(offset) < 0 || (uint64_t)json_integer_value(offset) > offset_max ||
        !pieces_numbers_read(line, "whole", piece->vector ? 1 : 2, INT32_MAX, whole) ||
        !pieces_numbers_read(line, "part", 4, INT32_MAX, part) ||
        !pieces_numbers_read(line, "values", 2, offset_max, values))
        return false;
    piece->offset = (uint64_t)json_integer_value(offset);
    piece->whole_rows = (uint32_t)whole[0];
    piece->whole_columns = (uint32_t)whole[1];
    piece->area = (struct area){.row = (uint32_t)part[0],
                                .column = (uint32_t)part[1],
                                .rows = (uint32_t)part[2],
                                .columns = (uint32_t)part[3],
                                .first = values[0],
                                .count = values[1]};
    return part[0] + part[2] <= whole[0] && part[1] + part[3] <= whole[1] && values[1] > 0 &&
           values[0] + values[1] <= part[2] * part[3] && sums_read(line, piece);
}

int piece_lines_read(const char *text, size_t size, piece_take_fn *take, void *arg, struct err *err)
{
    uint64_t number = 1;
    for (const char *at = text, *end = text + size; at < end; number++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((stop ? stop : end) - at);
        struct stored_piece piece = {0};
        json_t *line = json_parse_limited(at, length, 4, err);
        int result =
            line && pieces_line_read(line, &piece)
                ? 0
                : err_set(err, ERR_CORRUPT, "line %llu describes no piece", (unsigned long long)number);
        json_decref(line);
        if (result == 0)
            result = take(arg, &piece, err);
        free(piece.sums);
        if (result < 0)
            return -1;
        at += length + 1;
    }
    return 0;
}
