/* Jinja as transformers sets it up for chat templates: the sandboxed environment of jinja2 3.1 with
 * trim_blocks, lstrip_blocks, break and continue, {% generation %}, raise_exception, strftime_now and a
 * tojson of its own.
 *
 * A template is rendered as jinja2 renders it, or refused with the line and the name of the construct that is
 * wrong or not supported. Not supported are: include, import, from, extends, block, autoescape that is on,
 * the filters random and urlize, the function lipsum, some methods of Python's values (their table rows say
 * jinja_not_done), integers beyond 64 bits, and texts that contain a memory address (a printed generator).
 * They are refused when they are reached; a filter or test that jinja2 does not have is refused where jinja2
 * refuses it, mostly when a template is parsed.
 *
 * A template can read its variables only: no files and no clock. Nesting, steps, memory and output are
 * bounded (JINJA_*). A parsed template is immutable and may be rendered by several threads at once.
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
    JINJA_DEPTH_MAX = 64,             /* nesting of parentheses, blocks and macro calls */
    JINJA_TREE_DEPTH_MAX = 1000,      /* nodes above one another, as in 1 + 1 + 1 + … */
    JINJA_STEPS_MAX = 20000000,       /* nodes evaluated in one rendering */
    JINJA_MEMORY_BYTES_MAX = 64 << 20 /* memory of the values in one rendering */
};

/* Parses a template. Errors: ERR_INVALID (not Jinja) and ERR_UNSUPPORTED (a construct that is not supported),
 * both with the line; ERR_TOO_BIG. Writes a new template to *jinja (jinja_destroy). */
int jinja_parse(const char *text, size_t size, struct jinja **jinja, struct err *err);
void jinja_destroy(struct jinja *jinja);

/* A range of bytes of one rendering's output that was written while a loop over `messages` was at one message
 * (-1: outside such a loop), either inside {% generation %} or outside. */
struct jinja_mark {
    size_t begin, end;
    int32_t message;
    bool generation;
};

struct jinja_marks { /* a struct of zeroes is an empty list */
    struct jinja_mark *items;
    size_t count, capacity;
};
void jinja_marks_fini(struct jinja_marks *marks);

/* Renders the template with the members of 'variables', an object, as its variables, and appends to 'out'.
 * now_s is the time of strftime_now (seconds since 1970, UTC). 'marks' may be NULL; otherwise it receives
 * ranges in order and without gaps, whose message is an index into variables.messages. Errors of the template
 * name its line: ERR_INVALID (an operation that fails on these values, or the template's raise_exception),
 * ERR_UNSUPPORTED, ERR_TOO_BIG (a limit of JINJA_* is exceeded). Errors without a line: ERR_TOO_BIG (the
 * variables alone exceed a limit), ERR_NOMEM, ERR_INTERNAL ('variables' is no object). After an error 'out'
 * is unchanged. */
int jinja_render(const struct jinja *jinja, const json_t *variables, int64_t now_s, struct buf *out,
                 struct jinja_marks *marks, struct err *err);

#endif
