/* Submits, lists and controls jobs. */
#include "cli/cli.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/units.h"

enum { JOBS_PAGE = 50, JOBS_PATH_BYTES = 3000, SUBMIT_MS = 600000 };

static int print_answer(struct cli *cli, const json_t *answer, const char *what, struct err *err)
{
    if (cli->json)
        return show_json(answer, err);
    printf("job %.0f is %s%s\n", show_num(answer, "id", 0), show_str(answer, "state"), what);
    return 0;
}

/* Submits the specification. The time limit is long, because the server encodes new data during the call. */
static int post_job(struct cli *cli, const json_t *spec, json_t **answer, struct err *err)
{
    struct buf body = {.limit = (size_t)1 << 26}, response = {.limit = (size_t)1 << 26};
    char key[300];
    const char *idempotency = cli_option(cli, "--key");
    const char *headers[2] = {NULL, NULL};
    if (idempotency) {
        snprintf(key, sizeof(key), "Idempotency-Key: %.250s", idempotency);
        headers[0] = key;
    }
    struct http_request request = {.method = "POST",
                                   .path = "/v1/jobs",
                                   .content_type = "application/json",
                                   .headers = headers,
                                   .response = &response,
                                   .timeout_ms = SUBMIT_MS};
    int result = client_open(cli, err) < 0 ? -1 : json_print(spec, false, &body, err);
    if (result == 0) {
        request.body = body.data;
        request.body_bytes = body.size;
        result = http_perform(cli->http, &request, NULL, err);
    }
    if (result == 0 &&
        !(*answer = json_parse_limited(buf_str(&response), response.size, JSON_DEPTH_MAX, err)))
        result = -1;
    buf_fini(&body);
    buf_fini(&response);
    return result;
}

int submit_spec(struct cli *cli, const json_t *spec, json_t **answer, int64_t *id, struct err *err)
{
    if (post_job(cli, spec, answer, err) < 0)
        return -1;
    *id = (int64_t)show_num(*answer, "id", 0);
    return 0;
}

/* Prints what looks wrong in a job that was submitted. */
static void tell_warnings(const json_t *answer)
{
    json_t *warning;
    size_t index;
    json_array_foreach (json_object_get(answer, "warnings"), index, warning) {
        char clean[1024];
        show_clean(json_is_string(warning) ? json_string_value(warning) : "", UINT_MAX, clean, sizeof(clean));
        fprintf(stderr, "warning: %s\n", clean);
    }
}

int command_submit(struct cli *cli, struct err *err)
{
    json_t *spec = given_spec(cli->words[0], err), *answer = NULL, *job = NULL;
    int64_t id = 0;
    int result = spec ? upload_spec_files(cli, spec, err) : -1;
    if (result == 0)
        result = submit_spec(cli, spec, &answer, &id, err);
    json_decref(spec);
    if (result < 0)
        return -1;
    tell_warnings(answer);
    if (cli_option(cli, "--wait")) {
        fprintf(stderr, "job %lld submitted\n", (long long)id);
        cli->quiet = cli->json;
        result = watch_job(cli, id, &job, err);
        if (result == 0 && cli->json)
            result = show_json(job, err);
        if (result == 0)
            result = job_verdict(cli, job, err);
    } else if (cli->json) {
        result = show_json(answer, err);
    } else {
        printf("%lld\n", (long long)id);
    }
    json_decref(answer);
    json_decref(job);
    return result;
}

int job_verdict(struct cli *cli, const json_t *job, struct err *err)
{
    const char *state = show_str(job, "state");
    if (strcmp(state, "succeeded") == 0)
        return 0;
    cli->exit_status =
        strcmp(show_str(job, "code"), "nofit") == 0 || strcmp(show_str(job, "code"), "no-fit") == 0
            ? CLI_NOFIT
            : CLI_JOB_FAILED;
    const char *why = *show_str(job, "why") ? show_str(job, "why") : show_str(job, "error");
    return err_set(err, ERR_CANCELLED, "job %.0f %s%s%s", show_num(job, "id", 0), state, *why ? ": " : "",
                   why);
}

