/* The 256 values of bitsandbytes' 8-bit dynamic data type (Dettmers 2015, arXiv:1511.04561), as its
 * create_dynamic_map computes them: decades from 1e-6 to 1, each with twice as many fractions as the decade
 * below. The signed map codes NF4's nested scales and AdamW's first moments, the unsigned map
 * second moments. */
#ifndef MOTLEY_MODEL_FILES_DYNAMIC_MAP_H
#define MOTLEY_MODEL_FILES_DYNAMIC_MAP_H

#include <stdbool.h>

enum { DYNAMIC_MAP_SIZE = 256 };

/* Fills map[DYNAMIC_MAP_SIZE] in rising order, with the same bits as bitsandbytes' table. The function is
 * pure. */
void dynamic_map(bool with_sign, float *map);

#endif
