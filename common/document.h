/* A file that a person wrote: a job's specification, a configuration, a cluster file.
 *
 * A file whose name ends in ".json" (in any case) is JSON and nothing else. Every other file is YAML, but a
 * text that is valid JSON has the value that JSON gives it: YAML reads "\ud83d\ude00", U+0085 and lines of
 * 100 KiB otherwise or not at all.
 */
#ifndef MOTLEY_COMMON_DOCUMENT_H
#define MOTLEY_COMMON_DOCUMENT_H

#include <jansson.h>
#include <stddef.h>

#include "common/err.h"

/* Parse the text of the file called 'path', which is read as to its ending only. A UTF-8 byte order mark is
 * skipped; UTF-16 and UTF-32 are refused by name. The limits and errors are those of json_parse_limited()
 * with JSON_DEPTH_MAX, and of yaml_parse(). Returns new, or NULL. Pure; any thread. */
json_t *document_parse(const char *path, const char *text, size_t size, struct err *err);

#endif
