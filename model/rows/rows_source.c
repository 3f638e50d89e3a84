/* Reads rows through a window on the text: the whole file in memory, or the inflated text that was not yet
 * consumed. */
#include "model/rows/rows_source.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "common/buf.h"
#include "model/files/file_kind.h"
#include "model/rows/rows.h"

enum { INFLATE_STEP_BYTES = 1 << 18, GZIP_WINDOW_BITS = 15 + 16 };

/* Limit on a gzip file's inflated text, 128 GiB. A small file that inflates to more is an attack, not a data
 * set. */
static const uint64_t inflated_bytes_max = UINT64_C(1) << 37;

struct rows_source {
    const char *text; /* the window */
    size_t size, at;
    bool whole; /* the window reaches the end of the text */
    bool begun, array, ended;
    uint32_t number;
    bool gzip;
    z_stream stream;
    struct buf inflated;
    uint64_t inflated_bytes;
};

/* ---- gzip ---- */

/* Inflates up to INFLATE_STEP_BYTES. A gzip file may consist of several concatenated members. */
static int inflate_some(struct rows_source *s, struct err *err)
{
    if (buf_reserve(&s->inflated, INFLATE_STEP_BYTES, err) < 0)
        return -1;
    s->stream.next_out = s->inflated.data + s->inflated.size;
    s->stream.avail_out = INFLATE_STEP_BYTES;
    const int status = inflate(&s->stream, Z_NO_FLUSH);
    const size_t made = INFLATE_STEP_BYTES - s->stream.avail_out;
    s->inflated.size += made;
    s->inflated_bytes += made;
    if (status == Z_STREAM_END) {
        s->whole = s->stream.avail_in == 0;
        if (!s->whole && inflateReset(&s->stream) != Z_OK)
            return err_set(err, ERR_INTERNAL, "gzip: the library cannot go on");
    } else if (status != Z_OK || (made == 0 && s->stream.avail_in == 0)) {
        return err_set(err, ERR_CORRUPT, "the gzip file is %s",
                       s->stream.avail_in == 0 ? "cut off" : "damaged");
    }
    if (s->inflated_bytes > inflated_bytes_max)
        return err_set(err, ERR_TOO_BIG, "the gzip file holds more than 128 GiB");
    return 0;
}

/* Drops the consumed text and inflates more into the window. Returns 0 at once if the window already reaches
 * the end of the text. */
static int rows_source_refill(struct rows_source *s, struct err *err)
{
    if (s->whole)
        return 0;
    buf_consume(&s->inflated, s->at);
    s->at = 0;
    const int status = inflate_some(s, err);
    s->text = buf_str(&s->inflated);
    s->size = s->inflated.size;
    return status;
}

/* ---- opening ---- */

/* Refuses a file with ERR_UNSUPPORTED if its first bytes belong to another kind of file. 'in' is " in it" for
 * inflated text, else empty. */
static int kind_check(const void *bytes, size_t size, const char *in, struct err *err)
{
    const enum file_kind kind = file_kind_of(bytes, size);
    if (kind == FILE_KIND_JSON_OBJECT || kind == FILE_KIND_JSON_ARRAY || kind == FILE_KIND_OTHER ||
        (kind == FILE_KIND_GZIP && *in == '\0')) {
        return 0;
    }
    const char *advice = file_kind_advice(kind);
    return err_set(err, ERR_UNSUPPORTED, "the file%s is %s; %s", in, file_kind_name(kind),
                   *advice != '\0' ? advice : "data are JSON objects, one a line, or one array of them");
}

int rows_source_open(const void *bytes, size_t size, struct rows_source **source, struct err *err)
{
    if (kind_check(bytes, size, "", err) < 0)
        return -1;
    struct rows_source *s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(err, ERR_NOMEM, "out of memory for a data file");
    s->text = bytes;
    s->size = size;
    s->whole = true;
    s->gzip = file_kind_of(bytes, size) == FILE_KIND_GZIP;
    if (s->gzip) {
        s->inflated.limit = (size_t)ROWS_LINE_BYTES_MAX + 4 * INFLATE_STEP_BYTES;
        s->stream.next_in = (Bytef *)(uintptr_t)bytes;
        s->stream.avail_in = (uInt)size;
        s->text = "";
        s->size = 0;
        s->whole = false;
        if (size > UINT32_MAX || inflateInit2(&s->stream, GZIP_WINDOW_BITS) != Z_OK) {
            free(s);
            return err_set(err, ERR_TOO_BIG,
                           "the gzip file has more than 4 GiB, or there is no memory for it");
        }
    }
    *source = s;
    return 0;
}

void rows_source_close(struct rows_source *source)
{
    if (!source)
        return;
    if (source->gzip)
        inflateEnd(&source->stream);
    buf_fini(&source->inflated);
    free(source);
}

/* ---- rows ---- */

static bool rows_source_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Skips white space. Afterwards at == size means the end of the file. */
static int skip_blanks(struct rows_source *s, struct err *err)
{
    for (;;) {
        while (s->at < s->size && rows_source_is_blank(s->text[s->at]))
            s->at++;
        if (s->at < s->size || s->whole)
            return 0;
        if (rows_source_refill(s, err) < 0)
            return -1;
    }
}

static int rows_source_too_big(struct err *err)
{
    return err_set(err, ERR_TOO_BIG, "the row has more than %d bytes", ROWS_LINE_BYTES_MAX);
}

