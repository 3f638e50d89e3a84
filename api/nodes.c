/* Nodes, devices, profiles. */
#include "api/route.h"

#include "api/blob.h"
#include "common/json.h"
#include "store/nodes.h"

void nodes_list(struct call *call)
{
    struct err err = {0};
    if (store_node_list(call->app->store, call_answer_doc, call, &err) < 0)
        call_fail(call, &err);
}

void devices_list(struct call *call)
{
    struct err err = {0};
    if (store_device_list(call->app->store, call_answer_doc, call, &err) < 0)
        call_fail(call, &err);
}

static void drain(struct call *call, bool drained)
{
    struct err err = {0};
    struct json_reader reader;
    if (call->body) {
        jr_init(&reader, call->body, "", &err);
        if (jr_finish(&reader) < 0) {
            call_refuse(call, &err);
            return;
        }
    }
    if (store_device_drain(call->app->store, call->params[0], drained, call_answer_doc, call, &err) < 0)
        call_fail(call, &err);
}

void devices_drain(struct call *call)
{
    drain(call, true);
}

void devices_undrain(struct call *call)
{
    drain(call, false);
}

static void profiles_found(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    if (err)
        call_fail(call, err);
    else
        call_json(call, 200,
                  json_pack("{s:O, s:O}", "profiles", json_object_get(doc, "profiles"), "links",
                            json_object_get(doc, "links")),
                  NULL);
}

void profiles_list(struct call *call)
{
    struct err err = {0};
    const char *content = call_query(call, "model");
    if (content && !blob_name_valid(content))
        call_problem(call, 400, "invalid", NULL,
                     "model: \"%.80s\" is no content id (64 lower-case hex digits)", content);
    else if (store_cluster_get(call->app->store, content, profiles_found, call, &err) < 0)
        call_fail(call, &err);
}
