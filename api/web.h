/* The page's files (api/web/), compressed when this was built (api/options.cmake). */
#ifndef MOTLEY_API_WEB_H
#define MOTLEY_API_WEB_H

#include <stddef.h>

struct web_file {
    const char *name;
    const unsigned char *data; /* gzip */
    size_t packed, size;       /* bytes: of data, and of the file */
};

extern const struct web_file api_web_files[]; /* ended by a NULL name */
extern const char api_web_hash[];             /* of all of them; a part of their addresses */

#endif
