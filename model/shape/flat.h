/* Flat ranges of a block's areas: what a rank keeps of a state that is shared out (Rajbhandari et al. 2020,
 * ZeRO, section 5), as bytes [begin, end) of the frozen or the trained area of model/shape/layer.h.
 *
 * A range begins and ends at cuts: the area's ends, any place between tensors (of the trained area a
 * multiple of 4 bytes), and within a copy of a tensor every 256 of its values (blocks of 8-bit moments and
 * whole blocks of any packing begin there); within the scales of NF4, every 64 bytes from where the copy
 * begins. So ranges that follow one
 * another hold together, byte for byte, what the whole area holds, and each can be stepped by itself.
 *
 * Moments of a range are placed here, too. In fp32 they lie as the values do. In 8 bits each piece has codes
 * and behind them the largest magnitudes of its blocks; of the whole area that is layer_tensors.moment_bytes.
 *
 * Pure, no allocation.
 */
#ifndef MOTLEY_MODEL_SHAPE_FLAT_H
#define MOTLEY_MODEL_SHAPE_FLAT_H

#include "model/shape/layer.h"

enum { FLAT_CUT_VALUES = 256 };

enum block_area { AREA_FROZEN, AREA_TRAINED };

/* Bytes of an area of a block. */
uint64_t flat_bytes(const struct layer_tensors *tensors, enum block_area area);
/* The last cut at or before byte `at` of the area, at ≤ its bytes. */
uint64_t flat_cut(const struct layer_tensors *tensors, enum block_area area, uint64_t at);

/* The part of one copy of a trained tensor that lies in a range. */
struct flat_piece {
    const struct layer_tensor *tensor;
    uint32_t copy;
    uint64_t first, count;   /* values of the copy, in the order of its rows */
    uint64_t at;             /* bytes from where the range begins */
    uint64_t moment, absmax; /* bytes into each moments' area; from there to the scales, with moments8 */
};
/* Pieces of [begin, end) of the trained area in the order of tensors, then of copies, into pieces[]; NULL:
 * they are only counted. Returns how many, at most tensors->parameters. */
uint32_t flat_pieces(const struct layer_tensors *tensors, uint64_t begin, uint64_t end,
                     struct flat_piece *pieces);
/* Bytes of one of the two moments of a range. */
uint64_t flat_moment_bytes(const struct layer_tensors *tensors, uint64_t begin, uint64_t end);

/* Bytes of one moment of `count` values of a tensor, codes and scales or fp32. */
uint64_t flat_piece_moment_bytes(const struct layer_tensor *tensor, uint64_t count);

#endif
