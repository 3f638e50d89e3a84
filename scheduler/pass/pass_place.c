/* The queue: which job may start now, and on which devices. */
#include "scheduler/pass/pass.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/units.h"
#include "scheduler/pass/policy.h"
#include "scheduler/pass/waiting.h"

#define RETRY_US 5000000
/* 50 ms: the time that one pass spends on the queue; the next pass goes on where it ended */
#define QUEUE_NS_MAX 50000000u

/* The result of considering one job. */
enum placement_outcome {
    OUTCOME_PLACED,
    OUTCOME_SETTLED, /* it was refused, or waits for other devices: the next job may be tried */
    OUTCOME_PENDING, /* facts or a plan are being fetched: no job behind it may overtake it */
};

struct placement_candidate {
    const struct store_sched_job *job;
    struct fact model, train, eval, profiles;
    char key[DIGEST_HEX_SIZE];
    /* Masks over the view's devices. known: ever seen and allowed by the specification. allowed: the known
     * ones that are present. usable: the allowed ones that are free. wanted: the ones that it would take if
     * all were free. */
    bool *known, *allowed, *usable, *wanted;
    size_t known_count, allowed_count, usable_count;
};

/* ---- devices ---- */

static bool runs_something(const struct scheduler_pass *pass, const char *device)
{
    for (size_t i = 0; i < pass->view->run_count; i++) {
        const struct store_sched_run *run = &pass->view->runs[i];
        for (uint32_t k = 0; k < run->rank_count; k++) {
            if (strcmp(run->ranks[k].device, device) == 0 &&
                !state_is_final(&assignment_machine, (int)run->ranks[k].state)) {
                return true;
            }
        }
    }
    return false;
}

static void find_free(struct scheduler_pass *pass)
{
    for (size_t i = 0; i < pass->view->device_count; i++) {
        const struct store_sched_device *device = &pass->view->devices[i];
        const struct store_sched_node *node = pass_node(pass, device->node);
        pass->free_devices[i] = device->present && !device->drained && node != NULL && node->reachable &&
                                !pass_is_measured(pass, device) && !runs_something(pass, device->name);
    }
}

static bool lists_name(const json_t *list, const char *name)
{
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)list, i, item)
    {
        const char *text = json_string_value(item);
        if (text != NULL && strcmp(text, name) == 0) {
            return true;
        }
    }
    return false;
}

static void find_allowed(const struct scheduler_pass *pass, struct placement_candidate *candidate)
{
    const json_t *placement = json_object_get(candidate->job->spec, "placement");
    const json_t *devices = json_object_get(placement, "devices");
    const json_t *exclude = json_object_get(placement, "exclude");
    for (size_t i = 0; i < pass->view->device_count; i++) {
        const struct store_sched_device *device = &pass->view->devices[i];
        candidate->known[i] = (!json_is_array(devices) || lists_name(devices, device->name)) &&
                              !lists_name(exclude, device->name);
        candidate->allowed[i] = candidate->known[i] && device->present;
        candidate->known_count += candidate->known[i] ? 1 : 0;
        candidate->allowed_count += candidate->allowed[i] ? 1 : 0;
    }
    policy_usable(pass->free_devices, pass->reserved, pass->view->device_count, candidate->usable);
    for (size_t i = 0; i < pass->view->device_count; i++) {
        candidate->usable[i] =
            candidate->usable[i] && candidate->allowed[i] && pass->view->devices[i].usable_bytes > 0;
        candidate->usable_count += candidate->usable[i] ? 1 : 0;
    }
}

/* ---- facts ---- */

static int get_named(struct scheduler_pass *pass, enum fact_kind kind, const struct store_sched_job *job,
                     const char *input, struct fact *fact, struct err *err)
{
    const char *key = json_string_value(json_object_get(job->inputs, input));
    return key != NULL ? facts_get(pass->scheduler->facts, kind, key, fact, err) : 1;
}

/* Returns 1 when all facts are there, 0 while one is being fetched, -1 with err. All are asked for at once.
 */
