/* Lists of names, as specifications and adapter configs contain them. */
#ifndef MOTLEY_MODEL_SHAPE_NAMES_H
#define MOTLEY_MODEL_SHAPE_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/doc.h"
#include "common/json.h"

enum { NAMES_BYTES_MAX = 128 /* bytes of a name, the NUL included */ };

/* names[i] is NUL-terminated and owned. given is false when the document had null or no such key. */
struct spec_names {
    bool given;
    uint32_t count;
    char **names;
};

/* Appends a copy of 'name'. Fails with ERR_NOMEM. */
int names_add(struct spec_names *names, const char *name, struct err *err);
/* Releases the list; safe on a zeroed list and twice. */
void names_fini(struct spec_names *names);
/* Reads a list of distinct texts of 1 to NAMES_BYTES_MAX - 1 bytes, which replaces the content of *out. If
 * 'known' (NULL-terminated) is not NULL, only its texts are allowed. Returns as jr_array() does. */
int names_read(struct json_reader *reader, const char *key, size_t count_min, size_t count_max,
               const char *const *known, struct spec_names *out);

/* Returns the list as an array, new, or NULL when memory is short; rename (or NULL) may replace a name. */
json_t *names_json(const struct spec_names *names, const char *(*rename)(const char *));

/* A list of names in a description: .min to .max of them, all of .names unless that is NULL. With DOC_NULL a
 * list that was not given is written as null. */
extern const struct doc_form names_form;

#endif
