/* One run of one rank: everything the parts of the worker share once an assignment was accepted. Owned by the
 * main thread, which is also the device's; the link's thread touches only `stop` and, to kill, mesh_abort and
 * ops_fail; the saver's thread only `blobs`, the mesh's queue for checkpoints and what never changes.
 *
 * Reading order: worker.c (life), setup.c (making this), train.c (the steps), state.c
 * (checkpoints), saver.c (their thread), report.c (events). */
#ifndef MOTLEY_WORKER_SESSION_H
#define MOTLEY_WORKER_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/stage.h"
#include "mesh/mesh.h"
#include "model/order.h"
#include "model/peft.h"
#include "model/rows.h"
#include "model/tensors.h"
#include "program/trace.h"
#include "worker/assign.h"
#include "worker/batch.h"
#include "worker/blob.h"
#include "worker/link.h"
#include "worker/ops.h"
#include "worker/scale.h"
#include "worker/stages.h"

/* Chunks of the model's files (4 MiB each) kept while its weights are loaded: a layer is read in about the
 * file's order, so few are enough. They stand beside the stage's whole memory, and profiles count them into a
 * process's base. */
enum { SESSION_RESIDENT_CHUNKS = 2 };
/* How long an artifact store that does not answer is waited for when a model is read. */
enum { SESSION_FETCH_PATIENCE_S = 120 };

/* Set by the link's thread and by signals, read by the main thread between steps. */
struct stop_request {
    atomic_bool asked;      /* end after a step, all ranks together */
    atomic_bool checkpoint; /* … and save first */
    atomic_bool yield;      /* … to be started again elsewhere */
    atomic_bool kill;       /* end at once */
};

struct saver; /* saver.h */

struct session {
    struct worker_link *link; /* borrowed from the worker */
    struct stop_request *stop;
    struct assignment *assignment;
    struct blobs *blobs;
    struct model *model; /* NULL once the stages are loaded and nothing else needs it */
    struct model_config config;
    struct device *device;
    struct stages stages;
    struct rows *train, *eval; /* eval NULL: none */
    struct mesh *mesh;         /* NULL: alone */
    struct ops *ops;
    struct batch batch;
    struct order order;
    uint64_t steps;    /* in all, as the specification has it */
    uint32_t *numbers; /* [batch_rows] row numbers of a step */
    int32_t *prompt;   /* rendered sample prompt, on the rank that holds block 0 (others: its length is what
                          counts) */
    uint32_t prompt_count;
    struct tokenizer *tokenizer; /* on that rank, if the model has one; NULL */
    struct loss_scale scale;
    double best_loss;            /* held-out loss of the best checkpoint so far */
    uint64_t begin_ns;           /* session_open */
    int32_t parent, children[2]; /* in the tree of group 0; PLAN_NONE */
    uint64_t process_base_bytes; /* VmRSS before anything was allocated */
    uint64_t steps_done;         /* by all attempts together */
    struct saver *saver;
    bool just_saved;    /* since the last program: another rank may still be storing the checkpoint before */
    struct trace trace; /* of the step under way, if it is one of the sample */
    uint64_t alone_ns;  /* the run ends after so long without an agent */
};

/* setup.c. Everything up to `worker_ready`; on error the session is closed. Takes the assignment. */
int session_open(struct worker_link *link, struct stop_request *stop, struct assignment *assignment,
                 struct session **out, struct err *err);
/* The model's files, as the assignment names them, into session->model; its config into session->config. */
int session_model_open(struct session *session, struct err *err);
/* Connect with the peers that the program names; `peers` is the message, NULL when alone. */
int session_connect(struct session *session, const json_t *peers, struct err *err);
/* clean: say goodbye to the peers first. */
void session_close(struct session *session, bool clean);
/* End whatever runs, from the link's thread. */
void session_kill(struct session *session);

/* train.c. Returns 0 with *stopped_at set when a stop ended it before the last step (UINT64_MAX: it
 * ran to the end), *saved if a checkpoint of that step was written; artifacts: new, on rank 0 after the last
 * step, else NULL. */
int session_train(struct session *session, uint64_t *stopped_at, bool *saved, json_t **artifacts,
                  struct err *err);

/* train.c: what OP_SAVE calls; arg is the session. */
int session_save(void *arg, struct err *err);

/* state.c. A copy of what this rank holds of the state before step `step`. snapshot_create: NULL, no
 * memory. Taking it fails into the copy, which is then stored as a failure: the other ranks wait for our
 * part. */
struct snapshot;
struct snapshot *snapshot_create(void);
void snapshot_destroy(struct snapshot *snapshot);
void snapshot_take(struct session *session, uint64_t step, struct snapshot *snapshot);
/* Any one thread; touches no stage, uses the session's blobs. Every rank uploads its optimiser part, adapters
 * go over the tree to rank 0, which uploads them with the rest and sets *blobs to {file name: {sha256, size}}
 * (new); NULL on other ranks. Empties the copy. */
int snapshot_store(struct session *session, struct snapshot *snapshot, json_t **blobs, struct err *err);
/* Load what the assignment starts from, if anything, into the stage: by name, whatever split wrote it. */
int state_load(struct session *session, struct err *err);

/* result.c. On rank 0, from the files of the last checkpoint: what the specification's `result` asks for,
 * stored; *artifacts: new, {name: {sha256, size}}. */
int result_store(struct session *session, const json_t *blobs, json_t **artifacts, struct err *err);
/* state.c. Most bytes of host memory while a checkpoint is stored or loaded, where it is not copied first; 0:
 * it is. */
uint64_t state_streamed_bytes(const struct session *session);
/* Bytes of a file into the artifact store and into blobs[name]. */
int state_put_file(struct session *session, json_t *blobs, const char *name, const void *data, size_t size,
                   struct err *err);
/* peft.c. adapter_config.json of the specification's method, new. */
json_t *adapter_config(const struct job_spec *spec, const struct model_config *model, const char *base_model,
                       struct err *err);
/* Refuse an adapter that is not one of this model and method. */
int adapter_check(const struct buf *config_json, const struct buf *safetensors,
                  const struct model_config *config, const struct job_spec *spec, struct err *err);

/* report.c: events. */
/* True on the one rank that reports steps, evaluations and samples: the first that owns the head. */
bool session_reports(const struct session *session);
struct exec_totals;
/* scale: of the step's loss, 0 where there is none. */
int report_step(struct session *session, const struct ops_step *step, double scale, double seconds,
                struct err *err);
int report_ranks(struct session *session, uint64_t step, const struct exec_totals *totals, struct err *err);
int report_trace(struct session *session, uint64_t step, struct err *err);
int report_eval(struct session *session, uint64_t step, double loss, uint64_t labelled, double seconds,
                struct err *err);
int report_sample(struct session *session, uint64_t step, const int32_t *ids, uint32_t count,
                  struct err *err);
int report_memory(struct session *session, struct err *err);
int report_log(struct worker_link *link, const char *level, const char *text, struct err *err);
/* Bytes of VmHWM and VmRSS of this process; 0 where unknown. */
uint64_t process_peak_bytes(void);
uint64_t process_resident_bytes(void);

#endif
