/* Checks a specification before its job is inserted, and plans it if asked to.
 *
 * The steps check the specification itself, its model, the adapter it starts from, its data (which are
 * encoded now if they were not before), the devices it names, and whether any placement fits. A thing that
 * the asker may not use is reported as missing. Equal specifications of one person (apart from their names)
 * share one check, running or finished, for 5 s, and submits of one class (model/job/plan_class.h) one search
 * for devices, so that submitting many jobs that differ in a seed or a learning rate is cheap. Loop thread.
 */
#ifndef MOTLEY_API_CHECK_CHECK_H
#define MOTLEY_API_CHECK_CHECK_H

#include <jansson.h>

#include "api/request/app.h"
#include "common/digest.h"
#include "hub/name.h"
#include "model/job/spec.h"

struct submits;

enum { CHECKED_FETCH_BYTES = HUB_ID_BYTES + HUB_REVISION_BYTES + HUB_FILE_BYTES + 8 };

/* The result of a check. Immutable and shared. */
struct checked {
    json_t *spec;   /* the specification with every default filled in; `name` is that of the first asker */
    json_t *inputs; /* as store_job_new.inputs */
    /* Both as text, since printing them takes a fifth of a submit's time: the specification without its name
     * ("{…}", never empty), and the inputs. Of a submit; else NULL */
    char *unnamed_text, *inputs_text;
    uint8_t plan_class[DIGEST_SIZE]; /* of a submit: model/job/plan_class.h; else zero */
    int32_t priority;
    bool held;
    uint32_t retries_max;
    int64_t time_limit_ms, steps, begin_us;
    enum spec_service service;
    uint32_t devices_least; /* fewest devices that any plan of the job has */
    uint32_t array_size;    /* number of elements of an array; 0: the job is no array */
    /* number of an array's elements that may be queued or run at once; 0: any number */
    uint32_t at_most;
    /* Of a submit: the model of the Hub that is to be fetched before the rest can be checked
     * ("hf:OWNER/NAME@REVISION"); `inputs` then holds nulls and `steps` may be 0. "": none */
    char fetch[CHECKED_FETCH_BYTES];
    json_t *answer;   /* the plan (INTERFACES.md) if the planner was asked, else NULL */
    json_t *data;     /* {"train": stats, "eval": stats | null} */
    json_t *warnings; /* list of sentences about the specification and its data */
    unsigned holders;
};
void checked_release(struct checked *checked); /* NULL is a no-op */

enum check_depth {
    CHECK_SUBMIT, /* refuses what never fits, if all devices are measured; makes no plan */
    /* does the same as CHECK_SUBMIT, and makes the plan on the devices that can be used now */
    CHECK_PLAN,
    CHECK_PROGRAM, /* does the same as CHECK_PLAN, and adds the step program as text under "program" */
    /* does the same as CHECK_PLAN, and adds all inputs of the planner under "inputs"
     * (planner/given/inputs.h), so that the client can plan itself */
    CHECK_INPUTS,
    /* gives the inputs of CHECK_INPUTS alone, without a plan: for questions about clusters that do not exist
     * (api/jobs/plans.c). Missing measurements are requested, and not waited for. */
    CHECK_GATHER,
};

/* Creates the table of checks. 'app' is borrowed until destroy; the app's other parts are used only when a
 * check begins. */
int submits_create(struct app *app, struct submits **submits, struct err *err);
void submits_destroy(struct submits *submits);
/* Forgets the finished checks, because a model was registered again or a person's rights changed. Running
 * checks go on. */
void submits_forget(struct submits *submits);

/* Checks a specification, or joins an equal check; waits (api/request/wait.h). 'document' and 'principal' are
 * borrowed until it returns. *checked is the caller's to release. After an error, *more (NULL: none; new)
 * holds further members for the problem document, such as the plan that shows why nothing fits. */
int check_spec(struct submits *submits, const struct principal *principal, json_t *document,
               enum check_depth depth, struct checked **checked, json_t **more, struct err *err);

#endif