/* Sets the error for a text that begins with neither '{' nor '['. */
static int not_rows(const char *text, size_t size, struct err *err)
{
    const char *newline = memchr(text, '\n', size);
    const size_t line = newline ? (size_t)(newline - text) : size;
    const bool table = memchr(text, ',', line) || memchr(text, '\t', line);
    char shown[41];
    size_t kept = 0;
    while (kept < line && kept < sizeof(shown) - 1 && text[kept] >= ' ' && text[kept] < 0x7f) {
        shown[kept] = text[kept];
        kept++;
    }
    shown[kept] = '\0';
    return err_set(
        err, ERR_UNSUPPORTED,
        "the file begins with \"%s\"%s; rows are JSON objects, {…}, one a line, or one array of them; "
        "convert it, as with pandas.read_csv(FILE).to_json(OUT, orient=\"records\", lines=True)",
        shown, table ? ", which looks like a table (CSV)" : "");
}

static int rows_source_begin(struct rows_source *s, struct err *err)
{
    s->begun = true;
    while (s->size < FILE_KIND_BYTES && !s->whole)
        if (rows_source_refill(s, err) < 0)
            return -1;
    if (s->gzip && kind_check(s->text, s->size, " in the gzip file", err) < 0)
        return -1;
    s->at = s->size >= 3 && memcmp(s->text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    /* Only white space may precede an array; otherwise the file has JSON lines. */
    size_t first = s->at;
    while (first < s->size && rows_source_is_blank(s->text[first]))
        first++;
    s->array = first < s->size && s->text[first] == '[';
    s->at = s->array ? first + 1 : s->at;
    return s->array || first == s->size || s->text[first] == '{'
               ? 0
               : not_rows(s->text + first, s->size - first, err);
}

static int next_line(struct rows_source *s, const char **text, size_t *size, struct err *err)
{
    for (;;) {
        size_t looked = 0; /* bytes of the line that were searched for its end */
        const char *newline;
        while (!(newline = memchr(s->text + s->at + looked, '\n', s->size - s->at - looked)) && !s->whole) {
            looked = s->size - s->at;
            if (looked > ROWS_LINE_BYTES_MAX) {
                s->number++;
                return rows_source_too_big(err);
            }
            if (rows_source_refill(s, err) < 0)
                return -1;
        }
        if (s->at >= s->size)
            return 0;
        const size_t end = newline ? (size_t)(newline - s->text) : s->size;
        *text = s->text + s->at;
        *size = end - s->at;
        s->at = newline ? end + 1 : end;
        if (s->number == ROWS_COUNT_MAX)
            return err_set(err, ERR_TOO_BIG, "the data set has more than %d lines", ROWS_COUNT_MAX);
        s->number++;
        size_t blank = 0;
        while (blank < *size && rows_source_is_blank((*text)[blank]))
            blank++;
        if (blank < *size)
            return *size > ROWS_LINE_BYTES_MAX ? rows_source_too_big(err) : 1;
    }
}

/* Writes to *size the bytes of the array element that begins at s->at, up to the ',' or ']' behind it. */
static int element_size(struct rows_source *s, size_t *size, struct err *err)
{
    unsigned depth = 0;
    bool quoted = false;
    size_t i = 0;
    for (;; i++) {
        while (s->at + i >= s->size) {
            if (s->whole)
                return err_set(err, ERR_INVALID, "the array has no end: the file is cut off");
            if (rows_source_refill(s, err) < 0)
                return -1;
        }
        const char c = s->text[s->at + i];
        if (i > ROWS_LINE_BYTES_MAX)
            return rows_source_too_big(err);
        if (quoted) {
            i += c == '\\';
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (depth > 0 && (c == '}' || c == ']')) {
            depth--;
        } else if (depth == 0 && (c == ',' || c == ']')) {
            break;
        }
    }
    *size = i;
    return 0;
}

static int next_element(struct rows_source *s, const char **text, size_t *size, struct err *err)
{
    if (s->ended)
        return 0;
    if (s->number == ROWS_COUNT_MAX)
        return err_set(err, ERR_TOO_BIG, "the data set has more than %d rows", ROWS_COUNT_MAX);
    if (skip_blanks(s, err) < 0)
        return -1;
    if (s->number > 0) { /* behind an element comes ',' and the next one, or the end of the array */
        s->ended = s->at < s->size && s->text[s->at] == ']';
        s->at++;
    } else if (s->at < s->size && s->text[s->at] == ']') {
        s->ended = true;
        s->at++;
    }
    if (s->at > s->size || skip_blanks(s, err) < 0)
        return s->at > s->size ? err_set(err, ERR_INVALID, "the array has no end: the file is cut off") : -1;
    if (s->ended) {
        return s->at == s->size
                   ? 0
                   : err_set(err, ERR_INVALID,
                             "there is more behind the end of the array; a data file is one array of "
                             "rows, or one row a line");
    }
    s->number++;
    if (element_size(s, size, err) < 0)
        return -1;
    *text = s->text + s->at;
    s->at += *size;
    return 1;
}

int rows_source_next(struct rows_source *source, const char **text, size_t *size, struct err *err)
{
    if (!source->begun && rows_source_begin(source, err) < 0)
        return -1;
    return source->array ? next_element(source, text, size, err) : next_line(source, text, size, err);
}

const char *rows_source_unit(const struct rows_source *source)
{
    return source->array ? "row" : "line";
}

uint32_t rows_source_number(const struct rows_source *source)
{
    return source->number;
}
