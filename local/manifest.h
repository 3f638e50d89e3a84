/* The list of a backup's files with their lengths and sums: manifest.json, and manifest.sha256 with the
 * list's own sum (for `sha256sum -c`), which is written last. So a backup that has no manifest.sha256 was
 * never finished. */
#ifndef MOTLEY_LOCAL_MANIFEST_H
#define MOTLEY_LOCAL_MANIFEST_H

#include <jansson.h>

#include "common/err.h"

/* Lists the files below 'folder' and writes both files. Takes 'document', a JSON object, which gets them as
 * "files". */
int manifest_write(const char *folder, json_t *document, struct err *err);

/* Reads every file that the list names. Returns the document, new; NULL with an error that names the first
 * file that is missing, or has another length or sum. */
json_t *manifest_check(const char *folder, struct err *err);

#endif
