/* Dataset text -> encoded rows. */
#include "model/rows.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "model/rows_store.h"
#include "model/utf8.h"

/* The Alpaca templates (Stanford Alpaca, 2023). */
static const char alpaca_plain[] =
    "Below is an instruction that describes a task. Write a response that appropriately "
    "completes the request.\n\n### Instruction:\n";
static const char alpaca_with_input[] =
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a "
    "response that appropriately completes the request.\n\n### Instruction:\n";
static const char alpaca_input[] = "\n\n### Input:\n";
static const char alpaca_response[] = "\n\n### Response:\n";

enum { ROWS_BYTES_DEFAULT_GIB = 2, ROW_JSON_DEPTH = 16, TEXT_BYTES_MAX = 64 << 20 };

/* One dataset on its way in. Scratch lives as long as the call. */
struct encoder {
    const struct rows_options *options;
    enum spec_format format; /* settled by the first row */
    struct rows_store *store;
    struct rows_report *report;
    struct ids ids, labels, ends; /* of the row in hand; ends: see tokenizer_encode_placed */
    struct buf text;
    struct chat_spans spans;
};

static int labels_fill(struct encoder *e, bool learn, struct err *err)
{
    /* Labels of everything added to ids since. */
    const int32_t ignore = ROWS_IGNORE;
    while (e->labels.count < e->ids.count) {
        const int32_t *label = learn ? &e->ids.data[e->labels.count] : &ignore;
        if (ids_append(&e->labels, label, 1, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int end_token(struct encoder *e, struct err *err)
{
    const int32_t eos = tokenizer_eos(e->options->tokenizer);
    if (eos < 0) {
        return err_set(err, ERR_INVALID, "the model's tokenizer names no end token to put behind a text");
    }
    return ids_append(&e->ids, &eos, 1, err) < 0 ? -1 : labels_fill(e, true, err);
}

static int encode_part(struct encoder *e, const char *text, size_t size, unsigned flags, bool learn,
                       struct err *err)
{
    if (tokenizer_encode(e->options->tokenizer, text, size, flags, &e->ids, err) < 0) {
        return -1;
    }
    return labels_fill(e, learn, err);
}

static int alpaca_prompt(struct buf *text, const char *instruction, const char *input, struct err *err)
{
    buf_clear(text);
    const bool with_input = input != NULL && input[0] != '\0';
    if (buf_text(text, with_input ? alpaca_with_input : alpaca_plain, err) < 0 ||
        buf_text(text, instruction, err) < 0) {
        return -1;
    }
    if (with_input && (buf_text(text, alpaca_input, err) < 0 || buf_text(text, input, err) < 0)) {
        return -1;
    }
    return buf_text(text, alpaca_response, err);
}

/* A text member; absent or null gives NULL where that is allowed. */
static int member_text(const json_t *row, const char *key, bool required, const char **out, struct err *err)
{
    const json_t *value = json_object_get(row, key);
    *out = json_string_value(value);
    if (*out == NULL && (required || (value != NULL && !json_is_null(value)))) {
        return err_set(err, ERR_INVALID, "%s: %s", key, value == NULL ? "is missing" : "must be a text");
    }
    return 0;
}

static int alpaca_row(struct encoder *e, const json_t *row, struct err *err)
{
    const char *instruction;
    const char *input;
    const char *output;
    if (member_text(row, "instruction", true, &instruction, err) < 0 ||
        member_text(row, "input", false, &input, err) < 0 ||
        member_text(row, "output", true, &output, err) < 0 ||
        alpaca_prompt(&e->text, instruction, input, err) < 0) {
        return -1;
    }
    const bool all = e->options->learn == SPEC_LEARN_ALL;
    if (encode_part(e, buf_str(&e->text), e->text.size, TOKENIZER_ADD_BEGIN, all, err) < 0 ||
        encode_part(e, output, strlen(output), TOKENIZER_PLAIN, true, err) < 0) {
        return -1;
    }
    return end_token(e, err);
}

static int text_row(struct encoder *e, const json_t *row, struct err *err)
{
    const char *text;
    if (member_text(row, "text", true, &text, err) < 0 ||
        encode_part(e, text, strlen(text), TOKENIZER_ADD_BEGIN, true, err) < 0) {
        return -1;
    }
    return end_token(e, err);
}

/* Whether the token of bytes [at, end) is learnt; 'span' is the first span that ends behind its beginning. */
static bool token_learnt(const struct encoder *e, size_t span, size_t at, size_t end)
{
    const struct chat_spans *spans = &e->spans;
    if (e->options->learn == SPEC_LEARN_ALL) {
        return span >= spans->count || spans->items[span].part != CHAT_MUTED;
    }
    if (!spans->touching) {
        return span < spans->count && spans->items[span].part == CHAT_LEARNT && end <= spans->items[span].end;
    }
    for (; span < spans->count && spans->items[span].begin < end && at < end; span++) {
        if (spans->items[span].part == CHAT_LEARNT) {
            return true;
        }
    }
    return false;
}

/* Encode the whole conversation at once, as it is when the model is asked, then say which tokens are learnt.
 */
static int chat_encode(struct encoder *e, struct err *err)
{
    const int32_t ignore = ROWS_IGNORE;
    size_t at = 0;
    size_t span = 0;
    e->ends.count = 0;
    if (tokenizer_encode_placed(e->options->tokenizer, buf_str(&e->text), e->text.size, TOKENIZER_PLAIN,
                                &e->ids, &e->ends, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < e->ids.count; i++) {
        while (span + 1 < e->spans.count && e->spans.items[span].end <= at) {
            span++;
        }
        const size_t end = (size_t)e->ends.data[i];
        if (ids_append(&e->labels, token_learnt(e, span, at, end) ? &e->ids.data[i] : &ignore, 1, err) < 0) {
            return -1;
        }
        at = end;
    }
    return 0;
}

/* tools may be JSON in a text, as TRL and LLaMA-Factory take it. Returns new, or NULL. */
static json_t *tools_of(const json_t *row, struct err *err)
{
    json_t *tools = json_object_get(row, "tools");
    if (!json_is_string(tools)) {
        return tools != NULL ? json_incref(tools) : json_null();
    }
    json_t *parsed =
        json_parse_limited(json_string_value(tools), json_string_length(tools), ROW_JSON_DEPTH, err);
    if (parsed == NULL) {
        err_wrap(err, "tools");
    }
    return parsed;
}

/* The row's other columns are names of the template's, and chat_template_kwargs come before them. Returns
 * new, or NULL. */
static json_t *kwargs_of(const json_t *row, struct err *err)
{
    static const char *const taken[] = {"messages", "tools", "documents", "chat_template_kwargs"};
    const json_t *given = json_object_get(row, "chat_template_kwargs");
    json_t *kwargs = json_copy((json_t *)(uintptr_t)row);
    int failed = kwargs == NULL;
    if (given != NULL && !json_is_null(given) && !json_is_object(given)) {
        json_decref(kwargs);
        err_set(err, ERR_INVALID, "chat_template_kwargs: must be an object");
        return NULL;
    }
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
        json_object_del(kwargs, taken[i]);
    }
    if (json_is_object(given)) {
        failed |= json_object_update(kwargs, (json_t *)(uintptr_t)given);
    }
    if (failed) {
        json_decref(kwargs);
        err_set(err, ERR_NOMEM, "out of memory for a row");
        return NULL;
    }
    return kwargs;
}

static int chat_row(struct encoder *e, const json_t *row, struct err *err)
{
    if (e->options->chat == NULL) {
        *err = e->options->chat_error;
        return err->code != ERR_NONE ? -1 : err_set(err, ERR_UNSUPPORTED, "there is no chat template");
    }
    const json_t *messages = json_object_get(row, "messages");
    json_t *tools = tools_of(row, err);
    json_t *kwargs = tools != NULL ? kwargs_of(row, err) : NULL;
    const struct chat_rest rest = {
        .tools = tools, .documents = json_object_get(row, "documents"), .kwargs = kwargs};
    bool mute = false;
    int status = kwargs != NULL ? chat_messages_mute(messages, &mute, err) : -1;
    buf_clear(&e->text);
    e->spans.count = 0;
    if (status == 0) {
        const bool placed = mute || e->options->learn != SPEC_LEARN_ALL;
        status =
            chat_render(e->options->chat, messages, &rest, false, &e->text, placed ? &e->spans : NULL, err);
    }
    json_decref(tools);
    json_decref(kwargs);
    return status == 0 ? chat_encode(e, err) : -1;
}

static int token_read(const struct encoder *e, const json_t *value, bool label, size_t index, int32_t *out,
                      struct err *err)
{
    const char *what = label ? "labels" : "ids";
    if (!json_is_integer(value)) {
        return err_set(err, ERR_INVALID, "%s[%zu]: must be a whole number", what, index);
    }
    const json_int_t number = json_integer_value(value);
    const json_int_t limit = e->options->vocab > 0 ? (json_int_t)e->options->vocab : (json_int_t)INT32_MAX;
    if ((number < 0 || number >= limit) && !(label && number == ROWS_IGNORE)) {
        return err_set(err, ERR_INVALID,
                       "%s[%zu]: %" JSON_INTEGER_FORMAT " is not a token id below %" JSON_INTEGER_FORMAT "%s",
                       what, index, number, limit, label ? ", nor -100" : "");
    }
    *out = (int32_t)number;
    return 0;
}

static int tokens_row(struct encoder *e, const json_t *row, struct err *err)
{
    const json_t *ids = json_object_get(row, "ids");
    const json_t *labels = json_object_get(row, "labels");
    if (!json_is_array(ids)) {
        return err_set(err, ERR_INVALID, "ids: %s", ids == NULL ? "is missing" : "must be a list");
    }
    if (labels != NULL && !json_is_null(labels) && !json_is_array(labels)) {
        return err_set(err, ERR_INVALID, "labels: must be a list");
    }
    if (json_is_array(labels) && json_array_size(labels) != json_array_size(ids)) {
        return err_set(err, ERR_INVALID, "labels: %zu entries for %zu ids", json_array_size(labels),
                       json_array_size(ids));
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        int32_t id;
        if (token_read(e, json_array_get(ids, i), false, i, &id, err) < 0) {
            return -1;
        }
        int32_t label = id;
        if (json_is_array(labels) && e->options->learn != SPEC_LEARN_ALL &&
            token_read(e, json_array_get(labels, i), true, i, &label, err) < 0) {
            return -1;
        }
        if (ids_append(&e->ids, &id, 1, err) < 0 || ids_append(&e->labels, &label, 1, err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* What kind of row this is, by its keys. */
static int format_guess(const json_t *row, enum spec_format *format, struct err *err)
{
    if (json_object_get(row, "messages") != NULL) {
        *format = SPEC_FORMAT_CHAT;
    } else if (json_object_get(row, "instruction") != NULL) {
        *format = SPEC_FORMAT_ALPACA;
    } else if (json_object_get(row, "ids") != NULL) {
        *format = SPEC_FORMAT_TOKENS;
    } else if (json_object_get(row, "text") != NULL) {
        *format = SPEC_FORMAT_TEXT;
    } else {
        return err_set(err, ERR_INVALID,
                       "a row needs \"instruction\" and \"output\", or \"messages\", or \"text\", or \"ids\" "
                       "and \"labels\"");
    }
    return 0;
}

static int row_encode(struct encoder *e, const json_t *row, struct err *err)
{
    typedef int row_fn(struct encoder *, const json_t *, struct err *);
    static row_fn *const by_format[] = {[SPEC_FORMAT_ALPACA] = alpaca_row,
                                        [SPEC_FORMAT_CHAT] = chat_row,
                                        [SPEC_FORMAT_TEXT] = text_row,
                                        [SPEC_FORMAT_TOKENS] = tokens_row};
    if (!json_is_object(row)) {
        return err_set(err, ERR_INVALID, "a row must be a JSON object");
    }
    if (e->format == SPEC_FORMAT_AUTO && format_guess(row, &e->format, err) < 0) {
        return -1;
    }
    if (e->format != SPEC_FORMAT_TOKENS && e->options->tokenizer == NULL) {
        return err_set(err, ERR_INVALID,
                       "the model has no tokenizer, so it takes token rows (\"ids\", \"labels\") only");
    }
    e->ids.count = 0;
    e->labels.count = 0;
    return by_format[e->format](e, row, err);
}

/* A tokenizer may know more tokens than the model has rows in its embedding. */
static int ids_check(const struct rows_options *options, const struct ids *ids, size_t begin, struct err *err)
{
    for (size_t i = begin; i < ids->count && options->vocab > 0; i++) {
        if ((uint32_t)ids->data[i] >= options->vocab) {
            return err_set(err, ERR_INVALID,
                           "the tokenizer makes token %d of it, but the model has %u tokens", ids->data[i],
                           options->vocab);
        }
    }
    return 0;
}

/* Cut, drop or keep the row in hand. */
static int row_keep(struct encoder *e, uint32_t line, struct err *err)
{
    struct rows_report *report = e->report;
    size_t count = e->ids.count;
    const bool cut = count > e->options->sequence_tokens;
    if (cut) {
        count = e->options->sequence_tokens;
    }
    uint32_t labelled = 0;
    for (size_t i = 1; i < count; i++) {
        labelled += e->labels.data[i] != ROWS_IGNORE;
    }
    if (labelled == 0) {
        report->first_dropped_line = report->dropped++ == 0 ? line : report->first_dropped_line;
        return 0;
    }
    if (cut) {
        report->first_truncated_line = report->truncated++ == 0 ? line : report->first_truncated_line;
    }
    e->labels.data[0] = ROWS_IGNORE;
    if (rows_store_add(e->store, e->ids.data, e->labels.data, (uint32_t)count, err) < 0) {
        return -1;
    }
    report->rows++;
    report->tokens += count;
    report->labelled_tokens += labelled;
    report->longest = count > report->longest ? (uint32_t)count : report->longest;
    return 0;
}

static bool is_blank(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r') {
            return false;
        }
    }
    return true;
}

static int line_encode(struct encoder *e, const char *text, size_t size, uint32_t line, struct err *err)
{
    if (is_blank(text, size)) {
        return 0;
    }
    if (size > ROWS_LINE_BYTES_MAX) {
        return err_set(err, ERR_TOO_BIG, "the row has %zu bytes, more than %d", size, ROWS_LINE_BYTES_MAX);
    }
    const size_t valid = utf8_check(text, size);
    if (valid != size) {
        return err_set(err, ERR_INVALID, "the row is not valid UTF-8 at its byte %zu", valid + 1);
    }
    json_t *row = json_parse_limited(text, size, ROW_JSON_DEPTH, err);
    if (row == NULL) {
        return -1;
    }
    int status = row_encode(e, row, err);
    json_decref(row);
    if (status < 0 || ids_check(e->options, &e->ids, 0, err) < 0) {
        return -1;
    }
    return row_keep(e, line, err);
}

static int lines_encode(struct encoder *e, const char *text, size_t size, struct err *err)
{
    uint32_t line = 0;
    size_t at = size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < size) {
        const char *newline = memchr(text + at, '\n', size - at);
        const size_t end = newline != NULL ? (size_t)(newline - text) : size;
        if (++line > ROWS_COUNT_MAX) {
            return err_set(err, ERR_TOO_BIG, "the dataset has more than %d lines", ROWS_COUNT_MAX);
        }
        if (line_encode(e, text + at, end - at, line, err) < 0) {
            return err_wrap(err, "line %u", line);
        }
        at = end + 1;
    }
    if (e->report->rows == 0) {
        return err_set(err, ERR_INVALID,
                       e->report->dropped > 0
                           ? "no row is left: in all %u of them there is nothing to learn%s"
                           : "there are no rows (%u)%s",
                       e->report->dropped, e->report->dropped > 0 ? " within data.sequence_tokens" : "");
    }
    return 0;
}

int rows_encode(const char *text, size_t size, const struct rows_options *options, struct rows **rows,
                struct rows_report *report, struct err *err)
{
    if (options->sequence_tokens < 2) {
        return err_set(err, ERR_INVALID, "data.sequence_tokens: must be at least 2");
    }
    *report = (struct rows_report){.format = options->format};
    struct encoder e = {.options = options, .format = options->format, .report = report};
    e.text.limit = TEXT_BYTES_MAX;
    e.store = rows_store_create(
        options->bytes_max > 0 ? options->bytes_max : (size_t)ROWS_BYTES_DEFAULT_GIB << 30, err);
    int status = e.store != NULL ? lines_encode(&e, text, size, err) : -1;
    report->format = e.format;
    if (status == 0) {
        status = rows_store_finish(e.store, rows, err);
    }
    rows_store_destroy(e.store);
    ids_fini(&e.ids);
    ids_fini(&e.labels);
    ids_fini(&e.ends);
    buf_fini(&e.text);
    chat_spans_fini(&e.spans);
    return status;
}

int rows_options_from_spec(const struct spec_data_part *data, const struct tokenizer *tokenizer,
                           uint32_t vocab, struct rows_options *options, struct chat_template **chat,
                           struct err *err)
{
    *options = (struct rows_options){.format = data->format,
                                     .learn = data->learn,
                                     .sequence_tokens = data->sequence_tokens,
                                     .vocab = vocab,
                                     .tokenizer = tokenizer};
    *chat = NULL;
    if (tokenizer == NULL && data->chat_template == NULL) {
        return 0;
    }
    struct err why = {0};
    const struct chat_given given = chat_given_by(tokenizer);
    if (chat_template_choose(data->chat_template, &given, chat, &why) < 0) {
        if (data->chat_template != NULL || why.code == ERR_NOMEM) {
            *err = why;
            return -1;
        }
        options->chat_error = why;
    }
    options->chat = *chat;
    return 0;
}

static int chat_prompt(const char *prompt, const struct chat_template *chat, struct buf *text,
                       struct err *err)
{
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", prompt);
    const int status = messages != NULL ? chat_render(chat, messages, NULL, true, text, NULL, err)
                                        : err_set(err, ERR_INVALID, "is not valid UTF-8, or memory is short");
    json_decref(messages);
    return status;
}

static int prompt_text(const char *prompt, enum spec_format format, const struct rows_options *options,
                       struct buf *text, struct err *err)
{
    switch (format) {
    case SPEC_FORMAT_ALPACA:
        return alpaca_prompt(text, prompt, NULL, err);
    case SPEC_FORMAT_CHAT:
        if (options->chat == NULL) {
            *err = options->chat_error;
            return err->code != ERR_NONE ? -1 : err_set(err, ERR_UNSUPPORTED, "there is no chat template");
        }
        return chat_prompt(prompt, options->chat, text, err);
    case SPEC_FORMAT_TEXT:
    case SPEC_FORMAT_TOKENS:
        return buf_text(text, prompt, err);
    case SPEC_FORMAT_AUTO:
        break;
    }
    return err_set(err, ERR_INTERNAL, "a prompt cannot be rendered before the rows' format is known");
}

int rows_render_prompt(const char *prompt, enum spec_format format, const struct rows_options *options,
                       struct ids *ids, struct err *err)
{
    if (options->tokenizer == NULL) {
        return err_set(err, ERR_INVALID, "sample.prompt: the model has no tokenizer");
    }
    const size_t begin = ids->count;
    struct buf text = {.limit = TEXT_BYTES_MAX};
    int status = prompt_text(prompt, format, options, &text, err);
    if (status == 0) {
        const unsigned flags = format == SPEC_FORMAT_CHAT ? TOKENIZER_PLAIN : TOKENIZER_ADD_BEGIN;
        status = tokenizer_encode(options->tokenizer, buf_str(&text), text.size, flags, ids, err);
    }
    buf_fini(&text);
    if (status == 0 && ids_check(options, ids, begin, err) < 0) {
        ids->count = begin;
        status = err_wrap(err, "sample.prompt");
    }
    return status;
}
