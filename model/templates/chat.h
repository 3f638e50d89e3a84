/* Renders messages by a chat template into the text that a model was trained to read.
 *
 * Templates are Jinja texts (jinja.h): the model's own, or one made from what the job's specification gives
 * by name (`data.chat_template: chatml`) or as an object:
 *
 *   - "begin": "" is put before everything;
 *   - "system", "user", "assistant", …: "<|im_start|>system\n{content}<|im_end|>\n", one text per role.
 *     {content} stands for the message's text. A message of a role without a text is refused;
 *   - "generation": "<|im_start|>assistant\n" is put at the end when an answer is to be generated;
 *   - "default_system": a text or null, used when the first message is not the system's;
 *   - "trim": true strips white space around each content.
 *
 * Names: `chatml` (the model's own template if that is ChatML), `chatml-plain`, `llama3`, `llama3.1`.
 * A template receives the variables that apply_chat_template of transformers 5.24 gives it: messages with
 * every key that is not null, reasoning under `reasoning_content` and `thinking`, tools, documents,
 * add_generation_prompt, the special tokens by their names, and kwargs. strftime_now tells the day that
 * the template was made with.
 *
 * Pure; a template is immutable once made.
 */
#ifndef MOTLEY_MODEL_TEMPLATES_CHAT_H
#define MOTLEY_MODEL_TEMPLATES_CHAT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/text/tokenizer.h"

struct chat_template;

enum { CHAT_MESSAGES_MAX = 4096, CHAT_RENDERED_MAX = 64 << 20 };

/* The templates and tokens that came with a model; all is borrowed. */
struct chat_given {
    const char *template;  /* Jinja text, or NULL */
    const char *tool_use;  /* the template for conversations with tools; NULL: the same template */
    const json_t *special; /* name of a special token -> its text, or NULL */
    const char *bos, *eos; /* texts of the begin and end tokens, which override `special`; or NULL */
    size_t bos_size, eos_size;
    int64_t now_s;                     /* the time of strftime_now, in seconds since 1970; 0: 26 July 2024 */
    const struct tokenizer *tokenizer; /* has the tokens that a template by name writes; NULL: not checked */
};

/* Returns the templates and tokens of a tokenizer, borrowed from it; empty if it is NULL. 'day' is data.day,
 * or NULL. */
struct chat_given chat_given_by(const struct tokenizer *tokenizer, const char *day);

/* The other arguments of apply_chat_template; NULL or null becomes None. Borrowed. */
struct chat_rest {
    const json_t *tools;     /* list of objects */
    const json_t *documents; /* list of objects */
    /* object: further variables; its tools and documents override the two members above */
    const json_t *kwargs;
};

/* Whether a part of a rendered conversation is learnt. */
enum chat_part {
    CHAT_GIVEN,  /* not part of an answer */
    CHAT_LEARNT, /* an assistant's answer */
    CHAT_MUTED   /* an assistant's answer in a message with `weight: 0` or `train: false` */
};

/* A part of a rendered conversation, in bytes of the text. An answer is the text inside {% generation %}. In
 * a template without it an answer is the text written for an assistant's message, tool calls and end marker
 * included, without the head that add_generation_prompt writes and without white space at the end. */
struct chat_span {
    size_t begin, end;
    enum chat_part part;
};

struct chat_spans { /* a struct of zeroes is an empty list */
    struct chat_span *items;
    size_t count, capacity;
    bool touching; /* a token is learnt if any of its bytes belongs to an answer, as in transformers' mask of
                      {% generation %}; false: if all of its bytes do */
};
void chat_spans_fini(struct chat_spans *spans);

/* Chooses the template: 'choice' is the specification's data.chat_template (NULL, string or object); 'given'
 * is borrowed for the call. ERR_UNSUPPORTED and ERR_INVALID say what is wrong, in which line, and how to give
 * another template. Writes a new template to *chat (chat_template_destroy). */
int chat_template_choose(const json_t *choice, const struct chat_given *given, struct chat_template **chat,
                         struct err *err);
void chat_template_destroy(struct chat_template *chat);

/* Appends the text of a conversation to 'text'. 'messages' is a list of objects with a role and the other
 * keys that the template reads; 'rest' may be NULL. With add_generation the text ends with the beginning of
 * an assistant's turn. 'spans', unless NULL, receives spans that cover the text without gaps;
 * ERR_UNSUPPORTED: the learnt part cannot be determined. ERR_INVALID and ERR_UNSUPPORTED name the message and
 * the key. Other errors are those of jinja_render(), among them ERR_INVALID for the template's own
 * raise_exception. */
int chat_render(const struct chat_template *chat, const json_t *messages, const struct chat_rest *rest,
                bool add_generation, struct buf *text, struct chat_spans *spans, struct err *err);

/* Returns true if the template's text contains the word, so that it may read a variable of that name. */
bool chat_template_names(const struct chat_template *chat, const char *word);
/* Returns true for apply_chat_template()'s own arguments, such as `padding`, which are no template variables.
 */
bool chat_is_argument(const char *name);

/* Writes to *learn whether the message at 'index' is an assistant's and has neither `weight: 0` nor
 * `train: false`. ERR_UNSUPPORTED names a value of these keys that is not supported. */
int chat_message_learn(const json_t *message, size_t index, bool *learn, struct err *err);

/* Writes to *mute whether any assistant's message is excluded from learning. Errors are those of
 * chat_message_learn(). */
int chat_messages_mute(const json_t *messages, bool *mute, struct err *err);

#endif
