/* Chat templates: messages -> the text a model was trained to read.
 *
 * Templates are Jinja texts (jinja.h): the model's own, or one made from what the job's specification gives
 * by name (`data.chat_template: chatml`) or as an object:
 *
 *   {"begin": "",                                            put before everything
 *    "system": "<|im_start|>system\n{content}<|im_end|>\n",  one per role; {content} stands for the text
 *    "user": "...", "assistant": "...",                      a role without one is refused
 *    "generation": "<|im_start|>assistant\n",                put at the end when an answer is to be generated
 *    "default_system": "..." | null,                         used when the first message is not from the
 * system "trim": false}                                          strip white space around each content
 *
 * Names: `chatml` (the model's own template if that is ChatML), `chatml-plain`, `llama3`, `llama3.1`.
 * A template knows messages, add_generation_prompt, bos_token, eos_token, and tools and documents as none, as
 * in transformers' apply_chat_template; strftime_now tells a day that does not change.
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
#include "model/tokenizer.h"

struct chat_template;

enum { CHAT_MESSAGES_MAX = 4096, CHAT_RENDERED_MAX = 64 << 20 };

/* What came with a model: its template (Jinja text, or NULL), and the texts of its begin and end tokens
 * (NULL: none). */
struct chat_given {
    const char *template;
    const char *bos, *eos;
    size_t bos_size, eos_size;
};

/* Of a tokenizer (NULL: nothing); borrowed from it. */
struct chat_given chat_given_by(const struct tokenizer *tokenizer);

struct chat_message {
    const char *role;    /* "system", "user", "assistant" */
    const char *content; /* UTF-8, NUL-terminated */
};

/* A part of a rendered conversation, in bytes of the text: what to learn is what stands in a template's
 * {% generation %}, or if it has none what it writes at an assistant's message: that text and the end marker
 * after it, without the head that is given when an answer is asked for and without white space at the end. */
struct chat_span {
    size_t begin, end;
    bool learn;
};

/* Choose the template: 'choice' is the specification's data.chat_template (NULL, string or object); 'given'
 * is borrowed for the call. ERR_UNSUPPORTED and ERR_INVALID say what was found, in which line, and how to
 * give another. Returns new: chat_template_destroy(). */
int chat_template_choose(const json_t *choice, const struct chat_given *given, struct chat_template **chat,
                         struct err *err);
void chat_template_destroy(struct chat_template *chat);

/* Append the conversation's text to 'text'. add_generation ends it with the beginning of an assistant's turn.
 * If 'spans' is not NULL it receives room for 2*count+3 spans, cut where learning begins and ends, covering
 * the text without gaps, and *span_count their number; ERR_UNSUPPORTED when it cannot be told what to learn.
 * Else errors as jinja_render(), ERR_INVALID for what the template refuses by raise_exception among them. */
int chat_render(const struct chat_template *chat, const struct chat_message *messages, size_t count,
                bool add_generation, struct buf *text, struct chat_span *spans, size_t *span_count,
                struct err *err);

/* Read {"messages": [{"role", "content"}, ...]}'s array. Strings stay owned by 'messages'. Writes at most
 * 'capacity' entries, returns the number or -1. */
int chat_messages_from_json(const json_t *messages, struct chat_message *out, size_t capacity,
                            struct err *err);

#endif
