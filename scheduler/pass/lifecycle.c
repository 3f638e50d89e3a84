/* Decides the life of a run from facts.
 *
 * The order of the tests matters. Ranks that have ended are counted before anybody's wish is looked at. A
 * fault of the job's own comes before a loss, because a failing rank breaks its peers' connections and their
 * complaints may arrive first. A person's wish comes before the scheduler's own reasons.
 */
#include "scheduler/pass/lifecycle.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "model/text/utf8.h"
#include "scheduler/pass/pauses.h"

struct tally {
    uint32_t living, done, stopped, failed, gone;
    /* ranks that are ready or further; a rank without peers does not wait for addresses, so it counts as
     * ready */
    uint32_t ready;
    const struct store_sched_rank *own;  /* the first rank that failed by the job's own fault */
    const struct store_sched_rank *lost; /* the first rank that failed or was lost otherwise */
    const char *lost_why;
    const struct store_sched_rank *drained; /* the first rank on a draining or leased device */
    const char *leased_by;                  /* who leased that device, or NULL */
    /* the first rank that lives on a node whose agent is ending, or was ended by it; and one that the agent
     * ended before it had stopped */
    const struct store_sched_rank *leaving, *cut;
};

static void lifecycle_say(struct run_verdict *verdict, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void lifecycle_say(struct run_verdict *verdict, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(verdict->text, sizeof(verdict->text), fmt, args);
    va_end(args);
    verdict->text[utf8_check(verdict->text, strlen(verdict->text))] = '\0'; /* no cut character */
}

/* A rank that reports a broken connection or a timeout reports another rank's end, not its own. */
static bool is_consequence(const struct store_sched_rank *rank)
{
    return rank->state == ASSIGNMENT_FAILED && rank->code &&
           (strcmp(rank->code, err_code_name(ERR_NET)) == 0 ||
            strcmp(rank->code, err_code_name(ERR_TIMEOUT)) == 0);
}

/* Whether the node's agent ended the rank's worker, or did not start it, because the agent itself is ending.
 */
static bool was_ended(const struct store_sched_rank *rank)
{
    return rank->state == ASSIGNMENT_FAILED && rank->code &&
           strcmp(rank->code, err_code_name(ERR_CANCELLED)) == 0;
}

/* Whether the node could not start the rank's worker, or its agent, which was ending, did not: by now the
 * next agent may have said hello. */
static bool is_node_fault(const struct store_sched_run *run, const struct store_sched_rank *rank)
{
    return (rank->state == ASSIGNMENT_FAILED && rank->code &&
            strcmp(rank->code, err_code_name(ERR_NODE)) == 0) ||
           (run->started_us == 0 && run->killed_us == 0 && was_ended(rank));
}

/* Whether the rank did not stop when it was told to, so that it was killed. */
static bool was_silent(const struct store_sched_run *run, const struct store_sched_rank *rank)
{
    return run->killed_us != 0 && rank->state == ASSIGNMENT_FAILED && rank->code &&
           strcmp(rank->code, err_code_name(ERR_CANCELLED)) == 0;
}

/* How well a lost rank explains the end of a run: one that ended by itself explains it better than one that
 * did not answer, and that one better than those who waited for it. */
static int explains(const struct store_sched_run *run, const struct store_sched_rank *rank)
{
    return is_consequence(rank) ? 0 : was_silent(run, rank) ? 1 : 2;
}

static void note_loss(struct tally *tally, const struct store_sched_run *run,
                      const struct store_sched_rank *rank, const char *why)
{
    if (!tally->lost || explains(run, rank) > explains(run, tally->lost)) {
        tally->lost = rank;
        tally->lost_why = why ? why : "it ended without a reason";
    }
}

/* Says which rank was lost and how: a rank that waited for others in vain is not lost itself. */
static void say_lost(char *text, size_t size, const struct store_sched_run *run, const struct tally *tally)
{
    const char *device = tally->lost->device;
    if (is_consequence(tally->lost))
        snprintf(text, size, "%s waited for others in vain: %s", device, tally->lost_why);
    else if (was_silent(run, tally->lost))
        snprintf(text, size, "%s did not answer, and was killed", device);
    else
        snprintf(text, size, "lost %s: %s", device, tally->lost_why);
}

static struct tally count_ranks(const struct store_sched_run *run, const struct rank_facts *facts)
{
    struct tally tally = {0};
    for (uint32_t i = 0; i < run->rank_count; i++) {
        const struct store_sched_rank *rank = &run->ranks[i];
        switch (rank->state) {
        case ASSIGNMENT_DONE:
            tally.done++;
            tally.ready++;
            continue;
        case ASSIGNMENT_STOPPED:
            tally.stopped++;
            tally.leaving = !tally.leaving && facts[i].leaving ? rank : tally.leaving;
            continue;
        case ASSIGNMENT_FAILED:
            tally.failed++;
            if (facts[i].leaving && was_ended(rank)) {
                tally.cut = rank;
                tally.leaving = tally.leaving ? tally.leaving : rank;
                continue;
            }
            if (rank->own_fault && !tally.own)
                tally.own = rank;
            else if (!rank->own_fault)
                note_loss(&tally, run, rank, rank->why);
            continue;
        case ASSIGNMENT_LOST:
            tally.gone++;
            note_loss(&tally, run, rank, rank->why);
            continue;
        default:
            break;
        }
        if (facts[i].gone) {
            tally.gone++;
            note_loss(&tally, run, rank, facts[i].gone_why);
            continue;
        }
        tally.living++;
        tally.ready += rank->state != ASSIGNMENT_SENT ? 1 : 0;
        tally.leaving = !tally.leaving && facts[i].leaving ? rank : tally.leaving;
        if ((facts[i].drained || facts[i].leased_by) && !tally.drained) {
            tally.drained = rank;
            tally.leased_by = facts[i].leased_by;
        }
    }
    return tally;
}

static void lifecycle_earliest(int64_t *check_us, int64_t at_us)
{
    if (*check_us == 0 || at_us < *check_us)
        *check_us = at_us;
}

static int64_t time_left_ms(const struct store_sched_run *run, const struct store_sched_job *job,
                            int64_t now_us)
{
    return job->time_limit_ms - job->used_ms - (now_us - run->created_us) / 1000;
}

static void lifecycle_stop(struct run_verdict *verdict, enum stop_why why, bool checkpoint)
{
    verdict->action = RUN_ACTION_STOP;
    verdict->why = why;
    verdict->checkpoint = checkpoint;
}

/* Decides about a run that was asked for a checkpoint. The run stops only once the checkpoint is stored. If
 * it is not stored in time, or no job waits for the devices any more, the run goes on. Returns whether this
 * settles the verdict. */
static bool decide_asked(const struct store_sched_run *run, const struct run_facts *facts, int64_t now_us,
                         struct run_verdict *verdict)
{
    const bool late = now_us >= run->save_by_us;
    if (run->save_by_us == 0)
        return false;
    if (facts->awaited && run->saved_us >= run->save_asked_us) {
        lifecycle_stop(verdict, run->save_for > 0 ? STOP_PREEMPT : STOP_SLICE, false);
        if (run->save_for > 0)
            lifecycle_say(verdict, "yields to job %lld", (long long)run->save_for);
        else
            lifecycle_say(verdict, "its slice is over");
        return true;
    }
    if (!facts->awaited || late) {
        verdict->action = RUN_ACTION_GO_ON;
        verdict->missed = facts->awaited;
        if (verdict->missed)
            lifecycle_say(verdict, "its checkpoint was not stored within %.0f s: it keeps its devices",
                          1e-6 * (double)(run->save_by_us - run->save_asked_us));
        return true;
    }
    lifecycle_earliest(&verdict->check_us, run->save_by_us);
    return false;
}

/* Whether no rank runs any more and the result is stored: rank 0 is done once it has stored it, and the other
 * ranks have nothing to do afterwards that the result needs. */
static bool lifecycle_is_complete(const struct store_sched_run *run, const struct tally *tally)
{
    return tally->living == 0 && run->ranks[0].state == ASSIGNMENT_DONE;
}

/* Finishes a run whose result is stored, and says what failed after its last step. */
static void finish_done(const struct store_sched_run *run, const struct tally *tally,
                        struct run_verdict *verdict)
{
    char text[LIFECYCLE_TEXT] = "";
    verdict->action = RUN_ACTION_FINISH;
    verdict->run_event = RUN_EVENT_DONE;
    verdict->job_event = JOB_EVENT_DONE;
    for (uint32_t i = 0; i < run->rank_count; i++) {
        const struct store_sched_rank *rank = &run->ranks[i];
        const size_t used = strlen(text);
        if (rank->state == ASSIGNMENT_DONE && rank->why && !strstr(text, rank->why))
            snprintf(text + used, sizeof(text) - used, "%s%s", used ? "; " : "", rank->why);
    }
    if (text[0] != '\0')
        lifecycle_say(verdict, "the result is stored; %s", text);
    else if (tally->lost)
        lifecycle_say(verdict, "the result is stored; %s was lost after the last step: %s",
                      tally->lost->device, tally->lost_why);
}

/* Says who was not ready in time. */
static void say_unready(const struct store_sched_run *run, const struct run_facts *facts,
                        struct run_verdict *verdict)
{
    size_t used = 0;
    char names[LIFECYCLE_TEXT / 2] = "";
    for (uint32_t i = 0; i < run->rank_count && used < sizeof(names); i++)
        if (run->ranks[i].state == ASSIGNMENT_SENT)
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "",
                                     run->ranks[i].device);
    lifecycle_say(verdict,
                  "the worker of %s was not ready within %lld s, which is long for what it has to load",
                  names, (long long)facts->start_wait_ms / 1000);
}

