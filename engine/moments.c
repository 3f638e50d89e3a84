/* Moments that lie in 8 bits, to and from fp32 on the host: for checkpoints. */
#include "engine/moments.h"

#include <math.h>
#include <stdlib.h>

#include "model/dynamic_map.h"

enum { BLOCK = 256 };

/* The code whose value is nearest, the lower among equals; map rises. */
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

void moments8_pack(bool with_sign, const float *values, uint64_t count, uint8_t *codes, float *absmax)
{
    float map[DYNAMIC_MAP_SIZE];
    dynamic_map(with_sign, map);
    for (uint64_t begin = 0; begin < count; begin += BLOCK) {
        uint64_t end = begin + BLOCK < count ? begin + BLOCK : count;
        float most = 0;
        for (uint64_t i = begin; i < end; i++)
            most = fmaxf(most, fabsf(values[i]));
        absmax[begin / BLOCK] = most;
        for (uint64_t i = begin; i < end; i++)
            codes[i] = nearest(map, most > 0 ? values[i] / most : 0);
    }
}
