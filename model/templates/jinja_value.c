#include "model/templates/jinja_value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/utf8.h"

enum { BLOCK_BYTES = 65536, PRINT_DEPTH_MAX = 32, EQUAL_DEPTH_MAX = 32, EQUAL_BUDGET = 100000 };

struct jinja_block {
    struct jinja_block *next;
    size_t size, used;
    max_align_t bytes[];
};

void *jinja_alloc(struct jinja_arena *arena, size_t size, struct err *err)
{
    size = (size + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    struct jinja_block *block = arena->blocks;
    if (block == NULL || block->size - block->used < size) {
        const size_t room = size > BLOCK_BYTES ? size : BLOCK_BYTES;
        if (size > arena->limit || arena->limit - arena->used < room) {
            err_set(err, ERR_TOO_BIG, "more than %zu bytes of values", arena->limit);
            return NULL;
        }
        block = calloc(1, sizeof(*block) + room);
        if (block == NULL) {
            err_set(err, ERR_NOMEM, "out of memory for a chat template");
            return NULL;
        }
        block->size = room;
        block->next = arena->blocks;
        arena->blocks = block;
        arena->used += room;
    }
    void *memory = (char *)block->bytes + block->used;
    block->used += size;
    return memory;
}

int jinja_work(struct jinja_arena *arena, uint64_t amount, struct err *err)
{
    arena->work += amount;
    return arena->work <= arena->work_max
               ? 0
               : err_set(err, ERR_TOO_BIG, "more than %llu steps", (unsigned long long)arena->work_max);
}

uint64_t jv_weight(const struct jv *value)
{
    return value->kind == JV_TEXT                                 ? value->size / 256
           : value->kind == JV_LIST                               ? value->list->count
           : value->kind == JV_MAP || value->kind == JV_NAMESPACE ? value->map->count
                                                                  : 0;
}

void jinja_arena_fini(struct jinja_arena *arena)
{
    while (arena->blocks != NULL) {
        struct jinja_block *next = arena->blocks->next;
        free(arena->blocks);
        arena->blocks = next;
    }
    arena->used = 0;
}

struct jv jv_bool(bool truth)
{
    return (struct jv){.kind = JV_BOOL, .truth = truth};
}

struct jv jv_int(int64_t number)
{
    return (struct jv){.kind = JV_INT, .number = number};
}

struct jv jv_borrow(const char *text, size_t size)
{
    return (struct jv){.kind = JV_TEXT, .text = text, .size = size};
}

struct jv jv_undefined(const char *name, size_t size)
{
    return (struct jv){.kind = JV_UNDEFINED, .text = name, .size = size};
}

int jv_copy(struct jinja_arena *arena, const char *text, size_t size, struct jv *out, struct err *err)
{
    char *copy = jinja_alloc(arena, size + 1, err);
    if (copy == NULL) {
        return -1;
    }
    if (size > 0) {
        memcpy(copy, text, size);
    }
    *out = jv_borrow(copy, size);
    return 0;
}

int jv_list_new(struct jinja_arena *arena, size_t capacity, struct jv *out, struct err *err)
{
    struct jv_list *list = jinja_alloc(arena, sizeof(*list), err);
    if (list == NULL || capacity > arena->limit / sizeof(*list->items)) {
        return list == NULL ? -1 : err_set(err, ERR_TOO_BIG, "a list of %zu values", capacity);
    }
    list->items = jinja_alloc(arena, (capacity + 1) * sizeof(*list->items), err);
    *out = (struct jv){.kind = JV_LIST, .list = list};
    return list->items != NULL ? 0 : -1;
}

int jv_map_new(struct jinja_arena *arena, struct jv *out, struct err *err)
{
    *out = (struct jv){.kind = JV_MAP, .map = jinja_alloc(arena, sizeof(struct jv_map), err)};
    return out->map != NULL ? 0 : -1;
}

const struct jv *jv_map_get(const struct jv_map *map, const struct jv *key)
{
    for (size_t i = 0; i < map->count; i++) {
        if (jv_equal(&map->keys[i], key)) {
            return &map->values[i];
        }
    }
    return NULL;
}

const struct jv *jv_map_find(const struct jv_map *map, const char *key, size_t size)
{
    const struct jv text = jv_borrow(key, size);
    return jv_map_get(map, &text);
}

int jv_map_put(struct jinja_arena *arena, struct jv_map *map, struct jv key, struct jv value, struct err *err)
{
    for (size_t i = 0; i < map->count; i++) {
        if (jv_equal(&map->keys[i], &key)) {
            map->values[i] = value;
            return 0;
        }
    }
    if (map->count == JV_MAP_MAX) {
        return err_set(err, ERR_TOO_BIG, "a mapping of more than %d members", JV_MAP_MAX);
    }
    if (map->count == map->capacity) {
        const size_t capacity = map->capacity == 0 ? 8 : 2 * map->capacity;
        struct jv *room = jinja_alloc(arena, 2 * capacity * sizeof(*room), err);
        if (room == NULL) {
            return -1;
        }
        if (map->count > 0) {
            memcpy(room, map->keys, map->count * sizeof(*room));
            memcpy(room + capacity, map->values, map->count * sizeof(*room));
        }
        map->keys = room;
        map->values = room + capacity;
        map->capacity = capacity;
    }
    map->keys[map->count] = key;
    map->values[map->count++] = value;
    return 0;
}

int jv_from_json(struct jinja_arena *arena, const json_t *json, struct jv *out, struct err *err)
{
    const char *key;
    size_t size;
    json_t *member;
    switch (json_typeof(json)) {
    case JSON_STRING:
        *out = jv_borrow(json_string_value(json), json_string_length(json));
        return 0;
    case JSON_INTEGER:
        *out = jv_int(json_integer_value(json));
        return 0;
    case JSON_REAL:
        *out = (struct jv){.kind = JV_FLOAT, .real = json_real_value(json)};
        return 0;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = jv_bool(json_is_true(json));
        return 0;
    case JSON_NULL:
        *out = (struct jv){.kind = JV_NONE};
        return 0;
    case JSON_ARRAY:
        if (jv_list_new(arena, json_array_size(json), out, err) < 0) {
            return -1;
        }
        for (size_t i = 0; i < json_array_size(json); i++, out->list->count++) {
            if (jv_from_json(arena, json_array_get(json, i), &out->list->items[i], err) < 0) {
                return -1;
            }
        }
        return 0;
    case JSON_OBJECT:
        if (jv_map_new(arena, out, err) < 0) {
            return -1;
        }
        json_object_keylen_foreach((json_t *)(uintptr_t)json, key, size, member)
        {
            struct jv value;
            if (jv_from_json(arena, member, &value, err) < 0 ||
                jv_map_put(arena, out->map, jv_borrow(key, size), value, err) < 0) {
                return -1;
            }
        }
        return 0;
    }
    return err_set(err, ERR_INTERNAL, "a document of no kind");
}

bool jv_number(const struct jv *value, int64_t *number)
{
    if (value->kind == JV_INT || value->kind == JV_BOOL) {
        *number = value->kind == JV_INT ? value->number : value->truth;
        return true;
    }
    return false;
}

static bool real_of(const struct jv *value, double *real)
{
    int64_t number;
    if (value->kind == JV_FLOAT) {
        *real = value->real;
        return true;
    }
    if (jv_number(value, &number)) {
        *real = (double)number;
        return true;
    }
    return false;
}

bool jv_true(const struct jv *value)
{
    switch (value->kind) {
    case JV_UNDEFINED:
    case JV_NONE:
        return false;
    case JV_BOOL:
        return value->truth;
    case JV_INT:
        return value->number != 0;
    case JV_FLOAT:
        return value->real != 0;
    case JV_TEXT:
        return value->size > 0;
    case JV_LIST:
        return value->list->count > 0;
    case JV_MAP:
        return value->map->count > 0;
    case JV_NAMESPACE:
    case JV_MACRO:
    case JV_FUNCTION:
        break;
    }
    return true;
}

/* Values may share parts, so that comparing them could take for ever: beyond the budget they are not equal.
 */
static bool equal_within(const struct jv *a, const struct jv *b, int depth, size_t *budget)
{
    int64_t x, y;
    double u, v;
    if (depth > EQUAL_DEPTH_MAX || *budget == 0) {
        return false;
    }
    --*budget;
    if (jv_number(a, &x) && jv_number(b, &y)) {
        return x == y;
    }
    if (real_of(a, &u) && real_of(b, &v)) {
        return u == v;
    }
    if (a->kind != b->kind) {
        return false;
    }
    bool same = true;
    switch (a->kind) {
    case JV_TEXT:
        return a->size == b->size && (a->size == 0 || memcmp(a->text, b->text, a->size) == 0);
    case JV_LIST:
        same = a->list->count == b->list->count;
        for (size_t i = 0; a->list != b->list && i < a->list->count && same; i++) {
            same = equal_within(&a->list->items[i], &b->list->items[i], depth + 1, budget);
        }
        return same;
    case JV_MAP:
        same = a->map->count == b->map->count;
        for (size_t i = 0; a->map != b->map && i < a->map->count && same; i++) {
            const struct jv *other = jv_map_get(b->map, &a->map->keys[i]);
            same = other != NULL && equal_within(&a->map->values[i], other, depth + 1, budget);
        }
        return same;
    case JV_NAMESPACE:
        return a->map == b->map;
    case JV_MACRO:
        return a->macro == b->macro;
    case JV_FUNCTION:
        return a->number == b->number;
    default:
        return true; /* none, undefined */
    }
}

bool jv_equal(const struct jv *a, const struct jv *b)
{
    size_t budget = EQUAL_BUDGET;
    return equal_within(a, b, 0, &budget);
}

bool jv_order(const struct jv *a, const struct jv *b, int *order)
{
    double u, v;
    if (a->kind == JV_TEXT && b->kind == JV_TEXT) {
        const size_t common = a->size < b->size ? a->size : b->size;
        const int bytes = common > 0 ? memcmp(a->text, b->text, common) : 0;
        *order = bytes != 0 ? (bytes > 0) - (bytes < 0) : (a->size > b->size) - (a->size < b->size);
        return true;
    }
    if (real_of(a, &u) && real_of(b, &v)) {
        *order = (u > v) - (u < v);
        return u == u && v == v;
    }
    return false;
}

bool jv_is_text(const struct jv *value, const char *text)
{
    return value->kind == JV_TEXT && value->size == strlen(text) &&
           memcmp(value->text, text, value->size) == 0;
}

const char *jv_kind_name(const struct jv *value)
{
    static const char *const names[] = {
        [JV_UNDEFINED] = "undefined", [JV_NONE] = "none",          [JV_BOOL] = "a truth value",
        [JV_INT] = "a number",        [JV_FLOAT] = "a number",     [JV_TEXT] = "a text",
        [JV_LIST] = "a list",         [JV_MAP] = "a mapping",      [JV_NAMESPACE] = "a namespace",
        [JV_MACRO] = "a macro",       [JV_FUNCTION] = "a function"};
    return names[value->kind];
}

/* The shortest digits that give the number again, laid out as Python does. */
static int print_real(double real, struct buf *out, struct err *err)
{
    char text[64];
    if (isnan(real) || isinf(real)) {
        return buf_text(out, isnan(real) ? "nan" : real > 0 ? "inf" : "-inf", err);
    }
    if (real == floor(real) && fabs(real) < 1e16) {
        return buf_printf(out, err, "%.1f", real);
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, real);
        if (strtod(text, NULL) == real) {
            break;
        }
    }
    return buf_text(out, text, err);
}

