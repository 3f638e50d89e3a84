/* Decodes a request's parameters and encodes its answer. */
#include "api/request/route.h"

#include "api/request/blob_dir.h"
#include "api/http/wrong.h"

#include "common/clock.h"
#include "common/json.h"
#include "common/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *call_query(const struct call *call, const char *name)
{
    for (unsigned i = 0; i < call->query_count; i++)
        if (strcmp(call->query[i].name, name) == 0)
            return call->query[i].value;
    return NULL;
}

int call_query_i64(const struct call *call, const char *name, int64_t min, int64_t max, int64_t missing,
                   int64_t *out, struct err *err)
{
    const char *text = call_query(call, name);
    *out = missing;
    if (!text)
        return 0;
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (!*text || *end || errno || value < min || value > max || *text == ' ' || *text == '+')
        return err_set(err, ERR_INVALID, "%s: \"%.40s\" is not a whole number from %lld to %lld", name, text,
                       (long long)min, (long long)max);
    *out = value;
    return 0;
}

int call_id(struct call *call, unsigned index, const char *noun, int64_t *id)
{
    const char *text = call->params[index];
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (*text < '1' || *text > '9' || *end || errno) {
        call_problem(call, 404, "not-found", NULL, "there is no %s \"%.40s\": ids are whole numbers from 1",
                     noun, text);
        return -1;
    }
    *id = value;
    return 0;
}

/* Reads a visibility and a group. A group must be given exactly when the visibility is "group". */
static int take_sharing(const char *visibility, const char *group, enum visibility missing,
                        struct sharing *sharing, struct err *err)
{
    int known = visibility ? visibility_from_name(visibility) : (int)(group ? VISIBLE_GROUP : missing);
    if (known < 0)
        return err_set(err, ERR_INVALID, "visibility: \"%.40s\" is none of mine, group, everyone",
                       visibility);
    if ((known == VISIBLE_GROUP) != (group != NULL))
        return err_set(err, ERR_INVALID, "group: it goes with visibility \"group\", and that with it");
    *sharing = (struct sharing){.visibility = (enum visibility)known, .group = group};
    return 0;
}

int call_sharing(struct json_reader *reader, enum visibility missing, struct sharing *sharing)
{
    const char *visibility = NULL, *group = NULL;
    struct err err = {0};
    if (jr_str(reader, "visibility", JR_OPTIONAL, 1, 16, &visibility) < 0 ||
        jr_str(reader, "group", JR_OPTIONAL, 1, PRINCIPAL_NAME_BYTES - 1, &group) < 0)
        return -1;
    if (take_sharing(visibility, group, missing, sharing, &err) == 0)
        return 0;
    /* splits the text, because the reader itself puts the key before the reason */
    char *colon = strchr(err.text, ':');
    *colon = '\0';
    return jr_fail(reader, err.text, "%s", colon + 2);
}

int call_query_sharing(const struct call *call, enum visibility missing, struct sharing *sharing,
                       struct err *err)
{
    return take_sharing(call_query(call, "visibility"), call_query(call, "group"), missing, sharing, err);
}

void call_count(struct call *call, int status)
{
    struct app_counters *counters = &call->app->counters;
    if (status < 400)
        counters->answers_2xx++;
    else if (status < 500)
        counters->answers_4xx++;
    else
        counters->answers_5xx++;
    if (status >= 500 && status != 503)
        log_event(LOG_LEVEL_ERROR, "request_failed", "method=%s path=%.200s status=%d",
                  httpd_method_name(httpd_request_head(call->request)->method),
                  httpd_request_head(call->request)->path, status);
}

