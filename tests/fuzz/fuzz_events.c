/* Feeds a list of an agent's events to the scheduler's readers of events, for a node that it knows. */
#include "fuzz/fuzz.h"

#include <string.h>

#include "scheduler/events/events.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    char name[] = "a", device[] = "a/cpu0", boot[] = "b", none[] = "";
    struct store_sched_rank rank = {.assignment = 1, .node = name, .device = device};
    struct store_sched_run run = {
        .id = 1, .job = 1, .epoch = 1, .attempt = 1, .rank_count = 1, .ranks = &rank};
    struct store_sched_job job = {.id = 1};
    struct store_sched_node node = {
        .name = name, .boot = boot, .machine_id = none, .address = none, .reachable = true};
    struct store_view view = {
        .runs = &run, .run_count = 1, .jobs = &job, .job_count = 1, .nodes = &node, .node_count = 1};
    struct event_batch batch;
    json_t *document = fuzz_parse(data, size), *event;
    size_t index;
    if (document && event_batch_init(&batch, &view, &err) == 0) {
        if (json_is_array(document))
            json_array_foreach (document, index, event)
                event_batch_add(&batch, event, &err);
        else
            event_batch_add(&batch, document, &err);
        event_batch_close(&batch, &err);
        event_batch_fini(&batch);
    }
    json_decref(document);
    return 0;
}
