/* Inserts submitted jobs: many requests share one statement and one commit.
 *
 * Submits are collected in `waiting`. When a batch may be sent (jobs_insert_may_send), the loop's next turn
 * sends all of them (at most job_batch_max) as one INSERT over arrays; so a single submit does not wait, and
 * many submits share one flush of the disk. Lifetime: the batcher owns a pending job until its batch is sent,
 * then the batch owns the job. Each pending job ends in exactly one callback.
 */
#include "store/jobs.h"
#include "store/jobs_insert.sql.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/digest.h"
#include "common/json.h"

enum { JOB_BATCH_MAX = 1024 };

struct pending_job {
    struct pending_job *next;
    store_job_made_fn *done;
    void *arg;
    struct principal owner;
    int64_t steps, time_limit_ms, begin_us, service, devices_least, depends, array_size, at_most;
    int32_t priority;
    uint32_t retries_max;
    bool held;
    char *name, *key, *digest_hex;   /* NULL without an idempotency key */
    char *account;                   /* name of the group that is charged, or NULL */
    char *spec, *inputs, *labels;    /* documents as JSON text; labels NULL: none */
    char *fetch;                     /* the model to fetch first, or NULL */
    char *refusal;                   /* why the database refused the job, or NULL */
    enum err_code refusal_code;      /* ERR_LIMIT: the queue has as many jobs of theirs as it may */
    char class_hex[DIGEST_HEX_SIZE]; /* "": the database computes the class */
};

struct job_batcher {
    struct event *kick;
    struct pending_job *first, **last;
    unsigned waiting, in_flight, jobs_in_flight; /* jobs that wait; batches under way, and their jobs */
    bool kicked;
};

struct job_batch {
    struct store *store;
    unsigned count;
    struct pending_job *jobs[]; /* [count] */
};

static void pending_destroy(struct pending_job *job)
{
    if (!job)
        return;
    free(job->name);
    free(job->key);
    free(job->account);
    free(job->fetch);
    free(job->refusal);
    free(job->digest_hex);
    free(job->spec);
    free(job->inputs);
    free(job->labels);
    free(job);
}

static void pending_fail(struct pending_job *job, const struct err *err)
{
    job->done(job->arg, err, NULL);
    pending_destroy(job);
}

/* ---- keys that were used before ---- */

/* Reads the job that find_by_key found. ERR_CONFLICT when another request made it, ERR_NOT_FOUND without a
 * row. */
static int key_read(const struct pg_result *found, const char *key, const char *hex,
                    struct store_job_made *made, struct err *err)
{
    if (pg_rows(found) == 0)
        return err_set(err, ERR_NOT_FOUND, "no job was made with the Idempotency-Key \"%s\"", key);
    if (strcmp(pg_text(found, 0, JOBS_FIND_BY_KEY_DIGEST), hex) != 0)
        return err_set(err, ERR_CONFLICT, "Idempotency-Key \"%s\" was used for another request (job %lld)",
                       key, (long long)pg_i64(found, 0, JOBS_FIND_BY_KEY_ID));
    *made = (struct store_job_made){
        .id = pg_i64(found, 0, JOBS_FIND_BY_KEY_ID),
        .state = (enum job_state)state_from_name(&job_machine, pg_text(found, 0, JOBS_FIND_BY_KEY_STATE)),
        .created_us = pg_i64(found, 0, JOBS_FIND_BY_KEY_CREATED_US),
        .repeated = true,
    };
    return 0;
}

static void key_found(void *arg, const struct pg_result *const *results, int count, const struct err *err)
{
    struct pending_job *job = arg;
    struct store_job_made made;
    struct err why = *err;
    (void)count;
    if (!why.code)
        key_read(results[0], job->key, job->digest_hex, &made, &why);
    if (why.code == ERR_NOT_FOUND && job->refusal)
        err_set(&why, job->refusal_code, "%s", job->refusal);
    else if (why.code == ERR_NOT_FOUND)
        err_set(&why, ERR_BUSY, "another request with this Idempotency-Key is under way: try again");
    job->done(job->arg, why.code ? &why : NULL, why.code ? NULL : &made);
    pending_destroy(job);
}

