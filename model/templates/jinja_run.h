/* The state of one rendering, shared by the evaluator of expressions (jinja_eval.c) and that of statements
 * (jinja_run.c). Only the files of model/templates include this header. Functions that return an int return
 * 0, or -1 with an error that names the line; statements may also return LEAVE_BREAK or LEAVE_CONTINUE. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_RUN_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_RUN_H

#include "model/templates/jinja.h"
#include "model/templates/jinja_args.h"
#include "model/templates/jinja_node.h"

enum { JINJA_EVAL_DEPTH_MAX = 400 };

/* Return values of a statement, beside 0 and -1. */
enum { LEAVE_BREAK = 1, LEAVE_CONTINUE = 2 };

struct jinja_run {
    struct jinja_arena arena;
    struct jinja_frame *globals;
    int64_t now_s;
    unsigned depth, macros;
    struct buf *out;    /* the buffer that output is appended to */
    struct buf *result; /* the rendering's final buffer; text written to it receives marks */
    size_t begin;       /* offset at which this rendering begins in `result` */
    struct jinja_marks *marks;
    int32_t message; /* index in `messages` at which a loop over them is, or -1 */
    bool generation;
    bool placed; /* the error in `err` names its line already */
    struct err *err;
    /* `block` runs the statements of a body. `loop` runs a loop over the items of 'over'; 'depth' is the
     * depth of recursive loops. */
    int (*block)(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node);
    int (*loop)(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                const struct jv *over, size_t depth);
};

/* Adds the node's line to the error, unless an inner node has done so. Returns -1. */
int jinja_at_line(struct jinja_run *r, const struct jinja_node *node);
/* Sets the error to "line N: what "name"" (name may be NULL). Returns -1. */
int jinja_run_fail(struct jinja_run *r, const struct jinja_node *node, enum err_code code, const char *what,
                   const struct jv *name);
struct jinja_frame *jinja_frame_new(struct jinja_run *r, struct jinja_frame *parent);
int jinja_name_put(struct jinja_run *r, struct jinja_frame *f, const struct jv *name, struct jv value);

/* Evaluates an expression. */
int jinja_eval(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node, struct jv *out);
/* Evaluates the arguments of a call; the arrays have room for one more named argument. */
int jinja_args_eval(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                    struct jinja_args *args);
int jinja_macro_call(struct jinja_run *r, const struct jinja_node *node, const struct jv *self,
                     const struct jinja_args *args, struct jv *out);
/* Runs a body and writes its output as a text to *out. */
int jinja_capture(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *body, struct jv *out);

#endif
