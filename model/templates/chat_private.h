/* What the files of chat.h share. Not for other rooms. */
#ifndef MOTLEY_MODEL_TEMPLATES_CHAT_PRIVATE_H
#define MOTLEY_MODEL_TEMPLATES_CHAT_PRIVATE_H

#include "model/templates/chat.h"
#include "model/templates/jinja.h"

struct chat_template {
    struct jinja *jinja;
    struct jinja *tool_use;    /* NULL: there is none of its own for rows with tools */
    struct err tool_use_error; /* why it could not be parsed; ERR_NONE: there is none, or it could */
    bool generation, tool_use_generation; /* whether the text has {% generation %} */
    char *text;                           /* both texts, one behind the other: to look for words in */
    json_t *special;                      /* name of a special token -> its text; owned */
};

/* The messages as transformers hands them to a template. Returns new, or NULL with ERR_INVALID that names
 * the message and the key. */
json_t *chat_messages_normal(const json_t *messages, struct err *err);

/* Tools and documents as the template has them: those of kwargs come first; null is NULL. */
struct chat_rest chat_rest_chosen(const struct chat_rest *rest);

/* Render normal messages; 'marks' may be NULL. Errors as jinja_render(). */
int chat_render_names(const struct chat_template *chat, const json_t *messages, const struct chat_rest *rest,
                      bool add_generation, struct buf *text, struct jinja_marks *marks, struct err *err);

/* A conversation that was rendered. */
struct chat_rendering {
    const struct chat_template *chat;
    const json_t *messages; /* normal */
    const struct chat_rest *rest;
    bool add_generation;
    const char *text; /* [size] */
    size_t size;
    size_t begin; /* where the text lies in the caller's buffer */
    struct jinja_marks marks;
};

/* Bytes that are left of text[0..size) without the blanks at its end. */
size_t chat_size_without_blanks(const char *text, size_t size);

#endif
