/* Writes what a pass decided: in one transaction, or, when the database refuses that, in several without the
 * part at fault.
 *
 * Every row of a decision belongs to a unit: a job with its run and messages, a node, a lease, the
 * measurements of a device. The rows of a unit are written together or not at all. A transaction that fails
 * is divided: the error names a statement; the units without rows in it are written first, and those that
 * have some by halves, until one unit is left, which is tried once more by itself and then set aside. Rows
 * that only inform (`record`) stay behind alone: a job starts although its place cannot be written.
 *
 * A unit that is set aside is left out of all passes for limits.aside_ms. Units that fail alone before
 * anything was written are only blamed at first: the next commit, or the end of the pass, sets them aside;
 * the third one in a row shows that no unit is at fault, and all of them are taken back. The ids of the pass
 * are used by all its transactions, so that a failure draws no new ones.
 */
#include "scheduler/pass/pass.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/log.h"

/* Transactions of one pass at most. What is not written then is left to the next pass, which leaves out what
 * was set aside. */
enum { ATTEMPTS_MAX = 64 };
/* So many units that fail alone, before any was written, are not at fault themselves. */
enum { BLAMED_MAX = 3 };

/* How a row's unit is named. */
enum unit_kind { UNIT_JOB, UNIT_RUN, UNIT_MESSAGE, UNIT_DEVICE, UNIT_LINK, UNIT_NODE, UNIT_OTHER };

static const struct decision_part {
    size_t at, from; /* offsets of the part's rows in struct store_decision and in struct scheduler_pass */
    enum unit_kind unit;
    const char *name, *key; /* key: the member of a row that tells its unit */
    bool record;
    bool always; /* a row of a job that is set aside is written, too */
} parts[] = {
#define AT(member)                                                                                           \
    .at = offsetof(struct store_decision, member), .from = offsetof(struct scheduler_pass, member),          \
    .name = #member
    {AT(elements), .unit = UNIT_JOB, .key = "array"},
    {AT(unreachable), .unit = UNIT_NODE, .key = "node"},
    {AT(runs_new), .unit = UNIT_JOB, .key = "job"},
    {AT(ranks_lost), .unit = UNIT_RUN, .key = "run"},
    {AT(saves), .unit = UNIT_RUN, .key = "run"},
    {AT(jobs), .unit = UNIT_JOB, .key = "job"},
    {AT(runs), .unit = UNIT_RUN, .key = "run"},
    {AT(trials), .unit = UNIT_JOB, .key = "job"},
    {AT(ends), .unit = UNIT_RUN, .key = "run", .record = true},
    {AT(waits), .unit = UNIT_JOB, .key = "job", .record = true, .always = true},
    {AT(places), .unit = UNIT_JOB, .key = "job", .record = true},
    {AT(listing), .unit = UNIT_OTHER, .record = true},
    {AT(arrivals), .unit = UNIT_JOB, .key = "job", .record = true},
    {AT(forecasts), .unit = UNIT_OTHER, .key = "class", .record = true},
    {AT(sharing), .unit = UNIT_OTHER, .record = true},
    {AT(sooner), .unit = UNIT_JOB, .key = "job", .record = true},
    {AT(ready), .unit = UNIT_JOB, .key = "job"},
    {AT(leases), .unit = UNIT_OTHER, .key = "id"},
    {AT(requests), .unit = UNIT_DEVICE, .key = "device"},
    {AT(links), .unit = UNIT_LINK},
    {AT(said), .unit = UNIT_JOB, .key = "job", .record = true},
    {AT(speeds), .unit = UNIT_OTHER, .key = "device", .record = true},
    {AT(measures), .unit = UNIT_OTHER, .key = "key", .record = true},
    {AT(messages), .unit = UNIT_MESSAGE},
#undef AT
};
enum { PARTS = sizeof(parts) / sizeof(parts[0]) };
_Static_assert(PARTS == (int)STORE_DECISION_ARRAYS, "the table has each array of a decision");
#define MAKES_JOBS ((uint32_t)1) /* mask of `elements` */

