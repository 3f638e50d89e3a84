/* Declarations that the files of this part share. No file of another part includes this header. */
#ifndef MOTLEY_WORKER_PROGRAM_OPS_PRIVATE_H
#define MOTLEY_WORKER_PROGRAM_OPS_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "worker/program/courier.h"
#include "worker/program/ops.h"

/* A copy between device and host that takes longer than this (600 s) hangs. */
#define COPY_TIMEOUT_NS (600ull * 1000 * 1000 * 1000)

/* One buffer of a slot's ring. */
struct slot_cell {
    struct buffer *buffer; /* the boundary tensor on the device, or NULL */
    uint64_t buffer_size;  /* capacity of `buffer` in bytes */
    _Atomic(bool) in_use;  /* set while the device buffer is the only copy of its data */
    uint8_t *host;         /* memory for the mesh, page-locked where the device copies by itself; or NULL */
    uint64_t host_size;
    /* recorded after the last copy from `host` to `buffer` (up), and from `buffer` to `host` (down) */
    struct event *up, *down;
    _Atomic(struct transfer *) arrived; /* receives whose bytes are in `host` and not yet in `buffer` */
    struct kv_cache **caches;           /* of SLOT_KV_CACHE: [stages], each made when first needed; or NULL */
    int32_t token;                      /* value of a SLOT_TOKEN */
};

struct slot_cells {
    const struct plan_slot *slot;
    uint32_t count;
    struct slot_cell *cells;
    bool travels;         /* a SEND or RECV uses the slot */
    bool sent_by_mesh;    /* a SEND of the slot goes over the mesh, so results are copied to the host */
    bool sent_locally;    /* a SEND of the slot goes over a link within the node, straight from the buffer */
    bool shared;          /* other processes may write into its buffers, which are never freed or replaced */
    uint64_t device_size; /* bytes of all its device buffers; at most slot->bytes_total */
};

/* The receiver's message that a transfer within the node may begin. Little-endian, without padding. */
struct local_ready {
    uint32_t buffer; /* number of the buffer in the receiver's offers */
    uint32_t zero;
    uint64_t at, bytes;
};
struct local_note {
    uint64_t bytes;
};

/* Fields of struct transfer for a copy between two devices of one node. */
struct local_transfer {
    bool used; /* the transfer uses a link within the node */
    struct local_ready ready;
    struct local_note note;
    atomic_uint open; /* number of messages of a RECV that are under way */
};

/* A SEND or RECV under way. */
struct transfer {
    struct ops *ops;
    uint32_t number;
    const struct instr *instr;
    struct slot_cell *cell;
    size_t at, size; /* offset and length in bytes of the rows within the cell */
    uint64_t tag, deadline_ns;
    struct transfer *next; /* next receive in the list cell->arrived */
    struct courier_job job;
    struct local_transfer local;
};

/* Returns how a message of a transfer is posted on a queue of its peer. */
static inline struct mesh_post transfer_post(struct transfer *transfer, uint32_t queue, mesh_done_fn *done)
{
    return (struct mesh_post){.peer = (uint32_t)transfer->instr->peer,
                              .queue = queue,
                              .deadline_ns = transfer->deadline_ns,
                              .done = done,
                              .arg = transfer};
}

struct reduce;
struct local_links;
struct gather;
struct streams;
struct exchange;

