/* A pattern is what a tokenizer looks for in a text: a regular expression in Oniguruma's dialect, a literal
 * text, or characters of a set.
 *
 * Oniguruma (libonig), which `tokenizers` uses too, matches regular expressions. Where both engines read a
 * pattern alike (dialect.h), PCRE2's just-in-time code matches it instead, several times as fast. The limit
 * of Oniguruma's retries in one match is its default, at which `tokenizers` gives up too; its stack and the
 * retries of a whole search are bounded besides. A pattern is immutable; a search belongs to one thread at a
 * time.
 */
#ifndef MOTLEY_MODEL_TEXT_PATTERN_H
#define MOTLEY_MODEL_TEXT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "model/text/unicode_tables.h"

struct pattern;
struct pattern_search;

enum { PATTERN_BYTES = 65536 };

/* Each constructor returns a new pattern, or NULL with ERR_INVALID (`tokenizers` refuses the regular
 * expression), ERR_UNSUPPORTED (`tokenizers` takes it and Motley does not), ERR_TOO_BIG or ERR_NOMEM.
 * pattern_destroy() releases it. */
struct pattern *pattern_regex(const char *text, size_t size, struct err *err);
/* Makes a pattern that matches this text literally. An empty text matches before every character and at the
 * end. */
struct pattern *pattern_literal(const char *text, size_t size, struct err *err);
/* Makes a pattern that matches one character of the set. With 'runs' it matches runs of characters of the
 * set, and runs of characters that are neither in the set nor white space. */
struct pattern *pattern_set(const struct code_set *set, bool runs, struct err *err);
/* pattern_space() matches one character of white space; pattern_characters() matches 'count' characters of
 * any kind, or as many as are left. */
struct pattern *pattern_space(struct err *err);
struct pattern *pattern_characters(unsigned count, struct err *err);
void pattern_destroy(struct pattern *pattern);

/* Returns a new search for the pattern, or NULL with ERR_NOMEM. */
struct pattern_search *pattern_search_create(const struct pattern *pattern, struct err *err);
void pattern_search_destroy(struct pattern_search *search);

/* pattern_begin() starts the search in a text (valid UTF-8; borrowed until the search ends). pattern_next()
 * returns 1 with the byte offsets of the next match, 0 if there is none, or -1 with *err. Matches are those
 * of the onig crate: an empty match is passed over where the match before it ended. */
void pattern_begin(struct pattern_search *search, const char *text, size_t size);
int pattern_next(struct pattern_search *search, size_t *begin, size_t *end, struct err *err);

#endif