/* A text in quotes: Python's repr, or JSON's. */
static int print_quoted(const struct jv *value, bool json, struct buf *out, struct err *err)
{
    const bool has_single = value->size > 0 && memchr(value->text, '\'', value->size) != NULL;
    const bool has_double = value->size > 0 && memchr(value->text, '"', value->size) != NULL;
    const char quote = json || (has_single && !has_double) ? '"' : '\'';
    int status = buf_append(out, &quote, 1, err);
    for (size_t i = 0; i < value->size && status == 0; i++) {
        const char c = value->text[i];
        const char *name = c == '\n'   ? "\\n"
                           : c == '\t' ? "\\t"
                           : c == '\r' ? "\\r"
                           : c == '\\' ? "\\\\"
                                       : NULL;
        name = json && c == '\b' ? "\\b" : json && c == '\f' ? "\\f" : name;
        if (name != NULL) {
            status = buf_text(out, name, err);
        } else if (c == quote) {
            status = buf_printf(out, err, "\\%c", c);
        } else if ((unsigned char)c < 0x20 || (c == 0x7f && !json)) {
            status = buf_printf(out, err, json ? "\\u%04x" : "\\x%02x", (unsigned char)c);
        } else {
            status = buf_append(out, &c, 1, err);
        }
    }
    return status < 0 ? -1 : buf_append(out, &quote, 1, err);
}

