/* Tests what people are told of a waiting job, over simulated queues: that ranges of predicted starts hold,
 * and that what is said to let a job start sooner does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rand.h"
#include "scheduler/policy/range.h"
#include "scheduler/policy/sooner.h"
#include "tests/scheduler/generate.h"

enum { SEEDS = 3, WIDTHS_MAX = 100000 };

static struct generate_request weeks_of(uint64_t seed, double load)
{
    return (struct generate_request){.seed = seed,
                                     .devices = 8,
                                     .users = 20,
                                     .groups = 4,
                                     .shapes = 12,
                                     .days = 14,
                                     .load = load,
                                     .job_hours = 1,
                                     .spread = 1,
                                     .error = 0.1,
                                     .failures = 2,
                                     .burst = 4};
}

static void draw(const struct generate_request *request, struct generated_world *world)
{
    struct err err;
    if (generate_world(request, world, &err) < 0)
        fail_msg("%s", err.text);
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* ---- ranges ---- */

static void a_range_holds_most_of_what_turned_out_so_far(void **state)
{
    (void)state;
    struct start_history history = {0};
    double from_s = 0, to_s = 0;
    for (int i = 0; i < START_LEAST; i++) { /* the true wait is 1 to 1.15 of the predicted one */
        assert_false(start_range(&history, 100, 1, &from_s, &to_s));
        start_history_add(&history, &(struct start_sample){100, 100 + 0.01 * i * i, 1});
    }
    assert_true(start_range(&history, 200, 1, &from_s, &to_s));
    assert_true(from_s == 200 && fabs(to_s - 224.5) < 1e-9);
    for (int i = 0; i < 3 * START_LEAST; i++) /* the history has no samples near place 500 yet */
        start_history_add(&history, &(struct start_sample){100, 1000.0 * i, 500});
    assert_true(start_range(&history, 200, 1, &from_s, &to_s));
    assert_true(from_s == 200 && fabs(to_s - 224.5) < 1e-9);
    assert_true(start_range(&history, 100, 500, &from_s, &to_s) && to_s > 30000);
}

/* Checks one prediction, drawn at random, for each job that waited: its range holds the real start in seven
 * of eight cases (less three standard deviations), and half of the ranges are narrower than half of the job's
 * wait. */
static void ranges_of_starts_are_mostly_right_and_narrow(void **state)
{
    (void)state;
    static const double loads[] = {0.6, 0.9, 1.1};
    static double widths[WIDTHS_MAX];
    for (size_t l = 0; l < sizeof(loads) / sizeof(loads[0]); l++) {
        size_t count = 0, right = 0, waited = 0;
        for (uint64_t seed = 21; seed < 21 + SEEDS; seed++) {
            const struct generate_request request = weeks_of(seed, loads[l]);
            struct generated_world world;
            struct simulation_result result;
            struct err err;
            draw(&request, &world);
            if (simulation_run(&world.simulation, &result, &err) < 0)
                fail_msg("%s", err.text);
            for (size_t i = 0; i < world.simulation.job_count; i++) {
                const struct simulated_outcome *outcome = &result.outcomes[i];
                const int64_t wait_us = outcome->starts_us - world.jobs[i].arrives_us;
                if (outcome->starts_us == INT64_MAX || wait_us <= 1000000)
                    continue;
                waited++;
                if (outcome->said_count == 0 || outcome->said_to_us == INT64_MAX)
                    continue;
                right += outcome->starts_us >= outcome->said_from_us - 1000000 &&
                         outcome->starts_us <= outcome->said_to_us + 1000000;
                widths[count++] = (double)(outcome->said_to_us - outcome->said_from_us) / (double)wait_us;
                assert_true(count < WIDTHS_MAX);
            }
            simulation_result_fini(&result);
            generated_world_fini(&world);
        }
        qsort(widths, count, sizeof(*widths), compare_doubles);
        printf("seeds 21 to %d, load %.1f: of %zu jobs that waited %zu were told a range; %.3f of these were "
               "right, "
               "as wide as %.2f of the wait at the median\n",
               20 + SEEDS, loads[l], waited, count, (double)right / (double)count, widths[count / 2]);
        assert_true((double)right >= 0.845 * (double)count);
        assert_true(widths[count / 2] <= 0.5);
    }
}

