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

struct size_query { /* one question for the size of one stream */
    struct scheduler *scheduler;
    char node[72];
};

static void size_came(void *arg, const redisReply *reply, const struct err *err)
{
    struct size_query *query = arg;
    struct scheduler *scheduler = query->scheduler;
    struct node_stream *node_stream =
        err->code == ERR_NONE ? node_streams_find(scheduler->node_streams, query->node) : NULL;
    if (node_stream && node_stream->seal && reply->type == REDIS_REPLY_INTEGER &&
        reply->integer > STREAM_BYTES_MAX) {
        char why[128];
        snprintf(why, sizeof(why), "its stream was emptied: it held %lld MiB, the limit is %lld MiB",
                 reply->integer >> 20, STREAM_BYTES_MAX >> 20);
        floods_empty(scheduler, node_stream, reply->integer > FLOOD_BYTES ? STRIKES_FLOOD : 1, why);
    }
    free(query);
}

void floods_measure(struct scheduler *scheduler, bool cut)
{
    struct err ignored; /* the next tick asks again */
    for (size_t i = 0; scheduler->redis_up && i < node_streams_count(scheduler->node_streams); i++) {
        const struct node_stream *node_stream = node_streams_at(scheduler->node_streams, i);
        if (!node_stream->seal || (cut && !node_stream->cut))
            continue;
        const char *const argv[] = {"MEMORY", "USAGE", node_stream->stream, "SAMPLES", "0"};
        struct size_query *query = calloc(1, sizeof(*query));
        if (!query)
            return;
        query->scheduler = scheduler;
        snprintf(query->node, sizeof(query->node), "%s", node_stream->node);
        if (redis_command(scheduler->commands, 0, size_came, query, 5, argv, NULL, &ignored) < 0)
            free(query);
    }
}

void floods_empty(struct scheduler *scheduler, struct node_stream *node_stream, unsigned strikes,
                  const char *why)
{
    const uint64_t now_ns = clock_mono_ns();
    const char *const argv[] = {"DEL", node_stream->stream};
    struct err ignored; /* a stream that is not emptied now is found too large, or undecodable, again */
    redis_command(scheduler->commands, 0, NULL, NULL, 2, argv, NULL, &ignored);
    snprintf(node_stream->after, sizeof(node_stream->after), "0");
    node_stream->taken[0] = '\0';
    const double forgiven = STRIKES_PER_S * (double)(now_ns - node_stream->strike_ns) / 1e9;
    node_stream->strikes = (node_stream->strikes > forgiven ? node_stream->strikes - forgiven : 0) + strikes;
    node_stream->strike_ns = now_ns;
    node_stream_refuse(node_stream, now_ns, ERR_TOO_BIG, why);
    if (node_stream->strikes >= STRIKES_MAX && !node_stream->bar) {
        node_stream->bar = true;
        log_event(LOG_LEVEL_ERROR, "node_barred", "node=%s why=\"%s\"", node_stream->node, node_stream->why);
        redis_users_check(scheduler);
        floods_mark(scheduler);
    }
}

static void marked(void *arg, const struct err *err)
{
    struct scheduler *scheduler = arg;
    scheduler->marking = false;
    if (err && err->code != ERR_CANCELLED)
        log_event(LOG_LEVEL_WARN, "marks_unwritten", "why=\"%s\"", err->text);
    for (size_t i = 0; !err && scheduler->epoch != 0 && i < node_streams_count(scheduler->node_streams);
         i++) {
        if (node_streams_at(scheduler->node_streams, i)->bar) {
            scheduler->view_stale = true; /* the next view shows the node as barred */
            scheduler_mark(scheduler);
            return;
        }
    }
}

void floods_mark(struct scheduler *scheduler)
{
    struct err ignored; /* If the call fails, the counts are lost. That a node is barred is written again by
                           the next call. */
    if (scheduler->marking)
        return;
    json_t *marks = node_streams_marks(scheduler->node_streams);
    scheduler->marking =
        json_array_size(marks) > 0 &&
        store_node_mark(scheduler->store, scheduler->epoch, marks, marked, scheduler, &ignored) == 0;
    json_decref(marks);
}
