/* These tables hold the kinds of characters in which `tokenizers` differs from Debian 12's libonig, PCRE2 and
 * utf8proc: their Unicode is of version 14 or 15, that of the Oniguruma in `tokenizers` is 16, and Rust's own
 * is 17. All functions are pure and may be called from any thread. */
#ifndef MOTLEY_MODEL_TEXT_UNICODE_TABLES_H
#define MOTLEY_MODEL_TEXT_UNICODE_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct code_range {
    uint32_t first, last;
};

/* A set of code points: ranges in rising order, of which no two touch. */
struct code_set {
    const struct code_range *ranges;
    unsigned count;
};

/* A property of a regular expression ("l", "han"), with the code points that Unicode 16 adds to it and
 * removes from it. The name is in lower case, without spaces, '-' and '_'. */
struct unicode_property {
    const char *name;
    struct code_set added, removed;
};

struct code_pair {
    uint32_t from, to;
};

/* A map of code points: pairs in rising order of 'from'. */
struct code_map {
    const struct code_pair *pairs;
    unsigned count;
};

/* Returns how a property differs between versions of Unicode; NULL when it is unknown, or the same in
 * both. */
const struct unicode_property *unicode_property_find(const char *name);

/* Returns true when a range of the set holds the code point. */
bool code_set_has(const struct code_set *set, uint32_t code);

/* Returns the code point that the map has for 'code', or else 'code' itself. */
uint32_t code_map_find(const struct code_map *map, uint32_t code);

/* The characters for which Rust's char::is_numeric is true; the pre-tokeniser Digits cuts at them. */
extern const struct code_set unicode_numeric;
/* The characters at which the pre-tokenisers Punctuation and BertPreTokenizer cut. */
extern const struct code_set unicode_punctuation;
/* The characters of \w in Rust's regex crate. The pre-tokeniser Whitespace and added tokens with
 * "single_word" go by them. */
extern const struct code_set unicode_word;

/* The characters whose general category differs between Unicode 16 and 14; all are from U+0800 on. */
extern const struct code_set unicode_newer;
/* The characters whose lower case in Rust is not the one that utf8proc gives. */
extern const struct code_map unicode_lower;
/* The characters that the crate unicode-normalization-alignments leaves as they are, though utf8proc changes
 * them: no form changes them, and the marks before and behind them stay apart. */
extern const struct code_set unicode_unformed;
/* The characters that the normalisers StripAccents, Nmt and BertNormalizer remove, turn into a space or put
 * between spaces. */
extern const struct code_set unicode_accents, unicode_nmt_gone, unicode_nmt_space, unicode_bert_gone,
    unicode_bert_space, unicode_bert_chinese, unicode_bert_accents;

/* All properties, in the order of their names. Only unicode_properties.c and unicode_find.c use them. */
extern const struct unicode_property unicode_properties[];
extern const unsigned unicode_property_count;

#endif
