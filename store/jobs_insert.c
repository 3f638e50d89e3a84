/* Inserts submitted jobs: many requests share one statement and one commit.
 *
 * Submits are collected in `waiting`. When a batch may be sent, the loop's next turn sends all of them (at
 * most job_batch_max) as one INSERT over arrays; so a single submit does not wait, and many submits share one
 * flush of the disk. Lifetime: the batcher owns a pending job until its batch is sent, then the batch owns
 * the job. Each pending job ends in exactly one callback.
 */
#include "store/jobs.h"
#include "store/store_private.h"

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
    char *spec, *inputs;             /* documents as JSON text */
    char *fetch;                     /* the model to fetch first, or NULL */
    char *refusal;                   /* why the database refused the job, or NULL */
    enum err_code refusal_code;      /* ERR_LIMIT: the queue has as many jobs of theirs as it may */
    char class_hex[DIGEST_HEX_SIZE]; /* "": the database computes the class */
};

struct job_batcher {
    struct event *kick;
    struct pending_job *first, **last;
    unsigned waiting, in_flight;
    bool kicked;
};

struct job_batch {
    struct store *store;
    unsigned count;
    struct pending_job *jobs[]; /* [count] */
};

/* The parameters are arrays with one element per job. Ids are taken before the insert, so that the result
 * rows keep the order of the array elements. `over` begins with "account:" where the queue is full for them,
 * or what their ended jobs left is too much, and with "placement:" where the job can never start under their
 * limits. motley_refused takes about 50 µs per job, so it is called only when somebody has a limit. */
/* clang-format off */
static const struct pg_statement insert_jobs = {
    "jobs_insert",
    "WITH given AS MATERIALIZED ("
    "  SELECT nextval('jobs_id_seq') AS id, g.* FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], "
    "    $5::json[], $6::json[], $7::bigint[], $8::text[], $9::bigint[], $10::bigint[], $11::bigint[], $12::text[], "
    "    $13::bigint[], $14::text[], $15::text[], $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[], $20::bigint[], $21::bigint[], $22::bigint[], $23::text[], $24::text[]) "
    "    WITH ORDINALITY AS g(owner, name, key, digest, spec, inputs, priority, state, retries, time_limit, steps, "
    "    who, token, address, account, service, begin_us, least, admin, depends, size, at_most, class, wants, n)), "
    "charged AS MATERIALIZED ("
    "  SELECT g.*, CASE WHEN u.disabled THEN format('user: %s is disabled', u.name) "
    "      WHEN g.account IS NOT NULL AND a.id IS NULL THEN "
    "        format('account: there is no group \"%s\" that %s is in', g.account, u.name) "
    "      ELSE CASE WHEN g.depends = 1 THEN motley_after_refused(g.spec, g.owner, g.admin = 1) END END AS wrong, "
    "    CASE WHEN u.devices_max > 0 OR u.queued_max > 0 OR u.kept_bytes_max > 0 OR coalesce(a.id, u.account, 0) > 0 AND "
    "          (SELECT EXISTS (SELECT 1 FROM groups WHERE devices_max > 0 OR queued_max > 0 OR kept_bytes_max > 0)) "
    "        THEN coalesce(motley_refused(g.owner, coalesce(a.id, u.account, 0), g.least, "
    "            row_number() OVER (PARTITION BY g.owner ORDER BY g.n)), "
    "          motley_kept_refused(g.owner, coalesce(a.id, u.account, 0))) END AS over, "
    "    coalesce(a.id, u.account, 0) AS leaf "
    "  FROM given g LEFT JOIN users u ON u.id = g.owner LEFT JOIN groups a ON a.name = g.account AND (g.admin = 1 OR "
    "    EXISTS (SELECT 1 FROM group_members m WHERE m.grp = a.id AND m.user_id = g.owner))), "
    "made AS ("
    "  INSERT INTO jobs (id, owner, name, idempotency_key, request_digest, spec, inputs, priority, state, "
    "                    retries_max, time_limit_ms, steps, labels, account, service, begin_at, depends, array_size, at_most, plan_class, why) "
    "  SELECT id, owner, name, key, decode(digest, 'hex'), spec, inputs, priority, state, retries, time_limit, steps, "
    "         (spec -> 'labels')::jsonb, leaf, service, CASE WHEN begin_us > 0 THEN to_timestamp(begin_us / 1e6) END, depends = 1, size, at_most, decode(nullif(class, ''), 'hex'), "
    "         'its model ' || wants || ' is to be fetched from the Hub' "
    "  FROM charged WHERE coalesce(wrong, over) IS NULL ORDER BY n "
    "  ON CONFLICT (owner, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING "
    "  RETURNING id, created_at, state), "
    "linked AS (INSERT INTO job_after (job, after, however) SELECT m.id, a.value::bigint, k.key = 'after_any' "
    "  FROM made m JOIN given g USING (id), (VALUES ('after'), ('after_any')) k(key), "
    "  json_array_elements_text(g.spec -> k.key) a WHERE g.depends = 1), "
    "counted AS (INSERT INTO job_counts (state, n) SELECT state, count(*) FROM made GROUP BY state), "
    "fetched AS (INSERT INTO job_fetches (job, hub, admin) SELECT m.id, g.wants, g.admin = 1 FROM made m JOIN given g USING (id) "
    "  WHERE g.wants IS NOT NULL), "
    "said AS (INSERT INTO audit (who, user_id, token, address, what, object, after) "
    "  SELECT g.who, g.owner, nullif(g.token, 0), nullif(g.address, ''), 'job.submit', m.id::text, "
    "    json_build_object('name', g.name, 'priority', g.priority) FROM made m JOIN given g USING (id)) "
    "SELECT g.n, m.id, (extract(epoch FROM m.created_at) * 1e6)::bigint, "
    "       CASE WHEN g.n = 1 THEN pg_notify('motley_jobs', '') END, coalesce(g.wrong, g.over), "
    "       g.wrong IS NULL AND coalesce(starts_with(g.over, 'account:'), false) "
    "FROM charged g LEFT JOIN made m USING (id) ORDER BY g.n",
    PG_WRITE};
