/* GET /v1/load: what devices did between two times. */
#include "api/request/route.h"

#include "common/clock.h"
#include "store/nodes.h"

#include <string.h>

#define HOUR_US (INT64_C(3600) * 1000000)

void load_get(struct call *call)
{
    struct err err = {0};
    int64_t to_us = clock_wall_us(), from_us = 0;
    const char *by = call_query(call, "by"), *device = call_query(call, "device");
    if (by && strcmp(by, "minute") != 0 && strcmp(by, "hour") != 0)
        err_set(&err, ERR_INVALID, "by: \"%.40s\" is not minute or hour", by);
    else if (by && !device)
        err_set(&err, ERR_INVALID, "by: it is for the points of one device: give `device`, too");
    if (!err.code && call_query_time(call, "to", &to_us, &err) == 0) {
        from_us = to_us - HOUR_US;
        call_query_time(call, "from", &from_us, &err);
    }
    if (!err.code && from_us >= to_us)
        err_set(&err, ERR_INVALID, "from: it is not before to");
    if (err.code)
        call_fail(call, &err);
    else if (call_list(call, "devices name") == 0 &&
             store_load_get(call->app->store, from_us, to_us, device, by ? by : "minute", call_answer_list,
                            call, &err) < 0)
        call_fail(call, &err);
}
