/* Encodes a dataset's text into rows. */
#include "model/rows/rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/rows/rows_form.h"
#include "model/rows/rows_source.h"
#include "model/rows/rows_store.h"
#include "model/text/utf8.h"

/* The Alpaca templates (Stanford Alpaca, 2023). */
static const char alpaca_plain[] = "Below is an instruction that describes a task. Write a response that "
                                   "appropriately completes the request.";
static const char alpaca_with_input[] =
    "Below is an instruction that describes a task, paired with an input that "
    "provides further context. Write a response that appropriately completes "
    "the request.";
static const char alpaca_instruction[] = "\n\n### Instruction:\n";
static const char alpaca_input[] = "\n\n### Input:\n";
static const char alpaca_response[] = "\n\n### Response:\n";

enum { ROWS_BYTES_DEFAULT_GIB = 2, TEXT_BYTES_MAX = 64 << 20 };

/* The state of encoding one dataset. Its buffers live as long as the call. */
struct encoder {
    const struct rows_options *options;
    enum spec_format format; /* set by the first row */
    struct rows_store *store;
    struct rows_report *report;
    /* of the current row: ids, labels, and the byte offsets in the text at which each id's part begins and
     * ends */
    struct ids ids, labels, begins, ends;
    struct ids prompt; /* ids of the current row's prompt, encoded alone */
    struct buf text;
    struct chat_spans spans;
    bool unknown_role; /* the current row has one */
    uint32_t longest;  /* tokens of the longest row before rows are cut or dropped */
};

static int labels_fill(struct encoder *e, bool learn, struct err *err)
{
    /* Appends labels for the ids that were added since the last call: the ids, if `learn`, else ROWS_IGNORE.
     */
    const int32_t ignore = ROWS_IGNORE;
    while (e->labels.count < e->ids.count) {
        const int32_t *label = learn ? &e->ids.data[e->labels.count] : &ignore;
        if (ids_append(&e->labels, label, 1, err) < 0)
            return -1;
    }
    return 0;
}

/* Appends the end token behind an answer and learns it, unless the answer ends with it. The answer's first id
 * is at 'begin'. */
static int end_token(struct encoder *e, size_t begin, struct err *err)
{
    const int32_t eos = tokenizer_eos(e->options->tokenizer);
    if (eos < 0)
        return err_set(
            err, ERR_INVALID,
            "the model's tokenizer names no end token to put behind a text: write its \"eos_token\" "
            "into tokenizer_config.json, or tokenizer.ggml.eos_token_id into a .gguf");
    if (e->ids.count > begin && e->ids.data[e->ids.count - 1] == eos)
        return 0;
    return ids_append(&e->ids, &eos, 1, err) < 0 ? -1 : labels_fill(e, true, err);
}

static int encode_part(struct encoder *e, const char *text, size_t size, unsigned flags, bool learn,
                       struct err *err)
{
    if (tokenizer_encode(e->options->tokenizer, text, size, flags, &e->ids, err) < 0)
        return -1;
    return labels_fill(e, learn, err);
}

/* ---- texts ---- */

/* A text of a row. It may contain NUL bytes. */
struct piece {
    const char *text; /* NULL if the row has no such text */
    size_t size;
};

static struct piece rows_piece_of(const json_t *value)
{
    return (struct piece){.text = json_string_value(value), .size = json_string_length(value)};
}

/* Reads a text member. An absent or null member gives NULL, or an error if 'required'. */
static int member_text(const struct row_json *row, const char *key, bool required, struct piece *out,
                       struct err *err)
{
    const json_t *value;
    if (row_json_get(row, key, &value, err) < 0)
        return -1;
    *out = rows_piece_of(value);
    if (!out->text && (required || value))
        return err_set(err, ERR_INVALID, "%s: %s", key, !value ? "is missing" : "must be a text");
    return 0;
}

/* Appends the text before an answer. 'system', if given, replaces Alpaca's own introduction; without 'head',
 * as in later turns, neither is written. */
static int alpaca_prompt(struct buf *text, struct piece system, struct piece instruction, struct piece input,
                         bool head, struct err *err)
{
    buf_clear(text);
    if (head && system.size > 0) {
        if (buf_append(text, system.text, system.size, err) < 0)
            return -1;
    } else if (head && buf_text(text, input.size > 0 ? alpaca_with_input : alpaca_plain, err) < 0) {
        return -1;
    }
    if (buf_text(text, alpaca_instruction, err) < 0 ||
        buf_append(text, instruction.text, instruction.size, err) < 0) {
        return -1;
    }
    if (input.size > 0 &&
        (buf_text(text, alpaca_input, err) < 0 || buf_append(text, input.text, input.size, err) < 0)) {
        return -1;
    }
    return buf_text(text, alpaca_response, err);
}