/* Whether the run was lost only because an agent that is ending ended one of its workers. */
static bool excused(const struct tally *tally)
{
    return tally->cut && (!tally->lost || is_consequence(tally->lost));
}

/* Decides about a run that is starting or running. */
static void decide_active(const struct store_sched_run *run, const struct store_sched_job *job,
                          const struct tally *tally, const struct run_facts *facts, int64_t now_us,
                          struct run_verdict *verdict)
{
    if (lifecycle_is_complete(run, tally) && run->state == RUN_RUNNING) {
        finish_done(run, tally, verdict);
        return;
    }
    if (tally->own) {
        lifecycle_stop(verdict, STOP_FAULT, false);
        return;
    }
    if (tally->lost && !excused(tally)) {
        lifecycle_stop(verdict, STOP_LOST, false);
        say_lost(verdict->text, sizeof(verdict->text), run, tally);
        return;
    }
    if (job->state == JOB_STOPPING) {
        lifecycle_stop(verdict, job->stop_why, true);
        return;
    }
    if (tally->leaving) {
        lifecycle_stop(verdict, STOP_DRAIN, true);
        lifecycle_say(verdict, "the agent of %s is stopping", tally->leaving->node);
        return;
    }
    if (tally->stopped > 0) {
        lifecycle_stop(verdict, STOP_LOST, false);
        lifecycle_say(verdict, "a worker was stopped by its agent");
        return;
    }
    if (tally->drained) {
        lifecycle_stop(verdict, STOP_DRAIN, true);
        if (tally->leased_by)
            lifecycle_say(verdict, "%s is leased by %s", tally->drained->device, tally->leased_by);
        else
            lifecycle_say(verdict, "%s is being drained", tally->drained->device);
        return;
    }
    if (decide_asked(run, facts, now_us, verdict))
        return;
    if (job->time_limit_ms > 0) {
        int64_t left_ms = time_left_ms(run, job, now_us);
        if (left_ms <= 0) {
            lifecycle_stop(verdict, STOP_TIME, true);
            return;
        }
        lifecycle_earliest(&verdict->check_us, now_us + left_ms * 1000);
    }
    if (run->state == RUN_STARTING) {
        if (tally->ready == run->rank_count) {
            verdict->action = RUN_ACTION_PEERS;
            return;
        }
        int64_t until_us = run->created_us + facts->start_wait_ms * 1000;
        if (now_us >= until_us) {
            lifecycle_stop(verdict, STOP_LOST, false);
            say_unready(run, facts, verdict);
            return;
        }
        lifecycle_earliest(&verdict->check_us, until_us);
    }
}

