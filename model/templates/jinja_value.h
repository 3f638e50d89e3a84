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
struct jinja_builtin;

/* Memory given out in order and given back at once, and a count of what was done with it. */
struct jinja_arena {
    struct jinja_block *blocks;
    size_t used, limit;
    uint64_t work, work_max;
};

enum jv_kind {
    JV_ABSENT,    /* an argument that is not given */
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
    JV_FUNCTION, /* function: its row */
    JV_METHOD,   /* method: a method with the value that it belongs to */
    JV_LOOP,     /* loop: the variable `loop` */
    JV_CYCLER,   /* counter */
    JV_JOINER,   /* counter */
    JV_TEMPLATE  /* the variable `self` */
};

/* What a JV_LIST is in Python. */
enum jv_form {
    JF_LIST,
    JF_TUPLE,
    JF_RANGE,
    JF_KEYS,    /* of a dict: dict.keys() */
    JF_VALUES,  /* dict.values() */
    JF_PAIRS,   /* dict.items() */
    JF_ITERATOR /* a generator: its items can be taken once */
};

struct jv {
    enum jv_kind kind : 8;
    bool safe;       /* a text is a Markup */
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
        const struct jinja_builtin *function;
        struct jv_method *method;
        struct jv_loop *loop;
        struct jv_counter *counter;
    };
};

struct jv_list {
    enum jv_form form;
    size_t taken;           /* items of an iterator that are gone */
    const char *made_by;    /* the filter that made an iterator, or NULL */
    int64_t range[3];       /* of a JF_RANGE: start, stop, step */
    size_t count, capacity; /* capacity: of a list that grows */
    struct jv *items;
};

struct jv_method {
    const struct jinja_builtin *row;
    struct jv self;
};

struct jv_counter { /* of cycler(…) and joiner(…) */
    struct jv_list items;
    size_t at;
};

struct jv_loop {
    struct jv_list items;
    size_t at, depth;
    size_t peeked;                 /* items that were looked at beyond this one */
    struct jv changed;             /* what loop.changed was called with last */
    const struct jinja_node *node; /* of a recursive loop, else NULL */
    struct jinja_frame *frame;
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
/* Append to a list that grows: made with no capacity, and seen by no one else yet. */
int jv_list_add(struct jinja_arena *arena, struct jv_list *list, struct jv value, struct err *err);
/* A list of some form with these items, borrowed or copied. */
int jv_list_of(struct jinja_arena *arena, enum jv_form form, struct jv *items, size_t count, struct jv *out,
               struct err *err);
int jv_list_copy(struct jinja_arena *arena, enum jv_form form, const struct jv *items, size_t count,
                 struct jv *out, struct err *err);
int jv_pair(struct jinja_arena *arena, struct jv first, struct jv second, struct jv *out, struct err *err);
int jv_map_new(struct jinja_arena *arena, struct jv *out, struct err *err);
/* At most JV_MAP_MAX members; ERR_INVALID for a key that cannot be hashed. */
int jv_map_put(struct jinja_arena *arena, struct jv_map *map, struct jv key, struct jv value,
               struct err *err);
/* Borrowed, or NULL. */
const struct jv *jv_map_get(const struct jv_map *map, const struct jv *key);
const struct jv *jv_map_find(const struct jv_map *map, const char *key, size_t size);
/* A document as a value; texts are borrowed from it. */
int jv_from_json(struct jinja_arena *arena, const json_t *json, struct jv *out, struct err *err);

/* What Python's bool() and == say. */
bool jv_true(const struct jv *value);
bool jv_equal(const struct jv *a, const struct jv *b);
/* Whether Python's hash() takes it. */
bool jv_hashable(const struct jv *value);
/* -1, 0, 1, or 2 for numbers of which none is less (NaN) into *order; false when the two have no order. */
bool jv_order(const struct jv *a, const struct jv *b, int *order);
/* "a text", "a list", … */
const char *jv_kind_name(const struct jv *value);
bool jv_is_text(const struct jv *value, const char *text);
bool jv_is_list(const struct jv *value, enum jv_form form);
/* Not given, or none. */
bool jv_is_left_out(const struct jv *value);
/* int or bool as a number; any number as a floating point number. */
bool jv_number(const struct jv *value, int64_t *number);
bool jv_real(const struct jv *value, double *real);
struct jv jv_float(double real);

/* The code point at text[at], and where the next character begins. */
size_t jv_next(const struct jv *text, size_t at, uint32_t *code);
/* Where the character before 'at' (above 0) begins. */
size_t jv_before(const struct jv *text, size_t at, uint32_t *code);
/* Characters of a text; where character 'index' begins (the size when there are fewer). */
size_t jv_characters(const struct jv *text);
size_t jv_character_at(const struct jv *text, size_t index);
/* Without blanks (set NULL) or the characters of 'set' at the beginning, at the end. */
struct jv jv_strip(struct jv text, const struct jv *set, bool begin, bool end);
/* Any iterable as a list: characters of a text, keys of a map. An iterator's items are gone then. ERR_INVALID
 * for others. */
int jv_items(struct jinja_arena *arena, const struct jv *value, struct jv_list *out, struct err *err);

#endif
