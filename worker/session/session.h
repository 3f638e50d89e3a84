/* One run of one rank: the state that the parts of the worker share after an assignment was accepted. The
 * main thread, which is also the device's, owns it. The link's thread touches only `stop` and, to kill,
 * mesh_abort and ops_fail. The saver's thread uses only `blobs`, the mesh queue for checkpoints, and fields
 * that never change.
 *
 * Reading order: worker.c (lifetime), setup.c (makes a session), train.c (the steps), state.c (checkpoints),
 * saver.c (the thread that stores them), report.c (events).
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
    atomic_bool yield;      /* end because the job is to be started again elsewhere */
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
    struct rows *train, *eval; /* eval is NULL without held-out rows */
    struct mesh *mesh;         /* NULL when the run has one rank */
    struct ops *ops;
    struct batch batch;
    struct order order;
    uint64_t steps;    /* number of steps of the whole job */
    uint32_t *numbers; /* [batch_rows] row numbers of a step */
    int32_t *prompt;   /* token ids of the sample prompt; ranks without block 0 use only their count */
    uint32_t prompt_count;
    struct tokenizer *tokenizer; /* turns samples into text on the rank that reports them; else NULL */
    struct loss_scale scale;
    double best_loss;            /* held-out loss of the best checkpoint so far */
    uint64_t begin_ns;           /* when session_open began */
    int32_t parent, children[2]; /* ranks in the tree of group 0; PLAN_NONE where there is none */
    uint64_t process_base_bytes; /* VmRSS before the session allocated anything */
    uint64_t steps_done;         /* steps done by all attempts together */
    struct saver *saver;
    bool just_saved;    /* a checkpoint was copied since the last program, so another rank may still store the
                           one before */
    struct trace trace; /* events of the step under way, if that step is traced */
    uint64_t alone_ns;  /* the run ends after so long without an agent */
};

/* setup.c: does everything up to the event `worker_ready`. On error the session is closed. Takes the
 * assignment. */
int session_open(struct worker_link *link, struct stop_request *stop, struct assignment *assignment,
                 struct session **out, struct err *err);
/* Opens the model's files that the assignment names: sets session->model and session->config. */
int session_model_open(struct session *session, struct err *err);
/* Connects to the peers that the programs name. `peers` is the message; NULL when the run has one rank. */
int session_connect(struct session *session, const json_t *peers, struct err *err);
/* Closes the session. `clean` closes the connections to the peers in an orderly way first. */
void session_close(struct session *session, bool clean);
/* Ends the program under way, from the link's thread. */
void session_kill(struct session *session);

/* train.c: runs the steps. Returns 0 with *stopped_at set to the steps done when a stop ended the run early,
 * else UINT64_MAX. *saved: a checkpoint of that step was written. *artifacts is new on rank 0 after the last
 * step, else NULL. */
int session_train(struct session *session, uint64_t *stopped_at, bool *saved, json_t **artifacts,
                  struct err *err);

/* train.c: the function that OP_SAVE calls; arg is the session. */
int session_save(void *arg, struct err *err);

/* state.c: a copy of this rank's training state before step `step`. snapshot_create returns NULL when memory
 * is short. A failure of snapshot_take is recorded in the copy and stored in its place, because the other
 * ranks wait for this rank's part. */
struct snapshot;
struct snapshot *snapshot_create(void);
void snapshot_destroy(struct snapshot *snapshot);
void snapshot_take(struct session *session, uint64_t step, struct snapshot *snapshot);
/* Stores a copy and empties it. One thread at a time may call it; it uses the session's blobs client and no
 * stage. Every rank uploads its optimiser part; adapters travel up the tree to rank 0, which uploads them
 * with the other files and sets *blobs to a new {file name: {sha256, size}}. *blobs is NULL on other ranks.
 */
int snapshot_store(struct session *session, struct snapshot *snapshot, json_t **blobs, struct err *err);
/* Loads the checkpoint or adapter that the assignment starts from, if any, into the stages. Tensors are found
 * by name, whatever split of ranks wrote them. */
int state_load(struct session *session, struct err *err);

/* result.c: makes and stores what the specification's `result` asks for, on rank 0, from the files of the
 * last checkpoint. *artifacts is a new {name: {sha256, size}}. */
int result_store(struct session *session, const json_t *blobs, json_t **artifacts, struct err *err);
/* state.c: the most host memory that storing or loading a checkpoint of a fully trained model takes, in
 * bytes; 0 for adapters, whose state is copied first. */
uint64_t state_streamed_bytes(const struct session *session);
/* Stores a file in the artifact store and adds it to `blobs` as `name`. */
int state_put_file(struct session *session, json_t *blobs, const char *name, const void *data, size_t size,
                   struct err *err);
/* peft.c: makes adapter_config.json for the specification's method (new). */
json_t *adapter_config(const struct job_spec *spec, const struct model_config *model, const char *base_model,
                       struct err *err);
/* Refuses an adapter that was made for another model or method. */
int adapter_check(const struct buf *config_json, const struct buf *safetensors,
                  const struct model_config *config, const struct job_spec *spec, struct err *err);

/* report.c: events. */
/* True on the one rank that reports steps, evaluations and samples: the first rank that has the model's head.
 */
bool session_reports(const struct session *session);
struct exec_totals;
/* scale is the loss scale of the step; 0 when there is none. */
int report_step(struct session *session, const struct ops_step *step, double scale, double seconds,
                struct err *err);
int report_ranks(struct session *session, uint64_t step, const struct exec_totals *totals, struct err *err);
int report_trace(struct session *session, uint64_t step, struct err *err);
int report_eval(struct session *session, uint64_t step, double loss, uint64_t labelled, double seconds,
                struct err *err);
int report_sample(struct session *session, uint64_t step, const int32_t *ids, uint32_t count,
                  struct err *err);
int report_memory(struct session *session, struct err *err);
/* Logs how many bytes went to other ranks and over which links. */
int report_links(struct session *session, struct err *err);
int report_log(struct worker_link *link, const char *level, const char *text, struct err *err);
/* VmHWM and VmRSS of this process in bytes; 0 when unknown. */
uint64_t process_peak_bytes(void);
uint64_t process_resident_bytes(void);

#endif