static int find_key(struct store *store, int64_t owner, const char *key, pg_done_fn *done, void *arg,
                    struct err *err)
{
    struct pg_params params;
    sql_jobs_find_by_key(&params, owner, key);
    int rc = pg_query(store->pg, params.statement, &params, done, arg, err);
    pg_params_fini(&params);
    return rc;
}

static void look_up_key(struct store *store, struct pending_job *job)
{
    struct err err;
    if (find_key(store, job->owner.id, job->key, key_found, job, &err) < 0)
        pending_fail(job, &err);
}

/* The scheduler is woken after the commit, also where the commit's answer was lost. One that was woken for
 * another batch in between finds these jobs, too. Where no wake-up comes, since the api died or the statement
 * failed, an idle scheduler looks by itself (LOOK_IDLE_NS of scheduler/scheduler.c). */
static void scheduler_woken(void *arg, const struct pg_result *const *results, int count,
                            const struct err *err)
{
    (void)arg, (void)results, (void)count, (void)err;
}

static void wake_scheduler(struct store *store)
{
    struct pg_params params;
    struct err ignored; /* the queue of statements is full, or the store is closing */
    sql_jobs_wake(&params);
    pg_query(store->pg, params.statement, &params, scheduler_woken, NULL, &ignored);
    pg_params_fini(&params);
}

/* A search for the key that runs before the submitted job is checked. */
struct key_search {
    struct store *store;
    store_job_made_fn *done;
    void *arg;
    char hex[DIGEST_HEX_SIZE], key[STORE_NAME_MAX + 1];
};

static void search_found(void *arg, const struct pg_result *const *results, int count, const struct err *err)
{
    struct key_search *search = arg;
    struct store_job_made made;
    struct err why = *err;
    (void)count;
    if (!why.code)
        key_read(results[0], search->key, search->hex, &made, &why);
    if (!why.code)
        wake_scheduler(search->store);
    search->done(search->arg, why.code ? &why : NULL, why.code ? NULL : &made);
    free(search);
}

int store_job_find(struct store *store, const struct principal *owner, const char *key,
                   const uint8_t digest[32], store_job_made_fn *done, void *arg, struct err *err)
{
    if (store_check_text("Idempotency-Key", key, STORE_NAME_MAX, err) < 0)
        return -1;
    struct key_search *search = calloc(1, sizeof(*search));
    if (!search)
        return err_set(err, ERR_NOMEM, "no memory for a search");
    search->store = store;
    search->done = done;
    search->arg = arg;
    snprintf(search->key, sizeof(search->key), "%s", key);
    digest_hex(digest, DIGEST_SIZE, search->hex);
    if (find_key(store, owner->id, key, search_found, search, err) < 0) {
        free(search);
        return -1;
    }
    return 0;
}

/* ---- batches ---- */

static void send_batches(struct store *store);
static void send_one(struct store *store, struct pending_job *job);

static void job_answered(struct store *store, struct pending_job *job, const struct pg_result *result,
                         int row)
{
    if (pg_is_null(result, row, JOBS_INSERT_ID)) {
        struct err why;
        job->refusal = pg_is_null(result, row, JOBS_INSERT_REFUSAL)
                           ? NULL
                           : strdup(pg_text(result, row, JOBS_INSERT_REFUSAL));
        job->refusal_code = pg_bool(result, row, JOBS_INSERT_FULL) ? ERR_LIMIT : ERR_INVALID;
        /* A repeated request gets the job that the first one made, even if the limits would refuse it now. */
        if (job->key) {
            look_up_key(store, job);
        } else {
            err_set(&why, job->refusal_code, "%s", job->refusal ? job->refusal : "the job was refused");
            pending_fail(job, &why);
        }
        return;
    }
    const struct store_job_made made = {
        .id = pg_i64(result, row, JOBS_INSERT_ID),
        .state = job->held ? JOB_HELD : JOB_QUEUED,
        .created_us = pg_i64(result, row, JOBS_INSERT_CREATED_US),
    };
    job->done(job->arg, NULL, &made);
    pending_destroy(job);
}