/* Adds the values of an option to a path as a query parameter of the same name. */
static int add_filter(struct cli *cli, const char *option, struct buf *path, struct err *err)
{
    char value[1024];
    const char *given;
    for (unsigned i = 0; (given = cli_option_nth(cli, option, i)); i++)
        if (http_escape(given, value, sizeof(value), err) < 0 ||
            buf_printf(path, err, "&%s=%s", option + 2, value) < 0)
            return err_wrap(err, "%s", option);
    return 0;
}

/* Adds a time that has been to a path, as a query parameter of the option's name. */
static int jobs_add_time(struct cli *cli, const char *option, struct buf *path, struct err *err)
{
    const char *time;
    char at[32];
    if (cli_option_time(cli, option, -1, &time, at, err) < 0)
        return -1;
    return time ? buf_printf(path, err, "&%s=%s", option + 2, time) : 0;
}

int command_jobs(struct cli *cli, struct err *err)
{
    int64_t limit;
    if (cli_option_i64(cli, "--limit", 1, 500, JOBS_PAGE, &limit, err) < 0)
        return -1;
    struct buf path = {.limit = JOBS_PATH_BYTES};
    int made = buf_printf(&path, err, "/v1/jobs?limit=%lld", (long long)limit);
    static const char *const filters[] = {"--state", "--owner", "--group", "--label", "--after", "--array"};
    for (size_t i = 0; made == 0 && i < sizeof(filters) / sizeof(filters[0]); i++)
        made = add_filter(cli, filters[i], &path, err);
    static const char *const times[] = {"--from", "--to"};
    for (size_t i = 0; made == 0 && i < 2; i++)
        made = jobs_add_time(cli, times[i], &path, err);
    json_t *page = NULL;
    if (made == 0)
        made = client_call(cli, "GET", NULL, &page, err, "%s", buf_str(&path));
    buf_fini(&path);
    if (made < 0)
        return -1;
    int result;
    if (cli->json) {
        result = show_json(page, err);
    } else {
        result = show_table(
            json_object_get(page, "jobs"),
            "ID:id:n NAME:name:s STATE:state:s STEP:step:n OF:steps:n LOSS:loss:n SUBMITTED:created:w "
            "WHY:why:s",
            err);
        const char *next = json_string_value(json_object_get(page, "next"));
        if (next)
            printf("more: --after %s\n", next);
    }
    json_decref(page);
    return result;
}

static void jobs_print_line(const char *label, const char *value)
{
    if (*value)
        printf("%-12s %s\n", label, value);
}

/* Prints what the specification trains, and in which dtypes; auto: until the first run has decided. */
static void print_method(const json_t *job)
{
    const json_t *spec = json_object_get(job, "spec");
    const char *asked = show_str(json_object_get(spec, "train"), "compute");
    const char *decided = show_str(json_object_get(job, "inputs"), "compute");
    const json_t *method = json_object_get(spec, "method");
    bool full = strcmp(show_str(method, "kind"), "full") == 0;
    if (json_is_object(method))
        printf("%-12s %s, base %s, computed in %s\n", "method", show_str(method, "kind"),
               full ? "fp32" : show_str(method, "base"),
               strcmp(asked, "auto") == 0 && *decided ? decided : asked);
}

/* Says which plans the job's first steps are tried on, or were. */
static void print_trial(const json_t *trial)
{
    const json_t *plan;
    size_t index;
    if (!json_is_object(trial))
        return;
    jobs_print_line("trial", *show_str(trial, "words") ? show_str(trial, "words") : show_str(trial, "state"));
    json_array_foreach (json_object_get(trial, "plans"), index, plan) {
        char measured[32] = "not tried", predicted[32];
        if (json_is_number(json_object_get(plan, "measured_s")))
            units_seconds(measured, show_num(plan, "measured_s", 0));
        printf("  plan %-5zu %s  %s per step, %s predicted%s\n", index + 1, show_str(plan, "placement"),
               measured, units_seconds(predicted, show_num(plan, "predicted_s", 0)),
               (double)index == show_num(trial, "chosen", -1) ? ", kept" : "");
    }
}

/* Prints what became of telling the job's owner. */
static void print_notices(const json_t *job)
{
    const json_t *notice;
    char again[24];
    size_t index;
    json_array_foreach (json_object_get(job, "notices"), index, notice)
        printf("%-12s %s, %s%s%s%s%s\n", "told", show_str(notice, "event"), show_str(notice, "state"),
               *show_str(notice, "why") ? ": " : "", show_str(notice, "why"),
               *show_str(notice, "next") ? "; again at " : "", clock_words(show_str(notice, "next"), again));
}

