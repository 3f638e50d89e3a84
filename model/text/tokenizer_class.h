/* Some of transformers' tokenizer classes build their own pipeline in place of the one in tokenizer.json.
 * Only model/text/tokenizer*.c include this header. */
#ifndef MOTLEY_MODEL_TEXT_TOKENIZER_CLASS_H
#define MOTLEY_MODEL_TEXT_TOKENIZER_CLASS_H

#include <jansson.h>
#include <stdbool.h>

#include "common/err.h"

struct tokenizer_class;

/* The names that the files give for a tokenizer's class and family; each may be NULL. */
struct tokenizer_class_words {
    const char *declared; /* tokenizer_class of tokenizer_config.json, which may be "" */
    const char *config;   /* tokenizer_class of config.json */
    const char *model_type;
};

/* Find the class that AutoTokenizer takes. *class NULL stands for the class that uses tokenizer.json as it
 * is. 'root' is the parsed tokenizer.json. ERR_UNSUPPORTED names a class whose pipeline is not known here. */
int tokenizer_class_find(const struct tokenizer_class_words *words, const json_t *root,
                         const struct tokenizer_class **class, struct err *err);
/* Put the class's sections into 'root', the parsed tokenizer.json. 'config' holds the members of
 * tokenizer_config.json; 'named' holds the special tokens by name, each a text or a token of
 * tokenizer_added.h. */
int tokenizer_class_build(const struct tokenizer_class *class, const json_t *config, const json_t *named,
                          json_t *root, struct err *err);
/* Returns true when the class's constructor ends by adding all its special tokens once more, without flags;
 * false for NULL. */
bool tokenizer_class_repeats(const struct tokenizer_class *class);
/* Returns a new object of the special tokens that the class has where no file names them: name -> text. */
json_t *tokenizer_class_defaults(const struct tokenizer_class *class);

#endif
