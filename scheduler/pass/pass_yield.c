/* Runs that make room for other jobs: asks them for a checkpoint, and predicts how long storing one takes. */
#include "scheduler/pass/pass.h"

#include <math.h>
#include <string.h>

#include "common/log.h"
#include "replay/replan.h"
#include "store/links.h"

/* A run that did not store a checkpoint in time is asked again only after ASK_AGAIN times the time that it
 * was given. */
enum { ASK_AGAIN = 4 };

/* A start may take the time of reading its weights so many times: a file may hold four times the bytes that
 * are kept (16 bits packed to 4), and a link that others use is half as fast. */
enum { START_READS = 8 };

double pass_step_s(const struct store_sched_run *run)
{
    double slower = 0;
    for (uint32_t k = 0; k < run->rank_count; k++) {
        const struct store_sched_rank *rank = &run->ranks[k];
        const bool small = fmax(rank->compute_s, rank->busy_s) < REPLAN_PART * run->step_s;
        if (rank->measured > 0 && rank->busy_s > 0 && !small && rank->compute_s / rank->busy_s > slower)
            slower = rank->compute_s / rank->busy_s;
    }
    if (run->corrected > 0) /* the correction may be of the same slowness: the longer of the two counts */
        return run->step_s * fmax(slower / run->corrected, 1);
    return run->step_s * (slower > 0 ? slower : 1);
}

/* Returns the rate at which the run can send to the artifact store, in bytes per second: that of the slowest
 * measured link that begins at one of the run's nodes; without links the configured rate. */
static double store_rate(const struct scheduler_pass *pass, const struct store_sched_run *run)
{
    double rate = INFINITY;
    for (uint32_t k = 0; k < run->rank_count; k++) {
        size_t count;
        const struct store_sched_link *links = store_links_of(pass->view, run->ranks[k].node, &count);
        for (size_t i = 0; i < count; i++) {
            const double bytes_per_s = json_number_value(json_object_get(links[i].document, "bytes_per_s"));
            if (bytes_per_s > 0 && bytes_per_s < rate)
                rate = bytes_per_s;
        }
    }
    return isfinite(rate) ? rate : pass->scheduler->config->limits.store_bytes_per_s;
}

double pass_save_s(const struct scheduler_pass *pass, const struct store_sched_run *run)
{
    const double seconds = pass_step_s(run) + (double)run->save_bytes / store_rate(pass, run);
    return fmin(ldexp(seconds, (int)(run->saves_missed < 16 ? run->saves_missed : 16)), 7 * 86400.0);
}

int64_t pass_save_wait_ms(const struct scheduler_pass *pass, const struct store_sched_run *run)
{
    return pass->scheduler->config->limits.checkpoint_stop_ms + (int64_t)(2000 * pass_save_s(pass, run));
}

int64_t pass_start_wait_ms(const struct scheduler_pass *pass, const struct store_sched_run *run)
{
    const struct scheduler_limits *limits = &pass->scheduler->config->limits;
    const double bytes = START_READS * (double)run->load_bytes + (double)run->save_bytes;
    return (int64_t)fmin(limits->start_ms, limits->start_least_ms + 1000 * bytes / store_rate(pass, run));
}

bool pass_can_save(const struct scheduler_pass *pass, const struct store_sched_run *run,
                   const struct store_sched_job *job)
{
    bool running = run->state == RUN_RUNNING && job->state == JOB_RUNNING && run->save_by_us == 0;
    for (uint32_t k = 0; k < run->rank_count; k++)
        running = running && run->ranks[k].state == ASSIGNMENT_RUNNING;
    return running &&
           (run->saves_missed == 0 ||
            pass->view->now_us > run->save_asked_us + ASK_AGAIN * 1000 * pass_save_wait_ms(pass, run));
}

