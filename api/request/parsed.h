/* Reads users' files with the help of the parser process (parse/parse.h), whose answers are checked here like
 * any other input. All functions block: call them on pool threads only. Paths and documents are borrowed for
 * the call.
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

/* Reads a model from these files ([{"name","sha256","path"?}]). *config is its configuration, *info the
 * summary shown in lists; both are new. Errors (ERR_NOT_FOUND, ERR_INVALID, ERR_UNSUPPORTED …) name the file
 * and what is wrong in it. */
int parsed_model(struct app *app, const json_t *files, json_t **config, json_t **info, struct err *err);

/* How text is turned into rows or into a prompt. */
struct parsed_text {
    const json_t *files; /* the model's files */
    const json_t *chat;  /* data.chat_template, or NULL */
    const char *day;     /* data.day, or NULL */
    enum spec_format format;
    enum spec_learn learn;
    uint32_t sequence_tokens;
};

struct parsed_rows {
    /* manifest of the encoded file, which is now a blob (release it with manifest_fini) */
    struct manifest manifest;
    json_t *stats;          /* new */
    struct row_size *sizes; /* new */
    size_t sizes_bytes;
};

/* Encodes the file at 'path'. */
int parsed_rows(struct app *app, const struct parsed_text *text, const char *path, struct parsed_rows *rows,
                struct err *err);

/* Renders a prompt to token ids; *ids is new. 'format' is the format of the training rows, and not auto. */
int parsed_prompt(struct app *app, const struct parsed_text *text, const char *prompt, json_t **ids,
                  struct err *err);

/* Reads the list of an adapter's two files at 'path'; *files is {file name: sha256}, new. */
int parsed_adapter_files(struct app *app, const char *path, json_t **files, struct err *err);
/* Reads an adapter's two files and checks that it fits the model of 'files' and that Motley can train it. */
int parsed_adapter(struct app *app, const json_t *files, const char *config_path, const char *weights_path,
                   struct peft_config *config, struct err *err);

#endif
