/* Functions with which loads (sched_load.c) fill a queue (queue.c). */
#ifndef MOTLEY_STORE_QUEUE_PRIVATE_H
#define MOTLEY_STORE_QUEUE_PRIVATE_H

#include "store/queue.h"
#include "store/store_private.h"

#define MICROS(column) "coalesce((extract(epoch FROM " column ") * 1e6)::bigint, 0)"
/* The columns that store_read_job reads, of a table j of jobs. */
#define JOB_COLUMNS                                                                                          \
    "j.id, j.owner, j.priority, j.state, j.stop_why, j.attempt, j.losses, j.retries_max, j.time_limit_ms, "  \
    "j.used_ms - j.limit_from_ms, " MICROS(                                                                  \
        "j.not_before") ", j.steps, coalesce(j.run, 0), j.account, "                                         \
                        "j.service, " MICROS("j.eligible_at") ", " MICROS("j.begin_at") ", j.step, " MICROS( \
                            "j.starts_at") ", "                                                              \
                                           "j.wait_code, coalesce(j.wait_subject, -1), j.why"
enum { JOB_WHY = 21, JOB_COLUMN_COUNT = 22 };

/* Reads a job's fields except the texts of unbounded length. */
void store_read_job(const struct pg_result *result, int row, struct store_sched_job *job);

/* store_queue_whole gives the whole queue if $1 is true, else no row. store_queue_changes gives the jobs that
 * changed since the snapshot $1. */
extern const struct pg_statement store_queue_whole, store_queue_changes;

/* Returns the text of the queue's snapshot; NULL when the queue must be read whole. */
const char *store_queue_snapshot(const struct store_queue *queue);
/* Returns the number of calls of store_queue_forget. If it has changed since a load began, the changes that
 * were read are of no use. */
unsigned store_queue_forgotten(const struct store_queue *queue);
/* Applies a result of store_queue_whole or store_queue_changes to the queue. Returns -1 with ERR_NOMEM; the
 * queue has then forgotten everything. */
int store_queue_take(struct store_queue *queue, const struct pg_result *result, struct err *err);
/* Exchanges the contents of the two queues. */
void store_queue_swap(struct store_queue *a, struct store_queue *b);

/* links.c: like store_queue_whole and store_queue_changes. */
extern const struct pg_statement store_links_whole, store_links_changes;
const char *store_links_snapshot(const struct store_links *links);
unsigned store_links_forgotten(const struct store_links *links);
/* Brings the links up to date and puts them into the view. If they were also read whole (`whole` has rows),
 * they are compared, and a difference goes to view->differs. Returns -1 with ERR_NOMEM; the links have then
 * forgotten everything. */
int store_links_load(struct store_links *links, const struct pg_result *whole,
                     const struct pg_result *changes, struct store_view *view, struct err *err);

#endif
