/* A plan is a program: it says which blocks, rows and state are on which rank, and has for each rank a
 * list of typed instructions that carry out a step.
 *
 * Four readers share it: the worker executes it, the simulator prices it, the page draws it, and replay
 * runs it with recorded times. Every field means the same to all of them. docs/PROGRAM.md lists what the
 * format must express.
 *
 * Numbering. Block 0 is the embedding, 1..L are the transformer blocks, L+1 is the final norm and head;
 * every range is half-open. Ranks, groups, slots (per rank) and instructions (per rank and program) are
 * numbered from 0 by their position in the list. Micro-batches are numbered over the whole step, not per
 * rank.
 *
 * Execution model. A rank has one compute queue, one queue per peer and direction, and one
 * per group. Each queue runs its instructions in list order; different queues run concurrently. An
 * instruction starts when its queue is free and every instruction in its `after` list (same rank, same
 * program, smaller number) is done. There are no other dependencies. An instruction whose micro-batch has
 * no rows in this step (the short last batch of an epoch) takes no time on both sides of a link, and sends
 * nothing; instructions without a micro-batch always run.
 *
 * Ownership: struct plan owns everything below it, and plan_destroy releases it. Threads: a finished plan
 * is immutable and may be read by any number of threads.
 */
#ifndef MOTLEY_PROGRAM_PROGRAM_H
#define MOTLEY_PROGRAM_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* Hard bounds; a plan beyond them is refused when it is loaded. */
#define PLAN_RANKS_MAX 16384u
#define PLAN_GROUPS_MAX 32768u
#define PLAN_SLOTS_MAX 4096u              /* most slots of a rank */
#define PLAN_MICRO_BATCHES_MAX (1u << 20) /* most micro-batches of a step */
#define PLAN_BLOCKS_MAX 65536
#define PROGRAM_INSTRS_MAX (1u << 22) /* most instructions of a rank's program, expanded */
#define PROGRAM_AFTER_MAX (1u << 24)  /* most entries of `after` in a rank's program, expanded */
#define PLAN_INSTRS_MAX (1u << 25)    /* most instructions of a whole plan, expanded */

#define PLAN_NONE (-1)           /* no peer, group, slot or micro-batch */
#define PLAN_ROWS_ALL UINT32_MAX /* as row_end: the rows up to the micro-batch's end */
#define PLAN_DIGEST_HEX 65       /* SHA-256 in hex and the final 0 */

enum plan_placement {
    PLACE_SINGLE,
    PLACE_PIPELINE,
    PLACE_DATA,
    PLACE_HYBRID,
    PLACE_EXPERT,
    PLACE_TENSOR,
    PLACE_SERVER,
    PLACE_COUNT
};

/* The order in which a pipeline's ranks work on micro-batches. The value is a label for people; only the
 * programs decide the order. */
enum plan_schedule {
    SCHEDULE_1F1B,  /* a window of forwards, then backward and forward in turn; also plans of one stage */
    SCHEDULE_GPIPE, /* all forwards, then all backwards */
    SCHEDULE_INTERLEAVED, /* each rank has several ranges of blocks, and a micro-batch goes round the ranks */
    SCHEDULE_SPLIT,       /* 1F1B with BACKWARD_WEIGHT delayed to times at which a rank would wait */
    SCHEDULE_COUNT
};

/* `train`: one optimiser step. `evaluate`: forward and Σ loss over one batch of held-out rows. `prefill`:
 * the prompt through the KV caches, and the first token. `generate`: one more token. `save`: every rank
 * writes what it owns. */
enum program_kind {
    PROGRAM_TRAIN,
    PROGRAM_EVALUATE,
    PROGRAM_PREFILL,
    PROGRAM_GENERATE,
    PROGRAM_SAVE,
    PROGRAM_KINDS
};

enum plan_purpose {
    PURPOSE_WEIGHTS,
    PURPOSE_ADAPTERS,
    PURPOSE_OPTIMIZER,
    PURPOSE_ACTIVATIONS, /* what forwards save for backwards, and the KV cache */
    PURPOSE_BUFFERS,     /* boundary slots, workspace, gathered weights */
    PURPOSE_COUNT
};

