/* Ops with everything inside in double, so that a result is rounded once: for models so small that it costs
 * nothing. Plain C, the same bits on every instruction set.
 */
#ifndef MOTLEY_ENGINE_CPU_EXACT_H
#define MOTLEY_ENGINE_CPU_EXACT_H

#include "engine/cpu/cpu.h"

/* Run `op` so, if it is one of those that have such a form and fits the scratch (attention over very long
 * rows does not); false: run it as usual. */
bool cpu_run_exact(struct cpu_runner *runner, const struct op *op);

#endif
