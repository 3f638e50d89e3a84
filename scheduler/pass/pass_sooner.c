/* Answers what would let a waiting job start sooner (scheduler/policy/sooner.h). */
#include "scheduler/policy/sooner.h"

#include <string.h>

#include "common/array.h"
#include "common/clock.h"
#include "scheduler/pass/pass_queue.h"
#include "scheduler/pass/shares.h"

/* SEARCHES_MAX: most searches of the planner that one answer may start. WAIT_S_MAX: most seconds that an
 * answer waits for its searches. */
enum { SEARCHES_MAX = 8, WAIT_S_MAX = 10 };
/* VARIANT_MEMORY asks whether the job would start sooner if it needed this many bytes less on each device. */
#define LESS_BYTES ((uint64_t)1 << 30)

enum variant_kind { VARIANT_MEMORY, VARIANT_DEVICES, VARIANTS };

/* The planner as one question uses it, with a limit on searches. */
struct asked_planner {
    struct queue *queue;
    unsigned searches;
    bool pending; /* a search that the question started is under way */
};

/* Variants of the job's specification that its owner could submit instead. */
struct variants {
    json_t *specs[VARIANTS]; /* owned, or NULL */
    enum variant_kind kinds[VARIANTS];
    uint32_t shapes[VARIANTS];
    size_t count;
};

static enum policy_fit pass_sooner_best(void *arg, uint32_t shape, const struct device_set *among,
                                        uint16_t most, struct policy_plan *plan)
{
    struct asked_planner *asked = arg;
    struct queue *queue = asked->queue;
    struct job_class *class = &queue->classes[shape];
    if (!job_class_is_known(queue->pass, class, among, most) && asked->searches++ >= SEARCHES_MAX)
        return FIT_PENDING;
    const enum policy_fit fit = job_class_best(queue->pass, class, &queue->there, among, most, plan);
    asked->pending = asked->pending || fit == FIT_PENDING;
    return fit;
}

/* Adds a class for a variant of class `like`: with the specification `spec`, or with that of `like` if `spec`
 * is NULL. */
static void add_variant(struct queue *queue, uint32_t like, json_t *spec, enum variant_kind kind,
                        struct variants *variants)
{
    const struct job_class *of = &queue->classes[like];
    struct job_class class;
    struct err err;
    variants->specs[variants->count] = spec;
    if (job_class_init(queue->pass, spec ? spec : of->asked, of->inputs, NULL, &class) < 0)
        return;
    if (kind == VARIANT_MEMORY) {
        class.spare_bytes = LESS_BYTES;
        /* The digest is changed, so that this class's answers are remembered apart from those of class
         * `like`. */
        for (size_t i = 0; i < sizeof(class.spare_bytes); i++)
            class.digest[i] ^= (uint8_t)(class.spare_bytes >> (8 * i)) | 1;
    }
    if (job_class_facts(queue->pass, &class, &err) != 1 ||
        ARRAY_RESERVE(queue->classes, queue->class_capacity, queue->class_count + 1, &err) < 0) {
        job_class_fini(&class);
        return;
    }
    class.state = CLASS_READY;
    job_class_speeds(queue->pass, &class);
    queue->classes[queue->class_count] = class;
    variants->kinds[variants->count] = kind;
    variants->shapes[variants->count++] = (uint32_t)queue->class_count++;
}

/* Whether all devices that the class may use have been measured for it. */
static bool pass_sooner_is_measured(const struct queue *queue, const struct job_class *class)
{
    return pass_is_measured_for(queue->pass, class->allowed, class->usable, class->key,
                                class->profiles.document);
}

static void add_variants(struct queue *queue, uint32_t class, struct variants *variants)
{
    const json_t *asked = queue->classes[class].asked, *placement = json_object_get(asked, "placement");
    add_variant(queue, class, NULL, VARIANT_MEMORY, variants);
    if (!json_is_array(json_object_get(placement, "devices")) &&
        json_array_size(json_object_get(placement, "exclude")) == 0)
        return;
    json_t *spec = json_deep_copy(asked), *free_placement = json_object_get(spec, "placement");
    json_object_del(free_placement, "devices");
    json_object_del(free_placement, "exclude");
    add_variant(queue, class, spec, VARIANT_DEVICES, variants);
    if (variants->count > 0 && variants->kinds[variants->count - 1] == VARIANT_DEVICES &&
        !pass_sooner_is_measured(queue, &queue->classes[queue->class_count - 1]))
        variants->count--;
}

/* ---- the answer ---- */

static void pass_sooner_add_time(json_t *row, const char *key, int64_t us)
{
    char text[32];
    json_object_set_new(row, key, us == INT64_MAX ? json_null() : json_string(clock_rfc3339(us, text)));
}

static const char *owner_of(const struct scheduler_pass *pass, int64_t job)
{
    for (size_t i = 0; i < pass->view->job_count; i++)
        for (size_t u = 0; pass->view->jobs[i].id == job && u < pass->view->user_count; u++)
            if (pass->view->users[u].id == pass->view->jobs[i].owner)
                return pass->view->users[u].name;
    return "";
}

