/* Commands for many jobs at once. The jobs are given by ids, or by the same filter as in the list of jobs. */
#include "api/request/route.h"
#include "api/request/wait.h"

#include "common/clock.h"
#include "common/json.h"
#include "store/jobs.h"

#include <string.h>

struct bulk {
    enum job_event event;
    bool more; /* further jobs match the filter */
    size_t count;
    int64_t ids[STORE_PAGE_MAX];
};

/* Takes the ids of a page of jobs: of those that the asker may change. */
static void take_page(const struct call *call, json_t *page, struct bulk *bulk)
{
    size_t i;
    json_t *job;
    json_array_foreach (json_object_get(page, "jobs"), i, job) {
        const char *owner = json_string_value(json_object_get(job, "owner"));
        if (call->principal.admin || (owner && strcmp(owner, call->principal.name) == 0))
            bulk->ids[bulk->count++] = json_integer_value(json_object_get(job, "id"));
    }
    bulk->more = json_is_integer(json_object_get(page, "next"));
}

/* Reads {"ids": [1, 2]}. */
static void take_ids(struct json_reader *reader, const json_t *ids, struct bulk *bulk)
{
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_int_t id = json_integer_value(json_array_get(ids, i));
        if (id < 1)
            jr_fail(reader, "ids", "item %zu is not the id of a job", i);
        for (size_t k = 0; k < bulk->count; k++)
            if (bulk->ids[k] == id)
                jr_fail(reader, "ids", "job %lld is there twice", (long long)id);
        bulk->ids[bulk->count++] = id;
    }
}

/* Reads the states that the body lists; none means all. States in which jobs do not have the event are left
 * out. */
static unsigned bulk_take_states(struct json_reader *reader, const json_t *names, enum job_event event)
{
    unsigned wanted = 0, able = 0;
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        const int state = name ? state_from_name(&job_machine, name) : -1;
        if (state < 0)
            jr_fail(reader, "state", "item %zu is no state of a job", i);
        else
            wanted |= 1u << state;
    }
    for (int state = 0; state < JOB_STATES; state++) {
        struct err ignored;
        if (!state_is_final(&job_machine, state) &&
            state_next(&job_machine, state, (int)event, &ignored) >= 0)
            able |= 1u << state;
    }
    return (wanted ? wanted : ~0u) & able;
}

static void take_time(struct json_reader *reader, const char *key, int64_t *wall_us)
{
    const char *text = NULL;
    if (jr_str(reader, key, JR_OPTIONAL, 1, 64, &text) > 0 &&
        (clock_rfc3339_parse(text, wall_us) < 0 || *wall_us <= 0))
        jr_fail(reader, key, "must be a time such as 2026-01-31T12:00:00Z");
}

static void bulk_take_labels(struct json_reader *reader, struct store_job_filter *filter)
{
    const char *key;
    const json_t *value;
    if (jr_object(reader, "labels", JR_OPTIONAL, &filter->labels) <= 0)
        return;
    if (json_object_size(filter->labels) < 1 || json_object_size(filter->labels) > STORE_LABELS_MAX)
        jr_fail(reader, "labels", "must have 1 to %d keys", STORE_LABELS_MAX);
    json_object_foreach ((json_t *)(uintptr_t)filter->labels, key, value)
        if (!json_is_string(value) && !json_is_null(value))
            jr_fail(reader, "labels", "the value of \"%.63s\" must be a text, or null for any", key);
}

/* Reads the body: ids, or a filter with at least one condition. */
static int take_body(struct call *call, struct bulk *bulk, struct store_job_filter *filter, struct err *err)
{
    struct json_reader reader;
    const json_t *ids = NULL, *states = NULL;
    call_reader(call, &reader, err);
    const bool listed = jr_array(&reader, "ids", JR_OPTIONAL, 1, STORE_PAGE_MAX, &ids) > 0;
    if (listed)
        take_ids(&reader, ids, bulk);
    jr_array(&reader, "state", JR_OPTIONAL, 1, JOB_STATES, &states);
    filter->states = bulk_take_states(&reader, states, bulk->event);
    jr_str(&reader, "owner", JR_OPTIONAL, 1, STORE_NAME_MAX, &filter->owner);
    jr_str(&reader, "group", JR_OPTIONAL, 1, STORE_NAME_MAX, &filter->group);
    jr_i64(&reader, "array", JR_OPTIONAL, 1, INT64_MAX, &filter->array);
    bulk_take_labels(&reader, filter);
    take_time(&reader, "from", &filter->from_us);
    take_time(&reader, "to", &filter->to_us);
    const bool filtered = states || filter->owner || filter->group || filter->array || filter->labels ||
                          filter->from_us || filter->to_us;
    if (listed && filtered)
        jr_fail(&reader, "ids", "they go without a filter");
    if (!listed && !filtered)
        jr_fail(&reader, NULL, "give ids, or a filter: state, owner, group, labels, array, from or to");
    return jr_finish(&reader);
}

static void command_all(struct call *call, enum job_event event)
{
    struct store *store = call->app->store;
    struct wait page = wait_of(call->app), told = page;
    struct store_job_filter filter = {.limit = STORE_PAGE_MAX};
    struct bulk bulk = {.event = event};
    struct err err = {0};
    if (take_body(call, &bulk, &filter, &err) < 0) {
        call_refuse(call, &err);
        return;
    }
    int rc = 0;
    if (bulk.count == 0 && filter.states != 0) {
        rc = wait_end(&page, store_job_page(store, &call->principal, &filter, wait_doc, &page, &err), &err);
        take_page(call, page.doc, &bulk);
        json_decref(page.doc);
    }
    if (rc == 0)
        rc = wait_end(
            &told,
            store_jobs_command(store, &call->principal, event, bulk.ids, bulk.count, wait_doc, &told, &err),
            &err);
    if (rc < 0) {
        call_fail(call, &err);
        return;
    }
    json_object_set_new(told.doc, "more", json_boolean(bulk.more));
    call_json(call, 200, told.doc, NULL);
}

void jobs_cancel_all(struct call *call)
{
    command_all(call, JOB_EVENT_CANCEL);
}

void jobs_hold_all(struct call *call)
{
    command_all(call, JOB_EVENT_HOLD);
}

void jobs_release_all(struct call *call)
{
    command_all(call, JOB_EVENT_RELEASE);
}
