/* motley compare: jobs beside each other, as the page's /jobs?ids= shows them: how they went, their losses at
 * the same steps, and what their specifications differ in. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report.h"
#include "common/buf.h"
#include "common/units.h"

/* COMPARE_MAX: as many jobs as the page compares. SHOWN_MAX: rows of losses that are printed; --json has all.
 */
enum { COMPARE_MAX = 7, SHOWN_MAX = 12 };

struct compared {
    unsigned count;
    int64_t ids[COMPARE_MAX];
    json_t *jobs[COMPARE_MAX], *lines[COMPARE_MAX]; /* owned: GET /v1/jobs/{id}, and its metrics */
    json_t *runs[COMPARE_MAX]; /* owned: the last run of each, in GET /v1/jobs/{id}/runs */
};

static int compare_jobs_read(struct cli *cli, struct compared *c, struct err *err)
{
    for (; c->count < cli->word_count; c->count++) {
        int64_t *id = &c->ids[c->count];
        if (client_job_id(cli->words[c->count], id, err) < 0 ||
            client_call(cli, "GET", NULL, &c->jobs[c->count], err, "/v1/jobs/%lld", (long long)*id) < 0)
            return -1;
        c->lines[c->count] = client_metrics(cli, *id, err);
        if (!c->lines[c->count] || client_call(cli, "GET", NULL, &c->runs[c->count], err,
                                               "/v1/jobs/%lld/runs?limit=1", (long long)*id) < 0) {
            json_decref(c->lines[c->count]);
            json_decref(c->jobs[c->count]);
            return -1;
        }
    }
    return 0;
}

/* Returns the steps of the job's last run, new: an earlier run may have had another placement. */
static json_t *last_steps(const json_t *lines, const json_t *run)
{
    json_t *steps = json_array(), *line;
    size_t index;
    json_array_foreach ((json_t *)(uintptr_t)lines, index, line)
        if (!json_object_get(line, "eval") && show_num(line, "step", 0) >= show_num(run, "start_step", 0))
            json_array_append(steps, line);
    return steps;
}

/* Returns tokens per second over all steps but the job's first two, as report_median() leaves them out; 0:
 * unknown. */
static double tokens_per_s(const json_t *steps)
{
    double tokens = 0, seconds = 0;
    json_t *line;
    size_t index;
    json_array_foreach (steps, index, line) {
        if (show_num(line, "step", 0) < 2)
            continue;
        tokens += show_num(line, "tokens", 0);
        seconds += show_num(line, "seconds", 0);
    }
    return seconds > 0 ? tokens / seconds : 0;
}

/* Returns null for a figure of 0, which is unknown. */
static json_t *figure(double value)
{
    return value > 0 ? json_real(value) : json_null();
}

static json_t *job_summary(const json_t *job, const json_t *lines, const json_t *runs)
{
    const json_t *run = json_object_get(job, "run"), *plan = json_object_get(run, "plan_answer"), *rank;
    const json_t *last = json_array_get(json_object_get(runs, "runs"), 0);
    json_t *devices = json_array(), *steps = last_steps(lines, last);
    size_t index;
    json_array_foreach (json_object_get(run, "ranks"), index, rank)
        json_array_append(devices, json_object_get(rank, "device"));
    json_t *summary = json_object();
    static const char *const keys[] = {"id", "name", "state", "step", "steps", "loss"};
    for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
        json_object_set(summary, keys[k], json_object_get(job, keys[k]));
    json_object_set_new(summary, "runs", json_integer((json_int_t)show_num(last, "attempt", 0)));
    json_object_set_new(summary, "run_start_step", json_integer((json_int_t)show_num(last, "start_step", 0)));
    json_object_set_new(summary, "tokens_per_s", figure(tokens_per_s(steps)));
    json_object_set_new(summary, "step_s", figure(report_median(steps, "seconds", NULL)));
    json_object_set_new(summary, "predicted_s", figure(show_num(plan, "step_s", 0)));
    json_object_set_new(summary, "placement",
                        plan ? json_incref(json_object_get(plan, "placement")) : json_null());
    json_object_set_new(summary, "devices", devices);
    json_decref(steps);
    return summary;
}

/* Returns the losses of one job by step, {"10": 2.5}; those of its evaluations, or of its steps. */
static json_t *losses_of(const json_t *lines, bool evals)
{
    json_t *losses = json_object(), *line;
    size_t index;
    char step[32];
    json_array_foreach (lines, index, line) {
        snprintf(step, sizeof(step), "%.0f", show_num(line, "step", 0));
        if (!json_object_get(line, "eval") != evals && json_is_number(json_object_get(line, "loss")))
            json_object_set(losses, step, json_object_get(line, "loss"));
    }
    return losses;
}

