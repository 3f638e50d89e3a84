/* What check.c (sharing, beginning), steps.c and fit.c (each thing) and outcome.c (how it ends) share. */
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

struct check;
TAILQ_HEAD(checks, check);

struct submits {
    struct app *app;
    struct checks checks; /* newest first */
    unsigned count;
};

/* One check: under way (waiters), then done (result kept until 'until_ns'). */
struct check {
    struct pool_task task; /* first: for the steps that block */
    TAILQ_ENTRY(check) link;
    struct submits *submits;
    struct app *app;
    uint8_t key[32];
    struct principal principal; /* who asked first; whoever shares the check is the same person */
    enum check_depth depth;
    bool under_way;
    uint64_t until_ns;
    STAILQ_HEAD(check_waiters, check_waiter) waiters;
    /* while under way */
    struct job_spec spec;
    json_t *model;                    /* store_model_get's */
    json_t *adapter;                  /* {file name: sha256} */
    char adapter_path[BLOB_PATH_MAX]; /* of the list, then of adapter_config.json */
    unsigned adapter_at;
    json_t *train_stats, *eval_stats;
    char train_key[65], eval_key[65];
    struct row_size *train_sizes, *eval_sizes;
    uint32_t train_rows, eval_rows;
    json_t *sample_ids;
    enum spec_format sample_format;
    json_t *spec_json;    /* every default filled */
    char profile_key[65]; /* profiles/profile_key.h */
    json_t *profiles;     /* [{"device","document"}] under it */
    uint64_t patience_ns; /* measurements are waited for until then; 0: none was asked for */
    struct event *pause;  /* between two looks */
    json_t *cluster;      /* the plan task's own */
    struct plan_answer *plan;
    json_t *plan_json;
    bool never_fits;
    struct err err;
    struct checked *result;
};

/* Steps: each ends in check_next(check, step after), or check_fail. */
void check_model(struct check *check);
/* The adapter to start from: uploaded, and one that we compute. */
void check_adapter(struct check *check);
/* Training data: encoded now if it was not. */
void check_train(struct check *check);
/* Held-out data, likewise. */
void check_eval(struct check *check);
/* The prompt, rendered to ids. */
void check_sample(struct check *check);
/* What the job will rest on stays the submitter's to read. */
void check_hold(struct check *check);
/* Devices, measurements, the plan. */
void check_cluster(struct check *check);

/* All that the plan rests on, as planner/given/inputs.h has it: new, or NULL. Pool thread. */
json_t *check_plan_inputs(const struct check *check);

/* store_job_new.inputs: new, or NULL. */
json_t *check_inputs(const struct check *check);

/* Answer everybody who waits with 'err' and forget the check. 'more' is borrowed, or NULL. */
void check_fail(struct check *check, const struct err *err, json_t *more);
/* Off the list and gone, with who still waits. */
void check_free(struct check *check);
/* Make the result, keep it, answer everybody who waits. */
void check_finish(struct check *check);

#endif
