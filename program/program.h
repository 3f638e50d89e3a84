/* A plan is a program: which blocks, rows and state live on which rank, and for
 * each rank the list of typed instructions that carry out a step.
 *
 * Four readers share this: the worker executes it, the simulator prices it, the
 * page draws it, replay runs it against recorded times. Nothing here is understood
 * by one reader only. docs/PROGRAM.md says what the format must express.
 *
 * Numbering. Blocks: 0 is the embedding, 1..L the transformer blocks, L+1 the final
 * norm and head; every range is half-open. Ranks, groups, slots (per rank) and
 * instructions (per rank and program) are numbered from 0 by their place in the
 * list. Micro-batches are numbered over the whole step, not per rank.
 *
 * Execution model. A rank has one compute queue, one copy queue, one queue per peer
 * and direction, and one per group. Each queue runs its instructions in list order;
 * different queues run at once. An instruction starts when its queue is free and every
 * instruction in its `after` list (same rank, same program, smaller number) is done.
 * Nothing else orders anything. An instruction whose micro-batch holds no rows in this
 * step (the short last batch of an epoch) is done at once, on both sides of a link, and
 * sends nothing; instructions without a micro-batch always run.
 *
 * Ownership: everything below hangs on the struct plan and is released by plan_destroy.
 * Threads: a finished plan is immutable and may be read by any number of threads.
 */
#ifndef MOTLEY_PROGRAM_PROGRAM_H
#define MOTLEY_PROGRAM_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* Hard bounds; a plan beyond them is refused on load. */
#define PLAN_RANKS_MAX 16384u
#define PLAN_GROUPS_MAX 32768u
#define PLAN_SLOTS_MAX 4096u              /* per rank */
#define PLAN_MICRO_BATCHES_MAX (1u << 20) /* per step */
#define PLAN_BLOCKS_MAX 65536
#define PROGRAM_INSTRS_MAX (1u << 22) /* per rank and program, expanded */
#define PROGRAM_AFTER_MAX (1u << 24)  /* per rank and program, expanded */
#define PLAN_INSTRS_MAX (1u << 25)    /* whole plan, expanded */

#define PLAN_NONE (-1)           /* no peer, group, slot or micro-batch */
#define PLAN_ROWS_ALL UINT32_MAX /* row_end: to the end of the micro-batch */
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

/* In which order the ranks of a pipeline work through the micro-batches. The programs say all of it; this is
 * for people. */
enum plan_schedule {
    SCHEDULE_1F1B,        /* a window of forwards, then backward and forward in turn; also where there is
                             one stage only */
    SCHEDULE_GPIPE,       /* all forwards, then all backwards */
    SCHEDULE_INTERLEAVED, /* ranks hold several ranges of blocks each, and a micro-batch goes round */
    SCHEDULE_SPLIT,       /* 1F1B with BACKWARD_WEIGHT put off to where a rank would wait */
    SCHEDULE_COUNT
};

/* `train`: one optimiser step. `evaluate`: forward and Σ loss over one batch of held-out
 * rows. `prefill`: the prompt through the KV caches and the first token. `generate`: one
 * more token. `save`: write what each rank owns. */
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
    PURPOSE_ACTIVATIONS, /* what forward leaves for backward, and the KV cache */
    PURPOSE_BUFFERS,     /* boundary slots, workspace, gathered weights */
    PURPOSE_COUNT
};

