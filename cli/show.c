/* Prints answers for people and for programs. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "common/buf.h"
#include "common/json.h"
#include "common/units.h"

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

const char *show_str(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

double show_num(const json_t *object, const char *key, double missing)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : missing;
}

void show_one_line(const char *text)
{
    while (*text == '\n' || *text == ' ')
        text++;
    for (; *text; text++)
        if (*text == '\n')
            fputs(" / ", stdout);
        else
            putchar((unsigned char)*text < ' ' ? '?' : *text);
    putchar('\n');
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
        snprintf(cell, CELL_BYTES, "%.10s %.8s", json_string_value(value), json_string_value(value) + 11);
    else
        snprintf(cell, CELL_BYTES, "%s", json_is_string(value) ? json_string_value(value) : "-");
}

/* Counts the columns on screen, not the bytes. */
static size_t cell_width(const char *cell)
{
    size_t width = 0;
    for (; *cell; cell++)
        width += ((unsigned char)*cell & 0xc0) != 0x80;
    return width;
}

static void print_cell(const char *cell, size_t width, bool right, bool last)
{
    int pad = (int)(width - cell_width(cell));
    if (right)
        printf("%*s%s", pad, "", cell);
    else
        printf("%s%*s", cell, last ? 0 : pad, "");
    fputs(last ? "\n" : "  ", stdout);
}

int show_table(const json_t *rows, const char *columns_text, struct err *err)
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
        print_cell(columns[c].header, columns[c].width, strchr("nbt", columns[c].kind) != NULL,
                   c + 1 == count);
    json_array_foreach (rows, index, row) {
        for (unsigned c = 0; c < count; c++) {
            format_cell(row, &columns[c], cell);
            print_cell(cell, columns[c].width, strchr("nbt", columns[c].kind) != NULL, c + 1 == count);
        }
    }
    return 0;
}
