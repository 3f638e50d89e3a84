/* Encoded data sets. A file of encoded rows is made of an uploaded text, once for each text, model and
 * options, and is stored under its content.
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
    /* the asker, who must be allowed to use the uploaded file or the data set made of it */
    const struct principal *principal;
    const char *sha256;          /* SHA-256 of the uploaded file, in hex */
    const char *what;            /* prefix of errors about the file, such as "data.train" */
    const json_t *model;         /* the document of store_model_get */
    const struct job_spec *spec; /* its data.format, learn, sequence_tokens, chat_template and day are used */
};

/* Called with the data set, borrowed for the call; NULL when there is an err. Errors of the data itself are
 * ERR_INVALID and the like ("data.train: line 17: …"), also when the file was not uploaded. */
typedef void dataset_done_fn(void *arg, const struct err *err, const struct store_dataset *dataset);

/* Creates the table of encodings. 'app' is borrowed until destroy. Destroy it when neither the pool nor the
 * store can call back any more. */
int datasets_create(struct app *app, struct datasets **datasets, struct err *err);
void datasets_destroy(struct datasets *datasets);
/* Gets a data set, and encodes it if needed. Arguments are borrowed for the call. The callback is called
 * exactly once and never before the function returns; it is not called after -1 was returned. */
int dataset_get(struct datasets *datasets, const struct dataset_want *want, dataset_done_fn *done, void *arg,
                struct err *err);

#endif
