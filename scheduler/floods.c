/* Bounds the harm that one node's stream can do: a stream has a limit in bytes, and is emptied when it is too
 * large or cannot be decoded.
 *
 * An honest agent sends at most one window of unacknowledged events (agent/feed.h), and sends again what an
 * emptied stream lost. A node that goes on flooding loses its Redis user until it is enrolled anew.
 */
#include "scheduler/leader/scheduler_private.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/redis.h"

#define STREAM_BYTES_MAX ((long long)16 << 20) /* a larger stream is emptied */
#define FLOOD_BYTES ((long long)64 << 20)      /* a stream of this size is a flood, not a backlog */
#define STRIKES_FLOOD 10u
/* a node with this many strikes is barred: three floods, or thirty small offences, within a minute */
#define STRIKES_MAX 30.0
#define STRIKES_PER_S 0.5 /* strikes that are forgiven each second */

struct look { /* one question for the size of one stream */
    struct scheduler *scheduler;
    char node[72];
};

static void size_came(void *arg, const redisReply *reply, const struct err *err)
{
    struct look *look = arg;
    struct scheduler *scheduler = look->scheduler;
    struct inlet *inlet = err->code == ERR_NONE ? inlets_find(scheduler->inlets, look->node) : NULL;
    if (inlet != NULL && inlet->seal != NULL && reply->type == REDIS_REPLY_INTEGER &&
        reply->integer > STREAM_BYTES_MAX) {
        char why[128];
        snprintf(why, sizeof(why), "its stream was emptied: it held %lld MiB, the limit is %lld MiB",
                 reply->integer >> 20, STREAM_BYTES_MAX >> 20);
        floods_empty(scheduler, inlet, reply->integer > FLOOD_BYTES ? STRIKES_FLOOD : 1, why);
    }
    free(look);
}

void floods_look(struct scheduler *scheduler, bool cut)
{
    struct err ignored; /* the next tick asks again */
    for (size_t i = 0; scheduler->redis_up && i < inlets_count(scheduler->inlets); i++) {
        const struct inlet *inlet = inlets_at(scheduler->inlets, i);
        if (inlet->seal == NULL || (cut && !inlet->cut)) {
            continue;
        }
        const char *const argv[] = {"MEMORY", "USAGE", inlet->stream, "SAMPLES", "0"};
        struct look *look = calloc(1, sizeof(*look));
        if (look == NULL) {
            return;
        }
        look->scheduler = scheduler;
        snprintf(look->node, sizeof(look->node), "%s", inlet->node);
        if (redis_command(scheduler->commands, 0, size_came, look, 5, argv, NULL, &ignored) < 0) {
            free(look);
        }
    }
}

void floods_empty(struct scheduler *scheduler, struct inlet *inlet, unsigned strikes, const char *why)
{
    const uint64_t now_ns = clock_mono_ns();
    const char *const argv[] = {"DEL", inlet->stream};
    struct err ignored; /* a stream that is not emptied now is found too large, or undecodable, again */
    redis_command(scheduler->commands, 0, NULL, NULL, 2, argv, NULL, &ignored);
    snprintf(inlet->after, sizeof(inlet->after), "0");
    inlet->taken[0] = '\0';
    const double forgiven = STRIKES_PER_S * (double)(now_ns - inlet->strike_ns) / 1e9;
    inlet->strikes = (inlet->strikes > forgiven ? inlet->strikes - forgiven : 0) + strikes;
    inlet->strike_ns = now_ns;
    inlet_refuse(inlet, now_ns, ERR_TOO_BIG, why);
    if (inlet->strikes >= STRIKES_MAX && !inlet->bar) {
        inlet->bar = true;
        log_event(LOG_LEVEL_ERROR, "node_barred", "node=%s why=\"%s\"", inlet->node, inlet->why);
        keeper_check(scheduler);
        floods_mark(scheduler);
    }
}

static void marked(void *arg, const struct err *err)
{
    struct scheduler *scheduler = arg;
    scheduler->marking = false;
    if (err != NULL && err->code != ERR_CANCELLED) {
        log_event(LOG_LEVEL_WARN, "marks_unwritten", "why=\"%s\"", err->text);
    }
    for (size_t i = 0; err == NULL && scheduler->epoch != 0 && i < inlets_count(scheduler->inlets); i++) {
        if (inlets_at(scheduler->inlets, i)->bar) {
            scheduler->view_stale = true; /* the next view shows the node as barred */
            scheduler_mark(scheduler);
            return;
        }
    }
}

void floods_mark(struct scheduler *scheduler)
{
    struct err ignored; /* on failure the counts are lost; the bar is written with the next call */
    if (scheduler->marking) {
        return;
    }
    json_t *marks = inlets_marks(scheduler->inlets);
    scheduler->marking =
        json_array_size(marks) > 0 &&
        store_node_mark(scheduler->store, scheduler->epoch, marks, marked, scheduler, &ignored) == 0;
    json_decref(marks);
}
