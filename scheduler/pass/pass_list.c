/* Says why queued jobs wait or are refused, and lists the place of each and its reason
 * (migrations/0006_sharing.sql).
 *
 * All places change whenever a job starts, so the list is written whole, at most once in a while that grows
 * with the queue, and only if it differs. Reasons that are equal are listed once.
 */
#include "scheduler/pass/pass_list.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/buf.h"
#include "common/hash.h"
#include "model/text/utf8.h"

/* PAUSE_US: least time between two lists; a queue of 100,000 jobs is listed every 5 s. CHUNK_BITS: a row of
 * queue_places has the jobs whose id has the same upper bits. */
#define PAUSE_US INT64_C(1000000)
#define PAUSE_JOB_US INT64_C(40)
#define RETRY_US 5000000
/* REFUSED_MAX: once this many states change in a pass, it refuses no further jobs. The next pass goes on. */
enum { CHUNK_BITS = 9, ROW_BYTES_MAX = 1 << 16, REFUSED_MAX = 256 };

struct list_reason {
    char code[20];
    int64_t subject; /* -1: none */
    char *why;
    uint64_t hash;
};

/* place 0: none yet; PLACE_NONE: the job starts. reason: index + 1; 0: none yet. */
struct list_entry {
    uint32_t place, reason;
};
#define PLACE_NONE UINT32_MAX

struct pass_list {
    size_t count;
    struct list_entry *entries; /* [count] as the jobs of the queue in memory */
    uint32_t placed;            /* places given so far */
    struct list_reason *reasons;
    size_t reason_count, reason_capacity;
    uint32_t *slots; /* hash table of the reasons: index + 1 */
    size_t slot_count;
};

void pass_list_destroy(struct pass_list *list)
{
    if (!list)
        return;
    for (size_t i = 0; i < list->reason_count; i++)
        free(list->reasons[i].why);
    free(list->reasons);
    free(list->slots);
    free(list->entries);
    free(list);
}

void pass_list_begin(struct scheduler_pass *pass)
{
    const size_t count = store_queue_count(pass->scheduler->queue);
    const int64_t due_us = pass->scheduler->listed_us + PAUSE_US + PAUSE_JOB_US * (int64_t)count;
    if (pass->view->now_us < due_us) {
        pass_check_at(pass, due_us);
        return;
    }
    struct pass_list *list = calloc(1, sizeof(*list));
    pass->list = list;
    if (list) {
        list->count = count;
        list->entries = calloc(count + 1, sizeof(*list->entries));
        list->slot_count = 4096;
        list->slots = calloc(list->slot_count, sizeof(*list->slots));
    }
    pass->failed = pass->failed || !list || !list->entries || !list->slots;
}

static struct list_entry *pass_list_entry_of(const struct scheduler_pass *pass,
                                             const struct store_sched_job *job)
{
    const struct store_queue *queue = pass->scheduler->queue;
    const size_t at = store_queue_count(queue) > 0 ? (size_t)(job - store_queue_at(queue, 0)) : SIZE_MAX;
    return at < pass->list->count ? &pass->list->entries[at] : NULL;
}

/* Doubles the hash table. */
static int pass_list_grow(struct pass_list *list)
{
    const size_t count = 2 * list->slot_count;
    uint32_t *slots = calloc(count, sizeof(*slots));
    if (!slots)
        return -1;
    for (size_t i = 0; i < list->reason_count; i++) {
        size_t slot = (size_t)list->reasons[i].hash & (count - 1);
        while (slots[slot] != 0)
            slot = (slot + 1) & (count - 1);
        slots[slot] = (uint32_t)i + 1;
    }
    free(list->slots);
    list->slots = slots;
    list->slot_count = count;
    return 0;
}

/* Returns the number of the reason, which is added if it is new; 0 without memory. */
static uint32_t reason_number(struct pass_list *list, const char *code, int64_t subject, const char *why)
{
    struct err err;
    uint64_t hash = hash_text(hash_text(hash_bytes(HASH_BEGIN, &subject, sizeof(subject)), code), why);
    hash ^= hash >> 32;
    size_t slot = (size_t)hash & (list->slot_count - 1);
    for (; list->slots[slot] != 0; slot = (slot + 1) & (list->slot_count - 1)) {
        const struct list_reason *known = &list->reasons[list->slots[slot] - 1];
        if (known->hash == hash && known->subject == subject && strcmp(known->code, code) == 0 &&
            strcmp(known->why, why) == 0)
            return list->slots[slot];
    }
    if (ARRAY_RESERVE(list->reasons, list->reason_capacity, list->reason_count + 1, &err) < 0)
        return 0;
    struct list_reason *reason = &list->reasons[list->reason_count];
    *reason = (struct list_reason){.subject = subject, .why = strdup(why), .hash = hash};
    if (!reason->why)
        return 0;
    snprintf(reason->code, sizeof(reason->code), "%s", code);
    list->slots[slot] = (uint32_t)++list->reason_count;
    if (2 * list->reason_count > list->slot_count && pass_list_grow(list) < 0)
        return 0;
    return (uint32_t)list->reason_count;
}

