/* Builds a simulation from recorded jobs, devices and forecasts. */
#include "scheduler/simulate/records.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"

/* ---- the planner ---- */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double records_median(double *values, size_t count)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof(*values), compare_doubles);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Implements struct policy_planner's `best`; `arg` is a struct recorded_planner. */
static enum policy_fit recorded_best(void *arg, uint32_t shape, const struct device_set *among, uint16_t most,
                                     struct policy_plan *plan)
{
    const struct recorded_planner *planner = arg;
    const double *speeds = planner->model.affinity + (size_t)shape * planner->model.device_count;
    enum policy_fit fit = speeds_best(&((struct recorded_planner *)arg)->model, shape, among, most, plan);
    const struct recorded_plan *best = NULL;
    for (size_t i = planner->begin[shape]; i < planner->begin[shape + 1]; i++) {
        const struct recorded_plan *known = &planner->plans[i];
        if (fit == FIT_YES && device_set_equal(&known->devices, &plan->devices)) {
            plan->step_s = known->step_s;
            fit = known->step_s > 0 ? FIT_YES : FIT_NO;
        }
        if (known->step_s > 0 && device_set_is_subset(&known->devices, among) &&
            (most == 0 || device_set_count(&known->devices) <= most) &&
            (!best || known->step_s < best->step_s))
            best = known;
    }
    if (!best || (fit == FIT_YES && plan->step_s <= best->step_s))
        return fit;
    *plan = (struct policy_plan){.devices = best->devices, .step_s = best->step_s};
    for (size_t d = device_set_next(&best->devices, 0); d < POLICY_DEVICES_MAX;
         d = device_set_next(&best->devices, d + 1))
        plan->rate += speeds[d] > 0 ? speeds[d] : 1;
    return FIT_YES;
}

/* Fits a class's constants of the model of speeds.h to the class's recorded plans. The plans on the fewest
 * devices give the seconds per step; the plans on more devices give the loss by each further device. */
static int fit_shape(struct recorded_world *world, size_t shape, struct err *err)
{
    const struct recorded_planner *planner = &world->planner;
    const size_t begin = planner->begin[shape], count = planner->begin[shape + 1] - begin;
    const double *speeds = world->affinity + shape * world->simulation.device_count;
    struct speed_shape *to = &world->shapes[shape];
    double *alone = calloc(3 * count + 1, sizeof(*alone)), *loss = alone + count, *work = loss + count;
    double fits = INFINITY;
    size_t least = SIZE_MAX, alone_count = 0, loss_count = 0;
    if (!alone)
        return err_set(err, ERR_NOMEM, "no memory for %zu forecasts", count);
    for (size_t i = 0; i < count; i++) {
        const struct recorded_plan *plan = &planner->plans[begin + i];
        const size_t width = device_set_count(&plan->devices);
        double speed = 0, bytes = 0;
        for (size_t d = device_set_next(&plan->devices, 0); d < POLICY_DEVICES_MAX;
             d = device_set_next(&plan->devices, d + 1)) {
            speed += speeds[d] > 0 ? speeds[d] : 1;
            bytes += world->cards[d].bytes;
        }
        work[i] = plan->step_s * speed;
        if (plan->step_s > 0) {
            fits = fmin(fits, bytes);
            least = width < least ? width : least;
        } else {
            to->bytes = fmax(to->bytes, bytes + 1);
        }
    }
    for (size_t i = 0; i < count; i++)
        if (work[i] > 0 && device_set_count(&planner->plans[begin + i].devices) == least)
            alone[alone_count++] = work[i];
    to->step_s = records_median(alone, alone_count);
    for (size_t i = 0; i < count; i++) {
        const size_t width = device_set_count(&planner->plans[begin + i].devices);
        if (work[i] > 0 && width > least)
            loss[loss_count++] = (work[i] / to->step_s - 1) / (double)(width - least);
    }
    to->loss = fmax(0, records_median(loss, loss_count));
    to->bytes = fmin(to->bytes, fits);
    if (alone_count == 0)
        /* a class that was never planned runs nowhere */
        *to = (struct speed_shape){.step_s = 1, .bytes = INFINITY};
    free(alone);
    return 0;
}

/* ---- documents ---- */

static int64_t index_of(const char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return (int64_t)i;
    return -1;
}

static struct policy_limits records_limits_of(const json_t *of)
{
    return (struct policy_limits){(uint32_t)json_integer_value(json_object_get(of, "devices_max")),
                                  (uint32_t)json_integer_value(json_object_get(of, "running_max")),
                                  json_number_value(json_object_get(of, "month_seconds_max"))};
}

