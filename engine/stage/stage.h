/* A stage: the blocks [block_begin, block_end) of one model on one device, trained or run by one method.
 * Workers drive stages.
 *
 * Blocks have the numbers that the whole project uses: 0 is the embedding, 1..L are transformer layers, L+1
 * is the final norm and head. All work is queued on the stage's device in call order; a caller who wants the
 * numbers waits for an event or calls a function that says it waits. stage_create and kv_cache_create
 * allocate all memory, by the formulas of stage_memory_predict(); nothing grows later. Boundary tensors carry
 * activations and gradients between stages: [tokens, hidden], row-major, created and owned by the caller
 * (buffer_create with MEM_BUFFERS). They are f32, except that the stage's options may choose 16 bits at its
 * two ends.
 *
 * A micro-batch is its rows concatenated; callers pad nothing. Attention is causal and confined to each row;
 * positions count from 0 in each row. Position t predicts label t+1 of the same row. A label of -100 is
 * ignored, and so is a row's first label, which no position predicts.
 *
 * Numbers do not depend on how a model is split into stages: the same kernels compute every row, random
 * numbers are keyed by (seed, step, row id, layer, target, position, feature), and initial adapters by
 * parameter name. Equal calls give bit-identical results.
 *
 * A tied embedding that is trained is a parameter of the stage with block 0 alone. A stage that has the head
 * but not block 0 holds a copy of the embedding, which is zero until it is written (stage_table_view), and
 * gathers the gradient of the head's use of it. The driver of the stages copies the values before a step and
 * adds the copy's gradient to block 0's gradient after it.
 *
 * Threads: those of the device. Errors: -1 with *err; ERR_NOFIT and ERR_NOMEM from creation; ERR_NOT_FINITE
 * names a tensor; ERR_UNSUPPORTED names an architecture or setting that the engine does not have; ERR_TOO_BIG
 * means a micro-batch beyond the stage's limits.
 */
#ifndef MOTLEY_ENGINE_STAGE_STAGE_H
#define MOTLEY_ENGINE_STAGE_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "engine/device/backend.h"
#include "model/shape/blocks.h"
#include "model/shape/config.h"
#include "model/shape/flat.h"
#include "model/shape/layer.h"

struct model;
struct stage;
struct saved;
struct kv_cache;

/* Part of a buffer: everything from byte `at` on. */
struct area_view {
    struct buffer *buffer;
    uint64_t at; /* a multiple of 64; for a parameter's state (stage_state_view) a multiple of 4 */
};

struct lora_options {
    uint32_t rank;    /* 0: no adapters */
    double alpha;     /* the adapter's product is scaled by alpha / rank */
    bool rslora;      /* the scale is alpha / sqrt(rank) instead (Kalajdzievski 2023) */
    double dropout;   /* dropout probability of the adapter's input, 0 <= p < 1; training only */
    uint32_t targets; /* mask of enum lora_target (model/shape/blocks.h) */
    /* Overrides for single targets, indexed by their enum lora_target; 0 takes `rank` or `alpha` above */
    uint32_t ranks[LAYER_TARGETS_MAX];
    double alphas[LAYER_TARGETS_MAX];
    /* Ranks and factors for layers that differ. With sites.ways > 0 they replace everything above but
     * dropout; `rank` must then be above 0 and `targets` be the mask of all targets that occur. 0 ways:
     * layers are alike */
    struct lora_sites sites;
};
/* The factor of the adapter's product for target `site` of a layer (counted from 0). */
double lora_scale(const struct lora_options *lora, uint32_t layer, uint32_t site);

enum stage_mode { STAGE_TRAIN, STAGE_INFER };

