/* Describes a transformer layer of any architecture as a short list of steps, made once from the config and
 * the method.
 *
 * A step reads and writes values: matrices of a fixed width with one row per token, or one row per token and
 * chosen expert. Forward runs the steps in order. Backward is a list, too: each step's own backward, last
 * step first, and before it the steps whose results it needs and forward did not keep. Both lists together
 * tell when a value or a gradient is alive, and so where it lies: values that are kept for backward lie in
 * the micro-batch's slot, all others in one workspace, in which values that are never alive together share
 * bytes.
 *
 * The residual stream runs through X, MID and OUT; their gradient is one matrix, the workspace's `d`, to
 * which backward adds.
 *
 * Offsets are in bytes per token and hold for any number of tokens: multiplied by the tokens rounded up to
 * LAYER_TOKENS_UNIT they are multiples of 64 bytes. All functions are pure and allocate nothing. struct
 * layer_tensors has the layer's tensors, their shapes and their offsets; the embedding and the head have one
 * each, too. */
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
    LAYER_TENSORS_MAX = 56,
    LAYER_STEPS_MAX = 36,
    LAYER_TAPE_MAX = 80,
    LAYER_MEMBERS_MAX = 4,
    LAYER_TARGETS_MAX = LORA_TARGET_COUNT /* most bits of enum lora_target */
};

/* --- method --- */

/* How frozen weights are stored. PACKED: config->packing gives the kind of each matrix, of the embedding and
 * of the head. */
enum layer_base { LAYER_BASE_F32, LAYER_BASE_BF16, LAYER_BASE_F16, LAYER_BASE_NF4, LAYER_BASE_PACKED };

/* Which part of a layer with experts a rank holds: attention, norms and router may be on other ranks than the
 * experts. */
enum layer_holds { HOLDS_ALL, HOLDS_NO_EXPERTS, HOLDS_EXPERTS };

/* The part of each layer that this rank holds, as half-open ranges; 0..0 means all. A key and value head
 * comes with the query heads that it serves; a column of the FFN is a row of gate and of up and a column of
 * down. The partial outputs of all ranks, and their gradients of replicated parameters, add up to those of
 * the whole layer (Shoeybi et al. 2019, section 3). */
struct layer_part {
    enum layer_holds holds;
    uint32_t kv_head_begin, kv_head_end;
    uint32_t column_begin, column_end;
    uint32_t expert_begin, expert_end;
    bool follows; /* another part adds the residual and the biases that every part has, and counts the
                     routers' choices */
};

/* Returns true if the part is not the whole layer. */
static inline bool layer_part_set(const struct layer_part *part)
{
    return part->holds != HOLDS_ALL || part->follows || part->kv_head_end > 0 || part->column_end > 0 ||
           part->expert_end > 0;
}

struct layer_method {
    struct layer_part part;
    bool full; /* every parameter is trained; if false, only adapters, and the tables of train_embedding and
                  train_head */
    enum layer_base base;             /* storage of frozen matrices; F32 when full */
    bool double_quant;                /* NF4's scales are quantised, too */
    bool moments8;                    /* the optimiser's moments are kept in 8 bits */
    bool train_embedding, train_head; /* embedding and head are trained beside the adapters */
    struct lora_sites lora;           /* the adapters of every layer of the model */
    bool dropout;                     /* the adapters' inputs are dropped out */
    bool sixteen;                     /* products round their operands to 16 bits; see layer_plan.sixteen */
};

/* --- tensors --- */

