/* What ops.c, cells.c, transfer.c, local.c, ops_check.c, ops_own.c and reduce.c share. Nobody else includes
 * this. */
#ifndef MOTLEY_WORKER_OPS_PRIVATE_H
#define MOTLEY_WORKER_OPS_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "worker/courier.h"
#include "worker/ops.h"

/* Of one copy between device and host, which is hung after so long. */
#define COPY_TIMEOUT_NS (600ull * 1000 * 1000 * 1000)

/* One buffer of a slot's ring. */
struct cell {
    struct buffer *buffer; /* boundary tensor on the device, or NULL */
    uint64_t buffer_size;  /* bytes it can hold */
    _Atomic(bool) in_use;  /* it holds what only it holds */
    uint8_t *host;         /* for the mesh: page-locked where the device reads by itself; or NULL */
    uint64_t host_size;
    struct event *up, *down;        /* after the last copy from `host`, and to it */
    _Atomic(struct call *) arrived; /* receives whose bytes `host` has and `buffer` not yet */
    struct kv_cache **caches;       /* SLOT_KV_CACHE: [stages], each made when it is first needed; or NULL */
    int32_t token;                  /* SLOT_TOKEN */
};

struct cells {
    const struct plan_slot *slot;
    uint32_t count;
    struct cell *cells;
    bool travels;         /* a SEND or RECV uses it, */
    bool sent_by_mesh;    /* a SEND of it goes by the mesh: what is written is copied to the host, */
    bool sent_locally;    /* or is copied from its buffer by a SEND */
    bool shared;          /* other processes may write into its buffers, which stay */
    uint64_t device_size; /* bytes of all its buffers; at most slot->bytes_total */
};

/* Little-endian, without holes. */
struct local_ready {
    uint32_t buffer; /* its number in what the receiver told the sender of */
    uint32_t zero;
    uint64_t at, bytes;
};
struct local_note {
    uint64_t bytes;
};

/* Of a transfer, in struct call. */
struct local_call {
    bool used; /* it goes this way */
    struct local_ready ready;
    struct local_note note;
    atomic_uint open; /* of a RECV: messages under way */
};

/* A SEND or RECV under way. */
struct call {
    struct ops *ops;
    uint32_t number;
    const struct instr *instr;
    struct cell *cell;
    size_t at, size; /* its bytes in the cell */
    uint64_t tag, deadline_ns;
    struct call *next; /* in cell->arrived */
    struct courier_job job;
    struct local_call local;
};

struct reduce;
struct local;

struct ops {
    struct ops_options options;
    const struct plan_rank *me;
    struct cells *slots;   /* [me->slot_count] */
    struct saved **places; /* [stages][micro-batches]: what forward keeps for backward, of a whole range */
    struct {
        struct exec *exec;
        struct call **calls; /* [instr_count], NULL where there is no transfer; all in the first of */
        struct call *transfers;
        struct reduce **reduces; /* [instr_count], NULL where there is no collective */
    } programs[PROGRAM_KINDS];
    struct courier *courier;       /* waits for copies; NULL without a mesh */
    struct local *local;           /* peers of this node; NULL: there is none */
    pthread_mutex_t out_lock;      /* of DEVICE_OUT: the executor's thread and the courier's use it */
    _Atomic(uint64_t) local_bytes; /* sent within the node */
    uint8_t *collectives;          /* host memory of the collectives of one program at a time */
    float *logits;                 /* [vocab], made when first needed */
    bool idles;                    /* the device does nothing unless it is waited for */
    struct event *queued[2];       /* after the last two instructions that the device was given, */
    uint32_t queued_number[2];     /* which they are, */
    uint32_t queued_count;         /* and how many there were */
    /* of the run under way */
    enum program_kind kind;
    const struct batch *batch;
    struct ops_step *step;
    uint64_t wait_ns;    /* deadline of a transfer */
    uint64_t run_number; /* executions so far, any program: in every tag */
    bool table_current; /* copies of a tied embedding are what is kept: known alike on all ranks, which gather
                           and step together */
    bool scalars_reduced, norm_reduced;
    double norm_square; /* Σ g², unscaled */
};

static inline struct cell *ops_cell(struct ops *ops, int32_t slot, int32_t micro_batch, int32_t block_begin)
{
    struct cells *cells = &ops->slots[slot];
    return &cells->cells[slot_instance(cells->slot, micro_batch < 0 ? 0 : micro_batch, block_begin)];
}

