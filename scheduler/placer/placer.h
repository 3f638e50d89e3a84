/* Asks on which of the given devices a job would run, and with which plan. The scheduler sees the planner
 * only through this interface, so its tests can put another planner in its place.
 */
#ifndef MOTLEY_SCHEDULER_PLACER_PLACER_H
#define MOTLEY_SCHEDULER_PLACER_PLACER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/digest.h"
#include "common/err.h"
#include "common/frame.h"
#include "common/planners.h"
#include "store/sched.h"

struct plan;

struct placer_device {
    const struct store_sched_device *device;
    const json_t *profile; /* profile for this job's model and method, or NULL */
    uint64_t memory_bytes; /* memory that a plan may use */
    double heat;           /* fraction of its speed that throttling leaves, in (0,1] */
    double speed;          /* speed that runs measured, as a multiple of the profile's; 0: not measured */
};

/* The question whether a running job should move (replay/replan.h). */
struct placer_move {
    const json_t *plan; /* the plan that runs, as plan_to_json writes it */
    /* [rank_count] seconds that each rank of that plan needs to compute a step, as measured; 0: unknown */
    const double *compute_s;
    size_t rank_count;
    uint64_t steps_left;
    double restart_s;
    uint32_t windows; /* consecutive weighings before this one that showed a gain */
};

struct placer_request {
    const json_t *spec, *inputs;
    const json_t *model; /* as store_model_get gives it */
    /* row sizes as in struct store_dataset; eval_sizes is NULL without an evaluation set */
    const uint8_t *train_sizes, *eval_sizes;
    size_t train_bytes, eval_bytes;
    const struct placer_device *devices;
    size_t device_count;
    const json_t *const *links; /* link documents */
    size_t link_count;
    /* NULL: a plan is asked for; otherwise `answer` is the decision as replan_to_json writes it, with `old`
     * and `new` (each {"placement","devices","micro_batch_rows"}; `new` null when nothing else was found) and
     * `speeds`: {device: its speed as measured, as struct placer_device has it} of the plan's devices */
    const struct placer_move *move;
    /* The external planners that may be asked, and a file descriptor that ends the wait for one of them when
     * it becomes readable. NULL and 0 when there are none. Borrowed until the answer. */
    const struct planners *planners;
    int cancel_fd;
};

struct placer_rank {
    char *device; /* owned */
};

struct placer_answer {
    bool fits;
    char words[480]; /* the verdict with numbers */
    /* `plan`: as plan_to_json writes it, only when it fits. `answer`: as `motley plan --json` prints it, with
     * `planner` when an external planner was asked (plug_choose in plug/plug.h). Both owned */
    json_t *plan, *answer;
    json_t *timeline; /* the simulated step, as a text of trace_pack; NULL: none, or too long. Owned */
    size_t rank_count;
    struct placer_rank *ranks; /* owned */
};

struct placer {
    /* Pure. Returns 0 and fills *answer (release it with placer_answer_fini), even when nothing fits. Returns
     * -1 when the job cannot be planned at all: ERR_INVALID and ERR_UNSUPPORTED are the job's own fault;
     * after any other error another try may succeed. */
    int (*plan)(const struct placer_request *request, struct placer_answer *answer, struct err *err);
};

/* Computes the key under which profiles for such a job are stored. 'spec' has every default filled in;
 * 'config' is the model's config.json as stored. Fails with ERR_NOMEM or ERR_TOO_BIG. Pure. */
int placer_profile_key(const json_t *spec, const json_t *config, char key[DIGEST_HEX_SIZE], struct err *err);

/* Checks a plan before its slices are sent: what plan_check refuses is a defect of the planner
 * (ERR_INTERNAL), and a slice beyond `most` is the job's fault (ERR_TOO_BIG). `json` is the plan as
 * plan_to_json writes it. */
int placer_plan_check(const struct plan *plan, const json_t *json, const struct frame_limits *most,
                      struct err *err);
/* Returns a plan as workers from before slices read it, new, or NULL. */
json_t *placer_plan_before_slices(const json_t *plan, struct err *err);

void placer_answer_fini(struct placer_answer *answer);

/* The built-in planner, and beside it the external planner that the specification or the configuration names.
 */
extern const struct placer placer_planner;

#endif
