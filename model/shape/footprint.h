/* The memory layout of a stage, as one pure function of plain numbers. The engine allocates by it and the
 * planner predicts by it, so that the two cannot differ. engine/README.md lists what it adds up.
 *
 * Sizes and offsets are bytes unless the name says otherwise; each array starts on a multiple of 64 bytes.
 * Nothing is allocated. Callers bound widths and tokens, so that 64 bits cannot overflow. */
#ifndef MOTLEY_MODEL_SHAPE_FOOTPRINT_H
#define MOTLEY_MODEL_SHAPE_FOOTPRINT_H

#include <stdbool.h>
#include <stdint.h>

#include "model/shape/config.h"
#include "model/shape/layer.h"

/* The widths of a model, named as papers name them. */
struct footprint_shape {
    uint32_t hidden;
    uint32_t ffn; /* width of the FFN; with experts, of all experts that a token passes, if that is more */
    uint32_t vocab, layers;
    uint32_t experts;
    /* values that a layer without attention keeps of a row for its next tokens: those of the convolution, and
     * those of a gated delta net's state */
    uint32_t delta_past, delta_state;
    uint32_t per_layer; /* width of a token's own input to each layer */
    bool tied;
};

enum { FOOTPRINT_KINDS_MAX = 32, FOOTPRINT_LENT = 2 };

/* The data that all stages of a model share under one method. */
struct footprint_model {
    struct footprint_shape shape;
    struct layer_method method;
    uint32_t rank;       /* the largest rank of the adapters */
    uint32_t head_rows;  /* largest number of labelled positions whose logits are in memory at once */
    uint32_t kind_count; /* number of used kinds[]; layers with equal plans are of one kind */
    struct layer_plan kinds[FOOTPRINT_KINDS_MAX];
    uint8_t kind_of[MODEL_LAYERS_MAX];                               /* kind of each layer */
    uint16_t kind_before[FOOTPRINT_KINDS_MAX][MODEL_LAYERS_MAX + 1]; /* [kind][n]: layers of that kind among
                                                                      * the first n */
    struct layer_plan embedding;                                     /* block 0 */
    struct layer_tensors head, head_alone; /* head_alone: a head with a matrix of its own */
    /* The layers whose k and v each layer reads (model_layer_lender). Those that lend are at most two:
     * `lends` has their numbers and the width of their k and v together, 0 where there is none. */
    uint16_t lender[MODEL_LAYERS_MAX];
    struct footprint_lent {
        uint32_t layer, width, last; /* last: the last layer that reads them */
    } lends[FOOTPRINT_LENT];
    uint32_t rotary; /* values in a row of the rotary tables, all tables together */
    uint32_t sparse_before[MODEL_LAYERS_MAX + 1]; /* [n]: layers with experts among the first n */
};

struct footprint_options {
    bool train;     /* if false, nothing is saved, and there are neither gradients nor moments */
    bool recompute; /* only each layer's input is saved */
    /* with recompute: the first block whose layer saves all its values nevertheless, as do those behind it;
     * 0: none */
    uint32_t recompute_end;
    bool split; /* backward runs in two halves, for gradients of inputs and of weights */
    uint32_t block_begin, block_end;
    uint32_t slots;                  /* micro-batches in flight, ≥ 1 */
    uint32_t tokens, rows, labelled; /* most tokens, rows and labelled positions of a micro-batch */
    uint32_t positions;              /* rows of the rotary table */
    /* Blocks [outside_begin, outside_end) of the stage have their frozen or trained areas in memory that
     * belongs to another owner and is not counted here. */
    uint32_t outside_begin, outside_end;
    bool outside_frozen, outside_trained;
    /* moments are in host memory; the device has room for the moments of the largest block */
    bool moments_on_host;
};

/* Where the data of one micro-batch in flight lies in its memory: ids and labels, layer inputs, saved values,
 * the gradient of the head's input. */