/* ---- what would let a job start sooner ---- */

/* Simulates the queue of a snapshot without new arrivals; each run takes as long as predicted. Returns when
 * the job starts, or INT64_MAX if it does not start before a thousand runs have ended. */
static int64_t start_of(const struct policy_snapshot *from, const struct policy_settings *settings,
                        const struct policy_planner *planner, int64_t now_us, int64_t id)
{
    struct policy_snapshot snapshot = *from;
    struct policy_job *jobs = calloc(from->job_count + 1, sizeof(*jobs));
    struct policy_run *runs = calloc(from->run_count + from->job_count + 1, sizeof(*runs));
    int64_t starts_us = INT64_MAX;
    assert_true(jobs && runs);
    memcpy(jobs, from->jobs, from->job_count * sizeof(*jobs));
    memcpy(runs, from->runs, from->run_count * sizeof(*runs));
    snapshot.jobs = jobs;
    snapshot.runs = runs;
    for (int step = 0; step < 1000 && starts_us == INT64_MAX && snapshot.job_count > 0; step++) {
        struct policy_decision decision;
        struct err err;
        size_t kept = 0;
        int64_t next_us = INT64_MAX;
        if (policy_decide(&snapshot, settings, planner, now_us, &decision, &err) < 0)
            fail_msg("%s", err.text);
        for (size_t i = 0; i < decision.count; i++) {
            const struct policy_action *action = &decision.actions[i];
            struct policy_job *job = &jobs[action->job];
            if (action->verdict != VERDICT_START)
                continue;
            starts_us = job->id == id ? now_us : starts_us;
            runs[snapshot.run_count++] = (struct policy_run){
                .job = job->id,
                .started_us = now_us,
                .ends_us = now_us + (int64_t)ceil(1e6 * action->plan->step_s * (double)job->steps_left),
                .rate = action->plan->rate,
                .user = job->user,
                .account = job->account,
                .service = job->service,
                .devices = action->plan->devices};
            job->id = -1;
        }
        policy_decision_fini(&decision);
        for (size_t i = 0; i < snapshot.job_count; i++)
            if (jobs[i].id >= 0)
                jobs[kept++] = jobs[i];
        snapshot.job_count = kept;
        for (size_t i = 0; i < snapshot.run_count; i++)
            if (runs[i].ends_us > now_us && runs[i].ends_us < next_us)
                next_us = runs[i].ends_us;
        if (next_us == INT64_MAX)
            break;
        now_us = next_us;
        for (size_t i = 0; i < snapshot.run_count;)
            if (runs[i].ends_us <= now_us)
                runs[i] = runs[--snapshot.run_count];
            else
                i++;
    }
    free(jobs);
    free(runs);
    return starts_us;
}

/* Makes the change in a copy of the snapshot, by other code than policy_sooner()'s, and returns when the job
 * then starts. */
static int64_t start_with(const struct policy_snapshot *from, const struct policy_settings *settings,
                          const struct policy_planner *planner, int64_t now_us, size_t job,
                          const struct sooner_change *change)
{
    struct policy_snapshot snapshot = *from;
    struct policy_job *jobs = calloc(from->job_count + 1, sizeof(*jobs));
    struct policy_run *runs = calloc(from->run_count + 1, sizeof(*runs));
    assert_true(jobs && runs);
    memcpy(jobs, from->jobs, from->job_count * sizeof(*jobs));
    snapshot.run_count = 0;
    for (size_t i = 0; i < from->run_count; i++)
        if (change->kind != SOONER_RUN || from->runs[i].job != change->subject)
            runs[snapshot.run_count++] = from->runs[i];
    if (change->kind == SOONER_STEPS)
        jobs[job].steps_left = (int64_t)change->number;
    else if (change->kind == SOONER_SHAPE)
        jobs[job].shape = (uint32_t)change->subject;
    else if (change->kind == SOONER_DEVICE)
        device_set_add(&snapshot.present, (size_t)change->subject);
    else
        assert_int_equal(change->kind, SOONER_RUN);
    snapshot.jobs = jobs;
    snapshot.runs = runs;
    const int64_t starts_us = start_of(&snapshot, settings, planner, now_us, jobs[job].id);
    free(jobs);
    free(runs);
    return starts_us;
}

