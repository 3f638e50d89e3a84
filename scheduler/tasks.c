/* How a database task asks for a pass and reports its end. scheduler.c starts the next task. */
#include <event2/event.h>

#include "common/clock.h"
#include "common/log.h"
#include "scheduler/leader/scheduler_private.h"

#define RETRY_MS 100

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

void scheduler_retry(struct scheduler *scheduler, const char *what, const struct err *why)
{
    log_event(LOG_LEVEL_WARN, what, "code=%s why=\"%s\"", err_code_name(why->code), why->text);
    scheduler->view_stale = true;
    scheduler->dirty = true;
    /* No events are read until a task succeeds, so the nodes' silence in this time must not count. */
    scheduler->listening_ns = clock_mono_ns();
    scheduler_wake_in_ms(scheduler, RETRY_MS);
}
