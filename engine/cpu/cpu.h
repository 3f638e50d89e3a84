/* The CPU device's inner parts, shared with `checked`, which runs the same ops later. */
#ifndef MOTLEY_ENGINE_CPU_CPU_H
#define MOTLEY_ENGINE_CPU_CPU_H

#include "engine/backend_private.h"
#include "engine/cpu/blas.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/pool.h"

/* What runs ops: kernels of one instruction set, a pool, scratch for each thread. */
struct cpu_runner {
    const struct kernels *kernels;
    struct blas blas;
    struct pool *pool;
    float *scratch;        /* threads * scratch_floats */
    size_t scratch_floats; /* of one thread */
    uint64_t scratch_bytes;
};

int cpu_runner_init(struct cpu_runner *runner, const struct device_options *options, struct err *err);
void cpu_runner_fini(struct cpu_runner *runner);

/* Run one op on memory that is accessible, at once. Operands and sizes were checked. ERR_INTERNAL when what
 * the op reads would lead it out of an operand. */
int cpu_run(struct cpu_runner *runner, const struct op *op, struct err *err);
bool cpu_runs(const struct op *op); /* supports() */

/* Where an operand lies. */
static inline void *operand_at(const struct operand *operand)
{
    return operand->buffer == NULL ? NULL : (uint8_t *)operand->buffer->memory + operand->at;
}

/* Limits of the attention tiles: heads share a key tile in groups, so scratch is bounded. */
enum { ATTENTION_HEAD_DIM_MAX = 256, ATTENTION_GROUP_MAX = 64, ATTENTION_TILE = 64 };
size_t attention_scratch_floats(void);
void cpu_attention(struct cpu_runner *runner, const struct op *op);
void cpu_attention_backward(struct cpu_runner *runner, const struct op *op);
void cpu_attention_cached(struct cpu_runner *runner, const struct op *op);

#endif