enum tensor_role {
    TENSOR_EMBEDDING,
    TENSOR_HEAD,
    TENSOR_NORM_FINAL,
    TENSOR_NORM_INPUT,       /* the norm before attention */
    TENSOR_NORM_ATT_POST,    /* the norm of attention's output (Gemma) */
    TENSOR_NORM_FFN,         /* the norm before the FFN */
    TENSOR_NORM_FFN_POST,    /* the norm of the FFN's output (Gemma) */
    TENSOR_NORM_DENSE_POST,  /* where experts stand beside a dense FFN: the norm of the FFN's own output, */
    TENSOR_NORM_EXPERT,      /* the norm before the experts, */
    TENSOR_NORM_EXPERT_POST, /* and that of their sum */
    TENSOR_ROUTER_SCALE,     /* the weights of the norm before the router */
    TENSOR_EXPERT_SCALE,     /* a factor of each expert's weights */
    TENSOR_NORM_PER_LAYER,   /* the norm of what a layer makes of its own input (Gemma 4 E2B, E4B) */
    TENSOR_PER_LAYER_TABLE,  /* of block 0: the tokens' part of these inputs, */
    TENSOR_PER_LAYER_NORM,   /* and the norm of what is made of the embedding */
    TENSOR_NORM_Q,
    TENSOR_NORM_K,
    TENSOR_NORM_Q_LATENT,  /* the norms of latent attention's narrow vectors, */
    TENSOR_NORM_KV_LATENT, /* of which that of k and v leaves the rotated values behind it alone */
    TENSOR_MATRIX,         /* the matrix of `target` */
    TENSOR_BIAS,           /* the bias beside the matrix of `target` */
    TENSOR_ROUTER,
    TENSOR_DELTA_CONV,    /* [channels, taps]: the convolution of a layer, always in fp32 */
    TENSOR_DELTA_BIAS,    /* the convolution's bias */
    TENSOR_DELTA_DECAY,   /* the logarithm of each head's rate of decay */
    TENSOR_DELTA_DT_BIAS, /* added to what the decay is made from */
    TENSOR_DELTA_NORM,    /* the norm of each head's output, or of a state space's */
    TENSOR_DELTA_SKIP,    /* the factors of a state space's inputs in its outputs */
    TENSOR_SINKS,         /* the score of each head that has no value */
    TENSOR_LAYER_SCALE,   /* the number that multiplies the layer's output; never trained */
    TENSOR_ROUTER_BIAS,   /* added to probabilities for the choice of experts; never trained */
    TENSOR_SHARED_SCORE,  /* the row whose product with a token weighs the shared expert */
    TENSOR_LORA_A, /* [rank, inputs]: A of the adapter on `target`; the embedding's inputs are tokens */
    TENSOR_LORA_B  /* [outputs, rank]: B of the adapter on the matrix of `target` */
};

struct layer_tensor {
    enum tensor_role role;
    uint32_t target;        /* a bit of enum lora_target, or 0 */
    uint32_t rows, columns; /* a vector has one column */
    uint32_t copies;        /* number of experts, or 1 */
    bool expert;            /* the copies belong to experts, of which the first has the number copy_begin */
    uint32_t copy_begin;
    /* The tensor is rows [row_begin, row_begin + rows) of whole_rows in the file, and the same
     * for columns. */
    uint32_t row_begin, column_begin, whole_rows, whole_columns;
    bool unnested; /* PACK_NF4: a part of a tensor whose scales the file quantises, too, while the part's are
                      not quantised */
    bool bias;     /* the bias of a norm, behind whose weights it stands */
    bool vector;   /* norms and biases: the file's tensor has one dimension */
    bool trained;  /* the tensor lies in the trained area (f32), else in the frozen one */
    enum pack_kind pack;
    uint64_t at, stride;     /* bytes: offset in the area, and distance between copies */
    uint64_t absmax, scales; /* NF4: offsets from the beginning of a copy, bytes */
    bool moments8; /* the tensor's moments are kept in 8 bits (model/shape/flat.h gives their offsets) */
};

/* All tensors of a block and the sizes of its areas. Gradients have the same offsets as the
 * trained values. */
struct layer_tensors {
    uint32_t count, parameters; /* parameters: number of trained tensors; each copy counts */
    uint32_t adapter; /* of embedding and head: index of the A of its adapter, before B; 0: there is none */
    struct layer_tensor list[LAYER_TENSORS_MAX];
    bool moments8; /* the method keeps moments in 8 bits; list[].moments8 says for which tensors */
    uint64_t frozen_bytes, trained_bytes, moment_bytes; /* moment_bytes: one of AdamW's two moments */
    uint64_t
        panel_bytes; /* fp32 buffer into which packed matrices are unpacked in pieces; 0: nothing is packed */
};

