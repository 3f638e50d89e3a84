/* Inner parts of a stage, shared by the files that implement it: stage.c (life cycle), load.c (weights),
 * pass.c (forward and backward), layer.c (the steps of a layer), linear.c (matrices, biases, adapters),
 * head.c, train.c (loss, update, state), infer.c, and below them recorded.c and queue.c.
 */
#ifndef MOTLEY_ENGINE_STAGE_STAGE_PRIVATE_H
#define MOTLEY_ENGINE_STAGE_STAGE_PRIVATE_H

#include "engine/stage/layout.h"
#include "engine/device/op.h"

/* A slot for one micro-batch. stage_forward takes it; backward, release or the end of a call frees it. */
struct saved {
    struct stage *stage;
    struct buffer *buffer; /* laid out as layout.slot */
    uint8_t *staging; /* [meta_bytes] host memory for the micro-batch's description while it is copied to the
                         device */
    struct event *written; /* done when the copy has finished and staging may change */
    bool taken;
    uint32_t tokens, rows, labelled;
    uint64_t step;
    double router_scale; /* as in struct micro_batch */
};

/* The parameters of one block: an area of frozen ones, and an area of trained ones with an area of gradients
 * of the same layout. Each area begins at byte `…_at` of its buffer. A buffer is NULL if the block has no
 * such parameters, for gradients in inference, and for an outside area that is not bound. */
struct block_state {
    const struct layer_tensors *tensors;
    struct buffer *frozen, *trained, *gradients;
    uint64_t frozen_at, trained_at, gradients_at;
    bool frozen_outside, trained_outside; /* the caller binds the area; otherwise the stage keeps it: frozen
                                             ones in `frozen`, trained ones in its shard */
};

struct shard;

struct stage {
    struct footprint_model model;
    struct footprint layout;      /* made from `model` */
    struct stage_options options; /* zeroes are replaced by the defaults that they stand for */
    struct model_config config;   /* options.config points here */
    struct device *device;
    struct block_state *blocks; /* [block_end - block_begin] */
    struct block_state
        table; /* if layout.copies_table: the head's copy of the embedding, values and gradient */
    struct buffer
        *rope; /* [positions_max, rotary] for all layers, followed by the table for layers with a window */
    struct buffer *workspace,
        *scalars; /* scalars: the loss, the routers' loss, then one sum of squares per parameter */
    struct saved *slots;
    struct shard *state; /* trained state of the blocks that the stage keeps, as whole blocks */
    uint64_t labelled;   /* labelled tokens since stage_step_begin */
    float loss_scale;
};

/* A queue of ops that stops at the first failure and remembers it, so that callers check once, after a
 * sequence of ops. */
struct queue {
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

/* queue.c: queue one op, unless an earlier op failed. */
void queue_op(struct queue *queue, const struct op *op);
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
};
void queue_gemm(struct queue *queue, const struct gemm *gemm);
/* y[rows,width] = x */
void queue_copy(struct queue *queue, uint32_t rows, uint32_t width, struct operand x, uint32_t ldx,
                struct operand y, uint32_t ldy);
void queue_zero(struct queue *queue, struct operand x, uint64_t count);
/* y[count] = x, converted to y's dtype. */
void queue_cast(struct queue *queue, uint64_t count, struct operand x, struct operand y);

/* One micro-batch's way through a stage. */
struct pass {
    struct stage *stage;
    struct queue queue;
    struct saved *slot;
    uint32_t tokens, rows;
    bool dropout;  /* training, and the adapters have dropout */
    bool train;    /* backward will follow, or this is backward */
    bool counting; /* routers count their choices for the load-balancing loss */
    /* set in inference with a cache only */
    struct kv_cache *cache;
    uint32_t cache_begin;
};

