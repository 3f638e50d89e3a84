#include "api/jobs/notices.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/jobs/notice_mail.h"
#include "api/request/route.h"
#include "common/digest.h"
#include "common/http.h"
#include "common/json.h"
#include "common/log.h"
#include "common/outside.h"
#include "store/notices.h"

enum {
    LOOK_SECONDS = 5, /* between two looks for notices whose next try is due; new ones are told at once */
    LEASE_S = 20,     /* for which a notice is taken; longer than a try */
    TRY_MS = 10000,
    CONNECT_MS = 5000,
    ANSWER_BYTES_MAX = 4096,
};

/* A notice that is being sent. */
struct notice {
    struct pool_task task; /* must come first: a pointer to the task is cast to the notice */
    struct notices *all;
    int64_t id;
    json_t *row; /* of store_notices_claim */
    struct outside_url url;
    bool inside; /* the configuration allows its host also within the cluster's own network */
    char signature[sizeof("X-Motley-Signature: sha256=") + DIGEST_HEX_SIZE];
    enum store_notice_end end;
    double retry_s;
    struct err why;
};

struct notices {
    struct app *app;
    struct event *timer;
    unsigned count; /* being sent */
    bool asking, again;
    atomic_bool stopped; /* read by the threads */
};

static void notice_free(struct notice *notice)
{
    notice->all->count--;
    json_decref(notice->row);
    free(notice);
}

/* ---- one request, on a thread of app.tellers ---- */

static int body_signed(struct notice *notice, const char *body, struct err *err)
{
    uint8_t mac[EVP_MAX_MD_SIZE];
    char hex[DIGEST_HEX_SIZE];
    unsigned size = 0;
    const char *key = json_text_of(notice->row, "key");
    if (!HMAC(EVP_sha256(), key, (int)strlen(key), (const uint8_t *)body, strlen(body), mac, &size) ||
        size != DIGEST_SIZE)
        return err_set(err, ERR_INTERNAL, "OpenSSL could not make an HMAC-SHA256");
    digest_hex(mac, size, hex);
    snprintf(notice->signature, sizeof(notice->signature), "X-Motley-Signature: sha256=%s", hex);
    return 0;
}

static bool may_connect(const void *arg, const struct sockaddr *address)
{
    const struct notice *notice = arg;
    return notice->inside || outside_is_public(address);
}

static bool notices_is_stopped(const void *arg)
{
    const struct notice *notice = arg;
    return atomic_load(&notice->all->stopped);
}

static void notice_mail(struct notice *notice)
{
    const struct api_config *config = notice->all->app->config;
    if (notice_mail_send(config, notice->row, notice->url.path, notices_is_stopped, notice, &notice->why) ==
        0)
        notice->end = STORE_NOTICE_DELIVERED;
    else if (notice->why.code != ERR_INVALID && notice->why.code != ERR_DENIED)
        notice->end = STORE_NOTICE_FAILED;
}

static void notice_post(struct notice *notice)
{
    struct http_answer answer = {0};
    char number[64];
    const char *body = json_text_of(notice->row, "body"), *ca = notice->all->app->config->notify_ca;
    snprintf(number, sizeof(number), "X-Motley-Notice: %lld", (long long)notice->id);
    const char *const headers[] = {notice->signature, number, NULL};
    const struct http_options options = {.url = notice->url.origin,
                                         .ca_file = ca,
                                         .web = true,
                                         .may_connect = may_connect,
                                         .may_arg = notice,
                                         .connect_ms = CONNECT_MS};
    struct buf answered = {.limit = ANSWER_BYTES_MAX};
    const struct http_request request = {.method = "POST",
                                         .path = notice->url.path,
                                         .content_type = "application/json",
                                         .body = body,
                                         .body_bytes = strlen(body),
                                         .headers = headers,
                                         .response = &answered,
                                         .timeout_ms = TRY_MS,
                                         .stopped = notices_is_stopped,
                                         .stopped_arg = notice};
    struct http *http =
        body_signed(notice, body, &notice->why) < 0 ? NULL : http_create(&options, &notice->why);
    int rc = http ? http_perform(http, &request, &answer, &notice->why) : -1;
    http_destroy(http);
    buf_fini(&answered);
    notice->retry_s = answer.retry_s;
    if (rc < 0 && answer.status >= 200 &&
        answer.status < 300) /* it took the notice, and said more than is read */
        rc = 0;
    notice->end = rc == 0                                                ? STORE_NOTICE_DELIVERED
                  : notice->why.code == ERR_DENIED && answer.status == 0 ? STORE_NOTICE_REFUSED
                                                                         : STORE_NOTICE_FAILED;
    if (rc < 0 && answer.status > 0)
        err_set(&notice->why, ERR_PEER, "%s answered with status %d", notice->url.origin, answer.status);
}

static void notice_send(struct pool_task *task)
{
    struct notice *notice = (struct notice *)task;
    if (notice->url.mail)
        notice_mail(notice);
    else
        notice_post(notice);
}

/* ---- what is due ---- */

/* Looks again as soon as the loop comes round. */
static void look_soon(struct notices *notices)
{
    event_active(notices->timer, EV_TIMEOUT, 1);
}

