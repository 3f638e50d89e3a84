/* Matches names of modules with patterns as peft does: regular expressions of Python's `re`, run by PCRE2.
 *
 * Patterns that PCRE2 would read differently are refused (verbs, recursion, POSIX classes, escapes that
 * Python does not know), so that a pattern means the same as in Python. Matching is counted in steps, and the
 * caller bounds them: a hostile pattern ends with an error that names it. */
#ifndef MOTLEY_MODEL_SHAPE_LORA_MATCH_H
#define MOTLEY_MODEL_SHAPE_LORA_MATCH_H

#include <stdint.h>

#include "common/err.h"

enum lora_match_how {
    LORA_MATCH_WHOLE, /* re.fullmatch(pattern, name): target_modules, exclude_modules */
    LORA_MATCH_KEY,   /* re.match(r"(.*\.)?(pattern)$", name): keys of rank_pattern and alpha_pattern */
    LORA_MATCH_LAYER  /* re.match(r"(?:^|.*?\.)pattern\.(?P<idx>\d+)\.", name): layers_pattern */
};

/* Budget of matching steps for all patterns on all modules of a model together, one to two tenths of a
 * second. A hundred patterns on the 882 matrices of a model of 126 layers take half of it; plain names take
 * none. */
#define LORA_MATCH_STEPS 4000000ull

struct lora_matcher;

/* Returns a new matcher in *out. ERR_INVALID: the pattern is no regular expression, or Python would read it
 * otherwise. */
int lora_matcher_create(const char *pattern, enum lora_match_how how, struct lora_matcher **out,
                        struct err *err);
void lora_matcher_destroy(struct lora_matcher *matcher);
/* Returns 1 when 'name' matches, 0 when not, -1 (ERR_TOO_BIG) when matching takes more than *steps, from
 * which the steps used are subtracted. With LORA_MATCH_LAYER *layer becomes the number found; with the others
 * 'layer' may be NULL. One thread at a time uses a matcher. */
int lora_match(struct lora_matcher *matcher, const char *name, uint64_t *steps, uint32_t *layer,
               struct err *err);

#endif
