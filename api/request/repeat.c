/* Idempotency keys of all POST requests except submits, whose keys are stored with their jobs. */
#include "api/request/repeat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/request/route.h"
#include "common/buf.h"
#include "common/digest.h"
#include "store/answers.h"

enum {
    FIELDS_MAX = 4,
    /* a claimed key without an answer counts as under way for this time, as no request takes longer */
    UNDER_WAY_SECONDS = 60,
    KEPT_BYTES_MAX = 256 << 10 /* most bytes of a body that is kept; a longer one is not given again */
};

/* An answer that waits until the database has it. */
struct kept_answer {
    struct call *call;
    int status;
    const char *type;
    char *text;
    struct httpd_field fields[FIELDS_MAX + 1];
};

/* Whether the route needs no key from here. Submits have their own keys. A plan changes nothing. A route
 * without a scope (enrolment, sessions) is asked with a secret that can be used once. */
static bool has_own_way(const struct route *route)
{
    return route->method != HTTP_POST || !route->scope || route->handle == jobs_submit ||
           route->handle == jobs_validate;
}

/* Whether the route's answer holds a secret. Such an answer is not stored. */
static bool is_secret(const struct route *route)
{
    return route->handle == tokens_post || route->handle == join_tokens_post ||
           route->handle == session_codes_post;
}

static int key_fill(const struct call *call, const char *key, struct store_answer_key *of, struct err *err)
{
    const struct httpd_head *head = httpd_request_head(call->request);
    size_t size;
    const char *body = httpd_request_body(call->request, &size);
    struct buf text = {.limit = (size_t)1 << 26};
    const bool user = call->principal.kind == PRINCIPAL_USER;
    *of = (struct store_answer_key){.asker = user ? call->principal.id : -call->principal.token, .key = key};
    int rc = buf_printf(&text, err, "%s %s?%s\n", httpd_method_name(head->method), head->path, head->query);
    if (rc == 0 && size > 0)
        rc = buf_append(&text, body, size, err);
    if (rc == 0)
        rc = digest_sha256(text.data, text.size, of->digest, err);
    buf_fini(&text);
    return rc;
}

static void answer_again(struct call *call, json_t *doc)
{
    const json_t *status = json_object_get(doc, "status");
    json_t *body = json_object_get(doc, "body");
    const struct httpd_field fields[] = {{"Idempotent-Replayed", "true"}, {NULL, NULL}};
    struct err err = {0};
    if (!json_is_true(json_object_get(doc, "same")))
        err_set(&err, ERR_CONFLICT, "this Idempotency-Key was used for another request");
    else if (json_is_null(status) && json_number_value(json_object_get(doc, "age_s")) < UNDER_WAY_SECONDS)
        err_set(&err, ERR_BUSY, "another request with this Idempotency-Key is under way: try again");
    else if (json_is_null(status))
        err_set(&err, ERR_CONFLICT,
                "the answer to this request was lost: look what became of it before you use a new "
                "Idempotency-Key");
    else if (!json_is_true(json_object_get(doc, "kept")))
        err_set(&err, ERR_CONFLICT, "this request was carried out, and its answer is given only once");
    if (err.code)
        call_fail(call, &err);
    else if (json_is_null(body)) {
        call_count(call, (int)json_integer_value(status));
        httpd_reply(call->request, (int)json_integer_value(status), NULL, fields, NULL, 0);
    } else
        call_json(call, (int)json_integer_value(status), json_incref(body), fields);
}

/* ---- the answer ---- */

static void kept_free(struct kept_answer *kept)
{
    for (size_t i = 0; i < FIELDS_MAX; i++) {
        free((char *)(uintptr_t)kept->fields[i].name);
        free((char *)(uintptr_t)kept->fields[i].value);
    }
    free(kept->text);
    free(kept);
}

/* Sends the answer. Errors of the database are ignored, since the request was carried out and its answer is
 * known. */
static void stored(void *arg, const struct err *err)
{
    struct kept_answer *kept = arg;
    (void)err;
    httpd_reply(kept->call->request, kept->status, kept->type, kept->fields, kept->text,
                kept->text ? strlen(kept->text) : 0);
    kept_free(kept);
}

static struct kept_answer *kept_create(struct call *call, int status, const char *type,
                                       const struct httpd_field *fields, const char *text)
{
    struct kept_answer *kept = calloc(1, sizeof(*kept));
    if (!kept)
        return NULL;
    *kept = (struct kept_answer){
        .call = call, .status = status, .type = type, .text = text ? strdup(text) : NULL};
    size_t n = 0;
    for (; fields && fields->name && n < FIELDS_MAX; fields++)
        kept->fields[n++] = (struct httpd_field){strdup(fields->name), strdup(fields->value)};
    bool whole = kept->text || !text;
    for (size_t i = 0; i < n; i++)
        whole = whole && kept->fields[i].name && kept->fields[i].value;
    if (!whole) {
        kept_free(kept);
        return NULL;
    }
    return kept;
}

static bool repeat_keep_answer(struct call *call, int status, const char *type,
                               const struct httpd_field *fields, const char *text)
{
    const char *key = httpd_head_get(httpd_request_head(call->request), "idempotency-key");
    struct store_answer_key of;
    struct err err = {0};
    call->keep_answer = NULL;
    /* The key stays claimed, so that the request is not carried out again. */
    if (call->unsure)
        return false;
    struct kept_answer *answer = kept_create(call, status, type, fields, text);
    if (!answer)
        return false;
    const bool kept = !is_secret(call->route) && (!text || strlen(text) <= KEPT_BYTES_MAX);
    if (key_fill(call, key, &of, &err) == 0 &&
        (status < 300 ? store_answer_keep(call->app->store, &of, status, text, kept, stored, answer, &err)
                      : store_answer_drop(call->app->store, &of, stored, answer, &err)) == 0) {
        call_count(call, status);
        return true;
    }
    kept_free(answer);
    return false;
}

/* ---- the request ---- */

static void claimed(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    if (err) {
        call_fail(call, err);
    } else if (json_is_true(json_object_get(doc, "claimed"))) {
        call->keep_answer = repeat_keep_answer;
        call_handle(call);
    } else {
        answer_again(call, doc);
    }
}

void repeat_begin(struct call *call)
{
    const char *key;
    struct err err = {0};
    struct store_answer_key of;
    if (has_own_way(call->route)) {
        call_handle(call);
        return;
    }
    if (call_key(call, &key) < 0)
        return;
    if (!key)
        call_handle(call);
    else if (key_fill(call, key, &of, &err) < 0 ||
             store_answer_claim(call->app->store, &of, claimed, call, &err) < 0)
        call_fail(call, &err);
}
