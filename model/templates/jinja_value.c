#include "model/templates/jinja_value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/utf8.h"

enum { BLOCK_BYTES = 65536, EQUAL_DEPTH_MAX = 32, EQUAL_BUDGET = 100000 };

struct jinja_block {
    struct jinja_block *next;
    size_t size, used;
    max_align_t bytes[];
};

void *jinja_alloc(struct jinja_arena *arena, size_t size, struct err *err)
{
    size = (size + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    struct jinja_block *block = arena->blocks;
    if (!block || block->size - block->used < size) {
        const size_t room = size > BLOCK_BYTES ? size : BLOCK_BYTES;
        if (size > arena->limit || arena->limit - arena->used < room) {
            err_set(err, ERR_TOO_BIG, "more than %zu bytes of values", arena->limit);
            return NULL;
        }
        block = calloc(1, sizeof(*block) + room);
        if (!block) {
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
    while (arena->blocks) {
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
    if (!copy)
        return -1;
    if (size > 0)
        memcpy(copy, text, size);
    *out = jv_borrow(copy, size);
    return 0;
}

int jv_list_new(struct jinja_arena *arena, size_t capacity, struct jv *out, struct err *err)
{
    struct jv_list *list = jinja_alloc(arena, sizeof(*list), err);
    if (!list || capacity > arena->limit / sizeof(*list->items))
        return !list ? -1 : err_set(err, ERR_TOO_BIG, "a list of %zu values", capacity);
    list->items = jinja_alloc(arena, (capacity + 1) * sizeof(*list->items), err);
    *out = (struct jv){.kind = JV_LIST, .list = list};
    return list->items ? 0 : -1;
}

int jv_list_add(struct jinja_arena *arena, struct jv_list *list, struct jv value, struct err *err)
{
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity == 0 ? 8 : 2 * list->capacity;
        struct jv *items = jinja_alloc(arena, capacity * sizeof(*items), err);
        if (!items)
            return -1;
        if (list->count > 0)
            memcpy(items, list->items, list->count * sizeof(*items));
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = value;
    return 0;
}

int jv_list_of(struct jinja_arena *arena, enum jv_form form, struct jv *items, size_t count, struct jv *out,
               struct err *err)
{
    struct jv_list *list = jinja_alloc(arena, sizeof(*list), err);
    if (!list)
        return -1;
    *list = (struct jv_list){.form = form, .items = items, .count = count};
    *out = (struct jv){.kind = JV_LIST, .list = list};
    return 0;
}

int jv_list_copy(struct jinja_arena *arena, enum jv_form form, const struct jv *items, size_t count,
                 struct jv *out, struct err *err)
{
    struct jv made;
    if (jv_list_new(arena, count, &made, err) < 0)
        return -1;
    if (count > 0)
        memcpy(made.list->items, items, count * sizeof(*items));
    made.list->count = count;
    made.list->form = form;
    *out = made;
    return 0;
}

int jv_pair(struct jinja_arena *arena, struct jv first, struct jv second, struct jv *out, struct err *err)
{
    const struct jv both[2] = {first, second};
    return jv_list_copy(arena, JF_TUPLE, both, 2, out, err);
}

int jv_map_new(struct jinja_arena *arena, struct jv *out, struct err *err)
{
    *out = (struct jv){.kind = JV_MAP, .map = jinja_alloc(arena, sizeof(struct jv_map), err)};
    return out->map ? 0 : -1;
}

const struct jv *jv_map_get(const struct jv_map *map, const struct jv *key)
{
    for (size_t i = 0; i < map->count; i++)
        if (jv_equal(&map->keys[i], key))
            return &map->values[i];
    return NULL;
}

const struct jv *jv_map_find(const struct jv_map *map, const char *key, size_t size)
{
    const struct jv text = jv_borrow(key, size);
    return jv_map_get(map, &text);
}

int jv_map_put(struct jinja_arena *arena, struct jv_map *map, struct jv key, struct jv value, struct err *err)
{
    if (!jv_hashable(&key))
        return err_set(err, ERR_INVALID, "%s cannot be a key", jv_kind_name(&key));
    for (size_t i = 0; i < map->count; i++) {
        if (jv_equal(&map->keys[i], &key)) {
            map->values[i] = value;
            return 0;
        }
    }
    if (map->count == JV_MAP_MAX)
        return err_set(err, ERR_TOO_BIG, "a mapping of more than %d members", JV_MAP_MAX);
    if (map->count == map->capacity) {
        const size_t capacity = map->capacity == 0 ? 8 : 2 * map->capacity;
        struct jv *room = jinja_alloc(arena, 2 * capacity * sizeof(*room), err);
        if (!room)
            return -1;
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
        if (jv_list_new(arena, json_array_size(json), out, err) < 0)
            return -1;
        for (size_t i = 0; i < json_array_size(json); i++, out->list->count++)
            if (jv_from_json(arena, json_array_get(json, i), &out->list->items[i], err) < 0)
                return -1;
        return 0;
    case JSON_OBJECT:
        if (jv_map_new(arena, out, err) < 0)
            return -1;
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

bool jv_real(const struct jv *value, double *real)
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

struct jv jv_float(double real)
{
    return (struct jv){.kind = JV_FLOAT, .real = real};
}

bool jv_is_list(const struct jv *value, enum jv_form form)
{
    return value->kind == JV_LIST && value->list->form == form;
}

bool jv_is_left_out(const struct jv *value)
{
    return value->kind == JV_ABSENT || value->kind == JV_NONE;
}

bool jv_true(const struct jv *value)
{
    switch (value->kind) {
    case JV_ABSENT:
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
        return value->list->form == JF_ITERATOR || value->list->count > 0;
    case JV_MAP:
        return value->map->count > 0;
    case JV_LOOP: /* true: a loop has at least one item */
    default:
        return true;
    }
}

static bool hashable_within(const struct jv *value, int depth)
{
    bool good = value->kind != JV_MAP;
    if (value->kind == JV_LIST) {
        const enum jv_form form = value->list->form;
        good = form != JF_LIST && form != JF_KEYS && form != JF_PAIRS && depth <= EQUAL_DEPTH_MAX;
        for (size_t i = 0; form == JF_TUPLE && good && i < value->list->count; i++)
            good = hashable_within(&value->list->items[i], depth + 1);
    }
    return good;
}

bool jv_hashable(const struct jv *value)
{
    return hashable_within(value, 0);
}

/* Converts a number without rounding: a long double represents every whole number of 64 bits. */
static long double exact(const struct jv *value)
{
    int64_t number = 0;
    return value->kind == JV_FLOAT ? (long double)value->real
                                   : (jv_number(value, &number), (long double)number);
}

static bool jinja_value_is_number(const struct jv *value)
{
    return value->kind == JV_INT || value->kind == JV_BOOL || value->kind == JV_FLOAT;
}

static bool equal_within(const struct jv *a, const struct jv *b, int depth, size_t *budget);

/* Compares the keys or pairs of two mappings, in any order. */
static bool equal_views(const struct jv_list *a, const struct jv_list *b, int depth, size_t *budget)
{
    bool all = a->count == b->count && (b->form == JF_KEYS || b->form == JF_PAIRS);
    for (size_t i = 0; i < a->count && all; i++) {
        bool found = false;
        for (size_t k = 0; k < b->count && !found; k++)
            found = equal_within(&a->items[i], &b->items[k], depth + 1, budget);
        all = found;
    }
    return all;
}

/* Compares two values within a budget of steps. Values may share parts, which makes comparing exponential;
 * beyond the budget they count as unequal. */
static bool equal_within(const struct jv *a, const struct jv *b, int depth, size_t *budget)
{
    if (depth > EQUAL_DEPTH_MAX || *budget == 0)
        return false;
    --*budget;
    if (jinja_value_is_number(a) && jinja_value_is_number(b))
        return exact(a) == exact(b);
    if (a->kind != b->kind)
        return false;
    bool same = true;
    switch (a->kind) {
    case JV_TEXT:
        return a->size == b->size && (a->size == 0 || memcmp(a->text, b->text, a->size) == 0);
    case JV_LIST:
        if (a->list->form == JF_VALUES || a->list->form == JF_ITERATOR || a->list == b->list)
            return a->list == b->list;
        if (a->list->form == JF_KEYS || a->list->form == JF_PAIRS)
            return equal_views(a->list, b->list, depth, budget);
        same = a->list->count == b->list->count && a->list->form == b->list->form;
        for (size_t i = 0; a->list != b->list && i < a->list->count && same; i++)
            same = equal_within(&a->list->items[i], &b->list->items[i], depth + 1, budget);
        return same;
    case JV_MAP:
        same = a->map->count == b->map->count;
        for (size_t i = 0; a->map != b->map && i < a->map->count && same; i++) {
            size_t k = 0;
            while (k < b->map->count && !equal_within(&a->map->keys[i], &b->map->keys[k], depth + 1, budget))
                k++;
            same =
                k < b->map->count && equal_within(&a->map->values[i], &b->map->values[k], depth + 1, budget);
        }
        return same;
    case JV_NAMESPACE:
        return a->map == b->map;
    case JV_MACRO:
        return a->macro == b->macro;
    case JV_FUNCTION:
        return a->function == b->function;
    case JV_LOOP:
        return a->loop == b->loop;
    case JV_CYCLER:
    case JV_JOINER:
        return a->counter == b->counter;
    case JV_METHOD:
        return a->method->row == b->method->row &&
               equal_within(&a->method->self, &b->method->self, depth + 1, budget);
    default:
        return true; /* values of kind None or undefined are equal */
    }
}

bool jv_equal(const struct jv *a, const struct jv *b)
{
    size_t budget = EQUAL_BUDGET;
    return equal_within(a, b, 0, &budget);
}

static bool order_within(const struct jv *a, const struct jv *b, int depth, int *order)
{
    if (a->kind == JV_TEXT && b->kind == JV_TEXT) {
        const size_t common = a->size < b->size ? a->size : b->size;
        const int bytes = common > 0 ? memcmp(a->text, b->text, common) : 0;
        *order = bytes != 0 ? (bytes > 0) - (bytes < 0) : (a->size > b->size) - (a->size < b->size);
        return true;
    }
    if (jinja_value_is_number(a) && jinja_value_is_number(b)) {
        const long double u = exact(a), v = exact(b);
        *order = u != u || v != v ? 2 : (u > v) - (u < v);
        return true;
    }
    if (depth > EQUAL_DEPTH_MAX || a->kind != JV_LIST || b->kind != JV_LIST ||
        a->list->form != b->list->form || a->list->form > JF_TUPLE) {
        return false;
    }
    for (size_t i = 0; i < a->list->count && i < b->list->count; i++)
        if (!jv_equal(&a->list->items[i], &b->list->items[i]))
            return order_within(&a->list->items[i], &b->list->items[i], depth + 1, order);
    *order = (a->list->count > b->list->count) - (a->list->count < b->list->count);
    return true;
}

bool jv_order(const struct jv *a, const struct jv *b, int *order)
{
    return order_within(a, b, 0, order);
}

bool jv_is_text(const struct jv *value, const char *text)
{
    return value->kind == JV_TEXT && value->size == strlen(text) &&
           memcmp(value->text, text, value->size) == 0;
}

const char *jv_kind_name(const struct jv *value)
{
    static const char *const names[] = {
        [JV_ABSENT] = "nothing",  [JV_UNDEFINED] = "undefined",   [JV_NONE] = "none",
        [JV_BOOL] = "a boolean",  [JV_INT] = "an integer",        [JV_FLOAT] = "a float",
        [JV_TEXT] = "a string",   [JV_LIST] = "a list",           [JV_MAP] = "a mapping",
        [JV_MACRO] = "a macro",   [JV_NAMESPACE] = "a namespace", [JV_FUNCTION] = "a function",
        [JV_METHOD] = "a method", [JV_LOOP] = "the loop",         [JV_CYCLER] = "a cycler",
        [JV_JOINER] = "a joiner", [JV_TEMPLATE] = "self"};
    static const char *const forms[] = {[JF_LIST] = "a list",
                                        [JF_TUPLE] = "a tuple",
                                        [JF_RANGE] = "a range",
                                        [JF_KEYS] = "keys of a mapping",
                                        [JF_VALUES] = "values of a mapping",
                                        [JF_PAIRS] = "items of a mapping",
                                        [JF_ITERATOR] = "a generator"};
    return value->kind == JV_LIST ? forms[value->list->form] : names[value->kind];
}

static bool is_continuation(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

size_t jv_next(const struct jv *text, size_t at, uint32_t *code)
{
    return utf8_next(text->text, text->size, at, code);
}

size_t jv_before(const struct jv *text, size_t at, uint32_t *code)
{
    do {
        at--;
    } while (at > 0 && is_continuation(text->text[at]));
    jv_next(text, at, code);
    return at;
}

size_t jv_characters(const struct jv *text)
{
    size_t count = 0;
    for (size_t i = 0; i < text->size; i++)
        count += !is_continuation(text->text[i]);
    return count;
}

size_t jv_character_at(const struct jv *text, size_t index)
{
    size_t at = 0;
    for (; at < text->size; at++)
        if (!is_continuation(text->text[at]) && index-- == 0)
            break;
    return at;
}

/* Returns true if the character text[from..to) is to be stripped. */
static bool is_stripped(const char *text, size_t from, size_t to, const struct jv *set)
{
    uint32_t code;
    if (set)
        return memmem(set->text, set->size, text + from, to - from) != NULL;
    utf8_next(text, to, from, &code);
    return utf8_is_blank(code);
}

struct jv jv_strip(struct jv text, const struct jv *set, bool begin, bool end)
{
    size_t from = 0;
    size_t to = text.size;
    while (begin && from < to) {
        size_t next = from + 1;
        while (next < to && is_continuation(text.text[next]))
            next++;
        if (!is_stripped(text.text, from, next, set))
            break;
        from = next;
    }
    while (end && to > from) {
        size_t last = to - 1;
        while (last > from && is_continuation(text.text[last]))
            last--;
        if (!is_stripped(text.text, last, to, set))
            break;
        to = last;
    }
    return jv_borrow(text.text + from, to - from);
}

static int text_items(struct jinja_arena *arena, const struct jv *value, struct jv *list, struct err *err)
{
    if (jv_list_new(arena, jv_characters(value), list, err) < 0)
        return -1;
    for (size_t at = 0; at < value->size;) {
        size_t next = at + 1;
        while (next < value->size && is_continuation(value->text[next]))
            next++;
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
        out->items += value->list->taken;
        out->count -= value->list->taken;
        if (value->list->form == JF_ITERATOR)
            value->list->taken = value->list->count;
        return 0;
    case JV_MAP:
        *out = (struct jv_list){.count = value->map->count, .items = value->map->keys};
        return 0;
    case JV_TEXT:
        if (text_items(arena, value, &list, err) < 0)
            return -1;
        *out = *list.list;
        return 0;
    default:
        return err_set(err, ERR_INVALID, "%s cannot be gone through", jv_kind_name(value));
    }
}
