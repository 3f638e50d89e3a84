/* The 256 values of the 8-bit dynamic data type (model/files/dynamic_map.h), computed one at a time with the
 * same bits.
 */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_DYNAMIC_MAP_H
#define MOTLEY_ENGINE_GPU_KERNELS_DYNAMIC_MAP_H

#ifdef GPU_KERNELS

FUNCTION float dynamic_decade(uint32_t decade)
{
    switch (decade) {
    case 0:
        return 1e-6f;
    case 1:
        return 1e-5f;
    case 2:
        return 1e-4f;
    case 3:
        return 1e-3f;
    case 4:
        return 1e-2f;
    case 5:
        return 1e-1f;
    default:
        return 1.0f;
    }
}

/* Point i of `count` equidistant points from 0.1 to 1, computed from the nearer end and rounded once. */
FUNCTION float dynamic_point(uint32_t i, uint32_t count)
{
    float step = (1.0f - 0.1f) / (float)(count - 1);
    return i < count / 2 ? math_fma(step, (float)i, 0.1f) : math_fma(-step, (float)(count - 1 - i), 1.0f);
}

/* Positive value number k, where k counts from the smallest (in 1e-6's decade) to the largest, 1, which is
 * number 126 with sign and 254 without. Decade d has `most` << d values. */
FUNCTION float dynamic_above(uint32_t most, uint32_t k)
{
    uint32_t decade = 0;
    ROLLED
    while (decade < 7 && k >= most << decade) {
        k -= most << decade;
        decade++;
    }
    if (decade == 7)
        return 1.0f;
    uint32_t count = (most << decade) + 1;
    return dynamic_decade(decade) * ((dynamic_point(k, count) + dynamic_point(k + 1, count)) / 2.0f);
}

FUNCTION float dynamic_with_sign(uint32_t code)
{
    if (code == 127)
        return 0.0f;
    float above = dynamic_above(1, code > 127 ? code - 128 : 126 - code);
    return code > 127 ? above : -above;
}

FUNCTION float dynamic_without_sign(uint32_t code)
{
    return code == 0 ? 0.0f : dynamic_above(2, code - 1);
}

#endif
#endif