/* Whether the batch is sent again, each job alone, since one row that the database refuses fails its whole
 * batch. */
static bool worth_splitting(const struct store *store, const struct job_batch *batch, const struct err *err)
{
    return store->batcher && batch->count > 1 &&
           (err->code == ERR_INVALID || err->code == ERR_CONFLICT || err->code == ERR_INTERNAL);
}

static void batch_done(void *arg, const struct pg_result *const *results, int count, const struct err *err)
{
    struct job_batch *batch = arg;
    struct store *store = batch->store;
    (void)count;
    if (store->batcher) {
        store->batcher->in_flight--;
        store->batcher->jobs_in_flight -= batch->count;
    }
    if (store->batcher && (!err->code || err->code == ERR_NET || err->code == ERR_TIMEOUT))
        wake_scheduler(store);
    bool split = err->code != ERR_NONE && worth_splitting(store, batch, err);
    for (unsigned i = 0; i < batch->count; i++)
        if (err->code == ERR_NONE)
            job_answered(store, batch->jobs[i], results[0], (int)i);
        else if (split)
            send_one(store, batch->jobs[i]);
        else
            pending_fail(batch->jobs[i], err);
    free(batch);
    if (store->batcher)
        send_batches(store);
}

/* One cell of a column: the value of one job. */
union job_cell {
    const char *text;
    int64_t number;
};
enum { JOB_CELLS = sizeof(struct sql_jobs_insert) / sizeof(void *) - 1 }; /* the columns; the count is none */

static bool batch_is_plain(const struct job_batch *batch)
{
    for (unsigned i = 0; i < batch->count; i++)
        if (batch->jobs[i]->account || batch->jobs[i]->depends || batch->jobs[i]->fetch)
            return false;
    return true;
}

static int batch_send(struct job_batch *batch, struct err *err)
{
    union job_cell *cells = calloc((size_t)batch->count * JOB_CELLS, sizeof(*cells)), *next = cells;
    struct sql_jobs_insert of = {.n = batch->count};
    struct sql_jobs_insert_plain plain = {.n = batch->count};
    struct pg_params params;
    if (!cells)
        return err_set(err, ERR_NOMEM, "no memory for a batch of %u jobs", batch->count);
/* Fills the next column with a field of all jobs. BOTH: a column that both statements have. */
#define GATHER(kind, column, field)                                                                          \
    do {                                                                                                     \
        of.column = &next->kind;                                                                             \
        for (unsigned i_ = 0; i_ < batch->count; i_++)                                                       \
            next++->kind = batch->jobs[i_]->field;                                                           \
    } while (0)
#define BOTH(kind, column, field)                                                                            \
    do {                                                                                                     \
        GATHER(kind, column, field);                                                                         \
        plain.column = of.column;                                                                            \
    } while (0)
    BOTH(number, owner, owner.id);
    BOTH(text, name, name);
    BOTH(text, key, key);
    BOTH(text, digest, digest_hex);
    BOTH(text, spec, spec);
    BOTH(text, inputs, inputs);
    BOTH(number, priority, priority);
    BOTH(text, state, held ? "held" : "queued");
    BOTH(number, retries, retries_max);
    BOTH(number, time_limit, time_limit_ms);
    BOTH(number, steps, steps);
    BOTH(text, who, owner.name);
    BOTH(number, token, owner.token);
    BOTH(text, address, owner.address);
    BOTH(text, labels, labels);
    BOTH(number, service, service);
    BOTH(number, begin_us, begin_us);
    BOTH(number, least, devices_least);
    BOTH(number, size, array_size);
    BOTH(number, at_most, at_most);
    BOTH(text, class, class_hex);
    GATHER(text, account, account);
    GATHER(number, admin, owner.admin);
    GATHER(number, depends, depends);
    GATHER(text, wants, fetch);
#undef BOTH
#undef GATHER
    if (batch_is_plain(batch))
        sql_jobs_insert_plain(&params, &plain);
    else
        sql_jobs_insert(&params, &of);
    int rc = pg_query(batch->store->pg, params.statement, &params, batch_done, batch, err);
    pg_params_fini(&params);
    free(cells);
    return rc;
}

