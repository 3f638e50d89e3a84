/* Names of modules against patterns as peft reads them: regular expressions of Python's `re`, matched by
 * PCRE2.
 *
 * What the two would read differently is refused (verbs, recursion, POSIX classes, escapes that Python does
 * not know), so that a pattern means here what it means there. Work is counted in steps of the matching and
 * bounded by what the caller has left of it: a hostile pattern ends with an error that names it.
 */
#ifndef MOTLEY_MODEL_SHAPE_LORA_MATCH_H
#define MOTLEY_MODEL_SHAPE_LORA_MATCH_H

#include <stdint.h>

#include "common/err.h"

enum lora_match_how {
    LORA_MATCH_WHOLE, /* re.fullmatch(pattern, name): target_modules, exclude_modules */
    LORA_MATCH_KEY,   /* re.match(r"(.*\.)?(pattern)$", name): keys of rank_pattern and alpha_pattern */
    LORA_MATCH_LAYER  /* re.match(r"(?:^|.*?\.)pattern\.(?P<idx>\d+)\.", name): layers_pattern */
};

/* Steps for all patterns on all modules of a model together, a tenth of a second or two. A hundred patterns
 * on the 882 matrices of a model of 126 layers take half of them; plain names take none. */
#define LORA_MATCH_STEPS 4000000ull

struct lora_matcher;

/* Returns new in *out. ERR_INVALID: it is no regular expression, or one that Python would read otherwise. */
int lora_matcher_create(const char *pattern, enum lora_match_how how, struct lora_matcher **out,
                        struct err *err);
void lora_matcher_destroy(struct lora_matcher *matcher);
/* 1 when 'name' matches, 0 when not, -1 (ERR_TOO_BIG) when it takes more than *steps, which it lowers. Of
 * LORA_MATCH_LAYER *layer becomes the number found; else 'layer' may be NULL. A matcher is used by one thread
 * at a time. */
int lora_match(struct lora_matcher *matcher, const char *name, uint64_t *steps, uint32_t *layer,
               struct err *err);

#endif
