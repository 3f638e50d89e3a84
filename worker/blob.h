/* Blobs of the artifact store: bytes by SHA-256, over HTTPS with the agent's token.
 *
 * A server that is away for a while (restarted, overloaded, behind a link that breaks) is asked again, with
 * growing pauses, until patience_ns have passed without a byte more or *cancel is true; what came across is
 * not sent again. However slow, what moves goes on. Blocking; one thread. */
#ifndef MOTLEY_WORKER_BLOB_H
#define MOTLEY_WORKER_BLOB_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct blobs;

struct blobs_options {
    const char *api, *ca, *token; /* copied; ca and token may be NULL */
    uint64_t patience_ns;         /* 0: 120 s */
    const atomic_bool *cancel;    /* or NULL */
};

/* No request yet. ERR_NOMEM, ERR_INVALID for an address that is none. */
int blobs_open(const struct blobs_options *options, struct blobs **out, struct err *err);
/* NULL is a no-op. */
void blobs_close(struct blobs *blobs);

/* No patience from now on: what is under way ends with the next bytes that move. Any thread. */
void blobs_give_up(struct blobs *blobs);

/* Appends the blob to `out` (its limit holds). ERR_PEER when the bytes do not hash as asked. */
int blobs_get(struct blobs *blobs, const char *sha256, struct buf *out, struct err *err);

/* Stores the bytes and writes their name to sha256. Storing what is there already is success. */
int blobs_put(struct blobs *blobs, const void *data, size_t size, char sha256[65], struct err *err);
/* The same with a file's, read piece by piece; *size: its bytes. */
int blobs_put_file(struct blobs *blobs, const char *path, char sha256[65], uint64_t *size, struct err *err);

#endif
