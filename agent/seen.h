/* Stores on disk the ids of the last SEEN_MAX messages of the scheduler that were acted upon. Thread: one. */
#ifndef MOTLEY_AGENT_SEEN_H
#define MOTLEY_AGENT_SEEN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

enum { SEEN_MAX = 8192 };

struct seen;

/* Opens the file, which is made if missing. ERR_IO. */
struct seen *seen_open(const char *path, struct err *err);
/* NULL is a no-op. */
void seen_close(struct seen *seen);
/* Whether the message was acted upon, as far as the ids are remembered. */
bool seen_has(const struct seen *seen, int64_t id);
/* Adds an id. The file is not synced: after a crash of the machine the last ids are missing, and epochs
 * prevent a second execution. ERR_IO: the id is in memory only. */
int seen_add(struct seen *seen, int64_t id, struct err *err);

#endif
