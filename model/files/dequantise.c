/* Converts stored element types to fp32. The block layouts are ggml's (as documented with its block structs):
 * d and m are fp16 scales and minima, q are small integers; value = d*q (+ m), and the K types have scales of
 * their own for sub-blocks. All arithmetic is single precision, one multiply and one add, so that every
 * machine gets the same bits. The loops over a block are left for the compiler to vectorise
 * (model/options.cmake). */
#include <string.h>

#include "model/files/gguf.h"

static uint16_t dequantise_load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static float bits_float(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Converts IEEE 754 binary16, including subnormals, infinities and NaNs. */
static float half_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31)
        return bits_float(sign | 0x7f800000 | mantissa << 13);
    if (exponent)
        return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
    float f = (float)mantissa * 0x1p-24f;
    return sign ? -f : f;
}

static void block_q4_0(const uint8_t *restrict p, float *restrict y)
{
    float d = half_float(dequantise_load16(p));
    for (int j = 0; j < 16; j++) {
        y[j] = (float)((p[2 + j] & 15) - 8) * d;
        y[j + 16] = (float)((p[2 + j] >> 4) - 8) * d;
    }
}

static void block_q4_1(const uint8_t *restrict p, float *restrict y)
{
    float d = half_float(dequantise_load16(p)), m = half_float(dequantise_load16(p + 2));
    for (int j = 0; j < 16; j++) {
        y[j] = (float)(p[4 + j] & 15) * d + m;
        y[j + 16] = (float)(p[4 + j] >> 4) * d + m;
    }
}

static int fifth_bit(const uint8_t *qh, int j)
{
    return (qh[j / 8] >> (j % 8) & 1) << 4;
}

static void block_q5_0(const uint8_t *restrict p, float *restrict y)
{
    float d = half_float(dequantise_load16(p));
    for (int j = 0; j < 16; j++) {
        y[j] = (float)(((p[6 + j] & 15) | fifth_bit(p + 2, j)) - 16) * d;
        y[j + 16] = (float)(((p[6 + j] >> 4) | fifth_bit(p + 2, j + 16)) - 16) * d;
    }
}

static void block_q5_1(const uint8_t *restrict p, float *restrict y)
{
    float d = half_float(dequantise_load16(p)), m = half_float(dequantise_load16(p + 2));
    for (int j = 0; j < 16; j++) {
        y[j] = (float)((p[8 + j] & 15) | fifth_bit(p + 4, j)) * d + m;
        y[j + 16] = (float)((p[8 + j] >> 4) | fifth_bit(p + 4, j + 16)) * d + m;
    }
}

/* MXFP4 (OCP Microscaling Formats 1.0, section 5.3): a power of two, 2^(p[0] - 127), and 32 codes of E2M1 in
 * ggml's order, here as twice their values. */
static void block_mxfp4(const uint8_t *restrict p, float *restrict y)
{
    static const float twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12};
    float half = bits_float(p[0] < 2 ? 0x00200000u << p[0] : (p[0] - 1u) << 23);
    for (int j = 0; j < 16; j++) {
        y[j] = twice[p[1 + j] & 15] * half;
        y[j + 16] = twice[p[1 + j] >> 4] * half;
    }
}

static void block_q8_0(const uint8_t *restrict p, float *restrict y)
{
    float d = half_float(dequantise_load16(p));
    for (int j = 0; j < 32; j++)
        y[j] = (float)(int8_t)p[2 + j] * d;
}

/* Unpacks the 6-bit scale and minimum of sub-block j of 8 from 12 packed bytes. */
static void scale_min(int j, const uint8_t *q, uint8_t *scale, uint8_t *min)
{
    if (j < 4) {
        *scale = q[j] & 63;
        *min = q[j + 4] & 63;
    } else {
        *scale = (uint8_t)((q[j + 4] & 15) | q[j - 4] >> 6 << 4);
        *min = (uint8_t)(q[j + 4] >> 4 | q[j] >> 6 << 4);
    }
}

/* Converts a block of Q4_K or Q5_K. A Q4_K block is d, dmin, scales[12], qs[128]; a Q5_K block has the fifth
 * bits qh[32] before qs. */