enum { LAYER_NAME_MAX = ARCH_NAME_MAX };
/* Writes the name of a copy (an expert's, if the tensor has several) in Hugging Face files,
 * "model.layers.3.mlp.down_proj.weight". Adapters are named as in a PyTorch state dict, without peft's
 * prefix. Layers count from 0. */
void layer_tensor_name(const struct model_config *config, uint32_t layer, const struct layer_tensor *tensor,
                       uint32_t copy, char name[LAYER_NAME_MAX]);

/* --- steps --- */

enum layer_value {
    VALUE_X,
    VALUE_NORM,   /* norm(x) */
    VALUE_PACKED, /* what a packed gated delta net's matrices make, or GPT-NeoX's first one; VALUE_MIXED or
                   * VALUE_QKV has the parts apart */
    VALUE_MIXED,  /* where there are gates: what they are made from, with q, k and v; where k is v: q and k */
    VALUE_Q_LATENT, /* latent attention's narrow vector of q, and its norm, */
    VALUE_Q_LATENT_NORM,
    VALUE_Q,         /* and q that is made of it; */
    VALUE_KV_LATENT, /* that of k and v with the rotated part of k, and its norm, */
    VALUE_KV_LATENT_NORM,
    VALUE_KV,          /* and each head's k (but for that part) and v */
    VALUE_QKV,         /* q, k and v side by side */
    VALUE_QKV_NORM,    /* q, k and v after the norms of q and k */
    VALUE_QKV_ROUNDED, /* q, k and v in 16 bits, where attention reads them so */
    VALUE_ERROR,       /* what a gated delta net's state does not predict of v */
    VALUE_ATT,
    VALUE_LSE,      /* logarithms of the softmax's sums, one per head */
    VALUE_ATT_NORM, /* a gated delta net's output, each head normed; a state space's times its gate */
    /* attention's output times its gate, or without the zeros that v was widened by; a state space's, normed
     */
    VALUE_GATED,
    VALUE_ATT_OUT, /* attention's output, where it is normed or scaled before it is added */
    VALUE_ATT_POST,
    VALUE_MID, /* x + attention */
    VALUE_FFN_NORM,
    VALUE_SHARED_GATE_UP, /* gate and up, and their product, of the shared expert or of a dense FFN beside
                             experts */
    VALUE_SHARED_ACT,
    VALUE_SHARED_OUT,    /* the shared expert's output, where a score weighs it */
    VALUE_SHARED_SCORE,  /* that score, then its logistic value */
    VALUE_SHARED_CHOSEN, /* u32: 0, the only choice of a router with one expert */
    VALUE_SHARED_WEIGHT, /* the weight of that choice */
    VALUE_DENSE_OUT,     /* what the dense FFN beside experts makes, and its norm */
    VALUE_DENSE_POST,
    VALUE_ROUTER_NORM, /* where the router has a norm of its own: norm(mid), then times a factor */
    VALUE_ROUTER_IN,
    VALUE_PROBABILITIES, /* the router's probabilities */
    VALUE_CHOSEN,        /* u32 [tokens, active]: numbers of the chosen experts */
    VALUE_ROUTER_WEIGHT, /* where experts have factors: the weights before these, and each choice's factor */
    VALUE_EXPERT_SCALE,
    VALUE_CHOSEN_WEIGHT,
    VALUE_ROUTED_TOKEN, /* u32: the token of each routed row, in order of experts (op_route_sort) */
    VALUE_ROUTED_PLACE,
    VALUE_ROUTED_EXPERT, /* u32: the expert of each routed row, where experts have biases */
    VALUE_OFFSETS,       /* u32 [experts + 1]: where each expert's routed rows begin */
    VALUE_EXPERT_NORM,   /* norm(mid) where experts have a norm of their own */
    VALUE_ROUTED,  /* norm(mid) of each pair of token and chosen expert, in order of experts (a routed row) */
    VALUE_GATE_UP, /* up alone where the FFN has no gate */
    VALUE_ACT,
    VALUE_EXPERT_OUT,
    VALUE_EXPERT_SUM, /* where experts stand beside a dense FFN: their weighted sum, and its norm */
    VALUE_EXPERT_POST,
    VALUE_FFN_OUT, /* the FFN's output, where it is normed or scaled before it is added */
    VALUE_FFN_POST,
    VALUE_FFN_MID,        /* mid + FFN, where the layer has an input of its own */
    VALUE_PER_LAYER_GATE, /* what that input is multiplied by, before its activation, */
    VALUE_PER_LAYER_PAIR, /* the same with the input beside it, */
    VALUE_PER_LAYER_ACT,  /* and the product */
    VALUE_PER_LAYER_OUT,  /* what the product adds to the stream, and its norm */
    VALUE_PER_LAYER_POST,
    VALUE_PER_LAYER_ALL, /* of block 0: what the embedding gives all layers' inputs, and its norm */
    VALUE_PER_LAYER_NORM,
    VALUE_OUT,
    VALUE_COUNT,
    VALUE_NONE = VALUE_COUNT
};

