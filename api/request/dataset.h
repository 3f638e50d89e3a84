/* Encoded data sets. A file of encoded rows is made of an uploaded text, once for each text, model and
 * options, and is stored under its content.
 *
 * Encoding runs on the pool; requests for the same data set share one encoding. Loop thread.
 */
#ifndef MOTLEY_API_REQUEST_DATASET_H
#define MOTLEY_API_REQUEST_DATASET_H

#include <jansson.h>

#include "api/request/app.h"
#include "common/digest.h"
#include "model/job/spec.h"
#include "model/rows/rows.h"

struct dataset_want {
    /* the asker, who must be allowed to use the uploaded file or the data set made of it */
    const struct principal *principal;
    const char *sha256;          /* SHA-256 of the uploaded file, in hex */
    const char *what;            /* prefix of errors about the file, such as "data.train" */
    const json_t *model;         /* the document of store_model_get */
    const struct job_spec *spec; /* its data.format, learn, sequence_tokens, chat_template and day are used */
};

struct dataset {
    char key[DIGEST_HEX_SIZE];
    json_t *stats;          /* owned */
    struct row_size *sizes; /* [rows], owned */
    uint32_t rows;
};
void dataset_fini(struct dataset *dataset);

/* Creates the table of encodings. */
int datasets_create(struct datasets **datasets, struct err *err);
void datasets_destroy(struct datasets *datasets);
/* Gets a data set, and encodes it if needed; waits (api/request/wait.h). The arguments are borrowed until it
 * returns. Errors of the data itself are ERR_INVALID and the like ("data.train: line 17: …"), also when the
 * file was not uploaded. */
int dataset_get(struct app *app, const struct dataset_want *want, struct dataset *dataset, struct err *err);

#endif