/* One layer of a pass, with the addresses that the operands of its values depend on. */
struct layer_run {
    struct pass *pass;
    const struct layer_plan *plan;
    const struct tape *tape; /* NULL in forward */
    uint32_t layer;          /* counted from 0, over the model */
    struct block_state *block;
    struct operand x, out;
    struct operand kept;  /* start of the memory for what forward saves */
    struct operand inner; /* start of the workspace that the layer's steps share */
};

/* The operand of a value of the layer, or of its gradient, in its dtype. */
struct operand run_value(const struct layer_run *run, enum layer_value value);
struct operand run_gradient(const struct layer_run *run, enum layer_value value);
/* The operand at `bytes` per token into the steps' workspace, or into the saved memory. */
struct operand run_scratch(const struct layer_run *run, uint64_t bytes);
struct operand run_kept(const struct layer_run *run, uint64_t bytes);

/* Operands of a pass. Layers count from 0 within the stage. */
struct operand pass_meta(const struct pass *pass, uint64_t at, enum dtype dtype);
struct operand pass_x(const struct pass *pass, uint32_t layer);
/* input of the layer's FFN, for parts of layers with recompute */
struct operand pass_middle(const struct pass *pass, uint32_t layer);
struct operand pass_workspace(const struct pass *pass, uint64_t at);
struct block_state *stage_block(const struct stage *stage, uint32_t block);
/* The first copy of a tensor, and its gradient (the tensor must be trained). */
struct operand tensor_at(const struct block_state *block, const struct layer_tensor *tensor);
struct operand tensor_gradient(const struct block_state *block, const struct layer_tensor *tensor);

/* layer.c: run a layer forward from x[tokens,hidden] to out (which may be x). HALF_FIRST is attention and
 * leaves this part's summand in VALUE_MID. HALF_SECOND is the FFN, starts from VALUE_MID and leaves its
 * summand in out. */
enum layer_half { HALF_BOTH, HALF_FIRST, HALF_SECOND };
void layer_forward(struct pass *pass, uint32_t layer, struct operand x, enum layer_half half,
                   struct operand out);
/* The operand of a value of a layer in forward; and of its gradient, at the start and end of a whole
 * backward. */
struct operand layer_value_at(struct pass *pass, uint32_t layer, enum layer_value value);
struct operand layer_gradient_at(struct pass *pass, uint32_t layer, enum layer_value value);
/* With recompute, run again what backward needs and forward did not save. HALF_SECOND starts from the FFN's
 * input; HALF_FIRST leaves out the sum with the other parts. */
void layer_again(struct pass *pass, uint32_t layer, struct operand x, enum layer_half half);
/* Run a layer backward: replaces the gradient of the output, in the workspace's `d`, by the gradient of x
 * (unless !need_input). It overwrites what forward saved, unless `part` is BACKWARD_OF_INPUT, because
 * BACKWARD_OF_WEIGHT comes later. */
enum backward_part { BACKWARD_ALL, BACKWARD_OF_INPUT, BACKWARD_OF_WEIGHT };
void layer_backward(struct pass *pass, uint32_t layer, struct operand x, bool need_input,
                    enum backward_part part, enum layer_half half);
/* y[rows,width] = norm(x), with tensor number `norm` of the block as its weight. */
void block_norm(struct pass *pass, const struct block_state *block, int32_t norm, uint32_t rows,
                struct operand x, struct operand y);
void block_norm_backward(struct pass *pass, const struct block_state *block, int32_t norm, uint32_t rows,
                         struct operand x, struct operand dy, bool accumulate, struct operand dx);

/* linear.c: run a linear step. z is the saved product A x; only_z computes nothing else. */
void linear_forward(struct layer_run *run, const struct layer_step *step, bool only_z);
void linear_backward(struct layer_run *run, const struct layer_step *step, const struct tape_entry *entry,
                     bool need_input);
/* c = x M^T + beta c, or with `back` c = x M + beta c, where M is a matrix of the block in any stored form.
 */
