/* One round of decisions over one view.
 *
 * A pass fills the arrays of a store_decision. A new run and new measurements need ids: the pass asks the
 * database for them, composes the rows when the ids have come, and then writes everything in one transaction.
 */
#ifndef MOTLEY_SCHEDULER_PASS_PASS_H
#define MOTLEY_SCHEDULER_PASS_PASS_H

#include "scheduler/leader/scheduler_private.h"

struct scheduler_pass {
    struct scheduler *scheduler;
    struct store_view *view; /* the scheduler's view, which stays while the pass lives */
    uint64_t now_ns;
    json_t *ranks_lost, *runs, *jobs, *waits, *requests, *unreachable, *messages, *runs_new, *links, *said;
    json_t *ended;                 /* ids of the runs that end: their messages are dropped after the commit */
    bool *free_devices, *reserved; /* [view->device_count] */
    /* the next pass begins at this time of the view's clock at the latest; 0: when something changes */
    int64_t check_us;
    bool failed; /* an allocation failed: nothing is written */

    const struct store_sched_job *placed; /* the job that starts, or NULL */
    struct placer_answer answer;
    json_t *placed_model, *placed_train, *placed_eval; /* documents for the assignments; owned */
};

/* pass_rows.c. Appends `row`, which it takes over. */
void pass_add(struct scheduler_pass *pass, json_t *array, json_t *row);
/* Adds a message to the outbox; run 0 means that it belongs to no run. Takes `payload` over. */
void pass_message(struct scheduler_pass *pass, const char *node, int64_t run, const char *type,
                  json_t *payload);
/* Makes the next pass begin at `at_us` of the view's clock at the latest. */
void pass_check_at(struct scheduler_pass *pass, int64_t at_us);
/* Records why a queued job waits, if the text differs from the recorded one. */
void pass_wait(struct scheduler_pass *pass, const struct store_sched_job *job, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Returns the view's node of that name, or NULL. */
const struct store_sched_node *pass_node(const struct scheduler_pass *pass, const char *name);

/* pass_runs.c decides about nodes and active runs. */
void pass_nodes(struct scheduler_pass *pass);
void pass_runs(struct scheduler_pass *pass);

/* pass_move.c weighs a run again when its devices have become slower or faster. Returns true when the run is
 * to stop and go on elsewhere; `text` says why. */
bool pass_must_move(struct scheduler_pass *pass, const struct store_sched_run *run, char *text, size_t size);
/* drops the notes on runs that have ended; call it after pass_must_move was asked about all runs */
void pass_forget_weighings(struct scheduler_pass *pass);

/* pass_place.c finds the free devices, walks the queue and places at most one job. */
void pass_queue(struct scheduler_pass *pass);
/* Weighs whether a run should go on as it does, on its own devices and, where no job waits, on free ones.
 * `asked` holds the id, spec and inputs of its job. Returns 1 with the decision in answer->answer; 0 while
 * facts or the plan are under way; -1 on failure. */
int pass_weigh_move(struct scheduler_pass *pass, const struct store_sched_run *run,
                    const struct store_sched_job *asked, const struct placer_move *move,
                    struct placer_answer *answer, struct err *err);
/* Composes the run, its assignments and the messages, with the ids in `numbers`. */
void pass_compose_run(struct scheduler_pass *pass, const json_t *numbers);

/* pass_measure.c asks for profiles and links. */
void pass_links(struct scheduler_pass *pass);
/* Returns true when the job can be planned with the profiles and links there are. Otherwise asks for what is
 * missing, records that the job waits, and returns false. */
bool pass_profiles(struct scheduler_pass *pass, const struct store_sched_job *job, const bool *allowed,
                   const bool *usable, const char *key, const json_t *profiles, const json_t *model);
/* Writes the ids of the requests into their rows and messages. */
void pass_number_requests(struct scheduler_pass *pass, const json_t *numbers);

/* Whether a profile of the device is being measured. */
bool pass_is_measured(const struct scheduler_pass *pass, const struct store_sched_device *device);

#endif