enum instr_op {
    /* Instructions of the compute queue, for blocks [block_begin, block_end) of micro_batch. FORWARD: slot_in
     * is the boundary activation (none at block 0), slot_out the next one (none at the head, which adds Σ
     * loss and labelled tokens to the step scalars), slot_save what the backward needs (none when evaluating;
     * the KV cache in prefill and generate). BACKWARD: slot_in is the boundary gradient (none at the head),
     * slot_out the next one (none at block 0, and none if nothing below is trained), slot_save what the
     * forward saved. Gradients of parameters are added, unscaled, to the rank's own. */
    INSTR_FORWARD,
    INSTR_BACKWARD,
    INSTR_BACKWARD_INPUT,  /* the half of a backward whose result, the boundary gradient, other ranks need */
    INSTR_BACKWARD_WEIGHT, /* the half of a backward that computes gradients of parameters; slot_save is
                              kept until this half ends */
    INSTR_SAMPLE,          /* writes the sampled token to slot_out */
    /* Instructions of peer queues, for rows [row_begin, row_end) of the micro-batch's boundary tensor.
     * block_begin == block_end is the boundary: the tensor is that block's input (activation), or the input's
     * gradient. */
    INSTR_SEND, /* sends slot_in to `peer` */
    INSTR_RECV, /* receives slot_out from `peer` */
    /* Instructions of group queues. They work on slot_in (and on slot_out if it is another buffer); the
     * slot's kind says what is exchanged. Contributions are added in an order that the plan fixes, so
     * repeated runs are bit-identical. */
    INSTR_ALL_GATHER,
    INSTR_REDUCE_SCATTER,
    INSTR_ALL_REDUCE,
    INSTR_BROADCAST, /* sends from the root `peer`, a member of the group, to all other members */
    /* Instructions of peer queues, for a parameter server. A PUSH on one rank pairs with a PULL on the other,
     * as SEND with RECV. */
    INSTR_PULL, /* receives parameters or gradients of the blocks from `peer` into slot_out; with
                   FLAG_ACCUMULATE it adds them */
    INSTR_PUSH, /* sends parameters or gradients of the blocks from slot_in to `peer` */
    /* Mixture of experts: each instruction is for one layer and micro-batch, on ranks with attention, with
     * experts, or both, and FLAG_BACKWARD makes it the backward. ATTENTION, ROUTE and EXPERTS are on the
     * compute queue, DISPATCH and COMBINE on the group's queue; these two send counts ahead of the payload,
     * and the slot's bound limits both. docs/PROGRAM.md, Attention and experts apart. */
    /* slot_in: boundary tensor; slot_save: activations; slot_out: residual stream. Backward: slot_in: the
     * stream's gradient; slot_out: the boundary tensor's. */
    INSTR_ATTENTION,
    /* slot_in: residual stream; slot_save: activations; slot_out: routed tokens. Backward: slot_in: the
     * tokens' gradient; the router's gradient of the stream is added to slot_out. */
    INSTR_ROUTE,
    /* from slot_in of ranks with attention to slot_out of ranks with experts; backward: the reverse */
    INSTR_DISPATCH,
    INSTR_EXPERTS, /* slot_in: routed tokens; slot_save: activations; slot_out: outputs. Backward: their
                    gradients in slot_in and slot_out */
    /* From slot_in of ranks with experts to ranks with attention, which read the residual stream in slot_save
     * and write the next boundary tensor to slot_out. Backward: from slot_in of ranks with attention, which
     * keep that gradient, to slot_out of ranks with experts. */
    INSTR_COMBINE,
    /* Instructions of the compute queue. */
    INSTR_STEP, /* scale by 1/labelled, clip, update what this rank owns, zero the gradients; with `group` it
                owns its share of the group's blocks, else all blocks */
    INSTR_RELEASE, /* frees slot_in and does nothing else */
    INSTR_SAVE,    /* write the parameters, optimiser state and generator state that this rank owns */
    INSTR_COUNT
};

enum queue_kind {
    QUEUE_COMPUTE,
    QUEUE_SEND,  /* sends to instr.peer */
    QUEUE_RECV,  /* receives from instr.peer */
    QUEUE_GROUP, /* collectives of instr.group */
    QUEUE_KINDS
};

