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
 * A template is given what transformers' apply_chat_template gives it (transformers 5.24): messages with
 * every key that is not null, reasoning under `reasoning_content` and `thinking`, tools, documents,
 * add_generation_prompt, the special tokens by their names, and kwargs. strftime_now tells a day that does
 * not change.
 *
 * Pure; a template is immutable once made.
 */
#ifndef MOTLEY_MODEL_TEMPLATES_CHAT_H
#define MOTLEY_MODEL_TEMPLATES_CHAT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/text/tokenizer.h"

struct chat_template;

enum { CHAT_MESSAGES_MAX = 4096, CHAT_RENDERED_MAX = 64 << 20 };

/* What came with a model; all is borrowed. */
struct chat_given {
    const char *template;  /* Jinja text, or NULL */
    const char *tool_use;  /* the one for conversations with tools, or NULL: the same */
    const json_t *special; /* name of a special token -> its text, or NULL */
    const char *bos, *eos; /* texts of begin and end tokens, or NULL; come before 'special' */
    size_t bos_size, eos_size;
};

/* Of a tokenizer (NULL: nothing); borrowed from it. */
struct chat_given chat_given_by(const struct tokenizer *tokenizer);

/* What apply_chat_template is given beside the messages; NULL or null: None. Borrowed. */
struct chat_rest {
    const json_t *tools;     /* list of objects */
    const json_t *documents; /* list of objects */
    const json_t *kwargs;    /* object: further names of the template; tools and documents in it come first */
};

/* Whether a part of a rendered conversation is learnt. */
enum chat_part {
    CHAT_GIVEN,  /* no answer */
    CHAT_LEARNT, /* an assistant's */
    CHAT_MUTED   /* an assistant's, of a message that says `weight: 0` or `train: false` */
};

/* A part of a rendered conversation, in bytes of the text. An answer is what stands in a template's
 * {% generation %}, or if it has none what it writes at an assistant's message: that text, tool calls among
 * it, and the end marker after it, without the head that is given when an answer is asked for and without
 * white space at the end. */
struct chat_span {
    size_t begin, end;
    enum chat_part part;
};

struct chat_spans { /* zero it to begin */
    struct chat_span *items;
    size_t count, capacity;
    bool touching; /* a token of which any byte is an answer's is one, as transformers' mask of {% generation
                      %} has it; false: one of which all bytes are */
};
void chat_spans_fini(struct chat_spans *spans);

/* Choose the template: 'choice' is the specification's data.chat_template (NULL, string or object); 'given'
 * is borrowed for the call. ERR_UNSUPPORTED and ERR_INVALID say what was found, in which line, and how to
 * give another. Returns new: chat_template_destroy(). */
int chat_template_choose(const json_t *choice, const struct chat_given *given, struct chat_template **chat,
                         struct err *err);
void chat_template_destroy(struct chat_template *chat);

/* Append the text of a conversation to 'text'. 'messages' is a list of objects with a role and whatever else
 * the template reads; 'rest' may be NULL. add_generation ends it with the beginning of an assistant's turn.
 * If 'spans' is not NULL it receives spans that cover the text without gaps; ERR_UNSUPPORTED when it cannot
 * be told what to learn. ERR_INVALID and ERR_UNSUPPORTED name the message and the key. Else errors as
 * jinja_render(), ERR_INVALID for what the template refuses by raise_exception among them. */
int chat_render(const struct chat_template *chat, const json_t *messages, const struct chat_rest *rest,
                bool add_generation, struct buf *text, struct chat_spans *spans, struct err *err);

/* Whether the template's text has the word, so that a name of that kind may reach it. */
bool chat_template_names(const struct chat_template *chat, const char *word);
/* True of apply_chat_template()'s own arguments (`padding`, say), which are no names of a template's. */
bool chat_is_argument(const char *name);

/* Whether a message, the one at 'index', is an assistant's and says nothing (`weight: 0`, `train: false`)
 * against being learnt. ERR_UNSUPPORTED names what it says that cannot be done. */
int chat_message_learn(const json_t *message, size_t index, bool *learn, struct err *err);

/* Whether any assistant's message says that it is not learnt; errors as above. */
int chat_messages_mute(const json_t *messages, bool *mute, struct err *err);

#endif