struct stage_options {
    const struct model_config *config; /* copied */
    uint32_t block_begin, block_end;   /* half-open, 0 <= begin < end <= layers + 2 */
    /* STAGE_INFER: no gradients, no optimiser, and forward saves nothing */
    enum stage_mode mode;
    struct lora_options lora;
    bool full;            /* every parameter is trained, in fp32, and there are no adapters */
    enum layer_base base; /* how frozen matrices are stored; fp32 when `full` */
    /* DTYPE_F32, DTYPE_BF16 or DTYPE_F16. Operands of all linear products (base, adapters, experts, head;
     * forward and backward) and of attention's products are rounded to it, and attention's output and the
     * gates' inputs are stored in it. Products and sums are always fp32, and so is everything else: norms,
     * rotary, routers, the softmax, losses, the residual stream, trained values, their gradients and moments.
     */
    enum dtype compute;
    /* Dtypes of the boundary tensors that enter the stage's first block and leave its last block, activations
     * and gradients alike: DTYPE_F32, DTYPE_BF16 or DTYPE_F16. Values are rounded to nearest even as they
     * leave the stage (f16: to infinity beyond its range). Inside the stage, and between parts of one
     * micro-batch's pass, the residual stream is f32. 16 bits need an even width and whole layers. */
    enum dtype boundary_in, boundary_out;
    /* A neighbour may have run the stage's first blocks, or may run its last blocks, for some micro-batches.
     * enter_last: the highest block at which a micro-batch enters the stage (0: all enter at block_begin).
     * leave_first: the lowest block before which one leaves it (0: all leave before block_end). Boundary
     * tensors at these blocks have the dtypes boundary_in and boundary_out. */
    uint32_t enter_last, leave_first;
    bool double_quant; /* NF4's scales are quantised too */
    bool moments8;     /* AdamW's moments are stored in 8 bits */
    /* trained in addition to the adapters; where embedding and head are one matrix, either option trains both
     */
    bool train_embedding, train_head;
    double label_smoothing;           /* 0 <= s < 1; training only */
    double embed_noise;               /* NEFTune's alpha; 0 means no noise; training only */
    uint64_t seed;                    /* for adapter initialisation, dropout and noise */
    uint32_t micro_batches_in_flight; /* most micro-batches saved at the same time, ≥ 1 in STAGE_TRAIN */
    uint32_t tokens_max;              /* most tokens of a micro-batch, > 0 */
    uint32_t rows_max;                /* most rows of a micro-batch; 0: tokens_max */
    /* longest row; 0: tokens_max. Also the largest number of positions when inferring */
    uint32_t row_tokens_max;
    uint32_t labelled_max;  /* most labelled positions of a micro-batch; 0: tokens_max */
    uint32_t positions_max; /* most positions of a KV cache; 0: row_tokens_max */
    bool recompute;         /* save only each layer's input and compute the rest again in backward */
    uint32_t
        recompute_end; /* with recompute: the first block that saves everything nevertheless; 0: none does */
    /* Backward is done in two calls: stage_backward_blocks computes the gradients of inputs,
     * stage_backward_weights those of matrices and adapters. Not with recompute */
    bool split;
    /* The stage keeps nothing of the named areas of blocks [begin, end). The caller binds them when they are
     * needed (stage_block_bind), and whoever keeps the trained values updates them (engine/stage/shard.h).
     * The stage always keeps its rotary tables. */
    struct {
        uint32_t block_begin, block_end;
        bool frozen, trained; /* trained: also their gradients and moments */
    } outside;
    /* The stage has only this part of each layer (for tensor or expert parallelism), and layers run in halves
     * (stage_half_forward). Embedding and head are whole, on the first member. Not with split, norms after
     * attention and FFN, or joined q, k, v. Where heads or columns are cut, not with dropout or norms over
     * all heads; columns only of dense layers. A part of a packed tensor begins and ends on the tensor's
     * quantisation blocks and has the quantisation of the whole. */
    struct layer_part part;
    bool moments_on_host; /* AdamW's moments are in host memory and pass through the device block by block */
    /* A workspace that several stages of a device share, if their calls never overlap. It has at least
     * stage_workspace_bytes() and is borrowed until stage_destroy. NULL: the stage allocates its own. */
    struct buffer *workspace;
};