void pass_list_place(struct scheduler_pass *pass, const struct store_sched_job *job)
{
    struct list_entry *entry = pass->list ? pass_list_entry_of(pass, job) : NULL;
    if (entry && entry->place == 0)
        entry->place = ++pass->list->placed;
}

void pass_list_leave(struct scheduler_pass *pass, const struct store_sched_job *job)
{
    struct list_entry *entry = pass->list ? pass_list_entry_of(pass, job) : NULL;
    if (entry)
        entry->place = PLACE_NONE;
}

void pass_list_why(struct scheduler_pass *pass, const struct store_sched_job *job, const char *code,
                   int64_t subject, const char *why)
{
    struct list_entry *entry = pass->list ? pass_list_entry_of(pass, job) : NULL;
    if (!entry || entry->reason != 0)
        return;
    entry->reason = reason_number(pass->list, code, subject, why);
    pass->failed = pass->failed || entry->reason == 0;
}

uint32_t pass_list_reason(const struct scheduler_pass *pass, const struct store_sched_job *job)
{
    const struct list_entry *entry = pass->list ? pass_list_entry_of(pass, job) : NULL;
    return entry ? entry->reason : 0;
}

void pass_list_alike(struct scheduler_pass *pass, const struct store_sched_job *job, uint32_t reason)
{
    struct list_entry *entry = pass->list ? pass_list_entry_of(pass, job) : NULL;
    if (entry && entry->reason == 0)
        entry->reason = reason;
}

/* ---- why jobs wait or are refused ---- */

void pass_wait(struct scheduler_pass *pass, const struct store_sched_job *job, const char *code,
               int64_t subject, const char *fmt, ...)
{
    char text[512];
    va_list args;
    if (!job || !pass->list)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    text[utf8_check(text, strlen(text))] = '\0'; /* no cut character */
    pass_list_why(pass, job, code, subject, text);
}

static void pass_list_refuse(struct scheduler_pass *pass, const struct store_sched_job *job,
                             enum err_code code, const char *why)
{
    struct err err;
    int to = state_next(&job_machine, (int)job->state, JOB_EVENT_REFUSE, &err);
    if (to >= 0 && json_array_size(pass->jobs) < REFUSED_MAX) { /* the next pass refuses further jobs */
        pass_add(pass, pass->jobs,
                 json_pack("{s:I, s:s, s:s, s:s, s:s}", "job", (json_int_t)job->id, "before", "queued",
                           "state", state_name(&job_machine, to), "code", err_code_name(code), "why", why));
    }
}

/* Handles an error in planning: refuses the job if the error is the job's fault, otherwise tries again after
 * RETRY_US. A job that ran before is not refused, because its steps would be lost: it waits for devices like
 * those it ran on. */
void pass_give_up(struct scheduler_pass *pass, const struct store_sched_job *job, const struct err *err)
{
    const bool ran = job->attempt > 0;
    switch (err->code) {
    case ERR_UNSUPPORTED:
    case ERR_NOFIT:
        if (ran)
            pass_wait(pass, job, "no-fit", -1, "waits for devices like those it ran on: %s", err->text);
        else
            pass_list_refuse(pass, job, err->code, err->text);
        break;
    case ERR_INVALID:
    case ERR_NOT_FOUND:
    case ERR_TOO_BIG:
    case ERR_CORRUPT:
        pass_list_refuse(pass, job, err->code, err->text);
        break;
    default:
        pass_wait(pass, job, "planning", -1, "cannot be planned now: %s", err->text);
        pass_check_at(pass, pass->view->now_us + RETRY_US);
        break;
    }
}

/* ---- writing ---- */

