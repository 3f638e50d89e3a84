/* Reads what `motley top` shows: documents of the api, and the last steps of the followed jobs. */
#include "cli/top.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"

enum { TOP_QUEUE_PAGE = 200 };

int top_init(struct top *top, struct cli *cli, struct err *err)
{
    size_t index;
    json_t *scope;
    *top = (struct top){.cli = cli};
    top->followed = calloc(TOP_FOLLOWED_MAX, sizeof(*top->followed));
    if (!top->followed)
        return err_set(err, ERR_NOMEM, "no memory for jobs");
    if (client_call(cli, "GET", NULL, &top->me, err, "/v1/whoami") < 0)
        return -1;
    json_array_foreach (json_object_get(top->me, "scopes"), index, scope) {
        const char *name = json_string_value(scope);
        top->may_see_devices |= name && (strcmp(name, "nodes:read") == 0 || strcmp(name, "admin") == 0);
    }
    return 0;
}

void top_fini(struct top *top)
{
    json_decref(top->me);
    json_decref(top->queue);
    json_decref(top->devices);
    json_decref(top->load);
    json_decref(top->jobs);
    free(top->followed);
}

/* ---- the last values of something ---- */

static void add_recent(struct top_recent *recent, double value)
{
    if (isfinite(value) && value >= 0)
        recent->values[recent->count++ % TOP_PACE_STEPS] = value;
}

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double top_median(const struct top_recent *recent)
{
    double sorted[TOP_PACE_STEPS];
    size_t count = recent->count < TOP_PACE_STEPS ? (size_t)recent->count : TOP_PACE_STEPS;
    if (count == 0)
        return NAN;
    memcpy(sorted, recent->values, count * sizeof(*sorted));
    qsort(sorted, count, sizeof(*sorted), compare_numbers);
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

/* ---- jobs that are followed ---- */

struct top_job *top_followed(const struct top *top, int64_t id)
{
    for (unsigned i = 0; i < top->followed_count; i++)
        if (top->followed[i].id == id)
            return &top->followed[i];
    return NULL;
}

/* Takes the predicted times of a job's run from the job's document. */
static void take_plan(struct top_job *job, const json_t *document)
{
    const json_t *run = json_object_get(document, "run"), *answer = json_object_get(run, "plan_answer");
    size_t index;
    json_t *rank;
    job->predicted_s = show_num(answer, "step_s", 0);
    job->rank_count = 0;
    json_array_foreach (json_object_get(answer, "ranks"), index, rank) {
        if (index >= TOP_RANKS_MAX)
            break;
        struct top_rank *known = &job->ranks[job->rank_count++];
        *known = (struct top_rank){.predicted_s = show_num(rank, "busy_s", 0)};
        snprintf(known->device, sizeof(known->device), "%s", show_str(rank, "device"));
    }
}

/* Begins to follow a job: reads its plan and its last steps. */
static int follow_job(struct top *top, struct top_job *job, int64_t id, struct err *err)
{
    json_t *document = NULL, *metrics = NULL, *bucket;
    size_t index;
    *job = (struct top_job){.id = id, .step = -1, .loss = NAN};
    if (client_call(top->cli, "GET", NULL, &document, err, "/v1/jobs/%lld", (long long)id) < 0)
        return -1;
    take_plan(job, document);
    long long done = (long long)show_num(document, "step", 0);
    json_decref(document);
    if (client_call(top->cli, "GET", NULL, &metrics, err,
                    "/v1/jobs/%lld/metrics?kind=step&buckets=%d&from=%lld", (long long)id, TOP_PACE_STEPS,
                    done > TOP_PACE_STEPS ? done - TOP_PACE_STEPS : 0) < 0)
        return -1;
    json_array_foreach (json_object_get(metrics, "buckets"), index, bucket) {
        add_recent(&job->seconds, show_num(json_object_get(bucket, "seconds"), "mean", NAN));
        job->loss = show_num(json_object_get(bucket, "loss"), "last", job->loss);
        job->step = show_num(bucket, "last", job->step - 1) + 1;
    }
    json_decref(metrics);
    return 0;
}

/* Follows the first TOP_FOLLOWED_MAX running jobs. A job that was followed before keeps its recorded steps.
 */
static int follow_jobs(struct top *top, bool *changed, struct err *err)
{
    struct top_job *now = calloc(TOP_FOLLOWED_MAX, sizeof(*now));
    unsigned count = 0;
    size_t index;
    json_t *job;
    if (!now)
        return err_set(err, ERR_NOMEM, "no memory for jobs");
    json_array_foreach (top->jobs, index, job) {
        int64_t id = json_integer_value(json_object_get(job, "id"));
        const struct top_job *before = top_followed(top, id);
        if (count == TOP_FOLLOWED_MAX)
            break;
        if (before && before->predicted_s > 0) {
            now[count++] = *before;
            *changed |= before != &top->followed[count - 1];
        } else if (follow_job(top, &now[count], id, err) == 0) {
            *changed |= !before;
            count++;
        } else if (err->code != ERR_NOT_FOUND) { /* ERR_NOT_FOUND: the job was deleted meanwhile */
            free(now);
            return -1;
        }
    }
    *changed |= count != top->followed_count;
    free(top->followed);
    top->followed = now;
    top->followed_count = count;
    return 0;
}

/* Splits the jobs that the user may see: returns the running ones as a new array, and appends the held ones
 * to the rows of the queue, unless the queue has further pages. */
static json_t *part_jobs(json_t *queue, const json_t *jobs)
{
    json_t *runs = json_array(), *rows = json_object_get(queue, "queue"), *job;
    size_t index;
    json_array_foreach (json_object_get(jobs, "jobs"), index, job) {
        if (strcmp(show_str(job, "state"), "held") != 0)
            json_array_append(runs, job);
        else if (!json_is_string(json_object_get(queue, "next")))
            json_array_append(rows, job);
    }
    return runs;
}

int top_read_queue(struct top *top, bool *changed, struct err *err)
{
    json_t *queue = NULL, *jobs = NULL;
    if (client_call(top->cli, "GET", NULL, &queue, err, "/v1/queue?limit=%d", TOP_QUEUE_PAGE) < 0)
        return -1;
    if (client_call(top->cli, "GET", NULL, &jobs, err,
                    "/v1/jobs?state=starting,running,stopping,held&limit=%d", TOP_QUEUE_PAGE) < 0) {
        json_decref(queue);
        return -1;
    }
    json_decref(top->queue);
    json_decref(top->jobs);
    top->queue = queue;
    top->jobs = part_jobs(queue, jobs);
    json_decref(jobs);
    return follow_jobs(top, changed, err);
}

int top_read_devices(struct top *top, struct err *err)
{
    json_t *devices = NULL;
    if (!top->may_see_devices)
        return 0;
    if (client_list(top->cli, "/v1/devices?limit=1000", "devices", &devices, err) < 0)
        return -1;
    json_decref(top->devices);
    top->devices = devices;
    return 0;
}

int top_read_load(struct top *top, struct err *err)
{
    json_t *load = NULL;
    if (!top->may_see_devices)
        return 0;
    if (client_list(top->cli, "/v1/load?limit=1000", "devices", &load, err) < 0)
        return -1;
    json_decref(top->load);
    top->load = load;
    return 0;
}

/* ---- events ---- */

void top_event(struct top *top, const char *type, const json_t *data)
{
    struct top_job *job = top_followed(top, json_integer_value(json_object_get(data, "job")));
    double step = show_num(data, "step", -1);
    if (!job || step < 0)
        return;
    if (strcmp(type, "step") == 0) {
        job->step = step + 1;
        job->loss = show_num(data, "loss", NAN);
        add_recent(&job->seconds, show_num(data, "seconds", NAN));
    } else if (strcmp(type, "ranks") == 0) {
        unsigned rank = (unsigned)show_num(data, "rank", TOP_RANKS_MAX);
        if (rank >= TOP_RANKS_MAX)
            return;
        job->rank_count = rank >= job->rank_count ? rank + 1 : job->rank_count;
        struct top_rank *known = &job->ranks[rank];
        if (*show_str(data, "device"))
            snprintf(known->device, sizeof(known->device), "%s", show_str(data, "device"));
        add_recent(&known->compute_s, show_num(data, "compute_s", NAN));
        add_recent(&known->wait_s, show_num(data, "wait_s", NAN));
    }
}
