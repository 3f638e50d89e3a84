/* A file to the artifact store, in parts (PUT /v1/blobs/HEX?offset=&size=): a connection that breaks costs
 * the part under way, and what the server has of that is not sent again. Blocking. */
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
    /* Copy bytes [offset, offset + size) to dst. */
    int (*read)(void *arg, uint64_t offset, void *dst, size_t size, struct err *err);
    void *arg;
    uint64_t patience_ns;             /* without a byte more at the server */
    bool (*stopped)(const void *arg); /* given stopped_arg, while it sends and waits; NULL: never */
    const void *stopped_arg;
};

/* 0: the server has it, verified. ERR_CANCELLED when stopped; ERR_CORRUPT when the bytes are not those of
 * sha256; else the server's refusal, or the last error when patience ended. */
int upload_in_parts(struct http *http, const struct upload_file *file, struct err *err);

#endif
