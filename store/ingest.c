/* Writes the events of agents, as one transaction. Every part is one statement over an array of objects.
 *
 * Invariants: a rank's changes count only while its run is active under the same epoch, and only if the
 * rank's seq and state are still those in the caller's view. A metrics line is inserted once. A checkpoint is
 * complete when all its parts are stored.
 */
#include "store/sched.h"
#include "store/ingest.sql.h"

#include <stdio.h>

static json_t *jobs_with_news(const struct store_ingest *ingest)
{
    const json_t *const sources[] = {ingest->metrics, ingest->events, ingest->checkpoints};
    json_t *jobs = json_array();
    json_t *seen = json_object();
    for (size_t i = 0; i < 3; i++) {
        size_t k;
        json_t *row;
        json_array_foreach (sources[i], k, row) {
            char key[24];
            json_int_t job = json_integer_value(json_object_get(row, "job"));
            snprintf(key, sizeof(key), "%lld", (long long)job);
            if (!json_object_get(seen, key)) {
                json_object_set_new(seen, key, json_true());
                json_array_append_new(jobs, json_pack("{s:I}", "job", job));
            }
        }
    }
    json_decref(seen);
    return jobs;
}

int store_ingest(struct store *store, const struct store_ingest *ingest, store_done_fn *done, void *arg,
                 struct err *err)
{
    json_t *followers = jobs_with_news(ingest);
    const struct store_part parts[] = {
        {sql_ingest_unreachable, ingest->nodes}, /* compares with what move_nodes overwrites */
        {sql_ingest_nodes, ingest->nodes},
        {sql_ingest_devices_gone, ingest->nodes},
        {sql_ingest_devices, ingest->devices},
        {sql_ingest_seen, ingest->seen},
        {sql_ingest_ranks, ingest->ranks},
        {sql_ingest_metrics, ingest->metrics},
        {sql_ingest_progress, ingest->progress},
        {sql_ingest_events, ingest->events},
        {sql_ingest_traces, ingest->traces},
        {sql_ingest_checkpoints, ingest->checkpoints},
        {sql_ingest_checkpoints_trim, ingest->checkpoints},
        {sql_ingest_artifacts, ingest->artifacts},
        {sql_ingest_profiles, ingest->profiles},
        {sql_ingest_links, ingest->links},
        {sql_ingest_failures, ingest->failures},
        {sql_ingest_received, ingest->received},
        {sql_ingest_unknown, ingest->unknown},
        {sql_ingest_health, ingest->health},
        {sql_ingest_faults, ingest->faults},
        {sql_ingest_notify, followers},
    };
    struct store_work work;
    store_work_init(&work, ingest->leader, parts, sizeof(parts) / sizeof(parts[0]));
    int rc = store_run_done(store, work.steps, work.count, STORE_ALONE, done, arg, err);
    store_work_fini(&work);
    json_decref(followers);
    return rc;
}
