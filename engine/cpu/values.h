/* Reads and writes values of operands in fp32, bf16 or fp16. */
#ifndef MOTLEY_ENGINE_CPU_VALUES_H
#define MOTLEY_ENGINE_CPU_VALUES_H

#include <string.h>

#include "engine/cpu/cpu.h"

static inline enum value_kind value_kind_of(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? VALUES_F32 : dtype == DTYPE_BF16 ? VALUES_BF16 : VALUES_F16;
}

/* to[n] = n values of the operand, from value `at` on, as fp32. */
static inline void values_read(const struct kernels *kernels, const struct operand *from, uint64_t at,
                               float *to, size_t n)
{
    if (from->dtype == DTYPE_F32)
        memcpy(to, (const float *)operand_at(from) + at, n * sizeof(*to));
    else if (from->dtype == DTYPE_BF16)
        kernels->from_bf16((const uint16_t *)operand_at(from) + at, to, n);
    else
        kernels->from_f16((const uint16_t *)operand_at(from) + at, to, n);
}

/* Store x[n] in the operand from value `at` on, rounded to its dtype. */
static inline void values_write(const struct kernels *kernels, const float *x, const struct operand *to,
                                uint64_t at, size_t n)
{
    if (to->dtype == DTYPE_F32)
        memcpy((float *)operand_at(to) + at, x, n * sizeof(*x));
    else if (to->dtype == DTYPE_BF16)
        kernels->to_bf16(x, (uint16_t *)operand_at(to) + at, n);
    else
        kernels->to_f16(x, (uint16_t *)operand_at(to) + at, n);
}

#endif
