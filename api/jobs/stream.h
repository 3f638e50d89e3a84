/* Server-Sent Events for all clients that follow a job. Loop thread. */
#ifndef MOTLEY_API_JOBS_STREAM_H
#define MOTLEY_API_JOBS_STREAM_H

#include "api/request/app.h"

/* Starts listening for the database's "motley_events". */
int followers_create(struct app *app, struct followers **followers, struct err *err);
/* Ends every stream. */
void followers_destroy(struct followers *followers);

#endif
