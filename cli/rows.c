/* `motley rows SPEC`: shows what a job would learn before it runs. It reads the model and the data itself; no
 * server is needed. */
#include "cli/cli.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "model/shape/config.h"
#include "model/rows/rows.h"
#include "model/rows/rows_show.h"
#include "model/job/spec.h"

enum { SHOWN_BYTES_MAX = 1 << 20 };

/* Marks around labelled text: green on a terminal, else brackets. */
struct marks {
    const char *begin, *end;
};

static struct marks marks_of(const struct cli *cli)
{
    return !cli->json && isatty(STDOUT_FILENO) ? (struct marks){"\x1b[32m", "\x1b[0m"}
                                               : (struct marks){"⟦", "⟧"};
}

static json_t *numbers(const int32_t *values, uint64_t count)
{
    json_t *list = json_array();
    for (uint64_t i = 0; list && i < count; i++)
        json_array_append_new(list, json_integer(values[i]));
    return list;
}

/* A row as a document, new: its ids, labels and text, and the text with the labelled parts marked. */
static json_t *row_json(const struct rows *rows, uint32_t row, const struct tokenizer *tokenizer,
                        struct err *err)
{
    const uint64_t first = rows->offset[row], count = rows->offset[row + 1] - first;
    struct buf text = {.limit = 1 << 26}, marked = {.limit = 1 << 26};
    json_t *answer = NULL;
    if ((!tokenizer || tokenizer_decode(tokenizer, rows->ids + first, count, false, &text, err) == 0) &&
        rows_show(rows, row, tokenizer, "⟦", "⟧", SHOWN_BYTES_MAX, &marked, err) == 0)
        answer =
            json_pack("{s:o, s:o, s:o?, s:s}", "ids", numbers(rows->ids + first, count), "labels",
                      numbers(rows->labels + first, count), "text",
                      tokenizer ? json_stringn(buf_str(&text), text.size) : NULL, "marked", buf_str(&marked));
    buf_fini(&text);
    buf_fini(&marked);
    if (!answer && err->code == ERR_NONE)
        err_set(err, ERR_NOMEM, "no memory for a row");
    return answer;
}

static json_t *file_json(const char *path, const struct rows *rows, const struct rows_report *report,
                         uint32_t show, const struct tokenizer *tokenizer, struct err *err)
{
    json_t *shown = json_array();
    for (uint32_t r = 0; r < show && r < rows->count; r++) {
        json_t *row = row_json(rows, r, tokenizer, err);
        if (!row) {
            json_decref(shown);
            return NULL;
        }
        json_array_append_new(shown, row);
    }
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "file", path, "format",
                     spec_format_name(report->format), "by", report->found_by, "rows",
                     (json_int_t)report->rows, "tokens", (json_int_t)report->tokens, "labelled_tokens",
                     (json_int_t)report->labelled_tokens, "longest", (json_int_t)report->longest, "truncated",
                     (json_int_t)report->truncated, "first_truncated",
                     (json_int_t)report->first_truncated_line, "dropped", (json_int_t)report->dropped,
                     "first_dropped", (json_int_t)report->first_dropped_line, "shown", shown);
}

/* Prints rows as text; "row 1" is the first row that is kept. */
static int file_print(const char *path, const struct rows *rows, const struct rows_report *report,
                      uint32_t show, uint32_t sequence_tokens, const struct given_text *text,
                      struct marks marks, struct err *err)
{
    struct buf out = {.limit = 1 << 26};
    int result = rows_report_say(report, sequence_tokens, &out, err);
    if (result == 0)
        printf("%s: %s\n", path, buf_str(&out));
    for (uint32_t r = 0; result == 0 && r < show && r < rows->count; r++) {
        buf_clear(&out);
        result = rows_show(rows, r, text->tokenizer, marks.begin, marks.end, SHOWN_BYTES_MAX, &out, err);
        if (result == 0)
            printf("\nrow %u, %llu tokens, what is learnt %s:\n%s\n", r + 1,
                   (unsigned long long)(rows->offset[r + 1] - rows->offset[r]),
                   *marks.begin == '\x1b' ? "in green" : "between ⟦ and ⟧", buf_str(&out));
    }
    buf_fini(&out);
    return result;
}

static int file_tell(struct cli *cli, const char *path, const struct rows_options *options,
                     const struct given_text *text, uint32_t show, json_t **document, struct err *err)
{
    struct rows *rows = NULL;
    struct rows_report report;
    int result = given_encode(path, options, &rows, &report, err);
    if (result == 0 && cli->json) {
        *document = file_json(path, rows, &report, show, text->tokenizer, err);
        result = *document ? 0 : -1;
    } else if (result == 0) {
        result = file_print(path, rows, &report, show, options->sequence_tokens, text, marks_of(cli), err);
    }
    rows_destroy(rows);
    return result;
}

static int rows_tell(struct cli *cli, const struct job_spec *spec, const char *model_path, uint32_t vocab,
                     uint32_t show, struct err *err)
{
    const char *spec_path = cli->words[0];
    char train[PATH_MAX], eval[PATH_MAX];
    struct given_text text;
    struct rows_options options;
    json_t *of_train = NULL, *of_eval = NULL;
    const int has_train = given_data_file(spec_path, spec->data.train, HUB_TRAIN_ROWS, train, err);
    if (has_train <= 0)
        return has_train < 0 ? -1
                             : err_set(err, ERR_INVALID, "data.train: there is no file %s", spec->data.train);
    const int has_eval = given_data_file(spec_path, spec->data.eval, HUB_EVAL_ROWS, eval, err);
    if (spec->data.eval && has_eval <= 0)
        return has_eval < 0 ? -1
                            : err_set(err, ERR_INVALID, "data.eval: there is no file %s", spec->data.eval);
    int result = given_text_open(&spec->data, model_path, vocab, &text, &options, err);
    if (result == 0)
        result = file_tell(cli, train, &options, &text, show, &of_train, err);
    if (result == 0 && spec->data.eval)
        result = file_tell(cli, eval, &options, &text, 0, &of_eval, err);
    given_text_fini(&text);
    json_t *answer = json_pack("{s:o?, s:o?}", "train", of_train, "eval", of_eval);
    if (result == 0 && cli->json)
        result = show_json(answer, err);
    json_decref(answer);
    return result;
}

int command_rows(struct cli *cli, struct err *err)
{
    char folder[PATH_MAX], path[PATH_MAX];
    struct job_spec spec;
    struct model_config config;
    int64_t show;
    if (cli_option_i64(cli, "--show", 0, 100000, 1, &show, err) < 0)
        return -1;
    json_t *document = given_spec(cli->words[0], err);
    if (!document || spec_parse(document, &spec, err) < 0) {
        json_decref(document);
        return -1;
    }
    char now[32];
    if (!spec.data.day) /* as the server does at a submit */
        spec.data.day = strndup(clock_rfc3339(clock_wall_us(), now), 10);
    json_t *config_json = given_config(cli->words[0], spec.model, folder, path, err);
    int result = config_json ? 0 : -1;
    if (result == 0 && model_config_parse(config_json, &config, err) < 0)
        result = err_wrap(err, "%s", path);
    if (result == 0)
        result = rows_tell(cli, &spec, path, config.vocab, (uint32_t)show, err);
    json_decref(config_json);
    json_decref(document);
    spec_fini(&spec);
    return result < 0 ? given_wrong(err) : 0;
}