enum instr_flag {
    FLAG_RECOMPUTE = 1u << 0,  /* FORWARD saves only its input; its BACKWARD runs the forward again first */
    FLAG_FREES_IN = 1u << 1,   /* slot_in's instance may be written again when this instruction is done */
    FLAG_FREES_OUT = 1u << 2,  /* slot_out's instance may be written again when this instruction is done (a
                                  token that nothing reads later) */
    FLAG_FREES_SAVE = 1u << 3, /* slot_save's instance may be written again when this instruction is done */
    FLAG_ACCUMULATE = 1u << 4, /* the instruction adds to slot_out instead of replacing it */
    FLAG_BACKWARD = 1u << 5,   /* the backward of ATTENTION, ROUTE, DISPATCH, EXPERTS, COMBINE */
    /* bit 6 has no meaning */
    /* FORWARD or BACKWARD of half a block, where a tensor group all-reduces between the halves. A layer's
     * halves are attention and FFN, each with its norm; the group's first rank adds the residual
     * (backward: the gradient of the skip connection), so that the sum is the boundary tensor itself. The
     * group's first rank alone has embedding and head, which have no halves. */
    FLAG_FIRST_HALF = 1u << 7,
    FLAG_SECOND_HALF = 1u << 8,
};
#define FLAGS_ALL 0x1bfu

/* Tags name streams between a pair of ranks: the wire's tag is (tag, micro_batch, block_begin), or
 * the number of a slice in place of the micro-batch (worker/program/stream.c). */
enum instr_tag {
    TAG_NONE,
    TAG_ACTIVATION,
    TAG_GRADIENT,
    TAG_STEP_SCALARS,
    TAG_NORM,
    TAG_PARAMETER_GRADIENTS,
    TAG_PARAMETERS,
    TAG_TOKEN,
    TAG_ROUTED,
    TAG_BARRIER,
    TAG_COUNT
};

struct instr {
    uint8_t op;                           /* enum instr_op */
    uint8_t queue;                        /* enum queue_kind, which names a queue together with `peer` or
                                             `group` */
    uint16_t flags;                       /* enum instr_flag */
    uint32_t tag;                         /* enum instr_tag */
    int32_t micro_batch;                  /* index, or PLAN_NONE: the whole step */
    int32_t block_begin, block_end;       /* half-open; equal if no block is meant */
    int32_t peer;                         /* rank, or PLAN_NONE; root of BROADCAST */
    int32_t group;                        /* index of a group, or PLAN_NONE */
    int32_t slot_in, slot_out, slot_save; /* slots of this rank, or PLAN_NONE */
    uint32_t row_begin, row_end;          /* rows of the micro-batch; 0 and PLAN_ROWS_ALL: all rows */
    /* A range of program.after: the numbers of the instructions that must be done before this one starts. All
     * are smaller than its own number. */
    uint32_t after_first, after_count;
};

struct program {
    uint32_t instr_count;
    struct instr *instrs;
    uint32_t after_total;
    uint32_t *after;
};

enum slot_kind {
    SLOT_ACTIVATION, /* boundary activation [tokens, hidden], of the slot's dtype */
    SLOT_GRADIENT, /* boundary gradient [tokens, hidden] of the slot's dtype, times the loss scale if there is
                      one */
    SLOT_SAVED,    /* what a forward saves for its backward; the engine decides its layout */
    SLOT_STEP_SCALARS, /* struct plan_step_scalars */
    SLOT_NORM_SCALAR,  /* one double: Σ of squares of the gradients this rank owns, unscaled */
    SLOT_GRADIENTS,  /* Gradients of all trained parameters of blocks [block_begin, block_end). SLOT_FOR_RUN:
                        the rank's own, which STEP uses. SLOT_FOR_INSTRUCTIONS: unreduced ones of one block
                        after another, until they are reduced. A backward adds to the first slot that covers
                        its block. */
    SLOT_PARAMETERS, /* trained parameters of blocks [block_begin, block_end) */
    SLOT_KV_CACHE,   /* KV cache of the rank's blocks */
    SLOT_TOKEN,      /* one int32 per row */
    SLOT_GATHERED,   /* all weights of a block, gathered from the members' shards or pulled from the parameter
                        server (LoRA: the adapters'). Forward and backward use the first such slot that covers
                        the block, or the rank's own weights if there is none. */
    SLOT_ROUTED,     /* tokens on their way to or from experts [tokens, hidden], with their counts */
    SLOT_ROUTED_GRADIENT, /* gradients of routed tokens */
    SLOT_BARRIER,         /* one double, zero: what matters is only that it arrives */
    SLOT_PARTIAL, /* a boundary tensor or its gradient, f32 [tokens, hidden], of a tensor group: half a block
                     (attention, FFN) writes a partial sum, which ALL_REDUCE replaces by the group's sum;
                     whole blocks write the tensor itself, which BROADCAST sends to the other members */
    SLOT_KINDS
};

