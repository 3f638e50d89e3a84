/* Decodes rows for people to read. */
#include "model/rows/rows_show.h"

#include <inttypes.h>
#include <string.h>

enum { SHOWN_TOKENS_MAX = 65536, TEXT_BYTES_MAX = 16 << 20 };

int rows_report_say(const struct rows_report *report, uint32_t sequence_tokens, struct buf *out,
                    struct err *err)
{
    const bool chosen = strcmp(report->found_by, "data.format") == 0;
    const char *quote = chosen ? "" : "\"";
    if (buf_printf(out, err,
                   "%u row%s of format %s (by %s%s%s): %" PRIu64 " tokens, %" PRIu64
                   " learnt; the longest row has %u",
                   report->rows, report->rows == 1 ? "" : "s", spec_format_name(report->format), quote,
                   report->found_by, quote, report->tokens, report->labelled_tokens, report->longest) < 0) {
        return -1;
    }
    if (report->truncated > 0 &&
        buf_printf(out, err, "; %u cut at %u tokens, first %s %u", report->truncated, sequence_tokens,
                   report->unit, report->first_truncated_line) < 0) {
        return -1;
    }
    if (report->dropped > 0 && buf_printf(out, err, "; %u dropped with nothing to learn, first %s %u",
                                          report->dropped, report->unit, report->first_dropped_line) < 0) {
        return -1;
    }
    if (report->unknown_roles > 0 &&
        buf_printf(out, err, "; %u with a role that the chat template does not name, first \"%s\" in %s %u",
                   report->unknown_roles, report->unknown_role, report->unit, report->first_unknown_line) < 0)
        return -1;
    if (*report->unwritten &&
        buf_printf(out, err, "; the chat template does not write their %s", report->unwritten) < 0)
        return -1;
    if (*report->day &&
        buf_printf(out, err, "; the chat template writes the day (strftime_now): data.day, %s", report->day) <
            0)
        return -1;
    return *report->unread ? buf_printf(out, err, "; columns that are not read: %s", report->unread) : 0;
}

int rows_report_doubts(const struct rows_report *report, json_t *list, struct err *err)
{
    int bad = 0;
    if (report->dropped > 0)
        bad |= json_array_append_new(
            list, json_sprintf("dropped with nothing to learn: %u of %" PRIu64 " rows, first %s %u",
                               report->dropped, (uint64_t)report->rows + report->dropped, report->unit,
                               report->first_dropped_line));
    if (report->truncated > 0)
        bad |= json_array_append_new(
            list, json_sprintf("cut at data.sequence_tokens: %u of %u rows, first %s %u", report->truncated,
                               report->rows, report->unit, report->first_truncated_line));
    if (report->unknown_roles > 0)
        bad |= json_array_append_new(
            list,
            json_sprintf("%u row%s a message of a role that the chat template does not name, first \"%s\" "
                         "in %s %u",
                         report->unknown_roles, report->unknown_roles == 1 ? " has" : "s have",
                         report->unknown_role, report->unit, report->first_unknown_line));
    return bad ? err_set(err, ERR_NOMEM, "no memory for a warning") : 0;
}

/* Appends text[0..size) with control characters replaced by their pictures (U+2400 …). */
static int rows_show_put_text(struct buf *out, const char *text, size_t size, struct err *err)
{
    size_t done = 0;
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)text[i];
        if ((c >= 0x20 && c != 0x7f) || c == '\n' || c == '\t')
            continue;
        const char picture[] = {'\xe2', '\x90', (char)(0x80 + (c == 0x7f ? 0x21 : c))};
        if (buf_append(out, text + done, i - done, err) < 0 || buf_append(out, picture, 3, err) < 0)
            return -1;
        done = i + 1;
    }
    return buf_append(out, text + done, size - done, err);
}

static int put_ids(struct buf *out, const int32_t *ids, size_t count, struct err *err)
{
    for (size_t i = 0; i < count; i++)
        if (buf_printf(out, err, " %" PRId32, ids[i]) < 0)
            return -1;
    return 0;
}

