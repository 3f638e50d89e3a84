/* The page's files (api/web/), as they were compressed when this program was built (api/options.cmake). */
#ifndef MOTLEY_API_WEB_H
#define MOTLEY_API_WEB_H

#include <stddef.h>

struct web_file {
    const char *name;
    const unsigned char *data; /* gzip */
    size_t packed, size;       /* number of bytes: of data, and of the uncompressed file */
};

extern const struct web_file api_web_files[]; /* ended by a NULL name */
extern const char api_web_hash[];             /* a hash of all files, which is a part of their addresses */

#endif
