/* A model source over the artifact store: byte ranges by HTTP, verified chunk by chunk, cached per node.
 *
 * `GET <api>/v1/blobs/<sha256>/manifest` gives a file's chunk hashes, `GET <api>/v1/blobs/<sha256>` with a
 * Range header gives its bytes. A chunk is fetched when a read first touches it, so a rank transfers only
 * what its blocks need. Each chunk is compared with its hash before a byte of it is used, also when it comes
 * from the cache or from a local path.
 *
 * The cache is a folder of files named by chunk hash, shared by all processes of a node (chunk_cache.h). A
 * source whose cache cannot be written works without one. Files that are given a local path are read from
 * there and verified in the same way. */
#ifndef MOTLEY_MODEL_FILES_FETCH_H
#define MOTLEY_MODEL_FILES_FETCH_H

#include <stdatomic.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/files/source.h"

#define FETCH_SIZE_ANY UINT64_MAX /* takes the size from the manifest */
struct fetch_file {
    const char *name;   /* plain file name */
    uint64_t size;      /* bytes, or FETCH_SIZE_ANY: what the manifest says */
    const char *sha256; /* SHA-256 of the whole file, 64 hex digits */
    const char *path;   /* a local file to read instead of the network, or NULL */
};

/* How bytes are fetched. `get` requests bytes [offset, offset + size) of `path` (such as "/v1/blobs/…") and
 * appends them to 'out'; size 0 asks for the whole document, of at most 'limit' bytes. One thread at a time
 * calls it. */
struct fetch_transport {
    int (*get)(void *self, const char *path, uint64_t offset, uint64_t size, uint64_t limit, struct buf *out,
               struct err *err);
    void (*destroy)(void *self); /* may be NULL */
    void *self;
};

struct fetch_options {
    const struct fetch_file *files;
    uint32_t file_count;
    const char *content;        /* content id that the manifests must add up to, 64 hex digits, or NULL */
    const char *cache_dir;      /* folder of the cache on disk, or NULL: no cache */
    uint64_t cache_limit_bytes; /* >= 64 MiB when there is a cache */
    uint32_t resident_chunks;   /* chunks of 4 MiB kept in memory; 0 means 4 (16 MiB) */
    /* A request that fails for a passing reason (common/retry.h) is repeated with growing pauses, until no
     * bytes have arrived for patience_s seconds or *stop is true. */
    double patience_s;       /* 0: a request is never repeated */
    const atomic_bool *stop; /* borrowed until the source is closed; or NULL */
};

/* Makes a transport over common/http.h. base_url is "https://host:port"; token (bearer) and ca_file may be
 * NULL; idle_s is how many seconds a request may go without receiving a byte. Strings are copied. */
int fetch_transport_http(const char *base_url, const char *token, const char *ca_file, double idle_s,
                         struct fetch_transport *transport, struct err *err);

/* Fetches the manifests and opens the source. Takes the transport, also on error. Errors: ERR_CORRUPT (a
 * manifest contradicts a name, a size or the content id); ERR_NET, ERR_NOT_FOUND, ERR_AUTH as the server
 * answered. */
int model_source_open_fetched(const struct fetch_options *options, struct fetch_transport *transport,
                              struct model_source **source, struct err *err);

#endif
