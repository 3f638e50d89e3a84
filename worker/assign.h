/* An assignment (docs/CONTRACTS.md, `assign`, with the agent's `local`), read and checked field by field.
 *
 * Everything a worker is told comes through here: numbers in range, the plan in shape and, by
 * program/check/check.h, executable, this rank and its device in it, blobs named by 64 hex digits, files by
 * plain names. Strings are borrowed from the document, which the assignment owns. Immutable once read. */
#ifndef MOTLEY_WORKER_ASSIGN_H
#define MOTLEY_WORKER_ASSIGN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "mesh/mesh.h"
#include "model/fetch.h"
#include "model/spec.h"
#include "program/program.h"

/* What the agent adds: this node and this device. */
struct local_part {
    const char *device;             /* "left/cpu0" */
    const char *kind;               /* "cpu", "cuda", "hip", "emulated" */
    uint32_t index;                 /* of a card */
    const char *isa;                /* or NULL: MOTLEY_ISA */
    uint32_t threads;               /* 1..64 */
    uint64_t memory_limit_bytes;    /* 0: none */
    const char *listen, *advertise; /* advertise: host for peers, or NULL */
    const char *identity, *cert, *key, *ca;
    const char *api, *api_ca, *token; /* api_ca, token: or NULL */
    const char *cache;                /* or NULL */
    uint64_t cache_limit_bytes;
};

struct model_part {
    const char *name, *content; /* content: 64 hex digits, or NULL */
    struct fetch_file *files;   /* [file_count] */
    uint32_t file_count;
    const char *path; /* a folder or file on this node that may be the same model, or NULL */
};

struct assignment {
    json_t *document;
    int64_t job, run, attempt, epoch;
    uint32_t rank;
    struct plan *plan;
    struct job_spec spec;
    struct model_part model;
    struct local_part local;
    const char *train, *eval; /* blobs of encoded rows; eval NULL: none */
    const char *format;       /* what `data.format: auto` turned out to be, or NULL */
    const char *rows_said, *rows_first; /* for the log: what the rows are, and the first one marked; or NULL */
    const json_t *sample_ids; /* the rendered prompt, or NULL */
    uint64_t start_step;      /* first step to do */
    uint64_t reported_steps;  /* steps below this were reported by an earlier attempt */
    const json_t *checkpoint; /* {file name: sha256}, or NULL: from the beginning */
    double best_loss;         /* held-out loss of the best checkpoint so far; infinite: none */
    const json_t *adapter;    /* {file name: sha256} to start from, or NULL */
    uint64_t wait_ns;         /* of one transfer, and of a step without progress */
    uint64_t save_wait_ns;    /* … where another rank may be storing its part of a checkpoint */
    uint32_t rank_count;
    const char **nodes; /* [rank_count] node of each rank */
};

/* Read an `assign` (takes the document, also on error). Releases nothing on success: assignment_destroy.
 * ERR_INVALID with the path, ERR_NOFIT from the checker, ERR_CORRUPT for a plan whose digest does not match.
 */
int assignment_read(json_t *document, struct assignment **out, struct err *err);
void assignment_destroy(struct assignment *assignment);

/* Read `local` of an `assign` or `profile` message (strings borrowed from it). */
int local_read(const json_t *message, struct local_part *local, struct err *err);
/* Read a `model` object; free(model->files) releases. */
int model_part_read(const json_t *object, struct model_part *model, struct err *err);

/* The emulated link towards a rank; zeros when there is none. */
struct mesh_link assignment_link(const struct assignment *assignment, uint32_t peer);

/* "…" is 64 lower-case hex digits, perhaps behind "sha256:": returns the digits, or NULL. */
const char *blob_name(const char *text);

#endif
