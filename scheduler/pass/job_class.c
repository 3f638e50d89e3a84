/* Gathers what planning a class of jobs needs, and keeps the planner's answers. */
#include "scheduler/pass/job_class.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/json.h"
#include "model/job/plan_class.h"
#include "planner/given/catalogue.h"
#include "scheduler/pass/plan_memo.h"

/* ---- devices ---- */

static bool lists_name(const json_t *list, const char *name)
{
    size_t i;
    json_t *item;
    json_array_foreach ((json_t *)list, i, item) {
        const char *text = json_string_value(item);
        if (text && strcmp(text, name) == 0)
            return true;
    }
    return false;
}

bool pass_allows(const json_t *spec, const char *device)
{
    const json_t *placement = json_object_get(spec, "placement");
    const json_t *devices = json_object_get(placement, "devices");
    return (!json_is_array(devices) || lists_name(devices, device)) &&
           !lists_name(json_object_get(placement, "exclude"), device);
}

bool device_is_taken(const struct store_sched_device *device)
{
    return device->usable_bytes < device->memory_limit_bytes;
}

bool device_can_start(const struct scheduler_pass *pass, size_t i)
{
    const struct store_sched_device *device = &pass->view->devices[i];
    const struct store_sched_node *node = pass_node(pass, device->node);
    return device->present && !device->drained && !device->lacks && node && node->reachable &&
           !node_is_leaving(pass, node);
}

bool device_is_there(const struct scheduler_pass *pass, size_t i)
{
    return device_can_start(pass, i) && !device_is_taken(&pass->view->devices[i]);
}

void job_class_devices(const struct scheduler_pass *pass, struct job_class *class)
{
    class->known_count = class->allowed_count = class->usable_count = 0;
    for (size_t i = 0; i < pass->view->device_count; i++) {
        const struct store_sched_device *device = &pass->view->devices[i];
        class->known[i] = pass_allows(class->spec, device->name);
        class->allowed[i] = class->known[i] && device->present;
        class->usable[i] = class->allowed[i] && pass->free_devices[i] && device->usable_bytes > 0;
        class->known_count += class->known[i] ? 1 : 0;
        class->allowed_count += class->allowed[i] ? 1 : 0;
        class->usable_count += class->usable[i] ? 1 : 0;
    }
}

/* ---- the class ---- */

void job_class_fini(struct job_class *class)
{
    free(class->questions);
    json_decref(class->spec);
    free(class->speeds);
    free(class->known);
    free(class->allowed);
    free(class->usable);
    free(class->wanted);
}

int job_class_init(struct scheduler_pass *pass, const json_t *spec, const json_t *inputs,
                   const uint8_t digest[DIGEST_SIZE], struct job_class *class)
{
    const json_t *count = json_object_get(json_object_get(spec, "placement"), "count");
    const json_int_t least = json_integer_value(json_object_get(count, "least"));
    struct err err;
    *class = (struct job_class){.asked = spec,
                                .inputs = inputs,
                                .spec = plan_class_spec(spec),
                                .devices_least = (uint16_t)(least > 1 ? least : 1),
                                .devices_most = (uint16_t)json_integer_value(json_object_get(count, "most"))};
    if (digest)
        memcpy(class->digest, digest, sizeof(class->digest));
    bool **const masks[] = {&class->known, &class->allowed, &class->usable, &class->wanted};
    for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
        *masks[i] = calloc(pass->view->device_count + 1, sizeof(bool));
        pass->failed = pass->failed || !*masks[i];
    }
    class->speeds = calloc(pass->view->device_count + 1, sizeof(double));
    if (pass->failed || !class->spec || !class->speeds ||
        (!digest && plan_class_digest(class->spec, inputs, class->digest, &err) < 0)) {
        pass->failed = true;
        job_class_fini(class);
        return -1;
    }
    err_set(&class->err, ERR_NOFIT, "nothing is free");
    job_class_devices(pass, class);
    return 0;
}

const char *job_class_word(const struct job_class *class, const char *key)
{
    const char *word = json_string_value(json_object_get(json_object_get(class->spec, "placement"), key));
    return word ? word : "";
}

bool job_class_forces_kind(const struct job_class *class)
{
    const char *kind = job_class_word(class, "kind");
    return *kind && strcmp(kind, "auto") != 0;
}

