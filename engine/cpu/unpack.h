/* Frozen weights unpacked to fp32 on the CPU. */
#ifndef MOTLEY_ENGINE_CPU_UNPACK_H
#define MOTLEY_ENGINE_CPU_UNPACK_H

#include "engine/cpu/cpu.h"

/* As nf4_dequantise (model/nf4.h), to the bit. */
void unpack_nf4_avx2(const uint8_t *codes, const float *absmax, uint64_t count, float *values);

/* Runs OP_UNPACK. */
void cpu_unpack(struct cpu_runner *runner, const struct op *op);

#endif
