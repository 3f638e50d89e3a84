#include "engine/stage/op_queue.h"

void queue_op(struct op_queue *queue, const struct op *op)
{
    if (!queue->failed && op_submit(queue->device, op, queue->err) != 0)
        queue->failed = true;
}

void queue_gemm(struct op_queue *queue, const struct gemm *gemm)
{
    enum dtype dtype = gemm->b.at.dtype;
    queue_op(queue, &(struct op){.kind = OP_GEMM,
                                 .gemm = {.m = gemm->m,
                                          .n = gemm->n,
                                          .k = gemm->k,
                                          .transpose_a = gemm->order == GEMM_TN,
                                          .transpose_b = gemm->order == GEMM_NT,
                                          .alpha = gemm->alpha,
                                          .beta = gemm->beta,
                                          .a = gemm->a.at,
                                          .lda = gemm->a.ld,
                                          .b = gemm->b.at,
                                          .ldb = gemm->b.ld,
                                          .c = gemm->c.at,
                                          .add = gemm->add,
                                          .ldc = gemm->c.ld,
                                          .pack = dtype == DTYPE_BF16  ? PACK_BF16
                                                  : dtype == DTYPE_F16 ? PACK_F16
                                                                       : PACK_F32,
                                          .compute = queue->compute}});
}

void queue_copy(struct op_queue *queue, uint32_t rows, uint32_t width, struct operand x, uint32_t ldx,
                struct operand y, uint32_t ldy)
{
    queue_op(queue,
             &(struct op){.kind = OP_COPY,
                          .copy = {.rows = rows, .width = width, .ldx = ldx, .ldy = ldy, .x = x, .y = y}});
}

void queue_zero(struct op_queue *queue, struct operand x, uint64_t count)
{
    if (!queue->failed && buffer_zero(x.buffer, x.at, dtype_bytes(x.dtype) * count, queue->err) != 0)
        queue->failed = true;
}

void queue_cast(struct op_queue *queue, uint64_t count, struct operand x, struct operand y)
{
    queue_op(queue, &(struct op){.kind = OP_CAST, .cast = {.count = count, .x = x, .y = y}});
}