enum instr_op {
    /* compute queue. Blocks [block_begin, block_end) on micro_batch.
     * FORWARD: slot_in the boundary activation (none at block 0), slot_out the next one (none at the head,
     * which adds Σ loss and labelled tokens to the step scalars), slot_save what backward needs (none when
     * evaluating; the KV cache in prefill and generate). BACKWARD: slot_in the boundary gradient (none at
     * the head), slot_out the next one (none at block 0, and none where nothing below is trained),
     * slot_save what forward left. Parameter gradients are added, unscaled, to the rank's own. */
    OP_FORWARD,
    OP_BACKWARD,
    OP_BACKWARD_INPUT,  /* the half that the neighbour waits for */
    OP_BACKWARD_WEIGHT, /* the half that nobody waits for; slot_save stays until this one */
    OP_SAMPLE,          /* slot_out: the chosen token */
    /* peer queues. Rows [row_begin, row_end) of the micro-batch's boundary tensor; block_begin == block_end
     * is the boundary: the tensor that enters that block (activation), or its gradient. */
    OP_SEND, /* slot_in; peer */
    OP_RECV, /* slot_out; peer */
    /* group queues. On slot_in (and slot_out where it is not the same buffer); the slot's kind says what is
     * exchanged. Contributions are added in an order that the plan fixes, so a plan repeated is
     * bit-identical. */
    OP_ALL_GATHER,
    OP_REDUCE_SCATTER,
    OP_ALL_REDUCE,
    OP_REDUCE,    /* to `peer`, a member of the group */
    OP_BROADCAST, /* from `peer`, a member of the group */
    /* peer queues, parameter server. A PUSH on one rank pairs with a PULL on the other, as SEND with RECV. */
    OP_PULL, /* parameters or gradients of the blocks from peer into slot_out (INSTR_ACCUMULATE adds) */
    OP_PUSH, /* parameters or gradients of the blocks from slot_in to peer */
    /* mixture of experts; each has its backward with INSTR_BACKWARD. Compute queue, save DISPATCH and
     * COMBINE, which are on the group's queue: the counts travel ahead of the payload, the slot's bound
     * limits both. `chunk` numbers the pieces of one micro-batch. Of one layer and micro-batch; on ranks with
     * attention [a], with experts [e], or both. docs/PROGRAM.md, Attention and experts apart. */
    OP_ATTENTION, /* [a] boundary in, slot_save, stream out; back: gradient in, saved, gradient out */
    OP_ROUTE,     /* [a] stream in, slot_save, routed tokens out; back: saved, adds to slot_out */
    OP_DISPATCH,  /* [a] slot_in routed, [e] slot_out; back: [e] slot_in, [a] slot_save + what slot_out got */
    OP_EXPERTS,   /* [e] slot_in, slot_save, slot_out; back: slot_in, saved, slot_out */
    OP_COMBINE,   /* [e] slot_in, [a] slot_save + what slot_out got; back: [a] slot_in (kept), [e] slot_out */
    /* compute queue. */
    OP_STEP,    /* scale by 1/labelled, clip, update what this rank owns, zero the gradients; `group`: it owns
                   its share of that group of the blocks, else all of them */
    OP_RELEASE, /* frees slot_in and does nothing else */
    OP_SAVE,    /* write the parameters, optimiser state and generator state this rank owns */
    OP_COUNT
};

enum queue_kind {
    QUEUE_COMPUTE,
    QUEUE_COPY,
    QUEUE_SEND,  /* to instr.peer */
    QUEUE_RECV,  /* from instr.peer */
    QUEUE_GROUP, /* of instr.group */
    QUEUE_KINDS
};

enum instr_flag {
    INSTR_RECOMPUTE = 1u << 0,  /* FORWARD keeps its input only; its BACKWARD runs forward again first */
    INSTR_FREES_IN = 1u << 1,   /* slot_in's instance is free for its next writer once this is done */
    INSTR_FREES_OUT = 1u << 2,  /* likewise slot_out (a token nobody reads later) */
    INSTR_FREES_SAVE = 1u << 3, /* likewise slot_save */
    INSTR_ACCUMULATE = 1u << 4, /* adds to slot_out instead of replacing it */
    INSTR_BACKWARD = 1u << 5,   /* the backward of ATTENTION, ROUTE, DISPATCH, EXPERTS, COMBINE */
    INSTR_KEEP = 1u << 6,       /* REDUCE_SCATTER, ALL_GATHER: the rank's own shard is kept, not freed */
    /* FORWARD or BACKWARD of half a block, where sums over a tensor group come between the halves. A layer:
     * attention, then its FFN, each with its norm; the first of the group adds the residual (backward: the
     * gradient that passes by), so that the sum is the boundary tensor itself. The head: the softmax
     * statistics of the rank's part of the vocabulary, then the loss (which the first of the group counts).
     */
    INSTR_FIRST_HALF = 1u << 7,
    INSTR_SECOND_HALF = 1u << 8,
};
#define INSTR_FLAGS_ALL 0x1ffu

