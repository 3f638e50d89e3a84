/* Jinja as transformers sets it up for chat templates: the sandboxed environment of jinja2 3.1 with
 * trim_blocks, lstrip_blocks, break and continue, {% generation %}, raise_exception, strftime_now and a
 * tojson of its own.
 *
 * A template is rendered as jinja2 renders it, or refused with the line and the name of what is wrong or is
 * not done here. Not done are: include, import, from, extends, block, autoescape that is on, the filters
 * random and urlize, the function lipsum, some methods of Python's values (rows of the tables that say so),
 * integers beyond 64 bits, and texts that hold an address of memory (a generator written as a text). They are
 * refused when they are reached; a filter or test that jinja2 does not have is refused where jinja2 refuses
 * it, mostly when a template is parsed.
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
