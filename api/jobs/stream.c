/* GET /v1/jobs/{id}/events: a job's past and future events as Server-Sent Events.
 *
 * Each event carries the database's id, so a follower that reconnects with Last-Event-ID misses and repeats
 * nothing. A NOTIFY wakes a follower; it reads pages after its last id until a page is short, and then
 * sleeps. For a client that reads slowly, no further page is read while more than UNSENT_BYTES_MAX are
 * unsent, so it costs at most that memory and one event, and misses nothing. A client that takes nothing for
 * httpd's idle time is cut off; it may reconnect with its last id. A user has a limited number of streams at
 * a server, and a stream ends soon after its token becomes invalid or its user may no longer see the job.
 *
 * The stream of a finished job ends with the event "end". After the job was seen to be finished, one more
 * page is read, because events that were written before may become visible after the previous page. None of
 * this depends on when a NOTIFY arrives: it may come before, during or after the query that reads its event.
 */
#include "api/jobs/stream_private.h"

#include "api/people/auth.h"
#include "api/request/route.h"
#include "store/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void follower_read(struct follower *follower);

void follower_end(struct follower *follower, bool broken)
{
    LIST_REMOVE(follower, link);
    follower->followers->app->counters.followers--;
    httpd_stream_end(follower->call->request, broken);
    json_decref(follower->over);
    free(follower->topics);
    free(follower);
}

int follower_send(struct follower *follower, const char *type, int64_t id, const json_t *data)
{
    struct httpd_request *request = follower->call->request;
    char head[128];
    char *text = json_dumps(data, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text)
        return -1;
    int n = id < 0 ? snprintf(head, sizeof(head), "event: %.40s\ndata: ", type)
                   : snprintf(head, sizeof(head), "id: %lld\nevent: %.40s\ndata: ", (long long)id, type);
    int rc = httpd_stream_write(request, head, (size_t)n);
    if (rc == 0)
        rc = httpd_stream_write(request, text, strlen(text));
    if (rc == 0)
        rc = httpd_stream_write(request, "\n\n", 2);
    free(text);
    return rc;
}

static bool stream_is_final(const json_t *state)
{
    int number = json_is_string(state) ? state_from_name(&job_machine, json_string_value(state)) : -1;
    return number >= 0 && state_is_final(&job_machine, number);
}

/* Sends the event "end": the job has finished and all its events are sent. */
static int send_end(struct follower *follower)
{
    json_t *data =
        json_pack("{s:O, s:O, s:O}", "job", json_object_get(follower->over, "id"), "state",
                  json_object_get(follower->over, "state"), "why", json_object_get(follower->over, "why"));
    int rc = data ? follower_send(follower, "end", follower->last, data) : -1;
    json_decref(data);
    return rc;
}

/* Called with the job after a page was sent that left no event: notes whether the job has finished. */
static void follower_job(void *arg, const struct err *err, json_t *doc)
{
    struct follower *follower = arg;
    follower->reading = false;
    if (follower->gone || err) { /* after an error of the database the client reconnects with its last id */
        follower_end(follower, true);
        return;
    }
    follower->closing = false;
    if (stream_is_final(json_object_get(doc, "state")))
        follower->over = json_incref(doc);
    if (follower->over || follower->again)
        follower_read(follower);
}

/* Sends one event of a page. */
static int send_row(struct follower *follower, const json_t *event)
{
    const char *type = json_string_value(json_object_get(event, "type"));
    follower->last = json_integer_value(json_object_get(event, "id"));
    if (type && strcmp(type, "state") == 0) {
        follower->closing = stream_is_final(json_object_get(json_object_get(event, "body"), "state"));
        if (!follower->closing) { /* the job had finished and was resumed */
            json_decref(follower->over);
            follower->over = NULL;
        }
    }
    json_t *data = json_copy(json_object_get(event, "body"));
    if (json_is_object(data))
        json_object_set(data, "at", json_object_get(event, "at"));
    int rc = data ? follower_send(follower, type ? type : "message", follower->last, data) : -1;
    json_decref(data);
    return rc;
}

