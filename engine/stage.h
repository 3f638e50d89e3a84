/* A stage: the blocks [block_begin, block_end) of one model on one device, with a method; what a worker
 * drives.
 *
 * Blocks are numbered as everywhere: 0 embedding, 1..L transformer layers, L+1 final norm and head. All work
 * is queued on the stage's device in call order; a caller who wants the numbers waits for an event or calls a
 * function that says it waits. All memory is allocated by stage_create and kv_cache_create, by the formulas
 * of stage_memory_predict(); nothing grows later. Boundary tensors are [tokens, hidden], row-major, made
 * and owned by the caller (buffer_create with MEM_BUFFERS): f32, but at the stage's two ends of the dtypes
 * that its options say.
 *
 * A micro-batch is its rows concatenated, never padded; attention is causal and confined to each row;
 * positions count from 0 in each row. Position t predicts label t+1 of the same row; label -100 is not learnt
 * (so a row's first label never counts).
 *
 * Numbers do not depend on the split: every row is computed by the same kernels whatever the blocks of the
 * stage, random numbers are keyed by (seed, step, row id, layer, target, position, feature), initial adapters
 * by parameter name. Equal calls give bit-identical results.
 *
 * A tied embedding that is trained is a parameter of the stage with block 0 alone. A stage with the head and
 * without block 0 has a copy of it, zero until stage_table_write, and gathers the gradient of its own use of
 * it: who drives the stages brings values before a step and adds that gradient to block 0's after it.
 *
 * Threads: the device's. Errors: -1 with *err; ERR_NOFIT, ERR_NOMEM from creation; ERR_NOT_FINITE names a
 * tensor; ERR_UNSUPPORTED names an architecture or setting that the engine does not have; ERR_TOO_BIG a
 * micro-batch beyond the stage's limits.
 */
#ifndef MOTLEY_ENGINE_STAGE_H
#define MOTLEY_ENGINE_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "engine/backend.h"
#include "model/blocks.h"
#include "model/config.h"
#include "model/flat.h"
#include "model/layer.h"

struct model;
struct stage;
struct saved;
struct kv_cache;

/* Part of a buffer, from byte `at` on. */
struct area_view {
    struct buffer *buffer;
    uint64_t at; /* a multiple of 64 */
};

struct lora_options {
    uint32_t rank;    /* 0: no adapters */
    double alpha;     /* the product is scaled by alpha / rank, */
    bool rslora;      /* or by alpha / sqrt(rank) (Kalajdzievski 2023) */
    double dropout;   /* of the adapter's input, 0 <= p < 1; training only */
    uint32_t targets; /* mask of enum lora_target (model/blocks.h) */
    /* Of single targets, by number of their bit; 0: as above */
    uint32_t ranks[LAYER_TARGETS_MAX];
    double alphas[LAYER_TARGETS_MAX];
    /* Where layers differ: ranks and factors of each, in the place of all above but dropout, of which `rank`
     * must be above 0 and `targets` the mask of them. ways 0: layers are alike */
    struct lora_sites sites;
};
/* What the product of the adapter on this target of a layer (from 0) is multiplied by. */
double lora_scale(const struct lora_options *lora, uint32_t layer, uint32_t site);

enum stage_mode { STAGE_TRAIN, STAGE_INFER };