/* Tags name streams between a pair: the wire's tag is (tag, micro_batch, block_begin, chunk). */
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
    uint8_t queue;                        /* enum queue_kind; with peer or group it names the queue */
    uint16_t flags;                       /* enum instr_flag */
    uint32_t tag;                         /* enum instr_tag */
    int32_t micro_batch;                  /* or PLAN_NONE: the whole step */
    int32_t block_begin, block_end;       /* half-open; equal where no block is meant */
    int32_t peer;                         /* rank, or PLAN_NONE; root of REDUCE and BROADCAST */
    int32_t group;                        /* or PLAN_NONE */
    int32_t slot_in, slot_out, slot_save; /* slots of this rank, or PLAN_NONE */
    uint32_t row_begin, row_end;          /* rows of the micro-batch; 0 and PLAN_ROWS_ALL: all of them */
    int32_t chunk;                        /* piece of a micro-batch, 0 where it is not cut */
    uint32_t after_first, after_count; /* into program.after: instruction numbers, all smaller than its own */
};

struct program {
    uint32_t instr_count;
    struct instr *instrs;
    uint32_t after_total;
    uint32_t *after;
};

enum slot_kind {
    SLOT_ACTIVATION, /* boundary activation [tokens, hidden], of the slot's dtype */
    SLOT_GRADIENT, /* boundary gradient [tokens, hidden], likewise; times the loss scale where there is one */
    SLOT_SAVED,    /* what forward leaves for backward; the engine decides what is inside */
    SLOT_STEP_SCALARS, /* struct plan_step_scalars */
    SLOT_NORM_SCALAR,  /* one double: Σ of squares of the gradients this rank owns, unscaled */
    SLOT_GRADIENTS,    /* gradients of all trained parameters of blocks [block_begin, block_end): the rank's
                          own, to be stepped with (SLOT_FOR_RUN), or whole ones, block after block, until they
                          are reduced (SLOT_FOR_INSTRUCTIONS): backward adds to the first slot that covers its
                          block */
    SLOT_PARAMETERS,   /* trained parameters of blocks [block_begin, block_end) */
    SLOT_KV_CACHE,     /* of the rank's blocks */
    SLOT_TOKEN,        /* one int32 a row */
    SLOT_GATHERED,     /* all weights of a block, gathered from their shards, or pulled from their holder
                          (of LoRA: the adapters'): forward and backward take a block's weights from the first
                          such slot that covers it, and where there is none from the rank's own */
    SLOT_ROUTED,       /* tokens on their way to or from experts [tokens, hidden], with their counts */
    SLOT_ROUTED_GRADIENT, /* likewise backward */
    SLOT_BARRIER,         /* nothing but the fact of arrival: one double, zero */
    SLOT_PARTIAL,         /* a rank's part of a sum over its tensor group [tokens, hidden], which ALL_REDUCE
                             makes the whole in place: a boundary tensor or its gradient, alike on all
                             members; after the head's first half, the softmax statistics [tokens, 3] */
    SLOT_KINDS
};

/* SLOT_SHARED: on the device, a boundary tensor that only RECVs from ranks of the same node write, each of
 * them straight from its own device's memory; bytes_total is all of the ring. Where the two devices cannot do
 * that, it is as SLOT_ON_DEVICE. */
enum slot_place { SLOT_ON_DEVICE, SLOT_ON_HOST, SLOT_SHARED, SLOT_PLACES };
/* Of the values of a boundary tensor in its slot, and so on the wire. What the load-balancing loss sends
 * behind a tensor is f32 in any case. All other kinds of slot are what they are: PLAN_F32. */
enum plan_dtype { PLAN_F32, PLAN_BF16, PLAN_F16, PLAN_DTYPES };
/* How long an instance lives: from its writer to the instruction that frees it, to the end of the
 * program, or over programs until the run ends (KV cache, parameters, gradients). */
