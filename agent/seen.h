/* The ids of the scheduler's messages that were acted upon, the last SEEN_MAX of them, on disk. Thread: one.
 */
#ifndef MOTLEY_AGENT_SEEN_H
#define MOTLEY_AGENT_SEEN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

enum { SEEN_MAX = 8192 };

struct seen;

/* Made if missing. ERR_IO. */
struct seen *seen_open(const char *path, struct err *err);
/* NULL is fine. */
void seen_close(struct seen *seen);
/* Acted upon, as far as is remembered. */
bool seen_has(const struct seen *seen, int64_t id);
/* Not synced: a machine that dies forgets the last ones; epochs guard what matters. ERR_IO: remembered in
 * memory only. */
int seen_add(struct seen *seen, int64_t id, struct err *err);

#endif