static int64_t time_of(const json_t *of, const char *key)
{
    int64_t us = INT64_MAX;
    const char *text = json_string_value(json_object_get(of, key));
    return text && clock_rfc3339_parse(text, &us) == 0 ? us : INT64_MAX;
}

static struct device_set set_of(const struct recorded_world *world, const json_t *names)
{
    struct device_set set = {0};
    size_t i;
    json_t *name;
    json_array_foreach ((json_t *)(uintptr_t)names, i, name) {
        const int64_t d = index_of(world->devices, world->simulation.device_count, json_string_value(name));
        if (d >= 0)
            device_set_add(&set, (size_t)d);
    }
    return set;
}

static int take_devices(struct recorded_world *world, const json_t *records, const char *const *add,
                        size_t add_count, struct err *err)
{
    const json_t *list = json_object_get(records, "devices");
    const size_t known = json_array_size(list), count = known + add_count;
    if (count > POLICY_DEVICES_MAX)
        return err_set(err, ERR_INVALID, "%zu devices: at most %d", count, POLICY_DEVICES_MAX);
    world->devices = calloc(count + 1, sizeof(*world->devices));
    world->cards = calloc(count + 1, sizeof(*world->cards));
    if (!world->devices || !world->cards)
        return err_set(err, ERR_NOMEM, "no memory for %zu devices", count);
    for (size_t d = 0; d < count; d++) {
        const int64_t like = d < known ? (int64_t)d : index_of(world->devices, known, add[d - known]);
        if (like < 0)
            return err_set(err, ERR_INVALID, "--add %s: there is no such device", add[d - known]);
        const json_t *device = json_array_get(list, (size_t)like);
        world->devices[d] = d < known ? json_text_of(device, "name") : "";
        world->cards[d] = (struct speed_device){1, json_number_value(json_object_get(device, "bytes"))};
    }
    world->simulation.device_count = count;
    return 0;
}

static int take_classes(struct recorded_world *world, const json_t *records, const char *const *add,
                        struct err *err)
{
    const json_t *classes = json_object_get(records, "classes"),
                 *forecasts = json_object_get(records, "forecasts");
    const size_t count = json_array_size(classes), devices = world->simulation.device_count;
    const size_t known = json_array_size(json_object_get(records, "devices"));
    struct recorded_planner *planner = &world->planner;
    world->shapes = calloc(count + 1, sizeof(*world->shapes));
    world->affinity = calloc(count * devices + 1, sizeof(*world->affinity));
    planner->begin = calloc(count + 2, sizeof(*planner->begin));
    planner->plans = calloc(json_array_size(forecasts) + 1, sizeof(*planner->plans));
    if (!world->shapes || !world->affinity || !planner->begin || !planner->plans)
        return err_set(err, ERR_NOMEM, "no memory for %zu classes", count);
    size_t at = 0, end = 0;
    for (size_t c = 0; c < count; c++) { /* the forecasts are sorted by class */
        const json_t *class = json_array_get(classes, c), *speeds = json_object_get(class, "speeds");
        const json_int_t id = json_integer_value(json_object_get(class, "id"));
        for (size_t d = 0; d < devices; d++)
            world->affinity[c * devices + d] =
                json_number_value(json_object_get(speeds, d < known ? world->devices[d] : add[d - known]));
        planner->begin[c] = end;
        for (; at < json_array_size(forecasts); at++) {
            const json_t *row = json_array_get(forecasts, at);
            if (json_integer_value(json_object_get(row, "class")) != id)
                break;
            const struct device_set set = set_of(world, json_object_get(row, "devices"));
            if (device_set_count(&set) == json_array_size(json_object_get(row, "devices")))
                planner->plans[end++] =
                    (struct recorded_plan){set, json_number_value(json_object_get(row, "step_s"))};
        }
        planner->begin[c + 1] = end;
        if (fit_shape(world, c, err) < 0)
            return -1;
    }
    planner->model = (struct speed_model){devices, count, world->cards, world->shapes, world->affinity};
    world->asked = (struct policy_planner){recorded_best, planner};
    return 0;
}