void pass_ask_save(struct scheduler_pass *pass, const struct store_sched_run *run, const char *why,
                   int64_t for_job)
{
    const int64_t wait_ms = pass_save_wait_ms(pass, run);
    pass_add(pass, pass->saves,
             json_pack("{s:I, s:I, s:s, s:o, s:b}", "run", (json_int_t)run->id, "wait_ms",
                       (json_int_t)wait_ms, "why", why, "for_job",
                       for_job > 0 ? json_integer(for_job) : json_null(), "missed", 0));
    /* One rank is told, since the ranks agree after each step on what they do next. */
    pass_message(
        pass, run->ranks[0].node, run->id, "save",
        json_pack("{s:I, s:I, s:I}", "run", (json_int_t)run->id, "epoch", (json_int_t)run->epoch, "rank", 0));
    pass_check_at(pass, pass->view->now_us + wait_ms * 1000);
    log_event(LOG_LEVEL_INFO, "run_asked", "run=%lld job=%lld why=%s for=%lld wait_ms=%lld",
              (long long)run->id, (long long)run->job, why, (long long)for_job, (long long)wait_ms);
    if (for_job > 0)
        pass_say(pass, run->job, "info",
                 "is to yield its devices to job %lld (%s) once a checkpoint is stored, within %.0f s",
                 (long long)for_job, why, (double)wait_ms / 1e3);
}

bool pass_others_wait(const struct scheduler_pass *pass, const struct store_sched_job *job)
{
    static const char *const codes[] = {"devices", "reserved", "slow", "width", "yields"};
    const struct store_queue *queue = pass->scheduler->queue;
    for (size_t i = 0; i < store_queue_count(queue); i++) {
        const struct store_sched_job *other = store_queue_at(queue, i);
        bool waits = false;
        for (size_t c = 0; c < sizeof(codes) / sizeof(codes[0]) && other->wait_code[0] != '\0'; c++)
            waits = waits || strcmp(other->wait_code, codes[c]) == 0;
        const bool alike = other->owner == job->owner && other->account == job->account;
        if (waits && other->service <= job->service && (!alike || other->priority >= job->priority))
            return true;
    }
    return false;
}

/* Returns the time slice of an account in seconds: its own or that of the nearest account above it; 0:
 * none. */
static double slice_of(const struct store_view *view, int64_t account)
{
    for (size_t depth = 0; account > 0 && depth < view->account_count; depth++) {
        const struct store_sched_account *at = NULL;
        for (size_t i = 0; i < view->account_count; i++)
            at = view->accounts[i].id == account ? &view->accounts[i] : at;
        if (!at || at->slice_s > 0)
            return at ? at->slice_s : 0;
        account = at->parent;
    }
    return 0;
}

void pass_slice(struct scheduler_pass *pass, const struct store_sched_run *run,
                const struct store_sched_job *job)
{
    const double slice_s = slice_of(pass->view, job->account);
    if (!(slice_s > 0) || !pass_can_save(pass, run, job) || !pass_others_wait(pass, job))
        return;
    const int64_t over_us = run->started_us + (int64_t)(slice_s * 1e6);
    if (pass->view->now_us < over_us)
        pass_check_at(pass, over_us);
    else
        pass_ask_save(pass, run, "slice", 0);
}

void pass_yield(struct scheduler_pass *pass, const struct policy_run *run, enum policy_rule rule, int64_t job)
{
    static const char *const names[] = {
        [RULE_SCAVENGER] = "scavenger", [RULE_OWNER] = "owner", [RULE_URGENT] = "urgent"};
    for (size_t i = 0; i < pass->view->run_count; i++)
        if (pass->view->runs[i].job == run->job)
            pass_ask_save(pass, &pass->view->runs[i], names[rule], job);
}

bool pass_yields_to(const struct scheduler_pass *pass, int64_t of, int64_t job)
{
    for (size_t i = 0; i < pass->view->run_count; i++)
        if (pass->view->runs[i].job == of)
            return pass->view->runs[i].save_for == job;
    return false;
}
