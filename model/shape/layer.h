/* A transformer layer of any architecture as a short list of steps, made once from the config and the method.
 *
 * A step reads and writes values: matrices with one row a token (or one a token and chosen expert) and a
 * fixed width. Forward runs the steps in order. Backward is a list too, made from them: each step's own
 * backward, last step first, and before it the steps whose results it needs and forward did not keep. From
 * both lists follows when a value or a gradient is alive, and so where it lies: values kept for backward in
 * the place of the micro-batch, all others in one workspace, shared by those that are never alive together.
 *
 * The residual stream runs through X, MID and OUT; their gradient is one matrix that backward adds to as it
 * goes down (the workspace's `d`).
 *
 * Places are bytes per token and hold for any number of tokens: multiplied by the tokens rounded up to
 * LAYER_TOKENS_UNIT they are multiples of 64 bytes. Pure, no allocation. The tensors of the layer, their
 * shapes and where they lie, are in struct layer_tensors; embedding and head have one, too.
 */
#ifndef MOTLEY_MODEL_SHAPE_LAYER_H
#define MOTLEY_MODEL_SHAPE_LAYER_H

#include <stdbool.h>
#include <stdint.h>

#include "model/shape/blocks.h"
#include "model/shape/config.h"
#include "model/shape/lora_sites.h"
#include "model/files/pack.h"

enum {
    LAYER_TOKENS_UNIT = 16,
    LAYER_TENSORS_MAX = 40,
    LAYER_STEPS_MAX = 20,
    LAYER_TAPE_MAX = 48,
    LAYER_MEMBERS_MAX = 3,
    LAYER_TARGETS_MAX = 16 /* room for lora_target bits */
};

/* --- the method --- */

/* PACKED: each matrix, embedding and head as config->packing says. */
enum layer_base { LAYER_BASE_F32, LAYER_BASE_BF16, LAYER_BASE_F16, LAYER_BASE_NF4, LAYER_BASE_PACKED };

/* Layers with experts may also be taken apart: attention, norms and router on some ranks, experts on others.
 */
enum layer_holds { HOLDS_ALL, HOLDS_NO_EXPERTS, HOLDS_EXPERTS };

/* What of each layer is here, half-open; 0..0: all of it. Key and value heads come with the query heads they
 * serve; columns of the FFN are rows of gate and up and columns of down. The parts of a layer's output, and
 * of the gradients of what all keep alike, add up to the whole's (Shoeybi et al. 2019, section 3). */
struct layer_part {
    enum layer_holds holds;
    uint32_t kv_head_begin, kv_head_end;
    uint32_t column_begin, column_end;
    uint32_t expert_begin, expert_end;
    bool follows; /* another part adds the residual and biases that all keep alike, and counts routers'
                     choices */
};

/* Is it not the whole? */
static inline bool layer_part_set(const struct layer_part *part)
{
    return part->holds != HOLDS_ALL || part->follows || part->kv_head_end > 0 || part->column_end > 0 ||
           part->expert_end > 0;
}

struct layer_method {
    struct layer_part part;
    bool full;                        /* every parameter is trained, else adapters and the two below */
    enum layer_base base;             /* how frozen matrices are kept; F32 when full */
    bool double_quant;                /* of NF4's scales */
    bool moments8;                    /* optimiser's moments in 8 bits */
    bool train_embedding, train_head; /* trained beside adapters */
    struct lora_sites lora;           /* adapters, and where each of them is; of every layer of the model */
    bool dropout;                     /* of the adapters' inputs */
    bool sixteen;                     /* products round their operands to 16 bits: see struct layer_plan's */
};

/* --- tensors --- */

enum tensor_role {
    TENSOR_EMBEDDING,
    TENSOR_HEAD,
    TENSOR_NORM_FINAL,
    TENSOR_NORM_INPUT,    /* before attention */
    TENSOR_NORM_ATT_POST, /* of attention's output (Gemma) */
    TENSOR_NORM_FFN,      /* before the FFN */
    TENSOR_NORM_FFN_POST, /* of the FFN's output (Gemma) */
    TENSOR_NORM_Q,
    TENSOR_NORM_K,
    TENSOR_MATRIX, /* of `target` */
    TENSOR_BIAS,   /* of `target` */
    TENSOR_ROUTER,
    TENSOR_LORA_A, /* [rank, inputs] of `target` */
    TENSOR_LORA_B  /* [outputs, rank] of `target` */
};

