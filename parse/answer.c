/* Answers the questions; each kind is a row of a table. It runs in the sandbox and calls the same functions
 * as other programs. */
#include "parse/serve.h"

#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/json.h"
#include "model/templates/chat.h"
#include "model/shape/config.h"
#include "model/adapters/peft.h"
#include "model/rows/rows_show.h"
#include "model/shape/tensors.h"
#include "model/text/tokenizer.h"
#include "parse/parse.h"

/* Longest text of the first row in the job's log, in bytes. */
enum { FIRST_BYTES_MAX = 2000 };
enum { ADAPTER_LIST_BYTES_MAX = 4096, ADAPTER_CONFIG_BYTES_MAX = 1 << 20, ADAPTER_DEPTH_MAX = 16 };

struct parse_request {
    const json_t *question;
    struct parse_files *files;
    struct model *model;         /* set for questions about a model */
    struct tokenizer *tokenizer; /* NULL when the model has none */
    struct rows **rows;
};

/* ---- a model ---- */

static json_t *answer_model(struct parse_request *request, struct err *err)
{
    const char *own = request->tokenizer ? tokenizer_chat_template(request->tokenizer) : NULL;
    const int dated = own && strstr(own, "strftime_now");
    json_t *config = model_config_to_json(model_get_config(request->model), err);
    json_t *answer = config ? json_pack("{s:o, s:b, s:b}", "config", config, "tokenizer",
                                        request->tokenizer != NULL, "dated", dated)
                            : NULL;
    if (config && !answer)
        err_set(err, ERR_NOMEM, "no memory for a model's config");
    return answer;
}

/* ---- rows and prompts ---- */

struct text_options {
    struct spec_data_part data;
    struct rows_options rows;
    struct chat_template *chat;
    uint32_t rows_max;
    const char *prompt;
};

static int answer_options_read(const struct parse_request *request, struct text_options *options,
                               struct err *err)
{
    struct json_reader reader;
    const char *kind = NULL, *day = NULL;
    const json_t *chat = NULL;
    uint32_t format = 0, learn = 0;
    uint64_t memory = 0;
    *options = (struct text_options){.prompt = NULL};
    jr_init(&reader, request->question, "question", err);
    jr_str(&reader, "do", JR_REQUIRED, 1, 32, &kind);
    jr_u32(&reader, "format", JR_REQUIRED, SPEC_FORMAT_AUTO, SPEC_FORMAT_COUNT - 1, &format);
    jr_u32(&reader, "learn", JR_REQUIRED, SPEC_LEARN_ANSWER, SPEC_LEARN_ALL, &learn);
    jr_u32(&reader, "sequence_tokens", JR_REQUIRED, 0, UINT32_MAX, &options->data.sequence_tokens);
    jr_any(&reader, "chat", JR_OPTIONAL, &chat);
    jr_str(&reader, "day", JR_OPTIONAL, 1, 10, &day);
    jr_str(&reader, "prompt", JR_OPTIONAL, 0, PARSE_PROMPT_BYTES_MAX, &options->prompt);
    jr_bytes(&reader, "memory", JR_OPTIONAL, 0, UINT64_C(1) << 50, &memory);
    jr_u32(&reader, "rows_max", JR_OPTIONAL, 1, UINT32_MAX, &options->rows_max);
    if (jr_finish(&reader) < 0)
        return -1;
    options->data.format = (enum spec_format)format;
    options->data.learn = (enum spec_learn)learn;
    options->data.chat_template = (json_t *)(uintptr_t)chat;
    options->data.day = (char *)(uintptr_t)day;
    if (rows_options_from_spec(&options->data, request->tokenizer, model_get_config(request->model)->vocab,
                               &options->rows, &options->chat, err) < 0) {
        return err_wrap(err, "data.chat_template");
    }
    options->rows.bytes_max = (size_t)memory;
    return 0;
}

/* Adds a description of the rows to the stats, and the first row with its labelled part between ⟦ and ⟧, for
 * people. */
