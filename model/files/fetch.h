/* A model source over the artifact store: byte ranges by HTTP, verified chunk by chunk, cached per node.
 *
 * `GET <api>/v1/blobs/<sha256>/manifest` gives a file's chunk hashes, `GET <api>/v1/blobs/<sha256>` with
 * Range its bytes. Chunks are fetched when a read first touches them, so a rank transfers only what its
 * blocks need. Each is compared with its hash before a byte of it is used, also when it comes from the cache
 * or from a local path.
 *
 * The cache is a folder of files named by chunk hash, shared by all processes of a node: files appear by
 * rename, readers keep what they mapped, the least recently used go when the folder grows past its limit. A
 * cache that cannot be written is done without. Files that are given a local path are read from there and
 * verified the same.
 */
#ifndef MOTLEY_MODEL_FILES_FETCH_H
#define MOTLEY_MODEL_FILES_FETCH_H

#include <stdatomic.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/files/source.h"

struct fetch_file {
    const char *name;   /* plain file name */
    uint64_t size;      /* bytes */
    const char *sha256; /* of the whole file, 64 hex digits */
    const char *path;   /* a local file to read instead of the network, or NULL */
};

/* How bytes are got: GET path (such as "/v1/blobs/…"), bytes [offset, offset + size) appended to 'out'; size
 * 0 asks for the whole document, at most 'limit' bytes. Called by one thread at a time. */
struct fetch_transport {
    int (*get)(void *self, const char *path, uint64_t offset, uint64_t size, uint64_t limit, struct buf *out,
               struct err *err);
    void (*destroy)(void *self); /* may be NULL */
    void *self;
};

struct fetch_options {
    const struct fetch_file *files;
    uint32_t file_count;
    const char *content;        /* content id the manifests must add up to, 64 hex digits, or NULL */
    const char *cache_dir;      /* or NULL: no cache on disk */
    uint64_t cache_limit_bytes; /* >= 64 MiB when there is a cache */
    uint32_t resident_chunks;   /* chunks kept in memory; 0: 4 (16 MiB) */
    /* A request that fails for the moment (common/retry.h) is made again, with growing pauses, until so long
     * nothing was got or *stop is true. */
    double patience_s;       /* 0: it is not */
    const atomic_bool *stop; /* borrowed until the source is closed; or NULL */
};

/* A transport over common/http.h: base URL "https://host:port", bearer token and CA file (or NULL), seconds
 * that a request may go without a byte. Strings are copied. */
int fetch_transport_http(const char *base_url, const char *token, const char *ca_file, double idle_s,
                         struct fetch_transport *transport, struct err *err);

/* Fetch the manifests and open. Takes the transport, also on error. Errors: ERR_CORRUPT (a manifest that
 * contradicts name, size or content id), ERR_NET, ERR_NOT_FOUND, ERR_AUTH as the server said. */
int model_source_open_fetched(const struct fetch_options *options, struct fetch_transport *transport,
                              struct model_source **source, struct err *err);

#endif
