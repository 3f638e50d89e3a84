/* Lists and sends a job's artifacts: files that the job made, each of which has a name and is a blob. */
#include "api/request/route.h"

#include "store/jobs.h"

#include <string.h>

static void list_found(void *arg, const struct err *err, json_t *doc)
{
    json_t *list = err ? NULL : json_pack("{s:O}", "artifacts", json_object_get(doc, "artifacts"));
    call_answer_list(arg, err, list);
    json_decref(list);
}

void artifacts_list(struct call *call)
{
    int64_t id;
    struct err err = {0};
    if (call_id(call, 0, "job", &id) == 0 && call_list(call, "artifacts name") == 0 &&
        store_job_get(call->app->store, &call->principal, id, list_found, call, &err) < 0)
        call_fail(call, &err);
}

static void one_found(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    if (err) {
        call_fail(call, err);
        return;
    }
    size_t index;
    json_t *artifact;
    json_array_foreach (json_object_get(doc, "artifacts"), index, artifact) {
        const char *name = json_string_value(json_object_get(artifact, "name"));
        const char *sha256 = json_string_value(json_object_get(artifact, "sha256"));
        if (name && sha256 && strcmp(name, call->params[1]) == 0) {
            blob_stream(call, sha256);
            return;
        }
    }
    call_problem(call, 404, "not-found", NULL, "job %s has no file \"%.120s\"", call->params[0],
                 call->params[1]);
}

void artifacts_get(struct call *call)
{
    int64_t id;
    struct err err = {0};
    if (call_id(call, 0, "job", &id) == 0 &&
        store_job_get(call->app->store, &call->principal, id, one_found, call, &err) < 0)
        call_fail(call, &err);
}
