/* One rendering: what its parts share. Only the files of model/templates include this header.
 *
 * Expressions are in jinja_eval.c, statements in jinja_run.c; functions that return an int give 0 or -1 with
 * the error and its line, and statements may give LEAVE_BREAK or LEAVE_CONTINUE.
 */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_RUN_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_RUN_H

#include "model/templates/jinja.h"
#include "model/templates/jinja_args.h"
#include "model/templates/jinja_node.h"

enum { JINJA_EVAL_DEPTH_MAX = 400 };

/* What a statement ends with, beside 0 and -1. */
enum { LEAVE_BREAK = 1, LEAVE_CONTINUE = 2 };

struct jinja_run {
    struct jinja_arena arena;
    struct jinja_frame *globals;
    int64_t now_s;
    unsigned depth, macros;
    struct buf *out;    /* where output goes now */
    struct buf *result; /* where it goes in the end: what is written there is marked */
    size_t begin;       /* of this rendering in it */
    struct jinja_marks *marks;
    int32_t message; /* the loop's, or -1 */
    bool generation;
    bool placed; /* the error has its line */
    struct err *err;
    /* The statements of a body; the rounds of a loop over 'over' at this depth. */
    int (*block)(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node);
    int (*loop)(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                const struct jv *over, size_t depth);
};

/* Say where it went wrong, once: at the innermost node. Returns -1. */
int jinja_at_line(struct jinja_run *r, const struct jinja_node *node);
/* The error with its line: "what "name"" (name may be NULL). Returns -1. */
int jinja_run_fail(struct jinja_run *r, const struct jinja_node *node, enum err_code code, const char *what,
                   const struct jv *name);
struct jinja_frame *jinja_frame_new(struct jinja_run *r, struct jinja_frame *parent);
int jinja_name_put(struct jinja_run *r, struct jinja_frame *f, const struct jv *name, struct jv value);

/* The value of an expression. */
int jinja_eval(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node, struct jv *out);
/* The arguments of a call, with room for one more name. */
int jinja_args_eval(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                    struct jinja_args *args);
int jinja_macro_call(struct jinja_run *r, const struct jinja_node *node, const struct jv *self,
                     const struct jinja_args *args, struct jv *out);
/* Output of a body as a text. */
int jinja_capture(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *body, struct jv *out);

#endif
