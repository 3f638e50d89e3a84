/* Server-Sent Events for all clients that follow a job. Loop thread. */
#ifndef MOTLEY_API_JOBS_STREAM_H
#define MOTLEY_API_JOBS_STREAM_H

#include "api/request/app.h"

struct cluster_feed;

/* Creates the followers and starts listening for the database's "motley_events". */
int followers_create(struct app *app, struct followers **followers, struct err *err);
/* Creates the feed of the streams with topics (topics.c), for the followers of 'app'. */
int feed_create(struct app *app, struct cluster_feed **feed, struct err *err);
/* Call it after followers_destroy. */
void feed_destroy(struct cluster_feed *feed);
/* Ends every stream, and frees the followers. */
void followers_destroy(struct followers *followers);

#endif
