/* Reads files that people write: job specifications, configurations, cluster files.
 *
 * A file whose name ends in ".json" (in any case) must be JSON. Every other file is YAML, but a text that is
 * valid JSON has its JSON value, because YAML reads "\ud83d\ude00", U+0085 and lines of 100 KiB differently
 * or not at all. Where it says nothing, as a configuration whose keys are all commented out, or null, it is
 * an empty mapping.
 */
#ifndef MOTLEY_COMMON_DOCUMENT_H
#define MOTLEY_COMMON_DOCUMENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "common/err.h"

/* Parses the text of the file called 'path', of which only the ending matters. A UTF-8 byte order mark is
 * skipped; UTF-16 and UTF-32 are refused by name. The limits and errors are those of json_parse_limited()
 * with JSON_DEPTH_MAX, and of yaml_parse(). Returns new, or NULL. Pure; any thread. */
json_t *document_parse(const char *path, const char *text, size_t size, struct err *err);

/* Parses the file itself, of at most 'bytes_max' bytes. Errors of the text begin with the path. Returns new,
 * or NULL. */
json_t *document_load(const char *path, size_t bytes_max, struct err *err);

/* Writes the document as compact JSON, with its keys in order when `sorted`; a reader sees the old file or
 * the new one. NULL is ERR_NOMEM. */
int document_save(const char *path, const json_t *document, bool sorted, mode_t mode, struct err *err);

#endif