struct stage_options {
    const struct model_config *config; /* copied */
    uint32_t block_begin, block_end;   /* half-open, 0 <= begin < end <= layers + 2 */
    enum stage_mode mode;              /* STAGE_INFER: no gradients, no optimiser, nothing saved */
    struct lora_options lora;
    bool full;            /* every parameter is trained, in fp32; no adapters */
    enum layer_base base; /* how frozen matrices are kept; fp32 when full */
    /* DTYPE_F32, DTYPE_BF16 or DTYPE_F16: what the operands of every linear's products (base, adapters,
     * experts, head; forward and backward) and of attention's are rounded to, and what attention's output and
     * the gates' inputs are kept in. Products and sums are fp32 in any case, and so is all else: norms,
     * rotary, routers, the softmax, losses, the residual stream, what is trained, its gradients and moments.
     */
    enum dtype compute;
    /* DTYPE_F32, DTYPE_BF16 or DTYPE_F16: of the boundary tensors at the stage's two ends, activations and
     * gradients alike: of what enters its first block, of what leaves its last. They are rounded to nearest
     * even (f16: to infinity beyond its range) as they leave; inside a stage the stream is f32, and so is
     * what it passes between parts of a micro-batch's way. 16 bits take an even width, and whole layers. */
    enum dtype boundary_in, boundary_out;
    bool double_quant;                /* of NF4's scales */
    bool moments8;                    /* AdamW's moments in 8 bits */
    bool train_embedding, train_head; /* beside adapters; either trains both where they are one matrix */
    double label_smoothing;           /* 0 <= s < 1; training only */
    double embed_noise;               /* NEFTune's alpha, 0: none; training only */
    uint64_t seed;                    /* adapter initialisation, dropout, noise */
    uint32_t micro_batches_in_flight; /* how many may be saved at once, ≥ 1 in STAGE_TRAIN */
    uint32_t tokens_max;              /* most tokens of a micro-batch, > 0 */
    uint32_t rows_max;                /* most rows of a micro-batch; 0: tokens_max */
    uint32_t row_tokens_max;          /* longest row; 0: tokens_max. Also bounds positions when inferring */
    uint32_t labelled_max;            /* most labelled positions of a micro-batch; 0: tokens_max */
    uint32_t positions_max;           /* most positions of a KV cache; 0: row_tokens_max */
    bool recompute; /* save only each layer's input and compute the rest again in backward */
    bool split; /* backward in two halves: stage_backward_blocks for inputs, stage_backward_weights for the
                   gradients of matrices and adapters; not with recompute */
    /* Blocks [begin, end) of the stage of which it keeps nothing in the areas named: the caller supplies them
     * (stage_block_bind), and who keeps the trained values steps with them (engine/shard.h). Rotary tables
     * are the stage's in any case. */
    struct {
        uint32_t block_begin, block_end;
        bool frozen, trained; /* trained: with gradients and moments */
    } outside;
    /* Of each layer only this is here, and layers run in halves (stage_half_forward). Blocks of layers alone;
     * not with recompute, split, norms after attention and FFN, joined q, k, v, nor, where heads or columns
     * are cut, dropout or norms over all heads; columns of dense layers only. A part of a packed tensor
     * begins and ends on its blocks, and is quantised as the whole is. */
    struct layer_part part;
    bool moments_on_host; /* AdamW's moments lie in host memory and pass through the device block by block */
    /* One workspace for several stages of a device, whose calls come one after the other: of at least
     * stage_workspace_bytes(), borrowed until stage_destroy. NULL: the stage has its own. */
    struct buffer *workspace;
};

/* Bytes that stage_create will allocate, by purpose, exactly. Pure. */
struct stage_memory {
    uint64_t bytes[MEM_PURPOSES];
    uint64_t total;
    uint64_t host; /* beside that, of host memory: moments_on_host */
};
int stage_memory_predict(const struct stage_options *options, struct stage_memory *out, struct err *err);
/* Bytes of the workspace that a stage with these options uses. Pure. */
int stage_workspace_bytes(const struct stage_options *options, uint64_t *bytes, struct err *err);

/* Where weights come from: rows [row_begin, row_end) of the named tensor (Hugging Face names) as f32 into
 * dst. A vector of n values has n rows of one value. Called by several threads at once. */