struct footprint_slot {
    uint64_t ids, positions, row_ids, row_start, step, label_index, targets, meta_bytes;
    uint64_t label_positions, label_rows; /* where the input of the head's adapter is dropped out */
    /* x: the inputs [tokens, hidden] of the stage's layers; x_stride: bytes from one layer's to the next */
    uint64_t x, x_stride;
    /* middle: the input of each layer's FFN, kept with recompute where ranks hold parts of layers;
     * middle_stride: bytes from one layer's to the next */
    uint64_t middle, middle_stride;
    uint64_t saves; /* saved values of the layer saves_from; footprint_save_at() gives the offsets of the
                       layers behind it */
    uint64_t head;  /* gradient of the last block's input at the labelled positions, [labelled, hidden] */
    /* for the load-balancing loss of models with experts, in training: how often the rows' tokens chose each
     * expert, then the sums of the router's probabilities, f32 [2][rows, experts] */
    uint64_t router;
    /* The layers' own inputs from the stage's first layer on, f32 [tokens, footprint.own_width], and lent k
     * and v, [tokens, 2, kv]; in training their gradients (own_d: where block 0 is trained). */
    uint64_t own, own_d, lent[FOOTPRINT_LENT], lent_d[FOOTPRINT_LENT];
    uint64_t embedding; /* in training, what block 0 keeps for backward */
    uint64_t bytes;
};

struct footprint_workspace {
    uint64_t d, inner; /* d: gradient of the residual stream, [tokens, hidden]; inner: memory that the steps
                          of a layer share */
    uint64_t save;     /* saved values of one layer, when slots do not hold them */
    uint64_t embedded; /* where layers have inputs of their own: the embedding, made again for backward */
    uint64_t panel;    /* the piece of a packed matrix that is unpacked to fp32 */
    /* head_rows rows each: logits, and the inputs of the head before and after its norm */
    uint64_t logits, head_x, head_n;
    /* where embedding and head have adapters: A x and its gradient, and the head's input dropped out */
    uint64_t embed_z, head_z, head_dropped;
    uint64_t bytes;
};

/* The layout and the counted bytes of one stage. */
struct footprint {
    const struct footprint_model *model; /* borrowed */
    uint32_t layer_begin, layers;        /* first transformer layer (from 0) and number of layers */
    uint32_t tokens;                     /* upper bound of a micro-batch, rounded up to LAYER_TOKENS_UNIT */
    bool has_embedding, has_head, shares_table;
    bool copies_table; /* the tied, trained embedding is on another stage with block 0, so this stage keeps
                          copies of the embedding and of its gradient for the head */
    struct footprint_slot slot;
    uint32_t saves_from; /* slots hold the saved values of the layers from this one on */
    bool split;
    uint32_t slots;
    struct footprint_workspace workspace;
    uint32_t own_width; /* values of a token's inputs to the layers from the stage's first one on */
    bool own_learns;    /* these inputs have a gradient */
    bool head_drops;    /* the input of the head's adapter is dropped out */
    uint32_t head_rows; /* labelled positions whose logits are in memory at once */
    uint64_t rope_bytes, scalar_bytes;
    uint64_t table_bytes; /* bytes of the copied embedding; in training its gradient takes as many again */
    uint32_t parameters;
    /* Counted bytes of the stage's buffers, by purpose. */
    uint64_t weights, adapters, optimizer, activations, buffers;
    uint64_t host; /* bytes of host memory that the moments take with moments_on_host */
};

/* Counted bytes of the ranges of trained areas that a rank keeps beside a stage (engine/stage/shard.h). */
struct footprint_shard {
    uint64_t adapters;  /* the ranges' values, in training also their gradients */
    uint64_t optimizer; /* bytes of both moments, unless they are on the host */
    uint64_t host;      /* bytes of both moments, if they are on the host */
    /* with moments on the host: bytes of one moment of the largest range; the device has room for both
     * moments */
    uint64_t page;
    uint64_t pieces; /* number of the ranges' pieces of parameters (flat_pieces); for each the device keeps a
                        sum of squares, 8 bytes */
};