static void follower_page(void *arg, const struct err *err, json_t *doc)
{
    struct follower *follower = arg;
    follower->reading = false;
    if (follower->gone || err) { /* after an error of the database the client reconnects with its last id */
        follower_end(follower, true);
        return;
    }
    size_t index;
    json_t *event, *events = json_object_get(doc, "events");
    json_array_foreach (events, index, event) {
        if (send_row(follower, event) < 0) {
            follower_end(follower, true);
            return;
        }
        if (httpd_stream_unsent(follower->call->request) > UNSENT_BYTES_MAX) {
            follower->waiting = true; /* the rest of the page is read again later */
            return;
        }
    }
    struct err failed = {0};
    if (json_array_size(events) == EVENTS_PAGE) {
        follower_read(follower);
    } else if (follower->over) {
        follower_end(follower, send_end(follower) < 0);
    } else if (follower->again) {
        follower_read(follower);
    } else if (follower->closing || *follower->type) { /* a follower of one type sees no state events */
        follower->reading = true;
        if (store_job_get(follower->followers->app->store, &follower->call->principal, follower->job,
                          follower_job, follower, &failed) < 0)
            follower_end(follower, true);
    }
}

static void follower_read(struct follower *follower)
{
    struct err err = {0};
    if (follower->waiting)
        return;
    if (follower->topics) {
        follower->followers->feed_next(follower->followers->feed);
        return;
    }
    if (follower->reading) {
        follower->again = true;
        return;
    }
    follower->again = false;
    follower->reading = true;
    if (store_event_list(follower->followers->app->store, follower->job,
                         *follower->type ? follower->type : NULL, follower->last, EVENTS_PAGE, follower_page,
                         follower, &err) < 0) {
        follower->reading = false;
        follower_end(follower, true);
    }
}

static void follower_drained(struct httpd_request *request, void *arg)
{
    struct follower *follower = arg;
    if (httpd_gone(request)) {
        follower->gone = true;
        if (!follower->reading)
            follower_end(follower, true);
    } else if (follower->waiting) {
        follower->waiting = false;
        follower_read(follower);
    }
}

static void stream_on_notify(void *arg, const char *channel, const char *payload)
{
    (void)channel;
    struct followers *followers = arg;
    int64_t job = payload && *payload ? strtoll(payload, NULL, 10) : 0;
    struct follower *next;
    for (struct follower *follower = LIST_FIRST(&followers->all); follower; follower = next) {
        next = LIST_NEXT(follower, link);
        if (!follower->topics && (!job || follower->job == job))
            follower_read(follower);
    }
    if (followers->feed)
        followers->feed_notify(followers->feed);
}

/* Ends a follower who may follow no longer. If a query is under way, its callback ends the follower. */
static void follower_stop(struct follower *follower)
{
    follower->gone = true;
    if (!follower->reading)
        follower_end(follower, true);
}

/* A query that checks whether a token is still valid. */
struct token_check {
    struct followers *followers;
    uint8_t hash[32];
};

static void token_checked(void *arg, const struct err *err, const struct principal *principal)
{
    struct token_check *check = arg;
    struct follower *next;
    for (struct follower *follower = LIST_FIRST(&check->followers->all); follower; follower = next) {
        next = LIST_NEXT(follower, link);
        if (memcmp(follower->token_hash, check->hash, sizeof(check->hash)) != 0)
            continue;
        if (principal) /* an administrator may have become a user */
            follower->call->principal.admin = principal->admin;
        else if (err->code == ERR_AUTH)
            follower_stop(follower);
    }
    free(check);
}

