/* Frozen weights unpacked to fp32 on the CPU. */
#ifndef MOTLEY_ENGINE_CPU_UNPACK_H
#define MOTLEY_ENGINE_CPU_UNPACK_H

#include "engine/cpu/cpu.h"

/* Kernels of one instruction set; all give the same bits. */
struct unpackers {
    /* y[values of `blocks` blocks] from GGUF's blocks at x, by enum pack_kind; NULL for the other kinds */
    void (*blocks[PACK_KINDS])(const uint8_t *x, uint64_t blocks, float *y);
    /* as nf4_dequantise (model/nf4.h) */
    void (*nf4)(const uint8_t *codes, const float *absmax, uint64_t count, float *values);
};
extern const struct unpackers unpackers_sse42, unpackers_avx2;

/* Runs OP_UNPACK. */
void cpu_unpack(struct cpu_runner *runner, const struct op *op);

#endif
