/* Cuts ops into parts for the pool: by rows, by columns, or by ranges of flat arrays; never along a sum. */
#ifndef MOTLEY_ENGINE_CPU_PARTS_H
#define MOTLEY_ENGINE_CPU_PARTS_H

#include "engine/cpu/cpu.h"

enum {
    ROWS_PER_PART = 16,     /* rows of a matrix for row kernels */
    FLAT_PER_PART = 1 << 16 /* values of elementwise ops on flat arrays; a multiple of ADAMW8_BLOCK */
};

struct parts_job;
/* Runs an op on its rows (or columns, or values) [begin, end). */
typedef void part_function(const struct parts_job *job, uint64_t begin, uint64_t end);

/* An op that is cut into parts. */
struct parts_job {
    struct cpu_runner *runner;
    const struct op *op;
    void *extra; /* the op's own data */
    uint64_t rows;
    uint32_t per_part;
    part_function *run;
};

static inline void part_run(void *context, uint32_t index, uint32_t thread)
{
    const struct parts_job *job = context;
    uint64_t begin = (uint64_t)index * job->per_part, end = begin + job->per_part;
    (void)thread;
    job->run(job, begin, end < job->rows ? end : job->rows);
}

/* Runs a function on all parts of `rows` rows. */
static inline void run_parts(struct cpu_runner *runner, const struct op *op, void *extra, uint64_t rows,
                             uint32_t per_part, part_function *run)
{
    struct parts_job job = {
        .runner = runner, .op = op, .extra = extra, .rows = rows, .per_part = per_part, .run = run};
    pool_run(runner->pool, (uint32_t)((rows + per_part - 1) / per_part), part_run, &job);
}

#endif
