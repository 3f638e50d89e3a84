/* Asks the parser process, and checks its answers. */
#include "api/request/parsed.h"

#include "api/request/blob_dir.h"
#include "common/json.h"
#include "model/shape/blocks.h"
#include "model/shape/config.h"
#include "parse/parse.h"
#include "store/models.h"

#include <stdlib.h>
#include <string.h>

/* One question to the parser. */
struct parser_request {
    json_t *document;             /* the question; the request takes it over */
    const json_t *files;          /* the files of a model, or NULL */
    const char *upload, *weights; /* paths of an uploaded file and of an adapter's weights, or NULL */
    parse_sink_fn *sink;          /* receives the answer's bytes; NULL: no bytes are expected */
    void *arg;                    /* passed to the sink */
};

static int parsed_ask(struct app *app, const struct parser_request *request, json_t **answer, struct err *err)
{
    struct blob_model model = {0};
    *answer = NULL;
    int rc = request->document ? 0 : err_set(err, ERR_NOMEM, "out of memory for a question to the parser");
    if (rc == 0)
        rc = blob_model_paths(app->blobs, request->files, &model, err);
    if (rc == 0 && request->upload)
        model.paths[model.count++] = (struct model_path){PARSE_UPLOAD, request->upload};
    if (rc == 0 && request->weights)
        model.paths[model.count++] = (struct model_path){PARSE_WEIGHTS, request->weights};
    if (rc == 0) {
        const struct parse_question question = {
            .document = request->document, .files = model.paths, .file_count = model.count};
        rc = parse_ask(&app->parser, &question, request->sink, request->arg, answer, err);
        if (rc < 0)
            atomic_fetch_add(&app->parse_failures, 1);
    }
    blob_model_fini(&model);
    json_decref(request->document);
    return rc;
}

static int nonsense(struct err *err)
{
    return err_wrap(err, "the file's parser gave no proper answer; the file is refused");
}

/* ---- a model ---- */

static json_t *info_of(const struct model_config *config, bool tokenizer, bool dated)
{
    return json_pack("{s:s, s:I, s:i, s:i, s:b, s:b}", "architecture", model_arch_name(config->arch),
                     "parameters", (json_int_t)model_config_params(config), "layers", (int)config->layers,
                     "hidden", (int)config->hidden, "tokenizer", tokenizer, "dated", dated);
}

int parsed_model(struct app *app, const json_t *files, json_t **config, json_t **info, struct err *err)
{
    struct model_config read;
    struct json_reader reader;
    const json_t *document = NULL;
    bool tokenizer = false, dated = false;
    json_t *answer;
    *config = *info = NULL;
    if (parsed_ask(app,
                   &(struct parser_request){.document = json_pack("{s:s}", "do", "model"), .files = files},
                   &answer, err) < 0)
        return -1;
    jr_init(&reader, answer, "", err);
    jr_object(&reader, "config", JR_REQUIRED, &document);
    jr_bool(&reader, "tokenizer", JR_REQUIRED, &tokenizer);
    jr_bool(&reader, "dated", JR_REQUIRED, &dated);
    int rc = jr_finish(&reader) < 0 || model_config_parse(document, &read, err) < 0 ? nonsense(err) : 0;
    if (rc == 0) {
        *config = model_config_to_json(&read, err);
        *info = info_of(&read, tokenizer, dated);
        if (!*config || !*info)
            rc = err_set(err, ERR_NOMEM, "out of memory for a model's config");
    }
    json_decref(answer);
    return rc;
}

/* ---- text ---- */

static json_t *text_question(const char *what, const struct parsed_text *text)
{
    return json_pack("{s:s, s:i, s:i, s:I, s:s*, s:O*}", "do", what, "format", (int)text->format, "learn",
                     (int)text->learn, "sequence_tokens", (json_int_t)text->sequence_tokens, "day", text->day,
                     "chat", (json_t *)(uintptr_t)text->chat);
}

