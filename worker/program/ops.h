/* What the instructions of a program do on one rank: they work on slots, the stages, the mesh and
 * collectives.
 *
 * exec.h decides when an instruction runs; ops decides, by opcode and slot kind, what it does. Neither knows
 * the placement: FORWARD and BACKWARD (whole or in halves) run the stages, SEND and RECV use the mesh,
 * collectives reduce in an order that follows from their group. ops_check.c refuses by name what this worker
 * does not do.
 *
 * Slots. An instance of a boundary slot gets a device buffer (MEM_BUFFERS) of its micro-batch's size when it
 * is first needed and reuses it as long as the slot stays within its bytes_total. Slots that travel over the
 * mesh also have page-locked host memory of bytes_bound. A boundary tensor is copied to the host after the
 * instruction that wrote it and to the device before the instruction that reads it; both copies run on device
 * queues of their own, in parallel with compute. Slots of the place SLOT_SHARED have buffers of bytes_bound
 * from the start, into which peers of the same node write (local.c). KV caches are made when a program first
 * uses them and are freed by ops_forget_caches.
 *
 * Between two ranks each instr_tag has a mesh queue of its own, and so has each group.
 *
 * Threads: one thread, the device's, calls create, connect, run and destroy. Callbacks of the transport come
 * on the mesh's threads; the courier's thread waits for copies.
 */
#ifndef MOTLEY_WORKER_PROGRAM_OPS_H
#define MOTLEY_WORKER_PROGRAM_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "mesh/mesh.h"
#include "program/program.h"
#include "worker/program/batch.h"
#include "worker/program/exec.h"
#include "worker/program/stages.h"

struct ops;

/* Numbers of the mesh queues between two ranks: a tag uses its own number, links within a node use
 * OPS_QUEUE_LOCAL, the groups that contain both ranks use OPS_QUEUE_GROUPS and up in the plan's order (more
 * than OPS_QUEUE_GROUP_COUNT are refused), checkpoints use OPS_QUEUE_WORKER. */
enum { OPS_QUEUE_LOCAL = 15, OPS_QUEUE_GROUPS = 16, OPS_QUEUE_GROUP_COUNT = 47, OPS_QUEUE_WORKER = 63 };
_Static_assert((int)TAG_COUNT <= (int)OPS_QUEUE_LOCAL, "each tag has a queue");
_Static_assert(OPS_QUEUE_GROUPS + OPS_QUEUE_GROUP_COUNT <= OPS_QUEUE_WORKER &&
                   (int)OPS_QUEUE_WORKER < (int)MESH_QUEUES,
               "no queue has two uses");

struct ops_options {
    const struct plan *plan; /* borrowed until ops_destroy; plan_check has accepted it */
    uint32_t rank;
    struct device *device;
    struct stages *stages; /* stages of the rank */
    struct mesh *mesh;     /* NULL when the rank has no peers */
    uint32_t hidden;       /* hidden size of the model: a boundary tensor is [tokens, hidden] */
    uint32_t vocab;
    uint64_t wait_ns;                        /* limit for one transfer and for a run without progress */
    int (*save)(void *arg, struct err *err); /* called for INSTR_SAVE; may be NULL */
    void *save_arg;
    /* writes a line to the job's log; may be NULL */
    void (*log)(void *arg, const char *level, const char *text);
    /* told what a run waits for (exec.h); may be NULL */
    void (*waits)(void *arg, const char *what);
    void *log_arg; /* of both */
};

/* Inputs and outputs of one execution of a program. */
struct ops_step {
    /* inputs */
    uint64_t step;
    uint32_t control; /* enum plan_control bits that this rank raises */
    double learning_rate, beta1, beta2, eps, weight_decay;
    double vector_decay; /* weight decay of norms and biases */
    double router_scale; /* weight of the load-balancing loss, as in struct micro_batch */
    double clip_norm;    /* 0: no clipping */
    double loss_scale;   /* factor of the gradients that stages accumulate, a power of two; 0 means 1 */
    double temperature;  /* 0: greedy */
    uint64_t seed;       /* seed for sampling */
    uint64_t position;   /* position of the token to be sampled */
    uint64_t wait_ns;    /* limit for this execution; 0 means the options' wait_ns */
    /* outputs */
    int32_t token;                /* token sampled or received; -1 when this rank did not learn it */
    struct plan_step_scalars sum; /* sums over all ranks if the program reduces them, else this rank's */
    double norm;                  /* gradient norm before clipping; 0 without a STEP */
    bool stepped;                 /* STEP updated the parameters */
    /* the loss is not finite; when false and CONTROL_NOT_FINITE is set, the gradients are not finite */
    bool loss_lost;
    struct err not_finite; /* has code ERR_NOT_FINITE when this rank found a value that is not finite */
};

/* Makes the slots' buffers and the executors of all programs of the rank. ERR_UNSUPPORTED names an opcode;
 * ERR_INVALID a slot that does not fit its use; ERR_NOMEM. */
int ops_create(const struct ops_options *options, struct ops **out, struct err *err);
/* Agrees with peers on links within the node. Call it when the mesh is connected, before the first
 * program. */
int ops_connect(struct ops *ops, uint64_t deadline_ns, struct err *err);
/* Ends all copies between device and host, so that none begins later or sends a message. Call it before the
 * mesh is closed; only ops_destroy may follow. NULL is a no-op. */
void ops_stop(struct ops *ops);
/* Returns the number of bytes of boundary tensors that were sent over links within the node. */
uint64_t ops_local_bytes(const struct ops *ops);
/* Frees everything. Call mesh_destroy first when a run failed, because transfers may still be under way. */
void ops_destroy(struct ops *ops);

/* Executes program `kind` once. All ranks must execute the same programs in the same order. -1 with the first
 * error; then only mesh_destroy and ops_destroy may follow. A value that is not finite is not an error:
 * sum.control has CONTROL_NOT_FINITE on every rank, not_finite names the tensor on the rank that found it,
 * and STEP changes nothing. */
int ops_run(struct ops *ops, enum program_kind kind, const struct batch *batch, struct ops_step *step,
            struct err *err);

/* Ends the run under way, or the next one, from another thread. */
void ops_fail(struct ops *ops, const struct err *failure);

/* In an expert plan, on a rank with attention: writes how many of this rank's tokens chose each expert of a
 * layer (counted from 0; all 0 for a dense layer) in the training steps since the last call, and returns the
 * number of experts. With counts NULL it only returns that number. Returns 0 on other ranks. */
uint32_t ops_take_routing(struct ops *ops, uint32_t layer, uint64_t *counts);

/* Frees the KV caches of all slots: nothing needs their memory between samples. */
void ops_forget_caches(struct ops *ops);

/* Times of the last run by instruction (borrowed until the next run), and its totals. */
const struct exec_time *ops_times(const struct ops *ops, enum program_kind kind);
struct exec_totals ops_totals(const struct ops *ops, enum program_kind kind);

#endif