int job_class_any_kind(struct scheduler_pass *pass, struct job_class *class)
{
    static const char *const shapes[] = {"kind", "stages", "schedule"};
    json_t *spec = json_deep_copy(class->spec);
    int rc = spec ? 0 : -1;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && rc == 0; i++)
        rc = json_object_set_new(json_object_get(spec, "placement"), shapes[i], json_string("auto"));
    if (rc < 0) {
        pass->failed = true;
        json_decref(spec);
        return -1;
    }
    json_decref(class->spec);
    class->spec = spec;
    class->any_kind = true;
    return 0;
}

/* ---- facts ---- */

static int get_named(struct scheduler_pass *pass, enum fact_kind kind, const json_t *inputs,
                     const char *input, struct fact *fact, struct err *err)
{
    const char *key = json_string_value(json_object_get(inputs, input));
    return key ? facts_get(pass->scheduler->facts, kind, key, fact, err) : 1;
}

/* Asks the cache (placer/facts.h) for the model and both data sets at once, so that they are fetched
 * together. Once these are there, it asks for the profiles. */
int job_class_facts(struct scheduler_pass *pass, struct job_class *class, struct err *err)
{
    int model = get_named(pass, FACT_MODEL, class->inputs, "model", &class->model, err);
    int train = model >= 0 ? get_named(pass, FACT_DATASET, class->inputs, "train", &class->train, err) : -1;
    int eval = train >= 0 ? get_named(pass, FACT_DATASET, class->inputs, "eval", &class->eval, err) : -1;
    if (model < 0 || train < 0 || eval < 0)
        return -1;
    if (model == 0 || train == 0 || eval == 0)
        return 0;
    if (placer_profile_key(class->asked, json_object_get(class->model.document, "config"), class->key, err) <
        0)
        return -1;
    return facts_get(pass->scheduler->facts, FACT_PROFILES, class->key, &class->profiles, err);
}

/* ---- planning ---- */

/* Returns the row of a device among the class's profiles, or NULL. */
static const json_t *job_class_profile_of(const struct job_class *class, const char *device)
{
    size_t i;
    json_t *row;
    json_array_foreach ((json_t *)class->profiles.document, i, row)
        if (strcmp(json_string_value(json_object_get(row, "device")), device) == 0)
            return row;
    return NULL;
}

static int job_class_compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Collects the links between the nodes of the devices in `mask`, in a new array that the caller frees. */
static int links_among(const struct store_view *view, const bool *mask, const json_t ***links, size_t *count)
{
    const char **nodes = calloc(view->device_count + 1, sizeof(const char *));
    size_t node_count = 0, room = 0, of;
    for (size_t i = 0; nodes && i < view->device_count; i++)
        if (mask[i])
            nodes[node_count++] = view->devices[i].node;
    if (nodes)
        qsort(nodes, node_count, sizeof(const char *), job_class_compare_names);
    size_t distinct = 0;
    for (size_t i = 0; i < node_count; i++)
        if (distinct == 0 || strcmp(nodes[distinct - 1], nodes[i]) != 0)
            nodes[distinct++] = nodes[i];
    for (size_t i = 0; i < distinct; i++, room += of)
        store_links_of(view, nodes[i], &of);
    *links = calloc(room + 1, sizeof(const json_t *));
    for (size_t i = 0; *links && i < distinct; i++) {
        const struct store_sched_link *from = store_links_of(view, nodes[i], &of);
        for (size_t k = 0; k < of; k++) {
            const char *to = from[k].to;
            if (bsearch(&to, nodes, distinct, sizeof(const char *), job_class_compare_names))
                (*links)[(*count)++] = from[k].document;
        }
    }
    const int rc = nodes && *links ? 0 : -1;
    free(nodes);
    return rc;
}

/* Whether the plan's devices are all in the mask. */
static bool has_devices(const struct scheduler_pass *pass, const json_t *plan, const bool *mask)
{
    size_t i;
    json_t *rank;
    json_array_foreach (json_object_get(plan, "ranks"), i, rank) {
        const struct store_sched_device *device = pass_device(pass, json_text_of(rank, "device"));
        if (!device || !mask[device - pass->view->devices])
            return false;
    }
    return true;
}

