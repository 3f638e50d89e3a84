/* One run of one rank: the state that the parts of the worker share after an assignment was accepted. The
 * main thread, which is also the device's, owns it. The link's thread touches only `stop` and, to kill,
 * mesh_abort and ops_fail. The saver's thread uses only `blobs`, the mesh queue for checkpoints, and fields
 * that never change.
 *
 * Reading order: worker.c (lifetime), setup.c (makes a session), train.c (the steps), checkpoint/README.md
 * (checkpoints), saver.c (the thread that stores them), report.c (events).
 */
#ifndef MOTLEY_WORKER_SESSION_SESSION_H
#define MOTLEY_WORKER_SESSION_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/stage/stage.h"
#include "mesh/mesh.h"
#include "model/job/order.h"
#include "model/adapters/peft.h"
#include "model/rows/rows.h"
#include "model/shape/tensors.h"
#include "program/trace.h"
#include "worker/session/assign.h"
#include "worker/program/batch.h"
#include "worker/session/blob.h"
#include "worker/session/link.h"
#include "worker/program/ops.h"
#include "worker/program/scale.h"
#include "worker/program/stages.h"

/* Number of chunks of the model's files (4 MiB each) that stay in memory while weights are loaded. Few are
 * enough, because a layer is read in nearly the order of the file. They are needed in addition to the stage's
 * full memory, so profiles count them in a process's base memory. */
enum { SESSION_RESIDENT_CHUNKS = 2 };
/* How long reading a model waits for an artifact store that does not answer. */
enum { SESSION_FETCH_PATIENCE_S = 120 };

/* Set by the link's thread and by signals, read by the main thread between steps. */
struct stop_request {
    atomic_bool asked;      /* end after a step, all ranks together */
    atomic_bool checkpoint; /* save a checkpoint before ending */
    atomic_bool save;       /* save a checkpoint after a step and go on */
    atomic_bool yield;      /* end because the job is to be started again elsewhere */
    atomic_bool kill;       /* end at once */
};

struct saver; /* saver.h */

/* The rows of a run and the batch that is cut from them. */
struct session_data {
    struct rows *train, *eval; /* eval is NULL without held-out rows */
    struct batch batch;
    struct order order;
    uint32_t *numbers; /* [batch_rows] row numbers of a step */
};

/* The sample that a run generates now and then. */
struct session_sample {
    int32_t *prompt; /* token ids; ranks without block 0 use only their count */
    uint32_t prompt_count;
    struct tokenizer *tokenizer; /* turns ids into text on the rank that reports samples; else NULL */
};

struct session_progress {
    uint64_t steps;      /* number of steps of the whole job */
    uint64_t steps_done; /* steps done by all attempts together */
    double best_loss;    /* held-out loss of the best checkpoint so far */
    /* a checkpoint was copied since the last program, so another rank may still store the previous one */
    bool just_saved;
    /* what failed after the last step, or ""; goes with `done` */
    char warnings[1000];
    bool programs_failed; /* a program failed after the last step: no other may follow */
};

/* Neighbours in the tree of group 0, over which checkpoints are gathered; PLAN_NONE where there is none. */
struct session_tree {
    int32_t parent, children[2];
};

struct session {
    struct worker_link *link; /* borrowed from the worker */
    const char *dir; /* folder of this process for files that wait to be stored, made when needed; borrowed */
    struct stop_request *stop;
    struct assignment *assignment;
    struct blobs *blobs;
    struct model *model; /* NULL once the stages are loaded and nothing else needs it */
    struct model_config config;
    struct device *device;
    struct stages stages;
    struct mesh *mesh; /* NULL when the run has one rank */
    struct ops *ops;
    struct session_data data;
    struct session_sample sample;
    struct session_progress progress;
    struct session_tree tree;
    struct loss_scale scale;
    struct saver *saver;
    struct trace trace;          /* events of the step under way, if that step is traced */
    uint64_t process_base_bytes; /* VmRSS before the session allocated anything */
    uint64_t alone_ns;           /* the run ends after this time without an agent */
};

#endif