/* How a value is written: as Python's repr, or as JSON. */
struct style {
    bool json;
    int indent; /* JSON: characters a level, < 0: on one line */
};

static int print_nested(const struct jv *value, const struct style *style, int depth, struct buf *out,
                        struct err *err);

static int print_line(const struct style *style, int depth, struct buf *out, struct err *err)
{
    return style->indent < 0 ? 0 : buf_printf(out, err, "\n%*s", style->indent * depth, "");
}

static int print_members(const struct jv *value, const struct style *style, int depth, struct buf *out,
                         struct err *err)
{
    const bool list = value->kind == JV_LIST;
    const size_t count = list ? value->list->count : value->map->count;
    const bool tuple = list && value->list->tuple && !style->json;
    int status = buf_text(out, tuple ? "(" : list ? "[" : "{", err);
    for (size_t i = 0; i < count && status == 0; i++) {
        if ((i > 0 && buf_text(out, style->indent < 0 ? ", " : ",", err) < 0) ||
            print_line(style, depth + 1, out, err) < 0) {
            return -1;
        }
        if (!list && (print_nested(&value->map->keys[i], style, depth + 1, out, err) < 0 ||
                      buf_text(out, ": ", err) < 0)) {
            return -1;
        }
        status =
            print_nested(list ? &value->list->items[i] : &value->map->values[i], style, depth + 1, out, err);
    }
    if (status == 0 && count > 0) {
        status = print_line(style, depth, out, err);
    }
    return status < 0 ? -1 : buf_text(out, tuple ? (count == 1 ? ",)" : ")") : list ? "]" : "}", err);
}

