/* Declarations that check.c (sharing and starting checks), steps.c and fit.c (the steps), share.c (sharing
 * searches) and outcome.c (the result) share.
 */
#ifndef MOTLEY_API_CHECK_CHECK_PRIVATE_H
#define MOTLEY_API_CHECK_CHECK_PRIVATE_H

#include "api/request/blob_dir.h"
#include "api/check/check.h"
#include "model/rows/rows.h"
#include "model/job/spec.h"

#include <sys/queue.h>

struct check_waiter {
    STAILQ_ENTRY(check_waiter) link;
    check_done_fn *done;
    void *arg;
};

struct spec_check;
TAILQ_HEAD(checks, spec_check);

struct submits {
    struct app *app;
    struct checks checks; /* newest first */
    unsigned count;
};

/* One check. While it runs, requests wait for it; afterwards its result is kept until 'until_ns'. */
struct spec_check {
    /* must come first, since task pointers are cast to checks; used by the steps that block */
    struct pool_task task;
    TAILQ_ENTRY(spec_check) link;
    struct submits *submits;
    struct app *app;
    uint8_t key[32];
    /* the first asker; a check is shared only with requests of the same person */
    struct principal principal;
    enum check_depth depth;
    bool under_way;
    size_t step; /* the number of the next step; steps.c lists them */
    uint64_t until_ns;
    STAILQ_HEAD(check_waiters, check_waiter) waiters;
    /* Of a submit: its class (zero before it is known), whether devices are being searched for it, and the
     * checks of the same class that wait for that. */
    uint8_t plan_class[DIGEST_SIZE];
    bool is_forgotten; /* what it was checked against has changed: no other submit shares it any more */
    bool searches;
    STAILQ_HEAD(check_followers, spec_check) followers;
    STAILQ_ENTRY(spec_check) follows;
    /* from here on: set while the check runs */
    struct job_spec spec;
    json_t *model;                   /* as store_model_get answers */
    char fetch[CHECKED_FETCH_BYTES]; /* as in struct checked */
    json_t *adapter;                 /* {file name: sha256} */
    /* path of the file that lists the adapter's files; later path of adapter_config.json */
    char adapter_path[BLOB_PATH_MAX];
    unsigned adapter_at;
    json_t *train_stats, *eval_stats;
    char train_key[65], eval_key[65];
    struct row_size *train_sizes, *eval_sizes;
    uint32_t train_rows, eval_rows;
    json_t *sample_ids;
    enum spec_format sample_format;
    json_t *spec_json;    /* the specification as JSON with every default filled in */
    char profile_key[65]; /* see profiles/profile_key.h */
    json_t *profiles;     /* the profiles under profile_key: [{"device","document"}] */
    uint64_t patience_ns; /* until when measurements are awaited; 0: none was requested */
    struct event *pause;  /* timer between two queries for measurements */
    json_t *cluster;      /* from here on: used by the pool task while it runs */
    struct plan_answer *plan;
    json_t *plan_json;
    bool never_fits;
    struct err err;
    struct checked *result;
};

/* Begins the next step of the check, the first one of a new check. steps.c lists them. */
void check_next(struct spec_check *check);
/* The last step: fetches the cluster's devices and their measurements, and makes the plan. */
void check_cluster(struct spec_check *check);

/* Returns the cluster that the check plans on as `devices`, `profiles` and `links` of
 * planner/given/inputs.h, new, or NULL. Called on a pool thread. */
json_t *check_plan_devices(const struct spec_check *check);
/* Returns all inputs of the plan in the form of planner/given/inputs.h, new, or NULL. Called on a pool
 * thread. */
json_t *check_plan_inputs(const struct spec_check *check);

/* Returns the inputs in the form of store_job_new.inputs, new, or NULL. */
json_t *check_inputs(const struct spec_check *check);
/* Computes the class of a submit from its specification and these inputs. */
int check_take_class(struct spec_check *check, const json_t *inputs);

/* Lets a submit share the search of another one of the same person and class, finished or under way. Returns
 * false if there is none: then this check searches, and ends by check_searched. */
bool check_share(struct spec_check *check);
/* Ends the search of a check, and the checks that waited for it, as `check->err` says. 'more' is as in
 * check_fail. */
void check_searched(struct spec_check *check, json_t *more);

/* Answers all waiters with 'err' and forgets the check. 'more' is borrowed, or NULL. */
void check_fail(struct spec_check *check, const struct err *err, json_t *more);
/* Removes the check from the list and frees it with its waiters. */
void check_free(struct spec_check *check);
/* Makes the result, keeps it, and answers all waiters. */
void check_finish(struct spec_check *check);

#endif
