/* One round of decisions over one view.
 *
 * A pass fills the arrays of a store_decision; what a placement or a measurement
 * needs numbers for is composed when they have come; then all is written at once.
 */
#ifndef MOTLEY_SCHEDULER_PASS_H
#define MOTLEY_SCHEDULER_PASS_H

#include "scheduler/scheduler_private.h"

struct pass {
    struct scheduler *scheduler;
    struct store_view *view; /* the scheduler's; stays while the pass lives */
    uint64_t now_ns;
    json_t *ranks_lost, *runs, *jobs, *waits, *requests, *unreachable, *messages, *runs_new, *links, *said;
    json_t *ended;                 /* run ids that end: their messages are void after the commit */
    bool *free_devices, *reserved; /* [view->device_count] */
    int64_t check_us;              /* look again then at the latest (the view's clock); 0: on news */
    bool failed;                   /* an allocation failed: nothing is written */

    const struct store_sched_job *placed; /* or NULL */
    struct placer_answer answer;
    json_t *placed_model, *placed_train, *placed_eval; /* documents for the assignments; owned */
};

/* pass_rows.c. Take `row` over. */
void pass_add(struct pass *pass, json_t *array, json_t *row);
/* A message for the outbox; run 0: of no run. Takes `payload` over. */
void pass_message(struct pass *pass, const char *node, int64_t run, const char *type, json_t *payload);
/* The next pass is to come at `at_us` of the view's clock at the latest. */
void pass_check_at(struct pass *pass, int64_t at_us);
/* Says why a queued job waits (only where that is new). */
void pass_wait(struct pass *pass, const struct store_sched_job *job, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The view's node of that name, or NULL. */
const struct store_sched_node *pass_node(const struct pass *pass, const char *name);

/* pass_runs.c: nodes and active runs. */
void pass_nodes(struct pass *pass);
void pass_runs(struct pass *pass);

/* pass_move.c: a run whose devices are slower, or faster again, than when last looked at. True: it is to stop
 * and go on elsewhere; why is in `text`. */
bool pass_must_move(struct pass *pass, const struct store_sched_run *run, char *text, size_t size);
void pass_forget_looks(struct pass *pass); /* of runs that are no more; after all were asked about */

/* pass_place.c: free devices, the queue, at most one placement. */
void pass_queue(struct pass *pass);
/* Should a run go on as it does, on its own devices and, where no job waits, free ones? `asked` has its job's
 * id, spec and inputs. 1: the answer's `answer` says; 0: facts or the plan are under way; -1. */
int pass_weigh_move(struct pass *pass, const struct store_sched_run *run, const struct store_sched_job *asked,
                    const struct placer_move *move, struct placer_answer *answer, struct err *err);
/* With the numbers given: the run, its assignments, the messages. */
void pass_compose_run(struct pass *pass, const json_t *numbers);

/* pass_measure.c: profiles and links. */
void pass_links(struct pass *pass);
/* True when the job can be planned with what there is; false: it waits (and says so). */
bool pass_profiles(struct pass *pass, const struct store_sched_job *job, const bool *allowed,
                   const bool *usable, const char *key, const json_t *profiles, const json_t *model);
/* Gives the requests and their messages their ids. */
void pass_number_requests(struct pass *pass, const json_t *numbers);

/* Whether the device has an open measurement. */
bool pass_is_measured(const struct pass *pass, const struct store_sched_device *device);

#endif
