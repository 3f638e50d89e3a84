/* Regular expressions as `tokenizers` reads them: Oniguruma's, in Ruby's syntax, with Unicode 16. Pure.
 *
 * Two things are known of a pattern here. Which other pattern says the same where the library's own tables
 * are of an older Unicode: every property, \w, \d, \b and bracket such as [:alpha:] is written as a class
 * that has the newer characters in it. And whether it lies wholly within what Oniguruma and PCRE2 read alike,
 * so that the faster of the two may match it.
 */
#ifndef MOTLEY_MODEL_TEXT_DIALECT_H
#define MOTLEY_MODEL_TEXT_DIALECT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/text/unicode_tables.h"

/* Append to 'out' what Oniguruma is to compile for a pattern that it takes as it stands. ERR_UNSUPPORTED
 * names what cannot be given Unicode 16's meaning. */
int dialect_oniguruma(const char *pattern, size_t size, struct buf *out, struct err *err);

/* ERR_INVALID for a quantifier behind an anchor: Oniguruma 6.9.10, which `tokenizers` has, refuses it,
 * and 6.9.8 takes it. ERR_TOO_BIG: too many groups in one another. */
int dialect_targets_check(const char *pattern, size_t size, struct err *err);

/* True when both engines read the pattern alike: literals, \r \n \t \s \p{general category}, flat classes,
 * groups (?: (?i: (?= (?! and plain ones, alternatives, and quantifiers with both bounds, not followed by
 * another. */
bool dialect_is_common(const char *pattern, size_t size);

/* Append what PCRE2 is to compile for a common pattern; 'newer': with the characters of unicode_newer in
 * their categories. */
int dialect_pcre2(const char *pattern, size_t size, bool newer, struct buf *out, struct err *err);

/* Append a set's ranges as the inside of a class of either engine. */
int dialect_ranges(const struct code_set *set, struct buf *out, struct err *err);

#endif