/* SLOT_SHARED: a boundary tensor on the device that is written only by RECVs from ranks of the same node,
 * each directly from its own device's memory; bytes_total covers the whole ring. If the two devices cannot
 * share memory, it behaves like SLOT_ON_DEVICE. */
enum slot_place { SLOT_ON_DEVICE, SLOT_ON_HOST, SLOT_SHARED, SLOT_PLACES };
/* Dtype of a boundary tensor's values in its slot, and therefore on the wire. The values that the
 * load-balancing loss appends to the tensor are always f32. All other slot kinds have a fixed layout and
 * PLAN_F32 here. */
enum plan_dtype { PLAN_F32, PLAN_BF16, PLAN_F16, PLAN_DTYPES };
/* Lifetime of an instance: from its writer to the instruction that frees it, to the end of the program, or
 * across programs until the run ends (KV cache, parameters, gradients). */
enum slot_lifetime { SLOT_FOR_INSTRUCTIONS, SLOT_FOR_STEP, SLOT_FOR_RUN };

/* A slot is a ring of equal buffers. The instance that an instruction uses is
 *
 *     (micro_batch mod ring_micro_batches) + ring_micro_batches · ((block_begin − slot.block_begin) mod
 *     ring_blocks)
 *
 * so that instructions of different micro-batches are alike (and fold), while the ring's depth bounds how
 * many are in flight. slot_instance() computes it.
 */
struct plan_slot {
    uint8_t kind;                /* enum slot_kind */
    uint8_t place;               /* enum slot_place */
    uint8_t lifetime;            /* enum slot_lifetime */
    uint8_t purpose;             /* enum plan_purpose that its bytes are counted under */
    uint8_t dtype;               /* enum plan_dtype; equal at both ends of a transfer */
    uint32_t ring_micro_batches; /* how many micro-batches the ring has room for, at least 1 */
    uint32_t ring_blocks;        /* how many blocks the ring has room for, at least 1 */
    int32_t block_begin, block_end;
    /* The bytes of an instance are bytes_fixed + bytes_per_token·tokens + bytes_per_row·rows of the
     * micro-batch, and never more than bytes_bound. All instances of the ring together never hold more
     * than bytes_total. Since rows differ in length, that is less than the depth times the largest
     * instance. */
    double bytes_per_token, bytes_per_row;
    uint64_t bytes_fixed, bytes_bound, bytes_total;
};

struct plan_experts { /* experts [begin, end) of one block */
    int32_t block, begin, end;
};

struct plan_range { /* blocks [begin, end) */
    int32_t begin, end;
};

/* Trained state that a rank updates: its share, in the group, of the state of blocks [begin, end), or all of
 * that state. */
struct plan_update {
    int32_t block_begin, block_end;
    int32_t group; /* the group whose share the rank updates; PLAN_NONE: it updates all */
};

/* The part of each layer's matrices that a member of a tensor group keeps; half-open, consecutive in group
 * order. Key and value heads come with the query heads that use them. All zero: whole matrices. The group's
 * first member has embedding and head, whole. */
struct plan_tensor {
    uint32_t kv_head_begin, kv_head_end;
    uint32_t column_begin, column_end; /* columns of the FFN: rows of gate and up, columns of down */
};

/* The most tokens, rows and labelled tokens that a micro-batch holds. */
struct plan_bounds {
    uint32_t tokens, rows, labelled;
};