/* Adds the root account, the groups (each after its parent) and the users. */
static int take_people(struct recorded_world *world, const json_t *records, size_t job_count, struct err *err)
{
    const json_t *groups = json_object_get(records, "groups"), *users = json_object_get(records, "users");
    const size_t count = 1 + json_array_size(groups) + job_count;
    size_t before, placed = 1, i;
    json_t *row;
    world->accounts = calloc(count, sizeof(*world->accounts));
    world->groups = calloc(count, sizeof(*world->groups));
    world->people = calloc(json_array_size(users) + 1, sizeof(*world->people));
    world->users = calloc(json_array_size(users) + 1, sizeof(*world->users));
    if (!world->accounts || !world->groups || !world->people || !world->users)
        return err_set(err, ERR_NOMEM, "no memory for %zu accounts", count);
    if (json_array_size(groups) + 2 >= POLICY_NONE || json_array_size(users) + 1 >= POLICY_NONE)
        return err_set(err, ERR_INVALID, "more than %d accounts", POLICY_NONE);
    world->accounts[0] = (struct policy_account){.parent = POLICY_NONE, .weight = 1};
    world->groups[0] = "";
    do {
        before = placed;
        json_array_foreach ((json_t *)(uintptr_t)groups, i, row) {
            const int64_t parent = index_of(world->groups, placed, json_text_of(row, "parent"));
            if (parent < 0 || index_of(world->groups, placed, json_text_of(row, "name")) >= 0)
                continue;
            world->groups[placed] = json_text_of(row, "name");
            world->accounts[placed++] =
                (struct policy_account){.parent = (uint16_t)parent,
                                        .weight = json_number_value(json_object_get(row, "weight")),
                                        .limits = records_limits_of(row)};
        }
    } while (placed > before);
    world->simulation.account_count = placed;
    json_array_foreach ((json_t *)(uintptr_t)users, i, row) {
        world->users[i] = json_text_of(row, "name");
        world->people[i].limits = records_limits_of(row);
    }
    world->simulation.user_count = json_array_size(users);
    return 0;
}

/* Returns the leaf account of a user below a group, and adds it if it is missing; -1 if there is no such
 * group or there are too many leaves. leaves[leaf - groups] is the user of a leaf. */
static int64_t leaf_of(struct recorded_world *world, size_t groups, size_t *leaves, size_t user,
                       const char *group)
{
    const int64_t parent = index_of(world->groups, groups, group);
    for (size_t i = groups; parent >= 0 && i < world->simulation.account_count; i++)
        if (leaves[i - groups] == user && world->accounts[i].parent == (uint16_t)parent)
            return (int64_t)i;
    if (parent < 0 || world->simulation.account_count + 1 >= POLICY_NONE)
        return -1;
    const size_t leaf = world->simulation.account_count++;
    leaves[leaf - groups] = user;
    world->groups[leaf] = world->groups[parent];
    world->accounts[leaf] = (struct policy_account){.parent = (uint16_t)parent, .weight = 1};
    return (int64_t)leaf;
}

static enum policy_service service_of(const char *name)
{
    return strcmp(name, "urgent") == 0      ? SERVICE_URGENT
           : strcmp(name, "scavenger") == 0 ? SERVICE_SCAVENGER
                                            : SERVICE_NORMAL;
}

/* Writes what became of the job. Returns the number of steps for the simulation: those that it asked for, or
 * those that it did if it ended before all of them. */
static int64_t take_outcome(const json_t *row, double *error, struct recorded_outcome *outcome)
{
    const double step_s = json_number_value(json_object_get(row, "step_s")),
                 ran_s = json_number_value(json_object_get(row, "ran_s"));
    int64_t steps = json_integer_value(json_object_get(row, "steps"));
    *outcome = (struct recorded_outcome){time_of(row, "started"), time_of(row, "ended"),
                                         ran_s * (double)json_array_size(json_object_get(row, "devices"))};
    *error = 1;
    if (step_s <= 0 || ran_s <= 0 || outcome->ends_us == INT64_MAX)
        return steps;
    if (strcmp(json_text_of(row, "state"), "succeeded") != 0)
        return (int64_t)ceil(ran_s / step_s);
    *error = fmin(fmax(ran_s / step_s / (double)steps, 0.01), 100);
    return steps;
}

