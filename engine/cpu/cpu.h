/* Inner parts of the CPU device, shared with `checked`, which runs the same ops later, and with `paced`,
 * which says that they end later. */
#ifndef MOTLEY_ENGINE_CPU_CPU_H
#define MOTLEY_ENGINE_CPU_CPU_H

#include "engine/device/backend_private.h"
#include "engine/cpu/blas.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/pool.h"

/* Everything needed to run ops: the kernels of one instruction set, a pool, and scratch memory for each
 * thread. */
struct cpu_runner {
    const struct kernels *kernels;
    struct blas blas;
    struct thread_pool *pool;
    float *scratch;        /* [threads * scratch_floats] */
    size_t scratch_floats; /* floats of scratch memory for one thread */
    uint64_t scratch_bytes;
};

int cpu_runner_init(struct cpu_runner *runner, const struct device_options *options, struct err *err);
void cpu_runner_fini(struct cpu_runner *runner);

/* Run one op at once; its memory must be accessible and its operands and sizes checked. ERR_INTERNAL when an
 * index that the op reads points outside an operand. */
int cpu_run(struct cpu_runner *runner, const struct op *op, struct err *err);
bool cpu_runs(const struct op *op); /* does the CPU support this op? */

/* Buffers in host memory, shared ones as memory files: functions of struct buffer_ops. */
int cpu_buffer_create(struct buffer *buffer, struct err *err);
void cpu_buffer_destroy(struct buffer *buffer);
int cpu_buffer_export(struct buffer *buffer, uint8_t handle[64], struct err *err);
int cpu_buffer_import(struct buffer *buffer, const uint8_t handle[64], struct err *err);

/* The host address of an operand. */
static inline void *operand_at(const struct operand *operand)
{
    return !operand->buffer ? NULL : (uint8_t *)operand->buffer->memory + operand->at;
}

/* Limits of the attention tiles. Heads that share keys are handled in groups, so scratch memory is bounded.
 */
enum { ATTENTION_HEAD_DIM_MAX = 512, ATTENTION_GROUP_MAX = 64, ATTENTION_TILE = 64 };
size_t attention_scratch_floats(void);
/* How attention is cut into parts: for each row and each key head, runs of at most `step` queries (or keys).
 */
struct attention_cut {
    const uint32_t *row_start; /* [rows + 1] */
    uint32_t rows, kv_heads, step;
};
struct attention_part {
    uint32_t row, kv, begin, end; /* positions within the row */
};
/* attention_parts returns the number of parts. attention_part_at describes part `index`; false: that part has
 * nothing to do. */
uint32_t attention_parts(const struct attention_cut *cut);
bool attention_part_at(const struct attention_cut *cut, uint32_t index, struct attention_part *part);
/* How attention's forward and its backward are cut. In backward, with a step of ATTENTION_TILE each part runs
 * twice, once for its queries and once for its keys; with a longer step the parts are whole rows. */
struct attention_cut attention_forward_cut(uint32_t rows, const uint32_t *row_start, uint32_t heads,
                                           uint32_t kv_heads);
struct attention_cut attention_backward_cut(uint32_t threads, uint32_t rows, const uint32_t *row_start,
                                            uint32_t kv_heads);
void cpu_attention(struct cpu_runner *runner, const struct op *op);
void cpu_attention_backward(struct cpu_runner *runner, const struct op *op);
void cpu_attention_cached(struct cpu_runner *runner, const struct op *op);

#endif