static json_t *run_row(const struct queue *queue, int64_t job)
{
    json_t *row = json_pack("{s:s, s:I, s:s}", "kind", "run", "job", (json_int_t)job, "owner",
                            owner_of(queue->pass, job));
    for (size_t i = 0; i < queue->snapshot.run_count; i++)
        if (queue->runs[i].job == job)
            pass_sooner_add_time(row, "ends", queue->runs[i].ends_us);
    return row;
}

static json_t *limit_row(const struct queue *queue, const struct sooner_change *change)
{
    const bool user = change->reason <= REASON_USER_MONTH;
    return json_pack("{s:s, s:s, s:s}", "kind", "limit", "limit", pass_wait_code(change->reason), "of",
                     user ? queue->pass->view->users[change->subject].name
                          : shares_name(queue->pass->scheduler->shares, (uint16_t)change->subject));
}

static json_t *pass_sooner_row_of(const struct queue *queue, const struct sooner_change *change,
                                  const struct variants *variants)
{
    switch (change->kind) {
    case SOONER_RUN:
        return run_row(queue, change->subject);
    case SOONER_LEASE:
        return json_pack("{s:s, s:I}", "kind", "lease", "lease", (json_int_t)change->subject);
    case SOONER_DEVICE:
        return json_pack("{s:s, s:s}", "kind", "device", "device",
                         queue->pass->view->devices[change->subject].name);
    case SOONER_LIMIT:
        return limit_row(queue, change);
    case SOONER_STEPS:
        return json_pack("{s:s, s:I}", "kind", "steps", "steps", (json_int_t)change->number);
    default:
        break;
    }
    for (size_t i = 0; i < variants->count; i++)
        if (variants->shapes[i] == (uint32_t)change->subject && variants->kinds[i] == VARIANT_MEMORY)
            return json_pack("{s:s, s:I}", "kind", "memory", "bytes", (json_int_t)LESS_BYTES);
    return json_pack("{s:s}", "kind", "devices");
}

/* Asks what would let the job start sooner. Returns the changes, new; NULL while the planner is searching, or
 * after a failure. */
static json_t *pass_sooner_ask(struct queue *queue, const struct policy_snapshot *snapshot, size_t index,
                               bool late)
{
    struct scheduler_pass *pass = queue->pass;
    struct asked_planner asked = {.queue = queue};
    const struct policy_planner planner = {pass_sooner_best, &asked};
    struct variants variants = {0};
    struct sooner_change found[SOONER_MAX];
    struct err err;
    int64_t starts_us;
    json_t *changes = NULL;
    add_variants(queue, snapshot->jobs[index].shape, &variants);
    const struct sooner_question question = {.snapshot = snapshot,
                                             .settings = &pass->scheduler->config->sharing,
                                             .planner = &planner,
                                             .now_us = pass->view->now_us,
                                             .job = index,
                                             .shapes = variants.shapes,
                                             .shape_count = variants.count};
    const int count = policy_sooner(&question, found, &starts_us, &err);
    if (count < 0)
        pass->failed = true;
    else if (!asked.pending || late)
        changes = json_array();
    for (int i = 0; changes && i < count; i++) {
        json_t *row = pass_sooner_row_of(queue, &found[i], &variants);
        pass_sooner_add_time(row, "starts", found[i].starts_us);
        pass_add(pass, changes, row);
    }
    for (size_t i = 0; i < VARIANTS; i++)
        json_decref(variants.specs[i]);
    return changes;
}

void pass_sooner(struct queue *queue)
{
    struct scheduler_pass *pass = queue->pass;
    const json_t *open = json_object_get(pass->view->asked, "sooner");
    struct policy_snapshot snapshot = queue->snapshot;
    struct policy_job *front = calloc(queue->front_count + 1, sizeof(*front));
    size_t at;
    json_t *row;
    pass->failed = pass->failed || !front;
    for (size_t i = 0; front && i < queue->front_count; i++)
        front[i] = queue->facts[queue->front[i]];
    snapshot.jobs = front;
    snapshot.job_count = queue->front_count;
    json_array_foreach ((json_t *)(uintptr_t)(front ? open : NULL), at, row) {
        const json_int_t id = json_integer_value(json_array_get(row, 0));
        const bool late = json_number_value(json_array_get(row, 1)) > WAIT_S_MAX;
        size_t index = 0;
        while (index < queue->front_count && front[index].id != id)
            index++;
        json_t *changes =
            index < queue->front_count ? pass_sooner_ask(queue, &snapshot, index, late) : json_array();
        if (changes) {
            pass_add(pass, pass->sooner, json_pack("{s:I, s:o}", "job", id, "changes", changes));
            break; /* a pass answers one question; later passes answer the others */
        }
        if (index < queue->front_count)
            pass_check_at(pass, pass->view->now_us + 1000000);
    }
    free(front);
}
