/* Declarations that shared.c (which requests share a check), check.c (the check, from the model to the job's
 * files) and fit.c (the cluster and the plan) share. */
#ifndef MOTLEY_API_CHECK_CHECK_PRIVATE_H
#define MOTLEY_API_CHECK_CHECK_PRIVATE_H

#include "api/check/check.h"
#include "api/request/dataset.h"
#include "api/request/wait.h"
#include "model/shape/config.h"

#include <sys/queue.h>

struct spec_check;
TAILQ_HEAD(checks, spec_check);

struct submits {
    struct app *app;
    struct checks checks; /* newest first */
    unsigned count;
};

/* One check. The request that began it carries it out; others wait for it, and its result is kept until
 * 'until_ns'. */
struct spec_check {
    TAILQ_ENTRY(spec_check) link;
    struct submits *submits;
    struct app *app;
    uint8_t key[32];
    /* the first asker; a check is shared only with requests of the same person */
    struct principal principal;
    enum check_depth depth;
    bool under_way;
    bool is_forgotten; /* what it was checked against has changed: no other submit shares it any more */
    uint64_t until_ns;
    struct wait_list waiters;
    /* Of a submit: its class (zero before it is known), whether devices are being searched for it, and the
     * checks of the same class that wait for that. */
    uint8_t plan_class[DIGEST_SIZE];
    bool searches;
    struct wait_list followers;
    struct checked *result; /* NULL: it has none, or not yet */
    json_t *more;           /* as check_spec gives it */
    /* from here on: set while the check runs */
    struct job_spec spec;
    json_t *spec_json; /* the specification with every default filled in */
    json_t *model;     /* as store_model_get answers */
    char model_doubt[MODEL_DOUBT_BYTES];
    json_t *adapter;                 /* {file name: sha256} */
    char fetch[CHECKED_FETCH_BYTES]; /* as in struct checked */
    struct dataset train, eval;
    json_t *sample_ids;
    json_t *inputs;       /* as in struct checked */
    char profile_key[65]; /* see profiles/profile_key.h */
    json_t *cluster;      /* as store_cluster_get answers */
    json_t *profiles;     /* the profiles under profile_key: [{"device","document"}] */
    json_t *plan;         /* as in struct checked, its `answer` */
};

/* Carries the check out, and sets its result. */
int check_run(struct spec_check *check, struct err *err);
/* Its last step: waits for the cluster's devices and their measurements, and makes the plan; or shares the
 * search of another submit of the same person and class. */
int check_fit(struct spec_check *check, struct err *err);

#endif