/* The exact number of bytes that stage_create will allocate, by purpose. Pure. */
struct stage_memory {
    uint64_t bytes[MEM_PURPOSES];
    uint64_t total;
    uint64_t host; /* bytes of host memory, not part of the total: moments_on_host */
};
int stage_memory_predict(const struct stage_options *options, struct stage_memory *out, struct err *err);
/* Bytes of workspace that a stage with these options needs. Pure. */
int stage_workspace_bytes(const struct stage_options *options, uint64_t *bytes, struct err *err);

/* Where weights come from. `read` copies rows [row_begin, row_end) of the tensor named in Hugging Face's way
 * to dst, as f32. A vector of n values counts as n rows of one value. Several threads call it at once. */
struct weight_source {
    int (*read)(void *context, const char *name, uint64_t row_begin, uint64_t row_end, float *dst,
                struct err *err);
    /* Copies rows [row_begin, row_end) in the file's own packing to dst, which has room for rows of `columns`
     * values. ERR_INVALID: the file does not store the tensor in that packing. NULL: the source has no packed
     * tensors. */
    int (*read_packed)(void *context, const char *name, enum pack_kind pack, uint64_t row_begin,
                       uint64_t row_end, uint32_t columns, uint8_t *dst, struct err *err);
    /* How the file packs a tensor. PACK_BF16, PACK_F16 or a kind from GGUF files (model/files/pack.h):
     * read_packed reads it. PACK_NF4, or PACK_NF4_DOUBLE with nested scales: read_nf4 reads it. For any other
     * answer, or where this is NULL, only `read` does. */
    enum pack_kind (*packing)(void *context, const char *name);
    /* Reads values [begin, begin + count) of a tensor stored in NF4 (model/files/nf4_stored.h): its codes,
     * and absmax in fp32 after un-nesting. begin is a multiple of 64. */
    int (*read_nf4)(void *context, const char *name, uint64_t begin, uint64_t count, uint8_t *codes,
                    float *absmax, struct err *err);
    /* Reads all nested scales of a tensor, the offset first. */
    int (*read_nf4_nested)(void *context, const char *name, uint8_t *codes, float *scales, struct err *err);
    void *context;
};

/* The weight source of an open model, which it borrows. */
struct weight_source stage_model_source(struct model *model);

/* Make a stage and load its weights straight into their buffers. Weights come in pieces of 1 MiB of f32 (or
 * 64 rows, if that is more). Helper threads read, check and pack pieces ahead of their use; at most threads +
 * 2 pieces are held at once, 10 if there are more than 8 threads. `model` is borrowed for the call. Adapters
 * start as in peft: A uniform in ±1/sqrt(fan_in), B zero. A value in the file that is not finite is refused
 * by name. */
int stage_create(struct device *device, struct model *model, const struct stage_options *options,
                 struct stage **out, struct err *err);
int stage_create_from(struct device *device, const struct weight_source *source,
                      const struct stage_options *options, struct stage **out, struct err *err);
void stage_destroy(struct stage *stage); /* frees taken slots, too; KV caches must be destroyed before */

/* --- state from outside --- */

/* Each block has two areas, each one contiguous run of bytes. The frozen area holds frozen parameters as they
 * are stored, packed ones with their scales. The trained area holds trained values in f32; their gradients
 * have the same layout. model/shape/flat.h says at which bytes an area may be cut. */
/* Bytes of a block's area. Pure. */
int stage_area_bytes(const struct stage_options *options, uint32_t block, enum block_area area,
                     uint64_t *bytes, struct err *err);
/* Cuts of an area for `count` members of a group, in proportion to `shares` (which sum to 1; NULL: equal).
 * Member i gets [cuts[i], cuts[i + 1]): each cut is the last allowed one at or before the exact share; a
 * share of 0 gives an empty range. Pure: all ranks compute the same cuts. ERR_INVALID for shares that are
 * negative or have another sum. */
int stage_area_cuts(const struct stage_options *options, uint32_t block, enum block_area area, uint32_t count,
                    const double *shares, uint64_t *cuts /* [count + 1] */, struct err *err);
