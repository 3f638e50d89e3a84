/* Unpacks frozen weights to fp32 on the CPU. */
#ifndef MOTLEY_ENGINE_CPU_UNPACK_H
#define MOTLEY_ENGINE_CPU_UNPACK_H

#include "engine/cpu/cpu.h"

/* Gives the same bits as nf4_dequantise (model/files/nf4.h). */
void unpack_nf4_avx2(const uint8_t *codes, const float *absmax, uint64_t count, float *values);

/* Runs OP_UNPACK. */
void cpu_unpack(struct cpu_runner *runner, const struct op *op);

#endif