static int by_order(const void *a, const void *b)
{
    const struct store_sched_job *x = *(const struct store_sched_job *const *)a,
                                 *y = *(const struct store_sched_job *const *)b;
    if (x->service != y->service)
        return x->service < y->service ? -1 : 1;
    if (x->priority != y->priority)
        return x->priority > y->priority ? -1 : 1;
    if (x->eligible_us != y->eligible_us)
        return x->eligible_us < y->eligible_us ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int pass_list_by_id(const void *a, const void *b)
{
    const struct store_sched_job *x = *(const struct store_sched_job *const *)a,
                                 *y = *(const struct store_sched_job *const *)b;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Gives places to the due jobs about which the pass did not decide. They stand behind all others. */
static void place_others(struct scheduler_pass *pass, const struct store_sched_job **jobs)
{
    const struct store_queue *queue = pass->scheduler->queue;
    const uint32_t decided = pass->list->placed;
    char why[160];
    size_t count = 0;
    for (size_t i = 0; i < pass->list->count; i++)
        if (pass->list->entries[i].place == 0 && pass_is_due(store_queue_at(queue, i), pass->view->now_us))
            jobs[count++] = store_queue_at(queue, i);
    qsort(jobs, count, sizeof(const struct store_sched_job *), by_order);
    snprintf(why, sizeof(why), "waits its turn behind %u jobs that are decided about first", decided);
    for (size_t i = 0; i < count; i++) {
        pass_list_place(pass, jobs[i]);
        pass_drop_start(pass, jobs[i], "behind");
        pass_list_why(pass, jobs[i], "behind", -1, why);
    }
}

struct list_rows {
    struct buf jobs, places, reasons; /* arrays as PostgreSQL reads them */
    json_t *chunks;
    int64_t chunk;
};

static int row_end(struct list_rows *rows, struct err *err)
{
    struct buf *const texts[] = {&rows->jobs, &rows->places, &rows->reasons};
    for (size_t i = 0; i < 3; i++)
        if (buf_printf(texts[i], err, "}") < 0)
            return -1;
    json_t *row =
        json_pack("{s:I, s:s, s:s, s:s}", "chunk", (json_int_t)rows->chunk, "jobs", buf_str(&rows->jobs),
                  "places", buf_str(&rows->places), "reasons", buf_str(&rows->reasons));
    for (size_t i = 0; i < 3; i++)
        texts[i]->size = 0;
    return json_array_append_new(rows->chunks, row) < 0 ? err_set(err, ERR_NOMEM, "no memory for the queue")
                                                        : 0;
}

static int row_add(struct list_rows *rows, int64_t job, const struct list_entry *entry, struct err *err)
{
    const char *before = ",";
    if (rows->jobs.size > 0 && rows->chunk != job >> CHUNK_BITS && row_end(rows, err) < 0)
        return -1;
    if (rows->jobs.size == 0)
        before = "{";
    rows->chunk = job >> CHUNK_BITS;
    return buf_printf(&rows->jobs, err, "%s%lld", before, (long long)job) < 0 ||
                   buf_printf(&rows->places, err, "%s%u", before, entry->place) < 0
               ? -1
               : buf_printf(&rows->reasons, err, "%s%u", before, entry->reason);
}

static json_t *reasons_of(const struct pass_list *list)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < list->reason_count; i++) {
        const struct list_reason *reason = &list->reasons[i];
        json_array_append_new(
            rows, json_pack("{s:i, s:s, s:o, s:s}", "id", (int)i + 1, "code", reason->code, "subject",
                            reason->subject >= 0 ? json_integer(reason->subject) : json_null(), "why",
                            reason->why));
    }
    return rows;
}

/* Adds the row of the list, if it differs from the one that was written last. */
static void add_rows(struct scheduler_pass *pass, const struct store_sched_job **jobs, size_t count)
{
    struct scheduler *scheduler = pass->scheduler;
    struct list_rows rows = {.jobs = {.limit = ROW_BYTES_MAX},
                             .places = {.limit = ROW_BYTES_MAX},
                             .reasons = {.limit = ROW_BYTES_MAX},
                             .chunks = json_array()};
    struct err err;
    uint64_t hash = HASH_BEGIN;
    int rc = rows.chunks ? 0 : -1;
    for (size_t i = 0; i < count && rc == 0; i++) {
        const struct list_entry *entry = pass_list_entry_of(pass, jobs[i]);
        hash = hash_bytes(hash, &jobs[i]->id, sizeof(jobs[i]->id));
        hash = hash_bytes(hash, &entry->place, sizeof(entry->place));
        hash = hash_bytes(hash, &pass->list->reasons[entry->reason - 1].hash, sizeof(hash));
        rc = row_add(&rows, jobs[i]->id, entry, &err);
    }
    if (rc == 0 && rows.jobs.size > 0)
        rc = row_end(&rows, &err);
    pass->failed = pass->failed || rc < 0;
    scheduler->listed_us = pass->view->now_us;
    if (rc == 0 && hash != scheduler->listed_hash)
        pass_add(pass, pass->listing,
                 json_pack("{s:O, s:o}", "chunks", rows.chunks, "reasons", reasons_of(pass->list)));
    pass->listing_hash = hash;
    json_decref(rows.chunks);
    buf_fini(&rows.jobs);
    buf_fini(&rows.places);
    buf_fini(&rows.reasons);
}

void pass_list_end(struct scheduler_pass *pass)
{
    struct pass_list *list = pass->list;
    if (!list || pass->failed)
        return;
    const struct store_sched_job **jobs = calloc(list->count + 1, sizeof(const struct store_sched_job *));
    size_t count = 0;
    if (!jobs) {
        pass->failed = true;
        return;
    }
    place_others(pass, jobs);
    for (size_t i = 0; i < list->count; i++)
        if (list->entries[i].place != PLACE_NONE && list->entries[i].place > 0 && list->entries[i].reason > 0)
            jobs[count++] = store_queue_at(pass->scheduler->queue, i);
    qsort(jobs, count, sizeof(const struct store_sched_job *), pass_list_by_id);
    add_rows(pass, jobs, count);
    free(jobs);
}
