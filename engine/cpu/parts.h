/* Cuts ops into parts for the pool: by rows, by columns, or by ranges of flat arrays; never along a sum. */
#ifndef MOTLEY_ENGINE_CPU_PARTS_H
#define MOTLEY_ENGINE_CPU_PARTS_H

#include "engine/cpu/cpu.h"

enum {
    ROWS_PER_PART = 16,     /* rows of a matrix for row kernels */
    FLAT_PER_PART = 1 << 16 /* values of elementwise ops on flat arrays; a multiple of ADAMW8_BLOCK */
};

/* The context of a part's function. */
struct parts_job {
    struct cpu_runner *runner;
    const struct op *op;
    void *extra; /* the op's own data */
};

/* The rows [begin, end) of part `index`. */
static inline void part_range(uint64_t rows, uint32_t per_part, uint32_t index, uint64_t *begin,
                              uint64_t *end)
{
    *begin = (uint64_t)index * per_part;
    *end = *begin + per_part < rows ? *begin + per_part : rows;
}

/* Run the function `part` on all parts of `rows` rows. */
static inline void run_parts(struct cpu_runner *runner, const struct op *op, void *extra, uint64_t rows,
                             uint32_t per_part, void (*part)(void *, uint32_t, uint32_t))
{
    struct parts_job job = {.runner = runner, .op = op, .extra = extra};
    pool_run(runner->pool, (uint32_t)((rows + per_part - 1) / per_part), part, &job);
}

#endif
