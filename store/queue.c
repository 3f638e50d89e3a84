/* The queue in memory: an array of jobs, a hash table from ids to indices of the array, and two tables of
 * values that many jobs share (leaves and classes). When a job leaves the queue, the last job of the array
 * moves to its place. */
#include "store/queue.sql.h"
#include "store/queue_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/hash.h"

/* The tables of leaves and classes only grow. When they hold more than UNUSED_MAX entries beyond twice those
 * in use, the queue is read again from the start. */
enum { UNUSED_MAX = 4096 };

/* ---- tables of values that many jobs share ---- */

struct shared_entry {
    uint8_t key[DIGEST_SIZE];
    size_t count; /* number of jobs that have this value */
};

struct shared_table {
    struct shared_entry *entries;
    size_t count, capacity, used; /* used: number of entries that a job has */
    uint32_t *slots;              /* [slot_count] index of the entry, plus 1; 0: the slot is empty */
    size_t slot_count;            /* a power of two, at most two thirds of them used */
};

struct store_queue {
    struct store_sched_job *jobs;
    size_t count, capacity;
    uint32_t *slots; /* hash table of jobs by id, as in struct shared_table */
    size_t slot_count;
    struct shared_table leaves, classes;
    char *snapshot;
    unsigned forgotten; /* number of calls of store_queue_forget so far */
};

static size_t hash_key(const uint8_t *key, size_t size)
{
    const uint64_t hash = hash_bytes(HASH_BEGIN, key, size);
    return (size_t)(hash ^ (hash >> 32));
}

static size_t hash_id(int64_t id)
{
    return (size_t)(((uint64_t)id * 0x9e3779b97f4a7c15u) >> 24); /* Fibonacci hashing */
}

/* Returns an empty hash table with room for `count` items, new, and the number of its slots; NULL with
 * ERR_NOMEM. */
static uint32_t *slots_create(size_t count, size_t *slot_count, struct err *err)
{
    size_t slots = 64;
    while (2 * slots <= 3 * count)
        slots *= 2;
    uint32_t *made = calloc(slots, sizeof(*made));
    if (!made)
        err_set(err, ERR_NOMEM, "no memory for the queue");
    *slot_count = made ? slots : 0;
    return made;
}

static void shared_place(struct shared_table *table, size_t index)
{
    size_t slot = hash_key(table->entries[index].key, DIGEST_SIZE) & (table->slot_count - 1);
    while (table->slots[slot] != 0)
        slot = (slot + 1) & (table->slot_count - 1);
    table->slots[slot] = (uint32_t)index + 1;
}

static int shared_grow(struct shared_table *table, struct err *err)
{
    if (ARRAY_RESERVE(table->entries, table->capacity, table->count + 1, err) < 0)
        return -1;
    if (3 * (table->count + 1) < 2 * table->slot_count)
        return 0;
    free(table->slots);
    table->slots = slots_create(table->count + 1, &table->slot_count, err);
    for (size_t i = 0; table->slots && i < table->count; i++)
        shared_place(table, i);
    return table->slots ? 0 : -1;
}

/* Counts one more job with the key, and adds the entry if it is missing. Returns the entry's index, or -1
 * with ERR_NOMEM. */
static int64_t shared_add(struct shared_table *table, const uint8_t key[DIGEST_SIZE], struct err *err)
{
    if (shared_grow(table, err) < 0)
        return -1;
    size_t slot = hash_key(key, DIGEST_SIZE) & (table->slot_count - 1);
    while (table->slots[slot] != 0 &&
           memcmp(table->entries[table->slots[slot] - 1].key, key, DIGEST_SIZE) != 0)
        slot = (slot + 1) & (table->slot_count - 1);
    if (table->slots[slot] == 0) {
        memcpy(table->entries[table->count].key, key, DIGEST_SIZE);
        table->entries[table->count].count = 0;
        table->slots[slot] = (uint32_t)++table->count;
    }
    struct shared_entry *entry = &table->entries[table->slots[slot] - 1];
    table->used += entry->count++ == 0 ? 1 : 0;
    return (int64_t)table->slots[slot] - 1;
}