enum slot_lifetime { SLOT_FOR_INSTRUCTIONS, SLOT_FOR_STEP, SLOT_FOR_RUN };

/* A slot is a ring of equal buffers. The instance an instruction means is
 *     (micro_batch mod ring_micro_batches) + ring_micro_batches · ((block_begin − slot.block_begin) mod
 * ring_blocks) so that instructions of different micro-batches look alike (and fold), while the depth of the
 * ring bounds how many are in flight. slot_instance() computes it. */
struct plan_slot {
    uint8_t kind;                /* enum slot_kind */
    uint8_t place;               /* enum slot_place */
    uint8_t lifetime;            /* enum slot_lifetime */
    uint8_t purpose;             /* enum plan_purpose it is accounted under */
    uint8_t dtype;               /* enum plan_dtype; the two ends of a transfer have the same */
    uint32_t ring_micro_batches; /* at least 1 */
    uint32_t ring_blocks;        /* at least 1 */
    int32_t block_begin, block_end;
    /* bytes of an instance = bytes_fixed + bytes_per_token·tokens + bytes_per_row·rows of the micro-batch,
     * never more than bytes_bound; all instances of the ring together never hold more than bytes_total (rows
     * differ in length, so the fullest window of a ring is less than its depth times the fullest
     * micro-batch). */
    double bytes_per_token, bytes_per_row;
    uint64_t bytes_fixed, bytes_bound, bytes_total;
};

struct plan_experts { /* experts [begin, end) of one block */
    int32_t block, begin, end;
};

struct plan_range { /* blocks [begin, end) */
    int32_t begin, end;
};

/* What of each matrix a member of a tensor group keeps; half-open, members in group order one after the
 * other. Key and value heads come with the query heads they serve. All zero: whole matrices. */
struct plan_tensor {
    uint32_t kv_head_begin, kv_head_end;
    uint32_t column_begin, column_end;         /* of the FFN: rows of gate and up, columns of down */
    uint32_t vocabulary_begin, vocabulary_end; /* rows of the embedding and of the head */
};

struct plan_rank {
    char *device, *node;            /* names, as in INTERFACES.md ("left/cpu0", "left") */
    int32_t stage;                  /* position in the pipeline, 0 where there is none */
    int32_t block_begin, block_end; /* held by this rank: all of them, unless it has ranges */
    /* interleaved pipelines: the blocks held, two ranges or more, rising, blocks of other ranks between
     * them; the first begins at block_begin, the last ends at block_end */
    uint32_t range_count; /* 0: one range */
    struct plan_range *ranges;
    struct plan_tensor tensor;
    uint32_t rows;      /* of a full batch, that this rank works on */
    double rows_share;  /* rows / batch rows */
    double state_share; /* of the trained state kept here, 0..1: Σ over ranks = 1; each replica of all of
                           a stage's state has 1 */
    bool owns_tied;     /* it owns the embedding that the head shares */
    bool copies_tied; /* it holds a copy of it, updated by BROADCAST after STEP, or gathered anew each time */
    uint32_t expert_count;
    struct plan_experts *experts;
    bool recompute;  /* its FORWARDs carry INSTR_RECOMPUTE */
    uint32_t window; /* most micro-batches in flight between forward and backward; of a rank with ranges,
                        each range's counted by itself */
    uint64_t memory_peak[PURPOSE_COUNT]; /* predicted peak of each purpose, bytes */
    uint64_t memory_bytes;               /* predicted peak of the sum, bytes */
    uint64_t memory_limit_bytes;         /* the device allocator's limit */
    uint64_t moments_host_bytes; /* not 0: the optimiser's moments lie in so much host memory, and pass
                                    through the device in STEP */
    uint64_t device_base_bytes;  /* device memory that it takes for itself, beside that limit */
    uint64_t process_base_bytes; /* host memory of a worker before anything is allocated; 0 unknown */
    double busy_s;               /* predicted seconds of compute in a step */
    uint32_t slot_count;
    struct plan_slot *slots;
    struct program programs[PROGRAM_KINDS]; /* instr_count 0: the plan has no such program */
};