struct rows_taken {
    struct parsed_rows *rows;
    struct blob_writer *writer;
    size_t taken; /* bytes of the row sizes received so far */
};

/* Takes the answer's bytes: first the row sizes, into memory; then the encoded file, into a blob. */
static int rows_take(void *arg, const json_t *answer, const void *bytes, size_t size, struct err *err)
{
    struct rows_taken *taken = arg;
    struct parsed_rows *rows = taken->rows;
    if (!rows->sizes) {
        const json_int_t count = json_integer_value(json_object_get(answer, "rows"));
        if (count < 1 || (uint64_t)count > STORE_SIZES_MAX / sizeof(*rows->sizes))
            return err_set(err, ERR_INVALID, "the file's parser speaks of %lld rows", (long long)count);
        rows->sizes_bytes = (size_t)count * sizeof(*rows->sizes);
        rows->sizes = malloc(rows->sizes_bytes);
        if (!rows->sizes)
            return err_set(err, ERR_NOMEM, "out of memory for row sizes");
    }
    size_t part = rows->sizes_bytes - taken->taken < size ? rows->sizes_bytes - taken->taken : size;
    memcpy((char *)rows->sizes + taken->taken, bytes, part);
    taken->taken += part;
    return size > part ? blob_writer_add(taken->writer, (const char *)bytes + part, size - part, err) : 0;
}

static int sizes_check(const struct parsed_rows *rows, struct err *err)
{
    const size_t count = rows->sizes_bytes / sizeof(*rows->sizes);
    for (size_t i = 0; i < count; i++) {
        const struct row_size *row = &rows->sizes[i];
        if (row->tokens < 2 || row->tokens > INT32_MAX || row->labelled < 1 || row->labelled >= row->tokens)
            return err_set(err, ERR_INVALID, "row %zu has %u tokens and %u labels", i, row->tokens,
                           row->labelled);
    }
    return count ? 0 : err_set(err, ERR_INVALID, "there are no rows");
}

/* most bytes that the statistics may use for the text of the first row, with its labelled parts marked */
enum { FIRST_BYTES_MAX = 1 << 20 };

/* Checks that the statistics have numbers where they must, since the answer itself is stored. */
static int stats_check(const json_t *stats, size_t rows, struct err *err)
{
    static const char *const numbers[] = {"tokens",
                                          "labelled",
                                          "sum_sq",
                                          "longest",
                                          "truncated",
                                          "dropped",
                                          "first_truncated_line",
                                          "first_dropped_line"};
    struct json_reader reader;
    const char *format = NULL, *said = NULL;
    const json_t *lengths = NULL, *doubts = NULL;
    int64_t count = 0;
    jr_init(&reader, stats, "stats", err);
    jr_i64(&reader, "rows", JR_REQUIRED, (int64_t)rows, (int64_t)rows, &count);
    jr_i64(&reader, "bin_tokens", JR_REQUIRED, 1, UINT32_MAX, &count);
    jr_str(&reader, "format", JR_REQUIRED, 1, 32, &format);
    jr_str(&reader, "said", JR_REQUIRED, 1, 2048, &said);
    jr_array(&reader, "doubts", JR_REQUIRED, 0, 4, &doubts);
    jr_str(&reader, "first", JR_REQUIRED, 0, FIRST_BYTES_MAX, &said);
    jr_array(&reader, "lengths", JR_REQUIRED, 0, ROWS_HISTOGRAM_BINS, &lengths);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        jr_i64(&reader, numbers[i], JR_REQUIRED, 0, INT64_MAX, &count);
    for (size_t i = 0; !reader.failed && i < json_array_size(lengths); i++)
        if (json_integer_value(json_array_get(lengths, i)) < 0 ||
            !json_is_integer(json_array_get(lengths, i)))
            return jr_fail(&reader, "lengths", "[%zu] is no count", i);
    for (size_t i = 0; !reader.failed && i < json_array_size(doubts); i++)
        if (json_string_length(json_array_get(doubts, i)) == 0 ||
            json_string_length(json_array_get(doubts, i)) > 400)
            return jr_fail(&reader, "doubts", "[%zu] is no sentence", i);
    return jr_finish(&reader);
}

