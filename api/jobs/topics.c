/* GET /v1/events: what happens in the cluster, by topics, as Server-Sent Events.
 *
 * `queue`: the state and the owner of every job, for everybody (no job names, no reasons), and `queue` events
 * with the number of jobs in each state. `devices`: `devices` events with the states of devices. `job:ID`:
 * all events of a job that the asker may see. A topic that is refused is told with a `refused` event, and the
 * others go on; only a request all of whose topics are refused is.
 *
 * Each process has one feed, which reads the database for all followers, one query at a time. A new follower
 * first catches up: it reads pages of its own, from its last id on, until a page is not full. Then it is live
 * and gets its part of the common pages, which are read once for all live followers. No event is missed in
 * between: a page that is not full ends with the newest event there is, and as queries follow one another,
 * the last common page did not end later. A follower whose client reads slowly has to catch up again. Events
 * of the table have ids, from which a client resumes. `queue` and `devices` events have none: each stream
 * begins with the whole state and continues with the changes.
 */
#include "api/jobs/stream_private.h"

#include "api/request/route.h"
#include "store/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GLANCE_MS = 200, NOTHING_BEFORE = -1 };

struct topics {
    bool queue, devices;
    bool live; /* the follower has caught up and gets its part of the common pages */
    /* the follower must be sent the whole state of queue and devices, for the first time or again */
    bool fresh;
    unsigned job_count;
    int64_t jobs[JOBS_MAX];
};

enum feed_work { WORK_CATCH_UP, WORK_LIVE, WORK_GLANCE, WORK_KINDS };

struct cluster_feed {
    struct followers *followers;
    bool reading; /* a query is under way */
    /* the follower for which the query under way reads a page, or NULL */
    struct follower *catching;
    bool again; /* there may be new events after `last` */
    bool glance_due;
    /* the kind of work (enum feed_work) that is tried first; it changes after each piece of work, so that
     * no kind starves */
    unsigned turn;
    int64_t last;   /* id of the event with which the last common page ended */
    json_t *glance; /* the state of queue and devices as last read, or NULL */
    /* delays the next reading of `glance`, so that many changes cause only one query */
    struct event *timer;
};

static void feed_next(struct cluster_feed *feed);

static bool has_job(const struct topics *topics, int64_t job)
{
    for (unsigned i = 0; i < topics->job_count; i++)
        if (topics->jobs[i] == job)
            return true;
    return false;
}

/* Sends one event of a page if the follower's topics include it. Followers of `queue` get the state events of
 * every job, with the owner, whoever the asker is. */
static int send_event(struct follower *follower, const json_t *event)
{
    const struct topics *topics = follower->topics;
    const char *type = json_string_value(json_object_get(event, "type"));
    int64_t job = json_integer_value(json_object_get(event, "job"));
    int64_t id = json_integer_value(json_object_get(event, "id"));
    json_t *body = json_object_get(event, "body"), *data = NULL;
    if (id <= follower->last)
        return 0;
    if (has_job(topics, job) && json_is_object(body))
        data = json_copy(body);
    else if (topics->queue && type && strcmp(type, "state") == 0)
        data = json_pack("{s:O?, s:O}", "state", json_object_get(body, "state"), "owner",
                         json_object_get(event, "owner"));
    if (!data)
        return 0;
    json_object_set(data, "at", json_object_get(event, "at"));
    json_object_set_new(data, "job", json_integer(job));
    int rc = follower_send(follower, type ? type : "message", id, data);
    json_decref(data);
    follower->last = id;
    return rc;
}

/* Sends a page. If the follower's client reads too slowly, the rest is not sent, and the follower catches up
 * later. Returns -1 when the follower was ended. */
static int send_page(struct follower *follower, const json_t *events)
{
    for (size_t i = 0; i < json_array_size(events) && !follower->waiting; i++) {
        if (send_event(follower, json_array_get(events, i)) < 0) {
            follower_end(follower, true);
            return -1;
        }
        if (httpd_stream_unsent(follower->call->request) > UNSENT_BYTES_MAX) {
            follower->waiting = true;
            follower->topics->live = false;
        }
    }
    return 0;
}

static bool any_live(const struct cluster_feed *feed)
{
    const struct follower *follower;
    LIST_FOREACH (follower, &feed->followers->all, link)
        if (follower->topics && follower->topics->live)
            return true;
    return false;
}

/* ---- one follower catches up ---- */