static void print_job(const json_t *job)
{
    const json_t *run = json_object_get(job, "run");
    const json_t *base = json_object_get(json_object_get(job, "inputs"), "base");
    const json_t *rank;
    char at[24];
    size_t index;
    printf("%-12s %.0f\n", "job", show_num(job, "id", 0));
    jobs_print_line("name", show_str(job, "name"));
    jobs_print_line("state", *show_str(job, "ended_by") ? "succeeded so far" : show_str(job, "state"));
    jobs_print_line("why", show_str(job, "why"));
    if (json_is_object(base))
        printf("%-12s %s%s%s\n", "model", show_str(base, "name"), *show_str(base, "revision") ? "@" : "",
               show_str(base, "revision"));
    print_method(job);
    printf("%-12s %.0f of %.0f\n", "steps", show_num(job, "step", 0), show_num(job, "steps", 0));
    if (json_is_number(json_object_get(job, "loss")))
        printf("%-12s %.4f\n", "loss", show_num(job, "loss", 0));
    const json_t *array = json_object_get(job, "array");
    if (json_is_object(array))
        printf("%-12s %.0f elements, %.0f of them jobs (motley jobs --array %.0f)\n", "array",
               show_num(array, "size", 0), show_num(array, "made", 0), show_num(job, "id", 0));
    if (json_is_integer(json_object_get(job, "array_of")))
        printf("%-12s %.0f of array %.0f\n", "element", show_num(job, "index", 0),
               show_num(job, "array_of", 0));
    jobs_print_line("submitted", clock_words(show_str(job, "created"), at));
    jobs_print_line("started", clock_words(show_str(job, "started"), at));
    jobs_print_line("ended", clock_words(show_str(job, "ended"), at));
    if (*show_str(job, "files_until"))
        printf("%-12s its checkpoints and results go at %s\n", "files",
               clock_words(show_str(job, "files_until"), at));
    if (*show_str(job, "files_gone"))
        printf("%-12s its checkpoints and results went at %s\n", "files",
               clock_words(show_str(job, "files_gone"), at));
    if (json_is_object(run))
        printf("%-12s %.0f, attempt %.0f\n", "run", show_num(run, "id", 0), show_num(run, "attempt", 0));
    print_trial(json_object_get(job, "trial"));
    json_array_foreach (json_object_get(run, "ranks"), index, rank)
        printf("  rank %-5.0f %s  %s  %s\n", show_num(rank, "rank", 0), show_str(rank, "device"),
               show_str(rank, "state"), show_str(rank, "why"));
    print_notices(job);
}

int command_job(struct cli *cli, struct err *err)
{
    int64_t id;
    json_t *job = NULL;
    if (client_job_id(cli->words[0], &id, err) < 0 ||
        client_call(cli, "GET", NULL, &job, err, "/v1/jobs/%lld", (long long)id) < 0)
        return -1;
    int result = 0;
    if (cli->json)
        result = show_json(job, err);
    else
        print_job(job);
    json_decref(job);
    return result;
}

/* Repeats the request for up to three seconds, until the scheduler has computed which changes would let a
 * queued job start sooner. */
static int ask_why(struct cli *cli, int64_t id, json_t **answer, struct err *err)
{
    const uint64_t until_ns = clock_mono_ns() + 3000000000u;
    for (;;) {
        const struct timespec pause = {.tv_nsec = 100000000};
        if (client_call(cli, "GET", NULL, answer, err, "/v1/jobs/%lld/why", (long long)id) < 0)
            return -1;
        if (!json_is_integer(json_object_get(*answer, "place")) ||
            json_is_array(json_object_get(*answer, "sooner")) ||
            strcmp(show_str(*answer, "state"), "queued") != 0 || clock_mono_ns() > until_ns)
            return 0;
        json_decref(*answer);
        *answer = NULL;
        nanosleep(&pause, NULL);
    }
}