struct ops {
    struct ops_options options;
    const struct plan_rank *me;
    struct slot_cells *slots; /* [me->slot_count] */
    struct saved **saved;     /* [stages][micro-batches] activations that forward saves for backward */
    struct {
        struct exec *exec;
        /* [instr_count] pointers into `transfers`; NULL for an instruction that is not a transfer */
        struct transfer **transfer_at;
        struct transfer *transfers;
        struct reduce **reduces; /* [instr_count], NULL for an instruction that is not a collective */
    } programs[PROGRAM_KINDS];
    /* blocks whose state is sharded over ranks; NULL if there are none (gather_private.h) */
    struct gather *gather;
    /* carries parameters and gradients between ranks; NULL if no instruction moves any */
    struct streams *streams;
    /* moves routed tokens; NULL if the plan is no expert plan (exchange_private.h) */
    struct exchange *exchange;
    /* [micro-batches] the rows of each whose attention this rank computes; NULL: all rows */
    struct micro_batch *own_micro;
    uint32_t *own_starts, *came_starts; /* memory for row_start of own_micro, and of the tokens that this
                                           rank's experts received */
    struct courier *courier;            /* waits for copies; NULL without a mesh */
    struct local_links *local;          /* links to peers of this node; NULL without any */
    pthread_mutex_t out_lock;      /* guards DEVICE_OUT, which the executor's and the courier's threads use */
    _Atomic(uint64_t) local_bytes; /* bytes sent over links within the node */
    uint8_t *parts; /* host memory for a partial sum received from a member of the tensor group; NULL: no
                       tensor group */
    uint64_t parts_bytes;
    uint8_t *collectives;      /* host memory for the collectives of one program at a time */
    float *logits;             /* [vocab], allocated when first needed */
    bool works_when_waited;    /* the device (kind "checked") works only while the host waits for it */
    struct event *queued[2];   /* recorded after each of the last two instructions submitted to the device */
    uint32_t queued_number[2]; /* instruction numbers of the events in `queued` */
    uint32_t queued_count;     /* how many instructions were submitted so far */
    /* state of the run under way */
    enum program_kind kind;
    const struct batch *batch;
    struct ops_step *step;
    uint64_t wait_ns;    /* limit for a transfer */
    uint64_t run_number; /* executions of any program so far; a part of every message tag */
    bool table_current;  /* every copy of a tied embedding equals the original, so no gather is needed. The
                            flag is equal on all ranks, because they gather and step together. */
    bool scalars_reduced, norm_reduced;
    bool concluded;     /* conclude_step has run */
    double norm_square; /* Σ g² of the gradients, without the loss scale */
};

static inline struct slot_cell *ops_cell(struct ops *ops, int32_t slot, int32_t micro_batch,
                                         int32_t block_begin)
{
    struct slot_cells *cells = &ops->slots[slot];
    return &cells->cells[slot_instance(cells->slot, micro_batch < 0 ? 0 : micro_batch, block_begin)];
}

/* Returns the rows of a micro-batch that this rank computes. */
static inline const struct micro_batch *ops_micro(const struct ops *ops, int32_t micro_batch)
{
    return ops->own_micro ? &ops->own_micro[micro_batch] : &ops->batch->micro[micro_batch];
}

/* Returns the saved activations of a micro-batch in a stage. */
static inline struct saved **ops_saved(struct ops *ops, int stage, int32_t micro_batch)
{
    return &ops->saved[(size_t)stage * ops->options.plan->micro_batch_count + (uint32_t)micro_batch];
}

static inline bool ops_is_boundary(const struct plan_slot *slot)
{
    return slot->kind == SLOT_ACTIVATION || slot->kind == SLOT_GRADIENT || slot->kind == SLOT_PARTIAL;
}

static inline bool ops_is_half(const struct instr *instr)
{
    return (instr->flags & (FLAG_FIRST_HALF | FLAG_SECOND_HALF)) != 0;
}

/* Returns which half of a layer the instruction computes (an enum stage_half), or -1 when its flags name
 * both. */
static inline int ops_half(const struct instr *instr)
{
    bool first = instr->flags & FLAG_FIRST_HALF, second = instr->flags & FLAG_SECOND_HALF;
    return first && second ? -1 : second ? STAGE_HALF_FFN : STAGE_HALF_ATTENTION;
}

/* cells.c: boundary tensors on the device and in memory for the mesh. */
int cells_make(struct ops *ops, uint32_t slot, struct err *err);
/* Frees the cells of a slot, also of one that cells_make did not complete. */
void cells_free(struct ops *ops, uint32_t slot);
/* Sets the KV cache of a stage in the cell of the instruction's slot_save; it is made when first needed. */
int cell_need_cache(struct ops *ops, const struct instr *instr, int stage, struct kv_cache **out,
                    struct err *err);
void cell_forget_caches(struct ops *ops, struct slot_cell *cell);
/* cells_tensor_bytes returns the bytes of `tokens` tokens of a boundary tensor; cells_tail_bytes, the bytes
 * that are sent behind it: what passes by the residual stream, and the load-balancing loss's sums of `rows`
 * rows. */
size_t cells_tensor_bytes(const struct ops *ops, int32_t slot, uint32_t tokens);
size_t cells_tail_bytes(const struct ops *ops, int32_t slot, uint32_t tokens, uint32_t rows);
/* cells_bound refuses a micro-batch that exceeds its slot's bytes_bound (ERR_TOO_BIG); cell_need_host
 * allocates the cell's host memory if it has none. */
int cells_bound(const struct ops *ops, int32_t slot, int32_t micro_batch, struct err *err);
int cell_need_host(struct ops *ops, struct slot_cells *cells, struct slot_cell *cell, struct err *err);
/* Set *out to the device buffer that an instruction of the compute queue reads (in) or writes (out); NULL
 * when the instruction reads or writes no boundary tensor. Bytes received for the input are copied to the
 * device in parallel with compute, and work submitted next waits for that copy. */