static void caught_up(void *arg, const struct err *err, json_t *doc)
{
    struct cluster_feed *feed = arg;
    struct follower *follower = feed->catching;
    feed->reading = follower->reading = false;
    feed->catching = NULL;
    if (follower->gone || err) { /* after an error of the database the client reconnects with its last id */
        follower_end(follower, true);
        /* The next tick starts the queries for the other followers. */
        if (err)
            return;
    } else {
        const json_t *events = json_object_get(doc, "events");
        int64_t horizon = json_integer_value(json_object_get(doc, "horizon"));
        bool whole = json_array_size(events) < EVENTS_PAGE;
        if (send_page(follower, events) == 0 && whole && !follower->waiting) {
            if (!any_live(feed))
                feed->last = horizon;
            follower->last = horizon;
            follower->topics->live = true;
        }
    }
    feed_next(feed);
}

static int catch_up(struct cluster_feed *feed, struct follower *follower, struct err *err)
{
    const struct topics *topics = follower->topics;
    const struct store_feed_filter filter = {topics->queue, topics->jobs, topics->job_count};
    if (store_event_feed(feed->followers->app->store, follower->last, EVENTS_PAGE, &filter, caught_up, feed,
                         err) < 0) {
        follower_end(follower, true);
        return -1;
    }
    feed->catching = follower;
    follower->reading = true;
    return 0;
}

/* ---- the common page ---- */

static void live_page(void *arg, const struct err *err, json_t *doc)
{
    struct cluster_feed *feed = arg;
    struct follower *follower, *next;
    feed->reading = false;
    /* The next notification or tick tries again. */
    if (err) {
        feed->again = true;
        return;
    }
    const json_t *events = json_object_get(doc, "events");
    size_t count = json_array_size(events);
    for (follower = LIST_FIRST(&feed->followers->all); follower; follower = next) {
        next = LIST_NEXT(follower, link);
        if (follower->topics && follower->topics->live)
            send_page(follower, events);
    }
    if (count == EVENTS_PAGE) {
        feed->last = json_integer_value(json_object_get(json_array_get(events, count - 1), "id"));
        feed->again = true;
    } else {
        feed->last = json_integer_value(json_object_get(doc, "horizon"));
    }
    feed_next(feed);
}

static int read_live(struct cluster_feed *feed, struct err *err)
{
    bool queue = false;
    size_t count = 0;
    const struct follower *follower;
    int64_t *jobs = calloc((size_t)FOLLOWERS_MAX * JOBS_MAX, sizeof(*jobs));
    if (!jobs)
        return err_set(err, ERR_NOMEM, "out of memory for followers");
    LIST_FOREACH (follower, &feed->followers->all, link) {
        if (!follower->topics || !follower->topics->live)
            continue;
        queue |= follower->topics->queue;
        memcpy(jobs + count, follower->topics->jobs, follower->topics->job_count * sizeof(*jobs));
        count += follower->topics->job_count;
    }
    feed->again = false;
    const struct store_feed_filter filter = {queue, jobs, count};
    int rc =
        store_event_feed(feed->followers->app->store, feed->last, EVENTS_PAGE, &filter, live_page, feed, err);
    free(jobs);
    return rc;
}

/* ---- the state of queue and devices (`glance`) ---- */

/* Returns the devices whose state differs from `before` (NULL: all devices) as [{"name","state"}]. Devices
 * that no longer exist have the state "gone". */
static json_t *devices_changed(json_t *now, json_t *before)
{
    json_t *list = json_array(), *state;
    const char *name;
    json_object_foreach (now, name, state)
        if (!json_equal(state, json_object_get(before, name)))
            json_array_append_new(list, json_pack("{s:s, s:O}", "name", name, "state", state));
    json_object_foreach (before, name, state)
        if (!json_object_get(now, name))
            json_array_append_new(list, json_pack("{s:s, s:s}", "name", name, "state", "gone"));
    return list;
}

/* Tells one follower what has changed since `before`. Returns -1 when the client has gone. */
static int tell_glance(struct follower *follower, json_t *now, json_t *before)
{
    int rc = 0;
    json_t *jobs = json_object_get(now, "jobs");
    if (follower->topics->queue && !json_equal(jobs, json_object_get(before, "jobs"))) {
        json_t *data = json_pack("{s:O}", "jobs", jobs);
        rc = data ? follower_send(follower, "queue", -1, data) : -1;
        json_decref(data);
    }
    if (rc == 0 && follower->topics->devices) {
        json_t *list = devices_changed(json_object_get(now, "devices"), json_object_get(before, "devices"));
        json_t *data = json_array_size(list) || !before ? json_pack("{s:O}", "devices", list) : NULL;
        rc = data ? follower_send(follower, "devices", -1, data) : 0;
        json_decref(data);
        json_decref(list);
    }
    return rc;
}

