/* Models and data sets of the Hugging Face Hub, or of a server that answers as it does: found in the cache
 * that Hugging Face's own tools use, or fetched into it.
 *
 * The cache is huggingface_hub's: CACHE/models--OWNER--NAME/ has blobs/ETAG (the bytes; the ETag is the
 * SHA-256 of a large file and Git's hash of a small one), snapshots/COMMIT/FILE (links to blobs) and
 * refs/REVISION (a commit). What its tools fetched is found here, and the reverse. A blob appears under its
 * name only when its size and hash are right; a fetch that was cut goes on where it was. A revision's ref is
 * written when all of its files are there.
 *
 * Blocking; never for an event loop. No state between calls; any thread.
 */
#ifndef MOTLEY_HUB_HUB_H
#define MOTLEY_HUB_HUB_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "hub/name.h"

enum { HUB_PATH_BYTES = 4096, HUB_COMMIT_BYTES = 65, HUB_TOKEN_BYTES = 256 };

/* Which hub, which cache, and who asks. */
struct hub_place {
    char endpoint[512]; /* "https://huggingface.co" */
    char cache[HUB_PATH_BYTES];
    char token[HUB_TOKEN_BYTES];     /* "": none */
    char token_from[HUB_PATH_BYTES]; /* the variable or file that has it, for messages */
    char ca_file[HUB_PATH_BYTES];    /* PEM of CAs instead of the system's; "": none */
    uint64_t bytes_max;              /* of what is fetched together; 0: no limit */
    bool offline;                    /* the cache alone is used */
};

/* Fills a place as Hugging Face's tools do, from HF_ENDPOINT, HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME,
 * HF_TOKEN, HF_TOKEN_PATH and HF_HUB_OFFLINE; ca_file from SSL_CERT_FILE. ERR_INVALID names the variable that
 * is wrong. */
int hub_place_read(struct hub_place *place, struct err *err);

/* How a fetch is followed. Functions may be NULL. */
struct hub_watch {
    /* 'done' of 'total' bytes are there, of all files; 'file' is being fetched */
    void (*moved)(void *arg, const char *file, uint64_t done, uint64_t total);
    void (*note)(void *arg, const char *sentence); /* a wait, a new name */
    bool (*stopped)(const void *arg);              /* asked often; true ends the fetch with ERR_CANCELLED */
    void *arg;
};

enum hub_part {
    HUB_WHOLE,       /* all that training needs */
    HUB_DESCRIPTION, /* config and tokenizer; weights only where they are the config, as in a GGUF */
    HUB_TRAIN_ROWS,  /* the file of a data set to train on, when the name has no file */
    HUB_EVAL_ROWS    /* and the one to evaluate on */
};

struct hub_found {
    char path[HUB_PATH_BYTES]; /* the snapshot's folder, or the file that was named */
    char commit[HUB_COMMIT_BYTES];
    uint32_t files; /* of a fetch: how many make it, and their bytes */
    uint64_t bytes;
    uint64_t fetched_bytes; /* bytes that came over the network */
};

/* Finds a name in the cache, without a network. ERR_NOT_FOUND when it is not all there; of a data set without
 * a file always, since the cache does not tell which of its files is meant. */
int hub_find(const struct hub_place *place, const struct hub_name *name, enum hub_part part,
             struct hub_found *found, struct err *err);

/* Asks the hub what the revision is now, and fetches what the cache lacks. 'watch' may be NULL. Errors are
 * one sentence each: ERR_NOT_FOUND (no such repository, revision or file), ERR_AUTH, ERR_DENIED (private,
 * gated), ERR_BUSY (asked too often), ERR_NET, ERR_TIMEOUT, ERR_CORRUPT (other bytes than the hub says),
 * ERR_IO, ERR_INVALID, ERR_UNSUPPORTED (no model that can be read), ERR_CANCELLED. */
int hub_fetch(const struct hub_place *place, const struct hub_name *name, enum hub_part part,
              const struct hub_watch *watch, struct hub_found *found, struct err *err);

#endif
