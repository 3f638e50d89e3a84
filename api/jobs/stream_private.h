/* What stream.c (a job's own stream, and all that streams share) and topics.c (the cluster's stream) share.
 */
#ifndef MOTLEY_API_JOBS_STREAM_PRIVATE_H
#define MOTLEY_API_JOBS_STREAM_PRIVATE_H

#include "api/jobs/stream.h"

#include <stdbool.h>
#include <sys/queue.h>

enum {
    FOLLOWERS_MAX = 512,
    EVENTS_PAGE = 500,
    UNSENT_BYTES_MAX = 256 << 10,
    CHECK_SECONDS = 5,
    CHECKS_PER_BEAT = 3
};

struct topics;
struct cluster_feed;

struct follower {
    LIST_ENTRY(follower) link;
    struct followers *followers;
    struct call *call;
    int64_t job, last, user;
    uint8_t token_hash[32]; /* SHA-256 of the token that opened the stream */
    char type[32];          /* "" for all types */
    json_t *over;           /* the job's document once it has finished, or NULL; owned */
    bool reading;           /* a query is under way */
    bool waiting;           /* reading waits until the client has taken what was sent */
    bool again;             /* a NOTIFY came during the query */
    bool closing;           /* the last state event seen was a final one */
    bool gone;
    struct topics *topics; /* of GET /v1/events; NULL: one job's stream */
};

struct followers {
    struct app *app;
    LIST_HEAD(, follower) all;
    struct event *heartbeat;
    unsigned checks;
    struct cluster_feed *feed;                      /* topics.c, which sets all three; NULL at first */
    void (*feed_notify)(struct cluster_feed *feed); /* called when the queue or devices may have changed */
    void (*feed_next)(
        struct cluster_feed *feed); /* called when a follower with topics can be sent to again */
};

/* Answers the call with a stream that begins behind the event `last`. Returns NULL when the call was answered
 * otherwise (a limit is reached, the client has gone). Takes `topics` over (NULL: none). */
struct follower *follower_create(struct call *call, int64_t last, struct topics *topics);
/* Ends the stream and frees the follower; not while a query of its own is under way. */
void follower_end(struct follower *follower, bool broken);
/* Sends one event. id -1: the event has no id, and a client that reconnects resumes from the event before.
 * Returns -1 when the client has gone or has too many unread bytes. */
int follower_send(struct follower *follower, const char *type, int64_t id, const json_t *data);
/* The id that a client resumes from (Last-Event-ID or `after`); `missing` when it says none. Returns -1 when
 * the call was answered. */
int follower_resume(struct call *call, int64_t missing, int64_t *after);

#endif
