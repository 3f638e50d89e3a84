/* Functions with which loads (sched_load.c) fill a queue (queue.c). */
#ifndef MOTLEY_STORE_QUEUE_PRIVATE_H
#define MOTLEY_STORE_QUEUE_PRIVATE_H

#include "store/queue.h"
#include "store/store_private.h"

/* Reads a job's fields (job_row of fragments.sql) except the texts of unbounded length. */
void store_read_job(const struct pg_result *result, int row, struct store_sched_job *job);

/* Returns the text of the queue's snapshot; NULL when the queue must be read whole. */
const char *store_queue_snapshot(const struct store_queue *queue);
/* Returns the number of calls of store_queue_forget. If it has changed since a load began, the changes that
 * were read are of no use. */
unsigned store_queue_forgotten(const struct store_queue *queue);
/* Applies a result of queue_whole or queue_changes (queue.sql) to the queue. Returns -1 with ERR_NOMEM; the
 * queue has then forgotten everything. */
int store_queue_take(struct store_queue *queue, const struct pg_result *result, struct err *err);
/* Exchanges the contents of the two queues. */
void store_queue_swap(struct store_queue *a, struct store_queue *b);

/* links.c */
const char *store_links_snapshot(const struct store_links *links);
unsigned store_links_forgotten(const struct store_links *links);
/* Brings the links up to date and puts them into the view. If they were also read whole (`whole` has rows),
 * they are compared, and a difference goes to view->differs. Returns -1 with ERR_NOMEM; the links have then
 * forgotten everything. */
int store_links_load(struct store_links *links, const struct pg_result *whole,
                     const struct pg_result *changes, struct store_view *view, struct err *err);

#endif