enum layer_step_kind {
    STEP_NORM,      /* out = norm(in) */
    STEP_QK_NORM,   /* out = in, of which q and k are normed; without weights: scaled to length 1 */
    STEP_LINEAR,    /* out = [add +] in W^T [+ bias] [+ adapters] */
    STEP_ROPE,      /* out = in, rotated in place */
    STEP_ROUND,     /* out = in, in 16 bits */
    STEP_ATTENTION, /* reads q, k and v (in); writes VALUE_ATT (out) and VALUE_LSE */
    STEP_SPLIT, /* out = what of in is no gate, or k a second time as v, or the parts of VALUE_PACKED, or q
                 * and the borrowed k and v, or q, k and v of latent attention (in, add and VALUE_KV_LATENT),
                 * or heads without the zeros behind them */
    STEP_LEND,  /* keeps k and v of in (= out) for later layers */
    STEP_PAIR,  /* out = in, and the layer's own input beside it */
    STEP_CONV,  /* out = the causal convolution of columns of in, but in a short convolution its silu */
    STEP_DELTA, /* reads q, k and v (in) and VALUE_MIXED; writes VALUE_ATT (out) and VALUE_ERROR, which a
                 * state space has not */
    STEP_GATE,  /* out = in times the gates in VALUE_MIXED: their sigmoid, in those two their silu,
                 * in a short convolution the gates themselves */
    STEP_ADD,   /* out = add + factor * in */
    STEP_SCALE, /* out = in times the layer's number, in place */
    STEP_ROUTE, /* the router's scores in `in` become probabilities; writes chosen experts, weights, places.
                 * With `out` VALUE_SHARED_WEIGHT the shared expert is the only one, and there are no places
                 */
    STEP_WEIGH, /* out = in, the weights of chosen experts, times the experts' factors */
    STEP_DISPATCH, /* out = rows of in for each pair of token and chosen expert */
    STEP_GLU,      /* out = f(gate) * up, or f(up) where there is no gate */
    STEP_COMBINE   /* out = add + weighted rows of in, one of each token where `in` is VALUE_SHARED_OUT */
};

/* One of the matrices that a linear step multiplies with; their outputs lie side by side. */
struct layer_member {
    uint32_t target; /* bit of enum lora_target; 0: a router, which takes no adapter */
    uint32_t site;   /* number of target's bit, which seeds the dropout */
    /* width of this matrix's part of the output, and the column at which the part begins */
    uint32_t outputs, column;
    int32_t matrix, bias; /* indices of the matrix and its bias in layer_tensors.list; bias -1: none */
    /* The adapter's rank (0: no adapter), and the first column of its A x in layer_step.z. An adapter on a
     * tensor of all experts (LORA_EXPERTS) is the first member's, and its B has the step's outputs. */
    uint32_t rank, z;
    int32_t a, b; /* indices of the adapter's A and B in layer_tensors.list */
};

