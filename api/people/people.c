/* Routes of users and their limits, of groups, and of the audit. */
#include "api/request/route.h"
#include "api/request/wait.h"

#include "api/people/auth.h"
#include "api/check/check.h"
#include "common/buf.h"
#include "common/json.h"
#include "store/jobs.h"
#include "store/leases.h"
#include "store/users.h"

#include <string.h>

enum { MEMBERS_MAX = 500, AUDIT_PAGE_DEFAULT = 50, RETENTION_SECONDS_MAX = 3650 * 86400 };

void users_list(struct call *call)
{
    struct err err = {0};
    if (call_list(call, "users id") == 0 &&
        store_user_list(call->app->store, call_answer_list, call, &err) < 0)
        call_fail(call, &err);
}

/* Forgets the cached principals and checks, which may depend on the rights that have changed, and answers. */
static void rights_changed(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    auth_forget(call->app->auth);
    submits_forget(call->app->submits);
    call_answer_changed(call, err, doc);
}

/* Checks the limits that a document of changes may contain. */
static void people_limits_check(struct json_reader *reader)
{
    static const char *const counts[] = {"devices_max", "running_max", "queued_max"};
    uint32_t count;
    double seconds;
    int64_t bytes;
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        jr_u32(reader, counts[i], JR_OPTIONAL, 0, 1000000, &count);
    jr_f64(reader, "month_seconds_max", JR_OPTIONAL, 0, 1e12, &seconds);
    jr_i64(reader, "kept_bytes_max", JR_OPTIONAL, 0, (int64_t)1 << 50, &bytes);
}

/* Refuses a body that has errors or changes nothing. Returns -1 if it was refused. */
static int changes_check(struct call *call, struct json_reader *reader)
{
    if (jr_finish(reader) == 0 && json_object_size(call->body) > 0)
        return 0;
    if (reader->err->code == ERR_NONE)
        err_set(reader->err, ERR_INVALID, "the body changes nothing");
    call_refuse(call, reader->err);
    return -1;
}

/* ---- disabling a user, with a command for their jobs ---- */

/* Reads `disabled`, and `jobs`, which is allowed only with it. Returns whether the user's jobs get a
 * command. */
static bool disabled_read(struct call *call, struct json_reader *reader, enum job_event *event)
{
    static const char *const names[] = {"hold", "cancel", NULL};
    bool disabled = false;
    int jobs = 0;
    jr_bool(reader, "disabled", JR_OPTIONAL, &disabled);
    const bool told = jr_choice(reader, "jobs", JR_OPTIONAL, names, &jobs) > 0;
    *event = jobs == 0 ? JOB_EVENT_HOLD : JOB_EVENT_CANCEL;
    if (told && !disabled)
        jr_fail(reader, "jobs", "it goes with disabled: true");
    if (disabled && strcmp(call->params[0], call->principal.name) == 0)
        jr_fail(reader, "disabled", "you cannot disable yourself");
    return told;
}