/* Returns [{"step", "losses": [of each job]}] for the steps of which all jobs have a loss. */
static json_t *losses_at_same_steps(const struct compared *c, bool evals)
{
    json_t *all[COMPARE_MAX], *rows = json_array();
    for (unsigned i = 0; i < c->count; i++)
        all[i] = losses_of(c->lines[i], evals);
    const char *step;
    json_t *loss;
    json_object_foreach (all[0], step, loss) {
        json_t *losses = json_array();
        for (unsigned i = 0; i < c->count; i++)
            json_array_append(losses, json_object_get(all[i], step));
        if (json_array_size(losses) == c->count)
            json_array_append_new(
                rows, json_pack("{s:I, s:O}", "step", (json_int_t)strtoll(step, NULL, 10), "losses", losses));
        json_decref(losses);
    }
    for (unsigned i = 0; i < c->count; i++)
        json_decref(all[i]);
    return rows;
}

/* Adds the values of a specification to {path: [value of each job]}; null where a job has none. */
static void values_flatten(json_t *value, const char *path, unsigned job, unsigned count, json_t *out)
{
    char inner[256];
    const char *key;
    json_t *each;
    if (json_is_object(value)) {
        json_object_foreach (value, key, each) {
            snprintf(inner, sizeof(inner), "%s%s%s", path, *path ? "." : "", key);
            values_flatten(each, inner, job, count, out);
        }
        return;
    }
    json_t *values = json_object_get(out, path);
    if (!values) {
        values = json_array();
        for (unsigned i = 0; i < count; i++)
            json_array_append_new(values, json_null());
        json_object_set_new(out, path, values);
    }
    json_array_set(values, job, value);
}

/* Returns [{"key", "values": [of each job]}] for the keys of the specifications that differ, but `name`. */
static json_t *differences(const struct compared *c)
{
    json_t *flat = json_object(), *rows = json_array(), *values;
    const char *key;
    for (unsigned i = 0; i < c->count; i++)
        values_flatten(json_object_get(c->jobs[i], "spec"), "", i, c->count, flat);
    json_object_foreach (flat, key, values) {
        bool differ = false;
        for (unsigned i = 1; i < c->count; i++)
            differ |= !json_equal(json_array_get(values, 0), json_array_get(values, i));
        if (differ && strcmp(key, "name") != 0)
            json_array_append_new(rows, json_pack("{s:s, s:O}", "key", key, "values", values));
    }
    json_decref(flat);
    return rows;
}

/* ---- as tables ---- */

/* Returns the items of a list as one text, new. */
static json_t *list_text(const json_t *list)
{
    struct buf text = {.limit = 1 << 16};
    struct err ignored;
    json_t *item;
    size_t index;
    json_array_foreach ((json_t *)(uintptr_t)list, index, item) {
        char *other = json_is_string(item) ? NULL : json_dumps(item, JSON_COMPACT | JSON_ENCODE_ANY);
        if (buf_printf(&text, &ignored, "%s%s", index ? ", " : "", other ? other : json_string_value(item)) <
            0)
            index = json_array_size(list);
        free(other);
    }
    json_t *all = json_string(text.size ? buf_str(&text) : "-");
    buf_fini(&text);
    return all;
}

/* Sets the column of each job, "0", "1" …, from a list of its values. Lists become text. */
static void columns_set(json_t *row, const json_t *values)
{
    char column[24];
    size_t index;
    json_t *value;
    json_array_foreach ((json_t *)(uintptr_t)values, index, value) {
        snprintf(column, sizeof(column), "%zu", index);
        json_object_set_new(row, column, json_is_array(value) ? list_text(value) : json_incref(value));
    }
}

/* Prints rows under the jobs' numbers: WHAT #17 #18. Takes the rows over. */
static int compare_rows_show(const struct compared *c, const char *what, const char *kind, json_t *rows,
                             struct err *err)
{
    char columns[512];
    size_t used = (size_t)snprintf(columns, sizeof(columns), "%s:row:%s", what, kind);
    for (unsigned i = 0; i < c->count; i++)
        used += (size_t)snprintf(columns + used, sizeof(columns) - used, " #%lld:%u:%s", (long long)c->ids[i],
                                 i, kind);
    int result = show_table(rows, columns, err);
    json_decref(rows);
    return result;
}

