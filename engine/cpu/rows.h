/* Ops over the rows of matrices: each row (or strip of columns, for sums over rows) is independent. */
#ifndef MOTLEY_ENGINE_CPU_ROWS_H
#define MOTLEY_ENGINE_CPU_ROWS_H

#include "engine/cpu/cpu.h"

/* Each function runs the op of its name (op.h). */
void cpu_copy(struct cpu_runner *runner, const struct op *op);
void cpu_add(struct cpu_runner *runner, const struct op *op);
void cpu_bias(struct cpu_runner *runner, const struct op *op);
void cpu_softcap(struct cpu_runner *runner, const struct op *op);
void cpu_scale(struct cpu_runner *runner, const struct op *op);
void cpu_column_sum(struct cpu_runner *runner, const struct op *op);
void cpu_rmsnorm(struct cpu_runner *runner, const struct op *op);
void cpu_rmsnorm_backward(struct cpu_runner *runner, const struct op *op);
void cpu_rope(struct cpu_runner *runner, const struct op *op);
void cpu_glu(struct cpu_runner *runner, const struct op *op);
void cpu_glu_backward(struct cpu_runner *runner, const struct op *op);
void cpu_dropout(struct cpu_runner *runner, const struct op *op);
void cpu_dropout_backward(struct cpu_runner *runner, const struct op *op);
void cpu_gather_rows(struct cpu_runner *runner, const struct op *op);
void cpu_scatter_rows(struct cpu_runner *runner, const struct op *op);
void cpu_cross_entropy(struct cpu_runner *runner, const struct op *op);

#endif
