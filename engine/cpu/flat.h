/* Ops over embedding tables and over flat arrays: parameters, gradients, moments. */
#ifndef MOTLEY_ENGINE_CPU_FLAT_H
#define MOTLEY_ENGINE_CPU_FLAT_H

#include "engine/cpu/cpu.h"

/* Each function runs the op of its name (op.h). */
void cpu_embed(struct cpu_runner *runner, const struct op *op);
void cpu_embed_backward(struct cpu_runner *runner, const struct op *op);
void cpu_embed_noise(struct cpu_runner *runner, const struct op *op);
void cpu_cast(struct cpu_runner *runner, const struct op *op);
void cpu_square_sum(struct cpu_runner *runner, const struct op *op);
void cpu_adamw(struct cpu_runner *runner, const struct op *op);
void cpu_adamw8(struct cpu_runner *runner, const struct op *op);

#endif