/* Decides about a run that is stopping while a rank still lives. */
static void decide_stopping(const struct store_sched_run *run, const struct run_facts *facts,
                            const struct scheduler_limits *limits, int64_t now_us,
                            struct run_verdict *verdict)
{
    const bool checkpoint = run->stop_why != STOP_LOST && run->stop_why != STOP_FAULT &&
                            run->stop_why != STOP_PREEMPT && run->stop_why != STOP_SLICE;
    int64_t wait_ms = checkpoint ? facts->save_wait_ms : limits->stop_ms;
    int64_t until_us = run->stopping_us + wait_ms * 1000;
    if (run->killed_us != 0)
        until_us = run->killed_us + (int64_t)limits->kill_ms * 1000;
    if (now_us < until_us)
        lifecycle_earliest(&verdict->check_us, until_us);
    else if (run->killed_us == 0)
        verdict->action = RUN_ACTION_KILL;
    else
        verdict->action = RUN_ACTION_FINISH;
}

/* Returns the earlier losses that count against the job: those since its last new checkpoint and since a
 * person let it start over. Steps after the last checkpoint do not cancel losses, because the next attempt
 * repeats those steps. */
static uint32_t losses_before(const struct store_sched_run *run, const struct store_sched_job *job)
{
    if (run->advanced)
        return 0;
    return run->lost_before < job->losses ? run->lost_before : job->losses;
}

