/* Where a job would run on given devices: the scheduler's only sight of the
 * planner, so that the tests of the scheduler can put another in its place.
 */
#ifndef MOTLEY_SCHEDULER_PLACER_H
#define MOTLEY_SCHEDULER_PLACER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/digest.h"
#include "common/err.h"
#include "common/planners.h"
#include "store/sched.h"

struct placer_device {
    const struct store_sched_device *device;
    const json_t *profile; /* document for this job's model and method, or NULL */
    uint64_t memory_bytes; /* that a plan may use */
    double heat;           /* what is left of its speed, (0,1] */
};

/* Should a job that runs move (replay/replan.h)? */
struct placer_move {
    const json_t *plan; /* that runs, codec form */
    uint64_t steps_left;
    double restart_s;
    uint32_t windows; /* looks in a row that showed a gain before this one */
};

struct placer_request {
    const json_t *spec, *inputs;
    const json_t *model;                     /* as store_model_get gives it */
    const uint8_t *train_sizes, *eval_sizes; /* as store_dataset; eval NULL where there is none */
    size_t train_bytes, eval_bytes;
    const struct placer_device *devices;
    size_t device_count;
    const json_t *const *links; /* link documents */
    size_t link_count;
    const struct placer_move *move; /* NULL: a plan is asked for; else `answer` is what replan_to_json says */
    /* Somebody else's planners that may be asked, and what ends a wait for one of them once readable; NULL
     * and 0: nobody's. Borrowed for as long as anything is planned. */
    const struct planners *planners;
    int cancel_fd;
};

struct placer_rank {
    char *device; /* owned */
};

struct placer_answer {
    bool fits;
    char words[480];       /* the verdict with numbers */
    json_t *plan, *answer; /* codec form (only when it fits) and `motley plan --json` form, with `planner`
                              where another was asked (plug/plug.h, plug_choose); owned */
    size_t rank_count;
    struct placer_rank *ranks; /* owned */
};

struct placer {
    /* 0 and *answer (placer_answer_fini) also when nothing fits; -1 with the reason why it cannot be planned
     * at all (the job's fault: ERR_INVALID, ERR_UNSUPPORTED; else worth another try). Pure. */
    int (*plan)(const struct placer_request *request, struct placer_answer *answer, struct err *err);
};

/* Under which key profiles measured for such a job are kept. 'spec' with every default filled, 'config' the
 * model's config.json as stored. ERR_NOMEM, ERR_TOO_BIG. Pure. */
int placer_profile_key(const json_t *spec, const json_t *config, char key[DIGEST_HEX_SIZE], struct err *err);

void placer_answer_fini(struct placer_answer *answer);

/* The planner of this system, and beside it the one that the specification or the configuration names. */
extern const struct placer placer_planner;

#endif
