/* Tests the life of a run, which is a pure function, on many random cases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "scheduler/events/events.h"
#include "scheduler/pass/lifecycle.h"
#include "scheduler/pass/pauses.h"

static uint64_t rng_state = 20260101;

static uint32_t draw(uint32_t bound)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % bound;
}

static void back_off_doubles_up_to_its_bound(void **state)
{
    (void)state;
    assert_int_equal(pause_backoff_ms(1, 1000, 60000), 1000);
    assert_int_equal(pause_backoff_ms(3, 1000, 60000), 4000);
    assert_int_equal(pause_backoff_ms(7, 1000, 60000), 60000);
    assert_int_equal(pause_backoff_ms(4000000000u, 1000, 60000), 60000);
}

/* ---- the life of a run ---- */

enum { RANKS = 3 };

struct life {
    struct store_sched_run run;
    struct store_sched_job job;
    struct store_sched_rank ranks[RANKS];
    struct rank_facts facts[RANKS];
    struct run_verdict verdict;
    int64_t now_us, save_wait_ms, start_wait_ms;
    bool awaited;
};

static const struct scheduler_limits limits = {
    .stop_ms = 1000, .checkpoint_stop_ms = 5000, .kill_ms = 1000, .retry_ms_min = 100, .retry_ms_max = 1000};

static void life_make(struct life *life, enum run_state run, enum job_state job, enum assignment_state rank)
{
    static char device[] = "left/cpu0", code[] = "not-finite", why[] = "loss is NaN";
    *life =
        (struct life){.now_us = 1000000000, .save_wait_ms = 5000, .start_wait_ms = 60000, .awaited = true};
    life->run = (struct store_sched_run){.id = 1, .job = 1, .epoch = 1, .state = run, .rank_count = RANKS};
    life->run.created_us = life->now_us;
    life->run.ranks = life->ranks;
    life->job = (struct store_sched_job){.id = 1, .state = job, .attempt = 1, .retries_max = 2};
    for (int i = 0; i < RANKS; i++) {
        life->ranks[i] = (struct store_sched_rank){
            .rank = (uint32_t)i, .device = device, .state = rank, .code = code, .why = why};
    }
    if (run == RUN_STOPPING)
        life->run.stopping_us = life->now_us;
}

static const struct run_verdict *decide(struct life *life)
{
    const struct run_facts facts = {.ranks = life->facts,
                                    .save_wait_ms = life->save_wait_ms,
                                    .start_wait_ms = life->start_wait_ms,
                                    .awaited = life->awaited};
    lifecycle_decide(&life->run, &life->job, &facts, &limits, life->now_us, &life->verdict);
    return &life->verdict;
}

static void a_wait_follows_the_predicted_step_between_its_bounds(void **state)
{
    (void)state;
    assert_int_equal(pause_wait_ms(0.5, 20, 60000, 86400000), 60000);
    /* 600 s would be too few for one step of 1200 s. */
    assert_int_equal(pause_wait_ms(1200, 20, 60000, 86400000), 24000000);
    assert_int_equal(pause_wait_ms(1e9, 20, 60000, 86400000), 86400000);
    assert_int_equal(pause_wait_ms(0, 20, 60000, 86400000), 60000);
    assert_int_equal(pause_wait_ms(100, 20, 60000, 1000), 60000);
}

static void peers_are_told_when_the_last_rank_is_ready(void **state)
{
    struct life life;
    (void)state;
    life_make(&life, RUN_STARTING, JOB_STARTING, ASSIGNMENT_READY);
    life.ranks[1].state = ASSIGNMENT_SENT;
    assert_int_equal(decide(&life)->action, RUN_ACTION_WAIT);
    life.ranks[1].state = ASSIGNMENT_READY;
    assert_int_equal(decide(&life)->action, RUN_ACTION_PEERS);
}

static void a_run_that_was_done_before_it_was_told_its_peers_runs_first_and_then_ends(void **state)
{
    struct life life;
    (void)state;
    life_make(&life, RUN_STARTING, JOB_STARTING, ASSIGNMENT_DONE);
    assert_int_equal(decide(&life)->action, RUN_ACTION_PEERS);
    life_make(&life, RUN_RUNNING, JOB_RUNNING, ASSIGNMENT_DONE);
    assert_int_equal(decide(&life)->action, RUN_ACTION_FINISH);
    assert_int_equal(life.verdict.job_event, JOB_EVENT_DONE);
}