static void unseen_found(void *arg, const struct err *err, json_t *doc)
{
    struct followers *followers = arg;
    struct follower *next;
    json_t *pair;
    size_t i;
    followers->checking = false;
    /* After an error of the database the next check asks again. */
    json_array_foreach (err ? NULL : doc, i, pair) {
        const int64_t job = json_integer_value(json_array_get(pair, 0));
        const int64_t user = json_integer_value(json_array_get(pair, 1));
        for (struct follower *follower = LIST_FIRST(&followers->all); follower; follower = next) {
            next = LIST_NEXT(follower, link);
            bool follows = false;
            for (unsigned k = 0; k < follower->job_count; k++)
                follows |= follower->jobs[k] == job;
            if (follows && follower->user == user && !follower->call->principal.admin)
                follower_stop(follower);
        }
    }
}

/* Asks whether the followers may still see their jobs: they are no longer shared, or a user left a group. */
static void stream_check_jobs(struct followers *followers)
{
    struct err err = {0};
    size_t count = 0;
    const struct follower *follower;
    int64_t *jobs = followers->checking ? NULL : calloc((size_t)2 * FOLLOWERS_MAX * JOBS_MAX, sizeof(*jobs));
    if (!jobs)
        return;
    int64_t *users = jobs + (size_t)FOLLOWERS_MAX * JOBS_MAX;
    LIST_FOREACH (follower, &followers->all, link)
        for (unsigned k = 0; k < follower->job_count && !follower->call->principal.admin; k++) {
            jobs[count] = follower->jobs[k];
            users[count++] = follower->user;
        }
    followers->checking = count > 0 && store_jobs_unseen(followers->app->store, jobs, users, count,
                                                         unseen_found, followers, &err) == 0;
    free(jobs);
}

static void check_tokens(struct followers *followers)
{
    struct token_check *checks[FOLLOWERS_MAX];
    size_t count = 0;
    const struct follower *follower;
    LIST_FOREACH (follower, &followers->all, link) {
        struct token_check *check = count < FOLLOWERS_MAX ? malloc(sizeof(*check)) : NULL;
        if (!check)
            break;
        check->followers = followers;
        memcpy(check->hash, follower->token_hash, sizeof(check->hash));
        checks[count++] = check;
    }
    /* If the answer is cached, token_checked is called at once and may end followers, so the list was copied
     * before. */
    for (size_t i = 0; i < count; i++)
        auth_find(followers->app->auth, checks[i]->hash, token_checked, checks[i]);
}

static void on_check(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct followers *followers = arg;
    struct follower *next;
    check_tokens(followers);
    stream_check_jobs(followers);
    if (followers->feed)
        followers->feed_notify(followers->feed);
    if (++followers->checks % CHECKS_PER_BEAT)
        return;
    for (struct follower *follower = LIST_FIRST(&followers->all); follower; follower = next) {
        next = LIST_NEXT(follower, link);
        if (httpd_stream_unsent(follower->call->request) > 0)
            continue; /* no beat is needed while the client still has bytes to take */
        if (httpd_stream_write(follower->call->request, ": beat\n\n", 8) < 0 && !follower->reading)
            follower_end(follower, true);
    }
}

int followers_create(struct app *app, struct followers **followers, struct err *err)
{
    struct followers *made = calloc(1, sizeof(*made));
    struct timeval beat = {CHECK_SECONDS, 0};
    if (!made)
        return err_set(err, ERR_NOMEM, "out of memory for followers");
    made->app = app;
    LIST_INIT(&made->all);
    made->heartbeat = event_new(app->base, -1, EV_PERSIST, on_check, made);
    if (!made->heartbeat || event_add(made->heartbeat, &beat) < 0 ||
        store_listen(app->store, "motley_events", stream_on_notify, made, err) < 0) {
        if (!err->code)
            err_set(err, ERR_NOMEM, "out of memory for followers");
        followers_destroy(made);
        return -1;
    }
    *followers = made;
    return 0;
}

