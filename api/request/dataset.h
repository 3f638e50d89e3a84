/* Encoded data sets: rows files made from uploaded text once per (file, model, options), and kept by content.
 *
 * Encoding runs on the pool; requests for the same data set that arrive meanwhile wait for the same one. Loop
 * thread.
 */
#ifndef MOTLEY_API_REQUEST_DATASET_H
#define MOTLEY_API_REQUEST_DATASET_H

#include <jansson.h>

#include "api/request/app.h"
#include "model/job/spec.h"
#include "store/models.h"

struct dataset_want {
    const struct principal *principal; /* who may use it: the file, or the data set made of it */
    const char *sha256;                /* of the uploaded file */
    const char *what;                  /* "data.train": stands before what is wrong in it */
    const json_t *model;               /* store_model_get's document */
    const struct job_spec *spec;       /* data.format, learn, sequence_tokens, chat_template */
};

/* 'dataset' is borrowed for the call; NULL with err: ERR_INVALID and friends for the data itself
 * ("data.train: line 17: …") or when the file was not uploaded. */
typedef void dataset_done_fn(void *arg, const struct err *err, const struct store_dataset *dataset);

/* 'app' is borrowed until destroy. Destroy when neither pool nor store can call back any more. */
int datasets_create(struct app *app, struct datasets **datasets, struct err *err);
void datasets_destroy(struct datasets *datasets);
/* Arguments are borrowed for the call. The callback comes exactly once, never before the return, unless -1.
 */
int dataset_get(struct datasets *datasets, const struct dataset_want *want, dataset_done_fn *done, void *arg,
                struct err *err);

#endif
