/* The ops of mixtures of experts on the CPU: routing, sorting by expert, grouped products, and combining. */
#ifndef MOTLEY_ENGINE_CPU_EXPERTS_H
#define MOTLEY_ENGINE_CPU_EXPERTS_H

#include "engine/cpu/cpu.h"

/* Are the sizes of an experts' op within limits? True for every other op. */
bool cpu_experts_fit(const struct op *op);

/* Each function runs the op of its name (op.h). It first compares all indices and offsets that it reads with
 * their bounds: ERR_INTERNAL names the wrong one, and nothing has been written then. */
int cpu_gemm_grouped(struct cpu_runner *runner, const struct op *op, struct err *err);
int cpu_route(struct cpu_runner *runner, const struct op *op, struct err *err);
int cpu_route_backward(struct cpu_runner *runner, const struct op *op, struct err *err);
int cpu_route_sort(struct cpu_runner *runner, const struct op *op, struct err *err);
int cpu_router_loss(struct cpu_runner *runner, const struct op *op, struct err *err);
int cpu_combine(struct cpu_runner *runner, const struct op *op, struct err *err);
int cpu_combine_backward(struct cpu_runner *runner, const struct op *op, struct err *err);

#endif
