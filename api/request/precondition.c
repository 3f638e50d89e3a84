/* The path's GET is carried out with the call itself; its answer is taken instead of sent, and compared. The
 * call goes on in a turn of the loop of its own, because whoever answered still holds the GET's answer. */
#include "api/request/precondition.h"

#include "api/request/repeat.h"
#include "api/request/route.h"

static void precondition_go_on(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    repeat_begin(arg);
}

/* Takes an answer whose tag fits: call_json refuses others. */
static bool take_state(struct call *call, int status, const char *type, const struct httpd_field *fields,
                       const char *text)
{
    const struct timeval now = {0, 0};
    (void)type, (void)fields, (void)text;
    call->keep_answer = NULL;
    if (status != 200 || event_base_once(call->app->base, -1, EV_TIMEOUT, precondition_go_on, call, &now) < 0)
        return false; /* it is not there, or has changed: that is the answer */
    call->route = call->guarded;
    if (call->state_free)
        call->state_free(call->state);
    call->state = NULL;
    call->state_free = NULL;
    call->list = NULL;
    return true;
}

void precondition_begin(struct call *call, const struct route *get)
{
    const struct httpd_head *head = httpd_request_head(call->request);
    const bool changes = head->method == HTTP_PATCH || head->method == HTTP_DELETE;
    if (!changes || !httpd_head_get(head, "if-match")) {
        repeat_begin(call);
    } else if (!get) {
        call_problem(call, 412, "stale", NULL, "If-Match: what is at %.200s has no ETag", head->path);
    } else {
        call->guarded = call->route;
        call->route = get;
        call->keep_answer = take_state;
        call_handle(call);
    }
}