/* Rows that are to be written by one transaction: those of the units, in the parts of the mask. */
struct write_set {
    json_t *units; /* {unit: true}, or NULL: all */
    uint32_t mask;
    bool alone; /* the set is one unit, and a transaction of it failed */
};

struct pass_writing {
    struct store_decision whole; /* the rows are the pass's */
    struct write_set *sets;      /* the last one is written next */
    size_t set_count, set_capacity;
    struct store_decision some; /* what the present transaction writes; owned */
    json_t *units;              /* {unit: mask of its parts in `some`}; owned */
    struct write_set set;       /* the present transaction's; owned */
    unsigned attempts;
    pass_written_fn *done;
    bool committed;
    bool conflicting; /* the pass was divided because of a conflict that stays */
    bool changed;     /* something was committed or set aside */
};

static json_t **rows_at(const struct store_decision *decision, size_t part)
{
    return (json_t **)(uintptr_t)((const char *)decision + parts[part].at);
}

static json_t **array_at(struct scheduler_pass *pass, size_t part)
{
    return (json_t **)(uintptr_t)((char *)pass + parts[part].from);
}

int pass_arrays_init(struct scheduler_pass *pass)
{
    int rc = 0;
    for (size_t p = 0; p < PARTS; p++)
        rc = (*array_at(pass, p) = json_array()) ? rc : -1;
    return rc;
}

void pass_arrays_fini(struct scheduler_pass *pass)
{
    for (size_t p = 0; p < PARTS; p++)
        json_decref(*array_at(pass, p));
}

static void drop_attempt(struct pass_writing *writing)
{
    for (size_t p = 0; p < PARTS; p++)
        json_decref(*rows_at(&writing->some, p));
    writing->some = (struct store_decision){0};
    json_decref(writing->units);
    writing->units = NULL;
    json_decref(writing->set.units);
    writing->set = (struct write_set){0};
}

void pass_writing_destroy(struct pass_writing *writing)
{
    if (!writing)
        return;
    drop_attempt(writing);
    while (writing->set_count > 0)
        json_decref(writing->sets[--writing->set_count].units);
    free(writing->sets);
    free(writing);
}

/* ---- units ---- */

static int64_t job_of_run(const struct scheduler_pass *pass, int64_t run)
{
    size_t i;
    json_t *row;
    for (i = 0; i < pass->view->run_count; i++)
        if (pass->view->runs[i].id == run)
            return pass->view->runs[i].job;
    json_array_foreach (pass->runs_new, i, row)
        if (json_integer_value(json_object_get(row, "run")) == run)
            return json_integer_value(json_object_get(row, "job"));
    return 0;
}

/* Returns the name of the device or node whose measurement the request is. */
static const char *measured_by(const struct scheduler_pass *pass, const json_t *message)
{
    const json_t *id = json_object_get(json_object_get(message, "payload"), "request");
    size_t i;
    json_t *row;
    json_array_foreach (pass->requests, i, row)
        if (json_equal(json_object_get(row, "id"), id))
            return json_text_of(row, "device");
    return json_text_of(message, "node");
}

static void unit_of(const struct scheduler_pass *pass, const struct decision_part *part, const json_t *row,
                    char unit[UNIT_BYTES])
{
    const json_t *run = json_object_get(row, "run"),
                 *key = part->key ? json_object_get(row, part->key) : NULL;
    switch (part->unit) {
    case UNIT_JOB:
        snprintf(unit, UNIT_BYTES, "job %lld", (long long)json_integer_value(key));
        break;
    case UNIT_RUN:
        snprintf(unit, UNIT_BYTES, "job %lld", (long long)job_of_run(pass, json_integer_value(run)));
        break;
    case UNIT_MESSAGE:
        if (json_is_integer(run))
            snprintf(unit, UNIT_BYTES, "job %lld", (long long)job_of_run(pass, json_integer_value(run)));
        else
            snprintf(unit, UNIT_BYTES, "measuring %s", measured_by(pass, row));
        break;
    case UNIT_DEVICE:
        snprintf(unit, UNIT_BYTES, "measuring %s", json_string_value(key));
        break;
    case UNIT_LINK:
        snprintf(unit, UNIT_BYTES, "link from %s to %s", json_text_of(row, "from"), json_text_of(row, "to"));
        break;
    case UNIT_NODE:
        snprintf(unit, UNIT_BYTES, "node %s", json_string_value(key));
        break;
    case UNIT_OTHER:
        if (json_is_integer(key))
            snprintf(unit, UNIT_BYTES, "%s %lld", part->name, (long long)json_integer_value(key));
        else
            snprintf(unit, UNIT_BYTES, "%s %s", part->name, key ? json_string_value(key) : "");
        break;
    }
}