struct layer_step {
    enum layer_step_kind kind;
    enum layer_value in, out, add; /* add: VALUE_NONE if nothing is added */
    /* indices in layer_tensors.list of a norm's weights, of the bias of STEP_ROUTE, of the sinks of
     * STEP_ATTENTION, of the number of STEP_SCALE, or of the factors of STEP_WEIGH; norm_k: of k's norm; -1:
     * none */
    int32_t norm, norm_k;
    /* the same of STEP_CONV's weights and bias, and of STEP_DELTA's vectors */
    int32_t conv, conv_bias, decay, dt_bias, skip;
    double factor; /* of STEP_ADD */
    /* The fields below, except `kept`, belong to linear steps alone. */
    bool experts; /* each expert has matrices of its own and multiplies the rows routed to it */
    uint32_t inputs, outputs, ranks; /* ranks: the sum of the members' ranks */
    uint32_t member_count;
    struct layer_member members[LAYER_MEMBERS_MAX];
    bool stacked;     /* the members' matrices lie one behind the other in fp32, as one matrix */
    bool kept;        /* a forward pass that only serves backward runs this step */
    bool kept_z;      /* where the step is not kept, a forward pass that only serves backward computes its
                         adapters' A x */
    bool trains;      /* one of its matrices, biases or adapters is trained */
    uint64_t scratch; /* STEP_DELTA: memory that its backward uses, bytes per token */
    uint64_t z;       /* offset of A x, [ranks], in the micro-batch's slot, bytes per token */
    /* offset in the workspace of dropped-out inputs and, for 16-bit inputs, of their fp32 copies; bytes per
     * token */
    uint64_t forward_scratch;
    uint64_t
        forward_sum; /* offset in the workspace of fp32 sums for a 16-bit output; LAYER_ABSENT: out is fp32 */
    uint64_t
        dout; /* offset in the slot of out's gradient, which a split backward keeps for BACKWARD_WEIGHT */
    /* Offset in the slot of a copy of `in`, which a split backward keeps where the values that `in` is
     * computed from have become gradients by then. LAYER_ABSENT: there is no copy. */
    uint64_t split_in;
};

enum tape_kind {
    TAPE_FORWARD,        /* runs the step again, for values that forward did not keep */
    TAPE_BACKWARD,       /* runs the step's whole backward */
    TAPE_BACKWARD_INPUT, /* computes the gradients of inputs only */
    TAPE_BACKWARD_WEIGHT /* computes the gradients of matrices and adapters only */
};

struct tape_entry {
    enum tape_kind kind;
    uint32_t step;
    bool accumulate;  /* the gradient of `in` exists already; this entry adds to it */
    uint64_t scratch; /* offset in the workspace of memory that only this entry uses, bytes per token */
};

struct tape {
    uint32_t count;
    struct tape_entry entries[LAYER_TAPE_MAX];
    uint64_t work_bytes;         /* size of the workspace, bytes per token */
    uint64_t value[VALUE_COUNT]; /* offsets in the workspace of recomputed values, bytes per token */
    /* offsets in the workspace, bytes per token; LAYER_ABSENT: the gradient is not in the workspace */
    uint64_t gradient[VALUE_COUNT];
};
#define LAYER_ABSENT UINT64_MAX

