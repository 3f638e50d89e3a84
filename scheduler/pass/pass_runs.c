/* Decides about nodes and active runs. */
#include "scheduler/pass/pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/log.h"
#include "common/tls.h"
#include "model/text/utf8.h"
#include "scheduler/pass/lifecycle.h"

/* Tells the jobs that run on a node that it is silent, and what becomes of them if it stays so. */
static void say_unheard(struct scheduler_pass *pass, const char *node, uint64_t silent_ms, uint64_t left_ms)
{
    for (size_t i = 0; i < pass->view->run_count; i++) {
        const struct store_sched_run *run = &pass->view->runs[i];
        bool runs = false;
        for (uint32_t k = 0; k < run->rank_count; k++)
            runs = runs || (strcmp(run->ranks[k].node, node) == 0 &&
                            !state_is_final(&assignment_machine, (int)run->ranks[k].state));
        if (runs)
            pass_say(
                pass, run->job, "warn",
                "node %s has not been heard for %.0f s. Unless it is heard within %.0f s more, attempt %u "
                "is given up, and the job goes on from its last checkpoint, elsewhere if it fits there",
                node, (double)silent_ms / 1e3, (double)left_ms / 1e3, run->attempt);
    }
}

void pass_nodes(struct scheduler_pass *pass)
{
    struct scheduler *scheduler = pass->scheduler;
    const uint64_t lost_ms = scheduler->config->limits.lost_ms;
    for (size_t i = 0; i < pass->view->node_count; i++) {
        struct store_sched_node *node = &pass->view->nodes[i];
        uint64_t silent = liveness_silent_ms(scheduler, node->name, pass->now_ns);
        if (liveness_untold(scheduler, node, pass->now_ns)) {
            log_event(LOG_LEVEL_WARN, "node_unreachable", "node=%s silent_ms=%llu", node->name,
                      (unsigned long long)silent);
            const uint64_t left_ms = silent < lost_ms ? lost_ms - silent : 0;
            pass_add(pass, pass->unreachable,
                     json_pack("{s:s, s:I}", "node", node->name, "left_ms", (json_int_t)left_ms));
            say_unheard(pass, node->name, silent, left_ms);
            liveness_told(scheduler, node->name);
            node->reachable = false;
        }
    }
}

static const struct store_sched_job *find_job(const struct scheduler_pass *pass, int64_t id)
{
    for (size_t i = 0; i < pass->view->job_count; i++)
        if (pass->view->jobs[i].id == id)
            return &pass->view->jobs[i];
    return NULL;
}

static bool is_drained(const struct scheduler_pass *pass, const char *device)
{
    const struct store_sched_device *found = pass_device(pass, device);
    return found && found->drained && found->drain_at_us <= pass->view->now_us;
}

static struct rank_facts facts_of(const struct scheduler_pass *pass, const struct store_sched_run *run,
                                  const struct store_sched_rank *rank)
{
    const struct scheduler *scheduler = pass->scheduler;
    const struct store_sched_lease *lease = pass_lease(pass, rank->device);
    struct rank_facts facts = {.drained = is_drained(pass, rank->device),
                               .leased_by = lease ? lease->holder : NULL};
    const struct store_sched_node *node = pass_node(pass, rank->node);
    facts.leaving = node && node_is_leaving(pass, node);
    if (!node) {
        facts.gone = true;
        facts.gone_why = "its node is no longer enrolled";
    } else if (identity_is_old(node, rank->identity)) {
        facts.gone = true;
        facts.gone_why = "its node was enrolled anew";
    } else if (liveness_silent_ms(scheduler, rank->node, pass->now_ns) > scheduler->config->limits.lost_ms) {
        facts.gone = true;
        facts.gone_why = "its node cannot be reached";
    } else if (liveness_missing(scheduler, run->id, rank->rank, pass->now_ns)) {
        facts.gone = true;
        facts.gone_why = "its agent came back without it";
    }
    return facts;
}

static bool is_living(const struct store_sched_rank *rank, const struct rank_facts *facts)
{
    return !state_is_final(&assignment_machine, (int)rank->state) && !facts->gone;
}

static void add_run(struct scheduler_pass *pass, const struct store_sched_run *run, enum run_event event,
                    const struct run_verdict *verdict, bool kill)
{
    struct err err;
    int to = state_next(&run_machine, (int)run->state, (int)event, &err);
    if (to < 0) {
        log_event(LOG_LEVEL_ERROR, "run_stuck", "run=%lld why=\"%s\"", (long long)run->id, err.text);
        return;
    }
    pass_add(pass, pass->runs,
             json_pack("{s:I, s:s, s:s, s:s?, s:s?, s:b}", "run", (json_int_t)run->id, "before",
                       state_name(&run_machine, (int)run->state), "state", state_name(&run_machine, to),
                       "stop_why", stop_why_name(verdict->why), "why",
                       verdict->text[0] != '\0' ? verdict->text : NULL, "kill", (int)kill));
}

