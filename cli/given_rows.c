/* Computes the row sizes of a specification's data as the server would, when the data file and the tokenizer
 * are available. Otherwise a plan without a server assumes rows of full length, and says so. */
#include "cli/cli.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/buf.h"
#include "common/file.h"
#include "model/rows/rows.h"
#include "model/rows/rows_show.h"
#include "model/job/spec.h"
#include "model/shape/tensors.h"
#include "model/text/tokenizer.h"
#include "model/text/tokenizer_files.h"

enum { DATA_BYTES_MAX = 1 << 30 };

/* Opens the tokenizer in a model's folder; NULL without an error when there is none. */
static int open_tokenizer(const char *folder, struct tokenizer **tokenizer, struct err *err)
{
    struct model_source *source;
    struct err why = {0};
    *tokenizer = NULL;
    if (model_source_open_local(folder, &source, err) < 0)
        return -1;
    int result = tokenizer_open_source(source, tokenizer, &why);
    model_source_close(source);
    if (result < 0 && why.code != ERR_NOT_FOUND)
        *err = why;
    return result < 0 && why.code != ERR_NOT_FOUND ? -1 : 0;
}

/* Opens the tokenizer of the model whose config.json or .gguf is at the path, as the server does; in a folder
 * without weights it reads tokenizer.json alone. */
static int open_model(const char *model_path, struct tokenizer **tokenizer, struct err *err)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(model_path, '/');
    const size_t length = strlen(model_path);
    const bool gguf = length > 5 && strcmp(model_path + length - 5, ".gguf") == 0;
    struct model *model = NULL;
    struct err why = {0};
    *tokenizer = NULL;
    if (file_path(folder, sizeof(folder), err, "%.*s", slash ? (int)(slash - model_path) : 1,
                  slash ? model_path : ".") < 0)
        return -1;
    if (model_open_path(gguf ? model_path : folder, &model, &why) < 0) {
        if (gguf)
            *err = why;
        return gguf ? -1 : open_tokenizer(folder, tokenizer, err);
    }
    int result = tokenizer_open(model, tokenizer, &why);
    model_close(model);
    if (result < 0 && why.code != ERR_NOT_FOUND)
        *err = why;
    return result < 0 && why.code != ERR_NOT_FOUND ? -1 : 0;
}

int given_text_open(const struct spec_data_part *data, const char *model_path, uint32_t vocab,
                    struct given_text *text, struct rows_options *options, struct err *err)
{
    *text = (struct given_text){0};
    return open_model(model_path, &text->tokenizer, err) < 0
               ? -1
               : rows_options_from_spec(data, text->tokenizer, vocab, options, &text->chat, err);
}

void given_text_fini(struct given_text *text)
{
    chat_template_destroy(text->chat);
    tokenizer_destroy(text->tokenizer);
    *text = (struct given_text){0};
}

int given_encode(const char *path, const struct rows_options *options, struct rows **rows,
                 struct rows_report *report, struct err *err)
{
    struct buf text = {.limit = DATA_BYTES_MAX};
    int result = file_read_all(path, DATA_BYTES_MAX, &text, err);
    if (result >= 0)
        result = rows_encode(buf_str(&text), text.size, options, rows, report, err);
    buf_fini(&text);
    return result < 0 ? err_wrap(err, "%s", path) : 0;
}

/* Adds what looks wrong in a file's rows, behind the name of its key. */
static int given_rows_doubts_add(struct given_rows *given, const struct rows_report *report, const char *what,
                                 struct err *err)
{
    json_t *list = json_array(), *doubt;
    size_t index;
    given->doubts = given->doubts ? given->doubts : json_array();
    int result = rows_report_doubts(report, list, err);
    json_array_foreach (list, index, doubt)
        json_array_append_new(given->doubts, json_sprintf("%s: %s", what, json_string_value(doubt)));
    json_decref(list);
    return result;
}

static int given_rows_encode(const char *path, const struct rows_options *options, const char *what,
                             struct given_rows *given, struct row_size **sizes, uint32_t *count,
                             struct err *err)
{
    struct rows *rows = NULL;
    struct rows_report report;
    int result = given_encode(path, options, &rows, &report, err);
    if (result == 0 && !(*sizes = calloc((size_t)rows->count + 1, sizeof(**sizes))))
        result = err_set(err, ERR_NOMEM, "no memory for %u rows", rows->count);
    if (result == 0) {
        rows_sizes(rows, *sizes);
        *count = rows->count;
        given->format = report.format;
        result = given_rows_doubts_add(given, &report, what, err);
    }
    rows_destroy(rows);
    return result;
}

static int prompt_size(const struct job_spec *spec, struct rows_options *options, struct given_rows *given,
                       struct err *err)
{
    struct ids ids = {0};
    if (!spec->sample.prompt || !options->tokenizer)
        return 0;
    int result = rows_render_prompt(spec->sample.prompt, given->format, options, &ids, err);
    given->prompt_tokens = (uint32_t)ids.count;
    ids_fini(&ids);
    return result < 0 ? err_wrap(err, "sample.prompt") : 0;
}

/* Encodes all data that are available, or fails with the first error. */
static int given_rows_read_all(const struct job_spec *spec, const char *train, const char *eval,
                               const char *model_path, uint32_t vocab, struct given_rows *given,
                               struct err *err)
{
    struct given_text text;
    struct rows_options options = {0};
    int result = given_text_open(&spec->data, model_path, vocab, &text, &options, err);
    if (result == 0)
        result =
            given_rows_encode(train, &options, "data.train", given, &given->train, &given->train_count, err);
    if (result == 0 && eval)
        result = given_rows_encode(eval, &options, "data.eval", given, &given->eval, &given->eval_count, err);
    if (result == 0)
        result = prompt_size(spec, &options, given, err);
    given_text_fini(&text);
    return result;
}

void given_rows_read(const struct job_spec *spec, const char *train, const char *eval, const char *model_path,
                     uint32_t vocab, struct given_rows *given)
{
    struct err why = {0};
    *given = (struct given_rows){0};
    if (!train) {
        snprintf(given->why, sizeof(given->why), "there is no file %.200s", spec->data.train);
    } else if (given_rows_read_all(spec, train, eval, model_path, vocab, given, &why) < 0) {
        given_rows_fini(given);
        snprintf(given->why, sizeof(given->why), "%.300s", why.text);
    }
}

void given_rows_fini(struct given_rows *given)
{
    free(given->train);
    free(given->eval);
    json_decref(given->doubts);
    *given = (struct given_rows){0};
}
