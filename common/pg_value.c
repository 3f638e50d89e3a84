/* Parameters, results and errors of PostgreSQL: everything that needs no connection. */
#include "common/pg.h"

#include <inttypes.h>
#include <math.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/json.h"
#include "common/pg_private.h"

enum { PARAM_BYTES_MAX = 256 << 20 };

/* ---- parameters ---- */

void pg_params_init(struct pg_params *params)
{
    params->statement = NULL;
    params->count = 0;
    params->failed = false;
}

void pg_params_fini(struct pg_params *params)
{
    for (int i = 0; i < params->count; i++)
        if (params->owned[i])
            free((void *)(uintptr_t)params->values[i]);
    pg_params_init(params);
}

static void param_put(struct pg_params *params, const char *value, size_t length, int format, bool owned)
{
    if (params->count == PG_PARAMS_MAX || length > PARAM_BYTES_MAX || (owned && !value)) {
        params->failed = true;
        if (owned)
            free((void *)(uintptr_t)value);
        return;
    }
    int i = params->count++;
    params->values[i] = value;
    params->lengths[i] = (int)length;
    params->formats[i] = format;
    params->owned[i] = owned;
}

void pg_param_null(struct pg_params *params)
{
    param_put(params, NULL, 0, 0, false);
}

void pg_param_text(struct pg_params *params, const char *text)
{
    param_put(params, text, !text ? 0 : strlen(text), 0, false);
}

static void param_text_n(struct pg_params *params, const char *text, size_t size)
{
    param_put(params, strndup(text, size), size, 0, true);
}

void pg_param_bytes(struct pg_params *params, const void *data, size_t size)
{
    param_put(params, size == 0 ? "" : data, size, 1, false);
}

void pg_param_i64(struct pg_params *params, int64_t value)
{
    char text[24];
    int length = snprintf(text, sizeof(text), "%" PRId64, value);
    param_text_n(params, text, (size_t)length);
}

static int f64_print(char text[40], double value)
{
    if (isnan(value))
        return snprintf(text, 40, "NaN");
    if (isinf(value))
        return snprintf(text, 40, value > 0 ? "Infinity" : "-Infinity");
    return snprintf(text, 40, "%.17g", value);
}

void pg_param_f64(struct pg_params *params, double value)
{
    char text[40];
    int length = f64_print(text, value);
    param_text_n(params, text, (size_t)length);
}

void pg_param_bool(struct pg_params *params, bool value)
{
    pg_param_text(params, value ? "t" : "f");
}

/* Gives the buffer's memory to the parameters. */
static void param_buf(struct pg_params *params, struct buf *text, bool good)
{
    if (good) {
        param_put(params, (char *)text->data, text->size, 0, true);
    } else {
        buf_fini(text);
        params->failed = true;
    }
}

void pg_param_json(struct pg_params *params, const json_t *value)
{
    if (!value) {
        pg_param_null(params);
        return;
    }
    struct buf text;
    struct err err;
    buf_init(&text, PARAM_BYTES_MAX);
    param_buf(params, &text, json_print(value, false, &text, &err) == 0);
}

void pg_param_i64_array(struct pg_params *params, const int64_t *values, size_t count)
{
    struct buf text;
    struct err err;
    buf_init(&text, PARAM_BYTES_MAX);
    bool good = buf_text(&text, "{", &err) == 0;
    for (size_t i = 0; good && i < count; i++)
        good = buf_printf(&text, &err, "%s%" PRId64, i == 0 ? "" : ",", values[i]) == 0;
    param_buf(params, &text, good && buf_text(&text, "}", &err) == 0);
}

/* Appends a text quoted for an array literal: '"' and '\' are escaped. */
static bool array_text(struct buf *out, const char *text)
{
    struct err err;
    if (!text)
        return buf_text(out, "NULL", &err) == 0;
    bool good = buf_text(out, "\"", &err) == 0;
    while (good && *text != '\0') {
        size_t plain = strcspn(text, "\"\\");
        good = buf_append(out, text, plain, &err) == 0;
        text += plain;
        if (good && *text != '\0') {
            /* Not buf_printf, which is slow: a JSON document has hundreds of quotes to escape. */
            const char escaped[2] = {'\\', *text++};
            good = buf_append(out, escaped, sizeof(escaped), &err) == 0;
        }
    }
    return good && buf_text(out, "\"", &err) == 0;
}