static void add_job(struct scheduler_pass *pass, const struct store_sched_job *job, enum job_event event,
                    const struct run_verdict *verdict)
{
    struct err err;
    int to = state_next(&job_machine, (int)job->state, (int)event, &err);
    if (to < 0) {
        log_event(LOG_LEVEL_ERROR, "job_stuck", "job=%lld why=\"%s\"", (long long)job->id, err.text);
        return;
    }
    pass_add(pass, pass->jobs,
             json_pack("{s:I, s:s, s:s, s:s?, s:s?, s:s?, s:s?, s:b, s:I, s:o}", "job", (json_int_t)job->id,
                       "before", state_name(&job_machine, (int)job->state), "state",
                       state_name(&job_machine, to), "stop_why", stop_why_name(verdict->why), "why",
                       verdict->text[0] != '\0' ? verdict->text : NULL, "code", verdict->code, "ended_by",
                       verdict->ended_by, "behind",
                       (int)(event == JOB_EVENT_REQUEUE && job->stop_why == STOP_SLICE), "delay_ms",
                       (json_int_t)verdict->delay_ms, "losses",
                       verdict->losses > 0 ? json_integer(verdict->losses) : json_null()));
}

static void tell_living(struct scheduler_pass *pass, const struct store_sched_run *run,
                        const struct rank_facts *facts, enum stop_why why, bool checkpoint, bool kill)
{
    for (uint32_t i = 0; i < run->rank_count; i++) {
        if (is_living(&run->ranks[i], &facts[i])) {
            const char *name = stop_why_name(why);
            pass_message(pass, run->ranks[i].node, run->id, "stop",
                         json_pack("{s:I, s:I, s:I, s:s, s:b, s:b}", "run", (json_int_t)run->id, "epoch",
                                   (json_int_t)run->epoch, "rank", (json_int_t)run->ranks[i].rank, "why",
                                   name ? name : "lost", "checkpoint", (int)checkpoint, "kill", (int)kill));
        }
    }
}

/* Returns the lower ranks that cannot connect to this one, but to which it can: it opens the connections.
 * Else the lower rank does. NULL: none. */
static json_t *dials(const struct scheduler_pass *pass, const struct store_sched_run *run, uint32_t at)
{
    const struct store_sched_rank *rank = &run->ranks[at];
    json_t *lower = NULL;
    for (uint32_t i = 0; i < run->rank_count; i++)
        if (run->ranks[i].rank < rank->rank && pass_reaches_alone(pass, rank->node, run->ranks[i].node)) {
            lower = lower ? lower : json_array();
            json_array_append_new(lower, json_integer((json_int_t)run->ranks[i].rank));
        }
    return lower;
}

/* Tells every rank the address and the identity of all ranks. The identity is that of the enrolled node,
 * whatever a worker claims. */
static void tell_peers(struct scheduler_pass *pass, const struct store_sched_run *run)
{
    json_t *peers = json_array();
    for (uint32_t i = 0; i < run->rank_count; i++) {
        const struct store_sched_rank *rank = &run->ranks[i];
        const struct store_sched_node *node = pass_node(pass, rank->node);
        char identity[TLS_IDENTITY_SIZE];
        tls_agent_identity(rank->node, node ? node->generation : 0, identity);
        pass_add(pass, peers,
                 json_pack("{s:I, s:s, s:s, s:o*}", "rank", (json_int_t)rank->rank, "address", rank->address,
                           "identity", identity, "dials", dials(pass, run, i)));
    }
    for (uint32_t i = 0; i < run->rank_count; i++) {
        if (state_is_final(&assignment_machine, (int)run->ranks[i].state))
            continue;
        pass_message(pass, run->ranks[i].node, run->id, "peers",
                     json_pack("{s:I, s:I, s:I, s:O}", "run", (json_int_t)run->id, "epoch",
                               (json_int_t)run->epoch, "rank", (json_int_t)run->ranks[i].rank, "peers",
                               peers));
    }
    json_decref(peers);
}

static void write_gone(struct scheduler_pass *pass, const struct store_sched_run *run,
                       const struct rank_facts *facts)
{
    for (uint32_t i = 0; i < run->rank_count; i++) {
        if (facts[i].gone && !state_is_final(&assignment_machine, (int)run->ranks[i].state)) {
            pass_add(pass, pass->ranks_lost,
                     json_pack("{s:I, s:I, s:s}", "run", (json_int_t)run->id, "rank",
                               (json_int_t)run->ranks[i].rank, "why", facts[i].gone_why));
        }
    }
}

static void say_silent(struct scheduler_pass *pass, const struct store_sched_run *run,
                       const struct rank_facts *facts)
{
    for (uint32_t i = 0; i < run->rank_count; i++)
        if (is_living(&run->ranks[i], &facts[i]))
            pass_say(pass, run->job, "warn", "%s did not stop when it was told to: it is killed",
                     run->ranks[i].device);
}