static int stats_say(json_t *stats, const struct parse_request *request, const struct rows_report *report,
                     uint32_t sequence_tokens, struct err *err)
{
    struct buf said = {.limit = 2048}, first = {.limit = 1 << 20};
    json_t *doubts = json_array();
    int status = rows_report_say(report, sequence_tokens, &said, err);
    if (status == 0)
        status = rows_report_doubts(report, doubts, err);
    if (status == 0)
        status = rows_show(*request->rows, 0, request->tokenizer, "⟦", "⟧", FIRST_BYTES_MAX, &first, err);
    if (status == 0 && (json_object_set(stats, "doubts", doubts) < 0 ||
                        json_object_set_new(stats, "said", json_string(buf_str(&said))) < 0 ||
                        json_object_set_new(stats, "first", json_string(buf_str(&first))) < 0)) {
        status = err_set(err, ERR_NOMEM, "no memory for the data set's first row");
    }
    json_decref(doubts);
    buf_fini(&said);
    buf_fini(&first);
    return status;
}

static json_t *stats_of(const struct parse_request *request, const struct rows_report *report,
                        uint32_t sequence_tokens, struct err *err)
{
    const struct rows *rows = *request->rows;
    struct rows_histogram histogram;
    rows_histogram(rows, &histogram);
    json_t *lengths = json_array();
    for (uint32_t i = 0; lengths && i < histogram.bins; i++)
        json_array_append_new(lengths, json_integer(histogram.count[i]));
    json_t *stats = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:o}", "rows", (json_int_t)rows->count,
        "tokens", (json_int_t)report->tokens, "labelled", (json_int_t)report->labelled_tokens, "sum_sq",
        (json_int_t)histogram.sum_sq, "longest", (json_int_t)report->longest, "truncated",
        (json_int_t)report->truncated, "dropped", (json_int_t)report->dropped, "format",
        spec_format_name(report->format), "first_truncated_line", (json_int_t)report->first_truncated_line,
        "first_dropped_line", (json_int_t)report->first_dropped_line, "bin_tokens",
        (json_int_t)histogram.bin_tokens, "lengths", lengths);
    if (stats && stats_say(stats, request, report, sequence_tokens, err) < 0) {
        json_decref(stats);
        return NULL;
    }
    json_t *answer = json_pack("{s:o, s:I}", "stats", stats, "rows", (json_int_t)rows->count);
    if (!answer)
        err_set(err, ERR_NOMEM, "no memory for the data set's statistics");
    return answer;
}

static json_t *answer_rows(struct parse_request *request, struct err *err)
{
    struct text_options options;
    struct rows_report report = {0};
    json_t *answer = NULL;
    const struct parse_files *files = request->files;
    if (answer_options_read(request, &options, err) == 0 &&
        rows_encode(files->upload_bytes > 0 ? files->upload : "", files->upload_bytes, &options.rows,
                    request->rows, &report, err) == 0) {
        if (options.rows_max > 0 && (*request->rows)->count > options.rows_max) {
            err_set(err, ERR_TOO_BIG, "%u rows are over the limit of %u", (*request->rows)->count,
                    options.rows_max);
        } else {
            answer = stats_of(request, &report, options.data.sequence_tokens, err);
        }
    }
    chat_template_destroy(options.chat);
    return answer;
}

static json_t *answer_prompt(struct parse_request *request, struct err *err)
{
    struct text_options options;
    struct ids ids = {0};
    json_t *answer = NULL;
    if (answer_options_read(request, &options, err) == 0 &&
        rows_render_prompt(options.prompt ? options.prompt : "", options.data.format, &options.rows, &ids,
                           err) == 0) {
        json_t *list = json_array();
        for (size_t i = 0; list && i < ids.count; i++)
            json_array_append_new(list, json_integer(ids.data[i]));
        answer = json_pack("{s:o}", "ids", list);
        if (!answer)
            err_set(err, ERR_NOMEM, "no memory for a prompt's ids");
    }
    ids_fini(&ids);
    chat_template_destroy(options.chat);
    return answer;
}

/* ---- an adapter to start from ---- */