static int get_facts(struct scheduler_pass *pass, struct placement_candidate *candidate, struct err *err)
{
    const struct store_sched_job *job = candidate->job;
    int model = get_named(pass, FACT_MODEL, job, "model", &candidate->model, err);
    int train = model >= 0 ? get_named(pass, FACT_DATASET, job, "train", &candidate->train, err) : -1;
    int eval = train >= 0 ? get_named(pass, FACT_DATASET, job, "eval", &candidate->eval, err) : -1;
    if (model < 0 || train < 0 || eval < 0) {
        return -1;
    }
    if (model == 0 || train == 0 || eval == 0) {
        return 0;
    }
    if (placer_profile_key(job->spec, json_object_get(candidate->model.document, "config"), candidate->key,
                           err) < 0) {
        return -1;
    }
    return facts_get(pass->scheduler->facts, FACT_PROFILES, candidate->key, &candidate->profiles, err);
}

/* ---- planning ---- */

static const json_t *profile_of(const struct placement_candidate *candidate, const char *device)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)candidate->profiles.document, i, row)
    {
        if (strcmp(json_string_value(json_object_get(row, "device")), device) == 0) {
            return json_object_get(row, "document");
        }
    }
    return NULL;
}

/* Plans the job on the devices of `mask`. Returns 1 with *answer, 0 while it is being planned, -1 on failure.
 * With `now`, each device counts with the speed and memory that it has at present; otherwise with those that
 * it has when it is cool and nobody else uses its memory. */
static int plan_on(struct scheduler_pass *pass, const struct placement_candidate *candidate, const bool *mask,
                   bool now, const struct placer_move *move, struct placer_answer *answer, struct err *err)
{
    const struct store_view *view = pass->view;
    struct placer_device *devices = calloc(view->device_count + 1, sizeof(*devices));
    const json_t **links = calloc(view->link_count + 1, sizeof(const json_t *));
    size_t device_count = 0, link_count = 0;
    int rc = -1;
    if (devices == NULL || links == NULL) {
        err_set(err, ERR_NOMEM, "no memory for planning");
        goto out;
    }
    for (size_t i = 0; i < view->device_count; i++) {
        if (mask[i]) {
            const struct store_sched_device *device = &view->devices[i];
            devices[device_count++] = (struct placer_device){.device = device,
                                                             .profile = profile_of(candidate, device->name),
                                                             .memory_bytes = now ? device->usable_bytes
                                                                                 : device->memory_limit_bytes,
                                                             .heat = now ? device->heat : 1};
        }
    }
    for (size_t i = 0; i < view->link_count; i++) {
        links[link_count++] = view->links[i].document;
    }
    const struct placer_request request = {
        .spec = candidate->job->spec,
        .inputs = candidate->job->inputs,
        .model = candidate->model.document,
        .train_sizes = candidate->train.sizes,
        .train_bytes = candidate->train.sizes_bytes,
        .eval_sizes = candidate->eval.sizes,
        .eval_bytes = candidate->eval.sizes_bytes,
        .devices = devices,
        .device_count = device_count,
        .links = links,
        .link_count = link_count,
        .move = move,
    };
    rc = planning_get(pass->scheduler->planning, &request, answer, err);
out:
    free(devices);
    free(links);
    return rc;
}

/* ---- outcomes ---- */

static void refuse(struct scheduler_pass *pass, const struct store_sched_job *job, enum err_code code,
                   const char *why)
{
    struct err err;
    int to = state_next(&job_machine, (int)job->state, JOB_EVENT_REFUSE, &err);
    if (to >= 0) {
        pass_add(pass, pass->jobs,
                 json_pack("{s:I, s:s, s:s, s:s, s:s}", "job", (json_int_t)job->id, "before", "queued",
                           "state", state_name(&job_machine, to), "code", err_code_name(code), "why", why));
    }
}

/* Handles an error in planning: refuses the job if it is the job's fault, otherwise tries again after
 * RETRY_US. */
