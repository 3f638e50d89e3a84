/* The measured links between nodes in memory, as they are in one snapshot of the database.
 *
 * With n nodes there are n² links, so store_sched_load reads only those that were written by transactions
 * which the last load did not see, in the way of the queue (store/queue.h). Pointers to links are valid until
 * the next load. Thread: the store's.
 */
#ifndef MOTLEY_STORE_LINKS_H
#define MOTLEY_STORE_LINKS_H

#include <stddef.h>

#include "common/err.h"
#include "store/sched.h"

struct store_links;

/* Returns a new, empty set of links, or NULL with ERR_NOMEM. */
struct store_links *store_links_create(struct err *err);
/* NULL is a no-op. */
void store_links_destroy(struct store_links *links);
/* Drops all links; the next load reads them whole. */
void store_links_forget(struct store_links *links);

/* Returns the first of the view's links that begin at the node, and their number in *count. They are sorted
 * by the node at which they end, in the order of bytes. */
const struct store_sched_link *store_links_of(const struct store_view *view, const char *node, size_t *count);

#endif