static struct pending_job *batcher_pop(struct job_batcher *batcher)
{
    struct pending_job *job = batcher->first;
    batcher->first = job->next;
    if (!batcher->first)
        batcher->last = &batcher->first;
    batcher->waiting--;
    return job;
}

/* Sends `count` jobs as one statement, and takes ownership of them. */
static void send_jobs(struct store *store, struct pending_job *const *jobs, unsigned count)
{
    struct err err;
    struct job_batch *batch = calloc(1, sizeof(*batch) + count * sizeof(struct pending_job *));
    if (!batch) {
        err_set(&err, ERR_NOMEM, "no memory for a batch of %u jobs", count);
        for (unsigned i = 0; i < count; i++)
            pending_fail(jobs[i], &err);
        return;
    }
    batch->store = store;
    batch->count = count;
    memcpy(batch->jobs, jobs, count * sizeof(struct pending_job *));
    store->batcher->in_flight++;
    store->batcher->jobs_in_flight += count;
    if (batch_send(batch, &err) < 0) {
        store->batcher->in_flight--;
        store->batcher->jobs_in_flight -= count;
        for (unsigned i = 0; i < count; i++)
            pending_fail(jobs[i], &err);
        free(batch);
    }
}

static void send_one(struct store *store, struct pending_job *job)
{
    send_jobs(store, &job, 1);
}

/* A second batch begins beside the first one once half as many jobs wait as are under way. Without that the
 * first of many clients to submit anew would get a statement of its own, which costs as much as four more
 * jobs, and the others would wait for both. */
static bool jobs_insert_may_send(const struct store *store)
{
    const struct job_batcher *batcher = store->batcher;
    return batcher->first &&
           (batcher->in_flight == 0 || (batcher->in_flight < store->config.job_batches_max &&
                                        batcher->waiting >= batcher->jobs_in_flight / 2));
}

static void send_batches(struct store *store)
{
    struct job_batcher *batcher = store->batcher;
    while (jobs_insert_may_send(store)) {
        struct pending_job *jobs[JOB_BATCH_MAX];
        unsigned count = 0;
        while (batcher->first && count < store->config.job_batch_max)
            jobs[count++] = batcher_pop(batcher);
        send_jobs(store, jobs, count);
    }
}

static void kicked(evutil_socket_t fd, short what, void *arg)
{
    struct store *store = arg;
    (void)fd;
    (void)what;
    store->batcher->kicked = false;
    send_batches(store);
}

int store_batcher_create(struct store *store, struct err *err)
{
    struct job_batcher *batcher = calloc(1, sizeof(*batcher));
    if (!batcher)
        return err_set(err, ERR_NOMEM, "no memory for the job batcher");
    if (store->config.job_batch_max > JOB_BATCH_MAX)
        store->config.job_batch_max = JOB_BATCH_MAX;
    batcher->last = &batcher->first;
    batcher->kick = event_new(store->base, -1, 0, kicked, store);
    if (!batcher->kick) {
        free(batcher);
        return err_set(err, ERR_NOMEM, "no memory for the job batcher");
    }
    store->batcher = batcher;
    wake_scheduler(store);
    return 0;
}

void store_batcher_destroy(struct store *store)
{
    struct job_batcher *batcher = store->batcher;
    struct err err;
    if (!batcher)
        return;
    store->batcher = NULL;
    event_free(batcher->kick);
    err_set(&err, ERR_CANCELLED, "the store was closed");
    while (batcher->first)
        pending_fail(batcher_pop(batcher), &err);
    free(batcher);
}

/* ---- one submit ---- */

