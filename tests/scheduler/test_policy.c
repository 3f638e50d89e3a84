/* The queue's order and the life of a run: pure functions, tried on many random cases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "scheduler/pass/lifecycle.h"
#include "scheduler/pass/policy.h"

static uint64_t rng_state = 20260101;

static uint32_t draw(uint32_t bound)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % bound;
}

static void the_order_is_priority_then_first_come(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        struct policy_job jobs[40];
        size_t order[40];
        bool seen[40] = {false};
        size_t count = draw(41);
        for (size_t i = 0; i < count; i++) {
            jobs[i] = (struct policy_job){.id = (int64_t)draw(1000) * 64 + (int64_t)i,
                                          .priority = (int)draw(5) - 2};
        }
        policy_order(jobs, count, order);
        for (size_t i = 0; i < count; i++) {
            assert_true(order[i] < count && !seen[order[i]]);
            seen[order[i]] = true;
            if (i > 0) {
                const struct policy_job *a = &jobs[order[i - 1]], *b = &jobs[order[i]];
                assert_true(a->priority > b->priority || (a->priority == b->priority && a->id < b->id));
            }
        }
    }
}

static void usable_is_free_and_not_reserved(void **state)
{
    (void)state;
    const bool free_devices[4] = {true, true, false, false}, reserved[4] = {true, false, true, false};
    bool usable[4];
    assert_int_equal(policy_usable(free_devices, reserved, 4, usable), 1);
    assert_true(usable[1] && !usable[0] && !usable[2] && !usable[3]);
}

static void back_off_doubles_up_to_its_bound(void **state)
{
    (void)state;
    assert_int_equal(policy_backoff_ms(1, 1000, 60000), 1000);
    assert_int_equal(policy_backoff_ms(3, 1000, 60000), 4000);
    assert_int_equal(policy_backoff_ms(7, 1000, 60000), 60000);
    assert_int_equal(policy_backoff_ms(4000000000u, 1000, 60000), 60000);
}

/* ---- lives ---- */

enum { RANKS = 3 };

struct life {
    struct store_sched_run run;
    struct store_sched_job job;
    struct store_sched_rank ranks[RANKS];
    struct rank_facts facts[RANKS];
    struct run_verdict verdict;
    int64_t now_us;
};

static const struct scheduler_limits limits = {.start_ms = 60000,
                                               .stop_ms = 1000,
                                               .checkpoint_stop_ms = 5000,
                                               .kill_ms = 1000,
                                               .retry_ms_min = 100,
                                               .retry_ms_max = 1000};

static void life_make(struct life *life, enum run_state run, enum job_state job, enum assignment_state rank)
{
    static char device[] = "left/cpu0", code[] = "not-finite", why[] = "loss is NaN";
    *life = (struct life){.now_us = 1000000000};
    life->run = (struct store_sched_run){.id = 1, .job = 1, .epoch = 1, .state = run, .rank_count = RANKS};
    life->run.created_us = life->now_us;
    life->run.ranks = life->ranks;
    life->job = (struct store_sched_job){.id = 1, .state = job, .attempt = 1, .retries_max = 2};
    for (int i = 0; i < RANKS; i++) {
        life->ranks[i] = (struct store_sched_rank){
            .rank = (uint32_t)i, .device = device, .state = rank, .code = code, .why = why};
    }
    if (run == RUN_STOPPING) {
        life->run.stopping_us = life->now_us;
    }
}

static const struct run_verdict *decide(struct life *life)
{
    lifecycle_decide(&life->run, &life->job, life->facts, &limits, life->now_us, &life->verdict);
    return &life->verdict;
}

