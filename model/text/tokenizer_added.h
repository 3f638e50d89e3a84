/* Tokens that files add to a tokenizer, and the vocabulary of them as `tokenizers` 0.23 keeps it. Private to
 * model/tokenizer*.c.
 *
 * A token (transformers' AddedToken) is a JSON object with a content, those flags that its file gave it
 * ("normalized" that is not said is the opposite of "special") and a mark that it is one.
 */
#ifndef MOTLEY_MODEL_TEXT_TOKENIZER_ADDED_H
#define MOTLEY_MODEL_TEXT_TOKENIZER_ADDED_H

#include <jansson.h>
#include <stdbool.h>

#include "common/err.h"

/* A member of the entries that tokenizer.json's list gets here: the token was once added as one that is
 * normalised, and `tokenizers` goes on decoding it so. */
extern const char added_was_normalised[];

/* 'object' (content and flags; members that no token has are passed over, as there) as a token; special: 1 or
 * 0, or -1: as the object says. 'file' and 'key' name the place in errors. Returns new. */
json_t *added_token(const json_t *object, int special, const char *file, const char *key, struct err *err);
bool added_is_token(const json_t *value);
bool added_flag(const json_t *token, const char *flag);
/* The content of a token, or the text itself; NULL for anything else. Borrowed. */
json_t *added_content(const json_t *value);
/* True for two tokens whose content and flags are the same, and for equal texts. */
bool added_equal(const json_t *a, const json_t *b);

struct added_vocabulary {
    const json_t *vocab; /* of the model: text -> id; borrowed */
    json_t *ids;         /* content -> id */
    json_t *tokens;      /* id in decimal -> the token last put there */
    json_t *special;     /* contents that are special */
    json_int_t next;     /* least id that no added token and no token of the vocabulary has */
};

/* 'vocab' may be NULL. ERR_NOMEM. Release with added_vocabulary_fini(), after errors, too. */
int added_vocabulary_init(struct added_vocabulary *v, const json_t *vocab, struct err *err);
void added_vocabulary_fini(struct added_vocabulary *v);
/* add_tokens of the library: a token that is there keeps its id and has its flags from now on, and what was
 * special stays special. 'list' holds tokens alone. */
int added_vocabulary_put(struct added_vocabulary *v, const json_t *list, struct err *err);
/* The token of that content, or NULL. Borrowed. */
const json_t *added_vocabulary_find(const struct added_vocabulary *v, const json_t *content);
/* All of them as tokenizer.json's added_tokens have them, in the order of their ids. Returns new;
 * ERR_NOMEM. */
json_t *added_vocabulary_list(const struct added_vocabulary *v, struct err *err);

/* What the files beside tokenizer.json say of tokens. */
struct added_names {
    json_t *decoder; /* id in decimal -> token */
    json_t *named;   /* name -> special token, a text or a token, in transformers' order */
    json_t *extra;   /* further special tokens, texts or tokens */
    bool keeps;      /* the added tokens of tokenizer.json itself are there from the beginning */
    bool repeats;    /* all special tokens are added once more at the end, without flags */
};

/* Put into 'root', tokenizer.json parsed, the added tokens that the tokenizer has in the end. */
int added_tokens_apply(const struct added_names *names, json_t *root, struct err *err);

#endif