void pg_param_text_array(struct pg_params *params, const char *const *texts, size_t count)
{
    struct buf text;
    struct err err;
    buf_init(&text, PARAM_BYTES_MAX);
    bool good = buf_text(&text, "{", &err) == 0;
    for (size_t i = 0; good && i < count; i++)
        good = (i == 0 || buf_text(&text, ",", &err) == 0) && array_text(&text, texts[i]);
    param_buf(params, &text, good && buf_text(&text, "}", &err) == 0);
}

int pg_params_check(const struct pg_params *params, struct err *err)
{
    if (params && params->failed) {
        return err_set(err, ERR_TOO_BIG,
                       "a statement's parameters are more than %d, over %d bytes or out of memory",
                       PG_PARAMS_MAX, PARAM_BYTES_MAX);
    }
    return 0;
}

/* ---- results ---- */

static const PGresult *raw(const struct pg_result *result)
{
    return (const PGresult *)result;
}

int pg_rows(const struct pg_result *result)
{
    return PQntuples(raw(result));
}

int64_t pg_affected(const struct pg_result *result)
{
    return strtoll(PQcmdTuples((PGresult *)(uintptr_t)result), NULL, 10);
}

bool pg_is_null(const struct pg_result *result, int row, int column)
{
    return PQgetisnull(raw(result), row, column) != 0;
}

const char *pg_text(const struct pg_result *result, int row, int column)
{
    const char *text = PQgetvalue(raw(result), row, column);
    return !text ? "" : text;
}

size_t pg_length(const struct pg_result *result, int row, int column)
{
    return (size_t)PQgetlength(raw(result), row, column);
}

int64_t pg_i64(const struct pg_result *result, int row, int column)
{
    return strtoll(pg_text(result, row, column), NULL, 10);
}

double pg_f64(const struct pg_result *result, int row, int column)
{
    return strtod(pg_text(result, row, column), NULL);
}

bool pg_bool(const struct pg_result *result, int row, int column)
{
    return pg_text(result, row, column)[0] == 't';
}

json_t *pg_json(const struct pg_result *result, int row, int column)
{
    struct err err;
    if (pg_is_null(result, row, column))
        return NULL;
    return json_parse_limited(pg_text(result, row, column), pg_length(result, row, column), JSON_DEPTH_MAX,
                              &err);
}

int64_t pg_bytes(const struct pg_result *result, int row, int column, void *dst, size_t size)
{
    size_t length = 0;
    unsigned char *bytes = PQunescapeBytea((const unsigned char *)pg_text(result, row, column), &length);
    int64_t got = !bytes || length > size ? -1 : (int64_t)length;
    if (got > 0)
        memcpy(dst, bytes, length);
    PQfreemem(bytes);
    return got;
}

void pg_result_free(struct pg_result *result)
{
    PQclear((PGresult *)result);
}

/* ---- errors ---- */

static const struct {
    const char *prefix; /* prefix of the SQLSTATE; the first match counts */
    enum err_code code;
} sqlstate_table[] = {
    {"23505", ERR_CONFLICT}, {"23P01", ERR_CONFLICT}, {"23", ERR_INVALID},    {"22", ERR_INVALID},
    {"40001", ERR_BUSY},     {"40P01", ERR_BUSY},     {"55P03", ERR_BUSY},    {"57014", ERR_TIMEOUT},
    {"57P", ERR_NET},        {"08", ERR_NET},         {"53", ERR_IO},         {"58", ERR_IO},
    {"42501", ERR_DENIED},   {"28", ERR_AUTH},        {"P0001", ERR_INVALID},
};

int pg_error_result(const PGresult *result, struct err *err)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    const char *constraint = PQresultErrorField(result, PG_DIAG_CONSTRAINT_NAME);
    enum err_code code = ERR_INTERNAL;
    for (size_t i = 0; state && i < sizeof(sqlstate_table) / sizeof(sqlstate_table[0]); i++) {
        if (strncmp(state, sqlstate_table[i].prefix, strlen(sqlstate_table[i].prefix)) == 0) {
            code = sqlstate_table[i].code;
            break;
        }
    }
    const bool full = state && strcmp(state, "53100") == 0;
    return err_set(err, code, "PostgreSQL: %.300s (SQLSTATE %s%s%s)%s", !text ? "no reason given" : text,
                   !state ? "?" : state, !constraint ? "" : ", constraint ", !constraint ? "" : constraint,
                   full ? ": it takes no change until its disk has room" : "");
}

bool pg_error_is_shutdown(const PGresult *result)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    return state && (strncmp(state, "57P", 3) == 0 || strncmp(state, "08", 2) == 0);
}

