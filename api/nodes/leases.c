/* Routes of leases of devices. */
#include "api/request/route.h"

#include "common/clock.h"
#include "common/json.h"
#include "store/jobs.h"
#include "store/leases.h"

#include <string.h>

void leases_list(struct call *call)
{
    struct err err = {0};
    if (call_list(call, "leases id") == 0 &&
        store_lease_list(call->app->store, call_answer_list, call, &err) < 0)
        call_fail(call, &err);
}

void leases_post(struct call *call)
{
    static const char *const kinds[] = {"lease", "maintenance", NULL};
    struct err err = {0};
    struct json_reader reader;
    struct store_lease_new lease = {.note = ""};
    int kind = 0;
    int64_t begins_us;
    call_reader(call, &reader, &err);
    jr_str(&reader, "device", JR_OPTIONAL, 1, STORE_NAME_MAX, &lease.device);
    jr_str(&reader, "any", JR_OPTIONAL, 1, STORE_NAME_MAX, &lease.any);
    if (!lease.device == !lease.any)
        jr_fail(&reader, "device", "must be given, or any: \"a100\" for the first that can be had of those");
    jr_str(&reader, "note", JR_OPTIONAL, 0, 500, &lease.note);
    jr_choice(&reader, "kind", JR_OPTIONAL, kinds, &kind);
    jr_i64(&reader, "seconds", JR_REQUIRED, LEASE_SECONDS_MIN, LEASE_SECONDS_MAX, &lease.seconds);
    call_take_time(&reader, "begins", &lease.begins, &begins_us);
    if (jr_finish(&reader) < 0) {
        call_refuse(call, &err);
        return;
    }
    lease.maintenance = kind == 1;
    if (lease.maintenance && !call->principal.admin) {
        err_set(&err, ERR_DENIED, "kind: maintenance is for administrators");
        call_fail(call, &err);
    } else if (store_lease_put(call->app->store, &call->principal, &lease, call_answer_changed, call, &err) <
               0)
        call_fail(call, &err);
}

void leases_patch(struct call *call)
{
    struct err err = {0};
    struct json_reader reader;
    int64_t id, seconds = 0;
    call_reader(call, &reader, &err);
    jr_i64(&reader, "extend_seconds", JR_REQUIRED, LEASE_SECONDS_MIN, LEASE_SECONDS_MAX, &seconds);
    if (jr_finish(&reader) < 0)
        call_refuse(call, &err);
    else if (call_id(call, 0, "lease", &id) == 0 &&
             store_lease_change(call->app->store, &call->principal, id, seconds, call_answer_changed, call,
                                &err) < 0)
        call_fail(call, &err);
}

void leases_end(struct call *call)
{
    struct err err = {0};
    int64_t id;
    if (call_id(call, 0, "lease", &id) == 0 &&
        store_lease_change(call->app->store, &call->principal, id, 0, call_answer_changed, call, &err) < 0)
        call_fail(call, &err);
}
