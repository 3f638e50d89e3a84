/* One round of decisions over one view.
 *
 * A pass fills the arrays of a store_decision. A new run and new measurements need ids: the pass asks the
 * database for them, composes the rows when the ids have come, and then writes everything in one transaction.
 */
#ifndef MOTLEY_SCHEDULER_PASS_PASS_H
#define MOTLEY_SCHEDULER_PASS_PASS_H

#include "scheduler/leader/scheduler_private.h"
#include "scheduler/policy/policy.h"

/* A job that starts. */
struct pass_start {
    const struct store_sched_job *job; /* a job of the queue in memory */
    /* Read together with the ids, and borrowed from that answer: the job's documents, its last complete
     * checkpoint (step -1 and blobs NULL: none) and the smallest held-out loss up to that checkpoint (NAN:
     * unknown). */
    json_t *spec, *inputs, *checkpoint_blobs;
    int64_t checkpoint_step;
    double best_loss;
    struct placer_answer answer;
    json_t *model, *train, *eval; /* documents for the assignments; owned */
    double step_s;                /* predicted seconds of a step */
    char key[DIGEST_HEX_SIZE];    /* of the profiles that the plan rests on */
    /* For the ledger. speeds: {device: speed relative to the reference device's}, owned; reference: that
     * device ("": none was measured); factor: the charge's factor for the job's service. */
    json_t *speeds;
    char reference[160];
    double factor;
};

struct pass_writing;

struct scheduler_pass {
    struct scheduler *scheduler;
    struct store_view *view; /* the scheduler's view, which stays while the pass lives */
    uint64_t now_ns;
    json_t *ranks_lost, *runs, *jobs, *waits, *places, *ready, *elements, *leases, *requests, *unreachable,
        *messages, *runs_new, *links, *said, *speeds, *measures, *arrivals, *forecasts, *sharing, *saves,
        *sooner, *listing, *ends, *trials;
    uint64_t listing_hash;  /* of the list of the queue in `listing` */
    struct pass_list *list; /* the list of the queue that the pass makes (pass_list.h), or NULL; owned */
    json_t *left_out;       /* {unit: true}: units that this pass does not write (pass_write.c) */
    /* [view->device_count] devices without a job, and devices that are reserved for a job */
    bool *free_devices, *reserved;
    bool free_found;    /* free_devices is filled */
    json_t *free_names; /* {device: true} for each free device, or NULL; owned */
    /* the next pass begins at this time (view's clock) at the latest; 0: it begins when something changes */
    int64_t check_us;
    bool failed;       /* an allocation failed: nothing is written */
    bool failed_alone; /* the only start failed while its documents were read; it is tried once more */
    struct pass_writing *writing; /* the transactions that write the decision, or NULL before */

    struct pass_start *starts;
    size_t start_count, start_capacity;
};

/* pass_rows.c. Appends `row`, which it takes over. */
void pass_add(struct scheduler_pass *pass, json_t *array, json_t *row);
/* Adds a message to the outbox; run 0 means that it belongs to no run. Takes `payload` over. */
void pass_message(struct scheduler_pass *pass, const char *node, int64_t run, const char *type,
                  json_t *payload);
/* Makes the next pass begin at `at_us` (view's clock) at the latest. */
void pass_check_at(struct scheduler_pass *pass, int64_t at_us);
/* Says why a queued job waits, in the list of the queue (pass_list.h): a code, the job that the reason names
 * (-1: none), and a sentence. */
