/* Notes how passes and the storing of events go, and tells the database, where the api reads it: somebody
 * must hear of a scheduler that decides nothing. */
#include "common/clock.h"
#include "common/log.h"
#include "scheduler/leader/scheduler_private.h"
#include "store/health.h"

#define TELL_NS 2000000000u
/* A task that fails for less than this, as one does that is tried again without a part, is not told. */
#define LASTING_NS 1000000000u
enum { ASIDES_TOLD_MAX = 100 };

void health_good(struct scheduler *scheduler, enum scheduler_task task)
{
    struct scheduler_health *health = &scheduler->health;
    health->changed = health->changed || health->tasks[task].told;
    health->tasks[task].told = false;
    health->tasks[task].failing_ns = 0;
    health->tasks[task].failures = 0;
}

void health_failed(struct scheduler *scheduler, enum scheduler_task task, const struct err *why)
{
    struct scheduler_health *health = &scheduler->health;
    if (health->tasks[task].failing_ns == 0)
        health->tasks[task].failing_ns = clock_mono_ns();
    health->tasks[task].failed_ns = clock_mono_ns();
    health->tasks[task].failures++;
    health->tasks[task].err = *why;
}

static void health_told(void *arg, const struct err *err)
{
    struct scheduler *scheduler = arg;
    scheduler->health.writing = false;
    if (err && err->code != ERR_CANCELLED) {
        scheduler->health.changed = true; /* the next tick tells it again */
        log_event(LOG_LEVEL_WARN, "health_untold", "why=\"%s\"", err->text);
    }
}

/* Returns the first asides as an array. */
static json_t *list_asides(const struct scheduler *scheduler)
{
    json_t *list = json_array(), *aside;
    const char *unit;
    json_object_foreach (scheduler->asides, unit, aside)
        if (json_array_size(list) < ASIDES_TOLD_MAX)
            json_array_append(list, aside);
    return list;
}

static bool is_failing(const struct scheduler_health *health, enum scheduler_task task, uint64_t now_ns)
{
    return health->tasks[task].failing_ns != 0 && now_ns - health->tasks[task].failing_ns >= LASTING_NS;
}

/* Notes that nothing is left to decide. What failed and is no longer tried is over then. */
static void health_settle(struct scheduler *scheduler, uint64_t now_ns)
{
    struct scheduler_health *health = &scheduler->health;
    bool fails = false;
    if (!scheduler->ready || !scheduler->view || scheduler->busy || scheduler->pass)
        return;
    for (int task = 0; task < TASKS; task++) {
        if (task != TASK_REDIS && !scheduler->dirty &&
            now_ns - health->tasks[task].failed_ns >= 2 * LASTING_NS)
            health_good(scheduler, (enum scheduler_task)task);
        fails = fails || health->tasks[task].failing_ns != 0;
    }
    if (!fails)
        health->good_ns = now_ns;
}

void health_tell(struct scheduler *scheduler, uint64_t now_ns)
{
    struct scheduler_health *health = &scheduler->health;
    struct err err;
    health_settle(scheduler, now_ns);
    const enum scheduler_task failing = is_failing(health, TASK_LOAD, now_ns)     ? TASK_LOAD
                                        : is_failing(health, TASK_PASS, now_ns)   ? TASK_PASS
                                        : is_failing(health, TASK_INGEST, now_ns) ? TASK_INGEST
                                        : is_failing(health, TASK_REDIS, now_ns)  ? TASK_REDIS
                                                                                  : TASKS;
    const bool news = health->changed || (failing < TASKS && !health->tasks[failing].told);
    if (health->writing || (!news && now_ns - health->written_ns < TELL_NS))
        return;
    if (failing < TASKS)
        health->tasks[failing].told = true;
    json_t *asides = list_asides(scheduler);
    const struct store_health told_now = {
        .leader = scheduler->epoch,
        .name = scheduler->config->name,
        .good_ms = health->good_ns != 0 ? (int64_t)(now_ns - health->good_ns) / 1000000 : -1,
        .failing_ms = failing < TASKS ? (int64_t)(now_ns - health->tasks[failing].failing_ns) / 1000000 : -1,
        .failures = failing < TASKS ? health->tasks[failing].failures : 0,
        .task = failing == TASK_INGEST  ? "events"
                : failing == TASK_REDIS ? "redis"
                                        : "passes",
        .why = failing < TASKS ? health->tasks[failing].err.text : NULL,
        .asides = asides,
        .aside_count = json_object_size(scheduler->asides)};
    health->changed = false;
    health->written_ns = now_ns;
    health->writing = store_health_put(scheduler->store, &told_now, health_told, scheduler, &err) == 0;
    json_decref(asides);
}
