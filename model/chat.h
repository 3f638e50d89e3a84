/* Chat templates: messages -> the text a model was trained to read.
 *
 * Jinja is not interpreted. A template is one of the known families, recognised from the model's own template
 * text, or given in the job's specification by name (`data.chat_template: chatml`) or as an object:
 *
 *   {"begin": "",                                            put before everything
 *    "system": "<|im_start|>system\n{content}<|im_end|>\n",  one per role; {content} stands for the text
 *    "user": "...", "assistant": "...",                      a role without one is refused
 *    "generation": "<|im_start|>assistant\n",                put at the end when an answer is to be generated
 *    "default_system": "..." | null,                         used when the first message is not from the
 * system "trim": false}                                          strip white space around each content
 *
 * Names: `chatml` (default system prompt only if the model's template has one), `chatml-smollm`,
 * `chatml-qwen2`, `llama3`.
 *
 * Pure; a template is immutable once made.
 */
#ifndef MOTLEY_MODEL_CHAT_H
#define MOTLEY_MODEL_CHAT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"
#include "common/err.h"

struct chat_template;

enum { CHAT_MESSAGES_MAX = 4096 };

struct chat_message {
    const char *role;    /* "system", "user", "assistant" */
    const char *content; /* UTF-8, NUL-terminated */
};

/* A part of a rendered conversation, in bytes of the text: what to learn is what an assistant wrote and the
 * end marker after it. */
struct chat_span {
    size_t begin, end;
    bool learn;
};

/* Choose the template: 'choice' is the specification's data.chat_template (NULL, string or object);
 * 'model_template' is the Jinja text that came with the model, or NULL. ERR_UNSUPPORTED says what was found
 * and how to give one. Returns new: chat_template_destroy(). */
int chat_template_choose(const json_t *choice, const char *model_template, struct chat_template **chat,
                         struct err *err);
void chat_template_destroy(struct chat_template *chat);
/* The name of the family, or "custom". */
const char *chat_template_name(const struct chat_template *chat);

/* Append the conversation's text to 'text'. add_generation ends it with the beginning of an assistant's turn.
 * If 'spans' is not NULL it receives room for 2*count+3 spans, cut where learning begins and ends, covering
 * the text without gaps, and *span_count their number. ERR_INVALID names the message and what is wrong with
 * it. */
int chat_render(const struct chat_template *chat, const struct chat_message *messages, size_t count,
                bool add_generation, struct buf *text, struct chat_span *spans, size_t *span_count,
                struct err *err);

/* Read {"messages": [{"role", "content"}, ...]}'s array. Strings stay owned by 'messages'. Writes at most
 * 'capacity' entries, returns the number or -1. */
int chat_messages_from_json(const json_t *messages, struct chat_message *out, size_t capacity,
                            struct err *err);

#endif
