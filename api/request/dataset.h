/* Encoded data sets. A rows file is made of an uploaded text once per file, model and options, and is stored
 * under its content.
 *
 * Encoding runs on the pool; requests for the same data set share one encoding. Loop thread.
 */
#ifndef MOTLEY_API_REQUEST_DATASET_H
#define MOTLEY_API_REQUEST_DATASET_H

#include <jansson.h>

#include "api/request/app.h"
#include "model/job/spec.h"
#include "store/models.h"

struct dataset_want {
    /* the asker, who may use the uploaded file or the data set made of it */
    const struct principal *principal;
    const char *sha256;          /* of the uploaded file */
    const char *what;            /* prefix of errors about the file, such as "data.train" */
    const json_t *model;         /* the document of store_model_get */
    const struct job_spec *spec; /* its data.format, learn, sequence_tokens and chat_template are used */
};

/* 'dataset' is borrowed for the call; NULL when there is an err. Errors of the data itself are ERR_INVALID
 * and the like ("data.train: line 17: …"), also when the file was not uploaded. */
typedef void dataset_done_fn(void *arg, const struct err *err, const struct store_dataset *dataset);

/* 'app' is borrowed until destroy. Destroy it when neither the pool nor the store can call back any more. */
int datasets_create(struct app *app, struct datasets **datasets, struct err *err);
void datasets_destroy(struct datasets *datasets);
/* Arguments are borrowed for the call. The callback comes exactly once and never before the function returns;
 * after -1 it does not come.
 */
int dataset_get(struct datasets *datasets, const struct dataset_want *want, dataset_done_fn *done, void *arg,
                struct err *err);

#endif