/* ---- what is set aside ---- */

bool pass_is_aside(const struct scheduler_pass *pass, const char *unit)
{
    const json_t *aside = json_object_get(pass->scheduler->asides, unit);
    return json_object_get(pass->scheduler->blamed, unit) ||
           (aside && json_integer_value(json_object_get(aside, "until_us")) > pass->view->now_us);
}

static bool is_record_aside(const struct scheduler_pass *pass, const struct decision_part *part,
                            const char *unit)
{
    char record[UNIT_BYTES + 16];
    snprintf(record, sizeof(record), "%s of %s", part->name, unit);
    return part->record && pass_is_aside(pass, record);
}

void pass_set_aside(struct scheduler_pass *pass, const char *unit, const char *why)
{
    const int64_t until_us = pass->view->now_us + (int64_t)pass->scheduler->config->limits.aside_ms * 1000;
    const char *job = strncmp(unit, "job ", 4) == 0 ? unit : strstr(unit, " of job ");
    char until[32];
    json_t *aside = json_pack("{s:s, s:I, s:s, s:s}", "part", unit, "until_us", (json_int_t)until_us, "until",
                              clock_rfc3339(until_us / 1000000 * 1000000, until), "why", why);
    if (job)
        json_object_set_new(aside, "job", json_integer(strtoll(strstr(job, "job ") + 4, NULL, 10)));
    if (json_object_set_new(pass->scheduler->asides, unit, aside) < 0)
        return;
    log_event(LOG_LEVEL_ERROR, "set_aside", "part=\"%s\" until=%s why=\"%s\"", unit, until, why);
    pass->scheduler->health.changed = true;
    pass->scheduler->listed_us = 0; /* the next pass lists the reason */
}

bool pass_blame(struct scheduler_pass *pass, const char *unit, const char *why)
{
    if (pass->writing && pass->writing->committed) {
        pass_set_aside(pass, unit, why);
        return true;
    }
    json_object_set_new(pass->scheduler->blamed, unit, json_string(why));
    return json_object_size(pass->scheduler->blamed) < BLAMED_MAX;
}

void pass_settle_blame(struct scheduler_pass *pass, bool committed)
{
    const char *unit;
    json_t *why;
    json_object_foreach (pass->scheduler->blamed, unit, why)
        if (!json_object_get(pass->scheduler->asides, unit))
            pass_set_aside(pass, unit, json_string_value(why));
    if (committed)
        json_object_clear(pass->scheduler->blamed);
}

void pass_drop_blame(struct scheduler *scheduler)
{
    const char *unit;
    json_t *why;
    json_object_foreach (scheduler->blamed, unit, why)
        if (json_object_del(scheduler->asides, unit) == 0)
            scheduler->health.changed = true;
    json_object_clear(scheduler->blamed);
}

void pass_begin_asides(struct scheduler_pass *pass)
{
    const char *unit;
    json_t *aside;
    void *next;
    json_object_foreach_safe (pass->scheduler->asides, next, unit, aside) {
        const int64_t until_us = json_integer_value(json_object_get(aside, "until_us"));
        if (until_us > pass->view->now_us) {
            pass_check_at(pass, until_us);
        } else {
            json_object_del(pass->scheduler->blamed, unit);
            json_object_del(pass->scheduler->asides, unit); /* frees `unit` */
            pass->scheduler->health.changed = true;
        }
    }
}