static enum placement_outcome give_up(struct scheduler_pass *pass, const struct store_sched_job *job,
                                      const struct err *err)
{
    switch (err->code) {
    case ERR_INVALID:
    case ERR_UNSUPPORTED:
    case ERR_NOFIT:
    case ERR_NOT_FOUND:
    case ERR_TOO_BIG:
    case ERR_CORRUPT:
        refuse(pass, job, err->code, err->text);
        break;
    default:
        pass_wait(pass, job, "cannot be planned now: %s", err->text);
        pass_check_at(pass, pass->view->now_us + RETRY_US);
        break;
    }
    return OUTCOME_SETTLED;
}

/* Whether other processes hold memory of the device that plans count on. */
static bool is_taken(const struct store_sched_device *device)
{
    return device->usable_bytes < device->memory_limit_bytes;
}

static bool is_there(const struct scheduler_pass *pass, size_t i)
{
    const struct store_sched_device *device = &pass->view->devices[i];
    const struct store_sched_node *node = pass_node(pass, device->node);
    return device->present && !device->drained && node != NULL && node->reachable && !is_taken(device);
}

/* Reserves the devices that a waiting job would use against the jobs behind it, but only while all of them
 * are present and will become free by themselves: nobody knows when an absent device comes back, or when
 * other processes release memory. */
static void reserve(struct scheduler_pass *pass, const struct placement_candidate *candidate)
{
    for (size_t i = 0; i < pass->view->device_count; i++) {
        if (candidate->wanted[i] && !is_there(pass, i)) {
            return;
        }
    }
    for (size_t i = 0; i < pass->view->device_count; i++) {
        pass->reserved[i] = pass->reserved[i] || candidate->wanted[i];
    }
}

static const char *why_not_usable(const struct scheduler_pass *pass, size_t i, char text[240])
{
    char usable[32];
    const struct store_sched_device *device = &pass->view->devices[i];
    const struct store_sched_node *node = pass_node(pass, device->node);
    if (node == NULL || !node->reachable) {
        return "unreachable";
    }
    if (!device->present) {
        return "missing: its agent no longer names it";
    }
    if (device->drained && device->drain_why != NULL) {
        snprintf(text, 240, "drained: %s", device->drain_why);
        return text;
    }
    if (device->drained) {
        return "drained";
    }
    if (pass_is_measured(pass, device)) {
        return "being measured";
    }
    if (is_taken(device)) {
        snprintf(text, 240, "others hold memory of it: %s are left",
                 units_bytes(usable, device->usable_bytes));
        return text;
    }
    return pass->reserved[i] && pass->free_devices[i] ? "kept for a job in front" : "busy";
}

static void say_waits(struct scheduler_pass *pass, const struct placement_candidate *candidate)
{
    char text[400] = "", why[240];
    size_t used = 0;
    for (size_t i = 0; i < pass->view->device_count && used < sizeof(text); i++) {
        if (candidate->wanted[i] && (!candidate->usable[i] || is_taken(&pass->view->devices[i]))) {
            int more = snprintf(text + used, sizeof(text) - used, "%s%s (%s)", used > 0 ? ", " : "",
                                pass->view->devices[i].name, why_not_usable(pass, i, why));
            used += more > 0 ? (size_t)more : 0;
        }
    }
    pass_wait(pass, candidate->job, "waits for %s", text[0] != '\0' ? text : "devices");
}

/* The job waits for the devices of `ideal`, and is not planned again while no further device is free for it.
 */
static enum placement_outcome waits_for(struct scheduler_pass *pass,
                                        const struct placement_candidate *candidate,
                                        const struct placer_answer *ideal)
{
    for (size_t i = 0; i < pass->view->device_count; i++) {
        for (size_t k = 0; k < ideal->rank_count; k++) {
            candidate->wanted[i] =
                candidate->wanted[i] || strcmp(ideal->ranks[k].device, pass->view->devices[i].name) == 0;
        }
    }
    say_waits(pass, candidate);
    reserve(pass, candidate);
    waiting_put(pass->scheduler->waiting, candidate->job->id, candidate->usable, candidate->wanted);
    return OUTCOME_SETTLED;
}

/* Asks whether the job would fit on `mask`; if so, it waits for those devices. Otherwise *fits is false and
 * err says why. */
