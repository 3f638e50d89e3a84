/* The classes of a pass: queued jobs that have the same plans on the same devices.
 *
 * One job represents all jobs of its class, which model/job/plan_class.h defines. The digest of a queued
 * job's class stands in its row.
 */
#ifndef MOTLEY_SCHEDULER_PASS_JOB_CLASS_H
#define MOTLEY_SCHEDULER_PASS_JOB_CLASS_H

#include "scheduler/pass/pass.h"
#include "scheduler/policy/policy.h"

enum class_state {
    CLASS_READY,
    CLASS_UNMEASURED, /* profiles of devices are missing */
    CLASS_PENDING,    /* models, data sets or profiles are being fetched */
    CLASS_FAILED,     /* a model, a data set or a profile could not be fetched: err says why */
    CLASS_NOWHERE,    /* none of the devices that the class may use is known */
};

/* A question to the planner in this pass, for which it found a plan. */
struct class_question {
    struct device_set among;
    uint16_t most;
    struct policy_plan plan;
};

struct job_class {
    const json_t *asked, *inputs; /* the specification and inputs of one of its jobs; borrowed */
    const json_t *pinned;         /* the plan on which its jobs run where they can, or NULL; borrowed */
    uint8_t digest[DIGEST_SIZE];
    enum class_state state;
    /* the planner's last reason for finding no plan */
    struct err err;
    json_t *spec;    /* owned: the specification that the class's jobs share; after a fallback, a copy
                           whose placement kind, stages and schedule are "auto" */
    bool asked_for;  /* one of the class's jobs has requested the profiles that the class lacks */
    bool any_kind;   /* the class fell back to any kind of placement */
    bool kind_asked; /* it was decided whether the forced kind of placement fits the present devices */
    /* why the class fell back: a sentence to which the name of the kind that its jobs run as is added */
    char fell[600];
    struct fact model, train, eval, profiles;
    char key[DIGEST_HEX_SIZE];
    uint64_t spare_bytes; /* bytes by which each device counts as having more memory than it has */
    /* Masks over the view's devices. known: devices ever seen that the specification allows. allowed: known
     * devices that are present. usable: allowed devices that are free. wanted: devices that a job of the
     * class waits for. */
    bool *known, *allowed, *usable, *wanted;
    size_t known_count, allowed_count, usable_count;
    /* placement.count: number of devices that a job may take; devices_most 0: any number */
    uint16_t devices_least, devices_most;
    /* [device_count] each device's speed on this class, relative to the reference device's; 0: not
     * measured */
    double *speeds;
    char reference[160]; /* the device whose speed counts as 1; "": none is measured */
    struct class_question *questions;
    size_t question_count, question_capacity;
};

/* Makes the class of the jobs with this specification and these inputs, which are borrowed for the class's
 * life. If `digest` is NULL, the class's digest is computed. */
int job_class_init(struct scheduler_pass *pass, const json_t *spec, const json_t *inputs,
                   const uint8_t digest[DIGEST_SIZE], struct job_class *class);
void job_class_fini(struct job_class *class);
/* Finds the devices that the class may use and those that are free for it now. */
void job_class_devices(const struct scheduler_pass *pass, struct job_class *class);
/* Fetches the model, the data sets and the profiles of the class. Returns 1 when all are there, 0 while one
 * is being fetched, -1 with err. */
int job_class_facts(struct scheduler_pass *pass, struct job_class *class, struct err *err);
/* Fills class->speeds from its profiles. */
void job_class_speeds(const struct scheduler_pass *pass, struct job_class *class);
/* Returns a new object {device: speed} of the devices that the class may use; the speed of an unmeasured
 * device is 1. */
json_t *job_class_speeds_document(const struct scheduler_pass *pass, const struct job_class *class);

/* Plans the class on the devices of `mask`. Returns 1 with *answer, 0 while the planner is searching, -1 on
 * failure. With `now`, each device counts with its present speed and free memory; otherwise with the speed
 * and memory that it has when it is cool and no other process uses it. */
int job_class_plan(struct scheduler_pass *pass, const struct job_class *class, const bool *mask, bool now,
                   const struct placer_move *move, struct placer_answer *answer, struct err *err);
/* Finds the class's best plan on at most `most` (0: any number) of the devices `among`, as struct
 * policy_planner describes. `there`: the devices that are present and fit. */
enum policy_fit job_class_best(struct scheduler_pass *pass, struct job_class *class,
                               const struct device_set *there, const struct device_set *among, uint16_t most,
                               struct policy_plan *plan);

/* Whether job_class_best would answer without asking the planner. */
bool job_class_is_known(const struct scheduler_pass *pass, const struct job_class *class,
                        const struct device_set *among, uint16_t most);

/* Gets the whole plan that job_class_best found and described by `plan`. Returns 1 with *answer, 0 while the
 * planner makes it again, -1 when there is none. */
int job_class_get(struct scheduler_pass *pass, struct job_class *class, const struct device_set *there,
                  const struct policy_plan *plan, struct placer_answer *answer);

/* job_class_word returns the text of a key of `placement`, or "". job_class_forces_kind tells whether the
 * specification asks for one kind of placement. */
const char *job_class_word(const struct job_class *class, const char *key);
bool job_class_forces_kind(const struct job_class *class);
/* Lets the class be planned as any kind of placement from now on. */
int job_class_any_kind(struct scheduler_pass *pass, struct job_class *class);

/* device_is_taken: whether processes outside Motley hold memory of the device that plans count on.
 * device_can_start: whether the device is present, reachable, not drained, does not leave and lacks nothing
 * that a worker needs. device_is_there: whether it is that, and not taken in that sense. */
bool device_is_taken(const struct store_sched_device *device);
bool device_can_start(const struct scheduler_pass *pass, size_t device);
bool device_is_there(const struct scheduler_pass *pass, size_t device);

#endif