/* Bytes [begin, end) of a block's area, with the byte `begin` where the view starts. */
struct area_range {
    uint32_t block;
    enum block_area area;
    uint64_t begin, end;
    struct area_view view;
};
/* Fill a range of an area with initial values. The bytes equal those that stage_create would have stored,
 * quantised by the statistics of whole tensors. Only tensors that the range touches are read. A doubly
 * quantised tensor is read as a whole if the range has part of its scales. Waits. */
int stage_area_load(struct device *device, const struct weight_source *source,
                    const struct stage_options *options, const struct area_range *range, struct err *err);

/* The areas of a block that is gathered for a while. A field without a buffer leaves the earlier binding as
 * it is. Backward adds to the gradients: the caller zeroes them first. A saved forward adds to the head's
 * gradients; a tied head uses block 0's. */
struct block_areas {
    struct area_view frozen, trained, gradients;
};
/* Use these areas until stage_block_release, or until others are bound. The caller owns their buffers and may
 * destroy them after that. ERR_INVALID for an area that the stage keeps itself, and for a view that is too
 * small, misaligned or on another device. A call that runs a block whose areas are not bound is refused by
 * name. */
int stage_block_bind(struct stage *stage, uint32_t block, const struct block_areas *areas, struct err *err);
void stage_block_release(struct stage *stage, uint32_t block);

/* A micro-batch. rows may be 0: every call then does nothing and succeeds. Calls copy the arrays. */
struct micro_batch {
    uint32_t rows;
    const uint32_t *row_ids;   /* [rows] row numbers within the whole data set, which key dropout */
    const uint32_t *row_start; /* [rows + 1], row_start[0] = 0, ascending; row_start[rows] = tokens */
    const int32_t *ids;        /* [tokens]; read by block 0 */
    const int32_t *labels;     /* [tokens]; read by the head; NULL: no position has a label */
    uint64_t step;
    uint32_t index; /* number of the micro-batch within its step */
    /* Factor of the routers' load-balancing loss; 0: no such loss. The loss is the sum over rows r of len_r *
     * aux_r (struct op_router_loss); its factor is the job's coefficient * labelled tokens / tokens, both
     * counted over the whole step. The loss is taken over all layers together, so in training, boundary
     * tensors carry its sums behind their [tokens, hidden], always f32 [rows, experts] each: counts and sums
     * with activations, counts with gradients. */
    double router_scale;
};

/* Start a step: gradients, the loss and label counts become zero. */
int stage_step_begin(struct stage *stage, struct err *err);

/* Set the loss scale: from the next stage_forward on, the gradient that leaves the loss is multiplied by
 * `scale`, a power of two in [2^-24, 2^24], which keeps small gradients within fp16's range (Micikevicius et
 * al. 2017, section 3.2). A new stage has scale 1. All stages and shards of a step must have the same scale,
 * and it may change only between steps (before stage_step_begin).
 * The scale is part of every gradient that is handed out: boundary tensors, areas, STATE_GRADIENT and the
 * copied table's. It is not part of losses and router_scale, and stage_grad_square_sum and stage_update (also
 * of shards) divide by it. In fp32 it changes no bit, short of overflow.
 * After an overflow, stage_grad_square_sum fails with ERR_NOT_FINITE on the stages that see it. A caller who
 * then skips stage_update has parameters, moments and the update count as before the step and can go on with
 * a smaller scale. Gradients here are sums over labelled tokens, not means, so a scale of S here corresponds
 * to S times the labelled tokens in a framework that takes means. ERR_INVALID for any other scale. */
int stage_loss_scale_set(struct stage *stage, double scale, struct err *err);

/* Run a micro-batch forward through all blocks. in: NULL at block 0; out: NULL when the stage has the head.
 * With saved != NULL (STAGE_TRAIN) the micro-batch occupies a slot until stage_backward or
 * stage_saved_release; ERR_BUSY when all micro_batches_in_flight slots are taken. With saved == NULL the pass
 * is an evaluation, without dropout. The head adds to the step's loss. */
