/* A small subset of Jinja (Jinja 3's documentation; the settings are those of transformers' chat templates:
 * trim_blocks, lstrip_blocks, break and continue, {% generation %}), enough for the templates that models
 * bring.
 *
 * Statements: for (with filter, else, unpacking; loop.index, index0, revindex, revindex0, first, last,
 * length, previtem, nextitem), if/elif/else, set (of names, of a namespace's attributes, of blocks, through
 * filters), macro, call, filter, with, raw, break, continue, generation. Expressions as in Jinja, without
 * *args and without formatting by %. Filters, tests and methods are rows of the tables in jinja_call.c;
 * functions are namespace, range, dict, raise_exception and strftime_now. Another filter, test, method or
 * function is refused when it is reached, with its line and name; other statements (include, import, extends,
 * block) and attributes that begin with two underscores when the template is parsed. Letters change their
 * case one for one.
 *
 * Nothing is reached from a template but what it is given: no files, no clock. Nesting, steps, memory and
 * output are bounded (JINJA_*). A parsed template is immutable and may be rendered by several threads at
 * once.
 */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct jinja;

enum {
    JINJA_SOURCE_BYTES_MAX = 1 << 20,
    JINJA_DEPTH_MAX = 64,             /* of parentheses, blocks, macro calls */
    JINJA_STEPS_MAX = 20000000,       /* nodes evaluated in one rendering */
    JINJA_MEMORY_BYTES_MAX = 64 << 20 /* of values in one rendering */
};

/* Parse. Errors: ERR_INVALID (no Jinja) and ERR_UNSUPPORTED (beyond the subset), both with the line;
 * ERR_TOO_BIG. Returns new: jinja_destroy(). */
int jinja_parse(const char *text, size_t size, struct jinja **jinja, struct err *err);
void jinja_destroy(struct jinja *jinja);

/* A stretch of the output, bytes from the beginning of what was rendered: written while a loop over
 * `messages` stood at that message (-1: at none), and inside {% generation %} or not. */
struct jinja_mark {
    size_t begin, end;
    int32_t message;
    bool generation;
};

struct jinja_marks { /* zero it to begin */
    struct jinja_mark *items;
    size_t count, capacity;
};
void jinja_marks_fini(struct jinja_marks *marks);

/* Render with the members of 'variables' (an object) as names; the elements of its `messages` are what marks
 * speak of. now_s is what strftime_now tells (seconds since 1970, UTC). Appends to 'out'; 'marks' may be
 * NULL, else receives stretches in order, without gaps. Errors, with the line: ERR_INVALID (a value that the
 * template cannot be used with, or what it says by raise_exception), ERR_UNSUPPORTED, ERR_TOO_BIG over a
 * bound. On error 'out' is as before. */
int jinja_render(const struct jinja *jinja, const json_t *variables, int64_t now_s, struct buf *out,
                 struct jinja_marks *marks, struct err *err);

#endif
