/* Writes what the scheduler decided, as one transaction: runs, jobs and messages are written together or not
 * at all. */
#include "store/sched.h"
#include "store/decide.sql.h"
#include "store/records.sql.h"

#include <stdio.h>
#include <string.h>

/* The statements in the order in which they run. */
static int decision_parts(const struct store_decision *decision, struct store_part parts[STORE_PARTS_MAX])
{
    const struct store_part all[] = {
        {sql_decide_unreachable, decision->unreachable},
        {sql_decide_runs_new, decision->runs_new},
        {sql_decide_ranks_lost, decision->ranks_lost},
        {sql_decide_saves, decision->saves},
        {sql_decide_jobs, decision->jobs},
        {sql_decide_trials, decision->trials},
        {sql_decide_runs, decision->runs},
        {sql_decide_drain_nodes, decision->ends},
        {sql_records_forecasts, decision->forecasts},
        {sql_records_arrivals, decision->arrivals},
        {sql_records_ends, decision->ends},
        {sql_records_sharing, decision->sharing},
        {sql_records_sooner, decision->sooner},
        {sql_decide_waits, decision->waits},
        {sql_decide_places, decision->places},
        {sql_decide_listing, decision->listing},
        {sql_decide_ready, decision->ready},
        {sql_decide_leases_idle, decision->leases},
        {sql_decide_leases_open, decision->leases},
        {sql_decide_leases_settle, decision->leases},
        {sql_decide_requests, decision->requests},
        {sql_decide_links, decision->links},
        {sql_decide_said, decision->said},
        {sql_decide_speeds, decision->speeds},
        {sql_decide_measures, decision->measures},
        {sql_decide_elements, decision->elements},
        {sql_decide_messages, decision->messages},
    };
    _Static_assert(STORE_DECISION_ARRAYS == 24, "a new array of a decision needs a statement in `all`");
    memcpy(parts, all, sizeof(all));
    return sizeof(all) / sizeof(all[0]);
}

const json_t *store_decision_failed(const struct store_decision *decision, const struct err *err)
{
    struct store_part parts[STORE_PARTS_MAX];
    const int count = decision_parts(decision, parts);
    const size_t size = strcspn(err->text, ":"); /* the text begins with the statement's name */
    for (int i = 0; i < count; i++) {
        struct pg_params params;
        parts[i].fill(&params, NULL);
        if (strlen(params.statement->name) == size && strncmp(params.statement->name, err->text, size) == 0)
            return parts[i].rows;
    }
    return NULL;
}

int store_decide(struct store *store, const struct store_decision *decision, store_doc_fn *done, void *arg,
                 struct err *err)
{
    struct store_part parts[STORE_PARTS_MAX];
    struct store_work work;
    store_work_init(&work, decision->leader, parts, decision_parts(decision, parts));
    if (json_array_size(decision->messages) == 0)
        work.steps[work.count++] = (struct pg_step){&decide_no_messages_sql, NULL};
    int rc = store_run_doc(store, work.steps, work.count, STORE_ALONE, NULL, done, arg, err);
    store_work_fini(&work);
    return rc;
}

/* ---- refused events ---- */

int store_node_mark(struct store *store, int64_t leader, const json_t *marks, store_done_fn *done, void *arg,
                    struct err *err)
{
    const struct store_part parts[] = {{sql_mark_nodes, marks}, {sql_count_refused, marks}};
    struct store_work work;
    store_work_init(&work, leader, parts, sizeof(parts) / sizeof(parts[0]));
    int rc = store_run_done(store, work.steps, work.count, STORE_ALONE, done, arg, err);
    store_work_fini(&work);
    return rc;
}