static void shared_drop(struct shared_table *table, uint32_t index)
{
    table->used -= --table->entries[index].count == 0 ? 1 : 0;
}

static void shared_fini(struct shared_table *table)
{
    free(table->entries);
    free(table->slots);
    *table = (struct shared_table){0};
}

/* ---- jobs by id ---- */

/* Returns the slot of the job with this id, or the empty slot where it would be put. */
static size_t queue_slot_of(const struct store_queue *queue, int64_t id)
{
    size_t slot = hash_id(id) & (queue->slot_count - 1);
    while (queue->slots[slot] != 0 && queue->jobs[queue->slots[slot] - 1].id != id)
        slot = (slot + 1) & (queue->slot_count - 1);
    return slot;
}

static int jobs_grow(struct store_queue *queue, struct err *err)
{
    if (queue->count == queue->capacity) { /* The array grows by an eighth, as a queue may be large. */
        const size_t capacity = queue->count + queue->count / 8 + 64;
        struct store_sched_job *jobs = realloc(queue->jobs, capacity * sizeof(*jobs));
        if (!jobs)
            return err_set(err, ERR_NOMEM, "no memory for the queue");
        queue->jobs = jobs;
        queue->capacity = capacity;
    }
    if (3 * (queue->count + 1) < 2 * queue->slot_count)
        return 0;
    free(queue->slots);
    queue->slots = slots_create(queue->count + 1, &queue->slot_count, err);
    for (size_t i = 0; queue->slots && i < queue->count; i++)
        queue->slots[queue_slot_of(queue, queue->jobs[i].id)] = (uint32_t)i + 1;
    return queue->slots ? 0 : -1;
}

/* Empties the slot. Items after it that a search would no longer find move up (Knuth, algorithm R). */
static void slot_empty(struct store_queue *queue, size_t slot)
{
    const size_t mask = queue->slot_count - 1;
    queue->slots[slot] = 0;
    for (size_t next = (slot + 1) & mask; queue->slots[next] != 0; next = (next + 1) & mask) {
        const size_t home = hash_id(queue->jobs[queue->slots[next] - 1].id) & mask;
        if (((next - home) & mask) < ((next - slot) & mask))
            continue;
        queue->slots[slot] = queue->slots[next];
        queue->slots[next] = 0;
        slot = next;
    }
}

static void job_fini(struct store_queue *queue, struct store_sched_job *job)
{
    shared_drop(&queue->leaves, job->leaf);
    shared_drop(&queue->classes, job->class);
    free(job->why);
    free(job->avoid);
}

static void job_remove(struct store_queue *queue, int64_t id)
{
    const size_t slot = queue->slot_count > 0 ? queue_slot_of(queue, id) : 0;
    if (queue->slot_count == 0 || queue->slots[slot] == 0)
        return;
    struct store_sched_job *job = &queue->jobs[queue->slots[slot] - 1];
    const struct store_sched_job *last = &queue->jobs[queue->count - 1];
    const size_t last_slot = queue_slot_of(queue, last->id);
    job_fini(queue, job);
    *job = *last;
    queue->slots[last_slot] = queue->slots[slot];
    slot_empty(queue, slot);
    queue->count--;
}

/* ---- reading rows ---- */

