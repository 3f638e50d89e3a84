/* Patterns that tokenizers look for in a text: a regular expression as Oniguruma reads it, a text as it
 * stands, or characters of a set.
 *
 * Regular expressions are matched by Oniguruma (libonig), which `tokenizers` has too, and by PCRE2 with
 * just-in-time code where both read the pattern alike (dialect.h): it is several times as fast. Oniguruma's
 * limit of tries is its own default, at which `tokenizers` gives up too; memory and tries over all are
 * bounded besides. A pattern is immutable; a search belongs to one thread at a time.
 */
#ifndef MOTLEY_MODEL_TEXT_PATTERN_H
#define MOTLEY_MODEL_TEXT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "common/digest.h"
#include "common/err.h"
#include "model/text/unicode_tables.h"

struct pattern;
struct pattern_search;

enum { PATTERN_BYTES = 65536 };

/* Each returns new, or NULL with ERR_INVALID (no regular expression to tokenizers), ERR_UNSUPPORTED (what it
 * has that is not done), ERR_TOO_BIG or ERR_NOMEM; pattern_destroy() ends it. */
struct pattern *pattern_regex(const char *text, size_t size, struct err *err);
/* This very text. Empty: it is found before every character and at the end. */
struct pattern *pattern_literal(const char *text, size_t size, struct err *err);
/* One character of the set; or 'runs' of characters of it, and runs of what is neither of it nor white space.
 */
struct pattern *pattern_set(const struct code_set *set, bool runs, struct err *err);
/* One character of white space, and 'count' characters of any kind or as many as are left. */
struct pattern *pattern_space(struct err *err);
struct pattern *pattern_characters(unsigned count, struct err *err);
void pattern_destroy(struct pattern *pattern);

/* Add what it looks for to a digest. */
int pattern_digest(const struct pattern *pattern, struct digest *digest, struct err *err);

/* Which engine matches it; for tests. */
bool pattern_is_fast(const struct pattern *pattern);

/* What a search needs beside the pattern, new, or NULL with ERR_NOMEM. */
struct pattern_search *pattern_search_create(const struct pattern *pattern, struct err *err);
void pattern_search_destroy(struct pattern_search *search);

/* Begin with a text (valid UTF-8; borrowed until the search ends), and find its next match: 1 with its
 * bounds, 0 if there is none, -1. Matches are those of the onig crate: an empty one is not found where the
 * match before it ended. */
void pattern_begin(struct pattern_search *search, const char *text, size_t size);
int pattern_next(struct pattern_search *search, size_t *begin, size_t *end, struct err *err);

#endif