static void glanced(void *arg, const struct err *err, json_t *doc)
{
    struct cluster_feed *feed = arg;
    struct follower *follower, *next;
    feed->reading = false;
    if (err) {
        feed->glance_due = true;
        return;
    }
    for (follower = LIST_FIRST(&feed->followers->all); follower; follower = next) {
        next = LIST_NEXT(follower, link);
        if (!follower->topics)
            continue;
        /* The whole state is sent when the client reads again. */
        if (follower->waiting) {
            follower->topics->fresh = true;
            continue;
        }
        json_t *before = follower->topics->fresh ? NULL : feed->glance;
        follower->topics->fresh = false;
        if (tell_glance(follower, doc, before) < 0 && !follower->reading)
            follower_end(follower, true);
    }
    json_decref(feed->glance);
    feed->glance = json_incref(doc);
    feed_next(feed);
}

/* ---- the next query ---- */

static struct follower *one_behind(const struct cluster_feed *feed)
{
    struct follower *follower;
    LIST_FOREACH (follower, &feed->followers->all, link)
        if (follower->topics && !follower->topics->live && !follower->waiting && !follower->gone)
            return follower;
    return NULL;
}

/* Begins this kind of work, if there is any. Returns 1 when it began a query. */
static int topics_begin(struct cluster_feed *feed, enum feed_work work)
{
    struct err err = {0};
    struct follower *behind;
    switch (work) {
    case WORK_CATCH_UP:
        behind = one_behind(feed);
        return behind && catch_up(feed, behind, &err) == 0;
    case WORK_LIVE:
        return feed->again && any_live(feed) && read_live(feed, &err) == 0;
    case WORK_GLANCE:
        if (!feed->glance_due)
            return 0;
        feed->glance_due = false;
        return store_glance(feed->followers->app->store, glanced, feed, &err) == 0;
    default:
        return 0;
    }
}

static void feed_next(struct cluster_feed *feed)
{
    for (unsigned i = 0; i < WORK_KINDS && !feed->reading; i++) {
        enum feed_work work = (feed->turn + i) % WORK_KINDS;
        if (topics_begin(feed, work)) {
            feed->reading = true;
            feed->turn = work + 1;
        }
    }
}

static void topics_on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct cluster_feed *feed = arg;
    feed->glance_due = true;
    feed_next(feed);
}

static void feed_notify(struct cluster_feed *feed)
{
    const struct timeval delay = {0, GLANCE_MS * 1000};
    const struct follower *follower;
    LIST_FOREACH (follower, &feed->followers->all, link)
        if (follower->topics)
            break;
    if (!follower)
        return;
    if (!evtimer_pending(feed->timer, NULL))
        evtimer_add(feed->timer, &delay);
    feed->again = true;
    feed_next(feed);
}

static void on_work(void *arg, const char *channel, const char *payload)
{
    (void)channel, (void)payload;
    feed_notify(arg);
}

int feed_create(struct app *app, struct cluster_feed **feed, struct err *err)
{
    struct followers *followers = app->followers;
    struct cluster_feed *made = calloc(1, sizeof(*made));
    if (made) {
        made->followers = followers;
        made->timer = evtimer_new(app->base, topics_on_timer, made);
    }
    if (!made || !made->timer || store_listen(app->store, "motley_jobs", on_work, made, err) < 0) {
        feed_destroy(made);
        return err->code ? -1 : err_set(err, ERR_NOMEM, "out of memory for followers");
    }
    followers->feed = *feed = made;
    followers->feed_notify = feed_notify;
    followers->feed_next = feed_next;
    return 0;
}

void feed_destroy(struct cluster_feed *feed)
{
    if (!feed)
        return;
    if (feed->timer)
        event_free(feed->timer);
    json_decref(feed->glance);
    free(feed);
}

/* ---- a request for a stream ---- */

struct request {
    struct topics *topics; /* owned until a follower takes it over */
    int64_t after;
    unsigned seen;   /* number of the jobs in `topics` that were found visible to the asker so far */
    json_t *refused; /* the data of `refused` events: [{"topic","code","detail"}] */
    struct err why;  /* the first refusal */
};

static void request_free(void *state)
{
    struct request *request = state;
    free(request->topics);
    json_decref(request->refused);
    free(request);
}

static void refuse_topic(struct request *request, const char *topic, const struct err *why)
{
    if (json_array_size(request->refused) == 0)
        request->why = *why;
    json_array_append_new(request->refused, json_pack("{s:s, s:s, s:s}", "topic", topic, "code",
                                                      err_code_name(why->code), "detail", why->text));
}

