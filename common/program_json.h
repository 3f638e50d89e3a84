/* Reads the JSON document, or the text, that a program of our own or of the system prints. It runs as a
 * process of its own, so that a crash or hang there (of a vendor's driver) does no harm here. Programs that
 * we do not trust run in the sandbox: child_json.h. Thread: any. */
#ifndef MOTLEY_COMMON_PROGRAM_JSON_H
#define MOTLEY_COMMON_PROGRAM_JSON_H

#include <jansson.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

enum { PROGRAM_ANSWER_BYTES_MAX = 1 << 20 };

/* Runs argv (NULL-terminated) and returns the document that it prints (new), or NULL. Blocks for at most
 * `seconds` and a moment to end the process. ERR_NOT_FOUND or ERR_IO when it cannot be started or read;
 * ERR_TIMEOUT; ERR_PEER when it fails; ERR_TOO_BIG above PROGRAM_ANSWER_BYTES_MAX; ERR_INVALID when it does
 * not print JSON. */
json_t *program_json(const char *const *argv, uint32_t seconds, struct err *err);

/* The same of a program that prints any text: *out becomes it, and is the caller's to release, after an
 * error too. */
int program_text(const char *const *argv, uint32_t seconds, struct buf *out, struct err *err);

#endif