struct weight_source {
    int (*read)(void *context, const char *name, uint64_t row_begin, uint64_t row_end, float *dst,
                struct err *err);
    /* The same rows as the file has them: bytes into dst, which has room for rows of `columns` values.
     * ERR_INVALID: the tensor is not kept so. NULL: no tensor is. */
    int (*read_packed)(void *context, const char *name, enum pack_kind pack, uint64_t row_begin,
                       uint64_t row_end, uint32_t columns, uint8_t *dst, struct err *err);
    /* PACK_BF16, PACK_F16 or a kind from files (model/pack.h): read_packed gives the tensor so. PACK_NF4, or
     * PACK_NF4_DOUBLE with nested scales: read_nf4 does. Anything else, or NULL: neither does. */
    enum pack_kind (*packing)(void *context, const char *name);
    /* Values [begin, begin + count) of a tensor saved as NF4 (model/nf4_stored.h): its codes, and absmax in
     * fp32, unnested; begin is a multiple of 64. */
    int (*read_nf4)(void *context, const char *name, uint64_t begin, uint64_t count, uint8_t *codes,
                    float *absmax, struct err *err);
    /* The nested scales of all of it, the offset first. */
    int (*read_nf4_nested)(void *context, const char *name, uint8_t *codes, float *scales, struct err *err);
    void *context;
};

/* That of a model that is open; borrows it. */
struct weight_source stage_model_source(struct model *model);

/* Make a stage and load its weights straight into their buffers, in pieces of 1 MiB of f32 (or 64 rows, the
 * larger), of which at most threads + 2 are on their way at once (10 where there are more threads): read
 * ahead, checked and packed by helper threads. `model` is borrowed for the call. Adapters start as peft
 * starts them: A uniform in ±1/sqrt(fan_in), B zero. A value that is not finite in the file is refused by
 * name. */
int stage_create(struct device *device, struct model *model, const struct stage_options *options,
                 struct stage **out, struct err *err);
int stage_create_from(struct device *device, const struct weight_source *source,
                      const struct stage_options *options, struct stage **out, struct err *err);
void stage_destroy(struct stage *stage); /* saved micro-batches end with it; caches must be gone */

/* --- state from outside --- */

/* The two areas of a block, each one run of bytes. Frozen: parameters as they are kept, packed ones with
 * their scales. Trained: f32; its gradients lie as its values do. model/flat.h says where they may be cut. */
/* Bytes of an area of a block. Pure. */
int stage_area_bytes(const struct stage_options *options, uint32_t block, enum block_area area,
                     uint64_t *bytes, struct err *err);
/* Where an area is cut for `count` members: the last cut at or before each one's share of the bytes, member i
 * having [cuts[i], cuts[i + 1]), empty where its share is 0; shares sum to 1, NULL: alike. Pure: all who ask
 * get the same cuts. ERR_INVALID for shares that are no shares. */
int stage_area_cuts(const struct stage_options *options, uint32_t block, enum block_area area, uint32_t count,
                    const double *shares, uint64_t *cuts /* [count + 1] */, struct err *err);
/* Fill bytes [begin, end) of an area with first values, the byte `begin` at the view's: what stage_create
 * would have put there, quantised by the statistics of whole tensors. Only the tensors that the range touches
 * are read; those of whose doubly quantised scales it has a part are read whole. Waits. */
int stage_area_load(struct device *device, const struct weight_source *source,
                    const struct stage_options *options, uint32_t block, enum block_area area, uint64_t begin,
                    uint64_t end, struct area_view view, struct err *err);

/* Whole areas of a block, for the moment; those without a buffer stay as they were. Gradients are added to:
 * who supplies them zeroes them before. A forward that is saved adds to the head's; a tied head uses those of
 * block 0. */
struct block_areas {
    struct area_view frozen, trained, gradients;
};
/* Use these until stage_block_release, or until others are bound; their buffers are the caller's and may be
 * destroyed after that. ERR_INVALID for a block that keeps the area itself, a view that is too small, lies
 * askew or on another device. A call that runs a block whose areas are not bound is refused by name. */
int stage_block_bind(struct stage *stage, uint32_t block, const struct block_areas *areas, struct err *err);
void stage_block_release(struct stage *stage, uint32_t block);

