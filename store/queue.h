/* The queued jobs in memory, exactly as they are in one snapshot of the database.
 *
 * store_sched_load brings a queue up to date: it reads the jobs that were changed by transactions which the
 * queue's snapshot did not see, and takes over the snapshot of that statement. So nothing depends on the
 * order in which transactions commit, nor on notifications. A queue that is empty, or that was told to
 * forget, is read whole. The queue leaves out jobs that the scheduler does not start themselves: arrays, and
 * jobs that wait for other jobs to end.
 *
 * A job takes a struct store_sched_job without documents, a slot in the hash table, and its texts if it has
 * some. Pointers to jobs are valid until the next load. Thread: the store's.
 */
#ifndef MOTLEY_STORE_QUEUE_H
#define MOTLEY_STORE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/digest.h"
#include "common/err.h"
#include "store/sched.h"

struct store_queue;

/* A user within an account, and the number of queued jobs there. */
struct store_queue_leaf {
    int64_t owner, account;
    size_t count;
};

/* Returns a new, empty queue, or NULL with ERR_NOMEM. */
struct store_queue *store_queue_create(struct err *err);
/* NULL is a no-op. */
void store_queue_destroy(struct store_queue *queue);
/* Drops all jobs; the next load reads the queue whole. */
void store_queue_forget(struct store_queue *queue);

/* The jobs have the indices 0 to store_queue_count - 1, in no particular order. */
size_t store_queue_count(const struct store_queue *queue);
const struct store_sched_job *store_queue_at(const struct store_queue *queue, size_t at);
/* Returns the job with this id, or NULL when it is not queued. */
const struct store_sched_job *store_queue_find(const struct store_queue *queue, int64_t id);

/* Return the users within accounts that have or had queued jobs, indexed by store_sched_job.leaf, and the
 * digests of classes of jobs (migrations/0004_jobs.sql), indexed by store_sched_job.class. */
size_t store_queue_leaf_count(const struct store_queue *queue);
struct store_queue_leaf store_queue_leaf_at(const struct store_queue *queue, uint32_t leaf);
size_t store_queue_class_count(const struct store_queue *queue);
const uint8_t *store_queue_class_at(const struct store_queue *queue, uint32_t class, size_t *count);

/* Returns the bytes of memory that the queue holds. */
size_t store_queue_bytes(const struct store_queue *queue);
/* Whether the two queues hold different jobs; `text` then says the first difference. */
bool store_queue_differs(const struct store_queue *a, const struct store_queue *b, char text[200]);

/* Answers the specification and inputs of a queued job of the class: {"spec","inputs"}. ERR_NOT_FOUND when
 * the class has no queued job. */
int store_queue_class_get(struct store *store, const char *class_hex, store_doc_fn *done, void *arg,
                          struct err *err);

#endif