struct plan_rank {
    char *device, *node; /* names, as in INTERFACES.md ("left/cpu0", "left") */
    int32_t stage;       /* position in the pipeline, 0 if there is none */
    /* The blocks on this rank; with `ranges`, only the first begin and the last end. */
    int32_t block_begin, block_end;
    /* Interleaved pipelines: the rank's ranges of blocks, at least two, rising, with blocks of other ranks
     * between them. The first begins at block_begin, and the last ends at block_end. */
    uint32_t range_count; /* number of ranges; 0: the blocks are one range */
    struct plan_range *ranges;
    struct plan_tensor tensor;
    uint32_t rows; /* rows of a full batch that this rank works on */
    struct plan_bounds
        bounds; /* bounds of the rank's own micro-batches, if less than the plan's; all 0: the plan's */
    double rows_share;  /* rows divided by the batch's rows */
    double state_share; /* share of the trained state that the rank keeps, 0..1. Shares sum to 1 over the
                           ranks; replicas have 1 each. */
    bool owns_tied;     /* the rank owns the embedding that is also the head's matrix */
    bool copies_tied;   /* the rank has a copy of the embedding that is also the head's matrix, updated by
                           BROADCAST after STEP, or gathered every step */
    uint32_t expert_count;
    struct plan_experts *experts;
    bool recompute; /* the rank's FORWARDs have FLAG_RECOMPUTE */
    /* With recompute: from this block on, activations are saved, not recomputed. 0: all are recomputed */
    int32_t recompute_end;
    uint32_t window; /* most micro-batches in flight between forward and backward; with ranges, per range */
    uint64_t memory_peak[PURPOSE_COUNT]; /* predicted peak of each purpose, bytes */
    uint64_t memory_bytes;               /* predicted peak of all purposes together, bytes */
    uint64_t memory_limit_bytes;         /* limit of the device's allocator, bytes */
    uint64_t moments_host_bytes; /* if not 0: bytes of host memory that hold the optimiser's moments, which
                                    pass through the device in STEP */
    uint64_t device_base_bytes;  /* bytes of device memory that the worker takes beside memory_limit_bytes */
    uint64_t process_base_bytes; /* host memory of a worker before it allocates anything; 0: unknown */
    double busy_s;               /* predicted seconds of compute in a step */
    uint32_t slot_count;
    struct plan_slot *slots;
    /* The state that the rank's STEPs update; plan_seal finds it in the programs. */
    uint32_t update_count;
    struct plan_update *updates;
    /* instr_count 0: the plan has no program of the kind, or the plan is the slice of another rank */
    struct program programs[PROGRAM_KINDS];
    char programs_digest[PLAN_DIGEST_HEX]; /* digest of the rank's programs (codec.h); "" until plan_seal */
};

struct plan_group {
    uint32_t rank_count;
    uint32_t *ranks; /* [rank_count] the members in order; position 0 is the root of trees */
    double *shares;  /* shares of the state that is sharded over the group; NULL: even shares */
};

/* The costs that the plan assumed, for people and for comparison with measurements. */
struct plan_costs {
    /* Figures of a mean step; lower_bound_s: no plan can be faster. */
    double step_s, tokens_per_s, lower_bound_s;
    /* Mean sums over a step; sum_sq: Σ length² of the rows. */
    double tokens_per_step, labelled_per_step, sum_sq_per_step;
    /* The factor by which what earlier runs measured changed step_s, and how many runs it comes from; 0: none
     * is known. */
    double corrected;
    uint32_t corrected_runs;
    /* Shares of compute time by the origin of the numbers. */
    double share_measured, share_imported, share_estimated;
    bool links_emulated;
    char *text; /* a sentence for people; may be NULL */
};