int parsed_rows(struct app *app, const struct parsed_text *text, const char *path, struct parsed_rows *rows,
                struct err *err)
{
    struct rows_taken taken = {.rows = rows};
    json_t *question = text_question("rows", text), *answer = NULL;
    *rows = (struct parsed_rows){0};
    if (blob_writer_create(app->blobs, &taken.writer, err) < 0) {
        json_decref(question);
        return -1;
    }
    json_object_set_new(question, "memory", json_integer((json_int_t)app->config->rows_bytes_max));
    json_object_set_new(question, "rows_max", json_integer(STORE_SIZES_MAX / sizeof(struct row_size)));
    const struct parser_request request = {
        .document = question, .files = text->files, .upload = path, .sink = rows_take, .arg = &taken};
    int rc = parsed_ask(app, &request, &answer, err);
    if (rc == 0 && taken.taken != rows->sizes_bytes) {
        err_set(err, ERR_INVALID, "%zu bytes of row sizes, announced were %zu", taken.taken,
                rows->sizes_bytes);
        rc = nonsense(err);
    }
    if (rc == 0 &&
        (sizes_check(rows, err) < 0 ||
         stats_check(json_object_get(answer, "stats"), rows->sizes_bytes / sizeof(*rows->sizes), err) < 0))
        rc = nonsense(err);
    if (rc == 0)
        rc = blob_writer_finish(taken.writer, NULL, &rows->manifest, err);
    if (rc == 0)
        rows->stats = json_incref(json_object_get(answer, "stats"));
    blob_writer_destroy(taken.writer);
    json_decref(answer);
    return rc;
}

int parsed_prompt(struct app *app, const struct parsed_text *text, const char *prompt, json_t **ids,
                  struct err *err)
{
    json_t *question = text_question("prompt", text), *answer = NULL;
    json_object_set_new(question, "prompt", json_string(prompt));
    *ids = NULL;
    if (parsed_ask(app, &(struct parser_request){.document = question, .files = text->files}, &answer, err) <
        0)
        return -1;
    const json_t *list = json_object_get(answer, "ids");
    int rc = json_is_array(list) ? 0 : err_set(err, ERR_INVALID, "ids: missing, or no list");
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            rc = err_set(err, ERR_INVALID, "ids[%zu] is no id", i);
    }
    if (rc == 0)
        *ids = json_incref((json_t *)list);
    else
        nonsense(err);
    json_decref(answer);
    return rc;
}

/* ---- an adapter to start from ---- */

int parsed_adapter_files(struct app *app, const char *path, json_t **files, struct err *err)
{
    if (parsed_ask(
            app,
            &(struct parser_request){.document = json_pack("{s:s}", "do", "adapter_files"), .upload = path},
            files, err) < 0)
        return -1;
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors"};
    struct json_reader reader;
    jr_init(&reader, *files, "", err);
    for (int i = 0; i < 2; i++) {
        const char *sha256 = "";
        if (jr_str(&reader, names[i], JR_REQUIRED, 64, 64, &sha256) == 1 && !blob_name_valid(sha256))
            jr_fail(&reader, names[i], "it is not a SHA-256");
    }
    if (jr_finish(&reader) < 0) {
        json_decref(*files);
        *files = NULL;
        return -1;
    }
    return 0;
}

int parsed_adapter(struct app *app, const json_t *files, const char *config_path, const char *weights_path,
                   struct peft_config *config, struct err *err)
{
    json_t *answer;
    const struct parser_request request = {.document = json_pack("{s:s}", "do", "adapter"),
                                           .files = files,
                                           .upload = config_path,
                                           .weights = weights_path};
    if (parsed_ask(app, &request, &answer, err) < 0)
        return -1;
    int rc = peft_config_parse(answer, config, err);
    json_decref(answer);
    return rc;
}
