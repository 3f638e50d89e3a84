/* The pipelines that transformers' tokenizer classes build themselves, whatever tokenizer.json says. Private
 * to model/tokenizer*.c.
 */
#ifndef MOTLEY_MODEL_TEXT_TOKENIZER_CLASS_H
#define MOTLEY_MODEL_TEXT_TOKENIZER_CLASS_H

#include <jansson.h>
#include <stdbool.h>

#include "common/err.h"

struct tokenizer_class;

/* What the files say of a tokenizer's class; each may be NULL. */
struct tokenizer_class_words {
    const char *declared; /* tokenizer_class of tokenizer_config.json, which may be "" */
    const char *config;   /* and of config.json */
    const char *model_type;
};

/* The class that AutoTokenizer takes; *class NULL: the one that reads tokenizer.json as it stands. 'root':
 * tokenizer.json. ERR_UNSUPPORTED names a class whose pipeline is not known here. */
int tokenizer_class_find(const struct tokenizer_class_words *words, const json_t *root,
                         const struct tokenizer_class **class, struct err *err);
/* Put the class's sections into 'root'. 'config': members of tokenizer_config.json; 'named': the special
 * tokens by name, texts or tokens of tokenizer_added.h. */
int tokenizer_class_build(const struct tokenizer_class *class, const json_t *config, const json_t *named,
                          json_t *root, struct err *err);
/* True when the class ends by adding all its special tokens once more, without flags; NULL: false. */
bool tokenizer_class_repeats(const struct tokenizer_class *class);
/* Special tokens that the class has where nothing names them, as an object: new. */
json_t *tokenizer_class_defaults(const struct tokenizer_class *class);

#endif