struct plan_group {
    uint32_t rank_count;
    uint32_t *ranks; /* in order: position 0 is the root of trees */
    double *shares;  /* of what is sharded over the group; NULL: even */
};

/* What the costs assumed, for people and for comparing with what was measured. */
struct plan_costs {
    double step_s, tokens_per_s, lower_bound_s;                 /* of a mean step */
    double tokens_per_step, labelled_per_step, sum_sq_per_step; /* Σ length² of the rows */
    double share_measured, share_imported,
        share_estimated; /* of compute time, by where the numbers came from */
    bool links_emulated;
    char *text; /* a sentence for people; may be NULL */
};

struct plan {
    uint32_t version; /* PLAN_VERSION */
    enum plan_placement placement;
    enum plan_schedule schedule;
    int32_t block_count; /* L + 2 */
    uint32_t batch_rows; /* of a full step */
    uint32_t micro_batch_count;
    /* Micro-batch k holds rows [start[k], start[k+1]) of the step's rows, cut off at the rows the step has.
     */
    uint32_t *micro_batch_start; /* micro_batch_count + 1 */
    uint32_t tokens_bound; /* most tokens a micro-batch may hold; a fuller one is an error, not a surprise */
    uint32_t rows_bound;   /* most rows a micro-batch holds */
    uint32_t labelled_bound; /* most labelled tokens a micro-batch may hold */
    uint32_t sequence_bound; /* longest row in tokens, samples (prompt and answer) included */
    bool trains_embedding; /* gradients go down to block 0's table, and where it is tied come from the head */
    uint32_t rank_count;
    struct plan_rank *ranks;
    uint32_t group_count;
    struct plan_group *groups; /* group 0 holds every rank, in rank order */
    struct plan_costs costs;
    char digest[PLAN_DIGEST_HEX]; /* of everything else here (codec.h); "" until plan_seal */
};
#define PLAN_VERSION 1u

/* What SLOT_STEP_SCALARS holds and how ALL_REDUCE combines it: sums, and OR for control. */
struct plan_step_scalars {
    double loss_sum;   /* Σ cross-entropy over labelled tokens */
    double aux_sum;    /* Σ auxiliary loss, 0 without experts */
    uint64_t labelled; /* tokens */
    uint64_t tokens;
    uint32_t control; /* enum plan_control */
};

/* Raised by any rank, seen by all in the same step. */
enum plan_control {
    CONTROL_SAVE = 1u << 0,       /* run the save program after this step */
    CONTROL_STOP = 1u << 1,       /* end after this step (after saving, if both) */
    CONTROL_YIELD = 1u << 2,      /* end after this step, to be started again elsewhere */
    CONTROL_NOT_FINITE = 1u << 3, /* do not STEP; the step is void */
};

/* Names as used in JSON and on screen; NULL out of range. */
const char *plan_placement_name(int placement);
const char *plan_schedule_name(int schedule);
const char *program_kind_name(int kind);
const char *plan_purpose_name(int purpose);
const char *instr_op_name(int op);
const char *queue_kind_name(int queue);
const char *slot_kind_name(int kind);
const char *plan_dtype_name(int dtype); /* "fp32", "bf16", "fp16": as in a specification */
uint32_t plan_dtype_bytes(int dtype);   /* of a value */
const char *instr_tag_name(int tag);
/* The number of a name, or -1. */
int plan_placement_from_name(const char *name);
int program_kind_from_name(const char *name);
int instr_op_from_name(const char *name);

/* A new empty plan with that many ranks, groups and micro-batches (micro_batch_rows each, over batch_rows;
 * both at least 1), group 0 filled. Everything else is zero or PLAN_NONE and filled in by the caller through
 * the fields. Returns new, or NULL with ERR_NOMEM, or ERR_TOO_BIG beyond the bounds above. */
struct plan *plan_create(uint32_t rank_count, uint32_t group_count, uint32_t batch_rows,
                         uint32_t micro_batch_rows, struct err *err);