bool pass_wait_aside(struct scheduler_pass *pass, const struct store_sched_job *job)
{
    char unit[UNIT_BYTES];
    snprintf(unit, sizeof(unit), "job %lld", (long long)job->id);
    if (!pass_is_aside(pass, unit))
        return false;
    const json_t *aside = json_object_get(pass->scheduler->asides, unit);
    char until[24];
    pass_wait(pass, job, "aside", -1,
              "is set aside until %s, when it is tried again: what was decided of it could not be stored "
              "(%.300s); the scheduler's log has more",
              clock_words(json_text_of(aside, "until"), until), json_text_of(aside, "why"));
    return true;
}

/* ---- sets ---- */

/* Takes `units` over. */
static int pass_write_push(struct pass_writing *writing, json_t *units, uint32_t mask, bool alone,
                           struct err *err)
{
    if (ARRAY_RESERVE(writing->sets, writing->set_capacity, writing->set_count + 1, err) < 0) {
        json_decref(units);
        return -1;
    }
    writing->sets[writing->set_count++] = (struct write_set){units, mask, alone};
    return 0;
}

/* Whether the rest of the set can be written without the part. */
static bool is_separable(const struct write_set *set, size_t part)
{
    return part < PARTS && parts[part].record && (set->mask & ~((uint32_t)1 << part)) != 0;
}

/* Divides the transaction that failed. `part`: the part whose statement failed; PARTS: unknown. */
static int divide(struct pass_writing *writing, size_t part, struct err *err)
{
    const uint32_t bit = part < PARTS ? (uint32_t)1 << part : UINT32_MAX, mask = writing->set.mask;
    json_t *suspects = json_object(), *others = json_object();
    const char *unit;
    json_t *of;
    json_object_foreach (writing->units, unit, of)
        json_object_set_new((json_integer_value(of) & bit) != 0 ? suspects : others, unit, json_true());
    if (is_separable(&writing->set, part)) {
        json_decref(others);
        return pass_write_push(writing, suspects, bit, false, err) < 0
                   ? -1
                   : pass_write_push(writing, json_incref(writing->set.units), mask & ~bit, false, err);
    }
    if (json_object_size(others) > 0)
        return pass_write_push(writing, suspects, mask, false, err) < 0
                   ? -1
                   : pass_write_push(writing, others, mask, false, err);
    const size_t count = json_object_size(suspects);
    if (count <= 1) {
        json_decref(others);
        return pass_write_push(writing, suspects, mask, true, err);
    }
    void *next;
    json_object_foreach_safe (suspects, next, unit, of) {
        if (json_object_size(others) >= count / 2)
            break;
        json_object_set_new(others, unit, json_true());
        json_object_del(suspects, unit);
    }
    return pass_write_push(writing, others, mask, false, err) < 0
               ? -1
               : pass_write_push(writing, suspects, mask, false, err);
}

/* Copies the rows of the set to writing->some, but for what is set aside. Returns the number of rows, -1
 * without memory. */
static int pass_write_fill(struct scheduler_pass *pass, struct pass_writing *writing)
{
    int count = 0;
    writing->units = json_object();
    bool whole = writing->units != NULL;
    for (size_t p = 0; p < PARTS && whole; p++) {
        size_t i;
        json_t *row, *rows = json_array();
        *rows_at(&writing->some, p) = rows;
        json_array_foreach (*rows_at(&writing->whole, p), i, row) {
            char unit[UNIT_BYTES];
            unit_of(pass, &parts[p], row, unit);
            if ((writing->set.mask >> p & 1) == 0 ||
                (writing->set.units && !json_object_get(writing->set.units, unit)) ||
                (!parts[p].always && (pass_is_aside(pass, unit) || json_object_get(pass->left_out, unit))) ||
                is_record_aside(pass, &parts[p], unit))
                continue;
            const json_int_t mask = json_integer_value(json_object_get(writing->units, unit));
            whole = whole && json_array_append(rows, row) == 0 &&
                    json_object_set_new(writing->units, unit, json_integer(mask | (json_int_t)1 << p)) == 0;
            count++;
        }
        whole = whole && rows;
    }
    writing->some.leader = pass->scheduler->epoch;
    return whole ? count : -1;
}

/* ---- transactions ---- */

