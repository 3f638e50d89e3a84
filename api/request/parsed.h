/* What users' files say: asked of the process that reads them (parse/parse.h), and not believed.
 *
 * Every answer is checked here as anything else from outside is. All of it blocks: pool threads only. Paths
 * and documents are borrowed for the call.
 */
#ifndef MOTLEY_API_REQUEST_PARSED_H
#define MOTLEY_API_REQUEST_PARSED_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "api/request/app.h"
#include "model/files/manifest.h"
#include "model/adapters/peft.h"
#include "model/rows/rows.h"
#include "model/job/spec.h"

/* A model of these files ([{"name","sha256","path"?}]): its config, and what is said of it in lists. Both
 * become new. ERR_NOT_FOUND, ERR_INVALID, ERR_UNSUPPORTED … name what is wrong in which file. */
int parsed_model(struct app *app, const json_t *files, json_t **config, json_t **info, struct err *err);

/* How text becomes rows, or a prompt. */
struct parsed_text {
    const json_t *files; /* of the model */
    const json_t *chat;  /* data.chat_template, or NULL */
    enum spec_format format;
    enum spec_learn learn;
    uint32_t sequence_tokens;
};

struct parsed_rows {
    struct manifest manifest; /* of the encoded file, which is a blob now (manifest_fini) */
    json_t *stats;            /* new */
    struct row_size *sizes;   /* new */
    size_t sizes_bytes;
};

/* Encode the file at 'path'. */
int parsed_rows(struct app *app, const struct parsed_text *text, const char *path, struct parsed_rows *rows,
                struct err *err);

/* The ids of a prompt, new. 'format' is that of the rows, not auto. */
int parsed_prompt(struct app *app, const struct parsed_text *text, const char *prompt, json_t **ids,
                  struct err *err);

/* {file name: sha256} of the list of an adapter's two files at 'path'; new. */
int parsed_adapter_files(struct app *app, const char *path, json_t **files, struct err *err);
/* What the adapter's two files say, which was found to be one that we compute, on the model of 'files'. */
int parsed_adapter(struct app *app, const json_t *files, const char *config_path, const char *weights_path,
                   struct peft_config *config, struct err *err);

#endif
