/* Declarations that the files behind chat.h share; other rooms do not include them. */
#ifndef MOTLEY_MODEL_TEMPLATES_CHAT_PRIVATE_H
#define MOTLEY_MODEL_TEMPLATES_CHAT_PRIVATE_H

#include "model/templates/chat.h"
#include "model/templates/jinja.h"

struct chat_template {
    struct jinja *jinja;
    struct jinja *tool_use;               /* NULL: rows with tools use `jinja`, too */
    struct err tool_use_error;            /* the error of parsing tool_use, or ERR_NONE */
    bool generation, tool_use_generation; /* the template has {% generation %} */
    int64_t now_s;                        /* the time of strftime_now, in seconds since 1970 */
    char *text;      /* texts of both templates concatenated, for chat_template_names() */
    json_t *special; /* name of a special token -> its text; owned */
};

/* Returns the messages as transformers passes them to a template, new; or NULL with ERR_INVALID that names
 * the message and the key. */
json_t *chat_messages_normal(const json_t *messages, struct err *err);

/* Returns the tools and documents that the template receives: those of kwargs override; null becomes NULL. */
struct chat_rest chat_rest_chosen(const struct chat_rest *rest);

/* Renders messages of chat_messages_normal(); 'marks' may be NULL. Errors are those of jinja_render(). */
int chat_render_names(const struct chat_template *chat, const json_t *messages, const struct chat_rest *rest,
                      bool add_generation, struct buf *text, struct jinja_marks *marks, struct err *err);

/* A conversation that was rendered. */
struct chat_rendering {
    const struct chat_template *chat;
    const json_t *messages; /* as chat_messages_normal() returns them */
    const struct chat_rest *rest;
    bool add_generation;
    const char *text; /* [size] */
    size_t size;
    size_t begin; /* offset of the text in the caller's buffer */
    struct jinja_marks marks;
};

/* Returns the size of text[0..size) without the white space at its end. */
size_t chat_size_without_blanks(const char *text, size_t size);

#endif