int job_class_plan(struct scheduler_pass *pass, const struct job_class *class, const bool *mask, bool now,
                   const struct placer_move *move, struct placer_answer *answer, struct err *err)
{
    const struct store_view *view = pass->view;
    struct placer_device *devices = calloc(view->device_count + 1, sizeof(*devices));
    const json_t **links = NULL;
    size_t device_count = 0, link_count = 0;
    int rc = -1;
    if (!devices || links_among(view, mask, &links, &link_count) < 0) {
        err_set(err, ERR_NOMEM, "no memory for planning");
        goto out;
    }
    for (size_t i = 0; i < view->device_count; i++) {
        if (mask[i]) {
            const struct store_sched_device *device = &view->devices[i];
            struct placer_device *to = &devices[device_count++];
            *to = (struct placer_device){.device = device,
                                         .memory_bytes =
                                             class->spare_bytes +
                                             (now ? device->usable_bytes : device->memory_limit_bytes),
                                         .heat = now ? device->heat : 1};
            const json_t *row = job_class_profile_of(class, device->name);
            to->profile = json_object_get(row, "document");
            to->speed = json_number_value(json_object_get(row, "speed"));
            to->taught = json_object_get(row, "taught");
        }
    }
    const struct placer_request request = {
        .spec = class->spec,
        .inputs = class->inputs,
        .model = class->model.document,
        .train_sizes = class->train.sizes,
        .train_bytes = class->train.sizes_bytes,
        .eval_sizes = class->eval.sizes,
        .eval_bytes = class->eval.sizes_bytes,
        .devices = devices,
        .device_count = device_count,
        .links = links,
        .link_count = link_count,
        .move = move,
        .pinned = class->pinned && !move && has_devices(pass, class->pinned, mask) ? class->pinned : NULL,
    };
    rc = planning_get(pass->scheduler->planning, &request, answer, err);
out:
    free(devices);
    free(links);
    return rc;
}

void job_class_speeds(const struct scheduler_pass *pass, struct job_class *class)
{
    const char *wanted = pass->scheduler->config->sharing_reference;
    double reference = 0;
    for (size_t i = 0; i < pass->view->device_count; i++) {
        const char *name = pass->view->devices[i].name;
        const json_t *row = job_class_profile_of(class, name), *profile = json_object_get(row, "document");
        const double measured = json_number_value(json_object_get(row, "speed"));
        const double rate = profile ? catalogue_measured_rate(profile) : 0;
        const bool named = wanted && strcmp(wanted, name) == 0;
        class->speeds[i] = rate > 0 ? rate * (measured > 0 ? measured : 1) : 0;
        if (class->speeds[i] > 0 && (named || class->speeds[i] > reference) &&
            (!wanted || strcmp(class->reference, wanted) != 0)) {
            reference = class->speeds[i];
            snprintf(class->reference, sizeof(class->reference), "%s", name);
        }
    }
    for (size_t i = 0; i < pass->view->device_count && reference > 0; i++)
        class->speeds[i] /= reference;
}

json_t *job_class_speeds_document(const struct scheduler_pass *pass, const struct job_class *class)
{
    json_t *speeds = json_object();
    for (size_t d = 0; d < pass->view->device_count; d++)
        if (class->known[d])
            json_object_set_new(speeds, pass->view->devices[d].name,
                                json_real(class->speeds[d] > 0 ? class->speeds[d] : 1));
    return speeds;
}

/* Turns a planner's answer into the form in which the policies know plans. */
static void to_policy(const struct scheduler_pass *pass, const struct job_class *class,
                      const struct placer_answer *answer, struct policy_plan *plan)
{
    size_t i;
    json_t *rank;
    *plan = (struct policy_plan){
        .step_s = json_number_value(json_object_get(json_object_get(answer->plan, "costs"), "step_s"))};
    for (size_t r = 0; r < answer->rank_count; r++) {
        for (size_t d = 0; d < pass->view->device_count && d < POLICY_DEVICES_MAX; d++) {
            if (strcmp(pass->view->devices[d].name, answer->ranks[r].device) != 0)
                continue;
            plan->rate += device_set_has(&plan->devices, d) ? 0 : class->speeds[d] > 0 ? class->speeds[d] : 1;
            device_set_add(&plan->devices, d);
        }
    }
    if (plan->step_s > 0)
        return;
    json_array_foreach (json_object_get(answer->plan, "ranks"), i, rank)
        plan->step_s = fmax(plan->step_s, json_number_value(json_object_get(rank, "busy_s")));
    /* a plan without a forecast counts as one second a step */
    plan->step_s = plan->step_s > 0 ? plan->step_s : 1;
}