static void a_wait_follows_the_predicted_step_between_its_bounds(void **state)
{
    (void)state;
    assert_int_equal(policy_wait_ms(0.5, 20, 60000, 86400000), 60000);
    assert_int_equal(policy_wait_ms(1200, 20, 60000, 86400000),
                     24000000); /* 600 s were too few for one step */
    assert_int_equal(policy_wait_ms(1e9, 20, 60000, 86400000), 86400000);
    assert_int_equal(policy_wait_ms(0, 20, 60000, 86400000), 60000);
    assert_int_equal(policy_wait_ms(100, 20, 60000, 1000), 60000);
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

static void a_start_that_takes_too_long_is_a_loss(void **state)
{
    struct life life;
    (void)state;
    life_make(&life, RUN_STARTING, JOB_STARTING, ASSIGNMENT_SENT);
    assert_int_equal(decide(&life)->check_us, life.now_us + 60000000);
    life.now_us += 60000000;
    assert_int_equal(decide(&life)->action, RUN_ACTION_STOP);
    assert_int_equal(life.verdict.why, STOP_LOST);
}

static void a_fault_wins_over_the_losses_it_causes(void **state)
{
    struct life life;
    (void)state;
    life_make(&life, RUN_RUNNING, JOB_RUNNING, ASSIGNMENT_RUNNING);
    life.ranks[0].state = ASSIGNMENT_FAILED; /* its peer is gone, it says */
    assert_int_equal(decide(&life)->action, RUN_ACTION_STOP);
    assert_int_equal(life.verdict.why, STOP_LOST);
    life_make(&life, RUN_STOPPING, JOB_STOPPING, ASSIGNMENT_STOPPED);
    life.job.stop_why = life.run.stop_why = STOP_LOST;
    life.ranks[0].state = life.ranks[2].state = ASSIGNMENT_FAILED;
    life.ranks[2].own_fault = true;
    assert_int_equal(decide(&life)->action, RUN_ACTION_FINISH);
    assert_int_equal(life.verdict.job_event, JOB_EVENT_FAULT);
    assert_string_equal(life.verdict.code, "not-finite");
    assert_false(life.verdict.loss);
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

static void losses_are_bounded(void **state)
{
    struct life life;
    (void)state;
    for (uint32_t losses = 0; losses < 5; losses++) {
        life_make(&life, RUN_STOPPING, JOB_STOPPING, ASSIGNMENT_LOST);
        life.run.stop_why = life.job.stop_why = STOP_LOST;
        life.job.losses = losses;
        assert_int_equal(decide(&life)->action, RUN_ACTION_FINISH);
        assert_true(life.verdict.loss);
        assert_int_equal(life.verdict.job_event, losses < 2 ? JOB_EVENT_REQUEUE : JOB_EVENT_FAULT);
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
    assert_int_equal(pause_after(40, 2, false, 0), 400); /* the others were lost before a later checkpoint */
    assert_int_equal(pause_after(0, 9, false, 0), 100);  /* a person has let it begin anew */
    assert_int_equal(pause_after(40, 40, true, 0), 0);
    assert_int_equal(pause_after(40, 40, false, 300),
                     700); /* attempts begin so far apart, whatever their length */
    assert_int_equal(pause_after(40, 40, false, 5000), 0);
    assert_int_equal(pause_after(40, 40, false, -5000), 1000); /* the clock was set back */
}

/* Whatever the facts: every verdict has its line in the tables, and a run that nobody lives in never just
 * waits. */
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
        if (run == RUN_STOPPING) {
            life.run.stop_why = life.job.stop_why = (enum stop_why)(1 + draw(STOP_WHYS - 1));
        }
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_order_is_priority_then_first_come),
        cmocka_unit_test(usable_is_free_and_not_reserved),
        cmocka_unit_test(back_off_doubles_up_to_its_bound),
        cmocka_unit_test(a_wait_follows_the_predicted_step_between_its_bounds),
        cmocka_unit_test(peers_are_told_when_the_last_rank_is_ready),
        cmocka_unit_test(a_run_that_was_done_before_it_was_told_its_peers_runs_first_and_then_ends),
        cmocka_unit_test(a_start_that_takes_too_long_is_a_loss),
        cmocka_unit_test(a_fault_wins_over_the_losses_it_causes),
        cmocka_unit_test(a_stop_is_killed_and_then_given_up),
        cmocka_unit_test(losses_are_bounded),
        cmocka_unit_test(a_pause_grows_in_a_loop_of_crashes_and_forgets_losses_once_a_checkpoint_is_won),
        cmocka_unit_test(any_facts_give_a_verdict_that_the_tables_know),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