int cells_take_in(struct ops *ops, const struct instr *instr, struct buffer **out, struct err *err);
int cells_take_out(struct ops *ops, const struct instr *instr, struct buffer **out, struct err *err);
/* Copies the instruction's output to the host memory that the mesh sends from, in parallel with compute,
 * after the event `made` that was recorded behind the instruction. */
int cells_publish(struct ops *ops, const struct instr *instr, struct event *made, struct err *err);
/* Completes a SEND or RECV, or fails it when `failure` is not NULL. */
void transfer_end(struct transfer *transfer, const struct err *failure);

/* transfer.c: SEND and RECV. */
int transfer_make(struct ops *ops, int kind, struct err *err);
int transfer_begin(struct ops *ops, uint32_t number, const struct instr *instr, struct err *err);

/* halves.c: FORWARD and BACKWARD of half a layer (attention or FFN) in tensor groups. */
int halves_make(struct ops *ops, struct err *err);
/* Returns why this worker cannot run the instruction as half a layer, or NULL. */
const char *halves_unsupported(const struct ops *ops, const struct instr *instr);
int halves_forward(struct ops *ops, const struct instr *instr, struct stage *stage, struct buffer *in,
                   struct buffer *out, struct err *err);
/* Runs the backward of half a layer. *place, the micro-batch's saved activations, becomes NULL when the stage
 * has released them. */
int halves_backward(struct ops *ops, const struct instr *instr, struct stage *stage, struct saved **place,
                    struct buffer *in, struct buffer *out, struct err *err);

/* local.c: links within the node. */
/* Agrees with each peer on the same node whether boundary tensors are copied directly between the two
 * devices. Called once, when the mesh is connected and before the first program. Logs with which peers this
 * works and why not with others; the only errors are those of the mesh. */
int local_connect(struct ops *ops, uint64_t deadline_ns, struct err *err);
/* Begins a transfer whose local.used is set. It ends with transfer_end. */
int local_send(struct transfer *transfer, struct err *err);
int local_receive(struct transfer *transfer, struct err *err);
/* Unmaps the device memory of peers' processes. Called after the courier has stopped and before the mesh is
 * closed, while those processes still exist. */
void local_unmap(struct local_links *local);
/* Frees the links after the mesh was destroyed. NULL is a no-op here and in local_unmap. */
void local_destroy(struct local_links *local);

/* ops_check.c: refuses an instruction that this worker does not support. ERR_UNSUPPORTED names the feature;
 * ERR_INVALID a slot that does not fit its use. */
int ops_check_instr(const struct ops *ops, int kind, uint32_t number, const struct instr *instr,
                    struct err *err);

/* Returns the tag of an instruction's messages in this execution of its program. */
uint64_t ops_tag(const struct ops *ops, const struct instr *instr);

/* Return this rank's contribution to the step's scalars and to Σ g² (squared gradient norm). A value that is
 * not finite is noted in step->not_finite and sets CONTROL_NOT_FINITE in the scalars, or makes *square
 * NaN. */
int ops_own_scalars(struct ops *ops, struct plan_step_scalars *scalars, struct err *err);
int ops_own_norm(struct ops *ops, double *square, struct err *err);

/* Returns the position in the group of the member that keeps the whole state; -1 where several members keep
 * shards. */
int ops_whole_owner(const struct plan_group *group);

/* Sets the mesh queue that this rank and another use for a group. Its number counts the earlier groups that
 * contain both ranks, so every group of two ranks has a queue of its own, and both ranks compute the same
 * number. ERR_UNSUPPORTED beyond OPS_QUEUE_GROUP_COUNT. */
int ops_group_queue(const struct ops *ops, int32_t group, uint32_t rank, uint32_t *queue, struct err *err);

/* reduce.c: collectives. reduce_bytes returns the host memory that a collective needs, a multiple of 64
 * bytes; reduce_place gives it that memory. Collectives of one program have separate memory; collectives of
 * different programs use the same memory. */
size_t reduce_bytes(const struct reduce *reduce);
void reduce_place(struct reduce *reduce, uint8_t *memory);
int reduce_create(struct ops *ops, uint32_t number, const struct instr *instr, struct reduce **out,
                  struct err *err);
void reduce_destroy(struct reduce *reduce);
int reduce_begin(struct reduce *reduce, struct err *err);

#endif
