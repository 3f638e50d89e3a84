/* Replaces zlib's header on a machine without it. Code objects are then packed without compression
 * (tools/gpu_code.py --stored), as a zlib stream of stored blocks (RFC 1950, RFC 1951 section 3.2.4). */
#pragma once

#include <stddef.h>
#include <string.h>

typedef unsigned char Bytef;
typedef unsigned long uLong, uLongf;
enum { Z_OK = 0, Z_DATA_ERROR = -3 };

static inline int uncompress(Bytef *to, uLongf *to_bytes, const Bytef *from, uLong from_bytes)
{
    uLong at = 2, done = 0; /* the data begins behind the header's two bytes */
    int last = 0;
    while (!last) {
        if (at + 5 > from_bytes || (from[at] & 6) != 0)
            return Z_DATA_ERROR;
        last = from[at] & 1;
        uLong length = from[at + 1] | (uLong)from[at + 2] << 8;
        at += 5;
        if (length > from_bytes - at || length > *to_bytes - done)
            return Z_DATA_ERROR;
        memcpy(to + done, from + at, length);
        at += length;
        done += length;
    }
    *to_bytes = done;
    return Z_OK;
}