void plan_destroy(struct plan *plan);

/* Rows [*begin, *end) of the step's rows that micro-batch k holds when the step has step_rows rows; empty
 * when *begin == *end. */
void plan_micro_batch_rows(const struct plan *plan, uint32_t k, uint32_t step_rows, uint32_t *begin,
                           uint32_t *end);

/* Which buffer of the slot's ring an instruction means: 0 .. ring_micro_batches·ring_blocks − 1. */
uint32_t slot_instance(const struct plan_slot *slot, int32_t micro_batch, int32_t block_begin);
/* Bytes of one instance for a micro-batch of that many tokens and rows, at most bytes_bound. */
uint64_t slot_bytes(const struct plan_slot *slot, uint64_t tokens, uint64_t rows);

/* The queue of an instruction as one number, dense per rank: 0 compute, 1 copy, 2 + 2·peer send to,
 * 3 + 2·peer receive from, 2 + 2·ranks + group. Below plan_queue_count(). */
uint32_t instr_queue_index(const struct plan *plan, const struct instr *instr);
uint32_t plan_queue_count(const struct plan *plan);

/* Does the rank hold all of blocks [begin, end), in one range? */
bool plan_rank_holds(const struct plan_rank *rank, int32_t begin, int32_t end);

/* Position of a rank in a group, or -1. */
int plan_group_position(const struct plan_group *group, uint32_t rank);

/* Scalars and small tensors are reduced over a binary tree of group positions: the parent of p is (p−1)/2. A
 * node adds its own value, then its left child's, then its right child's, and passes the sum up; the root's
 * value goes down the same tree. Sets *parent to -1 at the root, children to -1 where there is none; ranks,
 * not positions. */
void plan_group_tree(const struct plan_group *group, uint32_t position, int32_t *parent, int32_t children[2]);

/* Which ranks a rank exchanges anything with, over all its programs (SEND, RECV, PULL, PUSH, and the tree or
 * ring neighbours of its groups: for tensors, all members). peers has rank_count entries. Workers connect
 * only to these. */
void plan_rank_peers(const struct plan *plan, uint32_t rank, bool *peers);

/* --- building programs: used by the generators and by tests that write programs by hand --- */

/* A program under construction; init with zeros. Append-only. */
struct program_builder {
    struct program program;
    uint32_t instr_capacity, after_capacity;
    bool failed; /* out of memory or bounds; reported by program_builder_take */
};

/* Makes room for so many instructions and numbers in their `after` at once, so that they need not be moved
 * as a program grows; a guess is good enough. */
void program_builder_expect(struct program_builder *builder, uint64_t instructions, uint64_t after);
/* The defaults: no peer, group, slots, micro-batch; all rows; no blocks. */
struct instr instr_init(enum instr_op op, enum queue_kind queue);
/* Appends; duplicates and negative numbers in after[] are dropped. Returns the instruction's number
 * (undefined once the builder has failed). */
int32_t program_add(struct program_builder *builder, const struct instr *instr, const int32_t *after,
                    size_t count);
/* Appends a collective of `group` on its queue, over all of `slot` in place; root: PLAN_NONE, or the rank
 * that a BROADCAST starts from and a REDUCE ends at. Returns as program_add. */
int32_t program_add_collective(struct program_builder *builder, enum instr_op op, int32_t group, int32_t root,
                               int32_t slot, uint32_t tag, const int32_t *after, size_t count);
/* Moves the finished program into *out (released before). Returns -1 with ERR_NOMEM or ERR_TOO_BIG if any add
 * failed; the builder is empty afterwards either way. */
int program_builder_take(struct program_builder *builder, struct program *out, struct err *err);
void program_builder_fini(struct program_builder *builder);
void program_fini(struct program *program);

/* The queue an op runs on unless said otherwise. */
enum queue_kind instr_op_queue(int op);

/* One line for people, "FORWARD  mb0 blocks 0..19", into text. */
void instr_describe(const struct instr *instr, char *text, size_t size);

#endif