int stage_forward(struct stage *stage, const struct micro_batch *batch, struct buffer *in, struct buffer *out,
                  struct saved **saved, struct err *err);

/* Run a micro-batch backward. grad_in: gradient of the stage's output, NULL when it has the head. grad_out:
 * gradient of its input, NULL when nobody needs it. Adds to the parameters' gradients, which are sums over
 * labelled tokens. Frees the slot of `saved`, also on error. Calls must follow the order of micro-batches,
 * because the order of sums decides the last bits. */
int stage_backward(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                   struct buffer *grad_in, struct buffer *grad_out, struct err *err);

/* Forward and backward of blocks [block_begin, block_end) only; a micro-batch may pass through the stage in
 * any number of such parts, and through some of its blocks only. Forward parts come in rising order: the
 * first one has *saved NULL and takes a slot, the later ones get the *saved that it returned. Backward parts
 * come in falling order. The part with the first block of the first forward part frees the slot; with
 * options.split the last stage_backward_weights does, which is called after stage_backward_blocks of the same
 * blocks. An embedding that is not trained needs no grad_in in a part of its own. */
int stage_forward_blocks(struct stage *stage, const struct micro_batch *batch, uint32_t block_begin,
                         uint32_t block_end, struct buffer *in, struct buffer *out, struct saved **saved,
                         struct err *err);
int stage_backward_blocks(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                          uint32_t block_begin, uint32_t block_end, struct buffer *grad_in,
                          struct buffer *grad_out, struct err *err);
int stage_backward_weights(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                           uint32_t block_begin, uint32_t block_end, struct err *err);
/* Half of a layer, for a group of ranks that each have a part of it (tensor parallelism): attention with the
 * norm before it, or the FFN with its norm. `in` and `grad_in` are complete and equal on all members. `out`
 * and `grad_out` [tokens, hidden] are this member's summand; the caller makes the sum, which is the next
 * half's input. The residual (in backward: the gradient that bypasses the half) is in the first member's
 * summand. Gradients of parameters that all members hold (norms, routers, the narrow side of adapters) are
 * summands, too. A half that is not cut is run by the first member alone. *saved is as in
 * stage_forward_blocks; the attention backward of the stage's first block frees the slot. Without recompute,
 * a stage with whole layers can be run in halves as well, with the same bits. */
enum stage_half { STAGE_HALF_ATTENTION, STAGE_HALF_FFN };
int stage_half_forward(struct stage *stage, const struct micro_batch *batch, uint32_t block,
                       enum stage_half half, struct buffer *in, struct buffer *out, struct saved **saved,
                       struct err *err);
int stage_half_backward(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                        uint32_t block, enum stage_half half, struct buffer *grad_in, struct buffer *grad_out,
                        struct err *err);
/* Inputs of experts that are apart from their layer (part.holds): routers are on the ranks with attention,
 * experts on other ranks. Stages of experts have one block each, because each block receives another number
 * of tokens. */
struct routed_tokens {
    struct area_view x; /* f32 [tokens, hidden]: the tokens after the norm, or their gradient */
    struct area_view
        /* u32 [tokens, experts_active]: chosen experts, numbered over the layer; unused for gradients */
        chosen;
    struct area_view weight; /* f32 [tokens, experts_active], or its gradient */
};
/* Run the norm and router after a layer's attention. `in` is attention's summed output (stage_half_forward).
 * The backward replaces the gradient of the layer's output, in `stream`, by the gradient of `in`: it adds
 * what came through the routed tokens and their weights, summed over the ranks with experts. */
int stage_route_forward(struct stage *stage, const struct micro_batch *batch, uint32_t block,
                        struct buffer *in, const struct routed_tokens *out, struct saved **saved,
                        struct err *err);
int stage_route_backward(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                         uint32_t block, const struct routed_tokens *gradient, struct buffer *stream,
                         struct err *err);
/* out[tokens, hidden] = the weighted sum of this stage's experts, zero for tokens that chose none of them. Of
 * the micro-batch only the number of tokens is used. The backward starts from the gradient of `out`, gives
 * weights of other stages' experts a gradient of zero, and frees the slot. */