/* Rank 0 is done once the result is stored: what fails or is lost afterwards is said, and takes nothing away.
 */
static void a_stored_result_is_a_success_whatever_fails_behind_it(void **state)
{
    struct life life;
    char why[] = "no\xc3\xa4";
    (void)state;
    life_make(&life, RUN_RUNNING, JOB_RUNNING, ASSIGNMENT_DONE);
    life.ranks[1].state = ASSIGNMENT_LOST;
    assert_int_equal(decide(&life)->action, RUN_ACTION_FINISH);
    assert_int_equal(life.verdict.job_event, JOB_EVENT_DONE);
    assert_string_equal(life.verdict.text, "the result is stored; loss is NaN");
    life.ranks[2].state = ASSIGNMENT_RUNNING;
    assert_int_equal(decide(&life)->action, RUN_ACTION_STOP);
    for (int i = 0; i < RANKS; i++)
        life.ranks[i].why = NULL;
    life.run.state = RUN_STOPPING;
    life.job.state = JOB_STOPPING;
    life.ranks[2].state = ASSIGNMENT_STOPPED;
    life.ranks[1].why = why;
    assert_int_equal(decide(&life)->action, RUN_ACTION_FINISH);
    assert_int_equal(life.verdict.job_event, JOB_EVENT_DONE);
    assert_string_equal(life.verdict.text,
                        "the result is stored; left/cpu0 was lost after the last step: no\xc3\xa4");
    life_make(&life, RUN_RUNNING, JOB_RUNNING, ASSIGNMENT_DONE);
    life.ranks[0].state = ASSIGNMENT_LOST;
    assert_int_equal(decide(&life)->action, RUN_ACTION_STOP);
}

static void a_start_that_takes_too_long_is_a_loss(void **state)
{
    struct life life;
    (void)state;
    life_make(&life, RUN_STARTING, JOB_STARTING, ASSIGNMENT_SENT);
    assert_int_equal(decide(&life)->check_us, life.now_us + 60000000);
    life.now_us += 60000000;
    assert_int_equal(decide(&life)->action, RUN_ACTION_STOP);
    assert_int_equal(life.verdict.why, STOP_LOST);
    assert_non_null(strstr(life.verdict.text, "the worker of left/cpu0, "));
    assert_non_null(strstr(life.verdict.text, " was not ready within 60 s"));
}

static void a_fault_wins_over_the_losses_it_causes(void **state)
{
    struct life life;
    (void)state;
    life_make(&life, RUN_RUNNING, JOB_RUNNING, ASSIGNMENT_RUNNING);
    life.ranks[0].state = ASSIGNMENT_FAILED; /* the rank reports that its peer is gone */
    assert_int_equal(decide(&life)->action, RUN_ACTION_STOP);
    assert_int_equal(life.verdict.why, STOP_LOST);
    life_make(&life, RUN_STOPPING, JOB_STOPPING, ASSIGNMENT_STOPPED);
    life.job.stop_why = life.run.stop_why = STOP_LOST;
    life.ranks[0].state = life.ranks[2].state = ASSIGNMENT_FAILED;
    life.ranks[2].own_fault = true;
    assert_int_equal(decide(&life)->action, RUN_ACTION_FINISH);
    assert_int_equal(life.verdict.job_event, JOB_EVENT_FAULT);
    assert_string_equal(life.verdict.code, "not-finite");
    assert_int_equal(life.verdict.losses, 0);
}

/* A node that cannot start a worker costs the job no retry, and pauses grow with the attempts. */
static void a_nodes_fault_is_no_loss_of_the_job(void **state)
{
    static char code[] = "node-fault", why[] = "libopenblas.so.0 is missing";
    struct life life;
    (void)state;
    life_make(&life, RUN_STOPPING, JOB_STOPPING, ASSIGNMENT_STOPPED);
    life.job.stop_why = life.run.stop_why = STOP_LOST;
    life.job.retries_max = 0;
    life.ranks[1].state = ASSIGNMENT_FAILED;
    life.ranks[1].code = code;
    life.ranks[1].why = why;
    assert_int_equal(decide(&life)->action, RUN_ACTION_FINISH);
    assert_int_equal(life.verdict.job_event, JOB_EVENT_REQUEUE);
    assert_int_equal(life.verdict.losses, 0);
    assert_non_null(strstr(life.verdict.text, "libopenblas.so.0 is missing"));
    const uint32_t first_ms = life.verdict.delay_ms;
    life.run.lost_before = 2;
    assert_int_equal(decide(&life)->delay_ms, 4 * first_ms);
}

