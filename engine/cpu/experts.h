/* The ops of mixtures of experts on the CPU: routers, sorting by expert, grouped products, and back. */
#ifndef MOTLEY_ENGINE_CPU_EXPERTS_H
#define MOTLEY_ENGINE_CPU_EXPERTS_H

#include "engine/cpu/cpu.h"

/* Is it one of these ops? Then the dtype of operand `name`, and whether its sizes can be done. */
bool cpu_experts_own(enum op_kind kind);
enum dtype cpu_experts_dtype(enum op_kind kind, const char *name);
bool cpu_experts_fit(const struct op *op);

/* Run it. Indices and offsets that the op reads are compared with their bounds first: ERR_INTERNAL names the
 * one that is wrong, and nothing has been written then. */
int cpu_run_experts(struct cpu_runner *runner, const struct op *op, struct err *err);

#endif
