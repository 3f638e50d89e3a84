/* How a database task asks for a pass and reports its end. scheduler.c starts the next task. */
#include <event2/event.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "scheduler/leader/scheduler_private.h"

#define RETRY_MS 100
/* So many in a row are no state that somebody has changed, which the next load reads. */
enum { CONFLICTS_MAX = 3 };

void scheduler_mark(struct scheduler *scheduler)
{
    scheduler->dirty = true;
    scheduler_turn(scheduler);
}

void scheduler_turn(struct scheduler *scheduler)
{
    event_active(scheduler->turn, 0, 0);
}

bool scheduler_settle(struct scheduler *scheduler)
{
    scheduler->busy = false;
    if (scheduler->epoch != 0 && scheduler->chain == scheduler->epoch)
        return true;
    scheduler_turn(scheduler);
    return false;
}

void scheduler_wake_in_ms(struct scheduler *scheduler, unsigned ms)
{
    const struct timeval wait = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    event_add(scheduler->wake, &wait);
}

void scheduler_retry(struct scheduler *scheduler, enum scheduler_task task, const char *what,
                     const struct err *why)
{
    log_event(LOG_LEVEL_WARN, what, "code=%s why=\"%s\"", err_code_name(why->code), why->text);
    health_failed(scheduler, task, why);
    scheduler->view_stale = true;
    scheduler->dirty = true;
    /* No events are read until a task succeeds, so the nodes' silence in this time must not count. */
    scheduler->listening_ns = clock_mono_ns();
    scheduler_wake_in_ms(scheduler, RETRY_MS);
}

bool scheduler_blames_rows(const struct err *err, unsigned *conflicts)
{
    switch (err->code) {
    case ERR_INVALID:
    case ERR_INTERNAL:
    case ERR_TOO_BIG:
    case ERR_DENIED:
        return strncmp(err->text, "store_fence:", 12) != 0;
    case ERR_BUSY:
    case ERR_TIMEOUT:
        return store_err_is_refusal(err);
    case ERR_CONFLICT:
        return ++*conflicts >= CONFLICTS_MAX;
    default:
        return false;
    }
}