void store_read_job(const struct pg_result *result, int row, struct store_sched_job *job)
{
    *job = (struct store_sched_job){
        .id = pg_i64(result, row, JOB_ROW_ID),
        .owner = pg_i64(result, row, JOB_ROW_OWNER),
        .priority = (int32_t)pg_i64(result, row, JOB_ROW_PRIORITY),
        .state = (enum job_state)state_from_name(&job_machine, pg_text(result, row, JOB_ROW_STATE)),
        .stop_why = stop_why_from_name(
            pg_is_null(result, row, JOB_ROW_STOP_WHY) ? NULL : pg_text(result, row, JOB_ROW_STOP_WHY)),
        .attempt = (uint32_t)pg_i64(result, row, JOB_ROW_ATTEMPT),
        .losses = (uint32_t)pg_i64(result, row, JOB_ROW_LOSSES),
        .retries_max = (uint32_t)pg_i64(result, row, JOB_ROW_RETRIES_MAX),
        .time_limit_ms = pg_i64(result, row, JOB_ROW_TIME_LIMIT_MS),
        .used_ms = pg_i64(result, row, JOB_ROW_USED_MS),
        .not_before_us = pg_i64(result, row, JOB_ROW_NOT_BEFORE_US),
        .steps = pg_i64(result, row, JOB_ROW_STEPS),
        .run = pg_i64(result, row, JOB_ROW_RUN),
        .account = pg_i64(result, row, JOB_ROW_ACCOUNT),
        .service = (unsigned)pg_i64(result, row, JOB_ROW_SERVICE),
        .eligible_us = pg_i64(result, row, JOB_ROW_ELIGIBLE_US),
        .begin_us = pg_i64(result, row, JOB_ROW_BEGIN_US),
        .reported = pg_i64(result, row, JOB_ROW_REPORTED),
        .starts_us = pg_i64(result, row, JOB_ROW_STARTS_US),
        .wait_subject = pg_i64(result, row, JOB_ROW_WAIT_SUBJECT),
        .checkpoint_step = -1,
    };
    snprintf(job->wait_code, sizeof(job->wait_code), "%s", pg_text(result, row, JOB_ROW_WAIT_CODE));
}

/* Copies a column's text; NULL for null. Returns -1 without memory. */
static int queue_copy_text(const struct pg_result *result, int row, int column, char **text, struct err *err)
{
    *text = pg_is_null(result, row, column) ? NULL : strdup(pg_text(result, row, column));
    return *text || pg_is_null(result, row, column) ? 0 : err_set(err, ERR_NOMEM, "no memory for the queue");
}

static int job_add(struct store_queue *queue, const struct pg_result *result, int row, struct err *err)
{
    struct store_sched_job job;
    uint8_t leaf[DIGEST_SIZE] = {0}, class[DIGEST_SIZE] = {0};
    store_read_job(result, row, &job);
    memcpy(leaf, &job.owner, sizeof(job.owner));
    memcpy(leaf + sizeof(job.owner), &job.account, sizeof(job.account));
    pg_bytes(result, row, QUEUE_ROW_CLASS, class, sizeof(class));
    if (!pg_is_null(result, row, QUEUE_ROW_STEP))
        job.checkpoint_step = pg_i64(result, row, QUEUE_ROW_STEP);
    if (jobs_grow(queue, err) < 0)
        return -1;
    const int64_t leaf_index = shared_add(&queue->leaves, leaf, err);
    const int64_t class_index = leaf_index < 0 ? -1 : shared_add(&queue->classes, class, err);
    if (class_index < 0)
        return -1;
    job.leaf = (uint32_t)leaf_index;
    job.class = (uint32_t)class_index;
    struct store_sched_job *to = &queue->jobs[queue->count];
    *to = job;
    queue->slots[queue_slot_of(queue, job.id)] = (uint32_t)++queue->count;
    return queue_copy_text(result, row, JOB_ROW_WHY, &to->why, err) < 0
               ? -1
               : queue_copy_text(result, row, QUEUE_ROW_AVOID, &to->avoid, err);
}

static int queue_take_row(struct store_queue *queue, const struct pg_result *result, int row, struct err *err)
{
    if (pg_is_null(result, row, JOB_ROW_ID))
        return 0;
    job_remove(queue, pg_i64(result, row, JOB_ROW_ID));
    return pg_bool(result, row, QUEUE_ROW_WAITS) ? job_add(queue, result, row, err) : 0;
}

