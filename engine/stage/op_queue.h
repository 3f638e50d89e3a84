/* Queues ops until the first failure. */
#ifndef MOTLEY_ENGINE_STAGE_OP_QUEUE_H
#define MOTLEY_ENGINE_STAGE_OP_QUEUE_H

#include "engine/device/op.h"

/* A queue of ops that stops at the first failure and remembers it, so that callers check once, after a
 * sequence of ops. */
struct op_queue {
    struct device *device;
    struct err *err;
    enum dtype compute; /* op_gemm.compute of all products from queue_gemm */
    bool failed;
};

/* An operand of f32 values in a buffer, `at` bytes from its start. */
static inline struct operand f32_at(struct buffer *buffer, uint64_t at)
{
    return (struct operand){.buffer = buffer, .at = at, .dtype = DTYPE_F32};
}

/* The operand that begins `count` values further on. */
static inline struct operand operand_skip(struct operand operand, uint64_t count)
{
    operand.at += dtype_bytes(operand.dtype) * count;
    return operand;
}

/* Queues one op, unless an earlier op failed. */
void queue_op(struct op_queue *queue, const struct op *op);

/* Which factors of a product are stored transposed. */
enum gemm_order {
    GEMM_NN, /* c[m,n] = alpha * a[m,k] * b[k,n] + beta * c */
    GEMM_NT, /* b is [n,k] */
    GEMM_TN, /* a is [k,m] */
};

/* A matrix whose rows are `ld` values apart. */
struct matrix_at {
    struct operand at;
    uint32_t ld;
};

struct gemm {
    enum gemm_order order;
    uint32_t m, n, k;
    float alpha, beta;
    struct matrix_at a, b, c;
    struct operand add; /* as in struct op_gemm */
};

void queue_gemm(struct op_queue *queue, const struct gemm *gemm);

/* y[rows,width] = x */
void queue_copy(struct op_queue *queue, uint32_t rows, uint32_t width, struct operand x, uint32_t ldx,
                struct operand y, uint32_t ldy);
void queue_zero(struct op_queue *queue, struct operand x, uint64_t count);
/* y[count] = x, converted to y's dtype. */
void queue_cast(struct op_queue *queue, uint64_t count, struct operand x, struct operand y);

#endif
