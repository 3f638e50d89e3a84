/* Flat ranges of a block's areas: the part of a sharded state that one rank keeps (Rajbhandari et al. 2020,
 * ZeRO, section 5), as bytes [begin, end) of the frozen or the trained area of model/shape/layer.h.
 *
 * A range begins and ends at cuts. Cuts are the area's ends; any place between tensors (in the trained area
 * at multiples of 4 bytes); within a copy of a tensor every 256 of its values, where blocks of 8-bit moments
 * and of every packing begin; and within the scales of NF4 every 64 bytes from where the copy begins. So
 * consecutive ranges together hold the whole area byte for byte, and the optimiser can step each range alone.
 *
 * This file also gives the layout of a range's moments. In fp32 moments lie as the values do. In 8 bits each
 * piece has codes, then the largest magnitudes of its blocks; the whole area's moments take
 * layer_tensors.moment_bytes.
 *
 * All functions are pure and allocate nothing. */
#ifndef MOTLEY_MODEL_SHAPE_FLAT_H
#define MOTLEY_MODEL_SHAPE_FLAT_H

#include "model/shape/layer.h"

enum { FLAT_CUT_VALUES = 256 };

enum block_area { AREA_FROZEN, AREA_TRAINED };

/* Returns the bytes of an area of a block. */
uint64_t flat_bytes(const struct layer_tensors *tensors, enum block_area area);
/* Returns the last cut at or before byte `at` of the area; `at` is at most the area's bytes. */
uint64_t flat_cut(const struct layer_tensors *tensors, enum block_area area, uint64_t at);

/* Returns the last cut at or before a share (0 ≤ share) of the area's bytes; from a share of 1 on, the area's
 * end. */
uint64_t flat_share_cut(const struct layer_tensors *tensors, enum block_area area, double share);
/* A member's range of 0..1: it begins at the sum of the shares of the members before it and ends a share
 * further. `shares` has `count` numbers that sum to 1; NULL stands for equal shares. The range of the last
 * member with a share above 0 ends at exactly 1. */
struct flat_share {
    double begin, end;
};
struct flat_share flat_share_of(uint32_t count, const double *shares, uint32_t member);

/* The part of one copy of a trained tensor that lies in a range. */
struct flat_piece {
    const struct layer_tensor *tensor;
    uint32_t copy;
    /* number of the piece's first value in the copy, row by row, and number of values */
    uint64_t first, count;
    uint64_t at; /* offset of the values, in bytes from the beginning of the range */
    /* moment: offset of the piece in each of the two areas of moments, bytes; absmax: with moments8, bytes
     * from `moment` to the scales */
    uint64_t moment, absmax;
};
/* Writes the pieces of [begin, end) of the trained area to pieces[], in the order of tensors, then of copies,
 * or only counts them when pieces is NULL. Returns their number, at most tensors->parameters. */
uint32_t flat_pieces(const struct layer_tensors *tensors, uint64_t begin, uint64_t end,
                     struct flat_piece *pieces);
/* Returns the bytes of one of the two moments of a range. */
uint64_t flat_moment_bytes(const struct layer_tensors *tensors, uint64_t begin, uint64_t end);

/* Returns the bytes of one moment of `count` values of a tensor: codes and scales, or fp32. */
uint64_t flat_piece_moment_bytes(const struct layer_tensor *tensor, uint64_t count);

#endif
