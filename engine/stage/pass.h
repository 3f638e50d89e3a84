/* A pass (forward or backward of one micro-batch through some blocks), and the operands of its values. */
#ifndef MOTLEY_ENGINE_STAGE_PASS_H
#define MOTLEY_ENGINE_STAGE_PASS_H

#include "engine/stage/op_queue.h"
#include "engine/stage/stage_state.h"

/* A pass: forward or backward of one micro-batch through some blocks of a stage. */
struct stage_pass {
    struct stage *stage;
    struct op_queue queue;
    struct saved *slot;
    uint32_t tokens, rows;
    bool padded;   /* tokens and rows have padding, of which boundary tensors have none (slot.c) */
    bool dropout;  /* training, and the adapters have dropout */
    bool train;    /* backward will follow, or this is backward */
    bool counting; /* routers count their choices for the load-balancing loss */
    /* set in inference with a cache only */
    struct kv_cache *cache;
    uint32_t cache_begin;
};

int pass_backward_check(const struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                        struct err *err);
struct stage_pass pass_of(struct stage *stage, struct saved *slot, bool train, struct err *err);
void pass_embed(struct stage_pass *pass, struct operand out);
/* The layers among blocks [begin, end), counted from the stage's first layer. */
void pass_layers(const struct stage *stage, uint32_t begin, uint32_t end, uint32_t *first, uint32_t *after);

/* Operands of a pass: pass_meta is in the description of the micro-batch, pass_x is a layer's input. Layers
 * count from 0 within the stage. */
struct operand pass_meta(const struct stage_pass *pass, uint64_t at, enum dtype dtype);
struct operand pass_x(const struct stage_pass *pass, uint32_t layer);
/* input of the layer's FFN, for parts of layers with recompute */
struct operand pass_middle(const struct stage_pass *pass, uint32_t layer);
struct operand pass_workspace(const struct stage_pass *pass, uint64_t at);

#endif
