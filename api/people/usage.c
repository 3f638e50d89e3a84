/* Routes of the queue, of what everybody has used, and of the shares that they are due. */
#include "api/request/route.h"

#include <string.h>

#include "common/clock.h"
#include "store/usage.h"

enum { QUEUE_PAGE_DEFAULT = 200, QUEUE_PAGE_MAX = 1000 };
#define MONTH_US (30 * 86400 * (int64_t)1000000)

void queue_get(struct call *call)
{
    struct err err = {0};
    struct call_page page;
    if (call_page(call, QUEUE_PAGE_DEFAULT, QUEUE_PAGE_MAX, 0, &page) == 0 &&
        store_queue_page(call->app->store, &call->principal, page.after, page.limit, call_answer_page, call,
                         &err) < 0)
        call_fail(call, &err);
}

void usage_get(struct call *call)
{
    static const char *const kinds[] = {"user", "group", "device"};
    struct err err = {0};
    int64_t to_us = clock_wall_us(), from_us = 0;
    const char *by = call_query(call, "by");
    bool known = !by;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && !known; i++)
        known = strcmp(by, kinds[i]) == 0;
    if (!known)
        err_set(&err, ERR_INVALID, "by: \"%.40s\" is not user, group or device", by);
    if (!err.code && call_query_time(call, "to", &to_us, &err) == 0) {
        from_us = to_us - MONTH_US;
        call_query_time(call, "from", &from_us, &err);
    }
    if (!err.code && from_us >= to_us)
        err_set(&err, ERR_INVALID, "from: it is not before to");
    if (err.code ||
        store_usage_get(call->app->store, from_us, to_us, by ? by : "user", call_answer_doc, call, &err) < 0)
        call_fail(call, &err);
}

void shares_get(struct call *call)
{
    struct err err = {0};
    int64_t half_life;
    if (call_query_i64(call, "half_life", 60, 366 * 86400, 7 * 86400, &half_life, &err) < 0 ||
        store_shares_get(call->app->store, (double)half_life, call_answer_doc, call, &err) < 0)
        call_fail(call, &err);
}