/* Removes all but the fastest `most` devices from the set. */
static void keep_fastest(const struct job_class *class, struct device_set *set, size_t most)
{
    while (device_set_count(set) > most) {
        size_t slowest = device_set_next(set, 0);
        for (size_t d = slowest; d < POLICY_DEVICES_MAX; d = device_set_next(set, d + 1))
            if (class->speeds[d] < class->speeds[slowest])
                slowest = d;
        device_set_remove(set, slowest);
    }
}

/* With placement.fallback: any, lets the class take any kind of placement if the forced kind does not fit all
 * devices that are present. Returns 1 when that is decided, 0 while the planner is searching, -1 without
 * memory. */
static int settle_kind(struct scheduler_pass *pass, struct job_class *class)
{
    struct placer_answer answer;
    struct err err;
    if (class->kind_asked || class->any_kind || !job_class_forces_kind(class) ||
        strcmp(job_class_word(class, "fallback"), "any") != 0)
        return 1;
    bool *mask = calloc(pass->view->device_count + 1, sizeof(bool));
    if (!mask) {
        pass->failed = true;
        return -1;
    }
    for (size_t i = 0; i < pass->view->device_count; i++)
        mask[i] = class->allowed[i] && device_is_there(pass, i);
    err_set(&err, ERR_NOFIT, "nothing is there");
    int planned = job_class_plan(pass, class, mask, false, NULL, &answer, &err);
    const bool fits = planned > 0 && answer.fits;
    if (planned > 0 && !fits)
        err_set(&err, ERR_NOFIT, "%s", answer.words);
    if (planned > 0)
        placer_answer_fini(&answer);
    free(mask);
    if (planned == 0)
        return 0;
    class->kind_asked = true;
    if (fits)
        return 1;
    snprintf(
        class->fell, sizeof(class->fell),
        "placement.kind: %s does not fit the devices that are there (%.300s); as placement.fallback is any, "
        "it runs as ",
        job_class_word(class, "kind"), err.text);
    return job_class_any_kind(pass, class) < 0 ? -1 : 1;
}

/* Plans the class on a set of devices. Returns whether it fits, with *plan and *answer when it does. */
static enum policy_fit plan_set(struct scheduler_pass *pass, struct job_class *class,
                                const struct device_set *set, bool now, struct policy_plan *plan,
                                struct placer_answer *answer)
{
    size_t count = 0;
    bool *mask = calloc(pass->view->device_count + 1, sizeof(bool));
    if (!mask) {
        pass->failed = true;
        return FIT_NO;
    }
    for (size_t d = 0; d < pass->view->device_count && d < POLICY_DEVICES_MAX; d++) {
        mask[d] = device_set_has(set, d) && class->known[d] &&
                  (!now || (class->allowed[d] && pass->view->devices[d].usable_bytes > 0));
        count += mask[d] ? 1 : 0;
    }
    int planned = count == 0 ? -1 : job_class_plan(pass, class, mask, now, NULL, answer, &class->err);
    free(mask);
    if (planned <= 0)
        return planned == 0 ? FIT_PENDING : FIT_NO;
    if (!answer->fits) {
        err_set(&class->err, ERR_NOFIT, "%s", answer->words);
        placer_answer_fini(answer);
        return FIT_NO;
    }
    to_policy(pass, class, answer, plan);
    return FIT_YES;
}

/* Finds the best plan on at most `most` devices. If the best plan on any number of devices has more than
 * `most`, it plans again on the fastest `most` of that plan's devices. */
static enum policy_fit job_class_plan_best(struct scheduler_pass *pass, struct job_class *class,
                                           const struct device_set *there, const struct device_set *among,
                                           uint16_t most, struct policy_plan *plan,
                                           struct placer_answer *answer)
{
    const bool now = device_set_is_subset(among, there);
    enum policy_fit fit = plan_set(pass, class, among, now, plan, answer);
    if (fit != FIT_YES || most == 0 || device_set_count(&plan->devices) <= most)
        return fit;
    placer_answer_fini(answer);
    struct device_set fewer = plan->devices;
    keep_fastest(class, &fewer, most);
    return plan_set(pass, class, &fewer, now, plan, answer);
}