static json_t *upload_document(const struct parse_request *request, size_t bytes_max, struct err *err)
{
    if (request->files->upload_bytes > bytes_max) {
        err_set(err, ERR_TOO_BIG, "a file of the adapter is over %zu bytes", bytes_max);
        return NULL;
    }
    return json_parse_limited(request->files->upload_bytes > 0 ? request->files->upload : "",
                              request->files->upload_bytes, ADAPTER_DEPTH_MAX, err);
}

static json_t *answer_adapter_files(struct parse_request *request, struct err *err)
{
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors"};
    json_t *list = upload_document(request, ADAPTER_LIST_BYTES_MAX, err);
    struct json_reader reader;
    if (!list)
        return NULL;
    jr_init(&reader, list, "", err);
    for (int i = 0; i < 2; i++) {
        const char *sha256 = "";
        jr_str(&reader, names[i], JR_REQUIRED, 64, 64, &sha256);
    }
    if (jr_finish(&reader) < 0) {
        json_decref(list);
        return NULL;
    }
    return list;
}

/* Answers with the adapter's config, checked against its tensors and the base model's. */
static json_t *answer_adapter(struct parse_request *request, struct err *err)
{
    const struct parse_files *files = request->files;
    struct peft *peft = NULL;
    json_t *answer = NULL;
    if (files->upload_bytes > ADAPTER_CONFIG_BYTES_MAX) {
        err_set(err, ERR_TOO_BIG, "adapter_config.json is over %d bytes", ADAPTER_CONFIG_BYTES_MAX);
        return NULL;
    }
    if (peft_open_memory(files->upload_bytes > 0 ? files->upload : "", files->upload_bytes, files->weights,
                         files->weights_bytes, model_get_config(request->model), &peft, err) == 0 &&
        peft_check_base(peft, request->model, err) == 0) {
        answer = peft_config_to_json(peft_get_config(peft), NULL, NULL, err);
    }
    peft_close(peft);
    return answer;
}

static json_t *answer_ready(struct parse_request *request, struct err *err)
{
    (void)request;
    (void)err;
    return json_object();
}

/* ---- the table of questions ---- */

static const struct question_kind {
    const char *name;
    json_t *(*answer)(struct parse_request *request, struct err *err);
    bool of_model, of_upload, of_weights;
} kinds[] = {
    {.name = "ready", .answer = answer_ready},
    {.name = "model", .answer = answer_model, .of_model = true},
    {.name = "rows", .answer = answer_rows, .of_model = true, .of_upload = true},
    {.name = "prompt", .answer = answer_prompt, .of_model = true},
    {.name = "adapter_files", .answer = answer_adapter_files, .of_upload = true},
    {.name = "adapter", .answer = answer_adapter, .of_model = true, .of_upload = true, .of_weights = true},
};

/* Opens the model as every reader does, so that a bad file is refused here and not on a worker. */
static int model_take(struct parse_request *request, struct err *err)
{
    struct model_source *source = request->files->model;
    struct err none = {0};
    request->files->model = NULL;
    if (model_open(source, &request->model, err) < 0)
        return -1;
    if (tokenizer_open(request->model, &request->tokenizer, &none) < 0 && none.code != ERR_NOT_FOUND) {
        *err = none;
        return -1;
    }
    return 0;
}

json_t *parse_answer(const json_t *question, struct parse_files *files, struct rows **rows, struct err *err)
{
    const char *name = json_string_value(json_object_get(question, "do"));
    const struct question_kind *kind = NULL;
    for (size_t i = 0; name && i < sizeof(kinds) / sizeof(kinds[0]); i++)
        kind = strcmp(kinds[i].name, name) == 0 ? &kinds[i] : kind;
    *rows = NULL;
    if (!kind || (kind->of_model && !files->model) || (kind->of_upload && !files->upload) ||
        (kind->of_weights && !files->weights)) {
        err_set(err, ERR_INTERNAL, "the parser was request for \"%.40s\" without what it needs",
                name ? name : "");
        return NULL;
    }
    struct parse_request request = {.question = question, .files = files, .rows = rows};
    json_t *answer = NULL;
    if (!kind->of_model || model_take(&request, err) == 0)
        answer = kind->answer(&request, err);
    tokenizer_destroy(request.tokenizer);
    model_close(request.model);
    return answer;
}