static void send_messages(struct scheduler *scheduler, const struct store_decision *decision,
                          const json_t *ids)
{
    size_t i;
    json_t *message;
    struct err err;
    json_array_foreach ((json_t *)(uintptr_t)decision->runs_new, i, message)
        if (dispatch_plan(scheduler->dispatch, json_integer_value(json_object_get(message, "run")),
                          json_object_get(message, "plan"), &err) < 0)
            log_event(LOG_LEVEL_ERROR, "plan_unread", "why=\"%s\"", err.text);
    json_array_foreach ((json_t *)(uintptr_t)decision->messages, i, message) {
        if (dispatch_keep(scheduler->dispatch, json_integer_value(json_array_get(ids, i)),
                          json_string_value(json_object_get(message, "node")),
                          json_integer_value(json_object_get(message, "run")),
                          json_string_value(json_object_get(message, "type")),
                          json_object_get(message, "payload"), &err) < 0) {
            log_event(LOG_LEVEL_ERROR, "message_unsent", "why=\"%s\"", err.text);
        }
    }
    dispatch_plans_forget(scheduler->dispatch);
}

static void log_jobs(const json_t *jobs)
{
    size_t i;
    json_t *row;
    json_array_foreach ((json_t *)(uintptr_t)jobs, i, row) {
        const char *why = json_string_value(json_object_get(row, "why"));
        if (json_equal(json_object_get(row, "before"), json_object_get(row, "state")))
            continue;
        log_event(LOG_LEVEL_INFO, "job_state", "job=%lld from=%s to=%s%s%s%s",
                  (long long)json_integer_value(json_object_get(row, "job")),
                  json_string_value(json_object_get(row, "before")),
                  json_string_value(json_object_get(row, "state")), why ? " why=\"" : "", why ? why : "",
                  why ? "\"" : "");
    }
}

static void write_next(struct scheduler *scheduler);

static void committed(struct scheduler *scheduler, const json_t *ids)
{
    struct pass_writing *writing = scheduler->pass->writing;
    size_t i;
    json_t *run;
    writing->committed = true;
    pass_settle_blame(scheduler->pass, true);
    if (json_array_size(writing->some.listing) > 0)
        scheduler->listed_hash = scheduler->pass->listing_hash;
    health_good(scheduler, TASK_PASS);
    json_array_foreach ((json_t *)(uintptr_t)writing->some.runs, i, run)
        if (pass_ends(run)) {
            dispatch_drop_run(scheduler->dispatch, json_integer_value(json_object_get(run, "run")));
            facts_refresh_profiles(scheduler->facts); /* the run corrects later forecasts */
        }
    if (json_array_size(writing->some.speeds) > 0)
        facts_forget_profiles(scheduler->facts);
    /* What only informs makes no further decision possible. While something is set aside, the pass would be
     * repeated for ever for what belongs to it. */
    for (size_t p = 0; p < PARTS; p++)
        writing->changed =
            writing->changed || (json_array_size(*rows_at(&writing->some, p)) > 0 &&
                                 (!parts[p].record || json_object_size(scheduler->asides) == 0));
    send_messages(scheduler, &writing->some, ids);
    log_jobs(writing->some.jobs);
    scheduler->sharing_said = scheduler->sharing_said || json_array_size(writing->some.sharing) > 0;
}

bool pass_is_at_fault(struct scheduler *scheduler, const struct err *err)
{
    const bool blames = scheduler_blames_rows(err, &scheduler->conflicts);
    /* A second conflict in a row may mean that the queue in memory is wrong: the next load compares it. */
    if (err->code == ERR_CONFLICT && scheduler->conflicts == 2)
        scheduler->checked_ns = 0;
    return blames;
}

/* Blames the only unit of the transaction, or what only informs of it. Returns false when the units are not
 * at fault. */
static bool blame_unit(struct scheduler_pass *pass, const struct err *why)
{
    struct pass_writing *writing = pass->writing;
    const char *unit = json_object_iter_key(json_object_iter(writing->units));
    const uint32_t mask = (uint32_t)json_integer_value(json_object_get(writing->units, unit));
    bool informs = true, goes_on = true;
    writing->changed = true;
    for (size_t p = 0; p < PARTS; p++)
        informs = informs && ((mask >> p & 1) == 0 || parts[p].record);
    if (!informs)
        goes_on = pass_blame(pass, unit, why->text);
    for (size_t p = 0; p < PARTS && informs; p++) {
        char name[UNIT_BYTES + 16];
        snprintf(name, sizeof(name), "%s of %s", parts[p].name, unit);
        if ((mask >> p & 1) != 0)
            goes_on = pass_blame(pass, name, why->text);
    }
    return goes_on;
}

