/* Checked decoding and encoding of UTF-8. All functions are pure and may be called from any thread. */
#ifndef MOTLEY_MODEL_TEXT_UTF8_H
#define MOTLEY_MODEL_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decode the character at text[0..size), size > 0. Returns its length in bytes (1..4) and writes the code
 * point; or returns 0 and writes to *bad_bytes the length of the maximal invalid part (Unicode 15, section
 * 3.9, "Substitution of Maximal Subparts"), which lossy decoding replaces by one U+FFFD. *short_input becomes
 * true if the text ends in the middle of a character that further bytes may complete, and else false; the
 * pointer may be NULL. */
unsigned utf8_decode(const uint8_t *text, size_t size, uint32_t *code, unsigned *bad_bytes,
                     bool *short_input);

/* Reads the character at text[at], at < size. Writes its code point, or U+FFFD for an invalid part, and
 * returns the offset behind it, which is always greater than 'at'. */
size_t utf8_next(const char *text, size_t size, size_t at, uint32_t *code);

/* Returns the offset of the first byte that is not valid UTF-8, or 'size' if the whole text is valid. */
size_t utf8_check(const char *text, size_t size);

/* Write a code point (below 0x110000); returns the number of bytes, 1..4. */
unsigned utf8_encode(uint32_t code, uint8_t out[4]);

/* Returns true for a character with Unicode's White_Space property. */
bool utf8_is_space(uint32_t code);
/* Returns true for a character that Python's str.isspace() accepts and its strip() removes: White_Space and
 * the control characters U+001C to U+001F. */
bool utf8_is_blank(uint32_t code);

#endif
