/* A stage in memory: its blocks' areas, its slots for micro-batches and its buffers. */
#ifndef MOTLEY_ENGINE_STAGE_STAGE_STATE_H
#define MOTLEY_ENGINE_STAGE_STAGE_STATE_H

#include "engine/device/op.h"
#include "engine/stage/layout.h"

/* A slot for one micro-batch. stage_forward takes it; backward, release or the end of a call frees it. */
struct saved {
    struct stage *stage;
    struct buffer *buffer; /* laid out as layout.slot */
    uint8_t *staging; /* [meta_bytes] host memory for the micro-batch's description while it is copied to the
                         device */
    struct event *written; /* done when the copy has finished and staging may change */
    bool taken;
    uint32_t entry; /* first block of the stage that the micro-batch passes; its backward frees the slot */
    uint32_t tokens, rows, labelled;
    bool padded; /* the device records passes, so they are queued with the next two counts */
    uint32_t tokens_padded, labelled_padded;
    uint64_t step;
    double router_scale; /* factor of the routers' load-balancing loss */
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

/* Returns whether blocks that end at `end` include the final norm and head. */
static inline bool stage_has_head(const struct stage *stage, uint32_t end)
{
    return end == stage->config.layers + 2;
}

struct block_state *stage_block(const struct stage *stage, uint32_t block);
/* The operands of a tensor and of its gradient (which only trained tensors have). A tensor of experts has one
 * copy per expert; these are the operands of the first copy. */
struct operand tensor_at(const struct block_state *block, const struct layer_tensor *tensor);
struct operand tensor_gradient(const struct block_state *block, const struct layer_tensor *tensor);

#endif
