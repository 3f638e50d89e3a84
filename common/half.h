/* Converts fp32 to and from the two 16-bit formats: bf16 (the upper half of fp32) and IEEE 754 binary16.
 * Values are rounded to nearest, ties to even; a value too large for binary16 becomes an infinity; NaN stays
 * NaN. */
#ifndef MOTLEY_COMMON_HALF_H
#define MOTLEY_COMMON_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t half_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline uint16_t bf16_from_f32(float value)
{
    uint32_t bits = half_bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float f32_from_bf16(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof(result));
    return result;
}

static inline uint16_t f16_from_f32(float value)
{
    uint32_t bits = half_bits_of(value), magnitude = bits & 0x7fffffff;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (magnitude > 0x7f800000)
        return sign | 0x7e00;
    if (magnitude >= 0x477ff000) /* rounds to more than 65504, the largest value of binary16 */
        return sign | 0x7c00;
    if (magnitude >= 0x38800000) /* a normal number of binary16 */
        return sign | (uint16_t)((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
    if (magnitude < 0x33000000) /* less than half of the smallest number of binary16 */
        return sign;
    uint32_t shift = 126 - (magnitude >> 23), mantissa = (magnitude & 0x7fffff) | 0x800000;
    uint32_t half = 1u << (shift - 1), rest = mantissa & ((1u << shift) - 1), result = mantissa >> shift;
    result += rest > half || (rest == half && (result & 1) != 0);
    return sign | (uint16_t)result;
}

static inline float f32_from_f16(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000) << 16, exponent = value >> 10 & 31, mantissa = value & 0x3ff;
    float result = (float)mantissa * 0x1p-24f; /* value of a subnormal number or zero */
    uint32_t bits;
    if (exponent == 31)
        bits = 0x7f800000 | mantissa << 13;
    else if (exponent > 0)
        bits = (exponent + 112) << 23 | mantissa << 13;
    else
        memcpy(&bits, &result, sizeof(bits));
    bits |= sign;
    memcpy(&result, &bits, sizeof(result));
    return result;
}

#endif