static enum placement_outcome would_fit(struct scheduler_pass *pass,
                                        const struct placement_candidate *candidate, const bool *mask,
                                        bool *fits, struct err *err)
{
    struct placer_answer ideal;
    enum placement_outcome outcome = OUTCOME_SETTLED;
    int planned = plan_on(pass, candidate, mask, false, NULL, &ideal, err);
    *fits = planned == 0 || (planned > 0 && ideal.fits);
    if (planned == 0) {
        return OUTCOME_PENDING;
    }
    if (*fits) {
        outcome = waits_for(pass, candidate, &ideal);
    } else if (planned > 0) {
        err_set(err, ERR_NOFIT, "%s", ideal.words);
    }
    placer_answer_fini(&ideal);
    return outcome;
}

/* The job does not fit on the free devices, for the reason in `why`. Asks whether it would fit on all present
 * devices, or else on all devices ever seen. */
static enum placement_outcome not_now(struct scheduler_pass *pass,
                                      const struct placement_candidate *candidate, const struct err *why)
{
    struct err err = *why;
    bool fits = false;
    enum placement_outcome outcome = OUTCOME_SETTLED;
    bool taken = false;
    for (size_t i = 0; i < pass->view->device_count; i++) {
        taken = taken || (candidate->allowed[i] && is_taken(&pass->view->devices[i]));
    }
    if (taken || candidate->usable_count < candidate->allowed_count) {
        outcome = would_fit(pass, candidate, candidate->allowed, &fits, &err);
    }
    if (!fits && err.code != ERR_NOMEM && candidate->allowed_count < candidate->known_count) {
        outcome = would_fit(pass, candidate, candidate->known, &fits, &err);
    }
    return fits ? outcome : give_up(pass, candidate->job, &err);
}

static enum placement_outcome try_to_plan(struct scheduler_pass *pass,
                                          const struct placement_candidate *candidate)
{
    struct err err;
    if (candidate->known_count == 0) {
        pass_wait(pass, candidate->job,
                  pass->view->device_count == 0 ? "no device has joined the cluster yet"
                                                : "none of the devices it may use is there");
        return OUTCOME_SETTLED;
    }
    if (candidate->usable_count == 0) {
        err_set(&err, ERR_NOFIT, "nothing is free");
        return not_now(pass, candidate, &err);
    }
    int planned = plan_on(pass, candidate, candidate->usable, true, NULL, &pass->answer, &err);
    if (planned == 0) {
        return OUTCOME_PENDING;
    }
    if (planned > 0 && !pass->answer.fits) {
        err_set(&err, ERR_NOFIT, "%s", pass->answer.words);
        placer_answer_fini(&pass->answer);
        pass->answer = (struct placer_answer){0};
        planned = -1;
    }
    /* a plan may be possible once more devices are free ("a pipeline needs two devices") */
    if (planned < 0) {
        return err.code != ERR_NOMEM ? not_now(pass, candidate, &err) : give_up(pass, candidate->job, &err);
    }
    pass->placed = candidate->job;
    pass->placed_model = json_incref((json_t *)candidate->model.document);
    pass->placed_train = json_incref((json_t *)candidate->train.document);
    pass->placed_eval = json_incref((json_t *)candidate->eval.document);
    return OUTCOME_PLACED;
}

static void candidate_fini(struct placement_candidate *candidate)
{
    free(candidate->known);
    free(candidate->allowed);
    free(candidate->usable);
    free(candidate->wanted);
}

static int candidate_init(struct scheduler_pass *pass, const struct store_sched_job *job,
                          struct placement_candidate *candidate)
{
    *candidate = (struct placement_candidate){.job = job};
    bool **const masks[] = {&candidate->known, &candidate->allowed, &candidate->usable, &candidate->wanted};
    for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
        *masks[i] = calloc(pass->view->device_count + 1, sizeof(bool));
        pass->failed = pass->failed || *masks[i] == NULL;
    }
    if (pass->failed) {
        candidate_fini(candidate);
        return -1;
    }
    find_allowed(pass, candidate);
    return 0;
}