/* The rank that did not answer is named, not those that waited for it. */
static void the_rank_that_did_not_answer_is_blamed(void **state)
{
    static char timeout[] = "timeout", cancelled[] = "cancelled", right[] = "right/cpu0", peer[] = "peer";
    struct life life;
    (void)state;
    life_make(&life, RUN_RUNNING, JOB_RUNNING, ASSIGNMENT_RUNNING);
    life.ranks[0].state = ASSIGNMENT_FAILED;
    life.ranks[0].code = timeout;
    assert_int_equal(decide(&life)->action, RUN_ACTION_STOP);
    assert_null(strstr(life.verdict.text, "lost left/cpu0"));
    life_make(&life, RUN_STOPPING, JOB_STOPPING, ASSIGNMENT_FAILED);
    life.job.stop_why = life.run.stop_why = STOP_LOST;
    life.run.killed_us = life.now_us;
    life.ranks[0].code = life.ranks[2].code = timeout;
    life.ranks[1].code = cancelled;
    life.ranks[1].device = right;
    assert_int_equal(decide(&life)->job_event, JOB_EVENT_REQUEUE);
    assert_non_null(strstr(life.verdict.text, "right/cpu0 did not answer"));
    life.ranks[0].code = cancelled; /* it did not stop because of rank 1, which ended by itself */
    life.ranks[1].code = peer;
    assert_non_null(strstr(decide(&life)->text, "lost right/cpu0: "));
}

static void a_stop_is_killed_and_then_given_up(void **state)
{
    struct life life;
    (void)state;
    life_make(&life, RUN_STOPPING, JOB_STOPPING, ASSIGNMENT_RUNNING);
    life.run.stop_why = life.job.stop_why = STOP_CANCEL;
    assert_int_equal(decide(&life)->action, RUN_ACTION_WAIT);
    life.now_us = life.verdict.check_us;
    assert_int_equal(decide(&life)->action, RUN_ACTION_KILL);
    life.run.killed_us = life.now_us;
    assert_int_equal(decide(&life)->action, RUN_ACTION_WAIT);
    life.now_us = life.verdict.check_us;
    assert_int_equal(decide(&life)->action, RUN_ACTION_FINISH);
    assert_int_equal(life.verdict.job_event, JOB_EVENT_CANCELLED);
}

/* A run that must yield is asked for a checkpoint. It stops once that is stored, and goes on if the
 * checkpoint is late or no job waits for the devices any more. */
static void a_run_yields_only_with_a_checkpoint(void **state)
{
    struct life life;
    (void)state;
    life_make(&life, RUN_RUNNING, JOB_RUNNING, ASSIGNMENT_RUNNING);
    life.run.save_for = 7;
    life.run.saved_us = life.now_us - 1; /* the last checkpoint is older than the request for one */
    life.run.save_asked_us = life.now_us;
    life.run.save_by_us = life.now_us + 9000000;
    assert_int_equal(decide(&life)->action, RUN_ACTION_WAIT);
    assert_int_equal(life.verdict.check_us, life.run.save_by_us);
    life.now_us = life.run.save_by_us;
    assert_int_equal(decide(&life)->action, RUN_ACTION_GO_ON);
    assert_true(life.verdict.missed && strstr(life.verdict.text, "was not stored within 9 s"));
    life.run.saved_us = life.run.save_asked_us + 1;
    assert_int_equal(decide(&life)->action, RUN_ACTION_STOP);
    assert_int_equal(life.verdict.why, STOP_PREEMPT);
    assert_false(life.verdict.checkpoint);
    assert_string_equal(life.verdict.text, "yields to job 7");
    life.awaited = false; /* the other job has started elsewhere or is gone */
    assert_int_equal(decide(&life)->action, RUN_ACTION_GO_ON);
    assert_false(life.verdict.missed);
    life.ranks[1].state = ASSIGNMENT_LOST;
    assert_int_equal(decide(&life)->why, STOP_LOST);
}

/* A run that stops may take save_wait_ms for its checkpoint. If it is killed after that, this does not count
 * as a loss of the job. */
