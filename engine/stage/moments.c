/* Converts 8-bit moments to and from fp32 on the host, for checkpoints. */
#include "engine/stage/moments.h"

#include <math.h>
#include <stdlib.h>

#include "model/files/dynamic_map.h"

enum { BLOCK = 256 };

/* The code whose value in the map (which is sorted) is nearest; the lower of two that are equally near. */
static uint8_t nearest(const float *map, float value)
{
    uint32_t low = 0, high = DYNAMIC_MAP_SIZE - 1;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (map[middle] <= value)
            low = middle;
        else
            high = middle;
    }
    return (uint8_t)(value - map[low] <= map[high] - value ? low : high);
}

void moments8_unpack(bool with_sign, const uint8_t *codes, const float *absmax, uint64_t count, float *values)
{
    float map[DYNAMIC_MAP_SIZE];
    dynamic_map(with_sign, map);
    for (uint64_t i = 0; i < count; i++)
        values[i] = map[codes[i]] * absmax[i / BLOCK];
}

/* Encodes a block with this scale. True if decoding gives the same values to the bit. */
static bool block_pack(const float *map, const float *values, uint64_t count, float scale, uint8_t *codes)
{
    bool same = true;
    for (uint64_t i = 0; i < count; i++) {
        codes[i] = nearest(map, scale > 0 ? values[i] / scale : 0);
        same &= map[codes[i]] * scale == values[i];
    }
    return same;
}

/* The scale of a block: the largest magnitude before it was quantised. A largest value that is negative was
 * stored as the map's lowest value, which is not -1. For values decoded from such a block, the scale is
 * recovered from that value. */
static float block_scale(const float *map, const float *values, uint64_t count, uint8_t *codes)
{
    float most = 0;
    for (uint64_t i = 0; i < count; i++)
        most = fmaxf(most, fabsf(values[i]));
    if (map[0] < 0 && most > 0 && !block_pack(map, values, count, most, codes)) {
        float scale = nextafterf(most / -map[0], 0);
        for (int i = 0; i < 3; i++, scale = nextafterf(scale, INFINITY))
            if (block_pack(map, values, count, scale, codes))
                return scale;
    }
    return most;
}

void moments8_pack(bool with_sign, const float *values, uint64_t count, uint8_t *codes, float *absmax)
{
    float map[DYNAMIC_MAP_SIZE];
    dynamic_map(with_sign, map);
    for (uint64_t begin = 0; begin < count; begin += BLOCK) {
        uint64_t size = count - begin < BLOCK ? count - begin : BLOCK;
        float scale = block_scale(map, values + begin, size, codes + begin);
        absmax[begin / BLOCK] = scale;
        (void)block_pack(map, values + begin, size, scale, codes + begin);
    }
}