int stage_experts_forward(struct stage *stage, const struct micro_batch *batch, uint32_t block,
                          const struct routed_tokens *in, struct buffer *out, struct saved **saved,
                          struct err *err);
int stage_experts_backward(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                           uint32_t block, struct buffer *grad_in, const struct routed_tokens *gradient,
                           struct err *err);
bool stage_saved_taken(const struct saved *saved); /* is the slot of `saved` still taken? */
void stage_saved_release(struct saved *saved);     /* frees the slot without backward; NULL is a no-op */

/* Sum of cross-entropies and number of labelled tokens since stage_step_begin; both are 0 without the head.
 * Waits. ERR_NOT_FINITE when the sum is not finite. */
int stage_loss(struct stage *stage, double *loss_sum, uint64_t *labelled, struct err *err);
/* The routers' load-balancing loss since stage_step_begin, without the factor router_scale. Waits for the
 * device. */
int stage_router_loss(struct stage *stage, double *sum, struct err *err);

/* Sum of squares of all gradients without the loss scale, in parameter order, in double. Waits.
 * ERR_NOT_FINITE names the first gradient that is not finite; *sum is NaN then. */
int stage_grad_square_sum(struct stage *stage, double *sum, struct err *err);
/* Like stage_grad_square_sum, without the parameters of blocks before `from` that are `alike` (struct
 * parameter). Of several stages with the same layers, or with parts of the same layers, one counts every
 * parameter, and the others leave out those that all of them hold. */
int stage_grad_square_sum_from(struct stage *stage, uint32_t from, double *sum, struct err *err);

/* One AdamW update with decoupled weight decay, as in PyTorch. The gradient used is grad_scale * the
 * accumulated sum. */
struct step_update {
    double learning_rate, beta1, beta2, eps;
    double weight_decay; /* for matrices and adapters */
    double vector_decay; /* for norms and biases; transformers uses 0 */
    double grad_scale;   /* clip factor / labelled tokens of the whole step */
};
int stage_update(struct stage *stage, const struct step_update *update, struct err *err);

/* Trained parameters that the stage keeps. Names are those of a PyTorch state dict without peft's prefix,
 * such as "model.layers.3.self_attn.q_proj.lora_A.weight"; experts appear one by one, as in files on the hub.
 * Values are f32. Parameters are ordered by block, then by the layer's steps. */
struct parameter {
    const char *name; /* borrowed until stage_destroy */
    uint32_t rows, columns;
    bool vector;    /* has one dimension; columns is 1 */
    uint32_t block; /* block of the model that the parameter belongs to */
    /* Position within the whole tensor of that name: all of it, unless the stage holds parts of layers */
    uint32_t row_begin, column_begin, whole_rows, whole_columns;
    /* Every stage with a part of this block keeps the parameter whole. True for every parameter if layers are
     * not cut into parts. */
    bool alike;
};
enum stage_state { STATE_VALUE, STATE_GRADIENT, STATE_MOMENT1, STATE_MOMENT2 };
/* Values [first, first + count) of one state of a parameter, or of a piece of one (engine/stage/shard.h).
 * `first` is a multiple of SHARD_PART_VALUES, and so is `count` unless the part ends the piece. */
enum { SHARD_PART_VALUES = 256 };
struct shard_part {
    uint32_t piece;
    enum stage_state state;
    uint64_t first, count;
};
uint32_t stage_parameter_count(const struct stage *stage);
struct parameter stage_parameter_at(const struct stage *stage, uint32_t index);
/* ERR_NOT_FOUND when this stage does not train a parameter of that name. */
int stage_parameter_find(const struct stage *stage, const char *name, uint32_t *index, struct err *err);
/* rows * columns floats of a parameter; both calls wait. STATE_GRADIENT is the sum, times the loss scale. */
int stage_state_read(struct stage *stage, uint32_t index, enum stage_state state, float *dst,
                     struct err *err);
int stage_state_write(struct stage *stage, uint32_t index, enum stage_state state, const float *src,
                      struct err *err);