static int print_nested(const struct jv *value, const struct style *style, int depth, struct buf *out,
                        struct err *err)
{
    if (depth > PRINT_DEPTH_MAX) {
        return err_set(err, ERR_TOO_BIG, "a value nested more than %d deep", PRINT_DEPTH_MAX);
    }
    switch (value->kind) {
    case JV_TEXT:
        return print_quoted(value, style->json, out, err);
    case JV_LIST:
    case JV_MAP:
        return print_members(value, style, depth, out, err);
    case JV_NONE:
        return buf_text(out, style->json ? "null" : "None", err);
    case JV_BOOL:
        return buf_text(out,
                        style->json    ? (value->truth ? "true" : "false")
                        : value->truth ? "True"
                                       : "False",
                        err);
    case JV_INT:
        return buf_printf(out, err, "%lld", (long long)value->number);
    case JV_FLOAT:
        return print_real(value->real, out, err);
    default:
        return err_set(err, ERR_INVALID, "%s cannot be written as a text", jv_kind_name(value));
    }
}

int jv_print(const struct jv *value, struct buf *out, struct err *err)
{
    const struct style style = {.indent = -1};
    if (value->kind == JV_TEXT || value->kind == JV_UNDEFINED) {
        return value->kind == JV_TEXT ? buf_append(out, value->text, value->size, err) : 0;
    }
    return print_nested(value, &style, 0, out, err);
}

int jv_json(const struct jv *value, int indent, struct buf *out, struct err *err)
{
    const struct style style = {.json = true, .indent = indent};
    return print_nested(value, &style, 0, out, err);
}

static bool is_continuation(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

size_t jv_characters(const struct jv *text)
{
    size_t count = 0;
    for (size_t i = 0; i < text->size; i++) {
        count += !is_continuation(text->text[i]);
    }
    return count;
}

size_t jv_character_at(const struct jv *text, size_t index)
{
    size_t at = 0;
    for (; at < text->size; at++) {
        if (!is_continuation(text->text[at]) && index-- == 0) {
            break;
        }
    }
    return at;
}

/* Whether the character text[from..to) is to be stripped. */
static bool is_stripped(const char *text, size_t from, size_t to, const struct jv *set)
{
    uint32_t code = 0;
    unsigned bad;
    if (set != NULL) {
        return memmem(set->text, set->size, text + from, to - from) != NULL;
    }
    return utf8_decode((const uint8_t *)text + from, to - from, &code, &bad, NULL) > 0 && utf8_is_blank(code);
}

struct jv jv_strip(struct jv text, const struct jv *set, bool begin, bool end)
{
    size_t from = 0;
    size_t to = text.size;
    while (begin && from < to) {
        size_t next = from + 1;
        while (next < to && is_continuation(text.text[next])) {
            next++;
        }
        if (!is_stripped(text.text, from, next, set)) {
            break;
        }
        from = next;
    }
    while (end && to > from) {
        size_t last = to - 1;
        while (last > from && is_continuation(text.text[last])) {
            last--;
        }
        if (!is_stripped(text.text, last, to, set)) {
            break;
        }
        to = last;
    }
    return jv_borrow(text.text + from, to - from);
}

static int text_items(struct jinja_arena *arena, const struct jv *value, struct jv *list, struct err *err)
{
    if (jv_list_new(arena, jv_characters(value), list, err) < 0) {
        return -1;
    }
    for (size_t at = 0; at < value->size;) {
        size_t next = at + 1;
        while (next < value->size && is_continuation(value->text[next])) {
            next++;
        }
        list->list->items[list->list->count++] = jv_borrow(value->text + at, next - at);
        at = next;
    }
    return 0;
}

int jv_items(struct jinja_arena *arena, const struct jv *value, struct jv_list *out, struct err *err)
{
    struct jv list;
    *out = (struct jv_list){0};
    switch (value->kind) {
    case JV_UNDEFINED:
        return 0;
    case JV_LIST:
        *out = *value->list;
        return 0;
    case JV_MAP:
        *out = (struct jv_list){.count = value->map->count, .items = value->map->keys};
        return 0;
    case JV_TEXT:
        if (text_items(arena, value, &list, err) < 0) {
            return -1;
        }
        *out = *list.list;
        return 0;
    default:
        return err_set(err, ERR_INVALID, "%s cannot be gone through", jv_kind_name(value));
    }
}
