/* Words that the table, the programs and the picture share. For this room only; pure. */
#ifndef MOTLEY_SHOW_WORDS_H
#define MOTLEY_SHOW_WORDS_H

#include <stddef.h>
#include <stdint.h>

/* What blocks [begin, end) of a model are to a reader, of `count` blocks altogether (PROGRAM.md: 0 the
 * embedding, then the layers from 1, last the head): "everything", "embedding, layers 1-8", "layer 9",
 * "layers 30-32, head". Returns out. */
char *words_range(char *out, size_t size, int32_t begin, int32_t end, int32_t count);

/* How a time compares with the plan's: "the same", "1.3 % more", "2.0 % less", "1.54 times as long".
 */
char *words_ratio(char out[48], double seconds, double base);

#endif