static void notice_recorded(void *arg, const struct err *err)
{
    struct notice *notice = arg;
    struct notices *notices = notice->all;
    if (err && err->code != ERR_CANCELLED)
        log_event(LOG_LEVEL_WARN, "notice_unrecorded", "notice=%lld why=\"%s\"", (long long)notice->id,
                  err->text);
    notice_free(notice);
    if (!err)
        look_soon(notices);
}

static void notice_end(struct notice *notice)
{
    struct err err = {0};
    const bool good = notice->end == STORE_NOTICE_DELIVERED;
    if (!good)
        log_event(LOG_LEVEL_INFO, "notice_failed", "notice=%lld host=%s why=\"%s\"", (long long)notice->id,
                  notice->url.host, notice->why.text);
    if (store_notice_end(notice->all->app->store, notice->id, notice->end, notice->retry_s,
                         good ? NULL : notice->why.text, notice_recorded, notice, &err) < 0)
        notice_recorded(notice, &err);
}

static void notice_sent(struct pool_task *task)
{
    struct notice *notice = (struct notice *)task;
    struct err err = {0};
    /* What was cut off by this server's end is left to whoever takes it when its time is over. */
    if (!pool_ran(task, &err) || notice->why.code == ERR_CANCELLED)
        notice_free(notice);
    else
        notice_end(notice);
}

static void notice_taken(struct notices *notices, json_t *row)
{
    struct notice *notice = calloc(1, sizeof(*notice));
    if (!notice)
        return; /* it is taken again */
    notices->count++;
    *notice = (struct notice){.all = notices,
                              .id = json_integer_value(json_object_get(row, "id")),
                              .row = json_incref(row),
                              .end = STORE_NOTICE_REFUSED,
                              .task = {.work = notice_send, .done = notice_sent}};
    if (outside_url_read(json_text_of(row, "url"), &notice->url, &notice->why) < 0 ||
        api_config_may_notify(notices->app->config, &notice->url, &notice->inside, &notice->why) < 0)
        notice_end(notice);
    else if (pool_run(notices->app->tellers, &notice->task, &notice->why) < 0)
        notice_free(notice);
}

static void notices_claimed(void *arg, const struct err *err, json_t *doc)
{
    struct notices *notices = arg;
    size_t index;
    json_t *row;
    notices->asking = false;
    if (err && err->code != ERR_CANCELLED)
        log_event(LOG_LEVEL_WARN, "notices_unasked", "why=\"%s\"", err->text);
    if (!err && !notices->app->stopping)
        json_array_foreach (doc, index, row)
            notice_taken(notices, row);
    if (!err && notices->again)
        look_soon(notices);
}

static void notices_look(struct notices *notices)
{
    struct err err = {0};
    const struct app *app = notices->app;
    if (app->stopping || notices->count >= NOTICES_AT_ONCE)
        return; /* the end of one looks again */
    notices->again = notices->asking;
    if (notices->asking)
        return;
    notices->asking = true;
    if (store_notices_claim(app->store, LEASE_S, NOTICES_AT_ONCE - notices->count, notices_claimed, notices,
                            &err) < 0)
        notices_claimed(notices, &err, NULL);
}

static void notices_on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    notices_look(arg);
}

static void notices_on_notify(void *arg, const char *channel, const char *payload)
{
    (void)channel, (void)payload;
    notices_look(arg);
}

int notices_create(struct app *app, struct notices **out, struct err *err)
{
    const struct timeval every = {.tv_sec = LOOK_SECONDS};
    struct notices *notices = calloc(1, sizeof(*notices));
    if (!notices || !(notices->timer = event_new(app->base, -1, EV_PERSIST, notices_on_timer, notices))) {
        free(notices);
        return err_set(err, ERR_NOMEM, "out of memory for notices");
    }
    notices->app = app;
    *out = notices;
    if (!app->config->notify)
        return 0;
    event_add(notices->timer, &every);
    return store_listen(app->store, "motley_notices", notices_on_notify, notices, err);
}

void notices_stop(struct notices *notices)
{
    atomic_store(&notices->stopped, true);
}

void notices_destroy(struct notices *notices)
{
    if (!notices)
        return;
    event_free(notices->timer);
    free(notices);
}

/* ---- routes ---- */

void notices_list(struct call *call)
{
    struct err err = {0};
    if (call_list(call, "notices id") == 0 &&
        store_notices_list(call->app->store, &call->principal, call_answer_list, call, &err) < 0)
        call_fail(call, &err);
}

void notices_patch(struct call *call)
{
    static const char *const keys[] = {"keep", "new", NULL};
    struct err err = {0}, why = {0};
    struct json_reader reader;
    struct outside_url url;
    const char *text = NULL;
    int key;
    bool inside;
    call_reader(call, &reader, &err);
    jr_str(&reader, "url", JR_OPTIONAL, 1, OUTSIDE_URL_BYTES - 1, &text);
    jr_choice(&reader, "key", JR_OPTIONAL, keys, &key);
    if (text && (outside_url_read(text, &url, &why) < 0 ||
                 api_config_may_notify(call->app->config, &url, &inside, &why) < 0))
        jr_fail(&reader, "url", "%s", why.text);
    if (jr_finish(&reader) < 0)
        call_refuse(call, &err);
    else if (store_notify_set(call->app->store, &call->principal, call->body, call_answer_changed, call,
                              &err) < 0)
        call_fail(call, &err);
}
