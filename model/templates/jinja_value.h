/* Values of a template being rendered, in an arena that is given back as a whole. Private to model/jinja*.c.
 *
 * Texts are UTF-8 and counted in characters where the template counts. Lists and maps are not changed once
 * others may see them, but for namespaces and frames of names.
 */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_VALUE_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_VALUE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct jinja_node;
struct jinja_block;

/* Memory given out in order and given back at once, and a count of what was done with it. */
struct jinja_arena {
    struct jinja_block *blocks;
    size_t used, limit;
    uint64_t work, work_max;
};

enum jv_kind {
    JV_UNDEFINED, /* text: what is undefined, for messages */
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_FLOAT,
    JV_TEXT,
    JV_LIST,
    JV_MAP,
    JV_NAMESPACE, /* a map that can be changed */
    JV_MACRO,
    JV_FUNCTION /* number: which */
};

struct jv {
    enum jv_kind kind;
    int32_t message; /* of a map: 1 + its place in `messages`; 0: it is none */
    union {
        bool truth;
        int64_t number;
        double real;
        struct {
            const char *text;
            size_t size;
        };
        struct jv_list *list;
        struct jv_map *map;
        struct {
            const struct jinja_node *macro;
            struct jinja_frame *frame; /* where it was defined */
        };
    };
};

struct jv_list {
    bool tuple; /* written as Python writes one */
    size_t count;
    struct jv *items;
};

struct jv_map { /* in order of insertion */
    size_t count, capacity;
    struct jv *keys, *values;
};

enum { JV_MAP_MAX = 4096 };

/* Names of a scope. */
struct jinja_frame {
    struct jv_map names;
    struct jinja_frame *parent;
};

/* Zeroed memory, or NULL with ERR_TOO_BIG or ERR_NOMEM. */
void *jinja_alloc(struct jinja_arena *arena, size_t size, struct err *err);
void jinja_arena_fini(struct jinja_arena *arena);
/* Count some work; ERR_TOO_BIG beyond the arena's limit. jv_weight: of going through a value once. */
int jinja_work(struct jinja_arena *arena, uint64_t amount, struct err *err);
uint64_t jv_weight(const struct jv *value);

/* Making values. Texts are borrowed from where they lie, or copied by jv_copy. */
struct jv jv_bool(bool truth);
struct jv jv_int(int64_t number);
struct jv jv_borrow(const char *text, size_t size);
struct jv jv_undefined(const char *name, size_t size);
int jv_copy(struct jinja_arena *arena, const char *text, size_t size, struct jv *out, struct err *err);
/* A list with room for 'capacity', count 0. */
int jv_list_new(struct jinja_arena *arena, size_t capacity, struct jv *out, struct err *err);
int jv_map_new(struct jinja_arena *arena, struct jv *out, struct err *err);
/* At most JV_MAP_MAX members. */
int jv_map_put(struct jinja_arena *arena, struct jv_map *map, struct jv key, struct jv value,
               struct err *err);
/* Borrowed, or NULL. */
const struct jv *jv_map_get(const struct jv_map *map, const struct jv *key);
const struct jv *jv_map_find(const struct jv_map *map, const char *key, size_t size);
/* A document as a value; texts are borrowed from it. */
int jv_from_json(struct jinja_arena *arena, const json_t *json, struct jv *out, struct err *err);

/* What Python's bool(), == and str() say. Ordering: -1, 0, 1 into *order; false when the two have none. */
bool jv_true(const struct jv *value);
bool jv_equal(const struct jv *a, const struct jv *b);
bool jv_order(const struct jv *a, const struct jv *b, int *order);
int jv_print(const struct jv *value, struct buf *out, struct err *err);
/* Python's json.dumps without ASCII escapes; indent < 0: on one line. ERR_INVALID for what JSON has not. */
int jv_json(const struct jv *value, int indent, struct buf *out, struct err *err);
/* "a text", "a list", … */
const char *jv_kind_name(const struct jv *value);
bool jv_is_text(const struct jv *value, const char *text);
/* int or bool as a number. */
bool jv_number(const struct jv *value, int64_t *number);

/* Characters of a text; where character 'index' begins (the size when there are fewer). */
size_t jv_characters(const struct jv *text);
size_t jv_character_at(const struct jv *text, size_t index);
/* Without blanks (set NULL) or the characters of 'set' at the beginning, at the end. */
struct jv jv_strip(struct jv text, const struct jv *set, bool begin, bool end);
/* Any iterable as a list: characters of a text, keys of a map. ERR_INVALID for others. */
int jv_items(struct jinja_arena *arena, const struct jv *value, struct jv_list *out, struct err *err);

#endif
