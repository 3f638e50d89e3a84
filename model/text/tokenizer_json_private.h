/* What the readers of tokenizer.json's sections share. Members are taken as the `tokenizers` library takes
 * them: null or another type where it wants a value is an error, and not the default. Private to
 * model/tokenizer_json*.c.
 */
#ifndef MOTLEY_MODEL_TEXT_TOKENIZER_JSON_PRIVATE_H
#define MOTLEY_MODEL_TEXT_TOKENIZER_JSON_PRIVATE_H

#include <jansson.h>
#include <stdbool.h>

#include "model/text/tokenizer_build.h"

enum {
    SECTION_DEPTH_MAX = 8, /* of Sequences in one another */
    JSON_DEPTH = 32        /* of tokenizer.json */
};

const char *json_type_of(const json_t *object); /* "(none)" when it has no text as its "type" */
/* True when its "type" is that text. */
bool json_is_type(const json_t *object, const char *type);

/* What an absent member is. */
enum json_absent { JSON_ABSENT_FALSE, JSON_ABSENT_TRUE, JSON_ABSENT_ERROR };

/* A boolean member; 'nullable': null is as good as absent. Errors name object type and key. */
int json_flag(const json_t *object, const char *key, enum json_absent absent, bool nullable, bool *flag,
              struct err *err);
/* A text that must be there; *text is borrowed from the object. */
int json_text(const json_t *object, const char *key, const char **text, size_t *size, struct err *err);
/* A text that is one character. */
int json_character(const json_t *object, const char *key, const char **text, size_t *size, struct err *err);
/* An integer from 0 to 'max' that must be there. */
int json_count(const json_t *object, const char *key, uint32_t max, uint32_t *count, struct err *err);
/* A list that must be there. */
int json_list(const json_t *object, const char *key, const json_t **list, struct err *err);
/* The member "pattern", {"String": …} or {"Regex": …}: new; *literal, if it is a String of some bytes, is its
 * text and otherwise NULL. NULL on errors. */
struct pattern *json_pattern(const json_t *object, const char **literal, size_t *literal_size,
                             struct err *err);

/* What a Metaspace says; also when it stands among the decoders. */
enum metaspace_prefix { METASPACE_ALWAYS, METASPACE_FIRST, METASPACE_NEVER };

struct metaspace {
    const char *mark; /* borrowed */
    size_t mark_size;
    enum metaspace_prefix prefix;
    bool split;
};
int json_metaspace(const json_t *object, struct metaspace *out, struct err *err);

/* The types of all members that no reader below looks at. ERR_INVALID names the member. */
int json_types_check(const json_t *root, struct err *err);
/* A text that could not be parsed, with its reason in 'err': if it has the escape \\u0000, which the parser
 * does not take, the reason becomes one that names the member. Returns -1. */
int json_nul_name(const char *text, size_t size, struct err *err);

/* The sections; NULL and null are none. */
int json_normalizer_read(struct tokenizer *t, const json_t *normalizer, struct err *err);
int json_pre_tokenizer_read(struct tokenizer *t, const json_t *pre, struct err *err);
int json_decoder_read(struct tokenizer *t, const json_t *decoder, struct err *err);
int json_post_processor_read(struct tokenizer *t, const json_t *post, struct err *err);

#endif