/* Disables the user, and then gives all their jobs the command. */
static void user_disable(struct call *call, enum job_event event)
{
    struct store *store = call->app->store;
    struct wait user = wait_of(call->app), told = user;
    struct err err = {0};
    const char *name = call->params[0];
    if (store_user_set(store, &call->principal, name, call->body, wait_doc, &user, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    if (wait_end(&user, 0, &err) < 0) {
        rights_changed(call, &err, NULL);
        return;
    }
    auth_forget(call->app->auth);
    submits_forget(call->app->submits);
    if (wait_end(&told, store_owner_command(store, &call->principal, event, name, wait_doc, &told, &err),
                 &err) < 0) {
        json_decref(user.doc);
        call_fail(call, &err);
        return;
    }
    json_object_set_new(user.doc, "told",
                        json_integer((json_int_t)json_array_size(json_object_get(told.doc, "jobs"))));
    json_decref(told.doc);
    call_json(call, 200, user.doc, NULL);
}

void users_patch(struct call *call)
{
    struct err err = {0};
    struct json_reader reader;
    int64_t priority_max;
    enum job_event event;
    const char *account;
    const json_t *identity;
    call_reader(call, &reader, &err);
    jr_i64(&reader, "priority_max", JR_OPTIONAL, -100, 100, &priority_max);
    const bool told = disabled_read(call, &reader, &event);
    jr_str(&reader, "account", JR_OPTIONAL, 1, STORE_NAME_MAX, &account);
    if (jr_any(&reader, "identity", JR_OPTIONAL, &identity) > 0)
        jr_fail(&reader, "identity", "it can only be null: another sign-in may become the user then");
    people_limits_check(&reader);
    if (changes_check(call, &reader) < 0)
        return;
    if (told)
        user_disable(call, event);
    else if (store_user_set(call->app->store, &call->principal, call->params[0], call->body, rights_changed,
                            call, &err) < 0)
        call_fail(call, &err);
}

void groups_patch(struct call *call)
{
    struct err err = {0};
    struct json_reader reader;
    const char *parent;
    double weight, seconds;
    call_reader(call, &reader, &err);
    jr_str(&reader, "parent", JR_OPTIONAL, 1, STORE_NAME_MAX, &parent);
    jr_f64(&reader, "weight", JR_OPTIONAL, 1e-6, 1e6, &weight);
    jr_f64(&reader, "time_limit_s", JR_OPTIONAL, 0, 366.0 * 86400, &seconds);
    jr_f64(&reader, "slice_s", JR_OPTIONAL, 0, 366.0 * 86400, &seconds);
    jr_f64(&reader, "lease_limit_s", JR_OPTIONAL, 0, LEASE_SECONDS_MAX, &seconds);
    jr_f64(&reader, "retention_s", JR_OPTIONAL, 0, RETENTION_SECONDS_MAX, &seconds);
    people_limits_check(&reader);
    if (changes_check(call, &reader) == 0 &&
        store_group_set(call->app->store, &call->principal, call->params[0], call->body, rights_changed, call,
                        &err) < 0)
        call_fail(call, &err);
}

void groups_list(struct call *call)
{
    struct err err = {0};
    if (call_list(call, "groups name") == 0 &&
        store_group_list(call->app->store, &call->principal, call_answer_list, call, &err) < 0)
        call_fail(call, &err);
}

/* Refuses a group, naming the members that are no users. doc: all users. */
static void refuse_members(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    struct err unknown = {0};
    struct buf names = {.limit = 400};
    json_t *member, *user;
    size_t i, k;
    json_array_foreach (err ? NULL : json_object_get(call->body, "members"), i, member) {
        bool known = false;
        json_array_foreach (json_object_get(doc, "users"), k, user)
            known = known || json_equal(json_object_get(user, "name"), member);
        if (!known && buf_printf(&names, &unknown, "%s\"%.100s\"", names.size ? ", " : "",
                                 json_string_value(member)) < 0)
            break;
    }
    if (!err)
        err_set(&unknown, ERR_INVALID,
                "members: no user is called %s; motley token make --user NAME makes one", buf_str(&names));
    buf_fini(&names);
    call_refuse(call, err ? err : &unknown);
}

static void people_group_set(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    struct err wrong;
    if (!err || err->code != ERR_CONFLICT)
        rights_changed(arg, err, doc);
    else if (store_user_list(call->app->store, refuse_members, call, &wrong) < 0)
        call_fail(call, &wrong);
}

void groups_post(struct call *call)
{
    struct err err = {0};
    struct json_reader reader;
    const char *name = NULL, *members[MEMBERS_MAX];
    const json_t *list = NULL;
    call_reader(call, &reader, &err);
    jr_str(&reader, "name", JR_REQUIRED, 1, STORE_NAME_MAX, &name);
    jr_array(&reader, "members", JR_REQUIRED, 0, MEMBERS_MAX, &list);
    call_plain(&reader, "name", name);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!(members[i] = json_string_value(json_array_get(list, i)))) {
            jr_fail(&reader, "members", "it is not a list of users' names");
            break;
        }
    if (jr_finish(&reader) < 0)
        call_refuse(call, &err);
    else if (store_group_put(call->app->store, &call->principal, name, members, json_array_size(list),
                             people_group_set, call, &err) < 0)
        call_fail(call, &err);
}

static void group_removed(void *arg, const struct err *err)
{
    struct err held = {0};
    if (err && err->code == ERR_CONFLICT) {
        err_set(&held, ERR_CONFLICT, "groups are below it, or jobs that have not ended are charged to it");
        err = &held;
    }
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
    struct call_page page;
    if (call_page(call, AUDIT_PAGE_DEFAULT, STORE_PAGE_MAX, 0, &page) == 0 &&
        store_audit_page(call->app->store, page.after, page.limit, call_answer_page, call, &err) < 0)
        call_fail(call, &err);
}
