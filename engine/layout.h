/* Where everything of a stage lies, as pure functions of its options: the stage allocates by these, and
 * stage_memory_predict() adds them up, so that the two cannot differ. README.md states them as formulas.
 *
 * Sizes and offsets are bytes unless the name says floats; each array starts on a multiple of 64 bytes.
 */
#ifndef MOTLEY_ENGINE_LAYOUT_H
#define MOTLEY_ENGINE_LAYOUT_H

#include "engine/stage.h"

/* The widths of a model, with the names papers use. */
struct shape {
    uint32_t hidden, q_width, kv_width, qkv_width; /* q_width = heads * head_dim, … */
    uint32_t ffn, vocab, heads, kv_heads, head_dim, layers;
    float norm_eps;
};

/* The matrices that adapters read from, in groups with one input: the A of a group are stacked. */
enum lora_group_kind { GROUP_QKV, GROUP_O, GROUP_GATE_UP, GROUP_DOWN, GROUP_COUNT };

struct lora_member {
    uint32_t target;  /* bit of enum lora_target */
    uint32_t site;    /* number of that bit: keys dropout */
    uint32_t outputs; /* rows of B */
    uint32_t column;  /* where its output begins in the group's output matrix */
    uint64_t b;       /* [outputs, rank], floats into the layer's adapter */
};

struct lora_group {
    uint32_t count, inputs; /* members; columns of A */
    uint64_t a;             /* [count * rank, inputs], floats into the layer's adapter */
    struct lora_member members[3];
};

/* The frozen weights of a layer in its buffer. */
struct layer_layout {
    uint64_t norm1, qkv, o, norm2, gate_up, down, bytes;
};

/* What forward leaves for backward in one layer, beside its input, for `tokens` tokens. */
struct save_layout {
    uint64_t qkv, att, lse, mid, gate_up, z[GROUP_COUNT], bytes;
};

/* One place for a micro-batch: its description, layer inputs, what layers save, the head's gradient. */
struct slot_layout {
    uint64_t ids, positions, row_ids, row_start, label_index, targets, meta_bytes;
    uint64_t x, x_stride;        /* of inputs[layer] */
    uint64_t saves, save_stride; /* of what each layer saves; stride 0: one for all */
    uint64_t head;               /* [labelled, hidden] */
    uint64_t bytes;
};

struct workspace_layout {
    uint64_t norm, act, d, datt, dqkv, delta, dz, drop, act2; /* [tokens, …] */
    uint64_t save;                                            /* of one layer when slots hold none */
    uint64_t logits, head_x, head_n;                          /* [head_rows, …] */
    uint64_t bytes;
};

struct stage_layout {
    struct stage_options options; /* zeroes replaced by what they stand for */
    struct shape shape;
    uint32_t layer_begin, layer_end; /* transformer layers from 0 */
    bool has_embedding, has_head, shares_table;
    bool exact; /* so narrow a model that all is done in double inside each op */
    struct layer_layout layer;
    uint64_t table_bytes, head_norm_bytes, rope_bytes; /* 0 where absent */
    struct lora_group groups[GROUP_COUNT];
    uint64_t adapter_floats; /* of one layer */
    uint32_t parameters;     /* of one layer */
    struct slot_layout slot;
    uint32_t slots;
    struct workspace_layout workspace;
    uint32_t head_rows; /* labelled positions whose logits are held at once */
    uint64_t scalar_bytes;
};

/* Check the options and lay everything out. ERR_INVALID, ERR_UNSUPPORTED as stage_create. */
int stage_layout_init(struct stage_layout *layout, const struct stage_options *options, struct err *err);

/* What a layer saves for `tokens` tokens; packed, so a short micro-batch uses the front of its place. */
struct save_layout save_layout_of(const struct stage_layout *layout, uint32_t tokens);
/* Bytes of a KV cache per stage: [layers, 2, tokens_max, kv_width] f32. */
uint64_t cache_layout_bytes(const struct stage_layout *layout, uint32_t tokens_max);

#endif
