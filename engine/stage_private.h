/* The inner parts of a stage, shared by the files that make it up: stage.c (life), load.c (weights), pass.c
 * (forward and backward), layer.c (the steps of a layer), linear.c (matrices, biases, adapters), head.c,
 * train.c (loss, update, state), infer.c, and recorded.c and queue.c below them.
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
    double router_scale; /* as struct micro_batch has it */
};

/* The parameters of one block: an area of frozen ones and one of trained ones, whose gradients lie in an area
 * like it. NULL: nothing; or inference; or an area from outside that is not bound. Each lies `…_at` bytes
 * into its buffer. */
struct block_state {
    const struct layer_tensors *tensors;
    struct buffer *frozen, *trained, *gradients;
    uint64_t frozen_at, trained_at, gradients_at;
    bool frozen_outside, trained_outside; /* else the stage keeps them, in frozen and in its shard */
};

struct shard;

struct stage {
    struct footprint_model model;
    struct footprint layout;      /* of model */
    struct stage_options options; /* zeroes replaced by what they stand for */
    struct model_config config;   /* what options.config points to */
    struct device *device;
    struct block_state *blocks; /* [block_end - block_begin] */
    struct block_state table;   /* of the head, where layout.copies_table: values and gradient */
    struct buffer *rope;        /* [positions_max, rotary] for all layers, then that of windowed ones */
    struct buffer *workspace, *scalars; /* scalars: loss, router's loss, then a sum of squares a parameter */
    struct saved *slots;
    struct shard *state; /* what is trained of the blocks that it keeps, whole */
    uint64_t labelled;   /* since stage_step_begin */
    float loss_scale;
};

/* Queues ops until the first failure, which it keeps: a sequence is checked once, at its end. */
struct queue {
    struct device *device;
    struct err *err;
    enum dtype compute; /* of every product of queue_gemm */
    bool failed;
};

/* An operand of f32 values in a buffer, `at` bytes from its start. */
static inline struct operand f32_at(struct buffer *buffer, uint64_t at)
{
    return (struct operand){.buffer = buffer, .at = at, .dtype = DTYPE_F32};
}

