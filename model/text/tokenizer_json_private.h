/* The readers of tokenizer.json's sections share these functions. A member is accepted where the `tokenizers`
 * library accepts it: null or a value of another type is an error and does not mean the default. Only
 * model/text/tokenizer_json*.c include this header. */
#ifndef MOTLEY_MODEL_TEXT_TOKENIZER_JSON_PRIVATE_H
#define MOTLEY_MODEL_TEXT_TOKENIZER_JSON_PRIVATE_H

#include <jansson.h>
#include <stdbool.h>

#include "model/text/tokenizer_build.h"

enum {
    SECTION_DEPTH_MAX = 8, /* greatest depth of nested Sequences */
    JSON_DEPTH = 32        /* greatest depth of values in tokenizer.json */
};

/* Returns the object's "type", or "(none)" where that is no text. */
const char *json_type_of(const json_t *object);
/* Returns true when the object's "type" is 'type'. */
bool json_is_type(const json_t *object, const char *type);

/* What the absence of a member means. */
enum json_absent { JSON_ABSENT_FALSE, JSON_ABSENT_TRUE, JSON_ABSENT_ERROR };

/* Read a boolean member. With 'nullable', null means the same as absence. Errors name the object's type and
 * the key. */
int json_flag(const json_t *object, const char *key, enum json_absent absent, bool nullable, bool *flag,
              struct err *err);
/* Read a text that must be present. *text is borrowed from the object. */
int json_text(const json_t *object, const char *key, const char **text, size_t *size, struct err *err);
/* Read a text that must be present and consist of one character. *text is borrowed from the object. */
int json_character(const json_t *object, const char *key, const char **text, size_t *size, struct err *err);
/* Read an integer from 0 to 'max' that must be present. */
int json_count(const json_t *object, const char *key, uint32_t max, uint32_t *count, struct err *err);
/* Read a list that must be present. *list is borrowed from the object. */
int json_list(const json_t *object, const char *key, const json_t **list, struct err *err);
/* Returns a new pattern made from the member "pattern", {"String": …} or {"Regex": …}, or NULL on errors.
 * *literal is the text of a String that is not empty, and otherwise NULL. */
struct pattern *json_pattern(const json_t *object, const char **literal, size_t *literal_size,
                             struct err *err);

/* The members of a Metaspace, which may be a pre-tokeniser or a decoder. */
enum metaspace_prefix { METASPACE_ALWAYS, METASPACE_FIRST, METASPACE_NEVER };

struct metaspace {
    const char *mark; /* borrowed */
    size_t mark_size;
    enum metaspace_prefix prefix;
    bool split;
};
int json_metaspace(const json_t *object, struct metaspace *out, struct err *err);

/* Check the types of the members that no reader below looks at. ERR_INVALID names the member. */
int json_types_check(const json_t *root, struct err *err);
/* Takes a tokenizer.json that could not be parsed, with the reason in 'err'. The parser does not accept the
 * escape \\u0000; where the file has it, the reason becomes one that names the member. Returns -1. */
int json_nul_name(const char *text, size_t size, struct err *err);

/* Each function reads one section; NULL and JSON's null mean that there is none. */
int json_normalizer_read(struct tokenizer *t, const json_t *normalizer, struct err *err);
int json_pre_tokenizer_read(struct tokenizer *t, const json_t *pre, struct err *err);
int json_decoder_read(struct tokenizer *t, const json_t *decoder, struct err *err);
int json_post_processor_read(struct tokenizer *t, const json_t *post, struct err *err);

#endif
