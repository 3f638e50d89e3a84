/* Products on the CPU, cut into parts for the pool. */
#ifndef MOTLEY_ENGINE_CPU_PRODUCT_H
#define MOTLEY_ENGINE_CPU_PRODUCT_H

#include "engine/cpu/cpu.h"

/* Into how many parts a product falls: 0 when nothing is to be done. */
uint32_t product_parts(const struct cpu_runner *runner, const struct op_gemm *op);

/* Do part `index` of `parts` on `thread`. The shape and the scalars alone decide what a value becomes. */
void product_part(const struct cpu_runner *runner, const struct op_gemm *op, uint32_t index, uint32_t parts,
                  uint32_t thread);

/* Runs OP_GEMM. */
void cpu_gemm(struct cpu_runner *runner, const struct op *op);

#endif