enum { FOOTPRINT_GRANULE = 4096 };
/* Returns the bytes that a buffer counts as: its size rounded up to whole granules. */
static inline uint64_t footprint_counted(uint64_t bytes)
{
    return (bytes + FOOTPRINT_GRANULE - 1) / FOOTPRINT_GRANULE * FOOTPRINT_GRANULE;
}

/* Fills *model for a config within its bounds (config.h). The result holds no pointers. ERR_UNSUPPORTED:
 * layers differ in more than FOOTPRINT_KINDS_MAX ways, or a packed base is asked of a model without packed
 * matrices. */
int footprint_model_init(const struct model_config *config, const struct layer_method *method,
                         struct footprint_model *model, struct err *err);
/* Returns the method of LoRA with one rank on a mask of enum lora_target, on an fp32 base; without adapters
 * if rank or mask is 0. */
struct layer_method footprint_lora(uint32_t rank, uint32_t targets, bool dropout);
/* Returns the method of LoRA whose ranks differ by target or layer, on an fp32 base. */
struct layer_method footprint_sites(const struct lora_sites *sites, bool dropout);
/* Computes the layout and the counted bytes of a stage. */
void footprint_of(const struct footprint_model *model, const struct footprint_options *options,
                  struct footprint *footprint);
/* These functions return the plan of a layer, and the tensors of a block of the stage. Layers count from 0
 * and blocks are numbered over the whole model. */
const struct layer_plan *footprint_layer(const struct footprint_model *model, uint32_t layer);
const struct layer_tensors *footprint_tensors(const struct footprint *footprint, uint32_t block);
/* These functions return the bytes that `layer` keeps in a micro-batch's slot, and the offset of these bytes
 * in the slot. */
uint64_t footprint_save_bytes(const struct footprint *footprint, uint32_t layer);
uint64_t footprint_save_at(const struct footprint *footprint, uint32_t layer);
/* Returns the number of values per token that cross, beside the residual stream, the boundary in front of
 * block `block`, which is not block 0: inputs of the layers from there on, and k and v that were lent before
 * it and are read behind it; or the number of their gradients. */
uint32_t footprint_crossing(const struct footprint_model *model, uint32_t block, bool gradient);
/* Returns the largest of these numbers in front of blocks begin to end, both inclusive. */
uint32_t footprint_crossing_most(const struct footprint_model *model, uint32_t begin, uint32_t end,
                                 bool gradient);
/* Returns the layer whose place in the stage's KV cache has the k and v that `layer` reads. */
uint32_t footprint_cache_owner(const struct footprint *footprint, uint32_t layer);
/* A number of blocks that have the same tensors. */
struct footprint_alike {
    const struct layer_tensors *tensors;
    uint32_t count;
};
enum { FOOTPRINT_ALIKE_MAX = FOOTPRINT_KINDS_MAX + 2 };
/* Lists blocks [begin, end) of the stage, with one entry for all blocks that have the same tensors. Returns
 * the number of entries. */
uint32_t footprint_alike(const struct footprint *footprint, uint32_t begin, uint32_t end,
                         struct footprint_alike list[FOOTPRINT_ALIKE_MAX]);
/* Adds bytes [begin, end) of the trained area of each block of `alike` to the shard; both ends are cuts
 * (flat.h). */
void footprint_shard_add(struct footprint_shard *shard, const struct footprint_alike *alike, uint64_t begin,
                         uint64_t end, bool train, bool moments_on_host);
/* Returns the bytes that a shard's moments take on the device. */
static inline uint64_t footprint_shard_optimizer(const struct footprint_shard *shard)
{
    return shard->optimizer + 2 * shard->page;
}
static inline uint64_t footprint_shard_buffers(const struct footprint_shard *shard)
{
    return footprint_counted(8 * shard->pieces);
}
/* Returns the bytes of a KV cache of `tokens` tokens: keys and values [2, tokens, heads.kv] of each layer, or
 * the two states of a gated delta net; and those of the stage's first `layers` layers alone. */
uint64_t footprint_cache_bytes(const struct footprint *footprint, uint32_t tokens);
uint64_t footprint_cache_at(const struct footprint *footprint, uint32_t tokens, uint32_t layers);

#endif