static enum placement_outcome consider(struct scheduler_pass *pass, const struct store_sched_job *job)
{
    struct placement_candidate candidate;
    struct err err;
    enum placement_outcome outcome = OUTCOME_SETTLED;
    if (candidate_init(pass, job, &candidate) < 0) {
        return OUTCOME_SETTLED;
    }
    if (waiting_get(pass->scheduler->waiting, job->id, candidate.usable, candidate.wanted)) {
        say_waits(pass, &candidate);
        reserve(pass, &candidate);
        candidate_fini(&candidate);
        return OUTCOME_SETTLED;
    }
    int there = get_facts(pass, &candidate, &err);
    if (there <= 0) {
        outcome = there < 0 ? give_up(pass, job, &err) : OUTCOME_PENDING;
    } else if (pass_profiles(pass, job, candidate.allowed, candidate.usable, candidate.key,
                             candidate.profiles.document, candidate.model.document)) {
        outcome = try_to_plan(pass, &candidate);
    }
    candidate_fini(&candidate);
    return outcome;
}

int pass_weigh_move(struct scheduler_pass *pass, const struct store_sched_run *run,
                    const struct store_sched_job *asked, const struct placer_move *move,
                    struct placer_answer *answer, struct err *err)
{
    struct placement_candidate candidate;
    find_free(pass);
    if (candidate_init(pass, asked, &candidate) < 0) {
        return err_set(err, ERR_NOMEM, "no memory for planning");
    }
    bool others = false; /* queued jobs: free devices are kept for them */
    for (size_t i = 0; i < pass->view->job_count; i++) {
        others = others || pass->view->jobs[i].state == JOB_QUEUED;
    }
    for (size_t i = 0; i < pass->view->device_count; i++) {
        bool own = false;
        for (uint32_t k = 0; k < run->rank_count && !own; k++) {
            own = strcmp(run->ranks[k].device, pass->view->devices[i].name) == 0;
        }
        candidate.usable[i] = own || (candidate.usable[i] && !others);
    }
    int there = get_facts(pass, &candidate, err);
    there = there == 1 ? plan_on(pass, &candidate, candidate.usable, true, move, answer, err) : there;
    candidate_fini(&candidate);
    return there;
}

/* Measures devices for people who asked only for a plan, while no job takes the devices. */
static void measure_wanted(struct scheduler_pass *pass)
{
    for (size_t i = 0; i < pass->view->measure_count && pass->placed == NULL; i++) {
        const struct store_sched_job asked = {.spec = pass->view->measures[i].spec,
                                              .inputs = pass->view->measures[i].inputs};
        struct placement_candidate candidate;
        struct err err;
        if (candidate_init(pass, &asked, &candidate) < 0) {
            return;
        }
        if (get_facts(pass, &candidate, &err) == 1) {
            pass_profiles(pass, &asked, candidate.allowed, candidate.usable, candidate.key,
                          candidate.profiles.document, candidate.model.document);
        }
        candidate_fini(&candidate);
    }
}

/* Whether a device is left for the jobs behind. */
static bool something_is_left(const struct scheduler_pass *pass)
{
    for (size_t i = 0; i < pass->view->device_count; i++) {
        if (pass->free_devices[i] && !pass->reserved[i]) {
            return true;
        }
    }
    return false;
}

/* All jobs of this view wait, and devices are left. The next pass examines a further window of the queue, and
 * so on until a job takes the devices or the end of the queue is reached. */
static void look_further(struct scheduler_pass *pass, const struct policy_job *queue, const size_t *order,
                         size_t count)
{
    struct scheduler *scheduler = pass->scheduler;
    struct store_queue_mark *mark = &scheduler->queue_mark;
    size_t behind = 0;
    for (size_t i = 0; i < count; i++) {
        const struct policy_job *job = &queue[order[i]];
        bool further = !mark->set || job->priority < mark->priority ||
                       (job->priority == mark->priority && job->id > mark->id);
        behind += further ? 1 : 0;
    }
    if (behind < scheduler->config->limits.queue_max) {
        mark->set = false;
        return;
    }
    const struct policy_job *last = &queue[order[count - 1]];
    *mark = (struct store_queue_mark){.set = true, .priority = last->priority, .id = last->id};
    pass_check_at(pass, pass->view->now_us);
}

