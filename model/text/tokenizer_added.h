/* The tokens that files add to a tokenizer, and the vocabulary of added tokens as `tokenizers` 0.23 keeps it.
 * Only model/text/tokenizer*.c include this header.
 *
 * A token (transformers' AddedToken) is a JSON object with a content, the flags that its file states, and a
 * mark that it is a token. Where "normalized" is not stated, it is the opposite of "special".
 */
#ifndef MOTLEY_MODEL_TEXT_TOKENIZER_ADDED_H
#define MOTLEY_MODEL_TEXT_TOKENIZER_ADDED_H

#include <jansson.h>
#include <stdbool.h>

#include "common/err.h"

/* Key of a member that added_vocabulary_list() adds to an entry of tokenizer.json's list: the token was once
 * added as a normalised one, and `tokenizers` still decodes it as its normalised text. */
extern const char added_was_normalised[];

/* Returns a new token made from 'object': a text, or an object with a content and flags, whose other members
 * are ignored as transformers ignores them. 'special' is 1 or 0, or -1 to take the object's own flag. 'file'
 * and 'key' name the place in errors. Returns NULL on errors. */
json_t *added_token(const json_t *object, int special, const char *file, const char *key, struct err *err);
bool added_is_token(const json_t *value);
bool added_flag(const json_t *token, const char *flag);
/* Returns the content of a token, or 'value' itself where it is a text; NULL for any other value.
 * Borrowed. */
json_t *added_content(const json_t *value);
/* Returns true for two tokens with the same content and flags, and for two equal texts. */
bool added_equal(const json_t *a, const json_t *b);

struct added_vocabulary {
    const json_t *vocab; /* the model's vocabulary, text -> id; borrowed */
    json_t *ids;         /* content of an added token -> its id */
    json_t *tokens;      /* id in decimal -> the token that was put there last */
    json_t *special;     /* contents of special tokens, each -> true */
    /* id of the next new token: the vocabulary's size, or one above the largest id of an added token */
    json_int_t next;
};

/* 'vocab' may be NULL. Fails with ERR_NOMEM. added_vocabulary_fini() releases 'v', after an error too. */
int added_vocabulary_init(struct added_vocabulary *v, const json_t *vocab, struct err *err);
void added_vocabulary_fini(struct added_vocabulary *v);
/* Do what add_tokens of `tokenizers` does: a token whose content is known keeps its id and takes the new
 * flags, and a content that was special stays special. 'list' holds tokens only. */
int added_vocabulary_put(struct added_vocabulary *v, const json_t *list, struct err *err);
/* Returns the added token with that content, or NULL. Borrowed. */
const json_t *added_vocabulary_find(const struct added_vocabulary *v, const json_t *content);
/* Returns a new list of all added tokens in the form of tokenizer.json's added_tokens and in the order of
 * their ids, or NULL with ERR_NOMEM. */
json_t *added_vocabulary_list(const struct added_vocabulary *v, struct err *err);

/* The tokens that the files beside tokenizer.json name. */
struct added_names {
    json_t *decoder; /* tokens that the files give an id: id in decimal -> token */
    json_t *named;   /* name -> special token, a text or a token, in transformers' order */
    json_t *extra;   /* further special tokens, texts or tokens */
    bool keeps;      /* true: the added tokens of tokenizer.json itself are put in first */
    bool repeats;    /* true: all special tokens are added once more at the end, without flags */
};

/* Replace added_tokens in 'root', the parsed tokenizer.json, by all the added tokens that transformers'
 * tokenizer has once it is built. */
int added_tokens_apply(const struct added_names *names, json_t *root, struct err *err);

#endif