/* Encodes a question, its answer and the end token. */
static int alpaca_turn(struct encoder *e, struct piece system, struct piece instruction, struct piece input,
                       struct piece output, bool head, struct err *err)
{
    const bool all = e->options->learn == SPEC_LEARN_ALL;
    if (alpaca_prompt(&e->text, system, instruction, input, head, err) < 0 ||
        encode_part(e, buf_str(&e->text), e->text.size, head ? TOKENIZER_ADD_BEGIN : TOKENIZER_PLAIN, all,
                    err) < 0) {
        return -1;
    }
    const size_t begin = e->ids.count;
    return encode_part(e, output.text, output.size, TOKENIZER_PLAIN, true, err) < 0
               ? -1
               : end_token(e, begin, err);
}

static int alpaca_row(struct encoder *e, const struct row_json *row, struct err *err)
{
    const struct piece none = {0};
    struct piece instruction;
    struct piece input;
    struct piece output;
    struct piece system;
    const json_t *history;
    if (member_text(row, "instruction", true, &instruction, err) < 0 ||
        member_text(row, "input", false, &input, err) < 0 ||
        member_text(row, "output", true, &output, err) < 0 ||
        member_text(row, "system", false, &system, err) < 0 ||
        row_json_get(row, "history", &history, err) < 0) {
        return -1;
    }
    if (history && !json_is_array(history))
        return err_set(err, ERR_INVALID, "history: must be a list of [question, answer]");
    const size_t turns = json_array_size(history);
    for (size_t i = 0; i < turns; i++) {
        const json_t *pair = json_array_get(history, i);
        const struct piece question = rows_piece_of(json_array_get(pair, 0));
        const struct piece answer = rows_piece_of(json_array_get(pair, 1));
        if (json_array_size(pair) != 2 || !question.text || !answer.text)
            return err_set(err, ERR_INVALID, "history[%zu]: must be [question, answer], both texts", i);
        if (alpaca_turn(e, system, question, none, answer, i == 0, err) < 0)
            return -1;
    }
    return alpaca_turn(e, system, instruction, input, output, turns == 0, err);
}

static int text_row(struct encoder *e, const struct row_json *row, struct err *err)
{
    struct piece text;
    if (member_text(row, "text", true, &text, err) < 0 ||
        encode_part(e, text.text, text.size, TOKENIZER_ADD_SPECIAL, true, err) < 0) {
        return -1;
    }
    return end_token(e, 0, err);
}

/* ---- prompt and completion ---- */

/* Excludes the prompt from learning. As in TRL's SFTTrainer the row is encoded as a whole, and the completion
 * begins at the first id that differs from those of the prompt encoded alone. */
static void prompt_unlearn(struct encoder *e)
{
    for (size_t i = 0; i < e->ids.count && i < e->prompt.count && e->ids.data[i] == e->prompt.data[i] &&
                       e->options->learn != SPEC_LEARN_ALL;
         i++) {
        e->labels.data[i] = ROWS_IGNORE;
    }
}

static int prompt_row(struct encoder *e, const struct row_json *row, struct err *err)
{
    struct piece prompt;
    struct piece completion;
    if (member_text(row, "prompt", true, &prompt, err) < 0 ||
        member_text(row, "completion", true, &completion, err) < 0) {
        return -1;
    }
    buf_clear(&e->text);
    e->prompt.count = 0;
    if (buf_append(&e->text, prompt.text, prompt.size, err) < 0 ||
        buf_append(&e->text, completion.text, completion.size, err) < 0 ||
        encode_part(e, buf_str(&e->text), e->text.size, TOKENIZER_ADD_SPECIAL, true, err) < 0 ||
        end_token(e, 0, err) < 0 ||
        tokenizer_encode(e->options->tokenizer, prompt.text, prompt.size, TOKENIZER_ADD_SPECIAL, &e->prompt,
                         err) < 0) {
        return -1;
    }
    prompt_unlearn(e);
    return 0;
}

/* ---- conversations ---- */

/* Returns true if a token of a template without {% generation %} is learnt: all of its bytes belong to one
 * answer. With 'all' every token is learnt unless it begins in a muted answer. */
