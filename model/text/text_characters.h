/* What some steps of normalisation make of single characters, as Rust and `tokenizers` have it. Pure. */
#ifndef MOTLEY_MODEL_TEXT_TEXT_CHARACTERS_H
#define MOTLEY_MODEL_TEXT_TEXT_CHARACTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CHARACTER_MAP_BYTES = 16 };

enum character_map {
    MAP_LOWER,        /* Rust's char::to_lowercase */
    MAP_ACCENTS,      /* combining marks go */
    MAP_NMT,          /* Nmt: some control characters go, kinds of white space are a space */
    MAP_BERT_CLEAN,   /* BertNormalizer's clean_text: control characters go, white space is a space */
    MAP_BERT_CHINESE, /* its handle_chinese_chars: a space on both sides of an ideograph */
    MAP_BERT_ACCENTS, /* its strip_accents, after NFD: marks without a width go */
    MAP_BYTE_LEVEL    /* each byte of it by its character in GPT-2's alphabet */
};

/* True when the character is not itself under the map; what it becomes goes to out[0..*size), possibly none.
 */
bool character_map(enum character_map map, uint32_t code, char out[CHARACTER_MAP_BYTES], size_t *size);

/* The byte that a character of GPT-2's byte-level alphabet stands for, or -1: printable Latin-1 stands for
 * itself, the 68 others for U+0100 and up, in order. */
int alphabet_byte(uint32_t code);

#endif
