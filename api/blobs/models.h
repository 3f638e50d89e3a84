/* Models that the api fetches from the Hub and registers for a person. Loop thread. */
#ifndef MOTLEY_API_BLOBS_MODELS_H
#define MOTLEY_API_BLOBS_MODELS_H

#include "api/request/app.h"

/* A registration under way. It ends, and is freed, with the call of its function. */
struct registration;

/* `content` is the model's content id, borrowed for the call; NULL with an error. */
typedef void registration_done_fn(void *arg, const struct err *err, const char *content);

/* Fetches a model of the Hub (hub/name.h) and registers it for the person under its own name there without
 * the owner. The person's limit of stored bytes counts. 'done' is called once if the
 * function returns 0, perhaps before that, also when the api stops (ERR_CANCELLED). */
int registration_fetch(struct app *app, const struct principal *principal, const char *word,
                       registration_done_fn *done, void *arg, struct registration **out, struct err *err);

/* How far a fetch is. */
struct registration_seen {
    uint64_t done_bytes, total_bytes; /* total 0: the Hub has not said yet what there is */
    char note[200];                   /* what it waits for, or "" */
};
void registration_look(struct registration *r, struct registration_seen *seen);
/* Ends the fetch with ERR_CANCELLED within about a second. What has come is kept for the next one. */
void registration_stop(struct registration *r);

#endif
