/* Regular expressions are read here as `tokenizers` reads them: in Oniguruma's dialect with Ruby's syntax and
 * Unicode 16. All functions are pure.
 *
 * This module answers two questions about a pattern. First, which pattern means the same to a libonig whose
 * tables are of an older Unicode: every property, \w, \d, \b and bracket such as [:alpha:] is rewritten as a
 * class that includes the newer characters. Second, whether Oniguruma and PCRE2 read the pattern alike, so
 * that PCRE2, which is faster, may match it.
 */
#ifndef MOTLEY_MODEL_TEXT_DIALECT_H
#define MOTLEY_MODEL_TEXT_DIALECT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/text/unicode_tables.h"

/* Append to 'out' the pattern that libonig is to compile in place of 'pattern', which it must accept as it
 * stands. ERR_UNSUPPORTED names a construct that cannot be given Unicode 16's meaning. */
int dialect_oniguruma(const char *pattern, size_t size, struct buf *out, struct err *err);

/* Fails with ERR_INVALID for a quantifier behind an anchor: Oniguruma 6.9.10, which is in `tokenizers`,
 * refuses it, and Debian's 6.9.8 accepts it. Fails with ERR_TOO_BIG when groups are nested too deeply. */
int dialect_targets_check(const char *pattern, size_t size, struct err *err);

/* Returns true when both engines read the pattern alike: it consists of literals, \r \n \t \s \p{general
 * category}, classes without classes in them, groups (?: (?i: (?= (?! and plain ones, alternatives, and
 * quantifiers other than {n,} and {,n} that no further quantifier follows. */
bool dialect_is_common(const char *pattern, size_t size);

/* Append the pattern that PCRE2 is to compile for a pattern that both engines read alike. With 'newer', each
 * general category includes the characters that Unicode 16 adds to it. */
int dialect_pcre2(const char *pattern, size_t size, bool newer, struct buf *out, struct err *err);

/* Append the ranges of a set as they stand inside a character class of either engine. */
int dialect_ranges(const struct code_set *set, struct buf *out, struct err *err);

#endif