/* rows may be 0 (an empty micro-batch: every call does nothing and succeeds). */
struct micro_batch {
    uint32_t rows;
    const uint32_t *row_ids;   /* [rows] global row numbers, for dropout */
    const uint32_t *row_start; /* [rows + 1], row_start[0] = 0, ascending; row_start[rows] = tokens */
    const int32_t *ids;        /* [tokens]; read by block 0 */
    const int32_t *labels;     /* [tokens]; read by the head; NULL: nothing is learnt */
    uint64_t step;
    uint32_t index; /* number of the micro-batch in its step */
    /* The load-balancing loss of routers, summed over rows r of this micro-batch as len_r * aux_r, is added
     * to the loss with this factor: coefficient * labelled tokens / tokens, both of the whole step. 0: none.
     * It is over all layers: in training, boundary tensors have, behind their [tokens, hidden], what travels
     * for it, always f32 [rows, experts] each: activations counts and sums, gradients counts. */
    double router_scale;
};
/* Arrays are copied by the call. */

/* Start a step: gradients, loss and label counts become zero. */
int stage_step_begin(struct stage *stage, struct err *err);

/* Multiply the gradient that leaves the loss by `scale`, a power of two in [2^-24, 2^24], from the next
 * stage_forward on: it keeps small gradients within fp16's range (Micikevicius et al. 2017, section 3.2). 1
 * when a stage is made. All stages and shards of a step have the same, and it changes between steps alone
 * (before stage_step_begin). Every gradient that is handed out is then multiplied by it: boundary tensors,
 * areas, STATE_GRADIENT, the copied table's. Losses, router_scale, norms and updates are not:
 * stage_grad_square_sum and stage_update (and those of shards) divide by it. In fp32 it changes no bit, short
 * of overflow. An overflow makes stage_grad_square_sum fail with ERR_NOT_FINITE on the stages that see it; a
 * caller who does not call stage_update then has parameters, moments and update count as before the step, and
 * goes on with a smaller scale. Gradients here are sums over labelled tokens, not means: a scale does what
 * others get from this one times the labelled tokens. ERR_INVALID for any other scale. */
int stage_loss_scale_set(struct stage *stage, double scale, struct err *err);

/* in: NULL at block 0; out: NULL when the stage has the head. With saved != NULL (STAGE_TRAIN) a place for
 * the micro-batch is taken until stage_backward or stage_saved_release; ERR_BUSY when micro_batches_in_flight
 * are taken. With saved == NULL it is an evaluation: no dropout. The head adds to the step's loss. */
int stage_forward(struct stage *stage, const struct micro_batch *batch, struct buffer *in, struct buffer *out,
                  struct saved **saved, struct err *err);

/* grad_in: gradient of the stage's output, NULL when it has the head; grad_out: gradient of its input, may be
 * NULL when nobody needs it. Adds to the gradients (unscaled sums over labelled tokens, times `scale`, which
 * is 1 unless the caller knows better); ends `saved`, also on error. Call in the order of micro-batches: sums
 * are ordered. */
int stage_backward(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                   struct buffer *grad_in, struct buffer *grad_out, double scale, struct err *err);

/* The same for blocks [block_begin, block_end) of the stage, in any number of parts. forward: *saved is NULL
 * for the first part of a micro-batch, which takes its place, and what that returned for the others, in
 * rising order. backward: parts in falling order; the one with the stage's first block ends `saved`, or with
 * options.split the last stage_backward_weights does, which comes after the inputs' half of the same blocks.
 */
int stage_forward_blocks(struct stage *stage, const struct micro_batch *batch, uint32_t block_begin,
                         uint32_t block_end, struct buffer *in, struct buffer *out, struct saved **saved,
                         struct err *err);
int stage_backward_blocks(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                          uint32_t block_begin, uint32_t block_end, struct buffer *grad_in,
                          struct buffer *grad_out, double scale, struct err *err);