void followers_destroy(struct followers *followers)
{
    if (!followers)
        return;
    for (struct follower *follower = LIST_FIRST(&followers->all), *next; follower; follower = next) {
        next = LIST_NEXT(follower, link);
        follower_end(follower, true);
    }
    if (followers->heartbeat)
        event_free(followers->heartbeat);
    free(followers);
}

static unsigned streams_of(const struct followers *followers, int64_t user)
{
    unsigned count = 0;
    const struct follower *follower;
    LIST_FOREACH (follower, &followers->all, link)
        count += follower->user == user;
    return count;
}

struct follower *follower_create(struct call *call, int64_t last, struct topics *topics)
{
    struct followers *followers = call->app->followers;
    struct follower *follower = NULL;
    if (streams_of(followers, call->principal.id) >= call->app->config->streams_per_user_max)
        call_problem(call, 429, "busy", NULL, "%s has %u event streams open, the limit of one user",
                     call->principal.name, call->app->config->streams_per_user_max);
    else if (followers->app->counters.followers >= FOLLOWERS_MAX ||
             !(follower = calloc(1, sizeof(*follower))))
        call_problem(call, 503, "busy", NULL, "there are %d followers, the limit of this server",
                     FOLLOWERS_MAX);
    if (!follower) {
        free(topics);
        return NULL;
    }
    follower->followers = followers;
    follower->call = call;
    follower->last = last;
    follower->topics = topics;
    follower->user = call->principal.id;
    memcpy(follower->token_hash, call->token_hash, sizeof(follower->token_hash));
    LIST_INSERT_HEAD(&followers->all, follower, link);
    followers->app->counters.followers++;
    call_count(call, 200);
    static const struct httpd_field fields[] = {
        {"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}, {NULL, NULL}};
    httpd_stream_begin(call->request, 200, "text/event-stream", fields, -1, follower_drained, follower);
    if (httpd_request_head(call->request)->method == HTTP_HEAD || httpd_gone(call->request)) {
        follower_end(follower, false);
        return NULL;
    }
    httpd_stream_write(call->request, "retry: 1000\n\n", 13);
    return follower;
}

int follower_resume(struct call *call, int64_t missing, int64_t *after)
{
    const char *resumed = httpd_head_get(httpd_request_head(call->request), "last-event-id");
    struct err bad = {0};
    if (call_query_i64(call, "after", 0, INT64_MAX, missing, after, &bad) < 0) {
        call_fail(call, &bad);
        return -1;
    }
    if (resumed) {
        char *end = NULL;
        *after = strtoll(resumed, &end, 10);
        if (!*resumed || *end || *after < 0) {
            call_problem(call, 400, "invalid", NULL, "Last-Event-ID: \"%.40s\" is no id of ours", resumed);
            return -1;
        }
    }
    return 0;
}

static void follow_seen(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    int64_t after;
    if (err) {
        call_fail(call, err);
        return;
    }
    if (follower_resume(call, 0, &after) < 0)
        return;
    const char *type = call_query(call, "type");
    struct follower *follower = follower_create(call, after, NULL);
    if (!follower)
        return;
    follower->job = json_integer_value(json_object_get(doc, "id"));
    follower->jobs = &follower->job;
    follower->job_count = 1;
    if (stream_is_final(json_object_get(doc, "state")))
        follower->over = json_incref(doc);
    snprintf(follower->type, sizeof(follower->type), "%s", type ? type : "");
    follower_read(follower);
}

void jobs_events(struct call *call)
{
    int64_t id;
    struct err err = {0};
    const char *type = call_query(call, "type");
    if (type &&
        (!*type || strlen(type) > 31 || strspn(type, "abcdefghijklmnopqrstuvwxyz_") != strlen(type))) {
        call_problem(call, 400, "invalid", NULL, "type: \"%.40s\" is not 1 to 31 of a-z and _", type);
        return;
    }
    if (call_id(call, 0, "job", &id) == 0 &&
        store_job_get(call->app->store, &call->principal, id, follow_seen, call, &err) < 0)
        call_fail(call, &err);
}