static struct {
    struct rand_stream stream;
    size_t asked, answered, claims, right, at_once;
    size_t promises, early; /* early: promised starts before whose half the job starts */
} questions;

/* Counts, for one job that the decision promises a later start, whether it starts much earlier although
 * nothing changes. */
static void check_promise(const struct policy_snapshot *snapshot, const struct policy_settings *settings,
                          const struct policy_planner *planner, int64_t now_us,
                          const struct policy_decision *decision)
{
    const size_t from = rand_stream_below(&questions.stream, (uint32_t)decision->count);
    for (size_t i = from; i < decision->count; i++) {
        const struct policy_action *action = &decision->actions[i];
        if (action->verdict != VERDICT_WAIT || action->starts_us == INT64_MAX)
            continue;
        const int64_t starts_us =
            start_of(snapshot, settings, planner, now_us, snapshot->jobs[action->job].id);
        questions.promises++;
        questions.early += starts_us - now_us < (action->starts_us - now_us) / 2 ? 1 : 0;
        return;
    }
}

/* Decides like the usual policy. In about every tenth decision it also asks, for one job, which changes would
 * let the job start sooner, and checks the answers. */
static int asking_policy(const struct policy_snapshot *snapshot, const struct policy_settings *settings,
                         const struct policy_planner *planner, int64_t now_us,
                         struct policy_decision *decision, struct err *err)
{
    struct sooner_change found[SOONER_MAX];
    int64_t starts_us;
    const bool asks = rand_stream_below(&questions.stream, 10) == 0;
    if (asks) {
        const size_t job = rand_stream_below(&questions.stream, (uint32_t)snapshot->job_count);
        const uint32_t shape = (snapshot->jobs[job].shape + 1) % 12;
        const struct sooner_question question = {snapshot, settings, planner, now_us, job, &shape, 1};
        const int count = policy_sooner(&question, found, &starts_us, err);
        if (count < 0)
            return -1;
        const int64_t before_us =
            count > 0 ? start_of(snapshot, settings, planner, now_us, snapshot->jobs[job].id) : 0;
        questions.asked++;
        questions.answered += count > 0 ? 1 : 0;
        for (int i = 0; i < count; i++) {
            assert_true(i == 0 || found[i].starts_us >= found[i - 1].starts_us);
            questions.claims++;
            questions.at_once += found[i].starts_us == now_us ? 1 : 0;
            questions.right +=
                start_with(snapshot, settings, planner, now_us, job, &found[i]) < before_us ? 1 : 0;
        }
    }
    const int rc = policy_decide(snapshot, settings, planner, now_us, decision, err);
    if (asks && rc == 0)
        check_promise(snapshot, settings, planner, now_us, decision);
    return rc;
}

static void what_is_said_to_be_sooner_is(void **state)
{
    (void)state;
    static const double loads[] = {0.6, 0.9, 1.1};
    rand_stream_init(&questions.stream, 31, 1);
    for (size_t l = 0; l < sizeof(loads) / sizeof(loads[0]); l++) {
        const struct generate_request request = weeks_of(31 + l, loads[l]);
        struct generated_world world;
        struct simulation_result result;
        struct err err;
        draw(&request, &world);
        world.simulation.policy = asking_policy;
        if (simulation_run(&world.simulation, &result, &err) < 0)
            fail_msg("%s", err.text);
        simulation_result_fini(&result);
        generated_world_fini(&world);
    }
    printf("seeds 31 to 33: %zu questions, %zu with an answer; %zu claims, %zu of a start at once; %.4f are "
           "true\n",
           questions.asked, questions.answered, questions.claims, questions.at_once,
           (double)questions.right / (double)questions.claims);
    printf("%zu promised starts, %zu of jobs that start in less than half of the time\n", questions.promises,
           questions.early);
    assert_true(questions.promises > 200 && 40 * questions.early <= questions.promises);
    assert_true(questions.claims > 500);
    assert_true((double)questions.right >= 0.99 * (double)questions.claims);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_range_holds_most_of_what_turned_out_so_far),
        cmocka_unit_test(ranges_of_starts_are_mostly_right_and_narrow),
        cmocka_unit_test(what_is_said_to_be_sooner_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