int stage_backward_weights(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                           uint32_t block_begin, uint32_t block_end, struct err *err);
/* Half of a layer, for a group of ranks that have each a part of it: attention with the norm before it, or
 * the FFN with its own. in and grad_in are whole and alike on all members, out and grad_out this member's
 * part of a sum that the caller makes, [tokens, hidden]; the member that does not follow adds the residual
 * (backward: the gradient that passes by), so that the sum is the next half's input. Gradients of what all
 * keep alike (norms, routers, the narrow side of adapters) are parts of sums, too. A half that is not cut is
 * run by the first member alone. *saved as in stage_forward_blocks; the attention of the stage's first block
 * ends it. A stage that holds whole layers can be run in halves as well, to the same bits, but for recompute.
 */
enum stage_half { STAGE_HALF_ATTENTION, STAGE_HALF_FFN };
int stage_half_forward(struct stage *stage, const struct micro_batch *batch, uint32_t block,
                       enum stage_half half, struct buffer *in, struct buffer *out, struct saved **saved,
                       struct err *err);
int stage_half_backward(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                        uint32_t block, enum stage_half half, struct buffer *grad_in, struct buffer *grad_out,
                        struct err *err);
/* Layers with experts taken apart (part.holds): routers on ranks with attention, experts on others, in stages
 * of one block each, since how many tokens come differs from block to block. */
struct routed_tokens {
    struct area_view x; /* f32 [tokens, hidden]: the normed tokens, or their gradient */
    struct area_view
        chosen; /* u32 [tokens, experts_active]: of all the layer's experts; not with gradients */
    struct area_view weight; /* f32 [tokens, experts_active], or its gradient */
};
/* The router, after the layer's attention (stage_half_forward) and with what that left (all parts summed) as
 * `in`. Its backward turns the gradient of the layer's output, in `stream`, into that of `in`: it adds what
 * came through the routed tokens and their weights, summed over the ranks with experts. */
int stage_route_forward(struct stage *stage, const struct micro_batch *batch, uint32_t block,
                        struct buffer *in, const struct routed_tokens *out, struct saved **saved,
                        struct err *err);
int stage_route_backward(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                         uint32_t block, const struct routed_tokens *gradient, struct buffer *stream,
                         struct err *err);
/* out[tokens, hidden] = the weighted sum of this stage's experts, zero for tokens that chose none of them; of
 * the micro-batch only its number of tokens matters. Backward from the gradient of that; weights of experts
 * that are elsewhere have a gradient of zero. It ends `saved`. */
int stage_experts_forward(struct stage *stage, const struct micro_batch *batch, uint32_t block,
                          const struct routed_tokens *in, struct buffer *out, struct saved **saved,
                          struct err *err);
int stage_experts_backward(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                           uint32_t block, struct buffer *grad_in, const struct routed_tokens *gradient,
                           struct err *err);
void stage_saved_release(struct saved *saved); /* drop without backward; NULL is a no-op */

/* Sum of cross-entropies and labelled tokens since stage_step_begin; 0 and 0 without the head. Waits.
 * ERR_NOT_FINITE when the sum is not. */
int stage_loss(struct stage *stage, double *loss_sum, uint64_t *labelled, struct err *err);
/* Σ len_r * aux_r since then, without its factor. Waits. */
int stage_router_loss(struct stage *stage, double *sum, struct err *err);

/* Sum of squares of all gradients (unscaled: without the loss scale) in parameter order, in double. Waits.
 * ERR_NOT_FINITE names the first gradient that is not finite; *sum is NaN then. */
int stage_grad_square_sum(struct stage *stage, double *sum, struct err *err);

/* AdamW as PyTorch has it (decoupled decay): the gradient used is grad_scale * accumulated sum. */
struct step_update {
    double learning_rate, beta1, beta2, eps;
    double weight_decay; /* of matrices and adapters … */
    double vector_decay; /* … and of norms and biases: 0 as transformers groups them */
    double grad_scale;   /* clip factor / labelled tokens of the whole batch */
};
int stage_update(struct stage *stage, const struct step_update *update, struct err *err);

