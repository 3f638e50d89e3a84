/* Routes of the records that simulations read: arrivals of jobs, and forecasts with their errors. */
#include "store/records.h"

#include "api/request/route.h"
#include "common/clock.h"

enum { ARRIVALS_PAGE_DEFAULT = 1000, ARRIVALS_PAGE_MAX = 10000 };
#define MONTH_US (30 * 86400 * (int64_t)1000000)

/* Reads `from` and `to`; by default the last 30 days. */
static int records_read_span(struct call *call, int64_t *from_us, int64_t *to_us, struct err *err)
{
    *to_us = clock_wall_us();
    if (call_query_time(call, "to", to_us, err) < 0)
        return -1;
    *from_us = *to_us - MONTH_US;
    if (call_query_time(call, "from", from_us, err) < 0)
        return -1;
    return *from_us < *to_us ? 0 : err_set(err, ERR_INVALID, "from: it is not before to");
}

void records_get(struct call *call)
{
    struct err err = {0};
    int64_t from_us, to_us;
    if (records_read_span(call, &from_us, &to_us, &err) < 0 ||
        store_records_get(call->app->store, from_us, to_us, call_answer_doc, call, &err) < 0)
        call_fail(call, &err);
}

void arrivals_list(struct call *call)
{
    struct err err = {0};
    struct call_page page;
    int64_t from_us, to_us;
    if (call_page(call, ARRIVALS_PAGE_DEFAULT, ARRIVALS_PAGE_MAX, 0, &page) < 0)
        return;
    if (records_read_span(call, &from_us, &to_us, &err) < 0 ||
        store_arrivals_page(call->app->store, from_us, to_us, page.after, page.limit, call_answer_page, call,
                            &err) < 0)
        call_fail(call, &err);
}
