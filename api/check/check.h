/* Is a specification good, and what would it do? The whole check that stands before a commit.
 *
 * In order: the specification itself, its model, the adapter it starts from, its data (encoded if they are
 * not yet), devices it names, and whether any placement fits; all that the person who asks may use, and what
 * they may not is not there. Equal specifications of one person (their names apart) share one check, under
 * way or done, for a few seconds: that is what makes many submits of one shape cheap. Loop thread.
 */
#ifndef MOTLEY_API_CHECK_CHECK_H
#define MOTLEY_API_CHECK_CHECK_H

#include <jansson.h>

#include "api/request/app.h"

struct submits;

/* What a good specification comes to. Immutable and shared: check_hold to keep it, check_release. */
struct checked {
    json_t *spec;   /* every default filled; `name` is the first asker's */
    json_t *inputs; /* as store_job_new.inputs */
    int32_t priority;
    bool held;
    uint32_t retries_max;
    int64_t time_limit_ms, steps;
    json_t *answer; /* the plan (INTERFACES.md) when the planner was asked, else NULL */
    json_t *data;   /* {"train": stats, "eval": stats | null} */
};

void checked_hold(struct checked *checked);
void checked_release(struct checked *checked);

enum check_depth {
    CHECK_SUBMIT,  /* refuse what never fits, if all devices are measured; no plan needed */
    CHECK_PLAN,    /* and make the plan, on devices that could be used now */
    CHECK_PROGRAM, /* and show its step program under "program", a text for people */
    CHECK_INPUTS,  /* and add all that it rests on, "inputs" (planner/given/inputs.h), to plan elsewhere */
};

/* 'checked' is borrowed for the call; NULL with err. 'more' (borrowed, may be NULL): further members for the
 * problem, such as the plan that shows why nothing fits. */
typedef void check_done_fn(void *arg, const struct err *err, struct checked *checked, json_t *more);

/* 'app' is borrowed until destroy; its other parts are used when a check begins. */
int submits_create(struct app *app, struct submits **submits, struct err *err);
void submits_destroy(struct submits *submits);
/* Forget what was found (a model was registered anew). Checks under way go on. */
void submits_forget(struct submits *submits);

/* 'document' and 'principal' are borrowed for the call. 'done' comes exactly once, possibly before the
 * return. */
void check_spec(struct submits *submits, const struct principal *principal, json_t *document,
                enum check_depth depth, check_done_fn *done, void *arg);

#endif
