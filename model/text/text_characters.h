/* Maps of single characters for steps of normalisation, with the results of Rust and `tokenizers`. All
 * functions are pure. */
#ifndef MOTLEY_MODEL_TEXT_TEXT_CHARACTERS_H
#define MOTLEY_MODEL_TEXT_TEXT_CHARACTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest result has 8 bytes: a character of 4 bytes, each as 2 bytes of UTF-8 in GPT-2's alphabet. */
enum { CHARACTER_MAP_BYTES = 16 };

enum character_map {
    MAP_LOWER,   /* Rust's char::to_lowercase */
    MAP_ACCENTS, /* combining marks are removed */
    MAP_NMT,     /* the normaliser Nmt: some control characters are removed, and kinds of white space become a
                    space */
    /* BertNormalizer's clean_text: control characters are removed, and white space becomes a space */
    MAP_BERT_CLEAN,
    MAP_BERT_CHINESE, /* BertNormalizer's handle_chinese_chars: an ideograph gets a space on both sides */
    MAP_BERT_ACCENTS, /* BertNormalizer's strip_accents, which runs after NFD: nonspacing marks are removed */
    MAP_BYTE_LEVEL    /* each byte of the character becomes a character of GPT-2's alphabet */
};

/* Returns true when the map changes the character. What it becomes is then written to out[0..*size), where
 * *size may be 0. */
bool character_map(enum character_map map, uint32_t code, char out[CHARACTER_MAP_BYTES], size_t *size);

/* Returns the byte that a character of GPT-2's byte-level alphabet stands for, or -1. A printable Latin-1
 * character stands for itself; U+0100 and up stand for the other 68 bytes in order. */
int alphabet_byte(uint32_t code);

#endif