/* Copy a part of a parameter's state to or from the host. */
int stage_part_read(struct stage *stage, const struct shard_part *part, float *dst, struct err *err);
int stage_part_write(struct stage *stage, const struct shard_part *part, const float *src, struct err *err);
/* Where a parameter's values or gradient are on the device; borrowed until stage_destroy. */
int stage_state_view(const struct stage *stage, uint32_t index, enum stage_state state, struct area_view *out,
                     struct err *err);
/* The head's copy of a tied embedding. stage_table_values returns the number of its values, 0 where the stage
 * has no copy; stage_table_view says where its values (STATE_VALUE) or its gradient (STATE_GRADIENT, the sum
 * since stage_step_begin) are. */
uint64_t stage_table_values(const struct stage *stage);
int stage_table_view(const struct stage *stage, enum stage_state state, struct area_view *out,
                     struct err *err);
uint64_t stage_update_count(const struct stage *stage); /* number of updates done: PyTorch's `step` */
void stage_update_count_set(struct stage *stage, uint64_t count);

/* Bytes of the slots that are taken now, and bytes of one slot. */
uint64_t stage_saved_bytes(const struct stage *stage);
uint64_t stage_saved_place_bytes(const struct stage *stage);
void stage_options_get(const struct stage *stage,
                       /* The stage's options; config is borrowed until stage_destroy */
                       struct stage_options *out);

/* Create a KV cache for inference of one sequence of at most tokens_max positions. When the model is split,
 * every stage has its own cache, and hidden states pass between the stages. */
int kv_cache_create(struct stage *stage, uint32_t tokens_max, struct kv_cache **out, struct err *err);
void kv_cache_destroy(struct kv_cache *cache);
void kv_cache_clear(struct kv_cache *cache);

/* Run `tokens` (≤ the stage's tokens_max) further positions through blocks [block_begin, block_end). Input:
 * ids at block 0, else `in` [tokens, hidden]. Output: `out` [tokens, hidden], or with the head the logits of
 * the last position, in the host array logits[vocab] (NULL: not wanted). A sequence may pass the stage in
 * parts, in rising order; the cache has its positions once they have passed the stage's last block. Waits
 * when logits are wanted. ERR_TOO_BIG when the cache is full. */
struct infer_pass {
    uint32_t block_begin, block_end;
    const int32_t *ids; /* [tokens] */
    uint32_t tokens;
    struct buffer *in, *out;
    float *logits;
};
int stage_infer_blocks(struct stage *stage, struct kv_cache *cache, const struct infer_pass *pass,
                       struct err *err);
/* Run one half of the pass's only layer, for stages with parts of layers. As in stage_half_forward, `out` is
 * this member's summand. In a layer whose experts are on other ranks only the attention can run: `out` is
 * then the residual stream behind it, the input of stage_route_forward. */
int stage_half_infer(struct stage *stage, struct kv_cache *cache, const struct infer_pass *pass,
                     enum stage_half half, struct err *err);
/* Like stage_infer_blocks, for all blocks of the stage in one call. */
int stage_infer(struct stage *stage, struct kv_cache *cache, const int32_t *ids, uint32_t tokens,
                struct buffer *in, struct buffer *out, float *logits, struct err *err);

/* Logits of every position of a micro-batch, for tests and tools: host array [tokens, vocab]. The stage must
 * have the head; otherwise the call is like stage_forward without labels. Waits for the device. */
int stage_logits(struct stage *stage, const struct micro_batch *batch, struct buffer *in, float *logits,
                 struct err *err);

/* Choose a token from logits[vocab]. sample_greedy returns the lowest index of the largest value.
 * sample_seeded draws with temperature > 0 among the top_k largest (0: all), with a counter-based generator
 * keyed by (seed, position). Pure. */
int32_t sample_greedy(const float *logits, uint32_t vocab);
int32_t sample_seeded(const float *logits, uint32_t vocab, double temperature, uint32_t top_k, uint64_t seed,
                      uint64_t position);

#endif