static bool is_inside(const struct chat_spans *spans, bool all, size_t *span, size_t begin, size_t end)
{
    while (*span + 1 < spans->count && spans->items[*span].end <= begin)
        ++*span;
    const enum chat_part part = *span < spans->count ? spans->items[*span].part
                                : all                ? CHAT_LEARNT
                                                     : CHAT_GIVEN;
    return all ? part != CHAT_MUTED : part == CHAT_LEARNT && end <= spans->items[*span].end;
}

/* Returns true if a token of a template with {% generation %} is learnt: as in transformers' mask, any of its
 * characters lies in such a block, or it contains an empty block. */
static bool is_touched(const struct chat_spans *spans, size_t *span, size_t begin, size_t end)
{
    while (*span < spans->count &&
           (spans->items[*span].part == CHAT_GIVEN || spans->items[*span].end <= begin)) {
        ++*span;
    }
    return *span < spans->count && end > spans->items[*span].begin && spans->items[*span].part == CHAT_LEARNT;
}

/* Encodes the whole conversation at once, as it is encoded for inference, then labels the tokens. */
static int chat_encode(struct encoder *e, bool all, struct err *err)
{
    const int32_t ignore = ROWS_IGNORE;
    const bool touching = e->spans.touching && !all;
    size_t span = 0;
    e->begins.count = e->ends.count = 0;
    if (tokenizer_encode_placed(e->options->tokenizer, buf_str(&e->text), e->text.size,
                                touching ? TOKENIZER_LIBRARY_PLACES : TOKENIZER_PLAIN, &e->ids, &e->begins,
                                &e->ends, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < e->ids.count; i++) {
        const size_t begin = (size_t)e->begins.data[i], end = (size_t)e->ends.data[i];
        const bool learnt = touching ? is_touched(&e->spans, &span, begin, end)
                                     : is_inside(&e->spans, all, &span, begin, end);
        if (ids_append(&e->labels, learnt ? &e->ids.data[i] : &ignore, 1, err) < 0)
            return -1;
    }
    return 0;
}

/* Labels a conversation with a column `prompt`: everything behind the prompt, rendered with
 * add_generation_prompt, is learnt. */
static int completion_label(struct encoder *e, const struct row_chat *chat, struct err *err)
{
    json_t *prompt = json_array();
    int failed = !prompt;
    for (size_t i = 0; i < chat->prompt; i++)
        failed |= json_array_append(prompt, json_array_get(chat->messages, i));
    buf_clear(&e->text);
    e->prompt.count = 0;
    int status = failed ? err_set(err, ERR_NOMEM, "out of memory for a conversation")
                        : chat_render(e->options->chat, prompt, &chat->rest, true, &e->text, NULL, err);
    json_decref(prompt);
    if (status == 0) {
        status = tokenizer_encode(e->options->tokenizer, buf_str(&e->text), e->text.size, TOKENIZER_PLAIN,
                                  &e->prompt, err);
    }
    prompt_unlearn(e);
    return status < 0 ? err_wrap(err, "prompt") : 0;
}

static int conversation_encode(struct encoder *e, const struct row_chat *chat, struct err *err)
{
    const bool all = e->options->learn == SPEC_LEARN_ALL || chat->prompt > 0;
    bool mute = false;
    buf_clear(&e->text);
    e->spans.count = 0;
    if (chat_messages_mute(chat->messages, &mute, err) < 0 ||
        chat_render(e->options->chat, chat->messages, &chat->rest, false, &e->text,
                    mute || !all ? &e->spans : NULL, err) < 0 ||
        chat_encode(e, all, err) < 0) {
        return -1;
    }
    return chat->prompt > 0 ? completion_label(e, chat, err) : 0;
}

/* Notes a role that the template does not know; the report has the first, with "?" for what a terminal might
 * take for more than a letter. */
static void role_note(struct encoder *e, const char *role)
{
    struct rows_report *report = e->report;
    e->unknown_role = role != NULL;
    if (!role || report->unknown_roles > 0)
        return;
    snprintf(report->unknown_role, sizeof(report->unknown_role), "%s", role);
    for (char *at = report->unknown_role; *at; at++)
        *at = *at >= ' ' && *at <= '~' ? *at : '?';
}

static int chat_row(struct encoder *e, const struct row_json *row, struct err *err)
{
    struct row_chat chat = {0};
    if (!e->options->chat) {
        *err = e->options->chat_error;
        return err->code != ERR_NONE ? -1 : err_set(err, ERR_UNSUPPORTED, "there is no chat template");
    }
    int status = row_chat_read(row, e->format, e->options->chat, &chat, err);
    if (status == 0) {
        role_note(e, row_chat_unknown_role(&chat, e->options->chat));
        row_chat_unwritten(&chat, e->options->chat, e->report->unwritten);
        if (chat_template_names(e->options->chat, "strftime_now"))
            snprintf(e->report->day, sizeof(e->report->day), "%s",
                     e->options->day ? e->options->day : "2024-07-26");
        status = conversation_encode(e, &chat, err);
    }
    row_chat_fini(&chat);
    return status;
}

/* ---- tokens ---- */

static int token_read(const struct encoder *e, const json_t *value, bool label, const char *key, size_t index,
                      int32_t *out, struct err *err)
{
    if (!json_is_integer(value))
        return err_set(err, ERR_INVALID, "%s[%zu]: must be a whole number", key, index);
    const json_int_t number = json_integer_value(value);
    const json_int_t limit = e->options->vocab > 0 ? (json_int_t)e->options->vocab : (json_int_t)INT32_MAX;
    if ((number < 0 || number >= limit) && !(label && number == ROWS_IGNORE)) {
        return err_set(err, ERR_INVALID,
                       "%s[%zu]: %" JSON_INTEGER_FORMAT " is not a token id below %" JSON_INTEGER_FORMAT "%s",
                       key, index, number, limit, label ? ", nor -100" : "");
    }
    *out = (int32_t)number;
    return 0;
}

/* Reads a list of as many numbers as there are ids; NULL if it is absent or null. */
static int beside_ids(const struct row_json *row, const char *key, size_t count, const json_t **out,
                      struct err *err)
{
    if (row_json_get(row, key, out, err) < 0)
        return -1;
    if (*out && !json_is_array(*out))
        return err_set(err, ERR_INVALID, "%s: must be a list", key);
    return !*out || json_array_size(*out) == count
               ? 0
               : err_set(err, ERR_INVALID, "%s: %zu entries for %zu ids", key, json_array_size(*out), count);
}

/* Requires that attention_mask is 1 and token_type_ids is 0 for every token, since rows are neither padded
 * nor pairs. */
static int masks_check(const struct row_json *row, size_t count, struct err *err)
{
    static const struct {
        const char *key;
        json_int_t wanted;
    } masks[] = {{"attention_mask", 1}, {"token_type_ids", 0}};
    for (int m = 0; m < 2; m++) {
        const json_t *list;
        if (beside_ids(row, masks[m].key, count, &list, err) < 0)
            return -1;
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *value = json_array_get(list, i);
            if (!json_is_integer(value) || json_integer_value(value) != masks[m].wanted) {
                return err_set(
                    err, ERR_UNSUPPORTED,
                    "%s[%zu]: is not %d; give rows without padding, and labels of -100 for what is not "
                    "learnt",
                    masks[m].key, i, (int)masks[m].wanted);
            }
        }
    }
    return 0;
}

