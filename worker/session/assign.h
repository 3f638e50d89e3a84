/* An assignment: the `assign` message (docs/CONTRACTS.md) with the agent's `local`, checked field by field.
 *
 * Everything a worker is told is checked here: numbers are in range, the plan is well formed and executable
 * (program/check/check.h) and has this rank on this device, blobs are named by 64 hex digits, files have
 * plain names. Strings are borrowed from the document, which the assignment owns. An assignment does not
 * change after it was read.
 */
#ifndef MOTLEY_WORKER_SESSION_ASSIGN_H
#define MOTLEY_WORKER_SESSION_ASSIGN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "engine/device/backend.h"
#include "mesh/mesh.h"
#include "model/files/fetch.h"
#include "model/job/spec.h"
#include "program/program.h"

/* Whether a worker is confined (start/reach.h). AUTO: as far as the kernel can. REQUIRED: or does not work.
 */
enum local_sandbox { LOCAL_SANDBOX_AUTO, LOCAL_SANDBOX_REQUIRED, LOCAL_SANDBOX_OFF };

/* What the agent adds to an assignment: this node and this device. */
struct local_part {
    const char *device;             /* "left/cpu0" */
    const char *kind;               /* "cpu", "cuda", "hip", "emulated", "paced" */
    struct device_pace pace;        /* of a paced device */
    uint32_t index;                 /* number of the card on its node, from 0 */
    const char *isa;                /* instruction set of the CPU kernels; NULL: as MOTLEY_ISA says */
    uint32_t threads;               /* 1..64 */
    uint64_t memory_limit_bytes;    /* 0: no limit */
    const char *listen, *advertise; /* listen: "host:port"; advertise: host that peers are told, or NULL */
    const char *identity, *cert, *key, *ca;
    const char *api, *api_ca, *token; /* api_ca and token may be NULL */
    const char *cache;                /* folder of the node's chunk cache, or NULL */
    uint64_t cache_limit_bytes;
    const char *home; /* the agent's folder, or NULL */
    int sandbox;      /* enum local_sandbox */
    int64_t
        start_ns; /* of a measurement: the common start, on this machine's CLOCK_MONOTONIC; 0: not given */
};

struct model_part {
    const char *name, *content; /* content: 64 hex digits, or NULL */
    const char *base;           /* what an adapter's config names as its base */
    const char *revision;       /* of a base on the hub, or NULL */
    struct fetch_file *files;   /* [file_count] */
    uint32_t file_count;
    const char *path; /* a folder or file on this node that may hold the same model, or NULL */
};

struct assignment {
    json_t *document;
    int64_t job, run, attempt, epoch;
    uint32_t rank;
    struct plan *plan;
    struct job_spec spec;
    struct model_part model;
    struct local_part local;
    const char *train, *eval;           /* SHA-256 of the encoded rows; eval is NULL without held-out rows */
    const char *format;                 /* the format that `data.format: auto` turned out to be, or NULL */
    const char *rows_said, *rows_first; /* for the log: a description of the rows and the first row with its
                                           labelled part marked; or NULL */
    const json_t *sample_ids;           /* the rendered prompt, or NULL */
    uint64_t start_step;                /* first step that this attempt does */
    uint64_t reported_steps;            /* steps below this were reported by an earlier attempt */
    /* {file name: sha256} of the checkpoint to resume from; NULL: start from step 0 */
    const json_t *checkpoint;
    double best_loss;      /* held-out loss of the best checkpoint so far; infinite: there is none */
    const json_t *adapter; /* {file name: sha256} of the adapter to start from, or NULL */
    uint64_t wait_ns;      /* limit for one transfer and for a step without progress */
    uint64_t save_wait_ns; /* the same limit while another rank may be storing its part of a checkpoint */
    /* most bytes of a checkpoint's files that wait in memory; also most bytes of values in one file */
    uint64_t checkpoint_bytes;
    uint32_t rank_count;
    const char **nodes; /* [rank_count] name of each rank's node */
};

/* Reads an `assign` message. Takes the document, also on error; release with assignment_destroy. ERR_INVALID
 * with the path of the field, ERR_NOFIT from the plan checker, ERR_PEER for a plan that is missing, changed
 * in transit, or the slice of another rank or plan. */
int assignment_read(json_t *document, struct assignment **out, struct err *err);
void assignment_destroy(struct assignment *assignment);

/* Reads `local` of an `assign`, `profile` or `prove` message. The strings are borrowed from the message.
 * ERR_NODE: the node's agent wrote something else than this worker reads. */
int local_read(const json_t *message, struct local_part *local, struct err *err);
/* Opens the device that `local` describes, as device_open does; what that refuses as invalid or unsupported
 * is ERR_NODE here. */
int local_device_open(const struct local_part *local, struct device **out, struct err *err);
/* Reads a `model` object. The caller frees model->files. */
int model_part_read(const json_t *object, struct model_part *model, struct err *err);

/* Returns the link that the mesh emulates towards rank `peer`; all fields are zero when the assignment names
 * none. */
struct mesh_link assignment_link(const struct assignment *assignment, uint32_t peer);

/* Returns the 64 hex digits of a SHA-256, given with or without "sha256:" in front; NULL for other text. */
const char *blob_name(const char *text);

#endif