static void a_slow_checkpoint_is_waited_for_and_is_no_loss(void **state)
{
    static const enum stop_why whys[] = {STOP_DRAIN, STOP_YIELD, STOP_PREEMPT, STOP_SLICE};
    struct life life;
    (void)state;
    life_make(&life, RUN_STOPPING, JOB_STOPPING, ASSIGNMENT_RUNNING);
    life.run.stop_why = life.job.stop_why = STOP_DRAIN;
    life.save_wait_ms = 900000;
    assert_int_equal(decide(&life)->action, RUN_ACTION_WAIT);
    assert_int_equal(life.verdict.check_us, life.now_us + 900000000);
    for (size_t i = 0; i < 4; i++) {
        life_make(&life, RUN_STOPPING, JOB_STOPPING, ASSIGNMENT_LOST);
        life.run.stop_why = life.job.stop_why = whys[i];
        life.run.killed_us = life.now_us - 1;
        assert_int_equal(decide(&life)->job_event, JOB_EVENT_REQUEUE);
        assert_int_equal(life.verdict.losses, 0);
        life.run.killed_us = 0; /* a worker that is lost by itself is a loss */
        assert_int_equal(decide(&life)->losses, 1);
    }
}

struct ending {
    const char *what;
    enum stop_why why;
    bool advanced;
    int64_t start_step;
    enum job_event event;
    const char *ended_by;
};

