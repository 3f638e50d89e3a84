/* What ops.c, ops_check.c, ops_own.c and reduce.c share. Nobody else includes this. */
#ifndef MOTLEY_WORKER_OPS_PRIVATE_H
#define MOTLEY_WORKER_OPS_PRIVATE_H

#include "worker/ops.h"

/* One buffer of a slot's ring. */
struct cell {
    struct buffer *buffer; /* boundary tensor on the device, or NULL */
    uint64_t buffer_size;  /* bytes it can hold */
    bool in_use;           /* it holds what only it holds (slots that do not travel) */
    uint8_t *host;         /* the same for the transport; or NULL */
    size_t host_size;
    bool arrived;             /* host is newer than buffer */
    struct kv_cache **caches; /* SLOT_KV_CACHE: [stages], each made when it is first needed; or NULL */
    int32_t token;            /* SLOT_TOKEN */
};

struct cells {
    const struct plan_slot *slot;
    uint32_t count;
    struct cell *cells;
    bool travels;         /* a SEND or RECV uses it: host memory stands beside the buffers */
    uint64_t device_size; /* bytes of all its buffers; at most slot->bytes_total */
};

/* The argument of a transport callback: one an instruction. */
struct call {
    struct ops *ops;
    uint32_t number;
    int32_t slot_out, micro_batch, block_begin; /* whose cell a receive fills */
    size_t expected;
};

struct reduce;

struct ops {
    struct ops_options options;
    const struct plan_rank *me;
    struct cells *slots;   /* [me->slot_count] */
    struct saved **places; /* [stages][micro-batches]: what forward keeps for backward, of a whole range */
    struct {
        struct exec *exec;
        struct call *calls;      /* [instr_count] */
        struct reduce **reduces; /* [instr_count], NULL where there is no collective */
    } programs[PROGRAM_KINDS];
    uint8_t *collectives;      /* host memory of the collectives of one program at a time */
    float *logits;             /* [vocab], made when first needed */
    struct event *queued[2];   /* after the last two instructions that the device was given, */
    uint32_t queued_number[2]; /* which they are, */
    uint32_t queued_count;     /* and how many there were */
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
