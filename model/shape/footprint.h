/* Bytes held: where everything of a stage lies, as one pure function of plain numbers. The engine allocates
 * by it and the planner predicts by it, so that the two cannot differ. engine/README.md says what it adds up.
 *
 * Sizes and offsets are bytes unless the name says otherwise; each array starts on a multiple of 64 bytes. No
 * allocation. Who calls bounds widths and tokens, so that 64 bits cannot overflow.
 */
#ifndef MOTLEY_MODEL_SHAPE_FOOTPRINT_H
#define MOTLEY_MODEL_SHAPE_FOOTPRINT_H

#include <stdbool.h>
#include <stdint.h>

#include "model/shape/config.h"
#include "model/shape/layer.h"

/* The widths of a model, with the names papers use. */
struct footprint_shape {
    uint32_t hidden, q_width, kv_width, qkv_width; /* q_width = heads * head_dim, … */
    uint32_t ffn; /* with experts: of those that a token passes; where layers differ, the wider kind's */
    uint32_t vocab, heads, kv_heads, head_dim, layers;
    uint32_t experts;
    bool tied;
};

enum { FOOTPRINT_KINDS_MAX = 32 };

/* What holds for every stage of a model under a method. */
struct footprint_model {
    struct footprint_shape shape;
    struct layer_method method;
    uint32_t rank;       /* the largest of the adapters' */
    uint32_t head_rows;  /* labelled positions whose logits are held at once, at most */
    uint32_t kind_count; /* layers that are alike share a plan */
    struct layer_plan kinds[FOOTPRINT_KINDS_MAX];
    uint8_t kind_of[MODEL_LAYERS_MAX];                               /* by layer */
    uint16_t kind_before[FOOTPRINT_KINDS_MAX][MODEL_LAYERS_MAX + 1]; /* of a kind among the first so many */
    struct layer_tensors embedding, head, head_alone; /* head_alone: with a matrix of its own */
    uint32_t rotary; /* values of a row of the rotary tables: the widths of the tables together */
    uint32_t sparse_before[MODEL_LAYERS_MAX + 1]; /* layers with experts among the first so many */
};

struct footprint_options {
    bool train;     /* else nothing is saved, and there are no gradients and moments */
    bool recompute; /* only each layer's input is saved */
    bool split;     /* backward in two halves, of inputs and of weights */
    uint32_t block_begin, block_end;
    uint32_t slots;                  /* micro-batches in flight, ≥ 1 */
    uint32_t tokens, rows, labelled; /* most of a micro-batch */
    uint32_t positions;              /* of the rotary table */
    /* Blocks [outside_begin, outside_end), of these, whose frozen or trained areas somebody else keeps */
    uint32_t outside_begin, outside_end;
    bool outside_frozen, outside_trained;
    bool moments_on_host; /* on the device is room for the largest block's */
};

/* One place for a micro-batch: its description, layer inputs, what layers save, the head's gradient. */
struct footprint_slot {
    uint64_t ids, positions, row_ids, row_start, step, label_index, targets, meta_bytes;
    uint64_t x, x_stride;           /* of inputs[layer] */
    uint64_t middle, middle_stride; /* of what enters each layer's FFN: parts of layers with recompute */
    uint64_t saves;                 /* of the first layer; bytes_saved() of a layer further on the next */
    uint64_t head;                  /* [labelled, hidden] */
    uint64_t router; /* counts, then sums: f32 [2][rows, experts]; models with experts, training */
    uint64_t bytes;
};

struct footprint_workspace {
    uint64_t d, inner;               /* [tokens, hidden]; what the steps of a layer share */
    uint64_t save;                   /* of one layer when slots hold none */
    uint64_t panel;                  /* fp32 of a packed matrix */
    uint64_t logits, head_x, head_n; /* [head_rows, …] */
    uint64_t bytes;
};

/* A stage. */
struct footprint {
    const struct footprint_model *model; /* borrowed */
    uint32_t layer_begin, layers;        /* transformer layers from 0; how many of them */
    uint32_t tokens;                     /* rounded up to LAYER_TOKENS_UNIT */
    bool has_embedding, has_head, shares_table;
    bool copies_table; /* a tied embedding that is trained is kept with block 0, elsewhere: a copy of it, and
                          its gradient, are here for the head */
    struct footprint_slot slot;
    bool saves; /* slots hold what layers save */
    bool split;
    uint32_t slots;
    struct footprint_workspace workspace;
    uint32_t head_rows; /* labelled positions whose logits are held at once */
    uint64_t rope_bytes, scalar_bytes;
    uint64_t table_bytes; /* of the copied table's values; training, as many again of its gradient */
    uint32_t parameters;
    /* Sums of buffers as they are counted, by purpose */
    uint64_t weights, adapters, optimizer, activations, buffers;
    uint64_t host; /* beside them, of host memory: moments_on_host */
};

enum { FOOTPRINT_GRANULE = 4096 };
/* What a buffer of so many bytes is counted as. */
static inline uint64_t footprint_counted(uint64_t bytes)
{
    return (bytes + FOOTPRINT_GRANULE - 1) / FOOTPRINT_GRANULE * FOOTPRINT_GRANULE;
}

/* A config within its bounds (config.h). The result holds no pointers. ERR_UNSUPPORTED: layers differ in more
 * than FOOTPRINT_KINDS_MAX ways, or a packed base is asked of a model without packed matrices. */
int footprint_model_init(const struct model_config *config, const struct layer_method *method,
                         struct footprint_model *model, struct err *err);
/* LoRA of one rank on a mask of enum lora_target, none if rank or mask is 0, on an fp32 base. */
struct layer_method footprint_lora(uint32_t rank, uint32_t targets, bool dropout);
/* LoRA whose ranks differ by target or layer, likewise. */
struct layer_method footprint_sites(const struct lora_sites *sites, bool dropout);
/* Everything of a stage. */
void footprint_of(const struct footprint_model *model, const struct footprint_options *options,
                  struct footprint *footprint);
/* The steps of a layer; the tensors of a block of the stage (blocks numbered as everywhere). */
const struct layer_plan *footprint_layer(const struct footprint_model *model, uint32_t layer);
const struct layer_tensors *footprint_tensors(const struct footprint *footprint, uint32_t block);
/* Bytes that `layer` keeps in a micro-batch's place, and where they begin there. */
uint64_t footprint_save_bytes(const struct footprint *footprint, uint32_t layer);
uint64_t footprint_save_at(const struct footprint *footprint, uint32_t layer);
/* Bytes of a KV cache: [layers, 2, tokens, kv_width]. */
uint64_t footprint_cache_bytes(const struct footprint *footprint, uint32_t tokens);

#endif