struct layer_tensor {
    enum tensor_role role;
    uint32_t target;        /* bit of enum lora_target, or 0 */
    uint32_t rows, columns; /* a vector has one column */
    uint32_t copies;        /* experts, or 1 */
    bool expert;            /* of experts, be it one; the first of them number copy_begin */
    uint32_t copy_begin;
    /* Of the tensor in the file it is rows [row_begin, row_begin + rows), columns likewise */
    uint32_t row_begin, column_begin, whole_rows, whole_columns;
    bool unnested; /* PACK_NF4 with the scales that double quantisation leaves: a part of such a tensor */
    bool vector;   /* one dimension in files: norms and biases */
    bool trained;  /* in the trained area (f32), else in the frozen one */
    enum pack_kind pack;
    uint64_t at, stride;     /* bytes into its area; from one copy to the next */
    uint64_t absmax, scales; /* NF4: bytes from where a copy begins */
    bool moments8;           /* its moments are kept in 8 bits (model/shape/flat.h places them) */
};

/* All tensors of a block and the sizes of its areas. Gradients lie as the trained values do. */
struct layer_tensors {
    uint32_t count, parameters; /* parameters: trained tensors, copies counted */
    struct layer_tensor list[LAYER_TENSORS_MAX];
    bool moments8;                                      /* of those tensors that can */
    uint64_t frozen_bytes, trained_bytes, moment_bytes; /* moment: of one of the two */
    uint64_t panel_bytes; /* fp32 in which a packed matrix is unpacked piece by piece; 0: none is */
};

enum { LAYER_NAME_MAX = ARCH_NAME_MAX };
/* The name of a copy in Hugging Face files, "model.layers.3.mlp.down_proj.weight"; adapters as in a PyTorch
 * state dict without peft's prefix. layer: from 0. */
void layer_tensor_name(const struct model_config *config, uint32_t layer, const struct layer_tensor *tensor,
                       uint32_t copy, char name[LAYER_NAME_MAX]);

/* --- steps --- */

enum layer_value {
    VALUE_X,
    VALUE_NORM,        /* norm(x) */
    VALUE_QKV,         /* q, k, v side by side */
    VALUE_QKV_NORM,    /* the same with q and k normed */
    VALUE_QKV_ROUNDED, /* as attention reads them, where that is in 16 bits */
    VALUE_ATT,
    VALUE_LSE,     /* logarithms of the softmax sums, one a head */
    VALUE_ATT_OUT, /* attention's output, where it is normed before it is added */
    VALUE_ATT_POST,
    VALUE_MID, /* x + attention */
    VALUE_FFN_NORM,
    VALUE_PROBABILITIES, /* of the router */
    VALUE_CHOSEN,        /* u32 [tokens, active] */
    VALUE_CHOSEN_WEIGHT,
    VALUE_ROUTED_TOKEN, /* u32, as op_route_sort has it */
    VALUE_ROUTED_PLACE,
    VALUE_OFFSETS, /* u32 [experts + 1], whatever the tokens */
    VALUE_ROUTED,  /* norm(mid) of each chosen pair, in order of experts */
    VALUE_GATE_UP,
    VALUE_ACT,
    VALUE_EXPERT_OUT,
    VALUE_FFN_OUT, /* the FFN's output, where it is normed before it is added */
    VALUE_FFN_POST,
    VALUE_OUT,
    VALUE_COUNT,
    VALUE_NONE = VALUE_COUNT
};

enum layer_step_kind {
    STEP_NORM,      /* out = norm(in) */
    STEP_QK_NORM,   /* out = in with q and k normed */
    STEP_LINEAR,    /* out = [add +] in W^T [+ bias] [+ adapters] */
    STEP_ROPE,      /* out = in, rotated in place */
    STEP_ROUND,     /* out = in, in 16 bits */
    STEP_ATTENTION, /* in: qkv; out: att, beside lse */
    STEP_ADD,       /* out = add + in */
    STEP_ROUTE,     /* in: router's scores, which become probabilities; chosen, weights, places */
    STEP_DISPATCH,  /* out = rows of in for each chosen pair */
    STEP_GLU,       /* out = f(gate) * up */
    STEP_COMBINE    /* out = add + weighted rows of in */
};

/* The matrices that a linear step multiplies with: members side by side in the output. */
struct layer_member {
    uint32_t target;          /* bit of enum lora_target; 0: the router, which takes no adapter */
    uint32_t site;            /* number of that bit: keys dropout */
    uint32_t outputs, column; /* its part of the output */
    int32_t matrix, bias;     /* tensors; bias -1: none */
    uint32_t rank, z;         /* of its adapter, and where its part of z begins; rank 0: none */
    int32_t a, b;             /* tensors of the adapter */
};