/* Considers the queue in order, for at most QUEUE_NS_MAX. What was found of a waiting job is remembered, so
 * the next pass comes further. */
static void walk(struct scheduler_pass *pass, const struct policy_job *queue, const size_t *index,
                 const size_t *order, size_t count)
{
    uint64_t until_ns = clock_mono_ns() + QUEUE_NS_MAX;
    for (size_t i = 0; i < count; i++) {
        if (consider(pass, &pass->view->jobs[index[order[i]]]) != OUTCOME_SETTLED) {
            return;
        }
        if (clock_mono_ns() > until_ns && i + 1 < count) {
            pass_check_at(pass, pass->view->now_us);
            return;
        }
    }
    if (count > 0 && something_is_left(pass)) {
        look_further(pass, queue, order, count);
    }
}

void pass_queue(struct scheduler_pass *pass)
{
    const struct store_view *view = pass->view;
    struct policy_job *queue = calloc(view->job_count + 1, sizeof(*queue));
    size_t *index = calloc(view->job_count + 1, sizeof(*index));
    size_t *order = calloc(view->job_count + 1, sizeof(*order));
    size_t count = 0;
    if (queue == NULL || index == NULL || order == NULL) {
        pass->failed = true;
        goto out;
    }
    for (size_t i = 0; i < view->job_count; i++) {
        if (view->jobs[i].state == JOB_QUEUED) {
            queue[count] = (struct policy_job){view->jobs[i].id, view->jobs[i].priority};
            index[count++] = i;
        }
    }
    find_free(pass);
    waiting_begin(pass->scheduler->waiting, view, facts_profiles_seen(pass->scheduler->facts));
    policy_order(queue, count, order);
    walk(pass, queue, index, order, count);
    measure_wanted(pass);
    pass->scheduler->devices_free = false;
    for (size_t i = 0; i < view->device_count; i++) {
        pass->scheduler->devices_free = pass->scheduler->devices_free || pass->free_devices[i];
    }
out:
    free(queue);
    free(index);
    free(order);
}

/* ---- the run ---- */

static const struct store_sched_device *find_device(const struct scheduler_pass *pass, const char *name)
{
    for (size_t i = 0; i < pass->view->device_count; i++) {
        if (strcmp(pass->view->devices[i].name, name) == 0) {
            return &pass->view->devices[i];
        }
    }
    return NULL;
}

/* Where the run begins: at the last complete checkpoint, or at step 0. */
static json_t *compose_start(const struct store_sched_job *job)
{
    bool resumes = job->checkpoint_step >= 0 && job->checkpoint_blobs != NULL;
    json_t *start =
        json_pack("{s:I, s:I, s:O?, s:O?}", "step", (json_int_t)(resumes ? job->checkpoint_step : 0),
                  "reported", (json_int_t)job->reported, "checkpoint", resumes ? job->checkpoint_blobs : NULL,
                  "adapter", json_object_get(job->inputs, "adapter"));
    if (start != NULL && resumes && isfinite(job->best_loss)) {
        json_object_set_new(start, "best_loss", json_real(job->best_loss));
    }
    return start;
}

static json_t *compose_data(const struct scheduler_pass *pass)
{
    json_t *data = json_pack("{s:O?, s:O?}", "train", json_object_get(pass->placed_train, "blob"), "eval",
                             json_object_get(pass->placed_eval, "blob"));
    static const char *const keys[] = {"format", "said", "first"};
    for (size_t i = 0; data != NULL && i < sizeof(keys) / sizeof(keys[0]); i++) {
        json_t *text = json_object_get(json_object_get(pass->placed_train, "stats"), keys[i]);
        if (json_is_string(text)) {
            json_object_set(data, keys[i], text);
        }
    }
    return data;
}