int pg_error_conn(const PGconn *conn, struct err *err)
{
    char text[300];
    snprintf(text, sizeof(text), "%s", !conn ? "no memory" : PQerrorMessage(conn));
    for (char *at = text; *at != '\0'; at++)
        *at = *at == '\n' || *at == '\t' ? ' ' : *at;
    size_t length = strlen(text);
    while (length > 0 && text[length - 1] == ' ')
        text[--length] = '\0';
    bool refused = strstr(text, "authentication failed") || strstr(text, "does not exist");
    return err_set(err, refused ? ERR_AUTH : ERR_NET, "PostgreSQL: %s",
                   text[0] == '\0' ? "connection lost" : text);
}

/* ---- the prepared statements of a connection ---- */

bool pg_prepared_has(const struct pg_prepared *prepared, const struct pg_statement *statement)
{
    for (int i = 0; i < prepared->count; i++)
        if (prepared->statements[i] == statement)
            return true;
    return false;
}

bool pg_prepared_add(struct pg_prepared *prepared, const struct pg_statement *statement)
{
    if (prepared->count == PG_PREPARED_MAX)
        return false;
    prepared->statements[prepared->count++] = statement;
    return true;
}

void pg_prepared_remove(struct pg_prepared *prepared, const struct pg_statement *statement)
{
    for (int i = 0; i < prepared->count; i++) {
        if (prepared->statements[i] == statement) {
            prepared->statements[i] = prepared->statements[--prepared->count];
            return;
        }
    }
}

/* Appends one keyword and its value. */
static void conn_param(struct pg_conn_params *room, const char *keyword, const char *value)
{
    size_t i = 0;
    while (room->keywords[i])
        i++;
    assert(i + 1 < sizeof(room->keywords) / sizeof(room->keywords[0]));
    room->keywords[i] = keyword;
    room->values[i] = value;
}

void pg_conn_params_make(struct pg_conn_params *room, const char *conninfo, const char *application,
                         uint32_t timeout_ms)
{
    *room = (struct pg_conn_params){0};
    /* All statements are short, so PostgreSQL must not compile them (jit). It would for a statement with a
     * list of records as a parameter, for which it estimates 10,000 rows, and compiling takes 50 ms. */
    snprintf(room->options, sizeof(room->options), "-c statement_timeout=%u -c jit=off", timeout_ms);
    uint32_t seconds = timeout_ms / 1000;
    snprintf(room->timeout, sizeof(room->timeout), "%u", seconds < 2 ? 2 : seconds > 10 ? 10 : seconds);
    /* Later keywords override earlier ones. Without keepalives a connection that only listens would wait for
     * two hours for a server whose machine has died. */
    conn_param(room, "keepalives_idle", "5");
    conn_param(room, "keepalives_interval", "5");
    conn_param(room, "keepalives_count", "2");
    conn_param(room, "dbname", conninfo); /* a whole conninfo, which libpq expands */
    conn_param(room, "options", room->options);
    conn_param(room, "client_encoding", "UTF8");
    conn_param(room, "connect_timeout", room->timeout);
    if (application)
        conn_param(room, "application_name", application);
}

/* Writes the comma-separated list, of less than 1024 bytes, 'turns' items further, the first ones last. */
static void list_turn(const char *list, unsigned turns, char room[1024])
{
    size_t count = 1;
    for (const char *at = list; *at != '\0'; at++)
        count += *at == ',';
    const char *first = list;
    for (size_t skip = turns % count; skip > 0; skip--)
        first = strchr(first, ',') + 1;
    const size_t before = first > list ? (size_t)(first - list) - 1 : 0;
    const size_t rest = strlen(first);
    memcpy(room, first, rest);
    room[rest] = before > 0 ? ',' : '\0';
    memcpy(room + rest + 1, list, before);
    room[rest + (before > 0 ? before + 1 : 0)] = '\0';
}

void pg_conn_params_turn(struct pg_conn_params *room, const char *conninfo, unsigned turns)
{
    static const char *const lists[] = {"host", "hostaddr", "port"};
    PQconninfoOption *options = turns > 0 ? PQconninfoParse(conninfo, NULL) : NULL;
    for (PQconninfoOption *option = options; option && option->keyword; option++)
        for (size_t i = 0; i < 3; i++)
            if (option->val && strcmp(option->keyword, lists[i]) == 0 && strchr(option->val, ',') &&
                strlen(option->val) < sizeof(room->turned[i])) {
                list_turn(option->val, turns, room->turned[i]);
                conn_param(room, lists[i], room->turned[i]);
            }
    PQconninfoFree(options);
}
