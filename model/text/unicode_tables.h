/* What kind of character a code point is where `tokenizers` has it otherwise than Debian 12's libonig, PCRE2
 * and utf8proc: their Unicode is of version 14 or 15, its Oniguruma's of 16, and Rust's own of 17. Pure; any
 * thread.
 */
#ifndef MOTLEY_MODEL_TEXT_UNICODE_TABLES_H
#define MOTLEY_MODEL_TEXT_UNICODE_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct code_range {
    uint32_t first, last;
};

/* Ranges in order, none touching the next. */
struct code_set {
    const struct code_range *ranges;
    unsigned count;
};

/* A property of a regular expression ("l", "han"; lower case, without spaces, '-' and '_'): what is to be
 * added to it and taken from it. */
struct unicode_property {
    const char *name;
    struct code_set added, removed;
};

struct code_pair {
    uint32_t from, to;
};

/* Pairs in order. */
struct code_map {
    const struct code_pair *pairs;
    unsigned count;
};

/* NULL: it is not known, or the same in both. */
const struct unicode_property *unicode_property_find(const char *name);

/* True when a range of the set holds the code point. */
bool code_set_has(const struct code_set *set, uint32_t code);

/* What the map says, or the code point itself. */
uint32_t code_map_find(const struct code_map *map, uint32_t code);

/* Rust's char::is_numeric, which Digits cuts at. */
extern const struct code_set unicode_numeric;
/* What Punctuation and BertPreTokenizer cut at. */
extern const struct code_set unicode_punctuation;
/* \w of Rust's regex, which Whitespace and single-word added tokens go by. */
extern const struct code_set unicode_word;

/* What is of another general category with Unicode 16 than with 14; all of it is from U+0800 on. */
extern const struct code_set unicode_newer;
/* Where Rust's lower case is another than utf8proc's. */
extern const struct code_map unicode_lower;
/* What the crate unicode-normalization-alignments leaves as it is though utf8proc knows it: no form changes
 * these characters, and marks before and behind them are apart. */
extern const struct code_set unicode_unformed;
/* What the normalisers StripAccents, Nmt and BertNormalizer take away, make a space or set apart. */
extern const struct code_set unicode_accents, unicode_nmt_gone, unicode_nmt_space, unicode_bert_gone,
    unicode_bert_space, unicode_bert_chinese, unicode_bert_accents;

/* Private to unicode_properties.c and unicode_find.c: in order of names. */
extern const struct unicode_property unicode_properties[];
extern const unsigned unicode_property_count;

#endif