static int summaries_show(const struct compared *c, const json_t *jobs, struct err *err)
{
    static const char *const names[] = {"name",     "state",     "steps",          "loss",      "below: run",
                                        "tokens/s", "step time", "predicted step", "placement", "devices"};
    enum { ROWS = sizeof(names) / sizeof(names[0]) };
    json_t *rows = json_array(), *values[ROWS], *job;
    size_t index;
    for (unsigned r = 0; r < ROWS; r++)
        values[r] = json_array();
    json_array_foreach ((json_t *)(uintptr_t)jobs, index, job) {
        char step[32], predicted[32], rate[32], reached[64], run[64];
        const double step_s = show_num(job, "step_s", 0), predicted_s = show_num(job, "predicted_s", 0);
        snprintf(reached, sizeof(reached), "%.0f of %.0f", show_num(job, "step", 0),
                 show_num(job, "steps", 0));
        snprintf(rate, sizeof(rate), "%.0f", show_num(job, "tokens_per_s", 0));
        snprintf(run, sizeof(run), "%.0f, from step %.0f on", show_num(job, "runs", 0),
                 show_num(job, "run_start_step", 0));
        units_seconds(step, step_s);
        units_seconds(predicted, predicted_s);
        const char *const texts[ROWS] = {NULL,
                                         NULL,
                                         reached,
                                         NULL,
                                         show_num(job, "runs", 0) > 0 ? run : "-",
                                         json_is_real(json_object_get(job, "tokens_per_s")) ? rate : "-",
                                         step_s > 0 ? step : "-",
                                         predicted_s > 0 ? predicted : "-"};
        for (unsigned r = 0; r < ROWS; r++)
            if (texts[r])
                json_array_append_new(values[r], json_string(texts[r]));
            else
                json_array_append(values[r], json_object_get(job, names[r]));
    }
    for (unsigned r = 0; r < ROWS; r++) {
        json_t *row = json_pack("{s:s}", "row", names[r]);
        columns_set(row, values[r]);
        json_array_append_new(rows, row);
        json_decref(values[r]);
    }
    return compare_rows_show(c, "JOB", "s", rows, err);
}

/* Prints a list of the answer, of long ones SHOWN_MAX rows from the first to the last. `row`: the member that
 * names one; `list`: that with the jobs' values. */
static int list_show(const struct compared *c, const json_t *answer, const char *member, const char *row,
                     const char *list, const char *what, struct err *err)
{
    const json_t *all = json_object_get(answer, member);
    const bool losses = strcmp(list, "losses") == 0;
    const size_t count = json_array_size(all), shown = losses && count > SHOWN_MAX ? SHOWN_MAX : count;
    json_t *rows = json_array();
    if (count > 0)
        printf("\n%s\n", what);
    for (size_t i = 0; i < shown; i++) {
        const json_t *each = json_array_get(all, shown > 1 ? i * (count - 1) / (shown - 1) : i);
        json_t *printed = json_pack("{s:O}", "row", json_object_get(each, row));
        columns_set(printed, json_object_get(each, list));
        json_array_append_new(rows, printed);
    }
    if (count > 0)
        return compare_rows_show(c, losses ? "STEP" : "KEY", losses ? "n" : "s", rows, err);
    json_decref(rows);
    return 0;
}

int command_compare(struct cli *cli, struct err *err)
{
    struct compared c = {.count = 0};
    json_t *jobs = json_array(), *answer = NULL;
    int result = compare_jobs_read(cli, &c, err);
    for (unsigned i = 0; i < c.count; i++)
        json_array_append_new(jobs, job_summary(c.jobs[i], c.lines[i], c.runs[i]));
    if (result == 0)
        answer = json_pack("{s:O, s:o, s:o, s:o}", "jobs", jobs, "losses", losses_at_same_steps(&c, false),
                           "evals", losses_at_same_steps(&c, true), "differ", differences(&c));
    if (result == 0 && cli->json)
        result = show_json(answer, err);
    else if (result == 0 && (result = summaries_show(&c, jobs, err)) == 0 &&
             (result = list_show(&c, answer, "losses", "step", "losses", "loss at the same steps", err)) ==
                 0 &&
             (result = list_show(&c, answer, "evals", "step", "losses", "held-out loss after the same steps",
                                 err)) == 0)
        result = list_show(&c, answer, "differ", "key", "values", "what the specifications differ in", err);
    for (unsigned i = 0; i < c.count; i++) {
        json_decref(c.jobs[i]);
        json_decref(c.lines[i]);
        json_decref(c.runs[i]);
    }
    json_decref(jobs);
    json_decref(answer);
    return result;
}