/* A time limit ends a job that has a checkpoint as succeeded so far, which `resume` continues. */
static void a_time_limit_ends_a_job_as_succeeded_so_far(void **state)
{
    static const struct ending endings[] = {
        {"its checkpoint is stored", STOP_TIME, true, 0, JOB_EVENT_DONE, "time_limit"},
        {"it has one of an earlier attempt", STOP_TIME, false, 40, JOB_EVENT_DONE, "time_limit"},
        {"it has none", STOP_TIME, false, 0, JOB_EVENT_FAULT, NULL},
        {"its slice is over", STOP_SLICE, true, 0, JOB_EVENT_REQUEUE, NULL},
        {"it is cancelled", STOP_CANCEL, true, 0, JOB_EVENT_CANCELLED, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        struct life life;
        life_make(&life, RUN_STOPPING, JOB_STOPPING, ASSIGNMENT_STOPPED);
        life.run.stop_why = life.job.stop_why = endings[i].why;
        life.run.advanced = endings[i].advanced;
        life.run.start_step = endings[i].start_step;
        decide(&life);
        const char *by = life.verdict.ended_by;
        if (life.verdict.action != RUN_ACTION_FINISH || life.verdict.job_event != endings[i].event ||
            !by != !endings[i].ended_by || (by && strcmp(by, endings[i].ended_by) != 0) ||
            life.verdict.losses != 0)
            fail_msg("%s: event %d, ended by %s", endings[i].what, (int)life.verdict.job_event,
                     by ? by : "nothing");
    }
}

static void losses_are_bounded(void **state)
{
    struct life life;
    (void)state;
    for (uint32_t losses = 0; losses < 5; losses++) {
        life_make(&life, RUN_STOPPING, JOB_STOPPING, ASSIGNMENT_LOST);
        life.run.stop_why = life.job.stop_why = STOP_LOST;
        life.job.losses = life.run.lost_before = losses;
        assert_int_equal(decide(&life)->action, RUN_ACTION_FINISH);
        assert_int_equal(life.verdict.losses, losses + 1);
        assert_int_equal(life.verdict.job_event, losses < 2 ? JOB_EVENT_REQUEUE : JOB_EVENT_FAULT);
    }
}

/* A job may be lost any number of times as long as each attempt stores a newer checkpoint. */
static void a_newer_checkpoint_makes_losses_good(void **state)
{
    struct life life;
    (void)state;
    /* This attempt stored the checkpoint, or an earlier attempt did that was not lost. */
    for (int won = 0; won < 2; won++) {
        life_make(&life, RUN_STOPPING, JOB_STOPPING, ASSIGNMENT_LOST);
        life.run.stop_why = life.job.stop_why = STOP_LOST;
        life.job.losses = 500;
        life.run.lost_before = won ? 0 : 500;
        life.run.advanced = won == 0;
        assert_int_equal(decide(&life)->job_event, JOB_EVENT_REQUEUE);
        assert_int_equal(life.verdict.losses, 1);
    }
}

static uint32_t pause_after(uint32_t losses, uint32_t lost_before, bool advanced, int64_t lasted_ms)
{
    struct life life;
    life_make(&life, RUN_STOPPING, JOB_STOPPING, ASSIGNMENT_LOST);
    life.run.stop_why = life.job.stop_why = STOP_LOST;
    life.job.retries_max = 1000;
    life.job.losses = losses;
    life.run.lost_before = lost_before;
    life.run.advanced = advanced;
    life.now_us += lasted_ms * 1000;
    assert_int_equal(decide(&life)->job_event, JOB_EVENT_REQUEUE);
    return life.verdict.delay_ms;
}

static void a_pause_grows_in_a_loop_of_crashes_and_forgets_losses_once_a_checkpoint_is_won(void **state)
{
    (void)state;
    assert_int_equal(pause_after(0, 0, false, 0), 100);
    assert_int_equal(pause_after(3, 3, false, 0), 800);
    assert_int_equal(pause_after(40, 40, false, 0), 1000);
    /* Of the job's 40 losses only 2 came after its last checkpoint, and only these lengthen the pause. */
    assert_int_equal(pause_after(40, 2, false, 0), 400);
    /* A person has resumed the job, which resets its losses. */
    assert_int_equal(pause_after(0, 9, false, 0), 100);
    assert_int_equal(pause_after(40, 40, true, 0), 0);
    /* The pause of 1000 ms counts from the beginning of the attempt, which lasted 300 ms. */
    assert_int_equal(pause_after(40, 40, false, 300), 700);
    assert_int_equal(pause_after(40, 40, false, 5000), 0);
    assert_int_equal(pause_after(40, 40, false, -5000), 1000); /* the clock was set back */
}

/* For any state of ranks and losses, the state tables have a transition for every verdict, and a run without
 * a living rank never just waits. */
static void any_facts_give_a_verdict_that_the_tables_know(void **state)
{
    struct err err;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct life life;
        enum run_state run = (enum run_state)draw(3);
        enum job_state job = run == RUN_STOPPING  ? JOB_STOPPING
                             : run == RUN_RUNNING ? JOB_RUNNING
                                                  : JOB_STARTING;
        life_make(&life, run, job, ASSIGNMENT_SENT);
        if (run != RUN_STOPPING && draw(4) == 0) {
            life.job.state = JOB_STOPPING;
            life.job.stop_why = draw(2) == 0 ? STOP_CANCEL : STOP_HOLD;
        }
        if (run == RUN_STOPPING)
            life.run.stop_why = life.job.stop_why = (enum stop_why)(1 + draw(STOP_WHYS - 1));
        uint32_t living = 0;
        for (int i = 0; i < RANKS; i++) {
            life.ranks[i].state = (enum assignment_state)draw(ASSIGNMENT_STATES);
            life.ranks[i].own_fault = draw(3) == 0;
            life.facts[i] =
                (struct rank_facts){.gone = draw(6) == 0, .drained = draw(6) == 0, .gone_why = "gone"};
            living +=
                !state_is_final(&assignment_machine, (int)life.ranks[i].state) && !life.facts[i].gone ? 1 : 0;
        }
        life.job.losses = draw(4);
        life.run.lost_before = draw(4);
        life.run.save_by_us = run == RUN_RUNNING && draw(3) == 0 ? life.now_us : 0;
        life.run.save_for = draw(2);
        life.run.saved_us = life.now_us * (int64_t)draw(2);
        life.awaited = draw(2) == 0;
        life.job.time_limit_ms = draw(2) * 1000;
        life.now_us += (int64_t)draw(100000) * 1000;
        const struct run_verdict *verdict = decide(&life);
        if (verdict->action == RUN_ACTION_PEERS) {
            assert_true(state_next(&run_machine, (int)run, RUN_EVENT_READY, &err) >= 0);
            assert_true(state_next(&job_machine, (int)life.job.state, JOB_EVENT_READY, &err) >= 0);
        } else if (verdict->action == RUN_ACTION_STOP) {
            assert_true(state_next(&run_machine, (int)run, RUN_EVENT_STOP, &err) >= 0);
            assert_true(state_next(&job_machine, (int)life.job.state, JOB_EVENT_STOP, &err) >= 0);
            assert_true(verdict->why != STOP_NONE);
        } else if (verdict->action == RUN_ACTION_FINISH) {
            assert_true(state_next(&run_machine, (int)run, (int)verdict->run_event, &err) >= 0);
            assert_true(state_next(&job_machine, (int)life.job.state, (int)verdict->job_event, &err) >= 0);
        } else if (verdict->action == RUN_ACTION_WAIT) {
            assert_true(living > 0);
        }
    }
}