/* Whether the run ended before its first step because of its connections: a link may have closed. */
static bool has_not_connected(const struct store_sched_run *run)
{
    bool failed = false;
    for (uint32_t i = 0; i < run->rank_count; i++) {
        const char *code = run->ranks[i].code;
        if (run->ranks[i].measured > 0)
            return false;
        failed = failed || (code && (strcmp(code, err_code_name(ERR_TIMEOUT)) == 0 ||
                                     strcmp(code, err_code_name(ERR_NET)) == 0));
    }
    return failed;
}

static void pass_runs_apply(struct scheduler_pass *pass, const struct store_sched_run *run,
                            const struct store_sched_job *job, const struct rank_facts *facts,
                            const struct run_verdict *verdict)
{
    switch (verdict->action) {
    case RUN_ACTION_WAIT:
        if (verdict->check_us > 0)
            pass_check_at(pass, verdict->check_us);
        break;
    case RUN_ACTION_PEERS:
        tell_peers(pass, run);
        add_run(pass, run, RUN_EVENT_READY, verdict, false);
        add_job(pass, job, JOB_EVENT_READY, verdict);
        break;
    case RUN_ACTION_STOP:
        tell_living(pass, run, facts, verdict->why, verdict->checkpoint, false);
        add_run(pass, run, RUN_EVENT_STOP, verdict, false);
        add_job(pass, job, JOB_EVENT_STOP, verdict);
        write_gone(pass, run, facts);
        break;
    case RUN_ACTION_KILL:
        tell_living(pass, run, facts, run->stop_why, false, true);
        say_silent(pass, run, facts);
        pass_add(pass, pass->runs,
                 json_pack("{s:I, s:s, s:s, s:b}", "run", (json_int_t)run->id, "before", "stopping", "state",
                           "stopping", "kill", 1));
        break;
    case RUN_ACTION_GO_ON:
        pass_add(pass, pass->saves,
                 json_pack("{s:I, s:b}", "run", (json_int_t)run->id, "missed", (int)verdict->missed));
        if (verdict->text[0] != '\0')
            pass_say(pass, job->id, "warn", "%s", verdict->text);
        break;
    case RUN_ACTION_FINISH:
        if (verdict->job_event == JOB_EVENT_REQUEUE)
            pass_moves_on(pass, run->job);
        pass_end_trial(pass, run, job, verdict);
        if (has_not_connected(run))
            pass_measure_again(pass, run);
        write_gone(pass, run, facts);
        add_run(pass, run, verdict->run_event, verdict, false);
        add_job(pass, job, verdict->job_event, verdict);
        break;
    }
}

void pass_runs(struct scheduler_pass *pass)
{
    for (size_t i = 0; i < pass->view->node_count; i++)
        if (pass->view->nodes[i].leaves_us != INT64_MAX && !node_is_leaving(pass, &pass->view->nodes[i]))
            pass_check_at(pass, pass->view->nodes[i].leaves_us);
    for (size_t i = 0; i < pass->view->device_count; i++)
        if (pass->view->devices[i].drained && pass->view->devices[i].drain_at_us > pass->view->now_us &&
            pass->view->devices[i].drain_at_us < INT64_MAX)
            pass_check_at(pass, pass->view->devices[i].drain_at_us);
    for (size_t i = 0; i < pass->view->run_count; i++) {
        const struct store_sched_run *run = &pass->view->runs[i];
        const struct store_sched_job *job = find_job(pass, run->job);
        struct rank_facts *facts = calloc(run->rank_count + 1, sizeof(*facts));
        if (!facts || !job) {
            pass->failed = pass->failed || !facts;
            free(facts);
            continue;
        }
        for (uint32_t k = 0; k < run->rank_count; k++)
            facts[k] = facts_of(pass, run, &run->ranks[k]);
        const bool is_awaited = run->save_for > 0
                                    ? store_queue_find(pass->scheduler->queue, run->save_for) != NULL
                                    : run->save_by_us > 0 && pass_others_wait(pass, job);
        const struct run_facts all = {.ranks = facts,
                                      .save_wait_ms = pass_save_wait_ms(pass, run),
                                      .start_wait_ms = pass_start_wait_ms(pass, run),
                                      .awaited = is_awaited};
        struct run_verdict verdict;
        lifecycle_decide(run, job, &all, &pass->scheduler->config->limits, pass->view->now_us, &verdict);
        if (verdict.action == RUN_ACTION_WAIT && job->state != JOB_STOPPING &&
            (run->trial ? pass_try(pass, run, job, verdict.text, sizeof(verdict.text))
                        : pass_must_move(pass, run, verdict.text, sizeof(verdict.text)))) {
            verdict.action = RUN_ACTION_STOP;
            verdict.why = STOP_YIELD;
            verdict.checkpoint = true;
        }
        verdict.text[utf8_check(verdict.text, strlen(verdict.text))] = '\0'; /* no cut character */
        pass_runs_apply(pass, run, job, facts, &verdict);
        if (verdict.action == RUN_ACTION_WAIT)
            pass_slice(pass, run, job);
        free(facts);
    }
    pass_end_weighings(pass);
}