static int records_take_job(struct recorded_world *world, const json_t *records, const json_t *row,
                            size_t groups, size_t *leaves, struct err *err)
{
    const json_t *classes = json_object_get(records, "classes");
    struct simulated_job *job = &world->jobs[world->simulation.job_count];
    struct recorded_outcome *outcome = &world->happened[world->simulation.job_count];
    size_t class = 0;
    while (class < json_array_size(classes) &&
           !json_equal(json_object_get(json_array_get(classes, class), "id"), json_object_get(row, "class")))
        class ++;
    const int64_t user = index_of(world->users, world->simulation.user_count, json_text_of(row, "user"));
    const int64_t leaf =
        user < 0 ? -1 : leaf_of(world, groups, leaves, (size_t)user, json_text_of(row, "group"));
    *job = (struct simulated_job){.arrives_us = time_of(row, "at"),
                                  .shape = (uint32_t)class,
                                  .priority = (int32_t)json_integer_value(json_object_get(row, "priority")),
                                  .user = (uint16_t)user,
                                  .account = (uint16_t)leaf,
                                  .service = service_of(json_text_of(row, "service"))};
    job->steps = take_outcome(row, &job->error, outcome);
    if (leaf < 0 || class == json_array_size(classes) || job->arrives_us == INT64_MAX || job->steps < 0)
        return err_set(err, ERR_INVALID,
                       "job %lld: its record names a user, group or class that is not there",
                       (long long)json_integer_value(json_object_get(row, "id")));
    if (outcome->starts_us == INT64_MAX && outcome->ends_us != INT64_MAX)
        world->left++;
    else
        world->simulation.job_count++;
    return 0;
}

struct arrived {
    int64_t at_us, id;
    const json_t *row;
};

