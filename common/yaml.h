/* Reads YAML into the same documents as JSON. */
#ifndef MOTLEY_COMMON_YAML_H
#define MOTLEY_COMMON_YAML_H

#include <jansson.h>
#include <stddef.h>

#include "common/err.h"

enum { YAML_BYTES_MAX = 1 << 20, YAML_NODES_MAX = 65536, YAML_DEPTH_MAX = 32 };

/* Parses one YAML document (libyaml; YAML 1.2 core scalars: "no" is a text, "0x10" and "0o7" are numbers;
 * .inf and .nan are refused; "2e-4" and "1." are numbers). Refused with line and column (ERR_INVALID,
 * ERR_TOO_BIG) are duplicate keys, anchors and aliases, tags other than !!str, keys that are not scalars, a
 * second document, and texts above the limits. Also refused is text that YAML 1.1 and 1.2 both accept and
 * read differently: numbers such as 010, and U+0085, U+2028 and U+2029. An empty document is null. Files go
 * through document.h, which also reads JSON. Returns new, or NULL. Pure; any thread. */
json_t *yaml_parse(const char *text, size_t size, struct err *err);

#endif