/* Handles a transaction that failed. */
static void pass_write_failed(struct scheduler *scheduler, const struct err *why)
{
    struct pass_writing *writing = scheduler->pass->writing;
    const json_t *rows = store_decision_failed(&writing->some, why);
    struct err err = *why;
    size_t part = 0;
    while (part < PARTS && (!rows || *rows_at(&writing->some, part) != rows))
        part++;
    const bool conflict = why->code == ERR_CONFLICT;
    if (!pass_is_at_fault(scheduler, why) && !(conflict && writing->conflicting)) {
        writing->done(scheduler, false, why);
        return;
    }
    writing->conflicting = writing->conflicting || conflict;
    log_event(LOG_LEVEL_WARN, "decision_divided", "units=%zu alone=%d why=\"%s\"",
              json_object_size(writing->units), (int)writing->set.alone, why->text);
    const bool goes_on = writing->set.alone && !is_separable(&writing->set, part)
                             ? blame_unit(scheduler->pass, why)
                             : divide(writing, part, &err) == 0;
    if (goes_on)
        write_next(scheduler);
    else
        writing->done(scheduler, false, &err);
}

static void decided(void *arg, const struct err *err, json_t *ids)
{
    struct scheduler *scheduler = arg;
    if (!scheduler_settle(scheduler))
        return;
    if (err) {
        pass_write_failed(scheduler, err);
        return;
    }
    committed(scheduler, ids);
    write_next(scheduler);
}

/* Writes the next set, or ends the pass when none is left. */
static void write_next(struct scheduler *scheduler)
{
    struct scheduler_pass *pass = scheduler->pass;
    struct pass_writing *writing = pass->writing;
    struct err err;
    while (writing->set_count > 0 && writing->attempts < ATTEMPTS_MAX) {
        drop_attempt(writing);
        writing->set = writing->sets[--writing->set_count];
        const int count = pass_write_fill(pass, writing);
        if (count == 0)
            continue;
        writing->attempts++;
        scheduler->busy = true;
        scheduler->chain = scheduler->epoch;
        if (count < 0)
            err_set(&err, ERR_NOMEM, "no memory for a decision");
        else if (store_decide(scheduler->store, &writing->some, decided, scheduler, &err) == 0)
            return;
        scheduler->busy = false;
        pass_write_failed(scheduler, &err);
        return;
    }
    writing->done(scheduler, writing->changed || writing->set_count > 0, NULL);
}

bool pass_ends(const json_t *run)
{
    const int state = state_from_name(&run_machine, json_text_of(run, "state"));
    return state >= 0 && state_is_final(&run_machine, state);
}

void pass_write(struct scheduler *scheduler, pass_written_fn *done)
{
    struct scheduler_pass *pass = scheduler->pass;
    struct err err;
    size_t i;
    json_t *run;
    struct pass_writing *writing = calloc(1, sizeof(*writing));
    json_array_foreach (pass->runs, i, run)
        if (pass_ends(run))
            pass_add(pass, pass->ends, json_incref(run));
    /* New jobs draw ids, which are not drawn again: they are written behind everything that may fail. */
    if (pass->failed || !writing || pass_write_push(writing, NULL, MAKES_JOBS, false, &err) < 0 ||
        pass_write_push(writing, NULL, ~MAKES_JOBS, false, &err) < 0) {
        pass_writing_destroy(writing);
        err_set(&err, ERR_NOMEM, "no memory for a decision");
        done(scheduler, false, &err);
        return;
    }
    writing->done = done;
    for (size_t p = 0; p < PARTS; p++)
        *rows_at(&writing->whole, p) = *array_at(pass, p);
    pass->writing = writing;
    write_next(scheduler);
}