static int check_new_job(const struct store_job_new *job, struct err *err)
{
    if (store_check_text("the job's name", job->name, STORE_NAME_MAX, err) < 0)
        return -1;
    if (job->idempotency_key &&
        store_check_text("Idempotency-Key", job->idempotency_key, STORE_NAME_MAX, err) < 0) {
        return -1;
    }
    if (job->idempotency_key && !job->request_digest)
        return err_set(err, ERR_INTERNAL, "a submit with an Idempotency-Key needs the request's digest");
    return 0;
}

/* Returns the document as text, new: a copy of `known`, if that is not NULL. */
static char *print_document(const char *what, const json_t *value, const char *known, struct err *err)
{
    char *text = known ? strdup(known) : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text) {
        err_set(err, ERR_NOMEM, "no memory for the job's %s", what);
    } else if (strlen(text) > STORE_SPEC_MAX) {
        err_set(err, ERR_TOO_BIG, "the job's %s has %zu bytes, more than %u", what, strlen(text),
                STORE_SPEC_MAX);
        free(text);
        text = NULL;
    }
    return text;
}

static struct pending_job *pending_create(const struct store_job_new *new, struct err *err)
{
    struct pending_job *job = calloc(1, sizeof(*job));
    if (!job) {
        err_set(err, ERR_NOMEM, "no memory for a job");
        return NULL;
    }
    job->owner = *new->owner;
    job->priority = new->priority;
    job->held = new->held || new->fetch;
    job->retries_max = new->retries_max;
    job->time_limit_ms = new->time_limit_ms;
    job->steps = new->steps;
    job->begin_us = new->begin_us;
    job->service = new->service;
    job->devices_least = new->devices_least;
    job->array_size = new->array_size;
    job->at_most = new->at_most;
    if (new->plan_class)
        digest_hex(new->plan_class, DIGEST_SIZE, job->class_hex);
    job->depends = json_object_get(new->spec, "after") || json_object_get(new->spec, "after_any");
    job->name = strdup(new->name);
    job->account = new->account ? strdup(new->account) : NULL;
    job->fetch = new->fetch ? strdup(new->fetch) : NULL;
    bool whole = job->name && (job->account || !new->account) && (job->fetch || !new->fetch);
    if (new->idempotency_key) {
        job->key = strdup(new->idempotency_key);
        job->digest_hex = malloc(DIGEST_HEX_SIZE);
        whole = whole && job->key && job->digest_hex;
        if (job->digest_hex)
            digest_hex(new->request_digest, DIGEST_SIZE, job->digest_hex);
    }
    if (!whole) {
        err_set(err, ERR_NOMEM, "no memory for a job");
        pending_destroy(job);
        return NULL;
    }
    const json_t *labels = json_object_get(new->spec, "labels");
    job->spec = print_document("specification", new->spec, new->spec_text, err);
    job->inputs = job->spec ? print_document("inputs", new->inputs, new->inputs_text, err) : NULL;
    job->labels = job->inputs && labels ? print_document("labels", labels, NULL, err) : NULL;
    if (!job->inputs || (labels && !job->labels)) {
        pending_destroy(job);
        return NULL;
    }
    return job;
}

int store_job_insert(struct store *store, const struct store_job_new *new, store_job_made_fn *done, void *arg,
                     struct err *err)
{
    struct job_batcher *batcher = store->batcher;
    if (!batcher)
        return err_set(err, ERR_CANCELLED, "the store is closed");
    if (check_new_job(new, err) < 0)
        return -1;
    if (batcher->waiting >= store->config.job_batch_max * 64)
        return err_set(err, ERR_BUSY, "%u submits wait for the database: try again later", batcher->waiting);
    struct pending_job *job = pending_create(new, err);
    if (!job)
        return -1;
    job->done = done;
    job->arg = arg;
    *batcher->last = job;
    batcher->last = &job->next;
    batcher->waiting++;
    if (!batcher->kicked && jobs_insert_may_send(store)) {
        batcher->kicked = true;
        event_active(batcher->kick, 0, 0);
    }
    return 0;
}
