/* Lists of names, as specifications and adapters have them. */
#ifndef MOTLEY_MODEL_SHAPE_NAMES_H
#define MOTLEY_MODEL_SHAPE_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/json.h"

enum { NAMES_BYTES_MAX = 128 /* bytes in a name, the NUL included */ };

/* names[i] is NUL-terminated; owned. given: false when the document said null or nothing. */
struct spec_names {
    bool given;
    uint32_t count;
    char **names;
};

/* Append a copy of 'name'. ERR_NOMEM. */
int names_add(struct spec_names *names, const char *name, struct err *err);
/* Release all; safe on a zeroed list and twice. */
void names_fini(struct spec_names *names);
/* Read a list of distinct texts of 1 to NAMES_BYTES_MAX - 1 bytes, which replaces what *out holds; 'known'
 * (NULL-terminated, or NULL) are the only ones allowed. Returns as jr_array() does. */
int names_read(struct json_reader *reader, const char *key, size_t count_min, size_t count_max,
               const char *const *known, struct spec_names *out);

#endif