/* Returns the pause before the next attempt, which bounds how often attempts without progress begin. The
 * pause counts from the beginning of the attempt that ended, and doubles with each loss in a row without a
 * new checkpoint. After a new checkpoint there is no pause, since a job writes a limited number of
 * checkpoints. */
static uint32_t pause_ms(const struct store_sched_run *run, const struct store_sched_job *job,
                         const struct scheduler_limits *limits, int64_t now_us)
{
    const int64_t lasted_ms = (now_us - run->created_us) / 1000;
    const int64_t whole_ms =
        pause_backoff_ms(losses_before(run, job) + 1, limits->retry_ms_min, limits->retry_ms_max);
    return run->advanced || lasted_ms >= whole_ms ? 0
                                                  : (uint32_t)(whole_ms - (lasted_ms > 0 ? lasted_ms : 0));
}

/* Finishes a run after a loss. The text names a rank that was lost itself as the cause, or else the first
 * reason that was recorded (run->why). */
static void finish_lost(const struct store_sched_run *run, const struct store_sched_job *job,
                        const struct tally *tally, const struct scheduler_limits *limits, int64_t now_us,
                        struct run_verdict *verdict)
{
    char cause[300] = "a worker was lost";
    if (tally->lost && (!is_consequence(tally->lost) || !run->why))
        say_lost(cause, sizeof(cause), run, tally);
    else if (run->why)
        snprintf(cause, sizeof(cause), "%s", run->why);
    verdict->run_event = RUN_EVENT_LOSE;
    verdict->job_event = JOB_EVENT_REQUEUE;
    if (tally->lost && is_node_fault(run, tally->lost)) {
        /* No loss of the job's: it is tried again as long as there are nodes, after pauses that grow. */
        verdict->delay_ms =
            pause_backoff_ms(run->lost_before + 1, limits->retry_ms_min, limits->retry_ms_max);
        lifecycle_say(verdict, "attempt %u was not started (%s)", job->attempt, cause);
        return;
    }
    verdict->losses = losses_before(run, job) + 1;
    if (verdict->losses > job->retries_max) {
        verdict->job_event = JOB_EVENT_FAULT;
        verdict->code = err_code_name(ERR_PEER);
        lifecycle_say(verdict,
                      "lost %u times without a new checkpoint, limits.retries is %u; the last time: %s",
                      verdict->losses, job->retries_max, cause);
        return;
    }
    verdict->delay_ms = pause_ms(run, job, limits, now_us);
    lifecycle_say(verdict, "attempt %u ended (%s); goes on from its last checkpoint%s", job->attempt, cause,
                  verdict->delay_ms > 0 ? " after a pause" : "");
}