struct matrix_product {
    const struct block_state *block;
    const struct layer_tensor *matrix;
    bool back;
    uint32_t rows; /* of x and c */
    float beta;
    struct matrix_at x, c;
};
void matrix_multiply(struct pass *pass, const struct matrix_product *product);

/* head.c: compute the loss from x[tokens,hidden] at the slot's labelled positions, and with `gradient` the
 * gradient of x there, which the slot keeps. */
void head_forward(struct pass *pass, struct operand x, bool gradient);
/* Writes the gradient of x to the workspace's `d`. */
void head_backward(struct pass *pass);
/* Writes the logits of `rows` (at most head_rows) rows of x to the workspace. */
void head_logits(struct pass *pass, struct operand x, uint32_t rows);

/* outside.c: refuses to run blocks [begin, end) if an outside area of one is not bound. */
int blocks_bound(const struct stage *stage, uint32_t begin, uint32_t end, bool gradients, struct err *err);

/* pass.c: a boundary tensor of a caller. */
struct boundary {
    struct buffer *buffer; /* NULL: there is none */
    enum dtype dtype;
};
/* The boundary through which a block's input (or the gradient of its input) passes, and the one through which
 * the output of the block before `block_end` passes. */
struct boundary boundary_in(const struct stage *stage, uint32_t block_begin, struct buffer *buffer);
struct boundary boundary_out(const struct stage *stage, uint32_t block_end, struct buffer *buffer);
/* Copy the boundary's [tokens, hidden] to `x` as f32, or x to the boundary. */
void boundary_read(struct pass *pass, const struct boundary *boundary, struct operand x);
void boundary_write(struct pass *pass, struct operand x, const struct boundary *boundary);
/* Where the blocks before `block_end` leave their output in f32: in the boundary buffer itself, or in the
 * workspace, if the head follows or the boundary has 16 bits. */
struct operand boundary_end(const struct pass *pass, uint32_t block_end, const struct boundary *out);

/* pass.c: checks before a call starts. `tail` counts f32 values behind the tensor's [tokens, hidden]. */
int boundary_check(const struct stage *stage, const struct boundary *boundary, uint32_t tokens, uint64_t tail,
                   bool wanted, const char *what, struct err *err);
/* Find the slot of the micro-batch: the one that an earlier range's forward took, or a free one. */
int place_take(struct stage *stage, const struct micro_batch *batch, struct saved *earlier,
               struct saved **slot, struct err *err);
int backward_check(const struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                   struct err *err);
struct pass pass_of(struct stage *stage, struct saved *slot, bool train, struct err *err);

/* recorded.c: a range of blocks whose ops a pass queues after its micro-batch was described. Devices that
 * record passes replay them as a whole when the same range comes again. */
struct pass_range {
    enum { PASS_FORWARD, PASS_BACKWARD, PASS_BACKWARD_WEIGHTS } kind;
    uint32_t begin, end;     /* blocks */
    struct buffer *in, *out; /* of forward; in backward these are gradients */
};
/* Calls queue_all, which queues ops on the pass's queue and changes nothing else. It is called twice if the
 * device could not record the ops. */
void pass_run(struct pass *pass, const struct pass_range *range,
              void (*queue_all)(struct pass *pass, const struct pass_range *range));
/* The same for the ops that fill a shard's buffer of sums. Equal `sums` must always stand for equal ops. */
void sums_run(struct queue *queue, struct area_view sums, bool of_gradients, void (*queue_all)(void *context),
              void *context);

/* pass.c: take a free slot and describe the micro-batch in it. ERR_BUSY, ERR_TOO_BIG or ERR_INVALID. */
int slot_take(struct stage *stage, const struct micro_batch *batch, struct saved **out, struct err *err);
void embed(struct pass *pass, struct operand out);
/* queue.c: find a free slot and wait until its staging memory may be written. */
int slot_find(struct stage *stage, struct saved **out, struct err *err);
void slot_give(struct saved *slot);
/* Queue the copy of the staging memory to the device. */
int slot_write(struct saved *slot, struct err *err);

#endif