static int compare_arrived(const void *a, const void *b)
{
    const struct arrived *x = a, *y = b;
    if (x->at_us != y->at_us)
        return x->at_us < y->at_us ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int records_take_jobs(struct recorded_world *world, const json_t *records, const json_t *arrivals,
                             struct err *err)
{
    const size_t count = json_array_size(arrivals), groups = world->simulation.account_count;
    struct arrived *order = calloc(count + 1, sizeof(*order));
    size_t *leaves = calloc(count + 1, sizeof(*leaves));
    world->jobs = calloc(count + 1, sizeof(*world->jobs));
    world->happened = calloc(count + 1, sizeof(*world->happened));
    int rc = order && leaves && world->jobs && world->happened
                 ? 0
                 : err_set(err, ERR_NOMEM, "no memory for %zu jobs", count);
    for (size_t i = 0; i < count && rc == 0; i++) {
        const json_t *row = json_array_get(arrivals, i);
        order[i] = (struct arrived){time_of(row, "at"), json_integer_value(json_object_get(row, "id")), row};
    }
    if (rc == 0)
        qsort(order, count, sizeof(*order), compare_arrived);
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = records_take_job(world, records, order[i].row, groups, leaves, err);
    free(order);
    free(leaves);
    return rc;
}

static int take_leases(struct recorded_world *world, const json_t *records, struct err *err)
{
    const json_t *leases = json_object_get(records, "leases");
    size_t i;
    json_t *row;
    world->intervals = calloc(json_array_size(leases) + 1, sizeof(*world->intervals));
    if (!world->intervals)
        return err_set(err, ERR_NOMEM, "no memory for the leases");
    json_array_foreach ((json_t *)(uintptr_t)leases, i, row) {
        struct policy_interval *to = &world->intervals[world->simulation.interval_count];
        const int64_t d =
            index_of(world->devices, world->simulation.device_count, json_text_of(row, "device"));
        *to = (struct policy_interval){
            .id = (int64_t)i, .begins_us = time_of(row, "begins"), .ends_us = time_of(row, "ends")};
        if (d < 0)
            continue;
        device_set_add(&to->devices, (size_t)d);
        world->simulation.interval_count++;
    }
    return 0;
}

static int take_settings(struct recorded_world *world, const json_t *records, struct err *err)
{
    struct json_reader reader;
    const json_t *sharing = json_object_get(records, "sharing");
    world->settings = policy_defaults;
    if (!json_is_object(sharing))
        return 0;
    jr_init(&reader, sharing, "sharing", err);
    doc_fields(&policy_settings_doc, &reader, &world->settings);
    return reader.failed ? -1 : 0;
}

int recorded_world_make(const json_t *records, const json_t *arrivals, const char *const *add,
                        size_t add_count, int64_t from_us, int64_t to_us, struct recorded_world *world,
                        struct err *err)
{
    *world = (struct recorded_world){0};
    if (take_settings(world, records, err) < 0 || take_devices(world, records, add, add_count, err) < 0 ||
        take_classes(world, records, add, err) < 0 ||
        take_people(world, records, json_array_size(arrivals), err) < 0 ||
        records_take_jobs(world, records, arrivals, err) < 0 || take_leases(world, records, err) < 0) {
        recorded_world_fini(world);
        return -1;
    }
    struct simulation *simulation = &world->simulation;
    simulation->accounts = world->accounts;
    simulation->users = world->people;
    simulation->jobs = world->jobs;
    simulation->intervals = world->intervals;
    simulation->planner = &world->asked;
    simulation->policy = policy_decide;
    simulation->begins_us = from_us;
    simulation->ends_us = to_us;
    simulation->checkpoint_us = 600000000;
    simulation->measure_us = 60000000;
    simulation->again_us = 600000000;
    return 0;
}

void recorded_world_fini(struct recorded_world *world)
{
    free(world->planner.plans);
    free(world->planner.begin);
    free(world->happened);
    free(world->users);
    free(world->groups);
    free(world->devices);
    free(world->accounts);
    free(world->people);
    free(world->jobs);
    free(world->intervals);
    free(world->cards);
    free(world->shapes);
    free(world->affinity);
    *world = (struct recorded_world){0};
}

/* ---- outcomes ---- */

int recorded_world_run(struct recorded_world *world, const struct policy_settings *settings,
                       struct recorded_outcome *outcomes, struct err *err)
{
    struct simulation_result result;
    world->simulation.settings = settings;
    if (simulation_run(&world->simulation, &result, err) < 0)
        return -1;
    for (size_t i = 0; i < world->simulation.job_count; i++)
        outcomes[i] = (struct recorded_outcome){result.outcomes[i].starts_us, result.outcomes[i].ends_us,
                                                result.outcomes[i].device_s};
    simulation_result_fini(&result);
    return 0;
}

struct sums {
    size_t jobs;
    double wait_s, device_s;
};

static json_t *people_of(const char *const *names, const struct sums *sums, size_t count, double device_s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        if (sums[i].jobs > 0)
            json_array_append_new(list, json_pack("{s:o, s:I, s:f, s:f, s:f}", "name",
                                                  *names[i] ? json_string(names[i]) : json_null(), "jobs",
                                                  (json_int_t)sums[i].jobs, "wait_mean_s",
                                                  sums[i].wait_s / (double)sums[i].jobs, "device_s",
                                                  sums[i].device_s, "share",
                                                  device_s > 0 ? sums[i].device_s / device_s : 0));
    return list;
}

json_t *recorded_summary(const struct recorded_world *world, const struct recorded_outcome *outcomes,
                         size_t device_count)
{
    const struct simulation *of = &world->simulation;
    double *waits = calloc(of->job_count + 1, sizeof(*waits)), wait_s = 0, device_s = 0;
    struct sums *users = calloc(of->user_count + 1, sizeof(*users)),
                *groups = calloc(of->account_count + 1, sizeof(*groups));
    size_t started = 0, ended = 0;
    json_t *summary = NULL;
    for (size_t i = 0; waits && users && groups && i < of->job_count; i++) {
        const struct simulated_job *job = &of->jobs[i];
        const uint16_t parent = of->accounts[job->account].parent;
        const int64_t starts_us = outcomes[i].starts_us < of->ends_us ? outcomes[i].starts_us : of->ends_us;
        struct sums *const to[] = {&users[job->user], &groups[parent == POLICY_NONE ? 0 : parent]};
        waits[i] = fmax(0, 1e-6 * (double)(starts_us - job->arrives_us));
        started += outcomes[i].starts_us < of->ends_us ? 1 : 0;
        ended += outcomes[i].ends_us < of->ends_us ? 1 : 0;
        wait_s += waits[i];
        device_s += outcomes[i].device_s;
        for (size_t k = 0; k < 2; k++) {
            to[k]->jobs++;
            to[k]->wait_s += waits[i];
            to[k]->device_s += outcomes[i].device_s;
        }
    }
    if (waits && users && groups) {
        const double there_s = 1e-6 * (double)(of->ends_us - of->begins_us) * (double)device_count;
        const double middle = records_median(waits, of->job_count); /* sorts waits[] */
        summary = json_pack(
            "{s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:o, s:o}", "jobs", (json_int_t)of->job_count, "left",
            (json_int_t)world->left, "started", (json_int_t)started, "ended", (json_int_t)ended,
            "wait_mean_s", of->job_count > 0 ? wait_s / (double)of->job_count : 0, "wait_median_s", middle,
            "wait_longest_s", of->job_count > 0 ? waits[of->job_count - 1] : 0, "use", device_s / there_s,
            "users", people_of(world->users, users, of->user_count, device_s), "groups",
            people_of(world->groups, groups, of->account_count, device_s));
    }
    free(waits);
    free(users);
    free(groups);
    return summary;
}