/* Whether a stop for this reason lets the job go on elsewhere or later. */
static bool goes_on(enum stop_why why)
{
    return why == STOP_DRAIN || why == STOP_YIELD || why == STOP_PREEMPT || why == STOP_SLICE;
}

/* Decides what becomes of the job, after all ranks have ended. */
static void decide_finish(const struct store_sched_run *run, const struct store_sched_job *job,
                          const struct tally *tally, const struct scheduler_limits *limits, int64_t now_us,
                          struct run_verdict *verdict)
{
    enum stop_why why = job->stop_why != STOP_NONE ? job->stop_why : run->stop_why;
    if (why == STOP_LOST && excused(tally)) /* its peers' complaints came before the agent's word */
        why = STOP_DRAIN;
    verdict->action = RUN_ACTION_FINISH;
    verdict->run_event = RUN_EVENT_STOPPED;
    if (lifecycle_is_complete(run, tally)) {
        finish_done(run, tally, verdict);
    } else if (tally->own) {
        verdict->run_event = RUN_EVENT_FAIL;
        verdict->job_event = JOB_EVENT_FAULT;
        verdict->code = tally->own->code;
        lifecycle_say(verdict, "%s", tally->own->why ? tally->own->why : "the worker gave no reason");
    } else if (why == STOP_CANCEL) {
        verdict->job_event = JOB_EVENT_CANCELLED;
    } else if (why == STOP_HOLD) {
        verdict->job_event = JOB_EVENT_HELD;
    } else if (why == STOP_TIME && (run->advanced || run->start_step > 0)) {
        verdict->job_event = JOB_EVENT_DONE;
        verdict->ended_by = "time_limit";
        lifecycle_say(verdict, "limits.time of %lld s is used up: resume goes on from the last checkpoint",
                      (long long)(job->time_limit_ms / 1000));
    } else if (why == STOP_TIME) {
        verdict->run_event = RUN_EVENT_FAIL;
        verdict->job_event = JOB_EVENT_FAULT;
        verdict->code = err_code_name(ERR_TIMEOUT);
        lifecycle_say(verdict, "limits.time of %lld s was used up before a checkpoint was stored",
                      (long long)(job->time_limit_ms / 1000));
    } else if (goes_on(why) && run->killed_us != 0) {
        verdict->job_event = JOB_EVENT_REQUEUE;
        lifecycle_say(verdict, "did not stop in time: goes on from its last checkpoint");
    } else if (goes_on(why) && (!tally->lost || excused(tally)) && tally->living == 0) {
        verdict->job_event = JOB_EVENT_REQUEUE;
        if (why == STOP_PREEMPT || why == STOP_SLICE)
            lifecycle_say(verdict, "%s", run->why ? run->why : "yields");
        else if (tally->cut)
            lifecycle_say(
                verdict,
                "the agent of %s ended before a checkpoint was stored: goes on from the last checkpoint",
                tally->cut->node);
        else
            lifecycle_say(verdict, "moves to other devices");
    } else {
        finish_lost(run, job, tally, limits, now_us, verdict);
    }
}

void lifecycle_decide(const struct store_sched_run *run, const struct store_sched_job *job,
                      const struct run_facts *facts, const struct scheduler_limits *limits, int64_t now_us,
                      struct run_verdict *verdict)
{
    *verdict = (struct run_verdict){.action = RUN_ACTION_WAIT};
    const struct tally tally = count_ranks(run, facts->ranks);
    if (run->state != RUN_STOPPING) {
        decide_active(run, job, &tally, facts, now_us, verdict);
        return;
    }
    if (tally.living > 0)
        decide_stopping(run, facts, limits, now_us, verdict);
    if (tally.living == 0 || verdict->action == RUN_ACTION_FINISH)
        decide_finish(run, job, &tally, limits, now_us, verdict);
}
