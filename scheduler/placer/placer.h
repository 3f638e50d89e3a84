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
    /* fraction of the device's full speed that throttling leaves, in (0,1] */
    double heat;
    /* speed that runs measured, as a multiple of the profile's speed; 0: not measured */
    double speed;
    const json_t *taught; /* runs that correct forecasts (planner/given/taught.h), or NULL */
};

/* The question whether a running job should move (replay/replan.h). */
struct placer_move {
    const json_t *plan; /* the plan that runs, as plan_to_json writes it */
    /* [rank_count] measured seconds that each rank of that plan computes in a step; 0: unknown */
    const double *compute_s;
    size_t rank_count;
    uint64_t steps_left;
    double restart_s;
    /* consecutive earlier comparisons of staying with moving (pass_move.c) that showed a gain */
    uint32_t windows;
};

struct placer_request {
    const json_t *spec, *inputs;
    const json_t *model; /* the model's document as store_model_get gives it */
    /* row sizes as in struct store_dataset; eval_sizes is NULL without an evaluation set */
    const uint8_t *train_sizes, *eval_sizes;
    size_t train_bytes, eval_bytes;
    const struct placer_device *devices;
    size_t device_count;
    const json_t *const *links; /* link documents */
    size_t link_count;
    /* NULL: the request asks for a plan. Otherwise it asks whether the run should move: `answer` is then the
     * decision as replan_to_json writes it, with `old` and `new` (each
     * {"placement","devices","micro_batch_rows"}; `new` null when no other plan was found) and `speeds`:
     * {device: measured speed as in struct placer_device} of the plan's devices. */
    const struct placer_move *move;
    /* NULL, or a plan (plan_to_json) that the answer has where it can run on the devices, in the place of a
     * search; answer->answer then has "repeats": its digest. */
    const json_t *pinned;
    /* The external planners that may be asked, borrowed until the answer, and a file descriptor: when it
     * becomes readable, the wait for an external planner ends. NULL and 0 when there are none. */
    const struct planners *planners;
    int cancel_fd;
};

struct placer_rank {
    char *device; /* owned */
};

struct placer_answer {
    bool fits;
    char words[480]; /* the verdict with its numbers, for people */
    /* plan: as plan_to_json writes it, set only if the job fits. answer: as `motley plan --json` prints it,
     * with `planner` when an external planner was asked (plug_choose in plug/plug.h). Both are owned. */
    json_t *plan, *answer;
    /* the simulated step, as a text of trace_pack; NULL: there is none, or it is too long; owned */
    json_t *timeline;
    /* [{"digest","placement","devices","step_s","plan"}]: plans of other placements that may be as fast, the
     * fastest first, as many as placement.trials asks for; NULL: none; owned */
    json_t *rivals;
    size_t rank_count;
    struct placer_rank *ranks; /* owned */
};

struct placer {
    /* Pure. Returns 0 and fills *answer (release it with placer_answer_fini), even when nothing fits. Returns
     * -1 when the job cannot be planned at all: ERR_INVALID and ERR_UNSUPPORTED are the job's own fault;
     * after any other error another try may succeed. */
    int (*plan)(const struct placer_request *request, struct placer_answer *answer, struct err *err);
};

/* Computes the key under which the profiles for a job with this specification and model are stored. 'spec'
 * has every default filled in; 'config' is the model's config.json as stored. Fails with ERR_NOMEM or
 * ERR_TOO_BIG. Pure. */
int placer_profile_key(const json_t *spec, const json_t *config, char key[DIGEST_HEX_SIZE], struct err *err);

/* Checks a plan before its slices are sent. A plan that plan_check refuses is a defect of the planner
 * (ERR_INTERNAL); a slice beyond `most` is the job's fault (ERR_TOO_BIG). `json` is the plan as plan_to_json
 * writes it. */
int placer_plan_check(const struct plan *plan, const json_t *json, const struct frame_limits *most,
                      struct err *err);

void placer_answer_fini(struct placer_answer *answer);

/* Asks the built-in planner, and the external planner that the specification or the configuration names. */
extern const struct placer placer_planner;

#endif