/* The same operand, `count` values further on. */
static inline struct operand operand_skip(struct operand operand, uint64_t count)
{
    operand.at += dtype_bytes(operand.dtype) * count;
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
void queue_zero(struct queue *queue, struct operand x, uint64_t count);
/* y[count] = x, in y's dtype. */
void queue_cast(struct queue *queue, uint64_t count, struct operand x, struct operand y);

/* One micro-batch going through a stage. */
struct pass {
    struct stage *stage;
    struct queue queue;
    struct saved *slot;
    uint32_t tokens, rows;
    bool dropout;  /* training, and the adapters have some */
    bool train;    /* backward follows, or this is it */
    bool counting; /* routers' choices are counted for the load-balancing loss */
    /* inference with a cache only */
    struct kv_cache *cache;
    uint32_t cache_begin;
};

/* A layer of a pass: what its values' places depend on. */
struct layer_run {
    struct pass *pass;
    const struct layer_plan *plan;
    const struct tape *tape; /* NULL in forward */
    uint32_t layer;          /* from 0, of the model */
    struct block_state *block;
    struct operand x, out;
    struct operand kept;  /* where what forward keeps begins */
    struct operand inner; /* where the workspace of steps begins */
};

/* In the dtype that it has. */
struct operand run_value(const struct layer_run *run, enum layer_value value);
struct operand run_gradient(const struct layer_run *run, enum layer_value value);
/* `bytes` per token into the workspace of steps, or into what is kept. */
struct operand run_scratch(const struct layer_run *run, uint64_t bytes);
struct operand run_kept(const struct layer_run *run, uint64_t bytes);

/* Operands of a pass. layer counts from 0 within the stage. */
struct operand pass_meta(const struct pass *pass, uint64_t at, enum dtype dtype);
struct operand pass_x(const struct pass *pass, uint32_t layer);
struct operand pass_middle(const struct pass *pass, uint32_t layer); /* parts of layers with recompute */
struct operand pass_workspace(const struct pass *pass, uint64_t at);
struct block_state *stage_block(const struct stage *stage, uint32_t block);
/* The first copy of a tensor; its gradient, which must be trained. */
struct operand tensor_at(const struct block_state *block, const struct layer_tensor *tensor);
struct operand tensor_gradient(const struct block_state *block, const struct layer_tensor *tensor);

/* layer.c: x[tokens,hidden] → out (which may be x). A half: attention leaves its part of the sum in
 * VALUE_MID, the FFN starts from there and leaves its own in out. */
enum layer_half { HALF_BOTH, HALF_FIRST, HALF_SECOND };
void layer_forward(struct pass *pass, uint32_t layer, struct operand x, enum layer_half half,
                   struct operand out);
/* Where a value of a layer lies in forward; its gradient at the ends of a whole backward. */
struct operand layer_value_at(struct pass *pass, uint32_t layer, enum layer_value value);
struct operand layer_gradient_at(struct pass *pass, uint32_t layer, enum layer_value value);
/* What forward did not keep (recompute), for backward: only what that needs, before it. Of the FFN alone from
 * what entered it, of attention alone all but its sum with the others'. */
void layer_again(struct pass *pass, uint32_t layer, struct operand x, enum layer_half half);
/* d in the workspace: gradient of the output → gradient of x (unless !need_input). Destroys what was saved,
 * unless `part` is the input's alone; the weights' part comes later. */
enum backward_part { BACKWARD_ALL, BACKWARD_OF_INPUT, BACKWARD_OF_WEIGHT };
void layer_backward(struct pass *pass, uint32_t layer, struct operand x, bool need_input,
                    enum backward_part part, enum layer_half half);
/* y[rows,width] = norm(x) by tensor `norm` of the block; ld 0: width. */
void block_norm(struct pass *pass, const struct block_state *block, int32_t norm, uint32_t rows,
                struct operand x, struct operand y);
void block_norm_backward(struct pass *pass, const struct block_state *block, int32_t norm, uint32_t rows,
                         struct operand x, struct operand dy, bool accumulate, struct operand dx);

/* linear.c: a linear step. z is the kept A x; only_z: nothing else is computed. */
void linear_forward(struct layer_run *run, const struct layer_step *step, bool only_z);
void linear_backward(struct layer_run *run, const struct layer_step *step, const struct tape_entry *entry,
                     bool need_input);
/* c = x M^T (+ beta c), or with `back` c = x M, M a matrix of the block however it is kept. m rows of x. */
void matrix_multiply(struct pass *pass, const struct block_state *block, const struct layer_tensor *matrix,
                     bool back, uint32_t m, struct operand x, uint32_t ldx, float beta, struct operand c,
                     uint32_t ldc);

/* head.c: from x[tokens,hidden] at the slot's labelled positions, loss and (when gradient) the slot's head
 * part. */
void head_forward(struct pass *pass, struct operand x, bool gradient);
/* d in the workspace becomes the gradient of x, times scale. */
void head_backward(struct pass *pass, float scale);
/* Logits of the given rows of x into the workspace's logits, at most head_rows. */
void head_logits(struct pass *pass, struct operand x, uint32_t rows);

/* outside.c: may blocks [begin, end) run? Not where areas from outside are missing. */
int blocks_bound(const struct stage *stage, uint32_t begin, uint32_t end, bool gradients, struct err *err);

/* pass.c: a boundary tensor as callers have it. */
struct boundary {
    struct buffer *buffer; /* NULL: none */
    enum dtype dtype;
};
/* That of what enters a block, or whose gradient leaves it; of what leaves the block before `block_end`. */
struct boundary boundary_in(const struct stage *stage, uint32_t block_begin, struct buffer *buffer);
struct boundary boundary_out(const struct stage *stage, uint32_t block_end, struct buffer *buffer);
/* Its [tokens, hidden] as f32 to `x`, or from there. */
void boundary_read(struct pass *pass, const struct boundary *boundary, struct operand x);
void boundary_write(struct pass *pass, struct operand x, const struct boundary *boundary);
/* Where blocks that end before `block_end` leave their output in f32: in the boundary itself, or in the
 * workspace, for the head or to be written to the boundary. */
struct operand boundary_end(const struct pass *pass, uint32_t block_end, const struct boundary *out);

/* pass.c: what a call checks and begins with. `tail`: f32 values behind the [tokens, hidden] of the tensor.
 */
int boundary_check(const struct stage *stage, const struct boundary *boundary, uint32_t tokens, uint64_t tail,
                   bool wanted, const char *what, struct err *err);
/* The place of the micro-batch: that of an earlier range's forward, or a free one. */
int place_take(struct stage *stage, const struct micro_batch *batch, struct saved *earlier,
               struct saved **slot, struct err *err);
int backward_check(const struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                   struct err *err);
struct pass pass_of(struct stage *stage, struct saved *slot, bool train, struct err *err);

/* recorded.c: what a pass queues after its micro-batch was described; devices that record passes run it again
 * as a whole where it comes again. */
struct pass_range {
    enum { PASS_FORWARD, PASS_BACKWARD, PASS_BACKWARD_WEIGHTS } kind;
    uint32_t begin, end;     /* blocks */
    struct buffer *in, *out; /* of forward; in backward the gradients */
    double scale;            /* of backward */
};
/* Calls queue_all, which queues ops on the pass's queue and changes nothing else; twice where the device
 * could not record what it was given. */
void pass_run(struct pass *pass, const struct pass_range *range,
              void (*queue_all)(struct pass *pass, const struct pass_range *range));
/* The same for what fills a shard's place of sums, which stands for the shard: always the same ops. */
void sums_run(struct queue *queue, struct area_view sums, bool of_gradients, void (*queue_all)(void *context),
              void *context);

/* pass.c: take a free place, describe the micro-batch in it; ERR_BUSY, ERR_TOO_BIG, ERR_INVALID. */
int slot_take(struct stage *stage, const struct micro_batch *batch, struct saved **out, struct err *err);
void embed(struct pass *pass, struct operand out);
/* queue.c. Find a free place and wait until its staging may be written. */
int slot_find(struct stage *stage, struct saved **out, struct err *err);
void slot_give(struct saved *slot);
/* Queue the copy of the staging. */
int slot_write(struct saved *slot, struct err *err);

#endif
