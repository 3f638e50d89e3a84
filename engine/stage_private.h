/* The inner parts of a stage, shared by the files that make it up: stage.c (life), pass.c (forward and
 * backward), layer.c, lora.c, head.c, train.c (loss, update, state), infer.c, and queue.c below them.
 */
#ifndef MOTLEY_ENGINE_STAGE_PRIVATE_H
#define MOTLEY_ENGINE_STAGE_PRIVATE_H

#include "engine/layout.h"
#include "engine/op.h"

/* A place for one micro-batch: taken by stage_forward, given back by backward, release or the end of a call.
 */
struct saved {
    struct stage *stage;
    struct buffer *buffer; /* layout.slot */
    uint8_t *staging;      /* host copy of the description, [meta_bytes], while it is being copied */
    struct event *written; /* the description has arrived: staging may change */
    bool taken;
    uint32_t tokens, rows, labelled;
    uint64_t step;
};

struct stage {
    struct footprint_model model;
    struct footprint layout;      /* of model */
    struct stage_options options; /* zeroes replaced by what they stand for */
    struct model_config config;   /* what options.config points to */
    bool exact;                   /* so narrow a model that all is done in double inside each op */
    struct device *device;
    struct buffer **layers; /* weights, [layout.layers] */
    struct buffer *table, *head_table, *head_norm, *rope;
    struct buffer *values, *gradients, *moment1, *moment2; /* [layout.adapter_bytes] each */
    struct buffer *workspace, *scalars; /* scalars: loss, then a sum of squares a parameter */
    struct saved *slots;
    char (*names)[96];
    double *sums; /* host copy of scalars */
    uint64_t updates;
    uint64_t labelled; /* since stage_step_begin */
};

/* Queues ops until the first failure, which it keeps: a sequence is checked once, at its end. */
struct queue {
    struct device *device;
    struct err *err;
    bool exact; /* of every op */
    bool failed;
};

/* An operand of f32 values in a buffer, `at` bytes from its start. */
static inline struct operand f32_at(struct buffer *buffer, uint64_t at)
{
    return (struct operand){.buffer = buffer, .at = at, .dtype = DTYPE_F32};
}

/* The same operand, `count` values of 4 bytes further on. */
static inline struct operand operand_skip(struct operand operand, uint64_t count)
{
    operand.at += 4 * count;
    return operand;
}

/* queue.c, as far as the operands of a pass. Queue one op unless the queue failed before. */
void queue_op(struct queue *queue, const struct op *op);
/* What of a product lies transposed in memory. */
enum gemm_order {
    GEMM_NN, /* c[m,n] = alpha * a[m,k] * b[k,n] + beta * c */
    GEMM_NT, /* b is [n,k] */
    GEMM_TN, /* a is [k,m] */
};
/* lda, ldb, ldc: values from one row in memory to the next. */
void queue_gemm(struct queue *queue, enum gemm_order order, uint32_t m, uint32_t n, uint32_t k, float alpha,
                struct operand a, uint32_t lda, struct operand b, uint32_t ldb, float beta, struct operand c,
                uint32_t ldc);
/* y[rows,width] = x */
void queue_copy(struct queue *queue, uint32_t rows, uint32_t width, struct operand x, uint32_t ldx,
                struct operand y, uint32_t ldy);
/* y[rows,width] = rmsnorm(x) * weight */
void queue_norm(struct queue *queue, const struct stage *stage, uint32_t rows, struct operand x,
                struct operand weight, struct operand y);

/* One micro-batch going through a stage. */
struct pass {
    struct stage *stage;
    struct queue queue;
    struct saved *slot;
    uint32_t tokens, rows;
    bool dropout; /* training, and the adapters have some */
    /* inference with a cache only */
    struct kv_cache *cache;
    uint32_t cache_begin;
};

/* What one layer saves of this pass. */
struct layer_save {
    struct operand qkv, att, lse, mid, gate_up, z[GROUP_COUNT];
};

/* Operands of a pass. layer counts from 0 within the stage. */
struct operand pass_meta(const struct pass *pass, uint64_t at, enum dtype dtype);
struct operand pass_x(const struct pass *pass, uint32_t layer);
struct layer_save pass_save(const struct pass *pass, uint32_t layer);
struct operand pass_workspace(const struct pass *pass, uint64_t at);
struct operand layer_weight(const struct stage *stage, uint32_t layer, uint64_t at);
/* A parameter of the adapter: `at` floats into the layer's part of `buffer` (values, gradients, …). */
struct operand adapter_at(const struct stage *stage, struct buffer *buffer, uint32_t layer, uint64_t at);

/* layer.c: x[tokens,hidden] → out (which may be x). With `inner` only what is saved is computed. */
void layer_forward(struct pass *pass, uint32_t layer, struct operand x, struct operand out, bool inner);
/* d in the workspace: gradient of the output → gradient of x (unless !need_input). Destroys what was saved.
 */
void layer_backward(struct pass *pass, uint32_t layer, struct operand x, bool need_input);

/* lora.c: out (ldo) += B z, keeping z = scale * A drop(input). */
void lora_forward(struct pass *pass, uint32_t layer, enum lora_group_kind kind, struct operand input,
                  struct operand z, struct operand out, uint32_t ldo);
/* Gradients of A and B from dout (ldd) and, where dinput is there, dinput += that of the input. */
void lora_backward(struct pass *pass, uint32_t layer, enum lora_group_kind kind, struct operand input,
                   struct operand z, struct operand dout, uint32_t ldd, struct operand dinput);

/* head.c: from x[tokens,hidden] at the slot's labelled positions, loss and (when gradient) the slot's head
 * part. */
void head_forward(struct pass *pass, struct operand x, bool gradient);
/* d in the workspace becomes the gradient of x, times scale. */
void head_backward(struct pass *pass, float scale);
/* Logits of the given rows of x into the workspace's logits, at most head_rows. */
void head_logits(struct pass *pass, struct operand x, uint32_t rows);
struct operand head_matrix(const struct stage *stage);

/* pass.c: take a free place, describe the micro-batch in it; ERR_BUSY, ERR_TOO_BIG, ERR_INVALID. */
int slot_take(struct stage *stage, const struct micro_batch *batch, struct saved **out, struct err *err);
/* queue.c. Find a free place and wait until its staging may be written. */
int slot_find(struct stage *stage, struct saved **out, struct err *err);
void slot_give(struct saved *slot);
/* Queue the copy of the staging. */
int slot_write(struct saved *slot, struct err *err);

#endif