static bool is_crowded(const struct shared_table *table)
{
    return table->count > 2 * table->used + UNUSED_MAX;
}

int store_queue_take(struct store_queue *queue, const struct pg_result *result, struct err *err)
{
    int rc = 0;
    for (int row = 0; row < pg_rows(result) && rc == 0; row++)
        rc = queue_take_row(queue, result, row, err);
    if (rc == 0 && pg_rows(result) > 0) {
        free(queue->snapshot);
        rc = queue_copy_text(result, 0, QUEUE_ROW_SEEN, &queue->snapshot, err);
    }
    if (rc < 0) {
        store_queue_forget(queue);
    } else if (is_crowded(&queue->leaves) || is_crowded(&queue->classes)) {
        free(queue->snapshot);
        queue->snapshot = NULL;
    }
    return rc;
}

const char *store_queue_snapshot(const struct store_queue *queue)
{
    return queue->snapshot;
}

unsigned store_queue_forgotten(const struct store_queue *queue)
{
    return queue->forgotten;
}

void store_queue_swap(struct store_queue *a, struct store_queue *b)
{
    const struct store_queue held = *a;
    *a = *b;
    *b = held;
    b->forgotten = a->forgotten;
    a->forgotten = held.forgotten;
}

/* ---- the queue ---- */

struct store_queue *store_queue_create(struct err *err)
{
    struct store_queue *queue = calloc(1, sizeof(*queue));
    if (!queue)
        err_set(err, ERR_NOMEM, "no memory for the queue");
    return queue;
}

void store_queue_forget(struct store_queue *queue)
{
    for (size_t i = 0; i < queue->count; i++) {
        free(queue->jobs[i].why);
        free(queue->jobs[i].avoid);
    }
    free(queue->jobs);
    free(queue->slots);
    free(queue->snapshot);
    shared_fini(&queue->leaves);
    shared_fini(&queue->classes);
    *queue = (struct store_queue){.forgotten = queue->forgotten + 1};
}

void store_queue_destroy(struct store_queue *queue)
{
    if (queue) {
        store_queue_forget(queue);
        free(queue);
    }
}

size_t store_queue_count(const struct store_queue *queue)
{
    return queue->count;
}

const struct store_sched_job *store_queue_at(const struct store_queue *queue, size_t at)
{
    return &queue->jobs[at];
}

const struct store_sched_job *store_queue_find(const struct store_queue *queue, int64_t id)
{
    const size_t slot = queue->slot_count > 0 ? queue_slot_of(queue, id) : 0;
    return queue->slot_count > 0 && queue->slots[slot] != 0 ? &queue->jobs[queue->slots[slot] - 1] : NULL;
}

size_t store_queue_leaf_count(const struct store_queue *queue)
{
    return queue->leaves.count;
}

struct store_queue_leaf store_queue_leaf_at(const struct store_queue *queue, uint32_t leaf)
{
    const struct shared_entry *entry = &queue->leaves.entries[leaf];
    struct store_queue_leaf of = {.count = entry->count};
    memcpy(&of.owner, entry->key, sizeof(of.owner));
    memcpy(&of.account, entry->key + sizeof(of.owner), sizeof(of.account));
    return of;
}

size_t store_queue_class_count(const struct store_queue *queue)
{
    return queue->classes.count;
}

const uint8_t *store_queue_class_at(const struct store_queue *queue, uint32_t class, size_t *count)
{
    *count = queue->classes.entries[class].count;
    return queue->classes.entries[class].key;
}