struct layer_plan {
    struct layer_tensors tensors;
    struct model_heads heads; /* those of attention that this part of the layer has */
    bool lends;               /* there is a STEP_LEND */
    uint32_t step_count;
    /* NO_EXPERTS: the plan ends with the router's choice of experts; EXPERTS: x is the input of the router,
     * whose choice another rank has made */
    enum layer_holds holds;
    uint32_t second_half; /* index of the FFN's first step: its norm, where it has one */
    struct layer_step steps[LAYER_STEPS_MAX];
    uint32_t width[VALUE_COUNT]; /* elements per token, of 4 or 2 bytes; 0: this layer lacks the value */
    /* Values that are stored in 16 bits: QKV_ROUNDED, ATT and GATE_UP, so that recomputing values does not
     * change results; and NORM, FFN_NORM and ACT where only products read them, as products round their
     * inputs anyway. With dropout on the adapters' inputs the last three stay fp32. GPUs also store the
     * gradient of ACT in 16 bits, in its place for fp32. */
    bool sixteen[VALUE_COUNT];
    bool kept[VALUE_COUNT];      /* the value is kept in the micro-batch's slot */
    uint64_t saved[VALUE_COUNT]; /* the value's offset in the slot, in bytes per token */
    /* bytes of the slot per token, and bytes that do not depend on the number of tokens */
    uint64_t saved_bytes, fixed_bytes;
    /* bytes of the slot per token, behind saved_bytes, that BACKWARD_INPUT keeps for BACKWARD_WEIGHT */
    uint64_t split_bytes;
    uint64_t forward[VALUE_COUNT]; /* offsets in the workspace of values that forward does not keep */
    uint64_t forward_bytes;        /* size of the workspace in forward, bytes per token */
    struct tape backward, backward_input, backward_weight;
};

/* Returns the bytes of a value per token. */
uint64_t layer_value_bytes(const struct layer_plan *plan, enum layer_value value);

/* Tells where the gradient of a value lies. Returns true for the residual stream and for values that are
 * added to it unchanged: their gradient is `d`. Gradients of other values lie in the value's own memory and
 * dtype, if backward overwrites the value with its gradient, or else in the workspace in fp32. There QKV,
 * QKV_NORM and QKV_ROUNDED have one gradient, that of the value which layer_gradient_of() returns for
 * them. */
bool layer_gradient_is_stream(enum layer_value value);
/* Returns true if backward overwrites the value with its gradient. */
bool layer_gradient_in_place(enum layer_value value);
enum layer_value layer_gradient_of(enum layer_value value);

/* Returns the floats of workspace per token that backward of a gated delta net or a state space needs
 * (op_delta_backward.work, then rates and skips). */
static inline uint32_t layer_delta_scratch(const struct model_config *c)
{
    return c->delta_value_heads * (2 * c->delta_key_dim + (c->delta_key_dim + 31) / 32 + 1 + c->delta_scan);
}

/* Returns the value whose weights STEP_COMBINE reads. */
enum layer_value layer_combine_weight(const struct layer_step *step);

/* Makes the plan of block 0: the tensors of the embedding, and where layers have inputs of their own the
 * steps from the embedding, VALUE_X, to the normed VALUE_PER_LAYER_NORM. */
void layer_embedding_init(const struct model_config *config, const struct layer_method *method,
                          struct layer_plan *plan);
/* Makes the plan of a layer, counted from 0, under a method. config is within its limits (config.h). */
void layer_plan_init(const struct model_config *config, const struct layer_method *method, uint32_t layer,
                     struct layer_plan *plan);
/* Returns true if two layers have the same plan. */
bool layer_alike(const struct model_config *config, const struct layer_method *method, uint32_t a,
                 uint32_t b);

/* Returns the config of a part of a layer, with its numbers of heads and columns. */
struct model_config layer_part_config(const struct model_config *config, const struct layer_part *part);
/* Returns true if the tensor is the whole tensor of the file. */
bool layer_tensor_whole(const struct layer_tensor *tensor);
/* Returns true if every rank with a part of the layer keeps the tensor whole (norms, routers, the narrow side
 * of adapters, biases of outputs); false for rows, columns or experts that only this part has. */
bool layer_tensor_alike(const struct layer_part *part, const struct layer_tensor *tensor);
/* Returns true if no quantisation block of the whole tensor lies across the ends of this part. With
 * `dropout`, A's columns must also be cut at multiples of LAYER_DROPOUT_UNIT, because one random number
 * decides for that many features. */
enum { LAYER_DROPOUT_UNIT = 8 };
bool layer_tensor_cut_fits(const struct layer_tensor *tensor, bool dropout);

/* Writes the tensors of the last block: the final norm, and the head's matrix if this rank needs one
 * (own_matrix: the head is untied, or tied and the embedding is on another rank). */
void layer_head_tensors(const struct model_config *config, const struct layer_method *method, bool own_matrix,
                        struct layer_tensors *out);

#endif
