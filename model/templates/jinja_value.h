/* Values of a template that is being rendered, in an arena that is freed as a whole. Only the files of
 * model/templates include this header.
 *
 * Texts are UTF-8; lengths and indices that a template sees count characters. A list or map does not change
 * once another value refers to it, except for namespaces and frames of variables.
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

/* Memory that is allocated in order and freed as a whole, and a count of the work that was done. */
struct jinja_arena {
    struct jinja_block *blocks;
    size_t used, limit;
    uint64_t work, work_max;
};

enum jv_kind {
    JV_ABSENT,    /* an argument that is not given */
    JV_UNDEFINED, /* text: the name that is undefined, for messages */
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_FLOAT,
    JV_TEXT,
    JV_LIST,
    JV_MAP,
    JV_NAMESPACE, /* a map that can be changed */
    JV_MACRO,
    JV_FUNCTION, /* function: the function's table row */
    JV_METHOD,   /* method: a method with the value that it belongs to */
    JV_LOOP,     /* loop: the variable `loop` */
    JV_CYCLER,   /* counter: the state of cycler(…) */
    JV_JOINER,   /* counter: the state of joiner(…) */
    JV_TEMPLATE  /* the variable `self` */
};

/* The Python type that a JV_LIST stands for. */
enum jv_form {
    JF_LIST,
    JF_TUPLE,
    JF_RANGE,
    JF_KEYS,    /* dict.keys() */
    JF_VALUES,  /* dict.values() */
    JF_PAIRS,   /* dict.items() */
    JF_ITERATOR /* a generator, whose items can be taken once */
};

struct jv {
    enum jv_kind kind : 8;
    bool safe;       /* a text is a Markup */
    int32_t message; /* of a map: 1 + its index in `messages`; 0: it is no message */
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
            struct jinja_frame *frame; /* the scope in which it was defined */
        };
        const struct jinja_builtin *function;
        struct jv_method *method;
        struct jv_loop *loop;
        struct jv_counter *counter;
    };
};

struct jv_list {
    enum jv_form form;
    size_t taken;           /* number of items that were taken from an iterator */
    const char *made_by;    /* the filter that made an iterator, or NULL */
    int64_t range[3];       /* JF_RANGE: start, stop, step */
    size_t count, capacity; /* capacity: room for items, in lists that grow */
    struct jv *items;
};

struct jv_method {
    const struct jinja_builtin *row;
    struct jv self;
};

struct jv_counter { /* the state of cycler(…) and joiner(…) */
    struct jv_list items;
    size_t at;
};

struct jv_loop {
    struct jv_list items;
    size_t at, depth;
    size_t peeked;                 /* number of items that were read ahead of the current one */
    struct jv changed;             /* the arguments of the last call of loop.changed */
    const struct jinja_node *node; /* the JN_FOR of a recursive loop, else NULL */
    struct jinja_frame *frame;
};

struct jv_map { /* keys and values are in order of insertion */
    size_t count, capacity;
    struct jv *keys, *values;
};

enum { JV_MAP_MAX = 4096 };

/* The variables of a scope. */
struct jinja_frame {
    struct jv_map names;
    struct jinja_frame *parent;
};

/* Returns zeroed memory, or NULL with ERR_TOO_BIG or ERR_NOMEM. */
void *jinja_alloc(struct jinja_arena *arena, size_t size, struct err *err);
void jinja_arena_fini(struct jinja_arena *arena);
/* Adds to the count of work; ERR_TOO_BIG beyond the arena's limit. jv_weight() is the work of traversing a
 * value once. */
int jinja_work(struct jinja_arena *arena, uint64_t amount, struct err *err);
uint64_t jv_weight(const struct jv *value);

/* These functions make values. Texts are borrowed; jv_copy() copies a text. */
struct jv jv_bool(bool truth);
struct jv jv_int(int64_t number);
struct jv jv_borrow(const char *text, size_t size);
struct jv jv_undefined(const char *name, size_t size);
int jv_copy(struct jinja_arena *arena, const char *text, size_t size, struct jv *out, struct err *err);
/* Makes an empty list with room for 'capacity' items. */
int jv_list_new(struct jinja_arena *arena, size_t capacity, struct jv *out, struct err *err);
/* Appends to a list that was made without capacity and that no other value refers to yet. */
int jv_list_add(struct jinja_arena *arena, struct jv_list *list, struct jv value, struct err *err);
/* Make a list of a form: jv_list_of() borrows the items, jv_list_copy() copies them. */
int jv_list_of(struct jinja_arena *arena, enum jv_form form, struct jv *items, size_t count, struct jv *out,
               struct err *err);
int jv_list_copy(struct jinja_arena *arena, enum jv_form form, const struct jv *items, size_t count,
                 struct jv *out, struct err *err);
int jv_pair(struct jinja_arena *arena, struct jv first, struct jv second, struct jv *out, struct err *err);
int jv_map_new(struct jinja_arena *arena, struct jv *out, struct err *err);
/* Sets a member, of at most JV_MAP_MAX. ERR_INVALID: the key cannot be hashed. */
int jv_map_put(struct jinja_arena *arena, struct jv_map *map, struct jv key, struct jv value,
               struct err *err);
/* Return the value of a key, borrowed, or NULL. */
const struct jv *jv_map_get(const struct jv_map *map, const struct jv *key);
const struct jv *jv_map_find(const struct jv_map *map, const char *key, size_t size);
/* Makes a value of a JSON document, whose texts are borrowed. */
int jv_from_json(struct jinja_arena *arena, const json_t *json, struct jv *out, struct err *err);

/* Return what Python's bool() and == return. */
bool jv_true(const struct jv *value);
bool jv_equal(const struct jv *a, const struct jv *b);
/* Returns true if Python's hash() accepts the value. */
bool jv_hashable(const struct jv *value);
/* Writes -1, 0 or 1 to *order, or 2 for numbers without an order (NaN). Returns false if values of these
 * kinds cannot be compared. */
bool jv_order(const struct jv *a, const struct jv *b, int *order);
/* Returns the kind of a value for messages: "a text", "a list", … */
const char *jv_kind_name(const struct jv *value);
bool jv_is_text(const struct jv *value, const char *text);
bool jv_is_list(const struct jv *value, enum jv_form form);
/* Returns true for an argument that is absent or None. */
bool jv_is_left_out(const struct jv *value);
/* Read an int or bool as a whole number, and any number as a floating point number. Return false for others.
 */
bool jv_number(const struct jv *value, int64_t *number);
bool jv_real(const struct jv *value, double *real);
struct jv jv_float(double real);

/* Writes the code point at text[at] to *code and returns where the next character begins. */
size_t jv_next(const struct jv *text, size_t at, uint32_t *code);
/* Returns where the character before 'at' (> 0) begins, and writes its code point. */
size_t jv_before(const struct jv *text, size_t at, uint32_t *code);
/* Return the number of characters, and the offset at which character 'index' begins (the size if there are
 * fewer). */
size_t jv_characters(const struct jv *text);
size_t jv_character_at(const struct jv *text, size_t index);
/* Returns the text without white space (set NULL) or the characters of 'set' at its beginning or end. */
struct jv jv_strip(struct jv text, const struct jv *set, bool begin, bool end);
/* Makes a list of any iterable: the characters of a text, the keys of a map, the items of an iterator, which
 * are then taken. ERR_INVALID: the value is not iterable. */
int jv_items(struct jinja_arena *arena, const struct jv *value, struct jv_list *out, struct err *err);

#endif
