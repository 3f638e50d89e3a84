/* Declarations that stream.c (the stream of one job, and code for all streams) and topics.c (the cluster's
 * stream) share.
 */
#ifndef MOTLEY_API_JOBS_STREAM_PRIVATE_H
#define MOTLEY_API_JOBS_STREAM_PRIVATE_H

#include "api/jobs/stream.h"

#include <stdbool.h>
#include <sys/queue.h>

enum {
    FOLLOWERS_MAX = 512,
    EVENTS_PAGE = 500,
    JOBS_MAX = 16, /* jobs that one stream follows */
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
    const int64_t *jobs; /* [job_count] the jobs that it follows: `job`, or those of its topics */
    unsigned job_count;
    uint8_t token_hash[32]; /* SHA-256 of the token that opened the stream */
    char type[32];          /* "" for all types */
    json_t *over;           /* the job's document once it has finished, or NULL; owned */
    bool reading;           /* a query is under way */
    bool waiting;           /* no page is read until the client has taken the bytes that were sent */
    bool again;             /* a NOTIFY came while a query was under way */
    bool closing;           /* the last state event that was seen has a final state */
    bool gone;
    struct topics *topics; /* the topics of a stream of GET /v1/events; NULL: the stream of one job */
};

struct followers {
    struct app *app;
    LIST_HEAD(, follower) all;
    struct event *heartbeat;
    unsigned checks;
    bool checking; /* a query whether the followers may see their jobs is under way */
    /* This and the two callbacks are set by topics.c, and NULL at first. */
    struct cluster_feed *feed;
    void (*feed_notify)(struct cluster_feed *feed); /* called when the queue or devices may have changed */
    /* called when a follower with topics can take further events */
    void (*feed_next)(struct cluster_feed *feed);
};

/* Answers the call with a stream that begins after the event `last`. Returns NULL when the call was answered
 * otherwise (a limit is reached, or the client has gone). Takes ownership of `topics` (NULL: none). */
struct follower *follower_create(struct call *call, int64_t last, struct topics *topics);
/* Ends the stream and frees the follower. Must not be called while a query for this follower is under way. */
void follower_end(struct follower *follower, bool broken);
/* Sends one event. With id -1 the event has no id, and a client that reconnects resumes from the last event
 * that has one. Returns -1 when the client has gone or has too many unread bytes. */
int follower_send(struct follower *follower, const char *type, int64_t id, const json_t *data);
/* Reads the id after which the client wants events (Last-Event-ID or `after`); `missing` when it gives none.
 * Returns -1 when the call was answered. */
int follower_resume(struct call *call, int64_t missing, int64_t *after);

#endif
