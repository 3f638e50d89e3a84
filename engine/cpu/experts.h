/* The ops of mixtures of experts on the CPU: routers, sorting by expert, grouped products, and back. */
#ifndef MOTLEY_ENGINE_CPU_EXPERTS_H
#define MOTLEY_ENGINE_CPU_EXPERTS_H

#include "engine/cpu/cpu.h"

/* Can the sizes of such an op be done? True of every other op. */
bool cpu_experts_fit(const struct op *op);

/* Each runs the op of its name (op.h). Indices and offsets that it reads are compared with their bounds
 * first: ERR_INTERNAL names the one that is wrong, and nothing has been written then. */
int cpu_gemm_grouped(struct cpu_runner *runner, const struct op *op, struct err *err);
int cpu_route(struct cpu_runner *runner, const struct op *op, struct err *err);
int cpu_route_backward(struct cpu_runner *runner, const struct op *op, struct err *err);
int cpu_route_sort(struct cpu_runner *runner, const struct op *op, struct err *err);
int cpu_router_loss(struct cpu_runner *runner, const struct op *op, struct err *err);
int cpu_combine(struct cpu_runner *runner, const struct op *op, struct err *err);
int cpu_combine_backward(struct cpu_runner *runner, const struct op *op, struct err *err);

#endif