void pass_wait(struct scheduler_pass *pass, const struct store_sched_job *job, const char *code,
               int64_t subject, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* Takes back a predicted start that no longer holds. */
void pass_drop_start(struct scheduler_pass *pass, const struct store_sched_job *job, const char *code);
/* Whether the job may start by now. */
bool pass_is_due(const struct store_sched_job *job, int64_t now_us);

/* pass_write.c. Make and drop the arrays of the decision. */
int pass_arrays_init(struct scheduler_pass *pass);
void pass_arrays_fini(struct scheduler_pass *pass);
/* Writes the decision, without the units that the database refuses. */
enum { UNIT_BYTES = 320 }; /* most bytes of a unit's name */
/* Called when all is written (err NULL; changed: another pass may decide more), or when nothing can be. */
typedef void pass_written_fn(struct scheduler *scheduler, bool changed, const struct err *err);
void pass_write(struct scheduler *scheduler, pass_written_fn *done);
/* NULL is a no-op. */
void pass_writing_destroy(struct pass_writing *writing);
/* Whether the error can be the fault of a unit rather than of the database as a whole. Counts conflicts. */
bool pass_is_at_fault(struct scheduler *scheduler, const struct err *err);
/* Leaves the unit ("job 7") out of all passes for limits.aside_ms. */
void pass_set_aside(struct scheduler_pass *pass, const char *unit, const char *why);
/* Notes that the unit failed alone, and leaves it out. Returns false if so many have failed since the last
 * commit that the units are not at fault: then the pass is given up. */
bool pass_blame(struct scheduler_pass *pass, const char *unit, const char *why);
/* Sets aside what is blamed. `committed`: the database takes decisions, so that the units are at fault. */
void pass_settle_blame(struct scheduler_pass *pass, bool committed);
/* Takes back what is blamed, also where it is set aside. */
void pass_drop_blame(struct scheduler *scheduler);
bool pass_is_aside(const struct scheduler_pass *pass, const char *unit);
/* Takes back the units whose time is over. */
void pass_begin_asides(struct scheduler_pass *pass);
/* Whether the queued job is set aside; says so as the reason why it waits. */
bool pass_wait_aside(struct scheduler_pass *pass, const struct store_sched_job *job);
/* Whether a row of `runs` ends its run. */
bool pass_ends(const json_t *run);

/* Handles an error in planning: refuses the job if it is the job's fault, otherwise tries again later. */
void pass_give_up(struct scheduler_pass *pass, const struct store_sched_job *job, const struct err *err);

/* Returns the code that the API shows for a reason why a job waits. */
const char *pass_wait_code(enum policy_reason reason);
/* Adds a line to the job's log. */
void pass_say(struct scheduler_pass *pass, int64_t job, const char *level, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Return the view's node and device of that name, or NULL. */
const struct store_sched_node *pass_node(const struct scheduler_pass *pass, const char *name);
const struct store_sched_device *pass_device(const struct scheduler_pass *pass, const char *name);

/* pass_record.c records what simulations read later. pass_say_sharing: the policies' settings, once per
 * leader. pass_record_wait: the place and predicted start of a waiting job. pass_record_start: the devices
 * and forecast of a job that starts. pass_record_answer: the planner's answer about a set of devices (plan
 * NULL: nothing fits there). A class is given by its digest. `speeds` is taken over. */
struct policy_plan;
struct device_set;
struct pass_prediction {
    uint32_t place;
    /* predicted start and the range around it; 0: unknown */
    int64_t starts_us, from_us, to_us;
};
void pass_say_sharing(struct scheduler_pass *pass);
void pass_record_wait(struct scheduler_pass *pass, const struct store_sched_job *job,
                      const uint8_t class[DIGEST_SIZE], json_t *speeds,
                      const struct pass_prediction *predicted);
/* Learns from the view how earlier predictions of starts turned out. */
void pass_take_starts(struct scheduler_pass *pass);
/* Finds the range around a predicted start (starts_us 0: unknown) for the job at that place in the queue. */
struct pass_prediction pass_predict(const struct scheduler_pass *pass, uint32_t place, int64_t starts_us);
void pass_record_start(struct scheduler_pass *pass, const struct store_sched_job *job,
                       const uint8_t class[DIGEST_SIZE], json_t *speeds, const struct policy_plan *plan);
void pass_record_answer(struct scheduler_pass *pass, const uint8_t class[DIGEST_SIZE],
                        const struct device_set *devices, const struct policy_plan *plan);

/* pass_leases.c. Records the leases whose charge begins or ends now, and schedules a pass for the next such
 * moment. */
void pass_leases(struct scheduler_pass *pass);
/* Whether a run that has not ended has a rank on the device. */
bool pass_runs_something(const struct scheduler_pass *pass, const char *device);
/* Returns the lease that holds the device now, or NULL. */
const struct store_sched_lease *pass_lease(const struct scheduler_pass *pass, const char *device);
/* Whether jobs are to leave the node: its agent is ending, or its machine is taken away soon. */
bool node_is_leaving(const struct scheduler_pass *pass, const struct store_sched_node *node);
/* Returns a new array of the leases that have not ended, and of the nodes that will leave, as intervals for
 * the policies; their number goes to *count. NULL without memory. */
struct policy_interval *pass_intervals(const struct scheduler_pass *pass, size_t *count);

/* pass_dependents.c decides about jobs that come after others. */
void pass_dependents(struct scheduler_pass *pass);

/* pass_arrays.c makes jobs of the elements of arrays that may start, and ends an array when its elements have
 * ended. */
void pass_arrays(struct scheduler_pass *pass);

/* pass_runs.c decides about nodes and active runs. */
void pass_nodes(struct scheduler_pass *pass);
void pass_runs(struct scheduler_pass *pass);

/* pass_yield.c: runs that make room for other jobs. */
/* Returns the run's seconds per step: the plan's prediction, times the largest ratio of measured to planned
 * compute time among its ranks. */
double pass_step_s(const struct store_sched_run *run);
/* Returns the predicted seconds until a checkpoint of the run is stored: one step, plus the checkpoint's
 * bytes over the rate of the slowest link. The prediction doubles with every checkpoint that was not stored
 * in time. */
double pass_save_s(const struct scheduler_pass *pass, const struct store_sched_run *run);
/* Returns the time that the run is given to store a checkpoint: limits.checkpoint_stop_ms plus twice the
 * predicted time. */
int64_t pass_save_wait_ms(const struct scheduler_pass *pass, const struct store_sched_run *run);
/* Returns how many milliseconds the run's workers may take to be ready: limits.start_least_ms and the time in
 * which their weights come, at most limits.start_ms. */
int64_t pass_start_wait_ms(const struct scheduler_pass *pass, const struct store_sched_run *run);
/* Whether the run can be asked for a checkpoint now. */
bool pass_can_save(const struct scheduler_pass *pass, const struct store_sched_run *run,
                   const struct store_sched_job *job);
/* Asks the run for a checkpoint, after which it stops and goes on elsewhere. for_job: the job that waits for
 * the devices, or 0. */
void pass_ask_save(struct scheduler_pass *pass, const struct store_sched_run *run, const char *why,
                   int64_t for_job);
/* Whether some queued job that waits for devices would go before `job`, which runs, if both were queued. */
bool pass_others_wait(const struct scheduler_pass *pass, const struct store_sched_job *job);
/* Asks the run for a checkpoint if its account's time slice is over and other jobs wait. */
void pass_slice(struct scheduler_pass *pass, const struct store_sched_run *run,
                const struct store_sched_job *job);
/* Whether the run of job `of` was asked for a checkpoint so that it can yield to `job`. */
bool pass_yields_to(const struct scheduler_pass *pass, int64_t of, int64_t job);
/* Carries out a preemption that the policies decided: asks the run for a checkpoint so that it yields to the
 * job. */
void pass_yield(struct scheduler_pass *pass, const struct policy_run *run, enum policy_rule rule,
                int64_t job);

/* pass_move.c compares staying with moving when a run's devices are slower or faster than planned, or when
 * another device is free. Returns true when the run is to stop and go on elsewhere; `text` says why. */
bool pass_must_move(struct scheduler_pass *pass, const struct store_sched_run *run, char *text, size_t size);
/* Drops the records of considered moves (struct run_weighing) of runs that have ended. */
void pass_end_weighings(struct scheduler_pass *pass);
/* Notes that the planner knew all devices that are free now when it planned the run, so they are no reason to
 * move it. */
void pass_note_run(struct scheduler_pass *pass, int64_t run, uint32_t rank_count);
/* pass_moving.c. Notes to which devices the job moves by the decision; drops what is too old. */
void pass_note_move(struct scheduler_pass *pass, int64_t job, const json_t *decision);
/* Whether the job moves, and to which devices, which are added to *to. */
bool pass_moves_to(const struct scheduler_pass *pass, int64_t job, struct device_set *to);
/* Notes that the run of a job that may move has ended. */
void pass_moves_on(struct scheduler_pass *pass, int64_t job);

/* pass_trial.c runs a job's first steps on its best plans in turn. */
/* Begins a trial with the job's first run, if there are plans that may be as fast. */
void pass_begin_trial(struct scheduler_pass *pass, const struct pass_start *start);
/* Looks at a run whose job's trial goes on (run->trial). Returns true when the run is to stop and the job is
 * to go on with another plan; `text` says with which. */
bool pass_try(struct scheduler_pass *pass, const struct store_sched_run *run,
              const struct store_sched_job *job, char *text, size_t size);
/* Ends the trial of a run that has ended for another reason. */
struct run_verdict;
void pass_end_trial(struct scheduler_pass *pass, const struct store_sched_run *run,
                    const struct store_sched_job *job, const struct run_verdict *verdict);
/* Lets the job's next run begin with whatever plan is best then. */
void pass_unpin(struct scheduler_pass *pass, int64_t job);

/* pass_place.c finds the free devices, has the policies decide about the queue, and carries out the
 * decision. */
void pass_find_free(struct scheduler_pass *pass);
/* Whether the specification's placement allows the device. */
bool pass_allows(const json_t *spec, const char *device);
void pass_queue(struct scheduler_pass *pass);
/* pass_take.c. Whether a queued job may start now. While one may, free devices are kept for queued jobs and
 * no run moves to them. */
bool pass_somebody_waits(const struct scheduler_pass *pass);
/* Decides whether a run should stay on its devices or move to others; free devices count only if no job
 * waits. `asked` holds the spec and inputs of the run's job. Returns 1 with the decision in answer->answer,
 * and stores the measured speeds of the run's devices; 0 while facts or the plan are being fetched; -1 on
 * failure. */
int pass_weigh_move(struct scheduler_pass *pass, const struct store_sched_run *run,
                    const struct store_sched_measure *asked, const struct placer_move *move,
                    struct placer_answer *answer, struct err *err);
/* Returns the time since which this leader has seen the device away or unfit; if `away` is false, the view's
 * time. */
int64_t pass_away(struct scheduler_pass *pass, const char *device, bool away);
/* pass_compose.c. Composes the runs, their assignments and the messages, with the ids in `numbers`. */
void pass_compose_runs(struct scheduler_pass *pass, const json_t *numbers);

/* pass_measure.c requests measurements of profiles and links. */
void pass_links(struct scheduler_pass *pass);
/* Requests the links between the nodes of a run that could not begin, as one of them may have closed. */
void pass_measure_again(struct scheduler_pass *pass, const struct store_sched_run *run);
/* Whether the node can open connections to the other, which cannot open any to it. */
bool pass_reaches_alone(const struct scheduler_pass *pass, const char *node, const char *other);
/* Returns true when jobs of the class can be planned with the profiles and links that exist. Otherwise
 * requests the missing ones, records that `job` waits for them (NULL: no job does), and returns false. */
struct job_class;
bool pass_profiles(struct scheduler_pass *pass, const struct store_sched_job *job,
                   const struct job_class *class);
/* Says, if a device that the job may use could not be measured, why not and when it is tried again. Returns
 * whether there is such a device. */
bool pass_wait_unmeasured(struct scheduler_pass *pass, const struct store_sched_job *job,
                          const struct job_class *class);
/* Has devices measured for this class within the next day whenever they are free and their profiles are stale
 * (store_profiles_get). */
void pass_want_measures(struct scheduler_pass *pass, const struct job_class *class);
/* Whether a profile that the class is planned from was measured on a device that was not quiet. */
bool pass_is_doubtful(const struct job_class *class);
/* Whether pass_profiles would return true. */
bool pass_is_measured_for(const struct scheduler_pass *pass, const bool *allowed, const bool *usable,
                          const char *key, const json_t *profiles);
/* Writes the ids of the requests into their rows and messages. */
void pass_number_requests(struct scheduler_pass *pass, const json_t *numbers);

/* Whether a profile of the device is being measured. */
bool pass_is_measured(const struct scheduler_pass *pass, const struct store_sched_device *device);

#endif