static void block_k45(const uint8_t *restrict p, const uint8_t *restrict qh, const uint8_t *restrict qs,
                      float *restrict y)
{
    float d = half_float(dequantise_load16(p)), dmin = half_float(dequantise_load16(p + 2));
    for (int j = 0; j < 8; j++) {
        uint8_t scale, min;
        scale_min(j, p + 4, &scale, &min);
        float ds = d * scale, m = dmin * min;
        const uint8_t *q = qs + j / 2 * 32;
        for (int l = 0; l < 32; l++) {
            int v = j % 2 ? q[l] >> 4 : q[l] & 15;
            if (qh)
                v |= (qh[l] >> j & 1) << 4;
            y[j * 32 + l] = ds * (float)v - m;
        }
    }
}

static void block_q4_k(const uint8_t *restrict p, float *restrict y)
{
    block_k45(p, NULL, p + 16, y);
}

static void block_q5_k(const uint8_t *restrict p, float *restrict y)
{
    block_k45(p, p + 16, p + 48, y);
}

/* Converts a block of Q6_K: ql[128] (low nibbles), qh[64] (high pairs of bits), scales[16] (signed), d. */
static void block_q6_k(const uint8_t *restrict p, float *restrict y)
{
    float d = half_float(dequantise_load16(p + 208));
    const uint8_t *scales = p + 192;
    for (int run = 0; run < 16; run++) { /* each run has 16 values under one scale */
        int half = run / 8, k = run / 2 % 4, first = 16 * (run % 2);
        const uint8_t *ql = p + 64 * half + 32 * (k & 1) + first, *qh = p + 128 + 32 * half + first;
        float s = d * (float)(int8_t)scales[run];
        for (int l = 0; l < 16; l++) {
            int q = ((ql[l] >> (k & 2 ? 4 : 0) & 15) | (qh[l] >> (2 * k) & 3) << 4) - 32;
            y[16 * run + l] = s * (float)q;
        }
    }
}

static void plain_f32(const uint8_t *restrict p, float *restrict y)
{
    memcpy(y, p, 4);
}

static void plain_f16(const uint8_t *restrict p, float *restrict y)
{
    *y = half_float(dequantise_load16(p));
}

static void plain_bf16(const uint8_t *restrict p, float *restrict y)
{
    *y = bits_float((uint32_t)dequantise_load16(p) << 16);
}

static void plain_f64(const uint8_t *restrict p, float *restrict y)
{
    double v;
    memcpy(&v, p, 8);
    *y = (float)v;
}

static void (*const decoders[TENSOR_TYPE_COUNT])(const uint8_t *block, float *values) = {
    [TENSOR_F32] = plain_f32,     [TENSOR_F16] = plain_f16,   [TENSOR_BF16] = plain_bf16,
    [TENSOR_F64] = plain_f64,     [TENSOR_Q4_0] = block_q4_0, [TENSOR_Q4_1] = block_q4_1,
    [TENSOR_Q5_0] = block_q5_0,   [TENSOR_Q5_1] = block_q5_1, [TENSOR_Q8_0] = block_q8_0,
    [TENSOR_Q4_K] = block_q4_k,   [TENSOR_Q5_K] = block_q5_k, [TENSOR_Q6_K] = block_q6_k,
    [TENSOR_MXFP4] = block_mxfp4,
};

int tensor_dequantise(enum tensor_type type, const void *src, uint64_t count, float *dst, struct err *err)
{
    if ((unsigned)type >= TENSOR_TYPE_COUNT || !decoders[type])
        return err_set(err, ERR_UNSUPPORTED, "elements of type %s are no floating-point numbers we read",
                       tensor_type_name(type));
    uint32_t block = tensor_type_block(type), bytes = tensor_type_block_bytes(type);
    if (count % block != 0)
        return err_set(err, ERR_INTERNAL, "%llu elements of type %s are not whole blocks of %u",
                       (unsigned long long)count, tensor_type_name(type), block);
    const uint8_t *p = src;
    if (type == TENSOR_F32) {
        if (count)
            memcpy(dst, src, count * 4);
        return 0;
    }
    if (type == TENSOR_BF16)
        for (uint64_t i = 0; i < count; i++)
            plain_bf16(p + 2 * i, dst + i);
    else
        for (uint64_t i = 0; i < count / block; i++)
            decoders[type](p + i * bytes, dst + i * block);
    return 0;
}