static void reply_text(struct call *call, int status, const char *type, const struct httpd_field *fields,
                       json_t *document)
{
    char *text = json_dumps(document, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(document);
    if (!text) {
        static const char fallback[] =
            "{\"type\":\"about:blank\",\"title\":\"Internal Server Error\",\"status\":500,"
            "\"detail\":\"out of memory for the answer\",\"code\":\"no-memory\"}";
        call_count(call, 500);
        httpd_reply(call->request, 500, "application/problem+json", NULL, fallback, sizeof fallback - 1);
        return;
    }
    call_count(call, status);
    httpd_reply(call->request, status, type, fields, text, strlen(text));
    free(text);
}

void call_json(struct call *call, int status, json_t *document, const struct httpd_field *fields)
{
    reply_text(call, status, "application/json", fields, document);
}

void call_empty(struct call *call, int status)
{
    call_count(call, status);
    httpd_reply(call->request, status, NULL, NULL, NULL, 0);
}

static const char *title_of(int status)
{
    switch (status) {
    case 400:
        return "The request is malformed";
    case 401:
        return "A valid token is needed";
    case 403:
        return "Not allowed";
    case 404:
        return "Not found";
    case 405:
        return "Method not allowed";
    case 409:
        return "In conflict with the present state";
    case 413:
        return "Too large";
    case 415:
        return "Unsupported media type";
    case 416:
        return "Range not satisfiable";
    case 422:
        return "The content is not valid";
    case 429:
    case 503:
        return "Try again later";
    case 507:
        return "No space left";
    default:
        return status < 500 ? "The request was refused" : "The server failed";
    }
}

static void problem_in(struct call *call, int status, const char *code, json_t *more, const char *detail,
                       unsigned retry_seconds)
{
    json_t *document =
        json_pack("{s:s, s:s, s:i, s:s%, s:s}", "type", "about:blank", "title", title_of(status), "status",
                  status, "detail", detail, strlen(detail), "code", code);
    if (!document) /* the detail is not valid UTF-8 */
        document =
            json_pack("{s:s, s:s, s:i, s:s, s:s}", "type", "about:blank", "title", title_of(status), "status",
                      status, "detail", "the reason cannot be shown: it is not UTF-8", "code", code);
    if (document && more)
        json_object_update(document, more);
    json_decref(more);
    char retry[16];
    struct httpd_field fields[4] = {{0}};
    int n = 0;
    if (status == 401)
        fields[n++] = (struct httpd_field){"WWW-Authenticate", "Bearer"};
    if (status == 503 || status == 429) {
        snprintf(retry, sizeof retry, "%u", retry_seconds);
        fields[n++] = (struct httpd_field){"Retry-After", retry};
    }
    reply_text(call, status, "application/problem+json", fields, document);
}

static void problem(struct call *call, int status, const char *code, json_t *more, const char *detail)
{
    problem_in(call, status, code, more, detail, 1);
}

void call_problem(struct call *call, int status, const char *code, json_t *more, const char *fmt, ...)
{
    char detail[640];
    va_list args;
    va_start(args, fmt);
    vsnprintf(detail, sizeof detail, fmt, args);
    va_end(args);
    problem(call, status, code, more, detail);
}

static int status_of(const struct err *err)
{
    switch (err->code) {
    case ERR_INVALID:
        return 400;
    case ERR_NET:
    case ERR_TIMEOUT:
    case ERR_BUSY:
    case ERR_NOMEM:
    case ERR_CANCELLED:
        return 503;
    case ERR_IO:
        return blob_is_full(err) ? 507 : 500;
    case ERR_UNSUPPORTED:
        return 422;
    default:
        return err_http_status(err->code);
    }
}

void call_fail(struct call *call, const struct err *err)
{
    problem(call, status_of(err), err_code_name(err->code), NULL, err->text);
}

void call_refuse(struct call *call, const struct err *err)
{
    bool content = err->code == ERR_INVALID || err->code == ERR_UNSUPPORTED || err->code == ERR_NOFIT ||
                   err->code == ERR_CORRUPT || err->code == ERR_TOO_BIG || err->code == ERR_NOT_FINITE;
    problem(call, content ? 422 : status_of(err), err_code_name(err->code), NULL, err->text);
}

void call_wrong_token(struct call *call, const struct err *err)
{
    uint8_t address[WRONG_ADDRESS_BYTES];
    char text[INET6_ADDRSTRLEN] = "", detail[160];
    bool first;
    httpd_request_address(call->request, address);
    unsigned wait_s = wrong_note(call->app->wrong, address, clock_mono_ns(), &first);
    call->app->counters.wrong_tokens++;
    if (!wait_s) {
        call_fail(call, err);
        return;
    }
    call->app->counters.late_tokens++;
    if (first)
        log_event(LOG_LEVEL_WARN, "wrong_tokens", "address=%s burst=%d",
                  inet_ntop(AF_INET6, address, text, sizeof text), WRONG_BURST);
    snprintf(detail, sizeof detail, "too many wrong tokens from this address: the next in %u s", wait_s);
    httpd_close_after(call->request);
    problem_in(call, 429, "too-many", NULL, detail, wait_s);
}

void call_answer_doc(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    if (err)
        call_fail(call, err);
    else
        call_json(call, 200, json_incref(doc), NULL);
}

void call_answer_page(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    char cursor[32];
    if (err) {
        call_fail(call, err);
        return;
    }
    json_t *answer = json_copy(doc), *next = json_object_get(doc, "next");
    if (json_is_integer(next)) {
        snprintf(cursor, sizeof cursor, "%lld", (long long)json_integer_value(next));
        json_object_set_new(answer, "next", json_string(cursor));
    }
    call_json(call, 200, answer, NULL);
}

void call_answer_changed(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    if (err)
        call_refuse(call, err);
    else if (doc)
        call_json(call, 200, json_incref(doc), NULL);
    else
        call_empty(call, 204);
}
