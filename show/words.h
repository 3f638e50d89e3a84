/* Phrases that the table, the programs and the picture share. For this room only; pure. */
#ifndef MOTLEY_SHOW_WORDS_H
#define MOTLEY_SHOW_WORDS_H

#include <stddef.h>
#include <stdint.h>

/* Describes blocks [begin, end) of a model with `count` blocks (PROGRAM.md: 0 is the embedding, layers follow
 * from 1, the last is the head): "everything", "embedding, layers 1-8", "layer 9", "layers 30-32, head".
 * Returns out. */
char *words_range(char *out, size_t size, int32_t begin, int32_t end, int32_t count);

/* Compares a time with the plan's: "the same", "1.3 % more", "2.0 % less", "1.54 times as long". */
char *words_ratio(char out[48], double seconds, double base);

#endif
