/* Ops of gated delta nets: gates, the short convolution and the delta rule. */
#ifndef MOTLEY_ENGINE_CPU_DELTA_H
#define MOTLEY_ENGINE_CPU_DELTA_H

#include "engine/cpu/cpu.h"

/* Each function runs the op of its name (op.h). */
void cpu_gate(struct cpu_runner *runner, const struct op *op);
void cpu_gate_backward(struct cpu_runner *runner, const struct op *op);
void cpu_conv(struct cpu_runner *runner, const struct op *op);
void cpu_conv_backward(struct cpu_runner *runner, const struct op *op);
void cpu_delta(struct cpu_runner *runner, const struct op *op);
void cpu_delta_backward(struct cpu_runner *runner, const struct op *op);

#endif
