/* What the instructions of a program do on one rank: slots, the stage, the mesh, collectives.
 *
 * exec.h decides when an instruction runs; here is what it does, by opcode and slot kind. No placement
 * is known here either: FORWARD and BACKWARD (whole or in halves) drive the stages, SEND and RECV the mesh,
 * collectives add what their slot's kind says in group order. Supported: FORWARD, BACKWARD, BACKWARD_INPUT,
 * BACKWARD_WEIGHT, SEND, RECV, ALL_REDUCE, REDUCE, BROADCAST, STEP, SAMPLE, RELEASE, SAVE; every other op is
 * refused by name in ops_create.
 *
 * Slots. An instance of a boundary slot gets a device buffer (MEM_BUFFERS) of its micro-batch's size when it
 * is first needed, and keeps it for the next as long as the slot stays within its bytes_total; those that
 * travel by the mesh have page-locked host memory of bytes_bound beside it. What is written on the device
 * goes down to it behind the instruction that wrote, what arrived goes up ahead of the one that reads, both
 * on queues of their own beside compute. Slots of the place SLOT_SHARED have buffers of bytes_bound from the
 * beginning, into which peers of the same node write (local.c). KV caches are made when a program first uses
 * them and freed by ops_forget_caches.
 *
 * On the wire of a pair, a stream of each instr_tag has its own mesh queue, and each group has one.
 *
 * Threads: create, connect, run and destroy on one thread (the device's); transport callbacks come on the
 * mesh's, copies are waited for on the courier's. */
#ifndef MOTLEY_WORKER_OPS_H
#define MOTLEY_WORKER_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "mesh/mesh.h"
#include "program/program.h"
#include "worker/batch.h"
#include "worker/exec.h"
#include "worker/stages.h"

struct ops;

/* Mesh queues of a pair: tags use their own number, links within a node one, the groups that hold both ranks
 * 16 and up in the plan's order (more than OPS_QUEUE_GROUP_COUNT of a pair are refused), the worker itself
 * the last. */
enum { OPS_QUEUE_LOCAL = 15, OPS_QUEUE_GROUPS = 16, OPS_QUEUE_GROUP_COUNT = 47, OPS_QUEUE_WORKER = 63 };
_Static_assert((int)TAG_COUNT <= (int)OPS_QUEUE_LOCAL, "each tag has a queue");
_Static_assert(OPS_QUEUE_GROUPS + OPS_QUEUE_GROUP_COUNT <= OPS_QUEUE_WORKER &&
                   (int)OPS_QUEUE_WORKER < (int)MESH_QUEUES,
               "no queue has two uses");

struct ops_options {
    const struct plan *plan; /* borrowed until ops_destroy; already checked */
    uint32_t rank;
    struct device *device;
    struct stages *stages; /* of the rank */
    struct mesh *mesh;     /* NULL when the rank has no peers */
    uint32_t hidden;       /* of the model: a boundary tensor is [tokens, hidden] */
    uint32_t vocab;
    uint64_t wait_ns;                        /* deadline of one transfer, and of a run without progress */
    int (*save)(void *arg, struct err *err); /* OP_SAVE; may be NULL */
    void *save_arg;
    void (*log)(void *arg, const char *level, const char *text); /* lines of the job's log; may be NULL */
    void *log_arg;
};

/* What one execution of a program is given and gives. */
struct ops_step {
    /* in */
    uint64_t step;
    uint32_t control; /* enum plan_control, raised by this rank */
    double learning_rate, beta1, beta2, eps, weight_decay;
    double vector_decay; /* of norms and biases */
    double router_scale; /* of the load-balancing loss, as struct micro_batch has it */
    double clip_norm;    /* 0: no clipping */
    double loss_scale;   /* of the sums that stages add up, a power of two; 0: 1 */
    double temperature;  /* 0: greedy */
    uint64_t seed;       /* of sampling */
    uint64_t position;   /* of the token to be sampled */
    uint64_t wait_ns;    /* instead of the options' wait_ns; 0: that */
    /* out */
    int32_t token;                /* sampled or received; -1 when this rank did not learn it */
    struct plan_step_scalars sum; /* over all ranks, if the program reduces them; else this rank's */
    double norm;                  /* of the gradient before clipping; 0 without a STEP */
    bool stepped;                 /* STEP was done */
    bool loss_lost;        /* the loss is not finite; else, with CONTROL_NOT_FINITE, the gradients are */
    struct err not_finite; /* code ERR_NOT_FINITE when this rank found such a value */
};

/* Makes slots and executors for all programs of the rank. ERR_UNSUPPORTED names an op; ERR_NOMEM; ERR_INVALID
 * a slot that does not fit its use. */
int ops_create(const struct ops_options *options, struct ops **out, struct err *err);
/* When the mesh is connected, before the first program: agree on links within the node. */
int ops_connect(struct ops *ops, uint64_t deadline_ns, struct err *err);
/* Before the mesh says goodbye, or ends: no copy is under way any more, none begins, nothing is sent of them.
 * Only ops_destroy may follow. NULL is a no-op. */
void ops_stop(struct ops *ops);
/* Bytes of boundary tensors that were sent within the node. */
uint64_t ops_local_bytes(const struct ops *ops);
/* After mesh_destroy, when a run failed: operations may have been under way. */
void ops_destroy(struct ops *ops);

/* Execute program `kind` once. All ranks must execute the same programs in the same order. -1: the first
 * error; then only mesh_destroy and ops_destroy may follow. A value that is not finite is no error:
 * sum.control says CONTROL_NOT_FINITE on every rank, not_finite the tensor on the one that found it, and STEP
 * is left out. */
int ops_run(struct ops *ops, enum program_kind kind, const struct batch *batch, struct ops_step *step,
            struct err *err);

/* End a run under way from another thread. */
void ops_fail(struct ops *ops, const struct err *failure);

/* Free the KV caches of all slots: between samples nothing needs their memory. */
void ops_forget_caches(struct ops *ops);

/* Of the last run: times by instruction (borrowed until the next), totals, and how many instructions. */
const struct exec_time *ops_times(const struct ops *ops, enum program_kind kind);
struct exec_totals ops_totals(const struct ops *ops, enum program_kind kind);

#endif