struct layer_step {
    enum layer_step_kind kind;
    enum layer_value in, out, add; /* add: VALUE_NONE where there is none */
    int32_t norm, norm_k;          /* tensors of a norm */
    /* linear */
    bool experts;                    /* of each expert its own, over routed rows */
    uint32_t inputs, outputs, ranks; /* ranks: sum over the members */
    uint32_t member_count;
    struct layer_member members[LAYER_MEMBERS_MAX];
    bool stacked; /* the members' matrices lie as one, all in fp32 */
    bool kept;    /* forward for backward alone runs this step */
    bool kept_z;  /* … or, of this linear step, only the adapters' inner part */
    bool trains;  /* a matrix, bias or adapter of it is trained */
    uint64_t z;   /* bytes per token in the micro-batch's place: A x, [ranks] */
    uint64_t
        forward_scratch;  /* bytes per token in the workspace: dropped inputs, then such in fp32 of 16 bits */
    uint64_t forward_sum; /* likewise: sums in fp32 for an output in 16 bits; LAYER_ABSENT: it is in fp32 */
    uint64_t dout; /* bytes per token in the place: gradient of out kept for BACKWARD_WEIGHT; split only */
    /* Likewise `in`, where what it is made of has become a gradient by then. LAYER_ABSENT: elsewhere. */
    uint64_t split_in;
};

enum tape_kind {
    TAPE_FORWARD,        /* the step again, for values that forward did not keep */
    TAPE_BACKWARD,       /* its backward, whole */
    TAPE_BACKWARD_INPUT, /* … without gradients of matrices and adapters */
    TAPE_BACKWARD_WEIGHT
};

struct tape_entry {
    enum tape_kind kind;
    uint32_t step;
    bool accumulate;  /* the gradient of `in` is there already and is added to */
    uint64_t scratch; /* bytes per token in the workspace, for this entry alone */
};

struct tape {
    uint32_t count;
    struct tape_entry entries[LAYER_TAPE_MAX];
    uint64_t work_bytes;            /* per token */
    uint64_t value[VALUE_COUNT];    /* bytes per token in the workspace of values made again, … */
    uint64_t gradient[VALUE_COUNT]; /* … and of gradients; LAYER_ABSENT: elsewhere */
};
#define LAYER_ABSENT UINT64_MAX

struct layer_plan {
    struct layer_tensors tensors;
    uint32_t step_count;
    enum layer_holds holds; /* NO_EXPERTS: it ends with the router's choice; EXPERTS: x is what routers saw,
                               and what they chose is given */
    uint32_t second_half;   /* the first step of the FFN, its norm */
    struct layer_step steps[LAYER_STEPS_MAX];
    uint32_t width[VALUE_COUNT]; /* elements a token, of 4 bytes, or 2; 0: not in this layer */
    /* In 16 bits wherever it lies: what attention reads and leaves and what the gate does, so that no number
     * depends on what is kept and what is made again; and what products alone read, which they round anyway
     * (where adapters drop nothing from it before). */
    bool sixteen[VALUE_COUNT];
    bool kept[VALUE_COUNT];            /* in the micro-batch's place */
    uint64_t saved[VALUE_COUNT];       /* bytes per token there */
    uint64_t saved_bytes, fixed_bytes; /* per token; and beside that, whatever the tokens */
    uint64_t split_bytes;              /* per token, after saved_bytes: what BACKWARD_INPUT keeps */
    uint64_t forward[VALUE_COUNT];     /* bytes per token in the workspace of what forward does not keep */
    uint64_t forward_bytes;
    struct tape backward, backward_input, backward_weight;
};

/* Bytes of a value per token. */
uint64_t layer_value_bytes(const struct layer_plan *plan, enum layer_value value);

/* Where the gradient of a value is: in `d` for the stream and for what is added to it as it is; in the
 * value's own place (and dtype) for what backward turns into its gradient; else in the workspace in fp32,
 * where q, k, v, whether normed or rounded, share one place: that of layer_gradient_of(). */
bool layer_gradient_is_stream(enum layer_value value);
/* The second of the three. */
bool layer_gradient_in_place(enum layer_value value);
enum layer_value layer_gradient_of(enum layer_value value);

/* A layer (from 0) under a method. config is within its bounds (config.h). */
void layer_plan_init(const struct model_config *config, const struct layer_method *method, uint32_t layer,
                     struct layer_plan *plan);
/* True when two layers have the same plan. */
bool layer_alike(const struct model_config *config, const struct layer_method *method, uint32_t a,
                 uint32_t b);

/* The config of a part: its heads and columns. */
struct model_config layer_part_config(const struct model_config *config, const struct layer_part *part);
/* Does a tensor hold all of the file's? */
bool layer_tensor_whole(const struct layer_tensor *tensor);
/* Whether its blocks are those of the whole tensor: false where a part is cut within one. */
bool layer_tensor_cut_fits(const struct layer_tensor *tensor);

/* The tensors of block 0, and of the last block: norm and head, the matrix only where the head has one of its
 * own (own_matrix: untied, or tied and the embedding is elsewhere). */
void layer_embedding_tensors(const struct model_config *config, const struct layer_method *method,
                             struct layer_tensors *out);
void layer_head_tensors(const struct model_config *config, const struct layer_method *method, bool own_matrix,
                        struct layer_tensors *out);

#endif