/* Writes a predicted time as people read it, and one that has passed as "now". */
static const char *coming(const json_t *object, const char *key, char out[24])
{
    int64_t at_us;
    const char *text = show_str(object, key);
    if (clock_rfc3339_parse(text, &at_us) == 0 && at_us <= clock_wall_us())
        return "now";
    return clock_words(text, out);
}

/* Prints the job's place in the queue, when it will probably start, and which changes would let it start
 * sooner. */
static void print_place(const json_t *answer)
{
    size_t i;
    json_t *change;
    const char *latest = show_str(answer, "starts_latest");
    char at[24], until[24];
    printf("place %.0f", show_num(answer, "place", 0));
    if (*show_str(answer, "starts"))
        printf(", to start about %s", coming(answer, "starts", at));
    if (*latest)
        printf(", between %s and %s", coming(answer, "starts_earliest", at),
               coming(answer, "starts_latest", until));
    if (*latest && show_num(answer, "ranges", 0) > 0)
        printf(" (so far %.0f %% of %.0f such ranges were right)", 100 * show_num(answer, "ranges_right", 0),
               show_num(answer, "ranges", 0));
    printf("\n");
    json_array_foreach (json_object_get(answer, "sooner"), i, change)
        printf("sooner, %s: %s\n", coming(change, "starts", at), show_str(change, "words"));
}

int command_why(struct cli *cli, struct err *err)
{
    int64_t id;
    json_t *answer = NULL;
    warn_of_full_disk(cli);
    if (client_job_id(cli->words[0], &id, err) < 0 || ask_why(cli, id, &answer, err) < 0)
        return -1;
    int result = 0;
    if (cli->json)
        result = show_json(answer, err);
    else
        printf("job %lld is %s%s%s\n", (long long)id, show_str(answer, "state"),
               *show_str(answer, "why") ? ": " : "", show_str(answer, "why"));
    if (!cli->json && json_is_integer(json_object_get(answer, "place")))
        print_place(answer);
    json_decref(answer);
    return result;
}

int command_watch(struct cli *cli, struct err *err)
{
    int64_t id;
    json_t *job = NULL;
    if (client_job_id(cli->words[0], &id, err) < 0 || watch_job(cli, id, &job, err) < 0)
        return -1;
    int result = job_verdict(cli, job, err);
    json_decref(job);
    return result;
}

/* Applies the command to several jobs. Jobs that refuse it are named on stderr; the others carry it out. */
static int act_on_several(struct cli *cli, struct err *err)
{
    json_t *ids = json_array(), *answer = NULL, *entry;
    int64_t id;
    size_t i;
    int result = 0;
    for (unsigned n = 0; n < cli->word_count && result == 0; n++) {
        result = client_job_id(cli->words[n], &id, err);
        json_array_append_new(ids, json_integer(id));
    }
    json_t *body = json_pack("{s:o}", "ids", ids);
    if (result == 0)
        result = client_call(cli, "POST", body, &answer, err, "/v1/jobs:%s", cli->command->name);
    json_decref(body);
    const json_t *refused = json_object_get(answer, "refused");
    if (result == 0 && cli->json)
        result = show_json(answer, err);
    else if (result == 0)
        json_array_foreach (json_object_get(answer, "jobs"), i, entry)
            print_answer(cli, entry, "", err);
    if (result == 0 && json_array_size(refused) > 0) {
        struct buf text = {.limit = 400};
        json_array_foreach (refused, i, entry)
            if (buf_printf(&text, err, "%s%s", i ? "; " : "", show_str(entry, "detail")) < 0)
                break;
        result = err_set(err, ERR_CONFLICT, "%s", buf_str(&text));
        buf_fini(&text);
    }
    json_decref(answer);
    return result;
}

int command_act(struct cli *cli, struct err *err)
{
    int64_t id;
    json_t *answer = NULL;
    if (cli->word_count > 1)
        return act_on_several(cli, err);
    if (client_job_id(cli->words[0], &id, err) < 0 ||
        client_call(cli, "POST", NULL, &answer, err, "/v1/jobs/%lld/%s", (long long)id, cli->command->name) <
            0)
        return -1;
    int result =
        print_answer(cli, answer,
                     strcmp(show_str(answer, "state"), "stopping") == 0
                         ? ": it stops after the present step (motley why says how long a step takes)"
                         : "",
                     err);
    json_decref(answer);
    return result;
}

