/* A client of the artifact store: blobs are named by their SHA-256 and travel over HTTPS with the agent's
 * token.
 *
 * A request to a server that is away for a while (restarted, overloaded, behind a broken link) is repeated
 * with growing pauses until patience_ns have passed without one more byte or *cancel is true. A repeated
 * download asks only for the bytes that are missing. A transfer that is slow but moves is never given up.
 * Calls block; one thread uses a client.
 */
#ifndef MOTLEY_WORKER_SESSION_BLOB_H
#define MOTLEY_WORKER_SESSION_BLOB_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct blobs;

struct blobs_options {
    const char *api, *ca, *token; /* copied; ca and token may be NULL */
    uint64_t patience_ns;         /* 0 means 120 s */
    const atomic_bool *cancel;    /* ends requests when it becomes true; may be NULL */
};

/* Makes a client without sending a request. ERR_NOMEM; ERR_NODE for an address that is not a URL. */
int blobs_open(const struct blobs_options *options, struct blobs **out, struct err *err);
/* NULL is a no-op. */
void blobs_close(struct blobs *blobs);

/* Sets the patience to zero: a request under way ends with ERR_CANCELLED when its next bytes arrive. Any
 * thread may call it. */
void blobs_give_up(struct blobs *blobs);

/* Appends the blob to `out`, within that buffer's limit. ERR_PEER when the bytes do not have the SHA-256
 * asked for. */
int blobs_get(struct blobs *blobs, const char *sha256, struct buf *out, struct err *err);
/* Waits until the blob can be read, for the client's patience: a file that another node stored for this run
 * can be read here once the checkpoint that names it was taken in. */
int blobs_await(struct blobs *blobs, const char *sha256, struct err *err);
/* Copies bytes [offset, offset + size) of the blob to dst. The caller verifies them: only the SHA-256 of the
 * whole blob is known here. */
int blobs_get_range(struct blobs *blobs, const char *sha256, uint64_t offset, size_t size, void *dst,
                    struct err *err);

/* Stores the bytes and writes their SHA-256 in hex. Storing bytes that the store already has is a success. */
int blobs_put(struct blobs *blobs, const void *data, size_t size, char sha256[65], struct err *err);
/* Stores `size` bytes with this SHA-256, which `read` copies to dst from any offset on, perhaps more than
 * once. */
typedef int blobs_read_fn(void *arg, uint64_t offset, void *dst, size_t size, struct err *err);
int blobs_put_read(struct blobs *blobs, const char *sha256, uint64_t size, blobs_read_fn *read, void *arg,
                   struct err *err);
/* Stores the content of a file, read piece by piece; *size is its length in bytes. */
int blobs_put_file(struct blobs *blobs, const char *path, char sha256[65], uint64_t *size, struct err *err);

#endif
