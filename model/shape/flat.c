/* Cuts, the places at which an area may be divided (flat.h), are found by a walk over the layer's tensors and
 * their copies. A layer has few of them, so no results are kept. */
#include "model/shape/flat.h"

enum { MOMENT8_BLOCK = 256, SCALES_UNIT = 64, VALUE = 4 };

static uint64_t flat_aligned(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Returns the bytes of 256 values in the tensor's packing, without NF4's scales; GGUF's blocks hold 32 or 256
 * values. */
static uint64_t cut_bytes(const struct layer_tensor *tensor)
{
    static const uint64_t bytes[PACK_KINDS] = {
        [PACK_F32] = 1024, [PACK_BF16] = 512, [PACK_F16] = 512,  [PACK_NF4] = 128,  [PACK_NF4_DOUBLE] = 128,
        [PACK_Q4_0] = 144, [PACK_Q4_1] = 160, [PACK_Q8_0] = 272, [PACK_Q4_K] = 144, [PACK_Q5_K] = 176,
        [PACK_Q6_K] = 210, [PACK_Q5_0] = 176, [PACK_Q5_1] = 192, [PACK_MXFP4] = 136};
    return bytes[tensor->trained ? PACK_F32 : tensor->pack];
}

static uint64_t flat_values_of(const struct layer_tensor *tensor)
{
    return (uint64_t)tensor->rows * tensor->columns;
}

/* Returns the bytes of one copy without its scales. */
static uint64_t codes_bytes(const struct layer_tensor *tensor)
{
    uint64_t values = flat_values_of(tensor), unit = cut_bytes(tensor);
    /* The last values % 256 take their share of the bytes of 256 values, rounded up to whole bytes. */
    return values / FLAT_CUT_VALUES * unit +
           (values % FLAT_CUT_VALUES * unit + FLAT_CUT_VALUES - 1) / FLAT_CUT_VALUES;
}

static bool has_scales(const struct layer_tensor *tensor)
{
    return !tensor->trained && (tensor->pack == PACK_NF4 || tensor->pack == PACK_NF4_DOUBLE);
}

static uint64_t flat_copy_bytes(const struct layer_tensor *tensor)
{
    uint64_t blocks = (flat_values_of(tensor) + 63) / 64;
    if (!has_scales(tensor))
        return codes_bytes(tensor);
    if (tensor->pack == PACK_NF4)
        return tensor->absmax + 4 * blocks;
    return tensor->scales + 4 * (1 + (blocks + 255) / 256);
}

/* Returns the cut at or before `at` bytes into a copy. */
static uint64_t copy_cut(const struct layer_tensor *tensor, uint64_t at)
{
    if (has_scales(tensor) && at >= tensor->absmax)
        return at / SCALES_UNIT * SCALES_UNIT;
    return at / cut_bytes(tensor) * cut_bytes(tensor);
}

uint64_t flat_bytes(const struct layer_tensors *tensors, enum block_area area)
{
    return area == AREA_FROZEN ? tensors->frozen_bytes : tensors->trained_bytes;
}

uint64_t flat_cut(const struct layer_tensors *tensors, enum block_area area, uint64_t at)
{
    if (at >= flat_bytes(tensors, area))
        return flat_bytes(tensors, area);
    for (uint32_t i = 0; i < tensors->count; i++) {
        const struct layer_tensor *tensor = &tensors->list[i];
        if (tensor->trained != (area == AREA_TRAINED) || at < tensor->at)
            continue;
        uint64_t copy = tensor->stride > 0 ? (at - tensor->at) / tensor->stride : 0;
        uint64_t begin = tensor->at + copy * tensor->stride;
        if (copy < tensor->copies && at - begin < flat_copy_bytes(tensor))
            return begin + copy_cut(tensor, at - begin);
    }
    return area == AREA_TRAINED ? at / VALUE * VALUE : at;
}

uint64_t flat_share_cut(const struct layer_tensors *tensors, enum block_area area, double share)
{
    uint64_t bytes = flat_bytes(tensors, area);
    return share >= 1 ? bytes : flat_cut(tensors, area, (uint64_t)(share * (double)bytes));
}

struct flat_share flat_share_of(uint32_t count, const double *shares, uint32_t member)
{
    struct flat_share range = {0};
    uint32_t last = count - 1; /* the last member with a share above 0 takes the rest */
    while (shares && last > 0 && !(shares[last] > 0))
        last--;
    for (uint32_t i = 0; i <= member; i++) {
        range.begin = range.end;
        range.end = i >= last ? 1 : range.end + (shares ? shares[i] : 1.0 / count);
    }
    return range;
}

uint64_t flat_piece_moment_bytes(const struct layer_tensor *tensor, uint64_t count)
{
    if (!tensor->moments8)
        return flat_aligned(VALUE * count);
    return flat_aligned(count) + flat_aligned(VALUE * ((count + MOMENT8_BLOCK - 1) / MOMENT8_BLOCK));
}

/* Finds the piece of a copy that lies in [begin, end); returns false when there is none. */
static bool flat_piece_of(const struct layer_tensor *tensor, uint32_t copy, uint64_t begin, uint64_t end,
                          struct flat_piece *piece)
{
    uint64_t first = tensor->at + tensor->stride * copy, last = first + VALUE * flat_values_of(tensor);
    uint64_t from = first > begin ? first : begin, to = last < end ? last : end;
    if (!tensor->trained || from >= to)
        return false;
    *piece = (struct flat_piece){.tensor = tensor,
                                 .copy = copy,
                                 .first = (from - first) / VALUE,
                                 .count = (to - from) / VALUE,
                                 .at = from - begin,
                                 .absmax = flat_aligned((to - from) / VALUE)};
    return true;
}

uint32_t flat_pieces(const struct layer_tensors *tensors, uint64_t begin, uint64_t end,
                     struct flat_piece *pieces)
{
    uint32_t count = 0;
    uint64_t moment = 0;
    for (uint32_t i = 0; i < tensors->count; i++)
        for (uint32_t copy = 0; copy < tensors->list[i].copies; copy++) {
            struct flat_piece piece;
            if (!flat_piece_of(&tensors->list[i], copy, begin, end, &piece))
                continue;
            piece.moment = tensors->moments8 ? moment : piece.at;
            moment += flat_piece_moment_bytes(piece.tensor, piece.count);
            if (pieces)
                pieces[count] = piece;
            count++;
        }
    return count;
}

uint64_t flat_moment_bytes(const struct layer_tensors *tensors, uint64_t begin, uint64_t end)
{
    uint64_t bytes = 0;
    if (!tensors->moments8)
        return end - begin;
    for (uint32_t i = 0; i < tensors->count; i++)
        for (uint32_t copy = 0; copy < tensors->list[i].copies; copy++) {
            struct flat_piece piece;
            if (flat_piece_of(&tensors->list[i], copy, begin, end, &piece))
                bytes += flat_piece_moment_bytes(piece.tensor, piece.count);
        }
    return bytes;
}