static int take_topic(struct call *call, struct request *request, const char *text)
{
    struct topics *topics = request->topics;
    struct err denied;
    char *end = NULL;
    long long job =
        strncmp(text, "job:", 4) == 0 && text[4] >= '1' && text[4] <= '9' ? strtoll(text + 4, &end, 10) : 0;
    if (strcmp(text, "queue") == 0) {
        topics->queue = true;
    } else if (strcmp(text, "devices") == 0 && !(call->principal.scopes & (SCOPE_NODES_READ | SCOPE_ADMIN))) {
        err_set(&denied, ERR_DENIED, "topics: devices needs the scope nodes:read");
        refuse_topic(request, text, &denied);
    } else if (strcmp(text, "devices") == 0) {
        topics->devices = true;
    } else if (job > 0 && !*end && topics->job_count < JOBS_MAX) {
        topics->jobs[topics->job_count++] = job;
    } else {
        call_problem(call, 400, "invalid", NULL,
                     "topics: \"%.40s\" is none of queue, devices, job:ID (of which %d at most)", text,
                     JOBS_MAX);
        return -1;
    }
    return 0;
}

static int take_topics(struct call *call, struct request *request)
{
    char text[40];
    const char *at = call_query(call, "topics");
    if (!at) {
        call_problem(call, 400, "invalid", NULL,
                     "topics: it is missing; queue, devices and job:ID are known");
        return -1;
    }
    for (; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        snprintf(text, sizeof(text), "%.*s", (int)strcspn(at, ","), at);
        if (take_topic(call, request, text) < 0)
            return -1;
    }
    return 0;
}

/* Begins the stream of the topics that were not refused, after the event request->after. */
static void topics_stream_begin(struct call *call, struct request *request)
{
    struct topics *topics = request->topics;
    struct cluster_feed *feed = call->app->followers->feed;
    size_t index;
    json_t *told;
    json_t *refused = json_incref(request->refused); /* the request ends with its stream */
    request->topics = NULL;
    topics->fresh = true;
    struct follower *follower = follower_create(call, request->after, topics);
    if (follower) {
        int rc = 0;
        follower->jobs = topics->jobs;
        follower->job_count = topics->job_count;
        feed->glance_due |= topics->queue || topics->devices;
        json_array_foreach (refused, index, told)
            rc = rc < 0 ? rc : follower_send(follower, "refused", -1, told);
        if (rc < 0)
            follower_end(follower, true);
        feed_next(feed);
    }
    json_decref(refused);
}

static void newest_found(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    struct request *request = call->state;
    if (err) {
        call_fail(call, err);
        return;
    }
    request->after = json_integer_value(json_object_get(doc, "horizon"));
    topics_stream_begin(call, request);
}

/* Begins the stream, or answers when all topics were refused. A stream without an id to resume from begins
 * after the newest event, which is read before the client is answered: what happens after the answer is sent.
 */
static void topics_known(struct call *call, struct request *request)
{
    const struct store_feed_filter nothing = {0};
    const struct topics *topics = request->topics;
    struct err err = {0};
    if (!topics->queue && !topics->devices && topics->job_count == 0)
        call_fail(call, &request->why);
    else if (request->after != NOTHING_BEFORE)
        topics_stream_begin(call, request);
    else if (store_event_feed(call->app->store, INT64_MAX, 1, &nothing, newest_found, call, &err) < 0)
        call_fail(call, &err);
}

/* Called with a job of the topics that was looked up. Looks up the next one, or goes on. */
static void job_seen(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    struct request *request = call->state;
    struct topics *topics = request->topics;
    struct err failed = {0};
    char topic[32];
    (void)doc;
    if (err && err->code != ERR_NOT_FOUND) {
        call_fail(call, err);
        return;
    }
    if (err) {
        const unsigned at = --request->seen;
        snprintf(topic, sizeof(topic), "job:%lld", (long long)topics->jobs[at]);
        refuse_topic(request, topic, err);
        topics->jobs[at] = topics->jobs[--topics->job_count];
    }
    if (request->seen == topics->job_count)
        topics_known(call, request);
    else if (store_job_get(call->app->store, &call->principal, topics->jobs[request->seen++], job_seen, call,
                           &failed) < 0)
        call_fail(call, &failed);
}

void events_get(struct call *call)
{
    struct request *request = calloc(1, sizeof(*request));
    if (request) {
        request->topics = calloc(1, sizeof(*request->topics));
        request->refused = json_array();
    }
    if (!request || !request->topics || !request->refused) {
        if (request)
            request_free(request);
        call_problem(call, 503, "no-memory", NULL, "out of memory for a stream");
        return;
    }
    call->state = request;
    call->state_free = request_free;
    if (take_topics(call, request) == 0 && follower_resume(call, NOTHING_BEFORE, &request->after) == 0)
        job_seen(call, NULL, NULL);
}