static int tokens_row(struct encoder *e, const struct row_json *row, struct err *err)
{
    const char *key = !json_object_get(row->object, "ids") && json_object_get(row->object, "input_ids")
                          ? "input_ids"
                          : "ids";
    const json_t *ids;
    const json_t *labels;
    if (row_json_get(row, key, &ids, err) < 0)
        return -1;
    if (!json_is_array(ids))
        return err_set(err, ERR_INVALID, "%s: %s", key, !ids ? "is missing" : "must be a list");
    if (beside_ids(row, "labels", json_array_size(ids), &labels, err) < 0 ||
        masks_check(row, json_array_size(ids), err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        int32_t id;
        if (token_read(e, json_array_get(ids, i), false, key, i, &id, err) < 0)
            return -1;
        int32_t label = id;
        if (labels && e->options->learn != SPEC_LEARN_ALL &&
            token_read(e, json_array_get(labels, i), true, "labels", i, &label, err) < 0) {
            return -1;
        }
        if (ids_append(&e->ids, &id, 1, err) < 0 || ids_append(&e->labels, &label, 1, err) < 0)
            return -1;
    }
    return 0;
}

/* ---- a row ---- */

/* Sets the format by the first row, and refuses later rows whose keys belong to another format. */
static int format_settle(struct encoder *e, const struct row_json *row, struct err *err)
{
    enum spec_format format;
    const char *key;
    if (row_format(row, e->options->format, &format, &key, err) < 0)
        return -1;
    if (e->format == SPEC_FORMAT_AUTO || !e->report->found_by) {
        e->format = format;
        e->report->found_by = key;
    } else if (e->format != format) {
        return err_set(
            err, ERR_INVALID,
            "the row is of format %s, by \"%s\", and those before it are of format %s, by \"%s\"; a "
            "data file has rows of one",
            spec_format_name(format), key, spec_format_name(e->format), e->report->found_by);
    }
    row_columns_unread(row, e->format, e->options->chat, e->report->unread);
    return row_columns_check(row, format, e->options->format != SPEC_FORMAT_AUTO, e->options->chat, err);
}

static int row_encode(struct encoder *e, const struct row_json *row, struct err *err)
{
    typedef int row_fn(struct encoder *, const struct row_json *, struct err *);
    static row_fn *const by_format[SPEC_FORMAT_COUNT] = {[SPEC_FORMAT_ALPACA] = alpaca_row,
                                                         [SPEC_FORMAT_CHAT] = chat_row,
                                                         [SPEC_FORMAT_TEXT] = text_row,
                                                         [SPEC_FORMAT_TOKENS] = tokens_row,
                                                         [SPEC_FORMAT_SHAREGPT] = chat_row,
                                                         [SPEC_FORMAT_PROMPT_COMPLETION] = prompt_row,
                                                         [SPEC_FORMAT_PROMPT_COMPLETION_CHAT] = chat_row};
    if (format_settle(e, row, err) < 0)
        return -1;
    if (e->format != SPEC_FORMAT_TOKENS && !e->options->tokenizer) {
        return err_set(err, ERR_INVALID,
                       "the model has no tokenizer, so it takes rows of token ids only (\"input_ids\" or "
                       "\"ids\", perhaps "
                       "\"labels\")");
    }
    e->ids.count = 0;
    e->labels.count = 0;
    return by_format[e->format](e, row, err);
}

/* Refuses ids beyond the model's embedding, since a tokenizer may have more tokens than the embedding has
 * rows. */
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

/* Cuts, drops or stores the current row. */
static int row_keep(struct encoder *e, uint32_t line, struct err *err)
{
    struct rows_report *report = e->report;
    size_t count = e->ids.count;
    const bool cut = count > e->options->sequence_tokens;
    e->longest = count > e->longest ? (uint32_t)count : e->longest;
    if (cut)
        count = e->options->sequence_tokens;
    uint32_t labelled = 0;
    for (size_t i = 1; i < count; i++)
        labelled += e->labels.data[i] != ROWS_IGNORE;
    if (labelled == 0) {
        report->first_dropped_line = report->dropped++ == 0 ? line : report->first_dropped_line;
        return 0;
    }
    if (cut)
        report->first_truncated_line = report->truncated++ == 0 ? line : report->first_truncated_line;
    e->labels.data[0] = ROWS_IGNORE;
    if (rows_store_add(e->store, e->ids.data, e->labels.data, (uint32_t)count, err) < 0)
        return -1;
    report->rows++;
    report->tokens += count;
    report->labelled_tokens += labelled;
    report->longest = count > report->longest ? (uint32_t)count : report->longest;
    return 0;
}

static int text_encode(struct encoder *e, const char *text, size_t size, uint32_t line, struct err *err)
{
    struct row_json row;
    const size_t valid = utf8_check(text, size);
    if (valid != size)
        return err_set(err, ERR_INVALID, "the row is not valid UTF-8 at its byte %zu", valid + 1);
    if (row_json_parse(text, size, &row, err) < 0)
        return -1;
    e->unknown_role = false;
    int status = row_encode(e, &row, err);
    row_json_fini(&row);
    if (e->unknown_role)
        e->report->first_unknown_line =
            e->report->unknown_roles++ == 0 ? line : e->report->first_unknown_line;
    if (status < 0 || ids_check(e->options, &e->ids, 0, err) < 0)
        return -1;
    return row_keep(e, line, err);
}

static int source_encode(struct encoder *e, struct rows_source *source, struct err *err)
{
    const char *text;
    size_t size;
    int more;
    while ((more = rows_source_next(source, &text, &size, err)) > 0) {
        if (text_encode(e, text, size, rows_source_number(source), err) < 0) {
            more = -1;
            break;
        }
    }
    e->report->unit = rows_source_unit(source);
    if (more < 0 && rows_source_number(source) > 0)
        err_wrap(err, "%s %u", rows_source_unit(source), rows_source_number(source));
    if (more < 0)
        return -1;
    if (e->report->rows == 0 && e->report->dropped > 0) {
        return err_set(err, ERR_INVALID,
                       "no row is left: in all %u of them there is nothing to learn within "
                       "data.sequence_tokens, %u (the longest "
                       "has %u tokens)",
                       e->report->dropped, e->options->sequence_tokens, e->longest);
    }
    if (e->report->rows == 0)
        return err_set(err, ERR_INVALID, "there are no rows: the file is empty");
    return 0;
}

int rows_encode(const char *text, size_t size, const struct rows_options *options, struct rows **rows,
                struct rows_report *report, struct err *err)
{
    if (options->sequence_tokens < 2)
        return err_set(err, ERR_INVALID, "data.sequence_tokens: must be at least 2");
    *report = (struct rows_report){.format = options->format};
    struct encoder e = {.options = options, .format = options->format, .report = report};
    e.text.limit = TEXT_BYTES_MAX;
    e.store = rows_store_create(
        options->bytes_max > 0 ? options->bytes_max : (size_t)ROWS_BYTES_DEFAULT_GIB << 30, err);
    struct rows_source *source = NULL;
    int status = e.store ? rows_source_open(text, size, &source, err) : -1;
    if (status == 0)
        status = source_encode(&e, source, err);
    rows_source_close(source);
    report->format = e.format;
    if (status == 0)
        status = rows_store_finish(e.store, rows, err);
    rows_store_destroy(e.store);
    ids_fini(&e.ids);
    ids_fini(&e.labels);
    ids_fini(&e.begins);
    ids_fini(&e.ends);
    ids_fini(&e.prompt);
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
                                     .day = data->day,
                                     .tokenizer = tokenizer};
    *chat = NULL;
    if (!tokenizer && !data->chat_template)
        return 0;
    struct err why = {0};
    const struct chat_given given = chat_given_by(tokenizer, data->day);
    if (chat_template_choose(data->chat_template, &given, chat, &why) < 0) {
        if (data->chat_template || why.code == ERR_NOMEM) {
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
    const int status = messages ? chat_render(chat, messages, NULL, true, text, NULL, err)
                                : err_set(err, ERR_INVALID, "is not valid UTF-8, or memory is short");
    json_decref(messages);
    return status;
}

static int prompt_text(const char *prompt, enum spec_format format, const struct rows_options *options,
                       struct buf *text, struct err *err)
{
    const struct piece none = {0};
    switch (format) {
    case SPEC_FORMAT_ALPACA:
        return alpaca_prompt(text, none, (struct piece){.text = prompt, .size = strlen(prompt)}, none, true,
                             err);
    case SPEC_FORMAT_CHAT:
    case SPEC_FORMAT_SHAREGPT:
    case SPEC_FORMAT_PROMPT_COMPLETION_CHAT:
        if (!options->chat) {
            *err = options->chat_error;
            return err->code != ERR_NONE ? -1 : err_set(err, ERR_UNSUPPORTED, "there is no chat template");
        }
        return chat_prompt(prompt, options->chat, text, err);
    case SPEC_FORMAT_TEXT:
    case SPEC_FORMAT_TOKENS:
    case SPEC_FORMAT_PROMPT_COMPLETION:
        return buf_text(text, prompt, err);
    case SPEC_FORMAT_AUTO:
        break;
    }
    return err_set(err, ERR_INTERNAL, "a prompt cannot be rendered before the rows' format is known");
}

int rows_render_prompt(const char *prompt, enum spec_format format, const struct rows_options *options,
                       struct ids *ids, struct err *err)
{
    if (!options->tokenizer)
        return err_set(err, ERR_INVALID, "sample.prompt: the model has no tokenizer");
    const size_t begin = ids->count;
    struct buf text = {.limit = TEXT_BYTES_MAX};
    int status = prompt_text(prompt, format, options, &text, err);
    if (status == 0) {
        const bool chat = format == SPEC_FORMAT_CHAT || format == SPEC_FORMAT_SHAREGPT ||
                          format == SPEC_FORMAT_PROMPT_COMPLETION_CHAT;
        const unsigned flags = chat ? TOKENIZER_PLAIN : TOKENIZER_ADD_BEGIN;
        status = tokenizer_encode(options->tokenizer, buf_str(&text), text.size, flags, ids, err);
    }
    buf_fini(&text);
    if (status == 0 && ids_check(options, ids, begin, err) < 0) {
        ids->count = begin;
        status = err_wrap(err, "sample.prompt");
    }
    return status;
}
