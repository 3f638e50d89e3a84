/* Matrix products on the CPU, cut into parts for the pool. */
#ifndef MOTLEY_ENGINE_CPU_PRODUCT_H
#define MOTLEY_ENGINE_CPU_PRODUCT_H

#include "engine/cpu/cpu.h"

/* The number of parts of a product; 0 when there is nothing to do. */
uint32_t product_parts(const struct cpu_runner *runner, const struct op_gemm *op);

/* Compute part `index` of `parts` on `thread`. Only the shape and the scalars decide in which order an
 * element's terms are added. */
void product_part(const struct cpu_runner *runner, const struct op_gemm *op, uint32_t index, uint32_t parts,
                  uint32_t thread);

/* Runs OP_GEMM. */
void cpu_gemm(struct cpu_runner *runner, const struct op *op);

#endif