struct plan {
    /* PLAN_NONE: the plan is whole. Otherwise the plan is the slice of this rank: it has no programs of other
     * ranks. */
    int32_t slice_rank;
    enum plan_placement placement;
    enum plan_schedule schedule;
    int32_t block_count; /* L + 2 for a model of L transformer blocks */
    uint32_t batch_rows; /* rows of a full step */
    uint32_t micro_batch_count;
    /* Micro-batch k has rows [start[k], start[k+1]) of the step, limited to the rows the step has. */
    uint32_t *micro_batch_start; /* [micro_batch_count + 1] */
    uint32_t tokens_bound;       /* most tokens that a micro-batch may have; a larger one is an error */
    uint32_t rows_bound;         /* most rows a micro-batch holds */
    uint32_t labelled_bound;     /* most labelled tokens a micro-batch may hold */
    uint32_t sequence_bound;     /* longest row in tokens, samples (prompt and answer) included */
    enum plan_dtype compute;     /* what the operands of products are rounded to; PLAN_F32: to nothing */
    bool trains_embedding; /* gradients reach block 0's table; if it is tied, the head's gradient is added */
    uint32_t rank_count;
    struct plan_rank *ranks;
    uint32_t group_count;
    struct plan_group *groups; /* group 0 holds every rank, in rank order */
    struct plan_costs costs;
    char digest[PLAN_DIGEST_HEX]; /* digest of everything else in the plan (codec.c); "" until plan_seal */
};
#define PLAN_VERSION 2u

/* The contents of SLOT_STEP_SCALARS; ALL_REDUCE adds them, and combines control by OR. */
struct plan_step_scalars {
    double loss_sum;   /* Σ cross-entropy over labelled tokens */
    double aux_sum;    /* Σ auxiliary loss; 0 without experts */
    uint64_t labelled; /* number of labelled tokens */
    uint64_t tokens;
    uint32_t control; /* enum plan_control */
};

/* Flags that any rank raises and all ranks see in the same step. */
enum plan_control {
    CONTROL_SAVE = 1u << 0,       /* run the save program after this step */
    CONTROL_STOP = 1u << 1,       /* end after this step (and after saving, if both are set) */
    CONTROL_YIELD = 1u << 2,      /* end after this step and be restarted elsewhere */
    CONTROL_NOT_FINITE = 1u << 3, /* skip STEP; the step is void */
};

/* Names as used in JSON and on screen, in the order of the values, and a NULL behind them. */
extern const char *const plan_placement_names[PLACE_COUNT + 1],
    *const plan_schedule_names[SCHEDULE_COUNT + 1];
extern const char *const plan_purpose_names[PURPOSE_COUNT + 1], *const slot_kind_names[SLOT_KINDS + 1];
extern const char *const plan_dtype_names[PLAN_DTYPES + 1], *const instr_op_names[INSTR_COUNT + 1];
/* Return such names; NULL out of range. */
const char *plan_placement_name(int placement);
const char *plan_schedule_name(int schedule);
const char *program_kind_name(int kind);
const char *plan_purpose_name(int purpose);
const char *instr_op_name(int op);
const char *slot_kind_name(int kind);
const char *plan_dtype_name(int dtype); /* "fp32", "bf16", "fp16": as in a specification */
uint32_t plan_dtype_bytes(int dtype);   /* bytes of one value */
const char *instr_tag_name(int tag);
/* Return the value of a name, or -1. */
int plan_placement_from_name(const char *name);
int program_kind_from_name(const char *name);

/* Makes an empty plan with that many ranks, groups and micro-batches (of micro_batch_rows each, over
 * batch_rows; both at least 1). Group 0 is filled; all other fields are zero or PLAN_NONE for the caller
 * to fill in. Returns new, or NULL with ERR_NOMEM, or ERR_TOO_BIG beyond the bounds above. */
struct plan *plan_create(uint32_t rank_count, uint32_t group_count, uint32_t batch_rows,
                         uint32_t micro_batch_rows, struct err *err);
void plan_destroy(struct plan *plan);

/* Sets the rows [*begin, *end) of the step that micro-batch k has if the step has step_rows rows; *begin ==
 * *end: none. */
void plan_micro_batch_rows(const struct plan *plan, uint32_t k, uint32_t step_rows, uint32_t *begin,
                           uint32_t *end);

/* Returns the buffer of the slot's ring that an instruction uses: 0 .. ring_micro_batches·ring_blocks − 1. */
uint32_t slot_instance(const struct plan_slot *slot, int32_t micro_batch, int32_t block_begin);
/* Returns the bytes of one instance for a micro-batch of that many tokens and rows, at most bytes_bound. */
uint64_t slot_bytes(const struct plan_slot *slot, uint64_t tokens, uint64_t rows);
/* True for slots (enum slot_kind) of a few numbers, which collectives pass over a tree and not round a ring.
 */
