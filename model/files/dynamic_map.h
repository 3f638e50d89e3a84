/* The 256 values of bitsandbytes' 8-bit dynamic data type (Dettmers 2015, arXiv:1511.04561, as its
 * create_dynamic_map computes it): decades from 1e-6 to 1, each with twice the fractions of the one below.
 * Signed: for scales of scales and first moments. Unsigned: for second moments.
 */
#ifndef MOTLEY_MODEL_FILES_DYNAMIC_MAP_H
#define MOTLEY_MODEL_FILES_DYNAMIC_MAP_H

#include <stdbool.h>

enum { DYNAMIC_MAP_SIZE = 256 };

/* Fill map[DYNAMIC_MAP_SIZE], rising; the same bits as bitsandbytes' table. Pure. */
void dynamic_map(bool with_sign, float *map);

#endif
