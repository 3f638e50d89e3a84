/* Routes of nodes, devices and profiles. */
#include "api/request/route.h"

#include "api/people/auth.h"
#include "api/request/blob_dir.h"
#include "common/clock.h"
#include "common/json.h"
#include "profiles/profiles.h"
#include "store/enrol.h"
#include "store/jobs.h"
#include "store/nodes.h"

void nodes_list(struct call *call)
{
    struct err err = {0};
    if (call_list(call, "nodes name") == 0 &&
        store_node_list(call->app->store, call_answer_list, call, &err) < 0)
        call_fail(call, &err);
}

static void nodes_removed(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    if (!err)
        auth_forget(call->app->auth); /* this server may still remember the node's token as valid */
    call_answer_doc(call, err, doc);
}

void nodes_remove(struct call *call)
{
    struct err err = {0};
    if (store_node_remove(call->app->store, &call->principal, call->params[0], nodes_removed, call, &err) < 0)
        call_fail(call, &err);
}

void devices_list(struct call *call)
{
    struct err err = {0};
    if (call_list(call, "devices name") == 0 &&
        store_device_list(call->app->store, &call->principal, call_answer_list, call, &err) < 0)
        call_fail(call, &err);
}

static void drain_devices(struct call *call, bool drained)
{
    struct err err = {0};
    struct json_reader reader;
    struct store_drain drain = {.name = call->params[0], .drained = drained};
    int64_t by_us;
    if (call->body)
        call_reader(call, &reader, &err);
    if (call->body && drained) {
        jr_bool(&reader, "after_jobs", JR_OPTIONAL, &drain.after_jobs);
        jr_str(&reader, "reason", JR_OPTIONAL, 1, 500, &drain.why);
        call_take_time(&reader, "by", &drain.by, &by_us);
        if (drain.by && drain.after_jobs)
            jr_fail(&reader, "by", "either by or after_jobs");
    }
    if (call->body && jr_finish(&reader) < 0)
        call_refuse(call, &err);
    else if (store_device_drain(call->app->store, &call->principal, &drain, call_answer_doc, call, &err) < 0)
        call_fail(call, &err);
}

void devices_drain(struct call *call)
{
    drain_devices(call, true);
}

void devices_undrain(struct call *call)
{
    drain_devices(call, false);
}

void devices_patch(struct call *call)
{
    struct err err = {0};
    struct json_reader reader;
    const char *group;
    call_reader(call, &reader, &err);
    jr_str(&reader, "group", JR_OPTIONAL, 1, STORE_NAME_MAX, &group);
    if (!json_object_get(call->body, "group"))
        jr_fail(&reader, "group", "is missing: the name of a group, or null");
    if (jr_finish(&reader) < 0)
        call_refuse(call, &err);
    else if (store_device_set(call->app->store, &call->principal, call->params[0], call->body,
                              call_answer_changed, call, &err) < 0)
        call_fail(call, &err);
}

void profiles_list(struct call *call)
{
    struct err err = {0};
    const char *content = call_query(call, "model");
    if (content && !blob_name_valid(content))
        call_problem(call, 400, "invalid", NULL,
                     "model: \"%.80s\" is no content id (64 lower-case hex digits)", content);
    else if (call_list(call, "profiles device key origin owner") == 0 &&
             store_profile_list(call->app->store, &call->principal, content, call_answer_list, call, &err) <
                 0)
        call_fail(call, &err);
}

void links_list(struct call *call)
{
    struct err err = {0};
    if (call_list(call, "links from to") == 0 &&
        store_link_list(call->app->store, call_answer_list, call, &err) < 0)
        call_fail(call, &err);
}

/* Returns the document's profiles as rows for store_profile_import. */
static json_t *profile_rows(const json_t *document)
{
    size_t index;
    json_t *profile, *rows = json_array();
    json_array_foreach (json_object_get(document, "profiles"), index, profile)
        json_array_append_new(rows, json_pack("{s:O, s:O, s:O?, s:O?, s:O}", "device",
                                              json_object_get(profile, "device"), "key",
                                              json_object_get(profile, "key"), "content",
                                              json_object_get(profile, "content"), "digest",
                                              json_object_get(profile, "digest"), "document", profile));
    return rows;
}

void profiles_import(struct call *call)
{
    struct err err = {0};
    const char *origin = json_string_value(json_object_get(call->body, "origin"));
    struct sharing sharing;
    if (call_query_sharing(call, VISIBLE_EVERYONE, &sharing, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    if (profiles_check(call->body, &err) < 0) {
        call_refuse(call, &err);
        return;
    }
    json_t *rows = profile_rows(call->body);
    if (store_profile_import(call->app->store, &call->principal, rows, origin ? origin : "unknown", &sharing,
                             call_answer_changed, call, &err) < 0)
        call_fail(call, &err);
    json_decref(rows);
}