/* Trained parameters that the stage keeps, by name, as in a PyTorch state dict without peft's prefix, such as
 * "model.layers.3.self_attn.q_proj.lora_A.weight", f32; those of experts one by one, as the hub's files name
 * them. Order: that of blocks, in a block that of the layer's steps. */
struct parameter {
    const char *name; /* borrowed until stage_destroy */
    uint32_t rows, columns;
    bool vector; /* of one dimension: columns is 1 */
    /* Where it lies in the tensor of that name: all of it, unless the stage holds parts of layers */
    uint32_t row_begin, column_begin, whole_rows, whole_columns;
};
enum stage_state { STATE_VALUE, STATE_GRADIENT, STATE_MOMENT1, STATE_MOMENT2 };
uint32_t stage_parameter_count(const struct stage *stage);
struct parameter stage_parameter_at(const struct stage *stage, uint32_t index);
/* ERR_NOT_FOUND when this stage does not train that name. */
int stage_parameter_find(const struct stage *stage, const char *name, uint32_t *index, struct err *err);
/* rows * columns floats; both wait. STATE_GRADIENT is the unscaled sum. */
int stage_state_read(struct stage *stage, uint32_t index, enum stage_state state, float *dst,
                     struct err *err);
int stage_state_write(struct stage *stage, uint32_t index, enum stage_state state, const float *src,
                      struct err *err);
/* Values of the copy of a tied embedding: rows * columns, 0 where there is no copy. Its values (STATE_VALUE)
 * and gradient (STATE_GRADIENT, the unscaled sum since stage_step_begin) from and to the host; both wait. */
uint64_t stage_table_values(const struct stage *stage);
int stage_table_read(struct stage *stage, enum stage_state state, float *dst, struct err *err);
int stage_table_write(struct stage *stage, enum stage_state state, const float *src, struct err *err);
uint64_t stage_update_count(const struct stage *stage); /* updates done: PyTorch's `step` */
void stage_update_count_set(struct stage *stage, uint64_t count);

/* Bytes now kept by saved micro-batches, and the bytes of one place for them. */
uint64_t stage_saved_bytes(const struct stage *stage);
uint64_t stage_saved_place_bytes(const struct stage *stage);
void stage_options_get(const struct stage *stage,
                       struct stage_options *out); /* config: borrowed until destroy */

/* Inference of one sequence, also over a split: every stage has its own cache, hidden states pass between. */
int kv_cache_create(struct stage *stage, uint32_t tokens_max, struct kv_cache **out, struct err *err);
void kv_cache_destroy(struct kv_cache *cache);
void kv_cache_clear(struct kv_cache *cache);
uint32_t kv_cache_tokens(const struct kv_cache *cache);

/* Run `tokens` (≤ the stage's tokens_max) more positions: ids at block 0, else `in` [tokens, hidden]; `out`
 * likewise unless the head is here, where logits of the last position are written to the host array
 * logits[vocab] (may be NULL to have none). Waits when logits are asked for. ERR_TOO_BIG when the cache is
 * full. */
int stage_infer(struct stage *stage, struct kv_cache *cache, const int32_t *ids, uint32_t tokens,
                struct buffer *in, struct buffer *out, float *logits, struct err *err);

/* Logits of every position of a micro-batch, for tests and tools: host array [tokens, vocab]. Waits. The
 * stage must have the head; like stage_forward without labels. */
int stage_logits(struct stage *stage, const struct micro_batch *batch, struct buffer *in, float *logits,
                 struct err *err);

/* Pure choices from logits[vocab]: the lowest index of the largest value; or one drawn with temperature > 0
 * among the top_k largest (0: all) by a counter-based generator keyed by (seed, position). */
int32_t sample_greedy(const float *logits, uint32_t vocab);
int32_t sample_seeded(const float *logits, uint32_t vocab, double temperature, uint32_t top_k, uint64_t seed,
                      uint64_t position);

#endif