size_t store_queue_bytes(const struct store_queue *queue)
{
    size_t bytes = queue->capacity * sizeof(*queue->jobs) + queue->slot_count * sizeof(*queue->slots);
    const struct shared_table *const tables[] = {&queue->leaves, &queue->classes};
    for (size_t t = 0; t < 2; t++)
        bytes += tables[t]->capacity * sizeof(*tables[t]->entries) +
                 tables[t]->slot_count * sizeof(*tables[t]->slots);
    for (size_t i = 0; i < queue->count; i++)
        bytes += (queue->jobs[i].why ? strlen(queue->jobs[i].why) + 1 : 0) +
                 (queue->jobs[i].avoid ? strlen(queue->jobs[i].avoid) + 1 : 0);
    return bytes;
}

/* ---- comparing two queues ---- */

static bool texts_differ(const char *a, const char *b)
{
    return (a != NULL) != (b != NULL) || (a && strcmp(a, b) != 0);
}

/* Returns the name of a field in which the jobs differ, or NULL. */
static const char *differing_field(const struct store_queue *qa, const struct store_sched_job *a,
                                   const struct store_queue *qb, const struct store_sched_job *b)
{
    const struct {
        const char *name;
        bool differs;
    } fields[] = {
        {"owner", a->owner != b->owner},
        {"account", a->account != b->account},
        {"priority", a->priority != b->priority},
        {"state", a->state != b->state},
        {"stop_why", a->stop_why != b->stop_why},
        {"attempt", a->attempt != b->attempt},
        {"losses", a->losses != b->losses},
        {"retries_max", a->retries_max != b->retries_max},
        {"time_limit", a->time_limit_ms != b->time_limit_ms},
        {"used", a->used_ms != b->used_ms},
        {"not_before", a->not_before_us != b->not_before_us},
        {"service", a->service != b->service},
        {"eligible", a->eligible_us != b->eligible_us},
        {"begin", a->begin_us != b->begin_us},
        {"starts", a->starts_us != b->starts_us},
        {"wait_code", strcmp(a->wait_code, b->wait_code) != 0},
        {"wait_subject", a->wait_subject != b->wait_subject},
        {"steps", a->steps != b->steps},
        {"run", a->run != b->run},
        {"checkpoint", a->checkpoint_step != b->checkpoint_step},
        {"reported", a->reported != b->reported},
        {"why", texts_differ(a->why, b->why)},
        {"avoid", texts_differ(a->avoid, b->avoid)},
        {"leaf", memcmp(qa->leaves.entries[a->leaf].key, qb->leaves.entries[b->leaf].key, DIGEST_SIZE) != 0},
        {"class",
         memcmp(qa->classes.entries[a->class].key, qb->classes.entries[b->class].key, DIGEST_SIZE) != 0},
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (fields[i].differs)
            return fields[i].name;
    return NULL;
}

/* Whether the table's counts equal the numbers of jobs that have its entries. */
static bool counts_are_right(const struct store_queue *queue)
{
    size_t leaves = 0, classes = 0;
    for (size_t i = 0; i < queue->leaves.count; i++)
        leaves += queue->leaves.entries[i].count;
    for (size_t i = 0; i < queue->classes.count; i++)
        classes += queue->classes.entries[i].count;
    return leaves == queue->count && classes == queue->count;
}

bool store_queue_differs(const struct store_queue *a, const struct store_queue *b, char text[200])
{
    for (size_t i = 0; i < a->count; i++) {
        const struct store_sched_job *job = &a->jobs[i], *other = store_queue_find(b, job->id);
        const char *field = other ? differing_field(a, job, b, other) : "presence";
        if (field) {
            snprintf(text, 200, "job %lld: %s", (long long)job->id, field);
            return true;
        }
    }
    if (a->count != b->count || !counts_are_right(a) || !counts_are_right(b)) {
        snprintf(text, 200, "%zu jobs, and %zu in the database", a->count, b->count);
        return true;
    }
    return false;
}

/* ---- classes ---- */

int store_queue_class_get(struct store *store, const char *class_hex, store_doc_fn *done, void *arg,
                          struct err *err)
{
    struct pg_params params;
    sql_queue_class_get(&params, class_hex);
    return store_one_doc(store, &params, "no job of the class is queued", done, arg, err);
}
