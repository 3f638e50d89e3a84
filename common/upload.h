/* Uploads a file to the artifact store in parts (PUT /v1/blobs/HEX?offset=&size=). A connection that breaks
 * costs the part under way, and bytes that the server already has are not sent again. Blocking. */
#ifndef MOTLEY_COMMON_UPLOAD_H
#define MOTLEY_COMMON_UPLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/http.h"

struct upload_file {
    const char *sha256; /* 64 hex digits */
    uint64_t size;
    /* Copies bytes [offset, offset + size) of the file to dst. */
    int (*read)(void *arg, uint64_t offset, void *dst, size_t size, struct err *err);
    void *arg;
    uint64_t patience_ns;             /* time without progress after which it gives up */
    bool (*stopped)(const void *arg); /* checked with stopped_arg while it sends and waits; NULL: never */
    const void *stopped_arg;
};

/* Returns 0 when the server has the file and has verified it. ERR_CANCELLED when stopped; ERR_CORRUPT when
 * the bytes do not have that SHA-256; else the server's refusal, or the last error when the patience is
 * exhausted. */
int upload_in_parts(struct http *http, const struct upload_file *file, struct err *err);

#endif
