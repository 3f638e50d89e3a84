/* The JSON document that a program of our own prints, asked in a process of its own so that what crashes or
 * hangs there (a vendor's driver) harms nobody here. Somebody else's program is asked in the sandbox:
 * child_json.h. Thread: any. */
#ifndef MOTLEY_COMMON_PROGRAM_JSON_H
#define MOTLEY_COMMON_PROGRAM_JSON_H

#include <jansson.h>
#include <stdint.h>

#include "common/err.h"

enum { PROGRAM_ANSWER_BYTES_MAX = 1 << 20 };

/* Run argv (NULL at the end) and return what it prints, new; or NULL. Blocking, at most `seconds` and a
 * moment to end it. ERR_NOT_FOUND, ERR_IO when it cannot be started or read; ERR_TIMEOUT; ERR_PEER when it
 * fails; ERR_TOO_BIG beyond PROGRAM_ANSWER_BYTES_MAX; ERR_INVALID when it prints no JSON. */
json_t *program_json(const char *const *argv, uint32_t seconds, struct err *err);

#endif
