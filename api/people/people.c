/* Users and their limits, groups, and the audit. */
#include "api/request/route.h"

#include "api/people/auth.h"
#include "api/check/check.h"
#include "common/json.h"
#include "store/jobs.h"
#include "store/users.h"

#include <string.h>

enum { MEMBERS_MAX = 500, AUDIT_PAGE_DEFAULT = 50 };

void users_list(struct call *call)
{
    struct err err = {0};
    if (store_user_list(call->app->store, call_answer_doc, call, &err) < 0)
        call_fail(call, &err);
}

/* Remembered principals and checks may depend on what has changed. */
static void rights_changed(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    auth_forget(call->app->auth);
    submits_forget(call->app->submits);
    call_answer_changed(call, err, doc);
}

void users_patch(struct call *call)
{
    struct err err = {0};
    struct json_reader reader;
    int64_t priority_max = 0;
    jr_init(&reader, call->body, "", &err);
    jr_i64(&reader, "priority_max", JR_REQUIRED, -100, 100, &priority_max);
    if (jr_finish(&reader) < 0)
        call_refuse(call, &err);
    else if (store_user_set(call->app->store, &call->principal, call->params[0], (int32_t)priority_max,
                            rights_changed, call, &err) < 0)
        call_fail(call, &err);
}

void groups_list(struct call *call)
{
    struct err err = {0};
    if (store_group_list(call->app->store, &call->principal, call_answer_doc, call, &err) < 0)
        call_fail(call, &err);
}

static void group_set(void *arg, const struct err *err, json_t *doc)
{
    struct err unknown = {0};
    if (err && err->code == ERR_CONFLICT) {
        err_set(&unknown, ERR_INVALID, "members: one of them is no user");
        err = &unknown;
    }
    rights_changed(arg, err, doc);
}

void groups_post(struct call *call)
{
    struct err err = {0};
    struct json_reader reader;
    const char *name = NULL, *members[MEMBERS_MAX];
    const json_t *list = NULL;
    jr_init(&reader, call->body, "", &err);
    jr_str(&reader, "name", JR_REQUIRED, 1, STORE_NAME_MAX, &name);
    jr_array(&reader, "members", JR_REQUIRED, 0, MEMBERS_MAX, &list);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!(members[i] = json_string_value(json_array_get(list, i)))) {
            jr_fail(&reader, "members", "it is not a list of users' names");
            break;
        }
    if (jr_finish(&reader) < 0)
        call_refuse(call, &err);
    else if (store_group_put(call->app->store, &call->principal, name, members, json_array_size(list),
                             group_set, call, &err) < 0)
        call_fail(call, &err);
}

static void group_removed(void *arg, const struct err *err)
{
    rights_changed(arg, err, NULL);
}

void groups_remove(struct call *call)
{
    struct err err = {0};
    if (store_group_remove(call->app->store, &call->principal, call->params[0], group_removed, call, &err) <
        0)
        call_fail(call, &err);
}

void audit_list(struct call *call)
{
    struct err err = {0};
    int64_t limit, after;
    if (call_query_i64(call, "limit", 1, STORE_PAGE_MAX, AUDIT_PAGE_DEFAULT, &limit, &err) < 0 ||
        call_query_i64(call, "after", 1, INT64_MAX, 0, &after, &err) < 0 ||
        store_audit_page(call->app->store, after, (unsigned)limit, call_answer_page, call, &err) < 0)
        call_fail(call, &err);
}
