/* YAML in, as the same documents as JSON. */
#ifndef MOTLEY_COMMON_YAML_H
#define MOTLEY_COMMON_YAML_H

#include <jansson.h>
#include <stddef.h>

#include "common/err.h"

enum { YAML_BYTES_MAX = 1 << 20, YAML_NODES_MAX = 65536, YAML_DEPTH_MAX = 32 };

/* Parse one YAML document (libyaml; YAML 1.2 core scalars: "no" is a text, "0x10" and "0o7" are numbers; .inf
 * and .nan are refused; "2e-4" and "1." are numbers). Duplicate keys, anchors and aliases, tags other than
 * !!str, keys that are no scalars, a second document, and texts over the limits above are refused with line
 * and column (ERR_INVALID, ERR_TOO_BIG); likewise what YAML 1.1 and 1.2 read differently and both take for
 * something plausible: numbers such as 010, and U+0085, U+2028 and U+2029. An empty document is null. Files
 * go through document.h, which also knows JSON.
 * Returns new, or NULL. Pure; any thread. */
json_t *yaml_parse(const char *text, size_t size, struct err *err);

#endif