/* Returns the routing that is stored for a checkpoint event with this routing, or NULL if the event is
 * refused. */
static json_t *taken(const char *routing)
{
    struct life life;
    struct event_batch batch;
    struct err err;
    char node[] = "a", device[] = "a/cpu0", boot[] = "b", none[] = "";
    struct store_sched_node nodes = {
        .name = node, .boot = boot, .machine_id = none, .address = none, .reachable = true};
    struct store_view view = {.runs = &life.run,
                              .run_count = 1,
                              .jobs = &life.job,
                              .job_count = 1,
                              .nodes = &nodes,
                              .node_count = 1};
    life = (struct life){.run = {.id = 1, .job = 1, .epoch = 1, .rank_count = 1, .ranks = life.ranks},
                         .job = {.id = 1},
                         .ranks = {{.node = node, .device = device, .state = ASSIGNMENT_RUNNING}}};
    json_t *event = json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:{}, s:o}", "type", "checkpoint",
                              "node", node, "boot", boot, "seq", 1, "run", 1, "epoch", 1, "rank", 0, "step",
                              4, "blobs", "expert_share", json_loads(routing, JSON_DECODE_ANY, NULL));
    assert_non_null(event);
    assert_int_equal(event_batch_init(&batch, &view, &err), 0);
    int rc = event_batch_add(&batch, event, &err);
    if (rc < 0)
        assert_non_null(strstr(err.text, "expert_share"));
    json_t *row = json_array_get(batch.ingest.checkpoints, 0);
    assert_int_equal(rc < 0, row == NULL);
    json_t *share = json_incref(json_object_get(row, "expert_share"));
    event_batch_fini(&batch);
    json_decref(event);
    return share;
}

static void a_checkpoint_brings_the_routing_of_its_steps(void **state)
{
    (void)state;
    static const char *const refused[] = {
        "7",        "[]", "[7]", "[[]]", "[[0, 0]]", "[[1, -1]]", "[[0.5, 0.7], [1, 2]]", "[[0.5, 0.5], [1]]",
        "[[\"1\"]]"};
    json_t *share = taken("[null, [0.25, 0.75], [1, 0]]");
    assert_int_equal(json_array_size(share), 3);
    assert_true(json_number_value(json_array_get(json_array_get(share, 1), 1)) == 0.75);
    json_decref(share);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        assert_null(taken(refused[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(back_off_doubles_up_to_its_bound),
        cmocka_unit_test(a_wait_follows_the_predicted_step_between_its_bounds),
        cmocka_unit_test(peers_are_told_when_the_last_rank_is_ready),
        cmocka_unit_test(a_run_that_was_done_before_it_was_told_its_peers_runs_first_and_then_ends),
        cmocka_unit_test(a_stored_result_is_a_success_whatever_fails_behind_it),
        cmocka_unit_test(a_start_that_takes_too_long_is_a_loss),
        cmocka_unit_test(a_fault_wins_over_the_losses_it_causes),
        cmocka_unit_test(a_nodes_fault_is_no_loss_of_the_job),
        cmocka_unit_test(the_rank_that_did_not_answer_is_blamed),
        cmocka_unit_test(a_stop_is_killed_and_then_given_up),
        cmocka_unit_test(a_run_yields_only_with_a_checkpoint),
        cmocka_unit_test(a_slow_checkpoint_is_waited_for_and_is_no_loss),
        cmocka_unit_test(a_time_limit_ends_a_job_as_succeeded_so_far),
        cmocka_unit_test(losses_are_bounded),
        cmocka_unit_test(a_newer_checkpoint_makes_losses_good),
        cmocka_unit_test(a_pause_grows_in_a_loop_of_crashes_and_forgets_losses_once_a_checkpoint_is_won),
        cmocka_unit_test(a_checkpoint_brings_the_routing_of_its_steps),
        cmocka_unit_test(any_facts_give_a_verdict_that_the_tables_know),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
