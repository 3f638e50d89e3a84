/* Prints answers for people and for programs. */
#include "cli/cli.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/units.h"
#include "model/text/utf8.h"

enum { COLUMNS_MAX = 16, CELL_BYTES = 160 };

int show_json(const json_t *document, struct err *err)
{
    struct buf text = {.limit = (size_t)1 << 30};
    int result = json_print(document, false, &text, err);
    if (result == 0 && (fwrite(text.data, 1, text.size, stdout) != text.size || putchar('\n') == EOF))
        result = err_set(err, ERR_IO, "could not write the output");
    buf_fini(&text);
    return result;
}

double show_num(const json_t *object, const char *key, double missing)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : missing;
}

/* Returns how many terminal columns a character takes; -1: the character is not safe to print. */
static int code_columns(uint32_t code)
{
    /* ranges of characters that are invisible or change the direction of writing */
    static const uint32_t hidden[][2] = {{0xad, 0xad},     {0x61c, 0x61c},   {0x180e, 0x180e},
                                         {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},
                                         {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe0fff}};
    if (code < ' ' || (code >= 0x7f && code < 0xa0))
        return -1;
    for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++)
        if (code >= hidden[i][0] && code <= hidden[i][1])
            return -1;
    int columns = wcwidth((wchar_t)code);
    return columns < 0 ? 1 : columns; /* wcwidth returns -1 for characters that the locale does not know */
}

unsigned show_clean(const char *text, unsigned columns, char *out, size_t size)
{
    const uint8_t *at = (const uint8_t *)text;
    size_t left = strlen(text), used = 0;
    unsigned column = 0;
    while (left > 0) {
        uint32_t code = 0;
        unsigned bad = 1, length = utf8_decode(at, left, &code, &bad, NULL);
        int wide = length > 0 ? code_columns(code) : -1;
        unsigned bytes = wide < 0 ? 1 : length;
        if (column + (wide < 0 ? 1 : (unsigned)wide) > columns || used + bytes >= size)
            break;
        memcpy(out + used, wide < 0 ? (const void *)"?" : (const void *)at, bytes);
        used += bytes;
        column += wide < 0 ? 1 : (unsigned)wide;
        at += length > 0 ? length : bad;
        left -= length > 0 ? length : bad;
    }
    out[used] = '\0';
    return column;
}

/* Cleans a text in place, line by line; what is not clean becomes "?". */
static void clean_lines(json_t *value)
{
    const char *text = json_string_value(value);
    const size_t size = strlen(text) + 1;
    char *copy = strdup(text), *clean = malloc(size), *line = copy; /* cleaning never makes a text longer */
    for (size_t used = 0; copy && clean && used < size;) {
        char *end = line + strcspn(line, "\n\t"), ended = *end;
        *end = '\0';
        show_clean(line, UINT_MAX, clean + used, size - used);
        used += strlen(clean + used);
        clean[used++] = ended;
        if (!ended)
            break;
        line = end + 1;
    }
    json_string_set(value, copy && clean ? clean : "");
    free(copy);
    free(clean);
}

const char *show_str(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    const char *at = text;
    while (at && *at && ((*at >= ' ' && *at <= '~') || *at == '\n' || *at == '\t'))
        at++;
    if (at && *at)
        clean_lines(value);
    return text ? json_string_value(value) : "";
}

void show_one_line(const char *text)
{
    while (*text == '\n' || *text == ' ')
        text++;
    char *copy = strdup(text), *clean = malloc(strlen(text) + 1), *rest = copy, *line;
    while (copy && clean && (line = strsep(&rest, "\n"))) {
        show_clean(line, UINT_MAX, clean, strlen(text) + 1); /* cleaning never makes a text longer */
        fputs(clean, stdout);
        fputs(rest ? " / " : "\n", stdout);
    }
    free(copy);
    free(clean);
}

struct column {
    char header[32], key[48], kind;
    size_t width;
};

static unsigned parse_columns(const char *text, struct column *columns)
{
    unsigned count = 0;
    while (*text && count < COLUMNS_MAX) {
        size_t size = strcspn(text, " ");
        size_t header = strcspn(text, ":");
        size_t key = strcspn(text + header + 1, ":");
        struct column *column = &columns[count++];
        snprintf(column->header, sizeof(column->header), "%.*s", (int)header, text);
        snprintf(column->key, sizeof(column->key), "%.*s", (int)key, text + header + 1);
        column->kind = text[header + key + 2];
        column->width = 0;
        text += size;
        text += strspn(text, " ");
    }
    return count;
}

static void format_cell(const json_t *row, const struct column *column, char cell[CELL_BYTES])
{
    const json_t *value = json_object_get(row, column->key);
    char text[32];
    if (json_is_number(value) && column->kind == 'b')
        snprintf(cell, CELL_BYTES, "%s", units_bytes(text, (uint64_t)json_number_value(value)));
    else if (json_is_number(value) && column->kind == 't')
        snprintf(cell, CELL_BYTES, "%s", units_seconds(text, json_number_value(value)));
    else if (json_is_integer(value))
        snprintf(cell, CELL_BYTES, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(cell, CELL_BYTES, "%.4g", json_real_value(value));
    else if (json_is_boolean(value))
        snprintf(cell, CELL_BYTES, "%s", json_is_true(value) ? "yes" : "no");
    else if (json_is_string(value) && column->kind == 'w' && strlen(json_string_value(value)) >= 19)
        snprintf(cell, CELL_BYTES, "%s", clock_words(json_string_value(value), text));
    else
        show_clean(json_is_string(value) ? json_string_value(value) : "-", CELL_BYTES, cell, CELL_BYTES);
}

/* Returns the columns that the cell takes on screen. */
static size_t cell_width(const char *cell)
{
    char same[CELL_BYTES];
    return show_clean(cell, CELL_BYTES, same, sizeof(same));
}

static void print_cell(FILE *out, const char *cell, const struct column *column, bool last)
{
    int pad = (int)(column->width - cell_width(cell));
    if (strchr("nbt", column->kind))
        fprintf(out, "%*s%s", pad, "", cell);
    else
        fprintf(out, "%s%*s", cell, last ? 0 : pad, "");
    fputs(last ? "\n" : "  ", out);
}

int show_table(const json_t *rows, const char *columns, struct err *err)
{
    return show_table_to(stdout, rows, columns, err);
}

int show_table_to(FILE *out, const json_t *rows, const char *columns_text, struct err *err)
{
    struct column columns[COLUMNS_MAX];
    unsigned count = parse_columns(columns_text, columns);
    char cell[CELL_BYTES];
    size_t index;
    json_t *row;
    if (!json_is_array(rows))
        return err_set(err, ERR_PEER, "the answer has no list");
    for (unsigned c = 0; c < count; c++)
        columns[c].width = strlen(columns[c].header);
    json_array_foreach (rows, index, row) {
        for (unsigned c = 0; c < count; c++) {
            format_cell(row, &columns[c], cell);
            columns[c].width = cell_width(cell) > columns[c].width ? cell_width(cell) : columns[c].width;
        }
    }
    for (unsigned c = 0; c < count; c++)
        print_cell(out, columns[c].header, &columns[c], c + 1 == count);
    json_array_foreach (rows, index, row) {
        for (unsigned c = 0; c < count; c++) {
            format_cell(row, &columns[c], cell);
            print_cell(out, cell, &columns[c], c + 1 == count);
        }
    }
    return 0;
}
