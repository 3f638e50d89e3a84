/* Jobs whose model the api fetches from the Hub (migrations/0007_fetches.sql). Such a job is held until
 * store_fetch_done() gives it its inputs. One api at a time fetches for a job, and of jobs that want the same
 * model the oldest is served first. store.h has the rules for callbacks and errors.
 */
#ifndef MOTLEY_STORE_FETCHES_H
#define MOTLEY_STORE_FETCHES_H

#include "store/store.h"

/* Takes at most `most` jobs to fetch for, for `seconds`: [{"job", "hub", "spec", "owner": users.id, "name":
 * the owner's, "priority_max", "admin"}]. Later calls do not answer them again until the time is over. */
int store_fetch_claim(struct store *store, double seconds, int64_t most, store_doc_fn *done, void *arg,
                      struct err *err);

/* Goes on fetching for the job for `seconds`, and says how far it is as `why` of all jobs that wait for the
 * same model. Answers 0 when the job waits no longer (it was cancelled), else 1. */
int store_fetch_tell(struct store *store, int64_t job, double seconds, const char *why, store_id_fn *done,
                     void *arg, struct err *err);

/* What a job gets once its model is there. */
struct store_fetched {
    const json_t *spec, *inputs; /* as in store_job_new */
    int64_t steps;
    bool held; /* it stays held, as its specification asks */
};
/* Queues the job, or leaves it held. ERR_NOT_FOUND when it waits no longer. */
int store_fetch_done(struct store *store, int64_t job, const struct store_fetched *fetched,
                     store_done_fn *done, void *arg, struct err *err);

/* Fails the job. ERR_NOT_FOUND when it waits no longer. */
int store_fetch_fail(struct store *store, int64_t job, const struct err *why, store_done_fn *done, void *arg,
                     struct err *err);

#endif