/* Writes to *size how many bytes of the whole row's text the first 'count' ids produce: the common prefix of
 * their text and the whole. A character whose bytes come from ids before and behind the boundary belongs to
 * the later ids. */
static int rows_show_text_before(const struct tokenizer *tokenizer, const int32_t *ids, size_t count,
                                 const struct buf *whole, struct buf *scratch, size_t *size, struct err *err)
{
    buf_clear(scratch);
    if (tokenizer_decode(tokenizer, ids, count, false, scratch, err) < 0)
        return -1;
    size_t same = 0;
    while (same < scratch->size && same < whole->size && scratch->data[same] == whole->data[same])
        same++;
    while (same > 0 && same < whole->size && (whole->data[same] & 0xc0) == 0x80)
        same--;
    *size = same;
    return 0;
}

/* Returns the largest offset up to 'end' at which no character is cut. */
static size_t whole_characters(const struct buf *text, size_t end)
{
    while (end > 0 && end < text->size && (text->data[end] & 0xc0) == 0x80)
        end--;
    return end;
}

struct show {
    const struct tokenizer *tokenizer;
    const int32_t *ids, *labels;
    size_t count; /* number of tokens that are shown */
    struct buf whole, scratch;
    size_t end; /* bytes of the text that are shown */
};

/* Appends tokens [from, to), whose text begins at *at, and moves *at to its end. */
static int put_run(struct show *show, size_t from, size_t to, size_t *at, struct buf *out, struct err *err)
{
    size_t end = show->end;
    if (!show->tokenizer)
        return put_ids(out, show->ids + from, to - from, err);
    if (to < show->count &&
        rows_show_text_before(show->tokenizer, show->ids, to, &show->whole, &show->scratch, &end, err) < 0) {
        return -1;
    }
    end = end < *at ? *at : end > show->end ? show->end : end;
    const int status = rows_show_put_text(out, (const char *)show->whole.data + *at, end - *at, err);
    *at = end;
    return status;
}

static int put_runs(struct show *show, const char *begin, const char *end, struct buf *out, struct err *err)
{
    size_t at = 0;
    for (size_t from = 0, to; from < show->count; from = to) {
        const bool learnt = show->labels[from] != ROWS_IGNORE;
        for (to = from + 1; to < show->count && (show->labels[to] != ROWS_IGNORE) == learnt; to++) {
        }
        if (show->tokenizer && from > 0 && at == show->end)
            break;
        if ((learnt && buf_text(out, begin, err) < 0) || put_run(show, from, to, &at, out, err) < 0 ||
            (learnt && buf_text(out, end, err) < 0)) {
            return -1;
        }
    }
    return 0;
}

int rows_show(const struct rows *rows, uint32_t row, const struct tokenizer *tokenizer, const char *begin,
              const char *end, size_t bytes_max, struct buf *out, struct err *err)
{
    const uint64_t first = rows->offset[row];
    const uint64_t tokens = rows->offset[row + 1] - first;
    struct show show = {.tokenizer = tokenizer,
                        .ids = rows->ids + first,
                        .labels = rows->labels + first,
                        .count = tokens < SHOWN_TOKENS_MAX ? (size_t)tokens : SHOWN_TOKENS_MAX,
                        .whole = {.limit = TEXT_BYTES_MAX},
                        .scratch = {.limit = TEXT_BYTES_MAX}};
    show.count = show.count < bytes_max || !tokenizer ? show.count : bytes_max;
    int status = !tokenizer ? 0 : tokenizer_decode(tokenizer, show.ids, show.count, false, &show.whole, err);
    if (status == 0) {
        show.end = show.whole.size > bytes_max ? whole_characters(&show.whole, bytes_max) : show.whole.size;
        status = put_runs(&show, begin, end, out, err);
    }
    if (status == 0 && (show.count < tokens || show.end < show.whole.size))
        status = buf_text(out, "…", err);
    buf_fini(&show.whole);
    buf_fini(&show.scratch);
    return status;
}