bool slot_holds_scalars(int kind);

/* Returns the queue of an instruction as one number below plan_queue_count(): 0 is the compute queue, 2 +
 * 2·peer the sends to a peer, 3 + 2·peer the receives from it, 2 + 2·ranks + group a group's queue. Number 1
 * is unused, so that sends are even and receives odd. */
uint32_t instr_queue_index(const struct plan *plan, const struct instr *instr);
uint32_t plan_queue_count(const struct plan *plan);

/* Returns the bounds of the micro-batches that a rank works on. */
struct plan_bounds plan_rank_bounds(const struct plan *plan, uint32_t rank);
/* True if one range of the rank contains all blocks [begin, end). */
bool plan_rank_holds(const struct plan_rank *rank, int32_t begin, int32_t end);

/* Whether this rank counts the gradients of a block's parameters of which several ranks keep equal copies (in
 * the clip norm and in checkpoints, each parameter must count once): norms, routers and the narrow side of
 * adapters in tensor groups, attention in expert plans, a layer that two pipeline stages share. In a tensor,
 * expert or pipeline plan the first rank with the block counts them, elsewhere every rank over which the norm
 * is summed. The other ranks count only parameters that they alone have: rows and columns of matrices,
 * experts. */
bool plan_counts_alike(const struct plan *plan, uint32_t rank, int32_t block);

/* Returns the position of a rank in a group, or -1. */
int plan_group_position(const struct plan_group *group, uint32_t rank);

/* Scalars and small tensors are reduced over a binary tree of group positions: the parent of p is (p−1)/2.
 * A node adds its own value, then its left child's, then its right child's, and passes the sum up; the
 * root's value goes down the same tree. Writes ranks, not positions: *parent is -1 at the root, and a
 * missing child is -1. */
void plan_group_tree(const struct plan_group *group, uint32_t position, int32_t *parent, int32_t children[2]);

/* Marks the ranks with which a rank exchanges anything in any program (SEND, RECV, PULL, PUSH, and the
 * tree or ring neighbours in its groups; for tensors all members), and its neighbours in the tree of group 0,
 * over which checkpoints are made. peers has rank_count entries. Workers connect only to these. */
void plan_rank_peers(const struct plan *plan, uint32_t rank, bool *peers);

/* --- building programs, in generators and in tests --- */

/* A program under construction; initialise with zeros. Append-only. */
struct program_builder {
    struct program program;
    uint32_t instr_capacity, after_capacity;
    bool failed; /* memory or bounds were exceeded; program_builder_take reports it */
};

/* Reserves memory for that many instructions and `after` entries, so that a growing program is not moved;
 * a guess is good enough. */
void program_builder_expect(struct program_builder *builder, uint64_t instructions, uint64_t after);
/* Returns an instruction with defaults: no peer, group, slots, micro-batch or blocks; all rows. */
struct instr instr_init(enum instr_op op, enum queue_kind queue);
/* Appends an instruction; duplicate and negative numbers in after[] are dropped. Returns the instruction's
 * number (undefined once the builder has failed). */
int32_t program_add(struct program_builder *builder, const struct instr *instr, const int32_t *after,
                    size_t count);
/* Appends a collective of `group` on the group's queue, in place over the whole `slot`. root: the rank at
 * which a BROADCAST starts, or PLAN_NONE. Returns what program_add returns. */
int32_t program_add_collective(struct program_builder *builder, enum instr_op op, int32_t group, int32_t root,
                               int32_t slot, uint32_t tag, const int32_t *after, size_t count);
/* Moves the finished program into *out, whose previous contents are released. Returns -1 with ERR_NOMEM or
 * ERR_TOO_BIG if an addition failed. The builder is empty afterwards in both cases. */
int program_builder_take(struct program_builder *builder, struct program *out, struct err *err);
void program_builder_fini(struct program_builder *builder);
void program_fini(struct program *program);

/* Returns the queue that an op uses by default. */
enum queue_kind instr_op_queue(int op);

/* Describes an instruction in one line, "FORWARD mb0 blocks 0..19". */
void instr_describe(const struct instr *instr, char *text, size_t size);

#endif