/* clang-format on */

static const struct pg_statement find_by_key = {
    "jobs_find_by_key",
    "SELECT id, state, (extract(epoch FROM created_at) * 1e6)::bigint, encode(request_digest, 'hex') "
    "FROM jobs WHERE owner = $1 AND idempotency_key = $2",
    PG_READ};

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
    if (strcmp(pg_text(found, 0, 3), hex) != 0)
        return err_set(err, ERR_CONFLICT, "Idempotency-Key \"%s\" was used for another request (job %lld)",
                       key, (long long)pg_i64(found, 0, 0));
    *made = (struct store_job_made){
        .id = pg_i64(found, 0, 0),
        .state = (enum job_state)state_from_name(&job_machine, pg_text(found, 0, 1)),
        .created_us = pg_i64(found, 0, 2),
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
    pg_params_init(&params);
    pg_param_i64(&params, owner);
    pg_param_text(&params, key);
    int rc = pg_query(store->pg, &find_by_key, &params, done, arg, err);
    pg_params_fini(&params);
    return rc;
}

static void look_up_key(struct store *store, struct pending_job *job)
{
    struct err err;
    if (find_key(store, job->owner.id, job->key, key_found, job, &err) < 0)
        pending_fail(job, &err);
}

/* A search for the key that runs before the submitted job is checked. */
struct key_search {
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
    if (pg_is_null(result, row, 1)) {
        struct err why;
        job->refusal = pg_is_null(result, row, 4) ? NULL : strdup(pg_text(result, row, 4));
        job->refusal_code = pg_bool(result, row, 5) ? ERR_LIMIT : ERR_INVALID;
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
        .id = pg_i64(result, row, 1),
        .state = job->held ? JOB_HELD : JOB_QUEUED,
        .created_us = pg_i64(result, row, 2),
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
    if (store->batcher)
        store->batcher->in_flight--;
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

/* Adds one array parameter: the given field of all jobs of the batch, as texts or as numbers. */
#define GATHER_TEXT(params, batch, field)                                                                    \
    do {                                                                                                     \
        for (unsigned i_ = 0; i_ < (batch)->count; i_++) {                                                   \
            texts[i_] = (batch)->jobs[i_]->field;                                                            \
        }                                                                                                    \
        pg_param_text_array((params), texts, (batch)->count);                                                \
    } while (0)
#define GATHER_I64(params, batch, field)                                                                     \
    do {                                                                                                     \
        for (unsigned i_ = 0; i_ < (batch)->count; i_++) {                                                   \
            numbers[i_] = (batch)->jobs[i_]->field;                                                          \
        }                                                                                                    \
        pg_param_i64_array((params), numbers, (batch)->count);                                               \
    } while (0)

static int batch_send(struct job_batch *batch, struct err *err)
{
    const char **texts = calloc(batch->count, sizeof(*texts));
    int64_t *numbers = calloc(batch->count, sizeof(*numbers));
    struct pg_params params;
    int rc = -1;

    pg_params_init(&params);
    if (!texts || !numbers) {
        err_set(err, ERR_NOMEM, "no memory for a batch of %u jobs", batch->count);
        goto out;
    }
    GATHER_I64(&params, batch, owner.id);
    GATHER_TEXT(&params, batch, name);
    GATHER_TEXT(&params, batch, key);
    GATHER_TEXT(&params, batch, digest_hex);
    GATHER_TEXT(&params, batch, spec);
    GATHER_TEXT(&params, batch, inputs);
    GATHER_I64(&params, batch, priority);
    GATHER_TEXT(&params, batch, held ? "held" : "queued");
    GATHER_I64(&params, batch, retries_max);
    GATHER_I64(&params, batch, time_limit_ms);
    GATHER_I64(&params, batch, steps);
    GATHER_TEXT(&params, batch, owner.name);
    GATHER_I64(&params, batch, owner.token);
    GATHER_TEXT(&params, batch, owner.address);
    GATHER_TEXT(&params, batch, account);
    GATHER_I64(&params, batch, service);
    GATHER_I64(&params, batch, begin_us);
    GATHER_I64(&params, batch, devices_least);
    GATHER_I64(&params, batch, owner.admin);
    GATHER_I64(&params, batch, depends);
    GATHER_I64(&params, batch, array_size);
    GATHER_I64(&params, batch, at_most);
    GATHER_TEXT(&params, batch, class_hex);
    GATHER_TEXT(&params, batch, fetch);
    rc = pg_query(batch->store->pg, &insert_jobs, &params, batch_done, batch, err);
out:
    pg_params_fini(&params);
    free(texts);
    free(numbers);
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
    if (batch_send(batch, &err) < 0) {
        store->batcher->in_flight--;
        for (unsigned i = 0; i < count; i++)
            pending_fail(jobs[i], &err);
        free(batch);
    }
}

static void send_one(struct store *store, struct pending_job *job)
{
    send_jobs(store, &job, 1);
}

static void send_batches(struct store *store)
{
    struct job_batcher *batcher = store->batcher;
    while (batcher->first && batcher->in_flight < store->config.job_batches_max) {
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

static char *print_document(const char *what, const json_t *value, struct err *err)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
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
    job->spec = print_document("specification", new->spec, err);
    job->inputs = job->spec ? print_document("inputs", new->inputs, err) : NULL;
    if (!job->inputs) {
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
    if (!batcher->kicked && batcher->in_flight < store->config.job_batches_max) {
        batcher->kicked = true;
        event_active(batcher->kick, 0, 0);
    }
    return 0;
}