/* The place of a micro-batch in a stage. */
static inline struct saved **ops_place(struct ops *ops, int stage, int32_t micro_batch)
{
    return &ops->places[(size_t)stage * ops->options.plan->micro_batch_count + (uint32_t)micro_batch];
}

static inline bool ops_is_boundary(const struct plan_slot *slot)
{
    return slot->kind == SLOT_ACTIVATION || slot->kind == SLOT_GRADIENT;
}

/* cells.c: boundary tensors, on the device and for the mesh. */
int cells_make(struct ops *ops, uint32_t slot, struct err *err);
/* Of a slot that was made, or not. */
void cells_free(struct ops *ops, uint32_t slot);
/* Destroys the KV caches of one instance. */
void cell_forget_caches(struct ops *ops, struct cell *cell);
/* Bytes of so many tokens in a slot; what travels behind those of so many rows. */
size_t cells_tensor_bytes(const struct ops *ops, int32_t slot, uint32_t tokens);
size_t cells_tail_bytes(const struct ops *ops, int32_t slot, uint32_t rows);
/* The whole of a micro-batch fits into its cell, which has host memory then. */
int cells_bound(const struct ops *ops, int32_t slot, int32_t micro_batch, struct err *err);
int cell_need_host(struct ops *ops, struct cells *cells, struct cell *cell, struct err *err);
/* The buffers that an instruction of the compute queue reads and writes; NULL for no slot. What came for the
 * first goes up beside what is computed, and what is queued next waits for it. */
int cells_take_in(struct ops *ops, const struct instr *instr, struct buffer **out, struct err *err);
int cells_take_out(struct ops *ops, const struct instr *instr, struct buffer **out, struct err *err);
/* What the instruction wrote, once `made` was recorded behind it, goes down to where the mesh sends from,
 * beside what is computed. */
int cells_publish(struct ops *ops, const struct instr *instr, struct event *made, struct err *err);
/* A SEND or RECV is complete, or has failed. */
void call_end(struct call *call, const struct err *failure);

/* transfer.c: SEND and RECV. */
int transfer_make(struct ops *ops, int kind, struct err *err);
int transfer_begin(struct ops *ops, uint32_t number, const struct instr *instr, struct err *err);

/* local.c: links within the node. */
/* Once, when the mesh is connected, before the first program. Says in the log which peers are reached so,
 * and why others of the node are not; an error is the mesh's. */
int local_connect(struct ops *ops, uint64_t deadline_ns, struct err *err);
/* Begin a transfer that is `used`. Ends with call_end. */
int local_send(struct call *call, struct err *err);
int local_receive(struct call *call, struct err *err);
/* Lets go of other processes' memory, when the courier has stopped and before the mesh says goodbye, so that
 * they still have it; what the mesh still brings finds the rest. */
void local_let_go(struct local *local);
/* When the mesh has ended. Either of them: NULL is a no-op. */
void local_destroy(struct local *local);

/* ops_check.c. ERR_UNSUPPORTED names what is not done; ERR_INVALID a slot that does not fit its use. */
int ops_check_instr(const struct ops *ops, int kind, uint32_t number, const struct instr *instr,
                    struct err *err);

/* Of an instruction's messages, in this run of its program. */
uint64_t ops_tag(const struct ops *ops, const struct instr *instr);

/* This rank's share of the step's scalars, and of Σ g². Not finite: noted in step->not_finite, and in control
 * or as NaN. */
int ops_own_scalars(struct ops *ops, struct plan_step_scalars *scalars, struct err *err);
int ops_own_norm(struct ops *ops, double *square, struct err *err);

/* The position in a group of the member that keeps all; -1 where several keep shards. */
int ops_keeper(const struct plan_group *group);

/* Collectives (reduce.c). What each needs of host memory, 64-byte aligned, is given to it by reduce_place:
 * collectives of one program lie side by side, those of different programs in the same place. */
size_t reduce_bytes(const struct reduce *reduce);
void reduce_place(struct reduce *reduce, uint8_t *memory);
int reduce_create(struct ops *ops, uint32_t number, const struct instr *instr, struct reduce **out,
                  struct err *err);
void reduce_destroy(struct reduce *reduce);
int reduce_begin(struct reduce *reduce, struct err *err);

#endif