/* Drops the rivals that have fewer or more devices than the job may take (most 0: any number). The list is
 * shared with the planner's memory, so the answer gets one of its own. */
static void keep_allowed(struct placer_answer *answer, size_t least, size_t most)
{
    json_t *kept = json_array(), *rival;
    size_t i;
    json_array_foreach (answer->rivals, i, rival) {
        const size_t devices = json_array_size(json_object_get(rival, "devices"));
        if (devices >= least && (most == 0 || devices <= most))
            json_array_append(kept, rival);
    }
    json_decref(answer->rivals);
    answer->rivals = kept;
}

int job_class_get(struct scheduler_pass *pass, struct job_class *class, const struct device_set *there,
                  const struct policy_plan *plan, struct placer_answer *answer)
{
    struct policy_plan same;
    for (size_t i = 0; i < class->question_count; i++) {
        const struct class_question *question = &class->questions[i];
        if (question->plan.step_s != plan->step_s ||
            !device_set_equal(&question->plan.devices, &plan->devices))
            continue;
        const enum policy_fit fit =
            job_class_plan_best(pass, class, there, &question->among, question->most, &same, answer);
        if (fit == FIT_YES && device_set_equal(&same.devices, &plan->devices)) {
            keep_allowed(answer, class->devices_least, question->most);
            return 1;
        }
        if (fit == FIT_PENDING)
            return 0;
        /* An external planner may answer differently the second time. The next pass decides with the new
         * answer. */
        if (fit == FIT_YES)
            placer_answer_fini(answer);
        plan_memo_drop(pass->scheduler->memo);
        pass_check_at(pass, pass->view->now_us);
        return -1;
    }
    return -1;
}

static struct plan_memo_key job_class_key_of(const struct job_class *class, const struct device_set *among,
                                             uint16_t most)
{
    struct plan_memo_key key = {.among = *among, .most = most, .any_kind = class->any_kind};
    memcpy(key.class, class->digest, sizeof(key.class));
    return key;
}

bool job_class_is_known(const struct scheduler_pass *pass, const struct job_class *class,
                        const struct device_set *among, uint16_t most)
{
    const struct plan_memo_key key = job_class_key_of(class, among, most);
    return plan_memo_get(pass->scheduler->memo, &key) != NULL;
}

enum policy_fit job_class_best(struct scheduler_pass *pass, struct job_class *class,
                               const struct device_set *there, const struct device_set *among, uint16_t most,
                               struct policy_plan *plan)
{
    struct plan_memo *memo = pass->scheduler->memo;
    struct plan_memo_answer found = {0};
    const int settled = settle_kind(pass, class);
    if (settled <= 0)
        return settled == 0 ? FIT_PENDING : FIT_NO;
    const struct plan_memo_key key = job_class_key_of(class, among, most);
    const struct plan_memo_answer *known = plan_memo_get(memo, &key);
    if (known) {
        found = *known;
        *plan = found.plan;
        if (!found.fits)
            err_set(&class->err, found.code, "%s", found.words);
    } else {
        struct placer_answer answer = {0};
        const enum policy_fit fit = job_class_plan_best(pass, class, there, among, most, plan, &answer);
        placer_answer_fini(&answer);
        if (fit == FIT_PENDING)
            return FIT_PENDING;
        found = (struct plan_memo_answer){.fits = fit == FIT_YES, .plan = *plan, .code = class->err.code};
        found.words = found.fits ? NULL : class->err.text;
        /* An answer that is a temporary failure is not remembered, so the planner is asked again. */
        if (found.fits || (found.code != ERR_NOMEM && found.code != ERR_INTERNAL)) {
            plan_memo_put(memo, &key, &found);
            if (class->spare_bytes == 0 && (found.fits || most == 0))
                pass_record_answer(pass, class->digest, found.fits ? &found.plan.devices : among,
                                   found.fits ? &found.plan : NULL);
        }
    }
    if (!found.fits)
        return FIT_NO;
    if (ARRAY_RESERVE(class->questions, class->question_capacity, class->question_count + 1, &class->err) <
        0) {
        pass->failed = true;
        return FIT_NO;
    }
    class->questions[class->question_count++] = (struct class_question){*among, most, found.plan};
    return FIT_YES;
}