int command_change(struct cli *cli, struct err *err)
{
    int64_t id, number;
    json_t *answer = NULL, *body = json_object();
    const char *begin = cli_option(cli, "--begin"), *at_most = cli_option(cli, "--at-most");
    const bool now = begin && strcmp(begin, "now") == 0;
    char at[32];
    int result = client_job_id(cli->words[0], &id, err);
    if (result == 0 && begin && !now)
        result = cli_option_time(cli, "--begin", 1, &begin, at, err);
    if (result == 0 && cli_option(cli, "--priority") &&
        (result = cli_option_i64(cli, "--priority", -100, 100, 0, &number, err)) == 0)
        json_object_set_new(body, "priority", json_integer(number));
    if (begin)
        json_object_set_new(body, "begin", now ? json_null() : json_string(begin));
    if (result == 0 && at_most && strcmp(at_most, "any") == 0)
        json_object_set_new(body, "at_most", json_null());
    else if (result == 0 && at_most &&
             (result = cli_option_i64(cli, "--at-most", 1, 1000, 0, &number, err)) == 0)
        json_object_set_new(body, "at_most", json_integer(number));
    if (result == 0 && json_object_size(body) == 0)
        result = err_set(err, ERR_INVALID, "nothing to change: give --priority, --begin or --at-most");
    if (result == 0)
        result = client_call(cli, "PATCH", body, &answer, err, "/v1/jobs/%lld", (long long)id);
    if (result == 0)
        result = print_answer(cli, answer, "", err);
    json_decref(body);
    json_decref(answer);
    return result;
}

int command_extend(struct cli *cli, struct err *err)
{
    int64_t id;
    double seconds;
    json_t *answer = NULL;
    const char *text = cli_option(cli, "--for");
    if (!text)
        return err_set(err, ERR_INVALID, "--for is missing, as in --for 2h");
    if (client_job_id(cli->words[0], &id, err) < 0)
        return -1;
    if (units_parse_seconds(text, &seconds, err) < 0) {
        err_wrap(err, "--for");
        return -1;
    }
    json_t *body = json_pack("{s:I}", "seconds", (json_int_t)ceil(seconds));
    int result = client_call(cli, "POST", body, &answer, err, "/v1/jobs/%lld/extend", (long long)id);
    json_decref(body);
    if (result == 0 && cli->json)
        result = show_json(answer, err);
    else if (result == 0)
        printf("job %lld: time limit %.0f s\n", (long long)id, show_num(answer, "time_limit_s", 0));
    json_decref(answer);
    return result;
}

int command_resume(struct cli *cli, struct err *err)
{
    int64_t id, steps;
    json_t *answer = NULL;
    if (client_job_id(cli->words[0], &id, err) < 0 ||
        cli_option_i64(cli, "--steps", 1, 1000000000, 0, &steps, err) < 0)
        return -1;
    json_t *body = steps ? json_pack("{s:I}", "steps", (json_int_t)steps) : NULL;
    int result = client_call(cli, "POST", body, &answer, err, "/v1/jobs/%lld/resume", (long long)id);
    json_decref(body);
    char end[48] = "";
    if (result == 0 && show_num(answer, "steps", 0) > 0)
        snprintf(end, sizeof(end), ", to end with step %.0f", show_num(answer, "steps", 0));
    if (result == 0)
        result = print_answer(cli, answer, end, err);
    json_decref(answer);
    return result;
}

int command_metrics(struct cli *cli, struct err *err)
{
    int64_t id;
    if (client_job_id(cli->words[0], &id, err) < 0)
        return -1;
    json_t *lines = client_metrics(cli, id, err), *line;
    if (!lines)
        return -1;
    size_t index;
    int result = 0;
    if (cli->json) {
        json_array_foreach (lines, index, line)
            result = result < 0 ? result : show_json(line, err);
    } else {
        result = show_table(
            lines,
            "STEP:step:n LOSS:loss:n NORM:grad_norm:n RATE:learning_rate:n ROWS:rows:n TOKENS:tokens:n "
            "LEARNT:labelled_tokens:n TIME:seconds:t SCALE:loss_scale:n EVAL:eval:s",
            err);
    }
    json_decref(lines);
    return result;
}