static json_t *compose_model(const struct scheduler_pass *pass)
{
    json_t *model = json_pack("{}");
    static const char *const keys[] = {"name", "content", "config", "files"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        json_object_set(model, keys[i], json_object_get(pass->placed_model, keys[i]));
    }
    return model;
}

static json_t *compose_ranks(struct scheduler_pass *pass, const json_t *assignments)
{
    json_t *ranks = json_array();
    for (size_t i = 0; i < pass->answer.rank_count; i++) {
        const struct store_sched_device *device = find_device(pass, pass->answer.ranks[i].device);
        pass_add(pass, ranks,
                 device != NULL
                     ? json_pack("{s:I, s:s, s:s, s:O}", "rank", (json_int_t)i, "node", device->node,
                                 "device", device->name, "assignment", json_array_get(assignments, i))
                     : NULL);
    }
    return ranks;
}

/* How long the ranks wait for each other, derived from the plan's predicted step time. */
static json_t *compose_limits(const struct scheduler_pass *pass)
{
    const struct scheduler_limits *limits = &pass->scheduler->config->limits;
    double step_s = json_number_value(json_object_get(json_object_get(pass->answer.plan, "costs"), "step_s"));
    uint32_t wait_ms = policy_wait_ms(step_s, limits->wait_steps, limits->wait_ms_min, limits->wait_ms_max);
    return json_pack("{s:f, s:f}", "wait", wait_ms / 1e3, "save", limits->save_wait_ms / 1e3);
}

/* The part of an assignment that is the same for every rank. */
static json_t *compose_common(struct scheduler_pass *pass, const json_t *numbers, json_t *ranks)
{
    const struct store_sched_job *job = pass->placed;
    json_t *common = json_pack("{s:I, s:O, s:I, s:O, s:O, s:O, s:O, s:o, s:o, s:o, s:O, s:o}", "job",
                               (json_int_t)job->id, "run", json_object_get(numbers, "run"), "attempt",
                               (json_int_t)job->attempt + 1, "epoch", json_object_get(numbers, "epoch"),
                               "ranks", ranks, "plan", pass->answer.plan, "spec", job->spec, "model",
                               compose_model(pass), "data", compose_data(pass), "start", compose_start(job),
                               "links", pass->scheduler->config->links, "limits", compose_limits(pass));
    json_t *sample = json_object_get(job->inputs, "sample");
    if (common != NULL && json_is_object(sample)) {
        json_object_set(common, "sample", sample);
    }
    return common;
}

void pass_compose_run(struct scheduler_pass *pass, const json_t *numbers)
{
    const struct store_sched_job *job = pass->placed;
    int64_t run = json_integer_value(json_object_get(numbers, "run"));
    json_t *ranks = compose_ranks(pass, json_object_get(numbers, "assignments"));
    json_t *common = compose_common(pass, numbers, ranks);
    const json_t *planner = json_object_get(pass->answer.answer, "planner");
    size_t i;
    json_t *rank;
    json_array_foreach(ranks, i, rank)
    {
        json_t *assign = json_copy(common);
        if (assign == NULL || json_object_update(assign, rank) < 0) {
            pass->failed = true;
        }
        pass_message(pass, json_string_value(json_object_get(rank, "node")), run, "assign", assign);
    }
    pass_add(pass, pass->runs_new,
             json_pack("{s:I, s:I, s:I, s:O, s:O, s:O?, s:I, s:O}", "run", (json_int_t)run, "job",
                       (json_int_t)job->id, "attempt", (json_int_t)job->attempt + 1, "epoch",
                       json_object_get(numbers, "epoch"), "plan", pass->answer.plan, "answer",
                       pass->answer.answer, "start_step",
                       (json_int_t)(job->checkpoint_step > 0 ? job->checkpoint_step : 0), "ranks", ranks));
    pass_add(pass, pass->jobs,
             json_pack("{s:I, s:s, s:s, s:I, s:O?}", "job", (json_int_t)job->id, "before", "queued", "state",
                       "starting", "run", (json_int_t)run, "why", json_object_get(planner, "why")));
    json_decref(common);
    json_decref(ranks);
}
